//! Tests of requests and verdicts against a scripted destination.

use std::cell::RefCell;
use std::rc::Rc;

use kubewitness_sdk::http::{Request, Response};
use kubewitness_sdk::outcomes::Finding;
use kubewitness_sdk::{Change, Error, testing};
use serde_json::{Value, json};

use super::*;

/// A destination that gives the answers of a list, then 200.
#[derive(Default)]
struct ListedAnswers {
    answers: RefCell<Vec<Result<u16, Error>>>,
    sent: RefCell<Vec<Request>>,
}

impl testing::Host for ListedAnswers {
    fn http_send(&self, destination: &str, request: &Request) -> Result<Response, Error> {
        assert_eq!(destination, "people");
        self.sent.borrow_mut().push(request.clone());
        let mut answers = self.answers.borrow_mut();
        let status = if answers.is_empty() { Ok(200) } else { answers.remove(0) };
        Ok(Response { status: status?, headers: vec![], body: vec![] })
    }
}

fn config(value: Value) -> Config {
    serde_json::from_value(value).unwrap()
}

fn handle(
    answers: Vec<Result<u16, Error>>,
    config: &Config,
    states: &[State],
) -> (Vec<Verdict>, Vec<Request>) {
    let destination = Rc::new(ListedAnswers { answers: RefCell::new(answers), ..ListedAnswers::default() });
    let verdicts = testing::with_host(destination.clone(), || Notification::handle(config, states));
    let sent = destination.sent.take();
    (verdicts, sent)
}

fn moved(seq: u64, name: &str, from: &str, to: &str) -> State {
    let mut state = testing::state(seq, name, to);
    state.previous = Some(testing::status(from));
    state
}

#[test]
fn a_transition_is_posted_with_its_id_and_the_standard_template() {
    let (verdicts, sent) = handle(vec![], &Config::default(), &[moved(7, "train", "Pending", "Running")]);
    assert_eq!(verdicts, [Verdict::Done]);
    let [request] = sent.as_slice() else { panic!("{} requests", sent.len()) };
    assert_eq!((request.method.as_str(), request.path.as_str()), ("POST", ""));
    assert!(request.headers.contains(&("idempotency-key".into(), "jobs/0/batch/Job/train/7".into())));
    let body: Value = serde_json::from_slice(&request.body).unwrap();
    assert_eq!(body["text"], "Job default/train: Running");
    assert_eq!((&body["previousPhase"], &body["attempt"]), (&json!("Pending"), &json!(0)));
    assert_eq!(
        (&body["exitCode"], &body["ownerName"], &body["late"]),
        (&Value::Null, &Value::Null, &json!(false))
    );
    assert_eq!(body["observedAt"], "1970-01-01T00:00:00.000Z");
}

/// Where `kv` is granted.
#[derive(Default)]
struct KvGranted(RefCell<Vec<(String, Value)>>);

impl testing::Host for KvGranted {
    fn http_send(&self, _: &str, request: &Request) -> Result<Response, Error> {
        let body = String::from_utf8(request.body.clone()).unwrap();
        let status = if body.contains("Failed") { 410 } else { 200 };
        Ok(Response { status, headers: vec![], body: vec![] })
    }
    fn kv_keys(&self, _: &str, _: u32) -> Result<Vec<String>, Error> {
        Ok(vec![])
    }
    fn kv_set(&self, key: &str, value: &[u8]) -> Result<(), Error> {
        self.0.borrow_mut().push((key.to_string(), serde_json::from_slice(value).unwrap()));
        Ok(())
    }
    fn now_ms(&self) -> u64 {
        5
    }
}

#[test]
fn with_kv_each_request_is_reported() {
    let host = Rc::new(KvGranted::default());
    let states = [moved(1, "a", "Pending", "Running"), moved(2, "a", "Running", "Failed")];
    testing::with_host(host.clone(), || Notification::handle(&Config::default(), &states));
    let reports = host.0.take();
    let expected = json!({"at_ms": 5, "to": "people", "via": "", "result": "sent",
                          "title": "Job default/a: Running", "why": ""});
    assert_eq!(reports[0], ("report/uid-a/00000000000000000001/people".into(), expected));
    assert_eq!((reports[1].1["result"].as_str(), reports.len()), (Some("refused"), 2));
}

