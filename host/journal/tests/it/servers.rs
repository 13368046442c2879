//! Tests of a journal on a server beyond the conformance suite: other processes, and a server that fails and
//! returns.

mod formats;
mod poolers;
mod replicas;

use std::sync::Arc;
use std::time::Duration;

use kubewitness_core::Seq;
use kubewitness_core::ports::{
    AppendBatch, Backlog, JournalError, KvWrite, PluginProgress, ProgressSave, StateWitness,
};
use kubewitness_core::views::DiscrepancyView;
use kubewitness_harness::{DatabaseServer, TestWire, database_of as database};
use kubewitness_journal::{Journal, JournalLocation, OpenError, code, verify_at};
use sqlx::{Connection as _, Executor as _, MySqlConnection, PgConnection};

use self::formats::*;
use self::replicas::*;
use crate::proof::damage::sound;
use crate::support::{
    PATIENCE, SOURCE, StoreKind, TestJournal, job, of, on, open_at, options, present, sharing,
};

/// A journal on the shared server, with a connection for further statements.
struct SharedJournal {
    server: &'static DatabaseServer,
    address: String,
}

impl SharedJournal {
    fn new() -> Self {
        let server = StoreKind::here().server().unwrap();
        Self { server, address: server.create_database().unwrap() }
    }

    fn place(&self) -> JournalLocation {
        JournalLocation::server(&self.address).unwrap()
    }

    fn run(&self, statements: &str) -> String {
        self.server.run(Some(database(&self.address)), statements).unwrap()
    }

    /// The same journal over a connection that tests can break.
    async fn behind_a_wire(&self) -> (Arc<TestWire>, JournalLocation) {
        let (user, server) = self.address.split_once('@').unwrap();
        let (server, database) = server.split_once('/').unwrap();
        let wire = TestWire::to(server.parse().unwrap()).await.unwrap();
        let place = JournalLocation::server(&format!("{user}@{}/{database}", wire.address())).unwrap();
        (wire, place)
    }

