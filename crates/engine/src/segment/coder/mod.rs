//! Computes parity, lost strips and their digests: the engine's side of the accelerator (`crates/accel`,
//! docs/gpu.md).
//!
//! Invariants:
//! - What comes back is what codec and digests make of the bytes, wherever it was computed.
//! - A fault of a device is told once and costs time only: the result is the processor's.
//! - On the processor a job ends where it is asked for, and nobody waits.

mod course;
mod parity;
#[cfg(test)]
mod tests;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{self, Poll, Waker};

use ashlar_accel::{Accelerator, Choice, Coding, Digests, Done, Form, Function, Job, Of, Status};
use ashlar_codec::{Code, CodeKind};
use ashlar_format::BLOCK;
use ashlar_format::context::{Context, LONGEST};
use ashlar_rt::Buf;

use crate::segment::Segment;
use crate::segment::table::Core;

pub use course::{Survivor, Wanted, decode_course, verify_course};
pub use parity::encode;

/// A job under way.
pub type Computing = Pin<Box<dyn Future<Output = Done<Buf>>>>;

/// What runs jobs: an [`Accelerator`], or what a test puts before one.
pub trait Accelerate {
    /// Takes a job. What it gives is right whatever happens to a device.
    fn submit(&self, job: Job<Buf>) -> Computing;

    /// Bytes of input that a job may have to run elsewhere than on the processor; 0: it runs there anyway.
    fn job_bytes(&self) -> usize;

    /// What was chosen, and why.
    fn status(&self) -> Status;
}

impl Accelerate for Accelerator {
    fn submit(&self, job: Job<Buf>) -> Computing {
        Box::pin(Accelerator::submit(self, job))
    }

    fn job_bytes(&self) -> usize {
        Accelerator::job_bytes(self)
    }

    fn status(&self) -> Status {
        Accelerator::status(self)
    }
}

/// Makes what runs the jobs of an array, by what its setting `accelerator` says.
#[derive(Clone)]
pub struct Accelerators(pub Rc<dyn Fn(Choice) -> Rc<dyn Accelerate>>);

impl Default for Accelerators {
    /// The processor, whatever is set.
    fn default() -> Accelerators {
        Accelerators(Rc::new(|_| Rc::new(Accelerator::cpu())))
    }
}

impl std::fmt::Debug for Accelerators {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Accelerators")
    }
}

/// Code, K and M.
type CodeId = (u8, u16, u16);
/// The columns that are read, and those that are computed.
type LossId = (CodeId, Vec<usize>, Vec<usize>);

/// Losses whose matrices are kept.
const LOSSES_KEPT: usize = 64;

/// The array's coder.
pub struct Coder {
    accelerators: Accelerators,
    now: RefCell<Rc<dyn Accelerate>>,
    fault_told: Cell<bool>,
    codes: RefCell<BTreeMap<CodeId, Code>>,
    parity: RefCell<BTreeMap<CodeId, Arc<Coding>>>,
    losses: RefCell<BTreeMap<LossId, Arc<Coding>>>,
    group_commits: parity::GroupCommits,
}

impl Coder {
    /// On the processor until [`Coder::choose`].
    pub fn new(accelerators: &Accelerators) -> Coder {
        Coder {
            accelerators: accelerators.clone(),
            now: RefCell::new(Rc::new(Accelerator::cpu())),
            fault_told: Cell::new(false),
            codes: RefCell::default(),
            parity: RefCell::default(),
            losses: RefCell::default(),
            group_commits: parity::GroupCommits::default(),
        }
    }

    /// Uses what `choice` says from the next job on; a device that was lost is tried again.
    pub fn choose(&self, choice: Choice) {
        *self.now.borrow_mut() = self.accelerators.0(choice);
        self.fault_told.set(false);
    }

    /// The code of a segment.
    pub fn code(&self, segment: &Segment) -> Code {
        let id = (segment.code, segment.geometry.k, segment.geometry.m);
        self.codes
            .borrow_mut()
            .entry(id)
            .or_insert_with(|| {
                CodeKind::from_tag(id.0)
                    .and_then(|kind| Code::new(kind, usize::from(id.1), usize::from(id.2)).ok())
                    .expect("an import refuses, and the allocator never makes, a segment without a code")
            })
            .clone()
    }

    /// What is in use, and why.
    pub fn status(&self) -> Status {
        self.now.borrow().status()
    }

