//! Members that get another failure domain while the array serves.
//!
//! Invariants:
//! - Where any one domain may be lost, that stays so once all columns lie where they are wanted.
//! - Volumes keep what they were promised.
//!
//! Crash argument. The label is a field of a generation, so an import finds the new one or the one before. Where columns
//! lie their tables and records say, whatever the labels are: those that the new label wants elsewhere move as others do.
//! But which devices the journal cannot do without follows from the labels by which an epoch was laid. The row says with
//! which epoch its label begins, in the same generation: an import that still needs an older one takes the device for one
//! of no domain there. These domains are parts of those that the epoch was laid by: of what had no more than M columns in
//! each no more than that are counted, and an import rather asks the operator than misses a record. Where an epoch was not
//! laid so, all rows say that their labels begin now, and any device counts. So does the running array. The change ends
//! with a merge, after which no older epoch is needed.

use std::rc::Rc;

use ashlar_format::BLOCK_U64;
use ashlar_format::superblock::MemberState;
use ashlar_layout::Placement;
use ashlar_space::domains::Domains;
use ashlar_space::topology::Topology;
use ashlar_space::usable::usable_whole;

use crate::error::Error;
use crate::home::Home;
use crate::journal::sets::record_sets;
use crate::members::Member;
use crate::protocol::Reach;
use crate::segment::Segment;

/// Whether the loss of any one domain is survived by data of a group; else how many columns fit.
fn carries(topology: &Topology, group: u16) -> Result<(), usize> {
    let sizes = topology.domain_sizes(topology.group(group));
    let (width, m) = (topology.shape().width(), topology.shape().m);
    match Placement::survives_domain(&sizes, width.into(), m.into()) {
        true => Ok(()),
        false => Err(sizes.iter().map(|n| (*n).min(m.into())).sum()),
    }
}

/// Whether members in other domains carry what they did.
fn check_domains(before: &Topology, after: &Topology, index: u16) -> Result<(), Error> {
    for group in 0..after.groups() {
        if let (Ok(()), Err(have)) = (carries(before, group), carries(after, group)) {
            return Err(Error::TooFewDomains {
                index,
                have,
                need: after.shape().width().into(),
                m: after.shape().m.into(),
            });
        }
    }
    Ok(())
}

impl Home {
    /// The members, with one in another failure domain.
    fn with_domain(&self, index: u16, label: &str) -> Topology {
        let before = self.topology();
        let mut labels: Vec<String> = self.core.members.iter().map(Member::domain).collect();
        label.clone_into(&mut labels[usize::from(index)]);
        let domains = Domains::new(labels.iter().map(String::as_str));
        Topology::new(before.members().to_vec(), before.shape().clone(), domains)
    }

    /// Whether a member may be in this failure domain.
    fn check_domain(&self, index: u16, label: &str) -> Result<(), Error> {
        let (before, after) = (self.topology(), self.with_domain(index, label));
        check_domains(&before, &after, index)?;
        let space = |topology: &Topology| {
            let whole = usable_whole(topology, &self.geometry_on(topology, 0)) * BLOCK_U64;
            let space = self.space_on(topology);
            (space.usable_bytes.min(whole), space.promised_bytes)
        };
        let ((had, _), (usable, promised)) = (space(&before), space(&after));
        // Where there is too little already it is enough that there is no less.
        match usable >= promised.min(had) {
            true => Ok(()),
            false => Err(Error::NoRoomInDomain {
                index,
                promised,
                usable,
            }),
        }
    }

    /// Whether each epoch of the durable root was laid with no more columns of a record in a domain than it has parity.
    fn journal_survives_domains(&self) -> bool {
        let topology = self.topology();
        self.root.borrow().epochs.iter().all(|epoch| {
            let (domains, used) = (self.core.domains_of(epoch), |d| {
                !epoch.excluded.contains(&d)
            });
            let (sets, _) = record_sets(topology.shape(), &domains, used);
            sets.iter().all(|set| set.survives_domains)
        })
    }

    /// Has no more written to segments of which a failure domain has too many columns: only then can these move. Whether
    /// there are any that were written.
    pub(crate) async fn end_crowded(self: &Rc<Self>) -> bool {
        let (topology, plan) = (self.topology(), self.plan());
        let crowded =
            |s: &Segment| !s.sealed.get() && self.facts(&topology, &plan, s).elsewhere > 0;
        let written = |s: &Segment| !s.retired.get() && crowded(s);
        let segments = self.core.pin_unsettled(written);
        if segments.is_empty() {
            return false;
        }
        self.end(segments).await;
        self.group_commit(Reach::Closed).await;
        self.end(self.core.pin_unsettled(crowded)).await;
        true
    }

