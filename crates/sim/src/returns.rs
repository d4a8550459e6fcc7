//! Devices come back while the array runs: those that answered nothing for a while, that were failed, or that were
//! missing at an import; as they are, as an older image of themselves, or with another in their place. Others are taken
//! out for good, new ones are added, also as hot spares or for one in use, some grow, and some get another failure domain.
//! Rebuild and rebalance are paused and resumed, and spare space is set.
//!
//! Invariants:
//! - Within the promises, a device that may hold wrong bytes that nobody noticed does not come back as it is.
//! - One device after the other comes, leaves or grows, also where a session and the wait for its array do both: a hot
//!   spare takes a number of the table, and a device that is added has to get its own.
//! - Of a device that is back nothing more happens until the array says that it is optimal: what is written meanwhile
//!   may lie on it, and the redundancy that went with it is spent.

use std::rc::Rc;

use ashlar_engine::Work;
use ashlar_rt::{Rt, SECOND};

use crate::client::hangs_by_design;
use crate::config::Mode;
use crate::device::SimDevice;
use crate::disk::SimDisk;
use crate::pages::Pages;
use crate::rng::Rng;
use crate::store::{Store, StoreError};
use crate::world::World;

/// How long a change of members may take.
const BOUND: u64 = 1800 * SECOND;

/// Pages that a device grows by at most.
const MOST_GROWTH: u64 = 1536;

/// How a device comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// As it is.
    AsItIs,
    /// As it was at some outage.
    OldImage,
    /// Another, blank one takes its place.
    Replaced,
    /// Another one becomes a hot spare, which takes its place.
    Spared,
}

impl How {
    /// Whether it holds nothing.
    fn is_blank(self) -> bool {
        matches!(self, How::Replaced | How::Spared)
    }
}

/// Whether a device could be taken in now: it is there, and nothing that was sent to it is under way.
fn is_there(world: &World, disk: &SimDisk) -> bool {
    answers(world, disk) && !disk.is_busy()
}

/// Whether a device is there, and is what it was.
fn answers(world: &World, disk: &SimDisk) -> bool {
    let budget = world.budget.borrow();
    let index = disk.index();
    let away = budget.absent.contains(&index)
        || budget.shrunken.contains(&index)
        || budget.foreign.contains(&index);
    !away && !disk.is_offline() && disk.refusal().is_none()
}

/// Whether it may hold wrong bytes, where none may be.
fn too_wrong(world: &World, index: usize) -> bool {
    world.config.mode != Mode::Beyond && world.budget.borrow().tainted.contains(&index)
}

/// Whether the world's devices may come and go.
pub fn may_return(world: &World, store: &Rc<dyn Store>) -> bool {
    let faulty = matches!(world.config.mode, Mode::Within | Mode::Beyond);
    world.config.returns && faulty && store.takes_in() && !world.mishaps.all_refuse.get()
}

/// A device as it was once.
type Image = Option<(usize, Pages)>;

/// Has some devices that the array does without taken in, one of them perhaps as it is in `image`. `quiet`: no faults
/// happen meanwhile.
async fn take_in(
    world: &World,
    rt: &Rt,
    store: &Rc<dyn Store>,
    rng: &mut Rng,
    (image, quiet): (Image, bool),
) {
    let _turn = world.turn.lock().await;
    let status = store.status().await;
    for index in rng.shuffled(world.config.devices) {
        if index >= store.next_device() {
            continue; // not even a number has been given to it
        }
        let disk = &world.disks[index];
        let out = !status.online.contains(&index);
        if !out || !rng.chance(70) || !is_there(world, disk) {
            continue;
        }
        let image = image.as_ref().filter(|(device, _)| *device == index);
        let how = match rng.below(10) {
            0..2 if quiet => How::Replaced,
            2..8 if image.is_some() => How::OldImage,
            8..10 if quiet => How::Spared,
            _ => How::AsItIs,
        };
        if !how.is_blank() && too_wrong(world, index) {
            continue;
        }
        match (how, image) {
            (How::Replaced | How::Spared, _) => disk.replace_content(&Pages::new(disk.pages())),
            (How::OldImage, Some((_, content))) => disk.replace_content(content),
            _ => {}
        }
        come(world, rt, store, disk, how).await;
    }
}

