//! Writes one transaction of appends and saves, with one statement for each row.

use std::collections::BTreeMap;

use kubewitness_core::Seq;
use kubewitness_core::ports::{DeadLetter, KvWrite};
use rusqlite::types::{ToSqlOutput, Value};
use rusqlite::{CachedStatement, Connection, ToSql, params};

use crate::store::PluginWrites;
use crate::store::rows::checksum::{self, LetterColumns};
use crate::store::rows::discrepancies::{FoundDifferences, StreamRowChange};
use crate::store::rows::{
    GapRow, LetterMarking, OWED_STATE, ObjectOutcome, ObjectRow, OperatorAct, RowBatch, SnapshotRow,
    StateKey, StateRow, StreamRow, uid,
};

// `OR FAIL`, because the default may keep a journal for each statement in order to undo it alone. Here an
// error undoes the whole transaction.
const STREAM: &str = "INSERT OR FAIL INTO streams (id, source, epoch, checkpoint, states, last_event_ms, sum) \
    VALUES (?,?,?,?,?,?,?) \
    ON CONFLICT (id) DO UPDATE SET checkpoint = excluded.checkpoint, states = states + excluded.states, \
    last_event_ms = excluded.last_event_ms, sum = excluded.sum";
const KIND: &str = "INSERT OR FAIL INTO kinds (id, api_group, version, kind, sum) VALUES (?,?,?,?,?)";
const OBJECT: &str = "INSERT OR FAIL INTO objects \
    (id, stream, kind, namespace, name, uid, owner, uid_key, name_key, sum) VALUES (?,?,?,?,?,?,?,?,?,?)";
const OWNED: &str = "INSERT OR IGNORE INTO owned (owner, object, sum) VALUES (?,?,?)";
const STATUS: &str = "INSERT OR FAIL INTO statuses (id, body, sum) VALUES (?,?,?)";
const ANCHOR: &str = "INSERT OR FAIL INTO anchors (id, stream, checksum, document, sum) VALUES (?,?,?,?,?)";
const STATE: &str = "INSERT OR FAIL INTO states (seq, object, version, flags, back, status, previous, owner, \
    observed_ms, at, anchor, sums, document) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)";
const LIVE: &str = "INSERT OR FAIL INTO current (object, newest, tail) VALUES (?,?,?) \
    ON CONFLICT (object) DO UPDATE SET newest = excluded.newest, tail = excluded.tail";
const SNAPSHOT: &str = "INSERT OR FAIL INTO snapshots (object, seq, packed) VALUES (?,?,?) \
    ON CONFLICT (object) DO UPDATE SET seq = excluded.seq, packed = excluded.packed";
const NO_SNAPSHOT: &str = "DELETE FROM snapshots WHERE object = ?";
const NOT_CURRENT: &str = "DELETE FROM current WHERE object = ?";
const ENDED: &str = "UPDATE objects SET tail = ?2, newest = ?3 WHERE id = ?1";
const TALLY: &str = "INSERT OR FAIL INTO tallies (segment, stream, states, bytes) VALUES (?,?,?,?) \
    ON CONFLICT (segment, stream) DO UPDATE SET states = states + excluded.states, \
    bytes = bytes + excluded.bytes";
const GAP: &str = "INSERT OR IGNORE INTO gaps (stream, seq, key, body, sum) VALUES (?,?,?,?,?)";
const POISON: &str = "INSERT OR IGNORE INTO poison (stream, digest, checksum, observed_ms, error, raw, sum) \
    VALUES (?,?,?,?,?,?,?)";
const DISCREPANCY: &str = "INSERT OR FAIL INTO discrepancies (stream, number, body, sum) VALUES (?,?,?,?)";
const OUTDATED: &str = "DELETE FROM discrepancies WHERE stream = ? AND number = ?";

type WriteDone = rusqlite::Result<()>;

