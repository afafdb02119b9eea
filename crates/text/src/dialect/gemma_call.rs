//! The body of a Gemma 4 call, `key:VALUE,…}`, to JSON. Strings stand between `<|"|>` tokens, keys are bare, or between them
//! too.

use super::{
    After, Flow, Head,
    event::Emitter,
    json::{escape, quote, scalar},
    symbols::{Match, Pattern, Sym},
    syntax::Compiled,
    tagged::MAX_NAME,
};

/// Reads `call:NAME{`.
pub(super) fn head(c: &Compiled, syms: &[Sym]) -> Head {
    let n = match Pattern::new("<|tool_call>␣call␣:␣", &c.marks).at(syms) {
        Match::Full(n) => n,
        Match::Partial => return Head::Partial,
        Match::No => return Head::No,
    };
    let mut name = String::new();
    for (i, s) in syms[n..].iter().enumerate() {
        match s {
            Sym::Char('{') if !name.is_empty() => return Head::Full { len: n + i + 1, name, then: After::Fields },
            Sym::Char(ch) if !ch.is_whitespace() && !"{}<>,".contains(*ch) && name.len() < MAX_NAME => name.push(*ch),
            _ => return Head::No,
        }
    }
    Head::Partial
}

const MAX_DEPTH: usize = 128;

/// A bare word without the pair of quotes of JSON that a model may have put around it.
fn unquoted(word: &str) -> &str {
    word.strip_prefix('"').and_then(|w| w.strip_suffix('"')).unwrap_or(word)
}

/// Whether a bare key is read back as it was written.
pub(crate) fn stands_bare(key: &str) -> bool {
    let marks = key.contains(['{', '}', '[', ']', ',', ':']) || key.contains("<|");
    !key.is_empty() && key.trim() == key && !marks && unquoted(key) == key && key.len() < MAX_NAME
}

/// A call after its name and opening brace.
#[derive(Debug)]
pub(super) struct Body {
    /// For each open bracket, whether it is `{`.
    stack: Vec<bool>,
    state: State,
    /// A comma is due before the next element.
    comma: bool,
    word: String,
    opened: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Key,
    Value,
    Word,
    After,
    Text { key: bool },
    Colon,
}

impl Body {
    pub fn new() -> Self {
        Self { stack: vec![true], state: State::Key, comma: false, word: String::new(), opened: false }
    }

    /// Takes what it can from the front of `syms`.
    pub fn step(&mut self, c: &Compiled, syms: &[Sym], out: &mut Emitter) -> (usize, Flow) {
        if !std::mem::replace(&mut self.opened, true) {
            out.args().push('{');
        }
        let quote = c.gemma_quote.at(syms);
        if quote == Match::Partial {
            return (0, Flow::Wait);
        }
        match (self.state, quote, syms[0]) {
            (State::Text { key }, Match::Full(n), _) => {
                out.args().push('"');
                self.state = if key { State::Colon } else { State::After };
                (n, Flow::Go)
            }
            (State::Text { .. }, _, Sym::Char(ch)) => {
                escape(ch, out.args());
                (1, Flow::Go)
            }
            (State::Text { .. }, _, Sym::Mark(m)) => {
                c.marks.text(m).chars().for_each(|ch| escape(ch, out.args()));
                (1, Flow::Go)
            }
            (State::Key | State::Value, Match::Full(n), _) if self.word.is_empty() => {
                self.element(out);
                out.args().push('"');
                self.state = State::Text { key: self.state == State::Key };
                (n, Flow::Go)
            }
            (_, Match::Full(_), _) => (0, Flow::Broken),
            (State::Word, _, s) => self.in_word(s, out),
            (_, _, Sym::Char(ch)) => self.plain(ch, out),
            (_, _, Sym::Mark(_)) => (0, Flow::Broken),
        }
    }

    fn element(&mut self, out: &mut Emitter) {
        if std::mem::take(&mut self.comma) {
            out.args().push(',');
        }
    }

    fn plain(&mut self, ch: char, out: &mut Emitter) -> (usize, Flow) {
        if ch.is_whitespace() && self.word.is_empty() {
            return (1, Flow::Go);
        }
        match (self.state, ch) {
            (State::Key, '}') if self.word.is_empty() => return self.close(ch, out),
            (State::Key, ':') if !self.word.trim().is_empty() => {
                self.element(out);
                let key = std::mem::take(&mut self.word);
                quote(unquoted(key.trim()), out.args());
                out.args().push(':');
                self.state = State::Value;
            }
            (State::Key, _) if !"{}[],".contains(ch) && self.word.len() < MAX_NAME => self.word.push(ch),
            (State::Colon, ':') => {
                out.args().push(':');
                self.state = State::Value;
            }
            (State::Value, '{' | '[') if self.stack.len() < MAX_DEPTH => {
                self.element(out);
                out.args().push(ch);
                self.stack.push(ch == '{');
                self.state = if ch == '{' { State::Key } else { State::Value };
            }
            (State::Value, ']') if self.stack.last() == Some(&false) => return self.close(ch, out),
            (State::Value, _) if !"{}[],:".contains(ch) => {
                self.word.push(ch);
                self.state = State::Word;
            }
            (State::After, ',') => {
                self.comma = true;
                self.state = if self.stack.last() == Some(&true) { State::Key } else { State::Value };
            }
            (State::After, '}' | ']') => return self.close(ch, out),
            _ => return (0, Flow::Broken),
        }
        (1, Flow::Go)
    }

    /// A bare value: a number or word of JSON, or else a string whose quotes were forgotten.
    fn in_word(&mut self, sym: Sym, out: &mut Emitter) -> (usize, Flow) {
        match sym {
            Sym::Char(',' | '}' | ']') => {
                self.element(out);
                let word = std::mem::take(&mut self.word);
                match scalar(word.trim()) {
                    Some(json) => out.args().push_str(&json),
                    None => quote(unquoted(word.trim()), out.args()),
                }
                self.state = State::After;
                (0, Flow::Go)
            }
            Sym::Char(ch) if self.word.len() < 4096 => {
                self.word.push(ch);
                (1, Flow::Go)
            }
            _ => (0, Flow::Broken),
        }
    }

    fn close(&mut self, ch: char, out: &mut Emitter) -> (usize, Flow) {
        if self.stack.pop() != Some(ch == '}') {
            return (0, Flow::Broken);
        }
        self.comma = false;
        out.args().push(ch);
        self.state = State::After;
        if self.stack.is_empty() {
            out.end();
            return (1, Flow::Done);
        }
        (1, Flow::Go)
    }
}
