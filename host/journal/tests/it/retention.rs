//! Tests of retention: which states it removes, which it keeps, and that those are unchanged.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use kubewitness_core::clock::{Clock, SystemClock};
use kubewitness_core::config::{Duration, RetentionSpec};
use kubewitness_core::ports::{
    AppendBatch, Backlog, DeadLetter, DocumentReader, KvWrite, PluginProgress, PoisonMessage, ProgressSave,
    SourceStart, StateWitness, WitnessedState,
};
use kubewitness_core::views::TimelineQuery;
use kubewitness_core::{Change, Seq, StateId, Version, reports};
use kubewitness_harness::until;
use kubewitness_journal::{Journal, JournalOptions, RetentionHolder, RetentionReport, SourceRetention, code};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use sqlx::{ConnectOptions, Connection};

use crate::support::{
    PATIENCE, RandomHistory, SOURCE, StoreKind, TestJournal, gap, job, of, on_every_store, open_at, options,
    present, state,
};

fn keep(count: u64) -> RetentionSpec {
    RetentionSpec { count: Some(count), ..RetentionSpec::default() }
}

fn hours(hours: u64) -> RetentionSpec {
    let age = Some(Duration(std::time::Duration::from_secs(3600 * hours)));
    RetentionSpec { age, ..RetentionSpec::default() }
}

async fn pass(desk: &TestJournal, spec: &RetentionSpec) -> RetentionReport {
    SourceRetention::new(desk.journal.clone(), SOURCE).run_pass(spec).await.unwrap()
}

/// Appends states, and announces a watch that resumes after them.
async fn settled(desk: &TestJournal, states: Vec<WitnessedState>, checkpoint: u64) {
    let checkpoint = Some(Version::new(&checkpoint.to_string()));
    desk.journal.append_batch(AppendBatch { checkpoint, ..of(SOURCE, 0, states) }).await.unwrap();
}

/// A history of `objects` Jobs with `versions` versions each, interleaved.
async fn history(desk: &TestJournal, objects: usize, versions: u64) {
    for version in 0..versions {
        let number = |n: usize| version * objects as u64 + n as u64 + 1;
        let states = (0..objects).map(|n| present(&job(n), number(n))).collect();
        settled(desk, states, number(objects - 1)).await;
    }
}

async fn kept(desk: &TestJournal) -> Vec<Seq> {
    desk.journal.read(0, 100_000).await.unwrap().iter().map(|state| state.seq).collect()
}

/// Rows of one of the journal's tables.
async fn rows_of(desk: &TestJournal, table: &str) -> i64 {
    desk.ask(&format!("SELECT count(*) FROM {}{table}", StoreKind::here().prefix())).await.parse().unwrap()
}

async fn pages(desk: &TestJournal) -> i64 {
    let sql = "SELECT page_count FROM pragma_page_count";
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(desk.path()).read_only(true);
    let mut connection = options.connect().await.unwrap();
    let count = sqlx::query_scalar(sql).fetch_one(&mut connection).await.unwrap();
    connection.close().await.unwrap();
    count
}

fn subscribed(cursor: Seq, delivered: u64) -> PluginProgress {
    let sources = vec![SourceStart { source: SOURCE.into(), after: 0, until: None }];
    PluginProgress { cursor, delivered, sources, ..PluginProgress::default() }
}

async fn the_newest_stay_and_each_is_restored_byte_for_byte_also_after_a_restart() {
    let desk = TestJournal::new().await;
    history(&desk, 5, 40).await;
    let asked = TimelineQuery { uid: Some(job(0).uid.clone()), ..TimelineQuery::default() };
    let before = desk.journal.object_timeline(&asked).await.unwrap().states;
    let report = pass(&desk, &keep(22)).await;
    assert_eq!((report.states, report.untold), (178, 0));
    assert_eq!(kept(&desk).await, (179..=200).collect::<Vec<_>>());
    desk.assert_sound().await;
    let desk = desk.reopen().await;
    for seq in 179..=200 {
        let expected = crate::support::document(&job((seq as usize - 1) % 5), &seq.to_string());
        assert_eq!(desk.journal.document_at(seq).await.unwrap().unwrap_or_default(), expected);
    }
    assert_eq!(desk.journal.document_before(180).await.unwrap(), None);
    let after = desk.journal.object_timeline(&asked).await.unwrap().states;
    assert_eq!(after[..], before[before.len() - after.len()..], "the story goes on from where it is kept");
    assert_eq!(desk.journal.count(&[SOURCE.into()], 0, 200).await.unwrap(), 22);
    // The journal stays writable.
    history_from(&desk, 201, 30).await;
    desk.assert_sound().await;
    assert_eq!(kept(&desk).await.len(), 52);
}

async fn history_from(desk: &TestJournal, first: u64, states: u64) {
    for version in first..first + states {
        settled(desk, vec![present(&job((version as usize - 1) % 5), version)], version).await;
    }
}

async fn the_newest_state_of_an_object_that_is_there_never_goes_and_one_that_has_ended_leaves_nothing() {
    let desk = TestJournal::new().await;
    history(&desk, 3, 10).await;
    settled(&desk, vec![state(&job(0), Change::Gone, "100"), state(&job(1), Change::Gone, "")], 100).await;
    settled(&desk, vec![present(&job(3), 101)], 101).await;
    let report = pass(&desk, &hours(1)).await;
    // Job 2 keeps its newest state, and the journal its last one.
    assert_eq!(kept(&desk).await, [30, 33]);
    assert_eq!(report.states, 31);
    desk.assert_sound().await;
    assert_eq!(rows_of(&desk, "objects").await, 2);
    let warm = desk.journal.load_warm_start(SOURCE).await.unwrap();
    assert_eq!(warm.objects.len(), 2);
    // Job 2 gets another state, so its former newest one may be removed.
    settled(&desk, vec![present(&job(2), 102), present(&job(3), 103)], 103).await;
    assert_eq!(pass(&desk, &hours(1)).await.states, 2);
    assert_eq!(kept(&desk).await, [34, 35]);
    desk.reopen().await.assert_sound().await;
}

