//! Tests of a source while nothing is wrong.

use kubewitness_core::document::unpack_document;
use kubewitness_core::ports::{ObjectLister, ObjectSelection};
use kubewitness_core::state::Change;

use crate::*;

#[tokio::test]
async fn a_list_and_a_watch_give_every_version_once() {
    let (world, memory) = (WatchWorld::start().await, Arc::new(MemoryWitness::default()));
    for name in ["a", "b", "c", "d", "e"] {
        world.create(name, json!({}));
    }
    let running = RunningSource::start(&world, &memory).await;
    running.watching(&world).await;
    world.update("a");
    world.update("a");
    world.delete("b");
    world.create("f", json!({}));
    level(&world, &memory).await;
    running.stop().await;
    assert_eq!(memory.story_of("a"), ["present a 101", "present a 106", "present a 107"]);
    assert_eq!(memory.story_of("b"), ["present b 102", "gone b 108"]);
    assert_eq!(memory.story_of("f"), ["present f 109"]);
    assert!(memory.object_gaps().is_empty() && memory.source_gaps().is_empty());
    // There are five objects in pages of three. The watch begins at the first page's version.
    assert_eq!(world.requests("limit=3").len(), 2);
    assert!(world.requests("watch=true")[0].contains("resourceVersion=105"));
}

#[tokio::test]
async fn what_comes_while_a_batch_is_being_written_is_judged_by_what_that_says() {
    let (world, memory, running) = started(&["a", "b"]).await;
    let (closed, before) = (memory.gate.lock().await, memory.append_count());
    world.update("a");
    until("it is being written", || memory.append_count() > before).await;
    world.update("a");
    world.delete("a");
    world.create("a", json!({}));
    world.update("b");
    until("states are made of the others", || running.handle.snapshot_view().counts.gone == 1).await;
    drop(closed);
    level(&world, &memory).await;
    let view = running.handle.snapshot_view();
    running.stop().await;
    let told = ["present a 101", "present a 103", "present a 104", "gone a 105", "present a 106"];
    assert_eq!(memory.story_of("a"), told);
    let states = memory.states();
    let a: Vec<_> = states.iter().filter(|state| *state.object.name == *"a").collect();
    assert_eq!((a[2].base.as_ref(), a[2].previous.as_ref()), (Some(&a[1].document), Some(&a[1].status)));
    assert_eq!((view.counts.duplicates, view.counts.stale, view.counts.discrepancies), (0, 0, 0));
    assert!(memory.object_gaps().is_empty() && memory.source_gaps().is_empty());
}

#[tokio::test]
async fn of_each_state_it_is_noted_whether_its_texts_quote_a_secret_of_its_document_or_of_the_one_before() {
    let (world, memory, running) = started(&["a"]).await;
    let tell = |message: &str, token: &str| {
        world.change("a", |job| {
            job["spec"]["env"] = json!([{"name": "TOKEN", "value": token}]);
            let failed = json!({"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": message});
            job["status"] = json!({"conditions": [failed]});
        });
    };
    let told = [
        ("the loss is not a number", "hush-4711", true),
        ("no login with hush-4711", "hush-4711", false),
        // The one before quoted its own.
        ("the loss is not a number", "hush-4712", false),
        ("the loss is not a number", "hush-4713", true),
        ("no login with hush-4713", "hush-4714", false),
        // Its secret stands in neither of the two documents.
        ("Job suspended", "hush-4714", true),
        ("Job suspended", "hush-4714", false),
    ];
    for (message, token, _) in told {
        tell(message, token);
    }
    level(&world, &memory).await;
    running.stop().await;
    let rules = HostSpec::default().compile_redaction_rules().unwrap().rules_print();
    let noted: Vec<_> =
        memory.states().iter().skip(1).map(|state| state.quotes_none_under == Some(rules)).collect();
    assert_eq!(noted[..6], told.map(|(.., noted)| noted)[..6]);
    assert_eq!(memory.states()[7].quotes_none_under, None, "a fixed text needs no search");
}

#[tokio::test]
async fn listed_and_watched_documents_look_alike_and_the_last_content_is_kept() {
    let (world, memory) = (WatchWorld::start().await, Arc::new(MemoryWitness::default()));
    world.create("a", json!({}));
    let running = RunningSource::start(&world, &memory).await;
    running.watching(&world).await;
    world.update("a");
    world.delete("a");
    until("its end", || memory.story_of("a").len() == 3).await;
    running.stop().await;
    let states = memory.states();
    for state in &states {
        let document: Value = serde_json::from_slice(&state.document).unwrap();
        assert_eq!((&document["kind"], &document["apiVersion"]), (&json!("Job"), &json!("batch/v1")));
        assert_eq!(state.object.kind, "Job");
        assert_eq!(state.object.group, "batch");
    }
    assert_eq!(states[1].base.as_ref(), Some(&states[0].document));
    assert_eq!(states[1].previous.as_ref(), Some(&states[0].status));
    assert_eq!(states[2].change, Change::Gone);
    assert_eq!(states[2].status.phase, "Deleted");
}

