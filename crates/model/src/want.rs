//! What a family needs from a checkpoint: each parameter with its names in both kinds of file.

use crate::cx::RopeOf;
use crate::rope::Rope;
use device::Pairing;
use memory::Component;
use std::sync::Arc;
use weights::{Canon, Proj, Role, WId};

/// One name a parameter may go by.
#[derive(Clone, Debug)]
pub struct Place {
    /// Tensor name. `~` stands for the root of the language model (`model.`, `model.language_model.`, ...), `{e}` for
    /// the number of an expert.
    pub name: String,
    /// How the parameter lies in it.
    pub shape: Lies,
    /// What makes it canonical.
    pub canon: Canon,
}

/// How a parameter lies in a tensor.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Lies {
    /// It is the tensor.
    Whole,
    /// Half 0 or 1 of every expert's rows.
    Half(u8),
    /// One tensor per expert.
    Each,
    /// Every `of`-th column from `first` on of each expert's transposed matrix: the tensor is `[E, k, of * n]`.
    Turned {
        /// The first column.
        first: u32,
        /// Columns from one to the next.
        of: u32,
    },
    /// Some rows of every group of a tensor's rows.
    Groups(Groups),
}

/// Rows of a tensor that come in equal groups, of which a parameter takes some.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Groups {
    /// Groups there are.
    pub count: u32,
    /// Rows of a group.
    pub of: u32,
    /// `(first, rows)` in each group, up to three such ranges: the parameter is the first of them in every group, then
    /// the second in every group, then the third. Ranges of no rows are none.
    pub rows: [(u32, u32); 3],
}

impl Groups {
    /// The parameter's rows as ranges `(first, rows)` of the tensor's.
    pub fn ranges(self) -> impl Iterator<Item = (u64, u64)> {
        let used = self.rows.into_iter().filter(|r| r.1 > 0);
        used.flat_map(move |(first, n)| {
            (0..self.count).map(move |g| (g as u64 * self.of as u64 + first as u64, n as u64))
        })
    }
}

/// How the canonical parameter is rearranged when it is written to a GGUF file.
#[derive(Copy, Clone, Debug, PartialEq)]
pub enum Export {
    /// As it is.
    Same,
    /// Rows of each head from half pairing to adjacent pairing of rope.
    AdjacentRope {
        /// Heads the rows are cut into.
        heads: u32,
    },
    /// Value heads from grouped (`j / (n_v / n_k)` is the key head) to tiled (`j % n_k` is), for rows (or elements) from
    /// `skip` on, `each` per head.
    TileRows {
        /// Rows left alone at the start.
        skip: u32,
        /// Key heads.
        n_k: u32,
        /// Value heads.
        n_v: u32,
        /// Rows of one value head.
        each: u32,
    },
    /// The same for columns.
    TileCols {
        /// Key heads.
        n_k: u32,
        /// Value heads.
        n_v: u32,
        /// Columns of one value head.
        each: u32,
    },
    /// As what these unscaled frequencies must be divided by; left out where that is 1 throughout.
    Divisors {
        /// `theta^(-2i/dims)`.
        theta: f32,
        /// Rotating columns.
        dims: u32,
    },
}

/// A parameter that a family needs.
#[derive(Clone, Debug)]
pub struct Want {
    /// The family's number for it.
    pub id: WId,
    /// Names in a GGUF file, most usual first; also the name it is exported by.
    pub gguf: Vec<Place>,
    /// Names in safetensors files.
    pub hf: Vec<Place>,
    /// Shape, slowest dimension first, without dimensions of 1.
    pub shape: Vec<u64>,
    /// What it comes and goes with.
    pub component: Component,
    /// How it is used.
    pub role: Role,
    /// Whether the model works without it.
    pub optional: bool,
    /// What it is where no file has it.
    pub fallback: Option<Arc<[f32]>>,
    /// What writing it to a GGUF does.
    pub export: Export,
}

/// Collects the parameters of a family, and numbers them.
#[derive(Debug, Default)]
pub struct Wants(Vec<Want>);

