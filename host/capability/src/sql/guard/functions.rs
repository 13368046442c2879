//! The functions that a plugin's statement may call, by database.
//!
//! A deny list was rejected: it would have to know each function of each version and extension of three
//! servers, and a new function would be allowed on the day it is installed. So this is an allow list:
//! functions of their arguments alone, of the clock and of random numbers, and the key of a row that was just
//! inserted. By definition, none of them reads a file, a setting or another table, takes a lock, waits, or
//! runs a statement from a text. Functions of sequences are excluded: they accept any text as a name, so also
//! that of a sequence elsewhere. A column's default may use a sequence.
//!
//! Functions are identified by name. If the database's owner defines a function with such a name, that one is
//! called instead.

use kubewitness_core::ports::SqlDialect;

/// Functions that every database has.
const EVERYWHERE: &str = "\
    abs acos asin atan atan2 avg cast ceil ceiling coalesce concat concat_ws cos count cume_dist current_date \
    current_time current_timestamp degrees dense_rank exp extract first_value floor grouping lag last_value lead \
    length ln log lower ltrim max min mod nth_value ntile nullif octet_length percent_rank pi position pow power \
    radians rank replace round row_number rtrim sign sin sqrt substr substring sum tan trim upper";

const SQLITE: &str = "\
    char date datetime glob group_concat hex ifnull iif instr json jsonb json_array json_array_length \
    json_each json_extract json_group_array json_group_object json_insert json_object json_patch json_quote \
    json_remove json_replace json_set json_tree json_type json_valid julianday last_insert_rowid like likelihood \
    likely log10 log2 quote random strftime string_agg time timediff total trunc typeof unhex \
    unicode unixepoch unlikely";

const POSTGRES: &str = "\
    age any_value array_agg array_append array_cat array_length array_position array_prepend array_remove \
    array_to_string ascii bit_and bit_or bool_and bool_or btrim cardinality cbrt character_length char_length \
    chr clock_timestamp corr date_bin date_part date_trunc decode div encode every gen_random_uuid \
    generate_series greatest initcap isfinite jsonb_agg jsonb_array_elements jsonb_array_elements_text \
    jsonb_array_length jsonb_build_array jsonb_build_object jsonb_each jsonb_each_text jsonb_extract_path \
    jsonb_extract_path_text jsonb_insert jsonb_object_agg jsonb_object_keys jsonb_path_exists jsonb_path_match \
    jsonb_path_query jsonb_path_query_array jsonb_path_query_first jsonb_pretty jsonb_set jsonb_strip_nulls \
    jsonb_typeof json_agg json_array_elements json_array_elements_text json_array_length json_build_array \
    json_build_object json_each json_each_text json_extract_path json_extract_path_text json_object_agg \
    json_object_keys json_typeof justify_days justify_hours justify_interval least left localtime \
    localtimestamp make_date make_interval make_time make_timestamp make_timestamptz md5 mode now \
    num_nonnulls num_nulls percentile_cont percentile_disc random regexp_count regexp_instr regexp_like \
    regexp_match regexp_matches regexp_replace regexp_split_to_array regexp_split_to_table regexp_substr reverse \
    right row row_to_json scale sha224 sha256 sha384 sha512 split_part starts_with statement_timestamp \
    stddev stddev_pop stddev_samp string_agg string_to_array strpos to_char to_date to_hex to_json to_jsonb \
    to_number to_timestamp transaction_timestamp translate trunc unnest variance var_pop var_samp width_bucket";

const MYSQL: &str = "\
    adddate addtime any_value ascii bin bin_to_uuid bit_and bit_count bit_length bit_or bit_xor char \
    character_length char_length conv convert convert_tz crc32 curdate curtime date datediff date_add \
    date_format date_sub day dayname dayofmonth dayofweek dayofyear elt field find_in_set from_base64 from_days \
    from_unixtime greatest group_concat hex hour if ifnull instr isnull json_array json_arrayagg \
    json_array_append json_array_insert json_contains json_contains_path json_depth json_extract json_insert \
    json_keys json_length json_merge_patch json_merge_preserve json_object json_objectagg json_overlaps \
    json_quote json_remove json_replace json_search json_set json_type json_unquote json_valid json_value \
    last_day last_insert_id least left localtime localtimestamp locate log10 log2 makedate maketime md5 microsecond mid \
    minute month monthname now ord period_add period_diff quarter quote rand regexp_instr regexp_like \
    regexp_replace regexp_substr reverse right second sec_to_time sha sha1 sha2 stddev stddev_pop \
    stddev_samp strcmp str_to_date subdate substring_index subtime sysdate time timediff timestamp timestampadd \
    timestampdiff time_format time_to_sec to_base64 to_days to_seconds truncate unhex unix_timestamp utc_date \
    utc_time utc_timestamp uuid uuid_to_bin value values variance var_pop var_samp week weekday weekofyear year \
    yearweek";

