//! `snug plan`, the budget that every command keeps to, and `snug perplexity`.

mod common;

use common::{command, default_model, snug, str, tiny};
use serde_json::Value;

fn plan(args: &[&str]) -> Value {
    let model = default_model();
    snug(&[&["plan", &model, "--json"], args].concat()).json()
}

fn int(v: &Value) -> u64 {
    v.as_u64().unwrap_or_else(|| panic!("{v} is no number of bytes"))
}

#[test]
fn the_json_says_what_is_promised_in_whole_bytes() {
    let p = plan(&["--memory", "8GiB"]);
    let w = &p["weights"];
    let weights = int(&w["resident"]) + int(&w["cached"]) + int(&w["streamed"]);
    assert!(weights > 30 << 20 && int(&w["leased"]) == 0 && int(&p["draft"]) > 0, "{p}");
    let parts = weights + int(&p["kv"]["total"]) + int(&p["state"]) + int(&p["workspace"]) + int(&p["allowance"]);
    let without = plan(&["--memory", "8GiB", "--draft", "0"]);
    assert!(int(&without["weights"]["leased"]) > 1 << 20 && int(&without["draft"]) == 0, "a predictor is not counted");
    assert!(int(&without["total_bytes"]) + int(&without["weights"]["leased"]) < int(&p["total_bytes"]));
    assert_eq!(int(&p["total_bytes"]), parts);
    assert_eq!(int(&p["guard_bytes"]), 8 << 30);
    assert_eq!(int(&p["left_bytes"]), (8 << 30) - parts);
    assert_eq!((int(&p["context"]), int(&p["max_context"])), (2048, 2048));
    assert_eq!(p["kv"]["format"], "q8");
    // Pages of a layer are filled up to whole blocks of a disk.
    let (positions, pages) = (int(&p["kv"]["bytes_per_position"]) * 2048, 2048 / 256);
    assert!((positions..positions + 2 * pages * 4096).contains(&int(&p["kv"]["total"])), "{p}");
    let whole = plan(&["--memory", "8GiB", "--kv", "bf16"]);
    assert_eq!(int(&whole["kv"]["total"]), int(&whole["kv"]["bytes_per_position"]) * 2048);
    for field in ["load_s", "prefill_tps", "decode_tps"] {
        assert!(p["forecast"][field].is_null(), "nothing was measured here: {p}");
    }
}

#[test]
fn without_a_profile_it_says_how_to_get_one() {
    let said = snug(&["plan", &default_model(), "--memory", "8GiB"]).ok();
    assert!(said.contains("no forecast") && said.contains("snug doctor"), "{said}");
}

#[test]
fn a_measured_machine_gives_a_forecast() {
    let home = tempfile::tempdir().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let ran = command(&["doctor", "--quick", "--dir", dir.path().to_str().unwrap()])
        .env("SNUG_HOME", home.path())
        .output()
        .unwrap();
    assert!(ran.status.success());
    let out = command(&["plan", &default_model(), "--json"]).env("SNUG_HOME", home.path()).output().unwrap();
    let p: Value = serde_json::from_slice(&out.stdout).unwrap();
    let f = &p["forecast"];
    let rate = |name: &str| f[name].as_f64().unwrap_or_else(|| panic!("{name} in {p}"));
    assert!(rate("load_s") > 0.0 && rate("prefill_tps") > rate("decode_tps"));
    assert!(rate("decode_tps") > rate("decode_full_tps"), "a full history is read as well");
    assert!(p["machine"].is_string());
}

/// A model without experts to leave in the file: what does not fit is its context.
fn dense() -> tempfile::TempDir {
    tiny("llama-b", |_| {})
}

