//! Responses that can be asked for again and continued, in memory and bounded.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;

/// Most responses that are kept, and most bytes of their JSON.
const MAX_COUNT: usize = 512;
const MAX_BYTES: usize = 64 << 20;

/// A response and the conversation it ended.
#[derive(Debug)]
pub struct Kept {
    /// The response as the client got it.
    pub response: Value,
    /// Messages in the form of chat completions, without instructions: those are not inherited.
    pub messages: Vec<Value>,
    bytes: usize,
}

/// Kept responses; the oldest goes first.
#[derive(Debug, Default)]
pub struct Store(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    all: HashMap<String, Arc<Kept>>,
    order: VecDeque<String>,
    bytes: usize,
}

impl Store {
    /// Keeps a response. One that is larger than everything kept may be is not kept.
    pub fn put(&self, id: &str, response: Value, messages: Vec<Value>) {
        let bytes = response.to_string().len() + messages.iter().map(|m| m.to_string().len()).sum::<usize>();
        if bytes > MAX_BYTES {
            return;
        }
        let mut inner = self.lock();
        inner.bytes += bytes;
        inner.order.push_back(id.into());
        inner.all.insert(id.into(), Arc::new(Kept { response, messages, bytes }));
        while inner.bytes > MAX_BYTES || inner.all.len() > MAX_COUNT {
            let Some(oldest) = inner.order.front().cloned() else { break };
            inner.remove(&oldest);
        }
    }

    /// A kept response.
    pub fn get(&self, id: &str) -> Option<Arc<Kept>> {
        self.lock().all.get(id).cloned()
    }

    /// Forgets a response; false if there is none.
    pub fn remove(&self, id: &str) -> bool {
        self.lock().remove(id)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn remove(&mut self, id: &str) -> bool {
        self.order.retain(|o| o != id);
        match self.all.remove(id) {
            Some(kept) => {
                self.bytes -= kept.bytes;
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_goes_when_there_are_too_many_or_too_much() {
        let s = Store::default();
        (0..=MAX_COUNT).for_each(|i| s.put(&i.to_string(), Value::Null, Vec::new()));
        assert!(s.get("0").is_none() && s.get("1").is_some());
        let big = Value::from("x".repeat(MAX_BYTES / 2));
        s.put("a", big.clone(), Vec::new());
        s.put("b", big.clone(), Vec::new());
        assert!(s.get("a").is_none() && s.get("b").is_some() && s.get("1").is_none());
        s.put("c", Value::from("x".repeat(MAX_BYTES)), Vec::new());
        assert!(s.get("b").is_some() && s.get("c").is_none());
        assert!(s.remove("b") && !s.remove("b"));
        assert_eq!(s.lock().bytes, 0);
    }
}
