//! Segments that are alike, by their live share.
//!
//! Invariant: a bit of `occupied` is set if its list has a segment.

use std::collections::BTreeSet;

/// Lists by live share.
pub(super) const SHARES: usize = 256;

/// The segments of one variant.
#[derive(Debug, Clone)]
pub(crate) struct Bucket {
    lists: Vec<BTreeSet<(u64, u64)>>,
    occupied: [u64; SHARES / 64],
    pub(super) count: usize,
}

impl Bucket {
    pub(super) fn new() -> Bucket {
        Bucket {
            lists: vec![BTreeSet::new(); SHARES],
            occupied: [0; SHARES / 64],
            count: 0,
        }
    }

    pub(super) fn insert(&mut self, share: usize, at: (u64, u64)) {
        if self.lists[share].insert(at) {
            self.count += 1;
        }
        self.occupied[share / 64] |= 1 << (share % 64);
    }

    pub(super) fn remove(&mut self, share: usize, at: (u64, u64)) {
        if self.lists[share].remove(&at) {
            self.count -= 1;
        }
        if self.lists[share].is_empty() {
            self.occupied[share / 64] &= !(1 << (share % 64));
        }
    }

    /// The segment of each list that was closed first, those with the fewest live blocks before others.
    pub(crate) fn heads(&self) -> impl Iterator<Item = u64> + '_ {
        self.occupied()
            .filter_map(|list| list.first())
            .map(|(_, number)| *number)
    }

    /// All segments, those with the fewest live blocks before others, of each list the one that was closed first.
    pub(crate) fn all(&self) -> impl Iterator<Item = u64> + '_ {
        self.occupied().flatten().map(|(_, number)| *number)
    }

    fn occupied(&self) -> impl Iterator<Item = &BTreeSet<(u64, u64)>> {
        let lists = (0..SHARES).filter(|s| self.occupied[s / 64] >> (s % 64) & 1 == 1);
        lists.map(|s| &self.lists[s])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_head_of_each_list_is_its_oldest() {
        let mut bucket = Bucket::new();
        for (share, closed, number) in [(200, 5, 1), (200, 3, 2), (7, 9, 3), (64, 1, 4)] {
            bucket.insert(share, (closed, number));
        }
        assert_eq!(bucket.heads().collect::<Vec<_>>(), [3, 4, 2]);
        bucket.remove(200, (3, 2));
        bucket.remove(64, (1, 4));
        assert_eq!(bucket.heads().collect::<Vec<_>>(), [3, 1]);
        assert_eq!(bucket.count, 2);
    }
}
