//! Layout notations: how many losses segments are to survive.
//!
//! **Invariants**: what is no notation, or cannot be made of the devices, gives nothing.

/// How many devices may be lost with every segment readable, by a layout on `devices` devices.
pub(crate) fn most_lost(notation: &str, devices: u16) -> Option<u16> {
    let text = notation.trim().to_ascii_lowercase();
    let (name, rest) = text.split_once(':').unwrap_or((&text, ""));
    let in_groups = |m: u16| rest.parse::<u16>().ok()?.checked_mul(m);
    match name {
        "jbod" | "raid0" => Some(0),
        "raid1" if rest.is_empty() => devices.checked_sub(1),
        "raid1" => rest.parse::<u16>().ok()?.checked_sub(1),
        "raid10" => Some(devices / 2),
        "raid5" => Some(1),
        "raid6" => Some(2),
        "raid7.3" => Some(3),
        "raid50" => in_groups(1),
        "raid60" => in_groups(2),
        "raid70" => in_groups(3),
        "grid" => rest.split_once('(')?.1.split('+').nth(1)?.parse().ok(),
        "draid" => Some(1),
        _ if name.starts_with("draid") => number(&name[5..]),
        _ => name.strip_prefix("ec")?.split_once('+')?.1.parse().ok(),
    }
}

fn number(digits: &str) -> Option<u16> {
    digits.parse().ok().filter(|k| (1..=256).contains(k))
}

#[cfg(test)]
mod tests {
    use super::most_lost;

    #[test]
    fn notations_give_what_may_be_lost() {
        for (notation, devices, most) in [
            ("raid0", 4, Some(0)),
            ("raid1", 3, Some(2)),
            ("raid1:3", 9, Some(2)),
            ("raid10", 8, Some(4)),
            ("raid6", 8, Some(2)),
            ("raid60:10", 100, Some(20)),
            ("ec8+3", 12, Some(3)),
            ("draid2:8d:41c:2s", 41, Some(2)),
            ("draid", 9, Some(1)),
            ("grid:41(8+2+2)", 41, Some(2)),
            ("ec8", 12, None),
            ("raid50:x", 12, None),
        ] {
            assert_eq!(most_lost(notation, devices), most, "{notation}");
        }
    }
}
