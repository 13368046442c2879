//! Tests of each capability: what passes through it, and that a missing grant is an error instead of a trap.

use std::sync::Arc;

use kubewitness_core::config::LimitsSpec;
use kubewitness_core::ports::{OnConflict, PluginHandler, SqlValue, StateDelivery};
use kubewitness_core::{ObjectRef, State, Status};

use crate::fixture::{FakeGrants, SandboxBench, delivery};

#[tokio::test]
async fn what_was_not_granted_answers_denied() {
    let bench =
        SandboxBench::new(FakeGrants { granted: false, ..FakeGrants::default() }, LimitsSpec::default())
            .await;
    for command in [
        "kv.set a 1",
        "kv.delete a",
        "sql.dialect main",
        "sql.run main select 1",
        "sql.query main select 1",
        "sql.write main",
        "sql.both main",
        "sql.states main",
        "http.post hook /",
        "http.get hook /",
        "ledger.append audit line",
        "ledger.last audit",
        "ledger.sign key",
        "lister.get jobs default there",
        "lister.list jobs",
        "outcomes.explain jobs failed",
        "outcomes.changes",
    ] {
        let answer = bench.ask(command).await;
        assert!(answer.starts_with("denied: "), "{command}: {answer}");
    }
    assert_eq!(bench.plugin.count_idle(), 1, "one instance lived through all of it");
}

