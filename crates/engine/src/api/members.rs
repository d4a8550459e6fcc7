//! Members that leave and come back, as callers see them: `offline`, `online`, `replace`, `remove`.
//!
//! Invariant: a change that was begun is made to its end, whether or not its caller still waits for it.

use std::rc::Rc;

use ashlar_device::DeviceRef;
use ashlar_format::DeviceGeometry;
use ashlar_format::superblock::{MemberEntry, MemberState, Superblock};

use crate::api::array::Array;
use crate::error::Error;
use crate::home::Home;
use crate::home::addition::With;
use crate::home::growth::Grown;
use crate::home::hot_spare::Due;
use crate::home::removal::Without;
use crate::import::assemble::look;
use crate::members::arrival::Arrival;
use crate::options::check_domain;
use crate::status::{DeviceErrors, Work};

/// A device that was taken in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TakenIn {
    /// Its row in the member table.
    pub index: u16,
    /// Columns that it holds, and that count again.
    pub kept: usize,
    /// Columns that are computed anew, since it lacks them or may lack something of them.
    pub lacking: usize,
}

impl Array {
    /// Takes a device out of use. It is expected back: what lies on it is not rebuilt until [`Array::online`] or
    /// [`Array::fail`], also where no redundancy is left.
    ///
    /// # Errors
    /// [`Error::Needed`] where data would be left without a copy.
    pub async fn offline(&self, index: u16) -> Result<(), Error> {
        self.check_in_part(index)?;
        let home = &self.0.home;
        if !home.core.member(index).is_counted() {
            match self.restate(index, MemberState::Offline).await {
                Err(Error::InUse(_)) => {} // it was just being taken in
                done => return done,
            }
        }
        if home.needs_devices(&[index], &[]) {
            return Err(Error::Needed(index));
        }
        home.core.failing.ask(index, MemberState::Offline);
        home.core.report_failed(index);
        self.to_its_end(async move |array| array.0.home.settle_failed(false).await)
            .await;
        self.check_open()
    }

    /// Takes a member in again that left; `force`: also one that failed, and where data is given up that it may hold.
    ///
    /// # Errors
    /// Why this device is not taken: nothing of it was changed.
    pub async fn online(&self, device: DeviceRef, force: bool) -> Result<TakenIn, Error> {
        self.check_writable()?;
        let found = look(&device).await?;
        let home = &self.0.home;
        let (superblock, super_copy) = found.ok_or(Error::NotMember)?;
        let index = row_of(home, &superblock)?;
        let member = home.core.member(index);
        if member.is_counted() {
            return Err(Error::InUse(index));
        }
        let arrival = Arrival::returning(device, &superblock, super_copy);
        if member.state() == MemberState::Spare {
            return self.hold_spare(arrival).await;
        }
        if member.state() == MemberState::Failed && !force {
            return Err(Error::Untrusted(index));
        }
        self.take_in(arrival, force).await
    }

    /// Puts a device in the place of one that is out of use: whatever it holds is overwritten, and what lay on the other
    /// is computed anew; `force`: also where the other may have the last copy of something.
    ///
    /// # Errors
    /// Why it cannot: nothing of the device was changed.
    pub async fn replace(
        &self,
        index: u16,
        device: DeviceRef,
        force: bool,
    ) -> Result<TakenIn, Error> {
        let geometry = self.laid_out_for(index, device.info().size_bytes, force)?;
        let uuid = self.0.home.core.rt.random_bytes();
        let arrival = Arrival::new(index, uuid, device, geometry);
        self.take_in(arrival, force).await
    }

    /// Adds a device: whatever it holds is overwritten. New data lie on it from now on.
    ///
    /// # Errors
    /// Why it cannot: nothing of the device was changed.
    pub async fn add(&self, device: DeviceRef, domain: &str) -> Result<TakenIn, Error> {
        let geometry = self.laid_out(device.info().size_bytes)?;
        check_domain(domain)?;
        let (path, domain) = (device.info().name.clone(), domain.to_string());
        let (index, taken) = self
            .change_of(async move |home| home.add(device, geometry, domain, None).await)
            .await?;
        self.note_added(&path, index);
        Ok(TakenIn {
            index,
            kept: taken.kept,
            lacking: taken.lacking,
        })
    }

