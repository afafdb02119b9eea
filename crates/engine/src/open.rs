//! From a source to a model that can answer: open, choose the family, bind, plan, load.

use crate::error::{Error, Result};
use crate::executor::Executor;
use crate::plan::{Allowance, Ask, Backend, OnCard, Subject, has_room_for_more, plan};
use crate::sampler::Sampling;
use checkpoint::{Checkpoint, Container, FileId, Meta, Source};
use device::{Cpu, CpuOptions, Cuda, Device, Layout, Profile, Profiled, Reference};
use memory::{Plan, Tier};
use model::Family;
use text::{ChatTemplate, GgufVocab, HfFiles, Tokenizer};
use weights::{Bound, Progress};

/// Rows of a prefill step that keep all multiprocessors of a GPU busy (the smaller matrices have 40 tiles of 128 outputs), and
/// the fewer that a card with less memory takes, because a step's workspace grows with them.
const CARD_ROWS: [u32; 2] = [4096, 1024];
/// Free bytes from which on a card takes the more.
const LARGE_CARD: u64 = 40 << 30;

/// The backend to run on.
#[derive(Clone, Debug)]
pub enum On {
    /// The f32 reference.
    Reference,
    /// The CPU kernels.
    Cpu(CpuOptions),
    /// One NVIDIA GPU, by its number.
    Cuda(u32),
    /// The first GPU if there is one and the model fits on it, else the CPU kernels.
    Auto(CpuOptions),
}

impl Default for On {
    fn default() -> Self {
        On::Cpu(CpuOptions::default())
    }
}

impl On {
    /// What its workspace is counted by.
    ///
    /// # Errors
    /// An instruction set that this machine does not have; no GPU that can be used.
    pub fn backend(&self) -> Result<Backend> {
        use device::host_device::Kernels;
        Ok(match self {
            On::Reference => Backend {
                scratch: <device::reference::ReferenceKernels as Kernels>::scratch,
                caps: Reference::caps_of(),
                layout: |_| Layout::File,
                own: None,
            },
            On::Cpu(o) | On::Auto(o) => Backend {
                scratch: <device::cpu::CpuKernels as Kernels>::scratch,
                caps: Cpu::caps_of(o)?,
                layout: |_| Layout::File,
                own: None,
            },
            On::Cuda(n) => {
                let free = Cuda::free(*n)?;
                let own = OnCard {
                    tier: Tier::Device(*n as u8),
                    free,
                    overhead: Cuda::OVERHEAD,
                    staging: weights::STAGING + Cuda::PINNED,
                    driver: Cuda::DRIVER,
                    rows: CARD_ROWS[usize::from(free < LARGE_CARD)],
                };
                let caps = Cuda::caps_of(*n)?;
                Backend { scratch: Cuda::scratch, caps, layout: Cuda::layout, own: Some(own) }
            }
        })
    }
    /// The one place that makes a backend.
    fn device(&self, plan: &Plan, profile: Option<&Profile>) -> Result<Box<dyn Device>> {
        Ok(match self {
            On::Reference => boxed(Reference::new(plan.workspace)?, profile),
            On::Cpu(o) | On::Auto(o) => boxed(Cpu::new(o.clone(), plan.workspace)?, profile),
            On::Cuda(n) => boxed(Cuda::new(*n, plan.workspace)?, profile),
        })
    }
}

fn boxed(dev: impl Device + 'static, profile: Option<&Profile>) -> Box<dyn Device> {
    match profile {
        Some(p) => Box::new(Profiled::new(dev, p.clone())),
        None => Box::new(dev),
    }
}

/// What to open a model with.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// What is asked of the plan.
    pub ask: Ask,
    /// The backend.
    pub on: On,
    /// Bytes that the process will hold besides a model: a server's connections, say.
    pub more: u64,
    /// Where to count what ops cost, if anybody asks.
    pub profile: Option<Profile>,
}

/// A checkpoint with its family and its parameters matched: everything that can be known without reading a weight.
pub struct Opened {
    /// The file.
    pub ck: Checkpoint,
    /// The architecture.
    pub family: Box<dyn Family>,
    /// Its parameters.
    pub bounds: Vec<Bound>,
}

