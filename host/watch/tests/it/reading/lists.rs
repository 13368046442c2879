//! Tests of lists whose pages expire.

use crate::*;

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
        let reply = Reply { status: 200, headers: String::new(), body: list.to_string() };
        world.spoil_once("limit=3", reply);
        world.forget();
        level(&world, &memory).await;
        settled(&world, &memory).await;
    }
    assert_eq!(running.handle.view().epoch, 0);
    assert_eq!((memory.source_gaps(), memory.object_gaps()), (vec![], vec![]));
    assert_eq!(memory.story_of("b"), ["present b 102", "gone b 104"]);
    running.stop().await;
}
