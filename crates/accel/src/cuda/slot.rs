//! One slot: a stream with its memory on both sides, and how a job is put onto it.
//!
//! Everything of a job crosses the link once: the input with coefficients and suffixes, then output and
//! digests. In between the kernels follow each other on the stream.
//!
//! **Invariants.**
//! - The device reads and writes only driver-owned memory: the slot's, and pinned regions of the arena.
//!   Other memory is copied by the device's threads.
//! - One job at a time; a slot is used again only after the end of its stream has been reached.
//! - What [`Slot::fits`] takes stays inside the slot's memory.

#![expect(unsafe_code, reason = "copies and kernels on device memory")]

use std::ffi::c_void;
use std::sync::Arc;

use super::driver::{Context, DeviceMemory, Grid, PinnedMemory, Stream};
use super::kernels::{Kernels, Key, Messages, Product, TILE_ANY, TILES};
use crate::cpu::Found;
use crate::flight::{Flight, lock};
use crate::job::{Coding, Digests, Form, MESSAGE_MAX, Of, Plan};
use crate::region::Arena;
use crate::{Fault, Function};

/// Shared memory that a block may have without asking for more.
const SHARED_MAX: usize = 48 << 10;
/// Most threads of a block of the product kernels; each makes 16 bytes.
const PRODUCT_THREADS: u32 = 256;
/// Levels of a tree, and bytes of a level's suffix.
const LEVELS: usize = 16;
const LEVEL_BYTES: usize = 16;

/// What all slots of a device use.
pub(crate) struct Common {
    pub(crate) kernels: Kernels,
    pub(crate) crc_tables: DeviceMemory,
    pub(crate) arena: Option<Arc<Arena>>,
    pub(crate) multiprocessors: u32,
}

/// Bytes of a slot's parts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Input, and output.
    data: usize,
    /// Digests of messages, and each of two levels of nodes.
    digests: usize,
    /// Coefficients and suffixes.
    extra: usize,
}

impl Sizes {
    pub(crate) fn new(data: usize) -> Sizes {
        let digests = (data / 16).max(16 << 10);
        Sizes {
            data,
            digests,
            extra: digests + (384 << 10),
        }
    }

    fn pinned(&self) -> usize {
        2 * self.data + self.extra + 2 * self.digests
    }

    /// Bytes on the device and pinned.
    pub(crate) fn total(&self) -> (usize, usize) {
        (2 * self.data + self.extra + 3 * self.digests, self.pinned())
    }
}

pub(crate) struct Slot {
    stream: Stream,
    input: DeviceMemory,
    output: DeviceMemory,
    digests: DeviceMemory,
    extra: DeviceMemory,
    /// Input, output, extra, digests, roots.
    staging: PinnedMemory,
    sizes: Sizes,
}

/// Where coefficients and suffixes are in `extra`.
struct Extra {
    low: usize,
    high: usize,
    suffixes: usize,
    end: usize,
    /// Bytes of one message's suffix.
    each: usize,
}

impl Extra {
    fn of(plan: &Plan) -> Extra {
        let (low, high) = plan
            .coding
            .as_ref()
            .map_or((0, 0), |coding| (coding.low.len(), coding.high.len()));
        let each = match plan.digests.as_ref().map(|digests| &digests.form) {
            Some(Form::Suffixed { each, .. }) => *each,
            Some(Form::Keyed { each, .. }) => *each + 8,
            Some(Form::Plain) | None => 0,
        };
        let start = LEVELS * LEVEL_BYTES;
        let suffixes = (start + low + high).next_multiple_of(16);
        let end = suffixes + each * plan.shape.messages;
        Extra {
            low: start,
            high: start + low,
            suffixes,
            end,
            each,
        }
    }

