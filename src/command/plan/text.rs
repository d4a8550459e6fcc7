//! The answers of `plan` in words: layouts side by side, and what an array may expect.
//!
//! **Invariants**: as in [`super`]: what is assumed stands under every answer.

use std::fmt::Write as _;

use ashlar_engine::status::ArrayStatus;
use ashlar_model::{Assumptions, Choice, Plan, Present, Prospect, Wish};

use super::args::Args;
use crate::units::size;
use crate::view::table::table;
use crate::view::{Style, wrap};

/// Years from their decimal logarithm: `4.20`, `13 thousand`, `1.2 million`, `10^21`.
fn years(log10: f64) -> String {
    let value = 10.0_f64.powf(log10);
    match log10 {
        x if x >= 9.0 => format!("10^{x:.0}"),
        x if x >= 6.0 => format!("{:.1} million", value / 1e6),
        x if x >= 3.0 => format!("{:.0} thousand", value / 1000.0),
        x if x >= 1.0 => format!("{value:.0}"),
        _ => format!("{value:.2}"),
    }
}

fn hours(hours: f64) -> String {
    match hours {
        h if h <= 0.0 => "-".to_string(),
        h if h < 1.0 => format!("{:.0} min", (h * 60.0).max(1.0)),
        h if h < 9.995 => format!("{h:.2} h"),
        h if h < 100.0 => format!("{h:.1} h"),
        h => format!("{:.1} d", h / 24.0),
    }
}

fn row(choice: &Choice) -> Vec<String> {
    let domain = match choice.survives_domain {
        Some(true) => ", any domain",
        _ => "",
    };
    vec![
        choice.layout.clone(),
        if choice.spare > 0 {
            choice.spare.to_string()
        } else {
            "-".to_string()
        },
        size(choice.usable_bytes as u64),
        format!("{:.1} %", choice.system.efficiency() * 100.0),
        format!("any {}{domain}", choice.survives),
        years(choice.life.mttdl_log10_years),
        format!("{:.1}", choice.life.nines()),
        if choice.survives > 0 {
            hours(choice.life.rebuild_hours)
        } else {
            "-".to_string()
        },
    ]
}

const TITLES: [&str; 8] = [
    "LAYOUT",
    "SPARE",
    "USABLE",
    "DATA",
    "SURVIVES",
    "YEARS TO LOSS",
    "NINES",
    "REBUILD",
];

/// Sentences in lines no wider than the terminal; tables are as they are.
pub(super) fn narrow(text: &str) -> String {
    let width = Style::detect(false).width;
    let mut out = String::new();
    for line in text.lines() {
        let sentence = line.trim_start();
        let indent = &line[..line.len() - sentence.len()];
        if sentence.contains("  ") {
            let _ = writeln!(out, "{line}");
            continue;
        }
        for (i, part) in wrap(sentence, width.saturating_sub(4)).iter().enumerate() {
            let more = if i > 0 { "  " } else { "" };
            let _ = writeln!(out, "{indent}{more}{part}");
        }
    }
    out
}

pub(super) fn plan_text(plan: &Plan, assumptions: &Assumptions, args: &Args) -> String {
    let mut out = String::new();
    let right = [1, 2, 3, 5, 6, 7];
    if plan.best.is_empty() {
        let _ = writeln!(out, "None of {} layouts meets all wishes.", plan.considered);
        for (wish, choice) in &plan.nearest {
            let has = match wish {
                Wish::Usable => format!("{} usable", size(choice.usable_bytes as u64)),
                Wish::Survive => format!("{} failures survived", choice.survives),
                Wish::Rebuild => format!("{} to full redundancy", hours(choice.life.rebuild_hours)),
                Wish::Nines => format!("{:.1} nines", choice.life.nines()),
                Wish::Domain => "the loss of a domain not survived".to_string(),
            };
            let _ = writeln!(
                out,
                "  All but --{} are met by {}: {has}.",
                wish_name(*wish),
                create(choice)
            );
        }
        if plan.nearest.is_empty() {
            out.push_str("  Several wishes together cannot be met; drop one and ask again.\n");
        }
    } else {
        out.push_str(&table(
            &TITLES,
            plan.best.iter().map(row).collect(),
            &right,
            false,
        ));
        out.push_str(&counts_on(assumptions));
        if args.layout.is_empty() {
            let _ = writeln!(out, "\nBest of {} layouts considered:", plan.considered);
            for choice in &plan.best {
                let reasons: Vec<&str> = choice.reasons.iter().map(|r| r.text()).collect();
                let _ = writeln!(out, "  {}: {}", create(choice), reasons.join("; "));
            }
        }
        for choice in plan.best.iter().filter(|c| !c.misses.is_empty()) {
            let misses: Vec<&str> = choice.misses.iter().map(|w| wish_name(*w)).collect();
            let _ = writeln!(out, "{} misses: {}", choice.layout, misses.join(", "));
        }
    }
    out.push_str("\nAssumed:\n");
    let _ = writeln!(
        out,
        "  Usable is what 'ashlar create -n' says: after parity, spare space, metadata and reserves."
    );
    if args.nines.is_none() && args.layout.is_empty() {
        let _ = writeln!(
            out,
            "  At least {} nines a year are wanted (--nines).",
            ashlar_model::DEFAULT_NINES
        );
    }
    state(&mut out, assumptions);
    out
}

