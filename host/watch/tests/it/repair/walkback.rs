//! Tests of the walk-back: what is read back after a watch was lost.

use crate::*;

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
async fn while_one_object_is_read_back_the_others_pass_and_it_waits_in_order() {
    let (world, memory, running) = started(&["slow", "quick"]).await;
    away(&world).await;
    world.update("slow");
    world.update("slow");
    // The server can't be reached until this is set.
    let closed = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let still = Arc::clone(&closed);
    world.spoil(move |request| {
        let shut =
            still.load(std::sync::atomic::Ordering::SeqCst) && request.contains("metadata.name%3Dslow");
        shut.then(|| CannedReply::status(503, "ServiceUnavailable"))
    });
    world.forget();
    until("it is walked back", || running.handle.snapshot_view().walking == 1).await;
    running.watching(&world).await;
    world.update("slow");
    world.update("quick");
    until("the other passes", || memory.story_of("quick").len() == 2).await;
    assert_eq!(memory.story_of("slow"), ["present slow 101"]);
    assert_eq!(memory.checkpoint().as_deref(), Some("102"), "the old one stays until all is settled");
    closed.store(false, std::sync::atomic::Ordering::SeqCst);
    settled(&world, &memory).await;
    assert_eq!(running.handle.snapshot_view().walking, 0);
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
        shut.then(|| CannedReply::status(503, "ServiceUnavailable"))
    });
    world.forget();
    until("two are back", || memory.story_of("a").len() == 3 && memory.story_of("b").len() == 3).await;
    running.watching(&world).await;
    world.update("a");
    until("it is watched", || memory.story_of("a").len() == 4).await;
    running.task.abort();
    assert_eq!(memory.checkpoint().as_deref(), Some("103"));
    closed.store(false, std::sync::atomic::Ordering::SeqCst);
    let running = RunningSource::start(&world, &memory).await;
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
    let (world, memory) = (WatchWorld::start().await, Arc::new(MemoryWitness::default()));
    world.create("in", json!({"team": "ml"}));
    world.create("guest", json!({"team": "web"}));
    world.create("out", json!({"team": "web"}));
    let spec = spec(json!({"matchLabels": {"team": "ml"}}));
    let running = RunningSource::start_with(&world, &memory, spec, tuning()).await;
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
    let limitation = running.handle.snapshot_view().limitation.unwrap_or_default();
    assert!(limitation.contains("doesn't say how many"), "{limitation}");
    let gaps = memory.source_gaps();
    assert_eq!(gaps.len(), 1);
    assert_eq!((gaps[0].after.as_str(), gaps[0].before.as_str()), ("102", "106"));
    assert_eq!(gaps[0].reason, "ExactListRefused");
    // The source learns that it can.
    world.count_nothing(false);
    away(&world).await;
    world.create("brief", json!({}));
    world.delete("brief");
    world.update("a");
    world.forget();
    settled(&world, &memory).await;
    assert_eq!(running.handle.snapshot_view().limitation, None);
    running.stop().await;
    assert_eq!(memory.story_of("brief"), ["present brief 106", "gone brief 107"]);
}

#[tokio::test]
async fn a_server_without_exact_lists_leaves_gaps_and_says_so_once() {
    let (world, memory, running) = started(&["a", "b"]).await;
    world.spoil(|request| {
        request.contains("resourceVersionMatch=Exact").then(|| CannedReply::status(400, "BadRequest"))
    });
    away(&world).await;
    world.update("a");
    world.update("a");
    world.update("b");
    world.update("b");
    world.forget();
    level(&world, &memory).await;
    settled(&world, &memory).await;
    let view = running.handle.snapshot_view();
    assert!(view.limitation.is_some_and(|text| text.contains("can't be read back")));
    running.stop().await;
    assert_eq!(memory.object_gaps().len(), 2);
    assert!(memory.object_gaps().iter().all(|(_, gap)| gap.reason == "ExactListRefused"));
    assert_eq!(memory.source_gaps().len(), 1);
}

#[tokio::test]
async fn when_as_much_waits_as_may_nothing_more_is_read_and_nothing_is_lost() {
    const EVENTS: usize = 400;
    const MOST: usize = 3;
    let (world, memory) = (WatchWorld::start().await, Arc::new(MemoryWitness::default()));
    for name in ["slow", "quick"] {
        world.create(name, json!({}));
    }
    let tuning_of = |held_events| WatchTuning { held_events, ..tuning() };
    let running = RunningSource::start_with(&world, &memory, spec(json!({})), tuning_of(MOST)).await;
    running.watching(&world).await;
    away(&world).await;
    world.update("slow");
    world.update("slow");
    let closed = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let still = Arc::clone(&closed);
    world.spoil(move |request| {
        let shut =
            still.load(std::sync::atomic::Ordering::SeqCst) && request.contains("metadata.name%3Dslow");
        shut.then(|| CannedReply::status(503, "ServiceUnavailable"))
    });
    world.forget();
    until("it is walked back", || running.handle.snapshot_view().walking == 1).await;
    running.watching(&world).await;
    let before = running.handle.snapshot_view().counts.frames;
    for _ in 0..MOST {
        world.update("slow");
    }
    until("as many wait as may", || running.handle.snapshot_view().counts.frames == before + MOST as u64)
        .await;
    // Another source, which nothing holds up, proves that the server sends.
    let other = Arc::new(MemoryWitness::default());
    let unhindered = RunningSource::start(&world, &other).await;
    unhindered.watching(&world).await;
    for _ in 0..EVENTS {
        world.change("slow", |object| object["spec"]["pad"] = json!("x".repeat(20_000)));
        world.update("quick");
    }
    until("the other has them all", || other.current() == world.live()).await;
    let read = running.handle.snapshot_view().counts.frames - before;
    assert!(read < 100, "{read} events were read while nothing more was to be");
    closed.store(false, std::sync::atomic::Ordering::SeqCst);
    settled(&world, &memory).await;
    level(&world, &memory).await;
    unhindered.stop().await;
    running.stop().await;
    assert_eq!((memory.source_gaps(), memory.object_gaps()), (vec![], vec![]));
    for name in ["slow", "quick"] {
        let wanted: Vec<_> = world
            .log()
            .iter()
            .filter(|entry| entry.object["metadata"]["name"] == name)
            .map(|entry| format!("present {name} {}", entry.version))
            .collect();
        assert_eq!(memory.story_of(name), wanted);
    }
}

