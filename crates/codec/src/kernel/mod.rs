//! Kernels: one row each in a table, all bit-exact, chosen once at run time.
//!
//! A kernel computes up to [`Kernel::max_rows`] results from any number of sources over one range of
//! bytes, or adds a group of sources into any number of results; some also do transforms. Tiles,
//! packets and everything else are above, in [`crate::apply`] and [`crate::fft`].
//!
//! **Invariants.**
//! - Every kernel gives the same bytes for the same pass; the portable one is the definition.
//! - A kernel's functions are reached only through the methods of [`Kernel`], which check every range.
//! - A [`Kernel`] leaves this module only if the processor can run it: [`kernels`] asks.

#![expect(
    unsafe_code,
    reason = "calls kernels that need instructions found at run time"
)]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx2_gfni;
#[cfg(target_arch = "x86_64")]
mod avx512_gfni;
#[cfg_attr(
    not(any(target_arch = "x86_64", target_arch = "aarch64")),
    allow(dead_code, reason = "no vector kernel for this architecture")
)]
mod butterfly;
#[cfg_attr(
    not(any(target_arch = "x86_64", target_arch = "aarch64")),
    allow(dead_code, reason = "no vector kernel for this architecture")
)]
mod lane;
#[cfg_attr(
    not(any(target_arch = "x86_64", target_arch = "aarch64")),
    allow(dead_code, reason = "no vector kernel for this architecture")
)]
mod lanes;
#[cfg(target_arch = "aarch64")]
mod neon;
mod pass;
mod portable;
#[cfg_attr(
    not(any(target_arch = "x86_64", target_arch = "aarch64")),
    allow(dead_code, reason = "no vector kernel for this architecture")
)]
mod recover;
#[cfg(target_arch = "x86_64")]
mod ssse3;
#[cfg_attr(
    not(any(target_arch = "x86_64", target_arch = "aarch64")),
    allow(dead_code, reason = "no vector kernel for this architecture")
)]
mod transform;

use std::sync::OnceLock;

use crate::packets;
pub(crate) use butterfly::LEN_MAX as TRANSFORM_MAX;
pub(crate) use pass::{End, Form, GROUP_ALIGN, Group, Pass, SPIN_BYTES};
pub(crate) use recover::Recover;
pub(crate) use transform::Transform;

#[cfg(target_arch = "x86_64")]
use crate::gf::AFFINE;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use crate::gf::NIBBLES;

/// A way to compute; see [`kernels`].
pub struct Kernel {
    /// The name, for tests and measurements.
    pub name: &'static str,
    /// Results that [`Kernel::run`] computes in one pass over the sources.
    pub(crate) max_rows: usize,
    /// Sources that [`Kernel::run_group`] takes at a time; 0 if this kernel has none.
    pub(crate) group: usize,
    format: Format,
    available: fn() -> bool,
    entry: Entry,
}

impl std::fmt::Debug for Kernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Kernel").field(&self.name).finish()
    }
}

/// Where a kernel's code begins.
enum Entry {
    Portable,
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    Vector {
        rows: unsafe fn(&mut Pass<'_, '_>),
        group: unsafe fn(&mut Group<'_, '_>),
        spin: unsafe fn(usize) -> u64,
        turn: Option<Turn>,
        transforms: Option<Transforms>,
    },
}

/// Encoding and decoding by transforms.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[derive(Clone, Copy)]
struct Transforms {
    encode: unsafe fn(&mut Transform<'_, '_>),
    decode: unsafe fn(&mut Recover<'_, '_>),
}

/// [`packets::turn`] in a vector unit.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
type Turn = unsafe fn(&[u8], &mut [u8]);

/// What a kernel's table holds for each coefficient.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Format {
    /// Nothing: the kernel takes the coefficients themselves.
    Plain,
    /// 8 bytes: a bit matrix.
    #[cfg(target_arch = "x86_64")]
    Affine,
    /// 32 bytes: products with the low and high half of a byte.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    Nibbles,
}

