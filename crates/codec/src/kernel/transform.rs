//! Encoding of the `fft` code in the time of a transform: the additive FFT of Lin, Chung and Han
//! ("Novel polynomial basis and its application to Reed-Solomon erasure codes", 2014), over the same
//! lanes as the other kernels.
//!
//! Parity points are 0..size, data points follow, in blocks of `size`. A block's inverse transform
//! gives the polynomial of degree below `size` through its strips; the transform of the sum of these
//! polynomials at offset 0 is the parity. See `docs/codec.md`.
//!
//! **Invariants.**
//! - A pass reads `src[..][at..at + len]`, writes `dst[..][at..at + len]` and the work rows, nothing
//!   else; [`Transform::check`] has compared these ranges with the slices.
//! - The bytes are those of the code's coding matrix, which every other kernel uses.
//! - Row `i` of the work area holds the coefficient or value of index `i` of the block at hand, row
//!   `size + i` that of the sum of all blocks so far.

#![expect(
    unsafe_code,
    reason = "vector kernels: raw loads and stores, instructions chosen at run time"
)]
#![expect(
    clippy::needless_range_loop,
    reason = "the indices are register numbers, known when compiled"
)]

use super::lanes::Lane;

/// The longest tile.
pub(crate) const LEN_MAX: usize = 1024;

/// Stands for strips that a block does not have.
static ZEROS: [u8; LEN_MAX] = [0; LEN_MAX];

/// One tile of an encoding.
pub(crate) struct Transform<'a, 'b> {
    /// Rows of a transform: a power of two from 8 to 128.
    pub(crate) size: usize,
    /// Multipliers in the kernel's own form: `size - 1` for each block, the parity's first; within a
    /// block level by level, the lowest first.
    pub(crate) skews: &'a [u64],
    /// The data.
    pub(crate) src: &'a [&'a [u8]],
    /// The parity: at most `size` strips.
    pub(crate) dst: &'a mut [&'b mut [u8]],
    pub(crate) at: usize,
    /// Bytes of each strip: a multiple of 64, at most [`LEN_MAX`].
    pub(crate) len: usize,
    /// `2 * size` rows of `stride` bytes.
    pub(crate) work: &'a mut [u8],
    pub(crate) stride: usize,
    /// Write around the caches; only if every result's first byte is aligned to 64.
    pub(crate) stream: bool,
}

impl Transform<'_, '_> {
    /// Panics unless every range lies inside its slice. `words` is a multiplier's size.
    pub(super) fn check(&self, words: usize) {
        let holds = |length: usize| length >= self.at && length - self.at >= self.len;
        let blocks = 1 + self.src.len().div_ceil(self.size);
        assert!(self.size.is_power_of_two() && (8..=128).contains(&self.size));
        assert!(self.skews.len() >= blocks * (self.size - 1) * words);
        assert!(!self.src.is_empty() && !self.dst.is_empty() && self.dst.len() <= self.size);
        assert!(self.len.is_multiple_of(64) && self.len <= LEN_MAX && self.stride >= self.len);
        assert!(self.work.len() >= 2 * self.size * self.stride);
        assert!(self.src.iter().all(|source| holds(source.len())));
        assert!(self.dst.iter().all(|result| holds(result.len())));
        let aligned = |result: &&mut [u8]| (result.as_ptr() as usize + self.at).is_multiple_of(64);
        assert!(!self.stream || self.dst.iter().all(aligned));
    }

    /// Where the multipliers of a level of a block begin.
    fn level(&self, block: usize, level: usize) -> usize {
        block * (self.size - 1) + self.size - (self.size >> level)
    }
}

/// `b += a; a += skew * b`: a butterfly of the inverse transform.
///
/// # Safety
/// The instruction set of `V` is available.
#[inline(always)]
unsafe fn inverse<V: Lane>(a: V, b: V, skew: V::Coef) -> (V, V) {
    // SAFETY: passed on from the caller.
    unsafe {
        let b = b.xor(a);
        (a.add1(b.source(), skew), b)
    }
}

/// `a += skew * b; b += a`: a butterfly of the transform.
///
/// # Safety
/// The instruction set of `V` is available.
#[inline(always)]
unsafe fn forward<V: Lane>(a: V, b: V, skew: V::Coef) -> (V, V) {
    // SAFETY: passed on from the caller.
    unsafe {
        let a = a.add1(b.source(), skew);
        (a, b.xor(a))
    }
}

