//! Readers find the objects that existed at a moment, and those that have ended.

use bytes::Bytes;
use kubewitness_core::config::RetentionSpec;
use kubewitness_core::ports::{StateWitness, WitnessedState};
use kubewitness_core::{Change, Seq, calendar};
use kubewitness_journal::{AtCursor, AtPage, AtQuery, EndedQuery, MomentKnowledge, SourceRetention, WALKED};

use crate::support::{SOURCE, TestJournal, gap, in_source, job, of, on_every_store, present, state, status};

const BEGIN: u64 = 1_700_000_000_000;

/// A state observed this many seconds after the beginning.
fn at(second: u64, mut state: WitnessedState) -> WitnessedState {
    state.observed_ms = BEGIN + second * 1000;
    state
}

fn gone(number: usize) -> WitnessedState {
    state(&job(number), Change::Gone, "")
}

async fn ended(
    desk: &TestJournal,
    after: Seq,
    before: Seq,
    limit: usize,
    fits: &str,
) -> (Vec<String>, Option<Seq>) {
    let sources = [SOURCE.to_owned()];
    let is_asked = |source: &str, namespace: &str, _: &str| {
        assert_eq!(source, SOURCE);
        namespace.starts_with(fits)
    };
    let query = EndedQuery { sources: &sources, after, before, oldest_first: false, limit, fits: &is_asked };
    let page = desk.journal.ended_objects(&query).await.unwrap();
    (page.objects.iter().map(|ended| ended.state.object.name.clone()).collect(), page.next)
}

/// The oldest ends after a position.
async fn ended_from(desk: &TestJournal, after: Seq, limit: usize) -> (Vec<String>, Option<Seq>) {
    let sources = [SOURCE.to_owned()];
    let all = |_: &str, _: &str, _: &str| true;
    let query =
        EndedQuery { sources: &sources, after, before: Seq::MAX, oldest_first: true, limit, fits: &all };
    let page = desk.journal.ended_objects(&query).await.unwrap();
    (page.objects.iter().map(|ended| ended.state.object.name.clone()).collect(), page.next)
}

async fn then(desk: &TestJournal, second: u64, after: Option<AtCursor>, limit: usize) -> AtPage {
    let at_ms = BEGIN + second * 1000;
    let seq = desk.journal.position_of_time(at_ms).await.unwrap().seq;
    let sources = [SOURCE.to_owned()];
    let all = |_: &str, _: &str, _: &str| true;
    let query = AtQuery { sources: &sources, seq, at_ms, after, limit, walked: WALKED, fits: &all };
    desk.journal.objects_at(&query).await.unwrap()
}

async fn what_many_states_came_after_is_refused_and_the_answer_says_what_to_ask_for() {
    let desk = TestJournal::new().await;
    desk.append(vec![at(0, present(&job(1), 1)), at(0, present(&job(2), 2))]).await;
    for version in 3..603 {
        desk.append(vec![at(version, present(&job(1 + version as usize % 2), version))]).await;
    }
    let sources = [SOURCE.to_owned()];
    let all = |_: &str, _: &str, _: &str| true;
    let query = |walked| AtQuery {
        sources: &sources,
        seq: 2,
        at_ms: BEGIN,
        after: None,
        limit: 10,
        walked,
        fits: &all,
    };
    assert_eq!(desk.journal.objects_at(&query(WALKED)).await.unwrap().rows.len(), 2);
    desk.append((603..1403).map(|version| at(version, present(&job(1), version))).collect()).await;
    let error = desk.journal.objects_at(&query(700)).await.unwrap_err().to_string();
    assert!(error.contains("more than 700 states since then: ask for a later time"), "{error}");
}

/// The name and version of each object, and how certain they are.
async fn there(desk: &TestJournal, second: u64) -> Vec<(String, String, MomentKnowledge)> {
    let page = then(desk, second, None, 100).await;
    assert_eq!(page.next, None);
    let rows = page.rows.into_iter().map(|then| {
        (then.state.object.name.clone(), then.state.resource_version.as_str().to_owned(), then.known)
    });
    rows.collect()
}

