//! Element formats of key/value pages.

/// How the vectors of a stream are stored. Every vector is encoded when it is appended.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum KvFormat {
    /// 4 bytes an element: chosen when the weights are f32.
    F32,
    /// 2 bytes an element, rounded to nearest even.
    Bf16,
}

impl KvFormat {
    /// Bytes of one stored vector of width `d`.
    pub const fn vector_bytes(self, d: u32) -> u64 {
        match self {
            KvFormat::F32 => d as u64 * 4,
            KvFormat::Bf16 => d as u64 * 2,
        }
    }
}

/// The formats of one layer's history.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct KvSpec {
    /// Format of ordinary pages.
    pub main: KvFormat,
}
