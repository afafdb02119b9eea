//! Stop strings over streamed text.

/// Watches streamed text for stop strings.
///
/// The text ends where the first stop string to be completed begins; if several are completed by the same character, the
/// longest counts. What is emitted never contains a stop string, nor the beginning of one that is then completed, and
/// depends on the text alone, not on its chunking. Only text that may still become a stop string is held back. Empty stop
/// strings mean nothing and are ignored.
#[derive(Debug, Clone, Default)]
pub struct StopMatcher {
    patterns: Vec<Pattern>,
    held: String,
    hit: Option<usize>,
}

/// A stop string was completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StopHit {
    /// Its index among the strings given, empty ones counted.
    pub index: usize,
}

#[derive(Debug, Clone)]
struct Pattern {
    index: usize,
    bytes: Vec<u8>,
    /// `fallback[n]`: the longest proper prefix that also ends the first `n` bytes (Knuth, Morris, Pratt).
    fallback: Vec<usize>,
    /// How many bytes of the pattern the text seen so far ends with.
    matched: usize,
}

impl StopMatcher {
    /// A matcher for these strings.
    pub fn new<S: AsRef<str>>(stops: impl IntoIterator<Item = S>) -> Self {
        let patterns = stops.into_iter().enumerate().filter(|(_, s)| !s.as_ref().is_empty());
        Self { patterns: patterns.map(|(i, s)| Pattern::new(i, s.as_ref().as_bytes())).collect(), ..Self::default() }
    }

    /// Takes the next piece of text, appends to `out` what is certain, and says whether a stop string was completed. After
    /// a hit all further text is dropped.
    pub fn push(&mut self, text: &str, out: &mut String) -> Option<StopHit> {
        if self.patterns.is_empty() {
            out.push_str(text);
            return None;
        }
        if let Some(index) = self.hit {
            return Some(StopHit { index });
        }
        for (i, byte) in text.bytes().enumerate() {
            let mut longest: Option<(usize, usize)> = None;
            for p in &mut self.patterns {
                if p.step(byte) && longest.is_none_or(|(len, _)| p.bytes.len() > len) {
                    longest = Some((p.bytes.len(), p.index));
                }
            }
            if let Some((len, index)) = longest {
                self.hit = Some(index);
                self.held.push_str(&text[..=i]);
                out.push_str(&self.held[..self.held.len() - len]);
                self.held.clear();
                return Some(StopHit { index });
            }
        }
        self.held.push_str(text);
        // A prefix of a stop string begins with a whole character, so this cut is a character border.
        let keep = self.patterns.iter().map(|p| p.matched).max().unwrap_or(0);
        let certain = self.held.len() - keep;
        out.push_str(&self.held[..certain]);
        self.held.drain(..certain);
        None
    }

    /// The end of the text: what was held back for a stop string that never came.
    pub fn finish(&mut self, out: &mut String) {
        out.push_str(&self.held);
        self.held.clear();
        self.patterns.iter_mut().for_each(|p| p.matched = 0);
    }
}

impl Pattern {
    fn new(index: usize, bytes: &[u8]) -> Self {
        let mut fallback = vec![0; bytes.len() + 1];
        let mut k = 0;
        for n in 1..bytes.len() {
            while k > 0 && bytes[k] != bytes[n] {
                k = fallback[k];
            }
            k += usize::from(bytes[k] == bytes[n]);
            fallback[n + 1] = k;
        }
        Self { index, bytes: bytes.to_vec(), fallback, matched: 0 }
    }

    /// Takes one byte; true if it completes the pattern.
    fn step(&mut self, byte: u8) -> bool {
        while self.matched > 0 && self.bytes[self.matched] != byte {
            self.matched = self.fallback[self.matched];
        }
        self.matched += usize::from(self.bytes[self.matched] == byte);
        let done = self.matched == self.bytes.len();
        if done {
            self.matched = self.fallback[self.matched];
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn run<'a>(stops: &[&str], chunks: impl IntoIterator<Item = &'a str>) -> (String, Option<usize>) {
        let mut m = StopMatcher::new(stops);
        let (mut out, mut hit) = (String::new(), None);
        for c in chunks {
            hit = m.push(c, &mut out);
        }
        m.finish(&mut out);
        (out, hit.map(|h| h.index))
    }

    /// What the documentation says, said slowly.
    fn oracle(stops: &[&str], text: &str) -> (String, Option<usize>) {
        for end in 1..=text.len() {
            let ending = |s: &&str| !s.is_empty() && text.as_bytes()[..end].ends_with(s.as_bytes());
            if let Some(s) = stops.iter().filter(|s| ending(s)).max_by_key(|s| s.len()) {
                return (text[..end - s.len()].into(), stops.iter().position(|t| t == s));
            }
        }
        (text.into(), None)
    }

    #[test]
    fn no_prefix_of_a_stop_string_leaks_and_nothing_else_is_held() {
        let mut m = StopMatcher::new(["</s>", "\n\nUser:"]);
        let mut out = String::new();
        assert_eq!(m.push("Hello <", &mut out), None);
        assert_eq!(out, "Hello ", "the < may begin a stop string");
        assert_eq!(m.push("b>\n", &mut out), None);
        assert_eq!(out, "Hello <b>");
        assert_eq!(m.push("\nUse", &mut out), None);
        assert_eq!(out, "Hello <b>");
        assert_eq!(m.push("r: more", &mut out), Some(StopHit { index: 1 }));
        assert_eq!(m.push("and more", &mut out), Some(StopHit { index: 1 }));
        m.finish(&mut out);
        assert_eq!(out, "Hello <b>");
    }

    #[test]
    fn held_text_comes_at_the_end() {
        assert_eq!(run(&["abc"], ["xab"]), ("xab".into(), None));
        assert_eq!(run(&["", "b"], ["abc"]), ("a".into(), Some(1)), "an empty stop string means nothing");
        assert_eq!(run(&[""], ["abc"]), ("abc".into(), None));
        assert_eq!(run(&["日本"], ["本日", "本"]), ("本".into(), Some(0)));
        assert_eq!(run(&["aab"], ["aaab"]), ("a".into(), Some(0)));
        assert_eq!(run(&["bc", "abcd", "abc"], ["xabcd"]), ("x".into(), Some(2)), "first completed, then longest");
    }

    proptest! {
        #[test]
        fn any_chunking_agrees_with_the_oracle(
            stops in prop::collection::vec("[ab日]{0,4}", 0..4), text in "[abc日]{0,24}", cuts in prop::collection::vec(1usize..6, 0..24),
        ) {
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            let (mut rest, mut chunks) = (text.as_str(), Vec::new());
            for c in cuts {
                let at = rest.char_indices().nth(c).map_or(rest.len(), |(i, _)| i);
                chunks.push(&rest[..at]);
                rest = &rest[at..];
            }
            chunks.push(rest);
            prop_assert_eq!(run(&stops, chunks), oracle(&stops, &text));
        }

        #[test]
        fn only_what_may_become_a_stop_string_is_held(stops in prop::collection::vec("[ab]{1,4}", 1..4), text in "[abc]{0,24}") {
            let mut m = StopMatcher::new(&stops);
            let mut out = String::new();
            for (i, c) in text.char_indices() {
                if m.push(c.encode_utf8(&mut [0; 4]), &mut out).is_some() { break; }
                let held = &text[out.len()..=i];
                prop_assert!(held.is_empty() || stops.iter().any(|s| s.starts_with(held)), "{:?} held for {:?}", held, stops);
            }
        }
    }
}
