//! Tokens that are found in the text before any splitting: special tokens and the user-defined ones beside them.

use std::{collections::HashMap, ops::Range};

use aho_corasick::{AhoCorasick, MatchKind};

use super::Specials;
use crate::{Error, Result};

/// One added token, with the fields of `added_tokens` in a `tokenizer.json`.
#[derive(Debug, Clone, Default)]
pub struct AddedToken {
    pub id: u32,
    pub content: String,
    pub special: bool,
    pub lstrip: bool,
    pub rstrip: bool,
    pub single_word: bool,
}

/// A part of a text: a token found whole, or text still to be split.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    pub range: Range<usize>,
    pub id: Option<u32>,
}

#[derive(Default)]
pub struct Added {
    tokens: Vec<AddedToken>,
    by_text: HashMap<String, u32>,
    /// Over all tokens; pattern index = index in `tokens`.
    all: Option<AhoCorasick>,
    /// Over the unguarded ones alone, with their indices.
    plain: Option<(AhoCorasick, Vec<u32>)>,
}

impl Added {
    pub fn new(mut tokens: Vec<AddedToken>) -> Result<Self> {
        tokens.retain(|t| !t.content.is_empty());
        tokens.sort_by(|a, b| b.content.len().cmp(&a.content.len()).then(a.id.cmp(&b.id)));
        let by_text = tokens.iter().rev().map(|t| (t.content.clone(), t.id)).collect();
        let unguarded: Vec<u32> = (0..tokens.len() as u32).filter(|&i| !is_guarded(&tokens[i as usize])).collect();
        let all = automaton(tokens.iter().map(|t| t.content.as_str()))?;
        let plain = automaton(unguarded.iter().map(|&i| tokens[i as usize].content.as_str()))?.map(|a| (a, unguarded));
        Ok(Self { tokens, by_text, all, plain })
    }

    pub fn id_of(&self, text: &str) -> Option<u32> {
        self.by_text.get(text).copied()
    }

    /// The strings that content must never turn into ids, longest first.
    pub fn guarded(&self) -> impl Iterator<Item = &str> {
        self.tokens.iter().filter(|t| is_guarded(t)).map(|t| t.content.as_str())
    }

    /// Where `text` has guarded strings.
    pub fn guarded_in(&self, text: &str) -> Vec<Range<usize>> {
        let found = self.all.iter().flat_map(|a| a.find_iter(text));
        found.filter(|m| is_guarded(&self.tokens[m.pattern().as_usize()])).map(|m| m.range()).collect()
    }

    /// Appends the spans of `text[range]` to `out`, joining text to a text span that ends where this one begins.
    pub fn find(&self, text: &str, range: Range<usize>, specials: Specials, out: &mut Vec<Span>) {
        let mut at = range.start;
        let matcher = match specials {
            Specials::Parse => self.all.as_ref(),
            Specials::Plain => self.plain.as_ref().map(|(a, _)| a),
        };
        for m in matcher.into_iter().flat_map(|a| a.find_iter(&text[range.clone()])) {
            let index = match specials {
                Specials::Parse => m.pattern().as_usize(),
                Specials::Plain => self.plain.as_ref().map_or(0, |(_, i)| i[m.pattern().as_usize()] as usize),
            };
            let token = &self.tokens[index];
            let (mut start, mut end) = (range.start + m.start(), range.start + m.end());
            if token.single_word && !stands_alone(text, start, end) {
                continue;
            }
            if token.lstrip {
                start = text[..start].trim_end().len().max(at);
            }
            if token.rstrip {
                end += text[end..range.end].len() - text[end..range.end].trim_start().len();
            }
            // A token that took the white space after it may have run over this one's start.
            start = start.max(at);
            if end <= start {
                continue;
            }
            push_text(at..start, out);
            out.push(Span { range: start..end, id: Some(token.id) });
            at = end;
        }
        push_text(at..range.end, out);
    }
}

fn push_text(range: Range<usize>, out: &mut Vec<Span>) {
    if range.is_empty() {
        return;
    }
    match out.last_mut() {
        Some(last) if last.id.is_none() && last.range.end == range.start => last.range.end = range.end,
        _ => out.push(Span { range, id: None }),
    }
}

fn automaton<'a>(patterns: impl Iterator<Item = &'a str>) -> Result<Option<AhoCorasick>> {
    let mut patterns = patterns.peekable();
    if patterns.peek().is_none() {
        return Ok(None);
    }
    AhoCorasick::builder()
        .match_kind(MatchKind::LeftmostLongest)
        .build(patterns)
        .map(Some)
        .map_err(|e| Error::key("added_tokens", e.to_string()))
}

fn stands_alone(text: &str, start: usize, end: usize) -> bool {
    let word = |c: char| c.is_alphanumeric() || c == '_';
    !text[..start].chars().next_back().is_some_and(word) && !text[end..].chars().next().is_some_and(word)
}

