//! Writes from inside: blocks that the cleaner moves, and records that an import replays.
//!
//! Invariants: journalled deltas are adopted in the order of the journal; a move applies only to the place
//! that it came from (R8).

use std::rc::Rc;

use ashlar_block::VolumeError;
use ashlar_digest::Kind;
use ashlar_format::slot::SegmentKind;
use ashlar_format::{SegmentGeometry, SegmentNumber};

use super::Shard;
use super::write::By;
use crate::map::delta::{State, Version, What};
use crate::planted::{self, Bug};
use crate::protocol::{Adopted, Move, Moved};
use crate::segment::{Column, Pinned, Segment};

/// A stand-in, outside the table, for a segment that was freed since a stripe of it was recorded.
fn gone_segment(number: SegmentNumber) -> Pinned {
    let geometry = SegmentGeometry {
        k: 1,
        m: 0,
        strip_blocks: 1,
        slot_blocks: 8,
    };
    let columns = vec![Column::MISSING];
    Segment::create(number, SegmentKind::Data, geometry, 0, columns, u32::MAX)
}

impl Shard {
    /// Rewrites blocks, each unless it is no longer where it was moved from, until there is no room.
    pub(super) async fn relocate(self: &Rc<Self>, moves: Vec<Move>) -> Moved {
        let mut moved = Moved::default();
        for m in moves {
            let Ok(shape) = self.shape(m.tree) else {
                continue;
            };
            // Of a leaf that is lost nothing is moved: what was moved could not be merged (#178). Which leaves are is
            // seen when they are merged; they are not read for this.
            let at = self.partitioning(shape).locate(m.address);
            let leaf = (m.tree, at.partition, at.leaf);
            if self.merging.lost_leaves.borrow().contains(&leaf) {
                let entry = (self.store).leaf_entry(m.tree, at.partition, at.leaf, at.slot);
                if entry.await.is_err() {
                    continue;
                }
            }
            match self
                .place_block(shape, m.address, &m.bytes, None, By::Move(&m))
                .await
            {
                Ok(true) => moved.bytes += m.bytes.len() as u64,
                Err(VolumeError::NoSpace) => {
                    moved.refused = true;
                    break;
                }
                Ok(false) | Err(_) => {} // it has changed, or its volume is going
            }
        }
        moved
    }

    pub(super) async fn adopt(self: &Rc<Self>, delta: Adopted) {
        match delta {
            Adopted::Block {
                tree,
                address,
                segment,
                block,
                digest,
                algorithm,
                birth,
                from,
                sequence,
            } => {
                let stamp = self.next_stamp();
                // A segment freed since: its deltas are replaced by later ones, which may be moves that say where from.
                let known = self.core.segment(segment);
                let what = What::Block {
                    segment: known.unwrap_or_else(|| gone_segment(segment)),
                    block,
                    digest,
                    algorithm,
                    birth,
                    from,
                };
                let mut deltas = self.deltas.borrow_mut();
                let what = match deltas.moved_onto(tree, address, &what) {
                    Some(onto) => onto,
                    None if from.is_some() && deltas.lookup(tree, address).stamp() != 0 => return,
                    None => what,
                };
                deltas.push(
                    tree,
                    address,
                    Version {
                        stamp,
                        what,
                        state: State::Recorded(sequence),
                        journaled: false,
                    },
                );
                deltas.recorded(tree, address, stamp, sequence);
            }
            Adopted::Unmapped {
                tree,
                first,
                count,
                part,
                sequence,
            } => {
                let Ok(shape) = self.shape(tree) else { return };
                let unmapped = self.add_unmapped(shape, first, count, part);
                self.deltas
                    .borrow_mut()
                    .unmapped_recorded(unmapped.stamp, sequence);
            }
            Adopted::Data {
                tree,
                address,
                algorithm,
                digest,
                bytes,
            } => {
                let Ok(shape) = self.shape(tree) else { return };
                let kept = Kind::from_tag(algorithm)
                    .map(|kind| self.core.identity.block_digest(kind, tree, address, &bytes));
                if kept != Some(digest) || planted::on(Bug::DataNotReplayed) {
                    return; // the record's hash covers these bytes, so this cannot be: do not invent data
                }
                while let Err(VolumeError::NoSpace) = self
                    .place_block(shape, address, &bytes, None, By::Journal)
                    .await
                {
                    self.core.progress.wait().await;
                }
            }
        }
    }
}
