//! What decoding one loss takes: the rows of a matrix, and for the `fft` code a quicker way where one
//! pays: [`Recovery`] for losses nearly as wide as the code, [`Solve`] for smaller ones.
//!
//! The latter encodes the data that is there, with zeros for what is missing, by transforms. Added
//! to the parity strips that are there, this leaves what the missing data alone contributes to them:
//! as many equations as there are unknowns, solved by a matrix no larger than the loss.
//!
//! **Invariants.**
//! - All ways take the same strips in the same order and give the same bytes.
//! - Sources are known data strips, ascending, then as many parity strips as data strips are missing.

use std::ops::Range;
use std::sync::Arc;

use crate::apply::{Mode, Prepared, STRIPS_MAX, no_buffers, same_length, with_syndromes};
use crate::code::Stripe;
use crate::fft::{Fft, Recovery};
use crate::gf::mul;
use crate::kernel::Kernel;
use crate::matrix::invert;

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
        // The two steps cost about as much again in memory as in multiplications.
        let unknowns = k - data(used) + wanted.len() - data(wanted);
        let solve = 2 * (fft.cost(k) + wanted.len() * unknowns);
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
    /// The matrix with the one element 1: adds.
    one: Prepared,
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
        let one = Prepared::new(kernel, vec![1], 1, 1);
        Some(Solve {
            fft,
            k,
            m,
            known,
            parities,
            wanted: parity,
            matrix,
            one,
        })
    }

    /// One range of bytes, a multiple of 64 and at most [`TILE`] long.
    fn tile(&self, src: &[&[u8]], dst: &mut [&mut [u8]], mode: Mode, range: Range<usize>) {
        let (stride, len) = (TILE + 64, range.len());
        with_syndromes(self.m * stride, |bytes| {
            let mut data: [&[u8]; STRIPS_MAX] = [&ZEROS[..len]; STRIPS_MAX];
            for (&j, source) in self.known.iter().zip(src) {
                data[j] = &source[range.clone()];
            }
            let mut syndromes = no_buffers();
            for (syndrome, row) in syndromes.iter_mut().zip(bytes.chunks_exact_mut(stride)) {
                *syndrome = &mut row[..len];
            }
            let near = Mode {
                cold: false,
                ..mode
            };
            self.fft
                .encode(&data[..self.k], &mut syndromes[..self.m], near, 0..len);
            for (&i, strip) in self.parities.iter().zip(&src[self.known.len()..]) {
                let sum = Mode { add: true, ..near };
                self.one.apply(
                    &[&strip[range.clone()]],
                    &mut [&mut *syndromes[i]],
                    sum,
                    &[],
                );
            }
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
                .apply(&sources[..count], &mut results[..wanted], near, &[]);
        });
    }
}
