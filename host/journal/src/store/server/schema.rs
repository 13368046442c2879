//! The format of a journal in PostgreSQL, MySQL or MariaDB, version 9.
//!
//! Tables of one database, or of one schema of PostgreSQL, their names beginning with `kw_`, so that
//! they can lie beside others. They hold the same rows as the embedded journal, under the same
//! names, and mean the same ([`sqlite::schema`](crate::store::sqlite) says what); what is different:
//!
//! - `kw_journal` is one row: the format's version, and who writes.
//! - **Texts are bytes** of UTF-8: no collation decides what is equal or how long a key is, and a NUL
//!   in a name is no error.
//! - A key (`kw_states.version`, `at`) is 1 and the number in 8 bytes, big-endian with its sign
//!   turned round, or 2 and the text: numbers keep their order in the index. Versions are limited
//!   (`limits::VERSION_BYTES`) so that every key fits into an index.
//! - A uid is text. `bounds` is the key of a gap, `name` that of a plugin's `kw_kv`.
//!
//! **One writer at a time**: every transaction that writes first locks the row of `kw_journal` and
//! compares the epoch in it, and the commits (`connect::commits`). Of a process that has the journal for
//! itself, the epoch grows each time that it opens the journal or comes back after an error, and whoever
//! finds another epoch than its own is no longer the writer. Beside it, its session holds an advisory lock, so that a second process is told who
//! has it.
//!
//! **Replicas** share a journal: each holds an advisory lock of its own, a row of `kw_replicas` says who
//! that is, and the journal's lock is taken only to come in. Of theirs, the epoch grows with every
//! transaction that others would have to learn of: whoever finds another one than it knows forgets what it
//! remembers, and asks. `term` says which replica dispatches: only a transaction of that one writes what
//! plugins left, or lets retention take something.
//!
//! **Recovery**: a transaction holds everything that its batch means. After a lost connection the
//! writer takes its lock again before it reads anything: as long as its old session lives, that one
//! has the lock, so once it is had, it is decided whether the last transaction was committed.
//!
//! **Unfinished imports** are marked in the number of the format ([`UNFINISHED`](crate::store::format::UNFINISHED)).
//!
//! **Versions**: an older one is migrated when it is opened to be written, a newer one is refused.
//! Version 1 did not keep what audits found; up to version 2 everything was kept, and only states, objects,
//! documents and statuses had sums; up to version 3 no document was kept as edits; up to version 4 one process had
//! it; up to version 5 replicas did not know of each other's watches; up to version 6 no index found the objects that
//! have ended; up to version 7 it was not kept what texts quote; up to version 8 no letter was owed.

use super::engine::dialect::ServerDialect;

pub(super) const VERSION: i64 = 9;

/// The version from which on replicas can share it.
pub(super) const SHARED: i64 = 5;

/// The version from which on rows have sums.
pub(super) const SEALED: i64 = 3;

/// The statements that make version `n + 1` of version `n`. Those that were released never change.
pub(super) const STEPS: [&[&str]; VERSION as usize] =
    [&CREATE, &DISCREPANCIES, &RETAIN_AND_SEAL, &EDITS, &REPLICAS, &WATCHES, &ENDS, &QUOTES, &OWED];

