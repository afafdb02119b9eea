//! Tools: which calls there are, how they arrive, and what schemas hold.

use serde_json::{Value, json};

use crate::fold::{chat_stream, chat_whole, messages_stream, messages_whole, responses_stream, responses_whole};
use crate::rig::{Rig, Setup, says, user, with};

const TWO: &str = "Let me see.<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>\n<tool_call>\n{\"name\": \"later\", \"arguments\": {\"in\": 5}}\n</tool_call>";

fn functions() -> Value {
    let later = json!({"type": "object", "properties": {"in": {"type": "integer"}}, "required": ["in"], "additionalProperties": false});
    json!([{"name": "now", "parameters": {"type": "object", "properties": {}, "additionalProperties": false}}, {"name": "later", "parameters": later}])
}

fn openai() -> Value {
    functions().as_array().unwrap().iter().map(|f| json!({"type": "function", "function": f})).collect()
}

fn flat() -> Value {
    functions().as_array().unwrap().iter().map(|f| with(f.clone(), json!({"type": "function"}))).collect()
}

fn anthropic() -> Value {
    functions()
        .as_array()
        .unwrap()
        .iter()
        .map(|f| json!({"name": f["name"], "input_schema": f["parameters"]}))
        .collect()
}

/// Names of the calls a choice led to, the same on all three APIs.
fn names(choice: Option<Value>, responses: Option<Value>, messages: Option<Value>, more: Value) -> Vec<String> {
    let rig = says(&[TWO]);
    let body = |tools: Value, choice: Option<Value>| {
        let mut b = json!({"tools": tools, "max_tokens": 300});
        if let Some(c) = choice {
            b["tool_choice"] = c;
        }
        b
    };
    let names = |r: Vec<&str>| r.iter().map(|c| c.split('{').next().unwrap().to_owned()).collect::<Vec<_>>();
    let chat = chat_whole(&rig.chat(with(body(openai(), choice), more.clone())));
    let all = names(chat.of("call"));
    if let Some(c) = responses {
        let r = responses_whole(&rig.responses(with(body(flat(), Some(c)), more)));
        assert_eq!(names(r.of("call")), all);
    }
    if let Some(c) = messages {
        let m = messages_whole(&rig.messages(body(anthropic(), Some(c))));
        assert_eq!(names(m.of("call")), all);
        assert_eq!(m.finish == "tool_use", !all.is_empty());
    }
    assert_eq!(chat.finish == "tool_calls", !all.is_empty());
    all
}

#[test]
fn the_choice_of_tools_is_obeyed_on_all_three_apis() {
    let none = || json!({});
    assert_eq!(names(None, None, None, none()), ["now", "later"]);
    assert_eq!(
        names(Some(json!("auto")), Some(json!("auto")), Some(json!({"type": "auto"})), none()),
        ["now", "later"]
    );
    assert!(names(Some(json!("none")), Some(json!("none")), Some(json!({"type": "none"})), none()).is_empty());
    assert_eq!(
        names(Some(json!("required")), Some(json!("required")), Some(json!({"type": "any"})), none()),
        ["now", "later"]
    );
    let named = names(
        Some(json!({"type": "function", "function": {"name": "later"}})),
        Some(json!({"type": "function", "name": "later"})),
        Some(json!({"type": "tool", "name": "later", "disable_parallel_tool_use": false})),
        none(),
    );
    assert!(!named.is_empty() && named.iter().all(|n| n == "later"), "{named:?}");
    let single = json!({"parallel_tool_calls": false});
    assert_eq!(
        names(
            Some(json!("auto")),
            Some(json!("auto")),
            Some(json!({"type": "auto", "disable_parallel_tool_use": true})),
            single.clone()
        ),
        ["now"]
    );
    let one = names(
        Some(json!({"type": "function", "function": {"name": "later"}})),
        Some(json!({"type": "function", "name": "later"})),
        Some(json!({"type": "tool", "name": "later", "disable_parallel_tool_use": true})),
        single,
    );
    assert_eq!(one, ["later"]);
}

#[test]
fn a_call_that_is_required_has_arguments_its_schema_accepts() {
    let rig = says(&["I would rather talk."]);
    let choice = json!({"type": "function", "function": {"name": "later"}});
    let r = rig.chat(json!({"tools": openai(), "tool_choice": choice})).ok();
    let call = &r["choices"][0]["message"]["tool_calls"][0]["function"];
    let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
    assert_eq!(call["name"], "later");
    assert!(arguments["in"].is_i64(), "{arguments}");
}

