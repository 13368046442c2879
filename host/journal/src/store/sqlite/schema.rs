//! The format of the file, version 9.
//!
//! One SQLite database in WAL mode, `application_id` 0x4B574A31 ("KWJ1"), `user_version` the
//! format's version. Beside it lies `<file>.lock`, which the one writing process holds locked;
//! it is empty and may stay when nobody runs.
//!
//! | table | a row is | grows by |
//! |---|---|---|
//! | `states` | a state, by position; positions are 1, 2, 3, …, without a hole but for what retention took | every state, about 70 bytes and its delta |
//! | `objects` | an object in one epoch of one source, or (`stream` 0) an owner | every object, about 110 bytes |
//! | `kinds`, `statuses`, `anchors` | what many rows share | few |
//! | `owned` | an owner and an object that it owned | every owned object |
//! | `current` | a live object: its newest state and the end of its chain, about 20 bytes | not; it is removed when the object ends |
//! | `snapshots` | a live object's whole document at one of its states | not; replaced every eighth step of a chain, removed when the object ends |
//! | `streams` | an epoch of a source: checkpoint and counters | every epoch |
//! | `tallies` | how many states of a stream lie in a segment of 1,024 positions, and their bytes | every segment |
//! | `taken` | a plugin of whose states retention took some: how many it had finished and was never handed | plugins |
//! | `gaps`, `poison` | holes; bytes that did not decode | each of them |
//! | `discrepancies` | what an audit found to differ: `number` counts all of its stream, of which the newest `limits::DISCREPANCIES` are kept | not |
//! | `plugins`, `letters`, `kv`, `replays` | progress, dead letters, a plugin's own keys, who replayed or dropped | plugins |
//!
//! **A state's id** is `source/epoch/group/kind/uid/` of its object and then its key: the version,
//! `gone`, or `gap:` and bounds. The key is the column `version`: an integer where the version is
//! decimal and has up to 18 digits, `=` and the version where not, -1 for `gone`, `~` and bounds
//! for a gap. UNIQUE(version, object) in this order, since versions arrive ascending and objects
//! do not: new entries go to the end of the index however long the journal is. `at` is the
//! version of those whose key isn't one.
//!
//! **Chains**: `back` says how many positions before lies the state before of the same uid; the
//! end of the chain is `current.tail`, or `objects.tail` once the object has ended. So the states
//! of one object are found without an index over them.
//!
//! **Ended objects** are found by `objects_by_end`: `objects.tail` is set once an object has ended.
//! An object that came back after it had left keeps the number, and has a row in `current` again.
//!
//! **Documents**: `flags` holds the change (2 bits), late (1 bit), how the document is kept
//! (2 bits: none, full, delta on the state before, delta on an anchor), how many deltas it is away
//! from a full one (8 bits, at most `limits::DELTA_CHAIN`), and the print of the rules under which the
//! state's texts quote no secret of its document and the one before (32 bits; 0: nobody has looked, or
//! they may quote one). An anchor is a full document of the same
//! source; a delta on the state before that names one is a delta on both, the anchor first. `sums` is two CRC-32: of the other
//! columns (high half) and of the document's exact bytes. Both are compared at each reading.
//!
//! **Current objects**: the document of a live object is that of `current.newest`, so a state does
//! not carry it twice: a start makes it from the object's snapshot, or from the beginning of its
//! chain, and the deltas since. Which states have a snapshot changes nothing but how many those
//! are.
//!
//! **Versions**: a file of an older version is migrated when it is opened to be written (`migrate`
//! has the steps), one of a newer version is refused. Version 1 had the whole document of each live
//! object in `current`, up to version 3 letters did not tell their tries, up to version 4 what audits found
//! was not kept, up to version 5 only states, objects, documents and statuses had sums, up to version
//! 6 no document was kept as edits, up to version 7 no index found the objects that have ended, up to version 8 it
//! was not kept what texts quote, and up to version 9 no letter was a state that is owed.
//!
//! **Unfinished imports** are marked in `user_version` ([`UNFINISHED`](crate::store::format::UNFINISHED)), from the
//! first append of an import until its end was taken in.
//!
//! **Sums**: every row has one, or says nothing that others do not say too (`current` and `snapshots`
//! of states, `tallies` of how many there are). What each covers stands in [`checksum`](crate::store::rows::checksum).
//!
//! **Letters**: `replaying` is 0 while one is parked, 1 once it was taken back, 2 once it was
//! dropped; a dropped one stays, since its state stays accounted for by it. It is 3 of a state that is no letter:
//! it is owed, and the cursor has passed it (`lanes::owed` of `core`).
//!
//! **Notes** of plugins' calls lie in `kv` under keys that begin with a NUL, which no key of a plugin has. They
//! may be written without a sync: the next transaction syncs them.
//!
//! **Retention** takes states from the front of each object's chain (of what a plugin may have in its
//! hands, from behind it). The first that stays gets a document that needs none before it, and its
//! `back` tells the last before the hole, or 0. `streams.taken` counts what is gone, so that a hole
//! that nobody accounts for is damage; the newest position of all never goes, since the next is
//! counted from it. Pages that become free are written to again: the file does not shrink.
//!
//! **Recovery**: a transaction holds everything that its batch means, so after a crash SQLite's
//! own recovery of the WAL is all that is needed. `synchronous=FULL`: an answered append has
//! been synced. What the writer holds in memory can be looked up again.
//!
//! Limits: 32,766 binds a statement (at most 256 rows of 13 columns are written in one); 2⁶³
//! positions.

use sqlx::SqliteConnection;

/// "KWJ1".
pub(super) const APPLICATION_ID: i64 = 0x4B57_4A31;

pub(super) const VERSION: i64 = 10;

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
pub(super) async fn triggers(connection: &mut SqliteConnection) -> Result<Vec<String>, sqlx::Error> {
    sqlx::query_scalar(
        "SELECT name FROM sqlite_schema WHERE type IN ('trigger', 'view') ORDER BY name LIMIT 8",
    )
    .fetch_all(connection)
    .await
}
