//! Tests of opening: which files are journals, and which process owns one.

use kubewitness_core::ports::{Backlog, DeadLetter, JournalError, ProgressSave, StateWitness};
use kubewitness_journal::{Journal, OpenError, verify_file};
use sqlx::{ConnectOptions, Connection};

use crate::support::{SOURCE, TestJournal, job, of, options, present};

async fn edit(path: &std::path::Path, sql: &'static str) {
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(path).create_if_missing(true);
    let mut connection = options.connect().await.unwrap();
    sqlx::raw_sql(sql).execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
}

/// The files of a process that died within a transaction that had already written to the file.
async fn cut_off(folder: &std::path::Path, before: &'static str) -> std::path::PathBuf {
    let path = folder.join("written.db");
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(&path).create_if_missing(true);
    let mut connection = options.connect().await.unwrap();
    let written = "PRAGMA cache_size = 1; BEGIN; CREATE TABLE pages (body BLOB); \
        INSERT INTO pages VALUES (zeroblob(100000)); INSERT INTO pages VALUES (zeroblob(100000))";
    sqlx::raw_sql(before).execute(&mut connection).await.unwrap();
    sqlx::raw_sql(written).execute(&mut connection).await.unwrap();
    let copy = folder.join("journal.db");
    std::fs::copy(&path, &copy).unwrap();
    std::fs::copy(folder.join("written.db-journal"), folder.join("journal.db-journal")).unwrap();
    connection.close().await.unwrap();
    assert!(std::fs::metadata(&copy).unwrap().len() > 0);
    copy
}

async fn refused(path: &std::path::Path) -> OpenError {
    Journal::open(path, options()).await.err().unwrap()
}

#[tokio::test]
async fn a_second_writer_is_told_that_the_journal_is_in_use() {
    let desk = TestJournal::new().await;
    assert!(matches!(refused(&desk.path()).await, OpenError::InUse(_)));
    let path = desk.path();
    desk.journal.close().await.unwrap();
    Journal::open(&path, options()).await.unwrap();
}

#[tokio::test]
async fn a_trigger_in_the_file_is_named_before_anything_is_written() {
    let desk = TestJournal::new().await;
    desk.append(vec![present(&job(1), 1)]).await;
    desk.journal.close().await.unwrap();
    let path = desk.path();
    edit(&path, "CREATE TRIGGER forget AFTER INSERT ON states BEGIN DELETE FROM gaps; END").await;
    let error = refused(&path).await.to_string();
    assert!(error.contains("`forget`") && error.contains("DROP TRIGGER"), "{error}");
    let report = verify_file(&path).await.unwrap();
    assert!(!report.ok && report.problems[0].message.contains("`forget`"), "{report:?}");
    edit(&path, "DROP TRIGGER forget").await;
    drop(Journal::open(&path, options()).await.unwrap());
}

#[tokio::test]
async fn who_verifies_what_is_cut_short_or_not_there_is_told_what_to_do_and_not_to_verify_it() {
    let desk = TestJournal::new().await;
    for version in 1..200 {
        desk.append(vec![present(&job(version), version as u64)]).await;
    }
    desk.journal.close().await.unwrap();
    let path = desk.path();
    let bytes = std::fs::metadata(&path).unwrap().len();
    std::fs::File::options().write(true).open(&path).unwrap().set_len(bytes - 3 * 4096 - 100).unwrap();
    let report = verify_file(&path).await.unwrap();
    assert!(!report.ok && report.problems.len() == 1, "{report:?}");
    let message = &report.problems[0].message;
    assert_eq!(
        message.matches("restore the newest copy that `journal verify` finds whole").count(),
        1,
        "{message}"
    );
    assert!(!message.contains("run `journal verify`"), "{message}");
    let nowhere = verify_file(&path.with_file_name("none.db")).await.unwrap_err().to_string();
    assert!(
        nowhere.ends_with("there is no journal here: name the controller's data folder with --data"),
        "{nowhere}"
    );
}

/// A device or pipe in place of any of these files would block the process or swallow its writes.
#[tokio::test]
async fn a_pipe_in_the_place_of_a_journal_or_of_what_lies_beside_it_is_refused_by_name() {
    for name in ["journal.db", "journal.db.lock", "journal.db-wal", "journal.db-journal"] {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join(name);
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let error = refused(&folder.path().join("journal.db")).await.to_string();
        assert!(error.contains(&format!("{name}: it is a pipe")), "{error}");
        let error = verify_file(&folder.path().join("journal.db")).await.unwrap_err().to_string();
        assert!(error.contains(&format!("{name}: it is a pipe")), "{error}");
    }
}

#[tokio::test]
async fn after_a_clean_stop_the_one_file_is_the_whole_journal() {
    let desk = TestJournal::new().await;
    desk.append(vec![present(&job(1), 1)]).await;
    // This reader stays until the end. It must not prevent the file from being completed.
    assert_eq!(desk.journal.journal_stats().await.unwrap().states, 1);
    desk.journal.close().await.unwrap();
    let copy = desk.path().with_file_name("copy.db");
    std::fs::copy(desk.path(), &copy).unwrap();
    let journal = Journal::open(&copy, options()).await.unwrap();
    assert_eq!(journal.journal_stats().await.unwrap().states, 1);
    journal.close().await.unwrap();
}

