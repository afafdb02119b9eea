//! A prompt in which markup and content can still be told apart.

use std::ops::Range;

/// A rendered prompt: its text, and which parts of it must stay plain text.
///
/// Special-token strings written by the template are markup and become special ids. The same strings inside a message,
/// a tool result or a tool description are content and lie in a protected range: they are tokenised like any other
/// words, so nobody can end a turn by typing `<|im_end|>`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rendered {
    text: String,
    protected: Vec<Range<usize>>,
}

impl Rendered {
    /// A prompt all of whose special-token strings are markup (raw completion).
    pub fn markup(text: impl Into<String>) -> Self {
        Self { text: text.into(), protected: Vec::new() }
    }

    /// Appends markup.
    pub fn push_markup(&mut self, text: &str) {
        self.text.push_str(text);
    }

    /// Appends content: no special token is recognised in it, nor across its borders.
    pub fn push_content(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        let start = self.text.len();
        self.text.push_str(text);
        match self.protected.last_mut() {
            Some(last) if last.end == start => last.end = self.text.len(),
            _ => self.protected.push(start..self.text.len()),
        }
    }

    /// The whole prompt as text, byte for byte what the template wrote.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The byte ranges that are content, ascending and disjoint, on character borders.
    pub fn protected(&self) -> &[Range<usize>] {
        &self.protected
    }
}
