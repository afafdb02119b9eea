//! `snug serve` as a process: the real engine behind HTTP, and a script in its place.

mod common;

use common::default_model;
use common::served::Served;
use serde_json::{Value, json};

fn hello(more: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": 12, "seed": 7});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn content(v: &Value) -> &str {
    v["choices"][0]["message"]["content"].as_str().unwrap()
}

/// A server holds more than a process that answers once, so what is just enough for that is refused, before it loads.
#[test]
fn a_budget_has_room_for_the_server_itself() {
    let model = default_model();
    // With a predictor there would be something that a server could leave out.
    let how = ["--context", "512", "--draft", "0"];
    let plan = common::snug(&[&["plan", &model, "--json"], &how[..]].concat()).json();
    let total = plan["total_bytes"].as_u64().unwrap();
    let memory = (total + (4 << 20)).to_string();
    let ran = common::snug(&[&["serve", &model, "--port", "0", "--memory", &memory], &how[..]].concat());
    assert!(ran.code == Some(2) && ran.err.contains("what would help"), "{ran:?}");
    assert!(!ran.err.contains("listening"), "a refused model is not served for a moment: {ran:?}");
    let memory = (total + (64 << 20)).to_string();
    let served = Served::start(&[&[model.as_str(), "--memory", &memory], &how[..]].concat());
    assert_eq!(served.terminate(), Some(0));
}

#[test]
fn the_engine_answers_and_a_seed_repeats_its_answer_streamed_or_not() {
    let s = Served::start(&[&default_model()]);
    let whole = s.json("/v1/chat/completions", &hello(json!({})));
    assert_eq!(whole["usage"]["completion_tokens"], 12);
    assert!(!content(&whole).is_empty());
    let stream = s.post("/v1/chat/completions", &hello(json!({"stream": true})));
    let events = stream.lines().filter_map(|l| l.strip_prefix("data: ")).filter(|d| *d != "[DONE]");
    let deltas = events.map(|d| {
        serde_json::from_str::<Value>(d).unwrap()["choices"][0]["delta"]["content"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    });
    assert_eq!(deltas.collect::<String>(), content(&whole));
    let m = s.json("/v1/messages", &hello(json!({})));
    assert_eq!(m["content"][0]["text"], content(&whole), "the same prompt, seed and answer on another API");
    assert_eq!(s.terminate(), Some(0));
}

#[test]
fn the_engine_keeps_to_a_schema_and_to_tools() {
    let s = Served::start(&[&default_model()]);
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}, "ok": {"type": "boolean"}}, "required": ["n", "ok"], "additionalProperties": false});
    let format = json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}, "max_tokens": 600});
    let r = s.json("/v1/chat/completions", &hello(format));
    let v: Value = serde_json::from_str(content(&r)).unwrap_or_else(|e| panic!("{e}: {r}"));
    assert!(v["n"].as_u64().is_some_and(|n| n < 100) && v["ok"].is_boolean(), "{v}");
    let r = s.json("/v1/chat/completions", &hello(json!({"regex": "(yes|no), [a-z]{3}"})));
    let rest = content(&r).strip_prefix("yes, ").or(content(&r).strip_prefix("no, "));
    assert!(rest.is_some_and(|t| t.len() == 3 && t.bytes().all(|b| b.is_ascii_lowercase())), "{r}");
}

#[test]
fn the_engine_reports_logprobs_of_prompt_and_answer() {
    let s = Served::start(&[&default_model()]);
    let body =
        json!({"prompt": "Once upon a time there was", "echo": true, "logprobs": 3, "max_tokens": 2, "temperature": 0});
    let all = s.json("/v1/completions", &body);
    let l = &all["choices"][0]["logprobs"];
    let (tokens, probs) = (l["tokens"].as_array().unwrap(), l["token_logprobs"].as_array().unwrap());
    assert_eq!(tokens.len(), all["usage"]["prompt_tokens"].as_u64().unwrap() as usize + 2);
    assert!(probs[0].is_null() && probs[1..].iter().all(|p| p.as_f64().is_some_and(|p| p <= 0.0)), "{probs:?}");
    // Greedy: the chosen token is the likeliest one.
    let top = l["top_logprobs"].as_array().unwrap().last().unwrap().as_object().unwrap();
    let best = top.values().map(|v| v.as_f64().unwrap()).fold(f64::MIN, f64::max);
    assert_eq!(probs.last().unwrap().as_f64(), Some(best));
    let none = s.json("/v1/completions", &json!({"prompt": "Once", "max_tokens": 0}));
    assert_eq!((&none["choices"][0]["text"], &none["choices"][0]["finish_reason"]), (&json!(""), &json!("length")));
}

