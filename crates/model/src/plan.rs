//! The advisor: which layout for these drives, and why; what an array in its present state may
//! expect.
//!
//! Candidates are all layouts an operator would consider on the given number of devices, evaluated
//! by [`mod@crate::life`]. Of those that meet every wish, the advisor shows one for each reason one
//! might have: most capacity, safest, quickest back at full redundancy, cheapest degraded reads.
//! Where nothing meets all wishes it says, for each wish, how far the others allow.
//!
//! **Invariants.** Every layout shown is one that `create` accepts for that number of devices;
//! results are in a fixed order for fixed input.

use ashlar_layout::{Layout, LayoutError};

use crate::assumptions::{Assumptions, LifeError};
use crate::life::{Life, Outlook, life, outlook};
use crate::system::{Group, System, SystemError};

/// Share of the capacity that metadata takes at the defaults (the bound for 8+2).
pub const METADATA_SHARE: f64 = 0.024;
/// Share of the capacity kept free for cleaning (`clean.reserve`, the default).
pub const CLEAN_RESERVE: f64 = 0.10;
/// Recommendations have at least this share of the most usable capacity that meets the wishes.
pub const LEAST_CAPACITY: f64 = 0.5;
/// Nines a year that the advisor asks for where the user does not.
pub const DEFAULT_NINES: f64 = 5.0;

/// What is wanted. `None` where it does not matter.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Wishes {
    /// Usable bytes, at least.
    pub usable_bytes: Option<f64>,
    /// Devices that may fail at once, whichever they are, at least.
    pub survive: Option<u16>,
    /// Hours from a failure to full redundancy, at most.
    pub rebuild_hours: Option<f64>,
    /// Nines of losing nothing within a year, at least.
    pub nines: Option<f64>,
    /// Whether the loss of a whole failure domain must be survived.
    pub survive_domain: bool,
}

/// One of the wishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wish {
    /// Usable capacity.
    Usable,
    /// Failures survived.
    Survive,
    /// Time to full redundancy.
    Rebuild,
    /// Nines a year.
    Nines,
    /// Loss of a failure domain.
    Domain,
}

/// Why a layout is recommended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// The most usable capacity of all that meet the wishes.
    MostCapacity,
    /// The least probability of loss of all within 10 % of the most capacity.
    SafestNearMostCapacity,
    /// The shortest time to full redundancy, with [`LEAST_CAPACITY`].
    QuickestRebuild,
    /// The fewest devices read for a block of a missing device, within 10 % of the most capacity.
    CheapestDegradedReads,
    /// The least probability of loss, with [`LEAST_CAPACITY`].
    Safest,
}

impl Reason {
    /// In words.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Reason::MostCapacity => "most capacity of all that meet the wishes",
            Reason::SafestNearMostCapacity => "safest within 10 % of the most capacity",
            Reason::QuickestRebuild => {
                "quickest back at full redundancy with at least half of the most capacity"
            }
            Reason::CheapestDegradedReads => {
                "fewest reads for a missing block within 10 % of the most capacity"
            }
            Reason::Safest => "safest with at least half of the most capacity",
        }
    }
}

/// A layout with what it gives.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// The layout as `create --layout` takes it.
    pub layout: String,
    /// `create --spare`.
    pub spare: u16,
    /// The groups.
    pub system: System,
    /// Bytes for data after parity, spare space, metadata and the reserve for cleaning.
    pub usable_bytes: f64,
    /// Devices that may fail at once, whichever they are.
    pub survives: u16,
    /// Whether the loss of a whole failure domain is survived; `None` without domains.
    pub survives_domain: Option<bool>,
    /// How long it lasts.
    pub life: Life,
    /// Wishes it does not meet.
    pub misses: Vec<Wish>,
    /// Why it is shown.
    pub reasons: Vec<Reason>,
}

/// The advisor cannot answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// A layout that cannot be made of the devices.
    #[error(transparent)]
    System(#[from] SystemError),
    /// An assumption out of range.
    #[error(transparent)]
    Life(#[from] LifeError),
    /// Mirrors of layouts are for the calculator only.
    #[error(
        "{copies} copies of a layout: `plan` compares layouts that `create` makes; leave out the copies"
    )]
    Copies {
        /// Copies asked for.
        copies: u16,
    },
    /// No array can be made of such devices.
    #[error("devices of this size are too small for this layout; use larger ones")]
    TooSmall,
    /// A wish that is not a positive number.
    #[error("what is wished for must be a positive number")]
    Wish,
}

