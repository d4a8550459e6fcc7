//! The layouts that seeds draw: small ones, of one group or of several.
//!
//! Invariants: layouts of several groups have a generator of their own, drawn from in every seed, so that the other
//! draws do not depend on them.

use crate::rng::Rng;

/// Layouts of several groups among all, in 100.
const GROUPED_PERCENT: u64 = 10;

/// A layout and what it comes to.
#[derive(Debug)]
pub(super) struct Geometry {
    pub(super) layout: String,
    pub(super) k: usize,
    pub(super) m: usize,
    pub(super) devices: usize,
    pub(super) groups: usize,
    pub(super) spare: u16,
}

impl Geometry {
    /// One of one group, drawn from `rng`, or, seldom or as `wanted`, one of several groups, drawn from `later`.
    pub(super) fn random(rng: &mut Rng, later: &mut Rng, wanted: bool) -> Geometry {
        let flat = flat(rng);
        let wanted = later.chance(GROUPED_PERCENT) || wanted;
        let grouped = grouped(later);
        if wanted { grouped } else { flat }
    }
}

/// A layout of several groups: small ones, since there are several.
fn grouped(rng: &mut Rng) -> Geometry {
    let groups = 2 + rng.index(2);
    let (name, m, k) = match rng.below(100) {
        0..30 => {
            let groups = 2 + rng.index(3);
            return Geometry {
                layout: "raid10".to_string(),
                k: 1,
                m: 1,
                devices: 2 * groups,
                groups,
                spare: 0,
            };
        }
        30..36 => {
            return Geometry {
                layout: "jbod".to_string(),
                k: 1,
                m: 0,
                devices: groups,
                groups,
                spare: 0,
            };
        }
        36..66 => ("raid50", 1, 1 + rng.index(3)),
        66..92 => ("raid60", 2, 1 + rng.index(3)),
        _ => ("raid70", 3, 1 + rng.index(2)),
    };
    // With a device to spare in each group redundancy can return within it.
    let each = usize::from(rng.chance(40));
    Geometry {
        layout: format!("{name}:{groups}"),
        k,
        m,
        devices: groups * (k + m + each),
        groups,
        spare: u16::try_from(groups * each).expect("a few"),
    }
}

/// A layout of one group.
fn flat(rng: &mut Rng) -> Geometry {
    let extra = if rng.chance(40) { rng.index(4) } else { 0 };
    let ec = |k: usize, m: usize, extra: usize| (format!("ec{k}+{m}"), k, m, k + m + extra);
    let (layout, k, m, devices) = match rng.below(100) {
        0..8 => {
            let devices = 1 + rng.index(4);
            ("raid0".to_string(), devices, 0, devices)
        }
        8..24 => ("raid1".to_string(), 1, 1, 2),
        24..34 => ec(1, 3, extra),
        34..44 => ec(3, 1, 2 + rng.index(4)),
        44..54 => ec(2, 1, extra),
        54..64 => ec(2, 2, extra),
        64..80 => ec(4, 2, extra),
        80..89 => ec(8, 2, extra.min(2)),
        89..98 => ec(8, 3, extra.min(2)),
        _ => ec(20, 4, 0),
    };
    Geometry {
        layout,
        k,
        m,
        devices,
        groups: 1,
        spare: 0,
    }
}
