//! Every notation reads, prints and resolves; every mistake gets its own message.
#![allow(clippy::unwrap_used, reason = "tests")]

use ashlar_layout::{Layout, LayoutError, check_device_count};

fn parse(text: &str) -> Layout {
    text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
}

fn shape(text: &str, devices: u16) -> (u16, u16, usize, u16) {
    let shape = parse(text)
        .resolve(devices)
        .unwrap_or_else(|e| panic!("{text}: {e}"));
    let mut all: Vec<u16> = shape.groups.iter().flatten().copied().collect();
    all.sort_unstable();
    assert_eq!(
        all,
        (0..devices).collect::<Vec<_>>(),
        "{text} partitions its devices"
    );
    assert!(shape.k >= 1 && u32::from(shape.k) + u32::from(shape.m) <= 256);
    assert_eq!(shape.devices(), usize::from(devices));
    (shape.k, shape.m, shape.groups.len(), shape.spare)
}

#[test]
fn round_trip() {
    for text in [
        "raid0",
        "raid1",
        "raid1:3",
        "raid10",
        "raid5",
        "raid6",
        "raid7.3",
        "ec8+2",
        "ec80+20",
        "ec1+7",
        "ec255+1",
        "ec4+0",
        "raid50:4",
        "raid60:10",
        "raid70:5",
        "jbod",
        "draid1",
        "draid2:8d:41c:2s",
        "draid3:16d",
        "draid2:100c",
        "grid:41(8+2+2)",
        "grid:1000(200+24+4)",
    ] {
        let layout = parse(text);
        assert_eq!(layout.to_string(), text);
        assert_eq!(parse(&format!("  {} ", text.to_uppercase())), layout);
    }
    assert_eq!(parse("draid"), parse("draid1"));
    assert_eq!(parse("draid2:2s:41c:8d").to_string(), "draid2:8d:41c:2s");
    assert_eq!(parse("draid2:4d:0s").to_string(), "draid2:4d");
}

#[test]
fn shapes() {
    assert_eq!(shape("raid0", 8), (8, 0, 1, 0));
    assert_eq!(shape("raid0", 1000), (256, 0, 1, 0));
    assert_eq!(shape("raid1", 2), (1, 1, 1, 0));
    assert_eq!(shape("raid1", 256), (1, 255, 1, 0));
    assert_eq!(shape("raid1:3", 10), (1, 2, 1, 0));
    assert_eq!(shape("raid1:1", 1), (1, 0, 1, 0));
    assert_eq!(shape("raid10", 8), (1, 1, 4, 0));
    assert_eq!(shape("raid5", 8), (7, 1, 1, 0));
    assert_eq!(shape("raid6", 1000), (254, 2, 1, 0));
    assert_eq!(shape("raid7.3", 20), (17, 3, 1, 0));
    assert_eq!(shape("ec80+20", 100), (80, 20, 1, 0));
    assert_eq!(shape("ec8+2", 41), (8, 2, 1, 0));
    assert_eq!(shape("raid50:2", 8), (3, 1, 2, 0));
    assert_eq!(shape("raid60:10", 100), (8, 2, 10, 0));
    assert_eq!(shape("raid70:5", 100), (17, 3, 5, 0));
    assert_eq!(shape("jbod", 3), (1, 0, 3, 0));
    assert_eq!(shape("draid2:8d:41c:2s", 41), (8, 2, 1, 2));
    assert_eq!(shape("draid", 6), (5, 1, 1, 0));
    assert_eq!(shape("draid2", 60), (8, 2, 1, 0));
    assert_eq!(shape("grid:41(8+2+2)", 41), (8, 2, 1, 2));
    assert_eq!(shape("ec4+2", 65_535), (4, 2, 1, 0));
    assert_eq!(
        parse("raid60:10").resolve(100).unwrap().groups[3],
        (30..40).collect::<Vec<_>>()
    );
}

