//! The judge: erasure coding in the plainest scalar form, sharing nothing with the crate but the
//! coefficients of `reed_sol_van` and `cauchy_good`, which the vectors of Jerasure pin down.
//!
//! **Invariants.** Multiplication is by shifting and adding; packet codes are computed from the bit
//! matrix, packet by packet, as Jerasure does.

use std::sync::OnceLock;

use ashlar_codec::{Code, CodeKind};

/// The product in GF(2^8) with 0x11d, by shifting and adding.
fn shift_and_add(a: u8, b: u8) -> u8 {
    let (mut product, mut a) = (0, u16::from(a));
    for bit in 0..8 {
        if b >> bit & 1 == 1 {
            product ^= a;
        }
        a <<= 1;
        if a > 255 {
            a ^= 0x11d;
        }
    }
    product as u8
}

/// The same from a table of all products.
pub(crate) fn times(a: u8, b: u8) -> u8 {
    static PRODUCTS: OnceLock<Vec<u8>> = OnceLock::new();
    let all = || {
        (0..=65535u16)
            .map(|ab| shift_and_add((ab >> 8) as u8, ab as u8))
            .collect()
    };
    PRODUCTS.get_or_init(all)[usize::from(a) << 8 | usize::from(b)]
}

/// The element that gives 1 with `a`: its 254th power, where 254 = 2 + 4 + ... + 128.
fn inverse(a: u8) -> u8 {
    assert_ne!(a, 0);
    let (mut power, mut product) = (a, 1);
    for _ in 0..7 {
        power = times(power, power);
        product = times(product, power);
    }
    product
}

/// The element at a point of the `fft` code: the sum of the basis elements of its bits, where the first
/// is 1 and each gives the one before as `x^2 + x`, the lesser of the two that do.
fn element(point: usize) -> u8 {
    let (mut basis, mut sum) = (1, 0);
    for bit in 0..8 {
        if point >> bit & 1 == 1 {
            sum ^= basis;
        }
        let square = |x: u8| times(x, x) ^ x;
        basis = (2..=255).find(|&x| square(x) == basis).unwrap_or(0);
    }
    sum
}

/// How many points the parity of the `fft` code has: the least from `m` on that is a power of two or,
/// from 8 on, a power of two and 4, 8 or 16 more, at most half of it; if they fit.
fn points(k: usize, m: usize) -> usize {
    let whole = |n: usize| n.is_power_of_two();
    let fits = |n: usize, extra: usize| {
        n > extra && whole(n - extra) && n - extra >= 8 && n - extra >= 2 * extra
    };
    let found = (m..).find(|&n| whole(n) || [4, 8, 16].iter().any(|&extra| fits(n, extra)));
    found.filter(|n| k + n <= 256).unwrap_or(m)
}

/// The value at the point of data strip `j` of the polynomial that is 1 at point `i` of the parity and 0
/// at its other points.
fn lagrange(points: usize, i: usize, j: usize) -> u8 {
    static ELEMENTS: OnceLock<Vec<u8>> = OnceLock::new();
    let at = ELEMENTS.get_or_init(|| (0..256).map(element).collect());
    let product = |x: usize| {
        let others = (0..points).filter(|&point| point != i);
        others.fold(1, |p, point| times(p, at[x] ^ at[point]))
    };
    times(product(points + j), inverse(product(i)))
}

/// The coefficient of data strip `j` in parity strip `i`.
pub(crate) fn coefficient(code: &Code, i: usize, j: usize) -> u8 {
    match code.kind() {
        CodeKind::IsalCauchy => inverse((code.k() + i) as u8 ^ j as u8),
        CodeKind::IsalRs => (0..i * j).fold(1, |power, _| times(power, 2)),
        CodeKind::CauchyOrig => inverse(i as u8 ^ (code.m() + j) as u8),
        CodeKind::JerasureReedSolVan | CodeKind::CauchyGood => code.coefficient(i, j),
        CodeKind::Fft => lagrange(points(code.k(), code.m()), i, j),
    }
}

/// Parity strip `i` of the data.
pub(crate) fn parity(code: &Code, i: usize, data: &[Vec<u8>]) -> Vec<u8> {
    let len = data[0].len();
    let mut strip = vec![0; len];
    let packets = matches!(code.kind(), CodeKind::CauchyOrig | CodeKind::CauchyGood);
    let whole = if packets { len / 64 * 64 } else { 0 };
    for (j, data) in data.iter().enumerate() {
        let element = coefficient(code, i, j);
        for group in (0..whole).step_by(64) {
            // Bit `row` of element * 2^column says whether data packet `column` is added to parity
            // packet `row`.
            for (row, column) in (0..64).map(|bit| (bit / 8, bit % 8)) {
                if times(element, 1 << column) >> row & 1 == 1 {
                    for byte in 0..8 {
                        strip[group + row * 8 + byte] ^= data[group + column * 8 + byte];
                    }
                }
            }
        }
        for at in whole..len {
            strip[at] ^= times(element, data[at]);
        }
    }
    strip
}

/// All K+M strips for the data.
pub(crate) fn strips(code: &Code, data: &[Vec<u8>]) -> Vec<Vec<u8>> {
    data.iter()
        .cloned()
        .chain((0..code.m()).map(|i| parity(code, i, data)))
        .collect()
}

/// A small generator of numbers for tests (splitmix64).
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    /// The next 64 bits.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `end`.
    #[allow(dead_code, reason = "each test file has its own copy of this module")]
    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// `count` strips of `len` bytes.
    pub(crate) fn strips(&mut self, count: usize, len: usize) -> Vec<Vec<u8>> {
        (0..count)
            .map(|_| (0..len).map(|_| self.next() as u8).collect())
            .collect()
    }
}
