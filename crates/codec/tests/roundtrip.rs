//! The verbs against the reference: shapes up to 256 strips, lengths around every vector width,
//! any alignment, any lost set, on every kernel.
#![allow(clippy::unwrap_used, reason = "tests")]

use ashlar_codec::{Code, CodeError, CodeKind, Stripe, kernels};

mod reference;
use reference::Numbers;

/// Strips that begin anywhere in memory: each in its own buffer, after a random number of bytes.
struct Scattered(Vec<(Vec<u8>, usize)>);

impl Scattered {
    fn new(numbers: &mut Numbers, strips: &[Vec<u8>]) -> Scattered {
        let place = |strip: &Vec<u8>| {
            let skip = numbers.below(130);
            let mut buffer = vec![0xee; skip];
            buffer.extend_from_slice(strip);
            buffer.extend_from_slice(&[0xee; 7]);
            (buffer, skip)
        };
        Scattered(strips.iter().map(place).collect())
    }

    fn slices(&self) -> Vec<&[u8]> {
        self.0
            .iter()
            .map(|(buffer, skip)| &buffer[*skip..buffer.len() - 7])
            .collect()
    }

    fn buffers(&mut self) -> Vec<&mut [u8]> {
        let cut = |(buffer, skip): &'_ mut (Vec<u8>, usize)| -> (usize, usize) {
            (*skip, buffer.len() - 7)
        };
        self.0
            .iter_mut()
            .map(|entry| {
                let (from, to) = cut(entry);
                &mut entry.0[from..to]
            })
            .collect()
    }

    /// Panics if a byte around a strip has changed.
    fn check_surroundings(&self) {
        for (buffer, skip) in &self.0 {
            assert!(buffer[..*skip].iter().all(|&byte| byte == 0xee));
            assert!(buffer[buffer.len() - 7..].iter().all(|&byte| byte == 0xee));
        }
    }
}

/// Every verb once, at one shape, length and kernel, or in the streamed form.
fn every_verb(kind: CodeKind, k: usize, m: usize, len: usize, kernel: &str, numbers: &mut Numbers) {
    let code = Code::with_kernel(kind, k, m, kernel).unwrap();
    let code = if numbers.below(3) == 0 {
        code.streamed()
    } else {
        code
    };
    let label = format!("{} {k}+{m} of {len} on {kernel}", kind.name());
    let data = numbers.strips(k, len);
    let truth = reference::strips(&code, &data);
    let sources = Scattered::new(numbers, &data);
    let mut parity = Scattered::new(numbers, &vec![vec![0x77; len]; m]);
    code.encode(&sources.slices(), &mut parity.buffers());
    assert!(parity.slices() == truth[k..], "encode {label}");
    parity.check_surroundings();
    assert!(
        code.verify(&sources.slices(), &parity.slices()),
        "verify {label}"
    );

    if m > 0 && len > 0 {
        // A single wrong bit anywhere is seen.
        let (strip, at) = (numbers.below(k + m), numbers.below(len));
        let mut wrong = truth.clone();
        wrong[strip][at] ^= 1 << numbers.below(8);
        let wrong: Vec<&[u8]> = wrong.iter().map(Vec::as_slice).collect();
        assert!(
            !code.verify(&wrong[..k], &wrong[k..]),
            "verify of a wrong strip {strip} {label}"
        );
    }

    // Lose as many as can be lost, decode some of them and perhaps some that are present.
    let whole = Scattered::new(numbers, &truth);
    let whole = whole.slices();
    let mut order: Vec<usize> = (0..k + m).collect();
    for i in 0..k + m {
        order.swap(i, i + numbers.below(k + m - i));
    }
    let lost = &order[..m];
    let strips: Vec<Option<&[u8]>> = (0..k + m)
        .map(|strip| (!lost.contains(&strip)).then_some(whole[strip]))
        .collect();
    let wanted = &order[..(m + 2).min(k + m)];
    for wanted in [wanted, &wanted[..1], &lost[..m.min(3)]] {
        let mut out = Scattered::new(numbers, &vec![vec![0x33; len]; wanted.len()]);
        code.decode(&strips, wanted, &mut out.buffers()).unwrap();
        for (ours, &strip) in out.slices().iter().zip(wanted) {
            assert!(
                **ours == truth[strip],
                "decode {strip} with {lost:?} lost {label}"
            );
        }
        out.check_surroundings();
    }

    // The same with the decoding worked out before.
    let present: Vec<bool> = strips.iter().map(Option::is_some).collect();
    let decoder = code.decoder(&present, lost).unwrap();
    let read: Vec<&[u8]> = decoder.reads().iter().map(|&strip| whole[strip]).collect();
    let mut out = Scattered::new(numbers, &vec![vec![0x33; len]; m]);
    decoder.decode(&read, &mut out.buffers());
    for (ours, &strip) in out.slices().iter().zip(decoder.writes()) {
        assert!(
            **ours == truth[strip],
            "decoder of {strip} with {lost:?} lost {label}"
        );
    }
    out.check_surroundings();

    // Change one data strip.
    let changed = numbers.below(k);
    let mut later = data.clone();
    later[changed] = numbers.strips(1, len).remove(0);
    let old_and_new = [data[changed].clone(), later[changed].clone()];
    let old_and_new = Scattered::new(numbers, &old_and_new);
    let old_and_new = old_and_new.slices();
    code.update(
        changed,
        old_and_new[0],
        old_and_new[1],
        &mut parity.buffers(),
    );
    assert!(
        parity.slices() == reference::strips(&code, &later)[k..],
        "update {changed} {label}"
    );
    parity.check_surroundings();
}

