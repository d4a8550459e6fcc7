//! The demonstration's own NBD client: writes the content, reads it back and compares every byte.
//!
//! **Invariants**: a piece counts as written only when its write was acknowledged; a comparison is
//! of all bytes; after a crash a block that was not acknowledged is the old one or the new one.

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::rc::Rc;
use std::time::Instant;

use ashlar_rt::{Permits, Rt, Slice};
use ashlar_serve::nbd::NbdClient;

use crate::demo::content::{PIECE, fill};
use crate::failure::Failure;

/// Requests in flight.
const DEPTH: usize = 16;
/// What the crash step overwrites at once: several volume blocks.
const CRASH_PIECE: usize = 64 << 10;

/// How a transfer went.
#[derive(Clone, Copy, Debug)]
pub(super) struct Done {
    /// Bytes moved.
    pub(super) bytes: u64,
    /// Seconds it took.
    pub(super) seconds: f64,
}

/// A connection to the volume.
#[derive(Debug)]
pub(super) struct Traffic {
    rt: Rt,
    client: NbdClient,
}

fn failed(what: &str, at: u64, error: &dyn std::fmt::Display) -> Failure {
    Failure::broken(format!("{what} at byte {at}: {error}"))
}

impl Traffic {
    /// Connects to `export` at the socket.
    ///
    /// # Errors
    /// If nobody serves it.
    pub(super) fn connect(socket: &Path, export: &str) -> Result<Traffic, Failure> {
        let rt =
            Rt::start().map_err(|e| Failure::broken(format!("the client cannot start: {e}")))?;
        let address = format!("nbd+unix:///{export}?socket={}", socket.display());
        let handle = rt.clone();
        let client = rt
            .block_on(async move { NbdClient::connect(&handle, &address).await })
            .map_err(|e| Failure::broken(format!("{export} at {}: {e}", socket.display())))?;
        Ok(Traffic { rt, client })
    }

    /// Writes all pieces from the volume's beginning, and flushes.
    ///
    /// # Errors
    /// The first write that fails.
    pub(super) fn write_all(&self, pieces: &[Slice]) -> Result<Done, Failure> {
        let client = self.client.clone();
        self.each(pieces, move |client, at, piece| async move {
            client
                .write(at, piece, false)
                .await
                .map_err(|e| failed("writing", at, &e))
        })
        .and_then(|mut done| {
            let started = Instant::now();
            let flushed = self.rt.block_on(async move { client.flush().await });
            flushed.map_err(|e| failed("flushing", 0, &e))?;
            done.seconds += started.elapsed().as_secs_f64();
            Ok(done)
        })
    }

    /// Reads all pieces and compares them.
    ///
    /// # Errors
    /// The first that cannot be read or differs.
    pub(super) fn verify_all(&self, pieces: &[Slice]) -> Result<Done, Failure> {
        self.each(pieces, |client, at, piece| async move {
            let read = client
                .read(at, piece.len())
                .await
                .map_err(|e| failed("reading", at, &e))?;
            if read[..] == piece[..] {
                return Ok(());
            }
            let differs = read
                .iter()
                .zip(piece.iter())
                .position(|(a, b)| a != b)
                .unwrap_or(0);
            Err(Failure::broken(format!(
                "WRONG BYTES from {} on",
                at + differs as u64
            )))
        })
    }

    fn each<F>(
        &self,
        pieces: &[Slice],
        action: impl Fn(NbdClient, u64, Slice) -> F + Copy + 'static,
    ) -> Result<Done, Failure>
    where
        F: Future<Output = Result<(), Failure>> + 'static,
    {
        let started = Instant::now();
        let (rt, client, pieces) = (self.rt.clone(), self.client.clone(), pieces.to_vec());
        let bytes = pieces.iter().map(|piece| piece.len() as u64).sum();
        self.rt.block_on(async move {
            let permits = Permits::new(DEPTH);
            let first: Rc<RefCell<Option<Failure>>> = Rc::default();
            for (i, piece) in pieces.into_iter().enumerate() {
                let permit = permits.take(1).await;
                if first.borrow().is_some() {
                    break;
                }
                let (client, first) = (client.clone(), first.clone());
                rt.spawn(async move {
                    let outcome = action(client, (i * PIECE) as u64, piece).await;
                    if let Err(failure) = outcome {
                        first.borrow_mut().get_or_insert(failure);
                    }
                    drop(permit);
                });
            }
            permits.take(DEPTH).await;
            let failure = first.borrow_mut().take();
            failure.map_or(Ok(()), Err)
        })?;
        Ok(Done {
            bytes,
            seconds: started.elapsed().as_secs_f64(),
        })
    }

