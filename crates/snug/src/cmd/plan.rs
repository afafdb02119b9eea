//! `snug plan`: what fits and how long it will take, before anything is loaded.

use crate::args::{PlanArgs, QUEUE, SNAPSHOTS};
use crate::fault::Ended;
use crate::load::{answering, budget, less};
use crate::output::{self, bytes, line};
use crate::resolve;
use crate::serve::{Serving, beside, serving};
use engine::machine::{Budget, MachineProfile, Source};
use engine::open::{Opened, name};
use engine::plan::{Forecast, forecast, max_context, plan};
use memory::{KvSpec, Plan, Residency};
use serde_json::{Value as Json, json};

/// Everything there is to say.
struct Facts {
    name: String,
    arch: String,
    model_context: u32,
    plan: Plan,
    budget: Budget,
    max_context: u32,
    /// What this machine really has, where that is less than was asked for.
    short: Option<Budget>,
    machine: Option<MachineProfile>,
    forecast: Option<Forecast>,
    shorter: Option<String>,
    /// Of the allowance, what is a server's.
    server: u64,
    /// What computes.
    device: String,
    /// Why, where that was left open.
    settled: Option<String>,
}

/// Plans and prints.
pub fn run(a: &PlanArgs) -> anyhow::Result<Ended> {
    let opened = Opened::open(resolve::source(a.model.as_deref())?)?;
    let how = answering(&a.on, a.ahead)?;
    let snapshots = u64::from(a.snapshots.unwrap_or(if a.serve { SNAPSHOTS } else { 0 })) << 20;
    let mut how =
        if a.serve { serving(how, Serving { queue: a.queue, snapshots, kept: a.cache_dir.is_some() }) } else { how };
    how.ask.snapshots = (a.serve || snapshots > 0).then_some(snapshots);
    // A plan may be made for another machine: what was asked for counts, and what is here is told.
    let here = budget(&a.on);
    let budget = match a.on.memory {
        Some(bytes) => Budget { bytes, from: Source::Asked },
        None => here.clone(),
    };
    how.ask.guard = budget.bytes;
    let settled = opened.settle(&mut how);
    let on = how.on.backend()?;
    let mut of = opened.subject(&on);
    of.beyond.more = how.more;
    let plan = plan(of, &how.ask)?;
    let machine = MachineProfile::load()?;
    let spec = opened.family.spec();
    let facts = Facts {
        name: name(opened.ck.meta()),
        arch: spec.arch.clone(),
        model_context: spec.context,
        max_context: max_context(of, &how.ask)?.unwrap_or(plan.context),
        shorter: less(&opened, &how, &plan)?,
        server: how.more,
        // What `snug doctor` measures is the processor's.
        forecast: machine.as_ref().filter(|_| plan.host.is_none()).map(|m| forecast(of, &plan, m)),
        short: (here.bytes < budget.bytes).then_some(here),
        machine,
        budget,
        device: format!("{} {}", on.caps.name, on.caps.isa),
        settled,
        plan,
    };
    if a.json {
        output::json(&as_json(&facts))?
    } else {
        print(&facts)?
    }
    Ok(Ended::Done)
}

fn share(p: &Plan, r: Residency) -> u64 {
    p.weights.iter().filter(|w| w.residency == r).map(|w| w.bytes).sum()
}

/// Bytes that are free when everything is in use.
fn left(p: &Plan) -> u64 {
    p.guard.saturating_sub(p.total_bytes())
}

fn kv_name(p: &Plan) -> String {
    p.kv.first().map_or_else(String::new, KvSpec::describe)
}

/// Who drew the limit of the memory that the model lies in.
fn guard_from(f: &Facts) -> String {
    match f.plan.host {
        Some(_) => "--device-memory, or what is free on the device".into(),
        None => f.budget.from.to_string(),
    }
}

