//! Writes one transaction of retention, with one statement for each row.

use rusqlite::Connection;

use super::write::{run_for_each, write_gaps};
use crate::store::rows::removal::{RemovalPlan, RemovedCounts, UnusedRows};
use crate::store::rows::{StateRow, checksum};

const TAKE: &str = "DELETE FROM states WHERE seq = ?";
const TAKE_GAP: &str = "DELETE FROM gaps WHERE seq > 0 AND stream = ? AND seq = ?";
const TAKE_OBJECT: &str = "DELETE FROM objects WHERE id = ?";
const TAKE_SNAPSHOT: &str = "DELETE FROM snapshots WHERE object = ? AND seq = ?";
const REBASE: &str = "UPDATE states SET flags = ?2, back = ?3, anchor = ?4, sums = ?5, document = ?6 \
    WHERE seq = ?1";
const TALLY: &str = "UPDATE tallies SET states = states - ?3, bytes = bytes - ?4 \
    WHERE segment = ?1 AND stream = ?2";
const EMPTY_TALLY: &str = "DELETE FROM tallies WHERE states = 0 AND segment = ? AND stream = ?";
const STREAM: &str = "UPDATE streams SET taken = taken + ?2 WHERE id = ?1";
const TAKE_LETTER: &str = "DELETE FROM letters WHERE plugin = ? AND seq = ?";
const TAKEN: &str = "INSERT OR FAIL INTO taken (plugin, finished, untold, sum) VALUES (?,?,?,?) \
    ON CONFLICT (plugin) DO UPDATE SET finished = finished + excluded.finished, \
    untold = untold + excluded.untold, sum = sum + excluded.sum";
const GAP: &str = "INSERT OR FAIL INTO gaps (stream, seq, key, body, sum) VALUES (?,?,?,?,?) \
    ON CONFLICT (stream, seq, key) DO UPDATE SET body = excluded.body, sum = excluded.sum";

type RemoveDone = rusqlite::Result<()>;

/// The whole removal, within a transaction.
pub(crate) fn remove(connection: &Connection, removal: &RemovalPlan) -> RemoveDone {
    let taken = &removal.taken;
    run_for_each(connection, TAKE, taken, |statement, link| statement.execute((link.seq as i64,)))?;
    run_for_each(connection, TAKE_GAP, taken, |statement, link| {
        statement.execute((link.stream, link.seq as i64))
    })?;
    run_for_each(connection, TAKE_SNAPSHOT, taken, |statement, link| {
        statement.execute((link.object, link.seq as i64))
    })?;
    run_for_each(connection, REBASE, &removal.rebased, |statement, StateRow { envelope: e, document }| {
        statement.execute((
            e.seq as i64,
            e.flags.pack_bits(),
            e.back as i64,
            e.anchor,
            e.both_checksums(),
            document,
        ))
    })?;
    run_for_each(connection, TAKE_OBJECT, &removal.objects, |statement, object| {
        statement.execute((object,))
    })?;
    run_for_each(connection, TAKE_LETTER, removal.letters(), |statement, (plugin, seq)| {
        statement.execute((plugin, *seq as i64))
    })?;
    shrink_figures(connection, removal)?;
    write_gaps(connection, GAP, &removal.gaps)
}

fn shrink_figures(connection: &Connection, removal: &RemovalPlan) -> RemoveDone {
    let tallies = removal.tallies_taken();
    run_for_each(connection, TALLY, &tallies, |statement, ((segment, stream), (states, bytes))| {
        statement.execute((*segment as i64, stream, *states as i64, bytes))
    })?;
    run_for_each(connection, EMPTY_TALLY, tallies.keys(), |statement, (segment, stream)| {
        statement.execute((*segment as i64, stream))
    })?;
    run_for_each(connection, STREAM, removal.by_stream(), |statement, (stream, states)| {
        statement.execute((stream, states as i64))
    })?;
    add_counts(connection, removal.counts_taken())
}

/// Adds numbers of removed rows.
fn add_counts(connection: &Connection, counts: impl IntoIterator<Item = (String, i64, i64)>) -> RemoveDone {
    run_for_each(connection, TAKEN, counts, |statement, (key, finished, untold)| {
        statement.execute((key, finished, untold, checksum::taken_sum(finished, untold)))
    })
}

const SWEEP_STATUS: &str = "DELETE FROM statuses WHERE id = ?";
const SWEEP_ANCHOR: &str = "DELETE FROM anchors WHERE id = ?";
const SWEEP_OWNED: &str = "DELETE FROM owned WHERE owner = ? AND object = ?";
const SWEEP_OWNER: &str = "DELETE FROM objects WHERE stream = 0 AND id = ? \
    AND NOT EXISTS (SELECT 1 FROM owned d WHERE d.owner = objects.id)";
const SWEEP_POISON: &str = "DELETE FROM poison WHERE id = ?";
const SWEEP_GAP: &str = "DELETE FROM gaps WHERE id = ?";
const SWEEP_RECORD: &str = "DELETE FROM replays WHERE id = ?";
const SWEEP_REPORT: &str = "DELETE FROM kv WHERE plugin = ? AND key = ?";

/// Must run within a transaction.
pub(crate) fn delete_unused_rows(connection: &Connection, sweep: &UnusedRows) -> RemoveDone {
    run_for_each(connection, SWEEP_OWNED, &sweep.owned, |statement, owned| statement.execute(*owned))?;
    run_for_each(connection, SWEEP_REPORT, &sweep.reports, |statement, (plugin, key)| {
        statement.execute((plugin, key))
    })?;
    let by_number = [
        (SWEEP_STATUS, &sweep.statuses),
        (SWEEP_ANCHOR, &sweep.anchors),
        (SWEEP_OWNER, &sweep.owners),
        (SWEEP_POISON, &sweep.poison),
        (SWEEP_GAP, &sweep.gaps),
        (SWEEP_RECORD, &sweep.records),
    ];
    by_number.into_iter().try_for_each(|(text, numbers)| {
        run_for_each(connection, text, numbers, |statement, number| statement.execute((number,)))
    })?;
    add_counts(connection, RemovedCounts::records_row(&sweep.records))
}

const REMOVED: &str = "DELETE FROM taken WHERE plugin = ?";

/// Removes the saved progress of a plugin.
pub fn forget_plugin(transaction: &Connection, plugin: &str) -> Result<(), rusqlite::Error> {
    for text in [
        "DELETE FROM plugins WHERE name = ?",
        "DELETE FROM letters WHERE plugin = ?",
        "DELETE FROM kv WHERE plugin = ?",
        REMOVED,
    ] {
        transaction.execute(text, [plugin])?;
    }
    transaction.execute(REMOVED, [RemovedCounts::letters_key(plugin)]).map(drop)
}
