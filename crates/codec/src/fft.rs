//! The `fft` code: its coding matrix, its multipliers, and encoding by transforms where the kernel
//! has them.
//!
//! **Invariants.**
//! - `size` is the power of two from M on; parity strip `i` is at point `i`, data strip `j` at point
//!   `size + j`, so K + size <= 256.
//! - What a transform computes is what the matrix says: `P[i][j] = s(y) / (p (i + y))` with
//!   `y = size + j`, `s` the product of `y + v` over all points `v` below `size`, and `p` the product
//!   of those points but 0. That is a Cauchy matrix with its columns scaled, so the code is MDS.

use std::ops::Range;

use crate::apply::{Mode, can_stream, with_work};
use crate::gf::{inv, mul};
use crate::kernel::{Kernel, TRANSFORM_MAX, Transform};

/// The smallest transform that there is.
const SIZE_MIN: usize = 8;
/// What a butterfly costs, in tenths of a multiplication by the matrix.
const BUTTERFLY: usize = 20;
/// Bytes of all work rows of a tile together.
const WORK_TOTAL: usize = 32 << 10;

/// The points below the power of two from `m` on are the parity's.
pub(crate) fn size(m: usize) -> usize {
    m.next_power_of_two()
}

/// The polynomial that is zero at the points below `2^level`, at `x`.
fn vanishing(level: u32, x: u8) -> u8 {
    (0..1u16 << level).fold(1, |product, point| mul(product, x ^ point as u8))
}

/// The coefficient of data strip `j` in parity strip `i`.
pub(crate) fn coefficient(m: usize, i: usize, j: usize) -> u8 {
    let size = size(m);
    let y = (size + j) as u8;
    let points = (1..size).fold(1, |product, point| mul(product, point as u8));
    let numerator = vanishing(size.ilog2(), y);
    mul(numerator, inv(mul(points, i as u8 ^ y)))
}

/// What encoding by transforms costs, in multiplications by a matrix.
fn cost(size: usize, k: usize) -> usize {
    let butterflies = (k.div_ceil(size) + 1) * size / 2 * size.ilog2() as usize;
    butterflies * BUTTERFLY / 10
}

/// Encoding by transforms.
#[derive(Debug)]
pub(crate) struct Fft {
    kernel: &'static Kernel,
    size: usize,
    skews: Vec<u64>,
}

impl Fft {
    /// Encoding of `k` data and `m` parity strips, if the kernel has transforms and they pay.
    pub(crate) fn new(kernel: &'static Kernel, k: usize, m: usize) -> Option<Fft> {
        let size = size(m);
        let pays = cost(size, k) < k * m;
        if !kernel.has_transform() || size < SIZE_MIN || !pays {
            return None;
        }
        let mut skews = Vec::new();
        for block in 0..=k.div_ceil(size) {
            for level in 0..size.ilog2() {
                let scale = inv(vanishing(level, 1 << level));
                for group in 0..size >> (level + 1) {
                    let point = block * size + (group << (level + 1));
                    // Beyond the last point there is no strip, and what is there is zero.
                    skews.push(mul(scale, vanishing(level, point as u8)));
                }
            }
        }
        Some(Fft {
            kernel,
            size,
            skews: kernel.table(&skews),
        })
    }

    /// What encoding costs, in multiplications by a matrix.
    pub(crate) fn cost(&self, k: usize) -> usize {
        cost(self.size, k)
    }

    /// Computes the parity in a range of bytes, a multiple of 64 long.
    pub(crate) fn encode(
        &self,
        src: &[&[u8]],
        dst: &mut [&mut [u8]],
        mode: Mode,
        range: Range<usize>,
    ) {
        let rows = 2 * self.size;
        let tile = (WORK_TOTAL / rows / 64 * 64).clamp(256, TRANSFORM_MAX);
        with_work(rows * (tile + 64), |work| {
            for at in range.clone().step_by(tile) {
                let len = tile.min(range.end - at);
                self.kernel.run_transform(&mut Transform {
                    size: self.size,
                    skews: &self.skews,
                    src,
                    stream: mode.cold && can_stream(dst, at),
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
