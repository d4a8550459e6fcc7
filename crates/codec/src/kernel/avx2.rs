//! AVX2: 32 bytes at a time, two byte shuffles per coefficient.
//!
//! **Invariants.** Entered only after the processor was asked for AVX2.

#![expect(unsafe_code, reason = "AVX2 instructions")]

use core::arch::x86_64::*;

use super::lane::Lane;
use super::lanes;

#[derive(Clone, Copy)]
struct Ymm(__m256i);

// SAFETY: each method only uses instructions of AVX2, which callers of a `Lane` guarantee, on
// pointers that they guarantee.
unsafe impl Lane for Ymm {
    type Source = (__m256i, __m256i);
    type Coef = (__m256i, __m256i);
    const WIDTH: usize = 32;
    const ENTRY: usize = 4;
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
    unsafe fn source(self) -> (__m256i, __m256i) {
        // SAFETY: the trait's contract.
        unsafe {
            let low = _mm256_set1_epi8(15);
            let high = _mm256_srli_epi64::<4>(self.0);
            (_mm256_and_si256(self.0, low), _mm256_and_si256(high, low))
        }
    }

    #[inline(always)]
    unsafe fn coef(from: *const u64) -> (__m256i, __m256i) {
        // SAFETY: the trait's contract.
        unsafe {
            let low = _mm_loadu_si128(from.cast());
            let high = _mm_loadu_si128(from.add(2).cast());
            (
                _mm256_broadcastsi128_si256(low),
                _mm256_broadcastsi128_si256(high),
            )
        }
    }

    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        // SAFETY: the trait's contract.
        unsafe { Ymm(_mm256_xor_si256(self.0, other.0)) }
    }
    #[inline(always)]
    unsafe fn spin(self, a: (__m256i, __m256i)) -> Self {
        // SAFETY: the trait's contract.
        unsafe {
            let high = _mm256_shuffle_epi8(a.1, self.0);
            Ymm(_mm256_xor_si256(_mm256_shuffle_epi8(a.0, self.0), high))
        }
    }
    #[inline(always)]
    unsafe fn add1(self, x: (__m256i, __m256i), a: (__m256i, __m256i)) -> Self {
        // SAFETY: the trait's contract.
        unsafe {
            let product =
                _mm256_xor_si256(_mm256_shuffle_epi8(a.0, x.0), _mm256_shuffle_epi8(a.1, x.1));
            Ymm(_mm256_xor_si256(self.0, product))
        }
    }

    #[inline(always)]
    unsafe fn add2(
        self,
        x: (__m256i, __m256i),
        a: (__m256i, __m256i),
        y: (__m256i, __m256i),
        b: (__m256i, __m256i),
    ) -> Self {
        // SAFETY: the trait's contract.
        unsafe { self.add1(x, a).add1(y, b) }
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
    is_x86_feature_detected!("avx2")
}

lanes::entries!(Ymm, "avx2",
    rows 1 2 3 4, sources 1 2 3 4);
