//! Digest kernels against the processor's functions, bit for bit.

use ashlar_accel::{Accelerator, Digests, Form, Function, Of};

use crate::standin::{self, Random, Recipe, device, launches, small};

pub const ALL: &[crate::Scenario] = &[
    ("digests::published_vectors", published_vectors),
    ("digests::every_length_up_to_300", every_length_up_to_300),
    ("digests::lengths_around_borders", lengths_around_borders),
    ("digests::many_messages", many_messages),
    ("digests::suffixes_and_keys", suffixes_and_keys),
    ("digests::trees", trees),
    (
        "digests::what_the_kernels_cannot_take",
        what_the_kernels_cannot_take,
    ),
];

fn recipe(
    function: Function,
    strip: usize,
    strips: usize,
    block: usize,
    random: &mut Random,
) -> Recipe {
    let digests = Digests {
        function,
        block,
        of: Of::Read,
        form: Form::Plain,
        tree: None,
    };
    Recipe {
        strip,
        read: random.bytes(strip * strips).into(),
        written: 0,
        coding: None,
        digests: Some(digests),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// FIPS 180-4 (SHA-2) and FIPS 202 (SHA-3) examples for "abc" and for the 56 and 112 bytes that fill more
/// than a block; RFC 3720 B.4 and "123456789" for CRC32C; the first inputs of BLAKE3's test vectors.
fn published_vectors() {
    standin::reset(1);
    let device = device(small(64 << 10));
    let long = b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq".as_slice();
    let longer = b"abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu".as_slice();
    let count: Vec<u8> = (0..251u8).cycle().take(1025).collect();
    let vectors: [(Function, &[u8], &str); 12] = [
        (
            Function::Sha256,
            b"abc",
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
        ),
        (
            Function::Sha256,
            long,
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1",
        ),
        (
            Function::Sha512,
            b"abc",
            "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f",
        ),
        (
            Function::Sha512,
            longer,
            "8e959b75dae313da8cf4f72814fc143f8f7779c6eb9f7fa17299aeadb6889018501d289e4900f7e4331b99dec4b5433ac7d329eeb6dd26545e96e55b874be909",
        ),
        (
            Function::Sha3_256,
            b"abc",
            "3a985da74fe225b2045c172d6bd390bd855f086e3e9d525b46bfe24511431532",
        ),
        (
            Function::Sha3_256,
            long,
            "41c0dba2a9d6240849100376a8235e2c82e1b9998a999e21db32dd97496d3376",
        ),
        (
            Function::Sha3_512,
            b"abc",
            "b751850b1a57168a5693cd924b6b096e08f621827444f70d884f5d0240d2712e10e116e9192af3c91a7ec57647e3934057340b4cf408d5a56592f8274eec53f0",
        ),
        (
            Function::Sha3_512,
            long,
            "04a371e84ecfb5b8b77cb48610fca8182dd457ce6f326a0fd3d7ec2f1e91636dee691fbe0c985302ba1b0d8dc78c086346b533b49c030d99a27daf1139d6e75e",
        ),
        (Function::Crc32c, b"123456789", "839206e3"),
        (Function::Crc32c, &[0; 32], "aa36918a"),
        (
            Function::Blake3,
            &count[..1],
            "2d3adedff11b61f14c886e35afa036736dcd87a74d27b5c1510225d0f592e213",
        ),
        (
            Function::Blake3,
            &count[..1024],
            "42214739f095a406f3fc83deb889744ac00df831c10daa55189b5d121c855af7",
        ),
    ];
    for (function, bytes, expected) in vectors {
        let mut recipe = recipe(function, bytes.len(), 1, bytes.len(), &mut Random::new(1));
        recipe.read = bytes.into();
        let done = device.submit(recipe.job()).wait();
        assert_eq!(done.ran, ashlar_accel::Ran::Cuda(0));
        assert_eq!(
            hex(&done.digests),
            expected,
            "{function:?} of {} bytes",
            bytes.len()
        );
    }
}

fn each(test: impl Fn(Function, &Accelerator, &mut Random), slot_bytes: usize) {
    for (seed, function) in (1..).zip(Function::ON_DEVICE) {
        standin::reset(seed);
        let device = device(small(slot_bytes));
        test(function, &device, &mut Random::new(seed));
    }
}

fn every_length_up_to_300() {
    each(
        |function, device, random| {
            // A strip of all lengths: block n of a job of its own.
            for length in 1..=300 {
                recipe(function, length, 2, length, random).compare(device);
            }
        },
        64 << 10,
    );
}

fn lengths_around_borders() {
    each(
        |function, device, random| {
            for border in [1024, 2048, 3072, 4096, 8192, 16384] {
                for length in [border - 1, border, border + 1] {
                    recipe(function, length, 1, length, random).compare(device);
                }
            }
            // Blocks that leave a shorter last one, at any alignment.
            for (strip, block) in [(1000, 300), (4096, 1000), (777, 776), (513, 128), (48, 7)] {
                recipe(function, strip, 3, block, random).compare(device);
            }
        },
        64 << 10,
    );
}

fn many_messages() {
    each(
        |function, device, random| {
            // Both sizes of blocks of threads, and more of them than one.
            recipe(function, 1024, 7, 64, random).compare(device);
            recipe(function, 2048, 5, 16, random).compare(device);
            let name = function.name().replace('-', "_");
            assert!(launches(&format!("{name}_messages")) > 0, "{name}");
        },
        1 << 20,
    );
}

fn suffixes_and_keys() {
    each(
        |function, device, random| {
            for (block, each) in [
                (64, 1),
                (100, 40),
                (128, 72),
                (1024, 80),
                (1000, 24),
                (4096, 56),
            ] {
                let mut recipe = recipe(function, 2 * block, 2, block, random);
                let digests = recipe.digests.as_mut().unwrap();
                digests.form = Form::Suffixed {
                    suffixes: random.bytes(4 * each),
                    each,
                };
                recipe.compare(device);
                if !function.is_keyed() {
                    continue;
                }
                let key = random.bytes(32).try_into().unwrap();
                let contexts = random.bytes(4 * each);
                // All of each context, then of each another part of it.
                for lengths in [None, Some((0..4).map(|n| (each * n / 3) as u8).collect())] {
                    recipe.digests.as_mut().unwrap().form = Form::Keyed {
                        key,
                        contexts: contexts.clone(),
                        each,
                        lengths,
                    };
                    recipe.compare(device);
                }
            }
        },
        64 << 10,
    );
}

fn trees() {
    each(
        |function, device, random| {
            for (blocks, fan) in [(1, 2), (2, 2), (9, 2), (16, 4), (33, 32), (20, 3)] {
                let mut recipe = recipe(function, blocks * 64 - 3, 3, 64, random);
                recipe.digests.as_mut().unwrap().tree = Some(fan);
                recipe.compare(device);
                if function.is_keyed() {
                    let contexts = random.bytes(3 * blocks * 8);
                    let key = [7; 32];
                    recipe.digests.as_mut().unwrap().form = Form::Keyed {
                        key,
                        contexts,
                        each: 8,
                        lengths: None,
                    };
                    recipe.compare(device);
                }
            }
        },
        64 << 10,
    );
}

fn what_the_kernels_cannot_take() {
    standin::reset(9);
    let device = device(small(64 << 10));
    let random = &mut Random::new(9);
    // No kernel; more than a slot holds; more digests than a slot holds.
    let cases = [
        recipe(Function::Xxh3, 64, 2, 64, random),
        recipe(Function::Sha256, 128 << 10, 1, 4096, random),
        recipe(Function::Sha3_512, 32 << 10, 1, 1, random),
    ];
    for recipe in cases {
        let done = device.submit(recipe.job()).wait();
        assert_eq!((done.ran, done.fault), (ashlar_accel::Ran::Cpu, None));
        recipe.check(&done);
    }
}