#[test]
fn a_script_takes_the_models_place() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("s.json");
    std::fs::write(&file, json!({"answers": [{"steps": ["Said by the script."]}]}).to_string()).unwrap();
    let s = Served::start(&[&default_model(), "--backend", &format!("script:{}", file.display()), "--name", "acted"]);
    let r = s.json("/v1/chat/completions", &hello(json!({"max_tokens": 100})));
    assert_eq!((content(&r), &r["model"]), ("Said by the script.", &json!("acted")));
}

#[test]
fn what_cannot_be_served_is_one_line() {
    let run = |args: &[&str]| common::snug(&[&["serve", "--port", "0"], args].concat()).failed(2);
    assert!(run(&["--host", "0.0.0.0"]).contains("--api-key"));
    assert!(run(&["--host", "somewhere"]).contains("--host"));
    assert!(run(&["/nowhere/model.gguf"]).contains("/nowhere/model.gguf"));
    assert!(run(&["--backend", "other"]).contains("script:FILE"));
}

/// The turns of a conversation, each after the answer to the one before; what was not read for each, and what was.
fn conversation(s: &Served, turns: u32) -> Vec<(String, u64, u64)> {
    let mut messages = vec![json!({"role": "system", "content": "You tell stories for children. ".repeat(20)})];
    let mut told = Vec::new();
    for turn in 0..turns {
        messages.push(json!({"role": "user", "content": format!("Tell me story number {turn} about a lighthouse, a cat and the sea.")}));
        let body = json!({"messages": messages, "max_tokens": 24, "temperature": 0});
        let r = s.json("/v1/chat/completions", &body);
        let u = &r["usage"];
        let cached = u["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
        told.push((content(&r).to_owned(), cached, u["prompt_tokens"].as_u64().unwrap()));
        messages.push(json!({"role": "assistant", "content": content(&r)}));
    }
    told
}

#[test]
fn a_conversation_is_not_read_again_and_in_exact_mode_says_the_same() {
    let plain = conversation(&Served::start(&[&default_model(), "--reuse", "off"]), 4);
    assert!(plain.iter().all(|t| t.1 == 0));
    let exact = conversation(&Served::start(&[&default_model(), "--reuse", "exact"]), 4);
    for (a, b) in plain.iter().zip(&exact) {
        assert_eq!(a.0, b.0);
    }
    let usual = conversation(&Served::start(&[&default_model()]), 4);
    for told in [&exact, &usual] {
        // All but the last answer and its question, what is new, and the distance to the grid.
        assert!(told[1..].iter().all(|t| t.1 + 64 + 2 * 24 + 2 * 40 >= t.2), "{told:?}");
    }
    let anthropic = Served::start(&[&default_model()]);
    let body = json!({"messages": [{"role": "user", "content": "Tell me a story. ".repeat(30)}], "max_tokens": 4});
    anthropic.json("/v1/messages", &body);
    let again = anthropic.json("/v1/messages", &body);
    assert!(again["usage"]["cache_read_input_tokens"].as_u64().is_some_and(|n| n > 64), "{again}");
}

#[test]
fn requests_beside_each_other_get_the_answers_that_they_get_alone() {
    let ask = |n: u32| {
        json!({"messages": [{"role": "user", "content": format!("Tell me story {n}. {}", "Once more. ".repeat(n as usize * 20))}],
               "max_tokens": 30, "temperature": 0.7, "seed": n})
    };
    let alone = Served::start(&[&default_model(), "--reuse", "off"]);
    let want: Vec<String> = (1..5).map(|n| content(&alone.json("/v1/chat/completions", &ask(n))).to_owned()).collect();
    let s = Served::start(&[&default_model(), "--reuse", "off", "--parallel", "3", "--segment", "256"]);
    let got: Vec<String> = std::thread::scope(|scope| {
        let s = &s;
        let all: Vec<_> =
            (1..5).map(|n| scope.spawn(move || content(&s.json("/v1/chat/completions", &ask(n))).to_owned())).collect();
        all.into_iter().map(|t| t.join().unwrap()).collect()
    });
    assert_eq!(want, got);
}

/// Requests of a conversation whose answers are a part of it.
struct Talk(Vec<Value>);

impl Talk {
    fn new() -> Self {
        Talk(vec![json!({"role": "system", "content": "You tell stories for children. ".repeat(20)})])
    }
    /// The next answer, what was known of its prompt, and its prompt's length.
    fn next(&mut self, s: &Served) -> (String, u64, u64) {
        let n = self.0.len();
        self.0.push(
            json!({"role": "user", "content": format!("Tell me story {n} about a lighthouse, a cat and the sea.")}),
        );
        let r = s.json("/v1/chat/completions", &json!({"messages": self.0, "max_tokens": 80, "temperature": 0}));
        self.0.push(json!({"role": "assistant", "content": content(&r)}));
        let u = &r["usage"];
        let cached = u["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
        (content(&r).to_owned(), cached, u["prompt_tokens"].as_u64().unwrap())
    }
}

/// Files and their bytes, once nothing is written any more.
/// As many as are answered at a time have a place, also where nobody else may wait; a place is free when its answer has ended.
#[test]
fn requests_that_come_together_have_the_places_that_were_promised() {
    let s = Served::start(&[&default_model(), "--parallel", "4", "--queue", "0"]);
    for _ in 0..20 {
        std::thread::scope(|t| {
            let all: Vec<_> = (0..4).map(|_| t.spawn(|| s.json("/v1/chat/completions", &hello(json!({}))))).collect();
            all.into_iter().for_each(|a| assert!(!content(&a.join().unwrap()).is_empty()));
        });
    }
}

fn settled(dir: &std::path::Path) -> Vec<(std::path::PathBuf, u64)> {
    let list = || {
        let dirs = std::fs::read_dir(dir).into_iter().flatten().flatten();
        let files = dirs.flat_map(|d| std::fs::read_dir(d.path()).into_iter().flatten().flatten());
        let mut all: Vec<_> = files.filter_map(|f| Some((f.path(), f.metadata().ok()?.len()))).collect();
        all.sort();
        all
    };
    let (mut last, mut since) = (list(), std::time::Instant::now());
    while since.elapsed().as_millis() < 300 || last.iter().any(|f| f.0.extension().is_some_and(|e| e == "tmp")) {
        std::thread::sleep(std::time::Duration::from_millis(10));
        let now = list();
        if now != last {
            (last, since) = (now, std::time::Instant::now());
        }
    }
    last
}

#[test]
fn a_server_that_was_killed_goes_on_from_its_directory() {
    let dir = tempfile::tempdir().unwrap();
    for reuse in ["usual", "exact"] {
        let cache = dir.path().join(reuse);
        let args = [&default_model(), "--reuse", reuse, "--cache-dir", cache.to_str().unwrap()];
        let warm = Served::start(&args[..3]);
        let (mut talk, mut same) = (Talk::new(), Talk::new());
        let s = Served::start(&args);
        for _ in 0..2 {
            assert_eq!(talk.next(&s), same.next(&warm));
        }
        assert!(settled(&cache).len() >= 3);
        // Without a word of warning.
        drop(s);
        let s = Served::start(&args);
        let (got, want) = (talk.next(&s), same.next(&warm));
        assert_eq!(got, want, "{reuse}: the first turn is restored as far as a server that lived on has it");
        assert!(got.1 > 150, "{got:?}");
        let after = settled(&cache);
        drop(s);
        if reuse == "usual" {
            continue;
        }
        // Half of every file: all of them are passed over, and what is asked is answered.
        for (f, n) in &after {
            std::fs::OpenOptions::new().write(true).open(f).unwrap().set_len(n / 2).unwrap();
        }
        let s = Served::start(&args);
        let (got, want) = (talk.next(&s), same.next(&warm));
        assert_eq!((got.1, got.0), (0, want.0));
    }
}

#[test]
fn two_servers_may_share_a_directory() {
    let dir = tempfile::tempdir().unwrap();
    let args = [&default_model(), "--reuse", "exact", "--cache-dir", dir.path().to_str().unwrap()];
    let plain = Served::start(&[args[0], "--reuse", "off"]);
    let mut talk = Talk::new();
    let want: Vec<String> = (0..3).map(|_| talk.next(&plain).0).collect();
    let (a, b) = (Served::start(&args), Served::start(&args));
    let drive = |s: &Served| {
        let mut talk = Talk::new();
        (0..3).map(|_| talk.next(s).0).collect::<Vec<_>>()
    };
    std::thread::scope(|scope| {
        let (x, y) = (scope.spawn(|| drive(&a)), scope.spawn(|| drive(&b)));
        assert_eq!((x.join().unwrap(), y.join().unwrap()), (want.clone(), want.clone()));
    });
    settled(dir.path());
    assert_eq!((a.terminate(), b.terminate()), (Some(0), Some(0)));
    // What one of them wrote serves a third.
    let c = Served::start(&args);
    let mut again = Talk(talk.0[..talk.0.len() - 2].to_vec());
    let got = again.next(&c);
    assert_eq!(got.0, want[2]);
    assert!(got.1 > 150, "{got:?}");
}

#[test]
fn a_directory_that_cannot_be_used_is_named() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    let run = |args: &[&str]| common::snug(&[&["serve", "--port", "0"], args].concat());
    let said = run(&[&default_model(), "--cache-dir", path]);
    assert!(said.code != Some(0) && said.err.contains(path), "{said:?}");
    assert!(run(&["--cache-dir", path, "--reuse", "off"]).failed(2).contains("--cache-dir"));
}
