//! Reads states and the rows that they share, and compares each with its checksum.

use kubewitness_core::ports::JournalError;
use sqlx::sqlite::SqliteRow;
use sqlx::{Row, SqliteConnection, TypeInfo, ValueRef};

use crate::store::rows::check::{self, EnvelopeColumns};
use crate::store::rows::{
    NamedObject, ObjectChoice, ObjectRow, SourceEpoch, StateEnvelope, StateKey, StoreResult, uid,
};
use crate::store::sqlite::fault::classify_error;

/// An envelope as one column. The driver's cost is for each row and column: a JSON array that SQLite builds
/// and serde parses costs a third of twelve columns.
macro_rules! envelope_column {
    () => {
        "json_array(s.seq, s.object, s.version, s.flags, s.back, s.status, s.previous, s.owner, s.observed_ms, \
         s.at, s.anchor, s.sums)"
    };
}
pub(super) use envelope_column;

pub(super) fn key(row: &SqliteRow, column: usize) -> Result<Option<StateKey>, sqlx::Error> {
    let raw = row.try_get_raw(column)?;
    if raw.is_null() {
        return Ok(None);
    }
    Ok(Some(match raw.type_info().name() {
        "TEXT" => StateKey::Text(row.try_get_unchecked::<String, _>(column)?.into()),
        _ => StateKey::Number(row.try_get_unchecked(column)?),
    }))
}

fn malformed_rows(error: &serde_json::Error) -> JournalError {
    JournalError::Fatal(format!("rows that are not of this format: {error}"))
}

/// Decodes the value of [`envelope_column`], and compares it with its checksum.
pub(super) fn decode_envelope(text: &str) -> Result<StateEnvelope, JournalError> {
    check::check_envelope(serde_json::from_str(text).map_err(|error| malformed_rows(&error))?)
}

/// The same for several envelopes in one array.
fn decode_envelopes(text: &str) -> Result<Vec<StateEnvelope>, JournalError> {
    let rows: Vec<EnvelopeColumns> = serde_json::from_str(text).map_err(|error| malformed_rows(&error))?;
    rows.into_iter().map(check::check_envelope).collect()
}

/// An object and its kind as one column.
macro_rules! object_column {
    () => {
        "json_array(o.id, o.stream, o.kind, o.namespace, o.name, iif(typeof(o.uid) = 'blob', hex(o.uid), NULL), \
         iif(typeof(o.uid) = 'text', o.uid, NULL), o.owner, o.sum, k.api_group, k.version, k.kind)"
    };
}
pub(super) use object_column;

type ObjectColumns =
    (i64, i64, i64, String, String, Option<String>, Option<String>, i64, i64, String, String, String);

fn decode_known(row: ObjectColumns) -> Result<(i64, NamedObject), JournalError> {
    let (id, stream, kind, namespace, name, hex, text, owner, sum, group, version, kind_name) = row;
    let uid = text.or_else(|| uid::from_hex(&hex?)).unwrap_or_default();
    let row = ObjectRow { id, stream, kind, namespace, name, uid, owner };
    check::check_object(row, sum, (group, version, kind_name))
}

/// Decodes the value of [`object_column`], and compares it with its checksum.
pub(super) fn decode_object(text: &str) -> Result<(i64, NamedObject), JournalError> {
    decode_known(serde_json::from_str(text).map_err(|error| malformed_rows(&error))?)
}

/// The rows of one array of JSON numbers.
pub(super) fn numbers_as_json(numbers: &[i64]) -> String {
    serde_json::to_string(numbers).expect("numbers always serialize")
}

pub(super) async fn states_after(
    connection: &mut SqliteConnection,
    after: i64,
    limit: i64,
) -> StoreResult<Vec<StateEnvelope>> {
    let text = concat!(
        "SELECT json_group_array(",
        envelope_column!(),
        " ORDER BY s.seq) FROM (SELECT seq, object, version, flags, back, status, previous, owner, observed_ms, \
         at, anchor, sums FROM states WHERE seq > ? ORDER BY seq LIMIT +?) s"
    );
    let query = sqlx::query_scalar(text).bind(after).bind(limit);
    let found: String = query.fetch_one(connection).await.map_err(classify_error)?;
    decode_envelopes(&found)
}

/// Reads only the object of each state.
pub(super) async fn positions_outside(
    connection: &mut SqliteConnection,
    after: i64,
    through: i64,
    limit: i64,
    namespaces: &[String],
) -> StoreResult<Vec<i64>> {
    let text = "SELECT s.seq FROM states s CROSS JOIN objects o ON o.id = s.object \
                WHERE s.seq > ?1 AND s.seq <= ?2 AND o.namespace NOT IN (SELECT value FROM json_each(?3)) \
                ORDER BY s.seq LIMIT +?4";
    let namespaces = serde_json::to_string(namespaces).expect("strings always serialize");
    let query = sqlx::query_scalar(text).bind(after).bind(through).bind(namespaces).bind(limit);
    query.fetch_all(connection).await.map_err(classify_error)
}

