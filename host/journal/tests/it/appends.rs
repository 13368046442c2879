//! Appending: positions, duplicates, lateness, epochs, current objects, documents.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use kubewitness_core::cursor::StoryCursor;
use kubewitness_core::limits::{DELTA_CHAIN, DISCREPANCIES};
use kubewitness_core::ports::{
    AppendBatch, Backlog, DocumentReader, FormerEnd, JournalError, PoisonMessage, ReadDocument,
    StateDocuments, StateWitness, WitnessedState,
};
use kubewitness_core::state::RulesPrint;
use kubewitness_core::state::gap_reason;
use kubewitness_core::views::{DiscrepancyView, GapQuery, KindWithin, PoisonQuery, TimelineQuery};
use kubewitness_core::{Change, Gap, ObjectRef, Seq, State, StateId, Version};
use kubewitness_journal::Journal;

use crate::support::{
    SOURCE, StoreKind, TestJournal, document, gap, in_source, job, of, on_every_store, present, seqs, state,
    status,
};

async fn states_get_positions_in_order_and_come_back_whole() {
    let desk = TestJournal::new().await;
    let mut first = present(&job(1), 10);
    first.owner = Some(job(99));
    first.previous = Some(status("Pending"));
    let given = [first, present(&job(2), 11), state(&job(1), Change::Gone, "12")];
    let appended = desk.append(given.to_vec()).await;
    assert_eq!((seqs(&appended), appended.newest), (vec![Some(1), Some(2), Some(3)], 3));

    let desk = desk.reopen().await;
    let states = desk.journal.read(0, 10).await.unwrap();
    for (index, (state, given)) in states.iter().zip(&given).enumerate() {
        assert_eq!(state.seq, index as u64 + 1);
        assert_eq!((&state.id, &state.object, &state.owner), (&given.id, &given.object, &given.owner));
        assert_eq!((&state.status, &state.previous), (&given.status, &given.previous));
        assert_eq!((&state.resource_version, state.change), (&given.resource_version, given.change));
        assert_eq!((state.observed_ms, &*state.source, state.epoch), (given.observed_ms, SOURCE, 0));
        assert_eq!(desk.journal.document_at(state.seq).await.unwrap().unwrap_or_default(), given.document);
    }
    assert_eq!(states.len(), 3);
    desk.assert_sound().await;
}

async fn what_is_there_already_is_not_journaled_again() {
    let desk = TestJournal::new().await;
    let batch = vec![
        present(&job(1), 10),
        present(&job(1), 11),
        state(&job(2), Change::Gone, "12"),
        gap(&job(3), "1", "5"),
    ];
    desk.append(batch.clone()).await;
    // In the same process, after a restart, and twice within one batch.
    assert_eq!(seqs(&desk.append(batch.clone()).await), [None, None, None, None]);
    let desk = desk.reopen().await;
    let again = [batch.clone(), vec![present(&job(1), 13), present(&job(1), 13)], batch].concat();
    let appended = desk.append(again).await;
    assert_eq!(appended.seqs.iter().flatten().collect::<Vec<_>>(), [&5]);
    assert_eq!(appended.newest, 5);
    desk.assert_sound().await;
}

async fn a_deletion_without_a_version_is_the_same_as_one_with() {
    let desk = TestJournal::new().await;
    let appended = desk.append(vec![present(&job(1), 10), state(&job(1), Change::Gone, "11")]).await;
    assert_eq!(appended.newest, 2);
    assert_eq!(seqs(&desk.append(vec![state(&job(1), Change::Gone, "")]).await), [None]);
}

async fn an_older_version_is_journaled_late_and_does_not_move_the_object_back() {
    let desk = TestJournal::new().await;
    desk.append(vec![present(&job(1), 10), present(&job(1), 100)]).await;
    desk.append(vec![present(&job(1), 20), state(&job(2), Change::Present, "5")]).await;
    let states = desk.journal.read(0, 10).await.unwrap();
    assert_eq!(states.iter().map(|state| state.late).collect::<Vec<_>>(), [false, false, true, false]);
    let warm = desk.journal.load_warm_start(SOURCE).await.unwrap();
    let versions: Vec<_> = warm.objects.iter().map(|current| current.resource_version.as_str()).collect();
    assert_eq!(versions, ["100", "5"]);
    let desk = desk.reopen().await;
    desk.append(vec![present(&job(1), 30), present(&job(1), 101)]).await;
    let states = desk.journal.read(4, 10).await.unwrap();
    assert_eq!(states.iter().map(|state| state.late).collect::<Vec<_>>(), [true, false]);
    desk.assert_sound().await;
}

async fn versions_of_any_length_keep_their_order() {
    let desk = TestJournal::new().await;
    let long = "340282366920938463463374607431768211456";
    desk.append(vec![present(&job(1), 999_999_999_999_999_999), state(&job(1), Change::Present, long)]).await;
    let again =
        vec![state(&job(1), Change::Present, long), state(&job(1), Change::Present, "1000000000000000000")];
    assert_eq!(seqs(&desk.append(again).await), [None, Some(3)]);
    let states = desk.journal.read(0, 10).await.unwrap();
    assert_eq!(states.iter().map(|state| state.late).collect::<Vec<_>>(), [false, false, true]);
    assert_eq!(states[1].resource_version, Version::new(long));
    desk.assert_sound().await;
}

async fn versions_that_do_not_compare_keep_the_order_of_arrival() {
    let desk = TestJournal::new().await;
    let batch: Vec<_> =
        ["abc", "007", "0", "abd"].map(|version| state(&job(1), Change::Present, version)).into();
    assert_eq!(desk.append(batch.clone()).await.newest, 4);
    let desk = desk.reopen().await;
    assert_eq!(seqs(&desk.append(batch).await), [None; 4]);
    assert!(desk.journal.read(0, 10).await.unwrap().iter().all(|state| !state.late));
    desk.assert_sound().await;
}

