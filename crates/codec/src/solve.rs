//! What decoding one loss takes: the rows of a matrix, and for the `fft` code a quicker way where one
//! pays: [`Recovery`] for losses nearly as wide as the code, [`Solve`] for smaller ones.
//!
//! The latter encodes the data that is there, with zeros for what is missing, and adds the parity that
//! is there, all in one transform. This leaves what the missing data alone contributes to that parity:
//! as many equations as there are unknowns, solved by a matrix no larger than the loss.
//!
//! **Invariants.**
//! - All ways take the same strips in the same order and give the same bytes.
//! - Sources are known data strips, ascending, then as many parity strips as data strips are missing.

use std::ops::Range;
use std::sync::Arc;

use crate::apply::{Prepared, no_buffers, same_length, with_syndromes};
use crate::fft::{Fft, Recovery};
use crate::gf::mul;
use crate::kernel::Kernel;
use crate::matrix::invert;
use crate::strips::{Mode, STRIPS_MAX, Stripe};

/// Decoding for one loss.
#[derive(Debug)]
pub(crate) struct Recipe {
    direct: Prepared,
    way: Way,
}

/// How whole groups of 64 bytes are decoded.
#[derive(Debug)]
pub(crate) enum Way {
    /// By the matrix.
    Matrix,
    /// By encoding and a small matrix.
    Solve(Solve),
    /// By transforms; with it the numbers of data strips among the used and among the wanted.
    Recover(Recovery, usize, usize),
}

impl Way {
    /// The quickest way for these strips, all ascending. `matrix` has the code's `m` rows of `k`
    /// coefficients.
    pub(crate) fn quickest(
        fft: &Arc<Fft>,
        kernel: &'static Kernel,
        (k, m): (usize, usize),
        matrix: &[u8],
        used: &[usize],
        wanted: &[usize],
    ) -> Way {
        let data = |strips: &[usize]| strips.partition_point(|&strip| strip < k);
        let direct = wanted.len() * k;
        let unknowns = k - data(used) + wanted.len() - data(wanted);
        let solve = fft.cost(k) + wanted.len() * unknowns + SECOND_STEP;
        let recover = Recovery::cost(k, m, used, wanted);
        if recover < solve.min(direct)
            && let Some(recovery) = Recovery::new(kernel, (k, m), used, wanted)
        {
            return Way::Recover(recovery, data(used), data(wanted));
        }
        if solve < direct
            && let Some(solve) = Solve::new(fft, kernel, (k, m), matrix, used, wanted)
        {
            return Way::Solve(solve);
        }
        Way::Matrix
    }
}

impl Recipe {
    /// Decoding by the rows of a matrix, or, but for the last bytes, another way.
    pub(crate) fn new(direct: Prepared, way: Way) -> Recipe {
        Recipe { direct, way }
    }

    /// Bytes of memory held.
    pub(crate) fn bytes(&self) -> usize {
        let way = match &self.way {
            Way::Matrix => 0,
            Way::Solve(solve) => solve.matrix.bytes(),
            Way::Recover(recovery, ..) => recovery.bytes(),
        };
        self.direct.bytes() + way + size_of::<Recipe>()
    }

    /// Computes the wanted strips, ascending, from the used ones, ascending.
    pub(crate) fn apply(&self, src: &[&[u8]], dst: &mut [&mut [u8]], mode: Mode) {
        if matches!(self.way, Way::Matrix) {
            self.direct.apply(src, dst, mode, &[]);
            return;
        }
        let len = same_length(src, dst);
        let whole = len / 64 * 64;
        match &self.way {
            Way::Matrix => {}
            Way::Solve(solve) => {
                for at in (0..whole).step_by(TILE) {
                    solve.tile(src, dst, mode, at..whole.min(at + TILE));
                }
            }
            Way::Recover(recovery, known, lost) => {
                recovery.decode((src, *known), (dst, *lost), mode, 0..whole);
            }
        }
        self.direct.apply_range(src, dst, mode, whole..len);
    }

    /// [`Recipe::apply`] to one stripe after the other.
    pub(crate) fn batch(&self, stripes: &mut [Stripe<'_, '_>], mode: Mode) {
        if matches!(self.way, Way::Matrix) {
            self.direct.batch(stripes, mode);
        } else {
            stripes
                .iter_mut()
                .for_each(|stripe| self.apply(stripe.read, stripe.write, mode));
        }
    }
}

