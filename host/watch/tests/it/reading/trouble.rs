//! Tests of servers, journals and objects that misbehave.

use kubewitness_core::limits::VERSION_BYTES;
use kubewitness_core::ports::JournalError;
use kubewitness_core::state::Change;

use kubewitness_watch::{ConfigMapSnapshot, ConfigMaps};
use tokio::sync::watch;

use crate::*;

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
    world.spoil_once("limit=3", CannedReply { status: 200, headers: String::new(), body: list.to_string() });
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
        (times.len() == 1).then(|| CannedReply::status(429, "TooManyRequests").with_header("Retry-After: 1"))
    });
    world.close();
    world.update("a");
    level(&world, &memory).await;
    let times = asked.lock().unwrap().clone();
    assert!(times[1] - times[0] >= Duration::from_secs(1), "it was asked to wait for a second");
    running.stop().await;
}

#[tokio::test]
async fn row_40_revoked_rights_are_a_condition_and_nothing_is_deleted() {
    let (world, memory, running) = started(&["a", "b"]).await;
    let revoked = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let still = Arc::clone(&revoked);
    world.spoil(move |_| {
        still.load(std::sync::atomic::Ordering::SeqCst).then(|| CannedReply::status(403, "Forbidden"))
    });
    world.cut();
    until("a condition", || {
        running.handle.snapshot_view().condition.is_some_and(|condition| condition.contains("403"))
    })
    .await;
    assert_eq!((memory.current().len(), running.handle.snapshot_view().objects), (2, 2));
    world.update("a");
    revoked.store(false, std::sync::atomic::Ordering::SeqCst);
    level(&world, &memory).await;
    until("no condition", || running.handle.snapshot_view().condition.is_none()).await;
    running.stop().await;
    assert!(memory.states().iter().all(|state| state.change == Change::Present));
}

#[tokio::test]
async fn row_40_a_kind_that_is_removed_is_a_condition_and_is_found_again() {
    let (world, memory) = (WatchWorld::start().await, Arc::new(MemoryWitness::default()));
    world.create("a", json!({}));
    world.serve_kind(false);
    let running = RunningSource::start(&world, &memory).await;
    until("a condition", || {
        running.handle.snapshot_view().condition.is_some_and(|text| text.contains("no kind `Job`"))
    })
    .await;
    world.serve_kind(true);
    running.watching(&world).await;
    world.serve_kind(false);
    world.cut();
    until("a condition", || running.handle.snapshot_view().condition.is_some()).await;
    world.serve_kind(true);
    world.update("a");
    level(&world, &memory).await;
    running.stop().await;
    assert_eq!(memory.story_of("a").len(), 2);
}

#[tokio::test]
async fn a_kind_that_is_installed_late_is_watched_soon_however_long_other_pauses_are() {
    let (world, memory) = (WatchWorld::start().await, Arc::new(MemoryWitness::default()));
    world.serve_kind(false);
    let hour = Duration::from_secs(3600);
    let slow =
        WatchTuning { first_pause: hour, longest_pause: hour, lookup: Duration::from_millis(20), ..tuning() };
    let running = RunningSource::start_with(&world, &memory, spec(json!({})), slow).await;
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
    until("it says so", || {
        running.handle.snapshot_view().stalled.is_some_and(|why| why.contains("disk is full"))
    })
    .await;
    world.update("a");
    level(&world, &memory).await;
    assert_eq!(running.handle.snapshot_view().stalled, None);
    running.stop().await;
    assert_eq!(memory.story_of("a").len(), 3);
}

#[tokio::test]
async fn a_journal_that_is_back_is_read_and_written_soon_however_long_other_pauses_are() {
    let (world, memory, running) = started(&["a"]).await;
    running.stop().await;
    let hour = Duration::from_secs(3600);
    let slow = WatchTuning {
        first_pause: hour,
        longest_pause: hour,
        journal_pause: Duration::from_millis(20),
        ..tuning()
    };
    memory.tear_next_read();
    let running = RunningSource::start_with(&world, &memory, spec(json!({})), slow).await;
    running.watching(&world).await;
    memory.fail_next((0..3).map(|_| JournalError::Unavailable("it is away".into())).collect());
    world.update("a");
    level(&world, &memory).await;
    running.stop().await;
    assert_eq!(memory.story_of("a").len(), 2);
}

