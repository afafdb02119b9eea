//! What is planned, refused and advised, from tiny checkpoints; no weight is read.

use engine::open::{On, Opened};
use engine::plan::{Ask, Backend, Context, OnCard, Predictor, Refusal, history_bytes, max_context, plan};
use engine::{Error, Executor, Model, OpenOptions, Wanted};
use memory::pages::pages_for;
use memory::{Component, KvFormat, KvSpec, Plan, Residency, Tier};
use std::sync::atomic::AtomicBool;

fn opened(name: &str) -> (tempfile::TempDir, Opened) {
    let dir = testkit::materialise(name).unwrap();
    let opened = Opened::open(dir.path().to_path_buf()).unwrap();
    (dir, opened)
}

fn planned(o: &Opened, ask: &Ask) -> engine::Result<Plan> {
    plan(o.subject(&On::default().backend().unwrap()), ask)
}

fn exactly(n: u32) -> Ask {
    Ask { context: Context::Exactly(n), ..Ask::default() }
}

/// For budgets between nothing and everything the context is the largest one: a page more would not fit.
#[test]
fn the_context_is_the_largest_that_fits_to_the_page() {
    // A mixture of experts gives up experts before positions: see `streamed`.
    for name in ["llama-b", "qwen3_5-b"] {
        let (_dir, o) = opened(name);
        let most = o.family.spec().context;
        let (all, least) = (planned(&o, &exactly(most)).unwrap(), planned(&o, &exactly(256.min(most))).unwrap());
        let (high, low) = (all.total_bytes(), least.total_bytes());
        for i in 0..24 {
            let guard = low + (high - low) * i / 23;
            let ask = Ask { context: Context::Most, guard, ..Ask::default() };
            let p = planned(&o, &ask).unwrap();
            assert!(p.total_bytes() <= guard && p.context.is_multiple_of(256) || p.context == most, "{name}: {guard}");
            let on = On::default().backend().unwrap();
            assert_eq!(max_context(o.subject(&on), &ask).unwrap(), Some(p.context));
            if p.context < most {
                let more = (pages_for(p.context) + 1) * 256;
                let more = planned(&o, &exactly(more.min(most))).unwrap();
                assert!(more.total_bytes() > guard, "{name}: {} positions would fit too", more.context);
            }
        }
        let none = planned(&o, &Ask { context: Context::Most, guard: low / 2, ..Ask::default() });
        assert!(matches!(none, Err(Error::Refused(Refusal::TooLarge { .. }))));
    }
}

#[test]
fn what_is_asked_for_and_does_not_fit_is_refused_with_what_would() {
    let (_dir, o) = opened("llama-b");
    let ask = |parallel, guard| Ask { parallel, guard, kv: Some(KvSpec::of(KvFormat::F32)), ..exactly(1024) };
    let whole = planned(&o, &ask(3, u64::MAX)).unwrap();
    let guard = whole.total_bytes() - whole.kv_bytes / 2;
    let e = planned(&o, &ask(3, guard)).unwrap_err();
    let Error::Refused(Refusal::TooLarge { context, parts, smaller, formats, parallel, .. }) = &e else {
        panic!("{e}");
    };
    // The least that would do: with layers that are read for every token.
    assert!(*context == 1024 && parts.total() < whole.total_bytes());
    assert!(planned(&o, &ask(3, parts.total())).is_ok() && planned(&o, &ask(3, parts.total() - 1)).is_err());
    let smaller = smaller.unwrap();
    assert!(planned(&o, &Ask { context: Context::Exactly(smaller), ..ask(3, guard) }).is_ok());
    assert!(planned(&o, &Ask { context: Context::Exactly(smaller + 256), ..ask(3, guard) }).is_err());
    for (kv, most) in formats {
        let other = Ask { kv: Some(*kv), context: Context::Exactly(*most), ..ask(3, guard) };
        assert!(planned(&o, &other).is_ok(), "{}", kv.describe());
    }
    assert!(formats.iter().any(|(kv, most)| kv.main == KvFormat::Bf16 && *most == 1024));
    assert_eq!(*parallel, Some(1));
    let said = e.to_string();
    for part in [format!("--context {smaller}"), "--kv bf16;".into(), "--parallel 1".into(), "--memory".into()] {
        assert!(said.contains(&part), "{said}");
    }
}

