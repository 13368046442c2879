//! Tests of the audit: a list is compared with the witnessed states while the watch goes on.

use std::sync::atomic::{AtomicBool, Ordering};

use kubewitness_core::ports::WitnessedState;

use crate::*;

fn quick() -> WatchTuning {
    WatchTuning { audit_grace: Duration::from_millis(150), ..tuning() }
}

async fn started(names: &[&str]) -> (WatchWorld, Arc<MemoryWitness>, RunningSource) {
    started_with(names, quick()).await
}

async fn started_with(
    names: &[&str],
    tuning: WatchTuning,
) -> (WatchWorld, Arc<MemoryWitness>, RunningSource) {
    let (world, memory) = (WatchWorld::start().await, Arc::new(MemoryWitness::default()));
    for name in names {
        world.create(name, json!({}));
    }
    let spec = spec(json!({"audit": "100ms"}));
    let running = RunningSource::start_with(&world, &memory, spec, tuning).await;
    running.watching(&world).await;
    (world, memory, running)
}

#[tokio::test]
async fn row_13_what_a_bookmark_ran_ahead_of_is_found_and_read_back() {
    let (world, memory, running) = started(&["a", "b", "gone"]).await;
    world.quiet(true);
    world.update("a");
    world.update("a");
    world.create("new", json!({}));
    world.update("new");
    world.delete("gone");
    world.quiet(false);
    // The server sends none of this, and claims that it did.
    world.bookmark();
    level(&world, &memory).await;
    until("all are counted", || running.handle.snapshot_view().counts.discrepancies == 3).await;
    until("it is over", || running.handle.snapshot_view().last_audit_ms.is_some()).await;
    world.update("a");
    level(&world, &memory).await;
    running.stop().await;
    let a = ["present a 101", "present a 104", "present a 105", "present a 109"];
    assert_eq!(memory.story_of("a"), a);
    assert_eq!(memory.story_of("new"), ["present new 106", "present new 107"]);
    assert_eq!(memory.story_of("gone"), ["present gone 103", "gone gone 108"]);
    assert_eq!(memory.object_gaps(), []);
}

#[tokio::test]
async fn what_an_audit_found_is_there_after_a_restart_until_one_finds_nothing() {
    let (world, memory, running) = started(&["a"]).await;
    world.quiet(true);
    world.update("a");
    world.quiet(false);
    world.bookmark();
    until("it is found", || running.handle.snapshot_view().differed == 1).await;
    running.stop().await;
    let seldom = spec(json!({"audit": "1h"}));
    let running = RunningSource::start_with(&world, &memory, seldom, quick()).await;
    running.watching(&world).await;
    let view = running.handle.snapshot_view();
    assert_eq!((view.differed, view.disagrees, view.counts.discrepancies), (1, true, 0));
    let found = &view.discrepancies[0];
    assert_eq!((&*found.object.name, &*found.witnessed, &*found.listed), ("a", "101", "102"));
    running.stop().await;
    let running = RunningSource::start_with(&world, &memory, spec(json!({"audit": "100ms"})), quick()).await;
    until("an audit finds nothing", || running.handle.snapshot_view().last_audit_ms.is_some()).await;
    let view = running.handle.snapshot_view();
    assert_eq!((view.differed, view.disagrees), (1, false));
    running.stop().await;
}

#[tokio::test]
async fn a_busy_source_has_no_discrepancies() {
    // A watch that is slower than its writer comes to the list's version late.
    let patient = WatchTuning { audit_grace: Duration::from_secs(20), ..tuning() };
    let (world, memory, running) = started_with(&["a", "b", "c", "d", "e"], patient).await;
    let done = Arc::new(AtomicBool::new(false));
    let (busy, until_done) = (world.clone(), Arc::clone(&done));
    let writing = tokio::spawn(async move {
        let mut round = 0u32;
        while !until_done.load(Ordering::SeqCst) {
            round += 1;
            busy.update(["a", "b", "c", "d", "e"][round as usize % 5]);
            let brief = format!("brief-{round}");
            busy.create(&brief, json!({}));
            tokio::time::sleep(Duration::from_millis(2)).await;
            busy.delete(&brief);
        }
    });
    until("three audits", || running.handle.snapshot_view().counts.lists_audit >= 4).await;
    done.store(true, Ordering::SeqCst);
    writing.await.unwrap();
    level(&world, &memory).await;
    let counts = running.handle.snapshot_view().counts;
    assert_eq!((counts.discrepancies, counts.walk_back_requests), (0, 0));
    running.stop().await;
}

