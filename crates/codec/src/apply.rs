//! A matrix made ready for a kernel, and its application to whole strips: rows in blocks or sources
//! in groups, bytes in tiles, packets for the bit-matrix codes.
//!
//! Few rows are computed in blocks, all of a block's sums in registers while the sources go by. When
//! there are more rows than registers, the sources are taken a group at a time, each read once, and
//! added into sums that stay in the level 1 cache for the length of a tile.
//!
//! **Invariants.**
//! - The result at byte `i` depends on byte `i` of the sources only (for packet codes: on the same
//!   64-byte group only), so tiles and passes may be cut anywhere (there: at multiples of 64).
//! - Nothing is allocated after the first call on a thread: scratch buffers are kept per thread.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::OnceLock;
use std::thread::LocalKey;

use crate::kernel::{End, Form, GROUP_ALIGN, Group, Kernel, Pass, portable};
use crate::packets;
use crate::strips::{Mode, STRIPS_MAX, Stripe};

/// Bytes of all sources together that one tile of several blocks may have: they stay in level 2.
const TILE_TOTAL: usize = 256 << 10;
/// Bytes of all sums together that one tile may have: they stay in level 1.
const SUMS_TOTAL: usize = 20 << 10;
/// The same for few rows of strips from memory, which are read in long pieces: they stay in level 2.
const FEW_SUMS_TOTAL: usize = 256 << 10;
/// Bytes of all strips together that are turned from packets into bytes at a time: about level 1.
const PACKETS_TOTAL: usize = 32 << 10;
/// How far ahead of its reads a block asks for its sources, in bytes of each.
const AHEAD: usize = 256;
/// Bytes of a page.
const PAGE: usize = 4096;
/// From so many rows on a block always does, since that costs it nothing.
const AHEAD_ROWS: usize = 7;
/// In a batch, stripes of at most so many bytes are fetched while the one before is computed: what
/// is fetched must still be in level 2 when it is needed.
const NEXT_TOTAL: usize = 384 << 10;
/// Strips from memory are taken in groups if there are at least so many of them ...
const GROUPS_FROM: usize = 14;
/// ... and at most so many rows,
const GROUPS_ROWS: usize = 4;
/// or so many, if there are no more strips than that.
const GROUPS_MORE: (usize, usize) = (8, 64);
/// From so many bytes on, the tile of one such row is long.
const LONG: usize = 48 << 10;
/// How far ahead of its reads a group of theirs fetches, in bytes of each source: one row of a long tile,
const LONG_AHEAD: usize = 384;
/// one row of a shorter one,
const SHORT_AHEAD: usize = 2048;
/// and more rows.
const ROWS_AHEAD: usize = 3072;

