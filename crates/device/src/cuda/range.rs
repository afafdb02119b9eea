//! Address ranges whose memory comes and goes. The card maps memory by granules of some megabytes; a granule is there as long
//! as a committed part lies in it. What is mapped beyond the parts is at most two granules a part.

use super::driver::{Context, Granule, Ptr};
use crate::error::{Error, Result};
use memory::Reservation;
use std::collections::BTreeMap;

/// A range of addresses.
pub struct Range {
    /// Its first address.
    pub ptr: Ptr,
    /// Bytes that were asked for.
    pub bytes: u64,
    reserved: u64,
    granule: u64,
    /// What pays for committed parts, by offset.
    parts: BTreeMap<u64, Reservation>,
    /// Mapped granules by number, with the parts that lie in each.
    granules: BTreeMap<u64, (Granule, u32)>,
}

impl Range {
    pub fn new(cx: &Context, bytes: u64) -> Result<Self> {
        let granule = cx.granule()?;
        let reserved = bytes.max(1).checked_next_multiple_of(granule).ok_or(Error::OutOfMemory(bytes))?;
        let (parts, granules) = (BTreeMap::new(), BTreeMap::new());
        Ok(Range { ptr: cx.reserve(reserved)?, bytes, reserved, granule, parts, granules })
    }
    fn touched(&self, off: u64, len: u64) -> std::ops::Range<u64> {
        off / self.granule..(off + len).div_ceil(self.granule)
    }
    /// Whether any byte of a part is committed.
    fn taken(&self, off: u64, len: u64) -> bool {
        self.parts.range(..off + len).next_back().is_some_and(|(start, r)| start + r.bytes() > off)
    }
    /// Backs a part with zeroed memory.
    pub fn commit(&mut self, cx: &Context, off: u64, len: u64, r: Reservation) -> Result<()> {
        let inside = off.checked_add(len).is_some_and(|e| e <= self.bytes);
        if len == 0 || !inside || r.bytes() != len || self.taken(off, len) {
            return Err(Error::BadBuf);
        }
        for g in self.touched(off, len) {
            match self.granules.get_mut(&g) {
                Some((_, users)) => *users += 1,
                None => match cx.map(self.ptr + g * self.granule, self.granule) {
                    Ok(held) => {
                        self.granules.insert(g, (held, 1));
                    }
                    Err(e) => {
                        self.leave(cx, off / self.granule..g)?;
                        return Err(e);
                    }
                },
            }
        }
        self.parts.insert(off, r);
        cx.zero(self.ptr + off, len)
    }
    /// Lets a part go that was committed as one.
    pub fn release(&mut self, cx: &Context, off: u64, len: u64) -> Result<Reservation> {
        if self.parts.get(&off).is_none_or(|r| r.bytes() != len) {
            return Err(Error::BadBuf);
        }
        self.leave(cx, self.touched(off, len))?;
        self.parts.remove(&off).ok_or(Error::BadBuf)
    }
    fn leave(&mut self, cx: &Context, granules: std::ops::Range<u64>) -> Result<()> {
        for g in granules {
            let last = self.granules.get_mut(&g).is_some_and(|(_, users)| {
                *users -= 1;
                *users == 0
            });
            if let Some((held, _)) = last.then(|| self.granules.remove(&g)).flatten() {
                cx.unmap(held)?;
            }
        }
        Ok(())
    }
    /// Gives everything back.
    pub fn close(mut self, cx: &Context) -> Result<()> {
        for (_, (held, _)) in std::mem::take(&mut self.granules) {
            cx.unmap(held)?;
        }
        cx.unreserve(self.ptr, self.reserved)
    }
}
