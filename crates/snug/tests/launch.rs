//! Agents are told of a server and started; what a person has configured stays as it is.

mod common;

use common::{Ran, command, str};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};

const AGENTS: [(&str, &str); 5] = [
    ("claude", ".claude/settings.json"),
    ("codex", ".codex/config.toml"),
    ("opencode", ".config/opencode/opencode.json"),
    ("openclaw", ".openclaw/openclaw.json"),
    ("qwen", ".qwen/settings.json"),
];

/// A server that says what it serves, and reads prompts.
fn server(context: u32) -> String {
    loading_server(context, 0)
}

/// The same, which loads its model until it was asked `looks` times how far it is.
fn loading_server(context: u32, looks: usize) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let mut left = looks;
        listener.incoming().flatten().for_each(|s| answer(s, context, &mut left));
    });
    url
}

fn answer(stream: TcpStream, context: u32, loading: &mut usize) {
    let mut lines = BufReader::new(stream.try_clone().unwrap());
    let (mut request, mut line, mut length, mut key) = (String::new(), String::new(), 0, String::new());
    lines.read_line(&mut request).unwrap();
    while lines.read_line(&mut line).unwrap() > 2 {
        let lower = line.to_lowercase();
        if let Some(n) = lower.strip_prefix("content-length:") {
            length = n.trim().parse().unwrap();
        }
        if let Some(k) = lower.strip_prefix("authorization: bearer") {
            key = k.trim().into();
        }
        line.clear();
    }
    lines.read_exact(&mut vec![0; length]).unwrap();
    let (status, body) = match request.split(' ').nth(1).unwrap() {
        _ if key == "wrong" => ("401 Unauthorized", "{}".into()),
        "/health" if *loading > 0 => {
            *loading -= 1;
            ("503 Service Unavailable", r#"{"status":"loading","progress":0.25}"#.to_string())
        }
        "/health" => ("200 OK", "{}".into()),
        _ if *loading > 0 => panic!("it was asked before it was ready"),
        "/v1/models" => ("200 OK", format!(r#"{{"data":[{{"id":"a-model","context_length":{context}}}]}}"#)),
        "/v1/completions" => ("200 OK", r#"{"usage":{"prompt_tokens":64}}"#.to_string()),
        path => panic!("{path} was asked"),
    };
    let _ = write!(&stream, "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len());
}

/// A home with every agent configured, and programs that write down how they were started.
struct Home(tempfile::TempDir);

impl Home {
    fn new() -> Self {
        let home = Home(tempfile::tempdir().unwrap());
        for (name, config) in AGENTS {
            home.put(config, &format!("the {name} of a person"), 0o644);
            let said = home.path(name);
            let script =
                format!("#!/bin/sh\nenv > '{0}.env'\nprintf '%s\\n' \"$@\" > '{0}.args'\nexit 7\n", str(&said));
            home.put(&format!("bin/{name}"), &script, 0o755);
        }
        home
    }
    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
    fn put(&self, name: &str, text: &str, mode: u32) {
        use std::os::unix::fs::PermissionsExt;
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
    fn launch(&self, args: &[&str]) -> Ran {
        let mut c = command(&[&["launch"], args].concat());
        c.env("HOME", self.0.path()).env("SNUG_HOME", self.path("own")).env_remove("SNUG_API_KEY");
        c.env("PATH", format!("{}:/usr/bin:/bin", str(&self.path("bin"))));
        c.envs([("OPENAI_API_KEY", "cloud"), ("ANTHROPIC_API_KEY", "cloud"), ("GEMINI_API_KEY", "cloud")]);
        c.env("HTTPS_PROXY", "http://proxy.invalid:1").env_remove("NO_PROXY").env_remove("no_proxy");
        c.output().unwrap().into()
    }
    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }
    fn started_with(&self, agent: &str) -> (BTreeMap<String, String>, Vec<String>) {
        let env = self.read(&format!("{agent}.env"));
        let env = env.lines().filter_map(|l| l.split_once('=')).map(|(k, v)| (k.into(), v.into())).collect();
        (env, self.read(&format!("{agent}.args")).lines().map(String::from).collect())
    }
    fn untouched(&self) {
        for (name, config) in AGENTS {
            assert_eq!(self.read(config), format!("the {name} of a person"));
            let beside = std::fs::read_dir(self.path(config).parent().unwrap()).unwrap().count();
            assert_eq!(beside, 1, "{name}: nothing is put beside it");
        }
    }
}

#[test]
fn an_agent_is_started_when_the_server_has_loaded_its_model() {
    let (home, url) = (Home::new(), loading_server(100_000, 3));
    let r = home.launch(&["claude", "--url", &url]);
    assert_eq!(r.code, Some(7), "{r:?}");
    assert_eq!(r.err.matches("is loading its model (25%)").count(), 1, "{}", r.err);
    assert_eq!(home.started_with("claude").0["ANTHROPIC_BASE_URL"], url);
}

#[test]
fn every_agent_starts_with_the_server_and_without_the_keys_of_others() {
    let (home, url) = (Home::new(), server(100_000));
    for (agent, _) in AGENTS {
        let r = home.launch(&[agent, "--url", &url, "--api-key", "word", "--", "do", "it now"]);
        assert_eq!(r.code, Some(7), "{agent} ends as it ended: {r:?}");
        assert!(r.err.contains("a first turn of 20000 tokens takes at least"), "{agent}: {}", r.err);
        let (env, args) = home.started_with(agent);
        assert_eq!(args[args.len() - 2..], ["do", "it now"], "{agent}");
        assert!(!env.values().any(|v| v == "cloud"), "{agent} has no key of another service");
        assert!(env.values().any(|v| v == "word"), "{agent} has the key of this one");
        assert_eq!(env["NO_PROXY"], "127.0.0.1", "{agent}");
        let files = [home.path("own/agents").join(agent)].into_iter().filter(|d| d.is_dir());
        let texts =
            files.flat_map(|d| std::fs::read_dir(d).unwrap()).map(|f| std::fs::read_to_string(f.unwrap().path()));
        let mut told = texts.map(Result::unwrap).collect::<Vec<_>>().join("\n") + &args.join("\n");
        env.values().for_each(|v| told += v);
        assert!(told.contains(&url) && told.contains("100000") && told.contains("a-model"), "{agent}: {told}");
        home.untouched();
    }
}

#[test]
fn a_dry_run_shows_everything_and_does_nothing() {
    let (home, url) = (Home::new(), server(65_536));
    for (agent, _) in AGENTS {
        let r = home.launch(&[agent, "--url", &url, "--api-key", "word", "--dry-run"]);
        let out = r.ok();
        assert!(out.contains("a-model, 65536 positions") && out.contains(&format!("start    {agent}")), "{out}");
        for name in ["ANTHROPIC_API_KEY", "GEMINI_API_KEY", "OPENAI_API_KEY"] {
            assert!(out.contains(&format!("without  {name}\n")), "{out}");
        }
        assert!(!out.contains("word") && out.contains("(the key)"), "no key on the screen: {out}");
        assert!(!home.path("own").exists() && !home.path(&format!("{agent}.env")).exists(), "{agent}");
    }
    home.untouched();
}

#[test]
fn a_dry_run_without_a_server_goes_by_the_file() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let url = format!("http://127.0.0.1:{port}");
    let home = Home::new();
    let r = home.launch(&["codex", "--url", &url, "--model", &common::default_model(), "--dry-run"]);
    assert!(r.err.contains("one would be started"), "{}", r.err);
    assert!(r.err.contains("warning: an agent's first prompt is about 20000 tokens"), "{}", r.err);
    assert!(r.ok().contains("model_context_window=2048"));
}

#[test]
fn what_cannot_be_is_one_line() {
    let (home, url, small) = (Home::new(), server(65_536), server(8_192));
    std::fs::remove_file(home.path("bin/codex")).unwrap();
    for (args, said) in [
        (&["claude", "--url", "http://192.0.2.1.invalid:1"][..], "no server answers at http://192.0.2.1.invalid:1"),
        (&["claude", "--url", "https://host"], "http://host:port"),
        (&["claude", "--url", &url, "--model", "other"], "has a-model, not 'other'"),
        (&["claude", "--url", &url, "--api-key", "wrong"], "refuses this key"),
        (&["codex", "--url", &url], "`npm install -g @openai/codex` installs it"),
        (&["openclaw", "--url", &small], "openclaw needs 16000 positions; a-model has 8192"),
        (&["vim"], "vim"),
    ] {
        let err = home.launch(args).failed(2);
        assert!(err.contains(said), "{args:?}: {err}");
    }
    home.untouched();
    assert!(!Path::new(&home.path("own")).exists());
}
