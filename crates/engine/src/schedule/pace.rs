//! How a prompt and the answers beside it share time.
//!
//! Every token of the answers leaves the prompt what their patience allows. A piece of the prompt that fits into that is
//! read before the next token. Where not even the least piece fits, what the tokens leave is saved, and one time between two
//! tokens in [`ONE_IN`] is long: it takes what was saved. So 95 of 100 times keep to the patience, the prompt gets the same
//! share of the time, and one that is read in pieces of seconds only waits longer between them.
//!
//! What is planned to fit and does not, because a piece or a token took longer than usual, makes later pieces smaller, until
//! that is seldom.

/// Of so many times between two tokens one may be long on purpose.
pub(super) const ONE_IN: u32 = 25;
/// A token leaves the prompt at least this part of its own time, however little patience there is.
const LEAST: f64 = 0.125;
/// Seconds that nobody waits on purpose for a token, unless the least piece or the least share takes longer.
const LONGEST: f64 = 1.0;
/// A piece that made a time long although it was planned to fit: later ones are planned this much smaller.
const SHRINK: f64 = 0.8;
/// After so many times that kept to the patience they are as large as before.
const REGROW: f64 = 60.0;
/// They are never planned smaller than this part of what patience allows.
const SMALLEST: f64 = 0.25;

/// A token of the answers.
#[derive(Copy, Clone, Debug)]
pub(super) struct Token {
    /// Seconds of one, of one answer alone.
    pub solo: f64,
    /// Seconds of the next, of all answers there are, without a piece of a prompt.
    pub now: f64,
    /// Most time between two, in times of `solo`.
    pub patience: f64,
}

impl Token {
    /// Seconds between two tokens within the patience.
    fn most(&self) -> f64 {
        self.patience * self.solo
    }
    /// Seconds that it leaves a prompt within the patience.
    fn spare(&self) -> f64 {
        (self.most() - self.now).max(0.0)
    }
    /// Seconds that a prompt gets for it, at once or later.
    fn given(&self) -> f64 {
        self.spare().max(self.now * LEAST)
    }
}

/// What was given and taken so far.
#[derive(Copy, Clone, Debug)]
pub(super) struct Pace {
    /// Seconds that prompts were given and did not take yet; below zero, what they took beyond.
    saved: f64,
    /// Times between two tokens since the last long one.
    short: u32,
    /// The part of what patience allows that pieces are planned with.
    margin: f64,
    /// Seconds of the prompt since the last token, and whether they were to be long.
    taken: f64,
    long: bool,
}

impl Default for Pace {
    fn default() -> Self {
        Pace { saved: 0.0, short: ONE_IN, margin: 1.0, taken: 0.0, long: false }
    }
}

impl Pace {
    /// Seconds that a piece of the prompt may take now, where the least takes `need`, as far as that is known; `None`: the
    /// answers go first. The least piece may be more than that.
    pub fn budget(&mut self, t: Token, need: Option<f64>) -> Option<f64> {
        let fits = t.spare() * self.margin;
        self.long = false;
        match need {
            None => Some(0.0),
            Some(s) if s <= fits => Some(fits),
            Some(_) if self.short + 1 >= ONE_IN && self.saved >= 0.0 => {
                self.long = true;
                Some(self.saved.min(LONGEST.max(t.now * LEAST * f64::from(ONE_IN))))
            }
            Some(_) => None,
        }
    }

    /// A piece took so many seconds.
    pub fn read(&mut self, took: f64) {
        self.taken += took;
        self.saved -= took;
    }

    /// The answers got a token, which took so many seconds; `beside` a prompt or not.
    pub fn answered(&mut self, beside: Option<Token>, took: f64) {
        let (taken, long) = (std::mem::take(&mut self.taken), std::mem::take(&mut self.long));
        self.short = self.short.saturating_add(1);
        let Some(t) = beside else { return };
        self.saved = (self.saved + t.given()).min(t.given() * f64::from(ONE_IN));
        if taken > 0.0 && taken + took > t.most() {
            self.short = 0;
            self.margin *= if long { 1.0 } else { SHRINK };
        } else {
            self.margin *= SHRINK.powf(-1.0 / REGROW);
        }
        self.margin = self.margin.clamp(SMALLEST, 1.0);
    }
}
