//! What crosses to the engine's thread.
//!
//! **Invariants**: a request is answered once.

use ashlar_rt::OneshotSender;
use serde_json::Value;

use crate::api::{Call, Caller};
use crate::failure::Failure;

/// What crosses to the engine's thread.
#[derive(Debug)]
pub(crate) enum Job {
    /// A request, who asks, and where the answer goes.
    Call(Box<Call>, Caller, OneshotSender<Result<Value, Failure>>),
    /// Close everything and end.
    Stop,
}
