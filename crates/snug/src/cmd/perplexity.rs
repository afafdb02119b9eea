//! `snug perplexity`: what a format of history costs in quality, on a text.

use crate::args::PerplexityArgs;
use crate::fault::{Ended, usage};
use crate::interrupt;
use crate::load::{options, place, say_memory};
use crate::output::{self, line};
use crate::progress::Bar;
use crate::resolve;
use engine::open::Opened;
use engine::perplexity::{Comparison, chunk_rows, compare};
use engine::plan::whole_kv;
use engine::{Context, Error, Model};
use memory::KvSpec;
use serde_json::json;
use text::Rendered;

/// Positions of a window where nobody says otherwise.
const WINDOW: u32 = 2048;

/// Measures and prints.
pub fn run(a: &PerplexityArgs, verbose: bool) -> anyhow::Result<Ended> {
    let text = match std::fs::read_to_string(&a.file) {
        Ok(text) => text,
        Err(e) => return usage(format!("cannot read {} as text: {e}", a.file.display())),
    };
    let opened = Opened::open(resolve::source(a.model.as_deref())?)?;
    let spec = opened.family.spec();
    let mut how = options(&a.on, chunk_rows(spec.vocab))?;
    let base = whole_kv(&opened.bounds);
    how.ask.chunk = chunk_rows(spec.vocab);
    how.ask.beside = Some(base);
    if how.ask.context == Context::Usual {
        how.ask.context = Context::Exactly(spec.context.min(WINDOW));
    }
    let mut model = place(opened, &how, verbose)?;
    let ids = ids(&model, text, a.tokens)?;
    let window = model.exec.plan().context;
    let kv = model.exec.plan().kv.first().copied().unwrap_or(base);
    let bar = Bar::rounds("reading", ids.len() as u64);
    let mut done = 0;
    let compared = interrupt::answering(|stop| {
        compare(&mut model.exec, &ids, window, stop, &mut |n| {
            done += n;
            bar.at(done as u64, ids.len() as u64);
        })
    });
    drop(bar);
    if verbose {
        say_memory(&model.exec.usage());
    }
    match compared {
        Err(Error::Cancelled) => return Ok(Ended::Interrupted),
        c => show(&c?, kv, base, window, a.json)?,
    }
    Ok(Ended::Done)
}

fn ids(m: &Model, text: String, most: Option<u32>) -> anyhow::Result<Vec<u32>> {
    let mut ids = m.tokenizer()?.encode_prompt(&Rendered::markup(text))?;
    ids.truncate(most.unwrap_or(u32::MAX) as usize);
    Ok(ids)
}

fn show(c: &Comparison, kv: KvSpec, base: KvSpec, window: u32, as_json: bool) -> anyhow::Result<()> {
    if as_json {
        return output::json(&json!({
            "kv": kv.describe(),
            "against": base.describe(),
            "context": window,
            "tokens": c.tokens,
            "nll": c.nll,
            "delta_vs": c.nll - c.base_nll,
            "kl_mean": c.kl_mean,
            "kl_p99": c.kl_p99,
            "top1_agreement": c.top1_agreement,
        }));
    }
    line(format_args!(
        "{} tokens in windows of {window}, history in {} against {}",
        c.tokens,
        kv.describe(),
        base.describe()
    ))?;
    line(format_args!("nll              {:.5} nats a token, perplexity {:.3}", c.nll, c.nll.exp()))?;
    line(format_args!("difference       {:+.5}", c.nll - c.base_nll))?;
    line(format_args!("KL mean, p99     {:.3e}, {:.3e}", c.kl_mean, c.kl_p99))?;
    line(format_args!("likeliest equal  {:.4}", c.top1_agreement))
}
