//! Text to ids, and ids to bytes, for every tokenizer a checkpoint can bring.

mod added;
mod bpe;
mod byte_level;
mod gguf;
mod hf;
mod parts;
mod pieces;
mod pre;
mod spm;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::OnceLock,
};

pub use gguf::GgufVocab;
pub use hf::HfFiles;
pub use parts::PartCache;

use crate::{Error, Rendered, Result, constrain::Vocabulary};
use added::{Added, Span};
use bpe::Pipeline;
use pieces::Pieces;
pub use pre::pre_name;
use spm::Spm;

/// How special-token strings in a text are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Specials {
    /// They are markup: `<|im_end|>` becomes its one id.
    Parse,
    /// They are words: `<|im_end|>` becomes the ids of its characters.
    Plain,
}

enum Core {
    /// Normaliser, pre-tokenizer and model of a `tokenizer.json`, or the same built from a GGUF vocabulary.
    Pipeline(Box<Pipeline>),
    /// Scores and byte fallback (`tokenizer.ggml.model = llama`).
    Spm(Box<Spm>),
}

/// A model's tokenizer. Immutable, shared between threads.
pub struct Tokenizer {
    core: Core,
    added: Added,
    pieces: Pieces,
    ids: Ids,
    /// For constrained decoding; built when first needed.
    vocabulary: OnceLock<Vocabulary>,
}

/// A prompt's ids, and where its markup stands.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Encoded {
    /// The ids.
    pub ids: Vec<u32>,
    /// Special tokens: the byte of the prompt's text at which each begins, and its place among the ids. Both rise.
    pub borders: Vec<(usize, usize)>,
}

/// The ids with a role, and what is put around a prompt.
#[derive(Debug, Default)]
struct Ids {
    bos: Option<u32>,
    eos: Option<u32>,
    eog: Vec<u32>,
    add_bos: bool,
    add_eos: bool,
    strip_first_space: bool,
}

impl Tokenizer {
    /// Builds the tokenizer a GGUF file's metadata describes.
    ///
    /// # Errors
    /// Names the offending `tokenizer.ggml.*` key.
    pub fn from_gguf(vocab: &GgufVocab<'_>) -> Result<Self> {
        gguf::build(vocab)
    }

    /// Builds the tokenizer of a Hugging Face checkpoint from its small JSON files.
    ///
    /// # Errors
    /// Names the offending file and field.
    pub fn from_hf(files: &HfFiles<'_>) -> Result<Self> {
        // The pipeline is described by the file and run by a crate that trusts it; a malformed one must not take the
        // process down.
        guarded(|| hf::build(files))
            .unwrap_or_else(|_| Err(Error::key("tokenizer.json", "malformed (its parser gave up)")))
    }

    /// Ids of `text`. Neither BOS nor EOS is added.
    ///
    /// # Errors
    /// [`Error::Encode`] when the tokenizer's own rules fail on the text.
    pub fn encode(&self, text: &str, specials: Specials) -> Result<Vec<u32>> {
        let mut spans = Vec::new();
        self.added.find(text, 0..text.len(), specials, &mut spans);
        self.encode_spans(text, &spans)
    }

