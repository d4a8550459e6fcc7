//! Rows of a transform in registers: what encoding ([`super::transform`]) and decoding
//! ([`super::recover`]) of the `fft` code have in common.
//!
//! **Invariants.** Nothing here touches memory but multipliers, zeros and the one vector it stores. A
//! transform forward undoes one inverse with the same multipliers.

#![expect(
    unsafe_code,
    reason = "vector kernels: instructions chosen at run time"
)]

use super::lane::Lane;

/// The longest tile.
pub(crate) const LEN_MAX: usize = 1024;

/// Stands for strips that a block does not have.
pub(super) static ZEROS: [u8; LEN_MAX] = [0; LEN_MAX];

/// `b += a; a += skew * b`: a butterfly of the inverse transform.
///
/// # Safety
/// The instruction set of `V` is available.
#[inline(always)]
pub(super) unsafe fn inverse<V: Lane>(a: V, b: V, skew: V::Coef) -> (V, V) {
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

/// Level `L` of `N` rows in registers, whose multipliers begin at `skews`. With `ZERO` the first
/// multiplier is 0, as it is at the beginning of block 0.
///
/// # Safety
/// The instruction set of `V` is available; `skews` is valid for `N >> (L + 1)` multipliers.
#[inline(always)]
unsafe fn level<V: Lane, const N: usize, const L: usize, const INVERSE: bool, const ZERO: bool>(
    x: &mut [V; N],
    skews: *const u64,
) {
    // SAFETY: passed on from the caller; row numbers stay below N.
    unsafe {
        for p in 0..N / 2 {
            let group = p >> L;
            let a = (group << (L + 1)) + (p & ((1 << L) - 1));
            let b = a + (1 << L);
            if ZERO && group == 0 {
                x[b] = x[b].xor(x[a]);
                continue;
            }
            let skew = V::coef(skews.add(group * V::ENTRY));
            (x[a], x[b]) = match INVERSE {
                true => inverse(x[a], x[b], skew),
                false => forward(x[a], x[b], skew),
            };
        }
    }
}

/// All levels of `N` rows, 1 to 16, upwards or downwards.
///
/// # Safety
/// As [`level`] for each; `skews` are the levels' beginnings.
#[inline(always)]
pub(super) unsafe fn levels<V: Lane, const N: usize, const INVERSE: bool, const ZERO: bool>(
    x: &mut [V; N],
    skews: [*const u64; 4],
) {
    // SAFETY: passed on from the caller.
    unsafe {
        if INVERSE && N > 1 {
            level::<V, N, 0, true, ZERO>(x, skews[0]);
        }
        if INVERSE && N > 2 {
            level::<V, N, 1, true, ZERO>(x, skews[1]);
        }
        if INVERSE && N > 4 {
            level::<V, N, 2, true, ZERO>(x, skews[2]);
        }
        if N > 8 {
            level::<V, N, 3, INVERSE, ZERO>(x, skews[3]);
        }
        if !INVERSE && N > 4 {
            level::<V, N, 2, false, ZERO>(x, skews[2]);
        }
        if !INVERSE && N > 2 {
            level::<V, N, 1, false, ZERO>(x, skews[1]);
        }
        if !INVERSE && N > 1 {
            level::<V, N, 0, false, ZERO>(x, skews[0]);
        }
    }
}

/// One vector, around the caches or not.
///
/// # Safety
/// As [`Lane::stream`] and [`Lane::store`].
#[inline(always)]
pub(super) unsafe fn store_to<V: Lane>(x: V, to: *mut u8, stream: bool) {
    // SAFETY: passed on from the caller.
    unsafe {
        if stream {
            x.stream(to);
        } else {
            x.store(to);
        }
    }
}
