//! Readers against the file's own bytes, and the queue under everything that can go wrong.

use super::*;
use checkpoint::{Checkpoint, DType, NewTensor, write_safetensors};
use device::Device;
use memory::{Class, Ledger, RegionSizes, Tier};
use proptest::prelude::*;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const ROOM: u64 = 4 << 20;

struct Rig {
    bytes: Vec<u8>,
    ck: Checkpoint,
    memory: SharedBytes,
    _dir: tempfile::TempDir,
}

fn rig() -> Rig {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    let values: Vec<f32> = (0..700_001).map(|i| (i as f32).sin()).collect();
    let new = [NewTensor::new("t", DType::F32, &[values.len() as u64])];
    write_safetensors::<checkpoint::Error>(&path, &[], &new, |_, w| w.floats(&values)).unwrap();
    std::fs::write(dir.path().join("config.json"), "{}").unwrap();
    let ledger = Ledger::new(&[(Tier::Host, 1 << 30)]);
    let mut dev = device::Reference::new(RegionSizes::default()).unwrap();
    let buf = dev.alloc(ledger.reserve(Tier::Host, Class::Weights, "test", ROOM).unwrap()).unwrap();
    let memory = dev.share(buf).unwrap();
    Rig { bytes: std::fs::read(&path).unwrap(), ck: Checkpoint::open(path).unwrap(), memory, _dir: dir }
}

impl Rig {
    fn queue(&self, script: impl FnMut(&Piece) -> Option<Fault> + Send + 'static) -> (ReadQueue, u64) {
        let files = Files::open(&self.ck, Access::Direct).unwrap();
        (ReadQueue::new(Box::new(Scripted::new(&files, 7, Box::new(script))), files.align()), files.align())
    }
    fn wanted(&self, off: u64, len: u64, at: u64) -> Wanted {
        Wanted { file: 0, off, len, to: self.memory.clone(), at }
    }
    fn landed(&self, at: u64, len: u64) -> Vec<u8> {
        let p = self.memory.address(at, len).unwrap();
        // SAFETY: inside the memory; every read of it is finished.
        unsafe { std::slice::from_raw_parts(p, len as usize) }.to_vec()
    }
}

fn all(q: &mut ReadQueue) -> Vec<Finished> {
    let mut done = Vec::new();
    while q.unfinished() > 0 {
        q.poll(true, &mut done).unwrap();
    }
    done
}

/// Every reader, every way into the file: ranges at any offset, of any length, up to the last byte.
#[test]
fn what_lands_is_what_the_file_has() {
    let rig = rig();
    let end = rig.bytes.len() as u64;
    let ranges = [(0, 1), (1, 4095), (4097, 700_000), (1_000_003, 1_500_000), (end - 1, 1), (end - 5000, 5000)];
    for access in [Access::Direct, Access::PageCache] {
        let files = Files::open(&rig.ck, access).unwrap();
        let mut readers: Vec<Box<dyn RangeReader>> = vec![reader(&files).unwrap()];
        readers.push(Box::new(Pool::new(&files, 3).unwrap()));
        for reader in readers {
            let name = reader.name();
            let mut q = ReadQueue::new(reader, files.align());
            let (mut at, mut places) = (0, Vec::new());
            for (i, (off, len)) in ranges.into_iter().enumerate() {
                q.read(Job(i as u64), &rig.wanted(off, len, at), Urgency::Demand);
                places.push((off, len, at + off % files.align()));
                at += (len + 2 * files.align()).next_multiple_of(4096);
            }
            assert!(all(&mut q).iter().all(|f| f.result.is_ok()));
            for (off, len, at) in places {
                assert_eq!(rig.landed(at, len), rig.bytes[off as usize..][..len as usize], "{name} {access:?} {off}");
            }
            let s = q.stats();
            assert!(s.bytes >= ranges.iter().map(|r| r.1).sum() && s.retries == 0, "{s:?}");
        }
    }
}

/// Memory goes back only when the kernel is done with it.
#[test]
fn a_reader_may_be_dropped_with_reads_under_way() {
    let rig = rig();
    let files = Files::open(&rig.ck, Access::Direct).unwrap();
    for _ in 0..20 {
        let mut q = ReadQueue::new(reader(&files).unwrap(), files.align());
        q.read(Job(0), &rig.wanted(0, 2 << 20, 0), Urgency::Demand);
        q.poll(false, &mut Vec::new()).unwrap();
    }
}

