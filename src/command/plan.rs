//! `plan`: which layout for these drives, and what an existing array may expect as it is now. Only
//! `--array` asks the daemon.
//!
//! **Invariants**: every assumption behind the numbers is printed with them; a layout shown as best
//! is one that `create` takes.

mod args;
mod text;

use ashlar_engine::status::{ArrayState, ArrayStatus, DeviceState};
use ashlar_model::{Assumptions, Choice, Life, Present, Wishes};
use serde_json::{Value, json};

use crate::api::{Call, StatusReply};
use crate::client::{Client, socket_path};
use crate::failure::Failure;
use crate::print::document;

pub(crate) use args::Args;
use text::{array_text, narrow, plan_text, wish_name};

/// Shown by `--help`.
pub(crate) const EXAMPLES: &str = "Examples:
  ashlar plan --devices 24 --size 16T --afr 1.2
  ashlar plan --devices 100 --size 20T --afr 1.5 --survive 3 --capacity 1200T --rebuild 24
  ashlar plan --devices 41 --size 4T --afr 2 --layout raid6 --layout 'grid:41(8+2+2)'
  ashlar plan --array tank --afr 1.5                     as it is now, degraded or not
";

impl Args {
    fn assumptions(&self) -> Assumptions {
        Assumptions {
            afr: self.afr / 100.0,
            device_bytes: self.size.unwrap_or(0) as f64,
            bandwidth: self.bandwidth as f64,
            fill: self.fill / 100.0,
            replace_hours: self.replace,
            unreadable_per_bit: self.unreadable,
            latent_per_year: self.latent,
            scrub_days: self.scrub,
            domains: self.domains,
            domain_per_year: self.domain_failures,
            ..Assumptions::default()
        }
    }
}

/// `plan`: the text to print.
///
/// # Errors
/// One line that says what to change.
pub(crate) fn run(args: &Args, json: bool) -> Result<String, Failure> {
    if let Some(name) = &args.array {
        let client = Client::new(socket_path(args.socket.as_deref()))?;
        let call = Call::Status {
            array: Some(name.clone()),
        };
        let reply: StatusReply = client.call(&call)?;
        let array = reply.arrays.iter().find(|a| a.name == *name);
        return of_array(
            array.ok_or_else(|| Failure::not_found(format!("no array is called {name}")))?,
            args,
            json,
        );
    }
    let assumptions = args.assumptions();
    let devices = u64::from(args.devices.unwrap_or(0));
    let devices =
        ashlar_layout::check_device_count(devices).map_err(|e| Failure::invalid(e.to_string()))?;
    let wishes = Wishes {
        usable_bytes: args.capacity.map(|bytes| bytes as f64),
        survive: args.survive,
        rebuild_hours: args.rebuild,
        nines: args.nines,
        survive_domain: args.survive_domain,
    };
    let sizes = vec![args.size.unwrap_or(0); usize::from(devices)];
    let usable = |layout: &str, spare: u16| usable_bytes(&sizes, layout, spare);
    let plan = ashlar_model::plan_with(devices, &args.layout, &assumptions, &wishes, &usable)
        .map_err(|e| Failure::invalid(e.to_string()))?;
    if json {
        let value = json!({
            "devices": devices,
            "considered": plan.considered,
            "choices": plan.best.iter().map(choice_json).collect::<Vec<_>>(),
            "nearest": plan.nearest.iter().map(|(wish, choice)| {
                let mut value = choice_json(choice);
                value["relaxed"] = wish_name(*wish).into();
                value
            }).collect::<Vec<_>>(),
            "assumptions": assumptions.statements(),
        });
        return document("plan", &value);
    }
    Ok(narrow(&plan_text(&plan, &assumptions, args)))
}

