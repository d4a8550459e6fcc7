//! Layout notations, as far as the format needs them: K, which sizes the records of liveness, and how many losses
//! segments are to survive.
//!
//! **Invariants**: what is no notation, or cannot be made of the devices, gives nothing.

/// The K of a layout on `devices` devices with `spare` devices' worth of spare space.
pub(crate) fn data_strips(notation: &str, devices: u16, spare: u16) -> Option<u16> {
    let text = notation.trim().to_ascii_lowercase();
    let (name, rest) = text.split_once(':').unwrap_or((&text, ""));
    let widest = |groups: u16, m: u16, spare: u16| {
        let each = devices.checked_div(groups)?.checked_sub(spare / groups)?;
        each.min(256).checked_sub(m).filter(|k| *k > 0)
    };
    match name {
        "jbod" | "raid1" | "raid10" => Some(1),
        "raid0" => widest(1, 0, spare),
        "raid5" => widest(1, 1, spare),
        "raid6" => widest(1, 2, spare),
        "raid7.3" => widest(1, 3, spare),
        "raid50" => widest(rest.parse().ok()?, 1, spare),
        "raid60" => widest(rest.parse().ok()?, 2, spare),
        "raid70" => widest(rest.parse().ok()?, 3, spare),
        "grid" => {
            let (_, inner) = rest.split_once('(')?;
            number(inner.split('+').next()?)
        }
        _ if name.starts_with("draid") => {
            let m = match &name[5..] {
                "" => 1,
                m => number(m)?,
            };
            let field = |unit| rest.split(':').find_map(|part| part.strip_suffix(unit));
            if let Some(k) = field('d') {
                return number(k);
            }
            let spare = field('s').map_or(Some(spare), number)?.max(spare);
            widest(1, m, spare).map(|k| k.min(8))
        }
        _ => number(name.strip_prefix("ec")?.split('+').next()?),
    }
}

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
    use super::{data_strips, most_lost};

    #[test]
    fn notations_give_their_k() {
        for (notation, devices, spare, k) in [
            ("raid0", 4, 0, Some(4)),
            ("raid1", 2, 0, Some(1)),
            ("raid1:3", 9, 1, Some(1)),
            ("raid10", 8, 0, Some(1)),
            ("raid5", 5, 1, Some(3)),
            ("raid6", 300, 0, Some(254)),
            ("raid7.3", 8, 0, Some(5)),
            ("raid50:2", 10, 2, Some(3)),
            ("raid60:10", 100, 0, Some(8)),
            ("raid70:0", 100, 0, None),
            ("ec8+3", 14, 1, Some(8)),
            ("EC80+20", 100, 0, Some(80)),
            ("jbod", 3, 0, Some(1)),
            ("draid2:8d:41c:2s", 41, 0, Some(8)),
            ("draid", 4, 0, Some(3)),
            ("draid3:2s", 41, 2, Some(8)),
            ("grid:41(8+2+2)", 41, 2, Some(8)),
            ("grid:41", 41, 2, None),
            ("raid2", 41, 2, None),
            ("", 1, 0, None),
            ("ec0+1", 1, 0, None),
        ] {
            assert_eq!(data_strips(notation, devices, spare), k, "{notation}");
        }
    }

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
