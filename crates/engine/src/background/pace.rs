//! How fast background work goes: a device is read up to a rate, which is lower while clients are at work.
//!
//! Invariant: what was let through of a device within any time is at most what the rate gives, and one piece more.

use std::cell::RefCell;
use std::collections::BTreeMap;

use ashlar_rt::{MILLISECOND, Nanos, Rt, SECOND};

/// So long after their last request clients still count as at work.
const LINGER: Nanos = 200 * MILLISECOND;

/// Bytes a second of each device; `None`: as many as it gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rates {
    /// While clients are at work.
    pub busy: u64,
    /// At other times.
    pub idle: Option<u64>,
}

impl Rates {
    /// What holds at a time, if the last request of a client came then.
    pub fn at(&self, now: Nanos, asked: Option<Nanos>) -> Option<u64> {
        match asked {
            Some(asked) if now.saturating_sub(asked) < LINGER => {
                Some(self.idle.map_or(self.busy, |idle| idle.min(self.busy)))
            }
            _ => self.idle,
        }
    }
}

/// When each device may be read next.
#[derive(Debug, Default)]
pub struct Pace(RefCell<BTreeMap<u16, Nanos>>);

impl Pace {
    /// Waits until so many bytes of a device may be read.
    pub async fn wait(&self, rt: &Rt, device: u16, bytes: u64, rate: Option<u64>) {
        let Some(rate) = rate else { return };
        let now = rt.now();
        let begin = self.turn(now, device, bytes, rate);
        rt.sleep(begin - now).await;
    }

    /// When they may be.
    fn turn(&self, now: Nanos, device: u16, bytes: u64, rate: u64) -> Nanos {
        let mut turns = self.0.borrow_mut();
        let turn = turns.entry(device).or_default();
        let begin = now.max(*turn);
        let takes = u128::from(bytes) * u128::from(SECOND) / u128::from(rate.max(1));
        *turn = begin.saturating_add(u64::try_from(takes).unwrap_or(u64::MAX));
        begin
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_device_is_read_at_its_rate() {
        let pace = Pace::default();
        let turns: Vec<Nanos> = (0..3).map(|_| pace.turn(5, 1, 100, 50)).collect();
        assert_eq!(turns, [5, 5 + 2 * SECOND, 5 + 4 * SECOND]);
        assert_eq!(pace.turn(5, 2, 100, 50), 5, "another device");
        assert_eq!(
            pace.turn(9 * SECOND, 1, 100, 50),
            9 * SECOND,
            "no credit is saved up"
        );
    }

    #[test]
    fn clients_at_work_leave_the_lower_rate() {
        let rates = |busy, idle| Rates { busy, idle };
        let now = 10 * SECOND;
        for (rates, asked, rate) in [
            (rates(10, None), None, None),
            (rates(10, None), Some(now), Some(10)),
            (rates(10, None), Some(now - LINGER + 1), Some(10)),
            (rates(10, None), Some(now - LINGER), None),
            (rates(10, Some(90)), Some(now), Some(10)),
            (rates(10, Some(5)), Some(now), Some(5)),
            (rates(10, Some(90)), None, Some(90)),
        ] {
            assert_eq!(rates.at(now, asked), rate, "{rates:?} {asked:?}");
        }
    }
}
