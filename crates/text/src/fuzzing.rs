//! Entry points for fuzzers: any bytes may come in, and nothing may panic or break its contract. Not part of the public
//! interface.

use std::sync::OnceLock;

use serde_json::{Value, json};

use crate::{
    GgufVocab, History, Tokenizer,
    constrain::{Constraint, Reasoning},
    dialect::{Dialect, Ending, Event, Finish, OutputParser, Parsed, ParserOptions, Summary, Tool},
};

/// Bytes, an end token and a few markers that dialects share.
fn vocabulary() -> &'static Tokenizer {
    static ONE: OnceLock<Tokenizer> = OnceLock::new();
    ONE.get_or_init(|| {
        let mut tokens: Vec<String> = (0..256).map(|b| format!("<0x{b:02X}>")).collect();
        let special = [
            "<unk>",
            "<eos>",
            "<tool_call>",
            "</tool_call>",
            "<think>",
            "</think>",
            "｜DSML｜",
            "<|\"|>",
            "<|channel|>",
            "<|message|>",
            "<|call|>",
        ];
        tokens.extend(special.map(str::to_owned));
        let types = (0..tokens.len()).map(|i| if i < 256 { 6 } else { 3 }).collect();
        let vocab = GgufVocab {
            model: "llama",
            scores: Some(vec![0.0; tokens.len()]),
            tokens: tokens.iter().map(String::as_str).collect(),
            token_types: Some(types),
            eos: Some(257),
            ..Default::default()
        };
        Tokenizer::from_gguf(&vocab).expect("a vocabulary of bytes")
    })
}

fn tools() -> &'static [Tool] {
    static ONES: OnceLock<Vec<Tool>> = OnceLock::new();
    ONES.get_or_init(|| {
        let parameters = json!({"type": "object", "properties": {"s": {"type": "string"}, "n": {"type": "integer"}, "u": {"type": ["string", "null"]}, "o": {"type": "object"}}});
        vec![Tool { name: "f".into(), parameters, strict: false }]
    })
}

/// Reads the bytes as one dialect's output, whole and byte by byte. The second byte chooses whether reasoning is open and
/// whether the output was cut off; bytes from `0xF8` on, which no text has, stand for special tokens.
pub fn dialect(name: &str, bytes: &[u8]) {
    let Some((flags, text)) = bytes.split_first() else { return };
    let Some(dialect) = Dialect::named(name, vocabulary()) else { return };
    let options = ParserOptions { tools: tools(), inside_reasoning: flags & 1 == 1, id_seed: 1 };
    let how = if flags & 2 == 2 { Finish::Cut } else { Finish::End };
    let run = |chunk: usize| -> (Parsed, Summary) {
        let (mut p, mut got) = (OutputParser::new(&dialect, &options), Parsed::default());
        let mut sink = |e: Event<'_>| got.push(e);
        for piece in text.chunk_by(|a, b| *a < 0xF8 && *b < 0xF8) {
            match piece {
                [b] if *b >= 0xF8 => p.push(vocabulary(), 258 + u32::from(*b & 7), &mut sink),
                _ => piece.chunks(chunk).for_each(|c| p.push_bytes(c, &mut sink)),
            }
        }
        let summary = p.finish(how, &mut sink);
        (got, summary)
    };
    let (whole, summary) = run(usize::MAX);
    assert_eq!(run(1), (whole.clone(), summary), "the same for any chunking");
    for call in &whole.calls {
        let valid = serde_json::from_str::<Value>(&call.arguments);
        let fine =
            matches!(valid, Ok(Value::Object(_))) || valid.is_err_and(|e| e.to_string().contains("out of range"));
        assert!(fine || !call.complete, "complete arguments are an object: {}", call.arguments);
    }
    let open = whole.calls.iter().any(|c| !c.complete);
    assert!(!open || !matches!(summary.ending, Ending::Complete), "an open call is no good ending");
}

/// Reads the bytes as one output in every dialect.
pub fn dialects(bytes: &[u8]) {
    Dialect::names().for_each(|name| dialect(name, bytes));
}

/// Reads the bytes as a conversation.
pub fn history(bytes: &[u8]) {
    if let Ok(Value::Array(messages)) = serde_json::from_slice(bytes) {
        let _ = History::new(&messages);
    }
}

/// Reads the bytes as a JSON schema, and takes a few tokens under it.
pub fn schema(bytes: &[u8]) {
    let Ok(schema) = serde_json::from_slice::<Value>(bytes) else { return };
    let Some(dialect) = Dialect::named("plain", vocabulary()) else { return };
    if let Ok(mut m) = Constraint::JsonSchema(&schema).build(vocabulary(), &dialect, Reasoning::Off) {
        for _ in 0..8 {
            let Ok(mask) = m.mask() else { return };
            let first = (0..256u32).find(|i| mask[*i as usize / 32] >> (i % 32) & 1 == 1);
            let Some(id) = first else { return };
            if m.accept(id).is_err() {
                return;
            }
        }
    }
}
