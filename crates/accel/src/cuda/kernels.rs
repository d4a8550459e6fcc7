//! The compiled kernels, and what their arguments look like.
//!
//! **Invariants**: the structures have the layout of their namesakes in `cuda/*.cu`; a test compares
//! the PTX with the sources it was made from.

use std::ffi::CStr;
use std::sync::Arc;

use super::driver::{Context, Kernel, Module};
use crate::{Fault, Function};

/// Text for the driver: it wants a zero byte at the end.
macro_rules! ptx {
    ($name:literal) => {
        concat!(
            include_str!(concat!("../../cuda/ptx/", $name, ".ptx")),
            "\0"
        )
    };
}

const MODULES: [&str; 5] = [
    ptx!("gf"),
    ptx!("sha2"),
    ptx!("sha3"),
    ptx!("blake3"),
    ptx!("crc32c"),
];

/// The tiles of the product kernels: rows made at a time, ascending.
pub(crate) const TILES: [(usize, &CStr); 6] = [
    (1, c"gf_product_1"),
    (2, c"gf_product_2"),
    (4, c"gf_product_4"),
    (6, c"gf_product_6"),
    (8, c"gf_product_8"),
    (10, c"gf_product_10"),
];
/// Rows made at a time of strips that are no multiple of 16 bytes.
pub(crate) const TILE_ANY: usize = 4;

const DIGESTS: [(usize, &CStr); 6] = [
    (3, c"blake3_messages"),
    (1, c"sha256_messages"),
    (1, c"sha512_messages"),
    (2, c"sha3_256_messages"),
    (2, c"sha3_512_messages"),
    (4, c"crc32c_messages"),
];

/// All kernels of one device.
pub(crate) struct Kernels {
    pub(crate) tiles: [Kernel; TILES.len()],
    pub(crate) any: Kernel,
    digests: [Kernel; DIGESTS.len()],
    _modules: Vec<Module>,
}

impl Kernels {
    pub(crate) fn load(context: &Arc<Context>) -> Result<Kernels, Fault> {
        let mut modules = Vec::new();
        for text in MODULES {
            let text = CStr::from_bytes_with_nul(text.as_bytes());
            let text = text.map_err(|_| Fault::Wrong("PTX"))?;
            modules.push(Module::load(context, text)?);
        }
        let any = modules[0].kernel(c"gf_product_any")?;
        let mut tiles = [any; TILES.len()];
        for (kernel, (_, name)) in tiles.iter_mut().zip(TILES) {
            *kernel = modules[0].kernel(name)?;
        }
        let mut digests = [any; DIGESTS.len()];
        for (kernel, (module, name)) in digests.iter_mut().zip(DIGESTS) {
            *kernel = modules[module].kernel(name)?;
        }
        Ok(Kernels {
            tiles,
            any,
            digests,
            _modules: modules,
        })
    }

    /// The kernel of a function that a device computes.
    pub(crate) fn digest(&self, function: Function) -> Option<Kernel> {
        self.digests.get(function.index()).copied()
    }
}

/// `Product` in `gf.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Product {
    pub(crate) input: u64,
    pub(crate) output: u64,
    pub(crate) low: u64,
    pub(crate) high: u64,
    pub(crate) strip: u64,
    pub(crate) k: u32,
    pub(crate) rows: u32,
    pub(crate) row0: u32,
    pub(crate) out_rows: u32,
    pub(crate) stripes: u32,
    pub(crate) chunk: u32,
}

/// `SUFFIX_VARIES` in `common.cuh`.
pub(crate) const SUFFIX_VARIES: u32 = u32::MAX;

/// `Messages` in `common.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Messages {
    pub(crate) base0: u64,
    pub(crate) base1: u64,
    pub(crate) count0: u64,
    pub(crate) count: u64,
    pub(crate) strip: u64,
    pub(crate) suffix: u64,
    pub(crate) block: u32,
    pub(crate) per_strip: u32,
    pub(crate) suffix_len: u32,
    pub(crate) suffix_stride: u32,
}

/// `Key` in `blake3.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key {
    words: [u32; 8],
    flags: u32,
}