#[tokio::test]
async fn a_journal_that_fails_while_it_is_read_is_read_anew_and_nothing_of_the_first_try_stays() {
    let (world, memory, running) = started(&["a", "b"]).await;
    running.stop().await;
    memory.tear_next_read();
    let running = RunningSource::start(&world, &memory).await;
    world.update("a");
    level(&world, &memory).await;
    // The object of the first try would be one more.
    assert_eq!(running.handle.snapshot_view().objects, 2);
    running.stop().await;
    assert_eq!(memory.story_of("a").len(), 2);
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
async fn what_was_made_while_a_batch_was_refused_is_not_written_without_it() {
    let (world, memory, running) = started(&["a", "b"]).await;
    let (closed, before) = (memory.gate.lock().await, memory.append_count());
    world.update("a");
    until("it is being written", || memory.append_count() > before).await;
    let counts = || running.handle.snapshot_view().counts;
    let made = counts().gone;
    world.delete("b");
    until("the next is made", || counts().gone > made).await;
    memory.fail_next(vec![JournalError::Fatal("fsync failed".into())]);
    drop(closed);
    let ended = running.task.await.unwrap();
    assert!(matches!(ended, Err(SourceError::Journal(JournalError::Fatal(_)))), "{ended:?}");
    assert_eq!((memory.append_count(), memory.story_of("b").len()), (before + 1, 1));
}

#[tokio::test]
async fn an_object_whose_version_no_journal_takes_is_poison_and_ends_no_source() {
    let (world, memory, running) = started(&["a"]).await;
    let object = json!({"metadata": {"name": "b", "namespace": "ml", "uid": "uid-b",
        "resourceVersion": "7".repeat(VERSION_BYTES + 1)}});
    world.send(&format!("{}\n", json!({"type": "ADDED", "object": object})));
    until("poison", || memory.poison().len() == 1).await;
    world.update("a");
    level(&world, &memory).await;
    running.stop().await;
    assert_eq!(memory.story_of("a").len(), 2);
}

/// The ConfigMaps of the small server, which has none.
async fn followed(
    world: &WatchWorld,
    tuning: WatchTuning,
) -> (watch::Receiver<ConfigMapSnapshot>, CancellationToken) {
    let client = connected(world).await.client;
    let maps = ConfigMaps::new(client, "ml", &["kubewitness.dev/plugin=true"]).with_tuning(tuning);
    let ((out, seen), stop) = (watch::channel(ConfigMapSnapshot::default()), CancellationToken::new());
    tokio::spawn(maps.run(out, stop.clone()));
    until("the ConfigMaps are watched", || world.watches() > 0 && seen.borrow().synced).await;
    (seen, stop)
}

#[tokio::test]
async fn a_frame_of_configmaps_that_is_too_large_is_a_condition_and_they_are_watched_again() {
    let world = WatchWorld::start().await;
    let (seen, stop) = followed(&world, tuning()).await;
    let watched = world.requests("watch=true").len();
    world.send(&"x".repeat((4 << 20) + 1));
    until("a new watch", || world.requests("watch=true").len() > watched).await;
    until("it goes on without a condition", || world.watches() > 0 && seen.borrow().condition.is_none())
        .await;
    stop.cancel();
}

#[tokio::test]
async fn more_configmaps_than_the_bound_are_a_condition_and_those_that_are_known_stay() {
    let world = WatchWorld::start().await;
    let (mut seen, stop) = followed(&world, tuning()).await;
    let map = |number: u32| {
        let (name, uid) = (format!("map-{number}"), format!("uid-{number}"));
        let meta =
            json!({"name": name, "namespace": "ml", "uid": uid, "resourceVersion": number.to_string()});
        format!("{}\n", json!({"type": "ADDED", "object": {"metadata": meta}}))
    };
    world.send(&(1..=2_000).map(map).collect::<String>());
    until("2,000 ConfigMaps", || seen.borrow().maps.len() == 2_000).await;
    assert_eq!(seen.borrow_and_update().condition, None);
    world.send(&map(2_001));
    let told = async |seen: &mut watch::Receiver<ConfigMapSnapshot>| {
        let told = seen.wait_for(|seen| seen.condition.is_some()).await.unwrap();
        (told.condition.clone().unwrap_or_default(), told.maps.len())
    };
    let (condition, known) = tokio::time::timeout(Duration::from_secs(20), told(&mut seen)).await.unwrap();
    assert!(
        condition.contains("more than 2000 ConfigMaps carry the label kubewitness.dev/plugin=true"),
        "{condition}"
    );
    assert!(known >= 2_000);
    stop.cancel();
}

#[tokio::test]
async fn a_watch_of_configmaps_that_falls_silent_is_opened_anew() {
    let world = WatchWorld::start().await;
    let (seen, stop) = followed(&world, WatchTuning { idle: Duration::from_millis(50), ..tuning() }).await;
    until("three watches", || world.requests("watch=true").len() >= 3).await;
    assert_eq!(seen.borrow().condition, None);
    stop.cancel();
}
