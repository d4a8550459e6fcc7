//! What a report has, before it is text or HTML.
//!
//! **Invariants**: values only.

use serde::{Deserialize, Serialize};

use super::beside;
use super::compare::Comparison;
use super::rows::Row;

/// What a page shows.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// Its title.
    pub title: String,
    /// Sentences that say what a reader may conclude.
    pub reading: Vec<String>,
    /// The rows.
    pub rows: Vec<Row>,
    /// What others published, beside ours.
    pub beside: Vec<beside::Line>,
    /// Comparisons.
    pub comparisons: Vec<Comparison>,
    /// Other tables: caches, what a paper shows.
    pub tables: Vec<Table>,
    /// What was assumed.
    pub assumptions: Vec<String>,
    /// Where it was made.
    pub environment: Vec<(String, String)>,
    /// The command that gives it again.
    pub command: String,
}

/// A table of texts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Table {
    /// Its title.
    pub title: String,
    /// What stands above it: the kind of evidence, at least.
    pub note: String,
    /// Titles of its columns.
    pub titles: Vec<String>,
    /// Its lines.
    pub lines: Vec<Vec<String>>,
}

impl Page {
    /// How many rows are INVALID.
    pub(super) fn invalid(&self) -> usize {
        let invalid = |row: &&Row| !row.invalid.is_empty();
        self.rows.iter().filter(invalid).count()
    }
}