async fn the_gone_and_the_left_are_no_longer_current() {
    let desk = TestJournal::new().await;
    desk.append((1..=4).map(|n| present(&job(n), n as u64)).collect()).await;
    desk.append(vec![state(&job(1), Change::Gone, "5"), state(&job(2), Change::Left, "6")]).await;
    desk.append(vec![state(&job(3), Change::Gone, "")]).await;
    let warm = desk.journal.load_warm_start(SOURCE).await.unwrap();
    assert_eq!(warm.objects.len(), 1);
    let current = &warm.objects[0];
    assert_eq!((&current.object, current.seq), (&job(4), 4));
    let unpacked = kubewitness_core::document::unpack_document(&current.packed).unwrap();
    assert_eq!(unpacked, document(&job(4), "4"));
    // An object that has left may return.
    let desk = desk.reopen().await;
    desk.append(vec![present(&job(2), 9)]).await;
    assert_eq!(desk.journal.load_warm_start(SOURCE).await.unwrap().objects.len(), 2);
    desk.assert_sound().await;
}

async fn an_object_that_was_taken_for_gone_is_current_again_when_it_is_seen() {
    let desk = TestJournal::new().await;
    desk.append(vec![present(&job(1), 10), state(&job(1), Change::Gone, "")]).await;
    assert_eq!(seqs(&desk.append(vec![present(&job(1), 10)]).await), [None]);
    assert_eq!(desk.journal.load_warm_start(SOURCE).await.unwrap().objects.len(), 1);
    assert_eq!(seqs(&desk.append(vec![state(&job(1), Change::Gone, "")]).await), [None]);
    assert!(desk.journal.load_warm_start(SOURCE).await.unwrap().objects.is_empty());
    desk.assert_sound().await;
}

async fn the_checkpoint_is_kept_with_the_states() {
    let desk = TestJournal::new().await;
    assert!(desk.journal.load_warm_start(SOURCE).await.unwrap().checkpoint.is_none());
    let append = of(SOURCE, 0, vec![present(&job(1), 10)]);
    desk.journal.append_batch(AppendBatch { checkpoint: Some(Version::new("10")), ..append }).await.unwrap();
    desk.append(vec![present(&job(1), 11)]).await;
    let bookmark = AppendBatch { checkpoint: Some(Version::new("15")), ..of("pods", 0, vec![]) };
    desk.journal.append_batch(bookmark).await.unwrap();
    let desk = desk.reopen().await;
    assert_eq!(desk.journal.load_warm_start(SOURCE).await.unwrap().checkpoint, Some(Version::new("10")));
    assert_eq!(desk.journal.load_warm_start("pods").await.unwrap().checkpoint, Some(Version::new("15")));
}

async fn a_new_epoch_starts_versions_anew_and_keeps_the_objects_until_they_are_seen() {
    let desk = TestJournal::new().await;
    let append = of(SOURCE, 0, vec![present(&job(1), 500), present(&job(2), 501)]);
    desk.journal.append_batch(AppendBatch { checkpoint: Some(Version::new("501")), ..append }).await.unwrap();
    let in_epoch = |number, change, version| in_source(SOURCE, 1, &job(number), change, version);
    let first = vec![in_epoch(1, Change::Present, "20")];
    assert_eq!(desk.journal.append_batch(of(SOURCE, 1, first)).await.unwrap().seqs, [Some(3)]);
    let desk = desk.reopen().await;
    let warm = desk.journal.load_warm_start(SOURCE).await.unwrap();
    assert_eq!((warm.epoch, warm.checkpoint, warm.objects.len()), (1, None, 2));
    assert!(!desk.journal.read(2, 1).await.unwrap()[0].late);
    desk.journal.append_batch(of(SOURCE, 1, vec![in_epoch(2, Change::Gone, "")])).await.unwrap();
    assert_eq!(desk.journal.load_warm_start(SOURCE).await.unwrap().objects.len(), 1);
    // The old epoch is over, but both epochs form one history.
    let stale = desk.journal.append_batch(of(SOURCE, 0, vec![present(&job(1), 502)])).await;
    assert!(matches!(stale, Err(JournalError::Overtaken(_))), "{stale:?}");
    assert_eq!(desk.journal.document_before(3).await.unwrap().unwrap(), document(&job(1), "500"));
    let query = TimelineQuery { uid: Some(job(1).uid.clone()), ..TimelineQuery::default() };
    assert_eq!(desk.journal.object_timeline(&query).await.unwrap().states.len(), 2);
    desk.assert_sound().await;
}

async fn the_newest_version_within_two_is_found_in_its_own_epoch_and_source() {
    let desk = TestJournal::new().await;
    let ended = state(&job(2), Change::Gone, "40");
    desk.append(vec![
        present(&job(1), 9),
        present(&job(2), 20),
        gap(&job(1), "20", "30"),
        present(&job(1), 30),
    ])
    .await;
    desk.append(vec![ended, state(&job(3), Change::Left, "50"), present(&job(1), 1000)]).await;
    let in_other = in_source("urgent", 0, &job(1), Change::Present, "45");
    desk.journal.append_batch(of("urgent", 0, vec![in_other])).await.unwrap();
    let anew = in_source(SOURCE, 1, &job(1), Change::Present, "25");
    desk.journal.append_batch(of(SOURCE, 1, vec![anew])).await.unwrap();
    let desk = desk.reopen().await;
    let found = async |epoch: u32, within: std::ops::RangeInclusive<u64>| {
        let former = desk.journal.newest_version_within(SOURCE, epoch, within).await.unwrap()?;
        assert_eq!(former.document, document(&former.object, former.version.as_str()));
        if former.version == Version::new("30") {
            assert_eq!(former.before, Some(document(&former.object, "9")));
        }
        Some((former.object.uid, former.version.to_string()))
    };
    let version = |number: usize, version: &str| Some((job(number).uid.clone(), version.to_string()));
    for (epoch, within, wanted) in [
        (0, 1..=8, None),
        (0, 0..=9, version(1, "9")),
        (0, 1..=19, version(1, "9")),
        (0, 10..=19, None),
        (0, 9..=29, version(2, "20")),
        (0, 21..=30, version(1, "30")),
        (0, 31..=49, None),
        (0, 50..=50, version(3, "50")),
        (0, 1..=999, version(3, "50")),
        (0, 1..=u64::MAX, version(1, "1000")),
        (0, 1001..=u64::MAX, None),
        (1, 1..=24, None),
        (1, 1..=9999, version(1, "25")),
        (2, 1..=9999, None),
    ] {
        assert_eq!(found(epoch, within.clone()).await, wanted, "within {within:?} in epoch {epoch}");
    }
}

