//! Sparse bytes in memory, in regions of 64 KiB.
//!
//! Invariants: a region that is not there is zero; offsets and lengths are whole blocks of 4096.

use std::collections::BTreeMap;
use std::ops::Range;

/// Bytes of a region.
const REGION: usize = 64 << 10;

#[derive(Debug, Default)]
pub(crate) struct Sparse {
    regions: BTreeMap<u64, Box<[u8]>>,
}

/// The pieces of `length` bytes from `offset` by `unit` bytes: which unit, where in it, and where in the range.
pub(crate) fn pieces(
    unit: usize,
    offset: u64,
    length: usize,
) -> impl Iterator<Item = (u64, usize, Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == length {
            return None;
        }
        let at = offset + done as u64;
        let start = usize::try_from(at % unit as u64).expect("below a unit's size");
        let len = (unit - start).min(length - done);
        done += len;
        Some((at / unit as u64, start, done - len..done))
    })
}

/// Removes the regions of `bytes` each that lie whole in the `length` bytes from `offset`; what is left of these at either
/// end lies inside one region.
pub(crate) fn remove_regions<T>(
    regions: &mut BTreeMap<u64, T>,
    bytes: u64,
    offset: u64,
    length: u64,
) -> [Range<u64>; 2] {
    let end = offset + length;
    let (first, last) = (offset.div_ceil(bytes), end / bytes);
    if first > last {
        return [offset..end, end..end]; // inside one region
    }
    let mut tail = regions.split_off(&first);
    regions.append(&mut tail.split_off(&last));
    [offset..first * bytes, last * bytes..end]
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes
        .chunks(512)
        .all(|part| part.iter().fold(0, |any, byte| any | byte) == 0)
}

impl Sparse {
    pub(crate) fn read(&self, offset: u64, out: &mut [u8]) {
        for (region, start, range) in pieces(REGION, offset, out.len()) {
            let out = &mut out[range];
            match self.regions.get(&region) {
                Some(bytes) => out.copy_from_slice(&bytes[start..start + out.len()]),
                None => out.fill(0),
            }
        }
    }

    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) {
        for (region, start, range) in pieces(REGION, offset, data.len()) {
            let data = &data[range];
            match self.regions.get_mut(&region) {
                Some(bytes) => bytes[start..start + data.len()].copy_from_slice(data),
                None if is_zero(data) => {}
                None if data.len() == REGION => {
                    self.regions.insert(region, data.into());
                }
                None => {
                    let mut bytes = vec![0; REGION].into_boxed_slice();
                    bytes[start..start + data.len()].copy_from_slice(data);
                    self.regions.insert(region, bytes);
                }
            }
        }
    }

    /// Makes the range zero and frees whole regions of it.
    pub(crate) fn clear(&mut self, offset: u64, length: u64) {
        for edge in remove_regions(&mut self.regions, REGION as u64, offset, length) {
            self.zero(edge.start, edge.end);
        }
    }

    /// Makes a range inside one region zero.
    fn zero(&mut self, from: u64, to: u64) {
        let region = from / REGION as u64;
        if let (true, Some(bytes)) = (from < to, self.regions.get_mut(&region)) {
            let start = usize::try_from(from % REGION as u64).expect("below a region's size");
            let len = usize::try_from(to - from).expect("below a region's size");
            bytes[start..start + len].fill(0);
        }
    }

    /// Bytes of memory in use.
    #[cfg(test)]
    fn bytes(&self) -> u64 {
        (self.regions.len() * REGION) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_plain_bytes() {
        const SIZE: usize = 10 * REGION;
        let (mut sparse, mut plain) = (Sparse::default(), vec![0u8; SIZE]);
        let mut state = 1u64;
        let mut below = |bound: usize| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(99);
            usize::try_from(state >> 33).expect("small") % bound
        };
        for round in 0..2000 {
            let start = below(SIZE / 4096) * 4096;
            let len = (below(50) * 4096).min(SIZE - start);
            let range = start..start + len;
            match below(3) {
                0 => {
                    let fill = if below(4) == 0 { 0 } else { round as u8 };
                    plain[range.clone()].fill(fill);
                    sparse.write(start as u64, &plain[range]);
                }
                1 => {
                    plain[range].fill(0);
                    sparse.clear(start as u64, len as u64);
                }
                _ => {
                    let mut out = vec![1; len];
                    sparse.read(start as u64, &mut out);
                    assert!(out == plain[range], "round {round}");
                }
            }
        }
        sparse.clear(0, SIZE as u64);
        assert_eq!(sparse.bytes(), 0);
        sparse.write(0, &[0; REGION]);
        assert_eq!(sparse.bytes(), 0, "zeros take no room");
    }
}
