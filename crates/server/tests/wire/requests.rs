//! Bodies that make no sense, and values at the edges of their ranges.

use serde_json::{Value, json};

use crate::rig::{Rig, Setup, says, user, with};

const ROUTES: [&str; 5] =
    ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens"];

/// The message of a 400, which must be JSON in the route's dialect.
fn refused(rig: &Rig, path: &str, body: &[u8]) -> String {
    let r = rig.send("POST", path, &[("content-type", "application/json")], body);
    assert_eq!(r.status, 400, "{path} {:?}: {}", String::from_utf8_lossy(&body[..body.len().min(80)]), r.text());
    let v = r.json();
    let anthropic = path.starts_with("/v1/messages");
    assert_eq!(v["type"] == "error", anthropic, "{v}");
    assert_eq!(v["error"]["type"], "invalid_request_error");
    v["error"]["message"].as_str().unwrap().to_owned()
}

#[test]
fn degenerate_bodies_are_400_in_every_dialect_and_the_next_request_is_fine() {
    let rig = says(&["fine"]);
    for path in ROUTES {
        for body in [
            "",
            "[]",
            "5",
            "{:",
            "\"x\"",
            "null",
            &"[".repeat(100_000),
            &"{\"a\":".repeat(50_000),
            r#"{"model":"a","model":"b"}"#,
        ] {
            refused(&rig, path, body.as_bytes());
        }
        let (field, bad) = match path {
            "/v1/completions" => {
                ("prompt", vec![json!({}), json!({"prompt": null}), json!({"prompt": 5}), json!({"prompt": [-1]})])
            }
            "/v1/responses" => (
                "input",
                vec![
                    json!({}),
                    json!({"messages": [user("x")]}),
                    json!({"input": 7}),
                    json!({"input": [7]}),
                    json!({"input": [{"type": "x"}]}),
                ],
            ),
            _ => (
                "messages",
                vec![
                    json!({}),
                    json!({"messages": null}),
                    json!({"messages": []}),
                    json!({"messages": [7]}),
                    json!({"messages": {}}),
                    json!({"messages": [{"content": "x"}]}),
                    json!({"messages": [{"role": "user", "content": 5}]}),
                    json!({"messages": [{"role": "user", "content": {"text": "x"}}]}),
                    json!({"messages": [{"role": "narrator", "content": "x"}]}),
                ],
            ),
        };
        for body in bad {
            let body = with(json!({"max_tokens": 5}), body);
            let said = refused(&rig, path, body.to_string().as_bytes());
            assert!(said.contains(field), "{path} {body}: {said}");
        }
    }
    assert_eq!(rig.chat(json!({})).ok()["choices"][0]["message"]["content"], "fine");
}

#[test]
fn the_wrong_field_is_named() {
    let rig = says(&["fine"]);
    for (field, body) in [
        ("messages[1]", json!({"messages": [user("a"), {"role": 5}]})),
        ("temperature", json!({"temperature": "hot"})),
        ("stream", json!({"stream": "yes"})),
        ("functions", json!({"functions": [{"name": "f"}]})),
        ("function_call", json!({"function_call": "auto"})),
        ("reasoning.max_tokens", json!({"reasoning": {"max_tokens": "x"}})),
        ("tools[0].function.name", json!({"tools": [{"type": "function", "function": {}}]})),
        ("tools[0].type", json!({"tools": [{"type": "retrieval"}]})),
        ("stop[1]", json!({"stop": ["a", null]})),
        ("n", json!({"n": 5})),
        ("n", json!({"n": 0})),
        ("top_logprobs", json!({"top_logprobs": 3})),
        ("top_logprobs", json!({"logprobs": true, "top_logprobs": 21})),
        ("logit_bias.x", json!({"logit_bias": {"x": 1}})),
        ("logit_bias.5", json!({"logit_bias": {"5": 101}})),
        ("response_format.type", json!({"response_format": {"type": "yaml"}})),
        ("stream_options.include_usage", json!({"stream_options": {"include_usage": "yes"}})),
    ] {
        let r = rig.chat(body.clone());
        assert_eq!(r.status, 400, "{body}");
        let param = r.json()["error"]["param"].clone();
        assert!(param == field || r.message().contains(field), "{body}: {}", r.text());
    }
}