    /// A session that has run these statements, and stays idle.
    async fn session(&self, statements: &[&'static str]) -> Box<dyn std::any::Any> {
        if StoreKind::here() == StoreKind::Postgres {
            let mut session = PgConnection::connect(&self.address).await.unwrap();
            for statement in statements {
                session.execute(*statement).await.unwrap();
            }
            return Box::new(session);
        }
        let mut session = MySqlConnection::connect(&self.address).await.unwrap();
        for statement in statements {
            session.execute(*statement).await.unwrap();
        }
        Box::new(session)
    }

    /// A transaction of another replica that writes, and lasts longer than the test.
    async fn asks_with_bytes(&self) {
        if StoreKind::here() == StoreKind::Postgres {
            return std::future::pending().await;
        }
        let mut session = MySqlConnection::connect(&self.address).await.unwrap();
        let asked = sqlx::query("SELECT sleep(120), length(?)").bind(vec![0x80_u8, 0, 0xff]);
        asked.execute(&mut session).await.map(drop).unwrap();
    }

    /// Ends all sessions except the calling one.
    fn end_all(&self) {
        self.server.end_sessions(database(&self.address)).unwrap();
    }

    /// Ends the session that holds the journal's lock, as an operator would.
    fn end_the_writer(&self, how: &str) {
        let statement = how.rsplit_once(" with ").unwrap().1;
        self.run(statement);
    }
}

async fn refused(place: &JournalLocation) -> OpenError {
    Journal::open_at(place, options()).await.err().unwrap()
}

async fn a_second_process_is_told_who_writes_and_what_to_do() {
    let beside = SharedJournal::new();
    let first = open_at(&beside.place()).await;
    let error = refused(&beside.place()).await;
    let text = error.to_string();
    let OpenError::Held { holder, how, .. } = error else { panic!("{error}") };
    assert!(holder.contains(&std::process::id().to_string()), "{holder}");
    assert!(text.contains("stop it") && text.contains(&how) && !text.contains("hush"), "{text}");
    // The first journal was not disturbed.
    first.append_batch(of(SOURCE, 0, vec![present(&job(1), 1)])).await.unwrap();
    first.close().await.unwrap();
    open_at(&beside.place()).await.close().await.unwrap();
}

async fn who_lost_the_journal_to_another_process_stops_writing() {
    let beside = SharedJournal::new();
    let first = open_at(&beside.place()).await;
    first.append_batch(of(SOURCE, 0, vec![present(&job(1), 1)])).await.unwrap();
    let OpenError::Held { how, .. } = refused(&beside.place()).await else { panic!("it is not held") };
    beside.end_the_writer(&how);
    let second = open_at(&beside.place()).await;
    second.append_batch(of(SOURCE, 0, vec![present(&job(1), 2)])).await.unwrap();
    // Its session is lost, which is temporary. Then it finds that another process has the journal, which is
    // permanent.
    let mut error = first.append_batch(of(SOURCE, 0, vec![present(&job(1), 3)])).await.unwrap_err();
    for _ in 0..10 {
        if matches!(error, JournalError::Fatal(_)) {
            break;
        }
        error = first.append_batch(of(SOURCE, 0, vec![present(&job(1), 3)])).await.unwrap_err();
    }
    assert!(
        matches!(&error, JournalError::Fatal(text) if text.contains("writes to this journal now")),
        "{error}"
    );
    assert_eq!(second.append_batch(of(SOURCE, 0, vec![present(&job(1), 4)])).await.unwrap().newest, 3);
    assert!(verify_at(&beside.place()).await.unwrap().ok);
}

async fn an_epoch_that_another_process_began_is_seen_in_the_next_transaction() {
    let beside = SharedJournal::new();
    let journal = open_at(&beside.place()).await;
    journal.append_batch(of(SOURCE, 0, vec![present(&job(1), 1)])).await.unwrap();
    beside.run("UPDATE kw_journal SET epoch = epoch + 1");
    let error = journal.append_batch(of(SOURCE, 0, vec![present(&job(1), 2)])).await.unwrap_err();
    assert!(matches!(error, JournalError::Fatal(_)), "{error}");
    assert_eq!(beside.run("SELECT count(*) FROM kw_states").trim(), "1");
}

/// Retries until the final error: the error of an ended session has fewer details.
async fn told_of_the_loss(journal: &Journal) -> String {
    for _ in 0..10 {
        let error = journal.append_batch(of(SOURCE, 0, vec![present(&job(1), 2)])).await.unwrap_err();
        let text = error.to_string();
        if text.contains("copy") {
            return text;
        }
    }
    panic!("nobody says what is so");
}

async fn a_journal_that_is_taken_away_while_it_is_in_use_is_told_to_be_lost() {
    let drop_database = match StoreKind::here() {
        StoreKind::Postgres => "DROP DATABASE NAME WITH (FORCE)",
        _ => "DROP DATABASE NAME",
    };
    let ways = ["DELETE FROM kw_journal", "DROP TABLE kw_journal", "DROP TABLE kw_states", drop_database];
    for way in ways {
        let beside = SharedJournal::new();
        let journal = open_at(&beside.place()).await;
        journal.append_batch(of(SOURCE, 0, vec![present(&job(1), 1)])).await.unwrap();
        if way == drop_database {
            beside.server.run(None, &way.replace("NAME", database(&beside.address))).unwrap();
        } else {
            beside.run(way);
        }
        let text = told_of_the_loss(&journal).await;
        assert!(text.to_lowercase().contains("put a copy") && !text.contains("in doubt"), "{way}: {text}");
    }
}

async fn an_older_copy_that_is_put_in_a_journals_place_is_not_told_to_have_all() {
    let beside = SharedJournal::new();
    let journal = open_at(&beside.place()).await;
    journal.append_batch(of(SOURCE, 0, vec![present(&job(1), 1)])).await.unwrap();
    beside.run("UPDATE kw_journal SET epoch = epoch - 1");
    let text = told_of_the_loss(&journal).await;
    assert!(text.contains("an older copy") && !text.contains("nothing"), "{text}");
}

/// The state of a standby server that takes over without the newest commits.
struct StandbyCopy<'b>(&'b SharedJournal);

