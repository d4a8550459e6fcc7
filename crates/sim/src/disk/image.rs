//! A disk's content at one moment, for whoever reads it while no array does.
//!
//! Invariants: an image never changes; reading it counts nowhere.

use std::collections::BTreeSet;

use ashlar_rt::BLOCK;

use super::SimDisk;
use crate::pages::Pages;

/// A disk's content at one moment, with the pages that cannot be read.
#[derive(Clone, Debug)]
pub struct Image {
    pages: Pages,
    bad: BTreeSet<usize>,
    visible: usize,
}

impl Image {
    /// The capacity that the disk says it has.
    pub fn size_bytes(&self) -> u64 {
        (self.visible * BLOCK) as u64
    }

    /// Fills `out` from `offset` on, in whole pages; `None` if one of them cannot be read.
    pub fn copy_to(&self, offset: u64, out: &mut [u8]) -> Option<()> {
        let first = usize::try_from(offset).ok()? / BLOCK;
        let whole = offset.is_multiple_of(BLOCK as u64) && out.len().is_multiple_of(BLOCK);
        let end = first.checked_add(out.len() / BLOCK)?;
        if !whole || end > self.visible || self.bad.range(first..end).next().is_some() {
            return None;
        }
        for (page, out) in (first..end).zip(out.chunks_mut(BLOCK)) {
            match self.pages.get(page) {
                Some(content) => out.copy_from_slice(content),
                None => out.fill(0),
            }
        }
        Some(())
    }
}

impl SimDisk {
    /// What is on it, for whoever reads it while no array does; with `durable` only what a power cut
    /// would leave of it for certain.
    pub fn at_rest(&self, durable: bool) -> Image {
        let state = self.state.borrow();
        let pages = if durable {
            &state.durable
        } else {
            &state.current
        };
        Image {
            pages: pages.clone(),
            bad: state.bad.clone(),
            visible: self.visible.get(),
        }
    }
}
