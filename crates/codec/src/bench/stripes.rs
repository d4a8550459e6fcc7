//! The stripes that codes are measured on, and their buffers as the verbs take them.
//!
//! **Invariants**: cold stripes take [`COLD_BYTES`] or more in all, and are two at least.

use super::meter::{LARGE_PAGE, Meter, Rate, paged};
use super::options::{COLD_BYTES, Options};
use crate::Stripe;

/// Stripes of one shape laid out in one piece of memory.
pub(super) struct Stripes {
    memory: Vec<u8>,
    first: usize,
    step: usize,
    pub(super) strip: usize,
    n: usize,
    count: usize,
}

impl Stripes {
    pub(super) fn new(options: &Options, n: usize, strip: usize) -> Stripes {
        let step = if options.staggered {
            strip + 320
        } else {
            strip.next_multiple_of(4096)
        };
        let stripe = n * step;
        let count = if options.cold {
            (COLD_BYTES / stripe).max(2)
        } else {
            1
        };
        let mut memory = paged(options, count * stripe);
        let mut state = 1u64;
        for eight in memory.as_chunks_mut::<8>().0 {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            *eight = (state ^ state >> 29).to_le_bytes();
        }
        let first = memory.as_ptr().align_offset(LARGE_PAGE).min(LARGE_PAGE);
        Stripes {
            memory,
            first,
            step,
            strip,
            n,
            count,
        }
    }

    /// Every stripe's strips.
    pub(super) fn all(&mut self) -> impl Iterator<Item = impl Iterator<Item = &mut [u8]>> {
        let (n, step, strip) = (self.n, self.step, self.strip);
        let end = self.first + self.count * n * step;
        self.memory[self.first..end]
            .chunks_exact_mut(n * step)
            .map(move |stripe| {
                stripe
                    .chunks_exact_mut(step)
                    .map(move |whole| &mut whole[..strip])
            })
    }
}

/// The buffers of all stripes as the verbs take them. They stand one after the other, so that
/// finding them costs little beside what they hold.
pub(super) struct Buffers<'a> {
    pub(super) stripes: usize,
    /// What is read of each stripe.
    pub(super) read: Vec<&'a [u8]>,
    /// The same with `None` for what is lost.
    strips: Vec<Option<&'a [u8]>>,
    /// What is lost, and written.
    pub(super) write: Vec<&'a mut [u8]>,
}

impl<'a> Buffers<'a> {
    /// Strips for which `writes` holds count as lost.
    pub(super) fn new(stripes: &'a mut Stripes, writes: impl Fn(usize) -> bool) -> Buffers<'a> {
        let count = stripes.count;
        let (read, strips, write) = (Vec::new(), Vec::new(), Vec::new());
        let mut all = Buffers {
            stripes: count,
            read,
            strips,
            write,
        };
        for (number, strip) in stripes.all().flat_map(|stripe| stripe.enumerate()) {
            if writes(number) {
                all.strips.push(None);
                all.write.push(strip);
            } else {
                all.strips.push(Some(strip));
                all.read.push(strip);
            }
        }
        all
    }

    /// Stripe by stripe: what is read, what there is, what is written.
    #[allow(clippy::type_complexity, reason = "three kinds of slices of slices")]
    pub(super) fn each(
        &mut self,
    ) -> impl Iterator<Item = (&[&'a [u8]], &[Option<&'a [u8]>], &mut [&'a mut [u8]])> {
        let per = |all: usize| (all / self.stripes).max(1);
        let (reads, strips) = (per(self.read.len()), per(self.strips.len()));
        let writes = per(self.write.len());
        let rest = self
            .strips
            .chunks_exact(strips)
            .zip(self.write.chunks_exact_mut(writes));
        self.read
            .chunks_exact(reads)
            .zip(rest)
            .map(|(read, (strips, write))| (read, strips, write))
    }

    /// The rate of a call that takes one stripe after the other.
    pub(super) fn in_turn(
        &mut self,
        meter: &mut Meter<'_>,
        bytes: usize,
        mut call: impl FnMut(&[&'a [u8]], &[Option<&'a [u8]>], &mut [&'a mut [u8]]),
    ) -> Rate {
        let per = |all: usize| all / self.stripes;
        let (reads, strips) = (per(self.read.len()), per(self.strips.len()));
        let writes = per(self.write.len());
        let mut turn = 0;
        meter.rate(bytes, || {
            call(
                &self.read[turn * reads..(turn + 1) * reads],
                &self.strips[turn * strips..(turn + 1) * strips],
                &mut self.write[turn * writes..(turn + 1) * writes],
            );
            turn = if turn + 1 == self.stripes {
                0
            } else {
                turn + 1
            };
        })
    }

    /// The rate of a call that takes batches of up to 32 stripes, of whose strips it reads the first
    /// `k` that are left.
    pub(super) fn in_batches(
        &mut self,
        meter: &mut Meter<'_>,
        bytes: usize,
        k: usize,
        mut call: impl FnMut(&mut [Stripe<'_, 'a>]),
    ) -> Rate {
        let count = self.stripes.min(32);
        let mut stripes: Vec<Stripe<'_, 'a>> = self
            .each()
            .map(|(read, _, write)| Stripe {
                read: &read[..k],
                write,
            })
            .collect();
        let batches = stripes.len() / count;
        let mut turn = 0;
        meter.rate(bytes * count, || {
            call(&mut stripes[turn * count..(turn + 1) * count]);
            turn = if turn + 1 == batches { 0 } else { turn + 1 };
        })
    }
}