impl<'b> StandbyCopy<'b> {
    const TABLES: [&'static str; 17] = [
        "kw_journal",
        "kw_agreed",
        "kw_streams",
        "kw_kinds",
        "kw_objects",
        "kw_owned",
        "kw_statuses",
        "kw_anchors",
        "kw_states",
        "kw_current",
        "kw_snapshots",
        "kw_tallies",
        "kw_gaps",
        "kw_poison",
        "kw_plugins",
        "kw_letters",
        "kw_kv",
    ];

    fn copy(beside: &'b SharedJournal) -> Self {
        beside.run(
            &Self::TABLES.map(|of| format!("CREATE TABLE standby_{of} AS SELECT * FROM {of}")).join("; "),
        );
        Self(beside)
    }

    fn take_over(&self) {
        let again = |of| format!("DELETE FROM {of}; INSERT INTO {of} SELECT * FROM standby_{of}");
        self.0.run(&Self::TABLES.map(again).join("; "));
    }
}

async fn a_commit_that_is_lost_is_noticed_with_the_next_write_and_by_who_looks() {
    for lost in ["states", "a save"] {
        for looks in [false, true] {
            let beside = SharedJournal::new();
            let journal = open_at(&beside.place()).await;
            journal.append_batch(of(SOURCE, 0, vec![present(&job(1), 1)])).await.unwrap();
            let standby = StandbyCopy::copy(&beside);
            match lost {
                "states" => {
                    drop(journal.append_batch(of(SOURCE, 0, vec![present(&job(1), 2)])).await.unwrap());
                }
                _ => journal.save("audit", ProgressSave::default()).await.unwrap(),
            }
            standby.take_over();
            let result = match looks {
                true => journal.await_earlier_writes().await,
                false => journal.append_batch(of(SOURCE, 0, vec![present(&job(1), 9)])).await.map(drop),
            };
            let Err(JournalError::Fatal(text)) = result else { panic!("{lost}: {result:?}") };
            assert!(
                text.contains("commits of the journal are gone") && text.contains("Start again"),
                "{text}"
            );
            assert_eq!(beside.run("SELECT count(*) FROM kw_states").trim(), "1");
        }
    }
}

/// All sessions end with the former server, and another process may write first.
async fn a_lost_commit_is_noticed_after_another_process_has_written_more() {
    let beside = SharedJournal::new();
    let (wire, place) = beside.behind_a_wire().await;
    let one = Journal::open_at(&place, sharing("one")).await.unwrap();
    let two = Journal::open_at(&beside.place(), sharing("two")).await.unwrap();
    two.append_batch(of(SOURCE, 0, vec![present(&job(1), 1)])).await.unwrap();
    let standby = StandbyCopy::copy(&beside);
    one.append_batch(of(SOURCE, 0, vec![present(&job(1), 2)])).await.unwrap();
    wire.cut();
    two.close().await.unwrap();
    standby.take_over();
    let three = Journal::open_at(&beside.place(), sharing("three")).await.unwrap();
    for version in 3..10 {
        three.append_batch(of(SOURCE, 0, vec![present(&job(1), version)])).await.unwrap();
    }
    let mut result = one.await_earlier_writes().await;
    while matches!(result, Err(JournalError::Unavailable(_))) {
        result = one.await_earlier_writes().await;
    }
    let Err(JournalError::Fatal(text)) = result else { panic!("{result:?}") };
    assert!(text.contains("commits of the journal are gone"), "{text}");
    three.append_batch(of(SOURCE, 0, vec![present(&job(1), 10)])).await.unwrap();
}

/// A session for reads may reach a copy that lags, so a plugin's progress is never read from there.
async fn what_a_plugin_left_is_read_where_it_is_written() {
    let beside = SharedJournal::new();
    let (wire, place) = beside.behind_a_wire().await;
    let journal = open_at(&place).await;
    let progress = PluginProgress { cursor: 7, ..PluginProgress::default() };
    let kv = vec![KvWrite { key: "k".into(), value: Some(b"v".to_vec()) }];
    let save = ProgressSave { progress: progress.clone(), kv, ..ProgressSave::default() };
    journal.save("audit", save).await.unwrap();
    wire.shut();
    assert!(journal.all_gaps().await.is_err(), "no session reads");
    assert_eq!(journal.plugin_progress("audit").await.unwrap(), Some(progress));
    assert_eq!(journal.plugin_kv("audit").await.unwrap(), [("k".to_owned(), b"v".to_vec())]);
    assert_eq!(journal.dead_letters("audit").await.unwrap(), []);
    // An error reports that the journal is gone, and no remains of it are read.
    beside.run("DELETE FROM kw_journal");
    assert!(matches!(journal.plugin_progress("audit").await, Err(JournalError::Fatal(_))));
}

