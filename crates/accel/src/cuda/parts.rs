//! How a slot's memory is divided, and what of a job goes where.
//!
//! **Invariants**: parts do not overlap; what [`Extra::fill`] writes ends at `end`.

use crate::job::{Form, Plan};

/// Levels of a tree, and bytes of a level's suffix.
pub(super) const LEVELS: usize = 16;
pub(super) const LEVEL_BYTES: usize = 16;

/// Bytes of a slot's parts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Input, and output.
    pub(super) data: usize,
    /// Digests of messages, and each of two levels of nodes.
    pub(super) digests: usize,
    /// Coefficients and suffixes.
    pub(super) extra: usize,
}

impl Sizes {
    pub(crate) fn new(data: usize) -> Sizes {
        let digests = (data / 16).max(16 << 10);
        Sizes {
            data,
            digests,
            extra: digests + (384 << 10),
        }
    }

    pub(super) fn pinned(&self) -> usize {
        2 * self.data + self.extra + 2 * self.digests
    }

    /// Bytes on the device and pinned.
    pub(crate) fn total(&self) -> (usize, usize) {
        (2 * self.data + self.extra + 3 * self.digests, self.pinned())
    }

    /// How many messages of `len` bytes with digests of `size` bytes fit.
    pub(crate) fn messages(&self, len: usize, size: usize) -> usize {
        (self.data / len).min(self.digests / size).max(1)
    }

    pub(crate) fn data(&self) -> usize {
        self.data
    }
}

/// Where coefficients and suffixes are in `extra`.
pub(super) struct Extra {
    pub(super) low: usize,
    pub(super) high: usize,
    pub(super) suffixes: usize,
    pub(super) end: usize,
    /// Bytes that one message's suffix has.
    pub(super) each: usize,
    /// Whether the last of them says how many of the others count.
    pub(super) varying: bool,
}

impl Extra {
    pub(super) fn of(plan: &Plan) -> Extra {
        let (low, high) = plan
            .coding
            .as_ref()
            .map_or((0, 0), |coding| (coding.low.len(), coding.high.len()));
        let (each, varying) = match plan.digests.as_ref().map(|digests| &digests.form) {
            Some(Form::Suffixed { each, .. }) => (*each, false),
            Some(Form::Keyed { each, lengths, .. }) => (
                *each + 8 + usize::from(lengths.is_some()),
                lengths.is_some(),
            ),
            Some(Form::Plain) | None => (0, false),
        };
        let start = LEVELS * LEVEL_BYTES;
        let suffixes = (start + low + high).next_multiple_of(16);
        let end = suffixes + each * plan.shape.messages;
        Extra {
            low: start,
            high: start + low,
            suffixes,
            end,
            each,
            varying,
        }
    }

    /// Fills the pinned copy.
    pub(super) fn fill(&self, plan: &Plan, out: &mut [u8]) {
        if let Some(coding) = &plan.coding {
            out[self.low..self.high].copy_from_slice(&coding.low);
            out[self.high..][..coding.high.len()].copy_from_slice(&coding.high);
        }
        let Some(digests) = &plan.digests else { return };
        for (level, suffix) in
            (1u64..).zip(out[..LEVELS * LEVEL_BYTES].chunks_exact_mut(LEVEL_BYTES))
        {
            suffix[..8].copy_from_slice(&level.to_le_bytes());
            suffix[8..].copy_from_slice(&8u64.to_le_bytes());
        }
        match &digests.form {
            Form::Plain => {}
            Form::Suffixed { suffixes, .. } => {
                out[self.suffixes..self.end].copy_from_slice(suffixes);
            }
            Form::Keyed {
                contexts,
                each,
                lengths,
                ..
            } => {
                let suffixes = out[self.suffixes..self.end].chunks_exact_mut(self.each);
                for (number, suffix) in suffixes.enumerate() {
                    let long = lengths
                        .as_ref()
                        .map_or(*each, |all| usize::from(all[number]));
                    suffix[..long].copy_from_slice(&contexts[number * each..][..long]);
                    suffix[long..long + 8].copy_from_slice(&(long as u64).to_le_bytes());
                    if let (true, Some(last)) = (self.varying, suffix.last_mut()) {
                        *last = u8::try_from(long + 8).expect("a job's contexts were checked");
                    }
                }
            }
        }
    }
}

/// The levels above the blocks of a strip.
pub(super) fn levels(per_strip: usize, fan: usize) -> usize {
    let (mut nodes, mut levels) = (per_strip, 0);
    while nodes > 1 {
        nodes = nodes.div_ceil(fan);
        levels += 1;
    }
    levels
}

/// Bytes that follow each other on both sides.
#[derive(Clone, Copy)]
pub(super) struct Run {
    pub(super) start: *mut u8,
    pub(super) offset: usize,
    pub(super) bytes: usize,
}

impl Default for Run {
    fn default() -> Run {
        Run {
            start: std::ptr::null_mut(),
            offset: 0,
            bytes: 0,
        }
    }
}

impl Run {
    /// Adds a piece; the run before it, if the piece begins a new one.
    pub(super) fn add(&mut self, start: *mut u8, offset: usize, bytes: usize) -> Option<Run> {
        if self.bytes > 0 && self.start.wrapping_add(self.bytes) == start {
            self.bytes += bytes;
            return None;
        }
        let before = std::mem::replace(
            self,
            Run {
                start,
                offset,
                bytes,
            },
        );
        (before.bytes > 0).then_some(before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_has_as_many_levels_as_it_takes() {
        assert_eq!(levels(1, 2), 0);
        assert_eq!(levels(2, 2), 1);
        assert_eq!(levels(17, 4), 3);
    }
}
