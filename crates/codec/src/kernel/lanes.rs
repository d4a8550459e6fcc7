//! The one shape of every vector kernel: how a group of sources times a table of coefficients
//! becomes results, written once over a small trait that each instruction set implements.
//!
//! **Invariants.**
//! - A pass reads `src[c][src_at..src_at + len]` and writes `dst[r][dst_at..dst_at + len]`, nothing
//!   else; [`Pass::check`] has compared these ranges with the slices before any pointer is made.
//! - Table order of [`rows`] is by source, then by row: the coefficient of row `r` for source `c` is
//!   entry `c * rows + r`. That of [`group`] is by row, then by source: entry `r * sources + s`.
//! - Bytes beyond whole vectors are done by the portable code, so that no lane reads or writes
//!   outside the slices.

#![expect(
    unsafe_code,
    reason = "vector kernels: raw loads and stores, instructions chosen at run time"
)]
#![expect(
    clippy::needless_range_loop,
    reason = "the indices are register numbers, known when compiled"
)]

use super::lane::Lane;
use super::pass::{End, Form, Group, Pass, SPIN_BYTES};
use super::portable;

/// The entries of a kernel into the code below for one lane: `rows`, `group` and `spin`, with the
/// instruction set, the numbers of rows and of sources that it has registers for, and for rows of few
/// sources the numbers (rows and sources) whose coefficients are held in registers.
macro_rules! entries {
    ($lane:ty, $features:literal, rows $($rows:literal)*, sources $($sources:literal)*
     $(, held $($r:literal x $k:literal)*)?) => {
        /// # Safety
        /// `available` holds, `pass.rows` is one of the kernel's, and `pass.check()` holds.
        #[target_feature(enable = $features)]
        pub(super) unsafe fn rows(pass: &mut $crate::kernel::Pass<'_, '_>) {
            use $crate::kernel::lanes;
            // SAFETY: passed on from the caller; the constants are the numbers of rows and sources.
            unsafe {
                $(
                    use $crate::kernel::Form;
                    if pass.form == Form::Sources && !pass.add && pass.next.is_empty() {
                        match (pass.rows, pass.src.len()) {
                            $(($r, $k) => return lanes::held::<$lane, $r, $k>(pass),)*
                            _ => {}
                        }
                    }
                )?
                match pass.rows {
                    $($rows => lanes::rows::<$lane, $rows>(pass),)*
                    rows => unreachable!("{rows} rows"),
                }
            }
        }

        /// # Safety
        /// `available` holds, `pass.src.len()` is one of the kernel's, and `pass.check()` holds.
        #[target_feature(enable = $features)]
        pub(super) unsafe fn group(pass: &mut $crate::kernel::Group<'_, '_>) {
            use $crate::kernel::lanes;
            // SAFETY: passed on from the caller; the constant is the number of sources.
            unsafe {
                match pass.src.len() {
                    $($sources => lanes::group::<$lane, $sources>(pass),)*
                    sources => unreachable!("{sources} sources"),
                }
            }
        }

        /// # Safety
        /// `available` holds.
        #[target_feature(enable = $features)]
        pub(super) unsafe fn spin(rounds: usize) -> u64 {
            // SAFETY: passed on from the caller.
            unsafe { $crate::kernel::lanes::spin::<$lane>(rounds) }
        }
    };
}

