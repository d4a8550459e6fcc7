//! Tells devices which slots are free.
//!
//! Invariant: a trim goes on to its end, whether or not its caller still waits for it, or until the array is exported.

use crate::api::array::Array;
use crate::error::Error;
use crate::home::trim::Trimmed;

impl Array {
    /// Tells every device in use to discard the slots that are free now. What each has done, by index.
    ///
    /// # Errors
    /// [`Error::ReadOnly`], [`Error::Closed`], [`Error::Trimming`].
    pub async fn trim(&self) -> Result<Vec<Trimmed>, Error> {
        self.check_writable()?;
        let array = self.clone();
        let stops = move || array.check_open().is_err();
        self.change_of(async move |home| home.trim(stops).await)
            .await
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::cell::RefCell;
    use std::collections::{BTreeMap, BTreeSet};
    use std::rc::Rc;

    use ashlar_device::{Device, DeviceInfo, DeviceRef, Fault, IoFuture, MemDevice};
    use ashlar_rt::{Buf, Rt, Slice};

    use crate::api::array::Array;
    use crate::api::create::Create;
    use crate::api::volumes::VolumeOptions;
    use crate::options::Settings;

    const MIB: u64 = 1 << 20;

    /// A device that notes what it is told to discard.
    struct Noting(MemDevice, RefCell<Vec<u64>>);

    impl Device for Noting {
        fn info(&self) -> &DeviceInfo {
            self.0.info()
        }
        fn read(&self, offset: u64, buf: Buf) -> IoFuture<(Buf, Result<(), Fault>)> {
            self.0.read(offset, buf)
        }
        fn write(&self, offset: u64, data: Vec<Slice>) -> IoFuture<Result<(), Fault>> {
            self.0.write(offset, data)
        }
        fn flush(&self) -> IoFuture<Result<(), Fault>> {
            self.0.flush()
        }
        fn discard(&self, offset: u64, length: u64) -> IoFuture<Result<(), Fault>> {
            self.1.borrow_mut().push(offset);
            self.0.discard(offset, length)
        }
    }

    /// Each free slot is discarded once, and no other; afterwards every slot is what it was, also in the books.
    #[test]
    fn exactly_the_free_slots_are_discarded() {
        let rt = Rt::simulated(1);
        let handle = rt.clone();
        let disk = |i| {
            Noting(
                MemDevice::new(&format!("mem{i}"), 8 * MIB),
                RefCell::default(),
            )
        };
        let disks: Vec<Rc<Noting>> = (0..4).map(|i| Rc::new(disk(i))).collect();
        rt.block_on(async move {
            let devices = disks.iter().map(|d| d.clone() as DeviceRef).collect();
            let create = Create {
                name: "tank".into(),
                layout: "ec2+1".parse().unwrap(),
                strip_bytes: Some(4096),
                slot_bytes: Some(64 << 10),
                spare: 0,
                domains: Vec::new(),
                settings: Settings::default(),
            };
            let array = Array::create(&handle, devices, create).await.unwrap();
            let options = VolumeOptions {
                size_bytes: 4 * MIB,
                ..VolumeOptions::default()
            };
            array.volume_create("v", options).await.unwrap();
            let v = array.volume("v").unwrap();
            for round in 0..3u8 {
                for at in (0..3 * MIB).step_by(64 << 10) {
                    let data = Buf::copy_of(&vec![round + 1; 64 << 10]).freeze();
                    v.write(at, data, false).await.unwrap();
                }
                v.flush().await.unwrap();
            }
            array.merge().await.unwrap();
            array.wait_idle(&[]).await;
            let home = &array.0.home;
            let books = || {
                let members = home.core.members.iter();
                let books = members.map(|m| home.space.ledger().book(m.index));
                books.collect::<Vec<_>>()
            };
            let free = |index: u16| {
                let slots = &home.core.member(index).slots;
                let mut found = BTreeSet::new();
                while let Some(slot) = slots.free_from(found.last().map_or(0, |s| s + 1)) {
                    found.insert(slot);
                }
                found
            };
            let frees: BTreeMap<u16, BTreeSet<u32>> = (0..4).map(|i| (i, free(i))).collect();
            assert!(frees.values().all(|f| f.len() > 20), "{frees:?}");
            let before = books();
            disks.iter().for_each(|d| d.1.borrow_mut().clear());
            let trimmed = array.trim().await.unwrap();
            for (done, disk) in trimmed.iter().zip(&disks) {
                let (member, slots) = (home.core.member(done.index), &frees[&done.index]);
                let offset = |slot: &u32| member.geometry().slot_offset(*slot);
                let wanted: Vec<u64> = slots.iter().map(offset).collect();
                assert_eq!(*disk.1.borrow(), wanted, "device {}", done.index);
                assert_eq!(done.discarded_bytes, wanted.len() as u64 * (64 << 10));
                assert_eq!(done.left, None);
                assert_eq!(free(done.index), *slots);
            }
            assert_eq!(trimmed.len(), 4);
            assert_eq!(books(), before);
            home.check_books();
            for at in (0..3 * MIB).step_by(64 << 10) {
                assert_eq!(*v.read(at, 64 << 10).await.unwrap(), [3; 64 << 10]);
            }
        });
        rt.shutdown();
    }
}
