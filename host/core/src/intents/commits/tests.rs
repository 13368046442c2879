use super::*;

fn noted(token: &str, at_ms: u64) -> NotedCommit {
    NotedCommit { token: token.into(), at_ms, is_tick: false }
}

fn commit(frontier: &mut CommitFrontier, token: &str) {
    let ticket = frontier.begin_commit();
    frontier.note_commit(ticket, noted(token, 1));
}

fn tokens(frontier: &CommitFrontier) -> Vec<&str> {
    frontier.newest_commits().map(|commit| &*commit.token).collect()
}

fn commits_in(database: &str, token: &str) -> DatabaseCommits {
    DatabaseCommits {
        database: database.into(),
        commits: vec![noted(token, 1)],
        ..DatabaseCommits::default()
    }
}

#[test]
fn a_commit_takes_the_place_of_those_that_were_answered_before_it_was_sent() {
    let mut frontier = CommitFrontier::from_commits([noted("old", 1)]);
    let (one, two) = (frontier.begin_commit(), frontier.begin_commit());
    frontier.note_commit(two, noted("two", 2));
    assert_eq!(tokens(&frontier), ["two"]);
    frontier.note_commit(one, noted("one", 1));
    assert_eq!(tokens(&frontier), ["two", "one"], "nobody knows which of them is newer");
    let mut replaced = frontier.clone();
    assert!(replaced.replace_commits(|commit| commit.at_ms < 2, Some(&noted("later", 3))));
    assert_eq!(tokens(&replaced), ["two", "later"], "it followed the one that was removed");
    assert!(!frontier.replace_commits(|_| false, Some(&noted("one", 1))), "it is known");
    assert_eq!(tokens(&frontier), ["two", "one"]);
    assert!(frontier.replace_commits(|_| false, Some(&noted("later", 3))));
    assert_eq!(tokens(&frontier), ["two", "one", "later"], "its process was killed before it noted it");
    commit(&mut frontier, "three");
    assert_eq!(tokens(&frontier), ["three"]);
}

#[test]
fn a_receipt_that_was_removed_or_replaced_by_a_newer_tick_is_no_loss() {
    let history = CommitHistory { pruned_before_ms: 5, newest_tick_ms: 9 };
    let tick = |at_ms| NotedCommit { is_tick: true, ..noted("t", at_ms) };
    assert!(history.has_outlived(&noted("a", 4)) && !history.has_outlived(&noted("a", 5)));
    assert!(history.has_outlived(&tick(9)) && !history.has_outlived(&tick(10)));
    assert!(!CommitHistory::default().has_outlived(&tick(1)));
}

#[test]
fn notes_come_back_as_they_were_written_and_a_damaged_one_is_told() {
    let written = CommitNote { current: Some(commits_in("main", "p.1")), earlier: Vec::new() };
    let KvWrite { key, value } = written.as_write();
    let value = value.unwrap();
    let mut notes = CommitNotes::default();
    assert_eq!(notes.read(&key, &value), Some(true));
    assert_eq!(notes.newest, Some(written));
    assert_eq!(notes.read(&key, b"{"), Some(false));
    assert_eq!(notes.read("\0kv/00000000000000000001", b""), None);
    assert_eq!(notes.read("newest/0", &value), None, "a key of the plugin");
}

#[test]
fn the_commits_in_an_earlier_database_stay_noted_within_a_bound() {
    let mut note = CommitNote::default();
    for database in ["a", "b", "c", "d", "e", "f", "b"] {
        assert!(!note.is_current(database));
        let earlier = note.notes_besides(database);
        note = CommitNote { current: Some(commits_in(database, "p.1")), earlier };
    }
    let earlier: Vec<_> = note.earlier.iter().map(|known| &*known.database).collect();
    assert_eq!(earlier, ["c", "d", "e", "f"]);
    assert!(note.is_current("b") && note.commits_in("c").is_some() && note.commits_in("a").is_none());
}

#[test]
fn no_more_losses_are_kept_than_their_bound() {
    let mut kept = std::collections::BTreeMap::<String, Vec<u8>>::new();
    for found_ms in 0..40 {
        let mut notes = CommitNotes::default();
        for (key, value) in &kept {
            assert_eq!(notes.read(key, value), Some(true));
        }
        let loss = DatabaseLoss { found_ms, after: Some(1), through: 2, ..DatabaseLoss::default() };
        let survivors = SurvivingCommits { newest: Some(noted("p.1", 1)), beneath: None };
        for KvWrite { key, value } in notes.record_loss(&loss, survivors) {
            match value {
                Some(value) => kept.insert(key, value),
                None => kept.remove(&key),
            };
        }
    }
    assert_eq!(kept.len(), LOSSES + 1);
    let mut notes = CommitNotes::default();
    kept.iter().for_each(|(key, value)| assert_eq!(notes.read(key, value), Some(true)));
    assert_eq!(notes.losses.last().unwrap().1.found_ms, 39);
    assert_eq!(notes.newest.unwrap().commits_in("").unwrap().commits, [noted("p.1", 1)]);
}

