//! A code: its verbs on whole strips.
//!
//! **Invariants.**
//! - A [`Code`] never changes after it is made; clones share it, on any thread.
//! - Strip numbers: data strips are `0..k`, parity strips `k..k + m`.
//! - No verb allocates in steady state: decode matrices come from a cache, scratch is per thread.

use std::ops::Range;
use std::sync::Arc;

use crate::apply::{Prepared, no_buffers, same_length, with_compared};
use crate::cache::{Cache, Loss, Set};
use crate::fft::Fft;
use crate::kernel::{self, Kernel};
use crate::matrix::{coding_matrix, decode_rows, is_mds};
use crate::solve::{Recipe, Way};
use crate::strips::{Mode, STRIPS_MAX, Stripe};
use crate::{CodeError, CodeKind};

/// Bytes of each strip that [`Code::verify`] computes and compares at a time.
const TILE: usize = 1024;

/// An erasure code with fixed K and M; cheap to clone.
#[derive(Clone, Debug)]
pub struct Code {
    inner: Arc<Inner>,
    cold: bool,
}

#[derive(Debug)]
struct Inner {
    kind: CodeKind,
    k: usize,
    m: usize,
    kernel: &'static Kernel,
    matrix: Vec<u8>,
    encode: Prepared,
    /// The quicker way to encode, where there is one.
    fft: Option<Arc<Fft>>,
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
        let encode = Prepared::new(kernel, matrix.clone(), m, k);
        let fft = if kind == CodeKind::Fft {
            Fft::new(kernel, k, m)
        } else {
            None
        };
        let fft = fft.map(Arc::new);
        let inner = Inner {
            kind,
            k,
            m,
            kernel,
            matrix,
            encode,
            fft,
            cache: Cache::default(),
        };
        Ok(Code {
            inner: Arc::new(inner),
            cold: false,
        })
    }

    /// Which code this is.
    pub fn kind(&self) -> CodeKind {
        self.inner.kind
    }

    /// Data strips.
    pub fn k(&self) -> usize {
        self.inner.k
    }

    /// Parity strips.
    pub fn m(&self) -> usize {
        self.inner.m
    }

    /// The name of the kernel in use.
    pub fn kernel(&self) -> &'static str {
        self.inner.kernel.name
    }

    /// The coefficient of data strip `data` in parity strip `parity` (0..m).
    ///
    /// # Panics
    /// If there is no such strip.
    pub fn coefficient(&self, parity: usize, data: usize) -> u8 {
        assert!(parity < self.inner.m && data < self.inner.k);
        self.inner.matrix[parity * self.inner.k + data]
    }

    /// The same code for strips that come from memory and results that nobody reads soon: it
    /// fetches ahead and writes around the caches where addresses are multiples of 64. The bytes
    /// are the same.
    pub fn streamed(&self) -> Code {
        Code {
            inner: Arc::clone(&self.inner),
            cold: true,
        }
    }

    fn mode(&self) -> Mode {
        Mode {
            packets: self.inner.kind.is_packets(),
            cold: self.cold,
            add: false,
            kept: false,
        }
    }

    /// Computes all parity strips from all data strips. Strips have one length, any, and any
    /// alignment. With M = 0 there is nothing to do.
    ///
    /// # Panics
    /// If there are not K data and M parity strips, or their lengths differ.
    pub fn encode(&self, data: &[&[u8]], parity: &mut [&mut [u8]]) {
        let inner = &*self.inner;
        assert!(
            data.len() == inner.k && parity.len() == inner.m,
            "wrong number of strips"
        );
        inner.make_parity(data, parity, self.mode());
    }

    /// As [`Code::encode`] for many stripes, each one's data fetched while the one before is
    /// computed: what small strips from memory need.
    ///
    /// # Panics
    /// As [`Code::encode`].
    pub fn encode_batch(&self, stripes: &mut [Stripe<'_, '_>]) {
        let (k, m) = (self.inner.k, self.inner.m);
        assert!(
            stripes
                .iter()
                .all(|s| s.read.len() == k && s.write.len() == m)
        );
        let fft = self.inner.fft.as_ref();
        if fft.is_some_and(|fft| fft.pays(self.mode())) {
            stripes
                .iter_mut()
                .for_each(|stripe| self.encode(stripe.read, stripe.write));
        } else {
            self.inner.encode.batch(stripes, self.mode());
        }
    }

    /// Computes any strips from any K others.
    ///
    /// `strips` has K+M entries, `None` for what is missing; the first K of those present, data
    /// before parity, are used. `wanted` are different strip numbers, in any order, each filled into
    /// the buffer at the same position of `out`; a wanted strip that is present is copied.
    ///
    /// # Errors
    /// [`CodeError::Strips`] unless there are K+M entries, no strip is wanted twice, and there are
    /// as many buffers as wanted strips; [`CodeError::NoStrip`] for a strip number out of range;
    /// [`CodeError::Lengths`] unless all lengths are the same; [`CodeError::TooFew`] if fewer than K
    /// strips are present. Then no buffer has been written.
    pub fn decode(
        &self,
        strips: &[Option<&[u8]>],
        wanted: &[usize],
        out: &mut [&mut [u8]],
    ) -> Result<(), CodeError> {
        // Clearing an array for 256 strips takes longer than decoding a few small ones.
        match self.inner.k {
            0..=16 if self.decode_again::<16>(strips, wanted, out) => Ok(()),
            17..=32 if self.decode_again::<32>(strips, wanted, out) => Ok(()),
            0..=64 => self.decode_within::<64>(strips, wanted, out),
            65..=128 => self.decode_within::<128>(strips, wanted, out),
            _ => self.decode_within::<STRIPS_MAX>(strips, wanted, out),
        }
    }

    /// [`Code::decode`] with at most `N` data and 64 strips, if all is in order and the loss is that of
    /// this thread's call before; else nothing is done. For small strips every step counts.
    fn decode_again<const N: usize>(
        &self,
        strips: &[Option<&[u8]>],
        wanted: &[usize],
        out: &mut [&mut [u8]],
    ) -> bool {
        let (k, total) = (self.inner.k, self.inner.k + self.inner.m);
        if k > N || total > 64 || strips.len() != total || wanted.len() != out.len() {
            return false;
        }
        let Some(len) = out.first().map(|buffer| buffer.len()) else {
            return false;
        };
        let mut sources: [&[u8]; N] = [&[]; N];
        let (mut count, mut there, mut used, mut same) = (0, 0u64, 0, true);
        for (number, strip) in strips.iter().enumerate() {
            let Some(bytes) = strip else { continue };
            there |= 1 << number;
            same &= bytes.len() == len;
            if count < k {
                sources[count] = bytes;
                count += 1;
                used = there;
            }
        }
        let mut missing = 0u64;
        for (&number, buffer) in wanted.iter().zip(out.iter()) {
            let bit = 1u64.checked_shl(number as u32).unwrap_or(0);
            // Ascending and not there.
            same &= bit > missing && there & bit == 0 && buffer.len() == len;
            missing |= bit;
        }
        same && count == k
            && self.inner.cache.again(used, missing, |recipe| {
                recipe.apply(&sources[..k], out, self.mode());
            })
    }

    /// [`Code::decode`] with at most `N` data strips.
    fn decode_within<const N: usize>(
        &self,
        strips: &[Option<&[u8]>],
        wanted: &[usize],
        out: &mut [&mut [u8]],
    ) -> Result<(), CodeError> {
        let inner = &*self.inner;
        let (k, total) = (inner.k, inner.k + inner.m);
        if strips.len() != total || wanted.len() != out.len() {
            return Err(CodeError::Strips);
        }
        let Some(len) = out.first().map(|buffer| buffer.len()) else {
            return Ok(());
        };
        let present = Set::of(strips, |strip| strip.is_some());
        let mut sources: [&[u8]; N] = [&[]; N];
        let mut same = out.iter().all(|buffer| buffer.len() == len);
        for strip in strips.iter().flatten() {
            same &= strip.len() == len;
        }
        for (source, strip) in sources[..k].iter_mut().zip(strips.iter().flatten()) {
            *source = strip;
        }
        let loss = Loss::new(total, k, &present, wanted)?;
        if !same {
            return Err(CodeError::Lengths);
        }
        let count = loss.missing.count();
        let sources = &sources[..k];
        if count == wanted.len() && wanted.is_sorted() {
            return inner.decode_lost(&loss, sources, out, self.mode());
        }
        // Results in the order of their numbers, as the matrix has them.
        let mut by_number = no_buffers();
        for (&number, buffer) in wanted.iter().zip(out) {
            match strips[number] {
                Some(bytes) => buffer.copy_from_slice(bytes),
                None => by_number[number] = buffer,
            }
        }
        let mut outputs = no_buffers();
        for (output, number) in outputs.iter_mut().zip(loss.missing.numbers()) {
            *output = std::mem::take(&mut by_number[number]);
        }
        inner.decode_lost(&loss, sources, &mut outputs[..count], self.mode())
    }

    /// What decoding takes, worked out once for many stripes that have lost the same strips.
    ///
    /// `present` says which of the K+M strips can be had, `wanted` which are to be computed.
    ///
    /// # Errors
    /// [`CodeError::Strips`] unless there are K+M entries and no strip is wanted twice;
    /// [`CodeError::NoStrip`] for a strip number out of range or one that is present;
    /// [`CodeError::TooFew`] if fewer than K strips are present.
    pub fn decoder(&self, present: &[bool], wanted: &[usize]) -> Result<Decoder, CodeError> {
        let (k, total) = (self.inner.k, self.inner.k + self.inner.m);
        if present.len() != total {
            return Err(CodeError::Strips);
        }
        if let Some(&strip) = wanted
            .iter()
            .find(|&&number| present.get(number) == Some(&true))
        {
            return Err(CodeError::NoStrip { strip });
        }
        let there = Set::of(present, |present| *present);
        let loss = Loss::new(total, k, &there, wanted)?;
        let matrix = self.inner.decode_matrix(&loss)?;
        let reads = loss.used.numbers().collect();
        let writes = loss.missing.numbers().collect();
        Ok(Decoder {
            matrix,
            reads,
            writes,
            mode: self.mode(),
        })
    }

    /// Brings all parity strips up to date after data strip `data_index` has changed from `old` to
    /// `new`. Works on any range of bytes that is the same in all of these (for the packet codes:
    /// one that begins at a multiple of 64 in the strip and ends at one, or at the strip's end).
    ///
    /// # Panics
    /// If there is no such strip, there are not M parity strips, or lengths differ.
    pub fn update(&self, data_index: usize, old: &[u8], new: &[u8], parity: &mut [&mut [u8]]) {
        let inner = &*self.inner;
        assert!(
            data_index < inner.k && parity.len() == inner.m,
            "wrong number of strips"
        );
        inner
            .encode
            .change(data_index, [old, new], parity, self.mode());
    }

    /// Whether the parity strips are those of the data strips. Reads every byte, writes none.
    ///
    /// # Panics
    /// If there are not K data and M parity strips, or their lengths differ.
    pub fn verify(&self, data: &[&[u8]], parity: &[&[u8]]) -> bool {
        let inner = &*self.inner;
        assert!(
            data.len() == inner.k && parity.len() == inner.m,
            "wrong number of strips"
        );
        let len = data[0].len();
        let same = data.iter().chain(parity).all(|strip| strip.len() == len);
        assert!(same, "strips of different lengths");
        with_compared(inner.m * TILE, |spare| {
            (0..len).step_by(TILE).all(|at| {
                let tile = at..len.min(at + TILE);
                self.verify_tile(data, parity, tile, spare)
            })
        })
    }

    /// Whether parity is right in one range of bytes; `spare` holds M strips of that length.
    fn verify_tile(
        &self,
        data: &[&[u8]],
        parity: &[&[u8]],
        range: Range<usize>,
        spare: &mut [u8],
    ) -> bool {
        let inner = &*self.inner;
        let mut sources: [&[u8]; STRIPS_MAX] = [&[]; STRIPS_MAX];
        for (source, strip) in sources.iter_mut().zip(data) {
            *source = &strip[range.clone()];
        }
        let mut outputs = no_buffers();
        for (output, bytes) in outputs.iter_mut().zip(spare.chunks_exact_mut(TILE)) {
            *output = &mut bytes[..range.len()];
        }
        let outputs = &mut outputs[..inner.m];
        let mode = Mode {
            cold: false,
            ..self.mode()
        };
        inner.make_parity(&sources[..inner.k], outputs, mode);
        outputs
            .iter()
            .zip(parity)
            .all(|(ours, theirs)| **ours == theirs[range.clone()])
    }
}