/// What `create -n` says is usable of such devices; `None` if it would refuse them.
fn usable_bytes(sizes: &[u64], layout: &str, spare: u16) -> Option<f64> {
    let options = ashlar_engine::Create {
        name: "plan".to_string(),
        layout: layout.parse().ok()?,
        strip_bytes: None,
        slot_bytes: None,
        spare,
        domains: Vec::new(),
        settings: ashlar_engine::Settings::default(),
    };
    let plan = ashlar_engine::plan(sizes, &options).ok()?;
    Some(plan.usable_bytes as f64)
}

fn life_json(life: &Life) -> Value {
    json!({
        "mttdl_years": life.mttdl_years(),
        "mttdl_log10_years": life.mttdl_log10_years,
        "annual_loss": life.annual_loss,
        "nines": life.nines(),
        "rebuild_hours": life.rebuild_hours,
        "critical_hours": life.critical_hours,
    })
}

fn choice_json(choice: &Choice) -> Value {
    let code = choice.system.code();
    let mut value = json!({
        "layout": choice.layout,
        "spare": choice.spare,
        "groups": choice.system.groups.len(),
        "k": code.map(|c| c.0),
        "m": code.map(|c| c.1),
        "usable_bytes": choice.usable_bytes,
        "efficiency": choice.system.efficiency(),
        "survives": choice.survives,
        "survives_domain": choice.survives_domain,
        "misses": choice.misses.iter().map(|w| wish_name(*w)).collect::<Vec<_>>(),
        "reasons": choice.reasons.iter().map(|r| r.text()).collect::<Vec<_>>(),
    });
    if let (Value::Object(value), Value::Object(life)) = (&mut value, life_json(&choice.life)) {
        value.extend(life);
    }
    value
}

/// What the model needs of a status.
fn present(array: &ArrayStatus) -> Result<Present, Failure> {
    let layout = array
        .layout
        .parse()
        .map_err(|e| Failure::broken(format!("{}: {e}", array.layout)))?;
    let online = array
        .devices
        .iter()
        .filter(|d| DeviceState::is_in_use(d.state))
        .count();
    let least = array
        .exposure
        .iter()
        .filter(|e| e.bytes > 0)
        .map(|e| e.redundancy)
        .min();
    Ok(Present {
        layout,
        devices_total: array.devices_total,
        devices_online: u16::try_from(online).unwrap_or(u16::MAX),
        spare: array.spare,
        least_redundancy: match array.state {
            ArrayState::Failed => None,
            _ => Some(least.unwrap_or(array.m)),
        },
    })
}

