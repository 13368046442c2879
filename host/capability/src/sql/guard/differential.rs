//! Compares the guard with the database: both must agree on what a read is, and a write touches only named
//! tables.
//!
//! The statements are random mutations of others: parts are cut, doubled, exchanged, and filled with text
//! that servers read in their own ways. The database decides what is right. `KUBEWITNESS_STATEMENTS` sets
//! their number.

use std::sync::{Arc, Mutex};

use kubewitness_chance::{Dice, repeat_command, seed, statements};
use kubewitness_core::config::SqlAccess;
use kubewitness_core::ports::SqlDialect;
use rusqlite::Connection;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};

use super::rendered::render_statement;
use super::{StatementPurpose, check};

/// Statements that are understood, on every database or on some.
const WHOLE: &[&str] = &[
    "SELECT k, n FROM t WHERE n > 1 ORDER BY k LIMIT 3",
    "SELECT count(*), max(n) FROM t GROUP BY k HAVING max(n) > 0",
    "SELECT t.k, u.n FROM t JOIN u ON t.k = u.k AND u.n IN (1, 2)",
    "WITH x AS (SELECT k AS a FROM t) SELECT a FROM x UNION SELECT k FROM u",
    "SELECT CASE WHEN n > 1 THEN 'a' ELSE lower(k) END FROM t",
    "SELECT k FROM t WHERE k LIKE 'a%' AND NOT EXISTS (SELECT 1 FROM u WHERE u.k = t.k)",
    "VALUES (1, 'a'), (2, 'b')",
    "INSERT INTO t (k, n) VALUES ('a', 1)",
    "INSERT INTO t (k, n) SELECT k, n + 1 FROM u",
    "UPDATE t SET n = n + 1 WHERE k = 'a'",
    "DELETE FROM t WHERE n < 3",
    "WITH x AS (DELETE FROM t RETURNING k) SELECT k FROM x",
    "WITH x AS (SELECT 1 AS a) DELETE FROM t WHERE n = 1",
    "SELECT k FROM t FOR UPDATE",
    "SELECT 1 INTO x FROM t",
    "INSERT INTO t (k, n) VALUES ('a', 1) ON CONFLICT (k) DO UPDATE SET n = excluded.n",
    "REPLACE INTO t (k, n) VALUES ('a', 1)",
    "CREATE TABLE x (a INTEGER)",
    "DROP TABLE u",
];

/// Fragments to insert: the beginning and end of comments and quotes, words that write, and unusual blanks.
const PARTS: &[&str] = &[
    "--",
    "--\r",
    "--\n",
    "/*",
    "*/",
    "/*!",
    "/*M!",
    "/*+",
    "#",
    ";",
    "'",
    "\"",
    "`",
    "[",
    "]",
    "(",
    ")",
    ",",
    ".",
    "*",
    "?",
    "\\",
    "\\'",
    "E'",
    "U&'",
    "X'",
    "N'",
    "$$",
    "$a$",
    "::",
    "@",
    ":a",
    "0x1F",
    "1e9",
    "\u{b}",
    "\u{c}",
    "\u{a0}",
    "\r",
    "\0",
    "\u{feff}",
    "\u{212a}",
    "DELETE FROM t",
    "UPDATE u SET n = 0",
    "INSERT INTO u (k, n) VALUES ('z', 9)",
    "DROP TABLE t",
    "RETURNING k",
    "RETURNING *",
    "INTO x",
    "INTO OUTFILE '/tmp/x'",
    "FOR UPDATE",
    "FOR SHARE",
    "LOCK IN SHARE MODE",
    "UNION",
    "UNION ALL TABLE u",
    "WITH",
    "AS",
    "AS MATERIALIZED",
    "RECURSIVE",
    "LATERAL",
    "SELECT",
    "FROM t",
    "WHERE",
    "VALUES",
    "nextval('s')",
    "pg_sleep(0)",
    "sleep(0)",
    "get_lock('x', 0)",
    "setval('s', 1)",
    "load_file('/x')",
    "random()",
    "now()",
    "PROCEDURE ANALYSE()",
    "OR",
    "AND",
    "NOT",
    "NULL",
    "DEFAULT",
    "COLLATE",
    "OVER ()",
    "EXPLAIN",
    "ANALYZE",
    "CALL f()",
    "SET",
    "MERGE INTO t USING u ON t.k = u.k WHEN MATCHED THEN DELETE",
    "TABLE t",
    "main.",
    "kubewitness_receipts",
    "sqlite_master",
];