fn exact(name: &str, version: &str) -> (String, String, MomentKnowledge) {
    (name.into(), version.into(), MomentKnowledge::Exact)
}

async fn what_has_ended_is_found_by_its_end_page_by_page_and_only_while_it_is_gone() {
    let desk = TestJournal::new().await;
    desk.append((1..=5).map(|n| present(&job(n), n as u64)).collect()).await;
    // Positions 6 to 9. The third object only left, and returns.
    desk.append(vec![gone(2), gone(1), state(&job(3), Change::Left, "8"), gone(5)]).await;
    let names = |page: (Vec<String>, Option<Seq>)| page.0;
    assert_eq!(names(ended(&desk, 0, Seq::MAX, 9, "").await), ["train-5", "train-3", "train-1", "train-2"]);
    desk.append(vec![present(&job(3), 10)]).await;
    assert_eq!(
        ended(&desk, 0, Seq::MAX, 9, "").await,
        (vec!["train-5".into(), "train-1".into(), "train-2".into()], None)
    );
    let (first, next) = ended(&desk, 0, Seq::MAX, 2, "").await;
    assert_eq!((first, next), (vec!["train-5".to_owned(), "train-1".to_owned()], Some(7)));
    assert_eq!(ended(&desk, 0, 7, 2, "").await, (vec!["train-2".into()], None));
    assert_eq!(names(ended(&desk, 6, 9, 9, "").await), ["train-1"], "strictly between two positions");
    assert_eq!(names(ended(&desk, 0, Seq::MAX, 9, "team-2").await), ["train-5", "train-2"]);
    let (first, next) = ended_from(&desk, 0, 2).await;
    assert_eq!((first, next), (vec!["train-2".to_owned(), "train-1".to_owned()], Some(7)));
    assert_eq!(ended_from(&desk, 7, 2).await, (vec!["train-5".into()], None));
    let desk = desk.reopen().await;
    assert_eq!(names(ended(&desk, 0, Seq::MAX, 9, "team-1").await), ["train-1"]);
    desk.assert_sound().await;
}

async fn an_end_stays_one_when_a_version_from_before_comes_late() {
    let desk = TestJournal::new().await;
    desk.append(vec![at(1, present(&job(1), 1)), at(2, state(&job(1), Change::Gone, "9"))]).await;
    desk.append(vec![at(3, present(&job(1), 5))]).await;
    let sources = [SOURCE.to_owned()];
    let all = |_: &str, _: &str, _: &str| true;
    let query = EndedQuery {
        sources: &sources,
        after: 0,
        before: Seq::MAX,
        oldest_first: false,
        limit: 5,
        fits: &all,
    };
    let page = desk.journal.ended_objects(&query).await.unwrap();
    let found: Vec<_> =
        page.objects.iter().map(|ended| (ended.position, ended.state.seq, ended.state.change)).collect();
    assert_eq!(found, [(3, 2, Change::Gone)]);
}

async fn ends_of_several_histories_come_in_one_order() {
    let desk = TestJournal::new().await;
    let of_epoch =
        |epoch, number: usize, change, version: &str| in_source(SOURCE, epoch, &job(number), change, version);
    for (epoch, number) in [(0, 1), (0, 3), (1, 2), (1, 4)] {
        let states = vec![
            of_epoch(epoch, number, Change::Present, &(10 + number).to_string()),
            of_epoch(epoch, number, Change::Gone, ""),
        ];
        desk.journal.append_batch(of(SOURCE, epoch, states)).await.unwrap();
    }
    let (names, _) = ended(&desk, 0, Seq::MAX, 9, "").await;
    assert_eq!(names, ["train-4", "train-2", "train-3", "train-1"]);
}

