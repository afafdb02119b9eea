//! What is in memory only while it is used, or row by row, for people and in JSON.

use crate::output::{bytes, note};
use engine::{Executor, Leased};
use serde::Serialize;
use weights::RowStats;

/// Says what became of leases, and of an embedding that stays in its file, so far.
pub fn say(exec: &Executor) {
    if let Some(l) = exec.leased() {
        came("predictor", &l);
    }
    if let Some(l) = exec.head() {
        came("head", &l);
    }
    if let Some(s) = exec.embed_rows() {
        note(format_args!(
            "debug: {} of {} rows of the embedding were read from its file, {}, waiting {:.1} ms for them",
            s.missed,
            s.asked,
            bytes(s.read.bytes),
            s.read.waited.as_secs_f64() * 1e3
        ));
    }
}

fn came(what: &str, l: &Leased) {
    note(format_args!(
        "debug: the {what}, {}, is {}; it came {} times, the last time in {:.1} ms, and could not {} times",
        bytes(l.bytes),
        if l.here { "here" } else { "away" },
        l.attached,
        l.last.as_secs_f64() * 1e3,
        l.refused
    ));
}

/// Rows of an embedding that stays in its file.
#[derive(Serialize)]
pub struct Rows {
    /// Rows that steps asked for, each once a step, and of these those that were read.
    asked: u64,
    read: u64,
    read_bytes: u64,
    waiting_s: f64,
}

impl Rows {
    /// Those of an executor so far, where it has such an embedding.
    pub fn of(exec: &Executor) -> Option<Self> {
        let RowStats { asked, missed, read } = exec.embed_rows()?;
        Some(Rows { asked, read: missed, read_bytes: read.bytes, waiting_s: read.waited.as_secs_f64() })
    }
}
