//! Tests of submitting Jobs: the identity used for the API server, one Job for each key, and the field of
//! each refusal.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use axum::Router;
use axum::body::Body;
use kubewitness_core::Change;
use kubewitness_core::config::templates::TemplateSpec;
use kubewitness_core::config::{Credentials, HostSpec};
use kubewitness_core::ports::{ActingIdentity, FieldCause, JobSubmitter, SubmitError, TemplateOffer};
use kubewitness_core::views::ObjectView;
use kubewitness_portal::PortalOptions;
use serde_json::{Value, json};

use crate::access::{GuardedPortal, SECRET};
use crate::fake::{self, FakeViews};
use crate::{PortalAnswer, ask, options, request};

const JOBS: &str = "/api/v1/jobs";
const OWN: (&str, &str) = ("sec-fetch-site", "same-origin");
const FORM: (&str, &str) = ("content-type", "application/x-www-form-urlencoded");
const JSON: (&str, &str) = ("content-type", "application/json");

/// An API server that knows Jobs by name, with the identity of each request.
pub struct FakeJobs {
    offer: Option<Arc<TemplateOffer>>,
    made: Mutex<BTreeMap<(String, String), Value>>,
    asked_by: Mutex<Vec<String>>,
    refusal: Mutex<Option<SubmitError>>,
    /// Creates the Job, but loses the answer.
    loses_answer: Mutex<bool>,
}

impl FakeJobs {
    pub fn new(credentials: Credentials) -> Self {
        let template = serde_json::from_value(json!({
            "about": "Trains <b>a</b> model.",
            "parameters": [
                {"name": "workers", "type": "int", "min": 1, "max": 8, "default": 2, "places": ["/spec/parallelism"]},
                {"name": "size", "type": "choice", "choices": ["small", "large"], "required": true, "places": ["/spec/size"]},
            ],
            "manifest": {
                "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"},
                "spec": {"parallelism": 1, "size": ""},
            },
        }));
        let templates = BTreeMap::from([("train".to_owned(), template.unwrap())]);
        Self::offering(credentials, templates)
    }

    fn offering(credentials: Credentials, templates: BTreeMap<String, TemplateSpec>) -> Self {
        let rules = HostSpec::default().compile_redaction_rules().unwrap().into();
        Self {
            offer: Some(Arc::new(TemplateOffer { credentials, templates, rules })),
            made: Mutex::default(),
            asked_by: Mutex::default(),
            refusal: Mutex::default(),
            loses_answer: Mutex::default(),
        }
    }

    fn asked(&self, acting: ActingIdentity<'_>) {
        self.asked_by.lock().unwrap().push(match acting {
            ActingIdentity::Token(token) => format!("token {token}"),
            ActingIdentity::Person(person) => format!("as {}", person.user),
            ActingIdentity::Controller => "controller".into(),
        });
    }

    fn names(&self) -> Vec<String> {
        self.made.lock().unwrap().keys().map(|(namespace, name)| format!("{namespace}/{name}")).collect()
    }

    fn only(&self) -> Value {
        let made = self.made.lock().unwrap();
        assert_eq!(made.len(), 1, "{made:?}");
        made.values().next().unwrap().clone()
    }
}

#[async_trait]
impl JobSubmitter for FakeJobs {
    fn template_offer(&self) -> Option<Arc<TemplateOffer>> {
        self.offer.clone()
    }

    async fn create_job(
        &self,
        acting: ActingIdentity<'_>,
        namespace: &str,
        job: &Value,
        dry_run: bool,
    ) -> Result<Value, SubmitError> {
        self.asked(acting);
        if let Some(refusal) = self.refusal.lock().unwrap().clone() {
            return Err(refusal);
        }
        let mut job = job.clone();
        let key = (namespace.to_owned(), job["metadata"]["name"].as_str().unwrap().to_owned());
        let mut made = self.made.lock().unwrap();
        if made.contains_key(&key) {
            let message = format!("jobs.batch \"{}\" already exists", key.1);
            return Err(SubmitError::Refused { status: 409, message, causes: Vec::new() });
        }
        job["metadata"]["uid"] = format!("uid-{}", made.len() + 1).into();
        if !dry_run {
            made.insert(key, job.clone());
        }
        match std::mem::take(&mut *self.loses_answer.lock().unwrap()) {
            true => Err(SubmitError::Unanswered("connection reset".into())),
            false => Ok(job),
        }
    }

