//! What the commands print.

mod common;

use common::{command, default_model, ids, piped, snug, str, tiny};
use serde_json::Value;

const TOLERANCE: f64 = 1e-4;

fn f64s(v: &Value) -> Vec<f64> {
    v.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

#[test]
fn run_reports_an_answer_with_its_figures() {
    let m = &default_model();
    let args = ["run", m, "-p", "Name three colours.", "-n", "12", "--seed", "7", "--ignore-eos", "--json"];
    let r = snug(&args).json();
    let keys: Vec<_> = r.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(
        keys,
        [
            "text",
            "prompt_tokens",
            "tokens",
            "ids",
            "finish_reason",
            "seed",
            "prefill_tps",
            "decode_tps",
            "drafted",
            "drafts_right",
            "ttft_ms",
            "peak_rss_mib"
        ]
    );
    assert_eq!((&r["tokens"], &r["finish_reason"], &r["seed"]), (&12.into(), &"length".into(), &7.into()));
    assert_eq!(r["ids"].as_array().unwrap().len(), 12);
    for figure in ["prompt_tokens", "prefill_tps", "decode_tps", "ttft_ms", "peak_rss_mib"] {
        assert!(r[figure].as_f64().unwrap() > 0.0, "{figure}");
    }
    let again = snug(&args).json();
    assert_eq!((&again["ids"], &again["text"]), (&r["ids"], &r["text"]), "a seed fixes the answer");
    let streamed = snug(&args[..args.len() - 1]).ok();
    assert_eq!(streamed.trim_end(), r["text"].as_str().unwrap().trim_end(), "streaming prints the same text");
}

#[test]
fn without_a_seed_each_answer_has_its_own() {
    let m = &default_model();
    let args = ["run", m, "-p", "Once", "-n", "1", "--json"];
    let (a, b) = (snug(&args).json(), snug(&args).json());
    assert!(a["seed"].is_u64() && a["seed"] != b["seed"]);
}

#[test]
fn a_prompt_is_the_same_wherever_it_comes_from() {
    let m = &default_model();
    let how = ["-n", "6", "--temp", "0", "--json"];
    let text = |r: common::Ran| {
        let r = r.json();
        (r["prompt_tokens"].clone(), r["ids"].clone())
    };
    let args = |more: &[&'static str]| -> Vec<String> {
        ["run", m].iter().chain(more).chain(&how).map(|s| s.to_string()).collect()
    };
    let run = |more: &[&'static str], input: &str| {
        let args = args(more);
        text(piped(&args.iter().map(String::as_str).collect::<Vec<_>>(), input))
    };
    let given = run(&["-p", "Tell me a story."], "");
    assert_eq!(run(&["-p", "-"], "Tell me a story.\n"), given);
    assert_eq!(run(&[], "Tell me a story."), given);
    let with_system = run(&["-p", "Tell me a story.", "--system", "Be brief."], "");
    assert!(with_system.0.as_u64() > given.0.as_u64());
    let raw = run(&["-p", "Tell me a story.", "--raw"], "");
    assert!(raw.0.as_u64() < given.0.as_u64(), "the template's own tokens are left out");
    let spelled = "<|im_start|>user\nTell me a story.<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(
        piped(&["run", m, "--raw", "-n", "6", "--temp", "0", "--json", "-p", spelled], "").json()["ids"],
        given.1
    );
}

/// Drafts change how fast an answer is made, and no token of it.
#[test]
fn an_answer_is_the_same_with_drafts_and_without() {
    let of = |more: &[&str]| {
        let args = ["run", &default_model(), "-p", "Tell me a story.", "-n", "60", "--json"];
        snug(&[&args, more].concat()).json()
    };
    for how in [&["--temp", "0"][..], &["--seed", "5"]] {
        let (with, without) = (of(how), of(&[how, &["--draft", "0"]].concat()));
        assert_eq!(with["ids"], without["ids"]);
        assert_eq!((&without["drafted"], &without["drafts_right"]), (&0.into(), &0.into()));
        // The first tokens are always tried both ways; how many more depends on the machine.
        assert!(with["drafted"].as_u64().unwrap() >= 1 && with["drafts_right"].as_u64() <= with["drafted"].as_u64());
    }
    let refused = snug(&["run", &default_model(), "-p", "Hi", "--draft", "99"]);
    assert!(refused.err.contains("--draft"), "{}", refused.err);
}

