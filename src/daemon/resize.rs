//! Gives a volume another size.
//!
//! **Invariants**: the size of a volume that is attached stays as it is, since clients learn it when they attach; a
//! volume is made smaller only for who says so twice.

use serde_json::{Value, json};

use crate::api::VolumeResize;
use crate::daemon::host::{Host, failure_of, reply};
use crate::daemon::volumes::no_volume;
use crate::failure::Failure;
use crate::units::{as_given, size};

impl Host {
    /// Makes a volume larger or smaller.
    ///
    /// # Errors
    /// What stands against it; the volume is as it was then.
    pub(crate) async fn resize_volume(&self, asked: &VolumeResize) -> Result<Value, Failure> {
        let VolumeResize { array, volume, .. } = asked;
        let member = self.member(array)?;
        let there = member.array.volume(volume);
        let there = there.ok_or_else(|| no_volume(array, volume))?;
        let info = there.info();
        if member.read_only {
            return Err(failure_of(ashlar_engine::Error::ReadOnly));
        }
        let detached = self.check_detached(&member, array, volume, "resize");
        detached.await?;
        let new = asked.size_bytes;
        check(asked, info.size_bytes, u64::from(info.block_bytes))?;
        let resized = member.array.volume_resize(volume, new).await;
        resized.map_err(failure_of)?;
        reply(&json!({
            "array": array, "volume": volume, "size_bytes": new, "was_bytes": info.size_bytes,
        }))
    }
}

/// Whether a volume of `old` bytes, in blocks of `unit`, may have the size that is asked for.
fn check(asked: &VolumeResize, old: u64, unit: u64) -> Result<(), Failure> {
    let new = asked.size_bytes;
    if new == 0 || !new.is_multiple_of(unit) {
        return Err(Failure::invalid(format!(
            "{}: give a multiple of the volume's block, {}, and not 0",
            as_given(new),
            size(unit)
        )));
    }
    let whole = format!("{}/{}", asked.array, asked.volume);
    if new < old && asked.confirm.as_deref() != Some(&whole) {
        return Err(Failure::refused(format!(
            "{whole} has {}: at {} the last {} of it are lost; make the file system on it smaller first; then \
             'ashlar volume resize {whole} {} --yes' (over HTTP: \"confirm\":\"{whole}\")",
            size(old),
            as_given(new),
            size(old - new),
            as_given(new)
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn a_smaller_volume_wants_the_second_word() {
        let asked = |size_bytes, confirm: Option<&str>| VolumeResize {
            array: "t".into(),
            volume: "v".into(),
            size_bytes,
            confirm: confirm.map(str::to_string),
        };
        let try_it = |new, confirm| check(&asked(new, confirm), 8 << 20, 8192);
        assert!(try_it(16 << 20, None).is_ok() && try_it(8 << 20, None).is_ok());
        let refused = try_it(4 << 20, None).unwrap_err().to_string();
        let what = "t/v has 8M: at 4M the last 4M of it are lost";
        assert!(refused.starts_with(what), "{refused}");
        assert!(
            refused.contains("'ashlar volume resize t/v 4M --yes'"),
            "{refused}"
        );
        assert!(try_it(4 << 20, Some("t")).is_err());
        assert!(try_it(4 << 20, Some("t/v")).is_ok());
        for new in [0, 4096, 12288] {
            let wrong = try_it(new, Some("t/v")).unwrap_err().to_string();
            assert!(
                wrong.contains("multiple of the volume's block, 8K"),
                "{wrong}"
            );
        }
    }
}
