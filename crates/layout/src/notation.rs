//! The notations of layouts: parsing and printing.
//!
//! **Invariants.** `layout.to_string().parse()` gives `layout` back. Parsing is case-insensitive
//! and accepts surrounding white space, nothing else is tolerated. A parsed `Ec`, `Draid` or
//! `Grid` has `k >= 1` and `k + m <= 256`; a parsed group count is at least 1.

use std::fmt;
use std::str::FromStr;

/// The most strips a stripe may have (K + M): the size of the field GF(2^8).
pub const MAX_WIDTH: u16 = 256;

/// A layout as an operator writes it. See the crate's documentation for the notations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Layout {
    /// `raid0`: stripes over all devices, no parity.
    Raid0,
    /// `raid1` (all devices mirror, `copies` is `None`) or `raid1:C` (C copies over all devices).
    Raid1 {
        /// Copies of every block, the first included, 1 to 256; `None`: as many as devices.
        copies: Option<u16>,
    },
    /// `raid10`: fixed pairs of mirrors.
    Raid10,
    /// `raid5`: one parity, as wide as the devices allow.
    Raid5,
    /// `raid6`: two parities, as wide as the devices allow.
    Raid6,
    /// `raid7.3`: three parities, as wide as the devices allow.
    Raid73,
    /// `ecK+M`: K data and M parity strips, over all devices.
    Ec {
        /// Data strips, 1 to 256.
        k: u16,
        /// Parity strips, 0 to 255.
        m: u16,
    },
    /// `raid50:G`: G independent groups of RAID 5.
    Raid50 {
        /// Groups, at least 1.
        groups: u16,
    },
    /// `raid60:G`: G independent groups of RAID 6.
    Raid60 {
        /// Groups, at least 1.
        groups: u16,
    },
    /// `raid70:G`: G independent groups of RAID 7.3.
    Raid70 {
        /// Groups, at least 1.
        groups: u16,
    },
    /// `jbod`: each segment on one device.
    Jbod,
    /// ZFS's `draidM:Kd:Pc:Ss`; all but `draid` may be left out (defaults 1, widest up to 8,
    /// all devices, 0).
    Draid {
        /// Parity strips, 1 to 255.
        m: u16,
        /// Data strips; `None`: 8, or fewer where the devices do not allow it.
        k: Option<u16>,
        /// Devices the array must have; `None`: any.
        children: Option<u16>,
        /// Spare space in devices.
        spare: u16,
    },
    /// GridRAID's `grid:P(N+K+A)`: P devices, N data, K parity, A spare.
    Grid {
        /// Devices the array must have.
        devices: u16,
        /// Data strips (GridRAID's N).
        k: u16,
        /// Parity strips (GridRAID's K).
        m: u16,
        /// Spare space in devices (GridRAID's A).
        spare: u16,
    },
}

