//! The engine thread's state: the arrays this daemon has imported, and what it does with requests.
//!
//! **Invariants**: everything here runs on the engine's thread. Whatever changes which arrays,
//! volumes or frontends exist holds [`Host::change`]; reading does not, so that `status` answers
//! while an import runs, and neither does `fail`, which is what lets changes go on that wait for
//! devices. An array is in `arrays` exactly while it is open. The state file lists an array from
//! before its first client is served until it is exported or destroyed.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::rc::Rc;
use std::task::Poll;
use std::time::{SystemTime, UNIX_EPOCH};

use ashlar_engine::status::{ArrayStatus, DeviceState, LostRange};
use ashlar_engine::{Array, Settings, Work, uuid_text};
use ashlar_rt::{Gate, Lock, Nanos, Rt, SECOND};
use serde_json::Value;

use crate::api::{
    Awaited, Call, GetReply, HistoryReply, NotServed, PingReply, WaitReply, check_confirmed,
};
use crate::daemon::actions::Actions;
use crate::daemon::frontends::{Frontends, Room};
use crate::daemon::history::History;
use crate::daemon::manager::Manager;
use crate::daemon::notifier::Notifier;
use crate::daemon::open::Opener;
use crate::daemon::state::{Known, State};
use crate::daemon::watched::Watched;
use crate::failure::Failure;
use crate::view::cut_addresses;

mod answer;
mod events;
mod settings;
mod status;

pub(crate) use answer::{explain, failure_of, reply};
pub(crate) use settings::clean_reserve;

/// An array that is open.
#[derive(Debug)]
pub(crate) struct Member {
    /// The engine's handle.
    pub(crate) array: Array,
    /// Paths of its devices, also of those that it does not use any more.
    pub(crate) devices: RefCell<Vec<String>>,
    /// Whether nothing is written.
    pub(crate) read_only: bool,
    /// What could not be read before is still being looked at.
    pub(crate) looking: Cell<bool>,
    /// The last of the engine's events that the history has.
    pub(crate) events: Cell<u64>,
    /// What was last seen of it, for events that tell of changes.
    pub(crate) watched: RefCell<Watched>,
}

impl Member {
    /// An array that was opened with these devices.
    pub(crate) fn new(array: Array, devices: Vec<String>, read_only: bool) -> Member {
        Member {
            array,
            devices: RefCell::new(devices),
            read_only,
            looking: Cell::new(false),
            events: Cell::new(0),
            watched: RefCell::default(),
        }
    }
}

/// The daemon.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) rt: Rt,
    pub(crate) opener: Opener,
    pub(crate) settings: Settings,
    pub(crate) arrays: RefCell<BTreeMap<String, Rc<Member>>>,
    pub(crate) frontends: Frontends,
    pub(crate) change: Lock<()>,
    /// Known arrays that could not be started, with the reason.
    pub(crate) waiting: RefCell<Vec<(Known, String)>>,
    /// What those of them wait for whose devices are looked for, by UUID.
    pub(crate) awaited: RefCell<BTreeMap<String, Awaited>>,
    /// Frontends that should serve and do not.
    pub(crate) not_served: RefCell<Vec<NotServed>>,
    /// Whoever started the process.
    pub(crate) manager: Manager,
    history: History,
    /// Who did what.
    pub(crate) actions: Actions,
    pub(crate) notifier: Notifier,
    pub(crate) state: State,
    /// Arrays of the last run that are still to be started, or wait for devices, by UUID.
    pub(crate) restoring: RefCell<BTreeSet<String>>,
    pub(crate) restored_gate: Gate,
    /// The process is about to end: no device is waited for.
    pub(crate) ending: Cell<bool>,
    pub(crate) ending_gate: Gate,
    started: (Nanos, SystemTime),
    /// Nobody is waited for any more, for the end of the process.
    hurried: Cell<bool>,
    hurry_gate: Gate,
}

/// How long one `events` or `wait` request may be held open.
const LONGEST_WAIT: u64 = 60;

/// Which events are asked for.
#[derive(Clone, Debug)]
struct EventsWanted {
    array: Option<String>,
    after: BTreeMap<String, u64>,
    since_id: u64,
    since_seconds: u64,
    newest: Option<usize>,
}

