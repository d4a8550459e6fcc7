//! A code: its verbs on whole strips.
//!
//! **Invariants.**
//! - A [`Code`] never changes after it is made; clones share it, on any thread.
//! - Strip numbers: data strips are `0..k`, parity strips `k..k + m`.
//! - No verb allocates in steady state: decode matrices come from a cache, scratch is per thread.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

use crate::apply::{Prepared, STRIPS_MAX};
use crate::cache::{Cache, Lost};
use crate::kernel::{self, Kernel};
use crate::matrix::{coding_matrix, invert, is_mds};
use crate::{CodeError, CodeKind, gf};

/// Bytes of each strip that [`Code::verify`] computes and compares at a time.
const TILE: usize = 1024;

/// An erasure code with fixed K and M; cheap to clone.
#[derive(Clone, Debug)]
pub struct Code(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    kind: CodeKind,
    k: usize,
    m: usize,
    kernel: &'static Kernel,
    matrix: Vec<u8>,
    encode: Prepared,
    cache: Cache,
}

impl Code {
    /// A code of `k` data and `m` parity strips on the fastest kernel this processor has.
    ///
    /// # Errors
    /// [`CodeError::Shape`] unless `k >= 1` and `k + m <= 256`; [`CodeError::NotMds`] if not every
    /// `k` of the strips give the rest.
    pub fn new(kind: CodeKind, k: usize, m: usize) -> Result<Code, CodeError> {
        Code::on_kernel(kind, k, m, kernel::fastest())
    }

    /// As [`Code::new`] on a kernel chosen by name, for tests and measurements.
    ///
    /// # Errors
    /// Those of [`Code::new`], and [`CodeError::NoKernel`] if this processor has no such kernel.
    pub fn with_kernel(kind: CodeKind, k: usize, m: usize, name: &str) -> Result<Code, CodeError> {
        let kernel = kernel::by_name(name).ok_or(CodeError::NoKernel)?;
        Code::on_kernel(kind, k, m, kernel)
    }

    fn on_kernel(
        kind: CodeKind,
        k: usize,
        m: usize,
        kernel: &'static Kernel,
    ) -> Result<Code, CodeError> {
        if k == 0 || k > STRIPS_MAX || m > STRIPS_MAX || k + m > STRIPS_MAX {
            return Err(CodeError::Shape { k, m });
        }
        if !is_mds(kind, k, m) {
            return Err(CodeError::NotMds { kind, k, m });
        }
        let matrix = coding_matrix(kind, k, m);
        let encode = Prepared::new(kernel, &matrix, m, k);
        Ok(Code(Arc::new(Inner {
            kind,
            k,
            m,
            kernel,
            matrix,
            encode,
            cache: Cache::default(),
        })))
    }

    /// Which code this is.
    pub fn kind(&self) -> CodeKind {
        self.0.kind
    }

    /// Data strips.
    pub fn k(&self) -> usize {
        self.0.k
    }

    /// Parity strips.
    pub fn m(&self) -> usize {
        self.0.m
    }

