//! The header of a gpt-oss message: `ROLE[ to=RECIPIENT][<|channel|>CHANNEL[ to=RECIPIENT][ <|constrain|>TYPE]]`.

use super::symbols::{Marks, Sym};
use super::syntax::Harmony;

/// What a message is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Target {
    Reasoning,
    Content,
    Call(String),
    /// The header makes no sense; the message's text is content.
    Unknown,
}

/// Whether symbols without a message behind them are a header that was cut off, and not a message whose header is missing.
/// `announced`: `<|start|>` stood before them.
pub(super) fn is_head(h: &Harmony, marks: &Marks, syms: &[Sym], announced: bool) -> bool {
    let full = |p: &super::symbols::Pattern, at: usize| matches!(p.at(&syms[at..]), super::symbols::Match::Full(_));
    if announced || (0..syms.len()).any(|at| full(&h.channel, at) || full(&h.constrain, at)) {
        return true;
    }
    // In a vocabulary without its tokens a marker may be cut off in the middle.
    let lead = syms.iter().position(|s| !s.is_space()).unwrap_or(0);
    if h.channel.at(&syms[lead..]) == super::symbols::Match::Partial {
        return true;
    }
    let mut text = String::new();
    marks.spell(syms, &mut text);
    let text = text.trim();
    text.is_empty() || text == "assistant" || text.starts_with("to=")
}

/// Understands a header: the symbols from the role up to and without `<|message|>`.
pub(super) fn read(h: &Harmony, marks: &Marks, syms: &[Sym]) -> Target {
    // Markers become line breaks, of which a header has none itself.
    let mut text = String::new();
    let mut channel_at = None;
    let mut i = 0;
    while i < syms.len() {
        let mark = |p: &super::symbols::Pattern| match p.at(&syms[i..]) {
            super::symbols::Match::Full(n) => Some(n),
            _ => None,
        };
        if let Some(n) = mark(&h.channel) {
            text.push('\n');
            channel_at = Some(text.len());
            i += n;
        } else if let Some(n) = mark(&h.constrain) {
            text.push('\n');
            i += n;
        } else {
            marks.spell(&syms[i..=i], &mut text);
            i += 1;
        }
    }
    let recipient = text.split_whitespace().find_map(|w| w.strip_prefix("to=")).filter(|r| !r.is_empty());
    if let Some(r) = recipient {
        return Target::Call(r.strip_prefix("functions.").unwrap_or(r).to_owned());
    }
    match channel_at.and_then(|at| text[at..].split_whitespace().next()) {
        Some("analysis") => Target::Reasoning,
        Some("final" | "commentary") => Target::Content,
        None if matches!(text.trim(), "assistant" | "") => Target::Content,
        _ => Target::Unknown,
    }
}
