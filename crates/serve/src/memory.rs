//! Two volumes without devices: [`MemVolume`] keeps its bytes in memory, [`NullVolume`] forgets them.
//! For tests, and to measure what a frontend itself costs.
//!
//! Invariants: every operation completes at its first poll and takes effect when the method is
//! called; a page is present exactly if it was written since it was last trimmed or zeroed whole.

use std::cell::{Cell, RefCell};

use ashlar_rt::{Buf, Slice};

use crate::{Extent, Fut, Volume, VolumeError, VolumeInfo};

const PAGE: usize = 4096;

/// How often each operation was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// [`Volume::read`]
    pub reads: u64,
    /// [`Volume::write`]
    pub writes: u64,
    /// Writes, trims and zeroes that had to be durable.
    pub durable: u64,
    /// [`Volume::flush`]
    pub flushes: u64,
    /// [`Volume::trim`]
    pub trims: u64,
    /// [`Volume::write_zeroes`]
    pub zeroes: u64,
}

/// A volume in memory; space is used where it was written.
#[derive(Debug)]
pub struct MemVolume {
    info: VolumeInfo,
    pages: RefCell<Vec<Option<Box<[u8]>>>>,
    counters: Cell<Counters>,
}

impl MemVolume {
    /// `size_bytes` of zeros.
    pub fn new(size_bytes: u64) -> MemVolume {
        Self::with_info(plain_info(size_bytes))
    }

    /// As [`MemVolume::new`], with all properties chosen.
    ///
    /// # Panics
    /// If the size is beyond this machine's address space.
    pub fn with_info(info: VolumeInfo) -> MemVolume {
        let count = usize::try_from(info.size_bytes.div_ceil(PAGE as u64)).expect("fits in memory");
        let mut pages = Vec::new();
        pages.resize_with(count, || None);
        MemVolume {
            info,
            pages: RefCell::new(pages),
            counters: Cell::default(),
        }
    }

    /// What was asked of it so far.
    pub fn counters(&self) -> Counters {
        self.counters.get()
    }

    fn count(&self, change: impl FnOnce(&mut Counters)) {
        let mut counters = self.counters.get();
        change(&mut counters);
        self.counters.set(counters);
    }

    fn admit(&self, offset: u64, length: u64, change: bool) -> Result<(), VolumeError> {
        if !self.info.contains(offset, length) {
            return Err(VolumeError::OutOfRange);
        }
        if change && self.info.read_only {
            return Err(VolumeError::ReadOnly);
        }
        Ok(())
    }

    fn read_now(&self, offset: u64, length: usize) -> Result<Buf, VolumeError> {
        self.count(|c| c.reads += 1);
        self.admit(offset, length as u64, false)?;
        let mut buf = Buf::zeroed(length);
        let pages = self.pages.borrow();
        for (page, within, at) in pieces(offset, length as u64) {
            if let Some(bytes) = &pages[page] {
                buf[at..at + within.len()].copy_from_slice(&bytes[within]);
            }
        }
        Ok(buf)
    }

    fn write_now(&self, offset: u64, data: &[u8], durable: bool) -> Result<(), VolumeError> {
        self.count(|c| {
            c.writes += 1;
            c.durable += u64::from(durable);
        });
        self.admit(offset, data.len() as u64, true)?;
        let mut pages = self.pages.borrow_mut();
        for (page, within, at) in pieces(offset, data.len() as u64) {
            let bytes = pages[page].get_or_insert_with(|| vec![0; PAGE].into_boxed_slice());
            let length = within.len();
            bytes[within].copy_from_slice(&data[at..at + length]);
        }
        Ok(())
    }

    fn zero_now(&self, offset: u64, length: u64, free: bool) -> Result<(), VolumeError> {
        self.admit(offset, length, true)?;
        let mut pages = self.pages.borrow_mut();
        for (page, within, _) in pieces(offset, length) {
            if free && within.len() == PAGE {
                pages[page] = None;
            } else if let Some(bytes) = &mut pages[page] {
                bytes[within].fill(0);
            } else if !free {
                pages[page] = Some(vec![0; PAGE].into_boxed_slice());
            }
        }
        Ok(())
    }

    fn status_now(&self, offset: u64, length: u64) -> Result<Vec<Extent>, VolumeError> {
        self.admit(offset, length, false)?;
        let pages = self.pages.borrow();
        let mut extents: Vec<Extent> = Vec::new();
        for (page, within, _) in pieces(offset, length) {
            let (length, hole) = (within.len() as u64, pages[page].is_none());
            match extents.last_mut() {
                Some(last) if last.hole == hole => last.length += length,
                _ => extents.push(Extent { length, hole }),
            }
        }
        Ok(extents)
    }
}

fn plain_info(size_bytes: u64) -> VolumeInfo {
    VolumeInfo {
        size_bytes,
        block_bytes: 4096,
        optimal_bytes: 1 << 20,
        read_only: false,
        write_cache: false,
    }
}

