//! Tests of the page of metrics against the grammar of the text format, and of its figures against those of
//! the status.

use std::collections::{BTreeMap, BTreeSet};

use kubewitness_harness::{GENERATED, cell, reference};

use crate::fake::FakeViews;
use crate::{get, portal};

#[derive(Debug, Default)]
struct MetricFamily {
    help: String,
    kind: String,
    /// Labels in their order, and the value.
    samples: Vec<(Vec<(String, String)>, f64)>,
}

fn is_name(text: &str) -> bool {
    let mut characters = text.chars();
    characters.next().is_some_and(|first| first.is_ascii_alphabetic() || first == '_')
        && characters.all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Parses the page, and panics if it violates the grammar.
fn parse(text: &str) -> BTreeMap<String, MetricFamily> {
    assert!(text.ends_with('\n'), "the last line ends, too");
    let mut families: BTreeMap<String, MetricFamily> = BTreeMap::new();
    let mut open = String::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect("a help text");
            assert!(is_name(name) && !help.trim().is_empty(), "{line}");
            assert!(!families.contains_key(name), "{name} is there twice");
            families.insert(name.into(), MetricFamily { help: help.into(), ..MetricFamily::default() });
            open = name.into();
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a type");
            assert_eq!(name, open, "the type follows the help");
            let family = families.get_mut(name).unwrap();
            assert!(["counter", "gauge", "histogram"].contains(&kind) && family.kind.is_empty(), "{line}");
            family.kind = kind.into();
        } else {
            let (name, labels, value) = sample(line);
            let family = families.get_mut(&open).expect("a family before its samples");
            let part =
                name.strip_prefix(open.as_str()).unwrap_or_else(|| panic!("not below its family: {line}"));
            let parts = if family.kind == "histogram" { &["_bucket", "_sum", "_count"][..] } else { &[""] };
            assert!(parts.contains(&part), "{line}");
            let part = Some(("part".to_owned(), part.to_owned())).filter(|(_, part)| !part.is_empty());
            family.samples.push((labels.into_iter().chain(part).collect(), value));
        }
    }
    families
}

/// `name{label="value",…} number`, with the escapes of label values undone.
fn sample(line: &str) -> (String, Vec<(String, String)>, f64) {
    let end = line.find(['{', ' ']).unwrap_or_else(|| panic!("no value: {line}"));
    let (name, mut rest) = line.split_at(end);
    assert!(is_name(name), "{line}");
    let mut labels = Vec::new();
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        while !rest.starts_with('}') {
            let (label, after) = rest.split_once("=\"").unwrap_or_else(|| panic!("{line}"));
            assert!(is_name(label), "{line}");
            let (value, after) = quoted(after);
            labels.push((label.to_owned(), value));
            rest = after.strip_prefix(',').unwrap_or(after);
        }
        rest = &rest[1..];
    }
    let value = rest.strip_prefix(' ').unwrap_or_else(|| panic!("{line}"));
    assert!(!value.contains(' '), "no timestamps: {line}");
    (name.to_owned(), labels, value.parse().unwrap_or_else(|_| panic!("{line}")))
}

fn quoted(text: &str) -> (String, &str) {
    let (mut value, mut characters) = (String::new(), text.char_indices());
    while let Some((index, character)) = characters.next() {
        match character {
            '"' => return (value, &text[index + 1..]),
            '\\' => value.push(match characters.next().map(|(_, escaped)| escaped) {
                Some('n') => '\n',
                Some(same @ ('"' | '\\')) => same,
                other => panic!("\\{other:?} is no escape"),
            }),
            other => value.push(other),
        }
    }
    panic!("a label has no end: {text}")
}

fn value(families: &BTreeMap<String, MetricFamily>, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let family = families.get(name).unwrap_or_else(|| panic!("{name} is missing"));
    let is_it = |given: &[(String, String)]| {
        given.len() == labels.len() && labels.iter().all(|(l, v)| given.contains(&((*l).into(), (*v).into())))
    };
    family.samples.iter().find(|(given, _)| is_it(given)).map(|(_, value)| *value)
}

