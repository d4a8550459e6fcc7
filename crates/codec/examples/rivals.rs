//! Our codes beside other libraries, in one process and by one harness:
//! `rivals [K+M,...] [STRIP,...] [cold] [aligned] [batches=N]`.
//!
//! Rivals are the ISA-L that the system has (Debian: `libisal-dev`) and the crate `reed-solomon-simd`.
//! Each line is one operation at one shape; the last column is how far the better of our two codes (the
//! default and `fft`) is ahead of the best rival. The exit status is 1 if it is behind anywhere by more
//! than 3 %, which is what repeated runs differ by.
#![allow(clippy::unwrap_used, reason = "a development program")]
#![allow(unsafe_code, reason = "calls ISA-L")]

mod machine;

use std::process::ExitCode;

use ashlar_codec::CodeKind;
use ashlar_codec::bench::{Operation, Options, Rival, measure_rival, run};
use reed_solomon_simd::{ReedSolomonDecoder, ReedSolomonEncoder};

#[link(name = "isal")]
unsafe extern "C" {
    fn gf_gen_cauchy1_matrix(matrix: *mut u8, rows: i32, cols: i32);
    fn gf_invert_matrix(matrix: *mut u8, inverse: *mut u8, n: i32) -> i32;
    fn ec_init_tables(k: i32, rows: i32, matrix: *const u8, tables: *mut u8);
    fn ec_encode_data(
        len: i32,
        k: i32,
        rows: i32,
        tables: *const u8,
        data: *const *const u8,
        coding: *const *mut u8,
    );
}

/// ISA-L with its Cauchy matrix; the inversion is not measured.
struct Isal {
    k: usize,
    matrix: Vec<u8>,
    encode: Vec<u8>,
    decode: Vec<u8>,
}

impl Isal {
    fn new(k: usize, m: usize) -> Isal {
        let mut matrix = vec![0; (k + m) * k];
        // SAFETY: the matrix has `k + m` rows of `k`.
        unsafe { gf_gen_cauchy1_matrix(matrix.as_mut_ptr(), (k + m) as i32, k as i32) };
        let encode = Isal::tables(k, &matrix[k * k..]);
        Isal {
            k,
            matrix,
            encode,
            decode: Vec::new(),
        }
    }

    fn tables(k: usize, rows: &[u8]) -> Vec<u8> {
        let mut tables = vec![0; 32 * rows.len()];
        // SAFETY: 32 bytes for each coefficient of whole rows of `k`.
        unsafe {
            ec_init_tables(
                k as i32,
                (rows.len() / k) as i32,
                rows.as_ptr(),
                tables.as_mut_ptr(),
            );
        }
        tables
    }

    fn apply(k: usize, tables: &[u8], read: &[&[u8]], write: &mut [&mut [u8]]) {
        let (mut from, mut to) = ([std::ptr::null(); 256], [std::ptr::null_mut(); 256]);
        for (from, strip) in from.iter_mut().zip(&read[..k]) {
            *from = strip.as_ptr();
        }
        for (to, strip) in to.iter_mut().zip(write.iter_mut()) {
            assert!(strip.len() == read[0].len());
            *to = strip.as_mut_ptr();
        }
        assert!(
            write_rows(tables, k) == write.len() && read.iter().all(|s| s.len() == read[0].len())
        );
        // SAFETY: as many pointers as the tables have columns and rows, all to strips of one length.
        unsafe {
            ec_encode_data(
                read[0].len() as i32,
                k as i32,
                write.len() as i32,
                tables.as_ptr(),
                from.as_ptr(),
                to.as_ptr(),
            );
        }
    }
}

/// How many rows of `k` coefficients tables are for.
fn write_rows(tables: &[u8], k: usize) -> usize {
    tables.len() / 32 / k
}

impl Rival for Isal {
    fn encode(&mut self, data: &[&[u8]], parity: &mut [&mut [u8]]) {
        Isal::apply(self.k, &self.encode, data, parity);
    }

    fn lose(&mut self, lost: usize) -> bool {
        let k = self.k;
        // The first K strips that are left, in order.
        let mut left = self.matrix[lost * k..(lost + k) * k].to_vec();
        let mut inverse = vec![0; k * k];
        // SAFETY: both are K x K.
        let failed = unsafe { gf_invert_matrix(left.as_mut_ptr(), inverse.as_mut_ptr(), k as i32) };
        self.decode = Isal::tables(k, &inverse[..lost * k]);
        failed == 0
    }

    fn decode(&mut self, read: &[&[u8]], write: &mut [&mut [u8]]) {
        Isal::apply(self.k, &self.decode, read, write);
    }
}

/// `reed-solomon-simd`, with the copies in and out that its interface asks for.
struct Simd {
    k: usize,
    lost: usize,
    encoder: ReedSolomonEncoder,
    decoder: ReedSolomonDecoder,
}

