//! Roots: what a checkpoint made durable.
//!
//! **Invariants**: the order of roots is (generation, number of the last epoch, number); an older root is
//! never used where a newer one is found.

use crate::digest::unseal;
use crate::node::{Inner, Slot};
use crate::wire::Fields;

/// A position in a ring: records before it, and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) count: u64,
    pub(crate) bytes: u64,
}

impl Position {
    pub(crate) fn read(f: &mut Fields<'_>) -> Option<Position> {
        Some(Position {
            count: f.u64()?,
            bytes: f.u64()?,
        })
    }
}

/// A run of sequences.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Epoch {
    pub(crate) number: u64,
    pub(crate) identity: [u8; 16],
    pub(crate) first: u64,
    /// 0: open.
    pub(crate) end: u64,
    /// Members that hold none of its records.
    pub(crate) absent: Vec<u16>,
}

/// The top of a tree, and the length of what is in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Top {
    pub(crate) entry: Slot<Inner>,
    pub(crate) bytes: u64,
}

/// What a root says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Root {
    pub(crate) generation: u64,
    pub(crate) identity: [u8; 16],
    pub(crate) number: u64,
    /// The checkpoint that it goes on from.
    pub(crate) checkpoint: u64,
    pub(crate) clean: bool,
    pub(crate) next_segment: u64,
    pub(crate) cut: u64,
    pub(crate) imaged: u64,
    /// Tails of the delta ring and of the data ring.
    pub(crate) tails: [Position; 2],
    pub(crate) catalog: Top,
    pub(crate) liveness: Top,
    pub(crate) epochs: Vec<Epoch>,
}

impl Root {
    pub(crate) fn order(&self) -> (u64, u64, u64) {
        let epoch = self.epochs.last().map_or(0, |epoch| epoch.number);
        (self.generation, epoch, self.number)
    }

    /// The root in an entry of array `array`; `None` if there is no good one.
    pub(crate) fn parse(array: &[u8; 16], bytes: &[u8]) -> Option<Root> {
        let mut f = Fields(unseal(array, bytes)?);
        if f.take(8)? != b"ASHROOT1" {
            return None;
        }
        let (generation, identity) = (f.u64()?, f.array()?);
        let (number, checkpoint, clean) = (f.u64()?, f.u64()?, f.u8()? != 0);
        let (next_segment, _tree) = (f.u64()?, f.u32()?);
        let (cut, imaged) = (f.u64()?, f.u64()?);
        let tails = [Position::read(&mut f)?, Position::read(&mut f)?];
        let mut top = || -> Option<Top> {
            let entry = Inner::parse(f.take(64)?);
            Some(Top {
                entry,
                bytes: f.u64()?,
            })
        };
        let (catalog, liveness) = (top()?, top()?);
        let (_forwarding, _dead) = (top()?, top()?);
        let (named, gaps) = (f.u16()?, f.u16()?);
        if (named, gaps) != (0, 0) {
            return None;
        }
        let count = f.u16()?;
        let mut epochs = Vec::new();
        for _ in 0..count {
            let (number, identity) = (f.u64()?, f.array()?);
            let (first, end, _m) = (f.u64()?, f.u64()?, f.u16()?);
            f.take(17)?; // whether it acknowledges from an arena, and in which boot
            let absent = f.u16()?;
            let absent: Option<Vec<u16>> = (0..absent).map(|_| f.u16()).collect();
            epochs.push(Epoch {
                number,
                identity,
                first,
                end,
                absent: absent?,
            });
        }
        Some(Root {
            generation,
            identity,
            number,
            checkpoint,
            clean,
            next_segment,
            cut,
            imaged,
            tails,
            catalog,
            liveness,
            epochs,
        })
    }
}