/// Waits for `future`, but not for ever; where too few devices agree it waits for the operator.
async fn bounded<T>(
    (world, rt, store): (&World, &Rt, &Rc<dyn Store>),
    what: &str,
    future: impl Future<Output = T>,
) -> Option<T> {
    let done = rt.timeout(BOUND, future).await;
    if done.is_none() {
        world.mishaps.given_up.set(true);
    }
    let may_hang = world.config.mode == Mode::Beyond;
    if done.is_none() && !may_hang && !hangs_by_design(world, rt, store).await {
        world.fail(|| format!("{what} hangs"));
    }
    done
}

/// A device comes back as it is, if the array does without it.
pub(crate) async fn comes_back(world: &World, rt: &Rt, store: &Rc<dyn Store>, index: usize) {
    let _turn = world.turn.lock().await;
    let disk = &world.disks[index];
    let out = !store.status().await.online.contains(&index);
    if out && is_there(world, disk) && !too_wrong(world, index) {
        come(world, rt, store, disk, How::AsItIs).await;
    }
}

async fn come(world: &World, rt: &Rt, store: &Rc<dyn Store>, disk: &Rc<SimDisk>, how: How) {
    let index = disk.index();
    let device = SimDevice::attach(rt, disk);
    world.trace.line(|| {
        let at = rt.now() / 1_000;
        format!("{at:>9} us device {index} comes: {how:?}")
    });
    if how.is_blank() {
        world.budget.borrow_mut().tainted.remove(&index);
    }
    let number = u16::try_from(index).expect("few devices");
    let coming = match how {
        How::Replaced => store.replace(number, device),
        How::Spared => store.take_place(number, device),
        _ => store.online(device),
    };
    let Some(taken) = bounded((world, rt, store), "a take-in", coming).await else {
        return;
    };
    world.trace.line(|| {
        let at = rt.now() / 1_000;
        format!("{at:>9} us device {index} came: {taken:?}")
    });
    match taken {
        Ok(()) => {
            if how.is_blank() && world.copy.borrow().as_ref().is_some_and(|c| c.0 == index) {
                world.copy.take(); // of a device that is no member any more
                world.offer.set(None);
            }
            let group = world.config.group_of(index);
            let budget = &mut *world.budget.borrow_mut();
            match budget.unborn.contains(&index) {
                true => budget.was_added(index),
                false => budget.comes_back(index, group),
            }
            world.trace.mark(match how {
                How::AsItIs => "return: a device",
                How::OldImage => "return: an old image of a device",
                How::Replaced => "return: another device in its place",
                How::Spared => "return: a hot spare in its place",
            });
        }
        Err(StoreError::Unsupported) => {}
        Err(_) => {
            world.mishaps.was_slow.set(true); // reads fail before a device counts
            world.trace.mark("return: refused");
        }
    }
}

/// Has a device taken out for good, or lets one stay that was to leave.
async fn leave_or_stay(world: &World, rt: &Rt, store: &Rc<dyn Store>, rng: &mut Rng) {
    let _turn = world.turn.lock().await;
    let leaving = world.budget.borrow().leaving.clone();
    let any = rng.index(world.config.devices);
    let device = leaving.keys().next().copied().filter(|_| rng.chance(30));
    if let Some(device) = device {
        let number = u16::try_from(device).expect("few devices");
        world.budget.borrow_mut().leaving.insert(device, false);
        let stays = bounded((world, rt, store), "stay", store.stay(number)).await;
        world.trace.line(|| format!("stay {device}: {stays:?}"));
        if stays == Some(Ok(())) {
            let mut budget = world.budget.borrow_mut();
            budget.leaving.remove(&device);
            budget.gone.remove(&device);
            world.trace.mark("removal: the device stays");
        }
    } else {
        leave(world, rt, store, any).await;
    }
}

/// Has a sound device taken out for good.
async fn leave(world: &World, rt: &Rt, store: &Rc<dyn Store>, device: usize) {
    {
        let budget = &mut *world.budget.borrow_mut();
        if budget.damaged.contains(&device) || budget.gone.contains(&device) {
            return;
        }
        // Nothing happens to it from when it begins to leave.
        budget.gone.insert(device);
        budget.leaving.insert(device, false);
    }
    let number = u16::try_from(device).expect("few devices");
    let leaves = bounded((world, rt, store), "remove", store.remove(number)).await;
    world.trace.line(|| format!("remove {device}: {leaves:?}"));
    let mut budget = world.budget.borrow_mut();
    if leaves == Some(Ok(())) {
        budget.leaving.insert(device, true);
        world.trace.mark("removal");
    } else {
        budget.gone.remove(&device);
        budget.leaving.remove(&device);
        world.trace.mark("removal: refused");
    }
}

