//! Tests of what dispatch reads from the journal and saves in it.

use std::sync::Arc;

use kubewitness_core::cursor::LetterCursor;
use kubewitness_core::ledger::LedgerProgress;
use kubewitness_core::ports::{
    Backlog, DeadLetter, DocumentReader, JournalError, KvWrite, Ledgers, NOTE, NoteDurability, NoteStore,
    OwedPage, PluginProgress, ProgressSave, SourceStart, StateWitness, Try, WitnessedState,
};
use kubewitness_core::views::{LetterChoice, LetterQuery};
use kubewitness_core::{Change, Seq, StateId};
use kubewitness_journal::{Journal, account_at, ids_at};

use crate::support::{PATIENCE, SOURCE, TestJournal, in_source, job, of, on_every_store, present, status};

pub fn letter(seq: Seq) -> DeadLetter {
    DeadLetter {
        plugin: "audit".into(),
        seq,
        id: StateId::parse("jobs/0/x"),
        attempts: 3,
        error: "no".into(),
        first_ms: 1,
        last_ms: 2,
        replaying: false,
        dropped: false,
        tries: vec![Try { attempt: 1, at_ms: 5, took_ms: 2, error: "no such table".into() }],
    }
}

fn progress(cursor: Seq, delivered: u64, dead: u64) -> PluginProgress {
    let sources = vec![SourceStart { source: SOURCE.into(), after: 0, until: None }];
    PluginProgress { cursor, delivered, dead, sources, ..PluginProgress::default() }
}

/// There are more objects than the readers' shared cache holds.
#[tokio::test]
async fn readers_of_many_objects_take_no_rows_from_each_other() {
    const OBJECTS: usize = 20_000;
    let desk = TestJournal::new().await;
    // A read waits for the store between its objects and its statuses.
    let state = |number: usize| WitnessedState {
        status: status(&format!("Phase{number}")),
        ..present(&job(number), number as u64)
    };
    for part in (1..=OBJECTS).collect::<Vec<_>>().chunks(1024) {
        desk.append(part.iter().map(|number| state(*number)).collect()).await;
    }
    // After reopening, the states are no longer in memory but read from the file.
    let desk = desk.reopen().await;
    let read_all = async |page: usize| {
        let mut last = 0;
        while let Some(state) = desk.journal.read(last, page).await.unwrap().last() {
            last = state.seq;
        }
        assert_eq!(last, OBJECTS as Seq);
    };
    tokio::join!(read_all(512), read_all(400), read_all(300), read_all(256));
}

async fn what_is_there_of_a_source_is_read_by_parts_with_the_newest_state_of_each_object() {
    let desk = TestJournal::new().await;
    desk.append((1..=7).map(|n| present(&job(n), n as u64)).collect()).await;
    let other = vec![in_source("pods", 0, &job(90), Change::Present, "8")];
    desk.journal.append_batch(of("pods", 0, other)).await.unwrap();
    let changed = desk.append((2..=4).map(|n| present(&job(n), 10 + n as u64)).collect()).await;
    desk.append(vec![in_source(SOURCE, 0, &job(6), Change::Gone, "20")]).await;
    desk.append(vec![in_source(SOURCE, 0, &job(7), Change::Left, "21")]).await;
    let newer: Vec<Seq> = changed.seqs.into_iter().flatten().collect();
    let desk = desk.reopen().await;
    let (mut seqs, mut from, mut parts) = (Vec::new(), 0, 0);
    loop {
        let part = desk.journal.present_objects(SOURCE, from, 2).await.unwrap();
        assert!(part.states.iter().all(|state| &*state.source == SOURCE && state.change == Change::Present));
        seqs.extend(part.states.iter().map(|state| state.seq));
        parts += 1;
        let Some(next) = part.next else { break };
        from = next;
    }
    assert_eq!((seqs, parts), (vec![1, newer[0], newer[1], newer[2], 5], 3));
    assert_eq!(desk.journal.read_at(&newer).await.unwrap()[0].id.as_str().rsplit('/').next(), Some("12"));
    assert!(desk.journal.present_objects("nobody's", 0, 9).await.unwrap().states.is_empty());
}

