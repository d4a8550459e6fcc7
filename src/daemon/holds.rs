//! What a device holds: a device of an array, a partition of Ashlar's, or something else that is known; and which
//! devices the arrays here have.
//!
//! **Invariants**: devices are only read; what cannot be read is told apart from what is empty.

use std::path::Path;
use std::rc::Rc;

use ashlar_device::DeviceRef;
use ashlar_engine::status::{ArrayState, DeviceStatus};
use ashlar_engine::{Error, Label, probe, uuid_text};
use ashlar_format::geometry::super_bytes;
use ashlar_format::superblock::MAGIC;
use ashlar_rt::{BLOCK, Buf};

use crate::daemon::host::{Host, Member};
use crate::daemon::open::{ANSWER_WAIT, Access, no_answer};
use crate::failure::Failure;

/// Something that a device holds.
#[derive(Clone, Debug)]
pub(crate) enum Held {
    /// A device of an array.
    Member(Label),
    /// Superblocks of two devices of an array.
    TwoMembers,
    /// A superblock of Ashlar's that this program cannot read.
    Illegible,
    /// The partition table that Ashlar gives a disk.
    Table {
        /// No device of an array lies in its partition.
        empty: bool,
    },
    /// Something of others; of a file, any data.
    Other(&'static str),
}

impl Held {
    /// For people.
    pub(crate) fn words(&self) -> String {
        match self {
            Held::Member(label) => format!(
                "device {} of array {} ({})",
                label.index,
                label.array_name,
                uuid_text(&label.array_uuid)
            ),
            Held::TwoMembers => "superblocks of two devices of an array".to_string(),
            Held::Illegible => {
                "a superblock of Ashlar's, damaged or of another version".to_string()
            }
            Held::Table { empty: true } => {
                "a partition of Ashlar's without a device of an array".to_string()
            }
            Held::Table { empty: false } => "Ashlar's partition table".to_string(),
            Held::Other(what) => (*what).to_string(),
        }
    }
}

/// What a look at a device gave.
#[derive(Clone, Debug, Default)]
pub(crate) struct Holds {
    /// The most telling first.
    pub(crate) held: Vec<Held>,
    /// Why its superblocks cannot be read.
    pub(crate) unreadable: Option<Failure>,
}

impl Holds {
    /// What it says of itself, if it is a device of an array.
    pub(crate) fn label(&self) -> Option<&Label> {
        self.held.iter().find_map(|held| match held {
            Held::Member(label) => Some(label),
            _ => None,
        })
    }

    /// For people.
    pub(crate) fn words(&self) -> Vec<String> {
        self.held.iter().map(Held::words).collect()
    }
}

/// A device of an array that is open here.
#[derive(Clone, Debug)]
pub(crate) struct Here {
    pub(crate) array: String,
    pub(crate) uuid: String,
    pub(crate) array_state: ArrayState,
    pub(crate) generation: u64,
    pub(crate) device: DeviceStatus,
}

impl Here {
    /// For people: which device, and how it is.
    pub(crate) fn words(&self) -> String {
        let state = format!("{:?}", self.device.state).to_lowercase();
        format!(
            "device {} of array {}, {state}",
            self.device.index, self.array
        )
    }

    /// Whether the array has what is at this path.
    pub(crate) fn is_at(&self, path: &Path) -> bool {
        self.device.is_held() && Path::new(&self.device.path) == path
    }

    /// Whether this is the device that says so of itself.
    pub(crate) fn says(&self, label: &Label) -> bool {
        self.uuid == uuid_text(&label.array_uuid)
            && self.device.uuid == uuid_text(&label.device_uuid)
    }
}

impl Host {
    /// What is at `path`.
    ///
    /// # Errors
    /// If it cannot be opened, or does not answer.
    pub(super) async fn holds(&self, path: &Path, access: Access) -> Result<Holds, Failure> {
        let look = self.rt.timeout(ANSWER_WAIT, self.look_into(path, access));
        look.await.unwrap_or_else(|| Err(no_answer(path)))
    }

    async fn look_into(&self, path: &Path, access: Access) -> Result<Holds, Failure> {
        let device = self.opener.open(path, access).await?;
        let mut holds = Holds::default();
        match probe(&device).await {
            Ok(Some(label)) => holds.held.push(Held::Member(label)),
            Err(Error::TwoDevices(_)) => holds.held.push(Held::TwoMembers),
            Ok(None) | Err(Error::Format { .. }) if has_superblock(&device).await => {
                holds.held.push(Held::Illegible);
            }
            Ok(None) => {}
            Err(error) => {
                let text = format!("{}: {error}", path.display());
                holds.unreadable = Some(Failure::broken(text));
            }
        }
        drop(device);
        let bare = self.opener.open_bare(path, access).await?;
        let (bare, ours) = self
            .opener
            .ask(path, move || {
                let ours = bare.own_partition().is_some();
                (bare, ours)
            })
            .await?;
        if ours {
            let empty = holds.held.is_empty();
            holds.held.push(Held::Table { empty });
        } else if holds.held.is_empty() {
            let (bare, data) = self
                .opener
                .ask(path, move || {
                    let data = bare.holds_data();
                    (bare, data)
                })
                .await?;
            let found = ashlar_device::signature(&self.opener.serve(bare)).await;
            let found = found.or(data.then_some("data that is not known"));
            holds.held.extend(found.map(Held::Other));
        }
        Ok(holds)
    }

    /// The devices of all arrays that are open here.
    pub(super) async fn devices_here(&self) -> Vec<Here> {
        let members: Vec<Rc<Member>> = self.arrays.borrow().values().cloned().collect();
        let mut all = Vec::new();
        for member in members {
            let status = self.status_of(&member).await;
            all.extend(status.devices.into_iter().map(|device| Here {
                array: status.name.clone(),
                uuid: status.uuid.clone(),
                array_state: status.state,
                generation: status.generation,
                device,
            }));
        }
        all
    }
}

/// Whether either place of a superblock begins as one does.
async fn has_superblock(device: &DeviceRef) -> bool {
    let size = device.info().size_bytes;
    let second = size.saturating_sub(super_bytes(size));
    for offset in [0, second] {
        let (block, read) = device.read(offset, Buf::zeroed(BLOCK)).await;
        if read.is_ok() && block.starts_with(MAGIC) {
            return true;
        }
    }
    false
}
