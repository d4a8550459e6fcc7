//! Discarding on block devices: `BLKDISCARD`, which the kernel offers only as a call that waits.
//! (Punching a hole, which io_uring could do, is writing zeros to a block device: some drives carry
//! that out literally.)
//!
//! Invariants: at most one helper thread per device, alive only while discards are queued, and so
//! never in the way of another device; discards of one device are carried out in order.

use std::collections::VecDeque;
use std::fs::File;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ashlar_rt::OneshotSender;

use crate::Fault;
use crate::fault::Presence;
use crate::sync::discard_now;

struct Job {
    offset: u64,
    length: u64,
    reply: OneshotSender<Result<(), Fault>>,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    running: bool,
}

/// The discards of one block device.
pub(crate) struct Discards {
    file: Arc<File>,
    presence: Arc<Presence>,
    queue: Arc<Mutex<Queue>>,
}

fn lock(queue: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Discards {
    pub(crate) fn new(file: Arc<File>, presence: Arc<Presence>) -> Discards {
        Discards {
            file,
            presence,
            queue: Arc::default(),
        }
    }

    /// Queues a discard; `reply` gets its result. Discarding is advice: when no thread can be had,
    /// the device goes without.
    pub(crate) fn add(&self, offset: u64, length: u64, reply: OneshotSender<Result<(), Fault>>) {
        let mut queue = lock(&self.queue);
        queue.jobs.push_back(Job {
            offset,
            length,
            reply,
        });
        if queue.running {
            return;
        }
        let (file, presence) = (self.file.clone(), self.presence.clone());
        let shared = self.queue.clone();
        let thread = std::thread::Builder::new()
            .name("discard".into())
            .stack_size(128 << 10);
        queue.running = thread
            .spawn(move || work(&file, &presence, &shared))
            .is_ok();
        if !queue.running {
            for job in queue.jobs.drain(..) {
                job.reply.send(Ok(()));
            }
        }
    }
}

fn work(file: &File, presence: &Presence, queue: &Mutex<Queue>) {
    loop {
        let job = {
            let mut queue = lock(queue);
            let Some(job) = queue.jobs.pop_front() else {
                queue.running = false;
                return;
            };
            job
        };
        if !job.reply.is_awaited() {
            continue; // it was given up, and somebody else may have the device by now
        }
        job.reply
            .send(discard_now(file, presence, job.offset, job.length));
    }
}
