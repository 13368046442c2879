//! Tests of the store beyond one process and one history: backups, the file, and the record of what happened.

use super::*;

fn versions(truth: &ResourceTruth) -> Vec<(u32, &str, u64)> {
    truth.entries.iter().map(|e| (e.epoch, e.event, e.version)).collect()
}

fn number(version: &str) -> u64 {
    version.parse().unwrap()
}

#[tokio::test]
async fn a_restore_takes_the_counter_and_the_objects_back() {
    let cluster = TestCluster::start(|_| {}).await;
    let first = cluster.config("a", json!({})).await;
    assert_eq!(cluster.server.back_up("before"), number(&first));
    let mut frames = cluster.watch(&format!("resourceVersion={first}")).await;
    cluster.merge(&format!("{MAPS}/a"), json!({"data": {"n": "1"}})).await;
    cluster.config("b", json!({})).await;
    assert_eq!(frames.next().await.0, "MODIFIED");
    assert_eq!(frames.next().await.0, "ADDED");

    assert_eq!(cluster.server.restore("before", 0), Some(number(&first)));
    assert!(frames.frame().await.is_err(), "watches break");
    let (_, list) = cluster.get(MAPS).await;
    assert_eq!(list["metadata"]["resourceVersion"], first.as_str());
    assert_eq!((list["items"].as_array().unwrap().len(), &list["items"][0]["data"]["n"]), (1, &json!("0")));
    let again = cluster.config("c", json!({})).await;
    assert_eq!(number(&again), number(&first) + 1, "the same numbers, other objects");
    assert_eq!(cluster.watch(&format!("resourceVersion={first}")).await.next().await.1, "c");
    assert_eq!(cluster.server.restore("never", 0), None);

    let truth = cluster.server.truth("", "configmaps");
    let first = number(&first);
    assert_eq!(
        versions(&truth),
        [(0, "ADDED", first), (0, "MODIFIED", first + 1), (0, "ADDED", first + 2), (1, "ADDED", first + 1),]
    );
    assert_eq!(truth.epochs[1].parent, Some((0, first)));
    let readable: Vec<bool> = truth.entries.iter().map(|e| e.unreadable_since.is_none()).collect();
    assert_eq!(readable, [true, false, false, true]);
}

#[tokio::test]
async fn a_restore_may_raise_the_counter_instead() {
    let cluster = TestCluster::start(|_| {}).await;
    let first = number(&cluster.config("a", json!({})).await);
    cluster.server.back_up("before");
    cluster.config("b", json!({})).await;
    assert_eq!(cluster.server.restore("before", 1000), Some(first + 1000));
    let exact = format!("{MAPS}?resourceVersion={first}&resourceVersionMatch=Exact");
    assert_eq!(cluster.get(&exact).await.0, 410);
    let (_, list) = cluster.get(MAPS).await;
    assert_eq!(list["items"][0]["metadata"]["resourceVersion"], first.to_string());
    assert_eq!(cluster.watch(&format!("resourceVersion={first}")).await.next().await.0, "ERROR");
}

#[tokio::test]
async fn definitions_and_rights_are_as_they_were_in_the_backup() {
    let cluster = TestCluster::start(|options| options.enforce_rbac = true).await;
    cluster.server.back_up("before");
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    assert_eq!(cluster.post(definitions, definition()).await.0, 201);
    assert_eq!(cluster.get("/apis/example.com/v1/foos").await.0, 200);
    cluster.server.restore("before", 0).unwrap();
    let url = format!("{}/apis/example.com/v1/foos", cluster.server.url());
    assert_eq!(cluster.client.get(url).bearer_auth(&cluster.token).send().await.unwrap().status(), 404);
}

#[tokio::test]
async fn what_is_compacted_is_unreadable_from_then_on() {
    let cluster = TestCluster::start(|_| {}).await;
    cluster.config("a", json!({})).await;
    let (_, second) = cluster.merge(&format!("{MAPS}/a"), json!({"data": {"n": "1"}})).await;
    cluster.delete(&format!("{MAPS}/a")).await;
    let second = number(second["metadata"]["resourceVersion"].as_str().unwrap());
    let before = cluster.server.truth("", "configmaps");
    let readable: Vec<bool> = before.entries.iter().map(|e| e.unreadable_since.is_none()).collect();
    assert_eq!(readable, [true, true, false], "a deletion cannot be listed");

    cluster.server.compact(Some(second));
    let truth = cluster.server.truth("", "configmaps");
    let readable: Vec<bool> = truth.entries.iter().map(|e| e.unreadable_since.is_none()).collect();
    assert_eq!(readable, [false, true, false], "the version that held at the floor is still there");
    let since = truth.entries[0].unreadable_since.unwrap();
    assert!((before.now..=truth.now).contains(&since));
    assert!(truth.entries[0].was_readable_at(since - 1) || since == truth.entries[0].at);
    assert!(!truth.entries[0].was_readable_at(since));
    for entry in &truth.entries {
        let query = format!(
            "{MAPS}?resourceVersion={}&resourceVersionMatch=Exact&fieldSelector=metadata.name%3Da&limit=1",
            entry.version
        );
        let (code, list) = cluster.get(&query).await;
        let shown = code == 200 && list["items"].as_array().unwrap().len() == 1;
        assert_eq!(shown, entry.was_readable_at(truth.now), "{entry:?}");
    }
}