    async fn find_job(
        &self,
        acting: ActingIdentity<'_>,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Value>, SubmitError> {
        self.asked(acting);
        Ok(self.made.lock().unwrap().get(&(namespace.to_owned(), name.to_owned())).cloned())
    }
}

fn with(jobs: &Arc<FakeJobs>) -> impl FnOnce(PortalOptions) -> PortalOptions + use<> {
    let submitter: Arc<dyn JobSubmitter> = jobs.clone();
    |options| PortalOptions { submitter: Some(submitter), ..options }
}

/// A portal without sign-in.
fn open(jobs: &Arc<FakeJobs>) -> Router {
    kubewitness_portal::router(Arc::new(FakeViews::default()), &with(jobs)(options()))
}

fn body(values: &Value) -> String {
    json!({"template": "train", "namespace": "research", "parameters": values}).to_string()
}

async fn send(router: &Router, key: &str, body: &str) -> PortalAnswer {
    let request = request("POST", JOBS).header(JSON.0, JSON.1).header("idempotency-key", key);
    ask(router, request.body(Body::from(body.to_owned())).unwrap()).await
}

async fn fill(router: &Router, fields: &str) -> PortalAnswer {
    let request = request("POST", "/submit/train").header(FORM.0, FORM.1).header(OWN.0, OWN.1);
    ask(router, request.body(Body::from(fields.to_owned())).unwrap()).await
}

#[tokio::test]
async fn a_job_is_made_of_a_template_with_who_and_by_which_channel_in_its_annotations() {
    let jobs = Arc::new(FakeJobs::new(Credentials::Controller));
    let request = json!({"template": "train", "namespace": "research", "parameters": {"workers": "4", "size": "large"},
        "channel": "cli", "who": "ada"});
    let answer = send(&open(&jobs), "k", &request.to_string()).await;
    assert_eq!(answer.status, 201, "{}", answer.text);
    let (view, job) = (answer.json(), jobs.only());
    assert_eq!(
        (&view["created"], &view["uid"], &view["submitter"]),
        (&json!(true), &json!("uid-1"), &json!("ada"))
    );
    assert_eq!(view["name"], job["metadata"]["name"]);
    assert_eq!(job["spec"], json!({"parallelism": 4, "size": "large"}));
    let annotations = &job["metadata"]["annotations"];
    assert_eq!(annotations["kubewitness.dev/channel"], "cli");
    assert_eq!(annotations["kubewitness.dev/submitter"], "ada");
    assert_eq!(annotations["kubewitness.dev/template"], "train");
    assert_eq!(*jobs.asked_by.lock().unwrap(), ["controller"]);
    let templates = crate::get(&open(&jobs), "/api/v1/templates").await.json();
    assert_eq!((&templates[0]["name"], &templates[0]["parameters"][0]["max"]), (&json!("train"), &json!(8)));
}

