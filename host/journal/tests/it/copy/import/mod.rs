//! Tests of imports: refused exports, and what an unfinished import leaves.

mod forged;
mod unfinished;

use std::collections::HashSet;
use std::io::BufReader;
use std::sync::Arc;

use kubewitness_core::config::RetentionSpec;
use kubewitness_core::document::{checksum, checksum_behind};
use kubewitness_core::ports::{AppendBatch, Backlog, StateWitness, WitnessedState};
use kubewitness_core::{Change, ObjectRef, State, Version};
use kubewitness_journal::{
    ExportError, ExportQuery, ImportError, Journal, JournalLocation, JournalOptions, OpenError,
    SourceRetention, discard_unfinished_import, export_journal, journal_stats, verify_at,
};
use proptest::prelude::*;
use serde_json::Value;

use crate::support::{
    RandomHistory, SOURCE, StoreKind, TestJournal, document, gap, in_source, job, of, on, on_every_store,
    open_at, options, present, state,
};

async fn exported(place: &JournalLocation) -> String {
    let (mut out, query) = (Vec::new(), ExportQuery { documents: true, ..ExportQuery::default() });
    export_journal(place, &query, &mut out).await.unwrap();
    String::from_utf8(out).unwrap()
}

/// A changed export with correct sums, as a forger would write it.
#[derive(Clone)]
struct ForgedExport {
    header: String,
    /// The lines without their sums.
    states: Vec<Value>,
    end: Value,
}

impl ForgedExport {
    fn of(text: &str) -> Self {
        let mut lines = text.lines();
        let header = lines.next().unwrap().to_owned();
        let mut states: Vec<Value> = lines.map(|line| serde_json::from_str(line).unwrap()).collect();
        for line in &mut states {
            line.as_object_mut().unwrap().retain(|key, _| !["sum", "after"].contains(&key.as_str()));
        }
        let end = states.pop().unwrap();
        Self { header, states, end }
    }

    /// Numbers the positions anew, so that only the story shows the change.
    fn renumbered(mut self) -> Self {
        for (seq, line) in (1..).zip(&mut self.states) {
            line["state"]["seq"] = seq.into();
        }
        self.end["end"]["states"] = self.states.len().into();
        self
    }

    fn text(&self) -> String {
        let mut text = format!("{}\n", self.header);
        for line in self.states.iter().chain([&self.end]) {
            let mut line = line.clone();
            line["after"] = checksum_behind(0, text.as_bytes()).into();
            // `serde_json` sorts the fields, so the document comes first. Readers accept any order.
            let rest = line.to_string()[1..].to_owned();
            text.push_str(&format!("{{\"sum\":{},{rest}\n", checksum(rest.as_bytes())));
        }
        text
    }
}

async fn import(text: &str) -> (TestJournal, Result<u64, ImportError>) {
    let desk = TestJournal::new().await;
    let done = desk.journal.import_lines(&mut BufReader::new(text.as_bytes())).await;
    (desk, done.map(|done| done.states))
}

async fn refusal(text: &str) -> String {
    import(text).await.1.unwrap_err().to_string()
}

/// Repeats the import, with the same file or another.
async fn go_on(desk: TestJournal, text: &str) -> (TestJournal, Result<u64, ImportError>) {
    desk.journal.close().await.unwrap();
    let TestJournal { folder, place, .. } = desk;
    let options = JournalOptions { continues_import: true, ..options() };
    let journal = Journal::open_at(&place, options).await.unwrap();
    let done = journal.import_lines(&mut BufReader::new(text.as_bytes())).await;
    (TestJournal { folder, place, journal }, done.map(|done| done.states))
}

/// 600 states of 8 objects in more than one batch, with ends, a gap, a late state, and two epochs.
async fn story() -> TestJournal {
    let desk = TestJournal::new().await;
    for round in 0..70u64 {
        let states = (0..8).map(|n| present(&job(n), round * 8 + n as u64 + 10)).collect();
        desk.append(states).await;
    }
    desk.append(vec![state(&job(0), Change::Gone, "700"), gap(&job(3), "600", "710")]).await;
    desk.append(vec![state(&job(3), Change::Left, "710"), present(&job(1), 3)]).await;
    for epoch in [0, 1] {
        let versions = (1..=18).map(|v| in_source("pods", epoch, &job(9), Change::Present, &v.to_string()));
        desk.journal.append_batch(of("pods", epoch, versions.collect())).await.unwrap();
    }
    let checkpoint = Some(Version::new("720"));
    desk.journal.append_batch(AppendBatch { checkpoint, ..of(SOURCE, 0, Vec::new()) }).await.unwrap();
    desk
}

