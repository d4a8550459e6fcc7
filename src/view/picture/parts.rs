//! What the parts of a picture have in common: what is shown beside the status, and how lines are labelled.
//!
//! **Invariants**: a text takes as many lines as it needs, none longer than the terminal.

use std::fmt::Write;

use crate::api::{DeviceHardware, Hardware, Reserved, VolumeNote};
use crate::view::{Style, Tone, wrap};

/// Columns of the label at the left.
pub(super) const LABEL: usize = 11;

/// What the picture shows beside the status.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct More<'a> {
    /// Whether the engine's figures and every device are wanted.
    pub(crate) verbose: bool,
    /// What the reserved space is for.
    pub(crate) reserved: Option<&'a Reserved>,
    /// What is known of drives.
    pub(crate) hardware: &'a [DeviceHardware],
    /// What is known of volumes.
    pub(crate) volumes: &'a [VolumeNote],
}

impl More<'_> {
    /// The drive under a device.
    pub(super) fn drive(&self, array: &str, index: u16) -> Option<&Hardware> {
        let of = |d: &&DeviceHardware| d.array == array && d.index == index;
        self.hardware.iter().find(of).map(|d| &d.hardware)
    }

    /// What is known of a volume.
    pub(super) fn volume(&self, array: &str, volume: &str) -> Option<&VolumeNote> {
        let of = |n: &&VolumeNote| n.array == array && n.volume == volume;
        self.volumes.iter().find(of)
    }
}

/// `text` beside its label, in as many lines as it needs.
pub(crate) fn labelled(title: &str, text: &str, style: Style, tone: Option<Tone>) -> String {
    let mut out = String::new();
    for (i, line) in wrap(text, style.width.saturating_sub(LABEL))
        .iter()
        .enumerate()
    {
        let title = label(if i == 0 { title } else { "" });
        let line = tone.map_or_else(|| line.clone(), |tone| style.paint(tone, line));
        let _ = writeln!(out, "{title}{line}");
    }
    out
}

pub(super) fn label(text: &str) -> String {
    format!("  {text:<w$}", w = LABEL - 2)
}