impl Rival for Simd {
    fn encode(&mut self, data: &[&[u8]], parity: &mut [&mut [u8]]) {
        for strip in data {
            self.encoder.add_original_shard(strip).unwrap();
        }
        let result = self.encoder.encode().unwrap();
        for (strip, made) in parity.iter_mut().zip(result.recovery_iter()) {
            strip.copy_from_slice(made);
        }
    }

    fn lose(&mut self, lost: usize) -> bool {
        self.lost = lost;
        true
    }

    fn decode(&mut self, read: &[&[u8]], write: &mut [&mut [u8]]) {
        let (data, parity) = read.split_at(self.k - self.lost);
        for (number, strip) in data.iter().enumerate() {
            self.decoder
                .add_original_shard(self.lost + number, strip)
                .unwrap();
        }
        for (number, strip) in parity.iter().enumerate().take(self.lost) {
            self.decoder.add_recovery_shard(number, strip).unwrap();
        }
        let result = self.decoder.decode().unwrap();
        for (number, strip) in write.iter_mut().enumerate() {
            strip.copy_from_slice(result.restored_original(number).unwrap());
        }
    }
}

/// One line: what it is, our two codes, the two rivals, in bytes per second.
struct Line {
    name: String,
    ours: [f64; 2],
    theirs: [f64; 2],
}

fn lines(options: &Options, (k, m): (usize, usize), strip: usize) -> Vec<Line> {
    let mut isal = Isal::new(k, m);
    let mut simd = Simd {
        k,
        lost: 0,
        encoder: ReedSolomonEncoder::new(k, m, strip).unwrap(),
        decoder: ReedSolomonDecoder::new(k, m, strip).unwrap(),
    };
    let rivals = [&mut isal as &mut dyn Rival, &mut simd];
    let theirs = rivals.map(|rival| measure_rival(options, (k, m), strip, rival).unwrap());
    let ours = run(&Options {
        codes: vec![CodeKind::IsalCauchy, CodeKind::Fft],
        shapes: vec![(k, m)],
        strips: vec![strip],
        ..options.clone()
    })
    .unwrap();
    let of = |code, operation, lost| {
        let found = ours
            .iter()
            .find(|row| (row.code, row.operation, row.lost) == (code, operation, lost));
        found.map_or(0.0, |row| row.bytes_per_second)
    };
    let line = |row: &ashlar_codec::bench::RivalRow| {
        // A rival's inversion is not measured, so neither is our search for the matrix.
        let operation = match row.operation {
            Operation::Decode => Operation::Decoder,
            other => other,
        };
        let found = |theirs: &[ashlar_codec::bench::RivalRow]| {
            let same = |other: &&ashlar_codec::bench::RivalRow| {
                (other.operation, other.lost) == (row.operation, row.lost)
            };
            theirs
                .iter()
                .find(same)
                .map_or(0.0, |row| row.bytes_per_second)
        };
        Line {
            name: format!("{k}+{m} {strip} {} {}", row.operation.name(), row.lost),
            ours: [CodeKind::IsalCauchy, CodeKind::Fft].map(|code| of(code, operation, row.lost)),
            theirs: [found(&theirs[0]), found(&theirs[1])],
        }
    };
    theirs[0].iter().map(line).collect()
}

fn main() -> ExitCode {
    let mut options = Options {
        clock: machine::on_processor,
        advise: machine::large_pages,
        shapes: vec![
            (8, 2),
            (8, 3),
            (17, 3),
            (10, 4),
            (92, 8),
            (85, 15),
            (80, 20),
            (200, 16),
            (200, 40),
            (128, 128),
        ],
        ..Options::default()
    };
    for argument in std::env::args().skip(1) {
        if argument == "cold" {
            options.cold = true;
        } else if argument == "aligned" {
            options.staggered = false;
        } else if let Some(count) = argument.strip_prefix("batches=") {
            options.batches = count.parse().unwrap();
        } else if argument.contains('+') {
            let shape = |text: &str| {
                let (k, m) = text.split_once('+').unwrap();
                (k.parse().unwrap(), m.parse().unwrap())
            };
            options.shapes = argument.split(',').map(shape).collect();
        } else {
            options.strips = argument.split(',').map(|s| s.parse().unwrap()).collect();
        }
    }
    println!("GB/s of data             default    fft   ISA-L  rs-simd  ahead");
    let mut behind = false;
    for &shape in &options.shapes {
        for &strip in &options.strips {
            for line in lines(&options, shape, strip) {
                let ahead = line.ours[0].max(line.ours[1]) / line.theirs[0].max(line.theirs[1]);
                behind |= ahead < 0.97;
                let [a, b] = line.ours.map(|rate| rate / 1e9);
                let [c, d] = line.theirs.map(|rate| rate / 1e9);
                println!(
                    "{:25} {a:6.2} {b:6.2}  {c:6.2}   {d:6.2} {ahead:6.2}",
                    line.name
                );
            }
        }
    }
    ExitCode::from(u8::from(behind))
}
