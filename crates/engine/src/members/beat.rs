//! The beat of an array in use: who renews it, and how far that has come on each device (rule R18).
//!
//! Invariant: a beat is as old as the newest that at least half of the counted devices took, reckoned from the moment
//! at which the writes were begun. Whoever imports the array elsewhere sees more than half of them: at least one of
//! these.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use ashlar_device::{DeviceRef, Fault};
use ashlar_format::BLOCK;
use ashlar_format::beat::{Beat as Block, MAX_HOST};
use ashlar_rt::{Buf, MILLISECOND, Nanos, Rt, SECOND};

use crate::counters::add;
use crate::members::fence::{FENCE, Fence};
use crate::members::sent::Asked;
use crate::members::{DEADLINE, Member};

/// How often the beat is renewed.
pub const PERIOD: Nanos = SECOND;

/// A host that uses arrays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Its boot, another one each time.
    pub boot: [u8; 16],
    /// The machine; 0: it has no identity.
    pub machine: [u8; 16],
    /// Its name, for people.
    pub host: String,
}

impl Identity {
    /// Whether a block was written by a program of this boot: the locks of devices keep programs of one host apart.
    pub fn wrote(&self, block: &Block) -> bool {
        self.boot == block.boot
    }

    /// Whether a block was written on this machine: copies of a virtual machine have one identity, and other names.
    pub fn is_of_machine(&self, block: &Block) -> bool {
        self.machine != [0; 16] && self.machine == block.machine && self.name() == block.host
    }

    /// Its name, as a block has it.
    fn name(&self) -> String {
        let mut name = self.host.clone();
        while name.len() > MAX_HOST {
            name.pop();
        }
        name
    }
}

/// The beats that were seen on a device.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// The highest counter of each program.
    counters: BTreeMap<[u8; 16], u64>,
    /// Reads that failed while it was no member yet.
    pub failed: u64,
    /// What it has is no block, and not blank: a write of one may have been torn.
    pub is_torn: bool,
}

/// What a look at the beat of a device says of the program that wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sight {
    /// It was not seen on this device before.
    New,
    /// It has written nothing since. A device may also fall back to what it had before.
    Still,
    /// It has written.
    Moved,
}

impl Seen {
    /// Notes a block.
    pub fn look(&mut self, block: &Block) -> Sight {
        let before = self.counters.get(&block.instance).copied();
        let highest = before.map_or(block.counter, |before| before.max(block.counter));
        self.counters.insert(block.instance, highest);
        match before {
            None => Sight::New,
            Some(before) if before < highest => Sight::Moved,
            Some(_) => Sight::Still,
        }
    }
}

/// How far the beat has come on a device.
#[derive(Debug, Default)]
struct Turn {
    /// A read or write of it is under way.
    under_way: bool,
    /// When the last write that the device took was begun.
    taken: Option<Nanos>,
    /// The last read has found one of these.
    kept: bool,
    /// What was seen on it; nothing yet: it comes in now, and what it has is of what it was before.
    seen: Option<Seen>,
    /// What another program wrote over it, and whether that has written since.
    other: Option<(Block, Sight)>,
}

/// How far a host is with an array.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    /// It has no beat.
    #[default]
    None,
    /// It has begun, and others may be at the same: one that lets go is no rival.
    Claimed,
    /// It has the array.
    Held,
    /// It writes no beat any more.
    Ended,
}

/// The beat of an array.
#[derive(Debug)]
pub struct Beat {
    /// What it keeps up.
    pub fence: Rc<Fence>,
    identity: Option<Identity>,
    own: RefCell<Option<Block>>,
    phase: Cell<Phase>,
    /// The devices at least half of which are to have it: those that the generation in effect counts.
    voters: RefCell<Vec<u16>>,
    /// Who has taken the array over.
    successor: RefCell<Option<String>>,
    turns: RefCell<BTreeMap<u16, Turn>>,
}

impl Beat {
    /// The beat of a host; of none: nothing is written, and nothing fenced.
    pub fn new(rt: &Rt, identity: Option<Identity>) -> Rc<Beat> {
        Rc::new(Beat {
            fence: Fence::new(rt),
            identity,
            own: RefCell::default(),
            phase: Cell::default(),
            voters: RefCell::default(),
            successor: RefCell::default(),
            turns: RefCell::default(),
        })
    }