#[tokio::test]
async fn a_key_makes_one_job_also_where_its_template_was_renamed_or_another_namespace_is_named() {
    let (jobs, fake) = (Arc::new(FakeJobs::new(Credentials::Controller)), Arc::new(FakeViews::default()));
    let router = kubewitness_portal::router(fake.clone(), &with(&jobs)(options()));
    let values = body(&json!({"size": "small"}));
    let name = send(&router, "k", &values).await.json()["name"].as_str().unwrap().to_owned();
    let renamed = name.replace("train-", "teach-");
    let gone = Some("2026-11-20T12:00:00.000Z".to_owned());
    for (namespace, name, ended_at, status) in [
        ("research", name.as_str(), None, 200),
        ("research", &renamed, None, 409),
        ("vision", &name, None, 409),
        ("vision", "train-x", None, 200),
        ("research", &renamed, gone.clone(), 409),
        ("vision", &name, gone.clone(), 409),
        ("vision", "train-x", gone, 200),
    ] {
        let object = fake::object("Job", namespace, name, "uid-1");
        *fake.more.lock().unwrap() = vec![ObjectView { object, ended_at, ..ObjectView::default() }];
        let answer = send(&router, "k", &values).await;
        assert_eq!(answer.status, status, "{namespace}/{name}: {}", answer.text);
        assert!(
            status == 200
                || answer.problem().0.contains(&format!("the Job {name} in the namespace {namespace}"))
        );
    }
}

/// The first Job was made in one namespace and deleted. Each request comes to a replica that remembers nothing.
#[tokio::test]
async fn a_key_of_a_deleted_job_makes_no_other_one_at_a_replica_that_is_asked_for_another_namespace() {
    let (jobs, fake) = (Arc::new(FakeJobs::new(Credentials::Controller)), Arc::new(FakeViews::default()));
    let replica = || kubewitness_portal::router(fake.clone(), &with(&jobs)(options()));
    let of = |namespace: &str| {
        json!({"template": "train", "namespace": namespace, "parameters": {"size": "small"}}).to_string()
    };
    let name = send(&replica(), "k", &of("research")).await.json()["name"].as_str().unwrap().to_owned();
    jobs.made.lock().unwrap().clear();
    let object = fake::object("Job", "research", &name, "uid-1");
    let ended_at = Some("2026-11-20T12:00:00.000Z".to_owned());
    *fake.more.lock().unwrap() = vec![ObjectView { object, ended_at, ..ObjectView::default() }];
    let late = send(&replica(), "k", &of("vision")).await;
    assert_eq!((late.status.as_u16(), jobs.names().len()), (409, 0), "{}", late.text);
    assert!(late.problem().0.contains("in the namespace research"), "{}", late.text);
}

#[tokio::test]
async fn a_repeat_names_the_same_job_at_a_replica_whose_template_has_another_manifest() {
    let jobs = Arc::new(FakeJobs::new(Credentials::Controller));
    let mut changed = FakeJobs::new(Credentials::Controller);
    let offer = changed.offer.as_mut().and_then(Arc::get_mut).unwrap();
    offer.templates.get_mut("train").unwrap().manifest["metadata"]["name"] = "teach".into();
    let (changed, values) = (Arc::new(changed), body(&json!({"size": "small"})));
    let [one, other] = [send(&open(&jobs), "k", &values).await, send(&open(&changed), "k", &values).await];
    assert_eq!(one.json()["name"], other.json()["name"], "{} {}", one.text, other.text);
}

/// The journal does not have the first Job yet, and the API server only compares names within a namespace.
#[tokio::test]
async fn a_key_makes_one_job_also_where_requests_for_two_namespaces_come_at_once() {
    let jobs = Arc::new(FakeJobs::new(Credentials::Controller));
    let router = open(&jobs);
    let of = |namespace: &str| {
        json!({"template": "train", "namespace": namespace, "parameters": {"size": "small"}}).to_string()
    };
    let (one, two) = (of("research"), of("vision"));
    let (first, second) = tokio::join!(send(&router, "k", &one), send(&router, "k", &two));
    assert_eq!((first.status.as_u16(), second.status.as_u16()), (201, 409), "{}", second.text);
    assert!(second.problem().0.contains("in the namespace research"), "{}", second.text);
    assert_eq!((send(&router, "k", &one).await.status.as_u16(), jobs.names().len()), (200, 1));

    // A refused request has created nothing.
    *jobs.refusal.lock().unwrap() =
        Some(SubmitError::Refused { status: 403, message: "no".into(), causes: Vec::new() });
    assert_eq!(send(&router, "other", &one).await.status, 403);
    *jobs.refusal.lock().unwrap() = None;
    assert_eq!(send(&router, "other", &two).await.status, 201);

    // A request with a lost answer may have created a Job.
    *jobs.loses_answer.lock().unwrap() = true;
    assert!(send(&router, "lost", &one).await.status.is_server_error());
    assert_eq!(send(&router, "lost", &two).await.status, 409);
}

