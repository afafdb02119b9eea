//! The thread that writes. It never waits for steps, and steps never wait for it.

use super::Where;
use super::file::{self, Head, Name};
use state::Snapshot;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

/// Files written aside that are older than this belong to nobody.
const STALE: Duration = Duration::from_secs(600);
/// After so many files the directory is measured again: other servers may write to it.
const MEASURE: u32 = 64;
/// Share of the most that is kept when room must be made, in hundredths.
const KEEP: u64 = 90;

/// What to do.
pub enum Work {
    /// A page, whose bytes were copied; the buffer comes back.
    Page(Head, Vec<u8>),
    /// A snapshot, from where it lies.
    State(Head, Arc<Snapshot>),
    /// These were used together now.
    Used(Vec<Name>),
}

/// What it did.
#[derive(Debug, Default)]
pub struct Figures {
    /// Files written.
    pub files: AtomicU64,
    /// Their bytes.
    pub bytes: AtomicU64,
    /// Files let go.
    pub gone: AtomicU64,
    /// Files that could not be written.
    pub failed: AtomicU64,
    trouble: Mutex<Option<String>>,
}

impl Figures {
    /// What went wrong last, once.
    pub fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
    fn fail(&self, e: &std::io::Error) {
        self.failed.fetch_add(1, Ordering::Relaxed);
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = Some(e.to_string());
    }
}

/// The thread, as others see it. Dropping it waits until what it was given is written.
pub struct Writer {
    to: Option<SyncSender<Work>>,
    back: Receiver<Vec<u8>>,
    free: Vec<Vec<u8>>,
    figures: Arc<Figures>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    /// Starts it with room for so many pages on their way.
    ///
    /// # Errors
    /// When a thread cannot be started.
    pub fn start(at: &Where, dir: &Path, pages: usize) -> std::io::Result<Writer> {
        let (to, taken) = sync_channel(pages.max(1));
        let (give, back) = channel();
        let figures = Arc::new(Figures::default());
        let told = Arc::clone(&figures);
        let mut files = Files { root: at.dir.clone(), dir: dir.into(), most: at.most, total: 0, since: MEASURE };
        let work = move || {
            while let Ok(work) = taken.recv() {
                let wrote = match work {
                    Work::Page(head, bytes) => {
                        let wrote = files.write(&head, std::iter::once(bytes.as_slice()), &told);
                        // Nobody takes it back when the other side is gone.
                        let _ = give.send(bytes);
                        wrote
                    }
                    Work::State(head, of) => files.write(&head, of.parts(), &told),
                    Work::Used(names) => {
                        files.used(&names);
                        Ok(())
                    }
                };
                wrote.unwrap_or_else(|e| told.fail(&e));
            }
        };
        let thread = std::thread::Builder::new().name("keep".into()).spawn(work)?;
        Ok(Writer { to: Some(to), back, free: vec![Vec::new(); pages.max(1)], figures, thread: Some(thread) })
    }
    /// What it did.
    pub fn figures(&self) -> &Arc<Figures> {
        &self.figures
    }
    /// A buffer for a page's bytes; `None` while all are on their way.
    pub fn buffer(&mut self) -> Option<Vec<u8>> {
        self.free.extend(self.back.try_iter());
        self.free.pop()
    }
    /// Gives back a buffer that was not used.
    pub fn unused(&mut self, buffer: Vec<u8>) {
        self.free.push(buffer);
    }
    /// Hands work over, or gives it back while there is no room for it. What the thread cannot take any more is dropped.
    pub fn give(&mut self, work: Work) -> Option<Work> {
        match self.to.as_ref()?.try_send(work) {
            Ok(()) | Err(TrySendError::Disconnected(_)) => None,
            Err(TrySendError::Full(work)) => Some(work),
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.to.take();
        if let Some(t) = self.thread.take() {
            // It ends by itself when there is nothing more; a panic in it has nothing to add.
            let _ = t.join();
        }
    }
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").field("figures", &self.figures).finish_non_exhaustive()
    }
}

/// The directory as the thread sees it.
struct Files {
    root: PathBuf,
    dir: PathBuf,
    most: u64,
    /// Bytes of all files, as far as is known.
    total: u64,
    /// Files written since that was measured.
    since: u32,
}

/// One of the files.
struct Kept {
    used: SystemTime,
    at: u32,
    bytes: u64,
    path: PathBuf,
}

impl Files {
    fn write<'a>(
        &mut self,
        head: &Head,
        parts: impl Iterator<Item = &'a [u8]> + Clone,
        told: &Figures,
    ) -> std::io::Result<()> {
        let bytes = head.bytes + 4096;
        if bytes > self.most || self.dir.join(head.name().file()).exists() {
            return Ok(());
        }
        if self.since >= MEASURE || self.total + bytes > self.most {
            self.make_room(bytes, told);
        }
        self.total += file::write(&self.dir, head, parts)?;
        self.since += 1;
        told.files.fetch_add(1, Ordering::Relaxed);
        told.bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// All that was used together has one time, so that of a conversation nothing goes that something else of it needs:
    /// its beginning was used whenever its end was, and of one time the end goes first.
    fn used(&self, names: &[Name]) {
        let now = SystemTime::now();
        for n in names {
            // What is not there is not used.
            let _ = std::fs::File::open(self.dir.join(n.file())).and_then(|f| f.set_modified(now));
        }
    }

    /// Measures, and removes what was used longest ago where `bytes` more would be too much.
    fn make_room(&mut self, bytes: u64, told: &Figures) {
        let mut all = list(&self.root);
        self.since = 0;
        self.total = all.iter().map(|k| k.bytes).sum();
        if self.total + bytes <= self.most {
            return;
        }
        all.sort_by(|a, b| a.used.cmp(&b.used).then(b.at.cmp(&a.at)));
        let keep = (self.most / 100 * KEEP).min(self.most - bytes);
        for k in all {
            if self.total <= keep {
                break;
            }
            // One that another server removed is gone, too.
            let _ = std::fs::remove_file(&k.path);
            self.total -= k.bytes;
            told.gone.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Everything below the directory that is of this kind; what was left aside by a server that is gone is removed.
fn list(root: &Path) -> Vec<Kept> {
    let entries = |dir: &Path| std::fs::read_dir(dir).into_iter().flatten().flatten();
    let (mut all, mut stale) = (Vec::new(), Vec::new());
    for dir in entries(root).map(|e| e.path()).filter(|p| p.is_dir()) {
        for e in entries(&dir) {
            let (Ok(meta), path) = (e.metadata(), e.path()) else { continue };
            let Some(file) = path.file_name().and_then(|f| f.to_str()) else { continue };
            let used = meta.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            match Name::parse(file) {
                Some(name) => all.push(Kept { used, at: name.at, bytes: meta.len(), path }),
                None if file.ends_with(".tmp") && used.elapsed().is_ok_and(|age| age > STALE) => stale.push(path),
                None => {}
            }
        }
    }
    stale.iter().for_each(|p| _ = std::fs::remove_file(p));
    all
}
