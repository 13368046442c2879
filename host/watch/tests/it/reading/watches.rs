//! Tests of watches that end, stall, repeat themselves or come from the wrong server.

use kubewitness_core::state::Change;

use crate::*;

#[tokio::test]
async fn row_1_a_watch_that_closes_is_resumed_without_a_list() {
    let (world, memory, running) = started(&["a"]).await;
    let lists = world.requests("limit=3").len();
    for _ in 0..3 {
        let watches = world.requests("watch=true").len();
        world.close();
        world.update("a");
        until("another watch", || world.requests("watch=true").len() > watches).await;
        running.watching(&world).await;
    }
    level(&world, &memory).await;
    running.stop().await;
    assert_eq!(memory.story_of("a").len(), 4);
    assert_eq!(world.requests("limit=3").len(), lists);
}

#[tokio::test]
async fn row_2_a_cut_frame_is_thrown_away_and_comes_again() {
    let (world, memory, running) = started(&["a"]).await;
    world.quiet(true);
    world.update("a");
    let line = world.log().last().unwrap().line();
    world.send(&line[..line.len() / 2]);
    world.quiet(false);
    until("half a frame is read", || running.handle.snapshot_view().counts.bytes > 0).await;
    world.cut();
    level(&world, &memory).await;
    assert!(running.handle.snapshot_view().counts.discarded_bytes > 0);
    running.stop().await;
    assert_eq!(memory.story_of("a"), ["present a 101", "present a 102"]);
    assert!(memory.poison().is_empty());
}

#[tokio::test]
async fn row_3_an_object_of_three_megabytes_is_one_state() {
    let (world, memory, running) = started(&["a"]).await;
    world.change("a", |object| object["spec"]["big"] = json!("x".repeat(3 * 1024 * 1024)));
    world.update("a");
    level(&world, &memory).await;
    running.stop().await;
    assert_eq!(memory.story_of("a").len(), 3);
    assert!(memory.states()[1].document.len() > 3 * 1024 * 1024);
}

#[tokio::test]
async fn row_5_an_expired_watch_as_an_http_status_is_the_same() {
    let (world, memory, running) = started(&["a"]).await;
    world.spoil_once("watch=true", CannedReply::status(410, "Expired"));
    world.close();
    until("a second list", || running.handle.snapshot_view().counts.lists_expired == 1).await;
    running.watching(&world).await;
    world.update("a");
    level(&world, &memory).await;
    assert_eq!(running.handle.snapshot_view().counts.expired, 1);
    running.stop().await;
    assert_eq!(memory.story_of("a").len(), 2);
}

#[tokio::test]
async fn row_8_a_passing_504_is_tried_again_and_makes_no_epoch() {
    let (world, memory, running) = started(&["a"]).await;
    world.spoil_once("limit=1", CannedReply::status(504, "Timeout"));
    world.close();
    world.update("a");
    level(&world, &memory).await;
    running.watching(&world).await;
    assert_eq!(running.handle.snapshot_view().epoch, 0);
    running.stop().await;
}

#[tokio::test]
async fn rows_9_and_10_a_server_behind_the_checkpoint_makes_an_epoch_and_a_gap() {
    let (world, memory, running) = started(&["a", "b"]).await;
    world.update("a");
    world.update("a");
    world.delete("b");
    level(&world, &memory).await;
    running.stop().await;
    memory.set_checkpoint(105);
    // The backup is older than the deletion of b and the two updates of a.
    world.restore(103);
    let running = RunningSource::start(&world, &memory).await;
    level(&world, &memory).await;
    until("the new epoch", || {
        running.handle.snapshot_view().epoch == 1 && running.handle.snapshot_view().synced
    })
    .await;
    world.update("a");
    level(&world, &memory).await;
    running.stop().await;
    let gaps = memory.source_gaps();
    let told: Vec<_> = gaps.iter().map(|gap| (gap.epoch, gap.after.as_str(), gap.before.as_str())).collect();
    assert_eq!(told, [(0, "105", "")], "what the old had to say; all of the new one is known");
    assert!(gaps.iter().all(|gap| gap.reason == "HistoryReplaced"));
    // Version 104 exists in both histories. Version 103 does not record when it was written, and could be
    // equal in both by chance. So it is told again.
    assert_eq!(
        memory.story_of("a"),
        [
            "present a 101",
            "present a 103",
            "present a 104",
            "present a 101",
            "present a 103",
            "present a 104"
        ]
    );
    assert_eq!(memory.story_of("b"), ["present b 102", "gone b 105", "present b 102"]);
}

