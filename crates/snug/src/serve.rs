//! Joins the server with the engine: a loaded model as a backend.

use crate::streamed::{Streamed, Watched};
use engine::open::{self, Opened};
use engine::{Choice, Decoding, Executor, Finish, Model, OpenOptions, SeqId, Step, decode};
use memory::Plan;
use serde_json::{Value, json};
use server::backend::{Done, Event, Facts, Failure, Job, Reason, Reporter, Sampling, Token};
use server::line::{Line, Run};
use server::script::Script;
use server::voice::Voice;
use server::{Loading, Ready};
use std::sync::Arc;

/// Loads a model and puts it behind a queue of that length, one generation at a time. `stats`: what reading experts from
/// disk did is said after each.
///
/// # Errors
/// Whatever is wrong with the model, the plan or the machine.
pub fn engine_backend(
    opened: Opened,
    how: &OpenOptions,
    name: Option<String>,
    dialect: Option<&str>,
    (queue, stats): (u32, bool),
    loading: &Loading,
) -> anyhow::Result<Ready> {
    let model = Model::load(opened, how, &mut |p| loading.progress(p.done, p.total))?;
    let Model { exec, tokenizer, template, sampling, name: own } = model;
    let tokenizer = tokenizer.ok_or_else(|| engine::Error::NoTokenizer(own.clone()))?;
    let voice = voice(tokenizer, template, dialect)?;
    let (spec, plan) = (exec.family().spec(), exec.plan());
    let facts = Facts {
        name: name.unwrap_or(own),
        architecture: spec.arch.to_string(),
        context: plan.context,
        trained_context: spec.context,
        vocab: spec.vocab,
        parallel: 1,
        sampling: usual(&sampling),
    };
    let plan = described(plan);
    let run = Engine { exec, voice: Arc::clone(&voice), stats, open: None };
    let line = Line::new(facts, plan, vec![Box::new(run)], queue)?;
    Ok(Ready { voice, backend: Arc::new(line) })
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
    let line = script.backend(&name.unwrap_or(own), &voice, queue)?;
    Ok(Ready { voice, backend: Arc::new(line) })
}

fn voice(
    t: text::Tokenizer,
    template: Option<text::ChatTemplate>,
    dialect: Option<&str>,
) -> anyhow::Result<Arc<Voice>> {
    let voice = Voice::new(t, template, dialect).map_err(|e| crate::fault::Usage(format!("--dialect: {e}")))?;
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
        "total_bytes": p.total_bytes(), "weight_bytes": p.resident_bytes(), "history_bytes": p.kv_bytes,
        "state_bytes": p.state_bytes, "workspace_bytes": p.workspace.step + p.workspace.carry + p.row_bytes,
        "weights": p.weights.iter().map(weight).collect::<Vec<_>>(),
    })
}

/// The engine as something that runs one job.
struct Engine {
    exec: Executor,
    voice: Arc<Voice>,
    /// Whether to say after each job what reading experts from disk did.
    stats: bool,
    /// The sequence of the job that runs. One that is still here when the next begins was left by a panic.
    open: Option<SeqId>,
}

impl Run for Engine {
    fn run(&mut self, job: Job, to: &Reporter) -> Result<Done, Failure> {
        self.close()?;
        let watched = Watched::of(&self.exec).filter(|_| self.stats);
        let before = watched.as_ref().map(Watched::now);
        let seq = self.exec.open().map_err(|e| failure(&e))?;
        self.open = Some(seq);
        let tokenizer = &self.voice.tokenizer;
        let read = job.prompt.len() as u64;
        let is_end = |id| !job.ignore_eos && tokenizer.is_eog(id);
        let decoding = Decoding {
            prompt: &job.prompt,
            history: &[],
            sampling: wanted(job.sampling, job.logprobs),
            max_tokens: job.max_tokens,
            constraint: job.constraint,
            is_end: &is_end,
            at_end: job.at_end,
            steer: job.steer,
            prompt_logprobs: job.prompt_logprobs,
        };
        let made = decode(&mut self.exec, seq, decoding, to.flag(), &mut |step| {
            to.tell(match step {
                Step::Prefill { done, total } => Event::Prefill { done: done as u32, total: total as u32 },
                Step::PromptToken(c) => Event::PromptToken(token(&c)),
                Step::Token(c) => Event::Token(token(c)),
            });
            true
        });
        self.close()?;
        let made = made.map_err(|e| failure(&e))?;
        if let Some((a, w)) = before.zip(watched) {
            let tokens = read + u64::from(made.steps);
            Streamed::between(&a, &w.now(), tokens).say("prompt and answer");
        }
        let reason = match made.finish {
            Finish::Length => Reason::Length,
            Finish::ContextFull => Reason::ContextFull,
            Finish::Stop | Finish::Cancelled => Reason::End,
        };
        Ok(Done { reason, cached: 0, prefill: made.prefill, decode: made.decode })
    }
}

impl Engine {
    fn close(&mut self) -> Result<(), Failure> {
        self.open.take().map_or(Ok(()), |seq| self.exec.close(seq).map_err(|e| failure(&e)))
    }
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
        E::PromptTooLong { .. } | E::EmptyPrompt | E::BadToken { .. } => Failure::Request { field: None, what },
        _ => Failure::Internal(what),
    }
}
