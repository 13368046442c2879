//! Parses a plugin's statement into a tree, checks it, and renders it again. The database gets the rendered
//! text, and never the plugin's own bytes: comments, unusual blanks and other ambiguous syntax do not
//! survive.
//!
//! It knows kinds of statements and names. [`functions`](super::functions) has the allowed functions,
//! [`cast_types`](super::cast_types) judges the types of casts, and [`rules`](super::rules) the refused words.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};

use kubewitness_core::ports::{GrantError, SqlDialect};
use sqlparser::ast::{
    Expr, Function, Ident, ObjectName, ObjectType, Select, Statement, TableFactor, Visit, Visitor,
};
use sqlparser::dialect::{self, MySqlDialect, PostgreSqlDialect, SQLiteDialect};
use sqlparser::parser::Parser;
use sqlparser::tokenizer::{Token, TokenWithSpan, Tokenizer};

use super::index_prefixes::prefixed_columns;
use super::{cast_types, check_text, functions, invalid_statement};

/// The most levels of brackets and nested queries.
const NESTING: usize = 50;
/// The most tokens. Each operator of an expression is a level of the tree, and dropping a tree uses the
/// stack.
const TOKENS: usize = 4096;
/// The most texts that are cached for one plugin. A plugin has few, because values are parameters.
const REMEMBERED: usize = 64;

/// The cached statements of one plugin, in rendered form.
#[derive(Default)]
pub struct RenderedStatements(Mutex<HashMap<(SqlDialect, String), Arc<str>>>);

impl RenderedStatements {
    pub fn render_cached(&self, statement: &str, dialect: SqlDialect) -> Result<Arc<str>, GrantError> {
        check_text(statement)?;
        let key = (dialect, statement.to_owned());
        let known = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(text) = known().get(&key) {
            return Ok(text.clone());
        }
        let text: Arc<str> = render_statement(statement, dialect)?.into();
        let mut known = known();
        if known.len() >= REMEMBERED {
            known.clear();
        }
        known.insert(key, text.clone());
        Ok(text)
    }
}

/// The statement as it is sent. It has only blanks between its words, and no comments.
pub fn render_statement(statement: &str, dialect: SqlDialect) -> Result<String, GrantError> {
    if dialect == SqlDialect::Mysql && statement.contains('\\') {
        return invalid_statement("a statement has no backslash: a text that has one comes as a parameter");
    }
    let grammar: &dyn dialect::Dialect = match dialect {
        SqlDialect::Sqlite => &SQLiteDialect {},
        SqlDialect::Postgres => &PostgreSqlDialect {},
        SqlDialect::Mysql => &MySqlDialect {},
    };
    let unread =
        |error: &dyn std::fmt::Display| GrantError::Invalid(format!("the statement can't be read: {error}"));
    let tokens =
        Tokenizer::new(grammar, statement).tokenize_with_location().map_err(|error| unread(&error))?;
    let is_written = |token: &&TokenWithSpan| !matches!(token.token, Token::Whitespace(_));
    if tokens.iter().filter(is_written).count() > TOKENS {
        return Err(GrantError::TooLarge(format!("a statement has at most {TOKENS} words and signs")));
    }
    tokens.iter().try_for_each(|token| check_literal(&token.token))?;
    if dialect == SqlDialect::Sqlite
        && tokens.iter().any(|token| matches!(token.token, Token::HexStringLiteral(_)))
        && statement.to_ascii_lowercase().contains("0x")
    {
        return invalid_statement("a number is written in decimal digits, and a blob as X'…'");
    }
    let tokens = match dialect {
        SqlDialect::Sqlite => tokens,
        SqlDialect::Postgres => with_placeholders(tokens),
        SqlDialect::Mysql => with_quoted_names(tokens),
    };
    let mut parser = Parser::new(grammar).with_recursion_limit(NESTING).with_tokens_with_locations(tokens);
    let parsed = parser.parse_statements().map_err(|error| unread(&error))?;
    let [statement] = parsed.as_slice() else {
        return invalid_statement(if parsed.is_empty() {
            "the statement is empty"
        } else {
            "send one statement at a time"
        });
    };
    let prefixed_columns = match dialect {
        SqlDialect::Mysql => prefixed_columns(statement),
        SqlDialect::Sqlite | SqlDialect::Postgres => Vec::new(),
    };
    match statement.visit(&mut StatementJudge { dialect, prefixed_columns }) {
        ControlFlow::Break(message) => invalid_statement(message),
        ControlFlow::Continue(()) => Ok(statement.to_string()),
    }
}