/// Descends the index of versions, and skips those of other streams.
pub(super) async fn newest_within(
    connection: &mut SqliteConnection,
    stream: i64,
    from: i64,
    upto: i64,
) -> StoreResult<Option<i64>> {
    // Ends have no version in this index, and gaps are not numeric.
    let text = "SELECT s.seq FROM states s CROSS JOIN objects o ON o.id = s.object \
                WHERE s.version BETWEEN ?1 AND ?2 AND o.stream = ?3 ORDER BY s.version DESC LIMIT 1";
    let query = sqlx::query_scalar(text).bind(from).bind(upto).bind(stream);
    query.fetch_optional(connection).await.map_err(classify_error)
}

/// Ends have their own key, by which the index finds them.
pub(super) async fn end_of(connection: &mut SqliteConnection, object: i64) -> StoreResult<Option<i64>> {
    let text = "SELECT seq FROM states WHERE version = -1 AND object = ?";
    sqlx::query_scalar(text).bind(object).fetch_optional(connection).await.map_err(classify_error)
}

pub(super) async fn states_at(
    connection: &mut SqliteConnection,
    seqs: &[i64],
) -> StoreResult<Vec<StateEnvelope>> {
    let text = concat!(
        "SELECT json_group_array(",
        envelope_column!(),
        " ORDER BY s.seq) FROM states s WHERE s.seq IN (SELECT value FROM json_each(?))"
    );
    let found: String = sqlx::query_scalar(text)
        .bind(numbers_as_json(seqs))
        .fetch_one(connection)
        .await
        .map_err(classify_error)?;
    decode_envelopes(&found)
}

/// 2 is a delta on the previous state.
pub(in crate::store::sqlite) const CHAIN: &str = concat!(
    "WITH RECURSIVE chain (seq, back, flags) AS (SELECT seq, back, flags FROM states WHERE seq = ? \
     UNION ALL SELECT n.seq, n.back, n.flags FROM chain c JOIN states n ON n.seq = c.seq - c.back \
     WHERE (c.flags >> 3) & 3 = 2 AND c.back > 0 LIMIT +?) SELECT ",
    envelope_column!(),
    ", s.document FROM chain c CROSS JOIN states s ON s.seq = c.seq ORDER BY s.seq DESC"
);

pub(super) async fn document_chain(
    connection: &mut SqliteConnection,
    seq: i64,
    most: u32,
) -> StoreResult<Vec<(StateEnvelope, Vec<u8>)>> {
    let query = sqlx::query_as(CHAIN).bind(seq).bind(most);
    let rows: Vec<(String, Vec<u8>)> = query.fetch_all(connection).await.map_err(classify_error)?;
    rows.into_iter().map(|(text, stored)| Ok((decode_envelope(&text)?, stored))).collect()
}

pub(super) async fn find_objects(
    connection: &mut SqliteConnection,
    which: ObjectChoice<'_>,
) -> StoreResult<Vec<(i64, NamedObject)>> {
    macro_rules! found {
        ($by:literal) => {
            concat!(
                "SELECT json_group_array(",
                object_column!(),
                " ORDER BY o.id) FROM objects o JOIN kinds k ON k.id = o.kind WHERE ",
                $by
            )
        };
    }
    let query = match which {
        ObjectChoice::Numbers(numbers) => {
            sqlx::query_scalar(found!("o.id IN (SELECT value FROM json_each(?))"))
                .bind(numbers_as_json(numbers))
        }
        ObjectChoice::Uid(key) => sqlx::query_scalar(found!("o.uid_key = ?")).bind(key),
        ObjectChoice::Name(key) => sqlx::query_scalar(found!("o.name_key = ?")).bind(key),
    };
    let found: String = query.fetch_one(connection).await.map_err(classify_error)?;
    let rows: Vec<ObjectColumns> = serde_json::from_str(&found).map_err(|error| malformed_rows(&error))?;
    rows.into_iter().map(decode_known).collect()
}

pub(super) async fn status_rows(
    connection: &mut SqliteConnection,
    numbers: &[i64],
) -> StoreResult<Vec<(i64, String, i64)>> {
    let text = "SELECT id, body, sum FROM statuses WHERE id IN (SELECT value FROM json_each(?))";
    sqlx::query_as(text).bind(numbers_as_json(numbers)).fetch_all(connection).await.map_err(classify_error)
}

pub(super) async fn source_streams(connection: &mut SqliteConnection) -> StoreResult<Vec<SourceEpoch>> {
    type Row = (i64, String, u32, Option<String>, i64, Option<i64>, i64);
    let text = "SELECT id, source, epoch, checkpoint, states, last_event_ms, sum FROM streams ORDER BY source, epoch";
    let rows: Vec<Row> = sqlx::query_as(text).fetch_all(connection).await.map_err(classify_error)?;
    let stream = |(id, source, epoch, checkpoint, states, last_event_ms, sum): Row| SourceEpoch {
        id,
        source,
        epoch,
        checkpoint,
        states: states as u64,
        last_event_ms,
        sum,
    };
    Ok(rows.into_iter().map(stream).collect())
}

pub(super) async fn anchor_row(
    connection: &mut SqliteConnection,
    number: i64,
) -> StoreResult<Option<(i64, Vec<u8>)>> {
    let text = "SELECT checksum, document FROM anchors WHERE id = ?";
    sqlx::query_as(text).bind(number).fetch_optional(connection).await.map_err(classify_error)
}