thread_local! {
    static SUMS: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    static TURNED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    static COMPARED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    static WORK: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    static SYNDROMES: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Rows of coefficients over the sources, in the forms and orders that the kernel wants.
#[derive(Debug)]
pub(crate) struct Prepared {
    kernel: &'static Kernel,
    rows: usize,
    cols: usize,
    /// Row major.
    matrix: Vec<u8>,
    /// Every coefficient is 1.
    ones: bool,
    /// Sources in a group: in the last one nearly as many as in the others.
    group: usize,
    /// The table for rows in blocks, once it was needed.
    blocks: OnceLock<Vec<u64>>,
    /// The table for sources in groups, once it was needed.
    groups: OnceLock<Vec<u64>>,
}

impl Prepared {
    /// Makes `rows` rows of `cols` coefficients (row major) ready for a kernel.
    pub(crate) fn new(
        kernel: &'static Kernel,
        matrix: Vec<u8>,
        rows: usize,
        cols: usize,
    ) -> Prepared {
        assert_eq!(matrix.len(), rows * cols);
        let ones = matrix.iter().all(|&coef| coef == 1);
        let count = cols.div_ceil(kernel.group.max(1)).max(1);
        let group = cols.div_ceil(count).max(1);
        let (blocks, groups) = (OnceLock::new(), OnceLock::new());
        let prepared = Prepared {
            kernel,
            rows,
            cols,
            matrix,
            ones,
            group,
            blocks,
            groups,
        };
        if prepared.in_groups(false) {
            prepared.groups();
        } else {
            prepared.blocks();
        }
        prepared
    }

    /// By block; in it by source, then by row.
    fn blocks(&self) -> &[u64] {
        self.blocks.get_or_init(|| {
            let mut order = Vec::with_capacity(self.matrix.len());
            for block in blocks(self.kernel, self.rows) {
                for c in 0..self.cols {
                    order.extend(block.clone().map(|r| self.matrix[r * self.cols + c]));
                }
            }
            self.kernel.table(&order)
        })
    }

    /// By group; in it by row, then by source.
    fn groups(&self) -> &[u64] {
        self.groups.get_or_init(|| {
            let mut order = Vec::with_capacity(self.matrix.len());
            for first in (0..self.cols).step_by(self.group) {
                let last = self.cols.min(first + self.group);
                for row in self.matrix.chunks_exact(self.cols) {
                    order.extend_from_slice(&row[first..last]);
                }
            }
            self.kernel.table(&order)
        })
    }

    /// How far ahead of its reads a group fetches, in bytes of each source of a tile of `tile` bytes.
    fn ahead(&self, cold: bool, tile: usize) -> usize {
        let bytes = match self.rows {
            _ if !self.few(cold) => tile,
            1 if tile >= LONG => LONG_AHEAD,
            1 => SHORT_AHEAD,
            _ => ROWS_AHEAD,
        };
        bytes.min(tile)
    }

    /// Whether sources are taken in groups rather than rows in blocks.
    fn in_groups(&self, cold: bool) -> bool {
        let many = self.rows > self.kernel.max_rows;
        self.kernel.group > 0 && (many || self.few(cold))
    }

    /// Whether these are few rows of many strips from memory.
    fn few(&self, cold: bool) -> bool {
        let more = self.rows <= GROUPS_MORE.0 && self.cols <= GROUPS_MORE.1;
        cold && self.cols >= GROUPS_FROM && (self.rows <= GROUPS_ROWS || more)
    }

    /// Bytes of memory held, or that will be once both tables were needed.
    pub(crate) fn bytes(&self) -> usize {
        let table = self.kernel.table_len(self.matrix.len()) * 8;
        self.matrix.len() + 2 * table + size_of::<Prepared>()
    }

    /// `dst[r] (+)= sum over c of matrix[r][c] * src[c]`, over whole slices of one length. `next`
    /// are the sources of the next call, or empty: to be fetched ahead.
    pub(crate) fn apply(&self, src: &[&[u8]], dst: &mut [&mut [u8]], mode: Mode, next: &[&[u8]]) {
        assert_eq!(src.len(), self.cols);
        let len = same_length(src, dst);
        if self.ones && self.cols == 1 && !mode.add {
            dst.iter_mut()
                .for_each(|result| result.copy_from_slice(src[0]));
            return;
        }
        let form = if self.ones && self.rows == 1 {
            Form::Ones
        } else {
            Form::Sources
        };
        let job = Job {
            first: 0,
            form,
            src,
            next,
            mode,
        };
        self.cut(&job, dst, len);
    }

    /// As [`Prepared::apply`], in a range of bytes only.
    pub(crate) fn apply_range(
        &self,
        src: &[&[u8]],
        dst: &mut [&mut [u8]],
        mode: Mode,
        range: Range<usize>,
    ) {
        assert!(src.len() == self.cols && dst.len() == self.rows);
        let job = Job {
            first: 0,
            form: Form::Sources,
            src,
            next: &[],
            mode,
        };
        self.by_bytes(&job, dst, range);
    }

    /// [`Prepared::apply`] to one stripe after the other, fetching ahead.
    pub(crate) fn batch(&self, stripes: &mut [Stripe<'_, '_>], mode: Mode) {
        let mut rest = stripes;
        while let [stripe, later @ ..] = rest {
            let next = later.first().map_or(&[][..], |next| next.read);
            self.apply(stripe.read, stripe.write, mode, next);
            rest = later;
        }
    }

    /// `dst[r] += matrix[r][column] * (old + new)`, over whole slices of one length.
    pub(crate) fn change(
        &self,
        column: usize,
        old_and_new: [&[u8]; 2],
        dst: &mut [&mut [u8]],
        mode: Mode,
    ) {
        assert!(column < self.cols);
        let len = same_length(&old_and_new, dst);
        let mode = Mode { add: true, ..mode };
        let (form, src) = (Form::Change, &old_and_new);
        self.cut(
            &Job {
                first: column,
                form,
                src,
                next: &[],
                mode,
            },
            dst,
            len,
        );
    }

    /// Whole groups of packets first, if these are packets; then the rest.
    fn cut(&self, job: &Job<'_>, dst: &mut [&mut [u8]], len: usize) {
        assert_eq!(dst.len(), self.rows);
        let whole = if job.mode.packets {
            len / packets::GROUP * packets::GROUP
        } else {
            0
        };
        if whole > 0 {
            self.by_packets(job, dst, whole);
        }
        self.by_bytes(job, dst, whole..len);
    }

    /// A range of bytes as field elements.
    fn by_bytes(&self, job: &Job<'_>, dst: &mut [&mut [u8]], range: Range<usize>) {
        if range.is_empty() || self.rows == 0 {
            return;
        }
        if job.form != Form::Sources || !self.in_groups(job.mode.cold) {
            self.by_blocks(job, dst, range);
            return;
        }
        let whole = range.start + range.len() / GROUP_ALIGN * GROUP_ALIGN;
        let total = if self.few(job.mode.cold) {
            FEW_SUMS_TOTAL
        } else {
            SUMS_TOTAL
        };
        let longest = (total / self.rows / GROUP_ALIGN * GROUP_ALIGN).max(256);
        with_scratch(&SUMS, self.rows * (longest + GROUP_ALIGN), |sums| {
            for start in (range.start..whole).step_by(longest) {
                self.by_groups(job, dst, start..whole.min(start + longest), sums);
            }
        });
        if whole < range.end {
            self.rest(job, dst, whole..range.end);
        }
    }

    /// Rows block by block, over tiles if there is more than one block.
    fn by_blocks(&self, job: &Job<'_>, dst: &mut [&mut [u8]], range: Range<usize>) {
        let (max_rows, cols) = (self.kernel.max_rows, job.src.len());
        if self.rows <= max_rows && self.kernel.group > 0 {
            self.one_block(job, dst, 0..self.rows, range);
            return;
        }
        let tile = (TILE_TOTAL / cols.max(1)).clamp(512, 4096) / 128 * 128;
        for at in range.clone().step_by(tile) {
            let tile = at..range.end.min(at + tile);
            for block in blocks(self.kernel, self.rows) {
                let dst = &mut dst[block.clone()];
                self.one_block(job, dst, block, tile.clone());
            }
        }
    }

    /// One block of rows, whose results are `dst`.
    fn one_block(
        &self,
        job: &Job<'_>,
        dst: &mut [&mut [u8]],
        block: Range<usize>,
        range: Range<usize>,
    ) {
        let (at, rows) = (range.start, block.len());
        let cols = if job.form == Form::Change {
            1
        } else {
            job.src.len()
        };
        let start = block.start * self.cols + job.first * rows;
        let table = self.kernel.table_len(start)..self.kernel.table_len(start + cols * rows);
        let around = job.mode.cold && !job.mode.kept && !job.mode.add;
        let around = around && (cols < GROUPS_FROM || self.rows <= GROUPS_ROWS);
        let near = job.src[0].len() * cols <= NEXT_TOTAL;
        let (next, next_at) = match (job.next, job.mode.cold) {
            (next, _) if near && !next.is_empty() => (next, at),
            (_, cold) if cold || rows >= AHEAD_ROWS => (job.src, at + AHEAD),
            _ => (&[][..], 0),
        };
        self.kernel.run(&mut Pass {
            table: &self.blocks()[table],
            coefs: &self.matrix[block.start * self.cols + job.first..],
            pitch: self.cols,
            rows,
            form: job.form,
            src: job.src,
            src_at: at,
            stream: around && can_stream(dst, at) && !share_sets(job.src, dst),
            dst,
            dst_at: at,
            len: range.len(),
            add: job.mode.add,
            next,
            next_at,
        });
    }

    /// One tile, sources group by group; `sums` holds a row of the tile's length and
    /// `GROUP_ALIGN` bytes for each result.
    fn by_groups(&self, job: &Job<'_>, dst: &mut [&mut [u8]], tile: Range<usize>, sums: &mut [u8]) {
        let Job { src, mode, .. } = *job;
        let (group, stride) = (self.group, tile.len() + GROUP_ALIGN);
        if mode.add {
            for (sum, result) in sums.chunks_exact_mut(stride).zip(dst.iter()) {
                sum[..tile.len()].copy_from_slice(&result[tile.clone()]);
            }
        }
        let stream = mode.cold && !mode.kept && can_stream(dst, tile.start);
        // After the last group comes the next tile, after the last tile the next call.
        let later = if tile.end < src[0].len() {
            (&src[..group.min(src.len())], tile.end)
        } else {
            (&job.next[..group.min(job.next.len())], 0)
        };
        for start in (0..src.len()).step_by(group) {
            let end = src.len().min(start + group);
            let last = end == src.len();
            let table =
                self.kernel.table_len(start * self.rows)..self.kernel.table_len(end * self.rows);
            let (next, next_at) = match last {
                true => later,
                false => (&src[end..src.len().min(end + group)], tile.start),
            };
            let results = match src.len() - end {
                0 => End::Now,
                left if left <= group && !stream => End::Soon,
                _ => End::Later,
            };
            self.kernel.run_group(&mut Group {
                table: &self.groups()[table],
                rows: self.rows,
                src: &src[start..end],
                src_at: tile.start,
                sums,
                stride,
                first: start == 0 && !mode.add,
                dst: &mut *dst,
                dst_at: tile.start,
                end: results,
                len: tile.len(),
                stream: stream && last,
                next,
                next_at,
                ahead: self.ahead(mode.cold, tile.len()),
            });
        }
    }

    /// The last few bytes, fewer than a vector.
    fn rest(&self, job: &Job<'_>, dst: &mut [&mut [u8]], range: Range<usize>) {
        portable().run(&mut Pass {
            table: &[],
            coefs: &self.matrix,
            pitch: self.cols,
            rows: self.rows,
            form: Form::Sources,
            src: job.src,
            src_at: range.start,
            dst,
            dst_at: range.start,
            len: range.len(),
            add: job.mode.add,
            stream: false,
            next: &[],
            next_at: 0,
        });
    }

    /// Bytes `0..whole` as packets: turned into field elements in a scratch buffer, and back.
    fn by_packets(&self, job: &Job<'_>, dst: &mut [&mut [u8]], whole: usize) {
        let count = job.src.len();
        let tile = (PACKETS_TOTAL / (count + dst.len())).clamp(512, 4096) / 64 * 64;
        with_scratch(&TURNED, (count + dst.len()) * tile, |scratch| {
            let (sources, results) = scratch.split_at_mut(count * tile);
            for at in (0..whole).step_by(tile) {
                let len = tile.min(whole - at);
                for (source, bytes) in job.src.iter().zip(sources.chunks_exact_mut(tile)) {
                    self.kernel.turn(&source[at..at + len], &mut bytes[..len]);
                }
                if job.mode.add {
                    for (result, bytes) in dst.iter().zip(results.chunks_exact_mut(tile)) {
                        self.kernel.turn(&result[at..at + len], &mut bytes[..len]);
                    }
                }
                let mut inputs: [&[u8]; STRIPS_MAX] = [&[]; STRIPS_MAX];
                for (input, bytes) in inputs.iter_mut().zip(sources.chunks_exact(tile)) {
                    *input = bytes;
                }
                let mut outputs = no_buffers();
                for (output, bytes) in outputs.iter_mut().zip(results.chunks_exact_mut(tile)) {
                    *output = bytes;
                }
                let outputs = &mut outputs[..dst.len()];
                let mode = Mode {
                    add: job.mode.add,
                    ..Mode::default()
                };
                let turned = Job {
                    src: &inputs[..count],
                    next: &[],
                    mode,
                    ..*job
                };
                self.by_bytes(&turned, outputs, 0..len);
                for (result, bytes) in dst.iter_mut().zip(outputs) {
                    self.kernel.turn(&bytes[..len], &mut result[at..at + len]);
                }
            }
        });
    }
}

/// One application of a matrix.
struct Job<'a> {
    /// The column of the first source.
    first: usize,
    form: Form,
    src: &'a [&'a [u8]],
    next: &'a [&'a [u8]],
    mode: Mode,
}

