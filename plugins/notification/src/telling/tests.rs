//! Calls and ticks against a scripted host, and the book by itself under random failures.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashSet};
use std::rc::Rc;

use kubewitness_sdk::http::{Request, Response};
use kubewitness_sdk::log::Level;
use kubewitness_sdk::mail::{self, Refusal};
use kubewitness_sdk::{Error, ObjectRef, State, Verdict, testing};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const NOON: u64 = 1_798_718_400_000;

/// Keeps `kv`, and answers each destination with one status.
#[derive(Default)]
struct Fake {
    kv: RefCell<BTreeMap<String, Vec<u8>>>,
    now: Cell<u64>,
    documents: RefCell<BTreeMap<u64, Value>>,
    /// By destination; 200 where it is not here.
    status: RefCell<BTreeMap<String, Result<u16, Error>>>,
    sent: RefCell<Vec<(String, Value)>>,
    letters: RefCell<Vec<mail::Message>>,
    /// How long a request takes.
    takes_ms: Cell<u64>,
    logged: RefCell<Vec<String>>,
    calls: Cell<u32>,
    keeps_no_reports: Cell<bool>,
}

/// What the host allows in one batch or tick.
const HOST_CALLS: u32 = 4096;

impl Fake {
    fn called(&self) -> Result<(), Error> {
        self.calls.set(self.calls.get() + 1);
        if self.calls.get() > HOST_CALLS { Err(Error::Denied("limits.hostCalls".into())) } else { Ok(()) }
    }
}

impl testing::Host for Fake {
    fn document_value(&self, seq: u64, pointer: &str) -> Result<Option<String>, Error> {
        self.called()?;
        let documents = self.documents.borrow();
        Ok(documents.get(&seq).and_then(|document| document.pointer(pointer)).map(Value::to_string))
    }
    fn http_send(&self, destination: &str, request: &Request) -> Result<Response, Error> {
        self.called()?;
        self.now.set(self.now.get() + self.takes_ms.get());
        let status = self.status.borrow().get(destination).cloned().unwrap_or(Ok(200))?;
        if status == 200 {
            let body = serde_json::from_slice(&request.body).unwrap();
            self.sent.borrow_mut().push((destination.to_string(), body));
        }
        Ok(Response { status, headers: vec![], body: vec![] })
    }
    fn mail_send(&self, server: &str, message: &mail::Message) -> Result<Vec<Refusal>, Error> {
        self.called()?;
        if let Some(Err(error)) = self.status.borrow().get(server) {
            return Err(error.clone());
        }
        if message.to[0].starts_with("grey") {
            return Ok(vec![Refusal {
                recipient: message.to[0].clone(),
                permanent: false,
                reason: "later".into(),
            }]);
        }
        self.letters.borrow_mut().push(message.clone());
        Ok(vec![])
    }
    fn kv_get(&self, key: &str) -> Result<Option<Vec<u8>>, Error> {
        self.called()?;
        Ok(self.kv.borrow().get(key).cloned())
    }
    fn kv_set(&self, key: &str, value: &[u8]) -> Result<(), Error> {
        self.called()?;
        if self.keeps_no_reports.get() && key.starts_with("report/") {
            return Err(Error::Unavailable("away".into()));
        }
        self.kv.borrow_mut().insert(key.to_string(), value.to_vec());
        Ok(())
    }
    fn kv_delete(&self, key: &str) -> Result<(), Error> {
        self.called()?;
        self.kv.borrow_mut().remove(key);
        Ok(())
    }
    fn kv_keys(&self, prefix: &str, limit: u32) -> Result<Vec<String>, Error> {
        self.called()?;
        let kv = self.kv.borrow();
        Ok(kv.keys().filter(|key| key.starts_with(prefix)).take(limit as usize).cloned().collect())
    }
    fn now_ms(&self) -> u64 {
        self.called().ok();
        self.now.get()
    }
    fn log(&self, _: Level, message: &str, fields: &[(String, String)]) {
        self.called().ok();
        self.logged.borrow_mut().push(format!("{message} {fields:?}"));
    }
}

struct World {
    host: Rc<Fake>,
    config: Config,
}

fn configured(value: Value) -> Config {
    let mut config =
        json!({"channels": [{"name": "ops", "kind": "slack"}, {"name": "hook", "kind": "webhook"}]});
    let Value::Object(more) = value else { panic!("{value} is no configuration") };
    config.as_object_mut().unwrap().extend(more);
    let config = serde_json::from_value(config).unwrap();
    assert_eq!(crate::check::check(&config), []);
    config
}

fn world(config: Value) -> World {
    let host = Rc::new(Fake::default());
    host.now.set(NOON);
    World { host, config: configured(config) }
}

impl World {
    fn hear(&self, states: &[State]) {
        self.host.calls.set(0);
        let verdicts = testing::with_host(self.host.clone(), || handle(&self.config, states));
        assert_eq!(verdicts, vec![Verdict::Done; states.len()]);
    }

    /// Ticks after so many milliseconds. Returns the titles that each destination took.
    fn after(&self, ms: u64) -> Vec<(String, String)> {
        self.host.calls.set(0);
        self.host.now.set(self.host.now.get() + ms);
        testing::with_host(self.host.clone(), || tick(&self.config)).unwrap();
        let title = |body: &Value| body["title"].as_str().or(body["text"].as_str()).unwrap().to_string();
        self.host.sent.take().iter().map(|(destination, body)| (destination.clone(), title(body))).collect()
    }

    fn titles(&self, ms: u64, of: &str) -> Vec<String> {
        let sent = self.after(ms);
        sent.into_iter().filter(|(destination, _)| destination == of).map(|(_, title)| title).collect()
    }
}

fn moved(seq: u64, name: &str, phase: &str) -> State {
    let mut state = testing::state(seq, name, phase);
    state.previous = Some(testing::status("Running"));
    state.observed_ms = NOON;
    state
}

fn pod(seq: u64, name: &str, phase: &str) -> State {
    let mut state = moved(seq, name, phase);
    state.owner = Some(ObjectRef { name: "train".into(), uid: "uid-train".into(), ..state.object.clone() });
    (state.object.kind, state.status.reason) = ("Pod".into(), "OOMKilled".into());
    state
}

