//! What an array keeps of its scrubs: the progress of the task `scrub` in the catalog.
//!
//! Invariants: at most [`MOST_REPORTS`], the last one the newest; only that one may run or rest. A finding is of one
//! device and one part, and says how many blocks each fault was found in.

use crate::wire::{Reader, Writer};
use crate::{FormatError, SegmentNumber};

/// The kind of task that it is in the catalog.
pub const TASK: &str = "scrub";

/// Reports kept at most: the older ones go.
pub const MOST_REPORTS: usize = 16;

/// The version of these bytes.
const VERSION: u8 = 1;

/// How a scrub is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It goes on, after an import too.
    Running,
    /// It rests until it is resumed.
    Paused,
    /// It has looked at everything that it was to look at.
    Done,
    /// It was stopped before.
    Stopped,
}

impl State {
    const ALL: [State; 4] = [State::Running, State::Paused, State::Done, State::Stopped];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            State::Running => "running",
            State::Paused => "paused",
            State::Done => "done",
            State::Stopped => "stopped",
        }
    }

    /// Whether it has ended.
    pub fn has_ended(self) -> bool {
        matches!(self, State::Done | State::Stopped)
    }
}

/// A part of a device, as a scrub tells them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Blocks of data strips, live or dead, of clients and of nodes.
    Data,
    /// Blocks of parity strips.
    Parity,
    /// Summaries of courses.
    Summary,
    /// Headers of slots.
    Header,
    /// Superblocks.
    Superblock,
    /// Roots.
    Root,
    /// Pages of the slot table.
    Table,
    /// Records of the journal.
    Journal,
}

impl Part {
    /// All of them, in the order of their tags.
    pub const ALL: [Part; 8] = [
        Part::Data,
        Part::Parity,
        Part::Summary,
        Part::Header,
        Part::Superblock,
        Part::Root,
        Part::Table,
        Part::Journal,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Part::Data => "data",
            Part::Parity => "parity",
            Part::Summary => "summary",
            Part::Header => "header",
            Part::Superblock => "superblock",
            Part::Root => "root",
            Part::Table => "table",
            Part::Journal => "journal",
        }
    }
}

/// Faults of one part of one device, in blocks (a summary, root or record counts as one).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The device's row.
    pub device: u16,
    /// Its identity: another device may have the row later.
    pub uuid: [u8; 16],
    /// The part.
    pub part: Part,
    /// The device did not give them.
    pub unreadable: u64,
    /// It gave other bytes than were written.
    pub wrong: u64,
    /// Of both, those that were written again and read back.
    pub repaired: u64,
}

/// What a scrub was to do, how far it is, and what it has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// How it is.
    pub state: State,
    /// It only looks, and repairs nothing.
    pub check: bool,
    /// When it was started and when it ended, in seconds since 1970; 0: it has not.
    pub times: [u64; 2],
    /// Segments from this number on are to be looked at.
    pub from: SegmentNumber,
    /// Below it only these.
    pub also: Vec<SegmentNumber>,
    /// Segments below this number: those that were there when it started.
    pub until: SegmentNumber,
    /// Those of them that were not full yet: all that is written since it started lies in these and in later ones.
    pub open: Vec<SegmentNumber>,
    /// The next of them to look at.
    pub cursor: SegmentNumber,
    /// Bytes looked at.
    pub done_bytes: u64,
    /// Bytes that it could not look at: their device was away.
    pub skipped_bytes: u64,
    /// How often an import went on with it: what was found since the last root before is not told here.
    pub interrupted: u32,
    /// What was found.
    pub findings: Vec<Finding>,
}

/// What an array keeps of its scrubs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scrubs {
    /// The schedule counts from here, in seconds since 1970, where no scrub has looked at everything yet.
    pub since: u64,
    /// Reports, the newest last.
    pub reports: Vec<Report>,
}

impl Scrubs {
    /// The progress of the task.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::new();
        let newest = &self.reports[self.reports.len().saturating_sub(MOST_REPORTS)..];
        w.u8(VERSION)
            .u64(self.since)
            .u16(u16::try_from(newest.len()).expect("few reports"));
        for report in newest {
            report.write(&mut w);
        }
        w.0
    }

    /// Reads it.
    pub fn decode(bytes: &[u8]) -> Result<Scrubs, FormatError> {
        let mut r = Reader::new(bytes);
        if r.u8()? != VERSION {
            return Err(FormatError::Value);
        }
        let (since, mut reports) = (r.u64()?, Vec::new());
        for _ in 0..r.u16()? {
            reports.push(Report::read(&mut r)?);
        }
        Ok(Scrubs { since, reports })
    }
}

impl Report {
    fn write(&self, w: &mut Writer) {
        let state = State::ALL.iter().position(|s| *s == self.state);
        let tag = u8::try_from(state.expect("one of all")).expect("four states");
        w.u8(tag).u8(self.check.into());
        w.u64(self.times[0]).u64(self.times[1]);
        w.u64(self.from).u64(self.until).u64(self.cursor);
        for list in [&self.also, &self.open] {
            w.u32(u32::try_from(list.len()).expect("a few a stream"));
            for number in list {
                w.u64(*number);
            }
        }
        w.u64(self.done_bytes).u64(self.skipped_bytes);
        w.u32(self.interrupted)
            .u32(u32::try_from(self.findings.len()).expect("a few a device"));
        for finding in &self.findings {
            w.u16(finding.device).bytes(&finding.uuid);
            w.u8(u8::try_from(finding.part as usize).expect("eight parts"));
            w.u64(finding.unreadable)
                .u64(finding.wrong)
                .u64(finding.repaired);
        }
    }