/// The allowance is for the process, so it is there with the smallest model, and more threads take more.
/// Where a mixture would be streamed on the host.
#[test]
fn a_card_that_is_too_small_is_refused() {
    let name = testkit::NAMES.iter().find(|n| n.starts_with("qwen3_5_moe")).unwrap();
    let (_dir, o) = opened(name);
    let tier = Tier::Device(0);
    let own = OnCard { tier, free: 1 << 40, overhead: 0, staging: 1 << 20, driver: 1 << 20, rows: 256 };
    let card = Backend { own: Some(own), ..On::default().backend().unwrap() };
    let all = plan(o.subject(&card), &exactly(256)).unwrap();
    assert!(all.tier == tier && all.slots.is_none());
    let little = Ask { device_guard: Some(all.total_bytes() - 1), ..exactly(256) };
    assert!(matches!(plan(o.subject(&card), &little), Err(Error::Refused(Refusal::TooLarge { .. }))));
}

#[test]
fn the_allowance_counts_threads() {
    let (_dir, o) = opened("llama-a");
    let with = |threads| {
        let on = On::Cpu(device::CpuOptions { threads: Some(threads), isa: None }).backend().unwrap();
        plan(o.subject(&on), &Ask::default()).unwrap().allowance
    };
    assert!(with(1) > 1 << 20 && with(8) > with(1));
}

/// What a caller says it will hold besides is in the allowance, and in what is refused.
#[test]
fn what_the_caller_adds_is_planned() {
    let (_dir, o) = opened("llama-a");
    let with =
        |more, guard| o.plan(&OpenOptions { ask: Ask { guard, ..exactly(256) }, more, ..OpenOptions::default() });
    let (alone, served) = (with(0, u64::MAX).unwrap(), with(3 << 20, u64::MAX).unwrap());
    assert_eq!(served.allowance, alone.allowance + (3 << 20));
    assert!(with(0, alone.total_bytes()).is_ok() && with(4096, alone.total_bytes()).is_err());
}

/// Layers 3 and 4 read the window of layer 1, layer 5 the history of layer 2.
#[test]
fn history_that_layers_share_is_read_by_each_of_them() {
    let (_dir, o) = opened("gemma4_e-a");
    let p = planned(&o, &exactly(512)).unwrap();
    let (window, full) = (2 * 16 * 4 * 8, 2 * 32 * 4 * 100);
    assert_eq!(history_bytes(o.family.as_ref(), &p, 100), 4 * window + 2 * full);
}

/// Two histories of one model, read side by side, are two, and the same format in both gives the same logits.
#[test]
fn a_second_history_is_planned_and_read_beside_the_first() {
    let (_dir, o) = opened("qwen3_5_moe-a");
    let kv = Some(KvSpec::of(KvFormat::Bf16));
    let alone = planned(&o, &Ask { kv, ..exactly(512) }).unwrap();
    let ask = Ask { kv, beside: kv, logit_rows: 256, ..exactly(512) };
    let both = planned(&o, &ask).unwrap();
    assert_eq!((both.kv_bytes, both.state_bytes), (2 * alone.kv_bytes, 2 * alone.state_bytes));
    let how = OpenOptions { ask, ..OpenOptions::default() };
    let mut model = Model::load(o, &how, &mut |_| {}).unwrap();
    let exec = &mut model.exec;
    let (a, b) = (exec.open().unwrap(), exec.beside(Executor::open).unwrap());
    let ids: Vec<u32> = (0..100).collect();
    let no = AtomicBool::new(false);
    let first = exec.prefill(a, &ids, Wanted::All, &no, &mut |_| {}).unwrap();
    let second = exec.beside(|e| e.prefill(b, &ids, Wanted::All, &no, &mut |_| {})).unwrap();
    assert!(first == second);
    assert_eq!((exec.len(a).unwrap(), exec.beside(|e| e.len(b)).unwrap()), (100, 100));
    exec.close(a).unwrap();
    exec.beside(|e| e.close(b)).unwrap();
    let c = engine::perplexity::compare(exec, &ids, 50, &no, &mut |_| {}).unwrap();
    assert_eq!((c.tokens, c.kl_mean, c.top1_agreement), (98, 0.0, 1.0));
    assert_eq!(c.nll, c.base_nll);
}

/// What was admitted may grow to the length it was promised; what is new is refused while the process holds more than
/// was allowed for.
#[test]
fn a_process_that_holds_too_much_admits_nobody_else_and_keeps_its_promise() {
    let (_dir, o) = opened("llama-a");
    let ask = Ask { parallel: 2, ..exactly(1024) };
    let guard = planned(&o, &ask).unwrap().total_bytes();
    let how = OpenOptions { ask: Ask { guard, ..ask }, ..OpenOptions::default() };
    let mut model = Model::load(o, &how, &mut |_| {}).unwrap();
    let first = model.exec.open().unwrap();
    let hoard = vec![1u8; guard as usize + (64 << 20)];
    let e = model.exec.open().unwrap_err();
    assert!(matches!(&e, Error::State(state::Error::OverBudget(o)) if o.free == 0 && o.asked > 0), "{e}");
    model.exec.fill(first, 1024, 1).unwrap();
    assert!(model.exec.usage().most_seen > guard && hoard[1 << 20] == 1);
    drop(hoard);
}

