//! The home: the one task of an array that owns its journal, allocator, liveness, checkpoints and
//! membership. Shards talk to it by messages.
//!
//! Invariants:
//! - One group commit is journalled at a time, one checkpoint runs at a time; records, roots and membership
//!   changes exclude each other (`Log::turn`).
//! - A waiter for durability is answered only after a group commit that was collected after it asked.
//! - Locks are taken in the order of [`crate::locks`].

pub mod addition;
mod agreement;
mod allocate;
pub(crate) mod beat;
mod capacity;
mod checkpoint;
mod demand;
mod domain;
mod generation;
mod group_commit;
pub(crate) mod growth;
pub mod hot_spare;
pub mod jobs;
mod left;
pub(crate) mod log;
pub mod nodes;
mod own;
mod parts;
mod records;
mod redundancy;
pub mod removal;
pub mod replacement;
mod returning;
mod root;
#[cfg(test)]
mod scale_tests;
pub mod scrub;
mod settings;
pub(crate) mod slow;
pub mod space;
pub mod speed;
mod step;
pub mod trim;
pub mod work;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use ashlar_block::VolumeError;
use ashlar_format::catalog::Catalog;
use ashlar_format::journal::Ring;
use ashlar_format::liveness::RecordShape;
use ashlar_format::root::Root;
use ashlar_format::superblock::Superblock;
use ashlar_rt::{Mailbox, SECOND, Sender, join_all};
use ashlar_space::topology::Topology;

use crate::home::agreement::Agreement;
use crate::home::checkpoint::Checkpoints;
use crate::home::demand::Demand;
use crate::home::log::Log;
use crate::home::nodes::NodeWriter;
use crate::home::root::Roots;
use crate::home::scrub::Scrubs;
use crate::home::slow::Slow;
use crate::home::space::Space;
use crate::home::work::Tasks;
use crate::journal::Journal;
use crate::map::catalog::CatalogTree;
use crate::map::liveness::Liveness;
use crate::map::records::Records;
use crate::map::system::SysTree;
use crate::planted::{self, Bug};
use crate::protocol::{HomeMessage, Reach, ShardMessage};
use crate::segment::table::Core;

/// The tree number of liveness.
pub const LIVENESS_TREE: u32 = 1;
/// The tree number of the catalog.
pub const CATALOG_TREE: u32 = 2;
/// The first volume number.
pub const FIRST_VOLUME: u32 = 16;
/// Without any demand a group commit is made this often.
const IDLE_GROUP_COMMIT: u64 = SECOND;

/// The home of an array.
pub struct Home {
    pub(crate) core: Rc<Core>,
    pub(crate) journal: Journal,
    /// What the next records take along.
    pub(crate) log: Log,
    pub(crate) shards: Vec<Sender<ShardMessage>>,
    pub(crate) superblock: RefCell<Superblock>,
    pub(crate) agreement: Agreement,
    pub(crate) catalog: CatalogTree,
    pub(crate) liveness: Liveness,
    pub(crate) root: Roots,
    nodes: NodeWriter,
    /// Free space, and who is about to take it.
    pub(crate) space: Space,
    /// What others ask for.
    pub(crate) demand: Demand,
    pub(crate) checkpoints: Checkpoints,
    pub(crate) tasks: RefCell<Tasks>,
    pub(crate) scrubs: Scrubs,
    /// Devices that are out of use because they are slow.
    pub(crate) slow: Slow,
}

impl std::fmt::Debug for Home {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Home")
            .field("next", &self.journal.next())
            .finish_non_exhaustive()
    }
}

/// What a home is made from.
#[derive(Debug)]
pub struct HomeParts {
    /// Shared state.
    pub core: Rc<Core>,
    /// The journal.
    pub journal: Journal,
    /// The shards.
    pub shards: Vec<Sender<ShardMessage>>,
    /// Members, layout and failure domains.
    pub topology: Topology,
    /// The superblock of any member.
    pub superblock: Superblock,
    /// The catalog.
    pub catalog: Catalog,
    /// The last durable root.
    pub root: Root,
    /// The number of the next checkpoint.
    pub next_checkpoint: u64,
    /// The number of the last checkpoint, shared with the shards.
    pub birth: Rc<Cell<u64>>,
    /// The liveness tree.
    pub liveness: SysTree,
    /// The catalog's tree.
    pub catalog_tree: SysTree,
}

