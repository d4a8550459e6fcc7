//! `notify test`.
//!
//! **Invariants**: it ends with success only if everything that is set could be told.

use crate::api::{Call, NotifyReply};
use crate::failure::Failure;
use crate::print::Context;
use crate::view::safe;

/// `notify test`.
///
/// # Errors
/// If nothing is set, or something could not be told.
pub(crate) fn test(context: &Context) -> Result<(), Failure> {
    let reply: NotifyReply = context.client.call(&Call::NotifyTest)?;
    context.print("notify test", &reply, || {
        let mut text = String::new();
        for told in &reply.tried {
            let how = told
                .error
                .as_deref()
                .map_or("told".to_string(), |e| format!("FAILED: {e}"));
            text += &format!(
                "{}: notify.{} {}: {}\n",
                safe(&told.array),
                told.way,
                safe(&told.target),
                safe(&how)
            );
        }
        text
    })?;
    let failed = reply.tried.iter().filter(|t| t.error.is_some()).count();
    if failed > 0 {
        return Err(Failure::broken(format!(
            "{failed} of {} notifications failed; fix the settings named above ('ashlar set'), and try again",
            reply.tried.len()
        )));
    }
    Ok(())
}
