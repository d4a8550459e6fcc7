//! Stripes from open to written.
//!
//! Invariants:
//! - Nothing new goes to a segment that lost a column: such a row is left for another at once.
//! - A stripe ends as `Written` or, empty, as `Void`; what a stripe that could not be written held is
//!   placed again first.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use ashlar_block::VolumeError;
use ashlar_format::BLOCK;
use ashlar_rt::Buf;
use ashlar_space::floors::Class;

use super::Shard;
use super::write::{By, Seen};
use crate::phases::Phase;
use crate::protocol::{HomeMessage, StripeId, ask};
use crate::segment::coder::begin;
use crate::segment::stream::{OpenStripe, Phase as StripePhase, Stream};
use crate::segment::{Pinned, stripe};

/// The stripes of a shard that no record names yet.
#[derive(Debug, Default)]
pub struct Stripes {
    /// Stripes whose blocks are being placed again.
    placing_anew: Cell<usize>,
    /// The stripes the streams are filling: looked at without waiting for the streams.
    pub(super) filling: RefCell<Vec<Rc<OpenStripe>>>,
    /// Stripes being written.
    pub(super) writing: RefCell<Vec<Rc<OpenStripe>>>,
    /// Stripes written but not recorded.
    pub(super) written: RefCell<Vec<Rc<OpenStripe>>>,
}

impl Stripes {
    /// A record of data holds blocks of a stripe, until it is recorded itself.
    pub(super) fn journaled(&self, stripe: StripeId) {
        for list in [&self.filling, &self.writing, &self.written] {
            let list = list.borrow();
            let found = list.iter().find(|s| s.id() == stripe);
            found.into_iter().for_each(|s| s.journaled.set(true));
        }
    }
}

impl Shard {
    /// Sees to it that the stream's stripe takes `pieces` more blocks, in this group if one is named.
    pub(super) async fn make_room(
        self: &Rc<Self>,
        stream: &mut Stream,
        pieces: u32,
        class: Class,
        into: Option<u16>,
    ) -> Result<(), VolumeError> {
        if stream
            .current
            .as_ref()
            .is_some_and(|s| s.phase.get() == StripePhase::Filling && s.room() >= pieces)
        {
            return Ok(());
        }
        self.close(stream);
        let mut wanted_row = stream.open_segments().max(1);
        let mut grow = stream.open_segments() == 0;
        loop {
            let broken: Vec<Pinned> = stream
                .row
                .iter()
                .filter(|s| self.core.has_lost_column(s))
                .cloned()
                .collect();
            if !broken.is_empty() {
                // A device of these failed: new data go where they have full redundancy at once.
                stream
                    .row
                    .retain(|s| !broken.iter().any(|b| b.number == s.number));
                grow = true;
            }
            // Laid narrow before there was a volume with blocks so large: those that are laid now take them.
            stream.row.retain(|segment| {
                let fits = segment.geometry.stripe_blocks() >= pieces;
                segment.retired.set(segment.retired.get() || !fits);
                fits
            });
            if grow || stream.open_segments() < wanted_row {
                let since = self.core.rt.now();
                let allocate = |reply| HomeMessage::Allocate(class, into, reply);
                let allocated = ask(&self.home, allocate).await;
                self.core
                    .meters
                    .phases
                    .end(Phase::Allocate, &self.core.rt, since);
                match allocated {
                    Some(Some(allocated)) => {
                        let Some(segment) = self.core.segment(allocated.segment) else {
                            continue; // it lost a device and is gone already: another one
                        };
                        if segment.geometry.stripe_blocks() < pieces {
                            segment.retired.set(true);
                            return Err(VolumeError::Closed); // its volume has left the catalog
                        }
                        wanted_row = allocated.row;
                        stream.row.push_back(segment);
                        grow = false;
                        continue;
                    }
                    Some(None) if self.core.closed.get() => return Err(VolumeError::Closed),
                    Some(None) if stream.open_segments() == 0 => return Err(VolumeError::NoSpace),
                    Some(None) => wanted_row = 0,
                    None => return Err(VolumeError::Closed),
                }
            }
            if let Some(segment) = stream.next_segment() {
                let stripe = OpenStripe::open(&segment);
                self.stripes.filling.borrow_mut().push(stripe.clone());
                stream.current = Some(stripe);
                return Ok(());
            }
            grow = true;
        }
    }

    /// Ends the stream's stripe and writes it.
    pub(super) fn close(self: &Rc<Self>, stream: &mut Stream) {
        if let Some(stripe) = stream.current.take() {
            self.close_stripe(&stripe);
        }
    }

