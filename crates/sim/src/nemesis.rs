//! The nemesis: a task that does to the disks, while clients run, what the budget allows.
//!
//! Invariants: a device is entered in the budget before anything happens to it.

use std::rc::Rc;

use ashlar_rt::{Rt, SECOND};

use crate::disk::{FaultRates, Rot, SimDisk};
use crate::rng::Rng;
use crate::world::World;

/// Every kind of damage at rest.
const ROTS: [Rot; 6] = [
    Rot::Bit,
    Rot::Garbage,
    Rot::Zeros,
    Rot::OtherPage,
    Rot::Earlier,
    Rot::Unreadable,
];

/// Damages a few pages of `disk` at rest.
pub fn rot(world: &World, disk: &SimDisk, rng: &mut Rng) {
    world.damage(disk.index(), true);
    let kinds: Vec<Rot> = (0..rng.range(1, 3)).map(|_| rng.pick(&ROTS)).collect();
    let others = world.disks.len();
    if rng.chance(15) {
        let from = &world.disks[rng.index(others)];
        if from.index() != disk.index()
            && let Some((page, content)) = from.any_page(rng)
            && disk.rot_foreign(rng.chance(50).then_some(page), &content)
        {
            world.budget.borrow_mut().foreign.insert(disk.index());
            world.trace.mark("fault: a page of another disk");
        }
    }
    if rng.chance(10) && disk.rot_region(256, rng.chance(50)) {
        world.trace.mark("fault: a region damaged");
    }
    for _ in 0..rng.magnitude(24) {
        if disk.rot(rng.pick(&kinds)) {
            world.trace.mark("fault: damage at rest");
        }
    }
}

/// Random rates of the faults that come with operations.
fn rates(rng: &mut Rng) -> FaultRates {
    let mut on = |percent: u64| {
        let high = if rng.chance(50) { 30_000 } else { 4_000 };
        if rng.chance(percent) {
            let rate = if rng.chance(50) {
                rng.magnitude(high)
            } else {
                rng.range(high / 8, high)
            };
            u32::try_from(rate).unwrap_or(1)
        } else {
            0
        }
    };
    FaultRates {
        lost_write: on(30),
        misdirected_write: on(20),
        write_error: on(25),
        latent_error: on(35),
        flush_error: on(20),
        read_corruption: on(25),
        lying_flush: on(15),
        stale_read: on(20),
        misdirected_read: on(20),
        duplicate_write: on(20),
        late_write: on(15),
    }
}

/// A while, in nanoseconds: up to 16 us to 134 ms, the length of a short or a long session.
fn moment(rng: &mut Rng) -> u64 {
    let bits = rng.range(14, 27);
    rng.below(1 << bits)
}

/// Takes a disk away and brings it back, again and again.
async fn flap(world: &World, rt: &Rt, disk: &SimDisk, rng: &mut Rng) {
    world.damage(disk.index(), true);
    world.trace.mark("fault: flapping");
    for _ in 0..rng.range(2, 8) {
        world
            .trace
            .line(|| format!("          nemesis: disk {} flaps", disk.index()));
        disk.set_offline();
        rt.sleep(moment(rng) / 4).await;
        disk.set_online(rng.chance(30));
        rt.sleep(moment(rng) / 4).await;
    }
}

/// A disk hangs for a while: what is submitted meanwhile ends late, or after its deadline, up to minutes later.
async fn hang(world: &World, rt: &Rt, disk: &SimDisk, rng: &mut Rng) {
    world.damage(disk.index(), false);
    world.mishaps.was_slow.set(true);
    world.trace.mark("fault: hanging");
    let (least, most) = rng.pick(&[(2, 28), (31, 40), (31, 300)]);
    let seconds = rng.range(least, most);
    world.trace.line(|| {
        let (at, disk) = (rt.now() / 1_000, disk.index());
        format!("{at:>9} us nemesis: disk {disk} hangs, {seconds} s an operation")
    });
    disk.set_hanging(seconds * SECOND);
    rt.sleep(moment(rng)).await;
    disk.set_hanging(0);
}

/// A domain goes offline as a whole, or as much of it as may: its devices vanish at the same moment, and
/// come back at the same moment.
async fn domain_goes(world: &World, rt: &Rt, device: usize, rng: &mut Rng) {
    let lost = world.damage_domain(device);
    world.trace.mark("fault: a domain offline");
    world.trace.line(|| {
        let at = rt.now() / 1_000;
        format!("{at:>9} us nemesis: disks {lost:?} OFFLINE, a domain")
    });
    for disk in &lost {
        world.disks[*disk].set_offline();
    }
    if rng.chance(50) {
        rt.sleep(moment(rng)).await;
        let reset = rng.chance(50);
        world.trace.line(|| {
            let at = rt.now() / 1_000;
            format!("{at:>9} us nemesis: disks {lost:?} back, reset {reset}")
        });
        for disk in lost {
            if reset {
                world.damage(disk, true);
            }
            world.disks[disk].set_online(reset);
        }
    }
}

/// Does damage at random moments until the session ends.
pub async fn run(world: Rc<World>, rt: Rt, mut rng: Rng) {
    for round in 0..rng.range(1, 6) {
        if round > 0 || rng.chance(60) {
            rt.sleep(moment(&mut rng)).await;
        }
        let Some(device) = world.victim() else { return };
        let disk = world.disks[device].clone();
        let at = rt.now() / 1_000;
        if world.a_domain_fails(40) {
            domain_goes(&world, &rt, device, &mut rng).await;
            continue;
        }
        if let Some(refusal) = world.a_device_refuses(10) {
            world.refuse(device, refusal);
            continue;
        }
        match rng.below(14) {
            12..14 => hang(&world, &rt, &disk, &mut rng).await,
            10 => flap(&world, &rt, &disk, &mut rng).await,
            0..3 | 11 => {
                let mut rates = rates(&mut rng);
                if rng.chance(10) {
                    world.trace.mark("fault: every write fails");
                    rates.write_error = 65_536;
                }
                world.damage(device, true);
                world
                    .trace
                    .line(|| format!("{at:>9} us nemesis: disk {device} {rates:?}"));
                disk.arm(rates);
            }
            3..5 => {
                world
                    .trace
                    .line(|| format!("{at:>9} us nemesis: damage on disk {device}"));
                rot(&world, &disk, &mut rng);
            }
            5..8 => {
                world.damage(device, false);
                world.trace.mark("fault: offline");
                world
                    .trace
                    .line(|| format!("{at:>9} us nemesis: disk {device} OFFLINE"));
                disk.set_offline();
                if rng.chance(50) {
                    rt.sleep(moment(&mut rng)).await;
                    let reset = rng.chance(50);
                    world.trace.mark("fault: back online");
                    world.trace.line(|| {
                        let at = rt.now() / 1_000;
                        format!("{at:>9} us nemesis: disk {device} back, reset {reset}")
                    });
                    if reset {
                        world.damage(device, true); // no operation may have failed meanwhile
                    }
                    disk.set_online(reset);
                }
            }
            _ => {
                let factor = rng.pick(&[5, 50, 500]);
                if factor > 5 {
                    world.damage(device, false);
                }
                world.trace.mark("fault: slow");
                world
                    .trace
                    .line(|| format!("{at:>9} us nemesis: disk {device} slow x{factor}"));
                world.mishaps.was_slow.set(true);
                disk.set_slow(factor);
                if rng.chance(70) {
                    rt.sleep(4 * moment(&mut rng)).await;
                    disk.set_slow(1);
                }
            }
        }
    }
}
