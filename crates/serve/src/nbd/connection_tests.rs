//! The server's connection in virtual time, over a pipe: deadlines, disconnects, limits, and a byte
//! model with the client.
#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use crate::nbd::negotiation::Catalog;
use crate::nbd::pipe::{Pipe, pipe};
use crate::nbd::wire::{cmd_flag, errno, option, put_option, put_string};
use crate::nbd::{ClientError, NbdClient};
use crate::{Extent, Fut, MemVolume, VolumeInfo};

/// A volume whose operations take a random time, and that counts those in flight.
struct Slow {
    rt: Rt,
    memory: Rc<MemVolume>,
    delay: u64,
    in_flight: Rc<Cell<usize>>,
    most: Rc<Cell<usize>>,
    fail: Cell<Option<VolumeError>>,
}

impl Slow {
    fn new(rt: &Rt, size: u64, delay: u64) -> Rc<Slow> {
        Rc::new(Slow {
            rt: rt.clone(),
            memory: Rc::new(MemVolume::new(size)),
            delay,
            in_flight: Rc::default(),
            most: Rc::default(),
            fail: Cell::new(None),
        })
    }

    fn later<T: 'static>(&self, work: Fut<Result<T, VolumeError>>) -> Fut<Result<T, VolumeError>> {
        let (rt, in_flight, most) = (self.rt.clone(), self.in_flight.clone(), self.most.clone());
        let delay = rt.random_below(self.delay + 1);
        let fail = self.fail.get();
        Box::pin(async move {
            in_flight.set(in_flight.get() + 1);
            most.set(most.get().max(in_flight.get()));
            rt.sleep(delay).await;
            in_flight.set(in_flight.get() - 1);
            match fail {
                Some(error) => Err(error),
                None => work.await,
            }
        })
    }
}

impl Volume for Slow {
    fn info(&self) -> VolumeInfo {
        self.memory.info()
    }
    fn read(&self, offset: u64, length: usize) -> Fut<Result<Buf, VolumeError>> {
        self.later(self.memory.read(offset, length))
    }
    fn write(&self, offset: u64, data: Slice, durable: bool) -> Fut<Result<(), VolumeError>> {
        self.later(self.memory.write(offset, data, durable))
    }
    fn flush(&self) -> Fut<Result<(), VolumeError>> {
        self.later(self.memory.flush())
    }
    fn trim(&self, offset: u64, length: u64, durable: bool) -> Fut<Result<(), VolumeError>> {
        self.later(self.memory.trim(offset, length, durable))
    }
    fn write_zeroes(&self, o: u64, l: u64, d: bool, m: bool) -> Fut<Result<(), VolumeError>> {
        self.later(self.memory.write_zeroes(o, l, d, m))
    }
    fn block_status(
        &self,
        offset: u64,
        length: u64,
        most: usize,
    ) -> Fut<Result<Vec<Extent>, VolumeError>> {
        self.later(self.memory.block_status(offset, length, most))
    }
}

/// Starts a server for `volume` under the name `v`; the far end, what controls it, and its end.
fn start(rt: &Rt, volume: Rc<dyn Volume>, room: usize) -> (Pipe, Rc<Control>, ashlar_rt::Join<()>) {
    let catalog = Catalog::default();
    catalog.publish("v", volume);
    let (near, far) = pipe(room, 1000);
    let control = Rc::new(Control::default());
    let (io, limits) = (Rc::new(near), Limits::default());
    let shared = Pool::new(512 << 20);
    let serving = serve(
        rt.clone(),
        io,
        Rc::new(catalog),
        control.clone(),
        limits,
        shared,
    );
    (far, control, rt.spawn(serving))
}

/// What a client sends to get to transmission.
fn opening() -> Vec<u8> {
    let mut out = 3u32.to_be_bytes().to_vec();
    put_option(&mut out, option::STRUCTURED_REPLY, &[]);
    let mut go = Vec::new();
    put_string(&mut go, "v");
    go.extend_from_slice(&[0, 0]);
    put_option(&mut out, option::GO, &go);
    out
}

