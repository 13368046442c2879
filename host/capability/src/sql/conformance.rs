//! Tests the promises of a database to plugins, which are the same for every database.

use std::collections::BTreeMap;

use kubewitness_chance::{Dice, ReplayHint, repeat_command, seed, statements};
use kubewitness_core::config::{DatabaseSpec, SecretRef, ServerSpec};
use kubewitness_core::intents::prints::IdPrint;
use kubewitness_core::ports::OnConflict;
use kubewitness_harness::{SqlService, shared_server};

use super::mysql::MysqlLink;
use super::postgres::PostgresLink;
use super::proof::{DatabaseProof, ReceiptProof};
use super::receipt::claims::{TransactionClaims, WriteClaim};
use super::receipt::{StoredReceipt, receipt};
use super::servers::RemoteDatabase;
use super::sqlite::SqliteDatabase;
use super::values::QUERY_ROWS;
use super::*;

/// A database of one test's own; without a server it is SQLite.
struct SuiteDatabase {
    service: Option<SqlService>,
    folder: tempfile::TempDir,
}

impl SuiteDatabase {
    /// `None` where the server is not installed, which is counted.
    fn new(service: Option<SqlService>, test: &str) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        if let Some(service) = service {
            let url = shared_server(service, test)?.create_database().unwrap();
            std::fs::write(folder.path().join("url"), url).unwrap();
        }
        Some(Self { service, folder })
    }

    /// As a host that is started anew would.
    async fn open(&self) -> SharedEngine {
        let url = self.folder.path().join("url").to_string_lossy().into_owned();
        let spec = ServerSpec { url_from: SecretRef::File(url), connections: 4 };
        match self.service {
            None => Arc::new(SqliteDatabase::open(&self.folder.path().join("p.db"), None).await.unwrap()),
            Some(SqlService::Postgres) => {
                Arc::new(RemoteDatabase::<PostgresLink>::new("platform", &spec).await.unwrap())
            }
            Some(_) => Arc::new(RemoteDatabase::<MysqlLink>::new("platform", &spec).await.unwrap()),
        }
    }

    /// As the host's settings name it.
    fn spec(&self) -> DatabaseSpec {
        let url = self.folder.path().join("url");
        let spec = match self.service {
            None => serde_json::json!({"name": "platform", "sqlite": {"path": "p.db"}}),
            Some(service) => {
                serde_json::json!({"name": "platform", service.scheme(): {"urlFrom": {"file": url}}})
            }
        };
        serde_json::from_value(spec).unwrap()
    }

    /// Behind the controller's back.
    async fn run(&self, statement: &str) {
        let Some(service) = self.service else {
            let connection = rusqlite::Connection::open(self.folder.path().join("p.db")).unwrap();
            connection.execute_batch(statement).unwrap();
            return;
        };
        let url = std::fs::read_to_string(self.folder.path().join("url")).unwrap();
        let server = shared_server(service, "a statement beside").unwrap();
        server.run(url.rsplit('/').next(), statement).unwrap();
    }

    /// With a table `t`.
    async fn prepared(&self) -> SharedEngine {
        let engine = self.open().await;
        let mut transaction = engine.begin("p").await.unwrap();
        transaction.execute(&self.create("t"), vec![vec![]]).await.unwrap();
        transaction.commit_with_receipt(&receipt("p.setup", &[])).await.unwrap();
        engine
    }

    fn create(&self, table: &str) -> String {
        let (text, blob) = match self.service {
            None => ("TEXT", "BLOB"),
            Some(SqlService::Postgres) => ("text", "bytea"),
            Some(_) => ("VARCHAR(100) COLLATE utf8mb4_bin", "BLOB"),
        };
        format!(
            "CREATE TABLE IF NOT EXISTS {table} (k {text} NOT NULL UNIQUE, n BIGINT NOT NULL, \
             \"change\" {text}, small SMALLINT, f DOUBLE PRECISION, b {blob})"
        )
    }
}

fn text(text: &str) -> SqlValue {
    SqlValue::Text(text.into())
}

fn row(key: &str, n: i64, change: &str) -> Vec<SqlValue> {
    vec![text(key), SqlValue::Integer(n), text(change)]
}

fn write(on_conflict: OnConflict, rows: Vec<Vec<SqlValue>>) -> TableWrite {
    let columns = ["k", "n", "change"].map(str::to_owned).to_vec();
    TableWrite { table: "t".into(), columns, key: vec!["k".into()], on_conflict, rows }
}

