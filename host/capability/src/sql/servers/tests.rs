//! Tests of servers that are away, silent or back again, and of servers that continue for a client that has
//! given up.

mod differential;
mod poolers;
mod rights;
mod sessions;

use std::time::Instant;

use kubewitness_core::config::SecretRef;
use kubewitness_core::intents::prints::IdPrint;
use kubewitness_core::ports::OnConflict;
use kubewitness_harness::{DatabaseServer, PASSWORD, SqlService, database_of, skip};

use super::*;
use crate::receipts::ReceiptMark;
use crate::sql::mysql::{MysqlLink, REMEMBERS_KEYS};
use crate::sql::postgres::PostgresLink;
use crate::sql::{CommitError, SharedEngine};

/// Short enough for a silent server to be given up within a test.
const SHORT: ServerPatience = ServerPatience {
    wait: Duration::from_secs(5),
    connect: Duration::from_secs(2),
    answer: Duration::from_secs(2),
    transaction: Duration::from_secs(30),
};

/// A database for a single test, with a table `t`.
struct ServerWorld {
    server: DatabaseServer,
    url: String,
    folder: tempfile::TempDir,
}

impl ServerWorld {
    fn new(started: anyhow::Result<Option<DatabaseServer>>, test: &str) -> Option<Self> {
        let Some(server) = started.unwrap() else {
            skip(test, "its database is not installed");
            return None;
        };
        let url = server.create_database().unwrap();
        let world = Self { folder: tempfile::tempdir().unwrap(), server, url };
        world.point_to(&world.url);
        world.run("CREATE TABLE t (k BIGINT NOT NULL UNIQUE, n BIGINT NOT NULL)");
        Some(world)
    }

    /// A database on the server that all tests share.
    fn on_shared(service: SqlService, test: &str) -> Option<Self> {
        Self::new(DatabaseServer::shared(service), test)
    }

    /// A database on a separate server, for tests that stop or pause it.
    fn on_own(service: SqlService, test: &str) -> Option<Self> {
        Self::new(DatabaseServer::start(service, &[]), test)
    }

    fn database(&self) -> &str {
        database_of(&self.url)
    }

    fn run(&self, statements: &str) -> String {
        self.server.run(Some(self.database()), statements).unwrap()
    }

    fn point_to(&self, url: &str) {
        std::fs::write(self.folder.path().join("url"), url).unwrap();
    }

    fn engine(&self, patience: ServerPatience) -> SharedEngine {
        self.engine_of(patience, None)
    }

    fn engine_of(&self, patience: ServerPatience, reader: Option<&str>) -> SharedEngine {
        let reader = reader.map(Arc::from);
        let url = self.folder.path().join("url").to_string_lossy().into_owned();
        let spec = ServerSpec { url_from: SecretRef::File(url), connections: 4 };
        match self.server.service() {
            SqlService::Postgres => {
                Arc::new(RemoteDatabase::<PostgresLink>::impatient(&spec, patience).read_by(reader))
            }
            SqlService::MariaDb | SqlService::MySql => {
                Arc::new(RemoteDatabase::<MysqlLink>::impatient(&spec, patience).read_by(reader))
            }
        }
    }

    fn rows(&self) -> usize {
        self.run("SELECT count(*) FROM t").trim().parse().unwrap()
    }