#[test]
fn an_outcome_is_told_once_it_has_settled_with_why_since_when_and_how_to_mute() {
    let world = world(json!({"portal": "https://kw.example.com/"}));
    let mut state = moved(7, "train", "Failed");
    (state.status.reason, state.status.message) =
        ("BackoffLimitExceeded".into(), "it failed too often".into());
    state.status.exit_code = Some(137);
    world.hear(&[state]);
    assert_eq!(world.after(9_999), []);
    world.host.now.set(NOON + 10_000);
    testing::with_host(world.host.clone(), || tick(&world.config)).unwrap();
    let sent = world.host.sent.take();
    let [(_, hook), (_, slack)] = sent.as_slice() else { panic!("{sent:?}") };
    assert_eq!(slack["text"], "❌ Job default/train: Failed");
    assert_eq!(hook["title"], "Job default/train: Failed");
    let text = "BackoffLimitExceeded: it failed too often\nExit code 137\nSince 2026-12-31T12:00:00.000Z, before that \
                Running\nTo hear no more of it: mute it on its page, or kubectl annotate job train -n default kubewitness.dev/mute=true";
    assert_eq!(hook["text"], text);
    assert_eq!(hook["link"], "https://kw.example.com/objects/uid-train?state=7");
    assert_eq!(world.after(60_000), [], "it is told once");
}

#[test]
fn only_the_last_of_several_states_within_the_settle_time_is_told() {
    let world = world(json!({}));
    world.hear(&[moved(1, "a", "Failed")]);
    assert_eq!(world.after(5_000), []);
    world.hear(&[moved(2, "a", "Succeeded")]);
    assert_eq!(world.titles(10_000, "hook"), ["Job default/a: Succeeded"]);
}

#[test]
fn an_object_that_never_settles_is_told_of_all_the_same() {
    let world = world(json!({"settle": "10s"}));
    let told: Vec<_> = (0..8)
        .flat_map(|n| {
            let mut state = moved(n, "a", "Failed");
            state.status.attempt = n as u32;
            world.hear(&[state]);
            world.titles(9_000, "hook")
        })
        .collect();
    assert_eq!(told.len(), 1, "{told:?}");
}

#[test]
fn a_job_of_64_pods_is_one_message() {
    let world = world(json!({}));
    let mut states: Vec<_> = (0..64).map(|n| pod(n, &format!("train-{n}"), "Failed")).collect();
    states.push(moved(99, "train", "Failed"));
    world.hear(&states);
    world.host.now.set(NOON + 10_000);
    testing::with_host(world.host.clone(), || tick(&world.config)).unwrap();
    let sent = world.host.sent.take();
    assert_eq!(sent.len(), 2, "one to each channel: {sent:?}");
    assert!(sent[0].1["text"].as_str().unwrap().contains("Pod: 64 Failed (OOMKilled)"), "{sent:?}");
}

/// As the host shows a Pod of a Job of a CronJob: the CronJob is the outermost owner.
fn pod_of_a_cron_job(world: &World, seq: u64, namespace: &str) -> State {
    let mut pod = pod(seq, &format!("train-{seq}"), "Failed");
    pod.object.namespace = namespace.into();
    pod.owner = pod.owner.map(|owner| ObjectRef {
        kind: "CronJob".into(),
        namespace: namespace.into(),
        name: "nightly".into(),
        uid: "uid-nightly".into(),
        ..owner
    });
    let labels = json!({"metadata": {"labels": {"batch.kubernetes.io/controller-uid": "uid-train"}}});
    world.host.documents.borrow_mut().insert(seq, labels);
    pod
}

#[test]
fn a_job_of_a_cron_job_is_one_message_with_its_64_pods() {
    let world = world(json!({}));
    let mut job = moved(99, "train", "Failed");
    job.owner = pod_of_a_cron_job(&world, 0, "default").owner;
    let mut states: Vec<_> = (0..64).map(|n| pod_of_a_cron_job(&world, n, "default")).collect();
    states.push(job);
    // The label of a Pod that somebody made elsewhere.
    states.push(pod_of_a_cron_job(&world, 100, "other"));
    world.hear(&states);
    world.host.now.set(NOON + 10_000);
    testing::with_host(world.host.clone(), || tick(&world.config)).unwrap();
    let sent = world.host.sent.take();
    assert_eq!(sent.len(), 2, "one to each channel: {sent:?}");
    assert!(sent[0].1["text"].as_str().unwrap().contains("Pod: 64 Failed (OOMKilled)\nTo hear"), "{sent:?}");
    assert_eq!(world.after(61_000), []);
}

#[test]
fn who_mutes_a_job_mutes_its_pods_and_a_message_of_pods_says_how() {
    let world = world(json!({"routes": [{"to": ["hook"], "kinds": ["Pod"]}]}));
    world.hear(&[pod_of_a_cron_job(&world, 1, "default")]);
    world.host.now.set(NOON + 10_000);
    testing::with_host(world.host.clone(), || tick(&world.config)).unwrap();
    let sent = world.host.sent.take();
    assert_eq!(sent[0].1["title"], "CronJob default/nightly: 1 × Pod Failed");
    let text = sent[0].1["text"].as_str().unwrap();
    assert!(text.ends_with("To hear no more of it: kubewitness mute cronjob/nightly -n default"), "{text}");
    let mutes = json!([{"uid": "uid-train", "who": "ada", "at": "noon"}]).to_string().into_bytes();
    world.host.kv.borrow_mut().insert("kubewitness.dev/mutes".into(), mutes);
    let mut again = pod_of_a_cron_job(&world, 2, "default");
    again.status.attempt = 1;
    world.hear(&[again]);
    assert_eq!(world.after(60_000), []);
    assert_eq!(world.reports("uid-train-2"), ["hook|muted|ada muted it at noon"]);
}

#[test]
fn a_failed_job_whose_owner_has_no_subscription_is_told_by_itself_with_its_pods() {
    let of_a_set = |mut state: State| {
        let set = ObjectRef { kind: "JobSet".into(), name: "set".into(), ..state.object.clone() };
        state.owner = Some(ObjectRef { uid: "uid-set".into(), ..set });
        state.extra.push(("ownerSubscribed".into(), "false".into()));
        state
    };
    let world = world(json!({}));
    let pod = of_a_set(pod_of_a_cron_job(&world, 1, "default"));
    world.hear(&[pod, of_a_set(moved(2, "train", "Failed"))]);
    world.host.now.set(NOON + 10_000);
    testing::with_host(world.host.clone(), || tick(&world.config)).unwrap();
    let sent = world.host.sent.take();
    assert_eq!((sent.len(), &sent[0].1["title"]), (2, &json!("Job default/train: Failed")));
    assert!(sent[0].1["text"].to_string().contains("Pod: 1 Failed"), "{sent:?}");
    // With a subscription it is told with its set.
    let mut other = of_a_set(moved(3, "other", "Failed"));
    other.extra.clear();
    world.hear(&[other]);
    assert_eq!(world.after(60_000), []);
}

