//! The functions of NVIDIA's driver library that are used, and owners for what they make.
//!
//! `cudarc` finds and loads the library when it is first wanted. The functions are looked up here, all at
//! once, with results as plain numbers: a driver newer than `cudarc` may return an error that its
//! enumeration does not have.
//!
//! **Invariants.**
//! - Everything made here is given back when it is dropped, with the context it belongs to current, and
//!   the context goes last.
//! - A call that fails says which and how. Calls that give something back never fail.

#![expect(unsafe_code, reason = "calls into the driver library")]

use std::ffi::{CStr, c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::Arc;

use cudarc::driver::sys;

use crate::Fault;

type Address = u64;
type Code = u32;

macro_rules! api {
    ($($field:ident = $name:literal ($($kind:ty),*);)*) => {
        /// The table of functions.
        pub(crate) struct Api { $($field: unsafe extern "C" fn($($kind),*) -> Code,)* }

        impl Api {
            /// Loads the library and looks the functions up.
            pub(crate) fn load() -> Result<Api, Fault> {
                // SAFETY: loading NVIDIA's driver library runs its initialisers, which is its intended use.
                if !unsafe { sys::is_culib_present() } {
                    return Err(Fault::NoDriver);
                }
                // SAFETY: as above; it is there, so this does not panic.
                let library = unsafe { sys::culib() };
                Ok(Api { $($field: {
                    // SAFETY: the type is the one that the driver's documentation gives this name.
                    let symbol = unsafe { library.get::<unsafe extern "C" fn($($kind),*) -> Code>($name.as_bytes()) };
                    *symbol.map_err(|_| Fault::NoSymbol($name))?
                },)* })
            }
        }
    };
}

api! {
    init = "cuInit" (c_uint);
    device_count = "cuDeviceGetCount" (*mut c_int);
    device_get = "cuDeviceGet" (*mut c_int, c_int);
    device_name = "cuDeviceGetName" (*mut u8, c_int, c_int);
    device_attribute = "cuDeviceGetAttribute" (*mut c_int, c_int, c_int);
    context_flags = "cuDevicePrimaryCtxSetFlags_v2" (c_int, c_uint);
    context_retain = "cuDevicePrimaryCtxRetain" (*mut *mut c_void, c_int);
    context_release = "cuDevicePrimaryCtxRelease_v2" (c_int);
    context_set = "cuCtxSetCurrent" (*mut c_void);
    context_synchronize = "cuCtxSynchronize" ();
    stream_create = "cuStreamCreate" (*mut *mut c_void, c_uint);
    stream_destroy = "cuStreamDestroy_v2" (*mut c_void);
    event_create = "cuEventCreate" (*mut *mut c_void, c_uint);
    event_destroy = "cuEventDestroy_v2" (*mut c_void);
    event_record = "cuEventRecord" (*mut c_void, *mut c_void);
    event_synchronize = "cuEventSynchronize" (*mut c_void);
    event_elapsed = "cuEventElapsedTime" (*mut f32, *mut c_void, *mut c_void);
    memory_alloc = "cuMemAlloc_v2" (*mut Address, usize);
    memory_free = "cuMemFree_v2" (Address);
    host_alloc = "cuMemHostAlloc" (*mut *mut c_void, usize, c_uint);
    host_free = "cuMemFreeHost" (*mut c_void);
    copy_in = "cuMemcpyHtoDAsync_v2" (Address, *const c_void, usize, *mut c_void);
    copy_out = "cuMemcpyDtoHAsync_v2" (*mut c_void, Address, usize, *mut c_void);
    module_load = "cuModuleLoadData" (*mut *mut c_void, *const c_void);
    module_unload = "cuModuleUnload" (*mut c_void);
    module_function = "cuModuleGetFunction" (*mut *mut c_void, *mut c_void, *const i8);
    launch = "cuLaunchKernel" (*mut c_void, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, *mut c_void,
        *mut *mut c_void, *mut *mut c_void);
}

const OUT_OF_MEMORY: Code = 2;
/// Waiting threads sleep rather than spin.
const SCHEDULE_BLOCKING_SYNC: c_uint = 4;
const EVENT_BLOCKING_SYNC: c_uint = 1;
const STREAM_NON_BLOCKING: c_uint = 1;
/// Pinned for every context.
const HOST_PORTABLE: c_uint = 1;
const MULTIPROCESSORS: c_int = 16;
const COMPUTE_MAJOR: c_int = 75;
const COMPUTE_MINOR: c_int = 76;

fn check(call: &'static str, code: Code) -> Result<(), Fault> {
    match code {
        0 => Ok(()),
        OUT_OF_MEMORY => Err(Fault::Memory { call }),
        code => Err(Fault::Call { call, code }),
    }
}

/// A device's primary context, which every thread that works with it makes its own.
pub(crate) struct Context {
    api: Api,
    device: c_int,
    handle: *mut c_void,
}

// SAFETY: the driver's functions may be called from any thread; the handle is only a name.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// What a device is.
#[derive(Clone, Debug)]
pub(crate) struct About {
    pub(crate) name: String,
    pub(crate) multiprocessors: u32,
    pub(crate) compute: (u32, u32),
}

impl Context {
    /// Opens device `number` and makes it current on this thread.
    pub(crate) fn open(number: u16) -> Result<(Arc<Context>, About), Fault> {
        let api = Api::load()?;
        let (mut count, mut device) = (0, 0);
        // SAFETY: every pointer is to a local that outlives the call.
        unsafe {
            check("cuInit", (api.init)(0))?;
            check("cuDeviceGetCount", (api.device_count)(&raw mut count))?;
        }
        let present = u32::try_from(count).unwrap_or(0);
        if u32::from(number) >= present {
            return Err(Fault::NoDevice {
                wanted: number,
                present,
            });
        }
        // SAFETY: as above.
        unsafe {
            check(
                "cuDeviceGet",
                (api.device_get)(&raw mut device, c_int::from(number)),
            )?
        };
        let about = about(&api, device)?;
        let mut handle = null_mut();
        // SAFETY: as above. Flags of a context that is in use already do not matter.
        unsafe {
            let _ = (api.context_flags)(device, SCHEDULE_BLOCKING_SYNC);
            check(
                "cuDevicePrimaryCtxRetain",
                (api.context_retain)(&raw mut handle, device),
            )?;
        }
        let context = Arc::new(Context {
            api,
            device,
            handle,
        });
        context.make_current()?;
        Ok((context, about))
    }

    /// Makes it the context of the calling thread.
    pub(crate) fn make_current(&self) -> Result<(), Fault> {
        // SAFETY: the context is retained as long as `self` lives.
        check("cuCtxSetCurrent", unsafe {
            (self.api.context_set)(self.handle)
        })
    }

    /// Waits until everything given to the device is done.
    pub(crate) fn synchronize(&self) -> Result<(), Fault> {
        // SAFETY: no argument.
        check("cuCtxSynchronize", unsafe {
            (self.api.context_synchronize)()
        })
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once, released once; nothing made in it is left, since everything has an `Arc` of it.
        let _ = unsafe { (self.api.context_release)(self.device) };
    }
}

fn about(api: &Api, device: c_int) -> Result<About, Fault> {
    let mut text = [0u8; 128];
    // SAFETY: the buffer has the length given, less one byte that stays zero.
    check("cuDeviceGetName", unsafe {
        (api.device_name)(text.as_mut_ptr(), 127, device)
    })?;
    let name = CStr::from_bytes_until_nul(&text).map(|n| n.to_string_lossy().into_owned());
    let attribute = |which| {
        let mut value = 0;
        // SAFETY: the pointer is to a local.
        let code = unsafe { (api.device_attribute)(&raw mut value, which, device) };
        check("cuDeviceGetAttribute", code).map(|()| u32::try_from(value).unwrap_or(0))
    };
    Ok(About {
        name: name.unwrap_or_default(),
        multiprocessors: attribute(MULTIPROCESSORS)?.max(1),
        compute: (attribute(COMPUTE_MAJOR)?, attribute(COMPUTE_MINOR)?),
    })
}

/// Memory of the device.
pub(crate) struct DeviceMemory {
    context: Arc<Context>,
    address: Address,
}

impl DeviceMemory {
    pub(crate) fn new(context: &Arc<Context>, bytes: usize) -> Result<DeviceMemory, Fault> {
        let mut address = 0;
        // SAFETY: the pointer is to a local.
        let code = unsafe { (context.api.memory_alloc)(&raw mut address, bytes) };
        check("cuMemAlloc_v2", code)?;
        Ok(DeviceMemory {
            context: context.clone(),
            address,
        })
    }

    pub(crate) fn address(&self) -> Address {
        self.address
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        let _ = self.context.make_current();
        // SAFETY: allocated in `new`, freed once; whoever drops it has waited for the work that uses it.
        let _ = unsafe { (self.context.api.memory_free)(self.address) };
    }
}

/// Pinned memory of the host: zeroed, at fixed addresses until it is dropped.
pub(crate) struct PinnedMemory {
    context: Arc<Context>,
    start: *mut u8,
    bytes: usize,
}

// SAFETY: it is memory; who may look at which part is up to its users.
unsafe impl Send for PinnedMemory {}
// SAFETY: as above.
unsafe impl Sync for PinnedMemory {}

impl PinnedMemory {
    pub(crate) fn new(context: &Arc<Context>, bytes: usize) -> Result<PinnedMemory, Fault> {
        let mut start = null_mut();
        // SAFETY: the pointer is to a local.
        let code = unsafe { (context.api.host_alloc)(&raw mut start, bytes, HOST_PORTABLE) };
        check("cuMemHostAlloc", code)?;
        let start = start.cast::<u8>();
        // SAFETY: the driver gave `bytes` writable bytes that nobody else knows.
        unsafe { start.write_bytes(0, bytes) };
        Ok(PinnedMemory {
            context: context.clone(),
            start,
            bytes,
        })
    }

    pub(crate) fn start(&self) -> *mut u8 {
        self.start
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        let _ = self.context.make_current();
        // SAFETY: allocated in `new`, freed once, by its only owner.
        let _ = unsafe { (self.context.api.host_free)(self.start.cast()) };
    }
}

/// Compiled kernels.
pub(crate) struct Module {
    context: Arc<Context>,
    handle: *mut c_void,
}

// SAFETY: a name, used through the driver, which may be called from any thread.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

/// One kernel of a module that its owner keeps.
#[derive(Clone, Copy)]
pub(crate) struct Kernel(*mut c_void);

// SAFETY: a name, as above.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

impl Module {
    /// Has the driver compile PTX, which takes a while the first time.
    pub(crate) fn load(context: &Arc<Context>, ptx: &CStr) -> Result<Module, Fault> {
        let mut handle = null_mut();
        // SAFETY: the text ends with a zero byte and outlives the call.
        let code = unsafe { (context.api.module_load)(&raw mut handle, ptx.as_ptr().cast()) };
        check("cuModuleLoadData", code)?;
        Ok(Module {
            context: context.clone(),
            handle,
        })
    }

    pub(crate) fn kernel(&self, name: &CStr) -> Result<Kernel, Fault> {
        let mut handle = null_mut();
        let find = self.context.api.module_function;
        // SAFETY: the module is loaded, the name ends with a zero byte.
        let code = unsafe { find(&raw mut handle, self.handle, name.as_ptr().cast()) };
        check("cuModuleGetFunction", code)?;
        Ok(Kernel(handle))
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        let _ = self.context.make_current();
        // SAFETY: loaded in `load`, unloaded once.
        let _ = unsafe { (self.context.api.module_unload)(self.handle) };
    }
}

/// A stream with the two events that enclose what is on it.
pub(crate) struct Stream {
    context: Arc<Context>,
    handle: *mut c_void,
    events: [*mut c_void; 2],
}

// SAFETY: names, as above; one thread at a time uses a stream.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

/// How many threads run a kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grid {
    pub(crate) blocks: u32,
    /// Second dimension of the grid.
    pub(crate) rows: u32,
    pub(crate) threads: u32,
    /// Bytes of shared memory.
    pub(crate) shared: u32,
}

