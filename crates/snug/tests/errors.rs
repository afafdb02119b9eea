//! Every failure is one line on stderr that says what to do, and an exit code: 2 where asking differently helps, else 1.

mod common;

use common::{command, cut_model, default_model, piped, snug, str, tiny};

#[test]
fn help_and_version_go_to_stdout() {
    assert!(snug(&["--version"]).ok().starts_with("snug "));
    for c in ["run", "chat", "inspect", "logits", "tokenize", "quantize", "list", "bench", "launch"] {
        let help = snug(&[c, "--help"]).ok();
        assert!(help.contains("Example") && help.contains(&format!("snug {c}")), "{c}: {help}");
        assert!(snug(&[c, "-V"]).ok().contains("snug"));
    }
}

#[test]
fn flags_that_cannot_be_are_named() {
    let m = &default_model();
    for (args, said) in [
        (&[][..], "there is no command"),
        (&["fly"], "fly"),
        (&["run", m, "-p", "x", "--no-such-flag"], "--no-such-flag"),
        (&["run", m, "-p", "x", "--isa", "mmx"], "mmx"),
        (&["run", m, "-p", "x", "--device", "toaster"], "toaster"),
        (&["run", m, "-p", "x", "--context", "0"], "--context"),
        (&["run", m, "-p", "x", "--context", "3000"], "--context 3000 is more than the 2048 positions"),
        (&["run", m, "-p", "x", "--threads", "0"], "--threads"),
        (&["run", m, "-p", "x", "--device", "reference", "--threads", "2"], "--threads"),
        (&["run", m, "-p", "x", "--ids", "1"], "--ids"),
        (&["run", m, "--ids", "1,x"], "'x' is not a token id"),
        (&["run", m, "-p", "x", "--logprobs", "2"], "--json"),
        (&["run", m, "-p", "x", "--raw", "--system", "y"], "--system"),
        (&["run", m, "-p", "x", "--logit-bias", "7"], "42=-1.5"),
        (&["logits", m], "--ids"),
        (&["tokenize", m, "--decode", "1", "x"], "--decode"),
        (&["tokenize"], "no text"),
        (&["quantize", m, "x.gguf", "--type", "q99"], "q99"),
        (&["bench", m, "--repeat", "0"], "--repeat"),
        (&["bench", m, "--prompt", "0"], "--prompt"),
        (&["bench", m, "--depth", "1500"], "are 2140 positions; the context is 2048"),
        (&["bench", m, "--depth", "4294967295"], "the context is 2048"),
        (&["bench", m, "--context", "600"], "are 640 positions; the context is 600"),
        (&["bench", m, "--context", "3000"], "--context 3000 is more than the 2048 positions"),
        (&["bench", m, "--device", "reference", "--threads", "2"], "--threads"),
        (&["bench", "/no/such/file.gguf"], "/no/such/file.gguf"),
        (&["run", m, "-p", "x", "--device", "cuda:x"], "cuda:0"),
        (&["run", m, "-p", "x", "--device", "cuda:9"], "no "),
        (&["run", m, "-p", "x", "--device", "cpu", "--device-memory", "1GiB"], "--device-memory"),
        (&["plan", m, "--device", "cuda:0", "--threads", "2"], "--threads"),
        (&["plan", m, "--memory", "6PB"], "6GB (powers of ten)"),
        (&["plan", m, "--queue", "3"], "--serve"),
    ] {
        let err = snug(args).failed(2);
        assert!(err.contains(said), "{args:?}: {err}");
    }
}

#[test]
fn parameters_out_of_range_are_named_before_a_model_is_opened() {
    for (flag, value, said) in [
        ("--temp", "-1", "temperature is -1"),
        ("--temp", "NaN", "temperature is NaN"),
        ("--top-p", "1.5", "top_p is 1.5; allowed is 0 to 1"),
        ("--min-p", "-0.1", "min_p"),
        ("--repeat-penalty", "0", "repetition_penalty"),
        ("--presence-penalty", "3", "presence_penalty"),
        ("--frequency-penalty", "-3", "frequency_penalty"),
        ("--logit-bias", "1=1000", "logit_bias"),
        ("--max-tokens", "0", "--max-tokens is 0"),
    ] {
        let err = snug(&["run", "/no/such/model", "-p", "x", flag, value]).failed(2);
        assert!(err.contains(said), "{flag} {value}: {err}");
    }
}

#[test]
fn a_model_that_is_not_there_lists_what_is() {
    let store = tempfile::tempdir().unwrap();
    std::fs::create_dir(store.path().join("models")).unwrap();
    std::fs::write(store.path().join("models/mine.gguf"), "").unwrap();
    for args in [&["run", "missing", "-p", "x"][..], &["inspect", "missing"], &["tokenize", "missing", "x"]] {
        let out = command(args).env("SNUG_HOME", store.path()).output().unwrap();
        let err = common::Ran::from(out).failed(2);
        assert!(err.contains("'missing'") && err.contains("has mine") && err.contains("get-smollm2"), "{err}");
    }
    let err = snug(&["chat", "/no/such/file.gguf"]).failed(2);
    assert!(err.contains("/no/such/file.gguf") && err.contains("no such file"), "{err}");
}