async fn how_an_object_ended_is_known_in_its_own_epoch_and_source_whatever_came_after() {
    let desk = TestJournal::new().await;
    let long = (10..60).map(|version| present(&job(1), version)).collect::<Vec<_>>();
    desk.append(long).await;
    desk.append(vec![
        state(&job(1), Change::Gone, ""),
        present(&job(1), 9),
        present(&job(2), 61),
        state(&job(2), Change::Left, "62"),
        gap(&job(2), "62", "70"),
        present(&job(3), 71),
        state(&job(3), Change::Left, "72"),
        present(&job(3), 73),
        state(&job(3), Change::Left, "74"),
        state(&job(3), Change::Gone, "75"),
        present(&job(4), 76),
        gap(&job(5), "76", "77"),
    ])
    .await;
    let in_other = in_source("urgent", 0, &job(4), Change::Gone, "78");
    desk.journal.append_batch(of("urgent", 0, vec![in_other])).await.unwrap();
    let desk = desk.reopen().await;
    let fate = async |number, source: &str, epoch| {
        desk.journal.end_of_former(source, epoch, &job(number).uid).await.unwrap()
    };
    assert_eq!(
        fate(1, SOURCE, 0).await,
        FormerEnd::Ended,
        "a version that came late says nothing of the end"
    );
    assert_eq!(fate(2, SOURCE, 0).await, FormerEnd::Left(Version::new("62")));
    assert_eq!(fate(3, SOURCE, 0).await, FormerEnd::Ended);
    assert_eq!(fate(4, SOURCE, 0).await, FormerEnd::Unknown, "it is there");
    assert_eq!(fate(5, SOURCE, 0).await, FormerEnd::Unknown, "nothing but a gap is known of it");
    assert_eq!(fate(6, SOURCE, 0).await, FormerEnd::Unknown);
    assert_eq!(
        (fate(1, SOURCE, 1).await, fate(1, "urgent", 0).await),
        (FormerEnd::Unknown, FormerEnd::Unknown)
    );
    assert_eq!(fate(4, "urgent", 0).await, FormerEnd::Ended);
}

async fn the_same_object_in_two_sources_is_two_stories() {
    let desk = TestJournal::new().await;
    let in_other = in_source("urgent", 0, &job(1), Change::Present, "10");
    desk.append(vec![present(&job(1), 10)]).await;
    assert_eq!(desk.journal.append_batch(of("urgent", 0, vec![in_other])).await.unwrap().seqs, [Some(2)]);
    assert_eq!(desk.journal.document_before(2).await.unwrap(), None);
    assert_eq!(desk.journal.load_warm_start("urgent").await.unwrap().objects.len(), 1);
    desk.assert_sound().await;
}

async fn documents_are_exact_over_more_versions_than_a_chain_has_steps() {
    let desk = TestJournal::new().await;
    let versions = 3 * u64::from(DELTA_CHAIN);
    for version in 1..=versions {
        let mut state = present(&job(1), version);
        // The base is correct, wrong or missing by turns.
        state.base = match version % 5 {
            0 => None,
            1 => Some(document(&job(2), "77")),
            _ => Some(document(&job(1), &(version - 1).to_string())),
        };
        desk.append(vec![state]).await;
    }
    let desk = desk.reopen().await;
    for version in 1..=versions {
        let expected = document(&job(1), &version.to_string());
        assert_eq!(desk.journal.document_at(version).await.unwrap().unwrap(), expected);
        let before = (version > 1).then(|| document(&job(1), &(version - 1).to_string()));
        assert_eq!(desk.journal.document_before(version).await.unwrap(), before);
    }
    assert_eq!(desk.journal.document_at(versions + 1).await.unwrap(), None);
    desk.assert_sound().await;
}

async fn what_texts_quote_is_kept_where_it_was_found_with_the_document_before() {
    let desk = TestJournal::new().await;
    let rules = RulesPrint::from_bits(u32::MAX);
    let searched = |version: u64, base: Option<Bytes>| WitnessedState {
        base,
        quotes_none_under: rules,
        ..present(&job(1), version)
    };
    let of = |version: &str| Some(document(&job(1), version));
    desk.append(vec![searched(1, None), searched(2, of("1")), searched(3, of("1"))]).await;
    desk.append(vec![searched(4, of("3")), searched(5, of("3")), present(&job(1), 6)]).await;
    let wanted = [rules, rules, None, rules, None, None];
    let noted =
        |states: &[Arc<State>]| states.iter().map(|state| state.quotes_none_under).collect::<Vec<_>>();
    assert_eq!(noted(&desk.journal.read(0, 10).await.unwrap()), wanted);
    desk.assert_sound().await;
    let desk = desk.reopen().await;
    assert_eq!(noted(&desk.journal.read(0, 10).await.unwrap()), wanted);
    assert_eq!(noted(&desk.journal.read_at(&[3, 4]).await.unwrap()), wanted[2..4]);
    for version in 1..=6 {
        assert_eq!(desk.journal.document_at(version).await.unwrap(), of(&version.to_string()));
    }
}

async fn the_document_before_steps_over_gaps() {
    let desk = TestJournal::new().await;
    desk.append(vec![present(&job(1), 1), gap(&job(1), "1", "5"), present(&job(1), 5)]).await;
    assert_eq!(desk.journal.document_before(3).await.unwrap().unwrap(), document(&job(1), "1"));
    assert_eq!(desk.journal.document_at(2).await.unwrap().unwrap(), gap(&job(1), "1", "5").document);
}

/// Compares what is read ahead with what single reads answer; what is left out may be anything.
async fn assert_ahead(journal: &Journal, seqs: &[Seq]) -> Vec<StateDocuments> {
    let told = |read: Option<Bytes>| read.map_or(ReadDocument::Absent, ReadDocument::Found);
    let ahead = journal.read_ahead(seqs, true).await.unwrap();
    for documents in &ahead {
        for (read, alone) in [
            (&documents.own, journal.document_at(documents.seq).await.unwrap()),
            (&documents.before, journal.document_before(documents.seq).await.unwrap()),
        ] {
            let is_told = *read == ReadDocument::Unread || *read == told(alone);
            assert!(is_told, "{} is read ahead as {read:?}", documents.seq);
        }
    }
    ahead
}

