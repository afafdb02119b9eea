//! Thirty turns of an agent, with tools, thinking that is dropped, a tool result that is rewritten, two branches, and a
//! title asked for after each turn. What of each prompt was read before is written down by hand, as the number of messages
//! that are the same; nearly all of it is reused, and in exact mode no answer changes.

use device::CpuOptions;
use engine::batch::{Batch, Ended, Job, Keeping, Park, Sharing, Sink, Told};
use engine::open::On;
use engine::prefix::{Role, marks, owner};
use engine::{Ask, Context, Model, OpenOptions, Sampling};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use text::{ChatTemplate, Prompt, Tokenizer};

/// ChatML as Qwen writes it: tools in the system message, results of tools as a user's words, and thinking only behind
/// the last thing that the user said.
const TEMPLATE: &str = "{%- set ns = namespace(last=-1) -%}\
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor -%}\
{%- for m in messages -%}\
{%- if m.role == 'system' -%}{{ '<|im_start|>system\\n' + m.content }}{% for t in tools or [] %}{{ '\\n' + t | tojson }}{% endfor %}{{ '<|im_end|>\\n' }}\
{%- elif m.role == 'tool' -%}{{ '<|im_start|>user\\n<tool_response>' + m.content + '</tool_response><|im_end|>\\n' }}\
{%- elif m.role == 'user' -%}{{ '<|im_start|>user\\n' + m.content + '<|im_end|>\\n' }}\
{%- else -%}{{ '<|im_start|>assistant\\n' }}\
{%- if loop.index0 > ns.last and m.reasoning_content %}{{ '<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' }}{% endif -%}\
{{ m.content }}{% for c in m.tool_calls or [] %}{{ '<tool_call>' + c.function | tojson + '</tool_call>' }}{% endfor %}{{ '<|im_end|>\\n' }}\
{%- endif -%}{%- endfor -%}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif -%}";

/// One request, and how many of its first messages some request before it had, rendered the same.
struct Turn {
    messages: Vec<Value>,
    same: usize,
    role: Role,
}

fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

fn thinks(n: usize, content: &str, call: Option<&str>) -> Value {
    let thought =
        format!("Step {n}: the lamp needs oil and the log says little; I look where it is kept and think on.");
    let mut m = json!({"role": "assistant", "content": content, "reasoning_content": thought});
    if let Some(name) = call {
        m["tool_calls"] = json!([{"id": format!("c{n}"), "type": "function",
            "function": {"name": name, "arguments": {"at": format!("shelf {n}")}}}]);
    }
    m
}

fn result(n: usize, text: &str) -> Value {
    json!({"role": "tool", "tool_call_id": format!("c{n}"), "content": text})
}

fn tools() -> Vec<Value> {
    let tool = |name: &str, what: &str| {
        json!({"type": "function", "function": {"name": name, "description": what,
        "parameters": {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]}}})
    };
    vec![tool("look", "Says what lies somewhere."), tool("read", "Reads what is written in a book.")]
}

/// The main conversation goes in rounds of three requests: a question; the result of a first call; that of a second.
/// Round `r` (from 0) has its question at message `1 + 6 r`.
fn transcript() -> Vec<Turn> {
    let system = "You keep a lighthouse and help those who ask. ".repeat(12);
    let mut all = vec![json!({"role": "system", "content": system})];
    let mut turns: Vec<Turn> = Vec::new();
    let main = |all: &[Value], same: usize| Turn { messages: all.to_vec(), same, role: Role::Main };
    for r in 0..10 {
        let first = 1 + 6 * r;
        if r == 5 {
            // The client rewrites a result of the third round: message 15.
            all[15] = result(20, "The book was lost at sea.");
        }
        all.push(user(&format!("Question {r}: where is the oil, and who took it?")));
        // Behind the last question thinking was shown, and now it is dropped: the first answer to that one differs.
        turns.push(main(
            &all,
            match r {
                0 => 0,
                5 => 15,
                _ => first - 5,
            },
        ));
        all.push(thinks(10 * r, "I look.", Some("look")));
        all.push(result(10 * r, "Oil and a rope."));
        turns.push(main(&all, first + 1));
        all.push(thinks(10 * r + 1, "", Some("read")));
        all.push(result(10 * r + 1, "The keeper took it on Sunday."));
        turns.push(main(&all, first + 3));
        all.push(thinks(10 * r + 2, "It is gone. The keeper took it.", None));
        if r == 7 {
            // Two others begin where the last question was asked, and go on in turn. They drop the thinking, too.
            let mut branches = ["Count the stairs.", "Paint the door."].map(|what| {
                let mut b = all[..first].to_vec();
                b.push(user(what));
                turns.push(main(&b, first));
                b
            });
            for b in &mut branches {
                b.push(json!({"role": "assistant", "content": "It is done."}));
                b.push(user("And now?"));
                turns.push(main(b, first + 1));
            }
        }
    }
    // After each turn somebody wants a title. Nobody counts what is reused for those.
    let titled = turns.into_iter().flat_map(|t| {
        let last = t.messages.iter().rev().find(|m| m["role"] == "user").unwrap()["content"].clone();
        let messages =
            vec![json!({"role": "system", "content": "Give it a title."}), json!({"role": "user", "content": last})];
        [t, Turn { messages, same: 0, role: Role::Side }]
    });
    titled.collect()
}

