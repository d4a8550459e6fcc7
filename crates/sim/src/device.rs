//! [`SimDevice`]: a [`SimDisk`] seen through the engine's device trait, on one executor's virtual
//! clock.
//!
//! Invariants: an operation counts from its submission, whether or not anyone waits for it; it
//! completes after a random virtual time, so operations reorder freely; after the executor is shut
//! down nothing completes any more, and what was in flight is the disk's to decide.

use std::rc::Rc;

use ashlar_device::{Device, DeviceInfo, DeviceRef, Fault, IoFuture};
use ashlar_rt::{Buf, Rt, Slice};

use crate::disk::SimDisk;

/// A simulated disk attached to one run of the engine.
#[derive(Debug)]
pub struct SimDevice {
    port: Port,
    info: DeviceInfo,
}

/// What an operation in flight holds.
#[derive(Clone, Debug)]
struct Port {
    disk: Rc<SimDisk>,
    rt: Rt,
}

impl SimDevice {
    /// Attaches `disk` to the executor `rt`.
    pub fn attach(rt: &Rt, disk: &Rc<SimDisk>) -> DeviceRef {
        let info = DeviceInfo {
            size_bytes: disk.size_bytes(),
            rotational: false,
            discard_bytes: 4096,
            name: format!("sim{}", disk.index()),
            file: None,
        };
        Rc::new(SimDevice {
            port: Port {
                disk: disk.clone(),
                rt: rt.clone(),
            },
            info,
        })
    }
}

/// An operation in flight: until its task ends, whether or not anyone waits for it.
#[derive(Debug)]
struct InFlight(Port);

impl std::ops::Deref for InFlight {
    type Target = Port;

    fn deref(&self) -> &Port {
        &self.0
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.disk.ended();
    }
}

impl Port {
    fn begin(&self) -> InFlight {
        self.disk.began();
        InFlight(self.clone())
    }

    fn log(&self, what: &str, offset: u64, len: usize, id: u64, result: Result<(), Fault>) {
        let trace = self.disk.trace();
        let code = match result {
            Ok(()) => 0,
            Err(fault) => fault as u64 + 1,
        };
        let index = self.disk.index() as u64;
        trace.mix(&[
            index,
            u64::from(what.as_bytes()[0]),
            offset,
            len as u64,
            self.rt.now(),
            code,
        ]);
        trace.line(|| {
            let at = self.rt.now() / 1_000;
            let end = match result {
                Ok(()) => String::new(),
                Err(fault) => format!(" -> {fault:?}"),
            };
            let page = offset / 4096;
            format!(
                "{at:>9} us   disk {index}: {what} #{id} page {page} +{}{end}",
                len / 4096
            )
        });
    }
}

impl Device for SimDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn read(&self, offset: u64, mut buf: Buf) -> IoFuture<(Buf, Result<(), Fault>)> {
        let delay = self.port.disk.latency(buf.len());
        let this = self.port.begin();
        Box::pin(self.port.rt.spawn(async move {
            this.rt.sleep(delay).await;
            let result = this.disk.read(offset, &mut buf);
            this.log("read", offset, buf.len(), 0, result);
            (buf, result)
        }))
    }

    fn write(&self, offset: u64, data: Vec<Slice>) -> IoFuture<Result<(), Fault>> {
        let len = data.iter().map(|slice| slice.len()).sum();
        let id = self.port.disk.submit_write(offset, &data);
        let delay = self.port.disk.latency(len);
        self.port.log("submit", offset, len, id, Ok(()));
        let this = self.port.begin();
        Box::pin(self.port.rt.spawn(async move {
            this.rt.sleep(delay).await;
            let result = this.disk.complete_write(id);
            this.log("written", offset, len, id, result);
            result
        }))
    }

    fn flush(&self) -> IoFuture<Result<(), Fault>> {
        let id = self.port.disk.submit_flush();
        let delay = self.port.disk.latency(0);
        let this = self.port.begin();
        Box::pin(self.port.rt.spawn(async move {
            this.rt.sleep(delay).await;
            let result = this.disk.complete_flush(id);
            this.log("flush", 0, 0, id, result);
            result
        }))
    }

    fn resized(&self) -> IoFuture<Result<Option<DeviceRef>, Fault>> {
        let now = SimDevice::attach(&self.port.rt, &self.port.disk);
        Box::pin(std::future::ready(Ok(Some(now))))
    }

    fn discard(&self, offset: u64, length: u64) -> IoFuture<Result<(), Fault>> {
        let id = self.port.disk.submit_discard(offset, length);
        let delay = self.port.disk.latency(0);
        let this = self.port.begin();
        Box::pin(self.port.rt.spawn(async move {
            this.rt.sleep(delay).await;
            let result = id.map_or(Ok(()), |id| this.disk.complete_write(id));
            let len = usize::try_from(length).unwrap_or(usize::MAX);
            this.log("discard", offset, len, id.unwrap_or(0), result);
            result
        }))
    }
}
