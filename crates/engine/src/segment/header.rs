//! The headers of a segment's slots.
//!
//! Crash argument: a header says which column a slot holds. A record that names a segment is built only after its
//! headers were flushed, with the columns they are written before.

use std::rc::Rc;

use ashlar_format::slot::SlotHeader;
use ashlar_rt::{Buf, Slice};

use crate::segment::table::Core;
use crate::segment::{Column, Pinned, Segment};

/// Writes the headers of a segment's slots, all submitted before this waits.
pub async fn write_headers(core: Rc<Core>, segment: Pinned) {
    let columns = segment.columns.borrow().clone();
    let devices: Vec<u16> = columns.iter().map(|c| c.device).collect();
    let placed = columns.iter().enumerate().filter(|(_, c)| c.is_placed());
    let submit = |(index, column): (usize, &Column)| {
        let header = header_bytes(
            &core.identity.array,
            &segment,
            index,
            *column,
            devices.clone(),
        );
        let member = core.member(column.device);
        let offset = member.geometry().slot_offset(column.slot);
        (column.device, member.write(offset, vec![header]))
    };
    let writes: Vec<_> = placed.map(submit).collect();
    for (device, writing) in writes {
        if writing.await.is_err() {
            core.report_failed(device);
        }
    }
    segment.set_headed();
}

/// The header block of a column's slot.
pub fn header_bytes(
    array: &[u8; 16],
    segment: &Segment,
    index: usize,
    column: Column,
    devices: Vec<u16>,
) -> Slice {
    let header = SlotHeader {
        entry: segment.slot_entry(
            u16::try_from(index).expect("at most 256 columns"),
            column.version,
        ),
        devices,
    };
    Buf::copy_of(&header.encode(array)).freeze()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::testing::bed;

    #[test]
    fn every_slot_says_whose_column_it_holds() {
        let bed = bed(3);
        let segment = bed.segment(5, 2, 1);
        let (core, headed) = (bed.core.clone(), segment.clone());
        bed.rt.block_on(async move {
            write_headers(core, headed.clone()).await;
            headed.headed().await;
        });
        for (index, disk) in (0u16..).zip(&bed.disks) {
            let place = segment.columns.borrow()[usize::from(index)];
            let mut bytes = vec![0; ashlar_format::BLOCK];
            let at = bed.core.member(index).geometry().slot_offset(place.slot);
            disk.peek(at, &mut bytes);
            let core = &bed.core;
            let header =
                SlotHeader::decode(&core.identity.array, core.slot_blocks, &bytes).unwrap();
            assert_eq!(header.entry, segment.slot_entry(index, 1));
            assert_eq!(header.devices, vec![0, 1, 2]);
        }
    }
}