#[tokio::test]
async fn an_audit_lists_metadata_alone_and_gets_what_differs_as_a_whole() {
    let (world, memory, running) = started(&["a", "b"]).await;
    world.quiet(true);
    world.update("a");
    world.quiet(false);
    world.bookmark();
    level(&world, &memory).await;
    running.stop().await;
    let states = memory.states();
    let document: Value = serde_json::from_slice(&states.last().unwrap().document).unwrap();
    assert_eq!((&document["kind"], &document["spec"]["n"]), (&json!("Job"), &json!(1)));
    assert!(world.bare_lists() > 0);
    assert_eq!((world.requests("/jobs/a").len(), world.requests("/jobs/b").len()), (1, 0));
    assert_eq!(memory.poison().len(), 0);
}

#[tokio::test]
async fn what_an_audit_listed_and_has_ended_since_is_read_back_or_is_a_gap() {
    for compacts in [false, true] {
        let (world, memory, running) = started(&["a"]).await;
        world.quiet(true);
        for _ in 0..3 {
            world.update("a");
        }
        world.quiet(false);
        let other = world.clone();
        // The object ends between the list and the question for the whole of it.
        world.spoil(move |request| {
            if request.contains("/jobs/a") && other.names() == ["a"] {
                other.delete("a");
                if compacts {
                    other.compact();
                }
            }
            None
        });
        world.bookmark();
        let (gaps, states) = if compacts { (1, 2) } else { (0, 5) };
        until("all of it", || memory.object_gaps().len() == gaps && memory.story_of("a").len() == states)
            .await;
        running.stop().await;
        assert!(memory.story_of("a").contains(&"gone a 105".to_string()));
        assert_eq!(memory.current().len(), 0, "it is not there again");
    }
}

#[tokio::test]
async fn a_replica_that_does_not_lead_makes_no_audit() {
    let (world, memory) = (WatchWorld::start().await, Arc::new(MemoryWitness::default()));
    world.create("a", json!({}));
    let connection = connected(&world).await;
    let running =
        RunningSource::start_as(&connection, &memory, spec(json!({"audit": "10ms"})), quick(), false);
    running.watching(&world).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(running.handle.snapshot_view().counts.lists_audit, 0);
    running.stop().await;
}

#[tokio::test]
async fn an_audit_of_none_is_never_made() {
    let (world, memory) = (WatchWorld::start().await, Arc::new(MemoryWitness::default()));
    world.create("a", json!({}));
    let spec = spec(json!({"audit": "0s"}));
    let running = RunningSource::start_with(&world, &memory, spec, quick()).await;
    running.watching(&world).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(running.handle.snapshot_view().counts.lists_audit, 0);
    running.stop().await;
}

#[tokio::test]
async fn an_audit_that_fails_again_and_again_is_said_and_so_is_one_that_works() {
    let (world, memory, running) = started(&["a"]).await;
    let fails = Arc::new(AtomicBool::new(true));
    let spoils = Arc::clone(&fails);
    world.spoil(move |request| {
        let is_audit = request.contains("limit=3") && spoils.load(Ordering::SeqCst);
        is_audit.then(|| CannedReply::status(403, "Forbidden"))
    });
    let limitation = || running.handle.snapshot_view().limitation;
    until("it is said", || limitation().is_some_and(|text| text.contains("audits fail"))).await;
    world.update("a");
    level(&world, &memory).await;
    assert_eq!(running.handle.snapshot_view().condition, None, "it is watched all the same");
    fails.store(false, Ordering::SeqCst);
    until("it is said no longer", || limitation().is_none()).await;
    running.stop().await;
}

#[tokio::test]
async fn what_an_audit_listed_before_the_server_was_restored_is_not_taken_for_news() {
    let (world, memory) = (WatchWorld::start().await, Arc::new(MemoryWitness::default()));
    world.create("a", json!({}));
    let tuning = WatchTuning { audit_grace: Duration::from_secs(2), ..tuning() };
    let running = RunningSource::start_with(&world, &memory, spec(json!({"audit": "100ms"})), tuning).await;
    running.watching(&world).await;
    // The watch brings none of this, and the audit lists it.
    world.quiet(true);
    world.change("a", |object| object["spec"]["of"] = json!("the old history"));
    let before = world.requests("limit=3").len();
    until("it is listed", || world.requests("limit=3").len() > before).await;
    world.restore(101);
    world.change("a", |object| object["spec"]["of"] = json!("the new history"));
    world.quiet(false);
    until("that audit is over, and found another history or what is there now", || {
        world.requests("limit=3").len() > before + 1
    })
    .await;
    world.update("a");
    level(&world, &memory).await;
    running.stop().await;
    let told = |state: &WitnessedState| String::from_utf8_lossy(&state.document).into_owned();
    let old: Vec<_> =
        memory.states().iter().map(told).filter(|text| text.contains("the old history")).collect();
    assert_eq!(old, Vec::<String>::new());
}