    /// A device behind its fence, if there is a beat.
    pub fn guard(&self, device: DeviceRef) -> DeviceRef {
        match self.identity {
            Some(_) => self.fence.guard(device),
            None => device,
        }
    }

    /// The host, if it renews one.
    pub fn identity(&self) -> Option<&Identity> {
        self.identity.as_ref()
    }

    /// It begins: from now on the fence counts.
    pub fn begin(&self, instance: [u8; 16]) {
        let Some(identity) = &self.identity else {
            return;
        };
        self.own.replace(Some(Block {
            counter: 0,
            in_use: true,
            boot: identity.boot,
            machine: identity.machine,
            instance,
            fence_ms: u32::try_from(FENCE / MILLISECOND).expect("seconds"),
            host: identity.name(),
        }));
        self.phase.set(Phase::Claimed);
        self.fence.renewed(self.fence.now());
    }

    /// The array is this host's.
    pub fn hold(&self) {
        self.phase.set(Phase::Held);
    }

    /// Whether it is being renewed.
    pub fn is_renewed(&self) -> bool {
        matches!(self.phase.get(), Phase::Claimed | Phase::Held)
    }

    /// It is not renewed any more; turns that are under way write nothing.
    pub fn end(&self) {
        self.phase.set(Phase::Ended);
    }

    /// The devices that count from now on. Those of a change of members do once it is in effect: until then another
    /// host may be let in by those of before.
    pub fn set_voters(&self, voters: Vec<u16>) {
        self.voters.replace(voters);
    }

    /// Whether at least half of the voters are such.
    fn are_half(&self, such: impl Fn(&Turn) -> bool) -> bool {
        let (turns, voters) = (self.turns.borrow(), self.voters.borrow());
        let such = |index: &&u16| turns.get(index).is_some_and(&such);
        2 * voters.iter().filter(such).count() >= voters.len()
    }

    /// Whether half of them took it.
    pub fn is_taken(&self) -> bool {
        self.are_half(|turn| turn.taken.is_some())
    }

    /// Whether half of them had it at the last look.
    pub fn is_kept(&self) -> bool {
        self.are_half(|turn| turn.kept)
    }

    /// The next block, while it is renewed.
    fn next(&self) -> Option<Block> {
        let mut own = self.own.borrow_mut();
        let own = own.as_mut().filter(|_| self.is_renewed())?;
        own.counter += 1;
        Some(own.clone())
    }

    /// The last block, which lets the array go, over one of these on a device of the array.
    pub async fn let_go_of(&self, rt: &Rt, array: &[u8; 16], device: DeviceRef, offset: u64) {
        let Some(last) = self.own.borrow().as_ref().map(|own| Block {
            counter: own.counter + 1,
            in_use: false,
            ..own.clone()
        }) else {
            return;
        };
        let write = async {
            let (bytes, read) = device.read(offset, Buf::scratch(BLOCK)).await;
            let found = Block::decode(array, &bytes).ok().filter(|_| read.is_ok());
            if found.is_some_and(|found| found.instance == last.instance) {
                let bytes = Buf::copy_of(&last.encode(array)).freeze();
                let _ = device.write(offset, vec![bytes]).await; // the next import waits, then
                let _ = device.flush().await;
            }
        };
        let _ = rt.timeout(DEADLINE, write).await;
    }

    /// Whether a block is another program's.
    fn is_other(&self, block: &Block) -> bool {
        let own = self.own.borrow();
        own.as_ref()
            .is_some_and(|own| own.instance != block.instance)
    }

    /// Whether a turn is under way.
    pub fn is_busy(&self) -> bool {
        self.turns.borrow().values().any(|turn| turn.under_way)
    }

    /// A turn of a device begins, unless one is under way.
    pub fn begin_turn(&self, index: u16) -> bool {
        let mut turns = self.turns.borrow_mut();
        let turn = turns.entry(index).or_default();
        !std::mem::replace(&mut turn.under_way, true)
    }

    /// A turn has ended; `taken`: when the write that the device took was begun.
    fn end_turn(&self, index: u16, taken: Option<Nanos>) {
        let mut turns = self.turns.borrow_mut();
        let turn = turns.entry(index).or_default();
        turn.under_way = false;
        turn.taken = taken.or(turn.taken);
        let voters = self.voters.borrow();
        let times = voters.iter().filter_map(|index| turns.get(index)?.taken);
        let mut times: Vec<Nanos> = times.collect();
        times.sort_unstable_by(|a, b| b.cmp(a));
        if let Some(renewed) = times.get(voters.len().div_ceil(2).max(1) - 1) {
            self.fence.renewed(*renewed);
        }
    }