#[tokio::test]
async fn a_key_makes_one_job_whether_it_comes_twice_at_once_or_after_a_lost_answer() {
    let jobs = Arc::new(FakeJobs::new(Credentials::Controller));
    // The same with two replicas.
    let (one, other, values) = (open(&jobs), open(&jobs), body(&json!({"size": "small"})));
    let (first, second) = tokio::join!(send(&one, "k", &values), send(&other, "k", &values));
    let mut statuses = [first.status.as_u16(), second.status.as_u16()];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 201], "{} {}", first.text, second.text);
    assert_eq!((jobs.names().len(), &first.json()["uid"]), (1, &second.json()["uid"]));

    *jobs.loses_answer.lock().unwrap() = true;
    let lost = send(&one, "k2", &values).await;
    assert_eq!(lost.status, 503);
    assert!(lost.problem().1.contains("same key"), "{}", lost.text);
    let again = send(&other, "k2", &values).await;
    assert_eq!((again.status.as_u16(), jobs.names().len()), (200, 2), "{}", again.text);

    let changed = send(&one, "k", &body(&json!({"size": "large"}))).await;
    assert_eq!(changed.status, 409);
    assert!(changed.problem().0.contains("from other values"), "{}", changed.text);
    assert_eq!(jobs.names().len(), 2);
    for bad in ["", " ", "a b", &"k".repeat(129)] {
        assert_eq!(send(&one, bad, &values).await.status, 400, "{bad:?}");
    }
}

#[tokio::test]
async fn a_key_whose_job_is_gone_makes_no_other_one() {
    let jobs = Arc::new(FakeJobs::new(Credentials::Controller));
    let views = Arc::new(FakeViews::default());
    let router = kubewitness_portal::router(views.clone(), &with(&jobs)(options()));
    let values = body(&json!({"size": "small"}));
    let name = send(&router, "k", &values).await.json()["name"].as_str().unwrap().to_owned();
    jobs.made.lock().unwrap().clear();
    let gone = fake::object("Job", "research", &name, "uid-1");
    views.push(fake::state(1000, &gone, kubewitness_core::Change::Gone, 0, fake::status("Deleted", "", "")));
    let late = send(&router, "k", &values).await;
    assert_eq!((late.status.as_u16(), jobs.names().len()), (409, 0), "{}", late.text);
    assert!(late.problem().1.contains("new key"), "{}", late.text);
    assert_eq!(send(&router, "k2", &values).await.status, 201);
}

#[tokio::test]
async fn values_that_do_not_fit_are_told_by_parameter_and_reach_no_api_server() {
    let jobs = Arc::new(FakeJobs::new(Credentials::Controller));
    let router = open(&jobs);
    let request = json!({"template": "train", "namespace": "Not A Name", "parameters": {"workers": 9, "colour": "red"}});
    let answer = send(&router, "k", &request.to_string()).await;
    assert_eq!(answer.status, 422);
    let fields = answer.json()["error"]["fields"].clone();
    let fields: Vec<_> =
        fields.as_array().unwrap().iter().map(|f| f["field"].as_str().unwrap().to_owned()).collect();
    assert_eq!(fields, ["namespace", "colour", "workers", "size"]);
    let unknown = json!({"template": "nothing", "namespace": "a"}).to_string();
    assert_eq!(send(&router, "k", &unknown).await.status, 404);
    let channel = json!({"template": "train", "namespace": "a", "channel": "portal"}).to_string();
    assert_eq!(send(&router, "k", &channel).await.status, 400);
    assert!(jobs.asked_by.lock().unwrap().is_empty());
}