    fn note_added(&self, path: &str, index: u16) {
        let text = format!("{path} was added as device {index}");
        let events = &self.0.home.core.events;
        events.note("device-added", Some(index), text);
    }

    /// What the array would be with a device of this size in place of one that is in use.
    ///
    /// # Errors
    /// Why it cannot be.
    pub fn check_replacement_in_use(&self, old: u16, size_bytes: u64) -> Result<Without, Error> {
        self.check_member(old)?;
        let geometry = self.laid_out(size_bytes)?;
        self.0.home.check_replacement(old, geometry)
    }

    /// Adds a device in the group and failure domain of one that is in use, whatever it holds, and has that one leave: it
    /// serves until what lies on it lies on the others.
    ///
    /// # Errors
    /// Why it cannot: nothing of the device was changed. [`Error::OldStays`] where it was added, and the other one does
    /// not leave.
    pub async fn replace_in_use(&self, old: u16, device: DeviceRef) -> Result<TakenIn, Error> {
        self.check_member(old)?;
        let geometry = self.laid_out(device.info().size_bytes)?;
        let path = device.info().name.clone();
        let done = self
            .change_of(async move |home| home.add_for(old, device, geometry).await)
            .await;
        if let Err(Error::OldStays { index, .. }) = &done {
            self.note_added(&path, *index);
        }
        let (index, taken) = done?;
        self.note_added(&path, index);
        self.note_leaving(old);
        Ok(TakenIn {
            index,
            kept: taken.kept,
            lacking: taken.lacking,
        })
    }

    /// Adds a device that holds nothing until another one is lost: whatever is on it is overwritten.
    ///
    /// # Errors
    /// Why it cannot: nothing of the device was changed, unless it failed itself.
    pub async fn add_hot_spare(&self, device: DeviceRef, domain: &str) -> Result<u16, Error> {
        let geometry = self.check_hot_spare(device.info().size_bytes, domain)?;
        let (path, domain) = (device.info().name.clone(), domain.to_string());
        let index = self
            .change_of(async move |home| home.add_hot_spare(device, geometry, domain).await)
            .await?;
        let text = format!("{path} was added as hot spare {index}");
        let events = &self.0.home.core.events;
        events.note("device-added", Some(index), text);
        Ok(index)
    }

    /// How a hot spare of this size and failure domain is laid out.
    ///
    /// # Errors
    /// It could take the place of no device of the array.
    pub fn check_hot_spare(&self, size_bytes: u64, domain: &str) -> Result<DeviceGeometry, Error> {
        self.check_writable()?;
        check_domain(domain)?;
        let never = [MemberState::Spare, MemberState::Removed];
        let members = self.0.home.core.members.iter();
        let near = members.filter(|m| m.domain() == domain && !never.contains(&m.state()));
        let need = near.map(|m| m.geometry().slots).min();
        let need = need.ok_or_else(|| Error::NoDomainToSpare(domain.to_string()))?;
        self.with_slots(size_bytes, need)
            .map_err(|have| Error::TooSmallToSpare { have, need })
    }

    /// Which hot spare is to take the place of which lost device: the same for several, of which it takes the first that
    /// it can.
    pub fn hot_spares_due(&self) -> Vec<Due> {
        self.0.home.hot_spares_due()
    }

    /// Puts a hot spare in the place of a lost device, if there are both: of the first where nothing stands against it.
    ///
    /// # Errors
    /// Why it was not taken in, in the place of the first.
    pub async fn use_hot_spare(&self) -> Result<Option<Due>, Error> {
        let (mut tried, mut refused) = (Vec::new(), None);
        let next = |tried: &[u16]| {
            let mut due = self.hot_spares_due().into_iter();
            due.find(|due| !tried.contains(&due.lost))
        };
        while let Some(due) = next(&tried) {
            match self.use_hot_spare_for(due).await {
                Ok(()) => return Ok(Some(due)),
                Err(error) => refused = refused.or(Some(error)),
            }
            tried.push(due.lost);
        }
        refused.map_or(Ok(None), Err)
    }

    /// Puts this hot spare in the place of this lost device.
    ///
    /// # Errors
    /// Why it was not taken in.
    pub async fn use_hot_spare_for(&self, due: Due) -> Result<(), Error> {
        self.check_writable()?;
        self.change_of(async move |home| home.use_hot_spare(due).await)
            .await
    }

