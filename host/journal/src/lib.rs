//! The durable, ordered log of states, with the checkpoint of each source and the cursor of each plugin.
//!
//! Every state must survive a crash exactly once, in order, on stores as different as SQLite and MySQL. So
//! what a batch means is decided in pure code above the stores (`append`), and a store only keeps rows. One
//! transaction has states, current objects and checkpoint: the checkpoint is never ahead of the states.
//! Letting each store decide was rejected: the rules would exist once for each dialect. The conformance suite
//! in `tests` holds every store to the same behaviour.
//!
//! This crate is the only one that stores states. It knows neither Kubernetes nor plugins: it accepts states
//! through `core::ports::StateWitness`, and returns them through `Backlog` and `Documents`.
//!
//! | folder | what it does |
//! |---|---|
//! | `append` | decides what a batch means (positions, duplicates, lateness, deltas), and commits for many callers at once |
//! | `store` | the traits of a store, the rows in it, and the two stores: `sqlite` and `server` |
//! | `read` | makes states and documents from rows |
//! | `journal` | the handle that the rest of the program holds: opens a store, and joins the three above |
//! | `retention` | removes old states |
//! | `verify` | proves a journal |
//! | `copy` | exports and imports a journal |
//! | `phases` | keeps the index of phases, a separate file that is made from the journal |
//!
//! Folders use each other in one direction: `copy`, `phases`, `retention` > `journal` > `append`, `read` >
//! `store`. Only `store` knows the SQL of the journal.

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

pub use copy::{CopyCounts, ExportError, ExportQuery, ImportError, export_journal, export_with, read_states};
pub use journal::{Journal, JournalOptions};
pub use phases::{
    CauseQuery, NamePlace, NamedEnd, NamedEndQuery, OpenOutcome, OutcomeCounts, PhaseIndex, PhasePage,
    PhaseQuery, TimeInPhase,
};
pub use progress::OpeningProgress;
pub use read::{
    AtCursor, AtPage, AtQuery, EndedObject, EndedPage, EndedQuery, KnownIds, MomentKnowledge, ObjectAt,
    ObjectFilter, ObjectStory, PluginAccount, PluginAccounts, TimePosition, WALKED, account_at,
    commit_notes_at, ids_at,
};
pub use report::{
    JournalProblem, JournalReplica, JournalStats, OpenError, PoisonRecord, ReplayRecord, RetentionHolder,
    RetentionReport, RetentionStats, SourceCounters, SourceStats, TakenStats, VerifyReport, code,
};
pub use retention::{RecordAges, SourceRetention, journal_stats};
pub use store::place::{JournalLocation, discard_unfinished_import};
pub use store::{ReplicaSharing, ServerAddressError};
pub use verify::{verify_at, verify_file, verify_with};
