//! The slots, what is in them, and the reads under way: everything that outlives a visit.

use super::stats::{CacheStats, SharedStats};
use crate::error::{Error, Result};
use crate::experts::LayerExperts;
use crate::io::{self, Files, Finished, Job, RangeReader, ReadQueue, Urgency, Wanted};
use crate::record::{LayerRecords, Record};
use crate::sum::{CHANGED, Sum};
use checkpoint::{Checkpoint, PLANES};
use device::{BEGINS_ROW, Buf, Device, ExpertBias, ExpertMats, Glu, Layout, MatSet, SharedBytes, arranged};
use memory::experts::{Ahead, ExpertId, Guessed, Lookahead, Policy, PoolSize, Scope, SlotState};
use memory::{Class, Ledger, SlotId, SlotPool, Tier};
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// Makes the policy of a pool.
pub type MakePolicy<'a> = &'a dyn Fn(&PoolSize) -> (Scope, Box<dyn Policy>);

/// What a cache is made of.
pub struct CachedOptions<'a> {
    /// The checkpoint.
    pub ck: &'a Checkpoint,
    /// Its experts.
    pub records: Vec<LayerRecords>,
    /// Slots.
    pub pools: &'a [SlotPool],
    /// Which policy a pool has.
    pub policy: MakePolicy<'a>,
    /// Its files.
    pub files: Files,
    /// Who reads them.
    pub reader: Box<dyn RangeReader>,
    /// Whether every record is compared, whenever it is read again, with a sum made when it was read first.
    pub verify: bool,
    /// When it wants to be told what will probably be asked for.
    pub lookahead: Lookahead,
    /// Who pays.
    pub ledger: &'a Ledger,
}

struct Layer {
    pool: usize,
    records: Vec<Record>,
    mats: LayerExperts,
    begins: Buf,
    slot_of: Buf,
    /// Sums of records that were read before.
    sums: Vec<Option<u64>>,
    /// Whether each expert was found in its slot since it was read.
    found: Vec<bool>,
}

struct Pool {
    state: SlotState,
    memory: SharedBytes,
    slot_bytes: u64,
}

/// A record under way.
struct Loading {
    id: ExpertId,
    pool: usize,
    slot: SlotId,
    /// Runs that did not land yet: of the first half, and in all.
    left: [u32; 2],
    failed: Option<Error>,
    jobs: Vec<Job>,
}

pub(super) struct Store {
    layers: BTreeMap<u32, Layer>,
    pools: Vec<Pool>,
    files: Files,
    queue: ReadQueue,
    loading: HashMap<ExpertId, Loading>,
    /// Which record a job is for, and its run.
    jobs: HashMap<Job, (ExpertId, usize)>,
    next_job: u64,
    generation: u64,
    verify: bool,
    /// Whether it wants to be told what will probably be asked for.
    pub ahead: Ahead,
    /// Guesses that [`Self::ahead`] knows of.
    judged: [u64; 2],
    /// What was hinted at and not acted on yet: a layer and its experts.
    pub hint: Option<(u32, Vec<u32>)>,
    /// The last guess, to be compared with what is asked for.
    guess: Option<(u32, Vec<u32>)>,
    pub counts: CacheStats,
    pub stats: SharedStats,
    finished: Vec<Finished>,
}