    /// A hot spare that was away is here again.
    async fn hold_spare(&self, arrival: Arrival) -> Result<TakenIn, Error> {
        let (index, path) = (arrival.index, arrival.device.info().name.clone());
        self.change_of(async move |home| home.hold_spare(arrival).await)
            .await?;
        let text = format!("hot spare {index} ({path}) is back");
        let events = &self.0.home.core.events;
        events.note("device-back", Some(index), text);
        Ok(TakenIn {
            index,
            kept: 0,
            lacking: 0,
        })
    }

    /// What the array is with devices more: the size of each, and its failure domain.
    ///
    /// # Errors
    /// Why it cannot take them.
    pub fn check_addition(&self, devices: &[(u64, String)]) -> Result<With, Error> {
        let laid = |(size, domain): &(u64, String)| {
            check_domain(domain)?;
            Ok((self.laid_out(*size)?, domain.clone()))
        };
        let laid: Vec<(DeviceGeometry, String)> =
            devices.iter().map(laid).collect::<Result<_, Error>>()?;
        let new: Vec<(DeviceGeometry, &str)> = laid.iter().map(|(g, d)| (*g, &d[..])).collect();
        self.0.home.check_addition(&new)
    }

    /// Whether the device at this path was a member and is none any more.
    pub fn was_removed(&self, path: &str) -> bool {
        let members = self.0.home.core.members.iter();
        let mut here = members.filter(|m| m.path() == path).peekable();
        here.peek().is_some() && here.all(|m| m.state() == MemberState::Removed)
    }

    /// The index that the next device gets that is added.
    pub fn next_device(&self) -> usize {
        self.0.home.core.members.len()
    }

    /// How a device of this size is laid out that is added.
    fn laid_out(&self, size_bytes: u64) -> Result<DeviceGeometry, Error> {
        self.check_open()?;
        self.check_writable()?;
        let slots = self.0.home.core.members.iter().filter(|m| m.takes_slots());
        let need = slots.map(|m| m.geometry().slots / 4).min().unwrap_or(0);
        self.with_slots(size_bytes, need)
            .map_err(|have| Error::TooSmallToAdd { have, need })
    }

    /// How a device of this size is laid out, if it has so many slots; else how many it has.
    fn with_slots(&self, size_bytes: u64, need: u32) -> Result<DeviceGeometry, u32> {
        let geometry = self.0.home.superblock.borrow().geometry;
        let rings = (geometry.delta_ring_bytes, geometry.data_ring_bytes);
        let laid = DeviceGeometry::lay_out(size_bytes, geometry.slot_bytes, rings, 1);
        let have = laid.map_or(0, |laid| laid.slots);
        laid.filter(|_| have >= need).ok_or(have)
    }

    /// Whether a device of this size could take the place of a member.
    ///
    /// # Errors
    /// Why it cannot.
    pub fn check_replacement(&self, index: u16, size_bytes: u64, force: bool) -> Result<(), Error> {
        self.laid_out_for(index, size_bytes, force).map(drop)
    }

    /// How a device of this size is laid out in the place of a member that is out of use.
    fn laid_out_for(
        &self,
        index: u16,
        size_bytes: u64,
        force: bool,
    ) -> Result<DeviceGeometry, Error> {
        self.check_member(index)?;
        self.check_writable()?;
        let home = &self.0.home;
        let member = home.core.member(index);
        if member.is_counted() {
            return Err(Error::InUse(index));
        }
        if member.state() == MemberState::Spare {
            return Err(Error::HotSpare(index));
        }
        if !force && home.has_last_copy(index) {
            return Err(Error::LastCopy(index));
        }
        let need = home.superblock.borrow().members[usize::from(index)].slots;
        self.with_slots(size_bytes, need)
            .map_err(|have| Error::SmallerThan { index, have, need })
    }

    /// What the array would be without a device.
    ///
    /// # Errors
    /// Why it cannot do without it.
    pub fn check_removal(&self, index: u16) -> Result<Without, Error> {
        self.check_member(index)?;
        self.0.home.check_removal(index, u64::MAX)
    }

