//! Bringing bound parameters into a device's memory.

use crate::bound::{Bound, Data, Proj, Role, WId};
use crate::error::{Error, Result};
use crate::experts::{ExpertSource, LayerExperts, ResidentExperts};
use checkpoint::{ByteRange, Checkpoint, Format};
use device::{Buf, Device, Layout, Mat, MatSet, Meter};
use memory::{Class, Component, Ledger, Reservation, Tier};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Bytes loaded so far, and in all.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// So far.
    pub done: u64,
    /// In all.
    pub total: u64,
}

enum Slot {
    Mat(Mat),
    Vec(Buf),
    Experts,
}

/// Parameters that are in memory now.
pub struct Resident {
    slots: HashMap<WId, Slot>,
    names: HashMap<WId, Arc<str>>,
}

impl Resident {
    fn missing(&self, w: WId) -> Error {
        Error::NotLoaded(self.names.get(&w).map_or_else(|| format!("#{}", w.0), |n| n.to_string()))
    }
    /// A matrix.
    ///
    /// # Errors
    /// [`Error::NotLoaded`].
    pub fn mat(&self, w: WId) -> Result<&Mat> {
        match self.slots.get(&w) {
            Some(Slot::Mat(m)) => Ok(m),
            _ => Err(self.missing(w)),
        }
    }
    /// A vector, canonical f32.
    ///
    /// # Errors
    /// [`Error::NotLoaded`].
    pub fn vec(&self, w: WId) -> Result<Buf> {
        match self.slots.get(&w) {
            Some(Slot::Vec(b)) => Ok(*b),
            _ => Err(self.missing(w)),
        }
    }
    /// Whether a parameter is in memory.
    pub fn has(&self, w: WId) -> bool {
        self.slots.contains_key(&w)
    }
}

/// All parameters of a model, and where its routed experts come from.
pub struct Weights {
    resident: Resident,
    experts: ResidentExperts,
    /// What pays for bytes that are used where they lie in the program.
    _borrowed: Vec<Reservation>,
}

impl Weights {
    /// Reads every bound parameter whose component `wanted` says is wanted. Host memory is filled in place, bytes
    /// that live in the program are used where they are.
    ///
    /// # Errors
    /// The file's, the device's, the ledger's; each names what it is about.
    pub fn open(
        ck: &Checkpoint,
        bounds: &[Bound],
        wanted: impl Fn(Component) -> bool,
        ledger: &Ledger,
        dev: &mut dyn Device,
        on_progress: &mut dyn FnMut(Progress),
    ) -> Result<Self> {
        let bounds: Vec<&Bound> = bounds.iter().filter(|b| wanted(b.component)).collect();
        let total = bounds.iter().map(|b| b.loaded_bytes()).sum();
        let mut loader = Loader { ck, ledger, dev, whole: HashMap::new(), borrowed: Vec::new() };
        let mut progress = Progress { done: 0, total };
        let placed = Self::place(&bounds, |b| {
            on_progress(progress);
            let planes = loader.bring(b);
            progress.done += b.loaded_bytes();
            on_progress(progress);
            planes
        })?;
        Ok(Weights { _borrowed: loader.borrowed, ..placed })
    }

    /// The same parameters before anything is read: handles to bytes nobody holds, for dry runs.
    ///
    /// # Errors
    /// [`Error::Unusable`] as [`open`](Self::open) would.
    pub fn imagine(bounds: &[Bound], meter: &mut Meter) -> Result<Self> {
        let bounds: Vec<&Bound> = bounds.iter().collect();
        Self::place(&bounds, |b| {
            let step = if matches!(b.role, Role::Experts { .. }) { b.matrix_bytes() } else { 0 };
            Ok((meter.imagine(b.loaded_bytes()), step))
        })
    }

    /// `bring` gives a parameter's bytes: where the (first expert's) matrix begins, and the step between experts.
    fn place(bounds: &[&Bound], mut bring: impl FnMut(&Bound) -> Result<(Buf, u64)>) -> Result<Self> {
        let names = bounds.iter().map(|b| (b.id, b.name.clone())).collect();
        let mut resident = Resident { slots: HashMap::new(), names };
        let mut sets: BTreeMap<u32, Vec<(Proj, MatSet)>> = BTreeMap::new();
        for b in bounds {
            let (buf, step) = bring(b)?;
            let first = mat(b, buf);
            let slot = match b.role {
                Role::Matrix => Slot::Mat(first),
                Role::Vector => Slot::Vec(buf),
                Role::Experts { layer, proj, count } => {
                    let set = MatSet { first, step: [step, 0, 0, 0], slots: count };
                    sets.entry(layer).or_default().push((proj, set));
                    Slot::Experts
                }
            };
            resident.slots.insert(b.id, slot);
        }
        let layers = sets.into_iter().filter_map(|(l, s)| Some((l, assemble(&s)?))).collect();
        Ok(Weights { resident, experts: ResidentExperts { layers }, _borrowed: Vec::new() })
    }

