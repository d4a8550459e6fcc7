//! Layout notations and placement: pure arithmetic, no input or output, no clock, no state.
//!
//! * [`Layout`] is what an operator writes (`raid6`, `ec80+20`, `raid60:10`, `grid:41(8+2+2)`);
//!   [`Layout::resolve`] turns it, for a number of devices, into a [`Shape`]: the code and the
//!   independent groups.
//! * [`Placement`] chooses the devices of the n-th segment.
//!
//! **Invariants.** Every [`Shape`] has `1 <= k`, `k + m <= 256`, and each of its groups has at
//! least `k + m + spare / groups` devices; the groups partition the devices `0..devices`. Nothing
//! here panics for any input, and everything is a function of its arguments alone, so two hosts
//! and two versions place alike (golden vectors are in the tests). The table on disk remains what
//! counts: a change here changes only where new segments go.

mod notation;
mod permutation;
mod placement;
mod shape;

pub use notation::{Layout, LayoutError, MAX_WIDTH};
pub use permutation::Permutation;
pub use placement::Placement;
pub use shape::{Shape, check_device_count};
