//! Tests of compaction: gaps are exact, and the source asks no more than it must.

use kubewitness_core::state::Change;

use crate::*;

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
    // Version 104 can still be read. `half` is found there as it was created.
    assert_eq!(bounds, [("101", "104")]);
    assert_eq!(gaps[0].reason, "Compacted");
    assert!(memory.story_of("lost").is_empty());
    assert_eq!(memory.story_of("half"), ["present half 104", "present half 105", "gone half 106"]);
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
    // At the compacted version, 106, a can still be read with its version 105, and b with 106. Only what lies
    // before those is lost.
    assert_eq!(bounds.iter().filter(|(name, ..)| *name == "a").collect::<Vec<_>>(), [&("a", "103", "105")]);
    assert_eq!(bounds.iter().filter(|(name, ..)| *name == "b").collect::<Vec<_>>(), [&("b", "103", "106")]);
    assert_eq!(bounds.len(), 2);
    assert!(gaps.iter().all(|(_, gap)| gap.reason == "Compacted" && gap.object.is_some()));
    assert_eq!(memory.story_of("a"), ["present a 101", "present a 105", "present a 107", "present a 108"]);
    assert_eq!(memory.story_of("b"), ["present b 102", "present b 106"]);
}

#[tokio::test]
async fn how_far_compaction_has_been_is_found_out_once_for_all() {
    const NEW: usize = 300;
    let (world, memory, running) = started(&["a"]).await;
    away(&world).await;
    for number in 0..NEW {
        world.create(&format!("new-{number:03}"), json!({}));
    }
    world.compact();
    world.update("a");
    settled(&world, &memory).await;
    running.stop().await;
    let gaps = memory.object_gaps();
    // The newest object can still be read, and so can the fact that none existed before it.
    assert!(gaps.len() >= NEW - 1, "{}", gaps.len());
    assert!(gaps.iter().all(|(_, gap)| gap.reason == "Compacted"));
    assert!(memory.source_gaps().iter().all(|gap| gap.reason == "Compacted"));
    let asked = world.requests("resourceVersionMatch=Exact").len();
    assert!(asked < 50, "{asked} questions");
}

#[tokio::test]
async fn what_is_known_to_be_compacted_is_no_matter_of_the_budget() {
    let (world, memory) = (WatchWorld::start().await, Arc::new(MemoryWitness::default()));
    world.create("a", json!({}));
    // One request for each object that is read at the same time.
    let walk = WalkBudget { requests: 8, sweep_requests: 1, concurrency: 8, ..tuning().walk };
    let running =
        RunningSource::start_with(&world, &memory, spec(json!({})), WatchTuning { walk, ..tuning() }).await;
    running.watching(&world).await;
    away(&world).await;
    for number in 0..40 {
        world.create(&format!("new-{number:02}"), json!({}));
    }
    world.compact();
    settled(&world, &memory).await;
    running.stop().await;
    let gaps: Vec<_> = memory.object_gaps().into_iter().map(|(_, gap)| gap.reason).collect();
    assert!(gaps.len() >= 39 && gaps.iter().all(|reason| reason == "Compacted"), "{gaps:?}");
}

/// The first request for each version is refused as compacted, from any caller.
fn once_each(part: &'static str) -> impl FnMut(&str) -> Option<CannedReply> + Send + 'static {
    let mut seen = std::collections::HashSet::new();
    move |request| {
        let at = request.split(part).nth(1)?.split('&').next()?.to_string();
        let is_exact = request.contains("resourceVersionMatch=Exact") || part == "continue=";
        (is_exact && seen.insert(at)).then(|| CannedReply::status(410, "Expired"))
    }
}

#[tokio::test]
async fn a_version_that_is_refused_once_and_can_be_read_is_no_gap() {
    let (world, memory, running) = started(&["a", "b", "c", "d"]).await;
    away(&world).await;
    for _ in 0..3 {
        world.update("a");
        world.create("brief", json!({}));
        world.delete("b");
        world.create("b", json!({}));
        world.delete("brief");
    }
    world.delete("c");
    world.spoil(once_each("resourceVersion="));
    world.forget();
    level(&world, &memory).await;
    settled(&world, &memory).await;
    running.stop().await;
    assert_eq!((memory.source_gaps(), memory.object_gaps()), (vec![], vec![]));
    let present = memory.states().iter().filter(|state| state.change == Change::Present).count();
    assert_eq!(present, world.log().iter().filter(|entry| entry.kind != "DELETED").count());
}

#[tokio::test]
async fn a_page_of_an_old_list_that_expires_is_no_gap() {
    let (world, memory, running) = started(&["a", "b", "c", "d", "e"]).await;
    away(&world).await;
    world.create("late", json!({}));
    world.delete("late");
    world.update("a");
    let of_relist = format!("-{}", world.version());
    let mut refuse = once_each("continue=");
    world.spoil(move |request| if request.contains(&of_relist) { None } else { refuse(request) });
    world.forget();
    settled(&world, &memory).await;
    running.stop().await;
    assert!(world.requests("continue=").len() > 2, "the old list had pages");
    assert_eq!((memory.source_gaps(), memory.object_gaps()), (vec![], vec![]));
    assert_eq!(memory.story_of("late"), ["present late 106", "gone late 107"]);
}
