//! The account: the bytes that a run's devices should have moved, given how much was cleaned and how often it was
//! recorded and checkpointed.
//!
//! The closed form ([`super::closed`]) knows neither records of the journal nor checkpoints, whose number follows from
//! time. A run counts those, and the format says what each is made of. What devices moved beyond that is unexplained.
//!
//! **Invariant**: pure arithmetic; nothing here is fitted to a measurement.

use super::closed::{BLOCK, Given, LEAF, touched};

/// Entries of a node above the leaves, and of a page of the slot table.
const FANOUT: f64 = 64.0;
const PAGE: f64 = 124.0;
/// Bytes of a root.
const ROOT: f64 = 16384.0;
/// Bytes of a row of a block; of a delta, and of one that moves a block; of a stripe's entry besides.
const ROW: f64 = 32.0;
const DELTA: f64 = 21.0;
const MOVE: f64 = 33.0;
const STRIPE: f64 = 35.0;
/// Bytes of a column's header in the journal, of payload up to which it takes one column, and the most data columns.
const HEADER: f64 = 1024.0;
const ONE_COLUMN: f64 = 65536.0;
const MOST_COLUMNS: f64 = 8.0;
/// Nodes of the catalog and above it that a checkpoint writes.
const CATALOG: f64 = 4.0;

/// How the array is cut, besides what the closed form needs.
#[derive(Clone, Copy, Debug)]
pub struct Cut {
    /// Blocks of a strip.
    pub strip_blocks: f64,
    /// Blocks of a slot.
    pub slot_blocks: f64,
    /// Data blocks of a segment.
    pub segment_blocks: f64,
    /// Bytes written to a slot of nodes for each byte of nodes in it.
    pub node_overhead: f64,
    /// Partitions of the volume's map.
    pub partitions: f64,
    /// Segments that hold something, on average.
    pub segments: f64,
}

/// What a run counted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counted {
    /// Blocks that clients wrote.
    pub host_blocks: f64,
    /// Data blocks that were written.
    pub data_blocks: f64,
    /// Records of group commits.
    pub records: f64,
    /// Checkpoints.
    pub checkpoints: f64,
}

impl Given {
    /// Device bytes of the writes of a run; `sequential`: in the order of their addresses.
    pub fn account(&self, cut: &Cut, counted: &Counted, sequential: bool) -> f64 {
        let moved = (counted.data_blocks - counted.host_blocks).max(0.0);
        let width = (self.k + self.m) / self.k;
        let data = counted.data_blocks * BLOCK * width * self.slot_overhead;
        // The cleaner reads what it moves, and the summaries of its victims' data columns.
        let victims = if moved > 0.0 {
            counted.data_blocks / cut.segment_blocks
        } else {
            0.0
        };
        let courses = (cut.slot_blocks / 126.0).ceil();
        let cleaned = (moved + victims * self.k * courses) * BLOCK;
        let (nodes, leaves) = self.nodes(cut, counted, sequential);
        let map = nodes * BLOCK * self.map_width() * cut.node_overhead;
        let loaded = leaves * self.miss() * BLOCK;
        data + cleaned
            + map
            + loaded
            + self.journal(cut, counted, moved, nodes)
            + self.roots(cut, counted, moved)
    }

    /// Nodes that all checkpoints write, and how many of them are leaves of the volume's map.
    fn nodes(&self, cut: &Cut, counted: &Counted, sequential: bool) -> (f64, f64) {
        let checkpoints = counted.checkpoints.max(1.0);
        let changes = counted.data_blocks / checkpoints;
        let all = (self.blocks / LEAF).max(1.0);
        let leaves = if sequential {
            changes / LEAF + 1.0
        } else {
            touched(all, changes)
        };
        let (mut nodes, mut level, mut below) = (leaves, all, leaves);
        while level > cut.partitions.min(all) {
            level = (level / FANOUT).max(cut.partitions.min(all));
            below = if sequential {
                (below / FANOUT + 1.0).min(level)
            } else {
                touched(level, below)
            };
            nodes += below;
        }
        nodes += self.liveness(cut, changes, sequential) + CATALOG;
        // The last stripe is padded.
        nodes += (self.node_shape().0 - 1.0) / 2.0;
        (nodes * counted.checkpoints, leaves * counted.checkpoints)
    }

    /// Nodes of liveness records that one checkpoint writes: blocks die anywhere, and are born in the newest segments.
    fn liveness(&self, cut: &Cut, changes: f64, sequential: bool) -> f64 {
        let bytes = 64.0 + (self.k.max(8.0) * cut.slot_blocks / 8.0).ceil();
        let of_leaf = if bytes > BLOCK {
            1.0 / (bytes / BLOCK).ceil()
        } else {
            (BLOCK / (bytes as u64).next_power_of_two() as f64).floor()
        };
        let all = (cut.segments / of_leaf).max(1.0);
        let born = changes / cut.segment_blocks / of_leaf + 1.0;
        let died = if sequential {
            0.0
        } else {
            touched(all, changes)
        };
        let leaves = (born + died).min(all + born);
        leaves + leaves / FANOUT + 1.0
    }

