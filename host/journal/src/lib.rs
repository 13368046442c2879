//! The durable, ordered log of states, with the checkpoint of each source and the cursor of each
//! plugin.
//!
//! This crate is the only one that stores. It knows neither Kubernetes nor plugins: it takes
//! what `core::ports::Witness` is given, and gives it back through `Backlog` and `Documents`.
//! Statements are behind the traits of `store`, with SQLite in `sqlite`, and PostgreSQL, MySQL
//! and MariaDB in `server`; what a batch means
//! (positions, duplicates, lateness, deltas) is decided in `plan`, and what rows mean to those who
//! read them in `read` and `verify`, which know no SQL.

use std::collections::BTreeMap;

use kubewitness_core::config::RetentionSpec;
use kubewitness_core::ports;

mod differences;
mod export;
mod group;
mod journal;
mod memory;
mod place;
mod plan;
mod read;
mod recent;
mod removal;
mod report;
mod retain;
mod retention;
mod rows;
mod server;
mod sqlite;
mod stats;
mod store;
mod tails;
mod uid;
mod verify;

pub use journal::{Journal, JournalOptions};
pub use place::Place;
/// Proves the whole journal: order, ids, documents, current objects, counts, cursors, and for
/// each plugin observed = delivered + filtered + dead + waiting. Writes nothing, and may run
/// beside the process that writes. An `Err` says that there is no journal to check.
pub async fn verify(path: &std::path::Path) -> Result<VerifyReport, OpenError> {
    verify_at(&Place::file(path)).await
}

/// The same, wherever it is.
pub async fn verify_at(place: &Place) -> Result<VerifyReport, OpenError> {
    let connection: Box<dyn store::Connection> = match &place.0 {
        place::Inner::File(path) => Box::new(sqlite::open_to_verify(path).await?),
        place::Inner::Server(server) => server::open_to_verify(server).await?,
    };
    Ok(verify::verify(connection).await)
}

/// Figures of a journal, source by source, and what retention may take of each by its settings.
/// Writes nothing, and may run beside the process that writes.
pub async fn stats(
    path: &std::path::Path,
    retention: &BTreeMap<String, RetentionSpec>,
    now_ms: u64,
) -> Result<JournalStats, OpenError> {
    let mut connection = sqlite::open_to_verify(path).await?;
    let stats = stats::stats(&mut connection, retention, now_ms).await;
    let stats = stats
        .map_err(|error| OpenError::Unavailable { path: path.to_path_buf(), reason: error.to_string() })?;
    let (bytes, wal_bytes) = sqlite::sizes(path);
    Ok(JournalStats { bytes, wal_bytes, ..stats })
}

/// Writes a journal as lines of JSON, one snapshot of it; the format stands at the top of `export`.
/// May run beside the process that writes.
pub async fn export(
    path: &std::path::Path,
    query: &ExportQuery,
    out: &mut (dyn std::io::Write + Send),
) -> Result<Exported, ExportError> {
    let connection = sqlite::open_to_verify(path).await;
    let mut connection = connection.map_err(|error| ports::JournalError::Unavailable(error.to_string()))?;
    export::export(&mut connection, query, out).await
}

pub use export::{ExportError, ExportQuery, Exported, ImportError};
pub use report::{
    JournalStats, OpenError, PoisonRecord, Problem, ReplayRecord, Retained, RetentionStats, SourceCounters,
    SourceStats, TakenStats, VerifyReport, code,
};
pub use retention::Retention;
