//! Serves a volume of an array on files over NBD until Enter is pressed.
//!
//! ```text
//! truncate -s 64M /tmp/a /tmp/b /tmp/c /tmp/d
//! cargo run --example nbd_export -- /tmp/ashlar.sock /tmp/a /tmp/b /tmp/c /tmp/d
//! nbdinfo 'nbd+unix:///data?socket=/tmp/ashlar.sock'
//! ```
//! The files become an array `ec2+1`; run again, it imports them. `ashlar verify` reads them afterwards.

use std::error::Error;
use std::path::Path;
use std::rc::Rc;

use ashlar_device::{DeviceRef, OpenMode, Ring, open};
use ashlar_engine::{Array, Create, Import, Settings, VolumeOptions};
use ashlar_rt::{Buf, Rt, Slice, oneshot};
use ashlar_serve::nbd::{Catalog, Limits, NbdListener, NbdServer};
use ashlar_serve::{Extent, Fut, Pool, Volume, VolumeError, VolumeInfo};

/// A volume of the engine, as frontends see one.
struct Served(ashlar_engine::Volume);

impl Volume for Served {
    fn info(&self) -> VolumeInfo {
        let info = self.0.info();
        VolumeInfo {
            size_bytes: info.size_bytes,
            block_bytes: info.block_bytes,
            optimal_bytes: info.optimal_bytes,
            read_only: false,
            write_cache: true,
        }
    }

    fn read(&self, offset: u64, length: usize) -> Fut<Result<Buf, VolumeError>> {
        let volume = self.0.clone();
        Box::pin(async move { volume.read(offset, length).await })
    }

    fn write(&self, offset: u64, data: Slice, durable: bool) -> Fut<Result<(), VolumeError>> {
        let volume = self.0.clone();
        Box::pin(async move { volume.write(offset, data, durable).await })
    }

    fn flush(&self) -> Fut<Result<(), VolumeError>> {
        let volume = self.0.clone();
        Box::pin(async move { volume.flush().await })
    }

    fn trim(&self, offset: u64, length: u64, durable: bool) -> Fut<Result<(), VolumeError>> {
        let volume = self.0.clone();
        Box::pin(async move { volume.trim(offset, length, durable).await })
    }

    fn write_zeroes(
        &self,
        offset: u64,
        length: u64,
        durable: bool,
        _may_trim: bool,
    ) -> Fut<Result<(), VolumeError>> {
        let volume = self.0.clone();
        Box::pin(async move { volume.write_zeroes(offset, length, durable).await })
    }

    fn block_status(
        &self,
        offset: u64,
        length: u64,
        most: usize,
    ) -> Fut<Result<Vec<Extent>, VolumeError>> {
        let volume = self.0.clone();
        Box::pin(async move { volume.block_status(offset, length, most).await })
    }
}

/// The array on these devices, which is made if there is none.
async fn array_on(rt: &Rt, devices: Vec<DeviceRef>) -> Result<Array, Box<dyn Error>> {
    if ashlar_engine::probe(&devices[0]).await?.is_some() {
        return Ok(Array::import(rt, devices, Import::default()).await?);
    }
    let create = Create {
        name: "tank".into(),
        layout: "ec2+1".parse()?,
        strip_bytes: None,
        slot_bytes: None,
        spare: 0,
        domains: Vec::new(),
        settings: Settings::default(),
    };
    let array = Array::create(rt, devices, create).await?;
    let options = VolumeOptions {
        size_bytes: 64 << 20,
        ..VolumeOptions::default()
    };
    array.volume_create("data", options).await?;
    Ok(array)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let socket = arguments.next().ok_or("usage: SOCKET FILE...")?;
    let files: Vec<String> = arguments.collect();
    let (pressed, enter) = oneshot();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_line(&mut String::new());
        pressed.send(());
    });
    let rt = Rt::start()?;
    let handle = rt.clone();
    rt.block_on(async move {
        let ring = Ring::new(&handle)?;
        let mode = OpenMode {
            exclusive: true,
            ..OpenMode::default()
        };
        let device = |file| open(Some(&ring), Path::new(file), mode);
        let devices = files.iter().map(device).collect::<Result<Vec<_>, _>>()?;
        let array = array_on(&handle, devices).await?;
        let volume = array
            .volume("data")
            .ok_or("the array has no volume `data`")?;
        let catalog = Catalog::default();
        catalog.publish("data", Rc::new(Served(volume)));
        let listener = NbdListener::unix(&handle, Path::new(&socket)).await?;
        let (limits, pool) = (Limits::default(), Pool::new(256 << 20));
        let server = NbdServer::start(&handle, listener, Rc::new(catalog), limits, pool);
        println!("serving `data` at {}: press Enter to end", server.address());
        enter.await;
        server.stop().await;
        Ok(array.export().await?)
    })
}
