//! Keyed BLAKE3 of several blocks side by side: one compression works on eight chunks, whichever blocks they
//! are of.
//!
//! The crate `blake3` spreads the chunks of *one* input over a vector. A block of 4 KiB has four whole chunks,
//! half a vector of AVX2, and one short chunk (its context) and four parents that it computes one by one. Here
//! the chunks, the short chunks and each level of parents of up to [`GROUP`] blocks fill the lanes together.
//!
//! **Invariants.**
//! - The result is that of [`super::keyed`]: tests compare the two.
//! - Only whole chunks are read through pointers: eight messages of one length, a multiple of 64.

#![expect(unsafe_code, reason = "AVX2 instructions")]

use core::arch::x86_64::*;
use std::hint::black_box;

/// Messages that one compression works on.
const LANES: usize = 8;
/// Blocks that are hashed together.
const GROUP: usize = 8;
/// Bytes of a chunk, the leaf of the tree.
const CHUNK: usize = 1024;
/// Chunks of the longest block: longer ones fill the lanes by themselves, and lose 2 to 10 % here.
const CHUNKS_MAX: usize = 4;
/// Bytes of the longest context: with its length it fits into one compression.
const CONTEXT_MAX: usize = 64 - 8;

const IV: [u32; 8] = [
    0x6A09_E667,
    0xBB67_AE85,
    0x3C6E_F372,
    0xA54F_F53A,
    0x510E_527F,
    0x9B05_688C,
    0x1F83_D9AB,
    0x5BE0_CD19,
];
const CHUNK_START: u32 = 1;
const CHUNK_END: u32 = 2;
const PARENT: u32 = 4;
const ROOT: u32 = 8;
const KEYED: u32 = 16;

/// Each byte's place in four words turned by 16 and by 8 bits. The compiler must not know them: it would turn both
/// sides of the XOR before, at twice the shuffles.
static TURNS: [[u8; 16]; 2] = [
    [2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13],
    [1, 2, 3, 0, 5, 6, 7, 4, 9, 10, 11, 8, 13, 14, 15, 12],
];

/// Which word of the message each round takes in each place.
const SCHEDULE: [[usize; 16]; 7] = schedule();

const fn schedule() -> [[usize; 16]; 7] {
    const NEXT: [usize; 16] = [2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8];
    let mut rounds = [[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]; 7];
    let mut round = 1;
    while round < 7 {
        let mut word = 0;
        while word < 16 {
            rounds[round][word] = rounds[round - 1][NEXT[word]];
            word += 1;
        }
        round += 1;
    }
    rounds
}

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
                group_avx512vl(key, blocks, chunks, digests);
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
    unsafe { group(key, blocks, chunks, digests) }
}

/// The same with twice the registers and a rotation in one instruction.
///
/// # Safety
/// The processor has AVX2, AVX512F and AVX512VL.
#[target_feature(enable = "avx2,avx512f,avx512vl")]
unsafe fn group_avx512vl<C: AsRef<[u8]>, const N: usize>(
    key: &[u8; 32],
    blocks: &[(C, &[u8])],
    chunks: usize,
    digests: &mut [[u8; N]],
) {
    // SAFETY: passed on from the caller.
    unsafe { group(key, blocks, chunks, digests) }
}

/// Up to [`GROUP`] blocks of `chunks` whole chunks each, a power of two.
///
/// # Safety
/// The processor has AVX2.
#[inline(always)]
unsafe fn group<C: AsRef<[u8]>, const N: usize>(
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
            lens: [64; LANES],
        };
        whole.each(count * chunks, &mut values, |_, job| {
            let counter = job % chunks;
            (&blocks[job / chunks].1[counter * CHUNK..][..CHUNK], counter)
        });
        while width > 1 {
            width /= 2;
            let below = values;
            let parents = Compression::short(key, KEYED | PARENT, [64; LANES]);
            parents.each(count * width, &mut values, |_, job| {
                (&below.as_flattened()[job * 64..][..64], 0)
            });
        }
        let mut ends = [[0u8; 64]; GROUP];
        let mut lens = [0; LANES];
        for ((end, len), (context, _)) in ends.iter_mut().zip(&mut lens).zip(blocks) {
            let context = context.as_ref();
            end[..context.len()].copy_from_slice(context);
            end[context.len()..][..8].copy_from_slice(&(context.len() as u64).to_le_bytes());
            *len = context.len() as u32 + 8;
        }
        let mut tails = [[0u8; 32]; GROUP];
        let last = Compression::short(key, KEYED | CHUNK_START | CHUNK_END, lens);
        last.each(count, &mut tails, |lane, _| (&ends[lane], chunks));
        let mut pairs = [[[0u8; 32]; 2]; GROUP];
        for (pair, both) in pairs.iter_mut().zip(values.iter().zip(&tails)) {
            *pair = [*both.0, *both.1];
        }
        let root = Compression::short(key, KEYED | PARENT | ROOT, [64; LANES]);
        root.each(count, &mut tails, |_, job| (pairs[job].as_flattened(), 0));
        for (digest, whole) in digests.iter_mut().zip(&tails) {
            digest.copy_from_slice(&whole[..N]);
        }
    }
}

