//! The server an agent is to use: asked over HTTP what it serves, or started.

use super::Served;
use serde_json::{Value, json};
use std::fs::File;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// What goes wrong on the way to a server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Its address cannot be used.
    #[error("--url '{url}' {why}")]
    Address {
        /// As it was given.
        url: String,
        /// What is the matter.
        why: &'static str,
    },
    /// Nobody answers.
    #[error("no server answers at {url}: {why}")]
    Silent {
        /// Where.
        url: String,
        /// What the connection failed with.
        why: String,
    },
    /// It wants a key, or another one.
    #[error("the server at {0} refuses this key; --api-key (or SNUG_API_KEY) gives it")]
    Key(String),
    /// What it answers is not what such a server answers.
    #[error("{url} answers {path} with {what}; is it a server of this program?")]
    Strange {
        /// Where.
        url: String,
        /// Which path.
        path: &'static str,
        /// With what.
        what: String,
    },
    /// It serves something else.
    #[error("the server at {url} has {has}, not '{asked}'; leave --model out, or name another server with --url")]
    Model {
        /// Where.
        url: String,
        /// What it serves.
        has: String,
        /// What was asked for.
        asked: String,
    },
    /// A server that was started here came to nothing.
    #[error("the server ended before it was ready ({status}): {said}", said = last_line(log))]
    Ended {
        /// How.
        status: ExitStatus,
        /// What it wrote.
        log: PathBuf,
    },
    /// A process cannot be started or watched.
    #[error("cannot run `snug serve`")]
    Process(#[source] std::io::Error),
    /// Its log cannot be written.
    #[error("cannot write {}", path.display())]
    Log {
        /// Where.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
}

/// The end of a log, which says why.
fn last_line(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let last = text.lines().rev().find(|l| !l.trim().is_empty()).unwrap_or("it said nothing");
    last.trim_start_matches("error: ").to_string()
}

/// What a server does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum State {
    /// Nobody answers.
    Silent,
    /// It loads its model; this share of it is there.
    Loading(f64),
    /// It answers requests.
    Ready,
    /// Anything else; asking it for its models tells more.
    Other,
}

/// A client of one server.
pub struct Client {
    agent: ureq::Agent,
    url: String,
    key: Option<String>,
}

/// Answers of the paths used here are short, but for a probe, whose time is what is wanted.
const PATIENCE: Duration = Duration::from_secs(600);

impl Client {
    /// A client of the server at an address like `http://127.0.0.1:8080`. The address of a path under `/v1` will do.
    ///
    /// # Errors
    /// [`Error::Address`].
    pub fn new(url: &str, key: Option<String>) -> Result<Self, Error> {
        let bad = |why| Error::Address { url: url.into(), why };
        let short = url.trim_end_matches('/').trim_end_matches("/v1").trim_end_matches('/');
        let Some(rest) = short.strip_prefix("http://") else {
            return Err(bad("is not of the form http://host:port; for TLS put a proxy of your own before the server"));
        };
        if rest.is_empty() || rest.contains(['/', ' ', '@', '?', '#']) {
            return Err(bad("is not of the form http://host:port"));
        }
        // The environment's proxies are for the world outside.
        let config = ureq::Agent::config_builder()
            .proxy(None)
            .http_status_as_error(false)
            .timeout_connect(Some(Duration::from_secs(5)))
            .timeout_global(Some(PATIENCE));
        Ok(Client { agent: config.build().new_agent(), url: short.into(), key })
    }

    /// Its address, without a slash at the end.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The host in its address, without the port.
    pub fn host(&self) -> &str {
        let rest = self.url.trim_start_matches("http://");
        match rest.strip_prefix('[').and_then(|r| r.split_once(']')) {
            Some((v6, _)) => v6,
            None => rest.split(':').next().unwrap_or(rest),
        }
    }

    /// Whether it is on this machine, so that one can be started.
    pub fn is_loopback(&self) -> bool {
        self.host() == "localhost" || self.host().parse::<IpAddr>().is_ok_and(|a| a.is_loopback())
    }

    fn silent(&self, e: &ureq::Error) -> Error {
        Error::Silent { url: self.url.clone(), why: e.to_string() }
    }

    fn bearer(&self) -> String {
        format!("Bearer {}", self.key.as_deref().unwrap_or("none"))
    }

    fn read(&self, path: &'static str, answer: Answer) -> Result<Value, Error> {
        let mut answer = answer.map_err(|e| self.silent(&e))?;
        let status = answer.status().as_u16();
        let text = answer.body_mut().read_to_string().map_err(|e| self.silent(&e))?;
        let strange = |what: String| Error::Strange { url: self.url.clone(), path, what };
        match (status, serde_json::from_str(&text)) {
            (401 | 403, _) => Err(Error::Key(self.url.clone())),
            (200, Ok(v)) => Ok(v),
            (200, Err(_)) => Err(strange("something that is not JSON".into())),
            (_, Ok(v)) => {
                let said = v.pointer("/error/message").and_then(Value::as_str).unwrap_or("no message").to_string();
                Err(strange(format!("status {status} ({said})")))
            }
            (_, Err(_)) => Err(strange(format!("status {status}"))),
        }
    }

