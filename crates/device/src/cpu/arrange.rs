//! Interleaving matrices in place.

use super::pool::Pool;
use super::ptr::Ptr;
use crate::error::{Error, Result};
use crate::host::HostMemory;
use crate::interleave::{Part, ROWS, interleave, parts};
use crate::view::{Layout, Mat};
use checkpoint::PLANES;

/// See [`crate::Device::arrange`].
pub fn arrange(pool: &Pool, mem: &HostMemory, m: &Mat) -> Result<Layout> {
    let (Some(parts), Ok(cuts)) = (parts(&m.fmt), m.fmt.planes(m.k.into())) else { return Ok(m.layout) };
    if m.layout != Layout::File || m.row_step != 1 {
        return Ok(m.layout);
    }
    let tiles = m.n as usize / ROWS;
    let mut places: [Option<(Part, Ptr<u8>, usize)>; PLANES] = [None; PLANES];
    for (i, place) in places.iter_mut().enumerate() {
        let (Some(part), Some(cut)) = (parts[i], cuts[i]) else { continue };
        let tile = cut.bytes as usize * ROWS;
        let bytes = m.planes[i].and_then(|b| b.slice(0, (tile * tiles) as u64)).ok_or(Error::BadBuf)?;
        // Bytes of the program itself are used as they are.
        let Ok(base) = mem.ptr_mut(&bytes) else { return Ok(m.layout) };
        *place = Some((part, Ptr::new(base), tile));
    }
    for (part, base, tile) in places.into_iter().flatten() {
        let tasks = pool.width() * 8;
        pool.run_on(pool.width(), tasks, &|_, t| {
            let mut rows = vec![0; tile];
            for i in t * tiles / tasks..(t + 1) * tiles / tasks {
                // SAFETY: located in a live allocation; each tile is one task's, and nobody reads weights outside of ops.
                let here = unsafe { base.slice_mut(i * tile, tile) };
                rows.copy_from_slice(here);
                interleave(part, &mut rows, here);
            }
        })?;
    }
    Ok(Layout::Interleaved)
}
