//! Placement: balance, coverage, domains, weights, golden vectors.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;

use ashlar_layout::{Permutation, Placement};

fn devices(n: u16) -> Vec<u16> {
    (0..n).collect()
}

/// Busiest over mean of the load on the survivors when device `failed` is lost: how many segments
/// each shares with it, over `rows` rows.
fn busiest(n: u16, width: usize, failed: u16, rows: u64) -> f64 {
    let eligible = devices(n);
    let row_len = Placement::row_len(usize::from(n), width) as u64;
    let mut load = vec![0_u64; usize::from(n)];
    for index in 0..rows * row_len {
        let set = Placement::default().pick(index, &eligible, width);
        if set.contains(&failed) {
            for device in set {
                load[usize::from(device)] += 1;
            }
        }
    }
    load[usize::from(failed)] = 0;
    let max = load.iter().copied().max().unwrap();
    let mean = load.iter().sum::<u64>() as f64 / f64::from(n - 1);
    max as f64 / mean
}

/// As [`busiest`], through the inverse permutation: one row costs one segment.
fn busiest_fast(n: u16, width: u64, failed: u16, rows: u64) -> f64 {
    let family = Permutation::for_runs(n, width as usize);
    let row_len = Placement::row_len(usize::from(n), width as usize) as u64;
    let mut load = vec![0_u64; usize::from(n)];
    for tile in 0..rows {
        let position = family.position(tile, failed);
        // Positions run on around the ring: find every unit of the row that is this position.
        let mut unit = position;
        while unit < row_len * width {
            let first = unit / width * width;
            for other in first..first + width {
                load[usize::from(family.at(tile, other))] += 1;
            }
            unit += u64::from(n);
        }
    }
    load[usize::from(failed)] = 0;
    let max = load.iter().copied().max().unwrap();
    max as f64 / (load.iter().sum::<u64>() as f64 / f64::from(n - 1))
}

#[test]
fn prime_counts_balance_exactly() {
    for (n, width) in [(11, 4), (13, 10), (23, 10), (41, 10), (61, 10)] {
        let period = Permutation::new(n).period();
        for failed in [0, n / 2, n - 1] {
            let ratio = busiest(n, width, failed, period);
            assert!((ratio - 1.0).abs() < 1e-12, "{n} {width}: {ratio}");
            assert!((busiest_fast(n, width as u64, failed, period) - 1.0).abs() < 1e-12);
        }
    }
    let ratio = busiest_fast(251, 10, 17, Permutation::new(251).period());
    assert!((ratio - 1.0).abs() < 1e-12, "251: {ratio}");
}

#[test]
fn any_count_balances_within_a_tenth() {
    let mut worst = (0.0, 0, 0);
    for (n, width) in [
        (8, 5),
        (9, 4),
        (10, 6),
        (12, 10),
        (14, 5),
        (16, 10),
        (20, 10),
        (24, 10),
        (28, 10),
        (32, 10),
        (36, 10),
        (48, 12),
        (60, 10),
        (72, 10),
        (84, 10),
        (90, 20),
        (100, 10),
        (100, 20),
        (106, 10),
        (114, 10),
        (128, 10),
        (200, 10),
        (200, 20),
        (256, 10),
        (212, 10),
        (256, 24),
        (300, 224),
        (512, 10),
        (512, 128),
        (1000, 10),
        (1000, 240),
        (1024, 10),
        (1024, 24),
        (1024, 256),
    ] {
        // What an array fills with 16,384 slots a device, or two rounds of the shifts, which the
        // largest arrays need to be even.
        let family = Permutation::new(n);
        let round = family.period() / u64::from(n).max(2) * width as u64;
        let rows = (2 * round).clamp(16_384, 24_000).min(family.period());
        let failures: &[u16] = if n <= 128 {
            &[0, n / 3, n - 1]
        } else {
            &[n / 3]
        };
        for &failed in failures {
            let ratio = busiest_fast(n, width as u64, failed, rows);
            if ratio > worst.0 {
                worst = (ratio, n, width);
            }
            assert!(
                ratio <= 1.10,
                "{n} devices, width {width}, {failed} lost: {ratio:.3}"
            );
        }
    }
    println!("worst {worst:?}");
}

