//! Time to loss: chains against simulations, the papers' reconstruct times, ends of ranges.
#![allow(clippy::unwrap_used, reason = "tests")]

use ashlar_model::{
    Assumptions, Group, GroupRates, Life, LifeError, Simulation, Steps, System, group_mean_time,
    life, outlook,
};

/// Devices that fail so often that a simulation sees losses.
fn harsh() -> Assumptions {
    Assumptions {
        afr: 0.9,
        device_bytes: 1e13,
        bandwidth: 10e6,
        unreadable_per_bit: 0.0,
        latent_per_year: 0.0,
        ..Assumptions::default()
    }
}

fn of(text: &str, assumptions: &Assumptions) -> Life {
    life(&System::parse(text, None).unwrap(), assumptions).unwrap()
}

#[test]
fn chain_agrees_with_simulation_of_devices() {
    for (group, change) in [
        (
            Group {
                devices: 8,
                k: 7,
                m: 1,
            },
            harsh(),
        ),
        (
            Group {
                devices: 10,
                k: 8,
                m: 2,
            },
            harsh(),
        ),
        (
            Group {
                devices: 12,
                k: 9,
                m: 3,
            },
            Assumptions {
                bandwidth: 4e6,
                ..harsh()
            },
        ),
        (
            Group {
                devices: 4,
                k: 4,
                m: 0,
            },
            Assumptions {
                latent_per_year: 3.0,
                ..harsh()
            },
        ),
        (
            Group {
                devices: 10,
                k: 8,
                m: 2,
            },
            Assumptions {
                unreadable_per_bit: 3e-16,
                ..harsh()
            },
        ),
        (
            Group {
                devices: 12,
                k: 8,
                m: 4,
            },
            Assumptions {
                domains: 6,
                domain_per_year: 2.0,
                bandwidth: 4e6,
                ..harsh()
            },
        ),
    ] {
        let rates = GroupRates::new(group, &change);
        let chain = rates.chain(group).mean_times()[0].value();
        let simulation = Simulation {
            trials: 4_000,
            seed: 11,
        };
        let estimate = simulation.by_devices(group, &rates, Steps::Exponential);
        let off = (estimate.mean - chain).abs() / estimate.stderr;
        assert!(
            off < 4.0,
            "{group:?}: chain {chain:.4e}, simulated {estimate:?}"
        );
        // Constant times: the exponential assumption is worth a factor of less than 2 here.
        let constant = simulation.by_devices(group, &rates, Steps::Constant).mean / chain;
        println!("{group:?}: constant/chain {constant:.2}");
        assert!((0.5..3.0).contains(&constant), "{group:?}: {constant}");
    }
}

#[test]
fn chain_stands_for_simulation_of_segments() {
    for (group, bandwidth, segments_per_device) in [
        (
            Group {
                devices: 20,
                k: 4,
                m: 1,
            },
            30e6,
            100.0,
        ),
        (
            Group {
                devices: 20,
                k: 4,
                m: 2,
            },
            8e6,
            100.0,
        ),
        (
            Group {
                devices: 41,
                k: 8,
                m: 2,
            },
            15e6,
            200.0,
        ),
        (
            Group {
                devices: 30,
                k: 10,
                m: 4,
            },
            5e6,
            100.0,
        ),
    ] {
        let assumptions = Assumptions {
            bandwidth,
            segments_per_device,
            ..harsh()
        };
        let model = group_mean_time(group, &assumptions).value();
        let simulation = Simulation {
            trials: 100,
            seed: 5,
        };
        let estimate = simulation.by_segments(group, &assumptions);
        let ratio = estimate.mean / model;
        println!(
            "{group:?}: segments/model {ratio:.2} +- {:.2}",
            estimate.stderr / model
        );
        // The model errs on the safe side, and not by much.
        assert!(
            (0.8..2.5).contains(&ratio),
            "{group:?}: {ratio} {estimate:?} {model}"
        );
    }
}

#[test]
fn the_papers_reconstruct_times() {
    let drive = Assumptions {
        device_bytes: 1e12,
        bandwidth: 50e6,
        replace_hours: 0.0,
        ..Assumptions::default()
    };
    let raid6 = of("raid6@10", &drive).rebuild_hours;
    assert!((raid6 - 5.5556).abs() < 1e-3, "{raid6}");
    let grid = of("grid:41(8+2+2)", &drive).rebuild_hours;
    assert!((grid - 1.25).abs() < 1e-9, "{grid}");
    let four = Assumptions {
        device_bytes: 4e12,
        ..drive
    };
    assert!((of("raid6@10", &four).rebuild_hours - 22.2).abs() < 0.03);
    assert!((of("grid:41(8+2+2)", &four).rebuild_hours - 5.0).abs() < 1e-9);
}

