//! Requests in the shape that coding agents give them, as they come over the wire; `data/agents` holds one file for each.
//! Texts and tools in them are this project's own, sizes and fields are those of the agents.

#[allow(dead_code, reason = "each test uses its part")]
#[path = "../load/rig.rs"]
mod rig;

use rig::Rig;
use serde_json::{Value, json};

const CLAUDE: &str = include_str!("../data/agents/claude_code.json");
const CLAUDE_COUNT: &str = include_str!("../data/agents/claude_code_count.json");
const CODEX: &str = include_str!("../data/agents/codex.json");
const CODEX_PROBE: &str = include_str!("../data/agents/codex_probe.json");
const QWEN: &str = include_str!("../data/agents/qwen_code.json");
const OPENCODE: &str = include_str!("../data/agents/opencode.json");
const OPENCODE_TITLE: &str = include_str!("../data/agents/opencode_title.json");
const OPENCLAW: &str = include_str!("../data/agents/openclaw.json");
const OPEN_WEBUI: &str = include_str!("../data/agents/open_webui.json");
const ALL: [&str; 9] = [CLAUDE, CLAUDE_COUNT, CODEX, CODEX_PROBE, QWEN, OPENCODE, OPENCODE_TITLE, OPENCLAW, OPEN_WEBUI];

struct Shape {
    path: String,
    headers: String,
    body: Value,
}

fn shape(text: &str) -> Shape {
    let v: Value = serde_json::from_str(text).unwrap();
    let headers = v["headers"].as_object().unwrap().iter().map(|(k, v)| format!("{k}: {}\r\n", v.as_str().unwrap()));
    Shape { path: v["path"].as_str().unwrap().into(), headers: headers.collect(), body: v["body"].clone() }
}

fn send(rig: &Rig, s: &Shape) -> (u16, String) {
    rig.post(&s.path, &s.headers, s.body.to_string().as_bytes())
}

fn ok(rig: &Rig, s: &Shape) -> Value {
    let (status, said) = send(rig, s);
    assert_eq!(status, 200, "{}: {said}", s.path);
    serde_json::from_str(&said).unwrap_or_else(|e| panic!("{e}: {said}"))
}

/// A model with room for them that says whether a text is in its prompt.
fn looking_for(needle: &str) -> Rig {
    let script = json!({"context": 65536, "answers": [{"when": needle, "steps": ["yes"]}, {"steps": ["no"]}]});
    Rig::start(&script.to_string(), |_| {})
}

/// What was answered, in any dialect.
fn text(v: &Value) -> String {
    let chat = v.pointer("/choices/0/message/content");
    let messages = v.pointer("/content/0/text");
    let responses = v["output"].as_array().and_then(|o| o.iter().find(|i| i["type"] == "message"));
    let found = chat.or(messages).or_else(|| responses?.pointer("/content/0/text"));
    found.and_then(Value::as_str).unwrap_or_else(|| panic!("no text in {v}")).to_string()
}

fn whole(of: &str) -> Shape {
    let mut s = shape(of);
    s.body["stream"] = false.into();
    s.body.as_object_mut().unwrap().shift_remove("stream_options");
    s
}

#[test]
fn every_shape_is_answered_as_it_comes() {
    let rig = looking_for("no such thing");
    for of in ALL {
        let s = shape(of);
        let (status, said) = send(&rig, &s);
        assert_eq!(status, 200, "{}: {said}", s.path);
        if s.body["stream"] == true {
            let end = match s.path.as_str() {
                p if p.starts_with("/v1/messages") => "event: message_stop",
                p if p.starts_with("/v1/responses") => "event: response.completed",
                _ => "data: [DONE]",
            };
            assert!(said.contains(end), "{}: {said}", s.path);
        }
    }
    rig.is_idle_soon();
}

#[test]
fn what_an_agent_says_reaches_the_model_in_its_place() {
    for (of, needle) in [
        // Parts of a tool's result are one text.
        (CLAUDE, "no such file:\n /project/src/main.rs"),
        (CLAUDE, "42 src/main.rs"),
        (CLAUDE, "The file must be counted."),
        (CLAUDE, "Agents that can be used: general, explore."),
        (CLAUDE, "mcp__tracker__comment"),
        (CODEX, "Answer in English."),
        (CODEX, "The network is off now."),
        (CODEX, "*** Update File: README.md"),
        (CODEX, "main.rs\nREADME.md"),
        (CODEX, "First the files."),
        (CODEX, "the model takes no images"),
        (CODEX, "apply_patch"),
        (CODEX, "spawn"),
        (QWEN, "first\nsecond"),
        (QWEN, "third"),
        (QWEN, "Two reads."),
        (OPENCODE, "<env>linux</env>"),
        (OPENCODE, "error: 1"),
        (OPENCLAW, "You are a personal assistant."),
        (OPENCLAW, "(no output)"),
    ] {
        let rig = looking_for(needle);
        assert_eq!(text(&ok(&rig, &whole(of))), "yes", "{needle:?} is not in the prompt");
    }
}

