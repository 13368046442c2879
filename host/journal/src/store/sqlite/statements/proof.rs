//! Reads rows for `journal verify`, and runs SQLite's own check of the file.

use kubewitness_core::Seq;
use sqlx::{Row, SqliteConnection};

use super::read::{decode_envelope, envelope_column, key};
use crate::store::rows::{EndRow, KeptSnapshot, LiveRow, SnapshotRow, StoreResult, StoredRow};
use crate::store::sqlite::fault::classify_error;
use crate::store::sqlite::schema::triggers_and_views;

/// The most findings of SQLite's own check.
const STORE_FINDINGS: u32 = 100;

pub(super) async fn structure_findings(connection: &mut SqliteConnection) -> StoreResult<Vec<String>> {
    let text = format!("PRAGMA integrity_check({STORE_FINDINGS})");
    let lines: Vec<String> = sqlx::query_scalar(sqlx::AssertSqlSafe(text))
        .fetch_all(&mut *connection)
        .await
        .map_err(classify_error)?;
    let foreign = triggers_and_views(connection).await.map_err(classify_error)?.into_iter();
    let foreign =
        foreign.map(|name| format!("`{name}` is no part of a journal, and it may change what is written"));
    Ok(lines.into_iter().filter(|line| line != "ok").chain(foreign).collect())
}

pub(super) async fn stored_rows(
    connection: &mut SqliteConnection,
    after: i64,
    limit: i64,
) -> StoreResult<Vec<StoredRow>> {
    let text = concat!(
        "SELECT ",
        envelope_column!(),
        ", s.document, s.seq FROM states s WHERE s.seq > ? ORDER BY s.seq LIMIT ?"
    );
    let rows: Vec<(String, Vec<u8>, i64)> =
        sqlx::query_as(text).bind(after).bind(limit).fetch_all(connection).await.map_err(classify_error)?;
    Ok(rows.into_iter().map(|(text, document, seq)| (seq, decode_envelope(&text), document)).collect())
}

pub(super) async fn live_rows(
    connection: &mut SqliteConnection,
    after: i64,
    limit: i64,
) -> StoreResult<Vec<LiveRow>> {
    let text = "SELECT c.object, c.tail, c.newest, s.version, s.object FROM current c \
                LEFT JOIN states s ON s.seq = c.newest WHERE c.object > ? ORDER BY c.object LIMIT ?";
    let rows =
        sqlx::query(text).bind(after).bind(limit).fetch_all(connection).await.map_err(classify_error)?;
    let read = |row: &sqlx::sqlite::SqliteRow| {
        Ok(LiveRow {
            object: row.try_get(0)?,
            tail: row.try_get::<i64, _>(1)? as Seq,
            newest: row.try_get::<i64, _>(2)? as Seq,
            version: key(row, 3)?,
            newest_object: row.try_get(4)?,
        })
    };
    rows.iter().map(read).collect::<Result<_, _>>().map_err(classify_error)
}

pub(super) async fn snapshot_rows(
    connection: &mut SqliteConnection,
    after: i64,
    limit: i64,
) -> StoreResult<Vec<KeptSnapshot>> {
    type Columns = (i64, i64, Vec<u8>, Option<i64>, Option<i64>, bool);
    let text = "SELECT p.object, p.seq, p.packed, s.object, s.sums, c.object IS NOT NULL FROM snapshots p \
                LEFT JOIN states s ON s.seq = p.seq LEFT JOIN current c ON c.object = p.object \
                WHERE p.object > ? ORDER BY p.object LIMIT ?";
    let rows: Vec<Columns> =
        sqlx::query_as(text).bind(after).bind(limit).fetch_all(connection).await.map_err(classify_error)?;
    let kept = |(object, seq, packed, state_object, sums, is_current): Columns| KeptSnapshot {
        snapshot: SnapshotRow { object, seq: seq as u64, packed: packed.into() },
        state_object,
        checksum: sums.map(|sums| sums as u32),
        is_current,
    };
    Ok(rows.into_iter().map(kept).collect())
}

