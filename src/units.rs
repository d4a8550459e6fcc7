//! Sizes, rates and times as people write and read them.
//!
//! **Invariants**: `K` and `KiB` are 1,024, `KB` is 1,000 as on a drive's label, and so on; what is printed
//! is in powers of two; a size that does not fit 64 bits is an
//! error, never wrapped; what is printed for people has at most four digits, and exact numbers are
//! printed only where the caller asks for them.

/// Reads `4096`, `64K`, `1.5G`, `2TiB` (powers of two), `7.68TB` (powers of ten).
///
/// # Errors
/// A sentence that says what a size looks like.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let bad =
        || format!("'{text}' is not a size; write for example 4096, 64K, 1.5G, 2TiB or 7.68TB");
    let trimmed = text.trim();
    let end = trimmed
        .find(|c: char| c != '.' && !c.is_ascii_digit())
        .unwrap_or(trimmed.len());
    let (number, suffix) = trimmed.split_at(end);
    let suffix = suffix.to_ascii_uppercase();
    let (letter, rest) = match suffix.as_bytes().first() {
        Some(b'K' | b'M' | b'G' | b'T' | b'P') => suffix.split_at(1),
        _ => ("", suffix.as_str()),
    };
    let power = "KMGTP".find(letter).map_or(0, |at| at + letter.len());
    let thousand = match (letter, rest) {
        (_, "") | ("", "B") => 1024u128,
        (l, "IB" | "I") if !l.is_empty() => 1024,
        (l, "B") if !l.is_empty() => 1000,
        _ => return Err(bad()),
    };
    let unit = thousand.pow(u32::try_from(power).map_err(|_| bad())?);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = |s: &str| s.len() <= 20 && s.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(fraction) || fraction.len() > 9 {
        return Err(bad());
    }
    let mut bytes = whole
        .parse::<u128>()
        .map_err(|_| bad())?
        .saturating_mul(unit);
    if !fraction.is_empty() {
        let scale = 10u128.pow(u32::try_from(fraction.len()).map_err(|_| bad())?);
        bytes += fraction.parse::<u128>().map_err(|_| bad())? * unit / scale;
    }
    u64::try_from(bytes).map_err(|_| format!("'{text}' is more than 16 EiB"))
}

/// As [`parse_size`], for what is laid out in blocks: a size in powers of ten is rounded up to 128 KiB, which every
/// block divides.
///
/// # Errors
/// As [`parse_size`].
pub(crate) fn parse_room(text: &str) -> Result<u64, String> {
    let bytes = parse_size(text)?;
    let upper = text.trim().to_ascii_uppercase();
    let decimal = ["KB", "MB", "GB", "TB", "PB"];
    if !decimal.iter().any(|unit| upper.ends_with(unit)) {
        return Ok(bytes);
    }
    bytes
        .checked_next_multiple_of(ashlar_engine::LARGEST_VOLUME_BLOCK)
        .ok_or_else(|| format!("'{text}' is more than 16 EiB"))
}

/// `1536` as `1.5K`, at most four digits.
pub(crate) fn size(bytes: u64) -> String {
    const SUFFIXES: [&str; 7] = ["B", "K", "M", "G", "T", "P", "E"];
    let mut power = 0;
    let mut unit = 1u64;
    while power + 1 < SUFFIXES.len() && bytes / unit >= 1024 {
        unit <<= 10;
        power += 1;
    }
    if power == 0 {
        return format!("{bytes}B");
    }
    let (whole, rest) = (bytes / unit, bytes % unit);
    let hundredths = u64::try_from(u128::from(rest) * 100 / u128::from(unit)).unwrap_or(0);
    let suffix = SUFFIXES[power];
    match whole {
        _ if rest == 0 => format!("{whole}{suffix}"),
        0..10 => format!("{whole}.{hundredths:02}{suffix}"),
        10..100 => format!("{whole}.{}{suffix}", hundredths / 10),
        _ => format!("{whole}{suffix}"),
    }
}

/// The bytes that somebody asked for: with a unit where that says it exactly.
pub(crate) fn as_given(bytes: u64) -> String {
    let short = size(bytes);
    if parse_size(&short) == Ok(bytes) {
        short
    } else {
        bytes.to_string()
    }
}

/// As [`size`], or the exact number.
pub(crate) fn size_or_exact(bytes: u64, exact: bool) -> String {
    if exact {
        bytes.to_string()
    } else {
        size(bytes)
    }
}