#[tokio::test]
async fn what_the_api_server_refuses_stands_beside_the_field_with_what_was_typed() {
    let jobs = Arc::new(FakeJobs::new(Credentials::Controller));
    let router = open(&jobs);
    let refused = SubmitError::Refused {
        status: 422,
        message: "Job.batch \"train\" is invalid".into(),
        causes: vec![
            FieldCause { field: "spec.parallelism".into(), message: "must be <odd>".into() },
            FieldCause { field: "spec.template".into(), message: "Required value".into() },
        ],
    };
    *jobs.refusal.lock().unwrap() = Some(refused);
    let form = fill(&router, "key=k&namespace=research&p.workers=4&p.size=large&who=ada").await;
    assert_eq!(form.status, 422);
    let at = form.text.find("name=\"p.workers\"").unwrap();
    let field = &form.text[at..at + 600];
    assert!(field.contains("value=\"4\"") && field.contains("aria-invalid=\"true\""), "{field}");
    assert!(field.contains("must be &lt;odd&gt;"), "{field}");
    assert!(form.text.contains("spec.template") && form.text.contains("value=\"k\""), "{}", form.text);
    assert!(form.text.contains("<option value=\"large\" selected>"), "{}", form.text);

    let quota = "jobs.batch \"train\" is forbidden: exceeded quota: compute";
    *jobs.refusal.lock().unwrap() =
        Some(SubmitError::Refused { status: 403, message: quota.into(), causes: Vec::new() });
    let answer = send(&router, "k", &body(&json!({"size": "small"}))).await;
    assert_eq!(answer.status, 403);
    assert!(answer.problem().0.contains("exceeded quota"), "{}", answer.text);
}

#[tokio::test]
async fn a_value_of_a_template_that_is_a_secret_is_shown_nowhere_and_goes_into_the_job() {
    let mut jobs = FakeJobs::new(Credentials::Controller);
    let value = |place: usize| format!("/spec/template/spec/containers/0/env/{place}/value");
    let template = json!({
        "parameters": [
            {"name": "access", "type": "string", "required": true, "default": "hush-1", "places": [value(0)]},
            {"name": "url", "type": "string", "places": [value(1)]},
            {"name": "epochs", "type": "int", "default": 7, "places": [value(2)]},
        ],
        "manifest": {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "hush"},
            "spec": {"template": {"spec": {"containers": [{"env": [
                {"name": "HF_TOKEN", "value": "x"}, {"name": "URL", "value": "redis://:hush-2@h"},
                {"name": "EPOCHS", "value": "3"},
            ]}]}}}},
    });
    let offer = Arc::make_mut(jobs.offer.as_mut().unwrap());
    offer.templates.insert("hush".into(), serde_json::from_value(template).unwrap());
    let jobs = Arc::new(jobs);
    let router = open(&jobs);
    let form = crate::get(&router, "/submit/hush?namespace=research").await;
    assert!(form.text.contains("value=\"7\"") && !form.text.contains("hush-"), "{}", form.text);
    assert!(form.text.contains("leave this empty to take it"), "{}", form.text);
    assert!(
        form.text.contains("name=\"p.access\" value=\"\" autocomplete"),
        "it may stay empty: {}",
        form.text
    );
    let list = crate::get(&router, "/api/v1/templates").await;
    assert!(list.text.contains("\"redacted\"") && !list.text.contains("hush-"), "{}", list.text);
    let request = json!({"template": "hush", "namespace": "research"}).to_string();
    assert_eq!(send(&router, "k", &request).await.status, 201);
    assert_eq!(jobs.only().pointer(&value(0)), Some(&json!("hush-1")));
}