    /// Fills the pinned copy.
    fn fill(&self, plan: &Plan, out: &mut [u8]) {
        if let Some(coding) = &plan.coding {
            out[self.low..self.high].copy_from_slice(&coding.low);
            out[self.high..][..coding.high.len()].copy_from_slice(&coding.high);
        }
        let Some(digests) = &plan.digests else { return };
        for (level, suffix) in
            (1u64..).zip(out[..LEVELS * LEVEL_BYTES].chunks_exact_mut(LEVEL_BYTES))
        {
            suffix[..8].copy_from_slice(&level.to_le_bytes());
            suffix[8..].copy_from_slice(&8u64.to_le_bytes());
        }
        match &digests.form {
            Form::Plain => {}
            Form::Suffixed { suffixes, .. } => {
                out[self.suffixes..self.end].copy_from_slice(suffixes);
            }
            Form::Keyed { contexts, each, .. } => {
                let suffixes = out[self.suffixes..self.end].chunks_exact_mut(self.each);
                for (number, suffix) in suffixes.enumerate() {
                    suffix[..*each].copy_from_slice(&contexts[number * each..][..*each]);
                    suffix[*each..].copy_from_slice(&(*each as u64).to_le_bytes());
                }
            }
        }
    }
}

/// The levels above the blocks of a strip.
fn levels(per_strip: usize, fan: usize) -> usize {
    let (mut nodes, mut levels) = (per_strip, 0);
    while nodes > 1 {
        nodes = nodes.div_ceil(fan);
        levels += 1;
    }
    levels
}

/// Number and kernel of the tile for so many rows: few tiles, little of them empty.
fn tile_for(rows: usize) -> usize {
    let widest = TILES[TILES.len() - 1].0;
    let wanted = rows.div_ceil(rows.div_ceil(widest));
    TILES
        .iter()
        .position(|(rows, _)| *rows >= wanted)
        .unwrap_or(TILES.len() - 1)
}