/// Decoding for one set of lost strips; see [`Code::decoder`].
#[derive(Clone, Debug)]
pub struct Decoder {
    matrix: Arc<Recipe>,
    reads: Vec<usize>,
    writes: Vec<usize>,
    mode: Mode,
}

impl Decoder {
    /// The K strips to read, in the order in which [`Decoder::decode`] takes them.
    pub fn reads(&self) -> &[usize] {
        &self.reads
    }

    /// The wanted strips, ascending: the order in which [`Decoder::decode`] writes them.
    pub fn writes(&self) -> &[usize] {
        &self.writes
    }

    /// Computes the wanted strips of one stripe.
    ///
    /// # Panics
    /// If there are not as many strips as [`Decoder::reads`] and [`Decoder::writes`] have, or their
    /// lengths differ.
    pub fn decode(&self, read: &[&[u8]], write: &mut [&mut [u8]]) {
        assert!(read.len() == self.reads.len() && write.len() == self.writes.len());
        self.matrix.apply(read, write, self.mode);
    }

    /// As [`Decoder::decode`] for many stripes, each one's strips fetched while the one before is
    /// computed.
    ///
    /// # Panics
    /// As [`Decoder::decode`].
    pub fn decode_batch(&self, stripes: &mut [Stripe<'_, '_>]) {
        let (reads, writes) = (self.reads.len(), self.writes.len());
        assert!(
            stripes
                .iter()
                .all(|s| s.read.len() == reads && s.write.len() == writes)
        );
        self.matrix.batch(stripes, self.mode);
    }
}

