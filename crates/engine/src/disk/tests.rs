use super::*;
use memory::PAGE_POSITIONS;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

const OF: u128 = 77;

fn ids(from: u32, n: u32) -> Vec<u32> {
    (from..from + n).collect()
}

fn body(n: usize) -> Vec<u8> {
    (0..n).map(|i| (i * 31 % 251) as u8).collect()
}

fn read(dir: &Path, name: Name, bytes: u64) -> Option<Vec<u8>> {
    let mut o = Opened::open(dir, name, OF, bytes)?;
    let mut got = vec![0; bytes as usize];
    let (a, b) = got.split_at_mut(1000);
    (o.fill(a) && o.fill(b) && o.finish()).then_some(got)
}

fn put(dir: &Path, before: Key, first: u32, ids: &[u32], bytes: &[u8]) -> Name {
    let head = Head::page(OF, before, first, ids, bytes.len() as u64);
    write(dir, &head, [&bytes[..7], &bytes[7..]].into_iter()).unwrap();
    head.name()
}

#[test]
fn what_is_written_comes_back_and_names_say_what_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = body(5000);
    let name = put(dir.path(), Key(5), 512, &ids(9, 256), &bytes);
    assert_eq!((name.at, Name::parse(&name.file())), (768, Some(name)));
    assert_eq!(read(dir.path(), name, 5000), Some(bytes));
    let o = Opened::open(dir.path(), name, OF, 5000).unwrap();
    assert_eq!((o.head.before, o.head.ids.clone(), o.head.page), (Key(5), ids(9, 256), name));
    for other in ["x.page", "0-1.page", "5.state", &format!("{}x", name.file()), &name.file().to_uppercase()] {
        assert_eq!(Name::parse(other), None, "{other}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left aside");
}

/// Every way in which a file can be cut off or changed, at every byte where something else begins, and many between.
#[test]
fn a_file_that_is_torn_or_changed_is_taken_for_nothing_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = body(5000);
    let name = put(dir.path(), Key(5), 0, &ids(9, 200), &bytes);
    let path = dir.path().join(name.file());
    let whole = std::fs::read(&path).unwrap();
    let fields = [0, 8, 12, 16, 32, 48, 52, 56, 60, 64, 80, 88, 104, 903, 904, 2000, 4079, 4080, 4095, 4096, 4097];
    let between = (0..whole.len()).step_by(331);
    let places: Vec<usize> = fields.into_iter().chain(between).chain([whole.len() - 1]).collect();
    let broken = |what: &str, at: usize| {
        assert_eq!(read(dir.path(), name, 5000), None, "{what} at {at}");
        assert!(!path.exists(), "{what} at {at} is left");
        std::fs::write(&path, &whole).unwrap();
    };
    for &at in &places {
        std::fs::write(&path, &whole[..at]).unwrap();
        broken("cut off", at);
        for bit in [0x01, 0x80] {
            let mut changed = whole.clone();
            changed[at] ^= bit;
            std::fs::write(&path, &changed).unwrap();
            broken("changed", at);
        }
        // A file whose length was there before its bytes.
        let mut torn = whole.clone();
        torn[at..].fill(0);
        if torn != whole {
            std::fs::write(&path, &torn).unwrap();
            broken("zeros", at);
        }
        let block = at / 512 * 512;
        let mut lost = whole.clone();
        let end = whole.len().min(block + 512);
        lost[block..end].fill(0);
        // The header is padded with zeros.
        if lost != whole {
            std::fs::write(&path, &lost).unwrap();
            broken("a lost sector", block);
        }
    }
    let mut longer = whole.clone();
    longer.push(0);
    std::fs::write(&path, &longer).unwrap();
    broken("longer", whole.len());
    assert_eq!(read(dir.path(), name, 5000), Some(bytes));
    // Whole, and not what is asked for.
    for (of, n) in [(OF + 1, 5000), (OF, 4999)] {
        assert!(Opened::open(dir.path(), name, of, n).is_none());
        std::fs::write(&path, &whole).unwrap();
    }
    let other = Name { key: Key(1), ..name };
    std::fs::rename(&path, dir.path().join(other.file())).unwrap();
    assert!(read(dir.path(), other, 5000).is_none());
    assert!(read(dir.path(), name, 5000).is_none(), "no such file");
}

