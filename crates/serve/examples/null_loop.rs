//! Serves a volume without devices as a loop device, to see what FUSE and loop cost:
//! `null_loop [null|mem] [SIZE_MIB]`. Prints the device; ends when its standard input does.

use std::error::Error;
use std::io::Read;
use std::rc::Rc;

use ashlar_rt::{Rt, oneshot};
use ashlar_serve::fuse::{FuseMount, Place};
use ashlar_serve::loopdev::{LoopAttachment, file_name};
use ashlar_serve::{MemVolume, NullVolume, Volume};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let size = arguments
        .get(1)
        .map_or(Ok(1024), |text| text.parse::<u64>())?
        << 20;
    let volume: Rc<dyn Volume> = match arguments.first().map(String::as_str) {
        Some("mem") => Rc::new(MemVolume::new(size)),
        Some("null") | None => Rc::new(NullVolume::new(size)),
        Some(_) => return Err("usage: null_loop [null|mem] [SIZE_MIB]".into()),
    };
    let (ended, input_ends) = oneshot();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        ended.send(());
    });
    let rt = Rt::start()?;
    let handle = rt.clone();
    rt.block_on(async move {
        let mount = FuseMount::start(&handle, volume, Place::Hidden(file_name("t/v"))).await?;
        let attached = LoopAttachment::attach(&mount, "null_loop", false).await?;
        println!("{}", attached.device().display());
        input_ends.await;
        attached.detach(false).await?;
        mount.unmount().await?;
        Ok(())
    })
}