/// Cuts a range into pages: page, bytes within it, and where they lie in the range.
fn pieces(
    offset: u64,
    length: u64,
) -> impl Iterator<Item = (usize, std::ops::Range<usize>, usize)> {
    let mut done = 0u64;
    std::iter::from_fn(move || {
        if done >= length {
            return None;
        }
        let at = offset + done;
        let start = (at % PAGE as u64) as usize;
        let take = (PAGE - start).min(usize::try_from(length - done).unwrap_or(PAGE));
        let piece = (
            (at / PAGE as u64) as usize,
            start..start + take,
            done as usize,
        );
        done += take as u64;
        Some(piece)
    })
}

fn ready<T: 'static>(value: T) -> Fut<T> {
    Box::pin(std::future::ready(value))
}

impl Volume for MemVolume {
    fn info(&self) -> VolumeInfo {
        self.info
    }
    fn read(&self, offset: u64, length: usize) -> Fut<Result<Buf, VolumeError>> {
        ready(self.read_now(offset, length))
    }
    fn write(&self, offset: u64, data: Slice, durable: bool) -> Fut<Result<(), VolumeError>> {
        ready(self.write_now(offset, &data, durable))
    }
    fn flush(&self) -> Fut<Result<(), VolumeError>> {
        self.count(|c| c.flushes += 1);
        ready(Ok(()))
    }
    fn trim(&self, offset: u64, length: u64, durable: bool) -> Fut<Result<(), VolumeError>> {
        self.count(|c| {
            c.trims += 1;
            c.durable += u64::from(durable);
        });
        ready(self.zero_now(offset, length, true))
    }
    fn write_zeroes(
        &self,
        offset: u64,
        length: u64,
        durable: bool,
        may_trim: bool,
    ) -> Fut<Result<(), VolumeError>> {
        self.count(|c| {
            c.zeroes += 1;
            c.durable += u64::from(durable);
        });
        ready(self.zero_now(offset, length, may_trim))
    }
    fn block_status(
        &self,
        offset: u64,
        length: u64,
        _most: usize,
    ) -> Fut<Result<Vec<Extent>, VolumeError>> {
        ready(self.status_now(offset, length))
    }
}

/// A volume that reads as zeros and forgets what is written.
#[derive(Debug)]
pub struct NullVolume {
    info: VolumeInfo,
}

impl NullVolume {
    /// A null volume of `size_bytes`.
    pub fn new(size_bytes: u64) -> NullVolume {
        NullVolume {
            info: plain_info(size_bytes),
        }
    }

    fn admit(&self, offset: u64, length: u64) -> Result<(), VolumeError> {
        if self.info.contains(offset, length) {
            Ok(())
        } else {
            Err(VolumeError::OutOfRange)
        }
    }
}

impl Volume for NullVolume {
    fn info(&self) -> VolumeInfo {
        self.info
    }
    fn read(&self, offset: u64, length: usize) -> Fut<Result<Buf, VolumeError>> {
        ready(
            self.admit(offset, length as u64)
                .map(|()| Buf::zeroed(length)),
        )
    }
    fn write(&self, offset: u64, data: Slice, _durable: bool) -> Fut<Result<(), VolumeError>> {
        ready(self.admit(offset, data.len() as u64))
    }
    fn flush(&self) -> Fut<Result<(), VolumeError>> {
        ready(Ok(()))
    }
    fn trim(&self, offset: u64, length: u64, _durable: bool) -> Fut<Result<(), VolumeError>> {
        ready(self.admit(offset, length))
    }
    fn write_zeroes(
        &self,
        offset: u64,
        length: u64,
        _durable: bool,
        _may_trim: bool,
    ) -> Fut<Result<(), VolumeError>> {
        ready(self.admit(offset, length))
    }
    fn block_status(
        &self,
        offset: u64,
        length: u64,
        _most: usize,
    ) -> Fut<Result<Vec<Extent>, VolumeError>> {
        ready(
            self.admit(offset, length)
                .map(|()| vec![Extent { length, hole: true }]),
        )
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn pages_come_and_go_with_writes_and_trims() {
        let volume = MemVolume::new(10 * 4096 + 100);
        volume.write_now(4000, &[7; 5000], false).unwrap();
        assert_eq!(&volume.read_now(3999, 3).unwrap()[..], &[0, 7, 7]);
        let map = |v: &MemVolume| {
            v.status_now(0, 10 * 4096 + 100)
                .unwrap()
                .iter()
                .map(|e| (e.length, e.hole))
                .collect::<Vec<_>>()
        };
        assert_eq!(map(&volume), [(3 * 4096, false), (7 * 4096 + 100, true)]);
        volume.zero_now(4096, 4096, true).unwrap();
        assert_eq!(
            map(&volume),
            [
                (4096, false),
                (4096, true),
                (4096, false),
                (7 * 4096 + 100, true)
            ]
        );
        volume.zero_now(4096, 4096, false).unwrap();
        assert_eq!(map(&volume), [(3 * 4096, false), (7 * 4096 + 100, true)]);
        assert_eq!(
            volume.read_now(10 * 4096, 101).unwrap_err(),
            VolumeError::OutOfRange
        );
        assert_eq!(
            volume.write_now(u64::MAX, &[1], false),
            Err(VolumeError::OutOfRange)
        );
    }
}
