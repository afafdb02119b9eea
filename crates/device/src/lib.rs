//! `trait Device` and its backends, every kernel beside its backend. No model names, no files.
//!
//! A forward pass is plain code that hands [`Op`]s to a [`Device`]. Memory is named by handles ([`Buf`], [`View`],
//! [`Mat`]); workspace comes from one [`Arena`] with scopes. [`check`] is the only place that compares shapes, a
//! backend's scratch function the only place that says how much memory an op needs besides its operands.
//!
//! - `reference`: the plain f32 implementation of each op: the oracle of every other backend.
//! - `cpu`: x86-64 kernels (AVX2, AVX-512) and their thread pool.
//! - `cuda`: one NVIDIA GPU.
//! - `meter`: runs on shapes alone and counts.
//! - `profile`: around another device, times what it does.

pub mod arena;
pub mod check;
pub mod cpu;
pub mod cuda;
mod device;
mod error;
pub mod host;
pub mod host_device;
pub mod interleave;
pub mod kv;
pub mod meter;
pub mod op;
pub mod profile;
pub mod reference;
pub mod split;
pub mod tolerance;
mod view;

pub use arena::{Arena, Region};
pub use cpu::{Cpu, CpuOptions, Isa};
pub use cuda::Cuda;
pub use device::{Caps, Device, Fence, GraphKey, GraphMode, Mark, ScratchFn};
pub use error::{Error, Result};
pub use host::SharedBytes;
pub use meter::Meter;
pub use op::{
    Acc, ActFn, GdnShape, Groups, KeyHeadRule, Op, Pairing, Part, Pick, RecView, Rope, Router, RouterScore, Routing,
    RowClass, Rows, Side, StreamView, row_bytes,
};
pub use profile::{Profile, Profiled};
pub use reference::Reference;
pub use view::{Act, AllocId, BEGINS_ROW, Buf, ExpertBias, ExpertMats, Glu, Layout, Mat, MatSet, View, arranged};
