//! The root: the one record that makes a checkpoint. It names every tree, the journal's cuts and epochs.
//!
//! Invariants: roots are ordered by (generation, epoch, number); a root is used or refused, never an
//! older one in its stead; what it names was flushed before it was written.

use crate::node::{INNER_ENTRY, NodeEntry};
use crate::wire::{Reader, Writer, seal, unseal};
use crate::{FormatError, geometry::ROOT_BYTES};

const MAGIC: &[u8; 8] = b"ASHROOT1";

/// A tree of fixed-size nodes below one entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct TreeRoot {
    /// The top node; `None` is an empty tree.
    pub top: Option<NodeEntry>,
    /// Bytes of payload in its leaves.
    pub bytes: u64,
}

impl TreeRoot {
    pub(crate) fn write(&self, w: &mut Writer) {
        let mut entry = [0; INNER_ENTRY];
        NodeEntry::write(self.top.as_ref(), &mut entry);
        w.bytes(&entry).u64(self.bytes);
    }

    pub(crate) fn read(r: &mut Reader<'_>) -> Result<TreeRoot, FormatError> {
        Ok(TreeRoot {
            top: NodeEntry::read(r.bytes(INNER_ENTRY)?)?,
            bytes: r.u64()?,
        })
    }
}

/// A position in a journal ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct RingPosition {
    /// Records of this ring before it, since the array was created.
    pub count: u64,
    /// Bytes of this ring before it, since the array was created (modulo the ring's size: the offset).
    pub bytes: u64,
}

/// One journal epoch: a run of sequences with one device set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Epoch {
    /// Its number, from 1 up.
    pub number: u64,
    /// Random: two histories with the same number differ here.
    pub id: [u8; 16],
    /// Its first sequence.
    pub first: u64,
    /// Once closed, one past its last sequence.
    pub end: Option<u64>,
    /// Parity columns of its records.
    pub m: u16,
    /// Members that are not in its device set.
    pub excluded: Vec<u16>,
}

/// Everything a root says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    /// The membership generation it was written under.
    pub generation: u64,
    /// Which one of that number.
    pub generation_id: [u8; 16],
    /// Counts roots, from 1.
    pub number: u64,
    /// The checkpoint that it made, or whose trees it goes on from: pages of the slot tables carry this number. No two
    /// checkpoints have the same, whether they ended or not.
    pub checkpoint: u64,
    /// Whether the array was exported: its trees hold every delta, so that a missing journal device is no
    /// loss. Rows of courses without a summary still stand in the journal.
    pub clean: bool,
    /// The next segment number.
    pub next_segment: u64,
    /// The next volume or tree number.
    pub next_tree: u32,
    /// The oldest sequence that replay needs.
    pub cut: u64,
    /// A segment whose `Open` entry has a lower sequence and that liveness does not name was freed.
    pub imaged: u64,
    /// Where the delta ring's needed part begins.
    pub delta_tail: RingPosition,
    /// Where the data ring's needed part begins, as of this root.
    pub data_tail: RingPosition,
    /// Epochs still needed, oldest first; the last one is open (or, if clean, will be the last closed).
    pub epochs: Vec<Epoch>,
    /// Volumes, snapshots, properties, tasks.
    pub catalog: TreeRoot,
    /// Live bitmaps by segment.
    pub liveness: TreeRoot,
    /// Old place to present place, for moved blocks that trees share (empty so far).
    pub forwarding: TreeRoot,
    /// Dead lists (empty so far).
    pub dead: TreeRoot,
}

impl Root {
    /// The order of roots.
    pub fn order(&self) -> (u64, u64, u64) {
        (
            self.generation,
            self.epochs.last().map_or(0, |e| e.number),
            self.number,
        )
    }

    /// The stored bytes.
    ///
    /// # Panics
    /// If the epochs do not fit; the engine merges before there are that many.
    pub fn encode(&self, array: &[u8; 16]) -> Vec<u8> {
        let mut w = Writer::new();
        w.bytes(MAGIC)
            .u64(self.generation)
            .bytes(&self.generation_id)
            .u64(self.number)
            .u64(self.checkpoint)
            .u8(u8::from(self.clean));
        w.u64(self.next_segment)
            .u32(self.next_tree)
            .u64(self.cut)
            .u64(self.imaged);
        for ring in [self.delta_tail, self.data_tail] {
            w.u64(ring.count).u64(ring.bytes);
        }
        for tree in [&self.catalog, &self.liveness, &self.forwarding, &self.dead] {
            tree.write(&mut w);
        }
        let no_records_named_and_no_gaps = [0; 4];
        w.bytes(&no_records_named_and_no_gaps);
        w.u16(u16::try_from(self.epochs.len()).expect("few epochs"));
        for epoch in &self.epochs {
            let no_arena = [0; 17];
            w.u64(epoch.number)
                .bytes(&epoch.id)
                .u64(epoch.first)
                .u64(epoch.end.unwrap_or(0))
                .u16(epoch.m)
                .bytes(&no_arena);
            w.u16(u16::try_from(epoch.excluded.len()).expect("fewer than the members"));
            for member in &epoch.excluded {
                w.u16(*member);
            }
        }
        let size = usize::try_from(ROOT_BYTES).expect("16 KiB");
        let mut bytes = w.padded(size);
        seal(array, &mut bytes);
        bytes
    }

