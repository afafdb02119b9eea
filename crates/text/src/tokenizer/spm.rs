//! SentencePiece BPE as GGUF stores it (`tokenizer.ggml.model = llama`): tokens with scores, spaces written `▁`, single
//! bytes as `<0xNN>`. Neighbours are merged best score first, leftmost on ties, until no merge is left
//! (SentencePiece, "BPE" model, inference).

use std::{cmp::Ordering, collections::BinaryHeap, collections::HashMap};

use super::added::Span;

/// What a token may be used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Ordinary: merged into and emitted.
    Word,
    /// Merged through, but resolved into its parts at the end.
    Unused,
    /// Stands for one byte of a character without a token.
    Byte,
    /// Control and unknown: never made by merging, or text could spell markup.
    Never,
}

pub struct SpmParts<'a> {
    pub tokens: &'a [&'a str],
    pub scores: &'a [f32],
    pub role: &'a dyn Fn(usize) -> Role,
    pub unk: Option<u32>,
    pub space_prefix: bool,
}

pub struct Spm {
    ids: HashMap<Box<str>, Entry>,
    never: HashMap<Box<str>, u32>,
    bytes: [Option<u32>; 256],
    unk: Option<u32>,
    space_prefix: bool,
}

#[derive(Clone, Copy)]
struct Entry {
    id: u32,
    score: f32,
    unused: bool,
}

impl Spm {
    pub fn new(p: SpmParts<'_>) -> Self {
        let mut spm = Self {
            ids: HashMap::with_capacity(p.tokens.len()),
            never: HashMap::new(),
            bytes: [None; 256],
            unk: p.unk,
            space_prefix: p.space_prefix,
        };
        for (id, (&token, &score)) in p.tokens.iter().zip(p.scores).enumerate().filter(|(_, (t, _))| !t.is_empty()) {
            let (role, id) = ((p.role)(id), id as u32);
            match (role, byte_of(token)) {
                (Role::Byte, Some(b)) => spm.bytes[b as usize] = Some(id),
                (Role::Never | Role::Byte, _) => {
                    spm.never.insert(token.into(), id);
                }
                (Role::Word | Role::Unused, _) => {
                    spm.ids.insert(token.into(), Entry { id, score, unused: role == Role::Unused });
                }
            }
        }
        // Files without types have the byte tokens among the words.
        for b in 0..=255u8 {
            let slot = &mut spm.bytes[b as usize];
            *slot = slot.or_else(|| spm.ids.get(format!("<0x{b:02X}>").as_str()).map(|e| e.id));
        }
        spm
    }

    pub fn id_of(&self, token: &str) -> Option<u32> {
        let byte = || byte_of(token).and_then(|b| self.bytes[b as usize]);
        self.ids.get(token).map(|e| e.id).or_else(|| self.never.get(token).copied()).or_else(byte)
    }

    /// Ids of the spans. Text after a special token, and at the start where the spans `begin` a sequence, gets the space
    /// that SentencePiece puts before words.
    pub fn encode(&self, text: &str, spans: &[Span], begin: bool) -> Vec<u32> {
        let mut out = Vec::with_capacity(text.len() / 3 + 4);
        let mut after_special = begin;
        for span in spans {
            match span.id {
                Some(id) => out.push(id),
                None => {
                    let mut escaped = String::with_capacity(span.range.len() + 3);
                    if self.space_prefix && after_special {
                        escaped.push('▁');
                    }
                    escaped.extend(text[span.range.clone()].chars().map(|c| if c == ' ' { '▁' } else { c }));
                    self.merge(&escaped, &mut out);
                }
            }
            after_special = span.id.is_some();
        }
        out
    }

    fn merge(&self, text: &str, out: &mut Vec<u32>) {
        let mut chain = Chain::of(text);
        let mut queue = BinaryHeap::new();
        let mut halves = HashMap::new();
        for i in 1..chain.len() {
            self.consider(text, &chain, i - 1, i, &mut queue, &mut halves);
        }
        while let Some(m) = queue.pop() {
            if !chain.join(&m) {
                continue;
            }
            if let Some(prev) = chain.prev(m.left) {
                self.consider(text, &chain, prev, m.left, &mut queue, &mut halves);
            }
            if let Some(next) = chain.next(m.left) {
                self.consider(text, &chain, m.left, next, &mut queue, &mut halves);
            }
        }
        let mut at = (!chain.is_empty()).then_some(0);
        while let Some(i) = at {
            self.emit(chain.text(text, i), &halves, out);
            at = chain.next(i);
        }
    }

