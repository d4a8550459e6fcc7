//! A matrix made ready for a kernel, and its application to whole strips: rows in blocks, bytes in
//! tiles, packets for the bit-matrix codes.
//!
//! **Invariants.**
//! - The result at byte `i` depends on byte `i` of the sources only (for packet codes: on the same
//!   64-byte group only), so tiles and passes may be cut anywhere (there: at multiples of 64).
//! - Nothing is allocated after the first call on a thread; the packet codes keep one scratch
//!   buffer per thread.

use std::cell::RefCell;

use crate::kernel::{Kernel, Pass};
use crate::packets;

/// Rows of coefficients over the sources, cut into blocks of what the kernel does in one pass.
#[derive(Debug)]
pub(crate) struct Prepared {
    kernel: &'static Kernel,
    rows: usize,
    cols: usize,
    /// All blocks' coefficients; within a block by source, then by row.
    coefs: Vec<u8>,
    table: Vec<u64>,
}

/// Bytes of all sources together that a tile should not exceed: about half of a level 2 cache.
const TILE_TOTAL: usize = 256 << 10;
/// Bytes of each strip that are turned from packets into bytes at a time.
const PACKET_TILE: usize = 512;
/// The most strips any code has.
pub(crate) const STRIPS_MAX: usize = 256;

impl Prepared {
    /// Makes `rows` rows of `cols` coefficients (row major) ready for a kernel.
    pub(crate) fn new(
        kernel: &'static Kernel,
        matrix: &[u8],
        rows: usize,
        cols: usize,
    ) -> Prepared {
        assert_eq!(matrix.len(), rows * cols);
        let mut coefs = Vec::with_capacity(rows * cols);
        for block in blocks(kernel, rows) {
            for c in 0..cols {
                coefs.extend(block.clone().map(|r| matrix[r * cols + c]));
            }
        }
        let table = kernel.table(&coefs);
        Prepared {
            kernel,
            rows,
            cols,
            coefs,
            table,
        }
    }

    /// Bytes of memory held.
    pub(crate) fn bytes(&self) -> usize {
        self.coefs.len() + self.table.len() * 8 + size_of::<Prepared>()
    }

    /// `dst[r] (+)= sum over c of matrix[r][c] * src[c]`, over whole slices of one length.
    pub(crate) fn apply(&self, src: &[&[u8]], dst: &mut [&mut [u8]], add: bool, packets: bool) {
        assert_eq!(src.len(), self.cols);
        self.apply_columns(0, src, dst, add, packets);
    }

    /// As [`Prepared::apply`] for the columns from `first` on, as many as there are sources.
    pub(crate) fn apply_columns(
        &self,
        first: usize,
        src: &[&[u8]],
        dst: &mut [&mut [u8]],
        add: bool,
        packets: bool,
    ) {
        assert!(first + src.len() <= self.cols && dst.len() == self.rows);
        let Some(len) = dst.first().map(|result| result.len()) else {
            return;
        };
        assert!(
            src.iter().all(|source| source.len() == len),
            "strips of different lengths"
        );
        assert!(
            dst.iter().all(|result| result.len() == len),
            "strips of different lengths"
        );
        let whole = if packets {
            len / packets::GROUP * packets::GROUP
        } else {
            0
        };
        if whole > 0 {
            self.by_packets(first, src, dst, add, whole);
        }
        self.by_bytes(first, src, dst, add, whole, len);
    }

    /// Bytes `from..to` as field elements.
    fn by_bytes(
        &self,
        first: usize,
        src: &[&[u8]],
        dst: &mut [&mut [u8]],
        add: bool,
        from: usize,
        to: usize,
    ) {
        let tile = if self.rows <= self.kernel.max_rows {
            to - from
        } else {
            (TILE_TOTAL / src.len().max(1)).clamp(512, 4096) / 128 * 128
        };
        let mut at = from;
        while at < to {
            let len = tile.min(to - at);
            for block in blocks(self.kernel, self.rows) {
                let rows = block.len();
                let start = block.start * self.cols + first * rows;
                let end = start + src.len() * rows;
                self.kernel.run(&mut Pass {
                    table: &self.table[self.kernel.table_len(start)..self.kernel.table_len(end)],
                    coefs: &self.coefs[start..end],
                    rows,
                    src,
                    src_at: at,
                    dst: &mut dst[block],
                    dst_at: at,
                    len,
                    add,
                    stream: false,
                    ahead: 0,
                });
            }
            at += len;
        }
    }

    /// Bytes `0..whole` as packets: turned into field elements in a scratch buffer, and back.
    fn by_packets(
        &self,
        first: usize,
        src: &[&[u8]],
        dst: &mut [&mut [u8]],
        add: bool,
        whole: usize,
    ) {
        with_scratch((src.len() + dst.len()) * PACKET_TILE, |scratch| {
            let (sources, results) = scratch.split_at_mut(src.len() * PACKET_TILE);
            let mut at = 0;
            while at < whole {
                let len = PACKET_TILE.min(whole - at);
                for (source, bytes) in src.iter().zip(sources.chunks_exact_mut(PACKET_TILE)) {
                    packets::turn(&source[at..at + len], &mut bytes[..len]);
                }
                if add {
                    for (result, bytes) in dst.iter().zip(results.chunks_exact_mut(PACKET_TILE)) {
                        packets::turn(&result[at..at + len], &mut bytes[..len]);
                    }
                }
                let mut inputs: [&[u8]; STRIPS_MAX] = [&[]; STRIPS_MAX];
                for (input, bytes) in inputs.iter_mut().zip(sources.chunks_exact(PACKET_TILE)) {
                    *input = bytes;
                }
                let mut outputs: [&mut [u8]; STRIPS_MAX] = std::array::from_fn(|_| &mut [][..]);
                for (output, bytes) in outputs
                    .iter_mut()
                    .zip(results.chunks_exact_mut(PACKET_TILE))
                {
                    *output = bytes;
                }
                let outputs = &mut outputs[..dst.len()];
                self.by_bytes(first, &inputs[..src.len()], outputs, add, 0, len);
                for (result, bytes) in dst.iter_mut().zip(outputs) {
                    packets::turn(&bytes[..len], &mut result[at..at + len]);
                }
                at += len;
            }
        });
    }
}

/// Rows in blocks of nearly the same size, none larger than the kernel takes.
fn blocks(kernel: &Kernel, rows: usize) -> impl Iterator<Item = std::ops::Range<usize>> + use<> {
    let count = rows.div_ceil(kernel.max_rows);
    (0..count).map(move |block| rows * block / count..rows * (block + 1) / count)
}

/// Lends the thread's scratch buffer, at least `bytes` long; its contents are whatever they are.
pub(crate) fn with_scratch<T>(bytes: usize, body: impl FnOnce(&mut [u8]) -> T) -> T {
    thread_local! {
        static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    }
    SCRATCH.with_borrow_mut(|scratch| {
        if scratch.len() < bytes {
            scratch.resize(bytes, 0);
        }
        body(&mut scratch[..bytes])
    })
}