async fn what_a_watch_could_be_resumed_before_stays() {
    let desk = TestJournal::new().await;
    history(&desk, 1, 10).await;
    desk.append((11..=20).map(|version| present(&job(0), version)).collect()).await;
    assert_eq!(pass(&desk, &keep(1)).await.states, 10);
    assert_eq!(kept(&desk).await, (11..=20).collect::<Vec<_>>());
}

async fn neither_what_a_plugin_has_not_finished_goes_nor_a_dead_letter() {
    let desk = TestJournal::new().await;
    history(&desk, 4, 25).await;
    let letter = dead(20);
    let progress = PluginProgress { dead: 1, ..subscribed(60, 59) };
    desk.journal
        .save("audit", ProgressSave { progress, parked: vec![letter], ..ProgressSave::default() })
        .await
        .unwrap();
    pass(&desk, &keep(1)).await;
    let kept_now = kept(&desk).await;
    // The letter's Job keeps all states from the letter on, so its story has no hole.
    let of_job = |seq: &Seq| *seq >= 20 && seq.is_multiple_of(4);
    let expected: Vec<Seq> = (1..=100).filter(|seq| *seq > 60 || of_job(seq)).collect();
    assert!(kept_now == expected, "{} are kept", kept_now.len());
    desk.assert_sound().await;
    // After the replay, the letter holds nothing any more.
    let save = ProgressSave { progress: subscribed(100, 100), revived: vec![20], ..ProgressSave::default() };
    desk.journal.save("audit", save).await.unwrap();
    pass(&desk, &keep(1)).await;
    assert_eq!(kept(&desk).await, [97, 98, 99, 100]);
    desk.assert_sound().await;
    assert!(desk.journal.all_gaps().await.unwrap().is_empty());
}

fn dead(seq: Seq) -> DeadLetter {
    DeadLetter {
        plugin: "audit".into(),
        seq,
        id: StateId::parse("x"),
        attempts: 1,
        error: "no".into(),
        first_ms: 1,
        last_ms: 1,
        replaying: false,
        dropped: false,
        tries: Vec::new(),
    }
}

async fn what_is_owed_stays() {
    let desk = TestJournal::new().await;
    history(&desk, 4, 25).await;
    let save = |delivered| ProgressSave { progress: subscribed(100, delivered), ..ProgressSave::default() };
    desk.journal.save("audit", ProgressSave { owed: vec![40], ..save(99) }).await.unwrap();
    desk.journal.save("other", save(100)).await.unwrap();
    pass(&desk, &keep(1)).await;
    let of_job = (40..=96u64).filter(|seq| seq.is_multiple_of(4)).chain(97..=100);
    assert_eq!(kept(&desk).await, of_job.collect::<Vec<_>>());
    desk.assert_sound().await;
    desk.journal.save("audit", ProgressSave { revived: vec![40], ..save(100) }).await.unwrap();
    pass(&desk, &keep(1)).await;
    assert_eq!(kept(&desk).await, [97, 98, 99, 100]);
    desk.assert_sound().await;
}

async fn what_a_plugin_that_was_taken_out_is_owed_stays_for_a_day() {
    const DAY: u64 = 24 * 60 * 60 * 1000;
    let desk = TestJournal::new().await;
    history(&desk, 4, 1000).await;
    let progress = |retired_ms| PluginProgress { retired_ms, ..subscribed(4_000, 3_400) };
    let save = |progress| ProgressSave { progress, ..ProgressSave::default() };
    // They wait for a retry that was far off when the plugin was removed.
    let owed = (400..2_800).filter(|seq| seq % 4 == 0).collect::<Vec<Seq>>();
    desk.journal.save("out", ProgressSave { owed, ..save(progress(None)) }).await.unwrap();
    desk.journal.save("there", save(subscribed(4_000, 4_000))).await.unwrap();
    let now = SystemClock::default().now_ms();
    desk.journal.save("out", save(progress(Some(now - DAY + 600_000)))).await.unwrap();
    pass(&desk, &keep(1)).await;
    assert_eq!(kept(&desk).await.first(), Some(&400));
    desk.assert_sound().await;
    desk.journal.save("out", save(progress(Some(now - DAY)))).await.unwrap();
    let report = pass(&desk, &keep(1)).await;
    assert_eq!((report.untold, kept(&desk).await), (600, vec![3_997, 3_998, 3_999, 4_000]));
    desk.assert_sound().await;
    assert_eq!(desk.journal.removed_before_delivery().await.unwrap()["out"], 600);
    assert_eq!(rows_of(&desk, "letters").await, 0);
    let gaps = desk.journal.all_gaps().await.unwrap();
    let message = "600 states at positions 400 to 2796 that out had not been handed";
    assert!(gaps.len() == 1 && gaps[0].message.ends_with(message), "{gaps:?}");
    // When the plugin is installed again, no states wait for it.
    desk.journal.save("out", save(progress(None))).await.unwrap();
    assert!(desk.journal.owed_states("out", 0, 10).await.unwrap().states.is_empty());
    desk.reopen().await.assert_sound().await;
}