/// Functions that only this database has.
fn own_functions(dialect: SqlDialect) -> &'static str {
    match dialect {
        SqlDialect::Sqlite => SQLITE,
        SqlDialect::Postgres => POSTGRES,
        SqlDialect::Mysql => MYSQL,
    }
}

pub fn is_allowed(name: &str, dialect: SqlDialect) -> bool {
    let allowed = EVERYWHERE.split(' ').chain(own_functions(dialect).split(' '));
    !name.is_empty() && allowed.into_iter().any(|allowed| name.eq_ignore_ascii_case(allowed))
}

#[cfg(test)]
mod tests {
    use kubewitness_harness::{GENERATED, reference};

    use super::super::rendered::render_statement;
    use super::*;

    const ALL: [(SqlDialect, &str); 3] = [
        (SqlDialect::Sqlite, "SQLite"),
        (SqlDialect::Postgres, "PostgreSQL"),
        (SqlDialect::Mysql, "MySQL and MariaDB"),
    ];

    #[test]
    fn the_reference_lists_the_functions_that_statements_may_call() {
        let list = |names: &str| {
            let mut names: Vec<_> = names.split(' ').collect();
            names.sort_unstable();
            let rows: Vec<_> = names.chunks(6).map(|row| row.join("  ")).collect();
            format!("```text\n{}\n```", rows.join("\n"))
        };
        let mut page = format!(
            "{GENERATED}# Functions in statements\n\nA [statement of a plugin](../how-to/databases.md#rules-for-statements) may \
             call these functions. Each depends on its arguments, the clock or chance, or tells the key of the last row. \
             Other names are refused, also of functions that somebody made in the database. A column counts by its default: \
             functions of sequences are refused.\n\n## On every database\n\n{}\n",
            list(EVERYWHERE)
        );
        for (dialect, title) in ALL {
            page += &format!("\n## {title}\n\n{}\n", list(own_functions(dialect)));
        }
        reference("sql-functions.md", &page);
    }

    /// Every place of a statement where a function can be called.
    const PLACES: &[&str] = &[
        "SELECT F(1)",
        "SELECT a AS b FROM t WHERE F(1) = 1",
        "SELECT a FROM t ORDER BY F(1)",
        "SELECT a FROM t GROUP BY F(1)",
        "SELECT a FROM t GROUP BY a HAVING F(1) > 0",
        "SELECT a FROM t LIMIT F(1)",
        "SELECT a FROM t JOIN u ON F(1) = t.a",
        "SELECT CASE WHEN F(1) THEN 1 ELSE F(1) END FROM t",
        "SELECT a FROM (SELECT F(1) AS a) x",
        "SELECT a FROM t WHERE a IN (SELECT F(1))",
        "SELECT 1 UNION SELECT F(1)",
        "WITH x AS (SELECT F(1) AS a) SELECT a FROM x",
        "SELECT sum(F(1)) FROM t",
        "SELECT sum(a) OVER (PARTITION BY F(1)) FROM t",
        "SELECT sum(a) OVER (ORDER BY F(1)) FROM t",
        "SELECT CAST(F(1) AS CHAR) FROM t",
        "SELECT a FROM t WHERE a BETWEEN F(1) AND 2",
        "SELECT a FROM t WHERE a LIKE F(1)",
        "SELECT EXISTS (SELECT F(1))",
        "SELECT -F(1)",
        "VALUES (F(1))",
        "INSERT INTO t (a) VALUES (F(1))",
        "INSERT INTO t (a) SELECT F(1)",
        "UPDATE t SET a = F(1)",
        "UPDATE t SET a = 1 WHERE F(1) = 1",
        "DELETE FROM t WHERE F(1) = 1",
        "CREATE VIEW v AS SELECT F(1) AS a",
        "CREATE TABLE t (a INT CHECK (F(1) = 1))",
        "CREATE TABLE t (a INT DEFAULT (F(1)))",
        "CREATE TABLE t (a INT, CONSTRAINT c CHECK (F(1) > 0))",
        "ALTER TABLE t ADD COLUMN a INT DEFAULT (F(1))",
        "SELECT a FROM t WHERE trim(F(1)) = ''",
        "SELECT extract(YEAR FROM F(1))",
        "SELECT substring(F(1) FROM 1 FOR 2)",
        "SELECT position('a' IN F(1))",
        "SELECT (F(1))",
    ];