impl Store {
    pub fn new(how: CachedOptions, dev: &mut dyn Device) -> Result<Self> {
        let CachedOptions { ck, records, pools: sizes, policy, files, reader, verify, lookahead, ledger } = how;
        let align = files.align();
        let most_layers = records.iter().map(|l| l.layer + 1).max().unwrap_or(0);
        let (mut pools, mut layers, mut counts) = (Vec::new(), BTreeMap::new(), CacheStats::default());
        let alloc = |dev: &mut dyn Device, who, bytes| -> Result<Buf> {
            Ok(dev.alloc(ledger.reserve_planned(Tier::Host, Class::Weights, who, bytes)?)?)
        };
        for size in sizes {
            let bytes = size.slot_bytes * u64::from(size.slots);
            let buf = alloc(dev, "slots of experts", bytes)?;
            let memory = dev.share(buf).ok_or(Error::NoSlots)?;
            let of_pool = || records.iter().filter(|l| size.layers.contains(&l.layer));
            let experts = of_pool().map(|l| l.experts).max().unwrap_or(0);
            let pool = PoolSize { layers: most_layers, experts, slots: size.slots, passing: size.passing };
            let (scope, policy) = policy(&pool);
            counts.slots += u64::from(size.slots);
            for l in of_pool() {
                let tables = alloc(dev, "tables of experts", crate::record::table_bytes(l))?;
                let layer = layer(ck, dev, l, pools.len(), align, (buf, tables), size)?;
                layers.insert(l.layer, layer);
            }
            pools.push(Pool { state: SlotState::new(pool, scope, policy), memory, slot_bytes: size.slot_bytes });
        }
        let queue = ReadQueue::new(reader, align);
        let (loading, jobs, stats) = (HashMap::new(), HashMap::new(), SharedStats::default());
        let store = Store {
            layers,
            pools,
            files,
            queue,
            loading,
            jobs,
            next_job: 0,
            generation: 0,
            verify,
            ahead: Ahead::new(lookahead),
            judged: [0; 2],
            hint: None,
            guess: None,
            counts,
            stats,
            finished: Vec::new(),
        };
        store.publish();
        Ok(store)
    }

    pub fn serves(&self, layer: u32) -> bool {
        self.layers.contains_key(&layer)
    }
    pub fn publish(&self) {
        let live = self.pools.iter().map(|p| u64::from(p.state.live())).sum();
        self.stats.set(CacheStats { read: self.queue.stats(), live, ..self.counts });
    }
    fn layer(&self, layer: u32) -> Result<&Layer> {
        self.layers.get(&layer).ok_or_else(|| Error::NotLoaded(format!("experts of layer {layer}")))
    }
    /// The slots of a layer.
    pub fn state(&mut self, layer: u32) -> Result<&mut SlotState> {
        let pool = self.layer(layer)?.pool;
        Ok(&mut self.pools[pool].state)
    }
    pub fn experts(&self, layer: u32) -> u32 {
        self.layers.get(&layer).map_or(0, |l| l.records.len() as u32)
    }
    pub fn record_bytes(&self, id: ExpertId) -> u64 {
        self.layers.get(&id.layer).and_then(|l| l.records.get(id.expert as usize)).map_or(0, |r| r.bytes)
    }
    /// The matrices of a layer.
    pub fn mats(&self, layer: u32, glu: Glu) -> Result<ExpertMats> {
        let l = self.layer(layer)?;
        let (slot_of, begins) = (Some(l.slot_of), Some(l.begins));
        let LayerExperts { gate, up, down, .. } = l.mats;
        Ok(ExpertMats { gate, up, down, slot_of, begins, bias: ExpertBias::default(), glu })
    }

    fn point(&self, d: &mut dyn Device, id: ExpertId, slot: Option<SlotId>) -> Result<()> {
        let Some(l) = self.layers.get(&id.layer) else { return Ok(()) };
        let at = l.slot_of.slice(u64::from(id.expert) * 4, 4).ok_or(device::Error::BadBuf)?;
        let slot = slot.map_or(-1, |s| s.0 as i32);
        d.write(at, &slot.to_le_bytes())?;
        Ok(())
    }
    /// Tells the device that these are gone.
    pub fn forget(&self, d: &mut dyn Device, gone: &[ExpertId]) -> Result<()> {
        gone.iter().try_for_each(|&id| self.point(d, id, None))
    }