#[test]
fn a_piece_is_asked_for_once_more_and_then_its_range_fails_alone() {
    let rig = rig();
    let tries = Arc::new(AtomicUsize::new(0));
    let counted = tries.clone();
    let (mut q, _) = rig.queue(move |p| {
        (p.off == 0).then(|| {
            counted.fetch_add(1, Ordering::Relaxed);
            Fault::Io
        })
    });
    q.read(Job(1), &rig.wanted(0, 2 << 20, 0), Urgency::Demand);
    q.read(Job(2), &rig.wanted(1 << 20, 1000, 3 << 20), Urgency::Demand);
    let done = all(&mut q);
    let of = |j: u64| done.iter().find(|f| f.job == Job(j)).unwrap();
    assert!(of(1).result.is_err() && of(2).result.is_ok());
    assert_eq!(tries.load(Ordering::Relaxed), 2);
    assert_eq!(done.len(), 2);
}

#[test]
fn a_file_that_became_shorter_is_an_error_that_says_so() {
    let rig = rig();
    let (mut q, _) = rig.queue(|_| Some(Fault::Ends));
    q.read(Job(1), &rig.wanted(0, 10, 0), Urgency::Demand);
    assert_eq!(all(&mut q)[0].result.as_ref().unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
}

#[test]
fn demand_goes_before_what_is_expected_and_the_expected_can_be_given_up_or_hurried() {
    let rig = rig();
    let order = Arc::new(Mutex::new(Vec::new()));
    let seen = order.clone();
    let (mut q, _) = rig.queue(move |p| {
        seen.lock().unwrap().push(p.at / (1 << 20));
        None
    });
    for (job, urgency) in [
        (0, Urgency::Ahead { generation: 1 }),
        (1, Urgency::Ahead { generation: 2 }),
        (2, Urgency::Demand),
        (3, Urgency::Ahead { generation: 2 }),
    ] {
        q.read(Job(job), &rig.wanted(0, 900, job << 20), urgency);
    }
    q.cancel(1);
    q.hurry(Job(3));
    let done = all(&mut q);
    assert_eq!(order.lock().unwrap()[..2], [2, 3]);
    assert!(!order.lock().unwrap().contains(&0), "never started");
    for f in &done {
        assert_eq!(f.result.is_err(), f.job == Job(0));
    }
    assert_eq!(done.len(), 4);
    assert!(q.stats().ahead_bytes > 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// Short reads, signals and one failure a piece, in any order: the bytes are those of the file.
    #[test]
    fn faults_that_pass_change_nothing(
        ranges in proptest::collection::vec((0u64..2_700_000, 1u64..90_000), 1..12), seed: u64,
    ) {
        let rig = rig();
        let mut x = seed | 1;
        let mut failed = std::collections::HashSet::new();
        let (mut q, align) = rig.queue(move |p| {
            x = x.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(99);
            match x >> 61 {
                0 => Some(Fault::Short(((x >> 32) % u64::from(p.len)) as u32 + 1)),
                1 => Some(Fault::Interrupted),
                2 if failed.insert(p.to.address(p.at, 1).map(|a| a.addr() as u64 + u64::from(p.len))) => Some(Fault::Io),
                3 => Some(Fault::Stall(Duration::from_micros(50))),
                _ => None,
            }
        });
        let mut at = 0;
        for (i, &(off, len)) in ranges.iter().enumerate() {
            q.read(Job(i as u64), &rig.wanted(off, len, at), Urgency::Demand);
            at += (len + 2 * align).next_multiple_of(4096);
        }
        for f in all(&mut q) {
            prop_assert!(f.result.is_ok(), "{:?}", f.result);
            let (off, len) = ranges[f.job.0 as usize];
            let at: u64 = ranges[..f.job.0 as usize].iter().map(|r| (r.1 + 2 * align).next_multiple_of(4096)).sum();
            prop_assert_eq!(rig.landed(at + off % align, len), &rig.bytes[off as usize..][..len as usize]);
        }
    }
}
