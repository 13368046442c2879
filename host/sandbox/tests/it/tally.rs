//! Tests of the figures about a plugin's calls.

use std::time::Duration;

use kubewitness_core::config::{self, LimitsSpec};
use kubewitness_core::ports::{GrantError, PluginHandler};
use kubewitness_core::views::{CallEndsView, CallsView, VerdictsView};

use crate::fixture::{FakeGrants, SandboxBench, delivery};

const SHORT: u64 = 400;

fn view(bench: &SandboxBench) -> CallsView {
    bench.plugin.plugin_tally().calls_view()
}

#[tokio::test]
async fn how_a_call_ended_is_told_by_its_kind_and_the_last_good_one_and_the_last_failure_with_their_times() {
    let limits = LimitsSpec {
        memory: config::Bytes(16 << 20),
        call: config::Duration(Duration::from_millis(SHORT)),
        ..LimitsSpec::default()
    };
    let bench = SandboxBench::new(FakeGrants::default(), limits.clone()).await;
    bench.run(&["done", "retry later", "reject broken"]).await.unwrap();
    for command in ["eat 64", "missing", "loop", "trap"] {
        bench.run(&[command]).await.unwrap_err();
    }
    let calls = view(&bench);
    let ended = CallEndsView {
        answered: 1,
        trapped: 1,
        timed_out: 1,
        out_of_memory: 1,
        invalid: 1,
        ..CallEndsView::default()
    };
    assert_eq!(calls.ended, ended);
    assert_eq!((calls.states, calls.verdicts), (7, VerdictsView { done: 1, retry: 1, reject: 1 }));
    let failure = calls.last_failure.unwrap();
    assert_eq!(failure.end, "trapped");
    assert!(failure.message.contains("as commanded") && failure.at >= calls.last_answered_at.unwrap());
    // A call that exceeded its time used all of it.
    let all = 0.9 * SHORT as f64 / 1000.0;
    assert!(calls.guest_seconds >= all, "{}", calls.guest_seconds);

    let bench = SandboxBench::hostile("sleeps", r#"{"millis": 600000}"#, limits.clone()).await;
    bench.hand_over(1).await.unwrap_err();
    let calls = view(&bench);
    assert_eq!(calls.ended, CallEndsView { timed_out: 1, ..CallEndsView::default() });
    assert!(calls.guest_seconds >= all, "{}", calls.guest_seconds);
    let bench = SandboxBench::hostile("exits", "{}", limits).await;
    bench.hand_over(1).await.unwrap_err();
    let calls = view(&bench);
    assert_eq!(calls.ended, CallEndsView { trapped: 1, ..CallEndsView::default() });
    assert!(calls.last_failure.unwrap().message.contains("exited with"));
}

#[tokio::test]
async fn what_a_commit_refuses_and_what_is_unavailable_are_told_apart() {
    for (error, refused, unavailable) in [
        (GrantError::Invalid("a null".into()), 1, 0),
        (GrantError::Unavailable("the database is away".into()), 0, 1),
    ] {
        let fake = FakeGrants { commit: Err(error), ..FakeGrants::default() };
        let bench = SandboxBench::new(fake, LimitsSpec::default()).await;
        bench.run(&["done"]).await.unwrap_err();
        let ended = view(&bench).ended;
        assert_eq!((ended.refused, ended.unavailable, ended.answered), (refused, unavailable, 0));
    }
}

#[tokio::test]
async fn calls_to_the_host_are_counted_by_capability_with_their_bytes_and_their_time() {
    // Longer than everything else takes on a busy machine.
    let query = Duration::from_millis(400);
    let fake = FakeGrants { query, ..FakeGrants::default() };
    let bench = SandboxBench::new(fake, LimitsSpec::default()).await;
    bench.run(&["done"]).await.unwrap();
    let before = view(&bench);
    bench.ask("sql.query main select 1").await;
    let after = view(&bench);
    let called = |view: &CallsView, name: &str| view.host_calls.get(name).copied().unwrap_or_default();
    assert_eq!((called(&before, "sql"), called(&after, "sql"), called(&after, "http")), (0, 1, 0));
    // The command is part of the state, which counts as input; the statement counts as output.
    let statement = "select 1".len() as u64;
    assert!(after.bytes_in - before.bytes_in > statement && after.bytes_out - before.bytes_out >= statement);
    let query = query.as_secs_f64();
    assert!(after.host_seconds >= query && before.host_seconds < query, "{}", after.host_seconds);
    assert!(after.guest_seconds > 0.0 && after.guest_seconds < after.host_seconds, "{after:?}");
}

#[tokio::test]
async fn instances_and_their_memory_are_those_that_there_are_and_the_peak_stays() {
    let bench = SandboxBench::plain().await;
    assert_eq!(bench.ask("eat 4").await, "ate 4");
    let busy = view(&bench);
    assert_eq!((busy.instances, busy.peak_memory), (1, busy.memory));
    assert!(busy.memory > 4 << 20, "{}", busy.memory);
    bench.run(&["trap"]).await.unwrap_err();
    let after = view(&bench);
    assert_eq!((after.instances, after.memory, after.peak_memory), (0, 0, busy.peak_memory));
}

#[tokio::test]
async fn a_call_that_is_given_up_leaves_no_instance_in_the_count() {
    let fake = FakeGrants { query: Duration::from_secs(600), ..FakeGrants::default() };
    let bench = SandboxBench::new(fake, LimitsSpec::default()).await;
    let batch = [delivery(1, "sql.query main select 1")];
    let call = bench.plugin.handle_batch(&batch);
    assert!(tokio::time::timeout(Duration::from_millis(200), call).await.is_err());
    let calls = view(&bench);
    assert_eq!((calls.instances, calls.memory, calls.ended.count_all()), (0, 0, 0));
}
