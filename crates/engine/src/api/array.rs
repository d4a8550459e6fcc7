//! The interface of an array: import, export, members, settings, events (`volumes` has its volumes).
//!
//! Invariant: a change that was begun is made to its end, whether or not its caller still waits for it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use ashlar_block::VolumeError;
use ashlar_device::{DeviceRef, Fault};
use ashlar_format::BLOCK;
use ashlar_format::journal::Ring;
use ashlar_format::superblock::MemberState;
use ashlar_rt::{Buf, Rt, Sender, join_all};

use crate::api::volume::Sizes;
use crate::background::Background;
use crate::error::Error;
use crate::home::Home;
use crate::members::Member;
use crate::members::wipe::wipe;
use crate::options::{Import, uuid_text};
use crate::phases::PhaseTally;
use crate::protocol::{HomeMessage, ShardMessage, ask};
use crate::shard::start::limits;
use crate::status::{DevicePlace, Event, Work};

pub(crate) struct Inner {
    pub(crate) home: Rc<Home>,
    background: Rc<Background>,
    pub(crate) to_home: Sender<HomeMessage>,
    pub(crate) read_only: bool,
    pub(crate) memory: Cell<u64>,
    pub(crate) counters: RefCell<BTreeMap<u32, Rc<crate::counters::Counters>>>,
    pub(crate) sizes: Sizes,
    exporting: Cell<bool>,
}

/// An open array.
#[derive(Clone)]
pub struct Array(pub(crate) Rc<Inner>);

impl std::fmt::Debug for Array {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Array({})", self.name())
    }
}

impl Array {
    /// Imports the array on these devices.
    pub async fn import(rt: &Rt, devices: Vec<DeviceRef>, options: Import) -> Result<Array, Error> {
        let (home, to_home) = crate::import::import(rt, devices, &options).await?;
        Ok(Array::open(
            home,
            to_home,
            options.read_only,
            options.settings.memory_bytes,
        ))
    }

    pub(crate) fn open(
        home: Rc<Home>,
        to_home: Sender<HomeMessage>,
        read_only: bool,
        memory_bytes: u64,
    ) -> Array {
        let background = Background::new(&home);
        if !read_only {
            background.start();
        }
        let array = Array(Rc::new(Inner {
            home,
            background,
            to_home,
            read_only,
            memory: Cell::new(memory_bytes),
            counters: RefCell::default(),
            sizes: Sizes::default(),
            exporting: Cell::new(false),
        }));
        if !read_only {
            let (again, rt) = (array.clone(), array.0.home.core.rt.clone());
            rt.spawn(async move { again.read_what_slow_devices_had().await });
        }
        let unfinished: Vec<String> = array
            .0
            .home
            .catalog
            .borrow()
            .volumes
            .iter()
            .filter(|v| v.destroying && !read_only)
            .map(|v| v.name.clone())
            .collect();
        for name in unfinished {
            let (array, rt) = (array.clone(), array.0.home.core.rt.clone());
            rt.spawn(async move {
                let _ = array.release_volume(&name).await; // resumed at the next import if it fails again
            });
        }
        array
    }

    /// Its name.
    pub fn name(&self) -> String {
        self.0.home.superblock.borrow().name.clone()
    }

    /// Its identity.
    pub fn uuid(&self) -> [u8; 16] {
        self.0.home.core.identity.array
    }

    pub(crate) fn check_open(&self) -> Result<(), Error> {
        if self.0.exporting.get() {
            return Err(Error::Closed);
        }
        self.check_fence()
    }

    /// What is answered from memory may be old once another host may have the array.
    pub(crate) fn check_fence(&self) -> Result<(), Error> {
        let core = &self.0.home.core;
        if core.closed.get() || core.beat.fence.is_down() {
            Err(Error::Closed)
        } else {
            Ok(())
        }
    }

    pub(crate) fn check_writable(&self) -> Result<(), Error> {
        self.check_open()?;
        if self.0.read_only {
            Err(Error::ReadOnly)
        } else {
            Ok(())
        }
    }

    /// Whether it is open: neither exported nor stopped by itself.
    pub fn is_open(&self) -> bool {
        self.check_open().is_ok()
    }

    /// Merges everything, says in the root that it is clean, and stops. Every later call is refused.
    ///
    /// # Errors
    /// [`Error::Closed`] if it had stopped by itself, or does so meanwhile: it is not clean, but its
    /// devices are let go all the same.
    pub async fn export(&self) -> Result<(), Error> {
        self.to_its_end(async |array| {
            let finished = if array.0.read_only {
                array.check_open().map(|()| array.0.exporting.set(true))
            } else {
                array.finish().await
            };
            match finished {
                Ok(()) => array.0.home.let_go("exported").await,
                Err(_) if array.0.home.core.closed.get() => drop(array.0.home.quiet().await),
                Err(_) => {}
            }
            finished
        })
        .await
    }

