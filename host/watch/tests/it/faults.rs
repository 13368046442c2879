//! One named fault, one test. The rows are those of the table of faults.

use kubewitness_core::ports::JournalError;
use kubewitness_core::state::Change;

use super::world::Reply;
use super::*;

async fn started(names: &[&str]) -> (World, Arc<Memory>, Running) {
    let (world, memory) = (World::start().await, Arc::new(Memory::default()));
    for name in names {
        world.create(name, json!({}));
    }
    let running = Running::start(&world, &memory).await;
    running.watching(&world).await;
    (world, memory, running)
}

/// Disconnected: what happens now is not watched.
pub async fn away(world: &World) {
    world.spoil({
        let mut refusals = 3;
        move |request| {
            refusals -= i32::from(request.contains("watch=true"));
            (refusals > 0 && request.contains("watch=true")).then(|| Reply::status(503, "ServiceUnavailable"))
        }
    });
    world.cut();
    until("the stream ends", || world.watches() == 0).await;
}

/// Waits until everything that was missed is read back: then the checkpoint moves on.
pub async fn settled(world: &World, memory: &Memory) {
    until("settled", || {
        world.bookmark();
        memory.checkpoint().is_some_and(|checkpoint| checkpoint == world.version().to_string())
    })
    .await;
}

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
    until("half a frame is read", || running.handle.view().counts.bytes > 0).await;
    world.cut();
    level(&world, &memory).await;
    assert!(running.handle.view().counts.discarded_bytes > 0);
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
async fn rows_4_and_22_an_expired_watch_is_walked_back_without_a_gap_of_an_object() {
    let (world, memory, running) = started(&["a", "b", "c", "d"]).await;
    away(&world).await;
    world.update("a");
    world.update("a");
    world.update("a");
    world.create("new", json!({}));
    world.update("new");
    world.forget();
    level(&world, &memory).await;
    running.watching(&world).await;
    running.stop().await;
    assert_eq!(memory.story_of("a"), ["present a 101", "present a 105", "present a 106", "present a 107"]);
    assert_eq!(memory.story_of("new"), ["present new 108", "present new 109"]);
    assert_eq!(memory.object_gaps(), []);
    assert_eq!(memory.checkpoint().as_deref(), Some("109"));
}

#[tokio::test]
async fn row_5_an_expired_watch_as_an_http_status_is_the_same() {
    let (world, memory, running) = started(&["a"]).await;
    world.spoil_once("watch=true", Reply::status(410, "Expired"));
    world.close();
    until("a second list", || running.handle.view().counts.lists_expired == 1).await;
    running.watching(&world).await;
    world.update("a");
    level(&world, &memory).await;
    assert_eq!(running.handle.view().counts.expired, 1);
    running.stop().await;
    assert_eq!(memory.story_of("a").len(), 2);
}

#[tokio::test]
async fn rows_6_and_7_a_page_that_expires_starts_the_list_again_without_half_a_checkpoint() {
    let (world, memory) = (World::start().await, Arc::new(Memory::default()));
    for name in ["a", "b", "c", "d"] {
        world.create(name, json!({}));
    }
    let seen = Arc::clone(&memory);
    let mut once = true;
    world.spoil(move |request| {
        if !request.contains("continue=") || !std::mem::take(&mut once) {
            return None;
        }
        assert_eq!(seen.checkpoint(), None, "half a list is no checkpoint");
        Some(Reply::status(410, "Expired"))
    });
    let running = Running::start(&world, &memory).await;
    running.watching(&world).await;
    running.stop().await;
    assert_eq!(memory.story().len(), 4);
    assert_eq!(world.requests("limit=3").len(), 4);
    assert_eq!(memory.checkpoint().as_deref(), Some("104"));
}

#[tokio::test]
async fn a_list_whose_pages_always_expire_is_made_in_one_piece() {
    let (world, memory) = (World::start().await, Arc::new(Memory::default()));
    for name in ["a", "b", "c", "d"] {
        world.create(name, json!({}));
    }
    world.spoil(|request| request.contains("continue=").then(|| Reply::status(410, "Expired")));
    let running = Running::start(&world, &memory).await;
    running.watching(&world).await;
    running.stop().await;
    assert_eq!(memory.story().len(), 4);
}

