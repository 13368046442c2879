//! Tests of events that the server never sent. Another event proves each loss, and the missing versions are
//! read back.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::*;

/// Loses events: the watch never brings them, goes on, and claims that everything has come.
async fn lose(world: &WatchWorld, memory: &MemoryWitness, lost: impl FnOnce()) {
    world.quiet(true);
    lost();
    world.quiet(false);
    world.update("other");
    let version = world.version().to_string();
    until("the checkpoint is beyond it", || {
        world.bookmark();
        memory.checkpoint().is_some_and(|checkpoint| checkpoint == version)
    })
    .await;
}

/// The objects `other`, which is in the selector, and `x`, which belongs to this team.
async fn selected(
    team: &str,
    more: Value,
    tuning: WatchTuning,
) -> (WatchWorld, Arc<MemoryWitness>, RunningSource) {
    let (world, memory) = (WatchWorld::start().await, Arc::new(MemoryWitness::default()));
    world.create("other", json!({"team": "ml"}));
    world.create("x", json!({"team": team}));
    let mut spec = spec(more);
    spec.match_labels.insert("team".into(), "ml".into());
    let running = RunningSource::start_with(&world, &memory, spec, tuning).await;
    running.watching(&world).await;
    (world, memory, running)
}

fn no_gaps(memory: &MemoryWitness) {
    assert_eq!((memory.source_gaps(), memory.object_gaps()), (Vec::new(), Vec::new()));
}

#[tokio::test]
async fn a_beginning_that_was_lost_on_an_earlier_watch_is_read_back_when_the_object_changes() {
    let (world, memory, running) = started(&["other"]).await;
    lose(&world, &memory, || drop(world.create("x", json!({})))).await;
    world.close();
    until("it is watched again", || world.requests("watch=true").len() > 1 && world.watches() > 0).await;
    world.update("x");
    level(&world, &memory).await;
    assert_eq!(running.handle.snapshot_view().counts.discrepancies, 1);
    running.stop().await;
    assert_eq!(memory.story_of("x"), ["present x 102", "present x 104"]);
    no_gaps(&memory);
}

#[tokio::test]
async fn the_whole_story_of_an_object_of_which_only_its_end_came_is_read_back() {
    let (world, memory, running) = started(&["other"]).await;
    lose(&world, &memory, || {
        world.create("x", json!({}));
        world.update("x");
    })
    .await;
    world.delete("x");
    until("its end", || memory.story_of("x").len() == 3).await;
    assert_eq!(running.handle.snapshot_view().counts.discrepancies, 1);
    running.stop().await;
    assert_eq!(memory.story_of("x"), ["present x 102", "present x 103", "gone x 105"]);
    no_gaps(&memory);
}

#[tokio::test]
async fn what_was_lost_before_an_outage_is_read_back_with_what_was_missed_in_it() {
    let (world, memory, running) = started(&["other", "a", "b", "gone"]).await;
    lose(&world, &memory, || {
        world.update("a");
        world.update("a");
        world.update("b");
        world.create("new", json!({}));
        world.update("new");
        world.create("born", json!({}));
        world.update("gone");
        world.delete("gone");
    })
    .await;
    away(&world).await;
    world.update("b");
    world.update("born");
    world.create("brief", json!({}));
    world.delete("brief");
    world.forget();
    level(&world, &memory).await;
    settled(&world, &memory).await;
    let discrepancies = running.handle.snapshot_view().counts.discrepancies;
    running.stop().await;
    assert_eq!(memory.story_of("a"), ["present a 102", "present a 105", "present a 106"]);
    assert_eq!(memory.story_of("b"), ["present b 103", "present b 107", "present b 114"]);
    assert_eq!(memory.story_of("new"), ["present new 108", "present new 109"]);
    assert_eq!(memory.story_of("born"), ["present born 110", "present born 115"]);
    assert_eq!(memory.story_of("gone"), ["present gone 104", "present gone 111", "gone gone 112"]);
    assert_eq!(memory.story_of("brief"), ["present brief 116", "gone brief 117"]);
    assert_eq!(discrepancies, 5);
    no_gaps(&memory);
}

