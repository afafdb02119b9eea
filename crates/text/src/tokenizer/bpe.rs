//! Normaliser, pre-tokenizer and model from the `tokenizers` crate, run over spans found by our own matcher.
//!
//! The crate's own wrapper is not used: it reads every special-token string in a text as markup or none of them, while a
//! prompt needs both at once, by author.

use tokenizers::{
    Model, ModelWrapper, NormalizedString, Normalizer, NormalizerWrapper, OffsetReferential, OffsetType,
    PreTokenizedString, PreTokenizer, PreTokenizerWrapper, Token, models::bpe, normalizer::Range, tokenizer::Split,
};

use super::added::Span;
use crate::{Error, Result};

pub struct Pipeline {
    pub normalizer: Option<NormalizerWrapper>,
    pub pre: Option<PreTokenizerWrapper>,
    pub model: ModelWrapper,
}

impl Pipeline {
    pub fn encode(&self, text: &str, spans: &[Span]) -> Result<Vec<u32>> {
        self.run(text, spans).map_err(|e| Error::Encode(e.to_string()))
    }

    fn run(&self, text: &str, spans: &[Span]) -> tokenizers::Result<Vec<u32>> {
        let mut ids = Vec::with_capacity(text.len() / 3 + 4);
        if spans.iter().all(|s| s.id.is_some()) {
            ids.extend(spans.iter().filter_map(|s| s.id));
            return Ok(ids);
        }
        let mut work = PreTokenizedString::from(text);
        if spans.iter().any(|s| s.id.is_some()) {
            work.split(|_, whole| spans.iter().map(|s| cut(&whole, s)).collect::<tokenizers::Result<Vec<_>>>())?;
        }
        if let Some(n) = &self.normalizer {
            work.normalize(|s| n.normalize(s))?;
        }
        if let Some(p) = &self.pre {
            p.pre_tokenize(&mut work)?;
        }
        work.tokenize(|s| self.model.tokenize(s.get()))?;
        for (_, _, tokens) in work.get_splits(OffsetReferential::Original, OffsetType::None) {
            ids.extend(tokens.iter().flatten().map(|t| t.id));
        }
        Ok(ids)
    }

    pub fn id_of(&self, token: &str) -> Option<u32> {
        self.model.token_to_id(token)
    }
}

fn cut(whole: &NormalizedString, span: &Span) -> tokenizers::Result<Split> {
    let part = whole.slice(Range::Original(span.range.clone())).ok_or("a span lies outside the text")?;
    let token = span.id.map(|id| vec![Token::new(id, String::new(), (0, 0))]);
    Ok(Split::from((part, token)))
}

/// The parts of a BPE model, from either container. `V` and `M` are cheap to iterate and are consumed.
pub struct BpeParts<'a, V, M> {
    /// (token, id)
    pub vocab: V,
    /// (left, right) in rank order
    pub merges: M,
    pub unk_token: Option<&'a str>,
    pub continuing_subword_prefix: Option<&'a str>,
    pub end_of_word_suffix: Option<&'a str>,
    pub fuse_unk: bool,
    pub byte_fallback: bool,
    pub ignore_merges: bool,
}

impl<'a, V, M> BpeParts<'a, V, M>
where
    V: ExactSizeIterator<Item = (&'a str, u32)>,
    M: ExactSizeIterator<Item = (&'a str, &'a str)>,
{
    /// Builds the model. `merges_key` names the merges in errors.
    pub fn build(self, merges_key: &str) -> Result<bpe::BPE> {
        let mut vocab = bpe::Vocab::with_capacity(self.vocab.len());
        let mut longest = 0;
        for (token, id) in self.vocab {
            longest = longest.max(token.len());
            vocab.insert(token.to_owned(), id);
        }
        let prefix = self.continuing_subword_prefix.map_or(0, str::len);
        let mut merges = Vec::with_capacity(self.merges.len());
        for (rank, (left, right)) in self.merges.enumerate() {
            // The builder copies both halves into a buffer as long as the longest token, so this must hold before it runs.
            if right.len() < prefix || left.len() + right.len() - prefix > longest {
                return Err(Error::key(
                    merges_key,
                    format!("merge {rank} ({left:?} + {right:?}) makes no token of the vocabulary"),
                ));
            }
            merges.push((left.to_owned(), right.to_owned()));
        }
        let mut b = bpe::BPE::builder()
            .vocab_and_merges(vocab, merges)
            .fuse_unk(self.fuse_unk)
            .byte_fallback(self.byte_fallback)
            .ignore_merges(self.ignore_merges);
        if let Some(t) = self.unk_token {
            b = b.unk_token(t.to_owned());
        }
        if let Some(t) = self.continuing_subword_prefix {
            b = b.continuing_subword_prefix(t.to_owned());
        }
        if let Some(t) = self.end_of_word_suffix {
            b = b.end_of_word_suffix(t.to_owned());
        }
        b.build().map_err(|e| Error::key(merges_key, e.to_string()))
    }
}
