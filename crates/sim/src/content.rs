//! What clients write: bytes that say which volume, which place in it and which write they belong
//! to, so that a wrong answer explains itself.
//!
//! Invariants: a byte's value follows from (volume, absolute offset, version) alone, so any cut of
//! any write can be checked; version 0 is zeros (never written, trimmed, zeroed). Every aligned
//! 16-byte cell carries version, cell number, volume and a check over the three.

use crate::rng::mix;

/// Identifies a write; 0 is zeros.
pub type Version = u32;

/// Bytes that identify themselves.
pub const CELL: u64 = 16;

/// Where the cells begin that a range begins or ends inside of.
pub fn cut_cells(offset: u64, length: u64) -> impl Iterator<Item = u64> {
    let edges = [offset, offset + length].into_iter();
    let inside = edges.filter(|edge| !edge.is_multiple_of(CELL));
    inside.map(|edge| edge / CELL * CELL)
}

/// What the cells of a volume's version hold, one after the other.
#[derive(Clone, Copy)]
struct Cells {
    volume: u64,
    salt: u64,
    version: u64,
}

impl Cells {
    fn new(volume: u16, version: Version) -> Cells {
        Cells {
            volume: u64::from(volume) << 48,
            salt: mix(u64::from(volume) + 1),
            version: u64::from(version),
        }
    }

    /// The bytes of cell `number`, as one number.
    fn cell(self, number: u64) -> u128 {
        debug_assert!(number >> 32 == 0, "simulated volumes are small");
        let first = self.version | number << 32;
        let second = mix(first ^ self.salt) >> 16 | self.volume;
        u128::from(first) | u128::from(second) << 64
    }

    /// `len` bytes of the cell that `at` lies in, from there on.
    fn part(self, at: u64, len: usize) -> ([u8; 16], std::ops::Range<usize>) {
        let from = usize::try_from(at % CELL).expect("below 16");
        (self.cell(at / CELL).to_le_bytes(), from..from + len)
    }
}

/// Bytes of a range of `len` at `offset` that come before its first whole cell.
fn head(offset: u64, len: usize) -> usize {
    let head = offset.next_multiple_of(CELL) - offset;
    usize::try_from(head).expect("below 16").min(len)
}

/// Fills `out` with what version `version` has at `offset` of `volume`.
pub fn fill(volume: u16, offset: u64, version: Version, out: &mut [u8]) {
    if version == 0 {
        out.fill(0);
        return;
    }
    let cells = Cells::new(volume, version);
    let (head, rest) = out.split_at_mut(head(offset, out.len()));
    let (whole, tail) = rest.as_chunks_mut::<16>();
    if !head.is_empty() {
        let (bytes, range) = cells.part(offset, head.len());
        head.copy_from_slice(&bytes[range]);
    }
    let mut at = offset + head.len() as u64;
    for cell in whole {
        *cell = cells.cell(at / CELL).to_le_bytes();
        at += CELL;
    }
    if !tail.is_empty() {
        let (bytes, range) = cells.part(at, tail.len());
        tail.copy_from_slice(&bytes[range]);
    }
}

/// Whether `bytes`, found at `offset` of `volume`, are those of `version`.
pub fn matches(volume: u16, offset: u64, version: Version, bytes: &[u8]) -> bool {
    if version == 0 {
        return zeros(bytes);
    }
    let cells = Cells::new(volume, version);
    let same = |at: u64, found: &[u8]| {
        let (bytes, range) = cells.part(at, found.len());
        found.is_empty() || found == &bytes[range]
    };
    let (head, rest) = bytes.split_at(head(offset, bytes.len()));
    let (whole, tail) = rest.as_chunks::<16>();
    let first = offset + head.len() as u64;
    let last = first + whole.len() as u64 * CELL;
    same(offset, head)
        && same(last, tail)
        && whole
            .iter()
            .zip(first / CELL..)
            .all(|(cell, number)| u128::from_le_bytes(*cell) == cells.cell(number))
}

/// Whether `bytes` are zeros.
pub fn zeros(bytes: &[u8]) -> bool {
    let (whole, rest) = bytes.as_chunks::<64>();
    whole
        .iter()
        .all(|part| part.iter().fold(0, |any, byte| any | byte) == 0)
        && rest.iter().all(|byte| *byte == 0)
}

