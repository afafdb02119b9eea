//! Where the time goes: a device around a device that times what passes through it. No kernel knows of it.
//!
//! Time is that of the call where a backend runs an op as it is enqueued. On one that queues it is taken at points of the queue
//! ([`Device::mark`]), which keep ops apart that could overlap.

use crate::arena::{Arena, Region};
use crate::device::{Caps, Device, Fence, GraphKey, GraphMode, Mark, ScratchFn};
use crate::error::Result;
use crate::host::SharedBytes;
use crate::op::{Acc, Op, Part, Pick, RowClass, mat_bytes};
use crate::view::{Buf, ExpertMats, Layout, Mat};
use checkpoint::Format;
use memory::{Reservation, Tier};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What was counted, shared by a [`Profiled`] device and whoever asks. Clones see the same counts.
#[derive(Clone, Debug, Default)]
pub struct Profile(Arc<Mutex<Counts>>);

#[derive(Debug, Default)]
struct Counts {
    /// Role of the rows under way; nothing is counted outside steps.
    class: Option<RowClass>,
    entries: Vec<Entry>,
}

/// What one kind of op cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Name of the op, or `"write"` and `"read"` for copies to and from the device.
    pub op: &'static str,
    /// Role of the rows of the steps it was part of.
    pub class: RowClass,
    /// Calls.
    pub calls: u64,
    /// Their time.
    pub time: Duration,
    /// Bytes of weights and recurrent states that the calls had to read or write, of those that tell.
    pub bytes: u64,
    /// Time of the calls that tell.
    pub told: Duration,
}

impl Entry {
    /// 10^9 bytes a second, where bytes are known.
    pub fn gbps(&self) -> Option<f64> {
        (self.bytes > 0 && !self.told.is_zero()).then(|| self.bytes as f64 / self.told.as_secs_f64() / 1e9)
    }
}

impl Profile {
    /// What was counted since the last call, by falling time, and starts from zero.
    pub fn take(&self) -> Vec<Entry> {
        let mut all = std::mem::take(&mut self.counts().entries);
        all.sort_by_key(|e| std::cmp::Reverse(e.time));
        all
    }
    fn counts(&self) -> MutexGuard<'_, Counts> {
        // Counts are whole after a panic of somebody else.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn add(&self, op: &'static str, time: Duration, bytes: Option<u64>) {
        let mut counts = self.counts();
        let Some(class) = counts.class else { return };
        let at = counts.entries.iter().position(|e| e.op == op && e.class == class).unwrap_or_else(|| {
            counts.entries.push(Entry { op, class, calls: 0, time: Duration::ZERO, bytes: 0, told: Duration::ZERO });
            counts.entries.len() - 1
        });
        let e = &mut counts.entries[at];
        e.calls += 1;
        e.time += time;
        if let Some(bytes) = bytes {
            e.bytes += bytes;
            e.told += time;
        }
    }
}

