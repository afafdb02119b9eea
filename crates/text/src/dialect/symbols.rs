//! Model output as characters and markers, and patterns over them.

use crate::Tokenizer;

/// One step of the output: a character, or a marker that the vocabulary has as one token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sym {
    Char(char),
    /// Index into [`Marks`].
    Mark(u8),
}

impl Sym {
    pub fn is_space(self) -> bool {
        matches!(self, Self::Char(c) if c.is_whitespace())
    }
}

/// Part of a text with markers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Piece<'t> {
    Text(&'t str),
    Id(u32),
}

/// The markers of a dialect that this vocabulary has as tokens of their own. Those it lacks are recognised by their text.
#[derive(Debug, Clone, Default)]
pub(crate) struct Marks(Vec<(&'static str, u32)>);

impl Marks {
    pub fn new(names: &[&'static str], tokenizer: Option<&Tokenizer>) -> Self {
        Self(names.iter().filter_map(|n| Some((*n, tokenizer?.id_of(n)?))).collect())
    }

    /// The marker with that token id.
    pub fn of(&self, id: u32) -> Option<u8> {
        self.0.iter().position(|m| m.1 == id).map(|i| i as u8)
    }

    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.0.iter().map(|m| m.0)
    }

    pub fn text(&self, mark: u8) -> &'static str {
        self.0.get(usize::from(mark)).map_or("", |m| m.0)
    }

    /// The longest marker `text` begins with.
    fn leading(&self, text: &str) -> Option<(u8, &'static str)> {
        let all = self.0.iter().enumerate().filter(|(_, m)| text.starts_with(m.0));
        all.max_by_key(|(_, m)| m.0.len()).map(|(i, m)| (i as u8, m.0))
    }

    /// A text cut into words and marker ids.
    pub fn split<'t>(&self, text: &'t str) -> Vec<Piece<'t>> {
        let mut out = Vec::new();
        let (mut begin, mut at) = (0, 0);
        while let Some(c) = text[at..].chars().next() {
            let Some((mark, name)) = self.leading(&text[at..]) else {
                at += c.len_utf8();
                continue;
            };
            if begin < at {
                out.push(Piece::Text(&text[begin..at]));
            }
            out.push(Piece::Id(self.0[usize::from(mark)].1));
            at += name.len();
            begin = at;
        }
        if begin < text.len() {
            out.push(Piece::Text(&text[begin..]));
        }
        out
    }

    /// The symbols as text, markers spelled out.
    pub fn spell(&self, syms: &[Sym], out: &mut String) {
        for s in syms {
            match s {
                Sym::Char(c) => out.push(*c),
                Sym::Mark(m) => out.push_str(self.text(*m)),
            }
        }
    }
}

/// In a pattern's source: any run of white space, also none.
const GAP: char = '␣';
/// The longest run of white space a gap covers, so that nothing waits for ever.
const MAX_GAP: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Sym(Sym),
    Gap,
}

/// A literal with gaps.
#[derive(Debug, Clone)]
pub(crate) struct Pattern(Vec<Part>);

/// How the beginning of some symbols compares with a pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Match {
    No,
    /// All of the symbols fit, and more are needed.
    Partial,
    /// The pattern is this many symbols long here.
    Full(usize),
}

impl Pattern {
    pub fn new(source: &str, marks: &Marks) -> Self {
        let mut parts = Vec::new();
        let mut rest = source;
        while let Some(c) = rest.chars().next() {
            if let Some((mark, text)) = marks.leading(rest) {
                parts.push(Part::Sym(Sym::Mark(mark)));
                rest = &rest[text.len()..];
            } else {
                parts.push(if c == GAP { Part::Gap } else { Part::Sym(Sym::Char(c)) });
                rest = &rest[c.len_utf8()..];
            }
        }
        Self(parts)
    }

    pub fn all(sources: &[&str], marks: &Marks) -> Vec<Self> {
        sources.iter().map(|s| Self::new(s, marks)).collect()
    }

    /// How many symbols the pattern has, gaps not counted.
    pub fn len(&self) -> usize {
        self.0.iter().filter(|p| **p != Part::Gap).count()
    }

    /// This pattern and then another.
    pub fn then(&self, next: &Self) -> Self {
        Self(self.0.iter().chain(&next.0).copied().collect())
    }

    pub fn at(&self, syms: &[Sym]) -> Match {
        let mut i = 0;
        for part in &self.0 {
            match part {
                Part::Gap => {
                    let run = syms[i..].iter().take_while(|s| s.is_space()).count();
                    i += run.min(MAX_GAP);
                }
                Part::Sym(s) => match syms.get(i) {
                    None => return Match::Partial,
                    Some(have) if have == s => i += 1,
                    Some(_) => return Match::No,
                },
            }
        }
        Match::Full(i)
    }
}

/// The first of several patterns to match; else whether one still may.
pub(crate) fn first(patterns: &[Pattern], syms: &[Sym]) -> (Match, usize) {
    let mut partial = (Match::No, 0);
    for (i, p) in patterns.iter().enumerate() {
        match p.at(syms) {
            Match::Full(n) => return (Match::Full(n), i),
            Match::Partial => partial = (Match::Partial, i),
            Match::No => {}
        }
    }
    partial
}
