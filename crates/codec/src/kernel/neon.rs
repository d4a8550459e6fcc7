//! NEON: 16 bytes at a time, two table lookups per coefficient.
//!
//! **Invariants.** Entered only after the processor was asked for NEON.

#![expect(unsafe_code, reason = "NEON instructions")]

use core::arch::aarch64::*;

use super::lane::Lane;
use super::lanes;

#[derive(Clone, Copy)]
struct Neon(uint8x16_t);

// SAFETY: each method only uses instructions of NEON, which callers of a `Lane` guarantee, on
// pointers that they guarantee.
unsafe impl Lane for Neon {
    type Source = (uint8x16_t, uint8x16_t);
    type Coef = (uint8x16_t, uint8x16_t);
    const WIDTH: usize = 16;
    const ENTRY: usize = 4;
    const ABREAST: usize = 1;

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the trait's contract.
        unsafe { Neon(vdupq_n_u8(0)) }
    }

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: the trait's contract.
        unsafe { Neon(vld1q_u8(from)) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the trait's contract.
        unsafe { vst1q_u8(to, self.0) }
    }

    #[inline(always)]
    unsafe fn stream(self, to: *mut u8) {
        // SAFETY: the trait's contract.
        unsafe { vst1q_u8(to, self.0) }
    }

    #[inline(always)]
    unsafe fn source(self) -> (uint8x16_t, uint8x16_t) {
        // SAFETY: the trait's contract.
        unsafe { (vandq_u8(self.0, vdupq_n_u8(15)), vshrq_n_u8::<4>(self.0)) }
    }

    #[inline(always)]
    unsafe fn coef(from: *const u64) -> (uint8x16_t, uint8x16_t) {
        // SAFETY: the trait's contract.
        unsafe { (vld1q_u8(from.cast()), vld1q_u8(from.add(2).cast())) }
    }

    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        // SAFETY: the trait's contract.
        unsafe { Neon(veorq_u8(self.0, other.0)) }
    }
    #[inline(always)]
    unsafe fn spin(self, a: (uint8x16_t, uint8x16_t)) -> Self {
        // SAFETY: the trait's contract.
        unsafe { Neon(veorq_u8(vqtbl1q_u8(a.0, self.0), vqtbl1q_u8(a.1, self.0))) }
    }
    #[inline(always)]
    unsafe fn add1(self, x: (uint8x16_t, uint8x16_t), a: (uint8x16_t, uint8x16_t)) -> Self {
        // SAFETY: the trait's contract.
        unsafe {
            let product = veorq_u8(vqtbl1q_u8(a.0, x.0), vqtbl1q_u8(a.1, x.1));
            Neon(veorq_u8(self.0, product))
        }
    }

    #[inline(always)]
    unsafe fn add2(
        self,
        x: (uint8x16_t, uint8x16_t),
        a: (uint8x16_t, uint8x16_t),
        y: (uint8x16_t, uint8x16_t),
        b: (uint8x16_t, uint8x16_t),
    ) -> Self {
        // SAFETY: the trait's contract.
        unsafe { self.add1(x, a).add1(y, b) }
    }

    #[inline(always)]
    unsafe fn prefetch(_at: *const u8) {}

    #[inline(always)]
    unsafe fn fence() {}
}

pub(super) fn available() -> bool {
    std::arch::is_aarch64_feature_detected!("neon")
}

lanes::entries!(Neon, "neon",
    rows 1 2 3 4 5 6, sources 1 2 3 4 5 6 7 8);
lanes::transform_entries!(Neon, "neon");
