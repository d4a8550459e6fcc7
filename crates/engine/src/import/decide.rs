//! Decides which generation an import goes on from, and with which devices (R10), given the superblocks read before.
//!
//! Invariants:
//! - A generation is set aside only if what is here proves that it never took effect, whatever the devices
//!   that are not here hold. Two that may both have been in effect are refused.
//! - A generation that may have been cut off before it took effect is gone on from only where the one before
//!   would be; [`Decision::unsure`] says so, and whoever goes on stores it again before anything else.

use std::collections::{BTreeMap, BTreeSet};

use ashlar_format::superblock::{Generation, MemberEntry};

use crate::error::Error;
use crate::members::duties::Duties;
use crate::members::quorum::online_members;
use crate::planted::{self, Bug};

/// What a device says of the generation that it holds.
#[derive(Clone, Copy, Debug)]
pub struct Holder<'a> {
    /// The device.
    pub device: [u8; 16],
    /// Its row in the member table.
    pub index: u16,
    /// How often its superblock was written.
    pub writes: u64,
    /// The generation.
    pub generation: &'a Generation,
    /// The member table of that.
    pub members: &'a [MemberEntry],
    /// Whether it has a root of that generation, or of a later one; `None`: it was not asked yet.
    pub rooted: Option<bool>,
}

impl Holder<'_> {
    /// Whether it is a member by this table.
    fn is_member(&self, members: &[MemberEntry]) -> bool {
        let entry = members.get(usize::from(self.index));
        entry.is_some_and(|entry| {
            let member = Duties::of(entry.state, true).read || planted::on(Bug::StaleMemberTrusted);
            member && entry.uuid == self.device
        })
    }
}

/// What an array goes on from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The holder whose superblock decides.
    pub newest: usize,
    /// The holders that are its members.
    pub members: Vec<usize>,
    /// Its generation may have been cut off before it took effect.
    pub unsure: bool,
    /// Not every member that is here holds it.
    pub behind: bool,
}

/// One of the generations with the greatest number, as far as the devices here know it.
struct Known<'a> {
    /// Of its holders the one that was written last, and its place among those that are here.
    newest: (usize, Holder<'a>),
    /// Devices here that hold it.
    holders: BTreeSet<[u8; 16]>,
    /// One of them has a root of it: roots are written once it is in effect.
    rooted: bool,
}

impl Known<'_> {
    /// Whether it was in effect for certain.
    fn in_effect(&self) -> bool {
        self.rooted || self.holders.len() * 2 >= self.before()
    }

    fn before(&self) -> usize {
        usize::from(self.newest.1.generation.before)
    }

    /// Whether it never took effect for certain: even if every device that it counts and that is not here
    /// held it, they would be too few.
    fn never(&self, here: &[Holder<'_>]) -> bool {
        let is_here = |uuid: [u8; 16]| here.iter().any(|h| h.device == uuid);
        let members = self.newest.1.members;
        let counted = online_members(members);
        let unseen = counted.filter(|i| !is_here(members[*i].uuid)).count();
        !self.in_effect() && (self.holders.len() + unseen) * 2 < self.before()
    }
}

/// The generations with the greatest number, by identity.
fn newest_known<'a>(here: &[Holder<'a>]) -> BTreeMap<[u8; 16], Known<'a>> {
    let numbers = here.iter().map(|h| h.generation.number);
    let number = if planted::on(Bug::GenerationOldestWins) {
        numbers.min()
    } else {
        numbers.max()
    };
    let mut known: BTreeMap<[u8; 16], Known<'a>> = BTreeMap::new();
    let holders = here.iter().enumerate();
    for (at, holder) in holders.filter(|(_, h)| Some(h.generation.number) == number) {
        let one = known.entry(holder.generation.id).or_insert(Known {
            newest: (at, *holder),
            holders: BTreeSet::new(),
            rooted: false,
        });
        one.holders.insert(holder.device);
        one.rooted |= holder.rooted == Some(true);
        if holder.writes > one.newest.1.writes {
            one.newest = (at, *holder);
        }
    }
    known
}

