//! The kernel that runs everywhere: one table lookup per byte and coefficient, no `unsafe`. It also
//! does the last few bytes for the vector kernels.
//!
//! **Invariants.** Writes only `dst[r][dst_at + from..dst_at + len]`; a result does not depend on
//! how a range is cut into passes.

use super::pass::{Form, Pass, SPIN_BYTES};
use crate::gf::MUL;

/// A whole pass.
pub(super) fn rows(pass: &mut Pass<'_, '_>) {
    rows_from(pass, 0);
}

/// The part of a pass from byte `from` on.
pub(super) fn rows_from(pass: &mut Pass<'_, '_>, from: usize) {
    let range = pass.src_at + from..pass.src_at + pass.len;
    for r in 0..pass.rows {
        let coefs = &pass.coefs[r * pass.pitch..];
        let to = &mut pass.dst[r][pass.dst_at + from..pass.dst_at + pass.len];
        if !pass.add {
            to.fill(0);
        }
        for (c, source) in pass.src.iter().enumerate() {
            // Old and new content of one column have one coefficient.
            let coef = coefs[if pass.form == Form::Change { 0 } else { c }];
            add(&source[range.clone()], coef, to);
        }
    }
}

/// `to += coef * source`.
fn add(source: &[u8], coef: u8, to: &mut [u8]) {
    match coef {
        0 => {}
        1 => to.iter_mut().zip(source).for_each(|(to, byte)| *to ^= byte),
        coef => {
            let products = &MUL[coef as usize];
            to.iter_mut()
                .zip(source)
                .for_each(|(to, &byte)| *to ^= products[byte as usize]);
        }
    }
}

/// Looks up `rounds * SPIN_BYTES` products.
pub(super) fn spin(rounds: usize) -> u64 {
    let source: [u8; 256] = std::array::from_fn(|i| i as u8);
    let mut sums = [0u8; 256];
    for round in 0..rounds * (SPIN_BYTES / 256) {
        let products = &MUL[round % 255 + 1];
        sums.iter_mut()
            .zip(&source)
            .for_each(|(to, &byte)| *to ^= products[byte as usize]);
    }
    sums.iter().map(|&byte| u64::from(byte)).sum()
}