#[test]
fn choices_that_make_no_sense_are_400() {
    let rig = says(&["x"]);
    for (r, word) in [
        (
            rig.chat(json!({"tools": openai(), "tool_choice": {"type": "function", "function": {"name": "nope"}}})),
            "nope",
        ),
        (rig.chat(json!({"tools": openai(), "tool_choice": "sometimes"})), "sometimes"),
        (rig.chat(json!({"tool_choice": "required"})), "no tools"),
        (rig.chat(json!({"tool_choice": {"type": "function", "function": {"name": "now"}}})), "no tools"),
        (rig.responses(json!({"tools": flat(), "tool_choice": {"type": "function", "name": "nope"}})), "nope"),
        (rig.responses(json!({"tool_choice": "required"})), "no tools"),
        (rig.messages(json!({"tools": anthropic(), "tool_choice": {"type": "tool", "name": "nope"}})), "nope"),
        (rig.messages(json!({"tool_choice": {"type": "any"}})), "no tools"),
    ] {
        assert_eq!(r.status, 400, "{}", r.text());
        assert!(r.message().contains(word) && r.message().contains("tool_choice"), "{}", r.message());
    }
}

#[test]
fn without_tools_a_call_is_shown_as_text() {
    let rig = says(&["<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>"]);
    let said = chat_whole(&rig.chat(json!({})));
    assert_eq!((said.text().as_str(), said.finish.as_str()), (r#"{"name": "f", "arguments": {"a": 1}}"#, "stop"));
}

fn format(schema: Value) -> Value {
    json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": true}}})
}

#[test]
fn schemas_hold_answers_or_are_refused_by_path_and_keyword() {
    let rig = says(&["I will not be held {\"a\": \"12:34\"}"]);
    let object = |properties: Value, defs: Value| json!({"type": "object", "properties": properties, "required": properties.as_object().unwrap().keys().collect::<Vec<_>>(), "additionalProperties": false, "$defs": defs});
    let time = json!({"type": "string", "pattern": r"^\d{2}:\d{2}$"});
    let node = json!({"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}}, "required": ["next"], "additionalProperties": false});
    for schema in [
        object(json!({"a": {"$ref": "#/$defs/s"}}), json!({"s": {"type": "string"}})),
        object(json!({"a": {"$ref": "#/$defs/n"}}), json!({"n": node})),
        object(
            json!({"a": {"$ref": "#/$defs/u/anyOf/0"}}),
            json!({"u": {"anyOf": [{"type": "string"}, {"type": "integer"}]}}),
        ),
        time.clone(),
        object(json!({"a": {"type": "array", "items": time}}), json!({})),
        object(json!({"a": {"type": "string", "maxLength": 65536}}), json!({})),
        object(json!({"a": {"type": "string", "format": "date-time"}}), json!({})),
        json!({"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": false}),
        object(json!({"a": {"type": ["string", "null"]}}), json!({})),
        object(json!({"a": {"enum": ["say \"hi\"", "😀"]}}), json!({})),
    ] {
        let r = rig.chat(format(schema.clone())).ok();
        let c = &r["choices"][0];
        let text = c["message"]["content"].as_str().unwrap();
        let value: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{schema}: {text:?}: {e}"));
        assert_eq!(c["finish_reason"], "stop");
        let valid = jsonschema::options().should_validate_formats(true).build(&schema).unwrap();
        assert!(valid.is_valid(&value), "{schema}: {value}");
    }
    let r = rig.chat(format(object(json!({"a": {"type": "string", "pattern": "("}}), json!({}))));
    assert_eq!(r.status, 400);
    assert!(r.message().contains("/properties/a") && r.message().contains("pattern"), "{}", r.message());
    let r = rig.chat(format(json!(5)));
    assert_eq!(r.status, 400);
}

#[test]
fn an_unsupported_keyword_in_a_tool_is_relaxed() {
    let rig = says(&["<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"x\"}}\n</tool_call>"]);
    let parameters =
        json!({"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}, "required": ["a"]});
    let tool = json!([{"type": "function", "function": {"name": "f", "parameters": parameters, "strict": true}}]);
    for choice in ["auto", "required"] {
        let said = chat_whole(&rig.chat(json!({"tools": tool, "tool_choice": choice})));
        assert_eq!(said.of("call").len(), 1, "{said:?}");
    }
}

#[test]
fn sixty_tools_at_once() {
    let rig = says(&["<tool_call>\n{\"name\": \"t42\", \"arguments\": {\"a\": 1}}\n</tool_call>"]);
    let tools: Value = (0..60).map(|i| json!({"type": "function", "function": {"name": format!("t{i}"), "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}})).collect();
    for choice in ["auto", "required"] {
        let said = chat_whole(&rig.chat(json!({"tools": tools, "tool_choice": choice})));
        assert_eq!(said.of("call"), ["t42{\"a\": 1}"]);
    }
}

#[test]
fn beside_tools_that_may_be_left_out_an_answer_keeps_to_its_format() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": false});
    let call = "<tool_call>\n{\"name\": \"later\", \"arguments\": {\"in\": 5}}\n</tool_call>";
    for (output, called) in [("I would rather talk. {\"a\": 7}", false), (call, true)] {
        let rig = says(&[output]);
        let m = json!({"tools": anthropic(), "output_config": {"format": {"type": "json_schema", "schema": schema}}});
        let r = json!({"tools": flat(), "text": {"format": {"type": "json_schema", "name": "x", "schema": schema}}});
        for said in [
            chat_whole(&rig.chat(with(json!({"tools": openai()}), format(schema.clone())))),
            messages_whole(&rig.messages(m)),
            responses_whole(&rig.responses(r)),
        ] {
            if called {
                assert_eq!((said.of("call").len(), said.text().as_str()), (1, ""), "{said:?}");
            } else {
                let value: Value = serde_json::from_str(&said.text()).unwrap_or_else(|e| panic!("{e}: {said:?}"));
                assert!(value["a"].is_i64() && said.of("call").is_empty(), "{said:?}");
            }
        }
    }
    let bad = with(json!({"tools": openai()}), format(json!({"not": {}})));
    let r = says(&["x"]).chat(bad);
    assert_eq!((r.status, r.message().contains("response_format")), (400, true), "{}", r.text());
}

#[test]
fn other_formats_are_enforced_too() {
    let rig = says(&["no!"]);
    let text = |body: Value| chat_whole(&rig.chat(body)).text();
    let object: Value = serde_json::from_str(&text(json!({"response_format": {"type": "json_object"}}))).unwrap();
    assert!(object.is_object());
    let matched = text(json!({"regex": "[0-9]{3}"}));
    assert!(matched.len() == 3 && matched.bytes().all(|b| b.is_ascii_digit()), "{matched}");
    assert_eq!(text(json!({"grammar": "start: \"yes\" | \"n\" /[aeiou]/"})), "no");
    let r =
        rig.responses(json!({"text": {"format": {"type": "json_schema", "name": "x", "schema": {"enum": ["only"]}}}}));
    assert_eq!(responses_whole(&r).text(), "\"only\"");
    let r = rig.messages(json!({"output_config": {"format": {"type": "json_schema", "schema": {"enum": ["only"]}}}}));
    assert_eq!(messages_whole(&r).text(), "\"only\"");
    assert_eq!(rig.chat(json!({"regex": "("})).status, 400);
    assert_eq!(rig.chat(json!({"grammar": "start: nothing"})).status, 400);
}

/// A tool call in the syntax of every dialect, and what it says.
/// A dialect, what a model writes in it, and the calls that are read from it.
type Written = (&'static str, &'static str, Vec<(&'static str, Value)>);

fn calls() -> Vec<Written> {
    vec![
        (
            "qwen3",
            "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>\n<tool_call>\n{\"name\": \"put\", \"arguments\": {\"text\": \"😀 \\\"q\\\" \\\\ \\n\", \"n\": 7, \"id\": \"007\"}}\n</tool_call>",
            both(),
        ),
        (
            "qwen3.5",
            "<tool_call>\n<function=now>\n</function>\n</tool_call>\n<tool_call>\n<function=put>\n<parameter=text>\n😀 \"q\" \\ \n\n</parameter>\n<parameter=n>\n7\n</parameter>\n<parameter=id>\n007\n</parameter>\n</function>\n</tool_call>",
            both(),
        ),
        (
            "glm",
            "<tool_call>now\n</tool_call><tool_call>put\n<arg_key>text</arg_key>\n<arg_value>😀 \"q\" \\ \n</arg_value>\n<arg_key>n</arg_key>\n<arg_value>7</arg_value>\n<arg_key>id</arg_key>\n<arg_value>007</arg_value>\n</tool_call>",
            both(),
        ),
        (
            "mistral",
            "[TOOL_CALLS]now[ARGS]{}[TOOL_CALLS]put[ARGS]{\"text\": \"😀 \\\"q\\\" \\\\ \\n\", \"n\": 7, \"id\": \"007\"}",
            both(),
        ),
        (
            "harmony",
            "<|channel|>analysis<|message|>think<|end|><|start|>assistant<|channel|>commentary to=functions.put <|constrain|>json<|message|>{\"text\": \"😀 \\\"q\\\" \\\\ \\n\", \"n\": 7, \"id\": \"007\"}<|call|>",
            vec![put()],
        ),
    ]
}

fn put() -> (&'static str, Value) {
    ("put", json!({"text": "😀 \"q\" \\ \n", "n": 7, "id": "007"}))
}

fn both() -> Vec<(&'static str, Value)> {
    vec![("now", json!({})), put()]
}

#[test]
fn calls_arrive_whole_and_typed_in_every_dialect_and_api() {
    let parameters = json!({"type": "object", "properties": {"text": {"type": "string"}, "n": {"type": "integer"}, "id": {"type": "string"}}});
    let functions = [
        json!({"name": "now", "parameters": {"type": "object", "properties": {}}}),
        json!({"name": "put", "parameters": parameters}),
    ];
    let tools: Value = functions.iter().map(|f| json!({"type": "function", "function": f})).collect();
    let flat: Value = functions.iter().map(|f| with(f.clone(), json!({"type": "function"}))).collect();
    let schemas: Value =
        functions.iter().map(|f| json!({"name": f["name"], "input_schema": f["parameters"]})).collect();
    for (dialect, output, right) in calls() {
        let rig = Rig::new(Setup {
            dialect: Some(dialect),
            script: json!({"answers": [{"steps": [output]}]}),
            ..Setup::default()
        });
        let read = |calls: Vec<&str>| -> Vec<(String, Value)> {
            calls
                .iter()
                .map(|c| {
                    let at = c.find('{').unwrap_or_else(|| panic!("{dialect}: {c}"));
                    (c[..at].to_owned(), serde_json::from_str(&c[at..]).unwrap())
                })
                .collect()
        };
        let right: Vec<(String, Value)> = right.into_iter().map(|(n, v)| (n.to_owned(), v)).collect();
        for stream in [false, true] {
            let more = |tools: &Value| json!({"tools": tools, "stream": stream});
            let (c, m, r) = (rig.chat(more(&tools)), rig.messages(more(&schemas)), rig.responses(more(&flat)));
            let (c, m, r) = if stream {
                (chat_stream(&c), messages_stream(&m), responses_stream(&r))
            } else {
                (chat_whole(&c), messages_whole(&m), responses_whole(&r))
            };
            assert_eq!(read(c.of("call")), right, "{dialect} {stream}");
            assert_eq!(read(m.of("call")), right, "{dialect} {stream}");
            assert_eq!(read(r.of("call")), right, "{dialect} {stream}");
            assert_eq!(
                (c.finish.as_str(), m.finish.as_str(), r.finish.as_str()),
                ("tool_calls", "tool_use", "completed")
            );
        }
    }
}

#[test]
fn a_large_argument_with_closing_markup_in_it_arrives_whole() {
    let text = format!("</tool_call>{}", "x".repeat(64 << 10));
    let output = format!("<tool_call>\n{}\n</tool_call>", json!({"name": "put", "arguments": {"text": text}}));
    // Markup inside a string is text there: the vocabulary has no token for it.
    let rig = Rig::new(Setup {
        markers: &["<|im_start|>", "<|im_end|>"],
        script: json!({"context": 200_000, "answers": [{"steps": [output]}]}),
        ..Setup::default()
    });
    let tools = json!([{"type": "function", "function": {"name": "put"}}]);
    let flat = json!([{"type": "function", "name": "put"}]);
    let schemas = json!([{"name": "put", "input_schema": {"type": "object"}}]);
    let long = 100_000;
    for said in [
        chat_whole(&rig.chat(json!({"tools": tools}))),
        chat_stream(&rig.chat(json!({"tools": tools, "stream": true}))),
        messages_whole(&rig.messages(json!({"tools": schemas, "max_tokens": long}))),
        messages_stream(&rig.messages(json!({"tools": schemas, "max_tokens": long, "stream": true}))),
        responses_whole(&rig.responses(json!({"tools": flat}))),
        responses_stream(&rig.responses(json!({"tools": flat, "stream": true}))),
    ] {
        let arguments: Value = serde_json::from_str(said.of("call")[0].strip_prefix("put").unwrap()).unwrap();
        assert_eq!(arguments["text"], text);
    }
}

#[test]
fn an_unknown_tool_is_still_a_call_with_one_id() {
    let rig = says(&["<tool_call>\n{\"name\": \"nobody\", \"arguments\": {\"a\": 1}}\n</tool_call>"]);
    let r = rig.chat(json!({"tools": openai(), "stream": true}));
    let events = r.events();
    let starts: Vec<&Value> =
        events.iter().map(|e| &e["choices"][0]["delta"]["tool_calls"][0]).filter(|c| c.get("id").is_some()).collect();
    assert_eq!(starts.len(), 1);
    assert_eq!(starts[0]["function"]["name"], "nobody");
    assert!(chat_stream(&r).finish == "tool_calls");
}

#[test]
fn a_call_that_is_cut_off_does_not_pass_for_a_good_end() {
    let cut = "Well.<tool_call>\n{\"name\": \"later\", \"arguments\": {\"in\": ";
    let rig = says(&[cut]);
    let c = rig.chat(json!({"tools": openai()}));
    assert_eq!(c.ok()["choices"][0]["finish_reason"], "length");
    assert!(c.ok()["choices"][0]["note"].as_str().unwrap().contains("inside a tool call"));
    assert!(!chat_whole(&c).text().contains("<tool_call>"));
    assert_eq!(messages_whole(&rig.messages(json!({"tools": anthropic()}))).finish, "max_tokens");
    let r = rig.responses(json!({"tools": flat()})).ok();
    assert_eq!((&r["status"], &r["output"][1]["status"]), (&json!("incomplete"), &json!("incomplete")));
    let limited = chat_whole(&rig.chat(json!({"tools": openai(), "max_tokens": 20})));
    assert_eq!(limited.finish, "length");
}

#[test]
fn text_around_a_call_does_not_run_together() {
    let good = "Hi <tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call> tail";
    let broken = "Hi <tool_call>\n{\"name\": \"now\", \"arguments\": {\"a\" 1}}\n</tool_call> tail";
    for output in [good, broken] {
        let rig = says(&[output]);
        for tools in [json!({"tools": openai()}), json!({})] {
            let whole = chat_whole(&rig.chat(tools.clone()));
            let streamed = chat_stream(&rig.chat(with(tools.clone(), json!({"stream": true}))));
            assert_eq!(whole, streamed);
            let text = whole.text();
            assert!(text.starts_with("Hi\n") && text.ends_with("\ntail"), "{output} {tools}: {text:?}");
        }
    }
}

#[test]
fn some_of_the_tools_may_be_allowed() {
    let rig = says(&[TWO]);
    let only = |mode: &str| json!({"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [{"type": "function", "function": {"name": "later"}}]}});
    let flat_only =
        |mode: &str| json!({"type": "allowed_tools", "mode": mode, "tools": [{"type": "function", "name": "later"}]});
    for mode in ["auto", "required"] {
        let chat = chat_whole(&rig.chat(json!({"tools": openai(), "tool_choice": only(mode), "max_tokens": 300})));
        let responses = responses_whole(
            &rig.responses(json!({"tools": flat(), "tool_choice": flat_only(mode), "max_output_tokens": 300})),
        );
        for said in [chat, responses] {
            assert!(said.of("call").iter().all(|c| c.starts_with("later")), "{said:?}");
            assert!(mode == "auto" || !said.of("call").is_empty(), "{said:?}");
        }
        assert!(rig.prompts().pop().unwrap().contains("[now: "), "all of them are shown");
    }
    let mut bad = only("auto");
    bad["allowed_tools"]["tools"][0]["function"]["name"] = "nope".into();
    let r = rig.chat(json!({"tools": openai(), "tool_choice": bad}));
    assert!(r.status == 400 && r.message().contains("nope"), "{}", r.text());
}

#[test]
fn tools_of_a_provider_are_left_out_of_chat_completions() {
    let rig = says(&["ok"]);
    let mut tools = openai();
    tools
        .as_array_mut()
        .unwrap()
        .extend([json!({"type": "web_search"}), json!({"type": "web_search_preview_2025_03_11"})]);
    rig.chat(json!({"tools": tools})).ok();
    let p = &rig.prompts()[0];
    assert!(p.contains("[now: ") && !p.contains("web_search"), "{p}");
}

#[test]
fn a_template_that_cannot_show_tools_is_not_given_any() {
    let template = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n";
    let rig = Rig::new(Setup { template: Some(template), dialect: None, ..Setup::default() });
    for r in [
        rig.chat(json!({"tools": openai()})),
        rig.messages(json!({"tools": anthropic()})),
        rig.responses(json!({"tools": flat()})),
    ] {
        assert!(r.status == 400 && r.message().contains("no place for tools"), "{}", r.text());
    }
    let call = json!({"id": "c", "type": "function", "function": {"name": "now", "arguments": "{}"}});
    let history = json!([user("x"), {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "c", "content": "r"}]);
    let r = rig.chat(json!({"messages": history}));
    assert!(r.status == 400 && r.message().contains("messages[1]"), "{}", r.text());
    assert_eq!(rig.chat(json!({"tools": openai(), "tool_choice": "none"})).status, 200);
    let caps = |rig: &Rig| rig.get("/v1/models").ok()["data"][0]["capabilities"].clone();
    assert!(!caps(&rig).as_array().unwrap().contains(&json!("tools")), "{}", caps(&rig));
    // Unless somebody says that the model knows calls all the same.
    let rig = Rig::new(Setup {
        template: Some(template),
        script: json!({"answers": [{"steps": [TWO]}]}),
        ..Setup::default()
    });
    assert_eq!(chat_whole(&rig.chat(json!({"tools": openai()}))).of("call").len(), 2);
    assert!(caps(&rig).as_array().unwrap().contains(&json!("tools")), "{}", caps(&rig));
}

#[test]
fn what_an_answer_must_follow_is_named_by_the_clients_own_field() {
    let rig = says(&["x"]);
    let bad = json!({"type": "object", "properties": {"a": {"$ref": "#/properties/a"}}, "required": ["a"]});
    let m = json!({"output_config": {"format": {"type": "json_schema", "schema": bad}}});
    let r = json!({"text": {"format": {"type": "json_schema", "name": "x", "schema": bad}}});
    for (r, field) in [
        (rig.chat(format(bad.clone())), "response_format.json_schema.schema"),
        (rig.messages(m), "output_config.format.schema"),
        (rig.responses(r), "text.format.schema"),
    ] {
        assert_eq!(r.status, 400, "{}", r.text());
        let said = r.message();
        assert!(said.starts_with(field) && said.contains("/properties/a") && !said.contains("%json"), "{said}");
    }
    for (body, word) in [
        (json!({"response_format": {"type": "regex"}}), "response_format.pattern"),
        (json!({"response_format": {"type": "grammar"}}), "response_format.grammar"),
        (json!({"regex": "a", "grammar": "start: \"a\""}), "grammar"),
        (json!({"regex": "a", "response_format": {"type": "json_object"}}), "regex"),
        (json!({"grammar": "start: start"}), "grammar"),
    ] {
        let r = rig.chat(body.clone());
        assert!(r.status == 400 && r.message().contains(word), "{body}: {}", r.text());
    }
    let circle = json!([{"type": "function", "function": {"name": "f", "strict": true, "parameters": bad}}]);
    let r = rig.chat(json!({"tools": circle, "tool_choice": "required"}));
    assert!(r.status == 400 && r.message().contains("f/properties/a"), "{}", r.text());
}

#[test]
fn reasoning_that_talks_about_calls_stays_reasoning() {
    let tools = json!({"tools": openai(), "messages": [user("x")]});
    let said = |output: &str| chat_whole(&says(&[output]).chat(tools.clone()));
    let s = said("<think>I could use `<tool_call>` here.</think>No need.");
    assert_eq!(
        (s.of("reasoning"), s.text().as_str(), s.finish.as_str()),
        (vec!["I could use `<tool_call>` here."], "No need.", "stop")
    );
    let s = said("<think>I will.\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>");
    assert_eq!((s.of("reasoning"), s.of("call"), s.finish.as_str()), (vec!["I will."], vec!["now{}"], "tool_calls"));
}
