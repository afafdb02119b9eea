//! What only Anthropic's API has.

use serde_json::{Value, json};

use crate::rig::{Rig, Setup, says, user, with};

#[test]
fn a_line_that_changes_with_every_request_is_taken_off_the_front() {
    let system = |n: u32| {
        json!([
            {"type": "text", "text": format!("x-anthropic-billing-header: a=1; cch={n};")},
            {"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral", "ttl": "1h", "unknown": 5}},
        ])
    };
    let rig = says(&["ok"]);
    rig.messages(json!({"system": system(1)})).ok();
    rig.messages(json!({"system": system(2)})).ok();
    rig.messages(json!({"system": format!("x-anthropic-billing-header: cch=3;\nBe kind.")})).ok();
    let p = rig.prompts();
    assert_eq!((&p[0], &p[0]), (&p[1], &p[2]));
    assert!(p[0].starts_with("<|im_start|>system\nBe kind.<|im_end|>"), "{}", p[0]);
    let mut s = Setup::default();
    s.config.strip_volatile = false;
    let rig = Rig::new(s);
    rig.messages(json!({"system": system(1)})).ok();
    assert!(rig.prompts()[0].contains("billing"), "unless it is to be left");
}

fn bodies() -> Vec<Value> {
    let tools: Value = (0..12).map(|i| json!({"name": format!("t{i}"), "description": "does", "input_schema": {"type": "object", "properties": {"a": {"type": "string"}}}})).collect();
    let plain = json!({"max_tokens": 1, "messages": [user("How many?")]});
    let history = json!([
        user("x"),
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "t1", "input": {"a": "b"}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "r"}, {"type": "text", "text": "and?"}]},
    ]);
    vec![
        plain.clone(),
        with(plain.clone(), json!({"system": [{"type": "text", "text": "S"}, {"type": "text", "text": "T"}]})),
        with(plain.clone(), json!({"tools": tools})),
        with(plain.clone(), json!({"tools": tools, "messages": history})),
        with(plain, json!({"thinking": {"type": "enabled", "budget_tokens": 1024}})),
    ]
}

#[test]
fn counting_agrees_with_answering() {
    let rig = says(&["ok"]);
    for body in bodies() {
        let counted = rig.post("/v1/messages/count_tokens", &body).ok()["input_tokens"].as_u64().unwrap();
        let u = rig.post("/v1/messages?beta=true", &body).ok()["usage"].clone();
        let n = |k: &str| u[k].as_u64().unwrap();
        assert_eq!(
            counted,
            n("input_tokens") + n("cache_read_input_tokens") + n("cache_creation_input_tokens"),
            "{body}"
        );
        let r = rig.post("/v1/messages", &with(body, json!({"stream": true})));
        assert_eq!(r.events()[0]["message"]["usage"]["input_tokens"], counted);
    }
    let png = json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}});
    let image = with(bodies()[0].clone(), json!({"messages": [{"role": "user", "content": [png]}]}));
    let (counted, answered) = (rig.post("/v1/messages/count_tokens", &image), rig.post("/v1/messages", &image));
    assert_eq!((counted.status, answered.status), (400, 400));
    assert_eq!(counted.message(), answered.message(), "both say the same of what this model cannot read");
    let mut without = bodies()[0].clone();
    without.as_object_mut().unwrap().remove("max_tokens");
    rig.post("/v1/messages/count_tokens", &without).ok();
}

#[test]
fn counting_fifty_times_needs_no_place_while_a_generation_runs() {
    let script = json!({"answers": [{"steps": ["a", {"ms": 60_000}]}]});
    let rig = Rig::new(Setup { script, places: 0, ..Setup::default() });
    let running = rig.open(
        "POST",
        "/v1/messages",
        &[],
        json!({"max_tokens": 9, "stream": true, "messages": [user("hi")]}).to_string().as_bytes(),
    );
    while rig.backend.load().running == 0 {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert_eq!(rig.messages(json!({})).status, 529, "there is no place for another one");
    let body = bodies()[3].clone();
    std::thread::scope(|s| {
        let all: Vec<_> = (0..50)
            .map(|_| s.spawn(|| rig.post("/v1/messages/count_tokens", &body).ok()["input_tokens"].clone()))
            .collect();
        let counts: Vec<Value> = all.into_iter().map(|t| t.join().unwrap()).collect();
        assert!(counts.iter().all(|c| *c == counts[0]));
    });
    drop(running);
}

#[test]
fn tools_of_the_provider_are_left_out() {
    let rig = says(&["ok"]);
    let tools = json!([{"type": "web_search_20250305", "name": "web_search", "max_uses": 5}, {"name": "mine", "input_schema": {"type": "object"}}]);
    rig.messages(json!({"tools": tools})).ok();
    assert!(rig.prompts()[0].contains("[mine: ]") && !rig.prompts()[0].contains("web_search"));
}

#[test]
fn tools_that_the_client_runs_are_offered_although_it_sends_no_schema() {
    let call = "<tool_call>\n{\"name\": \"bash\", \"arguments\": {\"command\": \"ls\"}}\n</tool_call>";
    let rig = says(&[call]);
    let tools = json!([{"type": "bash_20250124", "name": "bash"}, {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"}]);
    let r = rig.messages(json!({"tools": tools})).ok();
    assert_eq!((&r["content"][0]["name"], &r["content"][0]["input"]), (&json!("bash"), &json!({"command": "ls"})));
    let p = &rig.prompts()[0];
    assert!(p.contains("[bash: Runs") && p.contains("[str_replace_based_edit_tool: Views"), "{p}");
    let r = rig.messages(json!({"tools": [{"type": "computer_20250124", "name": "computer"}]}));
    assert!(r.status == 400 && r.message().contains("tools[0].type"), "{}", r.text());
}

#[test]
fn tools_without_a_schema_or_with_one_name_are_refused() {
    let rig = says(&["x"]);
    let r = rig.messages(json!({"tools": [{"name": "a"}]}));
    assert!(r.status == 400 && r.message().contains("tools[0].input_schema"), "{}", r.text());
    let one = json!({"name": "a", "input_schema": {"type": "object"}});
    let r = rig.messages(json!({"tools": [one, one]}));
    assert!(r.status == 400 && r.message().contains("tools[1].name"), "{}", r.text());
    let r = rig.messages(json!({"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]}));
    assert!(r.status == 400 && r.message().contains("messages[0].content[0].text"), "{}", r.text());
}

#[test]
fn a_message_begins_with_the_figures_it_ends_with() {
    let script = json!({"prefill": {"cached": 10}, "answers": [{"steps": ["ok"]}]});
    let rig = Rig::new(Setup { script, ..Setup::default() });
    let whole = rig.messages(json!({})).ok()["usage"].clone();
    assert_eq!(whole["cache_read_input_tokens"], 10);
    let events = rig.messages(json!({"stream": true})).events();
    let delta = events.iter().find(|e| e["type"] == "message_delta").unwrap();
    for key in ["input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"] {
        assert_eq!(events[0]["message"]["usage"][key], whole[key], "{key}");
        assert_eq!(delta["usage"][key], whole[key], "{key}");
    }
}
