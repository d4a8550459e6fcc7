//! AVX2 with GFNI: 32 bytes at a time, one `gf2p8affineqb` per coefficient.
//!
//! **Invariants.** Entered only after the processor was asked for AVX2 and GFNI.

#![expect(unsafe_code, reason = "AVX2 and GFNI instructions")]

use core::arch::x86_64::*;

use super::lane::Lane;
use super::lanes;

#[derive(Clone, Copy)]
struct Ymm(__m256i);

// SAFETY: each method only uses instructions of AVX2 and GFNI, which callers of a `Lane` guarantee, on
// pointers that they guarantee.
unsafe impl Lane for Ymm {
    type Source = __m256i;
    type Coef = __m256i;
    const WIDTH: usize = 32;
    const ENTRY: usize = 1;
    const ABREAST: usize = 1;

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the trait's contract.
        unsafe { Ymm(_mm256_setzero_si256()) }
    }

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: the trait's contract.
        unsafe { Ymm(_mm256_loadu_si256(from.cast())) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the trait's contract.
        unsafe { _mm256_storeu_si256(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn stream(self, to: *mut u8) {
        // SAFETY: the trait's contract.
        unsafe { _mm256_stream_si256(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn source(self) -> __m256i {
        self.0
    }

    #[inline(always)]
    unsafe fn coef(from: *const u64) -> __m256i {
        // SAFETY: the trait's contract.
        unsafe { _mm256_set1_epi64x(from.read().cast_signed()) }
    }

    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        // SAFETY: the trait's contract.
        unsafe { Ymm(_mm256_xor_si256(self.0, other.0)) }
    }
    #[inline(always)]
    unsafe fn spin(self, a: __m256i) -> Self {
        // SAFETY: the trait's contract.
        unsafe { Ymm(_mm256_gf2p8affine_epi64_epi8::<0>(self.0, a)) }
    }
    #[inline(always)]
    unsafe fn add1(self, x: __m256i, a: __m256i) -> Self {
        // SAFETY: the trait's contract.
        unsafe {
            Ymm(_mm256_xor_si256(
                self.0,
                _mm256_gf2p8affine_epi64_epi8::<0>(x, a),
            ))
        }
    }

    #[inline(always)]
    unsafe fn add2(self, x: __m256i, a: __m256i, y: __m256i, b: __m256i) -> Self {
        // SAFETY: the trait's contract.
        unsafe {
            let first = _mm256_gf2p8affine_epi64_epi8::<0>(x, a);
            let second = _mm256_gf2p8affine_epi64_epi8::<0>(y, b);
            Ymm(_mm256_xor_si256(_mm256_xor_si256(self.0, first), second))
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
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("gfni")
}

lanes::entries!(Ymm, "avx2,gfni",
    rows 1 2 3 4 5 6, sources 1 2 3 4 5 6 7 8);