#[tokio::test]
async fn what_changed_is_packed_once_the_source_is_quiet_and_reads_the_same() {
    let (world, memory) = (WatchWorld::start().await, Arc::new(MemoryWitness::default()));
    world.create("a", json!({}));
    let running = RunningSource::start(&world, &memory).await;
    running.watching(&world).await;
    world.update("a");
    until("its change", || memory.story_of("a").len() == 2).await;
    let held = || {
        let all = running
            .listers
            .select_objects("jobs", &ObjectSelection { limit: 9, ..ObjectSelection::default() })
            .unwrap();
        let document = unpack_document(&all.objects[0].packed).unwrap();
        (all.objects[0].packed.len() < document.len(), document)
    };
    until("it is packed", || held() == (true, memory.states()[1].document.clone())).await;
    world.update("a");
    until("its next change", || memory.story_of("a").len() == 3).await;
    assert_eq!(memory.states()[2].base.as_ref(), Some(&memory.states()[1].document));
    running.stop().await;
}

#[tokio::test]
async fn a_warm_start_makes_no_list_and_misses_nothing() {
    let (world, memory) = (WatchWorld::start().await, Arc::new(MemoryWitness::default()));
    for name in ["a", "b", "c", "d"] {
        world.create(name, json!({}));
    }
    let running = RunningSource::start(&world, &memory).await;
    running.watching(&world).await;
    running.stop().await;
    let lists = world.requests("limit=3").len();
    world.update("a");
    world.delete("b");
    let running = RunningSource::start(&world, &memory).await;
    level(&world, &memory).await;
    assert_eq!(world.requests("limit=3").len(), lists);
    assert_eq!(running.handle.snapshot_view().objects, 3);
    assert_eq!(running.listers.get("jobs", "ml", "a").unwrap().unwrap().resource_version.as_str(), "105");
    running.stop().await;
    assert_eq!(memory.story_of("a"), ["present a 101", "present a 105"]);
    assert_eq!(memory.story_of("b"), ["present b 102", "gone b 106"]);
}

#[tokio::test]
async fn relabelled_out_of_scope_is_left_and_not_gone() {
    let (world, memory) = (WatchWorld::start().await, Arc::new(MemoryWitness::default()));
    world.create("in", json!({"team": "ml"}));
    world.create("out", json!({"team": "web"}));
    let spec = spec(json!({"matchLabels": {"team": "ml"}}));
    let running = RunningSource::start_with(&world, &memory, spec, tuning()).await;
    running.watching(&world).await;
    world.change("in", |object| object["metadata"]["labels"] = json!({"team": "web"}));
    world.update("in");
    world.change("in", |object| object["metadata"]["labels"] = json!({"team": "ml"}));
    world.delete("in");
    world.delete("out");
    world.create("last", json!({"team": "ml"}));
    until("the last", || !memory.story_of("last").is_empty()).await;
    running.stop().await;
    assert_eq!(memory.story_of("in"), ["present in 101", "left in 103", "present in 105", "gone in 106"]);
    assert!(memory.story_of("out").is_empty());
}

#[tokio::test]
async fn bookmarks_move_the_checkpoint_and_without_them_it_stays_one_before() {
    let (world, memory) = (WatchWorld::start().await, Arc::new(MemoryWitness::default()));
    let running = RunningSource::start(&world, &memory).await;
    running.watching(&world).await;
    world.create("a", json!({}));
    until("one before", || memory.checkpoint().as_deref() == Some("100") && !memory.states().is_empty())
        .await;
    world.create("b", json!({}));
    until("one before", || memory.checkpoint().as_deref() == Some("101")).await;
    world.bookmark();
    until("the bookmark's version", || memory.checkpoint().as_deref() == Some("102")).await;
    assert_eq!(running.handle.snapshot_view().checkpoint, "102");
    running.stop().await;
}

#[tokio::test]
async fn a_pod_is_grouped_under_its_outermost_known_owner() {
    let (world, memory) = (WatchWorld::start().await, Arc::new(MemoryWitness::default()));
    let above = world.create("above", json!({}));
    let running = RunningSource::start(&world, &memory).await;
    running.watching(&world).await;
    let middle = world.create("middle", json!({}));
    let owned_by = |uid: String, name: &'static str| {
        move |object: &mut Value| {
            object["metadata"]["ownerReferences"] = json!([{"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": uid, "controller": true}]);
        }
    };
    world.change("middle", owned_by(above.clone(), "above"));
    until("the middle's owner", || memory.story_of("middle").len() == 2).await;
    world.create("below", json!({}));
    world.change("below", owned_by(middle, "middle"));
    level(&world, &memory).await;
    let by_owner =
        ObjectSelection { index: Some(("owner".into(), above)), limit: 9, ..ObjectSelection::default() };
    until("the index", || running.listers.select_objects("jobs", &by_owner).unwrap().objects.len() == 2)
        .await;
    running.stop().await;
}