/// The device to look for a root on next: it holds a generation that could be proved in effect so.
pub(super) fn to_ask(here: &[Holder<'_>]) -> Option<usize> {
    let known = newest_known(here);
    let unproved = known.iter().filter(|(_, known)| !known.in_effect());
    let mut ask = unproved.filter_map(|(id, _)| {
        let unasked = |h: &Holder<'_>| h.generation.id == *id && h.rooted.is_none();
        here.iter().position(unasked)
    });
    ask.next()
}

/// The holder of the generation that decides, and whether that may have been cut off before it took effect. One that
/// never took effect is set aside, and so are those of which it is not certain beside one of which it is; where that
/// leaves two, histories went apart.
///
/// Of two that the same one made, at most one took effect by itself: the second was made by a start from the one
/// before, which needs more than half of the devices or all, and so saw a holder of the first.
fn newest_generation(here: &[Holder<'_>]) -> Result<(usize, bool), Error> {
    let known = newest_known(here);
    let (never, mut may): (Vec<&Known<'_>>, Vec<&Known<'_>>) =
        known.values().partition(|k| k.never(here));
    if may.iter().any(|k| k.in_effect()) {
        may.retain(|k| k.in_effect());
    }
    let parent = |known: &&Known<'_>| known.newest.1.generation.parent();
    let parents: BTreeSet<Option<[u8; 16]>> = never.iter().map(parent).collect();
    // Generations are made only by one that is in effect.
    let holders = here.iter().enumerate();
    let before = holders
        .filter(|(_, h)| parents.len() == 1 && parents.contains(&Some(h.generation.id)))
        .max_by_key(|(_, h)| h.writes);
    match (&may[..], before, &never[..]) {
        ([one], _, _) => Ok((one.newest.0, !one.in_effect())),
        ([], Some((before, _)), _) => Ok((before, false)),
        ([], None, [one]) => Ok((one.newest.0, true)),
        ([], None, []) => Err(Error::NoArray),
        ([one, ..], _, _) | (_, _, [one, ..]) => {
            Err(Error::Diverged(one.newest.1.generation.number))
        }
    }
}

/// A generation that may have been cut off: the array must be able to start from the one before as well,
/// or two halves of it could each go on.
fn check_before(newest: &Holder<'_>, here: &[Holder<'_>]) -> Result<(), Error> {
    let counted = usize::from(newest.generation.before);
    let parent = here
        .iter()
        .find(|h| Some(h.generation.id) == newest.generation.parent());
    // Whom the newest counts, the one before counted too.
    let mut before: BTreeSet<usize> = online_members(newest.members).collect();
    before.extend(parent.iter().flat_map(|h| online_members(h.members)));
    let known = [Some(newest.generation.id), newest.generation.parent()];
    let counts = |h: &&Holder<'_>| {
        // One that came back with the newest was not counted by the one before, and holds neither.
        if !known.contains(&Some(h.generation.id)) {
            return false;
        }
        let index = usize::from(h.index);
        let uuid = newest.members.get(index).map(|m| m.uuid);
        before.contains(&index) && uuid == Some(h.device)
    };
    let seen: BTreeSet<[u8; 16]> = here.iter().filter(counts).map(|h| h.device).collect();
    match is_majority(seen.len(), counted) {
        true => Ok(()),
        false => Err(Error::TooFew {
            seen: seen.len(),
            counted,
            generation: newest.generation.number - 1,
        }),
    }
}

/// More than half of what is counted, or all.
pub(super) fn is_majority(seen: usize, counted: usize) -> bool {
    seen >= counted || seen * 2 > counted
}

