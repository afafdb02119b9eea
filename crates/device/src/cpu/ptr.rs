//! Addresses that several threads may hold at once.

/// The first element of a range that tasks of one job read together, or write in disjoint pieces.
#[derive(Copy, Clone, Debug)]
pub struct Ptr<T>(*mut T);

// SAFETY: a `Ptr` is only an address; every access is an `unsafe` call that states why it does not race.
unsafe impl<T> Send for Ptr<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Ptr<T> {}

impl<T> Ptr<T> {
    /// No address.
    pub const NULL: Self = Ptr(std::ptr::null_mut());

    /// From a writable address.
    pub fn new(p: *mut T) -> Self {
        Ptr(p)
    }
    /// From an address that is only read.
    pub fn of(p: *const T) -> Self {
        Ptr(p.cast_mut())
    }
    /// The address itself.
    pub fn raw(self) -> *mut T {
        self.0
    }
    /// Elements `at .. at + n`.
    ///
    /// # Safety
    /// They are initialised, aligned, alive for `'a`, and nobody writes them meanwhile.
    pub unsafe fn slice<'a>(self, at: usize, n: usize) -> &'a [T] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts(self.0.add(at), n) }
    }
    /// Elements `at .. at + n`, to write.
    ///
    /// # Safety
    /// As [`slice`](Self::slice), and nobody else reads or writes them meanwhile.
    pub unsafe fn slice_mut<'a>(self, at: usize, n: usize) -> &'a mut [T] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(at), n) }
    }
}
