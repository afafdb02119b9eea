//! One bump allocator for the workspace of every backend. It hands out handles and counts; the bytes behind its two
//! regions belong to the backend. Because sizes follow from shapes alone, the same step takes the same addresses every
//! time, and a dry run measures exactly what a real one will take.

use crate::error::Error;
use crate::view::{AllocId, Buf};
use memory::RegionSizes;

/// Alignment of everything handed out, in bytes.
pub const ALIGN: u64 = 64;

/// What a piece of workspace lives as long as.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Region {
    /// A step, or a scope inside one.
    Step,
    /// Several steps: the residual rows of a prompt slice. Decode addresses never move, because they are not here.
    Carry,
}

#[derive(Debug, Default)]
struct Bump {
    capacity: u64,
    top: u64,
    high: u64,
    /// Open scopes, innermost last: (number, top when it was opened).
    open: Vec<(u64, u64)>,
}

/// Two regions of workspace.
#[derive(Debug)]
pub struct Arena {
    regions: [Bump; 2],
    scopes: u64,
}

impl Arena {
    /// Allocation id of a region's memory in every backend.
    pub fn alloc_id(r: Region) -> AllocId {
        AllocId(r as u32)
    }
    /// First id that a backend may give to its own allocations.
    pub const FIRST_FREE_ID: u32 = 2;

    /// Regions of these capacities.
    pub fn new(sizes: RegionSizes) -> Self {
        let bump = |capacity| Bump { capacity, ..Bump::default() };
        Arena { regions: [bump(sizes.step), bump(sizes.carry)], scopes: 0 }
    }
    /// Regions that never run out: for dry runs.
    pub fn unbounded() -> Self {
        Arena::new(RegionSizes { step: u64::MAX, carry: u64::MAX })
    }
    /// Most bytes ever in use at once.
    pub fn high_water(&self, r: Region) -> u64 {
        self.regions[r as usize].high
    }
    /// Bytes in use now, with what lies between them.
    pub fn in_use(&self, r: Region) -> u64 {
        self.regions[r as usize].top
    }
    /// Forgets the high-water marks.
    pub fn reset_high_water(&mut self) {
        for b in &mut self.regions {
            b.high = b.top;
        }
    }
    /// Takes `bytes` until the innermost open scope of the region closes.
    ///
    /// # Errors
    /// [`Error::NoScope`] outside any scope, [`Error::ArenaFull`] beyond the capacity.
    pub fn take(&mut self, r: Region, bytes: u64) -> Result<Buf, Error> {
        let b = &mut self.regions[r as usize];
        let &(scope, _) = b.open.last().ok_or(Error::NoScope)?;
        let full = Error::ArenaFull { region: r, asked: bytes, free: b.capacity - b.top };
        let end = bytes.checked_next_multiple_of(ALIGN).and_then(|n| b.top.checked_add(n));
        let Some(end) = end.filter(|&e| e <= b.capacity) else { return Err(full) };
        let off = b.top;
        b.top = end;
        b.high = b.high.max(end);
        Ok(Buf { alloc: Self::alloc_id(r), off, len: bytes, scope })
    }
    /// Opens a scope of a region that lasts until [`close`](Self::close), where it cannot be the extent of a function: a
    /// segment's. Scopes of steps are [`scope`](trait.Device.html#method.scope)s.
    pub fn open(&mut self, r: Region) {
        self.scopes += 1;
        let b = &mut self.regions[r as usize];
        b.open.push((self.scopes, b.top));
    }
    /// Closes the innermost scope of a region.
    pub fn close(&mut self, r: Region) {
        let b = &mut self.regions[r as usize];
        if let Some((_, top)) = b.open.pop() {
            b.top = top;
        }
    }
    /// Whether the scope that owns `buf` is still open (always, outside arenas).
    pub fn lives(&self, buf: &Buf) -> bool {
        buf.scope == 0 || self.regions.iter().any(|b| b.open.iter().any(|&(s, _)| s == buf.scope))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_scope_gives_its_bytes_back_and_its_handles_die() {
        let mut a = Arena::new(RegionSizes { step: 256, carry: 0 });
        assert!(matches!(a.take(Region::Step, 1), Err(Error::NoScope)));
        a.open(Region::Step);
        let x = a.take(Region::Step, 100).unwrap();
        a.open(Region::Step);
        let y = a.take(Region::Step, 64).unwrap();
        assert_eq!(y.off, 128);
        assert!(matches!(a.take(Region::Step, 65), Err(Error::ArenaFull { asked: 65, free: 64, .. })));
        a.close(Region::Step);
        assert!(a.lives(&x) && !a.lives(&y));
        assert_eq!(a.take(Region::Step, 64).unwrap().off, 128);
        assert_eq!(a.high_water(Region::Step), 192);
    }

    #[test]
    fn sizes_near_the_end_of_the_address_space_are_refused() {
        let mut a = Arena::unbounded();
        a.open(Region::Carry);
        a.take(Region::Carry, 1).unwrap();
        assert!(a.take(Region::Carry, u64::MAX - 64).is_err());
        assert!(a.take(Region::Carry, u64::MAX).is_err());
    }
}