#[test]
fn what_is_no_transition_is_done_without_a_word() {
    let mut gap = moved(2, "a", "Running", "Running");
    gap.change = Change::Gap;
    let mut left = moved(3, "b", "Running", "Failed");
    left.change = Change::Left;
    let mut resync = moved(4, "c", "Running", "Failed");
    resync.extra.push(("resync".into(), "true".into()));
    let (verdicts, sent) =
        handle(vec![], &Config::default(), &[moved(1, "a", "Running", "Running"), gap, left, resync]);
    assert_eq!((verdicts, sent.len()), (vec![Verdict::Done; 4], 0));
}

#[test]
fn only_the_phases_that_were_asked_for_are_posted() {
    let mut gone = moved(3, "c", "Running", "Running");
    gone.change = Change::Gone;
    let config = config(json!({"phases": ["Failed", "Deleted"]}));
    let states = [moved(1, "a", "Running", "Failed"), moved(2, "b", "Running", "Succeeded"), gone];
    let (_, sent) = handle(vec![], &config, &states);
    let phases: Vec<Value> = sent
        .iter()
        .map(|request| serde_json::from_slice::<Value>(&request.body).unwrap()["phase"].clone())
        .collect();
    assert_eq!(phases, ["Failed", "Deleted"]);
}

#[test]
fn a_template_keeps_types_and_fills_texts() {
    let config = config(json!({
        "path": "hooks/jobs",
        "headers": {"x-team": "ai"},
        "template": {"blocks": [{"n": "{{ attempt }}", "text": "{{name}}: {{previousPhase}} → {{phase}} ({{exitCode}})"}]},
    }));
    assert_eq!(Notification::check(&config), []);
    let (_, sent) = handle(vec![], &config, &[moved(1, "a", "Running", "Failed")]);
    let body: Value = serde_json::from_slice(&sent[0].body).unwrap();
    assert_eq!(body, json!({"blocks": [{"n": 0, "text": "a: Running → Failed ()"}]}));
    assert_eq!(sent[0].path, "hooks/jobs");
    assert!(sent[0].headers.contains(&("x-team".into(), "ai".into())));
}

#[test]
fn a_value_that_looks_like_a_placeholder_is_not_filled_again() {
    let config = config(json!({"template": "{{message}} {{name}}"}));
    let mut state = moved(1, "a", "Running", "Failed");
    state.status.message = "{{uid}}\"".into();
    let (_, sent) = handle(vec![], &config, &[state]);
    assert_eq!(serde_json::from_slice::<Value>(&sent[0].body).unwrap(), json!("{{uid}}\" a"));
}

#[test]
fn texts_have_a_bound_and_hours_hold_at_some_time() {
    let config = config(json!({
        "channels": [{"name": "hook", "kind": "webhook", "template": "x".repeat(32 << 10)}],
        "title": "{{message}}".repeat(400), "text": "fine",
        "routes": [{"to": ["hook"], "hours": {"from": "07:00", "to": "07:00"}}],
        "quiet": {"hours": {"from": "22:00", "to": "22:00"}},
    }));
    let faults: Vec<_> = Notification::check(&config).into_iter().map(|fault| fault.path).collect();
    assert_eq!(faults, ["channels[0].template", "routes[0].hours", "quiet.hours", "title"]);
}

#[test]
fn a_wrong_configuration_names_its_field() {
    let config = config(json!({
        "template": {"a": ["{{phase}} {{fase}} {{name"]}, "headers": {"Content-Type": "x"}, "path": "../x",
    }));
    let fields: Vec<_> = Notification::check(&config).into_iter().map(|fault| fault.path).collect();
    assert_eq!(fields, ["headers.Content-Type", "path", "template.a[0]", "template.a[0]"]);
}

