//! Reconstruct: gives missing columns of segments new slots on healthy devices.
//!
//! Invariants:
//! - It writes only what was computed from inputs that match their rows (P4), flushes it and reads it
//!   back, and only then, by a journal record, says where the column is.
//! - The old column and the new one are told apart by their version.
//! - No two columns of a segment lie on one device, also where two are moved at once.
//! - No table names the new slot before that: a claim to a column of a higher version, of which nothing was
//!   written, would hide that the column is missing.
//! - Least redundancy first; a segment that lost more than its M columns is left alone.

use std::collections::BTreeSet;
use std::rc::Rc;

use ashlar_format::BLOCK;
use ashlar_format::journal::Entry;
use ashlar_format::slot::SegmentKind;
use ashlar_format::summary::{Owner, Row};
use ashlar_rt::{Nanos, SECOND, Slice};

use crate::alloc::{commit_slots, header_bytes};
use crate::coder::{Survivor, decode_course, verify_course};
use crate::home::Home;
use crate::planted::{self, Bug};
use crate::read::{decode_column, note_bad_blocks, read_course, read_course_rows};
use crate::segment::{Column, Segment};
use crate::stripe::{device_offset, strip_digest, summary_bytes};

/// Between rounds that gain nothing while nothing changes.
const LONGEST_PAUSE: Nanos = 3600 * SECOND;

impl Home {
    /// Columns that are missing though a device is free for them, least redundancy first.
    pub(super) fn to_reconstruct(&self) -> Vec<(usize, Rc<Segment>)> {
        if !self.core.maybe_degraded.get() {
            return Vec::new();
        }
        let mut due: Vec<(usize, Rc<Segment>)> = self
            .core
            .segments
            .borrow()
            .values()
            .cloned()
            .filter_map(|s| Some((self.columns_to_gain(&s)?, s)))
            .collect();
        due.sort_by_key(|(missing, s)| {
            std::cmp::Reverse((*missing as i64 - i64::from(s.geometry.m), s.number))
        });
        due
    }

    /// How many columns a sealed segment misses that can be had from the others, if any, and if it holds
    /// anything; whoever asks holds it once beside the table.
    fn columns_to_gain(&self, segment: &Rc<Segment>) -> Option<usize> {
        let missing = self.core.missing_columns(segment);
        let holds = !segment.live.borrow().is_empty() || Rc::strong_count(segment) > 2;
        let gains = missing > 0 && missing <= usize::from(segment.geometry.m);
        (segment.sealed.get() && gains && holds).then_some(missing)
    }

    pub(super) async fn reconstruct_forever(self: Rc<Self>) {
        let mut pause = SECOND;
        while !self.core.closed.get() {
            let seen = self.redundancy();
            let degraded = self.is_degraded();
            let gained = degraded && self.reconstruct_once().await;
            self.tasks
                .borrow_mut()
                .reconstruct_rest
                .round(gained || !degraded, seen);
            self.core.progress.open();
            if gained {
                continue;
            }
            self.show_rest(self.is_degraded());
            // Looked at again when a member goes or something changes, and now and then in any case: a
            // device may have read what it could not.
            let tried = degraded && self.reconstruct_rests();
            pause = if tried {
                (2 * pause).min(LONGEST_PAUSE)
            } else {
                SECOND
            };
            let mut slept = 0;
            while slept < pause && (slept == 0 || self.reconstruct_rests()) {
                let wait = self.core.failing_gate.wait();
                let timed_out = self.core.rt.timeout(SECOND, wait).await.is_none();
                slept = if timed_out { slept + SECOND } else { pause };
            }
        }
    }