#[tokio::test]
async fn row_8_a_passing_504_is_tried_again_and_makes_no_epoch() {
    let (world, memory, running) = started(&["a"]).await;
    world.spoil_once("limit=1", Reply::status(504, "Timeout"));
    world.close();
    world.update("a");
    level(&world, &memory).await;
    running.watching(&world).await;
    assert_eq!(running.handle.view().epoch, 0);
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
    // The backup is from before b was deleted and a was updated twice.
    world.restore(103);
    let running = Running::start(&world, &memory).await;
    level(&world, &memory).await;
    until("the new epoch", || running.handle.view().epoch == 1 && running.handle.view().synced).await;
    world.update("a");
    level(&world, &memory).await;
    running.stop().await;
    let gaps = memory.source_gaps();
    let told: Vec<_> = gaps.iter().map(|gap| (gap.epoch, gap.after.as_str(), gap.before.as_str())).collect();
    assert_eq!(told, [(0, "105", ""), (1, "", "104")], "what the old had to say, and where the new begins");
    assert!(gaps.iter().all(|gap| gap.reason == "HistoryReplaced"));
    // Version 104 is there twice, in two histories.
    assert_eq!(
        memory.story_of("a"),
        ["present a 101", "present a 103", "present a 104", "present a 103", "present a 104"]
    );
    assert_eq!(memory.story_of("b"), ["present b 102", "gone b 105", "present b 102"]);
}

#[tokio::test]
async fn row_11_deletions_that_share_a_version_all_come_once_over_a_kill() {
    let (world, memory) = (World::start().await, Arc::new(Memory::default()));
    let names: Vec<String> = (0..12).map(|number| format!("lease-{number:02}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    for name in &names {
        world.create(name, json!({}));
    }
    let running = Running::start(&world, &memory).await;
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
    let running = Running::start(&world, &memory).await;
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
        let counts = running.handle.view().counts;
        (counts.duplicates, counts.stale) == (1, 1)
    })
    .await;
    running.stop().await;
    assert_eq!(memory.story_of("a").len(), 3);
    assert_eq!(memory.current(), world.live());
}

#[tokio::test]
async fn row_16_a_name_that_is_used_again_ends_the_old_object_first() {
    let (world, memory, running) = started(&["a", "b"]).await;
    away(&world).await;
    world.update("a");
    world.delete("a");
    world.create("a", json!({}));
    world.update("a");
    world.forget();
    level(&world, &memory).await;
    running.stop().await;
    assert_eq!(
        memory.story_of("a"),
        ["present a 101", "present a 103", "gone a 104", "present a 105", "present a 106"]
    );
    assert_eq!(memory.object_gaps(), []);
}

#[tokio::test]
async fn row_17_what_came_and_went_meanwhile_is_found_with_its_whole_life() {
    let (world, memory, running) = started(&["a"]).await;
    away(&world).await;
    world.create("brief", json!({}));
    world.update("brief");
    world.create("other", json!({}));
    world.delete("brief");
    world.update("a");
    world.delete("other");
    world.update("a");
    world.forget();
    level(&world, &memory).await;
    settled(&world, &memory).await;
    running.stop().await;
    assert_eq!(memory.story_of("brief"), ["present brief 102", "present brief 103", "gone brief 105"]);
    assert_eq!(memory.story_of("other"), ["present other 104", "gone other 107"]);
    assert_eq!(memory.story_of("a"), ["present a 101", "present a 106", "present a 108"]);
    assert_eq!((memory.source_gaps(), memory.object_gaps()), (vec![], vec![]));
}

