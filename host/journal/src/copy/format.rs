//! The format of an exported journal: lines of JSON.
//!
//! | line | what |
//! |---|---|
//! | first | `{"format": "kubewitness.dev/journal/v1", "documents": …, "selected": …, "chained": true}` |
//! | each state, in order | `{"sum": …, "after": …, "state": {…}, "document": "…"}` |
//! | last | `{"sum": …, "after": …, "end": {"states": …, "sources": [{"source", "epoch", "checkpoint"}]}}` |
//!
//! `sum` is the CRC-32 of everything after its comma, as written, so a changed byte is found at its line.
//! `after` is the CRC-32 of all earlier lines, the first included, each with its newline. So a line that was
//! moved, repeated, left out, or taken from another export is found at its place. Exports of older programs
//! lack `chained` in their first line, and have no `after`. Both checksums detect accidents and careless
//! edits, not a forger who computes them again.
//!
//! The document is a text, byte for byte as witnessed; bytes that are not UTF-8 are in `document_hex`
//! instead. A gap's document has its bounds and is always included. Checkpoints are included only if no
//! selection left anything out: only then can a watch resume from them. Fields may be added; readers ignore
//! unknown ones.

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
    /// Each line has the checksum of the lines before it.
    #[serde(default)]
    pub chained: bool,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct ExportEnd {
    pub states: u64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<ResumePoint>,
}

/// The version from which a source's watch would resume.
#[derive(Serialize, Deserialize)]
pub(crate) struct ResumePoint {
    pub source: String,
    pub epoch: u32,
    pub checkpoint: String,
}
