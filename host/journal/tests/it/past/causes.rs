//! Tests of the causes in the index of phases: which outcomes need an explanation, and how they are found
//! afterwards.

use std::sync::Arc;

use kubewitness_core::config::RetentionSpec;
use kubewitness_core::ports::{ChangeQuestion, KeptOutcome, OutcomeChanges, OutcomePlace, WitnessedState};
use kubewitness_core::story::outcomes::SETTLE_MS;
use kubewitness_core::views::CauseKind;
use kubewitness_core::{Change, ObjectRef, Seq, Status};
use kubewitness_journal::{CauseQuery, OpenOutcome, PhaseIndex, SourceRetention};

use crate::support::{self, SOURCE, TestJournal, job, on_every_store, state};

/// The time at which the index reads the journal.
const NOW: u64 = 1_000_000;

fn is(number: usize, phase: &str, version: u64) -> WitnessedState {
    let terminal = matches!(phase, "Failed" | "Succeeded" | "Deleted");
    let change = if phase == "Deleted" { Change::Gone } else { Change::Present };
    let status = Arc::new(Status { phase: phase.into(), terminal, ..Status::default() });
    // The job was deleted while it ran.
    let previous = (change == Change::Gone).then(|| support::status("Running"));
    WitnessedState { status, previous, ..state(&job(number), change, &version.to_string()) }
}

/// A pod that belongs to the job and has failed.
fn failed_pod(number: usize, version: u64) -> WitnessedState {
    let pod = ObjectRef {
        group: String::new(),
        kind: "Pod".into(),
        name: format!("train-{number}-x"),
        uid: format!("pod-of-{number}"),
        ..(*job(number)).clone()
    };
    let status = Arc::new(Status { phase: "Failed".into(), terminal: true, ..Status::default() });
    let owner = Some(job(number));
    WitnessedState { status, owner, ..state(&Arc::new(pod), Change::Present, &version.to_string()) }
}

async fn read_all(index: &PhaseIndex, desk: &TestJournal) {
    while index.index_next_part(&desk.journal, NOW).await.unwrap() {}
}

async fn index(desk: &TestJournal) -> PhaseIndex {
    let index = PhaseIndex::new(desk.folder.path().join("index").join("phases.db"));
    read_all(&index, desk).await;
    index
}

/// Explains all outcomes that need it, with one word for all of them, and returns their uids.
async fn explain(index: &PhaseIndex, kind: CauseKind) -> Vec<Seq> {
    let due = index.due_outcomes(NOW + SETTLE_MS, 100).await.unwrap();
    let seqs = due.iter().map(|outcome| outcome.seq).collect();
    let explained: Vec<(OpenOutcome, _)> = due.into_iter().map(|outcome| (outcome, Some(kind))).collect();
    index.keep_causes(explained).await.unwrap();
    seqs
}

fn query(kind: CauseKind) -> CauseQuery {
    CauseQuery { sources: vec![SOURCE.into()], kind, after: 0, before: Seq::MAX, cursor: None, limit: 2 }
}

async fn names(index: &PhaseIndex, query: CauseQuery) -> Vec<String> {
    let (mut query, mut names) = (query, vec![]);
    loop {
        let page = index.find_by_cause(query.clone()).await.unwrap();
        names.extend(page.times.into_iter().map(|time| time.name));
        query.cursor = page.next;
        if query.cursor.is_none() {
            return names;
        }
    }
}