async fn lines_that_run_backwards_are_refused_by_number_and_nothing_behind_them_is_taken_in() {
    let desk = story().await;
    let whole = ForgedExport::of(&exported(&desk.place).await);
    let mut reversed = whole.clone();
    reversed.states.reverse();
    let error = refusal(&reversed.text()).await;
    assert!(
        error.starts_with(
            "line 3: its state contradicts the lines before: its position, 599, is not after 600"
        ),
        "{error}"
    );
    let error = refusal(&reversed.renumbered().text()).await;
    assert!(error.starts_with("line 3: its state contradicts the lines before: version 17 of"), "{error}");
    let mut epochs = whole.clone();
    epochs.states.swap(564, 582);
    let error = refusal(&epochs.renumbered().text()).await;
    assert!(error.starts_with("line 567: ") && error.contains("epoch 0 of pods follows epoch 1"), "{error}");

    // Two states of one object, in another batch than the first.
    let mut swapped = whole.clone();
    swapped.states.swap(400, 408);
    let error = refusal(&swapped.text()).await;
    assert!(error.starts_with("line 403: ") && error.contains("is not after"), "{error}");
    let (taken, refused) = import(&swapped.renumbered().text()).await;
    let error = refused.unwrap_err().to_string();
    assert!(error.starts_with("line 410: its state contradicts the lines before: version"), "{error}");
    assert!(error.contains("is not marked late") && error.contains("--continue"), "{error}");
    assert!(*taken.journal.newest_position().borrow() <= 408);

    let mut twice = whole.clone();
    twice.states.insert(300, twice.states[299].clone());
    let error = refusal(&twice.renumbered().text()).await;
    assert!(error.starts_with("line 302: the journal has a state with its id already"), "{error}");
    let mut late = whole.clone();
    late.states[50]["state"]["late"] = true.into();
    let error = refusal(&late.text()).await;
    assert!(error.starts_with("line 52: ") && error.contains("is marked late"), "{error}");
}

async fn a_state_that_no_store_or_watch_writes_is_refused() {
    let desk = story().await;
    let whole = ForgedExport::of(&exported(&desk.place).await);
    let refusal_after = |place: usize, change: fn(&mut Value)| {
        let mut forged = whole.clone();
        change(&mut forged.states[place]["state"]);
        async move { refusal(&forged.text()).await }
    };
    let gap = whole.states.iter().position(|line| line["state"]["change"] == "gap").unwrap();
    for (place, change, expected) in [
        (
            7,
            (|state| state["id"] = "jobs/0/batch/Job/x/1".into()) as fn(&mut Value),
            "is not that of its version",
        ),
        (7, |state| state["object"]["uid"] = "".into(), "its object has no uid"),
        (7, |state| state["source"] = "".into(), "its source has no name"),
        (7, |state| state["epoch"] = u32::MAX.into(), "its epoch is 4294967295"),
        (
            7,
            |state| state["source"] = "x".repeat(2000).into(),
            "its source has no name, or one of more than 1024",
        ),
        (7, |state| state["resource_version"] = "9".repeat(2000).into(), "its version has more than"),
        (15, |state| state["object"]["name"] = "other".into(), "has the name `train-7`, and its state says"),
        (gap, |state| state["id"] = "jobs/0/batch/Job/x/gap:1-2".into(), "has other bounds"),
    ] {
        let refused = refusal_after(place, change).await;
        assert!(
            refused.starts_with(&format!("line {}: ", place + 2)) && refused.contains(expected),
            "{refused}"
        );
    }
    let mut many = whole.clone();
    let source = |n: u32| serde_json::json!({"source": format!("s{n}"), "epoch": 0, "checkpoint": "1"});
    many.end["end"]["sources"] = (0..10_001).map(source).collect();
    let error = refusal(&many.text()).await;
    assert!(error.starts_with("line 602: it names more than 10000 sources"), "{error}");
}

/// The lines keep their bytes. Only the reference of each line to the lines before it shows the change.
async fn unchanged_lines_are_refused_where_they_do_not_follow_the_lines_before_them() {
    let one = exported(&story().await.place).await;
    let desk = story().await;
    desk.append(vec![present(&job(6), 800)]).await;
    let other = exported(&desk.place).await;
    let [one, other] = [&one, &other].map(|text| text.lines().collect::<Vec<_>>());
    // A line from another journal, which differs in one document.
    let mut foreign = ForgedExport::of(&one.join("\n"));
    let document = foreign.states[9]["document"].as_str().unwrap().replace("\"x\":1", "\"x\":2");
    foreign.states[9]["document"] = document.into();
    let foreign = foreign.text();
    let foreign: Vec<_> = foreign.lines().collect();
    let glued = [&foreign[..301], &one[301..]].concat();
    let removed = [&one[..100], &one[101..]].concat();
    let repeated = [&one[..100], &one[99..]].concat();
    let mut swapped = one.clone();
    swapped.swap(564, 200);
    let ended = [&one[..601], &other[602..]].concat();
    let last = [&one[..500], &one[601..]].concat();
    for (lines, number) in
        [(glued, 302), (removed, 101), (repeated, 101), (swapped, 201), (ended, 602), (last, 501)]
    {
        let error = refusal(&format!("{}\n", lines.join("\n"))).await;
        let expected = format!("line {number}: it does not follow the line before");
        assert!(error.starts_with(&expected), "{expected}: {error}");
    }
    // Two exports of one journal agree as far as both go, so they are one story.
    let same = [&one[..300], &other[300..]].concat();
    import(&format!("{}\n", same.join("\n"))).await.1.unwrap();
}

