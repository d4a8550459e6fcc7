//! What a run did to its disks, as a log that any moment of it can be rebuilt from.
//!
//! Invariants: a [`Point`] lies before each submission and each end of a flush: between two points
//! nothing changes that a power cut could show, except what has been acknowledged. An [`Image`] is
//! what one power cut leaves: the durable pages, and some of the writes that were not flushed.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use ashlar_rt::{Buf, Slice};

use crate::disk::{Io, Pending, UNIT};
use crate::pages::Pages;
use crate::rng::{Rng, mix};
use crate::scrubs::Scrubs;
use crate::world::{Budget, VolumeEntry, World};

/// Pending writes up to which every subset is an image.
pub const EVERY: usize = 10;

/// What clients know at a point.
#[derive(Debug)]
pub struct Known {
    pub(crate) volumes: BTreeMap<String, VolumeEntry>,
    pub(crate) budget: Budget,
    pub(crate) scrubs: Scrubs,
    answers: u64,
}

/// A moment to crash at: before step `at`.
#[derive(Clone, Debug)]
pub struct Point {
    /// How many steps came before.
    pub at: usize,
    /// What clients know then.
    pub known: Rc<Known>,
}

/// The record of a run.
#[derive(Debug, Default)]
pub struct Log {
    first: Vec<(Pages, Vec<Pending>)>,
    steps: Vec<(usize, Io)>,
    points: Vec<Point>,
}

/// One way the power may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Image {
    /// Of the pending writes, in order of submission, those of this mask are kept whole.
    Whole(u64),
    /// Units of pending writes are kept by this seed.
    Torn(u64),
}

impl std::fmt::Display for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Image::Whole(mask) => write!(f, "w{mask:x}"),
            Image::Torn(seed) => write!(f, "t{seed:x}"),
        }
    }
}

impl std::str::FromStr for Image {
    type Err = ();

    fn from_str(text: &str) -> Result<Image, ()> {
        let number = |hex: &str| u64::from_str_radix(hex, 16).map_err(|_| ());
        match text.split_at_checked(1) {
            Some(("w", hex)) => Ok(Image::Whole(number(hex)?)),
            Some(("t", hex)) => Ok(Image::Torn(number(hex)?)),
            _ => Err(()),
        }
    }
}

/// Starts recording everything that happens to the disks of `world`.
pub(crate) fn record(world: &Rc<World>) -> Rc<RefCell<Log>> {
    let log = Rc::new(RefCell::new(Log {
        first: world.disks.iter().map(|disk| disk.image()).collect(),
        ..Log::default()
    }));
    let (to, of) = (log.clone(), Rc::downgrade(world));
    let recorder: crate::disk::Recorder = Rc::new(move |disk, io| {
        let Some(world) = of.upgrade() else { return };
        let mut log = to.borrow_mut();
        if matches!(io, Io::Submit { .. } | Io::Flush { .. }) {
            log.point(&world);
        }
        log.steps.push((disk, io));
    });
    for disk in &world.disks {
        disk.record(Some(recorder.clone()));
    }
    log
}

/// Stops recording, with a last point at the end.
pub(crate) fn finish(world: &Rc<World>, log: &Rc<RefCell<Log>>) {
    for disk in &world.disks {
        disk.record(None);
    }
    log.borrow_mut().point(world);
}

impl Log {
    fn point(&mut self, world: &World) {
        let known = Rc::new(Known {
            volumes: world.volumes.borrow().clone(),
            budget: world.budget.borrow().clone(),
            scrubs: world.mishaps.scrubs.borrow().clone(),
            answers: world.answers.get(),
        });
        self.points.push(Point {
            at: self.steps.len(),
            known,
        });
    }

    /// The points, in order.
    pub fn points(&self) -> &[Point] {
        &self.points
    }

    /// The disks as they were when recording began.
    pub(crate) fn replay(&self) -> Replay {
        Replay {
            disks: self.first.clone(),
            at: 0,
            new: None,
        }
    }
}

/// The disks at some step of a log.
pub(crate) struct Replay {
    disks: Vec<(Pages, Vec<Pending>)>,
    at: usize,
    /// The write submitted by the last step: disk and number.
    new: Option<(usize, u64)>,
}

impl Replay {
    /// Goes on to step `at`.
    pub fn advance(&mut self, log: &Log, at: usize) {
        self.new = None;
        for (disk, io) in &log.steps[self.at..at] {
            self.apply(*disk, io);
        }
        self.at = at;
    }

