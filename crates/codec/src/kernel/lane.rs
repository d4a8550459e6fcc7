//! What a vector kernel needs of an instruction set.
//!
//! **Invariants**: no method checks anything; their callers have.

#![expect(unsafe_code, reason = "instructions chosen at run time")]

/// One vector register's worth of bytes under one instruction set.
///
/// # Safety
/// Every method needs the instruction set of its implementation to be available; pointers must be
/// valid for `WIDTH` bytes (a coefficient's for `8 * ENTRY`), of any alignment unless said.
pub(super) unsafe trait Lane: Copy {
    /// A source made ready for multiplication.
    type Source: Copy;
    /// A coefficient in registers.
    type Coef: Copy;
    /// Bytes in a vector.
    const WIDTH: usize;
    /// Table words (8 bytes) for a coefficient.
    const ENTRY: usize;
    /// Neighbouring vectors that [`super::lanes::group`] does at once.
    const ABREAST: usize;

    unsafe fn zero() -> Self;
    unsafe fn load(from: *const u8) -> Self;
    unsafe fn store(self, to: *mut u8);
    /// A store that goes around the caches; `to` is aligned to `WIDTH`.
    unsafe fn stream(self, to: *mut u8);
    unsafe fn source(self) -> Self::Source;
    unsafe fn coef(from: *const u64) -> Self::Coef;
    unsafe fn xor(self, other: Self) -> Self;
    /// One multiplication in its cheapest form, for measuring how many there can be.
    unsafe fn spin(self, a: Self::Coef) -> Self;
    /// `self + a * x`.
    unsafe fn add1(self, x: Self::Source, a: Self::Coef) -> Self;
    /// `self + a * x + b * y`.
    unsafe fn add2(self, x: Self::Source, a: Self::Coef, y: Self::Source, b: Self::Coef) -> Self;
    /// Asks for the line at `at` to be brought to level 2; any address is allowed.
    unsafe fn prefetch(at: *const u8);
    /// The same, to level 1.
    #[cfg(target_arch = "x86_64")]
    unsafe fn fetch(at: *const u8);
    /// Waits until streamed stores are ordered before later stores.
    unsafe fn fence();
}