    /// Starts reading an expert into its slot.
    pub fn fetch(&mut self, d: &mut dyn Device, id: ExpertId, slot: SlotId, urgency: Urgency) -> Result<()> {
        let layer = self.layers.get(&id.layer);
        let Some((l, r)) = layer.and_then(|l| Some((l, l.records.get(id.expert as usize)?))) else {
            return Err(Error::NotLoaded(format!("expert {} of layer {}", id.expert, id.layer)));
        };
        let pool = &self.pools[l.pool];
        let base = u64::from(slot.0) * pool.slot_bytes;
        let halves = [r.runs.iter().filter(|r| r.first_half).count() as u32, r.runs.len() as u32];
        let mut jobs = Vec::with_capacity(r.runs.len());
        for (i, run) in r.runs.iter().enumerate() {
            let job = Job(self.next_job);
            self.next_job += 1;
            let to = pool.memory.clone();
            let w = Wanted { file: run.from.file.0, off: run.from.off, len: run.from.len, to, at: base + run.at };
            self.queue.read(job, &w, urgency);
            self.jobs.insert(job, (id, i));
            jobs.push(job);
        }
        let loading = Loading { id, pool: l.pool, slot, left: halves, failed: None, jobs };
        self.loading.insert(id, loading);
        let found = self.layers.get_mut(&id.layer).and_then(|l| l.found.get_mut(id.expert as usize));
        if found.is_some_and(std::mem::take) {
            self.say_arranged(d, id, [Layout::File; 3])?;
        }
        self.point(d, id, Some(slot))
    }
    /// An expert was found in its slot. The first time it is interleaved there, as weights in memory are: that takes longer
    /// than it saves one token, so what is read for one alone stays as it lies in the file.
    pub fn found(&mut self, d: &mut dyn Device, id: ExpertId, slot: SlotId) -> Result<()> {
        let Some(l) = self.layers.get_mut(&id.layer) else { return Ok(()) };
        let (Some(found), Some(r)) = (l.found.get_mut(id.expert as usize), l.records.get(id.expert as usize)) else {
            return Ok(());
        };
        if std::mem::replace(found, true) {
            return Ok(());
        }
        let mut layouts = [Layout::File; 3];
        for ((set, begin), layout) in [l.mats.gate, l.mats.up, l.mats.down].iter().zip(r.begins).zip(&mut layouts) {
            // What stays when the slot is given away must stay as it is.
            let in_slot = set.first.planes.iter().zip(set.step).all(|(p, step)| p.is_none() || step > 0);
            if let Some(m) = set.placed(slot.0, (begin, false)).filter(|_| in_slot) {
                *layout = d.arrange(&m)?;
            }
        }
        self.say_arranged(d, id, layouts)
    }
    fn say_arranged(&self, d: &mut dyn Device, id: ExpertId, mats: [Layout; 3]) -> Result<()> {
        let Some(l) = self.layers.get(&id.layer) else { return Ok(()) };
        let at = u64::from(id.expert + 1) * BEGINS_ROW - 4;
        d.write(l.begins.slice(at, 4).ok_or(device::Error::BadBuf)?, &arranged(mats).to_le_bytes())?;
        Ok(())
    }
    /// Somebody waits for what was only expected.
    pub fn hurry(&mut self, id: ExpertId) {
        if let Some(l) = self.loading.get(&id) {
            l.jobs.iter().for_each(|&j| self.queue.hurry(j));
        }
    }
    /// Whether gate and up of an expert are there, and all of it.
    pub fn halves(&self, id: ExpertId) -> [bool; 2] {
        self.loading.get(&id).map_or([true; 2], |l| l.left.map(|n| n == 0))
    }
    /// Reads under way.
    pub fn reads(&self) -> usize {
        self.loading.len()
    }

    /// Collects what landed. The errors of records that failed, by expert.
    pub fn poll(&mut self, d: &mut dyn Device, wait: bool) -> Result<Vec<(ExpertId, Error)>> {
        let mut finished = std::mem::take(&mut self.finished);
        let polled = self.queue.poll(wait, &mut finished);
        let mut failed = Vec::new();
        for f in finished.drain(..) {
            self.landed(d, f, &mut failed)?;
        }
        self.finished = finished;
        polled.map_err(|e| Error::Reader { reader: self.queue.reader(), why: e.to_string() })?;
        Ok(failed)
    }