impl From<LayoutError> for PlanError {
    fn from(error: LayoutError) -> PlanError {
        PlanError::System(SystemError::Layout(error))
    }
}

/// What the advisor found.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Layouts looked at.
    pub considered: usize,
    /// Those that meet the wishes and are worth showing, the most capacity first.
    pub best: Vec<Choice>,
    /// Where nothing meets all wishes: for each wish the layout that comes nearest to it while
    /// meeting the others, where there is one.
    pub nearest: Vec<(Wish, Choice)>,
}

/// What a layout with so much spare space gives volumes on the devices at hand, in bytes; `None` if it cannot be
/// made of them.
pub type Usable<'a> = dyn Fn(&str, u16) -> Option<f64> + 'a;

fn evaluate(
    system: System,
    layout: String,
    usable_bytes: f64,
    assumptions: &Assumptions,
    wishes: &Wishes,
) -> Result<Choice, PlanError> {
    if system.copies != 1 {
        return Err(PlanError::Copies {
            copies: system.copies,
        });
    }
    let life = life(&system, assumptions)?;
    let survives = system.groups.iter().map(|g| g.m).min().unwrap_or(0);
    let survives_domain = (assumptions.domains > 0).then(|| {
        system.groups.iter().all(|g| {
            let domains = usize::from(assumptions.domains.min(g.devices));
            let (each, more) = (
                usize::from(g.devices) / domains,
                usize::from(g.devices) % domains,
            );
            let sizes: Vec<usize> = (0..domains).map(|d| each + usize::from(d < more)).collect();
            let (width, m) = (usize::from(g.width()), usize::from(g.m));
            ashlar_layout::Placement::survives_domain(&sizes, width, m)
        })
    });
    let mut misses = Vec::new();
    let mut want = |wish, met: bool| {
        if !met {
            misses.push(wish);
        }
    };
    want(
        Wish::Usable,
        wishes
            .usable_bytes
            .is_none_or(|bytes| usable_bytes >= bytes),
    );
    want(Wish::Survive, wishes.survive.is_none_or(|s| survives >= s));
    want(
        Wish::Rebuild,
        wishes
            .rebuild_hours
            .is_none_or(|h| survives > 0 && life.rebuild_hours <= h),
    );
    want(Wish::Nines, life.nines() >= wishes.nines.unwrap_or(0.0));
    want(
        Wish::Domain,
        !wishes.survive_domain || survives_domain == Some(true),
    );
    let spare = system.spare;
    Ok(Choice {
        layout,
        spare,
        system,
        usable_bytes,
        survives,
        survives_domain,
        life,
        misses,
        reasons: Vec::new(),
    })
}

/// Layouts an operator would consider on `devices` devices.
fn candidates(devices: u16) -> Vec<(Layout, u16)> {
    const K: [u16; 18] = [
        2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 200,
    ];
    const M: [u16; 14] = [1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 16, 20, 24, 32];
    let mut all: Vec<(Layout, u16)> = [
        Layout::Raid1 { copies: None },
        Layout::Raid1 { copies: Some(3) },
        Layout::Raid10,
        Layout::Raid5,
        Layout::Raid6,
        Layout::Raid73,
    ]
    .map(|layout| (layout, 0))
    .to_vec();
    for groups in 2..=devices / 3 {
        let each = devices / groups;
        if devices.is_multiple_of(groups) && (4..=24).contains(&each) {
            all.extend(
                [
                    Layout::Raid50 { groups },
                    Layout::Raid60 { groups },
                    Layout::Raid70 { groups },
                ]
                .map(|layout| (layout, 0)),
            );
        }
    }
    for m in M {
        let widest = devices.min(ashlar_layout::MAX_WIDTH).saturating_sub(m);
        if widest >= m {
            all.push((Layout::Ec { k: widest, m }, 0));
        }
        for k in K {
            let spare = devices.div_ceil(50).min(m);
            if k >= m && k + m + spare <= devices {
                all.push((Layout::Ec { k, m }, spare));
            }
        }
    }
    all
}

