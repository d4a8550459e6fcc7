//! Files and block devices: the same behaviour through io_uring and through inline calls.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::Command;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use ashlar_device::{
    DeviceRef, Fault, OpenError, OpenMode, Ring, SyncDevice, UringDevice, create_file, open,
    signature,
};
use ashlar_rt::{BLOCK, Buf, MILLISECOND, Rt, Slice};

const SIZE: u64 = 8 << 20;
const SHARED: OpenMode = OpenMode {
    read_only: false,
    exclusive: false,
};
const SOLE: OpenMode = OpenMode {
    read_only: false,
    exclusive: true,
};

/// A file path that no other test has; removed when dropped.
struct TempFile(PathBuf);

impl TempFile {
    fn path_in(folder: &Path) -> TempFile {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        TempFile(folder.join(format!("ashlar-device-{}-{number}", std::process::id())))
    }
    fn new(size: u64) -> TempFile {
        let file = TempFile::path_in(&std::env::temp_dir());
        create_file(&file.0, size).unwrap();
        file
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A ring, or a loud skip where the kernel refuses io_uring.
fn ring(rt: &Rt) -> Option<Ring> {
    match Ring::new(rt) {
        Ok(ring) => Some(ring),
        Err(error) => {
            eprintln!("SKIPPED: no io_uring here: {error}");
            None
        }
    }
}

fn blocks(count: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    (0..count * BLOCK)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 56) as u8
        })
        .collect()
}

/// `data` in slices of various sizes, some at addresses that O_DIRECT does not take.
fn slices(data: &[u8]) -> Vec<Slice> {
    let mut cut = Vec::new();
    let mut rest = data;
    let mut take = 1;
    while !rest.is_empty() {
        let len = (take * BLOCK).min(rest.len());
        let (head, tail) = rest.split_at(len);
        if take % 2 == 0 {
            let mut odd = vec![0; 16];
            odd.extend_from_slice(head);
            cut.push(Buf::copy_of(&odd).freeze().cut(16..16 + len));
        } else {
            cut.push(Buf::copy_of(head).freeze());
        }
        rest = tail;
        take = take % 4 + 1;
    }
    cut
}

/// Random reads, writes, flushes and discards, many at a time, against a copy in memory.
async fn behaves(rt: Rt, device: DeviceRef) {
    let blocks_total = device.info().size_bytes / BLOCK as u64;
    let size = usize::try_from(device.info().size_bytes).unwrap();
    let (before, result) = device.read(0, Buf::zeroed(size)).await;
    result.unwrap();
    let mut copy = before.to_vec();
    for round in 0..20 {
        // Writes that do not overlap each other, all in flight at once.
        let lane = blocks_total / 16;
        let mut writes = Vec::new();
        for i in 0..16 {
            let at = i * lane + rt.random_below(lane / 2);
            let count = 1 + rt.random_below(lane / 2 - 1);
            let data = blocks(usize::try_from(count).unwrap(), round * 100 + i);
            let start = usize::try_from(at).unwrap() * BLOCK;
            copy[start..start + data.len()].copy_from_slice(&data);
            writes.push(device.write(at * BLOCK as u64, slices(&data)));
        }
        for write in writes {
            write.await.unwrap();
        }
        device.flush().await.unwrap();
        let mut reads = Vec::new();
        for _ in 0..64 {
            let at = rt.random_below(blocks_total);
            let count = 1 + rt.random_below((blocks_total - at).min(40));
            let buf = Buf::zeroed(usize::try_from(count).unwrap() * BLOCK);
            reads.push((at, device.read(at * BLOCK as u64, buf)));
        }
        for (at, read) in reads {
            let (buf, result) = read.await;
            result.unwrap();
            let start = usize::try_from(at).unwrap() * BLOCK;
            assert!(
                buf[..] == copy[start..start + buf.len()],
                "round {round}, block {at}"
            );
        }
    }
    device.discard(0, 1 << 20).await.unwrap();
    let (buf, result) = device.read(1 << 20, Buf::zeroed(1 << 20)).await;
    result.unwrap();
    assert!(
        buf[..] == copy[1 << 20..2 << 20],
        "a discard leaves its neighbour alone"
    );
    assert_eq!(device.write(0, Vec::new()).await, Ok(()));
    assert_eq!(device.read(0, Buf::zeroed(0)).await.1, Ok(()));
}