    fn landed(&mut self, d: &mut dyn Device, f: Finished, failed: &mut Vec<(ExpertId, Error)>) -> Result<()> {
        let Some((id, run)) = self.jobs.remove(&f.job) else { return Ok(()) };
        let why = f.result.err().map(|e| self.why(id, run, &e));
        let first_half = self.layer(id.layer)?.records[id.expert as usize].runs[run].first_half;
        let Some(l) = self.loading.get_mut(&id) else { return Ok(()) };
        if l.failed.is_none() {
            l.failed = why;
        }
        l.left[1] -= 1;
        if first_half && l.failed.is_none() {
            l.left[0] -= 1;
        }
        if l.left[1] > 0 {
            return Ok(());
        }
        let Some(mut l) = self.loading.remove(&id) else { return Ok(()) };
        if l.failed.is_none() && self.verify {
            l.failed = self.verify(&l)?;
        }
        let state = &mut self.pools[l.pool].state;
        match l.failed {
            None => state.arrived(l.slot),
            Some(e) => {
                state.failed(l.slot);
                self.point(d, id, None)?;
                failed.push((id, e));
            }
        }
        Ok(())
    }

    fn why(&self, id: ExpertId, run: usize, e: &std::io::Error) -> Error {
        let from = self.layers.get(&id.layer).map(|l| l.records[id.expert as usize].runs[run].from);
        let (file, off) = from.map_or((0, 0), |r| (r.file.0, r.off));
        Error::Read { file: self.files.name(file), off, layer: id.layer, expert: id.expert, why: io::why(e) }
    }

    /// Compares a record with what it was when it was read first.
    fn verify(&mut self, of: &Loading) -> Result<Option<Error>> {
        let pool = &self.pools[of.pool];
        let Some(l) = self.layers.get_mut(&of.id.layer) else { return Ok(None) };
        let r = &l.records[of.id.expert as usize];
        let base = u64::from(of.slot.0) * pool.slot_bytes;
        let align = self.files.align();
        let mut sum = Sum::default();
        for run in &r.runs {
            let at = base + run.at + run.from.off % align;
            let address = pool.memory.address(at, run.from.len).ok_or(device::Error::BadBuf)?;
            // SAFETY: the run's bytes inside its slot, which nobody writes: all reads of the record have landed.
            sum.add(unsafe { std::slice::from_raw_parts(address, run.from.len as usize) });
        }
        let (first, from) = (&mut l.sums[of.id.expert as usize], r.runs.first().map(|r| r.from));
        if *first.get_or_insert(sum.get()) == sum.get() {
            return Ok(None);
        }
        let (file, off) = from.map_or((0, 0), |r| (r.file.0, r.off));
        let ExpertId { layer, expert } = of.id;
        Ok(Some(Error::Read { file: self.files.name(file), off, layer, expert, why: CHANGED.into() }))
    }

    /// Reads what was hinted at, as far as there is room that nobody needs. An earlier guess is given up.
    pub fn foresee(&mut self, d: &mut dyn Device) -> Result<()> {
        let Some((layer, ids)) = self.hint.take().filter(|h| self.serves(h.0)) else { return Ok(()) };
        self.queue.cancel(self.generation);
        self.generation += 1;
        let plan = self.state(layer)?.foresee(layer, &ids);
        self.forget(d, &plan.evict)?;
        let urgency = Urgency::Ahead { generation: self.generation };
        for (expert, slot) in plan.fetch {
            self.fetch(d, ExpertId { layer, expert }, slot, urgency)?;
        }
        self.guess = Some((layer, ids));
        Ok(())
    }
    /// Begins to read a layer that a prompt sweeps through next. That is no guess, so nobody asks how good it was.
    pub fn ahead(&mut self, d: &mut dyn Device, layer: u32) -> Result<()> {
        self.hint = Some((layer, (0..self.experts(layer)).collect()));
        let done = self.foresee(d);
        self.guess = None;
        done
    }
    /// Tells what decides about looking ahead how long a token took, and how good the guesses were since the one before.
    pub fn token(&mut self, took: Duration) {
        let [asked, named] = self.counts.guessed;
        let of = Guessed { asked: asked - self.judged[0], named: named - self.judged[1] };
        self.judged = self.counts.guessed;
        self.ahead.token(took, of);
    }
    /// Compares the last guess with what is asked for.
    pub fn check_guess(&mut self, layer: u32, ids: &[u32]) {
        let Some((_, guess)) = self.guess.take_if(|g| g.0 == layer) else { return };
        self.counts.guessed[0] += ids.len() as u64;
        self.counts.guessed[1] += ids.iter().filter(|id| guess.contains(id)).count() as u64;
    }
}

