//! Tests of the limits of time, of memory, and of calls to the controller.

use std::sync::Arc;
use std::time::Duration;

use kubewitness_core::config::{self, ComponentsSpec, LimitsSpec};
use kubewitness_core::ports::{CallError, PluginHandler, Verdict};
use kubewitness_sandbox::{ComponentCompiler, EngineOptions, SandboxEngine, SandboxPlugin};
use tokio::task::JoinSet;

use crate::fixture::{FakeGrants, SandboxBench, delivery, hostile, hostile_bytes};

pub fn call(millis: u64) -> LimitsSpec {
    LimitsSpec { call: config::Duration(Duration::from_millis(millis)), ..LimitsSpec::default() }
}

/// Short for tests, but long enough for a call of a debug build on a busy machine.
const SHORT: u64 = 400;

#[tokio::test]
async fn an_endless_loop_ends_and_others_run_meanwhile() {
    let bench = SandboxBench::hostile("loops", "{}", call(SHORT)).await;
    let mut turns = 0;
    let others = async {
        loop {
            tokio::task::yield_now().await;
            turns += 1;
        }
    };
    // Both share one thread, so the guest that computes for ever has to yield.
    let outcome = tokio::select! {
        outcome = bench.hand_over(1) => outcome,
        () = others => unreachable!("it never ends"),
    };
    assert_eq!(outcome.unwrap_err(), CallError::Timeout { limit_ms: SHORT });
    assert!(turns > 0);
    assert_eq!(bench.plugin.count_idle(), 0);
}

/// Each computes without a pause. A plugin with four calls gets a quarter of its share for each.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_plugin_with_one_call_ends_it_before_those_with_four_calls_end_any() {
    let component = hostile("loops").await;
    let plugin = |name: &str| {
        let made = component.make_plugin(name, &call(SHORT), Arc::new(FakeGrants::default()));
        Arc::new(made.unwrap())
    };
    let mut calls = JoinSet::new();
    let mut compute = |plugin: &Arc<SandboxPlugin>| {
        let plugin = plugin.clone();
        calls.spawn(async move {
            let ended = plugin.handle_batch(&[delivery(1, "")]).await;
            (plugin.name().to_owned(), ended.unwrap_err())
        });
    };
    for number in 0..4 {
        let greedy = plugin(&format!("greedy-{number}"));
        (0..4).for_each(|_| compute(&greedy));
    }
    let modest = plugin("modest");
    compute(&modest);
    let first = calls.join_next().await.unwrap().unwrap();
    assert_eq!(first, ("modest".to_owned(), CallError::Timeout { limit_ms: SHORT }));
    assert!(modest.plugin_tally().calls_view().wait_seconds > 0.0);
}

