//! What a drive says of its own health, as `smartctl` reads it: SMART of SATA and SAS drives, the health log of NVMe.
//!
//! **Invariants**: nothing but its answer is gone by, and a value that is not in it is absent; every warning is of a
//! kind of [`crate::api::WARNINGS`], each at most once.

use serde_json::Value;

use crate::api::{Hardware, Health, Warning};

/// From how much of its rated life on a drive is called worn, in percent.
const WORN_PERCENT: u64 = 90;
/// Longest text of a drive that is taken, in characters.
const LONGEST: usize = 80;

/// What NVMe's critical warnings mean, by their bits.
const CRITICAL: [(&str, &str); 6] = [
    ("spare-low", "its spare blocks are nearly used up"),
    ("temperature", "its temperature is outside its limits"),
    ("unreliable", "it is unreliable because of errors"),
    ("read-only", "it has become read-only and refuses writes"),
    (
        "backup-failed",
        "its power-loss protection has failed: a power cut may lose its cache",
    ),
    (
        "memory-region",
        "its persistent memory region is unreliable",
    ),
];

/// Attributes of SATA drives that say how much of the rated life is left, as `smartctl` names them: numbers mean other
/// things from one vendor to the next.
const LIFE_LEFT: [&str; 8] = [
    "Wear_Leveling_Count",
    "Media_Wearout_Indicator",
    "SSD_Life_Left",
    "Percent_Lifetime_Remain",
    "Percent_Life_Remaining",
    "Remaining_Lifetime_Perc",
    "Drive_Life_Remaining%",
    "Lifetime_Remaining%",
];

/// What `smartctl --json` answered of a drive; nothing where it tells nothing of the drive's health.
pub(super) fn parse(answer: &[u8]) -> Option<Hardware> {
    let answer: Value = serde_json::from_slice(answer).ok()?;
    let passed = answer["smart_status"]["passed"].as_bool();
    let log = &answer["nvme_smart_health_information_log"];
    let attributes = answer["ata_smart_attributes"]["table"].as_array();
    let errors = &answer["scsi_error_counter_log"];
    if passed.is_none() && !log.is_object() && attributes.is_none() && !errors.is_object() {
        return None;
    }
    let attributes = attributes.map_or(&[][..], Vec::as_slice);
    let worn_percent = worn(&answer, attributes);
    let celsius = answer["temperature"]["current"].as_i64();
    // Drives that have no sensor say 0.
    let celsius = celsius
        .and_then(|c| i32::try_from(c).ok())
        .filter(|c| *c != 0);
    let mut warnings = Vec::new();
    if passed == Some(false) {
        warn(&mut warnings, "failing", "it is failing".to_string());
    }
    of_nvme(log, &mut warnings);
    of_sata(attributes, &mut warnings);
    of_sas(&answer, &mut warnings);
    too_hot(&answer["temperature"], celsius, &mut warnings);
    if let Some(percent) = worn_percent.filter(|p| *p >= WORN_PERCENT) {
        let text = format!("{percent} % of its rated life is used up");
        warn(&mut warnings, "worn", text);
    }
    let health = Health {
        passed,
        worn_percent,
        power_on_hours: answer["power_on_time"]["hours"].as_u64(),
        media_errors: media_errors(&answer, attributes),
        warnings,
    };
    let text = |name: &str| {
        let text = answer[name].as_str().unwrap_or_default().trim();
        (!text.is_empty()).then(|| text.chars().take(LONGEST).collect())
    };
    Some(Hardware {
        model: text("model_name").or_else(|| text("scsi_model_name")),
        serial: text("serial_number"),
        slot: None,
        celsius,
        health: Some(health),
    })
}

/// The first of a kind counts: several values may say the same.
fn warn(warnings: &mut Vec<Warning>, kind: &str, text: String) {
    if !warnings.iter().any(|w| w.kind == kind) {
        warnings.push(Warning {
            kind: kind.to_string(),
            text,
        });
    }
}

/// How much of its rated life is used up: the standards' value where there is one, else the vendor's.
fn worn(answer: &Value, attributes: &[Value]) -> Option<u64> {
    let log = &answer["nvme_smart_health_information_log"];
    let told = [
        &answer["endurance_used"]["current_percent"],
        &log["percentage_used"],
        &answer["scsi_percentage_used_endurance_indicator"],
    ];
    if let Some(percent) = told.iter().find_map(|value| value.as_u64()) {
        return Some(percent);
    }
    let pages = answer["ata_device_statistics"]["pages"].as_array();
    let rows = pages.into_iter().flatten();
    let mut rows = rows.filter_map(|page| page["table"].as_array()).flatten();
    let indicator = |row: &&Value| row["name"] == "Percentage Used Endurance Indicator";
    if let Some(percent) = rows.find(indicator).and_then(|row| row["value"].as_u64()) {
        return Some(percent);
    }
    let mut left = attributes.iter().filter(|attribute| {
        let name = attribute["name"].as_str().unwrap_or_default();
        LIFE_LEFT.contains(&name)
    });
    let left = left.find_map(|attribute| attribute["value"].as_u64());
    left.filter(|left| *left <= 100).map(|left| 100 - left)
}

