//! In steady state no verb allocates.
#![allow(clippy::unwrap_used, reason = "tests")]

use ashlar_codec::{Code, CodeKind, Stripe, kernels};

/// Panics if the second run of `body` on this thread allocates.
fn allocates_only_at_first(label: &str, mut body: impl FnMut()) {
    body();
    let counted = allocation_counter::measure(&mut body);
    assert_eq!(counted.count_total, 0, "{label}");
}

#[test]
fn no_verb_allocates_in_steady_state() {
    // That the counter counts at all.
    let counted = allocation_counter::measure(|| drop(std::hint::black_box(vec![1u8; 100])));
    assert_eq!(counted.count_total, 1);
    for kernel in kernels() {
        for kind in CodeKind::ALL {
            for (k, m) in [(3, 2), (8, 3), (20, 3), (40, 20), (60, 50)] {
                let Ok(code) = Code::with_kernel(kind, k, m, kernel.name) else {
                    continue;
                };
                for code in [code.clone(), code.streamed()] {
                    every_verb(&code, &format!("{kind:?} {k}+{m} on {}", kernel.name));
                }
            }
        }
    }
}

fn every_verb(code: &Code, label: &str) {
    let (k, m) = (code.k(), code.m());
    let data = vec![vec![7u8; 1111]; k];
    let data: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
    let mut parity = vec![vec![0u8; 1111]; m];
    let mut write: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
    allocates_only_at_first(label, || code.encode(&data, &mut write));
    allocates_only_at_first(label, || code.update(1, data[0], data[1], &mut write));
    let mut batch = [Stripe {
        read: &data,
        write: &mut write,
    }];
    allocates_only_at_first(label, || code.encode_batch(&mut batch));

    let read: Vec<&[u8]> = parity.iter().map(Vec::as_slice).collect();
    allocates_only_at_first(label, || assert!(code.verify(&data, &read)));
    let mut strips: Vec<Option<&[u8]>> = data.iter().chain(&read).map(|s| Some(*s)).collect();
    strips[..m.min(k)].fill(None);
    let wanted: Vec<usize> = (0..m.min(k)).collect();
    let mut out = vec![vec![0u8; 1111]; wanted.len()];
    let mut out: Vec<&mut [u8]> = out.iter_mut().map(Vec::as_mut_slice).collect();
    allocates_only_at_first(label, || code.decode(&strips, &wanted, &mut out).unwrap());
}
