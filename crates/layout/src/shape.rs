//! From a layout and a number of devices to the code and the independent groups.
//!
//! **Invariants.** See the crate's documentation: `1 <= k`, `k + m <= 256`, the groups partition
//! the devices, are of equal size, and each is wide enough for the code and its share of the
//! spare space.

use crate::notation::{Layout, LayoutError, MAX_WIDTH};

/// What a layout becomes on a given number of devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shape {
    /// Data strips of a stripe, at least 1.
    pub k: u16,
    /// Parity strips of a stripe (copies beyond the first, for mirrors).
    pub m: u16,
    /// Device indexes of each independent group: segments never cross groups. One group of all
    /// devices for flat layouts, one group a device for `jbod`, one a pair for `raid10`.
    pub groups: Vec<Vec<u16>>,
    /// Spare space of the whole array, in devices.
    pub spare: u16,
}

impl Shape {
    /// Strips of a stripe: K + M.
    #[must_use]
    pub fn width(&self) -> u16 {
        self.k + self.m
    }

    /// Devices of the array.
    #[must_use]
    pub fn devices(&self) -> usize {
        self.groups.iter().map(Vec::len).sum()
    }

    /// The most devices that can be lost with every segment readable: M of each group.
    #[must_use]
    pub fn most_lost(&self) -> usize {
        usize::from(self.m) * self.groups.len()
    }

    /// The share of raw capacity that holds data, before metadata and cleaning reserve:
    /// K/(K+M) of what is not spare.
    #[must_use]
    pub fn efficiency(&self) -> f64 {
        let devices = self.devices() as f64;
        if devices == 0.0 {
            return 0.0;
        }
        f64::from(self.k) / f64::from(self.width()) * (devices - f64::from(self.spare)) / devices
    }
}

/// Turns a count into the type of device indexes.
///
/// # Errors
/// [`LayoutError::NoDevices`] for 0 and [`LayoutError::TooManyDevices`] beyond 65,535.
pub fn check_device_count(devices: u64) -> Result<u16, LayoutError> {
    match u16::try_from(devices) {
        Ok(0) => Err(LayoutError::NoDevices),
        Ok(devices) => Ok(devices),
        Err(_) => Err(LayoutError::TooManyDevices { devices }),
    }
}

impl Layout {
    /// The code and groups of this layout on `devices` devices, with the spare space that the
    /// notation names (none, except for `draid` and `grid`).
    ///
    /// # Errors
    /// [`LayoutError`] when the devices do not make up the layout.
    pub fn resolve(&self, devices: u16) -> Result<Shape, LayoutError> {
        self.resolve_with_spare(devices, 0)
    }

    /// As [`Layout::resolve`], with `spare` devices' worth of spare space (`create --spare`).
    ///
    /// # Errors
    /// [`LayoutError`] when the devices do not make up the layout, when spare space is of no use
    /// in it, or when the notation already names another amount.
    pub fn resolve_with_spare(&self, devices: u16, spare: u16) -> Result<Shape, LayoutError> {
        if devices == 0 {
            return Err(LayoutError::NoDevices);
        }
        let spare = self.spare_of(spare)?;
        match *self {
            Layout::Jbod => {
                self.refuse_spare(spare)?;
                Ok(Shape {
                    k: 1,
                    m: 0,
                    groups: (0..devices).map(|d| vec![d]).collect(),
                    spare,
                })
            }
            Layout::Raid0 => {
                self.refuse_spare(spare)?;
                self.widest(devices, 1, 0, spare, None)
            }
            Layout::Raid10 => {
                self.refuse_spare(spare)?;
                self.pairs(devices, spare)
            }
            Layout::Raid1 { copies: None } => self.mirror(devices, spare),
            Layout::Raid1 {
                copies: Some(copies),
            } => self.fixed(devices, 1, copies - 1, spare),
            Layout::Raid5 => self.widest(devices, 1, 1, spare, None),
            Layout::Raid6 => self.widest(devices, 1, 2, spare, None),
            Layout::Raid73 => self.widest(devices, 1, 3, spare, None),
            Layout::Ec { k, m } => self.fixed(devices, k, m, spare),
            Layout::Raid50 { groups } => self.widest(devices, groups, 1, spare, None),
            Layout::Raid60 { groups } => self.widest(devices, groups, 2, spare, None),
            Layout::Raid70 { groups } => self.widest(devices, groups, 3, spare, None),
            Layout::Draid { m, k, children, .. } => {
                self.named_count(children, devices)?;
                match k {
                    Some(k) => self.fixed(devices, k, m, spare),
                    None => self.widest(devices, 1, m, spare, Some(8)),
                }
            }
            Layout::Grid {
                devices: named,
                k,
                m,
                ..
            } => {
                self.named_count(Some(named), devices)?;
                self.fixed(devices, k, m, spare)
            }
        }
    }

