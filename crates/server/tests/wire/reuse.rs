//! Why a prompt was read again: at which token and message what was known ended.

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use server::backend::{Backend, Done, Event, Facts, Job, Known, Load, Miss, Reason, Refused, Sampling, Ticket, Token};

use crate::rig::{Reply, Rig, Setup, user, with};

/// Knows the prompts it was given, and says an id to each.
struct Knowing {
    facts: Facts,
    prompts: Mutex<Vec<Arc<[u32]>>>,
}

impl Knowing {
    fn new() -> Self {
        let (name, architecture, sampling) = ("knowing".into(), "none".into(), Sampling::default());
        let facts = Facts {
            name,
            aliases: vec![],
            architecture,
            context: 4096,
            trained_context: 4096,
            vocab: 9999,
            parallel: 1,
            sampling,
        };
        Self { facts, prompts: Mutex::default() }
    }
}

impl Backend for Knowing {
    fn facts(&self) -> &Facts {
        &self.facts
    }
    fn submit(&self, job: Job) -> Result<Ticket, Refused> {
        let mut prompts = self.prompts.lock().unwrap();
        let same = |p: &Arc<[u32]>| p.iter().zip(job.prompt.iter()).take_while(|(a, b)| a == b).count();
        let best = prompts.iter().max_by_key(|p| same(p));
        let n = best.map_or(0, same) as u32;
        let miss = match best {
            _ if job.prompt_logprobs => Miss::Off,
            None => Miss::Unknown,
            Some(_) if n == job.prompt.len() as u32 => Miss::Nothing,
            Some(p) if n == p.len() as u32 => Miss::Grows(n),
            Some(_) => Miss::Differs(n),
        };
        let (ticket, to) = Ticket::new();
        let cached = n.min(job.prompt.len() as u32 - 1);
        to.tell(Event::Started(Known { cached, miss }));
        to.tell(Event::Token(Token { id: 65, ..Token::default() }));
        let (prefill, decode) = (Duration::ZERO, Duration::ZERO);
        to.tell(Event::Done(Done { reason: Reason::End, cached, prefill, decode, passes: Duration::ZERO }));
        prompts.push(job.prompt);
        Ok(ticket)
    }
    fn load(&self) -> Load {
        Load::default()
    }
    fn plan(&self) -> Value {
        Value::Null
    }
}

fn rig() -> Rig {
    Rig::new(Setup { backend: Some(Arc::new(Knowing::new())), ..Setup::default() })
}

/// What `/v1/requests` says of the request before.
fn last(rig: &Rig) -> Value {
    let all = rig.get("/v1/requests").ok();
    assert_eq!(all["requests"], json!([]));
    all["ended"].as_array().unwrap().last().unwrap().clone()
}

fn assistant(text: &str) -> Value {
    json!({"role": "assistant", "content": text})
}

#[test]
fn the_first_token_and_the_message_that_differ_are_named() {
    let rig = rig();
    let mut all = vec![json!({"role": "system", "content": "be brief"}), user("hi")];
    let ask = |all: &[Value]| {
        let r = rig.chat(json!({"messages": all})).ok();
        let (l, u) = (last(&rig), &r["usage"]);
        assert_eq!(l["cached_tokens"], u["prompt_tokens_details"]["cached_tokens"]);
        assert_eq!(
            (&l["prompt_tokens"], &l["phase"], &l["status"]),
            (&u["prompt_tokens"], &json!("ended"), &json!("stop"))
        );
        l
    };
    assert_eq!(ask(&all)["miss"], json!({"why": "unknown", "token": 0, "message": "messages[0]"}));
    assert_eq!(ask(&all)["miss"], json!({"why": "all_known", "token": null, "message": null}));
    let first = last(&rig)["prompt_tokens"].as_u64().unwrap();
    all.extend([assistant("hi to you"), user("hi again")]);
    // The prompt ended behind the opening of the answer, which is the beginning of the next message.
    assert_eq!(ask(&all)["miss"], json!({"why": "grows", "token": first, "message": "messages[2]"}));
    all.extend([
        json!({"role": "assistant", "content": null, "reasoning_content": "hm", "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{\"at\": \"hi\"}"}}]}),
        json!({"role": "tool", "tool_call_id": "c", "content": "nothing there"}),
    ]);
    ask(&all);
    all.push(assistant("hi to you"));
    all.push(user("hi"));
    ask(&all);
    for (edited, with) in [(5, "something there"), (3, "bye"), (1, "hi!"), (0, "be brie!"), (6, "hi to me")] {
        let mut other = all.clone();
        other[edited]["content"] = with.into();
        let l = ask(&other);
        assert_eq!(
            (&l["miss"]["why"], &l["miss"]["message"]),
            (&json!("differs"), &json!(format!("messages[{edited}]")))
        );
        assert_eq!(l["miss"]["token"], l["cached_tokens"]);
    }
    // A call's name belongs to its message, too, whatever it says beside it.
    let mut other = all.clone();
    other[4]["tool_calls"][0]["function"]["name"] = "watch".into();
    assert_eq!(ask(&other)["miss"]["message"], "messages[4]");
    // A prompt that is no conversation has no messages.
    rig.post("/v1/completions", &json!({"prompt": "hi"})).ok();
    assert_eq!((&last(&rig)["miss"]["why"], &last(&rig)["miss"]["message"]), (&json!("differs"), &Value::Null));
    rig.post("/v1/completions", &json!({"prompt": "hi", "echo": true, "logprobs": 1})).ok();
    assert_eq!(last(&rig)["miss"], json!({"why": "off", "token": null, "message": null}));
}

