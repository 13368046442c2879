use kubewitness_core::ports::OnConflict;
use kubewitness_harness::until;

use super::*;
use crate::sql::receipt::receipt;

struct TestDatabase {
    folder: tempfile::TempDir,
    sqlite: SqliteDatabase,
}

async fn store() -> TestDatabase {
    let folder = tempfile::tempdir().unwrap();
    let sqlite = SqliteDatabase::open(&folder.path().join("deep/platform.db"), None).await.unwrap();
    let mut transaction = sqlite.begin("p").await.unwrap();
    transaction
        .execute("CREATE TABLE t (k TEXT PRIMARY KEY, n INTEGER NOT NULL, v)", vec![vec![]])
        .await
        .unwrap();
    transaction.commit_with_receipt(&receipt("setup", &[])).await.unwrap();
    TestDatabase { folder, sqlite }
}

fn row(key: &str, n: i64) -> Vec<SqlValue> {
    vec![SqlValue::Text(key.into()), SqlValue::Integer(n), SqlValue::Null]
}

fn write(on_conflict: OnConflict, rows: Vec<Vec<SqlValue>>) -> TableWrite {
    let columns = ["k", "n", "v"].map(str::to_owned).to_vec();
    TableWrite { table: "t".into(), columns, key: vec!["k".into()], on_conflict, rows }
}

fn newer() -> OnConflict {
    OnConflict::ReplaceOlder { newer: "n".into() }
}

async fn rows(sqlite: &SqliteDatabase) -> Vec<Vec<SqlValue>> {
    let mut transaction = sqlite.begin("p").await.unwrap();
    let rows = transaction.query("SELECT k, n, v FROM t ORDER BY k", vec![]).await.unwrap();
    transaction.roll_back().await;
    rows
}

#[tokio::test]
async fn rows_and_receipt_are_there_together_after_the_file_is_opened_again() {
    let store = store().await;
    let mut transaction = store.sqlite.begin("p").await.unwrap();
    assert_eq!(
        transaction.write(write(OnConflict::Ignore, vec![row("a", 1), row("b", 2)]), None).await,
        Ok(2)
    );
    transaction.commit_with_receipt(&receipt("one", &[3, 5])).await.unwrap();
    drop(store.sqlite);
    let again = SqliteDatabase::open(&store.folder.path().join("deep/platform.db"), None).await.unwrap();
    assert_eq!(rows(&again).await, [row("a", 1), row("b", 2)]);
    assert_eq!(again.receipts_of_plugin("p").await.unwrap(), receipt("one", &[3, 5]).marks);
    assert_eq!(again.receipts_of_plugin("other").await.unwrap(), []);
    assert_eq!((again.was_committed("one").await, again.was_committed("two").await), (Ok(true), Ok(false)));
    again.forget_receipts("p", 4).await.unwrap();
    assert_eq!(again.receipts_of_plugin("p").await.unwrap().len(), 2, "a receipt goes as a whole");
    again.forget_receipts("p", 5).await.unwrap();
    assert_eq!(again.receipts_of_plugin("p").await.unwrap(), []);
}

#[tokio::test]
async fn the_floor_stays_while_receipts_below_it_are_kept() {
    let store = store().await;
    for seq in [3, 7] {
        let mut transaction = store.sqlite.begin("p").await.unwrap();
        transaction.write(write(OnConflict::Ignore, vec![row("a", 1)]), None).await.unwrap();
        transaction.commit_with_receipt(&receipt(&format!("p.{seq}"), &[seq])).await.unwrap();
    }
    let seven = NotedCommit { token: "p.7".into(), at_ms: 1, is_tick: false };
    // As while the past of an added source is delivered.
    for (through, before_ms, left) in [(5, 1, vec![7, 3]), (5, 2, vec![7]), (7, 2, vec![])] {
        let pruning =
            ReceiptPruning { plugin: "p".into(), through, before_ms, floor: 10, pruned_before_ms: before_ms };
        store.sqlite.begin("p").await.unwrap().prune_receipts(pruning).await.unwrap();
        let survey = store
            .sqlite
            .survey_receipts("p", TransactionMode::ReadWrite, std::slice::from_ref(&seven))
            .await
            .unwrap();
        assert_eq!(survey.marks.iter().map(|mark| mark.seq).collect::<Vec<_>>(), left);
        assert_eq!((survey.floor, survey.absent.is_empty()), (Some(10), !left.is_empty()));
        assert_eq!((survey.is_behind(), survey.history.pruned_before_ms), (false, before_ms));
    }
    store.sqlite.forget_receipts("p", 10).await.unwrap();
    assert_eq!(
        store.sqlite.survey_receipts("p", TransactionMode::ReadWrite, &[]).await.unwrap(),
        ReceiptSurvey::default()
    );
}

