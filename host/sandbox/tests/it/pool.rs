//! Tests of batches, verdicts, receipts, and the instances that handle them.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use kubewitness_core::config::{ComponentsSpec, LimitsSpec};
use kubewitness_core::ports::{CallError, GrantError, KvWrite, PluginHandler, Verdict};
use kubewitness_sandbox::{ComponentCompiler, EngineOptions, IDLE_LIMIT, SandboxEngine};

use crate::fixture::{FakeGrants, SandboxBench, delivery, probe_bytes};

/// The duration of a query, long enough that calls which begin together are all in progress before the first
/// one ends.
const LONG: Duration = Duration::from_millis(300);

#[tokio::test]
async fn verdicts_come_back_in_order_and_nothing_is_kept_of_a_batch_that_is_not_all_done() {
    let bench = SandboxBench::plain().await;
    let outcome =
        bench.run(&["done", "retry busy 50", "reject broken", "retry later", "kv.set a 1"]).await.unwrap();
    let retry = |after_ms, reason: &str| Verdict::Retry { after_ms, reason: reason.to_string() };
    let expected = [
        Verdict::Done,
        retry(Some(50), "busy"),
        Verdict::Reject("broken".to_string()),
        retry(None, "later"),
        Verdict::Done,
    ];
    assert_eq!(outcome.verdicts, expected);
    assert!(outcome.is_apart, "its states come again in smaller calls");
    assert!(outcome.kv.is_empty());
    bench.expect_one_rollback();

    let outcome = bench.run(&["done", "kv.set a 1"]).await.unwrap();
    assert!(!outcome.is_apart);
    assert_eq!(*outcome.kv, [KvWrite { key: "a".to_string(), value: Some(b"1".to_vec()) }]);
    assert_eq!(bench.record().committed, [[1, 2]]);
}

#[tokio::test]
async fn a_state_that_is_not_done_keeps_nothing_and_its_verdict_counts_once_nothing_else_depends_on_it() {
    for commands in [&["retry later"][..], &["reject broken"], &["retry later", "retry busy 50"]] {
        let bench = SandboxBench::plain().await;
        let outcome = bench.run(commands).await.unwrap();
        assert!(!outcome.is_apart, "{commands:?}");
        assert!(outcome.kv.iter().all(|write| write.value.is_none()), "{:?}", outcome.kv);
        assert_eq!(outcome.kv.len(), commands.len(), "the notes of each end with its verdict");
        bench.expect_one_rollback();
    }
}

#[tokio::test]
async fn states_with_a_receipt_are_done_without_being_handed_over() {
    let fake = FakeGrants { applied: HashSet::from([1, 3]), ..FakeGrants::default() };
    let bench = SandboxBench::new(fake, LimitsSpec::default()).await;
    let outcome = bench.run(&["trap", "done", "trap", "clock"]).await.unwrap();
    assert_eq!(outcome.verdicts, vec![Verdict::Done; 4]);
    assert_eq!(bench.record().answers, [("clock".to_string(), "1234".to_string())]);
    assert_eq!(bench.record().committed, [[2, 4]]);
    let outcome = bench.run(&["trap", "reject broken", "trap"]).await.unwrap();
    assert_eq!(outcome.verdicts, [Verdict::Done, Verdict::Reject("broken".to_string()), Verdict::Done]);
    assert!(!outcome.is_apart, "it was the only one that was handed over");
}

