//! Packets of the bit-matrix codes turned into field elements, and back.
//!
//! A bit-matrix code with w = 8 cuts a strip into groups of eight packets (of 8 bytes: groups of 64)
//! and adds whole packets where its 8x8 bit matrices have ones. Take bit `t` of byte `b` of each of
//! the eight packets: these eight bits, packet `j` giving bit `j`, are a field element, and the bit
//! matrix of a coefficient multiplies it by that coefficient. So exchanging "packet" and "bit in a
//! byte" turns such a code into the same matrix over bytes, and every kernel can do it.
//!
//! **Invariants.** [`turn`] is its own inverse and acts on each group of 64 bytes by itself.

/// Bytes in a group: eight packets of 8 bytes.
pub(crate) const GROUP: usize = 64;

/// Exchanges packet number and bit number in each group; lengths are equal multiples of [`GROUP`].
pub(crate) fn turn(from: &[u8], to: &mut [u8]) {
    assert!(from.len() == to.len() && from.len().is_multiple_of(GROUP));
    for (from, to) in from.chunks_exact(GROUP).zip(to.chunks_exact_mut(GROUP)) {
        let mut words = [0u64; 8];
        let (eights, _) = from.as_chunks::<8>();
        for (word, bytes) in words.iter_mut().zip(eights) {
            *word = u64::from_le_bytes(*bytes);
        }
        exchange::<4>(&mut words, 0x0f0f_0f0f_0f0f_0f0f);
        exchange::<2>(&mut words, 0x3333_3333_3333_3333);
        exchange::<1>(&mut words, 0x5555_5555_5555_5555);
        let (eights, _) = to.as_chunks_mut::<8>();
        for (word, bytes) in words.iter().zip(eights) {
            *bytes = word.to_le_bytes();
        }
    }
}

/// Exchanges bit `log2(D)` of the packet number with the same bit of the bit number.
fn exchange<const D: usize>(words: &mut [u64; 8], low: u64) {
    for i in (0..8).filter(|i| i & D == 0) {
        let differ = (words[i] >> D ^ words[i + D]) & low;
        words[i] ^= differ << D;
        words[i + D] ^= differ;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packet_and_bit_are_exchanged() {
        for bit in 0..GROUP * 8 {
            let (packet, byte, inner) = (bit / 64, bit / 8 % 8, bit % 8);
            let mut from = [0u8; GROUP];
            from[bit / 8] = 1 << inner;
            let mut to = [0xffu8; GROUP];
            turn(&from, &mut to);
            let mut expected = [0u8; GROUP];
            expected[inner * 8 + byte] = 1 << packet;
            assert_eq!(to, expected);
        }
    }
}
