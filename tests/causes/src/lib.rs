//! Recorded histories of real Jobs, each labelled with the cause of its outcome. `cargo xtask real --record` records them
//! against real controllers; a test reads them without any server.
//!
//! A history is a file `histories/NAME.jsonl`:
//!
//! - The first line is the [`HistoryHeader`]: the object in question, and the [`Expected`] answer. The label says what the
//!   recorder injected. No rule that is judged by the label has had a part in it.
//! - Each other line is a put or a delete, in the order of etcd's revisions. The first put of an object has the whole
//!   `object`. A later one has a `patch` (RFC 7386) against the version before. A delete has neither.
//!
//! Half of the histories are held out ([`is_held_out`]): whoever writes rules reads the others alone, and the held-out half
//! tells whether the rules hold for what their author has not seen.
//!
//! Histories in `histories/by-hand` are of kinds whose controllers are not recorded here: Volcano's jobs and Kubeflow's
//! PyTorchJobs. They are written by hand from the fields that these projects document, so they show
//! that such fields are read as they are documented, and not how a controller behaves. They are judged apart.
//!
//! This crate knows the files, and what must be true in a history if its label is. It does not know how a cause is found.

mod attempt;
mod expected;
mod facts;
mod history;
mod merge_patch;
mod writer;

pub use attempt::attempt_of;
pub use expected::{Cause, Expected, Outcome};
pub use facts::check_label;
pub use history::{
    HistoryChange, HistoryHeader, LabelSubject, Operation, RecordedHistory, Selection, is_held_out, recorded,
};
pub use merge_patch::apply as apply_merge_patch;
pub use writer::write_history;
