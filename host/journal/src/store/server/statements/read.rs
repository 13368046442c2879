//! Reads states and the rows that they share, and compares each with its checksum.

use crate::store::rows::{
    DocumentRow, NamedObject, ObjectChoice, ObjectRow, SourceEpoch, StateEnvelope, StateKey, StoreResult,
    check,
};
use crate::store::server::connect::session::ServerSession;
use crate::store::server::engine::link::{SqlParam, SqlRow, key_bytes};

/// The columns of [`decode_envelope`].
macro_rules! envelope_columns {
    () => {
        "s.seq, s.object, s.version, s.flags, s.back, s.status, s.previous, s.owner, s.observed_ms, s.at, s.anchor, \
         s.sums"
    };
}
pub(super) use envelope_columns;

/// How many documents the first statement reads, and how many each later one reads at most.
const FIRST_ROWS: usize = 2;
const ROWS_AT_ONCE: usize = 32;

/// The index of the first column after them.
pub(super) const AFTER_ENVELOPE: usize = 12;

/// Reads the columns from the first column of a row.
pub(super) fn decode_envelope(row: &mut SqlRow) -> StoreResult<StateEnvelope> {
    check::check_envelope((
        row.int_at(0)?,
        row.int_at(1)?,
        row.key(2)?,
        row.int_at(3)?,
        row.int_at(4)?,
        row.int_at(5)?,
        row.optional_int(6)?,
        row.optional_int(7)?,
        row.int_at(8)?,
        row.optional_key(9)?,
        row.optional_int(10)?,
        row.int_at(11)?,
    ))
}

fn decode_envelopes(rows: Vec<SqlRow>) -> StoreResult<Vec<StateEnvelope>> {
    rows.into_iter().map(|mut row| decode_envelope(&mut row)).collect()
}

/// The columns of [`decode_object`].
macro_rules! object_columns {
    () => {
        "o.id, o.stream, o.kind, o.namespace, o.name, o.uid, o.owner, o.sum, k.api_group, k.version, k.kind"
    };
}
pub(super) use object_columns;

pub(super) const AFTER_OBJECT: usize = 11;

pub(super) fn decode_object(row: &mut SqlRow) -> StoreResult<(i64, NamedObject)> {
    let stored = ObjectRow {
        id: row.int_at(0)?,
        stream: row.int_at(1)?,
        kind: row.int_at(2)?,
        namespace: row.text(3)?,
        name: row.text(4)?,
        uid: row.text(5)?,
        owner: row.int_at(6)?,
    };
    let sum = row.int_at(7)?;
    check::check_object(stored, sum, (row.text(8)?, row.text(9)?, row.text(10)?))
}

impl ServerSession {
    pub(super) async fn read_after(&mut self, after: i64, limit: i64) -> StoreResult<Vec<StateEnvelope>> {
        let text = concat!(
            "SELECT ",
            envelope_columns!(),
            " FROM kw_states s WHERE s.seq > ? ORDER BY s.seq LIMIT ?"
        );
        decode_envelopes(self.fetch_rows(text, vec![after.into(), limit.into()]).await?)
    }

    /// Reads only the namespace of each state's object.
    pub(super) async fn read_outside(
        &mut self,
        after: i64,
        through: i64,
        limit: i64,
        namespaces: &[String],
    ) -> StoreResult<Vec<i64>> {
        // Numbered, because the shared texts support pairs but not single texts.
        let text = "SELECT s.seq FROM kw_states s @JOIN kw_objects o ON o.id = s.object \
                    WHERE s.seq > ? AND s.seq <= ? AND o.namespace NOT IN (SELECT @b FROM @pairs) \
                    ORDER BY s.seq LIMIT ?";
        let pairs = (0..).zip(namespaces).map(|(n, name)| (n, name.as_bytes().to_vec())).collect();
        self.fetch_numbers(text, vec![after.into(), through.into(), SqlParam::Pairs(pairs), limit.into()])
            .await
    }

    /// Descends the index of versions, and skips those of other streams.
    pub(super) async fn read_newest_within(
        &mut self,
        stream: i64,
        from: i64,
        upto: i64,
    ) -> StoreResult<Option<i64>> {
        // Ends have no version in this index, and gaps are not numeric.
        let text = "SELECT s.seq FROM kw_states s @JOIN kw_objects o ON o.id = s.object \
                    WHERE s.version >= ? AND s.version <= ? AND o.stream = ? ORDER BY s.version DESC LIMIT 1";
        let [from, upto] = [from, upto].map(|number| SqlParam::Bytes(key_bytes(&StateKey::Number(number))));
        let row = self.fetch_rows(text, vec![from, upto, stream.into()]).await?.pop();
        row.map(|row| row.int_at(0)).transpose()
    }

    /// Ends have their own key, by which the index finds them.
    pub(super) async fn read_end_of(&mut self, object: i64) -> StoreResult<Option<i64>> {
        let text = "SELECT seq FROM kw_states WHERE version = ? AND object = ?";
        let gone = SqlParam::Bytes(key_bytes(&StateKey::GONE));
        let row = self.fetch_rows(text, vec![gone, object.into()]).await?.pop();
        row.map(|row| row.int_at(0)).transpose()
    }

