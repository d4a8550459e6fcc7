//! Decode matrices kept ready, by what is present and what is wanted.
//!
//! **Invariants.**
//! - An entry is a pure function of its key and the code, so which entries are kept changes speed
//!   only.
//! - The memory held never exceeds [`BYTES_MAX`] by more than one entry, and one more for each thread:
//!   the last it used, for which it needs no lock.
//! - A hit allocates nothing.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::CodeError;
use crate::solve::Recipe;
use crate::strips::STRIPS_MAX;

/// Memory for the decode matrices of one code.
const BYTES_MAX: usize = 4 << 20;

/// A set of strips.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Set([u64; STRIPS_MAX / 64]);

impl Set {
    /// The numbers of the entries for which `holds`; there are at most 256.
    pub(crate) fn of<T>(entries: &[T], holds: impl Fn(&T) -> bool) -> Set {
        let mut set = Set::default();
        for (word, entries) in set.0.iter_mut().zip(entries.chunks(64)) {
            let bits = entries.iter().enumerate();
            *word = bits.fold(0, |word, (bit, entry)| {
                word | u64::from(holds(entry)) << bit
            });
        }
        set
    }

    /// Adds a strip; whether it is new.
    fn insert(&mut self, number: usize) -> bool {
        let (word, bit) = (&mut self.0[number / 64], 1 << (number % 64));
        let new = *word & bit == 0;
        *word |= bit;
        new
    }

    /// Whether a strip is in it.
    fn contains(&self, number: usize) -> bool {
        self.0[number / 64] >> (number % 64) & 1 == 1
    }

    /// How many strips there are.
    pub(crate) fn count(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// The first `count` strips, or all if there are fewer.
    fn first(&self, count: usize) -> Set {
        let (mut set, mut left) = (*self, count);
        for word in &mut set.0 {
            let here = word.count_ones() as usize;
            for _ in left..here {
                *word &= !(1 << word.ilog2());
            }
            left -= here.min(left);
        }
        set
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
        present: &Set,
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
            if !present.contains(strip) {
                loss.missing.insert(strip);
            }
        }
        loss.used = present.first(k);
        let count = loss.used.count();
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
pub(crate) struct Cache {
    entries: Mutex<Entries>,
    /// Different for every cache of this process.
    id: u64,
}

impl Default for Cache {
    fn default() -> Cache {
        static IDS: AtomicU64 = AtomicU64::new(0);
        Cache {
            entries: Mutex::default(),
            id: IDS.fetch_add(1, Ordering::Relaxed),
        }
    }
}

thread_local! {
    /// What this thread used last: of which cache, for which loss.
    static LAST: RefCell<Option<(u64, Loss, Arc<Recipe>)>> = const { RefCell::new(None) };
}

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
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Uses the matrix this thread used last, if it is that for this key; strips are all below 64.
    /// Returns whether it was.
    pub(crate) fn again(&self, used: u64, missing: u64, body: impl FnOnce(&Recipe)) -> bool {
        LAST.with_borrow(|last| match last {
            Some((id, loss, recipe))
                if *id == self.id && loss.used.0[0] == used && loss.missing.0[0] == missing =>
            {
                body(recipe);
                true
            }
            _ => false,
        })
    }

    /// Uses the matrix for this key: the one this thread used last, or what `find` finds.
    pub(crate) fn with<T, E>(
        &self,
        key: &Loss,
        find: impl FnOnce() -> Result<Arc<Recipe>, E>,
        body: impl FnOnce(&Recipe) -> T,
    ) -> Result<T, E> {
        LAST.with_borrow_mut(|last| {
            if let Some((id, loss, recipe)) = last
                && *id == self.id
                && loss == key
            {
                return Ok(body(recipe));
            }
            let recipe = find()?;
            let done = body(&recipe);
            *last = Some((self.id, *key, recipe));
            Ok(done)
        })
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

#[cfg(test)]
mod tests {
    use super::*;

    fn set(numbers: impl IntoIterator<Item = usize>) -> Set {
        let mut set = Set::default();
        for number in numbers {
            assert!(set.insert(number));
            assert!(!set.insert(number));
        }
        set
    }

    #[test]
    fn sets_count_and_cut() {
        let all: Vec<usize> = (0..256).filter(|number| number % 3 != 1).collect();
        let whole = set(all.iter().copied());
        assert_eq!(whole.count(), all.len());
        assert!(whole.numbers().eq(all.iter().copied()));
        for count in 0..=all.len() + 1 {
            let first = &all[..count.min(all.len())];
            assert_eq!(whole.first(count), set(first.iter().copied()), "{count}");
        }
        assert!((0..256).all(|number| whole.contains(number) == (number % 3 != 1)));
    }
}
