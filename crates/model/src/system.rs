//! What the calculator computes on: independent groups of devices, perhaps in several copies.
//!
//! Notations beyond those of [`Layout`]: `10x(8+2)` (ten groups of 8+2, the paper's `10x8:2`),
//! `3x(8+2),7x(17+3)` (a mixture), `80:20` (one code exactly as wide as the array), `2*raid60:10`
//! (every group mirrored by a group of the same kind), `raid6@24` (with its own device count).
//!
//! **Invariants.** A [`System`] has at least one group and one copy; each group has `k >= 1` and
//! `k + m <= devices`, `k + m <= 256`; all devices together are at most 65,535.

use std::fmt;

use ashlar_layout::{Layout, LayoutError};

/// Devices that lose data independently of those outside the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Group {
    /// Devices, at least k + m.
    pub devices: u16,
    /// Data strips of a stripe.
    pub k: u16,
    /// Parity strips of a stripe.
    pub m: u16,
}

impl Group {
    /// K + M.
    #[must_use]
    pub fn width(&self) -> u16 {
        self.k + self.m
    }

    /// Whether stripes are narrower than the group, so that each touches some devices only.
    #[must_use]
    pub fn declustered(&self) -> bool {
        self.devices > self.width()
    }
}

/// An array, or several that mirror each other group by group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct System {
    /// As written.
    pub label: String,
    /// Copies of every group; 1 unless mirrored. Data of a group are lost when all its copies are.
    pub copies: u16,
    /// The groups of one copy.
    pub groups: Vec<Group>,
    /// Spare space of one copy, in devices.
    pub spare: u16,
}

/// Why a system cannot be made of what was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SystemError {
    /// A layout error.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// Not a notation.
    #[error(
        "neither a layout nor groups; write for example raid60:10, ec80+20, 80:20, 10x(8+2), \
         3x(8+2),7x(17+3) or 2*raid60:10"
    )]
    Notation,
    /// `C*` out of range.
    #[error("C*LAYOUT takes 1 to 16 copies, for example 2*raid60:10")]
    Copies,
    /// The layout does not say how many devices there are.
    #[error("say how many devices: --devices P, or LAYOUT@P")]
    NoCount,
    /// The notation has one number of devices and another was asked for.
    #[error("written for {written} devices, {given} given; leave out --devices or correct one")]
    Conflict {
        /// Devices that the notation makes.
        written: u32,
        /// Devices asked for.
        given: u32,
    },
    /// Too many devices.
    #[error("{devices} devices; at most 65535")]
    TooMany {
        /// Devices.
        devices: u64,
    },
}

fn digits(text: &str) -> Option<u16> {
    (!text.is_empty() && text.len() <= 5 && text.bytes().all(|b| b.is_ascii_digit()))
        .then(|| text.parse().ok())
        .flatten()
}

/// `8+2` or `8:2`.
fn code(text: &str) -> Option<(u16, u16)> {
    let (k, m) = text.split_once(['+', ':'])?;
    Some((digits(k)?, digits(m)?))
}

/// `10x(8+2)`, `10x8:2`: count, K, M.
fn groups_of(text: &str) -> Option<(u16, u16, u16)> {
    let (count, rest) = text.split_once('x')?;
    let inner = match rest.strip_prefix('(') {
        Some(inner) => inner.strip_suffix(')')?,
        None => rest,
    };
    let (k, m) = code(inner)?;
    Some((digits(count)?, k, m))
}

fn checked(k: u16, m: u16) -> Result<Group, SystemError> {
    let layout = Layout::Ec { k, m };
    if k == 0 {
        return Err(SystemError::Notation);
    }
    if u32::from(k) + u32::from(m) > u32::from(ashlar_layout::MAX_WIDTH) {
        return Err(LayoutError::TooWide { k, m }.into());
    }
    let shape = layout.resolve(k + m)?;
    Ok(Group {
        devices: k + m,
        k: shape.k,
        m: shape.m,
    })
}

impl System {
    /// The system of a layout on `devices` devices with `spare` devices' worth of spare space.
    ///
    /// # Errors
    /// Those of [`Layout::resolve_with_spare`].
    pub fn of_layout(layout: Layout, devices: u16, spare: u16) -> Result<System, SystemError> {
        let shape = layout.resolve_with_spare(devices, spare)?;
        let groups = shape
            .groups
            .iter()
            .map(|group| Group {
                devices: group.len() as u16,
                k: shape.k,
                m: shape.m,
            })
            .collect();
        Ok(System {
            label: layout.to_string(),
            copies: 1,
            groups,
            spare: shape.spare,
        })
    }

