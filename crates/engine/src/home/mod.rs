//! The home: the one task of an array that owns its journal, allocator, liveness, commits and
//! membership. Shards talk to it by messages.
//!
//! Invariants:
//! - One batch is journalled at a time, one commit runs at a time; records, roots and membership
//!   changes exclude each other (`log_lock`).
//! - A waiter for durability is answered only after a batch that was collected after it asked.
//! - Locks are taken in the order of [`crate::locks`].

mod allocate;
mod batch;
mod capacity;
mod commit;
mod demand;
mod generation;
mod liveness;
pub mod nodes;
mod records;
pub mod room;
mod root;
mod settings;
pub mod work;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::num::NonZeroUsize;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use ashlar_block::VolumeError;
use ashlar_format::catalog::Catalog;
use ashlar_format::journal::{Entry, Ring};
use ashlar_format::liveness::RecordShape;
use ashlar_format::root::Root;
use ashlar_format::superblock::Superblock;
use ashlar_layout::Shape;
use ashlar_rt::{Gate, Lock, Mailbox, SECOND, Sender, join_all};
use lru::LruCache;

use crate::home::demand::Demand;
use crate::home::room::Renewed;
use crate::journal::Journal;
use crate::journal::window::Window;
use crate::locks;
use crate::map::records::Records;
use crate::map::system::SysTree;
use crate::members::quorum::Quorum;
use crate::planted::{self, Bug};
use crate::protocol::{HomeMessage, Reach, ShardMessage};
use crate::segment::Pinned;
use crate::segment::table::Core;
use crate::space::slots::metadata_survives;

/// The tree number of liveness.
pub const LIVENESS_TREE: u32 = 1;
/// The tree number of the catalog.
pub const CATALOG_TREE: u32 = 2;
/// The first volume number.
pub const FIRST_VOLUME: u32 = 16;
/// Without any demand a batch is made this often.
const IDLE_BATCH: u64 = SECOND;

/// Which stripes of courses were written, by segment and course, counted from the course's first.
type WrittenStrips = LruCache<(u64, u32), BTreeSet<u32>>;

/// Courses of which is kept which of their stripes were written.
const COURSES_KEPT: NonZeroUsize = NonZeroUsize::new(256).expect("some");

/// The home of an array.
pub struct Home {
    pub(crate) core: Rc<Core>,
    pub(crate) journal: Journal,
    pub(crate) shards: Vec<Sender<ShardMessage>>,
    pub(crate) shape: Shape,
    /// Parity columns of metadata segments, before narrowing.
    pub(crate) meta_m: u16,
    pub(crate) superblock: RefCell<Superblock>,
    pub(crate) catalog: RefCell<Catalog>,
    pub(crate) root: RefCell<Root>,
    pub(crate) birth: Rc<Cell<u64>>,
    pub(crate) next_segment: Cell<u64>,
    pub(crate) next_tree: Cell<u32>,
    pub(crate) liveness: RefCell<SysTree>,
    pub(crate) catalog_tree: RefCell<SysTree>,
    pub(crate) catalog_bytes: RefCell<Vec<u8>>,
    /// Which liveness record is whose.
    pub(crate) records: Records,
    pub(crate) meta: RefCell<crate::home::nodes::MetaWriter>,
    pub(crate) picks: RefCell<crate::home::allocate::Picks>,
    /// The share of usable space, in percent, that was last warned of; 0: none.
    pub(crate) warned: Cell<u64>,
    pub(crate) tile: Cell<u64>,
    /// Segments opened and not yet journalled.
    pub(crate) opened: RefCell<Vec<Pinned>>,
    /// Entries of background work that are to go into the next batch.
    pub(crate) extra: RefCell<Vec<Entry>>,
    /// The segments whose columns those moved that are not durable yet, the ones of the batch under way first.
    pub(crate) unrecorded: RefCell<Vec<u64>>,
    pub(crate) batch_lock: Lock<()>,
    pub(crate) commit_lock: Lock<()>,
    pub(crate) meta_lock: Lock<()>,
    /// By device: free slots that are left to the commit that is placing nodes.
    pub(crate) held_room: RefCell<Vec<usize>>,
    /// What the next commit writes anew, by metadata segment.
    pub(crate) renewed: RefCell<BTreeMap<u64, Renewed>>,
    /// Held by a commit while it places nodes, and by whoever has nodes written anew from where it reckons the room
    /// for them until they are marked: so that they go into the commit that they were reckoned for.
    pub(crate) placing: Lock<()>,
    pub(crate) log_lock: Lock<()>,
    /// The last root has been written: nothing is journalled after it.
    pub(crate) log_ended: Cell<bool>,
    /// What others ask for.
    demand: Demand,
    fold_lock: Lock<()>,
    /// The next sequence when the last commit under pressure had ended.
    pressed_at: Cell<u64>,
    /// The part of the journal that is still needed.
    pub(crate) window: Window,
    pub(crate) quorum: Cell<Quorum>,
    /// The operator has said that devices may be given up without which something is lost.
    pub(crate) may_lose: Cell<bool>,
    pub(crate) force_gate: Gate,
    pub(crate) waiting_quorum: Cell<Option<(usize, usize)>>,
    /// Why the array stopped, if it did.
    pub(crate) stopped: RefCell<String>,
    /// Opens when a commit has ended.
    pub(crate) committed: Gate,
    /// Up to where in the journal commits have folded all that they can.
    pub(crate) committed_to: Cell<u64>,
    /// Commits begun.
    pub(crate) commits: Cell<u64>,
    pub(crate) tasks: RefCell<crate::home::work::Tasks>,
    pub(crate) cleaner_gate: Gate,
    /// Host blocks written before the last batch, and how many of them were folded by a commit: what was
    /// written since may have replaced what the map still names.
    pub(crate) recorded_at: Cell<u64>,
    pub(crate) folded_at: Cell<u64>,
    /// Which stripes of the courses looked at last were written.
    pub(crate) written_strips: RefCell<WrittenStrips>,
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
    /// The layout on these devices.
    pub shape: Shape,
    /// The superblock of any member.
    pub superblock: Superblock,
    /// The catalog.
    pub catalog: Catalog,
    /// The last durable root.
    pub root: Root,
    /// Its number, shared with the shards.
    pub birth: Rc<Cell<u64>>,
    /// The liveness tree.
    pub liveness: SysTree,
    /// The catalog's tree.
    pub catalog_tree: SysTree,
}

