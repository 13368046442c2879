//! Tests of lists whose pages expire.

use crate::world::bookmark;
use crate::*;

#[tokio::test]
async fn rows_6_and_7_a_page_that_expires_starts_the_list_again_without_half_a_checkpoint() {
    let (world, memory) = (WatchWorld::start().await, Arc::new(MemoryWitness::default()));
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
        Some(CannedReply::status(410, "Expired"))
    });
    let running = RunningSource::start(&world, &memory).await;
    running.watching(&world).await;
    running.stop().await;
    assert_eq!(memory.story().len(), 4);
    assert_eq!(world.requests("limit=3").len(), 4);
    assert_eq!(memory.checkpoint().as_deref(), Some("104"));
}

#[tokio::test]
async fn a_list_whose_pages_always_expire_is_made_in_one_piece() {
    let (world, memory) = (WatchWorld::start().await, Arc::new(MemoryWitness::default()));
    for name in ["a", "b", "c", "d"] {
        world.create(name, json!({}));
    }
    world.spoil(|request| request.contains("continue=").then(|| CannedReply::status(410, "Expired")));
    let running = RunningSource::start(&world, &memory).await;
    running.watching(&world).await;
    running.stop().await;
    assert_eq!(memory.story().len(), 4);
}

/// A server that lags behind the one that was watched before.
#[tokio::test]
async fn a_list_that_is_older_than_what_was_witnessed_is_asked_for_again_and_is_no_other_history() {
    let (world, memory, running) = started(&["a", "b"]).await;
    let old: Vec<_> = world.log().into_iter().map(|entry| entry.object).collect();
    world.update("a");
    world.delete("b");
    settled(&world, &memory).await;
    for (lists, shown) in old.into_iter().enumerate() {
        away(&world).await;
        world.create(&format!("later-{lists}"), json!({}));
        let list = json!({"kind": "JobList", "apiVersion": "batch/v1", "items": [shown],
            "metadata": {"resourceVersion": world.version().to_string()}});
        let reply = CannedReply { status: 200, headers: String::new(), body: list.to_string() };
        world.spoil_once("limit=3", reply);
        world.forget();
        level(&world, &memory).await;
        settled(&world, &memory).await;
    }
    assert_eq!(running.handle.snapshot_view().epoch, 0);
    assert_eq!((memory.source_gaps(), memory.object_gaps()), (vec![], vec![]));
    assert_eq!(memory.story_of("b"), ["present b 102", "gone b 104"]);
    running.stop().await;
}

fn list(version: u64, token: &str, items: &[Value]) -> CannedReply {
    let metadata = json!({"resourceVersion": version.to_string(), "continue": token});
    let list = json!({"kind": "JobList", "apiVersion": "batch/v1", "metadata": metadata, "items": items});
    CannedReply { status: 200, headers: String::new(), body: list.to_string() }
}

/// A server that lists from one place and counts in another. Its watch goes on above what it has listed.
async fn listed_beyond_its_version(compacted: bool) -> (WatchWorld, Arc<MemoryWitness>, RunningSource) {
    let (world, memory) = (WatchWorld::start().await, Arc::new(MemoryWitness::default()));
    world.create("a", json!({}));
    world.create("b", json!({}));
    world.update("b");
    let items: Vec<_> = world.log().into_iter().map(|entry| entry.object).collect();
    if compacted {
        world.compact_to(103);
    }
    world.spoil_once("limit=3", list(101, "", &[items[0].clone(), items[2].clone()]));
    let passed = CannedReply { status: 200, headers: String::new(), body: bookmark(103, false) };
    world.spoil_once("watch=true&allowWatchBookmarks=true&resourceVersion=101", passed);
    let running = RunningSource::start(&world, &memory).await;
    level(&world, &memory).await;
    settled(&world, &memory).await;
    (world, memory, running)
}

#[tokio::test]
async fn an_item_above_its_lists_version_is_read_back_and_taken_in_order() {
    let (_world, memory, running) = listed_beyond_its_version(false).await;
    running.stop().await;
    assert_eq!(memory.story_of("b"), ["present b 102", "present b 103"]);
    assert_eq!((memory.source_gaps(), memory.object_gaps()), (vec![], vec![]));
}

