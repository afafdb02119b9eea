//! Measuring: what is reported, not how fast it is.

mod common;

use common::{default_model, snug, str, tiny};
use serde_json::Value;

fn keys(v: &Value) -> Vec<&str> {
    v.as_object().unwrap().keys().map(String::as_str).collect()
}

fn bench(more: &[&str]) -> Value {
    bench_of("40", "3", more)
}

fn bench_of(prompt: &str, repeat: &str, more: &[&str]) -> Value {
    let m = &default_model();
    let args = ["bench", m, "--prompt", prompt, "--gen", "6", "--repeat", repeat, "--threads", "2", "--json"];
    snug(&[&args[..], more].concat()).json()
}

fn f(v: &Value) -> f64 {
    v.as_f64().unwrap_or_else(|| panic!("{v} is no number"))
}

/// Time of the named entries, or of all of them.
fn sum(side: &Value, what: impl Fn(&str) -> bool) -> f64 {
    let ops = side["ops"].as_array().unwrap();
    ops.iter().filter(|o| what(o["op"].as_str().unwrap())).map(|o| f(&o["ms"])).sum()
}

#[test]
fn rates_are_reported_with_their_spread_and_their_bound() {
    let r = bench(&[]);
    let want = "model arch device isa threads kv context prompt gen depth batch repeat load_s load_gbps prefill_tps decode_tps \
                digest bytes_per_token weight_bytes_per_token history_bytes_per_token achieved_gbps ram_read_gbps \
                ram_reads_gbps bound_share workspace";
    assert_eq!(keys(&r), want.split_whitespace().collect::<Vec<_>>());
    for rate in ["prefill_tps", "decode_tps"] {
        let s = &r[rate];
        assert_eq!(keys(s), ["median", "min", "max"]);
        assert!(0.0 < f(&s["min"]) && f(&s["min"]) <= f(&s["median"]) && f(&s["median"]) <= f(&s["max"]), "{s}");
    }
    for (key, value) in [("threads", 2), ("prompt", 40), ("gen", 6), ("depth", 0), ("repeat", 3), ("context", 46)] {
        assert_eq!(r[key], value, "{key}");
    }
    // Less than the file: of its experts and its embedding a token reads a part.
    let (weights, history) = (f(&r["weight_bytes_per_token"]), f(&r["history_bytes_per_token"]));
    let file = std::fs::metadata(default_model()).unwrap().len() as f64;
    assert!(weights > 0.02 * file && weights < 0.9 * file && history > 0.0, "{r}");
    assert_eq!(f(&r["bytes_per_token"]), weights + history);
    let achieved = weights / 1e9 * f(&r["decode_tps"]["median"]);
    assert!(f(&r["achieved_gbps"]) >= achieved * 0.999);
    // Memory is measured beside each round, and each round compared with what it gave then.
    let beside: Vec<f64> = r["ram_reads_gbps"].as_array().unwrap().iter().map(f).collect();
    if let (Some(ram), Some(share)) = (r["ram_read_gbps"].as_f64(), r["bound_share"].as_f64()) {
        let (least, most) =
            (beside.iter().copied().fold(f64::MAX, f64::min), beside.iter().copied().fold(0.0, f64::max));
        assert!(beside.len() == 3 && 0.0 < least && least <= ram && ram <= most, "{r}");
        let at = |tps: &str| (weights + history) * f(&r["decode_tps"][tps]) / 1e9;
        assert!(at("min") / most <= share * 1.001 && share <= at("max") / least * 1.001, "{r}");
    } else {
        assert!(beside.is_empty(), "{r}");
    }

    let deep = bench(&["--depth", "700", "--profile"]);
    assert_eq!(keys(&deep)[..25], keys(&r)[..]);
    assert_eq!((&deep["depth"], &deep["context"]), (&700.into(), &746.into()));
    assert_eq!(deep["weight_bytes_per_token"], r["weight_bytes_per_token"]);
    assert!(f(&deep["history_bytes_per_token"]) > history, "history grows with depth");
    // Workspace is what the plan says, and no more of it is used at a depth.
    let w = &r["workspace"];
    assert_eq!(keys(w), ["planned", "prefill", "decode"]);
    assert!(f(&w["prefill"]) <= f(&w["planned"]) && f(&w["decode"]) < f(&w["planned"]), "{w}");
    assert_eq!(deep["workspace"]["prefill"], w["prefill"]);
    // A prompt that fills the largest chunk and gives logits takes all of it.
    let wide = bench_of("256", "1", &[]);
    assert_eq!(wide["workspace"]["prefill"], wide["workspace"]["planned"]);
    profile_sums_up(&deep["profile"], 3 * 6);
}

