//! Encoding of the `fft` code in the time of a transform: the additive FFT of Lin, Chung and Han
//! ("Novel polynomial basis and its application to Reed-Solomon erasure codes", 2014), over the same
//! lanes as the other kernels.
//!
//! The points `0..size + extra` are the parity's, the data's follow; all are looked at in blocks of
//! `size`. A block's inverse transform gives the polynomial of degree below `size` through its strips;
//! the sum of these over all blocks is zero in a codeword, and so are the last `extra` coefficients of
//! another sum, with a weight (`shares`) for each block. So the second sum, transformed, is the `extra`
//! parity strips in block 1; their own inverse transform, which is the second sum times constants
//! (`spread`), belongs to the first sum; and that transformed is the other parity. See `docs/codec.md`.
//!
//! **Invariants.**
//! - A pass reads `src[..][at..at + len]`, writes `dst[..][at..at + len]` and the work rows, nothing
//!   else; [`Transform::check`] has compared these ranges with the slices.
//! - The bytes are those of the code's coding matrix, which every other kernel uses.
//! - Rows `0..size` of the work area are those of the block at hand, then as many sums, then `extra`
//!   second sums.

#![expect(
    unsafe_code,
    reason = "vector kernels: raw loads and stores, instructions chosen at run time"
)]
#![expect(
    clippy::needless_range_loop,
    reason = "the indices are register numbers, known when compiled"
)]

use super::butterfly::{LEN_MAX, ZEROS, inverse, levels, store_to};
use super::lane::Lane;

/// One tile of an encoding.
pub(crate) struct Transform<'a, 'b> {
    /// Rows of a transform: a power of two from 8 to 128.
    pub(crate) size: usize,
    /// Parity points beyond `size`: 0; or 4; or 8 if the size is at least 16, 16 if it is at least 32.
    pub(crate) extra: usize,
    /// Multipliers in the kernel's own form: `size - 1` for each block from block 0 on; within a
    /// block level by level, the lowest first.
    pub(crate) skews: &'a [u64],
    /// One weight for each block from block 0 on; empty without `extra`.
    pub(crate) shares: &'a [u64],
    /// What each part of `extra` of the sums takes of the second sums; empty without `extra`.
    pub(crate) spread: &'a [u64],
    /// The strips, and the point of the first: the data, after the points of the parity, to encode; with
    /// strips from point 0 on the results are what encoding would add to the parity among them.
    pub(crate) src: &'a [&'a [u8]],
    pub(crate) first: usize,
    /// The parity: at most `size + extra` strips; more than `size` if there is `extra`.
    pub(crate) dst: &'a mut [&'b mut [u8]],
    pub(crate) at: usize,
    /// Bytes of each strip: a multiple of 64, at most [`LEN_MAX`].
    pub(crate) len: usize,
    /// [`Transform::rows`] rows of `stride` bytes.
    pub(crate) work: &'a mut [u8],
    pub(crate) stride: usize,
    /// Fetch ahead.
    pub(crate) ahead: bool,
    /// Write around the caches; only if every result's first byte is aligned to 64.
    pub(crate) stream: bool,
}

impl Transform<'_, '_> {
    /// Work rows needed.
    pub(crate) const fn rows(size: usize, extra: usize) -> usize {
        2 * size + extra
    }

    /// Blocks up to the last that has strips.
    fn blocks(&self) -> usize {
        (self.first + self.src.len()).div_ceil(self.size)
    }