impl Stream {
    pub(crate) fn new(context: &Arc<Context>) -> Result<Stream, Fault> {
        let mut stream = Stream {
            context: context.clone(),
            handle: null_mut(),
            events: [null_mut(); 2],
        };
        let api = &context.api;
        // SAFETY: the pointers are to fields of a local; what is made is dropped with it.
        unsafe {
            let code = (api.stream_create)(&raw mut stream.handle, STREAM_NON_BLOCKING);
            check("cuStreamCreate", code)?;
            for event in &mut stream.events {
                let code = (api.event_create)(event, EVENT_BLOCKING_SYNC);
                check("cuEventCreate", code)?;
            }
        }
        Ok(stream)
    }

    /// Marks the beginning (0) or the end (1) of what is measured and waited for.
    pub(crate) fn record(&self, which: usize) -> Result<(), Fault> {
        // SAFETY: both were made in `new` and live.
        let code = unsafe { (self.context.api.event_record)(self.events[which], self.handle) };
        check("cuEventRecord", code)
    }

    /// Sleeps until the end has been reached.
    pub(crate) fn wait(&self) -> Result<(), Fault> {
        // SAFETY: the event lives.
        let code = unsafe { (self.context.api.event_synchronize)(self.events[1]) };
        check("cuEventSynchronize", code)
    }

