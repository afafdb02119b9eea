//! Copying values out of and into device memory, shaped.

use crate::error::{Error, Result};
use crate::host::HostMemory;
use crate::op::extents;
use crate::view::{Buf, Layout, Mat, View};
use checkpoint::PLANES;

fn each_run(v: &View, mut f: impl FnMut(usize)) {
    for r in 0..v.rows as usize {
        for h in 0..v.heads as usize {
            f(r * v.stride[0] as usize + h * v.stride[1] as usize);
        }
    }
}

fn runs(mem: &HostMemory, v: &View) -> Result<Vec<[u8; 4]>> {
    let bytes = mem.bytes(&v.buf)?;
    let mut out = Vec::with_capacity((v.rows * v.width()) as usize);
    each_run(v, |at| {
        let run = &bytes[at * 4..(at + v.cols as usize) * 4];
        out.extend(run.chunks_exact(4).map(|c| [c[0], c[1], c[2], c[3]]));
    });
    Ok(out)
}

/// All values, row by row, head by head.
pub fn floats(mem: &HostMemory, v: &View) -> Result<Vec<f32>> {
    Ok(runs(mem, v)?.into_iter().map(f32::from_le_bytes).collect())
}

/// All values of an integer view.
pub fn ints(mem: &HostMemory, v: &View) -> Result<Vec<i32>> {
    Ok(runs(mem, v)?.into_iter().map(i32::from_le_bytes).collect())
}

fn put_runs(mem: &HostMemory, v: &View, values: impl Iterator<Item = [u8; 4]>) -> Result<()> {
    let base = mem.ptr_mut(&v.buf)?;
    let mut values = values;
    each_run(v, |at| {
        for c in 0..v.cols as usize {
            if let Some(x) = values.next() {
                // SAFETY: a checked view lies inside its buffer, and the op is the only writer.
                unsafe { base.add((at + c) * 4).cast::<[u8; 4]>().write_unaligned(x) }
            }
        }
    });
    Ok(())
}

/// Overwrites all values.
pub fn put(mem: &HostMemory, v: &View, values: &[f32]) -> Result<()> {
    put_runs(mem, v, values.iter().map(|x| x.to_le_bytes()))
}

/// Overwrites all values of an integer view.
pub fn put_ints(mem: &HostMemory, v: &View, values: &[i32]) -> Result<()> {
    put_runs(mem, v, values.iter().map(|x| x.to_le_bytes()))
}

/// `n` floats starting `first` floats into a buffer.
pub fn floats_at(mem: &HostMemory, b: &Buf, first: u64, n: u64) -> Result<Vec<f32>> {
    let part = b.slice(first * 4, n * 4).ok_or(Error::BadBuf)?;
    Ok(mem.bytes(&part)?.chunks_exact(4).map(|c| f32::from_le_bytes([c[0], c[1], c[2], c[3]])).collect())
}

/// Overwrites floats starting `first` floats into a buffer.
pub fn put_at(mem: &HostMemory, b: &Buf, first: u64, values: &[f32]) -> Result<()> {
    let part = b.slice(first * 4, values.len() as u64 * 4).ok_or(Error::BadBuf)?;
    put(mem, &View::dense(part, crate::view::Act::F32, 1, values.len() as u32), values)
}

/// Row `n` of a matrix, decoded.
pub fn mat_row(mem: &HostMemory, m: &Mat, n: u32) -> Result<Vec<f32>> {
    let no_kernel = || Error::NoKernel { op: "decode", fmt: m.fmt.to_string() };
    if m.layout != Layout::File {
        return Err(no_kernel());
    }
    let mut planes = [&[][..]; PLANES];
    for (i, bytes) in extents(m).ok_or_else(no_kernel)?.into_iter().enumerate() {
        let Some(bytes) = bytes else { continue };
        let plane = m.planes[i].and_then(|b| b.slice(0, bytes)).ok_or(Error::BadBuf)?;
        planes[i] = mem.bytes(&plane)?;
    }
    let mut out = vec![0.0; m.k as usize];
    m.fmt.decode_row(planes, n as u64 * m.row_step as u64, &mut out).map_err(|_| no_kernel())?;
    Ok(out)
}

/// All rows of a matrix, decoded.
pub fn mat(mem: &HostMemory, m: &Mat) -> Result<Vec<Vec<f32>>> {
    (0..m.n).map(|n| mat_row(mem, m, n)).collect()
}