/// Refuses strings and quoted names that the parser would render differently, or that a server reads
/// differently. Such a value can be passed as a parameter.
fn check_literal(token: &Token) -> Result<(), GrantError> {
    let is_plain = |text: &str, quote: char| {
        let again = [format!("{quote}{quote}"), format!("\\{quote}")];
        !again.iter().any(|part| text.contains(part))
    };
    let is_kept = match token {
        Token::SingleQuotedString(text) => is_plain(text, '\''),
        Token::DoubleQuotedString(name) => !name.contains('"'),
        Token::Word(word) => {
            word.quote_style.is_none_or(|_| !word.value.contains(['"', '`', '[', ']', '\\']))
        }
        Token::HexStringLiteral(digits) => {
            digits.len().is_multiple_of(2) && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
        }
        Token::TripleSingleQuotedString(_)
        | Token::TripleDoubleQuotedString(_)
        | Token::DollarQuotedString(_)
        | Token::SingleQuotedByteStringLiteral(_)
        | Token::DoubleQuotedByteStringLiteral(_)
        | Token::TripleSingleQuotedByteStringLiteral(_)
        | Token::TripleDoubleQuotedByteStringLiteral(_)
        | Token::SingleQuotedRawStringLiteral(_)
        | Token::DoubleQuotedRawStringLiteral(_)
        | Token::TripleSingleQuotedRawStringLiteral(_)
        | Token::TripleDoubleQuotedRawStringLiteral(_)
        | Token::NationalStringLiteral(_)
        | Token::EscapedStringLiteral(_)
        | Token::UnicodeStringLiteral(_) => false,
        _ => true,
    };
    match is_kept {
        true => Ok(()),
        false => invalid_statement(
            "a string stands in single quotes without a prefix, a name has no quote, X'…' holds pairs of hexadecimal digits, \
             and a text with two quotes in a row, or a quote after a backslash, comes as a parameter",
        ),
    }
}

/// Replaces `?`, which PostgreSQL would read as an operator, by a placeholder. `?7` consists of two adjacent
/// tokens.
fn with_placeholders(tokens: Vec<TokenWithSpan>) -> Vec<TokenWithSpan> {
    let mut placed: Vec<TokenWithSpan> = Vec::with_capacity(tokens.len());
    for mut next in tokens {
        match (&next.token, placed.last_mut()) {
            (Token::Question, _) => next.token = Token::Placeholder("?".into()),
            (Token::Number(number, false), Some(last))
                if last.token == Token::Placeholder("?".into()) && last.span.end == next.span.start =>
            {
                last.token = Token::Placeholder(format!("?{number}"));
                continue;
            }
            _ => {}
        }
        placed.push(next);
    }
    placed
}

/// Marks texts in double quotes as names: sessions use `ANSI_QUOTES`.
fn with_quoted_names(mut tokens: Vec<TokenWithSpan>) -> Vec<TokenWithSpan> {
    for token in &mut tokens {
        if let Token::DoubleQuotedString(name) = &token.token {
            token.token = Token::make_word(name, Some('"'));
        }
    }
    tokens
}

/// Visits the tree, and refuses with a sentence that says what to write instead.
struct StatementJudge {
    dialect: SqlDialect,
    /// Parts of columns that the tree represents as calls.
    prefixed_columns: Vec<String>,
}