/// Advises as [`plan_with`], from estimates of what layouts give: shares of the devices' bytes.
///
/// # Errors
/// [`PlanError`] for assumptions out of range or layouts that cannot be made.
pub fn plan(
    devices: u16,
    layouts: &[String],
    assumptions: &Assumptions,
    wishes: &Wishes,
) -> Result<Plan, PlanError> {
    let usable = |layout: &str, spare: u16| {
        let system = match layout.parse() {
            Ok(layout) => System::of_layout(layout, devices, spare),
            Err(_) => System::parse(layout, Some(u32::from(devices))),
        };
        let system = system.ok()?;
        let raw = f64::from(system.devices()) * assumptions.device_bytes;
        Some(raw * system.efficiency() * (1.0 - METADATA_SHARE) * (1.0 - CLEAN_RESERVE))
    };
    plan_with(devices, layouts, assumptions, wishes, &usable)
}

/// Advises: the best layouts of `devices` devices, or, with `layouts`, just those compared.
///
/// # Errors
/// [`PlanError`] for assumptions out of range or layouts that cannot be made.
pub fn plan_with(
    devices: u16,
    layouts: &[String],
    assumptions: &Assumptions,
    wishes: &Wishes,
    usable: &Usable<'_>,
) -> Result<Plan, PlanError> {
    assumptions.check()?;
    ashlar_layout::check_device_count(u64::from(devices))?;
    let numbers = [wishes.usable_bytes, wishes.rebuild_hours, wishes.nines];
    if numbers
        .iter()
        .flatten()
        .any(|x| !x.is_finite() || *x <= 0.0)
    {
        return Err(PlanError::Wish);
    }
    if !layouts.is_empty() {
        let mut best = Vec::new();
        for text in layouts {
            let system = System::parse(text, Some(u32::from(devices)))?;
            let layout = text.trim().to_lowercase();
            let copies = system.copies;
            let bytes = match usable(&layout, 0) {
                None if copies == 1 => return Err(PlanError::TooSmall),
                bytes => bytes.unwrap_or(0.0),
            };
            best.push(evaluate(system, layout, bytes, assumptions, wishes)?);
        }
        let considered = best.len();
        return Ok(Plan {
            considered,
            best,
            nearest: Vec::new(),
        });
    }
    let wishes = Wishes {
        nines: wishes.nines.or(Some(DEFAULT_NINES)),
        ..*wishes
    };
    let mut all: Vec<Choice> = Vec::new();
    for (layout, spare) in candidates(devices) {
        let Ok(system) = System::of_layout(layout, devices, spare) else {
            continue;
        };
        let same = |c: &Choice| c.system.groups == system.groups && c.spare == system.spare;
        if all.iter().any(same) {
            continue;
        }
        let layout = layout.to_string();
        let Some(bytes) = usable(&layout, spare) else {
            continue;
        };
        all.push(evaluate(system, layout, bytes, assumptions, &wishes)?);
    }
    if all.is_empty() {
        return Err(PlanError::TooSmall);
    }
    let considered = all.len();
    let good: Vec<Choice> = all
        .iter()
        .filter(|c| c.misses.is_empty())
        .cloned()
        .collect();
    if good.is_empty() {
        return Ok(Plan {
            considered,
            best: Vec::new(),
            nearest: nearest(&all),
        });
    }
    Ok(Plan {
        considered,
        best: recommend(&good),
        nearest: Vec::new(),
    })
}

/// The first of the greatest by a key.
fn best_by(choices: &[Choice], key: impl Fn(&Choice) -> f64) -> Option<&Choice> {
    choices.iter().fold(None, |best, choice| match best {
        Some(b) if key(b) >= key(choice) => Some(b),
        _ => Some(choice),
    })
}

fn recommend(good: &[Choice]) -> Vec<Choice> {
    let most = good.iter().map(|c| c.usable_bytes).fold(0.0, f64::max);
    let with = |share: f64| -> Vec<Choice> {
        good.iter()
            .filter(|c| c.usable_bytes >= share * most)
            .cloned()
            .collect()
    };
    let (near, fair) = (with(0.9), with(LEAST_CAPACITY));
    let widest_read = |c: &Choice| c.system.groups.iter().map(|g| g.k).max().unwrap_or(0);
    let safety = |c: &Choice| -c.life.annual_loss_log10;
    // Among equals in the first respect the second decides; both in comparable units.
    let picks = [
        (
            Reason::MostCapacity,
            best_by(good, |c| {
                (c.usable_bytes / most * 1e6).round() + safety(c) / 1e6
            }),
        ),
        (Reason::SafestNearMostCapacity, best_by(&near, safety)),
        (
            Reason::CheapestDegradedReads,
            best_by(&near, |c| {
                -f64::from(widest_read(c)) + c.usable_bytes / most / 2.0
            }),
        ),
        (
            Reason::QuickestRebuild,
            best_by(&fair, |c| {
                -c.life.rebuild_hours * 1e3 + c.usable_bytes / most
            }),
        ),
        (Reason::Safest, best_by(&fair, safety)),
    ];
    let mut best: Vec<Choice> = Vec::new();
    for (reason, choice) in picks {
        let Some(choice) = choice else { continue };
        match best
            .iter_mut()
            .find(|b| b.layout == choice.layout && b.spare == choice.spare)
        {
            Some(known) => known.reasons.push(reason),
            None => best.push(Choice {
                reasons: vec![reason],
                ..choice.clone()
            }),
        }
    }
    best.sort_by(|a, b| b.usable_bytes.total_cmp(&a.usable_bytes));
    best
}

