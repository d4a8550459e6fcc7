//! A column gets another slot: it is copied from where it is, or reconstructed from the others, written to the new slot,
//! read back and recorded.
//!
//! Invariants:
//! - It writes only what matches its rows, or was computed from inputs that match theirs (P4), flushes it and reads it
//!   back, and only then, by a journal record, says where the column is.
//! - The old column and the new one are told apart by their version.
//! - No two columns of a segment lie on one device, also where two are moved at once.
//! - No table names the new slot before that: a claim to a column of a higher version, of which nothing was
//!   written, would hide that the column is missing.

use std::collections::BTreeSet;
use std::rc::Rc;

use ashlar_format::BLOCK;
use ashlar_format::journal::Entry;
use ashlar_format::summary::{OWNER_BYTES, Owner, Row};
use ashlar_rt::{Buf, Slice};

use crate::background::Background;
use crate::background::stretch::Read;
use crate::home::log::Move;
use crate::home::scrub::bytes_of_courses;
use crate::planted::{self, Bug};
use crate::segment::coder::{Survivor, Wanted, decode_course, verify_course};
use crate::segment::course::{read_course, read_course_rows, read_courses};
use crate::segment::header::header_bytes;
use crate::segment::plan::{How, Span};
use crate::segment::read::{fetch, first_found, note_bad_blocks};
use crate::segment::stripe::{device_offset, strip_digest, summary_bytes};
use crate::segment::summary::decode_owner_bytes;
use crate::segment::{Column, Pinned, Segment};
use crate::status::Work;

/// A column on its way to a new slot.
#[derive(Debug, Clone, Copy)]
struct Moving {
    index: usize,
    old: Column,
    new: Column,
    /// The life of the slots of the device that it goes to.
    life: u32,
    /// Whether it can be copied from its old slot.
    copied: bool,
    /// Whether it can still get there.
    stands: bool,
}

/// How the slot is that a column leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Leaves {
    /// Others may have it.
    Sound,
    /// It did not keep what was written.
    Unkept,
}

impl Background {
    /// Copies columns that are there, computes others from verified inputs, all of them in one pass, writes them to new
    /// slots on these devices, where the ledger has given one each, reads them back, and journals their new places. How
    /// many it gave the segment.
    ///
    /// Crash argument: a new slot belongs to nobody until the `Column` entry is durable, which is
    /// after everything in it was flushed and read back; its version is higher than the lost column's,
    /// so that the two can never be confused. A crash before leaves the slot free.
    pub(super) async fn rebuild_columns(
        self: &Rc<Self>,
        segment: &Pinned,
        targets: &[(usize, u16)],
        (work, leaves): (Work, Leaves),
    ) -> usize {
        let mut moving = Vec::new();
        for (index, device) in targets.iter().copied() {
            let old = segment.columns.borrow()[index];
            let slots = &self.core.member(device).slots;
            let slot = slots.reserve();
            let new = Column {
                device,
                slot: slot.expect("the ledger gave it"),
                version: old.version + 1,
            };
            moving.push(Moving {
                index,
                old,
                new,
                life: slots.life(),
                copied: leaves == Leaves::Sound && self.core.column_usable(segment, index),
                stands: true,
            });
        }
        self.fill_columns(segment, &mut moving, work).await;
        let given = moving
            .iter()
            .filter(|m| self.give_column(segment, m, leaves));
        given.count()
    }