    /// Bytes of records: the rows and deltas of stripes, and the rows of nodes' stripes.
    fn journal(&self, cut: &Cut, counted: &Counted, moved: f64, nodes: f64) -> f64 {
        let stripes = counted.data_blocks / (self.k * cut.strip_blocks);
        let rows = counted.data_blocks * (self.k + self.m) / self.k * ROW;
        let deltas = (counted.data_blocks - moved) * DELTA + moved * MOVE;
        let data = stripes * STRIPE + rows + deltas;
        let (node_k, node_m) = self.node_shape();
        let of_nodes = nodes / node_k * (STRIPE + (node_k + node_m) * ROW);
        self.records(data, counted.records) + self.records(of_nodes, counted.checkpoints)
    }

    /// Bytes of so many records that hold so many bytes together, from none up to twice the mean each.
    fn records(&self, payload: f64, count: f64) -> f64 {
        if count <= 0.0 {
            return 0.0;
        }
        const STEPS: u32 = 64;
        let one = |step: u32| {
            let bytes = payload / count * 2.0 * (f64::from(step) + 0.5) / f64::from(STEPS);
            let w = (bytes / ONE_COLUMN).ceil().clamp(1.0, MOST_COLUMNS);
            let w = w.min((self.devices - self.m).max(1.0));
            (w + self.m.min(self.devices - 1.0)) * ((HEADER + bytes / w) / BLOCK).ceil() * BLOCK
        };
        count * (0..STEPS).map(one).sum::<f64>() / f64::from(STEPS)
    }

    /// Bytes of roots, and of table pages: those with slots that were opened, which follow each other, and freed, which
    /// lie anywhere.
    fn roots(&self, cut: &Cut, counted: &Counted, moved: f64) -> f64 {
        let opened = counted.data_blocks / cut.segment_blocks / counted.checkpoints.max(1.0);
        let of_device = opened * (self.k + self.m) / self.devices;
        let freed = if moved > 0.0 {
            let pages = cut.segments * (self.k + self.m) / self.devices / PAGE;
            touched(pages, of_device)
        } else {
            0.0
        };
        let pages = (of_device / PAGE + freed).max(1.0);
        counted.checkpoints * self.devices * (ROOT + pages * BLOCK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIVEN: Given = Given {
        k: 8.0,
        m: 2.0,
        devices: 10.0,
        slot_overhead: 1.0,
        blocks: 131_072.0,
        fill: 0.0,
        map_to_cache: 0.5,
        memory_bytes: 1e6,
    };
    const CUT: Cut = Cut {
        strip_blocks: 4.0,
        slot_blocks: 256.0,
        segment_blocks: 1920.0,
        node_overhead: 1.0,
        partitions: 64.0,
        segments: 100.0,
    };

    #[test]
    fn what_is_touched_at_random_is_at_most_all() {
        assert!((touched(1000.0, 1.0) - 1.0).abs() < 0.01);
        assert!(touched(1000.0, 1e6) <= 1000.0 && touched(1000.0, 1e6) > 999.0);
        assert_eq!(touched(0.0, 5.0), 0.0);
    }

    /// One checkpoint after every leaf was changed writes the whole map; twice as many write it twice.
    #[test]
    fn checkpoints_write_what_changed_since_the_last() {
        let counted = |checkpoints| Counted {
            host_blocks: 131_072.0,
            data_blocks: 131_072.0,
            records: 100.0,
            checkpoints,
        };
        let (once, leaves) = GIVEN.nodes(&CUT, &counted(1.0), false);
        assert!((leaves - 1024.0).abs() < 1.0 && once > 1024.0 + 64.0);
        let (twice, _) = GIVEN.nodes(&CUT, &counted(2.0), false);
        assert!((twice / once - 2.0).abs() < 0.01);
        let (in_order, leaves) = GIVEN.nodes(&CUT, &counted(2.0), true);
        assert!((leaves - 1026.0).abs() < 1.0 && in_order < once * 1.2);
    }

    /// Records of one column take three of them at m = 2: more records of the same bytes cost headers and rounding.
    #[test]
    fn small_records_cost_their_rounding() {
        let few = GIVEN.records(1e6, 20.0);
        let many = GIVEN.records(1e6, 1000.0);
        assert!(few > 3e6 * 0.8 && few < 3e6 * 1.2, "{few}");
        assert!(many > 1.5 * few, "{many}");
        assert_eq!(GIVEN.records(1e6, 0.0), 0.0);
    }

    #[test]
    fn what_is_moved_is_read_and_written() {
        let counted = |data_blocks| Counted {
            host_blocks: 1e6,
            data_blocks,
            records: 0.0,
            checkpoints: 0.0,
        };
        let plain = GIVEN.account(&CUT, &counted(1e6), false);
        assert!((plain / (1e6 * BLOCK) - 1.25).abs() < 1e-9);
        let cleaned = GIVEN.account(&CUT, &counted(2e6), false);
        let more = (cleaned - 2.0 * plain) / (1e6 * BLOCK);
        // Read once, and of each of 1,042 victims three summaries of eight columns.
        assert!((more - 1.025).abs() < 1e-9, "{more}");
    }
}
