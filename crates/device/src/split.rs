//! The split layout: what a block format interleaves lies apart, so that a GPU reads whole aligned words.
//!
//! A matrix `[n, k]` has up to three planes, row after row: codes, high bits of codes, scales. Codes are grouped by 32
//! elements of a row whatever the block is. In the formats of plain four-bit codes byte j of a group has elements j (low
//! half) and j + 16; in those that look values up in a table it has elements 2j and 2j + 1. Scales stay what they are in the
//! file. Nothing is rounded, and the bytes are as many as in the file.

use crate::error::{Error, Result};
use crate::view::{Buf, Layout, Mat};
use checkpoint::{Block, DType, Format};

/// Alignment of each plane, in bytes.
pub const PLANE_ALIGN: u64 = 256;

/// Bytes of codes, high bits and scales of one block of the format.
fn parts(b: Block) -> Option<[u64; 3]> {
    Some(match b {
        Block::Q4_0 | Block::Iq4Nl => [16, 0, 2],
        Block::Q4_1 => [16, 0, 4],
        Block::Q5_0 => [16, 4, 2],
        Block::Q5_1 => [16, 4, 4],
        Block::Q8_0 => [32, 0, 2],
        Block::Mxfp4 => [16, 0, 1],
        Block::Q4K => [128, 0, 16],
        Block::Q5K => [128, 32, 16],
        Block::Q6K => [128, 64, 18],
        Block::Iq4Xs => [128, 0, 8],
        _ => return None,
    })
}

/// Bytes of a row in each plane, `None` for formats that have no split layout.
pub fn row_parts(fmt: &Format, k: u32) -> Option<[u64; 3]> {
    let Format::Plain(DType::Block(b)) = fmt else { return None };
    let blocks = (k as u64).is_multiple_of(b.elems() as u64).then(|| k as u64 / b.elems() as u64)?;
    Some(parts(*b)?.map(|p| p * blocks))
}

/// Offset of each plane in one allocation that holds a matrix of `rows` rows, and the bytes of all of them.
pub fn place(fmt: &Format, rows: u64, k: u32) -> Option<([u64; 3], u64)> {
    let mut at = 0u64;
    let starts = row_parts(fmt, k)?.map(|p| {
        let start = at;
        at = (at + p * rows).next_multiple_of(PLANE_ALIGN);
        start
    });
    Some((starts, at))
}

/// A matrix over one allocation of [`place`]'s size.
///
/// # Errors
/// [`Error::NoKernel`] for formats without a split layout, [`Error::BadBuf`] for an allocation that is too small.
pub fn mat(fmt: Format, n: u32, k: u32, rows: u64, all: Buf) -> Result<Mat> {
    let no = || Error::NoKernel { op: "load", fmt: fmt.to_string() };
    let ((starts, _), each) = (place(&fmt, rows, k).ok_or_else(no)?, row_parts(&fmt, k).ok_or_else(no)?);
    let mut planes = [None; 4];
    for (i, plane) in planes.iter_mut().enumerate().take(3).filter(|(i, _)| each[*i] > 0) {
        *plane = Some(all.slice(starts[i], each[i] * rows).ok_or(Error::BadBuf)?);
    }
    Ok(Mat { n, k, fmt, layout: Layout::Split, row_step: 1, planes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_byte_is_added_or_lost() {
        for b in Block::ALL {
            let Some(p) = parts(b) else { continue };
            assert_eq!(p.iter().sum::<u64>(), b.bytes() as u64, "{b:?}");
        }
    }
}
