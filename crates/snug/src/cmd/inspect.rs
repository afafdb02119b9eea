//! `snug inspect`: what a file holds, whether or not it can be run.

use crate::args::InspectArgs;
use crate::fault::Ended;
use crate::output::{self, bytes};
use crate::resolve;
use checkpoint::{Checkpoint, Container, Format, MatrixInfo, Value};
use engine::figures::{self, ExpertBytes, Parameters, PerSequence};
use engine::{open, plan};
use memory::{Component, Residency, WeightShare};
use model::{Family, Spec};
use serde_json::{Map, Value as Json, json};
use std::collections::BTreeMap;

/// Elements of an array that are shown; of a longer one, these first ones and the length.
const SHOWN: usize = 8;

/// Everything there is to say.
struct Facts {
    ck: Checkpoint,
    name: String,
    arch: Option<String>,
    /// What the family makes of it, or why it cannot be run.
    runs: Result<Runs, String>,
}

/// What a family makes of a checkpoint.
struct Runs {
    spec: Spec,
    shares: Vec<WeightShare>,
    parameters: Parameters,
    sequence: PerSequence,
    experts: Option<ExpertBytes>,
}

/// Prints it.
pub fn run(a: &InspectArgs) -> anyhow::Result<Ended> {
    let ck = Checkpoint::open(resolve::source(a.model.as_deref())?)?;
    let runs = model::open(&ck).and_then(|f| looked_at(f.as_ref(), &ck)).map_err(|e| e.to_string());
    let facts = Facts { name: open::name(ck.meta()), arch: architecture(&ck), runs, ck };
    if a.json {
        output::json(&as_json(&facts, a.tensors))?
    } else {
        print(&facts, a.tensors)?
    }
    Ok(Ended::Done)
}

fn looked_at(family: &dyn Family, ck: &Checkpoint) -> model::Result<Runs> {
    let bounds = model::bind(family, ck)?;
    Ok(Runs {
        spec: family.spec().clone(),
        shares: plan::shares(&bounds),
        parameters: figures::parameters(family, &bounds, ck),
        sequence: figures::per_sequence(family),
        experts: figures::expert_bytes(family, &bounds),
    })
}

fn architecture(ck: &Checkpoint) -> Option<String> {
    let m = ck.meta();
    match m.hf() {
        Some(hf) => hf.text_config()?.get("model_type")?.as_str().map(str::to_string),
        None => m.str("general.architecture").ok().flatten().map(str::to_string),
    }
}

fn component(c: Component) -> String {
    match c {
        Component::Core => "core".into(),
        Component::Embed => "embedding".into(),
        Component::LayerEmbed => "per-layer embeddings".into(),
        Component::Head => "head".into(),
        Component::Mtp => "predictor".into(),
        Component::Layer(l) => format!("layer {l}"),
        Component::Experts(l) => format!("experts {l}"),
    }
}

fn total(shares: &[WeightShare], r: Residency) -> u64 {
    shares.iter().filter(|s| s.residency == r).map(|s| s.bytes).sum()
}

const RESIDENCIES: [(Residency, &str); 4] = [
    (Residency::Resident, "in memory all the time"),
    (Residency::Leased, "in memory only while used: the token predictor"),
    (Residency::Cached, "kept as far as room allows: routed experts"),
    (Residency::RowRead, "never in memory, read row by row: embeddings per layer"),
];

/// Logical tensors and bytes by format; what belongs to a matrix is counted with it.
fn by_type(ck: &Checkpoint) -> BTreeMap<String, (u64, u64)> {
    let mut all = BTreeMap::new();
    for m in ck.matrices() {
        let (n, b) = all.entry(format_name(&m)).or_default();
        (*n, *b) = (*n + 1, *b + m.bytes());
    }
    all
}

/// The format, with the bits a weight takes where its name is not a type's.
fn format_name(m: &MatrixInfo) -> String {
    match m.format {
        Format::Plain(d) => d.name().into(),
        f => format!("{f} ({:.2} bits)", f.bits()),
    }
}

/// Elements of all logical tensors.
fn elements(ck: &Checkpoint) -> u64 {
    ck.matrices().iter().map(|m| m.shape.iter().product::<u64>()).sum()
}