fn as_json(f: &Facts) -> Json {
    let p = &f.plan;
    let streamed = p.layers.as_ref().map_or(0, |l| l.bytes);
    let none = Forecast { load_s: None, prefill_tps: None, decode_tps: None, decode_full_tps: None, streamed: None };
    let foreseen = f.forecast.unwrap_or(none);
    json!({
        "model": f.name,
        "architecture": f.arch,
        "context": p.context,
        "parallel": p.parallel,
        "chunk": p.chunk,
        "draft": p.draft,
        "weights": {
            "resident": share(p, Residency::Resident) - streamed,
            "leased": share(p, Residency::Leased),
            "cached": share(p, Residency::Cached),
            "streamed": streamed,
            "row_read": share(p, Residency::RowRead),
            // What is leased is one of these two; of the head, what lies where prompts have their workspace.
            "predictor": share(p, Residency::Leased) - p.head_bytes(),
            "head": p.head_bytes(),
            "head_in_turn": p.head_bytes() - p.head_beyond(),
        },
        "slots": p.slots.as_ref().map(|s| json!({
            "slots": s.slots(),
            "experts": s.experts(),
            "bytes": s.bytes(),
            "pools": s.pools.iter().map(|p| json!({
                "layers": p.layers.len(),
                "experts": p.experts,
                "slots": p.slots,
                "slot_bytes": p.slot_bytes,
            })).collect::<Vec<_>>(),
        })),
        "kv": {
            "format": kv_name(p),
            "bytes_per_position": p.kv_bytes_per_position,
            "pages": p.pages,
            "total": p.kv_bytes,
        },
        "state": p.state_bytes,
        "snapshots": p.snapshots(),
        "workspace": p.workspace_bytes(),
        "allowance": p.allowance,
        // Of the process's allowance, wherever it lies.
        "server": f.server,
        "total_bytes": p.total_bytes(),
        "guard_bytes": p.guard,
        "guard_from": guard_from(f),
        "left_bytes": left(p),
        "max_context": f.max_context,
        "model_context": f.model_context,
        "device": f.device,
        "tier": p.tier.to_string(),
        // Beside what lies on a device: what files are read into, and the process itself.
        "host": p.host.map(|h| json!({"staging": h.staging, "allowance": h.allowance, "guard_bytes": h.guard})),
        "forecast": {
            "load_s": foreseen.load_s,
            "prefill_tps": foreseen.prefill_tps,
            "decode_tps": foreseen.decode_tps,
            "decode_full_tps": foreseen.decode_full_tps,
            "hit_rate": foreseen.streamed.map(|s| s.hit_rate),
            "disk_bytes_per_token": foreseen.streamed.map(|s| s.bytes),
        },
        "machine": f.machine.as_ref().map(|m| &m.date),
    })
}

