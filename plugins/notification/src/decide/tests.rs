//! Who is told of a state, by table.

use kubewitness_sdk::{ObjectRef, testing};
use serde_json::{Value, json};

use super::*;

const NOW: u64 = 1_798_761_599_000;

fn config(value: Value) -> Config {
    let mut config = json!({"channels": [
        {"name": "ops", "kind": "slack"},
        {"name": "alerts", "kind": "alertmanager", "annotation": false},
        {"name": "mail", "kind": "email"},
    ]});
    let Value::Object(more) = value else { panic!("{value} is no configuration") };
    config.as_object_mut().unwrap().extend(more);
    let config = serde_json::from_value(config).unwrap();
    assert_eq!(crate::check::check(&config), []);
    config
}

fn moved(phase: &str) -> State {
    let mut state = testing::state(7, "train", phase);
    state.previous = Some(testing::status("Running"));
    state.observed_ms = NOW;
    state
}

fn owned(mut state: State, kind: &str) -> State {
    let owner =
        ObjectRef { kind: kind.into(), name: "big".into(), uid: "uid-big".into(), ..state.object.clone() };
    state.owner = Some(owner);
    state
}

fn annotated(annotations: &[(&str, &str)]) -> BTreeMap<String, String> {
    annotations.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
}

fn seen(state: &State) -> SeenState<'_> {
    SeenState { state, labels: BTreeMap::new(), annotations: BTreeMap::new(), happened_ms: NOW }
}

fn heard_with(
    config: &Config,
    state: &State,
    annotations: &[(&str, &str)],
    labels: &[(&str, &str)],
) -> DecidedNews {
    if !may_be_news(config, state) {
        return DecidedNews::Nothing;
    }
    let (annotations, labels) = (annotated(annotations), annotated(labels));
    decide_news(config, &SeenState { state, labels, annotations, happened_ms: state.observed_ms }, NOW)
}

fn heard(config: &Config, state: &State, annotations: &[(&str, &str)]) -> DecidedNews {
    heard_with(config, state, annotations, &[("team", "vision")])
}

fn news(to: &[&str]) -> DecidedNews {
    DecidedNews::News(to.iter().map(|name| name.to_string()).collect())
}

#[test]
fn without_routes_every_channel_without_addresses_hears_every_outcome() {
    let config = config(json!({}));
    for (phase, expected) in [
        ("Succeeded", news(&["alerts", "ops"])),
        ("Failed", news(&["alerts", "ops"])),
        ("Preempted", news(&["alerts", "ops"])),
        ("Queued", DecidedNews::Nothing),
        ("Unknown", DecidedNews::Nothing),
    ] {
        assert_eq!(heard(&config, &moved(phase), &[]), expected, "{phase}");
    }
}

#[test]
fn a_deletion_is_an_outcome_unless_one_was_there_before() {
    let config = config(json!({}));
    // As the host makes it: with the last phase as its reason, and terminal whatever was before.
    let mut gone = moved("Deleted");
    (gone.change, gone.status.reason, gone.status.terminal) = (Change::Gone, "Running".into(), true);
    assert_eq!(heard(&config, &gone, &[]), news(&["alerts", "ops"]));
    gone.previous.as_mut().unwrap().terminal = true;
    assert_eq!(heard(&config, &gone, &[]), DecidedNews::Nothing);
}

#[test]
fn a_change_of_words_is_no_news_and_another_attempt_is() {
    let config = config(json!({}));
    let mut state = moved("Failed");
    state.previous = Some(testing::status("Failed"));
    state.status.reason = "Other".into();
    assert_eq!(heard(&config, &state, &[]), DecidedNews::Nothing);
    state.status.attempt = 1;
    assert_eq!(heard(&config, &state, &[]), news(&["alerts", "ops"]));
}

#[test]
fn an_annotation_names_recipients_in_the_place_of_the_namespace_s() {
    let config = config(json!({"routes": [], "namespaces": {"default": {"to": ["ops"]}}}));
    let failed = moved("Failed");
    assert_eq!(heard(&config, &failed, &[]), news(&["ops"]));
    let ada = [(NOTIFY, "mail:ada@example.com, ops")];
    assert_eq!(heard(&config, &failed, &ada), news(&["mail:ada@example.com", "ops"]));
    assert_eq!(heard(&config, &failed, &[(NOTIFY, "")]), DecidedNews::Nothing);
}

