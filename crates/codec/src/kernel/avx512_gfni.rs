//! AVX-512 with GFNI: 64 bytes at a time, one `gf2p8affineqb` per coefficient.
//!
//! **Invariants.** Entered only after the processor was asked for AVX512F, AVX512BW,
//! AVX512VBMI and GFNI.

#![expect(unsafe_code, reason = "AVX-512 and GFNI instructions")]

use core::arch::x86_64::*;

use super::lane::Lane;
use super::lanes;

#[derive(Clone, Copy)]
struct Zmm(__m512i);

// SAFETY: each method only uses instructions of AVX512F and GFNI, which callers of a `Lane` guarantee, on
// pointers that they guarantee.
unsafe impl Lane for Zmm {
    type Source = __m512i;
    type Coef = __m512i;
    const WIDTH: usize = 64;
    const ENTRY: usize = 1;
    const ABREAST: usize = 2;

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the trait's contract.
        unsafe { Zmm(_mm512_setzero_si512()) }
    }

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: the trait's contract.
        unsafe { Zmm(_mm512_loadu_si512(from.cast())) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the trait's contract.
        unsafe { _mm512_storeu_si512(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn stream(self, to: *mut u8) {
        // SAFETY: the trait's contract.
        unsafe { _mm512_stream_si512(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn source(self) -> __m512i {
        self.0
    }

    #[inline(always)]
    unsafe fn coef(from: *const u64) -> __m512i {
        // SAFETY: the trait's contract.
        unsafe { _mm512_set1_epi64(from.read().cast_signed()) }
    }

    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        // SAFETY: the trait's contract.
        unsafe { Zmm(_mm512_xor_si512(self.0, other.0)) }
    }
    #[inline(always)]
    unsafe fn spin(self, a: __m512i) -> Self {
        // SAFETY: the trait's contract.
        unsafe { Zmm(_mm512_gf2p8affine_epi64_epi8::<0>(self.0, a)) }
    }
    #[inline(always)]
    unsafe fn add1(self, x: __m512i, a: __m512i) -> Self {
        // SAFETY: the trait's contract.
        unsafe {
            Zmm(_mm512_xor_si512(
                self.0,
                _mm512_gf2p8affine_epi64_epi8::<0>(x, a),
            ))
        }
    }

    #[inline(always)]
    unsafe fn add2(self, x: __m512i, a: __m512i, y: __m512i, b: __m512i) -> Self {
        // SAFETY: the trait's contract.
        unsafe {
            let first = _mm512_gf2p8affine_epi64_epi8::<0>(x, a);
            let second = _mm512_gf2p8affine_epi64_epi8::<0>(y, b);
            Zmm(_mm512_ternarylogic_epi64::<0x96>(self.0, first, second))
        }
    }

    #[inline(always)]
    unsafe fn prefetch(at: *const u8) {
        // SAFETY: the trait's contract.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) }
    }

    #[inline(always)]
    unsafe fn fetch(at: *const u8) {
        // SAFETY: the trait's contract.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }

    #[inline(always)]
    unsafe fn fence() {
        // SAFETY: the trait's contract.
        unsafe { _mm_sfence() }
    }
}

pub(super) fn available() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vbmi")
        && is_x86_feature_detected!("gfni")
}

/// [`crate::packets::turn`] of a number of whole groups: each is one vector.
///
/// # Safety
/// [`available`] holds; the slices have one length, a multiple of 64.
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,gfni")]
pub(super) unsafe fn turn(from: &[u8], to: &mut [u8]) {
    // Byte `b` of packet `j` to byte `7 - j` of word `b`: with the packets in descending order, as
    // a bit matrix wants its rows, multiplying the unit vectors by the word transposes it.
    let gather: [u8; 64] = std::array::from_fn(|at| (8 * (7 - at % 8) + at / 8) as u8);
    // Byte `k` of word `b`, which holds bit `k`, to byte `b` of packet `k`.
    let spread: [u8; 64] = std::array::from_fn(|at| (8 * (at % 8) + at / 8) as u8);
    // SAFETY: the arrays are as long as a vector, and so is every chunk.
    unsafe {
        let gather = _mm512_loadu_si512(gather.as_ptr().cast());
        let spread = _mm512_loadu_si512(spread.as_ptr().cast());
        let units = _mm512_set1_epi64(0x8040_2010_0804_0201_u64.cast_signed());
        for (from, to) in from.chunks_exact(64).zip(to.chunks_exact_mut(64)) {
            let words = _mm512_permutexvar_epi8(gather, _mm512_loadu_si512(from.as_ptr().cast()));
            let turned = _mm512_gf2p8affine_epi64_epi8::<0>(units, words);
            let result = _mm512_permutexvar_epi8(spread, turned);
            _mm512_storeu_si512(to.as_mut_ptr().cast(), result);
        }
    }
}

lanes::entries!(Zmm, "avx512f,avx512bw,gfni",
    rows 1 2 3 4 5 6 7 8 9 10, sources 1 2 3 4 5 6 7 8, held 1 x 4 1 x 5 1 x 6 1 x 7 1 x 8 2 x 4 2 x 5 2 x 6 2 x 7 2 x 8);
lanes::transform_entries!(Zmm, "avx512f,avx512bw,gfni");
