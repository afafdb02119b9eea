//! The formats of stored vectors: how elements become f32 in a register.

use crate::cpu::lanes::Lanes;
use crate::kv::{self, q8, tables};
use memory::KvFormat;

#[cfg(target_arch = "x86_64")]
use super::ints::Codes;

/// A format of stored vectors, elements of equal size. Elements of a format with scales are in units of the vector's.
pub trait Stored: Copy + Sync {
    /// Whether vectors are rotated and have a scale, and keys are interleaved.
    const ROTATED: bool;
    /// Elements `i .. i + N` of the vector at `p`, `i` a multiple of N. Not for interleaved keys.
    ///
    /// # Safety
    /// They may be read.
    unsafe fn load<L: Lanes>(&self, p: *const u8, i: usize) -> L;
    /// Elements `i .. i + n`, n < N, zeros behind them. Rotated vectors are as wide as whole registers.
    ///
    /// # Safety
    /// They may be read.
    unsafe fn load_part<L: Lanes>(&self, _: *const u8, _: usize, _: usize) -> L {
        L::zero()
    }
    /// Element `e` of the interleaved keys `j .. j + N`, `j` a multiple of N, of a head's keys at `block`, `d` wide.
    ///
    /// # Safety
    /// They may be read.
    unsafe fn keys<L: Lanes>(&self, _block: *const u8, _d: usize, _j: usize, _e: usize) -> L {
        L::zero()
    }
    /// Factor of a stored scale.
    fn unit(&self) -> f32 {
        1.0
    }
    /// The same vectors for kernels that compute with integers.
    #[cfg(target_arch = "x86_64")]
    fn codes(&self, _d: usize) -> Codes {
        Codes::None
    }
}

/// Address of word `w` of the interleaved keys from `j` on, whose words are `words` each.
#[inline(always)]
fn key_words(block: *const u8, words: usize, j: usize, w: usize) -> *const u32 {
    let keys = kv::KEYS as usize;
    block.cast::<u32>().wrapping_add(j / keys * keys * words + w * keys + j % keys)
}

/// As it is.
#[derive(Copy, Clone)]
pub struct Single;
impl Stored for Single {
    const ROTATED: bool = false;
    #[inline(always)]
    unsafe fn load<L: Lanes>(&self, p: *const u8, i: usize) -> L {
        // SAFETY: the caller's promise; vector loads need no alignment.
        unsafe { L::load(p.cast::<f32>().wrapping_add(i)) }
    }
    #[inline(always)]
    unsafe fn load_part<L: Lanes>(&self, p: *const u8, i: usize, n: usize) -> L {
        // SAFETY: as above.
        unsafe { L::load_part(p.cast::<f32>().wrapping_add(i), n) }
    }
}

/// Rounded to nearest even.
#[derive(Copy, Clone)]
pub struct Brain;
impl Stored for Brain {
    const ROTATED: bool = false;
    #[inline(always)]
    unsafe fn load<L: Lanes>(&self, p: *const u8, i: usize) -> L {
        // SAFETY: the caller's promise; vector loads need no alignment.
        unsafe { L::load_bf16(p.cast::<u16>().wrapping_add(i)) }
    }
    #[inline(always)]
    unsafe fn load_part<L: Lanes>(&self, p: *const u8, i: usize, n: usize) -> L {
        // SAFETY: as above.
        unsafe { L::load_bf16_part(p.cast::<u16>().wrapping_add(i), n) }
    }
}

/// Signed bytes.
#[derive(Copy, Clone)]
pub struct Bytes;
impl Stored for Bytes {
    const ROTATED: bool = true;
    #[inline(always)]
    unsafe fn load<L: Lanes>(&self, p: *const u8, i: usize) -> L {
        // SAFETY: the caller's promise.
        unsafe { L::load_i8(p.cast::<i8>().wrapping_add(i)) }
    }
    #[inline(always)]
    unsafe fn keys<L: Lanes>(&self, block: *const u8, d: usize, j: usize, e: usize) -> L {
        // SAFETY: the caller's promise.
        unsafe { L::byte_of_words(key_words(block, d / 4, j, e / 4), e as u32 % 4 * 8) }
    }
    fn unit(&self) -> f32 {
        1.0 / q8::STEPS
    }
    #[cfg(target_arch = "x86_64")]
    fn codes(&self, _: usize) -> Codes {
        Codes::Bytes
    }
}

/// Nibbles that name centroids.
#[derive(Copy, Clone)]
pub struct Nibbles {
    table: &'static [f32; 16],
    unit: f32,
}

impl Nibbles {
    fn new(d: usize) -> Self {
        Nibbles { table: &tables::of(d).centroids, unit: 1.0 / (d as f32).sqrt() }
    }
}

impl Stored for Nibbles {
    const ROTATED: bool = true;
    #[inline(always)]
    unsafe fn load<L: Lanes>(&self, p: *const u8, i: usize) -> L {
        // SAFETY: the caller's promise; i is even.
        unsafe { L::look(p.wrapping_add(i / 2), self.table) }
    }
    #[inline(always)]
    unsafe fn keys<L: Lanes>(&self, block: *const u8, d: usize, j: usize, e: usize) -> L {
        // SAFETY: the caller's promise.
        unsafe { L::look_words(key_words(block, d / 8, j, e / 8), e as u32 % 8 * 4, self.table) }
    }
    fn unit(&self) -> f32 {
        self.unit
    }
    #[cfg(target_arch = "x86_64")]
    fn codes(&self, d: usize) -> Codes {
        Codes::nibbles(d)
    }
}

/// Something to do with a format that is known only at run time.
pub trait WithFormat {
    /// What comes of it.
    type Out;
    /// Does it.
    fn with<S: Stored>(self, stored: S) -> Self::Out;
}

/// As [`pick`], for what lies beside a history, which is never rotated.
pub fn pick_beside<W: WithFormat>(fmt: KvFormat, w: W) -> W::Out {
    if fmt == KvFormat::F32 { w.with(Single) } else { w.with(Brain) }
}

/// The only place that turns a format, of vectors `d` wide, into code.
pub fn pick<W: WithFormat>(fmt: KvFormat, d: usize, w: W) -> W::Out {
    match fmt {
        KvFormat::F32 => w.with(Single),
        KvFormat::Bf16 => w.with(Brain),
        KvFormat::Q8 => w.with(Bytes),
        KvFormat::Tq4 => w.with(Nibbles::new(d)),
    }
}
