//! Non-negative numbers kept as their logarithm.
//!
//! The mean time to data loss of a code with 20 parities is some 10^100 years, with 200 it is
//! beyond any double. The chains of this crate only add, multiply and divide non-negative numbers,
//! so they can run on logarithms: nothing overflows, nothing cancels, and the relative error stays
//! near 1e-13 however small or large a value is.
//!
//! **Invariant**: the logarithm is never NaN and never +infinity for values made from finite input
//! without division by zero.

use std::iter::Sum;
use std::ops::{Add, Div, Mul};

/// A number of at least 0.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct Ln(f64);

impl Ln {
    /// 0.
    pub const ZERO: Ln = Ln(f64::NEG_INFINITY);

    /// Of a value; negative values and NaN count as 0.
    #[must_use]
    pub fn new(value: f64) -> Ln {
        if value > 0.0 {
            Ln(value.ln())
        } else {
            Ln::ZERO
        }
    }

    /// The value, at most the largest double.
    #[must_use]
    pub fn value(self) -> f64 {
        self.0.exp().min(f64::MAX)
    }

    /// Its decimal logarithm.
    #[must_use]
    pub fn log10(self) -> f64 {
        self.0 * std::f64::consts::LOG10_E
    }

    /// Whether it is 0.
    #[must_use]
    pub fn is_zero(self) -> bool {
        self == Ln::ZERO
    }

    /// 1 - exp(-self): the probability of at least one event when `self` are expected.
    #[must_use]
    pub fn at_least_one(self) -> Ln {
        if self.0 < -20.0 {
            self
        } else {
            Ln::new(-(-self.value()).exp_m1())
        }
    }
}

impl Add for Ln {
    type Output = Ln;

    fn add(self, other: Ln) -> Ln {
        let (large, small) = if self.0 >= other.0 {
            (self, other)
        } else {
            (other, self)
        };
        if small.is_zero() {
            large
        } else {
            Ln(large.0 + (small.0 - large.0).exp().ln_1p())
        }
    }
}

impl Mul for Ln {
    type Output = Ln;

    fn mul(self, other: Ln) -> Ln {
        if self.is_zero() || other.is_zero() {
            Ln::ZERO
        } else {
            Ln(self.0 + other.0)
        }
    }
}

impl Div for Ln {
    type Output = Ln;

    #[expect(
        clippy::suspicious_arithmetic_impl,
        reason = "a quotient of logarithms"
    )]
    fn div(self, other: Ln) -> Ln {
        if self.is_zero() {
            Ln::ZERO
        } else {
            Ln(self.0 - other.0)
        }
    }
}

impl Sum for Ln {
    fn sum<I: Iterator<Item = Ln>>(values: I) -> Ln {
        values.fold(Ln::ZERO, Add::add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic() {
        let close = |ln: Ln, value: f64| (ln.value() / value - 1.0).abs() < 1e-13;
        assert!(close(Ln::new(3.0) + Ln::new(4.5), 7.5));
        assert!(close(Ln::new(3.0) * Ln::new(4.5), 13.5));
        assert!(close(Ln::new(3.0) / Ln::new(4.0), 0.75));
        assert!(close(Ln::ZERO + Ln::new(2.0), 2.0));
        assert!((Ln::ZERO * Ln::new(2.0)).is_zero() && (Ln::ZERO + Ln::ZERO).is_zero());
        assert!((Ln::ZERO / Ln::new(2.0)).is_zero() && Ln::new(-1.0).is_zero());
        assert!(close(Ln::new(1e-3).at_least_one(), 1.0 - (-1e-3_f64).exp()));
        assert!(close(Ln::new(1e-12).at_least_one(), 1e-12));
        let mut tiny = Ln::new(1e-300);
        (0..20).for_each(|_| tiny = tiny * Ln::new(1e-300));
        assert!((tiny.log10() + 6300.0).abs() < 1e-6);
    }
}