    /// Merges what the journal has, if it has anything: what volumes hold is told as of the last merge.
    ///
    /// # Errors
    /// [`Error::ReadOnly`], [`Error::Closed`]
    pub async fn merge(&self) -> Result<(), Error> {
        self.check_writable()?;
        self.keep(async |home| {
            if home.journal.usage(Ring::Delta).1 > 0 {
                home.merge().await;
            }
        })
        .await
    }

    /// Makes the last root, which says that the array is clean.
    async fn finish(&self) -> Result<(), Error> {
        self.check_open()?;
        self.0.exporting.set(true); // a trim ends now
        self.keep(async |home| {
            home.trim_has_ended().await;
            home.last_checkpoint().await;
        })
        .await
    }

    /// Does `work` in a task of its own, which goes on where the caller gives up waiting.
    ///
    /// Crash argument: a checkpoint that is dropped half way leaves in memory what no crash leaves, since the array
    /// goes on with it: a stripe of nodes that is written and never recorded, nodes that are clean and in no
    /// root (#127).
    pub(crate) async fn to_its_end<T: 'static>(
        &self,
        work: impl AsyncFnOnce(&Array) -> T + 'static,
    ) -> T {
        let array = self.clone();
        let rt = &self.0.home.core.rt;
        rt.spawn(async move { work(&array).await }).await
    }

    /// Does `work` to its end, or until the array stops.
    ///
    /// # Errors
    /// [`Error::Closed`] if it stopped before the work was done.
    pub(crate) async fn keep(
        &self,
        work: impl AsyncFnOnce(&Rc<Home>) + 'static,
    ) -> Result<(), Error> {
        self.to_its_end(async |array| {
            let home = &array.0.home;
            home.unless_closed(work(home)).await;
            if home.core.closed.get() {
                Err(Error::Closed)
            } else {
                Ok(())
            }
        })
        .await
    }

    /// Exports the array and wipes the superblocks of the devices in use: it is gone, also if not all of
    /// them could be wiped.
    pub async fn destroy(&self) -> Result<(), Error> {
        self.check_writable()?;
        self.to_its_end(async |array| {
            array.finish().await?;
            let wiped = array.wipe().await;
            array.0.home.halt("destroyed"); // also if not every device could be wiped
            array.0.home.quiet().await;
            wiped
        })
        .await
    }

    /// Wipes all that can be wiped; the error of one that could not.
    /// All at once, and without a beat on what was wiped: its fence is longer than a device may take.
    async fn wipe(&self) -> Result<(), Error> {
        let core = &self.0.home.core;
        core.beat.end();
        self.0.home.rested().await;
        let slow = |index: usize| {
            let index = u16::try_from(index).expect("a row of the table");
            self.0.home.slow.one(index).map(|out| out.device)
        };
        let wipe_one = |index: usize| {
            let (core, slow) = (core.clone(), slow(index));
            async move {
                let member = &core.members[index];
                match member.held().or(slow) {
                    Some(_) if member.is_written() => wipe_member(member).await,
                    Some(unused) => wipe(&unused).await,
                    None => Ok(()),
                }
            }
        };
        let wipes = (0..core.members.len()).map(|index| core.rt.spawn(wipe_one(index)));
        let wiped = join_all(wipes.collect::<Vec<_>>()).await;
        let mut failed = wiped.into_iter().enumerate();
        let failed = failed.find_map(|(device, result)| Some((device, result.err()?)));
        match failed {
            Some((device, fault)) => Err(Error::Device { device, fault }),
            None => Ok(()),
        }
    }

    /// Stops, without saying that it is clean, if writes wait for the operator to let it go on: nothing
    /// that waits would ever end. As safe as a power cut.
    pub fn stop_if_writes_wait(&self) {
        let home = &self.0.home;
        if home.agreement.waiting().is_some() && !home.core.closed.get() {
            home.halt("it was closed while writes were paused, since too few devices are in use");
        }
    }

    /// Takes at most `bytes` of memory from now on: at once in the map's cache, as writes end in the rest.
    pub async fn set_memory(&self, bytes: u64) {
        let home = &self.0.home;
        self.0.memory.set(bytes);
        let strip_blocks = home.superblock.borrow().strip_blocks;
        let shards = home.shards.len();
        let (cache, bounds) = limits(
            &home.core,
            home.topology().shape(),
            strip_blocks,
            bytes,
            shards,
        );
        for shard in &home.shards {
            ask(shard, |reply| ShardMessage::Memory(cache, bounds, reply)).await;
        }
    }

    // ---- members, settings, events ----------------------------------------------------------------

    /// Takes a device out of use. Refused without `force` if data would be left without a copy. With
    /// `force` it also lets an array go on that waits for enough devices to agree, be it being exported.
    pub async fn fail(&self, index: u16, force: bool) -> Result<(), Error> {
        self.check_in_part(index)?;
        let home = &self.0.home;
        let out = |home: &Home| !home.core.member(index).is_counted();
        if out(home) && home.agreement.waiting().is_none() {
            match self.restate(index, MemberState::Failed).await {
                Err(Error::InUse(_)) => {} // it was just being taken in
                done => return done,
            }
        }
        let in_use = !out(home);
        if !in_use && (home.agreement.waiting().is_none() || !force) {
            return Ok(());
        }
        if home.needs_devices(&[index], &[]) && !force {
            return Err(Error::WouldLose(index));
        }
        if force {
            home.agreement.set_may_lose(true);
        }
        if in_use {
            home.core.failing.ask(index, MemberState::Failed);
            home.core.report_failed(index);
        }
        self.to_its_end(async move |array| array.0.home.settle_failed(force).await)
            .await;
        Ok(())
    }

    /// Makes events of what was only counted since the last of its kind.
    pub fn tell_events(&self) {
        self.0.home.core.events.tell_sums();
    }

    /// Where the devices in use are, by UUID.
    pub fn device_paths(&self) -> Vec<(String, String)> {
        let members = self.0.home.core.members.iter().filter(|m| m.is_held());
        let paths = members.map(|m| (uuid_text(&m.uuid()), m.path()));
        paths.filter(|(_, path)| !path.is_empty()).collect()
    }

    /// The devices in use and where they lie.
    pub fn device_places(&self) -> Vec<DevicePlace> {
        let place = |member: &Member| {
            let device = member.held()?;
            Some(DevicePlace {
                index: member.index,
                uuid: uuid_text(&member.uuid()),
                path: device.info().name.clone(),
                file: device.info().file,
                size_bytes: member.geometry().size_bytes,
            })
        };
        let members = self.0.home.core.members.iter();
        members.filter_map(place).collect()
    }

    /// UUIDs of all its devices.
    pub fn device_uuids(&self) -> Vec<String> {
        let members = self.0.home.core.members.iter();
        members.map(|m| uuid_text(&m.uuid())).collect()
    }

    /// Where the time has gone since it was created or imported, phase by phase.
    pub fn phases(&self) -> Vec<PhaseTally> {
        self.0.home.core.meters.phases.tallies()
    }

    /// Blocks of 4 KiB that clients have written since it was created or imported, and data blocks written for them and
    /// by the cleaner.
    pub fn blocks_written(&self) -> (u64, u64) {
        let meters = &self.0.home.core.meters;
        (meters.host.get(), meters.data.get())
    }

    /// Events with a number above `after`.
    pub fn events(&self, after: u64) -> Vec<Event> {
        self.0.home.core.events.after(after)
    }

    /// Waits until there is an event with a number above `number`, or the array is closed.
    pub async fn event_after(&self, number: u64) {
        self.0.home.core.events.beyond(number).await;
    }

    /// Waits until no background work of these kinds (none: of any kind) runs that can make progress.
    pub async fn wait_idle(&self, kinds: &[Work]) {
        let home = &self.0.home;
        // Nothing runs in the background of a read-only array.
        let idle = || self.0.background.is_idle(kinds);
        while !self.0.read_only && !home.core.closed.get() && !idle() {
            let _ = home
                .core
                .rt
                .timeout(100 * ashlar_rt::MILLISECOND, home.core.progress.wait())
                .await;
        }
    }

    /// After [`Array::wait_idle`]: why something of these kinds is still not done, if so. It goes on only when
    /// the operator has changed something.
    pub fn stuck(&self, kinds: &[Work]) -> Option<String> {
        self.0.background.stuck(kinds, self.0.read_only)
    }

    /// Makes durable everything acknowledged so far.
    pub(crate) async fn durable(&self) -> Result<(), VolumeError> {
        ask(&self.0.to_home, HomeMessage::Durable)
            .await
            .unwrap_or(Err(VolumeError::Closed))
    }
}

/// Wipes both superblocks of a member, the one also if the other could not be: either is found. Then what else may say
/// what the device was.
async fn wipe_member(member: &crate::members::Member) -> Result<(), Fault> {
    let mut outcome = Ok(());
    for copy in 0..2 {
        let zero = vec![Buf::zeroed(BLOCK).freeze()];
        let written = member
            .write(member.geometry().super_offset(copy), zero)
            .await;
        outcome = outcome.and(written).and(member.flush().await);
    }
    outcome.and(member.erase().await)
}