/// The same, alone.
pub(crate) async fn leaves(world: &World, rt: &Rt, store: &Rc<dyn Store>, device: usize) {
    let _turn = world.turn.lock().await;
    leave(world, rt, store, device).await;
}

/// Adds a device that was never one of the array, perhaps in the place of `old`, which leaves. Nothing happens to either
/// until the array says that it is optimal.
pub(crate) async fn add(world: &World, rt: &Rt, store: &Rc<dyn Store>, old: Option<usize>) {
    let _turn = world.turn.lock().await;
    let index = store.next_device();
    let is_next = world.budget.borrow().unborn.contains(&index);
    if !is_next || world.mishaps.given_up.get() {
        return; // one that was given up may take the number
    }
    let disk = &world.disks[index];
    if !is_there(world, disk) {
        return;
    }
    let domain = |device: usize| world.config.domains.get(device);
    let sound = |old: &usize| {
        let budget = world.budget.borrow();
        let sound = !budget.damaged.contains(old) && !budget.gone.contains(old);
        sound && world.config.groups == 1 && domain(*old) == domain(index)
    };
    let old = old.filter(sound);
    world.budget.borrow_mut().is_added(index);
    if let Some(old) = old {
        world.budget.borrow_mut().gone.insert(old);
        world.budget.borrow_mut().leaving.insert(old, false);
    }
    let label = domain(index).map_or(String::new(), |d| format!("d{d}"));
    let device = SimDevice::attach(rt, disk);
    world.trace.line(|| {
        let at = rt.now() / 1_000;
        format!("{at:>9} us device {index} is added, in the place of {old:?}")
    });
    let adding = async {
        match old {
            Some(old) => {
                let number = u16::try_from(old).expect("few devices");
                store.replace_in_use(number, device).await
            }
            None => Ok((store.add(device, &label).await?, false)),
        }
    };
    let Some(added) = bounded((world, rt, store), "an addition", adding).await else {
        return;
    };
    world.trace.line(|| {
        let at = rt.now() / 1_000;
        format!("{at:>9} us device {index} was added: {added:?}")
    });
    let leaves = matches!(added, Ok((_, true)));
    if let Some(old) = old {
        let mut budget = world.budget.borrow_mut();
        match leaves {
            true => drop(budget.leaving.insert(old, true)),
            false => {
                budget.gone.remove(&old);
                budget.leaving.remove(&old);
            }
        }
    }
    match added {
        Ok((number, _)) if number == index => {
            world.budget.borrow_mut().was_added(index);
            world.trace.mark(match (old, leaves) {
                (None, _) => "addition",
                (Some(_), true) => "replacement of a device in use",
                (Some(_), false) => "replacement of a device in use: it stays",
            });
        }
        Ok((number, _)) => world.fail(|| format!("device {index} was added as {number}")),
        Err(_) => world.trace.mark("addition: refused"),
    }
}

/// Rebuild or rebalance is paused for a while, or spare space is set.
async fn steer(world: &World, rt: &Rt, store: &Rc<dyn Store>, rng: &mut Rng) {
    let work = rng.pick(&[Work::Rebuild, Work::Rebalance]);
    match rng.below(5) {
        0..3 => {
            let paused = store.pause(work, true);
            world
                .trace
                .line(|| format!("{work:?} is paused: {paused:?}"));
            let bits = rng.range(10, 28);
            rt.sleep(rng.below(1 << bits)).await;
            let resumed = store.pause(work, false);
            world
                .trace
                .line(|| format!("{work:?} is resumed: {resumed:?}"));
            world.trace.mark("work is paused, and resumed");
        }
        _ => {
            let spare = rng.pick(&["0", "1", "2"]);
            let spared = &world.mishaps.spared;
            spared.set(spared.get() || spare != "0");
            let set = bounded(
                (world, rt, store),
                "spare space",
                store.set(None, "spare", spare),
            )
            .await;
            world.trace.line(|| format!("spare {spare}: {set:?}"));
            world.trace.mark(match set {
                Some(Ok(())) => "spare space: set",
                _ => "spare space: refused",
            });
        }
    }
}

