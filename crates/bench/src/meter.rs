//! A device that counts what passes through it to another, by the region of the array's format that
//! is read or written.
//!
//! **Invariants**: it changes neither content nor time; before [`Meter::lay_out`] everything counts
//! as roots. Data and map slots are told apart by the size of the first write after a slot's
//! header: nodes are written in strips of one block, so strips of data must be larger.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use ashlar_device::{Device, DeviceInfo, Fault, IoFuture, ModelDevice};
use ashlar_rt::{BLOCK, Buf, Slice};
use serde::Serialize;

/// Reads and writes of one region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Traffic {
    /// Reads.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
}

impl Traffic {
    fn combine(self, other: Traffic, with: impl Fn(u64, u64) -> u64) -> Traffic {
        Traffic {
            reads: with(self.reads, other.reads),
            read_bytes: with(self.read_bytes, other.read_bytes),
            writes: with(self.writes, other.writes),
            written_bytes: with(self.written_bytes, other.written_bytes),
        }
    }
}

/// What went to a device, or to all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Regions {
    /// Slots of data segments, with their headers and summaries.
    pub data: Traffic,
    /// Slots of metadata segments: map, liveness, catalog.
    pub map: Traffic,
    /// Both journal rings.
    pub journal: Traffic,
    /// Superblocks, roots, slot tables.
    pub roots: Traffic,
    /// Flushes.
    pub flushes: u64,
}

impl Regions {
    fn combine(self, other: Regions, with: impl Fn(u64, u64) -> u64 + Copy) -> Regions {
        Regions {
            data: self.data.combine(other.data, with),
            map: self.map.combine(other.map, with),
            journal: self.journal.combine(other.journal, with),
            roots: self.roots.combine(other.roots, with),
            flushes: with(self.flushes, other.flushes),
        }
    }

    /// The sum.
    pub fn plus(self, other: Regions) -> Regions {
        self.combine(other, |a, b| a + b)
    }

    /// What was added since `before`.
    pub fn since(self, before: Regions) -> Regions {
        self.combine(before, |a, b| a - b)
    }

    /// All regions together.
    pub fn total(self) -> Traffic {
        let add = |a, b| a + b;
        let slots = self.data.combine(self.map, add);
        slots.combine(self.journal, add).combine(self.roots, add)
    }
}

/// Where the regions of a device are, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Borders {
    /// Begin and end of the journal's rings.
    pub journal: (u64, u64),
    /// Begin of the first slot.
    pub slots: u64,
    /// End of the last slot.
    pub end: u64,
    /// Bytes of a slot.
    pub slot_bytes: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Region {
    Data,
    Map,
    Journal,
    Roots,
}

/// The device.
pub struct Meter {
    inner: Rc<ModelDevice>,
    borders: Cell<Option<Borders>>,
    /// For each slot, whether it belongs to a metadata segment.
    is_map: RefCell<Vec<bool>>,
    regions: Cell<Regions>,
}

impl Meter {
    /// Counts what goes to `inner`.
    pub fn new(inner: Rc<ModelDevice>) -> Rc<Meter> {
        Rc::new(Meter {
            inner,
            borders: Cell::new(None),
            is_map: RefCell::default(),
            regions: Cell::default(),
        })
    }

    /// Says where the regions are.
    pub fn lay_out(&self, borders: Borders) {
        let slots = (borders.end - borders.slots) / borders.slot_bytes;
        *self.is_map.borrow_mut() = vec![false; usize::try_from(slots).expect("slots fit memory")];
        self.borders.set(Some(borders));
    }

    /// What passed so far.
    pub fn regions(&self) -> Regions {
        self.regions.get()
    }

    /// Nanoseconds that the device has been kept busy.
    pub fn busy(&self) -> u64 {
        self.inner.counters().busy
    }

    /// Writes that the model charged as random ones.
    pub fn scattered(&self) -> u64 {
        self.inner.counters().scattered_writes
    }