impl Home {
    /// A home; nothing runs yet.
    pub fn new(parts: HomeParts) -> Rc<Home> {
        let records: BTreeMap<u32, u64> = parts
            .core
            .segments
            .borrow()
            .values()
            .filter(|s| s.record.get() != u32::MAX)
            .map(|s| (s.record.get(), s.number))
            .collect();
        let records = Records::new(
            RecordShape::of_blocks(parts.superblock.record_blocks),
            records,
        );
        let strip_blocks = parts.superblock.strip_blocks;
        let space = Space::new(parts.topology, strip_blocks, parts.core.slot_blocks);
        let scrubs = Scrubs::of(&parts.catalog, parts.core.rt.unix_seconds());
        let home = Rc::new(Home {
            core: parts.core,
            journal: parts.journal,
            log: Log::default(),
            shards: parts.shards,
            superblock: RefCell::new(parts.superblock),
            agreement: Agreement::default(),
            catalog: CatalogTree::new(parts.catalog, parts.catalog_tree, parts.root.next_tree),
            liveness: Liveness::new(parts.liveness, records),
            root: Roots::new(parts.root, parts.next_checkpoint, parts.birth),
            nodes: NodeWriter::default(),
            space,
            demand: Demand::default(),
            checkpoints: Checkpoints::default(),
            tasks: RefCell::default(),
            scrubs,
            slow: Slow::default(),
        });
        home.keep_scrubs();
        home.show_scrub("");
        home.take_stock();
        home
    }

    /// Answers messages until the array is closed.
    pub fn start(self: &Rc<Self>, mailbox: Mailbox<HomeMessage>) {
        self.choose_accelerator();
        let (home, rt) = (self.clone(), self.core.rt.clone());
        rt.spawn(async move { home.serve(mailbox).await });
        let home = self.clone();
        rt.spawn(async move { home.watch_members().await });
    }

    /// Runs group commits and checkpoints until the array is closed.
    ///
    /// Crash argument: after an import only once the shards have all that the journal had. A group commit before
    /// that would give an older version of a block a newer sequence than the one still to be adopted; a
    /// checkpoint would cut the journal of what no shard has, and free the segments that it lies in, since
    /// nothing in memory names them yet.
    pub fn start_group_commits(self: &Rc<Self>) {
        let (home, rt) = (self.clone(), self.core.rt.clone());
        rt.spawn(async move { home.group_commits().await });
        let home = self.clone();
        rt.spawn(async move { home.checkpoints().await });
    }

    async fn serve(self: Rc<Self>, mut mailbox: Mailbox<HomeMessage>) {
        while let Some(message) = mailbox.receive().await {
            match message {
                HomeMessage::Durable(reply) if self.core.closed.get() => {
                    reply.send(Err(VolumeError::Closed));
                }
                HomeMessage::Durable(reply) => self.demand.durable(reply),
                HomeMessage::Record => self.demand.record(),
                HomeMessage::Pressure => {
                    self.demand.record();
                    self.demand.press();
                }
                HomeMessage::Halt(why) => self.halt(why),
                HomeMessage::Allocate(class, into, reply) => {
                    let home = self.clone();
                    self.core
                        .rt
                        .spawn(async move { reply.send(home.allocate_data(class, into).await) });
                }
                HomeMessage::Merge(reply) => {
                    if self.demand.merge(reply) {
                        let home = self.clone();
                        self.core
                            .rt
                            .spawn(async move { home.merge_for_all().await });
                    }
                }
                HomeMessage::Places(count, reply) => {
                    let home = self.clone();
                    self.core
                        .rt
                        .spawn(async move { reply.send(home.meta_places(count).await) });
                }
            }
        }
    }

    /// Merges once for all who have asked when it begins; those who ask later wait for the next.
    async fn merge_for_all(self: Rc<Self>) {
        let _one = self.demand.merge_turn().await;
        let asking = self.demand.begin_merge();
        self.unless_closed(self.merge()).await;
        for reply in asking {
            reply.send(());
        }
    }

