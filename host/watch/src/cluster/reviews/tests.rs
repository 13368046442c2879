use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use futures::future::join_all;
use http::{Request, Response};
use http_body_util::BodyExt;
use kube::client::Body;
use serde_json::{Value, json};
use tower::service_fn;

use super::*;

/// Answers each question with the next answer, and keeps the questions.
#[derive(Clone, Default)]
struct AskedQuestions(Arc<Mutex<Vec<Value>>>);

impl AskedQuestions {
    fn reviews(&self, answers: Vec<(u16, Value)>) -> ReviewClient {
        let (asked, answers) = (self.clone(), Arc::new(Mutex::new(answers.into_iter())));
        let service = service_fn(move |request: Request<Body>| {
            let (asked, answers) = (asked.clone(), answers.clone());
            async move {
                let body = request.into_body().collect().await?.to_bytes();
                asked.0.lock().unwrap().push(serde_json::from_slice(&body).unwrap_or_default());
                let (code, body) = answers.lock().unwrap().next().expect("no more questions");
                let answer = Response::builder().status(code).body(Body::from(body.to_string().into_bytes()));
                Ok::<_, tower::BoxError>(answer?)
            }
        });
        ReviewClient::with_api(ApiClient::new(kube::Client::new(service, "default")))
    }

    fn specs(&self) -> Vec<Value> {
        self.0.lock().unwrap().iter().map(|asked| asked["spec"].clone()).collect()
    }
}

fn token_status(status: &Value) -> (u16, Value) {
    let kind = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "metadata": {}});
    (201, with(kind, json!({"spec": {}, "status": status})))
}

fn right_status(status: &Value) -> (u16, Value) {
    let kind =
        json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "metadata": {}});
    (201, with(kind, json!({"spec": {}, "status": status})))
}

fn with(mut value: Value, fields: Value) -> Value {
    let Value::Object(fields) = fields else { panic!("no object") };
    value.as_object_mut().unwrap().extend(fields);
    value
}

fn known(audiences: &[&str]) -> Value {
    json!({"authenticated": true, "audiences": audiences,
        "user": {"username": "ann", "uid": "u", "groups": ["g"], "extra": {"k": ["v"]}}})
}

fn unknown() -> Value {
    json!({"user": {}, "error": "[invalid bearer token, service account token has expired]"})
}

async fn whose(answers: &[Value]) -> (Option<Person>, Vec<Value>) {
    let asked = AskedQuestions::default();
    let reviews = asked.reviews(answers.iter().map(token_status).collect());
    (reviews.authenticate_token("t").await.unwrap(), asked.specs())
}

fn ann() -> Person {
    let extra = [("k".to_owned(), vec!["v".to_owned()])].into();
    Person { user: "ann".into(), uid: "u".into(), groups: vec!["g".into()], extra }
}

#[tokio::test]
async fn a_token_for_the_portal_is_asked_about_once() {
    let (person, asked) = whose(&[known(&[AUDIENCE])]).await;
    assert_eq!(person, Some(ann()));
    assert_eq!(asked, [json!({"token": "t", "audiences": ["kubewitness.dev"]})]);
}

#[tokio::test]
async fn a_token_for_the_api_server_is_asked_about_without_an_audience() {
    let (person, asked) = whose(&[unknown(), known(&["https://kubernetes.default.svc"])]).await;
    assert_eq!(person, Some(ann()));
    assert_eq!(asked[1], json!({"token": "t"}));
}

#[tokio::test]
async fn a_server_that_knows_no_audiences_vouches_for_its_own_alone() {
    for audiences in [&[][..], &["another.example.com"]] {
        assert_eq!(whose(&[known(audiences), unknown()]).await.0, None, "{audiences:?}");
        assert_eq!(whose(&[known(audiences), known(&[])]).await.0, Some(ann()), "{audiences:?}");
    }
}

#[tokio::test]
async fn whatever_a_review_of_a_token_leaves_out_is_nobody() {
    let mut nameless = known(&[AUDIENCE]);
    nameless["user"]["username"] = "".into();
    let mut doubtful = known(&[AUDIENCE]);
    doubtful["error"] = "the webhook can't be reached".into();
    let unsaid = json!({"audiences": [AUDIENCE], "user": {"username": "ann"}});
    for status in [nameless, doubtful, unsaid, Value::Null] {
        assert_eq!(whose(&[status.clone(), unknown()]).await.0, None, "{status}");
    }
}

#[tokio::test]
async fn what_can_be_no_token_is_not_asked_about() {
    let asked = AskedQuestions::default();
    let reviews = asked.reviews(Vec::new());
    for token in [String::new(), "t".repeat(TOKEN_BYTES + 1)] {
        assert_eq!(reviews.authenticate_token(&token).await.unwrap(), None);
    }
    for name in ["", "..", "a/b", "A"] {
        assert_eq!(reviews.find_namespace(name).await.unwrap(), None, "{name}");
    }
    assert!(asked.specs().is_empty());
}

