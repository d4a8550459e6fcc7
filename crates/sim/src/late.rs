//! An accelerator that takes its time: what the engine asks for is computed as ever, and answered late, in
//! any order, and now and then as if a device had been lost with it.
//!
//! Invariants: the bytes are the processor's; when an answer comes follows from the seed.

use std::rc::Rc;

use ashlar_accel::{Accelerator, Choice, Fault, Job, Status};
use ashlar_engine::{Accelerate, Accelerators, Computing};
use ashlar_rt::{Buf, MICROSECOND, Rt};

/// Bytes of input that a job may have: at most a few blocks of each column, so that a course is many jobs.
const JOB_BYTES: [usize; 3] = [16 << 10, 64 << 10, 1 << 20];
/// Most answers come within this time.
const USUAL: u64 = 300 * MICROSECOND;
/// One answer in so many takes a hundred times as long.
const SLOW_ONE_IN: u64 = 16;
/// One answer in so many comes after a fault.
const FAULT_ONE_IN: u64 = 200;

struct Late {
    rt: Rt,
    processor: Accelerator,
    job_bytes: usize,
}

/// Makes accelerators that answer late on this executor.
pub fn accelerators(rt: &Rt) -> Accelerators {
    let rt = rt.clone();
    Accelerators(Rc::new(move |_: Choice| {
        let pick = usize::try_from(rt.random_below(JOB_BYTES.len() as u64)).unwrap_or(0);
        Rc::new(Late {
            rt: rt.clone(),
            processor: Accelerator::cpu(),
            job_bytes: JOB_BYTES[pick],
        })
    }))
}

impl Accelerate for Late {
    fn submit(&self, job: Job<Buf>) -> Computing {
        let rt = self.rt.clone();
        let slow = if rt.random_below(SLOW_ONE_IN) == 0 {
            100
        } else {
            1
        };
        let after = rt.random_below(slow * USUAL);
        let lost = rt.random_below(FAULT_ONE_IN) == 0;
        let mut done = self.processor.submit(job).wait();
        done.fault = lost.then_some(Fault::Timeout { seconds: 10 });
        Box::pin(async move {
            rt.sleep(after).await;
            done
        })
    }

    fn job_bytes(&self) -> usize {
        self.job_bytes
    }

    fn status(&self) -> Status {
        self.processor.status()
    }
}
