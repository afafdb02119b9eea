//! The vocabulary as a trie of bytes, built once for each tokenizer, when first needed.

use std::sync::Arc;

use llguidance::{
    ParserFactory,
    toktrie::{InferenceCapabilities, TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv},
};

use crate::{Error, Result, Tokenizer};

/// What grammars are compiled against.
pub(crate) struct Vocabulary {
    pub factory: ParserFactory,
    /// How many ids the tokenizer has; the trie may have one more, for the end.
    pub size: u32,
    /// Bit `id % 32` of word `id / 32`: the id's text begins with white space.
    pub blank: Arc<[u32]>,
}

/// The trie alone: texts that a grammar forces are handed out as text, so nothing here needs to tokenise well.
struct Trie(TokTrie);

impl TokenizerEnv for Trie {
    fn tok_trie(&self) -> &TokTrie {
        &self.0
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        self.0.greedy_tokenize(bytes)
    }

    fn tokenize_is_canonical(&self) -> bool {
        false
    }
}

impl Vocabulary {
    pub fn new(tokenizer: &Tokenizer) -> Result<Self> {
        let size = tokenizer.vocab_size();
        let mut words: Vec<Vec<u8>> =
            (0..size).map(|id| tokenizer.token_bytes(id).unwrap_or_default().to_vec()).collect();
        // Markup is no text: a string may hold the characters of `</tool_call>`, never the token.
        let markup = tokenizer.markup_strings().filter_map(|s| tokenizer.id_of(s));
        for id in (0..size).filter(|id| tokenizer.is_special(*id)).chain(markup) {
            if let Some(word) = words.get_mut(id as usize)
                && word.first() != Some(&TokTrie::SPECIAL_TOKEN_MARKER)
            {
                word.insert(0, TokTrie::SPECIAL_TOKEN_MARKER);
            }
        }
        let mut ends = tokenizer.eog().to_vec();
        if ends.is_empty() {
            // A model without an end token stops where the grammar does.
            ends.push(size);
            words.push(b"\xFF<end>".to_vec());
        }
        let mut blank = vec![0u32; (size as usize).div_ceil(32)];
        for (id, word) in words.iter().enumerate().take(size as usize) {
            blank[id / 32] |= u32::from(word.first().is_some_and(u8::is_ascii_whitespace)) << (id % 32);
        }
        // A word may stand in the trie once only; the first id of each has it.
        let info = TokRxInfo::new(words.len() as u32, ends[0]);
        let trie = TokTrie::from(&info, &words).with_eos_tokens(&ends);
        let env: TokEnv = Arc::new(Trie(trie));
        let slices = llguidance::earley::SlicedBiasComputer::general_slices();
        let mut factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices)
            .map_err(|e| Error::Grammar(format!("this vocabulary cannot be constrained: {e}")))?;
        factory.quiet();
        factory.limits_mut().verbose_errors = false;
        Ok(Self { factory, size, blank: blank.into() })
    }
}

impl std::fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vocabulary").field("size", &self.size).finish_non_exhaustive()
    }
}
