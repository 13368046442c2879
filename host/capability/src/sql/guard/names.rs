//! Checks names with a dot, on servers: `table.column` is allowed, and a schema before a name is refused
//! everywhere. The tree is checked first ([`rendered`](super::rendered)); this module finds names that its
//! visitor does not reach, such as types, operators, and references in DDL.

use kubewitness_core::ports::GrantError;

use super::invalid_statement;
use super::tokens::{SqlToken, TokenKind};

/// Words that may precede `table.column`.
const BEFORE_COLUMN: [&str; 37] = [
    "SELECT",
    "DISTINCT",
    "ALL",
    "ANY",
    "SOME",
    "WHERE",
    "AND",
    "OR",
    "XOR",
    "NOT",
    "ON",
    "BY",
    "SET",
    "CASE",
    "WHEN",
    "THEN",
    "ELSE",
    "HAVING",
    "RETURNING",
    "BETWEEN",
    "IN",
    "LIKE",
    "ILIKE",
    "SIMILAR",
    "REGEXP",
    "RLIKE",
    "IS",
    "FROM",
    "DIV",
    "MOD",
    "VALUES",
    "LIMIT",
    "OFFSET",
    "ESCAPE",
    "INTERVAL",
    "ZONE",
    "FOR",
];

pub fn check(tokens: &[SqlToken<'_>]) -> Result<(), GrantError> {
    let is_first = |words: &[&str]| tokens.first().is_some_and(|first| first.is_any(words));
    let selects = tokens.iter().any(|token| token.is_word("SELECT"));
    let defines = is_first(&["ALTER", "DROP"]) || is_first(&["CREATE"]) && !selects;
    if is_first(&["DELETE"]) && !tokens.get(1).is_some_and(|next| next.is_word("FROM")) {
        return invalid_statement("DELETE names one table: DELETE FROM t");
    }
    for (at, token) in tokens.iter().enumerate() {
        if !token.is_symbol(b'.') {
            continue;
        }
        let name = |place: Option<usize>| {
            place
                .and_then(|place| tokens.get(place))
                .is_some_and(|token| matches!(token.kind, TokenKind::Word | TokenKind::Quoted))
        };
        let is_symbol = |place: usize, symbols: &[u8]| {
            tokens.get(place).is_some_and(|token| symbols.iter().any(|symbol| token.is_symbol(*symbol)))
        };
        let is_column = name(at.checked_sub(1)) && (name(Some(at + 1)) || is_symbol(at + 1, b"*"));
        // A third part, a call, or a typed literal.
        let goes_on =
            is_symbol(at + 2, b".(") || tokens.get(at + 2).is_some_and(|next| next.kind == TokenKind::Quoted);
        let is_allowed = match at.checked_sub(2).and_then(|place| tokens.get(place)) {
            None => false,
            Some(before) => match before.kind {
                TokenKind::Word => before.is_any(&BEFORE_COLUMN),
                TokenKind::Symbol(symbol) => !matches!(symbol, b'.' | b':'),
                TokenKind::Number | TokenKind::Parameter(_) | TokenKind::Quoted => false,
            },
        };
        if defines || !is_column || goes_on || !is_allowed {
            return refuse_dotted_name();
        }
    }
    Ok(())
}

fn refuse_dotted_name() -> Result<(), GrantError> {
    invalid_statement(
        "a name with a dot is `table.column`: what was granted is one schema alone, and no schema stands before the names of \
         its tables, types and functions",
    )
}

#[cfg(test)]
mod tests {
    use kubewitness_core::ports::{GrantError, SqlDialect};

    use super::super::rendered::render_statement;
    use super::super::{StatementPurpose, check as judge};

    fn judged(statement: &str, purpose: StatementPurpose, dialect: SqlDialect) -> Result<(), GrantError> {
        let text = render_statement(statement, dialect)?;
        judge(&text, purpose, dialect).map(drop)
    }

    #[test]
    fn no_schema_stands_before_a_name_wherever_it_stands() {
        for bad in [
            "SELECT * FROM t UNION TABLE other.u",
            "WITH x AS (TABLE \"other\".\"u\") SELECT * FROM x",
            "SELECT * FROM t AS other UNION TABLE other.u",
            "SELECT * FROM LATERAL other.f(1)",
            "SELECT * FROM t AS other, LATERAL other.f(1)",
            "SELECT a OPERATOR(other.+) b FROM t",
            "SELECT a::other.ty FROM t",
            "SELECT CAST(a AS other.ty) FROM t",
            "SELECT a COLLATE other.c FROM t",
            "SELECT other.t.* FROM t",
            "SELECT other.ty 'x'",
            "SELECT nextval('other.s')",
            "SELECT a::regclass FROM t",
        ] {
            assert!(judged(bad, StatementPurpose::Query, SqlDialect::Postgres).is_err(), "{bad}");
        }
        for bad in [
            "ALTER TABLE t RENAME TO other.t",
            "DROP INDEX i ON other.t",
            "DELETE other.t FROM t",
            "DELETE a, other.b FROM a JOIN b ON a.x = b.x",
            "CREATE TABLE t (a INT REFERENCES other.u(a))",
            "CREATE TABLE t LIKE other.u",
            "CREATE TABLE t (a INT) INHERITS (other.u)",
            "CREATE INDEX other.i ON t (a)",
            "CREATE VIEW v AS TABLE other.u",
            "INSERT INTO t TABLE other.u",
            "INSERT INTO t (a) VALUES (1) ON DUPLICATE KEY UPDATE other.t.a = 1",
            "UPDATE t SET other.t.a = 1",
        ] {
            for dialect in [SqlDialect::Postgres, SqlDialect::Mysql] {
                assert!(judged(bad, StatementPurpose::Execute, dialect).is_err(), "{dialect:?}: {bad}");
            }
        }
    }

    #[test]
    fn columns_of_tables_are_named_as_ever() {
        for good in [
            "SELECT t.a, count(t.b), t.* FROM t JOIN u ON t.a = u.a AND NOT u.b WHERE t.c IN (u.d, 1) ORDER BY t.a, u.b DESC",
            "SELECT CASE WHEN t.a > 1 THEN t.b ELSE t.c END FROM t GROUP BY t.a HAVING max(t.a) > -t.b",
            "WITH x AS (SELECT t.a FROM t) SELECT x.a FROM x WHERE x.a BETWEEN x.a AND x.a + 1",
        ] {
            for dialect in [SqlDialect::Postgres, SqlDialect::Mysql] {
                assert_eq!(judged(good, StatementPurpose::Query, dialect), Ok(()), "{dialect:?}: {good}");
            }
        }
        for (good, dialect) in [
            (
                "INSERT INTO t (a) VALUES (?) ON CONFLICT (a) DO UPDATE SET a = excluded.a WHERE t.a < excluded.a",
                SqlDialect::Postgres,
            ),
            ("UPDATE t SET a = u.a FROM u WHERE t.b = u.b", SqlDialect::Postgres),
            ("UPDATE a JOIN b ON a.x = b.x SET a.y = b.y WHERE b.z = 2", SqlDialect::Mysql),
            ("CREATE VIEW v AS SELECT t.a FROM t", SqlDialect::Postgres),
            (
                "CREATE VIEW v AS SELECT DATE_ADD(DATE '1970-01-01', INTERVAL t.a DAY) AS b FROM t",
                SqlDialect::Mysql,
            ),
        ] {
            assert_eq!(judged(good, StatementPurpose::Execute, dialect), Ok(()), "{dialect:?}: {good}");
        }
    }
}
