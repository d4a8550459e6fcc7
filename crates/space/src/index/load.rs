//! Load: how busy the jobs under way keep the devices, so that the next one goes to others.
//!
//! Invariant: the load of a device is the number of times that jobs under way name it.

use std::collections::BTreeMap;

/// The devices that jobs read and write, by the job's segment.
#[derive(Debug, Clone, Default)]
pub(super) struct Load {
    jobs: BTreeMap<u64, Vec<u16>>,
    devices: BTreeMap<u16, u32>,
}

impl Load {
    /// A job on a segment has begun. A device is named once for each column that is read or written there.
    pub(super) fn begin(&mut self, segment: u64, devices: Vec<u16>) {
        self.end(segment);
        for device in &devices {
            *self.devices.entry(*device).or_default() += 1;
        }
        self.jobs.insert(segment, devices);
    }

    /// No job is under way on a segment any more.
    pub(super) fn end(&mut self, segment: u64) {
        for device in self.jobs.remove(&segment).into_iter().flatten() {
            if let Some(load) = self.devices.get_mut(&device) {
                *load -= 1;
            }
        }
    }

    /// The load of a device.
    pub(super) fn of(&self, device: u16) -> u32 {
        self.devices.get(&device).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_weighs_until_it_ends() {
        let mut load = Load::default();
        load.begin(7, vec![0, 1, 1]);
        load.begin(8, vec![1, 2]);
        assert_eq!([0, 1, 2, 3].map(|d| load.of(d)), [1, 3, 1, 0]);
        load.begin(8, vec![2]); // anew
        assert_eq!([0, 1, 2, 3].map(|d| load.of(d)), [1, 2, 1, 0]);
        load.end(7);
        load.end(7);
        load.end(9);
        assert_eq!([0, 1, 2, 3].map(|d| load.of(d)), [0, 0, 1, 0]);
    }
}
