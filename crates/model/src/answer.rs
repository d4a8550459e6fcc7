//! Questions and answers as plain data: what `ashlar resilience -j` prints, what the page of
//! `--html` asks of the same code compiled to WebAssembly.
//!
//! **Invariants**: every number in an answer is finite; a question that makes no sense gets one
//! line, never a partial answer; fields are only ever added.

use serde::{Deserialize, Serialize};

use crate::assumptions::{Assumptions, LifeError};
use crate::exact::{LossCurve, exposure};
use crate::life::{Life, life};
use crate::montecarlo::{MonteCarlo, Placing};
use crate::system::{System, SystemError};

/// Failures shown beyond the first at which every layout is lost, and at most where none is named.
const MARGIN: u32 = 1;
/// Where certain loss lies further out than this, failures are shown until loss is all but certain.
const FAR: u32 = 40;

/// How probabilities are computed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Method {
    /// Counted ([`crate::exact`]).
    #[default]
    Exact,
    /// Simulated ([`crate::montecarlo`]).
    MonteCarlo,
}

/// What is asked.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Question {
    /// Notations ([`System::parse`]); the first is the one in question, the others are compared.
    pub layouts: Vec<String>,
    /// Devices, for layouts that do not say.
    #[serde(default)]
    pub devices: Option<u32>,
    /// First and last number of failures; left out: from 0 to where all are lost.
    #[serde(default)]
    pub failures: Option<(u32, u32)>,
    /// How.
    #[serde(default)]
    pub method: Method,
    /// Trials of the simulation.
    #[serde(default)]
    pub trials: Option<u64>,
    /// Seed of the simulation.
    #[serde(default)]
    pub seed: Option<u64>,
    /// Segments of each declustered group; left out: as many as its slots allow.
    #[serde(default)]
    pub segments: Option<u32>,
    /// How the simulation places them.
    #[serde(default)]
    pub placing: Placing,
    /// For times to loss: the device's annual failure rate (0 to 1); left out: no times.
    #[serde(default)]
    pub afr: Option<f64>,
    /// Bytes of a device.
    #[serde(default)]
    pub device_bytes: Option<f64>,
    /// Bytes a second and device for reconstruct.
    #[serde(default)]
    pub bandwidth: Option<f64>,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// One entry a layout, as asked.
    pub layouts: Vec<LayoutAnswer>,
    /// What all numbers rest on.
    pub assumptions: Vec<String>,
}

/// The answer for one layout.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LayoutAnswer {
    /// As written.
    pub layout: String,
    /// Devices of all copies.
    pub devices: u32,
    /// Independent groups of one copy.
    pub groups: usize,
    /// Copies.
    pub copies: u16,
    /// K, where all groups have the same.
    pub k: Option<u16>,
    /// M, where all groups have the same.
    pub m: Option<u16>,
    /// Whether stripes are narrower than their group.
    pub declustered: bool,
    /// Share of raw capacity for data.
    pub efficiency: f64,
    /// How the probabilities were computed.
    pub method: Method,
    /// The most failures survived for certain.
    pub always_survived: Option<u32>,
    /// The fewest failures that lose something for certain.
    pub certain_from: Option<u32>,
    /// One entry for each number of failures.
    pub points: Vec<PointAnswer>,
    /// Times, if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub life: Option<LifeAnswer>,
}

/// The answer for one number of failures.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PointAnswer {
    /// Devices failed at the same instant.
    pub failures: u32,
    /// The probability that anything is lost: exactly 0 or 1 where it is.
    pub probability: f64,
    /// Its standard error; 0 for the exact method.
    pub stderr: f64,
    /// One minus the probability, precise where that is small.
    pub survival: f64,
    /// Expected share of the data lost (single copies).
    pub lost: Option<f64>,
    /// Expected share with no redundancy left (single copies).
    pub critical: Option<f64>,
    /// Expected share with some redundancy lost (single copies).
    pub degraded: Option<f64>,
}

/// Times of one layout.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LifeAnswer {
    /// Mean years to the first loss, as a decimal logarithm.
    pub mttdl_log10_years: f64,
    /// Probability of any loss within a year.
    pub annual_loss: f64,
    /// Nines of losing nothing within a year.
    pub nines: f64,
    /// Hours from a failure to full redundancy.
    pub rebuild_hours: f64,
    /// Hours that critical data stay critical.
    pub critical_hours: f64,
}