async fn an_export_of_a_program_that_chained_no_lines_is_taken_in() {
    let text = exported(&story().await.place).await;
    let mut old = text.lines().next().unwrap().replace(",\"chained\":true", "");
    old.push('\n');
    for line in text.lines().skip(1) {
        let (_, rest) = line.split_once("\"after\":").unwrap();
        let rest = rest.split_once(',').unwrap().1;
        old.push_str(&format!("{{\"sum\":{},{rest}\n", checksum(rest.as_bytes())));
    }
    let (taken, done) = import(&old).await;
    assert_eq!(done.unwrap(), 600);
    assert_eq!(exported(&taken.place).await, text);
    // The header promises more than the lines contain.
    let error = refusal(&old.replacen("\"selected\":false", "\"selected\":false,\"chained\":true", 1)).await;
    assert!(error.starts_with("line 2: it does not say what it stands after"), "{error}");
}

async fn a_document_of_another_object_or_version_than_its_state_is_refused() {
    let whole = ForgedExport::of(&exported(&story().await.place).await);
    for (change, expected) in [
        ((|text| "hello".replace('x', text)) as fn(&str) -> String, "is no object"),
        (|_| String::new(), "is no object"),
        (|text| text.replace("ad7a6354", "bd7a6354"), "has the uid"),
        (|text| text.replace("train-7", "train-8"), "has the name"),
        (|text| text.replace("team-1", "team-2"), "has the namespace"),
        (|text| text.replace("resourceVersion\":\"25", "resourceVersion\":\"26"), "has the resourceVersion"),
    ] {
        let mut forged = whole.clone();
        let text = change(forged.states[15]["document"].as_str().unwrap());
        forged.states[15]["document"] = text.into();
        let error = refusal(&forged.text()).await;
        assert!(error.starts_with("line 17: ") && error.contains(expected), "{expected}: {error}");
    }
    // Both lines agree, but the states before them do not.
    let mut renamed = whole.clone();
    renamed.states[15]["state"]["object"]["name"] = "other".into();
    let text = renamed.states[15]["document"].as_str().unwrap().replace("train-7", "other");
    renamed.states[15]["document"] = text.into();
    let error = refusal(&renamed.text()).await;
    assert!(
        error.starts_with("line 17: ") && error.contains("was not called team-1/other before"),
        "{error}"
    );
}

async fn a_checkpoint_from_which_no_watch_can_go_on_is_refused() {
    let whole = ForgedExport::of(&exported(&story().await.place).await);
    let line = 602;
    for (source, epoch, checkpoint, expected) in [
        (SOURCE, 0, "junk".to_owned(), "the checkpoint of jobs is no version: `junk`"),
        (SOURCE, 0, String::new(), "the checkpoint of jobs is no version"),
        (SOURCE, 0, "9".repeat(5_000), "has more than 1024 bytes"),
        (SOURCE, 0, "999999999999".into(), "no server gets so far ahead"),
        ("pods", 0, "5".into(), "epoch 0 of pods follows epoch 1"),
        ("", 0, "5".into(), "its source has no name"),
        // No epoch could follow it.
        ("nodes", u32::MAX, "5".into(), "epoch 4294967295 of nodes is over 1048576"),
    ] {
        let mut forged = whole.clone();
        forged.end["end"]["sources"] =
            serde_json::json!([{"source": source, "epoch": epoch, "checkpoint": checkpoint}]);
        let error = refusal(&forged.text()).await;
        assert!(
            error.starts_with(&format!("line {line}: ")) && error.contains(expected),
            "{expected}: {error}"
        );
    }
    let mut twice = whole.clone();
    let again = twice.end["end"]["sources"][0].clone();
    twice.end["end"]["sources"].as_array_mut().unwrap().push(again);
    assert!(refusal(&twice.text()).await.contains("it names the source jobs twice"));
    // The checkpoints of a source with quiet objects, of one without states, and of a stream are accepted.
    let mut fine = whole.clone();
    fine.end["end"]["sources"] = serde_json::json!([
        {"source": SOURCE, "epoch": 0, "checkpoint": "5000000000"},
        {"source": "nodes", "epoch": 3, "checkpoint": "junk"},
        {"source": "pods", "epoch": 1, "checkpoint": "reader:b2 0:a1:3:12"},
    ]);
    let (taken, done) = import(&fine.text()).await;
    done.unwrap();
    taken.assert_sound().await;
}