#[test]
fn of_two_floors_the_higher_one_counts() {
    let survey = ReceiptSurvey::from_rows(Vec::new(), vec![(10, 1), (7, 3)], &[]).unwrap();
    assert_eq!((survey.floor, survey.history.pruned_before_ms), (Some(10), 3));
}

#[tokio::test]
async fn a_call_that_goes_away_leaves_nothing_and_blocks_nobody() {
    let store = store().await;
    let mut transaction = store.sqlite.begin("p").await.unwrap();
    transaction.write(write(OnConflict::Ignore, vec![row("a", 1)]), None).await.unwrap();
    drop(transaction);
    assert_eq!(rows(&store.sqlite).await, [] as [Vec<SqlValue>; 0]);
}

#[tokio::test]
async fn an_older_row_never_replaces_a_newer_one() {
    let store = store().await;
    let mut transaction = store.sqlite.begin("p").await.unwrap();
    for (rows, changed) in
        [(vec![row("a", 5)], 1), (vec![row("a", 4)], 0), (vec![row("a", 5)], 0), (vec![row("a", 6)], 1)]
    {
        assert_eq!(transaction.write(write(newer(), rows), None).await, Ok(changed));
    }
    let rows = transaction.query("SELECT n FROM t", vec![]).await.unwrap();
    assert_eq!(rows, [[SqlValue::Integer(6)]]);
}

#[tokio::test]
async fn a_write_that_fails_is_undone_alone_also_over_several_statements() {
    let store = store().await;
    let mut transaction = store.sqlite.begin("p").await.unwrap();
    transaction.write(write(OnConflict::Ignore, vec![row("a", 1)]), None).await.unwrap();
    // The very last row is invalid.
    let mut many: Vec<_> = (0..300).map(|n| row(&format!("m{n}"), n)).collect();
    many[299][1] = SqlValue::Null;
    let failed = transaction.write(write(OnConflict::Ignore, many), None).await;
    assert!(matches!(&failed, Err(GrantError::Invalid(why)) if why.contains("NOT NULL")), "{failed:?}");
    assert_eq!(transaction.check_intact(), Ok(()));
    transaction.commit_with_receipt(&receipt("t", &[1])).await.unwrap();
    assert_eq!(rows(&store.sqlite).await, [row("a", 1)]);
}

/// This holds whatever the call did before: rows may be written twice, and a plugin's own statements have
/// savepoints.
#[tokio::test]
async fn after_a_write_that_fails_the_call_has_all_that_it_wrote_before() {
    for has_own_statement in [false, true] {
        let store = store().await;
        let mut transaction = store.sqlite.begin("p").await.unwrap();
        transaction.write(write(newer(), vec![row("a", 1), row("b", 1)]), None).await.unwrap();
        if has_own_statement {
            let update = "UPDATE t SET v = 'own' WHERE k = 'b'";
            transaction.execute(update, vec![vec![]]).await.unwrap();
        }
        transaction.write(write(newer(), vec![row("a", 2)]), None).await.unwrap();
        for _ in 0..2 {
            let mut bad = vec![row("a", 3), row("c", 1), row("d", 1)];
            bad[2][1] = SqlValue::Text("no number".into());
            let refused = transaction.write(write(newer(), bad), None).await;
            assert!(matches!(refused, Err(GrantError::Invalid(_))), "{refused:?}");
            let mut bad = vec![row("a", 3), row("c", 1), row("d", 1)];
            bad[2][1] = SqlValue::Null;
            let refused = transaction.write(write(OnConflict::Ignore, bad), None).await;
            assert!(
                matches!(&refused, Err(GrantError::Invalid(why)) if why.contains("NOT NULL")),
                "{refused:?}"
            );
        }
        transaction.write(write(newer(), vec![row("e", 1)]), None).await.unwrap();
        transaction.commit_with_receipt(&receipt("t", &[1])).await.unwrap();
        let mut expected = vec![row("a", 2), row("b", 1), row("e", 1)];
        if has_own_statement {
            expected[1][2] = SqlValue::Text("own".into());
        }
        assert_eq!(rows(&store.sqlite).await, expected);
        assert_eq!(store.sqlite.receipts_of_plugin("p").await.unwrap(), receipt("t", &[1]).marks);
    }
}

