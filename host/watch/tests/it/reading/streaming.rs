//! Tests of streamed lists, and of servers that do not stream.

use kubewitness_core::state::Change;

use crate::world::{CannedReply, bookmark};
use crate::*;

fn streaming() -> WatchTuning {
    WatchTuning { stream_lists: true, ..tuning() }
}

async fn started(streams: bool) -> (WatchWorld, Arc<MemoryWitness>, RunningSource) {
    let (world, memory) = (WatchWorld::start().await, Arc::new(MemoryWitness::default()));
    world.stream_lists(streams);
    for name in ["a", "b", "c", "d"] {
        world.create(name, json!({}));
    }
    let running = RunningSource::start_with(&world, &memory, spec(json!({})), streaming()).await;
    running.watching(&world).await;
    (world, memory, running)
}

#[tokio::test]
async fn a_streamed_list_goes_on_as_the_watch() {
    let (world, memory, running) = started(true).await;
    world.update("a");
    level(&world, &memory).await;
    let counts = running.handle.snapshot_view().counts;
    assert_eq!((counts.lists_first, counts.lists_streamed, counts.watches), (1, 1, 1));
    running.stop().await;
    assert_eq!(memory.story_of("a"), ["present a 101", "present a 105"]);
    assert_eq!(world.requests("watch=true").len(), 1);
    assert!(world.requests("limit=").is_empty());
    assert_eq!(memory.states().len(), 5);
}

#[tokio::test]
async fn an_outage_is_walked_back_after_a_streamed_list_too() {
    let (world, memory, running) = started(true).await;
    world.spoil_once(
        "watch=true&allowWatchBookmarks=true&resourceVersion",
        CannedReply::status(410, "Expired"),
    );
    world.quiet(true);
    world.update("a");
    world.update("a");
    world.delete("b");
    world.create("brief", json!({}));
    world.delete("brief");
    world.update("c");
    world.forget();
    world.quiet(false);
    world.cut();
    level(&world, &memory).await;
    until("the brief one", || memory.story_of("brief").len() == 2).await;
    running.stop().await;
    assert_eq!(memory.story_of("a"), ["present a 101", "present a 105", "present a 106"]);
    assert_eq!(memory.story_of("b"), ["present b 102", "gone b 107"]);
    assert_eq!((memory.source_gaps(), memory.object_gaps()), (vec![], vec![]));
}

#[tokio::test]
async fn a_streamed_list_that_repeats_its_objects_hides_nobody() {
    let (world, memory, running) = started(true).await;
    world.repeat_streams();
    world.spoil_once(
        "watch=true&allowWatchBookmarks=true&resourceVersion",
        CannedReply::status(410, "Expired"),
    );
    world.quiet(true);
    world.create("new", json!({}));
    world.create("brief", json!({}));
    world.update("new");
    world.delete("brief");
    world.update("a");
    world.forget();
    world.quiet(false);
    world.cut();
    level(&world, &memory).await;
    until("the brief one", || memory.story_of("brief").len() == 2).await;
    running.stop().await;
    assert_eq!(memory.story_of("new"), ["present new 105", "present new 107"]);
    assert_eq!((memory.source_gaps(), memory.object_gaps()), (vec![], vec![]));
}

#[tokio::test]
async fn the_end_of_a_streamed_list_is_the_end_of_the_changes_that_came_among_its_objects() {
    let (world, memory) = (WatchWorld::start().await, Arc::new(MemoryWitness::default()));
    world.stream_lists(true);
    world.create("a", json!({}));
    world.update("a");
    let body = world.log().iter().map(|entry| entry.line()).chain([bookmark(102, true)]).collect();
    world.spoil_once("sendInitialEvents", CannedReply { status: 200, headers: String::new(), body });
    let running = RunningSource::start_with(&world, &memory, spec(json!({})), streaming()).await;
    running.watching(&world).await;
    running.stop().await;
    // Nothing else has happened since: received objects are not asked for again.
    assert_eq!(
        world.requests("Bookmarks=true&resourceVersion=102").len(),
        1,
        "{:?}",
        world.requests("watch=true")
    );
    assert_eq!(memory.story_of("a"), ["present a 101", "present a 102"]);
}

#[tokio::test]
async fn a_server_that_refuses_streams_is_asked_for_pages_from_then_on() {
    let (world, memory, running) = started(false).await;
    assert_eq!(world.requests("sendInitialEvents").len(), 1);
    world.spoil_once("watch=true", CannedReply::status(410, "Expired"));
    world.close();
    until("a second list", || running.handle.snapshot_view().counts.lists_expired == 1).await;
    running.watching(&world).await;
    running.stop().await;
    assert_eq!(world.requests("sendInitialEvents").len(), 1);
    assert_eq!(memory.story().len(), 4);
}