#[test]
fn more_parity_lasts_longer() {
    let drive = Assumptions::default();
    for text in ["ec8+M@40", "ec80+M@256", "2*ec4+M@6"] {
        let mut last = f64::NEG_INFINITY;
        for m in 0..=2 {
            let next = of(&text.replace('M', &m.to_string()), &drive).mttdl_log10_years;
            assert!(next > last, "{text} {m}: {next} {last}");
            last = next;
        }
    }
    let nines = of("raid6@10", &drive).nines();
    assert!((0.0..20.0).contains(&nines));
    assert!(of("2*raid6@10", &drive).nines() > nines);
    assert!(of("10x(8+2)", &drive).nines() < nines);
}

#[test]
fn ends_of_ranges_are_finite() {
    let edge = [
        Assumptions::default(),
        Assumptions {
            afr: 1e-12,
            bandwidth: 1e12,
            ..Assumptions::default()
        },
        Assumptions {
            afr: 0.999_999,
            bandwidth: 1.0,
            device_bytes: 1e18,
            ..Assumptions::default()
        },
        Assumptions {
            unreadable_per_bit: 1.0,
            ..Assumptions::default()
        },
        Assumptions {
            domains: 7,
            domain_per_year: 1e6,
            ..Assumptions::default()
        },
        Assumptions {
            detect_seconds: 0.0,
            replace_hours: 0.0,
            device_bytes: 1.0,
            ..Assumptions::default()
        },
    ];
    for text in [
        "jbod@1",
        "raid0@1000",
        "raid10@1000",
        "ec1+255@256",
        "ec56+200@1000",
        "16*raid6@100",
    ] {
        for assumptions in &edge {
            let life = of(text, assumptions);
            for value in [
                life.mttdl_log10_years,
                life.annual_loss,
                life.annual_loss_log10,
                life.rebuild_hours,
                life.critical_hours,
                life.nines(),
                life.mttdl_years(),
            ] {
                assert!(value.is_finite(), "{text} {assumptions:?} {life:?}");
            }
            assert!((0.0..=1.0).contains(&life.annual_loss));
        }
    }
    assert!(Assumptions::default().statements().len() >= 6);
}

#[test]
fn nonsense_is_refused() {
    let check = |a: Assumptions| a.check().unwrap_err();
    let good = Assumptions::default();
    for afr in [0.0, 1.0, -0.5, f64::NAN, f64::INFINITY] {
        assert_eq!(check(Assumptions { afr, ..good }), LifeError::Afr);
    }
    assert_eq!(
        check(Assumptions {
            device_bytes: 0.0,
            ..good
        }),
        LifeError::Size
    );
    assert_eq!(
        check(Assumptions {
            bandwidth: 0.0,
            ..good
        }),
        LifeError::Bandwidth
    );
    assert_eq!(check(Assumptions { fill: 1.1, ..good }), LifeError::Fill);
    assert_eq!(
        check(Assumptions {
            scrub_days: f64::NAN,
            ..good
        }),
        LifeError::Negative
    );
    assert!(
        life(
            &System::parse("raid6@8", None).unwrap(),
            &Assumptions { afr: 2.0, ..good }
        )
        .is_err()
    );
}

#[test]
fn outlook_of_a_degraded_group() {
    let group = Group {
        devices: 41,
        k: 8,
        m: 2,
    };
    let drive = Assumptions::default();
    let at = |missing| outlook(group, missing, &drive).unwrap();
    assert!(at(3).is_none());
    let (whole, one, two) = (at(0).unwrap(), at(1).unwrap(), at(2).unwrap());
    assert_eq!(whole.loss_before_whole, 0.0);
    assert!(one.loss_before_whole > 0.0 && two.loss_before_whole > one.loss_before_whole);
    assert!(two.hours_to_whole > one.hours_to_whole && one.hours_to_whole > 0.0);
    assert!(two.mttdl_log10_years <= one.mttdl_log10_years);
    assert!(one.mttdl_log10_years <= whole.mttdl_log10_years);
}