impl Wants {
    /// Everything collected.
    pub fn finish(self) -> Vec<Want> {
        self.0
    }
    /// What was collected so far.
    pub fn as_slice(&self) -> &[Want] {
        &self.0
    }
    fn push(&mut self, component: Component, role: Role, shape: Vec<u64>, gguf: Vec<Place>, hf: Vec<Place>) -> WId {
        let id = WId(self.0.len() as u32);
        let (optional, fallback, export) = (false, None, Export::Same);
        self.0.push(Want { id, gguf, hf, shape, component, role, optional, fallback, export });
        id
    }
    /// A matrix `[n, k]`.
    pub fn mat(&mut self, c: Component, n: u32, k: u32, gguf: impl Into<String>, hf: impl Into<String>) -> WId {
        self.push(c, Role::Matrix, vec![n as u64, k as u64], vec![whole(gguf)], vec![whole(hf)])
    }
    /// A vector of `n`.
    pub fn vec(&mut self, c: Component, n: u32, gguf: impl Into<String>, hf: impl Into<String>) -> WId {
        self.vec_as(c, n, gguf, hf, Canon::Same)
    }
    /// A vector of `n` that safetensors files store in another way.
    pub fn vec_as(
        &mut self,
        c: Component,
        n: u32,
        gguf: impl Into<String>,
        hf: impl Into<String>,
        canon: Canon,
    ) -> WId {
        let hf = Place { canon, ..whole(hf) };
        self.push(c, Role::Vector, vec![n as u64], vec![whole(gguf)], vec![hf])
    }
    /// A small table `[n, k]`, used as a vector.
    pub fn table(&mut self, c: Component, n: u32, k: u32, gguf: impl Into<String>, hf: impl Into<String>) -> WId {
        self.push(c, Role::Vector, vec![n as u64, k as u64], vec![whole(gguf)], vec![whole(hf)])
    }
    /// Rope frequencies: those of the configuration, divided by a GGUF file's table where it has one.
    pub fn rope(&mut self, rope: &Rope, pairing: Pairing) -> RopeOf {
        let freqs = rope.frequencies();
        let divisors = Place { canon: Canon::DivisorsOf(freqs.clone()), ..whole("rope_freqs.weight") };
        let of = self.frequencies(rope, freqs, vec![divisors], pairing);
        if rope.by_divisors() {
            self.export(Export::Divisors { theta: rope.theta, dims: rope.dims });
        }
        of
    }
    /// Rope frequencies that no table of a file changes: the second rotation of models that have two.
    pub fn rope_apart(&mut self, rope: &Rope, pairing: Pairing) -> RopeOf {
        self.frequencies(rope, rope.frequencies(), vec![], pairing)
    }
    fn frequencies(&mut self, rope: &Rope, freqs: Arc<[f32]>, gguf: Vec<Place>, pairing: Pairing) -> RopeOf {
        let inv_freq = self.push(Component::Core, Role::Vector, vec![freqs.len() as u64], gguf, vec![]);
        self.last(|w| w.fallback = Some(freqs));
        RopeOf { pairing, dims: rope.dims, inv_freq, factor: rope.factor() }
    }
    /// Numbers that follow from the configuration, used as a vector.
    pub fn constant(&mut self, values: &[f32]) -> WId {
        let id = self.push(Component::Core, Role::Vector, vec![values.len() as u64], vec![], vec![]);
        self.last(|w| w.fallback = Some(values.into()));
        id
    }
    /// What is added to one matrix's products, `[count, n]`: split in GGUF files, gate and up element by element in turn
    /// in safetensors files.
    pub fn expert_bias(&mut self, c: Component, x: Experts, gguf: &str, hf: &str) -> WId {
        let (name, stored, canon) = match x.proj {
            Proj::Gate => ("gate", "gate_up", Canon::Every { first: 0, of: 2 }),
            Proj::Up => ("up", "gate_up", Canon::Every { first: 1, of: 2 }),
            Proj::Down => ("down", "down", Canon::Same),
        };
        let gguf = whole(format!("{gguf}.ffn_{name}_exps.bias"));
        let hf = Place { canon, ..whole(format!("{hf}.experts.{stored}_proj_bias")) };
        self.push(c, Role::Vector, vec![x.count as u64, x.n as u64], vec![gguf], vec![hf])
    }
    /// One matrix of all routed experts, transposed in safetensors files, with gate and up column by column in turn.
    pub fn experts_turned(&mut self, c: Component, x: Experts, gguf: &str, hf: &str) -> WId {
        let (name, stored, first, of) = match x.proj {
            Proj::Gate => ("gate", "gate_up", 0, 2),
            Proj::Up => ("up", "gate_up", 1, 2),
            Proj::Down => ("down", "down", 0, 1),
        };
        let gguf = whole(format!("{gguf}.ffn_{name}_exps.weight"));
        let hf = Place { shape: Lies::Turned { first, of }, ..whole(format!("{hf}.experts.{stored}_proj")) };
        let shape = vec![x.count as u64, x.n as u64, x.k as u64];
        self.push(c, Role::Experts { layer: x.layer, proj: x.proj, count: x.count }, shape, vec![gguf], vec![hf])
    }
    /// Says of the last matrix of experts that GGUF files usually have gate and up in one tensor.
    pub fn fused_in_gguf(&mut self) {
        self.last(|w| w.gguf.reverse());
    }
    /// One matrix of all routed experts, `[count, n, k]`.
    pub fn experts(&mut self, c: Component, x: Experts, gguf: &str, hf: &str) -> WId {
        let (gate_up, stacked) = match x.proj {
            Proj::Gate => (Some(0), "gate"),
            Proj::Up => (Some(1), "up"),
            Proj::Down => (None, "down"),
        };
        let place = |name: String, shape| Place { name, shape, canon: Canon::Same };
        let mut in_gguf = vec![place(format!("{gguf}.ffn_{stacked}_exps.weight"), Lies::Whole)];
        let mut in_hf = vec![place(format!("{hf}.experts.{{e}}.{stacked}_proj.weight"), Lies::Each)];
        match gate_up {
            Some(half) => {
                in_gguf.push(place(format!("{gguf}.ffn_gate_up_exps.weight"), Lies::Half(half)));
                in_hf.push(place(format!("{hf}.experts.gate_up_proj"), Lies::Half(half)));
            }
            None => in_hf.push(place(format!("{hf}.experts.down_proj"), Lies::Whole)),
        }
        // MLX stacks them.
        in_hf.push(place(format!("{hf}.switch_mlp.{stacked}_proj.weight"), Lies::Whole));
        let shape = vec![x.count as u64, x.n as u64, x.k as u64];
        self.push(c, Role::Experts { layer: x.layer, proj: x.proj, count: x.count }, shape, in_gguf, in_hf)
    }
    fn last(&mut self, f: impl FnOnce(&mut Want)) {
        if let Some(w) = self.0.last_mut() {
            f(w);
        }
    }
    /// Another name of the last parameter in safetensors files.
    pub fn or_hf(&mut self, name: &str) {
        self.last(|w| w.hf.push(whole(name)));
    }
    /// Says that safetensors files keep the last parameter in such rows of its tensor.
    pub fn grouped_in_hf(&mut self, g: Groups) {
        self.last(|w| w.hf.iter_mut().for_each(|p| p.shape = Lies::Groups(g)));
    }
    /// The same of GGUF files.
    pub fn grouped_in_gguf(&mut self, g: Groups) {
        self.last(|w| w.gguf.iter_mut().for_each(|p| p.shape = Lies::Groups(g)));
    }
    /// Marks the last parameter as one the model works without.
    pub fn optional(&mut self) {
        self.last(|w| w.optional = true);
    }
    /// Sets what exporting the last parameter does.
    pub fn export(&mut self, e: Export) {
        self.last(|w| w.export = e);
    }
}

