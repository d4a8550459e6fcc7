//! BLAKE3's compression in vector registers: one message in each lane, of eight (AVX2) or sixteen (AVX-512).
//!
//! **Invariant.** Memory is read and written through [`Vector::words`] and [`Vector::values`] only, and there within the
//! bounds that these state.

#![expect(unsafe_code, reason = "vector instructions")]

use core::arch::x86_64::*;
use std::hint::black_box;

const IV: [u32; 4] = [0x6A09_E667, 0xBB67_AE85, 0x3C6E_F372, 0xA54F_F53A];

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

/// A register of 32-bit words, one of each message.
///
/// # Safety
/// Every method needs the processor to have the type's instructions.
pub(super) unsafe trait Vector: Copy {
    /// Words of a register.
    const LANES: usize;
    /// What turning words takes, looked up once for a message.
    type Turns: Copy;

    unsafe fn turns() -> Self::Turns;
    unsafe fn splat(word: u32) -> Self;
    /// The first [`Vector::LANES`] of them.
    unsafe fn load(words: &[u32; 16]) -> Self;
    unsafe fn add(self, other: Self) -> Self;
    unsafe fn xor(self, other: Self) -> Self;
    /// Turned right by so many bits.
    unsafe fn right16(self, turns: Self::Turns) -> Self;
    unsafe fn right12(self) -> Self;
    unsafe fn right8(self, turns: Self::Turns) -> Self;
    unsafe fn right7(self) -> Self;

    /// The sixteen words of 64 bytes of each message.
    ///
    /// # Safety
    /// The first [`Vector::LANES`] pointers have 64 readable bytes each.
    unsafe fn words(messages: &[*const u8; 16]) -> [Self; 16];

    /// The eight words of each lane, into the first [`Vector::LANES`] results.
    unsafe fn values(chain: [Self; 8], results: &mut [[u8; 32]; 16]);
}

// SAFETY: AVX2 only.
unsafe impl Vector for __m256i {
    const LANES: usize = 8;
    type Turns = [__m256i; 2];

    #[inline(always)]
    unsafe fn turns() -> [__m256i; 2] {
        // SAFETY: 16 bytes each.
        black_box(&TURNS).each_ref().map(|places| unsafe {
            _mm256_broadcastsi128_si256(_mm_loadu_si128(places.as_ptr().cast()))
        })
    }

    #[inline(always)]
    unsafe fn splat(word: u32) -> Self {
        // SAFETY: passed on from the caller.
        unsafe { _mm256_set1_epi32(word.cast_signed()) }
    }

    #[inline(always)]
    unsafe fn load(words: &[u32; 16]) -> Self {
        // SAFETY: the array is longer than the register.
        unsafe { _mm256_loadu_si256(words.as_ptr().cast()) }
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: passed on from the caller.
        unsafe { _mm256_add_epi32(self, other) }
    }

    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        // SAFETY: passed on from the caller.
        unsafe { _mm256_xor_si256(self, other) }
    }

    #[inline(always)]
    unsafe fn right16(self, turns: Self::Turns) -> Self {
        // SAFETY: passed on from the caller.
        unsafe { _mm256_shuffle_epi8(self, turns[0]) }
    }

    #[inline(always)]
    unsafe fn right12(self) -> Self {
        // SAFETY: passed on from the caller.
        unsafe { _mm256_or_si256(_mm256_srli_epi32::<12>(self), _mm256_slli_epi32::<20>(self)) }
    }

    #[inline(always)]
    unsafe fn right8(self, turns: Self::Turns) -> Self {
        // SAFETY: passed on from the caller.
        unsafe { _mm256_shuffle_epi8(self, turns[1]) }
    }

    #[inline(always)]
    unsafe fn right7(self) -> Self {
        // SAFETY: passed on from the caller.
        unsafe { _mm256_or_si256(_mm256_srli_epi32::<7>(self), _mm256_slli_epi32::<25>(self)) }
    }

    #[inline(always)]
    unsafe fn words(messages: &[*const u8; 16]) -> [Self; 16] {
        // SAFETY: passed on from the caller.
        unsafe {
            let mut words = [_mm256_setzero_si256(); 16];
            let (low, high) = words.split_at_mut(8);
            for ((low, high), from) in low.iter_mut().zip(high).zip(messages) {
                *low = _mm256_loadu_si256(from.cast());
                *high = _mm256_loadu_si256(from.add(32).cast());
            }
            let [low, high] = words.as_chunks_mut::<8>().0 else {
                unreachable!("sixteen are two of eight")
            };
            turn8(low);
            turn8(high);
            words
        }
    }

    #[inline(always)]
    unsafe fn values(mut chain: [Self; 8], results: &mut [[u8; 32]; 16]) {
        // SAFETY: a result is as long as a register.
        unsafe {
            turn8(&mut chain);
            for (result, value) in results.iter_mut().zip(chain) {
                _mm256_storeu_si256(result.as_mut_ptr().cast(), value);
            }
        }
    }
}