/// What is the same for all messages of a call, and the bytes in the last block of each lane's.
struct Compression<'a> {
    key: &'a [u8; 32],
    /// For the first 64 bytes of a message, those between, the last.
    flags: [u32; 3],
    lens: [u32; LANES],
}

impl<'a> Compression<'a> {
    /// Of messages of at most 64 bytes.
    fn short(key: &'a [u8; 32], flags: u32, lens: [u32; LANES]) -> Compression<'a> {
        Compression {
            key,
            flags: [flags; 3],
            lens,
        }
    }

    /// The chaining values of `jobs` messages; `message` gives the bytes and the counter of each, by lane
    /// and number. Lanes without one do the last one's work again.
    ///
    /// # Safety
    /// The processor has AVX2. All messages have the same length, a multiple of 64.
    #[inline(always)]
    unsafe fn each<'m>(
        &self,
        jobs: usize,
        values: &mut [[u8; 32]],
        message: impl Fn(usize, usize) -> (&'m [u8], usize),
    ) {
        for first in (0..jobs).step_by(LANES) {
            let mut messages: [&[u8]; LANES] = [&[]; LANES];
            let mut counters = [0u32; LANES];
            for lane in 0..LANES {
                let job = (first + lane).min(jobs - 1);
                let (bytes, counter) = message(job - first, job);
                messages[lane] = bytes;
                counters[lane] = counter as u32;
            }
            let mut results = [[0; 32]; LANES];
            // SAFETY: passed on from the caller.
            unsafe { self.lanes(&messages, &counters, &mut results) };
            let last = (first + LANES).min(jobs);
            values[first..last].copy_from_slice(&results[..last - first]);
        }
    }

    /// One message in each lane.
    ///
    /// # Safety
    /// As [`Compression::each`].
    #[inline(always)]
    unsafe fn lanes(
        &self,
        messages: &[&[u8]; LANES],
        counters: &[u32; LANES],
        results: &mut [[u8; 32]; LANES],
    ) {
        let len = messages[0].len();
        // SAFETY: the arrays are as long as a vector; every message holds `len` bytes, which the assertion
        // compares, and `at` stays 64 below.
        unsafe {
            assert!(messages.iter().all(|bytes| bytes.len() == len) && len.is_multiple_of(64));
            let mut chain = [_mm256_setzero_si256(); 8];
            for (word, bytes) in chain.iter_mut().zip(self.key.as_chunks::<4>().0) {
                *word = _mm256_set1_epi32(i32::from_le_bytes(*bytes));
            }
            let by = black_box(&TURNS).each_ref();
            let by = by
                .map(|places| _mm256_broadcastsi128_si256(_mm_loadu_si128(places.as_ptr().cast())));
            let counters = _mm256_loadu_si256(counters.as_ptr().cast());
            let lens = _mm256_loadu_si256(self.lens.as_ptr().cast());
            for at in (0..len).step_by(64) {
                let mut low = [_mm256_setzero_si256(); 8];
                let mut high = [_mm256_setzero_si256(); 8];
                for lane in 0..LANES {
                    let from = messages[lane].as_ptr().add(at);
                    low[lane] = _mm256_loadu_si256(from.cast());
                    high[lane] = _mm256_loadu_si256(from.add(32).cast());
                    // A chunk is a stream of its own for as little as 16 lines: ask for the next ones.
                    _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(256).cast());
                }
                turn(&mut low);
                turn(&mut high);
                let flags = match at {
                    0 => self.flags[0],
                    _ if at + 64 < len => self.flags[1],
                    _ => self.flags[2],
                };
                let flags = _mm256_set1_epi32(flags.cast_signed());
                compress(&mut chain, &low, &high, [counters, lens, flags], by);
            }
            turn(&mut chain);
            for lane in 0..LANES {
                _mm256_storeu_si256(results[lane].as_mut_ptr().cast(), chain[lane]);
            }
        }
    }
}

