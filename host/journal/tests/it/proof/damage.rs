//! Each kind of damage is made, and found with its code.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use kubewitness_core::ports::{
    AppendBatch, Backlog, DeadLetter, JournalError, KvWrite, PluginProgress, PoisonMessage, ProgressSave,
    SourceStart, StateWitness, WitnessedState,
};
use kubewitness_core::views::DiscrepancyView;
use kubewitness_core::{Change, Gap, StateId, Version};
use kubewitness_journal::{Journal, OpenError, code, verify_file};
use sqlx::{ConnectOptions, Connection};

use crate::support::{SOURCE, TestJournal, document, gap, job, of, open_at, options, present, state};

/// A closed journal with content of each kind.
pub async fn sound() -> TestJournal {
    let desk = TestJournal::new().await;
    for version in 0..40u64 {
        let states = (0..5).map(|n| {
            let number = version * 5 + n as u64 + 1;
            let base = (version > 0).then(|| document(&job(n), &(number - 5).to_string()));
            WitnessedState { base, ..present(&job(n), number) }
        });
        let states = states.collect();
        let checkpoint = Some(Version::new(&(version * 5 + 5).to_string()));
        desk.journal.append_batch(AppendBatch { checkpoint, ..of(SOURCE, 0, states) }).await.unwrap();
    }
    desk.append(vec![state(&job(4), Change::Gone, "300")]).await;
    let owned = WitnessedState { owner: Some(job(20)), controller: Some(job(21)), ..present(&job(7), 301) };
    desk.append(vec![gap(&job(3), "302", "309"), owned]).await;
    let poison = vec![PoisonMessage { raw: "{".into(), error: "it ends".into(), observed_ms: 1 }];
    let hole = Gap {
        source: SOURCE.into(),
        object: None,
        epoch: 0,
        after: "5".into(),
        before: "9".into(),
        reason: "Compacted".into(),
        message: "nobody knows".into(),
        recorded_ms: 1,
    };
    let discrepancies = vec![DiscrepancyView { found_ms: 7, ..DiscrepancyView::default() }];
    let append = AppendBatch { poison, gaps: vec![hole], discrepancies, ..of(SOURCE, 0, Vec::new()) };
    desk.journal.append_batch(append).await.unwrap();
    let sources = vec![SourceStart { source: SOURCE.into(), after: 0, until: None }];
    let progress = PluginProgress {
        cursor: 100,
        above: vec![(103, 104), (110, 110)],
        delivered: 90,
        filtered: 12,
        dead: 1,
        sources,
        ..PluginProgress::default()
    };
    let letter = DeadLetter {
        plugin: "audit".into(),
        seq: 50,
        id: StateId::parse("x"),
        attempts: 1,
        error: "no".into(),
        first_ms: 1,
        last_ms: 1,
        replaying: false,
        dropped: false,
        tries: Vec::new(),
    };
    let kv = vec![KvWrite { key: "k".into(), value: Some(vec![1, 2, 3]) }];
    desk.journal
        .save("audit", ProgressSave { progress, parked: vec![letter], kv, ..ProgressSave::default() })
        .await
        .unwrap();
    desk.journal.mark_replaying("audit", &[50], "ann", "it was mended").await.unwrap();
    desk.assert_sound().await;
    desk.journal.close().await.unwrap();
    desk
}

async fn damage(desk: &TestJournal, sql: &'static str) {
    let mut connection =
        sqlx::sqlite::SqliteConnectOptions::new().filename(desk.path()).connect().await.unwrap();
    let done = sqlx::raw_sql(sql).execute(&mut connection).await.unwrap();
    assert!(done.rows_affected() > 0, "{sql} changed nothing");
    connection.close().await.unwrap();
}