    /// Devices that are not written any more have no beat.
    pub fn keep(&self, written: &[u16]) {
        let kept = |index: &u16, turn: &mut Turn| turn.under_way || written.contains(index);
        self.turns.borrow_mut().retain(kept);
    }

    /// What was seen before the array was this host's.
    pub fn has_seen(&self, seen: &BTreeMap<u16, Seen>) {
        let mut turns = self.turns.borrow_mut();
        for (index, seen) in seen {
            turns.entry(*index).or_default().seen = Some(seen.clone());
        }
    }

    /// Another device, or one that was away, takes a row: what it has is of what it was before.
    pub fn comes(&self, index: u16) {
        let mut turns = self.turns.borrow_mut();
        if let Some(turn) = turns.get_mut(&index) {
            (turn.seen, turn.other, turn.kept) = (None, None, false);
        }
    }

    /// What a device has of another program: whether its block counts as another host's.
    fn judge(&self, turn: &mut Turn, found: Option<&Block>) -> Option<(Block, Sight)> {
        let comes_in = turn.seen.is_none();
        let seen = turn.seen.get_or_insert_default();
        let other = found.filter(|block| self.is_other(block))?;
        let sight = seen.look(other);
        let lets_go = self.phase.get() == Phase::Claimed && !other.in_use;
        let counts = sight != Sight::Still && !comes_in && !lets_go;
        counts.then(|| (other.clone(), sight))
    }

    /// Who has taken the array over, if at least half of the voters have a beat that moves, or more than half one that
    /// was not seen before. One device alone may fall back to a block of long ago.
    pub fn taken_over(&self) -> Option<String> {
        let (host, all, moved) = self.others()?;
        let voters = self.voters.borrow().len();
        let host = (2 * moved >= voters || 2 * all > voters).then_some(host)?;
        self.successor.replace(Some(host.clone()));
        Some(host)
    }

    /// Who may have, as half of the voters say, or has.
    pub fn contested(&self) -> Option<String> {
        let successor = self.successor.borrow().clone();
        successor.or_else(|| {
            let (host, all, _) = self.others()?;
            (2 * all >= self.voters.borrow().len()).then_some(host)
        })
    }

    /// Another host of which voters say that it uses the array: its name, on how many its beat was not seen before, or
    /// moves, and on how many it moves.
    fn others(&self) -> Option<(String, usize, usize)> {
        let (turns, voters) = (self.turns.borrow(), self.voters.borrow());
        let others = voters
            .iter()
            .filter_map(|index| turns.get(index)?.other.as_ref());
        let others: Vec<&(Block, Sight)> = others.collect();
        let moved = others.iter().filter(|(_, sight)| *sight == Sight::Moved);
        let (host, moved) = (others.first()?.0.host.clone(), moved.count());
        Some((host, others.len(), moved))
    }
}

impl Member {
    /// The beat on its device; `None`: it says nothing.
    pub async fn read_beat(&self, array: &[u8; 16]) -> Option<Block> {
        let device = self.held()?;
        let at = self.geometry().beat_offset();
        let read = device.read(at, Buf::scratch(BLOCK));
        if let Some((bytes, Ok(()))) = self.rt.timeout(DEADLINE, read).await {
            return Block::decode(array, &bytes).ok();
        }
        add(&self.counters.read_errors, 1);
        None
    }

    /// One turn of the beat: looks whether the last block is still there, and writes the next. Another program's stays
    /// for a turn: by then it is known on how many devices it lies.
    pub async fn beat(&self, array: &[u8; 16], beat: &Beat) {
        let found = self.read_beat(array).await;
        let stays = {
            let mut turns = beat.turns.borrow_mut();
            let turn = turns.entry(self.index).or_default();
            turn.kept = found.as_ref().is_some_and(|block| !beat.is_other(block));
            let other = beat.judge(turn, found.as_ref());
            let stays = other.is_some() && turn.other.is_none();
            turn.other = other;
            stays
        };
        let begun = beat.fence.now();
        let taken = !stays && self.write_beat(array, beat).await.is_ok();
        beat.end_turn(self.index, taken.then_some(begun));
    }