async fn what_a_plugin_left_is_forgotten_whole_and_that_of_others_stays() {
    let desk = TestJournal::new().await;
    desk.append((1..=5).map(|n| present(&job(n), n as u64)).collect()).await;
    for plugin in ["audit", "other"] {
        let save = ProgressSave {
            progress: progress(4, 2, 2),
            parked: [2, 3].map(|seq| DeadLetter { plugin: plugin.into(), ..letter(seq) }).to_vec(),
            kv: vec![KvWrite { key: "a".into(), value: Some(vec![1]) }],
            ..ProgressSave::default()
        };
        desk.journal.save(plugin, save).await.unwrap();
        desk.journal.mark_replaying(plugin, &[2], "ann", "the sink is back").await.unwrap();
    }
    desk.journal.forget_plugin("audit").await.unwrap();
    desk.journal.forget_plugin("nobody").await.unwrap();
    let desk = desk.reopen().await;
    assert_eq!(desk.journal.plugin_progress("audit").await.unwrap(), None);
    assert!(desk.journal.dead_letters("audit").await.unwrap().is_empty());
    assert!(desk.journal.plugin_kv("audit").await.unwrap().is_empty());
    assert_eq!(desk.journal.all_progress().await.unwrap().into_keys().collect::<Vec<_>>(), ["other"]);
    assert_eq!(desk.journal.dead_letters("other").await.unwrap().len(), 2);
    assert_eq!(desk.journal.plugin_kv("other").await.unwrap(), [("a".into(), vec![1])]);
    assert_eq!(
        desk.journal.replay_records(Some("audit"), u64::MAX, 100).await.unwrap().len(),
        1,
        "who did what is a record"
    );
    desk.assert_sound().await;
}

async fn how_far_a_ledger_has_come_is_kept_beside_what_plugins_keep() {
    let desk = TestJournal::new().await;
    let reached = |lines| LedgerProgress { ledger: "ab".repeat(16), file: 2, lines, root: "0f".repeat(32) };
    assert_eq!(desk.journal.ledger_progress("trail").await.unwrap(), None);
    desk.journal.save_ledger_progress("trail", &reached(4)).await.unwrap();
    desk.journal.save_ledger_progress("trail", &reached(9)).await.unwrap();
    let desk = desk.reopen().await;
    assert_eq!(desk.journal.ledger_progress("trail").await.unwrap(), Some(reached(9)));
    assert_eq!(desk.journal.ledger_progress("other").await.unwrap(), None);
    let found = account_at(&desk.place, None, "trail").await.unwrap();
    assert_eq!((found.reached, found.account), (Some(reached(9)), None));
    assert!(desk.journal.all_progress().await.unwrap().is_empty(), "it is no plugin");
    desk.assert_sound().await;
}

