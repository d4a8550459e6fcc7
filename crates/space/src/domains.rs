//! Failure domains: which devices may be lost together.
//!
//! Invariants: devices with the same label share a domain, one without a label is a domain of its own; what
//! is written holds at most M columns in a domain wherever the domains can carry that, so that no more than M
//! of its columns go with one.

use std::collections::BTreeMap;

/// Every device's domain.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Domains {
    /// By device: the first device of its domain.
    first: Vec<u16>,
}

impl Domains {
    /// The domains of devices with these labels, in the order of the devices.
    pub fn new<'a>(labels: impl Iterator<Item = &'a str>) -> Domains {
        let mut known: BTreeMap<&str, u16> = BTreeMap::new();
        let first = labels.zip(0..).map(|(label, device)| match label {
            "" => device,
            label => *known.entry(label).or_insert(device),
        });
        Domains {
            first: first.collect(),
        }
    }

    /// The same with one device more, in the domain of `like`, or in one of its own.
    #[must_use]
    pub fn and(&self, like: Option<u16>) -> Domains {
        let own = u16::try_from(self.first.len()).unwrap_or(u16::MAX);
        let mut first = self.first.clone();
        first.push(like.map_or(own, |like| self.of(like)));
        Domains { first }
    }

    /// The domain of a device, as the index of a device in it.
    pub fn of(&self, device: u16) -> u16 {
        self.first
            .get(usize::from(device))
            .copied()
            .unwrap_or(device)
    }

    /// How many of these devices there are in each domain that has any.
    pub fn count(&self, devices: impl Iterator<Item = u16>) -> BTreeMap<u16, usize> {
        let mut counts = BTreeMap::new();
        for device in devices {
            *counts.entry(self.of(device)).or_insert(0) += 1;
        }
        counts
    }

    /// How many columns at most lie on these devices, of what has no more than `m` in a domain.
    pub fn columns(&self, devices: impl Iterator<Item = u16>, m: usize) -> usize {
        self.count(devices).values().map(|n| (*n).min(m)).sum()
    }

    /// How many more columns can be lost with these devices gone, of a codeword that has `m` parity columns and no more
    /// than these in a domain; `None`: it may be lost. For what lies nobody knows where: of a segment its columns tell.
    pub fn survives(&self, gone: impl Iterator<Item = u16>, m: usize) -> Option<usize> {
        m.checked_sub(self.columns(gone, m.max(1)))
    }

    /// How wide a segment with `m` parity columns can be on these devices, with no more than `m` columns in a
    /// domain; as wide as there are devices where they have but one.
    pub fn width(&self, devices: &[u16], m: usize) -> usize {
        let columns = self.columns(devices.iter().copied(), m);
        if columns > m { columns } else { devices.len() }
    }

    /// Orders in which the devices of a domain are far from each other, going round; which of them keeps them
    /// apart best depends on how many devices the domains have. As they came where each is a domain of its own.
    pub fn apart(&self, devices: &[u16]) -> Vec<Vec<u16>> {
        let sizes = self.count(devices.iter().copied());
        let largest = sizes.values().copied().max().unwrap_or(1);
        if largest <= 1 {
            return vec![devices.to_vec()];
        }
        let (few, many) = (devices.len() / largest, devices.len().div_ceil(largest));
        let mut orders = vec![
            self.evenly(devices, &sizes),
            self.strided(devices, &sizes, few),
        ];
        if many != few {
            orders.push(self.strided(devices, &sizes, many));
        }
        orders
    }

    /// Each device in the middle of its share of the way round.
    fn evenly(&self, devices: &[u16], sizes: &BTreeMap<u16, usize>) -> Vec<u16> {
        let mut seen: BTreeMap<u16, usize> = BTreeMap::new();
        let mut placed: Vec<(u64, usize, u16)> = Vec::new();
        for (at, device) in devices.iter().enumerate() {
            let domain = self.of(*device);
            let nth = seen.entry(domain).or_insert(0);
            let middle = ((2 * *nth as u64 + 1) << 32) / sizes[&domain] as u64;
            placed.push((middle, at, *device));
            *nth += 1;
        }
        placed.sort_unstable();
        placed.into_iter().map(|(_, _, device)| device).collect()
    }

    /// Domain after domain, the largest first, on places `stride` apart, going round as often as it takes.
    fn strided(&self, devices: &[u16], sizes: &BTreeMap<u16, usize>, stride: usize) -> Vec<u16> {
        let mut sorted = devices.to_vec();
        sorted.sort_by_key(|d| (std::cmp::Reverse(sizes[&self.of(*d)]), self.of(*d)));
        let places = (0..stride).flat_map(|first| (first..devices.len()).step_by(stride));
        let mut placed: Vec<(usize, u16)> = places.zip(sorted).collect();
        placed.sort_unstable();
        placed.into_iter().map(|(_, device)| device).collect()
    }

    /// Whether any `width` devices of these that follow each other, going round, hold at most `m` of a domain.
    pub fn is_apart(&self, order: &[u16], width: usize, m: usize) -> bool {
        let width = width.min(order.len());
        let mut inside = self.count(order[..width].iter().copied());
        let mut most = inside.values().copied().max().unwrap_or(0);
        for at in 0..order.len() {
            let (out, next) = (order[at], order[(at + width) % order.len()]);
            *inside.entry(self.of(next)).or_insert(0) += 1;
            *inside.entry(self.of(out)).or_insert(1) -= 1;
            most = most.max(inside[&self.of(next)]);
        }
        most <= m
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Enclosures of three and of two devices, and one alone; a codeword has at most `m` columns in each.
    #[test]
    fn whole_domains_count_as_the_columns_in_them() {
        let domains = Domains::new(["a", "a", "a", "b", "b", ""].into_iter());
        let t = |gone: &[u16], m, left| {
            let found = domains.survives(gone.iter().copied(), m);
            assert_eq!(found, left, "M = {m} without {gone:?}");
        };
        t(&[], 0, Some(0));
        t(&[5], 0, None);
        t(&[], 2, Some(2));
        t(&[5], 2, Some(1));
        t(&[0, 1], 2, Some(0));
        t(&[0, 1, 2], 2, Some(0)); // of the three at most two hold columns
        t(&[0, 3], 2, Some(0));
        t(&[0, 1, 5], 2, None);
        t(&[0, 1, 2, 3], 2, None);
        t(&[0, 1, 2, 3, 4], 3, None);
        t(&[0, 1, 2], 1, Some(0));
    }

    #[test]
    fn devices_of_a_domain_go_apart() {
        let domains = Domains::new(["a", "a", "a", "", "b", "b", "b", ""].into_iter());
        assert_eq!((domains.of(2), domains.of(3), domains.of(6)), (0, 3, 4));
        let order = domains.apart(&[0, 1, 2, 3, 4, 5, 6, 7]).remove(0);
        assert_eq!(order, [0, 4, 1, 3, 5, 7, 2, 6]);
        assert!(domains.is_apart(&order, 2, 1) && !domains.is_apart(&order, 3, 1));
        assert!(domains.is_apart(&order, 6, 3) && !domains.is_apart(&order, 7, 2));
        assert!(domains.is_apart(&order, 8, 3) && !domains.is_apart(&order, 8, 2));
        assert_eq!(domains.columns([0, 1, 2, 3, 5].into_iter(), 2), 4);
        let alone = Domains::new(["", "", ""].into_iter());
        assert_eq!(alone.apart(&[2, 0, 1]), [[2, 0, 1]]);
        // Two devices in one enclosure, two alone: none next to its neighbour, going round.
        let uneven = Domains::new(["a", "a", "", ""].into_iter());
        let orders = uneven.apart(&[0, 1, 2, 3]);
        assert!(orders.iter().any(|order| uneven.is_apart(order, 2, 1)));
        assert!(alone.is_apart(&[2, 0, 1], 3, 1));
    }
}