async fn each_bad_end_is_explained_once_after_a_moment_and_found_by_its_cause() {
    let desk = TestJournal::new().await;
    desk.append(vec![is(1, "Running", 1), is(2, "Running", 2), is(3, "Running", 3), is(4, "Running", 4)])
        .await;
    desk.append(vec![is(1, "Failed", 5), is(2, "Succeeded", 6), is(3, "Deleted", 7), failed_pod(4, 8)]).await;
    desk.append(vec![is(4, "Failed", 9), is(4, "Failed", 10)]).await;
    let index = index(&desk).await;
    let early = index.due_outcomes(NOW + SETTLE_MS - 1, 100).await.unwrap();
    assert!(early.is_empty(), "pods may still come");
    assert_eq!(index.next_due_ms().await.unwrap(), Some(NOW + SETTLE_MS));
    let mut news = index.outcome_news();
    index.keep_causes(Vec::new()).await.unwrap();
    assert!(!news.has_changed().unwrap(), "nothing was explained");
    assert_eq!(explain(&index, CauseKind::OutOfMemory).await, [9, 7, 5], "the newest first");
    assert!(news.has_changed().unwrap(), "whoever shows causes looks again");
    news.mark_unchanged();
    assert!(explain(&index, CauseKind::Signal).await.is_empty(), "once");
    assert!(!news.has_changed().unwrap(), "no word is new");
    assert_eq!(index.next_due_ms().await.unwrap(), None);
    assert_eq!(names(&index, query(CauseKind::OutOfMemory)).await, ["train-4", "train-3", "train-1"]);
    assert_eq!(names(&index, query(CauseKind::Signal)).await, Vec::<String>::new());
    let within = CauseQuery { after: 5, before: 9, ..query(CauseKind::OutOfMemory) };
    assert_eq!(names(&index, within).await, ["train-3"]);
    let of = |source: &str, number: usize| (source.to_owned(), job(number).uid.clone());
    let asked = vec![of(SOURCE, 2), of(SOURCE, 1), of("pods", 1)];
    let causes = index.causes_of(asked).await.unwrap();
    assert_eq!(causes.into_iter().collect::<Vec<_>>(), [(1, CauseKind::OutOfMemory)]);
}

async fn a_pod_that_comes_late_has_its_job_explained_again_and_a_job_that_runs_on_has_no_cause() {
    let desk = TestJournal::new().await;
    desk.append(vec![is(1, "Failed", 1), is(2, "Failed", 2)]).await;
    let index = index(&desk).await;
    assert_eq!(explain(&index, CauseKind::Unknown).await.len(), 2);
    desk.append(vec![failed_pod(1, 3), is(2, "Running", 4)]).await;
    read_all(&index, &desk).await;
    assert_eq!(names(&index, query(CauseKind::Unknown)).await, ["train-1"], "its old word stays meanwhile");
    let due = index.due_outcomes(NOW + SETTLE_MS, 100).await.unwrap();
    assert_eq!(due.iter().map(|it| (it.seq, it.is_new)).collect::<Vec<_>>(), [(1, false)]);
    assert_eq!(explain(&index, CauseKind::ExitCode).await, [1]);
    assert_eq!(names(&index, query(CauseKind::ExitCode)).await, ["train-1"]);
}

/// An outcome whose object is owned by the job 30.
fn owned(number: usize, phase: &str, version: u64) -> WitnessedState {
    WitnessedState { owner: Some(job(30)), ..is(number, phase, version) }
}

async fn a_late_pod_has_what_ended_between_it_and_its_outermost_owner_explained_again() {
    let desk = TestJournal::new().await;
    let ended = (1..=18).map(|number| owned(number, "Failed", number as u64));
    desk.append(ended.chain([is(30, "Running", 20), is(31, "Failed", 21)]).collect()).await;
    let index = index(&desk).await;
    assert_eq!(explain(&index, CauseKind::Unknown).await.len(), 19);
    desk.append(vec![WitnessedState { owner: Some(job(30)), ..failed_pod(4, 30) }]).await;
    read_all(&index, &desk).await;
    let again = explain(&index, CauseKind::ExitCode).await;
    assert_eq!(again, (3..=18).rev().collect::<Vec<_>>(), "the newest of that owner");
}

