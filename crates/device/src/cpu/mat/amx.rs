//! Products through tiles (AMX, eight-bit integers): sixteen activation rows at a time meet sixteen weight rows.
//!
//! A group of codes as the AVX-512 kernels have it, vector j with four consecutive codes of each of sixteen weight rows, is
//! just what a tile of eight such vectors wants as right operand; the left one is 32 bytes of a plane of sixteen
//! activation rows. So a tile product is the integer dot products of [`super::avx512`], all sixteen by sixteen, and what
//! follows is done there row by row: results are the same to the bit.
//!
//! Fewer rows than a tile has, formats with two scales a group, floats and formats of several planes go the way of
//! AVX-512. (The instruction set: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18.)

use super::avx512::{self, Blocks, Group16, Interleaved512, Walk};
use super::planes_avx512::PlanesX512;
use super::quant::{self, GROUP};
use super::tile_avx512::TileX512;
use super::tile_x86::TileX86;
use super::{TILE, Weights};
use std::arch::asm;
use std::arch::x86_64::*;

pub use avx512::{Bf16, F16, F32, floats, fp8, interleaved_planes};

/// Activation rows of a tile.
const ROWS: usize = 16;

/// What the tile registers are: sums of both planes (0, 1), activations of both (2, 3), and the codes (4).
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    /// Bytes of a row.
    colsb: [u16; 16],
    rows: [u8; 16],
}

static CONFIG: Config = {
    let (mut colsb, mut rows) = ([0; 16], [0; 16]);
    (colsb[0], colsb[1], colsb[2], colsb[3], colsb[4]) = (64, 64, GROUP as u16, GROUP as u16, 64);
    (rows[0], rows[1], rows[2], rows[3], rows[4]) = (ROWS as u8, ROWS as u8, ROWS as u8, ROWS as u8, GROUP as u8 / 4);
    Config { palette: 1, start_row: 0, reserved: [0; 14], colsb, rows }
};

/// Whether this machine has tiles of bytes and the system lets this process use them, which has to be asked once.
pub fn available() -> bool {
    static ASKED: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *ASKED.get_or_init(|| {
        let tiles = (1 << 24) | (1 << 25);
        __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & tiles == tiles && permitted()
    })
}

/// Linux gives tile state to a process that asks for it (`arch_prctl(ARCH_REQ_XCOMP_PERM, XTILEDATA)`).
#[cfg(target_os = "linux")]
fn permitted() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: u64 = 0x1023;
    const XTILEDATA: u64 = 18;
    let mut answer = ARCH_PRCTL;
    // SAFETY: a system call that takes numbers and changes no memory.
    unsafe {
        asm!("syscall", inout("rax") answer, in("rdi") ARCH_REQ_XCOMP_PERM, in("rsi") XTILEDATA, out("rcx") _, out("r11") _,
             options(nostack));
    }
    answer == 0
}

#[cfg(not(target_os = "linux"))]
fn permitted() -> bool {
    false
}

/// The thread's tile registers, configured; given back when dropped.
struct Tiles(());

impl Tiles {
    /// # Safety
    /// [`available`].
    unsafe fn new() -> Self {
        // SAFETY: the caller's promise; the configuration is valid and lives long enough.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const CONFIG, options(nostack, readonly)) }
        Tiles(())
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: they were configured, so they exist.
        unsafe { asm!("tilerelease", options(nostack, nomem)) }
    }
}

/// Sums of sixteen activation rows times sixteen weight rows.
#[repr(align(64))]
struct Sums([[i32; TILE]; ROWS]);

/// The rows of an activation block: tiles are read at one distance from row to row.
#[derive(Copy, Clone)]
struct Block {
    base: *const u8,
    stride: usize,
}

impl Block {
    /// `None` where the rows do not lie so.
    fn of(x: &[*const u8]) -> Option<Self> {
        let stride = (x[1] as usize).checked_sub(x[0] as usize)?;
        let even = x.windows(2).all(|w| (w[1] as usize).checked_sub(w[0] as usize) == Some(stride));
        even.then_some(Block { base: x[0], stride })
    }
}

/// 32 bytes of both planes of sixteen rows, one behind the other.
#[repr(align(64))]
struct Gathered([[[u8; GROUP]; ROWS]; 2]);

impl Gathered {
    /// # Safety
    /// All of `x` are quantised rows of `k` elements.
    unsafe fn fill(&mut self, x: &[*const u8], k: usize, g: usize) -> Block {
        for (i, &x) in x.iter().enumerate() {
            for (plane, to) in self.0.iter_mut().enumerate() {
                // SAFETY: the caller's promise.
                to[i] = unsafe { x.add(plane * k + g * GROUP).cast::<[u8; GROUP]>().read_unaligned() };
            }
        }
        Block { base: self.0.as_ptr().cast(), stride: GROUP }
    }
}

/// What tiles are loaded from and stored to.
struct Room {
    codes: [__m512i; 8],
    /// Of the high plane and of the low one.
    sums: [Sums; 2],
    gathered: Gathered,
}

