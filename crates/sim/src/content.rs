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

fn cell(volume: u16, number: u64, version: Version) -> [u8; 16] {
    let number = u32::try_from(number).expect("simulated volumes are small");
    let first = u64::from(version) | u64::from(number) << 32;
    let check = mix(first ^ mix(u64::from(volume) + 1)) >> 16;
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&first.to_le_bytes());
    bytes[8..].copy_from_slice(&(check | u64::from(volume) << 48).to_le_bytes());
    bytes
}

/// Fills `out` with what version `version` has at `offset` of `volume`.
pub fn fill(volume: u16, offset: u64, version: Version, out: &mut [u8]) {
    if version == 0 {
        out.fill(0);
        return;
    }
    let mut at = offset;
    let mut rest = out;
    while !rest.is_empty() {
        let bytes = cell(volume, at / CELL, version);
        let from = usize::try_from(at % CELL).expect("below 16");
        let len = rest.len().min(16 - from);
        let (head, tail) = rest.split_at_mut(len);
        head.copy_from_slice(&bytes[from..from + len]);
        rest = tail;
        at += len as u64;
    }
}

/// Whether `bytes`, found at `offset` of `volume`, are those of `version`.
pub fn matches(volume: u16, offset: u64, version: Version, bytes: &[u8]) -> bool {
    if version == 0 {
        return bytes.iter().all(|b| *b == 0);
    }
    let mut at = offset;
    let mut rest = bytes;
    while !rest.is_empty() {
        let expected = cell(volume, at / CELL, version);
        let from = usize::try_from(at % CELL).expect("below 16");
        let len = rest.len().min(16 - from);
        if rest[..len] != expected[from..from + len] {
            return false;
        }
        rest = &rest[len..];
        at += len as u64;
    }
    true
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

/// Reads an aligned cell of 16 bytes.
pub fn origin(bytes: &[u8]) -> Origin {
    let word = |from: usize| {
        bytes
            .get(from..from + 8)
            .and_then(|b| b.try_into().ok())
            .map_or(0, u64::from_le_bytes)
    };
    let (first, second) = (word(0), word(8));
    if first == 0 && second == 0 {
        return Origin::Zeros;
    }
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
    for chunk in aligned.chunks(16) {
        let what = match origin(chunk) {
            _ if chunk.len() < 16 => "partial".to_string(),
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
            origin(&bytes[16..]),
            Origin::Write {
                volume: 9,
                offset: 4112,
                version: 5
            }
        );
        bytes[20] ^= 1;
        assert_eq!(origin(&bytes[16..]), Origin::Unknown);
        assert_eq!(origin(&[0; 16]), Origin::Zeros);
        assert!(explain(0, &bytes).contains("MISPLACED by 4096"));
    }
}