#[test]
fn an_annotation_can_t_name_what_is_unknown_or_takes_none_and_has_an_end() {
    let config = config(json!({"routes": []}));
    let failed = moved("Failed");
    let annotations = [(NOTIFY, "alerts nobody mail mail:x ops:x")];
    assert_eq!(heard(&config, &failed, &annotations), DecidedNews::Nothing);
    let seen = SeenState {
        state: &failed,
        labels: BTreeMap::new(),
        annotations: annotated(&annotations),
        happened_ms: NOW,
    };
    let told: String =
        refused_recipients(&config, &seen).into_iter().map(|(_, why)| format!("{why}\n")).collect();
    for word in
        ["`alerts` takes no annotations", "`nobody` is no channel", "names no address", "`x` is no address"]
    {
        assert!(told.contains(word), "{told}");
    }
    let lines = [(NOTIFY, "mail:ada@example.com\r\nBcc:eve@evil.example\tops\u{0}")];
    assert_eq!(heard(&config, &failed, &lines), news(&["mail:ada@example.com", "ops"]));
    let many: Vec<_> = (0..10_000).map(|n| format!("mail:{n}@example.com")).collect();
    let DecidedNews::News(to) = heard(&config, &failed, &[(NOTIFY, &many.join(","))]) else {
        panic!("nobody is told")
    };
    assert_eq!(to.len(), RECIPIENTS);
    let long = format!("ops {}", "ü".repeat(ANNOTATION_BYTES));
    assert_eq!(heard(&config, &failed, &[(NOTIFY, &long)]), news(&["ops"]));
    let refused = |text: &str| {
        let annotations = annotated(&[(NOTIFY, text)]);
        let seen = SeenState { state: &failed, labels: BTreeMap::new(), annotations, happened_ms: NOW };
        refused_recipients(&config, &seen).pop().unwrap()
    };
    let limits = "the annotation may name 8 recipients in 512 bytes".to_string();
    assert_eq!(refused(&many[..9].join(",")), ("mail:8@example.com".into(), limits.clone()));
    assert_eq!(refused(&format!("ops{}mail:x@example.com", " ".repeat(512))), ("…".into(), limits));
}

#[test]
fn one_person_in_three_spellings_is_told_once_and_half_an_address_is_none() {
    let config = config(json!({"routes": []}));
    let to = "mail:a@example.com mail:A@example.com mail:a@EXAMPLE.com mail:a@ mail:@example.com";
    assert_eq!(heard(&config, &moved("Failed"), &[(NOTIFY, to)]), news(&["mail:A@example.com"]));
}

#[test]
fn an_object_a_namespace_or_all_can_be_muted_and_the_object_decides_first() {
    let failed = moved("Failed");
    let muted = |config: &Config, annotations: &[(&str, &str)], by: &str| {
        let DecidedNews::Muted(to, why) = heard(config, &failed, annotations) else { panic!("it is told") };
        assert_eq!((to, why.contains(by)), (["alerts", "ops"].map(str::to_string).into(), true), "{why}");
    };
    muted(&config(json!({"mute": true})), &[(MUTE, "false")], "everything");
    let namespace = config(json!({"namespaces": {"default": {"mute": true}}}));
    muted(&namespace, &[], "namespace");
    assert_eq!(heard(&namespace, &failed, &[(MUTE, "false")]), news(&["alerts", "ops"]));
    let none = config(json!({}));
    muted(&none, &[(MUTE, "yes please")], "annotation");
    let nobody = config(json!({"routes": [], "mute": true}));
    assert_eq!(heard(&nobody, &failed, &[]), DecidedNews::Nothing);
}

#[test]
fn a_part_is_told_with_its_owner_or_where_a_route_names_its_kind() {
    let plain = config(json!({}));
    let mut pod = owned(moved("Failed"), "Job");
    pod.object.kind = "Pod".into();
    assert_eq!(heard(&plain, &pod, &[(NOTIFY, "ops")]), DecidedNews::Part);
    assert_eq!(message_group(&seen(&pod)), "default/uid-big");
    pod.status.phase = "Succeeded".into();
    assert_eq!(heard(&plain, &pod, &[]), DecidedNews::Nothing);
    let asked = config(json!({"routes": [{"to": ["ops"], "kinds": ["Pod"]}]}));
    assert_eq!(heard(&asked, &pod, &[]), news(&["ops"]));
    let nightly = owned(moved("Failed"), "CronJob");
    assert_eq!(heard(&plain, &nightly, &[]), news(&["alerts", "ops"]));
    assert_eq!(message_group(&seen(&nightly)), "default/uid-train");
}

#[test]
fn who_names_people_on_a_part_is_heard_and_nobody_else_is_told_of_it() {
    let config = config(json!({"namespaces": {"default": {"to": ["mail:ada@example.com"]}}}));
    let member = owned(moved("Failed"), "JobSet");
    assert_eq!(heard(&config, &member, &[]), DecidedNews::Part);
    assert_eq!(heard(&config, &member, &[(NOTIFY, "ops")]), news(&["ops"]));
    assert_eq!(heard(&config, &member, &[(NOTIFY, "nobody")]), DecidedNews::Part);
}

