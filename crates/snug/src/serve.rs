//! Joins the server with the engine: a loaded model as a backend.

mod shared;

use engine::batch::{Batch, Keeping, STAGING_PAGES, Sharing};
use engine::disk::{self, Where};
use engine::open::{self, Opened};
use engine::{Choice, Model, OpenOptions};
use memory::Plan;
use serde_json::{Value, json};
use server::backend::{Facts, Failure, Sampling, Token};
use server::script::Script;
use server::voice::Voice;
use server::{Loading, Ready};
use shared::Shared;
use std::sync::Arc;

/// How requests share a model.
#[derive(Clone, Debug)]
pub struct Share {
    /// Most time between two tokens of an answer beside a prompt, in times of what it takes without.
    pub patience: f64,
    /// What is kept of what was read.
    pub keeping: Keeping,
    /// Where it is kept beyond the process.
    pub disk: Option<Where>,
    /// Whether to say what reading weights from disk did, each time that nothing is left to do.
    pub stats: bool,
}

/// What a server needs room for beside the model.
#[derive(Copy, Clone, Debug)]
pub struct Serving {
    /// Requests that may wait.
    pub queue: u32,
    /// Most bytes of kept states.
    pub snapshots: u64,
    /// Whether what was read is kept on disk.
    pub kept: bool,
}

/// What is asked of a model's plan, for a server.
pub fn serving(how: OpenOptions, s: Serving) -> OpenOptions {
    let mut how = OpenOptions { more: beside(s.queue), ..how };
    how.ask.snapshots = Some(s.snapshots);
    how.ask.staged = if s.kept { STAGING_PAGES } else { 0 };
    how.ask.stops_between_layers = true;
    how
}

/// What serving holds beyond running: measured as differences between `serve` and `run` (docs/benchmarks.md). The texts
/// of a request that are longer than its model's context are not in it; they are seen by the watch.
pub fn beside(queue: u32) -> u64 {
    /// Its code, its threads, the runtime.
    const SERVER: u64 = 5 << 20;
    /// What holds answers to a schema, made when the first one asks for it.
    const CONSTRAINTS: u64 = 22 << 20;
    /// Ids of prompts that were tokenised before.
    const IDS: u64 = 4 << 20;
    /// A connection with its request and what is kept of its answer.
    const CONNECTION: u64 = 40 << 10;
    // One runs, the others wait.
    SERVER + CONSTRAINTS + IDS + CONNECTION * (u64::from(queue) + 1)
}

/// Loads a model as it was planned, and puts it behind a queue of that length.
///
/// # Errors
/// Whatever is wrong with the model or the machine.
pub fn engine_backend(
    opened: Opened,
    (how, plan): (OpenOptions, Plan),
    name: Option<String>,
    dialect: Option<&str>,
    queue: u32,
    share: Share,
    loading: &Loading,
) -> anyhow::Result<Ready> {
    let of = share.disk.as_ref().map(|_| disk::of_checkpoint(&opened.ck)).unwrap_or_default();
    let model = Model::load_as(opened, &how, plan, &mut |p| loading.progress(p.done, p.total))?;
    let Model { exec, tokenizer, template, sampling, name: own } = model;
    let tokenizer = tokenizer.ok_or_else(|| engine::Error::NoTokenizer(own.clone()))?;
    let voice = voice(tokenizer, template, dialect)?;
    let (spec, plan) = (exec.family().spec(), exec.plan());
    let (name, aliases) = names(name, &own);
    let facts = Facts {
        name,
        aliases,
        architecture: spec.arch.to_string(),
        context: plan.context,
        trained_context: spec.context,
        vocab: spec.vocab,
        parallel: plan.parallel,
        sampling: usual(&sampling),
    };
    // Who may come at all the server has decided; until somebody's turn is taken all of them wait.
    let places = queue.saturating_add(plan.parallel);
    let plan = described(plan);
    let mut batch = Batch::new(exec, Sharing { places, patience: share.patience, keeping: share.keeping });
    if let Some(at) = &share.disk {
        batch.keep_on_disk(at, &[&of, &disk::of_tokenizer(&voice.tokenizer)])?;
        tracing::info!(dir = %at.dir.display(), most_bytes = at.most, "prompts are kept on disk");
    }
    let shared = Shared::new(facts, plan, batch, (Arc::clone(&voice), share.stats), queue)?;
    Ok(Ready { voice, backend: Arc::new(shared) })
}

/// A backend that follows a script, with a model's vocabulary and template.
///
/// # Errors
/// Names the field of the script.
pub fn script_backend(
    opened: &Opened,
    text: &[u8],
    name: Option<String>,
    dialect: Option<&str>,
    queue: u32,
) -> anyhow::Result<Ready> {
    let meta = opened.ck.meta();
    let own = open::name(meta);
    let tokenizer = open::tokenizer(meta)?.ok_or_else(|| engine::Error::NoTokenizer(own.clone()))?;
    let template = open::template(meta, Some(&tokenizer))?;
    let voice = voice(tokenizer, template, dialect)?;
    let script = Script::parse(text, &voice.tokenizer).map_err(|e| crate::fault::Usage(format!("the script: {e}")))?;
    let line = script.backend(&names(name, &own).0, &voice, queue)?;
    Ok(Ready { voice, backend: Arc::new(line) })
}