pub(super) async fn end_rows(
    connection: &mut SqliteConnection,
    after: i64,
    limit: i64,
) -> StoreResult<Vec<EndRow>> {
    let text = "SELECT o.id, o.tail, o.newest, s.object, s.flags, s.version, s.at FROM objects o \
                LEFT JOIN states s ON s.seq = o.newest WHERE o.id > ? AND o.stream > 0 ORDER BY o.id LIMIT ?";
    let rows =
        sqlx::query(text).bind(after).bind(limit).fetch_all(connection).await.map_err(classify_error)?;
    let read = |row: &sqlx::sqlite::SqliteRow| {
        Ok(EndRow {
            object: row.try_get(0)?,
            tail: row.try_get(1)?,
            newest: row.try_get(2)?,
            newest_object: row.try_get(3)?,
            version: EndRow::version_of(row.try_get(4)?, key(row, 5)?, key(row, 6)?),
        })
    };
    rows.iter().map(read).collect::<Result<_, _>>().map_err(classify_error)
}

pub(super) async fn object_keys(
    connection: &mut SqliteConnection,
    after: i64,
    limit: i64,
) -> StoreResult<Vec<(i64, i64, i64)>> {
    let text = "SELECT id, uid_key, name_key FROM objects WHERE id > ? ORDER BY id LIMIT ?";
    sqlx::query_as(text).bind(after).bind(limit).fetch_all(connection).await.map_err(classify_error)
}

/// The most reported findings of one kind about links between rows.
const SOME: i64 = 100;

pub(super) async fn wrong_owner_links(connection: &mut SqliteConnection) -> StoreResult<Vec<(i64, i64)>> {
    let text = "SELECT d.owner, d.object FROM owned d WHERE d.sum <> 31 * d.owner + 17 * d.object \
                OR NOT EXISTS (SELECT 1 FROM objects o WHERE o.id = d.owner) LIMIT ?";
    sqlx::query_as(text).bind(SOME).fetch_all(connection).await.map_err(classify_error)
}

pub(super) async fn missing_owner_links(connection: &mut SqliteConnection) -> StoreResult<Vec<i64>> {
    let text = "SELECT o.id FROM objects o WHERE o.owner > 0 \
                AND NOT EXISTS (SELECT 1 FROM owned d WHERE d.owner = o.owner AND d.object = o.id) LIMIT ?";
    sqlx::query_scalar(text).bind(SOME).fetch_all(connection).await.map_err(classify_error)
}

pub(super) async fn segment_tallies(connection: &mut SqliteConnection) -> StoreResult<Vec<(i64, i64, i64)>> {
    let text = "SELECT segment, stream, states FROM tallies";
    sqlx::query_as(text).fetch_all(connection).await.map_err(classify_error)
}

pub(super) async fn plugin_rows(connection: &mut SqliteConnection) -> StoreResult<Vec<(String, String)>> {
    let text = "SELECT name, progress FROM plugins ORDER BY name";
    sqlx::query_as(text).fetch_all(connection).await.map_err(classify_error)
}

pub(super) async fn letter_counts(
    connection: &mut SqliteConnection,
    plugin: &str,
) -> StoreResult<(i64, i64)> {
    let text = "SELECT count(*), coalesce(sum(replaying = 0), 0) FROM letters WHERE plugin = ?";
    sqlx::query_as(text).bind(plugin).fetch_one(connection).await.map_err(classify_error)
}

pub(super) async fn orphaned_letters(
    connection: &mut SqliteConnection,
    plugin: &str,
) -> StoreResult<Vec<i64>> {
    let text = "SELECT l.seq FROM letters l LEFT JOIN states s ON s.seq = l.seq \
                WHERE l.plugin = ? AND s.seq IS NULL LIMIT 100";
    sqlx::query_scalar(text).bind(plugin).fetch_all(connection).await.map_err(classify_error)
}