fn nearest(all: &[Choice]) -> Vec<(Wish, Choice)> {
    let of = |wish: Wish, key: &dyn Fn(&Choice) -> f64| {
        let others: Vec<Choice> = all
            .iter()
            .filter(|c| c.misses.iter().all(|&w| w == wish))
            .cloned()
            .collect();
        best_by(&others, key).map(|choice| (wish, choice.clone()))
    };
    [
        of(Wish::Usable, &|c| c.usable_bytes),
        of(Wish::Survive, &|c| f64::from(c.survives)),
        of(Wish::Rebuild, &|c| {
            if c.survives > 0 {
                -c.life.rebuild_hours
            } else {
                f64::MIN
            }
        }),
        of(Wish::Nines, &|c| -c.life.annual_loss_log10),
        of(Wish::Domain, &|c| f64::from(c.survives)),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// An array as it is now, from its status.
#[derive(Debug, Clone, PartialEq)]
pub struct Present {
    /// Its layout.
    pub layout: Layout,
    /// Devices it was made of.
    pub devices_total: u16,
    /// Devices that serve now.
    pub devices_online: u16,
    /// Spare space asked for, in devices.
    pub spare: u16,
    /// Redundancies left to the live data that have the fewest; `None`: data are lost already.
    pub least_redundancy: Option<u16>,
}

/// What an array in its present state may expect.
#[derive(Debug, Clone, PartialEq)]
pub struct Prospect {
    /// Its code: K.
    pub k: u16,
    /// Its code: M.
    pub m: u16,
    /// Strips missing in its worst stripes.
    pub missing: u16,
    /// From now on; `None`: data are lost already.
    pub outlook: Option<Outlook>,
    /// Once whole again, with the devices that serve now.
    pub whole: Life,
    /// Whether the missing redundancy can be reconstructed without a new device.
    pub without_new_device: bool,
    /// Failures, after full redundancy is back, until full-width stripes no longer fit.
    pub spare_left: u16,
}

/// The prospect of an array in its present state.
///
/// # Errors
/// [`PlanError`] for assumptions out of range or a layout that the devices do not make up.
pub fn prospect(present: &Present, assumptions: &Assumptions) -> Result<Prospect, PlanError> {
    assumptions.check()?;
    let shape = present
        .layout
        .resolve_with_spare(present.devices_total, present.spare)?;
    let group_of = |devices: u16| Group {
        devices,
        k: shape.k,
        m: shape.m,
    };
    let each = u16::try_from(shape.groups.first().map_or(1, Vec::len)).unwrap_or(u16::MAX);
    let gone = present.devices_total.saturating_sub(present.devices_online);
    let missing = match present.least_redundancy {
        Some(left) => shape.m.saturating_sub(left),
        None => shape.m + 1,
    };
    let width = shape.width();
    // Devices gone are taken to be of one group: the worst case.
    let left = each.saturating_sub(gone);
    let fits = left >= width;
    let members = if fits {
        left + missing.min(each - left)
    } else {
        each
    };
    let outlook = outlook(group_of(members.max(width)), missing, assumptions)?;
    let mut groups = vec![group_of(each); shape.groups.len()];
    if let Some(first) = groups.first_mut().filter(|_| fits) {
        first.devices = left;
    }
    let whole = System {
        label: present.layout.to_string(),
        copies: 1,
        groups,
        spare: 0,
    };
    Ok(Prospect {
        k: shape.k,
        m: shape.m,
        missing,
        outlook,
        whole: life(&whole, assumptions)?,
        without_new_device: missing == 0 || (fits && shape.m > 0),
        spare_left: left.saturating_sub(width),
    })
}
