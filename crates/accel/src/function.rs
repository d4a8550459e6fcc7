//! The digest functions that jobs can ask for, and the processor's way to compute them.
//!
//! **Invariants**: [`Function::bytes`] bytes are written, always; a keyed digest is exactly that of
//! [`ashlar_digest::keyed`].

/// A digest function.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Function {
    /// BLAKE3 with 32 bytes.
    Blake3,
    /// SHA-256.
    Sha256,
    /// SHA-512.
    Sha512,
    /// SHA3-256.
    Sha3_256,
    /// SHA3-512.
    Sha3_512,
    /// CRC32C; 4 bytes, little-endian.
    Crc32c,
    /// XXH3 with 128 bits in the form of `ashlar-digest`; on the processor only.
    Xxh3,
}

impl Function {
    /// All of them.
    pub const ALL: [Function; 7] = [
        Function::Blake3,
        Function::Sha256,
        Function::Sha512,
        Function::Sha3_256,
        Function::Sha3_512,
        Function::Crc32c,
        Function::Xxh3,
    ];

    /// Those that a GPU computes.
    pub const ON_DEVICE: [Function; 6] = [
        Function::Blake3,
        Function::Sha256,
        Function::Sha512,
        Function::Sha3_256,
        Function::Sha3_512,
        Function::Crc32c,
    ];

    /// The name used on the command line and in properties.
    pub const fn name(self) -> &'static str {
        match self {
            Function::Blake3 => "blake3",
            Function::Sha256 => "sha256",
            Function::Sha512 => "sha512",
            Function::Sha3_256 => "sha3-256",
            Function::Sha3_512 => "sha3-512",
            Function::Crc32c => "crc32c",
            Function::Xxh3 => "xxh3",
        }
    }

    /// The function with this name.
    pub fn from_name(name: &str) -> Option<Function> {
        Function::ALL.into_iter().find(|f| f.name() == name)
    }

    /// Bytes of a digest.
    pub const fn bytes(self) -> usize {
        match self {
            Function::Blake3 | Function::Sha256 | Function::Sha3_256 | Function::Xxh3 => 32,
            Function::Sha512 | Function::Sha3_512 => 64,
            Function::Crc32c => 4,
        }
    }

    /// Whether there is a keyed form.
    pub const fn is_keyed(self) -> bool {
        matches!(self, Function::Blake3 | Function::Xxh3)
    }

    pub(crate) const fn index(self) -> usize {
        self as usize
    }

    /// The digest of `bytes` followed by `suffix`.
    pub(crate) fn plain(self, bytes: &[u8], suffix: &[u8], out: &mut [u8]) {
        match self {
            Function::Blake3 => out.copy_from_slice(&ashlar_digest::plain(&[bytes, suffix])),
            Function::Sha256 => chained::<sha2::Sha256>(bytes, suffix, out),
            Function::Sha512 => chained::<sha2::Sha512>(bytes, suffix, out),
            Function::Sha3_256 => chained::<sha3::Sha3_256>(bytes, suffix, out),
            Function::Sha3_512 => chained::<sha3::Sha3_512>(bytes, suffix, out),
            Function::Crc32c => {
                let crc = crc32c::crc32c_append(crc32c::crc32c(bytes), suffix);
                out.copy_from_slice(&crc.to_le_bytes());
            }
            Function::Xxh3 => {
                // XXH3 has a keyed form only; all zeros stand for no key.
                let kind = ashlar_digest::Kind::Xxh3;
                let whole = ashlar_digest::keyed(kind, &[0; 32], &[], &[bytes, suffix]);
                out.copy_from_slice(&whole);
            }
        }
    }

    /// The keyed digests of messages, given as context and bytes, one after another; the function has a keyed form.
    pub(crate) fn keyed(self, key: &[u8; 32], messages: &[(&[u8], &[u8])], out: &mut [u8]) {
        let kind = match self {
            Function::Xxh3 => ashlar_digest::Kind::Xxh3,
            _ => ashlar_digest::Kind::Blake3,
        };
        let (digests, rest) = out.as_chunks_mut::<32>();
        assert!(rest.is_empty(), "whole digests");
        ashlar_digest::blocks(kind, key, messages, digests);
    }
}

fn chained<D: sha2::Digest>(bytes: &[u8], suffix: &[u8], out: &mut [u8]) {
    let digest = D::new().chain_update(bytes).chain_update(suffix).finalize();
    out.copy_from_slice(&digest);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(function: Function, bytes: &[u8]) -> String {
        let mut out = vec![0; function.bytes()];
        let (head, tail) = bytes.split_at(bytes.len() / 2);
        function.plain(head, tail, &mut out);
        out.iter().map(|b| format!("{b:02x}")).collect()
    }

    /// FIPS 180-4 and 202 examples, RFC 3720 B.4, and the BLAKE3 paper's test vector for no input.
    #[test]
    fn known_answers() {
        let abc = b"abc";
        assert_eq!(
            hex(Function::Sha256, abc),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        assert!(hex(Function::Sha512, abc).starts_with("ddaf35a193617abacc417349ae204131"));
        assert_eq!(
            hex(Function::Sha3_256, abc),
            "3a985da74fe225b2045c172d6bd390bd855f086e3e9d525b46bfe24511431532"
        );
        assert!(hex(Function::Sha3_512, abc).starts_with("b751850b1a57168a5693cd924b6b096e"));
        assert_eq!(hex(Function::Crc32c, &[0; 32]), "aa36918a");
        assert_eq!(hex(Function::Crc32c, &[0xff; 32]), "43aba862");
        assert_eq!(
            hex(Function::Blake3, b""),
            "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"
        );
    }

    #[test]
    fn names_are_read_back() {
        for function in Function::ALL {
            assert_eq!(Function::from_name(function.name()), Some(function));
        }
        assert_eq!(Function::from_name("md5"), None);
    }
}
