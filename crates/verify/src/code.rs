//! The codes: matrices, parity, and what was lost from what is left. Plain arithmetic, by docs/codec.md.
//!
//! **Invariants**: a matrix has M rows of K coefficients; whatever columns are given, the answer is right or
//! there is none; packets of the bit-matrix codes are turned into bytes and back around the same arithmetic.

use crate::gf::{combine, inverse, power_of_two, times};

/// The tag of the journal's code.
pub(crate) const ISAL_CAUCHY: u8 = 1;

/// One code of one shape.
#[derive(Debug)]
pub(crate) struct Code {
    k: usize,
    packets: bool,
    /// M rows of K.
    matrix: Vec<Vec<u8>>,
}

impl Code {
    /// The code with a tag; `None` if there is none, or none of this shape.
    pub(crate) fn new(tag: u8, k: usize, m: usize) -> Option<Code> {
        if k == 0 || k + m > 256 {
            return None;
        }
        let matrix = match tag {
            ISAL_CAUCHY => fill(k, m, |i, j| inverse(byte(k + i) ^ byte(j))),
            2 if is_mds(k, m) => fill(k, m, |i, j| power_of_two(i * j)),
            3 => vandermonde(k, m),
            4 => cauchy(k, m),
            5 => good_cauchy(k, m),
            6 => transform(k, m),
            _ => return None,
        };
        let packets = matches!(tag, 4 | 5);
        Some(Code { k, packets, matrix })
    }

    /// The strips `wanted`, from the first K of `known` (numbers ascending or not); `None` if these are
    /// fewer, or do not determine the others.
    pub(crate) fn decode(
        &self,
        known: &[(usize, &[u8])],
        wanted: &[usize],
    ) -> Option<Vec<Vec<u8>>> {
        let known = known.get(..self.k)?;
        let length = known.first().map_or(0, |(_, strip)| strip.len());
        let rows = self.rows(known, wanted)?;
        // Packets are made bytes in groups of 64; what is beyond is bytes already.
        let whole = if self.packets { length / 64 * 64 } else { 0 };
        let turned: Vec<Vec<u8>> = if self.packets {
            known.iter().map(|(_, s)| turn(s, whole)).collect()
        } else {
            Vec::new()
        };
        let strips: Vec<&[u8]> = if self.packets {
            turned.iter().map(Vec::as_slice).collect()
        } else {
            known.iter().map(|(_, strip)| *strip).collect()
        };
        let result = rows.iter().map(|row| {
            let mut out = vec![0; length];
            combine(row, &strips, &mut out);
            if self.packets { turn(&out, whole) } else { out }
        });
        Some(result.collect())
    }

    /// For each wanted strip the coefficients of the known ones.
    fn rows(&self, known: &[(usize, &[u8])], wanted: &[usize]) -> Option<Vec<Vec<u8>>> {
        let k = self.k;
        let position = |strip: usize| known.iter().position(|(number, _)| *number == strip);
        let missing: Vec<usize> = (0..k).filter(|j| position(*j).is_none()).collect();
        // P[S][X] d_X = p_S + P[S][Y] d_Y
        let parities: Vec<(usize, usize)> = known
            .iter()
            .enumerate()
            .filter(|(_, (number, _))| *number >= k)
            .map(|(at, (number, _))| (at, number - k))
            .collect();
        if parities.len() != missing.len() {
            return None; // a strip was given twice
        }
        let mut square = Vec::new();
        for (_, row) in &parities {
            let row = self.matrix.get(*row)?;
            square.push(missing.iter().map(|j| row[*j]).collect::<Vec<u8>>());
        }
        let inverse = invert(square)?;
        let mut data_rows: Vec<Vec<u8>> = Vec::with_capacity(k);
        for j in 0..k {
            let mut row = vec![0; known.len()];
            if let Some(at) = position(j) {
                row[at] = 1;
            } else {
                let solution = &inverse[missing.iter().position(|m| *m == j)?];
                for ((at, parity), factor) in parities.iter().zip(solution) {
                    row[*at] ^= factor;
                    for (at, (number, _)) in known.iter().enumerate().filter(|(_, s)| s.0 < k) {
                        row[at] ^= times(*factor, self.matrix[*parity][*number]);
                    }
                }
            }
            data_rows.push(row);
        }
        let mut rows = Vec::new();
        for strip in wanted {
            if *strip < k {
                rows.push(data_rows[*strip].clone());
                continue;
            }
            let mut row = vec![0; known.len()];
            for (coefficient, data) in self.matrix.get(*strip - k)?.iter().zip(&data_rows) {
                for (to, from) in row.iter_mut().zip(data) {
                    *to ^= times(*coefficient, *from);
                }
            }
            rows.push(row);
        }
        Some(rows)
    }
}

