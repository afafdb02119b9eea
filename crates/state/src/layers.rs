//! The memory behind each layer's stream: one address range for all pages of a history, one allocation for all rings of
//! a layer, two for its recurrent states.

use crate::decl::{Decl, Limits, Stream};
use crate::error::{Error, Result};
use device::{Buf, Device, RecView, Side, StreamView};
use memory::{KvSpec, Reservation, SlotId};
use std::collections::BTreeMap;
use std::ops::Range;

enum Layer {
    Pages(StreamView),
    States(RecView),
}

/// What was taken from a device, to give back.
#[derive(Default)]
pub(crate) struct Made {
    pub allocs: Vec<Buf>,
    /// Address ranges of histories.
    pub ranges: Vec<Buf>,
}

/// Streams by layer.
#[derive(Default)]
pub(crate) struct Layers(BTreeMap<u32, Layer>);

impl Layers {
    /// Allocates rings and states, paid by `rings` and `state`, which hold exactly their bytes, and takes addresses for
    /// histories. `made` lists what was made, also when something failed.
    pub fn new(
        decls: &[Decl],
        limits: &Limits,
        mut rings: Reservation,
        mut state: Reservation,
        dev: &mut dyn Device,
        made: &mut Made,
    ) -> Result<Self> {
        let mut take = |dev: &mut dyn Device, from: &mut Reservation, bytes| -> Result<Buf> {
            let b = dev.alloc(from.split(bytes))?;
            made.allocs.push(b);
            Ok(b)
        };
        let mut layers = BTreeMap::new();
        for of in decls {
            let s = &of.stream;
            let layer = match *s {
                Stream::History { heads, d, kv: KvSpec { main: fmt, .. } } => {
                    let buf = dev.reserve_range(s.kv_bytes(limits))?;
                    made.ranges.push(buf);
                    let mut beside = [None, None];
                    for ((to, side), bytes) in beside.iter_mut().zip(s.sides(limits)).zip(s.side_bytes(limits)) {
                        let Some((fmt, page_bytes, ring)) = side else { continue };
                        let buf = take(dev, &mut rings, bytes)?;
                        *to = Some(Side { buf, page_bytes, fmt, ring });
                    }
                    let ([own, sink], page_bytes) = (beside, s.page_bytes().unwrap_or(0));
                    Layer::Pages(StreamView { buf, page_bytes, fmt, heads, d, ring: 0, layer: of.layer, own, sink })
                }
                Stream::Ring { heads, d, fmt, .. } => {
                    let buf = take(dev, &mut rings, s.kv_bytes(limits))?;
                    let (page_bytes, ring) = (s.page_bytes().unwrap_or(0), s.ring_pages(limits) as u32);
                    let layer = of.layer;
                    Layer::Pages(StreamView { buf, page_bytes, fmt, heads, d, ring, layer, own: None, sink: None })
                }
                Stream::Recurrent { state: shape, conv } => {
                    let [s, c] = s.rec_bytes(limits);
                    let (s, c) = (take(dev, &mut state, s)?, take(dev, &mut state, c)?);
                    let (state_elems, conv_elems) = (shape.iter().product(), conv.iter().product());
                    Layer::States(RecView { state: s, state_elems, conv: c, conv_elems, slots: limits.rec_slots() })
                }
            };
            layers.insert(of.layer, layer);
        }
        Ok(Layers(layers))
    }
    /// Whether any layer has a recurrent state.
    pub fn recurrent(&self) -> bool {
        self.0.values().any(|l| matches!(l, Layer::States(_)))
    }
    /// Bytes of `n` pages over all histories.
    pub fn page_bytes(&self, n: u32) -> u64 {
        self.paged().map(|v| v.page_bytes.saturating_mul(n as u64)).fold(0, u64::saturating_add)
    }
    /// Backs these pages of every history, paid by `r`, which has [`page_bytes`](Self::page_bytes). All or none.
    pub fn commit(&self, dev: &mut dyn Device, pages: &Range<u32>, mut r: Reservation) -> Result<()> {
        for (i, v) in self.paged().enumerate() {
            let part = part(&v, pages)?;
            if let Err(e) = dev.commit_range(part, r.split(part.bytes())) {
                // The first error is the one to tell.
                let _ = self.paged().take(i).try_for_each(|v| release(dev, &v, pages));
                return Err(e.into());
            }
        }
        Ok(())
    }
    /// Lets the memory of these pages go in every history.
    pub fn release(&self, dev: &mut dyn Device, pages: &Range<u32>) -> Result<()> {
        self.paged().try_for_each(|v| release(dev, &v, pages))
    }
    /// Copies what the rings at one place hold to another place, those beside histories too.
    pub fn copy_rings(&self, dev: &mut dyn Device, from: SlotId, to: SlotId) -> Result<()> {
        for (_, v) in self.histories() {
            let rings = (v.ring > 0).then_some((v.buf, v.page_bytes, v.ring));
            let beside = [v.own, v.sink].into_iter().flatten().map(|s| (s.buf, s.page_bytes, s.ring));
            for (buf, page_bytes, ring) in rings.into_iter().chain(beside) {
                copy_ring(dev, buf, (page_bytes, ring as u64), from, to)?;
            }
        }
        Ok(())
    }
    fn paged(&self) -> impl Iterator<Item = StreamView> {
        self.histories().map(|(_, v)| v).filter(|v| v.ring == 0)
    }
    /// Histories and rings, by layer.
    pub fn histories(&self) -> impl Iterator<Item = (u32, StreamView)> {
        self.0.iter().filter_map(|(&l, of)| if let Layer::Pages(v) = of { Some((l, *v)) } else { None })
    }
    /// Recurrent states, by layer.
    pub fn states(&self) -> impl Iterator<Item = (u32, RecView)> {
        self.0.iter().filter_map(|(&l, of)| if let Layer::States(v) = of { Some((l, *v)) } else { None })
    }
    pub fn view(&self, layer: u32) -> Result<StreamView> {
        match self.0.get(&layer) {
            Some(Layer::Pages(v)) => Ok(*v),
            _ => Err(Error::NoStream { layer, kind: "history or ring" }),
        }
    }
    pub fn rec(&self, layer: u32) -> Result<RecView> {
        match self.0.get(&layer) {
            Some(Layer::States(v)) => Ok(*v),
            _ => Err(Error::NoStream { layer, kind: "recurrent state" }),
        }
    }
}

/// Copies page by page through the host, so that no more than a page is held. Pages are few and copied once a segment.
fn copy_ring(dev: &mut dyn Device, buf: Buf, (page, ring): (u64, u64), from: SlotId, to: SlotId) -> Result<()> {
    let mut bytes = vec![0; page as usize];
    let at = |place: SlotId, i: u64| buf.slice((place.0 as u64 * ring + i) * page, page).ok_or(device::Error::BadBuf);
    for i in 0..ring {
        match dev.read(at(from, i)?, &mut bytes) {
            // A dry run holds nothing.
            Err(device::Error::Dry) => return Ok(()),
            other => other?,
        }
        dev.write(at(to, i)?, &bytes)?;
    }
    Ok(())
}

/// The bytes of some pages of a history.
fn part(v: &StreamView, pages: &Range<u32>) -> Result<Buf> {
    let bytes = |n: u64| v.page_bytes.saturating_mul(n);
    v.buf.slice(bytes(pages.start as u64), bytes(pages.len() as u64)).ok_or(Error::Device(device::Error::BadBuf))
}

fn release(dev: &mut dyn Device, v: &StreamView, pages: &Range<u32>) -> Result<()> {
    dev.release_range(part(v, pages)?)?;
    Ok(())
}
