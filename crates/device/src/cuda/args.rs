//! Arguments of kernels, field by field as `kernels/*.cu` declare them.

use super::driver::Ptr;

/// `View` of common.cuh.
#[derive(Copy, Clone, Default, PartialEq)]
#[repr(C)]
pub struct View {
    pub p: Ptr,
    pub rows: i32,
    pub heads: i32,
    pub cols: i32,
    pub s0: i32,
    pub s1: i32,
    pub pad: i32,
}

/// `Rows` of common.cuh.
#[derive(Copy, Clone)]
#[repr(C)]
pub struct Rows {
    pub pos: View,
    pub seq_of: View,
    pub page_table: View,
    pub seq_slot: View,
    pub rec_from: View,
    pub rec_to: View,
    pub n: i32,
    pub seqs: i32,
}

/// `Mat` of decode.cuh.
#[derive(Copy, Clone)]
#[repr(C)]
pub struct Mat {
    pub q: Ptr,
    pub h: Ptr,
    pub s: Ptr,
    pub n: i32,
    pub k: i32,
    pub step: i32,
    pub aux: i32,
}

/// `MatSet` of moe.cu.
#[derive(Copy, Clone)]
#[repr(C)]
pub struct MatSet {
    pub first: Mat,
    pub step: [u64; 3],
    pub slots: i32,
    pub pad: i32,
}

/// `Fifteen` of fifteen.cuh.
#[derive(Copy, Clone, Default)]
#[repr(C)]
pub struct Fifteen {
    pub hi: Ptr,
    pub lo: Ptr,
    pub meta: Ptr,
}

/// `Chosen` of moe.cu.
#[derive(Copy, Clone)]
#[repr(C)]
pub struct Chosen {
    pub ids: View,
    pub w: View,
    pub slot_of: Ptr,
    pub bits: [u32; 32],
    pub all: i32,
    pub pad: i32,
    pub experts: i32,
    pub k: i32,
}

/// `Stream` of attention.cu.
#[derive(Copy, Clone)]
#[repr(C)]
pub struct Stream {
    pub p: Ptr,
    pub page_bytes: u64,
    pub fmt: i32,
    pub heads: i32,
    pub d: i32,
    pub ring: i32,
    pub layer: i32,
    pub pad: i32,
}

/// `GluKind` of common.cuh.
#[derive(Copy, Clone)]
#[repr(C)]
pub struct GluKind {
    pub kind: i32,
    pub limit: f32,
    pub alpha: f32,
}

/// `ConvOf` of stream.cu.
#[derive(Copy, Clone, Default)]
#[repr(C)]
pub struct ConvOf {
    pub out: View,
    pub seq_of: View,
    pub from: View,
    pub to: View,
    pub w: Ptr,
    pub state: Ptr,
    pub which: i32,
    pub elems: i32,
}

impl ConvOf {
    /// No convolution.
    pub fn none() -> Self {
        ConvOf { which: -1, ..ConvOf::default() }
    }
}

/// `NormArgs` of norm.cuh.
#[derive(Copy, Clone, Default)]
#[repr(C)]
pub struct Norm {
    pub out: View,
    pub x: View,
    pub w: Ptr,
    pub to: Fifteen,
    pub eps: f32,
    pub threads: i32,
}

/// Matrices that one grid can multiply.
pub const SET: usize = 4;

macro_rules! args {
    ($($(#[$doc:meta])* $name:ident { $($field:ident : $ty:ty),* $(,)? })*) => {
        $($(#[$doc])* #[derive(Copy, Clone)] #[repr(C)] pub struct $name { $(pub $field: $ty),* })*
    };
}

args! {
    Rope { x: View, pos: View, inv_freq: Ptr, dims: i32, adjacent: i32, factor: f32 }
    Gate { x: View, g: View, to: Fifteen, act: i32, pad: i32 }
    NormRope { norm: Norm, rope: Rope }
    NormGate { norm: Norm, gate: Gate }
    Glu { out: View, gate: View, up: View, to: Fifteen, glu: GluKind, pad: i32 }
    Scale { x: View, by: Ptr, wide: i32, pad: i32 }
    Softcap { x: View, cap: f32, pad: i32 }
    Zero { x: View }
    Add { x: View, y: View }
    Gather { out: View, x: View, rows: View }
    Likeliest { out: View, x: View, keys: Ptr, k: i32, parts: i32 }
    Combine { out: View, base: View, parts: View, w: View }
    Route {
        ids: View, w: View, logits: View, bias: Ptr, per_expert: Ptr,
        k: i32, renormalise: i32, sigmoid: i32, groups: i32, keep: i32, scale: f32,
    }
    Conv { out: View, x: View, w: Ptr, conv: Ptr, rows: Rows, kernel: i32, conv_elems: i32, slots: i32 }
    Shift { out: View, x: View, state: Ptr, rows: Rows, state_elems: i32, slots: i32 }
    Delta {
        out: View, qkv: View, a: View, b: View, decay: Ptr, dt: Ptr, state: Ptr, rows: Rows,
        n_k: i32, n_v: i32, d_k: i32, d_v: i32, modulo: i32, state_elems: i32, slots: i32,
    }
    Repack { src: Ptr, q: Ptr, h: Ptr, s: Ptr, fmt: i32, groups: i32, rows: i64 }
    Quant { x: View, to: Fifteen }
    /// One matrix of a set.
    One { out: View, w: Mat, bias: Ptr, add: i32, first: i32 }
    Set { x: View, q: Fifteen, m: [One; SET], rows: i32, count: i32, blocks: i32, pad: i32 }
    Streamed { set: Set, norm: Norm, f: [One; SET], conv: ConvOf, floats: i32, outputs: i32 }
    ChosenUp {
        route: Route, q: Fifteen, to: Fifteen, shared_to: Fifteen, gate: MatSet, up: MatSet,
        shared_gate: View, shared_up: View, glu: GluKind, chosen: i32,
    }
    ChosenDown {
        route: Route, q: Fifteen, shared_q: Fifteen, down: MatSet, shared: Mat, x: View, sum: View, shared_by: View,
        chosen: i32, pad: i32,
    }
    Heads { k: NormRope, q: NormRope, st: Stream, rows: Rows, v: View, append: i32, pad: i32 }
    Meet { a: Attention, g: View, to: Fifteen, act: i32, gated: i32 }
    DeltaGate { d: Delta, g: View, to: Fifteen, w: Ptr, eps: f32, act: i32 }
    Embed { out: View, ids: View, table: Mat, scale: f32 }
    GateUp {
        mid: View, h: View, q: Fifteen, to: Fifteen, gate: MatSet, up: MatSet, c: Chosen,
        gate_bias: Ptr, up_bias: Ptr, glu: GluKind, pad: i32,
    }
    Down { parts: View, mid: View, q: Fifteen, down: MatSet, c: Chosen, bias: Ptr }
    Sort { c: Chosen, order: Ptr, count: Ptr, start: Ptr, tiles: Ptr, n: i32, tile: i32 }
    Sum { sum: View, parts: View, c: Chosen }
    Bf16 { x: View, to: Ptr, k: i32, pad: i32 }
    Gemm {
        out: View, x: Ptr, w: Mat, step: [u64; 3], bias: Ptr, order: Ptr, tiles: Ptr, count: Ptr,
        rows: i32, kp: i32, add: i32, from_div: i32,
    }
    Append { st: Stream, rows: Rows, k: View, v: View }
    Attention {
        out: View, q: View, st: Stream, rows: Rows, scale: f32, window: i32, since: i32,
        sinks: Ptr, scratch: Ptr, room: i32, whole: i32, most: i32,
    }
}