/// The source has witnessed up to 107. The server was restored to its state at 104, and goes on from 105.
async fn restored_and_lived_on() -> (WatchWorld, Arc<MemoryWitness>) {
    let world = WatchWorld::start().await;
    world.dated();
    for name in ["a", "b", "kept"] {
        world.create(name, json!({}));
    }
    let memory = Arc::new(MemoryWitness::default());
    let running = RunningSource::start(&world, &memory).await;
    running.watching(&world).await;
    world.update("a");
    world.create("old", json!({}));
    world.delete("b");
    world.update("kept");
    level(&world, &memory).await;
    running.stop().await;
    world.restore(104);
    world.create("new", json!({}));
    world.update("a");
    world.delete("new");
    world.update("b");
    world.update("a");
    world.forget();
    (world, memory)
}

async fn story_of_the_new_one(world: &WatchWorld, memory: &Arc<MemoryWitness>) -> Vec<String> {
    let running = RunningSource::start(world, memory).await;
    until("the new epoch", || {
        running.handle.snapshot_view().epoch == 1 && running.handle.snapshot_view().synced
    })
    .await;
    settled(world, memory).await;
    running.stop().await;
    let states = memory.states();
    let anew = states.iter().filter(|state| state.id.as_str().starts_with("jobs/1/"));
    anew.map(|state| format!("{} {} {}", state.change.as_str(), state.object.name, state.resource_version))
        .collect()
}

#[tokio::test]
async fn row_9_a_new_history_is_read_from_the_newest_write_that_both_have() {
    let (world, memory) = restored_and_lived_on().await;
    let mut story = story_of_the_new_one(&world, &memory).await;
    // First comes the state where both histories parted, then what happened, in order for each object.
    story.sort_by_key(|state| state.split(' ').nth(1).map(ToString::to_string));
    assert_eq!(
        story,
        [
            "present a 106",
            "present a 109",
            "present b 102",
            "present b 108",
            "present kept 103",
            "present new 105",
            "gone new 107",
            "gone old ",
        ]
    );
    assert_eq!(bounds(&memory), [(0, "".into(), "".into())], "all of the new one could be read");
    assert_eq!(memory.object_gaps(), []);
}

/// The epoch, and the bounds of what was missed, if they are known.
fn bounds(memory: &MemoryWitness) -> Vec<(u32, String, String)> {
    let gaps = memory.source_gaps().into_iter();
    gaps.map(|gap| (gap.epoch, if gap.epoch == 0 { String::new() } else { gap.after }, gap.before)).collect()
}

#[tokio::test]
async fn row_9_what_of_a_new_history_was_compacted_is_a_gap() {
    let (world, memory) = restored_and_lived_on().await;
    world.compact_to(107);
    story_of_the_new_one(&world, &memory).await;
    // The newest common write that can still be read at 107 is that of `kept`.
    assert_eq!(bounds(&memory), [(0, "".into(), "".into()), (1, "103".into(), "108".into())]);
    let of_objects: Vec<_> =
        memory.object_gaps().into_iter().map(|(name, gap)| (name, gap.after, gap.before)).collect();
    let hole = |name: &str, before: &str| (name.to_string(), "103".to_string(), before.to_string());
    assert_eq!(of_objects, [hole("a", "106"), hole("old", "107")]);
}

