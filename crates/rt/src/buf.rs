//! Aligned memory for I/O: [`Buf`] while it is being filled, [`Slice`] once it is frozen and shared.
//!
//! Invariants: the memory of a `Buf` begins at a multiple of [`BLOCK`] and is always initialised; a
//! `Slice` never changes, so that digest, parity and device see the same bytes (rule R16). Memory of buffers is
//! used again by the thread that drops them, up to [`KEPT_BYTES`]. A `Buf` of a large page (2 MiB) or more begins at one and asks for them, as far as whole ones fit in it: fewer pages
//! are quicker to get and to read, and it takes no more memory. Shorter ones would take more.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::Arc;

/// 4 KiB: the unit of device space, and the alignment of every buffer.
pub const BLOCK: usize = 4096;

/// What the processor can map as one page.
const LARGE_PAGE: usize = 2 << 20;

/// So many bytes of memory of dropped buffers each thread keeps, to use it again without page faults: what the
/// stripes of an array that are written at one time take.
const KEPT_BYTES: usize = 48 << 20;
/// Larger buffers are not kept.
const LARGEST_KEPT: usize = 1 << 20;

/// Memory of dropped buffers, by length.
#[derive(Default)]
struct Kept {
    by_length: HashMap<usize, Vec<Memory>>,
    bytes: usize,
}

thread_local! {
    static KEPT: RefCell<Kept> = RefCell::default();
}

/// Owned, initialised, [`BLOCK`]-aligned bytes.
pub struct Buf {
    memory: Memory,
}

/// What a [`Buf`] owns.
struct Memory {
    start: NonNull<u8>,
    len: usize,
}

/// The start of no bytes, aligned as any buffer's is.
#[repr(align(4096))]
struct Aligned;

impl Memory {
    const NONE: Memory = Memory {
        start: NonNull::<Aligned>::dangling().cast(),
        len: 0,
    };
}

#[expect(unsafe_code, reason = "aligned allocation")]
mod raw {
    use super::*;

    // SAFETY: a `Memory` is the only owner of its bytes, as a `Box<[u8]>` would be.
    unsafe impl Send for Memory {}
    // SAFETY: as above; shared access is read-only.
    unsafe impl Sync for Memory {}

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

    impl Memory {
        /// `len` zero bytes, never used before or zeroed again.
        pub(super) fn zeroed(len: usize) -> Memory {
            if len == 0 {
                return Memory::NONE;
            }
            // SAFETY: the layout's size is at least 1.
            let start = unsafe { alloc(layout(len)) };
            let Some(start) = NonNull::new(start) else {
                handle_alloc_error(layout(len))
            };
            // SAFETY: within what was allocated; the advice before it changes no contents.
            unsafe {
                let whole = len / LARGE_PAGE * LARGE_PAGE;
                if whole > 0 {
                    libc::madvise(start.as_ptr().cast(), whole, libc::MADV_HUGEPAGE);
                }
                start.as_ptr().write_bytes(0, len);
            }
            Memory { start, len }
        }

        pub(super) fn bytes(&self) -> &[u8] {
            // SAFETY: `start` is valid and initialised for `len` bytes while `self` lives.
            unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
        }

        pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
            // SAFETY: as in `bytes`, and `&mut self` makes this the only reference.
            unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
        }
    }

    impl Drop for Memory {
        fn drop(&mut self) {
            if self.len > 0 {
                // SAFETY: allocated in `zeroed` with the same layout, and freed only here.
                unsafe { dealloc(self.start.as_ptr(), layout(self.len)) }
            }
        }
    }
}

pub use raw::ask_large_pages;

impl Buf {
    /// `len` zero bytes. Lengths need not be multiples of [`BLOCK`]; the start always is.
    pub fn zeroed(len: usize) -> Buf {
        Buf::filled(len, Some(0))
    }

    /// `len` bytes of any content, for what is overwritten as a whole before it is read.
    pub fn scratch(len: usize) -> Buf {
        // With assertions the same in every run, and no content that could pass for right.
        Buf::filled(len, cfg!(debug_assertions).then_some(0xA5))
    }

    /// New memory, which is zero, or memory used before, which is filled if so asked.
    fn filled(len: usize, fill: Option<u8>) -> Buf {
        let Some(memory) = Kept::take(len) else {
            let memory = Memory::zeroed(len);
            return Buf { memory };
        };
        let mut buf = Buf { memory };
        if let Some(byte) = fill {
            buf.fill(byte);
        }
        buf
    }

    /// A copy of `bytes`.
    pub fn copy_of(bytes: &[u8]) -> Buf {
        let mut buf = Buf::scratch(bytes.len());
        buf.copy_from_slice(bytes);
        buf
    }

    /// Ends writing: from now on the bytes can be shared but not changed.
    pub fn freeze(self) -> Slice {
        let range = 0..self.len();
        Slice {
            buf: Arc::new(self),
            range,
        }
    }
}

impl Kept {
    /// Memory of that length, if some is kept.
    fn take(len: usize) -> Option<Memory> {
        if !(BLOCK..=LARGEST_KEPT).contains(&len) {
            return None;
        }
        let take = |kept: &RefCell<Kept>| {
            let mut kept = kept.borrow_mut();
            let memory = kept.by_length.get_mut(&len)?.pop()?;
            kept.bytes -= len;
            Some(memory)
        };
        KEPT.try_with(take).ok()? // the thread may be ending
    }

    /// Keeps memory, or gives it back to the allocator.
    fn put(memory: Memory) {
        let len = memory.len;
        if !(BLOCK..=LARGEST_KEPT).contains(&len) {
            return;
        }
        let _ = KEPT.try_with(|kept| {
            let mut kept = kept.borrow_mut();
            while kept.bytes + len > KEPT_BYTES {
                kept.make_room();
            }
            kept.bytes += len;
            kept.by_length.entry(len).or_default().push(memory);
        });
    }

    /// Gives back half of the memory of that length of which most is kept: lengths that are no longer asked for make
    /// way for those that are, and these stay.
    fn make_room(&mut self) {
        let most = self
            .by_length
            .iter_mut()
            .max_by_key(|(len, kept)| **len * kept.len());
        if let Some((len, kept)) = most {
            let stay = kept.len() / 2;
            self.bytes -= *len * (kept.len() - stay);
            kept.truncate(stay);
        }
    }
}

/// Gives this thread's buffers that were kept back to the allocator.
pub(crate) fn forget_kept() {
    let _ = KEPT.try_with(RefCell::take);
}

impl Drop for Buf {
    fn drop(&mut self) {
        Kept::put(std::mem::replace(&mut self.memory, Memory::NONE));
    }
}

impl Deref for Buf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.memory.bytes()
    }
}

impl DerefMut for Buf {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.memory.bytes_mut()
    }
}

impl std::fmt::Debug for Buf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buf({} bytes)", self.len())
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
    fn memory_is_used_again_and_bounded() {
        let first = Buf::scratch(3 * BLOCK);
        let at = first.as_ptr();
        drop(first);
        assert_eq!(Buf::scratch(3 * BLOCK).as_ptr(), at);
        for blocks in 1..200 {
            drop(
                (0..10)
                    .map(|_| Buf::scratch(blocks * BLOCK))
                    .collect::<Vec<_>>(),
            );
            let kept = KEPT.with(|kept| kept.borrow().bytes);
            assert!(kept <= KEPT_BYTES, "{kept}");
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
