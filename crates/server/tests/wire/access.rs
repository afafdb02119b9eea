//! Who may come in, what there is to see, and what a hostile client can do.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use server::{Config, Error, Loading, Server};

use crate::rig::{Reply, Rig, Setup, says, user};

#[test]
fn a_key_is_needed_where_there_is_one() {
    let mut s = Setup::default();
    s.config.api_key = Some("secret".into());
    let rig = Rig::new(s);
    let r = rig.get("/v1/models");
    assert_eq!((r.status, r.json()["error"]["code"].as_str()), (401, Some("invalid_api_key")));
    let r = rig.messages(json!({}));
    assert_eq!((r.status, r.json()["error"]["type"].as_str()), (401, Some("authentication_error")));
    assert_eq!(rig.send("GET", "/v1/models", &[("authorization", "Bearer secret")], b"").status, 200);
    assert_eq!(rig.send("GET", "/v1/models", &[("x-api-key", "secret")], b"").status, 200);
    assert_eq!(rig.get("/health").status, 200);
    assert_eq!(rig.get("/metrics").status, 401);
}

#[test]
fn other_machines_need_a_key_unless_told_otherwise() {
    let rt = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let bind = |key: Option<&str>, allow_open| {
        let config = Config {
            listen: ([0, 0, 0, 0], 0).into(),
            api_key: key.map(str::to_owned),
            allow_open,
            ..Config::default()
        };
        rt.block_on(Server::bind(config, Loading::default())).map(|_| ())
    };
    assert!(matches!(bind(None, false), Err(Error::Open(_))));
    assert!(bind(Some("k"), false).is_ok() && bind(None, true).is_ok());
}

#[test]
fn pages_from_elsewhere_are_kept_out() {
    let rig = says(&["x"]);
    let body = json!({"messages": [user("hi")]}).to_string();
    let from = |origin: &str| {
        rig.send("POST", "/v1/chat/completions", &[("origin", origin), ("content-type", "text/plain")], body.as_bytes())
    };
    assert_eq!(from("https://evil.example").status, 403);
    assert!(rig.prompts().is_empty(), "nothing was generated for it");
    let r = from("http://localhost:3000");
    assert_eq!((r.status, r.header("access-control-allow-origin")), (200, Some("http://localhost:3000")));
    let ask = [
        ("origin", "http://localhost:3000"),
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", "authorization"),
    ];
    let r = rig.send("OPTIONS", "/v1/chat/completions", &ask, b"");
    assert!(r.status == 200 && r.header("access-control-allow-headers") == Some("authorization"), "{r:?}");
}

#[test]
fn names_that_were_led_to_this_machine_are_kept_out() {
    let rig = says(&["x"]);
    let body = json!({"messages": [user("hi")]}).to_string();
    let status = |head: &str| {
        let mut s = TcpStream::connect(rig.address).unwrap();
        let head = format!("POST /v1/chat/completions HTTP/1.1\r\n{head}\r\ncontent-length: {}\r\n\r\n", body.len());
        s.write_all(head.as_bytes()).unwrap();
        s.write_all(body.as_bytes()).unwrap();
        Reply::read(s, false).status
    };
    assert_eq!(status("host: rebound.example"), 403);
    assert_eq!(status(&format!("host: rebound.example:{}", rig.address.port())), 403);
    assert_eq!(status("host: localhost\r\nsec-fetch-site: cross-site"), 403);
    assert!(rig.prompts().is_empty(), "nothing was generated for them");
    assert_eq!(status(&format!("host: {}", rig.address)), 200);
    assert_eq!(status("host: localhost\r\nsec-fetch-site: cross-site\r\norigin: http://localhost:3000"), 200);
}

#[test]
fn a_body_that_is_too_large_is_answered_to_clients_that_send_it_first() {
    let mut s = Setup::default();
    s.config.max_body = 1 << 20;
    let rig = Rig::new(s);
    // Much more than the buffers between the two hold.
    let r = rig.send("POST", "/v1/chat/completions", &[], &vec![b' '; 16 << 20]);
    assert_eq!((r.status, r.message().contains("1048576 bytes")), (413, true), "{}", r.text());
}

