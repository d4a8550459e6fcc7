//! SSSE3: 16 bytes at a time, two byte shuffles per coefficient.
//!
//! **Invariants.** Entered only after the processor was asked for SSSE3.

#![expect(unsafe_code, reason = "SSSE3 instructions")]

use core::arch::x86_64::*;

use super::lane::Lane;
use super::lanes;

#[derive(Clone, Copy)]
struct Xmm(__m128i);

// SAFETY: each method only uses instructions of SSSE3, which callers of a `Lane` guarantee, on
// pointers that they guarantee.
unsafe impl Lane for Xmm {
    type Source = (__m128i, __m128i);
    type Coef = (__m128i, __m128i);
    const WIDTH: usize = 16;
    const ENTRY: usize = 4;
    const ABREAST: usize = 1;

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the trait's contract.
        unsafe { Xmm(_mm_setzero_si128()) }
    }

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: the trait's contract.
        unsafe { Xmm(_mm_loadu_si128(from.cast())) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the trait's contract.
        unsafe { _mm_storeu_si128(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn stream(self, to: *mut u8) {
        // SAFETY: the trait's contract.
        unsafe { _mm_stream_si128(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn source(self) -> (__m128i, __m128i) {
        // SAFETY: the trait's contract.
        unsafe {
            let low = _mm_set1_epi8(15);
            let high = _mm_srli_epi64::<4>(self.0);
            (_mm_and_si128(self.0, low), _mm_and_si128(high, low))
        }
    }

    #[inline(always)]
    unsafe fn coef(from: *const u64) -> (__m128i, __m128i) {
        // SAFETY: the trait's contract.
        unsafe {
            let low = _mm_loadu_si128(from.cast());
            let high = _mm_loadu_si128(from.add(2).cast());
            (low, high)
        }
    }

    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        // SAFETY: the trait's contract.
        unsafe { Xmm(_mm_xor_si128(self.0, other.0)) }
    }
    #[inline(always)]
    unsafe fn spin(self, a: (__m128i, __m128i)) -> Self {
        // SAFETY: the trait's contract.
        unsafe {
            let high = _mm_shuffle_epi8(a.1, self.0);
            Xmm(_mm_xor_si128(_mm_shuffle_epi8(a.0, self.0), high))
        }
    }
    #[inline(always)]
    unsafe fn add1(self, x: (__m128i, __m128i), a: (__m128i, __m128i)) -> Self {
        // SAFETY: the trait's contract.
        unsafe {
            let product = _mm_xor_si128(_mm_shuffle_epi8(a.0, x.0), _mm_shuffle_epi8(a.1, x.1));
            Xmm(_mm_xor_si128(self.0, product))
        }
    }

    #[inline(always)]
    unsafe fn add2(
        self,
        x: (__m128i, __m128i),
        a: (__m128i, __m128i),
        y: (__m128i, __m128i),
        b: (__m128i, __m128i),
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
    is_x86_feature_detected!("ssse3")
}

lanes::entries!(Xmm, "ssse3",
    rows 1 2 3 4, sources 1 2 3 4);