/// Bytes of each strip at a time.
const TILE: usize = 1024;

/// What the second step costs beside its matrix, in multiplications by a matrix. Measured with
/// `avx512-gfni`.
const SECOND_STEP: usize = 300;

/// Stands for missing data.
static ZEROS: [u8; TILE] = [0; TILE];

/// Decoding by encoding what is there and a small matrix.
#[derive(Debug)]
pub(crate) struct Solve {
    fft: Arc<Fft>,
    k: usize,
    m: usize,
    /// Data strips that are sources.
    known: Vec<usize>,
    /// Rows of parity whose strips are sources.
    parities: Vec<usize>,
    /// Rows of parity that are wanted.
    wanted: Vec<usize>,
    /// Wanted strips from what the missing data contributes to `parities`, then, for wanted parity,
    /// from what the known data contributes to `wanted`.
    matrix: Prepared,
}

impl Solve {
    /// For these strips, all ascending; `None` if none of the data is missing. `matrix` has the code's
    /// `m` rows of `k` coefficients.
    fn new(
        fft: &Arc<Fft>,
        kernel: &'static Kernel,
        (k, m): (usize, usize),
        matrix: &[u8],
        used: &[usize],
        wanted: &[usize],
    ) -> Option<Solve> {
        let known = used[..used.partition_point(|&strip| strip < k)].to_vec();
        let parities: Vec<usize> = used[known.len()..].iter().map(|strip| strip - k).collect();
        let missing: Vec<usize> = (0..k).filter(|j| known.binary_search(j).is_err()).collect();
        let (data, parity) = wanted.split_at(wanted.partition_point(|&strip| strip < k));
        let parity: Vec<usize> = parity.iter().map(|strip| strip - k).collect();
        let (n, cols) = (missing.len(), missing.len() + parity.len());
        if n == 0 {
            return None;
        }
        let element = |i: usize, j: usize| matrix[i * k + j];
        let square: Vec<u8> = parities
            .iter()
            .flat_map(|&i| missing.iter().map(move |&j| element(i, j)))
            .collect();
        let inverse = invert(&square, n)?;
        let mut rows = vec![0; wanted.len() * cols];
        let (of_data, of_parity) = rows.split_at_mut(data.len() * cols);
        for (row, number) in of_data.chunks_exact_mut(cols).zip(data) {
            let d = missing.binary_search(number).ok()?;
            row[..n].copy_from_slice(&inverse[d * n..(d + 1) * n]);
        }
        for (p, row) in of_parity.chunks_exact_mut(cols).enumerate() {
            row[n + p] = 1;
            for (&j, solution) in missing.iter().zip(inverse.chunks_exact(n)) {
                for (to, &coef) in row.iter_mut().zip(solution) {
                    *to ^= mul(element(parity[p], j), coef);
                }
            }
        }
        let matrix = Prepared::new(kernel, rows, wanted.len(), cols);
        let fft = Arc::clone(fft);
        Some(Solve {
            fft,
            k,
            m,
            known,
            parities,
            wanted: parity,
            matrix,
        })
    }