#[tokio::test]
async fn row_17_what_compaction_took_lies_in_an_exact_gap_of_the_source() {
    let (world, memory, running) = started(&["a"]).await;
    away(&world).await;
    world.create("lost", json!({}));
    world.delete("lost");
    world.create("half", json!({}));
    world.compact();
    world.update("half");
    world.delete("half");
    world.update("a");
    world.forget();
    level(&world, &memory).await;
    settled(&world, &memory).await;
    running.stop().await;
    let gaps = memory.source_gaps();
    let bounds: Vec<_> = gaps.iter().map(|gap| (gap.after.as_str(), gap.before.as_str())).collect();
    // Version 104 can still be read: there, `half` is found as it was created.
    assert_eq!(bounds, [("101", "104")]);
    assert_eq!(gaps[0].reason, "Compacted");
    assert!(memory.story_of("lost").is_empty());
    assert_eq!(memory.story_of("half"), ["present half 104", "present half 105", "gone half 106"]);
}

#[tokio::test]
async fn row_16_a_chain_of_one_name_is_told_in_order() {
    let (world, memory, running) = started(&["a", "b"]).await;
    away(&world).await;
    world.delete("a");
    world.create("a", json!({}));
    world.delete("a");
    world.update("b");
    world.create("a", json!({}));
    world.update("a");
    world.delete("a");
    world.create("a", json!({}));
    world.update("b");
    world.forget();
    level(&world, &memory).await;
    settled(&world, &memory).await;
    running.stop().await;
    let story = [
        "present a 101",
        "gone a 103",
        "present a 104",
        "gone a 105",
        "present a 107",
        "present a 108",
        "gone a 109",
        "present a 110",
    ];
    assert_eq!(memory.story_of("a"), story);
    assert_eq!((memory.source_gaps(), memory.object_gaps()), (vec![], vec![]));
}

#[tokio::test]
async fn a_server_that_counts_nothing_leaves_a_gap_and_is_said_to_be_limited() {
    let (world, memory, running) = started(&["a", "b"]).await;
    away(&world).await;
    world.create("brief", json!({}));
    world.delete("brief");
    world.update("a");
    world.count_nothing(true);
    world.forget();
    level(&world, &memory).await;
    settled(&world, &memory).await;
    let limitation = running.handle.view().limitation.unwrap_or_default();
    assert!(limitation.contains("doesn't say how many"), "{limitation}");
    let gaps = memory.source_gaps();
    assert_eq!(gaps.len(), 1);
    assert_eq!((gaps[0].after.as_str(), gaps[0].before.as_str()), ("102", "106"));
    assert_eq!(gaps[0].reason, "ExactListRefused");
    // It learns.
    world.count_nothing(false);
    away(&world).await;
    world.create("brief", json!({}));
    world.delete("brief");
    world.update("a");
    world.forget();
    settled(&world, &memory).await;
    assert_eq!(running.handle.view().limitation, None);
    running.stop().await;
    assert_eq!(memory.story_of("brief"), ["present brief 106", "gone brief 107"]);
}

#[tokio::test]
async fn a_server_without_exact_lists_leaves_gaps_and_says_so_once() {
    let (world, memory, running) = started(&["a", "b"]).await;
    world.spoil(|request| {
        request.contains("resourceVersionMatch=Exact").then(|| Reply::status(400, "BadRequest"))
    });
    away(&world).await;
    world.update("a");
    world.update("a");
    world.update("b");
    world.update("b");
    world.forget();
    level(&world, &memory).await;
    settled(&world, &memory).await;
    let view = running.handle.view();
    assert!(view.limitation.is_some_and(|text| text.contains("can't be read back")));
    running.stop().await;
    assert_eq!(memory.object_gaps().len(), 2);
    assert!(memory.object_gaps().iter().all(|(_, gap)| gap.reason == "ExactListRefused"));
    assert_eq!(memory.source_gaps().len(), 1);
}

