//! The format of a journal in PostgreSQL, MySQL or MariaDB, version 10.
//!
//! The tables are in one database, or in one schema of PostgreSQL. Their names begin with `kw_`, so other
//! tables can be beside them. They hold the same rows as the embedded journal, under the same names and with
//! the same meaning ([`sqlite::schema`](crate::store::sqlite) describes them). The differences are:
//!
//! - `kw_journal` has one row: the version of the format, and the present writer.
//! - **Texts are bytes** of UTF-8. So no collation decides whether two texts are equal or how long a key is,
//!   and a NUL in a name is no error.
//! - A key (`kw_states.version`, `at`) is either 1 and a number of 8 bytes, big-endian with an inverted sign
//!   bit, or 2 and a text. So numbers keep their order in the index. The length of versions is limited
//!   (`limits::VERSION_BYTES`), so that every key fits into an index.
//! - A uid is a text. `bounds` is the key of a gap, and `name` the key of an entry in a plugin's `kw_kv`.
//!
//! **One writer at a time**: every transaction that writes first locks the row of `kw_journal`, and compares
//! the epoch in it and the commits (`connect::commits`). If a process has the journal for itself, it raises
//! the epoch each time that it opens the journal or returns after an error. A process that finds an epoch
//! other than its own is not the writer any more. Its session also holds an advisory lock, so that a second
//! process can report who has the journal.
//!
//! **Replicas** share a journal. Each holds its own advisory lock, and a row of `kw_replicas` names it. A
//! replica takes the journal's lock only to join. With replicas, the epoch grows with every transaction that
//! the others have to learn of: a replica that finds an unknown epoch forgets its memory and reads again.
//! `term` says which replica leads: only its transactions may write what plugins save, or remove states for
//! retention.
//!
//! **Recovery**: a transaction contains everything that its batch means. After a lost connection, the writer
//! takes its lock again before it reads anything. Its old session holds that lock as long as it lives. So
//! once the writer has the lock, it is decided whether the last transaction was committed.
//!
//! **Unfinished imports** are marked in the number of the format
//! ([`UNFINISHED`](crate::store::format::UNFINISHED)).
//!
//! **Versions**: an older version is migrated when it is opened for writing; a newer one is refused.
//!
//! | version | what it added |
//! |---|---|
//! | 2 | the findings of audits |
//! | 3 | retention, and checksums in every row; before, only states, objects, documents and statuses had them |
//! | 4 | documents as edits |
//! | 5 | replicas |
//! | 6 | replicas know each other's watches |
//! | 7 | an index of ended objects |
//! | 8 | flags that record what texts quote |
//! | 9 | owed states among the letters |
//! | 10 | counts of the dropped letters and records that retention removed |

use super::engine::dialect::ServerDialect;

pub(super) const VERSION: i64 = 10;

/// The version from which replicas can share it.
pub(super) const SHARED: i64 = 5;

/// The version from which rows have checksums.
pub(super) const SEALED: i64 = 3;

/// `STEPS[n]` makes version `n + 1` of version `n`. Released statements never change.
pub(super) const STEPS: [&[&str]; VERSION as usize] =
    [&CREATE, &DISCREPANCIES, &RETAIN_AND_SEAL, &EDITS, &REPLICAS, &WATCHES, &ENDS, &QUOTES, &OWED, &REMOVED];

/// MySQL has no transactions for tables, so each of these statements may run twice.
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

/// Documents may be stored as edits, which an older program can't read. Existing documents stay.
const EDITS: [&str; 0] = [];

/// Stores which replicas share the journal, which one leads, and the meanings on which all must agree.
const REPLICAS: [&str; 3] = [
    "CREATE TABLE IF NOT EXISTS kw_replicas (slot @INT PRIMARY KEY, name @BYTES NOT NULL, lease @BYTES NOT NULL, \
     since_ms @INT NOT NULL, term @INT NOT NULL)@TABLE",
    "@COLUMN kw_journal.term",
    "CREATE TABLE IF NOT EXISTS kw_agreed (name @KEY(1024) PRIMARY KEY, text @BYTES NOT NULL)@TABLE",
];

/// Stores, for each replica, the time since which its watches continue.
const WATCHES: [&str; 1] =
    ["CREATE TABLE IF NOT EXISTS kw_watches (slot @INT PRIMARY KEY, sources @BYTES NOT NULL)@TABLE"];

