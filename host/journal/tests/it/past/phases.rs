//! Tests of the index of phases: its answers, and that it is rebuilt from the journal alone.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kubewitness_core::config::RetentionSpec;
use kubewitness_core::ports::{Backlog, StateWitness, WitnessedState};
use kubewitness_core::{Change, Seq};
use kubewitness_harness::{Dice, seed};
use kubewitness_journal::{NamedEndQuery, PhaseIndex, PhasePage, PhaseQuery, SourceRetention};

use crate::support::{SOURCE, TestJournal, in_source, job, of, on_every_store, state, status};

fn is(number: usize, phase: &str, version: u64) -> WitnessedState {
    WitnessedState { status: status(phase), ..state(&job(number), Change::Present, &version.to_string()) }
}

fn gone(number: usize, version: u64) -> WitnessedState {
    WitnessedState { status: status("Deleted"), ..state(&job(number), Change::Gone, &version.to_string()) }
}

fn file(desk: &TestJournal) -> PathBuf {
    desk.folder.path().join("index").join("phases.db")
}

async fn index(desk: &TestJournal) -> PhaseIndex {
    let index = PhaseIndex::new(file(desk));
    read_all(&index, desk).await;
    index
}

async fn read_all(index: &PhaseIndex, desk: &TestJournal) {
    while index.index_next_part(&desk.journal, 0).await.unwrap() {}
    assert!(index.await_position(*desk.journal.newest_position().borrow(), Duration::ZERO).await);
}

fn query(phase: &str, after: Seq, before: Seq) -> PhaseQuery {
    let sources = vec![SOURCE.to_owned()];
    PhaseQuery { sources, phase: phase.into(), after, before, cursor: None, looked: 1_000 }
}

fn names(page: &PhasePage) -> Vec<&str> {
    page.times.iter().map(|time| time.name.as_str()).collect()
}

async fn found(index: &PhaseIndex, phase: &str, after: Seq, before: Seq) -> Vec<String> {
    let page = index.find(query(phase, after, before)).await.unwrap();
    assert_eq!(page.next, None);
    names(&page).into_iter().map(str::to_owned).collect()
}

async fn what_has_ended_is_found_by_its_name_page_by_page() {
    let desk = TestJournal::new().await;
    // The namespaces are team-1, team-2 and team-0 in turn.
    desk.append((1..=5).map(|number| is(number, "Running", number as u64)).collect()).await;
    desk.append(vec![gone(3, 6), gone(1, 7), gone(2, 8), state(&job(4), Change::Left, "9")]).await;
    // An object that returns has not ended.
    desk.append(vec![is(4, "Running", 10)]).await;
    let index = index(&desk).await;
    let all = async |query: NamedEndQuery| {
        let (mut query, mut names) = (NamedEndQuery { limit: 2, ..query }, vec![]);
        loop {
            let page = index.ended_by_name(query.clone()).await.unwrap();
            names.extend(page.iter().map(|end| end.name.clone()));
            let Some(last) = page.last() else { return names };
            query.beyond = Some(query.place_of(last));
        }
    };
    let query = NamedEndQuery { within: vec![(SOURCE.into(), None)], ..NamedEndQuery::default() };
    assert_eq!(all(query.clone()).await, ["train-1", "train-2", "train-3"]);
    assert_eq!(
        all(NamedEndQuery { descends: true, ..query.clone() }).await,
        ["train-3", "train-2", "train-1"]
    );
    let by_namespace = NamedEndQuery { by_namespace: true, ..query };
    assert_eq!(all(by_namespace.clone()).await, ["train-3", "train-1", "train-2"]);
    let descends = NamedEndQuery { descends: true, ..by_namespace };
    assert_eq!(all(descends).await, ["train-2", "train-1", "train-3"]);
    let of_one = vec![(SOURCE.into(), Some("team-1".into()))];
    let of_two = vec![(SOURCE.into(), Some("team-2".into())), (SOURCE.into(), Some("team-1".into()))];
    for (within, names) in [(of_one, vec!["train-1"]), (of_two, vec!["train-1", "train-2"])] {
        for by_namespace in [false, true] {
            let query = NamedEndQuery { within: within.clone(), by_namespace, ..NamedEndQuery::default() };
            assert_eq!(all(query).await, names, "what others have is not looked at");
        }
    }
    let ends = index.ended_by_name(NamedEndQuery {
        within: vec![(SOURCE.into(), None), ("pods".into(), None)],
        limit: 9,
        ..NamedEndQuery::default()
    });
    let ends: Vec<_> = ends.await.unwrap().into_iter().map(|end| end.ended).collect();
    assert_eq!(ends, [7, 8, 6], "the positions of their ends");
}