#[tokio::test]
async fn while_one_object_is_read_back_the_others_pass_and_it_waits_in_order() {
    let (world, memory, running) = started(&["slow", "quick"]).await;
    away(&world).await;
    world.update("slow");
    world.update("slow");
    // The way back to it is closed until it is opened.
    let closed = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let still = Arc::clone(&closed);
    world.spoil(move |request| {
        let shut =
            still.load(std::sync::atomic::Ordering::SeqCst) && request.contains("metadata.name%3Dslow");
        shut.then(|| Reply::status(503, "ServiceUnavailable"))
    });
    world.forget();
    until("it is walked back", || running.handle.view().walking == 1).await;
    running.watching(&world).await;
    world.update("slow");
    world.update("quick");
    until("the other passes", || memory.story_of("quick").len() == 2).await;
    assert_eq!(memory.story_of("slow"), ["present slow 101"]);
    assert_eq!(memory.checkpoint().as_deref(), Some("102"), "the old one stays until all is settled");
    closed.store(false, std::sync::atomic::Ordering::SeqCst);
    settled(&world, &memory).await;
    assert_eq!(running.handle.view().walking, 0);
    running.stop().await;
    let story = ["present slow 101", "present slow 103", "present slow 104", "present slow 105"];
    assert_eq!(memory.story_of("slow"), story);
    assert_eq!(memory.object_gaps(), []);
}

#[tokio::test]
async fn row_27_a_kill_in_the_middle_of_a_walk_back_does_it_again_with_the_same_result() {
    let (world, memory, running) = started(&["a", "b", "c"]).await;
    away(&world).await;
    for name in ["a", "b", "c"] {
        world.update(name);
        world.update(name);
    }
    world.create("brief", json!({}));
    world.delete("brief");
    world.update("c");
    let closed = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let still = Arc::clone(&closed);
    world.spoil(move |request| {
        let shut = still.load(std::sync::atomic::Ordering::SeqCst) && request.contains("metadata.name%3Dc");
        shut.then(|| Reply::status(503, "ServiceUnavailable"))
    });
    world.forget();
    until("two are back", || memory.story_of("a").len() == 3 && memory.story_of("b").len() == 3).await;
    running.watching(&world).await;
    world.update("a");
    until("it is watched", || memory.story_of("a").len() == 4).await;
    running.task.abort();
    assert_eq!(memory.checkpoint().as_deref(), Some("103"));
    closed.store(false, std::sync::atomic::Ordering::SeqCst);
    let running = Running::start(&world, &memory).await;
    settled(&world, &memory).await;
    running.stop().await;
    assert_eq!(memory.current(), world.live());
    assert_eq!(memory.story_of("a").len(), 4);
    assert_eq!(memory.story_of("c"), ["present c 103", "present c 108", "present c 109", "present c 112"]);
    assert_eq!(memory.story_of("brief"), ["present brief 110", "gone brief 111"]);
    assert_eq!((memory.source_gaps(), memory.object_gaps()), (vec![], vec![]));
}

#[tokio::test]
async fn with_a_selector_what_matched_for_a_while_is_found() {
    let (world, memory) = (World::start().await, Arc::new(Memory::default()));
    world.create("in", json!({"team": "ml"}));
    world.create("guest", json!({"team": "web"}));
    world.create("out", json!({"team": "web"}));
    let spec = spec(json!({"matchLabels": {"team": "ml"}}));
    let running = Running::start_with(&world, &memory, spec, tuning()).await;
    running.watching(&world).await;
    away(&world).await;
    world.change("guest", |object| object["metadata"]["labels"] = json!({"team": "ml"}));
    world.update("guest");
    world.change("guest", |object| object["metadata"]["labels"] = json!({"team": "web"}));
    world.create("brief", json!({"team": "ml"}));
    world.delete("brief");
    world.create("foreign", json!({"team": "web"}));
    world.delete("foreign");
    world.update("in");
    world.forget();
    until("the update", || memory.story_of("in").len() == 2).await;
    settled(&world, &memory).await;
    running.stop().await;
    assert_eq!(memory.story_of("guest"), ["present guest 104", "present guest 105", "left guest 106"]);
    assert_eq!(memory.story_of("brief"), ["present brief 107", "gone brief 108"]);
    assert!(memory.story_of("foreign").is_empty() && memory.story_of("out").is_empty());
    assert_eq!((memory.source_gaps(), memory.object_gaps()), (vec![], vec![]));
}