#[tokio::test]
async fn a_state_whose_request_is_in_doubt_is_parked_whatever_the_plugin_makes_of_it() {
    let fake = || FakeGrants { in_doubt: vec![2], ..FakeGrants::default() };
    let parked = Verdict::Reject("may have been sent".to_string());
    let bench = SandboxBench::new(fake(), LimitsSpec::default()).await;
    let outcome = bench.run(&["done", "retry later 50", "done"]).await.unwrap();
    assert_eq!(outcome.verdicts, [Verdict::Done, parked.clone(), Verdict::Done]);
    assert!(outcome.is_apart && bench.record().committed.is_empty(), "the others come again without it");
    // This applies to a failed call once the state is alone in it.
    assert!(matches!(bench.run(&["done", "trap"]).await, Err(CallError::Trap(_))));
    let fake = FakeGrants { applied: HashSet::from([1]), ..fake() };
    let bench = SandboxBench::new(fake, LimitsSpec::default()).await;
    let outcome = bench.run(&["done", "trap"]).await.unwrap();
    assert_eq!(outcome.verdicts, [Verdict::Done, parked]);
    assert_eq!(
        *outcome.kv,
        [KvWrite { key: "2".to_string(), value: None }],
        "its notes end with the verdict"
    );
    assert_eq!(bench.record().rolled_back, 1);
}

#[tokio::test]
async fn a_batch_of_receipts_alone_calls_nobody() {
    let fake = FakeGrants { applied: HashSet::from([1, 2]), ..FakeGrants::default() };
    let bench = SandboxBench::new(fake, LimitsSpec::default()).await;
    assert_eq!(bench.run(&["trap", "trap"]).await.unwrap().verdicts, [Verdict::Done, Verdict::Done]);
    assert_eq!(bench.plugin.count_idle(), 0);
    assert_eq!(bench.record().open, 0);
}

#[tokio::test]
async fn a_trap_is_rolled_back_and_the_next_call_has_a_fresh_instance() {
    let bench = SandboxBench::hostile("traps", "{}", LimitsSpec::default()).await;
    let done = [Verdict::Done, Verdict::Done];
    assert_eq!(bench.hand_over(2).await.unwrap().verdicts, done);
    let error = bench.hand_over(1).await.unwrap_err();
    let CallError::Trap(text) = &error else { panic!("{error:?}") };
    assert!(text.contains("one too many"), "the panic says why: {text}");
    assert_eq!((bench.record().rolled_back, bench.plugin.count_idle()), (1, 0));
    assert_eq!(bench.hand_over(2).await.unwrap().verdicts, done, "the next one counts anew");
    // The failure is in the middle of a batch.
    bench.hand_over(1).await.unwrap_err();
    assert!(matches!(bench.hand_over(4).await, Err(CallError::Trap(_))));
    let record = bench.record();
    assert_eq!((record.rolled_back, record.committed.len()), (3, 2));
}

#[tokio::test]
async fn an_exit_ends_the_call_and_not_the_host() {
    let bench = SandboxBench::hostile("exits", "{}", LimitsSpec::default()).await;
    let error = bench.hand_over(1).await.unwrap_err();
    assert!(matches!(&error, CallError::Trap(text) if text.contains("exited with")), "{error:?}");
}

#[tokio::test]
async fn a_wrong_number_of_verdicts_is_refused_with_both_numbers() {
    for (name, states, expected) in [
        ("too_few_verdicts", 3, "2 verdicts for 3 states"),
        ("too_few_verdicts", 1, "0 verdicts for 1 states"),
        ("too_many_verdicts", 1, "2 verdicts for 1 states"),
    ] {
        let bench = SandboxBench::hostile(name, "{}", LimitsSpec::default()).await;
        assert_eq!(bench.hand_over(states).await.unwrap_err(), CallError::Protocol(expected.to_string()));
        let record = bench.record();
        assert_eq!((record.rolled_back, record.committed.len()), (1, 0));
    }
}

#[tokio::test]
async fn a_verdict_of_tomorrow_is_refused() {
    let error = SandboxBench::plain().await.run(&["other defer"]).await.unwrap_err();
    assert!(matches!(&error, CallError::Protocol(text) if text.contains("`defer`")), "{error:?}");
}

#[tokio::test]
async fn what_cannot_be_committed_is_not_done_and_not_the_plugins_fault() {
    let fake = FakeGrants {
        commit: Err(GrantError::Unavailable("database is locked".to_string())),
        ..FakeGrants::default()
    };
    let error = SandboxBench::new(fake, LimitsSpec::default()).await.run(&["done"]).await.unwrap_err();
    assert!(!error.is_plugins_fault());
    assert!(error.to_string().contains("database is locked"));
}

