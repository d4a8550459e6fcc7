//! Instantaneous failures: exact against brute force, against the literal recursion, against Monte
//! Carlo on the real placement; the figures of the papers.
#![allow(clippy::unwrap_used, reason = "tests")]

use ashlar_layout::Placement;
use ashlar_model::{ExactError, Group, LossCurve, MonteCarlo, Placing, System, exposure};

fn system(text: &str) -> System {
    System::parse(text, None).unwrap_or_else(|e| panic!("{text}: {e}"))
}

/// Whether the failed set (a bit mask) loses something, straight from the definition.
fn loses(system: &System, failed: u32) -> bool {
    let one = system.devices() / u32::from(system.copies);
    let mut first = 0;
    system.groups.iter().any(|group| {
        let lost = (0..u32::from(system.copies)).all(|copy| {
            let mask = ((1_u64 << group.devices) - 1) << (copy * one + first);
            (u64::from(failed) & mask).count_ones() > u32::from(group.m)
        });
        first += u32::from(group.devices);
        lost
    })
}

#[test]
fn exact_equals_brute_force_for_all_small_arrays() {
    let mut texts: Vec<String> = Vec::new();
    for p in 1..=12_u16 {
        for layout in [
            "raid0", "raid1", "raid1:2", "raid1:3", "raid10", "raid5", "raid6", "raid7.3", "jbod",
        ] {
            texts.push(format!("{layout}@{p}"));
        }
        for g in 1..=4 {
            texts.extend([50, 60, 70].map(|level| format!("raid{level}:{g}@{p}")));
        }
        for k in 1..=p {
            texts.extend((0..=p - k).map(|m| format!("ec{k}+{m}@{p}")));
        }
    }
    for mixed in [
        "2x(2+1),1x(3+2)",
        "1x(1+0),3x(1+1)",
        "1x(4+2),2x(2+1)",
        "1x(1+2),1x(5+1),1x(2+1)",
    ] {
        texts.push(mixed.to_string());
    }
    for copies in [2, 3, 4] {
        for body in [
            "2x(1+1)",
            "1x(2+1)",
            "raid5@4",
            "1x(1+0),1x(2+1)",
            "3x(1+0)",
            "raid6@3",
        ] {
            texts.push(format!("{copies}*{body}"));
        }
    }
    let mut compared = 0;
    for text in texts {
        let Ok(system) = System::parse(&text, None) else {
            continue;
        };
        let p = system.devices();
        if p > 12 || system.declustered() {
            continue;
        }
        let mut lost = vec![0_u64; p as usize + 1];
        let mut all = vec![0_u64; p as usize + 1];
        for failed in 0..1_u32 << p {
            all[failed.count_ones() as usize] += 1;
            lost[failed.count_ones() as usize] += u64::from(loses(&system, failed));
        }
        let curve = LossCurve::new(&system).unwrap();
        for x in 0..=p {
            let (lost, all) = (lost[x as usize], all[x as usize]);
            let exact = curve.at(x).unwrap();
            assert_eq!(exact.is_zero(), lost == 0, "{text} {x}");
            assert_eq!(exact.is_one(), lost == all, "{text} {x}");
            let expect = lost as f64 / all as f64;
            assert!(
                (exact.value() - expect).abs() < 1e-15,
                "{text} {x}: {expect}"
            );
            compared += 1;
        }
        assert!(curve.at(p + 1).is_err());
    }
    assert!(compared > 1500, "{compared}");
}

/// Of the sets of `width` out of `devices`, the share that has more than `m` of the first `failed`.
fn share_lost(devices: u16, width: u16, m: u16, failed: u32) -> f64 {
    let sets = (0..1_u32 << devices).filter(|s| s.count_ones() == u32::from(width));
    let (mut lost, mut all) = (0_u32, 0_u32);
    for set in sets {
        all += 1;
        lost += u32::from((set & ((1 << failed) - 1)).count_ones() > u32::from(m));
    }
    f64::from(lost) / f64::from(all)
}

#[test]
fn declustered_equals_brute_force() {
    for devices in 2..=12_u16 {
        for width in 1..devices {
            for m in 0..width {
                let system = system(&format!("ec{}+{m}@{devices}", width - m));
                for segments in [1, 3, 50] {
                    let curve = LossCurve::with_segments(&system, Some(segments)).unwrap();
                    for x in 0..=u32::from(devices) {
                        let p = share_lost(devices, width, m, x);
                        let expect = 1.0 - (1.0 - p).powi(segments as i32);
                        let exact = curve.at(x).unwrap();
                        let off = (exact.value() - expect).abs();
                        assert!(off < 1e-13, "{system} {x}: {} {expect}", exact.value());
                        assert_eq!((exact.is_zero(), exact.is_one()), (p == 0.0, p == 1.0));
                    }
                    if devices > 8 {
                        break;
                    }
                }
            }
        }
    }
}