#[tokio::test]
async fn a_closed_journal_refuses_and_does_not_hang() {
    let desk = TestJournal::new().await;
    desk.append(vec![present(&job(1), 1)]).await;
    desk.journal.close().await.unwrap();
    let late = desk.journal.append_batch(of(SOURCE, 0, vec![present(&job(1), 2)])).await;
    assert!(matches!(late, Err(JournalError::Unavailable(_))), "{late:?}");
    assert!(matches!(desk.journal.journal_stats().await, Err(JournalError::Unavailable(_))));
    assert_eq!(*desk.journal.newest_position().borrow(), 1);
}

#[tokio::test]
async fn a_journal_of_a_newer_format_is_refused_and_left_alone() {
    let desk = TestJournal::new().await;
    desk.journal.close().await.unwrap();
    edit(&desk.path(), "PRAGMA user_version = 99").await;
    let error = refused(&desk.path()).await;
    assert!(matches!(error, OpenError::Newer { found: 99, known: 11, .. }), "{error}");
    assert!(matches!(verify_file(&desk.path()).await, Err(OpenError::Newer { .. })));
}

#[tokio::test]
async fn a_journal_of_the_format_before_this_gets_its_mark_and_goes_on() {
    let desk = TestJournal::new().await;
    desk.append(vec![present(&job(1), 1)]).await;
    let path = desk.path();
    desk.journal.close().await.unwrap();
    edit(&path, "PRAGMA user_version = 9").await;
    assert!(matches!(verify_file(&path).await, Err(OpenError::Older { found: 9, known: 11, .. })));
    let journal = Journal::open(&path, options()).await.unwrap();
    assert_eq!(*journal.newest_position().borrow(), 1);
    journal.close().await.unwrap();
    assert!(verify_file(&path).await.is_ok(), "which refuses any other format");
}

#[tokio::test]
async fn a_journal_of_the_third_format_is_made_one_of_this_and_keeps_its_letters() {
    let desk = TestJournal::new().await;
    desk.append(vec![present(&job(1), 1), present(&job(2), 2)]).await;
    let letter = crate::backlog::letter(2);
    let save = ProgressSave { parked: vec![letter.clone()], ..ProgressSave::default() };
    desk.journal.save("audit", save).await.unwrap();
    desk.journal.mark_replaying("audit", &[2], "ann", "why").await.unwrap();
    let path = desk.path();
    desk.journal.close().await.unwrap();
    edit(
        &path,
        "DROP INDEX objects_by_end; ALTER TABLE letters DROP COLUMN tries; ALTER TABLE replays DROP COLUMN what; DROP TABLE discrepancies; \
         ALTER TABLE streams DROP COLUMN sum; ALTER TABLE kinds DROP COLUMN sum; ALTER TABLE owned DROP COLUMN sum; \
         ALTER TABLE anchors DROP COLUMN sum; ALTER TABLE gaps DROP COLUMN sum; ALTER TABLE poison DROP COLUMN sum; \
         ALTER TABLE plugins DROP COLUMN sum; ALTER TABLE letters DROP COLUMN sum; \
         ALTER TABLE taken DROP COLUMN sum; ALTER TABLE kv DROP COLUMN sum; ALTER TABLE replays DROP COLUMN sum; \
         PRAGMA user_version = 3",
    )
    .await;
    let journal = Journal::open(&path, options()).await.unwrap();
    let kept = journal.dead_letters("audit").await.unwrap();
    assert_eq!(kept, [DeadLetter { replaying: true, tries: Vec::new(), ..letter }]);
    assert_eq!(journal.replay_records(None, u64::MAX, 100).await.unwrap()[0].what, "replay");
    let again = ProgressSave { parked: vec![crate::backlog::letter(2)], ..ProgressSave::default() };
    journal.save("audit", again).await.unwrap();
    assert_eq!(journal.dead_letters("audit").await.unwrap()[0].tries.len(), 1);
}

#[tokio::test]
async fn a_file_that_is_no_journal_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("text.db");
    std::fs::write(&text, "this is a letter to a friend, long enough to be no empty file".repeat(20))
        .unwrap();
    assert!(matches!(refused(&text).await, OpenError::NotAJournal { .. }));
    let other = folder.path().join("other.db");
    edit(&other, "CREATE TABLE letters (body TEXT)").await;
    let before = std::fs::read(&other).unwrap();
    let error = refused(&other).await;
    assert!(matches!(error, OpenError::NotAJournal { .. }), "{error}");
    assert_eq!(std::fs::read(&other).unwrap(), before);
    let missing = folder.path().join("missing.db");
    assert!(matches!(verify_file(&missing).await, Err(OpenError::Unavailable { .. })));
    assert!(!missing.exists());
}

#[tokio::test]
async fn a_journal_whose_making_was_cut_off_is_made_anew() {
    let folder = tempfile::tempdir().unwrap();
    let path = cut_off(folder.path(), "").await;
    let error = verify_file(&path).await.unwrap_err();
    assert!(error.to_string().contains("it is an empty database"), "{error}");
    let journal = Journal::open(&path, options()).await.unwrap();
    journal.append_batch(of(SOURCE, 0, vec![present(&job(1), 1)])).await.unwrap();
    journal.close().await.unwrap();
    assert!(verify_file(&path).await.unwrap().ok);
}

#[tokio::test]
async fn a_file_in_which_another_program_was_cut_off_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = cut_off(folder.path(), "CREATE TABLE letters (body TEXT)").await;
    let files = [path.clone(), folder.path().join("journal.db-journal")];
    let before = files.clone().map(|file| std::fs::read(file).unwrap());
    let error = refused(&path).await;
    assert!(error.to_string().contains("another program was cut off while it wrote"), "{error}");
    assert_eq!(files.map(|file| std::fs::read(file).unwrap()), before);
}
