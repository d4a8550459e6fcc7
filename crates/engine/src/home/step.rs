//! The step of a checkpoint: how many nodes it may write, and which nodes it rewrites to free their segments.
//!
//! Live nodes of a segment are not moved but marked as changed ("touched"), and the checkpoint writes them elsewhere.
//!
//! Invariants:
//! - A step writes no more than it has claimed: its claim is entered before anything is marked or merged, and binds
//!   everybody else until all nodes have their places.
//! - Where a step owes the room that it takes ([`Ledger::step_owes`]), the next ones write as many nodes of the
//!   sparsest segments again as it merged: one of these is half dead, so that gives at least as much room as it takes.
//! - Where room is tight ([`Home::room_is_tight`]) a step first renews what is half dead, as much as it can beside what
//!   it merges at least: half of what it writes. Whatever has taken the room that nodes were to grow into, a step gives
//!   about as much as it takes then, before one finds none.
//! - A node that cannot be read is not touched: whoever reads it finds it lost.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use ashlar_format::SegmentNumber;
use ashlar_format::node::Place;
use ashlar_format::summary::{Owner, node_address};
use ashlar_rt::Lock;
use ashlar_space::floors::Class;
use ashlar_space::ledger::{Claim, Ledger};
use ashlar_space::topology::Area;
use ashlar_space::work::{HALF, sparsest_nodes};

use crate::home::{CATALOG_TREE, Home, LIVENESS_TREE};
use crate::locks;
use crate::map::Key;
use crate::map::system::NodeId;
use crate::protocol::{ShardMessage, ask};
use crate::segment::Pinned;
use crate::segment::summary::rows_of;
use crate::space::shape::MergeLimit;

/// So many live blocks of a segment are renewed together.
const TOUCHED_AT_ONCE: usize = 64;

/// Live blocks of a segment, and what they hold.
type Blocks = Vec<(Place, Owner)>;

/// The steps of checkpoints.
#[derive(Debug)]
pub struct Steps {
    /// Held by a checkpoint while it places nodes.
    pub(super) placing: Lock<()>,
    /// The claim of the step that places nodes, and how many segments it was of.
    claim: RefCell<Option<Claim>>,
    claimed: Cell<u32>,
    /// Segments of nodes that the next step renews, with the claims of those who asked for it.
    renewals: RefCell<BTreeMap<SegmentNumber, (Blocks, Claim)>>,
    /// Nodes that the step under way may write, and of these how many it renews.
    budget: Cell<(usize, usize)>,
    /// Nodes that steps have written, and whose room no renewal has made up for yet.
    owed: Cell<usize>,
}

impl Default for Steps {
    fn default() -> Steps {
        Steps {
            placing: Lock::ranked((), locks::PLACING),
            claim: RefCell::default(),
            claimed: Cell::default(),
            renewals: RefCell::default(),
            budget: Cell::default(),
            owed: Cell::default(),
        }
    }
}

impl Steps {
    /// Whether a checkpoint has segments to renew.
    pub(crate) fn has_renewals(&self) -> bool {
        !self.renewals.borrow().is_empty()
    }

    /// Takes the slots of a segment of nodes of the step's claim.
    pub(super) fn acquire(&self, ledger: &mut Ledger, preferred: &[u16]) -> Option<Vec<u16>> {
        let claim = self.claim.borrow();
        ledger.acquire(claim.as_ref()?, preferred)
    }
}

/// Nodes, and where they lie if they are still live there.
#[derive(Default)]
struct Nodes {
    liveness: Vec<(NodeId, Place)>,
    catalog: Vec<(NodeId, Place)>,
    /// By shard.
    maps: BTreeMap<usize, Vec<(Key, Place)>>,
}

