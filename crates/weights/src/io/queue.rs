//! Ranges in, finished ranges out: pieces, order, retries and figures, written once over any [`RangeReader`].

use super::{Outcome, Piece, RangeReader};
use device::SharedBytes;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::time::{Duration, Instant};

/// How ranges are cut, and how much is under way (`docs/experiments.md`, E60).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// Most bytes of a piece: small enough that one range keeps a disk busy, large enough that each costs little.
    pub piece: u64,
    /// Pieces under way.
    pub depth: usize,
    /// Of these, pieces of what is only expected: what demand may have to wait for.
    pub ahead: usize,
}

impl Default for Tuning {
    fn default() -> Self {
        Tuning { piece: 512 << 10, depth: 16, ahead: 8 }
    }
}

/// Reads without progress that are put up with, signals and busy devices included.
const PATIENCE: u32 = 1000;

/// A range's number, chosen by who wants it.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct Job(pub u64);

/// How much a range is wanted.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// Somebody waits for it.
    Demand,
    /// Somebody may, until its generation is [cancelled](ReadQueue::cancel).
    Ahead {
        /// What is cancelled together.
        generation: u64,
    },
}

/// A range and where it goes. The bytes between the alignment in front of `off` and behind its end are read too: byte
/// `off` lands at `at + off % align`.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Number of the file.
    pub file: u32,
    /// First byte.
    pub off: u64,
    /// Bytes.
    pub len: u64,
    /// Memory with room for the range and what is read around it.
    pub to: SharedBytes,
    /// Where in it; with the memory's address a multiple of the alignment.
    pub at: u64,
}

/// A range that is over.
#[derive(Debug)]
pub struct Finished {
    /// Which.
    pub job: Job,
    /// `Err`: it is not there. Of kind [`io::ErrorKind::Interrupted`] where it was cancelled.
    pub result: io::Result<()>,
}

/// What was read, in all.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub struct ReadStats {
    /// Bytes that came from the files.
    pub bytes: u64,
    /// Of these, bytes that were only expected when they were asked for.
    pub ahead_bytes: u64,
    /// Pieces that came.
    pub pieces: u64,
    /// Pieces that were asked for again.
    pub retries: u64,
    /// Time with a piece under way, seen from the caller.
    pub busy: Duration,
    /// Time the caller waited for pieces.
    pub waited: Duration,
}

struct Part {
    job: Job,
    file: u32,
    off: u64,
    len: u32,
    /// Bytes without which it is not done; the rest is alignment that may lie behind the file's end.
    need: u32,
    to: SharedBytes,
    at: u64,
    tries: u32,
    failures: u32,
    ahead: bool,
}

struct Running {
    urgency: Urgency,
    left: u32,
    failed: Option<io::Error>,
}

/// See the [module](super).
pub struct ReadQueue {
    reader: Box<dyn RangeReader>,
    align: u64,
    tuning: Tuning,
    jobs: HashMap<Job, Running>,
    demand: VecDeque<Part>,
    ahead: VecDeque<Part>,
    flying: HashMap<u64, Part>,
    flying_ahead: usize,
    next: u64,
    busy_since: Option<Instant>,
    stats: ReadStats,
    outcomes: Vec<Outcome>,
}