#[test]
fn after_a_loss_that_is_not_taken_back_the_journal_counts_on_nothing_in_that_database() {
    let newest = CommitNote { current: Some(commits_in("a", "p.1")), earlier: vec![commits_in("b", "p.0")] };
    let notes = CommitNotes { newest: Some(newest), losses: Vec::new() };
    let loss = DatabaseLoss { database: "a".into(), after: None, ..DatabaseLoss::default() };
    let survivors = SurvivingCommits { newest: Some(noted("p.1", 1)), beneath: None };
    let mut read = CommitNotes::default();
    for KvWrite { key, value } in notes.record_loss(&loss, survivors) {
        assert_eq!(read.read(&key, &value.unwrap()), Some(true));
    }
    let newest = read.newest.unwrap();
    assert!(newest.current.is_none() && newest.commits_in("b").is_some(), "{newest:?}");
}

#[test]
fn states_that_were_taken_back_count_as_done_in_the_database_that_has_them() {
    let lost = |database: &str, after, through| DatabaseLoss {
        database: database.into(),
        after: Some(after),
        through,
        ..DatabaseLoss::default()
    };
    let notes = CommitNotes { newest: None, losses: vec![(1, lost("a", 10, 90))] };
    let recorded = |loss: DatabaseLoss| {
        let mut read = CommitNotes::default();
        for KvWrite { key, value } in notes.record_loss(&loss, SurvivingCommits::default()) {
            assert_eq!(read.read(&key, &value.unwrap()), Some(true));
        }
        (read.newest.unwrap().current.unwrap().done_through, read.losses[0].1.is_gap())
    };
    assert_eq!(recorded(lost("a", 50, 20)), (Some(50), true), "its address led elsewhere meanwhile");
    assert_eq!(recorded(lost("a", 50, 60)), (Some(50), true), "a dead letter is finished above it");
    assert_eq!(recorded(lost("a", 10, 60)), (None, false), "the same server as before");
    assert_eq!(recorded(lost("a", 91, 95)), (None, false), "nothing up to there was taken back");
    assert_eq!(recorded(lost("b", 50, 60)), (None, false), "another database");
}

#[test]
fn the_loss_that_left_a_server_says_what_was_unfinished_there_and_too_many_ranges_become_one() {
    let lost = |former_floor, unfinished: &[Seq]| {
        let mut loss = DatabaseLoss { after: Some(10), through: 90, former_floor, ..DatabaseLoss::default() };
        loss.note_unfinished(unfinished.iter().copied());
        loss
    };
    let first = lost(Some(70), &[20, 21, 22, 40]);
    assert_eq!(first.unfinished, [(20, 22), (40, 40)]);
    let of = |losses: &[DatabaseLoss], floor| -> Vec<Seq> {
        (1..100).filter(|seq| was_unfinished(losses, floor, *seq)).collect()
    };
    assert!(of(&[], 70).is_empty());
    // The standby was lost as well, before or after it had what was taken back.
    let losses = [first, lost(Some(15), &[40, 50])];
    assert_eq!(of(&losses, 70), [20, 21, 22, 40]);
    assert_eq!(of(&losses, 15), [40, 50]);
    assert_eq!(of(&losses, 71), [20, 21, 22, 40, 50], "which of them it was is not known");
    let odd: Vec<Seq> = (0..2 * UNFINISHED_RANGES as Seq).map(|n| 101 + 2 * n).collect();
    let mut many = DatabaseLoss { through: 1_000_000, ..DatabaseLoss::default() };
    many.note_unfinished(odd.iter().copied());
    assert_eq!(many.unfinished.len(), UNFINISHED_RANGES);
    assert!(odd.iter().all(|seq| many.has_unfinished(*seq)) && !many.has_unfinished(102));
}

#[test]
fn a_loss_is_a_gap_where_rows_may_be_missing_for_good() {
    let whole = DatabaseLoss { after: Some(5), through: 9, again: 4, ..DatabaseLoss::default() };
    assert!(!whole.is_gap() && whole.text().contains("4 states after position 5"));
    let holed = DatabaseLoss { missing: 2, ..whole.clone() };
    assert!(holed.is_gap() && holed.text().contains("Up to 2 states in between"));
    let ended = DatabaseLoss { ended: 3, ..whole.clone() };
    assert!(ended.is_gap() && ended.text().contains("3 states are of sources"));
    let empty = DatabaseLoss { after: None, ..whole.clone() };
    assert!(empty.is_gap() && empty.text().contains("not handed over again"));
    let beneath = DatabaseLoss { beneath: true, ..whole.clone() };
    assert!(beneath.is_gap() && beneath.text().contains("Rows of a tick"));
    let below = DatabaseLoss { after: Some(9), ..whole };
    assert!(below.is_gap() && below.text().contains("Rows of a tick"), "nothing comes again");
    assert!(!below.text().contains(" again, up to "), "{}", below.text());
}
