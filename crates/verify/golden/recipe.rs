//! The golden images: how each was made, and what its volumes hold. Shared by the program that makes them
//! (`examples/golden.rs`) and the test that opens them (`tests/golden.rs`).
//!
//! Invariants: a kept image is never made again within a version of the format; what a volume holds follows from the
//! list of requests alone.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use ashlar_device::{Device, DeviceRef, MemDevice};
use ashlar_engine::{Array, Create, DigestKind, Import, Settings, VolumeOptions, Work};
use ashlar_rt::{Buf, Rt};
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;

/// Bytes of every device.
pub const DEVICE: u64 = 4 << 20;
/// Bytes of every volume.
pub const VOLUME: usize = 768 << 10;
/// Volumes: name, bytes of a block, digest.
pub const VOLUMES: [(&str, u32, DigestKind); 2] = [
    ("plain", 4096, DigestKind::Blake3),
    ("pieces", 16384, DigestKind::Xxh3),
];

/// How the last session of an image ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Exported.
    Exported,
    /// As by a power cut, with records in the journal that no checkpoint has merged.
    Crashed,
    /// The same, after a device failed and was rebuilt.
    Rebuilt,
}

/// An image of an array.
#[derive(Clone, Copy, Debug)]
pub struct Image {
    /// Its folder.
    pub name: &'static str,
    /// Layout of the array.
    pub layout: &'static str,
    /// Bytes of a strip.
    pub strip: u32,
    /// Its devices.
    pub devices: usize,
    /// How it ends.
    pub end: End,
}

/// All images.
pub const IMAGES: [Image; 4] = [
    Image {
        name: "exported",
        layout: "ec4+2",
        strip: 8192,
        devices: 6,
        end: End::Exported,
    },
    Image {
        name: "crashed",
        layout: "ec2+1",
        strip: 8192,
        devices: 4,
        end: End::Crashed,
    },
    Image {
        name: "rebuilt",
        layout: "ec3+2",
        strip: 8192,
        devices: 7,
        end: End::Rebuilt,
    },
    Image {
        name: "pairs",
        layout: "raid10",
        strip: 16384,
        devices: 6,
        end: End::Exported,
    },
];

/// Request of a client.
#[derive(Clone, Copy, Debug)]
enum Request {
    /// Offset, bytes, seed of the bytes.
    Write(usize, usize, u8),
    /// Offset, bytes.
    Trim(usize, usize),
}

/// The requests of a session to each volume. Sessions before the last one are exported.
fn requests(session: u8) -> Vec<Request> {
    let s = usize::from(session);
    vec![
        Request::Write(12_345 + s * 70_000, 150_000, 10 + session),
        Request::Write(400_000, 65_536, 20 + session),
        Request::Trim(98_304 + s * 16_384, 32_768),
        Request::Write(600_000 + s * 4096, 5_000, 30 + session),
    ]
}

/// Sessions of every image.
const SESSIONS: u8 = 3;

/// Byte `at` of what a seed writes: easy to make in any language, no two sectors alike, and small when compressed.
fn byte(seed: u8, at: usize) -> u8 {
    let word = (at / 512) as u64 * 0x9E37_79B9 + u64::from(seed) * 0x85EB_CA6B;
    (word >> (8 * (at % 4))) as u8
}

/// What every volume holds in the end.
pub fn expected() -> Vec<u8> {
    let mut bytes = vec![0; VOLUME];
    for session in 0..SESSIONS {
        for request in requests(session) {
            match request {
                Request::Write(offset, length, seed) => {
                    let written = bytes.iter_mut().enumerate().skip(offset).take(length);
                    written.for_each(|(at, b)| *b = byte(seed, at));
                }
                Request::Trim(offset, length) => bytes[offset..offset + length].fill(0),
            }
        }
    }
    bytes
}

