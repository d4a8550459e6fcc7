//! A disk's content at one moment, for whoever reads it while no array does.
//!
//! Invariants: an image never changes; reading it counts nowhere.

use std::collections::BTreeSet;

use ashlar_rt::BLOCK;

use crate::pages::Pages;

/// A disk's content at one moment, with the pages that cannot be read.
#[derive(Clone, Debug)]
pub struct Image {
    pages: Pages,
    bad: BTreeSet<usize>,
    visible: usize,
}

impl Image {
    pub(super) fn new(pages: Pages, bad: BTreeSet<usize>, visible: usize) -> Image {
        Image {
            pages,
            bad,
            visible,
        }
    }

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