/// The same for a kernel with transforms: `transform` and `recover`.
macro_rules! transform_entries {
    ($lane:ty, $features:literal) => {
        /// # Safety
        /// `available` holds, and `pass.check()` holds.
        #[target_feature(enable = $features)]
        pub(super) unsafe fn transform(pass: &mut $crate::kernel::Transform<'_, '_>) {
            use $crate::kernel::transform;
            // SAFETY: passed on from the caller.
            unsafe {
                match pass.size {
                    8 => transform::encode::<$lane, 8>(pass),
                    _ => transform::encode::<$lane, 16>(pass),
                }
            }
        }

        /// # Safety
        /// `available` holds, and `pass.check()` holds.
        #[target_feature(enable = $features)]
        pub(super) unsafe fn recover(pass: &mut $crate::kernel::Recover<'_, '_>) {
            use $crate::kernel::recover;
            // SAFETY: passed on from the caller; the constants are the groups and half of them.
            unsafe {
                match pass.total {
                    32 => recover::decode::<$lane, 2, 1>(pass),
                    64 => recover::decode::<$lane, 4, 2>(pass),
                    128 => recover::decode::<$lane, 8, 4>(pass),
                    _ => recover::decode::<$lane, 16, 8>(pass),
                }
            }
        }
    };
}

#[cfg_attr(
    not(any(target_arch = "x86_64", target_arch = "aarch64")),
    allow(unused_imports, reason = "no vector kernel for this architecture")
)]
pub(super) use {entries, transform_entries};

/// Computes `R` rows over the whole of a pass, all accumulators in registers, two vectors at a time.
///
/// # Safety
/// The instruction set of `V` is available, `pass.rows == R`, and `pass.check()` holds.
#[inline(always)]
pub(super) unsafe fn rows<V: Lane, const R: usize>(pass: &mut Pass<'_, '_>) {
    // SAFETY: passed on from the caller.
    unsafe {
        match pass.form {
            Form::Sources => sweep::<V, R, { Form::Sources as u8 }>(pass),
            Form::Change => sweep::<V, R, { Form::Change as u8 }>(pass),
            Form::Ones => sweep::<V, R, { Form::Ones as u8 }>(pass),
        }
    }
}