#[tokio::test]
async fn an_object_that_left_and_came_back_unseen_has_no_gap_over_what_was_witnessed() {
    let tuning = WatchTuning { audit_grace: Duration::from_millis(150), ..tuning() };
    let (world, memory, running) = selected("ml", json!({"audit": "100ms"}), tuning).await;
    let team = |name: &'static str| move |x: &mut Value| x["metadata"]["labels"]["team"] = json!(name);
    world.change("x", team("another"));
    until("it left", || memory.story_of("x").len() == 2).await;
    world.compact();
    world.pass(1);
    world.quiet(true);
    world.change("x", team("ml"));
    world.quiet(false);
    world.bookmark();
    until("it is found", || memory.story_of("x").len() == 3).await;
    running.stop().await;
    assert_eq!(memory.story_of("x"), ["present x 102", "left x 103", "present x 105"]);
    no_gaps(&memory);
}

/// Sends the last events of `x` in the wrong order and in one piece.
fn upside_down(world: &WatchWorld) {
    let log = world.log();
    let lines: String = log.iter().rev().take(2).map(|entry| entry.line()).collect();
    world.send(&lines);
}

#[tokio::test]
async fn what_is_overtaken_by_the_end_of_its_object_brings_nobody_back() {
    let (world, memory, running) = started(&["other", "x"]).await;
    world.quiet(true);
    world.update("x");
    world.delete("x");
    world.quiet(false);
    upside_down(&world);
    until("both came", || memory.story_of("x").len() == 3).await;
    world.update("other");
    level(&world, &memory).await;
    let view = running.handle.snapshot_view();
    assert_eq!((view.objects, view.counts.discrepancies), (1, 0));
    running.stop().await;
    assert_eq!(memory.story_of("x"), ["present x 102", "gone x 104", "present x 103"]);
    no_gaps(&memory);
}

#[tokio::test]
async fn what_is_overtaken_by_the_leaving_of_its_object_brings_nobody_back() {
    let (world, memory, running) = selected("ml", json!({}), tuning()).await;
    world.quiet(true);
    world.update("x");
    world.change("x", |x| x["metadata"]["labels"]["team"] = json!("another"));
    world.quiet(false);
    upside_down(&world);
    until("both came", || memory.story_of("x").len() == 3).await;
    world.update("other");
    until("it goes on", || memory.story_of("other").len() == 2).await;
    let view = running.handle.snapshot_view();
    assert_eq!((view.objects, view.counts.discrepancies), (1, 0));
    running.stop().await;
    assert_eq!(memory.story_of("x"), ["present x 102", "left x 104", "present x 103"]);
    no_gaps(&memory);
}

/// The next list contains only `other`, which was created second.
fn lists_other_alone(world: &WatchWorld) {
    let other = world.log().into_iter().rfind(|entry| entry.uid() == "uid-2").unwrap().object;
    let version = world.version().to_string();
    let mut left = 1;
    world.spoil(move |request| {
        let is_list = request.contains("limit=3") && left > 0;
        left -= i32::from(is_list);
        let list = json!({"kind": "JobList", "apiVersion": "batch/v1",
            "metadata": {"resourceVersion": version}, "items": [other]});
        is_list.then(|| CannedReply { status: 200, headers: String::new(), body: list.to_string() })
    });
}

#[tokio::test]
async fn a_list_that_lacks_an_object_that_is_there_ends_nobody() {
    let (world, memory, running) = started(&["a", "other"]).await;
    away(&world).await;
    world.update("other");
    world.update("a");
    world.forget();
    let all = world.live();
    lists_other_alone(&world);
    settled(&world, &memory).await;
    assert_eq!(memory.current(), all);
    world.delete("a");
    level(&world, &memory).await;
    running.stop().await;
    assert_eq!(memory.story_of("a"), ["present a 101", "present a 104", "gone a 105"]);
    no_gaps(&memory);
}