/// The value that sets a setting to its default.
const DEFAULT: &str = "default";

/// How many ranges that could not be read are remembered of an array, and read again.
const LOST_RANGES: usize = 4096;

impl Host {
    /// A daemon without arrays.
    pub(crate) fn new(rt: &Rt, settings: Settings, state: State, room: Room) -> Rc<Host> {
        Rc::new(Host {
            rt: rt.clone(),
            opener: Opener::new(rt),
            settings,
            arrays: RefCell::default(),
            frontends: Frontends::new(rt, room),
            change: Lock::new(()),
            waiting: RefCell::default(),
            awaited: RefCell::default(),
            not_served: RefCell::default(),
            manager: Manager::from_environment(),
            history: History::load(&state.dir),
            actions: Actions::load(&state.dir),
            notifier: Notifier::start(),
            state,
            restored_gate: Gate::default(),
            restoring: RefCell::default(),
            ending: Cell::new(false),
            ending_gate: Gate::default(),
            started: (rt.now(), SystemTime::now()),
            hurried: Cell::new(false),
            hurry_gate: Gate::default(),
        })
    }

    /// Notes, and says, that all is served that can be.
    pub(crate) fn restored(&self) {
        if !self.ending.get() {
            self.manager.ready();
        }
    }

    /// Cuts the kernel off, so that what waits for it ends by itself; soon after, the end of the process
    /// waits for no client any more.
    pub(crate) async fn hurry(&self) {
        self.frontends.cut_off_kernel();
        self.rt.sleep(SECOND).await;
        self.hurried.set(true);
        self.hurry_gate.open();
    }