#[test]
fn stop_texts_and_biases_reach_the_sampler() {
    let m = &default_model();
    let base = ["run", m, "-p", "Count.", "--temp", "0", "--json", "-n", "20", "--ignore-eos"];
    let with = |more: &[&str]| snug(&[&base[..], more].concat()).json();
    let plain = with(&[]);
    let text = plain["text"].as_str().unwrap();
    let stop: String = text.chars().skip(5).take(4).collect();
    let stopped = with(&["--stop", "never this", "--stop", &stop]);
    assert_eq!(stopped["finish_reason"], "stop");
    assert_eq!(stopped["text"].as_str().unwrap(), &text[..text.find(&stop).unwrap()]);
    let first = plain["ids"][0].as_u64().unwrap();
    assert_ne!(with(&["--logit-bias", &format!("{first}=-100")])["ids"][0], plain["ids"][0]);
    assert!(with(&["--logit-bias", "42=100"])["ids"].as_array().unwrap().iter().all(|i| *i == 42));
}

#[test]
fn logprobs_are_reported_for_every_token() {
    let m = &default_model();
    let r = snug(&["run", m, "-p", "Hi", "-n", "3", "--temp", "0", "--logprobs", "2", "--ignore-eos", "--json"]).json();
    let all = r["logprobs"].as_array().unwrap();
    assert_eq!(all.len(), 3);
    for (lp, id) in all.iter().zip(r["ids"].as_array().unwrap()) {
        assert_eq!((&lp["id"], &lp["top"][0]["id"]), (id, id), "greedy takes the likeliest");
        assert_eq!(lp["logprob"], lp["top"][0]["logprob"]);
        assert!(lp["logprob"].as_f64().unwrap() <= 0.0);
        let top = lp["top"].as_array().unwrap();
        assert!(top.len() == 2 && top[0]["logprob"].as_f64() >= top[1]["logprob"].as_f64());
        assert!(top.iter().all(|t| t["token"].is_string()));
    }
}

#[test]
fn logits_are_those_of_the_oracle() {
    let (dir, want) = (tiny("llama-a", |_| {}), testkit::expected("llama-a").unwrap());
    let row = &want.logits[want.logits.len() / 2];
    let prompt = ids(&want.ids[..=row.position]);
    for device in ["cpu", "reference"] {
        let args = ["logits", str(dir.path()), "--ids", &prompt, "--kv", "f32", "--device", device, "--json"];
        let last = f64s(&snug(&args).json()["logits"]);
        let off = last.iter().zip(&row.values).map(|(a, b)| (a - f64::from(*b)).abs()).fold(0.0, f64::max);
        assert!(last.len() == row.values.len() && off < TOLERANCE, "{device}: off by {off}");
        let all = snug(&[&args[..], &["--all"]].concat()).json();
        let rows = all["logits"].as_array().unwrap();
        assert_eq!(rows.len(), row.position + 1);
        let off = f64s(&rows[row.position]).iter().zip(&last).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(off < TOLERANCE, "{device}: the last row of all is off by {off}");
    }
    let shown = snug(&["logits", str(dir.path()), "--ids", &prompt]).ok();
    assert_eq!(shown.lines().count(), 10);
    assert!(shown.trim_start().starts_with(&format!("{} ", want.argmax[row.position])), "{shown}");
}

#[test]
fn numbers_read_back_to_the_same_f32() {
    let dir = tiny("llama-a", |_| {});
    let out = snug(&["logits", str(dir.path()), "--ids", "1,2,3", "--json"]).ok();
    let numbers = out.trim().trim_start_matches("{\"logits\":[").trim_end_matches("]}");
    for n in numbers.split(',') {
        assert_eq!(n.parse::<f32>().unwrap().to_string().parse::<f64>().unwrap(), n.parse::<f64>().unwrap(), "{n}");
    }
}