#[test]
fn less_memory_is_less_context_and_is_said_and_run_keeps_to_it() {
    let dir = dense();
    let model = str(dir.path());
    let plan = |args: &[&str]| snug(&[&["plan", model, "--json"], args].concat()).json();
    let all = plan(&["--memory", "8GiB"]);
    let memory = (int(&all["total_bytes"]) - int(&all["kv"]["total"]) / 2).to_string();
    let less = plan(&["--memory", &memory]);
    let context = int(&less["context"]);
    assert!((256..1024).contains(&context) && context.is_multiple_of(256), "{less}");
    assert_eq!(int(&less["max_context"]), context);
    assert_eq!(int(&plan(&["--memory", &memory, "--context", "max"])["context"]), context);
    let ran = snug(&["run", model, "--ids", "5,6,7", "-n", "1", "--memory", &memory]);
    assert!(ran.err.contains(&format!("the context is {context} positions, not 1024")), "{ran:?}");
    assert_eq!(ran.code, Some(0));
}

#[test]
fn a_context_that_does_not_fit_is_refused_everywhere_with_what_would_help() {
    let dir = dense();
    let model = str(dir.path());
    let plan = |args: &[&str]| snug(&[&["plan", model, "--json"], args].concat()).json();
    let all = plan(&["--memory", "8GiB"]);
    let memory = (int(&all["total_bytes"]) - int(&all["kv"]["total"]) / 2).to_string();
    let with: [&[&str]; 4] = [&["plan"], &["run", "-p", "hi"], &["logits", "--ids", "1"], &["chat"]];
    for args in with {
        let all = [args, &[model, "--context", "1024", "--memory", &memory]].concat();
        let said = snug(&all).failed(2);
        let fits = int(&plan(&["--memory", &memory])["context"]);
        assert!(said.contains(&format!("--context {fits}")) && said.contains("--memory"), "{args:?}: {said}");
    }
    let said = snug(&["bench", &default_model(), "--memory", "8MiB"]).failed(2);
    assert!(said.contains("a smaller model or quantisation"), "{said}");
    let said = snug(&["plan", model, "--context", "4096"]).failed(2);
    assert!(said.contains("more than the 1024 positions"), "{said}");
}

/// The history of a 27B model at all of its positions: 16 layers, 4 key heads, vectors of 256 in 130 bytes.
#[test]
fn a_quarter_of_a_million_positions_in_four_bits() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("27b.gguf").display().to_string();
    snug(&["synth", "qwen3.8-27b", &file, "--sparse", "--vocab", "512"]).ok();
    let of = |kv: &str| {
        snug(&["plan", &file, "--kv", kv, "--context", "262144", "--memory", "64GiB", "--draft", "0", "--json"]).json()
    };
    let p = of("tq4");
    assert_eq!(int(&p["kv"]["bytes_per_position"]), 16_640);
    assert_eq!(int(&p["kv"]["total"]), 4_160 << 20);
    assert_eq!(int(&p["context"]), 262_144);
    assert_eq!(int(&of("bf16")["kv"]["total"]), 16 << 30);
}

/// The embedding stays in the file and its bytes are slots; the head gives its room to segments where these would be short
/// otherwise. The parts are the total.
#[test]
fn a_mixture_short_of_memory_has_its_tables_out_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("35b.gguf").display().to_string();
    snug(&["synth", "qwen3.6-35b-a3b", &file, "--sparse", "--type", "q4_0"]).ok();
    let of = |more: &[&str]| {
        let args = ["plan", &file, "--context", "4096", "--draft", "0", "--json"];
        snug(&[&args, more].concat()).json()
    };
    let table = 248_320 * 2048 / 32 * 18;
    let (usual, tight) = (of(&["--memory", "4GiB"]), of(&["--memory", "1500MiB"]));
    for p in [&usual, &tight] {
        let w = &p["weights"];
        assert_eq!(int(&w["row_read"]), table);
        let weights = int(&w["resident"]) + int(&w["head"]) - int(&w["head_in_turn"]) + int(&p["slots"]["bytes"]);
        let parts = weights + int(&p["kv"]["total"]) + int(&p["state"]) + int(&p["workspace"]) + int(&p["allowance"]);
        assert_eq!(int(&p["total_bytes"]), parts);
        assert!(parts <= int(&p["guard_bytes"]));
    }
    assert_eq!(int(&usual["weights"]["head"]), 0, "segments take little beside what there is for experts");
    let (head, turn) = (int(&tight["weights"]["head"]), int(&tight["weights"]["head_in_turn"]));
    assert!(head == table && turn > 20 << 20 && turn <= head, "{tight}");
    // Segments are as long as where there is room; beside them is their last row.
    assert_eq!(int(&tight["workspace"]), int(&usual["workspace"]) + 2048 * 4);
    let said = snug(&["plan", &file, "--context", "4096", "--draft", "0", "--memory", "1500MiB"]).ok();
    let bytes = |n: u64| format!("{:.2} MiB", n as f64 / f64::from(1 << 20));
    assert!(said.contains(&format!("the head, {} of it in the workspace's room", bytes(turn))), "{said}");
    let (leased, predictor) = (int(&tight["weights"]["leased"]), int(&tight["weights"]["predictor"]));
    assert!(predictor > 0 && leased == head + predictor, "{tight}");
}