    /// The segment has a column in its new slot, if nothing has changed since it was begun.
    fn give_column(self: &Rc<Self>, segment: &Pinned, moving: &Moving, leaves: Leaves) -> bool {
        let Moving {
            index,
            old,
            new,
            life,
            ..
        } = *moving;
        let column = u16::try_from(index).expect("at most 256 columns");
        let member = self.core.member(new.device);
        if member.slots.life() != life {
            return false; // the device has left and come back: the slot is another's, or free
        }
        // Rebuild and repair may have moved it meanwhile, or another column of the segment to that device.
        let unchanged = {
            let columns = segment.columns.borrow();
            let there = |(c, column): (usize, &Column)| {
                c != index && column.is_placed() && column.device == new.device
            };
            columns[index] == old && !columns.iter().enumerate().any(there)
        };
        if !moving.stands || !unchanged || self.core.closed.get() {
            // Nothing names the slot: it is as free as it was.
            member.slots.release(new.slot);
            self.home.space.ledger().put_back(&[new.device]);
            return false;
        }
        member
            .slots
            .set(new.slot, Some(segment.slot_entry(column, new.version)));
        segment.columns.borrow_mut()[index] = new;
        self.core
            .bad
            .repairs
            .borrow_mut()
            .moved(segment.number, column);
        self.home.tasks.borrow_mut().gains += 1;
        let was_there = old.is_placed() && self.core.member(old.device).is_read();
        let from = (was_there && leaves == Leaves::Sound)
            .then(|| (old.device, self.core.member(old.device).slots.life()));
        self.home.log.moved(
            Move {
                segment: segment.number,
                column: index,
                from,
            },
            Entry::Column {
                segment: segment.number,
                column,
                version: new.version,
                device: new.device,
                slot: new.slot,
            },
        );
        self.leave_slot(old, leaves);
        self.core.unsettled.borrow_mut().insert(segment.number);
        let mut tasks = self.home.tasks.borrow_mut();
        let task = tasks.progress_mut(match was_there {
            true => Work::Rebalance,
            false => Work::Rebuild,
        });
        let bytes = u64::from(segment.geometry.slot_blocks) * BLOCK as u64;
        task.advance(self.core.rt.now(), bytes);
        true
    }

    /// A column is no longer in its slot. Of a device that is not in use there is nothing to do: should it ever be
    /// again, its table is not believed.
    fn leave_slot(&self, old: Column, leaves: Leaves) {
        if !old.is_placed() || !self.core.member(old.device).is_read() {
            return;
        }
        let slots = &self.core.member(old.device).slots;
        let mut ledger = self.home.space.ledger();
        match leaves {
            Leaves::Sound => {
                slots.set(old.slot, None);
                ledger.free_later(&[old.device], false);
                self.home.space.jobs.vacate(old);
            }
            Leaves::Unkept => {
                let worn = slots.set_aside(old.slot);
                ledger.quarantine(old.device);
                if worn {
                    ledger.wear_out(old.device);
                }
            }
        }
    }

    /// Writes headers and courses of columns to their new slots, flushes them and reads them back. Those for which it
    /// fails no longer stand.
    async fn fill_columns(self: &Rc<Self>, segment: &Pinned, moving: &mut [Moving], work: Work) {
        let geometry = segment.geometry;
        let mut devices: Vec<u16> = segment.columns.borrow().iter().map(|c| c.device).collect();
        for m in moving.iter() {
            devices[m.index] = m.new.device;
        }
        let header = |m: &Moving| {
            let slot = self
                .core
                .member(m.new.device)
                .geometry()
                .slot_offset(m.new.slot);
            let header = header_bytes(
                &self.core.identity.array,
                segment,
                m.index,
                m.new,
                devices.clone(),
            );
            (slot, vec![header])
        };
        let headers = moving.iter().map(header).collect();
        self.write_moving(moving, headers, work).await;
        let of = |copied: bool| {
            moving
                .iter()
                .filter(move |m| m.copied == copied)
                .map(|m| m.index)
        };
        let computed: Vec<usize> = of(false).collect();
        let columns = self.columns_to_read(segment, of(true).collect(), &computed);
        for stretch in self.stretches(segment) {
            if !moving.iter().any(|m| m.stands) {
                return;
            }
            let read = self.read_stretch(segment, &columns, &stretch, work).await;
            let first = geometry.strip_block(stretch.start * geometry.course_strips());
            let write = |m: &Moving| (device_offset(&self.core, m.new, first), Vec::new());
            let mut writes: Vec<(u64, Vec<Slice>)> = moving.iter().map(write).collect();
            for course in stretch.clone() {
                let Some(columns) = self.course_of(segment, moving, course, &read).await else {
                    moving.iter_mut().for_each(|m| m.stands = false);
                    return;
                };
                for ((m, write), (strips, mut rows)) in moving.iter().zip(&mut writes).zip(columns)
                {
                    if planted::on(Bug::RebuildWithoutSummary) {
                        rows.fill(Row::default());
                    }
                    let summary = summary_bytes(&self.core, segment, course, m.index, &rows);
                    write.1.extend([strips, summary]);
                }
            }
            self.write_moving(moving, writes, work).await;
        }
        for m in moving.iter_mut().filter(|m| m.stands) {
            m.stands = self.core.member(m.new.device).flush().await.is_ok();
            if !m.stands {
                self.core.report_failed(m.new.device);
            }
        }
        for m in moving.iter_mut().filter(|m| m.stands) {
            m.stands = self.read_back(segment, m.index, m.new, work).await;
        }
    }

