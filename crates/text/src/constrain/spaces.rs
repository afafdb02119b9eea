//! White space between the parts of JSON, bounded in all. A grammar bounds each run of it; a model that fills every gap could
//! still spend most of its tokens on nothing.

use super::{Choice, Reasoning, calls::ToolChoice};
use crate::dialect::{Dialect, syntax::Calls};

/// Blank tokens that any output may have.
const FREE: u32 = 32;

/// Follows an output and says when it has had its share of white space: tokens of nothing else may be as many as the others,
/// and a few more.
#[derive(Debug, Clone)]
pub(super) struct Spaces {
    /// Texts behind which JSON begins, and behind which something else does.
    begins: Vec<&'static str>,
    ends: Vec<&'static str>,
    /// Whether the output is in JSON, and there in a string, or behind a backslash in it.
    json: bool,
    string: bool,
    escaped: bool,
    blank: u32,
    other: u32,
    /// The end of the output, as long as the longest of the texts.
    tail: Vec<u8>,
}

impl Spaces {
    fn new(json: bool, begins: Vec<&'static str>, ends: Vec<&'static str>) -> Self {
        Self { begins, ends, json, string: false, escaped: false, blank: 0, other: 0, tail: Vec::new() }
    }

    /// For JSON, perhaps behind reasoning.
    pub fn of_json(dialect: &Dialect, reasoning: Reasoning) -> Self {
        let syntax = dialect.compiled().syntax;
        match (reasoning, syntax.reasoning, &syntax.calls) {
            (Reasoning::Off, ..) => Self::new(true, Vec::new(), Vec::new()),
            (_, _, Calls::Harmony) => Self::new(false, vec!["final<|message|>"], vec![]),
            (r, Some((open, close)), _) => Self::new(r == Reasoning::Allowed, vec![close], vec![open]),
            (_, None, _) => Self::new(true, Vec::new(), Vec::new()),
        }
    }

    /// For calls, and an answer in JSON where they may be left out; `None` where nothing that is bounded is JSON.
    pub fn of_calls(t: &ToolChoice<'_>, json_answer: bool, reasoning: Reasoning) -> Option<Self> {
        let answer = |ends: &'static str| {
            let mut s = Self::of_json(t.dialect, reasoning);
            s.ends.extend((!ends.is_empty()).then_some(ends));
            s
        };
        match &t.dialect.compiled().syntax.calls {
            Calls::None => None,
            Calls::Harmony => {
                let mut begins = vec!["json<|message|>"];
                begins.extend(json_answer.then_some("final<|message|>"));
                Some(Self::new(false, begins, vec!["<|end|>", "<|call|>"]))
            }
            // Without markup an answer in words can only be told by its first character.
            Calls::Json(j) if j.bare && t.choice == Choice::Auto && !json_answer => None,
            Calls::Json(j) if j.bare => Some(Self::of_json(t.dialect, reasoning)),
            Calls::Json(j) => {
                let mut s =
                    if json_answer { Self::of_json(t.dialect, reasoning) } else { Self::new(false, vec![], vec![]) };
                s.begins.push(j.open[0]);
                Some(s)
            }
            Calls::Tagged(p) => json_answer.then(|| answer(p.open)),
            Calls::Gemma => json_answer.then(|| answer("<|tool_call>")),
        }
    }

    /// Takes the bytes of a token.
    pub fn take(&mut self, bytes: &[u8]) {
        let counted = self.json;
        let blank = !self.string && !bytes.is_empty() && bytes.iter().all(u8::is_ascii_whitespace);
        for &b in bytes {
            self.step(b);
        }
        if counted && self.json {
            *(if blank { &mut self.blank } else { &mut self.other }) += 1;
        }
    }

    fn step(&mut self, b: u8) {
        const LONGEST: usize = 64;
        if self.json {
            match b {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.string => self.escaped = true,
                b'"' => self.string = !self.string,
                _ => {}
            }
        }
        if self.tail.len() == LONGEST {
            self.tail.drain(..LONGEST / 2);
        }
        self.tail.push(b);
        if self.string {
            return;
        }
        let behind = |texts: &[&str]| texts.iter().any(|t| self.tail.ends_with(t.as_bytes()));
        if behind(&self.begins) {
            (self.json, self.escaped) = (true, false);
        } else if behind(&self.ends) {
            self.json = false;
        }
    }

    /// Whether no more white space may come now.
    pub fn spent(&self) -> bool {
        self.json && !self.string && self.blank > self.other + FREE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(mut s: Spaces, text: &str) -> Spaces {
        text.bytes().for_each(|b| s.take(&[b]));
        s
    }

    #[test]
    fn only_white_space_between_parts_counts() {
        let s = after(Spaces::new(true, vec![], vec![]), r#"{ "a \" b  ": "   \\", "#);
        assert_eq!((s.blank, s.string), (3, false));
        assert!(!s.spent());
        assert!(after(s.clone(), &" ".repeat(80)).spent());
        let inside = after(s, &format!("\"{}", " ".repeat(80)));
        assert!(!inside.spent(), "a string may be blank");
    }

    #[test]
    fn json_begins_behind_reasoning_and_ends_before_it() {
        let s = || Spaces::new(true, vec!["</think>"], vec!["<think>"]);
        let thinking = after(s(), &format!("<think>\"{}", " ".repeat(80)));
        assert!(!thinking.json && !thinking.spent());
        let answering = after(thinking, "</think>{");
        assert!(answering.json && !answering.string);
        assert!(after(answering, &" ".repeat(80)).spent());
    }
}