async fn an_explanation_that_failed_is_tried_again_later_and_not_for_ever() {
    let desk = TestJournal::new().await;
    desk.append(vec![is(1, "Failed", 1), is(2, "Failed", 2)]).await;
    let index = index(&desk).await;
    let of_here = || vec![SOURCE.to_owned()];
    assert!(!index.lacks_words(of_here(), NOW + SETTLE_MS).await.unwrap(), "its pods may still come");
    assert!(index.lacks_words(of_here(), NOW + SETTLE_MS + 1).await.unwrap());
    assert!(!index.lacks_words(vec!["pods".into()], NOW + SETTLE_MS + 1).await.unwrap(), "of another source");
    let mut now = NOW + SETTLE_MS;
    let due = index.due_outcomes(now, 100).await.unwrap();
    index.keep_causes(vec![(due[1].clone(), Some(CauseKind::Signal))]).await.unwrap();
    let mut outcome = due[0].clone();
    let mut failed = 0;
    while outcome.may_wait() {
        index.postpone_outcome(outcome, now).await.unwrap();
        failed += 1;
        assert!(index.due_outcomes(now, 100).await.unwrap().is_empty(), "not at once");
        assert!(index.lacks_words(of_here(), NOW).await.unwrap(), "it has no word meanwhile");
        now = index.next_due_ms().await.unwrap().unwrap();
        outcome = index.due_outcomes(now, 100).await.unwrap().remove(0);
    }
    assert_eq!((failed, now), (6, NOW + SETTLE_MS * 127));
}

async fn what_a_clock_dated_far_ahead_is_explained_after_it_was_set_back() {
    let desk = TestJournal::new().await;
    desk.append(vec![is(1, "Failed", 1), is(2, "Failed", 2)]).await;
    let index = index(&desk).await;
    let back = NOW - 1_000 * SETTLE_MS.min(NOW / 2_000);
    assert_eq!(index.due_outcomes(back, 1).await.unwrap().len(), 1);
    assert_eq!(index.due_outcomes(back, 100).await.unwrap().len(), 2);
}

async fn outcomes_are_counted_once_and_those_of_an_earlier_process_are_not() {
    let desk = TestJournal::new().await;
    desk.append(vec![is(1, "Failed", 1)]).await;
    let index = index(&desk).await;
    explain(&index, CauseKind::Signal).await;
    assert!(index.outcome_counts().is_empty(), "it was there before");
    desk.append(vec![is(2, "Failed", 2), is(3, "Deleted", 3), is(4, "Failed", 4)]).await;
    read_all(&index, &desk).await;
    explain(&index, CauseKind::Signal).await;
    desk.append(vec![failed_pod(2, 5)]).await;
    read_all(&index, &desk).await;
    explain(&index, CauseKind::Signal).await;
    let counts: Vec<_> = index.outcome_counts().into_iter().collect();
    assert_eq!(counts, [((SOURCE.to_owned(), CauseKind::Signal), 3)]);
}

/// One page of changes: names with their words, and whether the order has begun anew.
async fn changed(
    index: &PhaseIndex,
    after: Option<OutcomePlace>,
    limit: usize,
) -> (Vec<(String, Option<CauseKind>)>, OutcomeChanges) {
    let question = ChangeQuestion { sources: [SOURCE.to_owned()].into(), after, limit };
    let page = index.changed_outcomes(question).await.unwrap();
    let outcomes = page.outcomes.iter().map(|outcome| (outcome.name.clone(), outcome.kind)).collect();
    (outcomes, page)
}

async fn what_changes_is_told_in_order_from_any_place_and_a_withdrawal_too() {
    let desk = TestJournal::new().await;
    desk.append(vec![is(1, "Failed", 1), is(2, "Failed", 2), is(3, "Failed", 3)]).await;
    let index = index(&desk).await;
    let job = |number: usize| job(number).uid.clone();
    assert_eq!(index.kept_outcome(SOURCE, &job(1)).await.unwrap(), KeptOutcome::Pending);
    assert_eq!(changed(&index, None, 9).await.0, []);
    explain(&index, CauseKind::Signal).await;
    let signal = Some(CauseKind::Signal);
    let named = |numbers: &[usize], kind| -> Vec<_> {
        numbers.iter().map(|number| (format!("train-{number}"), kind)).collect()
    };
    let (outcomes, first) = changed(&index, None, 2).await;
    assert_eq!((outcomes, first.has_more, first.is_restarted), (named(&[3, 2], signal), true, true));
    let (outcomes, second) = changed(&index, Some(first.next.clone()), 2).await;
    assert_eq!((outcomes, second.has_more, second.is_restarted), (named(&[1], signal), false, false));
    let (outcomes, same) = changed(&index, Some(second.next.clone()), 2).await;
    assert_eq!((outcomes, &same.next), (vec![], &second.next));
    let explained = KeptOutcome::Explained { seq: 1, kind: CauseKind::Signal };
    assert_eq!(index.kept_outcome(SOURCE, &job(1)).await.unwrap(), explained);

    desk.append(vec![failed_pod(3, 4), is(2, "Running", 5), is(4, "Failed", 6), is(4, "Running", 7)]).await;
    read_all(&index, &desk).await;
    assert_eq!(changed(&index, Some(second.next.clone()), 9).await.0, named(&[2], None), "it goes on");
    assert_eq!(index.kept_outcome(SOURCE, &job(2)).await.unwrap(), KeptOutcome::Nothing);
    explain(&index, CauseKind::ExitCode).await;
    let both = [named(&[2], None), named(&[3], Some(CauseKind::ExitCode))].concat();
    let (outcomes, last) = changed(&index, Some(second.next), 9).await;
    assert_eq!(outcomes, both, "and what nobody was told is not withdrawn");

    desk.append(vec![is(2, "Failed", 8)]).await;
    read_all(&index, &desk).await;
    assert_eq!(explain(&index, CauseKind::Deadline).await.len(), 1);
    assert_eq!(changed(&index, Some(last.next), 9).await.0, named(&[2], Some(CauseKind::Deadline)));
}

