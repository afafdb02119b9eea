//! Limits of tokens and of the context.

use serde_json::{Value, json};

use crate::fold::{chat_whole, str};
use crate::rig::{Reply, Rig, Setup, says, user};

#[test]
fn exactly_as_many_tokens_as_were_asked_for() {
    let rig = says(&["0123456789"]);
    for (limit, text, finish) in [
        (json!(0), "", "length"),
        (json!(1), "0", "length"),
        (json!(10), "0123456789", "length"),
        (json!(11), "0123456789", "stop"),
        (json!(null), "0123456789", "stop"),
        (json!(1e12), "0123456789", "stop"),
    ] {
        for name in ["max_tokens", "max_completion_tokens"] {
            let said = chat_whole(&rig.chat(json!({name: limit})));
            assert_eq!((said.text().as_str(), said.finish.as_str()), (text, finish), "{name} {limit}");
        }
        let r = rig.responses(json!({"max_output_tokens": limit})).ok();
        assert_eq!(r["status"] == "incomplete", finish == "length", "{limit}");
        if !limit.is_null() {
            let m = rig.messages(json!({"max_tokens": limit})).ok();
            assert_eq!(m["stop_reason"] == "max_tokens", finish == "length");
        }
    }
    let said = chat_whole(&rig.chat(json!({"max_tokens": 8, "max_completion_tokens": 2})));
    assert_eq!(said.text(), "01", "the newer name counts");
    assert_eq!(rig.post("/v1/completions", &json!({"prompt": "x", "max_tokens": 3})).ok()["choices"][0]["text"], "012");
    for bad in [json!(-1), json!(-2), json!("5"), json!(1.5)] {
        for r in [
            rig.chat(json!({"max_tokens": bad})),
            rig.chat(json!({"max_completion_tokens": bad})),
            rig.responses(json!({"max_output_tokens": bad})),
            rig.messages(json!({"max_tokens": bad})),
            rig.post("/v1/completions", &json!({"prompt": "x", "max_tokens": bad})),
        ] {
            assert_eq!(r.status, 400, "{bad}");
            assert!(r.message().contains("max_"), "{}", r.message());
        }
    }
    let r = rig.post("/v1/messages", &json!({"messages": [user("hi")]}));
    assert!(r.status == 400 && r.message().contains("max_tokens"), "{}", r.text());
}

fn small() -> Rig {
    let script = json!({"context": 256, "answers": [{"steps": [{"repeat": 1000, "steps": ["x"]}]}]});
    Rig::new(Setup { script, ..Setup::default() })
}

/// A message that makes a prompt of so many tokens.
fn text(rig: &Rig, tokens: usize) -> String {
    let empty = rig.post("/v1/messages/count_tokens", &json!({"messages": [user("")]})).ok();
    "a".repeat(tokens - empty["input_tokens"].as_u64().unwrap() as usize)
}

#[test]
fn a_prompt_that_does_not_fit_is_refused_with_both_sizes_in_the_dialects_words() {
    let rig = small();
    for (tokens, fits) in [(254, true), (255, true), (256, false), (257, false), (100_000, false)] {
        let t = text(&rig, tokens);
        for stream in [false, true] {
            let status = if fits { 200 } else { 400 };
            let check = |r: &Reply, words: &str| {
                assert_eq!(r.status, status, "{tokens}: {}", r.text());
                assert!(
                    fits || (r.message().contains(words) && r.message().contains(&tokens.to_string())),
                    "{}",
                    r.message()
                );
            };
            let r = rig.chat(json!({"messages": [user(&t)], "stream": stream}));
            check(&r, "maximum context length is 256 tokens");
            assert!(fits || r.json()["error"]["code"] == "context_length_exceeded");
            check(&rig.responses(json!({"input": t, "stream": stream})), "maximum context length is 256 tokens");
            let r = rig.messages(json!({"messages": [user(&t)], "stream": stream}));
            check(&r, "prompt is too long");
            let raw =
                rig.post("/v1/completions", &json!({"prompt": "a".repeat(tokens), "stream": stream, "max_tokens": 1}));
            check(&raw, "maximum context length is 256 tokens");
        }
    }
}

#[test]
fn a_context_that_fills_up_ends_the_answer_and_says_so() {
    let rig = small();
    let t = text(&rig, 200);
    let c = rig.chat(json!({"messages": [user(&t)], "max_tokens": 500})).ok();
    assert_eq!((&c["choices"][0]["finish_reason"], &c["usage"]["completion_tokens"]), (&json!("length"), &json!(56)));
    assert!(str(&c["choices"][0]["note"]).contains("context is full"));
    let m = rig.messages(json!({"messages": [user(&t)], "max_tokens": 500})).ok();
    assert_eq!(m["stop_reason"], "model_context_window_exceeded");
    let events = rig.messages(json!({"messages": [user(&t)], "max_tokens": 500, "stream": true})).events();
    let delta: &Value = events.iter().find(|e| e["type"] == "message_delta").unwrap();
    assert_eq!(delta["delta"]["stop_reason"], "model_context_window_exceeded");
    let r = rig.responses(json!({"input": t, "max_output_tokens": 500})).ok();
    assert_eq!((&r["status"], &r["incomplete_details"]["reason"]), (&json!("incomplete"), &json!("max_output_tokens")));
}