#[test]
fn rows_beyond_their_bound_are_not_held_to_be_written_again() {
    let of = |bytes: usize| {
        let rows = vec![vec![SqlValue::Text("x".repeat(bytes))]];
        Arc::new(RowWrite { each: Vec::new(), rows })
    };
    // A row takes memory in addition to its texts.
    let beside = size_of::<Vec<SqlValue>>() + size_of::<SqlValue>();
    let held = WrittenRows::default().and_write(&of(VALUE_BYTES / 2 - beside)).unwrap();
    let held = held.and_write(&of(VALUE_BYTES / 2 - beside)).unwrap();
    assert_eq!((held.writes.len(), held.bytes), (2, VALUE_BYTES));
    assert!(held.and_write(&of(0)).is_none());
}

#[test]
fn only_so_many_writes_are_held_however_small_they_are() {
    let small = Arc::new(RowWrite { each: Vec::new(), rows: vec![Vec::new()] });
    let held = (0..WRITES_HELD).try_fold(WrittenRows::default(), |held, _| held.and_write(&small)).unwrap();
    assert!(held.and_write(&small).is_none());
}

#[tokio::test]
async fn one_statement_runs_for_many_rows_and_missing_values_are_not_null() {
    let store = store().await;
    let mut transaction = store.sqlite.begin("p").await.unwrap();
    let insert = "INSERT INTO t (k, n, v) VALUES (?, ?, ?) ON CONFLICT (k) DO NOTHING";
    let many = (0..77).map(|n| row(&format!("k{n}"), n)).collect();
    assert_eq!(transaction.execute(insert, many).await, Ok(77));
    let update = "UPDATE t SET n = n + ? WHERE k = ?";
    let text = |text: &str| SqlValue::Text(text.into());
    let two = vec![vec![SqlValue::Integer(1), text("k0")], vec![SqlValue::Integer(2), text("none")]];
    assert_eq!(transaction.execute(update, two).await, Ok(1));
    let short = transaction.execute(update, vec![vec![SqlValue::Integer(1)]]).await;
    assert!(matches!(short, Err(GrantError::Invalid(_))), "{short:?}");
}

#[tokio::test]
async fn values_come_back_as_what_they_are() {
    let store = store().await;
    let mut transaction = store.sqlite.begin("p").await.unwrap();
    let params = vec![
        SqlValue::Null,
        SqlValue::Boolean(true),
        SqlValue::Integer(i64::MIN),
        SqlValue::Float(1.5),
        SqlValue::Text("é\0x".into()),
        SqlValue::Blob(vec![0, 255]),
    ];
    let mut read = transaction.query("SELECT ?, ?, ?, ?, ?, ?", params.clone()).await.unwrap();
    assert_eq!(std::mem::replace(&mut read[0][1], SqlValue::Boolean(true)), SqlValue::Integer(1));
    assert_eq!(read, [params]);
}

#[tokio::test]
async fn a_statement_without_end_is_stopped_and_undoes_its_call() {
    let mut store = store().await;
    store.sqlite.patience.statement = Duration::from_millis(50);
    let mut transaction = store.sqlite.begin("p").await.unwrap();
    transaction.write(write(OnConflict::Ignore, vec![row("a", 1)]), None).await.unwrap();
    let endless = "WITH x(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM x) SELECT count(*) FROM x";
    let stopped = transaction.query(endless, vec![]).await;
    assert!(matches!(stopped, Err(GrantError::Timeout(_))), "{stopped:?}");
    assert!(matches!(transaction.query("SELECT 1", vec![]).await, Err(GrantError::Unavailable(_))));
    let refused = transaction.commit_with_receipt(&receipt("t", &[1])).await;
    assert!(matches!(refused, Err(CommitError::RolledBack(_))), "{refused:?}");
    assert_eq!(rows(&store.sqlite).await, [] as [Vec<SqlValue>; 0]);
    assert_eq!(store.sqlite.was_committed("t").await, Ok(false));
}

