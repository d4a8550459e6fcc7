//! NBD server and client over real sockets: listening, limits, many connections, stopping.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::cell::RefCell;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::rc::Rc;

use ashlar_rt::{Buf, Join, Rt, SECOND};
use ashlar_serve::nbd::{
    Catalog, ClientError, Limits, ListenError, NbdClient, NbdListener, NbdServer,
};
use ashlar_serve::{MemVolume, Pool, Volume};

/// A directory that goes away.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("ashlar-{name}-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Scratch(path)
    }
    fn socket(&self) -> PathBuf {
        self.0.join("socket")
    }
    fn address(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.socket().display())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A server with memory of its own for what is in flight.
fn serve(rt: &Rt, listener: NbdListener, exports: Rc<Catalog>, limits: Limits) -> NbdServer {
    NbdServer::start(rt, listener, exports, limits, Pool::new(512 << 20))
}

fn catalog(volume: &Rc<MemVolume>) -> Rc<Catalog> {
    let catalog = Catalog::default();
    assert!(catalog.publish("a/b", volume.clone()));
    Rc::new(catalog)
}

#[test]
fn connections_share_a_volume_and_keep_a_byte_model() {
    let rt = Rt::start().unwrap();
    let handle = rt.clone();
    rt.block_on(async move {
        let scratch = Scratch::new("model");
        let volume = Rc::new(MemVolume::new(16 << 20));
        let listener = NbdListener::unix(&handle, &scratch.socket()).await.unwrap();
        let server = serve(&handle, listener, catalog(&volume), Limits::default());
        let model = Rc::new(RefCell::new(vec![0u8; 16 << 20]));
        let mut workers: Vec<Join<()>> = Vec::new();
        for worker in 0..8 {
            let (rt, address, model) = (handle.clone(), scratch.address("a/b"), model.clone());
            workers.push(handle.spawn(async move {
                let client = NbdClient::connect(&rt, &address).await.unwrap();
                assert_eq!(client.info().size_bytes, 16 << 20);
                for _ in 0..100 {
                    // Each worker keeps to its own eighth, and has several requests in flight there.
                    let base = worker * (2 << 20);
                    let mut in_flight = Vec::new();
                    for part in 0..4 {
                        let start = base + part * (1 << 19) + rt.random_below(1 << 18);
                        let mut buf = Buf::zeroed(1 + rt.random_below(1 << 18) as usize);
                        let fill = rt.random() as u8;
                        buf.fill(fill);
                        let end = start as usize + buf.len();
                        model.borrow_mut()[start as usize..end].fill(fill);
                        in_flight.push(client.write(start, buf.freeze(), part == 0));
                    }
                    for write in in_flight {
                        write.await.unwrap();
                    }
                    let read = client.read(base, 2 << 20).await.unwrap();
                    let range = base as usize..base as usize + (2 << 20);
                    assert!(read[..] == model.borrow()[range]);
                }
                client.flush().await.unwrap();
                client.disconnect().await;
            }));
        }
        for worker in workers {
            worker.await;
        }
        assert_eq!(volume.counters().flushes, 8);
        assert!(volume.read(0, 16 << 20).await.unwrap()[..] == model.borrow()[..]);
        server.stop().await;
        assert_eq!(server.connections(), 0);
    });
}

