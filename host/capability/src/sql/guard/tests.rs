use super::rendered::render_statement;
use super::*;

fn execute(statement: &str) -> Result<usize, String> {
    execute_on(statement, SqlDialect::Sqlite)
}

fn execute_on(statement: &str, dialect: SqlDialect) -> Result<usize, String> {
    judged(statement, StatementPurpose::Execute, dialect, |checked| checked.arity)
}

/// The judgement of a plugin's statement.
fn judged<T>(
    statement: &str,
    purpose: StatementPurpose,
    dialect: SqlDialect,
    say: impl Fn(&GuardedStatement<'_>) -> T,
) -> Result<T, String> {
    check_text(statement).map_err(|error| error.to_string())?;
    let text = render_statement(statement, dialect).map_err(|error| error.to_string())?;
    check(&text, purpose, dialect).map(|checked| say(&checked)).map_err(|error| error.to_string())
}

#[test]
fn placeholders_are_counted_outside_strings_names_and_comments() {
    let text = r#"INSERT INTO t ("a?", [b?], `c?`) -- ? one
        VALUES (?, '?''?', /* ? */ ?);"#;
    assert_eq!(execute(text), Ok(2));
    assert_eq!(execute("UPDATE t SET a = ?2 WHERE b = ?1"), Ok(2));
    for bad in [
        "UPDATE t SET a = ? WHERE b = ?1",
        "UPDATE t SET a = :a",
        "UPDATE t SET a = ?0",
        "UPDATE t SET a = $1",
    ] {
        assert!(execute(bad).is_err(), "{bad}");
    }
}

#[test]
fn more_than_one_statement_is_refused_however_it_is_hidden() {
    for bad in
        ["DELETE FROM t; DELETE FROM u", "DELETE FROM t;/**/DELETE FROM u", "DELETE FROM t;--\nDROP TABLE u"]
    {
        assert!(execute(bad).is_err(), "{bad}");
    }
    assert!(execute("DELETE FROM t WHERE a = ';' ; ;").is_ok());
}

#[test]
fn what_leaves_the_transaction_or_the_file_is_refused() {
    for bad in [
        "ATTACH 'x' AS y",
        "attach 'x' as y",
        "/* a */ Attach 'x' AS y",
        "DETACH y",
        "PRAGMA journal_mode = DELETE",
        "VACUUM INTO '/tmp/x'",
        "BEGIN",
        "COMMIT",
        "END",
        "ROLLBACK",
        "SAVEPOINT a",
        "RELEASE a",
        "INSERT OR ROLLBACK INTO t VALUES (1)",
        "CREATE TABLE t (a UNIQUE ON CONFLICT ROLLBACK)",
        "CREATE TRIGGER x AFTER INSERT ON t BEGIN SELECT 1; END",
        "CREATE VIRTUAL TABLE x USING fts5(a)",
        "CREATE TEMP TABLE x (a)",
        "CREATE TABLE \"temp\".x (a)",
        "EXPLAIN DELETE FROM t",
        "",
        ";",
        "-- nothing",
        "DELETE FROM t WHERE a = 'x",
        "DELETE FROM t\0; ATTACH 'x' AS y",
        "DELETE FROM t WHERE \u{feff}ROLLBACK",
    ] {
        assert!(execute(bad).is_err(), "{bad}");
    }
}

#[test]
fn the_hosts_own_tables_cannot_be_named() {
    for bad in [
        "DELETE FROM kubewitness_receipts",
        "DELETE FROM \"Kubewitness_Receipts\"",
        "DELETE FROM 'kubewitness_receipts'",
        "DELETE FROM [kubewitness_receipts]",
        "ALTER TABLE t RENAME TO kubewitness_x",
    ] {
        assert!(execute(bad).is_err(), "{bad}");
    }
}

#[test]
fn the_journal_s_tables_cannot_be_named_on_a_server() {
    for bad in [
        "DELETE FROM kw_states",
        "DELETE FROM \"kw_states\"",
        "DELETE FROM KW_States",
        "UPDATE t SET a = (SELECT max(seq) FROM kw_states)",
        "INSERT INTO kw_journal (a) VALUES (?)",
        "CREATE TABLE t (a INT REFERENCES kw_states (seq))",
        "CREATE TABLE kw_own (a INT)",
        "CREATE INDEX i ON kw_states (seq)",
        "ALTER TABLE t RENAME TO kw_states",
        "DROP TABLE t, kw_states",
        "CREATE VIEW v AS SELECT seq FROM kw_states",
    ] {
        for dialect in SERVERS {
            let refused = execute_on(bad, dialect).unwrap_err();
            assert!(refused.contains("the journal's own"), "{dialect:?}: {bad}: {refused}");
        }
    }
    for good in ["UPDATE t SET a = 'kw_states'", "DELETE FROM my_kw_states", "DELETE FROM kwh"] {
        for dialect in SERVERS {
            assert_eq!(execute_on(good, dialect), Ok(0), "{dialect:?}: {good}");
        }
    }
    assert_eq!(
        execute_on("DELETE FROM kw_states", SqlDialect::Sqlite),
        Ok(0),
        "its journal has its own file"
    );
}

#[test]
fn queries_only_read_and_call_nothing_dangerous() {
    let query = |text| judged(text, StatementPurpose::Query, SqlDialect::Sqlite, |checked| checked.arity);
    assert_eq!(query("SELECT replace(a, ?, ?) FROM t"), Ok(2));
    for bad in [
        "DELETE FROM t RETURNING a",
        "SELECT load_extension('x')",
        "SELECT \"load_extension\" ('x')",
        "SELECT zeroblob(1000000000)",
        "SELECT * FROM pragma_database_list",
        "SELECT * FROM 'PRAGMA_database_list'",
    ] {
        assert!(query(bad).is_err(), "{bad}");
    }
}

#[test]
fn a_plain_insert_splits_into_head_tuple_and_tail() {
    let text = " \n INSERT INTO t (a, b) VALUES ( ?, ? ) ON CONFLICT (a) DO NOTHING;";
    let split = check(text, StatementPurpose::Execute, SqlDialect::Sqlite).unwrap().as_row_insert().unwrap();
    assert_eq!(split.head, "INSERT INTO t (a, b) VALUES ");
    assert_eq!(split.tuple, "( ?, ? )");
    assert_eq!(split.tail, " ON CONFLICT (a) DO NOTHING");
}

#[test]
fn an_insert_that_is_not_plain_stays_row_by_row() {
    for text in [
        "INSERT INTO t VALUES (?, 1)",
        "INSERT INTO t VALUES (?), (?)",
        "INSERT INTO t VALUES (?) RETURNING a",
        "INSERT INTO t SELECT ?",
        "INSERT INTO t VALUES (?) ON CONFLICT DO UPDATE SET a = ?",
        "INSERT INTO t VALUES (?1)",
        "INSERT INTO t VALUES (upper(?))",
        "UPDATE t SET a = ?",
    ] {
        assert_eq!(
            check(text, StatementPurpose::Execute, SqlDialect::Sqlite).unwrap().as_row_insert(),
            None,
            "{text}"
        );
    }
}

const SERVERS: [SqlDialect; 2] = [SqlDialect::Postgres, SqlDialect::Mysql];

#[test]
fn ordinary_statements_are_the_same_for_every_database() {
    for dialect in [SqlDialect::Sqlite, SqlDialect::Postgres, SqlDialect::Mysql] {
        for (good, arity) in [
            ("INSERT INTO t (a, b) VALUES (?, ?)", 2),
            ("UPDATE \"t\" SET \"change\" = ? WHERE a = 'it''s; -- not' AND b <> ?", 2),
            ("CREATE TABLE IF NOT EXISTS t (a BIGINT NOT NULL, UNIQUE (a))", 0),
            ("CREATE UNIQUE INDEX by_a ON t (a)", 0),
            ("CREATE VIEW v AS SELECT a FROM t", 0),
            ("DROP TABLE t -- gone\n", 0),
            ("WITH x AS (SELECT a FROM t) DELETE FROM t WHERE a IN (SELECT a FROM x)", 0),
        ] {
            assert_eq!(execute_on(good, dialect), Ok(arity), "{dialect:?}: {good}");
        }
    }
    assert_eq!(
        execute_on("INSERT INTO t (a) VALUES (?) ON CONFLICT DO NOTHING", SqlDialect::Postgres),
        Ok(1)
    );
    assert_eq!(execute_on("INSERT INTO t (a) VALUES (CAST(? AS text)::date)", SqlDialect::Postgres), Ok(1));
    assert_eq!(execute_on("REPLACE INTO `t` (a) VALUES (?)", SqlDialect::Mysql), Ok(1));
}

#[test]
fn servers_take_no_statement_of_settings_files_transactions_or_programs() {
    for dialect in SERVERS {
        for bad in [
            "SET search_path = x",
            "SET GLOBAL general_log = 1",
            "SET ROLE postgres",
            "RESET ALL",
            "BEGIN",
            "START TRANSACTION",
            "COMMIT",
            "ROLLBACK",
            "SAVEPOINT a",
            "PREPARE TRANSACTION 'x'",
            "COPY t TO PROGRAM 'sh'",
            "COPY t FROM '/etc/passwd'",
            "LOAD DATA INFILE '/etc/passwd' INTO TABLE t",
            "LOAD XML INFILE 'x' INTO TABLE t",
            "CALL p()",
            "DO $$ BEGIN END $$",
            "DO SLEEP(100)",
            "EXECUTE x",
            "LISTEN x",
            "NOTIFY x",
            "LOCK TABLE t",
            "LOCK TABLES t WRITE",
            "KILL 1",
            "SHUTDOWN",
            "GRANT ALL ON t TO x",
            "CREATE USER x",
            "CREATE ROLE x",
            "CREATE DATABASE x",
            "CREATE EXTENSION dblink",
            "CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 1'",
            "CREATE PROCEDURE p() SELECT 1",
            "CREATE EVENT e ON SCHEDULE EVERY 1 DAY DO SELECT 1",
            "CREATE TRIGGER x AFTER INSERT ON t EXECUTE FUNCTION f()",
            "CREATE RULE r AS ON INSERT TO t DO NOTHING",
            "CREATE SERVER s FOREIGN DATA WRAPPER w",
            "CREATE FOREIGN TABLE f (a int) SERVER s",
            "CREATE TEMPORARY TABLE x (a int)",
            "CREATE OR REPLACE FUNCTION f() RETURNS int",
            "ALTER SYSTEM SET fsync = off",
            "ALTER USER x IDENTIFIED BY 'y'",
            "ALTER DATABASE x SET y = z",
            "ALTER TABLE t SET TABLESPACE x",
            "DROP DATABASE x",
            "DROP OWNED BY x",
            "TRUNCATE t",
            "VACUUM t",
            "HANDLER t OPEN",
            "DELETE FROM t; DELETE FROM u",
            "CREATE",
            "",
        ] {
            assert!(execute_on(bad, dialect).is_err(), "{dialect:?}: {bad}");
        }
    }
}

#[test]
fn servers_read_no_files_and_wait_for_nobody() {
    let query = |text, dialect| judged(text, StatementPurpose::Query, dialect, |_| ());
    for bad in [
        "SELECT pg_read_file('/etc/passwd')",
        "SELECT PG_READ_BINARY_FILE('x')",
        "SELECT pg_catalog.pg_sleep(100)",
        "SELECT \"pg_sleep\"(100)",
        "SELECT * FROM pg_authid",
        "SELECT * FROM pg_ls_dir('.')",
        "SELECT pg_terminate_backend(1)",
        "SELECT pg_advisory_lock(1)",
        "SELECT lo_import('/etc/passwd')",
        "SELECT * FROM dblink('host=x', 'SELECT 1') AS t(a int)",
        "SELECT query_to_xml('DELETE FROM t', true, true, '')",
        "SELECT set_config('role', 'postgres', false)",
        "SELECT inet_server_addr()",
        "SELECT repeat('x', 1000000000)",
        "SELECT * FROM information_schema.tables",
        "SHOW data_directory",
        "TABLE t",
    ] {
        assert!(query(bad, SqlDialect::Postgres).is_err(), "{bad}");
    }
    for bad in [
        "SELECT LOAD_FILE('/etc/passwd')",
        "SELECT load_file ('/etc/passwd')",
        "SELECT a FROM t INTO OUTFILE '/tmp/x'",
        "SELECT a FROM t INTO DUMPFILE '/tmp/x'",
        "SELECT a INTO @x FROM t",
        "SELECT @@datadir",
        "SELECT SLEEP(100)",
        "SELECT BENCHMARK(1000000000, 1)",
        "SELECT GET_LOCK('a', 100)",
        "SELECT * FROM mysql.user",
        "SELECT * FROM `mysql`.`user`",
        "SELECT * FROM information_schema.tables",
        "SHOW VARIABLES",
        "DESCRIBE t",
    ] {
        assert!(query(bad, SqlDialect::Mysql).is_err(), "{bad}");
    }
    for bad in [
        "CREATE TABLE t (a INT) ENGINE=MyISAM",
        "CREATE TABLE t (a INT) ENGINE=FEDERATED CONNECTION='mysql://x'",
        "CREATE TABLE t (a INT) DATA DIRECTORY='/tmp'",
        "INSERT IGNORE INTO t (a) VALUES (?)",
        "INSERT DELAYED INTO t (a) VALUES (?)",
    ] {
        assert!(execute_on(bad, SqlDialect::Mysql).is_err(), "{bad}");
    }
    assert_eq!(query("SELECT count(*) FROM t WHERE a = 'pg_sleep'", SqlDialect::Postgres), Ok(()));
}

#[test]
fn what_a_server_would_read_otherwise_than_the_guard_is_refused() {
    for bad in [
        "UPDATE t SET a = E'\\'; DROP TABLE u; --'",
        "UPDATE t SET a = e'x'",
        "UPDATE t SET a = U&'\\0027'",
        "UPDATE t SET a = $$x$$",
        "UPDATE t SET a = $tag$x$tag$",
        "UPDATE t SET a = 1 /* /* */ ' */ ; DROP TABLE u; --'",
        "UPDATE t SET a = `x; DROP TABLE u; `",
        "UPDATE t SET a = b[1; DROP TABLE u]",
    ] {
        assert!(execute_on(bad, SqlDialect::Postgres).is_err(), "{bad}");
    }
    for bad in [
        "UPDATE t SET a = 1 /*! ; DROP TABLE u */",
        "UPDATE t SET a = 1 --1; DROP TABLE u",
        "UPDATE t SET a = _utf8'x'",
        "UPDATE t SET a = N'x'",
    ] {
        assert!(execute_on(bad, SqlDialect::Mysql).is_err(), "{bad}");
    }
    assert_eq!(execute_on("UPDATE t SET a = X'00' /* fine */ -- too", SqlDialect::Mysql), Ok(0));
    assert_eq!(execute_on("UPDATE t SET a = b[1] /* fine */ --too", SqlDialect::Postgres), Ok(0));
}

#[test]
fn parameters_are_written_as_postgres_wants_them() {
    let text = "UPDATE t SET a = ?, \"b?\" = '?' WHERE c = ?";
    assert_eq!(with_dollars(text).unwrap(), "UPDATE t SET a = $1, \"b?\" = '?' WHERE c = $2");
    assert_eq!(with_dollars("SELECT ?2, ?1, ?2").unwrap(), "SELECT $2, $1, $2");
}

#[test]
fn a_statement_has_no_more_bytes_and_no_more_values_than_its_bound() {
    let padded = |bytes: usize| format!("DELETE FROM t{}", " ".repeat(bytes - "DELETE FROM t".len()));
    assert_eq!(execute(&padded(STATEMENT_BYTES)), Ok(0));
    let long = execute(&padded(STATEMENT_BYTES + 1)).unwrap_err();
    assert!(long.contains("at most 65536 bytes"), "{long}");

    let most = MAX_BINDS;
    assert_eq!(execute(&format!("DELETE FROM t WHERE a = ?{most}")), Ok(most));
    assert!(execute(&format!("DELETE FROM t WHERE a = ?{}", most + 1)).is_err());
    let many = format!("DELETE FROM t WHERE a = {}", "?".repeat(most + 1));
    let many = check(&many, StatementPurpose::Execute, SqlDialect::Sqlite).unwrap_err().to_string();
    assert!(many.contains("at most 32766 parameters"), "{many}");
}

#[test]
fn each_statement_says_what_access_it_needs_on_each_database() {
    use SqlAccess::{Read, Schema, Write};
    for (purpose, text, expected) in [
        (StatementPurpose::Query, "SELECT replace(a, 'x', 'y') FROM t", Read),
        (StatementPurpose::Query, "WITH x AS (SELECT 1) SELECT * FROM x", Read),
        (StatementPurpose::Query, "SELECT 'DELETE FROM t' /* INSERT */", Read),
        (StatementPurpose::Query, "VALUES (1)", Read),
        (StatementPurpose::Query, "WITH x AS (DELETE FROM t RETURNING a) SELECT a FROM x", Write),
        (StatementPurpose::Query, "WITH x AS (SELECT 1) INSERT INTO t SELECT * FROM x RETURNING a", Write),
        (StatementPurpose::Query, "SELECT a FROM t FOR UPDATE", Write),
        (StatementPurpose::Query, "SELECT a FROM t FOR SHARE", Write),
        (StatementPurpose::Execute, "INSERT INTO t VALUES (?)", Write),
        (StatementPurpose::Execute, "insert into t values (?)", Write),
        (StatementPurpose::Execute, "UPDATE t SET a = 1", Write),
        (StatementPurpose::Execute, "DELETE FROM t", Write),
        (StatementPurpose::Execute, "WITH x AS (SELECT 1) DELETE FROM t", Write),
        (StatementPurpose::Execute, "CREATE TABLE t (a INTEGER)", Schema),
        (StatementPurpose::Execute, "DROP TABLE t", Schema),
        (StatementPurpose::Execute, "ALTER TABLE t ADD COLUMN b INTEGER", Schema),
        (StatementPurpose::Execute, "CREATE INDEX i ON t (a)", Schema),
    ] {
        for dialect in [SqlDialect::Sqlite, SqlDialect::Postgres, SqlDialect::Mysql] {
            let access = judged(text, purpose, dialect, |checked| checked.least_access());
            assert_eq!(access, Ok(expected), "{text} on {dialect:?}");
        }
    }
    for (text, dialect, expected) in [
        ("REPLACE INTO t VALUES (1)", SqlDialect::Mysql, Write),
        ("INSERT OR REPLACE INTO t VALUES (1)", SqlDialect::Sqlite, Write),
    ] {
        assert_eq!(
            judged(text, StatementPurpose::Execute, dialect, |checked| checked.least_access()),
            Ok(expected),
            "{text}"
        );
    }
}

#[test]
fn nothing_that_a_statement_sets_stays_with_the_session() {
    for (dialect, statements) in [
        (
            SqlDialect::Postgres,
            &[
                "SELECT set_config('search_path', 'x', false)",
                "SELECT setseed(0.5)",
                "SELECT \"setseed\" (0.5)",
                "SELECT a FROM setseed(0.5) AS x (a)",
                "SELECT pg_advisory_lock(1)",
                "SELECT pg_try_advisory_lock_shared(1)",
                "SET search_path = x",
                "PREPARE x AS SELECT 1",
                "DECLARE c CURSOR WITH HOLD FOR SELECT 1",
                "LISTEN x",
                "CREATE TEMP TABLE x (a INT)",
                "CREATE LOCAL TEMPORARY TABLE x (a INT)",
                "CREATE TABLE pg_temp.x (a INT)",
                "CREATE TEMPORARY VIEW x AS SELECT 1",
                "SELECT 1 INTO TEMP x",
            ][..],
        ),
        (
            SqlDialect::Mysql,
            &[
                "SELECT LAST_INSERT_ID(5)",
                "SELECT `last_insert_id` (a) FROM t",
                "UPDATE t SET a = LAST_INSERT_ID(a + 1)",
                "SELECT GET_LOCK('x', 1)",
                "SELECT service_get_write_locks('a', 'b', 1)",
                "SELECT @x := 1",
                "SELECT 1 INTO @x",
                "SET @x = 1",
                "SET NAMES latin1",
                "USE other",
                "LOCK TABLES t READ",
                "PREPARE x FROM 'SELECT 1'",
                "CREATE TEMPORARY TABLE x (a INT)",
            ],
        ),
    ] {
        for statement in statements {
            for purpose in [StatementPurpose::Query, StatementPurpose::Execute] {
                let judged = judged(statement, purpose, dialect, |_| ());
                assert!(judged.is_err(), "{dialect:?}: {statement}");
            }
        }
    }
    assert_eq!(judged("SELECT LAST_INSERT_ID()", StatementPurpose::Query, SqlDialect::Mysql, |_| ()), Ok(()));
    assert_eq!(
        judged("UPDATE t SET a = LAST_INSERT_ID()", StatementPurpose::Execute, SqlDialect::Mysql, |_| ()),
        Ok(())
    );
}