impl StatementJudge {
    fn judge_function(&self, name: &ObjectName) -> ControlFlow<String> {
        self.name(name)?;
        let part = name.0.last().and_then(|part| part.as_ident());
        let called = part.map_or("", |part| part.value.as_str());
        // PostgreSQL distinguishes case in quotes: "Lower" is not its own function.
        let is_its_own = self.dialect != SqlDialect::Postgres
            || part.is_none_or(|part| {
                part.quote_style.is_none() || !called.contains(|c: char| c.is_ascii_uppercase())
            });
        match is_its_own && functions::is_allowed(called, self.dialect) {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(format!(
                "the function {called} is refused: docs/reference/sql-functions.md lists those that a statement may call"
            )),
        }
    }

    /// Checks the name of a table, a view or a function of the granted database.
    fn name(&self, name: &ObjectName) -> ControlFlow<String> {
        let is_main = || name.0[0].as_ident().is_some_and(|part| part.value.eq_ignore_ascii_case("main"));
        match name.0.len() {
            1 => ControlFlow::Continue(()),
            2 if self.dialect == SqlDialect::Sqlite && is_main() => ControlFlow::Continue(()),
            _ => ControlFlow::Break(format!(
                "{name} names a schema or a database, and what was granted is its own alone: write the name without it"
            )),
        }
    }
}

/// Whether a function sets a value of the session. MySQL keeps the value until the session ends, and other
/// calls use the same session.
fn sets_session(function: &Function) -> bool {
    let name = function.name.0.last().and_then(|part| part.as_ident());
    name.is_some_and(|name| name.value.eq_ignore_ascii_case("LAST_INSERT_ID"))
        && function.args.to_string() != "()"
}

impl Visitor for StatementJudge {
    type Break = String;

    fn pre_visit_statement(&mut self, statement: &Statement) -> ControlFlow<String> {
        match statement {
            Statement::Query(_)
            | Statement::Insert(_)
            | Statement::Update(_)
            | Statement::Delete(_)
            | Statement::CreateTable(_)
            | Statement::CreateIndex(_)
            | Statement::CreateView(_)
            | Statement::AlterTable(_) => ControlFlow::Continue(()),
            Statement::Drop {
                object_type: ObjectType::Table | ObjectType::View | ObjectType::Index, names, ..
            } => names.iter().try_for_each(|name| self.name(name)),
            _ => ControlFlow::Break(
                "a statement is one of SELECT, VALUES, INSERT, REPLACE, UPDATE, DELETE, or makes, alters or drops a \
                 table, a view or an index"
                    .into(),
            ),
        }
    }

    fn pre_visit_select(&mut self, select: &Select) -> ControlFlow<String> {
        match select.into {
            Some(_) => {
                ControlFlow::Break("SELECT … INTO is refused: write CREATE TABLE, and INSERT … SELECT".into())
            }
            None => ControlFlow::Continue(()),
        }
    }

    fn pre_visit_table_factor(&mut self, table: &TableFactor) -> ControlFlow<String> {
        if let Err(message) = cast_types::check_table(table, self.dialect) {
            return ControlFlow::Break(message);
        }
        match table {
            TableFactor::Table { name, args: Some(_), .. } | TableFactor::Function { name, .. } => {
                self.judge_function(name)
            }
            TableFactor::Table { .. }
            | TableFactor::Derived { .. }
            | TableFactor::TableFunction { .. }
            | TableFactor::UNNEST { .. }
            | TableFactor::JsonTable { .. }
            | TableFactor::NestedJoin { .. } => ControlFlow::Continue(()),
            _ => ControlFlow::Break(
                "what stands in FROM is a table, a query, or a function that is listed".into(),
            ),
        }
    }

    fn pre_visit_relation(&mut self, relation: &ObjectName) -> ControlFlow<String> {
        self.name(relation)
    }

