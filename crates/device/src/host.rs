//! Memory of backends whose device is the host: allocations by id, and the one place where a handle becomes an address.

use crate::arena::{Arena, Region};
use crate::error::{Error, Result};
use crate::view::{Act, AllocId, Buf, View};
use memory::{Class, RegionSizes, Reservation};
use std::alloc::{Layout, alloc_zeroed, dealloc};

const PAGE: usize = 4096;
/// A large page, which one entry of the address cache covers and hardware prefetches across.
const LARGE: usize = 2 << 20;

/// Zeroed, page-aligned memory. Pages that are never touched cost nothing: the allocator is asked for its own alignment
/// and a page more, because zeroed memory of a larger alignment would be written at once.
///
/// Weights, of which every byte is used, ask the system for large pages as far as whole ones fit: `docs/experiments.md`,
/// E10. What is left behind the last of them lies in small ones, so that no more is resident than was paid for.
struct Block {
    start: *mut u8,
    layout: Layout,
    /// The first page boundary in it, and the bytes from there on.
    ptr: *mut u8,
    size: u64,
}

impl Block {
    fn new(bytes: u64, dense: bool) -> Result<Self> {
        let large = if dense { usize::try_from(bytes).map_or(0, |b| b / LARGE * LARGE) } else { 0 };
        let align = if large > 0 { LARGE } else { PAGE };
        let size = usize::try_from(bytes.max(1)).ok().and_then(|s| s.checked_add(align));
        let layout = size.and_then(|s| Layout::from_size_align(s, 16).ok()).ok_or(Error::OutOfMemory(bytes))?;
        // SAFETY: the layout's size is more than a page.
        let start = unsafe { alloc_zeroed(layout) };
        if start.is_null() {
            return Err(Error::OutOfMemory(bytes));
        }
        let ptr = start.wrapping_add(start.addr().next_multiple_of(align) - start.addr());
        if large > 0 {
            ask_for_large_pages(ptr, large);
        }
        Ok(Block { start, layout, ptr, size: bytes.max(1) })
    }
}

/// Advice only: where the system has no large pages, or none free, small ones do.
#[cfg(target_os = "linux")]
fn ask_for_large_pages(at: *mut u8, bytes: usize) {
    // SAFETY: the range is inside one live allocation and whole pages; the advice changes no contents.
    let _ = unsafe { rustix::mm::madvise(at.cast(), bytes, rustix::mm::Advice::LinuxHugepage) };
}

#[cfg(not(target_os = "linux"))]
fn ask_for_large_pages(_: *mut u8, _: usize) {}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout and freed only here.
        unsafe { dealloc(self.start, self.layout) }
    }
}

// SAFETY: a block is plain memory with one owner.
unsafe impl Send for Block {}
// SAFETY: shared access happens only through the kernels, which are handed disjoint or read-only ranges.
unsafe impl Sync for Block {}

enum Held {
    Own(Block, Option<Reservation>),
    Borrowed(&'static [u8]),
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
        let region = |b| Ok::<_, Error>(Some(Held::Own(Block::new(b, false)?, None)));
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
    /// Zeroed memory paid by `r`.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn alloc(&mut self, r: Reservation) -> Result<Buf> {
        let bytes = r.bytes();
        let block = Block::new(bytes, r.class() == Class::Weights)?;
        Ok(Buf::whole(self.insert(Held::Own(block, Some(r))), bytes))
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
    /// Uses bytes in place.
    pub fn borrow(&mut self, bytes: &'static [u8]) -> Buf {
        Buf::whole(self.insert(Held::Borrowed(bytes)), bytes.len() as u64)
    }
    /// The address of a buffer and whether it may be written. Every range is checked against its allocation.
    fn locate(&self, b: &Buf) -> Result<(*mut u8, bool)> {
        let held = self.allocs.get(b.alloc.0 as usize).and_then(Option::as_ref).ok_or(Error::BadBuf)?;
        let (ptr, size, owned) = match held {
            Held::Own(block, _) => (block.ptr, block.size, true),
            Held::Borrowed(s) => (s.as_ptr().cast_mut(), s.len() as u64, false),
        };
        let inside = b.off.checked_add(b.len).is_some_and(|e| e <= size);
        // SAFETY: off <= off + len <= size of the allocation.
        if inside { Ok((unsafe { ptr.add(b.off as usize) }, owned)) } else { Err(Error::BadBuf) }
    }
    /// The bytes of a buffer.
    pub fn bytes(&self, b: &Buf) -> Result<&[u8]> {
        let (ptr, _) = self.locate(b)?;
        // SAFETY: located inside a live allocation; `&self` keeps writers through `bytes_mut` out.
        Ok(unsafe { std::slice::from_raw_parts(ptr, b.len as usize) })
    }
    /// The bytes of a buffer, to write.
    ///
    /// # Errors
    /// [`Error::BadBuf`] also for borrowed bytes.
    pub fn bytes_mut(&mut self, b: &Buf) -> Result<&mut [u8]> {
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
    /// Workspace high-water mark in bytes.
    pub fn high_water(&self, r: Region) -> u64 {
        self.arena.high_water(r)
    }
}
