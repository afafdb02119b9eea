//! Bringing bound parameters into a device's memory.

use crate::bound::{Bound, Data, Proj, Role, WId};
use crate::error::{Error, Result};
use crate::experts::{ExpertSource, LayerExperts, ResidentExperts};
use crate::fill::{Fill, STAGING, To, fill};
use crate::placed::{row_bytes, stored_rows};
use crate::window::Window;
use checkpoint::{ByteRange, Checkpoint, Files, PLANES};
use device::{Buf, Device, Layout, Mat, MatSet, Meter, View, split};
use memory::{Class, Ledger, OverBudget, Reservation, Tier};
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

pub(crate) enum Slot {
    Mat(Mat),
    Vec(Buf),
    Experts,
}

/// Parameters that are in memory now.
pub struct Resident {
    pub(crate) slots: HashMap<WId, Slot>,
    names: HashMap<WId, Arc<str>>,
    /// The table of which only some rows are here, and where the places of those of a step stand.
    window: Option<(WId, View)>,
}

impl Resident {
    pub(crate) fn named(&mut self, bounds: &[Bound]) {
        self.names.extend(bounds.iter().map(|b| (b.id, b.name.clone())));
    }
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
    /// A table and where to look up `ids` `i32[n, 1]` in it. Of one that stays in its file only the rows are there that were
    /// brought for these very ids, and what is looked up is their places.
    ///
    /// # Errors
    /// [`Error::NotLoaded`].
    pub fn table(&self, w: WId, ids: View) -> Result<(Mat, View)> {
        let places = self.window.filter(|(table, _)| *table == w).map(|(_, places)| places.rows(0, ids.rows));
        Ok((*self.mat(w)?, places.unwrap_or(ids)))
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
    /// Whether the model has a parameter: in memory now, or on a [`Lease`](crate::Lease) that was seen.
    pub fn has(&self, w: WId) -> bool {
        self.slots.contains_key(&w) || self.names.contains_key(&w)
    }
}

/// All parameters of a model, and where its routed experts come from.
pub struct Weights {
    pub(crate) resident: Resident,
    pub(crate) experts: ResidentExperts,
    /// What pays for bytes that are used where they lie in the program.
    _borrowed: Vec<Reservation>,
}

/// What was brought, to give it back.
#[derive(Default)]
pub(crate) struct Brought {
    pub allocs: Vec<Buf>,
    /// What pays for bytes that are used where they lie in the program.
    pub borrowed: Vec<Reservation>,
}

impl Weights {
    /// Reads every bound parameter that `wanted` says is wanted. Host memory is filled in place, bytes
    /// that live in the program are used where they are.
    ///
    /// # Errors
    /// The file's, the device's, the ledger's; each names what it is about.
    pub fn open(
        ck: &Checkpoint,
        bounds: &[Bound],
        wanted: impl Fn(&Bound) -> bool,
        ledger: &Ledger,
        dev: &mut dyn Device,
        on_progress: &mut dyn FnMut(Progress),
    ) -> Result<Self> {
        let bounds: Vec<&Bound> = bounds.iter().filter(|b| wanted(b)).collect();
        let mut brought = Brought::default();
        let reserve = Ledger::reserve_planned;
        let placed = Self::bring(&ck.stored(), &bounds, (ledger, reserve), dev, &mut brought, on_progress)?;
        Ok(Weights { _borrowed: brought.borrowed, ..placed })
    }

    /// Reads parameters. What was allocated is in `brought`, also where something failed.
    pub(crate) fn bring(
        files: &Files,
        bounds: &[&Bound],
        (ledger, reserve): (&Ledger, Reserve),
        dev: &mut dyn Device,
        brought: &mut Brought,
        on_progress: &mut dyn FnMut(Progress),
    ) -> Result<Self> {
        let total = bounds.iter().map(|b| b.loaded_bytes()).sum();
        let tier = dev.tier();
        let (whole, arranged, later) = (HashMap::new(), HashMap::new(), Vec::new());
        let mut loader = Loader { files, ledger, reserve, dev, tier, whole, arranged, brought, later };
        let mut progress = Progress { done: 0, total };
        let placed = Self::place(bounds, |b| {
            on_progress(progress);
            let waiting = loader.waiting();
            let planes = loader.bring(b).and_then(|p| loader.arrange(b, bounds, p));
            // What only has its place now is counted when it arrives.
            progress.done += if loader.waiting() == waiting { b.loaded_bytes() } else { 0 };
            on_progress(progress);
            planes
        })?;
        let Loader { later, .. } = loader;
        if !later.is_empty() {
            let _paid = reserve(ledger, Tier::Host, Class::Workspace, "staging", STAGING)?;
            fill(files, dev, &later, &mut |bytes| {
                progress.done = (progress.done + bytes).min(total);
                on_progress(progress);
            })?;
        }
        Ok(placed)
    }