/// Bytes the server sends until transmission: greeting, ACK, 2 INFO, ACK.
const OPENED: usize = 18 + 20 + (20 + 12) + (20 + 14) + 20;

fn request(command: u16, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    let mut out = Vec::new();
    RequestHeader {
        flags: 0,
        command,
        cookie,
        offset,
        length,
    }
    .put(&mut out);
    out
}

async fn send(io: &Pipe, bytes: &[u8]) {
    io.write_all(&mut [IoSlice::new(bytes)]).await.unwrap();
}

async fn receive(io: &Pipe, count: usize) -> Vec<u8> {
    let mut out = vec![0; count];
    let mut at = 0;
    while at < count {
        match io.read(&mut out[at..]).await.unwrap() {
            0 => break,
            n => at += n,
        }
    }
    out.truncate(at);
    out
}

#[test]
fn a_connection_is_known_by_its_export_before_its_peer_hears_so() {
    let rt = Rt::simulated(3);
    let handle = rt.clone();
    rt.block_on(async move {
        // No room for the last answer of the handshake: it waits for the peer.
        let (far, control, serving) = start(&handle, Rc::new(MemVolume::new(4096)), OPENED - 30);
        send(&far, &opening()).await;
        handle.sleep(SECOND).await;
        assert_eq!(control.export.borrow().as_deref(), Some("v"));
        assert!(!control.in_transmission.get());
        control.stop.set();
        serving.await;
        assert!(!control.in_transmission.get());
    });
}

#[test]
fn a_silent_peer_is_dropped_after_ten_seconds() {
    for said in [vec![], opening()[..20].to_vec()] {
        let rt = Rt::simulated(1);
        let handle = rt.clone();
        rt.block_on(async move {
            let (far, _, served) = start(&handle, Rc::new(MemVolume::new(1 << 20)), 1 << 16);
            send(&far, &said).await;
            served.await;
            assert_eq!(handle.now(), 10 * SECOND);
        });
    }
}

#[test]
fn a_disconnect_at_any_byte_leaks_nothing_and_never_applies_part_of_a_payload() {
    let mut script = opening();
    let write_at = script.len();
    script.extend(request(command::WRITE, 1, 4096, 2000));
    script.extend(vec![9; 2000]);
    script.extend(request(command::FLUSH, 2, 0, 0));
    script.extend(request(command::READ, 3, 0, 8192));
    for cut in (0..script.len())
        .step_by(37)
        .chain([write_at + 28 + 1999, write_at + 28 + 2000])
    {
        let rt = Rt::simulated(cut as u64);
        let handle = rt.clone();
        let script = script.clone();
        rt.block_on(async move {
            let volume = Slow::new(&handle, 1 << 20, 1_000_000);
            let (far, _, served) = start(&handle, volume.clone(), 1 << 16);
            send(&far, &script[..cut]).await;
            handle.sleep(300_000).await;
            drop(far);
            served.await;
            assert_eq!(volume.in_flight.get(), 0, "cut at {cut}");
            assert_eq!(
                Rc::strong_count(&volume),
                1,
                "the connection is gone, cut at {cut}"
            );
            let written = volume.memory.counters().writes;
            assert_eq!(
                written,
                u64::from(cut >= write_at + 28 + 2000),
                "cut at {cut}"
            );
        });
    }
}

#[test]
fn a_payload_that_does_not_come_frees_its_memory_after_a_minute() {
    let rt = Rt::simulated(2);
    let handle = rt.clone();
    rt.block_on(async move {
        let volume = Rc::new(MemVolume::new(64 << 20));
        let (far, _, served) = start(&handle, volume.clone(), 1 << 16);
        send(&far, &opening()).await;
        receive(&far, OPENED).await;
        send(&far, &request(command::WRITE, 1, 0, 32 << 20)).await;
        send(&far, &[1; 1000]).await;
        served.await;
        assert_eq!(handle.now(), PATIENCE);
        assert_eq!(volume.counters().writes, 0);
    });
}