#[test]
fn rows_cover_all_devices() {
    for (n, width, expect) in [
        (41, 10, 4),
        (100, 10, 10),
        (100, 100, 1),
        (10, 10, 1),
        (8, 10, 1),
        (1000, 10, 100),
        (1000, 256, 19),
        (103, 10, 10),
        (12, 10, 6),
        (1, 1, 1),
        (0, 3, 1),
        (3, 0, 1),
    ] {
        assert_eq!(Placement::row_len(n, width), expect, "{n} {width}");
    }
    for n in 1..=64_u16 {
        for width in 1..=usize::from(n) {
            let rows = Placement::default().row(9, &devices(n), width, &|d| d, 2);
            let mut used = vec![0_usize; usize::from(n)];
            for set in &rows {
                let mut sorted = set.clone();
                sorted.sort_unstable();
                sorted.dedup();
                assert_eq!(sorted.len(), width, "{n} {width}");
                set.iter().for_each(|&d| used[usize::from(d)] += 1);
            }
            let strips = rows.len() * width;
            let most = used.iter().max().unwrap();
            // Cycle walking keeps this exact: a row uses each position as often as any other.
            assert_eq!(*most, strips.div_ceil(usize::from(n)), "{n} {width}");
            for (s, set) in rows.iter().enumerate() {
                let index = 9 * rows.len() as u64 + s as u64;
                assert_eq!(*set, Placement::default().pick(index, &devices(n), width));
            }
        }
    }
}

#[test]
fn columns_rotate() {
    // Parity (the last two columns) comes to every device alike.
    for (n, width) in [(10, 10), (11, 10), (41, 10), (7, 3)] {
        let eligible = devices(n);
        let row_len = Placement::row_len(usize::from(n), width) as u64;
        let family = Permutation::new(n);
        let rows = family.period() * width as u64;
        let mut parity = vec![0_u64; usize::from(n)];
        for index in 0..rows * row_len {
            for &d in &Placement::default().pick(index, &eligible, width)[width - 2..] {
                parity[usize::from(d)] += 1;
            }
        }
        let (min, max) = (parity.iter().min().unwrap(), parity.iter().max().unwrap());
        assert!(*max as f64 / *min as f64 <= 1.02, "{n} {width}: {parity:?}");
    }
    // All devices in every segment: each column once a turn.
    let first: Vec<u16> = (0..10)
        .map(|i| Placement::default().pick(i, &devices(10), 10)[0])
        .collect();
    assert_eq!(first, devices(10));
}

#[test]
fn only_eligible_devices() {
    let eligible: Vec<u16> = (0..50).filter(|d| d % 7 != 3).collect();
    for index in 0..500 {
        for d in Placement::new(5).pick(index, &eligible, 10) {
            assert!(eligible.contains(&d));
        }
    }
    assert!(Placement::default().pick(3, &[], 4).is_empty());
    assert_eq!(Placement::default().pick(0, &[4, 9], 4), vec![4, 9]);
    assert_eq!(
        Placement::default().row(0, &[], 4, &|d| d, 1),
        vec![Vec::<u16>::new()]
    );
}