    fn submit(&self, job: Job<Buf>) -> Computing {
        self.now.borrow().submit(job)
    }

    /// Bytes of input that a job may have to run elsewhere than on the processor; 0: it runs there anyway.
    fn job_bytes(&self) -> usize {
        self.now.borrow().job_bytes()
    }

    /// How many blocks of each of so many columns a job takes.
    fn blocks_at_once(&self, columns: usize) -> usize {
        match self.job_bytes() {
            0 => usize::MAX,
            bytes => (bytes / (columns * BLOCK)).max(1),
        }
    }

    async fn done(&self, core: &Core, computing: Computing) -> Done<Buf> {
        let done = computing.await;
        if let Some(fault) = done.fault
            && !self.fault_told.replace(true)
        {
            core.events.note(
                "accelerator-lost",
                None,
                format!(
                    "the GPU is no longer used: {fault}. The processor repeated the work and goes on alone; \
                     'ashlar set ARRAY accelerator=auto' tries the GPU again"
                ),
            );
        }
        done
    }

    fn parity_of(&self, core: &Core, segment: &Segment) -> Arc<Coding> {
        let id = id_of(segment);
        let mut all = self.parity.borrow_mut();
        let coding = all
            .entry(id)
            .or_insert_with(|| Arc::new(Coding::encode(&core.code(segment))));
        coding.clone()
    }

    /// What makes columns of the columns `reads`; `None` if these are too few.
    fn loss_of(
        &self,
        core: &Core,
        segment: &Segment,
        reads: Vec<usize>,
        wanted: Vec<usize>,
    ) -> Option<Arc<Coding>> {
        let id = (id_of(segment), reads, wanted);
        if let Some(coding) = self.losses.borrow().get(&id) {
            return Some(coding.clone());
        }
        let code = core.code(segment);
        let mut present = vec![false; segment.geometry.width()];
        id.1.iter().for_each(|column| present[*column] = true);
        let decoder = code.decoder(&present, &id.2).ok()?;
        assert_eq!(decoder.reads(), id.1, "K columns are read, all of them");
        let coding = Arc::new(Coding::decode(&code, &decoder));
        let mut losses = self.losses.borrow_mut();
        if losses.len() == LOSSES_KEPT {
            losses.clear();
        }
        losses.insert(id, coding.clone());
        Some(coding)
    }
}

fn id_of(segment: &Segment) -> CodeId {
    (segment.code, segment.geometry.k, segment.geometry.m)
}

/// What was begun with [`begin`].
pub enum Begun<T> {
    Done(Option<T>),
    Later(Pin<Box<dyn Future<Output = T>>>),
}

/// Does `work` as far as it goes without waiting: on the processor to its end, in the order of the calls.
pub fn begin<T>(work: impl Future<Output = T> + 'static) -> Begun<T> {
    let mut work = Box::pin(work);
    match work
        .as_mut()
        .poll(&mut task::Context::from_waker(Waker::noop()))
    {
        Poll::Ready(done) => Begun::Done(Some(done)),
        Poll::Pending => Begun::Later(work),
    }
}

impl<T: Unpin> Future for Begun<T> {
    type Output = T;
    fn poll(self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<T> {
        match self.get_mut() {
            Begun::Done(done) => Poll::Ready(done.take().expect("awaited once")),
            Begun::Later(work) => work.as_mut().poll(cx),
        }
    }
}

/// The first half of each digest of a job.
fn cut(digests: &[u8]) -> impl Iterator<Item = [u8; 16]> + '_ {
    let each = digests.chunks_exact(Function::Blake3.bytes());
    each.map(|digest| digest[..16].try_into().expect("32 bytes"))
}

/// Digests of `of`, each with its context.
fn keyed(core: &Core, of: Of, contexts: &[Context]) -> Digests {
    let (mut bytes, mut lengths) = (Vec::with_capacity(contexts.len() * LONGEST), Vec::new());
    for (padded, length) in contexts.iter().map(Context::padded) {
        bytes.extend_from_slice(&padded);
        lengths.push(length);
    }
    Digests {
        function: Function::Blake3,
        block: BLOCK,
        of,
        form: Form::Keyed {
            key: core.identity.key,
            contexts: bytes,
            each: LONGEST,
            lengths: Some(lengths),
        },
        tree: None,
    }
}
