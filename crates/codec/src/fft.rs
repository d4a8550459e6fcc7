//! The `fft` code: its points, its coding matrix, its multipliers, and encoding and decoding by
//! transforms where the kernel has them.
//!
//! A codeword is the values of a polynomial at points of the field; [`element`] numbers them so that
//! the points below each power of two are a subspace, in the basis of Cantor ("On arithmetical
//! algorithms over finite fields", 1989), in which a multiplier of a transform is the element of a
//! number and the derivative has no multiplications.
//!
//! **Invariants.**
//! - Parity strip `i` is at point `i`, data strip `j` at point `Points::count() + j`; K plus that count
//!   is at most 256. Points below the count that are no parity strip's are never computed.
//! - What a transform computes is what the matrix says: `P[i][j]` is the value at point `j` of the data of
//!   the polynomial that is 1 at parity point `i` and 0 at the others. That is a Cauchy matrix with rows
//!   and columns scaled, so the code is MDS.

use std::ops::Range;

use crate::apply::{can_stream, with_work};
use crate::gf::{inv, mul};
use crate::kernel::{Kernel, Recover, TRANSFORM_MAX, Transform};
use crate::strips::{Mode, STRIPS_MAX};

/// The smallest transform that there is, and the largest.
const SIZES: Range<usize> = 8..129;
/// What a butterfly costs, in tenths of a multiplication by the matrix.
const BUTTERFLY: usize = 26;
/// What decoding by transforms costs for each group of 16 points that has known strips ...
const GROUP_IN: usize = 100;
/// ... for each that has wanted ones ...
const GROUP_OUT: usize = 130;
/// ... and for what is between: in all, and for four points. Measured with `avx512-gfni`.
const ACROSS: usize = 400;
const ACROSS_POINT: usize = 11;
/// Stripes of more bytes than these do not stay in level 2, so their strips are fetched ahead.
const NEAR: usize = 1 << 20;
/// Bytes of each strip that decoding takes at a time.
const RECOVER_TILE: usize = 512;

/// Each with the one before gives `x^2 + x`, the first is 1: the least such.
const BASIS: [u8; 8] = basis();
/// The elements by number: sums of the basis.
static ELEMENTS: [u8; 256] = elements();

const fn basis() -> [u8; 8] {
    let mut basis = [1; 8];
    let mut i = 1;
    while i < 8 {
        let mut x = 2u8;
        while crate::gf::times(x, x) ^ x != basis[i - 1] {
            x += 1;
        }
        basis[i] = x;
        i += 1;
    }
    basis
}

const fn elements() -> [u8; 256] {
    let mut elements = [0; 256];
    let mut number = 0;
    while number < 256 {
        let mut bit = 0;
        while bit < 8 {
            if number >> bit & 1 == 1 {
                elements[number] ^= BASIS[bit];
            }
            bit += 1;
        }
        number += 1;
    }
    elements
}

/// The element at a point.
fn element(point: usize) -> u8 {
    ELEMENTS[point]
}

/// The multiplier of the butterflies of a level whose part of the points begins at `point`: the
/// polynomial that is zero at the points below `2^level` and 1 at point `2^level`, there. In this basis
/// it takes every element to the one of its number shifted.
fn skew(level: u32, point: usize) -> u8 {
    element(point >> level)
}

/// The points of the parity.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Points {
    /// A power of two, if transforms are to be had.
    size: usize,
    /// Points beyond it: none, or another, smaller one.
    extra: usize,
}

impl Points {
    /// For `k` data and `m` parity strips: as few as there can be for transforms, or, if these are too
    /// many, as many as there are parity strips.
    pub(crate) fn new(k: usize, m: usize) -> Points {
        let size = m.next_power_of_two();
        let half = size / 2;
        let few = [4, 8, 16]
            .into_iter()
            .find(|&extra| half >= 2 * extra && half >= SIZES.start && half + extra >= m);
        let points = match few {
            Some(extra) => Points { size: half, extra },
            None => Points { size, extra: 0 },
        };
        if k + points.count() <= STRIPS_MAX {
            points
        } else {
            Points { size: m, extra: 0 }
        }
    }

