//! Reads: finds a volume block and returns its verified bytes.
//!
//! Invariants:
//! - Deltas are asked before the map, and what neither knows is zeros.
//! - No byte is given that does not match its digest; a segment freed meanwhile is looked up again (R12).

use std::rc::Rc;

use ashlar_block::VolumeError;
use ashlar_digest::Kind;
use ashlar_format::BLOCK;
use ashlar_format::node::{LEAF_ENTRIES, Place};
use ashlar_rt::Buf;

use super::{Shard, algorithm_of};
use crate::map::delta::{Lookup, State, What};
use crate::planted::{self, Bug};
use crate::segment::coder::begin;
use crate::segment::plan::{How, Span, Unit};
use crate::segment::read::{fetch, read_unit, usable_place};
use crate::segment::table::Core;
use crate::segment::{Column, Pinned, Segment};
use crate::space::shape::VolumeShape;

/// A volume block's bytes, or where they are.
pub(super) enum Found {
    Zero,
    Bytes(Buf),
    Place {
        segment: Pinned,
        block: u32,
        digest: [u8; 16],
        algorithm: u8,
    },
}

/// A volume block as it has just been read: it does not match its digest.
struct Wrong<'a> {
    segment: u64,
    block: u32,
    /// Where its column lay.
    place: Column,
    bytes: &'a [u8],
}

impl Wrong<'_> {
    /// Whether it would be read from there again.
    fn is_of(&self, core: &Core, segment: &Segment, block: u32) -> bool {
        let column = usize::from(segment.geometry.locate(block).1);
        (self.segment, self.block) == (segment.number, block)
            && usable_place(core, segment, column) == Some(self.place)
    }
}

/// What deltas say of a block.
enum InDeltas {
    Found(Found),
    /// It was moved from a place, which the map may still name, to this segment and block.
    Moved(Place, Pinned, u32),
    /// The map says where it is.
    Nothing,
}

fn found_in_deltas(lookup: Lookup, pieces: u32) -> InDeltas {
    let version = match lookup {
        Lookup::Unmapped(_) => return InDeltas::Found(Found::Zero),
        Lookup::Unknown => return InDeltas::Nothing,
        Lookup::Version(version) => version,
    };
    let What::Block {
        segment,
        block,
        digest,
        algorithm,
        from,
        ..
    } = version.what
    else {
        return InDeltas::Nothing;
    };
    match (from, version.state) {
        (None, State::Open(stripe)) => {
            let mut buf = Buf::zeroed(pieces as usize * BLOCK);
            stripe.copy(block - stripe.block_in_segment(0), pieces, &mut buf);
            InDeltas::Found(Found::Bytes(buf))
        }
        (None, _) => InDeltas::Found(Found::Place {
            segment,
            block,
            digest,
            algorithm,
        }),
        (Some(from), State::Recorded(_)) => InDeltas::Moved(from, segment, block),
        // A move whose stripe is still open is read from its old place.
        (Some(_), _) => InDeltas::Nothing,
    }
}

impl Shard {
    /// Finds a volume block; the stamp of what was found lets a read-merge-write see a change.
    pub(super) async fn find(
        &self,
        shape: VolumeShape,
        address: u64,
    ) -> Result<(Found, u64), VolumeError> {
        let at = self.partitioning(shape).locate(address);
        loop {
            let lookup = self.deltas.borrow().lookup(shape.tree, address);
            let stamp = lookup.stamp();
            let moved = match found_in_deltas(lookup, shape.pieces) {
                InDeltas::Found(found) => return Ok((found, stamp)),
                InDeltas::Moved(from, segment, block) => Some((from, segment, block)),
                InDeltas::Nothing => None,
            };
            let entry =
                match self
                    .store
                    .cached_leaf_entry(shape.tree, at.partition, at.leaf, at.slot)
                {
                    Some(entry) => entry,
                    None => {
                        self.store
                            .leaf_entry(shape.tree, at.partition, at.leaf, at.slot)
                            .await
                    }
                };
            let entry = match entry {
                Ok(Some(entry)) => entry,
                Ok(None) => return Ok((Found::Zero, stamp)),
                Err(_) => {
                    let leaf = self.store.load((shape.tree, at.partition, 0, at.leaf));
                    if leaf.await.is_ok() {
                        // The leaf was lost once, and rewritten: of this entry nothing is known.
                        return Err(self.lost(shape, [address]));
                    }
                    return Err(self.lost_leaf(shape, at.partition, at.leaf));
                }
            };
            let place = match moved {
                Some((from, segment, block)) if from == entry.place => Some((segment, block)),
                _ => {
                    let segment = self.core.segment(entry.place.segment);
                    segment.map(|segment| (segment, entry.place.block))
                }
            };
            match place {
                Some((segment, block)) => {
                    return Ok((
                        Found::Place {
                            segment,
                            block,
                            digest: entry.digest,
                            algorithm: algorithm_of(&entry),
                        },
                        stamp,
                    ));
                }
                // The block moved on and its old segment was freed while the leaf was read: look again.
                None if self.deltas.borrow().lookup(shape.tree, address).stamp() != stamp => {}
                None => {
                    let again = self
                        .store
                        .leaf_entry(shape.tree, at.partition, at.leaf, at.slot)
                        .await;
                    if again == Ok(Some(entry)) {
                        // Every device that held a column of its segment is gone.
                        return Err(self.lost(shape, [address]));
                    }
                }
            }
        }
    }

