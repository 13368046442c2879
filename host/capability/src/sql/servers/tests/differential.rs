//! Compares the guard with real servers, as [`guard::differential`](crate::sql::guard::differential) does with
//! SQLite: a read leaves no lock and no setting, and a write changes no table that it does not name.

use kubewitness_chance::{repeat_command, seed, statements};

use super::*;
use crate::sql::guard::{StatementPurpose, check, differential};

/// The tables that generated statements may name, and one that none of them does.
const TABLES: &str = "DROP TABLE IF EXISTS t, u, bystander; CREATE TABLE t (k VARCHAR(100) NOT NULL UNIQUE, n BIGINT NOT NULL); \
    CREATE TABLE u (k VARCHAR(100) NOT NULL UNIQUE, n BIGINT NOT NULL); \
    CREATE TABLE bystander (k VARCHAR(100) NOT NULL UNIQUE, n BIGINT NOT NULL); \
    INSERT INTO t VALUES ('a', 1), ('b', 2); INSERT INTO u VALUES ('b', 2), ('c', 3); \
    INSERT INTO bystander VALUES ('a', 1), ('z', 9)";
/// Locks all rows, unless somebody holds one of them.
const LOCK_ALL: &str = "BEGIN; SELECT k FROM t FOR UPDATE NOWAIT; SELECT k FROM u FOR UPDATE NOWAIT; \
     SELECT k FROM bystander FOR UPDATE NOWAIT; ROLLBACK";
const ROWS: [(&str, &str); 3] = [
    ("t", "SELECT CAST(count(*) * 1000000 + coalesce(sum(n), 0) AS CHAR(40)) FROM t"),
    ("u", "SELECT CAST(count(*) * 1000000 + coalesce(sum(n), 0) AS CHAR(40)) FROM u"),
    ("bystander", "SELECT CAST(count(*) * 1000000 + coalesce(sum(n), 0) AS CHAR(40)) FROM bystander"),
];

/// The questions about a session, by server.
struct SessionQuestions {
    settings: &'static str,
    /// Locks beyond those on rows.
    locks: &'static str,
    /// Statements that leave a setting or such a lock.
    noticed: [&'static str; 2],
}

const POSTGRES: SessionQuestions = SessionQuestions {
    settings: "SELECT string_agg(name || '=' || setting, '; ' ORDER BY name) || '; ' || pg_my_temp_schema()::text \
        || '; ' || (SELECT count(*) FROM pg_listening_channels()) FROM pg_settings",
    // A read locks tables and indexes in the weakest way, and so does this question.
    locks: "SELECT string_agg(locktype || ' ' || mode, ', ' ORDER BY locktype, mode) FROM pg_locks \
        WHERE pid = pg_backend_pid() AND mode <> 'AccessShareLock' AND locktype <> 'virtualxid'",
    noticed: ["SET search_path = pg_catalog", "SELECT pg_advisory_lock(7)"],
};

/// Variables of the last statement are no settings.
macro_rules! mysql_settings {
    ($table:literal) => {
        concat!(
            "SELECT CAST(SUM(CRC32(CONCAT(variable_name, '=', COALESCE(variable_value, '')))) AS CHAR) FROM ",
            $table,
            " WHERE variable_name NOT IN ('error_count', 'warning_count', 'timestamp', 'statement_id', 'insert_id', \
             'last_insert_id', 'identity', 'rand_seed1', 'rand_seed2', 'last_gtid', 'gtid_binlog_pos', \
             'gtid_binlog_state', 'gtid_current_pos', 'gtid_executed')"
        )
    };
}

const MYSQL: SessionQuestions = SessionQuestions {
    settings: mysql_settings!("performance_schema.session_variables"),
    locks: "SELECT CAST(RELEASE_ALL_LOCKS() AS CHAR)",
    noticed: ["SET SESSION sql_mode = ''", "DO GET_LOCK('left', 0)"],
};
const MARIADB: SessionQuestions =
    SessionQuestions { settings: mysql_settings!("information_schema.session_variables"), ..MYSQL };

/// A session with the tables, and another one beside it.
struct ComparedServer<L> {
    link: L,
    beside: L,
    questions: &'static SessionQuestions,
}

impl<L: ServerLink> ComparedServer<L> {
    async fn new(world: &ServerWorld, questions: &'static SessionQuestions) -> Self {
        world.run(TABLES);
        let options = L::parse_options(&world.url).unwrap();
        let mut link = L::connect_link(&options).await.unwrap();
        link.create_own_tables().await.unwrap();
        link.begin_behind_fence(TransactionMode::ReadWrite, "p").await.unwrap();
        link.run("COMMIT").await.unwrap();
        Self { link, beside: L::connect_link(&options).await.unwrap(), questions }
    }

    async fn begin(&mut self) {
        assert!(self.link.begin_fenced(TransactionMode::ReadWrite, "p").await.unwrap());
    }

    async fn ask(&mut self, question: &'static str) -> String {
        self.link.read_mark(question).await.unwrap().unwrap_or_default()
    }

    async fn session_state(&mut self) -> [String; 2] {
        [self.ask(self.questions.settings).await, self.ask(self.questions.locks).await]
    }

