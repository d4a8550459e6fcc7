//! A lost column: computed from the others, written to a new slot, read back and recorded.
//!
//! Invariants:
//! - It writes only what was computed from inputs that match their rows (P4), flushes it and reads it
//!   back, and only then, by a journal record, says where the column is.
//! - The old column and the new one are told apart by their version.
//! - No two columns of a segment lie on one device, also where two are moved at once.
//! - No table names the new slot before that: a claim to a column of a higher version, of which nothing was
//!   written, would hide that the column is missing.

use std::collections::BTreeSet;
use std::rc::Rc;

use ashlar_format::BLOCK;
use ashlar_format::journal::Entry;
use ashlar_format::summary::{Owner, Row};
use ashlar_rt::Slice;

use crate::alloc::header_bytes;
use crate::coder::{Survivor, decode_course, verify_course};
use crate::home::Home;
use crate::planted::{self, Bug};
use crate::read::{decode_column, note_bad_blocks, read_course, read_course_rows};
use crate::segment::{Column, Segment};
use crate::stripe::{device_offset, strip_digest, summary_bytes};

impl Home {
    /// Computes a column from verified inputs, writes it to a new slot, reads it back, and journals its
    /// new place.
    ///
    /// Crash argument: the new slot belongs to nobody until the `Column` entry is durable, which is
    /// after everything in it was flushed and read back; its version is higher than the lost column's,
    /// so that the two can never be confused. A crash before leaves the slot free.
    pub(super) async fn reconstruct_column(
        self: &Rc<Self>,
        segment: &Rc<Segment>,
        index: usize,
        target: u16,
    ) -> bool {
        let old = segment.columns.borrow()[index];
        let column = u16::try_from(index).expect("at most 256 columns");
        let entry = segment.slot_entry(column, old.version + 1);
        let Some(slot) = self.core.member(target).reserve_slot() else {
            return false;
        };
        let new = Column {
            device: target,
            slot,
            version: old.version + 1,
        };
        let done = self.fill_column(segment, index, new).await;
        // Reconstruct and heal may have moved it meanwhile, or another column of the segment to that device.
        let unchanged = {
            let columns = segment.columns.borrow();
            let there = |(c, column): (usize, &Column)| {
                c != index && column.is_placed() && column.device == target
            };
            columns[index] == old && !columns.iter().enumerate().any(there)
        };
        let unchanged = unchanged && !self.core.closed.get();
        if !done || !unchanged {
            // Nothing names the slot: it is as free as it was.
            self.core.member(target).release_slot(slot);
            return false;
        }
        self.core.member(target).set_slot(slot, Some(entry));
        segment.columns.borrow_mut()[index] = new;
        self.core.heals.borrow_mut().moved(segment.number, column);
        self.tasks.borrow_mut().gains += 1;
        self.unrecorded.borrow_mut().push(segment.number);
        self.extra.borrow_mut().push(Entry::Column {
            segment: segment.number,
            column,
            version: new.version,
            device: target,
            slot,
        });
        if old.is_placed() {
            // Its device is not in use, and should it ever be again its table is not believed; or the slot
            // did not keep what was written.
            self.core.member(old.device).set_aside(old.slot);
        }
        self.tasks.borrow_mut().reconstruct.done +=
            u64::from(segment.geometry.slot_blocks) * BLOCK as u64;
        true
    }

    async fn fill_column(
        self: &Rc<Self>,
        segment: &Rc<Segment>,
        index: usize,
        new: Column,
    ) -> bool {
        let member = self.core.member(new.device);
        let geometry = segment.geometry;
        let mut devices: Vec<u16> = segment.columns.borrow().iter().map(|c| c.device).collect();
        devices[index] = new.device;
        let header = header_bytes(&self.core.array, segment, index, new, devices);
        if member
            .write(member.geometry.slot_offset(new.slot), vec![header])
            .await
            .is_err()
        {
            self.core.report_failed(new.device);
            return false;
        }
        let recorded = segment.recorded.get();
        for course in 0..geometry.courses() {
            if course * geometry.course_strips() >= recorded {
                break;
            }
            let Some((mut strips, rows)) = self.compute_course(segment, index, course).await else {
                return false;
            };
            let mut rows = rows;
            if planted::on(Bug::ReconstructWithoutSummary) {
                rows.fill(Row::default());
            }
            strips.push(summary_bytes(&self.core, segment, course, index, &rows));
            let offset = device_offset(
                &self.core,
                new,
                geometry.strip_block(course * geometry.course_strips()),
            );
            if member.write(offset, strips).await.is_err() {
                self.core.report_failed(new.device);
                return false;
            }
        }
        if member.flush().await.is_err() {
            self.core.report_failed(new.device);
            return false;
        }
        self.read_back(segment, index, new).await
    }