    /// What it serves: this model, or its first.
    ///
    /// # Errors
    /// [`Error::Silent`] where nobody answers, and the others as their names say.
    pub fn served(&self, model: Option<&str>) -> Result<Served, Error> {
        let asked = self.agent.get(format!("{}/v1/models", self.url)).header("authorization", self.bearer()).call();
        let all = self.read("/v1/models", asked)?;
        let strange = |what: &str| Error::Strange { url: self.url.clone(), path: "/v1/models", what: what.into() };
        let list = all["data"].as_array().filter(|l| !l.is_empty()).ok_or_else(|| strange("no list of models"))?;
        let ids: Vec<&str> = list.iter().filter_map(|m| m["id"].as_str()).collect();
        let one = match model {
            None => &list[0],
            Some(name) => list.iter().find(|m| is_called(m, name)).ok_or_else(|| Error::Model {
                url: self.url.clone(),
                has: ids.join(", "),
                asked: name.into(),
            })?,
        };
        let id = one["id"].as_str().ok_or_else(|| strange("a model without an id"))?;
        let context = one["context_length"].as_u64().and_then(|n| u32::try_from(n).ok()).filter(|n| *n > 0);
        Ok(Served {
            url: self.url.clone(),
            key: self.key.clone().unwrap_or_else(|| "none".into()),
            model: id.into(),
            context: context.ok_or_else(|| strange("a model without a context_length"))?,
            tools: one["capabilities"].as_array().is_none_or(|c| c.iter().any(|c| c == "tools")),
        })
    }

    /// What it says about itself.
    pub fn state(&self) -> State {
        let health = self.agent.get(format!("{}/health", self.url)).header("authorization", self.bearer()).call();
        let Ok(mut health) = health else { return State::Silent };
        let text = health.body_mut().read_to_string().unwrap_or_default();
        let said: Value = serde_json::from_str(&text).unwrap_or_default();
        match (health.status().as_u16(), said["status"].as_str()) {
            (200, _) => State::Ready,
            (503, Some("loading")) => State::Loading(said["progress"].as_f64().unwrap_or(0.0)),
            _ => State::Other,
        }
    }

    /// Waits as long as it loads its model, telling `on` which share of it is there.
    pub fn wait(&self, on: &mut dyn FnMut(f64)) {
        while let State::Loading(share) = self.state() {
            on(share);
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Has it read a text and answer with one token; the tokens it read, and how long that took.
    ///
    /// # Errors
    /// As [`served`](Self::served).
    pub fn read_text(&self, model: &str, text: &str) -> Result<(u64, Duration), Error> {
        let body = json!({"model": model, "prompt": text, "max_tokens": 1, "temperature": 0});
        let begun = Instant::now();
        let ask = self.agent.post(format!("{}/v1/completions", self.url)).header("authorization", self.bearer());
        let answer = ask.header("content-type", "application/json").send(body.to_string());
        let answer = self.read("/v1/completions", answer)?;
        let took = begun.elapsed();
        let reused = answer.pointer("/usage/prompt_tokens_details/cached_tokens").and_then(Value::as_u64);
        let read = answer.pointer("/usage/prompt_tokens").and_then(Value::as_u64);
        let strange = || Error::Strange { url: self.url.clone(), path: "/v1/completions", what: "no usage".into() };
        Ok((read.ok_or_else(strange)?.saturating_sub(reused.unwrap_or(0)), took))
    }
}

/// Whether a model goes by that name.
fn is_called(model: &Value, name: &str) -> bool {
    model["id"] == name || model["aliases"].as_array().is_some_and(|a| a.iter().any(|a| a == name))
}

type Answer = Result<ureq::http::Response<ureq::Body>, ureq::Error>;

/// A server started for an agent. It ends with it.
pub struct Started(Child);

impl Started {
    /// Starts `snug serve` and waits until its model is loaded. What it says goes to a file, since the terminal will be the
    /// agent's.
    ///
    /// # Errors
    /// [`Error::Process`] and [`Error::Log`], and [`Error::Ended`] where it gives up.
    pub fn start(model: Option<&str>, client: &Client, log: &Path) -> Result<Self, Error> {
        let unwritten = |source| Error::Log { path: log.into(), source };
        std::fs::create_dir_all(log.parent().unwrap_or(log)).map_err(unwritten)?;
        let said = File::create(log).map_err(unwritten)?;
        let program = std::env::current_exe().map_err(Error::Process)?;
        let port = match client.url.rsplit_once(':') {
            Some((_, p)) if p.parse::<u16>().is_ok() => p,
            _ => "80",
        };
        let mut command = Command::new(program);
        command.arg("serve").args(model).args(["--host", client.host(), "--port", port]);
        if let Some(key) = &client.key {
            // Not an argument, which every process could read.
            command.env("SNUG_API_KEY", key);
        }
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(said).spawn().map_err(Error::Process)?;
        let mut started = Started(child);
        loop {
            if let Some(status) = started.0.try_wait().map_err(Error::Process)? {
                return Err(Error::Ended { status, log: log.into() });
            }
            if client.state() == State::Ready {
                return Ok(started);
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// How long a server may take to finish what it does.
const TO_DRAIN: Duration = Duration::from_secs(5);

impl Drop for Started {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.0);
        // A process that ended by itself is all that can fail here.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let until = Instant::now() + TO_DRAIN;
        while Instant::now() < until {
            if !matches!(self.0.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_taken_as_people_write_them() {
        for (given, url, host) in [
            ("http://127.0.0.1:8080", "http://127.0.0.1:8080", "127.0.0.1"),
            ("http://localhost:9/v1/", "http://localhost:9", "localhost"),
            ("http://[::1]:80/", "http://[::1]:80", "::1"),
        ] {
            let c = Client::new(given, None).unwrap();
            assert_eq!((c.url(), c.host(), c.is_loopback()), (url, host, true));
        }
        assert!(!Client::new("http://10.0.0.1:8080", None).unwrap().is_loopback());
        for bad in ["", "localhost:8080", "https://x", "http://", "http://a/b/c", "http://u@h"] {
            assert!(matches!(Client::new(bad, None), Err(Error::Address { .. })), "{bad}");
        }
    }
}