    async fn rows(&mut self) -> Vec<(&'static str, String)> {
        let mut found = Vec::new();
        for (table, question) in ROWS {
            found.push((table, self.ask(question).await));
        }
        found
    }

    /// Runs the statement as a plugin's; whether it succeeded.
    async fn run(&mut self, statement: &str) -> bool {
        let query = check(statement, StatementPurpose::Query, L::DIALECT);
        let done = match &query {
            Ok(query) => self.link.query(query, Vec::new()).await.map(drop),
            Err(_) => {
                let checked = check(statement, StatementPurpose::Execute, L::DIALECT).unwrap();
                self.link.execute(checked.text, Vec::new()).await.map(drop)
            }
        };
        if done.is_err() && L::FAILS_WHOLE {
            self.link.run("ROLLBACK TO SAVEPOINT kw").await.unwrap();
        }
        done.is_ok()
    }
}

fn hint(statement: &str) -> String {
    format!("{statement}; {}", repeat_command(seed()))
}

/// Without this, the comparison would pass where it sees nothing.
async fn a_lock_and_a_setting_would_be_noticed<L: ServerLink>(server: &mut ComparedServer<L>) {
    server.begin().await;
    server.link.run("SELECT k FROM u WHERE k = 'c' FOR UPDATE").await.unwrap();
    assert!(server.beside.run(LOCK_ALL).await.is_err());
    server.link.run("ROLLBACK").await.unwrap();
    let idle = server.session_state().await;
    for (place, text) in server.questions.noticed.into_iter().enumerate() {
        server.begin().await;
        server.link.run(text).await.unwrap();
        server.link.run("COMMIT").await.unwrap();
        assert_ne!(server.session_state().await[place], idle[place], "{text}");
    }
}

async fn a_read_leaves_no_lock_and_no_setting<L: ServerLink>(server: &mut ComparedServer<L>) {
    let number = statements(400);
    server.begin().await;
    let begun = server.session_state().await;
    server.link.run("ROLLBACK").await.unwrap();
    let idle = server.session_state().await;
    let mut answered = 0;
    for statement in differential::reads(L::DIALECT, number) {
        server.begin().await;
        answered += u64::from(server.run(&statement).await);
        let unlocked = server.beside.run(LOCK_ALL).await;
        assert!(unlocked.is_ok(), "{unlocked:?}: {}", hint(&statement));
        assert_eq!(server.session_state().await, begun, "{}", hint(&statement));
        server.link.run("COMMIT").await.unwrap();
        assert_eq!(server.session_state().await, idle, "{}", hint(&statement));
    }
    assert!(answered >= number / 40, "only {answered} of {number} were answered");
}

async fn a_write_changes_no_table_that_it_does_not_name<L: ServerLink>(server: &mut ComparedServer<L>) {
    let number = statements(400);
    let before = server.rows().await;
    let mut written = 0;
    for statement in differential::writes(L::DIALECT, number) {
        server.begin().await;
        written += u64::from(server.run(&statement).await);
        let after = server.rows().await;
        let words: Vec<_> = statement.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').collect();
        for ((table, before), (_, after)) in before.iter().zip(&after) {
            let is_named = words.iter().any(|word| word.eq_ignore_ascii_case(table));
            assert!(is_named || before == after, "it changes {table}: {}", hint(&statement));
        }
        server.link.run("ROLLBACK").await.unwrap();
        assert_eq!(server.rows().await, before, "it is undone with its call: {}", hint(&statement));
    }
    assert!(written >= number / 40, "only {written} of {number} were done");
}

async fn compare_guard_with_server<L: ServerLink>(world: ServerWorld, questions: &'static SessionQuestions) {
    // The session that is changed is not the one that is compared.
    a_lock_and_a_setting_would_be_noticed(&mut ComparedServer::<L>::new(&world, questions).await).await;
    let mut server = ComparedServer::<L>::new(&world, questions).await;
    a_read_leaves_no_lock_and_no_setting(&mut server).await;
    a_write_changes_no_table_that_it_does_not_name(&mut server).await;
}

#[tokio::test]
async fn postgres_agrees_with_the_guard_on_locks_settings_and_tables() {
    let test = "differential::postgres_agrees_with_the_guard";
    if let Some(world) = ServerWorld::on_shared(SqlService::Postgres, test) {
        compare_guard_with_server::<PostgresLink>(world, &POSTGRES).await;
    }
}

#[tokio::test]
async fn mariadb_agrees_with_the_guard_on_locks_settings_and_tables() {
    let test = "differential::mariadb_agrees_with_the_guard";
    if let Some(world) = ServerWorld::on_shared(SqlService::MariaDb, test) {
        compare_guard_with_server::<MysqlLink>(world, &MARIADB).await;
    }
}

#[tokio::test]
async fn mysql_agrees_with_the_guard_on_locks_settings_and_tables() {
    let test = "differential::mysql_agrees_with_the_guard";
    if let Some(world) = ServerWorld::on_shared(SqlService::MySql, test) {
        compare_guard_with_server::<MysqlLink>(world, &MYSQL).await;
    }
}
