//! Known values of the functions underneath, and what the wrapping must guarantee.
#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;

/// The input of the BLAKE3 test vectors: byte i is i mod 251.
fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|i| (i % 251) as u8).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn blake3_known_values() {
    assert_eq!(
        hex(&plain(&[])),
        "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"
    );
    assert_eq!(
        hex(&plain(&[b"abc"])),
        "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85"
    );
    // The official vectors' keyed hash of the empty input, key "whats the Elvish word for friend".
    let key = b"whats the Elvish word for friend";
    assert_eq!(
        hex(blake3::keyed_hash(key, b"").as_bytes()),
        "92b2b75604ed3c761f9d6f62392c8a9227ad0ea3f09573e783f1498a4ed60d26"
    );
    // Ours is that function over parts, context and its length.
    let bytes = pattern(4096);
    let mut whole = bytes.clone();
    whole.extend_from_slice(b"where");
    whole.extend_from_slice(&5u64.to_le_bytes());
    assert_eq!(
        keyed(Kind::Blake3, key, b"where", &[&bytes[..100], &bytes[100..]]),
        *blake3::keyed_hash(key, &whole).as_bytes()
    );
}

#[test]
fn xxh3_known_values() {
    // The reference implementation's values for the empty input and for "abc".
    assert_eq!(xxh3::xxh3_128(b""), 0x99aa06d3014798d86001c324468d497f);
    assert_eq!(xxh3::xxh3_64(b""), 0x2d06800538d394c2);
    assert_eq!(xxh3::xxh3_64(b"abc"), 0x78af5f94892f3950);
    let key = [7; 32];
    for length in [0, 1, 17, 200, 300, 4096, 65536] {
        let bytes = pattern(length);
        let mut whole = bytes.clone();
        whole.extend_from_slice(b"ctx");
        whole.extend_from_slice(&3u64.to_le_bytes());
        let expected = xxh3::xxh3_128_with_seed(&whole, xxh3::xxh3_64(&key)).to_be_bytes();
        let digest = keyed(
            Kind::Xxh3,
            &key,
            b"ctx",
            &[&bytes[..length / 3], &bytes[length / 3..]],
        );
        assert_eq!(digest[..16], expected, "length {length}");
        assert_eq!(digest[16..], [0; 16]);
    }
}

#[test]
fn every_bit_matters() {
    for kind in Kind::ALL {
        for length in [1, 16, 240, 241, 600] {
            let mut key = [0x5a; 32];
            let mut context = *b"context!";
            let mut bytes = pattern(length);
            let first = keyed(kind, &key, &context, &[&bytes]);
            let mut seen = std::collections::BTreeSet::from([first]);
            for bit in 0..256 {
                key[bit / 8] ^= 1 << (bit % 8);
                assert!(
                    seen.insert(keyed(kind, &key, &context, &[&bytes])),
                    "key bit {bit}"
                );
                key[bit / 8] ^= 1 << (bit % 8);
            }
            for bit in 0..64 {
                context[bit / 8] ^= 1 << (bit % 8);
                assert!(
                    seen.insert(keyed(kind, &key, &context, &[&bytes])),
                    "context bit {bit}"
                );
                context[bit / 8] ^= 1 << (bit % 8);
            }
            for bit in 0..length * 8 {
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert!(
                    seen.insert(keyed(kind, &key, &context, &[&bytes])),
                    "bit {bit}"
                );
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
            assert_eq!(keyed(kind, &key, &context, &[&bytes]), first);
        }
    }
}

#[test]
fn context_and_data_cannot_be_confused() {
    let key = [1; 32];
    for kind in Kind::ALL {
        assert_ne!(
            keyed(kind, &key, b"ab", &[b"c"]),
            keyed(kind, &key, b"a", &[b"bc"])
        );
        assert_ne!(
            keyed(kind, &key, b"", &[b"abc"]),
            keyed(kind, &key, b"abc", &[])
        );
        assert_eq!(
            keyed(kind, &key, b"x", &[b"a", b"bc"]),
            keyed(kind, &key, b"x", &[b"abc"])
        );
        assert_ne!(
            keyed(kind, &key, b"x", &[b"abc"]),
            keyed(kind, &key, b"x", &[b"abc\0"])
        );
    }
}

#[test]
fn block_is_the_first_half() {
    let bytes = pattern(4096);
    for kind in Kind::ALL {
        let whole = keyed(kind, &[9; 32], b"7", &[&bytes]);
        assert_eq!(block(kind, &[9; 32], b"7", &bytes), whole[..16]);
    }
}

#[test]
fn tags_and_names_are_fixed() {
    assert_eq!(Kind::Blake3.tag(), 1);
    assert_eq!(Kind::Xxh3.tag(), 2);
    for kind in Kind::ALL {
        assert_eq!(Kind::from_tag(kind.tag()), Some(kind));
        assert_eq!(Kind::from_name(kind.name()), Some(kind));
    }
    for tag in [0, 3, 4, 5, 6, 7, 8, 255] {
        assert_eq!(Kind::from_tag(tag), None);
    }
    assert_eq!(Kind::from_name("md5"), None);
}

#[test]
fn several_blocks_have_the_digests_of_each() {
    let key = &[9; 32];
    // Lengths that go side by side, and those that do not; contexts from none to too long for it.
    for length in [0, 1, 1000, 1024, 2048, 3072, 4096, 4097, 8192, 16384, 32768] {
        for count in [0, 1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 33, 64] {
            let bytes: Vec<Vec<u8>> = (0..count)
                .map(|number: usize| {
                    (0..length)
                        .map(|i| (i * 7 + number * 13 + i / 251) as u8)
                        .collect()
                })
                .collect();
            for context in [0, 1, 13, 19, 55, 56, 57, 200] {
                let context =
                    |number: usize| vec![number as u8 ^ 0x5a; (context + number % 2).min(200)];
                for kind in Kind::ALL {
                    let blocks: Vec<(Vec<u8>, &[u8])> = bytes
                        .iter()
                        .enumerate()
                        .map(|(number, bytes)| (context(number), &bytes[..]))
                        .collect();
                    let mut digests = vec![[0; 16]; count];
                    super::blocks(kind, key, &blocks, &mut digests);
                    for ((context, bytes), digest) in blocks.iter().zip(&digests) {
                        assert_eq!(
                            *digest,
                            block(kind, key, context, bytes),
                            "{count} of {length}"
                        );
                    }
                }
            }
        }
    }
    // Blocks of different lengths in one call.
    let (short, long) = (pattern(1024), pattern(4096));
    let mut digests = [[0; 16]; 2];
    super::blocks(
        Kind::Blake3,
        key,
        &[(b"a", &short[..]), (b"b", &long[..])],
        &mut digests,
    );
    assert_eq!(digests[0], block(Kind::Blake3, key, b"a", &short));
    assert_eq!(digests[1], block(Kind::Blake3, key, b"b", &long));
}
