//! Reading and writing little-endian integers with every bound checked.

use crate::FormatError;

/// Reads from the front of a byte slice.
#[derive(Debug, Clone)]
pub struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Reads `bytes`.
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader(bytes)
    }
    /// The next `count` bytes.
    pub fn bytes(&mut self, count: usize) -> Result<&'a [u8], FormatError> {
        if count > self.0.len() {
            return Err(FormatError::Value);
        }
        let (head, tail) = self.0.split_at(count);
        self.0 = tail;
        Ok(head)
    }
    /// The next `N` bytes.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], FormatError> {
        self.bytes(N)?.try_into().map_err(|_| FormatError::Value)
    }
    /// The next byte.
    pub fn u8(&mut self) -> Result<u8, FormatError> {
        Ok(self.array::<1>()?[0])
    }
    /// The next two bytes.
    pub fn u16(&mut self) -> Result<u16, FormatError> {
        Ok(u16::from_le_bytes(self.array()?))
    }
    /// The next four bytes.
    pub fn u32(&mut self) -> Result<u32, FormatError> {
        Ok(u32::from_le_bytes(self.array()?))
    }
    /// The next eight bytes.
    pub fn u64(&mut self) -> Result<u64, FormatError> {
        Ok(u64::from_le_bytes(self.array()?))
    }
    /// A string of at most `max` bytes, preceded by its length.
    pub fn string(&mut self, max: usize) -> Result<String, FormatError> {
        let length = usize::from(self.u16()?);
        if length > max {
            return Err(FormatError::Value);
        }
        let bytes = self.bytes(length)?;
        String::from_utf8(bytes.to_vec()).map_err(|_| FormatError::Value)
    }
    /// What has not been read.
    pub fn rest(&self) -> &'a [u8] {
        self.0
    }
}

/// Appends to a growing vector.
#[derive(Debug, Default)]
pub struct Writer(pub Vec<u8>);

impl Writer {
    /// An empty writer.
    pub fn new() -> Writer {
        Writer::default()
    }
    /// Appends bytes as they are.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }
    /// Appends one byte.
    pub fn u8(&mut self, value: u8) -> &mut Self {
        self.bytes(&[value])
    }
    /// Appends two bytes.
    pub fn u16(&mut self, value: u16) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }
    /// Appends four bytes.
    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }
    /// Appends eight bytes.
    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }
    /// Appends a string (at most 65,535 bytes) after its length.
    pub fn string(&mut self, value: &str) -> &mut Self {
        let length = u16::try_from(value.len()).expect("a stored string is below 64 KiB");
        self.u16(length).bytes(value.as_bytes())
    }
    /// Pads with zeros to `size` bytes.
    ///
    /// # Panics
    /// If there are more already.
    pub fn padded(mut self, size: usize) -> Vec<u8> {
        assert!(
            self.0.len() <= size,
            "a structure fits its place: {} > {size}",
            self.0.len()
        );
        self.0.resize(size, 0);
        self.0
    }
}

/// Bytes of a seal, the last of what it seals.
const SEAL_BYTES: usize = 32;

/// What a seal says: unkeyed BLAKE3 of `bytes` with `context`, padded with zeros to 32 bytes, in the place
/// of the seal, which is left there. So a block is hashed as four whole chunks at once.
fn digest_under(context: &[u8], bytes: &mut [u8]) -> [u8; 32] {
    let (_, place) = bytes.split_at_mut(bytes.len() - SEAL_BYTES);
    place.fill(0);
    place[..context.len()].copy_from_slice(context);
    ashlar_digest::plain(&[bytes])
}

/// Seals `bytes` in its last 32 bytes; `context` has at most as many.
pub fn seal(context: &[u8], bytes: &mut [u8]) {
    let digest = digest_under(context, bytes);
    let (_, place) = bytes.split_at_mut(bytes.len() - SEAL_BYTES);
    place.copy_from_slice(&digest);
}

/// Checks a seal and gives the bytes before it.
pub fn unseal<'a>(context: &[u8], bytes: &'a [u8]) -> Result<&'a [u8], FormatError> {
    let body = bytes
        .len()
        .checked_sub(SEAL_BYTES)
        .ok_or(FormatError::Value)?;
    let digest = digest_under(context, &mut bytes.to_vec());
    if bytes[body..] == digest {
        Ok(&bytes[..body])
    } else {
        Err(FormatError::Digest)
    }
}