    /// Does `work`; `None` if it was not done when no more was to be waited for.
    pub(crate) async fn unless_hurried<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let mut work = std::pin::pin!(work);
        let mut hurried = std::pin::pin!(self.hurry_gate.until(|| self.hurried.get()));
        std::future::poll_fn(|cx| match work.as_mut().poll(cx) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending => hurried.as_mut().poll(cx).map(|()| None),
        })
        .await
    }

    /// Answers one request. One that changes something waits for its turn, and is not begun if it is not `awaited` then:
    /// whoever sent it has given up.
    ///
    /// # Errors
    /// One line for the operator.
    pub(crate) async fn handle(
        self: Rc<Host>,
        call: Call,
        awaited: impl Fn() -> bool,
    ) -> Result<Value, Failure> {
        match call {
            Call::Ping => reply(&PingReply {
                program: env!("CARGO_PKG_VERSION").to_string(),
                pid: std::process::id(),
            }),
            Call::Status { array } => reply(&self.status(array.as_deref()).await?),
            Call::Events {
                array,
                after,
                since_id,
                since_seconds,
                newest,
                wait_seconds,
            } => {
                let wanted = EventsWanted {
                    array,
                    after,
                    since_id,
                    since_seconds,
                    newest,
                };
                reply(&self.events(&wanted, wait_seconds).await?)
            }
            Call::NotifyTest => reply(&self.notify_test().await?),
            Call::History { array, newest } => reply(&HistoryReply {
                actions: self.actions.list(array.as_deref(), newest),
            }),
            Call::Wait {
                array,
                kinds,
                seconds,
            } => reply(&self.wait(&array, &kinds, seconds).await?),
            Call::Get { array, key } => reply(&self.get(&array, key.as_deref())?),
            Call::Fail {
                array,
                device,
                force,
            } => reply(&self.fail(&array, &device, force).await?),
            Call::Offline { array, device } => reply(&self.offline(&array, &device).await?),
            Call::Online {
                array,
                device,
                force,
            } => reply(&self.online(&array, &device, force).await?),
            Call::Replace(replace) => reply(&self.replace(replace).await?),
            Call::DeviceScan { scan } => reply(&self.scan_devices(&scan).await?),
            Call::DeviceClear { array, device } => {
                reply(&self.clear_errors(&array, &device).await?)
            }
            Call::DeviceSet(set) => reply(&self.set_device(set).await?),
            Call::DeviceLocate { device, on } => reply(&self.locate(&device, on).await?),
            Call::Add(add) => reply(&self.add(add).await?),
            Call::Remove(remove) => reply(&self.remove_device(remove).await?),
            Call::Task(task) => reply(&self.change_task(task).await?),
            Call::Scrub(scrub) => reply(&self.scrub(scrub).await?),
            Call::Trim { array } => reply(&self.trim(array).await?),
            Call::Incremental { device } => reply(&self.incremental(&device).await?),
            Call::Importable { scan } => reply(&self.importable(&scan).await?),
            mut changing => {
                if let Call::Import(import) = &mut changing {
                    self.watch_asked(import).await;
                }
                let guard = self.change.lock().await;
                if self.ending.get() {
                    return Err(Failure::refused("the daemon is stopping"));
                }
                if !awaited() {
                    let gone = "it was given up before its turn came: nothing is changed";
                    return Err(Failure::refused(gone));
                }
                let outcome = self.clone().change_something(changing).await;
                self.share_memory(0).await; // there may be more arrays, or fewer
                drop(guard);
                outcome
            }
        }
    }

    fn get(&self, array: &str, key: Option<&str>) -> Result<GetReply, Failure> {
        let member = self.member(array)?;
        let mut properties = self.get_notify(&member, key);
        if key.is_none() || properties.is_empty() {
            let found = member.array.get(key.map(settings::engines).as_deref());
            let found = found.map_err(settings::explain)?;
            properties.extend(found.into_iter().map(settings::shown));
        }
        Ok(GetReply { properties })
    }

    /// `set`; `default` as a value is the setting's default.
    async fn set(&self, array: &str, key: &str, mut value: String) -> Result<Value, Failure> {
        let member = self.member(array)?;
        let default = settings::default_of(key).filter(|_| value == DEFAULT);
        if let Some(default) = default {
            settings::check_default(array, key)?;
            default.clone_into(&mut value);
        }
        if !self.set_notify(&member, key, &value).await? {
            let engines = settings::engines(key);
            settings::check_rates(&member.array, key, &value)?;
            let set = member.array.set(&engines, &value).await;
            set.map_err(settings::explain)?;
            self.save_settings(key);
        }
        let is = self.get(array, Some(key))?.properties.into_values().next();
        let text = format!("{key} = {}", is.as_ref().unwrap_or(&value));
        self.tell(array, "set", None, cut_addresses(&text));
        reply(&serde_json::json!({
            "array": array, "key": key, "value": value, "is": is, "default": default.is_some(),
        }))
    }

    async fn change_something(self: Rc<Host>, call: Call) -> Result<Value, Failure> {
        match call {
            Call::Create(create) => reply(&self.create(create).await?),
            Call::Import(import) => reply(&self.import(import).await?),
            Call::Export { array } => {
                let warnings = self.close(&array).await?;
                reply(&serde_json::json!({ "exported": array, "warnings": warnings }))
            }
            Call::Destroy {
                array,
                confirm,
                force,
            } => {
                self.member(&array)?;
                check_confirmed(&array, confirm.as_deref())?;
                reply(&self.destroy(&array, force).await?)
            }
            Call::Set { array, key, value } => self.set(&array, &key, value).await,
            Call::DeviceWipe { device, confirm } => {
                reply(&self.wipe_device(&device, confirm.as_deref()).await?)
            }
            volume => self.change_volume(volume).await,
        }
    }

    /// Remembers what could not be read of an array.
    fn note_lost(&self, member: &Member, status: &ArrayStatus) {
        if member.looking.get() {
            return; // the list is not whole yet
        }
        let mut lost = self.state.lost.borrow_mut();
        let found: Vec<LostRange> = status.lost.iter().take(LOST_RANGES).cloned().collect();
        if lost.get(&status.uuid).map_or(&[][..], Vec::as_slice) == found {
            return;
        }
        if found.is_empty() {
            lost.remove(&status.uuid);
        } else {
            lost.insert(status.uuid.clone(), found);
        }
        drop(lost);
        if let Err(failure) = self.save() {
            tracing::warn!("{failure}");
        }
    }

    /// Reads again what could not be read before this import: what still cannot be is listed again.
    fn look_for_lost(&self, member: &Rc<Member>) {
        let uuid = uuid_text(&member.array.uuid());
        let Some(ranges) = self.state.lost.borrow().get(&uuid).cloned() else {
            return;
        };
        member.looking.set(true);
        let member = member.clone();
        self.rt.spawn(async move {
            member.array.read_lost(&ranges).await;
            member.looking.set(false);
        });
    }

    /// Gives each open array, and `more` that are about to be, an equal share of the daemon's memory. The share.
    pub(crate) async fn share_memory(&self, more: usize) -> u64 {
        let members: Vec<Rc<Member>> = self.arrays.borrow().values().cloned().collect();
        let arrays = (members.len() + more).max(1);
        let share = self.settings.memory_bytes / arrays as u64;
        for member in members {
            member.array.set_memory(share).await;
        }
        share
    }

    /// How one more array is to run; the others make room for it.
    pub(crate) async fn settings_for_one_more(&self) -> Settings {
        Settings {
            memory_bytes: self.share_memory(1).await,
            ..self.settings.clone()
        }
    }

    pub(crate) fn unix_seconds(&self, at: Nanos) -> u64 {
        let wall = self
            .started
            .1
            .duration_since(UNIX_EPOCH)
            .map_or(0, |d| d.as_secs());
        wall + at.saturating_sub(self.started.0) / SECOND
    }

    /// Whether an array of the last run is still to be started, or to be served.
    fn is_coming(&self, name: &str) -> bool {
        let restoring = self.restoring.borrow();
        let open = self.arrays.borrow().get(name).cloned();
        let open = open.is_some_and(|m| restoring.contains(&uuid_text(&m.array.uuid())));
        let waiting = self.waiting.borrow();
        let mut named = waiting.iter().filter(|(known, _)| known.name == name);
        open || named.any(|(known, _)| restoring.contains(&known.uuid))
    }

    async fn wait(&self, name: &str, kinds: &[String], seconds: u64) -> Result<WaitReply, Failure> {
        // An array of the last run may be about to come.
        let until = self.rt.now() + seconds.min(LONGEST_WAIT) * SECOND;
        let here = self.restored_gate.until(|| !self.is_coming(name));
        if self.rt.timeout(until - self.rt.now(), here).await.is_none() {
            return Ok(WaitReply {
                done: false,
                stuck: None,
                array: None,
            });
        }
        let named = |kind: &String| {
            let none =
                || Failure::invalid(format!("'{kind}' is not a kind of work in this version"));
            Work::named(kind).ok_or_else(none)
        };
        let wanted = kinds.iter().map(named).collect::<Result<Vec<_>, _>>()?;
        let member = self.member(name)?;
        let array = member.array.clone();
        let idle = array.wait_idle(&wanted);
        let done = self
            .rt
            .timeout(seconds.min(LONGEST_WAIT) * SECOND, idle)
            .await
            .is_some();
        if !member.array.is_open() {
            return Err(Failure::broken(format!(
                "array {name} is closed: it was exported, or it has stopped ('ashlar status' shows which); the \
                 work waited for is not done"
            )));
        }
        let stuck = if done {
            member.array.stuck(&wanted)
        } else {
            None
        };
        Ok(WaitReply {
            done,
            stuck,
            array: Some(self.status_of(&member).await),
        })
    }

    /// `fail`; with how much of the data cannot be read afterwards.
    async fn fail(&self, name: &str, device: &str, force: bool) -> Result<Value, Failure> {
        let member = self.member(name)?;
        let found = self.device_named(&member, device).await?;
        let failed = member.array.fail(found.index, force).await;
        failed.map_err(failure_of)?;
        let unreadable = self.status_of(&member).await.unreadable_bytes;
        Ok(serde_json::json!({
            "array": name, "device": found.index, "path": found.last_path, "unreadable_bytes": unreadable,
            "already": found.state == DeviceState::Failed,
        }))
    }

    /// The open array of this name.
    ///
    /// # Errors
    /// Says what is known about it instead.
    pub(crate) fn member(&self, name: &str) -> Result<Rc<Member>, Failure> {
        if let Some(member) = self.arrays.borrow().get(name) {
            return Ok(member.clone());
        }
        let waiting = self.waiting.borrow();
        match waiting.iter().find(|(known, _)| known.name == name) {
            Some((known, reason)) if self.awaited.borrow().contains_key(&known.uuid) => {
                Err(Failure::not_found(format!(
                    "array {name} is not imported yet: {reason}; 'ashlar wait {name}' waits for it"
                )))
            }
            Some((_, reason)) => Err(Failure::not_found(format!(
                "array {name} could not be imported: {reason}"
            ))),
            None => Err(Failure::not_found(format!(
                "no array {name} here; 'ashlar list' shows those imported, 'ashlar import' those that could be"
            ))),
        }
    }

    /// Adds an open array, and writes the state file.
    ///
    /// # Errors
    /// If the state directory cannot be written; the array is added all the same.
    pub(crate) fn insert(self: &Rc<Host>, member: Rc<Member>) -> Result<(), Failure> {
        let name = member.array.name();
        self.follow_events(&member, Rc::downgrade(self));
        self.look_for_lost(&member);
        let mut paths = self.state.paths.borrow_mut();
        paths.extend(member.array.device_paths());
        drop(paths);
        let uuid = uuid_text(&member.array.uuid());
        self.waiting
            .borrow_mut()
            .retain(|(known, _)| known.uuid != uuid);
        self.arrays.borrow_mut().insert(name, member);
        self.state.drives.note_new();
        self.save()
    }

    /// Forgets an array that is not open, and writes the state file.
    ///
    /// # Errors
    /// If there is none of this name, or the state directory cannot be written: then it stays.
    pub(crate) fn forget(&self, name: &str) -> Result<(), Failure> {
        let before = self.waiting.borrow().clone();
        self.waiting
            .borrow_mut()
            .retain(|(known, _)| known.name != name);
        if self.waiting.borrow().len() == before.len() {
            return self.member(name).map(|_| ()); // says what is known
        }
        let saved = self.save();
        if saved.is_err() {
            *self.waiting.borrow_mut() = before;
        }
        saved
    }

    /// Takes out an array that is closed, and writes the state file.
    ///
    /// # Errors
    /// If the state directory cannot be written.
    pub(crate) fn remove(&self, name: &str) -> Result<(), Failure> {
        let removed = self.arrays.borrow_mut().remove(name);
        if let Some(member) = removed {
            self.record_events(&member);
        }
        self.history.look_again(); // those who follow its events hear that they end
        self.not_served.borrow_mut().retain(|n| n.array != name);
        self.frontends.forget_changes(name);
        self.save()
    }

    /// Notes where a device was seen, for the next save.
    pub(crate) fn note_path(&self, uuid: &str, path: &str) {
        let (uuid, path) = (uuid.to_string(), path.to_string());
        self.state.paths.borrow_mut().insert(uuid, path);
    }

    /// Forgets what is remembered of an array that is gone.
    pub(crate) fn forget_paths(&self, array: &Array) {
        let uuids = array.device_uuids();
        self.state
            .lost
            .borrow_mut()
            .remove(&uuid_text(&array.uuid()));
        let mut paths = self.state.paths.borrow_mut();
        paths.retain(|uuid, _| !uuids.contains(uuid));
        let mut drives = self.state.drives.known.borrow_mut();
        drives.retain(|uuid, _| !uuids.contains(uuid));
    }

    /// Keeps what is needed of an array's settings before it is open.
    fn save_settings(&self, changed: &str) {
        if changed == "start.wait"
            && let Err(failure) = self.save()
        {
            tracing::warn!("start.wait counts from the next import on: {failure}");
        }
    }

    pub(crate) fn save(&self) -> Result<(), Failure> {
        let mut list: Vec<Known> = Vec::new();
        for (name, member) in self.arrays.borrow().iter() {
            list.push(Known {
                name: name.clone(),
                uuid: uuid_text(&member.array.uuid()),
                devices: member.devices.borrow().clone(),
                read_only: member.read_only,
                start_wait: member.array.start_wait(),
            });
        }
        list.extend(self.waiting.borrow().iter().map(|(known, _)| known.clone()));
        self.state.save(&list).map_err(|e| {
            Failure::broken(format!(
                "the state directory {} cannot be written: {e}; the next start of the daemon finds there what was written \
                 last: make room, or see what is wrong with that file system",
                self.state.dir.display()
            ))
        })
    }
}
