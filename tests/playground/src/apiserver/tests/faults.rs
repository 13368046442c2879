//! Tests of faults as a client meets them. Faults of single events are tested beside their code.

use super::*;
use crate::apiserver::faults::{self, FaultKind, FaultPoint, GARBAGE, InjectedFault};

const STREAMING: &str = "allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan";

/// A cluster with one object, and that object's version.
async fn with_one(change: impl FnOnce(&mut ApiServerOptions)) -> (TestCluster, String) {
    let cluster = TestCluster::start(change).await;
    let version = cluster.config("a", json!({})).await;
    (cluster, version)
}

#[tokio::test]
async fn requests_are_refused_as_often_as_was_said_and_no_others() {
    let (cluster, _) = with_one(|_| {}).await;
    let refuse = |code, retry_after| FaultKind::Refuse { code, retry_after };
    cluster.server.inject(InjectedFault::once(refuse(429, Some(7))).on("configmaps").times(2).after(1));
    assert_eq!(cluster.get(MAPS).await.0, 200, "the first passes");
    assert_eq!(cluster.get(JOBS).await.0, 200, "another resource");
    assert_eq!(cluster.get(&format!("{MAPS}/a")).await.0, 200, "another verb");
    for _ in 0..2 {
        let url = format!("{}{MAPS}", cluster.server.url());
        let response = cluster.client.get(url).bearer_auth(&cluster.token).send().await.unwrap();
        assert_eq!(
            (response.status().as_u16(), &response.headers()["retry-after"]),
            (429, &"7".parse().unwrap())
        );
    }
    assert_eq!((cluster.get(MAPS).await.0, cluster.server.armed()), (200, 0));
    for code in [500, 503] {
        cluster.server.inject(InjectedFault::once(refuse(code, None)));
        assert_eq!(cluster.get(&format!("{MAPS}?watch=true")).await.0, code);
    }
    cluster.server.inject(InjectedFault::once(FaultKind::TooLarge));
    let (code, status) = cluster.get(&format!("{MAPS}?resourceVersion=1")).await;
    assert_eq!((code, &status["details"]["causes"][0]["reason"]), (504, &json!("ResourceVersionTooLarge")));
    cluster.server.inject(InjectedFault::always(FaultKind::TooLarge));
    assert_eq!((cluster.server.disarm(), cluster.get(MAPS).await.0), (1, 200));
}

#[tokio::test]
async fn a_version_expires_in_each_form_there_is() {
    let (cluster, version) = with_one(|_| {}).await;
    let path = format!("{MAPS}?watch=true&resourceVersion={version}");
    cluster.server.inject(InjectedFault::once(FaultKind::Expired));
    let (code, status) = cluster.get(&path).await;
    assert_eq!((code, &status["reason"]), (410, &json!("Expired")));
    cluster.server.inject(InjectedFault::once(FaultKind::ExpiredEvent(FaultPoint::Exactly(0))));
    let mut frames = cluster.watch(&format!("resourceVersion={version}")).await;
    assert_eq!(frames.frame().await.unwrap().unwrap()["object"]["code"], 410);
    assert_eq!(frames.frame().await.unwrap(), None);
    cluster.server.inject(InjectedFault::always(FaultKind::ExpiredAsStatus));
    let mut frames = cluster.watch(&format!("resourceVersion={version}")).await;
    cluster.config("b", json!({})).await;
    assert_eq!(frames.next().await.1, "b", "a version that is there is served");
    cluster.server.forget_watch_window();
    assert_eq!(cluster.get(&path).await.0, 410);
}

#[tokio::test]
async fn a_page_expires_and_the_rest_comes_inconsistently() {
    let (cluster, _) = with_one(|_| {}).await;
    cluster.config("b", json!({})).await;
    cluster.config("d", json!({})).await;
    cluster.server.inject(InjectedFault::always(FaultKind::ExpiredContinue));
    let (code, first) = cluster.get(&format!("{MAPS}?limit=1")).await;
    assert_eq!(code, 200, "a first page has no token");
    cluster.config("c", json!({})).await;
    let token = first["metadata"]["continue"].as_str().unwrap();
    let (code, expired) = cluster.get(&format!("{MAPS}?limit=9&continue={token}")).await;
    assert_eq!((code, &expired["reason"]), (410, &json!("Expired")));
    let token = expired["metadata"]["continue"].as_str().unwrap();
    let (code, rest) = cluster.get(&format!("{MAPS}?limit=9&continue={token}")).await;
    assert_eq!((code, rest["items"].as_array().unwrap().len()), (200, 3), "with what was created meanwhile");
}