async fn documents_that_are_read_ahead_are_those_that_are_read_alone() {
    let desk = TestJournal::new().await;
    let versions = 2 * u64::from(DELTA_CHAIN);
    for version in 1..=versions {
        let mut states = vec![present(&job(1), version), present(&job(2), version)];
        states[0].base = (version % 7 > 0).then(|| document(&job(1), &(version - 1).to_string()));
        states[1].base = Some(document(&job(2), &(version - 1).to_string()));
        desk.append(states).await;
    }
    desk.append(vec![gap(&job(1), "64", "70"), present(&job(1), 70), state(&job(2), Change::Gone, "71")])
        .await;
    let last = 2 * versions + 3;
    let seqs = Vec::from_iter(1..=last + 1);
    let desk = desk.reopen().await;
    // At first nothing is known, then everything.
    for part in [&seqs[100..], &seqs[..], &seqs[..]] {
        let ahead = assert_ahead(&desk.journal, part).await;
        let told = ahead.iter().filter(|it| it.seq <= last);
        assert!(told.clone().all(|it| it.own != ReadDocument::Unread && it.before != ReadDocument::Unread));
        assert_eq!(told.count(), part.len() - 1);
        assert!(ahead.iter().filter(|it| it.seq > last).all(|it| it.own == ReadDocument::Unread));
    }
    let own = desk.journal.read_ahead(&seqs[..20], false).await.unwrap();
    assert!(own.iter().all(|it| it.before == ReadDocument::Unread && it.own != ReadDocument::Unread));
}

async fn what_is_read_ahead_has_a_bound_in_bytes_and_in_number() {
    let desk = TestJournal::new().await;
    let large = |version: u64| WitnessedState {
        document: format!("{{\"v\":{version},\"x\":\"{}\"}}", "x".repeat(1 << 20)).into(),
        ..present(&job(1), version)
    };
    for version in 1..=16 {
        desk.append(vec![large(version)]).await;
    }
    let ahead = assert_ahead(&desk.journal, &Vec::from_iter(1..=16)).await;
    let found = ahead.iter().filter(|it| matches!(it.own, ReadDocument::Found(_))).count();
    assert!((1..=5).contains(&found), "{found}");
    assert_ne!(ahead[0].own, ReadDocument::Unread);
    assert!(desk.journal.read_ahead(&Vec::from_iter(1..=9000), false).await.unwrap().len() <= 256);
}

async fn gaps_and_poison_are_kept_once() {
    let desk = TestJournal::new().await;
    let hole = Gap {
        source: SOURCE.into(),
        object: None,
        epoch: 0,
        after: "5".into(),
        before: String::new(),
        reason: "HistoryReplaced".into(),
        message: "the server was restored".into(),
        recorded_ms: 7,
    };
    let poison = PoisonMessage { raw: "{\"cut".into(), error: "unexpected end".into(), observed_ms: 9 };
    let append = AppendBatch {
        gaps: vec![hole.clone()],
        poison: vec![poison],
        ..of(SOURCE, 0, vec![gap(&job(1), "1", "5")])
    };
    desk.journal.append_batch(append.clone()).await.unwrap();
    desk.journal.append_batch(append).await.unwrap();
    let gaps = desk.journal.all_gaps().await.unwrap();
    assert_eq!(gaps.len(), 2);
    assert!(gaps.contains(&hole) && gaps.iter().any(|gap| gap.object.as_ref() == Some(&*job(1))));
    let poison = desk.journal.poison_records(None, 10).await.unwrap();
    assert_eq!(poison.len(), 1);
    assert_eq!((&*poison[0].raw, poison[0].error.as_str()), (&b"{\"cut"[..], "unexpected end"));
    let shown = desk.journal.poison_of(&PoisonQuery::default()).await.unwrap();
    assert_eq!((shown[0].bytes, shown[0].excerpt.as_str(), shown[0].observed_ms), (5, "{\"cut", 9));
    assert_eq!(desk.journal.poison_raw(shown[0].number).await.unwrap().unwrap(), b"{\"cut");
    assert_eq!(desk.journal.poison_raw(u64::MAX).await.unwrap(), None);
    let older = PoisonQuery { cursor: Some(shown[0].number), ..PoisonQuery::default() };
    assert_eq!(desk.journal.poison_of(&older).await.unwrap(), shown[1..]);
    let none = PoisonQuery { source: Some("other".into()), ..PoisonQuery::default() };
    assert!(desk.journal.poison_of(&none).await.unwrap().is_empty());
    let counters = desk.journal.source_counters().await.unwrap();
    assert_eq!((counters[0].states, counters[0].gaps, counters[0].poison), (1, 2, 1));
    assert_eq!(counters[0].last_event_ms, Some(1_700_000_000_000));
    desk.assert_sound().await;
}

async fn what_audits_found_is_kept_once_and_counted_beyond_what_is_kept() {
    let desk = TestJournal::new().await;
    let found = |moments: std::ops::Range<u64>, epoch| {
        let object = kubewitness_core::ObjectRef::clone(&job(1));
        let view = |found_ms| DiscrepancyView { object: object.clone(), found_ms, ..Default::default() };
        AppendBatch { discrepancies: moments.map(view).collect(), ..of(SOURCE, epoch, Vec::new()) }
    };
    assert_eq!(desk.journal.audit_differences(SOURCE).await.unwrap(), Default::default());
    desk.journal.append_batch(found(0..2, 0)).await.unwrap();
    desk.journal.append_batch(found(0..2, 0)).await.unwrap();
    let kept = desk.journal.audit_differences(SOURCE).await.unwrap();
    assert_eq!((kept.count, kept.newest[0].found_ms, kept.newest[1].found_ms), (2, 1, 0));
    assert_eq!(kept.newest[0].object, *job(1));

    let most = DISCREPANCIES as u64;
    desk.journal.append_batch(found(2..2 + 2 * most, 0)).await.unwrap();
    desk.journal.append_batch(found(900..903, 1)).await.unwrap();
    let desk = desk.reopen().await;
    desk.journal.append_batch(found(903..904, 1)).await.unwrap();
    let kept = desk.journal.audit_differences(SOURCE).await.unwrap();
    assert_eq!((kept.count, kept.newest.len()), (2 + 2 * most + 4, DISCREPANCIES));
    let moments: Vec<_> = kept.newest.iter().take(5).map(|view| view.found_ms).collect();
    assert_eq!(moments, [903, 902, 901, 900, 1 + 2 * most], "also those of the epoch before");
    assert_eq!(desk.journal.audit_differences("other").await.unwrap().count, 0);
    desk.assert_sound().await;
}