#[test]
fn groups_of_declustered_and_narrow_kinds_equal_brute_force() {
    let group = |devices, k, m| Group { devices, k, m };
    let groups = vec![group(5, 2, 1), group(4, 3, 1), group(3, 1, 1)];
    let system = System {
        label: "mixed".to_string(),
        copies: 1,
        groups,
        spare: 0,
    };
    let curve = LossCurve::with_segments(&system, Some(2)).unwrap();
    for x in 0..=12 {
        let (mut sum, mut all) = (0.0, 0.0);
        for failed in (0..1_u32 << 12).filter(|f| f.count_ones() == x) {
            let here = |first: u32, count: u32| (failed >> first & ((1 << count) - 1)).count_ones();
            let first = (1.0 - share_lost(5, 3, 1, here(0, 5))).powi(2);
            let second = f64::from(u8::from(here(5, 4) <= 1));
            let third = (1.0 - share_lost(3, 2, 1, here(9, 3))).powi(2);
            sum += 1.0 - first * second * third;
            all += 1.0;
        }
        let exact = curve.at(x).unwrap();
        assert!(
            (exact.value() - sum / all).abs() < 1e-13,
            "{x}: {} {}",
            exact.value(),
            sum / all
        );
        assert_eq!(
            (exact.is_zero(), exact.is_one()),
            (sum == 0.0, sum == all),
            "{x}"
        );
    }
    assert_eq!(
        (curve.always_survived(), curve.certain_from()),
        (1, Some(7))
    );
}

/// The paper's recursion as it stands (with the weights that its formula leaves out): take one
/// group off, condition on its failures.
fn recursion(devices: u64, failures: u64, n: u64, k: u64) -> f64 {
    fn choose(n: u64, k: u64) -> f64 {
        if k > n {
            0.0
        } else {
            (0..k).fold(1.0, |c, j| c * (n - j) as f64 / (j + 1) as f64)
        }
    }
    if devices == 0 {
        return 0.0;
    }
    (0..=n.min(failures))
        .map(|i| {
            let weight =
                choose(n, i) * choose(devices - n, failures - i) / choose(devices, failures);
            if weight == 0.0 {
                0.0
            } else if i > k {
                weight
            } else {
                weight * recursion(devices - n, failures - i, n, k)
            }
        })
        .sum()
}

#[test]
fn exact_equals_the_papers_recursion() {
    for (groups, n, k) in [(10, 10, 2), (5, 20, 3), (3, 7, 1)] {
        let curve = LossCurve::new(&system(&format!("{groups}x({}+{k})", n - k))).unwrap();
        for x in 0..=(groups * n).min(9) {
            let expect = recursion(groups * n, x, n, k);
            let exact = curve.at(u32::try_from(x).unwrap()).unwrap().value();
            assert!(
                (exact - expect).abs() < 1e-12,
                "{groups}x{n} {x}: {exact} {expect}"
            );
        }
    }
}

#[test]
fn the_papers_figures() {
    let value = |text: &str, x| LossCurve::new(&system(text)).unwrap().at(x).unwrap();
    // 3 of 100 in one span of ten: 10 C(10,3) / C(100,3).
    assert!((value("10x(8+2)", 3).value() - 1200.0 / 161_700.0).abs() < 1e-15);
    assert!(value("10x(8+2)", 2).is_zero());
    assert!(!value("10x(8+2)", 20).is_one());
    assert!(value("10x(8+2)", 20).value() < 1.0);
    assert!(value("10x(8+2)", 21).is_one());
    assert!(value("80:20", 20).is_zero() && value("80:20", 21).is_one());
    assert!(value("97:3", 3).is_zero() && value("97:3", 4).is_one());
    assert!((value("5x(17+3)", 4).value() - 5.0 * 4845.0 / 3_921_225.0).abs() < 1e-15);
    let curve = |text: &str| LossCurve::new(&system(text)).unwrap();
    assert_eq!(
        (
            curve("5x(17+3)").always_survived(),
            curve("5x(17+3)").certain_from()
        ),
        (3, Some(16))
    );
    // Mirrors: one copy risks loss from 3, two from 6, three from 9; of 17+3 from 4, 8, 12.
    for (copies, m) in [(1, 2), (2, 2), (3, 2), (1, 3), (2, 3), (3, 3)] {
        let text = format!("{copies}*{}", if m == 2 { "10x(8+2)" } else { "5x(17+3)" });
        assert_eq!(
            curve(&text).always_survived(),
            copies * (m + 1) - 1,
            "{text}"
        );
    }
    // Grid RAID, 41 drive (8+2+2): a quarter degraded after one, 5.5 % critical after two.
    let grid = system("grid:41(8+2+2)");
    let one = exposure(&grid, 1).unwrap();
    assert!((one.degraded - 10.0 / 41.0).abs() < 1e-15 && one.critical == 0.0 && one.lost == 0.0);
    let two = exposure(&grid, 2).unwrap();
    assert!((two.critical - 45.0 / 820.0).abs() < 1e-15, "{two:?}");
}

