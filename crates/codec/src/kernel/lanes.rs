//! The one shape of every vector kernel: how a group of sources times a table of coefficients
//! becomes results, written once over a small trait that each instruction set implements.
//!
//! **Invariants.**
//! - A pass reads `src[c][src_at..src_at + len]` and writes `dst[r][dst_at..dst_at + len]`, nothing
//!   else; [`Pass::check`] has compared these ranges with the slices before any pointer is made.
//! - Table order is by source, then by row: the coefficient of row `r` for source `c` is entry
//!   `c * rows + r`.
//! - Bytes beyond whole vectors are done by the portable code, so that no lane reads or writes
//!   outside the slices.

#![expect(
    unsafe_code,
    reason = "vector kernels: raw loads and stores, instructions chosen at run time"
)]

use super::{Pass, portable};

/// One vector register's worth of bytes under one instruction set.
///
/// # Safety
/// Every method needs the instruction set of its implementation to be available; pointers must be
/// valid for `WIDTH` bytes (a coefficient's for `8 * ENTRY`), of any alignment unless said.
pub(super) unsafe trait Lane: Copy {
    /// A source made ready for multiplication.
    type Source: Copy;
    /// A coefficient in registers.
    type Coef: Copy;
    /// Bytes in a vector.
    const WIDTH: usize;
    /// Table words (8 bytes) for a coefficient.
    const ENTRY: usize;

    unsafe fn zero() -> Self;
    unsafe fn load(from: *const u8) -> Self;
    unsafe fn store(self, to: *mut u8);
    /// A store that goes around the caches; `to` is aligned to `WIDTH`.
    unsafe fn stream(self, to: *mut u8);
    unsafe fn source(self) -> Self::Source;
    unsafe fn coef(from: *const u64) -> Self::Coef;
    /// `self + a * x`.
    unsafe fn add1(self, x: Self::Source, a: Self::Coef) -> Self;
    /// `self + a * x + b * y`.
    unsafe fn add2(self, x: Self::Source, a: Self::Coef, y: Self::Source, b: Self::Coef) -> Self;
    /// Asks for the line at `at` to be brought near; any address is allowed.
    unsafe fn prefetch(at: *const u8);
    /// Waits until streamed stores are ordered before later stores.
    unsafe fn fence();
}

/// Computes `R` rows over the whole of a pass, all accumulators in registers, two vectors at a time.
///
/// # Safety
/// The instruction set of `V` is available, `pass.rows == R`, and `pass.check()` holds.
#[inline(always)]
pub(super) unsafe fn rows<V: Lane, const R: usize>(pass: &mut Pass<'_, '_>) {
    let mut col = 0;
    // SAFETY: col + N * WIDTH <= len, which `check` has compared with every slice.
    unsafe {
        while col + 2 * V::WIDTH <= pass.len {
            columns::<V, R, 2>(pass, col);
            col += 2 * V::WIDTH;
        }
        if col + V::WIDTH <= pass.len {
            columns::<V, R, 1>(pass, col);
            col += V::WIDTH;
        }
        if pass.stream {
            V::fence();
        }
    }
    if col < pass.len {
        portable::rows_from(pass, col);
    }
}

/// `R` rows of `N` neighbouring vectors at `col`.
///
/// # Safety
/// As [`rows`], and `col + N * WIDTH <= pass.len`.
#[inline(always)]
unsafe fn columns<V: Lane, const R: usize, const N: usize>(pass: &mut Pass<'_, '_>, col: usize) {
    // SAFETY: sources and results hold `col + N * WIDTH` bytes from `src_at` and `dst_at` on, the
    // table holds `cols * R` entries, and indices stay below the lengths of the slices.
    unsafe {
        let mut sums = [[V::zero(); N]; R];
        if pass.add {
            for r in 0..R {
                let from = pass.dst.get_unchecked(r).as_ptr().add(pass.dst_at + col);
                for n in 0..N {
                    sums[r][n] = V::load(from.add(n * V::WIDTH));
                }
            }
        }
        let from = pass.src_at + col;
        let mut table = pass.table.as_ptr();
        let mut c = 0;
        while c + 2 <= pass.src.len() {
            let p = pass.src.get_unchecked(c).as_ptr().add(from);
            let q = pass.src.get_unchecked(c + 1).as_ptr().add(from);
            let mut x = [V::load(p).source(); N];
            let mut y = [V::load(q).source(); N];
            for n in 1..N {
                x[n] = V::load(p.add(n * V::WIDTH)).source();
                y[n] = V::load(q.add(n * V::WIDTH)).source();
            }
            if pass.ahead != 0 {
                V::prefetch(p.wrapping_add(pass.ahead));
                V::prefetch(q.wrapping_add(pass.ahead));
                if N * V::WIDTH > 64 {
                    V::prefetch(p.wrapping_add(pass.ahead + 64));
                    V::prefetch(q.wrapping_add(pass.ahead + 64));
                }
            }
            for r in 0..R {
                let a = V::coef(table.add(r * V::ENTRY));
                let b = V::coef(table.add((R + r) * V::ENTRY));
                for n in 0..N {
                    sums[r][n] = sums[r][n].add2(x[n], a, y[n], b);
                }
            }
            table = table.add(2 * R * V::ENTRY);
            c += 2;
        }
        if c < pass.src.len() {
            let p = pass.src.get_unchecked(c).as_ptr().add(from);
            let mut x = [V::load(p).source(); N];
            for n in 1..N {
                x[n] = V::load(p.add(n * V::WIDTH)).source();
            }
            for r in 0..R {
                let a = V::coef(table.add(r * V::ENTRY));
                for n in 0..N {
                    sums[r][n] = sums[r][n].add1(x[n], a);
                }
            }
        }
        for r in 0..R {
            let to = pass
                .dst
                .get_unchecked_mut(r)
                .as_mut_ptr()
                .add(pass.dst_at + col);
            for n in 0..N {
                if pass.stream {
                    sums[r][n].stream(to.add(n * V::WIDTH));
                } else {
                    sums[r][n].store(to.add(n * V::WIDTH));
                }
            }
        }
    }
}
