//! The independent verifier over what a seed left on its disks: what no reader of volumes sees (space that
//! leaked, parity that nobody needed yet, tables that contradict each other).
//!
//! Invariants: it shares no code with the engine; it only reads, and draws from no generator, so that a
//! history is the same with it and without.

use ashlar_verify::{Kind, Report, Severity, Source, Unreadable, verify};

use crate::disk::Image;
use crate::machine::Driver;

/// One seed in so many is verified, unless the options say otherwise.
const ONE_IN: u64 = 1;
/// One of so many of these also before each import.
const CRASHED_ONE_IN: u64 = 16;

impl Source for Image {
    fn size(&self) -> u64 {
        self.size_bytes()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), Unreadable> {
        self.copy_to(offset, out).ok_or(Unreadable)
    }
}

/// Whether a finding contradicts the promises, on an array with damage that nobody has repaired yet.
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
        // A superblock of another disk: an import, too, asks for one of the two to be taken away.
        Kind::IndexTwice => false,
        kind => kind.severity() >= Severity::Structure,
    }
}

impl Driver<'_> {
    /// Verifies an array that was exported last: what is durable of it.
    pub(crate) fn verify_exported(&self) {
        if self.chosen(1) {
            self.verify(true);
        }
    }

    /// Verifies what a crash or an outage left, in some seeds or if that is asked for: all that the newest
    /// root says must be there without the journal.
    pub(crate) fn verify_crashed(&self) {
        if self.world.config.verify_crashed || self.chosen(CRASHED_ONE_IN) {
            self.verify(false);
        }
    }

    /// Whether this seed is one in so many of those that are verified.
    fn chosen(&self, of: u64) -> bool {
        let one_in = self
            .world
            .config
            .verify
            .unwrap_or(ONE_IN)
            .saturating_mul(of);
        one_in > 0 && self.world.config.seed.is_multiple_of(one_in)
    }

    fn verify(&self, exported: bool) {
        let world = &self.world;
        if world.config.unchecked || !self.subject.knows_devices() || !world.promised() {
            return;
        }
        let budget = world.budget.borrow().clone();
        let removed = |d| budget.leaving.contains_key(&d) && world.arrays_on(d).is_empty();
        let here = |d| !budget.absent.contains(&d) && !removed(d) && !world.says_another(d);
        let present = world.disks.iter().filter(|d| here(d.index()));
        let images: Vec<Image> = present.map(|disk| disk.at_rest(exported)).collect();
        let sources: Vec<&dyn Source> = images.iter().map(|image| image as &dyn Source).collect();
        let report = verify(&sources);
        world.trace.mark(match (exported, report.clean) {
            (true, _) => "verified offline",
            (false, true) => "verified offline before an import",
            (false, false) => "verified offline after a crash",
        });
        let sound = world.mishaps.touched.borrow().is_empty();
        let scrubbed = exported && world.mishaps.scrubs.borrow().is_clean;
        if scrubbed {
            world.trace.mark("verified offline after a scrub");
        }
        if report.count(Severity::Damage) > 0 && !sound {
            world.trace.mark("verified offline, with damage");
        }
        if let Some(text) = verdict(&report, (sound, scrubbed), exported) {
            world.trace.line(|| report.to_string());
            world.fail(|| format!("the independent verifier: {text}"));
        }
    }
}

/// What is wrong with an array, if anything. On disks that never misbehaved nothing may be damaged either, nor where a
/// scrub has looked at everything; only the newest root may be on some devices yet when power goes.
fn verdict(report: &Report, (sound, scrubbed): (bool, bool), exported: bool) -> Option<String> {
    if exported && !report.clean {
        return Some("the newest root is not that of an export".to_string());
    }
    let counts = |kind: Kind| {
        if kind == Kind::RootCopy && !exported {
            false
        } else if sound {
            kind.severity() >= Severity::Damage
        } else {
            counts_with_damage(kind) || scrubbed && kind.severity() >= Severity::Damage
        }
    };
    let finding = report.findings.iter().find(|f| counts(f.kind))?;
    let kinds: Vec<String> = report
        .totals
        .iter()
        .filter(|(kind, _)| counts(**kind))
        .map(|(kind, times)| format!("{times} x {}", kind.name()))
        .collect();
    Some(format!("{finding} ({})", kinds.join(", ")))
}
