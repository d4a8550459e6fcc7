//! Failure domains of devices that are changed while the array serves.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::cell::Cell;
use std::rc::Rc;

use ashlar_device::MemDevice;
use ashlar_engine::status::ArrayState;
use ashlar_engine::{Array, Error, Import, Work};
use ashlar_rt::Rt;

use crate::common::{
    BLOCK, DISK, SIZE, copies, create, devices, pattern, read, refs, small, story, volume, without,
    write,
};

/// The labels that six devices get, and those of each domain.
const LABELS: [&str; 6] = ["a", "a", "b", "b", "c", "c"];
const DOMAINS: [&[usize]; 3] = [&[0, 1], &[2, 3], &[4, 5]];

async fn import(rt: &Rt, disks: &[Rc<MemDevice>], away: &[usize]) -> Result<Array, Error> {
    Array::import(rt, without(disks, away), Import::default()).await
}

async fn generation(array: &Array) -> u64 {
    array.status().await.generation
}

async fn survives_domain(array: &Array) -> Option<bool> {
    array.status().await.health.survives_domain
}

/// An array whose devices have these failure domains, and a volume that holds nothing.
async fn labelled(rt: &Rt, disks: &[Rc<MemDevice>], labels: [&str; 6]) -> Array {
    let mut options = small("ec2+1");
    options.domains = labels.map(str::to_string).to_vec();
    let array = Array::create(rt, refs(disks), options).await.unwrap();
    array.volume_create("v", volume(SIZE)).await.unwrap();
    array
}

/// Devices get failure domains one after the other: columns move until any domain may be lost, and nothing has less
/// redundancy meanwhile. Each change is one generation, and is there after an import. That a domain may be lost is said
/// once it is so, and not while the columns are held off.
#[test]
fn columns_move_to_where_new_domains_want_them() {
    for layout in ["ec2+1", "grid:6(2+1+0)"] {
        let disks = devices(6, DISK);
        let kept = disks.clone();
        story(async move |rt| {
            let array = create(&rt, &kept, layout).await;
            array.wait_idle(&[]).await;
            array.pause(Work::Rebalance, true).unwrap();
            for (index, label) in (0..).zip(LABELS) {
                let before = generation(&array).await;
                assert!(array.set_domain(index, label).await.unwrap());
                assert!(!array.set_domain(index, label).await.unwrap(), "it is");
                assert_eq!(generation(&array).await, before + 1, "{layout}");
                assert_eq!(array.status().await.state, ArrayState::Optimal, "{layout}");
            }
            array.wait_idle(&[Work::Rebalance]).await;
            let stuck = array.stuck(&[Work::Rebalance]).unwrap_or_default();
            assert!(stuck.starts_with("paused"), "{layout}: {stuck}");
            assert_eq!(survives_domain(&array).await, Some(false), "{layout}");
            array.pause(Work::Rebalance, false).unwrap();
            assert_eq!(survives_domain(&array).await, Some(false), "{layout}");
            array.wait_idle(&[Work::Rebalance]).await;
            assert_eq!(array.stuck(&[Work::Rebalance]), None, "{layout}");
            let status = array.status().await;
            assert_eq!(status.health.survives_domain, Some(true), "{layout}");
            let labels: Vec<&str> = status.devices.iter().map(|d| &d.domain[..]).collect();
            assert_eq!(labels, LABELS);
            read(&array, 1, layout).await;
            // Power goes.
        });
        for away in [&[][..], DOMAINS[0], DOMAINS[1], DOMAINS[2]] {
            let disks = copies(&disks);
            story(async move |rt| {
                let array = import(&rt, &disks, away).await;
                let array = array.unwrap_or_else(|e| panic!("{layout} without {away:?}: {e}"));
                let devices = array.status().await.devices;
                assert!(
                    devices
                        .iter()
                        .zip(LABELS)
                        .all(|(d, label)| d.domain == label)
                );
                read(&array, 1, layout).await;
                write(&array, 2).await;
                read(&array, 2, layout).await;
            });
        }
    }
}

/// What is written as soon as devices have got their domains lies by these: no set of devices is used any more that was
/// picked before.
#[test]
fn what_is_written_next_lies_by_new_domains() {
    for written in 0..6 {
        let disks = devices(6, DISK);
        story(async move |rt| {
            let array = labelled(&rt, &disks, ["a", "a", "", "", "", ""]).await;
            for version in 0..written {
                write(&array, version).await;
            }
            array.pause(Work::Rebalance, true).unwrap();
            for (index, label) in (2..).zip(["b", "b", "c", "c"]) {
                array.set_domain(index, label).await.unwrap();
            }
            // All that was there before dies.
            write(&array, 9).await;
            array.merge().await.unwrap();
            let survives = survives_domain(&array).await;
            assert_eq!(survives, Some(true), "written {written} times");
            read(&array, 9, "by new domains").await;
        });
    }
}