#[test]
fn an_owner_without_a_subscription_leads_nothing_but_a_pod_of_a_job() {
    let config = config(json!({}));
    let mut state = owned(moved("Failed"), "JobSet");
    state.extra.push(("ownerSubscribed".into(), "false".into()));
    assert_eq!(heard(&config, &state, &[]), news(&["alerts", "ops"]));
    assert_eq!(message_group(&seen(&state)), "default/uid-train");
    state.object.kind = "Pod".into();
    assert_eq!(heard_with(&config, &state, &[], &[(JOB_UID, "uid-job")]), DecidedNews::Part);
    let labels = annotated(&[(JOB_UID, "uid-job")]);
    assert_eq!(message_group(&SeenState { labels, ..seen(&state) }), "default/uid-job");
    let labels = annotated(&[(JOB_UID, &"x".repeat(10_000))]);
    assert_eq!(message_group(&SeenState { labels, ..seen(&state) }).len(), "default/".len() + LABEL_BYTES);
}

#[test]
fn the_loss_of_a_pod_is_told_where_nobody_ever_hears_of_its_owner() {
    let namespaces = json!({"default": {"to": ["mail:ada@example.com"]}});
    let config = config(json!({"routes": [{"to": ["ops"]}], "namespaces": namespaces}));
    let pod = |phase: &str, group: &str| {
        let mut pod = owned(moved(phase), "PyTorchJob");
        pod.object.kind = "Pod".into();
        pod.owner.as_mut().unwrap().group = group.into();
        pod.extra.push(("ownerSubscribed".into(), "false".into()));
        pod
    };
    let (failed, training) = (pod("Failed", "kubeflow.org"), "kubeflow.org");
    assert_eq!(heard(&config, &failed, &[]), news(&["mail:ada@example.com", "ops"]));
    assert_eq!(
        heard(&config, &failed, &[(NOTIFY, "mail:eve@example.com")]),
        news(&["mail:eve@example.com", "ops"])
    );
    assert_eq!(
        heard_with(&config, &failed, &[], &[(JOB_UID, "uid-big")]),
        news(&["mail:ada@example.com", "ops"])
    );
    assert_eq!(heard(&config, &pod("Preempted", training), &[]), news(&["mail:ada@example.com", "ops"]));
    assert!(matches!(heard(&config, &failed, &[(MUTE, "true")]), DecidedNews::Muted(..)));
    assert_eq!(message_group(&seen(&failed)), "default/uid-big");
    for other in [pod("Succeeded", training), pod("Deleted", training)] {
        assert_eq!(heard(&config, &other, &[(NOTIFY, "ops")]), DecidedNews::Nothing);
    }
    // Of what is replaced, and of what has an owner of which somebody hears, nobody is told by itself.
    let mut subscribed = failed.clone();
    subscribed.extra.clear();
    for part in [pod("Failed", "apps"), pod("Failed", ""), subscribed] {
        assert_eq!(heard(&config, &part, &[]), DecidedNews::Part);
    }
}

#[test]
fn a_route_fits_by_each_of_its_fields() {
    let state = owned(moved("Failed"), "CronJob");
    for (fields, fits) in [
        (json!({}), true),
        (json!({"kinds": ["Job"]}), true),
        (json!({"kinds": ["Pod"]}), false),
        (json!({"namespaces": ["def*"]}), true),
        (json!({"namespaces": ["def"]}), false),
        (json!({"owners": ["CronJob/*"]}), true),
        (json!({"owners": ["CronJob/small"]}), false),
        (json!({"labels": {"team": "vision"}}), true),
        (json!({"labels": {"team": "vision", "tier": "1"}}), false),
        (json!({"phases": ["Failed"]}), true),
        (json!({"phases": ["Succeeded"]}), false),
        (json!({"changes": ["gone"]}), false),
        (json!({"changes": ["present", "gone"]}), true),
        (json!({"hours": {"from": "23:00", "to": "01:00"}}), true),
        (json!({"hours": {"from": "01:00", "to": "23:00"}}), false),
    ] {
        let mut route = fields.clone();
        route["to"] = json!(["ops"]);
        let expected = if fits { news(&["ops"]) } else { DecidedNews::Nothing };
        assert_eq!(heard(&config(json!({"routes": [route]})), &state, &[]), expected, "{fields}");
    }
}

#[test]
fn a_route_may_ask_for_more_than_outcomes() {
    let config = config(json!({"routes": [{"to": ["ops"], "phases": ["Running"]}]}));
    let mut running = moved("Running");
    running.previous = Some(testing::status("Pending"));
    assert_eq!(heard(&config, &running, &[]), news(&["ops"]));
    assert_eq!(heard(&config, &moved("Failed"), &[]), DecidedNews::Nothing);
}

#[test]
fn what_happened_long_ago_is_counted() {
    let config = config(json!({"oldest": "1h"}));
    let state = moved("Failed");
    let at = |happened_ms| {
        let (labels, annotations) = Default::default();
        decide_news(&config, &SeenState { state: &state, labels, annotations, happened_ms }, NOW)
    };
    assert_eq!((at(NOW - 3_600_000), at(NOW - 3_600_001)), (news(&["alerts", "ops"]), DecidedNews::Old));
}
