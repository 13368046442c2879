//! The format of an exported journal: lines of JSON.
//!
//! | line | what |
//! |---|---|
//! | first | `{"format": "kubewitness.dev/journal/v1", "documents": …, "selected": …, "chained": true}` |
//! | each state, in order | `{"sum": …, "after": …, "state": {…}, "document": "…"}` |
//! | last | `{"sum": …, "after": …, "end": {"states": …, "sources": [{"source", "epoch", "checkpoint"}]}}` |
//!
//! `sum` is the CRC-32 of everything behind its comma, as it stands there, so that a changed byte is
//! found at its line. `after` is the CRC-32 of all lines before, the first included, each with its line
//! break: a line that was moved, repeated, left out, or taken from another export is found where it
//! stands. An export of a program that knew no `after` has no `chained` in its first line, and none is
//! asked for. Both find accidents and careless hands, not a forger who makes the checksums anew.
//!
//! The document is a text, byte for byte what was witnessed; one that is no text
//! comes as `document_hex`. A gap's document tells its bounds and is always there. Checkpoints are
//! told where nothing was left out by a selection: only then does a watch go on from them. Fields
//! may be added; a reader passes over those that it does not know.

use serde::{Deserialize, Serialize};

pub const FORMAT: &str = "kubewitness.dev/journal/v1";

/// The number of states that were exported or imported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyCounts {
    pub states: u64,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct ExportHeader {
    pub format: String,
    pub documents: bool,
    pub selected: bool,
    /// Each line says what it stands after.
    #[serde(default)]
    pub chained: bool,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct ExportEnd {
    pub states: u64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<ResumePoint>,
}

/// From where a source's watch would go on.
#[derive(Serialize, Deserialize)]
pub(crate) struct ResumePoint {
    pub source: String,
    pub epoch: u32,
    pub checkpoint: String,
}