#[test]
fn the_exit_code_of_a_part_is_told_with_its_owner_and_a_kind_of_another_group_by_its_whole_name() {
    let world = world(json!({"routes": [{"to": ["hook"]}]}));
    let mut pod = pod(1, "train-0", "Failed");
    pod.status.exit_code = Some(137);
    let mut job = moved(2, "train", "Failed");
    job.object.group = "batch.volcano.sh".into();
    world.hear(&[pod, job]);
    world.host.now.set(NOON + 10_000);
    testing::with_host(world.host.clone(), || tick(&world.config)).unwrap();
    let sent = world.host.sent.take();
    let text = sent[0].1["text"].as_str().unwrap();
    let told = "Pod: 1 Failed (OOMKilled), exit code 137\nTo hear no more of it: kubectl annotate \
                job.batch.volcano.sh train -n default kubewitness.dev/mute=true";
    assert!(text.ends_with(told), "{text}");
}

#[test]
fn a_digest_says_how_to_mute_one_object_and_a_namespace() {
    let world = world(json!({"settle": "0s", "digest": {"above": 1, "every": "10m"},
        "portal": "https://kw.example.com/"}));
    world.hear(&[moved(1, "a", "Failed"), moved(2, "b", "Failed")]);
    testing::with_host(world.host.clone(), || tick(&world.config)).unwrap();
    let sent = world.host.sent.take();
    let (_, slack) = sent.iter().find(|(to, _)| to == "ops").unwrap();
    let told = "To hear no more of one: annotate it with kubewitness.dev/mute=true, or mute a namespace on \
                https://kw.example.com/mutes\n";
    assert!(slack["blocks"][1]["text"]["text"].as_str().unwrap().contains(told), "{slack}");
}

#[test]
fn parts_without_number_take_the_room_of_no_outcome() {
    let world = world(json!({}));
    for batch in 0..4 {
        let pods = (batch * 100..batch * 100 + 100).map(|n| pod(n, &format!("train-{n}"), "Failed"));
        world.hear(&pods.collect::<Vec<_>>());
    }
    world.hear(&[moved(900, "train", "Failed"), moved(901, "other", "Failed")]);
    world.host.now.set(NOON + 10_000);
    testing::with_host(world.host.clone(), || tick(&world.config)).unwrap();
    let sent = world.host.sent.take();
    let titles: Vec<_> = sent.iter().filter_map(|(_, body)| body["title"].as_str()).collect();
    assert_eq!(titles, ["Job default/other: Failed", "Job default/train: Failed"]);
    assert!(
        sent.iter().any(|(_, body)| body["text"].to_string().contains("Pod: 400 Failed (OOMKilled)")),
        "{sent:?}"
    );
}

#[test]
fn parts_that_are_asked_for_are_one_message_and_others_without_their_owner_none() {
    let pods: Vec<_> = (0..64).map(|n| pod(n, &format!("train-{n}"), "Failed")).collect();
    let asked = world(json!({"routes": [{"to": ["hook"], "kinds": ["Pod"]}]}));
    asked.hear(&pods);
    assert_eq!(asked.titles(10_000, "hook"), ["Job default/train: 64 × Pod Failed"]);
    let plain = world(json!({}));
    plain.hear(&pods);
    assert_eq!((plain.after(10_000), plain.after(61_000)), (vec![], vec![]));
    assert_eq!(plain.host.kv_keys_left(), 0);
}

#[test]
fn a_part_whose_maker_names_an_object_of_another_namespace_joins_no_message_of_it() {
    let forged = |seq, name: &str| {
        let mut pod = pod(seq, name, "Failed");
        pod.status.reason = "Forged".into();
        pod.object.namespace = "other".into();
        if let Some(owner) = &mut pod.owner {
            // As the host says it.
            owner.namespace = "other".into();
        }
        pod
    };
    let routes = json!([{"to": ["hook"]}, {"to": ["hook"], "kinds": ["Pod"], "namespaces": ["other"]}]);
    for config in [json!({}), json!({"routes": routes})] {
        let world = world(config.clone());
        world.hear(&[forged(1, "p"), moved(2, "train", "Failed"), forged(3, "q")]);
        world.host.now.set(NOON + 10_000);
        testing::with_host(world.host.clone(), || tick(&world.config)).unwrap();
        let sent = world.host.sent.take();
        let of_train: Vec<_> =
            sent.iter().filter(|(_, body)| body.to_string().contains("default/train: Failed")).collect();
        assert!(!of_train.is_empty() && !format!("{of_train:?}").contains("Forged"), "{config}: {sent:?}");
        let told = format!("{:?} {:?}", world.reports("uid-p"), world.reports("uid-q"));
        assert!(!told.contains("default/train"), "{told}");
    }
}

impl Fake {
    fn kv_keys_left(&self) -> usize {
        self.kv.borrow().keys().filter(|key| key.starts_with(NOTES)).count()
    }
}

#[test]
fn a_repeat_is_not_told_again_until_its_time_is_over_also_after_a_restart() {
    let world = world(json!({"repeat": "1h", "settle": "1s", "oldest": "2d"}));
    world.hear(&[moved(1, "a", "Failed")]);
    assert_eq!(world.titles(1_000, "hook").len(), 1);
    // Nothing but `kv` outlives a restart, and the same state is handed over again.
    world.hear(&[moved(1, "a", "Failed"), moved(2, "b", "Failed")]);
    assert_eq!(world.titles(1_000, "hook"), ["Job default/b: Failed"]);
    world.hear(&[moved(3, "a", "Succeeded")]);
    assert_eq!(world.titles(1_000, "hook"), ["Job default/a: Succeeded"]);
    assert_eq!(world.after(3_600_000), []);
    world.hear(&[moved(4, "a", "Succeeded")]);
    assert_eq!(world.titles(1_000, "hook"), ["Job default/a: Succeeded"]);
}

#[test]
fn a_recipient_that_fails_repeats_nothing_for_the_others() {
    let world = world(json!({"settle": "0s"}));
    world.host.status.borrow_mut().insert("ops".into(), Ok(503));
    world.hear(&[moved(1, "a", "Failed")]);
    assert_eq!(world.after(0), [("hook".to_string(), "Job default/a: Failed".to_string())]);
    assert_eq!(world.after(5_000), [], "it is asked again and does not take it");
    world.host.status.borrow_mut().clear();
    assert_eq!(world.after(5_000), [], "the pause has doubled");
    assert_eq!(world.after(5_000), [("ops".to_string(), "❌ Job default/a: Failed".to_string())]);
}

