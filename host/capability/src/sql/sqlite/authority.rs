//! SQLite's own judgement of plugins' statements, behind the guard: the two read the same text separately.
//!
//! One connection runs the statements of plugins and the controller's own. The authorizer is asked while a
//! statement is prepared, and once more if a changed schema makes SQLite prepare it again. So a
//! [`PluginTurn`] lasts from the preparation to the last row. A prepared statement is cached by its text, so
//! the text of a plugin's statement has a mark: the cache never answers with a statement that was judged for
//! somebody else. A batch with cached statements pays nothing for it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kubewitness_core::ports::{GrantError, SqlDialect};
use rusqlite::Error;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};

use super::convert::is_refused_by_authorizer;
use crate::sql::guard::{OWN_PREFIX, allows_function};
use crate::sql::{TransactionMode, only_reads};

/// Operators that SQLite implements as functions.
const OPERATORS: [&str; 3] = ["->", "->>", "match"];
/// Functions that SQLite calls itself in `ALTER TABLE`, beside listed ones.
const ALTERS: [&str; 2] = ["printf", "sqlite_drop_column"];
const RENAMES: &str = "sqlite_rename_";

/// Judges the statements of one connection.
#[derive(Default)]
pub struct StatementAuthority(Mutex<StatementParty>);

/// The author of the statement that is prepared or running.
#[derive(Default)]
enum StatementParty {
    #[default]
    Controller,
    Plugin(PluginStatement),
}

struct PluginStatement {
    mode: TransactionMode,
    /// SQLite runs statements of its own to alter a table.
    alters: bool,
    /// SQLite drops the triggers of a table or a view with it.
    drops: bool,
    refusal: Option<GrantError>,
}

/// While it exists, the connection runs a plugin's statement.
pub struct PluginTurn<'a> {
    authority: &'a StatementAuthority,
    mode: TransactionMode,
}

impl StatementAuthority {
    fn party(&self) -> MutexGuard<'_, StatementParty> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The authorizer of a connection.
    pub fn into_hook(self: Arc<Self>) -> impl FnMut(AuthContext<'_>) -> Authorization + Send + 'static {
        move |context| match &mut *self.party() {
            StatementParty::Controller => Authorization::Allow,
            StatementParty::Plugin(statement) => statement.authorize(&context.action),
        }
    }

    pub fn begin_plugin_turn(&self, mode: TransactionMode) -> PluginTurn<'_> {
        *self.party() =
            StatementParty::Plugin(PluginStatement { mode, alters: false, drops: false, refusal: None });
        PluginTurn { authority: self, mode }
    }
}

impl PluginTurn<'_> {
    /// The text under which the statement is prepared and cached.
    pub fn mark_text(&self, text: &str) -> String {
        let mark = match self.mode {
            TransactionMode::ReadOnly => "/* a plugin reads */",
            TransactionMode::ReadWrite => "/* a plugin writes */",
        };
        format!("{mark} {text}")
    }

    /// Explains SQLite's error, if it says that the authorizer refused the statement. SQLite may go on after a
    /// refusal, and fail for another reason.
    pub fn explain_error(&self, error: &Error) -> Option<GrantError> {
        match &mut *self.authority.party() {
            StatementParty::Plugin(statement) if is_refused_by_authorizer(error) => statement.refusal.take(),
            StatementParty::Plugin(_) | StatementParty::Controller => None,
        }
    }
}

impl Drop for PluginTurn<'_> {
    fn drop(&mut self) {
        *self.authority.party() = StatementParty::Controller;
    }
}

impl PluginStatement {
    fn authorize(&mut self, action: &AuthAction<'_>) -> Authorization {
        match self.check_action(action) {
            Ok(()) => Authorization::Allow,
            Err(refusal) => {
                // The first refusal is the cause of any other.
                self.refusal.get_or_insert(refusal);
                Authorization::Deny
            }
        }
    }