    /// Writes the next block. No flush: it is for those who read it now.
    async fn write_beat(&self, array: &[u8; 16], beat: &Beat) -> Result<(), Fault> {
        let device = self.device(self.is_written())?;
        let Some(block) = beat.next() else {
            return Err(Fault::Offline);
        };
        let offset = self.geometry().beat_offset();
        let bytes = Buf::copy_of(&block.encode(array)).freeze();
        let (asked, under_way) = (Asked::now(&self.rt, 0), self.sent.change());
        let write = device.write(offset, vec![bytes]);
        let written = self.answer_of(asked, write, under_way).await;
        match written {
            Err(fault) if fault == Fault::Timeout || !beat.fence.is_down() => {
                self.count_failed(&self.counters.write_errors, fault);
            }
            _ => {}
        }
        written
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::testing::bed;

    fn identity(host: u8) -> Option<Identity> {
        Some(Identity {
            boot: [host; 16],
            machine: [host; 16],
            host: format!("host-{host}"),
        })
    }

    #[test]
    fn a_device_that_falls_back_shows_no_beat_that_moves() {
        let block = |instance: u8, counter| Block {
            counter,
            in_use: true,
            boot: [1; 16],
            machine: [1; 16],
            instance: [instance; 16],
            fence_ms: 1,
            host: String::new(),
        };
        let mut seen = Seen::default();
        let mut look = |instance, counter| seen.look(&block(instance, counter));
        assert_eq!((look(1, 5), look(1, 5)), (Sight::New, Sight::Still));
        assert_eq!((look(1, 3), look(1, 5)), (Sight::Still, Sight::Still));
        assert_eq!((look(2, 9), look(1, 6)), (Sight::New, Sight::Moved));
    }

    #[test]
    fn a_beat_is_as_old_as_on_the_slowest_of_half_of_the_devices() {
        let rt = Rt::simulated(1);
        let beat = Beat::new(&rt, identity(1));
        beat.begin([1; 16]);
        beat.set_voters(vec![0, 1, 2, 3]);
        let end = |index, at| {
            assert!(beat.begin_turn(index));
            assert!(!beat.begin_turn(index), "one at a time");
            beat.end_turn(index, Some(at));
        };
        rt.stand_still(FENCE);
        end(3, FENCE);
        assert!(!beat.fence.is_down());
        end(0, 10);
        rt.stand_still(10);
        assert!(!beat.fence.is_down(), "two of four took one begun at 10");
        end(1, FENCE);
        rt.stand_still(FENCE - 10);
        assert!(!beat.fence.is_down());
        rt.stand_still(1);
        assert!(beat.fence.is_down());
    }

    #[test]
    fn a_device_with_the_beat_of_another_is_taken_if_it_is_alone() {
        let bed = bed(3);
        let core = bed.core.clone();
        bed.rt.block_on(async move {
            let array = core.identity.array;
            let (first, second) = (
                Beat::new(&core.rt, identity(1)),
                Beat::new(&core.rt, identity(2)),
            );
            first.begin([1; 16]);
            second.begin([2; 16]);
            let blank = BTreeMap::from([0, 1, 2].map(|index| (index, Seen::default())));
            first.has_seen(&blank);
            second.has_seen(&blank);
            first.set_voters(vec![0, 1, 2]);
            second.set_voters(vec![0, 1, 2]);
            let beats = async |beat: &Beat, members: &[u16]| {
                for index in members {
                    assert!(beat.begin_turn(*index));
                    core.member(*index).beat(&array, beat).await;
                }
            };
            beats(&first, &[0, 1, 2]).await;
            beats(&second, &[0]).await;
            beats(&second, &[0]).await; // what it has found did not move
            beats(&first, &[0, 1, 2]).await;
            assert_eq!(first.taken_over(), None);
            beats(&first, &[0]).await;
            let block = core.member(0).read_beat(&array).await.unwrap();
            assert_eq!(block.instance, [1; 16], "it is written over");
            beats(&second, &[1, 2]).await;
            beats(&second, &[1, 2]).await;
            beats(&first, &[0, 1, 2]).await;
            assert_eq!(first.taken_over().as_deref(), Some("host-2"));
            let block = core.member(1).read_beat(&array).await.unwrap();
            assert_eq!(block.instance, [2; 16], "it is left alone");
        });
    }
}