/// The length of all these strips.
///
/// # Panics
/// If they differ.
pub(crate) fn same_length(src: &[&[u8]], dst: &[&mut [u8]]) -> usize {
    let len = src[0].len();
    assert!(
        src.iter().all(|source| source.len() == len),
        "strips of different lengths"
    );
    assert!(
        dst.iter().all(|result| result.len() == len),
        "strips of different lengths"
    );
    len
}

/// As many empty buffers as there can be strips.
pub(crate) fn no_buffers<'a>() -> [&'a mut [u8]; STRIPS_MAX] {
    std::array::from_fn(|_| &mut [][..])
}

/// Whether every result may be written around the caches from byte `at` on.
pub(crate) fn can_stream(dst: &[&mut [u8]], at: usize) -> bool {
    dst.iter()
        .all(|result| (result.as_ptr() as usize + at).is_multiple_of(64))
}

/// Whether a source and a result begin at the same place of their pages, as strips back to back do. Lines
/// written around the caches then cost up to a third of the speed: the processor fetches on from the last
/// source into the first result.
fn share_sets(src: &[&[u8]], dst: &[&mut [u8]]) -> bool {
    let place = |address: usize| address % PAGE;
    let last = src.last().map_or(0, |source| source.as_ptr() as usize);
    dst.first()
        .is_some_and(|result| place(result.as_ptr() as usize) == place(last))
}