/// Without a transaction around them, as MySQL has none for tables: each may be done twice.
const CREATE: [&str; 20] = [
    "CREATE TABLE IF NOT EXISTS kw_streams (id @INT PRIMARY KEY, source @KEY(1024) NOT NULL, epoch @INT NOT NULL, \
     checkpoint @BYTES, states @INT NOT NULL, last_event_ms @INT, UNIQUE (source, epoch))@TABLE",
    "CREATE TABLE IF NOT EXISTS kw_kinds (id @INT PRIMARY KEY, api_group @BYTES NOT NULL, version @BYTES NOT NULL, \
     kind @BYTES NOT NULL)@TABLE",
    "CREATE TABLE IF NOT EXISTS kw_objects (id @INT PRIMARY KEY, stream @INT NOT NULL, kind @INT NOT NULL, \
     namespace @BYTES NOT NULL, name @BYTES NOT NULL, uid @BYTES NOT NULL, owner @INT NOT NULL, \
     uid_key @INT NOT NULL, name_key @INT NOT NULL, sum @INT NOT NULL, tail @INT, newest @INT\
     @INSIDE{, INDEX kw_objects_by_uid (uid_key), INDEX kw_objects_by_name (name_key)})@TABLE",
    "@INDEX kw_objects_by_uid ON kw_objects (uid_key)",
    "@INDEX kw_objects_by_name ON kw_objects (name_key)",
    "CREATE TABLE IF NOT EXISTS kw_owned (owner @INT NOT NULL, object @INT NOT NULL, \
     PRIMARY KEY (owner, object))@TABLE",
    "CREATE TABLE IF NOT EXISTS kw_statuses (id @INT PRIMARY KEY, body @BYTES NOT NULL, sum @INT NOT NULL)@TABLE",
    "CREATE TABLE IF NOT EXISTS kw_anchors (id @INT PRIMARY KEY, stream @INT NOT NULL, checksum @INT NOT NULL, \
     document @BYTES NOT NULL)@TABLE",
    "CREATE TABLE IF NOT EXISTS kw_states (seq @INT PRIMARY KEY, object @INT NOT NULL, \
     version @KEY(2100) NOT NULL, flags @INT NOT NULL, back @INT NOT NULL, status @INT NOT NULL, previous @INT, \
     owner @INT, observed_ms @INT NOT NULL, at @KEY(2100), anchor @INT, sums @INT NOT NULL, \
     document @BYTES NOT NULL, UNIQUE (version, object))@TABLE",
    "@PACKED kw_states.document",
    "CREATE TABLE IF NOT EXISTS kw_current (object @INT PRIMARY KEY, newest @INT NOT NULL, \
     tail @INT NOT NULL)@TABLE",
    "CREATE TABLE IF NOT EXISTS kw_snapshots (object @INT PRIMARY KEY, seq @INT NOT NULL, \
     packed @BYTES NOT NULL)@TABLE",
    "@PACKED kw_snapshots.packed",
    "CREATE TABLE IF NOT EXISTS kw_tallies (segment @INT NOT NULL, stream @INT NOT NULL, states @INT NOT NULL, \
     bytes @INT NOT NULL, PRIMARY KEY (segment, stream))@TABLE",
    "CREATE TABLE IF NOT EXISTS kw_gaps (id @INT PRIMARY KEY, stream @INT NOT NULL, seq @INT NOT NULL, \
     bounds @KEY(2100) NOT NULL, body @BYTES NOT NULL, UNIQUE (stream, seq, bounds))@TABLE",
    "CREATE TABLE IF NOT EXISTS kw_poison (id @INT PRIMARY KEY, stream @INT NOT NULL, digest @INT NOT NULL, \
     checksum @INT NOT NULL, observed_ms @INT NOT NULL, error @BYTES NOT NULL, raw @BYTES NOT NULL, \
     UNIQUE (stream, digest, checksum))@TABLE",
    "CREATE TABLE IF NOT EXISTS kw_plugins (name @KEY(255) PRIMARY KEY, progress @BYTES NOT NULL)@TABLE",
    "CREATE TABLE IF NOT EXISTS kw_letters (plugin @KEY(255) NOT NULL, seq @INT NOT NULL, id @BYTES NOT NULL, \
     attempts @INT NOT NULL, error @BYTES NOT NULL, first_ms @INT NOT NULL, last_ms @INT NOT NULL, \
     replaying @INT NOT NULL, tries @BYTES NOT NULL, PRIMARY KEY (plugin, seq))@TABLE",
    "CREATE TABLE IF NOT EXISTS kw_kv (plugin @KEY(255) NOT NULL, name @KEY(1024) NOT NULL, \
     value @BYTES NOT NULL, PRIMARY KEY (plugin, name))@TABLE",
    "CREATE TABLE IF NOT EXISTS kw_replays (id @INT PRIMARY KEY, plugin @KEY(255) NOT NULL, who @BYTES NOT NULL, \
     why @BYTES NOT NULL, seqs @BYTES NOT NULL, at_ms @INT NOT NULL, what @BYTES NOT NULL)@TABLE",
];

/// Adds the findings of audits.
const DISCREPANCIES: [&str; 1] =
    ["CREATE TABLE IF NOT EXISTS kw_discrepancies (stream @INT NOT NULL, number @INT NOT NULL, \
     body @BYTES NOT NULL, PRIMARY KEY (stream, number))@TABLE"];

/// Counts the states that retention removed, and gives every row a checksum.
const RETAIN_AND_SEAL: [&str; 13] = [
    "CREATE TABLE IF NOT EXISTS kw_taken (plugin @KEY(255) PRIMARY KEY, finished @INT NOT NULL, \
     untold @INT NOT NULL, sum @INT NOT NULL)@TABLE",
    "@COLUMN kw_streams.taken",
    "@COLUMN kw_streams.sum",
    "@COLUMN kw_kinds.sum",
    "@COLUMN kw_owned.sum",
    "@COLUMN kw_anchors.sum",
    "@COLUMN kw_gaps.sum",
    "@COLUMN kw_poison.sum",
    "@COLUMN kw_plugins.sum",
    "@COLUMN kw_letters.sum",
    "@COLUMN kw_kv.sum",
    "@COLUMN kw_replays.sum",
    "@COLUMN kw_discrepancies.sum",
];

/// Documents may be kept as edits, which an older program can't read. What is there stays.
const EDITS: [&str; 0] = [];

/// Who shares it, whose term it is, and what all of them have to mean alike.
const REPLICAS: [&str; 3] = [
    "CREATE TABLE IF NOT EXISTS kw_replicas (slot @INT PRIMARY KEY, name @BYTES NOT NULL, lease @BYTES NOT NULL, \
     since_ms @INT NOT NULL, term @INT NOT NULL)@TABLE",
    "@COLUMN kw_journal.term",
    "CREATE TABLE IF NOT EXISTS kw_agreed (name @KEY(1024) PRIMARY KEY, text @BYTES NOT NULL)@TABLE",
];

