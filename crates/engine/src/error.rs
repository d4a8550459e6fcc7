//! What can go wrong for an operator or a client. Numbers and identities, no strings made for one
//! case; each sentence says what to do next.

use ashlar_device::Fault;
use ashlar_format::FormatError;
use ashlar_layout::LayoutError;

/// Why an array could not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The layout does not fit the devices.
    #[error("{0}")]
    Layout(#[from] LayoutError),
    /// A name that cannot be used.
    #[error(
        "'{0}' is no name: use 1 to 64 letters, digits, '-', '_' or '.', beginning with a letter or digit"
    )]
    Name(String),
    /// A device is too small.
    #[error(
        "device {device} has {have} bytes; at least {need} are needed with these slots: leave it out or use smaller slots (--slot)"
    )]
    TooSmall {
        /// Position in the list of devices.
        device: usize,
        /// Its bytes.
        have: u64,
        /// What is needed.
        need: u64,
    },
    /// A size that makes no sense.
    #[error("{what} of {value} is not possible: it must be {must}")]
    Size {
        /// Which size.
        what: &'static str,
        /// What was asked.
        value: u64,
        /// The rule.
        must: &'static str,
    },
    /// A device could not be read or written.
    #[error("device {device}: {fault:?}; check the device and its cabling, then try again")]
    Device {
        /// Position in the list, or index in the array.
        device: usize,
        /// What it answered.
        fault: Fault,
    },
    /// Something on a device is not what it should be.
    #[error("device {device}: {source}")]
    Format {
        /// Position in the list, or index in the array.
        device: usize,
        /// What is wrong with it.
        source: FormatError,
    },
    /// No array on these devices.
    #[error(
        "no array was found on these devices; name all its devices, or a directory to look in (--scan)"
    )]
    NoArray,
    /// The devices belong to different arrays.
    #[error(
        "these devices belong to different arrays; import one array at a time, by name or UUID"
    )]
    MixedArrays,
    /// Two devices claim one place: a copy.
    #[error("two devices both claim to be device {0}; one is a copy: take it away")]
    Duplicate(u16),
    /// Histories that went apart.
    #[error(
        "these devices have different histories of generation {0}, and each may hold writes that the other lacks. Bring the missing devices: all of them may show that one side never went on. Or choose a side: import with --degraded, naming only its devices; what only the other side wrote is then lost"
    )]
    Diverged(u64),
    /// Too few devices to start by itself.
    #[error(
        "only {seen} of the {counted} devices that generation {generation} counts are here; find the others, or use --degraded to start without them"
    )]
    TooFew {
        /// Devices seen.
        seen: usize,
        /// Devices counted.
        counted: usize,
        /// The generation.
        generation: u64,
    },
    /// More devices lost than the array survives.
    #[error(
        "the array cannot be read: {lost} devices are missing and its metadata survives {survives}; find the missing devices"
    )]
    Beyond {
        /// Devices missing.
        lost: usize,
        /// What metadata survives.
        survives: usize,
    },
    /// No root could be found.
    #[error(
        "no root was found on the devices; the array was never completely created, or too many devices are missing"
    )]
    NoRoot,
    /// Acknowledged journal records are gone.
    #[error(
        "{0} journal record(s) that were acknowledged cannot be read; find the missing devices, or use --degraded to give up what only those records held"
    )]
    JournalLoss(u64),
    /// Acknowledged journal records whose blocks no stripe on the devices here can hold.
    #[error(
        "the journal holds {0} write(s) whose blocks are too large for what so few devices can hold; find the missing devices, or use --degraded to give these writes up"
    )]
    NoPlace(u64),
    /// More devices were lost while the import ran, and the array stopped.
    #[error("the array stopped while it was imported: {0}")]
    Stopped(String),
    /// A volume that does not exist.
    #[error("there is no volume '{0}'; `ashlar volume list` shows what there is")]
    NoVolume(String),
    /// A volume that exists.
    #[error("there is a volume '{0}' already; use another name")]
    VolumeExists(String),
    /// More was asked than there is.
    #[error(
        "{asked} bytes were asked, {free} are free; ask for less, destroy a volume, or use --thin to promise more than there is"
    )]
    NoSpace {
        /// Asked.
        asked: u64,
        /// Free for new thick volumes.
        free: u64,
    },
    /// Space was promised that a larger reserve would take.
    #[error(
        "volumes were promised so much that clean.reserve can be at most {most} %; destroy a volume, or leave it as it is"
    )]
    Promised {
        /// The largest reserve that fits, in percent; 0 if none does.
        most: u64,
    },
    /// A device index beyond the array.
    #[error("the array has no device {0}")]
    NoDevice(u16),
    /// The two superblocks of a device (by position) name different devices.
    #[error(
        "device {0} has superblocks of two devices: a write for one has landed on it; leave it out, and give the array another in its place"
    )]
    TwoDevices(usize),
    /// The operator's word is needed.
    #[error(
        "failing device {0} would leave data without a copy: wait for what is being rebuilt (`ashlar wait`), or use -f if that is meant"
    )]
    WouldLose(u16),
    /// Too few devices agree on a generation.
    #[error(
        "only {stored} of {counted} devices could store the new generation: bring devices back, or go on without them: --degraded at an import, `fail -f` when writes wait"
    )]
    NoQuorum {
        /// Devices that stored it.
        stored: usize,
        /// Devices counted before.
        counted: usize,
    },
    /// A setting that does not exist.
    #[error("there is no setting '{key}'; those there are: {known}")]
    NoSetting {
        /// Key.
        key: String,
        /// The keys of this array or volume.
        known: String,
    },
    /// A value that a setting does not take.
    #[error("{key} cannot be '{value}': it takes {takes} (default: {default})")]
    Setting {
        /// Key.
        key: &'static str,
        /// Value.
        value: String,
        /// What it takes.
        takes: &'static str,
        /// What it is unless set.
        default: &'static str,
    },
    /// Imported read-only.
    #[error("the array was imported read-only; export it and import it without --read-only")]
    ReadOnly,
    /// Exported or failed.
    #[error("the array is closed")]
    Closed,
}