    pub(super) fn close_stripe(self: &Rc<Self>, stripe: &Rc<OpenStripe>) {
        if stripe.phase.get() != StripePhase::Filling {
            return;
        }
        self.stripes
            .filling
            .borrow_mut()
            .retain(|s| !Rc::ptr_eq(s, stripe));
        self.stripes.writing.borrow_mut().push(stripe.clone());
        stripe.phase.set(StripePhase::Writing);
        let data = stripe.freeze();
        let owners = stripe.owners.borrow().clone();
        if owners.is_empty() {
            let (shard, stripe) = (self.clone(), stripe.clone());
            self.core
                .rt
                .spawn(async move { shard.end_void(&stripe).await });
            return;
        }
        let (core, segment) = (self.core.clone(), stripe.segment.clone());
        let number = stripe.number;
        // Computed and submitted here, as far as that goes without waiting: so the stripes of a segment reach the
        // devices in order.
        let starting = begin(async move {
            let preparing = stripe::prepare(core.clone(), segment, number, data, owners);
            let written = Rc::new(preparing.await);
            let writing = begin(stripe::write(core, vec![written.clone()]));
            (written, writing)
        });
        let (shard, stripe) = (self.clone(), stripe.clone());
        self.core.rt.spawn(async move {
            let (written, writing) = starting.await;
            *stripe.written.borrow_mut() = Some(written);
            match writing.await {
                Ok(()) => {
                    stripe.count_padding();
                    shard.stripe_done(&stripe, StripePhase::Written);
                }
                Err(stripe::TooFewColumns) => shard.place_anew(&stripe).await,
            }
        });
    }

    fn stripe_done(&self, stripe: &Rc<OpenStripe>, phase: StripePhase) {
        stripe.phase.set(phase);
        self.give_back(stripe);
        self.stripes
            .writing
            .borrow_mut()
            .retain(|s| !Rc::ptr_eq(s, stripe));
        self.stripes.written.borrow_mut().push(stripe.clone());
        stripe.gate.open();
        self.room.open();
        // In time, so that writers need not wait for the record.
        if self.stripes.written.borrow().len() * 4 >= self.bounds.get().unrecorded {
            let _ = self.home.send(HomeMessage::Record);
        }
    }

    /// A stripe that could not be written: its live blocks get new places, then it is recorded empty.
    ///
    /// The group commits wait for this, and with them everything that makes room. So it waits for nobody who waits
    /// for room: the places are in a stream of its own and come out of the last reserve, and where that has
    /// none the array stops.
    ///
    /// Crash argument: nothing of the stripe is recorded, and its void is not before what it held is in a
    /// stripe that the same group commit takes (`collect`). What an earlier record of data holds stays in the ring
    /// until then. Where the array stops, nothing is recorded any more: what was not durable was not promised.
    async fn place_anew(self: &Rc<Self>, stripe: &Rc<OpenStripe>) {
        self.stripes
            .placing_anew
            .set(self.stripes.placing_anew.get() + 1);
        let placed = self.place_items(stripe).await;
        self.stripes
            .placing_anew
            .set(self.stripes.placing_anew.get() - 1);
        if let Err(VolumeError::NoSpace) = placed {
            let why = "more devices failed during a write than parity covers, and no slot is free to write the \
                data again; export the array, reconnect these devices and import it again";
            let _ = self.home.send(HomeMessage::Halt(why)); // it may have stopped already
            return;
        }
        if self.stripes.placing_anew.get() == 0 {
            // A stream that is seldom used keeps no segment from the cleaner.
            let mut rescue = self.rescue.lock().await;
            self.close(&mut rescue);
            let row = std::mem::take(&mut rescue.row);
            row.iter().for_each(|segment| segment.retired.set(true));
        }
        self.end_void(stripe).await;
    }

    async fn place_items(self: &Rc<Self>, stripe: &Rc<OpenStripe>) -> Result<(), VolumeError> {
        let items = stripe.items.borrow().clone();
        for item in items {
            let newest = self.deltas.borrow().lookup(item.tree, item.address).stamp() == item.stamp;
            let Ok(shape) = self.shape(item.tree) else {
                continue;
            };
            if item.from.is_some() {
                self.deltas
                    .borrow_mut()
                    .remove(item.tree, item.address, item.stamp);
                continue;
            }
            if !newest {
                continue;
            }
            let mut bytes = Buf::zeroed(item.pieces as usize * BLOCK);
            stripe.copy(item.block, item.pieces, &mut bytes);
            let (stamp, merges) = (item.stamp, self.merging.count.get());
            let seen = Some(Seen { stamp, merges });
            // Another answer: it has changed since, or its volume or the array is going.
            let placed = self.place_block(shape, item.address, &bytes, seen, By::Rescue);
            if let Err(VolumeError::NoSpace) = placed.await {
                return Err(VolumeError::NoSpace);
            }
        }
        Ok(())
    }

    /// Ends a stripe that holds nothing. The last one of a course is written with the course's summary:
    /// where it is not written, the summary is, before the rows can be forgotten.
    async fn end_void(self: &Rc<Self>, stripe: &Rc<OpenStripe>) {
        let (segment, number) = (&stripe.segment, stripe.number);
        segment.turn_of(number).await;
        segment.rows.borrow_mut().remove(&number);
        segment.short.borrow_mut().insert(number, 0);
        segment.end_turn(number);
        let geometry = segment.geometry;
        let course = geometry.course_of(number);
        if number + 1 == course * geometry.course_strips() + geometry.strips_in(course) {
            stripe::write_summary(&self.core, segment, number + 1).await;
        }
        self.stripe_done(stripe, StripePhase::Void);
    }
}