impl Opened {
    /// Opens a source.
    ///
    /// # Errors
    /// Those of the file, its configuration and its tensors.
    pub fn open(source: impl Into<Source>) -> Result<Self> {
        let ck = Checkpoint::open(source)?;
        let within = |e: model::Error| Error::InFile { file: ck.meta().file().to_string(), source: Box::new(e.into()) };
        let family = model::open(&ck).map_err(within)?;
        let bounds = model::bind(family.as_ref(), &ck).map_err(within)?;
        Ok(Opened { ck, family, bounds })
    }
    /// What plans are made for.
    pub fn subject<'a>(&'a self, on: &'a Backend) -> Subject<'a> {
        let beyond = Allowance::of(&self.ck, &on.caps);
        // A card has everything on it, or nothing.
        let streams = on.own.is_none() && (0..self.ck.files()).all(|i| self.ck.path(FileId(i)).is_some());
        Subject { family: self.family.as_ref(), bounds: &self.bounds, on, beyond, streams }
    }
    /// Decides everything that is decided before a weight is read.
    ///
    /// # Errors
    /// A refusal, or an instruction set that this machine does not have.
    pub fn plan(&self, how: &OpenOptions) -> Result<Plan> {
        let on = how.on.backend()?;
        let mut of = self.subject(&on);
        of.beyond.more = how.more;
        plan(of, &how.ask)
    }
    /// Whether more positions than a plan has would fit too ([`crate::plan::has_room_for_more`]).
    ///
    /// # Errors
    /// Those of [`Self::plan`].
    pub fn has_room_for_more(&self, how: &OpenOptions, plan: &Plan) -> Result<bool> {
        let on = how.on.backend()?;
        let mut of = self.subject(&on);
        of.beyond.more = how.more;
        has_room_for_more(of, &how.ask, plan)
    }
    /// Makes a choice of [`On::Auto`], and says which and why. Other choices stay, without a word.
    pub fn settle(&self, how: &mut OpenOptions) -> Option<String> {
        let On::Auto(cpu) = &how.on else { return None };
        let cpu = cpu.clone();
        let on_card = |how: &OpenOptions| -> Result<String> {
            let card = OpenOptions { on: On::Cuda(0), ..how.clone() };
            self.plan(&card)?;
            Ok(Cuda::caps_of(0)?.isa)
        };
        match on_card(how) {
            Ok(name) => {
                how.on = On::Cuda(0);
                Some(format!("cuda:0, {name}: the model fits on it"))
            }
            Err(why) => {
                how.on = On::Cpu(cpu);
                Some(format!("cpu: {why}"))
            }
        }
    }
}

/// A model that can answer.
pub struct Model {
    /// Weights, state and device.
    pub exec: Executor,
    /// Its tokenizer, where the checkpoint has one.
    pub tokenizer: Option<Tokenizer>,
    /// Its chat template, where it has one or a usual one fits.
    pub template: Option<ChatTemplate>,
    /// How it likes to be sampled.
    pub sampling: Sampling,
    /// What to call it.
    pub name: String,
}

impl Model {
    /// Opens, plans and loads.
    ///
    /// # Errors
    /// Whatever is wrong with the file, the plan or the machine.
    pub fn open(source: impl Into<Source>, how: &OpenOptions, on_progress: &mut dyn FnMut(Progress)) -> Result<Self> {
        Self::load(Opened::open(source)?, how, on_progress)
    }
    /// Plans and loads what was opened.
    ///
    /// # Errors
    /// Whatever is wrong with the plan, the weights or the machine.
    pub fn load(opened: Opened, how: &OpenOptions, on_progress: &mut dyn FnMut(Progress)) -> Result<Self> {
        let mut how = how.clone();
        opened.settle(&mut how);
        let plan = opened.plan(&how)?;
        Self::load_as(opened, &how, plan, on_progress)
    }
    /// Loads what was opened as it was planned, after [`Opened::settle`].
    ///
    /// # Errors
    /// Whatever is wrong with the weights or the machine.
    pub fn load_as(
        opened: Opened,
        how: &OpenOptions,
        plan: Plan,
        on_progress: &mut dyn FnMut(Progress),
    ) -> Result<Self> {
        let Opened { ck, family, bounds } = opened;
        let dev = how.on.device(&plan, how.profile.as_ref())?;
        let tokenizer = tokenizer(ck.meta())?;
        let template = template(ck.meta(), tokenizer.as_ref())?;
        let (sampling, name) = (defaults(ck.meta())?, name(ck.meta()));
        let mut exec = Executor::load(family, &ck, &bounds, plan, dev, on_progress)?;
        // Ops are timed one by one, which a recorded step has none of.
        exec.set_graphs(how.profile.is_none());
        Ok(Model { exec, tokenizer, template, sampling, name })
    }
    /// The tokenizer.
    ///
    /// # Errors
    /// [`Error::NoTokenizer`].
    pub fn tokenizer(&self) -> Result<&Tokenizer> {
        self.tokenizer.as_ref().ok_or_else(|| Error::NoTokenizer(self.name.clone()))
    }
}

/// What to call a checkpoint.
pub fn name(meta: &Meta) -> String {
    let named = meta.str("general.name").ok().flatten().map(str::to_string);
    let dir = meta.hf().and_then(|h| h.dir()).and_then(|d| d.file_name()).map(|n| n.to_string_lossy().into_owned());
    named.or(dir).unwrap_or_else(|| meta.file().to_string())
}

/// The tokenizer of a checkpoint, `None` where it has none.
///
/// # Errors
/// Those of the text side, naming the key or the file.
pub fn tokenizer(meta: &Meta) -> Result<Option<Tokenizer>> {
    match meta.container() {
        Container::Gguf => gguf_tokenizer(meta),
        Container::Hf => hf_tokenizer(meta),
    }
}

