//! The causes of outcomes, stored beside the times in phases: which objects ended badly, which of them still
//! need an explanation, and the resulting word. `core::story` decides what a cause is.
//!
//! A row has the position of the end state. `due` is set while the object needs an explanation, or another
//! one; its old word stays until then. `tries` counts the failed explanations since. `owner` is the outermost
//! owner, by which a late pod finds the objects between itself and that owner. `number` ascends in the order
//! of explanations, so that plugins ask for what changed ([`changed`](super::changed)). The row is removed
//! with its object.

use std::collections::HashMap;
use std::sync::Arc;

use kubewitness_core::story::outcomes::{self, SETTLE_MS};
use kubewitness_core::views::CauseKind;
use kubewitness_core::{Change, Seq, State};
use rusqlite::{Connection, OptionalExtension, Transaction, params};

use super::table::as_signed;
use super::{PhasePage, TimeInPhase, changed};

pub(super) const TABLES: &str = "
CREATE TABLE causes (
    object INTEGER PRIMARY KEY, source TEXT NOT NULL, seq INTEGER NOT NULL, owner TEXT,
    due INTEGER, tries INTEGER NOT NULL DEFAULT 0, kind TEXT, number INTEGER
) STRICT;
CREATE INDEX causes_by_kind ON causes (kind, source, seq) WHERE kind IS NOT NULL;
CREATE INDEX causes_by_owner ON causes (owner, seq) WHERE owner IS NOT NULL;
CREATE INDEX causes_due ON causes (due, seq) WHERE due IS NOT NULL;
CREATE INDEX causes_without_word ON causes (source, due) WHERE kind IS NULL AND due IS NOT NULL;
";

/// How often a failing explanation is retried. Each time it waits twice as long as before.
const TRIES: u32 = 6;
/// How many ended objects under one owner are explained again for a late pod: the newest ones.
const REOPENED: i64 = 16;

/// A query for outcomes.
#[derive(Clone, Debug, Default)]
pub struct CauseQuery {
    pub sources: Vec<String>,
    pub kind: CauseKind,
    /// They ended after this position
    pub after: Seq,
    /// and before this one.
    pub before: Seq,
    /// The [`next`](PhasePage::next) of the previous page.
    pub cursor: Option<u64>,
    pub limit: usize,
}

/// An outcome that is to be explained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenOutcome {
    /// Its number in the index.
    pub(super) object: i64,
    pub source: String,
    pub uid: String,
    /// The state with which it ended.
    pub seq: Seq,
    /// Whether it has no word yet.
    pub is_new: bool,
    /// How often its explanation has failed.
    tries: u32,
}

impl OpenOutcome {
    /// Whether its explanation may fail once more. After that, it gets the word for an unknown cause.
    pub fn may_wait(&self) -> bool {
        self.tries < TRIES
    }
}

/// Records what a state says about its object's outcome. `open` is the phase that the object was in before.
/// Returns whether it says anything.
pub(super) fn take(
    rows: &Transaction<'_>,
    state: &State,
    object: i64,
    open: Option<&str>,
    now_ms: u64,
) -> rusqlite::Result<bool> {
    let due = as_signed(now_ms.saturating_add(SETTLE_MS));
    if outcomes::is_bad_end(state) {
        let mut statement = rows.prepare_cached(
            "INSERT INTO causes (object, source, seq, owner, due) VALUES (?1, ?2, ?3, ?4, ?5)
             ON CONFLICT (object) DO UPDATE SET seq = excluded.seq, owner = excluded.owner, due = excluded.due,
             tries = 0",
        )?;
        let owner = state.owner.as_ref().map(|owner| owner.uid.as_str());
        statement.execute(params![object, &*state.source, as_signed(state.seq), owner, due])?;
        return Ok(true);
    }
    let runs_again = state.change == Change::Present && open.is_some_and(outcomes::is_bad_phase);
    if runs_again {
        withdraw_cause(rows, object)?;
    }
    Ok(runs_again)
}

/// Marks the outermost owner of a pod for another explanation, if it has ended, and the badly ended objects
/// between the two. A state does not say which of those the pod belongs to, so the newest ones are taken.
/// They do not wait for each other's pods. Returns whether there is any.
pub(super) fn reopen_outcomes(rows: &Transaction<'_>, owner: &str, now_ms: u64) -> rusqlite::Result<bool> {
    let mut statement = rows.prepare_cached(
        "UPDATE causes SET due = ?2, tries = 0 WHERE object IN (SELECT id FROM objects WHERE uid = ?1)",
    )?;
    let due = as_signed(now_ms.saturating_add(SETTLE_MS));
    let outermost = statement.execute(params![owner, due])?;
    let mut statement = rows.prepare_cached(
        "UPDATE causes SET due = ?2, tries = 0 WHERE due IS NULL AND object IN
         (SELECT object FROM causes WHERE owner = ?1 ORDER BY seq DESC LIMIT ?3)",
    )?;
    let between = statement.execute(params![owner, due, REOPENED])?;
    Ok(outermost + between > 0)
}

/// Outcomes that are due: the latest due time first, and for equal times the newest outcome.
pub(super) fn due_outcomes(
    connection: &Connection,
    now_ms: u64,
    limit: usize,
) -> rusqlite::Result<Vec<OpenOutcome>> {
    let mut found = due_between(connection, 0, now_ms, limit)?;
    // If the clock was set back, entries that were made before are due far in the future: they are taken as
    // well.
    let ahead = now_ms.saturating_add(wait_ms(TRIES)).saturating_add(1);
    let rest = limit.saturating_sub(found.len());
    found.extend(due_between(connection, ahead, u64::MAX, rest)?);
    Ok(found)
}

