//! Runs the binary as a user would.

#![allow(dead_code, reason = "each test file uses its part")]

pub mod served;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// The default model's file, so that tests do not depend on its being in the program.
pub fn default_model() -> String {
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/snug-tiny-moe.gguf").to_string()
}

/// A command in an environment without models.
pub fn command(args: &[&str]) -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_snug"));
    c.args(args).env("SNUG_HOME", "/nowhere/snug-home").env("HOME", "/nowhere/home").stdin(Stdio::null());
    // Models of other programs are looked for under these.
    for name in ["XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE", "OLLAMA_MODELS"] {
        c.env_remove(name);
    }
    c.stdout(Stdio::piped()).stderr(Stdio::piped());
    c
}

/// What a finished process left.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl From<Output> for Ran {
    fn from(o: Output) -> Self {
        let text = |b: Vec<u8>| String::from_utf8(b).expect("output is UTF-8");
        Ran { code: o.status.code(), out: text(o.stdout), err: text(o.stderr) }
    }
}

impl Ran {
    /// Its stdout, if all went well.
    pub fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.out
    }
    pub fn json(self) -> serde_json::Value {
        serde_json::from_str(&self.ok()).expect("stdout is one JSON value")
    }
    /// Its one line on stderr, if it failed with this code and printed nothing else.
    pub fn failed(self, code: i32) -> String {
        assert_eq!(self.code, Some(code), "{self:?}");
        assert_eq!(self.out, "", "{self:?}");
        assert!(self.err.starts_with("error: ") && self.err.ends_with('\n'), "{self:?}");
        assert_eq!(self.err.lines().count(), 1, "{self:?}");
        self.err
    }
}

pub fn snug(args: &[&str]) -> Ran {
    command(args).output().unwrap().into()
}

/// With this on stdin.
pub fn piped(args: &[&str], input: &str) -> Ran {
    let mut child = command(args).stdin(Stdio::piped()).spawn().unwrap();
    // A process that fails early need not read it.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap().into()
}

/// Ctrl-C.
pub fn interrupt(child: &Child) {
    let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
}

/// A tiny model's directory, its configuration changed first.
pub fn tiny(name: &str, change: impl FnOnce(&mut serde_json::Value)) -> tempfile::TempDir {
    let mut model = testkit::model(name).unwrap();
    change(&mut model.config);
    let dir = tempfile::tempdir().unwrap();
    testkit::write_checkpoint(&model, dir.path()).unwrap();
    dir
}

pub fn str(p: &Path) -> &str {
    p.to_str().unwrap()
}

/// The beginning of the default model's file.
pub fn cut_model(dir: &Path, bytes: usize) -> PathBuf {
    let path = dir.join("cut.gguf");
    std::fs::write(&path, &std::fs::read(default_model()).unwrap()[..bytes]).unwrap();
    path
}

pub fn ids(ids: &[u32]) -> String {
    ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}
