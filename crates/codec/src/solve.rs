//! What decoding one loss takes: the rows of a matrix, and for the `fft` code a quicker way where it
//! pays.
//!
//! The quicker way encodes the data that is there, with zeros for what is missing, by transforms. Added
//! to the parity strips that are there, this leaves what the missing data alone contributes to them:
//! as many equations as there are unknowns, solved by a matrix no larger than the loss.
//!
//! **Invariants.**
//! - Both ways take the same strips in the same order and give the same bytes.
//! - Sources are known data strips, ascending, then as many parity strips as data strips are missing.

use std::ops::Range;
use std::sync::Arc;

use crate::apply::{Mode, Prepared, STRIPS_MAX, no_buffers, same_length, with_syndromes};
use crate::code::Stripe;
use crate::fft::Fft;
use crate::gf::mul;
use crate::kernel::Kernel;
use crate::matrix::invert;

/// Decoding for one loss.
#[derive(Debug)]
pub(crate) struct Recipe {
    direct: Prepared,
    quick: Option<Solve>,
}

impl Recipe {
    /// Decoding by the rows of a matrix, or as `quick` says.
    pub(crate) fn new(direct: Prepared, quick: Option<Solve>) -> Recipe {
        Recipe { direct, quick }
    }

    /// Bytes of memory held.
    pub(crate) fn bytes(&self) -> usize {
        let quick = self.quick.as_ref().map_or(0, |solve| solve.matrix.bytes());
        self.direct.bytes() + quick + size_of::<Recipe>()
    }

    /// Computes the wanted strips, ascending, from the used ones, ascending.
    pub(crate) fn apply(&self, src: &[&[u8]], dst: &mut [&mut [u8]], mode: Mode) {
        let Some(solve) = &self.quick else {
            self.direct.apply(src, dst, mode, &[]);
            return;
        };
        let len = same_length(src, dst);
        let whole = len / 64 * 64;
        for at in (0..whole).step_by(TILE) {
            solve.tile(src, dst, mode, at..whole.min(at + TILE));
        }
        self.direct.apply_range(src, dst, mode, whole..len);
    }

    /// [`Recipe::apply`] to one stripe after the other.
    pub(crate) fn batch(&self, stripes: &mut [Stripe<'_, '_>], mode: Mode) {
        if self.quick.is_none() {
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

/// The quicker way.
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
    /// The quicker way for these strips, all ascending, if it pays. `matrix` has the code's `m` rows
    /// of `k` coefficients.
    pub(crate) fn new(
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
        // The two steps cost about as much again in memory as in multiplications.
        if n == 0 || 2 * (fft.cost(k) + wanted.len() * cols) >= wanted.len() * k {
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
