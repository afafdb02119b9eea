//! Routing that was recorded: which experts every row chose in every layer. Pure data with a small file format.
//!
//! A file is, in little-endian order:
//!
//! ```text
//! 8 bytes   "snugrt01"
//! u32       L, layers that route
//! u32       E, experts of a layer
//! u32       k, experts of a row
//! u32       S, streams
//! u32 x L   the layers' numbers
//! then for each stream:
//!   u32     P, rows of its prompt
//!   u32     R, rows in all, P among them
//!   u16 x R x L x k   experts by row, layer and falling weight
//! ```

use super::ExpertId;

const MAGIC: &[u8; 8] = b"snugrt01";

/// One conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stream {
    /// How many of its rows are the prompt's.
    pub prompt: u32,
    /// `[rows, layers, k]`.
    pub ids: Vec<u16>,
}

/// Conversations with one model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// Numbers of the layers that route.
    pub layers: Vec<u32>,
    /// Experts of a layer.
    pub experts: u32,
    /// Experts of a row.
    pub top_k: u32,
    /// One after the other.
    pub streams: Vec<Stream>,
}

/// Bytes that are no trace.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this is no routing trace: {0}")]
pub struct NotATrace(&'static str);

const SHORT: NotATrace = NotATrace("it ends early");

/// Takes a number off the front.
fn take(rest: &mut &[u8]) -> Result<u32, NotATrace> {
    let (n, more) = rest.split_first_chunk::<4>().ok_or(SHORT)?;
    *rest = more;
    Ok(u32::from_le_bytes(*n))
}

impl Trace {
    /// Numbers of one row.
    fn width(&self) -> usize {
        self.layers.len() * self.top_k as usize
    }
    /// Rows of a stream.
    pub fn rows(&self, s: &Stream) -> u32 {
        (s.ids.len() / self.width().max(1)) as u32
    }
    /// Rows of all streams that are not a prompt's.
    pub fn decoded(&self) -> u64 {
        self.streams.iter().map(|s| u64::from(self.rows(s).saturating_sub(s.prompt))).sum()
    }
    /// What row `row` of a stream chose, layer by layer in the order of [`layers`](Self::layers).
    pub fn row<'a>(&self, s: &'a Stream, row: u32) -> impl Iterator<Item = &'a [u16]> + use<'a> {
        let at = row as usize * self.width();
        s.ids.get(at..at + self.width()).unwrap_or_default().chunks_exact((self.top_k as usize).max(1))
    }
    /// The same with these streams only.
    pub fn with(&self, streams: &[Stream]) -> Trace {
        Trace { streams: streams.to_vec(), ..self.clone() }
    }
    /// Every use of an expert, in order, and whether it counts: of a prompt there is its last row, which does not.
    pub(super) fn uses(&self) -> impl Iterator<Item = (ExpertId, bool)> {
        let of = move |s: &'_ Stream| {
            let mut all = Vec::new();
            for row in s.prompt.saturating_sub(1)..self.rows(s) {
                for (ids, &layer) in self.row(s, row).zip(&self.layers) {
                    all.extend(ids.iter().map(|&e| (ExpertId { layer, expert: e.into() }, row >= s.prompt)));
                }
            }
            all
        };
        self.streams.iter().flat_map(of)
    }

    /// The bytes of a file.
    pub fn encode(&self) -> Vec<u8> {
        let head = [self.layers.len() as u32, self.experts, self.top_k, self.streams.len() as u32];
        let mut out = MAGIC.to_vec();
        out.extend(head.iter().chain(&self.layers).flat_map(|n| n.to_le_bytes()));
        for s in &self.streams {
            out.extend([s.prompt, self.rows(s)].iter().flat_map(|n| n.to_le_bytes()));
            out.extend(s.ids.iter().flat_map(|n| n.to_le_bytes()));
        }
        out
    }
    /// What the bytes of a file say.
    ///
    /// # Errors
    /// [`NotATrace`].
    pub fn decode(bytes: &[u8]) -> Result<Trace, NotATrace> {
        let mut rest = bytes.strip_prefix(MAGIC).ok_or(NotATrace("it does not begin with snugrt01"))?;
        let [layers, experts, top_k, streams] =
            [take(&mut rest)?, take(&mut rest)?, take(&mut rest)?, take(&mut rest)?];
        if layers == 0 || top_k == 0 || experts > 1 << 16 || top_k > experts {
            return Err(NotATrace("its sizes make no sense"));
        }
        let mut trace = Trace { layers: Vec::new(), experts, top_k, streams: Vec::new() };
        for _ in 0..layers {
            trace.layers.push(take(&mut rest)?);
        }
        for _ in 0..streams {
            let (prompt, rows) = (take(&mut rest)?, take(&mut rest)?);
            let bytes = (trace.width() as u64).checked_mul(2 * u64::from(rows)).and_then(|n| usize::try_from(n).ok());
            let (ids, more) = bytes.and_then(|n| rest.split_at_checked(n)).ok_or(SHORT)?;
            rest = more;
            let ids: Vec<u16> = ids.chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]])).collect();
            if prompt > rows || ids.iter().any(|&e| u32::from(e) >= experts) {
                return Err(NotATrace("a stream names experts or rows that there are not"));
            }
            trace.streams.push(Stream { prompt, ids });
        }
        if rest.is_empty() { Ok(trace) } else { Err(NotATrace("there is more behind its end")) }
    }
}