#[test]
fn messages_have_the_names_their_dialect_gives_them() {
    let rig = rig();
    let anthropic = |system: &str, text: &str| {
        rig.messages(json!({"system": system, "messages": [user("hi"), assistant("oh"), user(text)]})).ok();
        last(&rig)["miss"]["message"].clone()
    };
    anthropic("be brief", "so");
    assert_eq!(anthropic("be brief", "what"), "messages[2]");
    assert_eq!(anthropic("be long", "so"), "system");
    let response = |text: &str| {
        rig.responses(json!({"input": [user("hi"), assistant("oh"), user(text)]})).ok();
        last(&rig)["miss"]["message"].clone()
    };
    response("so");
    assert_eq!(response("what"), "input[2]");
    // What the client begins of the answer is its last message.
    let begun = |text: &str| {
        rig.chat(json!({"messages": [user("begin"), assistant(text)]})).ok();
        last(&rig)["miss"]["message"].clone()
    };
    begun("Once upon");
    assert_eq!(begun("Once more"), "messages[1]");
}

#[test]
fn only_the_last_requests_are_kept_and_none_that_was_refused() {
    let rig = rig();
    for i in 0..20 {
        rig.chat(json!({"messages": [user(&format!("number {i}"))]})).ok();
        assert_eq!(rig.chat(json!({"messages": 5})).status, 400);
    }
    let all = rig.get("/v1/requests").ok();
    assert_eq!(all["ended"].as_array().unwrap().len(), 16);
    assert!(all["ended"].as_array().unwrap().iter().all(|e| e["miss"]["why"].is_string()), "{all}");
}

/// The log of one process cannot be read beside other tests' lines, so it is asked for by its request's own id.
#[test]
fn the_log_says_so_too() {
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);
    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let lines = Lines::default();
    let to = lines.clone();
    tracing_subscriber::fmt().json().with_writer(move || to.clone()).init();
    let rig = rig();
    let ask = |text: &str| -> Reply {
        rig.chat(with(json!({"messages": [user("hi"), assistant("oh"), user(text)]}), json!({})))
    };
    ask("so").ok();
    let id = ask("what").header("x-request-id").unwrap().to_owned();
    let said = |what: &str, id: &str| {
        let all = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        let all = all.lines().filter_map(|l| serde_json::from_str::<Value>(l).ok());
        all.map(|l| l["fields"].clone()).find(|f| f["message"] == what && f["request"] == id)
    };
    let wait_for = |what: &str, id: &str| {
        let begun = std::time::Instant::now();
        loop {
            if let Some(f) = said(what, id) {
                break f;
            }
            assert!(begun.elapsed() < Duration::from_secs(5), "no such line");
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    let f = wait_for("generation ended", &id);
    assert_eq!((&f["miss"], &f["miss_message"]), (&json!("differs"), &json!("messages[2]")));
    assert_eq!(f["miss_token"], f["cached_tokens"]);
    // What went wrong is there for whoever runs the server, not for the client alone.
    let script = json!({"answers": [{"steps": [{"fail": "a row cannot be read"}]}]});
    let rig = Rig::new(Setup { script, ..Setup::default() });
    let id = rig.chat(json!({"messages": [user("hi")]})).header("x-request-id").unwrap().to_owned();
    assert_eq!(wait_for("generation failed", &id)["error"], "a row cannot be read");
}