    /// Reads a notation (see the module's documentation). `devices` is the number of devices of
    /// one copy where the notation does not say, and is checked where it does.
    ///
    /// # Errors
    /// [`SystemError`].
    pub fn parse(text: &str, devices: Option<u32>) -> Result<System, SystemError> {
        let label = text.trim().to_ascii_lowercase().replace(' ', "");
        let (copies, body) = match label.split_once('*') {
            Some((copies, body)) => {
                let copies = digits(copies).filter(|c| (1..=16).contains(c));
                (copies.ok_or(SystemError::Copies)?, body)
            }
            None => (1, label.as_str()),
        };
        let (body, written) = match body.split_once('@') {
            Some((body, count)) => (body, Some(digits(count).ok_or(SystemError::Notation)?)),
            None => (body, None),
        };
        let mut system = match Self::parse_groups(body)? {
            Some(groups) => {
                let made = groups.iter().map(|g| u64::from(g.devices)).sum::<u64>();
                let made = u32::try_from(made).unwrap_or(u32::MAX);
                for given in written.map(u32::from).into_iter().chain(devices) {
                    if given != made {
                        return Err(SystemError::Conflict {
                            written: made,
                            given,
                        });
                    }
                }
                System {
                    label: String::new(),
                    copies: 1,
                    groups,
                    spare: 0,
                }
            }
            None => {
                let layout: Layout = body.parse()?;
                let count = match (written.map(u32::from), devices, layout.named_devices()) {
                    (Some(written), Some(given), _) if written != given => {
                        return Err(SystemError::Conflict { written, given });
                    }
                    (Some(count), _, _) | (None, Some(count), _) => u64::from(count),
                    (None, None, Some(count)) => u64::from(count),
                    (None, None, None) => return Err(SystemError::NoCount),
                };
                System::of_layout(layout, ashlar_layout::check_device_count(count)?, 0)?
            }
        };
        system.copies = copies;
        system.label = label.clone();
        let total = u64::from(copies)
            * system
                .groups
                .iter()
                .map(|g| u64::from(g.devices))
                .sum::<u64>();
        if total > 65_535 {
            return Err(SystemError::TooMany { devices: total });
        }
        Ok(system)
    }

    fn parse_groups(body: &str) -> Result<Option<Vec<Group>>, SystemError> {
        if let Some((k, m)) = code(body) {
            return Ok(Some(vec![checked(k, m)?]));
        }
        if !body.starts_with(|c: char| c.is_ascii_digit()) {
            return Ok(None);
        }
        let mut groups = Vec::new();
        for part in body.split(',') {
            let (count, k, m) = groups_of(part).ok_or(SystemError::Notation)?;
            if count == 0 {
                return Err(SystemError::Notation);
            }
            groups.extend(std::iter::repeat_n(checked(k, m)?, usize::from(count)));
        }
        Ok(Some(groups))
    }

    /// Devices of all copies together.
    #[must_use]
    pub fn devices(&self) -> u32 {
        let one: u32 = self.groups.iter().map(|g| u32::from(g.devices)).sum();
        one * u32::from(self.copies)
    }

    /// Data capacity of all groups in devices, spare space not taken off.
    pub(crate) fn data_devices(&self) -> f64 {
        self.groups
            .iter()
            .map(|g| f64::from(g.devices) * f64::from(g.k) / f64::from(g.width()))
            .sum()
    }

    /// The share of raw capacity that holds data: K/(K+M) of what is not spare, over the copies.
    #[must_use]
    pub fn efficiency(&self) -> f64 {
        let one: f64 = self.groups.iter().map(|g| f64::from(g.devices)).sum();
        let unspared = (one - f64::from(self.spare)) / one;
        self.data_devices() * unspared / (one * f64::from(self.copies))
    }

    /// Whether any group is declustered.
    #[must_use]
    pub fn declustered(&self) -> bool {
        self.groups.iter().any(Group::declustered)
    }

    /// The code, where all groups have the same: (K, M).
    #[must_use]
    pub fn code(&self) -> Option<(u16, u16)> {
        let first = self.groups.first()?;
        let same = self.groups.iter().all(|g| (g.k, g.m) == (first.k, first.m));
        same.then_some((first.k, first.m))
    }
}

impl fmt::Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.label)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn notations() {
        let read = |text: &str, devices| System::parse(text, devices).unwrap();
        let ten = read("10X8:2", None);
        assert_eq!((ten.groups.len(), ten.devices()), (10, 100));
        assert_eq!(ten.groups, read("10 x (8+2)", None).groups);
        assert_eq!(ten.groups, read("raid60:10", Some(100)).groups);
        assert_eq!(ten.groups, read("raid60:10@100", None).groups);
        assert_eq!(
            read("80:20", Some(100)).groups,
            read("ec80+20", Some(100)).groups
        );
        let mixed = read("3x(8+2),7x(17+3)", None);
        assert_eq!(
            (mixed.groups.len(), mixed.devices(), mixed.code()),
            (10, 170, None)
        );
        let mirrored = read("3*raid70:5", Some(100));
        assert_eq!((mirrored.copies, mirrored.devices()), (3, 300));
        assert!((mirrored.efficiency() - 0.85 / 3.0).abs() < 1e-12);
        assert!(read("grid:41(8+2+2)", None).declustered());
    }

    #[test]
    fn nonsense() {
        let fails = |text: &str, devices| System::parse(text, devices).unwrap_err();
        assert_eq!(fails("raid6", None), SystemError::NoCount);
        assert_eq!(fails("0*raid6", Some(4)), SystemError::Copies);
        assert_eq!(
            fails("10x(8+2)", Some(99)),
            SystemError::Conflict {
                written: 100,
                given: 99
            }
        );
        assert_eq!(
            fails("raid6@10", Some(12)),
            SystemError::Conflict {
                written: 10,
                given: 12
            }
        );
        for text in [
            "10x",
            "10x()",
            "x(8+2)",
            "0x(8+2)",
            "10x(8+2),",
            "10x(0+2)",
            "12",
            "8:2:1",
        ] {
            assert!(System::parse(text, None).is_err(), "{text}");
        }
        assert!(matches!(
            fails("300:2", None),
            SystemError::Layout(LayoutError::TooWide { k: 300, m: 2 })
        ));
        assert!(matches!(
            fails("65535x(250+2)", None),
            SystemError::TooMany { .. }
        ));
        assert!(matches!(
            fails("raid6", Some(0)),
            SystemError::Layout(LayoutError::NoDevices)
        ));
        assert!(matches!(
            fails("raid6", Some(70_000)),
            SystemError::Layout(LayoutError::TooManyDevices { .. })
        ));
        assert!(System::parse("raid60:3", Some(100)).is_err());
    }
}