/// Multiplies both planes at `high` and `low` with the codes in tile 4.
///
/// # Safety
/// Tiles are configured; sixteen rows of 32 bytes are readable at both.
#[inline(always)]
unsafe fn multiply(high: *const u8, low: *const u8, stride: usize, sums: &mut [Sums; 2]) {
    let [h, l] = sums;
    // SAFETY: the caller's promise; the sums hold sixteen rows of 64 bytes.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tileloadd tmm2, [{high} + {stride}*1]",
            "tileloadd tmm3, [{low} + {stride}*1]",
            "tdpbsud tmm0, tmm2, tmm4",
            "tdpbsud tmm1, tmm3, tmm4",
            "tilestored [{h} + {row}*1], tmm0",
            "tilestored [{l} + {row}*1], tmm1",
            high = in(reg) high,
            low = in(reg) low,
            stride = in(reg) stride,
            h = in(reg) h.0.as_mut_ptr(),
            l = in(reg) l.0.as_mut_ptr(),
            row = in(reg) 64usize,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            options(nostack),
        );
    }
}

/// Adds what group `g` contributes to the sums of whole blocks of activation rows.
///
/// # Safety
/// AVX-512 as in its kernels, and tiles are configured; all of `x` are rows of `k` elements, sixteen for each of `blocks`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn group<T: TileX86>(
    (g, codes, of): (usize, &[__m512i; 8], &Group16),
    (x, k): (&[*const u8], usize),
    blocks: &[Option<Block>],
    acc: &mut [[f32; TILE]],
    room: &mut Room,
) {
    let Room { codes: there, sums, gathered } = room;
    *there = *codes;
    // SAFETY: the caller's promise; sixteen rows of a group are readable in both planes of each block.
    unsafe {
        asm!("tileloadd tmm4, [{codes} + {row}*1]", codes = in(reg) there.as_ptr(), row = in(reg) 64usize,
             out("tmm4") _, options(nostack, readonly));
        for ((block, x), acc) in blocks.iter().zip(x.chunks_exact(ROWS)).zip(acc.chunks_exact_mut(ROWS)) {
            match block {
                Some(b) => {
                    let high = b.base.add(g * GROUP);
                    multiply(high, high.add(k), b.stride, sums);
                }
                None => {
                    let b = gathered.fill(x, k, g);
                    multiply(b.base, b.base.add(ROWS * GROUP), b.stride, sums);
                }
            }
            for (i, (x, acc)) in x.iter().zip(acc).enumerate() {
                let load = |s: &Sums| _mm512_load_si512(s.0[i].as_ptr().cast());
                let (high, low) = (load(&sums[0]), load(&sums[1]));
                let before = _mm512_loadu_ps(acc.as_ptr());
                let sum = avx512::offset_and_scaled::<T>(before, [high, low], of, quant::get_group(*x, k, g));
                _mm512_storeu_ps(acc.as_mut_ptr(), sum);
            }
        }
    }
}

/// All groups of a tile of weights, as `each` walks them, times many rows: whole blocks through tiles, the rest without.
///
/// # Safety
/// The promise of `TileFn`, with a whole tile of weights.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn many<W: Walk>(w: &Weights, x: &[*const u8], acc: &mut [[f32; TILE]]) {
    acc.fill([0.0; TILE]);
    let whole = x.len() / ROWS * ROWS;
    let (x, rest) = x.split_at(whole);
    let (acc, rest_acc) = acc.split_at_mut(whole);
    let blocks: [Option<Block>; super::super::product::BLOCK / ROWS] =
        std::array::from_fn(|i| x.chunks_exact(ROWS).nth(i).and_then(Block::of));
    let mut room = Room {
        codes: [_mm512_setzero_si512(); 8],
        sums: [Sums([[0; TILE]; ROWS]), Sums([[0; TILE]; ROWS])],
        gathered: Gathered([[[0; GROUP]; ROWS]; 2]),
    };
    // SAFETY: the caller's promise; this set is only chosen where `available` said so.
    unsafe {
        let tiles = Tiles::new();
        W::each_group(w, |g, codes, of| {
            group::<W::Tile>((g, codes, of), (x, w.k), &blocks, acc, &mut room);
            avx512::each_row::<W::Tile>((g, codes, of), (rest, w.k), rest_acc);
        });
        drop(tiles);
    }
}

/// Whether tiles gain anything.
fn worth<T: TileX86>(w: &Weights, x: &[*const u8]) -> bool {
    w.n == TILE && x.len() >= ROWS && !T::SUB
}

/// See [`super::TileFn`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub unsafe fn blocks<T: TileX512>(w: &Weights, x: &[*const u8], acc: &mut [[f32; TILE]]) {
    // SAFETY: the promise of `TileFn`.
    unsafe { if worth::<T>(w, x) { many::<avx512::Filed<T>>(w, x, acc) } else { avx512::blocks::<T>(w, x, acc) } }
}

/// The same for interleaved rows.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub unsafe fn interleaved<T: Interleaved512>(w: &Weights, x: &[*const u8], acc: &mut [[f32; TILE]]) {
    // SAFETY: the promise of `TileFn`.
    unsafe { if worth::<T>(w, x) { many::<Blocks<T>>(w, x, acc) } else { avx512::interleaved::<T>(w, x, acc) } }
}

/// Formats of several planes go the way of AVX-512.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub unsafe fn planes<T: PlanesX512>(w: &Weights, x: &[*const u8], acc: &mut [[f32; TILE]]) {
    // SAFETY: the promise of `TileFn`.
    unsafe { avx512::planes::<T>(w, x, acc) }
}