fn newer() -> OnConflict {
    OnConflict::ReplaceOlder { newer: "n".into() }
}

async fn rows(engine: &SharedEngine) -> Vec<Vec<SqlValue>> {
    let mut transaction = engine.begin("q").await.unwrap();
    let rows = transaction.query("SELECT k, n, \"change\" FROM t ORDER BY k", vec![]).await.unwrap();
    transaction.roll_back().await;
    rows
}

async fn a_transaction_that_only_reads_is_held_to_it_by_the_database_itself(world: SuiteDatabase) {
    let engine = world.prepared().await;
    world.run("INSERT INTO t (k, n) VALUES ('a', 1)").await;
    // As the database may be led to by what a query calls. MySQL's functions that write need a right of their own.
    let writing = match world.service {
        Some(SqlService::Postgres) => Some("WITH x AS (DELETE FROM t RETURNING k) SELECT k FROM x"),
        Some(_) => None,
        None => Some("WITH x AS (SELECT 1) DELETE FROM t RETURNING k"),
    };
    let mut transaction = engine.begin_in(TransactionMode::ReadOnly, "p").await.unwrap();
    let read = transaction.query("WITH x AS (SELECT k FROM t) SELECT k FROM x", vec![]).await.unwrap();
    assert_eq!((read, transaction.has_writes()), (vec![vec![text("a")]], false));
    if let Some(writing) = writing {
        let refused = transaction.query(writing, vec![]).await;
        assert!(matches!(refused, Err(GrantError::Denied(_))), "{refused:?}");
    }
    assert!(!transaction.has_writes());
    transaction.roll_back().await;
    let mut transaction = engine.begin_in(TransactionMode::ReadOnly, "p").await.unwrap();
    let refused = transaction.execute("DELETE FROM t", vec![vec![]]).await.unwrap_err();
    assert!(!matches!(refused, GrantError::Unavailable(_)), "no later try does better: {refused}");
    transaction.roll_back().await;
    assert_eq!(rows(&engine).await.len(), 1);
    let mut transaction = engine.begin("p").await.unwrap();
    transaction.execute("DELETE FROM t", vec![vec![]]).await.unwrap();
    transaction.commit_with_receipt(&receipt("p.deleted", &[4])).await.unwrap();
    assert!(rows(&engine).await.is_empty(), "the mode ends with the transaction");
}

/// The rows of both tables that generated statements name, and on PostgreSQL their sequence.
async fn all_that_is_named(engine: &SharedEngine, dialect: SqlDialect) -> Vec<Vec<SqlValue>> {
    let mut found = rows(engine).await;
    let mut queries = vec!["SELECT k, n FROM u ORDER BY k"];
    if dialect == SqlDialect::Postgres {
        queries.push("SELECT last_value, is_called FROM s");
    }
    let mut transaction = engine.begin("q").await.unwrap();
    for query in queries {
        found.extend(transaction.query(query, vec![]).await.unwrap());
    }
    transaction.roll_back().await;
    found
}

/// In a transaction that could write, so that the guard alone is between the statement and the rows.
async fn what_the_guard_takes_for_a_read_changes_nothing(world: SuiteDatabase) {
    let engine = world.prepared().await;
    world.run("INSERT INTO t (k, n) VALUES ('a', 1)").await;
    let mut transaction = engine.begin("p").await.unwrap();
    transaction.execute(&world.create("u"), vec![vec![]]).await.unwrap();
    transaction.commit_with_receipt(&receipt("p.other", &[])).await.unwrap();
    world.run("INSERT INTO u (k, n) VALUES ('b', 2)").await;
    let (dialect, usual) = match world.service {
        None => (SqlDialect::Sqlite, 200),
        Some(SqlService::Postgres) => {
            world.run("CREATE SEQUENCE s").await;
            (SqlDialect::Postgres, 400)
        }
        Some(_) => (SqlDialect::Mysql, 400),
    };
    let number = statements(usual);
    let before = all_that_is_named(&engine, dialect).await;
    let mut answered = 0;
    for statement in guard::differential::reads(dialect, number) {
        let hint = || format!("{statement}; {}", repeat_command(seed()));
        let mut transaction = engine.begin("p").await.unwrap();
        let read = transaction.query(&statement, vec![]).await;
        transaction
            .commit_with_receipt(&receipt("p.read", &[]))
            .await
            .unwrap_or_else(|error| panic!("{error:?}: {}", hint()));
        answered += u64::from(read.is_ok());
        // The server itself takes it for a read, too.
        let mut transaction = engine.begin_in(TransactionMode::ReadOnly, "p").await.unwrap();
        let held = transaction.query(&statement, vec![]).await;
        assert!(!matches!(held, Err(GrantError::Denied(_))), "{held:?}: {}", hint());
        transaction.roll_back().await;
    }
    assert!(answered >= number / 40, "only {answered} of {number} were answered");
    assert_eq!(all_that_is_named(&engine, dialect).await, before);
}

