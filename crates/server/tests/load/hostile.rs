//! Clients that mean no good: what they send is refused in bounded time and memory, and the next request is answered.

use crate::rig::{Random, Rig, resident_bytes};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

const PATHS: [&str; 4] = ["/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"];

fn rig() -> Rig {
    Rig::start(r#"{"answers":[{"steps":["fine"]}]}"#, |c| {
        c.patience = Duration::from_secs(1);
        c.max_body = 1 << 20;
    })
}

/// An error in JSON, whatever the dialect.
fn is_error(path: &str, status: u16, said: &str) {
    let v: Value = serde_json::from_str(said).unwrap_or_else(|e| panic!("{path} answers {status} with {said:?}: {e}"));
    assert!(v["error"]["message"].as_str().is_some_and(|m| !m.is_empty()), "{path}: {said}");
}

#[test]
fn a_body_beyond_the_limit_is_refused_without_being_kept() {
    let rig = rig();
    rig.is_fine();
    let before = resident_bytes();
    for path in PATHS {
        // Said beforehand, and not a byte of it sent.
        let (status, said) = rig.raw(
            format!(
                "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: 104857600\r\n\r\n"
            )
            .as_bytes(),
        );
        assert_eq!(status, 413, "{said}");
        is_error(path, status, &said);
        // Not said: in chunks that never end.
        let mut s = TcpStream::connect(rig.address).unwrap();
        s.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        s.write_all(
            format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n").as_bytes(),
        )
        .unwrap();
        let chunk = [b"10000\r\n".as_slice(), &[b' '; 0x10000], b"\r\n"].concat();
        // 100 MB, or until the server hangs up.
        let _ = (0..1600).try_for_each(|_| s.write_all(&chunk));
        let mut said = Vec::new();
        let _ = s.read_to_end(&mut said);
        let said = String::from_utf8_lossy(&said);
        assert!(said.is_empty() || said.starts_with("HTTP/1.1 413"), "{said}");
    }
    rig.is_fine();
    let after = resident_bytes();
    assert!(after < before + (32 << 20), "{before} to {after} bytes");
}

#[test]
fn heads_without_end_are_refused() {
    let rig = rig();
    for head in [
        format!("GET /v1/models HTTP/1.1\r\nhost: localhost\r\nx: {}\r\n\r\n", "a".repeat(1 << 20)),
        format!("GET /{} HTTP/1.1\r\nhost: localhost\r\n\r\n", "a".repeat(1 << 20)),
        format!("GET /v1/models HTTP/1.1\r\nhost: localhost\r\n{}\r\n", "x: y\r\n".repeat(20_000)),
    ] {
        let (status, said) = rig.raw(head.as_bytes());
        assert!(status == 0 || (400..500).contains(&status), "{status} {said}");
        rig.is_fine();
    }
}

#[test]
fn what_is_no_http_is_refused() {
    let rig = rig();
    let mut random = Random::new(1);
    for junk in
        [&b"\x16\x03\x01\x02\x00\x01\x00"[..], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\0\0\0\0\r\n\r\n", b"GET\r\n\r\n"]
    {
        let (status, said) = rig.raw(&[junk, b"\r\n\r\n"].concat());
        assert!(status == 0 || (400..600).contains(&status), "{junk:?}: {status} {said}");
    }
    for _ in 0..50 {
        let junk: Vec<u8> = (0..random.below(300)).map(|_| random.below(256) as u8).chain(*b"\r\n\r\n").collect();
        rig.raw(&junk);
    }
    rig.is_fine();
}

#[test]
fn a_client_that_drips_is_hung_up_on() {
    let rig = rig();
    let begun = Instant::now();
    let mut slow: Vec<(TcpStream, &[u8])> = Vec::new();
    for i in 0..40 {
        let s = TcpStream::connect(rig.address).unwrap();
        s.set_read_timeout(Some(Duration::from_secs(8))).unwrap();
        let text: &[u8] = match i % 2 {
            0 => b"GET /v1/models HTTP/1.1\r\nx-a: ",
            _ => b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\n{",
        };
        (&s).write_all(text).unwrap();
        slow.push((s, text));
    }
    // Everybody else is served meanwhile.
    rig.is_fine();
    for (mut s, text) in slow {
        let mut said = Vec::new();
        let _ = s.read_to_end(&mut said);
        let said = String::from_utf8_lossy(&said).into_owned();
        let fine = said.is_empty() || said.starts_with("HTTP/1.1 408");
        assert!(fine, "{}: {said}", String::from_utf8_lossy(text));
    }
    assert!(begun.elapsed() < Duration::from_secs(6), "{:?}", begun.elapsed());
    rig.is_idle_soon();
}

#[test]
fn bytes_that_are_no_text_are_refused_by_every_dialect() {
    let rig = rig();
    for path in PATHS {
        for bad in [
            &b"{\"messages\":[{\"role\":\"user\",\"content\":\"\xC4\xE3\"}]}"[..],
            b"\xC0\x80",
            b"\xFF\xFE{\0}\0",
            b"{\"input\":\"\xED\xA0\x80\"}",
        ] {
            let (status, said) = rig.post(path, "content-type: application/json\r\n", bad);
            assert_eq!(status, 400, "{path}: {said}");
            is_error(path, status, &said);
        }
        let (status, said) = rig.post(path, "content-encoding: gzip\r\n", b"\x1f\x8b\x08\x00");
        assert_eq!(status, 415, "{path}: {said}");
        let (status, said) = rig.post(path, "", &[b'['; 100_000]);
        assert_eq!(status, 400, "{path}: {said}");
        is_error(path, status, &said);
    }
    rig.is_fine();
}
