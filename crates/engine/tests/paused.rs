//! Background work that the operator has paused.
#![allow(clippy::unwrap_used, reason = "tests")]

use ashlar_engine::status::{ArrayState, ArrayStatus, TaskStatus};
use ashlar_engine::{Array, Error, Import, Work};
use ashlar_rt::SECOND;

use crate::common::{DISK, create, devices, read, refs, story, write};

fn task(status: &ArrayStatus, work: Work) -> TaskStatus {
    let task = status.tasks.iter().find(|t| t.id == work.id());
    task.cloned().unwrap()
}

/// Bytes that all devices have read and written.
async fn traffic(array: &Array) -> u64 {
    let status = array.status().await;
    let of = status
        .devices
        .iter()
        .map(|d| d.read_bytes + d.written_bytes);
    of.sum()
}

/// It stays degraded, touches no device, says so, serves, and is whole again once it is resumed.
#[test]
fn a_paused_rebuild_rests_until_it_is_resumed() {
    let disks = devices(6, DISK);
    story(async move |rt| {
        let array = create(&rt, &disks, "ec2+2").await;
        assert!(array.pause(Work::Rebuild, true).unwrap());
        assert!(!array.pause(Work::Rebuild, true).unwrap(), "it was already");
        let idle = task(&array.status().await, Work::Rebuild);
        assert_eq!((idle.state.as_str(), idle.total_bytes), ("paused", 0));
        array.wait_idle(&[]).await;
        assert_eq!(array.stuck(&[]), None, "nothing is missing yet");

        array.fail(1, false).await.unwrap();
        rt.sleep(60 * SECOND).await;
        let before = traffic(&array).await;
        rt.sleep(600 * SECOND).await;
        assert_eq!(traffic(&array).await, before, "nothing is done meanwhile");
        array.wait_idle(&[Work::Rebuild]).await;
        let stuck = array.stuck(&[]).unwrap();
        assert!(
            stuck.contains("task") && stuck.contains("1 resume"),
            "{stuck}"
        );
        assert_eq!(array.stuck(&[Work::Clean]), None);
        let status = array.status().await;
        assert_eq!(status.state, ArrayState::Degraded);
        let paused = task(&status, Work::Rebuild);
        assert_eq!((paused.state.as_str(), paused.done_bytes), ("paused", 0));
        assert!(
            paused.total_bytes > 0 && paused.reason == stuck,
            "{paused:?}"
        );

        // What is overwritten again and again needs room that cleaning makes.
        for version in 2..12 {
            write(&array, version).await;
        }
        read(&array, 11, "while it is paused").await;
        array.fail(2, false).await.unwrap();
        read(&array, 11, "with two gone").await;
        assert!(array.status().await.state >= ArrayState::Degraded);

        assert!(array.pause(Work::Rebuild, false).unwrap());
        array.wait_idle(&[]).await;
        let status = array.status().await;
        assert_eq!(status.state, ArrayState::Optimal, "{:?}", array.stuck(&[]));
        read(&array, 11, "rebuilt").await;
        let events = array.events(0);
        for kind in ["work-paused", "work-resumed"] {
            assert_eq!(events.iter().filter(|e| e.kind == kind).count(), 1);
        }
        array.export().await.unwrap();
    });
}

/// A rebuild that is under way stops, and goes on where it was.
#[test]
fn a_rebuild_under_way_keeps_its_progress() {
    let disks = devices(6, DISK);
    story(async move |rt| {
        let array = create(&rt, &disks, "ec2+1").await;
        array.fail(0, false).await.unwrap();
        let mut done = 0;
        while done == 0 {
            rt.sleep(SECOND / 1000).await;
            let tasks = array.status().await.tasks;
            done = tasks.iter().map(|t| t.done_bytes).sum();
        }
        array.pause(Work::Rebuild, true).unwrap();
        array.wait_idle(&[]).await;
        let paused = task(&array.status().await, Work::Rebuild);
        rt.sleep(600 * SECOND).await;
        array.pause(Work::Rebuild, false).unwrap();
        array.wait_idle(&[]).await;
        let status = array.status().await;
        assert_eq!(status.state, ArrayState::Optimal);
        assert!(task(&status, Work::Rebuild).done_bytes >= paused.done_bytes.max(done));
        read(&array, 1, "rebuilt").await;
    });
}