impl ReadQueue {
    /// A queue in front of a reader whose files are aligned like that.
    pub fn new(reader: Box<dyn RangeReader>, align: u64) -> Self {
        Self::tuned(reader, align, Tuning::default())
    }
    /// The same, otherwise tuned.
    pub fn tuned(reader: Box<dyn RangeReader>, align: u64, tuning: Tuning) -> Self {
        ReadQueue {
            reader,
            align: align.max(1),
            tuning: Tuning { piece: tuning.piece.max(1), depth: tuning.depth.max(1), ..tuning },
            jobs: HashMap::new(),
            demand: VecDeque::new(),
            ahead: VecDeque::new(),
            flying: HashMap::new(),
            flying_ahead: 0,
            next: 0,
            busy_since: None,
            stats: ReadStats::default(),
            outcomes: Vec::new(),
        }
    }
    /// The reader's name.
    pub fn reader(&self) -> &'static str {
        self.reader.name()
    }
    /// What was read so far.
    pub fn stats(&self) -> ReadStats {
        let busy = self.busy_since.map_or(Duration::ZERO, |t| t.elapsed());
        ReadStats { busy: self.stats.busy + busy, ..self.stats }
    }
    /// Ranges that are not finished.
    pub fn unfinished(&self) -> usize {
        self.jobs.len()
    }

    /// Asks for a range. A job that is not finished must not be asked for again.
    pub fn read(&mut self, job: Job, w: &Wanted, urgency: Urgency) {
        let start = w.off / self.align * self.align;
        let end = w.off.saturating_add(w.len);
        let cover = end.next_multiple_of(self.align).saturating_sub(start);
        let pieces = cover.div_ceil(self.tuning.piece).max(1);
        let each = cover.div_ceil(pieces).next_multiple_of(self.align);
        let into = if urgency == Urgency::Demand { &mut self.demand } else { &mut self.ahead };
        let mut left = 0;
        for first in (0..cover).step_by(each.max(1) as usize) {
            let len = each.min(cover - first);
            into.push_back(Part {
                job,
                file: w.file,
                off: start + first,
                len: len as u32,
                need: len.min(end.saturating_sub(start + first)) as u32,
                to: w.to.clone(),
                at: w.at + first,
                tries: 0,
                failures: 0,
                ahead: urgency != Urgency::Demand,
            });
            left += 1;
        }
        self.jobs.insert(job, Running { urgency, left, failed: None });
    }

    /// Somebody waits now for what was only expected.
    pub fn hurry(&mut self, job: Job) {
        let Some(running) = self.jobs.get_mut(&job) else { return };
        running.urgency = Urgency::Demand;
        let all = std::mem::take(&mut self.ahead);
        let (now, rest): (VecDeque<Part>, VecDeque<Part>) = all.into_iter().partition(|p| p.job == job);
        self.ahead = rest;
        self.demand.extend(now.into_iter().map(|p| Part { ahead: false, ..p }));
    }

    /// Nobody expects a generation any more. Ranges of which something was not handed to the reader yet are finished as
    /// cancelled by the next [`poll`](Self::poll), or when what is under way of them lands.
    pub fn cancel(&mut self, generation: u64) {
        for p in &self.ahead {
            if let Some(r) = self.jobs.get_mut(&p.job).filter(|r| r.urgency == Urgency::Ahead { generation }) {
                r.failed.get_or_insert_with(|| io::ErrorKind::Interrupted.into());
            }
        }
    }

    /// Keeps the reader busy and collects what is finished; with `wait`, waits until something is, if anything is left.
    ///
    /// # Errors
    /// When the reader cannot go on at all.
    pub fn poll(&mut self, wait: bool, finished: &mut Vec<Finished>) -> io::Result<()> {
        let begun = wait.then(Instant::now);
        loop {
            self.drop_failed(finished);
            self.fill();
            let must_wait = wait && finished.is_empty() && !self.flying.is_empty();
            let mut outcomes = std::mem::take(&mut self.outcomes);
            let reaped = self.reader.reap(must_wait, &mut outcomes);
            for o in outcomes.drain(..) {
                self.take(o, finished);
            }
            self.outcomes = outcomes;
            reaped?;
            if self.fill() {
                // Hands over what the outcomes made room for, so that the disk does not pause while the caller computes.
                self.reader.reap(false, &mut self.outcomes)?;
                for o in std::mem::take(&mut self.outcomes) {
                    self.take(o, finished);
                }
            }
            if self.flying.is_empty() {
                self.stats.busy += self.busy_since.take().map_or(Duration::ZERO, |t| t.elapsed());
            }
            let over = self.flying.is_empty() && self.demand.is_empty() && self.ahead.is_empty();
            if !wait || !finished.is_empty() || over {
                break;
            }
        }
        self.stats.waited += begun.map_or(Duration::ZERO, |t| t.elapsed());
        Ok(())
    }

    /// Submits pieces as far as the depth allows: demand first. Whether there were any.
    fn fill(&mut self) -> bool {
        let before = self.next;
        while self.flying.len() < self.tuning.depth {
            let part = match self.demand.pop_front() {
                Some(p) => p,
                None if self.flying_ahead < self.tuning.ahead && self.flying.len() == self.flying_ahead => {
                    match self.ahead.pop_front() {
                        Some(p) => p,
                        None => break,
                    }
                }
                None => break,
            };
            self.submit(part);
        }
        self.next != before
    }

    fn submit(&mut self, p: Part) {
        let id = self.next;
        self.next += 1;
        self.flying_ahead += p.ahead as usize;
        self.busy_since.get_or_insert_with(Instant::now);
        self.reader.submit(Piece { id, file: p.file, off: p.off, len: p.len, to: p.to.clone(), at: p.at });
        self.flying.insert(id, p);
    }

    /// Takes parts of failed jobs out of the queues; a job that has nothing under way is finished then.
    fn drop_failed(&mut self, finished: &mut Vec<Finished>) {
        let jobs = &mut self.jobs;
        if jobs.values().all(|j| j.failed.is_none()) {
            return;
        }
        for queue in [&mut self.demand, &mut self.ahead] {
            queue.retain(|p| match jobs.get_mut(&p.job) {
                Some(r) if r.failed.is_some() => {
                    r.left -= 1;
                    false
                }
                _ => true,
            });
        }
        let over: Vec<Job> = jobs.iter().filter(|(_, r)| r.left == 0).map(|(j, _)| *j).collect();
        over.into_iter().for_each(|job| self.finish(job, finished));
    }

    fn finish(&mut self, job: Job, finished: &mut Vec<Finished>) {
        if let Some(r) = self.jobs.remove(&job) {
            finished.push(Finished { job, result: r.failed.map_or(Ok(()), Err) });
        }
    }

    fn take(&mut self, o: Outcome, finished: &mut Vec<Finished>) {
        let Some(mut p) = self.flying.remove(&o.id) else { return };
        self.flying_ahead -= p.ahead as usize;
        if let Ok(n) = o.result {
            self.stats.bytes += u64::from(n);
            self.stats.ahead_bytes += if p.ahead { n.into() } else { 0 };
            self.stats.pieces += 1;
        }
        let Some(running) = self.jobs.get_mut(&p.job) else { return };
        match verdict(&mut p, o.result, self.align) {
            Verdict::Again if running.failed.is_none() => {
                self.stats.retries += 1;
                let into = if p.ahead { &mut self.ahead } else { &mut self.demand };
                return into.push_front(p);
            }
            Verdict::Done | Verdict::Again => {}
            Verdict::Failed(e) => {
                running.failed.get_or_insert(e);
            }
        }
        running.left -= 1;
        if running.left == 0 {
            self.finish(p.job, finished);
        }
    }
}

enum Verdict {
    Done,
    /// The rest, or all of it once more.
    Again,
    Failed(io::Error),
}

/// What an outcome means for a part, which becomes what is left of it.
fn verdict(p: &mut Part, result: io::Result<u32>, align: u64) -> Verdict {
    match result {
        Ok(n) if n >= p.need => return Verdict::Done,
        Ok(0) => return Verdict::Failed(io::ErrorKind::UnexpectedEof.into()),
        Ok(n) => {
            let step = u64::from(n) / align * align;
            p.off += step;
            p.at += step;
            p.len -= step as u32;
            p.need -= step as u32;
            if step > 0 {
                // The rest is another piece, with a second try of its own.
                (p.tries, p.failures) = (0, 0);
                return Verdict::Again;
            }
        }
        Err(e) if matches!(e.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {}
        Err(e) => {
            p.failures += 1;
            if p.failures > 1 {
                return Verdict::Failed(e);
            }
        }
    }
    p.tries += 1;
    if p.tries > PATIENCE { Verdict::Failed(io::ErrorKind::TimedOut.into()) } else { Verdict::Again }
}