/// Whether a token is markup of the conversation, which content must not produce.
fn is_guarded(t: &AddedToken) -> bool {
    t.special || is_markup(&t.content)
}

/// Whether a user-defined token looks like markup (`<think>`, `<tool_call>`). Runs of white space and HTML tags, which
/// some vocabularies add for the sake of ordinary text, stay available to content.
pub fn is_markup(token: &str) -> bool {
    let s = token.trim();
    let tag = |open: char, close: char| s.len() > 2 && s.starts_with(open) && s.ends_with(close);
    (tag('<', '>') || tag('[', ']') || s.contains('|') || s.contains('｜')) && !is_html(s)
}

fn is_html(tag: &str) -> bool {
    let name = tag.trim_start_matches('<').trim_start_matches('/').trim_end_matches('>').trim_end_matches('/');
    HTML.contains(&name)
}

/// Names of HTML elements.
const HTML: &[&str] = &[
    "a",
    "abbr",
    "article",
    "aside",
    "audio",
    "b",
    "blockquote",
    "body",
    "br",
    "button",
    "canvas",
    "caption",
    "center",
    "cite",
    "code",
    "col",
    "colgroup",
    "dd",
    "del",
    "details",
    "div",
    "dl",
    "dt",
    "em",
    "figure",
    "font",
    "footer",
    "form",
    "h1",
    "h2",
    "h3",
    "h4",
    "h5",
    "h6",
    "head",
    "header",
    "hr",
    "html",
    "i",
    "iframe",
    "img",
    "input",
    "ins",
    "kbd",
    "label",
    "li",
    "link",
    "main",
    "mark",
    "meta",
    "nav",
    "ol",
    "option",
    "p",
    "path",
    "pre",
    "q",
    "s",
    "script",
    "section",
    "select",
    "small",
    "source",
    "span",
    "strong",
    "style",
    "sub",
    "summary",
    "sup",
    "svg",
    "table",
    "tbody",
    "td",
    "textarea",
    "tfoot",
    "th",
    "thead",
    "time",
    "title",
    "tr",
    "u",
    "ul",
    "var",
    "video",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn token(id: u32, content: &str) -> AddedToken {
        AddedToken { id, content: content.into(), special: true, ..Default::default() }
    }

    fn spans(added: &Added, text: &str, specials: Specials) -> Vec<(String, Option<u32>)> {
        let mut out = Vec::new();
        added.find(text, 0..text.len(), specials, &mut out);
        assert_eq!(out.iter().map(|s| &text[s.range.clone()]).collect::<String>(), text, "spans cover the text");
        out.into_iter().map(|s| (text[s.range].to_string(), s.id)).collect()
    }

    #[test]
    fn the_longest_of_overlapping_tokens_wins() {
        let a = Added::new(vec![token(1, "<|a"), token(2, "<|a|>"), token(3, "|>")]).unwrap();
        assert_eq!(
            spans(&a, "x<|a|>y|>", Specials::Parse),
            [("x".into(), None), ("<|a|>".into(), Some(2)), ("y".into(), None), ("|>".into(), Some(3))]
        );
        assert_eq!(spans(&a, "x<|a|>y", Specials::Plain), [("x<|a|>y".into(), None)]);
    }

    #[test]
    fn strip_and_single_word_flags() {
        let strip = AddedToken { lstrip: true, rstrip: true, ..token(1, "<m>") };
        let word = AddedToken { single_word: true, ..token(2, "kg") };
        let a = Added::new(vec![strip, word]).unwrap();
        assert_eq!(
            spans(&a, "a  <m> \n <m> b", Specials::Parse),
            [("a".into(), None), ("  <m> \n ".into(), Some(1)), ("<m> ".into(), Some(1)), ("b".into(), None)]
        );
        assert_eq!(spans(&a, "5kg", Specials::Parse), [("5kg".into(), None)]);
        assert_eq!(
            spans(&a, "5 kg.", Specials::Parse),
            [("5 ".into(), None), ("kg".into(), Some(2)), (".".into(), None)]
        );
    }

    #[test]
    fn tags_are_guarded_and_white_space_and_html_are_not() {
        let user = |id, s| AddedToken { special: false, ..token(id, s) };
        let a = Added::new(vec![user(1, "<think>"), user(2, "\n\n"), user(3, "<table>"), token(4, "<s>")]).unwrap();
        assert_eq!(
            spans(&a, "<think>\n\n<table><s>", Specials::Plain),
            [("<think>".into(), None), ("\n\n".into(), Some(2)), ("<table>".into(), Some(3)), ("<s>".into(), None)]
        );
        assert_eq!(a.guarded().collect::<Vec<_>>(), ["<think>", "<s>"]);
    }
}
