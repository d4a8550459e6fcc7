//! Parity and lost columns from an accelerator that answers in its own time: which one is asked, in what order
//! answers may come, and what is said of faults.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use ashlar_accel::{Accelerator, Choice, Fault, Job, Status};
use ashlar_device::MemDevice;
use ashlar_engine::status::ArrayState;
use ashlar_engine::{Accelerate, Accelerators, Array, Computing, Create, Error, Import, Settings};
use ashlar_rt::{Buf, MILLISECOND, Rt};

use crate::common::{check, devices, fill, refs, small, volume, without};

const SIZE: u64 = 1 << 20;

/// What was asked of the accelerators of an array, and how they answer.
#[derive(Default)]
struct Script {
    chosen: RefCell<Vec<Choice>>,
    jobs: Cell<u64>,
    /// The first of so many jobs that are under way is answered last.
    backwards: Cell<u64>,
    faulty: Cell<bool>,
}

struct Scripted {
    rt: Rt,
    script: Rc<Script>,
    processor: Accelerator,
}

impl Script {
    fn settings(self: &Rc<Self>, rt: &Rt) -> Settings {
        let (rt, script) = (rt.clone(), self.clone());
        Settings {
            accelerators: Accelerators(Rc::new(move |choice| {
                script.chosen.borrow_mut().push(choice);
                Rc::new(Scripted {
                    rt: rt.clone(),
                    script: script.clone(),
                    processor: Accelerator::cpu(),
                })
            })),
            ..Settings::default()
        }
    }

    async fn array(self: &Rc<Self>, rt: &Rt, disks: &[Rc<MemDevice>]) -> Array {
        let options = Create {
            settings: self.settings(rt),
            ..small("ec4+2")
        };
        Array::create(rt, refs(disks), options).await.unwrap()
    }
}

impl Accelerate for Scripted {
    fn submit(&self, job: Job<Buf>) -> Computing {
        let number = self.script.jobs.replace(self.script.jobs.get() + 1);
        let turns = self.script.backwards.get();
        let wait = match turns {
            0 => 0,
            turns => (turns - number % turns) * MILLISECOND,
        };
        let mut done = self.processor.submit(job).wait();
        if self.script.faulty.get() {
            done.fault = Some(Fault::Timeout { seconds: 10 });
        }
        let rt = self.rt.clone();
        Box::pin(async move {
            if wait > 0 {
                rt.sleep(wait).await;
            }
            done
        })
    }

    /// One stripe.
    fn job_bytes(&self) -> usize {
        16 << 10
    }

    fn status(&self) -> Status {
        self.processor.status()
    }
}

#[test]
fn the_setting_is_checked_kept_and_followed() {
    let disks = devices(6, 16 << 20);
    let rt = Rt::simulated(1);
    let handle = rt.clone();
    rt.block_on(async move {
        let script = Rc::new(Script::default());
        let array = script.array(&handle, &disks).await;
        let kept = |array: &Array| array.get(Some("accelerator")).unwrap()[0].1.clone();
        assert_eq!(kept(&array), "auto");
        for bad in ["gpu", "cuda:", "cuda:x", "CPU", ""] {
            let error = array.set("accelerator", bad).await.unwrap_err();
            assert!(matches!(error, Error::Setting { .. }), "{bad}: {error}");
        }
        array.set("accelerator", "cuda:3").await.unwrap();
        array.set("accelerator", "cuda").await.unwrap();
        assert_eq!(kept(&array), "cuda:0");
        array.export().await.unwrap();
        let options = Import {
            settings: script.settings(&handle),
            ..Import::default()
        };
        let array = Array::import(&handle, refs(&disks), options).await.unwrap();
        assert_eq!(kept(&array), "cuda:0");
        let asked = [
            Choice::Auto,
            Choice::Cuda(3),
            Choice::Cuda(0),
            Choice::Cuda(0),
        ];
        assert_eq!(*script.chosen.borrow(), asked);
    });
}

/// The last stripe of a course carries the rows of all of them, also of those whose parity comes after its own.
#[test]
fn parity_may_come_in_any_order() {
    for turns in [2, 7, 16] {
        let disks = devices(7, 16 << 20);
        let rt = Rt::simulated(turns);
        let handle = rt.clone();
        rt.block_on(async move {
            let what = format!("{turns} jobs backwards");
            let script = Rc::new(Script::default());
            script.backwards.set(turns);
            let array = script.array(&handle, &disks).await;
            array.volume_create("v", volume(SIZE)).await.unwrap();
            let v = array.volume("v").unwrap();
            for version in 1..=3 {
                fill(&v, SIZE, 64 << 10, version, &what).await;
            }
            let written = script.jobs.get();
            assert!(written > 3 * SIZE / (16 << 10), "{what}: {written} jobs");
            // Columns are computed from the summaries: rows that are not there are missed here.
            array.fail(2, false).await.unwrap();
            array.wait_idle(&[]).await;
            assert_eq!(array.status().await.state, ArrayState::Optimal, "{what}");
            assert!(
                script.jobs.get() > written,
                "{what}: reconstructed elsewhere"
            );
            check(&v, SIZE, 3, &what).await;
            array.export().await.unwrap();
            let import = Import {
                degraded: true,
                ..Import::default()
            };
            let left = without(&disks, &[2, 0, 5]);
            let array = Array::import(&handle, left, import).await.unwrap();
            check(&array.volume("v").unwrap(), SIZE, 3, &what).await;
        });
    }
}

#[test]
fn a_lost_accelerator_is_told_once_until_it_is_chosen_again() {
    let disks = devices(6, 16 << 20);
    let rt = Rt::simulated(3);
    let handle = rt.clone();
    rt.block_on(async move {
        let script = Rc::new(Script::default());
        let array = script.array(&handle, &disks).await;
        array.volume_create("v", volume(SIZE)).await.unwrap();
        let v = array.volume("v").unwrap();
        let told = |array: &Array| {
            let events = array.events(0);
            events
                .iter()
                .filter(|e| e.kind == "accelerator-lost")
                .count()
        };
        fill(&v, SIZE, 64 << 10, 1, "before").await;
        assert_eq!(told(&array), 0);
        script.faulty.set(true);
        fill(&v, SIZE, 64 << 10, 2, "with faults").await;
        check(&v, SIZE, 2, "with faults").await;
        assert_eq!(told(&array), 1);
        array.set("accelerator", "auto").await.unwrap();
        fill(&v, SIZE, 64 << 10, 3, "chosen again").await;
        assert_eq!(told(&array), 2);
    });
}
