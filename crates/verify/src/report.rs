//! What was found: counts, and findings with where they are.
//!
//! **Invariants**: every finding is counted; of each kind the first [`SHOWN`] are kept, so that an array
//! that is all rubble does not fill the memory; how bad a finding is follows from its kind alone.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Value, json};

use crate::digest::{NodeAt, StripBlock};

/// Findings of each kind that are kept.
pub const SHOWN: u64 = 100;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Worth knowing, and allowed: what power cuts leave behind.
    Note,
    /// Something is damaged or missing, and can be had from the rest.
    Damage,
    /// The array contradicts itself.
    Structure,
    /// Something cannot be had back, or the array cannot be read at all.
    Lost,
}

impl Severity {
    /// One word for it.
    pub fn name(self) -> &'static str {
        match self {
            Severity::Note => "note",
            Severity::Damage => "damage",
            Severity::Structure => "structure",
            Severity::Lost => "lost",
        }
    }
}

macro_rules! kinds {
    ($($(#[doc = $doc:literal])* $name:ident $severity:ident $word:literal $text:literal;)*) => {
        /// What is wrong.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Kind { $($(#[doc = $doc])* $name,)* }

        impl Kind {
            /// How bad it is.
            pub fn severity(self) -> Severity {
                match self { $(Kind::$name => Severity::$severity,)* }
            }

            /// Its name in JSON: never changed.
            pub fn name(self) -> &'static str {
                match self { $(Kind::$name => $word,)* }
            }

            /// What it means, for the operator.
            pub fn text(self) -> &'static str {
                match self { $(Kind::$name => $text,)* }
            }
        }
    };
}