#[test]
fn shares_sum_to_one_and_ends_are_exact() {
    for text in [
        "grid:41(8+2+2)",
        "ec10+4@30",
        "raid60:10@100",
        "2x(2+1),1x(3+2)",
        "raid0@5",
        "jbod@4",
    ] {
        let system = system(text);
        for x in 0..=system.devices() {
            let e = exposure(&system, x).unwrap();
            assert!(
                (e.lost + e.critical + e.degraded + e.whole - 1.0).abs() < 1e-12,
                "{text} {x}"
            );
        }
        assert_eq!(exposure(&system, 0).unwrap().whole, 1.0, "{text}");
        assert_eq!(
            exposure(&system, system.devices()).unwrap().lost,
            1.0,
            "{text}"
        );
    }
}

#[test]
fn large_arrays_are_finite_monotone_and_quick() {
    for text in [
        "ec224+32@1000",
        "ec8+2@1000",
        "raid60:100@1000",
        "raid10@1000",
        "4x(218+32)",
        "raid70:4@1000",
        "3*raid60:33@330",
        "2*raid10@500",
        "jbod@1000",
        "raid10@5000",
        "4x(250+0)",
        "1x(1+255)",
    ] {
        let system = system(text);
        let curve = LossCurve::new(&system).unwrap();
        let mut last = 0.0;
        for x in 0..=system.devices() {
            let p = curve.at(x).unwrap();
            let value = p.value();
            assert!(
                value.is_finite() && (last..=1.0).contains(&value),
                "{text} {x}: {value}"
            );
            assert_eq!(value == 0.0, p.is_zero());
            assert_eq!(value == 1.0, p.is_one());
            assert!((p.complement().value() - (1.0 - value)).abs() < 1e-12);
            assert!(
                p.is_zero() || (p.log10() - value.log10()).abs() < 1e-9,
                "{text} {x}"
            );
            last = value;
        }
        assert_eq!(last, 1.0, "{text}");
    }
    assert!(matches!(
        LossCurve::new(&system("raid6@6000")),
        Err(ExactError::TooManyDevices { devices: 6000 })
    ));
}

#[test]
fn monte_carlo_agrees_everywhere() {
    let trials = 20_000;
    for (text, most) in [
        ("10x(8+2)", 25),
        ("5x(17+3)", 20),
        ("80:20", 24),
        ("97:3", 8),
        ("raid10@20", 12),
        ("raid1@4", 4),
        ("2*5x(2+1)", 20),
        ("3*raid5@4", 12),
        ("2x(2+1),1x(3+2),4x(1+1)", 19),
        ("jbod@5", 3),
        ("raid0@9", 3),
        ("2*raid60:10@100", 60),
    ] {
        let system = system(text);
        let curve = LossCurve::new(&system).unwrap();
        let simulation = MonteCarlo {
            trials: Some(trials),
            seed: 42,
            ..MonteCarlo::default()
        };
        for point in simulation.run(&system, 0..=most).unwrap() {
            let exact = curve.at(point.failures).unwrap().value();
            // The error of the estimate, were the exact value the truth.
            let error = (exact * (1.0 - exact) / trials as f64).sqrt();
            let off = (point.any_loss.mean - exact).abs();
            assert!(
                off <= 4.0 * error,
                "{text} {}: {} {exact}",
                point.failures,
                point.any_loss.mean
            );
        }
    }
}

#[test]
fn monte_carlo_agrees_on_declustered_groups() {
    for (text, segments, most) in [
        ("grid:41(8+2+2)", 30, 8),
        ("ec4+2@12", 20, 6),
        ("ec10+4@30", 100, 9),
        ("ec1+2@9", 5, 9),
    ] {
        let (system, trials) = (system(text), 4_000);
        let curve = LossCurve::with_segments(&system, Some(segments)).unwrap();
        let simulation = MonteCarlo {
            trials: Some(trials),
            seed: 9,
            segments: Some(segments),
            placing: Placing::Random,
            threads: 0,
        };
        for point in simulation.run(&system, 0..=most).unwrap() {
            let exact = curve.at(point.failures).unwrap().value();
            let error = (exact * (1.0 - exact) / trials as f64).sqrt();
            let off = (point.any_loss.mean - exact).abs();
            assert!(
                off <= 4.0 * error,
                "{text} {}: {} {exact}",
                point.failures,
                point.any_loss.mean
            );
            let share = exposure(&system, point.failures).unwrap().lost;
            let off = (point.lost.mean - share).abs();
            assert!(
                off <= 4.0 * point.lost.stderr + 1e-9,
                "{text} {}: share",
                point.failures
            );
        }
    }
}

