//! Routing: recorded, replayed against policies, and put in the place of a router's.

mod common;

use common::{default_model, snug, str};
use serde_json::Value;

fn trace(dir: &std::path::Path, prompts: &[&str], n: &str) -> String {
    let out = str(&dir.join("t.bin")).to_string();
    let m = default_model();
    let mut args = vec!["experts", "trace", &m, "-o", &out, "-n", n, "--seed", "1", "--context", "256", "--ignore-eos"];
    prompts.iter().for_each(|p| args.extend(["-p", p]));
    snug(&args).ok();
    out
}

#[test]
fn a_trace_is_recorded_and_every_policy_is_replayed_on_both_halves() {
    let dir = tempfile::tempdir().unwrap();
    let file = trace(dir.path(), &["Tell me a story", "Write a poem about rain"], "40");
    let r = snug(&["experts", "replay", &file, "--slots", "64,512", "--json"]).json();
    // The built-in model: eight layers of 64 experts, of which a token uses four. The first token comes of the prompt.
    let of = |k: &str| r[k].as_u64().unwrap();
    assert_eq!((of("layers"), of("experts"), of("top_k"), of("streams"), of("tokens")), (8, 64, 4, 2, 78));
    let pools = r["pools"].as_array().unwrap();
    for p in pools {
        let policies = p["policies"].as_array().unwrap();
        assert_eq!(policies.len(), 21);
        let rate = |v: &Value, k: &str| v[k].as_f64().unwrap();
        for half in ["tuning", "held_out"] {
            let bound = rate(&p["bound"], half);
            assert!(0.0 < bound && bound < 1.0 && policies.iter().all(|v| rate(v, half) <= bound), "{p}");
        }
        let tuned: Vec<f64> = policies.iter().map(|v| rate(v, "tuning")).collect();
        assert!(tuned.is_sorted_by(|a, b| a >= b), "best first");
    }
    // With a slot for every expert only first uses miss, whatever the policy.
    let all = &pools[1];
    let pool = all["policies"].as_array().unwrap().iter().find(|v| v["policy"] == "lru pool").unwrap();
    assert!(all["bound"]["held_out"].as_f64().unwrap() - pool["held_out"].as_f64().unwrap() < 1e-9, "{all}");
    let text = snug(&["experts", "replay", &file]).ok();
    assert!(text.contains("held out") && text.contains("hits with 256 slots"), "{text}");
}

#[test]
fn a_bench_on_recorded_routing_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let (file, m) = (trace(dir.path(), &["Tell me a story"], "20"), default_model());
    let args = ["bench", &m, "--prompt", "30", "--gen", "30", "--repeat", "1", "--route-trace", &file];
    let text = snug(&args).ok();
    assert!(text.contains("experts as recorded in") && text.contains("t.bin"), "{text}");
    let json = snug(&[&args[..], &["--json"]].concat()).json();
    assert_eq!(json["route_trace"], file.as_str());
}

#[test]
fn what_is_no_trace_or_does_not_fit_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let bad = str(&dir.path().join("bad.bin")).to_string();
    std::fs::write(&bad, b"GGUF").unwrap();
    let e = snug(&["experts", "replay", &bad]).failed(2);
    assert!(e.contains("bad.bin") && e.contains("snugrt01"), "{e}");
    let e = snug(&["experts", "trace", "-o", &bad]).failed(2);
    assert!(e.contains("--prompt"), "{e}");
    let one = trace(dir.path(), &["Hello"], "5");
    let e = snug(&["experts", "replay", &one]).failed(2);
    assert!(e.contains("two conversations"), "{e}");
}
