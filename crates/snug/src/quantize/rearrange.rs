//! The rearrangements that GGUF files of some architectures have, as maps from new rows or columns to old ones.

use model::want::Export;

/// Where new row `i` comes from.
pub fn row(export: Export, i: u64) -> u64 {
    match export {
        Export::TileRows { skip, n_k, n_v, each } => {
            let (skip, each) = (skip as u64, each as u64);
            if i < skip { i } else { skip + tiled(i - skip, n_k as u64, n_v as u64, each) }
        }
        _ => i,
    }
}

/// Where new row `i` of `rows` comes from, for maps that need to know how many there are.
pub fn row_of(export: Export, i: u64, rows: u64) -> u64 {
    match export {
        Export::AdjacentRope { heads } => {
            let d = rows / heads.max(1) as u64;
            let (head, at) = (i / d, i % d);
            // Half pairing keeps pair p in rows p and p + d/2; adjacent pairing in 2p and 2p + 1.
            head * d + at / 2 + (at % 2) * (d / 2)
        }
        other => row(other, i),
    }
}

/// Rearranges the columns of a row.
pub fn cols(export: Export, old: &[f32], new: &mut Vec<f32>) {
    new.clear();
    match export {
        Export::TileCols { n_k, n_v, each } => {
            let from = |i: usize| tiled(i as u64, n_k as u64, n_v as u64, each as u64) as usize;
            new.extend((0..old.len()).map(|i| old[from(i)]));
        }
        _ => new.extend_from_slice(old),
    }
}

/// Grouped to tiled value heads: new head j serves key head `j % n_k`, old head j key head `j / (n_v / n_k)`.
fn tiled(i: u64, n_k: u64, n_v: u64, each: u64) -> u64 {
    let (head, at) = (i / each, i % each);
    let old = (head % n_k) * (n_v / n_k) + head / n_k;
    old * each + at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiled_value_heads_serve_key_head_j_mod_n_k() {
        let e = Export::TileRows { skip: 2, n_k: 2, n_v: 6, each: 1 };
        let from: Vec<u64> = (0..8).map(|i| row(e, i)).collect();
        assert_eq!(from, [0, 1, 2, 5, 3, 6, 4, 7]);
        for j in 0..6 {
            assert_eq!((from[2 + j as usize] - 2) / 3, j % 2, "the old head's key head is j % n_k");
        }
    }

    #[test]
    fn adjacent_rope_interleaves_the_halves_of_each_head() {
        let e = Export::AdjacentRope { heads: 2 };
        let from: Vec<u64> = (0..8).map(|i| row_of(e, i, 8)).collect();
        assert_eq!(from, [0, 2, 1, 3, 4, 6, 5, 7]);
    }
}