    /// How many there are.
    pub(crate) fn count(self) -> usize {
        self.size + self.extra
    }
}

/// The coding matrix.
pub(crate) fn matrix(k: usize, m: usize) -> Vec<u8> {
    let count = Points::new(k, m).count();
    let product = |x: usize, skip: usize| {
        (0..count)
            .filter(|&point| point != skip)
            .fold(1, |p, point| mul(p, element(x ^ point)))
    };
    let rows: Vec<u8> = (0..m).map(|i| inv(product(i, i))).collect();
    let columns: Vec<u8> = (0..k).map(|j| product(count + j, count + j)).collect();
    let coefficient =
        |i: usize, j: usize| mul(mul(rows[i], columns[j]), inv(element(i ^ (count + j))));
    (0..m * k).map(|at| coefficient(at / k, at % k)).collect()
}

/// What encoding by transforms costs, in multiplications by a matrix.
fn cost(points: Points, k: usize) -> usize {
    let Points { size, extra } = points;
    let blocks = (points.count() + k).div_ceil(size);
    let butterflies = blocks * size / 2 * size.ilog2() as usize;
    butterflies * BUTTERFLY / 10 + if extra > 0 { blocks * extra + size } else { 0 }
}

/// Multipliers of a block of `size` points from `first` on, level by level.
fn skews(size: usize, first: usize) -> impl Iterator<Item = u8> {
    (0..size.ilog2()).flat_map(move |level| {
        // Beyond the last point there is no strip, and what is there is zero.
        (0..size >> (level + 1))
            .map(move |group| skew(level, (first + (group << (level + 1))) % STRIPS_MAX))
    })
}

/// What each part of `extra` of a block's coefficients takes of those of its first part alone.
fn spread(Points { size, extra }: Points) -> Vec<u8> {
    let parts = size / extra;
    let mut taken = vec![0; parts];
    taken[0] = 1;
    for level in 0..parts.ilog2() {
        for low in (0..parts).filter(|part| part >> level & 1 == 0) {
            let high = low + (1 << level);
            let first = size + (low >> (level + 1) << (level + 1)) * extra;
            taken[high] ^= taken[low];
            taken[low] ^= mul(skew(extra.ilog2() + level, first), taken[high]);
        }
    }
    taken
}

/// Encoding by transforms.
#[derive(Debug)]
pub(crate) struct Fft {
    kernel: &'static Kernel,
    points: Points,
    skews: Vec<u64>,
    shares: Vec<u64>,
    spread: Vec<u64>,
}

impl Fft {
    /// Encoding of `k` data and `m` parity strips, if the kernel has transforms and they pay.
    pub(crate) fn new(kernel: &'static Kernel, k: usize, m: usize) -> Option<Fft> {
        let points = Points::new(k, m);
        let Points { size, extra } = points;
        let can = kernel.has_transform() && size.is_power_of_two() && SIZES.contains(&size);
        if !can || cost(points, k) >= k * m {
            return None;
        }
        let blocks = (points.count() + k).div_ceil(size);
        let all: Vec<u8> = (0..blocks)
            .flat_map(|block| skews(size, block * size))
            .collect();
        let (mut shares, mut parts) = (Vec::new(), Vec::new());
        if extra > 0 {
            shares = (0..blocks)
                .map(|block| skew(size.ilog2(), block * size))
                .collect();
            parts = spread(points);
        }
        Some(Fft {
            kernel,
            points,
            skews: kernel.table(&all),
            shares: kernel.table(&shares),
            spread: kernel.table(&parts),
        })
    }

    /// What encoding costs, in multiplications by a matrix.
    pub(crate) fn cost(&self, k: usize) -> usize {
        cost(self.points, k)
    }

