//! Memory that a device would read and write.
//!
//! **Invariants**: no value of these types exists.

use std::convert::Infallible;
use std::sync::Arc;

use crate::fault::Fault;

pub(crate) struct Context(Infallible);

pub(crate) struct PinnedMemory(Infallible);

impl PinnedMemory {
    pub(crate) fn new(context: &Arc<Context>, _bytes: usize) -> Result<PinnedMemory, Fault> {
        match context.0 {}
    }

    pub(crate) fn start(&self) -> *mut u8 {
        match self.0 {}
    }

    pub(crate) fn bytes(&self) -> usize {
        match self.0 {}
    }
}
