//! The change log of causes: plugins that are granted outcomes ask which causes changed since their last
//! question.
//!
//! Each explanation gets the next number of a line, and so does its withdrawal. A rebuilt index begins with 1
//! again, so each index draws a random name for its line: a number of another line is recognized. A crash of
//! the machine may lose the newest numbers, which would then be given to other outcomes. So each opening
//! skips more numbers than a crash can lose.

use kubewitness_core::ports::{ChangeQuestion, ChangedOutcome, KeptOutcome, OutcomeChanges, OutcomePlace};
use kubewitness_core::views::CauseKind;
use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};

use super::table::as_signed;

pub(super) const TABLES: &str = "
CREATE TABLE explanations (line TEXT NOT NULL, number INTEGER NOT NULL) STRICT;
INSERT INTO explanations (line, number) VALUES (lower(hex(randomblob(8))), 0);
CREATE INDEX causes_by_number ON causes (number) WHERE number IS NOT NULL;
";

/// Begins a new line, after all content was removed.
pub(super) const ANEW: &str = "UPDATE explanations SET line = lower(hex(randomblob(8))), number = 0";

/// The number of positions in the line that each opening skips.
const LEFT_OUT: i64 = 1 << 32;
/// The most rows that one query examines, including those of other sources.
const LOOKED: usize = 4_096;

pub(super) fn leave_out(connection: &Connection) -> rusqlite::Result<()> {
    // The skip must be durable before the first number after it is used.
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.execute("UPDATE explanations SET number = number + ?1", [LEFT_OUT])?;
    connection.pragma_update(None, "synchronous", "NORMAL")
}

pub(super) fn next_number(rows: &Transaction<'_>) -> rusqlite::Result<i64> {
    let mut statement =
        rows.prepare_cached("UPDATE explanations SET number = number + 1 RETURNING number")?;
    statement.query_row([], |row| row.get(0))
}

/// The outcomes that changed after a position of the line, in order. A position of another line is treated as
/// the beginning.
pub(super) fn outcomes_changed_since(
    connection: &Connection,
    question: &ChangeQuestion,
) -> rusqlite::Result<OutcomeChanges> {
    let (line, newest) = connection.query_row("SELECT line, number FROM explanations", [], |row| {
        Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)? as u64))
    })?;
    // A position beyond the newest number belongs to a later history: this index was restored from a copy.
    let is_of_line = |place: &&OutcomePlace| place.line == line && place.number <= newest;
    let known = question.after.as_ref().filter(is_of_line).map(|place| place.number);
    let mut changes = OutcomeChanges { is_restarted: known.is_none(), ..OutcomeChanges::default() };
    let mut number = known.unwrap_or_default();
    let mut statement = connection.prepare_cached(
        "SELECT c.number, c.source, c.seq, c.kind, o.namespace, o.name, o.uid
         FROM causes c CROSS JOIN objects o ON o.id = c.object
         WHERE c.number > ?1 ORDER BY c.number LIMIT ?2",
    )?;
    let mut rows = statement.query(params![as_signed(number), LOOKED as i64])?;
    let mut looked = 0;
    while let Some(row) = rows.next()? {
        if changes.outcomes.len() == question.limit {
            changes.has_more = true;
            break;
        }
        number = row.get::<_, i64>(0)? as u64;
        looked += 1;
        let outcome = changed_outcome(row)?;
        if question.sources.contains(&outcome.source) {
            changes.outcomes.push(outcome);
        }
    }
    changes.has_more |= looked == LOOKED;
    changes.next = OutcomePlace { line, number };
    Ok(changes)
}

fn changed_outcome(row: &Row<'_>) -> rusqlite::Result<ChangedOutcome> {
    let word: Option<String> = row.get(3)?;
    Ok(ChangedOutcome {
        source: row.get(1)?,
        seq: row.get::<_, i64>(2)? as u64,
        kind: word.map(|word| CauseKind::parse(&word).unwrap_or_default()),
        namespace: row.get(4)?,
        name: row.get(5)?,
        uid: row.get(6)?,
    })
}

/// The outcome of one object.
pub(super) fn kept_outcome(
    connection: &Connection,
    source: &str,
    uid: &str,
) -> rusqlite::Result<KeptOutcome> {
    let mut statement = connection.prepare_cached(
        "SELECT c.seq, c.kind, c.due FROM objects o JOIN causes c ON c.object = o.id
         WHERE o.uid = ?1 AND o.source = ?2",
    )?;
    let row = statement.query_row([uid, source], |row| {
        let word: Option<String> = row.get(1)?;
        Ok((row.get::<_, i64>(0)? as u64, word, row.get::<_, Option<i64>>(2)?))
    });
    Ok(match row.optional()? {
        Some((seq, Some(word), _)) => {
            KeptOutcome::Explained { seq, kind: CauseKind::parse(&word).unwrap_or_default() }
        }
        Some((_, None, Some(_))) => KeptOutcome::Pending,
        Some((_, None, None)) | None => KeptOutcome::Nothing,
    })
}
