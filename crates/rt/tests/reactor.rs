//! The real runtime: sockets, sleeping, waking from other threads, closing while someone waits.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::cell::Cell;
use std::io::{self, IoSlice, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ashlar_rt::net::{TcpListener, UnixListener, connect_tcp, connect_unix};
use ashlar_rt::{AsyncFd, Driver, MILLISECOND, Rt, SECOND, oneshot};

/// More than any socket buffer holds, so that both directions block in the middle.
const LARGE: usize = 8 << 20;

fn socket_path() -> PathBuf {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("ashlar-rt-{}-{number}.sock", std::process::id()))
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i % 251) as u8 ^ seed).collect()
}

async fn echo(fd: AsyncFd) -> io::Result<u64> {
    let mut buf = vec![0; 64 << 10];
    let mut total = 0;
    loop {
        let count = fd.read(&mut buf).await?;
        if count == 0 {
            return Ok(total);
        }
        fd.write_all(&buf[..count]).await?;
        total += count as u64;
    }
}

/// Writes `LARGE` bytes and reads them back at the same time: a reader and a writer on one fd.
async fn converse(rt: Rt, fd: AsyncFd, seed: u8) {
    let fd = Rc::new(fd);
    let writer = {
        let fd = fd.clone();
        rt.spawn(async move {
            let data = pattern(LARGE, seed);
            let (a, b) = data.split_at(LARGE / 3);
            let mut parts = [IoSlice::new(&[]), IoSlice::new(a), IoSlice::new(b)];
            fd.write_all_vectored(&mut parts).await.unwrap();
        })
    };
    let mut back = vec![0; LARGE];
    fd.read_exact(&mut back).await.unwrap();
    writer.await;
    assert!(
        back == pattern(LARGE, seed),
        "what came back is what was sent"
    );
}

#[test]
fn an_echo_server_serves_several_unix_clients() {
    let rt = Rt::start().unwrap();
    let path = socket_path();
    let listener = UnixListener::bind(&rt, &path).unwrap();
    let handle = rt.clone();
    let file = path.clone();
    let total = rt.block_on(async move {
        let server = handle.spawn({
            let rt = handle.clone();
            async move {
                let mut connections = Vec::new();
                for _ in 0..3 {
                    connections.push(rt.spawn(echo(listener.accept().await.unwrap())));
                }
                let mut total = 0;
                for connection in connections {
                    total += connection.await.unwrap();
                }
                total
            }
        });
        let mut clients = Vec::new();
        for seed in 0..3 {
            let fd = connect_unix(&handle, &file).await.unwrap();
            clients.push(handle.spawn(converse(handle.clone(), fd, seed)));
        }
        for client in clients {
            client.await;
        }
        server.await
    });
    std::fs::remove_file(path).unwrap();
    assert_eq!(total, 3 * LARGE as u64);
}

#[test]
fn an_echo_server_serves_tcp_v4_and_v6() {
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let rt = Rt::start().unwrap();
        let listener = match TcpListener::bind(&rt, address.parse().unwrap()) {
            Ok(listener) => listener,
            Err(error) if address.starts_with('[') => {
                eprintln!("SKIPPED: no IPv6 loopback on this machine: {error}");
                continue;
            }
            Err(error) => panic!("{error}"),
        };
        let target = listener.local_addr().unwrap();
        let handle = rt.clone();
        let total = rt.block_on(async move {
            let server = handle.spawn(async move {
                let (fd, peer) = listener.accept().await.unwrap();
                assert_eq!(peer.ip(), target.ip());
                echo(fd).await.unwrap()
            });
            let fd = connect_tcp(&handle, target).await.unwrap();
            converse(handle.clone(), fd, 7).await;
            server.await
        });
        assert_eq!(total, LARGE as u64);
    }
}

#[test]
fn a_refused_connection_is_an_error() {
    let rt = Rt::start().unwrap();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let handle = rt.clone();
    let (tcp, unix) = rt.block_on(async move {
        let tcp = connect_tcp(&handle, address).await.unwrap_err().kind();
        (
            tcp,
            connect_unix(&handle, &socket_path())
                .await
                .unwrap_err()
                .kind(),
        )
    });
    assert_eq!(tcp, io::ErrorKind::ConnectionRefused);
    assert_eq!(unix, io::ErrorKind::NotFound);
}

