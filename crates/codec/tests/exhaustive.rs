//! Every erasure pattern of every code of up to 16 strips, on the fastest and the portable kernel.
#![allow(clippy::unwrap_used, reason = "tests")]

use ashlar_codec::{Code, CodeKind, kernels};

mod reference;

/// Decodes every set of 1 to M lost strips of every K+M with K+M <= `widest`, on each of the given
/// kernels, and returns how many sets there were. Strips have `len` bytes.
fn every_pattern(kind: CodeKind, widest: usize, names: &[&str], len: usize) -> usize {
    let shapes: Vec<(usize, usize)> = (2..=widest)
        .flat_map(|n| (1..n).map(move |m| (n - m, m)))
        .collect();
    // Two threads take shapes in turn, the widest first.
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..2)
            .map(|half| {
                let mine = shapes.iter().rev().skip(half).step_by(2);
                scope.spawn(move || {
                    mine.map(|&(k, m)| every_pattern_of(kind, k, m, names, len))
                        .sum::<usize>()
                })
            })
            .collect();
        workers
            .into_iter()
            .map(|worker| worker.join().unwrap())
            .sum()
    })
}

fn every_pattern_of(kind: CodeKind, k: usize, m: usize, names: &[&str], len: usize) -> usize {
    let n = k + m;
    let mut numbers = reference::Numbers((k * 256 + m) as u64);
    let data = numbers.strips(k, len);
    let Ok(code) = Code::new(kind, k, m) else {
        assert_eq!(kind, CodeKind::IsalRs);
        return 0;
    };
    let truth = reference::strips(&code, &data);
    let codes: Vec<Code> = names
        .iter()
        .map(|name| Code::with_kernel(kind, k, m, name).unwrap())
        .collect();
    for code in &codes {
        let sources: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
        let mut parity = vec![vec![0; len]; m];
        let mut buffers: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
        code.encode(&sources, &mut buffers);
        assert_eq!(parity, truth[k..], "{k}+{m} on {}", code.kernel());
    }
    let mut patterns = 0;
    let mut out = vec![vec![0; len]; m];
    for lost in 1u32..1 << n {
        if lost.count_ones() as usize > m {
            continue;
        }
        patterns += 1;
        let wanted: Vec<usize> = (0..n).filter(|strip| lost >> strip & 1 == 1).collect();
        let strips: Vec<Option<&[u8]>> = truth
            .iter()
            .enumerate()
            .map(|(i, s)| (lost >> i & 1 == 0).then_some(&s[..]))
            .collect();
        for code in &codes {
            out.iter_mut().for_each(|buffer| buffer.fill(0x5a));
            let mut buffers: Vec<&mut [u8]> = out[..wanted.len()]
                .iter_mut()
                .map(Vec::as_mut_slice)
                .collect();
            code.decode(&strips, &wanted, &mut buffers).unwrap();
            for (buffer, &strip) in out.iter().zip(&wanted) {
                assert_eq!(
                    *buffer,
                    truth[strip],
                    "{k}+{m} lost {lost:b} on {}",
                    code.kernel()
                );
            }
        }
    }
    patterns
}

#[test]
fn every_erasure_pattern_up_to_16_strips() {
    let fastest = kernels().next().unwrap().name;
    // 65 bytes: a whole vector of the widest kernel and one byte more.
    assert_eq!(
        every_pattern(CodeKind::IsalCauchy, 16, &[fastest, "portable"], 65),
        982_905
    );
}

#[test]
fn every_erasure_pattern_of_the_other_codes() {
    let names: Vec<&str> = kernels().map(|kernel| kernel.name).collect();
    for kind in CodeKind::ALL {
        let patterns = every_pattern(kind, 9, &names, 70);
        assert!(patterns >= 1000, "{kind:?}: {patterns}");
    }
}