/// Geometry of one matrix of the routed experts.
#[derive(Copy, Clone, Debug)]
pub struct Experts {
    /// The layer they serve.
    pub layer: u32,
    /// Which matrix.
    pub proj: Proj,
    /// Experts.
    pub count: u32,
    /// Output features.
    pub n: u32,
    /// Input features.
    pub k: u32,
}

/// Where a block's parameters are: the roots of their names, and what they come and go with.
#[derive(Clone, Debug)]
pub struct At {
    /// Root of the names in GGUF files, `blk.3`.
    pub gguf: String,
    /// Root of the names in safetensors files, `~layers.3`.
    pub hf: String,
    /// Component of everything but the routed experts.
    pub here: Component,
    /// Component of the routed experts.
    pub experts: Component,
    /// Number of the layer.
    pub layer: u32,
}

impl At {
    /// Layer `l` of the model.
    pub fn layer(l: u32) -> Self {
        let (here, experts) = (Component::Layer(l), Component::Experts(l));
        At { gguf: format!("blk.{l}"), hf: format!("~layers.{l}"), here, experts, layer: l }
    }
    /// The block of a predictor behind `n_layers` layers.
    pub fn predictor(n_layers: u32) -> Self {
        let (here, experts) = (Component::Mtp, Component::Mtp);
        At { gguf: format!("blk.{n_layers}"), hf: "mtp.layers.0".into(), here, experts, layer: n_layers }
    }
    fn names(&self, gguf: &str, hf: &str) -> (String, String) {
        (format!("{}.{gguf}", self.gguf), format!("{}.{hf}", self.hf))
    }
    /// A matrix `[n, k]`, by the ends of its names.
    pub fn mat(&self, w: &mut Wants, n: u32, k: u32, gguf: &str, hf: &str) -> WId {
        let (gguf, hf) = self.names(gguf, hf);
        w.mat(self.here, n, k, gguf, hf)
    }
    /// A vector of `n` that safetensors files may store in another way.
    pub fn vec_as(&self, w: &mut Wants, n: u32, gguf: &str, hf: &str, canon: Canon) -> WId {
        let (gguf, hf) = self.names(gguf, hf);
        w.vec_as(self.here, n, gguf, hf, canon)
    }
    /// A small table `[n, k]`, used as a vector.
    pub fn table(&self, w: &mut Wants, n: u32, k: u32, gguf: &str, hf: &str) -> WId {
        let (gguf, hf) = self.names(gguf, hf);
        w.table(self.here, n, k, gguf, hf)
    }
    /// One matrix of the routed experts, under `hf` in safetensors files.
    pub fn experts(&self, w: &mut Wants, x: Experts, hf: &str) -> WId {
        w.experts(self.experts, x, &self.gguf, &format!("{}.{hf}", self.hf))
    }
}

fn whole(name: impl Into<String>) -> Place {
    Place { name: name.into(), shape: Lies::Whole, canon: Canon::Same }
}
