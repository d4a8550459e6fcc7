//! An array on eight devices in memory: create it, write, lose two devices, read. `cargo run --example memory_array`

use std::error::Error;
use std::rc::Rc;

use ashlar_device::{DeviceRef, MemDevice};
use ashlar_engine::{Array, Create, Settings, VolumeOptions, Work};
use ashlar_rt::{Buf, Rt};

fn main() -> Result<(), Box<dyn Error>> {
    let rt = Rt::start()?;
    let handle = rt.clone();
    rt.block_on(async move {
        let device = |i| Rc::new(MemDevice::new(&format!("mem{i}"), 64 << 20)) as DeviceRef;
        let create = Create {
            name: "tank".into(),
            layout: "ec4+2".parse()?,
            strip_bytes: None,
            slot_bytes: None,
            spare: 0,
            domains: Vec::new(),
            settings: Settings::default(),
        };
        let array = Array::create(&handle, (0..8).map(device).collect(), create).await?;
        let options = VolumeOptions {
            size_bytes: 32 << 20,
            ..VolumeOptions::default()
        };
        array.volume_create("data", options).await?;
        let volume = array.volume("data").ok_or("the volume was just made")?;

        let mut bytes = Buf::zeroed(1 << 20);
        bytes
            .iter_mut()
            .zip(0u64..)
            .for_each(|(b, i)| *b = (i * i % 251) as u8);
        let written = bytes.freeze();
        volume.write(0, written.clone(), true).await?; // durable when it returns

        array.fail(0, false).await?;
        array.fail(1, false).await?;
        println!(
            "two of eight devices are gone: {:?}",
            array.status().await.state
        );
        assert_eq!(volume.read(0, written.len()).await?[..], written[..]);
        array.wait_idle(&[Work::Rebuild]).await;
        println!("rebuilt on the other six: {:?}", array.status().await.state);
        assert_eq!(volume.read(0, written.len()).await?[..], written[..]);
        Ok(array.export().await?)
    })
}
