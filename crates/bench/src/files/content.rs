//! What is written to the files, and how well content compresses.
//!
//! **Invariants**: content follows from seed, pass, file and block, and no two blocks are alike, so that neither a
//! compressor nor deduplication makes it smaller, and a read that gives old or foreign bytes is noticed.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::Write as _;

use flate2::Compression;
use flate2::write::DeflateEncoder;

/// Bytes that have a start of their own.
pub const BLOCK: usize = 4096;

/// What a file holds.
#[derive(Clone, Copy, Debug)]
pub struct Content {
    /// Seed of the run.
    pub seed: u64,
    /// How often the file was written.
    pub pass: u64,
    /// Which file.
    pub file: u64,
    /// Percent of each block that are zeros.
    pub zeros: u8,
}

/// A number that looks random, one to one.
pub(super) fn mix(value: u64) -> u64 {
    let z = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

impl Content {
    fn start(&self, block: u64) -> u64 {
        let words = [self.seed, self.pass, self.file, block];
        words.into_iter().fold(0, |state: u64, word| {
            mix(state.wrapping_add(0x9E37_79B9_7F4A_7C15) ^ word)
        })
    }

    /// Fills `out`, which lies at `offset`; both are whole blocks.
    pub fn fill(&self, offset: u64, out: &mut [u8]) {
        let random = BLOCK - BLOCK * usize::from(self.zeros.min(100)) / 100;
        for (index, block) in (offset / BLOCK as u64..).zip(out.chunks_mut(BLOCK)) {
            let mut state = self.start(index);
            let (head, tail) = block.split_at_mut(random.min(block.len()));
            for word in head.chunks_mut(8) {
                word.copy_from_slice(&mix(state).to_le_bytes()[..word.len()]);
                state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
            }
            tail.fill(0);
        }
    }

    /// The offset of the first block that does not begin as it was written.
    pub fn wrong(&self, offset: u64, read: &[u8]) -> Option<u64> {
        if self.zeros >= 100 {
            return None;
        }
        let blocks = (offset / BLOCK as u64..).zip(read.chunks(BLOCK));
        let wrong = |(index, block): &(u64, &[u8])| {
            let word = mix(self.start(*index)).to_le_bytes();
            let length = block
                .len()
                .min(8)
                .min(BLOCK - BLOCK * usize::from(self.zeros) / 100);
            block[..length] != word[..length]
        };
        let mut blocks = blocks;
        blocks.find(wrong).map(|(index, _)| index * BLOCK as u64)
    }
}

/// How many times smaller content becomes: by a compressor of a short window, times that of equal blocks, which
/// deduplication or a compressor of a long window finds. 1 for nothing.
pub fn compression(content: &[u8]) -> f64 {
    if content.is_empty() {
        return 1.0;
    }
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::fast());
    let packed = encoder
        .write_all(content)
        .and_then(|()| encoder.finish())
        .map_or(content.len(), |packed| packed.len());
    let hash = |block: &[u8]| {
        let mut hasher = DefaultHasher::new();
        block.hash(&mut hasher);
        hasher.finish()
    };
    let blocks = content.len().div_ceil(BLOCK);
    let distinct: BTreeSet<u64> = content.chunks(BLOCK).map(hash).collect();
    let packing = content.len() as f64 / packed.max(1) as f64;
    packing.max(1.0) * blocks as f64 / distinct.len() as f64
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    const CONTENT: Content = Content {
        seed: 7,
        pass: 1,
        file: 2,
        zeros: 0,
    };

    fn filled(content: Content, blocks: usize) -> Vec<u8> {
        let mut out = vec![0; blocks * BLOCK];
        content.fill(0, &mut out);
        out
    }

    #[test]
    fn content_does_not_compress_and_other_passes_differ() {
        let all = filled(CONTENT, 64);
        let ratio = compression(&all);
        assert!(ratio < 1.01, "{ratio}");
        let mut part = vec![0; 2 * BLOCK];
        CONTENT.fill(5 * BLOCK as u64, &mut part);
        assert_eq!(part, all[5 * BLOCK..7 * BLOCK]);
        let other = Content { pass: 2, ..CONTENT };
        assert_eq!(CONTENT.wrong(0, &all), None);
        assert_eq!(other.wrong(0, &all), Some(0));
        let mut torn = all;
        torn[9 * BLOCK] ^= 1;
        assert_eq!(CONTENT.wrong(0, &torn), Some(9 * BLOCK as u64));
    }

    #[test]
    fn zeros_equal_blocks_and_half_zeros_are_seen() {
        assert!(compression(&vec![0; 64 * BLOCK]) > 100.0);
        let half = filled(
            Content {
                zeros: 50,
                ..CONTENT
            },
            64,
        );
        let ratio = compression(&half);
        assert!((1.9..2.1).contains(&ratio), "{ratio}");
        assert_eq!(
            Content {
                zeros: 50,
                ..CONTENT
            }
            .wrong(0, &half),
            None
        );
        // One record of 64 KiB again and again: too far apart for the compressor's window.
        let record = filled(CONTENT, 16);
        let ratio = compression(&record.repeat(8));
        assert!(ratio > 7.0, "{ratio}");
        assert!((compression(&[]) - 1.0).abs() < 1e-9);
    }
}
