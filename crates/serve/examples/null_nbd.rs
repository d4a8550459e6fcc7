//! Serves a volume without devices over NBD, to see what the frontend itself costs:
//! `null_nbd ADDRESS [null|mem] [SIZE_MIB]`, ADDRESS being `unix:PATH` or `127.0.0.1:PORT`.
//! Ends when its standard input does.

use std::error::Error;
use std::io::Read;
use std::path::Path;
use std::rc::Rc;

use ashlar_rt::{Rt, oneshot};
use ashlar_serve::nbd::{Catalog, Limits, NbdListener, NbdServer};
use ashlar_serve::{MemVolume, NullVolume, Pool, Volume};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some(address) = arguments.first().cloned() else {
        return Err("usage: null_nbd unix:PATH|HOST:PORT [null|mem] [SIZE_MIB]".into());
    };
    let size = arguments
        .get(2)
        .map_or(Ok(1024), |text| text.parse::<u64>())?
        << 20;
    let volume: Rc<dyn Volume> = match arguments.get(1).map(String::as_str) {
        Some("mem") => Rc::new(MemVolume::new(size)),
        Some("null") | None => Rc::new(NullVolume::new(size)),
        Some(_) => return Err("the volume is `null` or `mem`".into()),
    };
    let (ended, input_ends) = oneshot();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        ended.send(());
    });
    let rt = Rt::start()?;
    let handle = rt.clone();
    rt.block_on(async move {
        let listener = match address.strip_prefix("unix:") {
            Some(path) => NbdListener::unix(&handle, Path::new(path)).await?,
            None => NbdListener::tcp(&handle, address.parse()?)?,
        };
        let catalog = Catalog::default();
        catalog.publish("volume", volume);
        let server = NbdServer::start(
            &handle,
            listener,
            Rc::new(catalog),
            Limits::default(),
            Pool::new(512 << 20),
        );
        println!("serving `volume` at {}", server.address());
        input_ends.await;
        server.stop().await;
        Ok(())
    })
}
