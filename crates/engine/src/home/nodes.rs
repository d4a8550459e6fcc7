//! Places of the nodes that a checkpoint writes: places first, bytes later. Places are handed out along the stripes
//! of metadata segments; when the checkpoint knows every node's bytes, the stripes are written.
//!
//! Invariant: every place handed out since the last [`Home::meta_write`] is in `stripes`, and each of
//! those stripes is written (padded) or given up by that call, before a root can name it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use ashlar_digest::Kind;
use ashlar_format::BLOCK;
use ashlar_format::context::Context;
use ashlar_format::journal::{Entry, StripeEntry};
use ashlar_format::node::Place;
use ashlar_format::summary::Owner;
use ashlar_rt::{Buf, Lock, Nanos, SECOND, Slice};

use crate::home::Home;
use crate::locks;
use crate::segment::coder::begin;
use crate::segment::stripe::{self, Stripe, TooFewColumns};
use crate::segment::{Pinned, Segment};

/// How long a checkpoint waits for room: slots that the devices are still discarding, or that a rebuild gives back; and a
/// client for the former.
pub(crate) const LONGEST_WAIT: Nanos = 300 * SECOND;

const NO_ROOM: &str = "no free space is left for a checkpoint; export the array, reconnect the missing devices \
    and import it again, or import it with --read-only and copy the data";

/// A stripe of nodes that is being filled: its segment, its number, and blocks taken.
type Filling = (Pinned, u32, u32);

/// Stripes of nodes that are being filled.
#[derive(Debug)]
pub struct NodeWriter {
    /// Of two that open a segment one would be forgotten: held by whoever takes a place.
    turn: Lock<()>,
    /// The segment that takes the next stripe.
    current: RefCell<Option<Pinned>>,
    /// Stripes with places handed out.
    stripes: RefCell<Vec<Filling>>,
}

impl Default for NodeWriter {
    fn default() -> NodeWriter {
        NodeWriter {
            turn: Lock::ranked((), locks::META),
            current: RefCell::default(),
            stripes: RefCell::default(),
        }
    }
}

impl NodeWriter {
    /// Whether this segment takes the next stripe.
    pub fn is_current(&self, segment: &Segment) -> bool {
        let current = self.current.borrow();
        current.as_ref().is_some_and(|s| s.number == segment.number)
    }

    /// Nodes that the stripes begun, and the segment that takes the next one, have room for.
    pub fn room(&self) -> u64 {
        let stripes = self.stripes.borrow();
        let begun = stripes.last().map_or(0, |(segment, _, taken)| {
            u64::from(segment.geometry.stripe_blocks() - taken)
        });
        let current = self.current.borrow();
        let current = current.as_ref().filter(|s| s.has_room());
        begun + current.map_or(0, |s| s.room())
    }

    /// This segment takes no more stripes.
    pub fn leave(&self, segment: &Segment) {
        if self.is_current(segment) {
            self.current.take();
        }
    }

    /// A place for one node, if the stripes begun or the segment that takes the next one have room.
    fn take(&self) -> Option<Place> {
        let mut stripes = self.stripes.borrow_mut();
        if let Some((segment, stripe, taken)) = stripes.last_mut()
            && *taken < segment.geometry.stripe_blocks()
        {
            let place = segment.place(*stripe * segment.geometry.stripe_blocks() + *taken);
            *taken += 1;
            return Some(place);
        }
        let current = self.current.borrow();
        let segment = current.clone().filter(|s| s.has_room())?;
        let stripe = segment.take_stripe();
        let place = segment.place(stripe * segment.geometry.stripe_blocks());
        stripes.push((segment, stripe, 1));
        Some(place)
    }
}

/// A node with its bytes, for its place.
#[derive(Debug, Clone)]
pub struct PlacedNode {
    /// Row owner.
    pub owner: Owner,
    /// Digest.
    pub digest: [u8; 16],
    /// Bytes.
    pub bytes: Slice,
}