impl Home {
    /// A home; nothing runs yet.
    pub fn new(parts: HomeParts) -> Rc<Home> {
        let devices = parts.core.members.len();
        let meta_m = metadata_survives(&parts.shape).min(devices.saturating_sub(1));
        let records: BTreeMap<u32, u64> = parts
            .core
            .segments
            .borrow()
            .values()
            .filter(|s| s.record.get() != u32::MAX)
            .map(|s| (s.record.get(), s.number))
            .collect();
        let catalog_bytes = parts.catalog.encode();
        let slot_blocks = parts.core.slot_blocks;
        Rc::new(Home {
            next_segment: Cell::new(parts.root.next_segment),
            next_tree: Cell::new(parts.root.next_tree),
            core: parts.core,
            journal: parts.journal,
            shards: parts.shards,
            records: Records::new(RecordShape::new(slot_blocks, parts.shape.k), records),
            shape: parts.shape,
            meta_m: u16::try_from(meta_m).expect("at most 255"),
            superblock: RefCell::new(parts.superblock),
            catalog: RefCell::new(parts.catalog),
            root: RefCell::new(parts.root),
            birth: parts.birth,
            liveness: RefCell::new(parts.liveness),
            catalog_tree: RefCell::new(parts.catalog_tree),
            catalog_bytes: RefCell::new(catalog_bytes),
            meta: RefCell::default(),
            picks: RefCell::default(),
            warned: Cell::new(0),
            tile: Cell::new(0),
            opened: RefCell::default(),
            extra: RefCell::default(),
            unrecorded: RefCell::default(),
            batch_lock: Lock::ranked((), locks::BATCH),
            commit_lock: Lock::ranked((), locks::COMMIT),
            committed_to: Cell::new(0),
            meta_lock: Lock::ranked((), locks::META),
            held_room: RefCell::default(),
            renewed: RefCell::default(),
            placing: Lock::ranked((), locks::PLACING),
            log_lock: Lock::ranked((), locks::LOG),
            log_ended: Cell::new(false),
            demand: Demand::default(),
            fold_lock: Lock::ranked((), locks::FOLD),
            pressed_at: Cell::new(0),
            window: Window::default(),
            quorum: Cell::new(Quorum::Awaited),
            may_lose: Cell::new(false),
            force_gate: Gate::default(),
            waiting_quorum: Cell::new(None),
            stopped: RefCell::default(),
            committed: Gate::default(),
            commits: Cell::new(0),
            tasks: RefCell::default(),
            cleaner_gate: Gate::default(),
            recorded_at: Cell::new(0),
            folded_at: Cell::new(0),
            written_strips: RefCell::new(LruCache::new(COURSES_KEPT)),
        })
    }

    /// Answers messages until the array is closed.
    pub fn start(self: &Rc<Self>, mailbox: Mailbox<HomeMessage>) {
        self.choose_accelerator();
        let (home, rt) = (self.clone(), self.core.rt.clone());
        rt.spawn(async move { home.serve(mailbox).await });
        let home = self.clone();
        rt.spawn(async move { home.watch_members().await });
    }

