//! `snug serve` as a process.

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command};

/// A server, which ends with the value.
pub struct Served {
    child: Child,
    address: String,
}

impl Served {
    pub fn start(args: &[&str]) -> Self {
        let mut child = super::command(&[&["serve", "--port", "0"], args].concat()).spawn().unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let (mut address, mut line) = (None, String::new());
        while !line.contains(" is ready") {
            line.clear();
            assert!(log.read_line(&mut line).unwrap() > 0, "it ended before it was ready");
            if let Some(a) = line.trim().strip_prefix("listening on http://") {
                address = Some(a.to_owned());
            }
        }
        // The log must be read on, or the process would block on it.
        std::thread::spawn(move || _ = log.read_to_end(&mut Vec::new()));
        Self { child, address: address.unwrap() }
    }

    pub fn get(&self, path: &str) -> Value {
        Self::whole(&self.send("GET", path, ""))
    }

    pub fn post(&self, path: &str, body: &Value) -> String {
        self.send("POST", path, &body.to_string())
    }

    fn send(&self, method: &str, path: &str, body: &str) -> String {
        let mut s = TcpStream::connect(&self.address).unwrap();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        s.write_all(head.as_bytes()).unwrap();
        s.write_all(body.as_bytes()).unwrap();
        let mut all = String::new();
        s.read_to_string(&mut all).unwrap();
        all
    }

    pub fn json(&self, path: &str, body: &Value) -> Value {
        Self::whole(&self.post(path, body))
    }

    fn whole(all: &str) -> Value {
        let (head, body) = all.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200"), "{all}");
        serde_json::from_str(body).unwrap_or_else(|e| panic!("{e}: {all}"))
    }

    pub fn terminate(mut self) -> Option<i32> {
        let sent = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status().unwrap();
        assert!(sent.success());
        self.child.wait().unwrap().code()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
