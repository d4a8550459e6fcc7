//! Parity of whole stripes, with the digests of its blocks.
//!
//! Invariants:
//! - On the processor a stripe is computed where it is asked for.
//! - For a device, stripes of one shape that are closed in one turn of the executor are one job, as far as it
//!   holds them. None of them waits for a stripe that is yet to be closed.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use ashlar_accel::{Input, Job, Of};
use ashlar_format::BLOCK;
use ashlar_format::context::Context;
use ashlar_rt::{Buf, OneshotSender, Slice, oneshot};

use super::{CodeId, Computing, cut, id_of, keyed};
use crate::segment::table::Core;
use crate::segment::{Pinned, Segment};

/// The parity strips of a stripe, and the digests of their blocks, strip after strip.
pub type Parity = (Vec<Slice>, Vec<[u8; 16]>);

/// A stripe to be computed: its data strips one after another, in pieces of whole strips.
struct Stripe {
    segment: Pinned,
    number: u32,
    data: Vec<Slice>,
}

/// Code, K, M and blocks of a strip: what stripes of one job have in common.
type Shape = (CodeId, u32);

/// Stripes, and who waits for them.
type GroupCommit = Vec<(Stripe, OneshotSender<Parity>)>;

/// Stripes that wait for the end of the turn.
#[derive(Default)]
pub struct GroupCommits(RefCell<BTreeMap<Shape, GroupCommit>>);

/// The parity of stripe `number`. `data` is all data strips one after another, in pieces of whole strips.
pub async fn encode(core: &Rc<Core>, segment: &Pinned, number: u32, data: Vec<Slice>) -> Parity {
    if segment.geometry.m == 0 {
        return (Vec::new(), Vec::new());
    }
    let stripe = Stripe {
        segment: segment.clone(),
        number,
        data,
    };
    if core.coder.job_bytes() == 0 {
        let computing = submit(core, std::slice::from_ref(&stripe));
        return finish(core, &stripe.segment, computing).await.remove(0);
    }
    let shape = (id_of(segment), segment.geometry.strip_blocks);
    let (sender, receiver) = oneshot();
    let first = {
        let mut group_commits = core.coder.group_commits.0.borrow_mut();
        let group_commit = group_commits.entry(shape).or_default();
        group_commit.push((stripe, sender));
        group_commit.len() == 1
    };
    if first {
        let core = core.clone();
        core.rt
            .clone()
            .spawn(async move { end_group_commit(&core, shape).await });
    }
    receiver.await.expect("a batch is always ended")
}

/// At the end of the turn: submits what has come, then answers.
async fn end_group_commit(core: &Rc<Core>, shape: Shape) {
    core.rt.yield_now().await;
    let group_commit = core.coder.group_commits.0.borrow_mut().remove(&shape);
    let (stripes, senders): (Vec<Stripe>, Vec<_>) =
        group_commit.unwrap_or_default().into_iter().unzip();
    let ((_, k, _), strip_blocks) = shape;
    let bytes = usize::from(k) * strip_blocks as usize * BLOCK;
    let at_once = (core.coder.job_bytes() / bytes).max(1);
    let jobs: Vec<Computing> = stripes
        .chunks(at_once)
        .map(|stripes| submit(core, stripes))
        .collect();
    let mut senders = senders.into_iter();
    for (job, stripes) in jobs.into_iter().zip(stripes.chunks(at_once)) {
        let all = finish(core, &stripes[0].segment, job).await;
        all.into_iter()
            .zip(&mut senders)
            .for_each(|(parity, sender)| sender.send(parity));
    }
}

/// Submits stripes of one shape as one job.
fn submit(core: &Core, stripes: &[Stripe]) -> Computing {
    let geometry = stripes[0].segment.geometry;
    let strip = geometry.strip_blocks as usize * BLOCK;
    let (mut read, mut contexts) = (Vec::new(), Vec::new());
    for stripe in stripes {
        let pieces = stripe.data.iter();
        read.extend(pieces.map(|piece| Box::new(piece.clone()) as Input));
        let segment = stripe.segment.number;
        for column in geometry.k..geometry.k + geometry.m {
            let blocks = 0..geometry.strip_blocks;
            contexts.extend(blocks.map(|b| Context::parity(segment, stripe.number, column, b)));
        }
    }
    let fresh = || Buf::scratch(usize::from(geometry.m) * strip);
    let write = stripes.iter().map(|_| fresh()).collect();
    let digests = Some(keyed(core, Of::Written, &contexts));
    let coding = Some(core.coder.parity_of(core, &stripes[0].segment));
    let job = Job::new(strip, read, write, Buf::zeroed, coding, digests).expect("whole stripes");
    core.coder.submit(job)
}

/// The parity of each stripe of a job; `segment` is of their shape.
async fn finish(core: &Core, segment: &Segment, computing: Computing) -> Vec<Parity> {
    let done = core.coder.done(core, computing).await;
    let strip = segment.geometry.strip_blocks as usize * BLOCK;
    let m = usize::from(segment.geometry.m);
    let mut digests = cut(&done.digests);
    let of_stripe = |parity: Buf| {
        let parity = parity.freeze();
        let strips = (0..m).map(|p| parity.cut(p * strip..(p + 1) * strip));
        let digests = digests.by_ref().take(m * strip / BLOCK);
        (strips.collect(), digests.collect())
    };
    done.write.into_iter().map(of_stripe).collect()
}