    /// Allows what is listed here. SQLite may learn more actions.
    fn check_action(&mut self, action: &AuthAction<'_>) -> Result<(), GrantError> {
        match action {
            AuthAction::Select | AuthAction::Recursive => Ok(()),
            AuthAction::Read { table_name, .. } => check_name(table_name),
            AuthAction::Insert { table_name }
            | AuthAction::Update { table_name, .. }
            | AuthAction::Delete { table_name }
            | AuthAction::CreateTable { table_name } => self.check_write(table_name),
            AuthAction::CreateView { view_name: name } | AuthAction::Reindex { index_name: name } => {
                self.check_write(name)
            }
            AuthAction::CreateIndex { index_name, table_name }
            | AuthAction::DropIndex { index_name, table_name } => {
                self.check_write(index_name).and_then(|()| self.check_write(table_name))
            }
            AuthAction::DropTable { table_name: name } | AuthAction::DropView { view_name: name } => {
                self.drops = true;
                self.check_write(name)
            }
            AuthAction::DropTrigger { table_name, .. } if self.drops => self.check_write(table_name),
            AuthAction::AlterTable { database_name: "main", table_name } => {
                self.alters = true;
                self.check_write(table_name)
            }
            AuthAction::Pragma { pragma_name: "quick_check", .. } if self.alters => Ok(()),
            // Full-text tables of the database's owner ask for them.
            AuthAction::Pragma { pragma_name: "data_version" | "page_size", pragma_value: None } => Ok(()),
            AuthAction::Function { function_name } => self.check_function(function_name),
            other => Err(refused(action_text(other))),
        }
    }

    fn check_write(&self, name: &str) -> Result<(), GrantError> {
        match self.mode {
            TransactionMode::ReadOnly => Err(only_reads()),
            TransactionMode::ReadWrite => check_name(name),
        }
    }

    fn check_function(&self, name: &str) -> Result<(), GrantError> {
        let is_own = self.alters && (ALTERS.contains(&name) || name.starts_with(RENAMES));
        match is_own || OPERATORS.contains(&name) || allows_function(name, SqlDialect::Sqlite) {
            true => Ok(()),
            false => Err(GrantError::Invalid(format!(
                "the function {name} is refused, also in a view or a trigger: docs/reference/sql-functions.md lists those \
                 that may be called"
            ))),
        }
    }
}

fn check_name(name: &str) -> Result<(), GrantError> {
    let start = name.get(..OWN_PREFIX.len());
    match start.is_some_and(|start| start.eq_ignore_ascii_case(OWN_PREFIX)) {
        true => Err(refused(&format!("{name}, which is the controller's own"))),
        false => Ok(()),
    }
}

fn refused(what: &str) -> GrantError {
    GrantError::Invalid(format!("SQLite refuses {what}: a plugin reads and writes its own tables alone"))
}