fn attempt(resource: &str) -> AccessAttempt {
    let text = str::to_owned;
    AccessAttempt {
        verb: text("get"),
        group: String::new(),
        resource: text(resource),
        namespace: text("ml"),
        name: String::new(),
    }
}

#[tokio::test]
async fn all_that_is_known_of_a_person_is_asked_about() {
    let asked = AskedQuestions::default();
    let reviews = asked.reviews(vec![right_status(&json!({"allowed": true}))]);
    assert!(reviews.allows_attempt(&ann(), &attempt("pods/log")).await.unwrap());
    let attributes =
        json!({"verb": "get", "version": "*", "resource": "pods", "subresource": "log", "namespace": "ml"});
    let spec = json!({"user": "ann", "uid": "u", "groups": ["g"], "extra": {"k": ["v"]},
        "resourceAttributes": attributes});
    assert_eq!(asked.specs(), [spec]);
}

#[tokio::test]
async fn only_what_is_allowed_and_not_denied_may_be_done() {
    for (status, may) in [
        (json!({"allowed": true}), true),
        (json!({"allowed": true, "evaluationError": "a role is missing"}), true),
        (json!({"allowed": true, "denied": true}), false),
        (json!({"allowed": false, "evaluationError": "a role is missing"}), false),
        (json!({"allowed": false}), false),
        (Value::Null, false),
    ] {
        let reviews = AskedQuestions::default().reviews(vec![right_status(&status)]);
        assert_eq!(reviews.allows_attempt(&ann(), &attempt("jobs")).await.unwrap(), may, "{status}");
    }
}

#[tokio::test]
async fn a_namespace_without_a_uid_or_an_age_is_no_answer() {
    let whole = json!({"uid": "u", "name": "ml", "creationTimestamp": "2026-11-20T13:45:11Z"});
    for (metadata, live) in [
        (whole.clone(), Some(LiveNamespace { uid: "u".into(), created_ms: 1_795_182_311_000 })),
        (json!({"uid": "u", "name": "ml"}), None),
        (json!({"name": "ml", "creationTimestamp": "2026-11-20T13:45:11Z"}), None),
    ] {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata});
        let result = AskedQuestions::default().reviews(vec![(200, namespace)]).find_namespace("ml").await;
        assert_eq!(result.ok().flatten(), live, "{metadata}");
    }
}

#[tokio::test]
async fn a_refusal_names_the_right_and_the_role_that_has_it() {
    let refusal = |code: u16| (code, json!({"kind": "Status", "reason": "r", "message": "m", "code": code}));
    let reviews = AskedQuestions::default().reviews(vec![refusal(403); 3]);
    let messages = [
        reviews.authenticate_token("t").await.unwrap_err(),
        reviews.allows_attempt(&ann(), &attempt("jobs")).await.unwrap_err(),
        reviews.find_namespace("ml").await.unwrap_err(),
    ];
    for (error, right) in messages.iter().zip(["tokenreviews", "subjectaccessreviews", "get namespaces"]) {
        assert!(matches!(error, ReviewError::Forbidden(_)), "{error}");
        assert!(
            error.to_string().contains(right) && error.to_string().contains("kubewitness-reviews"),
            "{error}"
        );
    }
    let own =
        AskedQuestions::default().reviews(vec![refusal(401)]).authenticate_token("t").await.unwrap_err();
    assert!(matches!(&own, ReviewError::Forbidden(why) if why.contains("credentials")), "{own}");
    for code in [404, 422, 429, 500, 503] {
        let error =
            AskedQuestions::default().reviews(vec![refusal(code)]).authenticate_token("t").await.unwrap_err();
        assert!(
            matches!(&error, ReviewError::Unavailable(why) if why.contains("try again")),
            "{code}: {error}"
        );
    }
}

#[tokio::test]
async fn an_answer_of_another_kind_or_over_its_size_is_none() {
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {}, "status": {"authenticated": true}});
    let mut large = known(&[AUDIENCE]);
    large["user"]["groups"] = json!(["g".repeat(BYTES)]);
    for answer in [(201, pod), token_status(&large)] {
        let result = AskedQuestions::default().reviews(vec![answer]).authenticate_token("t").await;
        assert!(matches!(result, Err(ReviewError::Unavailable(_))), "{result:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn questions_that_get_no_answer_are_given_up_and_are_no_more_than_their_bound_at_once() {
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (counted, peak) = (now.clone(), most.clone());
    let service = service_fn(move |_: Request<Body>| {
        peak.fetch_max(counted.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        std::future::pending::<Result<Response<Body>, tower::BoxError>>()
    });
    let reviews = ReviewClient::with_api(ApiClient::new(kube::Client::new(service, "default")));
    let begun = tokio::time::Instant::now();
    let results = join_all((0..3 * AT_ONCE).map(|_| reviews.find_namespace("ml"))).await;
    assert_eq!(begun.elapsed(), WITHIN);
    assert!(results.iter().all(|result| matches!(result, Err(ReviewError::Unavailable(_)))));
    assert_eq!(most.load(Ordering::SeqCst), AT_ONCE);
}
