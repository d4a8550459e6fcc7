//! What a client does with many blocks at a time: a volume filled in order, blocks all over it at once, and
//! a pile of writes that only a flush makes durable.
//!
//! Invariants: each write is one of [`Session::write`], so that the model hears of it.

use std::rc::Rc;

use ashlar_rt::Rt;

use crate::client::Session;
use crate::rng::Rng;
use crate::world::{VolumeEntry, World};

/// As much of a sparse volume is overwritten in order as others have in all.
const SPARSE_FILL: u64 = 2 << 20;

impl Session {
    /// Writes all of a volume, or the next part of a sparse one.
    pub async fn fill(&self, client: u64, volume: &str, rng: &mut Rng) {
        let (mut at, end) = self
            .world
            .with_volume(volume, |e| {
                let (size, block) = (e.model.size(), e.model.block_bytes());
                let start = e.cursor / block * block;
                match e.config.sparse {
                    true => (start, size.min(start + SPARSE_FILL)),
                    false => (0, size),
                }
            })
            .unwrap_or((0, 0));
        let step = 65_536 << rng.below(3);
        while at < end && !self.world.failed() {
            let length = step.min(end - at);
            self.write(client, volume, at, length, rng.chance(5)).await;
            at += length;
        }
        self.world.trace.mark("fill");
    }

    /// Writes many blocks at once, anywhere; or each n-th one (`stride`), on from where the last burst ended.
    pub(crate) async fn burst(&self, client: u64, volume: &str, rng: &mut Rng) {
        let stride = self.world.config.stride;
        let (durable, count) = (rng.chance(20), rng.pick(&[32, 128, 512]));
        let shape = |e: &mut VolumeEntry| {
            let (size, block) = (e.model.size(), e.model.block_bytes());
            let blocks = size / block;
            let mut at = |n: u64| match stride {
                Some(stride) if blocks > 0 => {
                    let n = e.strides + n;
                    (n * stride % blocks + n * stride / blocks) % blocks * block
                }
                _ => rng.below(size) / block * block,
            };
            let places: Vec<u64> = (0..count).map(&mut at).collect();
            e.strides += count;
            (size, block, places)
        };
        let Some((size, block, places)) = self.world.with_volume(volume, shape) else {
            return;
        };
        let writes: Vec<_> = places
            .into_iter()
            .map(|at| {
                let (session, volume) = (self.clone(), volume.to_string());
                let length = block.min(size - at);
                let write = async move {
                    session.write(client, &volume, at, length, durable).await;
                };
                self.rt.spawn(self.world.heard(write))
            })
            .collect();
        for write in writes {
            write.await;
        }
        self.world.trace.mark("many writes at once");
    }

    /// Writes a few blocks that are to be durable, then in memory as much as a batch takes, then those few again;
    /// and flushes all of it. What was durable before is there whenever power goes; often it is to go while the
    /// flush runs, or soon after.
    pub(crate) async fn pile(&self, client: u64, rng: &mut Rng) {
        let volume = "v0"; // the one that is large enough
        let shape = |e: &mut VolumeEntry| (e.model.size(), e.model.block_bytes());
        let Some((size, block)) = self.world.with_volume(volume, shape) else {
            return;
        };
        let first = rng.below(size) / block * block;
        let few: Vec<u64> = (0..rng.range(1, 3))
            .map(|n| (first + n * rng.range(1, 3) * block) % size)
            .collect();
        for at in &few {
            let length = block.min(size - at);
            self.write(client, volume, *at, length, true).await;
        }
        let (mut at, mut left) = (first, size.min(rng.range(26, 31) * (128 << 10)));
        while left > 0 && !self.world.failed() {
            at = (at + block) % size;
            let length = rng.magnitude(256 << 10).div_ceil(block) * block;
            let length = length.min(size - at).min(left.next_multiple_of(block));
            if !few.iter().any(|f| (at..at + length).contains(f)) {
                self.write(client, volume, at, length, false).await;
            }
            (at, left) = (at + length, left.saturating_sub(length));
        }
        let trim = rng.chance(15);
        for at in &few {
            let length = block.min(size - at);
            match trim {
                true => self.zero(client, volume, *at, length, true, false).await,
                false => self.write(client, volume, *at, length, false).await,
            }
        }
        if rng.chance(75) {
            let (world, rt) = (self.world.clone(), self.rt.clone());
            let power = power_goes(world, rt, rng.range(1, 5));
            self.rt.spawn(self.world.heard(power));
        }
        self.flush(client, volume).await;
        self.world.trace.mark("a pile of writes, and a flush");
    }
}

/// Says that power is to go as soon as a disk has ended so many more flushes: the time between two parts of a
/// batch is short, and begins with one.
async fn power_goes(world: Rc<World>, rt: Rt, flushes: u64) {
    const LOOKS: usize = 400;
    let ended = || world.disks.iter().map(|d| d.flushes());
    let ends: Vec<u64> = ended().map(|count| count + flushes).collect();
    for _ in 0..LOOKS {
        if ended().zip(&ends).any(|(count, end)| count >= *end) {
            world.power.open();
            return;
        }
        rt.sleep(20_000).await;
    }
}
