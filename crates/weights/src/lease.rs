//! Parameters that are in memory only while somebody uses them.
//!
//! ```text
//! away -- attach: pay, allocate, read --> here -- release: forget, free --> away
//! ```
//! Both ends are whole: an attach that fails leaves nothing in memory and nothing reserved; a release that fails leaves
//! nothing that could be used, and what could not be freed is freed by the next call. Asking twice changes nothing.

use crate::bound::{Bound, Role};
use crate::error::Result;
use crate::load::{Brought, Reserve, Weights};
use checkpoint::{Checkpoint, Files};
use device::Device;
use memory::Ledger;

/// A group of parameters that comes and goes.
pub struct Lease {
    files: Files,
    bounds: Vec<Bound>,
    reserve: Reserve,
    here: bool,
    /// What is in memory for it; when it is away, what could not be freed.
    held: Brought,
}

impl Lease {
    /// Parameters of a checkpoint, which are not in memory yet. They take what the ledger has free.
    pub fn new(ck: &Checkpoint, bounds: Vec<Bound>) -> Self {
        Lease { files: ck.stored(), bounds, reserve: Ledger::reserve, here: false, held: Brought::default() }
    }
    /// The same for parameters that a plan has room for.
    pub fn planned(ck: &Checkpoint, bounds: Vec<Bound>) -> Self {
        Lease { reserve: Ledger::reserve_planned, ..Lease::new(ck, bounds) }
    }
    /// Whether its parameters can be used.
    pub fn is_here(&self) -> bool {
        self.here
    }
    /// Bytes it takes, about: what devices add to align planes is not counted.
    pub fn bytes(&self) -> u64 {
        self.bounds.iter().map(Bound::loaded_bytes).sum()
    }
    fn free(&mut self, dev: &mut dyn Device) -> Result<()> {
        self.held.borrowed.clear();
        while let Some(&buf) = self.held.allocs.last() {
            dev.free(buf)?;
            self.held.allocs.pop();
        }
        Ok(())
    }
}

impl Weights {
    /// Makes the parameters of a lease known before they come, so that nobody takes others for them.
    pub fn expect(&mut self, lease: &Lease) {
        self.resident.named(&lease.bounds);
    }

    /// Brings a lease's parameters.
    ///
    /// # Errors
    /// The ledger's, the file's and the device's. The lease is away then, and as much memory is free as before.
    pub fn attach(&mut self, lease: &mut Lease, ledger: &Ledger, dev: &mut dyn Device) -> Result<()> {
        if lease.here {
            return Ok(());
        }
        lease.free(dev)?;
        let all: Vec<&Bound> = lease.bounds.iter().collect();
        let paid = (ledger, lease.reserve);
        match Weights::bring(&lease.files, &all, paid, dev, &mut lease.held, &mut |_| {}) {
            Ok(new) => {
                self.resident.named(&lease.bounds);
                self.resident.slots.extend(new.resident.slots);
                self.experts.layers.extend(new.experts.layers);
                lease.here = true;
                Ok(())
            }
            Err(e) => {
                // The first error is the one to tell; what cannot be freed now is by the next call.
                let _ = lease.free(dev);
                Err(e)
            }
        }
    }

