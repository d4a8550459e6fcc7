//! A volume of the engine as frontends see it.
//!
//! **Invariants**: with `cached` a write completes when it is in memory, without when it is
//! durable; what was asked to be durable always is.

use ashlar_engine::{Volume as EngineVolume, VolumeError as EngineError};
use ashlar_rt::{Buf, Slice};
use ashlar_serve::{Extent, Fut, Volume, VolumeError, VolumeInfo};

/// The adapter.
#[derive(Debug)]
pub(crate) struct Served {
    volume: EngineVolume,
    info: VolumeInfo,
}

impl Served {
    /// `volume`, with or without a volatile write cache.
    pub(crate) fn new(volume: EngineVolume, cached: bool, read_only: bool) -> Served {
        let engine = volume.info();
        let info = VolumeInfo {
            size_bytes: engine.size_bytes,
            block_bytes: engine.block_bytes,
            optimal_bytes: engine.optimal_bytes,
            read_only,
            write_cache: cached,
        };
        Served { volume, info }
    }

    fn durable(&self, asked: bool) -> bool {
        asked || !self.info.write_cache
    }
}

/// Most bytes of zeros written at a time.
const ZEROS: usize = 1 << 20;

/// Writes zeros as data, so that their space is taken: what is written there later finds room.
async fn write_zeros(
    volume: &EngineVolume,
    mut offset: u64,
    length: u64,
    durable: bool,
) -> Result<(), VolumeError> {
    let end = offset.checked_add(length).ok_or(VolumeError::OutOfRange)?;
    let zeros = Buf::zeroed(usize::try_from(length).unwrap_or(ZEROS).min(ZEROS)).freeze();
    while offset < end {
        let most = usize::try_from(end - offset).unwrap_or(ZEROS).min(ZEROS);
        let last = offset + most as u64 == end;
        // What the last one makes durable are all before it, too.
        let written = volume.write(offset, zeros.cut(0..most), durable && last);
        written.await.map_err(outward)?;
        offset += most as u64;
    }
    Ok(())
}

fn outward(error: EngineError) -> VolumeError {
    match error {
        EngineError::Lost => VolumeError::Lost,
        EngineError::NoSpace => VolumeError::NoSpace,
        EngineError::OutOfRange => VolumeError::OutOfRange,
        EngineError::ReadOnly => VolumeError::ReadOnly,
        EngineError::Closed => VolumeError::Closed,
    }
}

impl Volume for Served {
    fn info(&self) -> VolumeInfo {
        self.info
    }

    fn read(&self, offset: u64, length: usize) -> Fut<Result<Buf, VolumeError>> {
        let volume = self.volume.clone();
        Box::pin(async move { volume.read(offset, length).await.map_err(outward) })
    }

    fn write(&self, offset: u64, data: Slice, durable: bool) -> Fut<Result<(), VolumeError>> {
        let (volume, durable) = (self.volume.clone(), self.durable(durable));
        Box::pin(async move { volume.write(offset, data, durable).await.map_err(outward) })
    }

    fn flush(&self) -> Fut<Result<(), VolumeError>> {
        let volume = self.volume.clone();
        Box::pin(async move { volume.flush().await.map_err(outward) })
    }

    fn trim(&self, offset: u64, length: u64, durable: bool) -> Fut<Result<(), VolumeError>> {
        let (volume, durable) = (self.volume.clone(), self.durable(durable));
        Box::pin(async move { volume.trim(offset, length, durable).await.map_err(outward) })
    }

    fn write_zeroes(
        &self,
        offset: u64,
        length: u64,
        durable: bool,
        may_trim: bool,
    ) -> Fut<Result<(), VolumeError>> {
        let (volume, durable) = (self.volume.clone(), self.durable(durable));
        // The space of a thick volume is its own also where nothing is mapped.
        let keep = !may_trim && volume.info().thin;
        Box::pin(async move {
            if keep {
                return write_zeros(&volume, offset, length, durable).await;
            }
            volume
                .write_zeroes(offset, length, durable)
                .await
                .map_err(outward)
        })
    }

    fn block_status(
        &self,
        offset: u64,
        length: u64,
        most: usize,
    ) -> Fut<Result<Vec<Extent>, VolumeError>> {
        let volume = self.volume.clone();
        Box::pin(async move {
            let extents = volume.block_status(offset, length, most).await;
            let extents = extents.map_err(outward)?;
            Ok(extents
                .into_iter()
                .map(|e| Extent {
                    length: e.length,
                    hole: e.hole,
                })
                .collect())
        })
    }
}