    /// The same parameters before anything is read: handles to bytes nobody holds, for dry runs.
    ///
    /// # Errors
    /// [`Error::Unusable`] as [`open`](Self::open) would.
    pub fn imagine(bounds: &[Bound], meter: &mut Meter) -> Result<Self> {
        let bounds: Vec<&Bound> = bounds.iter().collect();
        Self::place(&bounds, |b| {
            if b.role == Role::Vector {
                return Ok(Planes::one(meter.imagine(b.loaded_bytes())));
            }
            let count = if let Role::Experts { count, .. } = b.role { count as u64 } else { 1 };
            // Rows in turn with those of another matrix reach as far as both.
            let reach = b.side.as_ref().map_or(1, |s| s.row_step as u64);
            let mut planes = Planes::default();
            for i in (0..PLANES).filter(|&i| b.plane(i).is_some()) {
                let bytes = b.plane_bytes(i) * reach;
                planes.step[i] = if count > 1 { bytes } else { 0 };
                planes.bufs[i] = Some(meter.imagine(bytes * count));
            }
            Ok(planes)
        })
    }

    /// `bring` gives a parameter's bytes.
    fn place(bounds: &[&Bound], mut bring: impl FnMut(&Bound) -> Result<Planes>) -> Result<Self> {
        let names = bounds.iter().map(|b| (b.id, b.name.clone())).collect();
        let mut resident = Resident { slots: HashMap::new(), names, window: None };
        let mut sets: BTreeMap<u32, Vec<(Proj, MatSet)>> = BTreeMap::new();
        for b in bounds {
            let Planes { bufs, step, layout } = bring(b)?;
            let first = Mat { layout, ..mat(b, bufs) };
            let slot = match (b.role, bufs[0]) {
                (_, None) => return Err(unusable(b, "it has no bytes")),
                (Role::Matrix, _) => Slot::Mat(first),
                (Role::Vector, Some(buf)) => Slot::Vec(buf),
                (Role::Experts { layer, proj, count }, _) => {
                    let set = MatSet { first, step, slots: count };
                    sets.entry(layer).or_default().push((proj, set));
                    Slot::Experts
                }
            };
            resident.slots.insert(b.id, slot);
        }
        let layers = sets.into_iter().filter_map(|(l, s)| Some((l, assemble(&s)?))).collect();
        Ok(Weights { resident, experts: ResidentExperts { layers }, _borrowed: Vec::new() })
    }

