//! The effective settings of an array.
//!
//! Invariants:
//! - All but the spare space stand in the catalog; that stands in the superblock, and a generation changes it.
//! - Spare space is only taken of what volumes were not promised.
//!
//! Crash argument for the spare space: it is a field of a generation, so an import finds the new number or the one
//! before, and nothing on disk is laid by it. What volumes are promised by a smaller number is in no root before the
//! generation that says it: roots wait for the log lock. A generation that too few stored is followed by one that says
//! the same (`home/generation.rs`).

use std::rc::Rc;

use ashlar_layout::{Layout, LayoutError};
use ashlar_rt::{BLOCK, Nanos, SECOND};
use ashlar_space::topology::Topology;
use ashlar_space::usable::usable_whole;
use ashlar_space::work::Narrow;

use crate::error::Error;
use crate::home::Home;
use crate::home::jobs::narrow_named;
use crate::home::space::topology_of;
use crate::options::{
    ACCELERATOR, DEFAULT_SLOW_TIMEOUT, DELAY, DISCARD, NARROW, RESERVE, Rates, SLOW_TIMEOUT, SPARE,
    Setting, bytes_a_second, delay, percent, rates_of, slow_timeout,
};
use crate::space::geometry::DEFAULT_CLEAN_RESERVE;
use crate::status::Work;

/// Whether an array of this layout, with groups of which the smallest has so many devices, may keep so much spare space.
fn check_layout(layout: &str, topology: &Topology, least: usize, spare: u16) -> Result<(), Error> {
    let shape = topology.shape();
    if let Ok(layout) = layout.parse::<Layout>() {
        let named = layout.named_spare();
        if named != 0 && named != spare {
            let layout = layout.to_string();
            return Err(Error::SpareNamed { layout, named });
        }
        if spare > 0 && (shape.m == 0 || matches!(layout, Layout::Raid10)) {
            return Err(LayoutError::NoSpare { layout }.into());
        }
        let groups = topology.groups();
        if !spare.is_multiple_of(groups) {
            return Err(LayoutError::UnevenSpare {
                layout,
                groups,
                spare,
            }
            .into());
        }
    }
    let each = usize::from(spare / topology.groups().max(1));
    let (have, need) = (least, usize::from(shape.width()) + each);
    match spare > 0 && have < need {
        true => Err(Error::TooFewToSpare { spare, have, need }),
        false => Ok(()),
    }
}

impl Home {
    /// What is set, or the default.
    pub(crate) fn setting(&self, setting: &Setting) -> String {
        if setting.key == SPARE.key {
            return self.superblock.borrow().spare.to_string();
        }
        let catalog = self.catalog.borrow();
        let set = catalog.settings.iter().find(|(k, _)| k == setting.key);
        set.map_or_else(|| setting.default.to_string(), |(_, value)| value.clone())
    }

    /// What `clean.reserve` says.
    pub(crate) fn clean_reserve_percent(&self) -> u8 {
        percent(&self.setting(&RESERVE)).unwrap_or(DEFAULT_CLEAN_RESERVE)
    }

    /// Whether devices are told to discard slots as they are freed.
    pub(crate) fn discards(&self) -> bool {
        self.setting(&DISCARD) != "off"
    }

    /// What `reconstruct.delay` says.
    pub(crate) fn rebuild_delay(&self) -> Nanos {
        delay(&self.setting(&DELAY)).unwrap_or(0) * SECOND
    }

    /// What `slow.timeout` says.
    pub(crate) fn slow_timeout(&self) -> Nanos {
        let seconds = slow_timeout(&self.setting(&SLOW_TIMEOUT));
        seconds.unwrap_or(DEFAULT_SLOW_TIMEOUT) * SECOND
    }

    /// What `reconstruct.narrow` says.
    pub(crate) fn narrow_policy(&self) -> Narrow {
        narrow_named(&self.setting(&NARROW))
    }

    /// What a kind of background work may have of each device; `None`: it is not held back.
    pub(crate) fn rates(&self, work: Work) -> Option<Rates> {
        let rate = |setting| bytes_a_second(&self.setting(setting)).flatten();
        let [min, max] = rates_of(work)?.map(rate);
        Some(Rates { min, max })
    }