async fn rows_and_receipt_are_there_together(world: SuiteDatabase) {
    let engine = world.prepared().await;
    let mut transaction = engine.begin("p").await.unwrap();
    let two = vec![row("a", 1, "x"), row("b", 2, "it's")];
    transaction.write(write(OnConflict::Ignore, two.clone()), None).await.unwrap();
    transaction.commit_with_receipt(&receipt("p.one", &[3, 5])).await.unwrap();
    drop(engine);
    let again = world.open().await;
    assert_eq!(again.receipts_of_plugin("p").await.unwrap(), receipt("p.one", &[3, 5]).marks);
    assert_eq!(again.receipts_of_plugin("other").await.unwrap(), []);
    assert_eq!(
        (again.was_committed("p.one").await, again.was_committed("p.two").await),
        (Ok(true), Ok(false))
    );
    assert_eq!(rows(&again).await, two);
    again.forget_receipts("p", 4).await.unwrap();
    assert_eq!(again.receipts_of_plugin("p").await.unwrap().len(), 2, "a receipt goes as a whole");
    // More are kept than are read back after years of trouble, and the newest matter.
    let transaction = again.begin("p").await.unwrap();
    transaction.commit_with_receipt(&receipt("p.two", &[7])).await.unwrap();
    let newest_first = [receipt("p.two", &[7]).marks, receipt("p.one", &[3, 5]).marks].concat();
    assert_eq!(again.receipts_of_plugin("p").await.unwrap(), newest_first);
    again.forget_receipts("p", 7).await.unwrap();
    assert_eq!(again.receipts_of_plugin("p").await.unwrap(), []);
}

/// A call that writes these rows.
async fn call(engine: &SharedEngine, token: &str, seq: Seq, written: TableWrite) {
    let mut transaction = engine.begin("p").await.unwrap();
    let mut claims = TransactionClaims::default();
    claims.note_claim(WriteClaim::of(&written));
    transaction.write(written, None).await.unwrap();
    transaction.commit_with_receipt(&StoredReceipt { claims, ..receipt(token, &[seq]) }).await.unwrap();
}

async fn a_receipt_tells_of_its_rows_until_they_may_be_gone(world: SuiteDatabase) {
    let proof = async || proof::prove_database(&world.spec(), world.folder.path()).await;
    assert_eq!(proof().await.receipts, [], "nothing was made by looking");
    let engine = world.prepared().await;
    call(&engine, "p.one", 3, write(OnConflict::Ignore, vec![row("a", 1, "x"), row("b", 2, "y")])).await;
    call(&engine, "p.two", 4, write(newer(), vec![row("a", 5, "z"), row("it's", 2, "y")])).await;
    let sound = proof().await;
    assert_eq!((sound.rows, sound.receipts.len(), &sound.unread), (4, 2, &None));
    assert_eq!(sound.problems, [] as [String; 0]);
    assert_eq!(sound.receipts[0], ReceiptProof { plugin: "p".into(), marks: vec![(3, IdPrint::of("9"))] });
    // Somebody takes a row away, whom nobody asked.
    let mut other = engine.begin("p").await.unwrap();
    other.execute("DELETE FROM t WHERE k = ?", vec![vec![text("b")]]).await.unwrap();
    other.commit_with_receipt(&receipt("p.three", &[])).await.unwrap();
    let problems = proof().await.problems;
    assert!(problems.len() == 1 && problems[0].contains("without its rows: 1 of 2"), "{problems:?}");
    // The plugin itself takes one away: nothing more is told of what was there until then.
    let mut own = engine.begin("p").await.unwrap();
    own.execute("DELETE FROM t WHERE k = ?", vec![vec![text("a")]]).await.unwrap();
    let mut claims = TransactionClaims::default();
    claims.takes = true;
    own.commit_with_receipt(&StoredReceipt { claims, ..receipt("p.four", &[6]) }).await.unwrap();
    let after = proof().await;
    assert_eq!((after.rows, after.receipts.len(), after.problems), (0, 3, Vec::new()));
    call(&engine, "p.five", 7, write(OnConflict::Ignore, vec![row("c", 1, "x")])).await;
    assert_eq!(proof().await.rows, 1);
    crate::forget_receipts(&world.spec(), world.folder.path(), "p").await.unwrap();
    assert_eq!(proof().await, DatabaseProof { database: "platform".into(), ..DatabaseProof::default() });
}

