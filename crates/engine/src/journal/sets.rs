//! The devices that hold a journal record, and how many of them may be lost (R5).
//!
//! Invariants:
//! - A record lies within one set, with no more columns in a failure domain than it has parity wherever the
//!   domains can carry that, and what leaves all data readable leaves the record readable: it has
//!   parity for M devices of its group, or, where no group has more than M devices left, for M of each.
//! - Both follow from the layout and from who was in use when the epoch began, so that an import knows
//!   which devices an epoch cannot do without.

use ashlar_format::root::Epoch;
use ashlar_layout::{MAX_WIDTH, Shape};
use ashlar_space::domains::Domains;

/// Most data columns of a record.
const MOST_DATA: usize = 8;
/// Most columns of a record: the symbols of a codeword.
const MOST_COLUMNS: usize = MAX_WIDTH as usize;

/// Devices that hold records: each lies on some that follow each other, going round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordSet {
    /// The devices, those of a failure domain apart.
    pub devices: Vec<u16>,
    /// Most data columns of a record.
    pub most_data: usize,
    /// Whether no record has more columns in one domain than it has parity.
    pub survives_domains: bool,
}

impl RecordSet {
    fn new(devices: &[u16], domains: &Domains, parity: u16) -> RecordSet {
        let m = usize::from(parity).min(devices.len().saturating_sub(1));
        let widest = (devices.len() - m).clamp(1, MOST_DATA.min(MOST_COLUMNS - m));
        let data = |order: &[u16]| {
            let apart = |data: &usize| domains.is_apart(order, data + m, m.max(1));
            (1..=widest).rev().find(apart)
        };
        let orders = domains.apart(devices).into_iter();
        let orders = orders.map(|order| (data(&order), order));
        // The first of those with the widest records.
        let best = orders.reduce(|best, next| if next.0 > best.0 { next } else { best });
        let (most_data, devices) = best.unwrap_or_default();
        RecordSet {
            most_data: most_data.unwrap_or(widest),
            survives_domains: most_data.is_some(),
            devices,
        }
    }
}

/// The sets of devices one of which holds each record, and how many parity columns it has there if there are
/// the devices. A group that has no more devices in use than M holds none while another has: it could not lose
/// M of them.
pub fn record_sets(
    shape: &Shape,
    domains: &Domains,
    in_use: impl Fn(u16) -> bool,
) -> (Vec<RecordSet>, u16) {
    let (sets, m) = device_sets(shape, in_use);
    let set = |devices: &Vec<u16>| RecordSet::new(devices, domains, m);
    (sets.iter().map(set).collect(), m)
}

fn device_sets(shape: &Shape, in_use: impl Fn(u16) -> bool) -> (Vec<Vec<u16>>, u16) {
    let here = |group: &Vec<u16>| -> Vec<u16> {
        let devices = group.iter().copied();
        devices.filter(|d| in_use(*d)).collect()
    };
    let groups: Vec<Vec<u16>> = shape.groups.iter().map(here).collect();
    let redundant = |group: &&Vec<u16>| group.len() > usize::from(shape.m);
    let sets: Vec<Vec<u16>> = groups.iter().filter(redundant).cloned().collect();
    if shape.m == 0 || sets.is_empty() {
        // No group survives a loss by itself: records go over all.
        let parities = shape.most_lost().clamp(1, 255);
        let parities = u16::try_from(parities).expect("at most 255");
        return (vec![groups.concat()], parities);
    }
    (sets, shape.m)
}

/// What is left of a set of an epoch.
struct Left {
    devices: usize,
    gone: usize,
    /// How many more columns of a record can be lost; `None`: one may be lost already.
    left: Option<usize>,
}

/// What is left of the sets of an epoch with these devices gone. Without parity in the layout any loss is one of
/// data, and it is those that decide: no sets then.
fn left_of(
    shape: &Shape,
    domains: &Domains,
    epoch: &Epoch,
    gone: impl Fn(u16) -> bool,
) -> Vec<Left> {
    if shape.m == 0 {
        return Vec::new();
    }
    let (sets, _) = record_sets(shape, domains, |d| !epoch.excluded.contains(&d));
    let left = |set: RecordSet| {
        let devices = set.devices.len();
        let spared = usize::from(epoch.m).max(1).min(devices.saturating_sub(1));
        let gone: Vec<u16> = set.devices.into_iter().filter(|d| gone(*d)).collect();
        Left {
            devices,
            gone: gone.len(),
            left: match set.survives_domains {
                true => domains.survives(gone.into_iter(), spared),
                false => spared.checked_sub(gone.len()),
            },
        }
    };
    sets.into_iter().map(left).collect()
}

/// Whether records of an epoch may be lost with these devices gone: more columns of one set than it has parity
/// for. Gives how many of how many are gone.
pub fn too_few(
    shape: &Shape,
    domains: &Domains,
    epoch: &Epoch,
    gone: impl Fn(u16) -> bool,
) -> Option<(usize, usize)> {
    let left = left_of(shape, domains, epoch, gone);
    let beyond = left.iter().find(|set| set.left.is_none())?;
    Some((beyond.gone, beyond.devices))
}