    /// Writes to the new slots of columns, to all at once, each when it is the turn of its device.
    async fn write_moving(
        self: &Rc<Self>,
        moving: &mut [Moving],
        writes: Vec<(u64, Vec<Slice>)>,
        work: Work,
    ) {
        let submit = |(m, (offset, slices)): (&Moving, (u64, Vec<Slice>))| {
            let (background, device) = (self.clone(), m.new.device);
            let write = async move {
                let bytes = slices.iter().map(|s| s.len() as u64).sum();
                let _turn = background.turn(work, device, bytes).await;
                background.core.member(device).write(offset, slices).await
            };
            m.stands.then(|| self.core.rt.spawn(write))
        };
        let writing: Vec<_> = moving.iter().zip(writes).map(submit).collect();
        for (m, write) in moving.iter_mut().zip(writing) {
            if let Some(write) = write
                && write.await.is_err()
            {
                m.stands = false;
                self.core.report_failed(m.new.device);
            }
        }
    }

    /// The strips of one course of columns, and their rows: copied where the columns are and match, computed otherwise.
    async fn course_of(
        self: &Rc<Self>,
        segment: &Pinned,
        moving: &[Moving],
        course: u32,
        read: &Read,
    ) -> Option<Vec<(Slice, Vec<Row>)>> {
        let (mut copied, mut others) = (Vec::new(), Vec::new());
        for m in moving {
            let copy = match m.copied {
                true => self.copy_course(segment, m.index, course, read).await,
                false => None,
            };
            if copy.is_none() {
                others.push(m.index);
            }
            copied.push(copy);
        }
        let mut computed = match others.is_empty() {
            true => Vec::new(),
            false => self.compute_course(segment, &others, course, read).await?,
        }
        .into_iter();
        let of = |copy: Option<_>| copy.or_else(|| computed.next());
        copied.into_iter().map(of).collect()
    }

    /// One course of a column as it is there; `None` if some of it cannot be read, does not match its rows, or is not
    /// recorded.
    async fn copy_course(
        self: &Rc<Self>,
        segment: &Pinned,
        index: usize,
        course: u32,
        read: &Read,
    ) -> Option<(Slice, Vec<Row>)> {
        let ahead = read.borrow_mut().remove(&(course, index));
        let column = match ahead {
            Some(column) => column,
            None => read_course(&self.core, segment, course, index).await?,
        };
        let bad = verify_course(&self.core, segment, course, &column).await;
        note_bad_blocks(&self.core, segment, course, &column, &bad);
        let recorded = segment.recorded.get();
        let unrecorded = |(at, row): (u32, &Row)| {
            segment.geometry.in_course(course, at).0 >= recorded && *row != Row::default()
        };
        let as_recorded = !(0u32..).zip(&column.rows).any(unrecorded);
        (bad.is_empty() && as_recorded).then_some((column.bytes, column.rows))
    }

