//! A family of permutations of `0..n` with constant-time evaluation and inverse.
//!
//! The affine maps `x -> a x + b` over a prime field are sharply two-transitive: over all
//! `p (p - 1)` of them, every ordered pair of positions meets every ordered pair of devices
//! exactly once. So whatever positions are grouped into segments, pairs of devices share segments
//! exactly evenly over a full period when `n` is prime. For other `n` the smallest prime above is
//! used and the walk repeated until it falls inside (cycle walking). The layouts PRIME, DATUM and
//! RAID+ in the literature rest on the same fact.
//!
//! **Invariants.** For every `tile`, [`Permutation::at`] is a bijection of `0..n` and
//! [`Permutation::position`] its inverse. Consecutive tiles use multipliers far apart (steps near
//! the golden section), so that a short run of tiles is well mixed too.

/// The family of permutations of `0..n`, indexed by tile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Permutation {
    n: u64,
    p: u64,
    step_a: u64,
    step_b: u64,
}

fn is_prime(x: u64) -> bool {
    x >= 2
        && (2..)
            .take_while(|d| d * d <= x)
            .all(|d| !x.is_multiple_of(d))
}

/// Greatest common divisor; the other where one is 0.
pub(crate) fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl Permutation {
    /// The family for `n` elements; `n` of 0 behaves like 1.
    #[must_use]
    pub fn new(n: u16) -> Permutation {
        let n = u64::from(n.max(1));
        let mut p = n.max(2);
        while !is_prime(p) {
            p += 1;
        }
        let q = p - 1;
        // Integer parts of 0.618034 q and 0.414214 p; the first made coprime to q.
        let mut step_a = (q * 618_034 / 1_000_000).max(1);
        while gcd(step_a, q) != 1 {
            step_a += 1;
        }
        // b must run through all residues for each a: tile = i q + j gives b = i (1 - B) + j B,
        // so B = 1 alone is of no use (it comes up for p of 2 and 3).
        let step_b = match p * 414_214 / 1_000_000 {
            0 | 1 => {
                if p == 2 {
                    0
                } else {
                    2
                }
            }
            step => step,
        };
        Permutation {
            n,
            p,
            step_a,
            step_b,
        }
    }

    /// Tiles after which the family has been gone through once: p (p - 1).
    #[must_use]
    pub fn period(&self) -> u64 {
        self.p * (self.p - 1)
    }

    fn map(&self, tile: u64) -> (u64, u64) {
        let q = self.p - 1;
        let tile = tile % self.period();
        let a = 1 + (tile % q) * self.step_a % q;
        let b = (tile % self.p * self.step_b + tile / q) % self.p;
        (a, b)
    }

    /// The element at `position` (taken modulo n) in permutation `tile`.
    #[must_use]
    pub fn at(&self, tile: u64, position: u64) -> u16 {
        let (a, b) = self.map(tile);
        let mut x = (a * (position % self.n) + b) % self.p;
        while x >= self.n {
            x = (a * x + b) % self.p;
        }
        u16::try_from(x).unwrap_or(0)
    }

    /// The position of `element` (taken modulo n) in permutation `tile`: the inverse of
    /// [`Permutation::at`].
    #[must_use]
    pub fn position(&self, tile: u64, element: u16) -> u64 {
        let (a, b) = self.map(tile);
        let inverse = self.invert(a);
        let back = |x: u64| (x + self.p - b) % self.p * inverse % self.p;
        let mut x = back(u64::from(element) % self.n);
        while x >= self.n {
            x = back(x);
        }
        x
    }

    /// a^(p-2) mod p.
    fn invert(&self, a: u64) -> u64 {
        let (mut result, mut base, mut exponent) = (1, a % self.p, self.p - 2);
        while exponent > 0 {
            if exponent & 1 == 1 {
                result = result * base % self.p;
            }
            base = base * base % self.p;
            exponent >>= 1;
        }
        result
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn bijective_with_inverse() {
        for n in (1..=64).chain([100, 256, 257, 1000, 1024, 65_535]) {
            let family = Permutation::new(n);
            for tile in [0, 1, 2, 3, 77, 4096, u64::MAX - 1, u64::MAX] {
                let mut seen = vec![false; usize::from(n)];
                for position in 0..u64::from(n) {
                    let x = family.at(tile, position);
                    assert!(!std::mem::replace(&mut seen[usize::from(x)], true));
                    if n <= 1024 {
                        assert_eq!(family.position(tile, x), position);
                    }
                }
            }
        }
    }

    #[test]
    fn all_affine_maps_within_a_period() {
        for n in [2_u16, 3, 5, 7, 11, 13, 31, 41] {
            let family = Permutation::new(n);
            let maps: std::collections::BTreeSet<_> =
                (0..family.period()).map(|tile| family.map(tile)).collect();
            assert_eq!(maps.len() as u64, family.period(), "n {n}");
        }
    }
}