    /// Lets a lease's parameters go.
    ///
    /// # Errors
    /// The device's. Nobody can use the parameters then either.
    pub fn release(&mut self, lease: &mut Lease, dev: &mut dyn Device) -> Result<()> {
        lease.here = false;
        for b in &lease.bounds {
            self.resident.slots.remove(&b.id);
            if let Role::Experts { layer, .. } = b.role {
                self.experts.layers.remove(&layer);
            }
        }
        lease.free(dev)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::WId;
    use crate::bound::{Canon, Data};
    use checkpoint::{ByteRange, DType, FileId};
    use device::{Cpu, CpuOptions};
    use memory::{Class, Component, RegionSizes, Tier, TierUsage};
    use std::io::Write;

    const ROWS: u32 = 512;
    const COLS: u32 = 64;
    const BYTES: u64 = ROWS as u64 * COLS as u64 * 4;

    /// A checkpoint with tensors "a" and "b" of f32, in a file of its own.
    fn two_tensors() -> (tempfile::TempDir, Checkpoint, Vec<Bound>) {
        let dir = tempfile::tempdir().unwrap();
        let header = format!(
            "{{\"a\":{{\"dtype\":\"F32\",\"shape\":[{ROWS},{COLS}],\"data_offsets\":[0,{BYTES}]}},\
             \"b\":{{\"dtype\":\"F32\",\"shape\":[{ROWS},{COLS}],\"data_offsets\":[{BYTES},{}]}}}}",
            2 * BYTES
        );
        let path = dir.path().join("model.safetensors");
        let mut f = std::fs::File::create(&path).unwrap();
        f.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
        f.write_all(header.as_bytes()).unwrap();
        let values: Vec<u8> = (0..2 * ROWS * COLS).flat_map(|i| (i as f32).to_le_bytes()).collect();
        f.write_all(&values).unwrap();
        std::fs::write(dir.path().join("config.json"), "{\"model_type\":\"llama\"}").unwrap();
        let ck = Checkpoint::open(dir.path().to_path_buf()).unwrap();
        let bound = |(id, name): (u32, &str)| Bound {
            id: WId(id),
            name: name.into(),
            component: Component::Mtp,
            role: Role::Matrix,
            n: ROWS,
            k: COLS,
            dtype: DType::F32,
            data: Data::Whole { range: ck.tensor(name).unwrap().at, first: 0, step: 0 },
            canon: Canon::Same,
            side: None,
        };
        let bounds = [(1, "a"), (2, "b")].map(bound).to_vec();
        (dir, ck, bounds)
    }

    struct Rig {
        weights: Weights,
        ledger: Ledger,
        dev: Cpu,
    }

    impl Rig {
        fn new(ck: &Checkpoint, guard: u64) -> Self {
            let ledger = Ledger::new(&[(Tier::Host, guard)]);
            let mut dev = Cpu::new(CpuOptions::default(), RegionSizes::default()).unwrap();
            let weights = Weights::open(ck, &[], |_| true, &ledger, &mut dev, &mut |_| {}).unwrap();
            Rig { weights, ledger, dev }
        }
        fn attach(&mut self, l: &mut Lease) -> Result<()> {
            self.weights.attach(l, &self.ledger, &mut self.dev)
        }
        fn release(&mut self, l: &mut Lease) -> Result<()> {
            self.weights.release(l, &mut self.dev)
        }
        fn usage(&self) -> TierUsage {
            self.ledger.usage()[&Tier::Host].clone()
        }
        fn value(&mut self, id: u32, i: usize) -> f32 {
            let buf = self.weights.resident().mat(WId(id)).unwrap().planes[0].unwrap();
            let bytes = self.dev.host_mut(buf).unwrap();
            f32::from_le_bytes(bytes[4 * i..4 * i + 4].try_into().unwrap())
        }
        fn is_away(&self, l: &Lease) {
            assert!(!l.is_here());
            assert!([1, 2].iter().all(|&id| self.weights.resident().mat(WId(id)).is_err()));
            assert_eq!(self.usage().reserved(), 0, "something is still paid for");
        }
    }

    #[test]
    fn it_comes_and_goes_as_often_as_asked_and_twice_is_once() {
        let (_dir, ck, bounds) = two_tensors();
        let mut rig = Rig::new(&ck, 2 * BYTES);
        let mut lease = Lease::new(&ck, bounds);
        rig.release(&mut lease).unwrap();
        for _ in 0..3 {
            rig.attach(&mut lease).unwrap();
            rig.attach(&mut lease).unwrap();
            assert_eq!(rig.usage().by_class[&Class::Weights], lease.bytes());
            assert_eq!((rig.value(1, 7), rig.value(2, 7)), (7.0, (ROWS * COLS + 7) as f32));
            rig.release(&mut lease).unwrap();
            rig.release(&mut lease).unwrap();
            rig.is_away(&lease);
        }
    }

    #[test]
    fn without_room_for_all_of_it_nothing_of_it_stays() {
        let (_dir, ck, bounds) = two_tensors();
        let mut rig = Rig::new(&ck, 2 * BYTES - 1);
        let mut lease = Lease::new(&ck, bounds);
        for _ in 0..2 {
            assert!(matches!(rig.attach(&mut lease), Err(crate::Error::OverBudget(_))));
            rig.is_away(&lease);
        }
    }

    /// The second tensor cannot be read any more: the first one goes too, and both come when the file is whole again.
    #[test]
    fn a_failed_read_leaves_nothing_and_can_be_tried_again() {
        let (dir, ck, bounds) = two_tensors();
        let mut rig = Rig::new(&ck, 2 * BYTES);
        let mut lease = Lease::new(&ck, bounds);
        let path = dir.path().join("model.safetensors");
        let whole = std::fs::read(&path).unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(whole.len() as u64 - 64).unwrap();
        assert!(matches!(rig.attach(&mut lease), Err(crate::Error::Checkpoint(_))));
        rig.is_away(&lease);
        file.set_len(whole.len() as u64).unwrap();
        rig.attach(&mut lease).unwrap();
        rig.release(&mut lease).unwrap();
        rig.is_away(&lease);
    }

    /// Memory that the device does not take back stays paid for, is used by nobody, and goes with the next call.
    #[test]
    fn a_failed_unload_can_be_tried_again() {
        let (_dir, ck, bounds) = two_tensors();
        let mut rig = Rig::new(&ck, 2 * BYTES);
        let mut lease = Lease::new(&ck, bounds);
        rig.attach(&mut lease).unwrap();
        // Nothing may be freed while a step is being recorded.
        let failed = {
            let Rig { weights, dev, .. } = &mut rig;
            let mut failed = Ok(());
            let key = device::GraphKey { rows: 1, seqs: 1, which: 0 };
            (dev as &mut dyn Device)
                .graph(key, &mut |dev: &mut dyn Device| {
                    failed = weights.release(&mut lease, dev);
                    Ok::<_, device::Error>(())
                })
                .unwrap();
            failed
        };
        assert!(failed.is_err());
        assert!(!lease.is_here() && rig.weights.resident().mat(WId(1)).is_err());
        assert_eq!(rig.usage().reserved(), 2 * BYTES);
        rig.release(&mut lease).unwrap();
        rig.is_away(&lease);
        rig.attach(&mut lease).unwrap();
        assert_eq!(rig.value(2, 0), (ROWS * COLS) as f32);
    }

    #[test]
    fn a_range_of_another_file_is_an_error() {
        let (_dir, ck, mut bounds) = two_tensors();
        let mut rig = Rig::new(&ck, 2 * BYTES);
        bounds[1].data = Data::Whole { range: ByteRange { file: FileId(9), off: 0, len: BYTES }, first: 0, step: 0 };
        let mut lease = Lease::new(&ck, bounds);
        assert!(rig.attach(&mut lease).is_err());
        rig.is_away(&lease);
    }
}
