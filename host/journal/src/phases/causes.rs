//! The causes of outcomes, beside the times in phases: which objects ended badly, which of them are still to be
//! explained, and the word that the explanation came to. What a cause is, `core::story` decides.
//!
//! A row has the position of the state that was the end. `due` is set while the object is to be explained, or to be
//! explained again; its old word stays until then. The row goes with its object.

use std::collections::HashMap;
use std::sync::Arc;

use kubewitness_core::story::outcomes::{self, SETTLE_MS};
use kubewitness_core::views::CauseKind;
use kubewitness_core::{Change, Seq, State};
use rusqlite::{Connection, OptionalExtension, Transaction, params};

use super::table::signed;
use super::{PhasePage, TimeInPhase};

pub(super) const TABLES: &str = "
CREATE TABLE causes (
    object INTEGER PRIMARY KEY, source TEXT NOT NULL, seq INTEGER NOT NULL, due INTEGER, kind TEXT
) STRICT;
CREATE INDEX causes_by_kind ON causes (kind, source, seq) WHERE kind IS NOT NULL;
CREATE INDEX causes_due ON causes (due) WHERE due IS NOT NULL;
";

/// Which outcomes are asked for.
#[derive(Clone, Debug, Default)]
pub struct CauseQuery {
    pub sources: Vec<String>,
    pub kind: CauseKind,
    /// They ended after this position,
    pub after: Seq,
    /// and before this one.
    pub before: Seq,
    /// The [`next`](PhasePage::next) of the page before.
    pub cursor: Option<u64>,
    pub limit: usize,
}

/// An outcome that is to be explained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenOutcome {
    /// As the index numbers it.
    pub(super) object: i64,
    pub source: String,
    pub uid: String,
    /// The state with which it ended.
    pub seq: Seq,
    /// It has no word yet.
    pub is_new: bool,
}

/// Writes down what a state says of its object's outcome. `open` is the phase that the object was in before.
pub(super) fn take(
    rows: &Transaction<'_>,
    state: &State,
    object: i64,
    open: Option<&str>,
    now_ms: u64,
) -> rusqlite::Result<()> {
    let due = signed(now_ms.saturating_add(SETTLE_MS));
    if outcomes::is_bad_end(state) {
        let mut statement = rows.prepare_cached(
            "INSERT INTO causes (object, source, seq, due) VALUES (?1, ?2, ?3, ?4)
             ON CONFLICT (object) DO UPDATE SET seq = excluded.seq, due = excluded.due",
        )?;
        statement.execute(params![object, &*state.source, signed(state.seq), due])?;
    } else if state.change == Change::Present && open.is_some_and(outcomes::is_bad_phase) {
        // It runs on.
        rows.prepare_cached("DELETE FROM causes WHERE object = ?1")?.execute([object])?;
    }
    Ok(())
}

/// Has the owner of a pod explained again, if it has ended.
pub(super) fn reopen(rows: &Transaction<'_>, owner: &str, now_ms: u64) -> rusqlite::Result<()> {
    let mut statement = rows.prepare_cached(
        "UPDATE causes SET due = ?2 WHERE object IN (SELECT id FROM objects WHERE uid = ?1)",
    )?;
    statement.execute(params![owner, signed(now_ms.saturating_add(SETTLE_MS))])?;
    Ok(())
}

/// Those that are due, the newest outcome first.
pub(super) fn due(connection: &Connection, now_ms: u64, limit: usize) -> rusqlite::Result<Vec<OpenOutcome>> {
    // A clock that was set back would leave what it had dated far ahead.
    let mut statement = connection.prepare_cached(
        "SELECT c.object, c.source, o.uid, c.seq, c.kind IS NULL FROM causes c JOIN objects o ON o.id = c.object
         WHERE c.due <= ?1 OR c.due > ?2 ORDER BY c.seq DESC LIMIT ?3",
    )?;
    let bounds = params![signed(now_ms), signed(now_ms.saturating_add(SETTLE_MS)), limit as i64];
    let found = statement.query_map(bounds, |row| {
        Ok(OpenOutcome {
            object: row.get(0)?,
            source: row.get(1)?,
            uid: row.get(2)?,
            seq: row.get::<_, i64>(3)? as Seq,
            is_new: row.get(4)?,
        })
    })?;
    found.collect()
}

/// Whether any outcome is to be explained, now or soon.
pub(super) fn is_any_open(connection: &Connection) -> rusqlite::Result<bool> {
    connection.prepare_cached("SELECT 1 FROM causes WHERE due IS NOT NULL LIMIT 1")?.exists([])
}

/// Keeps the words for these outcomes. `None`: there is nothing to say of it any more.
pub(super) fn keep(
    connection: &mut Connection,
    explained: &[(OpenOutcome, Option<CauseKind>)],
) -> rusqlite::Result<()> {
    let transaction = connection.transaction()?;
    for (outcome, kind) in explained {
        match kind {
            Some(kind) => transaction
                .prepare_cached("UPDATE causes SET kind = ?2, due = NULL WHERE object = ?1")?
                .execute(params![outcome.object, kind.as_str()])?,
            None => transaction
                .prepare_cached("DELETE FROM causes WHERE object = ?1")?
                .execute([outcome.object])?,
        };
    }
    transaction.commit()
}

/// The causes of these objects, by their places in the list. Those that have none are left out.
pub(super) fn of(
    connection: &Connection,
    objects: &[(String, String)],
) -> rusqlite::Result<HashMap<usize, CauseKind>> {
    let mut statement = connection.prepare_cached(
        "SELECT c.kind FROM objects o JOIN causes c ON c.object = o.id
         WHERE o.uid = ?1 AND o.source = ?2 AND c.kind IS NOT NULL",
    )?;
    let mut found = HashMap::new();
    for (place, (source, uid)) in objects.iter().enumerate() {
        let word: Option<String> = statement.query_row([uid, source], |row| row.get(0)).optional()?;
        found.extend(word.and_then(|word| CauseKind::parse(&word)).map(|kind| (place, kind)));
    }
    Ok(found)
}

/// The newest outcome first.
pub(super) fn find(connection: &Connection, query: &CauseQuery) -> rusqlite::Result<PhasePage> {
    let below = query.cursor.map_or(query.before, |cursor| cursor.min(query.before));
    let mut statement = connection.prepare_cached(
        "SELECT c.seq, o.namespace, o.name, o.uid, o.ended FROM causes c JOIN objects o ON o.id = c.object
         WHERE c.kind = ?1 AND c.source = ?2 AND c.seq > ?3 AND c.seq < ?4 ORDER BY c.seq DESC LIMIT ?5",
    )?;
    let mut times = Vec::new();
    for source in &query.sources {
        let named: Arc<str> = source.as_str().into();
        let bounds =
            params![query.kind.as_str(), source, signed(query.after), signed(below), query.limit as i64];
        let found = statement.query_map(bounds, |row| {
            let seq = row.get::<_, i64>(0)? as Seq;
            Ok(TimeInPhase {
                rank: seq,
                entered: seq,
                left: None,
                source: named.clone(),
                namespace: row.get(1)?,
                name: row.get(2)?,
                uid: row.get(3)?,
                ended: row.get::<_, Option<i64>>(4)?.map(|seq| seq as Seq),
            })
        })?;
        for time in found {
            times.push(time?);
        }
    }
    times.sort_unstable_by_key(|time| std::cmp::Reverse(time.rank));
    times.truncate(query.limit);
    let next = times.last().filter(|_| times.len() == query.limit).map(|time| time.rank);
    Ok(PhasePage { times, next })
}