kinds! {
    /// No device has a good superblock.
    NoArray Lost "no-array" "none of these is a device of an array";
    /// Devices of several arrays were given.
    OtherArray Lost "other-array" "belongs to another array; give the devices of one array";
    /// Two generations of the same number.
    Diverged Lost "diverged" "the devices hold two different histories (split brain); give the devices of one of \
        them";
    /// Two devices with one index.
    IndexTwice Lost "index-twice" "has the index of another device: one is a copy; leave one of the two out";
    /// Rings or slots differ from those of the others.
    Geometry Lost "geometry" "has other slots or rings than the array";
    /// No good root.
    NoRoot Lost "no-root" "no good root was found: the array cannot be read";
    /// Liveness cannot be read.
    LivenessLost Lost "liveness-lost" "a node of liveness cannot be read";
    /// The catalog cannot be read.
    CatalogLost Lost "catalog-lost" "the catalog cannot be read";
    /// A node of a map cannot be read.
    NodeLost Lost "node-lost" "a node of the map cannot be read: what it covers is lost";
    /// A volume block cannot be read.
    BlockLost Lost "block-lost" "a volume block cannot be read or decoded";
    /// An entry says that what it covers was lost before.
    EntryLost Lost "entry-lost" "was lost before, and is marked as lost";
    /// Journal records are gone.
    JournalLost Lost "journal-lost" "acknowledged journal records cannot be read";
    /// A journal record is no sequence of entries.
    JournalEntry Structure "journal-entry" "a whole journal record is malformed";
    /// The newest epoch is without a device that counts.
    EpochDiffers Structure "epoch-differs" "is left out by the journal, though the newest generation counts it";
    /// Two slots claim one column at one version.
    ColumnTwice Structure "column-twice" "claims a column that another slot has at the same version";
    /// Claims of one segment disagree on its shape.
    ShapeDiffers Structure "shape-differs" "gives a segment another shape than its other columns have";
    /// Two columns of a segment on one device.
    DeviceTwice Structure "device-twice" "holds two columns of one segment";
    /// Two segments in one slot.
    SlotTwice Structure "slot-twice" "a slot is claimed by two segments";
    /// A slot is taken by a segment that does not exist.
    SlotOfNobody Structure "slot-of-nobody" "a slot is taken by a segment that liveness does not know";
    /// Liveness names a segment that no slot has.
    SegmentNowhere Structure "segment-nowhere" "a segment that liveness knows is in no slot";
    /// A segment number that was not handed out.
    SegmentNumber Structure "segment-number" "a segment has a number that is not assigned yet";
    /// Two records of liveness for one segment.
    RecordTwice Structure "record-twice" "liveness has two records of one segment";
    /// A record's shape is none, or not that of its segment.
    RecordShape Structure "record-shape" "a record of liveness gives its segment a shape that its slots do not have";
    /// A record's count is not that of its bits.
    RecordCount Structure "record-count" "a record of liveness counts other blocks than it marks";
    /// A record marks blocks that the segment does not have.
    RecordBits Structure "record-bits" "a record of liveness marks blocks beyond its segment";
    /// A block is live and nobody's.
    Leak Structure "leak" "a block is live, and nothing points to it";
    /// A block is somebody's and not live.
    NotLive Structure "not-live" "a block is pointed to, and not live";
    /// A block has two owners.
    DoubleUse Structure "double-use" "a block is pointed to twice";
    /// An entry points outside its segment, or to none.
    OutOfRange Structure "out-of-range" "an entry points to no block of any segment";
    /// An entry points to a segment of the wrong kind, or has a wrong length.
    EntryWrong Structure "entry-wrong" "an entry has an impossible length, birth or kind";
    /// Bytes that are no entry.
    Malformed Structure "malformed" "an entry is not one that the format knows";
    /// An entry beyond the end of its volume.
    BeyondVolume Structure "beyond-volume" "an entry maps a block beyond the end of its volume";
    /// A content root is not that of what it covers.
    ContentRoot Structure "content-root" "a content root does not match the data below it";
    /// A volume's mapped bytes are not those of its map.
    MappedBytes Structure "mapped-bytes" "the catalog counts other mapped bytes than the map has";
    /// A volume's map nodes are not those of its map.
    MapNodes Structure "map-nodes" "the catalog counts other nodes of a map than it has";
    /// Rows of live blocks name other owners than the maps do.
    OwnersDiffer Structure "owners-differ" "rows name other owners, or other digests, than the maps do";
    /// Parity is not that of its data, though both match their digests.
    ParityWrong Structure "parity-wrong" "parity does not match its data";
    /// The parity of the owners is wrong.
    OwnerParity Structure "owner-parity" "the owner bytes of parity do not match the data's owners";
    /// Rows of a stripe contradict each other.
    RowsDisagree Damage "rows-disagree" "a column says that a stripe was not written, the others say that it was";
    /// A member is not here.
    MemberMissing Damage "member-missing" "a device of the array is missing";
    /// A column is nowhere.
    ColumnMissing Damage "column-missing" "a column of a segment is missing";
    /// A block of a strip does not match its row.
    Strip Damage "strip" "a block of a strip is damaged";
    /// A summary block is not good.
    Summary Damage "summary" "a summary block is damaged";
    /// Nothing says what a stripe's blocks are.
    RowsUnknown Damage "rows-unknown" "no row of a written stripe is known";
    /// A slot's header is not good.
    Header Damage "header" "the header of a slot is damaged";
    /// A slot's header says something else than the table.
    HeaderDiffers Damage "header-differs" "the header of a slot says something else than the slot table";
    /// A page of a slot table has no good copy.
    Page Damage "page" "a page of the slot table has no good copy";
    /// A device of the root set does not have the newest root.
    RootCopy Damage "root-copy" "does not have the newest root";
    /// A device has no good superblock.
    NoSuperblock Note "no-superblock" "has no good superblock: it is no member";
    /// A superblock of another version or with unknown features.
    Unsupported Note "unsupported" "a superblock is of another version of the format";
    /// A device's two superblocks name different devices.
    TwoDevices Note "two-devices" "its two superblocks name different devices: it is no member";
    /// A device that the newest generation does not count.
    NotAMember Note "not-a-member" "is not in use by the array now";
    /// A device that waits for another to be lost.
    HotSpare Note "hot-spare" "is a hot spare of the array: it holds no data";
    /// A device with an older generation.
    Behind Note "behind" "holds an older generation than the others";
    /// A device whose number of slots the table of members does not say.
    Growing Note "growing" "was enlarged when the power went; the next import ends that";
    /// A column of metadata is nowhere, and what is left survives as many losses as the layout.
    ColumnToSpare Note "column-to-spare" "a column of metadata is missing; metadata still survives as many \
        failures as data";
    /// One of two superblocks is not good.
    SuperblockCopy Note "superblock-copy" "one of its two superblocks is not good; the next change rewrites it";
    /// One of two copies of a page is not good.
    PageCopy Note "page-copy" "one of two copies of a page of the slot table is not good";
    /// A page of a checkpoint that never ended.
    PageLater Note "page-later" "a page of the slot table is of a checkpoint that never ended";
    /// A claim of a column that lies elsewhere by now.
    StaleClaim Note "stale-claim" "claims a column that has moved since";
    /// A slot of a segment that had not begun when power went.
    SlotLeft Note "slot-left" "a slot is taken by a segment that never began; the next import frees it";
    /// A record without some of its columns.
    JournalColumn Note "journal-column" "a journal record is whole without some of its columns";
}