fn gguf_tokenizer(meta: &Meta) -> Result<Option<Tokenizer>> {
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    // Files without a vocabulary say so by one of these words.
    let Some(model) = meta.str(&key("model"))?.filter(|m| !matches!(*m, "none" | "no_vocab")) else { return Ok(None) };
    let id = |name: &str| -> Result<Option<i64>> { Ok(meta.u32(&key(name))?.map(i64::from)) };
    let types = meta.i32s(&key("token_type"))?.map(|t| t.into_iter().map(i64::from).collect());
    let vocab = GgufVocab {
        model,
        pre: meta.str(&key("pre"))?,
        tokens: meta.strs(&key("tokens"))?.unwrap_or_default(),
        token_types: types,
        scores: meta.f32s(&key("scores"))?,
        merges: meta.strs(&key("merges"))?.unwrap_or_default(),
        bos: id("bos_token_id")?,
        eos: id("eos_token_id")?,
        eot: id("eot_token_id")?,
        eom: id("eom_token_id")?,
        unk: id("unknown_token_id")?,
        more_eog: Vec::new(),
        add_bos: meta.bool(&key("add_bos_token"))?,
        add_eos: meta.bool(&key("add_eos_token"))?,
        add_space_prefix: meta.bool(&key("add_space_prefix"))?,
    };
    Ok(Some(Tokenizer::from_gguf(&vocab)?))
}

fn hf_tokenizer(meta: &Meta) -> Result<Option<Tokenizer>> {
    let Some(hf) = meta.hf() else { return Ok(None) };
    let Some(json) = hf.tokenizer_json()? else { return Ok(None) };
    let bytes = |v: &Option<serde_json::Value>| v.as_ref().map(|v| v.to_string().into_bytes());
    let (config, generation) = (bytes(&hf.tokenizer_config), bytes(&hf.generation));
    let files = HfFiles {
        tokenizer: &json,
        config: config.as_deref(),
        special_tokens_map: None,
        generation_config: generation.as_deref(),
    };
    Ok(Some(Tokenizer::from_hf(&files)?))
}

/// The chat template of a checkpoint, or the usual one where its vocabulary has the tokens for it.
///
/// # Errors
/// A template that does not parse, with the line.
pub fn template(meta: &Meta, tokenizer: Option<&Tokenizer>) -> Result<Option<ChatTemplate>> {
    let Some(t) = tokenizer else { return Ok(None) };
    match ChatTemplate::for_model(meta.chat_template()?, t) {
        Err(text::Error::NoTemplate) => Ok(None),
        other => Ok(Some(other?)),
    }
}

/// How a checkpoint likes to be sampled: `general.sampling.*` of a GGUF file, `generation_config.json` beside
/// safetensors, and what most servers do where it says nothing.
///
/// # Errors
/// A key of the wrong type.
pub fn defaults(meta: &Meta) -> Result<Sampling> {
    let usual = Sampling { temperature: 0.8, top_k: 40, top_p: 0.95, ..Sampling::default() };
    let key = |name: &str| format!("general.sampling.{name}");
    if meta.container() == Container::Gguf {
        if meta.entries().all(|(k, _)| !k.starts_with("general.sampling.")) {
            return Ok(usual);
        }
        let plain = Sampling::default();
        return Ok(Sampling {
            temperature: meta.f32(&key("temp"))?.unwrap_or(plain.temperature),
            top_k: meta.u32(&key("top_k"))?.unwrap_or(plain.top_k),
            top_p: meta.f32(&key("top_p"))?.unwrap_or(plain.top_p),
            min_p: meta.f32(&key("min_p"))?.unwrap_or(plain.min_p),
            repetition_penalty: meta.f32(&key("penalty_repeat"))?.unwrap_or(plain.repetition_penalty),
            ..plain
        });
    }
    let Some(g) = meta.hf().and_then(|h| h.generation.as_ref()) else { return Ok(usual) };
    let number = |name: &str| g.get(name).and_then(serde_json::Value::as_f64).map(|x| x as f32);
    if g.get("do_sample").and_then(serde_json::Value::as_bool) == Some(false) {
        return Ok(Sampling::greedy());
    }
    let names = ["temperature", "top_k", "top_p", "min_p"];
    if names.iter().all(|n| number(n).is_none()) {
        return Ok(usual);
    }
    let plain = Sampling::default();
    Ok(Sampling {
        temperature: number("temperature").unwrap_or(plain.temperature),
        top_k: number("top_k").map_or(plain.top_k, |k| k.max(0.0) as u32),
        top_p: number("top_p").unwrap_or(plain.top_p),
        min_p: number("min_p").unwrap_or(plain.min_p),
        repetition_penalty: number("repetition_penalty").unwrap_or(plain.repetition_penalty),
        ..plain
    })
}
