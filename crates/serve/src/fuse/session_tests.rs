//! The session against a kernel that is played by the test, over a pair of datagram sockets: like
//! `/dev/fuse`, one read gives one request and one write is one reply.
#![allow(clippy::unwrap_used, reason = "tests")]
#![expect(
    clippy::host_endian_bytes,
    reason = "the protocol is in the byte order of the machine"
)]

use super::*;
use crate::fuse::wire::tests::request;
use crate::{Extent, Fut, MemVolume};
use ashlar_rt::{Join, MILLISECOND, SECOND, Slice};
use std::os::unix::net::UnixDatagram;

/// Reads take the longer, the earlier they begin; everything else is the memory's.
struct Backwards(Rt, MemVolume);

impl Volume for Backwards {
    fn info(&self) -> VolumeInfo {
        self.1.info()
    }
    fn read(&self, offset: u64, length: usize) -> Fut<Result<Buf, VolumeError>> {
        let (delay, read) = (20 - offset.min(20), self.1.read(offset, length));
        let sleep = self.0.sleep(delay * 10 * MILLISECOND);
        Box::pin(async move {
            sleep.await;
            read.await
        })
    }
    fn write(&self, offset: u64, data: Slice, durable: bool) -> Fut<Result<(), VolumeError>> {
        self.1.write(offset, data, durable)
    }
    fn flush(&self) -> Fut<Result<(), VolumeError>> {
        self.1.flush()
    }
    fn trim(&self, offset: u64, length: u64, durable: bool) -> Fut<Result<(), VolumeError>> {
        self.1.trim(offset, length, durable)
    }
    fn write_zeroes(&self, o: u64, l: u64, d: bool, m: bool) -> Fut<Result<(), VolumeError>> {
        self.1.write_zeroes(o, l, d, m)
    }
    fn block_status(
        &self,
        offset: u64,
        length: u64,
        most: usize,
    ) -> Fut<Result<Vec<Extent>, VolumeError>> {
        self.1.block_status(offset, length, most)
    }
}

const SIZE: u64 = 1 << 20;

fn start(rt: &Rt) -> (AsyncFd, Rc<Backwards>, Join<()>) {
    let (far, volume, session) = make(rt);
    (far, volume, rt.spawn(serve(session)))
}

fn make(rt: &Rt) -> (AsyncFd, Rc<Backwards>, Rc<Session>) {
    let (near, far) = UnixDatagram::pair().unwrap();
    let volume = Rc::new(Backwards(rt.clone(), MemVolume::new(SIZE)));
    let fd = AsyncFd::new(rt, near).unwrap();
    let session = Session {
        rt: rt.clone(),
        fd: RefCell::new(Some(Rc::new(fd))),
        info: volume.info(),
        volume: volume.clone(),
        owner: (0, 0),
        folder: false,
        stop: Stop::default(),
    };
    (AsyncFd::new(rt, far).unwrap(), volume, Rc::new(session))
}

/// A request with its own number.
fn numbered(unique: u64, opcode: u32, arguments: &[u8]) -> Vec<u8> {
    let mut bytes = request(opcode, arguments);
    bytes[8..16].copy_from_slice(&unique.to_ne_bytes());
    bytes
}

fn at(offset: u64, length: u32) -> Vec<u8> {
    let mut arguments = vec![0; 8];
    arguments.extend_from_slice(&offset.to_ne_bytes());
    arguments.extend_from_slice(&length.to_ne_bytes());
    arguments.resize(40, 0);
    arguments
}

/// Number, error and body of the next reply.
async fn reply(far: &AsyncFd) -> (u64, i32, Vec<u8>) {
    let mut buf = vec![0; 1 << 20];
    let length = far.read(&mut buf).await.unwrap();
    let word = |at: usize| <[u8; 4]>::try_from(&buf[at..at + 4]).unwrap();
    assert_eq!(u32::from_ne_bytes(word(0)) as usize, length);
    let unique = u64::from_ne_bytes(buf[8..16].try_into().unwrap());
    (
        unique,
        i32::from_ne_bytes(word(4)),
        buf[16..length].to_vec(),
    )
}

