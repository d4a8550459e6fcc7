//! What the demonstration stores: real files of this machine, one after another, as an archive
//! would hold them; incompressible bytes where there are not enough.
//!
//! **Invariants**: every piece has [`PIECE`] bytes; what was read once is what is compared with
//! later, whatever happens to the files meanwhile.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use ashlar_rt::{Buf, Slice};

/// Bytes written or read at once.
pub(super) const PIECE: usize = 512 << 10;
/// Files larger than this are left out, so that there are many.
const LARGEST: u64 = 32 << 20;
/// Directories under which a Linux machine has real files.
const PLACES: [&str; 4] = ["/usr/lib", "/usr/bin", "/usr/share", "/usr/libexec"];

/// The content, and what it is made of.
#[derive(Debug)]
pub(super) struct Content {
    /// The bytes, in pieces.
    pub(super) pieces: Vec<Slice>,
    /// Files in it.
    pub(super) files: u64,
    /// Bytes that had to be generated.
    pub(super) generated: u64,
}

impl Content {
    /// All bytes.
    pub(super) fn bytes(&self) -> u64 {
        (self.pieces.len() * PIECE) as u64
    }

    /// Collects `bytes`, rounded up to whole pieces.
    pub(super) fn collect(bytes: u64) -> Content {
        let count = usize::try_from(bytes.div_ceil(PIECE as u64))
            .unwrap_or(1)
            .max(1);
        let mut packer = Packer {
            pieces: Vec::new(),
            present: Buf::zeroed(PIECE),
            at: 0,
            count,
        };
        let mut files = 0;
        let mut todo: Vec<PathBuf> = PLACES.iter().rev().map(PathBuf::from).collect();
        if let Ok(program) = std::env::current_exe() {
            files += u64::from(packer.take_file(&program).is_some());
        }
        while let (Some(dir), false) = (todo.pop(), packer.full()) {
            let Ok(entries) = std::fs::read_dir(&dir) else {
                continue;
            };
            for entry in entries.flatten() {
                let Ok(kind) = entry.file_type() else {
                    continue;
                };
                if kind.is_dir() {
                    todo.push(entry.path());
                } else if kind.is_file() && !packer.full() {
                    files += u64::from(packer.take_file(&entry.path()).is_some());
                }
            }
        }
        let generated = packer.fill_up();
        Content {
            pieces: packer.pieces,
            files,
            generated,
        }
    }
}

struct Packer {
    pieces: Vec<Slice>,
    present: Buf,
    at: usize,
    count: usize,
}

impl Packer {
    fn full(&self) -> bool {
        self.pieces.len() >= self.count
    }

    fn take_file(&mut self, path: &Path) -> Option<()> {
        let mut file = File::open(path).ok()?;
        let length = file.metadata().ok()?.len();
        if length == 0 || length > LARGEST {
            return None;
        }
        loop {
            let read = file.read(&mut self.present[self.at..]).ok()?;
            self.at += read;
            if self.at == PIECE {
                self.turn();
            }
            if read == 0 || self.full() {
                return Some(());
            }
        }
    }

    fn turn(&mut self) {
        let piece = std::mem::replace(&mut self.present, Buf::zeroed(PIECE));
        self.pieces.push(piece.freeze());
        self.at = 0;
    }

    fn fill_up(&mut self) -> u64 {
        let mut generated = 0;
        while !self.full() {
            let rest = &mut self.present[self.at..];
            generated += rest.len() as u64;
            fill(self.pieces.len() as u64, rest);
            self.turn();
        }
        generated
    }
}

/// Fills `out` with bytes that follow from `seed` and do not compress (splitmix64).
pub(super) fn fill(seed: u64, out: &mut [u8]) {
    let mut state = seed.wrapping_mul(0xD6E8_FEB8_6659_FD93);
    for word in out.chunks_mut(8) {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        word.copy_from_slice(&(z ^ (z >> 31)).to_le_bytes()[..word.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_has_the_size_asked_for_and_holds_this_program() {
        let content = Content::collect(3 * PIECE as u64 - 7);
        assert_eq!(content.pieces.len(), 3);
        assert!(content.pieces.iter().all(|piece| piece.len() == PIECE));
        assert!(content.files > 0 || content.generated == content.bytes());
    }

    #[test]
    fn generated_bytes_follow_from_the_seed() {
        let (mut a, mut b, mut c) = ([0u8; 37], [0u8; 37], [0u8; 37]);
        fill(1, &mut a);
        fill(1, &mut b);
        fill(2, &mut c);
        assert_eq!(a, b);
        assert_ne!(a, c);
    }
}