#[test]
fn a_file_behaves_through_io_uring() {
    let rt = Rt::start().unwrap();
    let Some(ring) = ring(&rt) else { return };
    let file = TempFile::new(SIZE);
    let device = open(Some(&ring), &file.0, SOLE).unwrap();
    assert_eq!(device.info().size_bytes, SIZE);
    rt.block_on(behaves(rt.clone(), device));
    assert_eq!(ring.in_flight(), 0);
}

#[test]
fn a_ring_with_hardly_any_room_serves_everything_in_the_end() {
    let rt = Rt::start().unwrap();
    let Ok(ring) = Ring::with_limits(&rt, 2, 4, 3) else {
        eprintln!("SKIPPED: no io_uring here");
        return;
    };
    let files = [
        TempFile::new(SIZE),
        TempFile::new(SIZE),
        TempFile::new(SIZE),
    ];
    let handle = rt.clone();
    let watch = ring.clone();
    let paths: Vec<PathBuf> = files.iter().map(|file| file.0.clone()).collect();
    rt.block_on(async move {
        let mut joins = Vec::new();
        for path in paths {
            let device = open(Some(&ring), &path, SHARED).unwrap();
            joins.push(handle.spawn(behaves(handle.clone(), device)));
        }
        for join in joins {
            join.await;
            assert!(ring.in_flight() <= 4);
        }
    });
    assert_eq!(watch.in_flight(), 0);
}

#[test]
fn a_file_behaves_inline_with_and_without_memory_below() {
    let rt = Rt::start().unwrap();
    let mut folders = vec![std::env::temp_dir()];
    if Path::new("/dev/shm").is_dir() {
        folders.push("/dev/shm".into());
    }
    for folder in folders {
        let file = TempFile::path_in(&folder);
        create_file(&file.0, SIZE).unwrap();
        rt.block_on(behaves(rt.clone(), open(None, &file.0, SOLE).unwrap()));
    }
}

#[test]
fn memory_backed_files_are_served_inline_even_with_a_ring() {
    let rt = Rt::start().unwrap();
    let Some(ring) = ring(&rt) else { return };
    if !Path::new("/dev/shm").is_dir() {
        eprintln!("SKIPPED: no /dev/shm");
        return;
    }
    let polled_once = |folder: &Path| {
        let file = TempFile::path_in(folder);
        create_file(&file.0, SIZE).unwrap();
        let device = open(Some(&ring), &file.0, SOLE).unwrap();
        let mut read = pin!(device.read(0, Buf::zeroed(BLOCK)));
        let mut context = Context::from_waker(Waker::noop());
        matches!(read.as_mut().poll(&mut context), Poll::Ready(_))
    };
    assert!(polled_once(Path::new("/dev/shm")));
}

/// Writes so many blocks of which nobody waits for the end, and says which of them are there afterwards.
fn written_and_dropped(ring: Ring, count: usize) -> Vec<bool> {
    let file = TempFile::new(SIZE);
    let device = open(Some(&ring), &file.0, SOLE).unwrap();
    drop(ring);
    let data = blocks(count, 1);
    for (i, piece) in data.chunks(BLOCK).enumerate() {
        drop(device.write((i * BLOCK) as u64, vec![Buf::copy_of(piece).freeze()]));
    }
    drop(device); // and with it the ring: waits for all that the kernel has
    let mut back = vec![0; data.len()];
    std::fs::File::open(&file.0)
        .unwrap()
        .read_exact_at(&mut back, 0)
        .unwrap();
    let pairs = back.chunks(BLOCK).zip(data.chunks(BLOCK));
    pairs
        .map(|(back, data)| {
            assert!(back == data || back.iter().all(|byte| *byte == 0), "torn");
            back == data
        })
        .collect()
}