/// These objects were created while nobody watched, and ended long before the old history is known to have
/// been alone.
#[tokio::test]
async fn row_9_whoever_the_new_history_may_have_had_has_a_gap_and_whoever_came_later_has_none() {
    let world = WatchWorld::start().await;
    world.dated();
    world.create("a", json!({"team": "ml"}));
    let memory = Arc::new(MemoryWitness::default());
    let spec = || spec(json!({"matchLabels": {"team": "ml"}}));
    let running = RunningSource::start_with(&world, &memory, spec(), tuning()).await;
    running.watching(&world).await;
    world.update("a");
    world.create("unseen", json!({}));
    world.pass(200);
    world.change("unseen", |object| object["metadata"]["labels"] = json!({"team": "ml"}));
    world.update("a");
    settled(&world, &memory).await;
    running.stop().await;
    world.restore(103);
    world.pass(20);
    world.change("unseen", |object| object["metadata"]["labels"] = json!({"team": "ml"}));
    world.delete("unseen");
    world.pass(130);
    world.forget();
    let running = RunningSource::start_with(&world, &memory, spec(), tuning()).await;
    until("the new epoch", || {
        running.handle.snapshot_view().epoch == 1 && running.handle.snapshot_view().synced
    })
    .await;
    settled(&world, &memory).await;
    running.stop().await;
    let gaps: Vec<_> =
        memory.object_gaps().into_iter().map(|(name, gap)| (name, gap.after, gap.before)).collect();
    assert_eq!(gaps, [("unseen".to_string(), "102".to_string(), "256".to_string())]);
    assert_eq!(memory.story_of("unseen"), ["present unseen 304", "gone unseen "]);
}

/// The server stops answering for old versions, so the present objects are listed.
#[tokio::test]
async fn row_9_a_new_history_that_can_not_be_read_back_is_listed_all_the_same() {
    for code in [400, 501] {
        let (world, memory) = restored_and_lived_on().await;
        world.spoil(move |request| {
            let is_page = request.contains("resourceVersionMatch=Exact") && !request.contains("limit=1&");
            let is_page = is_page && !request.contains("metadata.name");
            is_page.then(|| CannedReply::status(code, "Refused"))
        });
        story_of_the_new_one(&world, &memory).await;
        assert_eq!(bounds(&memory), [(0, "".into(), "".into()), (1, "".into(), "110".into())]);
    }
}