    /// One range of bytes, a multiple of 64 and at most [`TILE`] long.
    fn tile(&self, src: &[&[u8]], dst: &mut [&mut [u8]], mode: Mode, range: Range<usize>) {
        let (stride, len) = (TILE + 64, range.len());
        with_syndromes(self.m * stride, |bytes| {
            let mut points: [&[u8]; STRIPS_MAX] = [&ZEROS[..len]; STRIPS_MAX];
            let first = self.fft.points();
            let data = self.known.iter().map(|j| first + j);
            for (point, source) in data.chain(self.parities.iter().copied()).zip(src) {
                points[point] = &source[range.clone()];
            }
            let mut syndromes = no_buffers();
            for (syndrome, row) in syndromes.iter_mut().zip(bytes.chunks_exact_mut(stride)) {
                *syndrome = &mut row[..len];
            }
            let kept = Mode { kept: true, ..mode };
            let (points, rows) = (&points[..first + self.k], &mut syndromes[..self.m]);
            self.fft.syndromes(points, rows, kept, 0..len);
            let mut sources: [&[u8]; STRIPS_MAX] = [&[]; STRIPS_MAX];
            let rows = self.parities.iter().chain(&self.wanted);
            let mut count = 0;
            for &i in rows {
                sources[count] = &*syndromes[i];
                count += 1;
            }
            let wanted = dst.len();
            let mut results = no_buffers();
            for (result, strip) in results.iter_mut().zip(dst.iter_mut()) {
                *result = &mut strip[range.clone()];
            }
            self.matrix
                .apply(&sources[..count], &mut results[..wanted], mode, &[]);
        });
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::kernel::kernels;
    use crate::matrix::{coding_matrix, decode_rows};
    use crate::{Code, CodeKind};

    /// Numbers without a pattern (an LCG's upper bits).
    fn numbers(seed: u64) -> impl FnMut() -> usize {
        let mut state = seed;
        move || {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (state >> 33) as usize
        }
    }

    /// Compares the ways for one loss: `used` and `wanted` ascending.
    fn compare(code: &Code, kernel: &'static Kernel, used: &[usize], wanted: &[usize]) {
        let (k, m, len) = (code.k(), code.m(), 1664 + 7);
        let label = format!("{k}+{m}: {wanted:?} from {used:?} on {}", kernel.name);
        let mut next = numbers((k * 256 + m) as u64);
        let mut strips: Vec<Vec<u8>> = (0..k + m)
            .map(|_| (0..len).map(|_| next() as u8).collect())
            .collect();
        let (data, parity) = strips.split_at_mut(k);
        let data: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
        let mut parity: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
        code.encode(&data, &mut parity);
        let matrix = coding_matrix(CodeKind::Fft, k, m);
        let direct = || {
            let rows = decode_rows(&matrix, k, used, wanted).unwrap();
            Prepared::new(kernel, rows, wanted.len(), k)
        };
        let known = used.partition_point(|&strip| strip < k);
        let lost = wanted.partition_point(|&strip| strip < k);
        let fft = Arc::new(Fft::new(kernel, k, m).unwrap());
        let solve = Solve::new(&fft, kernel, (k, m), &matrix, used, wanted);
        let recovery = Recovery::new(kernel, (k, m), used, wanted).unwrap();
        let mut ways = vec![Way::Matrix, Way::Recover(recovery, known, lost)];
        ways.extend(solve.map(Way::Solve));
        assert!(ways.len() == 3 || known == k, "{label}");
        let read: Vec<&[u8]> = used.iter().map(|&strip| &strips[strip][..]).collect();
        for way in ways {
            let recipe = Recipe::new(direct(), way);
            for cold in [false, true] {
                let mode = Mode {
                    cold,
                    ..Mode::default()
                };
                let mut out = vec![vec![0x55; len]; wanted.len()];
                let mut write: Vec<&mut [u8]> = out.iter_mut().map(Vec::as_mut_slice).collect();
                recipe.apply(&read, &mut write, mode);
                for (ours, &strip) in out.iter().zip(wanted) {
                    assert!(*ours == strips[strip], "{strip} of {label}");
                }
            }
        }
    }

    #[test]
    fn every_way_gives_the_strips_that_were_lost() {
        let mut next = numbers(5);
        for kernel in kernels().filter(|kernel| kernel.has_transform()) {
            for (k, m) in [
                (30, 8),
                (40, 9),
                (20, 12),
                (80, 20),
                (85, 15),
                (60, 24),
                (100, 28),
                (60, 30),
                (90, 36),
                (200, 40),
                (80, 48),
                (128, 64),
                (100, 68),
                (60, 72),
                (90, 80),
                (128, 128),
                (100, 110),
                (192, 64),
                (100, 129),
                (60, 144),
            ] {
                let code = Code::with_kernel(CodeKind::Fft, k, m, kernel.name).unwrap();
                for round in 0..3 {
                    let most = [k.min(m), m.min(k).div_ceil(2), 1][round];
                    let mut order: Vec<usize> = (0..k + m).collect();
                    if round != 0 {
                        for i in 0..k + m {
                            order.swap(i, i + next() % (k + m - i));
                        }
                    }
                    // Round 0 loses the first data; the others lose and want anything.
                    let mut wanted = order[..most].to_vec();
                    let mut used = order[order.len() - k..].to_vec();
                    if round == 0 {
                        used = (most..most + k).collect();
                    }
                    wanted.sort_unstable();
                    used.sort_unstable();
                    compare(&code, kernel, &used, &wanted);
                }
            }
        }
    }
}