/// Why a layout cannot be read or cannot be made of the devices given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// The text is no notation at all.
    #[error(
        "unknown layout; use raid0, raid1, raid1:C, raid10, raid5, raid6, raid7.3, ecK+M, \
         raid50:G, raid60:G, raid70:G, jbod, draidM:Kd:Pc:Ss or grid:P(N+K+A)"
    )]
    Unknown,
    /// `raid1:` is not followed by a number of copies in range.
    #[error("raid1:C takes 1 to 256 copies, for example raid1:3")]
    Copies,
    /// `ec` is not followed by K+M with numbers in range.
    #[error("ecK+M takes K of 1 to 256 and M of 0 to 255, for example ec8+2")]
    Ec,
    /// `raid50`, `raid60` or `raid70` lacks a group count in range.
    #[error(
        "raid50, raid60 and raid70 take a number of groups of 1 to 65535, for example raid60:10"
    )]
    Groups,
    /// `draid` is not followed by what ZFS allows.
    #[error(
        "draid is written draidM:Kd:Pc:Ss with M parities (1 to 255), K data, P devices and S \
         spares, for example draid2:8d:41c:2s"
    )]
    Draid,
    /// `grid:` is not followed by P(N+K+A).
    #[error(
        "grid is written grid:P(N+K+A) with P devices, N data, K parities and A spares, for \
         example grid:41(8+2+2)"
    )]
    Grid,
    /// K + M exceeds 256.
    #[error("{k}+{m} is {} strips; K+M may be at most 256", u32::from(*k) + u32::from(*m))]
    TooWide {
        /// Data strips asked for.
        k: u16,
        /// Parity strips asked for.
        m: u16,
    },
    /// No devices were given.
    #[error("an array needs at least one device")]
    NoDevices,
    /// More devices than the format can number.
    #[error("{devices} devices; an array may have at most 65535")]
    TooManyDevices {
        /// Devices given.
        devices: u64,
    },
    /// Fewer devices than the layout needs.
    #[error(
        "{layout} needs at least {needed} devices, {devices} given; add devices or choose a narrower layout"
    )]
    TooFew {
        /// The layout.
        layout: Layout,
        /// Devices it needs, spare space included.
        needed: u32,
        /// Devices given.
        devices: u16,
    },
    /// The layout names its number of devices and another number was given.
    #[error("{layout} is written for {named} devices, {devices} given")]
    OtherCount {
        /// The layout.
        layout: Layout,
        /// Devices named in the notation.
        named: u16,
        /// Devices given.
        devices: u16,
    },
    /// The devices cannot be cut into equal groups.
    #[error("{layout}: {devices} devices do not divide into {groups} equal groups")]
    Uneven {
        /// The layout.
        layout: Layout,
        /// Groups.
        groups: u16,
        /// Devices given.
        devices: u16,
    },
    /// `raid10` with an odd number of devices.
    #[error(
        "raid10 pairs its devices: {devices} is odd; raid1:2 spreads two copies over any number"
    )]
    Odd {
        /// Devices given.
        devices: u16,
    },
    /// All-device mirror of more than 256 devices.
    #[error("raid1 of {devices} devices would be {devices} copies; at most 256, use raid1:C")]
    MirrorTooWide {
        /// Devices given.
        devices: u16,
    },
    /// The layout has nothing to reconstruct from, or fixed partners, so spare space is of no use.
    #[error("{layout} cannot use spare space; leave out the spares or use hot spares")]
    NoSpare {
        /// The layout.
        layout: Layout,
    },
    /// Spare space that cannot be shared out evenly over the groups.
    #[error("{layout}: {spare} spares do not divide over {groups} groups")]
    UnevenSpare {
        /// The layout.
        layout: Layout,
        /// Groups.
        groups: u16,
        /// Spares asked for.
        spare: u16,
    },
    /// Spare space given twice, with different numbers.
    #[error("{layout} names {named} spares, {spare} asked for; give one of the two")]
    SpareTwice {
        /// The layout.
        layout: Layout,
        /// Spares in the notation.
        named: u16,
        /// Spares asked for.
        spare: u16,
    },
}