#[test]
fn spare_space() {
    let with = |text: &str, devices, spare| parse(text).resolve_with_spare(devices, spare);
    let ok = with("raid5", 8, 1).unwrap();
    assert_eq!((ok.k, ok.m, ok.spare), (6, 1, 1));
    assert!((ok.efficiency() - 6.0 / 7.0 * 7.0 / 8.0).abs() < 1e-12);
    assert_eq!(with("raid60:2", 24, 2).unwrap().k, 9);
    assert_eq!(with("grid:41(8+2+2)", 41, 2).unwrap().spare, 2);
    assert_eq!(with("raid1", 4, 1).unwrap().m, 2);
    let fails = |text: &str, devices, spare| with(text, devices, spare).unwrap_err();
    assert!(matches!(
        fails("ec8+2", 10, 1),
        LayoutError::TooFew { needed: 11, .. }
    ));
    assert!(matches!(
        fails("grid:41(8+2+2)", 41, 1),
        LayoutError::SpareTwice { .. }
    ));
    assert!(matches!(
        fails("raid60:4", 40, 2),
        LayoutError::UnevenSpare { .. }
    ));
    for text in ["raid0", "raid10", "jbod"] {
        assert!(matches!(fails(text, 8, 1), LayoutError::NoSpare { .. }));
    }
    assert!(matches!(
        fails("raid1", 3, 2),
        LayoutError::TooFew { needed: 4, .. }
    ));
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table of cases")]
fn mistakes() {
    for text in [
        "", "raid", "raid4", "raid9", "raidz2", "mirror", "raid0:2", "raid5 ", "8+2", "raid1 0",
    ] {
        if text.trim().parse::<Layout>().is_ok() {
            continue;
        }
        assert_eq!(
            text.parse::<Layout>(),
            Err(LayoutError::Unknown),
            "{text:?}"
        );
    }
    for text in [
        "raid1:",
        "raid1:0",
        "raid1:257",
        "raid1:x",
        "raid1:-1",
        "raid1:99999",
    ] {
        assert_eq!(text.parse::<Layout>(), Err(LayoutError::Copies), "{text}");
    }
    for text in [
        "ec",
        "ec8",
        "ec8+",
        "ec+2",
        "ec0+2",
        "ec8+2+1",
        "ec 8+2",
        "ec8+70000",
    ] {
        assert_eq!(text.parse::<Layout>(), Err(LayoutError::Ec), "{text}");
    }
    for text in [
        "raid50",
        "raid60:",
        "raid70:0",
        "raid60:x",
        "raid60:70000",
        "raid50x2",
    ] {
        assert_eq!(text.parse::<Layout>(), Err(LayoutError::Groups), "{text}");
    }
    for text in [
        "draid0",
        "draidx",
        "draid2:",
        "draid2:8",
        "draid2:0d",
        "draid2:8d:8d",
        "draid2:8\u{e9}",
    ] {
        assert_eq!(text.parse::<Layout>(), Err(LayoutError::Draid), "{text}");
    }
    for text in [
        "grid:",
        "grid:41",
        "grid:41(8+2)",
        "grid:41(8+2+2",
        "grid:0(8+2+2)",
        "grid:41(8+2+2+1)",
    ] {
        assert_eq!(text.parse::<Layout>(), Err(LayoutError::Grid), "{text}");
    }
    assert_eq!(
        "ec255+2".parse::<Layout>(),
        Err(LayoutError::TooWide { k: 255, m: 2 })
    );
    assert_eq!(
        LayoutError::TooWide {
            k: 65_535,
            m: 65_535
        }
        .to_string(),
        "65535+65535 is 131070 strips; K+M may be at most 256"
    );

    let fails = |text: &str, devices| parse(text).resolve(devices).unwrap_err();
    assert_eq!(fails("raid5", 0), LayoutError::NoDevices);
    assert_eq!(fails("raid10", 7), LayoutError::Odd { devices: 7 });
    assert_eq!(
        fails("raid1", 257),
        LayoutError::MirrorTooWide { devices: 257 }
    );
    assert_eq!(
        fails("raid60:3", 100).to_string(),
        "raid60:3: 100 devices do not divide into 3 equal groups"
    );
    assert!(matches!(
        fails("raid6", 2),
        LayoutError::TooFew { needed: 3, .. }
    ));
    assert!(matches!(
        fails("ec8+2", 9),
        LayoutError::TooFew {
            needed: 10,
            devices: 9,
            ..
        }
    ));
    assert!(matches!(
        fails("raid60:10", 20),
        LayoutError::TooFew { needed: 30, .. }
    ));
    assert!(matches!(
        fails("grid:41(8+2+2)", 40),
        LayoutError::OtherCount { named: 41, .. }
    ));
    assert!(matches!(
        fails("raid1", 1),
        LayoutError::TooFew { needed: 2, .. }
    ));
    assert!(matches!(
        fails("raid70:65535", 65_535),
        LayoutError::TooFew { .. }
    ));
    assert_eq!(
        check_device_count(70_000),
        Err(LayoutError::TooManyDevices { devices: 70_000 })
    );
    assert_eq!(check_device_count(0), Err(LayoutError::NoDevices));
    assert_eq!(check_device_count(65_535), Ok(65_535));
}

#[test]
fn hostile_values_do_not_panic() {
    // Values that parsing would refuse, built by hand.
    for layout in [
        Layout::Ec { k: 0, m: 0 },
        Layout::Ec {
            k: 65_535,
            m: 65_535,
        },
        Layout::Raid50 { groups: 0 },
        Layout::Raid1 { copies: Some(1) },
        Layout::Draid {
            m: 65_535,
            k: None,
            children: None,
            spare: 65_535,
        },
        Layout::Grid {
            devices: 9,
            k: 0,
            m: 65_535,
            spare: 65_535,
        },
    ] {
        for devices in [0, 1, 2, 9, 65_535] {
            if let Ok(shape) = layout.resolve(devices) {
                assert!(shape.width() <= 256);
            }
        }
    }
}
