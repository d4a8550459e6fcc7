//! The simulator's own randomness: splitmix64, one generator per purpose, so that what one part
//! draws does not shift another part's history.
//!
//! Invariants: nothing else in this crate is random; a generator's numbers follow from its seed.

/// A seeded generator.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// The generator of `seed`.
    pub fn new(seed: u64) -> Rng {
        let mut rng = Rng(seed ^ 0x6A09_E667_F3BC_C908);
        rng.draw();
        rng
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }

    /// An independent generator for the purpose `name`.
    pub fn fork(&mut self, name: u64) -> Rng {
        Rng::new(self.draw() ^ mix(name))
    }

    /// A number below `bound`, or 0 if `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.draw() % bound }
    }

    /// An index below `len`, or 0 if `len` is 0.
    pub fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).unwrap_or(0)
    }

    /// A number of `low..=high`.
    pub fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low).saturating_add(1))
    }

    /// True `percent` times in 100.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// True `count` times in 65,536.
    pub fn rare(&mut self, count: u32) -> bool {
        count > 0 && self.below(65_536) < u64::from(count)
    }

    /// One of `items`, which must not be empty.
    pub fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.index(items.len())]
    }

    /// A number of `1..=high`, every order of magnitude about as likely as any other.
    pub fn magnitude(&mut self, high: u64) -> u64 {
        let bits = u64::from(64 - high.leading_zeros());
        let top = 1u64 << self.below(bits.max(1));
        self.range(top, top.saturating_mul(2)).clamp(1, high.max(1))
    }

    /// `0..len` in random order.
    pub fn shuffled(&mut self, len: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..len).collect();
        for last in (1..len).rev() {
            order.swap(last, self.index(last + 1));
        }
        order
    }
}

/// The output function of splitmix64: a good 64-bit mixer.
pub fn mix(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn magnitudes_stay_in_range_and_reach_both_ends() {
        let mut rng = Rng::new(4);
        let seen: Vec<u64> = (0..2_000).map(|_| rng.magnitude(1_000)).collect();
        assert!(seen.iter().all(|n| (1..=1_000).contains(n)));
        assert!(seen.iter().any(|n| *n < 4) && seen.iter().any(|n| *n > 700));
    }

    #[test]
    fn a_shuffle_is_a_permutation() {
        let mut order = Rng::new(9).shuffled(50);
        assert_ne!(order, (0..50).collect::<Vec<_>>());
        order.sort_unstable();
        assert_eq!(order, (0..50).collect::<Vec<_>>());
    }
}
