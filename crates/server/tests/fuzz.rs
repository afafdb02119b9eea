//! The functions that fuzzers call, on mutated requests of agents, for a bounded time, with any toolchain.

use proptest::prelude::*;
use serde_json::Value;
use server::fuzzing;

type Reader = fn(&[u8]);

const BODIES: [(&str, Reader); 6] = [
    (include_str!("data/agents/claude_code.json"), fuzzing::messages),
    (include_str!("data/agents/codex.json"), fuzzing::responses),
    (include_str!("data/agents/qwen_code.json"), fuzzing::chat),
    (include_str!("data/agents/opencode.json"), fuzzing::chat),
    (include_str!("data/agents/openclaw.json"), fuzzing::chat),
    (
        r#"{"body":{"prompt":["a","b"],"suffix":null,"echo":true,"logprobs":3,"max_tokens":0,"stop":["x"],"best_of":1}}"#,
        fuzzing::completions,
    ),
];

fn body(which: usize) -> (Value, fn(&[u8])) {
    let (text, read) = BODIES[which];
    let v: Value = serde_json::from_str(text).unwrap();
    (v["body"].clone(), read)
}

/// Values that are not what a field expects.
fn odd() -> impl Strategy<Value = Value> {
    prop::sample::select(vec![
        Value::Null,
        true.into(),
        (-1).into(),
        1e300.into(),
        u64::MAX.into(),
        "".into(),
        "a\u{0}\u{FFFD}😀".into(),
        "auto".into(),
        Value::Array(vec![]),
        serde_json::json!([null]),
        serde_json::json!({}),
        serde_json::json!({"type": "object", "name": 1}),
        serde_json::json!([{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {"url": "data:"}}]),
    ])
}

/// The places of all values in a value.
fn places(v: &Value, at: &str, out: &mut Vec<String>) {
    out.push(at.to_string());
    match v {
        Value::Array(a) => a.iter().enumerate().for_each(|(i, v)| places(v, &format!("{at}/{i}"), out)),
        Value::Object(o) => o.iter().for_each(|(k, v)| {
            places(v, &format!("{at}/{}", k.replace('~', "~0").replace('/', "~1")), out);
        }),
        _ => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn values_of_another_kind(which in 0..BODIES.len(), changes in prop::collection::vec((any::<prop::sample::Index>(), odd()), 1..4)) {
        let (mut v, read) = body(which);
        for (place, with) in changes {
            let mut all = Vec::new();
            places(&v, "", &mut all);
            *v.pointer_mut(&all[place.index(all.len())]).unwrap() = with;
        }
        read(v.to_string().as_bytes());
    }

    #[test]
    fn bytes_out_of_place(which in 0..BODIES.len(), cuts in prop::collection::vec((any::<prop::sample::Index>(), prop::collection::vec(any::<u8>(), 0..4)), 1..4)) {
        let (v, read) = body(which);
        let mut bytes = v.to_string().into_bytes();
        for (at, with) in cuts {
            let at = at.index(bytes.len());
            let end = (at + with.len().max(1)).min(bytes.len());
            bytes.splice(at..end, with);
            if bytes.is_empty() {
                break;
            }
        }
        read(&bytes);
    }

    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        for (_, read) in BODIES {
            read(&bytes);
        }
    }
}