    /// Ids of a rendered prompt: markup parsed, content plain, words merging freely across the borders of the two. BOS is
    /// put in front if the model wants one ([`add_bos`](Self::add_bos)) and the template did not write it.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub fn encode_prompt(&self, prompt: &Rendered) -> Result<Vec<u32>> {
        let mut ids = self.encode_rest(prompt, 0)?;
        if let Some(bos) = self.bos_before(&ids) {
            ids.insert(0, bos);
        }
        Ok(ids)
    }

    /// The same ids, those of parts that were tokenised before from `kept`, and where special tokens stand.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub fn encode_parts(&self, prompt: &Rendered, kept: &PartCache) -> Result<Encoded> {
        let (text, mut all) = (prompt.text(), Encoded::default());
        for span in self.spans(prompt, 0) {
            match span.id {
                Some(id) => {
                    if self.is_special(id) {
                        all.borders.push((span.range.start, all.ids.len()));
                    }
                    all.ids.push(id);
                }
                None => {
                    let (part, first) = (&text[span.range.clone()], span.range.start == 0);
                    all.ids.extend(kept.get(part, first, || self.encode_part(part, first))?.iter());
                }
            }
        }
        if let Some(bos) = self.bos_before(&all.ids) {
            all.ids.insert(0, bos);
            all.borders.iter_mut().for_each(|(_, i)| *i += 1);
        }
        Ok(all)
    }

    /// Ids of text without special tokens: a prompt's first, or what stands behind a special token.
    fn encode_part(&self, part: &str, first: bool) -> Result<Vec<u32>> {
        let span = |range| Span { range, id: None };
        if first || matches!(self.core, Core::Spm(_)) {
            return self.encode_spans(part, &[span(0..part.len())]);
        }
        // Something stands before it, as rules look whether a text begins here.
        let text = format!("\n{part}");
        let spans = [Span { range: 0..1, id: Some(0) }, span(1..text.len())];
        Ok(self.encode_spans(&text, &spans)?.split_off(1))
    }

    /// BOS, where it must be put in front.
    fn bos_before(&self, ids: &[u32]) -> Option<u32> {
        self.ids.bos.filter(|bos| self.ids.add_bos && ids.first() != Some(bos))
    }

    /// Ids of the part of a prompt behind byte `from`, to continue a sequence that stands for the part before: without
    /// BOS, and without the space that some tokenizers put before the first word of a text.
    ///
    /// # Errors
    /// As [`encode`](Self::encode); also when `from` is not a character's border in the prompt.
    pub fn encode_rest(&self, prompt: &Rendered, from: usize) -> Result<Vec<u32>> {
        let text = prompt.text();
        if !text.is_char_boundary(from) {
            return Err(Error::Encode(format!("byte {from} is not where a character of the prompt begins")));
        }
        let mut spans = self.spans(prompt, from);
        if from == 0 {
            return self.encode_spans(text, &spans);
        }
        match &self.core {
            Core::Spm(spm) => Ok(spm.encode(text, &spans, false)),
            Core::Pipeline(_) => {
                // What was read before stands in as one token, so that the rules see that the text goes on.
                spans.insert(0, Span { range: 0..from, id: Some(0) });
                Ok(self.encode_spans(text, &spans)?.split_off(1))
            }
        }
    }

    /// The prompt behind byte `from`, cut at its special tokens.
    fn spans(&self, prompt: &Rendered, from: usize) -> Vec<Span> {
        let (text, mut spans, mut at) = (prompt.text(), Vec::new(), from);
        for range in prompt.protected().iter().filter(|r| r.end > from) {
            let start = range.start.max(from);
            self.added.find(text, at..start, Specials::Parse, &mut spans);
            self.added.find(text, start..range.end, Specials::Plain, &mut spans);
            at = range.end;
        }
        self.added.find(text, at..text.len(), Specials::Parse, &mut spans);
        spans
    }

    fn encode_spans(&self, text: &str, spans: &[Span]) -> Result<Vec<u32>> {
        match &self.core {
            Core::Spm(spm) => Ok(spm.encode(text, spans, true)),
            Core::Pipeline(p) => guarded(|| p.encode(text, spans))
                .unwrap_or_else(|_| Err(Error::Encode("the rules in tokenizer.json fail on it".into()))),
        }
    }

    /// The bytes an id stands for: not necessarily whole characters. `None` for an id outside the vocabulary.
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        self.pieces.get(id)
    }

    /// One past the largest id. A model's output may be wider (padding); such ids have no bytes.
    pub fn vocab_size(&self) -> u32 {
        self.pieces.len()
    }

    /// The id whose text is exactly `token`, looked up among special and ordinary tokens; `token` as the vocabulary
    /// spells it (byte-level tokenizers write a space as `Ġ`).
    pub fn id_of(&self, token: &str) -> Option<u32> {
        self.added.id_of(token).or_else(|| match &self.core {
            Core::Pipeline(p) => p.id_of(token),
            Core::Spm(s) => s.id_of(token),
        })
    }

    /// Whether the id is markup that a reader should not see (`<s>`, `<|im_end|>`).
    pub fn is_special(&self, id: u32) -> bool {
        self.pieces.is_special(id)
    }

    /// The beginning-of-sequence id, if the model has one.
    pub fn bos(&self) -> Option<u32> {
        self.ids.bos
    }

    /// The end-of-sequence id, if the model has one.
    pub fn eos(&self) -> Option<u32> {
        self.ids.eos
    }

    /// All ids that end a generation (end of text, of turn, of message), ascending.
    pub fn eog(&self) -> &[u32] {
        &self.ids.eog
    }

    /// Whether the id ends a generation.
    pub fn is_eog(&self, id: u32) -> bool {
        self.ids.eog.binary_search(&id).is_ok()
    }

    /// Whether prompts of this model begin with BOS.
    pub fn add_bos(&self) -> bool {
        self.ids.add_bos
    }

    /// Whether plain sequences (embedding, scoring) of this model end with EOS. Prompts never do.
    pub fn add_eos(&self) -> bool {
        self.ids.add_eos
    }

    /// Whether the first space of a decoded sequence is an artefact of the tokenizer, not part of the text.
    pub fn strips_first_space(&self) -> bool {
        self.ids.strip_first_space
    }

    /// The places in `text` that would become markup under [`Specials::Parse`] and not under [`Specials::Plain`].
    pub fn markup_in(&self, text: &str) -> Vec<std::ops::Range<usize>> {
        self.added.guarded_in(text)
    }

    /// Strings that [`Specials::Plain`] and protected content keep from becoming markup, longest first.
    pub fn markup_strings(&self) -> impl Iterator<Item = &str> {
        self.added.guarded()
    }

    /// The vocabulary as grammars need it: built by the first call, shared by later ones.
    pub(crate) fn vocabulary(&self) -> Result<&Vocabulary> {
        if let Some(v) = self.vocabulary.get() {
            return Ok(v);
        }
        let made = guarded(|| Vocabulary::new(self));
        let made = made.unwrap_or_else(|_| Err(Error::Grammar("this vocabulary cannot be constrained".into())))?;
        Ok(self.vocabulary.get_or_init(|| made))
    }

    /// Text of a whole sequence of ids, as [`Detokenizer`](crate::Detokenizer) would stream it.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let mut out = String::new();
        let mut d = crate::Detokenizer::new(skip_special, self.ids.strip_first_space);
        for &id in ids {
            d.push(self, id, &mut out);
        }
        d.finish(&mut out);
        out
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer")
            .field("vocab_size", &self.vocab_size())
            .field("ids", &self.ids)
            .finish_non_exhaustive()
    }
}

