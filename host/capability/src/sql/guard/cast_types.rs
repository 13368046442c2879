//! The types that a plugin's statement may convert a value to, by database.
//!
//! PostgreSQL has types whose values are looked up by name in any schema: `'other.t'::regclass` tells whether
//! the table exists there. [`rules`](super::rules) lists these, and refuses their names wherever they stand. A
//! list of allowed types was rejected: databases have types of their own, such as enums, domains, vectors and
//! shapes. So this module refuses what it sees in the tree alone: looked-up types, and a schema before a
//! type's name.
//!
//! MySQL converts values to few types, which are words of its grammar. Columns of `JSON_TABLE` may have any
//! type of a column there. SQLite is not limited: a type is only a choice between numbers, texts and blobs.

use kubewitness_core::ports::SqlDialect;
use sqlparser::ast::{ArrayElemTypeDef, DataType, Expr, JsonTableColumn, TableFactor};

use super::rules::rules_of;

/// The first words of the types in casts of MySQL and MariaDB.
const MYSQL: &str = "\
    bigint binary char character date datetime dec decimal double float geometrycollection inet4 inet6 int integer json \
    linestring multilinestring multipoint multipolygon nchar point polygon real signed time timestamp unsigned uuid \
    varbinary varchar year";

/// Expects that the expression converts nothing to a refused type.
pub fn check_expression(expression: &Expr, dialect: SqlDialect) -> Result<(), String> {
    let data_type = match expression {
        Expr::Cast { data_type, .. } | Expr::Convert { data_type: Some(data_type), .. } => data_type,
        Expr::TypedString(literal) => &literal.data_type,
        _ => return Ok(()),
    };
    match dialect {
        SqlDialect::Sqlite => Ok(()),
        SqlDialect::Postgres => check_postgres(data_type),
        SqlDialect::Mysql => check_mysql(data_type),
    }
}

/// Expects the same of the columns that a function in `FROM` makes on PostgreSQL.
pub fn check_table(table: &TableFactor, dialect: SqlDialect) -> Result<(), String> {
    if dialect != SqlDialect::Postgres {
        return Ok(());
    }
    let alias = match table {
        TableFactor::Table { alias, .. }
        | TableFactor::Derived { alias, .. }
        | TableFactor::Function { alias, .. }
        | TableFactor::UNNEST { alias, .. } => alias,
        TableFactor::JsonTable { columns, alias, .. } => {
            columns.iter().try_for_each(check_json_column)?;
            alias
        }
        _ => return Ok(()),
    };
    let columns = alias.iter().flat_map(|alias| &alias.columns);
    columns.filter_map(|column| column.data_type.as_ref()).try_for_each(check_postgres)
}

