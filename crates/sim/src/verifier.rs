//! The independent verifier over what a seed left on its disks: what no reader of volumes sees (space that
//! leaked, parity that nobody needed yet, tables that contradict each other).
//!
//! Invariants: it shares no code with the engine; it only reads, and draws from no generator, so that a
//! history is the same with it and without.

use ashlar_verify::{Kind, Report, Severity, Source, Unreadable, verify};

use crate::config::Mode;
use crate::disk::Image;
use crate::driver::Driver;

/// One seed in so many is verified, unless the options say otherwise.
const ONE_IN: u64 = 1;

impl Source for Image {
    fn size(&self) -> u64 {
        self.size_bytes()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), Unreadable> {
        self.copy_to(offset, out).ok_or(Unreadable)
    }
}

/// Whether a finding contradicts the promises, on an array with damage that nobody has healed yet.
fn counts_with_damage(kind: Kind) -> bool {
    match kind {
        // What rests on a page, header or summary that a device lost or kept from before.
        Kind::ColumnTwice
        | Kind::ShapeDiffers
        | Kind::SlotTwice
        | Kind::SlotOfNobody
        | Kind::ParityWrong
        | Kind::OwnerParity
        | Kind::OwnersDiffer => false,
        kind => kind.severity() >= Severity::Structure,
    }
}

impl Driver<'_> {
    /// Verifies an array that was exported last.
    pub(crate) fn verify_exported(&self) {
        let world = &self.world;
        let config = &world.config;
        let chosen = config
            .seed
            .is_multiple_of(config.verify.unwrap_or(ONE_IN).max(1));
        if !chosen || config.unchecked || !self.subject.knows_devices() || !world.promised() {
            return;
        }
        let absent = world.budget.borrow().absent.clone();
        let images: Vec<Image> = world
            .disks
            .iter()
            .filter(|disk| !absent.contains(&disk.index()))
            .map(|disk| disk.at_rest())
            .collect();
        let sources: Vec<&dyn Source> = images.iter().map(|image| image as &dyn Source).collect();
        let report = verify(&sources);
        world.trace.mark("verified offline");
        let sound = world.touched.borrow().is_empty();
        if report.count(Severity::Damage) > 0 && !sound {
            world.trace.mark("verified offline, with damage");
        }
        if let Some(text) = verdict(&report, sound, config.mode) {
            world.trace.line(|| report.to_string());
            world.fail(|| format!("the independent verifier: {text}"));
        }
    }
}

/// What is wrong with an exported array, if anything. On disks that never misbehaved nothing may be.
fn verdict(report: &Report, sound: bool, mode: Mode) -> Option<String> {
    if !report.clean {
        return Some("the newest root is not that of an export".to_string());
    }
    let counts = |kind: Kind| {
        if sound {
            kind.severity() >= Severity::Damage
        } else {
            mode != Mode::Beyond && counts_with_damage(kind)
        }
    };
    let finding = report.findings.iter().find(|f| counts(f.kind))?;
    let kinds: Vec<String> = report
        .totals
        .iter()
        .filter(|(kind, _)| counts(**kind))
        .map(|(kind, times)| format!("{times} x {}", kind.name()))
        .collect();
    Some(format!("{} ({})", finding, kinds.join(", ")))
}
