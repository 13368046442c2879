//! Lists whose pages expire.

use super::*;

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
