//! Values of flags, as they are typed.
//!
//! **Invariants**: what cannot be taken is said in a sentence that shows what can.

use std::path::PathBuf;

use crate::units::parse_room;

/// `--attach`'s value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Attach {
    /// `loop`.
    Loop,
    /// `nbd=ADDR`.
    Nbd(String),
    /// `fuse=DIR`.
    Fuse(PathBuf),
}

pub(super) fn parse_pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_string(), value.to_string())),
        _ => Err(format!("'{text}' is not NAME=VALUE")),
    }
}

pub(super) fn parse_volume(text: &str) -> Result<(String, Option<u64>), String> {
    match text.split_once('=') {
        Some((name, size)) => Ok((name.to_string(), Some(parse_room(size)?))),
        None => Ok((text.to_string(), None)),
    }
}

pub(super) fn parse_volume_name(text: &str) -> Result<(String, String), String> {
    match text.split_once('/') {
        Some((array, volume)) if !array.is_empty() && !volume.is_empty() => {
            Ok((array.to_string(), volume.to_string()))
        }
        _ => Err(format!("'{text}' is not ARRAY/VOL")),
    }
}

pub(super) fn parse_attach(text: &str) -> Result<Attach, String> {
    match text.split_once('=') {
        None if text == "loop" => Ok(Attach::Loop),
        Some(("nbd", address)) if !address.is_empty() => Ok(Attach::Nbd(address.to_string())),
        Some(("fuse", dir)) if !dir.is_empty() => Ok(Attach::Fuse(dir.into())),
        _ => Err(format!(
            "'{text}' is not loop, nbd=unix:PATH, nbd=HOST:PORT or fuse=DIR"
        )),
    }
}

pub(super) fn parse_seconds(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(seconds @ 1..=86_400) => Ok(seconds),
        _ => Err(format!(
            "'{text}' is not a number of seconds from 1 to 86400"
        )),
    }
}

pub(super) fn parse_mode(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(mode @ 0..=0o777) => Ok(mode),
        _ => Err(format!("'{text}' is not permissions such as 660")),
    }
}