/// A change between opening and the end is found as well.
#[test]
fn bytes_that_change_while_they_are_read_are_found() {
    let dir = tempfile::tempdir().unwrap();
    let name = put(dir.path(), Key::START, 0, &ids(0, 10), &body(5000));
    let mut o = Opened::open(dir.path(), name, OF, 5000).unwrap();
    let mut f = std::fs::OpenOptions::new().write(true).open(dir.path().join(name.file())).unwrap();
    f.seek(SeekFrom::Start(9000)).unwrap();
    f.write_all(b"else").unwrap();
    assert!(o.fill(&mut vec![0; 5000]));
    assert!(!o.fill(&mut [0]), "there is no more");
    assert!(!o.finish());
    let half = put(dir.path(), Key::START, 0, &ids(0, 10), &body(5000));
    let mut o = Opened::open(dir.path(), half, OF, 5000).unwrap();
    assert!(o.fill(&mut [0; 10]) && !o.finish(), "not all was read");
}

fn at(dir: &Path, most: u64) -> Where {
    Where { dir: dir.into(), most }
}

/// Pages of a prompt, and a snapshot at some of its positions.
fn fill(dir: &Path, prompt: &[u32], states: &[u32]) {
    let chain = Chain::of(prompt);
    let pages: Vec<Name> = prompt
        .chunks(PAGE_POSITIONS as usize)
        .enumerate()
        .map(|(i, part)| put(dir, chain.before(i), i as u32 * 256, part, &body(4096)))
        .collect();
    for &s in states {
        let i = (s as usize - 1) / 256;
        let ids = chain.part(i, s as usize).to_vec();
        let head = Head { kind: Kind::State, of: OF, before: chain.before(i), at: s, ids, page: pages[i], bytes: 5000 };
        write(dir, &head, [body(5000).as_slice()].into_iter()).unwrap();
    }
}

#[test]
fn a_prompt_finds_the_deepest_way_that_is_all_there() {
    let dir = tempfile::tempdir().unwrap();
    let mut shelf = Shelf::open(&at(dir.path(), 1 << 30), OF, 4096, 5000).unwrap();
    let old = ids(0, 700);
    fill(shelf.dir(), &old, &[300, 512, 650]);
    shelf.look();
    let find = |shelf: &mut Shelf, ids: &[u32], known, anchored| {
        shelf.find(ids, known, anchored).map(|r| (r.resume, r.pages.iter().map(|p| p.0).collect::<Vec<_>>()))
    };
    let mut grown = old.clone();
    grown.extend(ids(5000, 100));
    // Without states: all that was read, but for the last id of what was read to its end.
    assert_eq!(find(&mut shelf, &grown, 0, false), Some((700, vec![0, 1, 2])));
    assert_eq!(find(&mut shelf, &grown, 1, false), Some((700, vec![1, 2])));
    assert_eq!(find(&mut shelf, &old, 0, false), Some((699, vec![0, 1, 2])));
    assert_eq!(find(&mut shelf, &old[..512], 0, false), Some((511, vec![0, 1])));
    assert_eq!(find(&mut shelf, &old[..300], 2, false), None, "all of it is in memory");
    // With states: the deepest anchor, never behind the last id.
    assert_eq!(find(&mut shelf, &grown, 0, true), Some((650, vec![0, 1, 2])));
    assert_eq!(find(&mut shelf, &old[..650], 0, true), Some((512, vec![0, 1])));
    assert_eq!(find(&mut shelf, &old[..301], 0, true), Some((300, vec![0, 1])));
    assert_eq!(find(&mut shelf, &old[..300], 0, true), None);
    let mut edited = grown.clone();
    edited[600] = 9;
    assert_eq!(find(&mut shelf, &edited, 0, true), Some((512, vec![0, 1])));
    assert_eq!(find(&mut shelf, &edited, 0, false), Some((512, vec![0, 1])));
    edited[20] = 9;
    assert_eq!(find(&mut shelf, &edited, 0, true), None);
    // Without the page in the middle nothing behind it is of use, unless that is in memory.
    let chain = Chain::of(&old);
    std::fs::remove_file(shelf.dir().join(Name { kind: Kind::Page, key: chain.at(512), at: 512 }.file())).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(60));
    shelf.look();
    assert_eq!(find(&mut shelf, &grown, 0, false), Some((256, vec![0])));
    assert_eq!(find(&mut shelf, &grown, 0, true), None, "the page of 300 is gone");
    assert_eq!(find(&mut shelf, &grown, 2, true), Some((650, vec![2])));
}

fn page(shelf: &Shelf, from: u32, n: u32) -> Work {
    let ids = ids(from, 10 * (n + 1));
    Work::Page(Head::page(shelf.of(), Key::START, 0, &ids[..ids.len().min(256)], 8000), body(8000))
}

fn names(dir: &Path) -> Vec<String> {
    let mut all: Vec<String> =
        std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    all.sort();
    all
}