/// A device that counts into a [`Profile`] what another one does.
pub struct Profiled<D> {
    dev: D,
    profile: Profile,
    /// Ops that a queue has not passed yet: name, bytes, and the points around each.
    queued: Vec<(&'static str, Option<u64>, Mark, Mark)>,
}

impl<D: Device> Profiled<D> {
    /// Around `dev`.
    pub fn new(dev: D, profile: Profile) -> Self {
        Profiled { dev, profile, queued: Vec::new() }
    }
}

/// Every method goes to the device inside, those with a default too.
impl<D: Device> Device for Profiled<D> {
    fn caps(&self) -> &Caps {
        self.dev.caps()
    }
    fn scratch_fn(&self) -> ScratchFn {
        self.dev.scratch_fn()
    }
    fn arena(&mut self) -> &mut Arena {
        self.dev.arena()
    }
    fn layout_of(&self, f: &Format) -> Layout {
        self.dev.layout_of(f)
    }
    fn memory(&self) -> Option<crate::cuda::CardMemory> {
        self.dev.memory()
    }
    fn tier(&self) -> Tier {
        self.dev.tier()
    }
    fn alloc(&mut self, r: Reservation) -> Result<Buf> {
        self.dev.alloc(r)
    }
    fn free(&mut self, b: Buf) -> Result<Reservation> {
        self.dev.free(b)
    }
    fn reserve_range(&mut self, bytes: u64) -> Result<Buf> {
        self.dev.reserve_range(bytes)
    }
    fn commit_range(&mut self, part: Buf, r: Reservation) -> Result<()> {
        self.dev.commit_range(part, r)
    }
    fn release_range(&mut self, part: Buf) -> Result<Reservation> {
        self.dev.release_range(part)
    }
    fn free_range(&mut self, b: Buf) -> Result<()> {
        self.dev.free_range(b)
    }
    fn borrow(&mut self, bytes: &'static [u8]) -> Option<Buf> {
        self.dev.borrow(bytes)
    }
    fn release_workspace(&mut self, r: Region, from: u64) -> Result<()> {
        self.dev.release_workspace(r, from)
    }
    fn share(&mut self, b: Buf) -> Option<SharedBytes> {
        self.dev.share(b)
    }
    fn host_mut(&mut self, b: Buf) -> Option<&mut [u8]> {
        self.dev.host_mut(b)
    }
    fn write(&mut self, dst: Buf, src: &[u8]) -> Result<Fence> {
        let begun = Instant::now();
        let done = self.dev.write(dst, src);
        self.profile.add("write", begun.elapsed(), None);
        done
    }
    fn load_rows(&mut self, dst: &Mat, first: u64, rows: u64, src: &[u8]) -> Result<Fence> {
        let begun = Instant::now();
        let done = self.dev.load_rows(dst, first, rows, src);
        self.profile.add("load", begun.elapsed(), None);
        done
    }
    fn arrange(&mut self, m: &Mat) -> Result<Layout> {
        self.dev.arrange(m)
    }
    fn read(&mut self, src: Buf, dst: &mut [u8]) -> Result<()> {
        let begun = Instant::now();
        let done = self.dev.read(src, dst);
        // Where ops were queued, most of this was waiting for them.
        let mut waited = Duration::ZERO;
        for (op, bytes, from, to) in std::mem::take(&mut self.queued) {
            let time = self.dev.between(from, to).unwrap_or_default();
            self.profile.add(op, time, bytes);
            waited += time;
        }
        self.dev.forget_marks();
        self.profile.add("read", begun.elapsed().saturating_sub(waited), None);
        done
    }
    fn step_begins(&mut self, class: RowClass) {
        self.profile.counts().class = Some(class);
        self.dev.step_begins(class);
    }
    fn step_ends(&mut self) {
        self.profile.counts().class = None;
        self.dev.step_ends();
    }
    fn enqueue(&mut self, op: &Op, scratch: Buf) -> Result<()> {
        let begun = Instant::now();
        let from = self.dev.mark();
        let done = self.dev.enqueue(op, scratch);
        match from.zip(self.dev.mark()) {
            Some((from, to)) => self.queued.push((op.name(), bytes(op), from, to)),
            None => self.profile.add(op.name(), begun.elapsed(), bytes(op)),
        }
        done
    }
    fn mark(&mut self) -> Option<Mark> {
        self.dev.mark()
    }
    fn between(&mut self, from: Mark, to: Mark) -> Option<Duration> {
        self.dev.between(from, to)
    }
    fn forget_marks(&mut self) {
        self.dev.forget_marks();
    }
    fn graph_begin(&mut self, k: GraphKey) -> Result<GraphMode> {
        self.dev.graph_begin(k)
    }
    fn graph_end(&mut self) -> Result<()> {
        self.dev.graph_end()
    }
    fn graph_abandon(&mut self) -> Result<()> {
        self.dev.graph_abandon()
    }
    fn in_graph(&self) -> bool {
        self.dev.in_graph()
    }
}

/// Bytes of weights and recurrent states that an op moves, `None` where that depends on values the device holds (which
/// experts were chosen, how long a history is) or where they are only activations.
fn bytes(op: &Op) -> Option<u64> {
    match op {
        Op::Embed { table, ids, .. } => Some(mat_bytes(table)? / table.n.max(1) as u64 * ids.rows as u64),
        Op::Linear { w, .. } => mat(w),
        Op::ExpertGroup { dst, routed, e, pick, part, .. } => {
            let chosen = match pick {
                Pick::Experts(ids) => ids.len() as u64,
                // One row chooses k different ones.
                Pick::All if matches!(dst, Acc::Parts(p) if p.rows == 1) => routed.ids.cols as u64,
                Pick::All => return None,
            };
            Some(chosen * expert(e, *part)?)
        }
        // Once in and once out.
        Op::GatedDelta { st, rows, .. } => Some(2 * rows.seqs as u64 * st.state_elems as u64 * 4),
        _ => None,
    }
}

fn mat(m: &Mat) -> Option<u64> {
    mat_bytes(m)
}

fn expert(e: &ExpertMats, part: Part) -> Option<u64> {
    let gate_up = mat(&e.gate.first)? + mat(&e.up.first)?;
    let down = mat(&e.down.first)?;
    Some(match part {
        Part::GateUp => gate_up,
        Part::Down => down,
        Part::Both => gate_up + down,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Act, Reference, View};
    use checkpoint::DType;
    use memory::{Class, Ledger, RegionSizes};

    fn linear(dev: &mut dyn Device, w: Buf, class: RowClass) -> Result<()> {
        dev.scope(Region::Step, |dev| {
            let x = dev.take(Region::Step, Act::F32, 2, 8)?;
            let out = dev.take(Region::Step, Act::F32, 2, 4)?;
            dev.write(x.buf, &[0; 64])?;
            let fmt = Format::Plain(DType::F32);
            let w = Mat { n: 4, k: 8, fmt, layout: Layout::File, row_step: 1, planes: [Some(w), None, None, None] };
            dev.run(Op::Linear { out, x, w, bias: None, add: false, class })?;
            dev.run(Op::Add { x: out, y: View { ..x.cols(0, 4) } })?;
            dev.read_f32(out).map(drop)
        })
    }

    #[test]
    fn calls_bytes_and_time_are_kept_by_name_and_role() {
        let ledger = Ledger::new(&[(Tier::Host, 1 << 20)]);
        let profile = Profile::default();
        let mut dev = Profiled::new(Reference::new(RegionSizes { step: 4096, carry: 0 }).unwrap(), profile.clone());
        let w = dev.alloc(ledger.reserve(Tier::Host, Class::Weights, "w", 128).unwrap()).unwrap();
        dev.write(w, &[0; 128]).unwrap();
        assert_eq!(profile.take(), [], "loading is no step");
        let begun = Instant::now();
        for class in [RowClass::Many, RowClass::Few, RowClass::Few] {
            dev.step_begins(class);
            linear(&mut dev, w, class).unwrap();
            dev.step_ends();
            dev.write(w, &[0; 128]).unwrap();
        }
        let all = begun.elapsed();
        let got = profile.take();
        for (op, class, calls, bytes) in [
            ("linear", RowClass::Many, 1, 128),
            ("linear", RowClass::Few, 2, 256),
            ("add", RowClass::Few, 2, 0),
            ("write", RowClass::Few, 2, 0),
            ("read", RowClass::Many, 1, 0),
        ] {
            let e = got.iter().find(|e| e.op == op && e.class == class).unwrap();
            assert_eq!((e.calls, e.bytes), (calls, bytes), "{op}");
            assert_eq!(e.gbps().is_some(), bytes > 0, "{op}");
        }
        assert_eq!(got.len(), 8, "four kinds in two roles");
        assert!(got.windows(2).all(|w| w[0].time >= w[1].time));
        assert!(got.iter().map(|e| e.time).sum::<Duration>() <= all);
        assert_eq!(profile.take(), [], "taken is gone");
    }
}