/// A trace spread over a model of another shape, endlessly: row after row, with the locality of the trace.
///
/// A model with a multiple of the trace's experts, of which a row chooses a multiple, is seen as several lanes. Each lane
/// follows the trace at a distance of its own and has every n-th expert for itself; so do layers beyond those of the trace.
/// Where there are more experts than lanes fill, another conversation has other experts.
#[derive(Clone, Debug)]
pub struct Fitted {
    trace: Trace,
    lanes: u32,
    /// The model's experts for each of the trace's.
    times: u32,
    /// Where each stream's decoded rows begin in the row of all of them.
    starts: Vec<u64>,
}

/// Rows from lane to lane.
const APART: u64 = 7919;

impl Trace {
    /// The trace for a model of `experts`, of which a row chooses `top_k`.
    ///
    /// # Errors
    /// [`NotATrace`] where the numbers are no multiples of the trace's, or the trace has no decoded row.
    pub fn fit(self, experts: u32, top_k: u32) -> Result<Fitted, NotATrace> {
        let (times, lanes) = (experts / self.experts.max(1), top_k / self.top_k.max(1));
        if times * self.experts != experts || lanes * self.top_k != top_k || lanes == 0 || lanes > times {
            return Err(NotATrace(
                "the model's experts, and those that a row chooses, must be multiples of the trace's",
            ));
        }
        if self.decoded() == 0 {
            return Err(NotATrace("no row of it is of an answer"));
        }
        let mut starts = Vec::new();
        let mut at = 0;
        for s in &self.streams {
            starts.push(at);
            at += u64::from(self.rows(s).saturating_sub(s.prompt));
        }
        Ok(Fitted { trace: self, lanes, times, starts })
    }
}