    /// The resident parameters.
    pub fn resident(&self) -> &Resident {
        &self.resident
    }
    /// Resident parameters beside the source of experts.
    pub fn split(&mut self) -> (&Resident, &mut dyn ExpertSource) {
        (&self.resident, &mut self.experts)
    }
    /// The experts, to hand out in another way.
    pub fn experts(&self) -> &ResidentExperts {
        &self.experts
    }
}

fn mat(b: &Bound, buf: Buf) -> Mat {
    Mat {
        n: b.n,
        k: b.k,
        fmt: Format::Plain(b.dtype),
        layout: Layout::File,
        row_step: 1,
        planes: [Some(buf), None, None, None],
    }
}

fn assemble(sets: &[(Proj, MatSet)]) -> Option<LayerExperts> {
    let find = |p: Proj| sets.iter().find(|(q, _)| *q == p).map(|(_, s)| *s);
    Some(LayerExperts { gate: find(Proj::Gate)?, up: find(Proj::Up)?, down: find(Proj::Down)?, slot_of: None })
}

fn unusable(b: &Bound, what: &str) -> Error {
    Error::Unusable { tensor: b.name.to_string(), what: what.into() }
}

struct Loader<'a> {
    ck: &'a Checkpoint,
    ledger: &'a Ledger,
    dev: &'a mut dyn Device,
    /// Tensors that hold more than one parameter (fused gate and up) are brought once.
    whole: HashMap<ByteRange, Buf>,
    borrowed: Vec<Reservation>,
}

impl Loader<'_> {
    fn bring(&mut self, b: &Bound) -> Result<(Buf, u64)> {
        match (&b.role, &b.data) {
            (Role::Vector, _) => Ok((self.vector(b)?, 0)),
            (_, Data::Whole { range, first, step }) => {
                let buf = self.range(*range)?;
                let rest = buf.bytes().saturating_sub(*first);
                let at = buf.slice(*first, rest).ok_or_else(|| unusable(b, "it begins behind its tensor"))?;
                Ok((at, *step))
            }
            (_, Data::Each(ranges)) => Ok((self.stack(ranges)?, b.matrix_bytes())),
            (_, Data::Values(_)) => Err(unusable(b, "only vectors have computed values")),
        }
    }

    fn pay(&self, bytes: u64) -> Result<Reservation> {
        Ok(self.ledger.reserve_planned(Tier::Host, Class::Weights, "weights", bytes)?)
    }

    fn alloc(&mut self, bytes: u64) -> Result<Buf> {
        let paid = self.pay(bytes)?;
        Ok(self.dev.alloc(paid)?)
    }

    fn range(&mut self, r: ByteRange) -> Result<Buf> {
        if let Some(b) = self.whole.get(&r) {
            return Ok(*b);
        }
        let borrowed = self.ck.embedded(r).and_then(|bytes| self.dev.borrow(bytes));
        let buf = match borrowed {
            Some(b) => {
                let paid = self.pay(r.len)?;
                self.borrowed.push(paid);
                b
            }
            None => {
                let b = self.alloc(r.len)?;
                self.fill(b, r)?;
                b
            }
        };
        self.whole.insert(r, buf);
        Ok(buf)
    }

    fn stack(&mut self, ranges: &[ByteRange]) -> Result<Buf> {
        let all = self.alloc(ranges.iter().map(|r| r.len).sum())?;
        let mut at = 0;
        for r in ranges {
            let part = all.slice(at, r.len).ok_or(device::Error::BadBuf)?;
            self.fill(part, *r)?;
            at += r.len;
        }
        Ok(all)
    }

    /// Reads a range to where it must be: straight into host memory, through a bounded staging buffer elsewhere.
    fn fill(&mut self, to: Buf, r: ByteRange) -> Result<()> {
        if let Some(host) = self.dev.host_mut(to) {
            return Ok(self.ck.read_at(r, host)?);
        }
        const STAGE: u64 = 8 << 20;
        let mut stage = vec![0u8; STAGE.min(r.len) as usize];
        let mut done = 0;
        while done < r.len {
            let len = STAGE.min(r.len - done);
            let piece = ByteRange { file: r.file, off: r.off + done, len };
            self.ck.read_at(piece, &mut stage[..len as usize])?;
            let part = to.slice(done, len).ok_or(device::Error::BadBuf)?;
            self.dev.write(part, &stage[..len as usize])?;
            done += len;
        }
        Ok(())
    }

    fn vector(&mut self, b: &Bound) -> Result<Buf> {
        let mut values = match &b.data {
            Data::Values(v) => v.to_vec(),
            Data::Whole { range, .. } => {
                let mut bytes = vec![0u8; range.len as usize];
                self.ck.read_at(*range, &mut bytes)?;
                let mut v = vec![0.0; b.n as usize * b.k as usize];
                b.dtype.decode(&bytes, &mut v)?;
                v
            }
            Data::Each(_) => return Err(unusable(b, "a vector in pieces")),
        };
        b.canon.apply(&mut values);
        let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        let buf = self.alloc(bytes.len() as u64)?;
        self.dev.write(buf, &bytes)?;
        Ok(buf)
    }
}