async fn a_receipt_that_was_changed_is_found(world: SuiteDatabase) {
    let engine = world.prepared().await;
    let planted = [
        ("UPDATE kubewitness_receipts SET last = 9 WHERE plugin = 'p'", "is not what was written"),
        (
            "UPDATE kubewitness_receipts SET last = 9 WHERE plugin = '/rows'",
            "does not match its list of rows",
        ),
        ("DELETE FROM kubewitness_receipts WHERE plugin = 'p'", "without their receipt"),
        ("UPDATE kubewitness_receipts SET token = 'p.x' WHERE plugin = 'p'", "without their receipt"),
        ("DROP TABLE t", "can't be looked for in the table `t`"),
    ];
    for (statement, expected) in planted {
        call(&engine, "p.one", 3, write(OnConflict::Ignore, vec![row("a", 1, "x")])).await;
        world.run(statement).await;
        let proof = proof::prove_database(&world.spec(), world.folder.path()).await;
        let is_found = proof.problems.iter().any(|problem| problem.contains(expected));
        assert!(is_found, "{statement}: {proof:?}");
        world.run("DELETE FROM kubewitness_receipts").await;
    }
}

async fn a_call_that_goes_away_leaves_nothing_and_blocks_nobody(world: SuiteDatabase) {
    let engine = world.prepared().await;
    for dropped in [true, false] {
        let mut transaction = engine.begin("p").await.unwrap();
        transaction.write(write(OnConflict::Ignore, vec![row("a", 1, "x")]), None).await.unwrap();
        if dropped {
            drop(transaction);
        } else {
            transaction.roll_back().await;
        }
        assert_eq!(engine.receipts_of_plugin("p").await.unwrap(), []);
        assert_eq!(rows(&engine).await, [] as [Vec<SqlValue>; 0]);
    }
}

async fn an_older_row_never_replaces_a_newer_one(world: SuiteDatabase) {
    let engine = world.prepared().await;
    let mut transaction = engine.begin("p").await.unwrap();
    for n in [5, 4, 6, 6, 1] {
        let change = format!("at {n}");
        transaction.write(write(newer(), vec![row("a", n, &change)]), None).await.unwrap();
        transaction.write(write(OnConflict::Ignore, vec![row("first", n, &change)]), None).await.unwrap();
    }
    transaction.commit_with_receipt(&receipt("p.t", &[1])).await.unwrap();
    assert_eq!(rows(&engine).await, [row("a", 6, "at 6"), row("first", 5, "at 5")]);
}

async fn a_write_that_fails_is_undone_alone(world: SuiteDatabase) {
    let engine = world.prepared().await;
    let mut transaction = engine.begin("p").await.unwrap();
    transaction.write(write(OnConflict::Ignore, vec![row("a", 1, "x")]), None).await.unwrap();
    // More than one statement's worth in some databases; the last row of all is the bad one.
    let mut many: Vec<_> = (0..300).map(|n| row(&format!("m{n:03}"), n, "x")).collect();
    many[299][1] = SqlValue::Null;
    let failed = transaction.write(write(OnConflict::Ignore, many), None).await;
    assert!(matches!(&failed, Err(GrantError::Invalid(_))), "{failed:?}");
    assert_eq!(transaction.check_intact(), Ok(()));
    let failed = transaction.query("SELECT nothing FROM t", vec![]).await;
    assert!(matches!(&failed, Err(GrantError::Invalid(_))), "{failed:?}");
    let failed =
        transaction.execute("INSERT INTO t (k, n) VALUES (?, ?)", vec![row("a", 2, "")[..2].to_vec()]);
    assert!(matches!(failed.await, Err(GrantError::Invalid(_))), "the key is there already");
    transaction.write(write(OnConflict::Ignore, vec![row("b", 1, "y")]), None).await.unwrap();
    transaction.commit_with_receipt(&receipt("p.t", &[1])).await.unwrap();
    assert_eq!(rows(&engine).await, [row("a", 1, "x"), row("b", 1, "y")]);
}