async fn objects_are_found_by_the_phases_that_they_were_in_within_a_range() {
    let desk = TestJournal::new().await;
    // Positions 1 to 9.
    desk.append(vec![is(1, "Running", 1), is(2, "Running", 2), is(3, "Pending", 3)]).await;
    desk.append(vec![is(1, "Preempted", 4), is(1, "Running", 5), is(2, "Preempted", 6)]).await;
    desk.append(vec![is(2, "Preempted", 7), gone(2, 8), is(3, "Running", 9)]).await;
    let other =
        WitnessedState { status: status("Preempted"), ..in_source("pods", 0, &job(9), Change::Present, "1") };
    desk.journal.append_batch(of("pods", 0, vec![other])).await.unwrap();
    let index = index(&desk).await;
    assert_eq!(found(&index, "Preempted", 0, Seq::MAX).await, ["train-2", "train-1"]);
    assert_eq!(found(&index, "Running", 0, Seq::MAX).await, ["train-3", "train-1", "train-2"]);
    // The first object left with position 5, so it was in the phase until then. The other one came with
    // position 6.
    assert_eq!(found(&index, "Preempted", 4, 6).await, ["train-1"]);
    assert_eq!(found(&index, "Preempted", 5, 6).await, Vec::<String>::new());
    // The object was in the phase before, during and after the range.
    assert_eq!(found(&index, "Running", 1, 3).await, ["train-2", "train-1"]);
    assert_eq!(found(&index, "Pending", 4, 5).await, ["train-3"]);
    assert_eq!(found(&index, "Deleted", 7, Seq::MAX).await, ["train-2"]);
    assert_eq!(found(&index, "Deleted", 8, Seq::MAX).await, Vec::<String>::new());
    let page = index.find(query("Preempted", 0, Seq::MAX)).await.unwrap();
    let [gone, back] = &page.times[..] else { panic!("{page:?}") };
    assert_eq!((gone.entered, gone.left, gone.ended), (6, Some(8), Some(8)));
    assert_eq!((back.entered, back.left, back.ended), (4, Some(5), None));
    let both = PhaseQuery { sources: vec![SOURCE.into(), "pods".into()], ..query("Preempted", 0, Seq::MAX) };
    assert_eq!(names(&index.find(both).await.unwrap()), ["train-9", "train-2", "train-1"]);
}

async fn an_index_goes_on_where_it_was_and_is_made_anew_where_the_journal_is_another_one() {
    let desk = TestJournal::new().await;
    desk.append(vec![is(1, "Preempted", 1), is(1, "Running", 2)]).await;
    drop(index(&desk).await);
    let desk = desk.reopen().await;
    desk.append(vec![is(2, "Preempted", 3)]).await;
    let again = index(&desk).await;
    assert_eq!(found(&again, "Preempted", 0, Seq::MAX).await, ["train-2", "train-1"]);
    drop(again);
    // The index of another journal, which has other states at the same positions.
    let other = TestJournal::new().await;
    other.append(vec![is(7, "Running", 1), is(7, "Preempted", 2), is(8, "Running", 3)]).await;
    let moved = PhaseIndex::new(file(&desk));
    while moved.index_next_part(&other.journal, 0).await.unwrap() {}
    assert_eq!(found(&moved, "Preempted", 0, Seq::MAX).await, ["train-7"]);
    drop(moved);
    for damage in [&b"this is no index"[..], &[]] {
        damage_file(&file(&desk), damage);
        let made = index(&desk).await;
        assert_eq!(found(&made, "Preempted", 0, Seq::MAX).await, ["train-2", "train-1"]);
    }
}

fn damage_file(path: &Path, bytes: &[u8]) {
    for end in ["-wal", "-shm"] {
        std::fs::remove_file(format!("{}{end}", path.display())).ok();
    }
    std::fs::write(path, bytes).unwrap();
}

async fn what_retention_took_is_taken_out_of_the_index() {
    let desk = TestJournal::new().await;
    let states = (1..=40).map(|n| is(1, if n % 2 == 0 { "Preempted" } else { "Running" }, n));
    desk.append(states.collect()).await;
    desk.append(vec![is(2, "Preempted", 50), gone(2, 51)]).await;
    desk.append((60..64).map(|n| is(3, "Running", n)).collect()).await;
    let index = index(&desk).await;
    assert_eq!(found(&index, "Preempted", 0, Seq::MAX).await, ["train-1", "train-2"]);
    let spec = RetentionSpec { count: Some(3), past_cursors: true, ..RetentionSpec::default() };
    SourceRetention::new(desk.journal.clone(), SOURCE).in_hand(0).run_pass(&spec).await.unwrap();
    let mut after = None;
    loop {
        after = index.sweep_next_part(&desk.journal, after).await.unwrap();
        if after.is_none() {
            break;
        }
    }
    // The journal has no states of the ended object any more. The other one is in the phase since its newest
    // state.
    assert_eq!(found(&index, "Preempted", 0, Seq::MAX).await, ["train-1"]);
    assert_eq!(found(&index, "Preempted", 0, 40).await, Vec::<String>::new());
    assert_eq!(found(&index, "Deleted", 0, Seq::MAX).await, Vec::<String>::new());
}

