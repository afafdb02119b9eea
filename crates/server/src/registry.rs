//! Which requests are here now: `GET /v1/requests`.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde_json::{Value, json};

/// Answered requests that are shown beside them.
const ENDED: usize = 16;

/// Requests that were not answered to the end yet, and the last ones that were.
#[derive(Clone, Debug, Default)]
pub struct Registry(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    next: u64,
    all: BTreeMap<u64, Info>,
    ended: VecDeque<Value>,
}

/// What of a prompt was read before, and why not more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reuse {
    /// Tokens that were.
    pub cached: u32,
    /// Why not more, by name.
    pub why: &'static str,
    /// The first token that is not what was read before.
    pub token: Option<u32>,
    /// The message that token belongs to, by the client's name for it.
    pub message: Option<String>,
}

#[derive(Debug)]
struct Info {
    id: String,
    begun: Instant,
    phase: &'static str,
    status: String,
    prompt_tokens: u32,
    tokens: u32,
    stream: bool,
    reuse: Option<Reuse>,
    finish: Option<&'static str>,
}

impl Info {
    fn json(&self) -> Value {
        let miss = |r: &Reuse| json!({"why": r.why, "token": r.token, "message": r.message});
        json!({
            "id": self.id, "phase": self.phase, "status": self.status, "seconds": self.begun.elapsed().as_secs_f64(),
            "prompt_tokens": self.prompt_tokens, "tokens": self.tokens, "stream": self.stream,
            "cached_tokens": self.reuse.as_ref().map(|r| r.cached), "miss": self.reuse.as_ref().map(miss),
        })
    }
}

impl Registry {
    /// Adds a request; it leaves with the entry.
    pub fn enter(&self, request_id: &str) -> Entry {
        let mut inner = self.lock();
        let key = inner.next;
        inner.next += 1;
        let info = Info {
            id: request_id.into(),
            begun: Instant::now(),
            phase: "parse",
            status: String::new(),
            prompt_tokens: 0,
            tokens: 0,
            stream: false,
            reuse: None,
            finish: None,
        };
        inner.all.insert(key, info);
        Entry { registry: self.clone(), key }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.lock().all.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All of them as JSON, oldest first.
    pub fn list(&self) -> Value {
        self.lock().all.values().map(Info::json).collect()
    }

    /// The last ones that were answered, in the order in which they ended.
    pub fn ended(&self) -> Value {
        self.lock().ended.iter().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request's place in the registry.
#[derive(Debug)]
pub struct Entry {
    registry: Registry,
    key: u64,
}

impl Entry {
    fn change(&self, f: impl FnOnce(&mut Info)) {
        if let Some(i) = self.registry.lock().all.get_mut(&self.key) {
            f(i);
        }
    }

    /// It was admitted.
    pub fn admitted(&self, prompt_tokens: u32, stream: bool) {
        self.change(|i| (i.prompt_tokens, i.stream, i.phase) = (prompt_tokens, stream, "queued"));
    }

    /// What it does now.
    pub fn phase(&self, phase: &'static str, status: &str) {
        self.change(|i| (i.phase, i.status) = (phase, status.into()));
    }

    /// What of its prompt was known.
    pub fn reuse(&self, reuse: &Reuse) {
        self.change(|i| i.reuse = Some(reuse.clone()));
    }

    /// It was answered, or will not be.
    pub fn ended(&self, finish: &'static str) {
        self.change(|i| i.finish = Some(finish));
    }

    /// How many ids were made for it.
    pub fn made(&self, tokens: u32) {
        self.change(|i| i.tokens = tokens);
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let mut inner = self.registry.lock();
        let Some(info) = inner.all.remove(&self.key) else { return };
        let Some(finish) = info.finish else { return };
        let mut last = info.json();
        (last["phase"], last["status"]) = ("ended".into(), finish.into());
        inner.ended.push_back(last);
        if inner.ended.len() > ENDED {
            inner.ended.pop_front();
        }
    }
}
