//! Memory of backends whose device is the host: allocations by id, and the one place where a handle becomes an address.

use crate::arena::{Arena, Region};
use crate::error::{Error, Result};
use crate::view::{Act, AllocId, Buf, View};
use memmap2::{MmapOptions, MmapRaw, UncheckedAdvice};
use memory::{Class, RegionSizes, Reservation};
use std::collections::BTreeMap;
use std::sync::Arc;

const PAGE: u64 = 4096;
/// A large page, which one entry of the address cache covers and hardware prefetches across.
const LARGE: usize = 2 << 20;

/// Zeroed, page-aligned memory of its own mapping: pages that are never touched cost nothing, and all of it goes back
/// to the system when it is dropped.
///
/// Weights, of which every byte is used, ask the system for large pages as far as whole ones fit (`docs/experiments.md`,
/// E12), and so do the parts of ranges that are backed (E31). What is left beside them lies in small ones, so that no more
/// is resident than was paid for.
struct Block {
    map: MmapRaw,
    /// Where it begins in the mapping, and its bytes from there on.
    first: usize,
    size: u64,
}

impl Block {
    /// `promised`: the system is asked to promise the memory now, where it promises any.
    fn new(bytes: u64, promised: bool) -> Result<Self> {
        let none = Error::OutOfMemory(bytes);
        let Ok(len) = usize::try_from(bytes.max(1)) else { return Err(none) };
        let mut how = MmapOptions::new();
        how.len(len);
        if !promised {
            how.no_reserve_swap();
        }
        let map = how.map_anon().map_err(|_| none)?;
        Ok(Block { map: map.into(), first: 0, size: bytes.max(1) })
    }
    /// All of which will be used.
    fn dense(bytes: u64) -> Result<Self> {
        let block = Block::aligned(bytes, true)?;
        block.ask_for_large_pages(0, bytes);
        Ok(block)
    }
    /// Beginning where a large page may, unless there is no room for one.
    fn aligned(bytes: u64, promised: bool) -> Result<Self> {
        if bytes < LARGE as u64 {
            return Block::new(bytes, promised);
        }
        // Large pages lie at multiples of their size: addresses in front of the first are not used.
        let mut block = Block::new(bytes.saturating_add(LARGE as u64), promised)?;
        let at = block.map.as_mut_ptr().addr();
        (block.first, block.size) = (at.next_multiple_of(LARGE) - at, bytes);
        Ok(block)
    }
    /// For the whole large pages inside a part. Advice only: where the system has none, or none free, small ones do.
    #[cfg(target_os = "linux")]
    fn ask_for_large_pages(&self, off: u64, len: u64) {
        let (first, end) = (off.next_multiple_of(LARGE as u64), (off + len) / LARGE as u64 * LARGE as u64);
        if first < end {
            let _ =
                self.map.advise_range(memmap2::Advice::HugePage, self.first + first as usize, (end - first) as usize);
        }
    }
    #[cfg(not(target_os = "linux"))]
    fn ask_for_large_pages(&self, _: u64, _: u64) {}

    fn first_byte(&self) -> *mut u8 {
        self.map.as_mut_ptr().wrapping_add(self.first)
    }
    /// Gives the memory of whole pages back; they read as zero from then on.
    fn discard(&self, off: u64, len: u64) -> Result<()> {
        // SAFETY: the range is bounds-checked by the callee against this private anonymous mapping, which nobody else
        // maps; that its bytes become zero is what the caller asks for, and no reference into them is alive, because
        // references are only handed out for the time of a borrow of `HostMemory`, which is `&mut` here.
        unsafe { self.map.unchecked_advise_range(UncheckedAdvice::DontNeed, self.first + off as usize, len as usize) }
            .map_err(|e| Error::Other(Box::new(e)))
    }
}

