//! The types that a plugin's statement may convert a value to, by database.
//!
//! PostgreSQL has types whose values are looked up by name in any schema: `'other.t'::regclass` tells whether
//! the table exists there. A deny list was rejected: an extension may add such types, and each type has a
//! second name for its arrays. So this is an allow list, of types whose values mean the same in every
//! database. SQLite is not limited: there, a type is only a choice between numbers, texts and blobs.
//!
//! Columns of tables may have other types, such as those of extensions. [`rules`](super::rules) refuses the
//! names of looked-up types everywhere.

use kubewitness_core::ports::SqlDialect;
use sqlparser::ast::{ArrayElemTypeDef, DataType, Expr, JsonTableColumn, TableFactor};

/// The first words of the types. An array is judged by its elements.
const POSTGRES: &str = "\
    bigint bit bool boolean box bpchar bytea char character cidr circle citext date datemultirange daterange dec \
    decimal double float float4 float8 hstore inet int int2 int4 int4multirange int4range int8 int8multirange \
    int8range integer interval json jsonb jsonpath line lseg ltree macaddr macaddr8 money numeric nummultirange \
    numrange path point polygon real smallint text time timestamp timestamptz timetz tsmultirange tsquery tsrange \
    tstzmultirange tstzrange tsvector uuid varbit varchar";

const MYSQL: &str = "\
    bigint binary char character date datetime dec decimal double float inet4 inet6 int integer json nchar real \
    signed time timestamp unsigned uuid varbinary varchar year";

/// Expects that the expression converts nothing to a type that is not listed.
pub fn check_expression(expression: &Expr, dialect: SqlDialect) -> Result<(), String> {
    match expression {
        Expr::Cast { data_type, .. } | Expr::Convert { data_type: Some(data_type), .. } => {
            check_type(data_type, dialect)
        }
        Expr::TypedString(literal) => check_type(&literal.data_type, dialect),
        _ => Ok(()),
    }
}

/// Expects the same of the columns that a function in `FROM` makes.
pub fn check_table(table: &TableFactor, dialect: SqlDialect) -> Result<(), String> {
    let alias = match table {
        TableFactor::Table { alias, .. }
        | TableFactor::Derived { alias, .. }
        | TableFactor::Function { alias, .. }
        | TableFactor::UNNEST { alias, .. } => alias,
        TableFactor::JsonTable { columns, alias, .. } => {
            columns.iter().try_for_each(|column| check_json_column(column, dialect))?;
            alias
        }
        _ => return Ok(()),
    };
    let columns = alias.iter().flat_map(|alias| &alias.columns);
    columns.filter_map(|column| column.data_type.as_ref()).try_for_each(|of| check_type(of, dialect))
}

fn check_json_column(column: &JsonTableColumn, dialect: SqlDialect) -> Result<(), String> {
    match column {
        JsonTableColumn::Named(column) => check_type(&column.r#type, dialect),
        JsonTableColumn::ForOrdinality(_) => Ok(()),
        JsonTableColumn::Nested(nested) => {
            nested.columns.iter().try_for_each(|column| check_json_column(column, dialect))
        }
    }
}

fn check_type(data_type: &DataType, dialect: SqlDialect) -> Result<(), String> {
    let listed = match dialect {
        SqlDialect::Sqlite => return Ok(()),
        SqlDialect::Postgres => POSTGRES,
        SqlDialect::Mysql => MYSQL,
    };
    match data_type {
        DataType::Array(ArrayElemTypeDef::SquareBracket(element, _)) => {
            return check_type(element, dialect);
        }
        DataType::Collate(collated, _) => return check_type(collated, dialect),
        _ => {}
    }
    let text = data_type.to_string();
    let is_listed = is_own_name(data_type, dialect)
        && listed.split(' ').any(|listed| first_word(&text).eq_ignore_ascii_case(listed));
    match is_listed {
        true => Ok(()),
        false => Err(format!(
            "the type {text} is refused: a value is converted to a type that every database has, such as text, bigint or date"
        )),
    }
}

/// Whether the type is named without a schema. PostgreSQL's own types are in lower case, also in quotes.
fn is_own_name(data_type: &DataType, dialect: SqlDialect) -> bool {
    let DataType::Custom(name, _) = data_type else { return true };
    let [part] = name.0.as_slice() else { return false };
    part.as_ident().is_some_and(|part| {
        part.quote_style.is_none()
            || dialect != SqlDialect::Postgres
            || part.value == part.value.to_lowercase()
    })
}

fn first_word(text: &str) -> &str {
    let text = text.trim_start_matches(['"', '`']);
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
            "oid",
            "aclitem",
            "a_row_of_another_table",
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
        for of in ["regclass", "\"regclass\"", "_regclass", "\"_regproc\"[]", "\"RegType\""] {
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
    fn usual_types_are_converted_to() {
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
                ],
            ),
            (SqlDialect::Sqlite, &["TEXT", "anything", "BIGINT"]),
        ] {
            for of in types {
                let statement = format!("SELECT CAST(a AS {of}) FROM t");
                assert_eq!(judged(&statement, StatementPurpose::Query, dialect), Ok(()), "{statement}");
            }
        }
        let refused = judged("SELECT a::\"Text\" FROM t", StatementPurpose::Query, SqlDialect::Postgres);
        assert!(refused.unwrap_err().contains("the type \"Text\" is refused"));
    }
}
