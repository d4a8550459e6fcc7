//! Watching, before an import, whether another host uses the array (rule R18).
//!
//! Invariants: devices are only read here; a beat that is seen to move refuses the import, whatever the operator says.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use ashlar_device::DeviceRef;
use ashlar_format::BLOCK;
use ashlar_format::beat::Beat as Block;
use ashlar_rt::{Buf, MILLISECOND, Nanos, Rt, SECOND, join_all};

use crate::error::Error;
use crate::members::DEADLINE;
use crate::members::beat::{Identity, PERIOD, Seen, Sight};
use crate::members::fence::FENCE;
use crate::options::{Import, Watched};
use crate::planted::{self, Bug};

/// How long the beat of another boot of this machine is watched: that boot is over, unless two machines have one
/// identity.
const SAME_MACHINE: Nanos = 10 * PERIOD;
/// How much longer than the fence of another machine, and than a device may take for what that has submitted, its beat
/// is watched.
const MARGIN: Nanos = 5 * SECOND;

/// The beat of one device.
pub(super) struct Place {
    /// Its row.
    pub index: u16,
    pub device: DeviceRef,
    /// Where the beat lies.
    pub offset: u64,
}

/// The programs that have not let the array go, with a block of each.
fn users<'a>(blocks: impl Iterator<Item = &'a Block> + Clone) -> Vec<&'a Block> {
    let gone = blocks.clone().filter(|b| !b.in_use);
    let mut seen: BTreeSet<[u8; 16]> = gone.map(|b| b.instance).collect();
    blocks.filter(|b| seen.insert(b.instance)).collect()
}

/// How long the beat of another machine with this fence is watched.
const fn others_time(fence: Nanos) -> Nanos {
    fence + DEADLINE + MARGIN
}

/// How long a block is watched.
fn time_for(identity: &Identity, block: &Block) -> Nanos {
    if identity.wrote(block) {
        0
    } else if identity.is_of_machine(block) {
        SAME_MACHINE
    } else {
        others_time(u64::from(block.fence_ms) * MILLISECOND)
    }
}

/// Reads the beat of a device, and notes in `seen` if it cannot.
async fn read(rt: &Rt, array: &[u8; 16], place: &Place, seen: &mut Seen) -> Option<Block> {
    let read = place.device.read(place.offset, Buf::zeroed(BLOCK));
    if let Some((bytes, Ok(()))) = rt.timeout(DEADLINE, read).await {
        let block = Block::decode(array, &bytes).ok();
        seen.is_torn |= block.is_none() && bytes.iter().any(|byte| *byte != 0);
        return block;
    }
    seen.failed += 1;
    None
}

/// A device, while the beats are watched.
struct Watch {
    rt: Rt,
    array: [u8; 16],
    identity: Identity,
    place: Place,
    /// Up to when.
    until: Nanos,
    seen: Seen,
    /// Those that were not seen at first.
    new: Vec<Block>,
    /// Programs that have let the array go meanwhile.
    gone: Vec<[u8; 16]>,
    /// One whose counter has risen once: what was read before may have been old.
    rose: Option<[u8; 16]>,
    /// A beat that has moved on any device.
    moved: Rc<RefCell<Option<Block>>>,
}

impl Watch {
    /// Reads the beat again and again, until one moves or the time has come. A program that was not seen here before is
    /// watched as long as it would have been.
    async fn run(mut self) -> Watch {
        while self.rt.now() < self.until && self.moved.borrow().is_none() {
            let next = PERIOD.min(self.until - self.rt.now());
            self.rt.sleep(next).await;
            let now = read(&self.rt, &self.array, &self.place, &mut self.seen).await;
            let Some(now) = now else { continue };
            match self.seen.look(&now) {
                Sight::New | Sight::Moved if !now.in_use => self.gone.push(now.instance),
                Sight::New => {
                    let until = self.rt.now() + time_for(&self.identity, &now);
                    self.until = self.until.max(until);
                    self.new.push(now);
                }
                Sight::Still => {}
                Sight::Moved if self.rose == Some(now.instance) => {
                    self.moved.replace(Some(now));
                }
                Sight::Moved => {
                    self.rose = Some(now.instance);
                    self.until = self.until.max(self.rt.now() + 3 * PERIOD);
                }
            }
        }
        self
    }
}