struct StatementMaker {
    dice: Dice,
}

impl StatementMaker {
    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        self.dice.pick(from).copied().unwrap_or_default()
    }

    fn next(&mut self) -> String {
        let whole = self.pick(WHOLE);
        let mut parts: Vec<&str> = whole.split(' ').collect();
        for _ in 0..self.dice.below(4) {
            let at = self.dice.index(parts.len());
            match self.dice.below(6) {
                0 if parts.len() > 1 => drop(parts.remove(at)),
                1 => parts.insert(at, parts[at]),
                2 => {
                    let other = self.dice.index(parts.len());
                    parts.swap(at, other);
                }
                // The end of another statement.
                3 => {
                    let other: Vec<_> = self.pick(WHOLE).split(' ').collect();
                    parts.truncate(at + 1);
                    parts.extend(&other[self.dice.index(other.len())..]);
                }
                _ => parts.insert(at, self.pick(PARTS)),
            }
        }
        let blank = if self.dice.one_in(8) { "" } else { " " };
        parts.join(blank)
    }
}

/// The text that is sent and the access that it needs, if the guard understands it.
fn judged(statement: &str, dialect: SqlDialect) -> Option<(String, SqlAccess)> {
    let text = render_statement(statement, dialect).ok()?;
    let purpose = [StatementPurpose::Query, StatementPurpose::Execute]
        .into_iter()
        .find(|purpose| check(&text, *purpose, dialect).is_ok())?;
    let access = check(&text, purpose, dialect).ok()?.least_access();
    Some((text, access))
}

/// The tables that a statement writes, according to SQLite's compiler.
fn watched(connection: &Connection) -> Arc<Mutex<Vec<String>>> {
    let written = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&written);
    let watch = move |context: AuthContext<'_>| {
        if let AuthAction::Insert { table_name }
        | AuthAction::Delete { table_name }
        | AuthAction::Update { table_name, .. } = context.action
        {
            noted.lock().unwrap().push(table_name.to_owned());
        }
        Authorization::Allow
    };
    connection.authorizer(Some(watch)).unwrap();
    written
}

#[test]
fn what_the_guard_takes_for_a_read_is_one_to_sqlite_and_a_write_touches_what_it_names() {
    let connection = Connection::open_in_memory().unwrap();
    let tables = "CREATE TABLE t (k TEXT UNIQUE, n INTEGER); CREATE TABLE u (k TEXT, n INTEGER)";
    connection.execute_batch(tables).unwrap();
    let written = watched(&connection);
    let (mut maker, mut reads, mut writes) = (StatementMaker { dice: Dice::new(seed()) }, 0, 0);
    let number = statements(4_000);
    for _ in 0..number {
        let made = maker.next();
        let Some((text, access)) = judged(&made, SqlDialect::Sqlite) else { continue };
        written.lock().unwrap().clear();
        let Ok(prepared) = connection.prepare(&text) else { continue };
        let hint = format!("{made:?} is sent as {text:?}; {}", repeat_command(seed()));
        let touched = written.lock().unwrap().clone();
        match access {
            SqlAccess::Read => {
                assert!(prepared.readonly() && touched.is_empty(), "a read writes {touched:?}: {hint}");
                reads += 1;
            }
            SqlAccess::Write => {
                let is_named =
                    |table: &String| ["t", "u"].contains(&table.as_str()) && text.contains(table.as_str());
                assert!(touched.iter().all(is_named), "it writes {touched:?}: {hint}");
                writes += 1;
            }
            SqlAccess::Schema => {}
        }
    }
    assert!(
        reads > number / 20 && writes > number / 20,
        "{reads} reads and {writes} writes of {number} were understood"
    );
}

/// Statements that the guard takes for reads on this database, as they are sent.
pub fn reads(dialect: SqlDialect, number: u64) -> Vec<String> {
    understood(dialect, number, SqlAccess::Read)
}

/// As [`reads`], for writes.
pub fn writes(dialect: SqlDialect, number: u64) -> Vec<String> {
    understood(dialect, number, SqlAccess::Write)
}

fn understood(dialect: SqlDialect, number: u64, least: SqlAccess) -> Vec<String> {
    let mut maker = StatementMaker { dice: Dice::new(seed()) };
    let made = std::iter::repeat_with(|| judged(&maker.next(), dialect));
    let made = made.take(usize::try_from(number).unwrap()).flatten();
    made.filter(|(_, access)| *access == least).map(|(text, _)| text).collect()
}