    /// One round over everything that misses columns; whether anything was gained.
    async fn reconstruct_once(self: &Rc<Self>) -> bool {
        let mut gained = self.seal_broken().await;
        let empty = self.empty_short();
        if self.journal_is_short() || empty > 0 {
            // Folding what hangs on them makes up for that; no column needs computing.
            let (short, cut) = (self.journal_is_short(), self.root.borrow().cut);
            self.batch(true).await;
            if short {
                self.seal_old_rows().await;
            }
            self.commit(self.journal.next()).await;
            let folded = self.root.borrow().cut > cut;
            gained |= self.empty_short() < empty || short && (folded || !self.journal_is_short());
        }
        let due = self.to_reconstruct();
        if due.is_empty() {
            return gained;
        }
        self.start_progress(&due);
        // By number: held, none that dies before its turn could be freed, and this may take hours.
        let due: Vec<u64> = due.into_iter().map(|(_, segment)| segment.number).collect();
        let mut moved = 0;
        for number in due {
            let segment = self.core.segment(number);
            let Some(segment) = segment.filter(|s| self.columns_to_gain(s).is_some()) else {
                continue;
            };
            if self.reconstruct_segment(&segment).await {
                moved += 1;
            }
        }
        gained |= self.renew_metadata().await;
        if moved > 0 {
            self.batch(false).await;
            self.commit(self.journal.next()).await;
            let text = format!("{moved} segments have their columns again");
            self.core.event("reconstructed", None, text);
            gained = true;
        }
        gained || self.narrow_critical().await
    }

    /// Shows that nothing can be reconstructed now: because nothing is missing, or there is nowhere to go.
    fn show_rest(&self, waits: bool) {
        let reason = if waits { self.why_waiting() } else { "" };
        let task = &mut self.tasks.borrow_mut().reconstruct;
        if waits {
            task.state = "waiting";
            task.reason = reason;
        } else if !task.state.is_empty() {
            task.state = "done";
            task.reason = "";
        }
    }