/// Bytes a second.
pub(crate) fn rate(bytes_per_second: u64) -> String {
    format!("{}/s", size(bytes_per_second))
}

/// `bytes` moved in `seconds`, as a rate; `-` if no time passed.
pub(crate) fn rate_over(bytes: u64, seconds: f64) -> String {
    if seconds <= 0.0 {
        return "-".to_string();
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "for people, four digits"
    )]
    let per_second = (bytes as f64 / seconds) as u64;
    rate(per_second)
}

/// Bytes a second that a device is taken to read and write beside its clients, where nothing was measured: a hard disk.
const DEVICE_RATE: u64 = 50_000_000;

/// How many seconds it takes to move so much, where so many devices share in it.
pub(crate) fn seconds_to_move(bytes: u64, devices: usize) -> u64 {
    bytes.div_ceil(DEVICE_RATE * devices.max(1) as u64)
}

/// So many seconds that something takes to move, and what that goes by.
pub(crate) fn moving_time(seconds: u64) -> String {
    let speed = DEVICE_RATE / 1_000_000;
    format!("about {} at {speed} MB/s a device", duration(seconds))
}

/// `95` as `1m35s`.
pub(crate) fn duration(seconds: u64) -> String {
    let (days, hours) = (seconds / 86_400, seconds / 3_600 % 24);
    let (minutes, rest) = (seconds / 60 % 60, seconds % 60);
    match seconds {
        0..60 => format!("{rest}s"),
        60..3_600 => format!("{minutes}m{rest:02}s"),
        3_600..86_400 => format!("{hours}h{minutes:02}m"),
        _ => format!("{days}d{hours:02}h"),
    }
}

/// A sentence of the engine for people: `4194304 bytes` as `4M`, `1 write(s)` as `1 write`. Where it counts bytes, large
/// numbers of it behind certain words are bytes too. Other numbers, names and paths stay as they are; so do the bytes of a
/// sentence where two that differ would look the same.
pub(crate) fn readable(text: &str) -> String {
    let (short, sizes) = rewritten(text, size);
    let mut known = std::collections::BTreeMap::new();
    let mut differ = sizes
        .iter()
        .filter(|bytes| **known.entry(size(**bytes)).or_insert(*bytes) != **bytes);
    match differ.next() {
        None => short,
        Some(_) => rewritten(text, |bytes| format!("{bytes} bytes")).0,
    }
}

/// A sentence with its bytes written so, and these bytes.
fn rewritten(text: &str, write: impl Fn(u64) -> String) -> (String, Vec<u64>) {
    let counts_bytes = text.contains(" bytes");
    let (mut out, mut sizes) = (Vec::new(), Vec::new());
    let mut words = text.split(' ').peekable();
    let (mut number, mut before) = (None, "");
    while let Some(word) = words.next() {
        let digits = word.len() - word.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (value, rest) = (word[..digits].parse::<u64>().ok(), &word[digits..]);
        let alone = rest.is_empty() || [";", ",", ":", ".", ")"].contains(&rest);
        match value.filter(|_| alone) {
            Some(count) => {
                number = Some(count);
                let many = count >= 1 << 10 && rest.is_empty();
                let unit = words.next_if(|next| many && is_bytes(next));
                let large = counts_bytes && count >= LARGE && BEFORE_BYTES.contains(&before);
                out.push(match unit {
                    Some(unit) => write(count) + &unit["bytes".len()..],
                    None if large => write(count) + rest,
                    None => word.to_string(),
                });
                if unit.is_some() || large {
                    sizes.push(count);
                }
            }
            None => out.push(match number.filter(|_| is_counted(word)) {
                Some(1) => word.replace("(s)", ""),
                Some(_) => word.replace("(s)", "s"),
                None => word.to_string(),
            }),
        }
        before = word;
    }
    (out.join(" "), sizes)
}

/// A number from here on, in a sentence about bytes, counts them behind one of these words.
const LARGE: u64 = 1 << 16;
const BEFORE_BYTES: [&str; 6] = ["from", "to", "had", "has", "uses", "promised"];

/// Whether a word is a noun such as `write(s)`, and no name or path.
fn is_counted(word: &str) -> bool {
    let noun = word.split_once("(s)");
    let letters = |c: char| c.is_ascii_lowercase();
    noun.is_some_and(|(noun, rest)| {
        !noun.is_empty() && noun.chars().all(letters) && !rest.contains('/')
    })
}

