//! The interleaved layout: sixteen weight rows as one, so that a vector register holds the same part of each of them.
//!
//! A tile is [`ROWS`] rows of a matrix, which follow one another in a file; interleaving moves bytes inside a tile and
//! nowhere else, so a tile lies where it lay and a matrix has as many bytes as before. Along k a tile is cut into chunks of
//! 256 elements (the last one may be shorter, of blocks of 32). A chunk has the fields of its blocks in their order; of a
//! field, block after block, and of a block's field, unit after unit, those of the sixteen rows side by side. Units are what
//! kernels load into a lane: four bytes of codes, a scale. Planes of codes and of scales are interleaved likewise. Rows behind
//! the last whole tile stay as in the file.

use checkpoint::{Block, DType, Format, PLANES};

/// Rows of a tile.
pub const ROWS: usize = 16;
/// Elements of a chunk.
const CHUNK: usize = 256;

/// Consecutive bytes of a block, in units that stay together.
#[derive(Copy, Clone, Debug)]
struct Field {
    at: usize,
    bytes: usize,
    unit: usize,
}

const fn field(at: usize, bytes: usize, unit: usize) -> Field {
    Field { at, bytes, unit }
}

/// The fields of a block, all of its bytes in order; `None` for blocks that are not interleaved.
fn fields(b: Block) -> Option<&'static [Field]> {
    const HALF_AND_16: &[Field] = &[field(0, 2, 2), field(2, 16, 4)];
    const HALVES_AND_16: &[Field] = &[field(0, 2, 2), field(2, 2, 2), field(4, 16, 4)];
    const HALF_AND_32: &[Field] = &[field(0, 2, 2), field(2, 32, 4)];
    const BYTE_AND_16: &[Field] = &[field(0, 1, 1), field(1, 16, 4)];
    const Q4K: &[Field] = &[field(0, 2, 2), field(2, 2, 2), field(4, 12, 4), field(16, 128, 4)];
    const Q5K: &[Field] = &[field(0, 2, 2), field(2, 2, 2), field(4, 12, 4), field(16, 32, 4), field(48, 128, 4)];
    const Q6K: &[Field] = &[field(0, 128, 4), field(128, 64, 4), field(192, 16, 4), field(208, 2, 2)];
    Some(match b {
        Block::Q4_0 | Block::Iq4Nl => HALF_AND_16,
        Block::Q4_1 => HALVES_AND_16,
        Block::Q8_0 => HALF_AND_32,
        Block::Mxfp4 => BYTE_AND_16,
        Block::Q4K => Q4K,
        Block::Q5K => Q5K,
        Block::Q6K => Q6K,
        _ => return None,
    })
}

/// What is interleaved in a plane.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Blocks, field by field.
    Blocks(Block),
    /// Nibbles of neighbouring elements: of 32 elements, byte j then holds elements j and j + 16.
    Nibbles,
    /// Numbers of so many bytes: 1, 2 or 4.
    Units(usize),
}

/// What each plane of a format becomes; `None` for formats that are not interleaved.
pub fn parts(fmt: &Format) -> Option<[Option<Part>; PLANES]> {
    Some(match *fmt {
        Format::Plain(DType::Block(b)) => {
            fields(b)?;
            [Some(Part::Blocks(b)), None, None, None]
        }
        Format::Affine { bits: 4, scale, .. } => {
            let scales = Some(Part::Units(scale.bytes()));
            [Some(Part::Nibbles), scales, scales, None]
        }
        Format::Mxfp4Hf => [Some(Part::Nibbles), Some(Part::Units(1)), None, None],
        _ => return None,
    })
}

/// Calls `f(unit, in the row, in the tile)` with byte offsets for every unit of a row of `bytes` bytes; row r has its own r
/// units further in the tile.
#[inline(always)]
fn each_unit(part: Part, bytes: usize, mut f: impl FnMut(usize, usize, usize)) {
    match part {
        Part::Blocks(b) => blocks(b, bytes, f),
        Part::Nibbles => (0..bytes).step_by(4).for_each(|at| f(4, at, ROWS * at)),
        Part::Units(unit) => (0..bytes).step_by(unit.max(1)).for_each(|at| f(unit, at, ROWS * at)),
    }
}

/// [`each_unit`] of blocks.
#[inline(always)]
fn blocks(b: Block, bytes: usize, mut f: impl FnMut(usize, usize, usize)) {
    let (Some(fields), size, most) = (fields(b), b.bytes(), CHUNK / b.elems()) else { return };
    for first in (0..bytes / size).step_by(most) {
        let here = most.min(bytes / size - first);
        for Field { at, bytes, unit } in fields {
            for i in 0..here {
                for u in (0..*bytes).step_by(*unit) {
                    f(*unit, (first + i) * size + at + u, ROWS * (first * size + here * at + i * bytes + u));
                }
            }
        }
    }
}