/// Goes through the columns of a pass two vectors at a time, then one, then the rest.
///
/// # Safety
/// As [`rows`], and `FORM` is that of the pass.
#[inline(always)]
unsafe fn sweep<V: Lane, const R: usize, const FORM: u8>(pass: &mut Pass<'_, '_>) {
    let mut col = 0;
    // SAFETY: col + N * WIDTH <= len, which `check` has compared with every slice.
    unsafe {
        while col + 2 * V::WIDTH <= pass.len {
            step::<V, R, 2, FORM>(pass, col);
            col += 2 * V::WIDTH;
        }
        if col + V::WIDTH <= pass.len {
            step::<V, R, 1, FORM>(pass, col);
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

/// `N` neighbouring vectors of a pass.
///
/// # Safety
/// As [`sweep`], and `col + N * WIDTH <= pass.len`.
#[inline(always)]
unsafe fn step<V: Lane, const R: usize, const N: usize, const FORM: u8>(
    pass: &mut Pass<'_, '_>,
    col: usize,
) {
    // SAFETY: passed on from the caller.
    unsafe {
        if FORM == Form::Change as u8 {
            change::<V, R, N>(pass, col);
        } else if FORM == Form::Ones as u8 {
            ones::<V, N>(pass, col);
        } else {
            columns::<V, R, N>(pass, col);
        }
    }
}

/// `N` neighbouring vectors.
///
/// # Safety
/// The instruction set of `V` is available and `from` is valid for `N * WIDTH` bytes.
#[inline(always)]
unsafe fn load<V: Lane, const N: usize>(from: *const u8) -> [V; N] {
    // SAFETY: vector `n` ends at `(n + 1) * WIDTH`.
    unsafe {
        let mut vectors = [V::zero(); N];
        for n in 0..N {
            vectors[n] = V::load(from.add(n * V::WIDTH));
        }
        vectors
    }
}

/// The same made ready for multiplication.
///
/// # Safety
/// As [`load`].
#[inline(always)]
unsafe fn sources<V: Lane, const N: usize>(from: *const u8) -> [V::Source; N] {
    // SAFETY: passed on from the caller.
    unsafe { load::<V, N>(from).map(|vector| vector.source()) }
}

/// Writes `N` neighbouring vectors.
///
/// # Safety
/// As [`load`], for writing; for `stream`, `to` is aligned to 64.
#[inline(always)]
unsafe fn store<V: Lane, const N: usize>(vectors: [V; N], to: *mut u8, stream: bool) {
    for n in 0..N {
        // SAFETY: vector `n` ends at `(n + 1) * WIDTH`.
        unsafe {
            if stream {
                vectors[n].stream(to.add(n * V::WIDTH));
            } else {
                vectors[n].store(to.add(n * V::WIDTH));
            }
        }
    }
}

/// Asks for `N` vectors' worth of the strip that will be read in the place of source `c`.
///
/// # Safety
/// The instruction set of `V` is available.
#[inline(always)]
unsafe fn prefetch<V: Lane, const N: usize>(pass: &Pass<'_, '_>, c: usize, col: usize) {
    if let Some(next) = pass.next.get(c) {
        let at = next.as_ptr().wrapping_add(pass.next_at + col);
        // SAFETY: any address may be prefetched.
        unsafe {
            V::prefetch(at);
            if N * V::WIDTH > 64 {
                V::prefetch(at.wrapping_add(64));
            }
        }
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
                sums[r] = load(pass.dst.get_unchecked(r).as_ptr().add(pass.dst_at + col));
            }
        }
        let from = pass.src_at + col;
        let fetch = !pass.next.is_empty();
        let mut table = pass.table.as_ptr();
        let mut c = 0;
        while c + 2 <= pass.src.len() {
            let x = sources::<V, N>(pass.src.get_unchecked(c).as_ptr().add(from));
            let y = sources::<V, N>(pass.src.get_unchecked(c + 1).as_ptr().add(from));
            if fetch {
                prefetch::<V, N>(pass, c, col);
                prefetch::<V, N>(pass, c + 1, col);
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
            let x = sources::<V, N>(pass.src.get_unchecked(c).as_ptr().add(from));
            if fetch {
                prefetch::<V, N>(pass, c, col);
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
            store(sums[r], to, pass.stream);
        }
    }
}

/// How far ahead of its reads [`held`] asks for its sources.
#[cfg(target_arch = "x86_64")]
const HELD_AHEAD: usize = 512;

/// `R` rows over the whole of a pass of exactly `K` sources, all coefficients in registers: only for
/// few of both.
///
/// # Safety
/// As [`rows`], for a pass of [`Form::Sources`] with `K` sources that does not add.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) unsafe fn held<V: Lane, const R: usize, const K: usize>(pass: &mut Pass<'_, '_>) {
    let mut col = 0;
    // SAFETY: as in `columns`; the pointers stay inside their slices because col < len.
    unsafe {
        let mut coefs = [[V::coef(pass.table.as_ptr()); R]; K];
        let mut from = [pass.table.as_ptr().cast::<u8>(); K];
        for c in 0..K {
            for r in 0..R {
                coefs[c][r] = V::coef(pass.table.as_ptr().add((c * R + r) * V::ENTRY));
            }
            from[c] = pass.src.get_unchecked(c).as_ptr().add(pass.src_at);
        }
        let mut to = [pass.dst.get_unchecked_mut(0).as_mut_ptr(); R];
        for r in 0..R {
            to[r] = pass.dst.get_unchecked_mut(r).as_mut_ptr().add(pass.dst_at);
        }
        while col + 2 * V::WIDTH <= pass.len {
            let mut sums = [[V::zero(); 2]; R];
            for c in 0..K / 2 {
                let x = sources::<V, 2>(from[2 * c].add(col));
                let y = sources::<V, 2>(from[2 * c + 1].add(col));
                // Stripes a little larger than level 1 gain 2 %, others lose nothing.
                for from in [from[2 * c], from[2 * c + 1]] {
                    V::fetch(from.wrapping_add(col + HELD_AHEAD));
                    V::fetch(from.wrapping_add(col + HELD_AHEAD + V::WIDTH));
                }
                for r in 0..R {
                    for n in 0..2 {
                        let (a, b) = (coefs[2 * c][r], coefs[2 * c + 1][r]);
                        sums[r][n] = sums[r][n].add2(x[n], a, y[n], b);
                    }
                }
            }
            if K % 2 == 1 {
                let x = sources::<V, 2>(from[K - 1].add(col));
                for r in 0..R {
                    for n in 0..2 {
                        sums[r][n] = sums[r][n].add1(x[n], coefs[K - 1][r]);
                    }
                }
            }
            for r in 0..R {
                store(sums[r], to[r].add(col), pass.stream);
            }
            col += 2 * V::WIDTH;
        }
        if col + V::WIDTH <= pass.len {
            step::<V, R, 1, { Form::Sources as u8 }>(pass, col);
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

/// `R` rows, to which the difference of the two sources times one column is added.
///
/// # Safety
/// As [`columns`], for a pass of [`Form::Change`].
#[inline(always)]
unsafe fn change<V: Lane, const R: usize, const N: usize>(pass: &mut Pass<'_, '_>, col: usize) {
    // SAFETY: as in `columns`; `check` has seen two sources and a table of R entries.
    unsafe {
        let from = pass.src_at + col;
        let old = load::<V, N>(pass.src.get_unchecked(0).as_ptr().add(from));
        let new = load::<V, N>(pass.src.get_unchecked(1).as_ptr().add(from));
        let mut x = [V::zero().source(); N];
        for n in 0..N {
            x[n] = old[n].xor(new[n]).source();
        }
        for r in 0..R {
            let a = V::coef(pass.table.as_ptr().add(r * V::ENTRY));
            let to = pass
                .dst
                .get_unchecked_mut(r)
                .as_mut_ptr()
                .add(pass.dst_at + col);
            let mut sums = load::<V, N>(to);
            for n in 0..N {
                sums[n] = sums[n].add1(x[n], a);
            }
            store(sums, to, false);
        }
    }
}

/// One row whose coefficients are all 1: the XOR of the sources.
///
/// # Safety
/// As [`columns`], for a pass of [`Form::Ones`], which has one row.
#[inline(always)]
unsafe fn ones<V: Lane, const N: usize>(pass: &mut Pass<'_, '_>, col: usize) {
    // SAFETY: as in `columns`; `check` has seen that there is one row.
    unsafe {
        let to = pass
            .dst
            .get_unchecked_mut(0)
            .as_mut_ptr()
            .add(pass.dst_at + col);
        let mut sums = if pass.add { load(to) } else { [V::zero(); N] };
        for c in 0..pass.src.len() {
            let x = load::<V, N>(pass.src.get_unchecked(c).as_ptr().add(pass.src_at + col));
            prefetch::<V, N>(pass, c, col);
            for n in 0..N {
                sums[n] = sums[n].xor(x[n]);
            }
        }
        store(sums, to, pass.stream);
    }
}

/// Adds `S` sources into any number of rows, the sources in registers, rows one after the other.
///
/// # Safety
/// The instruction set of `V` is available, `pass.src.len() == S`, `pass.len` is a multiple of
/// `V::WIDTH`, and `pass.check()` holds.
#[inline(always)]
pub(super) unsafe fn group<V: Lane, const S: usize>(pass: &mut Group<'_, '_>) {
    let mut col = 0;
    // SAFETY: col + N * WIDTH <= len, which `check` has compared with every slice.
    unsafe {
        while col + V::ABREAST * V::WIDTH <= pass.len {
            if V::ABREAST == 2 {
                group_columns::<V, S, 2>(pass, col);
            } else {
                group_columns::<V, S, 1>(pass, col);
            }
            col += V::ABREAST * V::WIDTH;
        }
        while col + V::WIDTH <= pass.len {
            group_columns::<V, S, 1>(pass, col);
            col += V::WIDTH;
        }
        if pass.stream {
            V::fence();
        }
    }
}

/// All rows of `N` neighbouring vectors at `col`.
///
/// # Safety
/// As [`group`], and `col + N * WIDTH <= pass.len`.
#[inline(always)]
unsafe fn group_columns<V: Lane, const S: usize, const N: usize>(
    pass: &mut Group<'_, '_>,
    col: usize,
) {
    // SAFETY: sources, sums and results hold `col + N * WIDTH` bytes from their offsets on, the
    // table holds `rows * S` entries, and indices stay below the lengths of the slices.
    unsafe {
        let mut x = [[V::zero().source(); N]; S];
        for s in 0..S {
            x[s] = sources::<V, N>(pass.src.get_unchecked(s).as_ptr().add(pass.src_at + col));
        }
        // A few lines with each row: all at once they would hold up the loads.
        let lines = (N * V::WIDTH).div_ceil(64);
        let at = col + pass.ahead;
        let (later, later_at) = if at < pass.len {
            (pass.src, pass.src_at + at)
        } else {
            (pass.next, pass.next_at + at - pass.len)
        };
        let mut ahead = 0..later.len() * lines;
        let step = ahead.len().div_ceil(pass.rows);
        let mut table = pass.table.as_ptr();
        let sums = pass.sums.as_mut_ptr().add(col);
        for r in 0..pass.rows {
            let sum = sums.add(r * pass.stride);
            for line in ahead.by_ref().take(step) {
                let next = later.get_unchecked(line / lines).as_ptr();
                V::prefetch(next.wrapping_add(later_at + line % lines * 64));
            }
            let mut acc = if pass.first {
                [V::zero(); N]
            } else {
                load::<V, N>(sum)
            };
            for s in 0..S / 2 {
                let a = V::coef(table.add(2 * s * V::ENTRY));
                let b = V::coef(table.add((2 * s + 1) * V::ENTRY));
                for n in 0..N {
                    acc[n] = acc[n].add2(x[2 * s][n], a, x[2 * s + 1][n], b);
                }
            }
            if S % 2 == 1 {
                let a = V::coef(table.add((S - 1) * V::ENTRY));
                for n in 0..N {
                    acc[n] = acc[n].add1(x[S - 1][n], a);
                }
            }
            table = table.add(S * V::ENTRY);
            let result = pass.dst.get_unchecked_mut(r).as_mut_ptr();
            let to = result.add(pass.dst_at + col);
            match pass.end {
                End::Later => store(acc, sum, false),
                End::Soon => {
                    store(acc, sum, false);
                    for line in 0..lines {
                        V::prefetch(to.add(line * 64));
                    }
                }
                End::Now => store(acc, to, pass.stream),
            }
        }
    }
}

/// Multiplies `rounds * SPIN_BYTES` bytes in registers: as fast as the instruction set can.
///
/// # Safety
/// The instruction set of `V` is available.
#[inline(always)]
pub(super) unsafe fn spin<V: Lane>(rounds: usize) -> u64 {
    let table = [
        0x8040_2010_0804_0281u64,
        0x1020_3040_5060_7080,
        0x0706_0504_0302_0100,
        3,
    ];
    // Chains that differ, so that they cannot be taken for one.
    let mut ends: [u8; 64 + 12] = std::array::from_fn(|i| i as u8);
    // SAFETY: the table is as long as the longest entry, `ends` as twelve widest vectors, each a
    // byte after the one before.
    unsafe {
        let a = V::coef(table.as_ptr());
        let mut x = [V::zero(); 12];
        for n in 0..12 {
            x[n] = V::load(ends.as_ptr().add(n));
        }
        for _ in 0..rounds * (SPIN_BYTES / V::WIDTH / 12) {
            for n in 0..12 {
                x[n] = x[n].spin(a);
            }
        }
        for n in 0..12 {
            x[n].store(ends.as_mut_ptr().add(n));
        }
    }
    ends.iter().map(|&byte| u64::from(byte)).sum()
}