    /// Takes a device out for good. One in use is emptied first, in the background, and serves until then; of one that
    /// is out of use the array knows nothing any more.
    ///
    /// # Errors
    /// Why the array cannot do without it: nothing was changed.
    pub async fn remove(&self, index: u16) -> Result<Without, Error> {
        let without = self.check_removal(index)?;
        let in_use = self.0.home.core.member(index).is_counted();
        self.change_of(async move |home| match in_use {
            true => home.leave(index, u64::MAX).await,
            false => home.remove(index).await,
        })
        .await?;
        if in_use {
            self.note_leaving(index);
        }
        Ok(without)
    }

    fn note_leaving(&self, index: u16) {
        let path = self.0.home.core.member(index).path();
        let text = format!(
            "device {index} ({path}) is emptied and then removed: what lies on it moves to the others; 'ashlar \
             online' lets it stay"
        );
        let events = &self.0.home.core.events;
        events.note("device-removing", Some(index), text);
    }

    /// Begins no more background work of a kind until it is resumed or the array is imported again, or resumes it;
    /// whether that changed anything. Segments that are worked on are finished.
    ///
    /// # Errors
    /// [`Error::CleaningNotPaused`] and [`Error::RepairNotPaused`].
    pub fn pause(&self, work: Work, paused: bool) -> Result<bool, Error> {
        self.check_writable()?;
        let changed = self.0.home.pause(work, paused)?;
        let (kind, name) = match paused {
            true => ("work-paused", self.0.home.why_paused(work)),
            false => ("work-resumed", "resumed".to_string()),
        };
        if changed {
            let text = format!("background work ({}) was {name}", work.name());
            self.0.home.core.events.note(kind, None, text);
        }
        Ok(changed)
    }

    /// Uses all of a device that has grown.
    ///
    /// # Errors
    /// [`Error::NotGrown`], [`Error::GrownTooLittle`], [`Error::Shrunk`]; [`Error::NotInUse`], [`Error::HotSpare`]:
    /// nothing was changed.
    pub async fn use_all_of(&self, index: u16) -> Result<Grown, Error> {
        self.check_in_part(index)?;
        let done = self.change_of(async move |home| home.grow(index).await);
        let grown = done.await?;
        let path = self.0.home.core.member(index).path();
        let (before, now) = (grown.before_bytes, grown.size_bytes);
        let text = format!(
            "device {index} ({path}) has grown from {before} to {now} bytes, and all of it is used"
        );
        let events = &self.0.home.core.events;
        events.note("device-grown", Some(index), text);
        Ok(grown)
    }

    /// Puts a device into another failure domain, or without a label into one of its own: new data are placed by it, and
    /// columns move that lie where it does not want them. Whether that changed anything.
    ///
    /// # Errors
    /// [`Error::TooFewDomains`], [`Error::NoRoomInDomain`], [`Error::Domain`], [`Error::HotSpare`]: nothing was changed.
    pub async fn set_domain(&self, index: u16, label: &str) -> Result<bool, Error> {
        self.check_in_part(index)?;
        check_domain(label)?;
        let member = self.0.home.core.member(index);
        let (was, is) = (member.domain(), label.to_string());
        if was == is {
            return Ok(false);
        }
        let done = self.change_of(async move |home| home.set_domain(index, is).await);
        done.await?;
        let path = self.0.home.core.member(index).path();
        let named = |label: &str| match label {
            "" => "one of its own".to_string(),
            label => format!("'{label}'"),
        };
        let (was, is) = (named(&was), named(label));
        let text =
            format!("device {index} ({path}) is in failure domain {is} now, and was in {was}");
        let events = &self.0.home.core.events;
        events.note("domain-set", Some(index), text);
        Ok(true)
    }

    /// Devices that are to leave.
    pub fn leaving(&self) -> Vec<u16> {
        self.0.home.leaving()
    }

    /// A device that was to leave stays.
    ///
    /// # Errors
    /// [`Error::NotInUse`] where it has left already.
    pub async fn stay(&self, index: u16) -> Result<(), Error> {
        self.check_member(index)?;
        self.change_of(async move |home| home.stay(index).await)
            .await
    }

    /// Takes a device in that is out of use because it is slow, however slow it is.
    ///
    /// # Errors
    /// [`Error::NotMember`] if it is not, and why it is not taken in.
    pub async fn online_slow(&self, index: u16, force: bool) -> Result<TakenIn, Error> {
        self.check_writable()?;
        let home = &self.0.home;
        let out = home.slow.one(index).ok_or(Error::NotMember)?;
        let arrival = Arrival::held(home.core.member(index), out.device);
        self.take_in(arrival, force).await
    }