#[test]
fn a_refused_message_is_not_sent_again_and_the_next_one_is() {
    let world = world(json!({"settle": "0s"}));
    world.host.status.borrow_mut().insert("ops".into(), Ok(404));
    world.hear(&[moved(1, "a", "Failed")]);
    assert_eq!(world.after(0).len(), 1);
    world.host.status.borrow_mut().clear();
    world.hear(&[moved(2, "b", "Failed")]);
    assert_eq!(world.titles(60_000, "ops"), ["❌ Job default/b: Failed"]);
}

#[test]
fn over_the_rate_of_a_destination_the_rest_waits_for_the_time_that_the_host_says() {
    let world = world(json!({"settle": "0s", "routes": [{"to": ["ops"]}]}));
    world.host.status.borrow_mut().insert("ops".into(), Err(Error::RateLimited(700)));
    world.hear(&[moved(1, "a", "Failed"), moved(2, "b", "Failed")]);
    assert_eq!(world.after(0), []);
    world.host.status.borrow_mut().clear();
    assert_eq!(world.after(699), []);
    assert_eq!(world.after(1).len(), 2);
}

#[test]
fn a_tick_stops_sending_before_its_time_is_up_and_the_next_one_goes_on() {
    let world = world(json!({"settle": "0s", "routes": [{"to": ["hook"]}]}));
    let states: Vec<_> = (0..9).map(|n| moved(n, &format!("j{n}"), "Failed")).collect();
    world.hear(&states);
    world.host.takes_ms.set(1_000);
    assert_eq!((world.after(0).len(), world.after(0).len(), world.after(0).len()), (4, 4, 1));
}

#[test]
fn too_much_for_a_person_is_one_digest_and_then_silence_until_the_window_ends() {
    let world = world(json!({"settle": "0s", "digest": {"above": 3, "every": "10m"}}));
    let states =
        |from: u64, to: u64| -> Vec<_> { (from..to).map(|n| moved(n, &format!("j{n}"), "Failed")).collect() };
    world.hear(&states(0, 20));
    assert_eq!(world.titles(0, "ops"), ["❌ 20 outcomes: 20 Failed"]);
    world.hear(&states(20, 22));
    assert_eq!(world.after(60_000).into_iter().filter(|(to, _)| to == "ops").count(), 0);
    let later = world.titles(540_000, "ops");
    assert_eq!(later, ["❌ Job default/j20: Failed", "❌ Job default/j21: Failed"]);
}

#[test]
fn quiet_hours_hold_messages_back_except_those_that_can_t_wait() {
    let quiet = json!({"hours": {"from": "12:00", "to": "13:00"}, "except": ["Failed"]});
    let world = world(json!({"settle": "0s", "quiet": quiet}));
    world.hear(&[moved(1, "a", "Succeeded"), moved(2, "b", "Failed")]);
    let told = world.after(0);
    let of = |name: &str| {
        told.iter().filter(|(to, _)| to == name).map(|(_, title)| title.clone()).collect::<Vec<_>>()
    };
    assert_eq!(of("ops"), ["❌ Job default/b: Failed"]);
    assert_eq!(
        of("hook"),
        ["Job default/a: Succeeded", "Job default/b: Failed"],
        "a program is told at any hour"
    );
    world.hear(&[State { status: testing::status("Cancelled"), ..moved(3, "a", "Cancelled") }]);
    assert_eq!(world.titles(3_599_999, "ops"), [] as [&str; 0]);
    assert_eq!(world.titles(1, "ops"), ["Job default/a: Cancelled"]);
    assert_eq!(world.reports("uid-a")[1], "ops|merged|the message on `Job default/a: Cancelled` tells it");
}

#[test]
fn what_quiet_hours_hold_takes_the_place_of_nothing_that_can_t_wait() {
    let quiet = json!({"hours": {"from": "12:00", "to": "13:00"}, "except": ["Failed"]});
    let world = world(json!({"settle": "0s", "quiet": quiet, "routes": [{"to": ["ops"]}]}));
    for from in [0, 100, 200] {
        world.hear(&(from..from + 100).map(|n| moved(n, &format!("j{n}"), "Succeeded")).collect::<Vec<_>>());
        assert_eq!(world.after(1_000), []);
    }
    let many: Vec<_> = (300..500).map(|n| moved(n, &format!("j{n}"), "Succeeded")).collect();
    world.hear(&many);
    world.hear(&[moved(900, "bad", "Failed")]);
    assert_eq!(world.titles(1_000, "ops"), ["1 outcomes"], "the notes between two ticks have a bound");
    world.hear(&[moved(901, "worse", "Failed")]);
    assert_eq!(world.titles(600_000, "ops"), ["❌ Job default/worse: Failed"]);
    assert_eq!(world.titles(3_600_000, "ops"), ["500 outcomes: 127 Succeeded"]);
}

impl World {
    /// Hands states over until each is done, with a tick between. Returns the titles that each destination took.
    fn delivered(&self, mut states: Vec<State>, rounds: usize) -> (Vec<State>, Vec<(String, String)>) {
        let mut told = Vec::new();
        for _ in 0..rounds {
            self.host.calls.set(0);
            let verdicts = testing::with_host(self.host.clone(), || handle(&self.config, &states));
            let again = states.iter().zip(&verdicts).filter(|(_, verdict)| **verdict != Verdict::Done);
            states = again.map(|(state, _)| state.clone()).collect();
            told.extend(self.after(10_000));
        }
        (states, told)
    }
}

/// How many outcomes one recipient was told of, one by one and as numbers.
fn outcomes(told: &[(String, String)], of: &str) -> u64 {
    let number = |title: &str| title.strip_prefix("❌ ").unwrap_or(title).split(' ').next()?.parse().ok();
    told.iter().filter(|(to, _)| to == of).map(|(_, title)| number(title).unwrap_or(1)).sum()
}

#[test]
fn a_program_gets_each_message_however_many_there_are_and_people_hear_of_each_once() {
    for is_down in [false, true] {
        let world = world(json!({"settle": "0s", "repeat": "0s", "digest": {"above": 1000, "every": "1m"}}));
        let states = (0..300).map(|n| moved(n, &format!("j{n}"), "Failed")).collect();
        let (mut states, mut told) = match is_down {
            true => {
                world.host.status.borrow_mut().insert("hook".into(), Ok(503));
                let (states, told) = world.delivered(states, 20);
                assert!(states.len() < 300 && !states.is_empty(), "{} wait for the program", states.len());
                assert_eq!(outcomes(&told, "ops"), 300, "people need not wait for it");
                world.host.status.borrow_mut().clear();
                (states, told)
            }
            false => (states, Vec::new()),
        };
        world.host.now.set(world.host.now.get() + 600_000);
        let rest = world.delivered(std::mem::take(&mut states), 30);
        told.extend(rest.1);
        told.extend(world.after(600_000));
        assert_eq!((rest.0.len(), outcomes(&told, "ops")), (0, 300), "{is_down}");
        let of_hook = || told.iter().filter(|(to, _)| to == "hook").map(|(_, title)| title.clone());
        let expected: HashSet<_> = (0..300).map(|n| format!("Job default/j{n}: Failed")).collect();
        assert!(of_hook().count() == 300 && of_hook().collect::<HashSet<_>>() == expected, "{is_down}");
    }
}