fn create(choice: &Choice) -> String {
    if choice.spare > 0 {
        format!("--layout {} --spare {}", choice.layout, choice.spare)
    } else {
        format!("--layout {}", choice.layout)
    }
}

fn state(out: &mut String, assumptions: &Assumptions) {
    for line in assumptions.statements() {
        let _ = writeln!(out, "  {line}");
    }
    let _ = writeln!(
        out,
        "  A scrub every 30 days starts by itself and reads, verifies and repairs all that is stored ('ashlar set ARRAY \
         scrub.every=30d'); 'ashlar scrub ARRAY' has its reports. Replace a device with many bad blocks."
    );
    let _ = writeln!(
        out,
        "  A failed device is replaced by you ('ashlar replace ARRAY OLD NEW'), or at once by a hot spare ('ashlar add \
         ARRAY DEV --hot-spare')."
    );
}

/// Stands with the figures: how often all is to be scrubbed for them to be true.
fn counts_on(assumptions: &Assumptions) -> String {
    format!(
        "Years to data loss and nines count on a scrub every {:.0} days (the setting scrub.every, at first 30d); \
         --scrub DAYS says how often there is one.\n",
        assumptions.scrub_days
    )
}

pub(super) fn array_text(
    array: &ArrayStatus,
    present: &Present,
    prospect: &Prospect,
    assumptions: &Assumptions,
) -> String {
    let mut out = format!(
        "{}: {} ({}+{}), {} of {} devices serve\n",
        array.name,
        array.layout,
        prospect.k,
        prospect.m,
        present.devices_online,
        present.devices_total
    );
    match &prospect.outlook {
        None => out.push_str(
            "Some data is lost: more devices are out of use than parity covers. 'ashlar status' \
             says what to do, with -j it lists the lost data found so far.\n",
        ),
        Some(outlook) if prospect.missing > 0 => {
            let _ = writeln!(
                out,
                "Its worst data has lost {} of {} parities; full redundancy returns in {}{}.",
                prospect.missing,
                prospect.m,
                hours(outlook.hours_to_whole),
                if prospect.without_new_device {
                    ""
                } else {
                    ", once there is free space for it"
                }
            );
            let _ = writeln!(
                out,
                "Probability of losing data until then: {:.2e}.",
                outlook.loss_before_whole
            );
        }
        Some(_) => out.push_str("All its data has full redundancy.\n"),
    }
    let _ = writeln!(
        out,
        "From then on, with the devices it has: {} years to data loss, {:.1} nines a year, {} from \
         a failure to full redundancy.",
        years(prospect.whole.mttdl_log10_years),
        prospect.whole.nines(),
        hours(prospect.whole.rebuild_hours)
    );
    out.push_str(&counts_on(assumptions));
    let _ = writeln!(
        out,
        "Devices of a group that can still fail before stripes become narrower: {}.",
        prospect.spare_left
    );
    out.push_str("\nAssumed:\n");
    state(&mut out, assumptions);
    out
}

/// What a wish is called on the command line.
pub(super) fn wish_name(wish: Wish) -> &'static str {
    match wish {
        Wish::Usable => "capacity",
        Wish::Survive => "survive",
        Wish::Rebuild => "rebuild",
        Wish::Nines => "nines",
        Wish::Domain => "survive-domain",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!(years(0.5), "3.16");
        assert_eq!(years(2.0), "100");
        assert_eq!(years(4.2), "16 thousand");
        assert_eq!(years(6.1), "1.3 million");
        assert_eq!(years(30.2), "10^30");
        assert_eq!(hours(0.5), "30 min");
        assert_eq!(hours(1.25), "1.25 h");
        assert_eq!(hours(25.0), "25.0 h");
        assert_eq!(hours(240.0), "10.0 d");
    }
}
