//! Structures that say something wrong under right seals and digests.

use std::collections::BTreeMap;

use super::Images;
use crate::array::{Array, Segment};
use crate::digest::NodeAt;
use crate::journal::Record;
use crate::node::{Inner, Place, Slot};
use crate::report::Report;
use crate::strips::RowCache;
use crate::wire::BLOCK;
use crate::{Source, catalog, members, tree};

/// A node of an array.
#[derive(Clone)]
pub(crate) struct Node {
    pub(crate) at: NodeAt,
    pub(crate) place: Place,
    pub(crate) bytes: Vec<u8>,
}

/// Opens the array of these images with everything known of it, and looks.
pub(crate) fn look<T>(images: &Images, look: impl FnOnce(&Array<'_>, &[Node]) -> T) -> T {
    let mut report = Report::default();
    look_beside(images, Vec::new(), &mut report, look)
}

/// The same, with these records in the journal besides.
pub(crate) fn look_beside<T>(
    images: &Images,
    records: Vec<Record>,
    report: &mut Report,
    look: impl FnOnce(&Array<'_>, &[Node]) -> T,
) -> T {
    let sources: Vec<&dyn Source> = images.0.iter().map(|d| d as &dyn Source).collect();
    let members = members::assemble(&sources, report).unwrap();
    let mut array = Array::open(members, report).unwrap();
    array.journal.records.extend(records);
    array.find_rebuilt(report);
    let mut nodes = Vec::new();
    let root = array.root.clone();
    let liveness = nodes_of(&array, 1, 0, root.liveness.entry, &mut nodes);
    array.take_liveness(&liveness, report).unwrap();
    array.take_segments(report);
    let leaves = nodes_of(&array, 2, 0, root.catalog.entry, &mut nodes);
    let partitions = array.members.superblock.partitions;
    let bytes = tree::string(&leaves, root.catalog.bytes);
    for listed in catalog::parse(&bytes, partitions).unwrap() {
        for (partition, top) in (0u16..).zip(&listed.maps) {
            nodes_of(&array, listed.volume.number, partition, *top, &mut nodes);
        }
    }
    look(&array, &nodes)
}

/// All nodes of a tree; gives the leaves.
fn nodes_of(
    array: &Array<'_>,
    tree: u32,
    partition: u16,
    top: Slot<Inner>,
    nodes: &mut Vec<Node>,
) -> BTreeMap<u64, Vec<u8>> {
    let mut leaves = BTreeMap::new();
    let Slot::Entry(top) = top else { return leaves };
    let level = tree::height(&top).unwrap();
    let mut todo = vec![(level, 0u64, top)];
    while let Some((level, index, entry)) = todo.pop() {
        let at = NodeAt {
            tree,
            partition,
            level,
            index,
        };
        let segment = &array.segments[&entry.place.segment];
        let check = |b: &[u8]| array.key.node(at, b) == Some(entry.digest);
        let unit = (entry.place.block, 1);
        let (_, bytes) = array.read_unit(&RowCache::default(), segment, unit, &check);
        nodes.push(Node {
            at,
            place: entry.place,
            bytes: bytes.clone(),
        });
        if level == 0 {
            leaves.insert(index, bytes);
            continue;
        }
        for (slot, bytes) in (0u64..).zip(bytes.chunks(64)) {
            if let Slot::Entry(entry) = Inner::parse(bytes) {
                todo.push((level - 1, index * 64 + slot, entry));
            }
        }
    }
    leaves
}

/// The device and offset of a block of a strip.
pub(crate) fn strip_offset(
    array: &Array<'_>,
    segment: &Segment,
    (stripe, column, within): (u32, u16, u32),
) -> (usize, usize) {
    let block = segment.shape.strip_block(stripe) + within;
    slot_offset(array, segment, column, block)
}

/// The device and offset of a block of a column's slot.
pub(crate) fn slot_offset(
    array: &Array<'_>,
    segment: &Segment,
    column: u16,
    block: u32,
) -> (usize, usize) {
    let place = segment.columns[usize::from(column)].unwrap();
    let device = array.device(place.device).unwrap();
    let at = device.geometry.slot(place.slot) + u64::from(block) * BLOCK as u64;
    (device.position, at as usize)
}

/// The device and offset of a data block.
pub(crate) fn data_offset(array: &Array<'_>, place: Place) -> (usize, usize) {
    let segment = &array.segments[&place.segment];
    strip_offset(array, segment, segment.shape.locate(place.block))
}

/// Writes the seal of a structure again.
pub(crate) fn seal(context: &[u8], bytes: &mut [u8]) {
    let body = bytes.len() - 32;
    bytes[body..].fill(0);
    bytes[body..body + context.len()].copy_from_slice(context);
    let seal = blake3::hash(bytes);
    bytes[body..].copy_from_slice(seal.as_bytes());
}

/// What to change in a node's bytes.
type Change<'c> = Box<dyn FnOnce(&mut [u8]) + 'c>;

/// Changes a node, and whatever proves it, up to the roots.
pub(crate) fn change_node(
    images: &mut Images,
    choose: impl Fn(&Node) -> bool,
    change: impl FnOnce(&mut [u8]),
) {
    let writes = look(images, |array, nodes| {
        let mut nodes = nodes.to_vec();
        let mut at = nodes.iter().position(choose).unwrap();
        let mut change: Option<Change<'_>> = Some(Box::new(change));
        let mut writes = Vec::new();
        loop {
            let old = array.key.node(nodes[at].at, &nodes[at].bytes).unwrap();
            let node = &mut nodes[at];
            change.take().unwrap()(&mut node.bytes);
            writes.push((data_offset(array, node.place), node.bytes.clone()));
            let new = array.key.node(node.at, &node.bytes).unwrap();
            let content = (node.at.tree >= 16).then(|| {
                let step = if node.at.level == 0 { 32 } else { 64 };
                let parts = node.bytes.chunks(step).map(|entry| &entry[step / 2..]);
                array.key.content(node.at, parts).unwrap()
            });
            let put = move |bytes: &mut [u8]| {
                let place = bytes.windows(16).position(|w| w == old).unwrap();
                bytes[place..place + 16].copy_from_slice(&new);
                if let Some(content) = content {
                    bytes[place + 16..place + 48].copy_from_slice(&content);
                }
            };
            let names = |node: &Node| node.bytes.windows(16).any(|w| w == old);
            match nodes.iter().position(names) {
                Some(parent) => at = parent,
                None => {
                    for device in array.members.here.values() {
                        let offset = device.geometry.root(array.root.number) as usize;
                        let mut root = vec![0; 16_384];
                        device.source.read(offset as u64, &mut root).unwrap();
                        put(&mut root);
                        seal(&array.id, &mut root);
                        writes.push(((device.position, offset), root));
                    }
                    return writes;
                }
            }
            change = Some(Box::new(put));
        }
    });
    for ((device, offset), bytes) in writes {
        images.0[device][offset..offset + bytes.len()].copy_from_slice(&bytes);
    }
}
