//! Times on the command line: from where on events are wanted, and moments as people read them.
//!
//! **Invariants**: what is printed can be typed.

/// From where on events are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Since {
    /// After the event of this number.
    Id(u64),
    /// So many seconds ago.
    Ago(u64),
    /// From this second of the Unix epoch on.
    At(u64),
}

/// Reads `4711`, `30m`, `2h`, `7d`, `2026-01-31`, `2026-01-31 10:30`.
///
/// # Errors
/// A sentence that says what is understood.
pub(crate) fn parse_since(text: &str) -> Result<Since, String> {
    let wrong = || {
        format!(
            "'{text}' is neither a time (30m, 2h, 7d, 2026-01-31, '2026-01-31 10:30') nor an event's number"
        )
    };
    if let Ok(id) = text.parse() {
        return Ok(Since::Id(id));
    }
    if let Some((at, unit)) = text.char_indices().last()
        && let Ok(count) = text[..at].parse::<u64>()
        && let Some(seconds) = match unit {
            's' => Some(1),
            'm' => Some(60),
            'h' => Some(3_600),
            'd' => Some(86_400),
            'w' => Some(604_800),
            _ => None,
        }
    {
        return Ok(Since::Ago(count.saturating_mul(seconds)));
    }
    let text = text.trim_end_matches('Z');
    let (date, time) = text.split_once([' ', 'T']).unwrap_or((text, "00:00"));
    let numbers = |text: &str, by: char| -> Option<Vec<u64>> {
        text.split(by).map(|part| part.parse().ok()).collect()
    };
    let date = numbers(date, '-').ok_or_else(wrong)?;
    let time = numbers(time, ':').ok_or_else(wrong)?;
    let (&[year, month, day], &[hour, minute, ref second @ ..]) = (&date[..], &time[..]) else {
        return Err(wrong());
    };
    let second = second.first().copied().unwrap_or(0);
    let sane =
        (1970..10_000).contains(&year) && (1..=12).contains(&month) && (1..=31).contains(&day);
    if !sane || hour > 23 || minute > 59 || second > 59 || time.len() > 3 {
        return Err(wrong());
    }
    Ok(Since::At(
        days(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second,
    ))
}

/// Days from the Unix epoch to a date of the civil calendar: the reverse of what [`utc`] does.
fn days(year: u64, month: u64, day: u64) -> u64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, year_of_era) = (year / 400, year % 400);
    let from_march = (month + 9) % 12;
    let day_of_year = (153 * from_march + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    (era * 146_097 + day_of_era).saturating_sub(719_468)
}

/// Seconds since the Unix epoch as `2026-01-31 23:59:59Z`.
pub(crate) fn utc(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Days to a civil date, by Howard Hinnant's public description (eras of 400 years from March).
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 {
        from_march + 3
    } else {
        from_march - 9
    };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (rest / 3_600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_dates() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00Z"),
            (951_782_399, "2000-02-28 23:59:59Z"),
            (951_782_400, "2000-02-29 00:00:00Z"),
            (1_709_251_199, "2024-02-29 23:59:59Z"),
            (4_102_444_800, "2100-01-01 00:00:00Z"),
        ] {
            assert_eq!(utc(seconds), text);
            assert_eq!(parse_since(text), Ok(Since::At(seconds)));
        }
    }

    #[test]
    fn since_takes_numbers_spans_and_dates() {
        assert_eq!(parse_since("4711"), Ok(Since::Id(4711)));
        assert_eq!(parse_since("2h"), Ok(Since::Ago(7_200)));
        assert_eq!(parse_since("7d"), Ok(Since::Ago(604_800)));
        assert_eq!(parse_since("1970-01-02"), Ok(Since::At(86_400)));
        assert_eq!(parse_since("1970-01-01T01:30"), Ok(Since::At(5_400)));
        for bad in [
            "",
            "h",
            "yesterday",
            "2026-13-01",
            "2026-01",
            "1-1-1",
            "2026-01-01 25:00",
        ] {
            assert!(parse_since(bad).is_err(), "{bad}");
        }
    }
}