#[tokio::test]
async fn each_kind_of_damage_is_found_under_its_code() {
    let planted = [
        (code::SEQUENCE, "DELETE FROM states WHERE seq = 77"),
        (code::ENVELOPE, "UPDATE states SET observed_ms = observed_ms + 1 WHERE seq = 60"),
        (code::ENVELOPE, "UPDATE states SET seq = seq + 1000 WHERE seq = 200"),
        (code::ENVELOPE, "UPDATE statuses SET body = replace(body, 'Running', 'Failed')"),
        (code::ENVELOPE, "UPDATE objects SET name = 'other' WHERE id = 2"),
        // Two rows are exchanged.
        (
            code::ENVELOPE,
            "UPDATE states SET seq = -1 WHERE seq = 20; UPDATE states SET seq = 20 WHERE seq = 21; \
             UPDATE states SET seq = 21 WHERE seq = -1",
        ),
        (
            code::DOCUMENT,
            "UPDATE states SET document = CAST(substr(document, 1, length(document) - 1) || x'00' AS BLOB) WHERE seq = 42",
        ),
        (code::DOCUMENT, "UPDATE states SET document = x'' WHERE seq = 90"),
        (code::DOCUMENT, "UPDATE anchors SET document = substr(document, 1, 40)"),
        (code::CURRENT, "UPDATE current SET newest = newest - 5, tail = tail - 5 WHERE object = 1"),
        (code::CURRENT, "UPDATE current SET tail = tail - 5 WHERE object = 1"),
        (code::CURRENT, "DELETE FROM current WHERE object = 1"),
        (
            code::CURRENT,
            "UPDATE snapshots SET packed = (SELECT packed FROM snapshots WHERE object = 2) WHERE object = 1",
        ),
        (code::CURRENT, "UPDATE snapshots SET packed = substr(packed, 1, 40) WHERE object = 1"),
        (code::CURRENT, "UPDATE snapshots SET seq = seq + 1 WHERE object = 1"),
        (code::CURRENT, "INSERT INTO snapshots SELECT 5, 5, packed FROM snapshots WHERE object = 1"),
        (code::CHAIN, "UPDATE objects SET tail = tail - 5 WHERE tail IS NOT NULL"),
        (code::CHECKPOINT, "UPDATE streams SET checkpoint = ''"),
        (code::COUNT, "UPDATE streams SET states = states + 1"),
        (code::COUNT, "UPDATE tallies SET states = states - 1"),
        (code::CURSOR, "UPDATE plugins SET progress = json_set(progress, '$.cursor', 9999)"),
        (code::CURSOR, "UPDATE plugins SET progress = json_set(progress, '$.above', json('[[90,95]]'))"),
        (code::CURSOR, "UPDATE plugins SET progress = 'nonsense'"),
        (code::COMPLETENESS, "UPDATE plugins SET progress = json_set(progress, '$.delivered', 91)"),
        (code::COMPLETENESS, "UPDATE plugins SET progress = json_set(progress, '$.cursor', 99)"),
        (code::COMPLETENESS, "UPDATE plugins SET progress = json_set(progress, '$.dead', 2)"),
        (code::COMPLETENESS, "DELETE FROM letters"),
        (code::COUNT, "UPDATE tallies SET bytes = bytes + 1"),
        (code::COUNT, "UPDATE streams SET taken = taken + 1"),
        (code::SEQUENCE, "UPDATE streams SET taken = taken + 1"),
        // Numbers that overflow a sum.
        (code::COUNT, "UPDATE streams SET taken = -1"),
        (
            code::COMPLETENESS,
            "UPDATE plugins SET progress = json_set(progress, '$.delivered', json('18446744073709551615'))",
        ),
        (code::COMPLETENESS, "INSERT INTO taken (plugin, finished, untold) VALUES ('audit', -1, -1)"),
        (code::COMPLETENESS, "INSERT INTO taken (plugin, finished, untold) VALUES ('audit', 1, 0)"),
        (code::COMPLETENESS, "INSERT INTO taken (plugin, finished, untold, sum) VALUES ('nobody', 1, 0, 3)"),
        (code::GAP, "UPDATE gaps SET body = replace(body, '309', '308')"),
        (code::GAP, "DELETE FROM gaps WHERE seq > 0"),
        (code::POISON, "UPDATE poison SET raw = CAST('[' AS BLOB)"),
        (code::POISON, "UPDATE poison SET error = 'none'"),
        (code::INDEX, "UPDATE objects SET name_key = name_key + 1 WHERE id = 2"),
        (code::INDEX, "UPDATE objects SET uid_key = uid_key + 1 WHERE id = 2"),
        (code::INDEX, "DELETE FROM owned"),
        (code::INDEX, "UPDATE owned SET object = 1"),
        (code::KEY, "UPDATE kv SET value = x'010204'"),
        (code::RECORD, "UPDATE replays SET who = 'bob'"),
        (code::RECORD, "UPDATE replays SET id = 2"),
        (code::LETTER, "UPDATE letters SET replaying = 2"),
        (code::LETTER, "UPDATE letters SET seq = 5000"),
    ];
    for (expected, sql) in planted {
        let desk = sound().await;
        damage(&desk, sql).await;
        let report = desk.verify().await;
        assert!(!report.ok, "{sql} was not found");
        let codes: Vec<_> = report.problems.iter().map(|problem| problem.code.as_str()).collect();
        assert!(codes.contains(&expected), "{sql} was found as {:#?}", report.problems);
    }
}