/// The source bounds its states only by their number.
async fn poison_and_records_of_losses_go_with_the_states_of_their_time() {
    let desk = TestJournal::new().await;
    let poison = |observed_ms| PoisonMessage {
        raw: format!("poison of {observed_ms}").into_bytes().into(),
        error: "no JSON".into(),
        observed_ms,
    };
    // The states were observed at 1,700,000,000,000.
    for (number, observed_ms) in (1..=3).zip([1, 1_600_000_000_000, 1_800_000_000_000]) {
        let batch = of(SOURCE, 0, vec![present(&job(0), number)]);
        desk.journal.append_batch(AppendBatch { poison: vec![poison(observed_ms)], ..batch }).await.unwrap();
    }
    let save = |cursor| ProgressSave {
        progress: PluginProgress { start: cursor, ..subscribed(cursor, 0) },
        ..ProgressSave::default()
    };
    let mut version = 10;
    let mut more = async |count: u64, late: bool| {
        for _ in 0..count / 500 {
            let mut states: Vec<_> = (version..version + 500)
                .map(|version| present(&job(version as usize % 7), version))
                .collect();
            if late {
                states
                    .iter_mut()
                    .for_each(|state| state.observed_ms = SystemClock::default().now_ms() + 1_000_000);
            }
            version += 500;
            settled(&desk, states, version - 1).await;
        }
    };
    let spec = RetentionSpec { past_cursors: true, ..keep(100) };
    let mut retention = SourceRetention::new(desk.journal.clone(), SOURCE).in_hand(10);
    for lost in 1..=2 {
        let newest = *desk.journal.newest_position().borrow();
        desk.journal.save("stuck", save(newest)).await.unwrap();
        more(4000, false).await;
        retention.run_pass(&spec).await.unwrap();
        assert_eq!(desk.journal.all_gaps().await.unwrap().len(), lost);
    }
    assert_eq!(
        desk.journal.poison_records(None, 10).await.unwrap().len(),
        1,
        "the others are older than what went"
    );
    more(1000, true).await;
    let newest = *desk.journal.newest_position().borrow();
    desk.journal.save("stuck", save(newest)).await.unwrap();
    retention.run_pass(&spec).await.unwrap();
    assert_eq!(desk.journal.all_gaps().await.unwrap().len(), 1, "the last number is never given again");
}

async fn a_plugin_that_was_taken_out_holds_what_it_has_not_finished_for_a_day() {
    const DAY: u64 = 24 * 60 * 60 * 1000;
    let desk = TestJournal::new().await;
    history(&desk, 1, 100).await;
    let save = |progress| ProgressSave { progress, ..ProgressSave::default() };
    desk.journal.save("out", save(subscribed(10, 10))).await.unwrap();
    desk.journal.save("there", save(subscribed(100, 100))).await.unwrap();
    let there = BTreeSet::from(["there".to_owned()]);
    desk.journal.retire_all_but(&there).await.unwrap();
    assert_eq!(pass(&desk, &keep(1)).await.states, 10);
    let retired = async || desk.journal.plugin_progress("out").await.unwrap().unwrap().retired_ms;
    let since = retired().await.unwrap();
    // Its day began when it was first missing, and a restart does not change that.
    desk.journal.retire_all_but(&there).await.unwrap();
    assert_eq!(retired().await, Some(since));
    assert_eq!(desk.journal.plugin_progress("there").await.unwrap().unwrap().retired_ms, None);

    let missed = |at| PluginProgress { retired_ms: Some(at), ..subscribed(10, 10) };
    desk.journal.save("out", save(missed(since - DAY + 60_000))).await.unwrap();
    assert_eq!(pass(&desk, &keep(1)).await.states, 0);
    desk.journal.save("out", save(missed(since - DAY))).await.unwrap();
    let report = pass(&desk, &keep(1)).await;
    assert_eq!((report.states, report.untold), (89, 89));
    assert_eq!(kept(&desk).await, [100]);
    desk.assert_sound().await;
    // When the plugin is installed again, it continues with the remaining states, and the removed ones become
    // a gap.
    let gaps = desk.journal.all_gaps().await.unwrap();
    assert!(gaps[0].message.contains("89 states at positions 11 to 99 that out"), "{gaps:?}");
    assert_eq!(desk.journal.removed_before_delivery().await.unwrap()["out"], 89);
    assert_eq!(desk.journal.read(10, 10).await.unwrap().len(), 1);
    desk.journal.save("out", save(subscribed(100, 11))).await.unwrap();
    desk.assert_sound().await;
}

/// The plugin is still being compiled, or waits for its database.
async fn a_plugin_that_waits_for_its_first_start_holds_what_it_is_owed_within_the_bounds_of_one_that_lags() {
    let desk = TestJournal::new().await;
    for first in (0..6000).step_by(500) {
        let states = (first + 1..=first + 500).map(|version| present(&job(version as usize % 7), version));
        settled(&desk, states.collect(), first + 500).await;
    }
    let noted = |progress| ProgressSave {
        progress: PluginProgress { is_unstarted: true, ..progress },
        ..ProgressSave::default()
    };
    desk.journal.save("new", noted(subscribed(0, 0))).await.unwrap();
    assert_eq!(pass(&desk, &keep(500)).await.states, 0);
    let spec = RetentionSpec { past_cursors: true, ..keep(500) };
    let mut retention = SourceRetention::new(desk.journal.clone(), SOURCE).in_hand(1500);
    let report = retention.run_pass(&spec).await.unwrap();
    assert!(report.states > 0 && report.states == report.untold, "{report:?}");
    let gaps = desk.journal.all_gaps().await.unwrap();
    assert!(gaps.len() == 1 && gaps[0].message.ends_with("that new had not been handed"), "{gaps:?}");
    assert_eq!(desk.journal.removed_before_delivery().await.unwrap()["new"], report.untold);
    desk.assert_sound().await;
    // Its manifest now has `now`, so no state waits for it before it starts.
    desk.journal.save("new", noted(PluginProgress::default())).await.unwrap();
    assert_eq!(pass(&desk, &keep(500)).await.states + report.states, 5500);
    desk.assert_sound().await;
}