async fn a_database_without_a_journal_is_not_verified_and_not_written_to() {
    let beside = SharedJournal::new();
    let error = verify_at(&beside.place()).await.unwrap_err();
    assert!(matches!(error, OpenError::Unavailable { .. }), "{error}");
    let tables = beside.run("SELECT count(*) FROM information_schema.tables WHERE table_name LIKE 'kw%'");
    // In MySQL, where a schema is a database, this user sees the databases of other tests.
    if StoreKind::here() == StoreKind::Postgres {
        assert_eq!(tables.trim(), "0");
    }
}

async fn nobody_there_is_an_error_that_may_pass_and_is_told_without_the_password() {
    let scheme = StoreKind::here().service().unwrap().scheme();
    let place = JournalLocation::server(&format!("{scheme}://ann:hush@127.0.0.1:1/none")).unwrap();
    let error = refused(&place).await;
    let text = error.to_string();
    assert!(matches!(error, OpenError::Away { .. }), "{text}");
    assert!(text.contains("127.0.0.1:1/none") && !text.contains("hush"), "{text}");
}

/// The machine or the network may be gone without any packet that reports it.
async fn a_server_that_says_nothing_any_more_is_not_waited_for_for_ever() {
    let beside = SharedJournal::new();
    let (wire, place) = beside.behind_a_wire().await;
    let journal = open_at(&place).await;
    wire.deafen();
    let (opened, read, wrote) = tokio::time::timeout(2 * PATIENCE, async {
        let state = of(SOURCE, 0, vec![present(&job(1), 1)]);
        tokio::join!(refused(&place), journal.all_gaps(), journal.append_batch(state))
    })
    .await
    .unwrap();
    assert!(matches!(opened, OpenError::Away { .. }), "{opened}");
    for error in [read.unwrap_err(), wrote.unwrap_err()] {
        assert!(matches!(error, JournalError::Unavailable(_)), "{error}");
    }
}

/// An error that only a person can correct is reported at once, with the remedy; waiting would hide it.
async fn a_server_that_refuses_is_told_from_one_that_is_away() {
    let beside = SharedJournal::new();
    let name = database(&beside.address);
    let (scheme, rest) = beside.address.split_once("://").unwrap();
    let (login, at) = rest.split_once('@').unwrap();
    let user = login.split(':').next().unwrap();
    let mut wrong = vec![
        (format!("{scheme}://{user}:wrong-word@{at}"), "correct the user or the password"),
        (format!("{scheme}://{login}@{}", at.replace(name, "none")), "make the database"),
    ];
    // PostgreSQL waits for the client's first message, so a MySQL client finds nobody.
    if StoreKind::here() != StoreKind::Postgres {
        wrong.push((format!("postgres://{login}@{at}"), "host and port"));
    }
    // MySQL asks a user's first connection for the password itself, which is sent over TLS only.
    if StoreKind::here() == StoreKind::Mysql {
        let fresh = format!("fresh_{name}");
        beside.run(&format!("CREATE USER {fresh}@'127.0.0.1' IDENTIFIED BY 'wrong-word'"));
        wrong.push((
            format!("{scheme}://{fresh}:wrong-word@{at}?ssl-mode=DISABLED"),
            "`ssl-mode=DISABLED` out of",
        ));
    }
    // A user who may read and write, but create nothing.
    let poor = match StoreKind::here() {
        StoreKind::Postgres => {
            "CREATE USER poor_NAME PASSWORD 'wrong-word'; REVOKE CREATE ON SCHEMA public FROM PUBLIC"
        }
        _ => {
            "CREATE USER poor_NAME@'127.0.0.1' IDENTIFIED BY 'wrong-word'; \
              GRANT SELECT, INSERT, UPDATE, DELETE ON NAME.* TO poor_NAME@'127.0.0.1'"
        }
    };
    beside.run(&poor.replace("NAME", name));
    wrong.push((format!("{scheme}://poor_{name}:wrong-word@{at}"), "grant that user the right"));
    for (address, remedy) in wrong {
        let place = JournalLocation::server(&address).unwrap();
        let error = refused(&place).await;
        let text = error.to_string();
        assert!(matches!(&error, OpenError::Refused { .. }), "{error:?}");
        assert!(text.contains(remedy) && !text.contains("wrong-word"), "{text}");
        // Reading an existing journal needs fewer rights.
        if remedy != "grant that user the right" {
            let error = verify_at(&place).await.unwrap_err();
            assert!(matches!(&error, OpenError::Refused { .. }), "{error:?}");
        }
    }
}

