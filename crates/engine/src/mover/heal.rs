//! Healing of single blocks and summaries that did not match when they were read.
//!
//! Invariants:
//! - Only a block known bad is rewritten, in its place, while the segment is held (S12), with bytes
//!   computed from others that match their rows (P4); flushed and read back.
//! - What cannot be computed is left as it is and dropped from the queue: each bad block found is one
//!   attempt.

use std::rc::Rc;

use crate::home::Home;
use crate::read::{decode_column, read_course_rows, read_verified};
use crate::segment::Segment;
use crate::stripe::{device_offset, summary_bytes};

impl Home {
    pub(super) async fn heal_forever(self: Rc<Self>) {
        while !self.core.closed.get() {
            self.core
                .heal_gate
                .until(|| !self.core.heals.borrow().is_empty() || self.core.closed.get())
                .await;
            let Some(next) = self.core.heals.borrow().front().copied() else {
                continue;
            };
            let healed = self.heal(next).await;
            self.core.heals.borrow_mut().pop_front();
            let mut tasks = self.tasks.borrow_mut();
            tasks.heal.found += 1;
            tasks.heal.healed += u64::from(healed);
            drop(tasks);
            self.core.progress.open();
        }
    }

    /// Rewrites one bad block with what the others say it is, if that can be verified; flushed and read
    /// back. If the device does not keep it, the column is reconstructed elsewhere.
    async fn heal(self: &Rc<Self>, (number, column, stripe, within): (u64, u16, u32, u32)) -> bool {
        let Some(segment) = self.core.segment(number) else {
            return false;
        };
        let index = usize::from(column);
        if !self.core.column_usable(&segment, index) || stripe >= segment.geometry.stripes() {
            return false;
        }
        let place = segment.columns.borrow()[index];
        self.heal_summary(&segment, index, stripe).await;
        if read_verified(&self.core, &segment, stripe, index, within)
            .await
            .is_some()
            && !self.map_disagrees(&segment, index, stripe, within).await
        {
            return true; // read again, it was fine
        }
        let Some(good) = decode_column(&self.core, &segment, stripe, index, within, true).await
        else {
            return false;
        };
        let offset = device_offset(
            &self.core,
            place,
            segment.geometry.strip_block(stripe) + within,
        );
        let member = self.core.member(place.device);
        if member.write(offset, vec![good.freeze()]).await.is_err() || member.flush().await.is_err()
        {
            self.core.report_failed(place.device);
            return false;
        }
        let kept = read_verified(&self.core, &segment, stripe, index, within)
            .await
            .is_some();
        if kept {
            let text = format!(
                "device {}: segment {number} column {column} stripe {stripe} block {within} was healed and read back",
                place.device
            );
            self.core.event("healed", Some(place.device), text);
        }
        kept
    }

    /// A block whose row agrees with it may still not be what the map says: row and block were lost
    /// together. Its owner's digest in the map decides; here the other columns do.
    async fn map_disagrees(
        self: &Rc<Self>,
        segment: &Rc<Segment>,
        index: usize,
        stripe: u32,
        within: u32,
    ) -> bool {
        let Some(mine) = read_verified(&self.core, segment, stripe, index, within).await else {
            return true;
        };
        match decode_column(&self.core, segment, stripe, index, within, true).await {
            Some(theirs) => *mine != *theirs,
            None => false,
        }
    }

    /// Rewrites a column's summary if it cannot be read, computed as reconstruct would compute it.
    async fn heal_summary(self: &Rc<Self>, segment: &Rc<Segment>, index: usize, stripe: u32) {
        let geometry = segment.geometry;
        let course = geometry.course_of(stripe);
        if !segment.sealed.get()
            || read_course_rows(&self.core, segment, course, index)
                .await
                .is_some()
        {
            return;
        }
        let place = segment.columns.borrow()[index];
        let Some((_, rows)) = self.compute_course(segment, index, course).await else {
            return;
        };
        let summary = summary_bytes(&self.core, segment, course, index, &rows);
        let member = self.core.member(place.device);
        let offset = device_offset(&self.core, place, geometry.summary_block(course));
        if member.write(offset, vec![summary]).await.is_err() || member.flush().await.is_err() {
            self.core.report_failed(place.device);
            return;
        }
        let text = format!(
            "device {}: the summary of segment {} column {index} course {course} was healed",
            place.device, segment.number
        );
        self.core.event("healed", Some(place.device), text);
    }
}
