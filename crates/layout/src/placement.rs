//! Which devices the n-th segment of a group is placed on.
//!
//! Two ways, chosen by what is asked. *Even*: all devices count alike and failure domains do not
//! constrain; positions of a [`Permutation`] in runs of K+M, constant time a device. *Weighted*:
//! devices have different free space or share failure domains; systematic sampling along an
//! order in which the devices of a domain are neighbours: each device gets a share of the
//! segments in proportion to its weight, a domain never more columns than its cap.
//!
//! A *row* is the set of segments a stream writes in turn; [`Placement::row_len`] is the smallest
//! number of segments that covers the eligible devices evenly to within 3 %.
//!
//! **Invariants.** A returned set holds `min(width, eligible.len())` different devices out of
//! `eligible`, in column order (data columns first). Which device holds which column rotates, so
//! parity spreads. Callers leave failed and slow devices out of `eligible`. Everything is a
//! function of the arguments. Where domains can carry it, no domain holds more than `m` columns of
//! a segment; where they cannot, the columns are spread as evenly as the domains allow.

use std::collections::BTreeMap;

use crate::permutation::{Permutation, gcd};

/// One pick in fixed point: a device that is in every segment has this share.
const ONE: u64 = 1 << 32;

/// Chooses device sets; `start` sets streams apart from each other.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Placement {
    /// Offset added to every tile number, so that the streams of an array do not all begin on the
    /// same devices. 0 by default.
    pub start: u64,
}

impl Placement {
    /// A placement whose tiles are offset by `start`.
    #[must_use]
    pub fn new(start: u64) -> Placement {
        Placement { start }
    }

    /// Segments of a row: the fewest that load `devices` devices evenly to within 3 % (each
    /// device being used `ceil` times at most), or all of a tile. At least 1.
    ///
    /// 4 for 8+2 on 41 devices, 10 for 8+2 on 100, 1 for 80+20 on 100.
    #[must_use]
    pub fn row_len(devices: usize, width: usize) -> usize {
        if width == 0 || devices <= width {
            return 1;
        }
        // Once around, where that leaves few devices idle.
        if devices % width * 100 <= devices * 3 {
            return devices / width;
        }
        let tile = devices / gcd(devices as u64, width as u64) as usize;
        (1..tile)
            .find(|segments| {
                let strips = segments * width;
                strips * 100 >= strips.div_ceil(devices) * devices * 97
            })
            .unwrap_or(tile)
    }

    /// The devices of segment `index`, evenly, in column order. Segment `index` is segment
    /// `index % row_len` of row `index / row_len`.
    #[must_use]
    pub fn pick(&self, index: u64, eligible: &[u16], width: usize) -> Vec<u16> {
        let row_len = Placement::row_len(eligible.len(), width) as u64;
        self.pick_in_row(
            &family(eligible, width),
            index / row_len,
            index % row_len,
            eligible,
            width,
        )
    }

    /// Segment `segment` of row `tile`; `family` is that of the number of eligible devices.
    fn pick_in_row(
        &self,
        family: &Permutation,
        tile: u64,
        segment: u64,
        eligible: &[u16],
        width: usize,
    ) -> Vec<u16> {
        let eligible = &eligible[..eligible.len().min(usize::from(u16::MAX))];
        let width = width.min(eligible.len());
        let tile = tile.wrapping_add(self.start);
        let mut columns: Vec<u16> = if width == eligible.len() {
            eligible.to_vec()
        } else {
            let first = segment * width as u64;
            family
                .run(tile, first, width)
                .map(|at| eligible[usize::from(at)])
                .collect()
        };
        rotate(&mut columns, tile, segment);
        columns
    }

    /// Row `tile` where all devices count alike and failure domains do not constrain: its segments
    /// are those that [`Placement::pick`] gives one by one.
    #[must_use]
    pub fn even_row(&self, tile: u64, eligible: &[u16], width: usize) -> Vec<Vec<u16>> {
        let family = family(eligible, width);
        (0..Placement::row_len(eligible.len(), width) as u64)
            .map(|segment| self.pick_in_row(&family, tile, segment, eligible, width))
            .collect()
    }

    /// Row `tile`: [`Placement::row_len`] segments that together cover the eligible devices as
    /// evenly as possible, with at most `m` columns of a segment in one failure domain where the
    /// domains can carry that ([`Placement::survives_domain`]).
    ///
    /// `domain_of` gives a device's domain; devices that share none must get different numbers.
    /// All devices in one domain counts as no domains.
    #[must_use]
    pub fn row(
        &self,
        tile: u64,
        eligible: &[u16],
        width: usize,
        domain_of: &dyn Fn(u16) -> u16,
        m: usize,
    ) -> Vec<Vec<u16>> {
        self.row_weighted(tile, eligible, width, domain_of, m, &|_| 1)
    }