async fn gaps_are_found_by_what_they_are_about() {
    let desk = TestJournal::new().await;
    for (index, uid) in [1, 2, 1].into_iter().enumerate() {
        let bounds = (index * 10 + 1, index * 10 + 5);
        let state = gap(&job(uid), &bounds.0.to_string(), &bounds.1.to_string());
        desk.journal.append_batch(of(SOURCE, 0, vec![state])).await.unwrap();
    }
    let whole = Gap {
        source: "other".into(),
        object: None,
        epoch: 1,
        after: "5".into(),
        before: String::new(),
        reason: "HistoryReplaced".into(),
        message: String::new(),
        recorded_ms: 77,
    };
    desk.journal.append_batch(AppendBatch { gaps: vec![whole], ..of("other", 1, Vec::new()) }).await.unwrap();
    let found = async |query: GapQuery| {
        let gaps = desk.journal.gaps_of(&query).await.unwrap();
        gaps.into_iter().map(|(_, gap)| gap.after).collect::<Vec<_>>()
    };
    let all = GapQuery::default();
    assert_eq!(found(all.clone()).await, ["5", "21", "11", "1"], "newest first");
    assert_eq!(found(GapQuery { limit: Some(2), ..all.clone() }).await, ["5", "21"]);
    let first = desk.journal.gaps_of(&GapQuery { limit: Some(2), ..all.clone() }).await.unwrap();
    let cursor = first.last().map(|(number, _)| *number);
    assert_eq!(found(GapQuery { cursor, ..all.clone() }).await, ["11", "1"], "those behind the cursor");
    let of_jobs = GapQuery { kind: Some("jobs".into()), cursor, limit: Some(1), ..all.clone() };
    assert_eq!(found(of_jobs).await, ["11"]);
    assert!(found(GapQuery { cursor: Some(u64::MAX), ..all.clone() }).await.len() == 4);
    assert_eq!(found(GapQuery { source: Some("other".into()), ..all.clone() }).await, ["5"]);
    let (one, uid) = (job(1), Some(job(1).uid.clone()));
    assert_eq!(found(GapQuery { uid, ..all.clone() }).await, ["21", "1"]);
    let named = GapQuery {
        kind: Some("jobs".into()),
        namespace: Some(one.namespace.clone()),
        name: Some(one.name.clone()),
        limit: Some(1),
        ..all.clone()
    };
    assert_eq!(found(named).await, ["21"]);
    assert!(found(GapQuery { kind: Some("pods".into()), ..all }).await.is_empty());
    let epochs = desk.journal.source_epochs().await.unwrap();
    let shown: Vec<_> =
        epochs.iter().map(|(source, view)| (source.as_str(), view.epoch, view.states)).collect();
    assert_eq!(shown, [(SOURCE, 0, 3), ("other", 1, 0)]);
    assert_eq!(epochs[1].1.replaced_at.as_deref(), Some("1970-01-01T00:00:00.077Z"));
    assert_eq!(epochs[0].1.replaced_at, None);
}

async fn a_history_begins_where_the_one_before_has_its_end() {
    let desk = TestJournal::new().await;
    let hole = |epoch: u32, before: &str, reason: &str, recorded_ms: u64| Gap {
        source: SOURCE.into(),
        object: None,
        epoch,
        after: "5".into(),
        before: before.into(),
        reason: reason.into(),
        message: String::new(),
        recorded_ms,
    };
    let end = |epoch, recorded_ms| hole(epoch, "", gap_reason::REPLACED, recorded_ms);
    for (epoch, gaps) in [
        (0, vec![hole(0, "9", "Compacted", 11), end(0, 22)]),
        (1, vec![hole(1, "9", "Compacted", 33), end(1, 44)]),
        (2, vec![hole(2, "9", gap_reason::REPLACED, 55)]),
    ] {
        desk.journal.append_batch(AppendBatch { gaps, ..of(SOURCE, epoch, Vec::new()) }).await.unwrap();
    }
    let epochs = desk.journal.source_epochs().await.unwrap();
    let began: Vec<_> = epochs.into_iter().map(|(_, view)| view.replaced_at).collect();
    let at = |ms: u64| Some(format!("1970-01-01T00:00:00.0{ms}Z"));
    assert_eq!(began, [None, at(22), at(44)]);
}

async fn an_id_that_does_not_fit_its_state_is_refused_and_costs_nobody_else() {
    let desk = TestJournal::new().await;
    let mut wrong = present(&job(1), 10);
    wrong.id = present(&job(1), 11).id;
    let mut nameless = (*job(2)).clone();
    nameless.uid.clear();
    let nameless = present(&nameless.into(), 1);
    let (wrong, good, nameless) = tokio::join!(
        desk.journal.append_batch(of(SOURCE, 0, vec![wrong])),
        desk.journal.append_batch(of(SOURCE, 0, vec![present(&job(3), 10)])),
        desk.journal.append_batch(of(SOURCE, 0, vec![nameless])),
    );
    assert!(matches!(wrong, Err(JournalError::Invalid(_))), "{wrong:?}");
    assert!(matches!(nameless, Err(JournalError::Invalid(_))), "{nameless:?}");
    assert_eq!(good.unwrap().seqs, [Some(1)]);
    desk.assert_sound().await;
}

/// A pod of a job.
fn owned(number: usize, version: u64, owner: usize) -> WitnessedState {
    let mut pod = (*job(number)).clone();
    (pod.kind, pod.group) = ("Pod".into(), String::new());
    let mut state = in_source("pods", 0, &pod.into(), Change::Present, &version.to_string());
    state.owner = Some(job(owner));
    state
}