/// A position, an object, and a phase, or `None` for its end.
type PhaseRecord = (Seq, usize, Option<&'static str>);

/// The answer according to all states.
fn model(told: &[PhaseRecord], phase: &str, after: Seq, before: Seq) -> BTreeSet<String> {
    let objects: BTreeSet<usize> = told.iter().map(|(_, object, _)| *object).collect();
    let was = |object: &usize| {
        let mine: Vec<_> = told.iter().filter(|(_, of, _)| of == object).collect();
        mine.iter().enumerate().any(|(at, (seq, _, is))| {
            let until = mine.get(at + 1).map_or(Seq::MAX, |(next, ..)| *next);
            *is == Some(phase) && *seq < before && until > after
        })
    };
    objects.into_iter().filter(was).map(|object| format!("train-{object}")).collect()
}

#[tokio::test]
async fn each_page_has_what_a_look_at_every_state_finds_and_no_object_twice_whenever_it_was_opened_again() {
    const PHASES: [&str; 4] = ["Pending", "Running", "Preempted", "Running"];
    let mut dice = Dice::new(seed());
    let desk = TestJournal::new().await;
    let (mut told, mut states, mut ended) = (Vec::new(), Vec::new(), BTreeSet::new());
    for version in 1..=400_u64 {
        let object = dice.below(30) as usize;
        if ended.contains(&object) {
            continue;
        }
        let phase = PHASES[dice.below(PHASES.len() as u64) as usize];
        let is_end = dice.below(20) == 0;
        ended.extend(is_end.then_some(object));
        told.push((states.len() as Seq + 1, object, (!is_end).then_some(phase)));
        states.push(if is_end { gone(object, version) } else { is(object, phase, version) });
    }
    let mut index = index(&desk).await;
    let mut rest = states.into_iter().peekable();
    while rest.peek().is_some() {
        desk.append(rest.by_ref().take(1 + dice.below(90) as usize).collect()).await;
        // An index that is dropped loses what it has not written, as in a crash.
        match dice.below(4) {
            0 => index = PhaseIndex::new(file(&desk)),
            1 => drop(index.sweep_next_part(&desk.journal, None).await.unwrap()),
            _ => {}
        }
        read_all(&index, &desk).await;
    }
    for _ in 0..200 {
        let (after, span) = (dice.below(400), dice.below(60));
        let (before, phase) = (after + 1 + span, PHASES[dice.below(4) as usize]);
        let mut asked = PhaseQuery { looked: 1 + dice.below(9) as usize, ..query(phase, after, before) };
        let mut found = Vec::new();
        loop {
            let page = index.find(asked.clone()).await.unwrap();
            found.extend(page.times.iter().map(|time| time.name.clone()));
            asked.cursor = page.next;
            if asked.cursor.is_none() {
                break;
            }
        }
        let once: BTreeSet<String> = found.iter().cloned().collect();
        assert_eq!(once.len(), found.len(), "{phase} {after} {before}: {found:?}");
        assert_eq!(once, model(&told, phase, after, before), "{phase} {after} {before}");
    }
}

#[tokio::test]
async fn a_page_looks_at_no_more_times_than_it_may_and_leads_on() {
    let desk = TestJournal::new().await;
    desk.append((1..=20).map(|n| is(n, "Preempted", n as u64)).collect()).await;
    let index = index(&desk).await;
    let asked = PhaseQuery { looked: 15, ..query("Preempted", 0, Seq::MAX) };
    let first = index.find(asked.clone()).await.unwrap();
    assert_eq!((first.times.len(), first.times[0].name.as_str()), (15, "train-20"));
    let second = index.find(PhaseQuery { cursor: first.next, ..asked }).await.unwrap();
    assert_eq!((second.times.len(), second.next), (5, None));
}

#[tokio::test]
async fn a_version_that_was_read_back_late_is_found_where_it_was_read() {
    let desk = TestJournal::new().await;
    desk.append(vec![is(1, "Running", 1), is(1, "Succeeded", 9)]).await;
    desk.append(vec![is(1, "Preempted", 5)]).await;
    let index = index(&desk).await;
    assert_eq!(found(&index, "Preempted", 0, Seq::MAX).await, ["train-1"]);
    let page = index.find(query("Succeeded", 0, Seq::MAX)).await.unwrap();
    assert_eq!((page.times[0].entered, page.times[0].left), (2, None), "it goes on");
}

#[tokio::test]
async fn an_index_that_can_not_be_written_says_so_and_the_journal_goes_on() {
    let desk = TestJournal::new().await;
    std::fs::write(desk.folder.path().join("index"), "no folder").unwrap();
    let index = PhaseIndex::new(file(&desk));
    let error = index.index_next_part(&desk.journal, 0).await.unwrap_err().to_string();
    assert!(error.contains("index of phases") && error.contains("making"), "{error}");
    index.set_trouble(Some(error.clone()));
    assert!(index.find(query("Running", 0, 1)).await.unwrap_err().to_string().contains(&error));
    desk.append(vec![is(1, "Running", 1)]).await;
}

on_every_store!(
    what_has_ended_is_found_by_its_name_page_by_page,
    objects_are_found_by_the_phases_that_they_were_in_within_a_range,
    an_index_goes_on_where_it_was_and_is_made_anew_where_the_journal_is_another_one,
    what_retention_took_is_taken_out_of_the_index,
);