    /// Computes the strips of one course of columns, and their rows. Whole strips at once from the
    /// first K columns that can be read; what does not verify there is computed block by block.
    pub(super) async fn compute_course(
        self: &Rc<Self>,
        segment: &Pinned,
        indexes: &[usize],
        course: u32,
        read: &Read,
    ) -> Option<Vec<(Slice, Vec<Row>)>> {
        let survivors = self.read_survivors(segment, indexes, course, read).await?;
        let wanted = self.owners_of(segment, indexes, &survivors)?;
        let decoded = decode_course(&self.core, segment, course, &survivors, &wanted).await?;
        let mut doubtful: BTreeSet<usize> = BTreeSet::new();
        for (survivor, bad) in survivors.iter().zip(&decoded.bad) {
            note_bad_blocks(&self.core, segment, course, survivor, bad);
            doubtful.extend(bad);
        }
        let strip = segment.geometry.strip_blocks as usize;
        let has_row = |rows: &[Row]| rows.iter().any(|row| row.digest != [0; 16]);
        let of_strip = |rows: &[Row]| rows.chunks(strip).map(has_row).collect::<Vec<bool>>();
        let mut seen = vec![false; segment.geometry.strips_in(course) as usize];
        for rows in survivors.iter().map(|s| of_strip(&s.rows)) {
            seen.iter_mut()
                .zip(rows)
                .for_each(|(seen, has)| *seen |= has);
        }
        let mut columns = Vec::new();
        for ((index, owners), (bytes, digests)) in wanted.iter().zip(decoded.columns) {
            let column = (*index, &owners[..], &doubtful, &seen[..]);
            columns.push(
                self.check_course(segment, course, column, bytes, digests)
                    .await?,
            );
        }
        Some(columns)
    }

    /// A course of K columns, but for some, that can be read, first of those that were read already; `None` if there are
    /// fewer.
    async fn read_survivors(
        self: &Rc<Self>,
        segment: &Pinned,
        without: &[usize],
        course: u32,
        stretch: &Read,
    ) -> Option<Vec<Survivor>> {
        let k = usize::from(segment.geometry.k);
        let usable = |c: &usize| !without.contains(c) && self.core.column_usable(segment, *c);
        let mut others: Vec<usize> = (0..segment.geometry.width()).filter(usable).collect();
        others.sort_by_key(|other| !stretch.borrow().contains_key(&(course, *other)));
        let read = |other| {
            let (core, segment) = (self.core.clone(), segment.clone());
            let already = stretch.borrow_mut().remove(&(course, other));
            let read = async move {
                match already {
                    Some(survivor) => Some(survivor),
                    None => read_course(&core, &segment, course, other).await,
                }
            };
            self.core.rt.spawn(read)
        };
        let found = first_found(k, others.into_iter(), read).await?;
        let mut survivors: Vec<Survivor> = found.into_iter().map(|(_, s)| s).collect();
        survivors.sort_by_key(|s| s.column); // as the decoder takes them
        Some(survivors)
    }

    /// The owners of the blocks of columns, decoded from the rows of K others.
    fn owners_of(
        &self,
        segment: &Segment,
        indexes: &[usize],
        survivors: &[Survivor],
    ) -> Option<Vec<Wanted>> {
        let rows = survivors.iter().map(|s| (s.column, &s.rows[..]));
        let columns = decode_owner_bytes(&self.core, segment, indexes, rows)?;
        let owners = |bytes: Vec<[u8; OWNER_BYTES]>| bytes.iter().map(Owner::from_bytes).collect();
        let owners = columns.into_iter().map(owners);
        Some(indexes.iter().copied().zip(owners).collect())
    }

    /// The strips of a computed column as they are to be written, and their rows: strips that were never written are
    /// zeros without rows, and what was computed from bad blocks is computed again, block by block.
    async fn check_course(
        self: &Rc<Self>,
        segment: &Pinned,
        course: u32,
        (index, owners, doubtful, seen): (usize, &[Owner], &BTreeSet<usize>, &[bool]),
        mut out: Buf,
        digests: Vec<Option<[u8; 16]>>,
    ) -> Option<(Slice, Vec<Row>)> {
        let geometry = segment.geometry;
        let column = u16::try_from(index).expect("at most 256 columns");
        let mut rows = Vec::with_capacity(owners.len());
        for ((at, owner), mut digest) in (0u32..).zip(owners).zip(digests) {
            let (stripe, within) = geometry.in_course(course, at);
            let bytes = &mut out[at as usize * BLOCK..(at as usize + 1) * BLOCK];
            let seen = seen[(at / geometry.strip_blocks) as usize];
            if !self.is_written(segment, stripe, index, seen).await? {
                bytes.fill(0);
                rows.push(Row::default());
                continue;
            }
            let trusted = planted::on(Bug::RebuildUnverified);
            if doubtful.contains(&(at as usize)) && !trusted {
                let span = Span::block(stripe, index, within);
                let decoded = fetch(&self.core, segment, span, How::DecodedVerified);
                bytes.copy_from_slice(&decoded.await?);
                digest = strip_digest(&self.core, segment, (stripe, column, within), owner, bytes);
            }
            rows.push(Row {
                digest: digest?,
                owner: owner.to_bytes(),
            });
        }
        Some((out.freeze(), rows))
    }

