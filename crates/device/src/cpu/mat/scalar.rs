//! The kernels in plain Rust: for machines without AVX2, and to compare the others with.

mod decoded;
mod interleaved;
mod planes;

pub use decoded::fp8;
pub use interleaved::{interleaved, interleaved_planes};
pub use planes::planes;

use super::quant::{self, GROUP};
use super::tile::{CHUNK_GROUPS, Half, Tile, chunk_bytes, locate};
use super::{TILE, Weights};
use crate::kv::rotation::nearest;
use half::{bf16, f16};

/// f16 by the `half` crate.
struct Portable;

impl Half for Portable {
    unsafe fn f32(bits: [u8; 2]) -> f32 {
        f16::from_le_bytes(bits).to_f32()
    }
}

/// See [`super::QuantFn`].
pub fn quantise(x: &[f32], out: &mut [u8]) {
    let k = x.len();
    for (g, x) in x.chunks_exact(GROUP).enumerate() {
        // As integers, magnitudes order like floats, with infinity and NaN on top.
        let amax = x.iter().fold(0, |m, x| m.max(x.abs().to_bits()));
        let (d, by) = quant::scales(f32::from_bits(amax));
        let mut sums = [0; 2];
        for (i, x) in x.iter().enumerate() {
            let q = nearest(x * by) as i32;
            let high = (q + quant::ROUND) >> quant::SHIFT;
            out[g * GROUP + i] = high as u8;
            out[k + g * GROUP + i] = (q - (high << quant::SHIFT)) as u8;
            sums[i / 16] += q;
        }
        // SAFETY: `out` has the bytes of a row of k elements: indexing above would have failed on fewer codes, and the
        // slice below makes sure of the groups.
        unsafe { quant::put_group(out[..quant::row_bytes(k)].as_mut_ptr(), k, g, quant::group(d, sums)) }
    }
}

/// A float format.
pub trait Elem {
    const BYTES: usize;
    /// # Safety
    /// One element is readable at `p`.
    unsafe fn load(p: *const u8) -> f32;
}

macro_rules! elem {
    ($name:ident, $n:expr, $from:expr) => {
        #[doc = concat!(stringify!($name), " weights.")]
        pub struct $name;
        impl Elem for $name {
            const BYTES: usize = $n;
            #[inline(always)]
            unsafe fn load(p: *const u8) -> f32 {
                let from: fn([u8; $n]) -> f32 = $from;
                // SAFETY: readable by the caller's promise.
                from(unsafe { p.cast::<[u8; $n]>().read() })
            }
        }
    };
}
elem!(F32, 4, f32::from_le_bytes);
elem!(F16, 2, |b| f16::from_le_bytes(b).to_f32());
elem!(Bf16, 2, |b| bf16::from_le_bytes(b).to_f32());

/// See [`super::TileFn`]. Products and sums are rounded one after the other here, fused elsewhere.
pub unsafe fn floats<E: Elem>(w: &Weights, x: &[*const u8], acc: &mut [[f32; TILE]]) {
    for (x, acc) in x.iter().zip(acc) {
        for (n, acc) in acc.iter_mut().enumerate().take(w.n) {
            let mut lanes = [0f32; 16];
            for i in 0..w.k {
                // SAFETY: the promise of `TileFn`.
                let (w, x) = unsafe { (E::load(w.at(n).add(i * E::BYTES)), *x.cast::<f32>().add(i)) };
                lanes[i % 16] += w * x;
            }
            for half in [8, 4, 2, 1] {
                (0..half).for_each(|i| lanes[i] += lanes[i + half]);
            }
            *acc = lanes[0];
        }
    }
}

/// See [`super::TileFn`].
pub unsafe fn blocks<T: Tile>(w: &Weights, x: &[*const u8], acc: &mut [[f32; TILE]]) {
    acc.fill([0.0; TILE]);
    for n in 0..w.n {
        for at in 0..w.k / GROUP {
            // SAFETY: the promise of `TileFn`: chunks before a group are whole.
            let (b, g) = unsafe { locate::<T>(w.at(n).add(at / CHUNK_GROUPS * chunk_bytes::<T>()), at % CHUNK_GROUPS) };
            let codes = T::codes(b, g).map(|c| c as i32 - T::OFFSET);
            // SAFETY: `Portable` needs nothing.
            let steps = unsafe { T::steps::<Portable>(b, g) };
            for (&x, acc) in x.iter().zip(acc.iter_mut()) {
                // SAFETY: the promise of `TileFn`.
                let (high, low, of) = unsafe {
                    let plane = |first: usize| *x.add(first + at * GROUP).cast::<[i8; GROUP]>();
                    (plane(0), plane(w.k), quant::get_group(x, w.k, at))
                };
                let q = |i: usize| ((high[i] as i32) << quant::SHIFT) + low[i] as i32;
                let half = |h: usize| (16 * h..16 * h + 16).map(|i| codes[i] * q(i)).sum::<i32>();
                let dot = if T::SUB { half(0) * steps.sub[0] + half(1) * steps.sub[1] } else { half(0) + half(1) };
                acc[n] = (dot as f32).mul_add(steps.scale * of.d, acc[n]);
                if T::MIN {
                    acc[n] = steps.min.mul_add(of.dsum, acc[n]);
                }
            }
        }
    }
}
