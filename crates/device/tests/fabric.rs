//! Ports, paths and links of modelled drives, and mixed loads.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::cell::Cell;
use std::rc::Rc;

use ashlar_device::{
    Bed, Content, Device, DeviceRef, Fault, Link, ModelDevice, ModelOptions, Namespace, Path,
    Profile,
};
use ashlar_rt::{Buf, MILLISECOND, Nanos, Rt, SECOND, Slice};

const SIZE: u64 = 1 << 30;

fn drive(rt: &Rt, profile: Profile) -> Rc<ModelDevice> {
    let options = ModelOptions {
        content: Content::Discard,
        erased: false,
        ..ModelOptions::new(SIZE)
    };
    Rc::new(ModelDevice::new(rt, "drive", profile, options))
}

/// Operations a second on all devices: `depth` workers on each, reading `reads` times in a hundred,
/// at random places.
fn rate(
    rt: &Rt,
    devices: &[DeviceRef],
    reads: u64,
    bytes: usize,
    depth: usize,
    span: Nanos,
) -> f64 {
    let done = Rc::new(Cell::new(0u64));
    for device in devices {
        for _ in 0..depth {
            let (rt2, device, done) = (rt.clone(), device.clone(), done.clone());
            rt.spawn(async move {
                let units = device.info().size_bytes / bytes as u64;
                loop {
                    let offset = rt2.random_below(units) * bytes as u64;
                    if rt2.random_below(100) < reads {
                        device.read(offset, Buf::zeroed(bytes)).await.1.unwrap();
                    } else {
                        let data = vec![Slice::zeroed(bytes)];
                        device.write(offset, data).await.unwrap();
                    }
                    done.set(done.get() + 1);
                }
            });
        }
    }
    let handle = rt.clone();
    let counted = done.clone();
    let count = rt.block_on(async move {
        handle.sleep(span / 4).await;
        let before = counted.get();
        handle.sleep(span).await;
        counted.get() - before
    });
    rt.shutdown();
    count as f64 * SECOND as f64 / span as f64
}

#[track_caller]
fn close(measured: f64, expected: f64) {
    let ratio = measured / expected;
    assert!(
        (0.99..1.01).contains(&ratio),
        "measured {measured}, expected {expected}"
    );
}

#[test]
fn a_mixed_load_gives_the_mixed_row_of_the_source_and_pure_loads_do_not_change() {
    let of = |profile, reads| {
        let rt = Rt::simulated(5);
        let device = drive(&rt, profile) as DeviceRef;
        rate(&rt, &[device], reads, 4096, 512, 60 * MILLISECOND)
    };
    close(of(Profile::DATA24_DRIVE, 70), 12.0e6 / 24.0);
    close(of(Profile::NVME5_TLC, 70), 720e3);
    for profile in [
        Profile::DATA24_DRIVE,
        Profile::DATA24_3200,
        Profile::NVME5_TLC,
    ] {
        close(of(profile, 100), profile.read_iops as f64);
        close(of(profile, 0), profile.write_iops as f64);
    }
    // Without a mixed row: the sum of the parts.
    let parts = 0.7 / 637e3 + 0.3 / 261e3;
    close(of(Profile::DATA24, 70), 1.0 / parts);
}

/// SupremeRAID's baseline: 24 drives as 48 namespaces, six servers, 70 % reads.
#[test]
fn the_bed_of_supremeraid_gives_its_mixed_row() {
    let rt = Rt::simulated(5);
    let built = Bed::DATA24
        .build(&rt, (6, 8), SIZE, 1 << 20, Content::Discard)
        .unwrap();
    let namespaces = built.arrays.iter().flatten();
    let devices: Vec<DeviceRef> = namespaces.map(|n| n.clone() as DeviceRef).collect();
    close(rate(&rt, &devices, 70, 4096, 128, 10 * MILLISECOND), 12.0e6);
}

#[test]
fn drives_behind_a_port_share_it_and_directions_do_not_meet() {
    let rates = |reads| {
        let rt = Rt::simulated(5);
        let port = Link::new("port", 4_000_000_000);
        let namespaces: Vec<DeviceRef> = (0..4)
            .map(|_| {
                let path = Path(vec![port.clone()]);
                let drive = drive(&rt, Profile::NVME_TLC);
                Rc::new(Namespace::new(&rt, "n", drive, 0, SIZE, vec![path])) as DeviceRef
            })
            .collect();
        let bytes = 64 << 10;
        let rate = rate(&rt, &namespaces, reads, bytes, 16, 50 * MILLISECOND);
        (rate * bytes as f64, port.busy())
    };
    // Four drives of 6.8 GB/s.
    let (read, (to_host, to_drive)) = rates(100);
    close(read, 4e9);
    assert!(to_host > 50 * MILLISECOND && to_drive == 0);
    // Both directions at once carry more than one could.
    let (mixed, _) = rates(50);
    assert!(mixed > 4.5e9, "{mixed}");
}

#[test]
fn a_drive_with_a_path_left_goes_on_and_without_one_is_offline() {
    let rt = Rt::simulated(5);
    let ports = [Link::new("a", 1_000_000_000), Link::new("b", 1_000_000_000)];
    let paths = ports.iter().map(|port| Path(vec![port.clone()])).collect();
    let namespace = Namespace::new(&rt, "n", drive(&rt, Profile::NVME_TLC), 0, SIZE, paths);
    let namespace = Rc::new(namespace);
    let shared = namespace.clone();
    rt.block_on(async move {
        let read = || shared.read(0, Buf::zeroed(4096));
        for _ in 0..4 {
            read().await.1.unwrap();
        }
        assert_eq!(ports[0].busy(), ports[1].busy());
        let before = ports[1].busy().0;
        ports[0].set_up(false);
        for _ in 0..4 {
            read().await.1.unwrap();
        }
        assert_eq!(ports[1].busy().0, before * 3);
        ports[1].set_up(false);
        assert_eq!(read().await.1, Err(Fault::Offline));
        let write = shared.write(0, vec![Slice::zeroed(4096)]).await;
        assert_eq!(write, Err(Fault::Offline));
        assert_eq!(shared.flush().await, Err(Fault::Offline));
        assert_eq!(shared.discard(0, 4096).await, Err(Fault::Offline));
        ports[0].set_up(true);
        read().await.1.unwrap();
    });
}

#[test]
fn namespaces_of_a_drive_keep_apart_and_share_its_time() {
    let rt = Rt::simulated(5);
    let built = Bed::DATA24
        .build(&rt, (6, 8), 8 << 20, 1 << 20, Content::Store)
        .unwrap();
    assert_eq!(
        (built.drives.len(), built.ports.len(), built.hosts.len()),
        (24, 6, 6)
    );
    // Arrays 0 and 3 share the first pack.
    let (first, other) = (built.arrays[0][0].clone(), built.arrays[3][0].clone());
    let drive = built.drives[0].clone();
    rt.block_on(async move {
        let mut ones = Buf::zeroed(4096);
        ones.fill(1);
        first.write(4096, vec![ones.freeze()]).await.unwrap();
        let (buf, result) = other.read(4096, Buf::zeroed(4096)).await;
        result.unwrap();
        assert!(buf.iter().all(|byte| *byte == 0));
        let (buf, _) = first.read(4096, Buf::zeroed(4096)).await;
        assert!(buf.iter().all(|byte| *byte == 1));
    });
    let io = drive.counters().io;
    assert_eq!((io.reads, io.writes), (2, 1));
}
