//! Telling the devices of an array which space is free.
//!
//! **Invariants**: other verbs do not wait for it, and an export ends it.

use ashlar_engine::{Left, Trimmed};

use crate::api::{TrimDevice, TrimLeft, TrimReply};
use crate::daemon::host::{Host, failure_of};
use crate::failure::Failure;

impl Host {
    /// `trim`.
    ///
    /// # Errors
    /// If the array is only read, has stopped, or is being trimmed.
    pub(super) async fn trim(&self, array: String) -> Result<TrimReply, Failure> {
        let member = self.member(&array)?;
        let trimmed = member.array.trim().await.map_err(failure_of)?;
        Ok(TrimReply {
            array,
            discarded_bytes: trimmed.iter().map(|t| t.discarded_bytes).sum(),
            devices: trimmed.into_iter().map(shown).collect(),
        })
    }
}

fn shown(trimmed: Trimmed) -> TrimDevice {
    let (left, fault) = match trimmed.left {
        None => (None, String::new()),
        Some(Left::NoDiscard) => (Some(TrimLeft::NoDiscard), String::new()),
        Some(Left::Fault(fault)) => (Some(TrimLeft::Failed), fault.to_string()),
        Some(Left::Space) => (Some(TrimLeft::Space), String::new()),
        Some(Left::Ended) => (Some(TrimLeft::Ended), String::new()),
    };
    TrimDevice {
        device: trimmed.index,
        path: trimmed.path,
        discarded_bytes: trimmed.discarded_bytes,
        left,
        fault,
    }
}
