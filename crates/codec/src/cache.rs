//! Decode matrices kept ready, by what is present and what is wanted.
//!
//! **Invariants.**
//! - An entry is a pure function of its key and the code, so which entries are kept changes speed
//!   only.
//! - The memory held never exceeds [`BYTES_MAX`] by more than one entry.
//! - A hit allocates nothing.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::CodeError;
use crate::apply::STRIPS_MAX;
use crate::solve::Recipe;

/// Memory for the decode matrices of one code.
const BYTES_MAX: usize = 4 << 20;

/// A set of strips.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Set([u64; STRIPS_MAX / 64]);

impl Set {
    /// Adds a strip; whether it is new.
    fn insert(&mut self, number: usize) -> bool {
        let (word, bit) = (&mut self.0[number / 64], 1 << (number % 64));
        let new = *word & bit == 0;
        *word |= bit;
        new
    }

    /// The strips, ascending.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = usize> + use<> {
        self.0.into_iter().enumerate().flat_map(|(at, mut word)| {
            std::iter::from_fn(move || {
                let bit = word.trailing_zeros() as usize;
                word &= word.wrapping_sub(1);
                (bit < 64).then_some(at * 64 + bit)
            })
        })
    }
}

/// What there is and what is wanted.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Loss {
    /// The first K strips present.
    pub(crate) used: Set,
    /// The wanted strips that are not present.
    pub(crate) missing: Set,
}

impl Loss {
    /// Of `total` strips, `k` of which determine the rest.
    pub(crate) fn new(
        total: usize,
        k: usize,
        present: impl Fn(usize) -> bool,
        wanted: &[usize],
    ) -> Result<Loss, CodeError> {
        let (mut loss, mut all) = (Loss::default(), Set::default());
        for &strip in wanted {
            if strip >= total {
                return Err(CodeError::NoStrip { strip });
            }
            if !all.insert(strip) {
                return Err(CodeError::Strips);
            }
            if !present(strip) {
                loss.missing.insert(strip);
            }
        }
        let mut count = 0;
        for number in 0..total {
            if count < k && present(number) {
                loss.used.insert(number);
                count += 1;
            }
        }
        if count < k {
            return Err(CodeError::TooFew {
                present: count,
                needed: k,
            });
        }
        Ok(loss)
    }
}

/// Decode matrices; those not used for longest are dropped first.
#[derive(Default)]
pub(crate) struct Cache(Mutex<Entries>);

#[derive(Default)]
struct Entries {
    by_key: BTreeMap<Loss, (u64, Arc<Recipe>)>,
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

impl Entries {
    /// Drops what was not used lately: half of the entries, so that a search for the oldest is not
    /// needed each time.
    fn drop_older_half(&mut self) {
        let mut uses: Vec<u64> = self.by_key.values().map(|(used, _)| *used).collect();
        let half = uses.len() / 2;
        let (_, &mut limit, _) = uses.select_nth_unstable(half);
        self.by_key.retain(|_, (used, _)| *used > limit);
        let held = self
            .by_key
            .values()
            .map(|(_, matrix)| matrix.bytes() + size_of::<Loss>());
        self.bytes = held.sum();
    }
}

impl Cache {
    fn lock(&self) -> MutexGuard<'_, Entries> {
        // No code that can panic runs under the lock, and any state of the map is a valid one.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The matrix for this key, if it is kept.
    pub(crate) fn get(&self, key: &Loss) -> Option<Arc<Recipe>> {
        let mut entries = self.lock();
        entries.uses += 1;
        let now = entries.uses;
        let (used, matrix) = entries.by_key.get_mut(key)?;
        *used = now;
        Some(Arc::clone(matrix))
    }

    /// Keeps a matrix.
    pub(crate) fn put(&self, key: Loss, matrix: Recipe) -> Arc<Recipe> {
        let matrix = Arc::new(matrix);
        let mut entries = self.lock();
        let size = matrix.bytes() + size_of::<Loss>();
        while entries.bytes + size > BYTES_MAX && !entries.by_key.is_empty() {
            entries.drop_older_half();
        }
        entries.uses += 1;
        let now = entries.uses;
        if let Some((_, dropped)) = entries.by_key.insert(key, (now, Arc::clone(&matrix))) {
            entries.bytes -= dropped.bytes() + size_of::<Loss>();
        }
        entries.bytes += size;
        matrix
    }
}
