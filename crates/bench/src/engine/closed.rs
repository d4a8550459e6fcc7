//! The closed form: what a log-structured, erasure-coded array must cost its devices at least.
//!
//! Per host write of a block: WA(u) (K+M)/K appends, with the headers and summaries that the format
//! puts into each slot, WA(u) - 1 reads by the cleaner, and L WA(u) leaves of the map written (and
//! read, where they are not cached). Neither the journal nor roots are in it: what they cost
//! is in the account ([`super::account`]).
//!
//! **Invariant**: pure arithmetic.

use ashlar_device::Profile;
use ashlar_engine::DELTA_BYTES;

/// Bytes of a block.
pub(super) const BLOCK: f64 = 4096.0;
/// Entries of a leaf.
pub(super) const LEAF: f64 = 128.0;

/// What the closed form depends on.
#[derive(Clone, Copy, Debug)]
pub struct Given {
    /// Data columns.
    pub k: f64,
    /// Parity columns.
    pub m: f64,
    /// Devices.
    pub devices: f64,
    /// Bytes written to a slot for each byte of strips in it.
    pub slot_overhead: f64,
    /// Blocks of the volume.
    pub blocks: f64,
    /// Live blocks / all data blocks; 0 where nothing is cleaned.
    pub fill: f64,
    /// Map size / cache size; at most 1 where all of it is cached.
    pub map_to_cache: f64,
    /// The engine's memory, a quarter of which is for deltas.
    pub memory_bytes: f64,
}

/// What one host operation costs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cost {
    /// Device bytes.
    pub bytes: f64,
    /// Device time, in seconds.
    pub busy: f64,
}

/// Of `all` things how many are touched at least once by `times` touches at random.
pub(super) fn touched(all: f64, times: f64) -> f64 {
    if all <= 0.0 {
        return 0.0;
    }
    all * (1.0 - (-times / all).exp())
}

/// The write amplification of greedy cleaning under uniform random overwrites of a large array that
/// is `fill` full: 1/(1 - p), where segments are cleaned when a share p of them is live and
/// fill = (p - 1)/ln p.
pub fn write_amplification(fill: f64) -> f64 {
    if fill <= 0.0 {
        return 1.0;
    }
    let (mut low, mut high) = (1e-12, 1.0 - 1e-9);
    for _ in 0..200 {
        let p: f64 = (low + high) / 2.0;
        if (p - 1.0) / p.ln() < fill {
            low = p
        } else {
            high = p
        }
    }
    1.0 / (1.0 - low)
}

impl Given {
    /// Data and parity columns of segments of nodes (rule R6).
    pub(super) fn node_shape(&self) -> (f64, f64) {
        let m = (self.m + 1.0).max(2.0).min(self.devices - 1.0);
        ((self.devices - m).clamp(1.0, 8.0), m)
    }

    /// Bytes of metadata written for each byte of nodes.
    pub(super) fn map_width(&self) -> f64 {
        let (k, m) = self.node_shape();
        (k + m) / k
    }

    /// The share of leaves that are not in the cache.
    pub fn miss(&self) -> f64 {
        (1.0 - 1.0 / self.map_to_cache.max(1.0)).max(0.0)
    }

    /// L: distinct leaves for each of the deltas that memory holds.
    pub fn leaves_per_change(&self) -> f64 {
        let deltas =
            (self.memory_bytes / 4.0 / DELTA_BYTES as f64).clamp(1.0, self.blocks.max(1.0));
        let leaves = (self.blocks / LEAF).max(1.0);
        touched(leaves, deltas) / deltas
    }

    /// A read of `bytes` that lie together.
    pub fn read(&self, profile: &Profile, bytes: f64) -> Cost {
        let leaves = self.miss() * (bytes / BLOCK / LEAF).max(1.0);
        let one = |bytes: f64| {
            (1.0 / profile.read_iops as f64).max(bytes / profile.read_bytes_per_second as f64)
        };
        Cost {
            bytes: bytes + leaves * BLOCK,
            busy: one(bytes) + leaves * one(BLOCK),
        }
    }