fn byte(number: usize) -> u8 {
    u8::try_from(number).unwrap_or(0)
}

fn fill(k: usize, m: usize, element: impl Fn(usize, usize) -> u8) -> Vec<Vec<u8>> {
    (0..m)
        .map(|i| (0..k).map(|j| element(i, j)).collect())
        .collect()
}

/// Whether `2^(i j)` makes a code of this shape.
fn is_mds(k: usize, m: usize) -> bool {
    match k.min(m) {
        0..=3 => true,
        4 => k.max(m) <= 21,
        5 => k.max(m) == 5,
        _ => false,
    }
}

/// Inverts a square matrix; `None` if it has no inverse.
fn invert(mut left: Vec<Vec<u8>>) -> Option<Vec<Vec<u8>>> {
    let n = left.len();
    let mut right = fill(n, n, |i, j| u8::from(i == j));
    for column in 0..n {
        let pivot = (column..n).find(|row| left[*row][column] != 0)?;
        left.swap(column, pivot);
        right.swap(column, pivot);
        let scale = inverse(left[column][column]);
        for value in left[column].iter_mut().chain(&mut right[column]) {
            *value = times(*value, scale);
        }
        let (of_left, of_right) = (left[column].clone(), right[column].clone());
        for row in (0..n).filter(|row| *row != column) {
            let factor = left[row][column];
            if factor == 0 {
                continue;
            }
            for (to, from) in left[row].iter_mut().zip(&of_left) {
                *to ^= times(factor, *from);
            }
            for (to, from) in right[row].iter_mut().zip(&of_right) {
                *to ^= times(factor, *from);
            }
        }
    }
    Some(right)
}

/// The extended Vandermonde matrix in systematic form, its first parity row and column all ones.
///
/// Column operations make the upper square the unit matrix: multiplication by its inverse from the right.
fn vandermonde(k: usize, m: usize) -> Vec<Vec<u8>> {
    if m == 0 {
        return Vec::new();
    }
    let rows = k + m;
    let whole = fill(k, rows, |i, j| match i {
        _ if i + 1 == rows => u8::from(j + 1 == k),
        0 => u8::from(j == 0),
        _ => (0..j).fold(1, |power, _| times(power, byte(i))),
    });
    let Some(back) = invert(whole[..k].to_vec()) else {
        return fill(k, m, |_, _| 0); // the points differ, so there is an inverse
    };
    let mut parity = fill(k, m, |i, j| {
        (0..k).fold(0, |sum, at| sum ^ times(whole[k + i][at], back[at][j]))
    });
    for j in 0..k {
        let scale = inverse(parity[0][j]);
        parity
            .iter_mut()
            .for_each(|row| row[j] = times(row[j], scale));
    }
    for row in parity.iter_mut().skip(1) {
        let scale = inverse(row[0]);
        row.iter_mut().for_each(|v| *v = times(*v, scale));
    }
    parity
}

fn cauchy(k: usize, m: usize) -> Vec<Vec<u8>> {
    fill(k, m, |i, j| inverse(byte(i) ^ byte(m + j)))
}

/// Ones in the bit matrix of multiplication by `element`.
fn ones(element: u8) -> u32 {
    (0..8)
        .map(|bit| times(element, 1 << bit).count_ones())
        .sum()
}