    /// Panics unless every range lies inside its slice. `words` is a multiplier's size.
    pub(super) fn check(&self, words: usize) {
        let holds = |length: usize| length >= self.at && length - self.at >= self.len;
        let (size, extra, blocks) = (self.size, self.extra, self.blocks());
        assert!(size.is_power_of_two() && (8..=128).contains(&size));
        assert!(matches!(extra, 0 | 4 | 8 | 16) && 2 * extra <= size);
        assert!(self.skews.len() >= blocks * (size - 1) * words);
        let points = size + extra;
        assert!(!self.src.is_empty() && !self.dst.is_empty() && self.dst.len() <= points);
        if extra > 0 {
            assert!(self.dst.len() > size);
            assert!(self.shares.len() >= blocks * words);
            assert!(self.spread.len() * extra >= size * words);
        }
        assert!(self.len.is_multiple_of(64) && self.len <= LEN_MAX && self.stride >= self.len);
        assert!(self.work.len() >= Self::rows(size, extra) * self.stride);
        assert!(self.src.iter().all(|source| holds(source.len())));
        assert!(self.dst.iter().all(|result| holds(result.len())));
        let aligned = |result: &&mut [u8]| (result.as_ptr() as usize + self.at).is_multiple_of(64);
        assert!(!self.stream || self.dst.iter().all(aligned));
    }

    /// Where the multipliers of a level of a block begin.
    fn level(&self, block: usize, level: usize) -> usize {
        block * (self.size - 1) + self.size - (self.size >> level)
    }

    /// The strips at the points from `point` on, at most `count` points.
    fn strips(&self, point: usize, count: usize) -> &[&[u8]] {
        let from = point.saturating_sub(self.first).min(self.src.len());
        let to = (point + count)
            .saturating_sub(self.first)
            .min(self.src.len());
        &self.src[from..to]
    }

    /// What is to be read after the `count` strips at `point`, and where in them: the next strips,
    /// or the first ones in the next tile.
    fn later(&self, point: usize, count: usize) -> (&[&[u8]], usize) {
        if !self.ahead {
            return (&[], 0);
        }
        match self.strips(point + count, count) {
            [] => {
                let first = self.first / count * count;
                (self.strips(first, count), self.at + self.len)
            }
            next => (next, self.at),
        }
    }

    /// Where work row `row` begins.
    ///
    /// # Safety
    /// There are more than `row` rows.
    unsafe fn row(&mut self, row: usize) -> *mut u8 {
        // SAFETY: passed on from the caller; `check` has compared the rows with the work area.
        unsafe { self.work.as_mut_ptr().add(row * self.stride) }
    }
}

/// Encodes a tile with transforms of `N` rows in registers.
///
/// # Safety
/// The instruction set of `V` is available, `pass.check(V::ENTRY)` holds, `N` is 8 if the size is 8
/// and else 16.
#[inline(always)]
pub(super) unsafe fn encode<V: Lane, const N: usize>(pass: &mut Transform<'_, '_>) {
    // SAFETY: passed on from the caller; the constants are the shape of the pass.
    unsafe {
        match (pass.size / N, pass.extra) {
            (1, 0) => in_registers::<V, N, 0>(pass),
            (1, 4) => in_registers::<V, N, 4>(pass),
            (1, _) => in_registers::<V, N, 8>(pass),
            (2, 0) => in_pairs::<V, N, 0>(pass),
            (2, 4) => in_pairs::<V, N, 4>(pass),
            (2, 8) => in_pairs::<V, N, 8>(pass),
            (2, _) => in_pairs::<V, N, 16>(pass),
            (4, _) => in_memory::<V, N, 4>(pass),
            (_, _) => in_memory::<V, N, 8>(pass),
        }
        if pass.stream {
            V::fence();
        }
    }
}

/// Blocks of `N` rows: the whole transform in registers.
///
/// # Safety
/// As [`encode`], for a size of `N` and `B` more points.
#[inline(always)]
unsafe fn in_registers<V: Lane, const N: usize, const B: usize>(pass: &mut Transform<'_, '_>) {
    // SAFETY: passed on from the caller.
    unsafe {
        let first = pass.first / N;
        gather::<V, N, B, { finish::BEGIN }>(pass, first, 0);
        for block in first + 1..pass.blocks() {
            gather::<V, N, B, { finish::ADD }>(pass, block, 0);
        }
        scatter_extra::<V>(pass);
        scatter::<V, N, B, true>(pass, N, 0);
    }
}

