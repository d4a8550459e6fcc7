//! Watching whether another host uses an array, before its import: no other array and no request waits meanwhile.
//!
//! **Invariants**: devices are only read, and not held; the end of the process waits for no watch.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use ashlar_engine::{Error, Waits, Watched, uuid_text};
use ashlar_rt::join_all;

use crate::api::Import;
use crate::daemon::find::{Devices, Seen, name_of, names};
use crate::daemon::host::{Host, explain};
use crate::daemon::missing::not_here;
use crate::daemon::open::Access;
use crate::daemon::state::Known;
use crate::failure::Failure;

/// How long a watch takes at most, for the service manager.
const WATCH_SECONDS: u64 = 120;

impl Host {
    /// Watches these devices of an array; `None`: none of them can be opened to look, and the import says why.
    ///
    /// # Errors
    /// Another host uses it, or may.
    pub(super) async fn watch_others(
        self: &Rc<Host>,
        devices: &Devices,
        import: &Import,
    ) -> Result<Option<Watched>, Failure> {
        let (mut opened, mut paths) = (Vec::new(), Vec::new());
        for (path, _) in devices {
            if let Ok(device) = self.opener.open(path, Access::Look).await {
                opened.push(device);
                paths.push(path.display().to_string());
            }
        }
        let Some((_, label)) = devices.first().filter(|_| !opened.is_empty()) else {
            return Ok(None);
        };
        let (name, uuid) = (name_of(devices), uuid_text(&label.array_uuid));
        let waits = {
            let (host, name, uuid) = (self.clone(), name.clone(), uuid.clone());
            Waits::new(move |line| {
                tracing::warn!(array = name, "{line}");
                host.keep_waiting(&uuid, line);
                let line = format!("{name}: {line}");
                host.manager.wait_longer(WATCH_SECONDS, &line);
            })
        };
        let options = ashlar_engine::Import {
            array: Some(label.array_uuid),
            degraded: import.degraded,
            take_over: import.take_over,
            waits,
            settings: self.settings.clone(),
            ..ashlar_engine::Import::default()
        };
        let given: Vec<&str> = paths.iter().map(String::as_str).collect();
        let watched = ashlar_engine::watch(&self.rt, opened, &options).await;
        let missing = match &watched {
            Ok(_) | Err(Error::LastUsedBy(_) | Error::UsedBy(_) | Error::UsedMeanwhile) => {
                Vec::new()
            }
            Err(_) => self.missing(devices).await,
        };
        let named = |error| {
            let failure = explain(&error, &given);
            let mut text = format!("array {name}: {failure}{}", not_here(&missing));
            if matches!(error, Error::LastUsedBy(_)) {
                text += &format!(
                    "; if that host is switched off, 'ashlar import {name} -f' takes it over"
                );
            }
            self.keep_waiting(&uuid, &text);
            Failure { text, ..failure }
        };
        watched.map(Some).map_err(named)
    }

    /// Watches what `import` asks for, before anything else waits for it.
    pub(super) async fn watch_asked(self: &Rc<Host>, import: &mut Import) {
        let wanted = import.array.clone();
        if wanted.as_ref().is_some_and(|w| self.imported(w).is_some()) {
            return;
        }
        let is_wanted = |uuid: &str, devices: &Devices| match &wanted {
            Some(wanted) => uuid == wanted || names(devices).contains(&wanted[..]),
            None => true,
        };
        let Ok(Seen { found, .. }) = self.find(&import.scan).await else {
            return; // the import finds that, too
        };
        let watch = |(uuid, devices): (String, Devices)| {
            let (host, import) = (self.clone(), import.clone());
            let watch = async move { (uuid, host.watch_others(&devices, &import).await) };
            self.rt.spawn(watch)
        };
        let wanted = found.into_iter().filter(|(uuid, d)| is_wanted(uuid, d));
        let watches: Vec<_> = wanted.map(watch).collect();
        for (uuid, watched) in join_all(watches).await {
            if let Some(watched) = watched.transpose() {
                import.watched.0.insert(uuid, watched);
            }
        }
    }

    /// The same for an array of the last run; the end of the process ends it.
    pub(super) async fn watch_known(
        self: &Rc<Host>,
        known: &Known,
        devices: &Devices,
        import: &mut Import,
    ) {
        let watched = {
            let mut watch = pin!(self.watch_others(devices, import));
            let mut ended = pin!(self.ending_gate.until(|| self.ending.get()));
            let both = poll_fn(|cx| match watch.as_mut().poll(cx) {
                Poll::Ready(watched) => Poll::Ready(watched.transpose()),
                Poll::Pending => ended.as_mut().poll(cx).map(|()| None),
            });
            both.await
        };
        if let Some(watched) = watched {
            import.watched.0.insert(known.uuid.clone(), watched);
        }
    }
}