#[tokio::test]
async fn what_a_commit_finds_wrong_with_the_rows_can_be_found_by_splitting() {
    let undone = "the writes of this call were undone: no";
    let fake = FakeGrants { commit: Err(GrantError::Invalid(undone.to_string())), ..FakeGrants::default() };
    let error = SandboxBench::new(fake, LimitsSpec::default()).await.run(&["done"]).await.unwrap_err();
    assert!(error.is_plugins_fault() && error.to_string() == undone, "{error:?}");
}

#[tokio::test]
async fn batches_at_once_are_bounded_and_so_are_idle_instances() {
    let fake = FakeGrants { query: LONG, ..FakeGrants::default() };
    let bench = SandboxBench::new(fake, LimitsSpec { concurrency: 2, ..LimitsSpec::default() }).await;
    let runs = (0..6).map(|_| bench.run(&["sql.query main select 1"]));
    for outcome in futures::future::join_all(runs).await {
        outcome.unwrap();
    }
    assert_eq!((bench.record().most_open, bench.plugin.count_idle()), (2, 2));
}

#[tokio::test]
async fn after_a_burst_a_plugin_keeps_the_instances_that_it_goes_on_to_use_and_a_quiet_one_keeps_one() {
    let fake = FakeGrants { query: LONG, ..FakeGrants::default() };
    let bench = SandboxBench::new(fake, LimitsSpec { concurrency: 4, ..LimitsSpec::default() }).await;
    let at_once = async |calls| {
        let runs = (0..calls).map(|_| bench.run(&["sql.query main select 1"]));
        for outcome in futures::future::join_all(runs).await {
            outcome.unwrap();
        }
    };
    at_once(4).await;
    let burst = Instant::now();
    bench.plugin.drop_idle_instances(burst + IDLE_LIMIT / 2);
    assert_eq!(bench.plugin.count_idle(), 4, "another burst may be near");
    at_once(2).await;
    bench.plugin.drop_idle_instances(burst + IDLE_LIMIT);
    assert_eq!(bench.plugin.count_idle(), 2);
    bench.plugin.drop_idle_instances(burst + 100 * IDLE_LIMIT);
    assert_eq!(bench.plugin.count_idle(), 1, "a call finds one, however late it comes");
}

#[tokio::test]
async fn an_instance_is_thrown_away_after_its_last_batch() {
    let bench = SandboxBench::plain().await;
    for batch in 0..1000 {
        assert_eq!(bench.ask("count").await, batch.to_string());
    }
    assert_eq!(bench.plugin.count_idle(), 0);
    assert_eq!(bench.ask("count").await, "0");
}

#[tokio::test]
async fn a_call_that_is_given_up_midway_leaves_no_session_and_no_instance() {
    let fake = FakeGrants { query: Duration::from_secs(600), ..FakeGrants::default() };
    let bench = SandboxBench::new(fake, LimitsSpec::default()).await;
    let batch = [delivery(1, "sql.query main select 1")];
    let call = bench.plugin.handle_batch(&batch);
    assert!(tokio::time::timeout(Duration::from_millis(200), call).await.is_err());
    assert_eq!((bench.record().open, bench.plugin.count_idle()), (0, 0));
    assert_eq!(bench.ask("count").await, "0");
}

#[tokio::test]
async fn plugins_of_one_component_share_its_code_for_as_long_as_one_is_there() {
    let engine = SandboxEngine::new(EngineOptions {
        cache: None,
        compiler: ComponentCompiler::InProcess,
        is_unattended: false,
    })
    .unwrap();
    let load = async || engine.load(&probe_bytes().into(), &ComponentsSpec::default()).await.unwrap();
    let first = load().await;
    assert!(first.compile_time() > Duration::ZERO);
    let second = load().await;
    assert_eq!(second.compile_time(), Duration::ZERO);
    drop((first, second));
    assert!(load().await.compile_time() > Duration::ZERO, "nothing is kept for nobody");
}
