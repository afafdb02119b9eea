//! Clients that go away, silence, and the end of the server.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::rig::{Reply, Rig, Setup, chunk, head, user};

/// Reading the prompt takes long: a chunk of it, then one that stalls.
fn slow() -> Value {
    json!({"prefill": {"chunk": 16, "ms": [50, 60_000]}, "answers": [{"steps": ["done"]}]})
}

fn rig(script: Value, ping: Duration) -> Rig {
    let mut s = Setup { script, ..Setup::default() };
    s.config.ping = ping;
    Rig::new(s)
}

const APIS: [&str; 3] = ["/v1/chat/completions", "/v1/messages", "/v1/responses"];

fn body(stream: bool) -> Vec<u8> {
    json!({"max_tokens": 9, "stream": stream, "messages": [user("hi")], "input": "hi"}).to_string().into_bytes()
}

fn until(what: &str, f: impl Fn() -> bool) -> Duration {
    let begun = Instant::now();
    while !f() {
        assert!(begun.elapsed() < Duration::from_secs(5), "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
    begun.elapsed()
}

#[test]
fn a_client_that_goes_away_stops_its_generation_within_a_second() {
    let rig = rig(slow(), Duration::from_secs(8));
    for api in APIS {
        for stream in [true, false] {
            let s = rig.open("POST", api, &[], &body(stream));
            until("it runs", || rig.backend.load().running == 1);
            drop(s);
            let took = until("it stops", || rig.backend.load().running == 0);
            assert!(took < Duration::from_secs(2), "{api} {stream}: {took:?}");
        }
    }
}

#[test]
fn a_client_that_goes_away_leaves_the_queue_and_a_retry_comes_through() {
    let rig = rig(slow(), Duration::from_secs(8));
    let running = rig.open("POST", APIS[0], &[], &body(true));
    until("it runs", || rig.backend.load().running == 1);
    for stream in [true, false] {
        let waiting = rig.open("POST", APIS[0], &[], &body(stream));
        until("it waits", || rig.backend.load().waiting == 1);
        drop(waiting);
        until("it is gone", || rig.backend.load().waiting == 0);
    }
    let retry = rig.open("POST", APIS[0], &[], &body(true));
    until("the retry waits", || rig.backend.load().waiting == 1);
    drop(running);
    until("the retry runs", || rig.backend.load().running == 1 && rig.backend.load().waiting == 0);
    drop(retry);
}

#[test]
fn a_client_that_goes_away_during_a_withheld_call_stops_it() {
    let call = json!({"name": "f", "arguments": {"x": "y".repeat(50)}}).to_string();
    let script = json!({"token_ms": 20, "answers": [{"steps": ["<tool_call>", {"repeat": 100, "steps": [call]}]}]});
    let rig = rig(script, Duration::from_secs(8));
    for stream in [true, false] {
        let s = rig.open("POST", APIS[0], &[], &body(stream));
        until("it runs", || rig.backend.load().running == 1);
        std::thread::sleep(Duration::from_millis(50));
        drop(s);
        until("it stops", || rig.backend.load().running == 0);
    }
}

#[test]
fn a_half_closed_connection_is_answered() {
    let script = json!({"prefill": {"chunk": 16, "ms": [200]}, "answers": [{"steps": ["a", {"ms": 900}, "b"]}]});
    let rig = rig(script, Duration::from_secs(8));
    for api in APIS {
        for stream in [true, false] {
            let s = rig.open("POST", api, &[], &body(stream));
            s.shutdown(Shutdown::Write).unwrap();
            let r = Reply::read(s, false);
            assert_eq!(r.status, 200);
            let whole = if stream { r.text().contains("\"b") } else { r.json().to_string().contains("ab") };
            assert!(whole, "{api} {stream}: {}", r.text());
        }
    }
    // Both sides of the connection end then.
    let mut s = rig.open("POST", APIS[0], &[], &body(false));
    s.shutdown(Shutdown::Write).unwrap();
    let mut all = String::new();
    s.read_to_string(&mut all).unwrap();
    assert!(all.contains("ab"));
}

#[test]
fn headers_come_at_once_and_pings_while_nothing_happens() {
    let rig = rig(slow(), Duration::from_millis(100));
    for (api, ping) in [(APIS[0], ": "), (APIS[1], "event: ping"), (APIS[2], ": ")] {
        let begun = Instant::now();
        let mut r = BufReader::new(rig.open("POST", api, &[], &body(true)));
        assert_eq!(head(&mut r).0, 200);
        let first = String::from_utf8(chunk(&mut r).unwrap()).unwrap();
        assert!(begun.elapsed() < Duration::from_millis(500), "{:?}", begun.elapsed());
        assert!(first.contains(if api == APIS[1] { "message_start" } else { "data: " }), "{first}");
        for _ in 0..3 {
            let begun = Instant::now();
            let text = String::from_utf8(chunk(&mut r).unwrap()).unwrap();
            assert!(text.starts_with(ping), "{text}");
            assert!(begun.elapsed() < Duration::from_secs(1));
        }
        drop(r);
        until("the next one need not wait", || rig.backend.load().running == 0);
    }
}

#[test]
fn a_whole_response_that_takes_long_is_kept_alive_with_white_space() {
    let script = json!({"answers": [{"steps": ["a", {"ms": 350}, "b"]}]});
    let rig = hasty(script);
    let r = rig.chat(json!({}));
    assert!(r.text().starts_with("\n\n"), "{:?}", r.text());
    assert_eq!(r.ok()["choices"][0]["message"]["content"], "ab");
}

/// A server that sends the headers of a whole response after a tenth of a second.
fn hasty(script: Value) -> Rig {
    let mut s = Setup { script, ..Setup::default() };
    (s.config.ping, s.config.decide) = (Duration::from_millis(100), Duration::from_millis(100));
    Rig::new(s)
}

#[test]
fn a_failure_has_its_status_or_breaks_the_response_off() {
    let failing = |ms: u64| json!({"answers": [{"steps": ["a", {"ms": ms}, {"fail": "it broke"}]}]});
    let early = rig(failing(150), Duration::from_millis(20));
    let late = hasty(failing(350));
    for api in APIS {
        let r = Reply::read(early.open("POST", api, &[], &body(false)), false);
        assert_eq!(r.status, 500, "{api}: {}", r.text());
        // The headers are gone by then. The error is told, and the response never ends well.
        let mut all = Vec::new();
        let _ = late.open("POST", api, &[], &body(false)).read_to_end(&mut all);
        let text = String::from_utf8_lossy(&all);
        assert!(text.starts_with("HTTP/1.1 200") && text.contains("it broke"), "{api}: {text}");
        assert!(!text.ends_with("0\r\n\r\n"), "{api}: {text}");
    }
}

#[test]
fn progress_is_told_in_comments() {
    let script = json!({"prefill": {"chunk": 16, "ms": [10, 60_000]}, "answers": [{"steps": ["x"]}]});
    let rig = rig(script, Duration::from_millis(50));
    let mut r = BufReader::new(rig.open("POST", APIS[0], &[], &body(true)));
    let mut line = String::new();
    while !line.contains("reading the prompt, 16 of") {
        line.clear();
        assert!(r.read_line(&mut line).unwrap() > 0);
    }
}

/// A prompt counts as far as it was read: not where its request was cancelled while it waited.
#[test]
fn prompts_are_counted_as_far_as_they_were_read() {
    let script = json!({"prefill": {"chunk": 16, "ms": [0, 60_000]}, "answers": [{"steps": ["x"]}]});
    let rig = rig(script, Duration::from_millis(50));
    let counted = || {
        let metrics = rig.get("/metrics");
        let text = metrics.text();
        let line = text.lines().find_map(|l| l.strip_prefix("snug_prompt_tokens_total ")).map(str::to_owned);
        line.unwrap_or_else(|| panic!("{text}")).parse::<u64>().unwrap()
    };
    let mut running = BufReader::new(rig.open("POST", APIS[0], &[], &body(true)));
    let mut line = String::new();
    while !line.contains("reading the prompt, 16 of") {
        line.clear();
        assert!(running.read_line(&mut line).unwrap() > 0);
    }
    let waiting = rig.open("POST", APIS[0], &[], &body(true));
    until("another waits", || rig.backend.load().waiting == 1);
    assert_eq!(counted(), 0, "what runs is counted when it ends");
    drop(waiting);
    until("it is gone", || rig.backend.load().waiting == 0);
    drop(running);
    until("both are over", || rig.get("/metrics").text().contains("reason=\"cancelled\"} 2"));
    assert_eq!(counted(), 16);
}

#[test]
fn a_server_that_stops_lets_requests_end_and_takes_no_new_ones() {
    let script = json!({"answers": [{"steps": ["a", {"ms": 300}, "b"]}]});
    let mut rig = rig(script, Duration::from_secs(8));
    let s = rig.open("POST", APIS[0], &[], &body(true));
    until("it runs", || rig.backend.load().running == 1);
    let mut idle = std::net::TcpStream::connect(rig.address).unwrap();
    idle.write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
    rig.stop();
    assert!(Reply::read(s, false).text().contains("[DONE]"), "what runs is finished");
    let took = rig.stop_and_wait();
    assert!(took < Duration::from_secs(3), "{took:?}");
}

#[test]
fn a_server_that_stops_does_not_wait_for_ever() {
    let mut s = Setup { script: slow(), ..Setup::default() };
    s.config.drain = Duration::from_millis(200);
    let rig = Rig::new(s);
    let backend = std::sync::Arc::clone(&rig.backend);
    let _open = rig.open("POST", APIS[0], &[], &body(true));
    until("it runs", || backend.load().running == 1);
    assert!(rig.stop_and_wait() < Duration::from_secs(3));
    until("it is cancelled", || backend.load().running == 0);
}

#[test]
fn an_answer_that_a_stopping_server_breaks_off_ends_with_an_error() {
    for (api, error) in [(APIS[0], "\"error\""), (APIS[1], "event: error"), (APIS[2], "response.failed")] {
        for stream in [true, false] {
            let script = json!({"answers": [{"steps": ["a", {"ms": 60_000}]}]});
            let mut s = Setup { script, ..Setup::default() };
            s.config.drain = Duration::from_millis(100);
            let mut rig = Rig::new(s);
            let open = rig.open("POST", api, &[], &body(stream));
            until("it runs", || rig.backend.load().running == 1);
            rig.stop();
            let r = Reply::read(open, false);
            assert_eq!(r.status, if stream { 200 } else { 503 }, "{api}: {}", r.text());
            assert!(r.text().contains("the server is stopping"), "{api}: {}", r.text());
            assert!(!stream || r.text().contains(error), "{api}: {}", r.text());
        }
    }
}
