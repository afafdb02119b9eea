//! Constrained decoding: which tokens may come next, so that an output follows a schema or a call its tool.
//!
//! Grammars are run by llguidance over the vocabulary's bytes. A [`Matcher`] belongs to one output: ask it for the
//! [`mask`](Matcher::mask) before sampling, tell it the sampled id with [`accept`](Matcher::accept). A grammar speaks of
//! the output from where the matcher begins; reasoning before it is the caller's to let pass, or [`Reasoning`]'s.

mod bounds;
mod calls;
mod gemma;
mod lark;
mod schema;
mod spaces;
mod vocab;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{TokEnv, TokTrie};
use serde_json::{Value, json};
use spaces::Spaces;

pub use calls::{Choice, ToolChoice};
pub(crate) use vocab::Vocabulary;

use crate::{Error, Result, Tokenizer, dialect::Dialect};

/// What an output must follow.
#[derive(Debug, Clone, Copy)]
pub enum Constraint<'a> {
    /// Any JSON object.
    JsonObject,
    /// JSON that a schema accepts. A keyword that cannot be enforced is an error.
    JsonSchema(&'a Value),
    /// A regular expression over the whole output.
    Regex(&'a str),
    /// A grammar in llguidance's Lark, with a rule `start`.
    Lark(&'a str),
    /// Tool calls in the dialect's own syntax. A keyword of a tool's schema that cannot be enforced is relaxed, with a warning.
    Tools(ToolChoice<'a>),
}

/// Reasoning that comes before what is constrained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Reasoning {
    /// None: the constraint holds from the first token.
    #[default]
    Off,
    /// The prompt opened it: the constraint holds from where the model closes it.
    Open,
    /// The model may open and close it first.
    Allowed,
}

/// A keyword of a tool's schema that is not enforced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// The tool and a JSON pointer into its schema, e.g. `get_weather/properties/city`.
    pub path: String,
    /// The keyword.
    pub keyword: String,
    /// What is the matter with it.
    pub why: String,
}

impl Constraint<'_> {
    /// Compiles the constraint for a vocabulary. The first call for a tokenizer builds its trie; later ones share it.
    ///
    /// # Errors
    /// [`Error::Schema`] names the path and the keyword; [`Error::Grammar`] the line of a grammar, or the choice of tools
    /// that makes no sense.
    pub fn build(&self, tokenizer: &Tokenizer, dialect: &Dialect, reasoning: Reasoning) -> Result<Matcher> {
        let vocabulary = tokenizer.vocabulary()?;
        let mut warnings = Vec::new();
        let grammar = match self {
            Self::Tools(t) => calls::grammar(t, vocabulary, reasoning, &mut warnings)?,
            _ if reasoning == Reasoning::Off => TopLevelGrammar::from_lark(self.lark()?),
            _ => calls::behind_reasoning(dialect, reasoning, self.lark()?),
        };
        let spaces = match self {
            Self::Tools(t) => Spaces::of_calls(t, t.answer.is_some_and(Self::is_json), reasoning),
            _ => self.is_json().then(|| Spaces::of_json(dialect, reasoning)),
        };
        let refused = |what: String| match self {
            Self::JsonSchema(s) => culprit(vocabulary, s, &what),
            // The grammar of calls is not the client's own.
            Self::Tools(_) => Error::Grammar(brief(&what)),
            _ => Error::Grammar(what),
        };
        // Behind reasoning it would be seen too late that an answer has no beginning.
        if reasoning != Reasoning::Off && !matches!(self, Self::Tools(_)) {
            compile(vocabulary, TopLevelGrammar::from_lark(self.lark()?)).map_err(refused)?;
        }
        let inner = compile(vocabulary, grammar).map_err(refused)?;
        let (env, blank) = (vocabulary.factory.tok_env().clone(), Arc::clone(&vocabulary.blank));
        Ok(Matcher { inner, size: vocabulary.size, words: Vec::new(), warnings, spaces, env, blank })
    }

    fn is_json(&self) -> bool {
        matches!(self, Self::JsonObject | Self::JsonSchema(_))
    }

    /// The grammar of an answer, without reasoning.
    fn lark(&self) -> Result<String> {
        Ok(match self {
            Self::JsonObject => json_grammar(&json!({"type": "object"})),
            Self::JsonSchema(s) => {
                if let Some(f) = schema::findings(s).into_iter().next() {
                    return Err(Error::Schema { path: f.path, keyword: f.keyword, what: f.why });
                }
                json_grammar(s)
            }
            Self::Regex(r) => format!("start: {}", lark::regex(&format!("(?:{r})"))),
            Self::Lark(l) => (*l).to_owned(),
            Self::Tools(_) => return Err(Error::Grammar("calls are no answer beside calls".into())),
        })
    }
}

