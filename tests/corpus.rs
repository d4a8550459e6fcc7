//! The fuzz targets under the stable toolchain: every input of the corpora and of a real array's
//! devices, and many changed ones, the same each time. cargo-fuzz goes on from the same inputs.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;

use ashlar_device::{Device, DeviceRef, MemDevice};
use ashlar_engine::{Array, Create, Identity, Settings, VolumeOptions};
use ashlar_rt::{Buf, Rt};

#[path = "../fuzz/targets.rs"]
mod targets;

#[allow(dead_code, unused_imports, reason = "only reading is of interest")]
#[path = "../src/api.rs"]
mod api;
#[allow(dead_code, reason = "only reading is of interest")]
#[path = "../src/failure.rs"]
mod failure;
#[allow(dead_code, reason = "only reading is of interest")]
#[path = "../src/units.rs"]
mod units;

/// The same changes each time.
struct Changes(u64);

impl Changes {
    fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.draw() % bound.max(1) as u64).unwrap()
    }

    /// One to four changes: bits, bytes, numbers at the edge, lengths, pieces of another input.
    fn change(&mut self, input: &[u8], other: &[u8]) -> Vec<u8> {
        const EDGES: [u64; 8] = [0, 1, 0x7F, 0xFF, 0xFFFF, 0xFFFF_FFFF, u64::MAX, 1 << 63];
        let mut bytes = input.to_vec();
        for _ in 0..=self.below(4) {
            // Most of what decides lies at the front.
            let reach = if self.below(2) == 0 { 160 } else { usize::MAX };
            let at = self.below(bytes.len().min(reach));
            match self.below(7) {
                0 if !bytes.is_empty() => bytes[at] ^= 1 << self.below(8),
                1 if !bytes.is_empty() => bytes[at] = self.draw().to_le_bytes()[0],
                2 | 3 => {
                    let edge = EDGES[self.below(8)].to_le_bytes();
                    let width = [1, 2, 4, 8][self.below(4)];
                    for (to, from) in bytes[at.min(input.len())..].iter_mut().zip(&edge[..width]) {
                        *to = *from;
                    }
                }
                4 => bytes.truncate(at),
                5 => {
                    let from = self.below(other.len());
                    let part = &other[from..(from + self.below(64)).min(other.len())];
                    bytes.splice(
                        at.min(bytes.len())..at.min(bytes.len()),
                        part.iter().copied(),
                    );
                }
                _ => bytes.extend_from_slice(&self.draw().to_be_bytes()),
            }
        }
        bytes
    }
}

/// The inputs kept for `target`, one a file.
fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
    let Ok(entries) = std::fs::read_dir(folder.join(target)) else {
        return Vec::new();
    };
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    names.sort();
    names
        .iter()
        .map(|path| std::fs::read(path).unwrap())
        .collect()
}

/// Runs a target on `inputs` and on `changed` changed ones of each.
fn run(mut inputs: Vec<Vec<u8>>, target: &str, changed: usize, act: impl Fn(&[u8])) {
    inputs.extend(corpus(target));
    assert!(!inputs.is_empty(), "no input for {target}");
    let mut changes = Changes(0xC0);
    for (number, input) in inputs.iter().enumerate() {
        act(input);
        for _ in 0..changed {
            let other = &inputs[(number * 7 + changes.below(inputs.len())) % inputs.len()];
            act(&changes.change(input, other));
        }
    }
}

/// Every kind of structure that a small array has on its devices: by its first eight bytes.
fn structures() -> BTreeMap<String, Vec<Vec<u8>>> {
    let rt = Rt::simulated(1);
    let devices: Vec<Rc<MemDevice>> = (0..4)
        .map(|i| Rc::new(MemDevice::new(&format!("mem{i}"), 16 << 20)))
        .collect();
    let refs: Vec<DeviceRef> = devices.iter().map(|d| d.clone() as DeviceRef).collect();
    let handle = rt.clone();
    let host = Identity {
        boot: [1; 16],
        machine: [2; 16],
        host: "host".into(),
    };
    rt.block_on(async move {
        let options = Create {
            name: "tank".into(),
            layout: "ec2+1".parse().unwrap(),
            strip_bytes: Some(4096),
            slot_bytes: Some(64 << 10),
            spare: 0,
            domains: Vec::new(),
            settings: Settings {
                beat: Some(host),
                ..Settings::default()
            },
        };
        let array = Array::create(&handle, refs, options).await.unwrap();
        let options = VolumeOptions {
            size_bytes: 1 << 20,
            ..VolumeOptions::default()
        };
        array.volume_create("v", options).await.unwrap();
        let volume = array.volume("v").unwrap();
        for round in 0..40u64 {
            let data = Buf::copy_of(&[7; 12_288]).freeze();
            volume.write(round * 16_384, data, true).await.unwrap();
        }
        volume.trim(0, 65_536, true).await.unwrap();
        array.export().await.unwrap();
    });
    let mut found: BTreeMap<String, Vec<Vec<u8>>> = BTreeMap::new();
    for device in devices {
        let pages = device.info().size_bytes / 4096;
        for page in 0..pages {
            let reading = device.read(page * 4096, Buf::zeroed(4096));
            let (bytes, result) = rt.block_on(reading);
            result.unwrap();
            if bytes.iter().all(|b| *b == 0) {
                continue;
            }
            let known = bytes.starts_with(b"ASH");
            let name = String::from_utf8_lossy(&bytes[..if known { 8 } else { 0 }]).into_owned();
            let kept = found.entry(name).or_default();
            if kept.len() < 12 && !kept.contains(&bytes.to_vec()) {
                kept.push(bytes.to_vec());
            }
        }
    }
    rt.shutdown();
    found
}

