//! Renders a conversation with a chat template, to look at or to compare with another engine's:
//! `render TEMPLATE.jinja CONVERSATION.json`, where the conversation is `{"messages": [...], "tools": [...], ...}` and
//! other keys are variables of the template. BOS and EOS are `bos_token` and `eos_token` of it, where they are given.

use serde_json::{Map, Value};
use std::time::{Duration, SystemTime};
use text::{ChatTemplate, GgufVocab, Prompt, Tokenizer};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [template, conversation] = args.as_slice() else { return Err("TEMPLATE.jinja CONVERSATION.json".into()) };
    let mut all: Map<String, Value> = serde_json::from_slice(&std::fs::read(conversation)?)?;
    let list = |v: Option<Value>| v.and_then(|v| v.as_array().cloned());
    let messages = list(all.remove("messages")).unwrap_or_default();
    let tools = list(all.remove("tools"));
    let now = all.remove("now").and_then(|v| v.as_u64());
    let token = |name: &str| all.get(name).and_then(Value::as_str).unwrap_or("");
    // A vocabulary of nothing but these two.
    let vocab = GgufVocab {
        model: "llama",
        tokens: vec!["<unk>", token("bos_token"), token("eos_token"), "▁"],
        token_types: Some(vec![2, 3, 3, 1]),
        scores: Some(vec![0.0; 4]),
        bos: Some(1),
        eos: Some(2),
        ..Default::default()
    };
    let tokenizer = Tokenizer::from_gguf(&vocab)?;
    let prompt = Prompt {
        messages: &messages,
        tools: tools.as_deref(),
        add_generation_prompt: true,
        extra: Some(&all),
        now: now.map(|s| SystemTime::UNIX_EPOCH + Duration::from_secs(s)),
    };
    print!("{}", ChatTemplate::new(&std::fs::read_to_string(template)?)?.render(&prompt, &tokenizer)?.text());
    Ok(())
}
