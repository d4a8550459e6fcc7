//! Tests of the model: what it admits, and what it must refuse.
#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;

fn bytes(volume: u16, offset: u64, version: Version, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    content::fill(volume, offset, version, &mut out);
    out
}

fn read(model: &mut VolumeModel, offset: u64, version: Version, len: usize) -> bool {
    let number = model.begin_read();
    let data = bytes(model.id, offset, version, len);
    model.end_read(number, offset, &data).is_ok()
}

fn write(model: &mut VolumeModel, offset: u64, len: u64, version: Version, durable: bool) {
    let op = model.begin_write(offset, len, version);
    model.end_write(op, true, durable);
}

#[test]
fn overwriting_splits_and_joins_runs() {
    let state = vec![(4096, 1)];
    let state = overwrite(&state, 512, 1024, 2);
    assert_eq!(state, vec![(512, 1), (1024, 2), (4096, 1)]);
    let state = overwrite(&state, 0, 512, 2);
    assert_eq!(state, vec![(1024, 2), (4096, 1)]);
    assert_eq!(overwrite(&state, 1000, 4096, 3), vec![(1000, 2), (4096, 3)]);
    assert_eq!(overwrite(&state, 0, 4096, 7), vec![(4096, 7)]);
    assert_eq!(overwrite(&state, 1024, 1025, 1), vec![(1024, 2), (4096, 1)]);
}

#[test]
fn an_acknowledged_write_is_read_and_may_be_lost_until_flushed() {
    let mut model = VolumeModel::new(1, 65_536, 4096);
    write(&mut model, 0, 4096, 1, false);
    assert!(read(&mut model, 0, 1, 4096));
    assert!(!read(&mut model, 0, 0, 4096));
    let mut old = model.clone();
    old.crash();
    assert!(read(&mut old.clone(), 0, 1, 4096), "new is fine");
    assert!(read(&mut old, 0, 0, 4096), "so is old");
    assert!(!read(&mut old, 0, 1, 4096), "but what was seen stays");
    old.crash();
    assert!(!read(&mut old, 0, 1, 4096), "also over another crash");
    let flush = model.begin_flush();
    model.end_flush(flush, true);
    model.crash();
    assert!(!read(&mut model, 0, 0, 4096), "flushed is kept");
}

#[test]
fn a_durable_write_survives_and_what_is_over_it_may_not() {
    let mut model = VolumeModel::new(1, 65_536, 4096);
    write(&mut model, 0, 4096, 1, true);
    write(&mut model, 0, 4096, 2, false);
    model.crash();
    assert!(!read(&mut model.clone(), 0, 0, 4096));
    assert!(read(&mut model.clone(), 0, 1, 4096));
    assert!(read(&mut model, 0, 2, 4096));
}

#[test]
fn a_flush_covers_only_what_was_acknowledged_before_it() {
    let mut model = VolumeModel::new(1, 65_536, 4096);
    write(&mut model, 0, 4096, 1, false);
    let flush = model.begin_flush();
    write(&mut model, 0, 4096, 2, false);
    model.end_flush(flush, true);
    model.crash();
    assert!(read(&mut model.clone(), 0, 1, 4096));
    assert!(read(&mut model.clone(), 0, 2, 4096));
    assert!(!read(&mut model, 0, 0, 4096));
}

#[test]
fn writes_in_flight_together_end_in_either_order_and_stay_so() {
    let mut model = VolumeModel::new(1, 65_536, 4096);
    let first = model.begin_write(0, 4096, 1);
    let second = model.begin_write(0, 4096, 2);
    assert!(read(&mut model.clone(), 0, 0, 4096));
    model.end_write(first, true, false);
    model.end_write(second, true, false);
    assert!(!read(&mut model.clone(), 0, 0, 4096));
    assert!(read(&mut model.clone(), 0, 2, 4096));
    assert!(read(&mut model, 0, 1, 4096));
    assert!(!read(&mut model, 0, 2, 4096), "seen as 1, it stays 1");
}

#[test]
fn a_block_is_written_whole_or_not() {
    let mut model = VolumeModel::new(1, 65_536, 4096);
    write(&mut model, 0, 4096, 1, true);
    let _ = model.begin_write(0, 4096, 2);
    model.crash();
    let number = model.begin_read();
    let mut torn = bytes(1, 0, 2, 4096);
    torn[512..].copy_from_slice(&bytes(1, 512, 1, 3584));
    assert!(model.end_read(number, 0, &torn).is_err());
}

#[test]
fn a_read_may_see_what_was_so_while_it_ran() {
    let mut model = VolumeModel::new(1, 65_536, 4096);
    write(&mut model, 0, 4096, 1, false);
    let number = model.begin_read();
    write(&mut model, 0, 4096, 2, true);
    let old = bytes(1, 0, 1, 4096);
    assert!(model.end_read(number, 0, &old).is_ok());
    let number = model.begin_read();
    assert!(model.end_read(number, 0, &old).is_err());
}

#[test]
fn a_durable_write_keeps_the_state_that_a_concurrent_one_left() {
    let mut model = VolumeModel::new(1, 65_536, 4096);
    let durable = model.begin_write(0, 4096, 1);
    let other = model.begin_write(2048, 512, 2);
    model.end_write(other, true, false);
    model.end_write(durable, true, true);
    model.crash();
    // The other write may be lost: it was acknowledged, not flushed.
    assert!(read(&mut model, 0, 1, 4096));
}

#[test]
fn after_an_accepted_loss_old_versions_are_fine_but_foreign_bytes_are_not() {
    let mut model = VolumeModel::new(1, 65_536, 4096);
    write(&mut model, 0, 4096, 1, true);
    write(&mut model, 0, 4096, 2, true);
    model.rolled_back = true;
    assert!(read(&mut model, 0, 1, 4096));
    let number = model.begin_read();
    assert!(model.end_read(number, 0, &bytes(1, 4096, 1, 4096)).is_err());
    let number = model.begin_read();
    assert!(model.end_read(number, 0, &[7; 4096]).is_err());
}

#[test]
fn a_state_that_comes_back_may_be_brought_back() {
    let mut model = VolumeModel::new(1, 65_536, 4096);
    let durable = model.begin_write(0, 4096, 1);
    write(&mut model, 0, 4096, 2, false);
    let slow_read = model.begin_read(); // keeps what only it may still see
    model.end_write(durable, true, true);
    write(&mut model, 0, 4096, 3, false);
    model.forget_read(slow_read);
    model.crash();
    assert!(
        read(&mut model, 0, 2, 4096),
        "the durable write, then the other: both in it"
    );
}