#[test]
fn what_is_no_model_or_an_unknown_one_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let err = snug(&["run", str(dir.path()), "-p", "x"]).failed(2);
    assert!(err.contains("without a .gguf or .safetensors"), "{err}");
    let page = dir.path().join("page.gguf");
    std::fs::write(&page, "<!DOCTYPE html><html>").unwrap();
    assert!(snug(&["run", str(&page), "-p", "x"]).failed(2).contains("web page"));

    let unknown = tiny("llama-a", |c| c["model_type"] = "gpt9".into());
    for args in [&["run", str(unknown.path()), "--ids", "1"][..], &["logits", str(unknown.path()), "--ids", "1"]] {
        let err = snug(args).failed(2);
        assert!(err.contains("'gpt9' is not supported") && err.contains("llama, qwen2"), "{err}");
    }
}

#[test]
fn a_damaged_file_is_not_the_users_fault() {
    let dir = tempfile::tempdir().unwrap();
    for bytes in [1000, 20_000_000] {
        let cut = cut_model(dir.path(), bytes);
        for args in [&["run", str(&cut), "-p", "x"][..], &["inspect", str(&cut)], &["logits", str(&cut), "--ids", "1"]]
        {
            let err = snug(args).failed(1);
            assert!(err.contains("cut.gguf") && err.contains("download it again"), "{err}");
        }
    }
}

#[test]
fn prompts_that_cannot_be_answered_are_refused() {
    let m = &default_model();
    let long = common::ids(&[5; 65]);
    for args in [
        &["run", m, "--ids", &long, "--context", "64"][..],
        &["logits", m, "--ids", &long, "--context", "64"],
        &["run", m, "-p", &"word ".repeat(80), "--context", "64"],
    ] {
        let err = snug(args).failed(2);
        assert!(err.contains("the context 64") && err.contains("the model allows 2048"), "{err}");
    }
    assert!(snug(&["run", m]).failed(2).contains("no tokens"), "nothing is piped in");
    assert!(snug(&["run", m, "-p", ""]).failed(2).contains("no tokens"));
    assert!(snug(&["run", m, "--ids", ""]).failed(2).contains("no tokens"));
    for args in
        [&["run", m, "--ids", "1,49152"][..], &["logits", m, "--ids", "49152"], &["tokenize", m, "--decode", "49152"]]
    {
        assert!(snug(args).failed(2).contains("49152 is beyond the vocabulary"));
    }
    let invalid = command(&["run", m, "-p", "-"]).stdin(std::fs::File::open(m).unwrap()).output().unwrap();
    assert!(common::Ran::from(invalid).failed(2).contains("UTF-8"));
}

#[test]
fn a_model_without_words_takes_ids_only() {
    let tiny = tiny("llama-a", |_| {});
    let dir = str(tiny.path());
    for args in [&["run", dir, "-p", "x"][..], &["tokenize", dir, "x"], &["chat", dir]] {
        assert!(snug(args).failed(2).contains("has no tokenizer"), "{args:?}");
    }
    assert!(piped(&["run", dir], "x").failed(2).contains("has no tokenizer"));
    let ids = snug(&["run", dir, "--ids", "1,2,3", "-n", "4", "--temp", "0"]).ok();
    let ids: Result<Vec<u32>, _> = ids.trim_end().split(',').map(str::parse).collect();
    assert_eq!(ids.unwrap().len(), 4);
}

#[cfg(not(feature = "embedded"))]
#[test]
fn without_a_model_of_its_own_one_must_be_named() {
    let err = snug(&["run", "-p", "x"]).failed(2);
    assert!(err.contains("must be named") && err.contains("get-smollm2"), "{err}");
}

#[test]
fn logits_that_are_not_numbers_are_an_error_and_never_printed() {
    let mut model = testkit::model("llama-a").unwrap();
    let norm = model.tensors.iter_mut().find(|t| t.name == "model.norm.weight").unwrap();
    norm.offset = f32::NAN;
    let dir = tempfile::tempdir().unwrap();
    testkit::write_checkpoint(&model, dir.path()).unwrap();
    for args in [&["logits", "--json"][..], &["logits", "--all", "--json"], &["logits"], &["run", "--json", "-n", "1"]]
    {
        let args: Vec<&str> = args.iter().copied().chain([str(dir.path()), "--ids", "1,2"]).collect();
        let err = snug(&args).failed(1);
        assert!(err.contains("not numbers"), "{args:?}: {err}");
    }
}

#[test]
fn what_is_wrong_inside_a_file_is_said_with_its_name() {
    let lacking = tiny("llama-a", |c| {
        c.as_object_mut().unwrap().remove("hidden_size");
    });
    let other = tiny("llama-a", |c| c["intermediate_size"] = 96.into());
    for (dir, said) in [(&lacking, "hidden_size"), (&other, "mlp.gate_proj.weight")] {
        let err = snug(&["logits", str(dir.path()), "--ids", "1"]).failed(1);
        let name = dir.path().file_name().unwrap().to_str().unwrap();
        assert!(err.contains(said) && err.contains(name), "{err}");
    }
}
