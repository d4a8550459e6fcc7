//! Where parity, lost strips and the digests that go with them are computed: the engine's side of the
//! accelerator (`crates/accel`, docs/gpu.md).
//!
//! Invariants:
//! - What comes back is what codec and digests make of the bytes, wherever it was computed.
//! - A fault of a device is told once and costs time only: the result is the processor's.
//! - On the processor a job ends where it is asked for, and nobody waits.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{self, Poll, Waker};

use ashlar_accel::{
    Accelerator, Choice, Coding, Digests, Done, Form, Function, Input, Job, Of, Status,
};
use ashlar_digest::Kind;
use ashlar_format::BLOCK;
use ashlar_format::summary::{Owner, Row};
use ashlar_rt::{Buf, Slice};

use crate::contexts::{Context, LONGEST};
use crate::core::Core;
use crate::segment::{Column, Segment};

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
/// The columns that are read, and the one that is computed.
type LossId = (CodeId, Vec<usize>, usize);

/// Losses whose matrices are kept.
const LOSSES_KEPT: usize = 64;

/// The array's coder.
pub struct Coder {
    accelerators: Accelerators,
    now: RefCell<Rc<dyn Accelerate>>,
    fault_told: Cell<bool>,
    parity: RefCell<BTreeMap<CodeId, Arc<Coding>>>,
    losses: RefCell<BTreeMap<LossId, Arc<Coding>>>,
}

impl Coder {
    /// On the processor until [`Coder::choose`].
    pub fn new(accelerators: &Accelerators) -> Coder {
        Coder {
            accelerators: accelerators.clone(),
            now: RefCell::new(Rc::new(Accelerator::cpu())),
            fault_told: Cell::new(false),
            parity: RefCell::default(),
            losses: RefCell::default(),
        }
    }

    /// Uses what `choice` says from the next job on; a device that was lost is tried again.
    pub fn choose(&self, choice: Choice) {
        *self.now.borrow_mut() = self.accelerators.0(choice);
        self.fault_told.set(false);
    }

    /// What is in use, and why.
    pub fn status(&self) -> Status {
        self.now.borrow().status()
    }

    fn submit(&self, job: Job<Buf>) -> Computing {
        self.now.borrow().submit(job)
    }

    /// How many blocks of each of so many columns a job takes.
    fn blocks_at_once(&self, columns: usize) -> usize {
        match self.now.borrow().job_bytes() {
            0 => usize::MAX,
            bytes => (bytes / (columns * BLOCK)).max(1),
        }
    }

