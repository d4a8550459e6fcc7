//! The load of each row.

use super::values::Kind;
use crate::load::{Durability, Load, Op, Pattern};

const BLOCK: u64 = 4096;
/// Bytes of a small operation, and of a large one.
pub(super) const SMALL: usize = 4096;
pub(super) const LARGE: usize = 128 << 10;

/// The load of a row.
pub(super) fn load_of(kind: Kind, volume_bytes: u64, depth: usize, overwrites: f64) -> Load {
    let blocks = volume_bytes / BLOCK;
    // Long beside what is in flight, so that neither end shows.
    let many = 16 * depth as u64;
    let small = Load {
        op: Op::Write,
        pattern: Pattern::Random,
        bytes: SMALL,
        depth,
        durability: Durability::Cached,
        warm: (blocks / 2).max(many / 2),
        count: blocks.max(many),
    };
    let large = Load {
        depth: depth.div_ceil(16),
        pattern: Pattern::Sequential,
        bytes: LARGE,
        warm: volume_bytes / LARGE as u64 / 4,
        count: volume_bytes / LARGE as u64 * 3 / 4,
        ..small
    };
    match kind {
        Kind::Read | Kind::DegradedRead => Load {
            op: Op::Read,
            ..small
        },
        Kind::Fresh | Kind::DegradedWrite => small,
        Kind::Mixed => Load {
            op: Op::Mixed(70),
            ..small
        },
        Kind::Sustained(_) => {
            let half = (blocks as f64 * overwrites / 2.0) as u64;
            Load {
                warm: half,
                count: half,
                ..small
            }
        }
        Kind::SequentialWrite => large,
        Kind::SequentialRead | Kind::Rebuild => Load {
            op: Op::Read,
            ..large
        },
        Kind::Durable(depth) => {
            let count = (blocks / 8).min(2000 * u64::from(depth));
            Load {
                depth: usize::from(depth),
                durability: Durability::Durable,
                warm: count / 4,
                count,
                ..small
            }
        }
    }
}