/// A device grows, by enough to be of use or by less, and the array is told to use all of it.
async fn grow(world: &World, rt: &Rt, store: &Rc<dyn Store>, rng: &mut Rng) {
    let _turn = world.turn.lock().await;
    let index = rng.index(store.next_device().min(world.config.devices));
    let disk = &world.disks[index];
    if !answers(world, disk) || world.budget.borrow().unborn.contains(&index) {
        return;
    }
    let more = usize::try_from(rng.range(1, MOST_GROWTH)).expect("a few pages");
    disk.grow(more);
    let number = u16::try_from(index).expect("few devices");
    let used = bounded((world, rt, store), "a growth", store.use_all_of(number)).await;
    world.trace.line(|| {
        let at = rt.now() / 1_000;
        format!("{at:>9} us device {index} has {more} pages more: {used:?}")
    });
    world.trace.mark(match used {
        Some(Ok(())) => "growth: the device is used whole",
        _ => "growth: refused",
    });
}

/// A device gets another failure domain, of an array that was made without: no domain is lost as a whole then.
async fn relabel(world: &World, rt: &Rt, store: &Rc<dyn Store>, rng: &mut Rng) {
    let index = rng.index(store.next_device().min(world.config.devices));
    if !world.config.domains.is_empty() || world.budget.borrow().unborn.contains(&index) {
        return;
    }
    let label = rng.pick(&["", "a", "b", "c"]);
    let number = u16::try_from(index).expect("few devices");
    let set = bounded(
        (world, rt, store),
        "a failure domain",
        store.set_domain(number, label),
    )
    .await;
    world.trace.line(|| {
        let at = rt.now() / 1_000;
        format!("{at:>9} us device {index} in failure domain '{label}': {set:?}")
    });
    world.trace.mark(match set {
        Some(Ok(())) => "failure domain: another",
        _ => "failure domain: refused",
    });
}

/// Devices come back at random moments until the session ends; some are taken out for that.
pub async fn run(world: Rc<World>, rt: Rt, store: Rc<dyn Store>, mut rng: Rng) {
    let (mut sizes, mut labels) = (rng.clone().fork(11), rng.clone().fork(12));
    let mut tasks = rng.clone().fork(13);
    for _ in 0..rng.range(1, 4) {
        let leaving = if rng.chance(60) { world.victim() } else { None };
        let copied = leaving.filter(|_| rng.chance(60));
        let image = copied.map(|device| (device, world.disks[device].durable()));
        let bits = rng.range(14, 28);
        rt.sleep(rng.below(1 << bits)).await;
        if let Some(device) = leaving.filter(|device| world.may_damage(*device)) {
            world.damage(device, false);
            let number = u16::try_from(device).expect("few devices");
            let out = bounded((&world, &rt, &store), "offline", store.offline(number)).await;
            world.trace.line(|| format!("offline {device}: {out:?}"));
            if out == Some(Ok(())) {
                world.trace.mark("offline");
            }
            let bits = rng.range(10, 27);
            rt.sleep(rng.below(1 << bits)).await;
        }
        take_in(&world, &rt, &store, &mut rng, (image, false)).await;
        if rng.chance(40) {
            leave_or_stay(&world, &rt, &store, &mut rng).await;
        }
        if world.config.more > 0 && rng.chance(50) {
            let old = tasks.index(world.config.devices);
            let old = tasks.chance(40).then_some(old);
            add(&world, &rt, &store, old).await;
        }
        if sizes.chance(30) {
            grow(&world, &rt, &store, &mut sizes).await;
        }
        if labels.chance(30) {
            relabel(&world, &rt, &store, &mut labels).await;
        }
        if tasks.chance(40) {
            steer(&world, &rt, &store, &mut tasks).await;
        }
    }
}

/// Before the array is waited for: devices come back while no faults happen, and how long it waits for others follows
/// from the seed.
pub async fn at_rest(world: &World, rt: &Rt, store: &Rc<dyn Store>) {
    if !may_return(world, store) {
        return;
    }
    let mut rng = world.chance.returns.borrow_mut().fork(7);
    let delay = rng.pick(&["0s", "10s", "10m"]);
    let set = store.set(None, "reconstruct.delay", delay);
    let _ = rt.timeout(BOUND, set).await; // writes may wait for the operator
    if rng.chance(60) {
        let image = world.copy.borrow().clone();
        take_in(world, rt, store, &mut rng, (image, true)).await;
    }
    give_up_offline(world, rt, store).await;
}

/// Fails the devices that the operator has taken out: what lies on them is not rebuilt otherwise.
pub(crate) async fn give_up_offline(world: &World, rt: &Rt, store: &Rc<dyn Store>) {
    for device in store.status().await.offline {
        let number = u16::try_from(device).expect("few devices");
        let failed = bounded((world, rt, store), "fail", store.fail(number, false)).await;
        world
            .trace
            .line(|| format!("offline {device} is failed: {failed:?}"));
    }
}