    /// Computes with what `accelerator` says from now on.
    pub(crate) fn choose_accelerator(&self) {
        let choice = self.setting(&ACCELERATOR).parse().unwrap_or_default();
        self.core.coder.choose(choice);
    }

    /// Whether so many devices' worth of space can be spare.
    fn check_spare(&self, spare: u16) -> Result<(), Error> {
        let topology = self.topology();
        // One that is to leave is no device of its group any more.
        let counts = |d: &&u16| {
            let member = self.core.member(**d);
            !member.is_counted() || member.takes_slots()
        };
        let devices = |group| topology.group(group).iter().filter(counts).count();
        let least = (0..topology.groups()).map(devices).min().unwrap_or(0);
        let layout = self.superblock.borrow().layout.clone();
        check_layout(&layout, &topology, least, spare)?;
        let shape = topology.shape();
        if spare <= shape.spare {
            return Ok(()); // it only gives room
        }
        let with = topology_of(&self.core.members, (shape.k, shape.m), spare);
        let space = self.space_on(&with);
        let whole = usable_whole(&with, &self.geometry_on(&with, 0)) * BLOCK as u64;
        let (promised, usable) = (space.promised_bytes, space.usable_bytes.min(whole));
        match promised <= usable {
            true => Ok(()),
            false => Err(Error::NoRoomToSpare {
                spare,
                promised,
                usable,
            }),
        }
    }

    /// So many devices' worth of space is spare from now on: a new generation says so.
    pub(crate) async fn set_spare(self: &Rc<Self>, spare: u16) -> Result<(), Error> {
        self.merge().await; // what thin volumes have written is counted
        self.check_spare(spare)?; // also of what is set already: devices may have left since
        if self.superblock.borrow().spare == spare {
            return Ok(());
        }
        self.make_room_for_epochs().await?;
        let log = self.log.turn.lock().await;
        if *log || self.core.closed.get() {
            return Err(Error::Closed);
        }
        self.check_spare(spare)?; // a volume may have been made meanwhile
        self.superblock.borrow_mut().spare = spare;
        self.publish_members().await;
        drop(log);
        self.checkpoint(0).await; // what thin volumes may take is counted then
        match self.core.closed.get() {
            true => Err(Error::Closed),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ashlar_space::domains::Domains;
    use ashlar_space::topology::{Member as Site, Presence};

    fn topology(layout: &str, devices: u16) -> Topology {
        let layout: Layout = layout.parse().expect("a layout");
        let site = Site {
            slots: 100,
            presence: Presence::InUse,
            replaces: None,
            is_new: false,
        };
        let shape = layout.resolve(devices).expect("it fits");
        let domains = Domains::new((0..devices).map(|_| ""));
        Topology::new(vec![site; devices.into()], shape, domains)
    }

    #[test]
    fn spare_space_is_for_layouts_that_can_use_it() {
        for (layout, devices, least, spare, fits) in [
            ("ec2+1", 5, 5, 2, true),
            ("ec2+1", 5, 5, 3, false),
            ("ec2+1", 5, 4, 2, false),
            ("raid5", 4, 4, 1, false),
            ("raid5", 4, 5, 1, true),
            ("raid1", 3, 4, 1, true),
            ("raid10", 4, 4, 2, false),
            ("raid0", 4, 5, 1, false),
            ("raid50:2", 8, 5, 2, true),
            ("raid50:2", 8, 5, 1, false),
            ("draid1:2d:5c:1s", 5, 5, 1, true),
            ("draid1:2d:5c:1s", 5, 5, 2, false),
            ("draid1:2d:5c:1s", 5, 5, 0, false),
            ("draid1:2d:5c", 5, 5, 2, true),
            ("raid10", 4, 4, 0, true),
        ] {
            let found = check_layout(layout, &topology(layout, devices), least, spare);
            assert_eq!(
                found.is_ok(),
                fits,
                "{layout}, {spare} of {least}: {found:?}"
            );
        }
    }
}
