//! Coding matrices: the M rows of K coefficients that make the parity of each code, and the
//! inversion that makes decoding rows.
//!
//! Sources followed, by their published definitions and byte-equal to their output: ISA-L
//! (`gf_gen_rs_matrix`, `gf_gen_cauchy1_matrix`) and Jerasure 2.0 (`reed_sol_van`, `cauchy_orig`,
//! `cauchy_good`, all with w = 8).
//!
//! **Invariants.**
//! - A matrix is row major: the coefficient of data strip `j` in parity `i` is at `i * k + j`.
//! - The code is MDS (any K of the K+M strips give the rest) exactly when every square submatrix of
//!   its matrix is non-singular. [`is_mds`] says so without searching; a test searches.

use crate::gf::{exp2, inv, mul};
use crate::{CodeKind, fft};

/// The coding matrix of a code, `m` rows of `k`. The caller has checked `1 <= k` and
/// `k + m <= 256`.
pub(crate) fn coding_matrix(kind: CodeKind, k: usize, m: usize) -> Vec<u8> {
    match kind {
        CodeKind::IsalRs => fill(k, m, |i, j| exp2(i * j)),
        CodeKind::IsalCauchy => fill(k, m, |i, j| inv((k + i) as u8 ^ j as u8)),
        CodeKind::JerasureReedSolVan => reed_sol_van(k, m),
        CodeKind::CauchyOrig => cauchy_orig(k, m),
        CodeKind::CauchyGood => cauchy_good(k, m),
        CodeKind::Fft => fft::matrix(k, m),
    }
}

fn fill(k: usize, m: usize, element: impl Fn(usize, usize) -> u8) -> Vec<u8> {
    (0..m * k).map(|at| element(at / k, at % k)).collect()
}

/// Whether any K of the K+M strips of this code give all the others.
///
/// Cauchy matrices always do, also with rows and columns scaled (`fft`), and so does `reed_sol_van`, which is a Vandermonde matrix of distinct
/// points brought into systematic form. `isal_rs` has element `2^(i j)` at `(i, j)`, the same for
/// `(j, i)`: with at most three rows or columns every submatrix is a Vandermonde matrix of distinct
/// points or a product of such; with four, rows 0 and 3 and columns 0 and 85 would give
/// `2^(3 * 85) = 1`, and other submatrices fail earlier. Searching all submatrices (in a test)
/// gives what is below.
pub(crate) fn is_mds(kind: CodeKind, k: usize, m: usize) -> bool {
    match kind {
        CodeKind::IsalRs => match (k.min(m), k.max(m)) {
            (0..=3, _) => true,
            (4, longer) => longer <= 21,
            (5, longer) => longer == 5,
            _ => false,
        },
        CodeKind::IsalCauchy
        | CodeKind::JerasureReedSolVan
        | CodeKind::CauchyOrig
        | CodeKind::CauchyGood
        | CodeKind::Fft => true,
    }
}

/// Rows 1.. of the extended Vandermonde matrix `i^j`, whose last row is `0 .. 0 1`, brought into
/// systematic form by column operations; then columns scaled so that the first coding row is all
/// ones, and rows so that the first column is.
fn reed_sol_van(k: usize, m: usize) -> Vec<u8> {
    if m == 0 {
        return Vec::new();
    }
    let rows = k + m;
    let mut whole = vec![0u8; rows * k];
    whole[0] = 1;
    for i in 1..rows - 1 {
        let mut power = 1;
        for j in 0..k {
            whole[i * k + j] = power;
            power = mul(power, i as u8);
        }
    }
    whole[rows * k - 1] = 1;
    for i in 1..k {
        if let Some(found) = (i..rows).find(|&row| whole[row * k + i] != 0) {
            for j in 0..k {
                whole.swap(found * k + j, i * k + j);
            }
        }
        let scale = inv(whole[i * k + i]);
        for row in 0..rows {
            whole[row * k + i] = mul(scale, whole[row * k + i]);
        }
        for j in (0..k).filter(|&j| j != i) {
            let factor = whole[i * k + j];
            for row in 0..rows {
                whole[row * k + j] ^= mul(factor, whole[row * k + i]);
            }
        }
    }
    let mut matrix = whole.split_off(k * k);
    for j in 0..k {
        let scale = inv(matrix[j]);
        for i in 0..m {
            matrix[i * k + j] = mul(scale, matrix[i * k + j]);
        }
    }
    for row in matrix.chunks_exact_mut(k).skip(1) {
        let scale = inv(row[0]);
        row.iter_mut()
            .for_each(|element| *element = mul(scale, *element));
    }
    matrix
}