    pub(super) async fn read_at(&mut self, seqs: &[i64]) -> StoreResult<Vec<StateEnvelope>> {
        let text = concat!(
            "SELECT ",
            envelope_columns!(),
            " FROM @numbers @JOIN kw_states s ON s.seq = q.v ORDER BY s.seq"
        );
        decode_envelopes(self.fetch_rows(text, vec![seqs.into()]).await?)
    }

    /// Reads few rows with the first statement, because each document may have megabytes, and twice as many with each
    /// later one.
    pub(super) async fn read_rows_at(
        &mut self,
        seqs: &[i64],
        most_bytes: usize,
    ) -> StoreResult<Vec<DocumentRow>> {
        let text = concat!(
            "SELECT ",
            envelope_columns!(),
            ", s.document FROM @numbers @JOIN kw_states s ON s.seq = q.v"
        );
        let (mut found, mut bytes) = (Vec::with_capacity(seqs.len()), 0);
        let (mut rest, mut size) = (seqs, FIRST_ROWS);
        while !rest.is_empty() {
            let part = rest.split_off(..size.min(rest.len())).unwrap_or_default();
            size = (size * 2).min(ROWS_AT_ONCE);
            for mut row in self.fetch_rows(text, vec![part.into()]).await? {
                let stored = row.bytes_at(AFTER_ENVELOPE)?;
                bytes += stored.len();
                found.push((decode_envelope(&mut row)?, stored));
            }
            if bytes > most_bytes {
                break;
            }
        }
        Ok(found)
    }

    pub(super) async fn read_chain(
        &mut self,
        seq: i64,
        most: u32,
    ) -> StoreResult<Vec<(StateEnvelope, Vec<u8>)>> {
        // 2 is a delta on the previous state.
        let text = concat!(
            "WITH RECURSIVE chain (seq, back, flags, step) AS ( \
             SELECT seq, back, flags, 1 FROM kw_states WHERE seq = ? UNION ALL \
             SELECT n.seq, n.back, n.flags, c.step + 1 FROM chain c @JOIN kw_states n ON n.seq = c.seq - c.back \
             WHERE ((c.flags >> 3) & 3) = 2 AND c.back > 0 AND c.step < ?) SELECT ",
            envelope_columns!(),
            ", s.document FROM chain c @JOIN kw_states s ON s.seq = c.seq ORDER BY s.seq DESC"
        );
        let rows = self.fetch_rows(text, vec![seq.into(), i64::from(most).into()]).await?;
        let pair = |mut row: SqlRow| Ok((decode_envelope(&mut row)?, row.bytes_at(AFTER_ENVELOPE)?));
        rows.into_iter().map(pair).collect()
    }

    pub(super) async fn read_objects(
        &mut self,
        which: ObjectChoice<'_>,
    ) -> StoreResult<Vec<(i64, NamedObject)>> {
        macro_rules! found {
            ($by:literal) => {
                concat!(
                    "SELECT ",
                    object_columns!(),
                    " FROM @numbers @JOIN kw_objects o ON ",
                    $by,
                    " = q.v @JOIN kw_kinds k ON k.id = o.kind ORDER BY o.id"
                )
            };
        }
        let (text, numbers) = match which {
            ObjectChoice::Numbers(numbers) => (found!("o.id"), numbers.to_vec()),
            ObjectChoice::Uid(key) => (found!("o.uid_key"), vec![i64::from(key)]),
            ObjectChoice::Name(key) => (found!("o.name_key"), vec![i64::from(key)]),
        };
        let rows = self.fetch_rows(text, vec![SqlParam::Numbers(numbers)]).await?;
        rows.into_iter().map(|mut row| decode_object(&mut row)).collect()
    }

    pub(super) async fn read_statuses(&mut self, numbers: &[i64]) -> StoreResult<Vec<(i64, String, i64)>> {
        let text = "SELECT s.id, s.body, s.sum FROM @numbers @JOIN kw_statuses s ON s.id = q.v";
        let rows = self.fetch_rows(text, vec![numbers.into()]).await?;
        rows.into_iter().map(|mut row| Ok((row.int_at(0)?, row.text(1)?, row.int_at(2)?))).collect()
    }

    pub(super) async fn read_streams(&mut self) -> StoreResult<Vec<SourceEpoch>> {
        let text = "SELECT id, source, epoch, checkpoint, states, last_event_ms, sum FROM kw_streams \
                    ORDER BY source, epoch";
        let stream = |mut row: SqlRow| {
            Ok(SourceEpoch {
                id: row.int_at(0)?,
                source: row.text(1)?,
                epoch: row.int_at(2)? as u32,
                checkpoint: row.optional_text(3)?,
                states: row.int_at(4)? as u64,
                last_event_ms: row.optional_int(5)?,
                sum: row.int_at(6)?,
            })
        };
        self.fetch_rows(text, Vec::new()).await?.into_iter().map(stream).collect()
    }

    pub(super) async fn read_anchor(&mut self, number: i64) -> StoreResult<Option<(i64, Vec<u8>)>> {
        let text = "SELECT checksum, document FROM kw_anchors WHERE id = ?";
        let row = self.fetch_rows(text, vec![number.into()]).await?.pop();
        row.map(|mut row| Ok((row.int_at(0)?, row.bytes_at(1)?))).transpose()
    }
}
