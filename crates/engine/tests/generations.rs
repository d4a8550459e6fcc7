//! Which generation an import goes on from: rivals, generations cut off by a crash, and what their devices
//! hold afterwards (rule R10).
#![allow(clippy::unwrap_used, reason = "tests")]

use std::rc::Rc;

use ashlar_device::{Device, DeviceInfo, DeviceRef, Fault, IoFuture, MemDevice};
use ashlar_engine::status::DeviceState;
use ashlar_engine::{Array, Error, Import};
use ashlar_format::geometry::super_bytes;
use ashlar_format::superblock::{Generation, MemberState, Superblock};
use ashlar_rt::{Buf, Rt, Slice};

use crate::common::{devices, small, volume};

const MIB: u64 = 1 << 20;
const BYTES: u64 = 16 * MIB;
const BLOCK: usize = 4096;

type Disks = Vec<Rc<MemDevice>>;

/// Five devices of an array that survives the loss of three, with one block of ones.
fn five() -> Disks {
    let disks: Disks = devices(5, BYTES);
    let rt = Rt::simulated(1);
    let (handle, devices) = (rt.clone(), of(&disks, &[0, 1, 2, 3, 4]));
    rt.block_on(async move {
        let array = Array::create(&handle, devices, small("ec2+3"))
            .await
            .unwrap();
        array.volume_create("v", volume(MIB)).await.unwrap();
        write(&array, 1).await;
    });
    rt.shutdown();
    disks
}

fn of(disks: &[Rc<MemDevice>], which: &[usize]) -> Vec<DeviceRef> {
    which
        .iter()
        .map(|i| disks[*i].clone() as DeviceRef)
        .collect()
}

async fn write(array: &Array, byte: u8) {
    let v = array.volume("v").unwrap();
    let bytes = Buf::copy_of(&[byte; BLOCK]).freeze();
    v.write(0, bytes, true).await.unwrap();
}

/// Imports some of the devices, writes a block of `byte` durably, and dies: what stood there before.
fn session(disks: &Disks, which: &[usize], byte: u8) -> Result<u8, Error> {
    let rt = Rt::simulated(u64::from(byte));
    let (handle, devices) = (rt.clone(), of(disks, which));
    let found = rt.block_on(async move {
        let array = Array::import(&handle, devices, Import::default()).await?;
        let found = array.volume("v").unwrap().read(0, BLOCK).await.unwrap()[0];
        write(&array, byte).await;
        Ok(found)
    });
    rt.shutdown();
    found
}

/// Where the newer copy of a device's superblock lies, and what it says.
fn superblock(disk: &MemDevice) -> (u64, Superblock) {
    let area = super_bytes(BYTES);
    let copies = [0, BYTES - area].map(|at| {
        let mut bytes = vec![0; BLOCK];
        disk.peek(at, &mut bytes);
        (at, Superblock::decode(&bytes).ok())
    });
    let newer = copies.into_iter().filter_map(|(at, s)| Some((at, s?)));
    newer.max_by_key(|(_, s)| s.writes).unwrap()
}

fn generation(disk: &MemDevice) -> Generation {
    superblock(disk).1.generation
}

/// Stores, as a crash leaves it, a generation after the one that `holders` hold.
fn cut_off(disks: &Disks, id: u8, counted: &[usize], holders: &[usize]) {
    for holder in holders {
        let (at, mut superblock) = superblock(&disks[*holder]);
        let before = superblock.members.iter();
        let before = before.filter(|m| m.state == MemberState::Online).count();
        superblock.generation = superblock
            .generation
            .next([id; 16], before.try_into().unwrap());
        for (index, member) in superblock.members.iter_mut().enumerate() {
            if !counted.contains(&index) {
                member.state = MemberState::Failed;
            }
        }
        superblock.root_set = counted.iter().map(|i| u16::try_from(*i).unwrap()).collect();
        superblock.writes += 1;
        let other = BYTES - super_bytes(BYTES) - at;
        disks[*holder].poke(other, &superblock.encode());
    }
}