    /// The name of the kernel in use.
    pub fn kernel(&self) -> &'static str {
        self.0.kernel.name
    }

    /// The coefficient of data strip `data` in parity strip `parity` (0..m).
    ///
    /// # Panics
    /// If there is no such strip.
    pub fn coefficient(&self, parity: usize, data: usize) -> u8 {
        assert!(parity < self.0.m && data < self.0.k);
        self.0.matrix[parity * self.0.k + data]
    }

    /// Computes all parity strips from all data strips. Strips have one length, any, and any
    /// alignment. With M = 0 there is nothing to do.
    ///
    /// # Panics
    /// If there are not K data and M parity strips, or their lengths differ.
    pub fn encode(&self, data: &[&[u8]], parity: &mut [&mut [u8]]) {
        assert!(
            data.len() == self.0.k && parity.len() == self.0.m,
            "wrong number of strips"
        );
        self.0
            .encode
            .apply(data, parity, false, self.0.kind.is_packets());
    }

    /// Computes any strips from any K others.
    ///
    /// `strips` has K+M entries, `None` for what is missing; the first K of those present, data
    /// before parity, are used. `wanted` are strip numbers, in any order, each filled into the
    /// buffer at the same position of `out`; a wanted strip that is present is copied.
    ///
    /// # Errors
    /// [`CodeError::Strips`] unless there are K+M entries, at most as many wanted strips, and as
    /// many buffers as those;
    /// [`CodeError::NoStrip`] for a strip number out of range; [`CodeError::Lengths`] unless all
    /// lengths are the same; [`CodeError::TooFew`] if fewer than K strips are present.
    /// Then no buffer has been written.
    pub fn decode(
        &self,
        strips: &[Option<&[u8]>],
        wanted: &[usize],
        out: &mut [&mut [u8]],
    ) -> Result<(), CodeError> {
        let inner = &*self.0;
        let (k, total) = (inner.k, inner.k + inner.m);
        if strips.len() != total || wanted.len() != out.len() || wanted.len() > total {
            return Err(CodeError::Strips);
        }
        if let Some(&strip) = wanted.iter().find(|&&strip| strip >= total) {
            return Err(CodeError::NoStrip { strip });
        }
        let Some(len) = out.first().map(|buffer| buffer.len()) else {
            return Ok(());
        };
        if strips.iter().flatten().any(|strip| strip.len() != len)
            || out.iter().any(|buffer| buffer.len() != len)
        {
            return Err(CodeError::Lengths);
        }
        let mut sources: [&[u8]; STRIPS_MAX] = [&[]; STRIPS_MAX];
        let mut lost = Lost::default();
        let mut used = 0;
        for (number, strip) in strips.iter().enumerate() {
            if let (Some(bytes), true) = (strip, used < k) {
                sources[used] = bytes;
                lost.used(number);
                used += 1;
            }
        }
        if used < k {
            return Err(CodeError::TooFew {
                present: used,
                needed: k,
            });
        }
        let mut computed: [&mut [u8]; STRIPS_MAX] = std::array::from_fn(|_| &mut [][..]);
        let mut count = 0;
        for (&number, buffer) in wanted.iter().zip(out) {
            match strips[number] {
                Some(bytes) => buffer.copy_from_slice(bytes),
                None => {
                    lost.wanted(count, number);
                    computed[count] = buffer;
                    count += 1;
                }
            }
        }
        if count > 0 {
            let matrix = match inner.cache.get(&lost) {
                Some(matrix) => matrix,
                None => inner
                    .cache
                    .put(lost, self.decode_matrix(strips, &lost.list()[..count])?),
            };
            let outputs = &mut computed[..count];
            matrix.apply(&sources[..k], outputs, false, inner.kind.is_packets());
        }
        Ok(())
    }

    /// The rows that make the wanted strips from the first K strips present.
    fn decode_matrix(
        &self,
        strips: &[Option<&[u8]>],
        wanted: &[u8],
    ) -> Result<Prepared, CodeError> {
        let Inner {
            kind,
            k,
            m,
            ref matrix,
            kernel,
            ..
        } = *self.0;
        let known: Vec<usize> = (0..k).filter(|&j| strips[j].is_some()).collect();
        let missing: Vec<usize> = (0..k).filter(|&j| strips[j].is_none()).collect();
        let parities: Vec<usize> = (0..m)
            .filter(|&i| strips[k + i].is_some())
            .take(missing.len())
            .collect();
        let n = missing.len();
        let square: Vec<u8> = parities
            .iter()
            .flat_map(|&i| missing.iter().map(move |&j| matrix[i * k + j]))
            .collect();
        let inverse = invert(&square, n).ok_or(CodeError::NotMds { kind, k, m })?;
        // Row d: missing data strip d from the known data strips, then from the parity strips.
        let mut data_rows = vec![0u8; n * k];
        for (row, solution) in data_rows
            .chunks_exact_mut(k)
            .zip(inverse.chunks_exact(n.max(1)))
        {
            for (&i, &factor) in parities.iter().zip(solution) {
                for (at, &j) in known.iter().enumerate() {
                    row[at] ^= gf::mul(factor, matrix[i * k + j]);
                }
            }
            row[known.len()..].copy_from_slice(solution);
        }
        let mut rows = vec![0u8; wanted.len() * k];
        for (row, &number) in rows.chunks_exact_mut(k).zip(wanted) {
            let number = usize::from(number);
            if number < k {
                let d = missing.partition_point(|&j| j < number);
                row.copy_from_slice(&data_rows[d * k..(d + 1) * k]);
                continue;
            }
            let coefs = &matrix[(number - k) * k..(number - k + 1) * k];
            for (at, &j) in known.iter().enumerate() {
                row[at] = coefs[j];
            }
            for (&j, data_row) in missing.iter().zip(data_rows.chunks_exact(k)) {
                for (to, &element) in row.iter_mut().zip(data_row) {
                    *to ^= gf::mul(coefs[j], element);
                }
            }
        }
        Ok(Prepared::new(kernel, &rows, wanted.len(), k))
    }

    /// Brings all parity strips up to date after data strip `data_index` has changed from `old` to
    /// `new`. Works on any range of bytes that is the same in all of these (for the packet codes:
    /// one that begins at a multiple of 64 in the strip and ends at one, or at the strip's end).
    ///
    /// # Panics
    /// If there is no such strip, there are not M parity strips, or lengths differ.
    pub fn update(&self, data_index: usize, old: &[u8], new: &[u8], parity: &mut [&mut [u8]]) {
        let inner = &*self.0;
        assert!(
            data_index < inner.k && parity.len() == inner.m,
            "wrong number of strips"
        );
        assert!(old.len() == new.len(), "strips of different lengths");
        assert!(
            parity.iter().all(|strip| strip.len() == old.len()),
            "strips of different lengths"
        );
        let packets = inner.kind.is_packets();
        inner
            .encode
            .apply_columns(data_index, &[old], parity, true, packets);
        inner
            .encode
            .apply_columns(data_index, &[new], parity, true, packets);
    }

    /// Whether the parity strips are those of the data strips. Reads every byte, writes none.
    ///
    /// # Panics
    /// If there are not K data and M parity strips, or their lengths differ.
    pub fn verify(&self, data: &[&[u8]], parity: &[&[u8]]) -> bool {
        let inner = &*self.0;
        assert!(
            data.len() == inner.k && parity.len() == inner.m,
            "wrong number of strips"
        );
        let len = data[0].len();
        assert!(data.iter().chain(parity).all(|strip| strip.len() == len));
        with_spare(inner.m * TILE, |spare| {
            (0..len)
                .step_by(TILE)
                .all(|at| inner.verify_tile(data, parity, at..len.min(at + TILE), spare))
        })
    }
}

