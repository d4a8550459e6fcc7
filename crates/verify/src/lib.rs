//! The independent offline verifier: its own reading of docs/format.md, its own arithmetic, none of the
//! engine's crates. What it and the engine agree on has been written twice.
//!
//! [`verify`] takes the devices of one array that is not in use, reads whatever there is to read, and says
//! what is lost, contradictory or damaged. [`map()`] says where a volume's blocks lie.
//!
//! **Invariants**
//! - Nothing is written.
//! - No bytes whatever make it panic; what does not make sense is a finding.
//! - The journal is not replayed. Of an array that was not closed cleanly, what its newest root says is
//!   checked; what was acknowledged later is not looked at, and the report says so.

mod array;
mod catalog;
mod code;
mod digest;
mod gf;
mod journal;
mod liveness;
mod map;
mod members;
mod node;
mod report;
mod root;
mod slots;
mod source;
mod stripes;
mod strips;
mod superblock;
#[cfg(test)]
mod tests;
mod tree;
mod wire;

pub use digest::{NodeAt, StripBlock};
pub use map::{Extent, VolumeMap, map};
pub use report::{At, Counts, Finding, Kind, Report, SHOWN, Severity};
pub use source::{FileSource, Source, Unreadable};

use array::Array;
use strips::RowCache;
use tree::Walk;

/// Checks the array that these devices are.
pub fn verify(devices: &[&dyn Source]) -> Report {
    let mut report = Report::default();
    // Whatever ends the check is in the report as well.
    let _ = check(devices, &mut report);
    report
}

fn check(devices: &[&dyn Source], report: &mut Report) -> Option<()> {
    let members = members::assemble(devices, report)?;
    let mut array = Array::open(members, report)?;
    let rows = RowCache::default();
    let mut walk = Walk::new(&mut array, &rows, report);
    let volumes = catalog::volumes(&mut walk)?;
    walk.report.counts.volumes = volumes.len() as u64;
    for listed in &volumes {
        let (mut blocks, mut nodes) = (0u64, 0);
        for (partition, top) in (0u16..).zip(&listed.maps) {
            let mapped = walk.map(&listed.volume, partition, top);
            blocks += mapped.blocks;
            nodes += mapped.nodes;
        }
        let at = At::Volume {
            volume: listed.volume.number,
            block: 0,
        };
        let known = !walk.lost_entries;
        if known && blocks.checked_mul(listed.block_bytes) != Some(listed.mapped_bytes) {
            walk.report.find(Kind::MappedBytes).at(at);
        }
        if known && nodes != listed.map_nodes {
            walk.report.find(Kind::MapNodes).at(at);
        }
    }
    let whole = !walk.lost_entries;
    array.compare_liveness(whole, report);
    array.check_stripes(report);
    Some(())
}