/// On any machine, one row takes a moment, and all of them minutes.
const SLOW: &str = "INSERT INTO t (k, n) SELECT ?, count(*) FROM \
    (WITH x(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM x WHERE n < 200000) SELECT n FROM x)";

fn many() -> Vec<Vec<SqlValue>> {
    (0..20_000).map(|n| vec![SqlValue::Text(n.to_string())]).collect()
}

/// Another process writes and commits one row.
async fn go_on(sqlite: &SqliteDatabase) {
    let mut transaction = sqlite.begin("p").await.unwrap();
    assert_eq!(transaction.write(write(OnConflict::Ignore, vec![row("next", 1)]), None).await, Ok(1));
    transaction.commit_with_receipt(&receipt("next", &[9])).await.unwrap();
    assert_eq!(rows(sqlite).await, [row("next", 1)]);
}

#[tokio::test]
async fn a_write_of_many_rows_ends_with_the_time_of_its_call_and_undoes_it() {
    let mut store = store().await;
    store.sqlite.patience.transaction = Duration::from_millis(200);
    let mut transaction = store.sqlite.begin("p").await.unwrap();
    let stopped = transaction.execute(SLOW, many()).await;
    assert!(matches!(stopped, Err(GrantError::Timeout(_))), "{stopped:?}");
    assert!(matches!(transaction.check_intact(), Err(GrantError::Unavailable(_))));
    let refused = transaction.commit_with_receipt(&receipt("t", &[1])).await;
    assert!(matches!(refused, Err(CommitError::RolledBack(_))), "{refused:?}");
    store.sqlite.patience = PATIENCE;
    go_on(&store.sqlite).await;
}

#[tokio::test]
async fn a_call_that_goes_away_in_the_middle_of_a_write_leaves_nothing_and_blocks_nobody() {
    let store = store().await;
    let mut transaction = store.sqlite.begin("p").await.unwrap();
    transaction.write(write(OnConflict::Ignore, vec![row("a", 1)]), None).await.unwrap();
    let gone = tokio::time::timeout(Duration::from_millis(100), transaction.execute(SLOW, many())).await;
    assert!(gone.is_err());
    // A holder of the call can only end it.
    assert!(matches!(transaction.query("SELECT 1", vec![]).await, Err(GrantError::Unavailable(_))));
    let refused = transaction.commit_with_receipt(&receipt("t", &[1])).await;
    assert!(matches!(refused, Err(CommitError::RolledBack(_))), "{refused:?}");
    go_on(&store.sqlite).await;
    assert_eq!(store.sqlite.was_committed("t").await, Ok(false));
}

#[tokio::test]
async fn a_call_that_goes_away_while_it_begins_or_ends_is_there_as_a_whole_or_not_at_all() {
    let store = store().await;
    tokio::time::timeout(Duration::ZERO, store.sqlite.begin("p")).await.ok();
    let mut transaction = store.sqlite.begin("p").await.unwrap();
    transaction.write(write(OnConflict::Ignore, vec![row("a", 1)]), None).await.unwrap();
    let left = receipt("left", &[1]);
    tokio::time::timeout(Duration::ZERO, transaction.commit_with_receipt(&left)).await.ok();
    let kept = store.sqlite.was_committed("left").await.unwrap();
    assert_eq!(rows(&store.sqlite).await.len(), usize::from(kept));
    let mut transaction = store.sqlite.begin("p").await.unwrap();
    transaction.write(write(OnConflict::Ignore, vec![row("b", 1)]), None).await.unwrap();
    tokio::time::timeout(Duration::ZERO, transaction.roll_back()).await.ok();
    assert_eq!(rows(&store.sqlite).await.len(), usize::from(kept));
}