#[test]
fn a_program_that_was_down_for_some_minutes_is_asked_within_one_and_loses_no_state_meanwhile() {
    let world = world(json!({"settle": "0s", "routes": [{"to": ["hook"]}]}));
    world.host.status.borrow_mut().insert("hook".into(), Ok(503));
    for from in [0, 32] {
        world.hear(&(from..from + 32).map(|n| moved(n, &format!("j{n}"), "Failed")).collect::<Vec<_>>());
        world.after(0);
    }
    let more = [moved(100, "more", "Failed")];
    let verdicts = testing::with_host(world.host.clone(), || handle(&world.config, &more));
    let why = "as many messages as there is room for wait for `hook`";
    assert_eq!(verdicts, [Verdict::retry_after(60_000, why)]);
    for _ in 0..33 {
        assert_eq!(world.after(10_000), []);
    }
    world.host.status.borrow_mut().clear();
    let told: usize = (0..6).map(|_| world.titles(10_000, "hook").len()).sum();
    assert_eq!(told, 64);
}

#[test]
fn a_hundred_thousand_old_jobs_are_counted_and_told_to_nobody() {
    let world = world(json!({}));
    for batch in 0..400 {
        let states: Vec<_> = (0..250)
            .map(|n| {
                let seq = batch * 250 + n;
                let mut state = testing::state(seq, &format!("j{seq}"), "Succeeded");
                state.observed_ms = NOON;
                let ended = json!({"status": {"completionTime": "2026-11-01T00:00:00Z"}});
                world.host.documents.borrow_mut().insert(seq, ended);
                state
            })
            .collect();
        world.hear(&states);
        world.host.documents.borrow_mut().clear();
        assert_eq!(world.after(1_000), []);
    }
    let book: Value = serde_json::from_slice(&world.host.kv.borrow()["book"]).unwrap();
    assert_eq!((&book["old"], world.host.kv.borrow().len()), (&json!(100_000), 1));
}

#[test]
fn a_flood_of_fresh_jobs_is_one_digest_that_says_how_many_more_there_were() {
    let world = world(json!({"routes": [{"to": ["ops"]}]}));
    for batch in 0..100 {
        let states: Vec<_> =
            (0..100).map(|n| moved(batch * 100 + n, &format!("j{}", batch * 100 + n), "Failed")).collect();
        world.hear(&states);
    }
    assert!(world.host.kv.borrow().values().map(Vec::len).sum::<usize>() < 1 << 20);
    assert_eq!(world.titles(10_000, "ops"), ["❌ 10000 outcomes: 128 Failed"]);
    assert_eq!(world.after(599_000), []);
}

#[test]
fn what_an_operator_asks_for_of_a_document_is_in_the_message() {
    let world = world(json!({
        "settle": "0s", "title": "{{/metadata/labels/team}}: {{name}} {{phase}}", "text": "{{/spec/parallelism}} pods",
        "routes": [{"to": ["hook"]}],
    }));
    let document = json!({"metadata": {"labels": {"team": "vision"}}, "spec": {"parallelism": 8}});
    world.host.documents.borrow_mut().insert(1, document);
    world.hear(&[moved(1, "a", "Failed")]);
    world.host.now.set(NOON + 1);
    testing::with_host(world.host.clone(), || tick(&world.config)).unwrap();
    let sent = world.host.sent.take();
    assert_eq!(sent[0].1["title"], "vision: a Failed");
    assert!(sent[0].1["text"].as_str().unwrap().starts_with("8 pods\nTo hear no more"), "{sent:?}");
}

#[test]
fn a_flood_of_recipients_and_parts_leaves_each_tick_within_its_calls_and_repeats_no_mail() {
    let channels = json!([{"name": "mail", "kind": "email"}]);
    let world = world(json!({"settle": "0s", "channels": channels, "routes": []}));
    let mut seq = 0;
    let mut told = HashSet::new();
    for _ in 0..6 {
        for _ in 0..2 {
            let jobs: Vec<_> = (0..64)
                .map(|_| {
                    seq += 1;
                    let to: Vec<_> = (0..8).map(|n| format!("mail:j{seq}-{n}@example.org")).collect();
                    let notify =
                        json!({"metadata": {"annotations": {"kubewitness.dev/notify": to.join(",")}}});
                    world.host.documents.borrow_mut().insert(seq, notify);
                    moved(seq, &format!("j{seq}"), "Failed")
                })
                .collect();
            world.hear(&jobs);
        }
        for _ in 0..7 {
            let pods: Vec<_> = (0..64)
                .map(|_| {
                    seq += 1;
                    let mut one = pod(seq, &format!("p{seq}"), "Failed");
                    one.owner.as_mut().unwrap().uid = format!("uid-of-{seq}");
                    one
                })
                .collect();
            world.hear(&pods);
        }
        world.after(1_000);
        assert!(world.host.calls.get() < HOST_CALLS, "{} calls", world.host.calls.get());
        for letter in world.host.letters.take() {
            assert!(told.insert(letter.to.clone()), "{:?} is told again", letter.to);
        }
    }
    assert!(told.len() >= 200, "{}", told.len());
    let of = |prefix: &str| world.host.kv.borrow().keys().filter(|key| key.starts_with(prefix)).count();
    assert!(of("report/") <= 4_300 && of("part/") <= 512, "{} reports, {} parts", of("report/"), of("part/"));
}

#[test]
fn reports_that_can_t_be_kept_repeat_no_message() {
    let world = world(json!({"settle": "0s", "routes": [{"to": ["hook"]}]}));
    world.hear(&[moved(1, "a", "Failed")]);
    world.host.keeps_no_reports.set(true);
    assert_eq!((world.titles(0, "hook").len(), world.titles(1_000, "hook").len()), (1, 0));
    assert!(world.host.logged.borrow().iter().any(|line| line.contains("can't be listed")));
}

