//! Bytes that mean nothing: no panic, whatever they are, and the same answer every time.

use super::forge::{change_node, look, seal};
use super::{End, Images, array};
use crate::wire::BLOCK;

/// A generator for tests.
struct Random(u64);

impl Random {
    fn draw(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: usize) -> usize {
        (self.draw() % end as u64) as usize
    }

    /// Changes some bytes: bits, ones, zeros, or anything.
    fn spoil(&mut self, bytes: &mut [u8]) {
        for _ in 0..=self.below(4) {
            let at = self.below(bytes.len());
            let run = (1 + self.below(8)).min(bytes.len() - at);
            for byte in &mut bytes[at..at + run] {
                *byte = match self.draw() % 4 {
                    0 => 0,
                    1 => 0xFF,
                    2 => *byte ^ 1 << (self.draw() % 8),
                    _ => self.draw() as u8,
                };
            }
        }
    }
}

/// Every sealed structure of the array: device, offset, bytes, context of its seal.
fn sealed(images: &Images) -> Vec<(usize, usize, usize, Vec<u8>)> {
    let mut all = Vec::new();
    let array = look(images, |array, _| array.id).to_vec();
    for (device, image) in images.0.iter().enumerate() {
        let areas = [0, image.len() - (64 << 10)];
        all.extend(areas.map(|at| (device, at, BLOCK, b"ashlar superblock".to_vec())));
        for (at, block) in image.chunks(BLOCK).enumerate() {
            let length = match block.get(..8) {
                Some(b"ASHROOT1") => 16_384,
                Some(b"ASHTABLE" | b"ASHSLOT1" | b"ASHSUMRY") => BLOCK,
                Some(b"ASHJRNL1") => 1024,
                _ => continue,
            };
            all.push((device, at * BLOCK, length, array.clone()));
        }
    }
    all
}

#[test]
fn no_bytes_make_it_panic() {
    let random = &mut Random(0x1234_5678_9ABC_DEF1);
    for end in [End::Exported, End::Crashed] {
        let whole = array("ec4+2", 6, end);
        let structures = sealed(&whole);
        for round in 0..80 {
            let mut images = whole.clone();
            for _ in 0..=random.below(12) {
                // A structure that is sealed again, or any block.
                let (device, at, length, context) = &structures[random.below(structures.len())];
                let bytes = &mut images.0[*device][*at..*at + *length];
                random.spoil(&mut bytes[8..*length - 32]);
                if round % 3 > 0 {
                    seal(context, bytes);
                }
                let device = &mut images.0[random.below(6)];
                let at = random.below(device.len() / BLOCK) * BLOCK;
                random.spoil(&mut device[at..at + BLOCK]);
            }
            if random.below(4) == 0 {
                let device = random.below(6);
                let length = random.below(images.0[device].len());
                images.0[device].truncate(length);
            }
            let report = images.verify();
            let _ = (report.to_string(), report.to_json(&[]));
        }
    }
}

#[test]
fn no_node_makes_it_panic() {
    let random = &mut Random(0x0BAD_CAFE_1234_5671);
    let whole = array("ec4+2", 6, End::Exported);
    for tree in [1, 2, 16, 17] {
        for _ in 0..40 {
            let mut images = whole.clone();
            let level = random.below(2) as u8;
            let nodes = look(&images, |_, nodes| nodes.to_vec());
            let of_tree = |n: &super::forge::Node| n.at.tree == tree;
            let level = if nodes.iter().any(|n| of_tree(n) && n.at.level == level) {
                level
            } else {
                0
            };
            change_node(
                &mut images,
                |n| of_tree(n) && n.at.level == level,
                |bytes| random.spoil(bytes),
            );
            let changed = images.0 != whole.0;
            assert_eq!(images.verify().is_well(), !changed);
        }
    }
}

#[test]
fn the_same_bytes_give_the_same_answer() {
    let images = array("ec4+2", 6, End::Crashed);
    assert_eq!(images.verify(), images.verify());
}