/// The newest of each key, and not the first row.
fn copy_into(table: &str) -> TableCopy {
    let columns = ["n", "k"].map(str::to_owned).to_vec();
    TableCopy { table: table.into(), columns, key: vec!["k".into()], on_conflict: newer(), without: vec![0] }
}

async fn the_same_rows_go_to_a_second_table_or_to_none(world: SuiteDatabase) {
    let engine = world.prepared().await;
    let mut transaction = engine.begin("p").await.unwrap();
    transaction.execute(&world.create("s"), vec![vec![]]).await.unwrap();
    transaction.commit_with_receipt(&receipt("p.second", &[])).await.unwrap();
    let mut transaction = engine.begin("p").await.unwrap();
    let both = vec![row("old", 9, "x"), row("a", 2, "x"), row("b", 3, "y")];
    transaction.write(write(OnConflict::Ignore, both.clone()), Some(copy_into("s"))).await.unwrap();
    // The first table keeps what it has; the second takes what is newer.
    let further_rows = vec![row("c", 1, "z"), row("a", 7, "later"), row("b", 1, "earlier")];
    transaction.write(write(OnConflict::Ignore, further_rows), Some(copy_into("s"))).await.unwrap();
    // A row that one of them can't take goes to neither.
    let bad = vec![row("d", 1, "x"), row("e", 1, "x"), vec![text("f"), SqlValue::Null, text("x")]];
    let refused = transaction.write(write(OnConflict::Ignore, bad), Some(copy_into("s"))).await;
    assert!(matches!(&refused, Err(GrantError::Invalid(_))), "{refused:?}");
    let narrow = TableCopy { columns: vec!["k".into(), "small".into()], ..copy_into("s") };
    let good = || write(OnConflict::Ignore, vec![row("g", 1, "x"), row("h", 1, "x")]);
    let beyond = TableCopy { without: vec![2], ..copy_into("s") };
    for (copy, why) in [(narrow, "the column `small`"), (beyond, "leaves out row 2, but")] {
        let refused = transaction.write(good(), Some(copy)).await;
        assert!(
            matches!(&refused, Err(GrantError::Invalid(message)) if message.contains(why)),
            "{refused:?}"
        );
    }
    let refused = transaction.write(good(), Some(copy_into("nowhere"))).await;
    assert!(matches!(&refused, Err(GrantError::Invalid(_))), "{refused:?}");
    transaction.commit_with_receipt(&receipt("p.t", &[1])).await.unwrap();
    assert_eq!(
        rows(&engine).await,
        [row("a", 2, "x"), row("b", 3, "y"), row("c", 1, "z"), row("old", 9, "x")]
    );
    let mut transaction = engine.begin("q").await.unwrap();
    let second = transaction.query("SELECT k, n, \"change\" FROM s ORDER BY k", vec![]).await.unwrap();
    let kept = |key: &str, n| vec![text(key), SqlValue::Integer(n), SqlValue::Null];
    assert_eq!(second, [kept("a", 7), kept("b", 3)]);
    transaction.roll_back().await;
}

async fn one_statement_runs_for_many_rows_and_missing_values_are_not_null(world: SuiteDatabase) {
    let engine = world.prepared().await;
    let mut transaction = engine.begin("p").await.unwrap();
    let insert = "INSERT INTO t (k, n, \"change\") VALUES (?, ?, ?)";
    let many = (0..77).map(|n| row(&format!("k{n}"), n, "x")).collect();
    assert_eq!(transaction.execute(insert, many).await, Ok(77));
    let update = "UPDATE t SET n = n + ?, \"change\" = ? WHERE k = ?";
    let two = vec![
        vec![SqlValue::Integer(1), SqlValue::Null, text("k0")],
        vec![SqlValue::Integer(2), text("y"), text("none")],
    ];
    assert_eq!(transaction.execute(update, two).await, Ok(1));
    let short = transaction.execute(update, vec![vec![SqlValue::Integer(1)]]).await;
    assert!(matches!(short, Err(GrantError::Invalid(_))), "{short:?}");
    let read = transaction.query("SELECT n, \"change\" FROM t WHERE k = ?", vec![text("k0")]).await;
    assert_eq!(read.unwrap(), [[SqlValue::Integer(1), SqlValue::Null]]);
    transaction.roll_back().await;
}

