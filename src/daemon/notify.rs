//! Telling people: a program that is run, an address that is posted to, for each event that is news.
//!
//! **Invariants**: the engine's thread waits for neither; each way has a thread of its own, takes what happened in
//! order, and bounds both what waits for it and how long one takes; no shell reads what comes from outside; what could
//! not be told stands in the log, and in the answer to `notify test`.

use std::collections::BTreeMap;
use std::path::Path;

use ashlar_engine::uuid_text;
use ashlar_rt::oneshot;

use crate::api::{ArrayEvent, NotifyReply, Severity, Told};
use crate::daemon::host::{Host, Member};
use crate::daemon::notifier::{News, parse_address};
use crate::daemon::open::on_thread;
use crate::daemon::severity::is_news;
use crate::daemon::state::{NOTIFY_SETTINGS, NotifySettings};
use crate::failure::Failure;

/// Checks a value; an empty one takes the setting away.
fn check(key: &str, value: &str) -> Result<(), Failure> {
    let wrong = |why: String| Failure::invalid(format!("{key}={value}: {why}"));
    if value.is_empty() {
        return Ok(());
    }
    if key == "notify.webhook" {
        return parse_address(value).map(|_| ()).map_err(wrong);
    }
    let found = Path::new(value).metadata();
    let runs = found.is_ok_and(|m| {
        m.is_file() && std::os::unix::fs::PermissionsExt::mode(&m.permissions()) & 0o111 != 0
    });
    if !value.starts_with('/') || !runs {
        let why = "give the absolute path of an executable program, without arguments";
        return Err(wrong(why.to_string()));
    }
    Ok(())
}

impl Host {
    /// Changes one of these settings; false if `key` is none of them.
    ///
    /// # Errors
    /// If the value is not one, or cannot be kept.
    pub(crate) async fn set_notify(
        &self,
        member: &Member,
        key: &str,
        value: &str,
    ) -> Result<bool, Failure> {
        if !NOTIFY_SETTINGS.iter().any(|(known, _)| *known == key) {
            return Ok(false);
        }
        // What is looked at may lie on a volume of ours: this thread serves it.
        let (of, is) = (key.to_string(), value.to_string());
        on_thread(move || check(&of, &is)).await??;
        let uuid = uuid_text(&member.array.uuid());
        let before = self.state.notify.borrow().clone();
        {
            let mut all = self.state.notify.borrow_mut();
            let settings = all.entry(uuid).or_default();
            let place = if key == "notify.exec" {
                &mut settings.exec
            } else {
                &mut settings.webhook
            };
            value.clone_into(place);
            all.retain(|_, settings| !settings.is_empty());
        }
        if let Err(failure) = self.save() {
            *self.state.notify.borrow_mut() = before;
            return Err(failure);
        }
        Ok(true)
    }

    /// These settings, or the one that is `key`.
    pub(crate) fn get_notify(
        &self,
        member: &Member,
        key: Option<&str>,
    ) -> BTreeMap<String, String> {
        let settings = self.notify_settings(&uuid_text(&member.array.uuid()));
        let values = [settings.exec, settings.webhook];
        let all = NOTIFY_SETTINGS.iter().map(|(known, _)| *known).zip(values);
        let wanted = all.filter(|(known, _)| key.is_none_or(|key| key == *known));
        wanted
            .map(|(known, value)| (known.to_string(), value))
            .collect()
    }

    fn notify_settings(&self, uuid: &str) -> NotifySettings {
        self.state
            .notify
            .borrow()
            .get(uuid)
            .cloned()
            .unwrap_or_default()
    }