async fn a_story_has_the_object_under_any_of_its_uids_and_what_it_owns() {
    let desk = TestJournal::new().await;
    let mut second = (*job(1)).clone();
    second.uid = "another".into();
    desk.append(vec![present(&job(1), 1), state(&job(1), Change::Gone, "4"), present(&second.into(), 5)])
        .await;
    let pods = vec![owned(10, 2, 1), owned(12, 3, 2), owned(10, 6, 1)];
    desk.journal.append_batch(of("pods", 0, pods)).await.unwrap();
    // An object of the same kind that the pod owns.
    let mut deeper = in_source("pods", 0, &job(13), Change::Present, "7");
    deeper.owner = owned(10, 2, 1).object.into();
    // An object in another namespace that claims the same owner.
    let foreign = owned(11, 8, 1);
    desk.journal.append_batch(of("pods", 0, vec![deeper, foreign])).await.unwrap();

    let by_name = TimelineQuery {
        kind: Some("jobs".into()),
        namespace: Some(job(1).namespace.clone()),
        name: Some("train-1".into()),
        ..TimelineQuery::default()
    };
    let story = desk.journal.object_timeline(&by_name).await.unwrap();
    assert_eq!(story.states.iter().map(|state| state.seq).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(story.related.iter().map(|state| state.seq).collect::<Vec<_>>(), [4, 6, 7]);
    let by_uid = TimelineQuery { uid: Some(job(1).uid.clone()), limit: Some(1), ..TimelineQuery::default() };
    let story = desk.journal.object_timeline(&by_uid).await.unwrap();
    assert_eq!(story.states.iter().map(|state| state.seq).collect::<Vec<_>>(), [2]);
    let part = async |states, related, limit| {
        let cursor = Some(StoryCursor { states, related, ..StoryCursor::NEWEST });
        let asked = TimelineQuery { cursor, limit: Some(limit), ..by_name.clone() };
        let story = desk.journal.object_timeline(&asked).await.unwrap();
        let seqs = |states: Vec<Arc<State>>| states.iter().map(|state| state.seq).collect::<Vec<_>>();
        (seqs(story.states), seqs(story.related))
    };
    assert_eq!(part(3, 7, 1).await, (vec![2], vec![6]));
    assert_eq!(part(3, 7, 9).await, (vec![1, 2], vec![4, 6]));
    assert_eq!(part(1, 5, 9).await, (vec![], vec![4]));
    assert_eq!(part(0, u64::MAX, 9).await, (vec![], vec![4, 6, 7]));
    let unknown = TimelineQuery { name: Some("nobody".into()), ..TimelineQuery::default() };
    assert!(desk.journal.object_timeline(&unknown).await.unwrap().states.is_empty());
}

/// An answer has at most about 2,000 objects.
async fn an_object_that_owns_more_than_an_answer_is_about_has_the_others_in_the_next_parts() {
    let desk = TestJournal::new().await;
    let mut middle = present(&job(1), 1);
    middle.owner = Some(job(4));
    desk.append(vec![middle]).await;
    let pods = (0..2_005).map(|number| owned(10 + 3 * number, 2 + number as u64, 1)).collect();
    desk.journal.append_batch(of("pods", 0, pods)).await.unwrap();
    let part = async |cursor| {
        let asked = TimelineQuery {
            uid: Some(job(1).uid.clone()),
            cursor,
            limit: Some(10_000),
            ..TimelineQuery::default()
        };
        desk.journal.object_timeline(&asked).await.unwrap()
    };
    let newest = part(None).await;
    assert_eq!((newest.states.len(), newest.related.len(), newest.owns_more), (1, 2_000, true));
    assert_eq!(newest.related[0].seq, 7, "the newest of them");
    let rest = StoryCursor { states: 0, owned: newest.owned_below.unwrap(), ..StoryCursor::NEWEST };
    let others = part(Some(rest)).await;
    assert_eq!(others.related.iter().map(|state| state.seq).collect::<Vec<_>>(), [2, 3, 4, 5, 6]);
    assert!(others.states.is_empty() && !others.owns_more && others.owned_below.is_none());

    // An owner of that object gets as many objects as fit, and the note that more exist.
    desk.append(vec![present(&job(4), 4_000)]).await;
    let asked =
        TimelineQuery { uid: Some(job(4).uid.clone()), limit: Some(10_000), ..TimelineQuery::default() };
    let story = desk.journal.object_timeline(&asked).await.unwrap();
    let objects: BTreeSet<_> = story.related.iter().map(|state| state.object.uid.clone()).collect();
    assert!(objects.contains(&job(1).uid) && objects.len() == 2_000, "{}", objects.len());
    assert!(story.owns_more && story.owned_below.is_none());
}

/// A part of a long story begins where the previous part ended. The server reads a bounded number of newer
/// states for the owned objects.
async fn a_part_of_a_long_story_begins_where_the_part_before_it_ended() {
    let desk = TestJournal::new().await;
    desk.append((1..=40).map(|version| present(&job(1), version)).collect()).await;
    let busy = |version| owned(10, version, 1);
    // Positions 41, 42 and 43: two others have one state each.
    desk.journal.append_batch(of("pods", 0, vec![busy(1), owned(13, 2, 1), owned(16, 2, 1)])).await.unwrap();
    desk.journal.append_batch(of("pods", 0, (3..43).map(busy).collect())).await.unwrap();
    let part = async |states, related| {
        let cursor = Some(StoryCursor { states, related, ..StoryCursor::NEWEST });
        let asked = TimelineQuery {
            uid: Some(job(1).uid.clone()),
            cursor,
            limit: Some(10),
            walked: Some(20),
            ..TimelineQuery::default()
        };
        let story = desk.journal.object_timeline(&asked).await;
        let seqs = |states: &[Arc<State>]| states.iter().map(|state| state.seq).collect::<Vec<_>>();
        story.map(|story| (seqs(&story.states), seqs(&story.related)))
    };
    assert_eq!(part(Seq::MAX, 0).await.unwrap(), ((31..=40).collect(), vec![]));
    assert_eq!(part(5, 0).await.unwrap(), (vec![1, 2, 3, 4], vec![]), "from the state at the cursor");
    assert_eq!(part(6, 44).await.unwrap(), ((1..=5).collect(), vec![41, 42, 43]), "or from the one before");
    let far = part(0, 43).await;
    match StoreKind::here() {
        StoreKind::Sqlite => assert_eq!(far.unwrap(), (vec![], vec![41, 42])),
        _ => {
            let error = far.unwrap_err();
            assert!(matches!(error, JournalError::Invalid(_)), "{error}");
            assert!(error.to_string().contains("more than 20 newer states"), "{error}");
        }
    }
}

/// Anybody can write any uid into an ownerReference, so this must not give an object another owner's name.
async fn an_owner_is_told_as_each_state_has_it_whoever_else_wrote_its_uid() {
    let desk = TestJournal::new().await;
    let named = |name: &str| {
        Some(Arc::new(ObjectRef { namespace: name.into(), name: name.into(), ..(*job(9)).clone() }))
    };
    let owners = ["evil", "good", "evil", "good"].map(named);
    let states = owners.iter().zip(1..).map(|(owner, version)| WitnessedState {
        owner: owner.clone(),
        ..present(&job(version), version as u64)
    });
    let states: Vec<_> = states.collect();
    desk.append(states[..3].to_vec()).await;
    let desk = desk.reopen().await;
    desk.append(states[3..].to_vec()).await;
    let desk = desk.reopen().await;
    let states = desk.journal.read(0, 100).await.unwrap();
    assert_eq!(states.iter().map(|state| state.owner.clone()).collect::<Vec<_>>(), owners);
    desk.assert_sound().await;
}

async fn a_story_in_the_middle_of_a_chain_has_what_it_owns_itself() {
    let desk = TestJournal::new().await;
    let (set, middle, pod) = (job(1), job(4), job(7));
    let mut job_state = present(&middle, 5);
    job_state.owner = Some(set.clone());
    let mut pod_state = present(&pod, 6);
    (pod_state.owner, pod_state.controller) = (Some(set.clone()), Some(middle.clone()));
    desk.append(vec![present(&set, 4), job_state, pod_state]).await;

    for (of, related) in [(&set, vec![2, 3]), (&middle, vec![3]), (&pod, vec![])] {
        let query = TimelineQuery { uid: Some(of.uid.clone()), ..TimelineQuery::default() };
        let story = desk.journal.object_timeline(&query).await.unwrap();
        assert_eq!(story.related.iter().map(|state| state.seq).collect::<Vec<_>>(), related, "{}", of.name);
    }
}

async fn events_are_found_by_the_object_that_they_are_about_and_are_none_of_its_parts() {
    let desk = TestJournal::new().await;
    let (set, pod) = (job(1), job(4));
    let event = |number: usize, group: &str| {
        Arc::new(ObjectRef { kind: "Event".into(), group: group.into(), ..(*job(number)).clone() })
    };
    let (core, newer, foreign) = (event(10, ""), event(13, "events.k8s.io"), event(11, ""));
    let about = |event: &Arc<ObjectRef>, object: &Arc<ObjectRef>, version| {
        let mut state = present(event, version);
        state.owner = Some(set.clone());
        state.controller = (object.uid != set.uid).then(|| object.clone());
        state
    };
    let mut pod_state = present(&pod, 5);
    pod_state.owner = Some(set.clone());
    let mut forgotten = about(&core, &pod, 9);
    forgotten.change = Change::Gone;
    forgotten.id = StateId::of(SOURCE, 0, &core, Change::Gone, &forgotten.resource_version, None);
    let states = vec![present(&set, 4), pod_state, about(&core, &pod, 6), about(&newer, &set, 7)];
    desk.append(states).await;
    desk.append(vec![about(&core, &pod, 8), forgotten, about(&foreign, &pod, 10)]).await;

    for (of, related, events) in [(&set, vec![2], vec![4, 5]), (&pod, vec![], vec![5])] {
        let query = TimelineQuery { uid: Some(of.uid.clone()), events: true, ..TimelineQuery::default() };
        let story = desk.journal.object_timeline(&query).await.unwrap();
        let seqs = |states: &[Arc<State>]| states.iter().map(|state| state.seq).collect::<Vec<_>>();
        assert_eq!((seqs(&story.related), seqs(&story.events)), (related, events), "{}", of.name);
        let unasked = desk.journal.object_timeline(&TimelineQuery { events: false, ..query }).await.unwrap();
        assert!(unasked.events.is_empty());
    }
}

/// Anybody can write the uid of a foreign object into an object or an Event of their own.
async fn what_another_namespace_says_of_an_object_changes_no_story_of_it() {
    let desk = TestJournal::new().await;
    let (set, pod) = (job(1), job(4));
    let in_other =
        |object: &Arc<ObjectRef>| Arc::new(ObjectRef { namespace: "other".into(), ..(**object).clone() });
    let event = |number: usize| {
        Arc::new(ObjectRef { kind: "Event".into(), group: String::new(), ..(*job(number)).clone() })
    };
    let about = |object: &Arc<ObjectRef>, owner: &Arc<ObjectRef>, version| WitnessedState {
        owner: Some(owner.clone()),
        ..present(object, version)
    };
    let foreign = in_other(&set);
    desk.append(vec![
        present(&set, 4),
        about(&pod, &set, 5),
        about(&event(7), &set, 6),
        about(&in_other(&job(10)), &foreign, 7),
        about(&in_other(&event(13)), &foreign, 8),
    ])
    .await;
    for query in [
        TimelineQuery { uid: Some(set.uid.clone()), events: true, ..TimelineQuery::default() },
        TimelineQuery { name: Some(set.name.clone()), events: true, ..TimelineQuery::default() },
    ] {
        let story = desk.journal.object_timeline(&query).await.unwrap();
        let seqs = |states: &[Arc<State>]| states.iter().map(|state| state.seq).collect::<Vec<_>>();
        assert_eq!(
            (seqs(&story.states), seqs(&story.related), seqs(&story.events)),
            (vec![1], vec![2], vec![3])
        );
    }
}

async fn a_story_by_name_is_of_the_kinds_and_namespaces_that_are_asked_for_before_it_is_cut() {
    let desk = TestJournal::new().await;
    let mine = Arc::new(ObjectRef { namespace: "mine".into(), ..(*job(1)).clone() });
    let foreign =
        Arc::new(ObjectRef { namespace: "foreign".into(), uid: "another".into(), ..(*job(1)).clone() });
    let of_volcano = ObjectRef { group: "batch.volcano.sh".into(), uid: "third".into(), ..(*mine).clone() };
    let of_volcano = Arc::new(of_volcano);
    desk.append(vec![present(&mine, 4), present(&foreign, 5), present(&foreign, 6), present(&of_volcano, 7)])
        .await;
    let within = |namespaces: Option<&[&str]>| KindWithin {
        group: mine.group.clone(),
        kind: mine.kind.clone(),
        namespaces: namespaces.map(|names| names.iter().map(ToString::to_string).collect()),
    };
    for (kinds, seqs) in [
        (None, vec![4]),
        (Some(vec![within(None)]), vec![3]),
        (Some(vec![within(Some(&["mine"]))]), vec![1]),
        (Some(vec![within(Some(&[]))]), vec![]),
        (Some(vec![]), vec![]),
    ] {
        let name = Some(mine.name.clone());
        let asked = TimelineQuery { name, limit: Some(1), kinds: kinds.clone(), ..TimelineQuery::default() };
        let story = desk.journal.object_timeline(&asked).await.unwrap();
        assert_eq!(story.states.iter().map(|state| state.seq).collect::<Vec<_>>(), seqs, "{kinds:?}");
    }
}

/// The API server accepts an Event about a cluster-scoped object only in the namespace `default`. In another
/// namespace, its writer has only written the uid.
async fn events_about_an_object_of_the_whole_cluster_are_those_of_the_default_namespace() {
    let desk = TestJournal::new().await;
    let namespace =
        Arc::new(ObjectRef { namespace: String::new(), kind: "Namespace".into(), ..(*job(1)).clone() });
    let event = |number: usize, namespace: &str| {
        Arc::new(ObjectRef {
            kind: "Event".into(),
            group: String::new(),
            namespace: namespace.into(),
            ..(*job(number)).clone()
        })
    };
    let about = |object: Arc<ObjectRef>, version| WitnessedState {
        owner: Some(namespace.clone()),
        ..present(&object, version)
    };
    let quota = Arc::new(ObjectRef { namespace: "team-vision".into(), ..(*job(4)).clone() });
    desk.append(vec![
        present(&namespace, 4),
        about(event(7, "default"), 5),
        about(event(10, "team-vision"), 6),
        about(quota, 7),
    ])
    .await;
    let query = TimelineQuery { uid: Some(namespace.uid.clone()), events: true, ..TimelineQuery::default() };
    let story = desk.journal.object_timeline(&query).await.unwrap();
    let seqs = |states: &[Arc<State>]| states.iter().map(|state| state.seq).collect::<Vec<_>>();
    assert_eq!((seqs(&story.events), seqs(&story.related)), (vec![2], vec![4]));
}

/// A person who may not see an object must not learn about it from an Event of their own that contains a
/// guessed uid.
async fn the_newest_states_of_an_object_are_those_of_its_namespace() {
    let desk = TestJournal::new().await;
    let object = job(1);
    desk.append((4..9).map(|version| present(&object, version)).collect()).await;
    assert_eq!(desk.journal.newest_of(&object).await.unwrap(), [5, 4, 3]);
    let elsewhere = ObjectRef { namespace: "other".into(), ..(*object).clone() };
    assert!(desk.journal.newest_of(&elsewhere).await.unwrap().is_empty());
    assert!(desk.journal.newest_of(&job(2)).await.unwrap().is_empty());
}

on_every_store!(
    what_another_namespace_says_of_an_object_changes_no_story_of_it,
    events_about_an_object_of_the_whole_cluster_are_those_of_the_default_namespace,
    a_story_by_name_is_of_the_kinds_and_namespaces_that_are_asked_for_before_it_is_cut,
    the_newest_states_of_an_object_are_those_of_its_namespace,
    events_are_found_by_the_object_that_they_are_about_and_are_none_of_its_parts,
    an_owner_is_told_as_each_state_has_it_whoever_else_wrote_its_uid,
    states_get_positions_in_order_and_come_back_whole,
    what_is_there_already_is_not_journaled_again,
    a_deletion_without_a_version_is_the_same_as_one_with,
    an_older_version_is_journaled_late_and_does_not_move_the_object_back,
    versions_of_any_length_keep_their_order,
    versions_that_do_not_compare_keep_the_order_of_arrival,
    the_gone_and_the_left_are_no_longer_current,
    an_object_that_was_taken_for_gone_is_current_again_when_it_is_seen,
    the_checkpoint_is_kept_with_the_states,
    a_new_epoch_starts_versions_anew_and_keeps_the_objects_until_they_are_seen,
    the_newest_version_within_two_is_found_in_its_own_epoch_and_source,
    how_an_object_ended_is_known_in_its_own_epoch_and_source_whatever_came_after,
    the_same_object_in_two_sources_is_two_stories,
    documents_are_exact_over_more_versions_than_a_chain_has_steps,
    what_texts_quote_is_kept_where_it_was_found_with_the_document_before,
    the_document_before_steps_over_gaps,
    documents_that_are_read_ahead_are_those_that_are_read_alone,
    what_is_read_ahead_has_a_bound_in_bytes_and_in_number,
    gaps_and_poison_are_kept_once,
    what_audits_found_is_kept_once_and_counted_beyond_what_is_kept,
    gaps_are_found_by_what_they_are_about,
    a_history_begins_where_the_one_before_has_its_end,
    an_id_that_does_not_fit_its_state_is_refused_and_costs_nobody_else,
    a_story_has_the_object_under_any_of_its_uids_and_what_it_owns,
    a_story_in_the_middle_of_a_chain_has_what_it_owns_itself,
    an_object_that_owns_more_than_an_answer_is_about_has_the_others_in_the_next_parts,
    a_part_of_a_long_story_begins_where_the_part_before_it_ended,
);