/// The tables of a layer, and its matrices over the slots of its pool.
fn layer(
    ck: &Checkpoint,
    dev: &mut dyn Device,
    l: &LayerRecords,
    pool: usize,
    align: u64,
    (slots, tables): (Buf, Buf),
    size: &SlotPool,
) -> Result<Layer> {
    let unusable =
        |proj: usize, what: &str| Error::Unusable { tensor: l.bound(proj).name.to_string(), what: what.to_string() };
    let records = (0..l.experts).map(|e| l.record(e, align)).collect::<Option<Vec<_>>>();
    let records = records.ok_or_else(|| unusable(0, "an expert of it is not in the file"))?;
    if records.iter().any(|r| r.slot_bytes > size.slot_bytes) {
        return Err(unusable(0, "an expert of it is larger than its slot"));
    }
    let mut cut = Cut { rest: tables };
    let slot_of = cut.take(u64::from(l.experts) * 4)?;
    dev.write(slot_of, &vec![0xFF; l.experts as usize * 4])?;
    let begins = cut.take(u64::from(l.experts) * BEGINS_ROW)?;
    let mut table = Vec::with_capacity(begins.bytes() as usize);
    for r in &records {
        for at in r.begins.as_flattened() {
            let at = i32::try_from(*at).map_err(|_| unusable(0, "its experts are larger than 2 GiB"))?;
            table.extend(at.to_le_bytes());
        }
        table.extend(arranged([Layout::File; 3]).to_le_bytes());
    }
    dev.write(begins, &table)?;
    let mut sets = [None; 3];
    for (proj, set) in sets.iter_mut().enumerate() {
        let mut first = l.mat(proj);
        let mut step = [0; PLANES];
        for plane in (0..PLANES).filter(|&p| l.has(proj, p)) {
            if !l.is_resident(proj, plane) {
                (first.planes[plane], step[plane]) = (Some(slots), size.slot_bytes);
                continue;
            }
            let ranges = (0..l.experts).map(|e| l.range(proj, plane, e)).collect::<Option<Vec<_>>>();
            let mut bytes = Vec::new();
            for r in ranges.unwrap_or_default() {
                let from = bytes.len();
                bytes.resize(from + r.len as usize, 0);
                ck.read_at(r, &mut bytes[from..])?;
            }
            let buf = cut.take(bytes.len() as u64)?;
            dev.write(buf, &bytes)?;
            first.planes[plane] = Some(buf);
        }
        *set = Some(MatSet { first, step, slots: size.slots });
    }
    let [Some(gate), Some(up), Some(down)] = sets else { return Err(unusable(0, "a matrix is missing")) };
    let mats = LayerExperts { gate, up, down, slot_of: Some(slot_of) };
    let (sums, found) = (vec![None; l.experts as usize], vec![false; l.experts as usize]);
    Ok(Layer { pool, records, mats, begins, slot_of, sums, found })
}

/// A buffer that is cut from the front.
struct Cut {
    rest: Buf,
}

impl Cut {
    fn take(&mut self, bytes: u64) -> Result<Buf> {
        let (all, none) = (self.rest.bytes(), device::Error::BadBuf);
        let Some(first) = self.rest.slice(0, bytes) else { return Err(none.into()) };
        self.rest = self.rest.slice(bytes, all - bytes).ok_or(none)?;
        Ok(first)
    }
}