/// Blocks of `2 N` rows: the last level together with the gathering of the second half.
///
/// # Safety
/// As [`encode`], for a size of `2 N` and `B` more points.
#[inline(always)]
unsafe fn in_pairs<V: Lane, const N: usize, const B: usize>(pass: &mut Transform<'_, '_>) {
    // SAFETY: passed on from the caller.
    unsafe {
        let first = pass.first / pass.size;
        for block in first..pass.blocks() {
            gather::<V, N, B, { finish::KEEP }>(pass, block, 0);
            if block == first {
                gather::<V, N, B, { finish::PAIR_BEGIN }>(pass, block, 1);
            } else {
                gather::<V, N, B, { finish::PAIR_ADD }>(pass, block, 1);
            }
        }
        scatter_extra::<V>(pass);
        upper_forward::<V, 2>(pass);
        scatter::<V, N, 0, true>(pass, pass.size, 0);
        scatter::<V, N, 0, false>(pass, pass.size, 1);
    }
}

/// Blocks of `R` times `N` rows.
///
/// # Safety
/// As [`encode`], for a size of `R * N`.
#[inline(always)]
unsafe fn in_memory<V: Lane, const N: usize, const R: usize>(pass: &mut Transform<'_, '_>) {
    use upper::{ADD, BEGIN, TURN, TURN_ADD};
    let (first, blocks) = (pass.first / pass.size, pass.blocks());
    // SAFETY: passed on from the caller.
    unsafe {
        for block in first..blocks {
            for group in 0..R {
                gather::<V, N, 0, { finish::KEEP }>(pass, block, group);
            }
            match (block == first, pass.extra == 0 && block + 1 == blocks) {
                (true, true) => upper_inverse::<V, R, TURN>(pass, block),
                (true, false) => upper_inverse::<V, R, BEGIN>(pass, block),
                (false, true) => upper_inverse::<V, R, TURN_ADD>(pass, block),
                (false, false) => upper_inverse::<V, R, ADD>(pass, block),
            }
        }
        let mut sums = 0;
        if pass.extra > 0 {
            scatter_extra::<V>(pass);
            upper_forward::<V, R>(pass);
            sums = pass.size;
        }
        scatter::<V, N, 0, true>(pass, sums, 0);
        for group in 1..pass.dst.len().min(pass.size).div_ceil(N) {
            scatter::<V, N, 0, false>(pass, sums, group);
        }
    }
}

/// Multipliers of the first levels for group `group` of a block.
///
/// # Safety
/// As [`encode`].
unsafe fn skews_of<V: Lane, const N: usize>(
    pass: &Transform<'_, '_>,
    block: usize,
    group: usize,
) -> [*const u64; 4] {
    let mut skews = [pass.skews.as_ptr(); 4];
    for l in 0..N.ilog2() as usize {
        let entry = pass.level(block, l) + ((group * N) >> (l + 1));
        // SAFETY: the level has `size >> (l + 1)` entries, and the group is below `size / N`.
        skews[l] = unsafe { pass.skews.as_ptr().add(entry * V::ENTRY) };
    }
    skews
}

/// Multipliers of a block's levels above the first four.
///
/// # Safety
/// As [`encode`], for a size above 16.
unsafe fn upper_skews<V: Lane>(pass: &Transform<'_, '_>, block: usize) -> [*const u64; 4] {
    let mut skews = [pass.skews.as_ptr(); 4];
    for l in 4..pass.size.ilog2() as usize {
        // SAFETY: there are `size - 1` entries for each block.
        skews[l - 4] = unsafe { pass.skews.as_ptr().add(pass.level(block, l) * V::ENTRY) };
    }
    skews
}

/// What [`gather`] does with its rows: constants, so that they stay in registers.
mod finish {
    /// Stores them as work rows.
    pub(super) const KEEP: u8 = 0;
    /// They are the first sums.
    pub(super) const BEGIN: u8 = 1;
    /// Adds them to the sums.
    pub(super) const ADD: u8 = 2;
    /// Does the level above with the group before; the results are the first sums.
    pub(super) const PAIR_BEGIN: u8 = 3;
    /// Does the level above with the group before and adds to the sums.
    pub(super) const PAIR_ADD: u8 = 4;
}

