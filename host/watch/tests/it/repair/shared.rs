//! Tests of a shared journal: what another witness has seen is no gap.

use kubewitness_core::Version;
use kubewitness_core::ports::{AppendBatch, StateWitness};

use crate::*;

/// A source beside another witness, which has watched since this version.
async fn shared_with(since: Option<u64>, names: &[&str]) -> (WatchWorld, Arc<MemoryWitness>, RunningSource) {
    let (world, memory) = (WatchWorld::start().await, Arc::new(MemoryWitness::default()));
    memory.shared_with(since);
    for name in names {
        world.create(name, json!({}));
    }
    let running = RunningSource::start(&world, &memory).await;
    running.watching(&world).await;
    (world, memory, running)
}

/// A source that was away while objects came and went, and that can't read them back.
async fn behind_compaction(since: Option<u64>) -> (WatchWorld, Arc<MemoryWitness>, RunningSource) {
    let (world, memory, running) = shared_with(since, &["a"]).await;
    away(&world).await;
    for name in ["brief", "brief-too"] {
        world.create(name, json!({}));
        world.delete(name);
    }
    world.compact();
    (world, memory, running)
}

/// The other witness records in the journal that it has reached this version.
async fn other_comes_to(memory: &MemoryWitness, version: u64) {
    let checkpoint = Some(Version::new(&version.to_string()));
    memory
        .append_batch(AppendBatch { source: "jobs".into(), checkpoint, ..AppendBatch::default() })
        .await
        .unwrap();
}

async fn waits(world: &WatchWorld) {
    until("it to be listed and watched again", || world.watches() > 0).await;
    tokio::time::sleep(10 * tuning().others_every).await;
}

async fn ended(running: RunningSource) -> Result<(), SourceError> {
    until("the source to end", || running.task.is_finished()).await;
    running.task.await.unwrap()
}

fn bounds(memory: &MemoryWitness) -> Vec<(String, String)> {
    memory.source_gaps().into_iter().map(|gap| (gap.after, gap.before)).collect()
}

#[tokio::test]
async fn what_can_not_be_read_back_is_left_to_another_witness_and_is_no_gap_once_that_one_was_there() {
    let (world, memory, running) = behind_compaction(Some(90)).await;
    waits(&world).await;
    // Meanwhile new states are witnessed, but a restart would begin before all of them.
    world.create("later", json!({}));
    until("it to be witnessed", || memory.story_of("later") == ["present later 106"]).await;
    world.bookmark();
    tokio::time::sleep(10 * tuning().checkpoint_every).await;
    assert_eq!(memory.checkpoint().as_deref(), Some("101"));
    other_comes_to(&memory, 105).await;
    settled(&world, &memory).await;
    assert_eq!(bounds(&memory), []);
    running.stop().await;
}

#[tokio::test]
async fn what_the_other_witness_can_not_have_seen_is_a_gap() {
    for since in [None, Some(105)] {
        let (world, memory, running) = behind_compaction(since).await;
        settled(&world, &memory).await;
        assert_eq!(bounds(&memory), [("101".to_string(), "106".to_string())], "since {since:?}");
        running.stop().await;
    }
}

/// The versions that the other witness saw until then are no gap: the source begins again from there.
#[tokio::test]
async fn where_the_others_watch_breaks_before_it_came_there_only_what_lies_behind_it_is_a_gap() {
    let (world, memory, running) = behind_compaction(Some(90)).await;
    waits(&world).await;
    other_comes_to(&memory, 102).await;
    waits(&world).await;
    memory.shared_with(None);
    let ended = ended(running).await;
    assert!(matches!(ended, Err(SourceError::Overtaken(_))), "{ended:?}");
    assert_eq!(bounds(&memory), []);
    let running = RunningSource::start(&world, &memory).await;
    settled(&world, &memory).await;
    assert_eq!(bounds(&memory), [("102".to_string(), "106".to_string())]);
    running.stop().await;
}

/// Versions of an existing object are missing here, but the journal has them.
#[tokio::test]
async fn an_object_with_versions_that_only_the_other_has_is_read_from_the_journal_again() {
    let (world, memory, running) = shared_with(Some(90), &["a"]).await;
    away(&world).await;
    for _ in 0..3 {
        world.update("a");
    }
    world.compact();
    world.update("a");
    waits(&world).await;
    assert_eq!((memory.object_gaps(), bounds(&memory)), (vec![], vec![]));
    other_comes_to(&memory, 105).await;
    let ended = ended(running).await;
    assert!(matches!(ended, Err(SourceError::Overtaken(_))), "{ended:?}");
    assert_eq!((memory.object_gaps(), bounds(&memory)), (vec![], vec![]));
    let running = RunningSource::start(&world, &memory).await;
    running.watching(&world).await;
    settled(&world, &memory).await;
    running.stop().await;
}

/// Only the other witness knows the version at which the object ended.
#[tokio::test]
async fn an_end_that_only_the_other_has_is_read_from_the_journal_again() {
    let (world, memory, running) = shared_with(Some(90), &["a", "b"]).await;
    away(&world).await;
    world.delete("b");
    world.create("c", json!({}));
    world.compact();
    waits(&world).await;
    assert_eq!(memory.story_of("b"), ["present b 102"]);
    other_comes_to(&memory, 104).await;
    let ended = ended(running).await;
    assert!(matches!(ended, Err(SourceError::Overtaken(_))), "{ended:?}");
    assert_eq!(memory.story_of("b"), ["present b 102"]);
}

#[tokio::test]
async fn another_witness_that_does_not_come_to_what_the_server_shows_is_not_waited_for_long() {
    let (world, memory, running) = shared_with(Some(90), &["a"]).await;
    away(&world).await;
    world.update("a");
    world.update("a");
    world.compact();
    until("a gap of the object", || !memory.object_gaps().is_empty()).await;
    // The other witness may still know the objects that came and went.
    waits(&world).await;
    assert_eq!(bounds(&memory), []);
    assert_eq!(memory.story_of("a"), ["present a 101", "present a 103"]);
    memory.shared_with(None);
    settled(&world, &memory).await;
    assert_eq!((memory.object_gaps().len(), bounds(&memory).len()), (1, 1));
    running.stop().await;
}

#[tokio::test]
async fn what_is_told_of_a_watch_is_since_when_it_goes_on() {
    let (world, memory, running) = shared_with(None, &["a"]).await;
    world.update("a");
    settled(&world, &memory).await;
    let since = |version: &str| Some((0, version.to_owned()));
    // The server ends a watch, and the next one goes on.
    world.close();
    until("it to be watched again", || world.requests("watch=true").len() == 2).await;
    running.watching(&world).await;
    assert_eq!(memory.told_of_watches(), [None, since("101")]);
    // The server is away, perhaps for long. Nothing is missed then.
    away(&world).await;
    running.watching(&world).await;
    until("it to be told", || memory.told_of_watches().len() == 4).await;
    assert_eq!(memory.told_of_watches()[2..], [None, since("101")]);
    // Something may have been missed.
    world.update("a");
    away(&world).await;
    world.update("a");
    world.forget();
    settled(&world, &memory).await;
    assert_eq!(memory.told_of_watches().last().unwrap(), &since("104"));
    running.stop().await;
    assert_eq!(memory.told_of_watches().last().unwrap(), &None);
}