#[tokio::test]
async fn a_damaged_row_is_an_error_that_names_its_position_and_never_other_bytes() {
    let desk = sound().await;
    damage(&desk, "UPDATE states SET document = CAST(x'00' || document AS BLOB) WHERE seq = 42").await;
    damage(&desk, "UPDATE states SET flags = flags | 4 WHERE seq = 60").await;
    let TestJournal { folder, place, .. } = desk;
    let desk = TestJournal { journal: open_at(&place).await, folder, place };
    use kubewitness_core::ports::DocumentReader;
    let error = desk.journal.document_at(42).await.unwrap_err();
    assert!(matches!(&error, JournalError::Fatal(text) if text.contains("42")), "{error}");
    let error = desk.journal.read(55, 10).await.unwrap_err();
    assert!(matches!(&error, JournalError::Fatal(text) if text.contains("60")), "{error}");
}

/// SQLite would continue in this file, and lose everything in the end.
#[tokio::test]
async fn a_file_that_is_removed_or_replaced_while_it_is_in_use_is_told_to_be_lost() {
    let ways: [fn(&Path); 2] = [
        |path| std::fs::remove_file(path).unwrap(),
        |path| {
            let copy = path.with_extension("copy");
            std::fs::copy(path, &copy).unwrap();
            std::fs::rename(&copy, path).unwrap();
        },
    ];
    for way in ways {
        let desk = TestJournal::new().await;
        desk.journal.append_batch(of(SOURCE, 0, vec![present(&job(1), 1)])).await.unwrap();
        way(&desk.path());
        let there = desk.path().exists();
        for version in 2..4 {
            let error =
                desk.journal.append_batch(of(SOURCE, 0, vec![present(&job(1), version)])).await.unwrap_err();
            let text = error.to_string();
            assert!(text.contains("removed or replaced") && !text.contains("in doubt"), "{text}");
        }
        desk.journal.close().await.unwrap();
        assert_eq!(desk.path().exists(), there, "nothing is begun in its place");
    }
}

#[tokio::test]
async fn an_older_copy_that_is_written_into_the_file_is_noticed_with_the_next_write_and_by_who_looks() {
    for looks in [true, false] {
        let desk = TestJournal::new().await;
        desk.append((1..=3).map(|n| present(&job(1), n)).collect()).await;
        desk.journal.await_earlier_writes().await.unwrap();
        // The effect of SQLite's own `.restore`.
        desk.run("DELETE FROM states WHERE seq > 1").await;
        let result = match looks {
            true => desk.journal.await_earlier_writes().await,
            false => desk.journal.append_batch(of(SOURCE, 0, vec![present(&job(1), 9)])).await.map(drop),
        };
        let error = result.unwrap_err().to_string();
        assert!(error.contains("an older copy") && error.contains("journal.db-wal"), "{error}");
        assert_eq!(desk.ask("SELECT count(*) FROM states").await, "1", "nothing is written behind it");
    }
}

#[tokio::test]
async fn a_file_that_was_emptied_while_nothing_came_is_told_to_be_lost() {
    let desk = TestJournal::new().await;
    desk.append(vec![present(&job(1), 1)]).await;
    desk.journal.await_earlier_writes().await.unwrap();
    File::create(desk.path()).unwrap();
    let error = desk.journal.await_earlier_writes().await.unwrap_err().to_string();
    assert!(error.contains("emptied") && error.contains("Put a copy back"), "{error}");
}

/// Closing any handle of a file releases all locks that the process has on it. SQLite's own tools would then
/// remove the WAL in use.
#[tokio::test]
async fn looking_at_the_journal_lets_go_of_no_lock() {
    let desk = TestJournal::new().await;
    desk.append(vec![present(&job(1), 1)]).await;
    let inode = std::fs::metadata(desk.path()).unwrap().ino();
    let locks = || {
        let all = std::fs::read_to_string("/proc/locks").unwrap();
        all.lines().filter(|line| line.contains("POSIX") && line.contains(&format!(":{inode} "))).count()
    };
    let before = locks();
    desk.journal.await_earlier_writes().await.unwrap();
    assert!(before > 0 && locks() == before, "{before} before, {} after", locks());
}

