//! Slots that are kept of each device, by who asks for one, and the shape of metadata segments.
//!
//! Invariant: functions of facts; nothing is looked up here, and nothing is kept.

use ashlar_format::BLOCK_U64;
use ashlar_layout::Shape;
use ashlar_space::domains::Domains;

/// Who asks for space: the ordered reserves of rule R15.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Purpose {
    /// A client's write.
    Client,
    /// The cleaner.
    Clean,
    /// Commits, recovery, and what batches wait for.
    Commit,
}

/// Slots of a device that metadata needs.
#[derive(Debug, Clone, Copy, Default)]
pub struct MetadataNeed {
    /// All live nodes, written once.
    pub once: usize,
    /// What it may still grow by before half of it is dead for certain.
    pub growth: usize,
    /// What the next commit needs for the nodes that it was had to write anew, and what it folds.
    pub renewed: usize,
}

/// Slots that so many segments of `width` columns take of each device.
pub fn slots_each(segments: usize, width: usize, devices: usize) -> usize {
    let devices = devices.max(1);
    (segments * width.min(devices)).div_ceil(devices)
}

/// Data and parity columns of metadata segments on these devices, less `spare` of them, at full redundancy. No more
/// than the parity lie in one failure domain, unless there is but one.
pub(crate) fn meta_shape(
    shape: &Shape,
    domains: &Domains,
    devices: &[u16],
    spare: usize,
) -> (usize, usize) {
    let count = devices.len().saturating_sub(spare).max(1);
    let m = metadata_survives(shape).min(count - 1);
    let width = domains.width(devices, m).min(count);
    (width.saturating_sub(m).clamp(1, 8.min(256 - m)), m)
}

/// How many lost devices metadata survives where there are enough: one more than data; and since nodes lie on
/// devices of all groups, M of each group, so that they can be read wherever the data can. No codeword has more
/// parity than 255.
pub fn metadata_survives(shape: &Shape) -> usize {
    let one_more = usize::from(shape.m) + 1;
    one_more.max(2).max(shape.most_lost()).min(255)
}

/// Bytes of one slot, in blocks.
pub fn slot_blocks(slot_bytes: u64) -> u32 {
    u32::try_from(slot_bytes / BLOCK_U64).expect("a slot is at most 1 GiB")
}

/// Slots of each device kept for commits and recovery: room for a few commits' nodes even where the
/// array has shrunk so far that a metadata stripe holds a single node.
pub fn commit_slots(slot_blocks: u32) -> usize {
    (224 / slot_blocks.saturating_sub(2).max(1) as usize).max(6)
}

/// Slots of a device kept for the cleaner, besides: what one round of cleaning may fill.
pub fn clean_slots(slots: u32) -> usize {
    (slots as usize / 64).max(6)
}

/// Slots of a device that `purpose` must leave free.
pub fn reserve(purpose: Purpose, slots: u32, slot_blocks: u32, metadata: MetadataNeed) -> usize {
    let (commit, clean) = (commit_slots(slot_blocks), clean_slots(slots));
    match purpose {
        Purpose::Commit => 0,
        Purpose::Clean => commit / 2 + metadata.once.min(clean / 2),
        Purpose::Client => commit + clean + metadata.growth,
    }
}

/// What `clean.reserve` may be, in percent.
pub const CLEAN_RESERVE: std::ops::RangeInclusive<u64> = 2..=50;

/// `clean.reserve` where it was not set, in percent.
pub const DEFAULT_CLEAN_RESERVE: u64 = 10;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    /// Whatever is there of however many devices, segments of nodes are codewords, on devices of their own.
    #[test]
    fn nodes_lie_in_codewords() {
        for (layout, most) in [
            ("jbod", 600),
            ("raid1", 256),
            ("raid10", 600),
            ("raid60:150", 900),
            ("ec1+255", 600),
            ("ec4+252", 600),
            ("ec8+2", 600),
        ] {
            let layout: ashlar_layout::Layout = layout.parse().unwrap();
            let shape = layout.resolve(most).unwrap();
            for each in [1, 7, 60] {
                let labels: Vec<String> = (0..most).map(|d| format!("{}", d / each)).collect();
                let domains = Domains::new(labels.iter().map(String::as_str));
                for here in (0..=most).step_by(3) {
                    let devices: Vec<u16> = (0..here).collect();
                    for spare in [0, 1, 30] {
                        let (k, m) = meta_shape(&shape, &domains, &devices, spare);
                        let what = format!("{layout}, {here} of {most}, {spare} spare: {k}+{m}");
                        assert!((1..=8).contains(&k) && k + m <= 256, "{what}");
                        assert!(
                            k + m <= devices.len().saturating_sub(spare).max(1),
                            "{what}"
                        );
                    }
                }
            }
        }
    }
}