#[tokio::test]
async fn row_11_deletions_that_share_a_version_all_come_once_over_a_kill() {
    let (world, memory) = (WatchWorld::start().await, Arc::new(MemoryWitness::default()));
    let names: Vec<String> = (0..12).map(|number| format!("lease-{number:02}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    for name in &names {
        world.create(name, json!({}));
    }
    let running = RunningSource::start(&world, &memory).await;
    running.watching(&world).await;
    world.quiet(true);
    world.delete_together(&names);
    let lines: Vec<_> =
        world.log().iter().filter(|entry| entry.kind == "DELETED").map(|e| e.line()).collect();
    for line in &lines[..5] {
        world.send(line);
    }
    until("five", || memory.states().iter().filter(|state| state.change == Change::Gone).count() == 5).await;
    running.task.abort();
    world.cut();
    world.quiet(false);
    let running = RunningSource::start(&world, &memory).await;
    level(&world, &memory).await;
    running.stop().await;
    let gone: Vec<_> = memory.states().into_iter().filter(|state| state.change == Change::Gone).collect();
    assert_eq!(gone.len(), 12);
    assert!(memory.source_gaps().is_empty());
}

#[tokio::test]
async fn rows_14_and_15_an_event_twice_is_one_state_and_a_stale_one_is_refused() {
    let (world, memory, running) = started(&["a"]).await;
    world.update("a");
    world.update("a");
    level(&world, &memory).await;
    let log = world.log();
    world.send(&log[2].line());
    world.send(&log[1].line());
    until("both were counted", || {
        let counts = running.handle.snapshot_view().counts;
        (counts.duplicates, counts.stale) == (1, 1)
    })
    .await;
    running.stop().await;
    assert_eq!(memory.story_of("a").len(), 3);
    assert_eq!(memory.current(), world.live());
}

#[tokio::test]
async fn row_21_a_half_open_connection_is_found_by_the_idle_deadline() {
    let (world, memory) = (WatchWorld::start().await, Arc::new(MemoryWitness::default()));
    world.create("a", json!({}));
    let tuning = WatchTuning { idle: Duration::from_millis(200), ..tuning() };
    let running = RunningSource::start_with(&world, &memory, spec(json!({})), tuning).await;
    running.watching(&world).await;
    world.quiet(true);
    world.update("a");
    world.quiet(false);
    level(&world, &memory).await;
    running.stop().await;
    assert_eq!(world.requests("limit=3").len(), 1);
}

#[tokio::test]
async fn an_error_frame_ends_a_stream_that_the_server_keeps_open() {
    let (world, memory, running) = started(&["a"]).await;
    let error = json!({"type": "ERROR", "object": {"kind": "Status", "code": 500, "reason": "InternalError",
        "message": "etcd is away"}});
    world.send(&format!("{error}\n"));
    until("the watch is made again", || world.requests("watch=true").len() == 2).await;
    world.update("a");
    level(&world, &memory).await;
    running.stop().await;
}

/// A server was restored to version 102 and has counted on beyond the witnessed versions. It wrote something
/// else, except one version that is equal in both histories.
async fn restored_unnoticed() -> (WatchWorld, Arc<MemoryWitness>) {
    let (world, memory, running) = started(&["a", "b"]).await;
    while world.version() < 127 {
        world.update("b");
    }
    world.create("c", json!({}));
    world.update("a");
    settled(&world, &memory).await;
    running.stop().await;
    world.restore(102);
    while world.version() < 128 {
        world.create(&format!("other-{}", world.version()), json!({}));
    }
    (world, memory)
}

async fn assert_noticed(world: &WatchWorld, memory: &Arc<MemoryWitness>) {
    let running = RunningSource::start(world, memory).await;
    until("the new epoch", || {
        running.handle.snapshot_view().epoch == 1 && running.handle.snapshot_view().synced
    })
    .await;
    level(world, memory).await;
    running.stop().await;
    assert!(memory.source_gaps().iter().all(|gap| gap.reason == "HistoryReplaced"));
}

#[tokio::test]
async fn a_restored_history_that_shares_the_newest_version_is_told_apart_by_an_older_one() {
    let (world, memory) = restored_unnoticed().await;
    // The same content at the same version.
    world.update("a");
    assert_eq!(world.version(), 129);
    while world.version() < 140 {
        world.create(&format!("more-{}", world.version()), json!({}));
    }
    assert_noticed(&world, &memory).await;
}

#[tokio::test]
async fn a_restored_history_is_told_apart_although_the_server_is_busy_for_a_moment() {
    for reply in [CannedReply::status(429, "TooManyRequests"), CannedReply::status(504, "Timeout")] {
        let (world, memory) = restored_unnoticed().await;
        while world.version() < 140 {
            world.create(&format!("more-{}", world.version()), json!({}));
        }
        let mut left = 2;
        world.spoil(move |request| {
            let is_hit = left > 0 && request.contains("resourceVersionMatch=Exact");
            left -= i32::from(is_hit);
            is_hit.then(|| reply.clone())
        });
        assert_noticed(&world, &memory).await;
    }
}

/// A bookmark has moved the checkpoint of a quiet source. The server was restored from a backup before the
/// bookmark, so everything witnessed is equal in both histories.
async fn restored_behind_the_bookmark() -> (WatchWorld, Arc<MemoryWitness>) {
    let (world, memory, running) = started(&["a", "b"]).await;
    world.update("a");
    level(&world, &memory).await;
    world.pass(20);
    settled(&world, &memory).await;
    assert_eq!(memory.checkpoint().unwrap(), "123");
    running.stop().await;
    world.restore(103);
    (world, memory)
}

/// Nothing contradicts the witnessed states: it is one history, of which something was missed.
async fn assert_read_back(world: &WatchWorld, memory: &Arc<MemoryWitness>) {
    let running = RunningSource::start(world, memory).await;
    until("it is found", || running.handle.snapshot_view().counts.discrepancies > 0).await;
    level(world, memory).await;
    let view = running.handle.snapshot_view();
    assert_eq!((view.epoch, view.counts.epochs), (0, 0));
    running.stop().await;
    assert_eq!((memory.source_gaps(), memory.object_gaps()), (Vec::new(), Vec::new()));
}

#[tokio::test]
async fn a_backup_from_before_the_bookmark_is_told_apart_by_what_is_there_at_the_checkpoint() {
    let other_deeds: [fn(&WatchWorld); 3] =
        [|world| world.update("b"), |world| drop(world.create("c", json!({}))), |world| world.delete("a")];
    for deed in other_deeds {
        let (world, memory) = restored_behind_the_bookmark().await;
        deed(&world);
        world.pass(40);
        assert_read_back(&world, &memory).await;
    }
}

#[tokio::test]
async fn of_a_list_of_several_pages_the_count_tells_it_apart() {
    let (world, memory, running) = started(&["a", "b", "c", "d", "e"]).await;
    world.pass(20);
    settled(&world, &memory).await;
    running.stop().await;
    world.restore(105);
    world.create("f", json!({}));
    world.pass(40);
    assert_read_back(&world, &memory).await;
}

#[tokio::test]
async fn a_backup_in_which_nothing_else_happened_is_the_same_history() {
    let (world, memory) = restored_behind_the_bookmark().await;
    world.pass(40);
    let running = RunningSource::start(&world, &memory).await;
    running.watching(&world).await;
    world.update("a");
    level(&world, &memory).await;
    assert_eq!(running.handle.snapshot_view().epoch, 0);
    running.stop().await;
    assert_eq!(memory.source_gaps(), []);
}

#[tokio::test]
async fn what_is_there_at_the_checkpoint_is_asked_for_only_after_a_connection_was_lost() {
    let (world, memory, running) = started(&["a"]).await;
    let censuses = |world: &WatchWorld| {
        let exact = world.requests("resourceVersionMatch=Exact");
        exact.iter().filter(|request| !request.contains("fieldSelector")).count()
    };
    for (lost, expected) in [(false, 0), (true, 1), (false, 1)] {
        world.pass(5);
        settled(&world, &memory).await;
        let watches = world.requests("watch=true").len();
        if lost {
            world.cut();
        } else {
            world.close();
        }
        until("it watches again", || world.requests("watch=true").len() > watches).await;
        running.watching(&world).await;
        assert_eq!(censuses(&world), expected);
    }
    running.stop().await;
    assert_eq!(memory.source_gaps(), []);
}

#[tokio::test]
async fn a_server_that_never_tells_of_old_versions_is_watched_all_the_same() {
    let (world, memory, running) = started(&["a"]).await;
    world.spoil(|request| {
        request.contains("resourceVersionMatch=Exact").then(|| CannedReply::status(504, "Timeout"))
    });
    world.close();
    world.update("a");
    level(&world, &memory).await;
    assert_eq!(running.handle.snapshot_view().epoch, 0);
    running.stop().await;
}

#[tokio::test]
async fn a_watch_that_brings_no_event_is_not_opened_again_and_again_and_is_no_sign_of_life() {
    let (world, memory, running) = started(&["a"]).await;
    for body in ["", "<html>\n", "{\"type\":\"ADDED\",\"object\":{\"kind\":\"Job\"}}\n", "no line at all"] {
        let spoiled = Arc::new(std::sync::atomic::AtomicBool::new(true));
        let still = Arc::clone(&spoiled);
        world.spoil(move |request| {
            let is_spoiled =
                request.contains("watch=true") && still.load(std::sync::atomic::Ordering::SeqCst);
            is_spoiled.then(|| CannedReply { status: 200, headers: String::new(), body: body.to_string() })
        });
        world.close();
        until("a condition", || {
            let view = running.handle.snapshot_view();
            !view.synced && view.condition.is_some_and(|told| told.contains("watching brings nothing"))
        })
        .await;
        let before = world.requests("watch=true").len();
        tokio::time::sleep(Duration::from_millis(500)).await;
        let opened = world.requests("watch=true").len() - before;
        // Pauses are between 25 and 50 ms.
        assert!(opened <= 30, "{opened} watches in half a second of `{body}`");
        let view = running.handle.snapshot_view();
        assert!(
            !view.synced && view.condition.is_some(),
            "each watch that is taken changes nothing: {view:?}"
        );
        spoiled.store(false, std::sync::atomic::Ordering::SeqCst);
        until("the source watches", || world.watches() > 0).await;
        world.update("a");
        level(&world, &memory).await;
        until("all is well", || {
            let view = running.handle.snapshot_view();
            view.synced && view.condition.is_none()
        })
        .await;
    }
    running.stop().await;
}
