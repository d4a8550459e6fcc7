//! Memory that a device reads and writes by itself.
//!
//! An arena is pinned once; regions are cut out of it and go back. What does not fit, or where there is no
//! device, is ordinary memory: the device then gets a copy.
//!
//! **Invariants.**
//! - Regions of an arena do not overlap, begin at multiples of 4096, and are always initialised.
//! - An arena lives as long as one of its regions.
//! - A region is written by its owner or by the device, never by both: the owner has handed it over.

#![expect(unsafe_code, reason = "slices of pinned memory")]

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex};

use crate::Fault;
use crate::cuda::{Context, PinnedMemory};
use crate::flight::lock;

const GRAIN: usize = 4096;

/// A stretch of pinned memory and what of it is free.
pub(crate) struct Arena {
    memory: PinnedMemory,
    /// Start and length of every free stretch, no two of them adjacent.
    free: Mutex<BTreeMap<usize, usize>>,
}

impl Arena {
    pub(crate) fn new(context: &Arc<Context>, bytes: usize) -> Result<Arc<Arena>, Fault> {
        let bytes = bytes.next_multiple_of(GRAIN);
        let memory = PinnedMemory::new(context, bytes)?;
        let free = Mutex::new(BTreeMap::from([(0, bytes)]));
        Ok(Arc::new(Arena { memory, free }))
    }

    /// Whether these bytes are in it.
    pub(crate) fn has(&self, start: *const u8, bytes: usize) -> bool {
        let (first, start) = (self.memory.start().addr(), start.addr());
        start >= first && start + bytes <= first + self.memory.bytes()
    }

    fn take(&self, bytes: usize) -> Option<usize> {
        let bytes = bytes.max(1).next_multiple_of(GRAIN);
        let mut free = lock(&self.free);
        let (start, len) = free
            .iter()
            .find(|(_, len)| **len >= bytes)
            .map(|(s, l)| (*s, *l))?;
        free.remove(&start);
        if len > bytes {
            free.insert(start + bytes, len - bytes);
        }
        Some(start)
    }

    fn give_back(&self, start: usize, bytes: usize) {
        let bytes = bytes.max(1).next_multiple_of(GRAIN);
        let mut free = lock(&self.free);
        let (mut first, mut end) = (start, start + bytes);
        if let Some((before, len)) = free.range(..start).next_back().map(|(s, l)| (*s, *l))
            && before + len == start
        {
            first = before;
        }
        if let Some(len) = free.remove(&end) {
            end += len;
        }
        free.insert(first, end - first);
    }
}

enum Place {
    Pinned {
        arena: Arc<Arena>,
        start: usize,
        len: usize,
    },
    Heap(Vec<u8>),
}

/// Bytes that a device may read and write without a copy, if there was room.
pub struct Region(Place);

impl Region {
    /// Ordinary memory, zeroed.
    pub fn heap(bytes: usize) -> Region {
        Region(Place::Heap(vec![0; bytes]))
    }

    /// A part of the arena, if there is room; its content is whatever was there.
    pub(crate) fn pinned(arena: &Arc<Arena>, bytes: usize) -> Option<Region> {
        let start = arena.take(bytes)?;
        Some(Region(Place::Pinned {
            arena: arena.clone(),
            start,
            len: bytes,
        }))
    }

    /// Whether the device gets at it without a copy.
    pub fn is_pinned(&self) -> bool {
        matches!(self.0, Place::Pinned { .. })
    }
}

impl Deref for Region {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match &self.0 {
            // SAFETY: the range was taken from the arena, which initialised it and which lives.
            Place::Pinned { arena, start, len } => unsafe {
                std::slice::from_raw_parts(arena.memory.start().add(*start), *len)
            },
            Place::Heap(bytes) => bytes,
        }
    }
}

impl DerefMut for Region {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.0 {
            // SAFETY: as above, and no other region has this range.
            Place::Pinned { arena, start, len } => unsafe {
                std::slice::from_raw_parts_mut(arena.memory.start().add(*start), *len)
            },
            Place::Heap(bytes) => bytes,
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if let Place::Pinned { arena, start, len } = &self.0 {
            arena.give_back(*start, *len);
        }
    }
}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = if self.is_pinned() { "pinned" } else { "heap" };
        write!(f, "Region({} bytes, {kind})", self.len())
    }
}