/// How many more devices, whichever they are, records of an epoch can do without when these are gone.
pub fn losses_left(
    shape: &Shape,
    domains: &Domains,
    epoch: &Epoch,
    gone: impl Fn(u16) -> bool,
) -> usize {
    let left = left_of(shape, domains, epoch, gone);
    let more = left.iter().map(|set| set.left.unwrap_or(0));
    more.min().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn shape(layout: &str, devices: u16) -> Shape {
        let layout: ashlar_layout::Layout = layout.parse().unwrap();
        layout.resolve(devices).unwrap()
    }

    /// Each device a domain of its own.
    fn alone() -> Domains {
        Domains::new(std::iter::empty())
    }

    fn epoch(shape: &Shape, excluded: &[u16]) -> Epoch {
        let (_, m) = device_sets(shape, |d| !excluded.contains(&d));
        Epoch {
            number: 1,
            id: [0; 16],
            first: 1,
            end: None,
            m,
            excluded: excluded.to_vec(),
        }
    }

    /// Whatever is gone beforehand and whatever M of each group are lost then: no record needs them, as long as
    /// one device is left.
    #[test]
    fn m_of_each_group_can_be_lost_at_any_time() {
        for (layout, devices) in [
            ("raid10", 6),
            ("raid50:2", 6),
            ("raid60:2", 8),
            ("ec2+2", 5),
            ("raid1", 2),
        ] {
            let shape = shape(layout, devices);
            for before in 0..1u16 << devices {
                let out = |d: u16| before >> d & 1 == 1;
                let excluded: Vec<u16> = (0..devices).filter(|d| out(*d)).collect();
                let epoch = epoch(&shape, &excluded);
                for lost in 0..1u16 << devices {
                    let gone = |d: u16| lost >> d & 1 == 1;
                    let of = |group: &Vec<u16>| {
                        let here = group.iter().filter(|d| gone(**d) && !out(**d));
                        here.count() <= usize::from(shape.m)
                    };
                    let left = (0..devices).any(|d| !gone(d) && !out(d));
                    if left && shape.groups.iter().all(of) {
                        let found = too_few(&shape, &alone(), &epoch, gone);
                        assert_eq!(found, None, "{layout}: {before:b}, then {lost:b}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_group_that_lost_too_many_is_told() {
        let pairs = shape("raid10", 4);
        assert_eq!(device_sets(&pairs, |d| d != 0), (vec![vec![2, 3]], 1));
        assert_eq!(
            too_few(&pairs, &alone(), &epoch(&pairs, &[0]), |d| d >= 2),
            Some((2, 2))
        );
        assert_eq!(
            device_sets(&pairs, |d| d == 1 || d == 2),
            (vec![vec![1, 2]], 2)
        );
        assert_eq!(
            too_few(&pairs, &alone(), &epoch(&pairs, &[]), |d| d == 0 || d == 1),
            Some((2, 2))
        );
    }

    /// Whatever domain is gone as a whole: no record needs it, where there are domains enough.
    #[test]
    fn a_domain_can_be_lost() {
        for (layout, devices, of_each, survives) in [
            ("ec4+2", 12, 3, true),
            ("ec2+2", 12, 4, true),
            ("ec8+3", 24, 4, true),
            ("ec4+2", 40, 10, true),
            ("raid10", 8, 4, true),
            ("ec8+2", 12, 6, true),
            ("ec4+1", 8, 8, false),
        ] {
            let shape = shape(layout, devices);
            let label = |d: u16| format!("d{}", d % (devices / of_each));
            let labels: Vec<String> = (0..devices).map(label).collect();
            let domains = Domains::new(labels.iter().map(String::as_str));
            let (sets, m) = record_sets(&shape, &domains, |_| true);
            for domain in 0..devices / of_each {
                let gone = |d: u16| domains.of(d) == domain;
                let found = too_few(&shape, &domains, &epoch(&shape, &[]), gone);
                assert_eq!(found.is_none(), survives, "{layout}, domain {domain}");
                for set in sets.iter().filter(|_| survives) {
                    let width = set.most_data + usize::from(m);
                    for first in 0..set.devices.len() {
                        let around = set.devices.iter().cycle().skip(first).take(width);
                        let lost = around.filter(|d| gone(**d)).count();
                        assert!(lost <= usize::from(m), "{layout}: from {first}");
                    }
                }
            }
        }
    }

    /// No codeword has more than 256 symbols, however many devices there are and whichever are gone.
    #[test]
    fn records_are_codewords() {
        for (layout, devices) in [
            ("ec1+255", 257),
            ("ec2+253", 300),
            ("ec1+247", 300),
            ("raid10", 514),
            ("raid60:150", 900),
            ("jbod", 600),
        ] {
            let shape = shape(layout, devices);
            let outs: [fn(u16) -> bool; 3] = [|_| false, |d| d % 2 == 0, |d| d % 6 > 1];
            for out in outs {
                let (sets, m) = record_sets(&shape, &alone(), |d| !out(d));
                for set in sets {
                    let m = usize::from(m).min(set.devices.len() - 1);
                    let w = set.most_data;
                    assert!(w > 0 && w + m <= 256, "{layout}: {w}+{m}");
                    assert!(w + m <= set.devices.len(), "{layout}: {w}+{m}");
                }
            }
        }
    }
}
