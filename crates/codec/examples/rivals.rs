//! Our codes beside ISA-L, in one process, on the same buffers and pages, batches by turns:
//! `rivals [K+M,...] [STRIP,...] [cold] [aligned] [batches=N] [isal=PATH] [code=NAME] [kernel=NAME] [small]`.
//!
//! ISA-L is the `libisal.so.2` that the system has (Debian: `libisal2`; 2.31 or newer knows GFNI) unless a path
//! names another. Each line is one operation at one shape: ours, theirs, and the median of the ratios of
//! neighbouring batches. With `cold` ours is `streamed()`. Time is that of the thread on a processor; strips are
//! in large pages unless `small`, and staggered unless `aligned`.
#![allow(clippy::unwrap_used, reason = "a development program")]
#![allow(unsafe_code, reason = "calls ISA-L")]

mod machine;

use ashlar_codec::bench::{Options, Rival, measure_rival};
use ashlar_codec::{Code, CodeKind};
use libloading::Library;

type Generate = unsafe extern "C" fn(*mut u8, i32, i32);
type Invert = unsafe extern "C" fn(*mut u8, *mut u8, i32) -> i32;
type Tables = unsafe extern "C" fn(i32, i32, *const u8, *mut u8);
type Encode = unsafe extern "C" fn(i32, i32, i32, *const u8, *const *const u8, *const *mut u8);

/// The functions of an ISA-L, as long as it stays loaded.
struct Functions {
    generate: Generate,
    invert: Invert,
    tables: Tables,
    encode: Encode,
    _library: Library,
}

impl Functions {
    fn load(path: &str) -> Result<Functions, libloading::Error> {
        // SAFETY: the caller names an ISA-L; the types are those of its header.
        unsafe {
            let library = Library::new(path)?;
            Ok(Functions {
                generate: *library.get(c"gf_gen_cauchy1_matrix")?,
                invert: *library.get(c"gf_invert_matrix")?,
                tables: *library.get(c"ec_init_tables")?,
                encode: *library.get(c"ec_encode_data")?,
                _library: library,
            })
        }
    }

    /// Tables for whole rows of `k` coefficients.
    fn tables(&self, k: usize, rows: &[u8]) -> Vec<u8> {
        let mut tables = vec![0; 32 * rows.len()];
        let (k, count) = (k as i32, (rows.len() / k) as i32);
        // SAFETY: 32 bytes for each coefficient of whole rows of `k`.
        unsafe { (self.tables)(k, count, rows.as_ptr(), tables.as_mut_ptr()) };
        tables
    }

    fn apply(&self, k: usize, tables: &[u8], read: &[&[u8]], write: &mut [&mut [u8]]) {
        let len = read[0].len();
        let (mut from, mut to) = ([std::ptr::null(); 256], [std::ptr::null_mut(); 256]);
        for (from, strip) in from.iter_mut().zip(&read[..k]) {
            assert!(strip.len() == len);
            *from = strip.as_ptr();
        }
        for (to, strip) in to.iter_mut().zip(write.iter_mut()) {
            assert!(strip.len() == len);
            *to = strip.as_mut_ptr();
        }
        assert!(tables.len() == 32 * k * write.len());
        let (len, k, rows) = (len as i32, k as i32, write.len() as i32);
        // SAFETY: as many pointers as the tables have columns and rows, all to strips of one length.
        unsafe { (self.encode)(len, k, rows, tables.as_ptr(), from.as_ptr(), to.as_ptr()) };
    }
}

/// ISA-L with its Cauchy matrix; the inversion is not measured.
struct Isal<'a> {
    functions: &'a Functions,
    k: usize,
    matrix: Vec<u8>,
    encode: Vec<u8>,
    decode: Vec<u8>,
}

impl<'a> Isal<'a> {
    fn new(functions: &'a Functions, k: usize, m: usize) -> Isal<'a> {
        let mut matrix = vec![0; (k + m) * k];
        // SAFETY: the matrix has `k + m` rows of `k`.
        unsafe { (functions.generate)(matrix.as_mut_ptr(), (k + m) as i32, k as i32) };
        let encode = functions.tables(k, &matrix[k * k..]);
        let decode = Vec::new();
        Isal {
            functions,
            k,
            matrix,
            encode,
            decode,
        }
    }
}

impl Rival for Isal<'_> {
    fn encode(&mut self, data: &[&[u8]], parity: &mut [&mut [u8]]) {
        self.functions.apply(self.k, &self.encode, data, parity);
    }

    fn lose(&mut self, lost: usize) -> bool {
        let k = self.k;
        // The first K strips that are left, in order.
        let mut left = self.matrix[lost * k..(lost + k) * k].to_vec();
        let mut inverse = vec![0; k * k];
        // SAFETY: both are K x K.
        let failed =
            unsafe { (self.functions.invert)(left.as_mut_ptr(), inverse.as_mut_ptr(), k as i32) };
        self.decode = self.functions.tables(k, &inverse[..lost * k]);
        failed == 0
    }

    fn decode(&mut self, read: &[&[u8]], write: &mut [&mut [u8]]) {
        self.functions.apply(self.k, &self.decode, read, write);
    }
}

/// The lines of one shape and strip.
fn lines(
    options: &Options,
    functions: &Functions,
    (k, m): (usize, usize),
    strip: usize,
    kernel: &str,
) {
    let mut isal = Isal::new(functions, k, m);
    let from = if options.cold { "cold" } else { "hot" };
    for &kind in &options.codes {
        let code = Code::with_kernel(kind, k, m, kernel).unwrap();
        for row in measure_rival(options, &code, strip, &mut isal) {
            let (ours, theirs) = (row.ours / 1e9, row.theirs / 1e9);
            println!(
                "{k}+{m} {strip} {from} {} lost {} {} {ours:.2} ISA-L {theirs:.2} ratio {:.3}",
                row.operation.name(),
                row.lost,
                kind.name(),
                row.ratio
            );
        }
    }
}

fn main() {
    let mut options = Options {
        clock: machine::on_processor,
        advise: machine::large_pages,
        ..Options::default()
    };
    let mut path = "libisal.so.2".to_owned();
    let mut kernel = ashlar_codec::kernels().next().unwrap().name.to_owned();
    for argument in std::env::args().skip(1) {
        match argument.split_once('=') {
            None if argument == "cold" => options.cold = true,
            None if argument == "aligned" => options.staggered = false,
            None if argument == "small" => options.advise = |_| {},
            Some(("batches", count)) => options.batches = count.parse().unwrap(),
            Some(("isal", file)) => file.clone_into(&mut path),
            Some(("kernel", name)) => name.clone_into(&mut kernel),
            Some(("code", name)) => options.codes = vec![CodeKind::from_name(name).unwrap()],
            _ if argument.contains('+') => {
                let shape = |text: &str| {
                    let (k, m) = text.split_once('+').unwrap();
                    (k.parse().unwrap(), m.parse().unwrap())
                };
                options.shapes = argument.split(',').map(shape).collect();
            }
            _ => options.strips = argument.split(',').map(|s| s.parse().unwrap()).collect(),
        }
    }
    let isal = Functions::load(&path).unwrap();
    println!("kernel {kernel}; GB/s of data");
    for &shape in &options.shapes {
        for &strip in &options.strips {
            lines(&options, &isal, shape, strip, &kernel);
        }
    }
}