/// The number that an attribute counts, whatever else the vendor has put into the same bytes.
fn raw(attribute: &Value) -> u64 {
    let text = attribute["raw"]["string"].as_str().unwrap_or_default();
    let digits = text.split(|c: char| !c.is_ascii_digit()).next();
    digits.and_then(|d| d.parse().ok()).unwrap_or(0)
}

fn by_number(attributes: &[Value], number: u64) -> u64 {
    let mut of = attributes.iter().filter(|a| a["id"] == number);
    of.next().map_or(0, raw)
}

fn of_nvme(log: &Value, warnings: &mut Vec<Warning>) {
    let critical = log["critical_warning"].as_u64().unwrap_or(0);
    for (bit, (kind, text)) in CRITICAL.iter().enumerate() {
        if critical & (1 << bit) != 0 {
            warn(warnings, kind, (*text).to_string());
        }
    }
    let errors = log["media_errors"].as_u64().unwrap_or(0);
    if errors > 0 {
        let text = format!("{errors} media errors: stored data could not be read back");
        warn(warnings, "media-errors", text);
    }
}

fn of_sata(attributes: &[Value], warnings: &mut Vec<Warning>) {
    let failing = attributes.iter().filter(|a| a["when_failed"] == "now");
    let names: Vec<String> = failing
        .filter_map(|a| a["name"].as_str())
        .map(|name| name.chars().take(LONGEST).collect())
        .collect();
    if !names.is_empty() {
        let text = format!("below the vendor's limit: {}", names.join(", "));
        warn(warnings, "below-limit", text);
    }
    let unreadable = by_number(attributes, 197).max(by_number(attributes, 198));
    if unreadable > 0 {
        let text = format!("{unreadable} unreadable sectors");
        warn(warnings, "unreadable-sectors", text);
    }
    let reallocated = by_number(attributes, 5);
    if reallocated > 0 {
        let text = format!("{reallocated} reallocated sectors");
        warn(warnings, "reallocated-sectors", text);
    }
}

fn of_sas(answer: &Value, warnings: &mut Vec<Warning>) {
    let errors = uncorrected(&answer["scsi_error_counter_log"]);
    if errors > 0 {
        let text = format!("{errors} uncorrected errors");
        warn(warnings, "media-errors", text);
    }
    let defects = answer["scsi_grown_defect_list"].as_u64().unwrap_or(0);
    if defects > 0 {
        let text = format!("{defects} bad blocks found since manufacture");
        warn(warnings, "reallocated-sectors", text);
    }
}

fn uncorrected(log: &Value) -> u64 {
    let of = |kind| log[kind]["total_uncorrected_errors"].as_u64().unwrap_or(0);
    ["read", "write", "verify"].into_iter().map(of).sum()
}

fn too_hot(temperature: &Value, celsius: Option<i32>, warnings: &mut Vec<Warning>) {
    let limits = ["op_limit_max", "drive_trip"];
    let mut limits = limits.iter().filter_map(|name| temperature[*name].as_i64());
    if let (Some(celsius), Some(limit)) = (celsius, limits.find(|limit| *limit > 0))
        && i64::from(celsius) >= limit
    {
        let text = format!("{celsius} C, and its limit is {limit} C");
        warn(warnings, "temperature", text);
    }
}