fn count(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

fn argument<T>(value: &mut T) -> *mut c_void {
    std::ptr::from_mut(value).cast()
}

impl Slot {
    pub(crate) fn new(context: &Arc<Context>, sizes: Sizes) -> Result<Slot, Fault> {
        Ok(Slot {
            stream: Stream::new(context)?,
            input: DeviceMemory::new(context, sizes.data)?,
            output: DeviceMemory::new(context, sizes.data)?,
            digests: DeviceMemory::new(context, 3 * sizes.digests)?,
            extra: DeviceMemory::new(context, sizes.extra)?,
            staging: PinnedMemory::new(context, sizes.pinned())?,
            sizes,
        })
    }

    /// Whether a slot of these sizes, and the kernels, can take a job.
    pub(crate) fn fits(sizes: &Sizes, plan: &Plan) -> bool {
        let shape = &plan.shape;
        let coded = plan
            .coding
            .as_ref()
            .is_none_or(|coding| coding.is_on_device());
        let hashed = plan.digests.as_ref().is_none_or(|digests| {
            let suffix = Extra::of(plan).each;
            let tree = digests.tree.is_none_or(|fan| {
                levels(shape.per_strip, fan) <= LEVELS
                    && fan * digests.function.bytes() < MESSAGE_MAX
            });
            tree && Function::ON_DEVICE.contains(&digests.function)
                && shape.messages * digests.function.bytes() <= sizes.digests
                && digests.block.min(shape.strip) + suffix <= MESSAGE_MAX
        });
        coded
            && hashed
            && shape.read * shape.strip <= sizes.data
            && shape.written * shape.strip <= sizes.data
            && Extra::of(plan).end <= sizes.extra
            && shape.messages < 1 << 30
    }

    fn staged(&self, offset: usize) -> *mut u8 {
        // SAFETY: offsets are within `sizes.pinned()`, the length of the memory.
        unsafe { self.staging.start().add(offset) }
    }

    /// A part of the staging memory.
    ///
    /// # Safety
    /// The stream is idle, and nobody else has this part.
    #[expect(
        clippy::mut_from_ref,
        reason = "the memory is the device's and ours by turns"
    )]
    unsafe fn staged_bytes(&self, offset: usize, bytes: usize) -> &mut [u8] {
        assert!(offset + bytes <= self.sizes.pinned());
        // SAFETY: inside the memory, initialised when it was pinned; the rest is the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.staged(offset), bytes) }
    }

    fn extra_at(&self) -> usize {
        2 * self.sizes.data
    }

    fn digests_at(&self) -> usize {
        2 * self.sizes.data + self.sizes.extra
    }

    /// Puts a job onto the stream. After an error some of it may be on the stream.
    pub(crate) fn start(&self, common: &Common, flight: &Flight) -> Result<(), Fault> {
        let plan = &flight.plan;
        let extra = Extra::of(plan);
        // SAFETY: the slot is free, so its stream is idle; this thread alone has it now.
        extra.fill(plan, unsafe {
            self.staged_bytes(self.extra_at(), extra.end)
        });
        self.stream.record(0)?;
        self.copy_input(common, plan)?;
        // SAFETY: `extra.end` bytes were filled; they change only after the stream's end.
        unsafe {
            let from = self.staged(self.extra_at());
            self.stream.copy_in(self.extra.address(), from, extra.end)?;
        }
        if let Some(coding) = &plan.coding {
            let [low, high] = [extra.low, extra.high].map(|at| self.extra.address() + at as u64);
            self.multiply(
                common,
                coding,
                plan.shape.strip,
                plan.shape.stripes,
                [low, high],
            )?;
        }
        if let Some(digests) = &plan.digests {
            self.digest(common, plan, digests, &extra)?;
        }
        self.copy_output(common, flight)?;
        self.stream.record(1)
    }

    /// The input's pieces, those that follow each other in memory at once.
    fn copy_input(&self, common: &Common, plan: &Plan) -> Result<(), Fault> {
        let mut run = Run::default();
        let mut offset = 0;
        for piece in &plan.read {
            let bytes: &[u8] = piece;
            if bytes.is_empty() {
                continue;
            }
            let pinned = common
                .arena
                .as_ref()
                .is_some_and(|a| a.has(bytes.as_ptr(), bytes.len()));
            let from = if pinned {
                bytes.as_ptr().cast_mut()
            } else {
                // SAFETY: the stream is idle and this part is this piece's only.
                unsafe { self.staged_bytes(offset, bytes.len()) }.copy_from_slice(bytes);
                self.staged(offset)
            };
            if let Some(done) = run.add(from, offset, bytes.len()) {
                self.copy_run_in(&done)?;
            }
            offset += bytes.len();
        }
        self.copy_run_in(&run)
    }

    fn copy_run_in(&self, run: &Run) -> Result<(), Fault> {
        if run.bytes == 0 {
            return Ok(());
        }
        // SAFETY: the run is staging memory or part of the arena, held by the flight until its answer and,
        // after a fault, until the device is closed; `fits` says it is inside the input.
        unsafe {
            let to = self.input.address() + run.offset as u64;
            self.stream.copy_in(to, run.start, run.bytes)
        }
    }

    fn copy_output(&self, common: &Common, flight: &Flight) -> Result<(), Fault> {
        let shape = &flight.plan.shape;
        let mut run = Run::default();
        let mut offset = 0;
        let copy = |run: &Run| {
            if run.bytes == 0 {
                return Ok(());
            }
            // SAFETY: as in `copy_run_in`; nobody looks at an output before the answer.
            unsafe {
                let from = self.output.address() + run.offset as u64;
                self.stream.copy_out(run.start, from, run.bytes)
            }
        };
        for piece in lock(&flight.write).iter_mut() {
            let bytes = piece.bytes();
            if bytes.is_empty() {
                continue;
            }
            let pinned = common
                .arena
                .as_ref()
                .is_some_and(|a| a.has(bytes.as_ptr(), bytes.len()));
            let to = if pinned {
                bytes.as_mut_ptr()
            } else {
                self.staged(self.sizes.data + offset)
            };
            if let Some(done) = run.add(to, offset, bytes.len()) {
                copy(&done)?;
            }
            offset += bytes.len();
        }
        copy(&run)?;
        let Some(digests) = &flight.plan.digests else {
            return Ok(());
        };
        let size = digests.function.bytes();
        let strips = digests.strips(shape);
        // SAFETY: the slot's own memory, of which `fits` has checked the sizes.
        unsafe {
            let leaves = self.staged(self.digests_at());
            self.stream
                .copy_out(leaves, self.digests.address(), shape.messages * size)?;
            if let Some(fan) = digests.tree {
                let roots = self.staged(self.digests_at() + self.sizes.digests);
                let from = self.level(levels(shape.per_strip, fan));
                self.stream.copy_out(roots, from, strips * size)?;
            }
        }
        Ok(())
    }

    /// Where the nodes of a level are: the blocks' digests, then two parts by turns.
    fn level(&self, level: usize) -> u64 {
        let part = if level == 0 { 0 } else { 1 + level % 2 };
        self.digests.address() + (part * self.sizes.digests) as u64
    }

    /// All rows of the product, a tile at a time.
    fn multiply(
        &self,
        common: &Common,
        coding: &Coding,
        strip: usize,
        stripes: usize,
        [low, high]: [u64; 2],
    ) -> Result<(), Fault> {
        let (k, rows) = (coding.k(), coding.rows());
        let whole = strip.is_multiple_of(16);
        let (tile, kernel) = if whole {
            let number = tile_for(rows);
            (TILES[number].0, common.kernels.tiles[number])
        } else {
            (TILE_ANY, common.kernels.any)
        };
        let chunk = k.min(SHARED_MAX / (20 * tile));
        let units = count(strip.div_ceil(16));
        let threads = units.next_multiple_of(32).min(PRODUCT_THREADS);
        let most = common.multiprocessors * 8;
        let blocks = units.div_ceil(threads).min(most);
        let grid = Grid {
            blocks,
            rows: count(stripes).min((most / blocks).max(1)),
            threads,
            shared: count(chunk * tile * 20),
        };
        for row0 in (0..rows).step_by(tile) {
            let mut product = Product {
                input: self.input.address(),
                output: self.output.address(),
                low,
                high,
                strip: strip as u64,
                k: count(k),
                rows: count(tile.min(rows - row0)),
                row0: count(row0),
                out_rows: count(rows),
                stripes: count(stripes),
                chunk: count(chunk),
            };
            // SAFETY: the kernel takes a `Product`; strips and coefficients lie inside the slot's memory.
            unsafe {
                self.stream
                    .launch(kernel, grid, &mut [argument(&mut product)])?
            };
        }
        Ok(())
    }

    /// Digests of the messages, then of the nodes above them.
    fn digest(
        &self,
        common: &Common,
        plan: &Plan,
        digests: &Digests,
        extra: &Extra,
    ) -> Result<(), Fault> {
        let shape = &plan.shape;
        let size = digests.function.bytes();
        let suffixes = self.extra.address();
        let key = match &digests.form {
            Form::Keyed { key, .. } => Some(key),
            _ => None,
        };
        let (count0, base0) = match digests.of {
            Of::Written => (shape.messages, self.output.address()),
            Of::Read | Of::Both => (shape.messages_read, self.input.address()),
        };
        let mut messages = Messages {
            base0,
            base1: self.output.address(),
            count0: count0 as u64,
            count: shape.messages as u64,
            strip: shape.strip as u64,
            suffix: suffixes + extra.suffixes as u64,
            block: count(digests.block.min(shape.strip)),
            per_strip: count(shape.per_strip),
            suffix_len: count(extra.each),
            suffix_stride: count(extra.each),
        };
        self.hash(common, digests.function, key, messages, self.level(0))?;
        let Some(fan) = digests.tree else {
            return Ok(());
        };
        let mut nodes = shape.per_strip;
        for level in 1..=levels(nodes, fan) {
            let above = nodes.div_ceil(fan);
            let all = (digests.strips(shape) * above) as u64;
            messages = Messages {
                base0: self.level(level - 1),
                base1: self.level(level - 1),
                count0: all,
                count: all,
                strip: (nodes * size) as u64,
                suffix: suffixes + ((level - 1) * LEVEL_BYTES) as u64,
                block: count((fan * size).min(nodes * size)),
                per_strip: count(above),
                suffix_len: if key.is_some() { 16 } else { 8 },
                suffix_stride: 0,
            };
            self.hash(common, digests.function, key, messages, self.level(level))?;
            nodes = above;
        }
        Ok(())
    }

    fn hash(
        &self,
        common: &Common,
        function: Function,
        key: Option<&[u8; 32]>,
        mut messages: Messages,
        mut out: u64,
    ) -> Result<(), Fault> {
        let Some(kernel) = common.kernels.digest(function) else {
            return Err(Fault::Wrong(function.name()));
        };
        if messages.count == 0 {
            return Ok(());
        }
        let number = u32::try_from(messages.count).unwrap_or(u32::MAX);
        let grid = if function == Function::Crc32c {
            // A warp for each message.
            let warps = number.min(8);
            Grid {
                blocks: number.div_ceil(warps).min(common.multiprocessors * 8),
                rows: 1,
                threads: warps * 32,
                shared: 5 * 256 * 4,
            }
        } else {
            // With few messages small blocks reach more multiprocessors.
            let threads = if number < common.multiprocessors * 256 {
                32
            } else {
                128
            };
            Grid {
                blocks: number.div_ceil(threads),
                rows: 1,
                threads,
                shared: 0,
            }
        };
        let mut key = Key::new(key);
        let mut tables = common.crc_tables.address();
        let third = if function == Function::Crc32c {
            argument(&mut tables)
        } else {
            argument(&mut key)
        };
        let mut arguments = [argument(&mut messages), argument(&mut out), third];
        // SAFETY: these are the kernel's arguments (the third only where there is one); messages, suffixes
        // and digests lie inside the slot's memory, as `fits` has checked.
        unsafe { self.stream.launch(kernel, grid, &mut arguments) }
    }

    /// Waits for the end of the stream and brings home what is not where it belongs. Gives also the
    /// nanoseconds it took.
    pub(crate) fn finish(&self, common: &Common, flight: &Flight) -> Result<(Found, f64), Fault> {
        self.stream.wait()?;
        let nanos = self.stream.elapsed()?;
        let shape = &flight.plan.shape;
        let mut offset = self.sizes.data;
        for piece in lock(&flight.write).iter_mut() {
            let bytes = piece.bytes();
            let pinned = common
                .arena
                .as_ref()
                .is_some_and(|a| a.has(bytes.as_ptr(), bytes.len()));
            if !pinned {
                // SAFETY: the stream has ended, so nobody writes here.
                bytes.copy_from_slice(unsafe { self.staged_bytes(offset, bytes.len()) });
            }
            offset += bytes.len();
        }
        let mut found = Found::default();
        if let Some(digests) = &flight.plan.digests {
            let size = digests.function.bytes();
            // SAFETY: as above.
            unsafe {
                found.digests = self
                    .staged_bytes(self.digests_at(), shape.messages * size)
                    .to_vec();
                if digests.tree.is_some() {
                    let at = self.digests_at() + self.sizes.digests;
                    found.roots = self.staged_bytes(at, digests.strips(shape) * size).to_vec();
                }
            }
        }
        Ok((found, nanos))
    }

    /// Nanoseconds of one thing alone on the stream, after once without looking.
    fn time(&self, mut act: impl FnMut() -> Result<(), Fault>) -> Result<f64, Fault> {
        act()?;
        self.stream.record(0)?;
        act()?;
        self.stream.record(1)?;
        self.stream.wait()?;
        Ok(self.stream.elapsed()?.max(1.0))
    }

    /// Nanoseconds to copy so many bytes (at most a slot's) in, and out.
    pub(crate) fn time_copies(&self, bytes: usize) -> Result<[f64; 2], Fault> {
        let bytes = bytes.min(self.sizes.data);
        // SAFETY: the slot's own memory, whose content does not matter.
        let into = self.time(|| unsafe {
            self.stream
                .copy_in(self.input.address(), self.staged(0), bytes)
        })?;
        let out = self.staged(self.sizes.data);
        // SAFETY: as above.
        let back =
            self.time(|| unsafe { self.stream.copy_out(out, self.output.address(), bytes) })?;
        Ok([into, back])
    }

    /// Nanoseconds of the product kernel on stripes that fill `bytes` of input.
    pub(crate) fn time_product(
        &self,
        common: &Common,
        coding: &Coding,
        strip: usize,
        stripes: usize,
    ) -> Result<f64, Fault> {
        let tables = [
            self.extra.address(),
            self.extra.address() + coding.low.len() as u64,
        ];
        self.time(|| self.multiply(common, coding, strip, stripes, tables))
    }

    /// Nanoseconds of a digest kernel on messages of `len` bytes in the input.
    pub(crate) fn time_digest(
        &self,
        common: &Common,
        function: Function,
        number: usize,
        len: usize,
    ) -> Result<f64, Fault> {
        let messages = Messages {
            base0: self.input.address(),
            base1: self.input.address(),
            count0: number as u64,
            count: number as u64,
            strip: (number * len) as u64,
            suffix: self.extra.address(),
            block: count(len),
            per_strip: count(number),
            suffix_len: 0,
            suffix_stride: 0,
        };
        self.time(|| self.hash(common, function, None, messages, self.level(0)))
    }

    pub(crate) fn sizes(&self) -> Sizes {
        self.sizes
    }
}