#[test]
fn dropping_the_future_or_everything_stops_no_write_that_was_submitted() {
    let rt = Rt::start().unwrap();
    let Some(ring) = ring(&rt) else { return };
    assert!(written_and_dropped(ring, 64).into_iter().all(|there| there));
}

/// What nobody waits for any more was given up, and somebody else may have the device by the time at which there is
/// room for it.
#[test]
fn a_write_that_is_given_up_while_it_waits_is_not_submitted() {
    let rt = Rt::start().unwrap();
    let Some(ring) = ring(&rt) else { return };
    let there = written_and_dropped(ring, 512);
    assert!(there[0] && !there[511]);
    assert!(there.is_sorted_by(|a, b| a >= b), "in order");
}

#[test]
fn a_ring_outlives_its_devices_and_the_executor_sleeps_meanwhile() {
    let rt = Rt::start().unwrap();
    let Some(ring) = ring(&rt) else { return };
    let file = TempFile::new(SIZE);
    let handle = rt.clone();
    let path = file.0.clone();
    rt.block_on(async move {
        for round in 0..5u64 {
            let device = open(Some(&ring), &path, SOLE).unwrap();
            let data = blocks(1, round);
            device
                .write(round * 4096, vec![Buf::copy_of(&data).freeze()])
                .await
                .unwrap();
            let polls = handle.polls();
            handle.sleep(20 * MILLISECOND).await;
            assert!(
                handle.polls() - polls < 5,
                "an idle ring keeps nobody awake"
            );
            let (back, result) = device.read(round * 4096, Buf::zeroed(BLOCK)).await;
            result.unwrap();
            assert!(back[..] == data[..]);
        }
    });
}

#[test]
fn a_file_that_shrank_gives_faults_not_hangs() {
    let rt = Rt::start().unwrap();
    let file = TempFile::new(SIZE);
    let mut devices = vec![open(None, &file.0, SHARED).unwrap()];
    if let Some(ring) = ring(&rt) {
        devices.push(open(Some(&ring), &file.0, SHARED).unwrap());
    }
    std::fs::OpenOptions::new()
        .write(true)
        .open(&file.0)
        .unwrap()
        .set_len(12_288)
        .unwrap();
    for device in devices {
        let results = rt.block_on(async move {
            let inside = device.read(8192, Buf::zeroed(4096)).await.1;
            let across = device.read(8192, Buf::zeroed(8192)).await.1;
            (
                inside,
                across,
                device.read(1 << 20, Buf::zeroed(4096)).await.1,
            )
        });
        assert_eq!(results, (Ok(()), Err(Fault::Media), Err(Fault::Media)));
    }
}

#[test]
fn writes_to_a_read_only_device_are_refused() {
    let rt = Rt::start().unwrap();
    let file = TempFile::new(SIZE);
    let mode = OpenMode {
        read_only: true,
        exclusive: true,
    };
    let mut results = vec![];
    let device = open(None, &file.0, mode).unwrap();
    results.push(rt.block_on(device.write(0, vec![Slice::zeroed(4096)])));
    drop(device);
    if let Some(ring) = ring(&rt) {
        let device = open(Some(&ring), &file.0, mode).unwrap();
        results.push(rt.block_on(device.write(0, vec![Slice::zeroed(4096)])));
    }
    assert!(
        results.iter().all(|result| *result == Err(Fault::ReadOnly)),
        "{results:?}"
    );
}

