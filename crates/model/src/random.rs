//! Seeded randomness of the simulations.
//!
//! SplitMix64 (Steele, Lea, Flood 2014): 64 bits of state, passes BigCrush; streams are set apart
//! by mixing their number into the seed. **Invariant**: the sequence depends on seed and stream
//! alone, so results do not depend on the number of threads.

/// A stream of random numbers.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl Random {
    /// Stream `stream` of `seed`.
    pub(crate) fn new(seed: u64, stream: u64) -> Random {
        Random(mix(seed ^ mix(stream.wrapping_add(0x9e37_79b9_7f4a_7c15))))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Uniform below `bound` (at least 1), without bias (Lemire's multiplication with rejection).
    pub(crate) fn below(&mut self, bound: u32) -> u32 {
        let bound = u64::from(bound.max(1));
        loop {
            let product = (self.next() >> 32) * bound;
            if product & 0xffff_ffff >= (1 << 32) % bound {
                return u32::try_from(product >> 32).unwrap_or(0);
            }
        }
    }

    /// Uniform in (0, 1].
    pub(crate) fn unit(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }

    /// Exponentially distributed with the given rate (above 0).
    pub(crate) fn exponential(&mut self, rate: f64) -> f64 {
        -self.unit().ln() / rate
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn below_is_even_and_unit_in_range() {
        let mut random = Random::new(1, 2);
        let mut count = [0_u32; 7];
        for _ in 0..70_000 {
            count[random.below(7) as usize] += 1;
            let unit = random.unit();
            assert!(unit > 0.0 && unit <= 1.0);
        }
        assert!(count.iter().all(|&c| c.abs_diff(10_000) < 400), "{count:?}");
        assert_eq!(random.below(1), 0);
        let mean = (0..50_000).map(|_| random.exponential(4.0)).sum::<f64>() / 50_000.0;
        assert!((mean - 0.25).abs() < 0.005, "{mean}");
    }
}
