//! Entry points for fuzzers: any bytes may come in as a body, and nothing may panic. Not part of the public interface.

use std::sync::OnceLock;

use text::{ChatTemplate, GgufVocab, Tokenizer};

use crate::app::Config;
use crate::request::GenerateRequest;
use crate::responses::store::Store;
use crate::voice::Voice;
use crate::{chat, messages, responses};

/// Bytes, an end token and a few markers.
fn voice() -> &'static Voice {
    static ONE: OnceLock<Voice> = OnceLock::new();
    ONE.get_or_init(|| {
        let mut tokens: Vec<String> = (0..256).map(|b| format!("<0x{b:02X}>")).collect();
        tokens.extend(["<unk>", "<eos>", "<tool_call>", "</tool_call>", "<think>", "</think>"].map(str::to_owned));
        let types = (0..tokens.len()).map(|i| if i < 256 { 6 } else { 3 }).collect();
        let vocab = GgufVocab {
            model: "llama",
            scores: Some(vec![0.0; tokens.len()]),
            tokens: tokens.iter().map(String::as_str).collect(),
            token_types: Some(types),
            eos: Some(257),
            ..Default::default()
        };
        let template = "{{ tools | tojson }}{% for m in messages %}{{ m | tojson }}{{ m.content }}{% endfor %}";
        let tokenizer = Tokenizer::from_gguf(&vocab).expect("a vocabulary of bytes");
        let template = ChatTemplate::new(template).expect("a template");
        Voice::new(tokenizer, Some(template), Some("qwen3")).expect("a dialect there is")
    })
}

/// What was understood is rendered, tokenised and held to its schemas, as it would be.
fn prepare(r: &GenerateRequest) {
    if let Ok(p) = voice().prepare(r) {
        let _ = voice().constraint(r, &p);
    }
}

/// A body of `/v1/chat/completions`.
pub fn chat(bytes: &[u8]) {
    if let Ok((r, _)) = chat::read(bytes) {
        prepare(&r);
    }
}

/// A body of `/v1/completions`.
pub fn completions(bytes: &[u8]) {
    if let Ok((r, _)) = chat::read_completion(bytes) {
        prepare(&r);
    }
}

/// A body of `/v1/messages`, and of `/v1/messages/count_tokens`.
pub fn messages(bytes: &[u8]) {
    for answering in [true, false] {
        if let Ok(r) = messages::read(bytes, &Config::default(), answering) {
            prepare(&r);
        }
    }
}

/// A body of `/v1/responses`.
pub fn responses(bytes: &[u8]) {
    if let Ok((r, _)) = responses::read(bytes, &Store::default()) {
        prepare(&r);
    }
}
