//! Migrates older formats to the present one, a version at a time.
//!
//! A step is one transaction that also moves `user_version`. A process that is killed leaves the file as
//! before or as after the step, and the next start continues from there. Released steps never change; a new
//! version is a new step.

use std::path::Path;

use sqlx::{AssertSqlSafe, Connection, SqliteConnection};

use super::schema::VERSION;
use super::statements::checksums;
use crate::store::format::with_mark;

/// `STEPS[n]` makes version `n + 2` of version `n + 1`.
const STEPS: [&str; VERSION as usize - 1] = [
    // 2: whole documents of live objects move out of the rows that change with every state.
    "CREATE TABLE snapshots (object INTEGER PRIMARY KEY, seq INTEGER NOT NULL, packed BLOB NOT NULL) STRICT;
     INSERT INTO snapshots (object, seq, packed)
         SELECT object, newest, packed FROM current WHERE packed IS NOT NULL ORDER BY object;
     CREATE TABLE current_2 (
         object INTEGER PRIMARY KEY, newest INTEGER NOT NULL, tail INTEGER NOT NULL
     ) STRICT;
     INSERT INTO current_2 (object, newest, tail) SELECT object, newest, tail FROM current ORDER BY object;
     DROP TABLE current;
     ALTER TABLE current_2 RENAME TO current;",
    // 3: the figures with which retention limits a source by its size, and counts what it removed.
    "ALTER TABLE tallies ADD COLUMN bytes INTEGER NOT NULL DEFAULT 0;
     ALTER TABLE streams ADD COLUMN taken INTEGER NOT NULL DEFAULT 0;
     CREATE TABLE taken (
         plugin TEXT PRIMARY KEY, finished INTEGER NOT NULL, untold INTEGER NOT NULL
     ) STRICT, WITHOUT ROWID;
     UPDATE tallies SET bytes = t.bytes FROM (
         SELECT s.seq / 1024 AS segment, o.stream, sum(length(s.document) + 100) AS bytes
         FROM states s JOIN objects o ON o.id = s.object GROUP BY 1, 2
     ) AS t WHERE tallies.segment = t.segment AND tallies.stream = t.stream;",
    // 4: letters record each try, and records say what was done.
    "ALTER TABLE letters ADD COLUMN tries TEXT NOT NULL DEFAULT '[]';
     ALTER TABLE replays ADD COLUMN what TEXT NOT NULL DEFAULT 'replay';",
    // 5: the findings of audits.
    "CREATE TABLE discrepancies (
         stream INTEGER NOT NULL, number INTEGER NOT NULL, body TEXT NOT NULL, PRIMARY KEY (stream, number)
     ) STRICT, WITHOUT ROWID;",
    // 6: every row has a checksum, which `checksums` fills in.
    "ALTER TABLE streams ADD COLUMN sum INTEGER NOT NULL DEFAULT 0;
     ALTER TABLE kinds ADD COLUMN sum INTEGER NOT NULL DEFAULT 0;
     ALTER TABLE owned ADD COLUMN sum INTEGER NOT NULL DEFAULT 0;
     ALTER TABLE anchors ADD COLUMN sum INTEGER NOT NULL DEFAULT 0;
     ALTER TABLE gaps ADD COLUMN sum INTEGER NOT NULL DEFAULT 0;
     ALTER TABLE poison ADD COLUMN sum INTEGER NOT NULL DEFAULT 0;
     ALTER TABLE plugins ADD COLUMN sum INTEGER NOT NULL DEFAULT 0;
     ALTER TABLE letters ADD COLUMN sum INTEGER NOT NULL DEFAULT 0;
     ALTER TABLE taken ADD COLUMN sum INTEGER NOT NULL DEFAULT 0;
     ALTER TABLE kv ADD COLUMN sum INTEGER NOT NULL DEFAULT 0;
     ALTER TABLE replays ADD COLUMN sum INTEGER NOT NULL DEFAULT 0;
     ALTER TABLE discrepancies ADD COLUMN sum INTEGER NOT NULL DEFAULT 0;
     UPDATE owned SET sum = 31 * owner + 17 * object;",
    // 7: documents may be stored as edits, which an older program can't read. Existing documents stay.
    "",
    // 8: an index finds ended objects by their ends.
    "CREATE INDEX objects_by_end ON objects (stream, tail) WHERE tail IS NOT NULL;",
    // 9: flags record what texts quote. An older program would take them for damage. In existing rows this is
    // unknown.
    "",
    // 10: a letter may be a state that is owed, which an older program would never hand over.
    "",
    // 11: `taken` counts removed letters and records, which an older program would report as lost.
    "",
];

/// The version from which rows have checksums.
const SEALED: i64 = 6;

/// Migrates a file of version `from` to the present one. With `unfinished`, the mark of an unfinished import
/// stays.
pub(super) async fn migrate_file(
    connection: &mut SqliteConnection,
    path: &Path,
    from: i64,
    unfinished: bool,
) -> Result<(), sqlx::Error> {
    for (version, step) in (2..).zip(STEPS).filter(|(version, _)| *version > from) {
        tracing::info!(path = %path.display(), version, "migrating the journal to a newer format");
        let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await?;
        let format = with_mark(version, unfinished);
        let text = format!("{step} PRAGMA user_version = {format};");
        sqlx::raw_sql(AssertSqlSafe(text)).execute(&mut *transaction).await?;
        if version == SEALED {
            checksums::fill_checksums(&mut transaction).await?;
        }
        transaction.commit().await?;
    }
    Ok(())
}
