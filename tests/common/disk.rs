//! A small NBD client for tests: one connection, many requests in flight, blocking calls.
//!
//! **Invariants**: every call returns only when the server answered all of it or the connection
//! ended; errors are values, so that tests can expect them.

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;

use ashlar_rt::{Buf, Permits, Rt};
use ashlar_serve::nbd::NbdClient;

/// A connection to a volume.
#[derive(Debug)]
pub struct Disk {
    rt: Rt,
    client: NbdClient,
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.rt.shutdown(); // which closes the connection
    }
}

impl Disk {
    /// Connects to `export`; waits a little for the server.
    pub fn connect(socket: &Path, export: &str) -> Disk {
        let rt = Rt::start().unwrap();
        let address = format!("nbd+unix:///{export}?socket={}", socket.display());
        for attempt in 0.. {
            let (handle, to) = (rt.clone(), address.clone());
            match rt.block_on(async move { NbdClient::connect(&handle, &to).await }) {
                Ok(client) => return Disk { rt, client },
                Err(error) if attempt >= 1_500 => panic!("{address}: {error}"),
                Err(_) => std::thread::sleep(std::time::Duration::from_millis(20)),
            }
        }
        unreachable!("the loop above returns or panics")
    }

    /// The volume's size.
    pub fn size(&self) -> u64 {
        self.client.info().size_bytes
    }

    /// Reads.
    pub fn read(&self, offset: u64, length: usize) -> Result<Vec<u8>, String> {
        let future = self.client.read(offset, length);
        self.rt
            .block_on(future)
            .map(|buf| buf.to_vec())
            .map_err(|e| e.to_string())
    }

    /// Writes.
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), String> {
        let future = self
            .client
            .write(offset, Buf::copy_of(data).freeze(), false);
        self.rt.block_on(future).map_err(|e| e.to_string())
    }

    /// Makes all that was acknowledged durable.
    pub fn flush(&self) -> Result<(), String> {
        let future = self.client.flush();
        self.rt.block_on(future).map_err(|e| e.to_string())
    }

    /// Trims.
    pub fn trim(&self, offset: u64, length: u64) -> Result<(), String> {
        let future = self.client.trim(offset, length, false);
        self.rt.block_on(future).map_err(|e| e.to_string())
    }

    /// Makes a range zero; without `may_trim` its space stays taken.
    pub fn write_zeroes(&self, offset: u64, length: u64, may_trim: bool) -> Result<(), String> {
        let future = self.client.write_zeroes(offset, length, false, may_trim);
        self.rt.block_on(future).map_err(|e| e.to_string())
    }

    /// Bytes of a range that are holes.
    pub fn holes(&self, offset: u64, length: u64) -> u64 {
        let future = self.client.block_status(offset, length);
        let extents = self.rt.block_on(future).unwrap();
        let holes = extents.iter().filter(|e| e.hole);
        holes.map(|e| e.length).sum()
    }

    /// Writes `content(offset, piece)` to the whole of `from..to`, `depth` pieces at once. Pieces
    /// that failed, by offset.
    pub fn write_range(
        &self,
        (from, to): (u64, u64),
        piece: usize,
        depth: usize,
        content: impl Fn(u64, &mut [u8]) + 'static,
    ) -> Vec<(u64, String)> {
        let content = Rc::new(content);
        self.each((from, to), piece, depth, move |client, at, length| {
            let mut buf = Buf::zeroed(length);
            content(at, &mut buf);
            let write = client.write(at, buf.freeze(), false);
            async move { write.await.map_err(|e| e.to_string()) }
        })
    }

    /// Reads `from..to` and compares it with `content`. Pieces that could not be read, by offset.
    ///
    /// # Panics
    /// If a byte differs: that is never allowed.
    pub fn compare_range(
        &self,
        (from, to): (u64, u64),
        piece: usize,
        depth: usize,
        content: impl Fn(u64, &mut [u8]) + 'static,
    ) -> Vec<(u64, String)> {
        let content = Rc::new(content);
        self.each((from, to), piece, depth, move |client, at, length| {
            let content = content.clone();
            let read = client.read(at, length);
            async move {
                let read = read.await.map_err(|e| e.to_string())?;
                let mut expected = vec![0; length];
                content(at, &mut expected);
                let differs = read.iter().zip(&expected).position(|(a, b)| a != b);
                assert_eq!(differs, None, "WRONG BYTES in the piece at {at}");
                Ok(())
            }
        })
    }

    fn each<F>(
        &self,
        (from, to): (u64, u64),
        piece: usize,
        depth: usize,
        action: impl Fn(&NbdClient, u64, usize) -> F + 'static,
    ) -> Vec<(u64, String)>
    where
        F: Future<Output = Result<(), String>> + 'static,
    {
        let (rt, client) = (self.rt.clone(), self.client.clone());
        self.rt.block_on(async move {
            let permits = Permits::new(depth);
            let failed: Rc<RefCell<Vec<(u64, String)>>> = Rc::default();
            for at in (from..to).step_by(piece) {
                let permit = permits.take(1).await;
                let length = usize::try_from((to - at).min(piece as u64)).unwrap();
                let (future, failed) = (action(&client, at, length), failed.clone());
                rt.spawn(async move {
                    if let Err(error) = future.await {
                        failed.borrow_mut().push((at, error));
                    }
                    drop(permit);
                });
            }
            permits.take(depth).await;
            let mut failed = failed.borrow_mut().clone();
            failed.sort();
            failed
        })
    }
}

/// Content that follows from seed and position: different at every block.
pub fn pattern(seed: u64) -> impl Fn(u64, &mut [u8]) + Clone + 'static {
    move |at, out| {
        assert_eq!(at % 4096, 0, "patterns are made of whole blocks");
        for (i, block) in (0..).zip(out.chunks_mut(4096)) {
            let number = at / 4096 + i;
            super::Random::new(seed ^ number.wrapping_mul(0x2545_F491_4F6C_DD1D)).fill(block);
        }
    }
}