/// Several sequences have one context and what memory gives beside it, not a context each.
#[test]
fn sequences_share_the_pages_of_history() {
    let (_dir, o) = opened("llama-b");
    let ask = |parallel, guard| Ask { parallel, share: 256, guard, ..exactly(1024) };
    let all = planned(&o, &ask(3, u64::MAX)).unwrap();
    assert_eq!(all.pages, 12, "with memory enough all may be full");
    let page = (all.kv_bytes - planned(&o, &ask(2, u64::MAX)).unwrap().kv_bytes) / 4;
    for (less, pages) in [(0, 12), (1, 11), (3, 9), (6, 6)] {
        // The process needs a little less with each page that is not there.
        let guard = all.total_bytes() - less * page;
        let p = planned(&o, &ask(3, guard)).unwrap();
        assert!(p.total_bytes() <= guard && (pages..=pages + 1).contains(&p.pages), "{} of {pages} pages", p.pages);
        assert_eq!((p.context, p.parallel), (1024, 3));
    }
    // A full one and a page for each other one: less is refused.
    let least = all.total_bytes() - 8 * page;
    assert!(matches!(planned(&o, &ask(3, least)), Err(Error::Refused(Refusal::TooLarge { .. }))));
}

/// States that are kept have their bytes in the plan, fewer where memory is short; models that need none have none.
#[test]
fn kept_states_are_planned() {
    let (_dir, o) = opened("qwen3_5-b");
    let ask = |snapshots, guard| Ask { snapshots: Some(snapshots), guard, ..exactly(1024) };
    let without = planned(&o, &exactly(1024)).unwrap();
    let all = planned(&o, &ask(8 << 20, u64::MAX)).unwrap();
    assert_eq!(without.snapshot_bytes, None);
    // Whole states.
    assert!((7 << 20..=8 << 20).contains(&all.snapshots()), "{}", all.snapshots());
    assert!(all.total_bytes() >= without.total_bytes() + all.snapshots());
    let short = planned(&o, &ask(8 << 20, all.total_bytes() - (2 << 20))).unwrap();
    assert!(short.fits() && (5 << 20..=6 << 20).contains(&short.snapshots()), "{}", short.snapshots());
    let none = planned(&o, &ask(8 << 20, without.total_bytes() + 8192)).unwrap();
    assert!(none.fits() && none.snapshots() < 1 << 20, "{}", none.snapshots());
    let (_dir, o) = opened("llama-b");
    assert_eq!(planned(&o, &ask(8 << 20, u64::MAX)).unwrap().snapshots(), 0);
}

/// A predictor is resident where that takes nothing from others, else it comes and goes, else it stays away.
#[test]
fn a_predictor_is_kept_as_it_fits() {
    let (_dir, o) = opened("qwen3_5-b");
    let ask = |predictor, guard| Ask { draft: 2, predictor, guard, ..exactly(1024) };
    let kept = |p: &Plan| {
        let of =
            |r| p.weights.iter().filter(move |w| w.component == Component::Mtp && w.residency == r).map(|w| w.bytes);
        (p.draft, of(Residency::Resident).sum::<u64>(), of(Residency::Leased).sum::<u64>())
    };
    let resident = planned(&o, &ask(Predictor::Resident, u64::MAX)).unwrap();
    let leased = planned(&o, &ask(Predictor::Leased, u64::MAX)).unwrap();
    let ((_, all, none), (_, some, rest)) = (kept(&resident), kept(&leased));
    assert_eq!((none, all), (0, some + rest));
    assert!(rest > some && leased.leased_bytes() == rest, "most of a predictor is for drafting: {some} and {rest}");
    let saved = resident.total_bytes() - leased.total_bytes();
    // Totals are whole pages, and tables of pages are part of them.
    assert!(saved.abs_diff(rest) <= rest / 64 + 8192, "{saved} for {rest}");
    let as_it_fits = |guard| kept(&planned(&o, &ask(Predictor::AsItFits, guard)).unwrap());
    assert_eq!(as_it_fits(resident.total_bytes()), kept(&resident));
    assert_eq!(as_it_fits(resident.total_bytes() - 4096), kept(&leased));
    assert_eq!(as_it_fits(leased.total_bytes()), kept(&leased));
    assert_eq!(as_it_fits(leased.total_bytes() - 4096), (0, 0, all));
    // Who asks for it has it, whatever is read from disk for that.
    let asked = planned(&o, &ask(Predictor::Resident, leased.total_bytes())).unwrap();
    assert!(asked.layers.is_some() && kept(&asked) == kept(&resident));
}