#[test]
fn monte_carlo_shares_agree_on_the_real_placement() {
    for (text, most) in [
        ("grid:41(8+2+2)", 8),
        ("ec10+4@30", 12),
        ("ec4+2@12", 12),
        ("raid60:4@40", 12),
    ] {
        let system = system(text);
        let simulation = MonteCarlo {
            trials: Some(4_000),
            seed: 7,
            segments: Some(600),
            ..MonteCarlo::default()
        };
        for point in simulation.run(&system, 0..=most).unwrap() {
            let exact = exposure(&system, point.failures).unwrap();
            for (name, estimate, exact) in [
                ("lost", point.lost, exact.lost),
                ("critical", point.critical, exact.critical),
                ("degraded", point.degraded, exact.degraded),
            ] {
                let off = (estimate.mean - exact).abs();
                assert!(
                    off <= 4.0 * estimate.stderr + 1e-9,
                    "{text} {} {name}: {estimate:?} {exact}",
                    point.failures
                );
            }
        }
    }
}

#[test]
fn any_loss_on_the_real_placement_equals_enumeration() {
    // Declustered and small: every failed set tried on the segments as placed.
    let system = system("ec3+2@9");
    let members: Vec<u16> = (0..9).collect();
    let segments = 40;
    let sets: Vec<u32> = (0..segments)
        .map(|i| {
            Placement::default()
                .pick(i, &members, 5)
                .iter()
                .fold(0, |set, &d| set | 1 << d)
        })
        .collect();
    let simulation = MonteCarlo {
        trials: Some(40_000),
        seed: 3,
        segments: Some(40),
        threads: 2,
        ..MonteCarlo::default()
    };
    for point in simulation.run(&system, 0..=9).unwrap() {
        let (mut lost, mut all) = (0_u32, 0_u32);
        for failed in (0..1_u32 << 9).filter(|f| f.count_ones() == point.failures) {
            all += 1;
            lost += u32::from(sets.iter().any(|set| (set & failed).count_ones() > 2));
        }
        let exact = f64::from(lost) / f64::from(all);
        let error = (exact * (1.0 - exact) / 40_000.0).sqrt();
        assert!(
            (point.any_loss.mean - exact).abs() <= 4.0 * error,
            "{point:?} {exact}"
        );
    }
    // With as many segments as the array's slots give, any three losses cost something: the
    // whole coverage.
    let simulation = MonteCarlo {
        trials: Some(300),
        seed: 3,
        segments: Some(2_000),
        threads: 1,
        ..MonteCarlo::default()
    };
    let points = simulation.run(&system, 2..=3).unwrap();
    assert_eq!(
        (points[0].any_loss.mean, points[1].any_loss.mean),
        (0.0, 1.0)
    );
}

#[test]
fn monte_carlo_does_not_depend_on_threads() {
    let system = system("grid:41(8+2+2)");
    let run = |threads, seed| {
        let simulation = MonteCarlo {
            trials: Some(500),
            seed,
            segments: Some(100),
            threads,
            ..MonteCarlo::default()
        };
        simulation.run(&system, 0..=10).unwrap()
    };
    assert_eq!(run(1, 5), run(3, 5));
    assert_ne!(run(1, 5), run(1, 6));
}

#[test]
fn nonsense_is_refused() {
    let system = system("raid6@8");
    let run = |simulation: MonteCarlo, most| simulation.run(&system, 0..=most);
    assert!(run(MonteCarlo::default(), 9).is_err());
    assert!(
        run(
            MonteCarlo {
                trials: Some(0),
                ..MonteCarlo::default()
            },
            2
        )
        .is_err()
    );
    assert!(
        run(
            MonteCarlo {
                segments: Some(0),
                ..MonteCarlo::default()
            },
            2
        )
        .is_err()
    );
    assert!(exposure(&system, 9).is_err());
    let curve = LossCurve::new(&system).unwrap();
    assert_eq!(
        curve.at(9).unwrap_err().to_string(),
        "9 failures, but only 8 devices"
    );
}