#[test]
fn what_was_used_longest_ago_goes_first_and_the_size_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let most = 10 * 12_096;
    let shelf = Shelf::open(&at(dir.path(), most), OF, 8000, 1).unwrap();
    std::fs::write(shelf.dir().join("left.1-1.tmp"), b"by a crash").unwrap();
    std::fs::write(shelf.dir().join("README"), b"not ours").unwrap();
    let hour = std::time::SystemTime::now() - std::time::Duration::from_secs(3600);
    let old = std::fs::File::open(shelf.dir().join("left.1-1.tmp")).unwrap();
    old.set_modified(hour).unwrap();
    let write_all = |works: Vec<Work>| {
        let mut w = Writer::start(&at(dir.path(), most), shelf.dir(), 2).unwrap();
        let figures = std::sync::Arc::clone(w.figures());
        for mut work in works {
            while let Some(back) = w.give(work) {
                work = back;
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        }
        drop(w);
        figures
    };
    let figures = write_all((0..10).map(|i| page(&shelf, 1000 * i, 1)).collect());
    let all = names(shelf.dir());
    assert_eq!((all.len(), all.contains(&"README".to_owned())), (11, true), "{all:?}: the stale one is gone");
    assert_eq!(figures.files.load(std::sync::atomic::Ordering::Relaxed), 10);
    let name = |i: u32| match page(&shelf, 1000 * i, 1) {
        Work::Page(h, _) => h.name(),
        _ => unreachable!(),
    };
    // Files written within one tick of the system's clock have the same time: here each has its own.
    for i in 0..10 {
        let file = std::fs::File::open(shelf.dir().join(name(i).file())).unwrap();
        file.set_modified(hour + std::time::Duration::from_secs(u64::from(i))).unwrap();
    }
    // The first is used again, so the second is the oldest now.
    let figures = write_all(vec![Work::Used(vec![name(0)]), page(&shelf, 90_000, 1)]);
    let all = names(shelf.dir());
    assert!(all.contains(&name(0).file()) && !all.contains(&name(1).file()), "{all:?}");
    assert!(figures.gone.load(std::sync::atomic::Ordering::Relaxed) >= 1);
    let bytes: u64 = all.iter().map(|f| std::fs::metadata(shelf.dir().join(f)).unwrap().len()).sum();
    assert!(bytes <= most + 8, "{bytes}");
    // The same again changes nothing; what can never fit is not begun.
    write_all(vec![page(&shelf, 90_000, 1)]);
    assert_eq!(names(shelf.dir()), all);
}

/// Two servers that keep the same things in one directory at once, while a third one reads: what is there is whole.
#[test]
fn two_writers_and_a_reader_agree() {
    let dir = tempfile::tempdir().unwrap();
    let most = 30 * 12_096;
    let shelf = Shelf::open(&at(dir.path(), most), OF, 8000, 1).unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|s| {
        let writers: Vec<_> = (0..2)
            .map(|_| {
                s.spawn(|| {
                    let mut w = Writer::start(&at(dir.path(), most), shelf.dir(), 2).unwrap();
                    for i in 0..60 {
                        let mut work = page(&shelf, i % 40 * 1000, i % 5);
                        while let Some(back) = w.give(work) {
                            work = back;
                            std::thread::yield_now();
                        }
                    }
                    let figures = std::sync::Arc::clone(w.figures());
                    drop(w);
                    assert_eq!(figures.trouble(), None);
                })
            })
            .collect();
        s.spawn(|| {
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                for name in names(shelf.dir()).iter().filter_map(|n| Name::parse(n)) {
                    // It may have gone meanwhile, but nothing under such a name is anything else.
                    if let Some(mut o) = Opened::open(shelf.dir(), name, OF, 8000) {
                        let mut got = vec![0; 8000];
                        assert!(o.fill(&mut got) && o.finish());
                        assert_eq!(got, body(8000));
                    }
                }
            }
        });
        writers.into_iter().for_each(|w| w.join().unwrap());
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert!(names(shelf.dir()).iter().all(|n| !n.ends_with(".tmp")));
    assert!(names(shelf.dir()).len() >= 20);
}

#[test]
fn a_directory_that_cannot_be_used_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, b"").unwrap();
    let e = Shelf::open(&at(&file, 1), OF, 1, 1).unwrap_err();
    assert!(e.to_string().contains("file"), "{e}");
}

#[test]
fn keys_follow_from_all_ids_before_them() {
    let all = ids(0, 600);
    let chain = Chain::of(&all);
    assert_eq!(chain.at(512), chain.before(2));
    assert_eq!(chain.at(600), chain.before(2).then(&all[512..]));
    let mut other = all.clone();
    other[3] = 99;
    let changed = Chain::of(&other);
    for at in [256, 300, 512, 600] {
        assert_ne!(chain.at(at), changed.at(at), "{at}");
    }
    assert_eq!(chain.at(2), changed.at(2));
    assert_ne!(fingerprint(&["a", "b"]), fingerprint(&["ab", ""]));
}