fn print(f: &Facts, tensors: bool) -> anyhow::Result<()> {
    let field = |name: &str, value: String| output::line(format_args!("{name:<14}{value}"));
    let meta = f.ck.meta();
    field("file", meta.file().to_string())?;
    let container = if meta.container() == Container::Gguf { "GGUF" } else { "safetensors" };
    field("container", format!("{container}, {} file(s)", f.ck.files()))?;
    field("name", f.name.clone())?;
    field("architecture", f.arch.clone().unwrap_or_else(|| "not named".into()))?;
    match &f.runs {
        Ok(r) => field("model", described(&r.spec))?,
        Err(why) => field("cannot run", why.clone())?,
    }
    let elems = elements(&f.ck);
    field("tensors", format!("{}, {elems} elements, {}", f.ck.tensors().len(), bytes(f.ck.weight_bytes())))?;
    for tower in f.ck.vision_files() {
        field("vision", format!("{} lies beside it and is not used", tower.display()))?;
    }
    for (dtype, (n, b)) in by_type(&f.ck) {
        field("", format!("{dtype}: {n} tensors, {}", bytes(b)))?;
    }
    if let Ok(runs) = &f.runs {
        for (name, what) in counted(&runs.parameters) {
            field(name, what)?;
        }
        for (r, what) in RESIDENCIES {
            field(r.name(), format!("{:>12}  {what}", bytes(total(&runs.shares, r))))?;
        }
        field("a position", format!("{} of keys and values in bf16", runs.sequence.position))?;
        if runs.sequence.state > 0 {
            let PerSequence { state, conv, .. } = runs.sequence;
            field("a sequence", format!("{state} of recurrent states, {conv} of convolutions"))?;
        }
        if let Some(e) = runs.experts {
            field("an expert", format!("{} bytes; a token chooses {}", e.one, e.per_token))?;
        }
    }
    output::line("\nmetadata")?;
    for (key, value) in metadata_lines(&f.ck) {
        output::line(format_args!("  {key} = {value}"))?;
    }
    if tensors {
        output::line("\ntensors")?;
        let all: Vec<_> = f.ck.matrices().into_iter().map(|m| (format_name(&m), m)).collect();
        let width = all.iter().map(|(_, m)| m.name.len()).max().unwrap_or(0);
        let wide = all.iter().map(|(name, _)| name.len()).max().unwrap_or(0).max(7);
        for (format, m) in &all {
            let shape = format!("{:?}", m.shape);
            output::line(format_args!("  {:width$}  {format:<wide$} {shape:<18} {}", m.name, m.bytes()))?;
        }
    }
    Ok(())
}

/// Parameters by what they are for, as far as there are any.
fn counted(p: &Parameters) -> Vec<(&'static str, String)> {
    let mut lines = vec![("parameters", format!("{}, {} active", p.text, p.active))];
    let rest = [
        (p.experts, "in routed experts"),
        (p.predictor, "more in the token predictor"),
        (p.vision, "more in a vision tower, which is not used"),
        (p.other, "in other tensors, which are not used"),
    ];
    lines.extend(rest.iter().filter(|(n, _)| *n > 0).map(|(n, what)| ("", format!("{n} {what}"))));
    lines
}

fn described(s: &Spec) -> String {
    let experts = s.experts.map(|(n, k)| format!(", {n} experts ({k} a token)")).unwrap_or_default();
    let mtp = if s.mtp_layers > 0 { ", token predictor" } else { "" };
    let Spec { n_layers, hidden, vocab, context, .. } = s;
    format!("{n_layers} layers of width {hidden}, vocabulary {vocab}, context {context}{experts}{mtp}")
}

fn metadata_lines(ck: &Checkpoint) -> Vec<(String, String)> {
    let meta = ck.meta();
    let Some(hf) = meta.hf() else { return meta.entries().map(|(k, v)| (k.to_string(), v.to_string())).collect() };
    let mut lines = Vec::new();
    for (file, json) in [("config", &hf.config), ("generation", &hf.generation)] {
        if let Some(j) = json {
            flatten(file.to_string(), j, &mut lines);
        }
    }
    lines
}

