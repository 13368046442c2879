//! The durable, ordered log of states, with the checkpoint of each source and the cursor of each
//! plugin.
//!
//! This crate is the only one that stores. It knows neither Kubernetes nor plugins: it takes
//! what `core::ports::Witness` is given, and gives it back through `Backlog` and `Documents`.
//! Statements are behind the traits of `store`, with SQLite in `sqlite`; what a batch means
//! (positions, duplicates, lateness, deltas) is decided in `plan`, and what rows mean to those who
//! read them in `read` and `verify`, which know no SQL.

mod group;
mod journal;
mod memory;
mod plan;
mod read;
mod recent;
mod report;
mod rows;
mod sqlite;
mod store;
mod tails;
mod uid;
mod verify;

pub use journal::{Journal, JournalOptions};
/// Proves the whole journal: order, ids, documents, current objects, counts, cursors, and for
/// each plugin observed = delivered + filtered + dead + waiting. Writes nothing, and may run
/// beside the process that writes. An `Err` says that there is no journal to check.
pub async fn verify(path: &std::path::Path) -> Result<VerifyReport, OpenError> {
    let connection = sqlite::open_to_verify(path).await?;
    Ok(verify::verify(Box::new(connection)).await)
}

pub use report::{OpenError, PoisonRecord, Problem, ReplayRecord, SourceCounters, VerifyReport, code};
