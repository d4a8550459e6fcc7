//! Keyed BLAKE3 of several blocks side by side: one compression works on eight or sixteen chunks, whichever blocks
//! they are of.
//!
//! The crate `blake3` spreads the chunks of *one* input over a vector. A block of 4 KiB has four whole chunks,
//! half a vector of AVX2, and one short chunk (its context) and four parents that it computes one by one. Here
//! the chunks, the short chunks and each level of parents of up to [`GROUP`] blocks fill the lanes together.
//!
//! **Invariants.**
//! - The result is that of [`super::keyed`]: tests compare the two.
//! - Only whole chunks are read through pointers: messages of one length, a multiple of 64.

#![expect(unsafe_code, reason = "vector instructions")]

use core::arch::x86_64::{__m256i, __m512i, _MM_HINT_T0, _mm_prefetch};
use std::ptr;

use crate::vector::{Vector, compress};

/// Messages that one compression works on, at most.
const LANES: usize = 16;
/// Blocks that are hashed together.
const GROUP: usize = 16;
/// Bytes of a chunk, the leaf of the tree.
const CHUNK: usize = 1024;
/// Chunks of the longest block: longer ones fill the lanes by themselves, and lose 2 to 10 % here.
const CHUNKS_MAX: usize = 4;
/// Bytes of the longest context: with its length it fits into one compression.
const CONTEXT_MAX: usize = 64 - 8;

const CHUNK_START: u32 = 1;
const CHUNK_END: u32 = 2;
const PARENT: u32 = 4;
const ROOT: u32 = 8;
const KEYED: u32 = 16;

/// Hashes blocks if this processor and their sizes suit; returns whether it did.
pub(super) fn blocks<C: AsRef<[u8]>, const N: usize>(
    key: &[u8; 32],
    blocks: &[(C, &[u8])],
    digests: &mut [[u8; N]],
) -> bool {
    let len = blocks.first().map_or(0, |(_, bytes)| bytes.len());
    let suits =
        |(context, bytes): &(C, &[u8])| bytes.len() == len && context.as_ref().len() <= CONTEXT_MAX;
    let chunks = len / CHUNK;
    let whole = len.is_multiple_of(CHUNK) && chunks.is_power_of_two() && chunks <= CHUNKS_MAX;
    if blocks.len() < 2 || !whole || !blocks.iter().all(suits) || !is_x86_feature_detected!("avx2")
    {
        return false;
    }
    let wide = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vl");
    for (blocks, digests) in blocks.chunks(GROUP).zip(digests.chunks_mut(GROUP)) {
        // SAFETY: the processor has been asked for the instructions.
        unsafe {
            if wide {
                group_avx512(key, blocks, chunks, digests);
            } else {
                group_avx2(key, blocks, chunks, digests);
            }
        }
    }
    true
}

/// # Safety
/// The processor has AVX2.
#[target_feature(enable = "avx2")]
unsafe fn group_avx2<C: AsRef<[u8]>, const N: usize>(
    key: &[u8; 32],
    blocks: &[(C, &[u8])],
    chunks: usize,
    digests: &mut [[u8; N]],
) {
    // SAFETY: passed on from the caller.
    unsafe { group::<__m256i, C, N>(key, blocks, chunks, digests) }
}

/// # Safety
/// The processor has AVX2, AVX512F and AVX512VL.
#[target_feature(enable = "avx2,avx512f,avx512vl")]
unsafe fn group_avx512<C: AsRef<[u8]>, const N: usize>(
    key: &[u8; 32],
    blocks: &[(C, &[u8])],
    chunks: usize,
    digests: &mut [[u8; N]],
) {
    // SAFETY: passed on from the caller.
    unsafe { group::<__m512i, C, N>(key, blocks, chunks, digests) }
}

/// Up to [`GROUP`] blocks of `chunks` whole chunks each, a power of two.
///
/// # Safety
/// The processor has AVX2, and the instructions of `V`.
#[inline(always)]
unsafe fn group<V: Vector, C: AsRef<[u8]>, const N: usize>(
    key: &[u8; 32],
    blocks: &[(C, &[u8])],
    chunks: usize,
    digests: &mut [[u8; N]],
) {
    let count = blocks.len();
    let mut values = [[0u8; 32]; GROUP * CHUNKS_MAX];
    let mut width = chunks;
    // SAFETY: passed on from the caller.
    unsafe {
        let whole = Compression {
            key,
            flags: [KEYED | CHUNK_START, KEYED, KEYED | CHUNK_END],
            lens: [64; GROUP],
        };
        whole.each::<V>(count * chunks, &mut values, |job| {
            let counter = job % chunks;
            (&blocks[job / chunks].1[counter * CHUNK..][..CHUNK], counter)
        });
        while width > 1 {
            width /= 2;
            let below = values;
            let parents = Compression::short(key, KEYED | PARENT, [64; GROUP]);
            parents.each::<V>(count * width, &mut values, |job| {
                (&below.as_flattened()[job * 64..][..64], 0)
            });
        }
        let mut ends = [[0u8; 64]; GROUP];
        let mut lens = [0; GROUP];
        for ((end, len), (context, _)) in ends.iter_mut().zip(&mut lens).zip(blocks) {
            let context = context.as_ref();
            end[..context.len()].copy_from_slice(context);
            end[context.len()..][..8].copy_from_slice(&(context.len() as u64).to_le_bytes());
            *len = context.len() as u32 + 8;
        }
        let mut tails = [[0u8; 32]; GROUP];
        let last = Compression::short(key, KEYED | CHUNK_START | CHUNK_END, lens);
        last.each::<V>(count, &mut tails, |job| (&ends[job], chunks));
        let mut pairs = [[[0u8; 32]; 2]; GROUP];
        for (pair, both) in pairs.iter_mut().zip(values.iter().zip(&tails)) {
            *pair = [*both.0, *both.1];
        }
        let root = Compression::short(key, KEYED | PARENT | ROOT, [64; GROUP]);
        root.each::<V>(count, &mut tails, |job| (pairs[job].as_flattened(), 0));
        for (digest, whole) in digests.iter_mut().zip(&tails) {
            digest.copy_from_slice(&whole[..N]);
        }
    }
}