/// Runs code of a crate that may panic on hostile input. Our own state is not touched by `f`, so unwinding is safe.
fn guarded<T>(f: impl FnOnce() -> T) -> std::thread::Result<T> {
    catch_unwind(AssertUnwindSafe(f))
}

/// Turn and text endings by name, for files whose metadata names too few of them. Sources: the chat formats of Llama 3,
/// ChatML, Phi, Gemma, Granite, Kimi, DeepSeek, gpt-oss, MiniMax.
const END_NAMES: &[&str] = &[
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<end_of_turn>",
    "<eos>",
    "<turn|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "<｜end▁of▁sentence｜>",
    "<end_of_utterance>",
    "[e~[",
];

/// The ids that end a generation: the given ones and, if `by_name`, those with a well-known name.
fn end_ids(given: impl IntoIterator<Item = u32>, by_name: bool, id_of: impl Fn(&str) -> Option<u32>) -> Vec<u32> {
    let mut ids: Vec<u32> = given.into_iter().collect();
    if by_name {
        // In the harmony format `<|end|>` only ends a message; the turn goes on until `<|return|>` or `<|call|>`.
        let harmony = id_of("<|return|>").is_some() && id_of("<|call|>").is_some();
        ids.extend(END_NAMES.iter().filter(|n| !(harmony && **n == "<|end|>")).filter_map(|n| id_of(n)));
    }
    ids.sort_unstable();
    ids.dedup();
    ids
}