#[test]
fn people_of_a_part_and_of_its_owner_are_told_by_one_message() {
    let routes = json!([{"to": ["ops"], "kinds": ["Pod"]}, {"to": ["hook"]}]);
    let world = world(json!({"routes": routes}));
    world.hear(&[pod(1, "train-0", "Failed"), moved(2, "train", "Failed")]);
    let told = world.after(10_000);
    let expected = [("hook", "Job default/train: Failed"), ("ops", "❌ Job default/train: Failed")];
    assert_eq!(told, expected.map(|(to, title)| (to.to_string(), title.to_string())));
    let merged = "ops|merged|the message on `Job default/train: Failed` tells it";
    assert_eq!(world.reports("uid-train-0"), [merged]);
    assert_eq!(world.reports("uid-train"), ["hook|sent|", "ops|sent|"]);
    assert_eq!(world.after(60_000), []);
}

#[test]
fn what_was_told_of_an_object_keeps_nobody_from_hearing_of_its_parts() {
    let routes = json!([{"to": ["ops"], "kinds": ["Pod"]}, {"to": ["hook"]}]);
    let world = world(json!({"routes": routes}));
    world.hear(&[moved(1, "train", "Failed")]);
    assert_eq!(world.titles(10_000, "hook"), ["Job default/train: Failed"]);
    world.hear(&[pod(2, "train-0", "Failed"), moved(3, "train", "Failed")]);
    let told = world.after(10_000);
    assert_eq!(told, [("ops".to_string(), "❌ Job default/train: 1 × Pod Failed".to_string())]);
    assert!(world.reports("uid-train")[1].starts_with("hook|suppressed|the same was told at"));
    assert_eq!(world.reports("uid-train-0"), ["ops|sent|"]);
}

#[test]
fn a_person_is_written_to_whom_an_annotation_names() {
    let channels = json!([{"name": "mail", "kind": "email"}]);
    let world = world(json!({"settle": "0s", "channels": channels}));
    let annotations =
        json!({"metadata": {"annotations": {"kubewitness.dev/notify": "mail:ada@example.com"}}});
    world.host.documents.borrow_mut().insert(1, annotations);
    world.hear(&[moved(1, "a", "Failed"), moved(2, "b", "Failed")]);
    world.after(0);
    let letters = world.host.letters.take();
    assert_eq!((letters.len(), letters[0].to[0].as_str()), (1, "ada@example.com"));
}

#[test]
fn a_message_that_nobody_takes_is_given_up_after_a_day() {
    let world = world(json!({"settle": "0s", "routes": [{"to": ["ops"]}]}));
    world.host.status.borrow_mut().insert("ops".into(), Err(Error::Unavailable("away".into())));
    world.hear(&[moved(1, "a", "Failed")]);
    world.after(0);
    world.after(24 * 3_600_000);
    world.host.status.borrow_mut().clear();
    assert_eq!(world.after(600_000), []);
}

impl World {
    /// Of one object, in the order of states and recipients: the recipient, the result and the reason.
    fn reports(&self, uid: &str) -> Vec<String> {
        let kv = self.host.kv.borrow();
        let of = |(_, value): (&String, &Vec<u8>)| {
            let report: Value = serde_json::from_slice(value).unwrap();
            let text = |name: &str| report[name].as_str().unwrap().to_string();
            [text("to"), text("result"), text("why")].join("|")
        };
        kv.iter().filter(|(key, _)| key.starts_with(&format!("report/{uid}/"))).map(of).collect()
    }
}

#[test]
fn what_became_of_each_message_is_reported_by_recipient() {
    let world = world(json!({"digest": {"above": 1, "every": "1h"}}));
    world.host.status.borrow_mut().insert("ops".into(), Ok(404));
    world.host.status.borrow_mut().insert("hook".into(), Err(Error::Unavailable("away".into())));
    world.hear(&[moved(1, "a", "Cancelled"), moved(2, "a", "Failed")]);
    assert_eq!(world.reports("uid-a")[0], "hook|waiting|until it has settled");
    world.after(10_000);
    let merged = "merged|the message on `Job default/a: Failed` tells it";
    let refused = "ops|refused|the destination answered 404: ";
    let expected =
        [&format!("hook|{merged}"), &format!("ops|{merged}"), "hook|waiting|unavailable: away", refused];
    assert_eq!(world.reports("uid-a"), expected);
    world.host.status.borrow_mut().clear();
    world.after(10_000);
    assert_eq!(world.reports("uid-a")[2..], ["hook|sent|", refused]);
    // The same again, and then more than one in the window.
    world.hear(&[moved(3, "a", "Failed"), moved(4, "b", "Failed")]);
    world.after(10_000);
    assert!(
        world.reports("uid-a")[4].starts_with("hook|suppressed|the same was told at 2026-12-31T12:00:10")
    );
    assert_eq!(world.reports("uid-b"), ["hook|sent|", "ops|waiting|until it has settled"]);
    world.hear(&[moved(5, "c", "Failed")]);
    world.host.status.borrow_mut().insert("ops".into(), Ok(503));
    world.after(3_600_000);
    assert_eq!(world.reports("uid-b")[1], "ops|waiting|the digest was not taken: the log says why");
    world.host.status.borrow_mut().clear();
    world.after(10_000);
    assert_eq!(world.reports("uid-b")[1], "ops|sent|within a digest");
    let entry = world.host.kv.borrow()["report/uid-b/00000000000000000004/ops"].clone();
    let entry: Value = serde_json::from_slice(&entry).unwrap();
    assert_eq!((&entry["via"], &entry["title"]), (&json!("slack"), &json!("Job default/b: Failed")));
}

#[test]
fn what_is_muted_refused_quiet_or_given_up_is_reported_too() {
    let quiet = json!({"hours": {"from": "11:00", "to": "13:00"}, "except": ["Failed"]});
    let world = world(
        json!({"routes": [{"to": ["ops"]}], "namespaces": {"default": {"mute": true}}, "quiet": quiet}),
    );
    let notify = json!({"metadata": {"annotations": {
        "kubewitness.dev/notify": "nobody\nBcc:x@example.com", "kubewitness.dev/mute": "false",
    }}});
    world.host.documents.borrow_mut().insert(1, notify.clone());
    world.host.documents.borrow_mut().insert(3, notify);
    world.hear(&[moved(1, "a", "Succeeded"), moved(2, "b", "Failed"), moved(3, "c", "Failed")]);
    let [bcc, nobody, ops] = &world.reports("uid-a")[..] else { panic!("{:?}", world.reports("uid-a")) };
    assert!(bcc.starts_with("Bcc:x@example.com|refused|`Bcc` is no channel"), "{bcc}");
    assert!(
        nobody.starts_with("nobody|refused|") && ops == "ops|waiting|until quiet hours end",
        "{nobody} {ops}"
    );
    assert_eq!(world.reports("uid-b"), ["ops|muted|the configuration mutes the namespace"]);
    world.host.status.borrow_mut().insert("ops".into(), Err(Error::Unavailable("away".into())));
    world.after(10_000);
    world.after(24 * 3_600_000);
    assert_eq!(world.reports("uid-c")[2], "ops|given up|nobody took it for a day");
}