#[test]
fn what_is_not_for_the_model_stays_out() {
    for (of, needle) in
        [(CLAUDE, "x-anthropic-billing-header"), (CLAUDE, "c2lnbmF0dXJl"), (CODEX, "b3BhcXVl"), (CODEX, "web_search")]
    {
        let rig = looking_for(needle);
        assert_eq!(text(&ok(&rig, &whole(of))), "no", "{needle:?} is in the prompt");
    }
}

#[test]
fn late_system_messages_keep_their_place_and_the_head_stays_the_same() {
    // The late one comes behind what was said before it, not at the head.
    let late = "The person is away.";
    let rig = looking_for("It has 42 lines.");
    let s = whole(CLAUDE);
    let before = |s: &Shape| {
        let mut count =
            Shape { path: "/v1/messages/count_tokens".into(), headers: s.headers.clone(), body: s.body.clone() };
        let body = count.body.as_object_mut().unwrap();
        for k in ["max_tokens", "stream", "metadata", "context_management", "output_config"] {
            body.shift_remove(k);
        }
        ok(&rig, &count)["input_tokens"].as_u64().unwrap()
    };
    let all = before(&s);
    let mut without = whole(CLAUDE);
    let messages = without.body["messages"].as_array_mut().unwrap();
    messages.retain(|m| !m.to_string().contains(late));
    let fewer = before(&without);
    assert!(all > fewer + late.len() as u64 / 2, "{all} {fewer}: the late message is there");
    // Whatever the volatile line says, the prompt is as long.
    let mut other = whole(CLAUDE);
    other.body["system"][0]["text"] = "x-anthropic-billing-header: cc_version=9; cch=somethingmuchlonger;".into();
    assert_eq!(before(&other), all);
}

#[test]
fn counting_agrees_with_reading_and_takes_no_place() {
    // The only place is taken for as long as this lasts.
    let script = json!({"context": 65536, "parallel": 1, "answers": [
        {"when": "stay", "steps": [{"ms": 60000}]}, {"steps": ["yes"]}]});
    let rig = Rig::start(&script.to_string(), |_| {});
    let mut s = whole(CLAUDE);
    let usage = ok(&rig, &s)["usage"].clone();
    let read: u64 = ["input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"]
        .iter()
        .map(|k| usage[k].as_u64().unwrap_or(0))
        .sum();
    s.path = "/v1/messages/count_tokens?beta=true".into();
    let count = shape(CLAUDE_COUNT);
    std::thread::scope(|scope| {
        let body = br#"{"model":"m","stream":true,"max_tokens":9,"messages":[{"role":"user","content":"stay"}]}"#;
        let head = format!("POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n", body.len());
        let mut stays = std::net::TcpStream::connect(rig.address).unwrap();
        std::io::Write::write_all(&mut stays, &[head.as_bytes(), body].concat()).unwrap();
        let many: Vec<_> =
            (0..50).map(|_| scope.spawn(|| ok(&rig, &count)["input_tokens"].as_u64().unwrap())).collect();
        let mut counts: Vec<u64> = many.into_iter().map(|t| t.join().unwrap()).collect();
        counts.dedup();
        assert_eq!(counts.len(), 1, "{counts:?}");
        assert_eq!(ok(&rig, &s)["input_tokens"].as_u64().unwrap(), read);
        drop(stays);
    });
    rig.is_idle_soon();
}

#[test]
fn agents_find_out_that_a_server_is_there() {
    let rig = looking_for("x");
    let (status, said) = rig.raw(b"HEAD / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    assert_eq!((status, said.as_str()), (200, ""));
    for path in ["/v1/models", "/v1/models?client_version=0.171.0", "/v1/models?limit=1000"] {
        let (status, said) = rig.get(path);
        let v: Value = serde_json::from_str(&said).unwrap();
        assert_eq!(status, 200, "{said}");
        assert_eq!(v["data"][0]["context_length"], 65536, "{said}");
        assert!(v["models"].is_array(), "Codex reads another list: {said}");
    }
}

#[test]
fn a_model_too_small_for_an_agent_says_so_in_its_words() {
    let rig = Rig::start(r#"{"context":2048,"answers":[{"steps":["x"]}]}"#, |_| {});
    for (of, says) in
        [(CLAUDE, "prompt is too long"), (CODEX, "context_length_exceeded"), (QWEN, "context_length_exceeded")]
    {
        let (status, said) = send(&rig, &shape(of));
        assert_eq!(status, 400, "{said}");
        // The one names the context, the other the longest prompt.
        assert!(said.contains(says) && (said.contains("2048") || said.contains("2047")), "{said}");
    }
    rig.is_fine();
}
