//! The durable, ordered log of states, with the checkpoint of each source and the cursor of each
//! plugin.
//!
//! This crate is the only one that stores. It knows neither Kubernetes nor plugins: it takes
//! what `core::ports::Witness` is given, and gives it back through `Backlog` and `Documents`.
//! Statements are behind the traits of `store`, with SQLite in `sqlite`, and PostgreSQL, MySQL
//! and MariaDB in `server`; what a batch means
//! (positions, duplicates, lateness, deltas) is decided in `plan`, and what rows mean to those who
//! read them in `read` and `verify`, which know no SQL.

use std::collections::{BTreeMap, BTreeSet};

use kubewitness_core::config::RetentionSpec;
use kubewitness_core::ports::JournalError;
use kubewitness_core::{Seq, StateId};

mod append;
mod copy;
mod journal;
mod read;
mod report;
mod retention;
mod store;
mod verify;

use store::{place, server, sqlite};

pub use journal::{Journal, JournalOptions};
pub use store::place::Place;

/// Proves the whole journal: order, ids, documents, current objects, counts, cursors, and for
/// each plugin observed = delivered + filtered + dead + waiting. Writes nothing, and may run
/// beside the process that writes. An `Err` says that there is no journal to check.
pub async fn verify(path: &std::path::Path) -> Result<VerifyReport, OpenError> {
    verify_at(&Place::file(path)).await
}

/// The same, wherever it is.
pub async fn verify_at(place: &Place) -> Result<VerifyReport, OpenError> {
    let Opened { connection, unfinished, .. } = open_to_read(place).await?;
    let mut report = verify::verify(connection).await;
    if unfinished {
        let hint = OpenError::Unfinished { place: place.to_string() };
        report.add(code::UNFINISHED, None, hint.to_string());
    }
    Ok(report)
}

/// Throws away a journal that holds an import that has not come to its end. No other is touched.
pub async fn discard(place: &Place) -> Result<(), OpenError> {
    match &place.0 {
        place::Inner::File(path) => sqlite::discard(path).await,
        place::Inner::Server(server) => server::discard(server).await,
    }
}

/// A journal that is only read.
struct Opened {
    connection: Box<dyn store::Connection>,
    bytes: u64,
    /// On top of that.
    wal_bytes: u64,
    /// It holds an import that has not come to its end.
    unfinished: bool,
}

async fn open_to_read(place: &Place) -> Result<Opened, OpenError> {
    match &place.0 {
        place::Inner::File(path) => {
            let (connection, unfinished) = sqlite::open_to_verify(path).await?;
            let (bytes, wal_bytes) = sqlite::sizes(path);
            Ok(Opened { connection: Box::new(connection), bytes, wal_bytes, unfinished })
        }
        place::Inner::Server(server) => {
            let (connection, bytes, unfinished) = server::open_to_read(server).await?;
            Ok(Opened { connection, bytes, wal_bytes: 0, unfinished })
        }
    }
}

/// What a journal has at some positions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    pub newest: Seq,
    /// Retention took some of it: a position that is not there may be one of those.
    pub retained: bool,
    pub ids: BTreeMap<Seq, StateId>,
    /// Damaged, and told by [`verify_at`]: nobody knows which states they are of.
    pub unreadable: BTreeSet<Seq>,
    /// Of which there is a progress; `None` where that can't be read, which [`verify_at`] tells.
    pub plugins: Option<BTreeSet<String>>,
}

/// States that can't be read before no more are asked for, one by one.
const UNREADABLE: usize = 256;

/// The ids of states, for whoever kept positions of them elsewhere.
pub async fn ids_at(place: &Place, seqs: &[Seq]) -> Result<Known, OpenError> {
    let mut connection = open_to_read(place).await?.connection;
    let read = async {
        let rows = connection.rows();
        let newest = rows.stats(0).await?.newest_seq;
        let retained = rows.past().taken_of_streams().await?.values().any(|taken| *taken > 0);
        let plugins = match rows.past().progress_of_all().await {
            Ok(progress) => Some(progress.into_iter().map(|(plugin, _)| plugin).collect()),
            Err(JournalError::Fatal(_)) => None,
            Err(error) => return Err(error),
        };
        let mut known = Known { newest, retained, plugins, ..Known::default() };
        // What can't be read is looked for by halves, so that it hides nothing else.
        let mut parts = vec![seqs];
        while let Some(part) = parts.pop() {
            match (read::at(rows, &read::Names::default(), part).await, part) {
                (Ok(states), _) => known.ids.extend(states.iter().map(|state| (state.seq, state.id.clone()))),
                (Err(JournalError::Fatal(_)), [seq]) if known.unreadable.len() < UNREADABLE => {
                    known.unreadable.insert(*seq);
                }
                (Err(JournalError::Fatal(_)), [_, _, ..]) => {
                    let (first, second) = part.split_at(part.len() / 2);
                    parts.extend([second, first]);
                }
                (Err(error), _) => return Err(error),
            }
        }
        Ok(known)
    };
    let path = || place.to_string().into();
    read.await.map_err(|error| OpenError::Unavailable { path: path(), reason: error.to_string() })
}

/// Figures of a journal, source by source, and what retention may take of each by its settings.
/// Writes nothing, and may run beside the process that writes.
pub async fn stats(
    place: &Place,
    retention: &BTreeMap<String, RetentionSpec>,
    now_ms: u64,
) -> Result<JournalStats, OpenError> {
    let Opened { mut connection, bytes, wal_bytes, unfinished } = open_to_read(place).await?;
    let stats = retention::stats(&mut *connection, retention, now_ms).await;
    let path = || place.to_string().into();
    let stats = stats.map_err(|error| OpenError::Unavailable { path: path(), reason: error.to_string() })?;
    Ok(JournalStats { bytes, wal_bytes, unfinished, ..stats })
}

/// Writes a journal as lines of JSON, one snapshot of it; the format stands at the top of `export`.
/// May run beside the process that writes.
pub async fn export(
    place: &Place,
    query: &ExportQuery,
    out: &mut (dyn std::io::Write + Send),
) -> Result<Exported, ExportError> {
    let Opened { mut connection, unfinished, .. } = open_to_read(place).await?;
    // Its end would say that it is all.
    if unfinished {
        return Err(OpenError::Unfinished { place: place.to_string() }.into());
    }
    copy::export::export(&mut *connection, query, out).await
}

pub use copy::{ExportError, ExportQuery, Exported, ImportError};
pub use report::{
    Holder, JournalStats, OpenError, PoisonRecord, Problem, ReplayRecord, Replica, Retained, RetentionStats,
    SourceCounters, SourceStats, TakenStats, VerifyReport, code,
};
pub use retention::Retention;
pub use store::server::Sharing;