#[test]
fn what_a_person_mutes_is_not_told_also_where_it_waits_already() {
    let world = world(json!({"routes": [{"to": ["ops", "hook"]}]}));
    let mute = |mutes: Value| {
        world.host.kv.borrow_mut().insert("kubewitness.dev/mutes".into(), mutes.to_string().into_bytes());
    };
    mute(json!([{"uid": "uid-a", "to": "ops", "who": "ada", "at": "noon"}]));
    world.hear(&[moved(1, "a", "Failed"), moved(2, "b", "Failed")]);
    assert_eq!(
        world.reports("uid-a"),
        ["hook|waiting|until it has settled", "ops|muted|ada muted it at noon"]
    );
    world.host.status.borrow_mut().insert("ops".into(), Err(Error::Unavailable("away".into())));
    assert_eq!(world.titles(10_000, "hook"), ["Job default/a: Failed", "Job default/b: Failed"]);
    world.host.status.borrow_mut().clear();
    mute(json!([{"namespace": "default", "who": "bob", "at": "one"}]));
    world.hear(&[moved(3, "c", "Failed")]);
    assert_eq!(world.after(600_000), []);
    assert_eq!(world.reports("uid-b")[1], "ops|muted|bob muted it at one");
    assert_eq!(world.reports("uid-c")[0], "hook|muted|bob muted it at one");
    mute(json!([{"uid": "uid-train", "who": "eve", "at": "two"}]));
    world.hear(&[moved(4, "d", "Failed"), pod(5, "p", "Failed"), moved(6, "train", "Failed")]);
    assert_eq!(world.titles(60_000, "ops"), ["❌ Job default/d: Failed"]);
    mute(json!({"no": "list"}));
    let verdicts =
        testing::with_host(world.host.clone(), || handle(&world.config, &[moved(7, "e", "Failed")]));
    assert!(
        matches!(&verdicts[..], [Verdict::Retry(later)] if later.reason.contains("mutes")),
        "{verdicts:?}"
    );
}

#[test]
fn no_more_reports_are_kept_than_there_is_room_for_and_the_oldest_go() {
    let world = world(json!({"mute": true, "routes": [{"to": ["ops"]}]}));
    for batch in 0..8u64 {
        let of = |n| moved(batch * 500 + n, &format!("j{}", batch * 500 + n), "Failed");
        world.hear(&(0..500).map(of).collect::<Vec<_>>());
    }
    let kv = world.host.kv.borrow();
    let reports = kv.keys().filter(|key| key.starts_with("report/")).count();
    assert!((2250..=3000).contains(&reports), "{reports}");
    assert!(kv.contains_key("report/uid-j3999/00000000000000003999/ops"));
    assert!(!kv.contains_key("report/uid-j0/00000000000000000000/ops"));
}

#[test]
fn a_recipient_that_takes_nothing_keeps_nobody_from_being_told() {
    let world = world(json!({"settle": "0s", "routes": [
        {"to": ["ops"], "namespaces": ["loud"]}, {"to": ["hook"], "namespaces": ["default"]},
    ]}));
    world.host.status.borrow_mut().insert("ops".into(), Err(Error::Unavailable("away".into())));
    for batch in 0..4u64 {
        let of = |n| {
            let mut state = moved(batch * 100 + n, &format!("l{}", batch * 100 + n), "Failed");
            state.object.namespace = "loud".into();
            state
        };
        world.hear(&(0..100).map(of).collect::<Vec<_>>());
        world.after(1_000);
    }
    world.hear(&[moved(900, "a", "Failed")]);
    assert_eq!(world.titles(1_000, "hook"), ["Job default/a: Failed"]);
    assert!(world.reports("uid-l0")[0].starts_with("ops|given up|"), "{:?}", world.reports("uid-l0"));
    world.host.status.borrow_mut().clear();
    let told = world.titles(600_000, "ops");
    assert!(told.len() == 1 && told[0].starts_with("❌ 400 outcomes"), "{told:?}");
}

#[test]
fn a_channel_at_its_rate_and_addresses_of_annotations_keep_nobody_from_being_told() {
    let channels = json!([
        {"name": "mail", "kind": "email"}, {"name": "ops", "kind": "slack"}, {"name": "hook", "kind": "webhook"},
    ]);
    for error in
        [Error::RateLimited(3_600_000), Error::Unavailable("away".into()), Error::Denied("not yours".into())]
    {
        let world =
            world(json!({"settle": "0s", "channels": channels, "namespaces": {"default": {"to": ["hook"]}},
            "routes": []}));
        for name in ["ops", "mail"] {
            world.host.status.borrow_mut().insert(name.into(), Err(error.clone()));
        }
        for seq in 0..400u64 {
            let to = format!("ops mail:x{seq}@example.org");
            let notify = json!({"metadata": {"annotations": {"kubewitness.dev/notify": to}}});
            world.host.documents.borrow_mut().insert(seq, notify);
            world.hear(&[moved(seq, &format!("l{seq}"), "Failed")]);
            if seq % 50 == 49 {
                world.after(1_000);
            }
        }
        world.hear(&[moved(900, "a", "Failed")]);
        assert_eq!(world.titles(1_000, "hook"), ["Job default/a: Failed"], "{error:?}");
        assert_eq!(world.reports("uid-a"), ["hook|sent|"]);
        let is_told = world.host.logged.borrow().iter().any(|line| line.contains("the outbox is full"));
        assert!(is_told || matches!(error, Error::Denied(_)));
    }
}

#[test]
fn many_messages_for_a_channel_that_is_down_or_slow_starve_no_recipient_of_another_name() {
    let channels = json!([{"name": "aaa", "kind": "webhook"}, {"name": "hook", "kind": "webhook"}]);
    let world = world(json!({"settle": "0s", "channels": channels, "routes": [
        {"to": ["aaa"], "namespaces": ["loud"]}, {"to": ["hook"], "namespaces": ["default"]},
    ]}));
    let loud = |seq: u64| {
        let mut state = moved(seq, &format!("l{seq}"), "Failed");
        state.object.namespace = "loud".into();
        state
    };
    world.hear(&(0..60).map(loud).collect::<Vec<_>>());
    world.hear(&[moved(900, "a", "Failed")]);
    assert_eq!(world.titles(0, "hook"), ["Job default/a: Failed"], "each recipient has its turn");
    world.host.status.borrow_mut().insert("aaa".into(), Ok(503));
    world.hear(&(100..160).map(loud).collect::<Vec<_>>());
    world.hear(&[moved(901, "b", "Failed")]);
    assert_eq!(world.titles(0, "hook"), ["Job default/b: Failed"]);
    // Each request takes as long as a tick may send.
    world.host.takes_ms.set(3_001);
    world.hear(&[moved(902, "c", "Failed")]);
    assert_eq!(world.titles(600_000, "hook"), ["Job default/c: Failed"]);
}