    /// Whether a lost column's strip of a stripe was written: a parity strip if any parity row of the
    /// stripe exists, a data strip if also its owners or a later strip's rows say so. A strip that was
    /// not written decodes to zeros, which is what it counts as; writing it as padding is as good. `seen`: some other
    /// column has rows of the stripe.
    async fn is_written(
        self: &Rc<Self>,
        segment: &Pinned,
        stripe: u32,
        index: usize,
        seen: bool,
    ) -> Option<bool> {
        if stripe >= segment.recorded.get() {
            return Some(false);
        }
        if index >= usize::from(segment.geometry.k) || segment.geometry.m == 0 {
            if planted::on(Bug::ShortParityForgotten)
                && segment.short.borrow().contains_key(&stripe)
            {
                return Some(false);
            }
            // A void stripe has no rows anywhere.
            return self.stripe_has_rows(segment, stripe, seen).await;
        }
        if let Some(used) = segment.short.borrow().get(&stripe) {
            return Some(index < usize::from(*used));
        }
        self.stripe_has_rows(segment, stripe, seen).await
    }

    /// Whether any column's row of the stripe is not empty; `None` if no summary can be read.
    async fn stripe_has_rows(
        self: &Rc<Self>,
        segment: &Pinned,
        stripe: u32,
        seen: bool,
    ) -> Option<bool> {
        if seen {
            return Some(true);
        }
        if let Some(rows) = segment.rows.borrow().get(&stripe) {
            return Some(rows.iter().any(|column| !column.is_empty()));
        }
        let course = segment.geometry.course_of(stripe);
        let at = stripe % segment.geometry.course_strips();
        let key = (segment.number, course);
        if let Some(written) = self.written_strips.borrow_mut().get(&key) {
            return Some(written.contains(&at));
        }
        let mut written = BTreeSet::new();
        let mut seen = false;
        for column in segment.always_written() {
            if let Some(rows) = read_course_rows(&self.core, segment, course, column).await {
                seen = true;
                let strips = rows.chunks(segment.geometry.strip_blocks as usize);
                written.extend(
                    (0u32..)
                        .zip(strips)
                        .filter(|(_, r)| r[0].digest != [0; 16])
                        .map(|(strip, _)| strip),
                );
            }
        }
        if !seen {
            return None;
        }
        let answer = written.contains(&at);
        if segment.sealed.get() {
            self.written_strips.borrow_mut().put(key, written); // it changes no more
        }
        Some(answer)
    }

    /// Reads a column that was just written and compares it with its own summary.
    async fn read_back(
        self: &Rc<Self>,
        segment: &Pinned,
        index: usize,
        new: Column,
        work: Work,
    ) -> bool {
        let geometry = segment.geometry;
        let copy = Segment::create(
            segment.number,
            segment.kind,
            geometry,
            segment.code,
            {
                let mut columns = segment.columns.borrow().clone();
                columns[index] = new;
                columns
            },
            u32::MAX,
        );
        copy.recorded.set(segment.recorded.get());
        for stretch in self.stretches(segment) {
            let bytes = bytes_of_courses(geometry, stretch.clone());
            let turn = self.turn(work, new.device, bytes).await;
            let read = read_courses(&self.core, &copy, stretch.clone(), index).await;
            drop(turn);
            if read.len() < stretch.len() {
                return false;
            }
            for (course, column) in read {
                let bad = verify_course(&self.core, &copy, course, &column).await;
                note_bad_blocks(&self.core, &copy, course, &column, &bad);
                if !bad.is_empty() {
                    return false;
                }
            }
        }
        true
    }
}
