//! Tokens and rights, against the simulated API server.

use http::Method;
use kubewitness_core::ports::{AccessAttempt, AccessReviewer, Person, ReviewError};
use kubewitness_playground::apiserver::{ApiServer, ApiServerOptions};
use kubewitness_watch::{AUDIENCE, ReviewClient};

use crate::simulator::SimulatedCluster;
use crate::*;

const RIGHTS: &str = "/apis/rbac.authorization.k8s.io/v1";

async fn cluster() -> SimulatedCluster {
    let options = ApiServerOptions { enforce_rbac: true, ..ApiServerOptions::default() };
    let (server, serving) = ApiServer::bind(options).await.unwrap();
    let stop = CancellationToken::new();
    tokio::spawn(serving.serve(stop.clone()));
    let connection = connected_by(&server.kubeconfig()).await;
    SimulatedCluster { server, connection, stop }
}

impl SimulatedCluster {
    async fn namespace(&self, name: &str) -> Value {
        self.send(Method::POST, "/api/v1/namespaces", json!({"metadata": {"name": name}})).await
    }

    async fn account(&self, namespace: &str, name: &str) {
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts");
        self.send(Method::POST, &path, json!({"metadata": {"name": name}})).await;
    }

    async fn token(&self, namespace: &str, account: &str, audience: Option<&str>) -> String {
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token");
        let audiences: Vec<_> = audience.into_iter().collect();
        let issued = self.send(Method::POST, &path, json!({"spec": {"audiences": audiences}})).await;
        issued["status"]["token"].as_str().unwrap().to_owned()
    }
}

fn reads(resource: &str, namespace: &str) -> AccessAttempt {
    let text = str::to_owned;
    let group = if resource == "jobs" { "batch" } else { "" };
    AccessAttempt {
        verb: text("list"),
        group: text(group),
        resource: text(resource),
        namespace: text(namespace),
        name: String::new(),
    }
}

#[tokio::test]
async fn a_token_is_its_accounts_for_the_portal_and_for_the_api_server_alone() {
    let cluster = cluster().await;
    cluster.account("default", "ann").await;
    let reviews = ReviewClient::new(&cluster.connection);
    for audience in [Some(AUDIENCE), None] {
        let token = cluster.token("default", "ann", audience).await;
        let person = reviews.authenticate_token(&token).await.unwrap().unwrap();
        assert_eq!(person.user, "system:serviceaccount:default:ann");
        assert!(person.groups.contains(&"system:serviceaccounts:default".to_owned()), "{person:?}");
        assert!(person.groups.contains(&"system:authenticated".to_owned()) && !person.uid.is_empty());
    }
    let elsewhere = cluster.token("default", "ann", Some("vault.example.com")).await;
    for token in [elsewhere.as_str(), "nobody's", "admin\u{7f}"] {
        assert_eq!(reviews.authenticate_token(token).await.unwrap(), None, "{token}");
    }
    let token = cluster.token("default", "ann", Some(AUDIENCE)).await;
    cluster.send(Method::DELETE, "/api/v1/namespaces/default/serviceaccounts/ann", Value::Null).await;
    assert_eq!(reviews.authenticate_token(&token).await.unwrap(), None, "the account is gone");
}

#[tokio::test]
async fn a_token_for_the_portal_opens_no_api_server() {
    let cluster = cluster().await;
    let token = cluster.token("default", "default", Some(AUDIENCE)).await;
    let answered = connected_by(
        &json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": cluster.server.url_for(&token)}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]})
        .to_string(),
    )
    .await;
    let error = answered.server_version().await.unwrap_err().to_string();
    assert!(error.contains("401"), "{error}");
}

#[tokio::test]
async fn roles_decide_and_a_binding_that_is_gone_counts_at_once() {
    let cluster = cluster().await;
    cluster.namespace("ml").await;
    let rules = json!([{"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["get", "list"]}]);
    let role = json!({"metadata": {"name": "viewer"}, "rules": rules});
    cluster.send(Method::POST, &format!("{RIGHTS}/clusterroles"), role).await;
    let binding = json!({"metadata": {"name": "viewers"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "viewer"},
        "subjects": [{"kind": "Group", "name": "team-a", "apiGroup": "rbac.authorization.k8s.io"}]});
    cluster.send(Method::POST, &format!("{RIGHTS}/namespaces/ml/rolebindings"), binding).await;
    let reviews = ReviewClient::new(&cluster.connection);
    let ann = Person { user: "ann".into(), groups: vec!["team-a".into()], ..Person::default() };
    let bob = Person { user: "bob".into(), ..Person::default() };
    assert!(reviews.allows_attempt(&ann, &reads("jobs", "ml")).await.unwrap());
    for (person, attempt) in [
        (&ann, reads("pods", "ml")),
        (&ann, reads("jobs", "default")),
        (&ann, reads("jobs", "")),
        (&bob, reads("jobs", "ml")),
    ] {
        assert!(!reviews.allows_attempt(person, &attempt).await.unwrap(), "{person:?} {attempt:?}");
    }
    cluster.send(Method::DELETE, &format!("{RIGHTS}/namespaces/ml/rolebindings/viewers"), Value::Null).await;
    assert!(!reviews.allows_attempt(&ann, &reads("jobs", "ml")).await.unwrap());
}

#[tokio::test]
async fn a_namespace_that_is_made_again_is_another_one() {
    let cluster = cluster().await;
    let reviews = ReviewClient::new(&cluster.connection);
    assert_eq!(reviews.find_namespace("ml").await.unwrap(), None);
    let made = cluster.namespace("ml").await;
    let first = reviews.find_namespace("ml").await.unwrap().unwrap();
    assert_eq!(made["metadata"]["uid"], first.uid);
    assert!(first.created_ms > 0 && first.created_ms.is_multiple_of(1000));
    cluster.send(Method::DELETE, "/api/v1/namespaces/ml", Value::Null).await;
    tokio::time::timeout(Duration::from_secs(30), async {
        while reviews.find_namespace("ml").await.unwrap().is_some() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await
    .expect("the namespace goes");
    cluster.namespace("ml").await;
    assert_ne!(reviews.find_namespace("ml").await.unwrap().unwrap().uid, first.uid);
}

#[tokio::test]
async fn who_may_not_review_is_told_which_role_to_bind() {
    let cluster = cluster().await;
    let connection = connected_by(&cluster.server.kubeconfig_for("default", "default")).await;
    let reviews = ReviewClient::new(&connection);
    let error = reviews.authenticate_token("t").await.unwrap_err();
    assert!(matches!(&error, ReviewError::Forbidden(why) if why.contains("kubewitness-reviews")), "{error}");
    let delegated = json!({"metadata": {"name": "reviews"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:auth-delegator"},
        "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": "default"}]});
    cluster.send(Method::POST, &format!("{RIGHTS}/clusterrolebindings"), delegated).await;
    assert_eq!(reviews.authenticate_token("t").await.unwrap(), None);
}