/// A decimal number of up to five digits, no sign, at most 65,535.
fn number(text: &str) -> Option<u16> {
    if text.is_empty() || text.len() > 5 || !text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

fn width(k: u16, m: u16) -> Result<(), LayoutError> {
    if u32::from(k) + u32::from(m) > u32::from(MAX_WIDTH) {
        return Err(LayoutError::TooWide { k, m });
    }
    Ok(())
}

fn parse_ec(rest: &str) -> Result<Layout, LayoutError> {
    let (k, m) = rest.split_once('+').ok_or(LayoutError::Ec)?;
    let k = number(k).filter(|&k| k >= 1).ok_or(LayoutError::Ec)?;
    let m = number(m).ok_or(LayoutError::Ec)?;
    width(k, m)?;
    Ok(Layout::Ec { k, m })
}

fn parse_groups(rest: &str) -> Result<u16, LayoutError> {
    let rest = rest.strip_prefix(':').ok_or(LayoutError::Groups)?;
    number(rest).filter(|&g| g >= 1).ok_or(LayoutError::Groups)
}

fn parse_draid(rest: &str) -> Result<Layout, LayoutError> {
    let mut parts = rest.split(':');
    let first = parts.next().unwrap_or("");
    let m = if first.is_empty() {
        1
    } else {
        number(first).ok_or(LayoutError::Draid)?
    };
    let (mut k, mut children, mut spare) = (None, None, None);
    for part in parts {
        let (digits, unit) = part
            .char_indices()
            .last()
            .map(|(at, unit)| (&part[..at], unit))
            .ok_or(LayoutError::Draid)?;
        let value = number(digits).ok_or(LayoutError::Draid)?;
        let field = match unit {
            'd' => &mut k,
            'c' => &mut children,
            's' => &mut spare,
            _ => return Err(LayoutError::Draid),
        };
        if field.replace(value).is_some() {
            return Err(LayoutError::Draid);
        }
    }
    if m == 0 || k == Some(0) || children == Some(0) {
        return Err(LayoutError::Draid);
    }
    width(k.unwrap_or(1), m)?;
    Ok(Layout::Draid {
        m,
        k,
        children,
        spare: spare.unwrap_or(0),
    })
}

fn parse_grid(rest: &str) -> Result<Layout, LayoutError> {
    let parsed = (|| {
        let (devices, code) = rest.strip_suffix(')')?.split_once('(')?;
        let mut code = code.split('+');
        let (k, m, spare) = (code.next()?, code.next()?, code.next()?);
        if code.next().is_some() {
            return None;
        }
        Some((number(devices)?, number(k)?, number(m)?, number(spare)?))
    })();
    let (devices, k, m, spare) = parsed.ok_or(LayoutError::Grid)?;
    if devices == 0 || k == 0 {
        return Err(LayoutError::Grid);
    }
    width(k, m)?;
    Ok(Layout::Grid {
        devices,
        k,
        m,
        spare,
    })
}

impl FromStr for Layout {
    type Err = LayoutError;

    fn from_str(text: &str) -> Result<Layout, LayoutError> {
        let text = text.trim().to_ascii_lowercase();
        match text.as_str() {
            "raid0" => return Ok(Layout::Raid0),
            "raid1" => return Ok(Layout::Raid1 { copies: None }),
            "raid10" => return Ok(Layout::Raid10),
            "raid5" => return Ok(Layout::Raid5),
            "raid6" => return Ok(Layout::Raid6),
            "raid7.3" => return Ok(Layout::Raid73),
            "jbod" => return Ok(Layout::Jbod),
            _ => {}
        }
        if let Some(rest) = text.strip_prefix("raid1:") {
            let copies = number(rest).filter(|c| (1..=MAX_WIDTH).contains(c));
            return Ok(Layout::Raid1 {
                copies: Some(copies.ok_or(LayoutError::Copies)?),
            });
        }
        if let Some(rest) = text.strip_prefix("raid50") {
            return Ok(Layout::Raid50 {
                groups: parse_groups(rest)?,
            });
        }
        if let Some(rest) = text.strip_prefix("raid60") {
            return Ok(Layout::Raid60 {
                groups: parse_groups(rest)?,
            });
        }
        if let Some(rest) = text.strip_prefix("raid70") {
            return Ok(Layout::Raid70 {
                groups: parse_groups(rest)?,
            });
        }
        if let Some(rest) = text.strip_prefix("draid") {
            return parse_draid(rest);
        }
        if let Some(rest) = text.strip_prefix("grid:") {
            return parse_grid(rest);
        }
        if let Some(rest) = text.strip_prefix("ec") {
            return parse_ec(rest);
        }
        Err(LayoutError::Unknown)
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Layout::Raid0 => f.write_str("raid0"),
            Layout::Raid1 { copies: None } => f.write_str("raid1"),
            Layout::Raid1 {
                copies: Some(copies),
            } => write!(f, "raid1:{copies}"),
            Layout::Raid10 => f.write_str("raid10"),
            Layout::Raid5 => f.write_str("raid5"),
            Layout::Raid6 => f.write_str("raid6"),
            Layout::Raid73 => f.write_str("raid7.3"),
            Layout::Ec { k, m } => write!(f, "ec{k}+{m}"),
            Layout::Raid50 { groups } => write!(f, "raid50:{groups}"),
            Layout::Raid60 { groups } => write!(f, "raid60:{groups}"),
            Layout::Raid70 { groups } => write!(f, "raid70:{groups}"),
            Layout::Jbod => f.write_str("jbod"),
            Layout::Draid {
                m,
                k,
                children,
                spare,
            } => {
                write!(f, "draid{m}")?;
                if let Some(k) = k {
                    write!(f, ":{k}d")?;
                }
                if let Some(children) = children {
                    write!(f, ":{children}c")?;
                }
                if spare > 0 {
                    write!(f, ":{spare}s")?;
                }
                Ok(())
            }
            Layout::Grid {
                devices,
                k,
                m,
                spare,
            } => write!(f, "grid:{devices}({k}+{m}+{spare})"),
        }
    }
}
