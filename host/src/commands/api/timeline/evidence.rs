//! Reads what `kubewitness why` shows beside the explanation: the last change of the object's spec before the failure,
//! and how the containers of the failed pod ended.
//!
//! Both come from documents, which the explanation itself does not have. A change of a spec is found by a binary search
//! over the generations, because a job with thousands of states has few specs. A queue suspends an object and lets it go
//! by its spec, so such a change is skipped. Each of the two is shown without the other, because retention or a missing
//! right may hide one.

use std::sync::Arc;

use anyhow::Result;
use kubewitness_core::story::{QUEUE_LABEL, duration_text};
use kubewitness_core::views::{Cause, Outcome, TimelineView, signal_name, signal_number};
use kubewitness_core::{Change, State};
use serde_json::Value;

use crate::cli::ZoneArg;
use crate::commands::api::client::ApiClient;
use crate::commands::api::diff::fetch_document;
use crate::commands::print::{self, TextTable, line_diff, note};

/// A longer diff is cut: `kubewitness diff` shows all of it.
const DIFF_LINES: usize = 24;
/// How many changes by a queue are skipped: each costs another search.
const SKIPPED_CHANGES: usize = 8;

/// A state, and its document.
type StateDocument = (Arc<State>, Value);

/// The documents that bear on a cause.
#[derive(Default)]
pub(super) struct CauseEvidence {
    /// The states before and after the last change of the object's spec, with their documents.
    pub spec_change: Option<[StateDocument; 2]>,
    /// The pod that is the cause.
    pub pod: Option<Value>,
}

impl CauseEvidence {
    pub async fn read(client: &ApiClient, view: &TimelineView, cause: &Cause) -> Self {
        let is_pod = cause.object.as_ref().is_some_and(|object| object.kind == "Pod");
        let pod = match is_pod {
            true => note_failure("the pod's containers are", read_document(client, cause.seq).await),
            false => None,
        };
        let change = find_spec_change(client, &states_until(view, cause)).await;
        Self { spec_change: note_failure("the last change of its spec is", change).flatten(), pod }
    }

    pub fn text(&self, outcome: Outcome, cause: &Cause, wide: bool) -> String {
        let mut text = String::new();
        if let Some(pod) = &self.pod {
            text.push_str(&containers_table(pod, wide));
        }
        if let Some([before, after]) = &self.spec_change {
            text.push_str(&change_text(before, after, outcome, cause));
        }
        text
    }
}

/// The explanation is printed without a part that can't be read.
fn note_failure<T>(part: &str, read: Result<T>) -> Option<T> {
    match read {
        Ok(read) => Some(read),
        Err(error) => {
            note!("kubewitness: {part} not shown, because a document can't be read: {error:#}");
            None
        }
    }
}

async fn read_document(client: &ApiClient, seq: u64) -> Result<Value> {
    let bytes = fetch_document(client, seq).await?;
    // A deletion that a comparison found has no document.
    Ok(if bytes.is_empty() { Value::Null } else { serde_json::from_slice(&bytes)? })
}

/// The versions of the object up to its failure, oldest first. A pod may be the cause, so the position is not that of
/// one of them.
fn states_until(view: &TimelineView, cause: &Cause) -> Vec<Arc<State>> {
    let uid = view.states.last().map(|last| last.object.uid.as_str()).unwrap_or_default();
    let is_version = |state: &&Arc<State>| {
        state.change == Change::Present && !state.late && state.object.uid == uid && state.seq <= cause.seq
    };
    view.states.iter().filter(is_version).cloned().collect()
}

/// The spec's version: the API server counts it, or else the spec itself.
fn spec_version(document: &Value) -> String {
    match document["metadata"]["generation"].as_u64() {
        Some(generation) => generation.to_string(),
        None => document["spec"].to_string(),
    }
}

