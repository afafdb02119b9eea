//! stdout: streamed text, lines, JSON. A reader that went away is an error like any other, told apart in `fault`.

use anyhow::Context;
use serde::Serialize;
use std::fmt::Display;
use std::io::Write;

/// Streams text and remembers the first failure, for callbacks that cannot return one.
#[derive(Default)]
pub struct Stream {
    failed: Option<std::io::Error>,
    ends_in_newline: bool,
    any: bool,
}

impl Stream {
    /// Writes and flushes; false once writing has failed.
    pub fn push(&mut self, text: &str) -> bool {
        if self.failed.is_none() && !text.is_empty() {
            let mut out = std::io::stdout().lock();
            self.failed = out.write_all(text.as_bytes()).and_then(|()| out.flush()).err();
            (self.any, self.ends_in_newline) = (true, text.ends_with('\n'));
        }
        self.failed.is_none()
    }
    /// Ends the last line, if it is not ended.
    ///
    /// # Errors
    /// The first failure to write.
    pub fn finish(mut self) -> anyhow::Result<()> {
        if self.any && !self.ends_in_newline {
            self.push("\n");
        }
        self.failed.map_or(Ok(()), |e| Err(e).context("cannot write to stdout"))
    }
}

/// One line on stdout.
pub fn line(what: impl Display) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{what}").and_then(|()| out.flush()).context("cannot write to stdout")
}

/// One JSON value on one line. Floats are written as briefly as reads back to the same value.
pub fn json(value: &impl Serialize) -> anyhow::Result<()> {
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    serde_json::to_writer(&mut out, value).map_err(std::io::Error::from).context("cannot write to stdout")?;
    writeln!(out).and_then(|()| out.flush()).context("cannot write to stdout")
}

/// Something a person may want to know, on stderr. Nobody reading it is no failure.
pub fn note(what: impl Display) {
    let _ = writeln!(std::io::stderr().lock(), "{what}");
}

/// Bytes for people.
pub fn bytes(n: u64) -> String {
    indicatif::BinaryBytes(n).to_string()
}
