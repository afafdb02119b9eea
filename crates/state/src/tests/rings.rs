//! Rings where windows, appends and page edges meet.

use super::rig::Rig;
use crate::{Decl, Limits, Span, Stream};
use device::RowClass::{Few, Many};
use memory::KvFormat;

const ROWS: u32 = 300;

/// Appends `n` rows after `start` others, first as a decoy that is rolled back, then for good, then one more row.
fn append_at(window: u32, start: u32, n: u32, fmt: KvFormat) {
    let stream = Stream::Ring { window, heads: 1, d: 2, fmt };
    let mut rig = Rig::new(
        &[Decl { layer: 4, stream }],
        Limits { context: 2000, parallel: 2, pages: 16, rows: ROWS, few: 1, slab_pages: 1, segment: 0 },
    );
    // The sequence in front of it, whose ring must not be touched.
    let (_, seq) = (rig.st.open().unwrap(), rig.st.open().unwrap());
    let mut history = Vec::new();
    let mut step = |rig: &mut Rig, class, first: u32, n: u32, keep: bool| {
        let ids: Vec<u32> = (first..first + n).collect();
        let a = rig.st.reserve(&mut rig.dev, class, &[Span { seq, ids: &ids }]).unwrap();
        let rows = rig.next(seq, 9, &ids);
        let got = rig.run(&a, &rows, std::slice::from_ref(&(0..n)), false);
        history.extend(rows);
        let at: Vec<usize> = (0..n as usize).collect();
        rig.compare(&history, &got, &at).unwrap_or_else(|e| panic!("window {window}, {n} rows at {start}: {e}"));
        if keep {
            rig.st.commit(a, &[n]).unwrap();
        } else {
            rig.st.rollback(a).unwrap();
            history.truncate(history.len() - n as usize);
        }
        rig.poison();
    };
    let mut done = 0;
    while done < start {
        let n = (start - done).min(ROWS);
        step(&mut rig, Many, 1000 + done, n, true);
        done += n;
    }
    step(&mut rig, Many, 10_000, n, false);
    step(&mut rig, Many, 20_000, n, true);
    step(&mut rig, Few, 30_000, 1, true);
    assert_eq!(rig.st.len(seq).unwrap(), start + n + 1);
}

#[test]
fn appends_at_page_edges_see_their_whole_window() {
    for window in [8, 128] {
        for start in [0, 1, 100, 254, 255] {
            for n in [1, 64, ROWS] {
                append_at(window, start, n, KvFormat::F32);
            }
        }
    }
}

/// The ring of window 8 and 300 rows has 3 pages, 768 positions.
#[test]
fn appends_that_wrap_see_their_whole_window() {
    for start in [767, 768, 1000] {
        for n in [1, ROWS] {
            append_at(8, start, n, KvFormat::Bf16);
        }
    }
    append_at(300, 1023, ROWS, KvFormat::Bf16);
}
