//! Conversations through a pipe, Ctrl-C, and readers that go away.

mod common;

use common::{command, default_model, interrupt, piped, tiny};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// Longer than any machine takes to stop an answer, much shorter than the answers of these tests.
const SOON: Duration = Duration::from_secs(5);

/// Tokens that a turn read, as `-v` reports them.
fn read_counts(err: &str) -> Vec<u32> {
    let counts = err.lines().filter_map(|l| l.strip_prefix("debug: read "));
    counts.map(|l| l.split(' ').next().unwrap().parse().unwrap()).collect()
}

#[test]
fn a_piped_conversation_is_read_once_and_can_be_reset() {
    let m = &default_model();
    let args = ["chat", m, "--temp", "0", "-n", "12", "-v"];
    let r = piped(&args, "Tell me a story.\n\nGo on.\n/reset\nTell me a story.\n/unknown\n/help\n");
    let counts = read_counts(&r.err);
    assert!(r.err.contains("no command /unknown") && r.err.contains("/reset"), "{}", r.err);
    assert!(!r.err.contains("read again"), "{}", r.err);
    let out = r.ok();
    assert_eq!(counts.len(), 3);
    assert!(counts[1] < counts[0] + 12, "the second turn reads what is new: {counts:?}");
    assert_eq!(counts[2], counts[0], "a reset conversation begins anew");
    let alone = piped(&args, "Tell me a story.").ok();
    assert!(out.starts_with(&alone) && out.ends_with(&alone) && out.len() > 2 * alone.len(), "{out}");
}

#[test]
fn exit_ends_a_conversation_before_its_input_does() {
    let r = piped(&["chat", &default_model()], "/exit\nHello\n");
    assert_eq!(r.ok(), "");
}

#[test]
fn a_full_context_is_said_and_reset_mends_it() {
    let long = "word ".repeat(100);
    let input = format!("{long}\n/reset\nHi\n");
    let r = piped(&["chat", &default_model(), "--context", "64", "-n", "3", "--temp", "0", "--ignore-eos"], &input);
    assert!(r.err.contains("the context of 64 positions is full") && r.err.contains("/reset"), "{}", r.err);
    assert!(!r.ok().is_empty(), "the conversation goes on after it");
}

/// A process whose answer would take minutes, after its first bytes.
fn long_answer(args: &[&str]) -> (Child, String) {
    let mut child = command(args).spawn().unwrap();
    let mut first = vec![0; 8];
    child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    (child, String::from_utf8_lossy(&first).into_owned())
}

/// The next line that has this in it.
fn line_with(lines: &mut impl BufRead, part: &str) -> String {
    let mut line = String::new();
    while !line.contains(part) {
        line.clear();
        assert!(lines.read_line(&mut line).unwrap() > 0, "it ended without saying {part}");
    }
    line
}

/// A tiny model with room for an endless answer.
fn endless() -> tempfile::TempDir {
    tiny("llama-a", |c| c["max_position_embeddings"] = 1_000_000.into())
}

#[test]
fn ctrl_c_stops_an_answer_and_keeps_what_there_is() {
    let dir = endless();
    let (child, first) = long_answer(&["run", common::str(dir.path()), "--ids", "1,2,3", "--device", "reference"]);
    let sent = Instant::now();
    interrupt(&child);
    let r: common::Ran = child.wait_with_output().unwrap().into();
    assert!(sent.elapsed() < SOON);
    assert_eq!(r.code, Some(130), "{r:?}");
    assert!(r.err.is_empty() && r.out.ends_with('\n'), "{r:?}");
    let all = first + r.out.trim_end();
    assert!(all.split(',').all(|id| id.parse::<u32>().is_ok()), "{all}");
}

#[test]
fn ctrl_c_leaves_a_whole_json_object() {
    let dir = endless();
    let args = ["run", common::str(dir.path()), "--ids", "1,2,3", "--device", "reference", "--json", "-v"];
    let mut child = command(&args).spawn().unwrap();
    // The seed is said right before the answer begins.
    let mut err = BufReader::new(child.stderr.take().unwrap());
    line_with(&mut err, "seed");
    std::thread::sleep(Duration::from_millis(300));
    interrupt(&child);
    let r: common::Ran = child.wait_with_output().unwrap().into();
    assert_eq!(r.code, Some(130), "{r:?}");
    let json: serde_json::Value = serde_json::from_str(&r.out).unwrap();
    assert_eq!(json["finish_reason"], "cancelled");
    assert!(json["tokens"].as_u64().unwrap() > 0);
}

#[test]
fn ctrl_c_in_a_conversation_stops_the_answer_only() {
    let m = default_model();
    let mut child = command(&["chat", &m, "--ignore-eos", "--temp", "0", "-v"]).stdin(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    writeln!(input, "Tell me a long story.").unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0; 8]).unwrap();
    interrupt(&child);
    let mut err = BufReader::new(child.stderr.take().unwrap());
    let end = line_with(&mut err, "debug: read ");
    assert!(end.contains("cancelled"), "{end}");
    writeln!(input, "/nonsense\n/exit").unwrap();
    line_with(&mut err, "/nonsense");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_reader_that_goes_away_ends_it_quietly() {
    let dir = endless();
    let (mut child, _) = long_answer(&["run", common::str(dir.path()), "--ids", "1,2,3", "--device", "reference"]);
    drop(child.stdout.take());
    let gone = Instant::now();
    let r: common::Ran = child.wait_with_output().unwrap().into();
    assert!(gone.elapsed() < SOON);
    assert_eq!((r.code, r.err.as_str()), (Some(0), ""));
}