#[tokio::test]
async fn a_sleep_is_the_guests_own_time() {
    let bench = SandboxBench::hostile("sleeps", r#"{"millis": 600000}"#, call(SHORT)).await;
    assert_eq!(bench.hand_over(1).await.unwrap_err(), CallError::Timeout { limit_ms: SHORT });
    let bench = SandboxBench::hostile("sleeps", r#"{"millis": 1}"#, call(SHORT)).await;
    assert_eq!(bench.hand_over(1).await.unwrap().verdicts, [Verdict::Done]);
}

#[tokio::test]
async fn time_that_the_host_takes_is_not_charged() {
    let waits = FakeGrants { query: Duration::from_millis(2 * SHORT), ..FakeGrants::default() };
    let bench = SandboxBench::new(waits, call(SHORT)).await;
    assert!(bench.ask("sql.query main select 1").await.starts_with("ok"));
    let blocks = FakeGrants { kv_read: Duration::from_millis(2 * SHORT), ..FakeGrants::default() };
    let bench = SandboxBench::new(blocks, call(SHORT)).await;
    assert_eq!(bench.ask("kv.get a").await, "ok: None");
}

#[tokio::test]
async fn memory_past_the_limit_ends_the_call() {
    let limits = LimitsSpec { memory: config::Bytes(16 << 20), ..LimitsSpec::default() };
    let bench = SandboxBench::hostile("hoards", r#"{"mebibytes": 4}"#, limits.clone()).await;
    assert_eq!(bench.hand_over(1).await.unwrap().verdicts, [Verdict::Done]);
    let bench = SandboxBench::hostile("allocates", "{}", limits).await;
    assert_eq!(bench.hand_over(1).await.unwrap_err(), CallError::Memory { limit_bytes: 16 << 20 });
    assert_eq!(bench.plugin.count_idle(), 0);
}

#[tokio::test]
async fn a_guest_that_deals_with_a_refusal_of_memory_goes_on() {
    let limits = LimitsSpec { memory: config::Bytes(16 << 20), ..LimitsSpec::default() };
    let bench = SandboxBench::new(FakeGrants::default(), limits).await;
    assert_eq!(bench.ask("try-eat 64").await, "refused");
    assert_eq!(bench.ask("try-eat 1").await, "had");
}

#[tokio::test]
async fn a_component_that_does_not_fit_its_memory_says_so() {
    let limits = LimitsSpec { memory: config::Bytes(64 << 10), ..LimitsSpec::default() };
    let bench = SandboxBench::new(FakeGrants::default(), limits).await;
    assert_eq!(bench.run(&["done"]).await.unwrap_err(), CallError::Memory { limit_bytes: 64 << 10 });
    assert_eq!(bench.record().rolled_back, 1);
}

#[tokio::test]
async fn all_plugins_together_have_no_more_than_their_memory_and_the_lack_of_it_is_nobodys_fault() {
    let engine = SandboxEngine::new(EngineOptions {
        cache: None,
        compiler: ComponentCompiler::InProcess,
        is_unattended: false,
    })
    .unwrap();
    let component = engine.load(&hostile_bytes("hoards").into(), &ComponentsSpec::default()).await.unwrap();
    let plugin = |name: &str, config| {
        let fake = FakeGrants { config, ..FakeGrants::default() };
        component.make_plugin(name, &LimitsSpec::default(), Arc::new(fake)).unwrap()
    };
    engine.bound_memory(16 << 20);
    let (one, other) = (plugin("one", r#"{"mebibytes": 6}"#), plugin("other", r#"{"mebibytes": 12}"#));
    one.handle_batch(&[delivery(1, "")]).await.unwrap();
    assert!(engine.memory_used() > 6 << 20, "an instance that waits keeps what it has");
    let CallError::Unavailable(message) = other.handle_batch(&[delivery(1, "")]).await.unwrap_err() else {
        panic!("it is the plugin's fault")
    };
    assert!(message.contains("all plugins together may hold 16Mi"), "{message}");
    drop(one);
    other.handle_batch(&[delivery(1, "")]).await.unwrap();
    drop(other);
    assert_eq!(engine.memory_used(), 0);
}

#[tokio::test]
async fn endless_recursion_is_a_trap() {
    let bench = SandboxBench::hostile("recurses", "{}", LimitsSpec::default()).await;
    // Compilers put the stack into the guest's memory, so either limit may be reached first.
    let error = bench.hand_over(1).await.unwrap_err();
    assert!(matches!(&error, CallError::Trap(_)), "{error:?}");
    assert_eq!(bench.plugin.count_idle(), 0);
}

#[tokio::test]
async fn calls_to_the_host_are_refused_past_their_number() {
    let limits = LimitsSpec { host_calls: 50, ..LimitsSpec::default() };
    let bench = SandboxBench::hostile("calls_without_end", "{}", limits.clone()).await;
    let flooded = bench.hand_over(1).await;
    assert!(flooded.is_ok(), "a refusal is an answer: {flooded:?}");
    assert_eq!(bench.record().lines, 0, "a line past the limit is dropped");
    let bench = SandboxBench::hostile("floods_the_log", "{}", limits).await;
    bench.hand_over(1).await.unwrap();
    assert_eq!(bench.record().lines, 50, "as many as it may call");
    bench.hand_over(1).await.unwrap();
    assert_eq!(bench.record().lines, 100, "the next batch has all its calls again");
}

#[tokio::test]
async fn bytes_of_one_call_are_refused_past_their_number() {
    let limits = LimitsSpec { host_bytes: config::Bytes(1 << 20), ..LimitsSpec::default() };
    let bench = SandboxBench::hostile("writes_long_values", r#"{"bytes": 1000000}"#, limits.clone()).await;
    assert_eq!(bench.hand_over(1).await.unwrap().verdicts, [Verdict::Done]);
    let bench = SandboxBench::hostile("writes_long_values", r#"{"bytes": 2000000}"#, limits).await;
    let outcome = bench.hand_over(1).await.unwrap();
    let [Verdict::Reject(reason)] = outcome.verdicts.as_slice() else { panic!("{:?}", outcome.verdicts) };
    assert!(reason.starts_with("too large") && reason.contains("limits.hostBytes"), "{reason}");
}

#[tokio::test]
async fn comparing_large_documents_takes_the_guests_own_time() {
    let bench = SandboxBench::new(FakeGrants::default(), call(20)).await;
    let document = |last: &str| &*format!("[{}{last}]", "1,".repeat(3_000_000)).leak();
    bench.record().documents.insert(1, document("1"));
    bench.record().before.insert(1, document("2"));
    assert_eq!(bench.run(&["patch"]).await.unwrap_err(), CallError::Timeout { limit_ms: 20 });
}
