//! What only the responses API has.

use serde_json::{Value, json};

use crate::fold::{responses_stream, str};
use crate::rig::{says, user};

#[test]
fn a_free_form_tool_is_held_to_its_regular_expression() {
    let rig = says(&["<tool_call>\n{\"name\": \"dial\", \"arguments\": {\"input\": \"call me\"}}\n</tool_call>"]);
    let tool = json!({"type": "custom", "name": "dial", "format": {"type": "grammar", "syntax": "regex", "definition": "[0-9]{3}|\\\\"}});
    for choice in [json!("auto"), json!("required"), json!({"type": "custom", "name": "dial"})] {
        let r = rig.responses(json!({"tools": [tool], "tool_choice": choice})).ok();
        let input = r["output"][0]["input"].as_str().unwrap_or_else(|| panic!("{r}"));
        let fits = input == "\\" || input.len() == 3 && input.bytes().all(|b| b.is_ascii_digit());
        assert!(fits, "{choice}: {input:?}");
    }
}

#[test]
fn responses_are_kept_continued_and_deleted() {
    let rig = says(&["one", "two"]);
    let first = rig.responses(json!({"instructions": "S", "input": "U"})).ok();
    let id = str(&first["id"]);
    let kept = rig.get(&format!("/v1/responses/{id}")).ok();
    assert_eq!(kept, first);
    let second = rig.responses(json!({"previous_response_id": id, "input": "V", "stream": true}));
    responses_stream(&second);
    let p = rig.prompts().pop().unwrap();
    assert!(p.contains("U<|im_end|>") && p.contains("assistant\none<|im_end|>") && p.contains("V<|im_end|>"), "{p}");
    assert!(!p.contains("system"), "instructions are not inherited: {p}");
    let last = second.events().pop().unwrap();
    let streamed = rig.get(&format!("/v1/responses/{}", str(&last["response"]["id"]))).ok();
    assert_eq!(streamed, last["response"], "streamed ones are kept too");
    assert_eq!(rig.send("DELETE", &format!("/v1/responses/{id}"), &[], b"").ok()["deleted"], true);
    for r in [
        rig.get(&format!("/v1/responses/{id}")),
        rig.send("DELETE", &format!("/v1/responses/{id}"), &[], b""),
        rig.responses(json!({"previous_response_id": id})),
    ] {
        assert_eq!(r.status, 404);
        assert!(r.message().contains(id), "{}", r.message());
    }
    let private = rig.responses(json!({"store": false})).ok();
    assert_eq!(rig.get(&format!("/v1/responses/{}", str(&private["id"]))).status, 404);
}

#[test]
fn namespaces_free_form_tools_and_tools_of_the_provider() {
    let call = |name: &str, arguments: &str| {
        format!("<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {arguments}}}\n</tool_call>")
    };
    let rig = says(&[&call("files__read", "{\"path\": \"x\"}"), &call("patch", "{\"input\": \"*** Begin\\n😀\"}")]);
    let tools = json!([
        {"type": "namespace", "name": "files", "tools": [{"type": "function", "name": "read", "parameters": {"type": "object"}}]},
        {"type": "custom", "name": "patch", "description": "edits", "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}},
        {"type": "web_search"}, {"type": "image_generation"},
    ]);
    let r = rig.responses(json!({"tools": tools})).ok();
    let c = &r["output"][0];
    assert_eq!(
        (&c["type"], &c["namespace"], &c["name"], &c["arguments"]),
        (&json!("function_call"), &json!("files"), &json!("read"), &json!("{\"path\": \"x\"}"))
    );
    let s = rig.responses(json!({"tools": tools, "stream": true}));
    assert_eq!(responses_stream(&s).of("call"), ["patch*** Begin\n😀"]);
    let done = s.events().pop().unwrap()["response"]["output"][0].clone();
    assert_eq!((&done["type"], &done["input"]), (&json!("custom_tool_call"), &json!("*** Begin\n😀")));
    // What came out goes back in.
    let back = json!([user("U"), c, {"type": "function_call_output", "call_id": c["call_id"], "output": [{"type": "input_text", "text": "r"}]},
        done, {"type": "custom_tool_call_output", "call_id": done["call_id"], "output": "s"}, {"type": "web_search_call", "id": "w"}]);
    rig.responses(json!({"input": back, "tools": tools})).ok();
    let p = rig.prompts().pop().unwrap();
    assert!(p.contains("files__read(path=x)") && p.contains("patch(input=*** Begin"), "{p}");
    assert!(p.contains("[patch: edits\n\nThe input must follow this lark grammar:\nstart: /.+/]"), "{p}");
}

#[test]
fn an_empty_probe_is_answered() {
    let rig = says(&["x"]);
    for input in [json!([]), json!(""), json!(null)] {
        let r = rig.responses(json!({"input": input, "instructions": "S", "max_output_tokens": 1}));
        assert_eq!(r.status, 200, "{}", r.text());
    }
}

#[test]
fn reasoning_can_be_kept_by_the_client() {
    let rig = says(&["<think>because</think>ok"]);
    let r = rig.responses(json!({"include": ["reasoning.encrypted_content"]})).ok();
    let (item, text) = (&r["output"][0], &r["output"][1]);
    assert_eq!(
        (&item["type"], &item["content"][0]["text"], &text["content"][0]["text"]),
        (&json!("reasoning"), &json!("because"), &json!("ok"))
    );
    let mut kept = item.clone();
    kept.as_object_mut().unwrap().remove("content");
    rig.responses(json!({"input": [user("U"), kept, text, user("V")]})).ok();
    assert!(rig.prompts().pop().unwrap().contains("<think>because</think>ok"));
}

#[test]
fn what_is_not_supported_is_said() {
    let rig = says(&["x"]);
    for (field, value) in [("background", json!(true)), ("conversation", json!("c")), ("prompt", json!({"id": "p"}))] {
        let mut body: Value = json!({});
        body[field] = value;
        let r = rig.responses(body);
        assert!(r.status == 400 && r.message().contains(field), "{}", r.text());
    }
}