fn good_cauchy(k: usize, m: usize) -> Vec<Vec<u8>> {
    if m == 2 {
        let mut elements: Vec<u8> = (1..=255).collect();
        elements.sort_by_key(|element| ones(*element));
        elements.truncate(k);
        return vec![vec![1; k], elements];
    }
    let mut matrix = cauchy(k, m);
    if let Some(first) = matrix.first().cloned() {
        for row in &mut matrix {
            for (value, scale) in row.iter_mut().zip(&first) {
                *value = times(*value, inverse(*scale));
            }
        }
    }
    for row in matrix.iter_mut().skip(1) {
        let cost = |scale: u8| row.iter().map(|v| ones(times(*v, scale))).sum::<u32>();
        let candidates = row.iter().filter(|v| **v != 1).map(|v| inverse(*v));
        let mut best = 1;
        for scale in candidates {
            if cost(scale) < cost(best) {
                best = scale;
            }
        }
        row.iter_mut().for_each(|v| *v = times(*v, best));
    }
    matrix
}

/// The matrix of the `fft` code: the value at a data point of the polynomial that is 1 at one parity point
/// and 0 at the others.
fn transform(k: usize, m: usize) -> Vec<Vec<u8>> {
    let mut basis = [1u8; 8];
    for i in 1..8 {
        let found = (2..=255u8).find(|x| times(*x, *x) ^ x == basis[i - 1]);
        basis[i] = found.unwrap_or(0);
    }
    let element = |point: usize| {
        let bits = basis.iter().enumerate();
        bits.filter(|(bit, _)| point >> bit & 1 == 1)
            .fold(0, |sum, (_, e)| sum ^ e)
    };
    let size = m.next_power_of_two();
    let half = size / 2;
    let extra = [4, 8, 16]
        .into_iter()
        .find(|extra| half >= 8 && half >= 2 * extra && half + extra >= m);
    let mut points = extra.map_or(size, |extra| half + extra);
    if k + points > 256 {
        points = m;
    }
    fill(k, m, |i, j| {
        let (x, one) = (element(points + j), element(i));
        (0..points)
            .filter(|point| *point != i)
            .fold(1, |value, point| {
                let zero = element(point);
                times(value, times(x ^ zero, inverse(one ^ zero)))
            })
    })
}

/// Exchanges packet and bit numbers in each group of 64 of the first `whole` bytes.
fn turn(strip: &[u8], whole: usize) -> Vec<u8> {
    let mut out = strip.to_vec();
    let groups = out[..whole].chunks_exact_mut(64);
    for (to, from) in groups.zip(strip.chunks_exact(64)) {
        for inner in 0..8 {
            for byte in 0..8 {
                let bits = (0..8).map(|packet| (from[packet * 8 + byte] >> inner & 1) << packet);
                to[inner * 8 + byte] = bits.fold(0, |sum, bit| sum | bit);
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn every_code_gives_back_what_was_lost() {
        for tag in 1..=6 {
            for (k, m) in [(1, 1), (1, 3), (3, 1), (4, 2), (5, 3), (8, 2)] {
                let code = Code::new(tag, k, m).unwrap();
                let data: Vec<Vec<u8>> = (0..k)
                    .map(|j| (0..160).map(|b| byte((b * 13 + j * 101) % 251)).collect())
                    .collect();
                let data: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
                let known: Vec<(usize, &[u8])> = data.iter().copied().enumerate().collect();
                let parity = code
                    .decode(&known, &(k..k + m).collect::<Vec<_>>())
                    .unwrap();
                let mut all: Vec<&[u8]> = data.clone();
                all.extend(parity.iter().map(Vec::as_slice));
                for lost in 0..k + m {
                    let known: Vec<(usize, &[u8])> = (0..k + m)
                        .rev()
                        .filter(|s| *s != lost && (m == 1 || *s != (lost + 1) % (k + m)))
                        .map(|s| (s, all[s]))
                        .collect();
                    let found = code.decode(&known, &[lost]).unwrap();
                    assert_eq!(found[0], all[lost], "code {tag} {k}+{m} without {lost}");
                }
            }
        }
        assert!(Code::new(7, 2, 1).is_none() && Code::new(1, 0, 1).is_none());
    }

    #[test]
    fn small_matrices_are_what_their_definitions_give() {
        assert_eq!(Code::new(3, 4, 1).unwrap().matrix, [[1; 4]]);
        assert_eq!(Code::new(3, 1, 3).unwrap().matrix, [[1]; 3]);
        assert_eq!(Code::new(2, 3, 2).unwrap().matrix, [[1, 1, 1], [1, 2, 4]]);
        assert_eq!(
            Code::new(1, 2, 1).unwrap().matrix,
            [[inverse(2), inverse(3)]]
        );
    }
}
