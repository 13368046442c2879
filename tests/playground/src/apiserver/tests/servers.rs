//! Tests of several servers over one store, each with a cache and a life of its own.

use std::net::{Ipv4Addr, SocketAddr};

use super::*;

/// The same cluster through a second server.
async fn second(cluster: &TestCluster) -> TestCluster {
    let anywhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let (server, serving) = cluster.server.beside(anywhere).await.unwrap();
    cluster.over(server, serving)
}

fn listed(list: &Value) -> Vec<(&str, &str)> {
    let items = list["items"].as_array().map_or(&[][..], Vec::as_slice);
    items
        .iter()
        .map(|item| {
            (
                item["metadata"]["name"].as_str().unwrap(),
                item["metadata"]["resourceVersion"].as_str().unwrap(),
            )
        })
        .collect()
}

#[tokio::test]
async fn what_one_server_writes_another_one_watches() {
    let one = TestCluster::start(|_| {}).await;
    let two = second(&one).await;
    let mut frames = two.watch("").await;
    let version = one.config("a", json!({})).await;
    assert_eq!(frames.next().await, ("ADDED".into(), "a".into(), version));
}

#[tokio::test]
async fn a_server_that_starts_later_knows_nothing_from_before() {
    let one = TestCluster::start(|_| {}).await;
    let version = one.config("a", json!({})).await;
    one.config("b", json!({})).await;
    let two = second(&one).await;
    let from = format!("resourceVersion={version}");
    assert_eq!(one.watch(&from).await.next().await.1, "b");
    let frame = two.watch(&from).await.frame().await.unwrap().unwrap();
    assert_eq!((&frame["type"], &frame["object"]["code"]), (&json!("ERROR"), &json!(410)));
}

#[tokio::test]
async fn a_server_that_lags_shows_the_past_and_never_says_so() {
    let one = TestCluster::start(|_| {}).await;
    let two = second(&one).await;
    let old = one.config("a", json!({})).await;
    let held = two.server.hold_cache(None);
    assert_eq!(held.to_string(), old);
    let mut frames = two.watch(&format!("resourceVersion={old}&allowWatchBookmarks=true")).await;
    let (_, map) = one.merge(&format!("{MAPS}/a"), json!({"data": {"n": "1"}})).await;
    let new = map["metadata"]["resourceVersion"].as_str().unwrap();

    let (_, cached) = two.get(&format!("{MAPS}?resourceVersion=0")).await;
    assert_eq!((listed(&cached), &cached["metadata"]["resourceVersion"]), (vec![("a", &*old)], &json!(old)));
    let (_, cached) = two.get(&format!("{MAPS}/a?resourceVersion=0")).await;
    assert_eq!((&cached["metadata"]["resourceVersion"], &cached["data"]["n"]), (&json!(old), &json!("0")));
    assert_eq!(two.get(&format!("{MAPS}/a")).await.1["data"]["n"], "1");
    assert_eq!(two.get(&format!("{MAPS}/a?resourceVersion={new}")).await.0, 504);
    let (_, consistent) = two.get(MAPS).await;
    assert_eq!(listed(&consistent), [("a", new)]);
    let (_, exact) = two.get(&format!("{MAPS}?resourceVersion={new}&resourceVersionMatch=Exact")).await;
    assert_eq!(listed(&exact), [("a", new)]);
    let (code, behind) = two.get(&format!("{MAPS}?resourceVersion={new}")).await;
    assert_eq!((code, &behind["details"]["retryAfterSeconds"]), (504, &json!(1)));
    assert_eq!(behind["details"]["causes"][0]["reason"], "ResourceVersionTooLarge");
    // Bookmarks stay at the cache's version.
    assert_eq!(frames.next().await, ("BOOKMARK".into(), String::new(), old.clone()));
    one.server.compact(None);
    let (_, cached) = two.get(&format!("{MAPS}?resourceVersion=0")).await;
    assert_eq!(listed(&cached), [("a", &*old)], "compaction does not reach a cache");

    two.server.release_cache();
    assert_eq!(two.get(&format!("{MAPS}?resourceVersion={new}")).await.0, 200);
}

#[tokio::test]
async fn a_cache_that_catches_up_tells_what_it_missed() {
    let one = TestCluster::start(|_| {}).await;
    let two = second(&one).await;
    let old = one.config("a", json!({})).await;
    two.server.hold_cache(None);
    let mut frames = two.watch(&format!("resourceVersion={old}")).await;
    for name in ["b", "c"] {
        one.config(name, json!({})).await;
    }
    two.server.hold_cache(Some(two.server.version() - 1));
    assert_eq!(frames.next().await.1, "b");
    two.server.release_cache();
    assert_eq!(frames.next().await.1, "c");
}