impl Inner {
    /// All parity from all data.
    fn make_parity(&self, data: &[&[u8]], parity: &mut [&mut [u8]], mode: Mode) {
        let Some(fft) = self.fft.as_ref().filter(|fft| fft.pays(mode)) else {
            self.encode.apply(data, parity, mode, &[]);
            return;
        };
        let len = same_length(data, parity);
        let whole = len / 64 * 64;
        fft.encode(data, parity, mode, 0..whole);
        self.encode.apply_range(data, parity, mode, whole..len);
    }

    /// Computes the missing strips, ascending, from the used ones, ascending.
    fn decode_lost(
        &self,
        loss: &Loss,
        sources: &[&[u8]],
        outputs: &mut [&mut [u8]],
        mode: Mode,
    ) -> Result<(), CodeError> {
        if outputs.is_empty() {
            return Ok(());
        }
        self.cache.with(
            loss,
            || self.decode_matrix(loss),
            |recipe| recipe.apply(sources, outputs, mode),
        )
    }

    /// The rows that make the missing strips from the used ones, from the cache if it has them.
    fn decode_matrix(&self, loss: &Loss) -> Result<Arc<Recipe>, CodeError> {
        if let Some(matrix) = self.cache.get(loss) {
            return Ok(matrix);
        }
        let Inner {
            kind, k, m, kernel, ..
        } = *self;
        let wanted: Vec<usize> = loss.missing.numbers().collect();
        let used: Vec<usize> = loss.used.numbers().collect();
        let rows = decode_rows(&self.matrix, k, &used, &wanted);
        let rows = rows.ok_or(CodeError::NotMds { kind, k, m })?;
        let direct = Prepared::new(kernel, rows, wanted.len(), k);
        let way = match &self.fft {
            Some(fft) => Way::quickest(fft, kernel, (k, m), &self.matrix, &used, &wanted),
            None => Way::Matrix,
        };
        Ok(self.cache.put(*loss, Recipe::new(direct, way)))
    }
}