#[test]
fn lengths_around_every_vector_width() {
    let mut numbers = Numbers(1);
    for kernel in kernels() {
        for width in [0usize, 8, 16, 32, 64, 128, 192, 256, 512, 1024] {
            for len in width.saturating_sub(1)..=width + 1 {
                for (k, m) in [(5, 2), (4, 12)] {
                    every_verb(CodeKind::IsalCauchy, k, m, len, kernel.name, &mut numbers);
                    every_verb(CodeKind::CauchyGood, k, m, len, kernel.name, &mut numbers);
                }
            }
        }
    }
}

#[test]
fn every_number_of_rows_and_of_sources_in_a_group() {
    let mut numbers = Numbers(2);
    for kernel in kernels() {
        for k in 1..=18 {
            for m in [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13] {
                every_verb(CodeKind::IsalCauchy, k, m, 200, kernel.name, &mut numbers);
            }
        }
    }
}

#[test]
fn samples_of_all_shapes() {
    let mut numbers = Numbers(3);
    for kernel in kernels() {
        for (k, m) in [
            (1, 255),
            (255, 1),
            (128, 128),
            (200, 40),
            (80, 20),
            (240, 16),
            (250, 6),
        ] {
            for kind in CodeKind::ALL {
                if Code::new(kind, k, m).is_ok() {
                    every_verb(kind, k, m, 323, kernel.name, &mut numbers);
                }
            }
        }
        for _ in 0..40 {
            let k = 1 + numbers.below(60);
            let m = numbers.below(40);
            let len = numbers.below(3000);
            let kind = CodeKind::ALL[numbers.below(CodeKind::ALL.len())];
            if Code::new(kind, k, m).is_ok() {
                every_verb(kind, k, m, len, kernel.name, &mut numbers);
            }
        }
    }
}

#[test]
fn transforms_of_every_size() {
    let mut numbers = Numbers(8);
    for kernel in kernels() {
        for m in [
            1, 3, 5, 7, 8, 9, 12, 15, 16, 17, 20, 23, 31, 32, 33, 40, 45, 64, 65, 70, 80, 100, 128,
            130, 140,
        ] {
            let most = 256 - m;
            for k in [1, 8, 15, 33, 64, 100, 128, 191, most - 7, most] {
                let len = [64, 130, 1500][numbers.below(3)];
                if k <= most && k * m * len < 2_000_000 {
                    every_verb(CodeKind::Fft, k, m, len, kernel.name, &mut numbers);
                }
            }
        }
    }
}

#[test]
fn long_strips_cross_tiles() {
    let mut numbers = Numbers(4);
    for kernel in kernels() {
        for (k, m) in [(3, 2), (5, 11), (9, 14)] {
            every_verb(CodeKind::IsalCauchy, k, m, 9000, kernel.name, &mut numbers);
            every_verb(CodeKind::CauchyOrig, k, m, 5000, kernel.name, &mut numbers);
            every_verb(CodeKind::Fft, k, m, 5000, kernel.name, &mut numbers);
        }
    }
}