async fn progress_letters_and_keys_are_saved_together() {
    let desk = TestJournal::new().await;
    desk.append((1..=5).map(|n| present(&job(n), n as u64)).collect()).await;
    assert_eq!(desk.journal.plugin_progress("audit").await.unwrap(), None);
    let save = ProgressSave {
        progress: progress(4, 2, 2),
        parked: vec![letter(2), letter(3)],
        revived: vec![],
        owed: vec![],
        kv: vec![
            KvWrite { key: "a".into(), value: Some(vec![1]) },
            KvWrite { key: "b".into(), value: Some(vec![2]) },
            KvWrite { key: "a".into(), value: Some(vec![3]) },
        ],
    };
    desk.journal.save("audit", save.clone()).await.unwrap();
    let desk = desk.reopen().await;
    assert_eq!(desk.journal.plugin_progress("audit").await.unwrap(), Some(save.progress));
    assert_eq!(desk.journal.dead_letters("audit").await.unwrap(), [letter(2), letter(3)]);
    let account = account_at(&desk.place, Some("audit"), "trail").await.unwrap().account.unwrap();
    assert_eq!((account.progress, account.letters), (progress(4, 2, 2), [2, 3].into()));
    assert_eq!(account_at(&desk.place, Some("other"), "trail").await.unwrap(), Default::default());
    assert!(desk.journal.dead_letters("other").await.unwrap().is_empty());
    assert_eq!(
        desk.journal.plugin_kv("audit").await.unwrap(),
        [("a".into(), vec![3]), ("b".into(), vec![2])]
    );
    let with_states = desk.journal.letters_with_states(&LetterQuery::default()).await.unwrap();
    assert_eq!(with_states.iter().map(|(_, state)| state.seq).collect::<Vec<_>>(), [2, 3]);
    let part = async |plugin: &str, seq, limit| {
        let cursor = Some(LetterCursor { plugin: plugin.into(), seq });
        let query = LetterQuery { cursor, limit: Some(limit), ..LetterQuery::default() };
        let found = desk.journal.letters_with_states(&query).await.unwrap();
        found.iter().map(|(letter, _)| letter.seq).collect::<Vec<_>>()
    };
    assert_eq!((part("aud", 9, 9).await, part("audit", 1, 1).await), (vec![2, 3], vec![2]));
    assert_eq!((part("audit", 2, 9).await, part("audit", 3, 9).await), (vec![3], vec![]));
    desk.assert_sound().await;

    desk.journal.mark_replaying("audit", &[2], "ann", "the sink is back").await.unwrap();
    assert!(desk.journal.dead_letters("audit").await.unwrap()[0].replaying);
    desk.assert_sound().await;
    let record = desk.journal.replay_records(Some("audit"), u64::MAX, 100).await.unwrap().remove(0);
    assert_eq!((record.who.as_str(), record.why.as_str(), record.seqs), ("ann", "the sink is back", vec![2]));

    let kv = vec![KvWrite { key: "a".into(), value: None }];
    let save = ProgressSave { progress: progress(4, 3, 1), revived: vec![2], kv, ..ProgressSave::default() };
    desk.journal.save("audit", save).await.unwrap();
    assert_eq!(desk.journal.dead_letters("audit").await.unwrap(), [letter(3)]);
    assert_eq!(desk.journal.plugin_kv("audit").await.unwrap(), [("b".into(), vec![2])]);
    desk.assert_sound().await;
}

async fn notes_are_kept_apart_from_a_plugins_own_keys_until_a_save_removes_them() {
    let desk = TestJournal::new().await;
    desk.append(vec![present(&job(1), 1)]).await;
    let note = |number: u8, value: Option<&[u8]>| KvWrite {
        key: format!("{NOTE}request/{number}"),
        value: value.map(<[u8]>::to_vec),
    };
    let own = KvWrite { key: "request/1".into(), value: Some(b"own".to_vec()) };
    let save = ProgressSave { progress: progress(0, 0, 0), kv: vec![own], ..ProgressSave::default() };
    desk.journal.save("audit", save).await.unwrap();
    desk.journal
        .save_notes("audit", vec![note(1, Some(b"\0\n"))], NoteDurability::ProcessCrash)
        .await
        .unwrap();
    desk.journal.save_notes("audit", vec![note(2, Some(b"two"))], NoteDurability::PowerLoss).await.unwrap();
    // The next commit of any kind stores them, in the order in which they were noted.
    desk.journal.note_later("audit", vec![note(2, Some(b"later")), note(3, Some(b"three"))]);
    desk.journal.save_notes("other", Vec::new(), NoteDurability::ProcessCrash).await.unwrap();
    let desk = desk.reopen().await;
    let pairs = |number: u8, value: &[u8]| (format!("{NOTE}request/{number}"), value.to_vec());
    let own = ("request/1".to_owned(), b"own".to_vec());
    let all = vec![pairs(1, b"\0\n"), pairs(2, b"later"), pairs(3, b"three"), own.clone()];
    assert_eq!(desk.journal.plugin_kv("audit").await.unwrap(), all);
    assert_eq!(desk.journal.plugin_kv("other").await.unwrap(), []);
    desk.journal.note_later("audit", vec![note(4, Some(b"four"))]);
    let kv = (1..=4).map(|number| note(number, None)).collect();
    let save = ProgressSave { progress: progress(1, 1, 0), kv, ..ProgressSave::default() };
    desk.journal.save("audit", save).await.unwrap();
    assert_eq!(desk.journal.plugin_kv("audit").await.unwrap(), [own]);
    desk.assert_sound().await;
}