#[tokio::test]
async fn a_list_that_waits_for_what_is_read_back_says_so() {
    let (world, memory, running) = started(&["a"]).await;
    let busy = Arc::new(AtomicBool::new(true));
    let is_busy = Arc::clone(&busy);
    world.spoil(move |request| {
        let is_hit = request.contains("resourceVersionMatch=Exact") && is_busy.load(Ordering::SeqCst);
        is_hit.then(|| CannedReply::status(429, "TooManyRequests"))
    });
    lose_x(&world).await;
    world.forget();
    world.cut();
    let condition = || running.handle.snapshot_view().condition.unwrap_or_default();
    until("it is said", || condition().contains("missed versions are read back")).await;
    busy.store(false, Ordering::SeqCst);
    level(&world, &memory).await;
    running.watching(&world).await;
    assert_eq!(condition(), "");
    running.stop().await;
    assert_eq!(memory.story_of("x"), ["present x 102", "present x 103"]);
}

/// Loses the beginning of `x`; a change proves the loss.
async fn lose_x(world: &WatchWorld) {
    world.quiet(true);
    world.create("x", json!({}));
    world.quiet(false);
    world.update("x");
    until("it is asked for", || !world.requests("resourceVersionMatch=Exact").is_empty()).await;
}

#[tokio::test]
async fn an_end_that_shows_a_lost_end_before_it_under_the_same_name_brings_both_stories() {
    let (world, memory, running) = started(&["other", "a"]).await;
    lose(&world, &memory, || {
        world.update("a");
        world.delete("a");
        world.create("a", json!({}));
    })
    .await;
    world.delete("a");
    until("both ends", || memory.story_of("a").len() == 5).await;
    running.stop().await;
    assert_eq!(
        memory.story_of("a"),
        ["present a 102", "present a 103", "gone a 104", "present a 105", "gone a 107"]
    );
    no_gaps(&memory);
}

#[tokio::test]
async fn an_end_in_a_selector_shows_that_its_object_was_in_it() {
    let (world, memory, running) = selected("another", json!({}), tuning()).await;
    lose(&world, &memory, || world.change("x", |x| x["metadata"]["labels"]["team"] = json!("ml"))).await;
    world.delete("x");
    until("its end", || memory.story_of("x").len() == 2).await;
    running.stop().await;
    assert_eq!(memory.story_of("x"), ["present x 103", "gone x 105"]);
    no_gaps(&memory);
}

#[tokio::test]
async fn a_list_that_lacks_an_object_ends_nobody_where_old_versions_cannot_be_read_either() {
    let (world, memory, running) = started(&["a", "other"]).await;
    away(&world).await;
    world.update("other");
    world.forget();
    world.spoil(|request| {
        request.contains("resourceVersionMatch=Exact").then(|| CannedReply::status(400, "BadRequest"))
    });
    lists_other_alone(&world);
    settled(&world, &memory).await;
    world.delete("a");
    level(&world, &memory).await;
    running.stop().await;
    assert_eq!(memory.story_of("a"), ["present a 101", "gone a 104"]);
}

#[tokio::test]
async fn what_is_read_back_of_a_history_that_was_replaced_holds_nobody_up() {
    let (world, memory, running) = started(&["other"]).await;
    world.spoil(|request| {
        // The restored server does not have this version yet.
        let is_hit = request.contains("resourceVersionMatch=Exact") && request.contains("metadata.name");
        is_hit.then(|| CannedReply::status(504, "Timeout"))
    });
    lose_x(&world).await;
    world.restore(101);
    world.cut();
    until("the new epoch", || {
        running.handle.snapshot_view().epoch == 1 && running.handle.snapshot_view().synced
    })
    .await;
    until("nothing is read back any more", || running.handle.snapshot_view().walking == 0).await;
    world.create("x", json!({}));
    level(&world, &memory).await;
    running.stop().await;
}
