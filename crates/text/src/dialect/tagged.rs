//! Calls written as tags with raw values between them: one machine for Qwen3.5, DeepSeek-V4, GLM and MiniMax.

use super::{
    After, Flow, Head,
    event::Emitter,
    json,
    schema::{Fields, Types},
    symbols::{Match, Sym, first},
    syntax::{Compiled, TaggedPatterns},
    value::ParamValue,
};

/// The longest name of a tool or parameter, in characters.
pub(super) const MAX_NAME: usize = 256;

/// Reads the beginning of a call up to its name. `section`: a section of calls is open.
pub(super) fn head(p: &TaggedPatterns, syms: &[Sym], section: bool) -> Head {
    let mut partial = false;
    for (i, h) in p.heads.iter().enumerate() {
        if i == 1 && !section && !p.shape.bare {
            continue;
        }
        match h.at(syms) {
            Match::Full(n) => match name(p, syms, n) {
                Head::No => {}
                found => return found,
            },
            Match::Partial => partial = true,
            Match::No => {}
        }
    }
    if partial { Head::Partial } else { Head::No }
}

fn name(p: &TaggedPatterns, syms: &[Sym], from: usize) -> Head {
    let mut name = String::new();
    let mut at = from;
    // Without an end of its own, a name stands on the rest of its line.
    let open_end = p.shape.name_end.is_empty();
    while open_end && name.is_empty() && syms.get(at).is_some_and(|s| s.is_space()) && at - from < 8 {
        at += 1;
    }
    loop {
        let rest = &syms[at..];
        let end = if open_end {
            match (rest.first(), first(&p.followers, rest).0) {
                (Some(s), _) if s.is_space() => Match::Full(0),
                (_, Match::Full(_)) => Match::Full(0),
                (_, other) => other,
            }
        } else {
            p.name_end.at(rest)
        };
        match (end, rest.first()) {
            (Match::Full(n), _) if !name.is_empty() => return Head::Full { len: at + n, name, then: After::Fields },
            (Match::Full(_), _) => return Head::No,
            (Match::Partial, _) | (_, None) => return Head::Partial,
            (Match::No, Some(Sym::Char(c)))
                if !c.is_whitespace() && !"<>\"{}".contains(*c) && name.len() < MAX_NAME =>
            {
                name.push(*c);
                at += 1;
            }
            _ => return Head::No,
        }
    }
}

/// A call after its name.
#[derive(Debug)]
pub(super) struct Body {
    fields: Fields,
    state: State,
    any: bool,
    /// The section around the call was closed with it.
    pub closed: bool,
}

#[derive(Debug)]
enum State {
    Between,
    Key(String),
    /// Before a value's first symbol.
    Open(Types),
    Value {
        value: ParamValue,
        lines: bool,
    },
}

impl Body {
    pub fn new(fields: Fields) -> Self {
        Self { fields, state: State::Between, any: false, closed: false }
    }

    /// Takes what it can from the front of `syms`; says how many and how it goes on.
    pub fn step(&mut self, c: &Compiled, p: &TaggedPatterns, syms: &[Sym], out: &mut Emitter) -> (usize, Flow) {
        match &mut self.state {
            State::Between => self.between(c, p, syms, out),
            State::Key(key) => {
                let (found, which) = first(&p.key_end, syms);
                match (found, syms[0]) {
                    (Match::Full(n), _) => {
                        let types = match p.shape.key_end[which].1 {
                            Some(true) => Types::STRING,
                            Some(false) => {
                                let t = self.fields.get(key).without_string();
                                if t == Types::NONE { Types::ANY.without_string() } else { t }
                            }
                            None => self.fields.get(key),
                        };
                        let args = out.args();
                        args.push(if self.any { ',' } else { '{' });
                        json::quote(key, args);
                        args.push(':');
                        self.any = true;
                        self.state = State::Open(types);
                        (n, Flow::Go)
                    }
                    (Match::Partial, _) => (0, Flow::Wait),
                    (Match::No, Sym::Char(ch)) if key.len() < MAX_NAME => {
                        key.push(ch);
                        (1, Flow::Go)
                    }
                    _ => (0, Flow::Broken),
                }
            }
            State::Open(types) => {
                let lines = p.shape.value_lines && syms[0] == Sym::Char('\n');
                self.state = State::Value { value: ParamValue::new(*types), lines };
                (usize::from(lines), Flow::Go)
            }
            State::Value { value, lines } => {
                let (mut found, mut which) = if *lines { first(&p.value_end_lines, syms) } else { (Match::No, 0) };
                if found == Match::No {
                    (found, which) = first(&p.value_end, syms);
                }
                match found {
                    Match::Full(n) => {
                        // What follows was only looked at.
                        let n = n - p.followers[which].len();
                        if let State::Value { value, .. } = std::mem::replace(&mut self.state, State::Between) {
                            value.finish(out.args());
                        }
                        (n, Flow::Go)
                    }
                    Match::Partial => (0, Flow::Wait),
                    Match::No => {
                        match syms[0] {
                            Sym::Char(ch) => value.push(ch, out.args()),
                            Sym::Mark(m) => c.marks.text(m).chars().for_each(|ch| value.push(ch, out.args())),
                        }
                        (1, Flow::Go)
                    }
                }
            }
        }
    }

    fn between(&mut self, c: &Compiled, p: &TaggedPatterns, syms: &[Sym], out: &mut Emitter) -> (usize, Flow) {
        if syms[0].is_space() {
            return (1, Flow::Go);
        }
        let (found, which) = first(&p.followers, syms);
        if found == Match::Partial {
            return (0, Flow::Wait);
        }
        if let Match::Full(n) = found
            && which == 0
        {
            self.state = State::Key(String::new());
            return (n, Flow::Go);
        }
        let closed = match found {
            Match::Full(n) => {
                self.closed = which + 1 == p.followers.len();
                Some(n)
            }
            // The next call begins although this one was not closed; all its parameters are.
            _ => match first(&c.openers, syms).0 {
                Match::Full(_) => Some(0),
                Match::Partial => return (0, Flow::Wait),
                Match::No => None,
            },
        };
        match closed {
            Some(n) => {
                out.args().push_str(if self.any { "}" } else { "{}" });
                out.end();
                (n, Flow::Done)
            }
            None => (1, Flow::Go),
        }
    }
}
