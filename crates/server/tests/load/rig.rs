//! A server with a scripted backend, on a port of its own.

use serde_json::Value;
use server::script::Script;
use server::voice::Voice;
use server::{Config, Loading, Ready, Server};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use text::ChatTemplate;
use tokio::sync::oneshot;

#[path = "../shared/vocabulary.rs"]
mod vocabulary;

/// Tools, reasoning, calls and results, in the manner of Qwen3.
const TEMPLATE: &str = "\
{%- if tools %}<|im_start|>system
{% for t in tools %}{{ t | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- for m in messages %}<|im_start|>{{ m.role }}
{% if m.reasoning_content %}<think>
{{ m.reasoning_content }}
</think>
{% endif %}{{ m.content or '' }}{% for c in m.tool_calls or [] %}<tool_call>
{{ c.function | tojson }}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}";

const MARKERS: &[&str] = &["<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>"];

/// A running server. Dropping it stops it.
pub struct Rig {
    pub address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Rig {
    /// Starts one that follows a script.
    pub fn start(script: &str, change: impl FnOnce(&mut Config)) -> Self {
        let template = ChatTemplate::new(TEMPLATE).unwrap();
        let voice = Arc::new(Voice::new(vocabulary::vocabulary(MARKERS), Some(template), Some("qwen3")).unwrap());
        let script = Script::parse(script.as_bytes(), &voice.tokenizer).unwrap();
        let backend = Arc::new(script.backend("m", &voice, 256).unwrap());
        let loading = Loading::default();
        loading.ready(Ready { voice, backend });
        let mut config =
            Config { listen: ([127, 0, 0, 1], 0).into(), drain: Duration::from_secs(2), ..Config::default() };
        change(&mut config);
        let (stop, stopped) = oneshot::channel();
        let (tell, told) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .max_blocking_threads(16)
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let server = Server::bind(config, loading).await.unwrap();
                tell.send(server.address()).unwrap();
                server
                    .run(async {
                        // A rig that is gone stops as well.
                        let _ = stopped.await;
                    })
                    .await;
            });
        });
        Rig { address: told.recv().unwrap(), stop: Some(stop), thread: Some(thread) }
    }

    /// Sends bytes as they are and reads to the end; the status and the body.
    pub fn raw(&self, bytes: &[u8]) -> (u16, String) {
        let mut s = TcpStream::connect(self.address).unwrap();
        s.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        // It may answer and hang up before all was sent.
        let _ = s.write_all(bytes);
        let mut got = Vec::new();
        let _ = s.read_to_end(&mut got);
        let text = String::from_utf8(got).expect("what a server says is UTF-8");
        let status = text.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or(0);
        (status, text.split_once("\r\n\r\n").map_or("", |(_, b)| b).to_string())
    }

    /// A request with a body.
    pub fn post(&self, path: &str, headers: &str, body: &[u8]) -> (u16, String) {
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}content-length: {}\r\n\r\n",
            body.len()
        );
        self.raw(&[head.as_bytes(), body].concat())
    }

    pub fn get(&self, path: &str) -> (u16, String) {
        self.raw(format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").as_bytes())
    }

    /// It answers as if nothing had been.
    pub fn is_fine(&self) {
        let body = br#"{"model":"m","max_tokens":3,"messages":[{"role":"user","content":"hi"}]}"#;
        let (status, said) = self.post("/v1/chat/completions", "", body);
        assert_eq!(status, 200, "{said}");
        let v: Value = serde_json::from_str(&said).unwrap();
        assert!(v["choices"][0]["message"]["content"].is_string(), "{said}");
    }

    /// Nothing runs and nothing waits, a moment after the last client is gone.
    pub fn is_idle_soon(&self) {
        let until = Instant::now() + Duration::from_secs(5);
        loop {
            let (_, said) = self.get("/health");
            let v: Value = serde_json::from_str(&said).unwrap();
            if (&v["queue"]["running"], &v["queue"]["waiting"]) == (&0.into(), &0.into()) {
                return;
            }
            assert!(Instant::now() < until, "requests are stuck: {said}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(t) = self.thread.take() {
            // Its panic has been printed.
            let _ = t.join();
        }
    }
}

/// Bytes of this process that are in memory.
pub fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

/// Pseudo-random numbers (xorshift64*, Vigna 2016).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Random((seed + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % n
    }
}
