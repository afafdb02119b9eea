//! Ctrl-C: while an answer is being made the first one stops the answer; any other ends the program.

use crate::fault::INTERRUPTED;
use anyhow::Context;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

static ANSWERING: AtomicBool = AtomicBool::new(false);
static STOP: AtomicBool = AtomicBool::new(false);

/// Takes over SIGINT for the rest of the process's life.
pub fn install() -> anyhow::Result<()> {
    ctrlc::set_handler(|| {
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