/// Words by lane to lanes by word, and back: eight rows of eight.
///
/// # Safety
/// The processor has AVX2.
#[inline(always)]
unsafe fn turn8(rows: &mut [__m256i; 8]) {
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

// SAFETY: AVX512F only.
unsafe impl Vector for __m512i {
    const LANES: usize = 16;
    type Turns = ();

    #[inline(always)]
    unsafe fn turns() {}

    #[inline(always)]
    unsafe fn splat(word: u32) -> Self {
        // SAFETY: passed on from the caller.
        unsafe { _mm512_set1_epi32(word.cast_signed()) }
    }

    #[inline(always)]
    unsafe fn load(words: &[u32; 16]) -> Self {
        // SAFETY: the array is as long as the register.
        unsafe { _mm512_loadu_si512(words.as_ptr().cast()) }
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: passed on from the caller.
        unsafe { _mm512_add_epi32(self, other) }
    }

    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        // SAFETY: passed on from the caller.
        unsafe { _mm512_xor_si512(self, other) }
    }

    #[inline(always)]
    unsafe fn right16(self, (): ()) -> Self {
        // SAFETY: passed on from the caller.
        unsafe { _mm512_ror_epi32::<16>(self) }
    }

    #[inline(always)]
    unsafe fn right12(self) -> Self {
        // SAFETY: passed on from the caller.
        unsafe { _mm512_ror_epi32::<12>(self) }
    }

    #[inline(always)]
    unsafe fn right8(self, (): ()) -> Self {
        // SAFETY: passed on from the caller.
        unsafe { _mm512_ror_epi32::<8>(self) }
    }

    #[inline(always)]
    unsafe fn right7(self) -> Self {
        // SAFETY: passed on from the caller.
        unsafe { _mm512_ror_epi32::<7>(self) }
    }

    #[inline(always)]
    unsafe fn words(messages: &[*const u8; 16]) -> [Self; 16] {
        // SAFETY: passed on from the caller.
        unsafe {
            let mut rows = [_mm512_setzero_si512(); 16];
            for (row, from) in rows.iter_mut().zip(messages) {
                *row = _mm512_loadu_si512(from.cast());
            }
            turn16(&mut rows);
            rows
        }
    }

    #[inline(always)]
    unsafe fn values(chain: [Self; 8], results: &mut [[u8; 32]; 16]) {
        // SAFETY: a result is as long as half of a register.
        unsafe {
            let mut rows = [_mm512_setzero_si512(); 16];
            rows[..8].copy_from_slice(&chain);
            turn16(&mut rows);
            for (result, row) in results.iter_mut().zip(rows) {
                let words = _mm512_castsi512_si256(row);
                _mm256_storeu_si256(result.as_mut_ptr().cast(), words);
            }
        }
    }
}