#[test]
fn a_full_device_says_so() {
    let rt = Rt::start().unwrap();
    let full = || {
        std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open("/dev/full")
            .unwrap()
    };
    let file = TempFile::new(SIZE);
    let info = open(None, &file.0, SHARED).unwrap().info().clone();
    let mut devices: Vec<DeviceRef> = vec![Rc::new(SyncDevice::new(full(), info.clone()))];
    if let Some(ring) = ring(&rt) {
        devices.push(Rc::new(UringDevice::new(&ring, full(), info)));
    }
    for device in devices {
        let result = rt.block_on(device.write(0, slices(&blocks(5, 1))));
        assert_eq!(result, Err(Fault::NoSpace));
    }
}

#[test]
fn one_holder_at_a_time() {
    let file = TempFile::new(SIZE);
    let held = open(None, &file.0, SOLE).unwrap();
    let again = open(None, &file.0, SOLE);
    assert!(matches!(again, Err(OpenError::InUse { .. })));
    let text = again.err().unwrap().to_string();
    assert!(text.contains("in use") && text.contains("fuser"), "{text}");
    drop(open(None, &file.0, SHARED).unwrap()); // looking is allowed
    assert!(matches!(
        open(None, &file.0, SOLE),
        Err(OpenError::InUse { .. })
    ));
    drop(held);
    drop(open(None, &file.0, SOLE).unwrap());
}

#[test]
fn what_cannot_be_opened_says_why() {
    let file = TempFile::new(SIZE);
    let missing = TempFile::path_in(&std::env::temp_dir());
    assert!(matches!(
        open(None, &missing.0, SHARED),
        Err(OpenError::NotFound { .. })
    ));
    let folder = std::env::temp_dir();
    assert!(matches!(
        open(None, &folder, SHARED),
        Err(OpenError::NotADevice { .. })
    ));
    assert!(matches!(
        open(None, Path::new("/dev/null"), SHARED),
        Err(OpenError::NotADevice { .. })
    ));
    assert!(matches!(
        create_file(&file.0, SIZE),
        Err(OpenError::Exists { .. })
    ));
    assert_eq!(std::fs::metadata(&file.0).unwrap().len(), SIZE);
    assert!(matches!(
        create_file(&missing.0, 5000),
        Err(OpenError::Size { .. })
    ));
    assert!(matches!(
        create_file(&missing.0, 0),
        Err(OpenError::Size { .. })
    ));
    assert!(create_file(&missing.0, 1 << 62).is_err());
    assert!(!missing.0.exists());
    // What a crash between making it and giving it a size leaves.
    std::fs::write(&missing.0, []).unwrap();
    create_file(&missing.0, SIZE).unwrap();
    assert_eq!(std::fs::metadata(&missing.0).unwrap().len(), SIZE);
    std::fs::remove_file(&missing.0).unwrap();
    std::fs::write(&missing.0, [0; 4095]).unwrap();
    assert!(matches!(
        open(None, &missing.0, SHARED),
        Err(OpenError::TooSmall {
            size_bytes: 4095,
            ..
        })
    ));
    std::fs::write(&missing.0, [0; 10_000]).unwrap();
    assert_eq!(
        open(None, &missing.0, SHARED).unwrap().info().size_bytes,
        8192
    );
}

#[test]
fn a_new_file_is_sparse_and_private() {
    use std::os::unix::fs::MetadataExt;
    let file = TempFile::new(1 << 30);
    let meta = std::fs::metadata(&file.0).unwrap();
    assert_eq!((meta.len(), meta.mode() & 0o777), (1 << 30, 0o600));
    assert!(meta.blocks() * 512 < 1 << 20);
}

/// A loop device over a file, detached when dropped.
struct Loop(PathBuf);

