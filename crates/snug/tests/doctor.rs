//! `snug doctor`: the shape of what it says, and that it is kept.

mod common;

use common::{command, str};
use engine::machine::MachineProfile;
use serde_json::Value;
use std::time::Instant;

#[test]
fn a_quick_look_is_whole_and_kept_and_leaves_no_file_behind() {
    let (home, disk) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let args = ["doctor", "--quick", "--json", "--dir", str(disk.path())];
    let begin = Instant::now();
    let out = command(&args).env("SNUG_HOME", home.path()).output().unwrap();
    let seconds = begin.elapsed().as_secs_f64();
    // Under 8 s on an idle machine; tests share theirs.
    assert!(seconds < 60.0, "{seconds} s");
    let seen: Value = common::Ran::from(out).json();
    assert_eq!((&seen["version"], &seen["quick"]), (&2.into(), &true.into()));
    assert!(seen["date"].as_str().unwrap().ends_with("UTC"));
    assert!(seen["cpu"]["threads"].as_u64().unwrap() >= 1);
    assert!(["scalar", "avx2", "avx512", "amx"].contains(&seen["cpu"]["isa"].as_str().unwrap()));
    assert!(seen["memory"]["limits"].is_array() && seen["gpus"].is_array());
    let rates = |part: &Value, name: &str| -> Vec<f64> {
        part.as_array().unwrap().iter().map(|r| r[name].as_f64().unwrap()).collect()
    };
    let disk_rates = rates(&seen["disk_read"]["rates"], "gbps");
    assert_eq!(disk_rates.len(), 12, "three sizes of block, four depths: {seen}");
    let all = [
        rates(&seen["ram_read"], "gbps"),
        disk_rates,
        rates(&seen["linear"], "gemv_gbps"),
        rates(&seen["linear"], "gemm_gmadds"),
        rates(&seen["history"], "gbps"),
    ];
    assert!(all.iter().all(|part| !part.is_empty() && part.iter().all(|r| *r > 0.0)), "{all:?}");
    assert!(seen["call_us"].as_f64().unwrap() > 0.0);
    let kept = MachineProfile::load_from(home.path()).unwrap().unwrap();
    assert_eq!(serde_json::to_value(&kept).unwrap(), seen, "what is kept is what was said");
    assert_eq!(std::fs::read_dir(disk.path()).unwrap().count(), 0);
}

#[test]
fn a_directory_that_is_not_there_is_refused() {
    let e = common::snug(&["doctor", "--quick", "--dir", "/nowhere/at/all"]).failed(2);
    assert!(e.contains("--dir"), "{e}");
}
