//! Ctrl-C: while an answer is being made the first one stops the answer; while another program has the terminal it is that
//! program's; any other ends this one.

use crate::fault::INTERRUPTED;
use anyhow::Context;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

static ANSWERING: AtomicBool = AtomicBool::new(false);
static ANOTHERS: AtomicBool = AtomicBool::new(false);
static STOP: AtomicBool = AtomicBool::new(false);

/// Takes over SIGINT for the rest of the process's life.
pub fn install() -> anyhow::Result<()> {
    ctrlc::set_handler(|| {
        if ANOTHERS.load(SeqCst) {
            return;
        }
        if ANSWERING.load(SeqCst) && !STOP.swap(true, SeqCst) {
            return;
        }
        crate::progress::clear();
        std::process::exit(INTERRUPTED.into());
    })
    .context("cannot take over Ctrl-C")
}

/// Runs `f` as the making of an answer: the flag it is given becomes true when Ctrl-C is pressed.
pub fn answering<R>(f: impl FnOnce(&AtomicBool) -> R) -> R {
    STOP.store(false, SeqCst);
    ANSWERING.store(true, SeqCst);
    let r = f(&STOP);
    ANSWERING.store(false, SeqCst);
    r
}

/// Runs `f` while another program has the terminal.
pub fn left_to_another<R>(f: impl FnOnce() -> R) -> R {
    ANOTHERS.store(true, SeqCst);
    let r = f();
    ANOTHERS.store(false, SeqCst);
    r
}