#[tokio::test]
async fn what_was_granted_is_reached() {
    let bench = SandboxBench::plain().await;
    for (command, answer) in [
        ("sql.dialect main", "ok: Dialect::Sqlite"),
        ("sql.run main create table t (a)", "ok: 1"),
        ("sql.write main", "ok: 1"),
        ("sql.both main", "ok: 2"),
        ("sql.states main", "ok: 2"),
        ("sql.states main 99", "invalid: state 99 is not in this call"),
        ("http.post hook /path", "ok: 202"),
        ("http.get hook /path", r#"ok: "taken""#),
        ("http.post hook /busy", "rate limited, 250 ms"),
        ("ledger.append audit line", "ok: 1"),
        ("ledger.last audit", r#"ok: Some("line")"#),
        ("ledger.sign key", "ok: 14"),
        ("lister.get jobs default there", r#"ok: Some("{}")"#),
        ("lister.get jobs default gone", "ok: None"),
        ("lister.list jobs", r#"ok: ["there"]"#),
        ("outcomes.explain jobs soon", "ok: Finding::Pending"),
        ("outcomes.explain jobs fine", "ok: Finding::Nothing"),
        ("clock", "1234"),
    ] {
        assert_eq!(bench.ask(command).await, answer, "{command}");
    }
    let queried = bench.ask("sql.query main select 1").await;
    for part in ["Integer(7)", "Null", r#"Text("seven")"#] {
        assert!(queried.contains(part), "{queried}");
    }
    let found = bench.ask("outcomes.explain jobs failed").await;
    for part in [r#"kind: "out-of-memory""#, "seq: 7", r#"container: "main", container-role: "main""#] {
        assert!(found.contains(part), "{found}");
    }
    let changed = bench.ask("outcomes.changes x").await;
    for part in [r#"uid: "failed""#, r#"kind: Some("out-of-memory")"#, r#"next: "xx""#, "restarted: false"] {
        assert!(changed.contains(part), "{changed}");
    }
    let record = bench.record();
    assert_eq!(record.statements, ["create table t (a)"]);
    let write = &record.written[0];
    assert_eq!(write.on_conflict, OnConflict::ReplaceOlder { newer: "seq".to_string() });
    let id = SqlValue::Text("jobs/0/batch/Job/uid-1/1".to_string());
    assert_eq!(write.rows, [[id.clone(), SqlValue::Integer(1), SqlValue::Null]]);
    let copy = &record.written[2];
    assert_eq!((copy.table.as_str(), &copy.on_conflict), ("probe_newest", &OnConflict::Ignore));
    assert_eq!(copy.rows, [[SqlValue::Integer(1), id.clone()]]);
    let text = |text: &str| SqlValue::Text(text.into());
    let row = [id.clone(), SqlValue::Integer(1), text("Running"), text("words"), SqlValue::Null];
    assert_eq!(record.written[3].rows, [row]);
    assert_eq!(record.written[4].rows, copy.rows);
    let post = &record.requests[0];
    assert_eq!((post.method.as_str(), post.path.as_str()), ("POST", "/path"));
    assert!(post.headers.contains(&("idempotency-key".to_string(), "jobs/0/batch/Job/uid-1/1".to_string())));
}

#[tokio::test]
async fn kv_is_seen_within_the_call() {
    let bench = SandboxBench::plain().await;
    let outcome =
        bench.run(&["kv.set a 1", "kv.get a", "kv.keys a", "kv.delete a", "kv.get a"]).await.unwrap();
    assert!(outcome.kv.is_empty());
    let answers: Vec<_> = bench.record().answers.iter().map(|(_, answer)| answer.clone()).collect();
    assert_eq!(answers, ["ok: ()", r#"ok: Some("1")"#, r#"ok: ["a"]"#, "ok: ()", "ok: None"]);
}

#[tokio::test]
async fn documents_are_those_of_the_call() {
    let bench = SandboxBench::plain().await;
    bench.record().documents.insert(1, r#"{"spec": {"a": 1.50}, "status": {"phase": "Running"}}"#);
    bench.record().before.insert(1, r#"{"spec": {"a": 1.50}, "status": {"phase": "Pending"}}"#);
    for (command, part) in [
        // The text is unchanged, including blanks and zeros.
        ("document", r#"{\"spec\": {\"a\": 1.50}"#),
        ("document /status/phase", r#"\"Running\""#),
        ("document /nowhere", "ok: None"),
        ("document spec", "not a JSON Pointer"),
        ("document.of 2", "invalid: state 2 is not in this call"),
        ("patch", r#"ok: Some("{\"status\":{\"phase\":\"Running\"}}")"#),
    ] {
        let answer = bench.ask(command).await;
        assert!(answer.contains(part), "{command}: {answer}");
    }
    bench.record().documents.clear();
    assert_eq!(bench.ask("document").await, "ok: None");
    bench.record().documents.insert(1, "not json");
    assert!(bench.ask("document /a").await.starts_with("invalid: the document is not JSON"));
}

#[tokio::test]
async fn the_whole_envelope_reaches_the_guest() {
    let bench = SandboxBench::plain().await;
    let StateDelivery { state, .. } = delivery(9, "envelope");
    let owner = ObjectRef {
        kind: "JobSet".into(),
        name: "set".into(),
        uid: "uid-set".into(),
        ..ObjectRef::default()
    };
    let previous = Status { phase: "Pending".into(), exit_code: Some(-9), ..Status::default() };
    let state = State {
        owner: Some(Arc::new(owner)),
        previous: Some(Arc::new(previous)),
        epoch: 3,
        late: true,
        ..(*state).clone()
    };
    bench
        .plugin
        .handle_batch(&[StateDelivery { state: Arc::new(state), attempt: 4, resync: false }])
        .await
        .unwrap();
    let (_, seen) = bench.record().answers.pop().unwrap();
    for part in [
        r#"id: "jobs/0/batch/Job/uid-9/9""#,
        "seq: 9",
        "Change::Present",
        r#"group: "batch", version: "v1", kind: "Job", namespace: "default", name: "job-9", uid: "uid-9""#,
        r#"name: "set", uid: "uid-set""#,
        r#"resource-version: "9""#,
        r#"phase: "Running""#,
        r#"phase: "Pending""#,
        "exit-code: Some(-9)",
        "observed-ms: 1009",
        "attempt: 4",
        r#"extra: [("late", "true"), ("epoch", "3"), ("ownerSubscribed", "false")]"#,
    ] {
        assert!(seen.contains(part), "{part} in {seen}");
    }
}

#[tokio::test]
async fn a_resync_tells_the_guest_what_it_is_and_leaves_no_receipt() {
    let bench = SandboxBench::plain().await;
    let again = StateDelivery { resync: true, ..delivery(2, "envelope") };
    let outcome = bench.plugin.handle_batch(&[delivery(1, "done"), again]).await.unwrap();
    assert_eq!(outcome.verdicts.len(), 2);
    let (_, seen) = bench.record().answers.pop().unwrap();
    assert!(seen.contains(r#"extra: [("resync", "true")]"#), "{seen}");
    assert!(seen.contains(r#"id: "jobs/0/batch/Job/uid-2/2""#), "{seen}");
    assert_eq!(bench.record().committed, [vec![1]]);
}

#[tokio::test]
async fn the_configuration_is_the_manifests() {
    let fake = FakeGrants { config: r#"{"command": "reject configured"}"#, ..FakeGrants::default() };
    let bench = SandboxBench::new(fake, LimitsSpec::default()).await;
    let outcome = bench.run(&[""]).await.unwrap();
    assert_eq!(outcome.verdicts, [kubewitness_core::ports::Verdict::Reject("configured".to_string())]);
}