#[tokio::test]
async fn a_server_that_answers_with_an_ordinary_watch_is_asked_for_pages() {
    let (world, memory) = (WatchWorld::start().await, Arc::new(MemoryWitness::default()));
    world.create("a", json!({}));
    // From now on the server takes the request for a watch.
    world.ignore_streams();
    let impatient = WatchTuning { stream_patience: Duration::from_millis(300), ..streaming() };
    let running = RunningSource::start_with(&world, &memory, spec(json!({})), impatient).await;
    level(&world, &memory).await;
    running.watching(&world).await;
    world.update("a");
    level(&world, &memory).await;
    running.stop().await;
    assert_eq!(memory.story_of("a").len(), 2);
    assert!(!world.requests("limit=3").is_empty());
}

#[tokio::test]
async fn a_streamed_list_that_breaks_in_the_middle_is_no_checkpoint() {
    let (world, memory) = (WatchWorld::start().await, Arc::new(MemoryWitness::default()));
    world.stream_lists(true);
    for name in ["a", "b", "c"] {
        world.create(name, json!({}));
    }
    let line = world.log()[0].line();
    world.spoil_once("sendInitialEvents", CannedReply { status: 200, headers: String::new(), body: line });
    let running = RunningSource::start_with(&world, &memory, spec(json!({})), streaming()).await;
    level(&world, &memory).await;
    running.watching(&world).await;
    assert_eq!(running.handle.snapshot_view().counts.lists_first, 2);
    running.stop().await;
    assert_eq!(memory.story().len(), 3);
}

#[tokio::test]
async fn pages_that_always_expire_lead_to_a_stream() {
    let (world, memory) = (WatchWorld::start().await, Arc::new(MemoryWitness::default()));
    world.stream_lists(true);
    for name in ["a", "b", "c", "d"] {
        world.create(name, json!({}));
    }
    world.spoil(|request| request.contains("continue=").then(|| CannedReply::status(410, "Expired")));
    let running = RunningSource::start(&world, &memory).await;
    running.watching(&world).await;
    assert_eq!(running.handle.snapshot_view().counts.lists_streamed, 1);
    running.stop().await;
    assert_eq!(memory.story().len(), 4);
    assert!(memory.states().iter().all(|state| state.change == Change::Present));
}

#[tokio::test]
async fn row_7_an_expired_page_goes_on_inconsistently_and_the_watch_begins_at_the_first() {
    let (world, memory) = (WatchWorld::start().await, Arc::new(MemoryWitness::default()));
    for name in ["a", "b", "c", "d", "e"] {
        world.create(name, json!({}));
    }
    let busy = world.clone();
    let mut once = true;
    world.spoil(move |request| {
        if !request.contains("continue=") || !std::mem::take(&mut once) {
            return None;
        }
        // Meanwhile both pages change. The rest is listed as it is now.
        let expired = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 410,
            "reason": "Expired", "message": "The provided continue parameter is too old",
            "metadata": {"continue": "3-now"}});
        busy.update("a");
        busy.update("d");
        Some(CannedReply { status: 410, headers: String::new(), body: expired.to_string() })
    });
    let running = RunningSource::start(&world, &memory).await;
    level(&world, &memory).await;
    running.watching(&world).await;
    running.stop().await;
    assert!(world.requests("watch=true")[0].contains("resourceVersion=105"), "page one's version");
    assert_eq!(memory.story_of("a"), ["present a 101", "present a 106"]);
    // Its change shows that it existed at the first page's version.
    assert_eq!(memory.story_of("d"), ["present d 104", "present d 107"]);
    assert_eq!(memory.story_of("e"), ["present e 105"]);
}

#[tokio::test]
async fn a_streamed_list_that_is_always_cut_is_asked_for_by_pages() {
    let (world, memory) = (WatchWorld::start().await, Arc::new(MemoryWitness::default()));
    world.stream_lists(true);
    for name in ["a", "b", "c", "d"] {
        world.create(name, json!({}));
    }
    let first = world.log()[0].line();
    world.spoil(move |request| {
        let cut = CannedReply { status: 200, headers: String::new(), body: first.clone() };
        request.contains("sendInitialEvents=true").then_some(cut)
    });
    let running = RunningSource::start_with(&world, &memory, spec(json!({})), streaming()).await;
    running.watching(&world).await;
    level(&world, &memory).await;
    assert_eq!(running.handle.snapshot_view().counts.lists_streamed, 0);
    running.stop().await;
    assert_eq!(world.requests("sendInitialEvents=true").len(), 3);
    assert_eq!(memory.story_of("a"), ["present a 101"]);
}
