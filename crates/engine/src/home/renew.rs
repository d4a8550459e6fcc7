//! Cleaning metadata: live nodes of sparse segments are not moved but marked as changed ("touched"), and the next commit
//! writes them elsewhere.
//!
//! Invariants:
//! - The next commit writes changed leaves and these nodes; no more are touched than its room lets it write
//!   (`home/room.rs`, `may_renew`).
//! - A node that cannot be read is not touched: whoever reads it finds it lost.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use ashlar_format::node::Place;
use ashlar_format::slot::SegmentKind;
use ashlar_format::summary::{Owner, node_address};

use crate::home::room::Renewed;
use crate::home::{CATALOG_TREE, Home, LIVENESS_TREE};
use crate::map::Key;
use crate::map::system::NodeId;
use crate::protocol::{ShardMessage, ask};
use crate::segment::Pinned;
use crate::segment::summary::rows_of;

/// Segments of nodes whose summaries are read before it is their turn.
const SUMMARIES_AHEAD: usize = 8;

/// Nodes, and where they lie if they are still live there.
#[derive(Default)]
struct Nodes {
    liveness: Vec<(NodeId, Place)>,
    catalog: Vec<(NodeId, Place)>,
    /// By shard.
    maps: BTreeMap<usize, Vec<(Key, Place)>>,
}

impl Home {
    /// Has the nodes of the sparsest metadata segments written anew by the next commit: at most half of
    /// their blocks are live, so each two give more than they take; at most `most` nodes. Where there is no room to
    /// move data, which would gain more, a fifth that is dead is enough (#158); also where metadata cannot grow to
    /// twice what is live, as recovery may leave it: then half of a segment need not be dead anywhere (#165).
    pub(crate) async fn clean_metadata(self: &Rc<Self>, most: usize) {
        let growth = self.metadata_need().growth;
        let mut online = self.core.members.iter().filter(|m| m.takes_slots());
        let cannot_grow = online.any(|m| m.free_slots() < growth);
        let most_live = if cannot_grow || self.clean_budget() == 0 {
            5
        } else {
            2
        };
        let mut sparse = self.pick_victims(Some(SegmentKind::Meta), usize::MAX);
        sparse.retain(|(s, dead)| dead * most_live >= u64::from(s.geometry.data_blocks()));
        let sparse: Vec<_> = sparse.into_iter().map(|(segment, _)| segment).collect();
        self.renew(&sparse, most).await;
    }

    /// Has the next commit write the nodes of these segments anew: of the first ones that together have no more than
    /// `most`, nor more than that commit has room for. Whether there are any.
    pub(crate) async fn renew(self: &Rc<Self>, segments: &[Pinned], most: usize) -> bool {
        let (mut left, mut refused, mut any) = (most, usize::MAX, false);
        let mut reading = VecDeque::new();
        let mut wanted = segments.iter();
        loop {
            // The summaries of those to come are read ahead.
            while reading.len() < SUMMARIES_AHEAD
                && let Some(segment) = wanted.next()
            {
                let (home, segment) = (self.clone(), segment.clone());
                reading.push_back(self.core.rt.spawn(async move {
                    let live: Vec<u32> = segment.live.borrow().iter().collect();
                    let rows = rows_of(&home.core, &segment, &live).await;
                    (segment, rows)
                }));
            }
            let Some(next) = reading.pop_front() else {
                break;
            };
            let (segment, rows) = next.await;
            let _placing = self.reserved.placing.lock().await;
            if self.reserved.renewed.borrow().contains_key(&segment.number) {
                any = true;
                continue;
            }
            let live: Vec<u32> = segment.live.borrow().iter().collect();
            if live.len() > left || live.len() >= refused {
                continue;
            }
            // Of a segment that is sealed blocks only die meanwhile.
            let owner = |block: &u32| {
                let row = rows.get(block)?;
                Some((segment.place(*block), Owner::from_bytes(&row.owner)))
            };
            let nodes = self.live_nodes(live.iter().filter_map(owner));
            let renewed = |count: usize| Renewed {
                nodes: count,
                // Its own, and of where those lie that are above.
                records: self.liveness.leaves_each() + count.saturating_sub(live.len()),
            };
            let most = self.touch(&nodes, false).await;
            if most > 0 && !self.may_renew(renewed(most)) {
                refused = live.len();
                continue;
            }
            // As far as they can be read: a lost node is found again by whoever reads it.
            let count = self.touch(&nodes, true).await;
            if count == 0 {
                continue;
            }
            self.reserved
                .renewed
                .borrow_mut()
                .insert(segment.number, renewed(count));
            left -= live.len();
            any = true;
        }
        any
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

    /// How many nodes the next commit writes besides if those of these that lie there are written anew; and, if told
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