    fn check_of(
        &self,
        shape: VolumeShape,
        address: u64,
        digest: [u8; 16],
        algorithm: u8,
    ) -> impl Fn(&[u8]) -> bool + 'static {
        let core = self.core.clone();
        move |bytes: &[u8]| {
            Kind::from_tag(algorithm).is_some_and(|kind| {
                core.identity.block_digest(kind, shape.tree, address, bytes) == digest
            })
        }
    }

    /// Reads one volume block.
    pub(super) async fn read_block(
        &self,
        shape: VolumeShape,
        address: u64,
    ) -> Result<(Buf, u64), VolumeError> {
        self.read_block_but(shape, address, None).await
    }

    /// The same, not as it has just been read, if it still lies there.
    async fn read_block_but(
        &self,
        shape: VolumeShape,
        address: u64,
        mut wrong: Option<Wrong<'_>>,
    ) -> Result<(Buf, u64), VolumeError> {
        let bytes = shape.pieces as usize * BLOCK;
        loop {
            let (found, stamp) = self.find(shape, address).await?;
            match found {
                Found::Zero => return Ok((Buf::zeroed(bytes), stamp)),
                Found::Bytes(buf) => return Ok((buf, stamp)),
                Found::Place {
                    segment,
                    block,
                    digest,
                    algorithm,
                } => {
                    let check = self.check_of(shape, address, digest, algorithm);
                    let count = shape.pieces;
                    let unit = Unit { block, count };
                    let here = |wrong: &Wrong<'_>| wrong.is_of(&self.core, &segment, block);
                    let was = wrong.take().filter(here).map(|wrong| wrong.bytes);
                    let read = read_unit(&self.core, &segment, unit, was, &check).await;
                    if let Ok(buf) = read {
                        return Ok((buf, stamp));
                    }
                    if was.is_some() {
                        continue; // it may be all that there is
                    }
                    // Judged only after the map has been looked up again (R12).
                    if let (
                        Found::Place {
                            segment: now,
                            block: at,
                            ..
                        },
                        _,
                    ) = self.find(shape, address).await?
                        && now.number == segment.number
                        && at == block
                    {
                        let lost = self.lost(shape, [address]);
                        if planted::on(Bug::LostReadsAsZeros) {
                            return Ok((Buf::zeroed(bytes), stamp));
                        }
                        return Err(lost);
                    }
                }
            }
        }
    }

    pub(super) async fn read(
        self: &Rc<Self>,
        tree: u32,
        first: u64,
        count: u64,
    ) -> Result<Buf, VolumeError> {
        let read = self.read_blocks(tree, first, count).await;
        if read.is_ok() {
            self.found(tree, first..first + count);
        }
        read
    }

    async fn read_blocks(
        self: &Rc<Self>,
        tree: u32,
        first: u64,
        count: u64,
    ) -> Result<Buf, VolumeError> {
        let shape = self.shape(tree)?;
        let unit = shape.pieces as usize * BLOCK;
        let mut out = Buf::scratch(usize::try_from(count).expect("a read is bounded") * unit);
        let mut runs: Vec<Run> = Vec::new();
        for (address, out) in (first..first + count).zip(out.chunks_mut(unit)) {
            match self.find(shape, address).await?.0 {
                Found::Zero => out.fill(0),
                Found::Bytes(buf) => out.copy_from_slice(&buf),
                Found::Place {
                    segment,
                    block,
                    digest,
                    algorithm,
                } => {
                    Run::add(
                        &mut runs,
                        shape,
                        address,
                        segment,
                        block,
                        (digest, algorithm),
                    );
                }
            }
        }
        if runs.len() == 1 && runs[0].digests.len() as u64 == count {
            // It is the whole answer: nothing to do beside it, and nothing to copy.
            let run = runs.pop().expect("one");
            return Ok(self.read_run(shape, run).await?.1);
        }
        let begun = |run| {
            let shard = self.clone();
            begin(async move { shard.read_run(shape, run).await })
        };
        let reads: Vec<_> = runs.into_iter().map(begun).collect();
        let mut result = Ok(());
        for read in reads {
            match read.await {
                Ok((address, bytes)) => {
                    let start = usize::try_from(address - first).expect("a read is bounded") * unit;
                    out[start..start + bytes.len()].copy_from_slice(&bytes);
                }
                Err(error) => result = Err(error),
            }
        }
        result.map(|()| out)
    }

    /// Reads volume blocks that follow each other in one strip with one device read, or, where their column is gone,
    /// one of each of K others.
    async fn read_run(
        self: &Rc<Self>,
        shape: VolumeShape,
        run: Run,
    ) -> Result<(u64, Buf), VolumeError> {
        let unit = shape.pieces as usize * BLOCK;
        let count = u32::try_from(run.digests.len()).expect("a read is bounded") * shape.pieces;
        let (stripe, strip, within) = run.segment.geometry.locate(run.block);
        let (segment, column) = (&run.segment, usize::from(strip));
        let fits = within + count <= segment.geometry.strip_blocks;
        // Blocks of a column that is gone are computed as one, and checked as those that are read.
        let how = match self.core.column_usable(segment, column) {
            true => How::Read,
            false => How::Decoded,
        };
        let span = Span {
            stripe,
            column,
            within,
            count,
        };
        let place = usable_place(&self.core, segment, column);
        let read = match fits {
            true => fetch(&self.core, segment, span, how).await,
            false => None,
        };
        let came = read.is_some();
        let (mut out, digests) = match read {
            Some(bytes) => {
                let (at, bytes) = ((shape.tree, run.address), Rc::new(bytes));
                let digests = self.core.identity.digests_in_company(
                    &self.core.rt,
                    run.kind()?,
                    at,
                    bytes.clone(),
                    unit,
                );
                let digests = digests.await;
                (Rc::into_inner(bytes).expect("let go of"), digests)
            }
            None => (Buf::scratch(count as usize * BLOCK), Vec::new()),
        };
        let unverified = came && planted::on(Bug::ReadUnverified);
        for (at, bytes) in (0u32..).zip(out.chunks_mut(unit)) {
            let index = at as usize;
            if digests.get(index) != Some(&run.digests[index]) && !unverified {
                let wrong = place.filter(|_| came).map(|place| Wrong {
                    segment: run.segment.number,
                    block: run.block + at * shape.pieces,
                    place,
                    bytes,
                });
                let address = run.address + u64::from(at);
                let (good, _) = self.read_block_but(shape, address, wrong).await?;
                bytes.copy_from_slice(&good);
            }
        }
        Ok((run.address, out))
    }

    pub(super) async fn mapped(
        &self,
        tree: u32,
        first: u64,
        count: u64,
    ) -> Result<Vec<bool>, VolumeError> {
        let shape = self.shape(tree)?;
        let (mut mapped, end) = (Vec::new(), first + count);
        let mut address = first;
        while address < end {
            let at = self.partitioning(shape).locate(address);
            let next = end.min(address + (LEAF_ENTRIES - at.slot) as u64);
            let leaf = (tree, at.partition, 0, at.leaf);
            let there = self.store.load(leaf).await;
            // No wait until the answer: the deltas and the leaf are of one moment.
            let known = match there {
                Ok(there) if self.deltas.borrow().none_in(tree, address, next) => {
                    self.store.mapped_entries(leaf, there)
                }
                _ => None,
            };
            if let Some(known) = known {
                let length = usize::try_from(next - address).expect("within a leaf");
                mapped.extend_from_slice(&known[at.slot..at.slot + length]);
            } else {
                for address in address..next {
                    mapped.push(!matches!(self.find(shape, address).await?.0, Found::Zero));
                }
            }
            address = next;
        }
        Ok(mapped)
    }
}

/// Volume blocks that follow each other in one strip, with digests of one function.
struct Run {
    address: u64,
    segment: Pinned,
    block: u32,
    algorithm: u8,
    digests: Vec<[u8; 16]>,
}

impl Run {
    fn kind(&self) -> Result<Kind, VolumeError> {
        Kind::from_tag(self.algorithm).ok_or(VolumeError::Lost)
    }

    fn add(
        runs: &mut Vec<Run>,
        shape: VolumeShape,
        address: u64,
        segment: Pinned,
        block: u32,
        (digest, algorithm): ([u8; 16], u8),
    ) {
        if let Some(run) = runs.last_mut() {
            let blocks =
                u32::try_from(run.digests.len()).expect("a read is bounded") * shape.pieces;
            let follows = run.address + run.digests.len() as u64 == address
                && run.segment.number == segment.number
                && run.algorithm == algorithm
                && run.block + blocks == block;
            let strip = segment.geometry.strip_blocks;
            let same_strip = run.block / strip == (block + shape.pieces - 1) / strip;
            if follows && same_strip {
                run.digests.push(digest);
                return;
            }
        }
        runs.push(Run {
            address,
            segment,
            block,
            algorithm,
            digests: vec![digest],
        });
    }
}