/// What [`upper_inverse`] does with its rows.
mod upper {
    /// They are the first sums.
    pub(super) const BEGIN: u8 = 0;
    /// Adds them to the sums.
    pub(super) const ADD: u8 = 1;
    /// They are all there is: does the upper levels of the transform and stores them as work rows.
    pub(super) const TURN: u8 = 2;
    /// Adds the sums, then as `TURN`.
    pub(super) const TURN_ADD: u8 = 3;
}

/// Adds to a row, or begins it.
///
/// # Safety
/// The instruction set of `V` is available; `row` is valid for a vector.
#[inline(always)]
unsafe fn put<V: Lane>(x: V, row: *mut u8, begin: bool) {
    // SAFETY: passed on from the caller.
    unsafe {
        if begin {
            x.store(row);
        } else {
            V::load(row).xor(x).store(row);
        }
    }
}

/// Adds a multiple to a row, or begins it.
///
/// # Safety
/// As [`put`].
#[inline(always)]
unsafe fn put_times<V: Lane>(x: V, times: V::Coef, row: *mut u8, begin: bool) {
    // SAFETY: passed on from the caller.
    unsafe {
        let sum = if begin { V::zero() } else { V::load(row) };
        sum.add1(x.source(), times).store(row);
    }
}

/// Loads `N` strips of a block (zeros where there are none) and does the first levels of the inverse
/// transform, then what `FINISH` says; sums also go, weighted, to the `B` second sums.
///
/// # Safety
/// As [`encode`]; for the pairs, the group is 1.
#[inline(always)]
unsafe fn gather<V: Lane, const N: usize, const B: usize, const FINISH: u8>(
    pass: &mut Transform<'_, '_>,
    block: usize,
    group: usize,
) {
    use finish::{BEGIN, KEEP, PAIR_ADD, PAIR_BEGIN};
    // SAFETY: strips hold `at + len` bytes, rows `len`; `col` stays below `len`; rows are below
    // `Transform::rows`.
    unsafe {
        let skews = skews_of::<V, N>(pass, block, group);
        let (stride, size) = (pass.stride, pass.size);
        let kept = pass.row(group * N);
        let (sums, second) = (pass.row(size), pass.row(2 * size));
        let begin = FINISH == BEGIN || FINISH == PAIR_BEGIN;
        let paired = FINISH == PAIR_BEGIN || FINISH == PAIR_ADD;
        let (mut skew, mut share) = (V::coef(pass.skews.as_ptr()), V::coef(pass.skews.as_ptr()));
        if paired {
            let entry = pass.level(block, N.ilog2() as usize);
            skew = V::coef(pass.skews.as_ptr().add(entry * V::ENTRY));
        }
        if B > 0 && FINISH != KEEP {
            share = V::coef(pass.shares.as_ptr().add(block * V::ENTRY));
        }
        let point = block * size + group * N;
        let empty = pass.first.saturating_sub(point).min(N);
        let mut from = [ZEROS.as_ptr(); N];
        for (from, source) in from[empty..].iter_mut().zip(pass.strips(point, N)) {
            *from = source.as_ptr().add(pass.at);
        }
        // Larger blocks are fetched while the levels above are done.
        let (later, later_at) = if size > 2 * N {
            (&[][..], 0)
        } else {
            pass.later(point, N)
        };
        for col in (0..pass.len).step_by(V::WIDTH) {
            let mut x = [V::zero(); N];
            for i in 0..N {
                x[i] = V::load(from[i].add(col));
            }
            for source in later {
                V::prefetch(source.as_ptr().wrapping_add(later_at + col));
            }
            levels::<V, N, true, false>(&mut x, skews);
            for i in 0..N {
                let row = i * stride + col;
                let mut end = x[i];
                if FINISH == KEEP {
                    end.store(kept.add(row));
                    continue;
                }
                let mut sum = sums.add(row);
                if paired {
                    let other = kept.sub(N * stride).add(row);
                    let low;
                    (low, end) = inverse(V::load(other), end, skew);
                    put(low, sum, begin);
                    sum = sum.add(N * stride);
                }
                put(end, sum, begin);
                if i + B >= N {
                    let row = (i + B - N) * stride + col;
                    put_times(end, share, second.add(row), begin);
                }
            }
        }
    }
}