fn cauchy_orig(k: usize, m: usize) -> Vec<u8> {
    fill(k, m, |i, j| inv(i as u8 ^ (m + j) as u8))
}

/// The number of ones in the bit matrix of multiplication by `element`: the XORs it costs.
fn ones(element: u8) -> u32 {
    (0..8).map(|bit| mul(element, 1 << bit).count_ones()).sum()
}

/// `cauchy_orig` with columns scaled so that the first row is all ones, and each other row divided
/// by the one of its elements that leaves the fewest ones in its bit matrix (the first such, and
/// only if that is fewer than before). For two parities, the second row is instead the `k` elements
/// of fewest ones.
fn cauchy_good(k: usize, m: usize) -> Vec<u8> {
    if m == 2 {
        let mut cheapest: Vec<u8> = (1..=255).collect();
        cheapest.sort_by_key(|&element| (ones(element), element));
        let mut matrix = vec![1; k];
        matrix.extend_from_slice(&cheapest[..k]);
        return matrix;
    }
    let mut matrix = cauchy_orig(k, m);
    for j in 0..k.min(matrix.len()) {
        let scale = inv(matrix[j]);
        for i in 0..m {
            matrix[i * k + j] = mul(scale, matrix[i * k + j]);
        }
    }
    let cost = |row: &[u8], scale: u8| row.iter().map(|&e| ones(mul(e, scale))).sum::<u32>();
    for row in matrix.chunks_exact_mut(k).skip(1) {
        let mut best = (cost(row, 1), 1);
        for &element in row.iter().filter(|&&element| element != 1) {
            let scale = inv(element);
            let found = cost(row, scale);
            if found < best.0 {
                best = (found, scale);
            }
        }
        row.iter_mut()
            .for_each(|element| *element = mul(best.1, *element));
    }
    matrix
}

/// The rows that make the strips `wanted` from the strips `used`, K of them, ascending: one
/// coefficient for each used strip. `None` if the used strips do not determine the rest.
pub(crate) fn decode_rows(
    matrix: &[u8],
    k: usize,
    used: &[usize],
    wanted: &[usize],
) -> Option<Vec<u8>> {
    let known = &used[..used.partition_point(|&strip| strip < k)];
    let parities = &used[known.len()..];
    let missing: Vec<usize> = (0..k).filter(|j| known.binary_search(j).is_err()).collect();
    let n = missing.len();
    let element = |parity: usize, j: usize| matrix[(parity - k) * k + j];
    let square: Vec<u8> = parities
        .iter()
        .flat_map(|&i| missing.iter().map(move |&j| element(i, j)))
        .collect();
    let inverse = invert(&square, n)?;
    // Row d: missing data strip d from the known data strips, then from the parity strips.
    let mut data_rows = vec![0u8; n * k];
    for (row, solution) in data_rows
        .chunks_exact_mut(k)
        .zip(inverse.chunks_exact(n.max(1)))
    {
        for (&i, &factor) in parities.iter().zip(solution) {
            for (to, &j) in row.iter_mut().zip(known) {
                *to ^= mul(factor, element(i, j));
            }
        }
        row[known.len()..].copy_from_slice(solution);
    }
    let mut rows = vec![0u8; wanted.len() * k];
    for (row, &number) in rows.chunks_exact_mut(k).zip(wanted) {
        if let Ok(d) = missing.binary_search(&number) {
            row.copy_from_slice(&data_rows[d * k..(d + 1) * k]);
            continue;
        }
        // A parity strip: from the known data strips, and from the missing ones through their rows.
        for (to, &j) in row.iter_mut().zip(known) {
            *to = element(number, j);
        }
        for (&j, data_row) in missing.iter().zip(data_rows.chunks_exact(k)) {
            for (to, &coef) in row.iter_mut().zip(data_row) {
                *to ^= mul(element(number, j), coef);
            }
        }
    }
    Some(rows)
}