impl Loop {
    fn over(file: &Path) -> Option<Loop> {
        let output = Command::new("losetup")
            .args(["--show", "-f"])
            .arg(file)
            .output()
            .ok()?;
        if !output.status.success() {
            eprintln!(
                "SKIPPED: no loop device: {}",
                String::from_utf8_lossy(&output.stderr)
            );
            return None;
        }
        Some(Loop(String::from_utf8_lossy(&output.stdout).trim().into()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("-d").arg(&self.0).status();
    }
}

#[test]
fn a_block_device_behaves_and_is_claimed() {
    let file = TempFile::new(SIZE);
    let Some(disk) = Loop::over(&file.0) else {
        return;
    };
    let rt = Rt::start().unwrap();
    {
        let held = open(None, &disk.0, SOLE).unwrap();
        assert_eq!(held.info().size_bytes, SIZE);
        assert!(matches!(
            open(None, &disk.0, SOLE),
            Err(OpenError::InUse { .. })
        ));
        rt.block_on(behaves(rt.clone(), held));
    }
    let Some(ring) = ring(&rt) else { return };
    let device = open(Some(&ring), &disk.0, SOLE).unwrap();
    rt.block_on(behaves(rt.clone(), device.clone()));
    rt.block_on(device.flush()).unwrap();
    // Through a discard the file below gives its space back.
    use std::os::unix::fs::MetadataExt;
    let before = std::fs::metadata(&file.0).unwrap().blocks();
    if device.info().discard_bytes > 0 {
        rt.block_on(device.discard(0, SIZE)).unwrap();
        rt.block_on(device.flush()).unwrap();
        assert!(std::fs::metadata(&file.0).unwrap().blocks() < before / 4);
    }
    // A place that cannot be read is a fault of the media, not the end of the device.
    std::fs::OpenOptions::new()
        .write(true)
        .open(&file.0)
        .unwrap()
        .set_len(SIZE / 2)
        .unwrap();
    let inline = open(None, &disk.0, SHARED);
    for device in [Ok(device), inline].into_iter().flatten() {
        let lost = rt.block_on(device.read(SIZE - 8192, Buf::zeroed(4096))).1;
        let kept = rt.block_on(device.read(0, Buf::zeroed(4096))).1;
        assert_eq!((lost, kept), (Err(Fault::Media), Ok(())));
    }
}

#[test]
fn real_formats_are_recognised() {
    let rows: &[(&str, &[&str], &str)] = &[
        ("mkfs.ext4", &["-q", "-F"], "ext4"),
        ("mkfs.ext4", &["-q", "-F", "-t", "ext3"], "ext3"),
        ("mkfs.ext4", &["-q", "-F", "-t", "ext2"], "ext2"),
        ("mkswap", &[], "swap"),
        ("mkfs.xfs", &["-q", "-f"], "XFS"),
        ("mkfs.btrfs", &["-q", "-f"], "Btrfs"),
        ("mkfs.vfat", &[], "FAT"),
    ];
    for (program, options, name) in rows {
        let size = if *program == "mkfs.xfs" {
            320 << 20
        } else {
            128 << 20
        };
        let file = TempFile::new(size);
        let status = Command::new(program).args(*options).arg(&file.0).output();
        if !status.is_ok_and(|output| output.status.success()) {
            eprintln!("SKIPPED: no {program} here");
            continue;
        }
        let rt = Rt::start().unwrap();
        let device = open(None, &file.0, SHARED).unwrap();
        let found = rt.block_on(async move { signature(&device).await });
        assert!(
            found.is_some_and(|text| text.contains(name)),
            "{program}: {found:?}"
        );
    }
}

#[test]
fn a_device_is_an_object() {
    let file = TempFile::new(SIZE);
    let open_file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(&file.0)
        .unwrap();
    let info = open(None, &file.0, SHARED).unwrap().info().clone();
    let device: DeviceRef = Rc::new(SyncDevice::new(open_file, info));
    let rt = Rt::start().unwrap();
    let watched = device.clone();
    rt.block_on(async move { watched.write(4096, vec![Slice::zeroed(4096)]).await })
        .unwrap();
    assert_eq!(device.info().size_bytes, SIZE);
}