#[test]
fn each_state_has_its_own_verdict() {
    let states = [moved(1, "a", "Running", "Failed"), moved(2, "b", "x", "y"), moved(3, "c", "x", "y")];
    let (verdicts, sent) = handle(vec![Ok(503), Ok(200), Ok(410)], &Config::default(), &states);
    assert!(
        matches!(verdicts.as_slice(), [Verdict::Retry(_), Verdict::Done, Verdict::Reject(_)]),
        "{verdicts:?}"
    );
    assert_eq!(sent.len(), 3);
}

#[test]
fn a_destination_that_is_down_is_asked_once_a_batch() {
    let states = [moved(1, "a", "x", "y"), moved(2, "b", "y", "y"), moved(3, "c", "x", "y")];
    let (verdicts, sent) = handle(vec![Err(Error::RateLimited(70))], &Config::default(), &states);
    let limited = Verdict::retry_after(70, "rate limited");
    assert_eq!((verdicts, sent.len()), (vec![limited.clone(), Verdict::Done, limited], 1));
}

#[test]
fn what_a_configuration_of_channels_can_t_mean_names_its_field() {
    let channels = json!([
        {"name": "ops", "kind": "slack", "template": "x"},
        {"name": "ops", "kind": "webhook", "template": {"a": "{{fase}} {{title}} {{/metadata/name}}"}},
        {"name": "Mail", "kind": "email", "source": "x", "path": "../x"},
        {"name": "ok", "kind": "lark", "headers": {"x-a": "b"}},
    ]);
    let config = config(json!({
        "channels": channels,
        "routes": [{"to": ["nobody"], "phases": ["Done"]}, {"to": [], "changes": ["left"]}],
        "namespaces": {"a": {"to": ["ops:x"]}},
        "phases": ["Fail"],
        "quiet": {"hours": {"from": "22:00", "to": "07:00"}, "except": ["fail"]},
        "title": "{{titel}}",
        "portal": "kw.example.com",
        "repeat": "31d",
        "digest": {"above": 0},
    }));
    let mut fields: Vec<_> = Notification::check(&config).into_iter().map(|fault| fault.path).collect();
    fields.sort();
    let mut expected = [
        "channels[0].template",
        "channels[1].name",
        "channels[1].template.a",
        "channels[2].name",
        "channels[2].source",
        "channels[2].path",
        "channels[3].headers",
        "routes[0].to[0]",
        "routes[0].phases",
        "routes[1].to",
        "routes[1].changes",
        "namespaces.a.to[0]",
        "phases",
        "quiet.except",
        "title",
        "portal",
        "repeat",
        "digest.above",
    ];
    expected.sort_unstable();
    assert_eq!(fields, expected);
}

#[test]
fn what_has_no_effect_without_channels_is_a_fault() {
    let idle = config(json!({"routes": [{"to": ["ops"]}], "mute": true}));
    let fields: Vec<_> = Notification::check(&idle).into_iter().map(|fault| fault.path).collect();
    assert_eq!(fields, ["routes", "mute"]);
    let wrong = serde_json::from_value::<Config>(json!({"channels": [{"name": "a", "kind": "slak"}]}));
    assert!(wrong.unwrap_err().to_string().contains("`slack`"));
}

#[test]
fn a_value_of_the_document_is_filled_where_the_destination_is_one() {
    struct DocumentHost(RefCell<Vec<Value>>);
    impl testing::Host for DocumentHost {
        fn document_value(&self, seq: u64, pointer: &str) -> Result<Option<String>, Error> {
            assert_eq!((seq, pointer), (1, "/spec/parallelism"));
            Ok(Some("8".into()))
        }
        fn http_send(&self, _: &str, request: &Request) -> Result<Response, Error> {
            self.0.borrow_mut().push(serde_json::from_slice(&request.body).unwrap());
            Ok(Response { status: 200, headers: vec![], body: vec![] })
        }
    }
    let host = Rc::new(DocumentHost(RefCell::default()));
    let config = config(json!({"template": {"pods": "{{/spec/parallelism}}"}}));
    testing::with_host(host.clone(), || Notification::handle(&config, &[moved(1, "a", "x", "y")]));
    assert_eq!(host.0.take(), [json!({"pods": 8})]);
}

