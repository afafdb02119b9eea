//! The threads that run one op after another.
//!
//! A job is a number of tasks and a function. One word, the *ticket*, holds the generation of the job and the next task
//! that nobody has taken; taking a task is one compare-and-swap on it. So a worker that wakes up late cannot touch a
//! job that is over, and the caller waits for tasks, never for threads that had nothing to do.

use crate::error::{Error, Result};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering::*};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// What the threads of a job run: `(worker, task)`, worker below the job's width and never twice at once.
type Task<'a> = &'a (dyn Fn(usize, usize) + Sync);

/// Rounds of waiting for the next job before a worker goes to sleep: some tens of microseconds, about the longest gap
/// between two ops of a step.
const SPINS: u32 = 2000;
/// Next task of a ticket between two jobs.
const CLOSED: u32 = u32::MAX;

const fn ticket(generation: u32, next: u32) -> u64 {
    (generation as u64) << 32 | next as u64
}

const fn parts(ticket: u64) -> (u32, u32) {
    ((ticket >> 32) as u32, ticket as u32)
}

#[derive(Default)]
struct Shared {
    /// Generation and next task.
    ticket: AtomicU64,
    /// The job: address of the caller's `Task`, tasks, and workers that may take part. A worker reads them between
    /// two looks at the ticket, and believes them only if it was the same both times.
    job: AtomicPtr<()>,
    tasks: AtomicUsize,
    width: AtomicUsize,
    /// Tasks that are over.
    done: AtomicUsize,
    /// Set by the first panic; the tasks left are then skipped.
    failed: AtomicBool,
    panic: Mutex<Option<String>>,
    stop: AtomicBool,
    sleepers: AtomicUsize,
    bed: Mutex<()>,
    bell: Condvar,
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that is guarded here can be left half-changed by a panic.
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

fn message(p: Box<dyn Any + Send>) -> String {
    match p.downcast::<String>() {
        Ok(s) => *s,
        Err(p) => p.downcast_ref::<&str>().map_or_else(|| "no message".into(), |s| (*s).into()),
    }
}

impl Shared {
    /// Takes and runs tasks of generation `g` until none is left.
    fn work(&self, g: u32, worker: usize) {
        loop {
            let seen = self.ticket.load(Acquire);
            let (now, task) = parts(seen);
            let (job, tasks) = (self.job.load(Acquire), self.tasks.load(Acquire));
            if now != g || task as usize >= tasks || worker >= self.width.load(Acquire) {
                return;
            }
            if self.ticket.compare_exchange_weak(seen, seen + 1, AcqRel, Relaxed).is_err() {
                continue;
            }
            if !self.failed.load(Relaxed) {
                // SAFETY: the ticket was of generation g before and after the fields were read, so they are its own; its
                // caller keeps the job alive until this task is counted as done.
                let f = unsafe { *job.cast::<Task>() };
                self.guarded(|| f(worker, task as usize));
            }
            self.done.fetch_add(1, Release);
        }
    }
    fn guarded(&self, f: impl FnOnce()) {
        if let Err(p) = catch_unwind(AssertUnwindSafe(f)) {
            self.failed.store(true, Relaxed);
            lock(&self.panic).get_or_insert(message(p));
        }
    }
    /// Whether there is something newer than generation `g`, or no more at all.
    fn rings(&self, g: u32) -> bool {
        let (now, next) = parts(self.ticket.load(SeqCst));
        self.stop.load(SeqCst) || (now != g && next != CLOSED)
    }
    fn sleep(&self, g: u32) {
        for _ in 0..SPINS {
            if self.rings(g) {
                return;
            }
            std::hint::spin_loop();
        }
        let mut bed = lock(&self.bed);
        self.sleepers.fetch_add(1, SeqCst);
        while !self.rings(g) {
            bed = self.bell.wait(bed).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleepers.fetch_sub(1, SeqCst);
    }
    fn wake(&self) {
        if self.sleepers.load(SeqCst) > 0 {
            // Whoever counted itself a sleeper has either seen the new ticket or is waiting by the time the lock is free.
            drop(lock(&self.bed));
            self.bell.notify_all();
        }
    }
    fn serve(&self, worker: usize) {
        let mut g = 0;
        loop {
            self.sleep(g);
            if self.stop.load(SeqCst) {
                return;
            }
            g = parts(self.ticket.load(Acquire)).0;
            self.work(g, worker);
        }
    }
}

/// A fixed set of threads. The caller of a job is one of them.
pub struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    busy: AtomicBool,
    /// Threads that jobs get at most.
    limit: AtomicUsize,
}

/// Lets the calling thread run on these processors only. Where the system refuses, it runs anywhere.
#[cfg(target_os = "linux")]
fn keep_to(processors: &[usize]) {
    let mut set = rustix::thread::CpuSet::new();
    processors.iter().filter(|&&i| i < rustix::thread::CpuSet::MAX_CPU).for_each(|&i| set.set(i));
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

#[cfg(not(target_os = "linux"))]
fn keep_to(_: &[usize]) {}

impl Pool {
    /// `threads` in all, the caller included; at least one. Those that are made here run on `processors` only, where
    /// that is said; the caller stays where it is.
    ///
    /// # Errors
    /// [`Error::Threads`] when the system refuses one.
    pub fn new(threads: usize, processors: Option<Vec<usize>>) -> Result<Self> {
        let processors = processors.map(Arc::new);
        let shared = Arc::new(Shared { ticket: AtomicU64::new(ticket(0, CLOSED)), ..Shared::default() });
        let mut pool =
            Pool { shared, threads: Vec::new(), busy: AtomicBool::new(false), limit: AtomicUsize::new(threads.max(1)) };
        for worker in 1..threads {
            let (shared, processors) = (pool.shared.clone(), processors.clone());
            let thread = std::thread::Builder::new().name(format!("kernel-{worker}"));
            let serve = move || {
                processors.iter().for_each(|p| keep_to(p));
                shared.serve(worker)
            };
            pool.threads.push(thread.spawn(serve).map_err(Error::Threads)?);
        }
        Ok(pool)
    }
    /// Threads that a job gets, the caller included.
    pub fn width(&self) -> usize {
        self.limit.load(Relaxed)
    }
    /// Gives the coming jobs at most `threads` of them.
    pub fn narrow(&self, threads: usize) {
        self.limit.store(threads.clamp(1, self.threads.len() + 1), Relaxed);
    }
    /// Runs `f(task)` for every task below `tasks`, on all threads.
    ///
    /// # Errors
    /// [`Error::Panicked`] when a task panicked; some tasks may then not have run. The pool lives on.
    pub fn run(&self, tasks: usize, f: &(dyn Fn(usize) + Sync)) -> Result<()> {
        self.run_on(self.width(), tasks, &|_, task| f(task))
    }
    /// Runs `f(worker, task)` for every task below `tasks`, on at most `width` threads. `worker` is below `width` and
    /// never runs two tasks at once, so it may index per-thread scratch.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_on(&self, width: usize, tasks: usize, f: Task) -> Result<()> {
        let width = width.clamp(1, self.width()).min(tasks);
        // A job inside a job runs on the thread it was met on.
        if width <= 1 || tasks >= CLOSED as usize || self.busy.swap(true, Acquire) {
            return alone(tasks, f);
        }
        let s = &*self.shared;
        let (g, _) = parts(s.ticket.load(Relaxed));
        // Closing first: from here on no worker can take a task with the old ticket and the new fields.
        s.ticket.store(ticket(g.wrapping_add(1), CLOSED), SeqCst);
        s.done.store(0, Release);
        s.failed.store(false, Release);
        s.tasks.store(tasks, Release);
        s.width.store(width, Release);
        s.job.store((&raw const f).cast_mut().cast(), Release);
        s.ticket.store(ticket(g.wrapping_add(2), 0), SeqCst);
        s.wake();
        s.work(g.wrapping_add(2), 0);
        let mut spins = 0;
        while s.done.load(Acquire) < tasks {
            spins += 1;
            if spins < SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
        let panic = lock(&s.panic).take();
        self.busy.store(false, Release);
        panic.map_or(Ok(()), |p| Err(Error::Panicked(p)))
    }
}

fn alone(tasks: usize, f: Task) -> Result<()> {
    let all = AssertUnwindSafe(|| (0..tasks).for_each(|t| f(0, t)));
    catch_unwind(all).map_err(|p| Error::Panicked(message(p)))
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, SeqCst);
        drop(lock(&self.shared.bed));
        self.shared.bell.notify_all();
        for t in self.threads.drain(..) {
            // A worker catches what its tasks throw; were it dead all the same, there is nothing left to tell.
            let _ = t.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once_for_any_width() {
        for threads in [1, 2, 3, 5] {
            let pool = Pool::new(threads, None).unwrap();
            for tasks in [0, 1, 2, 3, 7, 64, 1000] {
                for width in [1, 2, threads, 9] {
                    let ran: Vec<_> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                    let f = |w: usize, t: usize| {
                        assert!(w < width.min(threads));
                        ran[t].fetch_add(1, Relaxed);
                    };
                    pool.run_on(width, tasks, &f).unwrap();
                    assert!(ran.iter().all(|r| r.load(Relaxed) == 1), "{threads} threads, {tasks} tasks");
                }
            }
        }
    }

    #[test]
    fn many_short_jobs_on_borrowed_memory() {
        // Each job owns fresh memory that dies right behind it: a worker that touched an old job would be seen.
        let pool = Pool::new(4, None).unwrap();
        for round in 0..20_000usize {
            let out: Vec<AtomicUsize> = (0..round % 9).map(|_| AtomicUsize::new(0)).collect();
            pool.run(out.len(), &|t| _ = out[t].fetch_add(round + t, Relaxed)).unwrap();
            assert!(out.iter().enumerate().all(|(t, o)| o.load(Relaxed) == round + t));
            if round % 4000 == 0 {
                // Long enough for all workers to fall asleep.
                std::thread::sleep(std::time::Duration::from_millis(3));
            }
        }
    }

    #[test]
    fn a_worker_number_is_never_used_twice_at_once() {
        let pool = Pool::new(3, None).unwrap();
        let inside: Vec<_> = (0..3).map(|_| AtomicBool::new(false)).collect();
        let f = |w: usize, _: usize| {
            assert!(!inside[w].swap(true, SeqCst));
            std::thread::yield_now();
            inside[w].store(false, SeqCst);
        };
        for _ in 0..200 {
            pool.run_on(3, 16, &f).unwrap();
        }
    }

    #[test]
    fn a_panic_is_an_error_and_the_pool_lives_on() {
        let pool = Pool::new(3, None).unwrap();
        for bad in 0..20 {
            let e = pool.run(20, &|t| assert!(t != bad, "task {t} is bad")).unwrap_err();
            assert!(matches!(&e, Error::Panicked(m) if m.contains(&format!("task {bad} is bad"))), "{e}");
            let ran = AtomicUsize::new(0);
            pool.run(20, &|_| _ = ran.fetch_add(1, Relaxed)).unwrap();
            assert_eq!(ran.into_inner(), 20);
        }
        let e = pool.run_on(1, 2, &|_, _| std::panic::panic_any(3)).unwrap_err();
        assert!(matches!(e, Error::Panicked(m) if m == "no message"));
    }

    #[test]
    fn a_narrow_pool_uses_fewer_threads() {
        let pool = Pool::new(3, Some(vec![0])).unwrap();
        for (asked, width) in [(2, 2), (0, 1), (9, 3)] {
            pool.narrow(asked);
            assert_eq!(pool.width(), width);
            pool.run_on(3, 50, &|w, _| assert!(w < width)).unwrap();
        }
    }

    #[test]
    fn a_job_inside_a_job_runs_in_place() {
        let pool = Pool::new(2, None).unwrap();
        let ran = AtomicUsize::new(0);
        pool.run(4, &|_| pool.run(5, &|_| _ = ran.fetch_add(1, Relaxed)).unwrap()).unwrap();
        assert_eq!(ran.into_inner(), 20);
    }

    #[test]
    fn a_pool_shared_by_threads_keeps_its_jobs_apart() {
        let pool = Pool::new(3, None).unwrap();
        std::thread::scope(|s| {
            for _ in 0..3 {
                s.spawn(|| {
                    for n in 0..300usize {
                        let sum = AtomicUsize::new(0);
                        pool.run(n % 17, &|t| _ = sum.fetch_add(t + 1, Relaxed)).unwrap();
                        assert_eq!(sum.into_inner(), (1..=n % 17).sum::<usize>());
                    }
                });
            }
        });
    }
}