#[test]
fn a_unix_socket_is_private_and_replaces_only_a_dead_one() {
    let rt = Rt::start().unwrap();
    let handle = rt.clone();
    rt.block_on(async move {
        let scratch = Scratch::new("listen");
        let path = scratch.socket();
        fs::write(&path, b"precious").unwrap();
        let refused = NbdListener::unix(&handle, &path).await;
        assert!(matches!(refused, Err(ListenError::NotASocket)));
        assert_eq!(fs::read(&path).unwrap(), b"precious");
        fs::remove_file(&path).unwrap();

        let living = UnixListener::bind(&path).unwrap();
        let refused = NbdListener::unix(&handle, &path).await;
        assert!(matches!(refused, Err(ListenError::InUse)));
        drop(living); // its name stays: a dead socket

        let listener = NbdListener::unix(&handle, &path).await.unwrap();
        let found = fs::symlink_metadata(&path).unwrap();
        assert!(found.file_type().is_socket());
        assert_eq!(found.permissions().mode() & 0o7777, 0o600);
        let volume = Rc::new(MemVolume::new(4096));
        let server = serve(&handle, listener, catalog(&volume), Limits::default());
        let client = NbdClient::connect(&handle, &scratch.address(""))
            .await
            .unwrap();
        assert_eq!(client.info().size_bytes, 4096);
        let names = fs::read_dir(&scratch.0).unwrap().count();
        assert_eq!(names, 1, "nothing but the socket is left in the directory");
        server.stop().await;
        assert!(!path.exists());
        handle.sleep(SECOND / 100).await;
        assert!(client.is_disconnected());
        assert_eq!(
            client.read(0, 1).await.unwrap_err(),
            ClientError::Disconnected
        );
    });
}