#[tokio::test]
async fn an_item_above_its_lists_version_is_taken_behind_a_gap_where_the_rest_is_compacted() {
    let (_world, memory, running) = listed_beyond_its_version(true).await;
    running.stop().await;
    let gaps = memory.object_gaps();
    assert_eq!(gaps.len(), 1, "{gaps:?}");
    assert_eq!(memory.story_of("b").last().map(String::as_str), Some("present b 103"));
}

#[tokio::test]
async fn an_item_above_its_lists_version_is_taken_after_an_outage_as_well() {
    let (world, memory, running) = started(&["a"]).await;
    away(&world).await;
    world.create("b", json!({}));
    world.update("b");
    let items: Vec<_> = world.log().into_iter().map(|entry| entry.object).collect();
    world.spoil_once("limit=3", list(101, "", &[items[0].clone(), items[2].clone()]));
    world.spoil_once("watch=true", CannedReply::status(410, "Expired"));
    let passed = CannedReply { status: 200, headers: String::new(), body: bookmark(103, false) };
    world.spoil_once("watch=true", passed);
    level(&world, &memory).await;
    settled(&world, &memory).await;
    running.stop().await;
    assert_eq!(memory.story_of("b"), ["present b 102", "present b 103"]);
    assert_eq!((memory.source_gaps(), memory.object_gaps()), (vec![], vec![]));
}

#[tokio::test]
async fn a_uid_that_is_listed_under_a_second_name_is_kept_as_poison() {
    let (world, memory) = (WatchWorld::start().await, Arc::new(MemoryWitness::default()));
    world.create("a", json!({}));
    let item = world.log()[0].object.clone();
    let mut other = item.clone();
    other["metadata"]["name"] = json!("z");
    world.spoil_once("limit=3", list(101, "", &[item, other]));
    let running = RunningSource::start(&world, &memory).await;
    running.watching(&world).await;
    until("poison", || memory.poison().len() == 1).await;
    assert!(memory.poison()[0].error.contains("known as ml/a"), "{:?}", memory.poison()[0].error);
    // The same goes for a watch.
    world.send(&format!(
        "{}\n",
        json!({"type": "MODIFIED", "object": {"kind": "Job", "apiVersion": "batch/v1",
        "metadata": {"name": "z", "namespace": "ml", "uid": "uid-1", "resourceVersion": "102"}}})
    ));
    until("poison", || memory.poison().len() == 2).await;
    running.stop().await;
    assert_eq!(memory.story(), ["present a 101"]);
}

#[tokio::test]
async fn tokens_that_lead_in_a_circle_are_a_condition_and_the_list_is_given_up() {
    let (world, memory) = (WatchWorld::start().await, Arc::new(MemoryWitness::default()));
    world.create("a", json!({}));
    let (item, endless) = (world.log()[0].object.clone(), Arc::new(std::sync::atomic::AtomicBool::new(true)));
    let still = Arc::clone(&endless);
    world.spoil(move |request| {
        let is_list = request.contains("limit=3") && still.load(std::sync::atomic::Ordering::SeqCst);
        let next = if request.contains("continue=A") { "B" } else { "A" };
        is_list.then(|| list(101, next, std::slice::from_ref(&item)))
    });
    let running = RunningSource::start(&world, &memory).await;
    until("a condition", || {
        running.handle.snapshot_view().condition.is_some_and(|told| told.contains("the list has no end"))
    })
    .await;
    // Each try ends with the first token that comes again.
    let pages = world.requests("continue=").len();
    assert!(pages <= 2 * world.requests("limit=3").len() / 3 + 2, "{pages}");
    assert!(!running.handle.snapshot_view().synced);
    endless.store(false, std::sync::atomic::Ordering::SeqCst);
    running.watching(&world).await;
    assert_eq!(running.handle.snapshot_view().condition, None);
    running.stop().await;
}