    /// Why what is missing cannot be reconstructed now.
    pub(super) fn why_waiting(&self) -> &'static str {
        let mut due = self.to_reconstruct();
        due.truncate(256); // those that lost most tell it
        let missing = |s: &Segment| {
            let columns = 0..s.geometry.width();
            let lost = columns.filter(|c| !self.core.column_usable(s, *c));
            lost.collect::<Vec<usize>>()
        };
        let promised = |s: &Segment| {
            let mut lost = missing(s).into_iter();
            lost.any(|c| self.device_with_room(s, c, true).is_some())
        };
        let width = usize::from(self.shape.width());
        let mut groups = self.shape.groups.iter();
        let narrow = groups.any(|g| self.online_of(g).count() < width.min(g.len()));
        if due.is_empty() {
            "what is missing was lost beyond its redundancy, or is written with less for want of room"
        } else if due.iter().any(|(_, s)| promised(s)) {
            "the room that is left was promised to volumes"
        } else if narrow {
            "too few devices are left to take the missing columns"
        } else {
            "no device has room for the missing columns"
        }
    }

    /// How many sealed segments without live blocks miss columns: a commit folds what deltas hold in
    /// them, or frees them.
    fn empty_short(&self) -> usize {
        let segments = self.core.segments.borrow();
        let short = |s: &&Rc<Segment>| {
            let free = s.live.borrow().is_empty() && Rc::strong_count(s) == 1;
            s.sealed.get() && free && self.core.missing_columns(s) > 0
        };
        segments.values().filter(short).count()
    }

    /// Nodes in segments wider than what is left of the array are written anew, as wide as now fits.
    async fn renew_metadata(self: &Rc<Self>) -> bool {
        let (_, survives) = self.meta_anew();
        let short: Vec<Rc<Segment>> = self
            .to_reconstruct()
            .into_iter()
            .filter(|(missing, s)| {
                s.kind == SegmentKind::Meta && survives > usize::from(s.geometry.m) - missing
            })
            .map(|(_, s)| s)
            .collect();
        for segment in &short {
            self.clean_segment(segment).await;
        }
        if short.is_empty() {
            return false;
        }
        let live = || short.iter().map(|s| s.live.borrow().count()).sum::<u32>();
        let before = live();
        self.batch(false).await;
        self.commit(self.journal.next()).await;
        live() < before
    }

    fn start_progress(&self, due: &[(usize, Rc<Segment>)]) {
        let total: u64 = due
            .iter()
            .map(|(missing, s)| *missing as u64 * u64::from(s.geometry.slot_blocks) * BLOCK as u64)
            .sum();
        let mut tasks = self.tasks.borrow_mut();
        let now = self.core.rt.now();
        let task = &mut tasks.reconstruct;
        if task.state != "running" {
            (task.done, task.since) = (0, now);
        }
        task.state = "running";
        task.reason = "";
        task.total = task.done + total;
    }

    /// Open segments that lost a column, or could have one that they never had, take no more stripes, so
    /// that they can be reconstructed. (Others go on: what would replace them would lack the same columns.)
    /// Whether any was sealed.
    async fn seal_broken(self: &Rc<Self>) -> bool {
        let broken: Vec<Rc<Segment>> = self
            .core
            .segments
            .borrow()
            .values()
            .filter(|s| !s.sealed.get() && (self.core.has_lost_column(s) || self.can_gain(s)))
            .cloned()
            .collect();
        if broken.is_empty() {
            return false;
        }
        // Of these the batch closes stripes that took nothing as well.
        broken.iter().for_each(|s| s.retired.set(true));
        self.batch(true).await;
        for segment in &broken {
            if segment.recorded.get() == segment.next_stripe.get() && !segment.sealed.get() {
                self.seal(segment).await;
            }
        }
        broken.iter().any(|s| s.sealed.get())
    }

    /// Whether a missing column of a segment has a device to go to.
    fn can_gain(&self, segment: &Segment) -> bool {
        let missing = |c: &usize| !self.core.column_usable(segment, *c);
        let mut missing = (0..segment.geometry.width()).filter(missing);
        missing.any(|c| self.device_for(segment, c).is_some())
    }

    /// Open segments whose rows lie in records of a closed epoch take no more stripes: what their summaries
    /// say no longer keeps these records.
    async fn seal_old_rows(self: &Rc<Self>) {
        let end = self.root.borrow().epochs.iter().filter_map(|e| e.end).max();
        let old = |s: &&Rc<Segment>| s.rows_since.get().is_some_and(|since| Some(since) < end);
        let old: Vec<Rc<Segment>> = {
            let segments = self.core.segments.borrow();
            segments.values().filter(old).cloned().collect()
        };
        for segment in old {
            if segment.sealed.get() {
                continue;
            }
            if segment.recorded.get() == segment.next_stripe.get() {
                self.seal(&segment).await;
            } else {
                segment.retired.set(true); // sealed once its last stripe is recorded
            }
        }
    }

    /// With neither spare nor replacement, segments without redundancy left are written anew, narrower
    /// (`reconstruct.narrow = critical`). Whether anything was moved.
    async fn narrow_critical(self: &Rc<Self>) -> bool {
        let policy = self.narrow_policy();
        let (online, roomy) = (self.core.online().len(), self.has_roomy_group());
        let (_, survives) = self.meta_anew();
        let critical: Vec<Rc<Segment>> = self
            .to_reconstruct()
            .into_iter()
            .filter(|(missing, s)| match policy.as_str() {
                "never" => false,
                "always" => true,
                _ => {
                    // A last copy is written anew only where there is room for two.
                    let narrower = s.geometry.width() - *missing > 1;
                    let better = narrower || roomy && s.kind == SegmentKind::Data;
                    *missing == usize::from(s.geometry.m) && better
                }
            })
            .filter(|(_, s)| online > 1 && !s.live.borrow().is_empty())
            .filter(|(missing, s)| {
                // As wide as it is for the sake of large volume blocks, or for want of room for narrow
                // metadata, it would only be written again.
                let left = usize::from(s.geometry.m) - missing;
                match s.kind {
                    SegmentKind::Meta => survives > left,
                    SegmentKind::Data => roomy || self.redundancy_anew(s) > left,
                }
            })
            .map(|(_, s)| s)
            .take(4)
            .collect();
        // What replaces them must be better than they are.
        if critical.is_empty() || self.shape.groups.iter().any(|g| self.keeps_shares(g)) {
            return false;
        }
        let before: u32 = critical.iter().map(|s| s.live.borrow().count()).sum();
        for segment in &critical {
            self.clean_segment(segment).await;
        }
        self.fold().await;
        let after: u32 = critical.iter().map(|s| s.live.borrow().count()).sum();
        self.tasks.borrow_mut().reconstruct.done +=
            u64::from(before.saturating_sub(after)) * BLOCK as u64;
        after < before
    }

    /// The redundancy that a data segment's blocks have once they are written anew in its group.
    fn redundancy_anew(&self, segment: &Segment) -> usize {
        let columns = segment.columns.borrow();
        let holds = |d: &u16| columns.iter().any(|c| c.is_placed() && c.device == *d);
        let mut groups = self.shape.groups.iter();
        let group = groups.find(|g| g.iter().any(holds));
        group.map_or(0, |g| self.redundancy_on(self.online_of(g).count()))
    }

    /// Whether some group takes data segments whole, and so much that neither the cleaner nor what was promised
    /// would be in want of it.
    fn has_roomy_group(&self) -> bool {
        let (kept, width) = (self.kept_for_promises(), usize::from(self.shape.width()));
        let roomy = |d: &u16| self.core.member(*d).free_slots() > kept;
        let mut groups = self.shape.groups.iter();
        groups.any(|g| self.online_of(g).filter(roomy).count() >= width)
    }

    /// Free slots of a device that are not for what was lost: what volumes were promised comes first, and
    /// the cleaner would only take them back.
    fn kept_for_promises(&self) -> usize {
        let below = self.clean_below();
        below + below / 4
    }

    /// Gives every missing column of a segment a new slot. Whether at least one was moved.
    async fn reconstruct_segment(self: &Rc<Self>, segment: &Rc<Segment>) -> bool {
        let mut moved = false;
        for column in 0..segment.geometry.width() {
            if self.core.column_usable(segment, column) {
                continue;
            }
            let Some(target) = self.device_for(segment, column) else {
                continue;
            };
            moved |= self.reconstruct_column(segment, column, target).await;
        }
        if moved && self.extra.borrow().len() > 32 {
            self.batch(false).await;
        }
        moved
    }

    /// A device in the segment's group that holds none of its other columns: in a domain with fewer than M of
    /// them if there is one, with the most free slots; that of the column itself only if there is no other.
    pub(super) fn device_for(&self, segment: &Segment, column: usize) -> Option<u16> {
        self.device_with_room(segment, column, false)
    }

    /// The same; with `promised`, also one whose room was promised to volumes.
    fn device_with_room(&self, segment: &Segment, column: usize, promised: bool) -> Option<u16> {
        let columns = segment.columns.borrow();
        let used: BTreeSet<u16> = (0..columns.len())
            .filter(|c| *c != column && self.core.column_usable(segment, *c))
            .map(|c| columns[c].device)
            .collect();
        let lost = columns[column];
        let anchor = if lost.is_placed() {
            Some(lost.device)
        } else {
            used.iter().next().copied()
        };
        let group = self
            .shape
            .groups
            .iter()
            .find(|g| anchor.is_some_and(|a| g.contains(&a)));
        let candidates: Vec<u16> = match (segment.kind, group) {
            (SegmentKind::Data, Some(group)) => group.clone(),
            _ => self.core.online(),
        };
        let least = commit_slots(self.core.slot_blocks);
        let kept = if segment.kind == SegmentKind::Data && !promised && self.is_overpromised() {
            self.kept_for_promises()
        } else {
            least
        };
        let in_domain = self.core.domains.count(used.iter().copied());
        let most = usize::from(segment.geometry.m).max(1);
        let survives = |d: u16| {
            in_domain
                .get(&self.core.domains.of(d))
                .is_none_or(|n| *n < most)
        };
        let free = |d: u16| self.core.member(d).free_slots();
        candidates
            .into_iter()
            .filter(|d| self.core.member(*d).is_online() && !used.contains(d))
            .filter(|d| free(*d) > kept)
            .max_by_key(|d| (survives(*d), *d != lost.device, free(*d)))
    }

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
            // did not keep what was written, and is left alone until the next import.
            self.core.member(old.device).set_slot(old.slot, None);
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
        // The first data strip and every parity strip are written with every stripe that is; at most M
        // of these M + 1 columns are missing.
        let parity = usize::from(segment.geometry.k)..segment.geometry.width();
        for column in std::iter::once(0).chain(parity) {
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