#[tokio::test]
async fn work_that_breaks_off_leaves_nothing_and_blocks_nobody() {
    let store = store().await;
    let broken = run_on_blocking_thread(PATIENCE, store.sqlite.hold_writer().await.unwrap(), |writer| {
        writer.begin_for_call().unwrap();
        let limits = CallLimits { patience: PATIENCE, began: Instant::now() };
        let each = vec![Each::of("INSERT INTO t (k, n) VALUES ('a', 1)".into())];
        writer.execute_rows(&RowWrite { each, rows: vec![vec![]] }, &limits).unwrap();
        panic!("planted");
    });
    assert!(matches!(broken.await.map(|(_, ())| ()), Err(GrantError::Unavailable(_))));
    go_on(&store.sqlite).await;
}

#[tokio::test]
async fn a_pipe_in_the_place_of_a_database_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("platform.db");
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    let error = SqliteDatabase::open(&path, None).await.err().unwrap().to_string();
    assert!(error.contains("platform.db can't be opened: it is a pipe"), "{error}");
}

/// A pipe without a writer stands for the disk: opening it blocks in the system, as for a mount that is gone.
#[tokio::test]
async fn a_disk_that_does_not_answer_holds_up_a_call_for_a_while_and_blocks_nobody_once_it_is_back() {
    let store = store().await;
    let pipe = store.folder.path().join("disk");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let patience = SqlitePatience { disk: Duration::from_millis(50), ..PATIENCE };
    let asked = pipe.clone();
    let hung = run_on_blocking_thread(patience, store.sqlite.hold_writer().await.unwrap(), move |_| {
        std::fs::File::open(asked).unwrap();
    });
    assert!(matches!(hung.await.map(|(_, ())| ()), Err(GrantError::Unavailable(_))));
    drop(std::fs::OpenOptions::new().write(true).open(&pipe).unwrap());
    go_on(&store.sqlite).await;
}

#[tokio::test]
async fn a_transaction_that_the_database_undid_is_not_gone_on_with() {
    let store = store().await;
    let beside = rusqlite::Connection::open(store.folder.path().join("deep/platform.db")).unwrap();
    let undoes =
        "CREATE TRIGGER no BEFORE INSERT ON t WHEN NEW.n = 7 BEGIN SELECT RAISE(ROLLBACK, 'no'); END";
    beside.execute_batch(undoes).unwrap();
    for rows in [vec![row("b", 7)], vec![row("b", 2), row("c", 7)]] {
        let mut transaction = store.sqlite.begin("p").await.unwrap();
        transaction.write(write(OnConflict::Ignore, vec![row("a", 1)]), None).await.unwrap();
        let undone = transaction.write(write(OnConflict::Ignore, rows), None).await;
        assert_eq!(undone, Err(GrantError::Invalid("no".into())));
        let second_write = transaction.write(write(OnConflict::Ignore, vec![row("d", 1)]), None).await;
        let why = GrantError::Invalid("the writes of this call were undone: no".into());
        assert_eq!(second_write, Err(why.clone()));
        let kept = transaction.commit_with_receipt(&receipt("undone", &[1])).await;
        assert!(matches!(&kept, Err(CommitError::RolledBack(message)) if *message == why), "{kept:?}");
    }
    go_on(&store.sqlite).await;
}

#[tokio::test]
async fn a_row_that_fails_after_it_was_written_leaves_nothing() {
    let store = store().await;
    let beside = rusqlite::Connection::open(store.folder.path().join("deep/platform.db")).unwrap();
    let fails = "CREATE TRIGGER no AFTER INSERT ON t WHEN NEW.n = 7 BEGIN SELECT RAISE(FAIL, 'no'); END";
    beside.execute_batch(fails).unwrap();
    let mut transaction = store.sqlite.begin("p").await.unwrap();
    let failed = transaction.write(write(OnConflict::Ignore, vec![row("b", 7)]), None).await;
    assert_eq!(failed, Err(GrantError::Invalid("no".into())));
    transaction.write(write(OnConflict::Ignore, vec![row("c", 1)]), None).await.unwrap();
    transaction.commit_with_receipt(&receipt("t", &[1])).await.unwrap();
    assert_eq!(rows(&store.sqlite).await.len(), 1);
}