    const MORE: &[(SqlDialect, &str)] = &[
        (SqlDialect::Postgres, "SELECT a FROM F(1)"),
        (SqlDialect::Postgres, "SELECT a FROM t, LATERAL F(1)"),
        (SqlDialect::Postgres, "SELECT a FROM F(1) WITH ORDINALITY"),
        (SqlDialect::Postgres, "SELECT sum(a) FILTER (WHERE F(1) = 1) FROM t"),
        (SqlDialect::Postgres, "SELECT string_agg(a, ',' ORDER BY F(1)) FROM t"),
        (SqlDialect::Postgres, "SELECT ARRAY[F(1)]"),
        (SqlDialect::Postgres, "SELECT (ARRAY[1])[F(1)]"),
        (SqlDialect::Postgres, "SELECT F(1)::text"),
        (SqlDialect::Postgres, "SELECT F(1) AT TIME ZONE 'UTC'"),
        (SqlDialect::Postgres, "SELECT \"F\"(1)"),
        (SqlDialect::Postgres, "SELECT DISTINCT ON (F(1)) a FROM t"),
        (SqlDialect::Postgres, "INSERT INTO t (a) VALUES (1) ON CONFLICT (a) DO UPDATE SET a = F(1)"),
        (
            SqlDialect::Postgres,
            "INSERT INTO t (a) VALUES (1) ON CONFLICT (a) DO UPDATE SET a = 1 WHERE F(1) = 1",
        ),
        (SqlDialect::Postgres, "INSERT INTO t (a) VALUES (1) RETURNING F(1)"),
        (SqlDialect::Postgres, "UPDATE t SET a = 1 FROM u WHERE u.a = F(1)"),
        (SqlDialect::Postgres, "CREATE INDEX i ON t (F(a))"),
        (SqlDialect::Postgres, "CREATE INDEX i ON t (a) WHERE F(1) = 1"),
        (SqlDialect::Postgres, "CREATE TABLE t (a INT, b INT GENERATED ALWAYS AS (F(a)) STORED)"),
        (SqlDialect::Postgres, "ALTER TABLE t ALTER COLUMN a SET DEFAULT F(1)"),
        (SqlDialect::Postgres, "ALTER TABLE t ALTER COLUMN a TYPE INT USING F(a)"),
        (SqlDialect::Postgres, "ALTER TABLE t ADD CONSTRAINT c CHECK (F(1) > 0)"),
        (SqlDialect::Sqlite, "SELECT a FROM F(1)"),
        (SqlDialect::Sqlite, "SELECT a FROM t, F(t.a)"),
        (SqlDialect::Sqlite, "INSERT INTO t (a) VALUES (1) ON CONFLICT (a) DO UPDATE SET a = F(1)"),
        (SqlDialect::Sqlite, "INSERT INTO t (a) VALUES (1) RETURNING F(1)"),
        (SqlDialect::Sqlite, "CREATE INDEX i ON t (F(a))"),
        (SqlDialect::Mysql, "INSERT INTO t (a) VALUES (1) ON DUPLICATE KEY UPDATE a = F(1)"),
        (SqlDialect::Mysql, "SELECT DATE_ADD(F(1), INTERVAL F(1) DAY)"),
        (SqlDialect::Mysql, "SELECT a FROM t WHERE a REGEXP F(1)"),
        (SqlDialect::Mysql, "SELECT `F`(1)"),
        (SqlDialect::Mysql, "SELECT F (1)"),
        (SqlDialect::Mysql, "SELECT group_concat(a ORDER BY F(1)) FROM t"),
        (SqlDialect::Mysql, "UPDATE a JOIN b ON a.x = F(1) SET a.y = 1"),
    ];