    fn pre_visit_expr(&mut self, expression: &Expr) -> ControlFlow<String> {
        if let Err(message) = cast_types::check_expression(expression, self.dialect) {
            return ControlFlow::Break(message);
        }
        match expression {
            Expr::Function(function) if sets_session(function) => ControlFlow::Break(
                "LAST_INSERT_ID with a value is refused: it would stay with the session".into(),
            ),
            Expr::Function(function) if self.prefixed_columns.contains(&function.to_string()) => {
                ControlFlow::Continue(())
            }
            Expr::Function(function) => self.judge_function(&function.name),
            Expr::Prefixed { .. } => {
                ControlFlow::Break("strings have no prefix but X: they are UTF-8".into())
            }
            Expr::CompoundIdentifier(parts) if parts.len() > 2 => {
                ControlFlow::Break("a column is written as `column` or `table.column`".into())
            }
            _ => ControlFlow::Continue(()),
        }
    }

    /// Servers fold other letters into ASCII in different ways.
    fn pre_visit_ident(&mut self, ident: &Ident) -> ControlFlow<String> {
        match ident.value.is_ascii() {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(format!("the name {} has other characters than ASCII", ident.value)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVERS: [SqlDialect; 2] = [SqlDialect::Postgres, SqlDialect::Mysql];

    #[test]
    fn what_is_sent_is_what_was_understood() {
        for (dialect, written, sent) in [
            (SqlDialect::Postgres, "SELECT 1 --\r, 42", "SELECT 1, 42"),
            (
                SqlDialect::Postgres,
                "WITH x AS (SELECT 1 AS a) --\r, y AS (DELETE FROM victim RETURNING 1)\nSELECT a FROM x",
                "WITH x AS (SELECT 1 AS a), y AS (DELETE FROM victim RETURNING 1) SELECT a FROM x",
            ),
            (SqlDialect::Postgres, "SELECT /* /* */ 1, */ a", "SELECT a"),
            (
                SqlDialect::Postgres,
                "UPDATE t SET a=?, b = ?2 WHERE c=ANY(?)",
                "UPDATE t SET a = ?, b = ?2 WHERE c = ANY(?)",
            ),
            (SqlDialect::Postgres, "SELECT U&\"x\" FROM t", "SELECT U & \"x\" FROM t"),
            (SqlDialect::Sqlite, "DELETE FROM t /* x", "DELETE FROM t"),
            (SqlDialect::Mysql, "SELECT /*! rand(9), */ 1", "SELECT rand(9), 1"),
            (SqlDialect::Mysql, "UPDATE t SET a = 1 /*!50000 , b = 2 */", "UPDATE t SET a = 1, b = 2"),
            (SqlDialect::Mysql, "UPDATE t SET a = 1 /*M! , b = 2 */ # x", "UPDATE t SET a = 1"),
            (
                SqlDialect::Mysql,
                "CREATE TABLE t (\"id\" BIGINT NOT NULL, `b` VARCHAR(600) COLLATE utf8mb4_bin NOT NULL, PRIMARY KEY (\"id\"))",
                "CREATE TABLE t (\"id\" BIGINT NOT NULL, `b` VARCHAR(600) COLLATE utf8mb4_bin NOT NULL, PRIMARY KEY (\"id\"))",
            ),
            (SqlDialect::Sqlite, "REPLACE INTO t VALUES (?1)", "INSERT OR REPLACE INTO t VALUES (?1)"),
        ] {
            assert_eq!(render_statement(written, dialect).as_deref(), Ok(sent), "{dialect:?}");
        }
        let called = render_statement("SELECT GET_LOCK\u{b}('x',100)", SqlDialect::Mysql);
        assert!(called.unwrap_err().to_string().contains("the function GET_LOCK is refused"));
        assert!(
            render_statement("SELECT 'a\\'", SqlDialect::Mysql).is_err(),
            "an escape or not, as the session is set"
        );
    }

    #[test]
    fn a_literal_that_would_not_be_written_again_as_it_was_read_is_refused() {
        for bad in [
            "SELECT X'41'' , a FROM journal.kw_states WHERE b = '''",
            "SELECT X'4'",
            "SELECT 'a''''b'",
            "SELECT \"a\"\"b\" FROM t",
            "SELECT 'x\\'' , a FROM t WHERE b = ' , [' AS [y] FROM t",
        ] {
            for dialect in SERVERS {
                let judged = render_statement(bad, dialect).and_then(|text| {
                    super::super::check(&text, super::super::StatementPurpose::Query, dialect).map(drop)
                });
                assert!(judged.is_err(), "{dialect:?}: {bad}");
            }
        }
        for bad in ["SELECT E'x'", "SELECT N'x'", "SELECT U&'x'", "SELECT $$x$$"] {
            assert!(render_statement(bad, SqlDialect::Postgres).is_err(), "{bad}");
        }
        for bad in ["SELECT a = 0x1F FROM t", "SELECT X'41'' , a FROM u WHERE b = '''", "SELECT 'x\\'' , a'"]
        {
            assert!(render_statement(bad, SqlDialect::Sqlite).is_err(), "{bad}");
        }
        let plain = "SELECT 'it''s', X'41' FROM t";
        assert_eq!(render_statement(plain, SqlDialect::Sqlite).as_deref(), Ok(plain));
    }

    #[test]
    fn other_schemas_and_names_that_a_server_folds_are_refused() {
        for bad in [
            "DELETE FROM journal.kw_states",
            "SELECT a FROM t, journal.kw_states",
            "SELECT a FROM t JOIN u ON t.a = u.a, journal.kw_states",
            "SELECT a FROM (SELECT b AS a FROM journal.kw_states) x",
            "WITH x AS (SELECT a FROM journal.kw_states) SELECT a FROM x",
            "INSERT INTO journal.kw_states (a) VALUES (1)",
            "UPDATE journal.kw_states SET a = 1",
            "CREATE TABLE journal.t (a INT)",
            "CREATE INDEX i ON journal.t (a)",
            "DROP TABLE t, journal.kw_states",
            "ALTER TABLE journal.t ADD COLUMN a INT",
            "SELECT journal.f(1)",
            "SELECT journal.t.a FROM t",
            "SELECT a FROM \u{212a}ubewitness_receipts",
        ] {
            for dialect in SERVERS {
                assert!(render_statement(bad, dialect).is_err(), "{dialect:?}: {bad}");
            }
        }
        assert!(render_statement("SELECT a FROM main.t", SqlDialect::Sqlite).is_ok());
        assert!(render_statement("SELECT a FROM other.t", SqlDialect::Sqlite).is_err());
    }

    #[test]
    fn a_deep_or_long_statement_is_refused_and_harms_no_stack() {
        for dialect in [SqlDialect::Sqlite, SqlDialect::Postgres, SqlDialect::Mysql] {
            let sum = |terms: usize| format!("SELECT {}1", "1+".repeat(terms));
            assert!(render_statement(&sum(1500), dialect).is_ok());
            assert!(render_statement(&sum(20_000), dialect).unwrap_err().to_string().contains("4096"));
            let nested = |depth: usize| format!("SELECT {}1{}", "(".repeat(depth), ")".repeat(depth));
            assert!(
                render_statement(&nested(5), dialect).is_ok()
                    && render_statement(&nested(1000), dialect).is_err()
            );
        }
    }

    #[test]
    fn a_statement_is_parsed_once_and_few_are_remembered() {
        let statements = RenderedStatements::default();
        let text = |number: usize| format!("DELETE FROM t WHERE a = {number}");
        let first = statements.render_cached(&text(0), SqlDialect::Sqlite).unwrap();
        assert!(Arc::ptr_eq(&first, &statements.render_cached(&text(0), SqlDialect::Sqlite).unwrap()));
        for number in 0..3 * REMEMBERED {
            statements.render_cached(&text(number), SqlDialect::Sqlite).unwrap();
        }
        assert!(statements.0.lock().unwrap().len() <= REMEMBERED);
    }
}