#[test]
fn history_in_four_bits_is_a_quarter_of_its_bytes() {
    let read = |kv: &str| bench_of("40", "1", &["--depth", "700", "--kv", kv]);
    let (bf16, tq4) = (read("bf16"), read("tq4+own-page"));
    assert_eq!((&bf16["kv"], &tq4["kv"]), (&"bf16".into(), &"tq4+own-page".into()));
    let bytes = |r: &Value| f(&r["history_bytes_per_token"]);
    // The recurrent states of the other layers stay as they are, and own pages are bf16.
    assert!(bytes(&tq4) < bytes(&bf16), "{tq4}");
}

/// `passes` decode passes were counted.
fn profile_sums_up(p: &Value, passes: u64) {
    assert_eq!(keys(p), ["prefill", "decode"]);
    for side in [&p["prefill"], &p["decode"]] {
        let (all, total) = (sum(side, |_| true), f(&side["total_ms"]));
        assert!((all / total - 1.0).abs() < 1e-3, "{all} of {total}");
        let ops = sum(side, |o| o != "outside");
        assert!(ops > 0.5 * total, "operations are most of it: {ops} of {total}");
    }
    let ops = p["decode"]["ops"].as_array().unwrap();
    let of = |name: &str| ops.iter().find(|o| o["op"] == name).unwrap_or_else(|| panic!("no {name} in {p}"));
    assert_eq!(keys(of("linear")), ["op", "calls", "ms", "share", "gbps"]);
    assert_eq!(of("embed")["calls"], passes);
    for told in ["linear", "expert_group", "gated_delta"] {
        assert!(f(&of(told)["gbps"]) > 0.0, "{told}");
    }
    assert!(of("attention")["gbps"].is_null());
}

#[test]
fn people_get_a_table_and_a_dense_model_in_any_format_is_measured() {
    let dir = tiny("llama-a", |_| {});
    let args = ["bench", str(dir.path()), "--prompt", "8", "--gen", "2", "--repeat", "1", "--profile", "--kv", "f32"];
    let ran = snug(&args);
    let err = ran.err.clone();
    let out = ran.ok();
    assert!(out.contains("prefill 8 @ 0") && out.contains("decode 2 @ 0") && out.contains("GB/s"), "{out}");
    assert!(err.contains("prefill") && err.contains("linear") && err.contains("outside"), "{err}");
}

#[test]
fn run_profiles_one_answer() {
    let m = &default_model();
    let args = ["run", m, "-p", "Hi", "-n", "5", "--ignore-eos", "--draft", "0", "--profile"];
    let r = snug(&[&args[..], &["--json"]].concat()).json();
    let p = &r["profile"];
    assert_eq!(keys(p), ["prefill", "decode"]);
    // The first token comes of the prompt.
    let ops = p["decode"]["ops"].as_array().unwrap();
    assert!(ops.iter().any(|o| o["op"] == "embed" && o["calls"] == 4), "{p}");
    let all = sum(&p["prefill"], |_| true) / f(&p["prefill"]["total_ms"]);
    assert!((all - 1.0).abs() < 1e-3, "{all}");
    assert!(snug(&args).err.contains("expert_group"));
}

/// What a round of drafts is made of; a model without a predictor has none.
#[test]
fn rounds_of_drafts_are_measured_part_by_part() {
    let of = |model: &str| {
        snug(&["bench", model, "--prompt", "64", "--gen", "4", "--repeat", "1", "--draft", "2", "--json"]).json()
    };
    let r = of(&default_model());
    let all = |key: &str| r["ahead"][key].as_array().unwrap().len();
    assert_eq!((all("verify_ms"), all("draft_ms"), all("breaks_even")), (3, 2, 2), "{r}");
    assert!(r["ahead"]["verify_ms"].as_array().unwrap().iter().all(|ms| ms.as_f64().unwrap() > 0.0));
    let dir = tiny("llama-a", |_| {});
    assert!(of(str(dir.path())).get("ahead").is_none());
}
