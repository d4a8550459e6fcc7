//! Checksums and digests of blocks, nodes and superblocks.
//!
//! **What is hashed.** Every keyed digest covers, in this order, the parts one after the other, the
//! context, and the length of the context (8 bytes, little-endian). The context says what the bytes
//! are and where they belong (a volume and an address, a node and its place), so that a block read
//! from the wrong place does not verify. It stands last so that whole chunks of a block begin where
//! the lanes of a vector want them: BLAKE3 of 4 KiB takes less than half the time that way.
//!
//! - [`Kind::Blake3`]: keyed BLAKE3 with the 32-byte key; cryptographic.
//! - [`Kind::Xxh3`]: XXH3 with 128 bits. Its seed is XXH3-64 (seed 0) of the key; the result is the
//!   canonical (big-endian) form in bytes 0..16, and bytes 16..32 are zero. Fast, **not**
//!   cryptographic: it finds accidents, not forgeries.
//!
//! **Invariants.**
//! - A digest depends on the key, on the context with its length, and on the concatenation of the
//!   parts; it does not depend on where one part ends and the next begins. A caller whose parts
//!   have lengths that vary puts the lengths into the context.
//! - The 16-byte form is the first half of the 32-byte form.
//! - Tags are on disk and are never reused or renumbered.
//! - No function here panics, whatever its input, or allocates. ([`blocks`] wants as many digests as blocks.)

#[cfg(target_arch = "x86_64")]
mod lanes;
#[cfg(target_arch = "x86_64")]
mod vector;

use xxhash_rust::xxh3;

/// The digest functions of block and node digests.
///
/// Tags 3 to 7 are reserved, in this order, for `sha256`, `sha512`, `sha3-256`, `sha3-512` and
/// `crc32c`; tag 0 is never used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Keyed BLAKE3; the default.
    Blake3,
    /// XXH3 with 128 bits; fast, not cryptographic.
    Xxh3,
}

impl Kind {
    /// Every digest function that can be chosen, in the order of the tags.
    pub const ALL: [Kind; 2] = [Kind::Blake3, Kind::Xxh3];

    /// The number that stands for this function on disk.
    pub const fn tag(self) -> u8 {
        match self {
            Kind::Blake3 => 1,
            Kind::Xxh3 => 2,
        }
    }

    /// The function with the given number on disk; `None` for a number that is reserved or unknown.
    pub const fn from_tag(tag: u8) -> Option<Kind> {
        let mut at = 0;
        while at < Kind::ALL.len() {
            if Kind::ALL[at].tag() == tag {
                return Some(Kind::ALL[at]);
            }
            at += 1;
        }
        None
    }

    /// The name used on the command line and in properties.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Blake3 => "blake3",
            Kind::Xxh3 => "xxh3",
        }
    }

    /// The function with the given name.
    pub fn from_name(name: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// The keyed digest of `parts`, one after the other, in `context`.
///
/// See the module's text for what exactly is hashed.
pub fn keyed(kind: Kind, key: &[u8; 32], context: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    match kind {
        Kind::Blake3 => {
            let mut state = blake3::Hasher::new_keyed(key);
            for part in parts {
                state.update(part);
            }
            state.update(context);
            state.update(&(context.len() as u64).to_le_bytes());
            *state.finalize().as_bytes()
        }
        Kind::Xxh3 => {
            let mut state = xxh3::Xxh3Builder::new()
                .with_seed(xxh3::xxh3_64(key))
                .build();
            for part in parts {
                state.update(part);
            }
            state.update(context);
            state.update(&(context.len() as u64).to_le_bytes());
            let mut digest = [0; 32];
            digest[..16].copy_from_slice(&state.digest128().to_be_bytes());
            digest
        }
    }
}

/// The 16-byte digest of one block: the first half of [`keyed`] of the same input.
pub fn block(kind: Kind, key: &[u8; 32], context: &[u8], bytes: &[u8]) -> [u8; 16] {
    let whole = keyed(kind, key, context, &[bytes]);
    let mut cut = [0; 16];
    cut.copy_from_slice(&whole[..16]);
    cut
}

/// The digests of several blocks, each with its context: the first `N` bytes of [`keyed`] of each, in less time
/// where a function takes several blocks of one length (4 KiB, say) side by side. Several blocks in one call
/// cost less than in many.
///
/// # Panics
/// Unless there are as many digests as blocks. `N` above 32 does not compile.
pub fn blocks<C: AsRef<[u8]>, const N: usize>(
    kind: Kind,
    key: &[u8; 32],
    blocks: &[(C, &[u8])],
    digests: &mut [[u8; N]],
) {
    const { assert!(N <= 32, "a digest has 32 bytes") };
    assert_eq!(blocks.len(), digests.len(), "a digest for each block");
    #[cfg(target_arch = "x86_64")]
    if kind == Kind::Blake3 && lanes::blocks(key, blocks, digests) {
        return;
    }
    for (digest, (context, bytes)) in digests.iter_mut().zip(blocks) {
        digest.copy_from_slice(&keyed(kind, key, context.as_ref(), &[bytes])[..N]);
    }
}

/// Unkeyed BLAKE3 of `parts`, one after the other: for superblocks, which are read before any key
/// is known.
pub fn plain(parts: &[&[u8]]) -> [u8; 32] {
    let mut state = blake3::Hasher::new();
    for part in parts {
        state.update(part);
    }
    *state.finalize().as_bytes()
}

#[cfg(test)]
mod tests;
