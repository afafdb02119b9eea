//! A backend that says what a file tells it to, at the pace the file tells it to.
//!
//! It makes everything around a model deterministic: parsers, limits, cancelling, silence. A constraint is obeyed as a
//! model would: ids that are not allowed are passed over, and where the script has nothing that is allowed, the shortest
//! way through the grammar is taken.
//!
//! ```json
//! {"context": 4096, "parallel": 1, "prefill": {"chunk": 256, "ms": [0]}, "token_ms": 0,
//!  "answers": [{"when": "weather", "steps": ["<tool_call>", {"ms": 500}, "..."]}, {"steps": ["Hello"]}]}
//! ```
//! The first answer whose `when` is in the prompt is taken; those without `when` are taken in turn. A step is a text
//! (special tokens in it are markup), `{"ids": [1, 2]}`, `{"bytes": "F09F"}` (a token for each byte), `{"ms": 20}` (a
//! pause), `{"end": true}` (an end token), `{"fail": "why"}`, or `{"repeat": 3, "steps": [...]}`. `prefill.ms` is how
//! long each chunk takes; the last one goes on. Of each prompt `prefill.cached` ids count as known, but for the last one.

mod run;

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use serde_json::{Value, json};
use text::{Specials, Tokenizer};

use crate::backend::{Facts, Sampling};
use crate::fault::Fault;
use crate::json::{self, Fields};
use crate::line::{Line, Run};
use crate::voice::Voice;

/// Most ids a script may hold.
const MAX_IDS: usize = 1 << 20;

/// What to say and when.
#[derive(Debug)]
pub struct Script {
    context: u32,
    parallel: u32,
    chunk: u32,
    chunk_ms: Vec<u64>,
    cached: u32,
    token_ms: u64,
    answers: Vec<Scripted>,
    turn: AtomicUsize,
}

#[derive(Debug)]
struct Scripted {
    when: Option<String>,
    steps: Vec<Step>,
}

/// One step of an answer.
#[derive(Clone, Debug, PartialEq)]
enum Step {
    Token(u32),
    Pause(u64),
    End,
    Fail(String),
}

impl Script {
    /// Reads a script for a vocabulary.
    ///
    /// # Errors
    /// Names the field.
    pub fn parse(text: &[u8], tokenizer: &Tokenizer) -> Result<Self, Fault> {
        let map = json::object(text)?;
        let f = Fields::of(&map);
        let prefill = f.object("prefill")?;
        let (mut chunk, mut chunk_ms, mut cached) = (256, Vec::new(), 0);
        if let Some(p) = &prefill {
            chunk = p.int("chunk", 1, 1 << 20)?.unwrap_or(256) as u32;
            cached = p.int("cached", 0, 1 << 24)?.unwrap_or(0) as u32;
            let ms = p.array("ms")?.unwrap_or_default().iter().map(Value::as_u64);
            chunk_ms = ms.collect::<Option<_>>().ok_or_else(|| p.wrong("ms", "must be an array of whole numbers"))?;
        }
        let answers = f.objects("answers")?.iter().map(|a| scripted(a, tokenizer)).collect::<Result<Vec<_>, _>>()?;
        if answers.is_empty() {
            return Err(f.wrong("answers", "is missing or empty"));
        }
        Ok(Self {
            context: f.int("context", 2, 1 << 24)?.unwrap_or(4096) as u32,
            parallel: f.int("parallel", 1, 256)?.unwrap_or(1) as u32,
            chunk,
            chunk_ms,
            cached,
            token_ms: f.int("token_ms", 0, 1 << 20)?.unwrap_or(0) as u64,
            answers,
            turn: AtomicUsize::new(0),
        })
    }

    /// A backend that follows it, where `places` requests may wait.
    ///
    /// # Errors
    /// When a thread cannot be started.
    pub fn backend(self, name: &str, voice: &Arc<Voice>, places: u32) -> std::io::Result<Line> {
        let vocab = voice.tokenizer.vocab_size();
        let facts = Facts {
            name: name.into(),
            aliases: Vec::new(),
            architecture: "script".into(),
            context: self.context,
            trained_context: self.context,
            vocab,
            parallel: self.parallel,
            sampling: Sampling::default(),
        };
        let (script, n) = (Arc::new(self), facts.parallel);
        let runs = (0..n).map(|_| Box::new(run::Runner::new(&script, voice)) as Box<dyn Run>).collect();
        Line::new(facts, json!({"backend": "script"}), runs, places)
    }
}

fn scripted(f: &Fields<'_>, tokenizer: &Tokenizer) -> Result<Scripted, Fault> {
    let mut steps = Vec::new();
    read_steps(f, tokenizer, &mut steps)?;
    Ok(Scripted { when: f.str("when")?.map(str::to_owned), steps })
}

fn read_steps(f: &Fields<'_>, tokenizer: &Tokenizer, out: &mut Vec<Step>) -> Result<(), Fault> {
    for (i, v) in f.array("steps")?.unwrap_or_default().iter().enumerate() {
        let path = format!("steps[{i}]");
        if let Value::String(text) = v {
            out.extend(tokenizer.encode(text, Specials::Parse)?.into_iter().map(Step::Token));
            continue;
        }
        let map = v.as_object().ok_or_else(|| f.wrong(&path, "must be a string or an object"))?;
        let s = Fields::of(map);
        if let Some(ids) = s.array("ids")? {
            for id in ids {
                let id = id.as_u64().and_then(|n| u32::try_from(n).ok()).filter(|n| *n < tokenizer.vocab_size());
                out.push(Step::Token(id.ok_or_else(|| f.wrong(&path, "holds an id beyond the vocabulary"))?));
            }
        } else if let Some(hex) = s.str("bytes")? {
            for pair in hex.as_bytes().chunks(2) {
                let byte = std::str::from_utf8(pair).ok().and_then(|p| u8::from_str_radix(p, 16).ok());
                let byte = byte.ok_or_else(|| f.wrong(&path, "bytes must be pairs of hexadecimal digits"))?;
                let id = (0..tokenizer.vocab_size()).find(|id| tokenizer.token_bytes(*id) == Some(&[byte]));
                out.push(Step::Token(id.ok_or_else(|| f.wrong(&path, "the vocabulary has no token for a byte"))?));
            }
        } else if let Some(ms) = s.int("ms", 0, 1 << 30)? {
            out.push(Step::Pause(ms as u64));
        } else if s.bool("end")? == Some(true) {
            out.push(Step::End);
        } else if let Some(why) = s.str("fail")? {
            out.push(Step::Fail(why.into()));
        } else if let Some(n) = s.int("repeat", 0, 1 << 20)? {
            let mut inner = Vec::new();
            read_steps(&s, tokenizer, &mut inner)?;
            if inner.len().saturating_mul(n as usize) > MAX_IDS {
                return Err(f.wrong(&path, format_args!("makes more than {MAX_IDS} steps")));
            }
            (0..n).for_each(|_| out.extend(inner.iter().cloned()));
        } else {
            return Err(f.wrong(&path, "is none of: text, ids, bytes, ms, end, fail, repeat"));
        }
    }
    Ok(())
}