/// Finds ended objects by their ends. MySQL can't leave out the other objects.
const ENDS: [&str; 1] = ["@ADD_INDEX kw_objects.kw_objects_by_end (stream, tail) WHERE tail IS NOT NULL"];

/// Flags record what texts quote. An older program would take them for damage. In existing rows this is
/// unknown.
const QUOTES: [&str; 0] = [];

/// A letter may be a state that is owed, which an older program would never hand over.
const OWED: [&str; 0] = [];

/// Counts the dropped letters and the records that retention removed. An older program would report them as
/// lost.
const REMOVED: [&str; 0] = [];

/// Columns that are added to a journal of any version. An older program neither needs nor changes them.
pub(super) const LATER: [&str; 2] = ["@COLUMN kw_journal.moves", "@COLUMN kw_journal.line"];

/// The tables that the steps create: all except the one with the version.
pub(super) fn created_tables() -> impl Iterator<Item = &'static str> {
    let made = |text: &'static str| text.strip_prefix("CREATE TABLE IF NOT EXISTS ")?.split(' ').next();
    STEPS.into_iter().flatten().filter_map(move |text| made(text))
}

/// The column that a statement adds: its table and its name.
pub(super) fn added_column(shared: &str) -> Option<(&str, &str)> {
    shared.strip_prefix("@COLUMN ")?.split_once('.')
}

/// The index that a statement adds to an existing table: the table, the index, its columns, and the rows that
/// it covers.
pub(super) fn added_index(shared: &str) -> Option<(&str, &str, &str, &str)> {
    let (table, rest) = shared.strip_prefix("@ADD_INDEX ")?.split_once('.')?;
    let (index, rest) = rest.split_once(' ')?;
    let (columns, rows) = rest.split_once(" WHERE ")?;
    Some((table, index, columns, rows))
}

/// The table with the version. It exists before anything else.
pub(super) const MARK: &str = "CREATE TABLE IF NOT EXISTS kw_journal (id @INT PRIMARY KEY, format @INT NOT NULL, \
     epoch @INT NOT NULL, holder @BYTES NOT NULL, since_ms @INT NOT NULL)@TABLE";

/// One statement in the form of an engine; `None` if the engine needs none.
pub(super) fn statement_for(dialect: ServerDialect, shared: &str) -> Option<String> {
    let (bytes, table) = match dialect {
        ServerDialect::Postgres => ("bytea", ""),
        ServerDialect::Mysql => ("LONGBLOB", " ENGINE = InnoDB ROW_FORMAT = DYNAMIC"),
    };
    if let Some((table, column)) = added_column(shared) {
        return Some(format!("ALTER TABLE {table} ADD COLUMN {column} bigint NOT NULL DEFAULT 0"));
    }
    if let Some((table, index, columns, rows)) = added_index(shared) {
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
            // Packed already: packing again would cost time and save nothing.
            format!("ALTER TABLE {table} ALTER COLUMN {column} SET STORAGE EXTERNAL")
        }
        (ServerDialect::Postgres, None) => shared.replace("@INDEX", "CREATE INDEX IF NOT EXISTS"),
        (ServerDialect::Mysql, None) if !shared.starts_with("@INDEX") => shared.to_owned(),
        (ServerDialect::Mysql, _) => return None,
    };
    let text = text.replace("@INT", "bigint").replace("@BYTES", bytes).replace("@TABLE", table);
    let text = replace_between(&text, ("@KEY(", ')'), |length| match dialect {
        ServerDialect::Postgres => "bytea".to_owned(),
        // An indexed column needs a length.
        ServerDialect::Mysql => format!("VARBINARY({length})"),
    });
    Some(replace_between(&text, ("@INSIDE{", '}'), |inside| match dialect {
        ServerDialect::Postgres => String::new(),
        ServerDialect::Mysql => inside.to_owned(),
    }))
}

fn replace_between(text: &str, (open, close): (&str, char), becomes: impl Fn(&str) -> String) -> String {
    let mut parts = text.split(open);
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (inside, rest) = part.split_once(close).unwrap_or((part, ""));
        out.push_str(&becomes(inside));
        out.push_str(rest);
    }
    out
}
