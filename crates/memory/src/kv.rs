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
    /// All, widest first.
    pub const ALL: [KvFormat; 2] = [KvFormat::F32, KvFormat::Bf16];

    /// The word for it in flags and reports.
    pub const fn name(self) -> &'static str {
        match self {
            KvFormat::F32 => "f32",
            KvFormat::Bf16 => "bf16",
        }
    }
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

impl KvSpec {
    /// One format for everything.
    pub const fn of(main: KvFormat) -> Self {
        KvSpec { main }
    }
    /// As flags and reports write it.
    pub fn describe(&self) -> String {
        self.main.name().into()
    }
}