async fn damage_is_found_under_its_code() {
    let planted = [
        (code::SEQUENCE, "DELETE FROM kw_states WHERE seq = 77"),
        (code::ENVELOPE, "UPDATE kw_states SET observed_ms = observed_ms + 1 WHERE seq = 60"),
        (code::ENVELOPE, "UPDATE kw_statuses SET sum = sum + 1"),
        (code::ENVELOPE, "UPDATE kw_objects SET name = uid WHERE id = 2"),
        (code::DOCUMENT, "UPDATE kw_states SET document = '' WHERE seq = 90"),
        (code::CURRENT, "UPDATE kw_current SET tail = tail - 5 WHERE object = 1"),
        (code::CURRENT, "DELETE FROM kw_current WHERE object = 1"),
        (code::CHAIN, "UPDATE kw_objects SET tail = tail - 5 WHERE tail IS NOT NULL"),
        (code::CHECKPOINT, "UPDATE kw_streams SET checkpoint = ''"),
        (code::COUNT, "UPDATE kw_streams SET states = states + 1"),
        (code::COUNT, "UPDATE kw_tallies SET states = states - 1"),
        (code::CURSOR, "UPDATE kw_plugins SET progress = 'nonsense'"),
        (code::COMPLETENESS, "DELETE FROM kw_letters"),
        (code::LETTER, "UPDATE kw_letters SET seq = 5000"),
    ];
    // All cases use one journal, one after the other, and each is undone.
    let desk = sound().await;
    for (expected, statement) in planted {
        let name = desk.place.to_string();
        let database = database(&name);
        let server = StoreKind::here().server().unwrap();
        let table = statement.split_whitespace().find(|word| word.starts_with("kw_")).unwrap();
        let keep = format!("CREATE TABLE kept AS SELECT * FROM {table}");
        server.run(Some(database), &keep).unwrap();
        server.run(Some(database), statement).unwrap();
        let report = desk.verify().await;
        let codes: Vec<_> = report.problems.iter().map(|problem| problem.code.as_str()).collect();
        assert!(codes.contains(&expected), "{statement} was found as {:#?}", report.problems);
        let undo = format!("DELETE FROM {table}; INSERT INTO {table} SELECT * FROM kept; DROP TABLE kept");
        server.run(Some(database), &undo).unwrap();
        desk.assert_sound().await;
    }
}

/// Settings that an operator may have made for all sessions: transactions without a beginning, and truncated
/// answers.
async fn a_servers_own_defaults_change_nothing() {
    let defaults = match StoreKind::here() {
        StoreKind::Postgres => "ALTER ROLE ALL SET default_transaction_isolation = 'serializable'",
        _ => {
            "SET GLOBAL autocommit = 0, GLOBAL completion_type = 1, GLOBAL sql_select_limit = 3; \
             SET GLOBAL TRANSACTION ISOLATION LEVEL SERIALIZABLE"
        }
    };
    let Some((_server, place, journal)) = own_with(defaults).await else { return };
    for version in 1..=10 {
        assert_eq!(until_durable(&journal, version).await, version);
        assert_eq!(journal.read(0, 100).await.unwrap().len() as u64, version);
    }
    let report = verify_at(&place).await.unwrap();
    assert!(report.ok && report.states_checked == 10, "{:#?}", report.problems);
    journal.close().await.unwrap();
}

