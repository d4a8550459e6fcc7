//! What each fuzz target does with its input. Used by the targets under `fuzz_targets` and, with the
//! corpora and under the stable toolchain, by `tests/corpus.rs`.
//!
//! Invariants: no input makes any of these panic, take much memory or much time; what decodes can be
//! encoded again and decodes to the same. A structure's seal is made right first, so that what lies
//! behind it is reached.

use std::rc::Rc;

use ashlar_format::beat::Beat;
use ashlar_format::catalog::Catalog;
use ashlar_format::journal::{ColumnHeader, HEADER_BYTES, decode_entries, encode_entries};
use ashlar_format::node::{INNER_ENTRY, LEAF_ENTRY, LeafEntry, NodeEntry};
use ashlar_format::root::Root;
use ashlar_format::slot::{SlotHeader, TablePage};
use ashlar_format::summary::{self, SummaryId};
use ashlar_format::superblock::Superblock;
use ashlar_format::{BLOCK, wire};
use ashlar_layout::Layout;
use ashlar_rt::Rt;
use ashlar_serve::nbd::{Catalog as Exports, Limits, NbdListener, NbdServer};
use ashlar_serve::{MemVolume, Pool, Volume};

/// The array that every structure here belongs to.
pub const ARRAY: [u8; 16] = [7; 16];
/// Blocks a slot.
pub const SLOT_BLOCKS: u32 = 16;

/// The input as whole blocks with a right seal.
fn sealed(context: &[u8], bytes: &[u8], size: usize) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes.resize(size, 0);
    wire::seal(context, &mut bytes);
    bytes
}

fn number(bytes: &[u8], at: usize) -> u64 {
    let found = bytes.get(at..at + 8).and_then(|b| b.try_into().ok());
    found.map_or(0, u64::from_le_bytes)
}

/// A superblock.
pub fn superblock(bytes: &[u8]) {
    let _ = Superblock::decode(bytes);
    let size = Superblock::encoded_bytes(bytes).unwrap_or(BLOCK);
    let bytes = sealed(b"ashlar superblock", bytes, size);
    if let Ok(found) = Superblock::decode(&bytes) {
        assert_eq!(Superblock::decode(&found.encode()), Ok(found));
    }
}

/// A root.
pub fn root(bytes: &[u8]) {
    let _ = Root::decode(&ARRAY, bytes);
    let size = usize::try_from(ashlar_format::geometry::ROOT_BYTES).unwrap_or(BLOCK);
    if let Ok(found) = Root::decode(&ARRAY, &sealed(&ARRAY, bytes, size)) {
        assert_eq!(Root::decode(&ARRAY, &found.encode(&ARRAY)), Ok(found));
    }
}

/// A beat.
pub fn beat(bytes: &[u8]) {
    let _ = Beat::decode(&ARRAY, bytes);
    if let Ok(found) = Beat::decode(&ARRAY, &sealed(&ARRAY, bytes, BLOCK)) {
        assert_eq!(Beat::decode(&ARRAY, &found.encode(&ARRAY)), Ok(found));
    }
}

/// A journal column's header, and a record's payload.
pub fn journal(bytes: &[u8]) {
    let _ = ColumnHeader::decode(&ARRAY, bytes);
    if let Ok(found) = ColumnHeader::decode(&ARRAY, &sealed(&ARRAY, bytes, HEADER_BYTES)) {
        assert!(found.share_bytes() <= found.column_bytes());
        assert_eq!(
            ColumnHeader::decode(&ARRAY, &found.encode(&ARRAY)),
            Ok(found)
        );
    }
    if let Ok(entries) = decode_entries(bytes) {
        assert_eq!(decode_entries(&encode_entries(&entries)), Ok(entries));
    }
}

/// A summary block, asked for as what it says it is.
pub fn summary(bytes: &[u8]) {
    let low = |at| u32::try_from(number(bytes, at) & 0xFFFF_FFFF).unwrap_or(0);
    let id = SummaryId {
        segment: number(bytes, 8),
        column: u16::try_from(low(16) & 0xFFFF).unwrap_or(0),
        course: low(20),
        part: low(24),
    };
    let _ = summary::decode(&ARRAY, id, bytes);
    if let Ok(rows) = summary::decode(&ARRAY, id, &sealed(&ARRAY, bytes, BLOCK)) {
        let again = summary::encode(&ARRAY, id, &rows);
        assert_eq!(summary::decode(&ARRAY, id, &again), Ok(rows));
    }
}

/// Leaf and inner nodes, entry by entry; and a catalog.
pub fn node(bytes: &[u8]) {
    for entry in bytes.chunks_exact(LEAF_ENTRY) {
        if let Ok(found) = LeafEntry::read(entry) {
            let mut again = [0; LEAF_ENTRY];
            LeafEntry::write(found.as_ref(), &mut again);
            assert_eq!(LeafEntry::read(&again), Ok(found));
        }
    }
    for entry in bytes.chunks_exact(INNER_ENTRY) {
        if let Ok(found) = NodeEntry::read(entry) {
            let mut again = [0; INNER_ENTRY];
            NodeEntry::write(found.as_ref(), &mut again);
            assert_eq!(NodeEntry::read(&again), Ok(found));
        }
    }
    if let Ok(found) = Catalog::decode(bytes) {
        assert_eq!(Catalog::decode(&found.encode()), Ok(found));
    }
}