#[test]
fn few_rows_of_many_long_strips_from_memory() {
    let mut numbers = Numbers(8);
    for kernel in kernels().filter(|kernel| kernel.name != "portable") {
        // Longer than the longest tile of so many rows, and what is left shorter than is fetched ahead.
        for (m, len) in [(1, 263_000), (2, 133_000), (3, 90_000), (8, 34_000)] {
            let code = Code::with_kernel(CodeKind::IsalCauchy, 17, m, kernel.name).unwrap();
            let data = numbers.strips(17, len);
            let data: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
            let mut parity = vec![vec![1; len]; m];
            let mut write: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
            code.encode(&data, &mut write);
            // Written around the caches where every result is aligned to 64, through them else.
            for skip in [0, 1] {
                let mut memory = vec![2; m * (len + 128) + 64];
                let first = memory.as_ptr().align_offset(64) + skip;
                let mut write: Vec<&mut [u8]> = memory[first..]
                    .chunks_exact_mut((len + 64).next_multiple_of(64))
                    .map(|strip| &mut strip[..len])
                    .take(m)
                    .collect();
                code.streamed().encode(&data, &mut write);
                assert!(write == parity, "17+{m} of {len} on {}", kernel.name);
            }
        }
    }
}

#[test]
fn batches_are_the_same_as_single_stripes() {
    let mut numbers = Numbers(7);
    for (k, m) in [(8, 2), (17, 3), (20, 12)] {
        for kernel in kernels() {
            let code = Code::with_kernel(CodeKind::IsalCauchy, k, m, kernel.name).unwrap();
            for code in [code.clone(), code.streamed()] {
                // Stripes of different lengths in one batch.
                let lengths = [300, 4096, 64, 0, 1000];
                let data: Vec<_> = lengths.iter().map(|&len| numbers.strips(k, len)).collect();
                let read: Vec<Vec<&[u8]>> = data
                    .iter()
                    .map(|strips| strips.iter().map(Vec::as_slice).collect())
                    .collect();
                let blank: Vec<_> = lengths.iter().map(|&len| vec![vec![9u8; len]; m]).collect();

                let mut parity = blank.clone();
                let mut write: Vec<Vec<&mut [u8]>> = buffers(&mut parity);
                let mut batch: Vec<Stripe<'_, '_>> = stripes(&read, &mut write);
                code.encode_batch(&mut batch);
                for (data, parity) in data.iter().zip(&parity) {
                    assert!(reference::strips(&code, data)[k..] == parity[..]);
                }

                // Lose the first data strips and get them back from the rest and the parity.
                let present: Vec<bool> = (0..k + m).map(|strip| strip >= m).collect();
                let lost: Vec<usize> = (0..m).collect();
                let decoder = code.decoder(&present, &lost).unwrap();
                assert_eq!(decoder.writes(), lost);
                let all: Vec<Vec<&[u8]>> = data
                    .iter()
                    .zip(&parity)
                    .map(|(data, parity)| data.iter().chain(parity).map(Vec::as_slice).collect())
                    .collect();
                let read: Vec<Vec<&[u8]>> = all
                    .iter()
                    .map(|all| decoder.reads().iter().map(|&strip| all[strip]).collect())
                    .collect();
                let mut out = blank;
                let mut write = buffers(&mut out);
                decoder.decode_batch(&mut stripes(&read, &mut write));
                for (data, out) in data.iter().zip(&out) {
                    assert!(data[..m] == out[..]);
                }
            }
        }
    }
}

fn buffers(strips: &mut [Vec<Vec<u8>>]) -> Vec<Vec<&mut [u8]>> {
    strips
        .iter_mut()
        .map(|stripe| stripe.iter_mut().map(Vec::as_mut_slice).collect())
        .collect()
}

fn stripes<'s, 'b>(
    read: &'s [Vec<&'b [u8]>],
    write: &'s mut [Vec<&'b mut [u8]>],
) -> Vec<Stripe<'s, 'b>> {
    read.iter()
        .zip(write)
        .map(|(read, write)| Stripe { read, write })
        .collect()
}

#[test]
fn xor_and_copies() {
    let mut numbers = Numbers(5);
    let data = numbers.strips(6, 100);
    let sources: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
    for kind in [
        CodeKind::IsalRs,
        CodeKind::JerasureReedSolVan,
        CodeKind::CauchyGood,
    ] {
        // One parity is the XOR of the data.
        let code = Code::new(kind, 6, 1).unwrap();
        let mut parity = vec![0; 100];
        code.encode(&sources, &mut [&mut parity]);
        for (at, &byte) in parity.iter().enumerate() {
            assert_eq!(byte, data.iter().fold(0, |sum, strip| sum ^ strip[at]));
        }
        // With one data strip, parities are copies of it.
        let code = Code::new(kind, 1, 3).unwrap();
        let mut copies = vec![vec![0; 100]; 3];
        let mut buffers: Vec<&mut [u8]> = copies.iter_mut().map(Vec::as_mut_slice).collect();
        code.encode(&sources[..1], &mut buffers);
        assert!(copies.iter().all(|copy| *copy == data[0]), "{kind:?}");
    }
}