/// Runs one statement for each of the rows.
pub(super) fn run_for_each<T>(
    connection: &Connection,
    text: &str,
    rows: impl IntoIterator<Item = T>,
    run: impl Fn(&mut CachedStatement<'_>, T) -> rusqlite::Result<usize>,
) -> rusqlite::Result<()> {
    let mut rows = rows.into_iter().peekable();
    if rows.peek().is_none() {
        return Ok(());
    }
    let mut statement = connection.prepare_cached(text)?;
    rows.try_for_each(|row| run(&mut statement, row).map(drop))
}

impl ToSql for StateKey {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        match self {
            Self::Number(number) => number.to_sql(),
            Self::Text(text) => text.to_sql(),
        }
    }
}

pub(crate) fn write_rows(connection: &Connection, rows: RowBatch) -> WriteDone {
    write_shared_rows(connection, &rows)?;
    run_for_each(connection, STREAM, &rows.streams, |statement, row| {
        let StreamRow { id, source, epoch, checkpoint, states, last_event_ms } = row;
        statement.execute(params![
            id,
            source,
            epoch,
            checkpoint,
            *states as i64,
            last_event_ms,
            row.row_checksum()
        ])
    })?;
    run_for_each(connection, OBJECT, &rows.objects, |statement, row| {
        let ObjectRow { id, stream, kind, namespace, name, owner, .. } = row;
        let (uid_key, name_key) = (uid::key(&row.uid), uid::key(name));
        let uid = stored_uid(&row.uid);
        statement.execute(params![
            id,
            stream,
            kind,
            namespace,
            name,
            uid,
            owner,
            uid_key,
            name_key,
            row.row_checksum()
        ])
    })?;
    run_for_each(connection, OWNED, rows.owned, |statement, (owner, object)| {
        statement.execute((owner, object, checksum::sum_of_owned(owner, object)))
    })?;
    run_for_each(connection, STATE, &rows.states, |statement, StateRow { envelope: e, document }| {
        statement.execute(params![
            e.seq as i64,
            e.object,
            e.key,
            e.flags.pack_bits(),
            e.back as i64,
            e.status,
            e.previous,
            e.owner,
            e.observed_ms,
            e.version,
            e.anchor,
            e.both_checksums(),
            document
        ])
    })?;
    write_outcomes(connection, rows.outcomes.into_iter().collect())?;
    write_snapshots(connection, rows.snapshots.into_values().collect())?;
    run_for_each(connection, TALLY, rows.tallies, |statement, ((segment, stream), states)| {
        let bytes = rows.sizes.get(&(segment, stream)).copied().unwrap_or_default();
        statement.execute((segment as i64, stream, states as i64, bytes as i64))
    })?;
    write_gaps(connection, GAP, &rows.gaps)?;
    run_for_each(connection, POISON, &rows.poison, |statement, r| {
        statement.execute((r.stream, r.digest, r.checksum, r.observed_ms, &r.error, &r.raw, r.row_checksum()))
    })?;
    rows.differences.into_iter().try_for_each(|found| write_differences(connection, found))
}

pub(super) fn write_gaps(connection: &Connection, text: &str, rows: &[GapRow]) -> WriteDone {
    run_for_each(connection, text, rows, |statement, r| {
        statement.execute((r.stream, r.seq as i64, &r.key, &r.body, r.row_checksum()))
    })
}

