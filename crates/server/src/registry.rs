//! Which requests are here now: `GET /v1/requests`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde_json::{Value, json};

/// Requests that were not answered to the end yet.
#[derive(Clone, Debug, Default)]
pub struct Registry(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    next: u64,
    all: BTreeMap<u64, Info>,
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
        let inner = self.lock();
        let one = |i: &Info| {
            json!({
                "id": i.id, "phase": i.phase, "status": i.status, "seconds": i.begun.elapsed().as_secs_f64(),
                "prompt_tokens": i.prompt_tokens, "tokens": i.tokens, "stream": i.stream,
            })
        };
        inner.all.values().map(one).collect()
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

    /// How many ids were made for it.
    pub fn made(&self, tokens: u32) {
        self.change(|i| i.tokens = tokens);
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.registry.lock().all.remove(&self.key);
    }
}
