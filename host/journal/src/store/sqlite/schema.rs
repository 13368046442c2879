//! The format of the file, version 11.
//!
//! It is one SQLite database in WAL mode. `application_id` is 0x4B574A31 ("KWJ1"), and `user_version` is the
//! version of the format. `<file>.lock` is beside it. The writing process holds a lock on that file; the file
//! is empty, and may stay when no process runs.
//!
//! | table | a row is | grows by |
//! |---|---|---|
//! | `states` | a state, by position; positions are 1, 2, 3, …, and holes exist only where retention removed states | every state, about 70 bytes and its delta |
//! | `objects` | an object in one epoch of one source, or (`stream` 0) an owner | every object, about 110 bytes |
//! | `kinds`, `statuses`, `anchors` | a value that many rows share | few |
//! | `owned` | an owner and an object that it owned | every owned object |
//! | `current` | a live object: its newest state and the end of its chain, about 20 bytes | not; it is removed when the object ends |
//! | `snapshots` | the whole document of a live object at one of its states | not; replaced every eighth step of a chain, removed when the object ends |
//! | `streams` | an epoch of a source: checkpoint and counters | every epoch |
//! | `tallies` | the number of a stream's states in a segment of 1,024 positions, and their bytes | every segment |
//! | `taken` | a plugin from which retention removed states: how many of them it had finished, and how many it never received; under `.` and its name, how many of its dropped letters; under `.`, how many records | plugins |
//! | `gaps`, `poison` | a gap; bytes that did not decode | each of them |
//! | `discrepancies` | a difference that an audit found: `number` counts all of its stream, and the newest `limits::DISCREPANCIES` are kept | not |
//! | `plugins`, `letters`, `kv`, `replays` | progress; a dead letter; a key of a plugin; a record of a replay or a drop | plugins |
//!
//! **The id of a state** is `source/epoch/group/kind/uid/` of its object and then its key: the version,
//! `gone`, or `gap:` and the bounds. The column `version` holds the key: an integer if the version is decimal
//! and has up to 18 digits, otherwise `=` and the version; -1 for `gone`; `~` and the bounds for a gap. The
//! index is UNIQUE(version, object) in this order, because versions ascend and objects do not: new entries go
//! to the end of the index, however long the journal is. `at` is the version of a state whose key is not its
//! version.
//!
//! **Chains**: `back` says how many positions back the previous state of the same uid is. The end of the
//! chain is `current.tail`, or `objects.tail` once the object has ended. So the states of one object are
//! found without an index over them.
//!
//! **Ended objects** are found by `objects_by_end`: `objects.tail` is set once an object has ended. An object
//! that left the selector and returned keeps the number, and has a row in `current` again.
//!
//! **Documents**: `flags` contains
//!
//! - the change (2 bits), and whether the state is late (1 bit);
//! - how the document is stored (2 bits): not at all, in full, as a delta on the previous state, as a delta
//!   on an anchor;
//! - the number of deltas between it and a full document (8 bits, at most `limits::DELTA_CHAIN`);
//! - the print of the rules under which the state's texts quote no secret of its own and the previous
//!   document (32 bits; 0 if nobody has looked, or they may quote one).
//!
//! An anchor is a full document of the same source. A delta on the previous state that names an anchor is a
//! delta on both, with the anchor first. `sums` has two CRC-32: one over the other columns (high half) and
//! one over the exact bytes of the document. Both are compared at each read.
//!
//! **Current objects**: the document of a live object is that of `current.newest`, so it is not stored twice.
//! At startup it is restored from the object's snapshot, or from the beginning of its chain, with the deltas
//! since. Snapshots only shorten this: which states have one changes nothing else.
//!
//! **Versions**: a file of an older version is migrated when it is opened for writing (`migrate` has the
//! steps); a newer one is refused.
//!
//! | version | what it added |
//! |---|---|
//! | 2 | snapshots; before, `current` had the whole document of each live object |
//! | 3 | retention |
//! | 4 | each try of a letter |
//! | 5 | the findings of audits |
//! | 6 | checksums in every row; before, only states, objects, documents and statuses had them |
//! | 7 | documents as edits |
//! | 8 | an index of ended objects |
//! | 9 | flags that record what texts quote |
//! | 10 | owed states among the letters |
//! | 11 | counts of the dropped letters and records that retention removed |
//!
//! **Unfinished imports** are marked in `user_version` ([`UNFINISHED`](crate::store::format::UNFINISHED)),
//! from the first append of an import until its end was accepted.
//!
//! **Checksums**: every row has one, unless it only repeats other rows (`current` and `snapshots` repeat
//! states, `tallies` counts them). [`checksum`](crate::store::rows::checksum) says what each covers.
//!
//! **Letters**: `replaying` is 0 while a letter is parked, 1 while it is being replayed, and 2 once it was
//! dropped. A dropped letter accounts for its state, so retention removes both together. 3 marks a state that is no letter: it is
//! owed, and the cursor has passed it (`lanes::owed` of `core`).
//!
//! **Notes** of plugins' calls are in `kv`, under keys that begin with a NUL, which no key of a plugin
//! contains. They may be written without a sync: the next transaction syncs them.
//!
//! **Retention** removes states from the front of each object's chain. If it may remove states past the
//! cursors of plugins, a state that a plugin may be processing stays, and those after it may go. The first
//! state that stays gets a document that needs none before it, and its `back` leads to the last state before
//! the hole, or is 0. `streams.taken` counts the removed states, so a hole that is not counted is damage. The
//! newest position of all is never removed, because the next one is counted from it. Records of `replays` go by
//! their age. Each plugin's newest pause or resume stays, and so does the newest record. Free pages are reused:
//! the file does not shrink.
//!
//! **Recovery**: a transaction contains everything that its batch means, so SQLite's own recovery of the WAL
//! is enough after a crash. `synchronous=FULL`: an answered append was synced. Everything in the writer's
//! memory can be looked up again.
//!
//! Limits: 32,766 bound values in a statement (at most 256 rows of 13 columns are written by one), and 2⁶³
//! positions.