    fn apply(&mut self, disk: usize, io: &Io) {
        let (durable, pending) = &mut self.disks[disk];
        match io {
            Io::Submit { id, page, pages } => {
                pending.push(Pending::submitted(*id, *page, pages.clone()));
                self.new = Some((disk, *id));
            }
            Io::Done {
                id,
                at,
                page,
                pages,
            } => {
                if let Some(write) = pending.iter_mut().find(|p| p.id == *id) {
                    (write.page, write.completed) = (*page, Some(*at));
                    write.pages.clone_from(pages);
                }
            }
            Io::Gone { id } => pending.retain(|p| p.id != *id),
            Io::Flush { submitted } => {
                let (mut done, rest): (Vec<Pending>, Vec<Pending>) = std::mem::take(pending)
                    .into_iter()
                    .partition(|p| p.completed.is_some_and(|at| at < *submitted));
                *pending = rest;
                done.sort_by_key(|p| p.completed);
                for write in done {
                    for (page, content) in (write.page..).zip(&*write.pages) {
                        durable.set(page, content.clone());
                    }
                }
            }
            Io::Rot { page, content } => drop(durable.set(*page, content.clone())),
            Io::Replaced => unreachable!("no disk of an enumeration is replaced"),
        }
    }

    /// How many writes a power cut may undo.
    pub fn pending(&self) -> usize {
        self.disks.iter().map(|(_, pending)| pending.len()).sum()
    }

    /// The images of this moment: every subset of few pending writes, a sample of many; and torn
    /// ones. `fresh`: something was acknowledged since the last point; else only images that the
    /// last point cannot have had, because they contain the newest write.
    pub fn images(&self, fresh: bool, effort: Effort, point: usize) -> Vec<Image> {
        let count = self.pending();
        let newest = self.new.and_then(|(disk, id)| {
            let before: usize = self.disks[..disk].iter().map(|(_, p)| p.len()).sum();
            let here = self.disks[disk].1.iter().position(|p| p.id == id)?;
            Some(before + here)
        });
        if !fresh && newest.is_none() {
            return Vec::new();
        }
        let must = match newest {
            Some(at) if !fresh && at < 64 => 1u64 << at,
            _ => 0,
        };
        let all = if count >= 64 {
            u64::MAX
        } else {
            (1 << count) - 1
        };
        let mut rng = Rng::new(mix(point as u64) ^ 0xE);
        let mut images: Vec<Image> = if count <= EVERY && effort.full {
            let masks = (0..=all).filter(|mask| mask & must == must);
            masks.map(Image::Whole).collect()
        } else {
            let mut masks = vec![must, all];
            if let Some(bits) = u32::try_from(count).ok().filter(|c| *c > 0 && *c < 64) {
                masks.push(all & !(1 << rng.below(u64::from(bits))) | must);
                masks.push(1 << rng.below(u64::from(bits)) | must);
            }
            while masks.len() < effort.samples {
                masks.push(rng.draw() & all | must);
            }
            masks.truncate(effort.samples);
            masks.sort_unstable();
            masks.dedup();
            masks.into_iter().map(Image::Whole).collect()
        };
        if count > 0 {
            images.extend((0..effort.torn).map(|_| Image::Torn(rng.draw() >> 16)));
        }
        images
    }

    /// What `image` leaves of every disk.
    pub fn make(&self, image: Image) -> Vec<Pages> {
        let mut rng = match image {
            Image::Torn(seed) => Rng::new(seed),
            Image::Whole(_) => Rng::new(0),
        };
        let percent = rng.pick(&[10, 50, 90]);
        let mut at = 0;
        let mut disks = Vec::new();
        for (durable, pending) in &self.disks {
            let mut pages = durable.clone();
            let mut kept: Vec<(usize, &Pending)> = (at..).zip(pending).collect();
            at += pending.len();
            kept.sort_by_key(|(_, p)| p.completed.unwrap_or(u64::MAX));
            for (number, write) in kept {
                for (page, content) in (write.page..).zip(&*write.pages) {
                    match image {
                        Image::Whole(mask) => {
                            if mask >> number.min(63) & 1 == 1 {
                                pages.set(page, content.clone());
                            }
                        }
                        Image::Torn(_) => {
                            if let Some(new) = torn(pages.get(page), content, percent, &mut rng) {
                                pages.set(page, new);
                            }
                        }
                    }
                }
            }
            disks.push(pages);
        }
        disks
    }
}

/// A page of which each unit was written with this chance in 100; `None` if none was.
fn torn(old: Option<&Slice>, new: &Slice, percent: u64, rng: &mut Rng) -> Option<Slice> {
    let mut bytes = match old {
        Some(old) => Buf::copy_of(old),
        None => Buf::zeroed(new.len()),
    };
    let mut any = false;
    for (to, from) in bytes.chunks_mut(UNIT).zip(new.chunks(UNIT)) {
        if rng.chance(percent) {
            to.copy_from_slice(from);
            any = true;
        }
    }
    any.then(|| bytes.freeze())
}

/// How much is tried at each point.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Every subset where there are few pending writes.
    pub full: bool,
    /// Subsets tried where not every one is.
    pub samples: usize,
    /// Torn images beside them.
    pub torn: usize,
}

/// Whether something was acknowledged between two points.
pub(crate) fn answered(before: Option<&Point>, point: &Point) -> bool {
    before.is_none_or(|before| before.known.answers != point.known.answers)
}