/// Words by lane to lanes by word, and back: sixteen rows of sixteen.
///
/// # Safety
/// The processor has AVX512F.
#[inline(always)]
unsafe fn turn16(rows: &mut [__m512i; 16]) {
    // SAFETY: passed on from the caller.
    unsafe {
        let mut twos = *rows;
        for i in 0..8 {
            twos[2 * i] = _mm512_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]);
            twos[2 * i + 1] = _mm512_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]);
        }
        let mut fours = twos;
        for quarter in 0..4 {
            for i in 0..2 {
                let (a, b) = (twos[4 * quarter + i], twos[4 * quarter + i + 2]);
                fours[4 * quarter + 2 * i] = _mm512_unpacklo_epi64(a, b);
                fours[4 * quarter + 2 * i + 1] = _mm512_unpackhi_epi64(a, b);
            }
        }
        for i in 0..4 {
            let [a, b, c, d] = [fours[i], fours[4 + i], fours[8 + i], fours[12 + i]];
            let (ab, cd) = (
                _mm512_shuffle_i32x4::<0x44>(a, b),
                _mm512_shuffle_i32x4::<0x44>(c, d),
            );
            rows[i] = _mm512_shuffle_i32x4::<0x88>(ab, cd);
            rows[4 + i] = _mm512_shuffle_i32x4::<0xDD>(ab, cd);
            let (ab, cd) = (
                _mm512_shuffle_i32x4::<0xEE>(a, b),
                _mm512_shuffle_i32x4::<0xEE>(c, d),
            );
            rows[8 + i] = _mm512_shuffle_i32x4::<0x88>(ab, cd);
            rows[12 + i] = _mm512_shuffle_i32x4::<0xDD>(ab, cd);
        }
    }
}

/// BLAKE3's quarter round on words `[a, b, c, d]` of the state.
///
/// # Safety
/// As [`Vector`].
#[inline(always)]
unsafe fn quarter<V: Vector>(
    v: &mut [V; 16],
    [a, b, c, d]: [usize; 4],
    [x, y]: [V; 2],
    turns: V::Turns,
) {
    // SAFETY: passed on from the caller.
    unsafe {
        v[a] = v[a].add(x).add(v[b]);
        v[d] = v[d].xor(v[a]).right16(turns);
        v[c] = v[c].add(v[d]);
        v[b] = v[b].xor(v[c]).right12();
        v[a] = v[a].add(y).add(v[b]);
        v[d] = v[d].xor(v[a]).right8(turns);
        v[c] = v[c].add(v[d]);
        v[b] = v[b].xor(v[c]).right7();
    }
}

/// One round.
///
/// # Safety
/// As [`Vector`].
#[inline(always)]
unsafe fn round<V: Vector, const R: usize>(v: &mut [V; 16], m: &[V; 16], turns: V::Turns) {
    let words = |place: usize| [m[SCHEDULE[R][place]], m[SCHEDULE[R][place + 1]]];
    // SAFETY: passed on from the caller.
    unsafe {
        quarter(v, [0, 4, 8, 12], words(0), turns);
        quarter(v, [1, 5, 9, 13], words(2), turns);
        quarter(v, [2, 6, 10, 14], words(4), turns);
        quarter(v, [3, 7, 11, 15], words(6), turns);
        quarter(v, [0, 5, 10, 15], words(8), turns);
        quarter(v, [1, 6, 11, 12], words(10), turns);
        quarter(v, [2, 7, 8, 13], words(12), turns);
        quarter(v, [3, 4, 9, 14], words(14), turns);
    }
}

/// BLAKE3's compression of 64 bytes in each lane; `ends` are the counters (below 2^32), the lengths and the flags.
///
/// # Safety
/// As [`Vector`].
#[inline(always)]
pub(super) unsafe fn compress<V: Vector>(
    chain: &mut [V; 8],
    m: &[V; 16],
    [counters, lens, flags]: [V; 3],
    turns: V::Turns,
) {
    // SAFETY: passed on from the caller.
    unsafe {
        let mut v = [V::splat(0); 16];
        v[..8].copy_from_slice(chain);
        for (word, value) in v[8..12].iter_mut().zip(IV) {
            *word = V::splat(value);
        }
        v[12] = counters;
        v[14] = lens;
        v[15] = flags;
        round::<V, 0>(&mut v, m, turns);
        round::<V, 1>(&mut v, m, turns);
        round::<V, 2>(&mut v, m, turns);
        round::<V, 3>(&mut v, m, turns);
        round::<V, 4>(&mut v, m, turns);
        round::<V, 5>(&mut v, m, turns);
        round::<V, 6>(&mut v, m, turns);
        for (word, value) in chain.iter_mut().enumerate() {
            *value = v[word].xor(v[word + 8]);
        }
    }
}