async fn a_dropped_letter_stays_is_on_record_and_keeps_the_accounts() {
    let desk = TestJournal::new().await;
    desk.append((1..=4).map(|n| present(&job(n as usize), n)).collect()).await;
    let parked = ProgressSave {
        progress: progress(4, 2, 2),
        parked: vec![letter(2), letter(3)],
        ..ProgressSave::default()
    };
    desk.journal.save("audit", parked).await.unwrap();
    desk.journal.mark_dropped("audit", &[3], "ann", "no use").await.unwrap();
    let desk = desk.reopen().await;
    let letters = desk.journal.dead_letters("audit").await.unwrap();
    assert_eq!(letters, [letter(2), DeadLetter { dropped: true, ..letter(3) }]);
    let record = desk.journal.replay_records(None, u64::MAX, 100).await.unwrap().remove(0);
    assert_eq!((record.what.as_str(), record.who.as_str(), record.seqs), ("drop", "ann", vec![3]));
    desk.assert_sound().await;
}

async fn what_is_owed_is_read_by_parts_and_is_no_letter_until_it_becomes_one() {
    let desk = TestJournal::new().await;
    desk.append((1..=5).map(|n| present(&job(n as usize), n)).collect()).await;
    let save = ProgressSave { progress: progress(5, 2, 0), owed: vec![2, 4, 5], ..ProgressSave::default() };
    desk.journal.save("audit", save).await.unwrap();
    let desk = desk.reopen().await;
    let owed = async |from, limit| {
        let OwedPage { states, end } = desk.journal.owed_states("audit", from, limit).await.unwrap();
        (states.iter().map(|state| state.seq).collect::<Vec<_>>(), end)
    };
    assert_eq!((owed(0, 2).await, owed(5, 2).await), ((vec![2, 4], Some(4)), (vec![5], None)));
    assert!(desk.journal.dead_letters("audit").await.unwrap().is_empty());
    let all = LetterQuery { which: LetterChoice::All, ..LetterQuery::default() };
    assert!(desk.journal.letters_with_states(&all).await.unwrap().is_empty());
    assert_eq!(desk.journal.letters_at("audit", &[1, 2]).await.unwrap(), [(2, true)].into());
    let account = account_at(&desk.place, Some("audit"), "trail").await.unwrap().account.unwrap();
    assert_eq!((account.letters, account.owed), ([].into(), [2, 4, 5].into()));
    desk.assert_sound().await;
    // One save delivers a state, parks one, and delivers one that was owed.
    let save = ProgressSave {
        progress: progress(5, 3, 1),
        revived: vec![2],
        parked: vec![letter(4)],
        ..ProgressSave::default()
    };
    desk.journal.save("audit", save).await.unwrap();
    assert_eq!(owed(0, 9).await, (vec![5], None));
    assert_eq!(desk.journal.dead_letters("audit").await.unwrap(), [letter(4)]);
    desk.assert_sound().await;
    let uncounted = ProgressSave { progress: progress(5, 4, 1), ..ProgressSave::default() };
    desk.journal.save("audit", uncounted).await.unwrap();
    assert!(!desk.verify().await.ok, "what is owed is not delivered");
}

async fn dropped_letters_are_left_out_and_those_without_a_state_make_no_list_shorter() {
    let desk = TestJournal::new().await;
    desk.append((1..=6).map(|n| present(&job(n as usize), n)).collect()).await;
    // Positions 7 and 8 have no states, as after retention.
    let parked: Vec<_> = [1, 2, 3, 5, 6, 7, 8].map(letter).into();
    let other = DeadLetter { plugin: "other".into(), ..letter(4) };
    desk.journal
        .save("audit", ProgressSave { progress: progress(6, 1, 5), parked, ..ProgressSave::default() })
        .await
        .unwrap();
    let parked = ProgressSave { progress: progress(6, 5, 1), parked: vec![other], ..ProgressSave::default() };
    desk.journal.save("other", parked).await.unwrap();
    desk.journal.mark_dropped("audit", &[1, 3, 6], "ann", "no use").await.unwrap();
    desk.journal.mark_replaying("audit", &[5], "ann", "it is back").await.unwrap();
    let part = async |plugin: Option<&str>, after: Option<Seq>, limit, which| {
        let cursor = after.map(|seq| LetterCursor { plugin: "audit".into(), seq });
        let query = LetterQuery { plugin: plugin.map(str::to_owned), cursor, limit, which };
        let found = desk.journal.letters_with_states(&query).await.unwrap();
        found.iter().map(|(letter, _)| letter.seq).collect::<Vec<_>>()
    };
    assert_eq!(part(Some("audit"), None, None, LetterChoice::NotDropped).await, [2, 5]);
    assert_eq!(part(Some("audit"), None, Some(2), LetterChoice::Dropped).await, [1, 3]);
    assert_eq!(part(Some("audit"), Some(3), None, LetterChoice::Dropped).await, [6]);
    assert_eq!(
        part(None, Some(2), Some(2), LetterChoice::NotDropped).await,
        [5, 4],
        "also of the next plugin"
    );
    assert_eq!(part(None, Some(5), Some(2), LetterChoice::All).await, [6, 4], "over two without a state");
}

