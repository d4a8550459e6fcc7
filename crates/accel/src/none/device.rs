//! A device that cannot be opened.
//!
//! **Invariants**: no value of its type exists.

use std::convert::Infallible;
use std::sync::Arc;

use crate::cost::DeviceRates;
use crate::fault::Fault;
use crate::flight::Flight;
use crate::function::Function;
use crate::job::{Coding, Plan};
use crate::options::{Clock, Options};
use crate::region::Arena;

/// What a link was measured to do.
pub(crate) struct Link {
    pub(crate) into: f64,
    pub(crate) out: f64,
    pub(crate) both: f64,
}

pub(crate) struct Device {
    never: Infallible,
    pub(crate) name: String,
    pub(crate) compute: (u32, u32),
    pub(crate) rates: DeviceRates,
    pub(crate) memory: (usize, usize),
}

impl Device {
    pub(crate) fn open(_number: u16, _options: &Options) -> Result<Device, Fault> {
        Err(Fault::NotBuilt)
    }

    pub(crate) fn lost(&self) -> Option<Fault> {
        match self.never {}
    }

    pub(crate) fn arena(&self) -> Option<&Arc<Arena>> {
        match self.never {}
    }

    pub(crate) fn job_bytes(&self) -> usize {
        match self.never {}
    }

    pub(crate) fn fits(&self, _plan: &Plan) -> bool {
        match self.never {}
    }

    pub(crate) fn backlog(&self) -> Option<u64> {
        match self.never {}
    }

    pub(crate) fn submit(&self, _flight: Arc<Flight>) {
        match self.never {}
    }

    pub(crate) fn give_up(&self, _fault: Fault) {
        match self.never {}
    }

    pub(crate) fn link(&self, _nanos: u64, _clock: &Clock) -> Result<Link, Fault> {
        match self.never {}
    }

    pub(crate) fn product_rate(&self, _coding: &Coding, _strip: usize) -> Result<f64, Fault> {
        match self.never {}
    }

    pub(crate) fn digest_rate(&self, _function: Function, _len: usize) -> Result<f64, Fault> {
        match self.never {}
    }
}
