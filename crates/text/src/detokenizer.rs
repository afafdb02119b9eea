//! Ids back to text, one at a time.

use crate::Tokenizer;

/// Streams the text of a sequence of ids.
///
/// A character that is not complete yet is held, never replaced early. Bytes that can no longer become a character are
/// replaced: one U+FFFD for each unbroken run of them, so that a broken character reads the same however it was cut into
/// tokens. What is emitted therefore depends on the bytes alone and not on how they arrive.
#[derive(Debug, Clone, Default)]
pub struct Detokenizer {
    held: Vec<u8>,
    /// The last thing emitted was a replacement, with nothing good since.
    in_bad_run: bool,
    skip_special: bool,
    strip_first_space: bool,
}

impl Detokenizer {
    /// `skip_special` leaves out markup. `strip_first_space` takes one space off the front of the text: give
    /// [`Tokenizer::strips_first_space`] when a sequence is decoded from its beginning, `false` when it continues a prompt.
    pub fn new(skip_special: bool, strip_first_space: bool) -> Self {
        Self { skip_special, strip_first_space, ..Self::default() }
    }

    /// Takes one id and appends to `out` the text that is now certain, maybe none. Ids without bytes count as nothing.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32, out: &mut String) {
        if self.skip_special && tokenizer.is_special(id) {
            return;
        }
        if let Some(bytes) = tokenizer.token_bytes(id) {
            self.push_bytes(bytes, out);
        }
    }

    /// The same for bytes of any origin.
    pub fn push_bytes(&mut self, bytes: &[u8], out: &mut String) {
        let mut bytes = bytes;
        if self.strip_first_space && !bytes.is_empty() {
            bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
            self.strip_first_space = false;
        }
        if self.held.is_empty() {
            let rest = self.decode(bytes, out).to_vec();
            self.held = rest;
        } else {
            let mut held = std::mem::take(&mut self.held);
            held.extend_from_slice(bytes);
            self.held = self.decode(&held, out).to_vec();
        }
    }

    /// The end of the sequence: a character still incomplete becomes U+FFFD. The detokenizer is then as new, except that
    /// it no longer strips a first space.
    pub fn finish(&mut self, out: &mut String) {
        if !self.held.is_empty() {
            self.held.clear();
            self.replace(out);
        }
        self.in_bad_run = false;
    }

    /// How many bytes are held back as the beginning of a character: 0 to 3.
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// Appends what can be decided of `bytes`; returns the incomplete character at their end.
    fn decode<'b>(&mut self, mut bytes: &'b [u8], out: &mut String) -> &'b [u8] {
        while !bytes.is_empty() {
            let (good, bad) = match std::str::from_utf8(bytes) {
                Ok(s) => (s, None),
                Err(e) => {
                    let (head, _) = bytes.split_at(e.valid_up_to());
                    (std::str::from_utf8(head).unwrap_or_default(), Some(e.error_len()))
                }
            };
            if !good.is_empty() {
                out.push_str(good);
                self.in_bad_run = false;
            }
            bytes = &bytes[good.len()..];
            match bad {
                None => break,
                Some(None) => return bytes,
                Some(Some(n)) => {
                    self.replace(out);
                    bytes = &bytes[n..];
                }
            }
        }
        &[]
    }

    fn replace(&mut self, out: &mut String) {
        if !self.in_bad_run {
            out.push(char::REPLACEMENT_CHARACTER);
            self.in_bad_run = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn stream<'a>(chunks: impl IntoIterator<Item = &'a [u8]>) -> Vec<String> {
        let mut d = Detokenizer::new(false, false);
        let mut pieces: Vec<String> = chunks
            .into_iter()
            .map(|c| {
                let mut s = String::new();
                d.push_bytes(c, &mut s);
                s
            })
            .collect();
        let mut last = String::new();
        d.finish(&mut last);
        pieces.push(last);
        pieces
    }

    #[test]
    fn a_character_that_completes_is_never_replaced() {
        assert_eq!(stream("😀".as_bytes().chunks(1)), ["", "", "", "😀", ""]);
        let family = "👩‍👩‍👧 क्षि";
        assert_eq!(stream(family.as_bytes().chunks(1)).concat(), family);
    }

    #[test]
    fn cut_or_illegal_bytes_become_one_replacement() {
        assert_eq!(stream([&b"\xF0"[..], b"\x9F"]), ["", "", "\u{FFFD}"], "cut by the length limit");
        assert_eq!(stream([&b"\xED\xA0\x80"[..]]).concat(), "\u{FFFD}", "a surrogate");
        assert_eq!(stream([&b"\xC0"[..], b"\x80"]).concat(), "\u{FFFD}", "an overlong form");
        assert_eq!(
            stream([&b"ok"[..], b"\xFF", b"ok"]),
            ["ok", "\u{FFFD}", "ok", ""],
            "shown as soon as it is certain"
        );
        assert_eq!(stream([&b"\xF0\x9F"[..], b"a"]), ["", "\u{FFFD}a", ""]);
    }

    #[test]
    fn ordinary_text_is_not_held_back() {
        let mut d = Detokenizer::new(false, false);
        let mut out = String::new();
        d.push_bytes("naïve 日本".as_bytes(), &mut out);
        assert_eq!((out.as_str(), d.held()), ("naïve 日本", 0));
    }

    #[test]
    fn only_the_first_space_of_all_is_stripped() {
        let mut d = Detokenizer::new(false, true);
        let mut out = String::new();
        for b in [&b""[..], b" ", b" a", b" b"] {
            d.push_bytes(b, &mut out);
        }
        assert_eq!(out, " a b");
    }

    /// Bytes that are often nearly UTF-8.
    fn nearly_text() -> impl Strategy<Value = Vec<u8>> {
        let part = prop_oneof![
            "\\PC{0,6}".prop_map(String::into_bytes),
            prop::collection::vec(any::<u8>(), 0..4),
            Just("😀".as_bytes()[..2].to_vec()),
            Just(vec![0xED, 0xA0, 0x80]),
        ];
        prop::collection::vec(part, 0..8).prop_map(|v| v.concat())
    }

    proptest! {
        #[test]
        fn any_chunking_gives_the_same_text(bytes in nearly_text(), cuts in prop::collection::vec(1usize..5, 0..40)) {
            let whole = stream([&bytes[..]]).concat();
            let (mut rest, mut chunks) = (&bytes[..], Vec::new());
            for c in cuts {
                let (a, b) = rest.split_at(c.min(rest.len()));
                chunks.push(a);
                rest = b;
            }
            chunks.push(rest);
            prop_assert_eq!(stream(chunks).concat(), whole.clone());
            // Against the standard library: the same text once runs of replacements are one.
            let mut expected = String::new();
            let mut bad = false;
            for c in bytes.utf8_chunks() {
                if !c.valid().is_empty() { bad = false; }
                expected.push_str(c.valid());
                if !c.invalid().is_empty() && !std::mem::replace(&mut bad, true) { expected.push('\u{FFFD}'); }
            }
            prop_assert_eq!(whole, expected);
        }
    }
}
