//! NEON: 16 bytes at a time, two table lookups per coefficient.
//!
//! **Invariants.** Entered only after the processor was asked for NEON.

#![expect(unsafe_code, reason = "NEON instructions")]

use core::arch::aarch64::*;

use super::lanes::{self, Lane};
use super::recover::{self, Recover};
use super::transform::{self, Transform};
use super::{Group, Pass};

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

/// # Safety
/// [`available`] holds, `1 <= pass.rows <= 6`, and `pass.check()` holds.
#[target_feature(enable = "neon")]
pub(super) unsafe fn rows(pass: &mut Pass<'_, '_>) {
    // SAFETY: passed on from the caller; the constant is the number of rows.
    unsafe {
        match pass.rows {
            1 => lanes::rows::<Neon, 1>(pass),
            2 => lanes::rows::<Neon, 2>(pass),
            3 => lanes::rows::<Neon, 3>(pass),
            4 => lanes::rows::<Neon, 4>(pass),
            5 => lanes::rows::<Neon, 5>(pass),
            6 => lanes::rows::<Neon, 6>(pass),
            rows => unreachable!("{rows} rows"),
        }
    }
}

/// # Safety
/// [`available`] holds, `1 <= pass.src.len() <= 8`, and `pass.check()` holds.
#[target_feature(enable = "neon")]
pub(super) unsafe fn group(pass: &mut Group<'_, '_>) {
    // SAFETY: passed on from the caller; the constant is the number of sources.
    unsafe {
        match pass.src.len() {
            1 => lanes::group::<Neon, 1>(pass),
            2 => lanes::group::<Neon, 2>(pass),
            3 => lanes::group::<Neon, 3>(pass),
            4 => lanes::group::<Neon, 4>(pass),
            5 => lanes::group::<Neon, 5>(pass),
            6 => lanes::group::<Neon, 6>(pass),
            7 => lanes::group::<Neon, 7>(pass),
            8 => lanes::group::<Neon, 8>(pass),
            sources => unreachable!("{sources} sources"),
        }
    }
}

/// # Safety
/// [`available`] holds.
#[target_feature(enable = "neon")]
pub(super) unsafe fn spin(rounds: usize) -> u64 {
    // SAFETY: passed on from the caller.
    unsafe { lanes::spin::<Neon>(rounds) }
}

/// # Safety
/// [`available`] holds, and `pass.check()` holds.
#[target_feature(enable = "neon")]
pub(super) unsafe fn transform(pass: &mut Transform<'_, '_>) {
    // SAFETY: passed on from the caller.
    unsafe {
        match pass.size {
            8 => transform::encode::<Neon, 8>(pass),
            _ => transform::encode::<Neon, 16>(pass),
        }
    }
}

/// # Safety
/// [`available`] holds, and `pass.check()` holds.
#[target_feature(enable = "neon")]
pub(super) unsafe fn recover(pass: &mut Recover<'_, '_>) {
    // SAFETY: passed on from the caller; the constant is the number of groups.
    unsafe {
        match pass.total {
            32 => recover::decode::<Neon, 2, 1>(pass),
            64 => recover::decode::<Neon, 4, 2>(pass),
            128 => recover::decode::<Neon, 8, 4>(pass),
            _ => recover::decode::<Neon, 16, 8>(pass),
        }
    }
}
