//! `{% generation %}` marks the assistant's words for training. For a prompt it means nothing, but it opens a scope and
//! takes part in white-space control, so it becomes an empty `{% with %}`, which does just that.

use std::borrow::Cow;

/// The template with its generation tags made neutral; line numbers stay.
pub fn neutralise(source: &str) -> Cow<'_, str> {
    if !source.contains("generation") {
        return Cow::Borrowed(source);
    }
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at + 2);
        out.push_str(before);
        rest = tag;
        if let Some((name, len)) = generation_tag(tag) {
            out.push_str(&tag[..len].replace(name, if name == "generation" { "with" } else { "endwith" }));
            rest = &tag[len..];
        }
    }
    out.push_str(rest);
    Cow::Owned(out)
}

/// If the text after a `{%` is a generation tag: its name, and the length up to and including the `%}`.
fn generation_tag(tag: &str) -> Option<(&'static str, usize)> {
    let inside = tag.strip_prefix(['-', '+']).unwrap_or(tag).trim_start();
    let name = ["endgeneration", "generation"].into_iter().find(|n| inside.starts_with(n))?;
    let after = inside[name.len()..].trim_start();
    let end = after.strip_prefix(['-', '+']).unwrap_or(after).strip_prefix("%}")?;
    Some((name, tag.len() - end.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_tags_change() {
        let source =
            "{%- generation -%}\n{{ generation }}{% generation_x %}{%endgeneration%}{% if add_generation_prompt %}";
        assert_eq!(
            neutralise(source),
            "{%- with -%}\n{{ generation }}{% generation_x %}{%endwith%}{% if add_generation_prompt %}"
        );
        assert!(matches!(neutralise("{% for m in messages %}"), Cow::Borrowed(_)));
    }
}
