//! Which kernels a job takes, with which arguments.
//!
//! **Invariants**: every address given to a kernel lies inside the slot's memory, for the lengths that
//! [`Slot::fits`] has let through.

#![expect(unsafe_code, reason = "kernels on device memory")]

use std::ffi::c_void;

use super::driver::Grid;
use super::kernels::{Key, Messages, Product, SUFFIX_VARIES, TILE_ANY, TILES};
use super::parts::{Extra, LEVEL_BYTES, levels};
use super::slot::{Common, Slot};
use crate::job::{Coding, Digests, Form, Of, Plan};
use crate::{Fault, Function};

/// Shared memory that a block may have without asking for more.
const SHARED_MAX: usize = 48 << 10;
/// Most threads of a block of the product kernels; each makes 16 bytes.
const PRODUCT_THREADS: u32 = 256;

/// Number and kernel of the tile for so many rows: few tiles, little of them empty.
fn tile_for(rows: usize) -> usize {
    let widest = TILES[TILES.len() - 1].0;
    let wanted = rows.div_ceil(rows.div_ceil(widest));
    TILES
        .iter()
        .position(|(rows, _)| *rows >= wanted)
        .unwrap_or(TILES.len() - 1)
}

pub(super) fn count(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

fn argument<T>(value: &mut T) -> *mut c_void {
    std::ptr::from_mut(value).cast()
}

impl Slot {
    /// Where the nodes of a level are: the blocks' digests, then two parts by turns.
    pub(super) fn level(&self, level: usize) -> u64 {
        let part = if level == 0 { 0 } else { 1 + level % 2 };
        self.digests.address() + (part * self.sizes.digests) as u64
    }

    /// All rows of the product, a tile at a time.
    pub(super) fn multiply(
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
    pub(super) fn digest(
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
            suffix_len: if extra.varying {
                SUFFIX_VARIES
            } else {
                count(extra.each)
            },
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

    pub(super) fn hash(
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
}