async fn the_newest_order_says_whether_a_plugin_is_paused_and_letters_stay_as_they_were() {
    let desk = TestJournal::new().await;
    desk.append((1..=3).map(|n| present(&job(n as usize), n)).collect()).await;
    let parked =
        ProgressSave { progress: progress(3, 2, 1), parked: vec![letter(2)], ..ProgressSave::default() };
    desk.journal.save("audit", parked).await.unwrap();
    assert_eq!(desk.journal.plugin_pause("audit").await.unwrap(), None);
    desk.journal.mark_paused("audit", true, "ann", "a move").await.unwrap();
    desk.journal.mark_paused("other", true, "bob", "a leak").await.unwrap();
    let desk = desk.reopen().await;
    let paused = desk.journal.plugin_pause("audit").await.unwrap().unwrap();
    assert_eq!((paused.who.as_str(), paused.why.as_str(), paused.at_ms > 0), ("ann", "a move", true));
    let all = desk.journal.pauses_in_force().await.unwrap();
    assert_eq!(all.keys().collect::<Vec<_>>(), ["audit", "other"]);
    assert_eq!(all["audit"], paused);
    desk.journal.mark_paused("audit", false, "eve", "moved").await.unwrap();
    // A replay in between neither pauses nor resumes.
    desk.journal.mark_replaying("audit", &[2], "ann", "again").await.unwrap();
    assert_eq!(desk.journal.plugin_pause("audit").await.unwrap(), None);
    assert!(desk.journal.plugin_pause("other").await.unwrap().is_some());
    let records = desk.journal.replay_records(Some("audit"), u64::MAX, 100).await.unwrap();
    let actions: Vec<_> = records.iter().map(|record| (record.what.as_str(), record.who.as_str())).collect();
    assert_eq!(actions, [("replay", "ann"), ("resume", "eve"), ("pause", "ann")]);
    let letters = desk.journal.dead_letters("audit").await.unwrap();
    assert_eq!(letters, [DeadLetter { replaying: true, ..letter(2) }]);
    desk.assert_sound().await;
}

async fn what_lies_outside_some_namespaces_is_what_reading_everything_finds() {
    let desk = TestJournal::new().await;
    desk.append((1..=60).map(|n| present(&job(n as usize), n)).collect()).await;
    let all = desk.journal.read(0, 100).await.unwrap();
    for namespaces in [vec![], vec!["team-1".to_owned()], vec!["team-0".to_owned(), "team-2".to_owned()]] {
        for (after, through, limit) in [(0, 60, 100), (3, 50, 7), (10, 10, 5), (55, 60, 2), (0, 60, 60)] {
            let found = desk.journal.read_outside(after, through, limit, &namespaces).await.unwrap();
            let within = all.iter().filter(|state| (after + 1..=through).contains(&state.seq));
            let wanted = within.filter(|state| !namespaces.contains(&state.object.namespace));
            let wanted: Vec<_> = wanted.take_while(|state| state.seq <= found.looked).cloned().collect();
            assert_eq!(found.states, wanted, "{namespaces:?} {after} {through} {limit}");
            assert!(found.looked <= through && (found.looked > after || after == through), "{found:?}");
        }
    }
}

async fn reading_from_memory_and_from_disk_give_the_same() {
    let desk = TestJournal::new().await;
    for chunk in 0..5u64 {
        desk.append((0..10).map(|n| present(&job(n as usize), chunk * 10 + n + 1)).collect()).await;
    }
    let mut all = Vec::new();
    while let Some(last) = desk.journal.read(all.len() as Seq, 7).await.unwrap().last() {
        all.extend(desk.journal.read(all.len() as Seq, 7).await.unwrap());
        assert_eq!(all.len() as Seq, last.seq);
    }
    assert_eq!(all.iter().map(|state| state.seq).collect::<Vec<_>>(), (1..=50).collect::<Vec<Seq>>());
    let wanted: Vec<Seq> = vec![3, 50, 999, 17, 0];
    let single = desk.journal.read_at(&wanted).await.unwrap();
    assert_eq!(single.iter().map(|state| state.seq).collect::<Vec<_>>(), [3, 17, 50]);
    assert_eq!(single[2], all[49]);
    let whole = desk.reopen().await;
    assert_eq!(whole.journal.read(0, 100).await.unwrap(), all);
}