    /// Queues the merge of two neighbours if it makes a token.
    fn consider<'t>(
        &self,
        text: &'t str,
        chain: &Chain,
        left: usize,
        right: usize,
        queue: &mut BinaryHeap<Merge>,
        halves: &mut HashMap<&'t str, usize>,
    ) {
        let (start, end) = (chain.start(left), chain.end(right));
        let joined = &text[start..end];
        if let Some(e) = self.ids.get(joined) {
            queue.push(Merge { score: e.score, left, right, len: end - start });
            if e.unused {
                halves.insert(joined, chain.end(left) - start);
            }
        }
    }

    /// Appends the id of a finished piece, or of its halves if it is an unused token, or of its bytes.
    fn emit(&self, piece: &str, halves: &HashMap<&str, usize>, out: &mut Vec<u32>) {
        let mut stack = vec![piece];
        while let Some(piece) = stack.pop() {
            match (self.ids.get(piece), halves.get(piece)) {
                (Some(e), None) => out.push(e.id),
                (Some(_), Some(&cut)) => {
                    stack.push(&piece[cut..]);
                    stack.push(&piece[..cut]);
                }
                (None, _) => self.emit_bytes(piece, out),
            }
        }
    }

    fn emit_bytes(&self, piece: &str, out: &mut Vec<u32>) {
        let start = out.len();
        for b in piece.bytes() {
            match self.bytes[b as usize] {
                Some(id) => out.push(id),
                None => {
                    out.truncate(start);
                    out.extend(self.unk);
                    return;
                }
            }
        }
    }
}

/// A merge worth trying. Greatest first: the best score, then the leftmost.
struct Merge {
    score: f32,
    left: usize,
    right: usize,
    /// Bytes of the joined piece when it was queued; a different length now means the merge is out of date.
    len: usize,
}

impl Ord for Merge {
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then(other.left.cmp(&self.left))
    }
}
impl PartialOrd for Merge {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl PartialEq for Merge {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Merge {}

/// The text's pieces as a doubly linked list over byte ranges; a joined-away piece has length 0.
struct Chain {
    links: Vec<Link>,
}

#[derive(Clone, Copy)]
struct Link {
    start: usize,
    len: usize,
    prev: usize,
    next: usize,
}

const NONE: usize = usize::MAX;

impl Chain {
    fn of(text: &str) -> Self {
        let mut links: Vec<Link> = text
            .char_indices()
            .enumerate()
            .map(|(i, (start, c))| Link { start, len: c.len_utf8(), prev: i.wrapping_sub(1), next: i + 1 })
            .collect();
        if let Some(last) = links.last_mut() {
            last.next = NONE;
        }
        Self { links }
    }
    fn len(&self) -> usize {
        self.links.len()
    }
    fn is_empty(&self) -> bool {
        self.links.is_empty()
    }
    fn start(&self, i: usize) -> usize {
        self.links[i].start
    }
    fn end(&self, i: usize) -> usize {
        self.links[i].start + self.links[i].len
    }
    fn text<'t>(&self, text: &'t str, i: usize) -> &'t str {
        &text[self.start(i)..self.end(i)]
    }
    fn prev(&self, i: usize) -> Option<usize> {
        Some(self.links[i].prev).filter(|&p| p != NONE)
    }
    fn next(&self, i: usize) -> Option<usize> {
        Some(self.links[i].next).filter(|&n| n != NONE)
    }

    /// Joins the two pieces of a merge; false if they have changed since it was queued.
    fn join(&mut self, m: &Merge) -> bool {
        let (l, r) = (self.links[m.left], self.links[m.right]);
        if l.len == 0 || r.len == 0 || l.len + r.len != m.len {
            return false;
        }
        self.links[m.left].len += r.len;
        self.links[m.left].next = r.next;
        self.links[m.right].len = 0;
        if r.next != NONE {
            self.links[r.next].prev = m.left;
        }
        true
    }
}

/// The byte a token like `<0x0A>` stands for.
pub fn byte_of(token: &str) -> Option<u8> {
    let hex = token.strip_prefix("<0x")?.strip_suffix('>')?;
    (hex.len() == 2).then(|| u8::from_str_radix(hex, 16).ok())?
}

/// Appends a token's text with `▁` as the space it stands for.
pub fn unescape(token: &str, out: &mut Vec<u8>) {
    for part in token.split_inclusive('▁') {
        match part.strip_suffix('▁') {
            Some(head) => {
                out.extend_from_slice(head.as_bytes());
                out.push(b' ');
            }
            None => out.extend_from_slice(part.as_bytes()),
        }
    }
}