impl Key {
    /// The key's words, or the initial values of the plain function.
    pub(crate) fn new(key: Option<&[u8; 32]>) -> Key {
        let iv = [
            0x6a09_e667,
            0xbb67_ae85,
            0x3c6e_f372,
            0xa54f_f53a,
            0x510e_527f,
            0x9b05_688c,
            0x1f83_d9ab,
            0x5be0_cd19,
        ];
        let Some(key) = key else {
            return Key {
                words: iv,
                flags: 0,
            };
        };
        let mut words = [0; 8];
        for (word, bytes) in words.iter_mut().zip(key.chunks_exact(4)) {
            *word = bytes.iter().rev().fold(0, |w, b| w << 8 | u32::from(*b));
        }
        Key { words, flags: 16 }
    }
}

/// Words of the tables of `crc32c.cu`.
pub(crate) const CRC_WORDS: usize = 5 * 256 + 32;

/// The tables of `crc32c.cu`, as bytes.
pub(crate) fn crc_tables() -> Vec<u8> {
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    let by_x = |v: u32| (v >> 1) ^ if v & 1 == 1 { POLYNOMIAL } else { 0 };
    let multiply = |a: u32, b: u32| {
        let (mut sum, mut b) = (0, b);
        for bit in (0..32).rev() {
            if a >> bit & 1 == 1 {
                sum ^= b;
            }
            b = by_x(b);
        }
        sum
    };
    // Bit 31 is x^0.
    let power = |n: u32| (0..n).fold(1u32 << 31, |v, _| by_x(v));
    let row = power(1024);
    let mut words = Vec::with_capacity(CRC_WORDS);
    for byte in 0..4 {
        words.extend((0..256).map(|v: u32| multiply(row, v << (8 * byte))));
    }
    words.extend((0..256).map(|v: u32| (0..8).fold(v, |v, _| by_x(v))));
    words.extend((0..32).map(|lane| power(32 * (32 - lane))));
    words.into_iter().flat_map(u32::to_le_bytes).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use sha2::Digest as _;

    /// Whoever changes a kernel runs `cuda/build.py`.
    #[test]
    fn the_ptx_was_made_from_the_sources() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/cuda/");
        let read = |name: &str| std::fs::read(format!("{folder}{name}")).unwrap();
        for (name, text) in ["gf", "sha2", "sha3", "blake3", "crc32c"]
            .iter()
            .zip(MODULES)
        {
            let source = [read("common.cuh"), read(&format!("{name}.cu"))].concat();
            let hash: String = sha2::Sha256::digest(&source)
                .iter()
                .map(|b| format!("{b:02x}"))
                .collect();
            let line = text.lines().nth(1).unwrap();
            assert_eq!(
                line,
                format!("// source-sha256: {hash}"),
                "{name}: run cuda/build.py"
            );
        }
    }

    #[test]
    fn every_kernel_is_in_its_module_with_the_arguments_it_gets() {
        let parameter = |module: usize, name: &CStr| {
            let entry = format!(".entry {}(", name.to_str().unwrap());
            let after = MODULES[module].split_once(&entry).unwrap().1;
            let list = after.split_once(')').unwrap().0;
            let bytes: Vec<usize> = list
                .lines()
                .filter_map(|l| l.rsplit_once('[').map(|(_, n)| n))
                .filter_map(|n| n.split_once(']')?.0.parse().ok())
                .collect();
            bytes
        };
        for (_, name) in TILES.into_iter().chain([(4, c"gf_product_any")]) {
            assert_eq!(parameter(0, name), [size_of::<Product>()], "{name:?}");
        }
        for (module, name) in DIGESTS {
            let expected = match module {
                3 => vec![size_of::<Messages>(), size_of::<Key>()],
                _ => vec![size_of::<Messages>()],
            };
            assert_eq!(parameter(module, name), expected, "{name:?}");
        }
    }

    #[test]
    fn crc_tables_move_a_register_on() {
        let tables = crc_tables();
        assert_eq!(tables.len(), CRC_WORDS * 4);
        // The table for one byte is the usual one: CRC32C of "123456789".
        let word = |at: usize| u32::from_le_bytes(tables[at * 4..][..4].try_into().unwrap());
        let crc = b"123456789".iter().fold(!0u32, |c, b| {
            word(1024 + ((c ^ u32::from(*b)) & 255) as usize) ^ (c >> 8)
        });
        assert_eq!(!crc, 0xe306_9283);
    }
}
