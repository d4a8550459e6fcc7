//! Little-endian fields, one after another.
//!
//! **Invariants**: reading beyond the end gives nothing and never panics.

/// A block: what every region, slot and strip is counted in.
pub(crate) const BLOCK: usize = 4096;
/// The same, for sums of offsets.
pub(crate) const BLOCK_BYTES: u64 = 4096;

/// The value of up to eight little-endian bytes.
pub(crate) fn little_endian(bytes: &[u8]) -> u64 {
    let low = bytes.iter().take(8).rev();
    low.fold(0, |value, byte| value << 8 | u64::from(*byte))
}

/// What is left to read.
#[derive(Clone, Debug)]
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    pub(crate) fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(count)?;
        self.0 = tail;
        Some(head)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// A string of at most `most` bytes.
    pub(crate) fn string(&mut self, most: usize) -> Option<String> {
        let length = usize::from(self.u16()?);
        if length > most {
            return None;
        }
        String::from_utf8(self.take(length)?.to_vec()).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_end_where_the_bytes_end() {
        let mut fields = Fields(&[1, 2, 0, 1, 0, b'x', 9]);
        assert_eq!(fields.u8(), Some(1));
        assert_eq!(fields.u16(), Some(2));
        assert_eq!(fields.string(1), Some("x".to_string()));
        assert_eq!(fields.u16(), None);
        assert_eq!(Fields(&[255, 255]).string(9), None);
        assert_eq!(little_endian(&[1, 2, 3]), 0x03_0201);
    }
}