#[test]
fn a_call_from_another_thread_ends_a_sleep() {
    let rt = Rt::start().unwrap();
    let remote = rt.remote();
    let (sender, receiver) = oneshot();
    let thread = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        remote.call(move || sender.send(Instant::now()));
    });
    // Nothing else is due: without the nudge this would sleep for ever.
    let sent = rt.block_on(receiver).unwrap();
    assert!(sent.elapsed() < Duration::from_secs(5));
    thread.join().unwrap();
}

#[test]
fn wakes_from_another_thread_are_never_lost() {
    let rt = Rt::start().unwrap();
    let (to_thread, inbox) = std::sync::mpsc::channel::<ashlar_rt::OneshotSender<u32>>();
    let thread = std::thread::spawn(move || {
        for (number, reply) in (0..).zip(inbox) {
            if number % 3 == 0 {
                std::thread::sleep(Duration::from_micros(200)); // the executor is surely asleep
            }
            reply.send(number);
        }
    });
    rt.block_on(async move {
        for number in 0..1000 {
            let (sender, receiver) = oneshot();
            to_thread.send(sender).unwrap();
            assert_eq!(receiver.await, Some(number));
        }
    });
    thread.join().unwrap();
}

#[test]
fn timers_fire_while_nothing_else_happens() {
    let rt = Rt::start().unwrap();
    let (quiet, _peer) = UnixStream::pair().unwrap();
    let fd = AsyncFd::new(&rt, quiet).unwrap();
    let handle = rt.clone();
    rt.block_on(async move {
        let start = handle.now();
        handle.sleep(30 * MILLISECOND).await;
        let slept = handle.now() - start;
        assert!((30 * MILLISECOND..5 * SECOND).contains(&slept), "{slept}");
        let none = handle.timeout(20 * MILLISECOND, fd.readable()).await;
        assert!(none.is_none());
        let order = Rc::new(Cell::new(0));
        let late = handle.spawn({
            let (rt, order) = (handle.clone(), order.clone());
            async move {
                rt.sleep(20 * MILLISECOND).await;
                order.replace(2)
            }
        });
        handle.sleep(2 * MILLISECOND).await;
        assert_eq!(order.replace(1), 0);
        assert_eq!(late.await, 1);
    });
}

#[test]
fn readiness_is_level_for_those_who_do_their_own_calls() {
    let rt = Rt::start().unwrap();
    let (ours, mut peer) = UnixStream::pair().unwrap();
    let fd = AsyncFd::new(&rt, ours.try_clone().unwrap()).unwrap();
    let handle = rt.clone();
    rt.block_on(async move {
        peer.write_all(b"xy").unwrap();
        for expected in [b'x', b'y'] {
            // Asked twice without reading: still readable.
            fd.readable().await.unwrap();
            fd.readable().await.unwrap();
            let mut one = [0];
            (&ours).read_exact(&mut one).unwrap(); // behind the AsyncFd's back
            assert_eq!(one[0], expected);
        }
        // The old readiness is not taken for a new one ...
        assert!(
            handle
                .timeout(10 * MILLISECOND, fd.readable())
                .await
                .is_none()
        );
        // ... and a dropped wait does not lose the next.
        peer.write_all(b"z").unwrap();
        fd.readable().await.unwrap();
        fd.writable().await.unwrap();
        let mut rest = [0; 10];
        assert_eq!(fd.read(&mut rest).await.unwrap(), 1);
        drop(peer);
        assert_eq!(fd.read(&mut rest).await.unwrap(), 0);
        fd.readable().await.unwrap();
        assert!(fd.write_all(b"to nobody").await.is_err());
    });
}

#[test]
fn closing_ends_reader_and_writer() {
    let rt = Rt::start().unwrap();
    let (ours, peer) = UnixStream::pair().unwrap();
    let fd = Rc::new(AsyncFd::new(&rt, ours).unwrap());
    let handle = rt.clone();
    let kinds = rt.block_on(async move {
        let reader = handle.spawn({
            let fd = fd.clone();
            async move { fd.read(&mut [0; 16]).await.map(drop) }
        });
        let waiter = handle.spawn({
            let fd = fd.clone();
            async move { fd.readable().await }
        });
        let writer = handle.spawn({
            let fd = fd.clone();
            async move { fd.write_all(&vec![0; LARGE]).await }
        });
        handle.sleep(5 * MILLISECOND).await;
        fd.close();
        let mut kinds = Vec::new();
        for task in [reader, waiter, writer] {
            kinds.push(task.await.unwrap_err().kind());
        }
        kinds.push(fd.read(&mut [0; 16]).await.unwrap_err().kind());
        kinds
    });
    assert_eq!(kinds, [io::ErrorKind::ConnectionAborted; 4]);
    drop(peer);
}