#[tokio::test]
async fn what_a_lost_journal_has_left_is_not_begun_anew_on() {
    let desk = TestJournal::new().await;
    desk.append(vec![present(&job(1), 1)]).await;
    std::fs::remove_file(desk.path()).unwrap();
    assert!(desk.journal.await_earlier_writes().await.is_err());
    let TestJournal { folder, place, journal } = desk;
    journal.close().await.unwrap();
    for _ in 0..2 {
        let refused = Journal::open_at(&place, options()).await.err().unwrap();
        assert!(matches!(refused, OpenError::Orphan { .. }), "{refused}");
        assert!(refused.to_string().contains("journal.db-wal"), "{refused}");
    }
    let path = folder.path().join("journal.db");
    assert!(!path.exists());
    for beside in ["db-wal", "db-shm"] {
        std::fs::remove_file(path.with_extension(beside)).unwrap();
    }
    open_at(&place).await.close().await.unwrap();
}

#[tokio::test]
async fn an_object_that_ends_behind_the_journals_end_is_damage_and_no_panic() {
    let desk = TestJournal::new().await;
    desk.append((1..=5).map(|n| present(&job(1), n)).collect()).await;
    desk.run("DELETE FROM states WHERE seq > 2").await;
    let TestJournal { folder: _kept, place, journal } = desk;
    assert!(journal.await_earlier_writes().await.is_err());
    journal.close().await.unwrap();
    let journal = open_at(&place).await;
    let error = journal.append_batch(of(SOURCE, 0, vec![present(&job(1), 9)])).await.unwrap_err();
    assert!(
        matches!(&error, JournalError::Fatal(text) if text.contains("behind the journal's end")),
        "{error}"
    );
}

#[tokio::test]
async fn a_file_that_was_removed_while_nothing_came_is_told_to_be_lost_to_who_looks_and_at_the_end() {
    for looks in [true, false] {
        let desk = TestJournal::new().await;
        desk.journal.append_batch(of(SOURCE, 0, vec![present(&job(1), 1)])).await.unwrap();
        desk.journal.await_earlier_writes().await.unwrap();
        std::fs::remove_file(desk.path()).unwrap();
        let result = match looks {
            true => desk.journal.await_earlier_writes().await,
            false => desk.journal.close().await,
        };
        let error = result.unwrap_err().to_string();
        assert!(error.contains("removed or replaced"), "{error}");
        assert!(!desk.path().exists(), "nothing is begun in its place");
    }
}

#[tokio::test]
async fn a_torn_page_is_refused_and_reported() {
    let desk = sound().await;
    let bytes = std::fs::read(desk.path()).unwrap();
    let mut found = 0;
    for page in 1..bytes.len() / 4096 {
        let mut torn = bytes.clone();
        torn[page * 4096..(page + 1) * 4096].fill(0xA5);
        std::fs::write(desk.path(), torn).unwrap();
        let whole = verify_file(&desk.path()).await;
        found += usize::from(whole.is_ok_and(|report| !report.ok));
    }
    // A page on the free list has no content.
    assert!(found * 10 >= (bytes.len() / 4096 - 1) * 9, "{found} of {}", bytes.len() / 4096 - 1);
}

#[tokio::test]
async fn a_file_that_was_cut_off_is_a_finding_wherever_it_ends() {
    let desk = sound().await;
    let bytes = std::fs::read(desk.path()).unwrap();
    for length in [50, 100, 1_000, 4_096, 5_000, 50_000, 80_000, bytes.len() - 4_096] {
        std::fs::write(desk.path(), &bytes[..length]).unwrap();
        let report = verify_file(&desk.path()).await.unwrap();
        let codes: Vec<_> = report.problems.iter().map(|problem| problem.code.as_str()).collect();
        assert!(!report.ok && codes.contains(&code::STORE), "{length} bytes: {:#?}", report.problems);
    }
}

#[tokio::test]
async fn it_verifies_beside_a_running_writer() {
    let desk = TestJournal::new().await;
    let writing = async {
        for version in 1..200 {
            desk.append(vec![present(&job(1), version)]).await;
        }
    };
    let verifying = async {
        for _ in 0..5 {
            desk.assert_sound().await;
        }
    };
    tokio::join!(writing, verifying);
    assert_eq!(desk.verify().await.states_checked, 199);
}