#[test]
fn errors_have_the_form_of_the_client_that_asks() {
    let rig = says(&["x"]);
    let ask = |path: &str, headers: &[(&str, &str)]| rig.send("GET", path, headers, b"");
    for path in ["/v1/models/%ff%00", "/v1/models/none", "/nothing"] {
        let r = ask(path, &[]);
        assert_eq!((r.status, r.json()["error"]["code"].as_str()), (404, Some("not_found")), "{path}: {}", r.text());
        let r = ask(path, &[("anthropic-version", "2023-06-01")]);
        assert_eq!(
            (r.status, r.json()["error"]["type"].as_str()),
            (404, Some("not_found_error")),
            "{path}: {}",
            r.text()
        );
    }
    assert_eq!(ask("/v1/responses/%ff", &[]).status, 404);
    let at = rig.get("/v1/models").ok()["data"][0]["created_at"].clone();
    assert!(at.as_str().is_some_and(|a| a.len() == 20 && a.ends_with('Z')), "{at}");
}

#[test]
fn what_there_is_to_see() {
    let rig = says(&["x"]);
    let m = rig.get("/v1/models").ok();
    assert_eq!((&m["data"][0]["id"], &m["data"][0]["context_length"]), (&json!("scripted"), &json!(4096)));
    assert_eq!(m["models"][0]["slug"], "scripted");
    assert!(m["data"][0]["capabilities"].as_array().unwrap().contains(&json!("tools")));
    assert_eq!(rig.get("/v1/models/scripted").ok()["object"], "model");
    assert_eq!(rig.get("/v1/models/other/name").status, 404);
    assert_eq!(rig.send("HEAD", "/", &[], b"").status, 200);
    assert_eq!(rig.get("/health").ok()["status"], "ok");
    assert_eq!(rig.get("/v1/plan").ok()["backend"], "script");
    assert_eq!(rig.get("/v1/requests").ok()["requests"], json!([]));
    let ids = rig.post("/tokenize", &json!({"content": "h<|im_end|>"})).ok();
    assert_eq!(ids["count"], 2);
    assert_eq!(rig.post("/detokenize", &json!({"tokens": ids["tokens"]})).ok()["content"], "h<|im_end|>");
    assert_eq!(rig.post("/tokenize", &json!({"content": "h<|im_end|>", "parse_special": false})).ok()["count"], 11);
    assert_eq!(rig.post("/detokenize", &json!({"tokens": [1e6]})).status, 400);
    let read = rig.chat(json!({"n": 2})).ok()["usage"]["prompt_tokens"].clone();
    let metrics = rig.get("/metrics");
    for line in [
        format!("snug_prompt_tokens_total {read}\n").as_str(),
        "snug_generations_total{reason=\"stop\"} 1",
        "snug_generated_tokens_total 2",
        "route=\"/v1/chat/completions\",status=\"200\"",
    ] {
        assert!(metrics.text().contains(line), "{}", metrics.text());
    }
    for (path, right) in [
        ("/chat/completions", "/v1/chat/completions"),
        ("/v1/v1/messages", "/v1/messages"),
        ("/v1/models/", "/v1/models"),
    ] {
        let r = rig.post(path, &json!({}));
        assert!(r.status == 404 && r.message().contains(&format!("perhaps {right} is meant")), "{}", r.text());
    }
    assert_eq!(rig.get("/nothing").json()["error"]["code"], "not_found");
    assert_eq!(rig.get("/v1/messages/nothing").json()["type"], "error");
    assert_eq!(rig.get("/v1/chat/completions").status, 405);
    assert_eq!(rig.get("/v1/chat/completions").json()["error"]["type"], "invalid_request_error");
    let named = rig.send("GET", "/health", &[("x-request-id", "mine-1")], b"");
    assert_eq!(named.header("x-request-id"), Some("mine-1"));
}

#[test]
fn while_the_model_is_loaded_the_server_says_how_far_it_is() {
    let mut setup = Setup { ready: false, ..Setup::default() };
    setup.config.load_wait = Duration::from_millis(50);
    let rig = Rig::new(setup);
    rig.loading.progress(25, 100);
    let r = rig.get("/health");
    assert_eq!((r.status, &r.json()["status"], &r.json()["progress"]), (503, &json!("loading"), &json!(0.25)));
    for r in [rig.chat(json!({})), rig.messages(json!({})), rig.responses(json!({})), rig.get("/v1/models")] {
        assert_eq!((r.status, r.header("retry-after")), (503, Some("2")), "{}", r.text());
    }
}

#[test]
fn requests_wait_for_a_model_that_is_being_loaded() {
    let rig = Rig::new(Setup { ready: false, ..Setup::default() });
    std::thread::scope(|s| {
        let all = [
            s.spawn(|| rig.chat(json!({}))),
            s.spawn(|| rig.messages(json!({}))),
            s.spawn(|| rig.responses(json!({}))),
            s.spawn(|| rig.post("/v1/completions", &json!({"prompt": "x"}))),
            s.spawn(|| rig.post("/v1/messages/count_tokens", &json!({"messages": [user("hi")]}))),
        ];
        std::thread::sleep(Duration::from_millis(150));
        assert!(all.iter().all(|t| !t.is_finished()));
        // What makes no sense is told at once.
        assert_eq!(rig.chat(json!({"temperature": "hot"})).status, 400);
        rig.load();
        all.into_iter().for_each(|t| _ = t.join().unwrap().ok());
    });
}