impl From<Life> for LifeAnswer {
    fn from(life: Life) -> LifeAnswer {
        LifeAnswer {
            mttdl_log10_years: life.mttdl_log10_years,
            annual_loss: life.annual_loss,
            nines: life.nines(),
            rebuild_hours: life.rebuild_hours,
            critical_hours: life.critical_hours,
        }
    }
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum AnswerError {
    /// No layout was given.
    #[error("name at least one layout")]
    NoLayout,
    /// A layout cannot be made.
    #[error("{}{error}", prefix(layout, error))]
    System {
        /// As written.
        layout: String,
        /// Why.
        error: SystemError,
    },
    /// No exact answer.
    #[error("{layout}: {error}")]
    Exact {
        /// As written.
        layout: String,
        /// Why.
        error: crate::exact::ExactError,
    },
    /// No simulated answer.
    #[error("{layout}: {error}")]
    MonteCarlo {
        /// As written.
        layout: String,
        /// Why.
        error: crate::montecarlo::MonteCarloError,
    },
    /// Times.
    #[error(transparent)]
    Life(#[from] LifeError),
    /// A range that ends before it begins.
    #[error("failures {first}..{last}: the range ends before it begins")]
    Range {
        /// First.
        first: u32,
        /// Last.
        last: u32,
    },
}

/// The layout, where the error's own text does not name it.
fn prefix(layout: &str, error: &SystemError) -> String {
    if error.to_string().contains(layout) {
        String::new()
    } else {
        format!("{layout}: ")
    }
}

/// Reads the layouts. The first must agree with `devices`; the others may bring their own count.
fn systems(question: &Question) -> Result<Vec<System>, AnswerError> {
    let mut out = Vec::new();
    for (at, text) in question.layouts.iter().enumerate() {
        let own = if at > 0 {
            System::parse(text, None)
        } else {
            Err(SystemError::NoCount)
        };
        let system = match own {
            Err(SystemError::NoCount) => System::parse(text, question.devices),
            other => other,
        };
        out.push(system.map_err(|error| AnswerError::System {
            layout: text.trim().to_string(),
            error,
        })?);
    }
    if out.is_empty() {
        Err(AnswerError::NoLayout)
    } else {
        Ok(out)
    }
}

/// Answers.
///
/// # Errors
/// [`AnswerError`], one line that says what to change.
pub fn answer(question: &Question) -> Result<Answer, AnswerError> {
    let systems = systems(question)?;
    if let Some((first, last)) = question.failures.filter(|(first, last)| first > last) {
        return Err(AnswerError::Range { first, last });
    }
    let fails = |system: &System, error| AnswerError::Exact {
        layout: system.label.clone(),
        error,
    };
    let mut curves = Vec::new();
    for system in &systems {
        let curve = LossCurve::with_segments(system, question.segments);
        match question.method {
            Method::Exact => curves.push(Some(curve.map_err(|e| fails(system, e))?)),
            Method::MonteCarlo => curves.push(curve.ok()),
        }
    }
    let certain = |curve: &Option<LossCurve>| curve.as_ref().and_then(LossCurve::certain_from);
    let shown = |curve: &Option<LossCurve>| curve.as_ref().map(interesting);
    let last = curves.iter().filter_map(shown).max().unwrap_or(30) + MARGIN;
    let (first, last) = question.failures.unwrap_or((0, last));
    let mut layouts = Vec::new();
    let mut trials = Vec::new();
    for (system, curve) in systems.iter().zip(&curves) {
        // What is asked of the first layout in so many words must make sense; those it is compared
        // with may have fewer devices.
        let devices = system.devices();
        let last = if question.failures.is_some() && layouts.is_empty() {
            last
        } else {
            last.min(devices)
        };
        let points = match question.method {
            Method::Exact => {
                exact_points(system, curve.as_ref(), first, last).map_err(|e| fails(system, e))?
            }
            Method::MonteCarlo => {
                simulated_points(system, question, first, last).map_err(|error| {
                    AnswerError::MonteCarlo {
                        layout: system.label.clone(),
                        error,
                    }
                })?
            }
        };
        trials.push(simulation(question).trials_for(system, last));
        let life = match question.afr {
            Some(_) => Some(life(system, &assumptions(question))?.into()),
            None => None,
        };
        layouts.push(LayoutAnswer {
            layout: system.label.clone(),
            devices,
            groups: system.groups.len(),
            copies: system.copies,
            k: system.code().map(|code| code.0),
            m: system.code().map(|code| code.1),
            declustered: system.declustered(),
            efficiency: system.efficiency(),
            method: question.method,
            always_survived: curve.as_ref().map(LossCurve::always_survived),
            certain_from: certain(curve),
            points,
            life,
        });
    }
    Ok(Answer {
        layouts,
        assumptions: statements(question, &systems, &trials),
    })
}

/// The number of failures up to which a curve says something.
fn interesting(curve: &LossCurve) -> u32 {
    let certain = curve.certain_from().unwrap_or(0);
    if certain <= FAR {
        return certain;
    }
    let open = |x: &u32| curve.at(*x).is_ok_and(|p| p.value() < 0.999_99);
    (0..certain).find(|x| !open(x)).unwrap_or(certain)
}

fn assumptions(question: &Question) -> Assumptions {
    let usual = Assumptions::default();
    Assumptions {
        afr: question.afr.unwrap_or(usual.afr),
        device_bytes: question.device_bytes.unwrap_or(usual.device_bytes),
        bandwidth: question.bandwidth.unwrap_or(usual.bandwidth),
        ..usual
    }
}

fn statements(question: &Question, systems: &[System], trials: &[u64]) -> Vec<String> {
    let mut out = vec![
        "Devices fail at the same instant, every set of that many devices with equal probability; \
         nothing is rebuilt in between."
            .to_string(),
    ];
    if systems.iter().any(System::declustered) {
        let segments = match question.segments {
            Some(segments) => format!("{segments} segments a group"),
            None => format!(
                "segments from {} slots a device",
                crate::exact::SLOTS_PER_DEVICE
            ),
        };
        let placed = match (question.method, question.placing) {
            (Method::MonteCarlo, Placing::Layout) => "placed as the array places them",
            _ => {
                "each on an independently chosen set of devices (the array's own placement uses \
                 fewer different sets: it loses less often and more at once; the shares are the same)"
            }
        };
        out.push(format!(
            "Declustered layouts: loss means any loss at all, of {segments}, {placed}."
        ));
    }
    if systems.iter().any(|s| s.copies > 1) {
        out.push(
            "Mirrors pair group with group: data are lost when every copy of the same group is."
                .to_string(),
        );
    }
    if question.method == Method::MonteCarlo {
        let (least, most) = trials
            .iter()
            .fold((u64::MAX, 0), |(a, b), &t| (a.min(t), b.max(t)));
        let trials = if least == most {
            format!("{most}")
        } else {
            format!("{least} to {most}")
        };
        out.push(format!(
            "Simulated: {trials} trials, seed {}; standard errors stand beside.",
            simulation(question).seed
        ));
    }
    if question.afr.is_some() {
        out.extend(assumptions(question).statements());
    }
    out
}

fn exact_points(
    system: &System,
    curve: Option<&LossCurve>,
    first: u32,
    last: u32,
) -> Result<Vec<PointAnswer>, crate::exact::ExactError> {
    let mut out = Vec::new();
    for failures in first..=last {
        let Some(curve) = curve else { break };
        let probability = curve.at(failures)?;
        let shares = if system.copies == 1 {
            Some(exposure(system, failures)?)
        } else {
            None
        };
        out.push(PointAnswer {
            failures,
            probability: probability.value(),
            stderr: 0.0,
            survival: probability.complement().value(),
            lost: shares.map(|s| s.lost),
            critical: shares.map(|s| s.critical),
            degraded: shares.map(|s| s.degraded),
        });
    }
    Ok(out)
}

fn simulation(question: &Question) -> MonteCarlo {
    MonteCarlo {
        trials: question.trials,
        seed: question.seed.unwrap_or(1),
        segments: question.segments,
        placing: question.placing,
        threads: 0,
    }
}

fn simulated_points(
    system: &System,
    question: &Question,
    first: u32,
    last: u32,
) -> Result<Vec<PointAnswer>, crate::montecarlo::MonteCarloError> {
    let simulation = simulation(question);
    let single = system.copies == 1;
    let points = simulation.run(system, first.min(last)..=last)?;
    Ok(points
        .into_iter()
        .map(|point| PointAnswer {
            failures: point.failures,
            probability: point.any_loss.mean,
            stderr: point.any_loss.stderr,
            survival: 1.0 - point.any_loss.mean,
            lost: Some(point.lost.mean),
            critical: single.then_some(point.critical.mean),
            degraded: single.then_some(point.degraded.mean),
        })
        .collect())
}
