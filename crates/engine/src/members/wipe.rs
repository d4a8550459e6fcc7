//! Erases what says that a device belongs to an array.
//!
//! Invariant: each of the two superblocks is erased also if the other could not be: either is found.

use ashlar_device::{DeviceRef, Fault};
use ashlar_format::BLOCK;
use ashlar_format::geometry::super_bytes;
use ashlar_rt::Buf;

use crate::members::{DEADLINE, Member};

/// Wipes both superblocks of a device that no open array uses, and what else is recognisable at its ends: no array is
/// found on it any more. The one is wiped also if the other could not be.
///
/// # Errors
/// What the device answered first.
pub async fn wipe(device: &DeviceRef) -> Result<(), Fault> {
    let size = device.info().size_bytes;
    let mut outcome = Ok(());
    for offset in [0, size.saturating_sub(super_bytes(size))] {
        let zero = vec![Buf::zeroed(BLOCK).freeze()];
        let written = device.write(offset, zero).await;
        outcome = outcome.and(written).and(device.flush().await);
    }
    outcome.and(device.erase().await)
}

impl Member {
    /// Erases what is recognisable at the ends of the device, of a whole disk its partition table too: nothing is
    /// written to it any more.
    pub async fn erase(&self) -> Result<(), Fault> {
        let device = self.device(self.is_written())?;
        if self.keeps_writes() {
            return Ok(());
        }
        let erased = self.rt.timeout(DEADLINE, device.erase()).await;
        erased.unwrap_or(Err(Fault::Timeout))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::rc::Rc;

    use ashlar_device::{Effect, FaultFilter, MemDevice, OpKind, Rule};
    use ashlar_rt::Rt;

    use super::*;

    #[test]
    fn both_ends_are_wiped_also_if_one_refuses() {
        const SIZE: u64 = 8 << 20;
        let memory = Rc::new(MemDevice::new("mem", SIZE));
        let last = SIZE - super_bytes(SIZE);
        memory.poke(0, &[7; BLOCK]);
        memory.poke(last, &[7; BLOCK]);
        let faulty = FaultFilter::new(memory.clone());
        faulty.add(Rule::within(
            OpKind::Write,
            0..1,
            Effect::Fail(Fault::ReadOnly),
        ));
        let device: DeviceRef = faulty;
        let rt = Rt::simulated(1);
        let wiped = rt.block_on(async move { wipe(&device).await });
        assert_eq!(wiped, Err(Fault::ReadOnly));
        let at = |offset: u64| {
            let mut bytes = [1; BLOCK];
            memory.peek(offset, &mut bytes);
            bytes[0]
        };
        assert_eq!((at(0), at(last)), (7, 0));
        let device: DeviceRef = memory.clone();
        rt.block_on(async move { wipe(&device).await }).unwrap();
        assert_eq!((at(0), at(last)), (0, 0));
    }
}