#[test]
fn tcp_is_for_the_loopback_only() {
    let rt = Rt::start().unwrap();
    let handle = rt.clone();
    rt.block_on(async move {
        let everywhere = NbdListener::tcp(&handle, "0.0.0.0:0".parse().unwrap());
        assert!(matches!(everywhere, Err(ListenError::NotLoopback)));
        let listener = NbdListener::tcp(&handle, "127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.tcp_address().unwrap();
        assert!(matches!(
            NbdListener::tcp(&handle, address),
            Err(ListenError::InUse)
        ));
        let volume = Rc::new(MemVolume::new(8 << 20));
        let server = serve(&handle, listener, catalog(&volume), Limits::default());
        let url = |export: &str| format!("nbd://{address}/{export}");
        let wrong = NbdClient::connect(&handle, &url("a")).await;
        assert_eq!(wrong.unwrap_err(), ClientError::NoSuchExport);
        let client = NbdClient::connect(&handle, &url("a/b")).await.unwrap();
        let mut buf = Buf::zeroed(5 << 20);
        buf.fill_with(|| handle.random() as u8);
        let data = buf.freeze();
        client.write(777, data.clone(), true).await.unwrap();
        assert!(client.read(777, 5 << 20).await.unwrap()[..] == data[..]);
        client.trim(0, 8 << 20, false).await.unwrap();
        let status = client.block_status(0, 8 << 20).await.unwrap();
        assert_eq!((status.len(), status[0].hole), (1, true));
        server.disconnect("other").await;
        assert!(!client.is_disconnected());
        server.disconnect("a/b").await;
        assert_eq!(client.flush().await, Err(ClientError::Disconnected));
        server.stop().await;
        let gone = NbdClient::connect(&handle, &url("a/b")).await.unwrap_err();
        assert_eq!(
            gone,
            ClientError::Connect(std::io::ErrorKind::ConnectionRefused)
        );
    });
}

#[test]
fn a_client_that_gave_no_name_is_disconnected_with_the_volume_it_was_given() {
    let rt = Rt::start().unwrap();
    let handle = rt.clone();
    rt.block_on(async move {
        let scratch = Scratch::new("noname");
        let volumes = [0, 1].map(|_| Rc::new(MemVolume::new(4096)));
        let exports = catalog(&volumes[0]);
        let listener = NbdListener::unix(&handle, &scratch.socket()).await.unwrap();
        let server = serve(&handle, listener, exports.clone(), Limits::default());
        let nameless = NbdClient::connect(&handle, &scratch.address(""))
            .await
            .unwrap();
        // Another volume at the same address: the empty name means nothing to new clients.
        assert!(exports.publish("a/c", volumes[1].clone()));
        let refused = NbdClient::connect(&handle, &scratch.address("")).await;
        assert_eq!(refused.unwrap_err(), ClientError::NoSuchExport);
        let other = NbdClient::connect(&handle, &scratch.address("a/c"))
            .await
            .unwrap();
        exports.withdraw("a/b");
        server.disconnect("a/b").await;
        let late = nameless.write(0, Buf::zeroed(4096).freeze(), false).await;
        assert_eq!(late, Err(ClientError::Disconnected));
        assert_eq!(volumes[0].counters().writes, 0);
        other.flush().await.unwrap();
        server.stop().await;
    });
}

#[test]
fn too_many_connections_are_turned_away_and_silent_ones_dropped() {
    let rt = Rt::start().unwrap();
    let handle = rt.clone();
    rt.block_on(async move {
        let scratch = Scratch::new("limits");
        let volume = Rc::new(MemVolume::new(4096));
        let listener = NbdListener::unix(&handle, &scratch.socket()).await.unwrap();
        let limits = Limits {
            connections: 3,
            handshakes: 2,
            handshake: SECOND,
            ..Limits::default()
        };
        let server = serve(&handle, listener, catalog(&volume), limits);
        let path = scratch.socket();
        let half_open = std::thread::spawn(move || {
            let connect = || std::os::unix::net::UnixStream::connect(&path).unwrap();
            let mut peers: Vec<_> = (0..5).map(|_| connect()).collect();
            // Two are greeted, the others closed at once; the silent two a little later.
            let greeted = peers
                .iter_mut()
                .map(|peer| peer.read_exact(&mut [0; 18]).is_ok());
            assert_eq!(greeted.filter(|greeted| *greeted).count(), 2);
            for peer in &mut peers {
                let _ = peer.write_all(&[0, 0]); // half of the client's flags
                assert!(matches!(peer.read(&mut [0; 1]), Ok(0) | Err(_)));
            }
        });
        while !half_open.is_finished() {
            handle.sleep(SECOND / 100).await;
        }
        half_open.join().unwrap();
        assert_eq!(server.connections(), 0);
        let mut clients = Vec::new();
        for _ in 0..3 {
            clients.push(
                NbdClient::connect(&handle, &scratch.address("a/b"))
                    .await
                    .unwrap(),
            );
        }
        let fourth = NbdClient::connect(&handle, &scratch.address("a/b")).await;
        assert_eq!(fourth.unwrap_err(), ClientError::Disconnected);
        clients.pop();
        while server.connections() > 2 {
            handle.sleep(SECOND / 100).await; // a client that is dropped leaves
        }
        NbdClient::connect(&handle, &scratch.address("a/b"))
            .await
            .unwrap();
        server.stop().await;
    });
}

#[test]
fn a_thousand_connections_leave_nothing_behind() {
    let rt = Rt::start().unwrap();
    let handle = rt.clone();
    rt.block_on(async move {
        let scratch = Scratch::new("many");
        let volume = Rc::new(MemVolume::new(1 << 20));
        let listener = NbdListener::unix(&handle, &scratch.socket()).await.unwrap();
        let server = serve(&handle, listener, catalog(&volume), Limits::default());
        let descriptors = || fs::read_dir("/proc/self/fd").unwrap().count();
        let mut before = 0;
        for round in 0..1000u64 {
            let client = NbdClient::connect(&handle, &scratch.address("a/b"))
                .await
                .unwrap();
            let write = client.write(round * 512, Buf::zeroed(512).freeze(), false);
            if round % 3 == 0 {
                write.await.unwrap();
            }
            if round % 2 == 0 {
                client.disconnect().await;
            }
            drop(client);
            if round == 100 {
                before = descriptors();
            }
        }
        while server.connections() > 0 {
            handle.sleep(SECOND / 100).await;
        }
        assert!(
            descriptors() < before + 20,
            "{before} descriptors became {}",
            descriptors()
        );
        server.stop().await;
        drop(server);
        handle.sleep(SECOND / 100).await;
        assert_eq!(Rc::strong_count(&volume), 1);
    });
}
