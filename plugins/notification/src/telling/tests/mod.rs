//! Calls and ticks against a scripted host, and the book by itself under random failures.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashSet};
use std::rc::Rc;

use kubewitness_sdk::http::{Request, Response};
use kubewitness_sdk::log::Level;
use kubewitness_sdk::mail::{self, Refusal};
use kubewitness_sdk::outcomes::Finding;
use kubewitness_sdk::{Error, ObjectRef, State, Verdict, testing};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

mod causes;
mod late;
mod owners;
mod recipients;
mod remembered;
mod reports;
mod room;

const NOON: u64 = 1_798_718_400_000;

/// Keeps `kv`, and answers each destination with one status.
#[derive(Default)]
struct FakeHost {
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
    /// The causes that the host knows, by uid; `None`: `outcomes` is not granted.
    findings: RefCell<Option<BTreeMap<String, Finding>>>,
    /// The most bytes that `kv` holds; any number where it is 0.
    kv_bytes: Cell<usize>,
}

/// The calls that the host allows in one batch or tick.
const HOST_CALLS: u32 = 4096;

impl FakeHost {
    fn called(&self) -> Result<(), Error> {
        self.calls.set(self.calls.get() + 1);
        if self.calls.get() > HOST_CALLS { Err(Error::Denied("limits.hostCalls".into())) } else { Ok(()) }
    }
}

fn size((key, value): (&String, &Vec<u8>)) -> usize {
    key.len() + value.len()
}

impl testing::Host for FakeHost {
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
        // A report is in the journal alone.
        Ok(self.kv.borrow().get(key).filter(|_| !key.starts_with("report/")).cloned())
    }
    fn kv_set(&self, key: &str, value: &[u8]) -> Result<(), Error> {
        self.called()?;
        if self.keeps_no_reports.get() && key.starts_with("report/") {
            return Err(Error::Unavailable("away".into()));
        }
        let others = self.kv.borrow().iter().filter(|(known, _)| *known != key).map(size).sum::<usize>();
        if (1..others + key.len() + value.len()).contains(&self.kv_bytes.get()) {
            return Err(Error::TooLarge("kv is full".into()));
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
    fn explain(&self, _: &str, uid: &str) -> Result<Finding, Error> {
        self.called()?;
        let findings = self.findings.borrow();
        let granted = findings.as_ref().ok_or_else(|| Error::Denied("outcomes".into()))?;
        Ok(granted.get(uid).cloned().unwrap_or(Finding::Nothing))
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

struct OutboxWorld {
    host: Rc<FakeHost>,
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

fn world(config: Value) -> OutboxWorld {
    let host = Rc::new(FakeHost::default());
    host.now.set(NOON);
    OutboxWorld { host, config: configured(config) }
}

impl OutboxWorld {
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

    fn pass_hours(&self, hours: u64) {
        (0..hours).for_each(|_| drop(self.after(3_600_000)));
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
fn a_digest_says_how_to_mute_one_object_and_a_namespace() {
    let world = world(json!({"settle": "0s", "digest": {"above": 1, "every": "10m"},
        "portal": "https://kw.example.com/"}));
    world.hear(&[moved(1, "a", "Failed"), moved(2, "b", "Failed")]);
    testing::with_host(world.host.clone(), || tick(&world.config)).unwrap();
    let sent = world.host.sent.take();
    let (_, slack) = sent.iter().find(|(to, _)| to == "ops").unwrap();
    let expected = "To hear no more of one: annotate it with kubewitness.dev/mute=true, or mute a namespace on \
                https://kw.example.com/mutes\n";
    assert!(slack["blocks"][1]["text"]["text"].as_str().unwrap().contains(expected), "{slack}");
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
    assert!(of("part/") <= 512, "{} parts", of("part/"));
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

impl OutboxWorld {
    /// Returns the reports of one object, in the order of states and recipients: the recipient, the result
    /// and the reason.
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

impl FakeHost {
    fn kv_keys_left(&self) -> usize {
        self.kv.borrow().keys().filter(|key| key.starts_with(NOTES)).count()
    }
}

impl OutboxWorld {
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