/// Where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// A member of the array, by index.
    Member(u16),
    /// Copy 0 or 1 of the superblock.
    Copy(u32),
    /// A page of the slot table.
    Page(u32),
    /// A slot.
    Slot(u32),
    /// A column of a segment.
    Column(u16),
    /// A block of a strip.
    Strip(StripBlock),
    /// A data block of a segment.
    Block(u32),
    /// A node of a tree.
    Node(NodeAt),
    /// A volume block.
    Volume {
        /// The volume's number.
        volume: u32,
        /// The volume block.
        block: u64,
    },
    /// A journal sequence.
    Sequence(u64),
}

/// One thing that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What.
    pub kind: Kind,
    /// On which device: its place in the list that was given.
    pub device: Option<usize>,
    /// In which segment.
    pub segment: Option<u64>,
    /// Where.
    pub at: Option<At>,
}

/// What was looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Counts {
    pub superblocks: u64,
    pub members: u64,
    pub members_missing: u64,
    pub slots_used: u64,
    pub segments: u64,
    pub volumes: u64,
    pub nodes: u64,
    pub volume_blocks: u64,
    /// Nodes and volume blocks that had to be decoded.
    pub healed: u64,
    pub live_blocks: u64,
    pub stripes: u64,
    pub strip_blocks: u64,
    /// Parity blocks computed again and compared.
    pub parity_blocks: u64,
    pub journal_records: u64,
}

/// The outcome.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The array's name.
    pub array: String,
    /// Its UUID.
    pub uuid: [u8; 16],
    /// The generation that decides.
    pub generation: u64,
    /// The number of the newest root; 0 if there is none.
    pub root: u64,
    /// Whether the array was exported. If not, its journal was **not** replayed: what it says was written
    /// after the root was not looked at.
    pub clean: bool,
    /// What was looked at.
    pub counts: Counts,
    /// The first of each kind.
    pub findings: Vec<Finding>,
    /// How many of each kind.
    pub totals: BTreeMap<Kind, u64>,
}

/// A finding being described.
pub(crate) struct Describe<'r>(Option<&'r mut Finding>);

impl Describe<'_> {
    pub(crate) fn device(mut self, position: usize) -> Self {
        if let Some(finding) = &mut self.0 {
            finding.device = Some(position);
        }
        self
    }

    pub(crate) fn segment(mut self, number: u64) -> Self {
        if let Some(finding) = &mut self.0 {
            finding.segment = Some(number);
        }
        self
    }

    pub(crate) fn at(mut self, at: At) -> Self {
        if let Some(finding) = &mut self.0 {
            finding.at = Some(at);
        }
        self
    }
}

