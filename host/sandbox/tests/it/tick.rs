//! Tests of ticks: calls without states, in the same sandbox and with the same capabilities.

use std::time::Duration;

use kubewitness_core::config::{LimitsSpec, PluginSpec};
use kubewitness_core::ports::{CallError, GrantError, KvWrite, PluginHandler, ScheduledCall, Verdict};

use crate::fixture::{FakeGrants, SandboxBench, probe};
use crate::limits::call;

const DUE: u64 = 1_700_000_000_000;

async fn bench(config: &'static str, fake: FakeGrants) -> SandboxBench {
    SandboxBench::new(FakeGrants { config, ..fake }, LimitsSpec::default()).await
}

async fn tick(bench: &SandboxBench, timeout_ms: u64) -> Result<Vec<KvWrite>, CallError> {
    bench.plugin.handle_tick(ScheduledCall { due_ms: DUE, timeout: Duration::from_millis(timeout_ms) }).await
}

#[tokio::test]
async fn a_tick_has_the_capabilities_of_handle_and_no_document() {
    let config = r#"{"tick": ["kv.set a 1", "sql.run main insert", "http.post hook /path", "ledger.append audit line",
        "lister.list jobs", "document", "clock", "envelope"]}"#;
    let bench = bench(config, FakeGrants::default()).await;
    let kv = tick(&bench, 5000).await.unwrap();
    assert_eq!(kv, [KvWrite { key: "a".into(), value: Some(b"1".to_vec()) }]);
    let record = bench.record();
    assert_eq!(record.committed, [Vec::<u64>::new()], "there is no state to have a receipt");
    let answers: Vec<_> = record.answers.iter().map(|(_, answer)| answer.as_str()).take(7).collect();
    let expected = [
        "ok: ()",
        "ok: 1",
        "ok: 202",
        "ok: 1",
        r#"ok: ["there"]"#,
        "invalid: state 0 is not in this call",
        "1234",
    ];
    assert_eq!(answers, expected);
    assert!(record.answers[7].1.contains(&DUE.to_string()), "it knows when it was due");
}

#[tokio::test]
async fn what_was_not_granted_is_denied_in_a_tick_too() {
    let fake = FakeGrants { granted: false, ..FakeGrants::default() };
    let bench = bench(r#"{"tick": ["kv.set a 1", "sql.run main x", "http.get hook /"]}"#, fake).await;
    tick(&bench, 5000).await.unwrap();
    let record = bench.record();
    assert!(record.answers.iter().all(|(_, answer)| answer.starts_with("denied: ")), "{:?}", record.answers);
}

#[tokio::test]
async fn a_tick_that_says_it_failed_is_rolled_back_and_its_instance_lives() {
    let bench = bench(r#"{"tick": ["kv.set a 1", "fail the server is away"]}"#, FakeGrants::default()).await;
    let error = tick(&bench, 5000).await.unwrap_err();
    assert_eq!(error, CallError::Failed("the server is away".into()));
    let record = bench.record();
    assert_eq!((record.rolled_back, record.committed.len(), record.open), (1, 0, 0));
    assert_eq!(bench.plugin.count_idle(), 1);
}

#[tokio::test]
async fn a_tick_that_traps_or_computes_for_ever_ends_with_its_instance_and_states_go_on() {
    for (name, trapped) in [("traps_in_tick", true), ("loops_in_tick", false)] {
        let bench = SandboxBench::hostile(name, "{}", call(300)).await;
        let error = tick(&bench, 20_000).await.unwrap_err();
        match trapped {
            true => assert!(matches!(error, CallError::Trap(_)), "{error:?}"),
            false => assert_eq!(error, CallError::Timeout { limit_ms: 300 }, "the limit of any call"),
        }
        let (open, rolled_back) = {
            let record = bench.record();
            (record.open, record.rolled_back)
        };
        assert_eq!((bench.plugin.count_idle(), open, rolled_back), (0, 0, 1));
        assert_eq!(bench.hand_over(1).await.unwrap().verdicts, [Verdict::Done]);
    }
}

/// The host's time does not count as the plugin's, but states wait for both.
#[tokio::test]
async fn a_tick_that_waits_for_the_host_ends_at_its_time_out_and_leaves_nothing() {
    let fake = FakeGrants { query: Duration::from_secs(60), ..FakeGrants::default() };
    let bench = bench(r#"{"tick": ["kv.set a 1", "sql.query main select"]}"#, fake).await;
    let begun = std::time::Instant::now();
    let error = tick(&bench, 200).await.unwrap_err();
    assert_eq!(error, CallError::Timeout { limit_ms: 200 });
    assert!(begun.elapsed() < Duration::from_secs(30));
    let record = bench.record();
    assert_eq!((record.open, record.committed.len()), (0, 0));
}

#[tokio::test]
async fn a_commit_that_is_refused_fails_the_tick() {
    let commit = Err(GrantError::Unavailable("the database is away".into()));
    let bench = bench(r#"{"tick": ["kv.set a 1"]}"#, FakeGrants { commit, ..FakeGrants::default() }).await;
    let error = tick(&bench, 5000).await.unwrap_err();
    assert!(matches!(error, CallError::Unavailable(_)), "{error:?}");
}

#[tokio::test]
async fn a_plugin_that_could_tick_and_has_no_schedule_is_a_warning() {
    let spec = |tick: serde_json::Value| -> PluginSpec {
        let mut spec = serde_json::json!({
            "module": {"file": "probe.wasm"},
            "subscribe": [{"source": "jobs"}],
        });
        spec["tick"] = tick;
        serde_json::from_value(spec).unwrap()
    };
    let warnings = probe().await.warnings(&spec(serde_json::Value::Null));
    assert_eq!(warnings[0].field, "spec.tick");
    assert!(warnings[0].message.contains("add `spec.tick`"), "{warnings:?}");
    assert!(probe().await.warnings(&spec(serde_json::json!({"every": "30s"}))).is_empty());
}