async fn the_position_of_a_time_is_found_also_where_the_clock_was_set_back() {
    let desk = TestJournal::new().await;
    let moment = async |second: u64| desk.journal.position_of_time(BEGIN + second * 1000).await.unwrap();
    assert_eq!((moment(5).await.seq, moment(5).await.oldest_ms), (0, None), "there is nothing yet");
    // Observed at 10, 20, …, 60; then the clock goes back to 40, and on to 80.
    let times = [10, 20, 30, 40, 50, 60, 40, 50, 80];
    let states = times.into_iter().zip(1..).map(|(second, version)| at(second, present(&job(1), version)));
    desk.append(states.collect()).await;
    for (second, seq) in
        [(9, 0), (10, 1), (19, 1), (20, 2), (35, 3), (45, 7), (55, 8), (60, 8), (79, 8), (80, 9), (999, 9)]
    {
        assert_eq!(moment(second).await.seq, seq, "at {second}");
    }
    assert_eq!(moment(0).await.oldest_ms, Some(BEGIN + 10_000));
}

async fn what_was_there_at_a_moment_is_told_from_birth_to_end() {
    let desk = TestJournal::new().await;
    desk.append(vec![
        at(10, present(&job(1), 1)),
        at(20, present(&job(2), 2)),
        at(30, present(&job(1), 3)),
        at(40, gone(1)),
        at(50, present(&job(3), 5)),
        at(60, present(&job(2), 6)),
    ])
    .await;
    assert!(there(&desk, 5).await.is_empty());
    assert_eq!(there(&desk, 15).await, [exact("train-1", "1")]);
    assert_eq!(there(&desk, 25).await, [exact("train-1", "1"), exact("train-2", "2")]);
    assert_eq!(there(&desk, 30).await, [exact("train-1", "3"), exact("train-2", "2")]);
    assert_eq!(there(&desk, 45).await, [exact("train-2", "2")]);
    assert_eq!(there(&desk, 55).await, [exact("train-2", "2"), exact("train-3", "5")]);
    assert_eq!(there(&desk, 99).await, [exact("train-2", "6"), exact("train-3", "5")]);
    let until = then(&desk, 25, None, 9)
        .await
        .rows
        .iter()
        .map(|then| then.next.as_ref().map(|n| n.seq))
        .collect::<Vec<_>>();
    assert_eq!(until, [Some(3), Some(6)]);
}