enum Held {
    Own(Arc<Block>, Option<Reservation>),
    Range(Block, Backed),
    Borrowed(&'static [u8]),
}

/// The parts of a range that are backed, by offset, with what pays for them. No two overlap.
#[derive(Default)]
struct Backed(BTreeMap<u64, Reservation>);

impl Backed {
    /// Whether all of `off .. off + len` is backed.
    fn covers(&self, off: u64, len: u64) -> bool {
        let mut at = off;
        while at < off + len {
            match self.0.range(..=at).next_back() {
                Some((start, r)) if start + r.bytes() > at => at = start + r.bytes(),
                _ => return false,
            }
        }
        true
    }
    /// Whether any of it is.
    fn touches(&self, off: u64, len: u64) -> bool {
        self.0.range(..off + len).next_back().is_some_and(|(start, r)| start + r.bytes() > off)
    }
}

/// Memory of an allocation that somebody beside the device fills: a disk. It is there as long as this lives, also when
/// the device is gone.
#[derive(Clone)]
pub struct SharedBytes {
    block: Arc<Block>,
    off: u64,
    len: u64,
}

impl SharedBytes {
    /// Bytes of it.
    pub fn bytes(&self) -> u64 {
        self.len
    }
    /// The address of bytes `at .. at + len`, `None` where they are not all inside. Whoever writes there sees to it that
    /// nobody reads meanwhile.
    pub fn address(&self, at: u64, len: u64) -> Option<*mut u8> {
        let inside = at.checked_add(len).is_some_and(|end| end <= self.len);
        inside.then(|| self.block.first_byte().wrapping_add((self.off + at) as usize))
    }
}

impl std::fmt::Debug for SharedBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} shared bytes", self.len)
    }
}

/// Allocations of a host backend, with its arena.
pub struct HostMemory {
    allocs: Vec<Option<Held>>,
    /// Workspace handles; their bytes are the first two allocations.
    pub arena: Arena,
}