    /// The region of an offset; a write's first slice tells what kind of slot it is.
    fn region(&self, offset: u64, first_write: Option<usize>) -> Region {
        let Some(borders) = self.borders.get() else {
            return Region::Roots;
        };
        let (begin, end) = borders.journal;
        if (begin..end).contains(&offset) {
            return Region::Journal;
        }
        if !(borders.slots..borders.end).contains(&offset) {
            return Region::Roots;
        }
        let within = (offset - borders.slots) % borders.slot_bytes;
        let slot = usize::try_from((offset - borders.slots) / borders.slot_bytes);
        let slot = slot.expect("slots fit memory");
        let mut is_map = self.is_map.borrow_mut();
        if let Some(bytes) = first_write
            && within == BLOCK as u64
        {
            is_map[slot] = bytes == BLOCK;
        }
        if is_map[slot] {
            Region::Map
        } else {
            Region::Data
        }
    }

    fn count(&self, region: Region, change: impl FnOnce(&mut Traffic)) {
        let mut regions = self.regions.get();
        change(match region {
            Region::Data => &mut regions.data,
            Region::Map => &mut regions.map,
            Region::Journal => &mut regions.journal,
            Region::Roots => &mut regions.roots,
        });
        self.regions.set(regions);
    }
}

impl Device for Meter {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }

    fn read(&self, offset: u64, buf: Buf) -> IoFuture<(Buf, Result<(), Fault>)> {
        self.count(self.region(offset, None), |t| {
            t.reads += 1;
            t.read_bytes += buf.len() as u64;
        });
        self.inner.read(offset, buf)
    }

    fn write(&self, offset: u64, data: Vec<Slice>) -> IoFuture<Result<(), Fault>> {
        let bytes: u64 = data.iter().map(|slice| slice.len() as u64).sum();
        let region = self.region(offset, data.first().map(|slice| slice.len()));
        self.count(region, |t| {
            t.writes += 1;
            t.written_bytes += bytes;
        });
        self.inner.write(offset, data)
    }

    fn flush(&self) -> IoFuture<Result<(), Fault>> {
        let mut regions = self.regions.get();
        regions.flushes += 1;
        self.regions.set(regions);
        self.inner.flush()
    }

    fn discard(&self, offset: u64, length: u64) -> IoFuture<Result<(), Fault>> {
        self.inner.discard(offset, length)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use ashlar_device::{ModelOptions, Profile};
    use ashlar_rt::Rt;

    #[test]
    fn traffic_is_told_apart_by_where_it_goes() {
        let rt = Rt::simulated(1);
        let model = ModelDevice::new(&rt, "m", Profile::DATA24, ModelOptions::new(8 << 20));
        let meter = Meter::new(Rc::new(model));
        let slot_bytes = 1 << 20;
        meter.lay_out(Borders {
            journal: (65_536, 512 << 10),
            slots: 1 << 20,
            end: 7 << 20,
            slot_bytes,
        });
        let device = meter.clone();
        rt.block_on(async move {
            let write = |offset, bytes| device.write(offset, vec![Slice::zeroed(bytes)]);
            write(0, 4096).await.unwrap();
            write(65_536, 8192).await.unwrap();
            write(512 << 10, 4096).await.unwrap(); // the second region
            write(1 << 20, 4096).await.unwrap(); // a header
            write((1 << 20) + 4096, 16_384).await.unwrap();
            write((2 << 20) + 4096, 4096).await.unwrap(); // a node
            write(7 << 20, 4096).await.unwrap();
            device.read(2 << 20, Buf::zeroed(4096)).await.1.unwrap();
            device.flush().await.unwrap();
        });
        let regions = meter.regions();
        assert_eq!(
            (regions.roots.writes, regions.roots.written_bytes),
            (3, 12_288)
        );
        assert_eq!(
            (regions.journal.writes, regions.journal.written_bytes),
            (1, 8192)
        );
        assert_eq!(
            (regions.data.writes, regions.data.written_bytes),
            (2, 20_480)
        );
        assert_eq!((regions.map.writes, regions.map.reads), (1, 1));
        assert_eq!((regions.flushes, regions.total().writes), (1, 7));
        assert_eq!(regions.since(regions), Regions::default());
    }
}