#[tokio::test]
async fn a_streaming_list_of_a_server_that_lags_tells_of_deletions_before_it_is_complete() {
    let cluster = TestCluster::start(|_| {}).await;
    for name in ["a", "b"] {
        cluster.config(name, json!({})).await;
    }
    cluster.server.hold_cache(None);
    cluster.delete(&format!("{MAPS}/a")).await;
    let query = "allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
    let mut frames = cluster.watch(query).await;
    assert_eq!(frames.next().await.1, "a");
    assert_eq!(frames.next().await.1, "b");
    cluster.server.release_cache();
    let (event, name, version) = frames.next().await;
    assert_eq!((&*event, &*name), ("DELETED", "a"));
    let end = frames.frame().await.unwrap().unwrap();
    assert_eq!(end["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
    assert_eq!(end["object"]["metadata"]["resourceVersion"], version.as_str());
}

#[tokio::test]
async fn a_server_goes_down_and_comes_back_on_its_port_with_an_empty_window() {
    let one = TestCluster::start(|_| {}).await;
    let two = second(&one).await;
    let version = one.config("a", json!({})).await;
    let mut frames = two.watch("").await;
    assert_eq!(frames.next().await.1, "a");
    two.server.power_off().await;
    assert!(frames.frame().await.is_err(), "its connections break");
    let refused = two.client.get(two.server.url()).send().await.unwrap_err();
    assert!(refused.is_connect(), "{refused:?}");
    let newer = one.config("b", json!({})).await;

    two.server.power_on().await;
    let (_, list) = two.get(MAPS).await;
    assert_eq!(list["metadata"]["resourceVersion"], newer.as_str());
    assert_eq!(two.watch(&format!("resourceVersion={version}")).await.next().await.0, "ERROR");
    assert_eq!(one.watch(&format!("resourceVersion={version}")).await.next().await.1, "b");
}

#[tokio::test]
async fn servers_are_held_and_taken_down_by_hooks_too() {
    let one = TestCluster::start(|options| options.hooks = true).await;
    let two = second(&one).await;
    let version = one.config("a", json!({})).await;
    let (_, held) = one.post("/_sim/hold", json!({"server": 1})).await;
    assert_eq!(held["version"].to_string(), version);
    one.config("b", json!({})).await;
    let (_, versions) = two.get("/_sim/version").await;
    assert_eq!(versions["cached"], held["version"]);
    let (code, _) = two.post("/_sim/power", json!({"on": false, "backAfterMs": 1})).await;
    assert_eq!(code, 200, "the answer goes out before the connection breaks");
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let (_, servers) = one.get("/_sim/servers").await;
        if servers[1]["up"] == true && servers[1]["cached"] == one.server.version() {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "{servers}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(two.get(MAPS).await.0, 200);
    assert_eq!(one.post("/_sim/hold", json!({"server": 7})).await.0, 400);
}

#[tokio::test]
async fn deletions_that_share_a_version_are_told_to_who_comes_from_before() {
    let cluster = TestCluster::start(|_| {}).await;
    let names = ["a", "b", "c"];
    let mut last = String::new();
    for name in names {
        last = cluster.config(name, json!({})).await;
    }
    assert_eq!(cluster.server.delete_together("", "configmaps", "default", &["a", "b", "c", "d"]), 3);
    let shared = cluster.server.version().to_string();
    let mut frames = cluster.watch(&format!("resourceVersion={last}")).await;
    for name in names {
        assert_eq!(frames.next().await, ("DELETED".into(), name.into(), shared.clone()));
    }
    let mut late = cluster.watch(&format!("resourceVersion={shared}&timeoutSeconds=1")).await;
    assert_eq!(late.frame().await.unwrap(), None, "from the version itself they are lost");
}

#[tokio::test]
async fn a_server_that_is_stopped_does_not_wait_for_the_other_half_of_a_request() {
    let (server, serving) = ApiServer::bind(ApiServerOptions::default()).await.unwrap();
    let stop = CancellationToken::new();
    let address = server.url().trim_start_matches("http://").to_owned();
    let client = async {
        let mut half = tokio::net::TcpStream::connect(address).await.unwrap();
        let head = format!(
            "POST /api/v1/namespaces HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\n\
             Content-Type: application/json\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n",
            server.admin_token()
        );
        tokio::io::AsyncWriteExt::write_all(&mut half, head.as_bytes()).await.unwrap();
        let mut told = [0; 12];
        tokio::io::AsyncReadExt::read_exact(&mut half, &mut told).await.unwrap();
        assert_eq!(&told, b"HTTP/1.1 100", "its body is waited for");
        stop.cancel();
        half
    };
    let both = async { tokio::join!(serving.serve(stop.clone()), client) };
    let (served, _half) = tokio::time::timeout(PATIENCE, both).await.expect("it ends");
    served.unwrap();
}