/// Interleaves one tile: `rows` are its rows as in a file, `tile` is as long. Nibbles of `rows` are put in order on the way.
pub fn interleave(part: Part, rows: &mut [u8], tile: &mut [u8]) {
    if part == Part::Nibbles {
        rows.as_chunks_mut::<16>().0.iter_mut().for_each(|b| *b = halves(b));
    }
    let row = rows.len() / ROWS;
    each_unit(part, row, |unit, in_row, in_tile| match unit {
        4 => move_units::<4>(rows, row, in_row, &mut tile[in_tile..]),
        2 => move_units::<2>(rows, row, in_row, &mut tile[in_tile..]),
        _ => move_units::<1>(rows, row, in_row, &mut tile[in_tile..]),
    });
}

#[inline(always)]
fn move_units<const N: usize>(rows: &[u8], row: usize, at: usize, to: &mut [u8]) {
    for (r, to) in to.as_chunks_mut::<N>().0.iter_mut().enumerate().take(ROWS) {
        to.copy_from_slice(&rows[r * row + at..][..N]);
    }
}

/// Takes row `r` out of an interleaved tile, as it was in the file; `row` is as long as a row.
pub fn take_row(part: Part, tile: &[u8], r: usize, row: &mut [u8]) {
    each_unit(part, row.len(), |unit, in_row, in_tile| {
        row[in_row..in_row + unit].copy_from_slice(&tile[in_tile + r * unit..][..unit]);
    });
    if part == Part::Nibbles {
        row.as_chunks_mut::<16>().0.iter_mut().for_each(|b| *b = neighbours(b));
    }
}

/// Nibbles 2j and 2j + 1 in byte j become nibbles j and j + 16.
fn halves(b: &[u8; 16]) -> [u8; 16] {
    let nibble = |e: usize| b[e / 2] >> (4 * (e % 2)) & 15;
    std::array::from_fn(|j| nibble(j) | nibble(j + 16) << 4)
}

/// What [`halves`] undoes.
fn neighbours(b: &[u8; 16]) -> [u8; 16] {
    let nibble = |e: usize| b[e % 16] >> (4 * (e / 16)) & 15;
    std::array::from_fn(|j| nibble(2 * j) | nibble(2 * j + 1) << 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_all_bytes_of_a_block_in_order() {
        for b in Block::ALL {
            let Some(fields) = fields(b) else { continue };
            let end = fields.iter().fold(0, |at, f| {
                assert_eq!((f.at, f.bytes % f.unit), (at, 0), "{b:?}");
                at + f.bytes
            });
            assert_eq!(end, b.bytes(), "{b:?}");
        }
    }

    #[test]
    fn rows_come_out_as_they_went_in_and_bits_are_as_many() {
        let blocks = Block::ALL.into_iter().filter(|b| fields(*b).is_some()).map(Part::Blocks);
        for part in blocks.chain([Part::Nibbles, Part::Units(1), Part::Units(2), Part::Units(4)]) {
            for k in [256, 288, 512, 576, 768] {
                let row = match part {
                    Part::Blocks(b) if k % b.elems() != 0 => continue,
                    Part::Blocks(b) => k / b.elems() * b.bytes(),
                    Part::Nibbles => k / 2,
                    Part::Units(n) => k / 32 * n,
                };
                let rows: Vec<u8> = (0..ROWS * row).map(|i| (i * 31 + i / 251) as u8).collect();
                let mut tile = vec![0; rows.len()];
                interleave(part, &mut rows.clone(), &mut tile);
                for (r, want) in rows.chunks(row).enumerate() {
                    let mut got = vec![0; row];
                    take_row(part, &tile, r, &mut got);
                    assert_eq!(got, want, "{part:?} {k} row {r}");
                }
                let ones = |v: &[u8]| v.iter().map(|b| b.count_ones()).sum::<u32>();
                assert_eq!(ones(&tile), ones(&rows), "{part:?} {k}");
            }
        }
    }

    #[test]
    fn nibbles_of_neighbours_come_apart() {
        let bytes: [u8; 16] = std::array::from_fn(|j| (2 * j % 16) as u8 | (((2 * j + 1) % 16) << 4) as u8);
        assert_eq!(halves(&bytes), std::array::from_fn(|j| (j | j << 4) as u8));
        assert_eq!(neighbours(&halves(&bytes)), bytes);
    }
}