#[tokio::test]
async fn a_server_may_know_neither_exact_nor_streaming_lists() {
    let (cluster, version) = with_one(|_| {}).await;
    cluster.merge(&format!("{MAPS}/a"), json!({"data": {"n": "1"}})).await;
    let exact = format!("{MAPS}?resourceVersion={version}&resourceVersionMatch=Exact");
    cluster.server.inject(InjectedFault::once(FaultKind::RefuseExact { code: 400 }));
    assert_eq!((cluster.get(MAPS).await.0, cluster.get(&exact).await.0), (200, 400));
    cluster.server.inject(InjectedFault::once(FaultKind::IgnoreExact));
    let (_, list) = cluster.get(&exact).await;
    assert_eq!(list["items"][0]["data"]["n"], "1");
    assert_ne!(list["metadata"]["resourceVersion"], version.as_str());

    cluster.server.inject(InjectedFault::once(FaultKind::RefuseInitialEvents { code: 422 }));
    let (code, status) = cluster.get(&format!("{MAPS}?watch=true&{STREAMING}")).await;
    assert_eq!((code, &status["details"]["causes"][0]["field"]), (422, &json!("sendInitialEvents")));
    cluster.server.inject(InjectedFault::once(FaultKind::IgnoreInitialEvents));
    let mut frames = cluster.watch(STREAMING).await;
    assert_eq!(frames.next().await.0, "ADDED");
    let bookmark = frames.frame().await.unwrap().unwrap();
    assert_eq!(bookmark["object"]["metadata"]["annotations"], Value::Null);
}

#[tokio::test]
async fn a_body_breaks_ends_or_falls_silent_at_any_byte() {
    let (cluster, _) = with_one(|_| {}).await;
    let whole = {
        let mut frames = cluster.watch("").await;
        frames.next().await;
        cluster.get(&format!("{MAPS}/a")).await.1.to_string().len() as u64
    };
    for at in [1, 2, whole / 2, whole] {
        for what in [FaultKind::Cut, FaultKind::End] {
            let what = what(FaultPoint::Exactly(at));
            let breaks = matches!(what, FaultKind::Cut(_));
            cluster.server.inject(InjectedFault::once(what));
            let mut frames = cluster.watch("").await;
            assert_eq!(frames.frame().await.map_err(drop), if breaks { Err(()) } else { Ok(None) }, "{at}");
            assert_eq!(frames.rest.len() as u64, at);
        }
    }
    cluster.server.inject(InjectedFault::once(FaultKind::Silent(FaultPoint::Exactly(3))));
    let mut frames = cluster.watch("timeoutSeconds=1").await;
    let waited = tokio::time::timeout(PATIENCE, frames.response.chunk());
    assert_eq!(waited.await.unwrap().unwrap().unwrap().len(), 3);
    let waited = tokio::time::timeout(Duration::from_millis(1300), frames.response.chunk());
    assert!(waited.await.is_err(), "not even the server's time limit ends it");
}

#[tokio::test]
async fn a_connection_may_never_answer_or_hang_up() {
    let (cluster, _) = with_one(|_| {}).await;
    let url = format!("{}{MAPS}", cluster.server.url());
    cluster.server.inject(InjectedFault::once(FaultKind::HangUp));
    let failed = cluster.client.get(&url).bearer_auth(&cluster.token).send().await.unwrap_err();
    assert!(failed.is_request(), "{failed:?}");
    cluster.server.inject(InjectedFault::once(FaultKind::Hang));
    let asked = cluster.client.get(&url).bearer_auth(&cluster.token).timeout(Duration::from_millis(200));
    assert!(asked.send().await.unwrap_err().is_timeout());
    assert_eq!(cluster.get(MAPS).await.0, 200);
}