/// What was rebuilt after an earlier loss is nothing of the next rebuild, be that paused or without a device to write to.
#[test]
fn a_rebuild_that_has_done_nothing_is_at_nought() {
    let disks = devices(6, DISK);
    story(async move |rt| {
        let array = create(&rt, &disks, "ec2+2").await;
        array.set("reconstruct.narrow", "never").await.unwrap();
        array.fail(5, false).await.unwrap();
        array.wait_idle(&[]).await;
        rt.sleep(SECOND).await;
        let done = task(&array.status().await, Work::Rebuild);
        assert!(done.state == "done" && done.done_bytes > 0, "{done:?}");

        let mut totals = Vec::new();
        let mut at_nought = async |state: &str| {
            rt.sleep(10 * SECOND).await;
            let task = task(&array.status().await, Work::Rebuild);
            assert_eq!(
                (task.state.as_str(), task.done_bytes),
                (state, 0),
                "{task:?}"
            );
            totals.push(task.total_bytes);
        };
        array.offline(4).await.unwrap();
        at_nought("waiting").await;
        array.online(disks[4].clone(), false).await.unwrap();
        array.wait_idle(&[]).await;
        rt.sleep(SECOND).await;
        array.pause(Work::Rebuild, true).unwrap();
        at_nought("paused").await;
        array.fail(4, false).await.unwrap();
        at_nought("paused").await;
        array.pause(Work::Rebuild, false).unwrap();
        array.wait_idle(&[]).await;
        rt.sleep(SECOND).await;
        array.fail(3, false).await.unwrap();
        at_nought("waiting").await;
        assert!(totals[0] > 0 && totals[1] == 0, "{totals:?}");
        assert!(totals[2] > 0 && totals[3] > 0, "{totals:?}");
    });
}

/// A device that is to leave keeps what it holds; cancelled, it stays.
#[test]
fn a_paused_rebalance_moves_nothing() {
    let disks = devices(6, DISK);
    story(async move |rt| {
        let array = create(&rt, &disks, "ec2+1").await;
        array.pause(Work::Rebalance, true).unwrap();
        array.remove(1).await.unwrap();
        let held = task(&array.status().await, Work::Rebalance).total_bytes;
        assert!(held > 0);
        rt.sleep(600 * SECOND).await;
        array.wait_idle(&[]).await;
        let stuck = array.stuck(&[Work::Rebalance]).unwrap();
        assert!(stuck.contains("4 resume"), "{stuck}");
        let paused = task(&array.status().await, Work::Rebalance);
        assert!(
            paused.done_bytes == 0 && paused.total_bytes > 0,
            "{paused:?}"
        );
        assert_eq!(array.leaving(), [1]);
        array.pause(Work::Rebalance, false).unwrap();
        array.wait_idle(&[]).await;
        assert_eq!(array.status().await.devices_total, 5);
        read(&array, 1, "moved").await;
    });
}

/// What writes and reads depend on is not paused, and no pause outlives an export.
#[test]
fn cleaning_is_not_paused_and_a_pause_ends_with_the_array() {
    let disks = devices(6, DISK);
    story(async move |rt| {
        let array = create(&rt, &disks, "ec2+1").await;
        let refused = array.pause(Work::Clean, true);
        assert!(matches!(refused, Err(Error::CleaningNotPaused)));
        let refused = array.pause(Work::Repair, true);
        assert!(matches!(refused, Err(Error::RepairNotPaused)));
        array.pause(Work::Rebuild, true).unwrap();
        array.fail(3, false).await.unwrap();
        array.export().await.unwrap();
        let array = Array::import(&rt, refs(&disks), Import::default())
            .await
            .unwrap();
        array.wait_idle(&[]).await;
        assert_eq!(array.status().await.state, ArrayState::Optimal);
        read(&array, 1, "imported").await;
    });
}
