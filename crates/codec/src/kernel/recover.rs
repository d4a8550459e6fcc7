//! Decoding of the `fft` code in the time of a transform: the derivative of the codeword times its
//! locator (Lin, Al-Naffouri, Han, "FFT algorithm for binary extension finite fields and its
//! application to Reed-Solomon codes", 2016), over the same lanes as the other kernels.
//!
//! A codeword is the values of a polynomial `f` at the points `0..total`. The locator is the polynomial
//! that is zero exactly at the missing points, so `f` times the locator is known everywhere: values are
//! multiplied by the locator's, transformed inversely, differentiated, transformed, and at a missing
//! point the result is `f` there times the derivative of the locator.
//!
//! In this basis the derivative of coefficient `i` goes to every coefficient `j` that lacks one bit of
//! `i`. Bits of the number of a row in its group of 16 and bits of the group's number are taken apart:
//! the derivative along the group's bits needs the upper levels both ways, and for the one along the
//! row's bits the upper levels both ways cancel. So three passes over the rows do it all, and groups in
//! which nothing is wanted need no third.
//!
//! **Invariants.**
//! - A pass reads `src[..][at..at + len]`, writes `dst[..][at..at + len]` and the work rows, nothing
//!   else; [`Recover::check`] has compared these ranges with the slices.
//! - The bytes are those that the inverse of the coding matrix gives.
//! - Work row `p` holds what the lower levels gave for point `p`, row `total + p` the derivative along
//!   the group's bits.

#![expect(
    unsafe_code,
    reason = "vector kernels: raw loads and stores, instructions chosen at run time"
)]
#![expect(
    clippy::needless_range_loop,
    reason = "the indices are register numbers, known when compiled"
)]

use super::butterfly::{LEN_MAX, ZEROS, levels, store_to};
use super::lane::Lane;

/// Rows in a group: what the lower levels are done with in registers.
pub(crate) const GROUP: usize = 16;

/// One tile of a decoding.
pub(crate) struct Recover<'a, 'b> {
    /// Points: 32, 64, 128 or 256.
    pub(crate) total: usize,
    /// `total - 1` multipliers in the kernel's own form, level by level, the lowest first.
    pub(crate) skews: &'a [u64],
    /// The strips that are known, and which point each is at, ascending. Points that neither are here
    /// nor are zeros of the locator hold zeros.
    pub(crate) src: &'a [&'a [u8]],
    pub(crate) src_points: &'a [u8],
    /// For each of these, the locator's value, in the kernel's own form.
    pub(crate) locator: &'a [u64],
    /// The wanted strips, and which point each is at, ascending.
    pub(crate) dst: &'a mut [&'b mut [u8]],
    pub(crate) dst_points: &'a [u8],
    /// For each of these, what the result is to be multiplied by, in the kernel's own form.
    pub(crate) scale: &'a [u64],
    pub(crate) at: usize,
    /// Bytes of each strip: a multiple of 64, at most [`LEN_MAX`].
    pub(crate) len: usize,
    /// `2 * total` rows of `stride` bytes.
    pub(crate) work: &'a mut [u8],
    pub(crate) stride: usize,
    /// Fetch ahead.
    pub(crate) ahead: bool,
    /// Write around the caches; only if every result's first byte is aligned to 64.
    pub(crate) stream: bool,
}

impl Recover<'_, '_> {
    /// Panics unless every range lies inside its slice. `words` is a multiplier's size.
    pub(super) fn check(&self, words: usize) {
        let holds = |length: usize| length >= self.at && length - self.at >= self.len;
        assert!(matches!(self.total, 32 | 64 | 128 | 256));
        assert!(self.skews.len() >= (self.total - 1) * words);
        assert!(self.src.len() == self.src_points.len() && self.dst.len() == self.dst_points.len());
        assert!(self.locator.len() >= self.src.len() * words);
        assert!(self.scale.len() >= self.dst.len() * words);
        let fit = |points: &[u8]| points.iter().all(|&p| usize::from(p) < self.total);
        assert!(fit(self.src_points) && fit(self.dst_points));
        assert!(self.src_points.is_sorted() && self.dst_points.is_sorted());
        assert!(self.len.is_multiple_of(64) && self.len <= LEN_MAX && self.stride >= self.len);
        assert!(self.work.len() >= 2 * self.total * self.stride);
        assert!(self.src.iter().all(|source| holds(source.len())));
        assert!(self.dst.iter().all(|result| holds(result.len())));
        let aligned = |result: &&mut [u8]| (result.as_ptr() as usize + self.at).is_multiple_of(64);
        assert!(!self.stream || self.dst.iter().all(aligned));
    }

