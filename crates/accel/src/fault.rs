//! Why a device is not used, or did not finish a job.
//!
//! **Invariants**: a fault is small and `Copy`; what it prints tells the operator what to do next.

/// What went wrong with a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Fault {
    /// The program has no code for devices.
    #[error(
        "this program was built without CUDA: use one built with the feature cuda, or set accelerator=cpu"
    )]
    NotBuilt,
    /// There is no driver library.
    #[error("no CUDA driver (libcuda.so.1) here: install NVIDIA's driver, or set accelerator=cpu")]
    NoDriver,
    /// The driver library is too old.
    #[error("the CUDA driver has no {0}: update NVIDIA's driver")]
    NoSymbol(&'static str),
    /// The driver knows no such device.
    #[error("no GPU cuda:{wanted} here, {present} in all: see nvidia-smi -L")]
    NoDevice {
        /// The number asked for.
        wanted: u16,
        /// How many there are.
        present: u32,
    },
    /// Not enough memory on the device, or for pinning.
    #[error(
        "{call}: not enough memory, even for small batches: nvidia-smi shows who uses the GPU's memory, ulimit \
         -l how much may be pinned"
    )]
    Memory {
        /// The driver's function.
        call: &'static str,
    },
    /// A call of the driver failed.
    #[error("{call} failed with CUDA error {code} ({})", name(*code))]
    Call {
        /// The driver's function.
        call: &'static str,
        /// `CUresult`.
        code: u32,
    },
    /// The device did not finish in time.
    #[error(
        "the GPU did not finish a batch in {seconds} s: look for Xid in the kernel's messages (dmesg)"
    )]
    Timeout {
        /// How long it had, in seconds.
        seconds: u32,
    },
    /// The device computed something else than the processor when it was tested.
    #[error("the GPU computed a wrong {0} in its test: replace it")]
    Wrong(&'static str),
    /// The device computed something else than the processor while it worked.
    #[error(
        "the GPU and the processor computed different results: stop using this GPU, and check the parity it \
         computed with 'ashlar verify'"
    )]
    Unequal,
    /// The accelerator was closed while the job waited.
    #[error("the accelerator was closed")]
    Closed,
    /// A thread that works with the device panicked.
    #[error("a thread of the accelerator panicked: report it with the daemon's output")]
    Panic,
    /// A piece of a job changed its length after it was submitted.
    #[error("a buffer changed its length while a batch was under way")]
    Piece,
    /// A thread could not be started.
    #[error("no thread could be started for the GPU: raise the limit of threads")]
    NoThread,
}

/// Words for the errors that are likely.
fn name(code: u32) -> &'static str {
    match code {
        1 => "invalid value",
        3 => "not initialised: the driver's kernel module is not loaded",
        46 => "the device is used exclusively by another process",
        100 => "no device",
        101 => "no such device",
        214 => "uncorrectable memory error: see nvidia-smi -q -d ECC",
        218 | 222 => "the driver is too old for these kernels: update it",
        304 | 999 => "the driver failed: see the kernel's messages",
        700 => "illegal address",
        702 => "a kernel ran too long",
        716 => "misaligned address",
        719 => "a kernel failed",
        802 => "the system is not ready: is the fabric manager running?",
        803 => "driver and kernel module do not match: reboot",
        _ => "see CUDA's list of errors",
    }
}
