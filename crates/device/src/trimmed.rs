//! Sparse bytes in memory, by block, each without the zeros at its end: what a modelled device holds. A load whose
//! blocks differ in their first bytes only takes little room for much data, and so does their parity, which is zero
//! where all of them are.
//!
//! Invariants: a block that is not there is zero; no block that is kept ends in a zero.

use std::collections::BTreeMap;

use ashlar_rt::BLOCK;

use crate::sparse::{pieces, remove_regions};

/// Blocks of a region: what one entry of the map holds.
const REGION: u64 = 16;

#[derive(Debug, Default)]
pub(crate) struct Trimmed {
    regions: BTreeMap<u64, Box<[Box<[u8]>; REGION as usize]>>,
}

/// Without the zeros at the end.
fn trim(bytes: &[u8]) -> &[u8] {
    let words = bytes.rchunks(64).take_while(|c| c.iter().all(|b| *b == 0));
    let bytes = &bytes[..bytes.len() - words.map(<[u8]>::len).sum::<usize>()];
    let end = bytes.iter().rposition(|b| *b != 0).map_or(0, |at| at + 1);
    &bytes[..end]
}

impl Trimmed {
    fn block(&self, block: u64) -> &[u8] {
        let region = self.regions.get(&(block / REGION));
        region.map_or(&[], |blocks| &blocks[(block % REGION) as usize])
    }

    pub(crate) fn read(&self, offset: u64, out: &mut [u8]) {
        for (block, start, range) in pieces(BLOCK, offset, out.len()) {
            let out = &mut out[range];
            let kept = self.block(block);
            let there = kept.len().saturating_sub(start).min(out.len());
            let (head, tail) = out.split_at_mut(there);
            if there > 0 {
                head.copy_from_slice(&kept[start..start + there]);
            }
            tail.fill(0);
        }
    }

    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) {
        for (block, start, range) in pieces(BLOCK, offset, data.len()) {
            let data = &data[range];
            if data.len() == BLOCK {
                self.set(block, trim(data));
                continue;
            }
            let mut whole = [0; BLOCK];
            let kept = self.block(block);
            whole[..kept.len()].copy_from_slice(kept);
            whole[start..start + data.len()].copy_from_slice(data);
            self.set(block, trim(&whole));
        }
    }

    fn set(&mut self, block: u64, bytes: &[u8]) {
        let (region, at) = (block / REGION, (block % REGION) as usize);
        if bytes.is_empty() && !self.regions.contains_key(&region) {
            return;
        }
        let kept = &mut self.regions.entry(region).or_default()[at];
        if kept.len() == bytes.len() {
            kept.copy_from_slice(bytes);
        } else {
            *kept = bytes.into();
        }
    }

    /// Makes the range zero and frees whole regions of it.
    pub(crate) fn clear(&mut self, offset: u64, length: u64) {
        let zeros = [0; BLOCK];
        let region = REGION * BLOCK as u64;
        for edge in remove_regions(&mut self.regions, region, offset, length) {
            let length = usize::try_from(edge.end - edge.start).expect("inside a region");
            for (block, start, range) in pieces(BLOCK, edge.start, length) {
                self.write(block * BLOCK as u64 + start as u64, &zeros[..range.len()]);
            }
        }
    }

    /// Bytes that are kept.
    pub(crate) fn bytes(&self) -> u64 {
        let blocks = self.regions.values().flat_map(|region| region.iter());
        blocks.map(|bytes| bytes.len() as u64).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_plain_bytes() {
        const SIZE: usize = 100 * BLOCK;
        let (mut trimmed, mut plain) = (Trimmed::default(), vec![0u8; SIZE]);
        let mut state = 1u64;
        let mut below = |bound: usize| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(99);
            usize::try_from(state >> 33).expect("small") % bound
        };
        for round in 0..4000 {
            let unit = [BLOCK, 512][below(2)];
            let start = below(SIZE / unit) * unit;
            let len = (below(40) * unit).min(SIZE - start);
            let range = start..start + len;
            match below(3) {
                0 => {
                    // Some blocks end in zeros.
                    for block in plain[range.clone()].chunks_mut(unit) {
                        let end = below(unit + 1);
                        block.fill(0);
                        block[..end].fill(round as u8);
                    }
                    trimmed.write(start as u64, &plain[range]);
                }
                1 => {
                    plain[range].fill(0);
                    trimmed.clear(start as u64, len as u64);
                }
                _ => {
                    let mut out = vec![1; len];
                    trimmed.read(start as u64, &mut out);
                    assert!(out == plain[range], "round {round}");
                }
            }
        }
        trimmed.clear(0, SIZE as u64);
        assert_eq!(trimmed.bytes(), 0);
        trimmed.write(0, &[0; 16 * BLOCK]);
        assert!(trimmed.bytes() == 0 && !trimmed.regions.contains_key(&0));
        let mut block = [0; BLOCK];
        block[63] = 1;
        trimmed.write(BLOCK as u64, &block);
        assert_eq!(trimmed.bytes(), 64);
    }
}
