//! Reads gaps, poison messages, findings of audits, and replaced histories.

use kubewitness_core::kinds::is_kind;
use kubewitness_core::ports::JournalError;
use kubewitness_core::state::gap_reason;
use kubewitness_core::views::{EpochView, GapQuery, PoisonQuery, PoisonView};
use kubewitness_core::{Gap, calendar};
use sqlx::SqliteConnection;

use crate::store::rows::{bounded_i64, decode_column};
use crate::store::sqlite::fault::classify_error;

/// How many bytes of a poison message a list shows: a line and a half of a terminal.
const EXCERPT: i64 = 160;

/// Newest first, each with its number. The kind is compared here, because people write it in many ways.
pub(super) async fn find_gaps(
    connection: &mut SqliteConnection,
    query: &GapQuery,
) -> Result<Vec<(u64, Gap)>, JournalError> {
    let text = "SELECT g.id, g.body FROM gaps g JOIN streams t ON t.id = g.stream \
         WHERE (?1 IS NULL OR t.source = ?1) AND (?2 IS NULL OR g.body ->> '$.object.uid' = ?2) \
           AND (?3 IS NULL OR g.body ->> '$.object.namespace' = ?3) \
           AND (?4 IS NULL OR g.body ->> '$.object.name' = ?4) AND g.id < ?5 ORDER BY g.id DESC LIMIT ?6";
    let limit = query.limit.unwrap_or(usize::MAX);
    // All of them if they still have to be filtered by kind.
    let fetched = if query.kind.is_some() { usize::MAX } else { limit };
    let asked = sqlx::query_as(text).bind(&query.source).bind(&query.uid).bind(&query.namespace);
    let asked = asked.bind(&query.name).bind(query.cursor.map_or(i64::MAX, bounded_i64));
    let rows: Vec<(i64, String)> =
        asked.bind(limit_i64(fetched)).fetch_all(connection).await.map_err(classify_error)?;
    let mut gaps = Vec::new();
    for (id, body) in rows {
        let gap: Gap = decode_column(&body, || format!("gap {id}"))?;
        let fits = |kind: &String| gap.object.as_ref().is_some_and(|o| is_kind(&o.group, &o.kind, kind));
        if query.kind.as_ref().is_none_or(fits) {
            gaps.push((id as u64, gap));
        }
        if gaps.len() >= limit {
            break;
        }
    }
    Ok(gaps)
}

/// Newest first, without the bytes.
pub(super) async fn find_poison(
    connection: &mut SqliteConnection,
    query: &PoisonQuery,
) -> Result<Vec<PoisonView>, JournalError> {
    type Row = (i64, String, u32, String, i64, i64, Vec<u8>);
    let text = "SELECT p.id, t.source, t.epoch, p.error, p.observed_ms, length(p.raw), substr(p.raw, 1, ?3) \
                FROM poison p JOIN streams t ON t.id = p.stream \
                WHERE (?1 IS NULL OR t.source = ?1) AND p.id < ?4 ORDER BY p.id DESC LIMIT ?2";
    let asked = sqlx::query_as(text).bind(&query.source).bind(limit_i64(query.limit.unwrap_or(usize::MAX)));
    let asked = asked.bind(EXCERPT).bind(query.cursor.map_or(i64::MAX, bounded_i64));
    let rows: Vec<Row> = asked.fetch_all(connection).await.map_err(classify_error)?;
    let view = |(number, source, epoch, error, observed_ms, bytes, begin): Row| PoisonView {
        number: number as u64,
        source,
        epoch,
        error,
        observed_ms: observed_ms as u64,
        bytes: bytes as u64,
        excerpt: String::from_utf8_lossy(&begin).into_owned(),
    };
    Ok(rows.into_iter().map(view).collect())
}

pub(super) async fn poison_raw(
    connection: &mut SqliteConnection,
    number: u64,
) -> Result<Option<Vec<u8>>, JournalError> {
    let Ok(number) = i64::try_from(number) else { return Ok(None) };
    let asked = sqlx::query_scalar("SELECT raw FROM poison WHERE id = ?").bind(number);
    asked.fetch_optional(connection).await.map_err(classify_error)
}

/// The findings of all streams of a source, each with its stream, newest first.
pub(super) async fn audit_findings(
    connection: &mut SqliteConnection,
    source: &str,
) -> Result<Vec<(i64, i64, String)>, JournalError> {
    let text = "SELECT d.stream, d.number, d.body FROM discrepancies d JOIN streams t ON t.id = d.stream \
                WHERE t.source = ? ORDER BY d.stream DESC, d.number DESC";
    sqlx::query_as(text).bind(source).fetch_all(connection).await.map_err(classify_error)
}

/// The histories of each source, oldest first. A later one begins where the end of the previous one is
/// recorded as a hole, or at its own beginning.
pub(super) async fn source_epochs(
    connection: &mut SqliteConnection,
) -> Result<Vec<(String, EpochView)>, JournalError> {
    type Row = (String, u32, i64, Option<String>, Option<i64>, Option<i64>);
    let text = "SELECT t.source, t.epoch, t.states, t.checkpoint, t.last_event_ms, \
         coalesce((SELECT min(g.body ->> '$.recorded_ms') FROM gaps g JOIN streams b ON b.id = g.stream \
            WHERE b.source = t.source AND b.epoch = t.epoch - 1 AND g.seq = 0 \
              AND g.body ->> '$.reason' = ?1 AND coalesce(g.body ->> '$.before', '') = ''), \
           (SELECT min(g.body ->> '$.recorded_ms') FROM gaps g \
              WHERE g.stream = t.id AND g.seq = 0 AND t.epoch > 0 AND g.body ->> '$.reason' = ?1)) \
         FROM streams t ORDER BY t.source, t.epoch";
    let query = sqlx::query_as(text).bind(gap_reason::REPLACED);
    let rows: Vec<Row> = query.fetch_all(connection).await.map_err(classify_error)?;
    let view = |(source, epoch, states, checkpoint, last_event_ms, replaced_ms): Row| {
        let epoch = EpochView {
            epoch,
            states: states as u64,
            checkpoint: checkpoint.unwrap_or_default(),
            replaced_at: optional_rfc3339(replaced_ms),
            last_event_at: optional_rfc3339(last_event_ms),
        };
        (source, epoch)
    };
    Ok(rows.into_iter().map(view).collect())
}

fn limit_i64(limit: usize) -> i64 {
    limit.min(i64::MAX as usize) as i64
}

/// Older writers stored 0 for a value that was never set.
pub(super) fn optional_rfc3339(ms: Option<i64>) -> Option<String> {
    ms.filter(|ms| *ms > 0).map(|ms| calendar::format_rfc3339(ms as u64))
}