#[test]
fn a_queue_has_places_and_a_limit() {
    let script = json!({"answers": [{"steps": ["a", {"ms": 60_000}]}]});
    let rig = Rig::new(Setup { script, places: 1, ..Setup::default() });
    let body = json!({"messages": [user("hi")], "stream": true}).to_string();
    let first = rig.open("POST", "/v1/chat/completions", &[], body.as_bytes());
    let until = |f: &dyn Fn() -> bool| {
        let begun = Instant::now();
        while !f() {
            assert!(begun.elapsed() < Duration::from_secs(10));
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    until(&|| rig.backend.load().running == 1);
    let second = rig.open("POST", "/v1/chat/completions", &[], body.as_bytes());
    until(&|| rig.backend.load().waiting == 1);
    let phases = || {
        rig.get("/v1/requests").ok()["requests"]
            .as_array()
            .unwrap()
            .iter()
            .map(|r| r["status"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    until(&|| phases() == ["generating", "queued, place 1"]);
    let third = rig.chat(json!({}));
    assert_eq!(
        (third.status, third.json()["error"]["code"].as_str(), third.header("retry-after")),
        (503, Some("queue_full"), Some("2"))
    );
    drop(second);
    until(&|| rig.backend.load().waiting == 0);
    drop(first);
    until(&|| rig.backend.load().running == 0 && rig.get("/v1/requests").ok()["requests"] == json!([]));
}

#[test]
fn too_much_and_too_slow_is_refused_and_the_server_is_fine() {
    let mut s = Setup::default();
    s.config.max_body = 1 << 20;
    s.config.patience = Duration::from_millis(300);
    let rig = Rig::new(s);
    let mut large = TcpStream::connect(rig.address).unwrap();
    large.write_all(b"POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ncontent-length: 104857600\r\n\r\n").unwrap();
    let r = Reply::read(large, false);
    assert_eq!((r.status, r.json()["error"]["type"].as_str()), (413, Some("request_too_large")));
    let mut chunked = TcpStream::connect(rig.address).unwrap();
    chunked
        .write_all(b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n")
        .unwrap();
    let piece = [format!("{:x}\r\n", 1 << 19).into_bytes(), vec![b' '; 1 << 19], b"\r\n".to_vec()].concat();
    for _ in 0..3 {
        let _ = chunked.write_all(&piece);
    }
    assert_eq!(Reply::read(chunked, false).status, 413);
    let mut headers = TcpStream::connect(rig.address).unwrap();
    headers.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n").unwrap();
    let line = format!("x-a: {}\r\n", "a".repeat(8000));
    for _ in 0..16 {
        let _ = headers.write_all(line.as_bytes());
    }
    let mut answer = Vec::new();
    let _ = headers.read_to_end(&mut answer);
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 431"), "{}", String::from_utf8_lossy(&answer));
    // A head, and then a body, that never comes.
    let mut loris = TcpStream::connect(rig.address).unwrap();
    loris.write_all(b"POST /v1/chat/compl").unwrap();
    let (begun, mut answer) = (Instant::now(), Vec::new());
    let _ = loris.read_to_end(&mut answer);
    assert!(begun.elapsed() < Duration::from_secs(5), "the connection is closed");
    let mut slow = TcpStream::connect(rig.address).unwrap();
    slow.write_all(b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 50\r\n\r\n{").unwrap();
    assert_eq!(Reply::read(slow, false).status, 408);
    assert_eq!(rig.chat(json!({})).ok()["choices"][0]["finish_reason"], "stop");
}

#[test]
fn a_model_without_a_template_completes_and_says_why_it_cannot_chat() {
    let rig = Rig::new(Setup { template: None, ..Setup::default() });
    let r = rig.chat(json!({}));
    assert!(r.status == 400 && r.message().contains("no chat template"), "{}", r.text());
    let r = rig.post("/v1/completions", &json!({"prompt": "x", "max_tokens": 50})).ok();
    assert_eq!(r["choices"][0]["text"], "Hello there.");
    let caps: Value = rig.get("/v1/models").ok()["data"][0]["capabilities"].clone();
    assert_eq!(caps, json!(["completion"]));
}