#[test]
fn wrong_calls_are_answered() {
    let shape = |k, m| Code::new(CodeKind::IsalCauchy, k, m).map(|_| ());
    assert_eq!(shape(0, 2), Err(CodeError::Shape { k: 0, m: 2 }));
    assert_eq!(shape(200, 57), Err(CodeError::Shape { k: 200, m: 57 }));
    assert_eq!(
        shape(usize::MAX, 2),
        Err(CodeError::Shape {
            k: usize::MAX,
            m: 2
        })
    );
    assert_eq!(shape(256, 0), Ok(()));
    let kind = CodeKind::IsalRs;
    let refused = Code::new(kind, 22, 4).map(|_| ()).unwrap_err();
    assert_eq!(refused, CodeError::NotMds { kind, k: 22, m: 4 });
    assert!(refused.to_string().contains("isal_rs"));
    assert!(Code::new(kind, 21, 4).is_ok());
    let none = Code::with_kernel(CodeKind::IsalCauchy, 2, 1, "abacus").map(|_| ());
    assert_eq!(none, Err(CodeError::NoKernel));

    let code = Code::new(CodeKind::IsalCauchy, 3, 2).unwrap();
    let strip = [0u8; 10];
    let (some, none) = (Some(&strip[..]), None);
    let mut buffer = [0u8; 10];
    let mut short = [0u8; 9];
    let out = &mut [&mut buffer[..]];
    assert_eq!(code.decode(&[some; 4], &[0], out), Err(CodeError::Strips));
    assert_eq!(
        code.decode(&[some; 5], &[0, 1], out),
        Err(CodeError::Strips)
    );
    assert_eq!(
        code.decode(&[some; 5], &[5], out),
        Err(CodeError::NoStrip { strip: 5 })
    );
    assert_eq!(
        code.decode(&[some; 5], &[0], &mut [&mut short]),
        Err(CodeError::Lengths)
    );
    let two = [none, some, none, some, none];
    assert_eq!(
        code.decode(&two, &[0], out),
        Err(CodeError::TooFew {
            present: 2,
            needed: 3
        })
    );
    assert_eq!(code.decode(&two, &[], &mut []), Ok(()));
    let mut other = [0u8; 10];
    let twice = &mut [&mut buffer[..], &mut other[..]];
    assert_eq!(
        code.decode(&[some; 5], &[1, 1], twice),
        Err(CodeError::Strips)
    );

    let plan = |present: &[bool], wanted: &[usize]| code.decoder(present, wanted).map(|_| ());
    assert_eq!(plan(&[true; 4], &[0]), Err(CodeError::Strips));
    assert_eq!(plan(&[true; 5], &[0]), Err(CodeError::NoStrip { strip: 0 }));
    assert_eq!(plan(&[true; 5], &[7]), Err(CodeError::NoStrip { strip: 7 }));
    let two = [false, true, true, false, false];
    assert_eq!(
        plan(&two, &[0]),
        Err(CodeError::TooFew {
            present: 2,
            needed: 3
        })
    );
    let three = [false, true, true, false, true];
    assert_eq!(plan(&three, &[0, 0]), Err(CodeError::Strips));
    assert_eq!(plan(&three, &[0, 3]), Ok(()));
}

#[test]
fn decode_from_any_order_and_the_cache() {
    let mut numbers = Numbers(6);
    let code = Code::new(CodeKind::IsalCauchy, 10, 6).unwrap();
    let data = numbers.strips(10, 64);
    let truth = reference::strips(&code, &data);
    // More patterns than the cache holds, each more than once and from two threads.
    std::thread::scope(|scope| {
        for seed in 0..2 {
            let (code, truth) = (code.clone(), &truth);
            scope.spawn(move || {
                let mut numbers = Numbers(100 + seed);
                for _ in 0..20_000 {
                    let lost = numbers.next() as u16;
                    if lost.count_ones() > 6 || lost == 0 {
                        continue;
                    }
                    let strips: Vec<Option<&[u8]>> = (0..16)
                        .map(|strip| (lost >> strip & 1 == 0).then_some(&truth[strip][..]))
                        .collect();
                    let mut wanted: Vec<usize> = (0..16).filter(|s| lost >> s & 1 == 1).collect();
                    wanted.reverse();
                    let mut out = vec![vec![0; 64]; wanted.len()];
                    let mut buffers: Vec<&mut [u8]> =
                        out.iter_mut().map(Vec::as_mut_slice).collect();
                    code.decode(&strips, &wanted, &mut buffers).unwrap();
                    assert!(
                        out.iter()
                            .zip(&wanted)
                            .all(|(out, &strip)| *out == truth[strip])
                    );
                }
            });
        }
    });
}