/// Rows in blocks of nearly the same size, none larger than the kernel takes.
fn blocks(kernel: &Kernel, rows: usize) -> impl Iterator<Item = Range<usize>> + use<> {
    let count = rows.div_ceil(kernel.max_rows);
    (0..count).map(move |block| rows * block / count..rows * (block + 1) / count)
}

/// Lends this thread's buffer for parity that is only compared, at least `bytes` long.
pub(crate) fn with_compared<T>(bytes: usize, body: impl FnOnce(&mut [u8]) -> T) -> T {
    with_scratch(&COMPARED, bytes, body)
}

/// Lends this thread's rows for transforms, at least `bytes` long together.
pub(crate) fn with_work<T>(bytes: usize, body: impl FnOnce(&mut [u8]) -> T) -> T {
    with_scratch(&WORK, bytes, body)
}

/// Lends this thread's rows for syndromes, at least `bytes` long together.
pub(crate) fn with_syndromes<T>(bytes: usize, body: impl FnOnce(&mut [u8]) -> T) -> T {
    with_scratch(&SYNDROMES, bytes, body)
}

/// Lends one of the thread's scratch buffers, `bytes` long, aligned to a cache line; its contents
/// are whatever they are.
fn with_scratch<T>(
    key: &'static LocalKey<RefCell<Vec<u8>>>,
    bytes: usize,
    body: impl FnOnce(&mut [u8]) -> T,
) -> T {
    key.with_borrow_mut(|scratch| {
        if scratch.len() < bytes + 64 {
            scratch.resize(bytes + 64, 0);
        }
        let skip = scratch.as_ptr().align_offset(64).min(64);
        body(&mut scratch[skip..skip + bytes])
    })
}