/// Finds the last change of the spec that is not a suspension by the queue. `None` if the first state has the same
/// spec as the last, or only the queue changed it.
async fn find_spec_change(
    client: &ApiClient,
    mut states: &[Arc<State>],
) -> Result<Option<[StateDocument; 2]>> {
    for _ in 0..=SKIPPED_CHANGES {
        let Some((before, change)) = find_last_generation(client, states).await? else { break };
        if !is_suspension_by_queue(&change[0].1, &change[1].1) {
            return Ok(Some(change));
        }
        states = &states[..=before];
    }
    Ok(None)
}

/// Finds the last change of the spec's version by a binary search, with the index of the state before it.
async fn find_last_generation(
    client: &ApiClient,
    states: &[Arc<State>],
) -> Result<Option<(usize, [StateDocument; 2])>> {
    let (Some(first), Some(last)) = (states.first(), states.last()) else { return Ok(None) };
    let (mut older, mut newer) =
        (read_document(client, first.seq).await?, read_document(client, last.seq).await?);
    let newest = spec_version(&newer);
    if spec_version(&older) == newest {
        return Ok(None);
    }
    let (mut low, mut high) = (0, states.len() - 1);
    while high - low > 1 {
        let middle = low.midpoint(high);
        let document = read_document(client, states[middle].seq).await?;
        match spec_version(&document) == newest {
            true => (high, newer) = (middle, document),
            false => (low, older) = (middle, document),
        }
    }
    Ok(Some((low, [(states[low].clone(), older), (states[high].clone(), newer)])))
}

/// Whether two versions of an object in a queue differ in `spec.suspend` alone.
fn is_suspension_by_queue(before: &Value, after: &Value) -> bool {
    let without_suspend = |document: &Value| {
        let mut spec = document["spec"].clone();
        if let Some(spec) = spec.as_object_mut() {
            spec.remove("suspend");
        }
        spec
    };
    let is_queued = after["metadata"]["labels"][QUEUE_LABEL].is_string();
    let changes = before["spec"]["suspend"] != after["spec"]["suspend"];
    is_queued && changes && without_suspend(before) == without_suspend(after)
}

fn change_text(before: &StateDocument, after: &StateDocument, outcome: Outcome, cause: &Cause) -> String {
    let yaml = |document: &Value| print::yaml(&document["spec"]).unwrap_or_default();
    let title = |state: &State| {
        format!("spec at {}, {}", state.seq, ZoneArg::local_zone().show_time(state.observed_ms))
    };
    let (old, new) = (yaml(&before.1), yaml(&after.1));
    if old == new {
        return String::new();
    }
    let titles = [title(&before.0), title(&after.0)];
    let diff = line_diff::unified_diff(&titles, &old, &new, print::is_coloured());
    let ago = duration_text(cause.at_ms.saturating_sub(after.0.observed_ms));
    let until = match outcome {
        Outcome::Failed | Outcome::Deleted => "the end",
        // Nothing has ended: the facts of the cause, with its time, are above.
        _ => "that",
    };
    let mut text = format!("\nLast change of its spec, {ago} before {until}:\n");
    text.extend(diff.lines().take(DIFF_LINES).flat_map(|line| [line, "\n"]));
    let more = diff.lines().count().saturating_sub(DIFF_LINES);
    if more > 0 {
        let object = &after.0.object;
        text.push_str(&format!(
            "… {more} more lines: kubewitness diff {}/{} {} {}\n",
            object.kind.to_lowercase(),
            object.name,
            before.0.seq,
            after.0.seq
        ));
    }
    text
}

/// Each container of the pod with its state and the one before it.
fn containers_table(pod: &Value, wide: bool) -> String {
    let mut table =
        TextTable::new(&["CONTAINER", "ROLE", "STATE", "STATE BEFORE", "RESTARTS"]).with_whole_cells(wide);
    let mut has_rows = false;
    for (field, is_init) in [("initContainerStatuses", true), ("containerStatuses", false)] {
        for status in pod["status"][field].as_array().into_iter().flatten() {
            let name = status["name"].as_str().unwrap_or_default();
            table.push_row(vec![
                print::clean_line(name).into_owned(),
                role_of(pod, name, is_init).to_owned(),
                container_state(&status["state"]),
                container_state(&status["lastState"]),
                status["restartCount"].as_u64().map(|count| count.to_string()).unwrap_or_default(),
            ]);
            has_rows = true;
        }
    }
    if has_rows { format!("\n{}", table.render()) } else { String::new() }
}