fn json_grammar(schema: &Value) -> String {
    format!("start: %json {}", lark::with_options(&schema::prepared(schema), lark::MAX_SPACE))
}

fn compile(vocabulary: &Vocabulary, grammar: TopLevelGrammar) -> Result<llguidance::Matcher, String> {
    let made = catch_unwind(AssertUnwindSafe(|| {
        let mut matcher = llguidance::Matcher::new(vocabulary.factory.create_parser(grammar));
        if let Some(e) = matcher.get_error() {
            return Err(e);
        }
        // A rule that leads only to itself compiles, and then nothing may come.
        match matcher.compute_mask_or_eos() {
            Ok(_) => Ok(matcher),
            Err(e) => Err(stuck(&e)),
        }
    }));
    made.unwrap_or_else(|_| Err("the grammar's compiler gave up".into()))
}

/// What the parser says, in words.
fn stuck(e: &impl std::fmt::Display) -> String {
    let said = e.to_string();
    if said.contains("NoExtensionBias") {
        return "nothing can come next: what is asked for has no end, or leads only to itself".into();
    }
    said
}

/// What a compiler says of a schema, without the grammar it dumps behind it.
fn brief(what: &str) -> String {
    /// The longest message, in characters.
    const MAX: usize = 300;
    let line = what.lines().map(str::trim).find(|l| !l.is_empty()).unwrap_or_default();
    match line.char_indices().nth(MAX) {
        Some((at, _)) => format!("{}...", &line[..at]),
        None => line.to_owned(),
    }
}

/// Whether a schema alone compiles.
fn compiles(vocabulary: &Vocabulary, schema: &Value) -> Result<(), String> {
    compile(vocabulary, TopLevelGrammar::from_lark(json_grammar(schema))).map(|_| ())
}

/// How many parts of a schema are tried to find the one that does not compile.
const MAX_TRIES: usize = 200;

/// The innermost part of a schema that does not compile, and the keyword it fails on.
fn find_culprit(vocabulary: &Vocabulary, root: &Value, what: &str) -> schema::Finding {
    let mut tries = 0;
    let (mut path, mut part, mut what) = (String::new(), root, what.to_owned());
    'deeper: while let Some(map) = part.as_object() {
        for (p, inner) in schema::children(&path, map) {
            tries += 1;
            if tries > MAX_TRIES {
                break 'deeper;
            }
            // A reference fails where what it refers to fails.
            let reference = inner.get("$ref").is_some() || !inner.is_object();
            if let (false, Err(e)) = (reference, compiles(vocabulary, &schema::standalone(inner, root))) {
                (path, part, what) = (p, inner, e);
                continue 'deeper;
            }
        }
        break;
    }
    let mut keyword = String::new();
    for key in part.as_object().map(|m| m.keys().cloned().collect::<Vec<_>>()).unwrap_or_default() {
        let mut without = part.clone();
        if let Some(map) = without.as_object_mut() {
            map.shift_remove(&key);
        }
        if key != "properties" && key != "type" && compiles(vocabulary, &schema::standalone(&without, root)).is_ok() {
            keyword = key;
            break;
        }
    }
    schema::Finding { path: if path.is_empty() { "/".into() } else { path }, keyword, why: brief(&what) }
}