#[tokio::test]
async fn row_19_what_does_not_decode_is_kept_as_poison_and_the_rest_goes_on() {
    let (world, memory, running) = started(&["a"]).await;
    let frames = [
        "{\"type\":\"MODIFIED\",\"object\":{\"metadata\":\n",
        "{\"type\":\"SURPRISE\",\"object\":{}}\n",
        "{\"type\":\"ADDED\",\"object\":{\"kind\":\"Job\",\"metadata\":{\"name\":\"nobody\"}}}\n",
        "<html>502</html>\n",
    ];
    for frame in frames {
        world.send(frame);
    }
    world.update("a");
    level(&world, &memory).await;
    until("four", || memory.poison().len() == 4).await;
    running.stop().await;
    assert_eq!(&memory.poison()[0].raw[..], frames[0].trim_end().as_bytes());
    assert_eq!(memory.story_of("a").len(), 2);
}

#[tokio::test]
async fn row_19_a_listed_object_that_does_not_decode_is_poison_and_not_taken_for_deleted() {
    let (world, memory, running) = started(&["a", "b"]).await;
    away(&world).await;
    world.delete("b");
    let list = json!({"kind": "JobList", "apiVersion": "batch/v1", "metadata": {"resourceVersion": "103"},
        "items": [{"metadata": {"name": "a", "uid": 7}}]});
    world.spoil_once("limit=3", Reply { status: 200, headers: String::new(), body: list.to_string() });
    world.forget();
    level(&world, &memory).await;
    until("poison", || memory.poison().len() == 1).await;
    running.stop().await;
    assert_eq!(memory.story_of("a"), ["present a 101"]);
    assert_eq!(memory.story_of("b"), ["present b 102", "gone b 103"]);
}

#[tokio::test]
async fn row_20_the_pause_that_the_server_asks_for_is_kept() {
    let (world, memory, running) = started(&["a"]).await;
    let asked = Arc::new(std::sync::Mutex::new(Vec::new()));
    let times = Arc::clone(&asked);
    world.spoil(move |request| {
        if !request.contains("limit=1") {
            return None;
        }
        let mut times = times.lock().unwrap();
        times.push(std::time::Instant::now());
        (times.len() == 1).then(|| Reply::status(429, "TooManyRequests").with_header("Retry-After: 1"))
    });
    world.close();
    world.update("a");
    level(&world, &memory).await;
    let times = asked.lock().unwrap().clone();
    assert!(times[1] - times[0] >= Duration::from_secs(1), "it was asked to wait for a second");
    running.stop().await;
}

#[tokio::test]
async fn row_21_a_half_open_connection_is_found_by_the_idle_deadline() {
    let (world, memory) = (World::start().await, Arc::new(Memory::default()));
    world.create("a", json!({}));
    let tuning = Tuning { idle: Duration::from_millis(200), ..tuning() };
    let running = Running::start_with(&world, &memory, spec(json!({})), tuning).await;
    running.watching(&world).await;
    world.quiet(true);
    world.update("a");
    world.quiet(false);
    level(&world, &memory).await;
    running.stop().await;
    assert_eq!(world.requests("limit=3").len(), 1);
}

#[tokio::test]
async fn row_23_compaction_leaves_an_exact_gap_for_each_object() {
    let (world, memory, running) = started(&["a", "b", "same"]).await;
    away(&world).await;
    world.update("a");
    world.update("a");
    world.update("b");
    world.compact();
    world.update("a");
    world.update("a");
    world.forget();
    level(&world, &memory).await;
    running.stop().await;
    let gaps = memory.object_gaps();
    let bounds: Vec<_> =
        gaps.iter().map(|(name, gap)| (name.as_str(), gap.after.as_str(), gap.before.as_str())).collect();
    // At the compacted version, 106, a can still be read as it was since 105, and b as it was
    // since 106: what lies before those is lost, and nothing else.
    assert_eq!(bounds.iter().filter(|(name, ..)| *name == "a").collect::<Vec<_>>(), [&("a", "103", "105")]);
    assert_eq!(bounds.iter().filter(|(name, ..)| *name == "b").collect::<Vec<_>>(), [&("b", "103", "106")]);
    assert_eq!(bounds.len(), 2);
    assert!(gaps.iter().all(|(_, gap)| gap.reason == "Compacted" && gap.object.is_some()));
    assert_eq!(memory.story_of("a"), ["present a 101", "present a 105", "present a 107", "present a 108"]);
    assert_eq!(memory.story_of("b"), ["present b 102", "present b 106"]);
}

