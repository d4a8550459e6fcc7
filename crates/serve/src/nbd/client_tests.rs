//! The client against servers that lie.
#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use crate::nbd::negotiation::{Catalog, Negotiation, Next};
use crate::nbd::pipe::{Pipe, pipe};
use crate::{MemVolume, Volume};
use std::io::IoSlice;

/// Plays a server up to transmission.
async fn open(far: &Pipe) {
    let catalog = Catalog::default();
    catalog.publish("v", Rc::new(MemVolume::new(1 << 20)) as Rc<dyn Volume>);
    let mut negotiation = Negotiation::new();
    let (mut out, mut input) = (Negotiation::greeting(), Vec::new());
    loop {
        far.write_all(&mut [IoSlice::new(&out)]).await.unwrap();
        out.clear();
        let (used, next) = negotiation.step(&input, &catalog, &mut out);
        input.drain(..used);
        match next {
            Next::Open(_) => break,
            Next::More => {
                let mut more = [0; 512];
                let count = far.read(&mut more).await.unwrap();
                assert!(count > 0);
                input.extend_from_slice(&more[..count]);
            }
            _ => {}
        }
    }
    far.write_all(&mut [IoSlice::new(&out)]).await.unwrap();
}

/// A structured piece for request 1, the first of a connection.
fn chunk(flags: u16, kind: u16, cookie: u64, payload: &[u8]) -> Vec<u8> {
    let mut out = wire::STRUCTURED_REPLY_MAGIC.to_be_bytes().to_vec();
    out.extend_from_slice(&flags.to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&cookie.to_be_bytes());
    out.extend_from_slice(&u32::try_from(payload.len()).unwrap().to_be_bytes());
    out.extend_from_slice(payload);
    out
}

fn data(flags: u16, offset: u64, bytes: &[u8]) -> Vec<u8> {
    chunk(
        flags,
        piece::OFFSET_DATA,
        1,
        &[&offset.to_be_bytes()[..], bytes].concat(),
    )
}

fn hole(flags: u16, offset: u64, length: u32) -> Vec<u8> {
    let payload = [&offset.to_be_bytes()[..], &length.to_be_bytes()[..]].concat();
    chunk(flags, piece::OFFSET_HOLE, 1, &payload)
}

fn error(flags: u16, number: u32) -> Vec<u8> {
    chunk(
        flags,
        piece::ERROR,
        1,
        &[&number.to_be_bytes()[..], &[0, 0]].concat(),
    )
}

/// The client's view of a read of 8 bytes at 100 that is answered with `bytes`.
fn answer(bytes: Vec<u8>) -> Result<Vec<u8>, ClientError> {
    let rt = Rt::simulated(3);
    let handle = rt.clone();
    rt.block_on(async move {
        let (near, far) = pipe(1 << 16, 7);
        let server = handle.spawn(async move {
            open(&far).await;
            let mut request = [0; 28];
            let mut at = 0;
            while at < 28 {
                at += far.read(&mut request[at..]).await.unwrap();
            }
            let _ = far.write_all(&mut [IoSlice::new(&bytes)]).await;
            far
        });
        let client = NbdClient::over(&handle, Rc::new(near), "v").await.unwrap();
        let read = client.read(100, 8);
        drop(server.await); // and the server is gone
        let result = read.await.map(|buf| buf.to_vec());
        assert!(client.inner().pending.borrow().is_empty());
        result
    })
}

#[test]
fn answers_are_taken_or_the_server_is_left() {
    let done = piece::DONE;
    let left = Err(ClientError::Disconnected);
    let table: Vec<(Vec<u8>, Answer<Vec<u8>>)> = vec![
        (data(done, 100, b"abcdefgh"), Ok(b"abcdefgh".to_vec())),
        (
            [data(0, 104, b"efgh"), data(done, 100, b"abcd")].concat(),
            Ok(b"abcdefgh".to_vec()),
        ),
        (
            [hole(0, 102, 6), data(done, 100, b"ab")].concat(),
            Ok(b"ab\0\0\0\0\0\0".to_vec()),
        ),
        (
            [data(0, 100, b"abcdefgh"), chunk(done, piece::NONE, 1, &[])].concat(),
            Ok(b"abcdefgh".to_vec()),
        ),
        (error(done, 5), Err(ClientError::Remote(5))),
        (
            [error(0, 28), data(done, 100, b"abcdefgh")].concat(),
            Err(ClientError::Remote(28)),
        ),
        (data(done, 100, b"abcd"), left.clone()), // not all
        (
            [data(0, 100, b"abcde"), data(done, 104, b"efgh")].concat(),
            left.clone(),
        ), // overlap
        (
            [data(0, 100, b"ab"), hole(done, 101, 7)].concat(),
            left.clone(),
        ),
        (data(done, 99, b"abcdefgh"), left.clone()), // before the range
        (data(done, 101, b"abcdefgh"), left.clone()), // beyond it
        (data(done, u64::MAX, b"ab"), left.clone()),
        (hole(done, 100, u32::MAX), left.clone()),
        (hole(done, 100, 0), left.clone()),
        (error(done, 0), left.clone()),
        (chunk(done, piece::OFFSET_DATA, 1, &[1, 2, 3]), left.clone()),
        (chunk(done, piece::BLOCK_STATUS, 1, &[0; 12]), left.clone()),
        (chunk(done, 77, 1, &[]), left.clone()),
        (chunk(done, piece::NONE, 2, &[]), left.clone()), // nobody asked
        (vec![0; 16], left.clone()),
        (vec![], left.clone()),
    ];
    for (bytes, expected) in table {
        assert_eq!(answer(bytes.clone()), expected, "{bytes:?}");
    }
    // A simple reply to a read, where structured replies were agreed.
    let mut simple = wire::SIMPLE_REPLY_MAGIC.to_be_bytes().to_vec();
    simple.extend_from_slice(&[0, 0, 0, 0]);
    simple.extend_from_slice(&1u64.to_be_bytes());
    simple.extend_from_slice(b"abcdefgh");
    assert_eq!(answer(simple), left);
}

#[test]
fn random_answers_never_panic_the_client() {
    let mut state = 5u64;
    let mut next = move || {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        state >> 40
    };
    for _ in 0..500 {
        let mut bytes = Vec::new();
        for _ in 0..6 {
            let payload: Vec<u8> = (0..next() % 24).map(|_| (next() % 3 * 100) as u8).collect();
            let kind = [0, 1, 2, 5, 32769, 32770, 9][(next() % 7) as usize];
            bytes.extend(chunk(u16::from(next() % 3 == 0), kind, 1, &payload));
        }
        let _ = answer(bytes);
    }
}
