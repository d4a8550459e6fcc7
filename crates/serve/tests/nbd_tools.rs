//! Our NBD server with other people's clients, and our client with another server: libnbd's tools,
//! qemu-img, nbdkit. A tool that is not installed is reported and skipped.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::rc::Rc;

use ashlar_rt::{Buf, MILLISECOND, Rt, oneshot};
use ashlar_serve::nbd::{Catalog, ClientError, Limits, NbdClient, NbdListener, NbdServer};
use ashlar_serve::{MemVolume, Pool, Volume};

const SIZE: u64 = 32 << 20;

/// Runs a tool on another thread; `None` if it is not installed, else whether it succeeded, and what
/// it printed.
async fn run(tool: &'static str, arguments: Vec<String>) -> Option<(bool, String)> {
    let (reply, result) = oneshot();
    std::thread::spawn(move || reply.send(Command::new(tool).args(arguments).output()));
    match result.await.unwrap() {
        Ok(output) => {
            let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
            text.push_str(&String::from_utf8_lossy(&output.stderr));
            Some((output.status.success(), text))
        }
        Err(_) => {
            eprintln!("SKIPPED: {tool} is not installed");
            None
        }
    }
}

fn strings(list: &[&str]) -> Vec<String> {
    list.iter().map(|item| (*item).to_owned()).collect()
}

fn scratch(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("ashlar-{name}-{}", std::process::id()));
    fs::create_dir(&path).unwrap();
    path
}

/// Half random bytes, half a hole.
fn image(rt: &Rt, path: &Path) -> Vec<u8> {
    let mut bytes = vec![0; SIZE as usize];
    bytes[..SIZE as usize / 2].fill_with(|| rt.random() as u8);
    fs::write(path, &bytes).unwrap();
    bytes
}

#[test]
fn other_clients_understand_the_server() {
    let rt = Rt::start().unwrap();
    let handle = rt.clone();
    rt.block_on(async move {
        let directory = scratch("tools");
        let socket = directory.join("socket");
        let file = directory.join("image");
        let bytes = image(&handle, &file);
        let volume = Rc::new(MemVolume::new(SIZE));
        let catalog = Catalog::default();
        catalog.publish("array/volume", volume.clone());
        let listener = NbdListener::unix(&handle, &socket).await.unwrap();
        let server = NbdServer::start(
            &handle,
            listener,
            Rc::new(catalog),
            Limits::default(),
            Pool::new(512 << 20),
        );
        let url = format!("nbd+unix:///array/volume?socket={}", socket.display());
        let bare = format!("nbd+unix:///?socket={}", socket.display());
        let file_text = file.to_str().unwrap();
        if let Some((done, text)) = run("nbdinfo", strings(&[&url])).await {
            assert!(done, "{text}");
            for line in [
                "can_multi_conn: true",
                "can_fua: true",
                "block_size_maximum: 33554432",
            ] {
                assert!(text.contains(line), "{line} in {text}");
            }
        }
        if let Some((done, text)) = run("nbdinfo", strings(&["--list", &bare])).await {
            assert!(done && text.contains("array/volume"), "{text}");
        }
        if let Some((done, text)) = run("nbdcopy", strings(&["--flush", file_text, &url])).await {
            assert!(done, "{text}");
            assert!(volume.read(0, SIZE as usize).await.unwrap()[..] == bytes[..]);
            assert!(volume.counters().flushes > 0);
            let (done, text) = run("nbdinfo", strings(&["--map", &url])).await.unwrap();
            assert!(
                done && text.contains("hole,zero") && text.contains("data"),
                "{text}"
            );
        }
        volume
            .write(5 << 20, Buf::copy_of(b"changed").freeze(), false)
            .await
            .unwrap();
        let convert = ["convert", "-n", "-f", "raw", "-O", "raw", file_text, &url];
        if let Some((done, text)) = run("qemu-img", strings(&convert)).await {
            assert!(done, "{text}");
            let compare = ["compare", "-f", "raw", "-F", "raw", file_text, &url];
            let (done, text) = run("qemu-img", strings(&compare)).await.unwrap();
            assert!(done, "{text}");
            assert!(volume.read(0, SIZE as usize).await.unwrap()[..] == bytes[..]);
        }
        server.stop().await;
        fs::remove_dir_all(&directory).unwrap();
    });
}

#[test]
fn the_client_understands_another_server() {
    let rt = Rt::start().unwrap();
    let handle = rt.clone();
    rt.block_on(async move {
        let directory = scratch("nbdkit");
        let socket = directory.join("socket");
        let file = directory.join("image");
        let bytes = image(&handle, &file);
        let mut kit = Command::new("nbdkit");
        kit.args([
            "-f",
            "-U",
            socket.to_str().unwrap(),
            "file",
            file.to_str().unwrap(),
        ]);
        let Ok(mut kit) = kit.stdout(Stdio::null()).stderr(Stdio::null()).spawn() else {
            eprintln!("SKIPPED: nbdkit is not installed");
            return fs::remove_dir_all(&directory).unwrap();
        };
        let url = format!("nbd+unix:///?socket={}", socket.display());
        let mut client = NbdClient::connect(&handle, &url).await;
        for _ in 0..500 {
            if !matches!(client, Err(ClientError::Connect(_))) {
                break;
            }
            handle.sleep(10 * MILLISECOND).await; // it is not up yet
            client = NbdClient::connect(&handle, &url).await;
        }
        let client = client.unwrap();
        assert_eq!(client.info().size_bytes, SIZE);
        assert!(client.read(0, SIZE as usize).await.unwrap()[..] == bytes[..]);
        let reads: Vec<_> = (0..64).map(|n| client.read(n * 100_000, 3000)).collect();
        for (n, read) in reads.into_iter().enumerate() {
            assert!(read.await.unwrap()[..] == bytes[n * 100_000..n * 100_000 + 3000]);
        }
        client
            .write(4096, Buf::copy_of(&[5; 8192]).freeze(), true)
            .await
            .unwrap();
        client.write_zeroes(8192, 4096, false, true).await.unwrap();
        client.flush().await.unwrap();
        let extents = client.block_status(0, SIZE).await.unwrap();
        assert!(extents.iter().map(|extent| extent.length).sum::<u64>() <= SIZE);
        client.disconnect().await;
        kit.kill().unwrap();
        kit.wait().unwrap();
        let now = fs::read(&file).unwrap();
        assert_eq!(
            (now[4096], now[8191], now[8192], now[12288]),
            (5, 5, 0, bytes[12288])
        );
        fs::remove_dir_all(&directory).unwrap();
    });
}