/// The id a model would have and whether it could call tools, without loading it.
///
/// # Errors
/// A tokenizer or a template that cannot be read.
pub fn known(opened: &Opened, asked: Option<&str>) -> anyhow::Result<(String, bool)> {
    let meta = opened.ck.meta();
    let (id, _) = names(asked.and_then(crate::resolve::asked_for), &open::name(meta));
    let Some(tokenizer) = open::tokenizer(meta)? else { return Ok((id, false)) };
    let template = open::template(meta, Some(&tokenizer))?;
    let voice = Voice::new(tokenizer, template, None).map_err(anyhow::Error::msg)?;
    Ok((id, voice.calls()))
}

/// The id of a model: what it was asked for by, else its own name. The latter stays an alias. Ids have no white space,
/// which clients do not expect in them.
fn names(asked: Option<String>, own: &str) -> (String, Vec<String>) {
    let own = own.split_whitespace().collect::<Vec<_>>().join("-");
    match asked.filter(|a| *a != own) {
        Some(asked) => (asked, vec![own]),
        None => (own, Vec::new()),
    }
}

fn voice(
    t: text::Tokenizer,
    template: Option<text::ChatTemplate>,
    dialect: Option<&str>,
) -> anyhow::Result<Arc<Voice>> {
    let voice = Voice::new(t, template, dialect).map_err(|e| crate::fault::Usage(format!("--dialect: {e}")))?;
    if voice.template.is_some() && !voice.shows_tools() {
        let then = if voice.calls() {
            "the model never sees those that are offered"
        } else {
            "requests that offer some are refused"
        };
        tracing::warn!(then, "this model's chat template has no place for tools");
    }
    Ok(Arc::new(voice))
}

fn usual(s: &engine::Sampling) -> Sampling {
    Sampling {
        temperature: s.temperature,
        top_k: s.top_k,
        top_p: s.top_p,
        min_p: s.min_p,
        repetition_penalty: s.repetition_penalty,
        presence_penalty: s.presence_penalty,
        frequency_penalty: s.frequency_penalty,
        logit_bias: s.logit_bias.clone(),
        seed: s.seed,
    }
}

fn wanted(s: Sampling, logprobs: Option<u32>) -> engine::Sampling {
    engine::Sampling {
        temperature: s.temperature,
        top_k: s.top_k,
        top_p: s.top_p,
        min_p: s.min_p,
        repetition_penalty: s.repetition_penalty,
        presence_penalty: s.presence_penalty,
        frequency_penalty: s.frequency_penalty,
        logit_bias: s.logit_bias,
        seed: s.seed,
        logprobs,
    }
}

fn described(p: &Plan) -> Value {
    let weight = |w: &memory::WeightShare| json!({"component": format!("{:?}", w.component), "residency": w.residency.name(), "bytes": w.bytes});
    let slots = p.slots.as_ref().map(|s| json!({"slots": s.slots(), "experts": s.experts(), "bytes": s.bytes()}));
    json!({
        "slots": slots, "context": p.context, "parallel": p.parallel, "chunk": p.chunk, "guard_bytes": p.guard,
        "total_bytes": p.total_bytes(), "weight_bytes": p.resident_bytes() + p.head_beyond(), "history_bytes": p.kv_bytes,
        "pages": p.pages, "snapshot_bytes": p.snapshots(), "draft": p.draft, "state_bytes": p.state_bytes, "workspace_bytes": p.workspace.step + p.workspace.carry + p.row_bytes,
        "weights": p.weights.iter().map(weight).collect::<Vec<_>>(),
    })
}

fn token(c: &Choice) -> Token {
    Token { id: c.id, logprob: c.logprob, top: c.top.iter().map(|l| (l.id, l.logprob)).collect() }
}

fn failure(e: &engine::Error) -> Failure {
    use engine::Error as E;
    let what = e.to_string();
    match e {
        E::BadParameter { name, value, range } => {
            Failure::Request { field: Some(*name), what: format!("is {value}; allowed is {range}") }
        }
        // A grammar that comes to nothing is the request's own.
        E::PromptTooLong { .. } | E::EmptyPrompt | E::BadToken { .. } | E::Text(text::Error::Grammar(_)) => {
            Failure::Request { field: None, what }
        }
        E::Stopping => Failure::Stopping,
        _ => Failure::Internal(what),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_has_the_name_it_was_asked_for_by_and_its_own_beside_it() {
        assert_eq!(names(Some("smollm2".into()), "Smollm2 135M  x"), ("smollm2".into(), vec!["Smollm2-135M-x".into()]));
        assert_eq!(names(None, "Smollm2 135M"), ("Smollm2-135M".into(), vec![]));
        assert_eq!(names(Some("m".into()), "m"), ("m".into(), vec![]));
    }
}
