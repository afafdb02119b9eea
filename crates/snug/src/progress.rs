//! Progress bars on stderr, where a person is looking; nothing where nobody is.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::sync::{Mutex, PoisonError};

/// The bar that is on the screen, so that a Ctrl-C or an error can take it away.
static SHOWN: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// Prompts of fewer tokens are read too fast for a bar.
const LONG_PROMPT: u64 = 512;

/// A bar that may be invisible. It goes when it is dropped.
pub struct Bar(Option<ProgressBar>);

impl Bar {
    /// A bar over bytes; `what` is done with them.
    pub fn bytes(what: &str) -> Self {
        Self::new(&format!("{what} {{bar:30}} {{bytes}}/{{total_bytes}} {{bytes_per_sec}}"), 0)
    }
    /// A bar over rounds; `what` is done in them.
    pub fn rounds(what: &str, total: u64) -> Self {
        Self::new(&format!("{what} {{bar:30}} {{pos}}/{{len}}"), total)
    }
    /// A bar over the tokens of a prompt.
    pub fn prefill(tokens: u64) -> Self {
        if tokens < LONG_PROMPT {
            Bar(None)
        } else {
            Self::new("reading {bar:30} {pos}/{len} tokens {per_sec}", tokens)
        }
    }
    fn new(template: &str, total: u64) -> Self {
        if !std::io::stderr().is_terminal() {
            return Bar(None);
        }
        let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        let bar = ProgressBar::new(total).with_style(style);
        *shown() = Some(bar.clone());
        Bar(Some(bar))
    }
    /// `done` of `total`.
    pub fn at(&self, done: u64, total: u64) {
        if let Some(b) = &self.0 {
            b.set_length(total);
            b.set_position(done);
        }
    }
    /// Takes it off the screen.
    pub fn clear(&mut self) {
        if self.0.take().is_some() {
            clear();
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Takes whatever bar there is off the screen.
pub fn clear() {
    if let Some(b) = shown().take() {
        b.finish_and_clear();
    }
}

fn shown() -> std::sync::MutexGuard<'static, Option<ProgressBar>> {
    SHOWN.lock().unwrap_or_else(PoisonError::into_inner)
}
