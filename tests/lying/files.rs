//! Files on a FUSE file system of the test, which is told to lie about some of them.
//!
//! **Invariants**: a file that is not told to lie gives the bytes that were written to it last; what a lie does to
//! bytes follows from their place alone, so that a test repeats itself; lies end with the test.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs::File;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};

use super::common::{Random, Scratch};
use super::wire::{self, Call, Request};

/// How far away a misdirected read or write goes.
const ASTRAY: u64 = 4 << 20;

/// How a file lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// Reads fail with EIO.
    ReadError,
    /// Writes fail with this error, and store nothing.
    WriteError(Errno),
    /// Flushes fail with EIO.
    SyncError,
    /// Reads give what was there before the last write.
    Stale,
    /// Writes are acknowledged and not stored.
    Dropped,
    /// Writes are acknowledged and stored elsewhere.
    WriteAstray,
    /// Reads give what is elsewhere.
    ReadAstray,
    /// Reads give noise.
    Garbage,
    /// The second half of what reads give is zeros.
    Torn,
    /// Reads give half of what was asked for, and say so.
    ShortRead,
    /// Writes take half of what they were given, and say so.
    ShortWrite,
    /// Reads give one wrong bit in each block.
    BitFlip,
    /// Everything takes so long.
    Delay(Duration),
    /// Nothing is answered until the lie ends.
    Hang,
}

impl Lie {
    fn is_of_reads(self) -> bool {
        use Lie::{BitFlip, Garbage, ReadAstray, ReadError, ShortRead, Stale, Torn};
        matches!(
            self,
            ReadError | Stale | ReadAstray | Garbage | Torn | ShortRead | BitFlip
        )
    }

    fn is_of_writes(self) -> bool {
        use Lie::{Dropped, ShortWrite, WriteAstray, WriteError};
        matches!(self, WriteError(_) | Dropped | WriteAstray | ShortWrite)
    }
}

/// What a file is told to do.
#[derive(Default)]
struct Told {
    lie: Option<Lie>,
    /// About each place only the first time; these are the places.
    once: Option<BTreeSet<u64>>,
}

struct Member {
    now: File,
    /// What was there before the last write.
    before: File,
    told: Mutex<Told>,
    lies: AtomicU64,
}

struct Shared {
    bytes: u64,
    members: Vec<Member>,
    /// Counts changes of what is told, for those that hang.
    changes: Mutex<u64>,
    changed: Condvar,
    fuse: File,
}

/// A folder of such files.
pub struct Files {
    shared: Arc<Shared>,
    at: PathBuf,
    thread: Option<JoinHandle<()>>,
    _scratch: Scratch,
}

impl Files {
    /// So many files of so many bytes, which hold zeros.
    pub fn start(count: usize, bytes: u64) -> Files {
        let scratch = Scratch::new("lying");
        let blank = |name: String| {
            let mut options = File::options();
            options.read(true).write(true).create_new(true);
            let file = options.open(scratch.path(&name)).unwrap();
            file.set_len(bytes).unwrap();
            file
        };
        let member = |i| Member {
            now: blank(format!("now{i}")),
            before: blank(format!("before{i}")),
            told: Mutex::default(),
            lies: AtomicU64::new(0),
        };
        let members = (0..count).map(member).collect();
        let at = scratch.path("folder");
        std::fs::create_dir(&at).unwrap();
        let fuse = mount(&at);
        let shared = Arc::new(Shared {
            bytes,
            members,
            changes: Mutex::new(0),
            changed: Condvar::new(),
            fuse,
        });
        let served = shared.clone();
        Files {
            shared,
            at,
            thread: Some(std::thread::spawn(move || serve(&served))),
            _scratch: scratch,
        }
    }

    /// Where they are.
    pub fn paths(&self) -> Vec<String> {
        let path = |i| self.at.join(format!("member{i}")).display().to_string();
        (0..self.shared.members.len()).map(path).collect()
    }

    /// Has this file lie; with `once` about each place the first time only.
    pub fn tell(&self, file: usize, lie: Lie, once: bool) {
        self.shared.tell(file, Some(lie), once);
    }

    /// Has all files be honest, and those that hang answer.
    pub fn end_lies(&self) {
        for file in 0..self.shared.members.len() {
            self.shared.tell(file, None, false);
        }
    }

    /// How often a file has lied.
    pub fn lies(&self, file: usize) -> u64 {
        self.shared.members[file].lies.load(Ordering::SeqCst)
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        self.end_lies();
        let _ = rustix::mount::unmount(&self.at, UnmountFlags::DETACH);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn mount(at: &Path) -> File {
    let fuse = File::options()
        .read(true)
        .write(true)
        .open("/dev/fuse")
        .unwrap();
    let options = format!(
        "fd={},rootmode=40700,user_id=0,group_id=0,allow_other",
        fuse.as_raw_fd()
    );
    let options = CString::new(options).unwrap();
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    rustix::mount::mount("lying", at, "fuse.lying", flags, options.as_c_str()).unwrap();
    rustix::mount::mount_change(at, MountPropagationFlags::PRIVATE).unwrap();
    fuse
}

/// Serves until the folder is unmounted.
fn serve(shared: &Arc<Shared>) {
    let mut buffer = vec![0; wire::REQUEST];
    loop {
        match (&shared.fuse).read(&mut buffer) {
            Ok(length) => shared.take(Request::parse(&buffer[..length])),
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::INTR | Errno::NOENT | Errno::AGAIN) => {} // interrupted before it was read
                _ => return,
            },
        }
    }
}

impl Shared {
    fn tell(&self, file: usize, lie: Option<Lie>, once: bool) {
        let once = once.then(BTreeSet::new);
        *self.members[file].told.lock().unwrap() = Told { lie, once };
        *self.changes.lock().unwrap() += 1;
        self.changed.notify_all();
    }