/// Inverts a square matrix of `n` rows in place; `None` if it is singular.
pub(crate) fn invert(matrix: &[u8], n: usize) -> Option<Vec<u8>> {
    let mut left = matrix.to_vec();
    let mut right = vec![0u8; n * n];
    for i in 0..n {
        right[i * n + i] = 1;
    }
    for i in 0..n {
        let pivot = (i..n).find(|&row| left[row * n + i] != 0)?;
        if pivot != i {
            for j in 0..n {
                left.swap(pivot * n + j, i * n + j);
                right.swap(pivot * n + j, i * n + j);
            }
        }
        let scale = inv(left[i * n + i]);
        for j in 0..n {
            left[i * n + j] = mul(scale, left[i * n + j]);
            right[i * n + j] = mul(scale, right[i * n + j]);
        }
        for row in (0..n).filter(|&row| row != i) {
            let factor = left[row * n + i];
            if factor == 0 {
                continue;
            }
            for j in 0..n {
                let (a, b) = (left[i * n + j], right[i * n + j]);
                left[row * n + j] ^= mul(factor, a);
                right[row * n + j] ^= mul(factor, b);
            }
        }
    }
    Some(right)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    /// Calls `found` with every set of `size` numbers below `end`.
    fn sets(end: usize, size: usize, found: &mut impl FnMut(&[usize])) {
        let mut set: Vec<usize> = (0..size).collect();
        loop {
            found(&set);
            let Some(at) = (0..size).rev().find(|&at| set[at] < end - size + at) else {
                return;
            };
            set[at] += 1;
            for later in at + 1..size {
                set[later] = set[later - 1] + 1;
            }
        }
    }

    /// Whether a square submatrix is singular, of any size: by searching all of them.
    fn has_singular(matrix: &[u8], k: usize, m: usize) -> bool {
        let mut singular = false;
        for size in 1..=k.min(m) {
            sets(m, size, &mut |rows| {
                sets(k, size, &mut |cols| {
                    let square: Vec<u8> = rows
                        .iter()
                        .flat_map(|&i| cols.iter().map(move |&j| matrix[i * k + j]))
                        .collect();
                    singular |= invert(&square, size).is_none();
                });
            });
            if singular {
                return true;
            }
        }
        false
    }

    #[test]
    fn the_search_agrees_with_what_is_said_of_isal_rs() {
        let kind = CodeKind::IsalRs;
        let agrees = |k, m| {
            let found = !has_singular(&coding_matrix(kind, k, m), k, m);
            assert_eq!(found, is_mds(kind, k, m), "{k}+{m}");
        };
        for k in 1..=9 {
            for m in 1..=6 {
                agrees(k, m);
            }
        }
        for (k, m) in [
            (20, 4),
            (21, 4),
            (22, 4),
            (4, 21),
            (4, 22),
            (5, 5),
            (5, 6),
            (6, 5),
            (6, 6),
        ] {
            agrees(k, m);
        }
        // Three rows or columns, as wide as they get: 2x2 and 3x3 submatrices.
        for (k, m) in [(60, 3), (3, 60), (253, 2), (2, 253)] {
            agrees(k, m);
        }
        // What contains a singular submatrix stays refused however wide it gets.
        for (k, m) in [(22, 4), (6, 5), (6, 6), (100, 4), (250, 6)] {
            assert!(!is_mds(kind, k, m) && !is_mds(kind, m, k));
        }
    }

    #[test]
    fn the_other_codes_have_no_singular_submatrix() {
        for kind in CodeKind::ALL
            .into_iter()
            .filter(|&kind| kind != CodeKind::IsalRs)
        {
            for k in 1..=8 {
                for m in 1..=8 {
                    assert!(
                        !has_singular(&coding_matrix(kind, k, m), k, m),
                        "{kind:?} {k}+{m}"
                    );
                }
            }
        }
    }

    #[test]
    fn the_cheapest_elements_are_those_of_jerasure() {
        // The vectors have no cauchy_good with two parities; its published table begins and ends so.
        let matrix = coding_matrix(CodeKind::CauchyGood, 254, 2);
        assert!(matrix[..254].iter().all(|&element| element == 1));
        assert_eq!(
            matrix[254..266],
            [1, 2, 142, 4, 71, 8, 70, 173, 3, 35, 143, 16]
        );
        // 254 of the 255 elements: the last, 252, is never reached.
        assert_eq!(matrix[503..], [229, 244, 61, 122, 215]);
    }

    #[test]
    fn inverses_are_inverses() {
        let matrix = coding_matrix(CodeKind::IsalCauchy, 40, 40);
        let inverse = invert(&matrix, 40).unwrap();
        for i in 0..40 {
            for j in 0..40 {
                let sum = (0..40).fold(0, |sum, x| {
                    sum ^ mul(matrix[i * 40 + x], inverse[x * 40 + j])
                });
                assert_eq!(sum, u8::from(i == j));
            }
        }
        assert_eq!(invert(&[1, 2, 2, 4], 2), None);
    }
}