    /// With a function of this name. What the database's grammar lacks here can't be read, and is refused for that.
    fn refused(dialect: SqlDialect, place: &str, name: &str) -> Option<String> {
        let statement = place.replace("F(", &format!("{name}(")).replace("F (", &format!("{name} ("));
        let statement =
            statement.replace("\"F\"", &format!("\"{name}\"")).replace("`F`", &format!("`{name}`"));
        render_statement(&statement, dialect).err().map(|error| error.to_string())
    }

    #[test]
    fn a_function_that_is_not_listed_is_refused_wherever_it_is_called() {
        let everywhere = PLACES.iter().flat_map(|place| ALL.map(|(dialect, _)| (dialect, *place)));
        let mut judged = 0;
        for (dialect, place) in everywhere.chain(MORE.iter().copied()) {
            let why = refused(dialect, place, "evil").unwrap_or_else(|| panic!("{dialect:?}: {place}"));
            if why.contains("can't be read") {
                continue;
            }
            assert!(why.contains("the function evil is refused"), "{dialect:?}: {place}: {why}");
            judged += 1;
        }
        let expected = PLACES.len() * ALL.len() + MORE.len();
        assert!(judged * 10 > expected * 9, "only {judged} of {expected} could be read");
    }

    #[test]
    fn the_beginning_of_a_column_in_an_index_of_mysql_is_no_call() {
        for good in [
            "CREATE INDEX i ON t (observed_at(24), uid)",
            "CREATE TABLE t (a TEXT NOT NULL, KEY i (a(10)))",
            "CREATE TABLE t (a TEXT NOT NULL, UNIQUE KEY i (a(10)), PRIMARY KEY (a(20)))",
            "ALTER TABLE t ADD INDEX i (`a`(10))",
        ] {
            assert!(
                render_statement(good, SqlDialect::Mysql).is_ok(),
                "{good}: {:?}",
                render_statement(good, SqlDialect::Mysql)
            );
        }
        for bad in
            ["CREATE INDEX i ON t (evil(a))", "CREATE INDEX i ON t ((evil(24)))", "SELECT evil(24) FROM t"]
        {
            assert!(render_statement(bad, SqlDialect::Mysql).is_err(), "{bad}");
        }
        assert!(render_statement("CREATE INDEX i ON t (evil(24))", SqlDialect::Postgres).is_err());
    }

    #[test]
    fn no_sequence_is_counted_and_a_function_in_quotes_is_the_database_s_own() {
        for bad in [
            "SELECT nextval('s')",
            "SELECT nextval(('other.s'))",
            "SELECT setval('other' || '.s', 1)",
            "SELECT NEXT VALUE FOR other.s",
            "SELECT \"Lower\"(a) FROM t",
        ] {
            assert!(render_statement(bad, SqlDialect::Postgres).is_err(), "{bad}");
        }
        for bad in ["SELECT setval(otherdb.s, 1)", "SELECT NEXT VALUE FOR otherdb.s"] {
            assert!(render_statement(bad, SqlDialect::Mysql).is_err(), "{bad}");
        }
        assert!(render_statement("SELECT \"lower\"(a) FROM t", SqlDialect::Postgres).is_ok());
    }

    #[test]
    fn what_reads_files_waits_locks_or_runs_texts_is_not_listed() {
        let refused = "\
            load_extension readfile writefile edit fts3_tokenizer zeroblob randomblob printf format pg_sleep \
            pg_read_file pg_notify pg_advisory_lock lo_import dblink set_config current_setting query_to_xml \
            ts_stat ts_rewrite connectby crosstab xpath_table repeat lpad rpad inet_server_addr version \
            current_user load_file sleep benchmark get_lock release_lock master_pos_wait sys_exec space user \
            database connection_id row_count nextval currval setval lastval changes";
        for name in refused.split(' ') {
            for (dialect, _) in ALL {
                assert!(!is_allowed(name, dialect), "{dialect:?}: {name}");
            }
        }
    }
}