async fn values_come_back_as_what_they_are(world: SuiteDatabase) {
    let engine = world.prepared().await;
    let mut transaction = engine.begin("p").await.unwrap();
    let columns = ["k", "n", "change", "small", "f", "b"].map(str::to_owned).to_vec();
    let kept = vec![
        text("é 漢 \u{1f600}' \" \\ %"),
        SqlValue::Integer(i64::MIN),
        SqlValue::Null,
        SqlValue::Integer(-32_768),
        SqlValue::Float(1.5),
        SqlValue::Blob(vec![0, 255, 39, 92]),
    ];
    let one_row = |row: Vec<SqlValue>| TableWrite {
        table: "t".into(),
        columns: columns.clone(),
        key: vec!["k".into()],
        on_conflict: OnConflict::Ignore,
        rows: vec![row],
    };
    transaction.write(one_row(kept.clone()), None).await.unwrap();
    let mut other = kept.clone();
    (other[0], other[1], other[3]) = (text("other"), SqlValue::Integer(i64::MAX), SqlValue::Boolean(true));
    transaction.write(one_row(other.clone()), None).await.unwrap();
    let read = "SELECT k, n, \"change\", small, f, b FROM t WHERE k = ?";
    assert_eq!(transaction.query(read, vec![kept[0].clone()]).await.unwrap(), [kept]);
    other[3] = SqlValue::Integer(1);
    assert_eq!(transaction.query(read, vec![text("other")]).await.unwrap(), [other]);
    transaction.roll_back().await;
}

async fn a_table_is_made_and_written_in_one_call(world: SuiteDatabase) {
    let engine = world.open().await;
    let mut transaction = engine.begin("p").await.unwrap();
    let missing = transaction.write(write(OnConflict::Ignore, vec![row("a", 1, "x")]), None).await;
    assert!(
        matches!(&missing, Err(GrantError::Invalid(why)) if why.contains("no such table")),
        "{missing:?}"
    );
    transaction.roll_back().await;
    let mut transaction = engine.begin("p").await.unwrap();
    for _ in 0..2 {
        transaction.execute(&world.create("t"), vec![vec![]]).await.unwrap();
    }
    transaction.write(write(OnConflict::Ignore, vec![row("a", 1, "x")]), None).await.unwrap();
    transaction.commit_with_receipt(&receipt("p.t", &[1])).await.unwrap();
    assert_eq!(rows(&engine).await, [row("a", 1, "x")]);
}

async fn calls_that_make_the_same_tables_at_once_all_succeed(world: SuiteDatabase) {
    let engine = world.open().await;
    let call = |n: i64| {
        let (engine, create) = (engine.clone(), world.create("t"));
        async move {
            let mut transaction = engine.begin("p").await.unwrap();
            transaction.execute(&create, vec![vec![]]).await.unwrap();
            let rows = vec![row(&n.to_string(), n, "x"), row("shared", n, "x")];
            transaction.write(write(newer(), rows), None).await.unwrap();
            transaction.commit_with_receipt(&receipt(&format!("p.{n}"), &[n as Seq])).await.unwrap();
        }
    };
    futures::future::join_all((1..=8).map(call)).await;
    assert_eq!(rows(&engine).await.len(), 9);
    assert_eq!(rows(&engine).await[8], row("shared", 8, "x"));
    assert_eq!(engine.receipts_of_plugin("p").await.unwrap().len(), 8);
}

async fn a_query_gives_no_more_than_its_bound(world: SuiteDatabase) {
    let engine = world.prepared().await;
    let mut transaction = engine.begin("p").await.unwrap();
    let most = QUERY_ROWS as i64;
    for part in (0..=most).collect::<Vec<_>>().chunks(2_000) {
        let rows = part.iter().map(|n| row(&n.to_string(), *n, "x")).collect();
        transaction.write(write(OnConflict::Ignore, rows), None).await.unwrap();
    }
    let below = transaction.query("SELECT k FROM t WHERE n < ?", vec![SqlValue::Integer(most)]).await;
    assert_eq!(below.unwrap().len(), QUERY_ROWS);
    let over = transaction.query("SELECT k FROM t", vec![]).await;
    assert!(matches!(over, Err(GrantError::TooLarge(_))), "{over:?}");
    // The connection is as good as before.
    transaction.write(write(newer(), vec![row("0", 99, "y")]), None).await.unwrap();
    transaction.commit_with_receipt(&receipt("p.t", &[1])).await.unwrap();
    assert_eq!(engine.was_committed("p.t").await, Ok(true));
}