    /// The number of devices the notation itself names, for `draid` and `grid`.
    #[must_use]
    pub fn named_devices(&self) -> Option<u16> {
        match *self {
            Layout::Draid { children, .. } => children,
            Layout::Grid { devices, .. } => Some(devices),
            _ => None,
        }
    }

    /// Devices' worth of spare space that the notation itself names; 0: none.
    #[must_use]
    pub fn named_spare(&self) -> u16 {
        match *self {
            Layout::Draid { spare, .. } | Layout::Grid { spare, .. } => spare,
            _ => 0,
        }
    }

    fn spare_of(&self, asked: u16) -> Result<u16, LayoutError> {
        let named = self.named_spare();
        if asked != 0 && named != 0 && asked != named {
            return Err(LayoutError::SpareTwice {
                layout: *self,
                named,
                spare: asked,
            });
        }
        Ok(named.max(asked))
    }

    fn refuse_spare(&self, spare: u16) -> Result<(), LayoutError> {
        if spare > 0 {
            return Err(LayoutError::NoSpare { layout: *self });
        }
        Ok(())
    }

    fn named_count(&self, named: Option<u16>, devices: u16) -> Result<(), LayoutError> {
        match named {
            Some(named) if named != devices => Err(LayoutError::OtherCount {
                layout: *self,
                named,
                devices,
            }),
            _ => Ok(()),
        }
    }

    /// Mirrored pairs.
    fn pairs(&self, devices: u16, spare: u16) -> Result<Shape, LayoutError> {
        self.at_least(2, devices)?;
        if devices % 2 == 1 {
            return Err(LayoutError::Odd { devices });
        }
        Ok(Shape {
            k: 1,
            m: 1,
            groups: cut(devices, devices / 2),
            spare,
        })
    }

    /// A copy on every device that is not spare.
    fn mirror(&self, devices: u16, spare: u16) -> Result<Shape, LayoutError> {
        if devices > MAX_WIDTH {
            return Err(LayoutError::MirrorTooWide { devices });
        }
        self.at_least(2 + u32::from(spare), devices)?;
        Ok(Shape {
            k: 1,
            m: devices - 1 - spare,
            groups: cut(devices, 1),
            spare,
        })
    }

    fn at_least(&self, needed: u32, devices: u16) -> Result<(), LayoutError> {
        if u32::from(devices) < needed {
            return Err(LayoutError::TooFew {
                layout: *self,
                needed,
                devices,
            });
        }
        Ok(())
    }

    /// K given: one group, K + M + spare devices or more.
    fn fixed(&self, devices: u16, k: u16, m: u16, spare: u16) -> Result<Shape, LayoutError> {
        if k == 0 || u32::from(k) + u32::from(m) > u32::from(MAX_WIDTH) {
            return Err(LayoutError::TooWide { k, m });
        }
        let needed = u32::from(k) + u32::from(m) + u32::from(spare);
        self.at_least(needed, devices)?;
        if m == 0 {
            self.refuse_spare(spare)?;
        }
        Ok(Shape {
            k,
            m,
            groups: cut(devices, 1),
            spare,
        })
    }

    /// K not given: in each of `groups` equal groups the widest the devices allow.
    fn widest(
        &self,
        devices: u16,
        groups: u16,
        m: u16,
        spare: u16,
        limit: Option<u16>,
    ) -> Result<Shape, LayoutError> {
        let layout = *self;
        if groups == 0 {
            return Err(LayoutError::Groups);
        }
        if m >= MAX_WIDTH {
            return Err(LayoutError::TooWide { k: 1, m });
        }
        if !spare.is_multiple_of(groups) {
            return Err(LayoutError::UnevenSpare {
                layout,
                groups,
                spare,
            });
        }
        let spare_each = spare / groups;
        let needed = (1 + u32::from(m) + u32::from(spare_each)) * u32::from(groups);
        self.at_least(needed, devices)?;
        if !devices.is_multiple_of(groups) {
            return Err(LayoutError::Uneven {
                layout,
                groups,
                devices,
            });
        }
        let k = (devices / groups - spare_each).min(MAX_WIDTH) - m;
        let k = limit.map_or(k, |limit| k.min(limit));
        Ok(Shape {
            k,
            m,
            groups: cut(devices, groups),
            spare,
        })
    }
}

/// The devices `0..devices` cut into `groups` runs of equal length (`groups` divides `devices`).
fn cut(devices: u16, groups: u16) -> Vec<Vec<u16>> {
    let each = usize::from((devices / groups.max(1)).max(1));
    let all: Vec<u16> = (0..devices).collect();
    all.chunks(each).map(<[u16]>::to_vec).collect()
}