    /// As [`Placement::row`], each device loaded in proportion to `weight_of` (its free slots; 0
    /// counts as 1). A device is in each segment once at most, a domain `m` times at most where all
    /// can do with that, so shares beyond that go to the others.
    #[must_use]
    pub fn row_weighted(
        &self,
        tile: u64,
        eligible: &[u16],
        width: usize,
        domain_of: &dyn Fn(u16) -> u16,
        m: usize,
        weight_of: &dyn Fn(u16) -> u64,
    ) -> Vec<Vec<u16>> {
        let row_len = Placement::row_len(eligible.len(), width);
        let segments = 0..row_len as u64;
        if width >= eligible.len() {
            return self.even_row(tile, eligible, width);
        }
        let domains = by_domain(eligible, domain_of);
        let cap = cap_of(&domains, width, m);
        let first = eligible.first().map(|&d| weight_of(d).max(1));
        let even = eligible.iter().all(|&d| Some(weight_of(d).max(1)) == first);
        if cap.is_none() && even {
            return self.even_row(tile, eligible, width);
        }
        let cap = cap.unwrap_or(width);
        let tile = tile.wrapping_add(self.start);
        let order = domain_order(tile, domains.into_values().collect());
        let shares = shares(&order, width, cap, weight_of);
        let phase = mix(tile) % ONE;
        let row_len = row_len as u64;
        let step = sample_step(row_len, width as u64, eligible.len() as u64);
        segments
            .map(|s| {
                let start = (phase + s * step % row_len * ONE / row_len) % ONE;
                let mut columns = sample(&order, &shares, start);
                rotate(&mut columns, tile, s);
                columns
            })
            .collect()
    }

    /// How many columns a segment has on each of the eligible devices on average, as
    /// [`Placement::row_weighted`] gives them: 0 to 1 each, `width` in all.
    #[must_use]
    pub fn loads(
        eligible: &[u16],
        width: usize,
        domain_of: &dyn Fn(u16) -> u16,
        m: usize,
        weight_of: &dyn Fn(u16) -> u64,
    ) -> Vec<(u16, f64)> {
        if width >= eligible.len() {
            return eligible.iter().map(|&d| (d, 1.0)).collect();
        }
        let domains = by_domain(eligible, domain_of);
        let cap = cap_of(&domains, width, m).unwrap_or(width);
        let order: Vec<Vec<u16>> = domains.into_values().collect();
        let shares = shares(&order, width, cap, weight_of);
        let devices = order.into_iter().flatten();
        devices
            .zip(shares.into_iter().map(|s| s as f64 / ONE as f64))
            .collect()
    }

    /// Whether every segment of `width` columns can keep within `m` columns a domain, so that the
    /// loss of any one domain is survived.
    #[must_use]
    pub fn survives_domain(domain_sizes: &[usize], width: usize, m: usize) -> bool {
        m > 0 && domain_sizes.iter().map(|&n| n.min(m)).sum::<usize>() >= width
    }
}

/// The permutations of the eligible devices, to be cut into runs of `width`.
fn family(eligible: &[u16], width: usize) -> Permutation {
    Permutation::for_runs(u16::try_from(eligible.len()).unwrap_or(u16::MAX), width)
}

/// Turns the columns so that each device comes to hold each column. Over consecutive segments of
/// the same devices the turn advances by one.
fn rotate(columns: &mut [u16], tile: u64, segment: u64) {
    let width = columns.len() as u64;
    if width > 0 {
        let by = (tile % width + segment % width) % width;
        columns.rotate_left(usize::try_from(by).unwrap_or(0));
    }
}

/// By how many `row_len`ths of a pick the start of each segment of a row lies past that of the one
/// before: about a device's share, so that neighbours in a row have few devices in common, and
/// coprime to `row_len`, so that all starts come up.
fn sample_step(row_len: u64, width: u64, devices: u64) -> u64 {
    let share = (row_len * width)
        .div_ceil(devices.max(1))
        .clamp(1, row_len.max(1));
    (share..).find(|&step| gcd(step, row_len) == 1).unwrap_or(1)
}