    fn read(r: &mut Reader<'_>) -> Result<Report, FormatError> {
        let state = State::ALL.get(usize::from(r.u8()?)).copied();
        let mut report = Report {
            state: state.ok_or(FormatError::Value)?,
            check: r.u8()? != 0,
            times: [r.u64()?, r.u64()?],
            from: r.u64()?,
            until: r.u64()?,
            cursor: r.u64()?,
            also: read_numbers(r)?,
            open: read_numbers(r)?,
            done_bytes: r.u64()?,
            skipped_bytes: r.u64()?,
            interrupted: r.u32()?,
            findings: Vec::new(),
        };
        for _ in 0..r.u32()? {
            let (device, uuid) = (r.u16()?, r.array()?);
            let part = Part::ALL.get(usize::from(r.u8()?)).copied();
            report.findings.push(Finding {
                device,
                uuid,
                part: part.ok_or(FormatError::Value)?,
                unreadable: r.u64()?,
                wrong: r.u64()?,
                repaired: r.u64()?,
            });
        }
        Ok(report)
    }

    /// Whether it is to look at a segment.
    pub fn covers(&self, number: SegmentNumber) -> bool {
        (self.from..self.until).contains(&number) || self.also.contains(&number)
    }

    /// Adds to what was found of a part of a device.
    pub fn add(&mut self, found: Finding) {
        let same = |f: &&mut Finding| (f.uuid, f.part) == (found.uuid, found.part);
        match self.findings.iter_mut().find(same) {
            Some(known) => {
                known.unreadable += found.unreadable;
                known.wrong += found.wrong;
                known.repaired += found.repaired;
            }
            None => self.findings.push(found),
        }
    }

    /// Blocks that were found, and of these those that were repaired.
    pub fn found(&self) -> (u64, u64) {
        let found = self.findings.iter().map(|f| f.unreadable + f.wrong).sum();
        (found, self.findings.iter().map(|f| f.repaired).sum())
    }

    /// Whether all that is in the array was looked at.
    pub fn is_complete(&self) -> bool {
        self.state == State::Done && self.from == 0 && self.skipped_bytes == 0
    }
}

fn read_numbers(r: &mut Reader<'_>) -> Result<Vec<SegmentNumber>, FormatError> {
    let count = r.u32()?;
    (0..count).map(|_| r.u64()).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn finding(device: u16, part: Part) -> Finding {
        Finding {
            device,
            uuid: [u8::try_from(device).unwrap(); 16],
            part,
            unreadable: 1,
            wrong: 2,
            repaired: 3,
        }
    }

    fn report(cursor: u64) -> Report {
        Report {
            state: State::Paused,
            check: true,
            times: [1_800_000_000, 0],
            from: 4,
            also: vec![2],
            until: 900,
            open: vec![890, 895],
            cursor,
            done_bytes: 1 << 40,
            skipped_bytes: 7,
            interrupted: 2,
            findings: vec![finding(3, Part::Parity), finding(3, Part::Journal)],
        }
    }

    fn kept(cursors: std::ops::Range<u64>) -> Scrubs {
        Scrubs {
            since: 1_700_000_000,
            reports: cursors.map(report).collect(),
        }
    }

    #[test]
    fn reports_survive_their_bytes_and_no_prefix_panics() {
        let scrubs = kept(5..7);
        let bytes = scrubs.encode();
        assert_eq!(Scrubs::decode(&bytes).unwrap(), scrubs);
        for cut in 0..bytes.len() {
            assert!(Scrubs::decode(&bytes[..cut]).is_err(), "{cut}");
        }
        for (at, state) in [(11, 4), (11, 255), (0, 2)] {
            let mut bytes = bytes.clone();
            bytes[at] = state;
            assert!(Scrubs::decode(&bytes).is_err(), "{at}");
        }
        let none = Scrubs::default();
        assert_eq!(Scrubs::decode(&none.encode()).unwrap(), none);
    }

    #[test]
    fn the_newest_reports_are_kept() {
        let read = Scrubs::decode(&kept(0..20).encode()).unwrap();
        assert_eq!(read, kept(4..20));
    }

    #[test]
    fn faults_of_a_part_of_a_device_add_up() {
        let mut sum = report(1);
        sum.add(finding(3, Part::Parity));
        sum.add(finding(4, Part::Parity));
        assert_eq!(sum.findings.len(), 3);
        assert_eq!((sum.findings[0].wrong, sum.found()), (4, (12, 12)));
        assert!(!sum.is_complete());
        let covered: Vec<u64> = (0..1000).filter(|n| sum.covers(*n)).collect();
        assert_eq!(covered[..3], [2, 4, 5]);
        assert_eq!(covered.last(), Some(&899));
        (sum.state, sum.from, sum.skipped_bytes) = (State::Done, 0, 0);
        assert!(sum.is_complete());
        for (tag, part) in Part::ALL.into_iter().enumerate() {
            assert_eq!(part as usize, tag, "{}", part.name());
        }
    }
}
