//! Prints how long a digest of a block takes, one by one and several in a call, from the caches and from
//! memory: `several [BYTES]`. Medians of batches, in nanoseconds a block; one by one and together by turns.
#![allow(clippy::unwrap_used, reason = "a development program")]

use std::hint::black_box;
use std::time::Instant;

use ashlar_digest::{Kind, block, blocks};

/// Batches for each figure.
const BATCHES: usize = 21;
/// Blocks of a batch, at least.
const BATCH: usize = 4096;

fn main() {
    let length: usize = std::env::args()
        .nth(1)
        .map_or(4096, |text| text.parse().unwrap());
    let key = [7; 32];
    for (from, bytes) in [("caches", 256 << 10), ("memory", 256 << 20)] {
        let memory: Vec<u8> = (0..bytes).map(|i: usize| (i ^ (i >> 8)) as u8).collect();
        let all: Vec<([u8; 13], &[u8])> = (0u64..)
            .zip(memory.chunks_exact(length))
            .map(|(address, bytes)| {
                let mut context = [1; 13];
                context[5..].copy_from_slice(&address.to_le_bytes());
                (context, bytes)
            })
            .collect();
        for kind in Kind::ALL {
            for count in [1, 2, 3, 4, 6, 8, 16, 32, 64].map(|count: usize| count.min(all.len())) {
                let mut at = 0;
                let mut digests = vec![[0; 16]; count];
                let mut time = |together: bool| {
                    let calls = BATCH / count;
                    let start = Instant::now();
                    for _ in 0..calls {
                        let some = black_box(&all[at..at + count]);
                        if together {
                            blocks(kind, &key, some, &mut digests);
                        } else {
                            for (digest, (context, bytes)) in digests.iter_mut().zip(some) {
                                *digest = block(kind, &key, context, bytes);
                            }
                        }
                        black_box(&digests);
                        at = if at + 2 * count > all.len() {
                            0
                        } else {
                            at + count
                        };
                    }
                    start.elapsed().as_secs_f64() * 1e9 / (calls * count) as f64
                };
                let mut times = [Vec::new(), Vec::new()];
                for _ in 0..BATCHES {
                    times[0].push(time(false));
                    times[1].push(time(true));
                }
                let [one, together] = times.map(|mut times| {
                    times.sort_by(f64::total_cmp);
                    times[BATCHES / 2]
                });
                println!(
                    "{} {length} bytes from {from}, {count:2} in a call: one by one {one:6.0} ns, together {together:6.0} ns, ratio {:.2}",
                    kind.name(),
                    together / one
                );
            }
        }
    }
}