#[test]
fn a_peer_that_takes_no_answers_is_dropped_after_a_minute() {
    let rt = Rt::simulated(2);
    let handle = rt.clone();
    rt.block_on(async move {
        let volume = Rc::new(MemVolume::new(1 << 20));
        let (far, _, served) = start(&handle, volume, 4096);
        send(&far, &opening()).await;
        receive(&far, OPENED).await;
        send(&far, &request(command::READ, 1, 0, 1 << 20)).await;
        served.await;
        assert_eq!(handle.now(), PATIENCE);
    });
}

#[test]
fn refused_requests_keep_the_stream_in_step() {
    let rt = Rt::simulated(4);
    let handle = rt.clone();
    rt.block_on(async move {
        let volume = Slow::new(&handle, 1 << 20, 0);
        let (far, _, served) = start(&handle, volume.clone(), 1 << 20);
        send(&far, &opening()).await;
        receive(&far, OPENED).await;
        let mut bytes = request(command::WRITE, 1, 1 << 20, 5000); // beyond the end: payload skipped
        bytes.extend(vec![1; 5000]);
        bytes.extend(request(command::READ, 2, u64::MAX, 100));
        bytes.extend(request(99, 3, 0, 0));
        send(&far, &bytes).await;
        let answers = receive(&far, 16 + 26 + 16).await;
        let error = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().unwrap());
        assert_eq!(error(&answers[4..8]), errno::NO_SPACE);
        assert_eq!(answers[16 + 6..16 + 8], piece_error());
        assert_eq!(error(&answers[16 + 20..16 + 24]), errno::INVALID);
        assert_eq!(error(&answers[16 + 26 + 4..16 + 26 + 8]), errno::INVALID);
        volume.fail.set(Some(VolumeError::Lost));
        send(&far, &request(command::FLUSH, 4, 0, 0)).await;
        assert_eq!(error(&receive(&far, 16).await[4..8]), errno::IO);
        assert_eq!(volume.memory.counters().writes, 0);
        // 33 MiB announced: the peer is dropped, with nothing read.
        send(&far, &request(command::WRITE, 5, 0, 33 << 20)).await;
        assert_eq!(receive(&far, 1).await, []);
        served.await;
    });
}

fn piece_error() -> [u8; 2] {
    crate::nbd::wire::piece::ERROR.to_be_bytes()
}

#[test]
fn requests_in_flight_are_bounded_and_all_answered() {
    let rt = Rt::simulated(5);
    let handle = rt.clone();
    rt.block_on(async move {
        let volume = Slow::new(&handle, 64 << 20, 50_000_000);
        let (far, _, served) = start(&handle, volume.clone(), 1 << 16);
        let far = Rc::new(far);
        send(&far, &opening()).await;
        receive(&far, OPENED).await;
        let sender = handle.spawn({
            let far = far.clone();
            async move {
                for cookie in 0..1000 {
                    send(&far, &request(command::READ, cookie, cookie * 512, 512)).await;
                }
            }
        });
        let mut cookies = std::collections::BTreeSet::new();
        for _ in 0..1000 {
            let answer = receive(&far, 28 + 512).await;
            assert!(cookies.insert(answer[8..16].to_vec()));
        }
        assert_eq!(volume.most.get(), MAX_IN_FLIGHT);
        volume.most.set(0);
        sender.await;
        for cookie in 0..8 {
            send(&far, &request(command::READ, cookie, 0, 32 << 20)).await;
        }
        handle.sleep(SECOND).await;
        assert_eq!(volume.most.get(), 2, "two reads of 32 MiB are 64 MiB");
        drop(far);
        served.await;
    });
}