    /// Returns once a session waits for another one's lock.
    async fn somebody_waits(&self) {
        let deadline = Instant::now() + PATIENCE.wait;
        while !self.has_waiting_session() {
            assert!(Instant::now() < deadline, "no session waits for a lock");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn has_waiting_session(&self) -> bool {
        if self.server.service() == SqlService::Postgres {
            let waiting = "SELECT count(*) FROM pg_stat_activity \
                           WHERE datname = current_database() AND wait_event_type = 'Lock'";
            return self.run(waiting).trim() != "0";
        }
        // MySQL's list of transactions is not renewed if it is read more often than every 100 ms.
        let status = self.server.run(None, "SHOW ENGINE INNODB STATUS").unwrap();
        let waiting = status.split("---TRANSACTION").filter(|transaction| transaction.contains("LOCK WAIT"));
        let mut ids = waiting.filter_map(|transaction| {
            Some(transaction.split_once(" thread id ")?.1.split(',').next().unwrap_or_default().to_owned())
        });
        let is_of_this = |id: String| {
            let sessions = self.server.sessions().unwrap();
            sessions.iter().any(|session| session.id == id && session.database == self.database())
        };
        ids.any(is_of_this)
    }
}

fn receipt(seq: Seq) -> StoredReceipt {
    crate::sql::receipt::receipt(&format!("p.{seq}"), &[seq])
}

fn row(key: Seq) -> TableWrite {
    TableWrite {
        table: "t".into(),
        columns: vec!["k".into(), "n".into()],
        key: vec!["k".into()],
        on_conflict: OnConflict::Ignore,
        rows: vec![vec![SqlValue::Integer(key as i64), SqlValue::Integer(0)]],
    }
}

/// Retries until the database answers, as the breaker of a plugin would.
async fn written(engine: &SharedEngine, seq: Seq) -> Box<dyn SqlTransaction> {
    until_available(async || written_at_once(engine, seq).await).await
}

async fn written_at_once(engine: &SharedEngine, seq: Seq) -> Result<Box<dyn SqlTransaction>, GrantError> {
    let mut transaction = engine.begin("p").await?;
    transaction.write(row(seq), None).await?;
    Ok(transaction)
}

async fn receipts(engine: &SharedEngine) -> Vec<ReceiptMark> {
    until_available(async || engine.receipts_of_plugin("p").await).await
}

async fn until_available<T>(call: impl AsyncFn() -> Result<T, GrantError>) -> T {
    for _ in 0..200 {
        match call().await {
            Ok(answer) => return answer,
            Err(error) => assert!(matches!(error, GrantError::Unavailable(_)), "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the database does not come back")
}

async fn who_reads_receipts_waits_for_what_is_being_committed(world: ServerWorld) {
    let engine = world.engine(PATIENCE);
    let mut others = engine.begin("other").await.unwrap();
    others.write(row(7), None).await.unwrap();
    let transaction = written(&engine, 1).await;
    // The reader may come first, but is not answered before the commit.
    let reader = world.engine(PATIENCE);
    let (marks, committed) = tokio::join!(reader.receipts_of_plugin("p"), async {
        world.somebody_waits().await;
        transaction.commit_with_receipt(&receipt(1)).await
    });
    committed.unwrap();
    assert_eq!(marks.unwrap(), [ReceiptMark { seq: 1, print: IdPrint::of("9") }]);
    // The other plugin's transaction was open all the time, and delayed nobody.
    others.roll_back().await;
    assert_eq!(world.rows(), 1);
}

/// Two replicas, one of which has not noticed yet that the other took over.
async fn who_has_not_read_what_another_reader_may_have_found_commits_nothing(world: ServerWorld) {
    let (first, second) = (world.engine_of(PATIENCE, Some("one")), world.engine_of(PATIENCE, Some("two")));
    assert!(first.begin("p").await.is_err(), "it has read nothing yet");
    assert_eq!(first.receipts_of_plugin("p").await.unwrap(), []);
    written(&first, 1).await.commit_with_receipt(&receipt(1)).await.unwrap();
    // The other waits for calls in progress. Later ones are refused.
    let under_way = written(&first, 2).await;
    let (marks, committed) = tokio::join!(second.receipts_of_plugin("p"), async {
        world.somebody_waits().await;
        under_way.commit_with_receipt(&receipt(2)).await
    });
    committed.unwrap();
    assert_eq!(marks.unwrap().len(), 2);
    written(&second, 3).await.commit_with_receipt(&receipt(3)).await.unwrap();
    let refused = first.begin("p").await.err().unwrap();
    assert!(matches!(&refused, GrantError::Unavailable(why) if why.contains("another replica")), "{refused}");
    first.receipts_of_plugin("other").await.unwrap();
    assert!(first.begin("p").await.is_err(), "it has read another plugin's");
    // After reading the other's receipts, this one may continue, and then the other may not.
    assert_eq!(first.receipts_of_plugin("p").await.unwrap().len(), 3);
    written(&first, 4).await.commit_with_receipt(&receipt(4)).await.unwrap();
    assert!(second.begin("p").await.is_err());
    assert_eq!(world.rows(), 4);
    // A floor is not a receipt.
    second.forget_receipts("p", 4).await.unwrap();
    assert_eq!(second.receipts_of_plugin("p").await.unwrap(), []);
    written(&second, 5).await.roll_back().await;
}

async fn the_floor_stays_while_receipts_below_it_are_kept(world: ServerWorld) {
    let engine = world.engine(PATIENCE);
    for seq in [3, 7] {
        written(&engine, seq).await.commit_with_receipt(&receipt(seq)).await.unwrap();
    }
    let seven = NotedCommit { token: "p.7".into(), at_ms: 1, is_tick: false };
    // As while the past of an added source is delivered.
    let pruning = |through, before_ms| ReceiptPruning {
        plugin: "p".into(),
        through,
        before_ms,
        floor: 10,
        pruned_before_ms: before_ms,
    };
    for (through, before_ms, left) in [(5, 1, vec![7, 3]), (5, 2, vec![7]), (7, 2, vec![])] {
        let transaction = engine.begin("p").await.unwrap();
        transaction.prune_receipts(pruning(through, before_ms)).await.unwrap();
        let survey = engine
            .survey_receipts("p", TransactionMode::ReadWrite, std::slice::from_ref(&seven))
            .await
            .unwrap();
        assert_eq!(survey.marks.iter().map(|mark| mark.seq).collect::<Vec<_>>(), left);
        assert_eq!((survey.floor, survey.absent.is_empty()), (Some(10), !left.is_empty()));
        assert_eq!((survey.is_behind(), survey.history.pruned_before_ms), (false, before_ms));
        let newest = left.first().map(|_| seven.clone());
        assert_eq!(survey.newest, newest);
    }
    // The other plugin has a separate floor, which forgetting removes.
    assert_eq!(engine.survey_receipts("other", TransactionMode::ReadWrite, &[]).await.unwrap().floor, None);
    engine.forget_receipts("p", 10).await.unwrap();
    assert_eq!(
        engine.survey_receipts("p", TransactionMode::ReadWrite, &[]).await.unwrap(),
        crate::sql::ReceiptSurvey::default()
    );
}

async fn only_a_server_that_takes_writes_says_what_was_applied(world: ServerWorld) {
    let engine = world.engine(PATIENCE);
    written(&engine, 1).await.commit_with_receipt(&receipt(1)).await.unwrap();
    let turn = |is_on: bool| match world.server.service() {
        SqlService::Postgres => {
            format!("ALTER DATABASE {} SET default_transaction_read_only = {is_on}", world.database())
        }
        _ => format!("SET GLOBAL read_only = {}", u8::from(is_on)),
    };
    world.server.run(None, &turn(true)).unwrap();
    refuses_to_say(&world.engine(PATIENCE)).await;
    world.server.run(None, &turn(false)).unwrap();
    assert_eq!(world.engine(PATIENCE).receipts_of_plugin("p").await.unwrap().len(), 1);
}

async fn refuses_to_say(engine: &SharedEngine) {
    let refused = [
        engine.survey_receipts("p", TransactionMode::ReadWrite, &[]).await.map(drop),
        engine.was_committed("p.1").await.map(drop),
        engine.begin("p").await.map(drop),
    ];
    for refused in refused {
        let is_put_off =
            matches!(&refused, Err(GrantError::Unavailable(why)) if why.contains("can't be written now"));
        assert!(is_put_off, "{refused:?}");
    }
}

async fn a_connection_that_is_forgotten_is_not_used_again(world: ServerWorld) {
    let engine = world.engine(PATIENCE);
    let (first, second) = (engine.begin("p").await.unwrap(), engine.begin("p").await.unwrap());
    let numbers = [first.connection_number(), second.connection_number()];
    first.roll_back().await;
    engine.forget_connections();
    second.roll_back().await;
    for _ in 0..2 {
        let next = engine.begin("p").await.unwrap();
        assert!(!numbers.contains(&next.connection_number()));
        next.roll_back().await;
    }
}

async fn a_tick_replaces_the_receipts_of_earlier_ticks(world: ServerWorld) {
    let engine = world.engine(PATIENCE);
    written(&engine, 3).await.commit_with_receipt(&receipt(3)).await.unwrap();
    for at_ms in 5..8 {
        let known = engine.survey_receipts("p", TransactionMode::ReadWrite, &[]).await.unwrap();
        let mut tick = crate::sql::receipt::receipt(&format!("p.tick.{at_ms}"), &[]);
        (tick.at_ms, tick.replaces) = (at_ms, known.ticks);
        written(&engine, at_ms).await.commit_with_receipt(&tick).await.unwrap();
        let survey = engine.survey_receipts("p", TransactionMode::ReadWrite, &[]).await.unwrap();
        assert_eq!((survey.history.newest_tick_ms, &*survey.ticks), (at_ms, &[tick.token][..]));
        assert_eq!(survey.marks.len(), 1);
    }
}

async fn a_table_of_receipts_that_was_dropped_is_made_anew(world: ServerWorld) {
    for (reader, seq) in [(None, 1), (Some("one"), 3)] {
        let engine = world.engine_of(PATIENCE, reader);
        engine.receipts_of_plugin("p").await.unwrap();
        written(&engine, seq).await.commit_with_receipt(&receipt(seq)).await.unwrap();
        world.run("DROP TABLE kubewitness_receipts");
        let again = async || -> Option<()> {
            let mut transaction = engine.begin("p").await.ok()?;
            transaction.write(row(seq + 1), None).await.ok()?;
            transaction.commit_with_receipt(&receipt(seq + 1)).await.ok()
        };
        assert!(again().await.is_none(), "no receipt can be written");
        // A plugin's lanes also read them after a failed call.
        engine.receipts_of_plugin("p").await.ok();
        assert!(again().await.is_some(), "{reader:?}");
        assert_eq!(engine.receipts_of_plugin("p").await.unwrap().len(), 1);
    }
}

async fn a_commit_whose_answer_is_lost_is_found_or_is_not_there(mut world: ServerWorld) {
    let engine = world.engine(SHORT);
    let mut expected = 0;
    for (seq, killed) in [(1, false), (2, true), (3, false), (4, true)] {
        let transaction = written(&engine, seq).await;
        world.server.pause().unwrap();
        let refused = transaction.commit_with_receipt(&receipt(seq)).await;
        assert!(matches!(refused, Err(CommitError::InDoubt(_))), "{refused:?}");
        if killed {
            world.server.kill().unwrap();
            world.server.start_again().unwrap();
        } else {
            world.server.resume().unwrap();
        }
        let is_committed = receipts(&engine).await.contains(&ReceiptMark { seq, print: IdPrint::of("9") });
        assert_eq!(engine.was_committed(&format!("p.{seq}")).await, Ok(is_committed));
        assert!(!(killed && is_committed), "a server that is killed before it hears of a commit has none");
        expected += usize::from(is_committed);
        assert_eq!(world.rows(), expected, "rows and receipt are one");
    }
}

async fn a_call_in_progress_when_the_server_ends_is_undone_and_the_next_one_succeeds(mut world: ServerWorld) {
    let engine = world.engine(SHORT);
    let ends: [fn(&mut DatabaseServer) -> anyhow::Result<()>; 3] =
        [DatabaseServer::stop, DatabaseServer::stop_at_once, DatabaseServer::kill];
    for (seq, end) in (1..).zip(ends) {
        let mut transaction = written(&engine, seq).await;
        end(&mut world.server).unwrap();
        let lost = transaction.write(row(seq + 100), None).await;
        assert!(matches!(lost, Err(GrantError::Unavailable(_))), "{lost:?}");
        assert!(transaction.check_intact().is_err());
        let refused = transaction.commit_with_receipt(&receipt(seq)).await;
        assert!(matches!(refused, Err(CommitError::RolledBack(GrantError::Unavailable(_)))), "{refused:?}");
        let away = engine.begin("p").await.err().unwrap().to_string();
        assert!(away.contains("can't be reached") && !away.contains(PASSWORD), "{away}");
        world.server.start_again().unwrap();
        assert_eq!(receipts(&engine).await.len(), seq as usize - 1);
        written(&engine, seq).await.commit_with_receipt(&receipt(seq)).await.unwrap();
        assert_eq!(world.rows(), seq as usize);
    }
}

async fn connections_that_were_closed_meanwhile_are_replaced(mut world: ServerWorld) {
    let engine = world.engine(SHORT);
    written(&engine, 1).await.commit_with_receipt(&receipt(1)).await.unwrap();
    world.server.stop().unwrap();
    world.server.start_again().unwrap();
    // No call fails before.
    written_at_once(&engine, 2).await.unwrap().commit_with_receipt(&receipt(2)).await.unwrap();
    assert_eq!(world.rows(), 2);
}

async fn a_silent_server_is_given_up_and_taken_again(world: ServerWorld) {
    let engine = world.engine(SHORT);
    let mut transaction = written(&engine, 1).await;
    world.server.pause().unwrap();
    let silent = transaction.write(row(2), None).await;
    assert!(matches!(silent, Err(GrantError::Unavailable(_))), "{silent:?}");
    transaction.roll_back().await;
    assert!(matches!(engine.begin("p").await.err(), Some(GrantError::Unavailable(_))));
    world.server.resume().unwrap();
    assert_eq!(receipts(&engine).await, []);
    assert_eq!(world.rows(), 0);
    written(&engine, 1).await.commit_with_receipt(&receipt(1)).await.unwrap();
}

async fn two_calls_that_wait_for_each_other_are_told_to_try_again(world: ServerWorld) {
    let engine = world.engine(PATIENCE);
    for seq in [1, 2] {
        written(&engine, seq).await.commit_with_receipt(&receipt(seq)).await.unwrap();
    }
    let update = "UPDATE t SET n = n + 1 WHERE k = ?";
    let of = |key: i64| vec![vec![SqlValue::Integer(key)]];
    let (mut first, mut second) = (engine.begin("p").await.unwrap(), engine.begin("p").await.unwrap());
    first.execute(update, of(1)).await.unwrap();
    second.execute(update, of(2)).await.unwrap();
    let (first_done, second_done) = tokio::join!(first.execute(update, of(2)), async {
        let done = second.execute(update, of(1)).await;
        // Lets the other one continue if this one was the victim.
        if done.is_err() {
            assert!(second.check_intact().is_err());
        }
        done
    });
    let lost = [&first_done, &second_done].into_iter().filter(|done| done.is_err()).count();
    assert_eq!(lost, 1, "{first_done:?} {second_done:?}");
    for done in [first_done, second_done] {
        assert!(!matches!(done, Err(GrantError::Invalid(_))), "nobody's data is to blame: {done:?}");
    }
}

async fn an_address_that_leads_nowhere_is_told_without_its_secret(world: ServerWorld) {
    let (good, database) = (&world.url, world.database());
    let closed = good.replace(&format!(":{}", world.server.port()), ":1");
    for (url, why) in [
        (good.replace(PASSWORD, "wrong"), "refuses the user or the password"),
        (good.replace(database, "nowhere"), "no database of that name"),
        (closed, "no server listens"),
    ] {
        world.point_to(&url);
        let error = world.engine(SHORT).begin("p").await.err().unwrap();
        assert!(matches!(&error, GrantError::Unavailable(text) if text.contains(why)), "{error}");
        assert!(!error.to_string().contains("127.0.0.1"), "{error}");
    }
    if world.server.service() != SqlService::Postgres {
        // A user who may log in, but not to this database, has the right password.
        let name = format!("none_{database}");
        world.run(&format!("CREATE USER {name}@'127.0.0.1' IDENTIFIED BY '{PASSWORD}'"));
        world.point_to(&good.replace("//kubewitness:", &format!("//{name}:")));
        let error = world.engine(SHORT).begin("p").await.err().unwrap().to_string();
        assert!(error.contains("no right on that database: grant it"), "{error}");
    }
    if world.server.service() == SqlService::MySql {
        // MySQL asks a user's first connection for the password itself, which is sent over TLS only.
        let name = format!("fresh_{database}");
        world.run(&format!(
            "CREATE USER {name}@'127.0.0.1' IDENTIFIED BY '{PASSWORD}'; GRANT ALL ON {database}.* TO {name}@'127.0.0.1'"
        ));
        let fresh = good.replace("//kubewitness:", &format!("//{name}:"));
        world.point_to(&format!("{fresh}?ssl-mode=DISABLED"));
        let error = world.engine(SHORT).begin("p").await.err().unwrap().to_string();
        assert!(error.contains("`ssl-mode=DISABLED` out of"), "{error}");
        world.point_to(&fresh);
        assert_eq!(receipts(&world.engine(SHORT)).await, []);
    }
    // A rotated secret applies to the next connection.
    world.point_to(&good.replace(PASSWORD, "wrong"));
    let engine = world.engine(SHORT);
    assert!(engine.begin("p").await.is_err());
    world.point_to(good);
    assert_eq!(receipts(&engine).await, []);
}

/// Each test with the origin of its server: shared, or its own.
macro_rules! for_each_server {
    (@ $name:ident $service:ident [$($test:ident: $server:ident),* $(,)?]) => {
        mod $name {
            $(#[tokio::test]
            async fn $test() {
                let test = concat!(stringify!($name), "::", stringify!($test));
                if let Some(world) = super::ServerWorld::$server(super::SqlService::$service, test) {
                    super::$test(world).await;
                }
            })*
        }
    };
    ($($tests:tt)*) => {
        for_each_server!(@ postgres Postgres [$($tests)*]);
        for_each_server!(@ mariadb MariaDb [$($tests)*]);
        for_each_server!(@ mysql MySql [$($tests)*]);
    };
}

for_each_server!(
    who_reads_receipts_waits_for_what_is_being_committed: on_shared,
    only_a_server_that_takes_writes_says_what_was_applied: on_own,
    a_connection_that_is_forgotten_is_not_used_again: on_shared,
    who_has_not_read_what_another_reader_may_have_found_commits_nothing: on_shared,
    the_floor_stays_while_receipts_below_it_are_kept: on_shared,
    a_tick_replaces_the_receipts_of_earlier_ticks: on_shared,
    a_table_of_receipts_that_was_dropped_is_made_anew: on_shared,
    a_commit_whose_answer_is_lost_is_found_or_is_not_there: on_own,
    a_call_in_progress_when_the_server_ends_is_undone_and_the_next_one_succeeds: on_own,
    connections_that_were_closed_meanwhile_are_replaced: on_own,
    a_silent_server_is_given_up_and_taken_again: on_own,
    two_calls_that_wait_for_each_other_are_told_to_try_again: on_shared,
    an_address_that_leads_nowhere_is_told_without_its_secret: on_shared,
);

/// Statements that one server refuses to plugins, in addition to those that all refuse.
mod refusals {
    use super::*;

    async fn refused(world: &ServerWorld, write: TableWrite) -> String {
        let engine = world.engine(PATIENCE);
        let mut transaction = engine.begin("p").await.unwrap();
        let refused = transaction.write(write, None).await;
        assert_eq!(transaction.check_intact(), Ok(()), "only the write is refused");
        match refused {
            Err(GrantError::Invalid(why)) => why,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn a_value_that_does_not_fit_is_told_with_row_and_column() {
        for service in SqlService::ALL {
            let Some(world) = ServerWorld::on_shared(service, "refusals::a_value_that_does_not_fit") else {
                continue;
            };
            world.run("CREATE TABLE s (k SMALLINT UNIQUE)");
            let mut write = row(1);
            (write.table, write.columns) = ("s".into(), vec!["k".into()]);
            write.rows = vec![vec![SqlValue::Integer(5)], vec![SqlValue::Integer(40_000)]];
            let why = refused(&world, write.clone()).await;
            assert!(why.contains("row 1, column `k` (smallint") && why.contains("out of range"), "{why}");
            write.rows = vec![vec![SqlValue::Text("5".into())]];
            let why = refused(&world, write).await;
            assert!(why.contains("row 0, column `k`") && why.contains("a text was given"), "{why}");
        }
    }

    async fn no_table_is_written_where_a_lost_row_would_not_show(world: ServerWorld) {
        for (create, why) in [
            ("CREATE TABLE s (k BIGINT, n BIGINT)", "no unique index (k)"),
            ("CREATE TABLE s (k BIGINT UNIQUE, n BIGINT UNIQUE)", "a second unique index"),
            ("CREATE TABLE s (k BIGINT UNIQUE, n BIGINT) ENGINE=MyISAM", "no transactions"),
        ] {
            world.run(&format!("DROP TABLE IF EXISTS s; {create}"));
            let message = refused(&world, TableWrite { table: "s".into(), ..row(1) }).await;
            assert!(message.contains(why), "{message}");
        }
        // An automatic row number does not count as a key.
        let create =
            "DROP TABLE s; CREATE TABLE s (i BIGINT AUTO_INCREMENT PRIMARY KEY, k BIGINT UNIQUE, n BIGINT)";
        world.run(create);
        let mut transaction = world.engine(PATIENCE).begin("p").await.unwrap();
        transaction.write(TableWrite { table: "s".into(), ..row(1) }, None).await.unwrap();
        let late = transaction.execute("CREATE TABLE late (a BIGINT)", vec![vec![]]).await;
        assert!(
            matches!(&late, Err(GrantError::Invalid(why)) if why.contains("before the call writes")),
            "{late:?}"
        );
    }

    #[tokio::test]
    async fn mysql_and_mariadb_write_no_table_where_a_lost_row_would_not_show() {
        for service in [SqlService::MariaDb, SqlService::MySql] {
            if let Some(world) = ServerWorld::on_shared(service, "refusals::no_table_is_written") {
                no_table_is_written_where_a_lost_row_would_not_show(world).await;
            }
        }
    }

    async fn a_key_that_was_dropped_on_an_open_connection_repeats_no_row(world: ServerWorld) {
        let engine = world.engine(PATIENCE);
        let key = world.run(
            "SELECT index_name FROM information_schema.statistics \
             WHERE table_schema = DATABASE() AND table_name = 't' LIMIT 1",
        );
        written(&engine, 1).await.commit_with_receipt(&receipt(1)).await.unwrap();
        world.run(&format!("ALTER TABLE t DROP INDEX `{}`", key.trim()));
        tokio::time::sleep(REMEMBERS_KEYS).await;
        let mut transaction = engine.begin("p").await.unwrap();
        let repeated = transaction.write(row(1), None).await;
        assert!(
            matches!(&repeated, Err(GrantError::Invalid(why)) if why.contains("no unique index (k)")),
            "{repeated:?}"
        );
        transaction.roll_back().await;
        assert_eq!(world.rows(), 1);
    }

    #[tokio::test]
    async fn mysql_and_mariadb_repeat_no_row_if_a_key_was_dropped() {
        for service in [SqlService::MariaDb, SqlService::MySql] {
            if let Some(world) =
                ServerWorld::on_shared(service, "refusals::repeat_no_row_if_a_key_was_dropped")
            {
                a_key_that_was_dropped_on_an_open_connection_repeats_no_row(world).await;
            }
        }
    }

    /// MySQL commits before it creates a table, which releases the fence for a moment.
    #[tokio::test]
    async fn a_call_that_makes_a_table_ends_if_another_reader_came_in_meanwhile() {
        for service in [SqlService::MariaDb, SqlService::MySql] {
            let test = "refusals::another_reader_came_in";
            let Some(world) = ServerWorld::on_shared(service, test) else { continue };
            let (first, second) =
                (world.engine_of(PATIENCE, Some("one")), world.engine_of(PATIENCE, Some("two")));
            first.receipts_of_plugin("p").await.unwrap();
            let mut transaction = first.begin("p").await.unwrap();
            let (read, made) = tokio::join!(second.receipts_of_plugin("p"), async {
                world.somebody_waits().await;
                transaction.execute("CREATE TABLE late (a BIGINT)", vec![vec![]]).await
            });
            assert_eq!(read.unwrap(), []);
            let is_refused =
                matches!(&made, Err(GrantError::Unavailable(why)) if why.contains("another replica"));
            assert!(is_refused, "{made:?}");
            assert!(transaction.check_intact().is_err());
        }
    }

    #[tokio::test]
    async fn a_standby_says_nothing_of_what_was_applied_before_it_takes_over() {
        let test = "refusals::a_standby_says_nothing";
        let Some(world) = ServerWorld::on_own(SqlService::Postgres, test) else { return };
        written(&world.engine(PATIENCE), 1).await.commit_with_receipt(&receipt(1)).await.unwrap();
        let standby = world.server.start_standby().unwrap();
        world.point_to(&standby.url(world.database()));
        let engine = world.engine(PATIENCE);
        refuses_to_say(&engine).await;
        let read = engine.survey_receipts("p", TransactionMode::ReadOnly, &[]).await.unwrap();
        assert_eq!(read.marks.len(), 1, "for who only reads");
        standby.promote().unwrap();
        assert_eq!(engine.receipts_of_plugin("p").await.unwrap().len(), 1);
    }

    #[tokio::test]
    async fn a_replica_and_missing_rights_are_waited_for() {
        let test = "refusals::a_replica_and_missing_rights";
        let Some(world) = ServerWorld::on_shared(SqlService::Postgres, test) else { return };
        let database = world.database();
        let engine = world.engine(PATIENCE);
        written(&engine, 1).await.commit_with_receipt(&receipt(1)).await.unwrap();
        let read_only = format!("ALTER DATABASE {database} SET default_transaction_read_only = on");
        world.server.run(None, &read_only).unwrap();
        let engine = world.engine(PATIENCE);
        let refused = engine.begin("p").await.map(drop);
        assert!(
            matches!(&refused, Err(GrantError::Unavailable(why)) if why.contains("replica")),
            "{refused:?}"
        );
        let reset = format!("ALTER DATABASE {database} RESET default_transaction_read_only");
        world.server.run(None, &reset).unwrap();
        written(&engine, 2).await.commit_with_receipt(&receipt(2)).await.unwrap();
    }
}