fn check_json_column(column: &JsonTableColumn) -> Result<(), String> {
    match column {
        JsonTableColumn::Named(column) => check_postgres(&column.r#type),
        JsonTableColumn::ForOrdinality(_) => Ok(()),
        JsonTableColumn::Nested(nested) => nested.columns.iter().try_for_each(check_json_column),
    }
}

fn check_postgres(data_type: &DataType) -> Result<(), String> {
    let looks_up = match data_type {
        DataType::Array(
            ArrayElemTypeDef::SquareBracket(element, _) | ArrayElemTypeDef::Qualified(element, _),
        ) => return check_postgres(element),
        DataType::Collate(collated, _) => return check_postgres(collated),
        DataType::Regclass => true,
        DataType::Custom(name, _) => match name.0.as_slice() {
            [part] => part.as_ident().is_none_or(|part| rules_of(SqlDialect::Postgres).looks_up(&part.value)),
            _ => return Err(format!("the type {data_type} is refused: write its name without a schema")),
        },
        _ => false,
    };
    match looks_up {
        true => Err(format!(
            "the type {data_type} is refused: its values name tables, functions or roles of any schema"
        )),
        false => Ok(()),
    }
}

fn check_mysql(data_type: &DataType) -> Result<(), String> {
    let text = data_type.to_string();
    let is_listed = MYSQL.split(' ').any(|listed| first_word(&text).eq_ignore_ascii_case(listed));
    match is_listed {
        true => Ok(()),
        false => Err(format!(
            "the type {text} is refused: MySQL and MariaDB convert a value to a type such as CHAR, SIGNED, DECIMAL or DATE"
        )),
    }
}

fn first_word(text: &str) -> &str {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::super::rendered::render_statement;
    use super::super::{StatementPurpose, check};
    use super::*;

    fn judged(statement: &str, purpose: StatementPurpose, dialect: SqlDialect) -> Result<(), String> {
        let text = render_statement(statement, dialect).map_err(|error| error.to_string())?;
        check(&text, purpose, dialect).map(drop).map_err(|error| error.to_string())
    }

    #[test]
    fn no_value_is_looked_up_as_a_name_however_its_type_is_written() {
        for of in [
            "regclass",
            "\"regclass\"",
            "\"regclass\"[]",
            "_regclass",
            "\"_regclass\"",
            "regproc",
            "\"regprocedure\"",
            "regoper",
            "\"regoperator\"",
            "\"regtype\"",
            "\"regnamespace\"",
            "\"regrole\"",
            "regcollation",
            "regconfig",
            "regdictionary",
            "aclitem",
            "\"aclitem\"",
            "_aclitem",
            "aclitem[]",
            "other.phase",
            "\"other\".\"phase\"",
            "other.phase[]",
        ] {
            for place in [
                "SELECT 'other.t'::TYPE",
                "SELECT CAST('other.t' AS TYPE)",
                "SELECT a FROM t WHERE b = CAST(? AS TYPE)::text",
                "SELECT (ARRAY['other.t'])::TYPE",
                "SELECT x.a FROM JSON_TABLE('[1]', '$[*]' COLUMNS (a TYPE PATH '$')) AS x",
                "INSERT INTO t (a) VALUES (CAST(? AS TYPE))",
                "CREATE TABLE u (a text DEFAULT 'other.t'::TYPE)",
                "CREATE VIEW v AS SELECT a::TYPE FROM t",
            ] {
                let purpose = match place.starts_with("SELECT") {
                    true => StatementPurpose::Query,
                    false => StatementPurpose::Execute,
                };
                let statement = place.replace("TYPE", of);
                assert!(judged(&statement, purpose, SqlDialect::Postgres).is_err(), "{statement}");
            }
        }
    }

    #[test]
    fn a_column_is_not_of_a_type_whose_values_are_looked_up() {
        for of in [
            "regclass",
            "\"regclass\"",
            "_regclass",
            "\"_regproc\"[]",
            "\"RegType\"",
            "aclitem",
            "\"_aclitem\"",
        ] {
            for place in [
                "CREATE TABLE u (a TYPE)",
                "ALTER TABLE t ADD COLUMN a TYPE",
                "ALTER TABLE t ALTER COLUMN a TYPE TYPE",
            ] {
                let statement =
                    place.replace("a TYPE", &format!("a {of}")).replace("TYPE TYPE", &format!("TYPE {of}"));
                assert!(
                    judged(&statement, StatementPurpose::Execute, SqlDialect::Postgres).is_err(),
                    "{statement}"
                );
            }
        }
        let own = "CREATE TABLE u (a citext, b vector(3), c phase, d ltree)";
        assert_eq!(judged(own, StatementPurpose::Execute, SqlDialect::Postgres), Ok(()));
        let text = "SELECT 'regclass' FROM t WHERE a = '_regclass'";
        assert_eq!(judged(text, StatementPurpose::Query, SqlDialect::Postgres), Ok(()));
    }

    #[test]
    fn values_are_converted_to_usual_types_and_to_the_database_s_own() {
        for (dialect, types) in [
            (
                SqlDialect::Postgres,
                &[
                    "text",
                    "\"text\"",
                    "TEXT[]",
                    "varchar(20)",
                    "character varying(20)",
                    "numeric(10, 2)",
                    "double precision",
                    "timestamp with time zone",
                    "timestamptz",
                    "interval",
                    "jsonb",
                    "uuid",
                    "bytea",
                    "int8[]",
                    "inet",
                    "bit(3)",
                    "oid",
                    "phase",
                    "phase[]",
                    "\"Phase\"",
                    "region",
                    "citext",
                    "vector(3)",
                    "geometry(Point, 4326)",
                ][..],
            ),
            (
                SqlDialect::Mysql,
                &[
                    "SIGNED",
                    "UNSIGNED INTEGER",
                    "CHAR(10)",
                    "DECIMAL(10, 2)",
                    "DATETIME(6)",
                    "JSON",
                    "BINARY",
                    "DOUBLE",
                    "POINT",
                ],
            ),
            (SqlDialect::Sqlite, &["TEXT", "anything", "BIGINT"]),
        ] {
            for of in types {
                let statement = format!("SELECT CAST(a AS {of}) FROM t");
                assert_eq!(judged(&statement, StatementPurpose::Query, dialect), Ok(()), "{statement}");
            }
        }
        let own = "UPDATE t SET a = CAST(CAST(? AS text) AS phase) WHERE b = ?::text::phase";
        assert_eq!(judged(own, StatementPurpose::Execute, SqlDialect::Postgres), Ok(()));
        let refused = judged("SELECT CAST(a AS TEXT) FROM t", StatementPurpose::Query, SqlDialect::Mysql);
        assert!(refused.unwrap_err().contains("MySQL"));
    }

    #[test]
    fn columns_of_a_json_table_of_mysql_have_any_type() {
        let query = "SELECT x.a FROM JSON_TABLE('[1]', '$[*]' COLUMNS (a TEXT PATH '$', b TINYINT PATH '$', \
                     c BOOLEAN PATH '$')) AS x";
        assert_eq!(judged(query, StatementPurpose::Query, SqlDialect::Mysql), Ok(()));
    }
}
