//! Tests of lists at old versions, by pages, and as streams.

use super::*;

fn names(list: &Value) -> Vec<&str> {
    let items = list["items"].as_array().map_or(&[][..], Vec::as_slice);
    items.iter().map(|item| item["metadata"]["name"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn pages_of_the_past_stay_in_the_past_and_count_what_was_then() {
    let cluster = TestCluster::start(|_| {}).await;
    for name in ["a", "b", "c"] {
        cluster.config(name, json!({})).await;
    }
    let then = cluster.config("d", json!({})).await;
    cluster.delete(&format!("{MAPS}/c")).await;
    cluster.config("e", json!({})).await;
    let exact = format!("{MAPS}?limit=2&resourceVersion={then}&resourceVersionMatch=Exact");
    let (_, first) = cluster.get(&exact).await;
    assert_eq!((names(&first), &first["metadata"]["remainingItemCount"]), (vec!["a", "b"], &json!(2)));
    assert_eq!(first["metadata"]["resourceVersion"], then.as_str());
    let token = first["metadata"]["continue"].as_str().unwrap();
    let (_, second) = cluster.get(&format!("{MAPS}?limit=1&continue={token}")).await;
    assert_eq!((names(&second), &second["metadata"]["remainingItemCount"]), (vec!["c"], &json!(1)));
    assert_eq!(second["metadata"]["resourceVersion"], then.as_str());
    let token = second["metadata"]["continue"].as_str().unwrap();
    let (_, last) = cluster.get(&format!("{MAPS}?limit=1&continue={token}")).await;
    assert_eq!((names(&last), &last["metadata"]["remainingItemCount"]), (vec!["d"], &Value::Null));
    assert_eq!(last["metadata"]["continue"], Value::Null);
    cluster.server.compact(None);
    let (code, expired) = cluster.get(&format!("{MAPS}?limit=1&continue={token}")).await;
    assert_eq!((code, expired["metadata"]["continue"].is_string()), (410, true));
}

#[tokio::test]
async fn one_object_of_the_past_is_found_by_its_name() {
    let cluster = TestCluster::start(|_| {}).await;
    cluster.post("/api/v1/namespaces", json!({"metadata": {"name": "team"}})).await;
    let elsewhere = "/api/v1/namespaces/team/configmaps";
    cluster.post(elsewhere, json!({"metadata": {"name": "a"}, "data": {"n": "team"}})).await;
    let then = cluster.config("a", json!({})).await;
    cluster.merge(&format!("{MAPS}/a"), json!({"data": {"n": "1"}})).await;
    let exact = format!("resourceVersion={then}&resourceVersionMatch=Exact&limit=1");
    let by_name = |path: &str, more: &str| format!("{path}?fieldSelector=metadata.name%3Da{more}&{exact}");
    let everywhere = "/api/v1/configmaps";
    for (path, expected, goes_on) in [
        (by_name(MAPS, ""), "0", false),
        (by_name(elsewhere, ""), "team", false),
        (by_name(everywhere, "%2Cmetadata.namespace%3Dteam"), "team", false),
        // Two objects have that name: one on each page, and no count, because there is a selector.
        (by_name(everywhere, ""), "0", true),
    ] {
        let (code, list) = cluster.get(&path).await;
        assert_eq!((code, &list["items"][0]["data"]["n"]), (200, &json!(expected)), "{path}");
        assert_eq!(list["items"].as_array().unwrap().len(), 1);
        assert_eq!(list["metadata"]["continue"].is_string(), goes_on, "{path}");
        assert_eq!(list["metadata"]["remainingItemCount"], Value::Null);
        assert_eq!(list["metadata"]["resourceVersion"], then.as_str());
    }
}

#[tokio::test]
async fn a_streaming_list_of_a_version_to_come_fails_with_an_event() {
    let cluster = TestCluster::start(|_| {}).await;
    cluster.config("a", json!({})).await;
    let query = "allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
    let mut frames = cluster.watch(&format!("{query}&resourceVersion=999999")).await;
    let frame = frames.frame().await.unwrap().unwrap();
    assert_eq!((&frame["type"], &frame["object"]["code"]), (&json!("ERROR"), &json!(504)));
    assert_eq!(frame["object"]["details"]["causes"][0]["reason"], "ResourceVersionTooLarge");
    assert_eq!(frames.frame().await.unwrap(), None);
}

#[tokio::test]
async fn a_streaming_list_without_bookmarks_or_at_version_zero_shows_what_there_is() {
    let cluster = TestCluster::start(|_| {}).await;
    cluster.config("a", json!({})).await;
    let query = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
    let mut silent = cluster.watch(&format!("{query}&timeoutSeconds=1")).await;
    assert_eq!(silent.next().await.1, "a");
    assert_eq!(silent.frame().await.unwrap(), None, "no bookmark was asked for");
    let held = cluster.server.hold_cache(None);
    cluster.config("b", json!({})).await;
    let mut stale = cluster.watch(&format!("{query}&allowWatchBookmarks=true&resourceVersion=0")).await;
    assert_eq!(stale.next().await.1, "a");
    let end = stale.frame().await.unwrap().unwrap();
    assert_eq!(end["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
    assert_eq!(end["object"]["metadata"]["resourceVersion"], held.to_string());
}