#[tokio::test]
async fn a_store_with_a_file_outlives_its_process() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let with_state = |options: &mut ApiServerOptions| options.state = Some(state.clone());
    let first = TestCluster::start(with_state).await;
    first.post(JOBS, job("train")).await;
    let version = first.config("a", json!({"w": "1"})).await;
    first.server.back_up("before");
    first.merge(&format!("{MAPS}/a"), json!({"data": {"n": "1"}})).await;
    first.delete(&format!("{JOBS}/train")).await;
    first.server.compact(Some(number(&version)));
    let token = first.server.kubeconfig_for("default", "default");
    let token = token.split("token: ").nth(1).unwrap().trim().to_owned();
    let (_, before) = first.get(&format!("{MAPS}?labelSelector=w%3D1")).await;
    // The first process is not told to stop, and a write was in progress.
    let torn = std::fs::read(&state).unwrap();
    std::fs::write(&state, [&torn[..], b"{\"put\": \"configm"].concat()).unwrap();

    let mut second = TestCluster::start(with_state).await;
    let (_, after) = second.get(&format!("{MAPS}?labelSelector=w%3D1")).await;
    assert_eq!(after, before);
    let exact = format!("{MAPS}/?fieldSelector=metadata.name%3Da&resourceVersionMatch=Exact&limit=1");
    let (_, old) = second.get(&format!("{exact}&resourceVersion={version}")).await;
    assert_eq!(old["items"][0]["data"]["n"], "0");
    assert_eq!(second.get(&format!("{exact}&resourceVersion={}", number(&version) - 1)).await.0, 410);
    assert_eq!(second.get(&format!("{JOBS}/train")).await.0, 404);
    let frame = second.watch(&format!("resourceVersion={version}")).await.frame().await.unwrap().unwrap();
    assert_eq!(frame["object"]["code"], 410, "the window is empty after a start");
    // A line reaches the disk a moment later, perhaps in the next millisecond.
    let timeless = |server: &ApiServer| {
        let mut truth = server.truth("", "configmaps");
        truth.entries.iter_mut().for_each(|entry| entry.at = 0);
        truth.floors.iter_mut().for_each(|floor| floor.at = 0);
        truth.now = 0;
        truth
    };
    assert_eq!(timeless(&second.server), timeless(&first.server));
    assert!(second.server.restore("before", 0).is_some());
    assert_eq!(second.get(&format!("{JOBS}/train")).await.0, 200);
    second.token = token;
    assert_eq!(second.get(MAPS).await.0, 200, "tokens are known again");
}

#[tokio::test]
async fn versions_that_cannot_be_compared_are_taken_back_all_the_same() {
    let cluster = TestCluster::start(|options| options.versions = VersionStyle::Opaque).await;
    let first = cluster.config("a", json!({})).await;
    assert!(first.parse::<u64>().is_err(), "{first}");
    let mut frames = cluster.watch(&format!("resourceVersion={first}&allowWatchBookmarks=true")).await;
    let patch = json!({"metadata": {"resourceVersion": first}, "data": {"n": "1"}});
    let (code, second) = cluster.merge(&format!("{MAPS}/a"), patch.clone()).await;
    assert_eq!((code, cluster.merge(&format!("{MAPS}/a"), patch).await.0), (200, 409));
    let second = second["metadata"]["resourceVersion"].as_str().unwrap();
    assert_eq!(frames.next().await, ("MODIFIED".into(), "a".into(), second.to_owned()));
    assert_eq!(frames.next().await.2, second, "bookmarks too");
    let (_, exact) = cluster.get(&format!("{MAPS}?resourceVersion={first}&resourceVersionMatch=Exact")).await;
    assert_eq!(exact["metadata"]["resourceVersion"], first.as_str());
    assert_eq!(exact["items"][0]["data"]["n"], "0");
    let (_, table) = cluster.get(&format!("{MAPS}?limit=1")).await;
    assert_eq!(table["items"][0]["metadata"]["resourceVersion"], second);
}