    /// Nanoseconds between the marks, once the end has been reached.
    pub(crate) fn elapsed(&self) -> Result<f64, Fault> {
        let mut milliseconds = 0.0;
        let elapsed = self.context.api.event_elapsed;
        // SAFETY: the pointer is to a local, the events live.
        let code = unsafe { elapsed(&raw mut milliseconds, self.events[0], self.events[1]) };
        check("cuEventElapsedTime", code)?;
        Ok(f64::from(milliseconds) * 1e6)
    }

    /// Copies pinned bytes to the device, later.
    ///
    /// # Safety
    /// `from` and `to` have `bytes` bytes, which stay and, at `from`, do not change until the stream has
    /// got there.
    pub(crate) unsafe fn copy_in(
        &self,
        to: Address,
        from: *const u8,
        bytes: usize,
    ) -> Result<(), Fault> {
        // SAFETY: as the caller promises.
        let code = unsafe { (self.context.api.copy_in)(to, from.cast(), bytes, self.handle) };
        check("cuMemcpyHtoDAsync_v2", code)
    }

    /// Copies bytes of the device to pinned memory, later.
    ///
    /// # Safety
    /// As [`Stream::copy_in`]; nobody looks at `to` until the stream has got there.
    pub(crate) unsafe fn copy_out(
        &self,
        to: *mut u8,
        from: Address,
        bytes: usize,
    ) -> Result<(), Fault> {
        // SAFETY: as the caller promises.
        let code = unsafe { (self.context.api.copy_out)(to.cast(), from, bytes, self.handle) };
        check("cuMemcpyDtoHAsync_v2", code)
    }