    /// An event for each hot spare of a failure domain that no device is in any more.
    fn note_spares_without_use(&self, domain: &str) {
        let is_spare = |m: &Member| m.state() == MemberState::Spare;
        let mut others = self.core.members.iter().filter(|m| !is_spare(m));
        if others.any(|m| m.state() != MemberState::Removed && m.domain() == domain) {
            return;
        }
        let spares = self.core.members.iter().filter(|m| is_spare(m));
        for spare in spares.filter(|m| m.domain() == domain) {
            let text = format!(
                "hot spare {} ({}) can take the place of no device any more: none is in its failure domain '{domain}'; \
                 remove it, and add it with the label that devices have now",
                spare.index,
                spare.path()
            );
            let events = &self.core.events;
            events.note("hot-spare-unused", Some(spare.index), text);
        }
    }

    /// A member is in this failure domain from now on; in one of its own without a label.
    pub(crate) async fn set_domain(
        self: &Rc<Self>,
        index: u16,
        label: String,
    ) -> Result<(), Error> {
        if self.core.member(index).domain() == label {
            return Ok(());
        }
        self.merge().await; // what thin volumes have written is counted
        self.check_domain(index, &label)?;
        self.make_room_for_epochs().await?;
        let log = self.log.turn.lock().await;
        if *log || self.core.closed.get() {
            return Err(Error::Closed);
        }
        self.check_domain(index, &label)?; // members and volumes may have changed meanwhile
        let since = self.root.borrow().epochs.last().map_or(1, |e| e.number + 1);
        if !self.journal_survives_domains() {
            let members = self.core.members.iter();
            members.for_each(|m| m.set_domain(m.domain(), since));
        }
        let before = self.core.member(index).domain();
        self.core.member(index).set_domain(label, since);
        self.publish_members().await;
        drop(log);
        self.note_spares_without_use(&before);
        self.end_crowded().await;
        let is_new = |home: &Home| {
            let root = home.root.borrow();
            root.epochs.iter().all(|e| e.number >= since)
        };
        // If it does not come to that in time the change is made all the same, and the next merge does it.
        let _ = self.merge_until(is_new, Error::EpochsFull).await;
        match self.core.closed.get() {
            true => Err(Error::Closed),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use ashlar_format::root::Epoch;
    use ashlar_layout::Layout;
    use ashlar_space::topology::Member as Site;

    use super::*;
    use crate::testing::bed;

    fn topology(layout: &str, labels: &[&str]) -> Topology {
        let layout: Layout = layout.parse().unwrap();
        let shape = layout
            .resolve(u16::try_from(labels.len()).unwrap())
            .unwrap();
        let members = vec![Site::in_use(100); labels.len()];
        Topology::new(members, shape, Domains::new(labels.iter().copied()))
    }

    /// An epoch from before a device moved is not judged by where it is now, nor by where it was.
    #[test]
    fn an_older_epoch_takes_a_device_that_moved_alone() {
        let bed = bed(4);
        for (index, label, since) in [(0, "a", 0), (1, "a", 5), (2, "a", 0), (3, "", 5)] {
            bed.core.member(index).set_domain(label.to_string(), since);
        }
        for (number, domains) in [(4, [0, 1, 0, 3]), (5, [0, 0, 0, 3])] {
            let epoch = Epoch {
                number,
                id: [0; 16],
                first: 1,
                end: None,
                m: 1,
                excluded: Vec::new(),
            };
            let found = bed.core.domains_of(&epoch);
            assert_eq!([0, 1, 2, 3].map(|d| found.of(d)), domains, "epoch {number}");
        }
    }

    #[test]
    fn domains_that_carry_the_layout_are_kept() {
        let t = |layout, before: &[&str], after: &[&str], fits| {
            let (before, after) = (topology(layout, before), topology(layout, after));
            let found = check_domains(&before, &after, 0);
            assert_eq!(found.is_ok(), fits, "{layout}: {found:?}");
        };
        t("ec2+1", &["", "", "", ""], &["a", "a", "", ""], true);
        t("ec2+1", &["a", "a", "", ""], &["a", "a", "a", ""], false);
        t("ec2+1", &["a", "a", "a", ""], &["a", "a", "a", "a"], true); // it did not before
        t(
            "ec4+2",
            &["a", "a", "b", "b", "c", ""],
            &["a", "a", "b", "b", "c", "c"],
            true,
        );
        t(
            "ec4+2",
            &["a", "a", "b", "b", "c", ""],
            &["a", "a", "b", "b", "a", ""],
            false,
        );
        t("raid0", &["", "", ""], &["a", "a", "a"], true);
        t("raid10", &["", "", "", ""], &["a", "", "a", ""], true);
        t("raid10", &["", "", "", ""], &["a", "a", "", ""], false);
    }
}