fn of_array(array: &ArrayStatus, args: &Args, json: bool) -> Result<String, Failure> {
    let present = present(array)?;
    let smallest = array
        .devices
        .iter()
        .map(|d| d.size_bytes)
        .filter(|&b| b > 0)
        .min();
    let usable = array.capacity.usable_bytes.max(1) as f64;
    let assumptions = Assumptions {
        device_bytes: smallest.unwrap_or(0) as f64,
        fill: (array.capacity.used_bytes as f64 / usable).clamp(0.001, 1.0),
        segments_per_device: (smallest.unwrap_or(0) / array.slot_bytes.max(1)).max(1) as f64,
        ..args.assumptions()
    };
    let prospect = ashlar_model::prospect(&present, &assumptions)
        .map_err(|e| Failure::invalid(e.to_string()))?;
    if json {
        let value = json!({
            "array": array.name,
            "state": array.state,
            "layout": array.layout,
            "k": prospect.k,
            "m": prospect.m,
            "devices_total": present.devices_total,
            "devices_online": present.devices_online,
            "missing": prospect.missing,
            "without_new_device": prospect.without_new_device,
            "spare_left": prospect.spare_left,
            "outlook": prospect.outlook.map(|o| json!({
                "loss_before_whole": o.loss_before_whole,
                "hours_to_whole": o.hours_to_whole,
                "mttdl_log10_years": o.mttdl_log10_years,
            })),
            "whole": life_json(&prospect.whole),
            "assumptions": assumptions.statements(),
        });
        return document("plan", &value);
    }
    Ok(narrow(&array_text(
        array,
        &present,
        &prospect,
        &assumptions,
    )))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use std::path::PathBuf;

    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[arg(long, global = true)]
        socket: Option<PathBuf>,
        #[command(subcommand)]
        verb: Only,
    }

    #[derive(Debug, clap::Subcommand)]
    enum Only {
        Plan(Args),
    }

    fn ask(line: &str, json: bool) -> Result<String, String> {
        let words = std::iter::once("ashlar").chain(line.split_whitespace());
        let parsed = Line::try_parse_from(words).map_err(|e| e.to_string())?;
        assert_eq!(parsed.socket, None);
        let Only::Plan(args) = parsed.verb;
        run(&args, json).map_err(|failure| failure.text)
    }

    #[test]
    fn the_best_few_with_reasons() {
        let text = ask("plan --devices 24 --size 16T --afr 1.2 --survive 2", false).unwrap();
        assert!(
            text.contains("most capacity of all that meet the wishes"),
            "{text}"
        );
        assert!(
            text.contains("Assumed:") && text.contains("1.200 % of them a year"),
            "{text}"
        );
        let words: Vec<&str> = text.split_whitespace().collect();
        let (above, below) = words
            .join(" ")
            .split_once("Assumed:")
            .map_or(Default::default(), |(above, below)| {
                (above.to_string(), below.to_string())
            });
        assert!(
            above.contains("count on a scrub every 30 days (the setting scrub.every"),
            "{above}"
        );
        for words in [
            "A scrub every 30 days starts by itself",
            "'ashlar replace ARRAY OLD NEW'",
        ] {
            assert!(below.contains(words), "{words}: {below}");
        }
        assert!(!text.contains("neither replaces"), "{text}");
        let text = ask("plan --devices 24 --size 16T --afr 1.2 --survive 2", true).unwrap();
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["command"], "plan");
        let choices = value["choices"].as_array().unwrap();
        assert!((1..=5).contains(&choices.len()));
        assert!(choices.iter().all(|c| c["survives"].as_u64().unwrap() >= 2));
        assert!(choices.iter().all(|c| c["nines"].as_f64().unwrap() >= 5.0));
    }

    #[test]
    fn layouts_side_by_side_and_the_papers_times() {
        let line = "plan --devices 41 --size 1T --afr 2 --replace 0 --bandwidth 50M \
                    --layout grid:41(8+2+2) --layout raid6";
        let text = ask(line, true).unwrap();
        let value: Value = serde_json::from_str(&text).unwrap();
        let hours = |i: usize| value["choices"][i]["rebuild_hours"].as_f64().unwrap();
        let narrow = (1u64 << 40) as f64 / (50 << 20) as f64 / 3600.0;
        assert!((hours(0) - narrow * 9.0 / 40.0).abs() < 1e-9);
        assert!((hours(1) - narrow).abs() < 1e-9);
    }

    #[test]
    fn nonsense_is_one_line() {
        for (line, expect) in [
            ("plan --devices 0 --size 1T --afr 1", "at least one device"),
            ("plan --devices 70000 --size 1T --afr 1", "at most 65535"),
            ("plan --devices 8 --size 1T --afr 0", "annual failure rate"),
            (
                "plan --devices 8 --size 1T --afr 100",
                "annual failure rate",
            ),
            ("plan --devices 8 --size 0 --afr 1", "device size"),
            (
                "plan --devices 10 --size 1T --afr 1 --layout raid60:3",
                "do not divide",
            ),
            (
                "plan --devices 8 --size 1T --afr 1 --nines NaN",
                "positive number",
            ),
        ] {
            let error = ask(line, false).unwrap_err();
            assert!(
                error.contains(expect) && error.lines().count() == 1,
                "{line}: {error}"
            );
        }
        assert!(
            ask("plan --afr 1", false)
                .unwrap_err()
                .contains("--devices")
        );
    }
}
