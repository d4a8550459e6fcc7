//! What may be set of a single device.
//!
//! **Invariants**: what is refused changes nothing.

use crate::api::{DeviceSet, DeviceSetReply};
use crate::daemon::host::{Host, failure_of};
use crate::failure::Failure;

impl Host {
    /// `device set`.
    ///
    /// # Errors
    /// Why it cannot be: nothing was changed.
    pub(super) async fn set_device(&self, call: DeviceSet) -> Result<DeviceSetReply, Failure> {
        let member = self.member(&call.array)?;
        let found = self.device_named(&member, &call.device).await?;
        let usable_before = self.status_of(&member).await.capacity.usable_bytes;
        let mut reply = DeviceSetReply {
            array: call.array.clone(),
            device: found.index,
            path: found.last_path,
            was_bytes: found.size_bytes,
            size_bytes: found.size_bytes,
            was_domain: found.domain.clone(),
            domain: found.domain,
            usable_before,
            usable_bytes: usable_before,
        };
        match (&call.key[..], &call.value[..]) {
            ("size", "max") => {
                let grown = member.array.use_all_of(found.index).await;
                reply.size_bytes = grown.map_err(failure_of)?.size_bytes;
            }
            ("size", value) => {
                return Err(Failure::invalid(format!(
                    "size cannot be '{value}': the array uses all of a device; size=max, once it has grown"
                )));
            }
            ("domain", label) => {
                let set = member.array.set_domain(found.index, label).await;
                set.map_err(failure_of)?;
                reply.domain = label.to_string();
            }
            (key, _) => {
                return Err(Failure::invalid(format!(
                    "a device has no '{key}' to set; what can be set is size=max and domain=LABEL"
                )));
            }
        }
        reply.usable_bytes = self.status_of(&member).await.capacity.usable_bytes;
        Ok(reply)
    }
}