#[test]
fn domains_hold_at_most_m() {
    // (devices, domains, width, m)
    for (n, domains, width, m) in [
        (40, 5, 10, 2),
        (60, 12, 10, 2),
        (24, 4, 12, 3),
        (25, 5, 10, 2),
        (96, 8, 20, 4),
        (43, 6, 10, 2),
    ] {
        let domain_of = |d: u16| d % domains;
        let sizes: Vec<usize> = (0..domains)
            .map(|x| devices(n).iter().filter(|&&d| d % domains == x).count())
            .collect();
        assert!(Placement::survives_domain(&sizes, width, m));
        let mut load = vec![0_u64; usize::from(n)];
        for tile in 0..2000 {
            for set in Placement::default().row(tile, &devices(n), width, &domain_of, m) {
                let mut count: BTreeMap<u16, usize> = BTreeMap::new();
                assert_eq!(
                    set.iter().collect::<std::collections::BTreeSet<_>>().len(),
                    width
                );
                for d in set {
                    *count.entry(domain_of(d)).or_default() += 1;
                    load[usize::from(d)] += 1;
                }
                assert!(
                    count.values().all(|&c| c <= m),
                    "{n}/{domains} {width} {m}: {count:?}"
                );
            }
        }
        // Equal domains: equal load.
        if n % domains == 0 {
            let (min, max) = (load.iter().min().unwrap(), load.iter().max().unwrap());
            assert!(
                (*max as f64) < *min as f64 * 1.03,
                "{n}/{domains}: {load:?}"
            );
        }
    }
    // Where a domain that is lost takes more than M columns in any case, all devices fill evenly.
    for (sizes, width, m) in [([6, 6], 10, 2), ([6, 3], 6, 2), ([4, 3], 6, 2)] {
        assert!(!Placement::survives_domain(&sizes, width, m));
        let n: usize = sizes.iter().sum();
        let mut load = vec![0_u64; n];
        let domain_of = |d: u16| u16::from(usize::from(d) >= sizes[0]);
        for tile in 0..2000 {
            let all = devices(u16::try_from(n).unwrap());
            for set in Placement::default().row(tile, &all, width, &domain_of, m) {
                set.iter().for_each(|&d| load[usize::from(d)] += 1);
            }
        }
        let (min, max) = (load.iter().min().unwrap(), load.iter().max().unwrap());
        assert!((*max as f64) < *min as f64 * 1.03, "{sizes:?}: {load:?}");
    }
}

#[test]
fn load_follows_weight() {
    // Half the devices are twice as large.
    let weight = |d: u16| if d.is_multiple_of(2) { 2000 } else { 1000 };
    let mut load = [0_u64; 30];
    for tile in 0..3000 {
        for set in Placement::default().row_weighted(tile, &devices(30), 6, &|d| d, 2, &weight) {
            assert_eq!(
                set.iter().collect::<std::collections::BTreeSet<_>>().len(),
                6
            );
            set.iter().for_each(|&d| load[usize::from(d)] += 1);
        }
    }
    let mean = |odd: usize| (0..15).map(|i| load[2 * i + odd]).sum::<u64>() as f64;
    let ratio = mean(0) / mean(1);
    assert!((ratio - 2.0).abs() < 0.05, "{ratio}");
    // One giant: it is in every segment, never twice.
    let giant = |d: u16| if d == 0 { u64::MAX } else { 1 };
    for set in Placement::default().row_weighted(1, &devices(12), 4, &|d| d, 1, &giant) {
        assert_eq!(set.iter().filter(|&&d| d == 0).count(), 1);
        assert_eq!(set.len(), 4);
    }
}

#[test]
fn golden() {
    let pick = |i, n, w| Placement::default().pick(i, &devices(n), w);
    assert_eq!(pick(0, 5, 3), GOLDEN_5_3[0]);
    assert_eq!(pick(7, 5, 3), GOLDEN_5_3[1]);
    assert_eq!(pick(0, 41, 10), GOLDEN_41_10[0]);
    assert_eq!(pick(12_345, 41, 10), GOLDEN_41_10[1]);
    assert_eq!(pick(99, 100, 10), GOLDEN_100_10);
    assert_eq!(
        Placement::new(3).row(17, &devices(12), 5, &|d| d / 3, 2),
        GOLDEN_DOMAINS.map(|s| s.to_vec()).to_vec()
    );
}

const GOLDEN_5_3: [[u16; 3]; 2] = [[0, 1, 2], [4, 3, 2]];
const GOLDEN_41_10: [[u16; 10]; 2] = [
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9],
    [28, 31, 34, 7, 10, 13, 16, 19, 22, 25],
];
const GOLDEN_100_10: [u16; 10] = [52, 1, 56, 5, 55, 4, 54, 3, 53, 2];
const GOLDEN_DOMAINS: [[u16; 5]; 7] = [
    [0, 5, 3, 6, 10],
    [4, 8, 7, 9, 1],
    [3, 6, 11, 0, 2],
    [7, 10, 1, 5, 8],
    [9, 2, 4, 6, 11],
    [1, 5, 3, 7, 10],
    [4, 8, 11, 9, 2],
];
