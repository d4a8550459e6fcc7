//! A family of permutations of `0..n` with constant-time evaluation and inverse.
//!
//! The affine maps `x -> a x + b` over a prime field are sharply two-transitive: over all
//! `p (p - 1)` of them, every ordered pair of positions meets every ordered pair of devices
//! exactly once. So whatever positions are grouped into segments, pairs of devices share segments
//! exactly evenly over a full period when `n` is prime. For other `n` the smallest prime above is
//! used and the walk repeated until it falls inside (cycle walking). The layouts PRIME, DATUM and
//! RAID+ in the literature rest on the same fact.
//!
//! The order in which the maps come up makes short runs even too. Tiles go through all multipliers a
//! (in steps near the golden section), then shift all positions and begin again: x -> a (pos + s).
//! Two devices at distance k a share a run of W positions or not depending on the position modulo
//! W alone, and s runs through all residues modulo W in W shifts (again in golden steps), so W (p-1)
//! tiles are already nearly exact, where an arbitrary order takes p (p-1).
//!
//! **Invariants.** For every `tile`, [`Permutation::at`] is a bijection of `0..n` and
//! [`Permutation::position`] its inverse; a period goes through every affine map once.

/// The family of permutations of `0..n`, indexed by tile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Permutation {
    n: u64,
    p: u64,
    step: u64,
    shift: u64,
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
        Permutation::for_runs(n, 1)
    }

    /// The family for `n` elements whose positions will be cut into runs of `width`.
    #[must_use]
    pub fn for_runs(n: u16, width: usize) -> Permutation {
        let n = u64::from(n.max(1));
        let mut p = n.max(2);
        while !is_prime(p) {
            p += 1;
        }
        let q = p - 1;
        // The integer part of 0.618034 q, made coprime to q.
        let mut step = (q * 618_034 / 1_000_000).max(1);
        while gcd(step, q) != 1 {
            step += 1;
        }
        let width = (width as u64).clamp(1, n);
        let mut shift = (width * 618_034 / 1_000_000).max(1);
        while gcd(shift, width) != 1 || shift % p == 0 {
            shift += 1;
        }
        Permutation { n, p, step, shift }
    }

    /// Tiles after which the family has been gone through once: p (p - 1).
    #[must_use]
    pub fn period(&self) -> u64 {
        self.p * (self.p - 1)
    }

    fn map(&self, tile: u64) -> (u64, u64) {
        let q = self.p - 1;
        let tile = tile % self.period();
        let a = 1 + (tile % q) * self.step % q;
        (a, a * (tile / q * self.shift % self.p) % self.p)
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

    /// The elements at `count` consecutive positions from `first` on (all taken modulo n): as
    /// [`Permutation::at`] for each, without its divisions.
    pub fn run(&self, tile: u64, first: u64, count: usize) -> impl Iterator<Item = u16> {
        let family = *self;
        let (a, b) = family.map(tile);
        let mut position = first % family.n;
        let mut at = (a * position + b) % family.p;
        (0..count).map(move |_| {
            let mut x = at;
            while x >= family.n {
                x = (a * x + b) % family.p;
            }
            position += 1;
            at = if position == family.n { b } else { at + a };
            position = if position == family.n { 0 } else { position };
            at = if at >= family.p { at - family.p } else { at };
            u16::try_from(x).unwrap_or(0)
        })
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
    fn runs_are_consecutive_positions() {
        for n in [1_u16, 2, 3, 8, 41, 100, 1000] {
            let family = Permutation::new(n);
            for (tile, first) in [
                (0, 0),
                (5, 3),
                (77, 39),
                (u64::MAX, u64::MAX - 100),
                (12, 990),
            ] {
                let run: Vec<u16> = family.run(tile, first, 60).collect();
                let each: Vec<u16> = (0..60)
                    .map(|i| family.at(tile, first % u64::from(n) + i))
                    .collect();
                assert_eq!(run, each, "{n} {tile} {first}");
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
