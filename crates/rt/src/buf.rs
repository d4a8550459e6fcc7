//! Aligned memory for I/O: [`Buf`] while it is being filled, [`Slice`] once it is frozen and shared.
//!
//! Invariants: the memory of a `Buf` begins at a multiple of [`BLOCK`] and is always initialised; a
//! `Slice` never changes, so that digest, parity and device see the same bytes (rule S16). A `Buf` of a
//! large page (2 MiB) or more begins at one and asks for them, as far as whole ones fit in it: fewer pages
//! are quicker to get and to read, and it takes no more memory. Shorter ones would take more.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::Arc;

/// 4 KiB: the unit of device space, and the alignment of every buffer.
pub const BLOCK: usize = 4096;

/// What the processor can map as one page.
const LARGE_PAGE: usize = 2 << 20;

/// Owned, zero-initialised, [`BLOCK`]-aligned bytes.
pub struct Buf {
    memory: NonNull<u8>,
    len: usize,
}

#[expect(unsafe_code, reason = "aligned allocation")]
mod raw {
    use super::*;

    // SAFETY: a `Buf` is the only owner of its memory, as a `Box<[u8]>` would be.
    unsafe impl Send for Buf {}
    // SAFETY: as above; shared access is read-only.
    unsafe impl Sync for Buf {}

    fn layout(len: usize) -> Layout {
        let align = if len < LARGE_PAGE { BLOCK } else { LARGE_PAGE };
        Layout::from_size_align(len.max(1), align).expect("a buffer is smaller than isize::MAX")
    }

    /// Asks for large pages where whole ones of `memory` can be: fewer pages are quicker to read. A kernel
    /// without them refuses, which costs nothing.
    pub fn ask_large_pages(memory: &mut [u8]) {
        let skip = memory.as_ptr().align_offset(LARGE_PAGE).min(memory.len());
        let whole = (memory.len() - skip) / LARGE_PAGE * LARGE_PAGE;
        if whole > 0 {
            // SAFETY: the pages are within the slice, and the advice changes no contents.
            unsafe {
                libc::madvise(
                    memory.as_mut_ptr().add(skip).cast(),
                    whole,
                    libc::MADV_HUGEPAGE,
                );
            }
        }
    }

    impl Buf {
        /// `len` zero bytes. Lengths need not be multiples of [`BLOCK`]; the start always is.
        pub fn zeroed(len: usize) -> Buf {
            // SAFETY: the layout's size is at least 1.
            let memory = unsafe { alloc(layout(len)) };
            let Some(memory) = NonNull::new(memory) else {
                handle_alloc_error(layout(len))
            };
            // SAFETY: within what was allocated; the advice before it changes no contents.
            unsafe {
                let whole = len / LARGE_PAGE * LARGE_PAGE;
                if whole > 0 {
                    libc::madvise(memory.as_ptr().cast(), whole, libc::MADV_HUGEPAGE);
                }
                memory.as_ptr().write_bytes(0, len);
            }
            Buf { memory, len }
        }

        pub(super) fn bytes(&self) -> &[u8] {
            // SAFETY: `memory` is valid and initialised for `len` bytes while `self` lives.
            unsafe { std::slice::from_raw_parts(self.memory.as_ptr(), self.len) }
        }

        pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
            // SAFETY: as in `bytes`, and `&mut self` makes this the only reference.
            unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr(), self.len) }
        }
    }

    impl Drop for Buf {
        fn drop(&mut self) {
            // SAFETY: allocated in `zeroed` with the same layout, and freed only here.
            unsafe { dealloc(self.memory.as_ptr(), layout(self.len)) }
        }
    }
}

pub use raw::ask_large_pages;

impl Buf {
    /// A copy of `bytes`.
    pub fn copy_of(bytes: &[u8]) -> Buf {
        let mut buf = Buf::zeroed(bytes.len());
        buf.copy_from_slice(bytes);
        buf
    }

    /// Ends writing: from now on the bytes can be shared but not changed.
    pub fn freeze(self) -> Slice {
        let range = 0..self.len;
        Slice {
            buf: Arc::new(self),
            range,
        }
    }
}

impl Deref for Buf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.bytes()
    }
}

impl DerefMut for Buf {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.bytes_mut()
    }
}

impl std::fmt::Debug for Buf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buf({} bytes)", self.len)
    }
}

/// A range of a frozen [`Buf`]; cheap to clone and to cut.
#[derive(Clone)]
pub struct Slice {
    buf: Arc<Buf>,
    range: Range<usize>,
}

impl Slice {
    /// The part `range` of this slice.
    ///
    /// # Panics
    /// If `range` reaches beyond this slice.
    pub fn cut(&self, range: Range<usize>) -> Slice {
        assert!(
            range.start <= range.end && range.end <= self.len(),
            "a cut lies inside its slice"
        );
        let start = self.range.start;
        Slice {
            buf: self.buf.clone(),
            range: start + range.start..start + range.end,
        }
    }

    /// Zero bytes, `len` of them.
    pub fn zeroed(len: usize) -> Slice {
        Buf::zeroed(len).freeze()
    }
}

impl Deref for Slice {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.buf[self.range.clone()]
    }
}

impl From<Buf> for Slice {
    fn from(buf: Buf) -> Slice {
        buf.freeze()
    }
}

impl std::fmt::Debug for Slice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Slice({} bytes)", self.range.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_and_zero() {
        for len in [0, 1, 4095, 4096, 70_000, LARGE_PAGE, 5_000_000] {
            let mut buf = Buf::zeroed(len);
            assert_eq!(buf.as_ptr() as usize % BLOCK, 0);
            assert!(buf.iter().all(|b| *b == 0));
            // Memory that is used again is zero again.
            buf.fill(1);
            drop(buf);
            assert!(Buf::zeroed(len).iter().all(|b| *b == 0));
        }
    }

    #[test]
    fn cuts_of_cuts_keep_their_bytes() {
        let mut buf = Buf::zeroed(100);
        for (i, byte) in buf.iter_mut().enumerate() {
            *byte = u8::try_from(i).expect("small");
        }
        let slice = buf.freeze().cut(10..90).cut(5..7);
        assert_eq!(&*slice, &[15, 16]);
    }
}