impl Inner {
    /// Whether parity is right in one range of bytes; `spare` holds M strips of that length.
    fn verify_tile(
        &self,
        data: &[&[u8]],
        parity: &[&[u8]],
        range: Range<usize>,
        spare: &mut [u8],
    ) -> bool {
        let mut sources: [&[u8]; STRIPS_MAX] = [&[]; STRIPS_MAX];
        for (source, strip) in sources.iter_mut().zip(data) {
            *source = &strip[range.clone()];
        }
        let mut outputs: [&mut [u8]; STRIPS_MAX] = std::array::from_fn(|_| &mut [][..]);
        for (output, bytes) in outputs.iter_mut().zip(spare.chunks_exact_mut(TILE)) {
            *output = &mut bytes[..range.len()];
        }
        let outputs = &mut outputs[..self.m];
        self.encode
            .apply(&sources[..self.k], outputs, false, self.kind.is_packets());
        outputs
            .iter()
            .zip(parity)
            .all(|(ours, theirs)| **ours == theirs[range.clone()])
    }
}

/// Lends this thread's buffer for parity that is only compared, at least `bytes` long.
fn with_spare<T>(bytes: usize, body: impl FnOnce(&mut [u8]) -> T) -> T {
    thread_local! {
        static SPARE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    }
    SPARE.with_borrow_mut(|spare| {
        if spare.len() < bytes {
            spare.resize(bytes, 0);
        }
        body(&mut spare[..bytes])
    })
}