#[test]
fn structures_on_disk() {
    let found = structures();
    let of = |name: &str| {
        let inputs = found.get(name).cloned();
        inputs.unwrap_or_else(|| panic!("no {name} on the devices"))
    };
    run(of("ASHLAR01"), "superblock", 2_000, targets::superblock);
    run(of("ASHROOT1"), "root", 2_000, targets::root);
    run(of("ASHBEAT1"), "beat", 2_000, targets::beat);
    run(of("ASHJRNL1"), "journal", 2_000, targets::journal);
    let payloads: Vec<Vec<u8>> = of("ASHJRNL1").iter().map(|b| b[1024..].to_vec()).collect();
    run(payloads, "journal", 2_000, targets::journal);
    run(of("ASHSUMRY"), "summary", 2_000, targets::summary);
    let slots = [of("ASHTABLE"), of("ASHSLOT1")].concat();
    run(slots, "slot", 2_000, targets::slot);
    run(of(""), "node", 1_000, targets::node);
}

#[test]
fn layouts() {
    let texts = [
        "raid0",
        "raid1",
        "raid1:3",
        "raid10",
        "raid5",
        "raid6",
        "raid7.3",
        "ec8+2",
        "ec80+20",
        "raid50:3",
        "raid60:2",
        "raid70:2",
        "jbod",
        "draid2:8d:44c:2s",
        "grid:41(8+2+2)",
    ];
    let inputs = texts.map(|text| [&[41, 0], text.as_bytes()].concat());
    run(inputs.to_vec(), "layout", 4_000, targets::layout);
}

#[test]
fn requests_and_sizes() {
    let inputs = [
        "status\n{}",
        "export\n{\"array\":\"tank\"}",
        "create\n{\"name\":\"t\",\"layout\":\"raid5\",\"devices\":[\"/dev/x\"]}",
        "1.5G\n[]",
    ];
    let inputs = inputs.map(|text| text.as_bytes().to_vec());
    run(inputs.to_vec(), "control", 6_000, |bytes| {
        let (verb, body) = match bytes.iter().position(|b| *b == b'\n') {
            Some(at) => (&bytes[..at], &bytes[at + 1..]),
            None => (bytes, &[][..]),
        };
        let verb = String::from_utf8_lossy(verb);
        if let Ok(call) = api::Call::parse(&verb, body) {
            let again = api::Call::parse(call.verb(), &call.body());
            assert!(again.is_ok(), "{call:?}");
        }
        if let Ok(size) = units::parse_size(&verb) {
            assert!(units::parse_size(&size.to_string()) == Ok(size), "{verb}");
        }
    });
}

/// What a client sends: 255 bytes at a time, then the handshake, then requests.
fn conversation(requests: &[(u16, u16, u64, u32)]) -> Vec<u8> {
    let mut out = vec![255];
    out.extend_from_slice(&3u32.to_be_bytes());
    let mut option = |number: u32, payload: &[u8]| {
        out.extend_from_slice(b"IHAVEOPT");
        out.extend_from_slice(&number.to_be_bytes());
        out.extend_from_slice(&u32::try_from(payload.len()).unwrap().to_be_bytes());
        out.extend_from_slice(payload);
    };
    option(8, &[]);
    option(3, &[]);
    let context = [
        &[0, 0, 0, 1, b'a', 0, 0, 0, 1, 0, 0, 0, 15][..],
        b"base:allocation",
    ]
    .concat();
    option(10, &context);
    option(7, &[0, 0, 0, 1, b'a', 0, 0]);
    for (flags, command, offset, length) in requests {
        out.extend_from_slice(&0x2560_9513u32.to_be_bytes());
        out.extend_from_slice(&flags.to_be_bytes());
        out.extend_from_slice(&command.to_be_bytes());
        out.extend_from_slice(&77u64.to_be_bytes());
        out.extend_from_slice(&offset.to_be_bytes());
        out.extend_from_slice(&length.to_be_bytes());
        if *command == 1 {
            out.extend(std::iter::repeat_n(9, *length as usize));
        }
    }
    out
}

#[test]
fn nbd_clients() {
    let server = targets::Nbd::start();
    let inputs = vec![
        conversation(&[
            (0, 0, 0, 4096),
            (0, 1, 512, 700),
            (0, 3, 0, 0),
            (0, 2, 0, 0),
        ]),
        conversation(&[
            (1, 1, 0, 4096),
            (0, 4, 0, 65_536),
            (1, 6, 4096, 4096),
            (0, 7, 0, 1 << 20),
        ]),
        conversation(&[
            (0, 0, 1 << 20, 1),
            (0, 0, u64::MAX, u32::MAX),
            (0xFFFF, 9, 0, 0),
        ]),
        conversation(&[]),
    ];
    server.client(&inputs[0]);
    assert!(server.reached() >= 3, "the handshake was refused");
    run(inputs, "nbd", 120, |bytes| server.client(bytes));
}
