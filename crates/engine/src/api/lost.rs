//! What cannot be read of an array: the list of it, and reading it again.
//!
//! Invariant: what can be read leaves the list, and what was read and cannot be is on it (R20).

use ashlar_block::VolumeError;
use ashlar_format::BLOCK_U64;

use crate::api::array::Array;
use crate::home::Home;
use crate::status::LostRange;

/// What was lost is read again in pieces of so many bytes.
const PIECE: u64 = 128 << 10;

/// How many blocks are read singly at most, of pieces that cannot be read as a whole.
const SINGLY: u32 = 1 << 13;

impl Array {
    /// Reads these ranges, of which something could not be read before: what can be read leaves the list of what is lost,
    /// and what cannot is listed. In pieces, and the blocks of pieces in which anything is lost singly; not without end,
    /// for the nodes above them are tried again for each.
    pub async fn read_lost(&self, ranges: &[LostRange]) {
        let mut singly = SINGLY;
        for range in ranges {
            // A volume that is closed, or smaller now, has nothing of it.
            let _ = self.read_again(range, &mut singly).await;
        }
    }

    async fn read_again(&self, range: &LostRange, singly: &mut u32) -> Result<(), VolumeError> {
        let Some(volume) = self.volume(&range.volume) else {
            return Ok(());
        };
        let info = volume.info();
        let end = (range.offset_bytes + range.length_bytes).min(info.size_bytes);
        let block = u64::from(info.block_bytes);
        let piece = block.max(PIECE / block * block);
        for from in (range.offset_bytes..end).step_by(piece as usize) {
            let upto = end.min(from + piece);
            match volume.read(from, (upto - from) as usize).await {
                Err(VolumeError::Lost) if *singly > 0 => {}
                Ok(_) | Err(VolumeError::Lost) => continue,
                Err(error) => return Err(error),
            }
            for at in (from..upto).step_by(block as usize) {
                *singly = singly.saturating_sub(1);
                let _ = volume.read(at, block as usize).await; // what fails is listed by it
            }
        }
        Ok(())
    }

    /// Reads what is listed as lost each time that a slow device is in use again.
    pub(super) async fn read_what_slow_devices_had(self) {
        let home = self.0.home.clone();
        while !home.core.closed.get() {
            home.slow.back.wait().await;
            if !home.core.closed.get() {
                self.read_lost_again();
            }
        }
    }

    /// Reads what is listed as lost: a device is back that may have some of it.
    pub(super) fn read_lost_again(&self) {
        let again = &self.0.home.core.bad.again;
        again.set(again.get() + 1);
        if again.get() > 1 {
            return; // it is under way, and goes over all once more
        }
        let array = self.clone();
        self.0.home.core.rt.spawn(async move {
            let home = &array.0.home;
            let again = &home.core.bad.again;
            loop {
                let asked = again.get();
                array.read_lost(&lost_ranges(home)).await;
                if again.get() == asked || home.core.closed.get() {
                    break again.set(0);
                }
            }
        });
    }
}

/// What cannot be read, as far as it was tried.
pub(super) fn lost_ranges(home: &Home) -> Vec<LostRange> {
    let catalog = home.catalog.borrow();
    let mut ranges: Vec<LostRange> = Vec::new();
    for (tree, address) in home.core.bad.lost.borrow().iter() {
        let Some(volume) = catalog.volumes.iter().find(|v| v.number == *tree) else {
            continue;
        };
        let unit = u64::from(volume.block_blocks) * BLOCK_U64;
        let offset = address * unit;
        match ranges.last_mut() {
            Some(last)
                if last.volume == volume.name
                    && last.offset_bytes + last.length_bytes == offset =>
            {
                last.length_bytes += unit
            }
            _ => ranges.push(LostRange {
                volume: volume.name.clone(),
                offset_bytes: offset,
                length_bytes: unit,
            }),
        }
    }
    ranges
}