    /// Whether transforms are quicker than the matrix for such strips. From memory, few rows are not: the
    /// matrix reads fewer strips at a time, which the processor's own fetching ahead can follow.
    pub(crate) fn pays(&self, mode: Mode) -> bool {
        !mode.cold || self.points.count() > SIZES.start
    }

    /// How many points the parity has.
    pub(crate) fn points(&self) -> usize {
        self.points.count()
    }

    /// Computes the parity in a range of bytes, a multiple of 64 long.
    pub(crate) fn encode(
        &self,
        src: &[&[u8]],
        dst: &mut [&mut [u8]],
        mode: Mode,
        range: Range<usize>,
    ) {
        self.transform((src, self.points.count()), dst, mode, range);
    }

    /// Computes what encoding would add to each parity strip, in a range of bytes, a multiple of 64 long.
    /// `src` has strips for the points from 0 on, zeros for what is not there: there it is what
    /// encoding gives.
    pub(crate) fn syndromes(
        &self,
        src: &[&[u8]],
        dst: &mut [&mut [u8]],
        mode: Mode,
        range: Range<usize>,
    ) {
        self.transform((src, 0), dst, mode, range);
    }

    fn transform(
        &self,
        (src, first): (&[&[u8]], usize),
        dst: &mut [&mut [u8]],
        mode: Mode,
        range: Range<usize>,
    ) {
        let Points { size, extra } = self.points;
        let rows = Transform::rows(size, extra);
        let far = (src.len() + dst.len()) * range.len() > NEAR;
        let tile = TRANSFORM_MAX;
        with_work(rows * (tile + 64), |work| {
            for at in range.clone().step_by(tile) {
                let len = tile.min(range.end - at);
                self.kernel.run_transform(&mut Transform {
                    size,
                    extra,
                    skews: &self.skews,
                    shares: &self.shares,
                    spread: &self.spread,
                    src,
                    first,
                    ahead: mode.cold || far,
                    stream: mode.cold && !mode.kept && can_stream(dst, at),
                    dst,
                    at,
                    len,
                    work,
                    stride: tile + 64,
                });
            }
        });
    }
}

/// Decoding by transforms, for one loss.
#[derive(Debug)]
pub(crate) struct Recovery {
    kernel: &'static Kernel,
    total: usize,
    skews: Vec<u64>,
    used: Vec<u8>,
    locator: Vec<u64>,
    wanted: Vec<u8>,
    scale: Vec<u64>,
}

impl Recovery {
    /// What decoding costs, in multiplications by a matrix.
    pub(crate) fn cost(k: usize, m: usize, used: &[usize], wanted: &[usize]) -> usize {
        let points = Points::new(k, m).count();
        let total = (points + k).next_power_of_two();
        let groups = |strips: &[usize]| {
            let point = |strip: &usize| {
                if *strip < k {
                    points + strip
                } else {
                    strip - k
                }
            };
            let mut seen: Vec<usize> = strips.iter().map(|strip| point(strip) / 16).collect();
            seen.sort_unstable();
            seen.dedup();
            seen.len()
        };
        GROUP_IN * groups(used) + GROUP_OUT * groups(wanted) + ACROSS + total * ACROSS_POINT / 4
    }