    async fn group_commits(self: Rc<Self>) {
        let mut whole_at = self.core.rt.now();
        while !self.core.closed.get() {
            self.demand
                .group_commit_wanted(&self.core.rt, IDLE_GROUP_COMMIT)
                .await;
            let only_record = self.demand.begin_group_commit();
            // Where nobody waits, and only room is wanted, unfinished stripes are left to fill: now and then they are
            // recorded as well.
            let due = self.core.rt.now() >= whole_at + IDLE_GROUP_COMMIT;
            if only_record && !due {
                self.group_commit(Reach::Written).await;
            } else {
                whole_at = self.core.rt.now();
                self.group_commit(Reach::All).await;
            }
            if planted::on(Bug::LateWaiterAnswered) {
                self.demand.take_late();
            }
            self.demand.end_group_commit();
            // What the last checkpoint could not cut, the next one cannot either, unless something was recorded.
            if self.wants_checkpoint() && self.journal.next() != self.checkpoints.pressed_at.get() {
                self.demand.press();
            }
        }
    }

    /// Checkpoints beside the group commits, whenever deltas or the journal press.
    async fn checkpoints(self: Rc<Self>) {
        while !self.core.closed.get() {
            self.demand.checkpoint_wanted(&self.core.closed).await;
            self.checkpoint_some().await;
            self.checkpoints.pressed_at.set(self.journal.next());
        }
    }

    /// Stops everything: what cannot go on without breaking a promise.
    pub(crate) fn halt(&self, why: &str) {
        self.core.events.tell_sums();
        let text = match why {
            "exported" | "destroyed" => why.to_string(),
            _ => format!("the array stopped: {why}"),
        };
        self.core.events.note("halted", None, text);
        self.core.closed.set(why);
        self.demand.refuse();
        for shard in &self.shards {
            let _ = shard.send(ShardMessage::Close); // it may be gone already
        }
        for member in &self.core.members {
            member.close();
        }
        self.look_at_all();
        self.agreement.close();
        self.core.failing.close();
        self.core.progress.open();
        self.core.events.close();
        self.core.bad.found.open();
        self.core.lateness.late.open();
        self.core.lateness.answered.open();
        self.slow.close();
        self.demand.clean();
        self.demand.close();
    }

    /// Whether the journal or the deltas are full enough for a checkpoint.
    fn wants_checkpoint(&self) -> bool {
        let (size, used) = self.journal.usage(Ring::Delta);
        used * 2 > size
    }

    /// A checkpoint that merges at least the older half of what the delta ring holds.
    async fn checkpoint_some(self: &Rc<Self>) {
        // What is written but not recorded cannot be merged; and unfinished stripes would keep a ring
        // that is filling from being cut.
        self.group_commit(if self.wants_checkpoint() {
            Reach::Closed
        } else {
            Reach::Written
        })
        .await;
        self.checkpoint(self.journal.next()).await;
    }

    /// Does `work` to its end, or until the array stops: what waits for room or for devices then would wait
    /// for ever.
    pub(crate) async fn unless_closed(&self, work: impl Future<Output = ()>) {
        let mut work = pin!(work);
        let mut closed = pin!(self.core.failing.settled_until(|| self.core.closed.get()));
        poll_fn(|cx| {
            if work.as_mut().poll(cx).is_ready() {
                return Poll::Ready(());
            }
            closed.as_mut().poll(cx)
        })
        .await;
    }

    /// Makes everything durable that shards have acknowledged, and merges it.
    pub(crate) async fn merge(self: &Rc<Self>) {
        self.group_commit(Reach::Closed).await;
        self.checkpoint(self.journal.next()).await;
    }

    /// Flushes devices; those that cannot are reported and taken out before this returns.
    pub(crate) async fn flush(&self, devices: Vec<u16>) {
        self.flush_members(devices).await;
        self.members_settled().await;
    }

    /// Flushes devices; those that cannot are reported.
    pub(crate) async fn flush_members(&self, members: Vec<u16>) {
        let online = |index: &u16| self.core.member(*index).is_written();
        let flush = |index| {
            let core = self.core.clone();
            self.core.rt.spawn(async move {
                if core.member(index).flush().await.is_err() {
                    core.report_failed(index);
                }
            })
        };
        join_all(members.into_iter().filter(online).map(flush)).await;
    }
}