/// A contradiction is found even within one batch.
async fn what_only_the_store_knows_to_be_there_is_found_where_it_stands() {
    let desk = story().await;
    let mut twice = ForgedExport::of(&exported(&desk.place).await);
    let late = twice.states.iter().position(|line| line["state"]["late"] == true).unwrap();
    let again = twice.states[late].clone();
    twice.states.insert(late + 3, again);
    let (taken, refused) = import(&twice.renumbered().text()).await;
    let error = refused.unwrap_err().to_string();
    assert!(
        error.starts_with(&format!("line {}: the journal has a state with its id already", late + 5)),
        "{error}"
    );
    assert_eq!(*taken.journal.newest_position().borrow(), late as u64 + 3);
}

/// States that retention removed or a selection excludes are no contradiction.
async fn a_story_without_its_beginning_is_taken_in_also_where_something_was_late_for_it() {
    let desk = TestJournal::new().await;
    for states in [vec![present(&job(0), 10)], vec![present(&job(0), 9)], vec![present(&job(0), 11)]] {
        let checkpoint = Some(Version::new("20"));
        desk.journal.append_batch(AppendBatch { checkpoint, ..of(SOURCE, 0, states) }).await.unwrap();
    }
    let keep = RetentionSpec { count: Some(2), ..RetentionSpec::default() };
    assert_eq!(SourceRetention::new(desk.journal.clone(), SOURCE).run_pass(&keep).await.unwrap().states, 1);
    desk.assert_sound().await;
    let states = desk.journal.read(0, 10).await.unwrap();
    assert!(states.len() == 2 && states[0].late);
    let (again, done) = import(&exported(&desk.place).await).await;
    assert_eq!(done.unwrap(), 2);
    again.assert_sound().await;
    // Imported at new positions, the story is complete again.
    let (once_more, done) = import(&exported(&again.place).await).await;
    assert_eq!(done.unwrap(), 2);
    once_more.assert_sound().await;
}

async fn a_journal_whose_states_contradict_each_other_is_found_by_the_proof() {
    let desk = TestJournal::new().await;
    desk.append(vec![present(&job(0), 5), state(&job(0), Change::Gone, "6"), present(&job(0), 7)]).await;
    desk.append(vec![gap(&job(1), "9", "4")]).await;
    let foreign = document(&job(3), "20");
    desk.append(vec![WitnessedState { document: foreign, ..present(&job(2), 20) }]).await;
    desk.append(vec![present(&job(4), 30), present(&job(4), 35), gap(&job(4), "30", "40")]).await;
    desk.append(vec![present(&job(5), 50), state(&job(5), Change::Gone, "45")]).await;
    let former = Arc::new(ObjectRef { uid: "former".into(), ..(*job(6)).clone() });
    desk.append(vec![present(&former, 60), present(&job(6), 61), present(&former, 62)]).await;
    let checkpoint = Some(Version::new("junk"));
    desk.journal.append_batch(AppendBatch { checkpoint, ..of(SOURCE, 0, Vec::new()) }).await.unwrap();
    let report = desk.verify().await;
    let found: Vec<_> = report.problems.iter().map(|problem| (problem.code.as_str(), problem.seq)).collect();
    let expected = [
        ("order", Some(3)),
        ("gap", Some(4)),
        ("document", Some(5)),
        ("gap", Some(8)),
        ("order", Some(10)),
        ("order", Some(13)),
        ("checkpoint", None),
    ];
    assert_eq!(found, expected, "{:#?}", report.problems);
}

on_every_store!(
    lines_that_run_backwards_are_refused_by_number_and_nothing_behind_them_is_taken_in,
    a_state_that_no_store_or_watch_writes_is_refused,
    unchanged_lines_are_refused_where_they_do_not_follow_the_lines_before_them,
    an_export_of_a_program_that_chained_no_lines_is_taken_in,
    a_document_of_another_object_or_version_than_its_state_is_refused,
    a_checkpoint_from_which_no_watch_can_go_on_is_refused,
    what_only_the_store_knows_to_be_there_is_found_where_it_stands,
    a_story_without_its_beginning_is_taken_in_also_where_something_was_late_for_it,
    a_journal_whose_states_contradict_each_other_is_found_by_the_proof,
);