/// What a request was told.
#[derive(Clone, Default)]
struct Heard {
    answer: Vec<u32>,
    reused: u32,
    ended: Option<Ended>,
}

#[derive(Clone, Default)]
struct Ear(Arc<Mutex<Heard>>);

impl Sink for Ear {
    fn tell(&self, what: Told) {
        let mut h = self.0.lock().unwrap();
        match what {
            Told::Started { cached, .. } => h.reused = cached,
            Told::Token(c) => h.answer.push(c.id),
            Told::Done(e) => h.ended = Some(e),
            Told::Failed(e) => panic!("{e}"),
            _ => {}
        }
    }
    fn gone(&self) -> bool {
        false
    }
}

struct Rig {
    batch: Batch,
    tokenizer: Arc<Tokenizer>,
    template: ChatTemplate,
    asked: Vec<Vec<u32>>,
}

/// What came of a request: its answer, the prompt's ids, those that were known by hand, those that were reused.
#[derive(Debug)]
struct Came {
    answer: Vec<u32>,
    prompt: u32,
    known: u32,
    reused: u32,
    role: Role,
}

impl Rig {
    fn new(path: PathBuf, ask: Ask, keeping: Keeping) -> Self {
        let how = OpenOptions { ask, on: On::Cpu(CpuOptions::default()), ..OpenOptions::default() };
        let m = Model::open(path, &how, &mut |_| {}).unwrap();
        let batch = Batch::new(m.exec, Sharing { places: 4, patience: 2.0, keeping });
        Rig {
            batch,
            tokenizer: Arc::new(m.tokenizer.unwrap()),
            template: ChatTemplate::new(TEMPLATE).unwrap(),
            asked: Vec::new(),
        }
    }

    fn ids(&self, messages: &[Value], of: Role) -> Vec<u32> {
        let (tools, messages) = (tools(), &text::History::new(messages).unwrap().messages);
        let tools = (of == Role::Main).then_some(tools.as_slice());
        let prompt = Prompt { messages, tools, add_generation_prompt: true, ..Prompt::default() };
        let rendered = self.template.render(&prompt, &self.tokenizer).unwrap();
        self.tokenizer.encode_prompt(&rendered).unwrap()
    }

    /// Asks for the next of the transcript's requests.
    fn ask(&mut self, turn: &Turn, n: u32) -> Came {
        let prompt = self.ids(&turn.messages, turn.role);
        let known = self.known(&prompt, turn.same);
        let has = |p: &Vec<u32>| p.starts_with(&prompt[..known as usize]);
        assert!(known == 0 || self.asked.iter().any(has), "{} messages of a turn were not there before", turn.same);
        self.asked.push(prompt);
        self.ask_any(turn, n)
    }

    /// Where a prompt's message begins.
    fn known(&self, prompt: &[u32], same: usize) -> u32 {
        // Every message begins with one and the same id.
        let begin = self.tokenizer.id_of("<|im_start|>").unwrap();
        let mut begins = prompt.iter().enumerate().filter(|(_, id)| **id == begin).map(|(at, _)| at as u32);
        begins.nth(same).unwrap()
    }

    fn ask_any(&mut self, turn: &Turn, n: u32) -> Came {
        let prompt = self.ids(&turn.messages, turn.role);
        let known = self.known(&prompt, turn.same);
        let t = Arc::clone(&self.tokenizer);
        let job = Job {
            marks: marks(&prompt, |id| t.is_special(id)),
            from: (turn.role, owner(&prompt)),
            max_tokens: Some(n),
            ..Job::new(prompt.clone(), Sampling::greedy())
        };
        let ear = Ear::default();
        self.batch.submit(job, Box::new(ear.clone())).unwrap();
        while self.batch.turn() {}
        let Heard { answer, reused, ended } = ear.0.lock().unwrap().clone();
        assert!(ended.is_some());
        Came { answer, prompt: prompt.len() as u32, known, reused, role: turn.role }
    }

