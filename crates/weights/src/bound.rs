//! A parameter matched to its bytes. After this, nobody can ask which container a weight came from.

use checkpoint::{ByteRange, DType, Format, PLANES};
use memory::Component;
use std::sync::Arc;

/// A family's number for one of its parameters.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WId(pub u32);

/// The three matrices of a routed expert.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Proj {
    /// `[I, H]`.
    Gate,
    /// `[I, H]`.
    Up,
    /// `[H, I]`.
    Down,
}

/// How a parameter is used.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// A matrix, kept in the file's own bytes.
    Matrix,
    /// A small tensor, canonicalised to f32.
    Vector,
    /// One matrix of every routed expert.
    Experts {
        /// The layer they serve; a predictor's layer has the number behind the last.
        layer: u32,
        /// Which matrix.
        proj: Proj,
        /// How many experts.
        count: u32,
    },
}

/// What turns a stored vector into the canonical one.
#[derive(Clone, Debug, PartialEq)]
pub enum Canon {
    /// Nothing.
    Same,
    /// `1 + w`: norms stored around zero.
    PlusOne,
    /// `-exp(w)`: the decay of recurrent layers stored as its logarithm.
    NegExp,
    /// `base / w`: rope frequencies stored as divisors.
    DivisorsOf(Arc<[f32]>),
    /// Every `of`-th element from `first` on: vectors stored element by element in turn.
    Every {
        /// The first element.
        first: usize,
        /// Elements from one to the next.
        of: usize,
    },
}

impl Canon {
    /// Stored elements for each canonical one.
    pub fn stored(&self) -> usize {
        if let Canon::Every { of, .. } = self { *of } else { 1 }
    }
    /// Applies it.
    pub fn apply(&self, w: &mut Vec<f32>) {
        match self {
            Canon::Same => {}
            Canon::PlusOne => w.iter_mut().for_each(|x| *x += 1.0),
            Canon::NegExp => w.iter_mut().for_each(|x| *x = -x.exp()),
            Canon::DivisorsOf(base) => w.iter_mut().zip(base.iter()).for_each(|(x, b)| *x = b / *x),
            Canon::Every { first, of } => *w = w.iter().copied().skip(*first).step_by(*of).collect(),
        }
    }
}

/// Where the bytes are.
#[derive(Clone, Debug, PartialEq)]
pub enum Data {
    /// A whole tensor, or (for experts) a stack with equal steps inside one.
    Whole {
        /// The tensor.
        range: ByteRange,
        /// Byte in it where the matrix (of expert 0) begins.
        first: u64,
        /// Bytes from expert to expert; 0 where there is only one.
        step: u64,
    },
    /// One tensor per expert.
    Each(Vec<ByteRange>),
    /// A stack of transposed matrices, `[E, k, of * n]`, of which every `of`-th column from `first` on is a row here.
    /// Loading turns them, so elements must be of whole bytes.
    Turned {
        /// The tensor.
        range: ByteRange,
        /// The first column.
        first: u32,
        /// Columns from one to the next.
        of: u32,
    },
    /// No file at all: values that follow from the configuration.
    Values(Arc<[f32]>),
}

/// What a matrix has beside its codes.
#[derive(Clone, Debug, PartialEq)]
pub struct Side {
    /// The format over all planes.
    pub fmt: Format,
    /// Where planes 1 to 3 are, those that the format has.
    pub planes: [Option<Data>; PLANES - 1],
    /// Stored rows from row to row: 1, or 2 where two matrices lie row by row in turn.
    pub row_step: u32,
}

/// A parameter with its bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct Bound {
    /// The family's number.
    pub id: WId,
    /// Name in reports.
    pub name: Arc<str>,
    /// What it comes and goes with.
    pub component: Component,
    /// How it is used.
    pub role: Role,
    /// Output features of (one expert's) matrix; 1 for vectors.
    pub n: u32,
    /// Input features; elements of a vector.
    pub k: u32,
    /// Element type in the file, of the codes where there are several planes.
    pub dtype: DType,
    /// Where the bytes are.
    pub data: Data,
    /// For vectors.
    pub canon: Canon,
    /// Planes beside the codes in `data`, for formats of several.
    pub side: Option<Box<Side>>,
}

impl Bound {
    /// Bytes of one matrix (of one expert), or of the vector, in the file's type.
    pub fn matrix_bytes(&self) -> u64 {
        self.format().bytes(self.n.into(), self.k.into())
    }
    /// How a matrix is stored.
    pub fn format(&self) -> Format {
        self.side.as_ref().map_or(Format::Plain(self.dtype), |s| s.fmt)
    }
    /// Where plane `i` is.
    pub fn plane(&self, i: usize) -> Option<&Data> {
        match (i, &self.side) {
            (0, _) => Some(&self.data),
            (_, Some(s)) => s.planes.get(i - 1)?.as_ref(),
            _ => None,
        }
    }
    /// Bytes of plane `i` of one matrix (of one expert).
    pub fn plane_bytes(&self, i: usize) -> u64 {
        let cuts = self.format().planes(self.k.into()).unwrap_or_default();
        cuts.get(i).copied().flatten().map_or(0, |c| c.total(self.n.into()))
    }
    /// Bytes this parameter takes when loaded. Vectors are f32 then.
    pub fn loaded_bytes(&self) -> u64 {
        match self.role {
            Role::Matrix => self.matrix_bytes(),
            Role::Vector => self.n as u64 * self.k as u64 * 4,
            Role::Experts { count, .. } => {
                let shared = |i: usize| matches!(self.plane(i), Some(Data::Whole { step: 0, .. }));
                let plane = |i: usize| self.plane_bytes(i) * if shared(i) { 1 } else { count as u64 };
                (0..PLANES).map(plane).sum()
            }
        }
    }
}