/// Every kernel this build contains, fastest first.
static KERNELS: &[Kernel] = &[
    #[cfg(target_arch = "x86_64")]
    Kernel {
        name: "avx512-gfni",
        max_rows: 10,
        group: 8,
        format: Format::Affine,
        available: avx512_gfni::available,
        entry: Entry::Vector {
            rows: avx512_gfni::rows,
            group: avx512_gfni::group,
            spin: avx512_gfni::spin,
            turn: Some(avx512_gfni::turn),
            transforms: Some(Transforms {
                encode: avx512_gfni::transform,
                decode: avx512_gfni::recover,
            }),
        },
    },
    #[cfg(target_arch = "x86_64")]
    Kernel {
        name: "avx2-gfni",
        max_rows: 6,
        group: 8,
        format: Format::Affine,
        available: avx2_gfni::available,
        entry: Entry::Vector {
            rows: avx2_gfni::rows,
            group: avx2_gfni::group,
            spin: avx2_gfni::spin,
            turn: None,
            transforms: None,
        },
    },
    #[cfg(target_arch = "x86_64")]
    Kernel {
        name: "avx2",
        max_rows: 4,
        group: 4,
        format: Format::Nibbles,
        available: avx2::available,
        entry: Entry::Vector {
            rows: avx2::rows,
            group: avx2::group,
            spin: avx2::spin,
            turn: None,
            transforms: None,
        },
    },
    #[cfg(target_arch = "x86_64")]
    Kernel {
        name: "ssse3",
        max_rows: 4,
        group: 4,
        format: Format::Nibbles,
        available: ssse3::available,
        entry: Entry::Vector {
            rows: ssse3::rows,
            group: ssse3::group,
            spin: ssse3::spin,
            turn: None,
            transforms: None,
        },
    },
    #[cfg(target_arch = "aarch64")]
    Kernel {
        name: "neon",
        max_rows: 6,
        group: 8,
        format: Format::Nibbles,
        available: neon::available,
        entry: Entry::Vector {
            rows: neon::rows,
            group: neon::group,
            spin: neon::spin,
            turn: None,
            transforms: Some(Transforms {
                encode: neon::transform,
                decode: neon::recover,
            }),
        },
    },
    Kernel {
        name: "portable",
        max_rows: 255,
        group: 0,
        format: Format::Plain,
        available: || true,
        entry: Entry::Portable,
    },
];

/// The kernels this processor can run, fastest first; the last is `portable`.
pub fn kernels() -> impl Iterator<Item = &'static Kernel> {
    KERNELS.iter().filter(|kernel| kernel.available())
}

/// The kernel with this name, if this build has it and this processor can run it.
pub(crate) fn by_name(name: &str) -> Option<&'static Kernel> {
    kernels().find(|kernel| kernel.name == name)
}

/// The portable kernel.
pub(crate) fn portable() -> &'static Kernel {
    &KERNELS[KERNELS.len() - 1]
}

/// The fastest kernel this processor can run.
pub(crate) fn fastest() -> &'static Kernel {
    static FASTEST: OnceLock<&'static Kernel> = OnceLock::new();
    FASTEST.get_or_init(|| kernels().next().unwrap_or(portable()))
}

impl Kernel {
    /// Whether this processor has the instructions.
    pub fn available(&self) -> bool {
        (self.available)()
    }

    /// Table words for a coefficient.
    fn words(&self) -> usize {
        match self.format {
            Format::Plain => 0,
            #[cfg(target_arch = "x86_64")]
            Format::Affine => 1,
            #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
            Format::Nibbles => 4,
        }
    }

    /// Coefficients in the form this kernel wants, in the order given.
    pub(crate) fn table(&self, coefs: &[u8]) -> Vec<u64> {
        match self.format {
            Format::Plain => Vec::new(),
            #[cfg(target_arch = "x86_64")]
            Format::Affine => coefs.iter().map(|&coef| AFFINE[coef as usize]).collect(),
            #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
            Format::Nibbles => {
                // In memory as the 32 bytes of NIBBLES, whatever the byte order.
                let mut words = Vec::with_capacity(coefs.len() * 4);
                for &coef in coefs {
                    let (eights, _) = NIBBLES[coef as usize].as_chunks::<8>();
                    words.extend(
                        eights
                            .iter()
                            .map(|&eight| u64::from_le_bytes(eight).to_le()),
                    );
                }
                words
            }
        }
    }