    /// A write of `bytes`; `leaves` is how many leaves each of its blocks changes.
    pub fn write(&self, profile: &Profile, bytes: f64, leaves: f64) -> Cost {
        let amplification = write_amplification(self.fill);
        let append = bytes * amplification * (self.k + self.m) / self.k * self.slot_overhead;
        let cleaned = bytes * (amplification - 1.0);
        let changed = bytes / BLOCK * amplification * leaves;
        let nodes = changed * BLOCK * self.map_width();
        let loaded = changed * self.miss();
        let read = profile.read_bytes_per_second as f64;
        Cost {
            bytes: append + nodes + cleaned + loaded * BLOCK,
            busy: (append + nodes) / profile.write_bytes_per_second as f64
                + cleaned / read
                + loaded * (1.0 / profile.read_iops as f64).max(BLOCK / read),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amplification_is_that_of_the_literature() {
        for (fill, expected) in [(0.7, 1.88), (0.8, 2.69), (0.85, 3.50), (0.9, 5.18)] {
            let found = write_amplification(fill);
            assert!((found - expected).abs() < 0.02, "{fill}: {found}");
        }
        assert_eq!(write_amplification(0.0), 1.0);
    }

    /// A log of `segments` x `size` blocks with greedy cleaning: blocks written for each block
    /// overwritten, in steady state.
    fn simulate(segments: usize, size: usize, fill: f64) -> f64 {
        let blocks = (segments as f64 * size as f64 * fill) as usize;
        let mut at = vec![usize::MAX; blocks];
        let mut owner = vec![usize::MAX; segments * size];
        let mut live = vec![0usize; segments];
        let mut free: Vec<usize> = (0..segments).collect();
        let mut open: Option<(usize, usize)> = None;
        let (mut written, mut state) = (0u64, 9u64);
        let mut random = move || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            usize::try_from(state >> 33).unwrap_or(0)
        };
        let (mut host, mut counted) = (0, 0);
        for step in 0..blocks * 5 {
            let block = if step < blocks {
                step
            } else {
                random() % blocks
            };
            let mut queue = vec![block];
            while let Some(block) = queue.pop() {
                let (segment, used) = open
                    .filter(|(_, used)| *used < size)
                    .unwrap_or_else(|| (free.pop().unwrap_or(0), 0));
                let place = segment * size + used;
                if at[block] != usize::MAX {
                    owner[at[block]] = usize::MAX;
                    live[at[block] / size] -= 1;
                }
                (at[block], owner[place]) = (place, block);
                live[segment] += 1;
                open = Some((segment, used + 1));
                written += 1;
                if queue.is_empty() && free.len() < 2 {
                    let closed = |s: &usize| *s != segment && !free.contains(s);
                    let victim = (0..segments)
                        .filter(closed)
                        .min_by_key(|s| live[*s])
                        .unwrap_or(0);
                    queue.extend(
                        owner[victim * size..(victim + 1) * size]
                            .iter()
                            .filter(|o| **o != usize::MAX),
                    );
                    free.insert(0, victim);
                }
            }
            if step == blocks * 3 {
                (host, counted) = (step, written);
            }
        }
        (written - counted) as f64 / (blocks * 5 - 1 - host) as f64
    }

    #[test]
    fn a_simulated_log_agrees_with_the_formula() {
        // Few segments cost a little more than many.
        let ratio = simulate(400, 64, 0.7) / write_amplification(0.7);
        assert!((0.95..1.08).contains(&ratio), "{ratio}");
    }

    #[test]
    fn reads_of_an_uncached_map_cost_a_second_read() {
        let given = Given {
            k: 8.0,
            m: 2.0,
            devices: 10.0,
            slot_overhead: 1.0,
            blocks: 1e6,
            fill: 0.0,
            map_to_cache: 12.0,
            memory_bytes: 1e6,
        };
        let cost = given.read(&Profile::DATA24, 4096.0);
        let share = 1.0 / Profile::DATA24.read_iops as f64 / cost.busy;
        assert!((share - 0.522).abs() < 0.001, "{share}");
        let cached = Given {
            map_to_cache: 0.5,
            ..given
        };
        let write = cached.write(&Profile::DATA24, 4096.0, 0.0);
        assert!((write.bytes / 4096.0 - 1.25).abs() < 1e-9);
    }
}
