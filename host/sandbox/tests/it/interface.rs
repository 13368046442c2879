//! Tests of older versions of the interface, which keep working.

use std::sync::Arc;
use std::time::Duration;

use kubewitness_core::config::{ComponentsSpec, LimitsSpec, PluginSpec};
use kubewitness_core::ports::{CallError, PluginHandler, ScheduledCall, StateDelivery, Verdict};
use kubewitness_core::{State, Status};
use kubewitness_sandbox::PluginComponent;

use crate::fixture::{FakeGrants, SandboxBench, delivery, engine};

/// Built before interface 1.1: `testdata/interface-1.0/README.md` says how.
async fn of_1_0() -> PluginComponent {
    let bytes: &[u8] = include_bytes!("../../testdata/interface-1.0/plugin.wasm");
    engine().load(&bytes.into(), &ComponentsSpec::default()).await.unwrap()
}

fn in_phase(seq: u64, phase: &str) -> StateDelivery {
    let StateDelivery { state, attempt, resync } = delivery(seq, "");
    let status = Arc::new(Status { phase: phase.into(), ..Status::default() });
    StateDelivery { state: Arc::new(State { status, ..(*state).clone() }), attempt, resync }
}

fn spec(config: &serde_json::Value) -> PluginSpec {
    serde_json::from_value(serde_json::json!({
        "module": {"file": "plugin.wasm"},
        "subscribe": [{"source": "jobs"}],
        "grants": {
            "sql": [{"name": "main", "database": "a"}],
            "http": [{"name": "hook", "destination": "a"}],
            "ledger": [{"name": "audit", "ledger": "a"}],
            "keys": [{"name": "audit", "key": "a"}],
            "kv": true,
            "lister": ["jobs"],
        },
        "config": config,
    }))
    .unwrap()
}

#[tokio::test]
async fn a_plugin_of_interface_1_0_works_as_it_did() {
    let component = of_1_0().await;
    assert_eq!((component.interface_version(), component.exports_ticker()), ("1.0.0", false));
    let said = component.describe_itself().await.unwrap();
    assert_eq!((said.name.as_str(), said.needs.len()), ("interface-1.0", 6));
    assert_eq!(component.check(&spec(&serde_json::json!({}))).await.unwrap(), []);
    let wrong = component.check(&spec(&serde_json::json!({"a": "wrong"}))).await.unwrap();
    assert_eq!(wrong[0].field, "spec.config.a.b");

    let bench = SandboxBench::of(&component, FakeGrants::default(), &LimitsSpec::default());
    bench.record().documents.insert(1, r#"{"kind":"Job"}"#);
    let batch = [in_phase(1, "Running"), in_phase(2, "Failed"), in_phase(3, "Pending")];
    let outcome = bench.plugin.handle_batch(&batch).await.unwrap();
    let retry = Verdict::Retry { after_ms: Some(70), reason: "not yet".into() };
    assert_eq!(outcome.verdicts, [Verdict::Done, Verdict::Reject("it has failed".into()), retry]);

    let answers = std::mem::take(&mut bench.record().answers);
    let answer = |command: &str| &answers.iter().find(|(asked, _)| asked == command).unwrap().1;
    for (command, expected) in [
        ("config", "{}"),
        ("clock", "1234"),
        ("documents.json", r#"Ok(Some("{\"kind\":\"Job\"}"))"#),
        ("documents.get", r#"Ok(Some("\"Job\""))"#),
        ("documents.patch", r#"Ok(Some("{\"kind\":\"Job\"}"))"#),
        ("kv.set", "Ok(())"),
        ("kv.get", r#"Ok(Some("value"))"#),
        ("kv.keys", r#"Ok(["key"])"#),
        ("kv.delete", "Ok(())"),
        ("sql.dialect", "Ok(Dialect::Sqlite)"),
        ("sql.execute", "Ok(1)"),
        ("sql.write", "Ok(1)"),
        ("sql.both", "Ok(2)"),
        ("http", r#"Ok((202, "taken"))"#),
        ("ledger.append", "Ok(1)"),
        ("ledger.last", r#"Ok(Some("line"))"#),
        ("ledger.sign", "Ok(14)"),
        ("lister.get", r#"Ok(Some("{}"))"#),
        ("lister.list", "Ok(1)"),
    ] {
        assert_eq!(answer(command), expected, "{command}");
    }
    assert!(answer("sql.query").contains("seven"), "{}", answer("sql.query"));
    assert!(answer("state").contains("change: Change::Present"), "{}", answer("state"));
    let record = bench.record();
    assert_eq!(record.requests[0].headers, [("x-of".to_string(), "1.0".to_string())]);
    assert!(
        outcome.is_apart && record.committed.is_empty(),
        "nothing is kept of states that are not all done"
    );
}

#[tokio::test]
async fn a_schedule_for_a_plugin_of_interface_1_0_is_refused_by_name() {
    let component = of_1_0().await;
    let tick = serde_json::from_str(r#"{"every": "30s"}"#).unwrap();
    let spec = PluginSpec { tick: Some(tick), ..spec(&serde_json::json!({})) };
    let faults = component.check(&spec).await.unwrap();
    let [fault] = faults.as_slice() else { panic!("{faults:?}") };
    assert_eq!(fault.field, "spec.tick");
    assert!(fault.message.contains("`kubewitness:plugin/ticker`") && fault.message.contains("speaks 1.0.0"));
    assert!(component.warnings(&spec).is_empty());
    let bench = SandboxBench::of(&component, FakeGrants::default(), &LimitsSpec::default());
    let tick = ScheduledCall { due_ms: 0, timeout: Duration::from_secs(10) };
    assert!(matches!(bench.plugin.handle_tick(tick).await, Err(CallError::Protocol(_))));
}
