//! Rows of f32 to rows of a type, on all cores.

use anyhow::Result;
use checkpoint::DType;
use rayon::prelude::*;

/// Encodes dense rows of `k` values each.
///
/// # Errors
/// A value the type cannot hold.
pub fn rows(to: DType, k: usize, values: &[f32]) -> Result<Vec<u8>> {
    let row = to.row_bytes(k as u64)? as usize;
    let mut out = vec![0u8; values.len() / k.max(1) * row];
    out.par_chunks_mut(row).zip(values.par_chunks(k)).try_for_each(|(dst, src)| to.encode(src, dst))?;
    Ok(out)
}