    /// Overwrites the content with new bytes, and calls `kill` once `enough` bytes were
    /// acknowledged, with writes in flight. Returns which pieces of [`CRASH_PIECE`] were
    /// acknowledged.
    ///
    /// # Errors
    /// If a write fails before that.
    pub(super) fn write_until_killed(
        &self,
        total: u64,
        enough: u64,
        kill: impl FnOnce() + 'static,
    ) -> Result<Crash, Failure> {
        let (rt, client) = (self.rt.clone(), self.client.clone());
        let count = usize::try_from(total).unwrap_or(usize::MAX) / CRASH_PIECE;
        self.rt.block_on(async move {
            let permits = Permits::new(DEPTH);
            let acknowledged = Rc::new(RefCell::new(vec![false; count]));
            let (sum, failures) = (Rc::new(Cell::new(0u64)), Rc::new(Cell::new(0u32)));
            let mut kill = Some(kill);
            let mut asked = 0;
            for i in 0..count {
                let permit = permits.take(1).await;
                if sum.get() >= enough
                    && let Some(kill) = kill.take()
                {
                    kill();
                }
                if failures.get() > 0 {
                    break;
                }
                asked = i + 1;
                let (client, acknowledged) = (client.clone(), acknowledged.clone());
                let (sum, failures) = (sum.clone(), failures.clone());
                rt.spawn(async move {
                    let at = (i * CRASH_PIECE) as u64;
                    match client.write(at, new_piece(i), false).await {
                        Ok(()) => {
                            acknowledged.borrow_mut()[i] = true;
                            sum.set(sum.get() + CRASH_PIECE as u64);
                        }
                        Err(_) => failures.set(failures.get() + 1),
                    }
                    drop(permit);
                });
            }
            permits.take(DEPTH).await;
            if kill.is_some() {
                return Err(Failure::broken(
                    "writing failed before the daemon was killed",
                ));
            }
            let acknowledged = acknowledged.borrow().clone();
            Ok(Crash {
                acknowledged,
                asked,
            })
        })
    }

    /// After a crash: what was acknowledged is there, what was not is old or new block by block,
    /// the rest is as it was. Returns the content as it is now.
    ///
    /// # Errors
    /// The first block that is neither.
    pub(super) fn verify_crash(
        &self,
        crash: &Crash,
        pieces: &[Slice],
    ) -> Result<(Vec<Slice>, Done), Failure> {
        let started = Instant::now();
        let (client, old) = (self.client.clone(), pieces.to_vec());
        let crash = crash.clone();
        let now = self.rt.block_on(async move {
            let mut now = Vec::new();
            for (i, piece) in old.iter().enumerate() {
                let at = (i * PIECE) as u64;
                let read = client
                    .read(at, PIECE)
                    .await
                    .map_err(|e| failed("reading", at, &e))?;
                crash.check(i, piece, &read)?;
                now.push(read.freeze());
            }
            Ok(now)
        })?;
        let bytes = (now.len() * PIECE) as u64;
        Ok((
            now,
            Done {
                bytes,
                seconds: started.elapsed().as_secs_f64(),
            },
        ))
    }
}

/// What was asked for and acknowledged before the daemon was killed.
#[derive(Clone, Debug)]
pub(super) struct Crash {
    acknowledged: Vec<bool>,
    asked: usize,
}

impl Crash {
    /// Bytes acknowledged.
    pub(super) fn acknowledged_bytes(&self) -> u64 {
        (self.acknowledged.iter().filter(|a| **a).count() * CRASH_PIECE) as u64
    }

    /// Bytes asked for and not acknowledged.
    pub(super) fn open_bytes(&self) -> u64 {
        (self.asked * CRASH_PIECE) as u64 - self.acknowledged_bytes()
    }

    fn check(&self, index: usize, old: &[u8], read: &[u8]) -> Result<(), Failure> {
        let per_piece = PIECE / CRASH_PIECE;
        for part in 0..per_piece {
            let (i, range) = (
                index * per_piece + part,
                part * CRASH_PIECE..(part + 1) * CRASH_PIECE,
            );
            let (old, read) = (&old[range.clone()], &read[range]);
            let at = i * CRASH_PIECE;
            let wrong = |what: &str| Err(Failure::broken(format!("{what} at byte {at}")));
            if i >= self.asked {
                if old != read {
                    return wrong("WRONG BYTES: nothing was written here, but it changed");
                }
                continue;
            }
            let new = new_piece(i);
            if self.acknowledged[i] {
                if new[..] != *read {
                    return wrong("LOST WRITE: it was acknowledged");
                }
                continue;
            }
            for ((old, new), read) in old
                .chunks(4096)
                .zip(new.chunks(4096))
                .zip(read.chunks(4096))
            {
                if read != old && read != new {
                    return wrong("WRONG BYTES: a block is neither old nor new");
                }
            }
        }
        Ok(())
    }
}

fn new_piece(index: usize) -> Slice {
    let mut piece = ashlar_rt::Buf::zeroed(CRASH_PIECE);
    fill(0xC0FF_EE00 + index as u64, &mut piece);
    piece.freeze()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn a_lost_a_torn_and_a_stray_write_are_seen() {
        let per_piece = PIECE / CRASH_PIECE;
        let old = vec![7u8; PIECE];
        let crash = Crash {
            acknowledged: [true, false].repeat(per_piece),
            asked: 2,
        };
        let new = |i: usize| new_piece(i).to_vec();
        let mut good = old.clone();
        good[..CRASH_PIECE].copy_from_slice(&new(0));
        crash.check(0, &old, &good).unwrap();
        good[CRASH_PIECE..CRASH_PIECE + 4096].copy_from_slice(&new(1)[..4096]);
        crash.check(0, &old, &good).unwrap();
        assert!(
            crash
                .check(0, &old, &old)
                .unwrap_err()
                .text
                .contains("LOST")
        );
        let mut torn = good.clone();
        torn[CRASH_PIECE + 100] ^= 1;
        assert!(
            crash
                .check(0, &old, &torn)
                .unwrap_err()
                .text
                .contains("neither")
        );
        let mut stray = good.clone();
        stray[3 * CRASH_PIECE] ^= 1;
        assert!(
            crash
                .check(0, &old, &stray)
                .unwrap_err()
                .text
                .contains("nothing was written")
        );
    }
}