/// Devices in memory.
pub fn empty(count: usize) -> Vec<Rc<MemDevice>> {
    let device = |i| Rc::new(MemDevice::new(&format!("golden{i}"), DEVICE));
    (0..count).map(device).collect()
}

/// The same, as an array takes them.
pub fn refs(disks: &[Rc<MemDevice>]) -> Vec<DeviceRef> {
    disks.iter().map(|d| d.clone() as DeviceRef).collect()
}

/// Makes an image.
pub fn make(image: Image) -> Vec<Vec<u8>> {
    let disks = empty(image.devices);
    for session in 0..SESSIONS {
        let rt = Rt::simulated(u64::from(session) + 1);
        let (handle, devices) = (rt.clone(), refs(&disks));
        rt.block_on(run(handle, devices, image, session));
        rt.shutdown();
    }
    disks.iter().map(|disk| bytes_of(disk)).collect()
}

/// All bytes of a device.
pub fn bytes_of(disk: &MemDevice) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(disk.info().size_bytes).unwrap()];
    disk.peek(0, &mut bytes);
    bytes
}

async fn run(rt: Rt, devices: Vec<DeviceRef>, image: Image, session: u8) {
    let array = if session == 0 {
        create(&rt, devices, image).await
    } else {
        Array::import(&rt, devices, Import::default())
            .await
            .unwrap()
    };
    let last = session + 1 == SESSIONS;
    if last && image.end == End::Rebuilt {
        array.fail(1, false).await.unwrap();
        array.wait_idle(&[Work::Rebuild]).await;
    }
    for (name, _, _) in VOLUMES {
        let volume = array.volume(name).unwrap();
        for request in requests(session) {
            match request {
                Request::Write(offset, length, seed) => {
                    let mut data = Buf::zeroed(length);
                    for (within, out) in data.iter_mut().enumerate() {
                        *out = byte(seed, offset + within);
                    }
                    let done = volume.write(offset as u64, data.freeze(), false).await;
                    done.unwrap();
                }
                Request::Trim(offset, length) => {
                    volume
                        .trim(offset as u64, length as u64, true)
                        .await
                        .unwrap();
                }
            }
        }
        volume.flush().await.unwrap();
    }
    if !last || image.end == End::Exported {
        array.export().await.unwrap();
    }
}

async fn create(rt: &Rt, devices: Vec<DeviceRef>, image: Image) -> Array {
    let create = Create {
        name: "golden".into(),
        layout: image.layout.parse().unwrap(),
        strip_bytes: Some(image.strip),
        slot_bytes: Some(64 << 10),
        spare: 0,
        domains: Vec::new(),
        settings: Settings::default(),
    };
    let array = Array::create(rt, devices, create).await.unwrap();
    for (name, block_bytes, digest) in VOLUMES {
        let options = VolumeOptions {
            size_bytes: VOLUME as u64,
            block_bytes,
            digest,
            ..VolumeOptions::default()
        };
        array.volume_create(name, options).await.unwrap();
    }
    array
}

/// Whether an image is kept already.
pub fn is_kept(image: Image) -> bool {
    file(image, 0).exists()
}

fn file(image: Image, device: usize) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden");
    folder.join(image.name).join(format!("{device}.gz"))
}

/// Keeps the devices of an image.
pub fn keep(image: Image, devices: &[Vec<u8>]) {
    for (index, bytes) in devices.iter().enumerate() {
        let path = file(image, index);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let mut out = GzEncoder::new(Vec::new(), Compression::best());
        out.write_all(bytes).unwrap();
        std::fs::write(path, out.finish().unwrap()).unwrap();
    }
}

/// The devices of a kept image.
pub fn kept(image: Image) -> Vec<Vec<u8>> {
    let device = |index| {
        let mut bytes = Vec::new();
        let packed = std::fs::read(file(image, index)).unwrap();
        GzDecoder::new(&packed[..]).read_to_end(&mut bytes).unwrap();
        bytes
    };
    (0..image.devices).map(device).collect()
}