#[test]
fn instruction_sets_agree() {
    let (dir, m) = (tiny("qwen3_5_moe-a", |_| {}), "1,2,3,4,5,6,7,8");
    let best = snug(&["logits", str(dir.path()), "--ids", m, "--json"]).json();
    let plain = snug(&["logits", str(dir.path()), "--ids", m, "--json", "--isa", "scalar", "--threads", "1"]).json();
    let off = f64s(&best["logits"]).iter().zip(f64s(&plain["logits"])).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(off < TOLERANCE, "off by {off}");
}

#[test]
fn text_goes_to_ids_and_back() {
    let m = &default_model();
    for text in ["Hello, world", "  two spaces\n\ttab", "naïve 日本語 👩‍👩‍👧", "<|im_start|>user\nhi<|im_end|>"]
    {
        for specials in [&[][..], &["--no-specials"]] {
            let plain = snug(&[&["tokenize", m, text][..], specials].concat()).ok();
            let json = snug(&[&["tokenize", m, text, "--json"][..], specials].concat()).json();
            assert_eq!(json["count"], json["ids"].as_array().unwrap().len());
            assert_eq!(json["ids"].to_string(), format!("[{}]", plain.trim_end()));
            let back = snug(&["tokenize", m, "--decode", plain.trim_end()]).ok();
            assert_eq!(back, format!("{text}\n"));
        }
    }
    let marked = snug(&["tokenize", m, "<|im_end|>"]).ok();
    assert_eq!(marked, "2\n");
    assert_ne!(snug(&["tokenize", m, "<|im_end|>", "--no-specials"]).ok(), marked);
    assert_eq!(snug(&["tokenize", m, "--decode", "2", "--no-specials"]).ok(), "\n");
    assert_eq!(piped(&["tokenize", m, "-"], "Hello, world\n").ok(), snug(&["tokenize", m, "Hello, world"]).ok());
}

#[test]
fn inspect_tells_what_a_file_holds() {
    let dir = tiny("qwen3_5_moe-a", |_| {});
    let r = snug(&["inspect", str(dir.path()), "--json", "--tensors"]).json();
    let described = testkit::model("qwen3_5_moe-a").unwrap();
    assert_eq!(r["tensor_count"], described.tensors.len());
    for t in r["tensors"].as_array().unwrap() {
        let want = described.tensor(t["name"].as_str().unwrap()).unwrap();
        assert_eq!((&t["dtype"], t["bytes"].as_u64().unwrap()), (&"F32".into(), 4 * want.numel() as u64));
        let shape: Vec<usize> = t["shape"].as_array().unwrap().iter().map(|d| d.as_u64().unwrap() as usize).collect();
        assert_eq!(shape, want.shape);
    }
    assert_eq!((&r["supported"], &r["container"]), (&true.into(), &"safetensors".into()));
    let weights = |role: &str| r["weights"][role].as_u64().unwrap();
    assert!(weights("resident") > 0 && weights("cached") > 0 && weights("leased") > 0);
    let parts =
        r["weights"]["components"].as_array().unwrap().iter().map(|c| c["bytes"].as_u64().unwrap()).sum::<u64>();
    assert_eq!(parts, weights("resident") + weights("cached") + weights("leased"));
    assert_eq!(r["metadata"]["config"]["model_type"], described.config["model_type"]);

    let shown = snug(&["inspect", &default_model()]).ok();
    for said in ["qwen35moe", "64 experts (4 a token)", "resident", "tokenizer.ggml.tokens = [", "49152 in all]"] {
        assert!(shown.contains(said), "{said} is missing in {shown}");
    }
    assert!(!shown.contains("\ntensors\n") && shown.lines().all(|l| l.len() < 400), "long values are cut");
    assert!(snug(&["inspect", &default_model(), "--tensors"]).ok().contains("token_embd.weight"));
}