async fn past_cursors_it_takes_what_no_plugin_has_read_and_records_the_gap() {
    let desk = TestJournal::new().await;
    for first in (0..6000).step_by(500) {
        let states = (first + 1..=first + 500).map(|version| present(&job(version as usize % 7), version));
        settled(&desk, states.collect(), first + 500).await;
    }
    let save = |cursor, delivered| ProgressSave {
        progress: subscribed(cursor, delivered),
        ..ProgressSave::default()
    };
    desk.journal.save("stuck", save(100, 100)).await.unwrap();
    let spec = RetentionSpec { past_cursors: true, ..keep(500) };
    let mut retention = SourceRetention::new(desk.journal.clone(), SOURCE).in_hand(1500);
    let report = retention.run_pass(&spec).await.unwrap();
    let kept_now = kept(&desk).await;
    // It holds the states in progress: 1500 and more after those that it read, to the end of a segment.
    let held: Vec<Seq> = (101..=3071).chain(5501..=6000).collect();
    assert!(kept_now == held, "{} are kept", kept_now.len());
    for seq in [3071, 5501, 5507] {
        let expected = crate::support::document(&job(seq as usize % 7), &seq.to_string());
        assert_eq!(desk.journal.document_at(seq).await.unwrap().unwrap_or_default(), expected);
    }
    assert_eq!((report.states, report.untold), (100 + 5500 - 3071, 5500 - 3071));
    desk.assert_sound().await;
    let gaps = desk.journal.all_gaps().await.unwrap();
    assert_eq!(gaps.len(), 1);
    let bounds = (gaps[0].after.as_str(), gaps[0].before.as_str(), gaps[0].reason.as_str());
    assert_eq!(bounds, ("3071", "5501", "Retention"));
    assert!(gaps[0].message.contains("2429 states at positions 3072 to 5500 that stuck"), "{gaps:?}");
    assert_eq!(
        desk.journal.removed_before_delivery().await.unwrap(),
        BTreeMap::from([("stuck".into(), 2429)])
    );
    // It continues: delivered and removed states add up.
    desk.journal.save("stuck", save(6000, 6000 - 2429)).await.unwrap();
    desk.assert_sound().await;
    desk.journal.save("stuck", save(6000, 6000)).await.unwrap();
    assert!(!desk.verify().await.ok, "states that nobody could have handed over");
}

async fn the_record_of_what_was_taken_grows_as_long_as_the_plugin_stands_still() {
    let desk = TestJournal::new().await;
    let more = async |first: u64| {
        let states = (first + 1..=first + 500).map(|version| present(&job(version as usize % 7), version));
        settled(&desk, states.collect(), first + 500).await;
    };
    for first in (0..4000).step_by(500) {
        more(first).await;
    }
    let save = |cursor, delivered| ProgressSave {
        progress: subscribed(cursor, delivered),
        ..ProgressSave::default()
    };
    desk.journal.save("stuck", save(100, 100)).await.unwrap();
    let spec = RetentionSpec { past_cursors: true, ..keep(100) };
    let mut retention = SourceRetention::new(desk.journal.clone(), SOURCE).in_hand(10);
    let first = retention.run_pass(&spec).await.unwrap().untold;
    more(4000).await;
    more(4500).await;
    let second = retention.run_pass(&spec).await.unwrap().untold;
    let gaps = desk.journal.all_gaps().await.unwrap();
    assert!(first > 0 && second > 0 && gaps.len() == 1, "{first} {second} {gaps:?}");
    assert!(gaps[0].message.starts_with(&format!("retention took {} states", first + second)), "{gaps:?}");
    // It has moved on and is stuck again, which is another loss.
    desk.journal.save("stuck", save(5000, 5000 - first - second)).await.unwrap();
    for first in (5000..9000).step_by(500) {
        more(first).await;
    }
    assert!(retention.run_pass(&spec).await.unwrap().untold > 0);
    assert_eq!(desk.journal.all_gaps().await.unwrap().len(), 2);
    desk.assert_sound().await;
}

/// Its cursor went back for an added source. States that it had finished before stay finished.
async fn a_plugin_that_goes_back_for_an_added_source_adds_up_whatever_is_taken() {
    let desk = TestJournal::new().await;
    for first in (0..4000).step_by(500) {
        let states = (first + 1..=first + 500).map(|version| present(&job(version as usize % 7), version));
        settled(&desk, states.collect(), first + 500).await;
    }
    let mut progress = subscribed(3000, 3000);
    progress.add_sources(vec![("pods".into(), 0)]);
    assert_eq!(progress.cursor, 0);
    desk.journal.save("p", ProgressSave { progress, ..ProgressSave::default() }).await.unwrap();
    desk.assert_sound().await;
    let spec = RetentionSpec { past_cursors: true, ..keep(500) };
    let report =
        SourceRetention::new(desk.journal.clone(), SOURCE).in_hand(10).run_pass(&spec).await.unwrap();
    assert!(report.states > 1000, "{report:?}");
    assert!(report.untold > 0 && report.untold <= 500, "it had finished the first 3000: {report:?}");
    desk.assert_sound().await;
}

