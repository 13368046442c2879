//! Tests of kinds and rights that come and go while clients watch.

use super::*;

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const FOOS: &str = "/apis/example.com/v1/namespaces/default/foos";

async fn foo(cluster: &TestCluster, name: &str) -> u64 {
    let foo = json!({"apiVersion": "example.com/v1", "kind": "Foo", "metadata": {"name": name}});
    let (code, foo) = cluster.post(FOOS, foo).await;
    assert_eq!(code, 201, "{foo}");
    foo["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}

async fn watch(cluster: &TestCluster, path: &str) -> TestFrames {
    let url = format!("{}{path}?watch=true", cluster.server.url());
    let response = cluster.client.get(url).bearer_auth(&cluster.token).send().await.unwrap();
    assert_eq!(response.status(), 200);
    TestFrames { response, rest: Vec::new() }
}

/// The kinds that discovery names in a group.
async fn discovered(cluster: &TestCluster) -> Vec<String> {
    let url = format!("{}/apis/example.com/v1", cluster.server.url());
    let response = cluster.client.get(url).bearer_auth(&cluster.token).send().await.unwrap();
    if response.status() == 404 {
        return Vec::new();
    }
    let list: Value = serde_json::from_slice(&response.bytes().await.unwrap()).unwrap();
    let resources = list["resources"].as_array().unwrap().iter();
    resources.map(|r| r["name"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_kind_goes_object_by_object_then_its_watches_end_and_it_can_come_back() {
    let cluster = TestCluster::start(|_| {}).await;
    assert!(discovered(&cluster).await.is_empty());
    assert_eq!(cluster.post(DEFINITIONS, definition()).await.0, 201);
    assert_eq!(discovered(&cluster).await, ["foos"]);
    foo(&cluster, "a").await;
    let newest = foo(&cluster, "b").await;
    let mut foos = watch(&cluster, FOOS).await;
    let mut definitions = watch(&cluster, DEFINITIONS).await;
    for frames in [&mut foos, &mut definitions] {
        assert_eq!(frames.next().await.0, "ADDED");
    }
    assert_eq!(foos.next().await.1, "b");

    let (code, _) = cluster.delete(&format!("{DEFINITIONS}/foos.example.com")).await;
    assert_eq!(code, 200);
    let expected =
        |event: &str, name: &str, after: u64| (event.into(), name.into(), (newest + after).to_string());
    assert_eq!(foos.next().await, expected("DELETED", "a", 2));
    assert_eq!(foos.next().await, expected("DELETED", "b", 3));
    assert_eq!(foos.frame().await.unwrap(), None, "the watch ends");
    assert_eq!(definitions.next().await, expected("MODIFIED", "foos.example.com", 1));
    assert_eq!(definitions.next().await, expected("DELETED", "foos.example.com", 4));
    let url = format!("{}{FOOS}", cluster.server.url());
    assert_eq!(cluster.client.get(url).send().await.unwrap().status(), 404);
    assert!(discovered(&cluster).await.is_empty());
    let truth = cluster.server.truth("example.com", "foos");
    assert_eq!(truth.entries.len(), 4, "what was of a kind stays true");

    assert_eq!(cluster.post(DEFINITIONS, definition()).await.0, 201);
    assert_eq!(discovered(&cluster).await, ["foos"]);
    let again = foo(&cluster, "a").await;
    assert_eq!(watch(&cluster, FOOS).await.next().await, ("ADDED".into(), "a".into(), again.to_string()));
}

#[tokio::test]
async fn a_version_that_is_served_no_longer_ends_its_watches() {
    let cluster = TestCluster::start(|_| {}).await;
    cluster.post(DEFINITIONS, definition()).await;
    let mut old = watch(&cluster, "/apis/example.com/v2/namespaces/default/foos").await;
    let path = format!("{DEFINITIONS}/foos.example.com");
    let versions = json!([{"name": "v1", "served": true, "storage": true}]);
    assert_eq!(cluster.merge(&path, json!({"spec": {"versions": versions}})).await.0, 200);
    assert_eq!(old.frame().await.unwrap(), None);
}

#[tokio::test]
async fn a_revoked_right_stops_the_next_request_and_no_watch_that_runs() {
    let mut cluster = TestCluster::start(|options| options.enforce_rbac = true).await;
    let rights = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
    let role = json!({
        "metadata": {"name": "reader"},
        "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list", "watch"]}],
    });
    let binding = json!({
        "metadata": {"name": "reader"}, "roleRef": {"kind": "Role", "name": "reader"},
        "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": "default"}],
    });
    cluster.post(&format!("{rights}/roles"), role).await;
    cluster.post(&format!("{rights}/rolebindings"), binding.clone()).await;
    let admin = cluster.token.clone();
    let account = "/api/v1/namespaces/default/serviceaccounts/default/token";
    let (_, issued) = cluster.post(account, json!({"spec": {}})).await;
    let reader = issued["status"]["token"].as_str().unwrap().to_owned();

    cluster.token.clone_from(&reader);
    let mut frames = cluster.watch("timeoutSeconds=1").await;
    cluster.token.clone_from(&admin);
    assert_eq!(cluster.delete(&format!("{rights}/rolebindings/reader")).await.0, 200);
    cluster.config("a", json!({})).await;
    assert_eq!(frames.next().await.1, "a", "what runs goes on");
    assert_eq!(frames.frame().await.unwrap(), None, "until its time is over");
    cluster.token.clone_from(&reader);
    for path in [MAPS.to_owned(), format!("{MAPS}?watch=true")] {
        let (code, refused) = cluster.get(&path).await;
        assert_eq!((code, &refused["reason"]), (403, &json!("Forbidden")), "{path}");
    }
    cluster.token = admin;
    cluster.post(&format!("{rights}/rolebindings"), binding).await;
    cluster.token = reader;
    assert_eq!(cluster.get(MAPS).await.0, 200);
}

#[tokio::test]
async fn roles_decide_what_an_account_may_do() {
    let mut cluster = TestCluster::start(|options| options.enforce_rbac = true).await;
    let rights = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
    let role = json!({
        "metadata": {"name": "reader"},
        "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list"]}],
    });
    cluster.post(&format!("{rights}/roles"), role).await;
    let binding = json!({
        "metadata": {"name": "reader"}, "roleRef": {"kind": "Role", "name": "reader"},
        "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": "default"}],
    });
    cluster.post(&format!("{rights}/rolebindings"), binding).await;
    let account = "/api/v1/namespaces/default/serviceaccounts/default";
    let (code, issued) = cluster.post(&format!("{account}/token"), json!({"spec": {}})).await;
    assert_eq!(code, 201);
    cluster.token = issued["status"]["token"].as_str().unwrap().to_owned();
    assert_eq!(cluster.get(MAPS).await.0, 200);
    let (code, refused) = cluster.delete(&format!("{MAPS}/a")).await;
    assert_eq!(code, 403);
    assert_eq!(
        refused["message"],
        "configmaps \"a\" is forbidden: User \"system:serviceaccount:default:default\" cannot delete resource \
         \"configmaps\" in API group \"\" in the namespace \"default\""
    );
    let claim =
        cluster.client.get(format!("{}{MAPS}", cluster.server.url())).header("impersonate-user", "root");
    assert_eq!(claim.bearer_auth(&cluster.token).send().await.unwrap().status(), 403);
    let url = format!("{}{MAPS}", cluster.server.url_for(&cluster.token));
    assert_eq!(cluster.client.get(url).send().await.unwrap().status(), 200);
    cluster.token = "wrong".into();
    assert_eq!(cluster.get(MAPS).await.0, 401);
}