fn action_text(action: &AuthAction<'_>) -> &'static str {
    match action {
        AuthAction::Attach { .. } | AuthAction::Detach { .. } => "another file",
        AuthAction::Pragma { .. } => "a setting of the engine",
        AuthAction::Transaction { .. } | AuthAction::Savepoint { .. } => {
            "to begin or end a transaction, which is the controller's"
        }
        AuthAction::CreateTrigger { .. } | AuthAction::DropTrigger { .. } => "a trigger",
        AuthAction::CreateVtable { .. } | AuthAction::DropVtable { .. } => "a virtual table",
        AuthAction::CreateTempIndex { .. }
        | AuthAction::CreateTempTable { .. }
        | AuthAction::CreateTempTrigger { .. }
        | AuthAction::CreateTempView { .. }
        | AuthAction::DropTempIndex { .. }
        | AuthAction::DropTempTable { .. }
        | AuthAction::DropTempTrigger { .. }
        | AuthAction::DropTempView { .. } => "what stays with the connection",
        _ => "the statement",
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::super::deadline::{CallLimits, PATIENCE};
    use super::super::each::{Each, RowWrite};
    use super::super::writer::SqliteWriter;
    use super::*;
    use crate::sql::SqlFault;
    use crate::sql::receipt::receipt;

    /// The writer of a file, in a transaction. Its statements have not passed the guard.
    struct UnguardedWriter {
        writer: SqliteWriter,
        _folder: tempfile::TempDir,
    }

    impl UnguardedWriter {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("p.db");
            rusqlite::Connection::open(&path)
                .unwrap()
                .execute_batch(
                    "CREATE TABLE t (k TEXT, n INTEGER); CREATE TABLE parent (k TEXT PRIMARY KEY); \
                     CREATE TABLE child (k TEXT REFERENCES parent (k) ON DELETE CASCADE); \
                     CREATE TRIGGER counts AFTER INSERT ON parent BEGIN INSERT INTO t VALUES (upper(new.k), 1); END; \
                     CREATE VIEW shown AS SELECT k FROM t; \
                     CREATE TRIGGER shows INSTEAD OF INSERT ON shown BEGIN INSERT INTO t VALUES (new.k, 1); END; \
                     CREATE VIEW long AS SELECT printf('%d', n) AS n FROM t; CREATE VIRTUAL TABLE words USING fts5(w); \
                     CREATE VIRTUAL TABLE older USING fts4(w)",
                )
                .unwrap();
            let mut writer = SqliteWriter::new(path, None);
            writer.begin_for_call().unwrap();
            Self { writer, _folder: folder }
        }

        fn execute(&self, text: &str) -> Result<u64, SqlFault> {
            let write = RowWrite { each: vec![Each::of(text.to_owned())], rows: vec![vec![]] };
            self.writer.execute_rows(&write, &limits())
        }

        fn query(&self, mode: TransactionMode, text: &str) -> Result<usize, SqlFault> {
            let found = self.writer.query_rows(mode, text, &[], &limits());
            found.map(|rows| rows.unwrap_or_default().len())
        }
    }

    fn limits() -> CallLimits {
        CallLimits { patience: PATIENCE, began: Instant::now() }
    }

    #[test]
    fn sqlite_itself_refuses_what_passes_the_guard_and_the_transaction_goes_on() {
        let world = UnguardedWriter::new();
        for (bad, why) in [
            ("ATTACH ':memory:' AS other", "another file"),
            ("DETACH main", "another file"),
            ("PRAGMA foreign_keys = OFF", "a setting"),
            ("PRAGMA user_version", "a setting"),
            ("SELECT * FROM pragma_table_info('t')", "a setting"),
            ("COMMIT", "a transaction"),
            ("BEGIN IMMEDIATE", "a transaction"),
            ("ROLLBACK", "a transaction"),
            ("SAVEPOINT x", "a transaction"),
            ("RELEASE kw", "a transaction"),
            ("CREATE TRIGGER x AFTER INSERT ON t BEGIN DELETE FROM t; END", "a trigger"),
            ("DROP TRIGGER counts", "a trigger"),
            ("DROP TRIGGER shows", "a trigger"),
            ("PRAGMA page_size = 4096", "a setting"),
            ("CREATE TEMP TABLE x (a)", "stays with the connection"),
            ("CREATE TEMP VIEW x AS SELECT 1", "stays with the connection"),
            ("CREATE VIRTUAL TABLE x USING fts5(a)", "a virtual table"),
            ("ANALYZE", "the statement"),
            ("DELETE FROM kubewitness_receipts", "the controller's own"),
            ("DROP TABLE Kubewitness_receipts", "the controller's own"),
            ("ALTER TABLE kubewitness_receipts ADD COLUMN x", "the controller's own"),
            ("CREATE INDEX i ON kubewitness_receipts (at)", "the controller's own"),
            ("CREATE TABLE kubewitness_x (a)", "the controller's own"),
            ("INSERT INTO t SELECT token, 1 FROM kubewitness_receipts", "the controller's own"),
            ("INSERT INTO t VALUES (printf('%d', 1), 1)", "the function printf"),
            ("INSERT INTO t SELECT n, 1 FROM long", "the function printf"),
            (
                "WITH x AS (SELECT load_extension('x') AS a) INSERT INTO t SELECT a, 1 FROM x",
                "load_extension",
            ),
        ] {
            let refused = world.execute(bad).unwrap_err();
            let is_clear = matches!(&refused, SqlFault::Own(GrantError::Invalid(text)) if text.contains(why));
            assert!(is_clear, "{bad}: {refused:?}");
        }
        assert_eq!(world.execute("INSERT INTO t VALUES ('a', 1)"), Ok(1));
    }

    #[test]
    fn what_the_guard_allows_is_allowed_by_sqlite_too() {
        let world = UnguardedWriter::new();
        for good in [
            "CREATE TABLE u (k TEXT PRIMARY KEY, n INTEGER DEFAULT 1, CHECK (length(k) > 0))",
            "INSERT INTO u (k) VALUES ('a') ON CONFLICT (k) DO UPDATE SET n = excluded.n + 1 WHERE n < 5",
            "CREATE UNIQUE INDEX i ON u (n)",
            "CREATE INDEX lowered ON u (lower(k)) WHERE n > 0",
            "CREATE VIEW v AS SELECT k, count(*) AS c FROM u GROUP BY k",
            "ALTER TABLE u ADD COLUMN a TEXT NOT NULL DEFAULT '' CHECK (length(a) < 9)",
            "ALTER TABLE u RENAME COLUMN a TO b",
            "ALTER TABLE u DROP COLUMN b",
            "DROP VIEW v",
            "ALTER TABLE u RENAME TO w",
            "INSERT OR REPLACE INTO w (k) SELECT json_extract('{\"a\": \"b\"}', '$.a')",
            "INSERT INTO t SELECT '{\"a\": 1}' ->> 'a', value FROM json_each('[1, 2]') WHERE value LIKE '%'",
            "UPDATE t SET n = (WITH RECURSIVE x (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM x WHERE n < 9) SELECT max(n) FROM x)",
            "DROP INDEX i",
            "DROP TABLE w",
            "INSERT INTO parent VALUES ('a')",
            "INSERT INTO child VALUES ('a')",
            "DELETE FROM parent",
            "DROP TABLE child",
            "DROP TABLE parent",
            "INSERT INTO words VALUES ('one two')",
            "INSERT INTO older VALUES ('one two')",
            "INSERT INTO shown VALUES ('b')",
            "DROP VIEW shown",
        ] {
            assert!(world.execute(good).is_ok(), "{good}: {:?}", world.execute(good));
        }
        assert_eq!(
            world.query(TransactionMode::ReadWrite, "SELECT w FROM words WHERE words MATCH 'two'"),
            Ok(1)
        );
    }

    #[test]
    fn another_error_than_the_authorizer_s_keeps_its_own_words() {
        let authority = StatementAuthority::default();
        let turn = authority.begin_plugin_turn(TransactionMode::ReadWrite);
        let failure =
            |code, text: &str| Error::SqliteFailure(rusqlite::ffi::Error::new(code), Some(text.into()));
        let refused = || {
            if let StatementParty::Plugin(statement) = &mut *authority.party() {
                statement.authorize(&AuthAction::Attach { filename: "x" });
            }
        };
        refused();
        assert_eq!(turn.explain_error(&failure(19, "CHECK constraint failed: a")), None);
        assert_eq!(turn.explain_error(&failure(1, "no such table: not authorized")), None);
        for error in
            [failure(23, "not authorized"), failure(1, "not authorized to use function: load_extension")]
        {
            refused();
            assert!(turn.explain_error(&error).is_some_and(|why| why.to_string().contains("another file")));
        }
    }

    #[test]
    fn a_statement_that_writes_is_no_read_to_sqlite_although_it_was_prepared_for_a_write() {
        let world = UnguardedWriter::new();
        for text in
            ["WITH x AS (SELECT 1) DELETE FROM t RETURNING k", "INSERT INTO t VALUES ('a', 1) RETURNING k"]
        {
            assert!(world.query(TransactionMode::ReadWrite, text).is_ok(), "{text}");
            let refused = world.query(TransactionMode::ReadOnly, text).unwrap_err();
            assert!(matches!(refused, SqlFault::Own(GrantError::Denied(_))), "{text}: {refused:?}");
        }
        assert_eq!(world.query(TransactionMode::ReadOnly, "SELECT k FROM t"), Ok(1));
    }

    #[test]
    fn the_controller_s_own_statements_go_on_between_those_of_plugins_and_are_lent_to_none() {
        let mut world = UnguardedWriter::new();
        for number in 0..2 {
            assert_eq!(world.execute("INSERT INTO t VALUES ('a', 1)"), Ok(1));
            assert!(world.execute("DELETE FROM kubewitness_receipts WHERE token = ?").is_err());
            let token = format!("p.{number}");
            world.writer.commit_with_receipt(&receipt(&token, &[number])).unwrap();
            assert_eq!(world.writer.was_committed(&token), Ok(true));
            world.writer.begin_for_call().unwrap();
            assert!(world.execute("COMMIT").is_err());
        }
        assert_eq!(world.query(TransactionMode::ReadOnly, "SELECT k FROM t"), Ok(2));
    }
}
