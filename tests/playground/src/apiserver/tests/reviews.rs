//! Reviews of tokens and of rights, as whoever serves other people asks for them.

use super::*;

const TOKENS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
const RIGHTS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
const ACCOUNT: &str = "/api/v1/namespaces/default/serviceaccounts/default/token";

impl TestCluster {
    async fn issue(&self, spec: Value) -> String {
        let (code, issued) = self.post(ACCOUNT, json!({"spec": spec})).await;
        assert_eq!(code, 201, "{issued}");
        issued["status"]["token"].as_str().unwrap().to_owned()
    }

    async fn reviewed(&self, token: &str, audiences: &[&str]) -> Value {
        let (code, answer) =
            self.post(TOKENS, json!({"spec": {"token": token, "audiences": audiences}})).await;
        assert_eq!((code, &answer["kind"]), (201, &json!("TokenReview")), "{answer}");
        answer["status"].clone()
    }
}

#[tokio::test]
async fn a_token_is_good_for_its_own_audiences_alone() {
    let mut cluster = TestCluster::start(|_| {}).await;
    let other = cluster.issue(json!({"audiences": ["portal", "other"]})).await;
    let status = cluster.reviewed(&other, &["portal", "third"]).await;
    assert_eq!((&status["authenticated"], &status["audiences"]), (&json!(true), &json!(["portal"])));
    assert_eq!(status["user"]["username"], "system:serviceaccount:default:default");
    let id = &status["user"]["extra"]["authentication.kubernetes.io/credential-id"][0];
    assert!(id.as_str().is_some_and(|id| id.starts_with("JTI=")), "{status}");
    let refused = cluster.reviewed(&other, &[]).await;
    assert_eq!(
        refused,
        json!({"user": {}, "error": "[invalid bearer token, token audiences [\"portal\", \"other\"] is invalid for \
            the target audiences [\"https://kubernetes.default.svc.cluster.local\"]]"})
    );
    let own = cluster.issue(json!({})).await;
    assert_eq!(cluster.reviewed(&own, &[]).await["authenticated"], true);
    assert_eq!(cluster.reviewed(&own, &["portal"]).await["authenticated"], Value::Null);
    assert_eq!(cluster.reviewed("admin", &["portal"]).await["error"], "invalid bearer token");
    cluster.token = other;
    assert_eq!(cluster.get(MAPS).await.0, 401, "it is not for this server");
}

#[tokio::test]
async fn a_review_that_asks_about_nothing_is_refused_with_its_field() {
    let cluster = TestCluster::start(|_| {}).await;
    let (code, refused) = cluster.post(TOKENS, json!({"spec": {}})).await;
    assert_eq!((code, &refused["reason"]), (400, &json!("BadRequest")));
    let (code, refused) = cluster.post(RIGHTS, json!({"spec": {"user": "ann"}})).await;
    assert_eq!((code, &refused["details"]["causes"][0]["field"]), (422, &json!("spec.resourceAttributes")));
    let attributes = json!({"verb": "get", "resource": "pods"});
    let (code, refused) = cluster.post(RIGHTS, json!({"spec": {"resourceAttributes": attributes}})).await;
    assert_eq!((code, &refused["details"]["causes"][0]["field"]), (422, &json!("spec.user")));
}