#[tokio::test]
async fn the_link_to_a_job_waits_until_it_is_witnessed_and_no_longer_than_two_minutes() {
    let (jobs, fake) = (Arc::new(FakeJobs::new(Credentials::Controller)), Arc::new(FakeViews::default()));
    let router = kubewitness_portal::router(fake.clone(), &with(&jobs)(options()));
    let done = fill(&router, "key=k&namespace=research&p.size=small&who=ada").await.text;
    let link = done.split("id=\"job\" href=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
    let uid = jobs.only()["metadata"]["uid"].as_str().unwrap().to_owned();
    let (path, now) = link.split_once("?submitted=").unwrap();
    assert_eq!(path, format!("/objects/{uid}"));
    let now: u64 = now.parse().unwrap();
    for at in [now, now + 60_000] {
        let waiting = crate::get(&router, &format!("{path}?submitted={at}")).await;
        assert_eq!((waiting.status.as_u16(), waiting.header("refresh")), (200, "2"));
        assert!(waiting.text.contains("Not seen yet, waiting"), "{}", waiting.text);
    }
    for (query, words) in [
        (format!("?submitted={}", now - 121_000), "whether a source watches Jobs"),
        (format!("?submitted={}", u64::MAX), "whether a source watches Jobs"),
        (String::new(), "keep their page after their deletion"),
    ] {
        let given_up = crate::get(&router, &format!("{path}{query}")).await;
        assert_eq!((given_up.status.as_u16(), given_up.header("refresh")), (404, ""), "{query}");
        assert!(given_up.text.contains(words), "{}", given_up.text);
    }
    let object = fake::object("Job", "research", "train-x", &uid);
    fake.push(fake::state(19, &object, Change::Present, 1000, fake::status("Queued", "", "")));
    let seen = crate::get(&router, link).await;
    assert_eq!((seen.status.as_u16(), seen.header("location")), (303, path));
    assert_eq!(crate::get(&router, path).await.status, 200);
}

#[tokio::test]
async fn the_form_makes_one_job_of_a_double_click_and_refuses_pages_of_others() {
    let jobs = Arc::new(FakeJobs::new(Credentials::Controller));
    let router = open(&jobs);
    let form = crate::get(&router, "/submit/train?namespace=research").await;
    assert_eq!(form.status, 200, "{}", form.text);
    assert!(
        form.text.contains("Trains &lt;b&gt;a&lt;/b&gt; model.") && form.text.contains("value=\"research\"")
    );
    let key =
        form.text.split("name=\"key\" value=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
    assert_eq!(key.len(), 32);
    let fields = format!("key={key}&namespace=research&p.workers=&p.size=small&who=ada");
    let (first, second) = tokio::join!(fill(&router, &fields), fill(&router, &fields));
    assert!(first.status == 200 && second.status == 200, "{} {}", first.text, second.text);
    assert!([&first, &second].iter().any(|answer| answer.text.contains("was created before")));
    let job = jobs.only();
    assert_eq!(job["spec"]["parallelism"], 2, "an empty field is its default");
    assert_eq!(job["metadata"]["annotations"]["kubewitness.dev/channel"], "portal");

    let check = fill(&router, "key=new&namespace=research&p.size=small&check=true").await;
    assert!(check.status == 200 && check.text.contains("Nothing was created"), "{}", check.text);
    assert_eq!(jobs.names().len(), 1);
    let unknown = fill(&router, "key=new&namespace=research&p.size=small&p.x=1").await;
    assert_eq!(unknown.status, 400);
    for headers in [
        vec![FORM],
        vec![FORM, ("sec-fetch-site", "cross-site")],
        vec![FORM, ("origin", "https://evil.example")],
    ] {
        let request = headers
            .into_iter()
            .fold(request("POST", "/submit/train"), |r, (name, value)| r.header(name, value));
        let answer =
            ask(&router, request.body(Body::from("key=new2&namespace=a&p.size=small")).unwrap()).await;
        assert_eq!(answer.status, 403, "{}", answer.text);
    }
    assert_eq!(jobs.names().len(), 1);
}

#[tokio::test]
async fn nobody_submits_unless_the_settings_say_so() {
    let off = Arc::new(FakeJobs { offer: None, ..FakeJobs::new(Credentials::Token) });
    for router in [crate::portal(FakeViews::default()), open(&off)] {
        assert_eq!(send(&router, "k", &body(&json!({"size": "small"}))).await.status, 404);
        for path in ["/submit", "/submit/train", "/api/v1/templates"] {
            assert_eq!(crate::get(&router, path).await.status, 404, "{path}");
        }
        assert!(!crate::get(&router, "/").await.text.contains("href=\"/submit\""));
    }
    let on = Arc::new(FakeJobs::new(Credentials::Controller));
    assert!(crate::get(&open(&on), "/").await.text.contains("href=\"/submit\""));
    // People are not distinguished, but the settings need their identity.
    for credentials in [Credentials::Token, Credentials::Impersonation] {
        let jobs = Arc::new(FakeJobs::new(credentials));
        let answer = send(&open(&jobs), "k", &body(&json!({"size": "small"}))).await;
        assert_eq!(answer.status, 403);
        assert!(answer.problem().1.contains("submit.credentials"), "{}", answer.text);
        assert!(jobs.asked_by.lock().unwrap().is_empty());
    }
}

const PROXY: [(&str, &str); 3] =
    [("x-kubewitness-proxy-secret", SECRET), ("x-remote-user", "user-red"), ("x-remote-group", "red")];

async fn signed_in(portal: &GuardedPortal, who: &[(&str, &str)], key: &str) -> PortalAnswer {
    let headers = [who, &[JSON, ("idempotency-key", key)]].concat();
    let values = json!({"template": "train", "namespace": "red", "parameters": {"size": "small"}, "who": "somebody else"});
    portal.ask("POST", JOBS, &headers, &values.to_string()).await
}

#[tokio::test]
async fn the_api_server_is_asked_in_the_name_of_the_person_who_asks_and_of_nobody_else() {
    let red = ("authorization", "Bearer red");
    for (credentials, expected) in
        [(Credentials::Token, "token red"), (Credentials::Impersonation, "as user-red")]
    {
        let jobs = Arc::new(FakeJobs::new(credentials));
        let portal = GuardedPortal::with(Default::default(), with(&jobs));
        let answer = signed_in(&portal, &[red], "k").await;
        assert_eq!(answer.status, 201, "{}", answer.text);
        assert_eq!(*jobs.asked_by.lock().unwrap(), [expected]);
        let annotations = jobs.only()["metadata"]["annotations"].clone();
        assert_eq!(annotations["kubewitness.dev/submitter"], "user-red", "whatever they say of themselves");
        // The same key of another person is a different key.
        let blue = signed_in(&portal, &[("authorization", "Bearer blue")], "k").await;
        assert_eq!((blue.status.as_u16(), jobs.names().len()), (201, 2), "{}", blue.text);
        assert_eq!(signed_in(&portal, &[], "k").await.status, 401);
        assert_eq!(signed_in(&portal, &[("authorization", "Bearer nobody")], "k").await.status, 401);
        // A person whom a proxy has signed in has no token.
        let proxied = signed_in(&portal, &PROXY, "k3").await;
        let expected = if credentials == Credentials::Token { 403 } else { 201 };
        assert_eq!(proxied.status, expected, "{}", proxied.text);
    }
    let jobs = Arc::new(FakeJobs::new(Credentials::Controller));
    let portal = GuardedPortal::with(Default::default(), with(&jobs));
    let answer = signed_in(&portal, &[red], "k").await;
    assert_eq!(answer.status, 403, "nobody who signs in gets the controller's rights: {}", answer.text);
    assert!(jobs.asked_by.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_session_of_a_browser_submits_with_its_own_token() {
    let jobs = Arc::new(FakeJobs::new(Credentials::Token));
    let portal = GuardedPortal::with(Default::default(), with(&jobs));
    let entered = portal.ask("POST", "/login", &[FORM, OWN], "token=red").await;
    let cookie = entered.header("set-cookie").split(';').next().unwrap().to_owned();
    let form = portal.get("/submit/train", &[("cookie", &cookie)]).await;
    assert!(form.status == 200 && !form.text.contains("Your name"), "{}", form.text);
    let headers = [FORM, OWN, ("cookie", cookie.as_str())];
    let done = portal.ask("POST", "/submit/train", &headers, "key=k&namespace=red&p.size=small").await;
    assert!(done.status == 200 && done.text.contains("submitted by user-red"), "{}", done.text);
    assert_eq!(*jobs.asked_by.lock().unwrap(), ["token red"]);
    let foreign = [FORM, ("sec-fetch-site", "cross-site"), ("cookie", cookie.as_str())];
    let refused = portal.ask("POST", "/submit/train", &foreign, "key=k2&namespace=red&p.size=small").await;
    assert_eq!(refused.status, 403);
}

#[tokio::test]
async fn nobody_learns_the_namespaces_of_others_from_a_template() {
    let template = |namespaces: Value| -> TemplateSpec {
        serde_json::from_value(json!({
            "namespaces": namespaces,
            "manifest": {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"}},
        }))
        .unwrap()
    };
    let templates = [("both", json!(["red", "blue"])), ("theirs", json!(["blue"])), ("open", json!([]))];
    let templates = templates.map(|(name, namespaces)| (name.to_owned(), template(namespaces)));
    let jobs = Arc::new(FakeJobs::offering(Credentials::Token, templates.into()));
    let portal = GuardedPortal::with(Default::default(), with(&jobs));
    let listed = async |token: &str| {
        let listed = portal.as_token(token, "/api/v1/templates").await.json();
        let of = |template: &Value| (template["name"].clone(), template["namespaces"].clone());
        listed.as_array().unwrap().iter().map(of).collect::<Vec<_>>()
    };
    assert_eq!(listed("red").await, [(json!("both"), json!(["red"])), (json!("open"), json!([]))]);
    assert_eq!(listed("guest").await, [(json!("open"), json!([]))]);
    assert_eq!(listed("boss").await.len(), 3);
    let red = ("authorization", "Bearer red");
    let send = async |template: &str, namespace: &str| {
        let body =
            json!({"template": template, "namespace": namespace, "parameters": {"zebra": 1}}).to_string();
        portal.ask("POST", JOBS, &[red, JSON], &body).await
    };
    // If a template is not open to them, the answer is that of an unknown template, however valid the request
    // is.
    for namespace in ["green", "blue", "red"] {
        let (theirs, none) = (send("theirs", namespace).await, send("none", namespace).await);
        assert_eq!((theirs.status, none.status), (404.try_into().unwrap(), 404.try_into().unwrap()));
        assert!(none.text.contains("The templates are both, open."), "{}", none.text);
        assert_eq!(theirs.text.replace("theirs", "none"), none.text);
    }
    // An answer does not reveal which other namespaces a template allows, either.
    let (listed, unlisted) = (send("both", "blue").await, send("both", "green").await);
    assert!(listed.text.contains("is not one of red"), "{}", listed.text);
    assert_eq!((listed.status, listed.text.replace("blue", "green")), (unlisted.status, unlisted.text));
    for path in ["/submit", "/submit/both", "/submit/open"] {
        let page = portal.as_token("red", path).await;
        assert!(
            page.status == 200 && !page.text.contains("blue") && !page.text.contains("theirs"),
            "{}",
            page.text
        );
    }
    assert_eq!(portal.as_token("red", "/submit/theirs").await.status, 404);
}