fn role_of(pod: &Value, name: &str, is_init: bool) -> &'static str {
    let specs = pod["spec"]["initContainers"].as_array();
    let is_sidecar = |spec: &Value| spec["name"] == name && spec["restartPolicy"] == "Always";
    match is_init {
        true if specs.into_iter().flatten().any(is_sidecar) => "sidecar",
        true => "init",
        false => "main",
    }
}

/// `terminated: OOMKilled, exit 137 (SIGKILL)`.
fn container_state(state: &Value) -> String {
    let Some((word, facts)) = state.as_object().and_then(|state| state.iter().next()) else {
        return String::new();
    };
    let reason = facts["reason"].as_str().unwrap_or_default();
    let mut parts: Vec<String> =
        [reason].into_iter().filter(|it| !it.is_empty()).map(str::to_owned).collect();
    if let Some(code) = facts["exitCode"].as_i64() {
        let number = |value: i64| i32::try_from(value).ok();
        let own = facts["signal"].as_i64().and_then(number).filter(|signal| *signal > 0);
        let signal = own.or_else(|| number(code).and_then(signal_number));
        let name = signal.map(|signal| format!(" ({})", signal_name(signal))).unwrap_or_default();
        parts.push(format!("exit {code}{name}"));
    }
    let facts = parts.join(", ");
    let text = if facts.is_empty() { word.clone() } else { format!("{word}: {facts}") };
    print::clean_line(&text).into_owned()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use kubewitness_core::ObjectRef;
    use serde_json::json;

    use super::*;
    use crate::commands::api::testing;

    #[test]
    fn each_container_of_the_failed_pod_has_its_role_its_states_and_its_signal() {
        let pod = json!({
            "spec": {"initContainers": [{"name": "fetch"}, {"name": "proxy", "restartPolicy": "Always"}]},
            "status": {
                "initContainerStatuses": [
                    {"name": "fetch", "restartCount": 0, "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}},
                    {"name": "proxy", "restartCount": 0, "state": {"running": {}}},
                ],
                "containerStatuses": [{"name": "trainer", "restartCount": 2,
                    "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                    "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}],
            }
        });
        let table = containers_table(&pod, true);
        let row = |name: &str| {
            let line = table.lines().find(|line| line.starts_with(name)).unwrap_or_default();
            line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect::<Vec<_>>()
        };
        assert_eq!(row("fetch"), ["fetch", "init", "terminated: Completed, exit 0", "0"], "{table}");
        assert_eq!(row("proxy"), ["proxy", "sidecar", "running", "0"]);
        let trainer = [
            "trainer",
            "main",
            "waiting: CrashLoopBackOff",
            "terminated: OOMKilled, exit 137 (SIGKILL)",
            "2",
        ];
        assert_eq!(row("trainer"), trainer);
        assert_eq!(containers_table(&Value::Null, true), "", "a document that is gone");
    }

    #[tokio::test]
    async fn the_last_change_of_a_spec_is_found_with_few_requests() {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = asked.clone();
        // The spec changes at 301 and at 702.
        let client = testing::client(move |path| {
            count.fetch_add(1, Ordering::Relaxed);
            let seq = testing::asked_seq(path);
            json!({"metadata": {"generation": 1 + u64::from(seq > 300) + u64::from(seq > 701)}, "spec": {"at": seq}})
        })
        .await;
        let states: Vec<_> = (1..=1000).map(|seq| Arc::new(testing::state(seq, Change::Present))).collect();
        let [before, after] = find_spec_change(&client, &states).await.unwrap().expect("a change");
        assert_eq!((before.0.seq, after.0.seq), (701, 702));
        assert_eq!((&before.1["spec"]["at"], &after.1["spec"]["at"]), (&json!(701), &json!(702)));
        assert!(asked.load(Ordering::Relaxed) < 15, "{asked:?}");
        assert!(find_spec_change(&client, &states[..300]).await.unwrap().is_none());
        assert!(find_spec_change(&client, &[]).await.unwrap().is_none());
    }

    #[test]
    fn the_last_change_of_the_spec_is_a_short_diff() {
        let version = |seq: u64, spec: Value| {
            (
                Arc::new(testing::state(seq, Change::Present)),
                json!({"metadata": {"generation": seq}, "spec": spec}),
            )
        };
        let cause = Cause { at_ms: 180_000, ..Cause::default() };
        let change_until = |outcome: Outcome, before: Value, after: Value| {
            let evidence = CauseEvidence {
                spec_change: Some([version(4, before), version(9, after)]),
                ..CauseEvidence::default()
            };
            evidence.text(outcome, &cause, false)
        };
        let change = |before: Value, after: Value| change_until(Outcome::Failed, before, after);
        let text =
            change(json!({"parallelism": 4, "suspend": false}), json!({"parallelism": 8, "suspend": false}));
        assert!(
            text.starts_with("\nLast change of its spec, 3 min before the end:\n--- spec at 4, "),
            "{text}"
        );
        assert!(text.contains("-parallelism: 4\n+parallelism: 8\n suspend: false\n"), "{text}");
        let many = |value: u32| (0..60).map(|key| (format!("k{key:02}"), json!(value))).collect::<Value>();
        let text = change(many(1), many(2));
        assert_eq!(text.lines().count(), DIFF_LINES + 3, "{text}");
        assert!(text.trim_end().ends_with("more lines: kubewitness diff job/x 4 9"), "{text}");
        assert_eq!(change(many(1), many(1)), "", "only metadata changed");
        for outcome in [Outcome::Waiting, Outcome::Running] {
            let text = change_until(outcome, json!({"parallelism": 4}), json!({"parallelism": 8}));
            assert!(text.starts_with("\nLast change of its spec, 3 min before that:\n"), "{text}");
        }
    }

    #[tokio::test]
    async fn a_suspension_by_the_queue_is_no_change_of_the_spec() {
        // Parallelism changes at 4; the queue suspends the job at 6 and lets it go at 8.
        fn document(seq: u64, labels: &Value) -> Value {
            let generation = 1 + u64::from(seq > 3) + u64::from(seq > 5) + u64::from(seq > 7);
            let spec = json!({"parallelism": if seq > 3 { 8 } else { 4 }, "suspend": (6..8).contains(&seq)});
            json!({"metadata": {"generation": generation, "labels": labels}, "spec": spec})
        }
        let found = async |labels: Value, first: u64| {
            let client = testing::client(move |path| document(testing::asked_seq(path), &labels)).await;
            let states: Vec<_> =
                (first..=10).map(|seq| Arc::new(testing::state(seq, Change::Present))).collect();
            let change = find_spec_change(&client, &states).await.unwrap();
            change.map(|[before, after]| (before.0.seq, after.0.seq))
        };
        let queued = json!({(QUEUE_LABEL): "research"});
        assert_eq!(found(queued.clone(), 1).await, Some((3, 4)));
        assert_eq!(found(queued, 4).await, None, "only the queue changed it");
        assert_eq!(found(json!({}), 1).await, Some((7, 8)), "a person let it go");
    }

    #[tokio::test]
    async fn a_spec_change_is_shown_although_the_document_of_the_pod_is_missing() {
        let client = testing::client_without(9, |seq| {
            let generation = 1 + u64::from(seq > 2);
            json!({"metadata": {"generation": generation}, "spec": {"parallelism": generation}})
        })
        .await;
        let pod = ObjectRef { kind: "Pod".into(), ..ObjectRef::default() };
        let cause = Cause { object: Some(pod), seq: 9, ..Cause::default() };
        let states = (1..=4).map(|seq| Arc::new(testing::state(seq, Change::Present))).collect();
        let evidence =
            CauseEvidence::read(&client, &TimelineView { states, ..TimelineView::default() }, &cause).await;
        assert!(evidence.pod.is_none());
        let [before, after] = evidence.spec_change.expect("a change");
        assert_eq!((before.0.seq, after.0.seq), (2, 3));
    }
}
