//! The durable, ordered log of states, with the checkpoint of each source and the cursor of each plugin.
//!
//! This crate is the only one that stores. It knows neither Kubernetes nor plugins: it takes what
//! `core::ports::StateWitness` is given, and gives it back through `Backlog` and `Documents`.
//!
//! | folder | what it does |
//! |---|---|
//! | `append` | decides what a batch means (positions, duplicates, lateness, deltas), and commits for many callers at once |
//! | `store` | the traits of a store, the rows in it, and the two stores: `sqlite` and `server` |
//! | `read` | makes states and documents of rows |
//! | `journal` | the handle that the rest of the program holds: opens a store, and joins the three above |
//! | `retention` | takes old states away |
//! | `verify` | proves a journal |
//! | `copy` | exports and imports a journal |
//! | `phases` | keeps the index of phases, a file of its own that is made from the journal |
//!
//! Folders use each other in one direction: `copy`, `phases`, `retention` > `journal` > `append`, `read` > `store`.
//! Only `store` knows the SQL of the journal.

mod append;
mod copy;
mod journal;
mod phases;
mod progress;
mod read;
mod report;
mod retention;
mod store;
mod verify;

pub use copy::{CopyCounts, ExportError, ExportQuery, ImportError, export, export_with, read_states};
pub use journal::{Journal, JournalOptions};
pub use phases::{
    CauseQuery, NamePlace, NamedEnd, NamedEndQuery, OpenOutcome, OutcomeCounts, PhaseIndex, PhasePage,
    PhaseQuery, TimeInPhase,
};
pub use progress::OpeningProgress;
pub use read::{
    AtPage, AtQuery, EndedObject, EndedPage, EndedQuery, KnownIds, MomentKnowledge, ObjectAt, ObjectFilter,
    ObjectStory, PluginAccount, PluginAccounts, ThenCursor, TimePosition, WALKED, account_at, ids_at,
};
pub use report::{
    JournalProblem, JournalReplica, JournalStats, OpenError, PoisonRecord, ReplayRecord, RetentionHolder,
    RetentionReport, RetentionStats, SourceCounters, SourceStats, TakenStats, VerifyReport, code,
};
pub use retention::{SourceRetention, stats};
pub use store::ReplicaSharing;
pub use store::place::{JournalLocation, discard};
pub use verify::{verify, verify_at, verify_with};
