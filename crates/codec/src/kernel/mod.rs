//! Kernels: one row each in a table, all bit-exact, chosen once at run time.
//!
//! A kernel computes up to [`Kernel::max_rows`] results from any number of sources over one range of
//! bytes. Tiles, packets, more rows and everything else are above, in [`crate::apply`].
//!
//! **Invariants.**
//! - Every kernel gives the same bytes for the same pass; the portable one is the definition.
//! - A kernel's function is reached only through [`Kernel::run`], which checks every range, and only
//!   for kernels that [`Kernel::available`] says this processor has.

#![expect(
    unsafe_code,
    reason = "calls kernels that need instructions found at run time"
)]

#[cfg(target_arch = "x86_64")]
mod avx512_gfni;
#[cfg(target_arch = "x86_64")]
mod lanes;
mod portable;

use std::sync::OnceLock;

use crate::gf::{AFFINE, NIBBLES};

/// A way to compute; see [`kernels`].
pub struct Kernel {
    /// The name, for tests and measurements.
    pub name: &'static str,
    /// Results computed in one pass over the sources.
    pub(crate) max_rows: usize,
    format: Format,
    available: fn() -> bool,
    rows: Entry,
}

impl std::fmt::Debug for Kernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Kernel").field(&self.name).finish()
    }
}

/// Where a kernel's code begins.
enum Entry {
    Anywhere(fn(&mut Pass<'_, '_>)),
    #[cfg(target_arch = "x86_64")]
    Needs(unsafe fn(&mut Pass<'_, '_>)),
}

/// What a kernel's table holds for each coefficient.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Format {
    /// Nothing: the kernel takes the coefficients themselves.
    Plain,
    /// 8 bytes: a bit matrix.
    Affine,
    /// 32 bytes: products with the low and high half of a byte.
    #[allow(
        dead_code,
        reason = "not every architecture has a kernel of this format"
    )]
    Nibbles,
}

/// Every kernel this build contains, fastest first.
static KERNELS: &[Kernel] = &[
    #[cfg(target_arch = "x86_64")]
    Kernel {
        name: "avx512-gfni",
        max_rows: 10,
        format: Format::Affine,
        available: avx512_gfni::available,
        rows: Entry::Needs(avx512_gfni::rows),
    },
    Kernel {
        name: "portable",
        max_rows: 4,
        format: Format::Plain,
        available: || true,
        rows: Entry::Anywhere(portable::rows),
    },
];

/// The kernels this processor can run, fastest first; the last is `portable`.
pub fn kernels() -> impl Iterator<Item = &'static Kernel> {
    KERNELS.iter().filter(|kernel| kernel.available())
}

/// The kernel with this name, if this build has it and this processor can run it.
pub fn by_name(name: &str) -> Option<&'static Kernel> {
    kernels().find(|kernel| kernel.name == name)
}

/// The fastest kernel this processor can run.
pub(crate) fn fastest() -> &'static Kernel {
    static FASTEST: OnceLock<&'static Kernel> = OnceLock::new();
    FASTEST.get_or_init(|| kernels().next().unwrap_or(&KERNELS[KERNELS.len() - 1]))
}

/// One call of a kernel: `dst[r] (+)= sum over c of coefs[c * rows + r] * src[c]`.
pub(crate) struct Pass<'a, 'b> {
    /// The coefficients in the kernel's own form; see [`Kernel::table`].
    pub(crate) table: &'a [u64],
    /// The coefficients, by source, then by row.
    pub(crate) coefs: &'a [u8],
    /// How many results there are.
    pub(crate) rows: usize,
    pub(crate) src: &'a [&'a [u8]],
    pub(crate) src_at: usize,
    pub(crate) dst: &'a mut [&'b mut [u8]],
    pub(crate) dst_at: usize,
    /// Bytes of each source and result.
    pub(crate) len: usize,
    /// Add to what the results hold instead of replacing it.
    pub(crate) add: bool,
    /// Write around the caches; only if every result's first byte is aligned to 64.
    pub(crate) stream: bool,
    /// Bytes between what is read and what is asked for ahead of time; 0 for never.
    pub(crate) ahead: usize,
}

impl Pass<'_, '_> {
    /// Panics unless every range lies inside its slice.
    fn check(&self, kernel: &Kernel) {
        let holds = |length: usize, at: usize| length >= at && length - at >= self.len;
        assert!(self.rows >= 1 && self.rows <= kernel.max_rows && self.dst.len() == self.rows);
        assert!(self.coefs.len() == self.rows * self.src.len());
        assert!(self.table.len() == self.coefs.len() * kernel.entry());
        assert!(
            self.src
                .iter()
                .all(|source| holds(source.len(), self.src_at))
        );
        assert!(
            self.dst
                .iter()
                .all(|result| holds(result.len(), self.dst_at))
        );
        let aligned = |result: &&mut [u8]| (result.as_ptr() as usize + self.dst_at) % 64 == 0;
        assert!(!self.stream || self.dst.iter().all(aligned));
    }
}

impl Kernel {
    /// Whether this processor has the instructions.
    pub fn available(&self) -> bool {
        (self.available)()
    }

    /// Table words for a coefficient.
    fn entry(&self) -> usize {
        match self.format {
            Format::Plain => 0,
            Format::Affine => 1,
            Format::Nibbles => 4,
        }
    }

    /// Coefficients in the form this kernel wants, in the order given.
    pub(crate) fn table(&self, coefs: &[u8]) -> Vec<u64> {
        match self.format {
            Format::Plain => Vec::new(),
            Format::Affine => coefs.iter().map(|&coef| AFFINE[coef as usize]).collect(),
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
        coefs * self.entry()
    }

    /// Does one pass.
    ///
    /// # Panics
    /// If a range of the pass lies outside its slice, or the processor lacks the instructions:
    /// both are mistakes of this crate.
    pub(crate) fn run(&self, pass: &mut Pass<'_, '_>) {
        pass.check(self);
        match self.rows {
            Entry::Anywhere(rows) => rows(pass),
            #[cfg(target_arch = "x86_64")]
            Entry::Needs(rows) => {
                assert!(self.available());
                // SAFETY: the instructions are there, and `check` has compared every range.
                unsafe { rows(pass) }
            }
        }
    }
}