    /// Runs batches and commits until the array is closed.
    ///
    /// Crash argument: after an import only once the shards have all that the journal had. A batch before
    /// that would give an older version of a block a newer sequence than the one still to be adopted; a
    /// commit would cut the journal of what no shard has, and free the segments that it lies in, since
    /// nothing in memory names them yet.
    pub fn start_batches(self: &Rc<Self>) {
        let (home, rt) = (self.clone(), self.core.rt.clone());
        rt.spawn(async move { home.batches().await });
        let home = self.clone();
        rt.spawn(async move { home.commits().await });
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
                HomeMessage::Allocate(purpose, from, reply) => {
                    let home = self.clone();
                    self.core
                        .rt
                        .spawn(async move { reply.send(home.allocate_data(purpose, from).await) });
                }
                HomeMessage::Fold(reply) => {
                    if self.demand.fold(reply) {
                        let home = self.clone();
                        self.core.rt.spawn(async move { home.fold_for_all().await });
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

    /// Folds once for all who have asked when it begins; those who ask later wait for the next.
    async fn fold_for_all(self: Rc<Self>) {
        let _one = self.fold_lock.lock().await;
        let asking = self.demand.begin_fold();
        self.unless_closed(self.fold()).await;
        for reply in asking {
            reply.send(());
        }
    }

    async fn batches(self: Rc<Self>) {
        let mut whole_at = self.core.rt.now();
        while !self.core.closed.get() {
            self.demand.batch_wanted(&self.core.rt, IDLE_BATCH).await;
            let only_record = self.demand.begin_batch();
            // Where nobody waits, and only room is wanted, unfinished stripes are left to fill: now and then they are
            // recorded as well.
            let due = self.core.rt.now() >= whole_at + IDLE_BATCH;
            if only_record && !due {
                self.batch(Reach::Written).await;
            } else {
                whole_at = self.core.rt.now();
                self.batch(Reach::All).await;
            }
            if planted::on(Bug::LateWaiterAnswered) {
                self.demand.take_late();
            }
            self.demand.end_batch();
            // What the last commit could not cut, the next one cannot either, unless something was recorded.
            if self.wants_commit() && self.journal.next() != self.pressed_at.get() {
                self.demand.press();
            }
        }
    }

    /// Commits beside the batches, whenever deltas or the journal press.
    async fn commits(self: Rc<Self>) {
        while !self.core.closed.get() {
            self.demand.commit_wanted(&self.core.closed).await;
            self.commit_some().await;
            self.pressed_at.set(self.journal.next());
        }
    }

    /// Stops everything: what cannot go on without breaking a promise.
    pub(crate) fn halt(&self, why: &str) {
        self.core.events.tell_sums();
        self.core.events.note("halted", None, why.to_string());
        *self.stopped.borrow_mut() = why.to_string();
        self.core.closed.set(true);
        self.demand.refuse();
        for shard in &self.shards {
            let _ = shard.send(ShardMessage::Close); // it may be gone already
        }
        for member in &self.core.members {
            member.close();
        }
        self.force_gate.open();
        self.core.failing_gate.open();
        self.core.settled.open();
        self.core.progress.open();
        self.core.events.close();
        self.core.heal_gate.open();
        self.cleaner_gate.open();
        self.demand.close();
    }

    /// Whether the journal or the deltas are full enough for a commit.
    fn wants_commit(&self) -> bool {
        let (size, used) = self.journal.usage(Ring::Delta);
        used * 2 > size
    }

    /// A commit that folds at least the older half of what the delta ring holds.
    async fn commit_some(self: &Rc<Self>) {
        // What is written but not recorded cannot be folded; and unfinished stripes would keep a ring
        // that is filling from being cut.
        self.batch(if self.wants_commit() {
            Reach::Closed
        } else {
            Reach::Written
        })
        .await;
        self.commit(self.journal.next()).await;
    }

    /// Does `work` to its end, or until the array stops: what waits for room or for devices then would wait
    /// for ever.
    pub(crate) async fn unless_closed(&self, work: impl Future<Output = ()>) {
        let mut work = pin!(work);
        let mut closed = pin!(self.core.settled.until(|| self.core.closed.get()));
        poll_fn(|cx| {
            if work.as_mut().poll(cx).is_ready() {
                return Poll::Ready(());
            }
            closed.as_mut().poll(cx)
        })
        .await;
    }

    /// Makes everything durable that shards have acknowledged, and folds it.
    pub(crate) async fn fold(self: &Rc<Self>) {
        self.batch(Reach::Closed).await;
        self.commit(self.journal.next()).await;
    }

    /// Flushes devices; those that cannot are reported and taken out before this returns.
    pub(crate) async fn flush(&self, devices: Vec<u16>) {
        self.flush_members(devices).await;
        self.members_settled().await;
    }

    /// Flushes devices; those that cannot are reported.
    pub(crate) async fn flush_members(&self, members: Vec<u16>) {
        let online = |index: &u16| self.core.member(*index).is_online();
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