/// What the devices could not carry is refused, and nothing is changed.
#[test]
fn domains_that_carry_less_are_refused() {
    let disks = devices(5, DISK);
    story(async move |rt| {
        let array = create(&rt, &disks[..4], "ec2+1").await;
        array.set_domain(0, "a").await.unwrap();
        array.set_domain(1, "a").await.unwrap();
        let before = generation(&array).await;
        let refused = array.set_domain(2, "a").await;
        let too_few = matches!(
            refused,
            Err(Error::TooFewDomains {
                index: 2,
                have: 2,
                need: 3,
                m: 1
            })
        );
        assert!(too_few, "{refused:?}");
        let refused = array.set_domain(2, &"x".repeat(33)).await;
        assert!(matches!(refused, Err(Error::Domain(_))), "{refused:?}");
        let refused = array.set_domain(7, "x").await;
        assert!(matches!(refused, Err(Error::NoDevice(7))), "{refused:?}");
        assert_eq!(generation(&array).await, before);
        // With a device more it fits; a label is taken away by an empty one.
        array.add(disks[4].clone(), "").await.unwrap();
        array.set_domain(2, "a").await.unwrap();
        array.set_domain(2, "").await.unwrap();
        // What volumes were promised stays theirs.
        array.wait_idle(&[]).await;
        let free = array.status().await.capacity.free_bytes / (64 << 10) * (64 << 10);
        array.volume_create("w", volume(free)).await.unwrap();
        let before = generation(&array).await;
        let refused = array.set_domain(2, "a").await;
        assert!(
            matches!(refused, Err(Error::NoRoomInDomain { .. })),
            "{refused:?}"
        );
        assert_eq!(generation(&array).await, before);
        read(&array, 1, "as it was").await;
    });
}

/// The power goes at any moment while a device comes into a domain, and two devices with it that count as one then: what
/// was acknowledged as durable is there, or the import says that devices are missing.
#[test]
fn the_power_may_go_at_any_moment_of_a_new_domain() {
    // The labels before, the one that device 1 gets, the devices that go, and whether anything was written before: if
    // not, the journal has all there is.
    let rows: [([&str; 6], &str, &[usize], bool); 4] = [
        (["a", "", "b", "b", "c", "c"], "a", &[0, 1], true),
        (["a", "", "b", "b", "c", "c"], "a", &[0, 1], false),
        // No domain could be lost: records lie anywhere.
        (["a", "a", "a", "a", "a", "b"], "c", &[0, 2], true),
        (["a", "a", "a", "a", "a", "b"], "c", &[0, 2], false),
    ];
    for (labels, label, lost, written) in rows {
        let before = devices(6, DISK);
        let kept = before.clone();
        story(async move |rt| {
            let array = labelled(&rt, &kept, labels).await;
            match written {
                true => write(&array, 1).await,
                false => array.export().await.unwrap(),
            }
        });
        let (mut seen, mut refused, mut ended) = ([0; 2], 0, 0);
        for cut in (0..48).map(|n| 200 + n * 70 + n * n * n / 6) {
            let (disks, durable) = (copies(&before), Rc::new(Cell::new(0)));
            ended += usize::from(cut_off(&disks, label, cut, &durable));
            for away in [&[][..], &[0], lost, &[4, 5]] {
                let may_refuse = away == lost || labels[4] == "a" && away.len() > 1;
                let what = format!("{labels:?}, cut {cut}, without {away:?}");
                match found_after(&disks, away, durable.get(), &what) {
                    Ok(domain) if away.is_empty() => seen[usize::from(domain == label)] += 1,
                    Ok(_) => {}
                    Err(_) if may_refuse => refused += 1,
                    Err(error) => panic!("{what}: {error}"),
                }
            }
        }
        assert!(seen[0] > 0 && seen[1] > 0, "before and after: {seen:?}");
        assert!(refused > 0, "{labels:?}");
        assert!((1..48).contains(&ended), "{ended} came to their end");
    }
}

/// Device 1 gets a label while blocks are written in version 2, `durable` of which are; the power goes after a while.
/// Whether it came to its end before.
fn cut_off(
    disks: &[Rc<MemDevice>],
    label: &'static str,
    cut: u64,
    durable: &Rc<Cell<u64>>,
) -> bool {
    let (kept, counts) = (disks.to_vec(), durable.clone());
    let rt = Rt::simulated(cut);
    let handle = rt.clone();
    let done = rt.run_for(cut, async move {
        let array = import(&handle, &kept, &[]).await.unwrap();
        let v = array.volume("v").unwrap();
        let writes = handle.spawn(async move {
            for block in 0..SIZE / BLOCK {
                let data = pattern(block, 2);
                v.write(block * BLOCK, data, true).await.unwrap();
                counts.set(block + 1);
            }
        });
        array.set_domain(1, label).await.unwrap();
        writes.await;
    });
    rt.shutdown();
    done.is_ok()
}

/// The domain of device 1, in an array where each block is of version 2, or of version 1 if that was not durable yet.
fn found_after(
    disks: &[Rc<MemDevice>],
    away: &[usize],
    durable: u64,
    what: &str,
) -> Result<String, Error> {
    let (disks, away, what) = (copies(disks), away.to_vec(), what.to_string());
    story(async move |rt| {
        let array = import(&rt, &disks, &away).await?;
        let v = array.volume("v").unwrap();
        for block in 0..SIZE / BLOCK {
            let bytes = v.read(block * BLOCK, 4096).await.unwrap();
            let is = |version| bytes[..] == pattern(block, version)[..];
            let zeros = bytes.iter().all(|byte| *byte == 0);
            let old = block >= durable && (is(1) || zeros);
            assert!(old || is(2), "{what}: {block} of {durable}");
        }
        Ok(array.status().await.devices[1].domain.clone())
    })
}
