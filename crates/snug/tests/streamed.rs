//! A mixture whose experts are read from its file, as a user meets it.

mod common;

use common::{command, default_model, snug};
use serde_json::Value;

fn run(more: &[&str]) -> Value {
    let model = default_model();
    snug(&[&["run", &model, "-p", "Tell me a story", "--temp", "0", "-n", "12", "--json"], more].concat()).json()
}

fn int(v: &Value) -> u64 {
    v.as_u64().unwrap_or_else(|| panic!("{v} is no number"))
}

#[test]
fn answers_are_those_of_the_whole_model_and_the_figures_say_what_it_took() {
    let whole = run(&[]);
    assert!(whole.get("streamed").is_none());
    for more in [&["--lookahead=off"][..], &["--lookahead", "--verify-reads"], &["--page-cache", "--lookahead=off"]] {
        let r = run(&[&["--slots", "12"], more].concat());
        assert_eq!(r["ids"], whole["ids"], "{more:?}");
        let d = &r["streamed"]["decode"];
        assert_eq!(int(&d["tokens"]), 11);
        assert!(int(&d["misses"]) > 0 && int(&d["read_bytes"]) >= int(&d["missed_bytes"]), "{d}");
        assert!(d["disk_gbps"].as_f64().unwrap() > 0.0 && d["waiting_share"].as_f64().unwrap() <= 1.0, "{d}");
        assert_eq!(d.get("recall").is_some(), more.contains(&"--lookahead"), "{d}");
    }
}

#[test]
fn a_limit_below_the_model_is_said_and_kept() {
    let model = default_model();
    let plan = |more: &[&str]| snug(&[&["plan", &model, "--json", "--context", "512"], more].concat()).json();
    let whole = plan(&["--memory", "8GiB"]);
    assert!(whole["slots"].is_null());
    let memory = (int(&whole["total_bytes"]) - int(&whole["weights"]["cached"]) / 2).to_string();
    let part = plan(&["--memory", &memory]);
    let slots = &part["slots"];
    assert!(
        int(&slots["slots"]) < int(&slots["experts"]) && int(&part["total_bytes"]) <= int(&part["guard_bytes"]),
        "{part}"
    );
    let ran = snug(&["run", &model, "--context", "512", "--ids", "5,6,7", "-n", "3", "--memory", &memory, "--stats"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    for said in ["routed experts; the others are read from disk", "from disk, prompt: ", "from disk, answer: "] {
        assert!(ran.err.contains(said), "{said} in {ran:?}");
    }
}

#[test]
fn every_round_of_a_measurement_says_what_it_read() {
    let model = default_model();
    let args = ["bench", &model, "--slots", "12", "--prompt", "20", "--gen", "4", "--repeat", "2", "--json"];
    let r = snug(&args).json();
    let rounds = r["streamed"].as_array().unwrap();
    assert_eq!(rounds.len(), 2);
    for d in rounds.iter().map(|r| &r["decode"]) {
        assert!(d["hit_rate"].as_f64().is_some_and(|h| (0.0..1.0).contains(&h)), "{d}");
        assert_eq!(int(&d["read_bytes_per_token"]), int(&d["read_bytes"]) / 4);
    }
}

/// Killed in the middle, it leaves nothing behind; and two at once do not mind each other.
#[test]
fn a_killed_process_leaves_nothing_and_two_may_read_one_file() {
    let (model, dir) = (default_model(), tempfile::tempdir().unwrap());
    let args = ["run", &model, "-p", "Tell me a story", "--temp", "0", "-n", "40", "--slots", "12", "--json"];
    let begin = || command(&args).env("TMPDIR", dir.path()).current_dir(dir.path()).spawn().unwrap();
    let mut killed = begin();
    std::thread::sleep(std::time::Duration::from_millis(300));
    killed.kill().unwrap();
    killed.wait().unwrap();
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    let both = [begin(), begin()].map(|c| c.wait_with_output().unwrap());
    let ids = |o: &std::process::Output| serde_json::from_slice::<Value>(&o.stdout).unwrap()["ids"].clone();
    assert!(both.iter().all(|o| o.status.success()));
    assert_eq!(ids(&both[0]), ids(&both[1]));
}