fn is_bytes(word: &str) -> bool {
    let rest = word.strip_prefix("bytes");
    rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_alphanumeric()))
}

/// `part` of `whole` in percent, 0 if there is no whole.
pub(crate) fn percent(part: u64, whole: u64) -> u64 {
    if whole == 0 {
        return 0;
    }
    u64::try_from(u128::from(part) * 100 / u128::from(whole)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn sizes_are_read_as_the_contract_says() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("64K", 65_536),
            ("64k", 65_536),
            ("1.5G", 1_610_612_736),
            ("2T", 2 << 40),
            ("1P", 1 << 50),
            ("16KiB", 16_384),
            ("16kib", 16_384),
            ("2TiB", 2 << 40),
            ("1GB", 1_000_000_000),
            ("7.68TB", 7_680_000_000_000),
            ("1kb", 1000),
            ("100B", 100),
        ] {
            assert_eq!(parse_size(text).unwrap(), bytes, "{text}");
        }
    }

    #[test]
    fn room_in_powers_of_ten_fits_every_block() {
        assert_eq!(parse_room("1GB").unwrap(), 7630 << 17);
        assert_eq!(parse_room("1000").unwrap(), 1000);
        assert_eq!(parse_room("1M").unwrap(), 1 << 20);
        assert!(parse_room("18446.744073709551PB").is_err());
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in [
            "", "K", "-1", "1X", "1..5G", "1.5.2G", "20000P", "4 K x", "1e9", "NaN", ".5G", "1BB",
            "1iB", "1GBi", "K1", "1 B",
        ] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_print_with_at_most_four_digits() {
        for (bytes, text) in [
            (0, "0B"),
            (1023, "1023B"),
            (1024, "1K"),
            (1536, "1.50K"),
            (10 << 20, "10M"),
            ((10 << 20) + (1 << 19), "10.5M"),
            ((999 << 30) + 7, "999G"),
            (u64::MAX, "15.9E"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }

    #[test]
    fn printed_sizes_read_back() {
        for bytes in [1u64, 1023, 4096, 65_536, 1 << 20, 3 << 30, 1 << 50] {
            assert_eq!(parse_size(&size(bytes)).unwrap(), bytes);
        }
    }

    #[test]
    fn sentences_have_units_and_plurals() {
        for (text, expected) in [
            (
                "a scrub has ended: 3221225472 bytes were verified, bad blocks found: 70000, repaired: 1",
                "a scrub has ended: 3G were verified, bad blocks found: 70000, repaired: 1",
            ),
            (
                "device 3 (/dev/sdc) has grown from 1073741824 to 2147483648 bytes, and all of it is used",
                "device 3 (/dev/sdc) has grown from 1G to 2G, and all of it is used",
            ),
            (
                "volumes may be promised 4194304 bytes, and have been promised 8388608; make one smaller",
                "volumes may be promised 4M, and have been promised 8M; make one smaller",
            ),
            (
                "volume 20240101 has 12582912 bytes now, it had 4194304",
                "volume 20240101 has 12M now, it had 4M",
            ),
            (
                "device 3 has shrunk: it has 7993589098496 bytes, and the array uses 7993589100000; lost",
                "device 3 has shrunk: it has 7993589098496 bytes, and the array uses 7993589100000 bytes; lost",
            ),
            (
                "2 block(s) of /srv/disk(s)/3.img",
                "2 blocks of /srv/disk(s)/3.img",
            ),
            ("it has 4096 bytes; more", "it has 4K; more"),
            ("longer than 32 bytes", "longer than 32 bytes"),
            ("1 write(s) are lost", "1 write are lost"),
            (
                "2 journal record(s) of writes, with at most 3 column(s) in it",
                "2 journal records of writes, with at most 3 columns in it",
            ),
            (
                "generation 1000000 counts 12 devices",
                "generation 1000000 counts 12 devices",
            ),
            ("", ""),
        ] {
            assert_eq!(readable(text), expected);
        }
    }

    #[test]
    fn durations_show_two_units() {
        for (seconds, text) in [
            (0, "0s"),
            (59, "59s"),
            (95, "1m35s"),
            (3_600, "1h00m"),
            (90_000, "1d01h"),
        ] {
            assert_eq!(duration(seconds), text);
        }
    }
}
