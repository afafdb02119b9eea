//! The memory behind each layer's stream: one address range for all pages of a history, one allocation for all rings of
//! a layer, two for its recurrent states.

use crate::decl::{Decl, Limits, Stream};
use crate::error::{Error, Result};
use device::{Buf, Device, RecView, StreamView};
use memory::Reservation;
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
        for d in decls {
            let s = &d.stream;
            let layer = match *s {
                Stream::History { heads, d, fmt } => {
                    let buf = dev.reserve_range(s.kv_bytes(limits))?;
                    made.ranges.push(buf);
                    Layer::Pages(StreamView { buf, page_bytes: s.page_bytes().unwrap_or(0), fmt, heads, d, ring: 0 })
                }
                Stream::Ring { heads, d, fmt, .. } => {
                    let buf = take(dev, &mut rings, s.kv_bytes(limits))?;
                    let (page_bytes, ring) = (s.page_bytes().unwrap_or(0), s.ring_pages(limits) as u32);
                    Layer::Pages(StreamView { buf, page_bytes, fmt, heads, d, ring })
                }
                Stream::Recurrent { state: of, conv } => {
                    let [s, c] = s.rec_bytes(limits);
                    let (s, c) = (take(dev, &mut state, s)?, take(dev, &mut state, c)?);
                    let (state_elems, conv_elems) = (of.iter().product(), conv.iter().product());
                    Layer::States(RecView { state: s, state_elems, conv: c, conv_elems, slots: limits.rec_slots() })
                }
            };
            layers.insert(d.layer, layer);
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

/// The bytes of some pages of a history.
fn part(v: &StreamView, pages: &Range<u32>) -> Result<Buf> {
    let bytes = |n: u64| v.page_bytes.saturating_mul(n);
    v.buf.slice(bytes(pages.start as u64), bytes(pages.len() as u64)).ok_or(Error::Device(device::Error::BadBuf))
}

fn release(dev: &mut dyn Device, v: &StreamView, pages: &Range<u32>) -> Result<()> {
    dev.release_range(part(v, pages)?)?;
    Ok(())
}