/// Words by lane to lanes by word, and back: eight rows of eight.
///
/// # Safety
/// The processor has AVX2.
#[inline(always)]
unsafe fn turn(rows: &mut [__m256i; 8]) {
    // SAFETY: passed on from the caller.
    unsafe {
        let mut twos = *rows;
        for i in 0..4 {
            twos[2 * i] = _mm256_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]);
            twos[2 * i + 1] = _mm256_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]);
        }
        let mut fours = twos;
        for half in 0..2 {
            for i in 0..2 {
                let (a, b) = (twos[4 * half + i], twos[4 * half + i + 2]);
                fours[4 * half + 2 * i] = _mm256_unpacklo_epi64(a, b);
                fours[4 * half + 2 * i + 1] = _mm256_unpackhi_epi64(a, b);
            }
        }
        for i in 0..4 {
            rows[i] = _mm256_permute2x128_si256::<0x20>(fours[i], fours[i + 4]);
            rows[i + 4] = _mm256_permute2x128_si256::<0x31>(fours[i], fours[i + 4]);
        }
    }
}

/// Each word of `x` turned right by so many bits.
///
/// # Safety
/// The processor has AVX2.
#[inline(always)]
unsafe fn rotate<const RIGHT: i32, const LEFT: i32>(x: __m256i) -> __m256i {
    // SAFETY: passed on from the caller.
    unsafe { _mm256_or_si256(_mm256_srli_epi32::<RIGHT>(x), _mm256_slli_epi32::<LEFT>(x)) }
}

/// BLAKE3's quarter round on words `[a, b, c, d]` of the state, with [`TURNS`].
///
/// # Safety
/// The processor has AVX2.
#[inline(always)]
unsafe fn quarter(
    v: &mut [__m256i; 16],
    [a, b, c, d]: [usize; 4],
    [x, y]: [__m256i; 2],
    [by16, by8]: [__m256i; 2],
) {
    // SAFETY: passed on from the caller.
    unsafe {
        v[a] = _mm256_add_epi32(_mm256_add_epi32(v[a], x), v[b]);
        v[d] = _mm256_shuffle_epi8(_mm256_xor_si256(v[d], v[a]), by16);
        v[c] = _mm256_add_epi32(v[c], v[d]);
        v[b] = rotate::<12, 20>(_mm256_xor_si256(v[b], v[c]));
        v[a] = _mm256_add_epi32(_mm256_add_epi32(v[a], y), v[b]);
        v[d] = _mm256_shuffle_epi8(_mm256_xor_si256(v[d], v[a]), by8);
        v[c] = _mm256_add_epi32(v[c], v[d]);
        v[b] = rotate::<7, 25>(_mm256_xor_si256(v[b], v[c]));
    }
}

/// One round.
///
/// # Safety
/// The processor has AVX2.
#[inline(always)]
unsafe fn round<const R: usize>(v: &mut [__m256i; 16], m: &[__m256i; 16], by: [__m256i; 2]) {
    let words = |place: usize| [m[SCHEDULE[R][place]], m[SCHEDULE[R][place + 1]]];
    // SAFETY: passed on from the caller.
    unsafe {
        quarter(v, [0, 4, 8, 12], words(0), by);
        quarter(v, [1, 5, 9, 13], words(2), by);
        quarter(v, [2, 6, 10, 14], words(4), by);
        quarter(v, [3, 7, 11, 15], words(6), by);
        quarter(v, [0, 5, 10, 15], words(8), by);
        quarter(v, [1, 6, 11, 12], words(10), by);
        quarter(v, [2, 7, 8, 13], words(12), by);
        quarter(v, [3, 4, 9, 14], words(14), by);
    }
}

/// BLAKE3's compression of 64 bytes in each lane; `ends` are the counter (below 2^32), the length and the
/// flags.
///
/// # Safety
/// The processor has AVX2.
#[inline(always)]
unsafe fn compress(
    chain: &mut [__m256i; 8],
    low: &[__m256i; 8],
    high: &[__m256i; 8],
    [counters, lens, flags]: [__m256i; 3],
    by: [__m256i; 2],
) {
    // SAFETY: passed on from the caller.
    unsafe {
        let mut m = [_mm256_setzero_si256(); 16];
        m[..8].copy_from_slice(low);
        m[8..].copy_from_slice(high);
        let mut v = [_mm256_setzero_si256(); 16];
        v[..8].copy_from_slice(chain);
        for word in 0..4 {
            v[8 + word] = _mm256_set1_epi32(IV[word].cast_signed());
        }
        v[12] = counters;
        v[14] = lens;
        v[15] = flags;
        round::<0>(&mut v, &m, by);
        round::<1>(&mut v, &m, by);
        round::<2>(&mut v, &m, by);
        round::<3>(&mut v, &m, by);
        round::<4>(&mut v, &m, by);
        round::<5>(&mut v, &m, by);
        round::<6>(&mut v, &m, by);
        for word in 0..8 {
            chain[word] = _mm256_xor_si256(v[word], v[word + 8]);
        }
    }
}