/// Against a model that applies the rows one by one.
async fn any_writes_leave_what_a_model_has(world: SuiteDatabase) {
    let engine = world.prepared().await;
    let mut model: BTreeMap<String, (i64, String)> = BTreeMap::new();
    let seed = kubewitness_chance::seed();
    let _replay = ReplayHint { package: "kubewitness-capability", test: "any_writes", seed };
    let mut dice = Dice::new(seed);
    for round in 0..40 {
        let (replaces, fails, ends) = (dice.below(2) == 0, dice.below(5) == 0, dice.below(4) != 0);
        let mut rows: Vec<_> = (0..dice.below(40) + 1)
            .map(|at| (dice.below(30).to_string(), dice.below(20) as i64, format!("round {round} row {at}")))
            .collect();
        if replaces {
            // Which of two that are equally new stays is nobody's business.
            let mut seen = std::collections::BTreeSet::new();
            rows.retain(|(key, n, _)| seen.insert((key.clone(), *n)));
        }
        let mut given: Vec<_> = rows.iter().map(|(key, n, change)| row(key, *n, change)).collect();
        let mut transaction = engine.begin("p").await.unwrap();
        if fails {
            given.push(vec![text("bad"), SqlValue::Integer(1), text("x"), text("one too many")]);
            let conflict = if replaces { newer() } else { OnConflict::Ignore };
            assert!(transaction.write(write(conflict, given.clone()), None).await.is_err());
            given.pop();
        }
        let conflict = if replaces { newer() } else { OnConflict::Ignore };
        transaction.write(write(conflict, given), None).await.unwrap();
        if !ends {
            drop(transaction);
            continue;
        }
        transaction.commit_with_receipt(&receipt(&format!("p.{round}"), &[round])).await.unwrap();
        for (key, n, change) in rows {
            let kept = model.entry(key).or_insert((n, change.clone()));
            if replaces && n > kept.0 {
                *kept = (n, change);
            }
        }
    }
    let mut expected: Vec<_> = model.iter().map(|(key, (n, change))| row(key, *n, change)).collect();
    let mut found = rows(&engine).await;
    for rows in [&mut expected, &mut found] {
        rows.sort_by_key(|row| format!("{:?}", row[0]));
    }
    assert_eq!(found, expected);
}

macro_rules! for_each_database {
    ($($test:ident),* $(,)?) => {
        for_each_database!(@ sqlite (None) [$($test),*]);
        for_each_database!(@ postgres (Some(SqlService::Postgres)) [$($test),*]);
        for_each_database!(@ mariadb (Some(SqlService::MariaDb)) [$($test),*]);
        for_each_database!(@ mysql (Some(SqlService::MySql)) [$($test),*]);
    };
    (@ $name:ident $service:tt [$($test:ident),*]) => {
        mod $name {
            use super::*;

            $(#[tokio::test]
            async fn $test() {
                let test = concat!(stringify!($name), "::", stringify!($test));
                if let Some(world) = SuiteDatabase::new($service, test) {
                    super::$test(world).await;
                }
            })*
        }
    };
}

for_each_database!(
    a_transaction_that_only_reads_is_held_to_it_by_the_database_itself,
    what_the_guard_takes_for_a_read_changes_nothing,
    rows_and_receipt_are_there_together,
    a_receipt_tells_of_its_rows_until_they_may_be_gone,
    a_receipt_that_was_changed_is_found,
    a_call_that_goes_away_leaves_nothing_and_blocks_nobody,
    an_older_row_never_replaces_a_newer_one,
    a_write_that_fails_is_undone_alone,
    the_same_rows_go_to_a_second_table_or_to_none,
    one_statement_runs_for_many_rows_and_missing_values_are_not_null,
    values_come_back_as_what_they_are,
    a_table_is_made_and_written_in_one_call,
    calls_that_make_the_same_tables_at_once_all_succeed,
    a_query_gives_no_more_than_its_bound,
    any_writes_leave_what_a_model_has,
);
