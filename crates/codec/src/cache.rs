//! Decode matrices kept ready, by what is present and what is wanted.
//!
//! **Invariants.**
//! - An entry is a pure function of its key and the code, so which entries are kept changes speed
//!   only.
//! - The memory held never exceeds [`BYTES_MAX`] by more than one entry.
//! - A hit allocates nothing.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::apply::{Prepared, STRIPS_MAX};

/// Memory for the decode matrices of one code.
const BYTES_MAX: usize = 4 << 20;

/// The strips that are used and those that are wanted, in the caller's order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Lost {
    used: [u64; STRIPS_MAX / 64],
    count: u16,
    wanted: [u8; STRIPS_MAX],
}

impl Default for Lost {
    fn default() -> Lost {
        Lost {
            used: [0; STRIPS_MAX / 64],
            count: 0,
            wanted: [0; STRIPS_MAX],
        }
    }
}

impl Lost {
    /// Notes that strip `number` is a source.
    pub(crate) fn used(&mut self, number: usize) {
        self.used[number / 64] |= 1 << (number % 64);
    }

    /// Notes that strip `number` is the `position`th to compute.
    pub(crate) fn wanted(&mut self, position: usize, number: usize) {
        self.wanted[position] = number as u8;
        self.count = position as u16 + 1;
    }

    /// The strips to compute.
    pub(crate) fn list(&self) -> &[u8] {
        &self.wanted[..usize::from(self.count)]
    }
}

/// Decode matrices, least recently used ones dropped first.
#[derive(Default)]
pub(crate) struct Cache(Mutex<Entries>);

#[derive(Default)]
struct Entries {
    by_key: BTreeMap<Lost, (u64, Arc<Prepared>)>,
    bytes: usize,
    uses: u64,
}

impl std::fmt::Debug for Cache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let entries = self.lock();
        let (count, bytes) = (entries.by_key.len(), entries.bytes);
        f.debug_struct("Cache")
            .field("count", &count)
            .field("bytes", &bytes)
            .finish()
    }
}

impl Cache {
    fn lock(&self) -> MutexGuard<'_, Entries> {
        // No code that can panic runs under the lock, and any state of the map is a valid one.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The matrix for this key, if it is kept.
    pub(crate) fn get(&self, key: &Lost) -> Option<Arc<Prepared>> {
        let mut entries = self.lock();
        entries.uses += 1;
        let now = entries.uses;
        let (used, matrix) = entries.by_key.get_mut(key)?;
        *used = now;
        Some(Arc::clone(matrix))
    }

    /// Keeps a matrix.
    pub(crate) fn put(&self, key: Lost, matrix: Prepared) -> Arc<Prepared> {
        let matrix = Arc::new(matrix);
        let mut entries = self.lock();
        let size = matrix.bytes() + size_of::<Lost>();
        while entries.bytes + size > BYTES_MAX {
            let oldest = entries.by_key.iter().min_by_key(|(_, (used, _))| *used);
            let Some(oldest) = oldest.map(|(key, _)| *key) else {
                break;
            };
            if let Some((_, dropped)) = entries.by_key.remove(&oldest) {
                entries.bytes -= dropped.bytes() + size_of::<Lost>();
            }
        }
        entries.uses += 1;
        let now = entries.uses;
        if let Some((_, dropped)) = entries.by_key.insert(key, (now, Arc::clone(&matrix))) {
            entries.bytes -= dropped.bytes() + size_of::<Lost>();
        }
        entries.bytes += size;
        matrix
    }
}