    /// Tells people of an event, if it is news.
    pub(crate) fn notify(&self, event: &ArrayEvent) {
        if !is_news(&event.event.kind, event.severity) {
            return;
        }
        let Some(uuid) = self.uuid_of(&event.array) else {
            return;
        };
        let settings = self.notify_settings(&uuid);
        for (way, target) in [
            (&self.notifier.exec, settings.exec),
            (&self.notifier.webhook, settings.webhook),
        ] {
            let (event, outcome) = (event.clone(), None);
            let news = News {
                target,
                event,
                outcome,
            };
            if !news.target.is_empty() && way.as_ref().is_none_or(|way| way.try_send(news).is_err())
            {
                tracing::warn!("an event was not sent: too many wait to be sent");
            }
        }
    }

    /// The UUID of an array that is here, or should be.
    fn uuid_of(&self, name: &str) -> Option<String> {
        if let Some(member) = self.arrays.borrow().get(name) {
            return Some(uuid_text(&member.array.uuid()));
        }
        let waiting = self.waiting.borrow();
        let known = waiting.iter().find(|(known, _)| known.name == name);
        known.map(|(known, _)| known.uuid.clone())
    }

    /// Tries everything that is set, once.
    ///
    /// # Errors
    /// If nothing is set.
    pub(crate) async fn notify_test(&self) -> Result<NotifyReply, Failure> {
        let names: Vec<String> = self.arrays.borrow().keys().cloned().collect();
        let mut tried = Vec::new();
        for array in names {
            let uuid = self.uuid_of(&array).unwrap_or_default();
            let settings = self.notify_settings(&uuid);
            for (way, sender, target) in [
                ("exec", &self.notifier.exec, settings.exec),
                ("webhook", &self.notifier.webhook, settings.webhook),
            ] {
                if target.is_empty() {
                    continue;
                }
                let (outcome, answer) = oneshot();
                let news = News {
                    target: target.clone(),
                    event: test_event(&array, self.unix_seconds(self.rt.now())),
                    outcome: Some(outcome),
                };
                let sent = sender.as_ref().is_some_and(|s| s.try_send(news).is_ok());
                let result = if sent { answer.await } else { None };
                let lost = || Err("too many events wait to be sent".to_string());
                tried.push(Told {
                    array: array.clone(),
                    way: way.to_string(),
                    target,
                    error: result.unwrap_or_else(lost).err(),
                });
            }
        }
        if tried.is_empty() {
            return Err(Failure::refused(
                "no notification is set up; first 'ashlar set ARRAY notify.exec=PROGRAM', or \
                 notify.webhook=http://HOST/PATH",
            ));
        }
        Ok(NotifyReply { tried })
    }
}

fn test_event(array: &str, unix_seconds: u64) -> ArrayEvent {
    ArrayEvent {
        array: array.to_string(),
        unix_seconds,
        id: 0,
        severity: Severity::Info,
        event: ashlar_engine::status::Event {
            number: 0,
            at: 0,
            kind: "test".to_string(),
            device: None,
            text: "this is a test of notifications ('ashlar notify test')".to_string(),
            count: 1,
        },
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::daemon::notifier::run_program;

    #[test]
    fn addresses_and_programs_are_checked_before_they_are_kept() {
        let parts = parse_address("http://alerts.example:8080/a?b=c").unwrap();
        assert_eq!(
            parts,
            ("alerts.example:8080".to_string(), "/a?b=c".to_string())
        );
        assert_eq!(parse_address("http://h").unwrap().0, "h:80");
        for bad in ["https://h/", "h/x", "ftp://h/", "http://", "http:///x"] {
            assert!(check("notify.webhook", bad).is_err(), "{bad}");
        }
        check("notify.exec", "/bin/sh").unwrap();
        check("notify.exec", "").unwrap();
        for bad in ["sh", "/etc/passwd", "/nothing/here", "/bin"] {
            assert!(check("notify.exec", bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_program_that_fails_or_is_not_there_is_said() {
        let event = test_event("t", 1);
        run_program("/bin/true", &event).unwrap();
        assert!(
            run_program("/bin/false", &event)
                .unwrap_err()
                .contains("exit status: 1")
        );
        assert!(
            run_program("/no/such", &event)
                .unwrap_err()
                .contains("cannot be started")
        );
    }
}
