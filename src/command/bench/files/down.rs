//! `bench files --down`: devices of the array below a folder are taken out, and the tests run again.
//!
//! **Invariants**: only an array of the daemon that the folder lies on loses devices, and only as many as each of its
//! groups survives; an array that lost some before is refused; rows say whether the array rebuilt while they were
//! measured.

use ashlar_bench::files::stack::Volume;
use ashlar_bench::files::{Options, Session};
use ashlar_bench::lifecycle::{Down, State};
use ashlar_bench::report::Sample;
use ashlar_engine::status::{ArrayState, ArrayStatus};
use ashlar_layout::Layout;
use serde_json::Value;

use crate::api::{Call, StatusReply};
use crate::failure::Failure;
use crate::print::Context;
use crate::view::progress::Progress;

/// The devices that are taken out.
pub(super) struct Victims {
    array: String,
    devices: Vec<u16>,
}

/// What is to be said of rows with devices gone.
struct Told {
    remark: String,
    invalid: Vec<String>,
}

impl Victims {
    /// Which they are.
    pub(super) fn find(
        context: &Context,
        session: &Session,
        down: Down,
    ) -> Result<Victims, Failure> {
        let names = &session.stack.volumes;
        let arrays = names.iter().filter_map(|name| name.split_once('/'));
        let mut arrays: Vec<&str> = arrays.map(|(array, _)| array).collect();
        arrays.dedup();
        let [array] = arrays.as_slice() else {
            return Err(Failure::refused(format!(
                "--down: {} lies on {} of this daemon's arrays; give a folder on a volume of one",
                session.folder().display(),
                arrays.len()
            )));
        };
        let status = status(context, array)?;
        if status.state != ArrayState::Optimal {
            return Err(Failure::refused(format!(
                "--down: {array} is not optimal; 'ashlar status {array}' says what it lacks"
            )));
        }
        let devices = choose(&status, down).map_err(Failure::refused)?;
        Ok(Victims {
            array: (*array).to_string(),
            devices,
        })
    }

    /// Takes them out and runs the tests again: what was written before is read first.
    pub(super) fn again(
        &self,
        context: &Context,
        options: &Options,
        session: &Session,
        volumes: &[Volume],
        progress: &mut Progress,
    ) -> Result<Vec<Sample>, Failure> {
        let state = self.take_out(context)?;
        let second = Options {
            state: state.name().to_string(),
            left: Some(session.leaves()),
            // Other programs write files of their own: those have all their redundancy.
            tools: Vec::new(),
            ..options.clone()
        };
        let second = Session::prepare(second, volumes).map_err(Failure::invalid)?;
        let mut samples = second
            .run(&mut |line| progress.show(line))
            .map_err(Failure::broken)?;
        let told = self.told(context, state)?;
        for sample in &mut samples {
            sample.warnings.push(told.remark.clone());
            sample.invalid.extend(told.invalid.clone());
        }
        Ok(samples)
    }

    /// Takes them out. Whether the array rebuilds then.
    fn take_out(&self, context: &Context) -> Result<State, Failure> {
        for device in &self.devices {
            let call = Call::Fail {
                array: self.array.clone(),
                device: device.to_string(),
                force: false,
            };
            let _: Value = context.client.call_value(&call)?;
        }
        let now = status(context, &self.array)?;
        Ok(if rebuilds(&now) {
            State::Rebuild
        } else {
            State::Down
        })
    }

    /// What is to be said afterwards.
    fn told(&self, context: &Context, state: State) -> Result<Told, Failure> {
        let now = status(context, &self.array)?;
        let all: Vec<String> = self.devices.iter().map(u16::to_string).collect();
        let remark = format!("{}: devices {} were taken out", self.array, all.join(", "));
        let invalid = match (state, now.state) {
            (State::Down, ArrayState::Optimal) => {
                vec!["the array was whole again before the tests ended".to_string()]
            }
            (State::Rebuild, _) if !rebuilds(&now) => {
                vec!["the rebuild was over before the tests ended".to_string()]
            }
            _ => Vec::new(),
        };
        Ok(Told { remark, invalid })
    }
}

fn rebuilds(status: &ArrayStatus) -> bool {
    let mut tasks = status.tasks.iter();
    tasks.any(|task| task.kind == "reconstruct" && task.state == "running")
}

fn status(context: &Context, array: &str) -> Result<ArrayStatus, Failure> {
    let call = Call::Status {
        array: Some(array.to_string()),
    };
    let reply: StatusReply = context.client.call(&call)?;
    let found = reply.arrays.into_iter().next();
    found.ok_or_else(|| Failure::not_found(format!("{array}: the daemon has no such array")))
}

/// The first of each group, no more than its layout survives.
fn choose(status: &ArrayStatus, down: Down) -> Result<Vec<u16>, String> {
    let layout: Layout = status
        .layout
        .parse()
        .map_err(|error| format!("--down: {}: {error}", status.name))?;
    let shape = layout
        .resolve(status.devices_total)
        .map_err(|error| format!("--down: {}: {error}", status.name))?;
    let chosen = down.devices(&shape);
    let most = shape.most_lost();
    let of_group = |group: &Vec<u16>| {
        group
            .iter()
            .filter(|device| chosen.contains(device))
            .count()
    };
    let worst = shape.groups.iter().map(of_group).max().unwrap_or(0);
    if chosen.is_empty() || worst > usize::from(shape.m) {
        return Err(format!(
            "--down {down}: {} survives {} of each group, {most} in all; give fewer",
            status.layout, shape.m
        ));
    }
    Ok(chosen)
}
