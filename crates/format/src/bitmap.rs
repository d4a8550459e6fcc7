//! A set of small numbers: which data blocks of a segment live.
//!
//! Invariant: the count is that of the bits set.

/// A set of small numbers with its size.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Bitmap {
    words: Vec<u64>,
    count: u32,
    len: u32,
}

impl Bitmap {
    /// The empty subset of `0..len`.
    pub fn new(len: u32) -> Bitmap {
        Bitmap {
            words: vec![0; len.div_ceil(64) as usize],
            count: 0,
            len,
        }
    }

    /// Adds `bit`; whether it was new.
    pub fn set(&mut self, bit: u32) -> bool {
        assert!(bit < self.len, "bit {bit} of {}", self.len);
        let (word, mask) = ((bit / 64) as usize, 1u64 << (bit % 64));
        let new = self.words[word] & mask == 0;
        self.words[word] |= mask;
        self.count += u32::from(new);
        new
    }

    /// Removes `bit`; whether it was there.
    pub fn clear(&mut self, bit: u32) -> bool {
        assert!(bit < self.len, "bit {bit} of {}", self.len);
        let (word, mask) = ((bit / 64) as usize, 1u64 << (bit % 64));
        let there = self.words[word] & mask != 0;
        self.words[word] &= !mask;
        self.count -= u32::from(there);
        there
    }

    /// How many bits are in it.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// How many of these bits are in it.
    pub fn count_in(&self, bits: std::ops::Range<u32>) -> u32 {
        let of_word = |word: u32| {
            let first = word * 64;
            let from = bits.start.max(first) - first;
            let to = bits.end.min(first + 64) - first;
            let mask = u64::MAX >> (64 - (to - from)) << from;
            (self.words[word as usize] & mask).count_ones()
        };
        match bits.is_empty() {
            true => 0,
            false => (bits.start / 64..=(bits.end - 1) / 64).map(of_word).sum(),
        }
    }

    /// Whether no bit is in it.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The bits, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let bits = |(word, first): (&u64, u32)| {
            let without_lowest = |word: &u64| (*word != 0).then(|| word & (word - 1));
            std::iter::successors(Some(*word), without_lowest)
                .take_while(|word| *word != 0)
                .map(move |word| first + word.trailing_zeros())
        };
        self.words.iter().zip((0..).step_by(64)).flat_map(bits)
    }

    /// The last bit.
    pub fn last(&self) -> Option<u32> {
        let words = (0..self.len.div_ceil(64)).zip(&self.words);
        let (index, word) = words.rev().find(|(_, word)| **word != 0)?;
        Some(index * 64 + word.ilog2())
    }

    /// Writes the stored form, little-endian words and then zeros, from byte `at` on, a multiple of 8, into `part`.
    pub fn write_bytes(&self, at: usize, part: &mut [u8]) {
        assert!(at.is_multiple_of(8), "the stored form is cut between words");
        let mut words = self.words.iter().skip(at / 8);
        for bytes in part.chunks_mut(8) {
            let word = words.next().copied().unwrap_or(0).to_le_bytes();
            bytes.copy_from_slice(&word[..bytes.len()]);
        }
    }

    /// Reads the stored form; bits at or beyond `len` are ignored.
    pub fn from_bytes(len: u32, bytes: &[u8]) -> Bitmap {
        let mut bitmap = Bitmap::new(len);
        for (word, bytes) in bitmap.words.iter_mut().zip(bytes.chunks(8)) {
            let mut stored = [0; 8];
            stored[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_le_bytes(stored);
        }
        if let Some(word) = bitmap.words.last_mut() {
            *word &= u64::MAX >> (63 - (len - 1) % 64);
        }
        bitmap.count = bitmap.words.iter().map(|word| word.count_ones()).sum();
        bitmap
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_of_a_range_are_counted() {
        let mut map = Bitmap::new(300);
        let bits = [0, 1, 63, 64, 65, 127, 128, 200, 299];
        for bit in bits {
            map.set(bit);
        }
        for from in 0..=300 {
            for to in from..=300 {
                let expected = bits.iter().filter(|b| (from..to).contains(*b)).count();
                assert_eq!(map.count_in(from..to) as usize, expected, "{from}..{to}");
            }
        }
    }

    #[test]
    fn a_bitmap_counts_and_survives_its_bytes() {
        let mut bitmap = Bitmap::new(130);
        assert!(bitmap.set(0) && bitmap.set(129) && bitmap.set(64) && !bitmap.set(64));
        assert_eq!(bitmap.count(), 3);
        let mut bytes = [0xFF; 40];
        bitmap.write_bytes(0, &mut bytes);
        assert_eq!(bytes[24..], [0; 16], "zeros after it");
        assert_eq!(Bitmap::from_bytes(130, &bytes), bitmap);
        assert_eq!(Bitmap::from_bytes(130, &bytes[..17]), bitmap);
        let all = [0xFF; 40];
        for len in [0, 1, 63, 64, 65, 130] {
            for bytes in [0u32, 5, 8, 9, 40] {
                let read = Bitmap::from_bytes(len, &all[..bytes as usize]);
                let count = len.min(8 * bytes);
                assert!(read.iter().eq(0..count), "{len} bits of {bytes} bytes");
                assert_eq!((read.count(), read.last()), (count, count.checked_sub(1)));
            }
        }
        assert!(bitmap.clear(64) && !bitmap.clear(64));
        assert_eq!(bitmap.iter().collect::<Vec<_>>(), vec![0, 129]);
    }
}