#[tokio::test]
async fn a_file_that_was_removed_or_replaced_is_not_written_on() {
    let store = store().await;
    let path = store.folder.path().join("deep/platform.db");
    let mut transaction = store.sqlite.begin("p").await.unwrap();
    transaction.write(write(OnConflict::Ignore, vec![row("a", 1)]), None).await.unwrap();
    std::fs::rename(&path, store.folder.path().join("away.db")).unwrap();
    let kept = transaction.commit_with_receipt(&receipt("lost", &[1])).await;
    let is_told = |error: &GrantError| error.to_string().contains("removed or replaced");
    assert!(matches!(&kept, Err(CommitError::RolledBack(message)) if is_told(message)), "{kept:?}");
    // The next call finds a new file with receipts, but without the table.
    let mut transaction = store.sqlite.begin("p").await.unwrap();
    let missing = transaction.write(write(OnConflict::Ignore, vec![row("a", 1)]), None).await;
    assert!(
        matches!(&missing, Err(GrantError::Invalid(why)) if why.contains("no such table")),
        "{missing:?}"
    );
    transaction.roll_back().await;
    // The same between two calls.
    std::fs::remove_file(&path).unwrap();
    let mut transaction = store.sqlite.begin("p").await.unwrap();
    transaction.execute("CREATE TABLE t (k TEXT)", vec![vec![]]).await.unwrap();
    transaction.commit_with_receipt(&receipt("t", &[1])).await.unwrap();
    assert!(path.exists() && store.sqlite.was_committed("t").await.unwrap());
}

#[tokio::test]
async fn a_file_that_can_no_longer_be_used_is_told_by_its_name() {
    let store = store().await;
    let path = store.folder.path().join("deep/platform.db");
    std::fs::remove_file(&path).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    let refused = store.sqlite.begin("p").await.err().unwrap();
    assert!(
        matches!(&refused, GrantError::Unavailable(why) if why.contains("platform.db: it is a pipe")),
        "{refused:?}"
    );
    std::fs::remove_file(&path).unwrap();
    // SQLite's write-ahead log would repair the file.
    for tail in ["-wal", "-shm"] {
        std::fs::remove_file(store.folder.path().join(format!("deep/platform.db{tail}"))).ok();
    }
    std::fs::write(&path, "no database ".repeat(1000)).unwrap();
    let refused = store.sqlite.begin("p").await.err().unwrap();
    assert!(
        matches!(&refused, GrantError::Unavailable(why) if why.starts_with("platform.db: ")),
        "{refused:?}"
    );
}

#[tokio::test]
async fn a_connection_that_may_not_write_is_not_kept() {
    let store = store().await;
    // A file without the right to write is opened like this.
    store.sqlite.hold_writer().await.unwrap().forbid_writing();
    go_on(&store.sqlite).await;
}

#[tokio::test]
async fn what_comes_back_from_a_write_is_of_no_interest() {
    let store = store().await;
    let mut transaction = store.sqlite.begin("p").await.unwrap();
    let insert = "INSERT INTO t (k, n, v) VALUES (?, ?, ?) RETURNING k";
    let done = transaction.execute(insert, vec![row("a", 1), row("b", 2), row("c", 3)]).await;
    assert_eq!(done, Ok(3));
    transaction.commit_with_receipt(&receipt("t", &[])).await.unwrap();
    assert_eq!(rows(&store.sqlite).await.len(), 3);
}

#[tokio::test]
async fn a_file_that_cannot_be_opened_is_told_once() {
    let folder = tempfile::tempdir().unwrap();
    let error = SqliteDatabase::open(folder.path(), None).await.err().unwrap().to_string();
    let expected = format!(
        "{} can't be opened: it is a folder, and a regular file is expected",
        folder.path().display()
    );
    assert!(error.starts_with(&expected), "{error}");
    assert_eq!(error.matches("can't be opened").count(), 1, "{error}");
}