    /// Starts a kernel, later.
    ///
    /// # Safety
    /// `arguments` are addresses of values of the types that the kernel takes, in its order; what they
    /// point to on the device stays until the stream has got there.
    pub(crate) unsafe fn launch(
        &self,
        kernel: Kernel,
        grid: Grid,
        arguments: &mut [*mut c_void],
    ) -> Result<(), Fault> {
        let launch = self.context.api.launch;
        // SAFETY: as the caller promises; the driver copies the arguments before it returns.
        let code = unsafe {
            launch(
                kernel.0,
                grid.blocks,
                grid.rows,
                1,
                grid.threads,
                1,
                1,
                grid.shared,
                self.handle,
                arguments.as_mut_ptr(),
                null_mut(),
            )
        };
        check("cuLaunchKernel", code)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let _ = self.context.make_current();
        let api = &self.context.api;
        // SAFETY: made in `new`, destroyed once; null ones were never made.
        unsafe {
            for event in self.events {
                if !event.is_null() {
                    let _ = (api.event_destroy)(event);
                }
            }
            if !self.handle.is_null() {
                let _ = (api.stream_destroy)(self.handle);
            }
        }
    }
}

/// Copies `bytes` to the device and waits until they are there.
pub(crate) fn fill(
    stream: &Stream,
    memory: &DeviceMemory,
    staging: &PinnedMemory,
    bytes: &[u8],
) -> Result<(), Fault> {
    assert!(staging.bytes() >= bytes.len());
    // SAFETY: the caller's fresh pinned memory has room; both live until the wait has ended.
    let copied = unsafe {
        staging
            .start()
            .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        stream.copy_in(memory.address(), staging.start(), bytes.len())
    };
    // Whatever fails, the memory is used by nobody before it is freed.
    let ended = copied
        .and_then(|()| stream.record(1))
        .and_then(|()| stream.wait());
    if ended.is_err() {
        let _ = stream.context.synchronize();
    }
    ended
}