#[test]
fn stop_answers_what_is_in_flight_and_does_not_wait_for_a_peer_that_does_not_read() {
    let rt = Rt::simulated(6);
    let handle = rt.clone();
    rt.block_on(async move {
        let volume = Slow::new(&handle, 1 << 20, 1_000_000);
        let (far, control, served) = start(&handle, volume.clone(), 1 << 20);
        send(&far, &opening()).await;
        receive(&far, OPENED).await;
        for cookie in 0..20 {
            send(&far, &request(command::READ, cookie, 0, 512)).await;
        }
        handle.sleep(10).await;
        control.stop.set();
        assert_eq!(receive(&far, 20 * (28 + 512)).await.len(), 20 * (28 + 512));
        assert_eq!(receive(&far, 1).await, []);
        served.await;
        assert!(handle.now() < SECOND);

        let (far, control, served) = start(&handle, volume.clone(), 4096);
        send(&far, &opening()).await;
        receive(&far, OPENED).await;
        send(&far, &request(command::READ, 1, 0, 1 << 20)).await; // and never read
        handle.sleep(SECOND).await;
        let before = handle.now();
        control.stop.set();
        served.await;
        assert_eq!(handle.now() - before, LINGER);
        assert_eq!(Rc::strong_count(&volume), 1);
    });
}

#[test]
fn random_bytes_in_transmission_never_panic_and_leak_nothing() {
    for seed in 0..200 {
        let rt = Rt::simulated(seed);
        let handle = rt.clone();
        rt.block_on(async move {
            let volume = Slow::new(&handle, 1 << 20, 1000);
            let (far, _, served) = start(&handle, volume.clone(), 1 << 16);
            let far = Rc::new(far);
            let mut bytes = opening();
            for cookie in 0..50 {
                let random = handle.random();
                let command = (random % 9) as u16;
                let offset = if random.is_multiple_of(5) {
                    handle.random()
                } else {
                    random % (1 << 20)
                };
                let length = (handle.random() % 6000) as u32;
                let mut header = request(command, cookie, offset, length);
                header[5] = (handle.random() % 64) as u8 & (handle.random() % 64) as u8;
                bytes.extend(header);
                let lie = handle.random_below(10) == 0;
                if command == command::WRITE {
                    bytes.extend(vec![7; if lie { 17 } else { length as usize }]);
                }
            }
            let reader = handle.spawn({
                let far = far.clone();
                async move { while !receive(&far, 4096).await.is_empty() {} }
            });
            let _ = far.write_all(&mut [IoSlice::new(&bytes)]).await; // may be cut off
            handle.sleep(SECOND).await;
            far.close();
            served.await;
            reader.await;
            assert_eq!((volume.in_flight.get(), Rc::strong_count(&volume)), (0, 1));
        });
    }
}

/// Random operations through client and server against a byte array; operations in flight together
/// do not overlap.
#[test]
fn client_and_server_keep_a_byte_model() {
    for seed in 0..6 {
        let rt = Rt::simulated(seed);
        let handle = rt.clone();
        rt.block_on(async move {
            let volume = Slow::new(&handle, MODEL_LANES * MODEL_LANE, 100_000);
            let (far, _, served) = start(&handle, volume.clone(), 1 << 14);
            let client = NbdClient::over(&handle, Rc::new(far), "v").await.unwrap();
            assert!(client.info().allocation && client.info().structured);
            let lanes: Vec<_> = (0..MODEL_LANES)
                .map(|lane| handle.spawn(one_lane(handle.clone(), client.clone(), lane)))
                .collect();
            for lane in lanes {
                lane.await;
            }
            assert_eq!(client.in_flight(), 0);
            client.disconnect().await;
            served.await;
            assert_eq!(client.flush().await, Err(ClientError::Disconnected));
            let counters = volume.memory.counters();
            assert!(counters.durable > 0 && counters.trims > 0 && counters.zeroes > 0);
        });
    }
}

const MODEL_LANES: u64 = 8;
const MODEL_LANE: u64 = 100_000;