fn print(f: &Facts) -> anyhow::Result<()> {
    let p = &f.plan;
    let field = |name: &str, n: u64, what: String| line(format!("{name:<14}{:>12}  {what}", bytes(n)).trim_end());
    line(format_args!("{}: {}, history in {}", f.name, f.arch, kv_name(p)))?;
    line(format_args!(
        "context {} of {}, {} at a time; the most that fits is {}",
        p.context, f.model_context, p.parallel, f.max_context
    ))?;
    if let Some(why) = &f.shorter {
        line(why)?;
    }
    line("")?;
    let streamed = p.layers.as_ref().map_or(0, |l| l.bytes);
    let resident = bytes(share(p, Residency::Resident) - streamed);
    let experts = if p.slots.is_some() { "routed experts in the file" } else { "routed experts" };
    let kinds = format!("resident {resident}, {experts} {}", bytes(share(p, Residency::Cached)));
    field("weights", p.resident_bytes() + p.head_beyond(), kinds)?;
    if let Some(l) = &p.layers {
        let each = bytes(l.buffer_bytes);
        let what = format!("of {} layers, read for every token, in turn in two buffers of {each}", l.layers.len());
        field("", l.bytes, what)?;
    }
    if let Some(s) = &p.slots {
        let what =
            format!("slots for {} of {} routed experts; the others are read when needed", s.slots(), s.experts());
        field("", s.bytes(), what)?;
    }
    if p.head_bytes() > 0 {
        let in_turn = bytes(p.head_bytes() - p.head_beyond());
        let what =
            format!("the head, {in_turn} of it in the workspace's room: away while prompts are read in segments");
        field("", p.head_bytes(), what)?;
    }
    let predictor = share(p, Residency::Leased) - p.head_bytes();
    if predictor > 0 {
        let what = match p.draft {
            0 => "not counted: the token predictor, which is not used",
            _ => "not counted: of the token predictor, in memory only while it drafts and there is room",
        };
        field("", predictor, what.into())?;
    }
    if share(p, Residency::RowRead) > 0 {
        field("", share(p, Residency::RowRead), "not counted: tables that are read row by row from the file".into())?;
    }
    let positions = u64::from(p.pages) * u64::from(memory::PAGE_POSITIONS);
    let shared = if p.parallel > 1 { format!(", {positions} of them shared by all") } else { String::new() };
    field("history", p.kv_bytes, format!("{} bytes a position, when full{shared}", p.kv_bytes_per_position))?;
    field("states", p.state_bytes, String::new())?;
    if p.snapshots() > 0 {
        field("", p.snapshots(), "for states kept of what was read".into())?;
    }
    field("workspace", p.workspace_bytes(), format!("of a step of {} rows", p.chunk))?;
    let server = match f.server {
        0 => format!("; `snug serve` takes {} more, see --serve", bytes(beside(QUEUE))),
        n => format!(", and {} for a server", bytes(n)),
    };
    let itself = &format!("the process itself: program, threads, tokenizer{server}");
    let allowed = if p.host.is_some() { "the driver: code of kernels, recorded steps" } else { itself };
    field("allowance", p.allowance, allowed.to_string())?;
    field("total", p.total_bytes(), String::new())?;
    field("limit", p.guard, guard_from(f))?;
    field("left", left(p), String::new())?;
    if let Some(h) = p.host {
        line(format_args!("\nall of that in {} ({}); in the host's:", p.tier, f.device))?;
        field("staging", h.staging, "what files are read into".into())?;
        field("allowance", h.allowance, itself.to_string())?;
        field("limit", h.guard, f.budget.from.to_string())?;
    }
    if let Some(why) = &f.settled {
        line(format_args!("\n--device auto is {why}"))?;
    }
    if let Some(b) = &f.short {
        line(format_args!("\nthis machine now has {} ({}): less than that limit", bytes(b.bytes), b.from))?;
    }
    print_forecast(f)
}

fn print_forecast(f: &Facts) -> anyhow::Result<()> {
    if f.plan.host.is_some() {
        return line("\nno forecast: GPUs are not measured by `snug doctor`");
    }
    let (Some(m), Some(c)) = (&f.machine, &f.forecast) else {
        return line("\nno forecast: this machine was not measured yet; `snug doctor` does it in half a minute");
    };
    let say = |x: Option<f64>| x.map_or_else(|| "unknown".into(), |x| format!("{x:.1}"));
    line(format_args!(
        "\nforecast, from what was measured on {}: loaded in {} s from disk; prompts at {} tokens/s; answers at {} tokens/s, \
         {} at the end of the context. Attention of prompts comes on top.",
        m.date,
        say(c.load_s),
        say(c.prefill_tps),
        say(c.decode_tps),
        say(c.decode_full_tps)
    ))?;
    let Some(s) = &c.streamed else { return Ok(()) };
    let hits = if f.plan.slots.is_some() {
        format!("; if experts are chosen evenly, {:.0}% of them are in memory", s.hit_rate * 100.0)
    } else {
        String::new()
    };
    let rate = say(s.rate.map(|r| r / 1e9));
    line(format_args!("a token reads {} from disk, which gives {rate} GB/s{hits}", bytes(s.bytes)))
}
