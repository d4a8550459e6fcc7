//! The pages of a disk, copied only where they change: an image of a whole disk costs next to nothing,
//! and a disk that holds little costs little.
//!
//! Invariants: a clone never changes with its original; a page is absent until it is first set.

use std::rc::Rc;

use ashlar_rt::Slice;

use crate::rng::Rng;

/// Pages that are copied together; one bit of a mask each.
const GROUP: usize = 64;

#[derive(Clone, Debug)]
struct Group {
    /// Which pages are there.
    mask: u64,
    pages: [Option<Slice>; GROUP],
}

/// The content of every page written so far.
#[derive(Clone, Debug)]
pub struct Pages {
    groups: Vec<Option<Rc<Group>>>,
    len: usize,
}

impl Pages {
    /// `len` pages, none of them written.
    pub fn new(len: usize) -> Pages {
        Pages {
            groups: vec![None; len.div_ceil(GROUP)],
            len,
        }
    }

    /// How many there are, written or not.
    pub fn len(&self) -> usize {
        self.len
    }

    /// There are more, `len` in all, none of the new ones written.
    pub fn grow(&mut self, len: usize) {
        assert!(len >= self.len, "{len} pages, less than {}", self.len);
        self.groups.resize(len.div_ceil(GROUP), None);
        self.len = len;
    }

    /// Whether there is not one.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A page that was written, at random, and what it holds; `None` if none was.
    pub fn any_written(&self, rng: &mut Rng) -> Option<(usize, Slice)> {
        let written = self.written();
        let page = (written > 0).then(|| self.nth_written(rng.index(written)))??;
        Some((page, self.get(page)?.clone()))
    }

    /// What page `page` holds, if it was written.
    pub fn get(&self, page: usize) -> Option<&Slice> {
        self.groups[page / GROUP].as_ref()?.pages[page % GROUP].as_ref()
    }

    /// Sets page `page`; gives what it held.
    pub fn set(&mut self, page: usize, content: Slice) -> Option<Slice> {
        self.put(page, Some(content))
    }

    /// Makes page `page` what it is in `other`.
    pub fn copy_page(&mut self, page: usize, other: &Pages) {
        self.put(page, other.get(page).cloned());
    }

    fn put(&mut self, page: usize, content: Option<Slice>) -> Option<Slice> {
        assert!(page < self.len, "page {page} of {}", self.len);
        let group = self.groups[page / GROUP].get_or_insert_with(|| {
            Rc::new(Group {
                mask: 0,
                pages: [const { None }; GROUP],
            })
        });
        let group = Rc::make_mut(group);
        let bit = 1 << (page % GROUP);
        group.mask = if content.is_some() {
            group.mask | bit
        } else {
            group.mask & !bit
        };
        std::mem::replace(&mut group.pages[page % GROUP], content)
    }

    /// How many pages were written.
    pub fn written(&self) -> usize {
        let groups = self.groups.iter().flatten();
        groups.map(|group| group.mask.count_ones() as usize).sum()
    }

    /// The number of the written page that has `nth` written ones before it.
    pub fn nth_written(&self, mut nth: usize) -> Option<usize> {
        for (at, group) in self.groups.iter().enumerate() {
            let mut mask = group.as_ref().map_or(0, |group| group.mask);
            let count = mask.count_ones() as usize;
            if nth >= count {
                nth -= count;
                continue;
            }
            for _ in 0..nth {
                mask &= mask - 1;
            }
            return Some(at * GROUP + mask.trailing_zeros() as usize);
        }
        None
    }

    /// Keeps the first `len` pages only.
    pub fn truncate(&mut self, len: usize) {
        let last = self.len;
        for page in len..last.min(len.next_multiple_of(GROUP)) {
            self.put(page, None);
        }
        self.groups.truncate(len.div_ceil(GROUP));
        self.len = self.len.min(len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clone_keeps_what_it_was() {
        let mut pages = Pages::new(200);
        pages.set(70, Slice::zeroed(1));
        let image = pages.clone();
        assert_eq!(
            pages.set(70, Slice::zeroed(2)).map(|old| old.len()),
            Some(1)
        );
        pages.set(199, Slice::zeroed(3));
        assert_eq!(image.get(70).map(|page| page.len()), Some(1));
        assert!(image.get(199).is_none() && image.get(0).is_none());
        pages.copy_page(199, &image);
        assert_eq!(pages.written(), 1);
    }

    #[test]
    fn written_pages_are_counted_and_found_in_order() {
        let mut pages = Pages::new(300);
        let written = [0, 3, 63, 64, 128, 255, 299];
        written.iter().for_each(|page| {
            pages.set(*page, Slice::zeroed(1));
        });
        assert_eq!(pages.written(), written.len());
        let found: Vec<usize> = (0..).map_while(|nth| pages.nth_written(nth)).collect();
        assert_eq!(found, written);
        pages.truncate(100);
        assert_eq!((pages.len(), pages.written()), (100, 4));
    }
}
