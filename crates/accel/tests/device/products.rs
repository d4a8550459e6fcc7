//! Encode and decode on the device against the codec, bit for bit.

use std::sync::Arc;

use ashlar_accel::{Coding, Ran};
use ashlar_codec::{Code, CodeKind};

use crate::mistakes::fills_a_slot;
use crate::standin::{self, Random, Recipe, device, launches, small};

pub const ALL: &[crate::Scenario] = &[
    (
        "products::every_tile_and_any_matrix",
        every_tile_and_any_matrix,
    ),
    ("products::any_length", any_length),
    (
        "products::a_slot_filled_to_its_end",
        a_slot_filled_to_its_end,
    ),
    (
        "products::more_coefficients_than_shared_memory",
        more_coefficients_than_shared_memory,
    ),
    ("products::any_loss_is_decoded", any_loss_is_decoded),
    (
        "products::packet_codes_stay_on_the_processor",
        packet_codes_stay_on_the_processor,
    ),
];

/// A recipe for the parity of random data.
pub fn encode(
    random: &mut Random,
    kind: CodeKind,
    k: usize,
    m: usize,
    strip: usize,
    stripes: usize,
) -> Recipe {
    let code = Code::new(kind, k, m).unwrap();
    Recipe {
        strip,
        read: random.bytes(k * strip * stripes).into(),
        written: m * stripes,
        coding: Some(Arc::new(Coding::encode(&code))),
        digests: None,
    }
}

fn every_tile_and_any_matrix() {
    standin::reset(1);
    let device = device(small(512 << 10));
    let mut random = Random::new(1);
    let kinds = [
        CodeKind::IsalCauchy,
        CodeKind::JerasureReedSolVan,
        CodeKind::Fft,
    ];
    for (number, m) in (1..=13).chain([20, 23, 40]).enumerate() {
        let k = 1 + random.below(20);
        let kind = kinds[number % kinds.len()];
        let strip = 16 * (1 + random.below(40));
        let stripes = 1 + random.below(4);
        encode(&mut random, kind, k, m, strip, stripes).compare(&device);
    }
    // The shape of a wide array, in strips of one block, and the fastest code for it.
    encode(&mut random, CodeKind::IsalCauchy, 80, 20, 4096, 1).compare(&device);
    encode(&mut random, CodeKind::IsalRs, 20, 3, 4096, 2).compare(&device);
    for tile in [1, 2, 4, 6, 8, 10] {
        assert!(launches(&format!("gf_product_{tile}")) > 0, "tile {tile}");
    }
}

fn any_length() {
    standin::reset(2);
    let device = device(small(128 << 10));
    let mut random = Random::new(2);
    for strip in (1..=40).chain([255, 257, 4095, 4097]) {
        let (k, m) = (1 + random.below(6), 1 + random.below(6));
        let stripes = 1 + random.below(3);
        encode(&mut random, CodeKind::IsalCauchy, k, m, strip, stripes).compare(&device);
    }
    assert!(launches("gf_product_any") > 0);
}

fn a_slot_filled_to_its_end() {
    standin::reset(6);
    fills_a_slot();
}

fn more_coefficients_than_shared_memory() {
    standin::reset(3);
    let device = device(small(256 << 10));
    let mut random = Random::new(3);
    // 245 strips of 10 rows fill 48 KiB; 246 take a second helping.
    for (k, m) in [(245, 10), (246, 10), (255, 1), (128, 128)] {
        encode(&mut random, CodeKind::IsalCauchy, k, m, 48, 2).compare(&device);
    }
}

fn any_loss_is_decoded() {
    standin::reset(4);
    let device = device(small(256 << 10));
    let mut random = Random::new(4);
    let kinds = [
        CodeKind::IsalCauchy,
        CodeKind::JerasureReedSolVan,
        CodeKind::Fft,
    ];
    for (k, m, kind) in [(4, 2), (10, 4), (8, 8), (1, 3), (40, 10)]
        .into_iter()
        .zip(kinds.iter().cycle())
        .map(|((k, m), kind)| (k, m, *kind))
    {
        let code = Code::new(kind, k, m).unwrap();
        let strip = 64 + 16 * random.below(20);
        let data: Vec<Vec<u8>> = (0..k).map(|_| random.bytes(strip)).collect();
        let mut parity = vec![vec![0; strip]; m];
        let sources: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
        code.encode(
            &sources,
            &mut parity.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>(),
        );
        let strips: Vec<Vec<u8>> = data.into_iter().chain(parity).collect();
        let mut present = vec![true; k + m];
        let mut lost = Vec::new();
        while lost.len() < m {
            let strip = random.below(k + m);
            if std::mem::replace(&mut present[strip], false) {
                lost.push(strip);
            }
        }
        lost.sort_unstable();
        let decoder = code.decoder(&present, &lost).unwrap();
        let read: Vec<u8> = decoder
            .reads()
            .iter()
            .flat_map(|&s| strips[s].clone())
            .collect();
        let recipe = Recipe {
            strip,
            read: read.into(),
            written: m,
            coding: Some(Arc::new(Coding::decode(&code, &decoder))),
            digests: None,
        };
        let done = device.submit(recipe.job()).wait();
        assert_eq!(done.ran, Ran::Cuda(0));
        let original: Vec<u8> = lost.iter().flat_map(|&s| strips[s].clone()).collect();
        assert!(done.write.concat() == original, "{kind:?} {k}+{m}");
    }
}

fn packet_codes_stay_on_the_processor() {
    standin::reset(5);
    let device = device(small(64 << 10));
    let recipe = encode(&mut Random::new(5), CodeKind::CauchyGood, 4, 2, 256, 2);
    let done = device.submit(recipe.job()).wait();
    assert_eq!((done.ran, done.fault), (Ran::Cpu, None));
    recipe.check(&done);
}
