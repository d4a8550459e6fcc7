//! What the stand-in offers to tests beside the driver's functions, and jobs to give to it.

#![allow(unsafe_code, reason = "calls into the stand-in")]

use std::ffi::{CStr, CString, c_char, c_int, c_long};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ashlar_accel::{Accelerator, Choice, Coding, Digests, Done, Input, Job, Options, Ran};
use libloading::Library;

/// The environment variable with the library's path.
pub const PATH: &str = "ASHLAR_STANDIN";

/// Whether this process runs on the stand-in rather than on a machine's own driver.
pub fn is_here() -> bool {
    std::env::var_os(PATH).is_some()
}

fn library() -> &'static Library {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let path = std::env::var_os(PATH).expect("the group runs on the stand-in");
        // SAFETY: it is our own library, which has no initialisers that could go wrong.
        unsafe { Library::new(path) }.expect("the stand-in was built")
    })
}

macro_rules! call {
    ($name:literal, fn($($kind:ty),*) $(-> $result:ty)?, $($argument:expr),*) => {{
        // SAFETY: the stand-in exports this function with this type.
        unsafe {
            let f = library().get::<unsafe extern "C" fn($($kind),*) $(-> $result)?>($name).unwrap();
            f($($argument),*)
        }
    }};
}

/// How a chosen call fails.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(i32)]
pub enum Mode {
    /// This call returns the error.
    Once = 0,
    /// This call and all later ones do.
    Sticky = 1,
    /// The call succeeds; what it has put on a stream fails, and then all later calls.
    Later = 2,
    /// Whoever waits for work from then on, waits until [`release`].
    Hang = 3,
    /// The call succeeds; what it copies has a bit changed.
    Wrong = 4,
}

/// Forgets everything; work on streams is mixed by `seed`. Nothing on a machine's own driver.
pub fn reset(seed: u64) {
    if !is_here() {
        return;
    }
    call!(b"standin_reset", fn(u64), seed);
}

/// Call number `at` fails, of those with this name, or of all if it is empty.
pub fn fault(name: &str, at: i64, code: i32, mode: Mode) {
    let name = CString::new(name).unwrap();
    call!(
        b"standin_fault",
        fn(*const c_char, c_long, c_int, c_int),
        name.as_ptr(),
        at,
        code,
        mode as i32
    );
}

/// Lets go whoever hangs.
pub fn release() {
    call!(b"standin_release", fn(),);
}

/// The machine has so many devices, and so much memory for all purposes.
pub fn machine(devices: i32, memory: usize) {
    call!(b"standin_machine", fn(c_int, usize), devices, memory);
}

/// Calls so far, of one function or of all.
pub fn calls(name: &str) -> i64 {
    let name = CString::new(name).unwrap();
    call!(b"standin_calls", fn(*const c_char) -> c_long, name.as_ptr())
}

/// Launches of a kernel so far; a machine's own driver does not say, which counts as one.
pub fn launches(kernel: &str) -> i64 {
    if !is_here() {
        return 1;
    }
    let name = CString::new(kernel).unwrap();
    call!(
        b"standin_launches",
        fn(*const c_char) -> c_long,
        name.as_ptr()
    )
}

/// What has been made and not given back.
fn live() -> i64 {
    call!(b"standin_live", fn() -> c_long,)
}

/// Waits until the threads of a device that was closed have ended, and everything was given back.
pub fn until_nothing_is_left() {
    for _ in 0..1000 {
        if live() == 0 {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{} things are left", live());
}

/// The call that failed; empty if none did.
pub fn failed() -> String {
    let mut text = [0u8; 64];
    call!(b"standin_failed", fn(*mut c_char), text.as_mut_ptr().cast());
    CStr::from_bytes_until_nul(&text)
        .unwrap()
        .to_string_lossy()
        .into_owned()
}

/// Repeatable randomness.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// At least 0, less than `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() >> 33).unwrap() % bound
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| (self.next() >> 56) as u8).collect()
    }
}

/// Limits for small tests.
pub fn small(slot_bytes: usize) -> Options {
    Options {
        slots: 2,
        slot_bytes,
        queue: 4,
        pinned_bytes: 256 << 10,
        deadline_ms: 60_000,
        check_one_in: 0,
        calibrate_bytes: 1 << 10,
        clock: None,
    }
}

/// A device that takes everything it can.
pub fn device(options: Options) -> Accelerator {
    let accelerator = Accelerator::new(Choice::Cuda(0), options);
    let open = accelerator.wait_until_open(Duration::from_secs(60));
    assert!(open, "{}", accelerator.status());
    accelerator
}

/// Memory for outputs, filled with what no test expects.
pub fn fresh(len: usize) -> Vec<u8> {
    vec![0xee; len]
}

/// A job that can be made more than once.
#[derive(Clone)]
pub struct Recipe {
    pub strip: usize,
    pub read: Arc<[u8]>,
    pub written: usize,
    pub coding: Option<Arc<Coding>>,
    pub digests: Option<Digests>,
}

impl Recipe {
    /// The job with input and output in one piece each.
    pub fn job(&self) -> Job<Vec<u8>> {
        let read: Vec<Input> = vec![Box::new(self.read.clone())];
        self.job_of(read, vec![fresh(self.written * self.strip)])
    }

    pub fn job_of(&self, read: Vec<Input>, write: Vec<Vec<u8>>) -> Job<Vec<u8>> {
        let (coding, digests) = (self.coding.clone(), self.digests.clone());
        Job::new(self.strip, read, write, fresh, coding, digests).unwrap()
    }

    /// What the processor makes of it.
    pub fn expected(&self) -> Done<Vec<u8>> {
        let done = Accelerator::cpu().submit(self.job()).wait();
        assert_eq!((done.ran, done.fault), (Ran::Cpu, None));
        done
    }

    /// Runs it on the device and compares.
    pub fn compare(&self, device: &Accelerator) {
        let done = device.submit(self.job()).wait();
        assert_eq!((done.ran, done.fault), (Ran::Cuda(0), None));
        self.check(&done);
    }

    /// Compares a result with the processor's.
    pub fn check(&self, done: &Done<Vec<u8>>) {
        let expected = self.expected();
        assert!(
            done.write.concat() == expected.write.concat(),
            "output, {:?}",
            self.coding
        );
        assert!(
            done.digests == expected.digests,
            "digests, {:?}",
            self.digests
        );
        assert!(done.roots == expected.roots, "roots, {:?}", self.digests);
    }
}