    /// Words of [`Kernel::table`] for so many coefficients.
    pub(crate) fn table_len(&self, coefs: usize) -> usize {
        coefs * self.words()
    }

    /// Does one pass.
    ///
    /// # Panics
    /// If a range of the pass lies outside its slice: a mistake of this crate.
    pub(crate) fn run(&self, pass: &mut Pass<'_, '_>) {
        pass.check(self.max_rows, self.words());
        match self.entry {
            Entry::Portable => portable::rows(pass),
            #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
            Entry::Vector { rows, .. } => {
                // SAFETY: the instructions are there, and `check` has compared every range.
                unsafe { rows(pass) }
            }
        }
    }

    /// Adds a group of sources.
    ///
    /// # Panics
    /// As [`Kernel::run`], and for a kernel that takes no groups.
    pub(crate) fn run_group(&self, pass: &mut Group<'_, '_>) {
        pass.check(self.group, self.words());
        match self.entry {
            Entry::Portable => unreachable!("the portable kernel takes no groups"),
            #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
            Entry::Vector { group, .. } => {
                // SAFETY: the instructions are there, and `check` has compared every range.
                unsafe { group(pass) }
            }
        }
    }
    /// Exchanges packet number and bit number in each group: [`packets::turn`].
    ///
    /// # Panics
    /// Unless the lengths are equal multiples of [`packets::GROUP`].
    pub(crate) fn turn(&self, from: &[u8], to: &mut [u8]) {
        match self.entry {
            #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
            Entry::Vector {
                turn: Some(turn), ..
            } => {
                assert!(from.len() == to.len() && from.len().is_multiple_of(packets::GROUP));
                // SAFETY: the instructions are there, and the lengths are right.
                unsafe { turn(from, to) }
            }
            _ => packets::turn(from, to),
        }
    }

    /// Whether this kernel encodes and decodes by transforms.
    pub(crate) fn has_transform(&self) -> bool {
        match self.entry {
            Entry::Portable => false,
            #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
            Entry::Vector { transforms, .. } => transforms.is_some(),
        }
    }

    /// Encodes one tile of the `fft` code.
    ///
    /// # Panics
    /// As [`Kernel::run`], and for a kernel without transforms.
    pub(crate) fn run_transform(&self, pass: &mut Transform<'_, '_>) {
        pass.check(self.words());
        match self.entry {
            #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
            Entry::Vector {
                transforms: Some(Transforms { encode, .. }),
                ..
            } => {
                // SAFETY: the instructions are there, and `check` has compared every range.
                unsafe { encode(pass) }
            }
            _ => unreachable!("this kernel has no transforms"),
        }
    }

    /// Decodes one tile of the `fft` code.
    ///
    /// # Panics
    /// As [`Kernel::run_transform`].
    pub(crate) fn run_recover(&self, pass: &mut Recover<'_, '_>) {
        pass.check(self.words());
        match self.entry {
            #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
            Entry::Vector {
                transforms: Some(Transforms { decode, .. }),
                ..
            } => {
                // SAFETY: the instructions are there, and `check` has compared every range.
                unsafe { decode(pass) }
            }
            _ => unreachable!("this kernel has no transforms"),
        }
    }

    /// Multiplies `rounds * SPIN_BYTES` bytes by constants, touching no memory if the kernel can:
    /// what it could do if sources came and results went for nothing. The result means nothing.
    pub(crate) fn spin(&self, rounds: usize) -> u64 {
        match self.entry {
            Entry::Portable => portable::spin(rounds),
            #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
            Entry::Vector { spin, .. } => {
                // SAFETY: the instructions are there.
                unsafe { spin(rounds) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_turns_packets_alike() {
        let from: Vec<u8> = (0..640u32).map(|i| ((i * i * 7) >> 3) as u8).collect();
        let mut expected = vec![0; 640];
        packets::turn(&from, &mut expected);
        for kernel in kernels() {
            let mut to = vec![1; 640];
            kernel.turn(&from, &mut to);
            assert_eq!(to, expected, "{}", kernel.name);
            let mut back = vec![1; 640];
            kernel.turn(&to, &mut back);
            assert_eq!(back, from, "{}", kernel.name);
        }
    }
}
