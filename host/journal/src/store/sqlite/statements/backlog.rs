//! Reads what plugins saved (progress, dead letters, keys), and counts states.

use std::sync::Arc;

use kubewitness_core::ports::{DeadLetter, JournalError, PluginProgress};
use kubewitness_core::views::LetterQuery;
use kubewitness_core::{Seq, StateId, reports};
use sqlx::SqliteConnection;

use crate::report::ReplayRecord;
use crate::store::rows::{LetterRange, OWED_STATE, OperatorAct, SEGMENT, bounded_i64, check, decode_column};
use crate::store::sqlite::fault::classify_error;

pub(super) async fn plugin_progress(
    connection: &mut SqliteConnection,
    plugin: &str,
) -> Result<Option<PluginProgress>, JournalError> {
    let row: Option<(String, i64)> = sqlx::query_as("SELECT progress, sum FROM plugins WHERE name = ?")
        .bind(plugin)
        .fetch_optional(connection)
        .await
        .map_err(classify_error)?;
    row.map(|(body, sum)| check::check_progress(plugin, &body, sum)).transpose()
}

/// Ordered by plugin and position; letters of all plugins if none is named.
pub(super) async fn dead_letters(
    connection: &mut SqliteConnection,
    query: &LetterQuery,
) -> Result<Vec<DeadLetter>, JournalError> {
    type LetterRow = (String, i64, String, u32, String, i64, i64, i64, String);
    const OF: &str = "SELECT plugin, seq, id, attempts, error, first_ms, last_ms, replaying, tries FROM letters \
                      WHERE plugin = ? AND seq > ? AND replaying BETWEEN ? AND ? ORDER BY seq LIMIT ?";
    const BEHIND: &str = "SELECT plugin, seq, id, attempts, error, first_ms, last_ms, replaying, tries FROM letters \
                          WHERE plugin > ? AND replaying BETWEEN ? AND ? ORDER BY plugin, seq LIMIT ?";
    let limit = query.limit.unwrap_or(usize::MAX);
    let (lowest, highest) = OperatorAct::marks_of(query.which);
    let mut rows: Vec<LetterRow> = Vec::new();
    for range in LetterRange::all_ranges(query) {
        let rest = bounded_i64((limit - rows.len()) as u64);
        let asked = match range {
            LetterRange::Of(plugin, seq) => sqlx::query_as(OF).bind(plugin).bind(seq),
            LetterRange::Behind(plugin) => sqlx::query_as(BEHIND).bind(plugin),
        };
        let found: Vec<LetterRow> = asked
            .bind(lowest)
            .bind(highest)
            .bind(rest)
            .fetch_all(&mut *connection)
            .await
            .map_err(classify_error)?;
        rows.extend(found);
    }
    let letter = |(plugin, seq, id, attempts, error, first_ms, last_ms, mark, tries): LetterRow| {
        let tries = decode_column(&tries, || format!("letter {seq}"))?;
        let (replaying, dropped) = OperatorAct::of_mark(mark);
        Ok(DeadLetter {
            plugin,
            seq: seq as u64,
            id: StateId::parse(&id),
            attempts,
            error,
            first_ms: first_ms as u64,
            last_ms: last_ms as u64,
            replaying,
            dropped,
            tries,
        })
    };
    rows.into_iter().map(letter).collect()
}

pub(super) async fn owed_positions(
    connection: &mut SqliteConnection,
    plugin: &str,
    from: i64,
    limit: i64,
) -> Result<Vec<i64>, JournalError> {
    let text = "SELECT seq FROM letters WHERE plugin = ? AND seq >= ? AND replaying = ? ORDER BY seq LIMIT ?";
    let asked = sqlx::query_scalar(text).bind(plugin).bind(from).bind(OWED_STATE).bind(limit);
    asked.fetch_all(connection).await.map_err(classify_error)
}

pub(super) async fn plugin_kv(
    connection: &mut SqliteConnection,
    plugin: &str,
) -> Result<Vec<(String, Vec<u8>)>, JournalError> {
    let text = "SELECT key, value FROM kv WHERE plugin = ? \
                AND (key < ? OR key >= ? OR key NOT LIKE 'report/%/%') ORDER BY key";
    let asked = sqlx::query_as(text).bind(plugin).bind(reports::PREFIX).bind(reports::BEYOND);
    asked.fetch_all(connection).await.map_err(classify_error)
}