async fn counting_agrees_with_the_states_over_segments_and_sources() {
    let desk = TestJournal::new().await;
    let mut sources = Vec::new();
    for chunk in 0..12u64 {
        let name = ["jobs", "pods", "nodes"][chunk as usize % 3];
        let states = (0..200).map(|n| {
            let version = (chunk * 200 + n + 1).to_string();
            in_source(name, 0, &job(n as usize), Change::Present, &version)
        });
        desk.journal.append_batch(of(name, 0, states.collect())).await.unwrap();
        sources.extend(std::iter::repeat_n(name, 200));
    }
    let two: [Arc<str>; 2] = ["jobs".into(), "nodes".into()];
    for (after, through) in
        [(0, 2400), (0, 1), (5, 5), (100, 1023), (1023, 1024), (1000, 2300), (2395, 9999), (9, 2)]
    {
        let expected =
            (after + 1..=through.min(2400)).filter(|seq| sources[*seq as usize - 1] != "pods").count();
        assert_eq!(
            desk.journal.count(&two, after, through).await.unwrap(),
            expected as u64,
            "({after}, {through}]"
        );
    }
    assert_eq!(desk.journal.count(&[], 0, 2400).await.unwrap(), 0);
    assert_eq!(desk.journal.journal_stats().await.unwrap().states, 2400);
    desk.assert_sound().await;
}

async fn callers_at_the_same_time_are_all_answered_and_share_one_order() {
    let desk = TestJournal::new().await;
    let appends = (0..40usize).map(|n| {
        let journal = desk.journal.clone();
        async move {
            let source = format!("source-{n}");
            let states = (1..=5).map(|v| in_source(&source, 0, &job(n), Change::Present, &format!("{v}")));
            let appended = journal.append_batch(of(&source, 0, states.collect())).await.unwrap();
            journal.save(&source, ProgressSave::default()).await.unwrap();
            appended.seqs.into_iter().flatten().collect::<Vec<_>>()
        }
    });
    let mut seqs = tokio::time::timeout(PATIENCE, futures::future::join_all(appends)).await.unwrap().concat();
    seqs.sort_unstable();
    assert_eq!(seqs, (1..=200).collect::<Vec<Seq>>());
    assert_eq!(*desk.journal.newest_position().borrow(), 200);
    desk.assert_sound().await;
}

/// Appends are dropped at any moment. Each is stored completely or not at all.
async fn a_caller_that_goes_away_leaves_the_journal_whole() {
    let desk = TestJournal::new().await;
    for round in 0..150u64 {
        let abandoned = desk.append_soon(round * 2 + 1);
        let mut abandoned = std::pin::pin!(abandoned);
        // The future is polled a few times with yields in between, so that it is dropped at different points.
        for _ in 0..round % 12 {
            if futures::poll!(&mut abandoned).is_ready() {
                break;
            }
            tokio::task::yield_now().await;
            std::thread::yield_now();
        }
    }
    let appended = desk.append(vec![present(&job(1), 1000)]).await;
    assert_eq!(appended.seqs[0], Some(appended.newest));
    let states = desk.journal.read(0, 1000).await.unwrap();
    assert_eq!(states.len() as u64, appended.newest);
    desk.assert_sound().await;
}

/// Reads of a whole source are dropped at any moment. The next reader must see the present content.
async fn a_reader_that_goes_away_leaves_no_old_view_to_others() {
    let desk = TestJournal::new().await;
    desk.append((1..=20).map(|n| present(&job(n), n as u64)).collect()).await;
    for round in 0..60u64 {
        let abandoned = desk.journal.load_warm_start(SOURCE);
        let mut abandoned = std::pin::pin!(abandoned);
        for _ in 0..round % 15 {
            if futures::poll!(&mut abandoned).is_ready() {
                break;
            }
            // Answers come from other threads and processes.
            tokio::time::sleep(std::time::Duration::from_millis(round % 3)).await;
        }
    }
    for version in 100..110 {
        let newest = desk.append(vec![present(&job(1), version)]).await.newest;
        assert_eq!(desk.journal.read_at(&[newest]).await.unwrap().len(), 1, "{newest} is not seen");
    }
}