    /// Bytes its epochs take; the engine keeps this below [`MAX_EPOCH_BYTES`].
    pub fn epoch_bytes(&self) -> usize {
        self.epochs
            .iter()
            .map(|e| EPOCH_BYTES + 2 * e.excluded.len())
            .sum()
    }

    /// Reads a root of array `array`.
    pub fn decode(array: &[u8; 16], bytes: &[u8]) -> Result<Root, FormatError> {
        if bytes.len() as u64 != ROOT_BYTES || !bytes.starts_with(MAGIC) {
            return Err(FormatError::Magic);
        }
        let mut r = Reader::new(unseal(array, bytes)?);
        r.bytes(8)?;
        let (generation, generation_id) = (r.u64()?, r.array()?);
        let (number, checkpoint, clean) = (r.u64()?, r.u64()?, r.u8()? != 0);
        let (next_segment, next_tree, cut, imaged) = (r.u64()?, r.u32()?, r.u64()?, r.u64()?);
        let delta_tail = RingPosition {
            count: r.u64()?,
            bytes: r.u64()?,
        };
        let data_tail = RingPosition {
            count: r.u64()?,
            bytes: r.u64()?,
        };
        let catalog = TreeRoot::read(&mut r)?;
        let liveness = TreeRoot::read(&mut r)?;
        let forwarding = TreeRoot::read(&mut r)?;
        let dead = TreeRoot::read(&mut r)?;
        // Records named by the root and gaps in the numbers of checkpoints come with features that are not known here.
        if r.u32()? != 0 {
            return Err(FormatError::Value);
        }
        let mut epochs = Vec::new();
        for _ in 0..r.u16()? {
            let (number, id) = (r.u64()?, r.array()?);
            let (first, end, m) = (r.u64()?, r.u64()?, r.u16()?);
            r.bytes(17)?;
            let excluded = (0..r.u16()?).map(|_| r.u16()).collect::<Result<_, _>>()?;
            epochs.push(Epoch {
                number,
                id,
                first,
                end: (end > 0).then_some(end),
                m,
                excluded,
            });
        }
        Ok(Root {
            generation,
            generation_id,
            number,
            checkpoint,
            clean,
            next_segment,
            next_tree,
            cut,
            imaged,
            delta_tail,
            data_tail,
            epochs,
            catalog,
            liveness,
            forwarding,
            dead,
        })
    }
}

/// Bytes of an epoch that excludes nobody.
const EPOCH_BYTES: usize = 61;
/// What the epochs of one root may take.
pub const MAX_EPOCH_BYTES: usize = 15_000;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::node::Place;

    #[test]
    fn a_root_survives_its_bytes() {
        let top = NodeEntry {
            place: Place {
                segment: 3,
                block: 4,
            },
            merged: 0,
            digest: [1; 16],
            content: [2; 32],
        };
        let root = Root {
            generation: 2,
            generation_id: [9; 16],
            number: 30,
            checkpoint: 1 << 33,
            clean: true,
            next_segment: 99,
            next_tree: 7,
            cut: 1000,
            imaged: 1001,
            delta_tail: RingPosition { count: 5, bytes: 6 },
            data_tail: RingPosition { count: 7, bytes: 8 },
            epochs: vec![
                Epoch {
                    number: 1,
                    id: [3; 16],
                    first: 1,
                    end: Some(50),
                    m: 2,
                    excluded: vec![],
                },
                Epoch {
                    number: 2,
                    id: [4; 16],
                    first: 50,
                    end: None,
                    m: 2,
                    excluded: vec![3, 9],
                },
            ],
            catalog: TreeRoot {
                top: Some(top),
                bytes: 1,
            },
            liveness: TreeRoot::default(),
            forwarding: TreeRoot::default(),
            dead: TreeRoot::default(),
        };
        let mut bytes = root.encode(&[5; 16]);
        assert_eq!(Root::decode(&[5; 16], &bytes).unwrap(), root);
        assert_eq!(root.order(), (2, 2, 30));
        let alone = root.clone();
        let more = Root {
            epochs: [root.epochs.clone(), root.epochs.clone()].concat(),
            ..root
        };
        let used = |root: &Root| {
            let bytes = root.encode(&[5; 16]);
            let body = &bytes[..bytes.len() - 32];
            body.iter().rposition(|byte| *byte != 0).unwrap()
        };
        let (one, two) = (used(&alone), used(&more));
        assert_eq!(two - one, more.epoch_bytes() - alone.epoch_bytes());
        bytes[600] ^= 1;
        assert_eq!(Root::decode(&[5; 16], &bytes), Err(FormatError::Digest));
    }
}
