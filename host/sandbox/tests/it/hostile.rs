//! Tests of hostile guests: each ends with an error that names the cause, and affects no other guest. The
//! page `docs/concepts/hostile-plugins.md` lists them; the programs are in `tests/guests/hostile`.

use std::time::Duration;

use kubewitness_core::config::{self, ComponentsSpec, LimitsSpec, PluginSpec};
use kubewitness_core::ports::{CallError, Verdict};
use kubewitness_hostile::{of_another_world, starting_with_a_loop, with_memories, with_table};
use kubewitness_sandbox::SandboxError;

use crate::fixture::{FakeGrants, SandboxBench, engine, hostile, hostile_bytes, probe_bytes};

fn spec() -> PluginSpec {
    serde_json::from_value(serde_json::json!({
        "module": {"file": "hostile.wasm"},
        "subscribe": [{"source": "jobs"}],
        "limits": {"call": "400ms", "memory": "32Mi"},
        "grants": {
            "sql": [{"name": "main", "database": "platform"}],
            "http": [{"name": "hook", "destination": "hook"}],
            "ledger": [{"name": "audit", "ledger": "audit"}],
            "kv": true,
            "lister": ["jobs"],
        },
    }))
    .unwrap()
}

/// The message for an operator about a refused component.
async fn refusal(bytes: Vec<u8>) -> String {
    let refused = match engine().load(&bytes.into(), &ComponentsSpec::default()).await {
        Err(error) => error,
        Ok(component) => match component.check(&spec()).await {
            Err(error) => error,
            Ok(faults) => panic!("this was taken, with {faults:?}"),
        },
    };
    refused.to_string()
}

#[tokio::test]
async fn a_component_that_hangs_while_it_is_described_checked_or_started_is_refused() {
    let told = refusal(hostile_bytes("loops_in_describe")).await;
    assert!(told.contains("describe") && told.contains("longer than its limit of 2000 ms"), "{told}");
    let told = refusal(hostile_bytes("loops_in_check")).await;
    assert!(told.contains("check") && told.contains("longer than its limit of 400 ms"), "{told}");
    let told = refusal(starting_with_a_loop(&probe_bytes())).await;
    assert!(told.contains("instantiate") && told.contains("longer than its limit of 2000 ms"), "{told}");
}

#[tokio::test]
async fn memories_and_tables_of_every_part_count_together() {
    let probe = probe_bytes();
    // Each memory is within its limit.
    let told = refusal(with_memories(&probe, 4, 1, 20)).await;
    assert!(told.contains("more memory than its limit of 67108864 bytes"), "{told}");
    let told = refusal(with_table(&probe, 5_000_000)).await;
    assert!(told.contains("more memory than its limit of 67108864 bytes"), "{told}");
    let told = refusal(with_memories(&probe, 1, 8, 20)).await;
    assert!(told.contains("more memory than its limit") || told.contains("multi"), "{told}");
    let told = refusal(with_memories(&probe, 200, 1, 0)).await;
    assert!(told.contains("instantiate"), "{told}");
}

fn wide() -> LimitsSpec {
    let call = config::Duration(Duration::from_secs(20));
    LimitsSpec { memory: config::Bytes(512 << 20), call, ..LimitsSpec::default() }
}

async fn reason(bench: &SandboxBench) -> String {
    let mut verdicts = bench.hand_over(1).await.unwrap().verdicts;
    match verdicts.pop() {
        Some(Verdict::Reject(reason)) => reason,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn giant_texts_are_cut_or_end_the_call() {
    let bench = SandboxBench::hostile("giant_reasons", r#"{"mebibytes": 8}"#, wide()).await;
    let told = reason(&bench).await;
    assert!(told.len() <= 4096 + 8, "{} bytes", told.len());
    // The reasons are larger than what the host copies out of a guest in one call.
    let bench = SandboxBench::hostile("giant_reasons", r#"{"mebibytes": 100}"#, wide()).await;
    let error = bench.hand_over(1).await.unwrap_err();
    assert!(matches!(error, CallError::Trap(_)), "{error:?}");
    assert_eq!(bench.plugin.count_idle(), 0);
    let bench = SandboxBench::hostile("writes_long_values", r#"{"bytes": 20000000}"#, wide()).await;
    let told = reason(&bench).await;
    assert!(told.starts_with("too large"), "{told}");
    // The same in the other direction.
    let bench = SandboxBench::hostile("asks_for_giant_texts", "{}", wide()).await;
    let giant = format!("\"{}\"", "x".repeat(20_000_000)).leak();
    bench.record().documents.insert(1, giant);
    let told = reason(&bench).await;
    assert!(told.starts_with("too large"), "{told}");
}

#[tokio::test]
async fn what_a_guest_may_not_reach_is_refused_in_each_call_and_the_guest_goes_on() {
    let bench = SandboxBench::hostile("asks_for_other_states", "{}", LimitsSpec::default()).await;
    bench.record().documents.insert(7, "{}");
    assert_eq!(bench.hand_over(3).await.unwrap().verdicts, [Verdict::Done, Verdict::Done, Verdict::Done]);
    let fake = FakeGrants { granted: false, ..FakeGrants::default() };
    let bench = SandboxBench::of(&hostile("uses_what_nobody_granted").await, fake, &LimitsSpec::default());
    assert_eq!(bench.hand_over(1).await.unwrap().verdicts, [Verdict::Done]);
}

#[tokio::test]
async fn a_guest_that_gives_no_handle_back_ends_at_the_most_that_it_may_hold() {
    let bench = SandboxBench::hostile("leaks_handles", "{}", LimitsSpec::default()).await;
    for _ in 0..2 {
        let error = bench.hand_over(1).await.unwrap_err();
        assert!(matches!(error, CallError::Trap(_)), "{error:?}");
        assert_eq!(bench.plugin.count_idle(), 0, "what it held ends with its instance");
    }
}

#[tokio::test]
async fn a_component_for_another_world_is_told_which_interface_it_wants() {
    let bytes = of_another_world(&probe_bytes());
    let told = match engine().load(&bytes.into(), &ComponentsSpec::default()).await {
        Err(SandboxError::Unfit(told)) => told,
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("it was taken"),
    };
    assert!(told.contains("kw"), "{told}");
}