#[tokio::test]
async fn a_query_gives_no_more_than_its_bound() {
    let store = store().await;
    let mut transaction = store.sqlite.begin("p").await.unwrap();
    let many = "WITH x(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM x WHERE n < ?) SELECT n FROM x";
    let most = vec![SqlValue::Integer(QUERY_ROWS as i64)];
    assert_eq!(transaction.query(many, most).await.unwrap().len(), QUERY_ROWS);
    let over = transaction.query(many, vec![SqlValue::Integer(QUERY_ROWS as i64 + 1)]).await;
    assert!(matches!(over, Err(GrantError::TooLarge(_))), "{over:?}");
    // The connection is still usable.
    transaction.write(write(OnConflict::Ignore, vec![row("a", 1)]), None).await.unwrap();
    transaction.commit_with_receipt(&receipt("t", &[1])).await.unwrap();
}

#[tokio::test]
async fn the_writer_is_one_calls_at_a_time_and_waiting_is_bounded() {
    let mut store = store().await;
    store.sqlite.patience.wait = Duration::from_millis(20);
    let first = store.sqlite.begin("p").await.unwrap();
    assert!(matches!(store.sqlite.begin("p").await.err(), Some(GrantError::Unavailable(_))));
    first.roll_back().await;
    store.sqlite.begin("p").await.unwrap().roll_back().await;
}

/// The files in a folder that this process has open.
fn open_files(folder: &std::path::Path) -> usize {
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap();
    // A file may be closed while the list is read.
    let files = descriptors.filter_map(|descriptor| std::fs::read_link(descriptor.ok()?.path()).ok());
    files.filter(|file| file.starts_with(folder)).count()
}

#[tokio::test]
async fn a_database_that_is_opened_and_left_again_and_again_holds_no_file_open() {
    let folder = tempfile::tempdir().unwrap();
    for _ in 0..60 {
        let sqlite = SqliteDatabase::open(&folder.path().join("p.db"), None).await.unwrap();
        assert!(open_files(folder.path()) > 0);
        drop(sqlite);
    }
    let closed = until(Duration::from_secs(60), "the last connections to be closed", async || {
        Ok((open_files(folder.path()) == 0).then_some(()))
    });
    closed.await.unwrap();
}

/// Measures two tables as wide as a sink's, on demand:
/// `cargo test --release -p kubewitness-capability figures -- --ignored --nocapture`.
#[tokio::test]
#[ignore = "prints figures"]
async fn figures_of_a_sink() {
    const OBJECTS: i64 = 5000;
    let store = store().await;
    let words: Vec<_> = (0..15).map(|n| format!("w{n}")).collect();
    let create = |table: &str, key: &str| {
        let words: Vec<_> = words.iter().map(|word| format!("{word} TEXT")).collect();
        format!(
            "CREATE TABLE {table} (id TEXT, seq BIGINT, version TEXT, uid TEXT, {}, UNIQUE ({key}))",
            words.join(", ")
        )
    };
    let mut transaction = store.sqlite.begin("p").await.unwrap();
    transaction.execute(&create("status", "uid"), vec![vec![]]).await.unwrap();
    transaction.execute(&create("history", "version, id"), vec![vec![]]).await.unwrap();
    transaction.commit_with_receipt(&receipt("setup", &[])).await.unwrap();
    let columns: Vec<_> =
        ["id", "seq", "version", "uid"].into_iter().map(str::to_owned).chain(words.clone()).collect();
    let row = |seq: i64| {
        let uid =
            format!("{:016x}-uid-of-an-object", (seq * 7919 % OBJECTS).wrapping_mul(0x1e37_79b9_7f4a_7c15));
        let mut row = vec![
            SqlValue::Text(format!("jobs/0/batch/Job/{uid}/{seq}")),
            SqlValue::Integer(seq),
            SqlValue::Text(seq.to_string()),
            SqlValue::Text(uid),
        ];
        row.extend((0..15).map(|n| SqlValue::Text(format!("some word {n}"))));
        row
    };
    let mut seq = 1_000_000;
    for batch in [1, 16, 64, 256] {
        let (start, calls) = (Instant::now(), 40_000 / batch.max(20));
        for _ in 0..calls {
            let rows: Vec<_> = (seq..seq + batch).map(row).collect();
            let write = |table: &str, key: &[&str], on_conflict| TableWrite {
                table: table.into(),
                columns: columns.clone(),
                key: key.iter().map(|name| (*name).to_owned()).collect(),
                on_conflict,
                rows: rows.clone(),
            };
            let mut transaction = store.sqlite.begin("p").await.unwrap();
            transaction.write(write("history", &["version", "id"], OnConflict::Ignore), None).await.unwrap();
            let newest = OnConflict::ReplaceOlder { newer: "seq".into() };
            transaction.write(write("status", &["uid"], newest), None).await.unwrap();
            let seqs: Vec<_> = (seq..seq + batch).map(|n| n as Seq).collect();
            transaction.commit_with_receipt(&receipt("t", &seqs)).await.unwrap();
            seq += batch;
        }
        println!("batch {batch}: {:?} a state", start.elapsed() / (calls * batch) as u32);
    }
}