async fn one_lane(rt: Rt, client: NbdClient, lane: u64) {
    let mut model = vec![0u8; MODEL_LANE as usize];
    let base = lane * MODEL_LANE;
    for _ in 0..150 {
        let start = rt.random_below(MODEL_LANE - 1);
        let length = 1 + rt.random_below((MODEL_LANE - start).min(20_000));
        let range = start as usize..(start + length) as usize;
        let durable = rt.random_below(4) == 0;
        match rt.random_below(8) {
            0..=2 => {
                let mut buf = Buf::zeroed(length as usize);
                buf.fill_with(|| rt.random() as u8);
                model[range].copy_from_slice(&buf);
                client
                    .write(base + start, buf.freeze(), durable)
                    .await
                    .unwrap();
            }
            3 => {
                model[range].fill(0);
                client.trim(base + start, length, durable).await.unwrap();
            }
            4 => {
                model[range].fill(0);
                let may_trim = rt.random_below(2) == 0;
                client
                    .write_zeroes(base + start, length, durable, may_trim)
                    .await
                    .unwrap();
            }
            5 => {
                let extents = client.block_status(base + start, length).await.unwrap();
                let mut at = start as usize;
                for extent in extents {
                    let end = at + extent.length as usize;
                    assert!(!extent.hole || model[at..end].iter().all(|byte| *byte == 0));
                    at = end;
                }
                assert_eq!(at, range.end);
            }
            6 => client.flush().await.unwrap(),
            _ => {
                let read = client.read(base + start, length as usize).await.unwrap();
                assert!(read[..] == model[range]);
            }
        }
    }
    let read = client.read(base, MODEL_LANE as usize).await.unwrap();
    assert!(read[..] == model[..]);
}

#[test]
fn a_read_only_export_says_so_and_refuses() {
    let rt = Rt::simulated(8);
    let handle = rt.clone();
    rt.block_on(async move {
        let info = VolumeInfo {
            read_only: true,
            ..MemVolume::new(8192).info()
        };
        let (far, _, served) = start(&handle, Rc::new(MemVolume::with_info(info)), 1 << 16);
        let client = NbdClient::over(&handle, Rc::new(far), "v").await.unwrap();
        assert!(client.is_read_only());
        let refused = Err(ClientError::Remote(errno::PERM));
        assert_eq!(client.write(0, Slice::zeroed(512), false).await, refused);
        assert_eq!(
            client.trim(0, 512, false).await,
            Err(ClientError::Unsupported)
        );
        assert_eq!(client.read(0, 8192).await.unwrap()[..], [0; 8192]);
        assert_eq!(
            client.read(1, 8192).await.unwrap_err(),
            ClientError::OutOfRange
        );
        client.disconnect().await;
        served.await;
    });
}

#[test]
fn flags_of_the_protocol_reach_the_volume() {
    let rt = Rt::simulated(9);
    let handle = rt.clone();
    rt.block_on(async move {
        let volume = Rc::new(MemVolume::new(1 << 20));
        let (far, _, served) = start(&handle, volume.clone(), 1 << 16);
        send(&far, &opening()).await;
        receive(&far, OPENED).await;
        let mut bytes = request(command::WRITE_ZEROES, 1, 0, 8192);
        bytes[5] = (cmd_flag::FUA | cmd_flag::NO_HOLE) as u8;
        bytes.extend(request(command::CACHE, 2, 0, 4096));
        bytes.extend(request(command::READ, 3, 0, 0));
        bytes.extend(request(command::DISCONNECT, 4, 0, 0));
        send(&far, &bytes).await;
        let answers = receive(&far, 1000).await;
        assert_eq!(
            answers.len(),
            16 + 16 + 20,
            "an empty read is a piece without data"
        );
        assert_eq!(volume.counters().durable, 1);
        let extents = volume.block_status(0, 16384, 9).await.unwrap();
        assert_eq!(
            extents[0],
            Extent {
                length: 8192,
                hole: false
            }
        );
        served.await;
    });
}
