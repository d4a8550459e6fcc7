//! The report of a scrub in one line.
//!
//! **Invariants**: it says whether the scrub looked at everything, and if not, why.

use ashlar_engine::status::ScrubReport;

use crate::cli::since::utc;
use crate::units::{duration, size};
use crate::view::count;

/// A report in one line.
pub(crate) fn line(report: &ScrubReport) -> String {
    let when = match report.ended {
        Some(ended) => format!(
            "{} {}, after {}",
            report.state,
            utc(ended),
            duration(ended.saturating_sub(report.started))
        ),
        None => format!("{} since {}", report.state, utc(report.started)),
    };
    let only = match (report.check, report.whole) {
        (true, true) => " (check)",
        (true, false) => " (check of new data)",
        (false, false) => " (of new data)",
        (false, true) => "",
    };
    let found = match report.found {
        0 => "nothing bad".to_string(),
        found => format!(
            "{}, {} repaired",
            count(usize::try_from(found).unwrap_or(usize::MAX), "bad block"),
            report.repaired
        ),
    };
    let mut out = match report.ended {
        Some(_) => format!(
            "{when}{only}: {} verified, {found}",
            size(report.done_bytes)
        ),
        None => format!("{when}{only}: {found} so far"), // how much, its task says
    };
    if report.skipped_bytes > 0 {
        out += &format!(
            ", {} not verified: a device was away, or a summary is bad",
            size(report.skipped_bytes)
        );
    }
    if report.interrupted > 0 {
        out += &format!(
            ", went on after {}",
            count(report.interrupted as usize, "import")
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_says_when_how_much_and_what() {
        let mut report = ScrubReport {
            state: "done".into(),
            whole: true,
            started: 1_700_000_000,
            ended: Some(1_700_003_600),
            done_bytes: 3 << 30,
            ..ScrubReport::default()
        };
        let said = line(&report);
        assert_eq!(
            said,
            "done 2023-11-14 23:13:20Z, after 1h00m: 3G verified, nothing bad"
        );
        (report.found, report.repaired) = (3, 2);
        (report.skipped_bytes, report.interrupted) = (1 << 20, 2);
        let said = line(&report);
        assert!(
            said.contains("3 bad blocks, 2 repaired, 1M not verified"),
            "{said}"
        );
        (report.ended, report.state) = (None, "running".into());
        let said = line(&report);
        assert!(said.starts_with("running since 2023-11-14"), "{said}");
        assert!(
            said.contains("Z: 3 bad blocks, 2 repaired so far"),
            "{said}"
        );
        assert!(!said.contains("3G"), "the task says it: {said}");
        (report.check, report.whole) = (true, false);
        assert!(line(&report).contains(" (check of new data)"));
    }
}