    /// Makes matrices known that somebody else brings to where they are.
    pub fn install(&mut self, mats: impl IntoIterator<Item = (WId, Mat)>) {
        self.resident.slots.extend(mats.into_iter().map(|(id, m)| (id, Slot::Mat(m))));
    }
    /// Makes the places of a table's rows known, in place of the table.
    pub fn install_window(&mut self, table: WId, w: &Window) {
        self.install([(table, w.mat())]);
        self.resident.window = Some((table, w.ids()));
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

/// Where the planes of a parameter are: of the first expert's matrix, with the steps from expert to expert.
struct Planes {
    bufs: [Option<Buf>; PLANES],
    step: [u64; PLANES],
    layout: Layout,
}

impl Default for Planes {
    fn default() -> Self {
        Planes { bufs: [None; PLANES], step: [0; PLANES], layout: Layout::File }
    }
}

impl Planes {
    fn one(buf: Buf) -> Self {
        Planes { bufs: [Some(buf), None, None, None], ..Planes::default() }
    }
}

fn mat(b: &Bound, planes: [Option<Buf>; PLANES]) -> Mat {
    let row_step = b.side.as_ref().map_or(1, |s| s.row_step);
    Mat { n: b.n, k: b.k, fmt: b.format(), layout: Layout::File, row_step, planes }
}

fn assemble(sets: &[(Proj, MatSet)]) -> Option<LayerExperts> {
    let find = |p: Proj| sets.iter().find(|(q, _)| *q == p).map(|(_, s)| *s);
    Some(LayerExperts { gate: find(Proj::Gate)?, up: find(Proj::Up)?, down: find(Proj::Down)?, slot_of: None })
}

fn unusable(b: &Bound, what: &str) -> Error {
    Error::Unusable { tensor: b.name.to_string(), what: what.into() }
}

/// Bytes of a transposed tensor that are looked at together.
const STRIP: usize = 1 << 20;

/// Writes columns `first`, `first + of`, ... of `rows` (of `stored` bytes each, elements of `size`) as the beginnings of
/// rows `pitch` bytes apart.
fn turn(rows: &[u8], stored: usize, to: &mut [u8], pitch: usize, [first, of, size]: [usize; 3]) {
    for (column, row) in (first..stored / size).step_by(of).zip(to.chunks_mut(pitch)) {
        for (from, out) in rows.chunks_exact(stored).zip(row.chunks_exact_mut(size)) {
            out.copy_from_slice(&from[column * size..(column + 1) * size]);
        }
    }
}

/// How weights are paid for.
pub(crate) type Reserve = fn(&Ledger, Tier, Class, &'static str, u64) -> Result<Reservation, OverBudget>;

struct Loader<'a> {
    files: &'a Files,
    ledger: &'a Ledger,
    reserve: Reserve,
    dev: &'a mut dyn Device,
    /// Whose memory is filled.
    tier: Tier,
    /// Tensors that hold more than one parameter (fused gate and up) are brought once.
    whole: HashMap<ByteRange, Buf>,
    /// Parts of such tensors that are in the device's order, by where they begin.
    arranged: HashMap<(ByteRange, u64), Layout>,
    brought: &'a mut Brought,
    /// What has its place on a device that is not the host, and is read once everything has.
    later: Vec<Fill>,
}

/// The bytes of a tensor that one plane of a parameter is: those of its first matrix, and the step to the next.
#[derive(Copy, Clone, PartialEq, Eq)]
struct Stretch {
    range: ByteRange,
    first: u64,
    bytes: u64,
    step: u64,
}

impl Stretch {
    /// Of plane `i`; `None` for one that is read into memory of its own.
    fn of(b: &Bound, i: usize) -> Option<Self> {
        match b.plane(i) {
            // Vectors are read from the file again.
            Some(Data::Whole { range, first, step }) if b.role != Role::Vector => {
                Some(Stretch { range: *range, first: *first, bytes: b.plane_bytes(i), step: *step })
            }
            _ => None,
        }
    }
    /// Whether no byte is in both. Matrices that take turns in a stack are apart inside a step.
    fn apart(&self, o: &Stretch) -> bool {
        let (end, other) = (self.first + self.bytes, o.first + o.bytes);
        let turns = self.step == o.step && (self.step == 0 || end.max(other) <= self.step);
        self.range != o.range || (turns && (other <= self.first || end <= o.first))
    }
}

/// Whether nothing but the very same matrix is seen in the bytes of `b`, which may then be put into another order. `all` are
/// the parameters that are brought.
fn alone(b: &Bound, all: &[&Bound]) -> bool {
    let planes = |b: &Bound| (0..PLANES).filter_map(|i| Some((i, Stretch::of(b, i)?))).collect::<Vec<_>>();
    let own = planes(b);
    let same = |o: &Bound, i: usize, s: &Stretch| {
        Stretch::of(o, i) == Some(*s) && (o.n, o.k, o.format()) == (b.n, b.k, b.format())
    };
    all.iter().all(|o| {
        planes(o).iter().all(|(j, s)| own.iter().all(|(i, mine)| mine.apart(s) || (i == j && same(o, *i, mine))))
    })
}

impl Loader<'_> {
    fn waiting(&self) -> usize {
        self.later.len()
    }

    fn bring(&mut self, b: &Bound) -> Result<Planes> {
        if b.role == Role::Vector {
            return Ok(Planes::one(self.vector(b)?));
        }
        if self.dev.layout_of(&b.format()) == Layout::Split {
            return self.split(b);
        }
        let mut planes = Planes::default();
        for i in 0..PLANES {
            if let Some(data) = b.plane(i) {
                let (buf, step) = self.plane(b, data, b.plane_bytes(i))?;
                (planes.bufs[i], planes.step[i]) = (Some(buf), step);
            }
        }
        Ok(planes)
    }

    /// Lets the device put a matrix, or those of all experts, into the order that it reads fastest.
    fn arrange(&mut self, b: &Bound, all: &[&Bound], p: Planes) -> Result<Planes> {
        let count = match b.role {
            Role::Vector => return Ok(p),
            Role::Matrix => 1,
            Role::Experts { count, .. } => count,
        };
        // What was repacked on its way has its order already.
        if p.layout != Layout::File || !alone(b, all) {
            return Ok(p);
        }
        let key = if let Data::Whole { range, first, .. } = &b.data { Some((*range, *first)) } else { None };
        if let Some(layout) = key.and_then(|k| self.arranged.get(&k).copied()) {
            return Ok(Planes { layout, ..p });
        }
        let set = MatSet { first: mat(b, p.bufs), step: p.step, slots: count };
        let mut layout = set.first.layout;
        for m in (0..count).filter_map(|s| set.slot(s)) {
            layout = self.dev.arrange(&m)?;
        }
        if let Some(key) = key {
            self.arranged.insert(key, layout);
        }
        Ok(Planes { layout, ..p })
    }

    /// One plane of a parameter, of whose matrices each has `bytes` in it: the buffer and the step between experts.
    fn plane(&mut self, b: &Bound, data: &Data, bytes: u64) -> Result<(Buf, u64)> {
        match data {
            Data::Whole { range, first, step } => {
                let buf = self.range(*range)?;
                let rest = buf.bytes().saturating_sub(*first);
                let at = buf.slice(*first, rest).ok_or_else(|| unusable(b, "it begins behind its tensor"))?;
                Ok((at, *step))
            }
            Data::Each(ranges) => Ok((self.stack(ranges)?, bytes)),
            Data::Turned { range, first, of } => Ok((self.turned(b, *range, *first, *of)?, bytes)),
            Data::Values(_) => Err(unusable(b, "only vectors have computed values")),
        }
    }

    /// A parameter in the split layout: rows of the allocation that its whole tensor has.
    fn split(&mut self, b: &Bound) -> Result<Planes> {
        let fmt = b.format();
        let each = split::row_parts(&fmt, b.k).ok_or_else(|| unusable(b, "its rows are no whole blocks"))?;
        let (row, rows) = (row_bytes(b), stored_rows(b, &b.data));
        let (all, first, step) = match &b.data {
            Data::Whole { range, first, step } => (self.split_whole(b, *range, rows)?, *first, *step),
            Data::Each(ranges) => (self.split_parts(b, ranges, rows)?, 0, b.n as u64 * row),
            _ => return Err(unusable(b, "blocks cannot be turned or computed")),
        };
        if !first.is_multiple_of(row) || !step.is_multiple_of(row) || first.checked_div(row).is_none_or(|f| f >= rows) {
            return Err(unusable(b, "it does not begin at a row"));
        }
        let whole = split::mat(fmt, b.n, b.k, rows, all)?;
        let mut planes = Planes { layout: Layout::Split, ..Planes::default() };
        for (i, each) in each.into_iter().enumerate().filter(|(_, each)| *each > 0) {
            let from = first / row * each;
            let plane = whole.planes[i].ok_or(device::Error::BadBuf)?;
            planes.bufs[i] = Some(plane.slice(from, plane.bytes() - from).ok_or(device::Error::BadBuf)?);
            planes.step[i] = step / row * each;
        }
        Ok(planes)
    }

    fn split_room(&mut self, b: &Bound, rows: u64) -> Result<(Buf, Mat)> {
        let fmt = b.format();
        let (_, bytes) = split::place(&fmt, rows, b.k).ok_or_else(|| unusable(b, "its rows are no whole blocks"))?;
        let all = self.alloc(bytes)?;
        Ok((all, split::mat(fmt, b.n, b.k, rows, all)?))
    }

    fn split_whole(&mut self, b: &Bound, range: ByteRange, rows: u64) -> Result<Buf> {
        if let Some(all) = self.whole.get(&range) {
            return Ok(*all);
        }
        let (all, mat) = self.split_room(b, rows)?;
        self.later.push(Fill { to: To::Rows { mat, first: 0, row: row_bytes(b) }, range });
        self.whole.insert(range, all);
        Ok(all)
    }

    fn split_parts(&mut self, b: &Bound, ranges: &[ByteRange], rows: u64) -> Result<Buf> {
        let (all, mat) = self.split_room(b, rows)?;
        let (row, mut first) = (row_bytes(b), 0);
        for &range in ranges {
            self.later.push(Fill { to: To::Rows { mat, first, row }, range });
            first += range.len / row;
        }
        Ok(all)
    }

    fn pay(&self, bytes: u64) -> Result<Reservation> {
        Ok((self.reserve)(self.ledger, self.tier, Class::Weights, "weights", bytes)?)
    }

    fn alloc(&mut self, bytes: u64) -> Result<Buf> {
        let paid = self.pay(bytes)?;
        let buf = self.dev.alloc(paid)?;
        self.brought.allocs.push(buf);
        Ok(buf)
    }

    fn range(&mut self, r: ByteRange) -> Result<Buf> {
        if let Some(b) = self.whole.get(&r) {
            return Ok(*b);
        }
        let borrowed = self.files.embedded(r).and_then(|bytes| self.dev.borrow(bytes));
        let buf = match borrowed {
            Some(b) => {
                let paid = self.pay(r.len)?;
                self.brought.borrowed.push(paid);
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

    /// Reads a range to where it must be: straight into host memory, later where it is not the host's.
    fn fill(&mut self, to: Buf, range: ByteRange) -> Result<()> {
        if let Some(host) = self.dev.host_mut(to) {
            return Ok(self.files.read_at(range, host)?);
        }
        self.later.push(Fill { to: To::Bytes(to), range });
        Ok(())
    }

    /// Reads transposed matrices a few rows at a time and writes their columns.
    fn turned(&mut self, b: &Bound, range: ByteRange, first: u32, of: u32) -> Result<Buf> {
        let size = b.dtype.row_bytes(1).map_err(|_| unusable(b, "blocks cannot be transposed"))? as usize;
        let (n, k) = (b.n as usize, b.k as usize);
        let stored = n * of as usize * size;
        let strip = (STRIP / stored.max(1)).clamp(1, k.max(1));
        let all = self.alloc(b.loaded_bytes())?;
        let mut rows = vec![0u8; strip * stored];
        let mut one = vec![0u8; n * k * size];
        for e in 0..b.loaded_bytes() / b.matrix_bytes().max(1) {
            for at in (0..k).step_by(strip) {
                let here = strip.min(k - at);
                let off = range.off + (e * k as u64 + at as u64) * stored as u64;
                let part = &mut rows[..here * stored];
                self.files.read_at(ByteRange { file: range.file, off, len: part.len() as u64 }, part)?;
                turn(part, stored, &mut one[at * size..], k * size, [first as usize, of as usize, size]);
            }
            let to = all.slice(e * b.matrix_bytes(), b.matrix_bytes()).ok_or(device::Error::BadBuf)?;
            self.dev.write(to, &one)?;
        }
        Ok(all)
    }

    fn vector(&mut self, b: &Bound) -> Result<Buf> {
        let mut values = match &b.data {
            Data::Values(v) => v.to_vec(),
            Data::Whole { range, .. } => {
                let mut bytes = vec![0u8; range.len as usize];
                self.files.read_at(*range, &mut bytes)?;
                let mut v = vec![0.0; b.n as usize * b.k as usize * b.canon.stored()];
                b.dtype.decode(&bytes, &mut v)?;
                v
            }
            Data::Each(_) | Data::Turned { .. } => return Err(unusable(b, "a vector in pieces")),
        };
        b.canon.apply(&mut values);
        let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        let buf = self.alloc(bytes.len() as u64)?;
        self.dev.write(buf, &bytes)?;
        Ok(buf)
    }
}