#[test]
fn a_compressed_body_and_a_missing_content_type() {
    let rig = says(&["fine"]);
    let body = json!({"messages": [user("hi")]}).to_string();
    let gzip = rig.send("POST", "/v1/chat/completions", &[("content-encoding", "gzip")], b"\x1f\x8b\x08");
    assert_eq!(gzip.status, 415, "{}", gzip.text());
    assert_eq!(rig.send("POST", "/v1/chat/completions", &[], body.as_bytes()).status, 200);
}

#[test]
fn bytes_that_are_no_text_are_named_and_errors_are_text() {
    let rig = says(&["fine"]);
    for path in ROUTES {
        for (bytes, word) in [
            (&b"{\"messages\":[{\"role\":\"user\",\"content\":\"\xC4\xE3\"}]}"[..], "byte 39"),
            (b"\xC0\x80", "byte 0"),
        ] {
            assert!(refused(&rig, path, bytes).contains(word));
        }
        let utf16: Vec<u8> = [0xFF, 0xFE].into_iter().chain("{}".encode_utf16().flat_map(u16::to_le_bytes)).collect();
        assert!(refused(&rig, path, &utf16).contains("UTF-16"));
    }
    let body = [b"\xEF\xBB\xBF", json!({"messages": [user("a\0b")]}).to_string().as_bytes()].concat();
    assert_eq!(rig.send("POST", "/v1/chat/completions", &[], &body).status, 200, "a byte order mark is no harm");
    assert!(rig.prompts()[0].contains("a\0b"));
}