    /// Answers a request, now or, if its file is slow, from a thread of its own.
    fn take(self: &Arc<Shared>, request: Request) {
        let slow = match request.call {
            Call::Read { .. } | Call::Write { .. } | Call::Sync => {
                let member = &self.members[request.file.unwrap()];
                let lie = member.told.lock().unwrap().lie;
                lie.filter(|lie| matches!(lie, Lie::Delay(_) | Lie::Hang))
            }
            _ => None,
        };
        let Some(lie) = slow else {
            return self.carry_out(request);
        };
        let file = request.file.unwrap();
        self.members[file].lies.fetch_add(1, Ordering::SeqCst);
        let shared = self.clone();
        std::thread::spawn(move || {
            match lie {
                Lie::Delay(time) => std::thread::sleep(time),
                _ => shared.wait_for_the_end_of(lie, file),
            }
            shared.carry_out(request);
        });
    }

    fn wait_for_the_end_of(&self, lie: Lie, file: usize) {
        let mut changes = self.changes.lock().unwrap();
        while self.members[file].told.lock().unwrap().lie == Some(lie) {
            changes = self.changed.wait(changes).unwrap();
        }
    }

    fn carry_out(&self, request: Request) {
        let file = request.file;
        let bytes = file.map_or(0, |_| self.bytes);
        let body = match request.call {
            Call::Silent => return,
            Call::Init => Ok(wire::init()),
            Call::Nothing => Ok(Vec::new()),
            Call::Statistics => Ok(wire::statistics()),
            Call::Open => Ok(wire::open()),
            Call::Attributes => Ok(wire::attributes(file, bytes)),
            Call::Lookup(name) => self.find(&name),
            Call::Read { offset, length } => {
                let length = (self.bytes.saturating_sub(offset)).min(length as u64);
                self.members[file.unwrap()].read(offset, usize::try_from(length).unwrap())
            }
            Call::Write { offset, data } => {
                let taken = self.members[file.unwrap()].write(offset, &data);
                taken.map(wire::written)
            }
            Call::Sync => self.members[file.unwrap()].sync(),
            Call::Other => Err(Errno::NOSYS),
        };
        let body = body.as_deref().map_err(|errno| errno.raw_os_error());
        wire::answer(&self.fuse, request.unique, body);
    }

    fn find(&self, name: &str) -> Result<Vec<u8>, Errno> {
        let number = name.strip_prefix("member").and_then(|n| n.parse().ok());
        let found = number.filter(|n| *n < self.members.len());
        found
            .map(|n| wire::entry(n, self.bytes))
            .ok_or(Errno::NOENT)
    }
}

impl Member {
    /// The lie to be told about this place now.
    fn lie(&self, offset: u64, of: impl FnOnce(Lie) -> bool) -> Option<Lie> {
        let mut told = self.told.lock().unwrap();
        let lie = told.lie.filter(|lie| of(*lie))?;
        let first = told.once.as_mut().is_none_or(|once| once.insert(offset));
        first.then(|| {
            self.lies.fetch_add(1, Ordering::SeqCst);
            lie
        })
    }

    /// Another place for so many bytes.
    fn astray(&self, offset: u64, length: usize) -> u64 {
        let bytes = self.now.metadata().unwrap().len();
        (offset + ASTRAY) % (bytes - length as u64 + 1) / 4096 * 4096
    }

    fn read(&self, offset: u64, length: usize) -> Result<Vec<u8>, Errno> {
        let from = |file: &File, at: u64| {
            let mut bytes = vec![0; length];
            file.read_exact_at(&mut bytes, at).unwrap();
            bytes
        };
        let mut bytes = from(&self.now, offset);
        match self.lie(offset, Lie::is_of_reads) {
            None => {}
            Some(Lie::ReadError) => return Err(Errno::IO),
            Some(Lie::Stale) => bytes = from(&self.before, offset),
            Some(Lie::ReadAstray) => bytes = from(&self.now, self.astray(offset, length)),
            Some(Lie::Garbage) => Random::new(offset ^ 0x6A4B).fill(&mut bytes),
            Some(Lie::Torn) => bytes[length / 2..].fill(0),
            Some(Lie::ShortRead) => bytes.truncate(length.div_ceil(2)),
            Some(Lie::BitFlip) => {
                for (block, number) in bytes.chunks_mut(4096).zip(offset / 4096..) {
                    let at = usize::try_from(number * 977).unwrap() % block.len();
                    block[at] ^= 1 << (number % 8);
                }
            }
            Some(lie) => unreachable!("{lie:?} is none of reads"),
        }
        Ok(bytes)
    }

    /// How many bytes were taken.
    fn write(&self, offset: u64, data: &[u8]) -> Result<usize, Errno> {
        let (at, data) = match self.lie(offset, Lie::is_of_writes) {
            None => (offset, data),
            Some(Lie::WriteError(errno)) => return Err(errno),
            Some(Lie::Dropped) => return Ok(data.len()),
            Some(Lie::WriteAstray) => (self.astray(offset, data.len()), data),
            Some(Lie::ShortWrite) => (offset, &data[..data.len().div_ceil(2)]),
            Some(lie) => unreachable!("{lie:?} is none of writes"),
        };
        let mut old = vec![0; data.len()];
        self.now.read_exact_at(&mut old, at).unwrap();
        self.before.write_all_at(&old, at).unwrap();
        self.now.write_all_at(data, at).unwrap();
        Ok(data.len())
    }

    fn sync(&self) -> Result<Vec<u8>, Errno> {
        match self.lie(0, |lie| lie == Lie::SyncError) {
            Some(_) => Err(Errno::IO),
            None => Ok(Vec::new()),
        }
    }
}
