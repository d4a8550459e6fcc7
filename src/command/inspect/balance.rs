//! `inspect --balance`: with how many segments each other device shares the columns that lie here. Where
//! segments are spread evenly, all devices help alike when this one is lost.
//!
//! **Invariants**: only headers that match the slot table count; what they name beyond the array's devices
//! is passed over.

use serde_json::{Value, json};

use super::found::{Found, header};
use crate::view::table;

/// What the headers say.
struct Balance {
    /// Segments shared with each device; with this one, those that lie here.
    shared: Vec<u64>,
    /// Slots whose header is damaged or of another segment.
    bad: u64,
}

fn balance(found: &Found) -> Balance {
    let mut shared = vec![0; found.superblock.members.len()];
    let mut bad = 0;
    for (slot, entry) in found.slots.iter().enumerate() {
        let Some(entry) = entry else { continue };
        match header(found, slot).1 {
            Ok(header) if header.entry == *entry => {
                for device in header.devices {
                    if let Some(shared) = shared.get_mut(usize::from(device)) {
                        *shared += 1;
                    }
                }
            }
            _ => bad += 1,
        }
    }
    Balance { shared, bad }
}

impl Balance {
    /// Of the other devices: the fewest, the mean, and the most segments shared.
    fn spread(&self, own: u16) -> (u64, f64, u64) {
        let others = self.shared.iter().enumerate();
        let others: Vec<u64> = others
            .filter(|(device, _)| *device != usize::from(own))
            .map(|(_, shared)| *shared)
            .collect();
        let sum: u64 = others.iter().sum();
        let mean = sum as f64 / others.len().max(1) as f64;
        let (least, most) = (others.iter().min(), others.iter().max());
        (*least.unwrap_or(&0), mean, *most.unwrap_or(&0))
    }
}

/// For `-j`.
pub(super) fn value(found: &Found) -> Value {
    let balance = balance(found);
    let (least, mean, most) = balance.spread(found.superblock.index);
    json!({
        "index": found.superblock.index,
        "segments": balance.shared.get(usize::from(found.superblock.index)),
        "shared": balance.shared,
        "least": least, "mean": mean, "most": most,
        "bad_headers": balance.bad,
    })
}

/// For people.
pub(super) fn text(found: &Found) -> String {
    let balance = balance(found);
    let own = found.superblock.index;
    let (least, mean, most) = balance.spread(own);
    let bar = |shared: u64| "#".repeat(usize::try_from(shared * 40 / most.max(1)).unwrap_or(0));
    let rows = balance.shared.iter().enumerate();
    let rows = rows.filter(|(device, _)| *device != usize::from(own));
    let rows = rows
        .map(|(device, shared)| vec![device.to_string(), shared.to_string(), bar(*shared)])
        .collect();
    let mut text = format!(
        "device {own} holds columns of {} segments; each other device shares {least} to {most} of them, \
         {mean:.1} on average\n",
        balance.shared.get(usize::from(own)).copied().unwrap_or(0),
    );
    if balance.bad > 0 {
        text += &format!(
            "{} slots have no good header and are not counted\n",
            balance.bad
        );
    }
    text + &table::table(&["DEVICE", "SHARED", ""], rows, &[0, 1], false)
}
