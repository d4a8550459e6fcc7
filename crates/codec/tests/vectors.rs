//! Parity byte-equal to ISA-L and Jerasure, on every kernel this processor has.
#![allow(clippy::unwrap_used, reason = "tests")]

use ashlar_codec::{Code, CodeKind, kernels};

mod sha256;
use sha256::sha256_hex;

/// The data of the vectors: splitmix64 from a state that names code and strip.
fn data_strip(k: usize, m: usize, strip: usize, len: usize) -> Vec<u8> {
    let mut state = (k as u64 * 1000 + m as u64) * 65536 + strip as u64;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        bytes.extend_from_slice(&(z ^ (z >> 31)).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

#[test]
fn parity_is_that_of_isal_and_jerasure() {
    let text = include_str!("erasure.json");
    let entries: serde_json::Value = serde_json::from_str(text).unwrap();
    let entries = entries.as_array().unwrap();
    assert_eq!(entries.len(), 20);
    for entry in entries {
        let number = |name: &str| entry[name].as_u64().unwrap() as usize;
        let (k, m, len) = (number("k"), number("m"), number("len"));
        let name = entry["code"].as_str().unwrap();
        let kind = CodeKind::from_name(name.trim_start_matches("jerasure_")).unwrap();
        let data: Vec<Vec<u8>> = (0..k).map(|strip| data_strip(k, m, strip, len)).collect();
        let data: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
        let code = Code::new(kind, k, m).unwrap();
        let matrix: Vec<u8> = (0..m)
            .flat_map(|i| (0..k).map(move |j| (i, j)))
            .map(|(i, j)| code.coefficient(i, j))
            .collect();
        assert_eq!(
            sha256_hex(&matrix),
            entry["matrix_sha256"].as_str().unwrap(),
            "{name} {k}+{m}"
        );
        for kernel in kernels() {
            let code = Code::with_kernel(kind, k, m, kernel.name).unwrap();
            let mut parity = vec![vec![0xa5u8; len]; m];
            let mut out: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
            code.encode(&data, &mut out);
            let expected = entry["parity"].as_array().unwrap();
            assert_eq!(expected.len(), m);
            for (strip, expected) in parity.iter().zip(expected) {
                let head: String = strip[..16]
                    .iter()
                    .map(|byte| format!("{byte:02x}"))
                    .collect();
                let label = format!("{name} {k}+{m} on {}", kernel.name);
                assert_eq!(head, expected["head"].as_str().unwrap(), "{label}");
                assert_eq!(
                    sha256_hex(strip),
                    expected["sha256"].as_str().unwrap(),
                    "{label}"
                );
            }
        }
    }
}