#[tokio::test]
async fn the_whole_page_follows_the_grammar() {
    let answer = get(&portal(FakeViews::default()), "/metrics").await;
    assert_eq!(answer.header("content-type"), "text/plain; version=0.0.4; charset=utf-8");
    for (name, family) in parse(&answer.text) {
        assert!(name.starts_with("kubewitness_") || name.starts_with("workqueue_"), "{name}");
        assert!(!family.samples.is_empty(), "{name} has no samples although there are sources and plugins");
        assert_eq!(family.kind == "counter", name.ends_with("_total"), "{name} is a {}", family.kind);
        assert!(family.help.ends_with('.'), "{name}: {}", family.help);
        let distinct: BTreeSet<_> = family.samples.iter().map(|(labels, _)| labels).collect();
        assert_eq!(distinct.len(), family.samples.len(), "{name} has a sample twice");
        assert!(family.samples.iter().all(|(_, value)| value.is_finite() && *value >= 0.0), "{name}");
    }
}

#[tokio::test]
async fn figures_are_those_of_the_status() {
    let families = parse(&get(&portal(FakeViews::default()), "/metrics").await.text);
    let of_jobs = |name: &str| value(&families, &format!("kubewitness_source_{name}"), &[("source", "jobs")]);
    for (name, figure) in [
        ("objects", 26.0),
        ("synced", 1.0),
        ("held_up", 0.0),
        ("limited", 1.0),
        ("doubtful", 1.0),
        ("differed", 3.0),
        ("epoch", 1.0),
        ("gaps", 2.0),
        ("poison", 2.0),
        ("last_event_age_seconds", 2.5),
        ("last_event_timestamp_seconds", 1_795_183_198.12),
        ("walk_back_waiting", 4.0),
        ("walk_back_requests_total", 240.0),
        ("walk_back_versions_total", 213.0),
        ("received_bytes_total", 109_000_000.0),
        ("decode_seconds_total", 0.0915),
        ("discrepancies_total", 1.0),
        ("audits_total", 6.0),
        ("epochs_total", 1.0),
        ("watches_total", 19.0),
        ("watches_expired_total", 2.0),
        ("relists_total", 3.0),
    ] {
        assert_eq!(of_jobs(name), Some(figure), "{name}");
    }
    for (label, part, name, figure) in [
        ("cause", "out-of-memory", "outcomes_total", 4.0),
        ("cause", "node-lost", "outcomes_total", 0.0),
        ("kind", "present", "events_total", 47_100.0),
        ("kind", "gone", "events_total", 900.0),
        ("kind", "left", "events_total", 11.0),
        ("kind", "bookmark", "events_total", 120.0),
        ("kind", "poison", "events_total", 2.0),
        ("kind", "duplicate", "events_total", 31.0),
        ("kind", "stale", "events_total", 3.0),
        ("reason", "first", "lists_total", 1.0),
        ("reason", "expired", "lists_total", 2.0),
        ("reason", "replaced", "lists_total", 1.0),
        ("reason", "audit", "lists_total", 6.0),
    ] {
        let name = format!("kubewitness_source_{name}");
        assert_eq!(
            value(&families, &name, &[("source", "jobs"), (label, part)]),
            Some(figure),
            "{name} {part}"
        );
    }
    // A name with a quote and a backslash is unchanged, and an event that never happened has no time.
    let odd = [("source", "pods\"\\")];
    assert_eq!(value(&families, "kubewitness_source_held_up", &odd), Some(1.0));
    assert_eq!(value(&families, "kubewitness_source_last_event_age_seconds", &odd), None);
    let held = [("source", "jobs"), ("holder", "plugin audit")];
    assert_eq!(value(&families, "kubewitness_retention_held", &held), Some(12_345.0));
    let notification = [("plugin", "notification")];
    for (name, figure) in [("dead", 3.0), ("lag_seconds", 10.8), ("active", 0.0), ("retrying", 12.0)] {
        assert_eq!(value(&families, &format!("kubewitness_plugin_{name}"), &notification), Some(figure));
    }
    for (name, figure) in [
        ("depth", 9.0),
        ("adds_total", 40.0),
        ("retries_total", 5.0),
        ("unfinished_work_seconds", 2.5),
        ("longest_running_processor_seconds", 1.5),
    ] {
        let name = format!("workqueue_{name}");
        assert_eq!(value(&families, &name, &[("name", "notification")]), Some(figure), "{name}");
    }
    let part = |part: &'static str, le: Option<&'static str>| {
        let labels: Vec<_> =
            [("name", "notification"), ("part", part)].into_iter().chain(le.map(|le| ("le", le))).collect();
        value(&families, "workqueue_work_duration_seconds", &labels)
    };
    assert_eq!((part("_bucket", Some("0.1")), part("_bucket", Some("+Inf"))), (Some(3.0), Some(7.0)));
    assert_eq!((part("_sum", None), part("_count", None)), (Some(12.5), Some(7.0)));
    for (name, figure) in [
        ("resyncs_total", 2.0),
        ("resynced_total", 52.0),
        ("resync_failed_total", 1.0),
        ("database_losses", 3.0),
        ("database_gaps", 1.0),
        ("ticks_total", 12.0),
        ("ticks_failed_total", 4.0),
    ] {
        assert_eq!(value(&families, &format!("kubewitness_plugin_{name}"), &notification), Some(figure));
    }
    for (name, label, part, figure) in [
        ("calls_total", "end", "answered", 700.0),
        ("calls_total", "end", "trapped", 5.0),
        ("calls_total", "end", "timed-out", 4.0),
        ("calls_total", "end", "refused", 0.0),
        ("verdicts_total", "verdict", "retry", 70.0),
        ("host_calls_total", "capability", "http", 690.0),
        ("shadow_states_total", "result", "different", 2.0),
        ("shadow_states_total", "result", "missed", 3.0),
    ] {
        let name = format!("kubewitness_plugin_{name}");
        let labels = [("plugin", "notification"), (label, part)];
        assert_eq!(value(&families, &name, &labels), Some(figure), "{name} {part}");
    }
    for (name, figure) in [
        ("handed_total", 44_900.0),
        ("guest_seconds_total", 1.25),
        ("host_seconds_total", 90.5),
        ("wait_seconds_total", 3.5),
        ("memory_peak_bytes", 3_145_728.0),
        ("memory_limit_bytes", 67_108_864.0),
        ("instances", 2.0),
        ("last_answered_timestamp_seconds", 1_795_182_398.12),
        ("last_failure_timestamp_seconds", 1_795_182_401.0),
    ] {
        let name = format!("kubewitness_plugin_{name}");
        assert_eq!(value(&families, &name, &notification), Some(figure), "{name}");
    }
    assert_eq!(value(&families, "kubewitness_journal_states", &[]), Some(48_211.0));
    assert_eq!(value(&families, "kubewitness_ready", &[]), Some(1.0));
    assert_eq!(value(&families, "kubewitness_configuration_problems", &[]), Some(3.0));
}