#[tokio::test]
async fn what_rows_have_alike_is_in_each_of_them() {
    let store = store().await;
    let row = |key: usize, n, v: &str| {
        vec![SqlValue::Text(format!("{key:04}")), SqlValue::Integer(n), SqlValue::Text(v.into())]
    };
    // Many rows and few, columns that differ late, and a single row.
    let batches: [Vec<_>; 4] = [
        (0..300).map(|key| row(key, 7, "same")).collect(),
        (300..307).map(|key| row(key, key as i64, "same")).collect(),
        (307..310).map(|key| row(key, 8, "other")).collect(),
        vec![row(310, 9, "alone")],
    ];
    for (token, rows) in batches.iter().enumerate() {
        let mut transaction = store.sqlite.begin("p").await.unwrap();
        let written = transaction.write(write(newer(), rows.clone()), None).await;
        assert_eq!(written, Ok(rows.len() as u64));
        transaction.commit_with_receipt(&receipt(&token.to_string(), &[])).await.unwrap();
    }
    assert_eq!(rows(&store.sqlite).await, batches.concat());
}

#[tokio::test]
async fn a_file_grows_to_its_size_and_no_further() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("p.db");
    let sqlite = SqliteDatabase::open(&path, Some(Bytes(1 << 20))).await.unwrap();
    let mut transaction = sqlite.begin("p").await.unwrap();
    transaction.execute("CREATE TABLE t (v)", vec![vec![]]).await.unwrap();
    let half = || vec![vec![SqlValue::Blob(vec![7; 512 << 10])]];
    assert_eq!(transaction.execute("INSERT INTO t VALUES (?)", half()).await, Ok(1));
    let refused = transaction.execute("INSERT INTO t VALUES (?)", half()).await.unwrap_err();
    assert!(refused.to_string().contains("full"), "{refused}");
    transaction.roll_back().await;
}

#[tokio::test]
async fn a_statement_makes_no_value_beyond_its_bound_and_no_more_than_the_heap_may_hold() {
    let store = store().await;
    let mut transaction = store.sqlite.begin("p").await.unwrap();
    let large = "SELECT length(replace(?, 'a', 'abcdefgh'))";
    let text = |length: usize| vec![SqlValue::Text("a".repeat(length))];
    assert_eq!(transaction.query(large, text(1 << 20)).await.unwrap()[0], [SqlValue::Integer(8 << 20)]);
    let refused = transaction.query(large, text(3 << 20)).await.unwrap_err();
    assert!(refused.to_string().contains("too big"), "{refused}");
    let nested =
        (0..8).fold("'aaaaaaaaaaaaaaaa'".to_owned(), |inner, _| format!("replace({inner}, 'a', 'aaaaaaaa')"));
    let refused = transaction.query(&format!("SELECT {nested}"), vec![]).await.unwrap_err();
    assert!(refused.to_string().contains("too big"), "{refused}");
    transaction.roll_back().await;
    // Memory is not filled up to these limits, because they apply to the whole process, in which other tests
    // run.
    let any = rusqlite::Connection::open_in_memory().unwrap();
    for (pragma, bytes) in [("hard_heap_limit", 512 << 20), ("soft_heap_limit", 256 << 20)] {
        let limit = any.pragma_query_value(None, pragma, |row| row.get::<_, i64>(0));
        assert_eq!(limit, Ok(bytes), "{pragma}");
    }
}