impl Home {
    /// Places for `count` nodes, during a checkpoint. Waits for space if there is none.
    pub(crate) async fn meta_places(self: &Rc<Self>, count: usize) -> Vec<Place> {
        let mut places = Vec::with_capacity(count);
        while places.len() < count {
            places.push(self.meta_place().await);
        }
        places
    }

    /// One place. Halts the array if there is no room and none comes: what a checkpoint that has begun frees is
    /// free only once it has ended.
    pub(crate) async fn meta_place(self: &Rc<Self>) -> Place {
        let _one = self.nodes.turn.lock().await;
        let since = self.core.rt.now();
        loop {
            let current = self.nodes.current.borrow().clone();
            if let Some(segment) = current.filter(|s| self.falls_short(s)) {
                segment.retired.set(true);
                self.nodes.leave(&segment);
            }
            if let Some(place) = self.nodes.take() {
                return place;
            }
            match self.allocate_meta() {
                Some(segment) => *self.nodes.current.borrow_mut() = Some(segment),
                None => {
                    let progress = self.core.progress.wait();
                    let _ = self.core.rt.timeout(LONGEST_WAIT, progress).await;
                    let waited = self.core.rt.now() - since;
                    if waited >= LONGEST_WAIT && !self.core.closed.get() {
                        self.halt(NO_ROOM);
                    }
                }
            }
        }
    }

    /// Writes every stripe that has places, with the nodes at them, all together; blocks without a node are padding.
    /// Returns the stripes' journal entries. A stripe that cannot be written with enough columns is
    /// given as error: its nodes must be placed again.
    pub(crate) async fn meta_write(
        self: &Rc<Self>,
        nodes: &BTreeMap<Place, PlacedNode>,
    ) -> Result<Vec<(Pinned, u32, Entry)>, TooFewColumns> {
        let stripes = self.nodes.stripes.take();
        let mut preparing = Vec::new();
        for (segment, number, taken) in stripes {
            let blocks = segment.geometry.stripe_blocks();
            let mut data = Buf::scratch(blocks as usize * BLOCK);
            let mut owners = Vec::new();
            assert!(taken > 0, "a stripe is opened for its first place");
            // All strips are written, the unused ones as padding: at an import these stripes are read
            // before anything is known that could tell which strips are absent.
            for block in 0..blocks {
                let place = segment.place(number * blocks + block);
                let bytes = &mut data[block as usize * BLOCK..(block as usize + 1) * BLOCK];
                match nodes.get(&place) {
                    Some(node) => {
                        bytes.copy_from_slice(&node.bytes);
                        owners.push((node.owner, node.digest));
                    }
                    None => {
                        bytes.fill(0);
                        let column = u16::try_from(block).expect("one block a strip");
                        let context = Context::parity(segment.number, number, column, 0);
                        let digest = self.core.identity.digest(Kind::Blake3, context, bytes);
                        owners.push((Owner::default(), digest));
                    }
                }
            }
            let (core, data) = (self.core.clone(), data.freeze());
            preparing.push(begin(stripe::prepare(core, segment, number, data, owners)));
        }
        let mut prepared = Vec::new();
        for stripe in preparing {
            prepared.push(Rc::new(stripe.await));
        }
        if !prepared.is_empty() {
            stripe::write(self.core.clone(), prepared.clone()).await?;
        }
        let entry = |stripe: &Rc<Stripe>| {
            let (segment, number) = (stripe.segment.clone(), stripe.number);
            let entry = Entry::Stripe(StripeEntry {
                segment: segment.number,
                stripe: number,
                first_block: number * segment.geometry.stripe_blocks(),
                used_strips: stripe.used_strips,
                birth: self.root.birth(),
                rows: stripe.rows.concat(),
                deltas: Vec::new(),
            });
            (segment, number, entry)
        };
        Ok(prepared.iter().map(entry).collect())
    }
}