/// Level `L` of `N` rows in registers, whose multipliers begin at `skews`.
///
/// # Safety
/// The instruction set of `V` is available; `skews` is valid for `N >> (L + 1)` multipliers.
#[inline(always)]
unsafe fn level<V: Lane, const N: usize, const L: usize, const INVERSE: bool>(
    x: &mut [V; N],
    skews: *const u64,
) {
    // SAFETY: passed on from the caller; row numbers stay below N.
    unsafe {
        for p in 0..N / 2 {
            let group = p >> L;
            let a = (group << (L + 1)) + (p & ((1 << L) - 1));
            let b = a + (1 << L);
            let skew = V::coef(skews.add(group * V::ENTRY));
            (x[a], x[b]) = match INVERSE {
                true => inverse(x[a], x[b], skew),
                false => forward(x[a], x[b], skew),
            };
        }
    }
}

/// The first levels of `N` rows, 3 for 8 and 4 for 16, upwards or downwards.
///
/// # Safety
/// As [`level`] for each; `skews` are the levels' beginnings.
#[inline(always)]
unsafe fn levels<V: Lane, const N: usize, const INVERSE: bool>(
    x: &mut [V; N],
    skews: [*const u64; 4],
) {
    // SAFETY: passed on from the caller.
    unsafe {
        if INVERSE {
            level::<V, N, 0, true>(x, skews[0]);
            level::<V, N, 1, true>(x, skews[1]);
            level::<V, N, 2, true>(x, skews[2]);
            if N == 16 {
                level::<V, N, 3, true>(x, skews[3]);
            }
        } else {
            if N == 16 {
                level::<V, N, 3, false>(x, skews[3]);
            }
            level::<V, N, 2, false>(x, skews[2]);
            level::<V, N, 1, false>(x, skews[1]);
            level::<V, N, 0, false>(x, skews[0]);
        }
    }
}