/// How long an outcome waits after so many failed explanations.
fn wait_ms(tries: u32) -> u64 {
    SETTLE_MS << tries.min(TRIES)
}

/// One range of an index, in its order: nothing is sorted, however many are due.
fn due_between(
    connection: &Connection,
    from_ms: u64,
    until_ms: u64,
    limit: usize,
) -> rusqlite::Result<Vec<OpenOutcome>> {
    let mut statement = connection.prepare_cached(
        "SELECT c.object, c.source, o.uid, c.seq, c.kind IS NULL, c.tries
         FROM causes c CROSS JOIN objects o ON o.id = c.object
         WHERE c.due BETWEEN ?1 AND ?2 ORDER BY c.due DESC, c.seq DESC LIMIT ?3",
    )?;
    let bounds = params![as_signed(from_ms), as_signed(until_ms), limit as i64];
    let found = statement.query_map(bounds, |row| {
        Ok(OpenOutcome {
            object: row.get(0)?,
            source: row.get(1)?,
            uid: row.get(2)?,
            seq: row.get::<_, i64>(3)? as Seq,
            is_new: row.get(4)?,
            tries: row.get(5)?,
        })
    })?;
    found.collect()
}

/// When the next outcome is due; `None` if none is.
pub(super) fn next_due_ms(connection: &Connection) -> rusqlite::Result<Option<u64>> {
    let mut statement =
        connection.prepare_cached("SELECT due FROM causes WHERE due IS NOT NULL ORDER BY due LIMIT 1")?;
    let due = statement.query_row([], |row| row.get::<_, i64>(0)).optional()?;
    Ok(due.map(|due| due as u64))
}

/// Whether an outcome of these sources has no word although it was due before this moment, or its explanation
/// failed.
pub(super) fn lacks_words(
    connection: &Connection,
    sources: &[String],
    before_ms: u64,
) -> rusqlite::Result<bool> {
    let mut statement = connection.prepare_cached(
        "SELECT 1 FROM causes WHERE source = ?1 AND kind IS NULL AND due IS NOT NULL AND (due < ?2 OR tries > 0)
         ORDER BY due LIMIT 1",
    )?;
    for source in sources {
        if statement.exists(params![source, as_signed(before_ms)])? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Postpones an explanation that failed.
pub(super) fn postpone_outcome(
    connection: &Connection,
    outcome: &OpenOutcome,
    now_ms: u64,
) -> rusqlite::Result<()> {
    let tries = outcome.tries.saturating_add(1);
    let due = as_signed(now_ms.saturating_add(wait_ms(tries)));
    let mut statement =
        connection.prepare_cached("UPDATE causes SET due = ?2, tries = ?3 WHERE object = ?1")?;
    statement.execute(params![outcome.object, due, tries])?;
    Ok(())
}

/// Stores the words of these outcomes. `None` removes an outcome that has no cause any more. Returns whether a
/// word was stored or withdrawn.
pub(super) fn save_causes(
    connection: &mut Connection,
    explained: &[(OpenOutcome, Option<CauseKind>)],
) -> rusqlite::Result<bool> {
    let transaction = connection.transaction()?;
    let mut is_changed = false;
    for (outcome, kind) in explained {
        let Some(kind) = kind else {
            is_changed |= withdraw_cause(&transaction, outcome.object)?;
            continue;
        };
        let number = changed::next_number(&transaction)?;
        let stored = transaction
            .prepare_cached(
                "UPDATE causes SET kind = ?2, due = NULL, tries = 0, number = ?3 WHERE object = ?1",
            )?
            .execute(params![outcome.object, kind.as_str(), number])?;
        is_changed |= stored > 0;
    }
    transaction.commit()?;
    Ok(is_changed)
}

/// Removes the word of an outcome that no longer exists, and records the withdrawal for plugins that read the
/// word. Returns whether there was one.
fn withdraw_cause(rows: &Transaction<'_>, object: i64) -> rusqlite::Result<bool> {
    rows.prepare_cached("DELETE FROM causes WHERE object = ?1 AND number IS NULL")?.execute([object])?;
    let known = rows.prepare_cached("SELECT 1 FROM causes WHERE object = ?1")?.exists([object])?;
    if known {
        let number = changed::next_number(rows)?;
        rows.prepare_cached(
            "UPDATE causes SET kind = NULL, due = NULL, tries = 0, number = ?2 WHERE object = ?1",
        )?
        .execute(params![object, number])?;
    }
    Ok(known)
}

/// The causes of these objects, by their indexes in the list. Objects without a cause are left out.
pub(super) fn causes_of(
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

/// Finds outcomes with a cause, the newest first.
pub(super) fn find(connection: &Connection, query: &CauseQuery) -> rusqlite::Result<PhasePage> {
    let below = query.cursor.map_or(query.before, |cursor| cursor.min(query.before));
    let mut statement = connection.prepare_cached(
        "SELECT c.seq, o.namespace, o.name, o.uid, o.ended FROM causes c JOIN objects o ON o.id = c.object
         WHERE c.kind = ?1 AND c.source = ?2 AND c.seq > ?3 AND c.seq < ?4 ORDER BY c.seq DESC LIMIT ?5",
    )?;
    let mut times = Vec::new();
    for source in &query.sources {
        let named: Arc<str> = source.as_str().into();
        let bounds = params![
            query.kind.as_str(),
            source,
            as_signed(query.after),
            as_signed(below),
            query.limit as i64
        ];
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
