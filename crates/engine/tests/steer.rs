//! Ids that somebody else has said: when a generation goes on with them, and when it does not.

use engine::batch::{AtEnd, Batch, Job, Keeping, Park, Sharing, Sink, Steer, Told};
use engine::open::On;
use engine::{Ask, Finish, Model, OpenOptions, Sampling};
use std::sync::{Arc, Mutex};
use text::constrain::{Constraint, Matcher, Reasoning};
use text::dialect::Dialect;
use text::{GgufVocab, Tokenizer};

const PROMPT: [u32; 5] = [3, 1, 4, 1, 5];
const INSERTED: [u32; 3] = [200, 201, 202];

fn model() -> (Batch, tempfile::TempDir) {
    let dir = testkit::materialise("llama-a").unwrap();
    let how = OpenOptions { ask: Ask::default(), on: On::Reference, ..OpenOptions::default() };
    let exec = Model::open(dir.path().to_path_buf(), &how, &mut |_| {}).unwrap().exec;
    let keeping = Keeping { snapshots: 0, park: Park::F32, exact: false };
    (Batch::new(exec, Sharing { places: 1, patience: 2.0, keeping }), dir)
}

/// What was made, and why it ended.
#[derive(Clone, Debug, Default)]
struct Made {
    ids: Vec<u32>,
    finish: Option<Finish>,
}

#[derive(Clone, Default)]
struct Ear(Arc<Mutex<Made>>);

impl Sink for Ear {
    fn tell(&self, what: Told) {
        let mut made = self.0.lock().unwrap();
        match what {
            Told::Token(c) => made.ids.push(c.id),
            Told::Done(e) => made.finish = Some(e.finish),
            Told::Failed(e) => panic!("{e}"),
            _ => {}
        }
    }
    fn gone(&self) -> bool {
        false
    }
}

#[derive(Default)]
struct Says {
    steer: Option<Steer>,
    at_end: Option<AtEnd>,
    constraint: Option<Matcher>,
    end: Option<u32>,
}

fn greedy(b: &mut Batch, prompt: &[u32], max_tokens: u32, says: Says) -> Made {
    let Says { steer, at_end, constraint, end } = says;
    let (ear, ends) = (Ear::default(), Arc::new(move |id| end == Some(id)));
    let plain = Job::new(prompt, Sampling::greedy());
    let job = Job { max_tokens: Some(max_tokens), constraint, ends, at_end, steer, ..plain };
    b.submit(job, Box::new(ear.clone())).unwrap();
    while b.turn() {}
    let made = ear.0.lock().unwrap().clone();
    assert!(made.finish.is_some());
    made
}

/// Says the ids once, behind so many.
fn behind(n: usize) -> Option<Steer> {
    let mut seen = 0;
    Some(Box::new(move |_| {
        seen += 1;
        if seen == n { INSERTED.to_vec() } else { Vec::new() }
    }))
}

#[test]
fn what_is_said_between_two_tokens_stands_there_and_is_read() {
    let (mut m, _dir) = model();
    let plain = greedy(&mut m, &PROMPT, 4, Says::default()).ids;
    let made = greedy(&mut m, &PROMPT, 9, Says { steer: behind(2), ..Says::default() });
    assert_eq!((&made.ids[..2], &made.ids[2..5]), (&plain[..2], &INSERTED[..]));
    assert_eq!((made.ids.len(), made.finish), (9, Some(Finish::Length)), "said ids count");
    // As if all that had been the prompt.
    let all: Vec<u32> = PROMPT.iter().chain(&made.ids[..5]).copied().collect();
    assert_eq!(greedy(&mut m, &all, 4, Says::default()).ids, made.ids[5..]);
    // A limit may fall among them.
    assert_eq!(greedy(&mut m, &PROMPT, 3, Says { steer: behind(2), ..Says::default() }).ids[2], INSERTED[0]);
}

#[test]
fn an_end_is_put_off_once() {
    let (mut m, _dir) = model();
    let end = Some(greedy(&mut m, &PROMPT, 3, Says::default()).ids[2]);
    let first = greedy(&mut m, &PROMPT, 9, Says { end, ..Says::default() });
    let at_end: Option<AtEnd> = Some(Box::new(|ids| {
        assert!(ids.len() <= 2);
        INSERTED.to_vec()
    }));
    assert_eq!(first.finish, Some(Finish::Stop));
    let made = greedy(&mut m, &PROMPT, 9, Says { end, at_end, ..Says::default() });
    let n = first.ids.len();
    assert_eq!((&made.ids[..n], &made.ids[n..n + 3]), (&first.ids[..], &INSERTED[..]));
}

/// Words of a letter and a number.
fn tokenizer() -> Tokenizer {
    let tokens: Vec<String> = (0..256).map(|i| format!("w{i}")).collect();
    let vocab = GgufVocab {
        model: "gpt2",
        pre: Some("smollm"),
        tokens: tokens.iter().map(String::as_str).collect(),
        token_types: Some(vec![1; 256]),
        ..GgufVocab::default()
    };
    Tokenizer::from_gguf(&vocab).unwrap()
}

#[test]
fn what_a_constraint_forbids_is_not_said() {
    let (mut m, _dir) = model();
    let t = tokenizer();
    let held = |regex: &str| {
        let plain = Dialect::named("plain", &t).unwrap();
        Some(Constraint::Regex(regex).build(&t, &plain, Reasoning::Off).unwrap())
    };
    let made = |m: &mut Batch, regex: &str| {
        let says = Says { steer: behind(1), constraint: held(regex), ..Says::default() };
        greedy(m, &PROMPT, 20, says)
    };
    assert_eq!(made(&mut m, "w7w8w9").ids, [7, 8, 9]);
    let with = made(&mut m, "w7(w8w9|w200w201w202)w5");
    assert_eq!((with.ids, with.finish), (vec![7, 200, 201, 202, 5], Some(Finish::Stop)));
}

/// What is said between two tokens is a proposal as a whole; what is said in place of the end is not.
#[test]
fn what_stands_in_place_of_the_end_ends_where_a_constraint_forbids_it() {
    let (mut m, _dir) = model();
    let t = tokenizer();
    let plain = Dialect::named("plain", &t).unwrap();
    let held = || Some(Constraint::Regex("w7(w8|w200)w9").build(&t, &plain, Reasoning::Off).unwrap());
    let free = greedy(&mut m, &PROMPT, 9, Says { constraint: held(), ..Says::default() }).ids;
    let (end, other) = if free[1] == 8 { (8, 200) } else { (200, 8) };
    let at_end: Option<AtEnd> = Some(Box::new(move |_| vec![other, 201]));
    let made = greedy(&mut m, &PROMPT, 9, Says { constraint: held(), end: Some(end), at_end, ..Says::default() });
    assert_eq!((made.ids, made.finish), (vec![7, other], Some(Finish::Stop)));
}
