//! How fast a disk is read at random places, by size of a block and by how many reads are under way.

use super::profile::{DiskFacts, DiskRate};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Sizes of blocks.
const BLOCKS: [u64; 3] = [256 << 10, 1 << 20, 4 << 20];
/// Reads at once, each on a thread of its own.
const DEPTHS: [u32; 4] = [1, 2, 4, 8];
/// What direct reads must be aligned to on any usual disk.
const ALIGN: usize = 4096;

/// Writes a file of `bytes` (a multiple of the largest block) in `dir`, reads it for `time` in every way, past the page
/// cache where the file system can, and lets it go. What fails is in the result.
pub fn measure(dir: &Path, bytes: u64, time: Duration) -> DiskFacts {
    let facts = |direct, failed, rates| DiskFacts { dir: dir.into(), direct, failed, rates };
    let rates = |f: &File| -> io::Result<Vec<DiskRate>> {
        let ways = BLOCKS.into_iter().flat_map(|block| DEPTHS.map(|depth| (block, depth)));
        ways.map(|(block, depth)| rate(f, bytes, block, depth, time)).collect()
    };
    match written(dir, bytes).and_then(|(f, direct)| Ok((direct, rates(&f)?))) {
        Ok((direct, rates)) => facts(direct, None, rates),
        Err(e) => facts(false, Some(e.to_string()), Vec::new()),
    }
}

/// The file, opened for direct reads if that is possible.
fn written(dir: &Path, bytes: u64) -> io::Result<(File, bool)> {
    let (mut file, path) = tempfile::Builder::new().prefix(".snug-disk-").tempfile_in(dir)?.into_parts();
    let direct = rustix::fs::OFlags::DIRECT.bits() as i32;
    let (reader, direct) = match OpenOptions::new().read(true).custom_flags(direct).open(&path) {
        Ok(f) => (f, true),
        Err(_) => (File::open(&path)?, false),
    };
    // From here on it has no name, so that nothing is left of it however this ends.
    path.close()?;
    // Not compressible, so that no file system makes it smaller.
    let mut x = 0x9E37_79B9_7F4A_7C15u64;
    let mut piece = vec![0u8; 1 << 20];
    for _ in 0..bytes >> 20 {
        for word in piece.as_chunks_mut::<8>().0 {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            *word = x.to_le_bytes();
        }
        file.write_all(&piece)?;
    }
    file.sync_all()?;
    Ok((reader, direct))
}

fn rate(f: &File, bytes: u64, block: u64, depth: u32, time: Duration) -> io::Result<DiskRate> {
    let (start, done) = (Instant::now(), AtomicU64::new(0));
    let reader = |seed: u64| -> io::Result<()> {
        let mut room = vec![0u8; block as usize + ALIGN];
        let at = room.as_ptr().align_offset(ALIGN);
        let buf = &mut room[at..at + block as usize];
        let mut x = seed;
        while start.elapsed() < time || done.load(Relaxed) == 0 {
            x = x.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
            f.read_exact_at(buf, (x >> 33) % (bytes / block) * block)?;
            done.fetch_add(block, Relaxed);
        }
        Ok(())
    };
    std::thread::scope(|s| {
        let readers: Vec<_> = (0..depth).map(|i| s.spawn(move || reader(i.into()))).collect();
        // A reader does not panic; if one did, its share is missing from the rate.
        readers.into_iter().try_for_each(|r| r.join().unwrap_or(Ok(())))
    })?;
    let gbps = done.load(Relaxed) as f64 / start.elapsed().as_secs_f64() / 1e9;
    Ok(DiskRate { block, depth, gbps })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_has_a_rate_and_the_file_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let d = measure(dir.path(), 8 << 20, Duration::from_millis(1));
        assert_eq!((d.failed, d.rates.len()), (None, 12));
        assert!(d.rates.iter().all(|r| r.gbps > 0.0 && r.gbps.is_finite()));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_directory_that_is_not_there_is_said() {
        let d = measure(Path::new("/nowhere/at/all"), 8 << 20, Duration::ZERO);
        assert!(d.failed.is_some() && d.rates.is_empty());
    }
}
