//! The advisor: what it shows meets the wishes, can be created, and is best in what it is said to
//! be best in.
#![allow(clippy::unwrap_used, reason = "tests")]

use ashlar_layout::Layout;
use ashlar_model::{Assumptions, Present, Reason, System, Wish, Wishes, plan, prospect};

fn drives() -> Assumptions {
    Assumptions {
        afr: 0.015,
        device_bytes: 1e13,
        bandwidth: 50e6,
        ..Assumptions::default()
    }
}

#[test]
fn best_meets_wishes_and_can_be_created() {
    for devices in [2, 3, 4, 5, 8, 12, 24, 41, 60, 100, 256, 1000] {
        let wishes = Wishes {
            nines: Some(3.0),
            ..Wishes::default()
        };
        let found = plan(devices, &[], &drives(), &wishes).unwrap();
        assert!(found.considered >= 1, "{devices}");
        assert!(found.best.len() <= 5);
        assert!(
            !found.best.is_empty() || !found.nearest.is_empty(),
            "{devices}: {found:?}"
        );
        for choice in &found.best {
            let layout: Layout = choice.layout.parse().unwrap();
            layout.resolve_with_spare(devices, choice.spare).unwrap();
            assert!(choice.misses.is_empty() && !choice.reasons.is_empty());
            assert!(choice.life.nines() >= 3.0 && choice.usable_bytes > 0.0);
        }
        for pair in found.best.windows(2) {
            assert!(pair[0].usable_bytes >= pair[1].usable_bytes);
        }
    }
}

#[test]
fn wishes_bind() {
    let wishes = Wishes {
        survive: Some(3),
        rebuild_hours: Some(24.0),
        usable_bytes: Some(600e12),
        ..Wishes::default()
    };
    let found = plan(100, &[], &drives(), &wishes).unwrap();
    assert!(!found.best.is_empty());
    for choice in &found.best {
        assert!(choice.survives >= 3 && choice.life.rebuild_hours <= 24.0);
        assert!(choice.usable_bytes >= 600e12 && choice.life.nines() >= 5.0);
    }
    let first = &found.best[0];
    assert!(first.reasons.contains(&Reason::MostCapacity), "{first:?}");
    let quickest = found
        .best
        .iter()
        .find(|c| c.reasons.contains(&Reason::QuickestRebuild))
        .unwrap();
    assert!(
        found
            .best
            .iter()
            .all(|c| c.life.rebuild_hours >= quickest.life.rebuild_hours)
    );
    let safest = found
        .best
        .iter()
        .find(|c| c.reasons.contains(&Reason::Safest))
        .unwrap();
    assert!(
        found
            .best
            .iter()
            .all(|c| c.life.annual_loss_log10 >= safest.life.annual_loss_log10)
    );
}

#[test]
fn impossible_wishes_say_how_far_one_can_go() {
    // 95 % of raw with three losses survived on ten drives.
    let wishes = Wishes {
        survive: Some(3),
        usable_bytes: Some(95e12),
        nines: Some(1.0),
        ..Wishes::default()
    };
    let found = plan(10, &[], &drives(), &wishes).unwrap();
    assert!(found.best.is_empty());
    let (_, most) = found
        .nearest
        .iter()
        .find(|(wish, _)| *wish == Wish::Usable)
        .unwrap();
    assert!(most.survives >= 3 && most.usable_bytes < 95e12);
    assert!(
        (most.usable_bytes - 70e12 * 0.976 * 0.9).abs() < 1e9,
        "{most:?}"
    );
}

#[test]
fn given_layouts_are_compared_as_given() {
    let texts = ["raid6", "ec8+3", "raid10"].map(String::from);
    let found = plan(12, &texts, &drives(), &Wishes::default()).unwrap();
    let names: Vec<_> = found.best.iter().map(|c| c.layout.as_str()).collect();
    assert_eq!(names, texts);
    assert!(plan(11, &texts, &drives(), &Wishes::default()).is_err());
    assert!(plan(0, &[], &drives(), &Wishes::default()).is_err());
    assert!(
        plan(
            12,
            &["2*raid6@6".to_string()],
            &drives(),
            &Wishes::default()
        )
        .is_err()
    );
    let nonsense = Wishes {
        nines: Some(f64::NAN),
        ..Wishes::default()
    };
    assert!(plan(12, &[], &drives(), &nonsense).is_err());
    assert!(
        plan(
            12,
            &[],
            &Assumptions {
                afr: 0.0,
                ..drives()
            },
            &Wishes::default()
        )
        .is_err()
    );
}

#[test]
fn domains() {
    let drives = Assumptions {
        domains: 5,
        domain_per_year: 0.01,
        ..drives()
    };
    let wishes = Wishes {
        survive_domain: true,
        ..Wishes::default()
    };
    let found = plan(60, &[], &drives, &wishes).unwrap();
    assert!(!found.best.is_empty());
    for choice in &found.best {
        assert_eq!(choice.survives_domain, Some(true), "{choice:?}");
        for group in &choice.system.groups {
            assert!(group.width().div_ceil(5) <= group.m, "{choice:?}");
        }
    }
}

#[test]
fn degraded_arrays() {
    let grid = |online, least| Present {
        layout: "grid:41(8+2+2)".parse().unwrap(),
        devices_total: 41,
        devices_online: online,
        spare: 0,
        least_redundancy: least,
    };
    let ask = |present: &Present| prospect(present, &drives()).unwrap();
    let whole = ask(&grid(41, Some(2)));
    assert_eq!((whole.missing, whole.spare_left), (0, 31));
    assert_eq!(whole.outlook.unwrap().loss_before_whole, 0.0);
    let one = ask(&grid(40, Some(1)));
    assert_eq!((one.missing, one.without_new_device), (1, true));
    let two = ask(&grid(39, Some(0)));
    let chance = |p: &ashlar_model::Prospect| p.outlook.unwrap().loss_before_whole;
    assert!(chance(&two) > chance(&one) && chance(&one) > 0.0);
    assert!(ask(&grid(38, None)).outlook.is_none());
    // A group as wide as its stripes needs a new device.
    let narrow = Present {
        layout: "raid6".parse().unwrap(),
        devices_total: 10,
        devices_online: 9,
        spare: 0,
        least_redundancy: Some(1),
    };
    let narrow = ask(&narrow);
    assert!(!narrow.without_new_device && narrow.outlook.unwrap().hours_to_whole > 24.0);
}

#[test]
fn capacity_is_after_all_reserves() {
    let texts = ["ec8+2".to_string()];
    let found = plan(10, &texts, &drives(), &Wishes::default()).unwrap();
    assert!((found.best[0].usable_bytes - 80e12 * 0.976 * 0.9).abs() < 1e6);
    let system = System::parse("grid:41(8+2+2)", None).unwrap();
    assert!((system.efficiency() - 0.8 * 39.0 / 41.0).abs() < 1e-12);
}