    /// Where the multipliers of a level begin.
    fn level(&self, level: usize) -> usize {
        self.total - (self.total >> level)
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

/// Of ascending points, those of the group of 16 that begins at `first`, of which `done` come before.
fn in_group(points: &[u8], done: usize, first: usize) -> std::ops::Range<usize> {
    let count = points[done..]
        .iter()
        .take_while(|&&point| usize::from(point) < first + GROUP)
        .count();
    done..done + count
}

/// Decodes a tile, `H` groups of 16 points, half of which are `HALF`.
///
/// # Safety
/// The instruction set of `V` is available, `pass.check(V::ENTRY)` holds, `total` is `16 H`.
#[inline(always)]
pub(super) unsafe fn decode<V: Lane, const H: usize, const HALF: usize>(
    pass: &mut Recover<'_, '_>,
) {
    // SAFETY: passed on from the caller.
    unsafe {
        let (mut known, mut wanted) = (0, 0);
        for &point in pass.src_points {
            known |= 1 << (usize::from(point) / GROUP);
        }
        for &point in pass.dst_points {
            wanted |= 1 << (usize::from(point) / GROUP);
        }
        let mut done = 0;
        for group in (0..H).filter(|group| known >> group & 1 == 1) {
            let sources = in_group(pass.src_points, done, group * GROUP);
            done = sources.end;
            enter::<V>(pass, group, sources);
        }
        across::<V, H, HALF>(pass, known, wanted);
        let mut done = 0;
        for group in (0..H).filter(|group| wanted >> group & 1 == 1) {
            let results = in_group(pass.dst_points, done, group * GROUP);
            done = results.end;
            if known >> group & 1 == 1 {
                leave::<V, true>(pass, group, results);
            } else {
                leave::<V, false>(pass, group, results);
            }
        }
        if pass.stream {
            V::fence();
        }
    }
}

/// Multipliers of the first levels for a group.
///
/// # Safety
/// As [`decode`].
unsafe fn skews_of<V: Lane>(pass: &Recover<'_, '_>, group: usize) -> [*const u64; 4] {
    std::array::from_fn(|l| {
        let entry = pass.level(l) + ((group * GROUP) >> (l + 1));
        // SAFETY: the level has `total >> (l + 1)` entries, and the group is below `total / 16`.
        unsafe { pass.skews.as_ptr().add(entry * V::ENTRY) }
    })
}

/// The derivative along the bits of the row number, in place.
///
/// # Safety
/// The instruction set of `V` is available.
#[inline(always)]
unsafe fn derive<V: Lane, const N: usize>(x: &mut [V; N]) {
    // SAFETY: passed on from the caller. Row `i` only needs rows after it, so none is lost.
    unsafe {
        for i in 0..N {
            let mut sum = V::zero();
            for bit in 0..N.ilog2() {
                if i >> bit & 1 == 0 {
                    sum = sum.xor(x[i | 1 << bit]);
                }
            }
            x[i] = sum;
        }
    }
}

/// Known strips of a group times the locator, and the lower levels of the inverse transform.
///
/// # Safety
/// As [`decode`]; `sources` are those of the group.
#[inline(always)]
unsafe fn enter<V: Lane>(
    pass: &mut Recover<'_, '_>,
    group: usize,
    sources: std::ops::Range<usize>,
) {
    // SAFETY: strips hold `at + len` bytes, rows `len`; `col` stays below `len`.
    unsafe {
        let (stride, rows) = (pass.stride, pass.row(group * GROUP));
        let skews = skews_of::<V>(pass, group);
        let mut from = [ZEROS.as_ptr(); GROUP];
        let mut times = [pass.locator.as_ptr(); GROUP];
        for c in sources.clone() {
            let i = usize::from(pass.src_points[c]) - group * GROUP;
            from[i] = pass.src[c].as_ptr().add(pass.at);
            times[i] = pass.locator.as_ptr().add(c * V::ENTRY);
        }
        for col in (0..pass.len).step_by(V::WIDTH) {
            let mut x = [V::zero(); GROUP];
            for i in 0..GROUP {
                let source = V::load(from[i].add(col)).source();
                x[i] = V::zero().add1(source, V::coef(times[i]));
            }
            levels::<V, GROUP, true, false>(&mut x, skews);
            for i in 0..GROUP {
                x[i].store(rows.add(i * stride + col));
            }
        }
    }
}

/// The upper levels of the inverse transform of the known groups (the others are zero), the derivative
/// along the bits of the group number, and the upper levels of the transform for the wanted groups.
///
/// # Safety
/// As [`decode`].
#[inline(always)]
unsafe fn across<V: Lane, const H: usize, const HALF: usize>(
    pass: &mut Recover<'_, '_>,
    known: usize,
    wanted: usize,
) {
    // SAFETY: rows are below `2 * total`, columns below `len`; there are `total - 1` multipliers.
    unsafe {
        // The multipliers of the lower and of the upper half; the level over both has 0.
        let mut low = [pass.skews.as_ptr(); 4];
        for l in 4..pass.total.ilog2() as usize {
            low[l - 4] = pass.skews.as_ptr().add(pass.level(l) * V::ENTRY);
        }
        let mut high = low;
        for l in 0..HALF.ilog2() as usize {
            high[l] = low[l].add((HALF >> (l + 1)) * V::ENTRY);
        }
        let (stride, rows, results) = (pass.stride, pass.row(0), pass.row(pass.total));
        let per_row = pass.src.len().div_ceil(GROUP);
        let per_result = pass.dst.len().div_ceil(GROUP).max(1);
        for r in 0..GROUP {
            let next = match pass.ahead {
                true => pass.src.chunks(per_row).nth(r).unwrap_or_default(),
                false => &[],
            };
            let soon = match pass.ahead && !pass.stream {
                true => pass.dst.chunks(per_result).nth(r).unwrap_or_default(),
                false => &[],
            };
            for col in (0..pass.len).step_by(V::WIDTH) {
                for source in next {
                    V::prefetch(source.as_ptr().wrapping_add(pass.at + pass.len + col));
                }
                for result in soon {
                    V::prefetch(result.as_ptr().wrapping_add(pass.at + col));
                }
                let (mut a, mut b) = ([V::zero(); HALF], [V::zero(); HALF]);
                for q in 0..HALF {
                    if known >> q & 1 == 1 {
                        a[q] = V::load(rows.add((GROUP * q + r) * stride + col));
                    }
                }
                levels::<V, HALF, true, true>(&mut a, low);
                if known >> HALF != 0 {
                    for q in 0..HALF {
                        if known >> (HALF + q) & 1 == 1 {
                            b[q] = V::load(rows.add((GROUP * (HALF + q) + r) * stride + col));
                        }
                    }
                    levels::<V, HALF, true, false>(&mut b, high);
                }
                for q in 0..HALF {
                    b[q] = b[q].xor(a[q]);
                }
                // The derivative; then the level over both halves, which adds the lower to the upper.
                derive(&mut a);
                for q in 0..HALF {
                    a[q] = a[q].xor(b[q]);
                }
                derive(&mut b);
                for q in 0..HALF {
                    b[q] = b[q].xor(a[q]);
                }
                let results = results.add(r * stride + col);
                if wanted & ((1 << HALF) - 1) != 0 {
                    levels::<V, HALF, false, true>(&mut a, low);
                    for q in 0..HALF {
                        if wanted >> q & 1 == 1 {
                            a[q].store(results.add(GROUP * q * stride));
                        }
                    }
                }
                if wanted >> HALF != 0 {
                    levels::<V, HALF, false, false>(&mut b, high);
                    for q in 0..HALF {
                        if wanted >> (HALF + q) & 1 == 1 {
                            b[q].store(results.add(GROUP * (HALF + q) * stride));
                        }
                    }
                }
            }
        }
    }
}

/// The derivative along the bits of the row number added to the other, the lower levels of the transform,
/// and the wanted rows.
///
/// # Safety
/// As [`decode`]; `wanted` are those of the group, and `KNOWN` says whether it has known strips.
#[inline(always)]
unsafe fn leave<V: Lane, const KNOWN: bool>(
    pass: &mut Recover<'_, '_>,
    group: usize,
    wanted: std::ops::Range<usize>,
) {
    // SAFETY: strips hold `at + len` bytes, rows `len`; `col` stays below `len`.
    unsafe {
        let skews = skews_of::<V>(pass, group);
        let (stride, at, stream) = (pass.stride, pass.at, pass.stream);
        let rows = pass.row(group * GROUP);
        let others = pass.row(pass.total + group * GROUP);
        let mut to = [std::ptr::null_mut(); GROUP];
        let mut times = [pass.scale.as_ptr(); GROUP];
        for r in wanted {
            let i = usize::from(pass.dst_points[r]) - group * GROUP;
            to[i] = pass.dst[r].as_mut_ptr().add(at);
            times[i] = pass.scale.as_ptr().add(r * V::ENTRY);
        }
        for col in (0..pass.len).step_by(V::WIDTH) {
            let mut x = [V::zero(); GROUP];
            if KNOWN {
                for i in 0..GROUP {
                    x[i] = V::load(rows.add(i * stride + col));
                }
                derive(&mut x);
            }
            for i in 0..GROUP {
                x[i] = x[i].xor(V::load(others.add(i * stride + col)));
            }
            levels::<V, GROUP, false, false>(&mut x, skews);
            for i in 0..GROUP {
                if !to[i].is_null() {
                    let result = V::zero().add1(x[i].source(), V::coef(times[i]));
                    store_to(result, to[i].add(col), stream);
                }
            }
        }
    }
}