/// A separate server with a journal.
async fn own() -> Option<(DatabaseServer, JournalLocation, Journal)> {
    own_with("SELECT 1").await
}

async fn own_with(first: &str) -> Option<(DatabaseServer, JournalLocation, Journal)> {
    let service = StoreKind::here().server()?.service();
    let server = DatabaseServer::start(service, &[]).unwrap()?;
    let place = JournalLocation::server(&server.create_database().unwrap()).unwrap();
    server.run(None, first).unwrap();
    let journal = open_at(&place).await;
    Some((server, place, journal))
}

/// Retries until the state is durable, as the watch does.
async fn until_durable(journal: &Journal, version: u64) -> Seq {
    let tried = async {
        loop {
            match journal.append_batch(of(SOURCE, 0, vec![present(&job(1), version)])).await {
                Ok(appended) => return appended.newest,
                Err(JournalError::Unavailable(_)) => tokio::time::sleep(Duration::from_millis(50)).await,
                Err(error) => panic!("{error}"),
            }
        }
    };
    tokio::time::timeout(PATIENCE, tried).await.unwrap()
}

async fn a_server_that_goes_away_is_waited_for_and_nothing_is_lost_or_doubled() {
    let Some((mut server, place, journal)) = own().await else { return };
    let ends: [fn(&mut DatabaseServer) -> anyhow::Result<()>; 3] =
        [DatabaseServer::stop, DatabaseServer::stop_at_once, DatabaseServer::kill];
    let mut version = 0;
    for end in ends {
        for _ in 0..5 {
            version += 1;
            assert_eq!(until_durable(&journal, version).await, version);
        }
        end(&mut server).unwrap();
        let error =
            journal.append_batch(of(SOURCE, 0, vec![present(&job(1), version + 1)])).await.unwrap_err();
        assert!(matches!(error, JournalError::Unavailable(_)), "{error}");
        let error = journal.read_at(&[1]).await.unwrap_err();
        assert!(matches!(error, JournalError::Unavailable(_)), "{error}");
        server.start_again().unwrap();
    }
    assert_eq!(until_durable(&journal, version + 1).await, version + 1);
    assert_eq!(journal.read(0, 100).await.unwrap().len() as u64, version + 1);
    journal.close().await.unwrap();
    let report = verify_at(&place).await.unwrap();
    assert!(report.ok, "{:#?}", report.problems);
}

async fn nothing_is_read_on_a_server_that_takes_no_writes() {
    let Some((mut server, place, journal)) = own().await else { return };
    until_durable(&journal, 1).await;
    let (copy, leader) = match StoreKind::here() {
        StoreKind::Postgres => {
            ("COPY (SELECT WHERE false) TO PROGRAM 'touch standby.signal'", "SELECT pg_promote()")
        }
        _ => ("SET GLOBAL read_only = 1", "SET GLOBAL read_only = 0"),
    };
    server.run(None, copy).unwrap();
    if matches!(StoreKind::here(), StoreKind::Postgres) {
        server.stop().unwrap();
        server.start_again().unwrap();
    }
    let error = journal.all_gaps().await.unwrap_err();
    assert!(matches!(&error, JournalError::Unavailable(why) if why.contains("takes no writes")), "{error}");
    server.run(None, leader).unwrap();
    until_durable(&journal, 2).await;
    assert_eq!(journal.all_gaps().await.unwrap(), []);
    journal.close().await.unwrap();
    assert!(verify_at(&place).await.unwrap().ok);
}

/// The server ends the writer's session again and again while others write through it.
async fn sessions_that_are_ended_under_load_leave_every_state_once() {
    let beside = SharedJournal::new();
    let journal = open_at(&beside.place()).await;
    let writing = async {
        for version in 1..=120 {
            assert_eq!(until_durable(&journal, version).await, version);
        }
    };
    let ending = async {
        for _ in 0..12 {
            tokio::time::sleep(Duration::from_millis(20)).await;
            beside.end_all();
        }
    };
    tokio::join!(writing, ending);
    let desk = TestJournal { folder: tempfile::tempdir().unwrap(), place: beside.place(), journal };
    assert_eq!(desk.verify().await.states_checked, 120);
    desk.assert_sound().await;
}