#[test]
fn halves_of_surrogate_pairs_are_replaced_in_content_and_refused_in_names() {
    let rig = says(&["fine"]);
    let send = |path: &str, body: &str| rig.send("POST", path, &[], body.as_bytes());
    for content in [r"x\ud83d", r"\udc00y"] {
        let user = format!(r#"{{"max_tokens":5,"messages":[{{"role":"user","content":"{content}"}}]}}"#);
        assert_eq!(send("/v1/chat/completions", &user).status, 200);
        assert_eq!(send("/v1/messages", &user).status, 200);
        assert_eq!(send("/v1/responses", &format!(r#"{{"input":"{content}"}}"#)).status, 200);
        let tool = format!(
            r#"{{"messages":[{{"role":"assistant","tool_calls":[{{"id":"c","function":{{"name":"f"}}}}]}},{{"role":"tool","tool_call_id":"c","content":"{content}"}}]}}"#
        );
        assert_eq!(send("/v1/chat/completions", &tool).status, 200);
        let named = format!(
            r#"{{"messages":[{{"role":"user","content":"x"}}],"tools":[{{"type":"function","function":{{"name":"{content}"}}}}]}}"#
        );
        assert_eq!(send("/v1/chat/completions", &named).status, 400);
        let named = format!(
            r#"{{"max_tokens":5,"messages":[{{"role":"user","content":"x"}}],"tools":[{{"name":"{content}","input_schema":{{}}}}]}}"#
        );
        assert_eq!(send("/v1/messages", &named).status, 400);
        let named = format!(r#"{{"input":"x","tools":[{{"type":"function","name":"{content}"}}]}}"#);
        assert_eq!(send("/v1/responses", &named).status, 400);
        let result = format!(
            r#"{{"max_tokens":5,"messages":[{{"role":"assistant","content":[{{"type":"tool_use","id":"c","name":"f","input":{{}}}}]}},{{"role":"user","content":[{{"type":"tool_result","tool_use_id":"c","content":"{content}"}}]}}]}}"#
        );
        assert_eq!(send("/v1/messages", &result).status, 200);
        let result = format!(
            r#"{{"input":[{{"type":"function_call","call_id":"c","name":"f","arguments":"{{}}"}},{{"type":"function_call_output","call_id":"c","output":"{content}"}}]}}"#
        );
        assert_eq!(send("/v1/responses", &result).status, 200);
    }
    assert!(rig.prompts().iter().all(|p| p.contains('\u{FFFD}')));
    send("/v1/chat/completions", r#"{"messages":[{"role":"user","content":"\ud83d\ude00"}]}"#);
    assert!(rig.prompts().last().unwrap().contains('😀'));
}

#[test]
fn sampling_out_of_range_is_refused_and_clamps_are_as_documented() {
    let rig = says(&["fine"]);
    let all = |body: Value| [rig.chat(body.clone()), rig.messages(body.clone()), rig.responses(body)];
    for (field, value) in [
        ("temperature", json!(1e6)),
        ("temperature", json!(-1)),
        ("temperature", json!("hot")),
        ("top_p", json!(-1)),
        ("top_p", json!(2)),
        ("top_k", json!(-2)),
        ("top_k", json!(2147483648u64)),
        ("top_k", json!(1.5)),
        ("min_p", json!(5)),
        ("repetition_penalty", json!(0)),
        ("presence_penalty", json!(3)),
        ("frequency_penalty", json!(-2.5)),
        ("seed", json!(1.5)),
        ("seed", json!("x")),
        ("seed", json!(1e20)),
    ] {
        for r in all(json!({field: value})) {
            assert_eq!(r.status, 400, "{field} {value}");
            assert!(r.message().contains(field), "{}", r.text());
        }
    }
    for body in [
        json!({"temperature": 0}),
        json!({"temperature": 1, "top_p": 0, "top_k": -1, "min_p": 0}),
        json!({"top_p": 1, "top_k": 0, "seed": -1}),
        json!({"seed": u64::MAX}),
        json!({"seed": 7.0}),
        json!({"temperature": null, "seed": null}),
    ] {
        for r in all(body.clone()) {
            assert_eq!(r.status, 200, "{body}: {}", r.text());
        }
    }
    assert_eq!(rig.chat(json!({"temperature": 2})).status, 200);
    assert_eq!(rig.messages(json!({"temperature": 2})).status, 400, "there it ends at 1");
    assert_eq!(
        rig.send(
            "POST",
            "/v1/chat/completions",
            &[],
            br#"{"messages":[{"role":"user","content":"x"}],"temperature":NaN}"#
        )
        .status,
        400
    );
}

#[test]
fn a_failed_generation_is_a_500_in_the_dialect_and_the_next_one_works() {
    let script = json!({"answers": [{"when": "break", "steps": ["par", {"fail": "the model produced logits that are not numbers"}]}, {"steps": ["fine"]}]});
    let rig = Rig::new(Setup { script, ..Setup::default() });
    let bad = json!([user("break")]);
    let r = rig.chat(json!({"messages": bad}));
    assert_eq!((r.status, r.json()["error"]["type"].as_str()), (500, Some("server_error")));
    let r = rig.messages(json!({"messages": bad}));
    assert_eq!((r.status, r.json()["error"]["type"].as_str()), (500, Some("api_error")));
    assert_eq!(rig.responses(json!({"input": "break"})).status, 500);
    let last = rig.chat(json!({"messages": bad, "stream": true})).events().pop().unwrap();
    assert!(last["error"]["message"].as_str().unwrap().contains("not numbers"));
    let last = rig.messages(json!({"messages": bad, "stream": true})).events().pop().unwrap();
    assert_eq!((&last["type"], &last["error"]["type"]), (&json!("error"), &json!("api_error")));
    let last = rig.responses(json!({"input": "break", "stream": true})).events().pop().unwrap();
    assert_eq!((&last["type"], &last["response"]["status"]), (&json!("response.failed"), &json!("failed")));
    assert_eq!(rig.chat(json!({})).ok()["choices"][0]["message"]["content"], "fine");
}