/// Keeps, for each replica, the time since which its watches go on.
const WATCHES: [&str; 1] =
    ["CREATE TABLE IF NOT EXISTS kw_watches (slot @INT PRIMARY KEY, sources @BYTES NOT NULL)@TABLE"];

/// Objects that have ended, by their ends. MySQL can't be told to leave out those that have not.
const ENDS: [&str; 1] = ["@ADD_INDEX kw_objects.kw_objects_by_end (stream, tail) WHERE tail IS NOT NULL"];

/// Flags say what texts quote, which an older program would take for a damage. What is there says nothing of it.
const QUOTES: [&str; 0] = [];

/// A letter may be a state that is owed, which an older program would never hand over.
const OWED: [&str; 0] = [];

/// Columns that a journal of any version gets: an older program does not miss them, and does not move them.
pub(super) const LATER: [&str; 2] = ["@COLUMN kw_journal.moves", "@COLUMN kw_journal.line"];

/// The tables that the steps make: all but the one that has the version.
pub(super) fn tables() -> impl Iterator<Item = &'static str> {
    let made = |text: &'static str| text.strip_prefix("CREATE TABLE IF NOT EXISTS ")?.split(' ').next();
    STEPS.into_iter().flatten().filter_map(move |text| made(text))
}

/// A column that a statement adds: its table and its name.
pub(super) fn added(shared: &str) -> Option<(&str, &str)> {
    shared.strip_prefix("@COLUMN ")?.split_once('.')
}

/// An index that a statement adds to a table that is there: the table, the index, its columns, and which rows
/// it has.
pub(super) fn indexed(shared: &str) -> Option<(&str, &str, &str, &str)> {
    let (table, rest) = shared.strip_prefix("@ADD_INDEX ")?.split_once('.')?;
    let (index, rest) = rest.split_once(' ')?;
    let (columns, rows) = rest.split_once(" WHERE ")?;
    Some((table, index, columns, rows))
}

/// Where the version stands; there before anything else.
pub(super) const MARK: &str = "CREATE TABLE IF NOT EXISTS kw_journal (id @INT PRIMARY KEY, format @INT NOT NULL, \
     epoch @INT NOT NULL, holder @BYTES NOT NULL, since_ms @INT NOT NULL)@TABLE";

/// One statement as an engine takes it; `None` where it needs none.
pub(super) fn statement(dialect: ServerDialect, shared: &str) -> Option<String> {
    let (bytes, table) = match dialect {
        ServerDialect::Postgres => ("bytea", ""),
        ServerDialect::Mysql => ("LONGBLOB", " ENGINE = InnoDB ROW_FORMAT = DYNAMIC"),
    };
    if let Some((table, column)) = added(shared) {
        return Some(format!("ALTER TABLE {table} ADD COLUMN {column} bigint NOT NULL DEFAULT 0"));
    }
    if let Some((table, index, columns, rows)) = indexed(shared) {
        return Some(match dialect {
            ServerDialect::Postgres => {
                format!("CREATE INDEX IF NOT EXISTS {index} ON {table} {columns} WHERE {rows}")
            }
            ServerDialect::Mysql => format!("CREATE INDEX {index} ON {table} {columns}"),
        });
    }
    let text = match (dialect, shared.strip_prefix("@PACKED ")) {
        (ServerDialect::Postgres, Some(column)) => {
            let (table, column) = column.split_once('.')?;
            // Packed already: to pack it again would cost time and win nothing.
            format!("ALTER TABLE {table} ALTER COLUMN {column} SET STORAGE EXTERNAL")
        }
        (ServerDialect::Postgres, None) => shared.replace("@INDEX", "CREATE INDEX IF NOT EXISTS"),
        (ServerDialect::Mysql, None) if !shared.starts_with("@INDEX") => shared.to_owned(),
        (ServerDialect::Mysql, _) => return None,
    };
    let text = text.replace("@INT", "bigint").replace("@BYTES", bytes).replace("@TABLE", table);
    let text = between(&text, ("@KEY(", ')'), |length| match dialect {
        ServerDialect::Postgres => "bytea".to_owned(),
        // What an index holds has a length.
        ServerDialect::Mysql => format!("VARBINARY({length})"),
    });
    Some(between(&text, ("@INSIDE{", '}'), |inside| match dialect {
        ServerDialect::Postgres => String::new(),
        ServerDialect::Mysql => inside.to_owned(),
    }))
}

fn between(text: &str, (open, close): (&str, char), becomes: impl Fn(&str) -> String) -> String {
    let mut parts = text.split(open);
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (inside, rest) = part.split_once(close).unwrap_or((part, ""));
        out.push_str(&becomes(inside));
        out.push_str(rest);
    }
    out
}