fn flatten(key: String, value: &Json, into: &mut Vec<(String, String)>) {
    match value {
        Json::Object(m) => m.iter().for_each(|(k, v)| flatten(format!("{key}.{k}"), v, into)),
        Json::Array(a) if a.len() > SHOWN => {
            let first: Vec<String> = a.iter().take(SHOWN).map(Json::to_string).collect();
            into.push((key, format!("[{}, ... {} in all]", first.join(", "), a.len())));
        }
        other => into.push((key, other.to_string())),
    }
}

fn as_json(f: &Facts, tensors: bool) -> Json {
    let ck = &f.ck;
    let mut all = json!({
        "file": ck.meta().file(),
        "files": ck.files(),
        "container": if ck.meta().container() == Container::Gguf { "gguf" } else { "safetensors" },
        "name": f.name,
        "architecture": f.arch,
        "supported": f.runs.is_ok(),
        "tensor_count": ck.tensors().len(),
        "elements": elements(ck),
        "bytes": ck.weight_bytes(),
        "types": by_type(ck).into_iter().map(|(t, (n, b))| (t, json!({"tensors": n, "bytes": b}))).collect::<BTreeMap<_, _>>(),
        "metadata": metadata_json(ck),
    });
    match &f.runs {
        Ok(r) => {
            all["model"] = spec_json(&r.spec);
            all["weights"] = weights_json(&r.shares);
            let Parameters { text, active, experts, predictor, vision, other } = r.parameters;
            all["parameters"] = json!({
                "text": text, "active": active, "experts": experts, "predictor": predictor, "vision": vision, "other": other,
            });
            let PerSequence { position, state, conv } = r.sequence;
            all["sequence"] = json!({"bytes_per_position": position, "state_bytes": state, "conv_bytes": conv});
            if let Some(e) = r.experts {
                all["experts"] = json!({"bytes": e.one, "bytes_per_token": e.per_token});
            }
        }
        Err(why) => all["reason"] = json!(why),
    }
    if tensors {
        let one = |m: MatrixInfo| {
            let bits = m.format.bits();
            let files: Vec<&str> = m.planes.iter().flatten().map(|t| &*t.name).collect();
            json!({"name": &*m.name, "dtype": m.format.to_string(), "bits": bits, "shape": m.shape[..], "bytes": m.bytes(), "stored_as": files})
        };
        all["tensors"] = ck.matrices().into_iter().map(one).collect();
    }
    all
}

fn spec_json(s: &Spec) -> Json {
    let experts = s.experts.map(|(count, used)| json!({"count": count, "used": used}));
    let Spec { n_layers, hidden, vocab, context, mtp_layers, .. } = s;
    json!({"n_layers": n_layers, "hidden": hidden, "vocab": vocab, "context": context, "experts": experts, "mtp_layers": mtp_layers})
}

fn weights_json(shares: &[WeightShare]) -> Json {
    let mut all: Map<String, Json> =
        RESIDENCIES.iter().map(|(r, _)| (r.name().to_string(), json!(total(shares, *r)))).collect();
    let one = |s: &WeightShare| json!({"component": component(s.component), "residency": s.residency.name(), "bytes": s.bytes});
    all.insert("components".into(), shares.iter().map(one).collect());
    Json::Object(all)
}

fn metadata_json(ck: &Checkpoint) -> Json {
    match ck.meta().hf() {
        Some(hf) => {
            json!({"config": hf.config.as_ref().map(abbreviated), "generation": hf.generation.as_ref().map(abbreviated)})
        }
        None => ck.meta().entries().map(|(k, v)| (k.to_string(), value_json(v))).collect(),
    }
}

fn value_json(v: Value) -> Json {
    match v {
        Value::Unsigned(x) => json!(x),
        Value::Signed(x) => json!(x),
        Value::Float(x) => json!(x),
        Value::Bool(x) => json!(x),
        Value::Str(s) => json!(String::from_utf8_lossy(s)),
        Value::Array(a) => {
            let first: Vec<Json> = a.iter().take(SHOWN).map(value_json).collect();
            if first.len() == a.len { json!(first) } else { json!({"length": a.len, "first": first}) }
        }
    }
}

fn abbreviated(v: &Json) -> Json {
    match v {
        Json::Object(m) => m.iter().map(|(k, v)| (k.clone(), abbreviated(v))).collect(),
        Json::Array(a) if a.len() > SHOWN => json!({"length": a.len(), "first": a[..SHOWN]}),
        other => other.clone(),
    }
}
