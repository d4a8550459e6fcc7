//! The default code, `isal_cauchy`, in its plainest form: no tables, no vectors, one byte at a time. It encodes K strips,
//! loses M of the K+M, computes them from the others, and compares all of it with the crate: `reference [K+M]`.
//!
//! `docs/codec.md` has the mathematics. The tests hold every kernel against the same arithmetic for all codes
//! (`tests/reference`).
#![allow(clippy::unwrap_used, reason = "a development program")]

use ashlar_codec::{Code, CodeKind};

/// The product of two elements of GF(2^8): polynomials over bits, modulo x^8 + x^4 + x^3 + x^2 + 1.
fn times(mut a: u8, mut b: u8) -> u8 {
    let mut product = 0;
    while b != 0 {
        if b & 1 == 1 {
            product ^= a;
        }
        let carry = a & 0x80 != 0;
        a <<= 1;
        if carry {
            a ^= 0x1d;
        }
        b >>= 1;
    }
    product
}

/// The element that gives 1 with `a`.
fn inverse(a: u8) -> u8 {
    (1..=255).find(|&b| times(a, b) == 1).unwrap()
}

/// Row `strip` of the generator matrix: the coefficients of the K data strips in strip `strip`. The first K rows are
/// the unit matrix, the others a Cauchy matrix: any K of all rows are independent.
fn row(k: usize, strip: usize) -> Vec<u8> {
    let coefficient = |j: usize| match strip < k {
        true => u8::from(strip == j),
        false => inverse((strip ^ j) as u8),
    };
    (0..k).map(coefficient).collect()
}

/// The sum of strips, each times its coefficient. Adding is XOR.
fn sum(coefficients: &[u8], strips: &[&[u8]]) -> Vec<u8> {
    let mut out = vec![0; strips[0].len()];
    for (c, strip) in coefficients.iter().zip(strips) {
        for (out, byte) in out.iter_mut().zip(*strip) {
            *out ^= times(*c, *byte);
        }
    }
    out
}

/// The inverse of a square matrix, by Gauss and Jordan: the unit matrix beside it goes through the same steps.
fn inverted(mut matrix: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    let n = matrix.len();
    for (i, row) in matrix.iter_mut().enumerate() {
        row.extend((0..n).map(|j| u8::from(i == j)));
    }
    for column in 0..n {
        let pivot = (column..n).find(|&i| matrix[i][column] != 0).unwrap();
        matrix.swap(column, pivot);
        let scale = inverse(matrix[column][column]);
        matrix[column]
            .iter_mut()
            .for_each(|x| *x = times(*x, scale));
        let pivot = matrix[column].clone();
        for (i, row) in matrix.iter_mut().enumerate() {
            let factor = row[column];
            if i != column && factor != 0 {
                row.iter_mut()
                    .zip(&pivot)
                    .for_each(|(x, p)| *x ^= times(factor, *p));
            }
        }
    }
    matrix.into_iter().map(|row| row[n..].to_vec()).collect()
}

/// The data strips, from any K strips and their numbers.
fn decoded(k: usize, numbers: &[usize], strips: &[&[u8]]) -> Vec<Vec<u8>> {
    let rows = numbers.iter().map(|strip| row(k, *strip)).collect();
    let inverse = inverted(rows);
    inverse.iter().map(|row| sum(row, strips)).collect()
}

fn main() {
    let shape = std::env::args().nth(1).unwrap_or("8+2".into());
    let (k, m) = shape.split_once('+').unwrap();
    let (k, m): (usize, usize) = (k.parse().unwrap(), m.parse().unwrap());
    let code = Code::new(CodeKind::IsalCauchy, k, m).unwrap();

    let data: Vec<Vec<u8>> = (0..k)
        .map(|j| {
            (0..4096)
                .map(|t| (t * 7 + j * 31 + t / 251) as u8)
                .collect()
        })
        .collect();
    let data_strips: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
    let mut strips = data.clone();
    strips.extend((k..k + m).map(|strip| sum(&row(k, strip), &data_strips)));

    let mut parity = vec![vec![0; 4096]; m];
    let mut out: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
    code.encode(&data_strips, &mut out);
    assert_eq!(parity, strips[k..], "parity is that of the crate");

    // The first M strips are lost: data, and parity too if there are fewer data strips than that.
    let numbers: Vec<usize> = (m..k + m).collect();
    let left: Vec<&[u8]> = numbers.iter().map(|i| strips[*i].as_slice()).collect();
    assert_eq!(decoded(k, &numbers, &left), data, "data are back");
    println!(
        "{k}+{m}: {m} parity strips as {} computes them; {m} lost strips are back",
        code.kernel()
    );
}