fn write_differences(connection: &Connection, found: FoundDifferences) -> WriteDone {
    let stream = found.stream;
    let mut kept = connection.prepare_cached("SELECT number, body FROM discrepancies WHERE stream = ?")?;
    let kept = kept.query_map([stream], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let StreamRowChange { insert, remove } = found.row_change(&kept.collect::<Result<Vec<_>, _>>()?);
    run_for_each(connection, OUTDATED, remove, |statement, number| statement.execute((stream, number)))?;
    run_for_each(connection, DISCREPANCY, insert, |statement, (number, body)| {
        let sum = checksum::sum_of_discrepancy(stream, number, &body);
        statement.execute((stream, number, body, sum))
    })
}

/// Writes the rows that other rows point to. They are rare once the journal has run for a while.
fn write_shared_rows(connection: &Connection, rows: &RowBatch) -> WriteDone {
    run_for_each(connection, KIND, &rows.kinds, |statement, (id, group, version, kind)| {
        statement.execute((id, group, version, kind, checksum::sum_of_kind(*id, group, version, kind)))
    })?;
    run_for_each(connection, STATUS, &rows.statuses, |statement, (id, body)| {
        statement.execute((id, body, checksum::sum_of_status(*id, body)))
    })?;
    run_for_each(connection, ANCHOR, &rows.anchors, |statement, r| {
        statement.execute((r.id, r.stream, r.checksum, &*r.packed, r.row_checksum()))
    })
}

fn stored_uid(uid: &str) -> Value {
    match uid::to_bytes(uid) {
        Some(bytes) => Value::Blob(bytes.to_vec()),
        None => Value::Text(uid.to_owned()),
    }
}

fn write_outcomes(connection: &Connection, outcomes: Vec<(i64, ObjectOutcome)>) -> WriteDone {
    let mut live = Vec::new();
    let mut ended = Vec::new();
    for (object, outcome) in outcomes {
        match outcome {
            ObjectOutcome::Live { newest, tail } => live.push((object, newest, tail)),
            ObjectOutcome::Ended { newest, tail } => ended.push((object, newest, tail)),
        }
    }
    // In the order of the table, which touches fewer pages.
    live.sort_unstable_by_key(|(object, ..)| *object);
    ended.sort_unstable_by_key(|(object, ..)| *object);
    run_for_each(connection, LIVE, live, |statement, (object, newest, tail)| {
        statement.execute((object, newest as i64, tail as i64))
    })?;
    for text in [NOT_CURRENT, NO_SNAPSHOT] {
        run_for_each(connection, text, &ended, |statement, (object, ..)| statement.execute((object,)))?;
    }
    run_for_each(connection, ENDED, ended, |statement, (object, newest, tail)| {
        statement.execute((object, tail as i64, (newest != 0).then_some(newest as i64)))
    })
}

fn write_snapshots(connection: &Connection, mut rows: Vec<SnapshotRow>) -> WriteDone {
    rows.sort_unstable_by_key(|row| row.object);
    run_for_each(connection, SNAPSHOT, rows, |statement, row| {
        statement.execute((row.object, row.seq as i64, &*row.packed))
    })
}

const PLUGIN: &str = "INSERT OR FAIL INTO plugins (name, progress, sum) VALUES (?,?,?) \
    ON CONFLICT (name) DO UPDATE SET progress = excluded.progress, sum = excluded.sum";
const LETTER: &str = "INSERT OR FAIL INTO letters \
    (plugin, seq, id, attempts, error, first_ms, last_ms, replaying, tries, sum) VALUES (?,?,?,?,?,?,?,?,?,?) \
    ON CONFLICT (plugin, seq) DO UPDATE SET attempts = excluded.attempts, error = excluded.error, \
    id = excluded.id, first_ms = excluded.first_ms, last_ms = excluded.last_ms, \
    replaying = excluded.replaying, tries = excluded.tries, sum = excluded.sum";
const REVIVED: &str = "DELETE FROM letters WHERE plugin = ? AND seq = ?";
const MARK: &str = "UPDATE letters SET replaying = ?3, sum = (sum & 4294967295) | (?3 << 32) \
    WHERE plugin = ?1 AND seq = ?2";
const REPLAY: &str =
    "INSERT OR FAIL INTO replays (plugin, what, who, why, seqs, at_ms, sum) VALUES (?,?,?,?,?,?,?)";
const KEY_VALUE: &str = "INSERT OR FAIL INTO kv (plugin, key, value, sum) VALUES (?,?,?,?) \
    ON CONFLICT (plugin, key) DO UPDATE SET value = excluded.value, sum = excluded.sum";
const NO_KEY: &str = "DELETE FROM kv WHERE plugin = ? AND key = ?";

/// Progress, dead letters and keys of several plugins, queued for the thread that writes.
#[derive(Default)]
pub(crate) struct QueuedSaves {
    progress: Vec<(String, String)>,
    revived: Vec<(String, i64)>,
    owed: Vec<(String, Seq)>,
    parked: Vec<(String, DeadLetter)>,
    /// By plugin and key; `None` deletes a key.
    kv: BTreeMap<(String, String), Option<Vec<u8>>>,
}

impl QueuedSaves {
    pub fn of(left: &PluginWrites<'_>) -> Self {
        let mut saved = Self::default();
        for (plugin, save) in &left.saves {
            let body = serde_json::to_string(&save.progress).expect("strings and numbers always serialize");
            saved.progress.push((plugin.to_string(), body));
            saved.revived.extend(save.revived.iter().map(|seq| (plugin.to_string(), *seq as i64)));
            saved.owed.extend(save.owed.iter().map(|seq| (plugin.to_string(), *seq)));
            saved.parked.extend(save.parked.iter().map(|letter| (plugin.to_string(), letter.clone())));
        }
        for (plugin, KvWrite { key, value }) in left.kv_writes() {
            // The last write to a key counts.
            saved.kv.insert((plugin.to_string(), key.clone()), value.clone());
        }
        saved
    }

    pub fn write(self, connection: &Connection) -> WriteDone {
        run_for_each(connection, PLUGIN, self.progress, |statement, (plugin, body)| {
            let sum = checksum::sum_of_plugin(&plugin, &body);
            statement.execute((plugin, body, sum))
        })?;
        run_for_each(connection, REVIVED, self.revived, |statement, revived| statement.execute(revived))?;
        run_for_each(connection, LETTER, self.owed, |statement, (plugin, seq)| {
            write_letter(statement, LetterColumns::owed_row(&plugin, seq), OWED_STATE)
        })?;
        write_letters(connection, self.parked)?;
        let (sets, deletes): (Vec<_>, Vec<_>) = self.kv.into_iter().partition(|(_, value)| value.is_some());
        run_for_each(connection, KEY_VALUE, sets, |statement, ((plugin, key), value)| {
            let value = value.unwrap_or_default();
            let sum = checksum::key_value(&plugin, &key, &value);
            statement.execute((plugin, key, value, sum))
        })?;
        run_for_each(connection, NO_KEY, deletes, |statement, (place, _)| statement.execute(place))
    }
}

fn write_letters(connection: &Connection, parked: Vec<(String, DeadLetter)>) -> WriteDone {
    run_for_each(connection, LETTER, parked, |statement, (plugin, parked)| {
        let mark = OperatorAct::mark_of(&parked);
        let tries = serde_json::to_string(&parked.tries).expect("numbers and texts always serialize");
        write_letter(statement, LetterColumns::of(&plugin, &parked, &tries), mark)
    })
}

fn write_letter(
    statement: &mut CachedStatement<'_>,
    sealed: LetterColumns<'_>,
    mark: i64,
) -> rusqlite::Result<usize> {
    let LetterColumns { plugin, seq, id, attempts, error, first_ms, last_ms, tries } = sealed;
    let sum = sealed.row_checksum(mark);
    statement.execute(params![plugin, seq, id, attempts, error, first_ms, last_ms, mark, tries, sum])
}

/// Marks dead letters as being replayed or dropped, and records who did it and why. A pause has only the
/// record.
pub(crate) fn write_marks(connection: &Connection, replay: &LetterMarking) -> WriteDone {
    let LetterMarking { act, plugin, seqs, who, why, at_ms } = replay;
    if let Some(mark) = act.letter_mark() {
        run_for_each(connection, MARK, seqs, |statement, seq| {
            statement.execute((plugin, *seq as i64, mark))
        })?;
    }
    let (what, at_ms) = (act.as_str(), *at_ms as i64);
    let seqs = serde_json::to_string(seqs).expect("numbers always serialize");
    let sum = checksum::sum_of_replay(plugin, what, who, why, &seqs, at_ms);
    run_for_each(connection, REPLAY, [(plugin, what, who, why, seqs, at_ms, sum)], |statement, record| {
        statement.execute(record)
    })
}