/// What is the same for all messages of a call, and the bytes in the last 64 of each block's.
struct Compression<'a> {
    key: &'a [u8; 32],
    /// For the first 64 bytes of a message, those between, the last.
    flags: [u32; 3],
    /// All are 64 unless the messages are one of each block.
    lens: [u32; GROUP],
}

impl<'a> Compression<'a> {
    /// Of messages of at most 64 bytes.
    fn short(key: &'a [u8; 32], flags: u32, lens: [u32; GROUP]) -> Compression<'a> {
        Compression {
            key,
            flags: [flags; 3],
            lens,
        }
    }

    /// The chaining values of `jobs` messages; `message` gives the bytes and the counter of each. Half of a vector or
    /// less is left to the narrow one. Lanes without a message do the last one's work again.
    ///
    /// # Safety
    /// As [`group`]. All messages have the same length, a multiple of 64.
    #[inline(always)]
    unsafe fn each<'m, V: Vector>(
        &self,
        jobs: usize,
        values: &mut [[u8; 32]],
        message: impl Fn(usize) -> (&'m [u8], usize),
    ) {
        let mut first = 0;
        while first < jobs {
            let few = jobs - first <= __m256i::LANES;
            let lanes = if few { __m256i::LANES } else { V::LANES };
            let job = |lane: usize| (first + lane).min(jobs - 1);
            let mut messages: [(&[u8], usize); LANES] = [(&[], 0); LANES];
            let mut lens = [0; LANES];
            for lane in 0..lanes {
                messages[lane] = message(job(lane));
                lens[lane] = self.lens[job(lane) % GROUP];
            }
            let mut results = [[0; 32]; LANES];
            // SAFETY: passed on from the caller.
            unsafe {
                if few {
                    self.lanes::<__m256i>(&messages, &lens, &mut results);
                } else {
                    self.lanes::<V>(&messages, &lens, &mut results);
                }
            }
            let last = (first + lanes).min(jobs);
            values[first..last].copy_from_slice(&results[..last - first]);
            first = last;
        }
    }

    /// One message in each lane.
    ///
    /// # Safety
    /// As [`Compression::each`].
    #[inline(always)]
    unsafe fn lanes<V: Vector>(
        &self,
        messages: &[(&[u8], usize); LANES],
        lens: &[u32; LANES],
        results: &mut [[u8; 32]; LANES],
    ) {
        let (messages, len) = (&messages[..V::LANES], messages[0].0.len());
        let same = |(bytes, _): &(&[u8], usize)| bytes.len() == len;
        assert!(messages.iter().all(same) && len.is_multiple_of(64));
        let (mut from, mut counters) = ([ptr::null(); LANES], [0; LANES]);
        for (lane, (bytes, counter)) in messages.iter().enumerate() {
            (from[lane], counters[lane]) = (bytes.as_ptr(), *counter as u32);
        }
        // SAFETY: every message holds `len` bytes, as asserted, and `at` stays 64 below. What is asked for early need
        // not be there.
        unsafe {
            let mut chain = [V::splat(0); 8];
            for (word, bytes) in chain.iter_mut().zip(self.key.as_chunks::<4>().0) {
                *word = V::splat(u32::from_le_bytes(*bytes));
            }
            let turns = V::turns();
            let (counters, lens) = (V::load(&counters), V::load(lens));
            for at in (0..len).step_by(64) {
                let words = V::words(&from);
                for next in &mut from[..V::LANES] {
                    // A chunk is a stream of its own for as little as 16 lines: ask for the next ones.
                    _mm_prefetch::<_MM_HINT_T0>(next.wrapping_add(256).cast());
                    *next = next.wrapping_add(64);
                }
                let flags = match at {
                    0 => self.flags[0],
                    _ if at + 64 < len => self.flags[1],
                    _ => self.flags[2],
                };
                compress(&mut chain, &words, [counters, lens, V::splat(flags)], turns);
            }
            V::values(chain, results);
        }
    }
}
