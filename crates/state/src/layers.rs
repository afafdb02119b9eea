//! The memory behind each layer's stream: one allocation for all pages or rings of a layer, two for its recurrent
//! states. Host memory of pages that no sequence has touched is never backed.

use crate::decl::{Decl, Limits, Stream};
use crate::error::{Error, Result};
use device::{Buf, Device, RecView, Side, StreamView};
use memory::{KvSpec, Reservation};
use std::collections::BTreeMap;

enum Layer {
    Pages(StreamView),
    States(RecView),
}

/// Streams by layer.
#[derive(Default)]
pub(crate) struct Layers(BTreeMap<u32, Layer>);

impl Layers {
    /// Allocates the streams, paid by `kv` and `state`, which hold exactly their bytes. `made` lists what was
    /// allocated, also when something failed.
    pub fn new(
        decls: &[Decl],
        limits: &Limits,
        mut kv: Reservation,
        mut state: Reservation,
        dev: &mut dyn Device,
        made: &mut Vec<Buf>,
    ) -> Result<Self> {
        let mut take = |from: &mut Reservation, bytes| -> Result<Buf> {
            let b = dev.alloc(from.split(bytes))?;
            made.push(b);
            Ok(b)
        };
        let mut layers = BTreeMap::new();
        for of in decls {
            let s = &of.stream;
            let layer = match *s {
                Stream::History { heads, d, kv: KvSpec { main: fmt, .. } } | Stream::Ring { heads, d, fmt, .. } => {
                    let buf = take(&mut kv, s.kv_bytes(limits))?;
                    let (page_bytes, ring) = (s.page_bytes().unwrap_or(0), s.ring_pages(limits) as u32);
                    let mut beside = [None, None];
                    for ((to, side), bytes) in beside.iter_mut().zip(s.sides(limits)).zip(s.side_bytes(limits)) {
                        let Some((fmt, page_bytes, ring)) = side else { continue };
                        *to = Some(Side { buf: take(&mut kv, bytes)?, page_bytes, fmt, ring });
                    }
                    let [own, sink] = beside;
                    Layer::Pages(StreamView { buf, page_bytes, fmt, heads, d, ring, layer: of.layer, own, sink })
                }
                Stream::Recurrent { state: shape, conv } => {
                    let [s, c] = s.rec_bytes(limits);
                    let (s, c) = (take(&mut state, s)?, take(&mut state, c)?);
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
