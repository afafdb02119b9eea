//! Activations of fifteen bits: `x = d * q` with one f32 `d` per 32 elements, `|q| <= 16256`, in two planes of signed
//! bytes, `q = 128 * high + low` with `-64 <= low < 64`, so that byte instructions multiply them.
//!
//! Eight bits are too few: on a small model they change one likeliest token in thirty.
//!
//! A row of k elements is its k high bytes, its k low bytes, then one [`Group`] per 32 of them, padded to 64 bytes.

/// Elements that share a scale.
pub const GROUP: usize = 32;
/// The largest code.
pub const MAX: f32 = 16256.0;
/// log2 of what a high byte counts.
pub const SHIFT: u32 = 7;
/// Added before the shift that makes the high byte, so that low bytes are centred on zero.
pub const ROUND: i32 = 64;

/// What belongs to 32 elements.
#[derive(Copy, Clone, Debug, PartialEq)]
#[repr(C)]
pub struct Group {
    /// Scale: the largest magnitude / 16256. NaN where an element is not finite, so that products say so.
    pub d: f32,
    /// `d` times the sum of the codes.
    pub dsum: f32,
    /// Sums of the first and the last sixteen codes.
    pub sums: [i32; 2],
}

/// Bytes of a quantised row of `k` elements, a multiple of 64.
pub const fn row_bytes(k: usize) -> usize {
    (2 * k + k / GROUP * size_of::<Group>()).next_multiple_of(64)
}

/// (scale, reciprocal that codes are taken with) of a group whose largest magnitude is `amax`, NaN or infinite if an
/// element is. Magnitudes whose reciprocal would overflow count as zero.
#[inline(always)]
pub fn scales(amax: f32) -> (f32, f32) {
    if !amax.is_finite() {
        (f32::NAN, 0.0)
    } else if amax < 1e-35 {
        (0.0, 0.0)
    } else {
        (amax / MAX, MAX / amax)
    }
}

/// The group that these codes' sums and scale make. Without a scale the sums are of no codes that were kept.
#[inline(always)]
pub fn group(d: f32, sums: [i32; 2]) -> Group {
    let sums = if d > 0.0 { sums } else { [0; 2] };
    Group { d, dsum: d * (sums[0] + sums[1]) as f32, sums }
}

/// Writes group `g` of a row of `k` elements.
///
/// # Safety
/// `row` has [`row_bytes`] of `k` writable bytes and `g < k / 32`.
#[inline(always)]
pub unsafe fn put_group(row: *mut u8, k: usize, g: usize, group: Group) {
    // SAFETY: inside the row by the caller's promise; rows may start anywhere.
    unsafe { row.add(2 * k + g * size_of::<Group>()).cast::<Group>().write_unaligned(group) }
}

/// Reads group `g` of a row of `k` elements.
///
/// # Safety
/// As [`put_group`], with bytes that were written.
#[inline(always)]
pub unsafe fn get_group(row: *const u8, k: usize, g: usize) -> Group {
    // SAFETY: as above.
    unsafe { row.add(2 * k + g * size_of::<Group>()).cast::<Group>().read_unaligned() }
}