/// What a server holds beside a model is in its plan, and every plan says that it would come on top.
#[test]
fn a_plan_can_be_a_servers() {
    let (alone, served) = (plan(&["--memory", "8GiB"]), plan(&["--memory", "8GiB", "--serve"]));
    let more = int(&served["server"]);
    assert!(int(&alone["server"]) == 0 && more > 16 << 20, "{served}");
    assert!(int(&served["allowance"]) >= int(&alone["allowance"]) + more);
    assert!(int(&plan(&["--memory", "8GiB", "--serve", "--queue", "0"])["server"]) < more);
    assert!(int(&served["snapshots"]) > 0 && int(&alone["snapshots"]) == 0, "a server keeps states");
    let kept = plan(&["--memory", "8GiB", "--serve", "--cache-dir", "/nowhere"]);
    assert!(int(&kept["workspace"]) > int(&served["workspace"]), "pages wait on their way to a disk");
    let said = |more: &[&str]| snug(&[&["plan", &default_model(), "--memory", "8GiB"], more].concat()).ok();
    assert!(said(&[]).contains("see --serve") && said(&["--serve"]).contains("for a server"));
    // It is the plan that a server makes.
    let server = common::served::Served::start(&[&default_model(), "--memory", "8GiB"]);
    let own = server.get("/v1/plan");
    assert_eq!((&own["total_bytes"], &own["pages"]), (&served["total_bytes"], &served["kv"]["pages"]));
}

#[test]
fn more_sequences_take_more_history() {
    // Rows of drafts have states of their own, so that one sequence has more than one.
    let of = |more: &[&str]| plan(&[&["--memory", "8GiB", "--draft", "0"], more].concat());
    let (one, four) = (of(&[]), of(&["--parallel", "4"]));
    assert_eq!(int(&four["kv"]["total"]), 4 * int(&one["kv"]["total"]));
    assert!(int(&four["state"]) > 3 * int(&one["state"]));
}

#[test]
fn the_same_format_twice_costs_nothing_and_another_one_is_compared() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("text");
    std::fs::write(&file, "The keeper lit the lamp. The sea was quiet that night, and so was he.\n".repeat(8)).unwrap();
    let (model, file) = (default_model(), file.display().to_string());
    let of = |more: &[&str]| snug(&[&["perplexity", &model, "-f", &file, "--json"], more].concat()).json();
    let same = of(&["--context", "64", "--kv", "bf16"]);
    assert_eq!((same["kl_mean"].as_f64(), same["top1_agreement"].as_f64()), (Some(0.0), Some(1.0)));
    assert_eq!(same["delta_vs"].as_f64(), Some(0.0));
    let f32s = of(&["--kv", "f32", "--tokens", "80"]);
    assert_eq!(f32s["tokens"], 79);
    let kl = (f32s["kl_mean"].as_f64().unwrap(), f32s["kl_p99"].as_f64().unwrap());
    assert!(kl.0 > 0.0 && kl.0 < 0.01 && kl.1 >= kl.0, "{f32s}");
    assert!(f32s["nll"].as_f64().unwrap() > 0.5);
    let said = snug(&["perplexity", &model, "-f", "/nowhere/text"]).failed(2);
    assert!(said.contains("/nowhere/text"), "{said}");
}