/// A well-mixed function of the tile (the finaliser of SplitMix64).
fn mix(tile: u64) -> u64 {
    let mut x = tile.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn by_domain(eligible: &[u16], domain_of: &dyn Fn(u16) -> u16) -> BTreeMap<u16, Vec<u16>> {
    let mut domains: BTreeMap<u16, Vec<u16>> = BTreeMap::new();
    for &device in eligible {
        domains.entry(domain_of(device)).or_default().push(device);
    }
    domains
}

/// Most columns a domain may hold: `m`. `None` where domains do not constrain; nor do they where one that is lost
/// takes more than `m` columns in any case: small domains would only be full before the large ones.
fn cap_of(domains: &BTreeMap<u16, Vec<u16>>, width: usize, m: usize) -> Option<usize> {
    if domains.len() == 1 || domains.values().all(|d| d.len() <= m.max(1)) {
        return None;
    }
    let sizes: Vec<usize> = domains.values().map(Vec::len).collect();
    Placement::survives_domain(&sizes, width, m).then_some(m)
}

/// Domains in the order of the tile, and in each its devices in the order of the tile.
fn domain_order(tile: u64, domains: Vec<Vec<u16>>) -> Vec<Vec<u16>> {
    let outer = Permutation::new(domains.len().min(usize::from(u16::MAX)) as u16);
    (0..domains.len() as u64)
        .map(|at| {
            let domain = &domains[usize::from(outer.at(tile, at))];
            let inner = Permutation::new(domain.len() as u16);
            let tile = mix(tile ^ at.rotate_left(32));
            (0..domain.len() as u64)
                .map(|i| domain[usize::from(inner.at(tile, i))])
                .collect()
        })
        .collect()
}

/// Shares out `total` in proportion to `weights`, none above its limit (water filling). The result
/// sums to `total`, or to the sum of the limits where that is less.
fn fill(total: u64, weights: &[u64], limits: &[u64]) -> Vec<u64> {
    let mut given: Vec<Option<u64>> = vec![None; weights.len()];
    loop {
        let taken: u64 = given.iter().flatten().sum();
        let rest = total.saturating_sub(taken);
        let open: u128 = (0..weights.len())
            .filter(|&i| given[i].is_none())
            .map(|i| u128::from(weights[i]))
            .sum();
        let part = |i: usize| (u128::from(rest) * u128::from(weights[i]) / open.max(1)) as u64;
        let full: Vec<usize> = (0..weights.len())
            .filter(|&i| given[i].is_none() && part(i) >= limits[i])
            .collect();
        if full.is_empty() {
            let mut out: Vec<u64> = (0..weights.len())
                .map(|i| given[i].unwrap_or_else(|| part(i)))
                .collect();
            // What integer division left over goes to those with room, in order.
            let mut left = total.saturating_sub(out.iter().sum());
            for (share, &limit) in out.iter_mut().zip(limits) {
                let more = left.min(limit - (*share).min(limit));
                *share += more;
                left -= more;
            }
            return out;
        }
        for i in full {
            given[i] = Some(limits[i]);
        }
    }
}

/// The share of each device, in the order given, in units of [`ONE`].
fn shares(
    order: &[Vec<u16>],
    width: usize,
    cap: usize,
    weight_of: &dyn Fn(u16) -> u64,
) -> Vec<u64> {
    // Weights are bounded so that their sums stay far from the end of u64.
    let weight = |device: &u16| weight_of(*device).clamp(1, 1 << 40);
    let weights: Vec<u64> = order
        .iter()
        .map(|domain| domain.iter().map(weight).sum())
        .collect();
    let limits: Vec<u64> = order
        .iter()
        .map(|domain| domain.len().min(cap) as u64 * ONE)
        .collect();
    let domains = fill(width as u64 * ONE, &weights, &limits);
    let mut out = Vec::new();
    for (domain, share) in order.iter().zip(domains) {
        let weights: Vec<u64> = domain.iter().map(weight).collect();
        out.extend(fill(share, &weights, &vec![ONE; domain.len()]));
    }
    out
}

/// Systematic sampling: the devices whose stretch of the line of shares holds one of the points
/// `start`, `start + ONE`, `start + 2 ONE`, ... A stretch of at most `ONE` holds one at most.
fn sample(order: &[Vec<u16>], shares: &[u64], start: u64) -> Vec<u16> {
    let mut point = start;
    let mut end = 0_u64;
    let mut out = Vec::new();
    for (&device, share) in order.iter().flatten().zip(shares) {
        end += share;
        if point < end {
            out.push(device);
            point += ONE;
        }
    }
    out
}