#[test]
fn inspect_lists_a_model_that_cannot_be_run_with_the_reason() {
    let dir = tiny("llama-a", |c| c["model_type"] = "gpt9".into());
    let r = snug(&["inspect", str(dir.path()), "--json"]).json();
    assert_eq!((&r["supported"], &r["architecture"]), (&false.into(), &"gpt9".into()));
    assert!(r["reason"].as_str().unwrap().contains("supported are llama"));
    assert!(r["tensors"].is_null() && r["tensor_count"].as_u64().unwrap() > 0);
    let shown = snug(&["inspect", str(dir.path()), "--tensors"]).ok();
    assert!(shown.contains("cannot run") && shown.contains("model.embed_tokens.weight"));
}

#[test]
fn a_store_gives_models_names() {
    let home = tempfile::tempdir().unwrap();
    let models = home.path().join("models");
    std::fs::create_dir(&models).unwrap();
    std::fs::copy(default_model(), models.join("tiny.gguf")).unwrap();
    testkit::write_checkpoint(&testkit::model("llama-a").unwrap(), &{
        let d = models.join("kit");
        std::fs::create_dir(&d).unwrap();
        d
    })
    .unwrap();
    std::fs::write(models.join("broken.gguf"), "GGUF").unwrap();
    let run = |args: &[&str]| common::Ran::from(command(args).env("SNUG_HOME", home.path()).output().unwrap());
    let list = run(&["list", "--json"]).json();
    let names: Vec<_> = list.as_array().unwrap().iter().map(|e| e["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["broken", "kit", "tiny"]);
    assert!(list[0]["bytes"].is_null() && list[0]["error"].is_string() && list[1]["bytes"].as_u64().unwrap() > 0);
    assert_eq!(run(&["list"]).ok().lines().count(), 3);
    assert_eq!(run(&["inspect", "kit", "--json"]).json()["architecture"], "llama");
    assert_eq!(run(&["tokenize", "tiny", "<|im_end|>"]).ok(), "2\n");
    let empty = snug(&["list"]);
    assert!(empty.err.contains("is empty"));
    assert_eq!(empty.ok(), "");
}

#[test]
fn a_quantised_copy_answers() {
    let dir = tempfile::tempdir().unwrap();
    let (kit, out) = (tiny("qwen3_5_moe-a", |_| {}), dir.path().join("copy.gguf"));
    let args = ["quantize", str(kit.path()), str(&out), "--type", "q8_0", "--tensor-type", "token_embd=bf16"];
    let done = snug(&args);
    assert!(done.err.contains("copy.gguf"), "{done:?}");
    assert_eq!(done.ok(), "");
    let types = snug(&["inspect", str(&out), "--json", "--tensors"]).json();
    let embed = types["tensors"].as_array().unwrap().iter().find(|t| t["name"] == "token_embd.weight").unwrap().clone();
    assert_eq!(embed["dtype"], "BF16");
    assert!(types["types"]["Q8_0"]["tensors"].as_u64().unwrap() > 0);
    assert_eq!(f64s(&snug(&["logits", str(&out), "--ids", "1,2,3", "--json"]).json()["logits"]).len(), 256);
    assert!(snug(&args).failed(2).contains("--force"));
    snug(&[&args[..], &["--force"]].concat()).ok();
}

#[cfg(feature = "embedded")]
#[test]
fn without_a_name_the_model_in_the_program_answers() {
    assert_eq!(snug(&["inspect", "--json"]).json()["name"], "snug-tiny-moe");
    let (own, file) = (&["tokenize", "hello"][..], ["tokenize", &default_model(), "hello"]);
    assert_eq!(snug(own).ok(), snug(&file).ok());
    let answer =
        |args: &[&str]| snug(&[args, &["-p", "Hi", "-n", "4", "--temp", "0", "--json"]].concat()).json()["ids"].clone();
    assert_eq!(answer(&["run"]), answer(&["run", &default_model()]));
}