pub(super) async fn report_rows(
    connection: &mut SqliteConnection,
    plugin: &str,
    (from, below): (&str, &str),
    limit: i64,
) -> Result<Vec<(String, Vec<u8>)>, JournalError> {
    let text = "SELECT key, value FROM kv WHERE plugin = ? AND key >= ? AND key < ? ORDER BY key LIMIT ?";
    let asked = sqlx::query_as(text).bind(plugin).bind(from).bind(below).bind(limit);
    asked.fetch_all(connection).await.map_err(classify_error)
}

pub(super) async fn report_bytes(
    connection: &mut SqliteConnection,
    plugin: &str,
) -> Result<i64, JournalError> {
    let text = "SELECT COALESCE(SUM(LENGTH(key) + LENGTH(value)), 0) FROM kv WHERE plugin = ? AND key >= ? AND key < ?";
    let asked = sqlx::query_scalar(text).bind(plugin).bind(reports::PREFIX).bind(reports::BEYOND);
    asked.fetch_one(connection).await.map_err(classify_error)
}

pub(super) async fn replay_records(
    connection: &mut SqliteConnection,
    plugin: Option<&str>,
    before: i64,
    limit: i64,
) -> Result<Vec<ReplayRecord>, JournalError> {
    let text = "SELECT id, plugin, what, who, why, seqs, at_ms FROM replays WHERE id < ?2 AND (?1 IS NULL OR plugin = ?1) \
                ORDER BY id DESC LIMIT ?3";
    let asked = sqlx::query_as(text).bind(plugin).bind(before).bind(limit);
    decode_replay_records(asked.fetch_all(connection).await.map_err(classify_error)?)
}

pub(super) async fn pauses_in_force(
    connection: &mut SqliteConnection,
) -> Result<Vec<ReplayRecord>, JournalError> {
    let text = "SELECT id, plugin, what, who, why, seqs, at_ms FROM replays WHERE what = 'pause' AND id IN \
                (SELECT max(id) FROM replays WHERE what IN ('pause', 'resume') GROUP BY plugin) ORDER BY id";
    decode_replay_records(sqlx::query_as(text).fetch_all(connection).await.map_err(classify_error)?)
}

type ProgressRow = (i64, String, String, String, String, String, i64);

fn decode_replay_records(rows: Vec<ProgressRow>) -> Result<Vec<ReplayRecord>, JournalError> {
    let record = |(number, plugin, what, who, why, seqs, at_ms): ProgressRow| {
        let seqs = decode_column(&seqs, || format!("replay {number}"))?;
        Ok(ReplayRecord { number: number as u64, plugin, what, who, why, seqs, at_ms: at_ms as u64 })
    };
    rows.into_iter().map(record).collect()
}

/// The number of states of these sources in `(after, through]`: whole segments by their tallies, the two ends
/// by counting states.
pub(super) async fn count(
    connection: &mut SqliteConnection,
    sources: &[Arc<str>],
    after: Seq,
    through: Seq,
) -> Result<u64, JournalError> {
    let through = through.min(i64::MAX as u64 - 1);
    if after >= through || sources.is_empty() {
        return Ok(0);
    }
    let (first, last) = ((after + 1) / SEGMENT, through / SEGMENT);
    let names: Vec<&str> = sources.iter().map(|source| &**source).collect();
    let names = serde_json::to_string(&names).expect("strings always serialize");
    // (from, through) of each end. If both are in the same segment, there is only one.
    let (head, tail) = match first == last {
        true => ((after + 1, through), (1, 0)),
        false => ((after + 1, (first + 1) * SEGMENT - 1), (last * SEGMENT, through)),
    };
    let text = "WITH mine AS MATERIALIZED (SELECT id FROM streams WHERE source IN (SELECT value FROM json_each(?1))) \
         SELECT (SELECT coalesce(sum(states), 0) FROM tallies WHERE segment > ?2 AND segment < ?3 AND stream IN mine) \
         + (SELECT count(*) FROM states s CROSS JOIN objects o ON o.id = s.object \
            WHERE s.seq BETWEEN ?4 AND ?5 AND o.stream IN mine) \
         + (SELECT count(*) FROM states s CROSS JOIN objects o ON o.id = s.object \
            WHERE s.seq BETWEEN ?6 AND ?7 AND o.stream IN mine)";
    let mut query = sqlx::query_scalar::<_, i64>(text).bind(names);
    for number in [first, last, head.0, head.1, tail.0, tail.1] {
        query = query.bind(number as i64);
    }
    let count = query.fetch_one(connection).await.map_err(classify_error)?;
    Ok(count as u64)
}