#[test]
fn closing_a_listener_ends_accept() {
    let rt = Rt::start().unwrap();
    let listener = Rc::new(TcpListener::bind(&rt, "127.0.0.1:0".parse().unwrap()).unwrap());
    let handle = rt.clone();
    let kind = rt.block_on(async move {
        let accept = handle.spawn({
            let listener = listener.clone();
            async move { listener.accept().await.map(drop) }
        });
        handle.sleep(MILLISECOND).await;
        listener.close();
        accept.await.unwrap_err().kind()
    });
    assert_eq!(kind, io::ErrorKind::ConnectionAborted);
}

#[test]
fn descriptors_opened_and_dropped_in_turn_do_not_mix() {
    // The kernel reuses numbers at once; events of the old descriptor must not reach the new one.
    let rt = Rt::start().unwrap();
    let handle = rt.clone();
    rt.block_on(async move {
        for round in 0..200u32 {
            let (ours, mut peer) = UnixStream::pair().unwrap();
            let fd = AsyncFd::new(&handle, ours).unwrap();
            peer.write_all(&round.to_le_bytes()).unwrap();
            if round % 2 == 0 {
                continue; // dropped with an event pending
            }
            let mut bytes = [0; 4];
            fd.read_exact(&mut bytes).await.unwrap();
            assert_eq!(u32::from_le_bytes(bytes), round);
        }
    });
}

#[test]
fn a_regular_file_and_a_runtime_without_reactor_are_refused() {
    let rt = Rt::start().unwrap();
    let file = std::fs::File::open(std::env::current_exe().unwrap()).unwrap();
    assert_eq!(
        AsyncFd::new(&rt, file).unwrap_err().kind(),
        io::ErrorKind::PermissionDenied
    );
    let (a, _b) = UnixStream::pair().unwrap();
    let simulated = Rt::simulated(1);
    assert_eq!(
        AsyncFd::new(&simulated, a).unwrap_err().kind(),
        io::ErrorKind::Unsupported
    );
}

struct Counter {
    turns: Cell<u32>,
    left: Cell<u32>,
}

impl Driver for Counter {
    fn turn(&self) -> bool {
        self.turns.set(self.turns.get() + 1);
        let left = self.left.get();
        self.left.set(left.saturating_sub(1));
        left > 0
    }
}

#[test]
fn a_driver_has_a_turn_before_each_sleep_and_does_not_starve_descriptors() {
    let rt = Rt::start().unwrap();
    let (ours, mut peer) = UnixStream::pair().unwrap();
    let (bell, _keep) = UnixStream::pair().unwrap();
    let driver = Rc::new(Counter {
        turns: Cell::new(0),
        left: Cell::new(u32::MAX),
    });
    let weak: Weak<dyn Driver> = Rc::downgrade(&(driver.clone() as Rc<dyn Driver>));
    use std::os::fd::AsFd;
    let token = rt.epoll().unwrap().attach(bell.as_fd(), weak).unwrap();
    let fd = AsyncFd::new(&rt, ours).unwrap();
    peer.write_all(b"x").unwrap();
    // The driver always has something; the socket is seen nevertheless.
    rt.block_on(async move {
        fd.readable().await.unwrap();
        fd.read(&mut [0]).await.unwrap();
        peer.write_all(b"y").unwrap();
        fd.read(&mut [0]).await.unwrap();
    });
    driver.left.set(0);
    let before = driver.turns.get();
    let handle = rt.clone();
    rt.block_on(async move { handle.sleep(MILLISECOND).await });
    assert!(driver.turns.get() > before);
    rt.epoll().unwrap().deregister(token, bell.as_fd());
    let before = driver.turns.get();
    let handle = rt.clone();
    rt.block_on(async move { handle.sleep(MILLISECOND).await });
    assert_eq!(driver.turns.get(), before);
}