#[tokio::test]
async fn row_40_revoked_rights_are_a_condition_and_nothing_is_deleted() {
    let (world, memory, running) = started(&["a", "b"]).await;
    let revoked = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let still = Arc::clone(&revoked);
    world.spoil(move |_| {
        still.load(std::sync::atomic::Ordering::SeqCst).then(|| Reply::status(403, "Forbidden"))
    });
    world.cut();
    until("a condition", || {
        running.handle.view().condition.is_some_and(|condition| condition.contains("403"))
    })
    .await;
    assert_eq!((memory.current().len(), running.handle.view().objects), (2, 2));
    world.update("a");
    revoked.store(false, std::sync::atomic::Ordering::SeqCst);
    level(&world, &memory).await;
    until("no condition", || running.handle.view().condition.is_none()).await;
    running.stop().await;
    assert!(memory.states().iter().all(|state| state.change == Change::Present));
}

#[tokio::test]
async fn row_40_a_kind_that_is_removed_is_a_condition_and_is_found_again() {
    let (world, memory) = (World::start().await, Arc::new(Memory::default()));
    world.create("a", json!({}));
    world.serve_kind(false);
    let running = Running::start(&world, &memory).await;
    until("a condition", || {
        running.handle.view().condition.is_some_and(|text| text.contains("no kind `Job`"))
    })
    .await;
    world.serve_kind(true);
    running.watching(&world).await;
    world.serve_kind(false);
    world.cut();
    until("a condition", || running.handle.view().condition.is_some()).await;
    world.serve_kind(true);
    world.update("a");
    level(&world, &memory).await;
    running.stop().await;
    assert_eq!(memory.story_of("a").len(), 2);
}

#[tokio::test]
async fn a_kind_that_is_installed_late_is_watched_soon_however_long_other_pauses_are() {
    let (world, memory) = (World::start().await, Arc::new(Memory::default()));
    world.serve_kind(false);
    let hour = Duration::from_secs(3600);
    let slow =
        Tuning { first_pause: hour, longest_pause: hour, lookup: Duration::from_millis(20), ..tuning() };
    let running = Running::start_with(&world, &memory, spec(json!({})), slow).await;
    until("looked up again", || world.requests("/apis/batch/v1").len() > 3).await;
    world.serve_kind(true);
    world.create("a", json!({}));
    level(&world, &memory).await;
    running.stop().await;
}

#[tokio::test]
async fn row_31_a_journal_that_is_full_stops_the_reading_and_nothing_is_lost() {
    let (world, memory, running) = started(&["a"]).await;
    memory.fail_next((0..20).map(|_| JournalError::Unavailable("the disk is full".into())).collect());
    world.update("a");
    until("it says so", || running.handle.view().stalled.is_some_and(|why| why.contains("disk is full")))
        .await;
    world.update("a");
    level(&world, &memory).await;
    assert_eq!(running.handle.view().stalled, None);
    running.stop().await;
    assert_eq!(memory.story_of("a").len(), 3);
}

#[tokio::test]
async fn row_32_a_damaged_journal_ends_the_source() {
    let (world, memory, running) = started(&["a"]).await;
    memory.fail_next(vec![JournalError::Fatal("fsync failed".into())]);
    world.update("a");
    let ended = running.task.await.unwrap();
    assert!(matches!(ended, Err(SourceError::Journal(JournalError::Fatal(_)))), "{ended:?}");
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