fn seen_and_counted(result: Result<u8, Error>) -> (usize, usize) {
    match result {
        Err(Error::TooFew { seen, counted, .. }) => (seen, counted),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_rival_that_acknowledged_wins_over_one_with_more_visible_holders() {
    let disks = five();
    cut_off(&disks, 9, &[0, 1, 2], &[0, 1]);
    assert_eq!(session(&disks, &[2, 3, 4], 2).unwrap(), 1);
    // Two hold the one, which three would have had to; one holds the other.
    assert_eq!(
        seen_and_counted(session(&disks, &[0, 1, 2], 3)),
        (1, 3),
        "of those that went on, one is here"
    );
    assert_eq!(session(&disks, &[0, 2, 3], 3).unwrap(), 2);
    assert_eq!(session(&disks, &[0, 1, 2, 3, 4], 4).unwrap(), 3);
}

#[test]
fn rivals_are_refused_while_a_missing_device_may_decide() {
    let disks = five();
    cut_off(&disks, 8, &[0, 1, 2, 4], &[0]);
    cut_off(&disks, 9, &[1, 2, 3, 4], &[3]);
    // With 1 and 2, or with 2 and 4, each may have been in effect.
    let diverged = session(&disks, &[0, 3, 4], 2);
    assert!(matches!(diverged, Err(Error::Diverged(2))), "{diverged:?}");
    // All are here: neither was, and the one before goes on, on every device.
    assert_eq!(session(&disks, &[0, 1, 2, 3, 4], 2).unwrap(), 1);
    let first = generation(&disks[1]);
    assert_eq!(first.number, 1);
    assert!(disks.iter().all(|d| generation(d) == first));
}

#[test]
fn a_generation_that_was_cut_off_is_stored_again_unchanged() {
    let disks = five();
    // With the missing 3 it may have been in effect.
    cut_off(&disks, 9, &[0, 1, 2, 3], &[0, 1]);
    assert_eq!(session(&disks, &[0, 1, 2], 2).unwrap(), 1);
    for disk in &disks[..3] {
        let next = generation(disk);
        assert_eq!(
            (next.number, next.parent(), next.before),
            (3, Some([9; 16]), 4)
        );
    }
    assert_eq!(
        seen_and_counted(session(&disks, &[2, 3, 4], 3)),
        (1, 3),
        "the others start by themselves no more"
    );
}

#[test]
fn a_cut_off_generation_starts_only_where_the_one_before_would() {
    let disks = five();
    cut_off(&disks, 9, &[0, 1, 2], &[0, 1]);
    // Nobody here holds the one before; it counted five.
    assert_eq!(seen_and_counted(session(&disks, &[0, 1], 2)), (2, 5));
    assert_eq!(session(&disks, &[0, 1, 2], 2).unwrap(), 1);
    // Now it has a root, and two of its three are enough.
    assert_eq!(session(&disks, &[0, 1], 3).unwrap(), 2);
}

#[test]
fn a_generation_of_too_few_is_given_up_when_all_are_back() {
    let disks = five();
    // Three failed at once; the last two waited for the operator when power went.
    cut_off(&disks, 9, &[0, 1], &[0, 1]);
    assert_eq!(seen_and_counted(session(&disks, &[0, 1], 2)), (2, 5));
    assert_eq!(session(&disks, &[0, 1, 2, 3, 4], 2).unwrap(), 1);
    assert_eq!(session(&disks, &[2, 3, 4], 3).unwrap(), 2);
}

/// #126: a generation that never took effect was held by one device, whose roots of another one with the same number
/// proved it: its superblock, damaged, was an older copy. The array was refused with nothing missing.
#[test]
fn a_rivals_root_proves_nothing() {
    let disks = five();
    cut_off(&disks, 9, &[0, 1, 2, 3], &[1]);
    let (_, never) = superblock(&disks[1]);
    assert_eq!(session(&disks, &[0, 1, 2, 3], 2).unwrap(), 1);
    let other = generation(&disks[1]);
    assert_eq!(other.number, never.generation.number);
    assert_ne!(other.id, never.generation.id);
    for at in [0, BYTES - super_bytes(BYTES)] {
        disks[1].poke(at, &never.encode());
    }
    assert_eq!(session(&disks, &[0, 1, 2, 3, 4], 3).unwrap(), 2);
}

/// #189: the only holder here of a generation that never took effect refused to take its rival. Missing devices
/// could have held either, and an optimal array with M of each group gone was refused.
#[test]
fn of_two_rivals_the_one_in_effect_for_certain_decides() {
    let disks = five();
    cut_off(&disks, 9, &[0, 1, 3, 4], &[1]);
    let (_, never) = superblock(&disks[1]);
    assert_eq!(session(&disks, &[0, 1, 2, 3], 2).unwrap(), 1);
    for at in [0, BYTES - super_bytes(BYTES)] {
        disks[1].poke(at, &never.encode());
    }
    assert_eq!(session(&disks, &[1, 2, 3], 3).unwrap(), 2);
}

/// A superblock is never written over a device's newer copy, wherever that lies.
#[test]
fn a_device_that_is_behind_keeps_its_word_until_the_next_is_written() {
    let disks = five();
    let (behind, _) = superblock(&disks[1]);
    cut_off(&disks, 9, &[0, 1, 2, 3], &[0, 2, 3]);
    assert_eq!(session(&disks, &[0, 1, 2, 3], 2).unwrap(), 1);
    let (at, now) = superblock(&disks[1]);
    assert_eq!(now.generation.id[0], 9);
    assert_ne!(at, behind);
}

/// A superblock that was written to another device costs that device, not the array.
#[test]
fn a_device_with_anothers_superblock_is_left_out() {
    let disks = five();
    let (at, of_three) = superblock(&disks[3]);
    let (newer, _) = superblock(&disks[2]);
    // Whichever copy it lands on, and however new it is.
    for at in [at, newer, BYTES - super_bytes(BYTES) - newer] {
        let area = usize::try_from(super_bytes(BYTES)).unwrap();
        let mut own = vec![0; area];
        disks[2].peek(at, &mut own);
        disks[2].poke(at, &of_three.encode());
        let rt = Rt::simulated(7);
        let (handle, devices) = (rt.clone(), of(&disks, &[0, 1, 2, 3, 4]));
        rt.block_on(async move {
            let import = Import {
                read_only: true,
                ..Import::default()
            };
            let array = Array::import(&handle, devices, import).await.unwrap();
            let states = array.status().await.devices;
            let missing = |d: &usize| states[*d].state != DeviceState::Online;
            assert_eq!((0..5).filter(missing).collect::<Vec<_>>(), [2]);
            let read = array.volume("v").unwrap().read(0, BLOCK).await.unwrap();
            assert_eq!(read[0], 1);
        });
        rt.shutdown();
        disks[2].poke(at, &own);
    }
}

/// A device that is read, and takes no writes.
struct Unwritable(Rc<MemDevice>);

impl Device for Unwritable {
    fn info(&self) -> &DeviceInfo {
        self.0.info()
    }
    fn read(&self, offset: u64, buf: Buf) -> IoFuture<(Buf, Result<(), Fault>)> {
        self.0.read(offset, buf)
    }
    fn write(&self, _: u64, _: Vec<Slice>) -> IoFuture<Result<(), Fault>> {
        Box::pin(async { Err(Fault::Media) })
    }
    fn flush(&self) -> IoFuture<Result<(), Fault>> {
        self.0.flush()
    }
    fn discard(&self, offset: u64, length: u64) -> IoFuture<Result<(), Fault>> {
        self.0.discard(offset, length)
    }
}

/// All five, of which the last three take no writes.
fn two_writable(disks: &Disks) -> Vec<DeviceRef> {
    let mut devices = of(disks, &[0, 1]);
    for disk in &disks[2..] {
        devices.push(Rc::new(Unwritable(disk.clone())));
    }
    devices
}

/// While an array is imported nobody can say `fail -f` to it: it must not wait for that (#154).
#[test]
fn an_import_that_loses_the_majority_is_refused() {
    let disks = five();
    let rt = Rt::simulated(2);
    let (handle, devices) = (rt.clone(), two_writable(&disks));
    let refused = rt.block_on(async move {
        let import = Array::import(&handle, devices, Import::default()).await;
        import.err().unwrap().to_string()
    });
    rt.shutdown();
    assert!(refused.contains("only 2 of 5 devices"), "{refused}");
    // What the two have stored decides nothing: all five go on, and so do three of them.
    assert_eq!(session(&disks, &[0, 1, 2, 3, 4], 2).unwrap(), 1);
    assert_eq!(session(&disks, &[0, 2, 4], 3).unwrap(), 2);
}

/// With `--degraded` it goes on: that is what the refusal says, and what holds for devices that are missing.
#[test]
fn an_import_that_loses_the_majority_goes_on_by_the_operators_word() {
    let disks = five();
    let rt = Rt::simulated(2);
    let (handle, devices) = (rt.clone(), two_writable(&disks));
    rt.block_on(async move {
        let import = Import {
            degraded: true,
            ..Import::default()
        };
        let array = Array::import(&handle, devices, import).await.unwrap();
        write(&array, 2).await;
    });
    rt.shutdown();
    // The two are the array now: the others, writable again, are not asked.
    assert_eq!(session(&disks, &[0, 1], 3).unwrap(), 2);
    assert_eq!(session(&disks, &[0, 1, 2, 3, 4], 4).unwrap(), 3);
}