fn culprit(vocabulary: &Vocabulary, root: &Value, what: &str) -> Error {
    let f = find_culprit(vocabulary, root, what);
    Error::Schema { path: f.path, keyword: f.keyword, what: f.why }
}

/// Follows one output through its grammar.
pub struct Matcher {
    inner: llguidance::Matcher,
    size: u32,
    words: Vec<u32>,
    warnings: Vec<Warning>,
    spaces: Option<Spaces>,
    env: TokEnv,
    /// Ids that begin with white space.
    blank: Arc<[u32]>,
}

impl Matcher {
    /// The ids that may come next: bit `id % 32` of word `id / 32`, for the ids of the tokenizer. Where the grammar may end,
    /// end tokens are among them; where it is over, they are all there is. A model's logits may be wider than the mask: what
    /// is beyond it is not allowed.
    ///
    /// # Errors
    /// [`Error::Grammar`] when the grammar needs more work for one token than any honest one.
    pub fn mask(&mut self) -> Result<&[u32]> {
        let inner = &mut self.inner;
        let mask = catch_unwind(AssertUnwindSafe(|| inner.compute_mask_or_eos()));
        let mask = mask.map_err(|_| gave_up())?.map_err(|e| Error::Grammar(stuck(&e)))?;
        let words = (self.size as usize).div_ceil(32);
        self.words.clear();
        self.words.extend(mask.as_slice().iter().take(words));
        if let (Some(last), bits @ 1..) = (self.words.last_mut(), self.size % 32) {
            *last &= (1 << bits) - 1;
        }
        if self.spaces.as_ref().is_some_and(Spaces::spent) {
            let left = |(word, blank): (&u32, &u32)| word & !blank != 0;
            // What a grammar demands is not in excess.
            if self.words.iter().zip(self.blank.iter()).any(left) {
                self.words.iter_mut().zip(self.blank.iter()).for_each(|(word, blank)| *word &= !blank);
            }
        }
        Ok(&self.words)
    }

    /// Whether an id may come next.
    ///
    /// # Errors
    /// As [`mask`](Self::mask).
    pub fn allows(&mut self, id: u32) -> Result<bool> {
        let mask = self.mask()?;
        Ok(mask.get(id as usize / 32).is_some_and(|w| w >> (id % 32) & 1 == 1))
    }

    /// Takes the id that was sampled.
    ///
    /// # Errors
    /// [`Error::Grammar`] if it was not allowed; the matcher is of no use then.
    pub fn accept(&mut self, id: u32) -> Result<()> {
        let inner = &mut self.inner;
        let done = catch_unwind(AssertUnwindSafe(|| inner.consume_token(id)));
        done.map_err(|_| gave_up())?.map_err(|e| Error::Grammar(e.to_string()))?;
        if let Some(s) = &mut self.spaces {
            let word = self.env.tok_trie().token(id);
            s.take(word.strip_prefix(&[TokTrie::SPECIAL_TOKEN_MARKER]).unwrap_or(word));
        }
        Ok(())
    }

    /// Whether the output may end here.
    pub fn is_complete(&mut self) -> bool {
        self.is_over() || self.inner.is_accepting().unwrap_or(false)
    }

    /// Whether the output must end here.
    pub fn is_over(&self) -> bool {
        self.inner.is_stopped()
    }

    /// Text that must come next, whatever is sampled; often none. Only whole characters are given.
    pub fn forced_text(&mut self) -> String {
        let inner = &mut self.inner;
        let bytes = catch_unwind(AssertUnwindSafe(|| inner.compute_ff_bytes())).unwrap_or_default();
        match String::from_utf8(bytes) {
            Ok(text) => text,
            Err(e) => {
                let good = e.utf8_error().valid_up_to();
                String::from_utf8(e.into_bytes().drain(..good).collect()).unwrap_or_default()
            }
        }
    }

    /// What is not enforced.
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }
}

impl std::fmt::Debug for Matcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Matcher").field("warnings", &self.warnings).finish_non_exhaustive()
    }
}

fn gave_up() -> Error {
    Error::Grammar("the grammar's parser gave up".into())
}