#[tokio::test]
async fn bytes_that_wait_are_bounded_too() {
    let (world, memory) = (WatchWorld::start().await, Arc::new(MemoryWitness::default()));
    world.create("slow", json!({}));
    let tuning = WatchTuning { held_bytes: 100_000, ..tuning() };
    let running = RunningSource::start_with(&world, &memory, spec(json!({})), tuning).await;
    running.watching(&world).await;
    away(&world).await;
    world.update("slow");
    world.update("slow");
    let closed = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let still = Arc::clone(&closed);
    world.spoil(move |request| {
        let shut =
            still.load(std::sync::atomic::Ordering::SeqCst) && request.contains("metadata.name%3Dslow");
        shut.then(|| CannedReply::status(503, "ServiceUnavailable"))
    });
    world.forget();
    until("it is walked back", || running.handle.snapshot_view().walking == 1).await;
    running.watching(&world).await;
    let before = running.handle.snapshot_view().counts.frames;
    world.change("slow", |object| object["spec"]["pad"] = json!("x".repeat(200_000)));
    until("it waits", || running.handle.snapshot_view().counts.frames == before + 1).await;
    for _ in 0..20 {
        world.update("slow");
    }
    closed.store(false, std::sync::atomic::Ordering::SeqCst);
    settled(&world, &memory).await;
    running.stop().await;
    assert_eq!(memory.story_of("slow").len(), 1 + 2 + 1 + 20);
    assert_eq!(memory.object_gaps(), []);
}

#[tokio::test]
async fn a_search_whose_budget_runs_out_leaves_one_exact_gap() {
    let (world, memory) = (WatchWorld::start().await, Arc::new(MemoryWitness::default()));
    world.create("a", json!({}));
    let walk = WalkBudget { sweep_requests: 3, ..tuning().walk };
    let running =
        RunningSource::start_with(&world, &memory, spec(json!({})), WatchTuning { walk, ..tuning() }).await;
    running.watching(&world).await;
    away(&world).await;
    for _ in 0..5 {
        world.create("brief", json!({}));
        world.delete("brief");
    }
    world.update("a");
    world.forget();
    level(&world, &memory).await;
    settled(&world, &memory).await;
    running.stop().await;
    let gaps = memory.source_gaps();
    assert_eq!(gaps.len(), 1, "{gaps:?}");
    assert_eq!(gaps[0].reason, "BudgetSpent");
    // Between the last version where nothing is hidden and the listed version, 112.
    let after: u64 = gaps[0].after.parse().unwrap();
    assert!((101..112).contains(&after) && gaps[0].before == "113", "{gaps:?}");
    // The object that was found lies below the gap, and is complete.
    let found = memory.story_of("brief");
    let told: Vec<_> = world
        .log()
        .iter()
        .filter(|entry| entry.object["metadata"]["name"] == "brief" && entry.version <= after)
        .map(|entry| {
            let change = if entry.kind == "DELETED" { "gone" } else { "present" };
            format!("{change} brief {}", entry.version)
        })
        .collect();
    assert_eq!(found, told);
    assert_eq!(memory.object_gaps(), []);
}

#[tokio::test]
async fn one_question_that_is_refused_costs_one_object_and_no_other() {
    let (world, memory, running) = started(&["a", "b", "c"]).await;
    away(&world).await;
    for name in ["a", "b", "c", "a", "b", "c"] {
        world.update(name);
    }
    world.forget();
    let mut refused = false;
    world.spoil(move |request| {
        let is_hit = !refused && request.contains("metadata.name%3Db") && request.contains("Exact");
        refused |= is_hit;
        is_hit.then(|| CannedReply::status(400, "BadRequest"))
    });
    level(&world, &memory).await;
    settled(&world, &memory).await;
    running.stop().await;
    assert_eq!(memory.story_of("a"), ["present a 101", "present a 104", "present a 107"]);
    assert_eq!(memory.story_of("b"), ["present b 102", "present b 108"]);
    assert_eq!(memory.story_of("c"), ["present c 103", "present c 106", "present c 109"]);
    let gaps = memory.object_gaps();
    let told: Vec<_> = gaps.iter().map(|(name, gap)| (&**name, &*gap.after, &*gap.before)).collect();
    // The watch was complete up to the checkpoint.
    assert_eq!(told, [("b", "103", "108")]);
    assert_eq!(memory.source_gaps(), []);
}
