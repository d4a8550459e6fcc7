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

use std::sync::Arc;

use super::driver::{Context, DeviceMemory, PinnedMemory, Stream};
use super::kernels::Kernels;
use super::parts::{Extra, LEVELS, Run, Sizes, levels};
use crate::cpu::Found;
use crate::flight::{Flight, lock};
use crate::job::{MESSAGE_MAX, Plan};
use crate::region::Arena;
use crate::{Fault, Function};

/// What all slots of a device use.
pub(crate) struct Common {
    pub(crate) kernels: Kernels,
    pub(crate) crc_tables: DeviceMemory,
    pub(crate) arena: Option<Arc<Arena>>,
    pub(crate) multiprocessors: u32,
}

pub(crate) struct Slot {
    pub(super) stream: Stream,
    pub(super) input: DeviceMemory,
    pub(super) output: DeviceMemory,
    pub(super) digests: DeviceMemory,
    pub(super) extra: DeviceMemory,
    /// Input, output, extra, digests, roots.
    staging: PinnedMemory,
    pub(super) sizes: Sizes,
}

/// A piece was measured when the job was made; one that has grown since must not reach past the others.
fn within(offset: usize, piece: &[u8], end: usize) -> Result<(), Fault> {
    if piece.len() > end - offset {
        return Err(Fault::Piece);
    }
    Ok(())
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

    pub(super) fn staged(&self, offset: usize) -> *mut u8 {
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
            within(offset, bytes, plan.shape.read * plan.shape.strip)?;
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
            within(offset, bytes, shape.written * shape.strip)?;
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

    /// Waits for the end of the stream and brings home what is not where it belongs. Gives also the
    /// nanoseconds it took.
    pub(crate) fn finish(&self, common: &Common, flight: &Flight) -> Result<(Found, f64), Fault> {
        self.stream.wait()?;
        let nanos = self.stream.elapsed()?;
        let shape = &flight.plan.shape;
        let mut offset = self.sizes.data;
        for piece in lock(&flight.write).iter_mut() {
            let bytes = piece.bytes();
            let end = self.sizes.data + shape.written * shape.strip;
            within(offset, bytes, end)?;
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

    pub(crate) fn sizes(&self) -> Sizes {
        self.sizes
    }
}