async fn places_of_an_index_that_is_opened_again_hold_and_those_of_another_begin_anew() {
    let desk = TestJournal::new().await;
    desk.append(vec![is(1, "Failed", 1), is(2, "Failed", 2)]).await;
    let first = index(&desk).await;
    explain(&first, CauseKind::Signal).await;
    let place = changed(&first, None, 9).await.1.next;
    drop(first);
    let again = index(&desk).await;
    assert_eq!(changed(&again, Some(place.clone()), 9).await.0, []);
    desk.append(vec![is(3, "Failed", 3)]).await;
    read_all(&again, &desk).await;
    explain(&again, CauseKind::Signal).await;
    let (outcomes, page) = changed(&again, Some(place.clone()), 9).await;
    assert_eq!((outcomes.len(), page.is_restarted), (1, false));
    assert!(page.next.number > place.number + 1, "numbers that a crash could take back are left out");
    drop(again);
    std::fs::remove_dir_all(desk.folder.path().join("index")).unwrap();
    let other = index(&desk).await;
    explain(&other, CauseKind::Signal).await;
    let (outcomes, page) = changed(&other, Some(page.next), 9).await;
    assert_eq!((outcomes.len(), page.is_restarted), (3, true));
}

async fn a_cause_goes_with_its_object() {
    let desk = TestJournal::new().await;
    desk.append(vec![is(1, "Running", 1), is(1, "Deleted", 2)]).await;
    desk.append((10..14).map(|version| is(2, "Running", version)).chain([is(2, "Failed", 14)]).collect())
        .await;
    let index = index(&desk).await;
    assert_eq!(explain(&index, CauseKind::Signal).await.len(), 2);
    let spec = RetentionSpec { count: Some(3), past_cursors: true, ..RetentionSpec::default() };
    SourceRetention::new(desk.journal.clone(), SOURCE).in_hand(0).run_pass(&spec).await.unwrap();
    let mut after = None;
    loop {
        after = index.sweep_next_part(&desk.journal, after).await.unwrap();
        if after.is_none() {
            break;
        }
    }
    assert_eq!(names(&index, query(CauseKind::Signal)).await, ["train-2"]);
}

on_every_store!(
    each_bad_end_is_explained_once_after_a_moment_and_found_by_its_cause,
    a_pod_that_comes_late_has_its_job_explained_again_and_a_job_that_runs_on_has_no_cause,
    a_late_pod_has_what_ended_between_it_and_its_outermost_owner_explained_again,
    an_explanation_that_failed_is_tried_again_later_and_not_for_ever,
    what_a_clock_dated_far_ahead_is_explained_after_it_was_set_back,
    outcomes_are_counted_once_and_those_of_an_earlier_process_are_not,
    what_changes_is_told_in_order_from_any_place_and_a_withdrawal_too,
    places_of_an_index_that_is_opened_again_hold_and_those_of_another_begin_anew,
    a_cause_goes_with_its_object,
);