#[tokio::test]
async fn a_large_object_comes_in_many_chunks() {
    let (cluster, version) = with_one(|_| {}).await;
    let map = json!({"metadata": {"name": "large"}, "data": {"x": "x".repeat(3 << 20)}});
    assert_eq!(cluster.post(MAPS, map).await.0, 201);
    cluster.server.inject(InjectedFault::once(FaultKind::Chunks { size: 4000 }));
    let mut frames = cluster.watch(&format!("resourceVersion={version}")).await;
    let (mut chunks, mut bytes) = (0, Vec::new());
    while !bytes.ends_with(b"\n") {
        let chunk = tokio::time::timeout(PATIENCE, frames.response.chunk()).await.unwrap().unwrap().unwrap();
        chunks += 1;
        bytes.extend_from_slice(&chunk);
    }
    assert!(chunks > 100, "{chunks}");
    let frame: Value = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(frame["object"]["data"]["x"].as_str().unwrap().len(), 3 << 20);
}

#[tokio::test]
async fn a_slow_body_takes_its_time() {
    let (cluster, _) = with_one(|_| {}).await;
    cluster.server.inject(InjectedFault::once(FaultKind::Slow { bytes_per_second: 1000 }));
    let began = std::time::Instant::now();
    let mut frames = cluster.watch("").await;
    frames.next().await;
    assert!(began.elapsed() >= Duration::from_millis(200), "{:?}", began.elapsed());
}

#[tokio::test]
async fn items_and_events_may_be_none() {
    let (cluster, _) = with_one(|_| {}).await;
    cluster
        .server
        .inject(InjectedFault::once(FaultKind::InsertItem { item: faults::ITEM_WITHOUT_METADATA.into() }));
    let (_, list) = cluster.get(MAPS).await;
    assert_eq!(
        (&list["items"][0], &list["items"][1]["metadata"]["name"]),
        (&json!({"spec": {}}), &json!("a"))
    );
    let insert = FaultKind::Insert { at: FaultPoint::Exactly(1), frame: GARBAGE.into() };
    cluster.server.inject(InjectedFault::once(insert));
    let mut frames = cluster.watch("").await;
    let chunk = tokio::time::timeout(PATIENCE, frames.response.chunk()).await.unwrap().unwrap().unwrap();
    assert!(chunk.starts_with(GARBAGE.as_bytes()));
}

#[tokio::test]
async fn a_bookmark_may_be_ahead_of_an_event_that_never_came() {
    let (cluster, version) = with_one(|_| {}).await;
    cluster.server.inject(InjectedFault::once(FaultKind::Drop(FaultPoint::Exactly(1))));
    let mut frames = cluster.watch(&format!("resourceVersion={version}&allowWatchBookmarks=true")).await;
    let lost = cluster.config("b", json!({})).await;
    loop {
        let (event, _, version) = frames.next().await;
        assert_eq!(event, "BOOKMARK");
        if version == lost {
            break;
        }
    }
}

#[tokio::test]
async fn the_same_seed_hits_the_same_requests() {
    let mut patterns = Vec::new();
    for _ in 0..2 {
        let (cluster, _) = with_one(|options| {
            options.seed = Some(5);
            options.faults =
                vec![InjectedFault::always(FaultKind::Refuse { code: 500, retry_after: None }).one_in(3)];
        })
        .await;
        let mut codes = Vec::new();
        for _ in 0..30 {
            codes.push(cluster.get(MAPS).await.0);
        }
        patterns.push(codes);
    }
    assert_eq!(patterns[0], patterns[1]);
    assert!(patterns[0].contains(&200) && patterns[0].contains(&500));
}

#[tokio::test]
async fn faults_are_armed_by_hooks_too() {
    let (cluster, _) = with_one(|options| options.hooks = true).await;
    let faults = json!([{"fault": "refuse", "code": 503}, {"fault": "duplicate", "at": 1}]);
    assert_eq!(cluster.post("/_sim/faults", faults).await, (200, json!({"armed": 2})));
    assert_eq!(cluster.get(MAPS).await.0, 503);
    let mut frames = cluster.watch("").await;
    assert_eq!(frames.next().await, frames.next().await);
    let (code, why) = cluster.post("/_sim/faults", json!({"fault": "nap"})).await;
    assert_eq!((code, &why["message"]), (400, &json!("no fault is called \"nap\"")));
    assert_eq!(cluster.delete("/_sim/faults").await, (200, json!({"disarmed": 0})));
}