    /// Members that are out of use and taken in by themselves once they answer again: index and identity.
    pub fn awaited(&self) -> Vec<(u16, [u8; 16])> {
        let members = self.0.home.core.members.iter();
        let slow = &self.0.home.slow;
        let stale = members.filter(|m| m.state() == MemberState::Stale && !m.is_counted());
        let awaited = stale.filter(|m| slow.why(m.index).is_none());
        awaited.map(|m| (m.index, m.uuid())).collect()
    }

    /// Sets a member's counters of errors to zero; how they stood.
    ///
    /// # Errors
    /// If the array is closed, or has no such member.
    pub fn clear_errors(&self, index: u16) -> Result<DeviceErrors, Error> {
        let core = &self.0.home.core;
        if core.closed.get() {
            return Err(Error::Closed);
        }
        let none = Error::NoDevice(index);
        let member = core.members.get(usize::from(index)).ok_or(none)?;
        Ok(DeviceErrors {
            read: member.counters.read_errors.take(),
            write: member.counters.write_errors.take(),
            digest: member.counters.digest_errors.take(),
        })
    }

    fn check_member(&self, index: u16) -> Result<(), Error> {
        if self.0.home.core.closed.get() {
            return Err(Error::Closed);
        }
        if self.0.read_only {
            return Err(Error::ReadOnly);
        }
        let member = self.0.home.core.members.get(usize::from(index));
        match member.is_some_and(|m| m.state() != MemberState::Removed) {
            true => Ok(()),
            false => Err(Error::NoDevice(index)),
        }
    }

    /// The same, and it is no hot spare.
    pub(super) fn check_in_part(&self, index: u16) -> Result<(), Error> {
        self.check_member(index)?;
        match self.0.home.core.member(index).state() {
            MemberState::Spare => Err(Error::HotSpare(index)),
            _ => Ok(()),
        }
    }

    /// A member that is out of use is in another state from now on.
    pub(crate) async fn restate(&self, index: u16, state: MemberState) -> Result<(), Error> {
        self.change_of(async move |home| home.restate(index, state).await)
            .await
    }

    /// A change of members, made to its end or until the array stops.
    pub(super) async fn change_of<T: 'static>(
        &self,
        change: impl AsyncFnOnce(&Rc<Home>) -> Result<T, Error> + 'static,
    ) -> Result<T, Error> {
        self.to_its_end(async move |array| {
            let home = &array.0.home;
            let mut done = Err(Error::Closed);
            home.unless_closed(async { done = change(home).await })
                .await;
            done
        })
        .await
    }

    async fn take_in(&self, arrival: Arrival, force: bool) -> Result<TakenIn, Error> {
        let (index, returns) = (arrival.index, arrival.returns);
        let path = arrival.device.info().name.clone();
        let taken = self
            .change_of(async move |home| home.take_in(arrival, force).await)
            .await?;
        let (kept, lacking) = (taken.kept, taken.lacking);
        let events = &self.0.home.core.events;
        if returns {
            let text = format!(
                "device {index} ({path}) is back: {kept} of its columns count again, {lacking} are rebuilt"
            );
            events.note("device-back", Some(index), text);
            self.read_lost_again();
        } else {
            let text = format!("{path} takes the place of device {index}: its data is rebuilt");
            events.note("device-replaced", Some(index), text);
        }
        Ok(TakenIn {
            index,
            kept,
            lacking,
        })
    }
}

/// The row of the member table that a device is of, if what it holds has the history of this array. Of a hot spare it has
/// not to: nothing lies on it, and its superblocks are as old as when it was here last.
fn row_of(home: &Home, found: &Superblock) -> Result<u16, Error> {
    let array = home.superblock.borrow();
    let is_own = |row: &&MemberEntry| {
        let member = row.state != MemberState::Removed && row.uuid == found.device;
        member && found.array == array.array
    };
    let row = array.members.get(usize::from(found.index));
    let row = row.filter(is_own).ok_or(Error::NotMember)?;
    let own = &array.generation;
    let known = own.id == found.generation.id || own.past.contains(&found.generation.id);
    match known || row.state == MemberState::Spare {
        true => Ok(found.index),
        false => Err(Error::OtherHistory(found.index)),
    }
}