impl Report {
    /// Notes a finding; what is known of it is added to what comes back.
    pub(crate) fn find(&mut self, kind: Kind) -> Describe<'_> {
        let total = self.totals.entry(kind).or_default();
        *total += 1;
        if *total > SHOWN {
            return Describe(None);
        }
        self.findings.push(Finding {
            kind,
            device: None,
            segment: None,
            at: None,
        });
        Describe(self.findings.last_mut())
    }

    /// Notes a finding that stands for `times` of its kind; nothing if that is 0.
    pub(crate) fn find_times(&mut self, kind: Kind, times: u64) {
        if times > 0 {
            self.find(kind);
            let total = self.totals.entry(kind).or_default();
            *total = total.saturating_add(times - 1);
        }
    }

    /// How many findings there are of a severity.
    pub fn count(&self, severity: Severity) -> u64 {
        let totals = self.totals.iter();
        totals
            .filter(|(kind, _)| kind.severity() == severity)
            .fold(0, |sum, (_, n)| sum.saturating_add(*n))
    }

    /// How many findings there are of a kind.
    pub fn count_of(&self, kind: Kind) -> u64 {
        self.totals.get(&kind).copied().unwrap_or(0)
    }

    /// Whether there is nothing worse than a note, in an array that was exported.
    pub fn is_well(&self) -> bool {
        self.clean && self.totals.keys().all(|k| k.severity() == Severity::Note)
    }

    /// The fields of a JSON document; `names` are the devices' names, in the order given.
    pub fn to_json(&self, names: &[String]) -> Value {
        let c = &self.counts;
        json!({
            "array": self.array,
            "array_uuid": uuid_text(&self.uuid),
            "generation": self.generation,
            "root": self.root,
            "clean": self.clean,
            "journal_replayed": false,
            "well": self.is_well(),
            "lost": self.count(Severity::Lost),
            "structure": self.count(Severity::Structure),
            "damage": self.count(Severity::Damage),
            "notes": self.count(Severity::Note),
            "counts": {
                "superblocks": c.superblocks, "members": c.members,
                "members_missing": c.members_missing, "slots_used": c.slots_used,
                "segments": c.segments, "volumes": c.volumes, "nodes": c.nodes,
                "volume_blocks": c.volume_blocks, "healed": c.healed,
                "live_blocks": c.live_blocks, "stripes": c.stripes,
                "strip_blocks": c.strip_blocks, "parity_blocks": c.parity_blocks,
                "journal_records": c.journal_records,
            },
            "kinds": self.totals.iter().map(|(kind, n)| (kind.name().to_string(), json!(n))).collect::<serde_json::Map<_, _>>(),
            "findings": self.findings.iter().map(|f| f.to_json(names)).collect::<Vec<_>>(),
        })
    }

    /// The report in lines; `names` are the devices' names, in the order given.
    pub fn to_text(&self, names: &[String]) -> String {
        let mut text = String::new();
        let mut line = |name: &str, value: String| text += &format!("{name:<11} {value}\n");
        for (name, value) in self.facts() {
            line(name, value);
        }
        for severity in [
            Severity::Lost,
            Severity::Structure,
            Severity::Damage,
            Severity::Note,
        ] {
            for (kind, total) in self.totals.iter().filter(|(k, _)| k.severity() == severity) {
                let of_kind = self.findings.iter().filter(|f| f.kind == *kind);
                for finding in of_kind.take(10) {
                    line(severity.name(), finding.to_text(names));
                }
                if *total > 10 {
                    line(
                        severity.name(),
                        format!("... {} in all: {}", total, kind.text()),
                    );
                }
            }
        }
        line("verdict", self.verdict().to_string());
        text
    }

    /// What was looked at, each under its name.
    fn facts(&self) -> Vec<(&'static str, String)> {
        let mut lines = Vec::new();
        let c = &self.counts;
        if self.generation > 0 {
            lines.push((
                "array",
                format!("{}  {}", printable(&self.array), uuid_text(&self.uuid)),
            ));
            lines.push((
                "members",
                format!(
                    "{} here, {} missing; generation {}",
                    c.members, c.members_missing, self.generation
                ),
            ));
        }
        if self.root > 0 {
            lines.push((
                "root",
                format!(
                    "{}, {}",
                    self.root,
                    if self.clean {
                        "closed cleanly"
                    } else {
                        "not closed cleanly: the journal was NOT replayed, and writes that only it holds were \
                         not checked"
                    }
                ),
            ));
            lines.push((
                "segments",
                format!(
                    "{} in {} slots, {} live blocks",
                    c.segments, c.slots_used, c.live_blocks
                ),
            ));
            lines.push((
                "volumes",
                format!(
                    "{}: {} nodes and {} blocks read and verified, {} of them decoded",
                    c.volumes, c.nodes, c.volume_blocks, c.healed
                ),
            ));
            lines.push((
                "stripes",
                format!(
                    "{}: {} strip blocks compared with their digests, {} parity blocks computed again",
                    c.stripes, c.strip_blocks, c.parity_blocks
                ),
            ));
            lines.push(("journal", format!("{} whole records", c.journal_records)));
        }
        lines
    }

    fn verdict(&self) -> &'static str {
        match (
            self.is_well(),
            self.count(Severity::Lost),
            self.count(Severity::Structure),
            self.count(Severity::Damage),
        ) {
            (true, ..) => "all is well",
            (_, 1.., ..) => "something is LOST",
            (_, _, 1.., _) => {
                "the array contradicts itself: copy what can be read, and report this"
            }
            (_, _, _, 1..) => {
                "damaged, and nothing is lost: connect any missing device, import it, and have all of it repaired: 'ashlar scrub \
                 ARRAY start'"
            }
            _ => {
                "nothing wrong was found, but the array was not closed cleanly: import and export it for a full check"
            }
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_text(&[]))
    }
}