/// The levels of a block's inverse transform above those of [`gather`], then what `FINISH` says.
///
/// # Safety
/// As [`encode`], for a size of `16 R`.
#[inline(always)]
unsafe fn upper_inverse<V: Lane, const R: usize, const FINISH: u8>(
    pass: &mut Transform<'_, '_>,
    block: usize,
) {
    use upper::{BEGIN, TURN, TURN_ADD};
    // SAFETY: rows are below `Transform::rows`, columns below `len`.
    unsafe {
        let (up, down) = (upper_skews::<V>(pass, block), upper_skews::<V>(pass, 0));
        let (stride, size, extra) = (pass.stride, pass.size, pass.extra);
        let (kept, sums, second) = (pass.row(0), pass.row(size), pass.row(2 * size));
        let mut share = V::coef(pass.skews.as_ptr());
        if extra > 0 {
            share = V::coef(pass.shares.as_ptr().add(block * V::ENTRY));
        }
        let (later, later_at) = pass.later(block * size, size);
        for r in 0..16 {
            let next = later.get(r * R..).unwrap_or_default();
            let next = &next[..next.len().min(R)];
            let turns = FINISH == TURN || FINISH == TURN_ADD;
            let fetched = turns && pass.ahead && !pass.stream;
            let soon = pass.dst.get(r * R..).unwrap_or_default();
            let soon = &soon[..if fetched { soon.len().min(R) } else { 0 }];
            for col in (0..pass.len).step_by(V::WIDTH) {
                for source in next {
                    V::prefetch(source.as_ptr().wrapping_add(later_at + col));
                }
                for result in soon {
                    V::prefetch(result.as_ptr().wrapping_add(pass.at + col));
                }
                let mut x = [V::zero(); R];
                for q in 0..R {
                    x[q] = V::load(kept.add((16 * q + r) * stride + col));
                }
                levels::<V, R, true, false>(&mut x, up);
                if FINISH == TURN_ADD {
                    for q in 0..R {
                        x[q] = x[q].xor(V::load(sums.add((16 * q + r) * stride + col)));
                    }
                }
                if FINISH == TURN || FINISH == TURN_ADD {
                    levels::<V, R, false, true>(&mut x, down);
                    for q in 0..R {
                        x[q].store(kept.add((16 * q + r) * stride + col));
                    }
                    continue;
                }
                for q in 0..R {
                    put(x[q], sums.add((16 * q + r) * stride + col), FINISH == BEGIN);
                }
                if r + extra >= 16 {
                    let row = (r + extra - 16) * stride + col;
                    put_times(x[R - 1], share, second.add(row), FINISH == BEGIN);
                }
            }
        }
    }
}

/// The levels of the sums' transform above those of [`scatter`], in place, after the sums have got
/// their parts of the second sums.
///
/// # Safety
/// As [`upper_inverse`].
#[inline(always)]
unsafe fn upper_forward<V: Lane, const R: usize>(pass: &mut Transform<'_, '_>) {
    // SAFETY: rows are below `Transform::rows`, columns below `len`.
    unsafe {
        let down = upper_skews::<V>(pass, 0);
        let (stride, size, extra) = (pass.stride, pass.size, pass.extra);
        let (sums, second) = (pass.row(size), pass.row(2 * size));
        for r in 0..16 {
            for col in (0..pass.len).step_by(V::WIDTH) {
                let mut x = [V::zero(); R];
                for q in 0..R {
                    x[q] = V::load(sums.add((16 * q + r) * stride + col));
                    if extra > 0 {
                        let row = 16 * q + r;
                        let z = V::load(second.add(row % extra * stride + col));
                        let part = V::coef(pass.spread.as_ptr().add(row / extra * V::ENTRY));
                        x[q] = x[q].add1(z.source(), part);
                    }
                }
                levels::<V, R, false, true>(&mut x, down);
                for q in 0..R {
                    x[q].store(sums.add((16 * q + r) * stride + col));
                }
            }
        }
    }
}

