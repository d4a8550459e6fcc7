//! Stopping what serves an array for a verb, and serving it again where the verb then fails.
//!
//! **Invariants**: writes that were lost are an event and a line of the answer, whatever comes of the verb.

use ashlar_engine::status::Frontend;

use crate::daemon::frontends::{Stopped, attach_flag};
use crate::daemon::host::{Host, Member};
use crate::failure::Failure;

impl Host {
    /// Stops frontends of an array: of one volume or of all, these or all. Either all of them stop, or
    /// all go on serving, but for one whose last writes have failed.
    ///
    /// # Errors
    /// If a client still uses one, or its last writes have failed and the array has not stopped.
    pub(crate) async fn stop_frontends(
        &self,
        member: &Member,
        volume: Option<&str>,
        which: Option<&[Frontend]>,
        force: bool,
    ) -> Result<Stopped, Failure> {
        let outcome = self.frontends.stop(&member.array, volume, which, force);
        match outcome.await {
            Ok(stopped) => {
                self.tell_lost(member, &stopped);
                Ok(stopped)
            }
            Err((mut stopped, failure)) => {
                self.tell_lost(member, &stopped);
                let failure = and_left(failure, &std::mem::take(&mut stopped.left));
                self.serve_again(member, stopped).await;
                Err(failure)
            }
        }
    }

    /// Tells of writes that were lost as frontends stopped.
    pub(super) fn tell_lost(&self, member: &Member, stopped: &Stopped) {
        let array = member.array.name();
        for line in &stopped.lost {
            self.tell(&array, "writes-lost", None, line.clone());
        }
        if let Some((volume, frontend)) = &stopped.gone {
            let how = attach_flag(frontend);
            let why = format!(
                "its last writes have failed as it was detached; 'ashlar volume attach {array}/{volume} {how}' serves \
                 it again, 'ashlar volume detach {array}/{volume}' forgets it"
            );
            self.say_gone(&array, volume, frontend, &why);
        }
    }

    /// Serves again what was stopped for a change that then could not be made.
    pub(super) async fn serve_again(&self, member: &Member, stopped: Stopped) {
        let array = member.array.name();
        for (volume, stored) in stopped.frontends {
            if let Err(failure) = self.serve(member, &array, &volume, &stored).await {
                self.say_not_served(&array, &volume, &stored, &failure);
            }
        }
    }
}

/// A failure, and what is to be known beside it.
pub(super) fn and_left(failure: Failure, left: &[String]) -> Failure {
    let mut text = failure.text;
    for line in left {
        text += &format!("; {line}");
    }
    Failure::of_kind(failure.kind, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_says_what_is_left() {
        let failure = and_left(Failure::refused("a"), &["b".into(), "c".into()]);
        assert_eq!(failure, Failure::refused("a; b; c"));
        assert_eq!(and_left(failure.clone(), &[]), failure);
    }
}