#[test]
fn an_address_that_is_to_wait_holds_up_no_other_of_its_channel() {
    let world = world(json!({"settle": "0s", "channels": [{"name": "mail", "kind": "email"}],
        "routes": [{"to": ["mail:ada@example.com", "mail:grey@example.com", "mail:zoe@example.com"]}]}));
    world.hear(&[moved(1, "a", "Failed")]);
    world.after(0);
    let told: Vec<_> = world.host.letters.take().into_iter().flat_map(|letter| letter.to).collect();
    assert_eq!(told, ["ada@example.com", "zoe@example.com"]);
    assert_eq!(world.reports("uid-a")[1], "mail:grey@example.com|waiting|later");
}

#[test]
fn a_clock_that_is_set_back_holds_nothing_up() {
    let world = world(json!({"routes": [{"to": ["hook"]}]}));
    let future = NOON + 365 * 24 * 3_600_000;
    world.host.now.set(future);
    let ahead = |seq, name: &str| State { observed_ms: future, ..moved(seq, name, "Failed") };
    world.hear(&[ahead(1, "a")]);
    world.after(20_000);
    world.hear(&[ahead(2, "b")]);
    world.host.status.borrow_mut().insert("hook".into(), Err(Error::RateLimited(u64::MAX)));
    world.hear(&[ahead(3, "c")]);
    world.after(20_000);
    world.host.status.borrow_mut().clear();
    world.host.now.set(NOON);
    world.hear(&[moved(4, "d", "Failed")]);
    let mut told: Vec<_> = world.titles(20_000, "hook");
    told.extend(world.titles(3_600_000, "hook"));
    told.sort();
    assert_eq!(told, ["Job default/b: Failed", "Job default/c: Failed", "Job default/d: Failed"]);
}

#[test]
fn a_title_is_one_line_whatever_an_object_says() {
    let world = world(json!({"settle": "0s", "title": "{{reason}}", "routes": [{"to": ["hook"]}]}));
    let mut state = moved(1, "a", "Failed");
    state.status.reason = "one\r\nBcc: x\u{1b}[2J\u{202e}".into();
    world.hear(&[state]);
    assert_eq!(world.titles(0, "hook"), ["one  Bcc: x [2J"]);
    let world = super::tests::world(
        json!({"settle": "0s", "title": "{{/metadata/annotations/a}}", "routes": [{"to": ["hook"]}]}),
    );
    world.hear(&[moved(1, "a", "Failed")]);
    assert_eq!(world.titles(0, "hook"), ["Job default/a: Failed"], "a title of nothing is the standard one");
}

fn note(seq: u64, phase: &str, to: &[&str], heard_ms: u64) -> Note {
    let uid = format!("uid-{}", seq % 7);
    Note {
        seq,
        group: format!("/{uid}"),
        to: to.iter().map(|name| name.to_string()).collect(),
        heard_ms,
        facts: serde_json::from_value(
            json!({"id": seq.to_string(), "uid": uid, "phase": phase, "kind": "Job", "attempt": 0}),
        )
        .unwrap(),
    }
}

#[test]
fn what_is_remembered_is_bounded() {
    let config = configured(json!({"settle": "0s"}));
    let mut book = Book::default();
    for seq in 0..5_000u64 {
        let mut one = note(seq, "Failed", &["hook"], seq);
        one.group = format!("/uid-{seq}");
        one.facts.insert("uid".into(), format!("uid-{seq}").into());
        book.take_in(&config, seq, vec![(seq.to_string(), one)]);
        for sending in book.due(&config, seq) {
            book.answered(&config, &sending, &Answer::Taken, seq);
        }
        book.forget(&config, seq);
    }
    let book = serde_json::to_value(&book).unwrap();
    let told = book["told"].as_array().unwrap();
    assert_eq!(
        (told.len(), &told[0]["key"], &told[1999]["key"]),
        (2_000, &json!("uid-3000"), &json!("uid-4999"))
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Whatever fails and whenever: nobody is told the same message twice, and in the end everybody was told everything.
    #[test]
    fn every_recipient_hears_of_every_message_exactly_once(
        steps in proptest::collection::vec((0u8..3, 0u64..8_000, 0u8..4), 1..80),
    ) {
        let config = configured(json!({"settle": "2s", "digest": {"above": 2, "every": "20s"}, "repeat": "0s"}));
        let (mut book, mut notes, mut now) = (Book::default(), BTreeMap::new(), 0);
        let mut heard: BTreeMap<(String, String), u32> = BTreeMap::new();
        let mut made: HashSet<String> = HashSet::new();
        for seq in 0..(steps.len() + 200) as u64 {
            let (what, pause, fault) = steps.get(seq as usize).copied().unwrap_or((9, 20_000, 9));
            now += pause;
            if what < 3 {
                let phase = ["Failed", "Succeeded", "Cancelled"][what as usize];
                notes.insert(seq.to_string(), note(seq, phase, &["ops", "hook"], now));
            }
            for key in book.take_in(&config, now, notes.clone().into_iter().collect()) {
                notes.remove(&key);
            }
            for sending in book.due(&config, now) {
                made.extend(sending.tells.iter().cloned());
                let answer = match fault {
                    0 => Answer::Later { after_ms: None, why: "away".into() },
                    1 if sending.recipient == "ops" => Answer::Later { after_ms: Some(1_000), why: "rate".into() },
                    _ => Answer::Taken,
                };
                if answer == Answer::Taken {
                    for id in &sending.tells {
                        *heard.entry((sending.recipient.clone(), id.clone())).or_default() += 1;
                    }
                }
                book.answered(&config, &sending, &answer, now);
            }
            // What a restart finds.
            book = serde_json::from_slice(&serde_json::to_vec(&book).unwrap()).unwrap();
        }
        prop_assert!(notes.is_empty());
        for id in made {
            for recipient in ["ops", "hook"] {
                prop_assert_eq!(heard.get(&(recipient.to_string(), id.clone())), Some(&1));
            }
        }
    }
}
