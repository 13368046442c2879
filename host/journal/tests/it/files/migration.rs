//! Tests of the migration of journals of older formats.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use kubewitness_core::ports::{Backlog, DocumentReader, StateWitness};
use kubewitness_core::{Change, document};
use kubewitness_journal::{Journal, OpenError, verify_file};
use sqlx::{ConnectOptions, Connection};

use crate::support::{SOURCE, in_source, job, of, open, options};

/// Written by the last program of format 1, and dumped by SQLite's shell: 40 versions of three objects, one
/// with an owner, then a late version, a gap, an end, an object that left, a version that is no number, a
/// second epoch, poison, and a plugin with a dead letter and a key.
const VERSION_1: &str = include_str!("../../data/journal-1.sql");
/// The same content in format 4. Its letter has two tries and was dropped.
const VERSION_4: &str = include_str!("../../data/journal-4.sql");
const STATES: u64 = 129;

async fn version_1(path: &Path) {
    written(path, VERSION_1).await;
}

async fn written(path: &Path, dump: &'static str) {
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(path).create_if_missing(true);
    let options = options.journal_mode(sqlx::sqlite::SqliteJournalMode::Wal);
    let mut connection = options.connect().await.unwrap();
    sqlx::raw_sql(dump).execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
}

/// Every state's document, and of each live object the version and the document.
async fn content(journal: &Journal) -> (Vec<bytes::Bytes>, Vec<(String, String, bytes::Bytes)>) {
    let mut documents = Vec::new();
    for state in journal.read(0, 1000).await.unwrap() {
        documents.push(journal.document_at(state.seq).await.unwrap().unwrap_or_default());
    }
    let warm = journal.load_warm_start(SOURCE).await.unwrap();
    let current = warm.objects.iter().map(|current| {
        let document = document::unpack_document(&current.packed).unwrap();
        (current.object.name.clone(), current.resource_version.to_string(), document)
    });
    (documents, current.collect())
}

#[tokio::test]
async fn a_journal_of_format_1_is_migrated_and_nothing_of_it_is_lost() {
    assert_migrated(1, VERSION_1).await;
}

#[tokio::test]
async fn a_journal_of_format_4_gets_sums_and_nothing_of_it_is_lost() {
    assert_migrated(4, VERSION_4).await;
}

async fn assert_migrated(format: i64, dump: &'static str) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal.db");
    written(&path, dump).await;
    let error = verify_file(&path).await.unwrap_err();
    assert!(matches!(error, OpenError::Older { found, known: 11, .. } if found == format), "{error}");

    let journal = open(path.clone()).await;
    assert_eq!(*journal.newest_position().borrow(), STATES);
    let (documents, current) = content(&journal).await;
    assert_eq!(documents.len() as u64, STATES);
    let known = |name: &str, version: &str| {
        let (_, found, document) = current.iter().find(|(kept, ..)| kept == name).unwrap();
        assert_eq!(found, version);
        assert!(
            std::str::from_utf8(document).unwrap().contains(&format!("\"resourceVersion\":\"{version}\""))
        );
    };
    known("train-0", "20");
    known("train-2", "120");
    known("train-4", "200");
    known("train-6", "abc");
    known("train-7", "21");
    assert_eq!(current.len(), 5);
    let report = verify_file(&path).await.unwrap();
    assert!(report.ok, "{:#?}", report.problems);
    assert_eq!((report.states_checked, report.plugins_checked), (STATES, 1));
    let letters = journal.dead_letters("audit").await.unwrap();
    let tries = if format < 4 { 0 } else { 2 };
    assert_eq!((letters.len(), letters[0].tries.len(), letters[0].dropped), (1, tries, format == 4));

    let more: Vec<_> = (30..60)
        .map(|version| in_source(SOURCE, 1, &job(2), Change::Present, &version.to_string()))
        .collect();
    journal.append_batch(of(SOURCE, 1, more)).await.unwrap();
    journal.close().await.unwrap();
    let report = verify_file(&path).await.unwrap();
    assert!(report.ok, "{:#?}", report.problems);
    assert_eq!(report.states_checked, STATES + 30);
}

/// The variable with the path of the child's journal.
const PATH: &str = "KUBEWITNESS_TEST_MIGRATED_JOURNAL";

/// The child's code, and not a test of its own. Without the variable it does nothing.
#[test]
fn child_migrates_until_it_is_killed() {
    let Ok(path) = std::env::var(PATH) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let journal = runtime.block_on(Journal::open(path.as_ref(), options())).unwrap();
    runtime.block_on(journal.close()).unwrap();
}

#[tokio::test]
async fn a_migration_that_is_killed_goes_on_at_the_next_start() {
    let folder = tempfile::tempdir().unwrap();
    let whole = folder.path().join("whole.db");
    version_1(&whole).await;
    let expected = content(&open(whole).await).await;
    for round in 0..12_u64 {
        let path = folder.path().join(format!("{round}.db"));
        version_1(&path).await;
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "files::migration::child_migrates_until_it_is_killed"])
            .env(PATH, &path)
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        // The kill comes at any time from before the file is opened until after the migration.
        std::thread::sleep(Duration::from_millis(2 * round));
        child.kill().unwrap();
        child.wait().unwrap();
        let journal = open(path.clone()).await;
        assert_eq!(content(&journal).await, expected, "round {round}");
        let report = verify_file(&path).await.unwrap();
        assert!(report.ok, "round {round}: {:#?}", report.problems);
    }
}