impl Home {
    /// The next checkpoint renews the nodes of a segment; until then `claim` keeps the room for it.
    pub(crate) async fn renew_later(self: &Rc<Self>, segment: &Pinned, claim: Claim) {
        let blocks = self.live_blocks(segment).await;
        let mut renewals = self.space.steps.renewals.borrow_mut();
        renewals.insert(segment.number, (blocks, claim));
    }

    /// The live blocks of a sealed segment whose owners can be read.
    async fn live_blocks(self: &Rc<Self>, segment: &Pinned) -> Blocks {
        let live: Vec<u32> = segment.live.borrow().iter().collect();
        let rows = rows_of(&self.core, segment, &live).await;
        let owned = |block: &u32| {
            let row = rows.get(block)?;
            Some((segment.place(*block), Owner::from_bytes(&row.owner)))
        };
        live.iter().filter_map(owned).collect()
    }

    /// A step begins: it claims its room, and marks the nodes that it renews. The caller holds the placing lock.
    pub(super) async fn begin_step(self: &Rc<Self>) {
        let tight = self.room_is_tight();
        let nodes = self.claim_step();
        self.space.steps.budget.set((nodes, 0));
        let renewals = self.space.steps.renewals.take();
        let mut asked = Vec::new();
        for (number, (blocks, claim)) in renewals {
            // The step has claimed their room by now.
            self.space.ledger().give_back(claim);
            asked.push((number, blocks));
        }
        for (number, blocks) in asked {
            let renewed = self.renew_blocks(&blocks).await;
            self.renewed(number, renewed < blocks.len());
        }
        while self.space.steps.owed.get() > 0 || tight {
            // What is owed is made up for by the sparsest there is; else only what gives as much as it takes.
            let least = match self.space.steps.owed.get() {
                0 => HALF,
                _ => 0,
            };
            self.refresh_index();
            let number = sparsest_nodes(&self.space.index(), &self.space.ledger(), least);
            let Some(segment) = number.and_then(|n| self.core.segment(n)) else {
                break;
            };
            let blocks = self.live_blocks(&segment).await;
            if self.space.index().is_in_flight(segment.number) {
                continue; // meanwhile
            }
            self.begin_renewal(segment.number);
            let renewed = self.renew_blocks(&blocks).await;
            if renewed < blocks.len() {
                self.renewed_in_part(segment.number);
                break;
            }
            self.renewed(segment.number, false);
            let owed = self.space.steps.owed.get();
            self.space.steps.owed.set(owed.saturating_sub(renewed));
        }
    }

    /// Claims the room of a step; how many nodes it may write. Three quarters of the room that leaves the next one its
    /// own, or as much as it may need: with less it could not renew as many nodes as it owes.
    fn claim_step(&self) -> usize {
        let mut ledger = self.space.ledger();
        let (most, step) = (ledger.for_step(), ledger.floors().step);
        let renewals = self.space.steps.renewals.borrow();
        let asked: u32 = renewals
            .values()
            .map(|(_, claim)| ledger.left(claim).0)
            .sum();
        let all = ledger.grant(Class::Checkpoint, Area::Nodes);
        let wanted = (most - most / 4).max(step.saturating_add(asked));
        let segments = wanted.min(most).max(step).min(all);
        *self.space.steps.claim.borrow_mut() =
            ledger.claim(Class::Checkpoint, Area::Nodes, segments);
        self.space.steps.claimed.set(segments);
        let nodes = u64::from(segments) * self.segment_nodes(&ledger) + self.nodes.room();
        usize::try_from(nodes).unwrap_or(usize::MAX)
    }