    async fn done(&self, core: &Core, computing: Computing) -> Done<Buf> {
        let done = computing.await;
        if let Some(fault) = done.fault
            && !self.fault_told.replace(true)
        {
            core.event(
                "accelerator-lost",
                None,
                format!(
                    "{fault}; the processor did its work again and goes on alone; set accelerator once more to try it again"
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

    /// What makes a column of the columns `reads`; `None` if these are too few.
    fn loss_of(
        &self,
        core: &Core,
        segment: &Segment,
        reads: Vec<usize>,
        wanted: usize,
    ) -> Option<Arc<Coding>> {
        let id = (id_of(segment), reads, wanted);
        if let Some(coding) = self.losses.borrow().get(&id) {
            return Some(coding.clone());
        }
        let code = core.code(segment);
        let mut present = vec![false; segment.geometry.width()];
        id.1.iter().for_each(|column| present[*column] = true);
        let decoder = code.decoder(&present, &[wanted]).ok()?;
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
            key: core.key,
            contexts: bytes,
            each: LONGEST,
            lengths: Some(lengths),
        },
        tree: None,
    }
}

/// The parity strips of stripe `number`, and the digests of their blocks, strip after strip. `data` is all
/// data strips one after another.
pub async fn encode(
    core: &Core,
    segment: &Segment,
    number: u32,
    data: Vec<Slice>,
) -> (Vec<Slice>, Vec<[u8; 16]>) {
    let geometry = segment.geometry;
    let strip = geometry.strip_blocks as usize * BLOCK;
    if geometry.m == 0 {
        return (Vec::new(), Vec::new());
    }
    let mut contexts = Vec::new();
    for column in geometry.k..geometry.k + geometry.m {
        let blocks = 0..geometry.strip_blocks;
        contexts.extend(blocks.map(|b| Context::parity(segment.number, number, column, b)));
    }
    let read = data.into_iter().map(|d| Box::new(d) as Input).collect();
    let write = vec![Buf::zeroed(usize::from(geometry.m) * strip)];
    let digests = Some(keyed(core, Of::Written, &contexts));
    let coding = Some(core.coder.parity_of(core, segment));
    let job = Job::new(strip, read, write, Buf::zeroed, coding, digests).expect("a whole stripe");
    let computing = core.coder.submit(job);
    let mut done = core.coder.done(core, computing).await;
    let parity = done.write.pop().expect("one piece").freeze();
    let strips = (0..usize::from(geometry.m)).map(|p| parity.cut(p * strip..(p + 1) * strip));
    (strips.collect(), cut(&done.digests).collect())
}

/// A column of a course as it was read, not verified yet.
#[derive(Debug)]
pub struct Survivor {
    /// Its index.
    pub column: usize,
    /// Where it was read.
    pub place: Column,
    /// Its blocks; those without a row are zeros.
    pub bytes: Slice,
    /// Their rows.
    pub rows: Vec<Row>,
}

/// A computed column of a course.
#[derive(Debug)]
pub struct Decoded {
    /// Its blocks.
    pub bytes: Buf,
    /// Their digests, as far as their owners' functions are known.
    pub digests: Vec<Option<[u8; 16]>>,
    /// For each survivor the blocks that do not match their rows.
    pub bad: Vec<Vec<usize>>,
}

/// Computes column `wanted` of a course, whose blocks belong to `owners`, from K others, and says which
/// blocks of these are not what their rows say: the bytes cross the link once for both. `None` if the columns
/// are too few.
pub async fn decode_course(
    core: &Core,
    segment: &Segment,
    course: u32,
    survivors: &[Survivor],
    wanted: usize,
    owners: &[Owner],
) -> Option<Decoded> {
    let reads = survivors.iter().map(|s| s.column).collect();
    let coding = core.coder.loss_of(core, segment, reads, wanted)?;
    let made = Some((coding, wanted, owners));
    Some(run_course(core, segment, course, survivors, made).await)
}

/// The blocks of a column of a course that are not what their rows say.
pub async fn verify_course(
    core: &Core,
    segment: &Segment,
    course: u32,
    survivor: &Survivor,
) -> Vec<usize> {
    let survivors = std::slice::from_ref(survivor);
    let found = run_course(core, segment, course, survivors, None).await;
    found.bad.concat()
}

/// Verifies columns, and computes one more of them if `made` says so: how, which, and the owners of its blocks.
async fn run_course(
    core: &Core,
    segment: &Segment,
    course: u32,
    survivors: &[Survivor],
    made: Option<(Arc<Coding>, usize, &[Owner])>,
) -> Decoded {
    let blocks = survivors[0].rows.len();
    let mut columns = Vec::new();
    for survivor in survivors {
        let owners = survivor
            .rows
            .iter()
            .map(|row| Owner::from_bytes(&row.owner));
        columns.push(contexts_of(segment, course, survivor.column, owners));
    }
    if let Some((_, wanted, owners)) = &made {
        columns.push(contexts_of(
            segment,
            course,
            *wanted,
            owners.iter().copied(),
        ));
    }
    // A job has one digest function, and others than this have no kernel: then digests are taken here.
    let mut known = columns.iter().flatten().flatten();
    let at_once = known.all(|(kind, _)| *kind == Kind::Blake3);
    let part = core.coder.blocks_at_once(survivors.len()).min(blocks);
    let mut jobs = Vec::new();
    for start in (0..blocks).step_by(part) {
        let range = start..blocks.min(start + part);
        let strip = range.len() * BLOCK;
        let cut =
            |s: &Survivor| Box::new(s.bytes.cut(start * BLOCK..start * BLOCK + strip)) as Input;
        let read = survivors.iter().map(cut).collect();
        let digests = at_once.then(|| {
            let none = Context::block(0, 0); // of an unknown function: its digest is not looked at
            let parts = columns.iter().flat_map(|column| &column[range.clone()]);
            let contexts: Vec<Context> = parts.map(|c| c.map_or(none, |(_, c)| c)).collect();
            keyed(core, Of::Both, &contexts)
        });
        let coding = made.as_ref().map(|(coding, ..)| coding.clone());
        if coding.is_none() && digests.is_none() {
            break;
        }
        let write = coding.iter().map(|_| Buf::zeroed(strip)).collect();
        let job = Job::new(strip, read, write, Buf::zeroed, coding, digests)
            .expect("columns of one length");
        jobs.push((range, core.coder.submit(job)));
    }
    let mut bytes = Buf::zeroed(made.as_ref().map_or(0, |_| blocks * BLOCK));
    let mut taken: Vec<Vec<[u8; 16]>> = vec![Vec::with_capacity(blocks); columns.len()];
    for (range, computing) in jobs {
        let done = core.coder.done(core, computing).await;
        for made in &done.write {
            bytes[range.start * BLOCK..range.end * BLOCK].copy_from_slice(made);
        }
        let mut digests = cut(&done.digests);
        for column in &mut taken {
            column.extend(digests.by_ref().take(range.len()));
        }
    }
    let digest = |column: usize, at: usize, block: &[u8]| {
        let (kind, context) = columns[column][at]?;
        let one = || core.digest(kind, context, block);
        Some(taken[column].get(at).copied().unwrap_or_else(one))
    };
    let mut bad = Vec::new();
    for (column, survivor) in survivors.iter().enumerate() {
        let of = survivor.rows.iter().zip(survivor.bytes.chunks(BLOCK));
        let wrong = of.enumerate().filter(|(at, (row, block))| {
            row.digest != [0; 16] && digest(column, *at, block) != Some(row.digest)
        });
        bad.push(wrong.map(|(at, _)| at).collect());
    }
    let of = bytes.chunks(BLOCK).enumerate();
    let digests = of.map(|(at, block)| digest(survivors.len(), at, block));
    Decoded {
        digests: digests.collect(),
        bytes,
        bad,
    }
}

/// The digest functions and contexts of the blocks of a column of a course.
fn contexts_of(
    segment: &Segment,
    course: u32,
    column: usize,
    owners: impl Iterator<Item = Owner>,
) -> Vec<Option<(Kind, Context)>> {
    let geometry = segment.geometry;
    let first = course * geometry.course_strips();
    let column = u16::try_from(column).expect("at most 256 columns");
    let context = |(at, owner): (u32, Owner)| {
        let stripe = first + at / geometry.strip_blocks;
        let place = (stripe, column, at % geometry.strip_blocks);
        Context::of_strip(segment, place, &owner)
    };
    (0u32..).zip(owners).map(context).collect()
}