/// The rows of 2,000 deleted Jobs are reused, so the file does not grow with the history.
#[tokio::test]
async fn what_is_given_back_is_used_again() {
    let desk = TestJournal::new().await;
    let mut sizes = Vec::new();
    for round in 0..6 {
        for n in 0..200usize {
            let (number, version) = (round * 200 + n, (round * 200 + n) as u64 * 3);
            let states = vec![
                present(&job(number), version + 1),
                present(&job(number), version + 2),
                state(&job(number), Change::Gone, &(version + 3).to_string()),
            ];
            settled(&desk, states, version + 3).await;
        }
        pass(&desk, &keep(300)).await;
        sizes.push(pages(&desk).await);
    }
    desk.assert_sound().await;
    assert_eq!(kept(&desk).await.len(), 300);
    assert_eq!(rows_of(&desk, "objects").await, 100);
    // After the third round, the file does not grow any more.
    assert!(sizes[3..].iter().all(|size| *size <= sizes[2]), "{sizes:?} pages");
}

async fn statuses_owners_and_the_like_go_with_the_last_state_that_needed_them() {
    let desk = TestJournal::new().await;
    let owned = |number: usize, owner: usize, change, version: u64| {
        let mut state = state(&job(number), change, &version.to_string());
        state.owner = Some(job(owner));
        state.controller = Some(job(owner + 1));
        let status = kubewitness_core::Status { message: format!("of {number}"), ..Default::default() };
        state.status = std::sync::Arc::new(status);
        state
    };
    for round in 0..30usize {
        let version = round as u64 * 2;
        let (number, owner) = (100 + round, 1000 + round / 10 * 10);
        let states = vec![
            owned(number, owner, Change::Present, version + 1),
            owned(number, owner, Change::Gone, version + 2),
        ];
        settled(&desk, states, version + 2).await;
    }
    settled(&desk, vec![owned(5, 1020, Change::Present, 100), owned(6, 1020, Change::Present, 101)], 101)
        .await;
    let mut retention = SourceRetention::new(desk.journal.clone(), SOURCE);
    assert_eq!(retention.run_pass(&hours(1)).await.unwrap().states, 60);
    retention.sweep_shared_rows().await.unwrap();
    desk.assert_sound().await;
    // Two Jobs, their owner and its controller remain. Only their statuses remain, too.
    assert_eq!(rows_of(&desk, "objects").await, 4);
    assert_eq!(rows_of(&desk, "owned").await, 4);
    assert_eq!(rows_of(&desk, "statuses").await, 2);
    // Returning objects are stored again, whatever the writer remembers.
    settled(&desk, vec![owned(106, 1000, Change::Present, 200)], 200).await;
    desk.assert_sound().await;
    let asked = TimelineQuery { uid: Some(job(1000).uid.clone()), ..TimelineQuery::default() };
    let check = |view: kubewitness_journal::ObjectStory| {
        assert_eq!(view.related.len(), 1);
        assert_eq!(view.related[0].status.message, "of 106");
    };
    check(desk.journal.object_timeline(&asked).await.unwrap());
    let desk = desk.reopen().await;
    check(desk.journal.object_timeline(&asked).await.unwrap());
}

