//! A mixture whose experts are read from its file, as a user meets it.

mod common;

use common::{command, default_model, snug};
use engine::plan::StreamAsk;
use engine::{Ask, Context, Model, OpenOptions, Wanted};
use serde_json::Value;
use snug::synth::{Format, Kind, Options, Resize, synth};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

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

fn synthetic(dir: &Path, name: &str, (format, to): (Format, &str), (layers, vocab): (u32, u32)) -> String {
    let out = dir.join(name);
    let how = Options {
        geometry: "qwen3-30b-a3b".into(),
        resize: Resize { layers: Some(layers), experts: Some(8), vocab: Some(vocab) },
        to: Kind::parse(to).unwrap(),
        format,
        sparse: false,
        seed: 3,
        force: false,
    };
    synth(&out, &how, &mut |_, _| true).unwrap();
    out.to_str().unwrap().to_string()
}

/// Rows that are read from the file are those of the table, whatever they are stored as.
#[test]
fn an_embedding_is_read_by_rows_in_every_kind_of_format() {
    let dir = tempfile::tempdir().unwrap();
    let (gguf, hf, mlx) = (Format::Gguf, Format::Hf, Format::Mlx);
    for kind in
        [(gguf, "q4_0"), (gguf, "q4_k"), (gguf, "q6_k"), (gguf, "bf16"), (hf, "bf16"), (mlx, "mlx4"), (mlx, "mlx8")]
    {
        let model = synthetic(dir.path(), "model", kind, (1, 512));
        let logits = |rows| {
            let stream = StreamAsk { away: rows, ..StreamAsk::default() };
            let ask = Ask { logit_rows: 64, context: Context::Exactly(128), stream, ..Ask::default() };
            let how = OpenOptions { ask, ..OpenOptions::default() };
            let mut exec = Model::open(PathBuf::from(&model), &how, &mut |_| {}).unwrap().exec;
            assert_eq!(exec.embed_rows().is_some(), rows, "{kind:?}");
            let seq = exec.open().unwrap();
            let ids = [72, 101, 511, 0, 101, 33];
            let mut all = exec.prefill(seq, &ids, Wanted::All, &AtomicBool::new(false), &mut |_| {}).unwrap();
            all.extend(exec.decode(&[(seq, 490)]).unwrap());
            all
        };
        assert!(logits(true) == logits(false), "{kind:?}");
        let path = Path::new(&model);
        if path.is_dir() { std::fs::remove_dir_all(path).unwrap() } else { std::fs::remove_file(path).unwrap() }
    }
}

/// Where memory is short the embedding is the first to stay in its file, and answers are the same.
#[test]
fn a_little_less_memory_than_everything_leaves_the_embedding_in_its_file() {
    let dir = tempfile::tempdir().unwrap();
    let model = synthetic(dir.path(), "m.gguf", (Format::Gguf, "q4_0"), (2, 30_000));
    let plan = |more: &[&str]| snug(&[&["plan", &model, "--json", "--context", "512"], more].concat()).json();
    let run = |more: &[&str]| {
        let args = ["run", &model, "--ids", "5,600,29999,5", "-n", "8", "--temp", "0", "--context", "512", "--json"];
        snug(&[&args, more].concat())
    };
    let whole = plan(&["--memory", "8GiB"]);
    assert_eq!(int(&whole["weights"]["row_read"]), 0);
    let memory = (int(&whole["total_bytes"]) - (4 << 20)).to_string();
    let part = plan(&["--memory", &memory]);
    assert!(part["slots"].is_null() && int(&part["weights"]["row_read"]) == 30_000 * 2048 / 32 * 18, "{part}");
    assert!(int(&part["total_bytes"]) < int(&whole["total_bytes"]) - (30 << 20));
    let said = snug(&["plan", &model, "--context", "512", "--memory", &memory]).ok();
    assert!(said.contains("read row by row from the file"), "{said}");
    let (want, got) = (run(&["--memory", "8GiB"]).json(), run(&["--memory", &memory, "-v"]));
    let verbose = got.err.clone();
    let got = got.json();
    assert_eq!(got["ids"], want["ids"]);
    let rows = &got["embedding_rows"];
    assert!(want.get("embedding_rows").is_none());
    // Three rows of the prompt, and those of the answer but for its last.
    assert!((3..=10).contains(&int(&rows["read"])) && int(&rows["asked"]) == 10, "{rows}");
    assert!(verbose.contains("rows of the embedding were read from its file"), "{verbose}");
}

/// The fewest slots are said where fewer are asked for, by every command, and are had where they are asked for.
#[test]
fn fewer_slots_than_can_be_are_refused() {
    let model = default_model();
    let few = |command: &'static str, n: &str| snug(&[command, &model, "--slots", n]);
    for command in ["plan", "serve", "chat"] {
        let said = few(command, "0").failed(2);
        assert!(said.contains("--slots 0 is too few") && said.contains("take --slots 6 or more"), "{command}: {said}");
    }
    let said = few("plan", "5").failed(2);
    assert!(said.contains("--slots 5 is too few"), "{said}");
    let p = snug(&["plan", &model, "--slots", "6", "--json"]).json();
    assert!(p["slots"]["pools"].as_array().unwrap().iter().all(|p| int(&p["slots"]) == 6), "{p}");
    assert_eq!(int(&p["context"]), 2048, "slots that were asked for leave history its room");
    let said = snug(&["plan", &model, "--slots", "6"]).ok();
    assert!(!said.contains("no more fit"), "{said}");
}

/// Where history would take room from experts, that is the reason given.
#[test]
fn a_context_that_is_short_for_the_sake_of_experts_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("30b.gguf").display().to_string();
    snug(&["synth", "qwen3-30b-a3b", &file, "--sparse", "--type", "q4_0", "--vocab", "512"]).ok();
    let plan = |more: &[&str]| snug(&[&["plan", &file, "--memory", "3GiB"], more].concat());
    let p = plan(&["--json"]).json();
    let (context, most) = (int(&p["context"]), int(&p["max_context"]));
    assert!(context < 40_960 && most > context, "{p}");
    let said = plan(&[]).ok();
    assert!(said.contains(&format!("the context is {context} positions, not")), "{said}");
    assert!(said.contains("more would take room from experts") && !said.contains("no more fit"), "{said}");
}
