//! Prometheus metrics.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::{EncodeLabelSet, text::encode};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::answer::Answers;
use crate::backend::Load;

/// What `GET /metrics` shows.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    http: Family<Http, Counter>,
    finished: Family<Finish, Counter>,
    prompt: Counter,
    cached: Counter,
    generated: Counter,
    prefill: Counter<f64, AtomicU64>,
    decode: Counter<f64, AtomicU64>,
    passes: Counter<f64, AtomicU64>,
    ttft: Histogram,
    running: Gauge,
    waiting: Gauge,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Http {
    route: String,
    status: u16,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Finish {
    reason: &'static str,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut m = Self {
            registry: Registry::with_prefix("snug"),
            http: Family::default(),
            finished: Family::default(),
            prompt: Counter::default(),
            cached: Counter::default(),
            generated: Counter::default(),
            prefill: Counter::default(),
            decode: Counter::default(),
            passes: Counter::default(),
            ttft: Histogram::new([0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0]),
            running: Gauge::default(),
            waiting: Gauge::default(),
        };
        let r = &mut m.registry;
        r.register("http_requests", "Responses by route and status", m.http.clone());
        r.register("generations", "Generations by how they ended", m.finished.clone());
        r.register("prompt_tokens", "Prompt tokens that were read, or were known before", m.prompt.clone());
        r.register("cached_prompt_tokens", "Prompt tokens that were not read again", m.cached.clone());
        r.register("generated_tokens", "Tokens made", m.generated.clone());
        r.register("prefill_seconds", "Time spent reading prompts", m.prefill.clone());
        r.register("decode_seconds", "Time spent making tokens", m.decode.clone());
        r.register(
            "decode_pass_seconds",
            "Of the time spent making tokens, what the model's passes took",
            m.passes.clone(),
        );
        r.register("time_to_first_token_seconds", "From admission to the first token", m.ttft.clone());
        r.register("generations_running", "Generations that run now", m.running.clone());
        r.register("generations_waiting", "Generations that wait now", m.waiting.clone());
        m
    }
}

impl Metrics {
    /// A response was begun.
    pub fn responded(&self, route: &str, status: u16) {
        self.http.get_or_create(&Http { route: route.into(), status }).inc();
    }

    /// A request is over.
    pub fn finished(&self, how: &'static str, a: &Answers, ttft: Option<Duration>) {
        self.finished.get_or_create(&Finish { reason: how }).inc();
        self.prompt.inc_by(u64::from(a.read()));
        self.cached.inc_by(u64::from(a.cached()));
        self.generated.inc_by(u64::from(a.made()));
        self.prefill.inc_by(a.prefill.as_secs_f64());
        self.decode.inc_by(a.decode.as_secs_f64());
        self.passes.inc_by(a.passes.as_secs_f64());
        if let Some(t) = ttft {
            self.ttft.observe(t.as_secs_f64());
        }
    }

    /// All of them as text.
    pub fn text(&self, load: Load) -> String {
        self.running.set(i64::from(load.running));
        self.waiting.set(i64::from(load.waiting));
        let mut out = String::new();
        // Writing to a string cannot fail.
        let _ = encode(&mut out, &self.registry);
        out
    }
}