macro_rules! on_servers {
    ($($test:ident),* $(,)?) => {
        on_servers!(@on postgres, Postgres, $($test),*);
        on_servers!(@on mariadb, MariaDb, $($test),*);
        on_servers!(@on mysql, Mysql, $($test),*);
    };
    (@on $module:ident, $kind:ident, $($test:ident),*) => {
        mod $module {
            $(#[tokio::test]
            async fn $test() {
                let name = concat!(module_path!(), "::", stringify!($test));
                super::on(super::StoreKind::$kind, name, super::$test()).await;
            })*
        }
    };
}

on_servers!(
    a_second_process_is_told_who_writes_and_what_to_do,
    who_lost_the_journal_to_another_process_stops_writing,
    an_epoch_that_another_process_began_is_seen_in_the_next_transaction,
    a_journal_that_is_taken_away_while_it_is_in_use_is_told_to_be_lost,
    an_older_copy_that_is_put_in_a_journals_place_is_not_told_to_have_all,
    a_commit_that_is_lost_is_noticed_with_the_next_write_and_by_who_looks,
    a_lost_commit_is_noticed_after_another_process_has_written_more,
    what_a_plugin_left_is_read_where_it_is_written,
    a_journal_of_a_newer_format_is_refused_and_left_alone,
    a_journal_of_the_first_format_is_made_one_of_this,
    a_journal_of_format_1_gets_sums_and_can_be_cut,
    a_database_without_a_journal_is_not_verified_and_not_written_to,
    nobody_there_is_an_error_that_may_pass_and_is_told_without_the_password,
    a_server_that_says_nothing_any_more_is_not_waited_for_for_ever,
    a_server_that_refuses_is_told_from_one_that_is_away,
    damage_is_found_under_its_code,
    a_servers_own_defaults_change_nothing,
    a_server_that_goes_away_is_waited_for_and_nothing_is_lost_or_doubled,
    nothing_is_read_on_a_server_that_takes_no_writes,
    sessions_that_are_ended_under_load_leave_every_state_once,
    what_two_witness_is_there_once_and_each_knows_of_the_others,
    one_that_wants_it_alone_and_those_that_share_it_keep_apart,
    replicas_of_another_election_are_refused,
    a_lease_that_is_made_anew_is_that_of_who_comes_then,
    a_replica_that_stops_while_it_comes_in_is_ended,
    only_so_many_replicas_come_in,
    only_who_leads_writes_what_plugins_left,
    a_shared_text_is_changed_only_by_who_knows_the_newest,
    a_witness_that_lags_takes_no_checkpoint_back,
    a_watch_that_goes_on_is_known_to_others_while_its_witness_is_there,
    a_gap_of_what_another_witness_has_passed_is_refused_and_its_states_are_not,
    who_witnesses_an_epoch_that_is_over_is_told_where_the_journal_is,
    what_one_sweeps_the_other_does_not_refer_to,
    replicas_whose_sessions_are_ended_under_load_leave_every_state_once,
    a_replica_that_stops_in_the_middle_holds_the_others_up_for_seconds_alone,
    a_replica_that_reads_a_large_answer_is_not_ended_with_one_that_stops,
);

/// By default MySQL would report a cached size for a day.
#[tokio::test]
async fn what_a_journal_in_mysql_takes_is_asked_for_anew_each_time() {
    on(StoreKind::Mysql, "servers::what_a_journal_in_mysql_takes_is_asked_for_anew_each_time", async {
        const PAGES: u64 = 1000;
        let beside = SharedJournal::new();
        let journal = open_at(&beside.place()).await;
        let bytes = async || journal.journal_stats().await.unwrap().bytes;
        let before = bytes().await;
        // The effect of its background work.
        beside.run(&format!(
            "UPDATE mysql.innodb_table_stats SET clustered_index_size = {PAGES} \
             WHERE database_name = database() AND table_name = 'kw_states'; FLUSH TABLE kw_states"
        ));
        let page: u64 = beside.run("SELECT @@innodb_page_size").trim().parse().unwrap();
        let (after, least) = (bytes().await, PAGES * page);
        assert!(before < least && after >= least, "{before} bytes, then {after}");
    })
    .await;
}
