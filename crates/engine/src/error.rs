//! Errors that operators and clients see. Numbers and identities, no strings made for one case; each sentence says
//! what to do next. ` ARRAY` stands for the array's name in commands: whoever knows the name puts it there.

use ashlar_device::Fault;
use ashlar_format::FormatError;
use ashlar_layout::LayoutError;

fn devices(number: usize) -> String {
    match number {
        1 => "1 device".to_string(),
        many => format!("{many} devices"),
    }
}

/// Why an array could not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The layout does not fit the devices.
    #[error("{0}")]
    Layout(#[from] LayoutError),
    /// A name that cannot be used.
    #[error(
        "'{0}' is not a valid name: use 1 to 64 letters, digits, '-', '_' or '.', beginning with a letter or \
         digit"
    )]
    Name(String),
    /// A device is too small.
    #[error(
        "device {device} is too small: it has {have} bytes, and this slot size needs {need}; leave it out or \
         give a smaller --slot"
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
    #[error("device {device}: {fault}; check the device and its cabling, then try again")]
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
    #[error(
        "two of these devices say that they are device {0}: one is a copy; disconnect the copy, then import \
        again"
    )]
    Duplicate(u16),
    /// Histories that went apart.
    #[error(
        "these devices have different histories of generation {0} (split brain): each side may hold writes that \
         the other lacks. Connect the missing devices and import again: together they may show that only one \
         side was written. Or choose a side: connect only its devices and import with --degraded; writes that \
         only the other side holds are then lost"
    )]
    Diverged(u64),
    /// Too few devices to start by itself.
    #[error(
        "only {seen} of the {counted} devices that generation {generation} counts are here, more are missing than the \
         layout survives, or some that may have the newest writes; connect the others, or use --degraded to start \
         without them: what only they hold is lost then"
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
        "the array cannot be read: {lost} of its devices in use are missing, too many for its metadata; connect \
         them and import again"
    )]
    Beyond {
        /// Devices missing.
        lost: usize,
        /// What metadata survives.
        survives: usize,
    },
    /// Another host uses the array: its beat is seen.
    #[error("host {0} uses it: its beat moves; export it there first")]
    UsedBy(String),
    /// Fewer than half of the devices take the beat.
    #[error("fewer than half of its devices take a write; check the devices, then import it again")]
    NoBeat,
    /// The array has changed since its devices were looked at.
    #[error(
        "another host used it while it was being imported; export it there, then import it again"
    )]
    UsedMeanwhile,
    /// Another host used the array last, and has not let it go.
    #[error("host {0} used it last and did not export it")]
    LastUsedBy(String),
    /// No root could be found.
    #[error(
        "no checkpoint was found on these devices: too many devices are missing, or 'create' did not finish; \
         connect the missing devices and import again"
    )]
    NoRoot,
    /// Acknowledged journal records are gone.
    #[error(
        "{0} journal record(s) of acknowledged writes cannot be read; connect the missing devices and import \
         again, or use --degraded to start without these writes: they are then lost"
    )]
    JournalLoss(u64),
    /// Acknowledged journal records whose blocks no stripe on the devices here can hold.
    #[error(
        "the journal holds {0} write(s) that do not fit on the few devices that are here; connect the missing \
         devices and import again, or use --degraded to start without these writes: they are then lost"
    )]
    NoPlace(u64),
    /// More devices were lost while the import ran, and the array stopped.
    #[error("the array stopped during its import: {0}")]
    Stopped(String),
    /// A volume that does not exist.
    #[error("no volume '{0}' in this array; 'ashlar volume list' shows its volumes")]
    NoVolume(String),
    /// A volume that exists.
    #[error("volume '{0}' exists already; use another name")]
    VolumeExists(String),
    /// A volume whose size is being changed.
    #[error("the size of volume '{0}' is being changed; try again when that is done")]
    Resizing(String),
    /// What lies beyond a volume's new end could not be taken out of its map.
    #[error(
        "volume '{volume}' keeps its size, and what lay beyond {size} bytes may be gone: {why}; make another volume \
         of the right size, and copy"
    )]
    NotCleared {
        /// The volume.
        volume: String,
        /// The size that it was to have.
        size: u64,
        /// What was in the way.
        why: ashlar_block::VolumeError,
    },
    /// More was asked than there is.
    #[error(
        "too little free space: {asked} bytes asked, {free} bytes free; ask for less, destroy a volume, or use \
         --thin to promise more than is free"
    )]
    NoSpace {
        /// Asked.
        asked: u64,
        /// Free for new thick volumes.
        free: u64,
    },
    /// Space was promised that a larger reserve would take.
    #[error(
        "clean.reserve can be at most {most} % now: the rest of the space is promised to volumes; destroy a \
         volume first, or leave the setting as it is"
    )]
    Promised {
        /// The largest reserve that fits, in percent; 0 if none does.
        most: u64,
    },
    /// A device index beyond the array.
    #[error("the array has no device {0}; 'ashlar status -v' lists its devices")]
    NoDevice(u16),
    /// The two superblocks of a device (by position) name different devices.
    #[error(
        "device {0} holds the superblocks of two devices: a write for the other device was misdirected to it; \
         leave it out and use another device in its place"
    )]
    TwoDevices(usize),
    /// The operator's word is needed.
    #[error(
        "failing device {0} now would lose data that the other devices cannot compute; wait for the rebuild \
         ('ashlar wait ARRAY'), or give -f to fail it and lose that data"
    )]
    WouldLose(u16),
    /// A device that is to come in, or to be replaced, is in use.
    #[error("device {0} is in use; 'ashlar offline ARRAY {0}' takes it out of use")]
    InUse(u16),
    /// Another take-in of it is under way.
    #[error("device {0} is just being taken in; 'ashlar status -v' shows what comes of it")]
    ComesIn(u16),
    /// A device that is added has too little room to be of use.
    #[error(
        "the device has room for {have} slots, and needs {need}, a quarter of those of the smallest device in use; use \
         a larger one"
    )]
    TooSmallToAdd {
        /// Slots that fit.
        have: u32,
        /// Slots needed.
        need: u32,
    },
    /// A hot spare is in no use that could be taken from it.
    #[error(
        "device {0} is a hot spare: it holds nothing until another device is lost; 'ashlar remove' takes it out"
    )]
    HotSpare(u16),
    /// No hot spare takes the place of a device that has come back, is expected back, or may have the last copy of something.
    #[error(
        "device {0} is expected back, is there again, or may have the last copy of something: no hot spare takes its place"
    )]
    Awaited(u16),
    /// A hot spare could take the place of no device, since none is of its failure domain.
    #[error(
        "no device of the array is in the failure domain '{0}', and a hot spare takes the place of devices of its own \
         only: name the domain that the device is in, and add one hot spare to each"
    )]
    NoDomainToSpare(String),
    /// A hot spare could take the place of no device.
    #[error(
        "the device has room for {have} slots, and the smallest device that it could take the place of has {need}; use \
         a larger one"
    )]
    TooSmallToSpare {
        /// Slots that fit.
        have: u32,
        /// Slots needed.
        need: u32,
    },
    /// Changes of members came faster than merges.
    #[error(
        "too many changes of devices came one after the other; try again once 'ashlar status' shows no work that waits"
    )]
    EpochsFull,
    /// The label of a failure domain is too long.
    #[error("the failure domain {0} is longer than 32 bytes; give it a shorter name")]
    Domain(String),
    /// The table of members is full.
    #[error(
        "the smallest device has room for a table of {most} devices, and those that were removed count; use larger \
         devices, or copy the data to a new array"
    )]
    TooManyMembers {
        /// How many there may be.
        most: usize,
    },
    /// A device that is to leave, or to stay, is not in use.
    #[error(
        "device {0} is not in use; 'ashlar status -v' says why, and 'ashlar remove' takes it out of the books once its \
         data is rebuilt"
    )]
    NotInUse(u16),
    /// In other failure domains an array could not lose any of them any more.
    #[error(
        "with device {index} in that failure domain the loss of a domain could lose data: with at most {m} column(s) in \
         each, segments have room for {have} columns in a group, and the layout has {need}; give it another domain, or \
         add devices in others"
    )]
    TooFewDomains {
        /// The device.
        index: u16,
        /// Columns of a segment that have room.
        have: usize,
        /// Columns of a segment.
        need: usize,
        /// Columns that may lie in a domain.
        m: usize,
    },
    /// In other failure domains the devices do not hold what volumes were promised.
    #[error(
        "with device {index} in that failure domain volumes may be promised {usable} bytes, and have been promised \
         {promised}; make a volume smaller, destroy one, or trim file systems on thin ones, or add devices: 'ashlar add \
         ARRAY DEV'"
    )]
    NoRoomInDomain {
        /// The device.
        index: u16,
        /// Promised to volumes.
        promised: u64,
        /// The most that may be promised then.
        usable: u64,
    },
    /// A device is to be used whole, and is.
    #[error(
        "device {index} has not grown: it has {have} bytes, and the array uses them; enlarge the file, partition or LUN \
         first (a whole disk is used as far as the partition that Ashlar made on it)"
    )]
    NotGrown {
        /// The device.
        index: u16,
        /// Its size.
        have: u64,
    },
    /// What a device has grown by gives no slot.
    #[error(
        "device {index} has grown by {more} bytes, too few to be of use; enlarge the file, partition or LUN further"
    )]
    GrownTooLittle {
        /// The device.
        index: u16,
        /// Bytes more than it had.
        more: u64,
    },
    /// A device is smaller than the array takes it for.
    #[error(
        "device {index} has shrunk: it has {have} bytes, and the array uses {need}; what lay behind its end is lost: \
         'ashlar replace ARRAY {index} NEW'"
    )]
    Shrunk {
        /// The device.
        index: u16,
        /// Its size.
        have: u64,
        /// The size that the array uses.
        need: u64,
    },
    /// Without a device fewer would be left than the layout needs.
    #[error(
        "without device {index}, {} would be left, and the layout needs {need}; put another in its place instead: \
         'ashlar replace ARRAY {index} NEW'",
        devices(*have)
    )]
    TooFewLeft {
        /// The device.
        index: u16,
        /// Devices of its group that are left.
        have: usize,
        /// Devices that a group has at least.
        need: usize,
    },
    /// The spare space would be for more devices than there are beyond the layout's own.
    #[error(
        "without device {index} its group has {}, and spare={spare} takes {need}; set fewer spares first: 'ashlar set \
         ARRAY spare=N', or replace the device instead: 'ashlar replace ARRAY {index} NEW'",
        devices(*have)
    )]
    SpareNeeds {
        /// The device.
        index: u16,
        /// Devices of its group that are left.
        have: usize,
        /// Devices that a group has at least.
        need: usize,
        /// Devices' worth of spare space.
        spare: u16,
    },
    /// With a device in place of another the layout has too few.
    #[error(
        "with the new device in place of device {old} only {} of its group would be in use, and the layout needs \
         {need}; replace those that are out of use first ('ashlar status -v' shows them)",
        devices(*have)
    )]
    TooFewWith {
        /// The device that is to leave.
        old: u16,
        /// Devices of its group that are in use then.
        have: usize,
        /// Devices that a group has at least.
        need: usize,
    },
    /// With a device in place of another there is too little room for what volumes were promised.
    #[error(
        "the new device is too small: with it in place of device {old} volumes may be promised {usable} bytes, and have \
         been promised {promised}; use a larger one"
    )]
    NoRoomWith {
        /// The device that is to leave.
        old: u16,
        /// Promised to volumes.
        promised: u64,
        /// The most that may be promised then.
        usable: u64,
    },
    /// The new device was added, and the old one does not leave.
    #[error(
        "the new device was added as device {index}, and device {old} stays as it is: {why}. To have it leave after \
         all: 'ashlar remove ARRAY {old}'"
    )]
    OldStays {
        /// The device that was added.
        index: u16,
        /// The device that was to leave.
        old: u16,
        /// Why it does not.
        why: Box<Error>,
    },
    /// A device cannot be taken out of the books before its data is rebuilt.
    #[error(
        "data that lay on device {0} or on others is not rebuilt yet; wait for it ('ashlar wait ARRAY --for rebuild'), \
         then remove it. A device that is to come back: 'ashlar online'"
    )]
    NotRebuilt(u16),
    /// Writes need the room that cleaning makes.
    #[error(
        "cleaning cannot be paused: writes would fail for want of the room that it makes; it runs only while room is \
         short, and ends by itself"
    )]
    CleaningNotPaused,
    /// A scrub is under way.
    #[error(
        "a scrub runs already: 'ashlar scrub ARRAY' shows it, 'ashlar scrub ARRAY stop' ends it"
    )]
    ScrubRuns,
    /// A scrub rests.
    #[error(
        "a scrub is paused: 'ashlar scrub ARRAY resume' goes on, 'ashlar scrub ARRAY stop' ends it"
    )]
    ScrubPaused,
    /// None is under way.
    #[error("no scrub is under way: 'ashlar scrub ARRAY start' starts one")]
    NoScrub,
    /// Blocks known to be bad are repaired.
    #[error(
        "repair of single blocks cannot be paused: what is known to be bad would stay so; it ends by itself"
    )]
    RepairNotPaused,
    /// A trim of the array is under way.
    #[error("a trim of this array is under way; try again when it has ended")]
    Trimming,
    /// The other devices do not hold what volumes were promised.
    #[error(
        "without device {index} volumes may be promised {usable} bytes, and have been promised {promised}; make a \
         volume smaller, destroy one, or trim file systems on thin ones, or put another device in its place: 'ashlar \
         replace ARRAY {index} NEW'"
    )]
    NoRoomWithout {
        /// The device.
        index: u16,
        /// Promised to volumes.
        promised: u64,
        /// The most that may be promised then.
        usable: u64,
    },
    /// The layout names its spare space.
    #[error("the layout {layout} names {named} spares, and an array of it keeps as many")]
    SpareNamed {
        /// The layout.
        layout: String,
        /// Devices' worth of spare space that it names.
        named: u16,
    },
    /// More spare space than there are devices beside the layout's own.
    #[error(
        "spare={spare} takes {need} devices in each group, K + M and the spare ones, and one has {have}; add devices \
         first: 'ashlar add ARRAY DEV'"
    )]
    TooFewToSpare {
        /// Devices' worth of spare space asked for.
        spare: u16,
        /// Devices of the smallest group.
        have: usize,
        /// Devices that a group would need.
        need: usize,
    },
    /// Volumes were promised what would be spare space.
    #[error(
        "with spare={spare} volumes may be promised {usable} bytes, and have been promised {promised}; make a volume \
         smaller, destroy one, or trim file systems on thin ones, or add devices: 'ashlar add ARRAY DEV'"
    )]
    NoRoomToSpare {
        /// Devices' worth of spare space asked for.
        spare: u16,
        /// Promised to volumes.
        promised: u64,
        /// The most that may be promised then.
        usable: u64,
    },
    /// Taking a device out of use would leave data without a copy.
    #[error(
        "taking device {0} out of use now would leave data that the other devices cannot compute; wait for the \
         rebuild ('ashlar wait ARRAY --for rebuild')"
    )]
    Needed(u16),
    /// A device that is not of this array.
    #[error(
        "this device is not one of this array's; 'ashlar replace ARRAY OLD NEW' puts it in the place of a device that \
         is out of use"
    )]
    NotMember,
    /// A device of this array that was used without the others.
    #[error(
        "device {0} was used elsewhere since it left this array (its generation is not one of this array's): what it \
         holds does not belong here. To use it as a new device: 'ashlar replace ARRAY {0} NEW --force'"
    )]
    OtherHistory(u16),
    /// A device that failed is taken in only by the operator's word.
    #[error(
        "device {0} was failed: writes to it failed, or the operator gave it up; where it is sound, 'ashlar online \
         ARRAY {0} -f' takes it in again"
    )]
    Untrusted(u16),
    /// What a device holds is the last copy of something.
    #[error(
        "device {0} holds data, or may, that the devices in use cannot compute, and that would be given up if this were \
         done now; connect the other missing devices first, or use --force to give that data up"
    )]
    LastCopy(u16),
    /// A device is smaller than the one whose place it is to take.
    #[error(
        "the new device has room for {have} slots, and device {index} has {need}; use a device of the same size or \
         larger"
    )]
    SmallerThan {
        /// The device to be replaced.
        index: u16,
        /// Slots that fit.
        have: u32,
        /// Slots needed.
        need: u32,
    },
    /// The journal still needs records that a device held when it left.
    #[error(
        "device {0} cannot be taken in yet: the journal still needs records from before it left, and could not be \
         merged; see 'ashlar status', then try again"
    )]
    JournalNeeds(u16),
    /// Too few devices agree on a generation.
    #[error(
        "only {stored} of {counted} devices could record which devices are in use, fewer than half; reconnect \
         the missing devices, or go on without them: 'import --degraded', or 'fail -f' while writes are paused"
    )]
    NoQuorum {
        /// Devices that stored it.
        stored: usize,
        /// Devices counted before.
        counted: usize,
    },
    /// A setting that does not exist.
    #[error("no setting '{key}'; the settings are: {known}")]
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
    #[error("the array is closed; import it again")]
    Closed,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_counted_in_words() {
        let left = |have| Error::TooFewLeft {
            index: 1,
            have,
            need: 2,
        };
        let said = left(1).to_string();
        assert!(said.starts_with("without device 1, 1 device would be left, and"));
        assert!(said.ends_with("'ashlar replace ARRAY 1 NEW'"), "{said}");
        assert!(left(0).to_string().contains(" 0 devices would be left"));
    }
}
