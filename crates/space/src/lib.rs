//! Space of an array: how much may be promised, who may take a slot, how new segments are laid, which work is left.
//!
//! # The model
//!
//! Two books. [`promise`] counts the bytes that volumes were promised, and may still be. [`ledger`] counts the slots
//! that can be taken now. Nothing else counts anything.
//!
//! One plan. [`plan::plan`] says how new segments are laid in each group, and nodes over all of them: K, M, how many
//! columns they do without, how many may lie in a failure domain. It follows from members, layout, domains and
//! promises. It changes with the members, and at the end of a checkpoint if volumes hold more or less than before.
//!
//! One inequality. A class of work may take slots that are free above its floor and not claimed by its class or one
//! below:
//!
//! ```text
//! grant(class) = free - floor(class) - claims of this class and of those below it
//!
//! class        leaves: segments of nodes      leaves: segments of data, in each group
//! Checkpoint   0                              0
//! Rescue       1 step                         0
//! Clean        2 steps                        1
//! Rebuild      2 steps + growth               3
//! Client       2 steps + growth               4
//! ```
//!
//! All terms are numbers of segments of the plan, and [`fits::Sites::adds`] says whether more can be laid beside them
//! in the free slots: devices of different size, groups, failure domains and nodes on all of them are in that one
//! function. The [`capacity`] of an array is the same question about an empty one.
//!
//! *Why it makes progress.* Nobody waits for a class above its own: a claim binds its own class and those above. A
//! checkpoint holds two steps at most (slots that the first frees are not free before its root), and both fit below
//! everybody. Growth is the room that nodes may still take until they are there twice: then one of their segments is
//! half dead, and where room is short ([`ledger::Ledger::step_owes`]) each step writes as many nodes of the sparsest
//! segments again as the one before it merged, which gives at least as much room as it takes. The cleaner has its own
//! room below rebuild, and frees more than it takes.
//!
//! One measure. [`work::next_job`] offers a job if it lowers, in this order: missing columns, columns that the plan
//! wants elsewhere, blocks in a shape that it does not want, waste (blocks that slots could hold by the plan, less live
//! ones). So work ends by construction, and [`work::lacks`] says why the rest of it is not done.
//!
//! # Example
//!
//! ```
//! use ashlar_space::capacity::{Geometry, capacity};
//! use ashlar_space::domains::Domains;
//! use ashlar_space::floors::Class;
//! use ashlar_space::ledger::Ledger;
//! use ashlar_space::plan::plan;
//! use ashlar_space::promise::Promises;
//! use ashlar_space::topology::{Area, Member, Topology};
//!
//! let layout: ashlar_layout::Layout = "ec8+2".parse().unwrap();
//! let shape = layout.resolve(12).unwrap();
//! let topology = Topology::new(vec![Member::in_use(1100); 12], shape, Domains::default());
//! let geometry = Geometry {
//!     strip_blocks: 16,
//!     slot_blocks: 256,
//!     least_data: 1,
//!     clean_reserve: 10,
//!     step_nodes: 560,
//!     least_node_k: 8,
//!     open_segments: 8,
//!     fixed_nodes: 0,
//! };
//! let plan = plan(&topology, &geometry, &Promises::default(), None);
//! assert!(capacity(&topology, &geometry, &plan) > 0);
//!
//! let mut ledger = Ledger::new(topology, plan.clone());
//! ledger.reckon(&geometry.facts(&plan.nodes, 1000, 11));
//! let claim = ledger.claim(Class::Client, Area::Group(0), 1).unwrap();
//! let devices = ledger.acquire(&claim, &[]).unwrap();
//! assert_eq!(devices.len(), 10);
//! ledger.give_back(claim);
//! ```
//!
//! # Invariants
//!
//! - Nothing here does I/O, waits, or reads a clock: values, and functions of facts.
//! - Whoever holds a claim that is not acquired waits for devices only, never for a message, a credit or a lock.
//! - No branch has the history of a defect as its reason. A case that seems to need one belongs in the model.

#![forbid(unsafe_code)]

pub mod capacity;
pub mod domains;
pub mod fits;
pub mod floors;
pub mod index;
pub mod ledger;
pub mod measure;
pub mod plan;
pub mod promise;
pub mod template;
pub mod topology;
pub mod usable;
pub mod work;