    /// Decoding of the strips `wanted` from the strips `used`, both ascending and disjoint, K of the
    /// latter; `None` if the kernel has no transforms.
    pub(crate) fn new(
        kernel: &'static Kernel,
        (k, m): (usize, usize),
        used: &[usize],
        wanted: &[usize],
    ) -> Option<Recovery> {
        let points = Points::new(k, m).count();
        let total = (points + k).next_power_of_two();
        if !kernel.has_transform() || total < 32 {
            return None;
        }
        // Parity comes first among the points, last among the strips.
        let to_points = |strips: &[usize]| -> Vec<u8> {
            let (data, parity) = strips.split_at(strips.partition_point(|&strip| strip < k));
            let parity = parity.iter().map(|strip| (strip - k) as u8);
            parity
                .chain(data.iter().map(|strip| (points + strip) as u8))
                .collect()
        };
        let (used, wanted) = (to_points(used), to_points(wanted));
        let unknown: Vec<usize> = (0..points + k)
            .filter(|&point| used.binary_search(&(point as u8)).is_err())
            .collect();
        // The locator, and at its zeros its derivative: the product without that one.
        let value = |&point: &u8| {
            let others = unknown.iter().filter(|&&zero| zero != usize::from(point));
            others.fold(1, |p, zero| mul(p, element(usize::from(point) ^ zero)))
        };
        let locator: Vec<u8> = used.iter().map(value).collect();
        let scale: Vec<u8> = wanted.iter().map(|point| inv(value(point))).collect();
        let skews: Vec<u8> = skews(total, 0).collect();
        Some(Recovery {
            kernel,
            total,
            skews: kernel.table(&skews),
            used,
            locator: kernel.table(&locator),
            wanted,
            scale: kernel.table(&scale),
        })
    }

    /// Bytes of memory held.
    pub(crate) fn bytes(&self) -> usize {
        let words = self.skews.len() + self.locator.len() + self.scale.len();
        words * 8 + self.used.len() + self.wanted.len() + size_of::<Recovery>()
    }

    /// Computes the wanted strips, ascending, from the used ones, ascending, in a range of bytes that
    /// is a multiple of 64 long. Both are turned round meanwhile, so that parity comes first.
    pub(crate) fn decode(
        &self,
        (src, known): (&[&[u8]], usize),
        (dst, lost): (&mut [&mut [u8]], usize),
        mode: Mode,
        range: Range<usize>,
    ) {
        let mut sources: [&[u8]; STRIPS_MAX] = [&[]; STRIPS_MAX];
        let sources = &mut sources[..src.len()];
        sources.copy_from_slice(src);
        sources.rotate_left(known);
        dst.rotate_left(lost);
        let far = (src.len() + dst.len()) * range.len() > NEAR;
        let stride = RECOVER_TILE + 64;
        with_work(2 * self.total * stride, |work| {
            for at in range.clone().step_by(RECOVER_TILE) {
                let len = RECOVER_TILE.min(range.end - at);
                self.kernel.run_recover(&mut Recover {
                    total: self.total,
                    skews: &self.skews,
                    src: sources,
                    src_points: &self.used,
                    locator: &self.locator,
                    ahead: mode.cold || far,
                    stream: mode.cold && can_stream(dst, at),
                    dst,
                    dst_points: &self.wanted,
                    scale: &self.scale,
                    at,
                    len,
                    work,
                    stride,
                });
            }
        });
        dst.rotate_right(lost);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_points_below_a_power_of_two_are_a_subspace_that_its_multiplier_vanishes_on() {
        for level in 0..8 {
            let vanishing = |x: u8| (0..1 << level).fold(1, |p, v| mul(p, x ^ element(v)));
            assert_eq!(vanishing(element(1 << level)), 1);
            for point in 0..256 {
                assert_eq!(skew(level, point), vanishing(element(point)));
                for other in 0..256 {
                    assert_eq!(element(point) ^ element(other), element(point ^ other));
                }
            }
        }
    }

    #[test]
    fn points_are_few_and_fit() {
        let of = |k, m| Points::new(k, m);
        assert_eq!(of(80, 20), Points { size: 16, extra: 4 });
        assert_eq!(of(200, 40), Points { size: 32, extra: 8 });
        assert_eq!(of(92, 8), Points { size: 8, extra: 0 });
        assert_eq!(of(85, 15), Points { size: 16, extra: 0 });
        assert_eq!(
            of(128, 128),
            Points {
                size: 128,
                extra: 0
            }
        );
        assert_eq!(of(190, 60), Points { size: 64, extra: 0 });
        assert_eq!(of(196, 60), Points { size: 60, extra: 0 });
        for m in 1..=255 {
            for k in 1..=256 - m {
                let points = of(k, m);
                assert!(points.count() >= m && points.count() + k <= 256);
            }
        }
    }
}
