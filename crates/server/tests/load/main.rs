//! Many clients at once, and clients that mean no good, against a scripted backend over loopback.

mod hostile;
mod rig;

use rig::{Random, Rig, resident_bytes};
use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Mutex;
use std::time::{Duration, Instant};

const CLIENTS: u64 = 64;
/// A client that hears nothing for this long is stuck.
const STUCK: Duration = Duration::from_secs(10);

/// The three dialects: path, body, and what ends a stream.
const DIALECTS: [(&str, &str, &str); 3] = [
    (
        "/v1/chat/completions",
        r#"{"model":"m","stream":true,"messages":[{"role":"user","content":"go"}]}"#,
        "data: [DONE]",
    ),
    (
        "/v1/messages",
        r#"{"model":"m","stream":true,"max_tokens":1000,"messages":[{"role":"user","content":"go"}]}"#,
        "event: message_stop",
    ),
    ("/v1/responses", r#"{"model":"m","stream":true,"input":"go"}"#, "event: response.completed"),
];

#[derive(Default)]
struct Seen {
    first: Vec<Duration>,
    finished: u64,
    left: u64,
    bad: Vec<String>,
}

/// One request; a quarter of them are left in the middle.
fn once(rig: &Rig, random: &mut Random, seen: &Mutex<Seen>) {
    let (path, body, end) = DIALECTS[random.below(3) as usize];
    let leave = (random.below(4) == 0).then(|| random.below(4000));
    let begun = Instant::now();
    let bad = |what: String| seen.lock().unwrap().bad.push(format!("{path}: {what}"));
    let stream = match TcpStream::connect(rig.address) {
        Ok(s) => s,
        Err(e) => return bad(format!("cannot connect: {e}")),
    };
    stream.set_read_timeout(Some(STUCK)).unwrap();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    if let Err(e) = (&stream).write_all(head.as_bytes()) {
        return bad(format!("cannot send: {e}"));
    }
    let mut lines = BufReader::new(&stream);
    let (mut line, mut bytes, mut first, mut ended) = (String::new(), 0, None, false);
    loop {
        line.clear();
        match lines.read_line(&mut line) {
            Ok(0) => break,
            Ok(n) => bytes += n as u64,
            Err(e) => return bad(format!("stuck after {bytes} bytes: {e}")),
        }
        first.get_or_insert_with(|| begun.elapsed());
        ended |= line.starts_with(end);
        if leave.is_some_and(|n| bytes > n) {
            let _ = stream.shutdown(Shutdown::Both);
            let mut s = seen.lock().unwrap();
            s.left += 1;
            s.first.extend(first);
            return;
        }
    }
    let mut s = seen.lock().unwrap();
    s.first.extend(first);
    s.finished += u64::from(ended);
    if !ended {
        s.bad.push(format!("{path}: the stream ended without {end:?} after {bytes} bytes"));
    }
}

/// Bytes held over time, after everybody has come.
fn memory(until: Instant) -> Vec<u64> {
    let mut held = Vec::new();
    std::thread::sleep(Duration::from_secs(2));
    while Instant::now() < until {
        held.push(resident_bytes());
        std::thread::sleep(Duration::from_millis(250));
    }
    held
}

fn load(time: Duration, slowest_first_byte: Duration) {
    // Twenty-five tokens in half a second, for each client at once.
    let rig = Rig::start(
        r#"{"context":4096,"parallel":64,"token_ms":20,"answers":[{"steps":[{"repeat":25,"steps":["w"]}]}]}"#,
        |_| {},
    );
    let (seen, until) = (Mutex::new(Seen::default()), Instant::now() + time);
    let held = std::thread::scope(|s| {
        for i in 0..CLIENTS {
            let (rig, seen) = (&rig, &seen);
            s.spawn(move || {
                let mut random = Random::new(i);
                while Instant::now() < until {
                    once(rig, &mut random, seen);
                }
            });
        }
        memory(until)
    });
    let mut seen = seen.into_inner().unwrap();
    assert!(seen.bad.is_empty(), "{} of {}: {:?}", seen.bad.len(), seen.finished, &seen.bad[..seen.bad.len().min(5)]);
    seen.first.sort_unstable();
    let p = |q: usize| seen.first[(seen.first.len() - 1) * q / 100];
    eprintln!(
        "{} finished, {} left, first byte p50 {:?} p99 {:?} max {:?}, memory {:?} MB",
        seen.finished,
        seen.left,
        p(50),
        p(99),
        p(100),
        held.iter().step_by(held.len().div_ceil(8)).map(|b| b >> 20).collect::<Vec<_>>()
    );
    assert!(seen.finished > CLIENTS && seen.left > seen.finished / 10, "{} {}", seen.finished, seen.left);
    assert!(p(99) < slowest_first_byte, "99 of 100 had their first byte after {:?}", p(99));
    let (early, late) = (held[held.len() / 4], *held.last().unwrap());
    assert!(late < early + early / 10 + (8 << 20), "memory grew from {early} to {late} bytes: {held:?}");
    rig.is_idle_soon();
}

/// Beside other tests on a busy machine the figure is not a measurement, only no catastrophe.
#[test]
fn sixty_four_clients_for_a_moment() {
    load(Duration::from_secs(5), Duration::from_secs(2));
}

mod long {
    use super::*;

    #[test]
    fn sixty_four_clients_for_a_minute() {
        load(Duration::from_secs(60), Duration::from_millis(200));
    }
}