    fn all(&mut self, n: u32) -> Vec<Came> {
        transcript().iter().map(|t| self.ask(t, n)).collect()
    }
}

/// Share of the positions known by hand that were reused; what was reused beyond them does not count.
fn share(came: &[Came]) -> f64 {
    let main = || came.iter().filter(|c| c.role == Role::Main);
    let known: u32 = main().map(|c| c.known).sum();
    f64::from(main().map(|c| c.reused.min(c.known)).sum::<u32>()) / f64::from(known)
}

fn figures(came: &[Came]) -> Vec<(u32, u32, u32)> {
    came.iter().filter(|c| c.role == Role::Main).map(|c| (c.prompt, c.known, c.reused)).collect()
}

fn keeping(snapshots: u64, exact: bool) -> Keeping {
    Keeping { snapshots, park: Park::F32, exact }
}

/// A sample of the answers without reuse, which takes long: three turns of the conversation.
fn same_without(rig: &mut Rig, exact: &[Came], n: u32) {
    for (i, turn) in transcript().iter().enumerate().skip(20).step_by(22) {
        let came = rig.ask_any(turn, n);
        assert_eq!((came.answer, came.reused), (exact[i].answer.clone(), 0), "request {i}");
    }
}

/// The transcript on a model: at least so much of what is known is reused, and answers do not change in exact mode.
fn holds(path: PathBuf, ask: Ask, n: u32, least: f64) {
    let open = |k: Keeping| Rig::new(path.clone(), ask.clone(), k);
    let exact = open(keeping(4 << 30, true)).all(n);
    same_without(&mut open(keeping(0, false)), &exact, n);
    let usual = open(keeping(4 << 30, false)).all(n);
    let longest = usual.iter().map(|c| c.prompt).max().unwrap();
    println!("{:.4} usual, {:.4} exact; prompts of up to {longest} ids", share(&usual), share(&exact));
    assert!(share(&usual) >= least, "{:.4}: {:?}", share(&usual), figures(&usual));
    // What lies behind the last place on the grid of 64 rows is read again.
    assert!(share(&exact) >= least - 0.02, "{:.4}: {:?}", share(&exact), figures(&exact));
}

fn default_model() -> PathBuf {
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/snug-tiny-moe.gguf").into()
}

#[test]
fn nearly_all_of_what_an_agent_says_again_is_not_read_again() {
    let ask = Ask { parallel: 2, context: Context::Exactly(2048), ..Ask::default() };
    holds(default_model(), ask, 2, 0.97);
}

/// Prompts that go layer by layer keep states as each layer passes the places where messages begin, a predictor's, too.
#[test]
fn segments_keep_their_anchors_too() {
    let ask = Ask { parallel: 2, segment: Some(512), draft: 1, context: Context::Exactly(2048), ..Ask::default() };
    let open = |k: Keeping| Rig::new(default_model(), ask.clone(), k);
    let exact = open(keeping(4 << 30, true)).all(2);
    same_without(&mut open(keeping(0, false)), &exact, 2);
    let usual = open(keeping(4 << 30, false)).all(2);
    println!("{:.4} usual, {:.4} exact", share(&usual), share(&exact));
    assert!(share(&exact) >= 0.95, "{:.4}: {:?}", share(&exact), figures(&exact));
    assert!(share(&usual) >= 0.97, "{:.4}: {:?}", share(&usual), figures(&usual));
}

mod long {
    use super::*;

    /// The model that `SNUG_TRANSCRIPT` names (a GGUF with ChatML's markup), in a context of 8,192 positions:
    /// `SNUG_TRANSCRIPT=FILE cargo nextest run --profile long -p engine long::a_model`.
    #[test]
    fn a_model_of_ones_choice_reuses_nearly_all() {
        let Some(model) = std::env::var_os("SNUG_TRANSCRIPT") else {
            return println!("SNUG_TRANSCRIPT names no model");
        };
        let ask = Ask { parallel: 2, stops_between_layers: true, context: Context::Exactly(8192), ..Ask::default() };
        holds(model.into(), ask, 8, 0.97);
    }
}