/// Labels whose values are or contain the operator's own names.
const NAMES: [&str; 7] = ["source", "plugin", "name", "stream", "replica", "ledger", "holder"];

/// The labels of a family that have few values, and these.
fn labels(family: &MetricFamily) -> String {
    let mut labels: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (label, value) in family.samples.iter().flat_map(|(labels, _)| labels) {
        if label != "part" {
            labels.entry(label).or_default().insert(value);
        }
    }
    let text = |(label, values): (&&str, &BTreeSet<&str>)| match NAMES.contains(label) || *label == "le" {
        true => format!("`{label}`"),
        false => {
            let values: Vec<_> = values.iter().map(|value| format!("`{value}`")).collect();
            format!("`{label}` ({})", values.join(", "))
        }
    };
    labels.iter().map(text).collect::<Vec<_>>().join(", ")
}

#[tokio::test]
async fn no_metric_names_an_object_or_a_namespace() {
    let portal = portal(FakeViews::default());
    let (list, page) = (get(&portal, "/api/v1/objects").await.json(), get(&portal, "/metrics").await.text);
    let objects = list.as_array().unwrap();
    assert!(objects.len() > 10);
    for object in objects {
        for name in ["namespace", "name", "uid"] {
            let name = object["object"][name].as_str().unwrap();
            // A stream in the settings has the same name.
            let is_setting = name == "platform";
            assert!(is_setting || !page.contains(&format!("\"{name}\"")), "{name}");
        }
    }
}

#[tokio::test]
async fn the_reference_lists_every_metric() {
    let families = parse(&get(&portal(FakeViews::default()), "/metrics").await.text);
    let mut page = format!(
        "{GENERATED}# Metrics\n\nThe portal serves them at `/metrics`, and so does the address of `--health-listen`, in \
         the text format of Prometheus. Counters begin at 0 with the process. What the journal holds is a gauge: it \
         outlives the process, and retention lets it fall. The `workqueue_…` metrics have the names and the meanings of \
         client-go, so that dashboards for other controllers work here; their label `name` is the plugin. Metrics of a \
         plugin, a stream or a replica exist only where there is one.\n\n| metric | type | labels | meaning |\n\
         |---|---|---|---|\n"
    );
    for (name, family) in &families {
        let cells =
            [&format!("`{name}`"), &family.kind, &labels(family), &family.help].map(|text| cell(text));
        page.push_str(&format!("| {} |\n", cells.join(" | ")));
    }
    reference("metrics.md", &page);
}