use sqlx::SqliteConnection;

/// "KWJ1".
pub(super) const APPLICATION_ID: i64 = 0x4B57_4A31;

pub(super) const VERSION: i64 = 11;

pub(super) const TABLES: &str = "
CREATE TABLE streams (
    id INTEGER PRIMARY KEY, source TEXT NOT NULL, epoch INTEGER NOT NULL, checkpoint TEXT,
    states INTEGER NOT NULL, last_event_ms INTEGER, taken INTEGER NOT NULL DEFAULT 0,
    sum INTEGER NOT NULL DEFAULT 0, UNIQUE (source, epoch)
) STRICT;
CREATE TABLE kinds (
    id INTEGER PRIMARY KEY, api_group TEXT NOT NULL, version TEXT NOT NULL, kind TEXT NOT NULL,
    sum INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE objects (
    id INTEGER PRIMARY KEY, stream INTEGER NOT NULL, kind INTEGER NOT NULL, namespace TEXT NOT NULL,
    name TEXT NOT NULL, uid ANY NOT NULL, owner INTEGER NOT NULL, uid_key INTEGER NOT NULL,
    name_key INTEGER NOT NULL, sum INTEGER NOT NULL, tail INTEGER, newest INTEGER
) STRICT;
CREATE INDEX objects_by_uid ON objects (uid_key);
CREATE INDEX objects_by_name ON objects (name_key);
CREATE INDEX objects_by_end ON objects (stream, tail) WHERE tail IS NOT NULL;
CREATE TABLE owned (
    owner INTEGER NOT NULL, object INTEGER NOT NULL, sum INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (owner, object)
) STRICT, WITHOUT ROWID;
CREATE TABLE statuses (id INTEGER PRIMARY KEY, body TEXT NOT NULL, sum INTEGER NOT NULL) STRICT;
CREATE TABLE anchors (
    id INTEGER PRIMARY KEY, stream INTEGER NOT NULL, checksum INTEGER NOT NULL, document BLOB NOT NULL,
    sum INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE states (
    seq INTEGER PRIMARY KEY, object INTEGER NOT NULL, version ANY NOT NULL, flags INTEGER NOT NULL,
    back INTEGER NOT NULL, status INTEGER NOT NULL, previous INTEGER, owner INTEGER,
    observed_ms INTEGER NOT NULL, at ANY, anchor INTEGER, sums INTEGER NOT NULL, document BLOB NOT NULL,
    UNIQUE (version, object)
) STRICT;
CREATE TABLE current (
    object INTEGER PRIMARY KEY, newest INTEGER NOT NULL, tail INTEGER NOT NULL
) STRICT;
CREATE TABLE snapshots (object INTEGER PRIMARY KEY, seq INTEGER NOT NULL, packed BLOB NOT NULL) STRICT;
CREATE TABLE tallies (
    segment INTEGER NOT NULL, stream INTEGER NOT NULL, states INTEGER NOT NULL,
    bytes INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (segment, stream)
) STRICT, WITHOUT ROWID;
CREATE TABLE gaps (
    id INTEGER PRIMARY KEY, stream INTEGER NOT NULL, seq INTEGER NOT NULL, key TEXT NOT NULL,
    body TEXT NOT NULL, sum INTEGER NOT NULL DEFAULT 0, UNIQUE (stream, seq, key)
) STRICT;
CREATE TABLE poison (
    id INTEGER PRIMARY KEY, stream INTEGER NOT NULL, digest INTEGER NOT NULL, checksum INTEGER NOT NULL,
    observed_ms INTEGER NOT NULL, error TEXT NOT NULL, raw BLOB NOT NULL,
    sum INTEGER NOT NULL DEFAULT 0, UNIQUE (stream, digest, checksum)
) STRICT;
CREATE TABLE discrepancies (
    stream INTEGER NOT NULL, number INTEGER NOT NULL, body TEXT NOT NULL,
    sum INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (stream, number)
) STRICT, WITHOUT ROWID;
CREATE TABLE plugins (
    name TEXT PRIMARY KEY, progress TEXT NOT NULL, sum INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;
CREATE TABLE letters (
    plugin TEXT NOT NULL, seq INTEGER NOT NULL, id TEXT NOT NULL, attempts INTEGER NOT NULL,
    error TEXT NOT NULL, first_ms INTEGER NOT NULL, last_ms INTEGER NOT NULL, replaying INTEGER NOT NULL,
    tries TEXT NOT NULL DEFAULT '[]', sum INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (plugin, seq)
) STRICT, WITHOUT ROWID;
CREATE TABLE taken (
    plugin TEXT PRIMARY KEY, finished INTEGER NOT NULL, untold INTEGER NOT NULL,
    sum INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;
CREATE TABLE kv (
    plugin TEXT NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL,
    sum INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (plugin, key)
) STRICT, WITHOUT ROWID;
CREATE TABLE replays (
    id INTEGER PRIMARY KEY, plugin TEXT NOT NULL, who TEXT NOT NULL, why TEXT NOT NULL,
    seqs TEXT NOT NULL, at_ms INTEGER NOT NULL, what TEXT NOT NULL DEFAULT 'replay',
    sum INTEGER NOT NULL DEFAULT 0
) STRICT;
";

/// The names of triggers and views. A journal has none.
pub(super) async fn triggers_and_views(
    connection: &mut SqliteConnection,
) -> Result<Vec<String>, sqlx::Error> {
    sqlx::query_scalar(
        "SELECT name FROM sqlite_schema WHERE type IN ('trigger', 'view') ORDER BY name LIMIT 8",
    )
    .fetch_all(connection)
    .await
}