/// What it could not read or give back, whatever the drive calls that.
fn media_errors(answer: &Value, attributes: &[Value]) -> Option<u64> {
    let log = &answer["nvme_smart_health_information_log"];
    if log.is_object() {
        return log["media_errors"].as_u64();
    }
    let errors = &answer["scsi_error_counter_log"];
    if errors.is_object() {
        return Some(uncorrected(errors));
    }
    let known = attributes.iter().any(|a| a["id"] == 197 || a["id"] == 198);
    known.then(|| by_number(attributes, 197).max(by_number(attributes, 198)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::api::WARNINGS;

    fn drive(name: &str) -> Option<Hardware> {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/drives");
        parse(&std::fs::read(path.join(name)).unwrap())
    }

    fn kinds(drive: &Hardware) -> Vec<&str> {
        let health = drive.health.as_ref().unwrap();
        health.warnings.iter().map(|w| w.kind.as_str()).collect()
    }

    #[test]
    fn an_nvme_drive_that_is_well_and_one_that_is_worn() {
        let well = drive("nvme-well.json").unwrap();
        assert_eq!(
            well.words(),
            "SAMSUNG MZQL23T8HCLS-00A07, serial S64HNE0T500123"
        );
        assert_eq!(well.celsius, Some(35));
        let health = well.health.clone().unwrap();
        assert_eq!((health.passed, health.worn_percent), (Some(true), Some(3)));
        assert_eq!(health.power_on_hours, Some(32_798));
        assert_eq!(health.media_errors, Some(0));
        assert_eq!(health.words().unwrap(), "well");
        let worn = drive("nvme-worn.json").unwrap();
        let expected = ["failing", "spare-low", "unreliable", "media-errors", "worn"];
        assert_eq!(kinds(&worn), expected);
        let health = worn.health.clone().unwrap();
        assert_eq!(health.worn_percent, Some(104));
        assert_eq!(health.media_errors, Some(7));
        assert_eq!(health.urgent().count(), 4, "errors long ago are no call");
        assert!(
            worn.words_and_warnings()
                .contains("serial S64HNE0T500123; the drive reports: it is failing; its spare")
        );
    }

    #[test]
    fn sata_drives_that_fail_and_that_wear() {
        let failing = drive("sata-failing.json").unwrap();
        let expected = [
            "failing",
            "below-limit",
            "unreadable-sectors",
            "reallocated-sectors",
        ];
        assert_eq!(kinds(&failing), expected);
        let words = failing.health.clone().unwrap().words().unwrap();
        assert_eq!(
            words,
            "it is failing; below the vendor's limit: Reallocated_Sector_Ct; \
             8 unreadable sectors; 1975 reallocated sectors"
        );
        assert_eq!(failing.celsius, Some(27));
        let ssd = drive("sata-ssd.json").unwrap();
        assert_eq!(kinds(&ssd), [""; 0]);
        let health = ssd.health.unwrap();
        // Number 202 is another vendor's life time, and not this one's.
        assert_eq!(health.worn_percent, Some(9));
        assert_eq!(health.media_errors, None, "it counts none");
        // Where the drive has the standard's value too, that counts.
        let health = drive("sata-ssd-statistics.json").unwrap().health.unwrap();
        assert_eq!(health.worn_percent, Some(12));
    }

    #[test]
    fn sas_drives_that_are_hot_and_that_wear() {
        let hot = drive("sas-hot.json").unwrap();
        assert_eq!(
            hot.words(),
            "SEAGATE ST16000NM002G, serial ZL2ABCDE0000C123"
        );
        let expected = ["media-errors", "reallocated-sectors", "temperature"];
        assert_eq!(kinds(&hot), expected);
        let health = hot.health.unwrap();
        assert_eq!((health.media_errors, health.worn_percent), (Some(3), None));
        assert!(
            health
                .words()
                .unwrap()
                .ends_with("61 C, and its limit is 60 C")
        );
        let ssd = drive("sas-ssd.json").unwrap();
        assert_eq!(ssd.celsius, None, "0 is no temperature");
        assert_eq!(ssd.health.unwrap().worn_percent, Some(2));
    }

    #[test]
    fn what_is_no_drive_or_sleeps_tells_nothing() {
        assert!(drive("none.json").is_none());
        assert!(drive("standby.json").is_none());
        assert!(parse(b"Smartmontools is too old for --json").is_none());
        assert!(parse(b"{}").is_none() && parse(b"[1]").is_none() && parse(b"").is_none());
    }

    #[test]
    fn every_warning_is_of_a_kind_that_is_known() {
        let table = std::iter::once("failing").chain(CRITICAL.map(|(kind, _)| kind));
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/drives");
        let names = std::fs::read_dir(folder).unwrap().flatten();
        let names = names.map(|e| e.file_name().into_string().unwrap());
        let drives = names
            .filter(|n| n.ends_with(".json"))
            .filter_map(|n| drive(&n));
        let found = drives.flat_map(|d| d.health.unwrap().warnings);
        let found: Vec<String> = found.map(|w| w.kind).collect();
        assert!(found.len() > 8, "{found:?}");
        for kind in table.map(str::to_string).chain(found) {
            assert!(WARNINGS.iter().any(|(known, _)| *known == kind), "{kind}");
        }
        assert!(WARNINGS.is_sorted_by(|a, b| a.0 < b.0));
    }
}