impl HostMemory {
    /// Memory with workspace of these sizes.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn new(sizes: RegionSizes) -> Result<Self> {
        let region = |b| Ok::<_, Error>(Some(Held::Own(Arc::new(Block::new(b, true)?), None)));
        Ok(HostMemory { allocs: vec![region(sizes.step)?, region(sizes.carry)?], arena: Arena::new(sizes) })
    }
    fn insert(&mut self, h: Held) -> AllocId {
        let free = self.allocs.iter().position(Option::is_none);
        let i = free.unwrap_or_else(|| {
            self.allocs.push(None);
            self.allocs.len() - 1
        });
        self.allocs[i] = Some(h);
        AllocId(i as u32)
    }
    /// Gives the memory of a region from byte `from` on back to the system, as far as whole pages lie there. It reads as zero
    /// from then on.
    ///
    /// # Errors
    /// [`Error::BadBuf`] where something is taken there; what the system says.
    pub fn release_workspace(&mut self, r: Region, from: u64) -> Result<()> {
        let from = from.next_multiple_of(PAGE);
        if self.arena.in_use(r) > from {
            return Err(Error::BadBuf);
        }
        match self.allocs.get(Arena::alloc_id(r).0 as usize) {
            Some(Some(Held::Own(block, None))) if block.size > from => block.discard(from, block.size - from),
            _ => Ok(()),
        }
    }
    /// Zeroed memory paid by `r`.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn alloc(&mut self, r: Reservation) -> Result<Buf> {
        let bytes = r.bytes();
        let block = if r.class() == Class::Weights { Block::dense(bytes)? } else { Block::new(bytes, true)? };
        Ok(Buf::whole(self.insert(Held::Own(Arc::new(block), Some(r))), bytes))
    }
    /// Gives an allocation back.
    ///
    /// # Errors
    /// [`Error::BadBuf`] for anything but a live allocation of [`alloc`](Self::alloc).
    pub fn free(&mut self, b: Buf) -> Result<Reservation> {
        let slot = self.allocs.get_mut(b.alloc.0 as usize).ok_or(Error::BadBuf)?;
        match slot.take() {
            Some(Held::Own(_, Some(r))) => Ok(r),
            other => {
                *slot = other;
                Err(Error::BadBuf)
            }
        }
    }
    /// An address range that nothing pays for and nothing backs yet.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] when there are not so many addresses.
    pub fn reserve_range(&mut self, bytes: u64) -> Result<Buf> {
        let block = Block::aligned(bytes, false)?;
        Ok(Buf::whole(self.insert(Held::Range(block, Backed::default())), bytes))
    }
    fn range(&mut self, b: &Buf) -> Result<(&Block, &mut Backed)> {
        match self.allocs.get_mut(b.alloc.0 as usize) {
            Some(Some(Held::Range(block, backed))) => Ok((block, backed)),
            _ => Err(Error::BadBuf),
        }
    }
    /// Backs a part of a range, paid by `r`. It reads as zero.
    ///
    /// # Errors
    /// [`Error::BadBuf`] for what is no range, is not whole pages, is not what `r` pays for, or is backed in part.
    pub fn commit_range(&mut self, part: &Buf, r: Reservation) -> Result<()> {
        let (block, backed) = self.range(part)?;
        let whole = part.off.is_multiple_of(PAGE) && part.len.is_multiple_of(PAGE) && part.len > 0;
        let inside = part.off.checked_add(part.len).is_some_and(|e| e <= block.size);
        if !whole || !inside || r.bytes() != part.len || backed.touches(part.off, part.len) {
            return Err(Error::BadBuf);
        }
        block.ask_for_large_pages(part.off, part.len);
        backed.0.insert(part.off, r);
        Ok(())
    }
    /// Lets the memory of a part go that was backed as one, and returns what paid for it.
    ///
    /// # Errors
    /// [`Error::BadBuf`] for any other part.
    pub fn release_range(&mut self, part: &Buf) -> Result<Reservation> {
        let (block, backed) = self.range(part)?;
        if backed.0.get(&part.off).is_none_or(|r| r.bytes() != part.len) {
            return Err(Error::BadBuf);
        }
        block.discard(part.off, part.len)?;
        backed.0.remove(&part.off).ok_or(Error::BadBuf)
    }
    /// Gives a range back, with everything that is backed in it.
    ///
    /// # Errors
    /// [`Error::BadBuf`] for what is no range.
    pub fn free_range(&mut self, b: &Buf) -> Result<()> {
        self.range(b)?;
        self.allocs[b.alloc.0 as usize] = None;
        Ok(())
    }
    /// Uses bytes in place.
    pub fn borrow(&mut self, bytes: &'static [u8]) -> Buf {
        Buf::whole(self.insert(Held::Borrowed(bytes)), bytes.len() as u64)
    }
    /// The address of a buffer and whether it may be written. Every range is checked against its allocation.
    fn locate(&self, b: &Buf) -> Result<(*mut u8, bool)> {
        let held = self.allocs.get(b.alloc.0 as usize).and_then(Option::as_ref).ok_or(Error::BadBuf)?;
        let (ptr, size, owned) = match held {
            Held::Own(block, _) => (block.first_byte(), block.size, true),
            Held::Range(block, _) => (block.first_byte(), block.size, true),
            Held::Borrowed(s) => (s.as_ptr().cast_mut(), s.len() as u64, false),
        };
        let inside = b.off.checked_add(b.len).is_some_and(|e| e <= size);
        // SAFETY: off <= off + len <= size of the allocation.
        if inside { Ok((unsafe { ptr.add(b.off as usize) }, owned)) } else { Err(Error::BadBuf) }
    }
    /// Refuses what lies in a range and is not backed: the host has no business there.
    fn backed(&self, b: &Buf) -> Result<()> {
        match self.allocs.get(b.alloc.0 as usize) {
            Some(Some(Held::Range(_, backed))) if !backed.covers(b.off, b.len) => Err(Error::BadBuf),
            _ => Ok(()),
        }
    }
    /// The bytes of a buffer.
    ///
    /// # Errors
    /// [`Error::BadBuf`], also for a part of a range that is not backed.
    pub fn bytes(&self, b: &Buf) -> Result<&[u8]> {
        self.backed(b)?;
        let (ptr, _) = self.locate(b)?;
        // SAFETY: located inside a live allocation; `&self` keeps writers through `bytes_mut` out.
        Ok(unsafe { std::slice::from_raw_parts(ptr, b.len as usize) })
    }
    /// The bytes of a buffer, to write.
    ///
    /// # Errors
    /// [`Error::BadBuf`], also for borrowed bytes and for a part of a range that is not backed.
    pub fn bytes_mut(&mut self, b: &Buf) -> Result<&mut [u8]> {
        self.backed(b)?;
        match self.locate(b)? {
            // SAFETY: located inside a live owned allocation, and `&mut self` is exclusive.
            (ptr, true) => Ok(unsafe { std::slice::from_raw_parts_mut(ptr, b.len as usize) }),
            _ => Err(Error::BadBuf),
        }
    }
    /// Address of a buffer's first byte, for kernels.
    pub fn ptr(&self, b: &Buf) -> Result<*const u8> {
        Ok(self.locate(b)?.0.cast_const())
    }
    /// Address of a writable buffer's first byte, for kernels. Kernels of one op write disjoint ranges.
    pub fn ptr_mut(&self, b: &Buf) -> Result<*mut u8> {
        match self.locate(b)? {
            (ptr, true) => Ok(ptr),
            _ => Err(Error::BadBuf),
        }
    }
    /// Address of a checked `f32` view, for kernels.
    pub fn f32(&self, v: &View) -> Result<*mut f32> {
        debug_assert!(v.ty == Act::F32 && v.fits());
        Ok(self.ptr_mut(&v.buf)?.cast())
    }
    /// Address of a checked `i32` view, for kernels.
    pub fn i32(&self, v: &View) -> Result<*mut i32> {
        debug_assert!(v.ty == Act::I32 && v.fits());
        Ok(self.ptr_mut(&v.buf)?.cast())
    }
    /// The memory of an allocation, kept from going back to the system as long as the result lives.
    ///
    /// # Errors
    /// [`Error::BadBuf`] for anything but a part of a live allocation of [`alloc`](Self::alloc).
    pub fn share(&self, b: &Buf) -> Result<SharedBytes> {
        match self.allocs.get(b.alloc.0 as usize) {
            Some(Some(Held::Own(block, Some(_)))) if b.off.checked_add(b.len).is_some_and(|e| e <= block.size) => {
                Ok(SharedBytes { block: block.clone(), off: b.off, len: b.len })
            }
            _ => Err(Error::BadBuf),
        }
    }
    /// Workspace high-water mark in bytes.
    pub fn high_water(&self, r: Region) -> u64 {
        self.arena.high_water(r)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memory::{Class, Ledger, Tier};

    fn paid(l: &Ledger, bytes: u64) -> Reservation {
        l.reserve(Tier::Host, Class::Kv, "test", bytes).unwrap()
    }

    #[test]
    fn weights_begin_at_large_pages_and_are_zero() {
        let l = Ledger::new(&[(Tier::Host, 1 << 30)]);
        let mut m = HostMemory::new(RegionSizes::default()).unwrap();
        for bytes in [1, LARGE as u64 - 1, LARGE as u64, 3 * LARGE as u64 + 5] {
            let b = m.alloc(l.reserve(Tier::Host, Class::Weights, "test", bytes).unwrap()).unwrap();
            assert_eq!(m.ptr(&b).unwrap().addr() % if bytes < LARGE as u64 { PAGE as usize } else { LARGE }, 0);
            assert!(m.bytes(&b).unwrap().iter().all(|&x| x == 0));
            m.bytes_mut(&b).unwrap().fill(1);
            assert_eq!(m.free(b).unwrap().bytes(), bytes);
        }
    }

    #[test]
    fn shared_bytes_outlive_their_allocation() {
        let l = Ledger::new(&[(Tier::Host, 1 << 20)]);
        let mut m = HostMemory::new(RegionSizes::default()).unwrap();
        let b = m.alloc(paid(&l, 8192)).unwrap();
        m.bytes_mut(&b).unwrap().fill(9);
        let shared = m.share(&b.slice(4096, 4096).unwrap()).unwrap();
        drop(m.free(b).unwrap());
        assert!(shared.address(4000, 97).is_none() && shared.address(u64::MAX, 2).is_none());
        let last = shared.address(4095, 1).unwrap();
        // SAFETY: the last byte of memory that `shared` keeps; nobody else has it.
        assert_eq!(unsafe { last.read() }, 9);
        let range = m.reserve_range(4096).unwrap();
        assert!(m.share(&b).is_err() && m.share(&range).is_err());
    }

    #[test]
    fn workspace_that_nobody_is_in_goes_back_and_comes_again() {
        let mut m = HostMemory::new(RegionSizes { step: 3 * PAGE, carry: 0 }).unwrap();
        m.arena.open(Region::Step);
        let all = m.arena.take(Region::Step, 3 * PAGE).unwrap();
        m.bytes_mut(&all).unwrap().fill(7);
        assert!(matches!(m.release_workspace(Region::Step, PAGE), Err(Error::BadBuf)), "somebody is there");
        m.arena.close(Region::Step);
        m.release_workspace(Region::Step, 100).unwrap();
        m.release_workspace(Region::Step, 3 * PAGE).unwrap();
        m.release_workspace(Region::Carry, 0).unwrap();
        m.arena.open(Region::Step);
        let all = m.arena.take(Region::Step, 3 * PAGE).unwrap();
        let bytes = m.bytes_mut(&all).unwrap();
        let (kept, gone) = bytes.split_at(PAGE as usize);
        assert!(kept.iter().all(|&b| b == 7) && gone.iter().all(|&b| b == 0), "whole pages behind the place");
    }

    #[test]
    fn a_range_is_memory_only_where_it_is_committed() {
        let l = Ledger::new(&[(Tier::Host, 1 << 20)]);
        let mut m = HostMemory::new(RegionSizes::default()).unwrap();
        // More than any machine has.
        let range = m.reserve_range(1 << 40).unwrap();
        let part = |off, len| range.slice(off, len).unwrap();
        assert!(m.bytes(&part(0, 1)).is_err());
        m.commit_range(&part(8192, 8192), paid(&l, 8192)).unwrap();
        m.commit_range(&part(16384, 4096), paid(&l, 4096)).unwrap();
        m.bytes_mut(&part(8192, 12288)).unwrap().fill(7);
        assert!(m.bytes(&part(8191, 2)).is_err() && m.bytes(&part(20479, 2)).is_err());
        for (off, len, pays) in [(0, 4096, 8192), (4096, 8192, 8192), (100, 4096, 4096), (16384, 4096, 4096), (0, 0, 0)]
        {
            assert!(m.commit_range(&part(off, len), paid(&l, pays)).is_err(), "{off}, {len}");
        }
        assert!(m.release_range(&part(8192, 4096)).is_err(), "only what was committed as one");
        assert_eq!(m.release_range(&part(8192, 8192)).unwrap().bytes(), 8192);
        assert!(m.bytes(&part(8192, 1)).is_err());
        assert_eq!(l.usage()[&Tier::Host].reserved(), 4096);
        m.commit_range(&part(8192, 8192), paid(&l, 8192)).unwrap();
        assert_eq!(m.bytes(&part(8192, 12288)).unwrap(), [vec![0; 8192], vec![7; 4096]].concat());
        assert!(m.free(range).is_err());
        m.free_range(&range).unwrap();
        assert!(m.bytes(&part(8192, 1)).is_err() && m.free_range(&range).is_err());
        assert_eq!(l.usage()[&Tier::Host].reserved(), 0);
    }
}
