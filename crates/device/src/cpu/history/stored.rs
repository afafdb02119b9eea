//! The formats of stored vectors: how one becomes f32 in a register, and how f32 become one.

use crate::cpu::lanes::Lanes;
use half::bf16;
use memory::KvFormat;

/// A format of stored vectors, elements of equal size.
pub trait Stored: Copy + Sync {
    /// Elements `i .. i + N` of the vector at `p`.
    ///
    /// # Safety
    /// They may be read.
    unsafe fn load<L: Lanes>(p: *const u8, i: usize) -> L;
    /// Elements `i .. i + n`, n < N, zeros behind them.
    ///
    /// # Safety
    /// They may be read.
    unsafe fn load_part<L: Lanes>(p: *const u8, i: usize, n: usize) -> L;
    /// Encodes a vector.
    ///
    /// # Safety
    /// The bytes of `x.len()` elements may be written at `p`.
    unsafe fn encode(x: &[f32], p: *mut u8);
}

/// As it is.
#[derive(Copy, Clone)]
pub struct Single;
impl Stored for Single {
    #[inline(always)]
    unsafe fn load<L: Lanes>(p: *const u8, i: usize) -> L {
        // SAFETY: the caller's promise; vector loads need no alignment.
        unsafe { L::load(p.cast::<f32>().wrapping_add(i)) }
    }
    #[inline(always)]
    unsafe fn load_part<L: Lanes>(p: *const u8, i: usize, n: usize) -> L {
        // SAFETY: as above.
        unsafe { L::load_part(p.cast::<f32>().wrapping_add(i), n) }
    }
    unsafe fn encode(x: &[f32], p: *mut u8) {
        // SAFETY: the caller's promise, as bytes.
        unsafe { std::ptr::copy_nonoverlapping(x.as_ptr().cast::<u8>(), p, size_of_val(x)) }
    }
}

/// Rounded to nearest even.
#[derive(Copy, Clone)]
pub struct Brain;
impl Stored for Brain {
    #[inline(always)]
    unsafe fn load<L: Lanes>(p: *const u8, i: usize) -> L {
        // SAFETY: the caller's promise; vector loads need no alignment.
        unsafe { L::load_bf16(p.cast::<u16>().wrapping_add(i)) }
    }
    #[inline(always)]
    unsafe fn load_part<L: Lanes>(p: *const u8, i: usize, n: usize) -> L {
        // SAFETY: as above.
        unsafe { L::load_bf16_part(p.cast::<u16>().wrapping_add(i), n) }
    }
    unsafe fn encode(x: &[f32], p: *mut u8) {
        for (i, &x) in x.iter().enumerate() {
            // SAFETY: element i of the vector.
            unsafe { p.cast::<[u8; 2]>().add(i).write(bf16::from_f32(x).to_le_bytes()) }
        }
    }
}

/// Something to do with a format that is known only at run time.
pub trait WithFormat {
    /// What comes of it.
    type Out;
    /// Does it.
    fn with<S: Stored>(self) -> Self::Out;
}

/// The only place that turns a format into code.
pub fn pick<W: WithFormat>(fmt: KvFormat, w: W) -> W::Out {
    match fmt {
        KvFormat::F32 => w.with::<Single>(),
        KvFormat::Bf16 => w.with::<Brain>(),
    }
}