/// What an aligned cell says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Sixteen zero bytes.
    Zeros,
    /// A write's bytes.
    Write {
        /// The volume written to.
        volume: u16,
        /// Where in it, in bytes.
        offset: u64,
        /// By which write.
        version: Version,
    },
    /// Nothing a client ever wrote as a whole cell.
    Unknown,
}

/// Reads an aligned cell.
pub fn origin(bytes: &[u8; 16]) -> Origin {
    let both = u128::from_le_bytes(*bytes);
    if both == 0 {
        return Origin::Zeros;
    }
    let word = |shift: u32| u64::try_from(both >> shift & u128::from(u64::MAX)).unwrap_or(0);
    let (first, second) = (word(0), word(64));
    let volume = u16::try_from(second >> 48).unwrap_or(0);
    let version = u32::try_from(first & 0xFFFF_FFFF).unwrap_or(0);
    if second & 0xFFFF_FFFF_FFFF != mix(first ^ mix(u64::from(volume) + 1)) >> 16 {
        return Origin::Unknown;
    }
    Origin::Write {
        volume,
        offset: (first >> 32) * CELL,
        version,
    }
}

/// Says what `bytes`, found at `offset`, are made of: a few runs, in words.
pub fn explain(offset: u64, bytes: &[u8]) -> String {
    let mut runs: Vec<(u64, u64, String)> = Vec::new();
    let skip = (CELL - offset % CELL) % CELL;
    let mut at = offset + skip;
    let aligned = bytes
        .get(usize::try_from(skip).unwrap_or(0)..)
        .unwrap_or(&[]);
    let (cells, tail) = aligned.as_chunks::<16>();
    let tail = (!tail.is_empty()).then_some(None);
    for cell in cells.iter().map(Some).chain(tail) {
        let what = match cell.map_or(Origin::Unknown, origin) {
            _ if cell.is_none() => "partial".to_string(),
            Origin::Zeros => "zeros".to_string(),
            Origin::Unknown => "foreign or mixed bytes".to_string(),
            Origin::Write {
                volume,
                offset,
                version,
            } if offset == at => {
                format!("volume {volume} version {version}")
            }
            Origin::Write {
                volume,
                offset,
                version,
            } => {
                format!(
                    "volume {volume} version {version} MISPLACED by {}",
                    offset.wrapping_sub(at) as i64
                )
            }
        };
        match runs.last_mut() {
            Some(last) if last.2 == what => last.1 = at + 16,
            _ => runs.push((at, at + 16, what)),
        }
        at += CELL;
    }
    let mut text: Vec<String> = runs
        .iter()
        .take(8)
        .map(|(from, to, what)| format!("{from}..{to}: {what}"))
        .collect();
    if runs.len() > 8 {
        text.push(format!("and {} more runs", runs.len() - 8));
    }
    text.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_cut_of_a_write_matches_itself_and_nothing_else() {
        let mut whole = vec![0; 4096];
        fill(3, 8192, 77, &mut whole);
        for (from, to) in [(0, 4096), (1, 2), (15, 17), (100, 4000), (4095, 4096)] {
            let at = 8192 + from as u64;
            assert!(matches(3, at, 77, &whole[from..to]));
            if to - from > 2 {
                assert!(!matches(3, at, 78, &whole[from..to]));
                assert!(!matches(4, at, 77, &whole[from..to]));
                assert!(!matches(3, at + 16, 77, &whole[from..to]));
                assert!(!matches(3, at, 0, &whole[from..to]));
            }
        }
    }

    #[test]
    fn a_cell_says_where_it_is_from() {
        let mut bytes = vec![0; 32];
        fill(9, 4096, 5, &mut bytes);
        assert_eq!(
            origin(&bytes.as_chunks().0[1]),
            Origin::Write {
                volume: 9,
                offset: 4112,
                version: 5
            }
        );
        bytes[20] ^= 1;
        assert_eq!(origin(&bytes.as_chunks().0[1]), Origin::Unknown);
        assert_eq!(origin(&[0; 16]), Origin::Zeros);
        assert!(explain(0, &bytes).contains("MISPLACED by 4096"));
    }
}
