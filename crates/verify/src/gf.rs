//! GF(2^8) modulo 0x11d, one word at a time.
//!
//! **Invariants**: multiplication is shift and add, by the field's definition; no table of products, so
//! that it shares nothing with the codec it checks. `inverse(0)` is 0.

/// Twice a byte.
const fn double(a: u8) -> u8 {
    a << 1 ^ if a & 0x80 == 0 { 0 } else { 0x1d }
}

/// The product of two bytes.
pub(crate) const fn times(mut a: u8, mut b: u8) -> u8 {
    let mut product = 0;
    while b != 0 {
        if b & 1 == 1 {
            product ^= a;
        }
        a = double(a);
        b >>= 1;
    }
    product
}

const INVERSES: [u8; 256] = inverses();

const fn inverses() -> [u8; 256] {
    let mut inverses = [0; 256];
    // The powers of 2 are all elements but zero: 2^n has the inverse 2^(255 - n).
    let mut powers = [1u8; 256];
    let mut n = 1;
    while n < 256 {
        powers[n] = double(powers[n - 1]);
        n += 1;
    }
    n = 0;
    while n < 255 {
        inverses[powers[n] as usize] = powers[255 - n];
        n += 1;
    }
    inverses
}

/// What times `a` is 1.
pub(crate) const fn inverse(a: u8) -> u8 {
    INVERSES[a as usize]
}

/// `2^n`.
pub(crate) const fn power_of_two(n: usize) -> u8 {
    let mut value = 1;
    let mut left = n % 255;
    while left > 0 {
        value = double(value);
        left -= 1;
    }
    value
}

/// Words that are worked on together.
const WORDS: usize = 8;
/// Their bytes.
const CHUNK: usize = WORDS * 8;

/// Twice each byte of a word.
fn double_bytes(word: u64) -> u64 {
    let high = word >> 7 & 0x0101_0101_0101_0101;
    // 0x1d has the bits 0, 2, 3 and 4.
    let merge = high ^ high << 2 ^ high << 3 ^ high << 4;
    (word & 0x7f7f_7f7f_7f7f_7f7f) << 1 ^ merge
}

fn load(bytes: &[u8]) -> [u64; WORDS] {
    let mut words = [0; WORDS];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = u64::from_le_bytes(bytes.try_into().unwrap_or_default());
    }
    words
}

/// The sum of `coefficients[j]` times `strips[j]`, byte by byte; strips have the length of `out`.
pub(crate) fn combine(coefficients: &[u8], strips: &[&[u8]], out: &mut [u8]) {
    // Horner's rule over the bits of the coefficients: double, then add the strips that have the bit.
    let with_bit: Vec<Vec<&[u8]>> = (0..8)
        .map(|bit| {
            let pairs = coefficients.iter().zip(strips);
            let has = pairs.filter(|(c, strip)| **c >> bit & 1 == 1 && strip.len() >= out.len());
            has.map(|(_, strip)| *strip).collect()
        })
        .collect();
    let whole = out.len() / CHUNK * CHUNK;
    for (number, chunk) in out[..whole].chunks_exact_mut(CHUNK).enumerate() {
        let at = number * CHUNK;
        let mut sum = [0u64; WORDS];
        for strips in with_bit.iter().rev() {
            sum = sum.map(double_bytes);
            for strip in strips {
                let words = load(&strip[at..at + CHUNK]);
                for (sum, word) in sum.iter_mut().zip(words) {
                    *sum ^= word;
                }
            }
        }
        for (bytes, word) in chunk.chunks_exact_mut(8).zip(sum) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
    }
    for (at, out) in out.iter_mut().enumerate().skip(whole) {
        let terms = coefficients.iter().zip(strips);
        *out = terms.fold(0, |sum, (c, strip)| {
            sum ^ times(*c, strip.get(at).copied().unwrap_or(0))
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_field() {
        assert_eq!(times(2, 0x80), 0x1d);
        for a in 1..=255 {
            assert_eq!(times(a, inverse(a)), 1);
            assert_eq!(double(a), times(a, 2));
        }
        assert_eq!(power_of_two(8), 0x1d);
        assert_eq!(power_of_two(255), 1);
    }

    #[test]
    fn words_give_what_bytes_give() {
        let strips: Vec<Vec<u8>> = (0..3u8)
            .map(|s| {
                (0..200u8)
                    .map(|b| b.wrapping_mul(7).wrapping_add(s * 31))
                    .collect()
            })
            .collect();
        let strips: Vec<&[u8]> = strips.iter().map(Vec::as_slice).collect();
        let coefficients = [0x8e, 1, 0x53];
        let mut out = vec![0; 200];
        combine(&coefficients, &strips, &mut out);
        for at in 0..200 {
            let expected = (0..3).fold(0, |sum, j| sum ^ times(coefficients[j], strips[j][at]));
            assert_eq!(out[at], expected);
        }
    }
}