impl TestJournal {
    async fn append_soon(&self, version: u64) {
        let states = vec![present(&job(1), version), present(&job(2), version + 1)];
        let journal: &Journal = &self.journal;
        journal.append_batch(of(SOURCE, 0, states)).await.unwrap();
    }
}

async fn newest_wakes_those_who_wait() {
    let desk = TestJournal::new().await;
    let mut newest = desk.journal.newest_position();
    let waiting = async {
        newest.changed().await.unwrap();
        *newest.borrow()
    };
    let (seen, _) = tokio::join!(waiting, desk.append(vec![present(&job(1), 1), present(&job(2), 2)]));
    assert_eq!(seen, 2);
}

async fn who_sees_less_than_was_committed_passes_over_nothing() {
    let desk = TestJournal::new().await;
    desk.append((1..=20).map(|n| present(&job(n), n as u64)).collect()).await;
    // The same as in a copy that lags.
    desk.run("DELETE FROM @states WHERE seq > 5").await;
    let journal = &desk.journal;
    let results = [
        journal.read(0, 100).await.map(drop),
        journal.read_outside(0, 20, 100, &["nobody's".into()]).await.map(drop),
        journal.read_at(&[2, 9]).await.map(drop),
        // This document was in memory before.
        journal.document_at(20).await.map(drop),
        journal.document_before(20).await.map(drop),
        journal.present_objects(SOURCE, 0, 100).await.map(drop),
        journal.count(&[SOURCE.into()], 0, 20).await.map(drop),
    ];
    for result in results {
        let Err(JournalError::Unavailable(why)) = &result else { panic!("{result:?}") };
        assert!(why.contains("position 20"), "{why}");
    }
    assert_eq!(journal.read(0, 3).await.unwrap().len(), 3);
    // States in memory need no reader, until they are dropped from it.
    journal.drop_recent_states(19);
    assert_eq!(journal.read(12, 100).await.unwrap().len(), 8);
    journal.drop_recent_states(20);
    assert!(journal.read(12, 100).await.is_err());
}

async fn one_that_is_damaged_hides_no_ids_of_the_others() {
    let desk = crate::proof::damage::sound().await;
    desk.run("UPDATE @states SET observed_ms = observed_ms + 1 WHERE seq = 140").await;
    let asked: Vec<Seq> = (1..=200).collect();
    let known = ids_at(&desk.place, &asked).await.unwrap();
    assert_eq!((known.unreadable, known.ids.len()), ([140].into(), 199));
    assert!(known.plugins.is_some_and(|plugins| plugins.contains("audit")));
}

on_every_store!(
    who_sees_less_than_was_committed_passes_over_nothing,
    one_that_is_damaged_hides_no_ids_of_the_others,
    what_is_there_of_a_source_is_read_by_parts_with_the_newest_state_of_each_object,
    how_far_a_ledger_has_come_is_kept_beside_what_plugins_keep,
    progress_letters_and_keys_are_saved_together,
    what_a_plugin_left_is_forgotten_whole_and_that_of_others_stays,
    notes_are_kept_apart_from_a_plugins_own_keys_until_a_save_removes_them,
    a_dropped_letter_stays_is_on_record_and_keeps_the_accounts,
    what_is_owed_is_read_by_parts_and_is_no_letter_until_it_becomes_one,
    dropped_letters_are_left_out_and_those_without_a_state_make_no_list_shorter,
    the_newest_order_says_whether_a_plugin_is_paused_and_letters_stay_as_they_were,
    what_lies_outside_some_namespaces_is_what_reading_everything_finds,
    reading_from_memory_and_from_disk_give_the_same,
    counting_agrees_with_the_states_over_segments_and_sources,
    callers_at_the_same_time_are_all_answered_and_share_one_order,
    a_caller_that_goes_away_leaves_the_journal_whole,
    a_reader_that_goes_away_leaves_no_old_view_to_others,
    newest_wakes_those_who_wait,
);
