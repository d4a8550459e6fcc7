//! The field GF(2^8) with the polynomial x^8 + x^4 + x^3 + x^2 + 1 (0x11d), as tables computed at
//! build time.
//!
//! **Invariants.**
//! - Addition is XOR; 2 generates the multiplicative group, so every non-zero element is a power of
//!   it, and `EXP` and `LOG` are inverse to each other on non-zero elements.
//! - Every table here is a pure function of the polynomial: no other source of field arithmetic
//!   exists in this crate's library code.

const POLYNOMIAL: u16 = 0x11d;

/// Powers of 2, twice over, so that the sum of two logarithms needs no reduction.
pub(crate) static EXP: [u8; 510] = exp_table();

/// Discrete logarithms to base 2; the entry of 0 is meaningless.
pub(crate) static LOG: [u8; 256] = log_table();

/// The product of the row's number and the column's number.
pub(crate) static MUL: [[u8; 256]; 256] = mul_table();

/// For shuffle kernels: products of a constant with 0..16, then with 0, 16, ..., 240.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64", test))]
pub(crate) static NIBBLES: [[u8; 32]; 256] = nibble_table();

/// For GFNI kernels: multiplication by a constant as the 8x8 bit matrix of `gf2p8affineqb`, whose
/// byte `7 - i` holds the row that makes bit `i` of the result.
#[cfg(any(target_arch = "x86_64", test))]
pub(crate) static AFFINE: [u64; 256] = affine_table();

/// The product of two elements, bit by bit: for tables made when compiled.
pub(crate) const fn times(a: u8, b: u8) -> u8 {
    let mut product = 0u16;
    let mut shifted = a as u16;
    let mut bit = 0;
    while bit < 8 {
        if b >> bit & 1 == 1 {
            product ^= shifted;
        }
        shifted <<= 1;
        if shifted & 0x100 != 0 {
            shifted ^= POLYNOMIAL;
        }
        bit += 1;
    }
    product as u8
}

const fn exp_table() -> [u8; 510] {
    let mut table = [0; 510];
    let mut value = 1;
    let mut i = 0;
    while i < 510 {
        table[i] = value;
        value = times(value, 2);
        i += 1;
    }
    table
}

const fn log_table() -> [u8; 256] {
    let exp = exp_table();
    let mut table = [0; 256];
    let mut i = 0;
    while i < 255 {
        table[exp[i] as usize] = i as u8;
        i += 1;
    }
    table
}

const fn mul_table() -> [[u8; 256]; 256] {
    let exp = exp_table();
    let log = log_table();
    let mut table = [[0; 256]; 256];
    let mut a = 1;
    while a < 256 {
        let mut b = 1;
        while b < 256 {
            table[a][b] = exp[log[a] as usize + log[b] as usize];
            b += 1;
        }
        a += 1;
    }
    table
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64", test))]
const fn nibble_table() -> [[u8; 32]; 256] {
    let mut table = [[0; 32]; 256];
    let mut c = 0;
    while c < 256 {
        let mut i = 0;
        while i < 16 {
            table[c][i] = times(c as u8, i as u8);
            table[c][16 + i] = times(c as u8, (i << 4) as u8);
            i += 1;
        }
        c += 1;
    }
    table
}

#[cfg(any(target_arch = "x86_64", test))]
const fn affine_table() -> [u64; 256] {
    let mut table = [0; 256];
    let mut c = 0;
    while c < 256 {
        let mut matrix = 0u64;
        let mut j = 0;
        while j < 8 {
            let column = times(c as u8, 1 << j);
            let mut i = 0;
            while i < 8 {
                if column >> i & 1 == 1 {
                    matrix |= 1 << (8 * (7 - i) + j);
                }
                i += 1;
            }
            j += 1;
        }
        table[c] = matrix;
        c += 1;
    }
    table
}

/// The product of two elements.
pub(crate) fn mul(a: u8, b: u8) -> u8 {
    MUL[a as usize][b as usize]
}

/// The multiplicative inverse; 0 for 0, which has none.
pub(crate) fn inv(a: u8) -> u8 {
    if a == 0 {
        0
    } else {
        EXP[255 - LOG[a as usize] as usize]
    }
}

/// `2` to the given power.
pub(crate) fn exp2(power: usize) -> u8 {
    EXP[power % 255]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_agree_with_long_multiplication() {
        for a in 0..=255u8 {
            for b in 0..=255u8 {
                let product = times(a, b);
                assert_eq!(mul(a, b), product);
                let nibbles = &NIBBLES[a as usize];
                assert_eq!(
                    nibbles[b as usize & 15] ^ nibbles[16 + (b as usize >> 4)],
                    product
                );
                let matrix = AFFINE[a as usize];
                let bits = (0..8).fold(0, |bits, i| {
                    let row = (matrix >> (8 * (7 - i))) as u8;
                    bits | (((row & b).count_ones() as u8 & 1) << i)
                });
                assert_eq!(bits, product);
            }
            if a != 0 {
                assert_eq!(times(a, inv(a)), 1);
            }
        }
        assert_eq!(inv(0), 0);
        assert_eq!(exp2(8), 0x1d);
        assert_eq!(exp2(255), 1);
    }
}