async fn what_was_there_comes_page_by_page() {
    let desk = TestJournal::new().await;
    desk.append((1..=7).map(|n| at(10, present(&job(n), n as u64))).collect()).await;
    desk.append(vec![at(20, gone(2)), at(30, gone(5))]).await;
    let (mut cursor, mut names) = (None, Vec::new());
    for _ in 0..20 {
        let page = then(&desk, 15, cursor, 2).await;
        assert!(page.rows.len() <= 2);
        names.extend(page.rows.iter().map(|then| then.state.object.name.clone()));
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(names, ["train-2", "train-5", "train-1", "train-3", "train-4", "train-6", "train-7"]);
    assert_eq!(cursor, None);
}

async fn a_gap_or_versions_that_came_late_make_a_moment_doubtful_and_no_other() {
    let desk = TestJournal::new().await;
    desk.append(vec![
        at(10, present(&job(1), 1)),
        at(30, gap(&job(1), "1", "5")),
        at(31, present(&job(1), 5)),
        at(40, present(&job(2), 11)),
        at(50, present(&job(2), 15)),
        at(60, present(&job(2), 13)),
        at(70, present(&job(2), 19)),
    ])
    .await;
    let known = async |second: u64| -> Vec<_> {
        there(&desk, second)
            .await
            .into_iter()
            .map(|(name, version, known)| format!("{name} {version} {known:?}"))
            .collect()
    };
    assert_eq!(known(20).await, ["train-1 1 Missing"], "before the gap was found");
    assert_eq!(known(30).await, ["train-1 1 Missing"], "and after it");
    assert_eq!(known(35).await, ["train-1 5 Exact"]);
    assert_eq!(known(45).await[1], "train-2 11 ReadBack");
    assert_eq!(known(55).await[1], "train-2 15 Exact");
    assert_eq!(known(65).await[1], "train-2 15 Exact", "the late version does not move it back");
    assert_eq!(known(75).await[1], "train-2 19 Exact");
}

#[tokio::test]
async fn a_page_looks_at_no_more_ends_than_its_bound_and_leads_on() {
    const ENDS: usize = 20_100;
    let desk = TestJournal::new().await;
    for part in (0..ENDS).collect::<Vec<_>>().chunks(2_000) {
        let states = part.iter().flat_map(|n| [present(&job(*n), *n as u64 + 1), gone(*n)]);
        desk.append(states.collect()).await;
    }
    let (names, next) = ended(&desk, 0, Seq::MAX, 5, "no such namespace").await;
    assert!(names.is_empty());
    let next = next.expect("it has not looked at all of them");
    assert_eq!(ended(&desk, 0, next, 5, "no such namespace").await, (vec![], None));
    let (names, _) = ended(&desk, 0, next, 1, "").await;
    assert_eq!(names, ["train-99"], "the first of the 100 that the page before did not look at");
}

/// A state with the creation time of its object and its previous status.
fn created(second: u64, mut state: WitnessedState) -> WitnessedState {
    let time = calendar::format_rfc3339(BEGIN + second * 1000);
    let text = String::from_utf8(state.document.to_vec()).unwrap();
    let text = text.replace("\"metadata\":{", &format!("\"metadata\":{{\"creationTimestamp\":\"{time}\","));
    state.document = Bytes::from(text);
    state
}

fn again(mut state: WitnessedState) -> WitnessedState {
    state.previous = Some(status("Pending"));
    state
}

async fn an_object_whose_states_retention_took_is_told_to_have_been_there() {
    let desk = TestJournal::new().await;
    desk.append(vec![at(10, created(5, present(&job(1), 1)))]).await;
    let later = (2..=30).map(|version| at(10 * version, again(created(5, present(&job(1), version)))));
    desk.append(later.collect()).await;
    desk.append(vec![at(310, created(305, present(&job(2), 31)))]).await;
    let spec = RetentionSpec { count: Some(4), past_cursors: true, ..Default::default() };
    let report = SourceRetention::new(desk.journal.clone(), SOURCE).in_hand(0).run_pass(&spec).await.unwrap();
    assert!(report.states > 5, "{report:?}");
    let page = then(&desk, 25, None, 9).await;
    let found: Vec<_> = page.rows.iter().map(|then| (then.state.object.name.as_str(), then.known)).collect();
    assert_eq!(found, [("train-1", MomentKnowledge::Taken)], "the other one was made later");
    assert!(then(&desk, 4, None, 9).await.rows.is_empty(), "it was not made yet");
    assert_eq!(there(&desk, 300).await, [exact("train-1", "30")]);
}

async fn a_story_of_a_list_is_cut_at_its_newest_states() {
    let desk = TestJournal::new().await;
    let states = (1..=9).map(|version| present(&job(version as usize % 2), version));
    desk.append(states.collect()).await;
    let stories = desk.journal.object_histories(&[9, 8], 3).await.unwrap();
    let seqs = |head: Seq| stories[&head].iter().map(|state| state.seq).collect::<Vec<_>>();
    assert_eq!((seqs(9), seqs(8)), (vec![5, 7, 9], vec![4, 6, 8]));
}

on_every_store!(
    what_many_states_came_after_is_refused_and_the_answer_says_what_to_ask_for,
    what_has_ended_is_found_by_its_end_page_by_page_and_only_while_it_is_gone,
    an_end_stays_one_when_a_version_from_before_comes_late,
    ends_of_several_histories_come_in_one_order,
    the_position_of_a_time_is_found_also_where_the_clock_was_set_back,
    what_was_there_at_a_moment_is_told_from_birth_to_end,
    what_was_there_comes_page_by_page,
    a_gap_or_versions_that_came_late_make_a_moment_doubtful_and_no_other,
    an_object_whose_states_retention_took_is_told_to_have_been_there,
    a_story_of_a_list_is_cut_at_its_newest_states,
);
