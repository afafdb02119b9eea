//! A free list of fixed-size places: recurrent states, rings, sequence rows.

/// One place.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotId(pub u32);

/// Places `0..n`, each free or taken. The lowest free one is handed out first, so that memory is touched late.
#[derive(Clone, Debug)]
pub struct Slots {
    taken: Vec<bool>,
}

impl Slots {
    /// `n` free places.
    pub fn new(n: u32) -> Self {
        Slots { taken: vec![false; n as usize] }
    }
    /// Takes a place, or `None` when all are taken.
    pub fn take(&mut self) -> Option<SlotId> {
        let i = self.taken.iter().position(|t| !t)?;
        self.taken[i] = true;
        Some(SlotId(i as u32))
    }
    /// Gives a place back. Giving back a free place does nothing.
    pub fn give(&mut self, s: SlotId) {
        if let Some(t) = self.taken.get_mut(s.0 as usize) {
            *t = false;
        }
    }
    /// Free places.
    pub fn free(&self) -> u32 {
        self.taken.iter().filter(|t| !**t).count() as u32
    }
    /// All places.
    pub fn total(&self) -> u32 {
        self.taken.len() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_is_handed_out_once() {
        let mut s = Slots::new(3);
        let got: Vec<_> = std::iter::from_fn(|| s.take()).collect();
        assert_eq!(got, [SlotId(0), SlotId(1), SlotId(2)]);
        s.give(SlotId(1));
        assert_eq!(s.take(), Some(SlotId(1)));
        assert_eq!(s.take(), None);
    }
}