async fn a_report_of_a_plugin_goes_with_the_last_state_of_its_object() {
    let desk = TestJournal::new().await;
    history(&desk, 2, 2).await;
    let uid = |n: usize| job(n).uid.clone();
    let write = |key: String| KvWrite { key, value: Some(br#"{"to": "ops", "result": "sent"}"#.to_vec()) };
    let kv = [format!("report/{}/1/ops", uid(0)), format!("report/{}/1/ops", uid(1)), "note/1".to_owned()];
    let save =
        ProgressSave { progress: subscribed(4, 4), kv: kv.map(write).into(), ..ProgressSave::default() };
    desk.journal.save("p", save).await.unwrap();
    let told = async |desk: &TestJournal| {
        let reports = desk.journal.reports_about(&HashSet::from([uid(0), uid(1)])).await.unwrap();
        reports.into_iter().map(|report| (report.plugin, report.uid, report.to)).collect::<Vec<_>>()
    };
    let of = |n: usize| ("p".to_owned(), uid(n), "ops".to_owned());
    assert_eq!(told(&desk).await, [of(0), of(1)]);
    settled(&desk, vec![state(&job(0), Change::Gone, "100"), present(&job(1), 101)], 101).await;
    desk.journal
        .save("p", ProgressSave { progress: subscribed(6, 6), ..ProgressSave::default() })
        .await
        .unwrap();
    pass(&desk, &hours(1)).await;
    assert_eq!(told(&desk).await, [of(1)]);
    let desk = desk.reopen().await;
    assert_eq!(told(&desk).await, [of(1)]);
    let keys: Vec<_> = desk.journal.plugin_kv("p").await.unwrap().into_iter().map(|(key, _)| key).collect();
    assert_eq!(keys, ["note/1"], "what is no report stays");
    desk.assert_sound().await;
}

async fn of_an_object_with_too_many_reports_the_oldest_go() {
    let desk = TestJournal::new().await;
    history(&desk, 2, 2).await;
    let key = |n: usize, number: usize| format!("report/{}/{number:04}/ops", job(n).uid);
    let write = |key: String| KvWrite { key, value: Some(br#"{"to": "ops"}"#.to_vec()) };
    let many = (0..reports::SHOWN + 20).map(|number| key(1, number));
    let kv = many.chain([key(0, 0), "report/daily".to_owned()]).map(write).collect();
    desk.journal
        .save("p", ProgressSave { progress: subscribed(4, 4), kv, ..ProgressSave::default() })
        .await
        .unwrap();
    let own: Vec<_> = desk.journal.plugin_kv("p").await.unwrap().into_iter().map(|(key, _)| key).collect();
    assert_eq!(own, ["report/daily"], "a plugin's own key may begin like a report's");
    let before = desk.journal.report_bytes("p").await.unwrap();
    settled(&desk, vec![state(&job(0), Change::Gone, "100"), present(&job(1), 101)], 101).await;
    desk.journal
        .save("p", ProgressSave { progress: subscribed(6, 6), ..ProgressSave::default() })
        .await
        .unwrap();
    pass(&desk, &hours(1)).await;
    let report = (key(1, 0).len() + br#"{"to": "ops"}"#.len()) as u64;
    assert_eq!(before - desk.journal.report_bytes("p").await.unwrap(), 21 * report);
    let left = desk.journal.reports_about(&HashSet::from([job(1).uid.clone()])).await.unwrap();
    assert_eq!(left.len(), reports::SHOWN);
    desk.assert_sound().await;
}

async fn what_holds_states_beyond_the_bounds_is_told_and_looked_at_again_once_it_lets_go() {
    let desk = TestJournal::new().await;
    history(&desk, 5, 500).await;
    desk.journal
        .save("p", ProgressSave { progress: subscribed(100, 100), ..ProgressSave::default() })
        .await
        .unwrap();
    let mut retention = SourceRetention::new(desk.journal.clone(), SOURCE);
    assert!(retention.held_states().is_empty());
    assert_eq!(retention.run_pass(&keep(10)).await.unwrap().states, 100);
    assert_eq!(retention.held_states(), BTreeMap::from([(RetentionHolder::Plugin("p".into()), 2390)]));
    // Retention reads none of its segments before that changes.
    assert_eq!(retention.run_pass(&keep(10)).await.unwrap().states, 0);
    assert_eq!(retention.held_states(), BTreeMap::from([(RetentionHolder::Plugin("p".into()), 2390)]));

    let id = |seq: usize| StateId::parse(&format!("{SOURCE}/0/batch/Job/{}/{seq}", job((seq - 1) % 5).uid));
    let letter = DeadLetter {
        plugin: "p".into(),
        seq: 2400,
        id: id(2400),
        attempts: 1,
        error: "no".into(),
        first_ms: 1,
        last_ms: 1,
        replaying: false,
        dropped: false,
        tries: Vec::new(),
    };
    let progress = PluginProgress { dead: 1, ..subscribed(2500, 2499) };
    desk.journal
        .save("p", ProgressSave { progress, parked: vec![letter], ..ProgressSave::default() })
        .await
        .unwrap();
    // Everything is removed, except the letter's state, later states of its object, and what is within the
    // bounds.
    assert_eq!(retention.run_pass(&keep(10)).await.unwrap().states, 2390 - 19);
    assert_eq!(retention.held_states(), BTreeMap::from([(RetentionHolder::DeadLetter, 1)]));
    desk.journal.mark_dropped("p", &[2400], "ann", "why").await.unwrap();
    let mut later = SourceRetention::new(desk.journal.clone(), SOURCE);
    later.run_pass(&keep(10)).await.unwrap();
    assert_eq!(later.held_states(), BTreeMap::new());
    assert_eq!(kept(&desk).await, (2491..=2500).collect::<Vec<_>>(), "a dropped letter keeps nothing");
    desk.assert_sound().await;
}

/// The machine's clock, years later.
struct LaterClock(SystemClock);

impl Clock for LaterClock {
    fn now_ms(&self) -> u64 {
        self.0.now_ms() + 10 * 365 * 24 * 3_600_000
    }

    fn elapsed(&self) -> std::time::Duration {
        self.0.elapsed()
    }
}

async fn dropped_letters_go_with_their_states_and_old_records_go_except_pauses_in_force() {
    const LETTERS: Seq = 1_000;
    let mut desk = TestJournal::new().await;
    let states = (1..=LETTERS + 1).map(|version| present(&job(0), version));
    settled(&desk, states.collect(), LETTERS + 1).await;
    let progress = PluginProgress { dead: LETTERS, ..subscribed(LETTERS + 1, 1) };
    let parked = (1..=LETTERS).map(dead).collect();
    desk.journal.save("audit", ProgressSave { progress, parked, ..ProgressSave::default() }).await.unwrap();
    desk.journal.mark_paused("other", true, "ann", "it floods the database").await.unwrap();
    for first in (1..=LETTERS).step_by(5) {
        let letters: Vec<Seq> = (first..first + 5).collect();
        desk.journal.mark_dropped("audit", &letters, "ann", "nobody needs them").await.unwrap();
    }
    for pauses in [true, false].repeat(50) {
        desk.journal.mark_paused("audit", pauses, "ann", "to look").await.unwrap();
    }
    desk.journal.mark_paused("last", false, "ann", "it is the newest record").await.unwrap();
    assert_eq!((rows_of(&desk, "letters").await, rows_of(&desk, "replays").await), (1_000, 302));

    assert_eq!(pass(&desk, &hours(1)).await.states, LETTERS);
    assert_eq!((rows_of(&desk, "letters").await, rows_of(&desk, "replays").await), (0, 302));
    desk.assert_sound().await;
    let progress = desk.journal.plugin_progress("audit").await.unwrap().unwrap();
    assert_eq!((progress.dead, progress.removed_letters), (LETTERS, LETTERS));

    desk.journal.close().await.unwrap();
    let later = JournalOptions { clock: Arc::new(LaterClock(SystemClock::default())), ..options() };
    desk.journal = Journal::open_at(&desk.place, later).await.unwrap();
    pass(&desk, &hours(1)).await;
    let left = desk.journal.replay_records(None, u64::MAX, 100).await.unwrap();
    let left: Vec<_> = left.iter().map(|record| (&*record.plugin, &*record.what)).collect();
    assert_eq!(left, [("last", "resume"), ("audit", "resume"), ("other", "pause")]);
    assert!(desk.journal.plugin_pause("other").await.unwrap().is_some());
    assert!(desk.journal.plugin_pause("audit").await.unwrap().is_none());
    desk.assert_sound().await;
    pass(&desk, &hours(1)).await;
    desk.assert_sound().await;

    // The next record follows the newest one, and a lost one is still found.
    desk.journal.mark_paused("audit", true, "ann", "once more").await.unwrap();
    desk.assert_sound().await;
    desk.keep("@replays").await;
    desk.run("DELETE FROM @replays WHERE id = 1").await;
    let report = desk.verify().await;
    assert!(report.problems.iter().any(|problem| problem.code == code::RECORD), "{:?}", report.problems);
    desk.put_back("@replays").await;
    desk.let_go().await;
    desk.journal.forget_plugin("audit").await.unwrap();
    desk.assert_sound().await;
}

async fn records_of_acts_stay_under_a_bound_by_count() {
    let desk = TestJournal::new().await;
    for pauses in [true, false, true, false] {
        desk.journal.mark_paused("audit", pauses, "ann", "to look").await.unwrap();
    }
    // These states are newer than the records, as in a busy source.
    let observed_ms = SystemClock::default().now_ms() + 60_000;
    let states = (1..=10).map(|version| WitnessedState { observed_ms, ..present(&job(0), version) });
    settled(&desk, states.collect(), 10).await;
    assert_eq!(pass(&desk, &keep(1)).await.states, 9);
    assert_eq!(rows_of(&desk, "replays").await, 4, "only a bound by age removes records");
    desk.assert_sound().await;
}

async fn a_state_that_one_plugin_dropped_and_another_has_parked_stays() {
    let desk = TestJournal::new().await;
    history(&desk, 2, 10).await;
    let progress = PluginProgress { dead: 1, ..subscribed(20, 19) };
    for plugin in ["audit", "tables"] {
        let parked = vec![DeadLetter { plugin: plugin.into(), ..dead(7) }];
        let save = ProgressSave { progress: progress.clone(), parked, ..ProgressSave::default() };
        desk.journal.save(plugin, save).await.unwrap();
    }
    desk.journal.mark_dropped("audit", &[7], "ann", "nobody needs it").await.unwrap();
    pass(&desk, &keep(1)).await;
    assert_eq!(kept(&desk).await, [7, 9, 11, 13, 15, 17, 19, 20], "job 0 stays from its letter on");
    desk.journal.mark_dropped("tables", &[7], "ann", "nobody needs it").await.unwrap();
    pass(&desk, &keep(1)).await;
    assert_eq!((kept(&desk).await, rows_of(&desk, "letters").await), (vec![19, 20], 0));
    desk.assert_sound().await;
}

/// The statements that PostgreSQL ran for a pass over so many segments that plugins hold, and the rows that it
/// read for them.
async fn pass_costs(segments: u64) -> (u64, u64) {
    let mut desk = TestJournal::new().await;
    history(&desk, 1, 3).await;
    for plugin in 0..8 {
        let save = ProgressSave { progress: subscribed(0, 0), ..ProgressSave::default() };
        desk.journal.save(&format!("p{plugin}"), save).await.unwrap();
    }
    let tallies = "INSERT INTO kw_tallies (segment, stream, states, bytes) \
                   SELECT n, (SELECT min(id) FROM kw_streams), 1000, 200000";
    desk.run(&format!("{tallies} FROM generate_series(1, {segments}) n")).await;
    // The server would read the tables, too, whenever it wants.
    desk.run(
        "DO $$ DECLARE one text; BEGIN \
         FOR one IN SELECT tablename FROM pg_tables WHERE schemaname = current_schema() LOOP \
         EXECUTE format('ALTER TABLE %I SET (autovacuum_enabled = off)', one); END LOOP; END $$",
    )
    .await;
    desk.journal.close().await.unwrap();
    let before = server_figures(&desk).await;
    desk.journal = open_at(&desk.place).await;
    assert_eq!(pass(&desk, &keep(1)).await.states, 0);
    desk.journal.close().await.unwrap();
    let after = server_figures(&desk).await;
    (after.0 - before.0, after.1 - before.1)
}

/// The transactions that PostgreSQL committed, and the rows that it read. A session reports them at its end.
async fn server_figures(desk: &TestJournal) -> (u64, u64) {
    let others = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' \
                  AND datname = current_database() AND pid <> pg_backend_pid()";
    until(PATIENCE, "the end of the journal's sessions", async || {
        Ok((desk.ask(others).await == "0").then_some(()))
    })
    .await
    .unwrap();
    let statements = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()";
    let rows = "SELECT sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0)) FROM pg_stat_user_tables";
    let statements = desk.ask(statements).await.parse().unwrap();
    (statements, desk.ask(rows).await.parse().unwrap())
}

/// A pass that read all tallies, or all plugins' progress, for each segment would cost the square.
#[tokio::test]
async fn a_pass_over_many_segments_that_plugins_hold_costs_no_more_than_in_proportion() {
    let name = "retention::a_pass_over_many_segments_that_plugins_hold_costs_no_more_than_in_proportion";
    crate::support::on(StoreKind::Postgres, name, async {
        let (few, many) = (pass_costs(1_000).await, pass_costs(2_000).await);
        let (statements, rows) = (many.0 - few.0, many.1 - few.1);
        assert!(few.0 > 1_000, "each segment was examined: {few:?}");
        assert!(
            statements < 5_000,
            "{statements} statements more for 1,000 segments more: {few:?}, {many:?}"
        );
        assert!(rows < 40_000, "{rows} rows more for 1,000 segments more: {few:?}, {many:?}");
    })
    .await;
}

#[derive(Clone, Debug)]
enum RetentionStep {
    Append(Vec<(usize, u8, u64)>),
    Retain(u64),
    Save(u64),
    Reopen,
}

fn step() -> impl Strategy<Value = RetentionStep> {
    let one = (0usize..4, 0u8..10, 1u64..30);
    prop_oneof![
        6 => proptest::collection::vec(one, 1..12).prop_map(RetentionStep::Append),
        4 => (1..20u64).prop_map(RetentionStep::Retain),
        1 => (0..100u64).prop_map(RetentionStep::Save),
        1 => Just(RetentionStep::Reopen),
    ]
}

fn witnessed((object, change, version): (usize, u8, u64), bases: &HashMap<usize, Bytes>) -> WitnessedState {
    let text = version.to_string();
    let mut state = match change {
        0 => state(&job(object), Change::Gone, if version % 2 == 0 { &text } else { "" }),
        1 => state(&job(object), Change::Left, &text),
        2 => gap(&job(object), &text, &(version + 5).to_string()),
        _ => state(&job(object), Change::Present, &text),
    };
    state.base = bases.get(&object).cloned();
    state
}

/// The journaled states by position: document and object.
type JournaledState = BTreeMap<Seq, (Bytes, usize)>;

async fn check(desk: &TestJournal, told: &JournaledState, through: Seq) {
    desk.assert_sound().await;
    let kept = kept(desk).await;
    for (seq, (document, object)) in told {
        let is_kept = kept.contains(seq);
        assert!(is_kept || *seq <= through, "{seq} was not finished and is gone");
        let restored = desk.journal.document_at(*seq).await.unwrap();
        assert_eq!(
            restored.as_ref(),
            Some(document).filter(|document| is_kept && !document.is_empty()),
            "{seq}"
        );
        // No story has a hole.
        let mut of_it = told.range(..seq).rev().filter(|(_, (_, other))| other == object);
        let before = of_it.any(|(before, _)| kept.contains(before));
        let later = told.range(seq + 1..).any(|(later, (_, other))| other == object && kept.contains(later));
        assert!(is_kept || !(before && later), "{seq} is a hole in its object's story");
    }
    for current in desk.journal.load_warm_start(SOURCE).await.unwrap().objects {
        assert!(kept.contains(&current.seq), "the newest state of what is there is gone");
    }
}

async fn run(steps: Vec<RetentionStep>) {
    let mut desk = TestJournal::new().await;
    let (mut told, mut bases, mut cursor) = (JournaledState::new(), HashMap::new(), 0);
    let mut ends = RandomHistory::default();
    desk.journal
        .save("p", ProgressSave { progress: subscribed(0, 0), ..ProgressSave::default() })
        .await
        .unwrap();
    for step in steps {
        match step {
            RetentionStep::Reopen => desk = desk.reopen().await,
            RetentionStep::Save(more) => {
                cursor = (cursor + more).min(*desk.journal.newest_position().borrow());
                let progress = subscribed(cursor, cursor);
                desk.journal.save("p", ProgressSave { progress, ..ProgressSave::default() }).await.unwrap();
            }
            RetentionStep::Retain(count) => drop(pass(&desk, &keep(count)).await),
            RetentionStep::Append(states) => {
                let states: Vec<_> = states.into_iter().filter(|one| ends.may_come(*one)).collect();
                let batch: Vec<_> = states.iter().map(|one| witnessed(*one, &bases)).collect();
                let documents: Vec<_> = batch.iter().map(|state| state.document.clone()).collect();
                let checkpoint = Some(Version::new("1000"));
                let append = AppendBatch { checkpoint, ..of(SOURCE, 0, batch) };
                let appended = desk.journal.append_batch(append).await.unwrap();
                for ((one, document), seq) in states.iter().zip(documents).zip(appended.seqs) {
                    bases.insert(one.0, document.clone());
                    told.extend(seq.map(|seq| (seq, (document, one.0))));
                }
            }
        }
        check(&desk, &told, cursor).await;
    }
}

/// On servers a few: each takes seconds.
async fn a_few_random_histories_stay_whole() {
    let mut runner = TestRunner::deterministic();
    for _ in 0..3 {
        let steps = proptest::collection::vec(step(), 6..10).new_tree(&mut runner).unwrap().current();
        run(steps).await;
    }
}

on_every_store!(
    the_newest_stay_and_each_is_restored_byte_for_byte_also_after_a_restart,
    the_newest_state_of_an_object_that_is_there_never_goes_and_one_that_has_ended_leaves_nothing,
    what_a_watch_could_be_resumed_before_stays,
    neither_what_a_plugin_has_not_finished_goes_nor_a_dead_letter,
    what_is_owed_stays,
    what_a_plugin_that_was_taken_out_is_owed_stays_for_a_day,
    poison_and_records_of_losses_go_with_the_states_of_their_time,
    a_plugin_that_was_taken_out_holds_what_it_has_not_finished_for_a_day,
    a_plugin_that_waits_for_its_first_start_holds_what_it_is_owed_within_the_bounds_of_one_that_lags,
    past_cursors_it_takes_what_no_plugin_has_read_and_records_the_gap,
    the_record_of_what_was_taken_grows_as_long_as_the_plugin_stands_still,
    a_plugin_that_goes_back_for_an_added_source_adds_up_whatever_is_taken,
    statuses_owners_and_the_like_go_with_the_last_state_that_needed_them,
    a_report_of_a_plugin_goes_with_the_last_state_of_its_object,
    of_an_object_with_too_many_reports_the_oldest_go,
    what_holds_states_beyond_the_bounds_is_told_and_looked_at_again_once_it_lets_go,
    dropped_letters_go_with_their_states_and_old_records_go_except_pauses_in_force,
    records_of_acts_stay_under_a_bound_by_count,
    a_state_that_one_plugin_dropped_and_another_has_parked_stays,
    a_few_random_histories_stay_whole,
);

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_between_what_stays_is_whole_and_what_is_owed_stays(
        steps in proptest::collection::vec(step(), 1..14),
    ) {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(run(steps));
    }
}