/// Waits until it is known that no other host renews its beat on these devices.
///
/// # Errors
/// One does, or may again: it used the array last and did not let it go, and the operator has not said that it is off.
pub(super) async fn watch(
    rt: &Rt,
    array: [u8; 16],
    places: Vec<Place>,
    identity: &Identity,
    options: &Import,
) -> Result<Watched, Error> {
    let look = |place: Place| {
        let rt = rt.clone();
        async move {
            let mut seen = Seen::default();
            let block = read(&rt, &array, &place, &mut seen).await;
            (block, place, seen)
        }
    };
    let looks = places.into_iter().map(|place| rt.spawn(look(place)));
    let looked = join_all(looks.collect::<Vec<_>>()).await;
    let said = || looked.iter().filter_map(|(block, ..)| block.as_ref());
    let alone = said().next().is_some() && said().all(|b| identity.wrote(b));
    let users: Vec<Block> = users(said()).into_iter().cloned().collect();
    let user = users.iter().max_by_key(|b| time_for(identity, b));
    let user = user.filter(|b| time_for(identity, b) > 0);
    let says_nothing = |(.., seen): &&(_, _, Seen)| seen.failed > 0 || seen.is_torn;
    let unread = looked.iter().filter(says_nothing).count();
    let time = match user {
        _ if planted::on(Bug::BeatNotWatched) => 0,
        // Whoever uses it may have a beat there.
        _ if 2 * unread >= looked.len() => others_time(FENCE),
        Some(user) => time_for(identity, user),
        None => 0,
    };
    if time > 0 {
        let who = match user {
            Some(user) => format!("host {} used it last and did not export it", user.host),
            None => format!("{unread} of its devices do not say which host used it last"),
        };
        let seconds = time / SECOND;
        let text = format!("{who}; whether it is in use elsewhere is watched for {seconds} s");
        options.waits.tell(&text);
    }
    let moved: Rc<RefCell<Option<Block>>> = Rc::default();
    let watch = |(block, place, mut seen): (Option<Block>, Place, Seen)| {
        if let Some(block) = block {
            seen.look(&block);
        }
        let watch = Watch {
            rt: rt.clone(),
            array,
            identity: identity.clone(),
            place,
            until: rt.now() + time,
            seen,
            new: Vec::new(),
            gone: Vec::new(),
            rose: None,
            moved: moved.clone(),
        };
        rt.spawn(watch.run())
    };
    let watches: Vec<_> = looked.into_iter().map(watch).collect();
    let mut watched = Watched {
        seen: BTreeMap::new(),
        alone,
    };
    let mut others = users;
    let mut gone = BTreeSet::new();
    for watch in join_all(watches).await {
        watched.seen.insert(watch.place.index, watch.seen);
        others.extend(watch.new);
        gone.extend(watch.gone);
    }
    if let Some(block) = moved.take() {
        return Err(Error::UsedBy(block.host));
    }
    let is_other = |b: &Block| !identity.wrote(b) && !identity.is_of_machine(b);
    others.retain(|b| is_other(b) && !gone.contains(&b.instance));
    match others.pop().filter(|_| !options.take_over) {
        Some(user) => Err(Error::LastUsedBy(user.host)),
        None => Ok(watched),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(instance: u8, host: u8, in_use: bool) -> Block {
        Block {
            counter: 1,
            in_use,
            boot: [host; 16],
            machine: [host / 10; 16],
            instance: [instance; 16],
            fence_ms: 40_000,
            host: String::new(),
        }
    }

    /// A program that died at its export has let the array go on some devices only.
    #[test]
    fn one_block_is_enough_to_let_an_array_go() {
        let blocks = [block(1, 1, true), block(1, 1, false), block(2, 2, true)];
        let left = users(blocks.iter());
        assert_eq!(left, vec![&blocks[2]]);
    }

    #[test]
    fn another_machine_is_watched_longest() {
        let identity = Identity {
            boot: [11; 16],
            machine: [1; 16],
            host: String::new(),
        };
        assert_eq!(time_for(&identity, &block(1, 11, true)), 0);
        assert_eq!(time_for(&identity, &block(1, 12, true)), 10 * SECOND);
        assert_eq!(time_for(&identity, &block(1, 21, true)), 75 * SECOND);
        let nameless = Identity {
            machine: [0; 16],
            ..identity
        };
        assert_eq!(time_for(&nameless, &block(1, 1, true)), 75 * SECOND);
    }
}
