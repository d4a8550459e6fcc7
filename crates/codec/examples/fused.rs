//! Whether copying, digesting and encoding a stripe is quicker block by block in columns than in
//! passes over the whole stripe: `fused [K+M,...] [STRIP,...]`.
//!
//! Data comes from memory (320 MiB of it in turn), is copied into one of four stripe buffers, each block
//! of 4 KiB of data and parity gets an XXH3-128, and parity is computed. *Three passes*: copy all, digest
//! all, encode all and digest the parity. *Two passes*: each block is copied and digested, then all is
//! encoded and parity digested. *Columns*: block after block, of all strips: copied, digested, encoded,
//! its parity digested.
#![allow(clippy::unwrap_used, reason = "a development program")]

use std::hint::black_box;
use std::time::Duration;

use ashlar_codec::{Code, CodeKind};
use xxhash_rust::xxh3::xxh3_128;

const BLOCK: usize = 4096;
const COLD: usize = 320 << 20;

/// Time that this thread has spent on a processor.
fn on_processor() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32)
}

/// One stripe's buffers: strips that begin 320 bytes further into their pages one after the other.
struct Stripe {
    strips: Vec<Vec<u8>>,
    strip: usize,
}

impl Stripe {
    fn new(n: usize, strip: usize) -> Stripe {
        let strips = (0..n).map(|i| vec![0; strip + 320 * (i % 12)]).collect();
        Stripe { strips, strip }
    }

    /// Bytes `at..at + len` of the data, and of the parity for writing.
    fn parts(&mut self, k: usize, at: usize, len: usize) -> (Vec<&[u8]>, Vec<&mut [u8]>) {
        let strip = self.strip;
        let (data, parity) = self.strips.split_at_mut(k);
        let cut = |whole: &[u8]| whole.len() - strip + at;
        (
            data.iter().map(|s| &s[cut(s)..][..len]).collect(),
            parity
                .iter_mut()
                .map(|s| {
                    let from = cut(s);
                    &mut s[from..][..len]
                })
                .collect(),
        )
    }

    fn block(&mut self, number: usize, at: usize, len: usize) -> &mut [u8] {
        let strip = &mut self.strips[number];
        let from = strip.len() - self.strip + at;
        &mut strip[from..][..len]
    }
}

fn digest(strip: &[u8]) {
    for block in strip.chunks(BLOCK) {
        black_box(xxh3_128(block));
    }
}

fn encode(code: &Code, stripe: &mut Stripe, at: usize, len: usize) {
    let (data, mut parity) = stripe.parts(code.k(), at, len);
    code.encode(&data, &mut parity);
    parity.iter().for_each(|strip| digest(strip));
}

fn three_passes(code: &Code, from: &[&[u8]], stripe: &mut Stripe) {
    for (number, source) in from.iter().enumerate() {
        stripe
            .block(number, 0, source.len())
            .copy_from_slice(source);
    }
    for number in 0..from.len() {
        digest(stripe.block(number, 0, from[0].len()));
    }
    encode(code, stripe, 0, from[0].len());
}

fn two_passes(code: &Code, from: &[&[u8]], stripe: &mut Stripe) {
    for (number, source) in from.iter().enumerate() {
        for (at, block) in source.chunks(BLOCK).enumerate() {
            let to = stripe.block(number, at * BLOCK, BLOCK);
            to.copy_from_slice(block);
            digest(to);
        }
    }
    encode(code, stripe, 0, from[0].len());
}

fn columns(code: &Code, from: &[&[u8]], stripe: &mut Stripe) {
    for at in (0..from[0].len()).step_by(BLOCK) {
        for (number, source) in from.iter().enumerate() {
            let to = stripe.block(number, at, BLOCK);
            to.copy_from_slice(&source[at..][..BLOCK]);
            digest(to);
        }
        encode(code, stripe, at, BLOCK);
    }
}

type Way = fn(&Code, &[&[u8]], &mut Stripe);

fn main() {
    let mut shapes = vec![(8, 2), (80, 20)];
    let mut strips = vec![64 << 10];
    for argument in std::env::args().skip(1) {
        if argument.contains('+') {
            let shape = |text: &str| {
                let (k, m) = text.split_once('+').unwrap();
                (k.parse().unwrap(), m.parse().unwrap())
            };
            shapes = argument.split(',').map(shape).collect();
        } else {
            strips = argument.split(',').map(|s| s.parse().unwrap()).collect();
        }
    }
    let memory: Vec<u8> = (0..COLD as u32)
        .map(|i| (i.wrapping_mul(2654435761) >> 24) as u8)
        .collect();
    let ways: [(&str, Way); 3] = [
        ("three passes", three_passes),
        ("two passes", two_passes),
        ("columns", columns),
    ];
    for (k, m) in shapes {
        for &strip in &strips {
            let code = Code::new(CodeKind::IsalCauchy, k, m).unwrap();
            let mut buffers: Vec<Stripe> = (0..4).map(|_| Stripe::new(k + m, strip)).collect();
            let mut rates = [const { Vec::new() }; 3];
            for _ in 0..7 {
                for ((_, way), rates) in ways.iter().zip(&mut rates) {
                    let start = on_processor();
                    let mut bytes = 0;
                    for (turn, stripe) in memory.chunks_exact(k * strip).enumerate() {
                        let from: Vec<&[u8]> = stripe.chunks(strip).collect();
                        way(&code, &from, &mut buffers[turn % 4]);
                        bytes += stripe.len();
                    }
                    rates.push(bytes as f64 / (on_processor() - start).as_secs_f64());
                }
            }
            for ((name, _), rates) in ways.iter().zip(&mut rates) {
                rates.sort_by(f64::total_cmp);
                println!("{k}+{m} {strip:7} {name:13} {:6.2} GB/s", rates[3] / 1e9);
            }
        }
    }
}