    /// Computes the strips of one course of a column, and their rows. Whole strips at once from the
    /// first K columns that can be read; what does not verify there is computed block by block.
    pub(super) async fn compute_course(
        self: &Rc<Self>,
        segment: &Rc<Segment>,
        index: usize,
        course: u32,
    ) -> Option<(Vec<Slice>, Vec<Row>)> {
        let geometry = segment.geometry;
        let (k, column) = (
            usize::from(geometry.k),
            u16::try_from(index).expect("at most 256 columns"),
        );
        let blocks = geometry.strips_in(course) * geometry.strip_blocks;
        let owners = self.decode_owners(segment, course, index).await?;
        let mut others =
            (0..geometry.width()).filter(|c| *c != index && self.core.column_usable(segment, *c));
        let mut survivors: Vec<Survivor> = Vec::new();
        while survivors.len() < k {
            let mut joins = Vec::new();
            for other in others.by_ref().take(k - survivors.len()) {
                let (core, segment) = (self.core.clone(), segment.clone());
                let read = async move { read_course(&core, &segment, course, other).await };
                joins.push(self.core.rt.spawn(read));
            }
            if joins.is_empty() {
                return None;
            }
            for join in joins {
                survivors.extend(join.await);
            }
        }
        let of: Vec<Owner> = owners
            .iter()
            .map(|row| Owner::from_bytes(&row.owner))
            .collect();
        let decoded = decode_course(&self.core, segment, course, &survivors, index, &of).await?;
        let mut doubtful: BTreeSet<usize> = BTreeSet::new();
        for (survivor, bad) in survivors.iter().zip(&decoded.bad) {
            note_bad_blocks(&self.core, segment, course, survivor, bad);
            doubtful.extend(bad);
        }
        let mut out = decoded.bytes;
        let mut rows = Vec::new();
        for at in 0..blocks {
            let (stripe, within) = geometry.in_course(course, at);
            if !self.is_written(segment, stripe, index).await? {
                out[at as usize * BLOCK..(at as usize + 1) * BLOCK].fill(0);
                rows.push(Row::default());
                continue;
            }
            let bytes = &mut out[at as usize * BLOCK..(at as usize + 1) * BLOCK];
            let trusted = planted::on(Bug::ReconstructUnverified);
            let mut digest = decoded.digests[at as usize];
            if doubtful.contains(&(at as usize)) && !trusted {
                bytes.copy_from_slice(
                    &decode_column(&self.core, segment, stripe, index, within, true).await?,
                );
                let place = (stripe, column, within);
                digest = strip_digest(&self.core, segment, place, &of[at as usize], bytes);
            }
            rows.push(Row {
                digest: digest?,
                owner: owners[at as usize].owner,
            });
        }
        Some((vec![out.freeze()], rows))
    }

    /// Whether a lost column's strip of a stripe was written: a parity strip if any parity row of the
    /// stripe exists, a data strip if also its owners or a later strip's rows say so. A strip that was
    /// not written decodes to zeros, which is what it counts as; writing it as padding is as good.
    async fn is_written(
        self: &Rc<Self>,
        segment: &Rc<Segment>,
        stripe: u32,
        index: usize,
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
            return self.stripe_has_rows(segment, stripe).await;
        }
        if let Some(used) = segment.short.borrow().get(&stripe) {
            return Some(index < usize::from(*used));
        }
        self.stripe_has_rows(segment, stripe).await
    }

    /// Whether any column's row of the stripe is not empty; `None` if no summary can be read.
    async fn stripe_has_rows(self: &Rc<Self>, segment: &Rc<Segment>, stripe: u32) -> Option<bool> {
        if let Some(rows) = segment.rows.borrow().get(&stripe) {
            return Some(rows.iter().any(|column| !column.is_empty()));
        }
        let course = segment.geometry.course_of(stripe);
        let at = stripe % segment.geometry.course_strips();
        let key = (segment.number, course);
        if let Some((cached, written)) = &*self.written_strips.borrow()
            && *cached == key
        {
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
        *self.written_strips.borrow_mut() = Some((key, written));
        Some(answer)
    }

    /// Reads a column that was just written and compares it with its own summary.
    async fn read_back(self: &Rc<Self>, segment: &Rc<Segment>, index: usize, new: Column) -> bool {
        let geometry = segment.geometry;
        let copy = Segment::new(
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
        for course in 0..geometry.courses() {
            if course * geometry.course_strips() >= segment.recorded.get() {
                break;
            }
            let Some(column) = read_course(&self.core, &copy, course, index).await else {
                return false;
            };
            let bad = verify_course(&self.core, &copy, course, &column).await;
            note_bad_blocks(&self.core, &copy, course, &column, &bad);
            if !bad.is_empty() {
                return false;
            }
        }
        true
    }
}