/// Which of the devices that are here an array goes on from, and with; with `degraded` also with too few of them.
///
/// # Errors
/// Why it cannot, or may not without the operator's word.
pub fn decide(here: &[Holder<'_>], degraded: bool) -> Result<Decision, Error> {
    let (newest, unsure) = newest_generation(here)?;
    let by = &here[newest];
    if unsure && !degraded {
        check_before(by, here)?;
    }
    let is_member = |at: &usize| here[*at].is_member(by.members);
    let members: Vec<usize> = (0..here.len()).filter(is_member).collect();
    let mut seen = BTreeSet::new();
    for member in &members {
        if !seen.insert(here[*member].index) {
            return Err(Error::Duplicate(here[*member].index));
        }
    }
    let counted = online_members(by.members).count();
    if !is_majority(seen.len(), counted) && !degraded {
        return Err(Error::TooFew {
            seen: seen.len(),
            counted,
            generation: by.generation.number,
        });
    }
    if members.is_empty() {
        return Err(Error::NoArray);
    }
    let other = |at: &usize| here[*at].generation.id != by.generation.id;
    Ok(Decision {
        behind: members.iter().any(other),
        newest,
        members,
        unsure,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use ashlar_format::superblock::MemberState;

    use super::*;

    /// The generations of the tables: name, number, the one before, how many devices that counted, which devices it
    /// counts.
    const GENERATIONS: [(char, u64, char, u16, &str); 6] = [
        ('A', 1, '-', 0, "01234"),
        ('B', 2, 'A', 5, "012"),
        ('C', 2, 'A', 5, "234"),
        ('E', 2, 'A', 5, "01"),
        ('F', 2, 'A', 5, "34"),
        ('D', 3, 'B', 3, "01"),
    ];

    struct Named {
        generation: Generation,
        members: Vec<MemberEntry>,
    }

    fn named(name: char) -> Named {
        let all = GENERATIONS.iter();
        let (_, number, parent, before, counted) = *all.clone().find(|g| g.0 == name).unwrap();
        let member = |device: u8| MemberEntry {
            uuid: [device; 16],
            slots: 8,
            state: match counted.contains(char::from(b'0' + device)) {
                true => MemberState::Online,
                false => MemberState::Failed,
            },
            stale_since: 0,
            group: Some(0),
            first_epoch: 1,
            domain_since: 0,
            domain: String::new(),
        };
        Named {
            generation: Generation {
                number,
                id: [name as u8; 16],
                past: vec![[parent as u8; 16]],
                before,
            },
            members: (0..5).map(member).collect(),
        }
    }

    /// Five devices: the generation that each holds, with a star if it has a root of that; a dot is one that is not
    /// here.
    fn tell(devices: &str) -> Vec<(u8, Named, bool)> {
        let devices = devices.split_whitespace().zip(0u8..);
        let here = devices.filter(|(word, _)| *word != ".");
        here.map(|(word, device)| {
            let name = word.chars().next().unwrap();
            (device, named(name), word.ends_with('*'))
        })
        .collect()
    }

    fn holders(told: &[(u8, Named, bool)]) -> Vec<Holder<'_>> {
        let here = told.iter().map(|(device, named, rooted)| Holder {
            device: [*device; 16],
            index: u16::from(*device),
            writes: 1,
            generation: &named.generation,
            members: &named.members,
            rooted: Some(*rooted),
        });
        here.collect()
    }

    /// The generation that is gone on from, with a question mark if that is unsure; seen/counted of too few devices.
    fn verdict(here: &[Holder<'_>], degraded: bool) -> String {
        match decide(here, degraded) {
            Ok(found) => {
                let name = char::from(here[found.newest].generation.id[0]);
                format!("{name}{}", if found.unsure { "?" } else { "" })
            }
            Err(Error::TooFew { seen, counted, .. }) => format!("{seen}/{counted}"),
            Err(Error::Diverged(_)) => "diverged".to_string(),
            Err(other) => format!("{other:?}"),
        }
    }

    #[test]
    fn the_generation_that_decides() {
        let t = |devices, degraded, expected| {
            let told = tell(devices);
            let found = verdict(&holders(&told), degraded);
            assert_eq!(found, expected, "{devices}, degraded: {degraded}");
        };
        // One generation: more than half of the devices, or all.
        t("A* A* A* A* A*", false, "A");
        t("A* A* A* .  . ", false, "A");
        t("A* A* .  .  . ", false, "2/5");
        t("A* A* .  .  . ", true, "A");
        t(".  .  .  .  . ", true, "NoArray");
        // The next, cut off on its way: half of those counted before make it count.
        t("B  A* A* A* A*", false, "A");
        t("B  B  A* A* A*", false, "A");
        t("B  B  B  A* A*", false, "B");
        t("D  B* B* A* A*", false, "B");
        t("D  D  B* A* A*", false, "D");
        // Who is not here may hold it: it is gone on from where the one before would be.
        t("B  B  .  A* A*", false, "B?");
        t("B  .  .  A* A*", false, "1/3");
        t("B  B  .  .  . ", false, "2/5");
        t("B  B  .  .  . ", true, "B?");
        t("B  .  .  .  . ", true, "B?");
        // A root proves it.
        t("B* B  .  .  . ", false, "B");
        t("B* .  .  .  . ", false, "1/3");
        // It never took effect, and of the one before nobody is here.
        t("E  E  .  .  . ", false, "2/5");
        t("E  E  .  .  . ", true, "E?");
        // Rivals: only one may have been in effect.
        t("B  B  .  C  C ", false, "diverged");
        t("B  B  .  C  C ", true, "diverged");
        t("B* B  .  C  C ", false, "B");
        t("B  B  C  C  C ", false, "C");
        t("B  C  C  A* A*", false, "A");
        t(".  B  B  C  C ", false, "2/5");
        t("E  E  .  F  F ", true, "diverged");
        t("E  A* A* A* F ", false, "A");
    }

    /// Whatever five devices hold: no root that was not looked for would have changed anything.
    #[test]
    fn only_roots_that_decide_are_looked_for() {
        let words = [".", "A", "A*", "B", "B*", "C", "C*"];
        let mut looked = 0;
        for all in 0..words.len().pow(5) {
            let word = |device: u32| words[all / words.len().pow(device) % words.len()];
            let told = tell(&[0, 1, 2, 3, 4].map(word).join(" "));
            let known = holders(&told);
            let mut asked = known.clone();
            asked.iter_mut().for_each(|h| h.rooted = None);
            while let Some(at) = to_ask(&asked) {
                asked[at].rooted = known[at].rooted;
                looked += 1;
            }
            assert_eq!(verdict(&asked, false), verdict(&known, false), "{all}");
        }
        assert!(looked > 0);
    }

    #[test]
    fn members_are_those_that_the_generation_counts() {
        let told = tell("B B B* A* A");
        let here = holders(&told);
        let found = decide(&here, false).unwrap();
        assert_eq!((found.members, found.behind), (vec![0, 1, 2], false));
        // One that was set aside: its holder is a member all the same, and stores the other.
        let told = tell("B A* A* A* .");
        let found = decide(&holders(&told), false).unwrap();
        assert_eq!((found.members, found.behind), (vec![0, 1, 2, 3], true));
        // A foreign device in a member's place counts for nothing.
        let mut other = here.clone();
        other[2].device = [9; 16];
        assert_eq!(decide(&other, true).unwrap().members, vec![0, 1]);
        other.push(here[0]);
        assert!(matches!(decide(&other, true), Err(Error::Duplicate(0))));
    }
}
