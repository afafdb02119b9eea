//! What all connections share.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

use crate::backend::Backend;
use crate::fault::{Fault, Kind};
use crate::metrics::Metrics;
use crate::registry::Registry;
use crate::responses::store::Store;
use crate::voice::Voice;

/// How to serve.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where to listen; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Clients must show it.
    pub api_key: Option<String>,
    /// Listen to other machines without a key.
    pub allow_open: bool,
    /// Origins of web pages that may use the server, beside those of this machine; `*` is all.
    pub origins: Vec<String>,
    /// Most bytes of a body.
    pub max_body: usize,
    /// Longest silence of a stream.
    pub ping: Duration,
    /// How long a response in one piece keeps its status open. Then the headers go, for clients give up on silence.
    pub decide: Duration,
    /// How long requests wait for a model that is being loaded.
    pub load_wait: Duration,
    /// Longest silence of a client that sends a request.
    pub patience: Duration,
    /// How long requests may go on once the server is told to stop.
    pub drain: Duration,
    /// Most connections at a time.
    pub max_connections: usize,
    /// Take a line that changes with every request off the front of a system prompt, so that prompts begin alike.
    pub strip_volatile: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: ([127, 0, 0, 1], 8080).into(),
            api_key: None,
            allow_open: false,
            origins: Vec::new(),
            max_body: 32 << 20,
            ping: Duration::from_secs(8),
            decide: Duration::from_secs(45),
            load_wait: Duration::from_secs(120),
            patience: Duration::from_secs(20),
            drain: Duration::from_secs(30),
            max_connections: 1024,
            strip_volatile: true,
        }
    }
}

/// A model that answers.
pub struct Ready {
    /// Its text side.
    pub voice: Arc<Voice>,
    /// Its other side.
    pub backend: Arc<dyn Backend>,
}

/// Where a model that is being loaded tells how far it is, and is put when it is there.
#[derive(Clone, Default)]
pub struct Loading(Arc<LoadState>);

#[derive(Default)]
struct LoadState {
    ready: OnceLock<Ready>,
    arrived: Notify,
    done: AtomicU64,
    total: AtomicU64,
}

impl Loading {
    /// Bytes that are loaded.
    pub fn progress(&self, done: u64, total: u64) {
        self.0.done.store(done, Ordering::Relaxed);
        self.0.total.store(total, Ordering::Relaxed);
    }

    /// The model is there. Only the first one counts.
    pub fn ready(&self, ready: Ready) {
        let _ = self.0.ready.set(ready);
        self.0.arrived.notify_waiters();
    }

    /// The model, if it is there.
    pub fn get(&self) -> Option<&Ready> {
        self.0.ready.get()
    }
}

/// What all connections share.
pub struct App {
    /// How to serve.
    pub config: Config,
    /// The model.
    pub loading: Loading,
    /// Requests that are here.
    pub registry: Registry,
    /// Figures.
    pub metrics: Metrics,
    /// Responses that can be asked for again.
    pub store: Store,
    /// No new requests.
    pub stopping: AtomicBool,
    /// Those that are here are broken off.
    cut: watch::Sender<bool>,
    /// When the server started, in seconds since 1970.
    pub created: u64,
}

impl App {
    /// Without a connection yet.
    pub fn new(config: Config, loading: Loading) -> Self {
        Self {
            config,
            loading,
            registry: Registry::default(),
            metrics: Metrics::default(),
            store: Store::default(),
            stopping: AtomicBool::new(false),
            cut: watch::Sender::new(false),
            created: crate::ids::now(),
        }
    }

    /// Breaks off the answers that are being made.
    pub fn cut_off(&self) {
        self.cut.send_replace(true);
    }

    /// Waits until answers are to be broken off.
    pub async fn cut(&self) {
        // The sender is here as long as anybody waits.
        let _ = self.cut.subscribe().wait_for(|cut| *cut).await;
    }

    /// The model.
    ///
    /// # Errors
    /// While it is being loaded, and when the server stops.
    pub fn ready(&self) -> Result<&Ready, Fault> {
        if self.stopping.load(Ordering::Relaxed) {
            return Err(Fault::new(Kind::Unavailable, "the server is stopping"));
        }
        self.loading.get().ok_or_else(|| Fault::new(Kind::Unavailable, "the model is being loaded; try again soon"))
    }

    /// The model, once it is there. Programs send their first request as soon as somebody listens.
    ///
    /// # Errors
    /// When it takes longer than [`Config::load_wait`], and when the server stops.
    pub async fn arrived(&self) -> Result<&Ready, Fault> {
        const LOOK: Duration = Duration::from_millis(250);
        let until = Instant::now() + self.config.load_wait;
        loop {
            let arrived = self.loading.0.arrived.notified();
            let left = until.saturating_duration_since(Instant::now());
            match self.ready() {
                Err(_) if !self.stopping.load(Ordering::Relaxed) && !left.is_zero() => {}
                decided => return decided,
            }
            // In between, the server may have begun to stop. Time passing is no failure.
            let _ = timeout(left.min(LOOK), arrived).await;
        }
    }

    /// `GET /health`: status code and body.
    pub fn health(&self) -> (u16, Value) {
        let loading = &self.loading.0;
        if self.stopping.load(Ordering::Relaxed) {
            return (503, json!({"status": "stopping"}));
        }
        match loading.ready.get() {
            Some(r) => {
                let load = r.backend.load();
                let queue = json!({"running": load.running, "waiting": load.waiting, "places": load.places});
                (200, json!({"status": "ok", "model": r.backend.facts().name, "queue": queue}))
            }
            None => {
                let (done, total) = (loading.done.load(Ordering::Relaxed), loading.total.load(Ordering::Relaxed));
                let share = if total == 0 { 0.0 } else { done as f64 / total as f64 };
                (503, json!({"status": "loading", "progress": share, "loaded_bytes": done, "total_bytes": total}))
            }
        }
    }
}