/// Does the last levels of the transform of `N` sums, which begin at row `sums`, and stores those that
/// are parity. With `B` the sums first get their parts of the second sums.
///
/// # Safety
/// As [`encode`]; `ZERO` for group 0.
#[inline(always)]
unsafe fn scatter<V: Lane, const N: usize, const B: usize, const ZERO: bool>(
    pass: &mut Transform<'_, '_>,
    sums: usize,
    group: usize,
) {
    // SAFETY: strips hold `at + len` bytes, rows `len`; `col` stays below `len`.
    unsafe {
        let skews = skews_of::<V, N>(pass, 0, group);
        let (stride, at, stream) = (pass.stride, pass.at, pass.stream);
        let (rows, second) = (pass.row(sums + group * N), pass.row(2 * pass.size));
        let spread = pass.spread.as_ptr();
        let first = (group * N).min(pass.dst.len());
        let results = &mut pass.dst[first..];
        let count = results.len().min(N);
        for col in (0..pass.len).step_by(V::WIDTH) {
            let mut x = [V::zero(); N];
            for i in 0..N {
                x[i] = V::load(rows.add(i * stride + col));
            }
            if B > 0 {
                for i in 0..N {
                    let z = V::load(second.add(i % B.max(1) * stride + col));
                    let part = V::coef(spread.add(i / B.max(1) * V::ENTRY));
                    x[i] = x[i].add1(z.source(), part);
                }
            }
            levels::<V, N, false, ZERO>(&mut x, skews);
            if count == N && !stream {
                for i in 0..N {
                    x[i].store(results.get_unchecked_mut(i).as_mut_ptr().add(at + col));
                }
                continue;
            }
            for i in 0..N {
                if i < count {
                    let to = results.get_unchecked_mut(i).as_mut_ptr().add(at + col);
                    store_to(x[i], to, stream);
                }
            }
        }
    }
}

/// The parity beyond `size`: the transform of the second sums at the beginning of block 1.
///
/// # Safety
/// As [`encode`].
#[inline(always)]
unsafe fn scatter_extra<V: Lane>(pass: &mut Transform<'_, '_>) {
    // SAFETY: passed on from the caller.
    unsafe {
        match pass.extra {
            4 => scatter_second::<V, 4>(pass),
            8 => scatter_second::<V, 8>(pass),
            16 => scatter_second::<V, 16>(pass),
            _ => {}
        }
    }
}

/// [`scatter_extra`] for `B` second sums, which stay what they are.
///
/// # Safety
/// As [`encode`], with `B` more points.
#[inline(always)]
unsafe fn scatter_second<V: Lane, const B: usize>(pass: &mut Transform<'_, '_>) {
    // SAFETY: strips hold `at + len` bytes, rows `len`; `col` stays below `len`.
    unsafe {
        let skews = skews_of::<V, B>(pass, 1, 0);
        let (stride, at, stream) = (pass.stride, pass.at, pass.stream);
        let rows = pass.row(2 * pass.size);
        let results = &mut pass.dst[pass.size..];
        for col in (0..pass.len).step_by(V::WIDTH) {
            let mut x = [V::zero(); B];
            for i in 0..B {
                x[i] = V::load(rows.add(i * stride + col));
            }
            levels::<V, B, false, false>(&mut x, skews);
            for i in 0..B {
                if let Some(result) = results.get_mut(i) {
                    store_to(x[i], result.as_mut_ptr().add(at + col), stream);
                }
            }
        }
    }
}
