//! Schemas through a server with a real model: whatever it completes is valid, by somebody else's validator.

mod common;

use common::default_model;
use common::served::Served;
use serde_json::{Value, json};

fn schemas() -> Vec<(String, Value)> {
    let all: Vec<Value> = serde_json::from_str(include_str!("../../text/tests/data/schemas.json")).unwrap();
    all.into_iter().map(|s| (s["name"].as_str().unwrap().to_owned(), s["schema"].clone())).collect()
}

fn check(name: &str, schema: &Value, text: &str) {
    let validator = jsonschema::options().should_validate_formats(true).build(schema).unwrap();
    match serde_json::from_str::<Value>(text) {
        Ok(value) => {
            let errors: Vec<String> = validator.iter_errors(&value).map(|e| e.to_string()).collect();
            assert!(errors.is_empty(), "{name}: {text}\n{errors:?}");
        }
        // `1e655` is JSON, if no number for this machine.
        Err(e) => assert!(e.to_string().contains("number out of range"), "{name}: {e}: {text}"),
    }
}

/// The first answer that ends by itself, of some. A toy model may talk in a string until its limit.
fn ended(s: &Served, body: &Value) -> Option<Value> {
    (0..12).find_map(|seed| {
        let mut body = body.clone();
        body["seed"] = seed.into();
        let r = s.json("/v1/chat/completions", &body);
        let choice = r["choices"][0].clone();
        (choice["finish_reason"] != "length").then_some(choice)
    })
}

fn asks(more: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "Say something in JSON."}], "max_tokens": 250,
        "temperature": 1.0, "reasoning_effort": "none"});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// How many of the answers under these schemas ended.
fn answers(s: &Served, all: &[(String, Value)]) -> usize {
    let one = |(name, schema): &&(String, Value)| {
        let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": true}});
        let choice = ended(s, &asks(json!({"response_format": format})));
        choice.iter().for_each(|c| check(name, schema, c["message"]["content"].as_str().unwrap()));
        choice.is_some()
    };
    all.iter().filter(one).count()
}

/// A call of a tool whose arguments are of this schema.
fn call(schema: &Value) -> Value {
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": schema, "strict": true}});
    asks(json!({"tools": [tool], "tool_choice": "required", "parallel_tool_calls": false}))
}

/// Whether a strict tool of this schema is refused because the dialect writes calls in another way than JSON, in which part
/// of the schema cannot be enforced.
fn refused(s: &Served, schema: &Value) -> bool {
    let mut body = call(schema);
    body["max_tokens"] = 1.into();
    let answer = s.post("/v1/chat/completions", &body);
    answer.starts_with("HTTP/1.1 400") && answer.contains("not enforced where ")
}

/// The same with the schema as that of a tool, where it is one of an object and is taken.
fn calls(s: &Served, all: &[(String, Value)]) -> (usize, usize) {
    let objects: Vec<_> = all.iter().filter(|(_, o)| o["type"] == "object" && !refused(s, o)).collect();
    let one = |(name, schema): &&&(String, Value)| {
        let choice = ended(s, &call(schema));
        if let Some(c) = &choice {
            let call = &c["message"]["tool_calls"][0]["function"];
            assert_eq!(call["name"], "f", "{name}: {c}");
            check(name, schema, call["arguments"].as_str().unwrap());
        }
        choice.is_some()
    };
    (objects.iter().filter(one).count(), objects.len())
}

#[test]
fn answers_and_calls_of_a_real_model_are_valid() {
    let s = Served::start(&[&default_model(), "--dialect", "qwen3", "--log", "off"]);
    let some: Vec<_> = schemas().into_iter().step_by(8).collect();
    let ended = answers(&s, &some);
    assert!(ended * 2 > some.len(), "only {ended} of {}", some.len());
    let (ended, of) = calls(&s, &some);
    assert!(ended * 2 > of, "only {ended} of {of}");
}

mod long {
    use super::*;

    #[test]
    fn answers_and_calls_under_sixty_schemas_are_valid() {
        let all = schemas();
        assert!(all.len() >= 60);
        let served = |dialect| Served::start(&[&default_model(), "--dialect", dialect, "--log", "off"]);
        let ended = answers(&served("qwen3"), &all);
        println!("{ended} of {} answers ended, all valid", all.len());
        assert!(ended * 10 >= all.len() * 9, "{ended}");
        // Answers have no dialect; calls have.
        for (dialect, taken) in [("qwen3", 48), ("qwen3.5", 40), ("gemma4", 40), ("glm", 40)] {
            let (called, of) = calls(&served(dialect), &all);
            println!("{dialect}: {called} of {of} calls ended, all valid");
            assert!(of >= taken && called * 10 >= of * 8, "{dialect}: {called} of {of}");
        }
    }
}
