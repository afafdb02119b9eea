//! A server on a script, and a client that speaks HTTP itself.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use server::backend::{Backend, Facts, Job, Load, Refused, Ticket};
use server::script::Script;
use server::voice::Voice;
use server::{Config, Loading, Ready, Server};
use text::ChatTemplate;
use tokio::sync::oneshot;

#[path = "../shared/vocabulary.rs"]
mod vocabulary;
pub use vocabulary::vocabulary;

/// Turns in ChatML, tools as JSON, reasoning and calls as Qwen writes them. It insists on the order of turns.
pub const TEMPLATE: &str = "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('system must come first') }}{% endif %}\
<|im_start|>{{ m.role }}\n{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}\
{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }}({% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}{% endfor %})</tool_call>{% endfor %}\
<|im_end|>\n{% endfor %}{% for t in tools or [] %}[{{ t.function.name }}: {{ t.function.description }}]\n{% endfor %}\
{% if add_generation_prompt %}<|im_start|>assistant\n{% if enable_thinking is defined and enable_thinking %}<think>\n{% endif %}{% endif %}";

/// Markers of the template and of all dialects.
pub const MARKERS: &[&str] = &[
    "<|im_start|>",
    "<|im_end|>",
    "<tool_call>",
    "</tool_call>",
    "<think>",
    "</think>",
    "<|tool_call>",
    "<tool_call|>",
    "<|\"|>",
    "<|channel>",
    "<channel|>",
    "<|tool_response>",
    "<turn|>",
    "<|start|>",
    "<|channel|>",
    "<|constrain|>",
    "<|message|>",
    "<|end|>",
    "<|call|>",
    "<|return|>",
    "｜DSML｜",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "<minimax:tool_call>",
    "</minimax:tool_call>",
    "<|python_tag|>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[THINK]",
    "[/THINK]",
];

/// How to set up a [`Rig`].
pub struct Setup {
    pub script: Value,
    pub config: Config,
    pub markers: &'static [&'static str],
    pub dialect: Option<&'static str>,
    pub template: Option<&'static str>,
    pub places: u32,
    pub ready: bool,
    /// In place of the script.
    pub backend: Option<Arc<dyn Backend>>,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            script: json!({"answers": [{"steps": ["Hello there."]}]}),
            config: Config { listen: ([127, 0, 0, 1], 0).into(), ..Config::default() },
            markers: MARKERS,
            dialect: Some("qwen3"),
            template: Some(TEMPLATE),
            places: 64,
            ready: true,
            backend: None,
        }
    }
}

/// A backend that remembers prompts.
struct Remembering {
    inner: Arc<dyn Backend>,
    voice: Arc<Voice>,
    prompts: Arc<Mutex<Vec<String>>>,
}

impl Backend for Remembering {
    fn facts(&self) -> &Facts {
        self.inner.facts()
    }
    fn submit(&self, job: Job) -> Result<Ticket, Refused> {
        self.prompts.lock().unwrap().push(self.voice.tokenizer.decode(&job.prompt, false));
        self.inner.submit(job)
    }
    fn load(&self) -> Load {
        self.inner.load()
    }
    fn plan(&self) -> Value {
        self.inner.plan()
    }
}

/// A running server.
pub struct Rig {
    pub address: SocketAddr,
    pub loading: Loading,
    voice: Arc<Voice>,
    pub backend: Arc<dyn Backend>,
    prompts: Arc<Mutex<Vec<String>>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// A server that says these answers in turn.
pub fn says(answers: &[&str]) -> Rig {
    let answers: Vec<Value> = answers.iter().map(|a| json!({"steps": [a]})).collect();
    Rig::new(Setup { script: json!({"answers": answers}), ..Setup::default() })
}

impl Rig {
    pub fn new(s: Setup) -> Self {
        let template = s.template.map(|t| ChatTemplate::new(t).unwrap());
        let voice = Arc::new(Voice::new(vocabulary(s.markers), template, s.dialect).unwrap());
        let script = Script::parse(s.script.to_string().as_bytes(), &voice.tokenizer).unwrap();
        let line: Arc<dyn Backend> =
            s.backend.unwrap_or_else(|| Arc::new(script.backend("scripted", &voice, s.places).unwrap()));
        let prompts = Arc::new(Mutex::new(Vec::new()));
        let backend: Arc<dyn Backend> =
            Arc::new(Remembering { inner: line, voice: Arc::clone(&voice), prompts: Arc::clone(&prompts) });
        let loading = Loading::default();
        if s.ready {
            loading.ready(Ready { voice: Arc::clone(&voice), backend: Arc::clone(&backend) });
        }
        let (stop, stopped) = oneshot::channel::<()>();
        let (tell, told) = std::sync::mpsc::channel();
        let (config, state) = (s.config, loading.clone());
        let thread = std::thread::spawn(move || {
            let rt = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
            rt.block_on(async {
                let server = Server::bind(config, state).await.unwrap();
                tell.send(server.address()).unwrap();
                server.run(async { _ = stopped.await }).await;
            });
        });
        let address = told.recv().unwrap();
        Self { address, loading, voice, backend, prompts, stop: Some(stop), thread: Some(thread) }
    }