/// Encodes a tile with transforms of `N` rows in registers and the levels above in memory.
///
/// # Safety
/// The instruction set of `V` is available, `pass.check(V::ENTRY)` holds, `N` is 8 if the size is 8
/// and else 16.
#[inline(always)]
pub(super) unsafe fn encode<V: Lane, const N: usize>(pass: &mut Transform<'_, '_>) {
    let blocks = pass.src.len().div_ceil(pass.size);
    // SAFETY: passed on from the caller; groups and rows stay below the size.
    unsafe {
        for block in 0..blocks {
            for group in 0..pass.size / N {
                gather::<V, N>(pass, block, group);
            }
            if pass.size > 2 * N {
                upper_inverse::<V, N>(pass, block);
            }
        }
        // Pairs of groups are needed together, if there are pairs.
        let needed = pass
            .dst
            .len()
            .next_multiple_of(if pass.size > N { 2 * N } else { N });
        upper_forward::<V, N>(pass, needed);
        for group in 0..pass.dst.len().div_ceil(N) {
            scatter::<V, N>(pass, group);
        }
        if pass.stream {
            V::fence();
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

/// What [`gather`] does with its rows: constants, so that they stay in registers.
mod finish {
    /// Stores them as work rows.
    pub(super) const KEEP: u8 = 0;
    /// They are the first sums.
    pub(super) const BEGIN: u8 = 1;
    /// Adds them to the sums.
    pub(super) const ADD: u8 = 2;
    /// Does the level above with the group before, then as `KEEP`.
    pub(super) const PAIR_KEEP: u8 = 3;
    /// Does the level above with the group before, then as `BEGIN`.
    pub(super) const PAIR_BEGIN: u8 = 4;
    /// Does the level above with the group before, then as `ADD`.
    pub(super) const PAIR_ADD: u8 = 5;
}

/// Loads `N` data strips of a block (zeros where there are none) and does the first levels of the
/// inverse transform; for every other group also the level above, with the group before.
///
/// # Safety
/// As [`encode`].
#[inline(always)]
unsafe fn gather<V: Lane, const N: usize>(
    pass: &mut Transform<'_, '_>,
    block: usize,
    group: usize,
) {
    let (odd, pairs, first) = (group % 2 == 1, pass.size == 2 * N, block == 0);
    // SAFETY: passed on from the caller.
    unsafe {
        match (pass.size == N, odd, pairs, first) {
            (true, _, _, true) => gather_to::<V, N, { finish::BEGIN }>(pass, block, group),
            (true, _, _, false) => gather_to::<V, N, { finish::ADD }>(pass, block, group),
            (_, false, _, _) => gather_to::<V, N, { finish::KEEP }>(pass, block, group),
            (_, _, false, _) => gather_to::<V, N, { finish::PAIR_KEEP }>(pass, block, group),
            (_, _, _, true) => gather_to::<V, N, { finish::PAIR_BEGIN }>(pass, block, group),
            (_, _, _, false) => gather_to::<V, N, { finish::PAIR_ADD }>(pass, block, group),
        }
    }
}

/// [`gather`] with one end.
///
/// # Safety
/// As [`encode`]; for the pairs, the group is odd.
#[inline(always)]
unsafe fn gather_to<V: Lane, const N: usize, const FINISH: u8>(
    pass: &mut Transform<'_, '_>,
    block: usize,
    group: usize,
) {
    use finish::{ADD, BEGIN, KEEP, PAIR_ADD, PAIR_BEGIN, PAIR_KEEP};
    // SAFETY: strips hold `at + len` bytes, rows `len`; `col` stays below `len`; rows are below
    // `size`, sums `size` rows after them.
    unsafe {
        let skews = skews_of::<V, N>(pass, block + 1, group);
        let first = block * pass.size + group * N;
        let sources = pass.src.get(first..).unwrap_or_default();
        let sources = &sources[..sources.len().min(N)];
        let later = pass.src.get(first + N..).unwrap_or_default();
        let later = &later[..later.len().min(N)];
        let stride = pass.stride;
        let rows = pass.work.as_mut_ptr().add(group * N * stride);
        let sums = pass.size * stride;
        let paired = FINISH >= PAIR_KEEP;
        let entry = pass.level(block + 1, N.ilog2() as usize) + group / 2;
        let skew = V::coef(
            pass.skews
                .as_ptr()
                .add(if paired { entry * V::ENTRY } else { 0 }),
        );
        let mut from = [ZEROS.as_ptr(); N];
        for (from, source) in from.iter_mut().zip(sources) {
            *from = source.as_ptr().add(pass.at);
        }
        for col in (0..pass.len).step_by(V::WIDTH) {
            let mut x = [V::zero(); N];
            for i in 0..N {
                x[i] = V::load(from[i].add(col));
            }
            for source in later {
                V::prefetch(source.as_ptr().wrapping_add(pass.at + col));
            }
            levels::<V, N, true>(&mut x, skews);
            let rows = rows.add(col);
            for i in 0..N {
                let row = rows.add(i * stride);
                match FINISH {
                    KEEP => x[i].store(row),
                    BEGIN => x[i].store(row.add(sums)),
                    ADD => V::load(row.add(sums)).xor(x[i]).store(row.add(sums)),
                    _ => {
                        let other = row.sub(N * stride);
                        let (a, b) = inverse(V::load(other), x[i], skew);
                        let (low, high) = (other.add(sums), row.add(sums));
                        match FINISH {
                            PAIR_BEGIN => {
                                a.store(low);
                                b.store(high);
                            }
                            PAIR_ADD => {
                                V::load(low).xor(a).store(low);
                                V::load(high).xor(b).store(high);
                            }
                            _ => {
                                a.store(other);
                                b.store(row);
                            }
                        }
                    }
                }
            }
        }
    }
}

/// The levels of a block's inverse transform above those of [`gather`]; the last one adds to the sums.
///
/// # Safety
/// As [`encode`].
#[inline(always)]
unsafe fn upper_inverse<V: Lane, const N: usize>(pass: &mut Transform<'_, '_>, block: usize) {
    // SAFETY: row numbers stay below 2 * size, columns below len.
    unsafe {
        let work = pass.work.as_mut_ptr();
        let row = |number: usize| work.add(number * pass.stride);
        let top = pass.size.ilog2() as usize;
        for l in N.ilog2() as usize + 1..top {
            let distance = 1 << l;
            for a in (0..pass.size).filter(|a| a & distance == 0) {
                let entry = pass.level(block + 1, l) + (a >> (l + 1));
                let skew = V::coef(pass.skews.as_ptr().add(entry * V::ENTRY));
                let (low, high) = (row(a), row(a + distance));
                let (sum_low, sum_high) = (row(pass.size + a), row(pass.size + a + distance));
                for col in (0..pass.len).step_by(V::WIDTH) {
                    let (x, y) = inverse(V::load(low.add(col)), V::load(high.add(col)), skew);
                    if l + 1 < top {
                        x.store(low.add(col));
                        y.store(high.add(col));
                    } else if block == 0 {
                        x.store(sum_low.add(col));
                        y.store(sum_high.add(col));
                    } else {
                        V::load(sum_low.add(col)).xor(x).store(sum_low.add(col));
                        V::load(sum_high.add(col)).xor(y).store(sum_high.add(col));
                    }
                }
            }
        }
    }
}

/// The levels of the sums' transform above those of [`scatter`], for rows below `needed`.
///
/// # Safety
/// As [`encode`].
#[inline(always)]
unsafe fn upper_forward<V: Lane, const N: usize>(pass: &mut Transform<'_, '_>, needed: usize) {
    // SAFETY: row numbers stay below 2 * size, columns below len.
    unsafe {
        let sums = pass.work.as_mut_ptr().add(pass.size * pass.stride);
        let row = |number: usize| sums.add(number * pass.stride);
        for l in (N.ilog2() as usize + 1..pass.size.ilog2() as usize).rev() {
            let distance = 1 << l;
            for a in (0..pass.size).filter(|a| a & distance == 0) {
                // Where the part of the rows begins that this butterfly belongs to.
                let part = a >> (l + 1) << (l + 1);
                if part >= needed {
                    continue;
                }
                let entry = pass.level(0, l) + (a >> (l + 1));
                let skew = V::coef(pass.skews.as_ptr().add(entry * V::ENTRY));
                let (low, high) = (row(a), row(a + distance));
                for col in (0..pass.len).step_by(V::WIDTH) {
                    let (x, y) = forward(V::load(low.add(col)), V::load(high.add(col)), skew);
                    x.store(low.add(col));
                    if part + distance < needed {
                        y.store(high.add(col));
                    }
                }
            }
        }
    }
}

/// Does the last levels of the transform of `N` sums, the first of them together with the other group
/// of its pair, and stores those that are parity.
///
/// # Safety
/// As [`encode`].
#[inline(always)]
unsafe fn scatter<V: Lane, const N: usize>(pass: &mut Transform<'_, '_>, group: usize) {
    // SAFETY: passed on from the caller.
    unsafe {
        match (pass.size == N, group % 2) {
            (true, _) => scatter_half::<V, N, { half::WHOLE }>(pass, group),
            (false, 0) => scatter_half::<V, N, { half::LOWER }>(pass, group),
            (false, _) => scatter_half::<V, N, { half::UPPER }>(pass, group),
        }
    }
}

/// What a group is of the level above.
mod half {
    /// There is none.
    pub(super) const WHOLE: u8 = 0;
    /// The lower half.
    pub(super) const LOWER: u8 = 1;
    /// The upper half.
    pub(super) const UPPER: u8 = 2;
}

/// One vector, around the caches or not.
///
/// # Safety
/// As [`Lane::stream`] and [`Lane::store`].
#[inline(always)]
unsafe fn store_to<V: Lane>(x: V, to: *mut u8, stream: bool) {
    // SAFETY: passed on from the caller.
    unsafe {
        if stream {
            x.stream(to);
        } else {
            x.store(to);
        }
    }
}

/// [`scatter`] for one kind of group.
///
/// # Safety
/// As [`encode`].
#[inline(always)]
unsafe fn scatter_half<V: Lane, const N: usize, const HALF: u8>(
    pass: &mut Transform<'_, '_>,
    group: usize,
) {
    // SAFETY: strips hold `at + len` bytes, rows `len`; `col` stays below `len`.
    unsafe {
        let skews = skews_of::<V, N>(pass, 0, group);
        let rows = pass
            .work
            .as_ptr()
            .add((pass.size + group * N) * pass.stride);
        let (mut others, mut skew) = (rows, V::coef(pass.skews.as_ptr()));
        if HALF != half::WHOLE {
            let other = pass.size + (group ^ 1) * N;
            others = pass.work.as_ptr().add(other * pass.stride);
            let entry = pass.level(0, N.ilog2() as usize) + group / 2;
            skew = V::coef(pass.skews.as_ptr().add(entry * V::ENTRY));
        }
        let results = &mut pass.dst[group * N..];
        let count = results.len().min(N);
        for col in (0..pass.len).step_by(V::WIDTH) {
            let mut x = [V::zero(); N];
            for i in 0..N {
                x[i] = V::load(rows.add(i * pass.stride + col));
                // The level above, of which this group is the lower or the upper half.
                let other = others.wrapping_add(i * pass.stride + col);
                x[i] = match HALF {
                    half::WHOLE => x[i],
                    half::LOWER => x[i].add1(V::load(other).source(), skew),
                    _ => forward(V::load(other), x[i], skew).1,
                };
            }
            levels::<V, N, false>(&mut x, skews);
            if count == N && !pass.stream {
                for i in 0..N {
                    x[i].store(results.get_unchecked_mut(i).as_mut_ptr().add(pass.at + col));
                }
                continue;
            }
            for i in 0..N {
                if i < count {
                    let to = results.get_unchecked_mut(i).as_mut_ptr().add(pass.at + col);
                    store_to(x[i], to, pass.stream);
                }
            }
        }
    }
}
