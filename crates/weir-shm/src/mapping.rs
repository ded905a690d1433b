//! Memory that processes share: an anonymous mapping, seen as atomics.

use std::io;
use std::mem::{align_of, size_of};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// What may lie in a [`Mapping`].
///
/// # Safety
///
/// A value of all zero bytes is valid; other processes and threads may change it
/// at any time through a shared reference (it is made of atomics, or kept by a
/// lock of the operating system); it has no pointers and needs no drop.
pub(crate) unsafe trait Shared {}

// SAFETY: an atomic integer; zero is a number.
unsafe impl Shared for AtomicU32 {}
// SAFETY: as above.
unsafe impl Shared for AtomicU64 {}

/// An anonymous shared mapping, zero at first. Processes forked after it was made
/// share it; it goes with the last of them.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: it is only ever seen as `Shared` values, which any thread may use.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes, from 1. Memory is taken as it is first written.
    pub(crate) fn new(len: usize) -> io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice overlaps no
        // other memory.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        match NonNull::new(start.cast()) {
            Some(start) => Ok(Self { start, len }),
            None => Err(io::Error::other("a mapping at address zero")),
        }
    }

    /// `count` values from byte `offset` on.
    ///
    /// # Panics
    ///
    /// If they are not within the mapping, or not aligned.
    pub(crate) fn slice<T: Shared>(&self, offset: usize, count: usize) -> &[T] {
        let size = count.checked_mul(size_of::<T>()).expect("a size that fits");
        assert!(offset.checked_add(size).is_some_and(|end| end <= self.len), "beyond the mapping");
        assert!(offset.is_multiple_of(align_of::<T>()), "not aligned");
        // SAFETY: within the mapping and aligned, since it begins at a page; it
        // lives as long as `self`; zero bytes and whatever other processes write
        // there are valid, since T is Shared.
        unsafe { slice::from_raw_parts(self.start.as_ptr().add(offset).cast(), count) }
    }

    /// The value at byte `offset`.
    ///
    /// # Panics
    ///
    /// As [`slice`](Self::slice).
    pub(crate) fn at<T: Shared>(&self, offset: usize) -> &T {
        &self.slice(offset, 1)[0]
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` and not unmapped since; nothing borrowed from
        // it outlives it.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}