    /// The model is there.
    pub fn load(&self) {
        self.loading.ready(Ready { voice: Arc::clone(&self.voice), backend: Arc::clone(&self.backend) });
    }

    /// Prompts so far, oldest first.
    pub fn prompts(&self) -> Vec<String> {
        self.prompts.lock().unwrap().clone()
    }

    pub fn stop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
    }

    pub fn stop_and_wait(mut self) -> Duration {
        let begun = Instant::now();
        self.stop();
        self.thread.take().unwrap().join().unwrap();
        begun.elapsed()
    }

    /// Sends a request as it is and returns the connection.
    pub fn open(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> TcpStream {
        let mut s = TcpStream::connect(self.address).unwrap();
        s.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n", body.len());
        headers.iter().for_each(|(k, v)| head.push_str(&format!("{k}: {v}\r\n")));
        s.write_all(format!("{head}\r\n").as_bytes()).unwrap();
        // A server that refuses by the head alone need not read the body.
        let _ = s.write_all(body);
        s
    }

    pub fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Reply {
        Reply::read(self.open(method, path, headers, body), method == "HEAD")
    }

    pub fn get(&self, path: &str) -> Reply {
        self.send("GET", path, &[], b"")
    }

    pub fn post(&self, path: &str, body: &Value) -> Reply {
        self.send("POST", path, &[("content-type", "application/json")], body.to_string().as_bytes())
    }

    pub fn chat(&self, body: Value) -> Reply {
        self.post("/v1/chat/completions", &with(json!({"messages": [user("hi")]}), body))
    }

    pub fn messages(&self, body: Value) -> Reply {
        self.post("/v1/messages", &with(json!({"max_tokens": 4000, "messages": [user("hi")]}), body))
    }

    pub fn responses(&self, body: Value) -> Reply {
        self.post("/v1/responses", &with(json!({"input": "hi"}), body))
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.stop();
        if let Some(t) = self.thread.take()
            && t.join().is_err()
            && !std::thread::panicking()
        {
            panic!("the server panicked");
        }
    }
}

pub fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

/// `a` with the fields of `b`.
pub fn with(mut a: Value, b: Value) -> Value {
    a.as_object_mut().unwrap().extend(b.as_object().unwrap().clone());
    a
}

/// A whole response.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Reply {
    pub fn read(stream: TcpStream, head_only: bool) -> Self {
        let mut r = BufReader::new(stream);
        let (status, headers) = head(&mut r);
        let mut body = Vec::new();
        let is = |name: &str, value: &str| headers.iter().any(|(k, v)| k == name && v == value);
        let length = headers.iter().find(|(k, _)| k == "content-length").and_then(|(_, v)| v.parse::<usize>().ok());
        if head_only {
        } else if is("transfer-encoding", "chunked") {
            while let Some(chunk) = chunk(&mut r) {
                body.extend(chunk);
            }
        } else if let Some(n) = length {
            body.resize(n, 0);
            r.read_exact(&mut body).unwrap();
        }
        Self { status, headers, body }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(k, _)| k == name).map(|(_, v)| v.as_str())
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("a body is UTF-8")
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(self.text()).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    /// Its JSON, if all went well.
    pub fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.text());
        self.json()
    }

    /// Data of its events; `[DONE]` is left out but must be last if it is there.
    pub fn events(&self) -> Vec<Value> {
        assert_eq!(self.status, 200, "{}", self.text());
        let data: Vec<&str> = self.text().lines().filter_map(|l| l.strip_prefix("data: ")).collect();
        let done = data.iter().position(|d| *d == "[DONE]");
        assert!(done.is_none_or(|at| at + 1 == data.len()), "nothing comes after [DONE]");
        data.iter().filter(|d| **d != "[DONE]").map(|d| serde_json::from_str(d).unwrap()).collect()
    }

    /// What an error says, in either dialect.
    pub fn message(&self) -> String {
        self.json()["error"]["message"].as_str().unwrap_or_default().to_owned()
    }
}

/// Reads a response's head.
pub fn head(r: &mut impl BufRead) -> (u16, Vec<(String, String)>) {
    let mut line = String::new();
    r.read_line(&mut line).unwrap();
    let status = line.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or_else(|| panic!("no status in {line:?}"));
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        r.read_line(&mut line).unwrap();
        let Some((k, v)) = line.trim_end().split_once(':') else { break };
        headers.push((k.to_lowercase(), v.trim().to_owned()));
    }
    (status, headers)
}

/// Reads a chunk; `None` is the last one.
pub fn chunk(r: &mut impl BufRead) -> Option<Vec<u8>> {
    let mut line = String::new();
    r.read_line(&mut line).unwrap();
    let n = usize::from_str_radix(line.trim(), 16).unwrap_or_else(|_| panic!("no chunk size in {line:?}"));
    let mut data = vec![0; n + 2];
    r.read_exact(&mut data).unwrap();
    data.truncate(n);
    (n > 0).then_some(data)
}