impl Sizes {
    /// How many messages of `len` bytes with digests of `size` bytes fit.
    pub(crate) fn messages(&self, len: usize, size: usize) -> usize {
        (self.data / len).min(self.digests / size).max(1)
    }

    pub(crate) fn data(&self) -> usize {
        self.data
    }
}

/// Bytes that follow each other on both sides.
#[derive(Clone, Copy)]
struct Run {
    start: *mut u8,
    offset: usize,
    bytes: usize,
}

impl Default for Run {
    fn default() -> Run {
        Run {
            start: std::ptr::null_mut(),
            offset: 0,
            bytes: 0,
        }
    }
}

impl Run {
    /// Adds a piece; the run before it, if the piece begins a new one.
    fn add(&mut self, start: *mut u8, offset: usize, bytes: usize) -> Option<Run> {
        if self.bytes > 0 && self.start.wrapping_add(self.bytes) == start {
            self.bytes += bytes;
            return None;
        }
        let before = std::mem::replace(
            self,
            Run {
                start,
                offset,
                bytes,
            },
        );
        (before.bytes > 0).then_some(before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_cover_all_rows_with_little_left_over() {
        for rows in 1..=254 {
            let tile = TILES[tile_for(rows)].0;
            let made = rows.div_ceil(tile) * tile;
            assert!(
                made >= rows && rows.div_ceil(tile) == rows.div_ceil(10),
                "{rows}"
            );
        }
        assert_eq!(TILES[tile_for(20)].0, 10);
        assert_eq!(TILES[tile_for(12)].0, 6);
    }

    #[test]
    fn a_tree_has_as_many_levels_as_it_takes() {
        assert_eq!(levels(1, 2), 0);
        assert_eq!(levels(2, 2), 1);
        assert_eq!(levels(17, 4), 3);
    }
}