#[test]
fn requests_overtake_each_other_and_the_end_waits_for_them() {
    let rt = Rt::start().unwrap();
    let handle = rt.clone();
    rt.block_on(async move {
        let (far, volume, served) = start(&handle);
        let write = [at(100, 3), b"abc".to_vec()].concat();
        far.write(&numbered(1, 16, &write)).await.unwrap();
        assert_eq!(reply(&far).await, (1, 0, vec![3, 0, 0, 0, 0, 0, 0, 0]));
        for unique in 2..12 {
            far.write(&numbered(unique, 15, &at(unique, 101)))
                .await
                .unwrap();
        }
        far.write(&numbered(12, 36, &[0; 8])).await.unwrap(); // INTERRUPT: no answer
        far.write(&numbered(13, 20, &[0; 16])).await.unwrap();
        assert_eq!(
            reply(&far).await,
            (13, 0, vec![]),
            "a flush does not wait for reads"
        );
        for unique in (2..12).rev() {
            let (number, error, body) = reply(&far).await;
            assert_eq!((number, error, body.len()), (unique, 0, 101));
            assert_eq!(body[100 - unique as usize..][..2], *b"ab");
        }
        far.write(&numbered(14, 15, &at(0, 100))).await.unwrap();
        far.write(&[]).await.unwrap(); // the end
        served.await;
        assert_eq!(Rc::strong_count(&volume), 1, "the read in flight has ended");
    });
}

/// Whoever waits for an answer gets an error at once where a session is told to end.
#[test]
fn a_session_with_no_room_for_more_ends_when_it_is_told_to() {
    let rt = Rt::start().unwrap();
    let handle = rt.clone();
    rt.block_on(async move {
        let (far, _volume, session) = make(&handle);
        let served = handle.spawn(serve(session.clone()));
        for unique in 0..=MAX_IN_FLIGHT as u64 {
            let read = numbered(unique + 1, 15, &at(0, 1)); // takes 200 ms
            far.write(&read).await.unwrap();
        }
        handle.sleep(20 * MILLISECOND).await;
        let begun = handle.now();
        session.close();
        while session.fd.borrow().is_some() {
            handle.sleep(MILLISECOND).await;
        }
        let took = handle.now() - begun;
        assert!(took < 100 * MILLISECOND, "{took} ns");
        served.await;
    });
}

#[test]
fn what_is_not_understood_is_refused_and_changes_nothing() {
    let rt = Rt::start().unwrap();
    let handle = rt.clone();
    rt.block_on(async move {
        let (far, volume, served) = start(&handle);
        let short = [at(0, 9), b"abc".to_vec()].concat(); // claims 9 bytes, has 3
        far.write(&numbered(1, 16, &short)).await.unwrap();
        assert_eq!(reply(&far).await, (1, -libc::EIO, vec![]));
        far.write(&numbered(2, 16, &at(SIZE, 0)[..20]))
            .await
            .unwrap();
        assert_eq!(reply(&far).await, (2, -libc::EIO, vec![]));
        far.write(&[7; 15]).await.unwrap(); // not even a number: nothing to answer
        far.write(&numbered(3, 4000, &[])).await.unwrap();
        assert_eq!(reply(&far).await, (3, -libc::ENOSYS, vec![]));
        for round in 0..3000u32 {
            let random: Vec<u8> = (0..handle.random_below(90))
                .map(|_| handle.random() as u8)
                .collect();
            let bytes = if round % 2 == 0 {
                request(round / 2 % 55, &random)
            } else {
                random
            };
            if !bytes.is_empty() {
                far.write(&bytes).await.unwrap();
            }
            while handle
                .timeout(MILLISECOND / 10, far.readable())
                .await
                .is_some()
            {
                reply(&far).await;
            }
        }
        far.write(&[]).await.unwrap();
        handle.timeout(10 * SECOND, served).await.unwrap();
        assert_eq!(Rc::strong_count(&volume), 1);
    });
}