/// A host that looks for causes, and a destination.
#[derive(Default)]
struct ExplainingHost {
    finding: RefCell<Option<Finding>>,
    asked: RefCell<u32>,
    sent: RefCell<Vec<Value>>,
    now_ms: u64,
}

impl testing::Host for ExplainingHost {
    fn explain(&self, source: &str, uid: &str) -> Result<Finding, Error> {
        assert_eq!((source, uid), ("jobs", "uid-a"));
        *self.asked.borrow_mut() += 1;
        Ok(self.finding.borrow().clone().unwrap_or(Finding::Pending))
    }
    fn http_send(&self, _: &str, request: &Request) -> Result<Response, Error> {
        self.sent.borrow_mut().push(serde_json::from_slice(&request.body).unwrap());
        Ok(Response { status: 200, headers: vec![], body: vec![] })
    }
    fn now_ms(&self) -> u64 {
        self.now_ms
    }
}

fn failed() -> State {
    let mut state = moved(2, "a", "Running", "Failed");
    state.status.terminal = true;
    state
}

#[test]
fn a_failure_is_posted_with_its_cause_once_that_is_known() {
    let host = Rc::new(ExplainingHost::default());
    let handle = |state: &State, config: &Config| {
        testing::with_host(host.clone(), || Notification::handle(config, std::slice::from_ref(state)))
    };
    let config = Config::default();
    let waits = [Verdict::retry_after(3000, "its cause is being looked for")];
    assert_eq!(handle(&failed(), &config), waits);
    assert!(host.sent.borrow().is_empty());
    *host.finding.borrow_mut() = Some(Finding::Found(testing::explanation(&failed(), "out-of-memory")));
    assert_eq!(handle(&State { attempt: 2, ..failed() }, &config), [Verdict::Done]);
    let sent = host.sent.take();
    assert_eq!(sent[0]["text"], "Job default/a: Failed: out-of-memory");
    assert_eq!(
        (&sent[0]["cause"], &sent[0]["why"]),
        (&json!("out-of-memory"), &json!("Failed: out-of-memory"))
    );
    // A template that does not say why asks nothing, and neither does a success.
    let asked = *host.asked.borrow();
    let short = serde_json::from_value(json!({"template": {"text": "{{phase}}"}})).unwrap();
    assert_eq!(handle(&failed(), &short), [Verdict::Done]);
    let mut good = moved(3, "a", "Running", "Succeeded");
    good.status.terminal = true;
    assert_eq!(handle(&good, &config), [Verdict::Done]);
    assert_eq!(*host.asked.borrow(), asked);
}

#[test]
fn nobody_waits_for_long_for_a_cause() {
    let post = |state: State, now_ms: u64| {
        let host = Rc::new(ExplainingHost { now_ms, ..ExplainingHost::default() });
        let verdicts =
            testing::with_host(host.clone(), || Notification::handle(&Config::default(), &[state]));
        (verdicts, host.sent.take().first().map(|sent| sent["text"].clone()))
    };
    let plain = Some(json!("Job default/a: Failed"));
    assert_eq!(
        post(State { attempt: 3, ..failed() }, 0),
        (vec![Verdict::Done], plain.clone()),
        "a retry costs a try"
    );
    assert_eq!(post(failed(), 20_000), (vec![Verdict::Done], plain), "it happened long ago");
    let (verdicts, sent) = post(State { attempt: 2, ..failed() }, 14_000);
    assert!(matches!(verdicts[0], Verdict::Retry(_)) && sent.is_none());
}