impl Fitted {
    /// What row `row` of a layer chooses, each expert once.
    pub fn experts(&self, layer: u32, row: u64) -> Vec<u32> {
        let (t, layers) = (&self.trace, self.trace.layers.len() as u32);
        let mut all = Vec::with_capacity((self.lanes * t.top_k) as usize);
        let mut first = None;
        for lane in 0..self.lanes {
            let apart = u64::from(layer / layers * self.lanes + lane) * APART;
            let at = (row + apart) % t.decoded();
            let stream = self.starts.partition_point(|&s| s <= at).saturating_sub(1);
            // All lanes move to other experts together, so that they never meet.
            let of = *first.get_or_insert(stream as u32);
            let own = (lane + of * self.lanes) % self.times;
            let Some(s) = t.streams.get(stream) else { continue };
            let in_stream = s.prompt + (at - self.starts[stream]) as u32;
            let ids = t.row(s, in_stream).nth((layer % layers) as usize).unwrap_or_default();
            all.extend(ids.iter().map(|&e| u32::from(e) * self.times + own));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn trace() -> impl Strategy<Value = Trace> {
        let shape = (1usize..4, 1u32..4, prop::collection::vec((0u32..3, 0u32..5), 0..3), any::<u64>());
        shape.prop_map(|(layers, top_k, streams, mut seed)| {
            let mut draw = move || {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                ((seed >> 33) % 7) as u16
            };
            let stream = |(prompt, more): (u32, u32)| {
                let rows = (prompt + more) as usize;
                Stream { prompt, ids: (0..rows * layers * top_k as usize).map(|_| draw()).collect() }
            };
            let streams = streams.into_iter().map(stream).collect();
            Trace { layers: (0..layers as u32).map(|l| 2 * l + 1).collect(), experts: 7, top_k, streams }
        })
    }

    proptest! {
        #[test]
        fn a_trace_comes_back_as_it_was_and_damage_is_an_error(t in trace(), cut in 0usize..400, flip in any::<(usize, u8)>()) {
            let bytes = t.encode();
            prop_assert_eq!(Trace::decode(&bytes), Ok(t));
            if cut < bytes.len() {
                prop_assert!(Trace::decode(&bytes[..cut]).is_err());
            }
            let mut bad = bytes.clone();
            let at = flip.0 % bad.len();
            bad[at] ^= flip.1;
            // Another trace or an error, never a panic or an allocation beyond the file.
            if let Ok(other) = Trace::decode(&bad) {
                prop_assert_eq!(other.encode().len(), bad.len());
            }
        }
    }

    #[test]
    fn a_fitted_trace_names_distinct_experts_and_keeps_what_repeats() {
        let row = |r: u16| (0..2).flat_map(move |l| [(r / 3 + l) % 8, (r / 5 + l + 4) % 8]);
        let stream = |n: u16, from: u16| (from..from + n).flat_map(row).collect::<Vec<_>>();
        let streams = vec![
            Stream { prompt: 2, ids: stream(9, 0) },
            Stream { prompt: 0, ids: stream(6, 40) },
            Stream { prompt: 1, ids: stream(1, 0) },
        ];
        let t = Trace { layers: vec![0, 1], experts: 8, top_k: 2, streams };
        let same = t.clone().fit(8, 2).unwrap();
        // The first decoded row is the third of the first stream, and after 7 + 6 rows it comes round.
        assert_eq!(
            same.experts(1, 0),
            t.row(&t.streams[0], 2).nth(1).unwrap().iter().map(|&e| e.into()).collect::<Vec<u32>>()
        );
        assert_eq!(same.experts(0, 3), same.experts(0, 16));
        let wide = t.clone().fit(32, 4).unwrap();
        for (layer, row) in (0..5).flat_map(|l| (0..30).map(move |r| (l, r))) {
            let ids = wide.experts(layer, row);
            let distinct: std::collections::BTreeSet<_> = ids.iter().collect();
            assert!(distinct.len() == 4 && ids.iter().all(|&e| e < 32), "{ids:?}");
        }
        for (experts, k) in [(12, 2), (8, 3), (8, 4), (4, 2)] {
            assert!(t.clone().fit(experts, k).is_err(), "{experts}, {k}");
        }
    }

    #[test]
    fn lengths_beyond_memory_are_refused() {
        let mut bytes = b"snugrt01".to_vec();
        for n in [1u32, 64, 64, 1, 0, 0, u32::MAX] {
            bytes.extend(n.to_le_bytes());
        }
        assert_eq!(Trace::decode(&bytes).unwrap_err(), NotATrace("it ends early"));
        assert!(Trace::decode(b"snugrt01\xff\xff\xff\xff").is_err() && Trace::decode(b"GGUF").is_err());
    }
}