impl Finding {
    fn to_json(&self, names: &[String]) -> Value {
        let mut value = json!({
            "kind": self.kind.name(),
            "severity": self.kind.severity().name(),
            "text": self.kind.text(),
        });
        if let Some(device) = self.device {
            value["device"] = names.get(device).map_or(json!(device), |name| json!(name));
        }
        if let Some(segment) = self.segment {
            value["segment"] = json!(segment);
        }
        match self.at {
            Some(At::Member(n)) => value["member"] = json!(n),
            Some(At::Copy(n)) => value["copy"] = json!(n),
            Some(At::Page(n)) => value["page"] = json!(n),
            Some(At::Slot(n)) => value["slot"] = json!(n),
            Some(At::Column(n)) => value["column"] = json!(n),
            Some(At::Strip(s)) => {
                value["stripe"] = json!(s.stripe);
                value["column"] = json!(s.column);
                value["block"] = json!(s.block);
            }
            Some(At::Block(n)) => value["data_block"] = json!(n),
            Some(At::Node(n)) => {
                value["tree"] = json!(n.tree);
                value["partition"] = json!(n.partition);
                value["level"] = json!(n.level);
                value["index"] = json!(n.index);
            }
            Some(At::Volume { volume, block }) => {
                value["volume"] = json!(volume);
                value["volume_block"] = json!(block);
            }
            Some(At::Sequence(n)) => value["sequence"] = json!(n),
            None => {}
        }
        value
    }

    /// One line.
    pub fn to_text(&self, names: &[String]) -> String {
        let mut places = Vec::new();
        if let Some(device) = self.device {
            let name = names.get(device).map(|name| printable(name));
            places.push(name.unwrap_or_else(|| format!("device {device}")));
        }
        places.extend(self.segment.map(|number| format!("segment {number}")));
        places.extend(self.at.map(|at| at.to_string()));
        if places.is_empty() {
            return self.kind.text().to_string();
        }
        format!("{}: {}", places.join(", "), self.kind.text())
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_text(&[]))
    }
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            At::Member(n) => write!(f, "member {n}"),
            At::Copy(n) => write!(f, "superblock {n}"),
            At::Page(n) => write!(f, "page {n}"),
            At::Slot(n) => write!(f, "slot {n}"),
            At::Column(n) => write!(f, "column {n}"),
            At::Strip(s) => write!(
                f,
                "stripe {}, column {}, block {}",
                s.stripe, s.column, s.block
            ),
            At::Block(n) => write!(f, "data block {n}"),
            At::Node(n) => write!(
                f,
                "tree {}, partition {}, level {}, node {}",
                n.tree, n.partition, n.level, n.index
            ),
            At::Volume { volume, block } => write!(f, "volume {volume}, block {block}"),
            At::Sequence(n) => write!(f, "sequence {n}"),
        }
    }
}

fn printable(text: &str) -> String {
    let safe = |c: char| if c.is_control() { ' ' } else { c };
    text.chars().map(safe).collect()
}

fn uuid_text(uuid: &[u8; 16]) -> String {
    let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    let parts = [
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..],
    ];
    parts.join("-")
}
