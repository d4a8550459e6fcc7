//! The kernel that runs everywhere: one table lookup per byte and coefficient, no `unsafe`. It also
//! does the last few bytes for the vector kernels.
//!
//! **Invariants.** Writes only `dst[r][dst_at + from..dst_at + len]`; a result does not depend on
//! how a range is cut into passes.

use super::Pass;
use crate::gf::MUL;

/// A whole pass.
pub(super) fn rows(pass: &mut Pass<'_, '_>) {
    rows_from(pass, 0);
}

/// The part of a pass from byte `from` on.
pub(super) fn rows_from(pass: &mut Pass<'_, '_>, from: usize) {
    for r in 0..pass.rows {
        let to = &mut pass.dst[r][pass.dst_at + from..pass.dst_at + pass.len];
        if !pass.add {
            to.fill(0);
        }
        for (c, source) in pass.src.iter().enumerate() {
            let source = &source[pass.src_at + from..pass.src_at + pass.len];
            match pass.coefs[c * pass.rows + r] {
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
    }
}
