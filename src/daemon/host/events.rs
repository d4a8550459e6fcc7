//! Events: what arrays tell and what the daemon adds, into the history, the log and `notify`, and out of it to those
//! who ask.
//!
//! **Invariants**: an event is in the history before anybody hears of it; the engine's own come in its order; whoever
//! waits hears of the end of the array that is waited for.

use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

use ashlar_engine::status::Event;
use ashlar_rt::SECOND;

use super::{EventsWanted, Host, LONGEST_WAIT, Member};
use crate::api::{ArrayEvent, EventsReply, Severity};
use crate::daemon::severity::severity;
use crate::failure::{Failure, with_name};
use crate::units::readable;

/// A line of the log for an event, at the level that goes with it.
fn log_event(event: &ArrayEvent) {
    let (array, id, e) = (&event.array, event.id, &event.event);
    let (kind, device) = (&e.kind, e.device);
    match event.severity {
        Severity::Info => tracing::info!(array, kind, device, id, "{}", e.text),
        Severity::Warning => tracing::warn!(array, kind, device, id, "{}", e.text),
        Severity::Error | Severity::Critical => {
            tracing::error!(array, kind, device, id, "{}", e.text);
        }
    }
}

impl Host {
    /// Writes to the history what an array has told since the last time.
    pub(crate) fn record_events(&self, member: &Member) {
        let mut events = Vec::new();
        for event in member.array.events(member.events.get()) {
            member.events.set(event.number);
            events.push((self.unix_seconds(event.at), event));
        }
        self.add_events(&member.array.name(), events);
    }

    /// Notes something that happened to an array, and tells people of it.
    pub(crate) fn tell(&self, array: &str, kind: &str, device: Option<u16>, text: String) {
        let at = self.rt.now();
        let event = Event {
            number: 0,
            at,
            kind: kind.to_string(),
            device,
            text,
            count: 1,
        };
        self.add_events(array, vec![(self.unix_seconds(at), event)]);
    }

    fn add_events(&self, array: &str, mut events: Vec<(u64, Event)>) {
        for (_, event) in &mut events {
            event.text = with_name(&readable(&event.text), array);
            // Whoever goes to replace it looks for a label, not for a path.
            if severity(event) >= Severity::Warning
                && let Some(device) = event.device
                && let Some(drive) = self.drive_at(array, device)
            {
                let of_drive = event.kind.starts_with("drive-"); // its text has the warnings
                let drive = if of_drive {
                    drive.words()
                } else {
                    drive.words_and_warnings()
                };
                if !drive.is_empty() {
                    event.text += &format!(" ({drive})");
                }
            }
        }
        for added in self.history.append(array, events) {
            log_event(&added);
            self.notify(&added);
        }
    }

    /// Has the history take an array's events as they come.
    pub(super) fn follow_events(&self, member: &Rc<Member>, host: Weak<Host>) {
        let member = member.clone();
        self.rt.spawn(async move {
            loop {
                let last = member.events.get();
                member.array.event_after(last).await;
                let Some(host) = host.upgrade() else { return };
                host.record_events(&member);
                if member.array.is_open() {
                    host.tell_changes_of(&member).await; // what was told may have changed its state
                }
                if member.events.get() == last {
                    return; // it is closed, and there is nothing more
                }
            }
        });
    }

    pub(super) async fn events(
        &self,
        wanted: &EventsWanted,
        wait_seconds: u64,
    ) -> Result<EventsReply, Failure> {
        let array = wanted.array.as_deref();
        if wait_seconds == 0 {
            for member in self.arrays.borrow().values() {
                member.array.tell_events();
            }
        }
        let reply = self.events_now(wanted)?;
        if !reply.events.is_empty() || wait_seconds == 0 {
            return Ok(reply);
        }
        if let Some(name) = array {
            self.member(name)?; // nothing more comes of one that is not open
        }
        let gone = || array.is_some_and(|name| !self.arrays.borrow().contains_key(name));
        let more = self.history.newer(array, reply.last_id, gone);
        let limit = wait_seconds.min(LONGEST_WAIT) * SECOND;
        self.rt.timeout(limit, more).await;
        let reply = self.events_now(&EventsWanted {
            after: reply.after,
            since_id: reply.last_id,
            newest: None,
            ..wanted.clone()
        })?;
        if gone() && reply.events.is_empty() {
            return Err(Failure::not_found(
                "the array was exported; its events end here",
            ));
        }
        Ok(reply)
    }

    /// What is known of events now, of an array or of all, also of those that are not open any more.
    fn events_now(&self, wanted: &EventsWanted) -> Result<EventsReply, Failure> {
        let members: Vec<Rc<Member>> = self.arrays.borrow().values().cloned().collect();
        for member in members {
            self.record_events(&member);
        }
        let known = self.history.arrays();
        let names: Vec<String> = match wanted.array.as_deref() {
            Some(name) if known.iter().any(|k| k == name) => vec![name.to_string()],
            Some(name) => vec![self.member(name)?.array.name()],
            None => known,
        };
        let mut reply = EventsReply {
            events: Vec::new(),
            after: BTreeMap::new(),
            last_id: self.history.last_id(),
        };
        for name in names {
            let last = wanted.after.get(&name).copied().unwrap_or(0);
            let mut events = self.history.events(&name, last);
            events.retain(|e| e.id > wanted.since_id && e.unix_seconds >= wanted.since_seconds);
            reply.events.extend(events);
            let last = last.max(self.history.last(&name));
            reply.after.insert(name, last);
        }
        reply.events.sort_by_key(|event| event.id);
        if let Some(newest) = wanted.newest {
            let older = reply.events.len().saturating_sub(newest);
            reply.events.drain(..older);
        }
        Ok(reply)
    }
}