    /// Has the step write these nodes again, as far as it has room for them beside what it merges at least; how many of
    /// these blocks.
    async fn renew_blocks(self: &Rc<Self>, blocks: &Blocks) -> usize {
        let least = self.geometry().step_nodes as usize / 2;
        let (mut done, mut at_once) = (0, TOUCHED_AT_ONCE);
        while done < blocks.len() {
            let some = &blocks[done..blocks.len().min(done + at_once)];
            let nodes = self.live_nodes(some.iter().copied());
            let count = self.touch(&nodes, false).await;
            // With the records that this changes: of the segment itself, and of those where nodes above them lie.
            let cost = count + self.liveness.leaves_each() + count.saturating_sub(some.len());
            let (budget, renewed) = self.space.steps.budget.get();
            if count > 0 && renewed + cost + least > budget {
                // Fewer of them may fit: the rest is for the next step.
                at_once = some.len() / 2;
                if at_once == 0 {
                    break;
                }
                continue;
            }
            // As far as they can be read: a lost node is found again by whoever reads it.
            let count = self.touch(&nodes, true).await;
            if count > 0 {
                self.space.steps.budget.set((budget, renewed + cost));
            }
            done += some.len();
        }
        done
    }

    /// What the step under way may merge beside what it renews.
    pub(super) fn merge_limit(&self) -> MergeLimit {
        let (budget, renewed) = self.space.steps.budget.get();
        let (ledger, records) = (self.space.ledger(), self.liveness.nodes_total());
        // Each new segment of nodes has a record, too.
        let each = self.segment_nodes(&ledger).max(1);
        let made = budget / usize::try_from(each).unwrap_or(usize::MAX) + 1;
        let made = (made * self.liveness.leaves_each()).min(records);
        let left = budget.saturating_sub(renewed + self.catalog_nodes() + made);
        let grown = ledger.floors().growth == 0;
        MergeLimit {
            nodes: if grown { left.min(budget / 2) } else { left },
            records,
        }
    }

    /// All nodes of the step, so many, have their places: what is left of its claim is anybody's.
    pub(super) fn end_step(&self, written: usize) {
        let steps = &self.space.steps;
        let mut ledger = self.space.ledger();
        let mut taken = steps.claimed.take();
        if let Some(claim) = steps.claim.take() {
            taken -= ledger.left(&claim).0;
            ledger.give_back(claim);
        }
        let (_, renewed) = steps.budget.take();
        let merged = written.saturating_sub(renewed);
        let owed = match ledger.step_owes(taken) {
            true => steps.owed.get() + merged,
            false => 0,
        };
        steps.owed.set(owed);
    }

    /// Those of these blocks that are nodes.
    fn live_nodes(&self, blocks: impl Iterator<Item = (Place, Owner)>) -> Nodes {
        let mut nodes = Nodes::default();
        for (place, owner) in blocks.filter(|(_, owner)| owner.kind > 0) {
            let (partition, index) = node_address(owner.address);
            let level = owner.kind - 1;
            match owner.tree {
                LIVENESS_TREE => nodes.liveness.push(((level, index), place)),
                CATALOG_TREE => nodes.catalog.push(((level, index), place)),
                tree => {
                    let shard = usize::from(partition) % self.shards.len();
                    let key = (tree, partition, level, index);
                    nodes.maps.entry(shard).or_default().push((key, place));
                }
            }
        }
        nodes
    }

    /// How many nodes the next checkpoint writes besides if those of these that lie there are rewritten; and, if told
    /// so, that it does. (Above those of liveness and the catalog it writes some in any case: these are reckoned as
    /// records are.)
    async fn touch(self: &Rc<Self>, nodes: &Nodes, mark: bool) -> usize {
        let mut count = 0;
        for (mut tree, nodes) in [
            (self.liveness.tree(), &nodes.liveness),
            (self.catalog.tree(), &nodes.catalog),
        ] {
            for (id, place) in nodes {
                let lies_there = tree.lies_at(*id, *place);
                count += usize::from(lies_there);
                if lies_there && mark {
                    tree.touch(*id);
                }
            }
        }
        for (shard, nodes) in &nodes.maps {
            let touch = |reply| ShardMessage::Touch(nodes.clone(), mark, reply);
            count += ask(&self.shards[*shard], touch).await.unwrap_or(0);
        }
        count
    }
}