/// A page of a slot table, and a slot's header.
pub fn slot(bytes: &[u8]) {
    let bytes = sealed(&ARRAY, bytes, BLOCK);
    let page = u32::try_from(number(&bytes, 16) & 0xFFFF_FFFF).unwrap_or(0);
    let device = u16::try_from(number(&bytes, 20) & 0xFFFF).unwrap_or(0);
    if let Ok(found) = TablePage::decode(&ARRAY, device, page, SLOT_BLOCKS, &bytes) {
        let again = found.encode(&ARRAY, device);
        assert_eq!(
            TablePage::decode(&ARRAY, device, page, SLOT_BLOCKS, &again),
            Ok(found)
        );
    }
    if let Ok(found) = SlotHeader::decode(&ARRAY, SLOT_BLOCKS, &bytes) {
        assert!(found.entry.geometry(SLOT_BLOCKS).is_sound());
        let again = found.encode(&ARRAY);
        assert_eq!(SlotHeader::decode(&ARRAY, SLOT_BLOCKS, &again), Ok(found));
    }
}

/// A layout's notation, on any number of devices (the first two bytes).
pub fn layout(bytes: &[u8]) {
    let Some((devices, text)) = bytes.split_at_checked(2) else {
        return;
    };
    let (Ok(text), Ok(devices)) = (std::str::from_utf8(text), devices.try_into()) else {
        return;
    };
    let Ok(layout) = text.parse::<Layout>() else {
        return;
    };
    let again = layout.to_string();
    assert_eq!(again.parse::<Layout>(), Ok(layout), "{text} and {again}");
    let devices = u16::from_le_bytes(devices) % 1_100;
    if let Ok(shape) = layout.resolve(devices) {
        assert!(usize::from(shape.k) + usize::from(shape.m) <= 256, "{text}");
        assert!(
            shape.groups.iter().flatten().all(|d| *d < devices),
            "{text}"
        );
    }
}

/// What an NBD client sends, over a socket, split where the first byte says; the server answers or
/// hangs up, and serves the next client.
pub struct Nbd {
    rt: Rt,
    server: NbdServer,
    address: std::net::SocketAddr,
    volume: Rc<MemVolume>,
}

impl std::fmt::Debug for Nbd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Nbd").finish_non_exhaustive()
    }
}

impl Nbd {
    /// A server on the loopback with one small volume called `a`.
    pub fn start() -> Nbd {
        let rt = Rt::start().expect("an executor starts");
        let exports = Rc::new(Exports::default());
        let volume = Rc::new(MemVolume::new(1 << 20));
        assert!(exports.publish("a", volume.clone() as Rc<dyn Volume>));
        let handle = rt.clone();
        let server = rt.block_on(async move {
            let listener = NbdListener::tcp(&handle, ([127, 0, 0, 1], 0).into());
            let listener = listener.expect("the loopback can be listened on");
            NbdServer::start(
                &handle,
                listener,
                exports,
                Limits::default(),
                Pool::new(64 << 20),
            )
        });
        let address = server.tcp_address().expect("it listens on TCP");
        Nbd {
            rt,
            server,
            address,
            volume,
        }
    }

    /// Requests that reached the volume so far.
    pub fn reached(&self) -> u64 {
        let counters = self.volume.counters();
        counters.reads + counters.writes + counters.flushes + counters.trims + counters.zeroes
    }

    /// One client's life.
    pub fn client(&self, bytes: &[u8]) {
        let (first, rest) = bytes.split_first().unwrap_or((&0, &[]));
        let piece = (usize::from(*first) + 1).min(rest.len().max(1));
        let (address, pieces) = (self.address, rest.chunks(piece).map(<[u8]>::to_vec));
        let pieces: Vec<Vec<u8>> = pieces.collect();
        let client = std::thread::spawn(move || talk(address, &pieces));
        let (rt, server) = (self.rt.clone(), self.server.clone());
        self.rt.block_on(async move {
            while !client.is_finished() || server.connections() > 0 {
                rt.sleep(ashlar_rt::MILLISECOND / 4).await;
            }
        });
    }
}

/// Sends everything, ends its side, and reads until the server ends its own.
fn talk(address: std::net::SocketAddr, pieces: &[Vec<u8>]) {
    use std::io::{Read, Write};
    let Ok(mut stream) = std::net::TcpStream::connect(address) else {
        return;
    };
    let patience = Some(std::time::Duration::from_millis(300));
    let _ = stream.set_read_timeout(patience);
    let _ = stream.set_write_timeout(patience);
    for piece in pieces {
        if stream.write_all(piece).is_err() {
            break;
        }
    }
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut answer = Vec::new();
    let _ = stream.take(8 << 20).read_to_end(&mut answer);
}
