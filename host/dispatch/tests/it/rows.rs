//! Tests of the faults in rows 38 and 39 of the table, each over many seeds.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kubewitness_chance::{Dice, ReplayHint, SeedPlan};
use kubewitness_core::Seq;
use kubewitness_core::ports::{CallError, StateDelivery, Verdict};

use crate::fixtures::journal::FixtureJournal;
use crate::fixtures::plugin::{FixturePlugin, done};
use crate::{in_simulated_time, options, start};

fn over_seeds(test: &'static str, scenario: impl AsyncFn(u64)) {
    for seed in (SeedPlan { test, fixed: 30, fresh: 10 }).list() {
        let _replay = ReplayHint { package: "kubewitness-dispatch", test, seed };
        in_simulated_time(scenario(seed));
    }
}

fn assert_in_order(plugin: &FixturePlugin) {
    plugin.with(|seen| {
        for (object, applied) in &seen.applied {
            let mut told = BTreeSet::new();
            let firsts: Vec<Seq> = applied.iter().copied().filter(|seq| told.insert(*seq)).collect();
            assert!(firsts.is_sorted(), "{object}: {firsts:?}");
        }
    });
}

/// Some states trap, some loop and some exhaust memory, in every call.
fn harm(seq: Seq, stride: Seq) -> Option<CallError> {
    match seq % stride {
        0 => Some(CallError::Trap("unreachable".into())),
        7 => Some(CallError::Timeout { limit_ms: 2_000 }),
        11 => Some(CallError::Memory { limit_bytes: 64 << 20 }),
        _ => None,
    }
}

#[test]
fn row_38_a_plugin_that_traps_loops_or_eats_memory_parks_those_states_while_others_flow() {
    over_seeds("row_38", async |seed| {
        let mut dice = Dice::new(seed);
        let journal = FixtureJournal::new(dice.throw(), 1);
        let objects = 5 + dice.below(60) as usize;
        let count = 200 + dice.below(300);
        let of: Vec<usize> = (0..count).map(|_| dice.below(objects as u64) as usize).collect();
        journal.append(of);
        let stride = 23 + dice.below(40);
        let plugin = FixturePlugin::new("p", &journal, move |batch: &[StateDelivery]| {
            let error = batch.iter().find_map(|delivery| harm(delivery.state.seq, stride));
            let takes = if matches!(error, Some(CallError::Timeout { .. })) { 2_000 } else { 1 };
            (takes, error.map_or(Ok(vec![Verdict::Done; batch.len()]), Err))
        });
        let other = FixturePlugin::new("other", &journal, done);
        let mut harmed = options("p");
        harmed.delivery.retries = 1 + dice.below(3) as u32;
        harmed.delivery.batch = 1 + dice.below(64) as u32;
        harmed.concurrency = 1 + dice.below(4) as u32;
        let tries = harmed.delivery.retries + 1;
        let running = start(harmed, &journal, &plugin);
        let beside = start(options("other"), &journal, &other);
        let flows = tokio::time::Instant::now();
        beside.until_idle().await;
        assert!(flows.elapsed() < Duration::from_secs(30), "another plugin notices nothing");
        let stats = running.until_idle().await;
        let culprits: Vec<Seq> = (1..=count).filter(|seq| harm(*seq, stride).is_some()).collect();
        assert_eq!((stats.dead, stats.delivered), (culprits.len() as u64, count - culprits.len() as u64));
        running.end().await.unwrap();
        assert_eq!(journal.dead("p"), culprits, "the culprits alone");
        journal.with(|kept| {
            for letter in kept.letters.values() {
                assert_eq!((letter.attempts, letter.tries.len()), (tries, tries as usize));
                let told = harm(letter.seq, stride).unwrap().to_string();
                assert!(letter.tries.iter().all(|tried| tried.error == told), "{letter:?}");
            }
        });
        assert!(plugin.effects().values().all(|times| *times == 1));
        assert_in_order(&plugin);
    });
}

#[test]
fn row_39_states_that_arrive_while_their_lane_is_processed_outlive_a_shut_down_in_between() {
    over_seeds("row_39", async |seed| {
        let dice = Arc::new(Mutex::new(Dice::new(seed)));
        let roll = |below| dice.lock().unwrap().below(below);
        let journal = FixtureJournal::new(seed, roll(4));
        // A call takes up to a second. Meanwhile new states of its objects arrive.
        let (calls, arriving) = (dice.clone(), journal.clone());
        let plugin = FixturePlugin::new("p", &journal, move |batch: &[StateDelivery]| {
            let mut dice = calls.lock().unwrap();
            for delivery in batch {
                if dice.percent(30) && arriving.newest_seq() < 400 {
                    arriving.append_one("jobs", &delivery.state.object.name, "Failed");
                }
            }
            (dice.below(1_000), Ok(vec![Verdict::Done; batch.len()]))
        });
        for _ in 0..2 + roll(6) {
            let running = start(options("p"), &journal, &plugin);
            journal.append((0..roll(20)).map(|n| n as usize % 7));
            tokio::time::sleep(Duration::from_millis(roll(1_500))).await;
            match roll(3) {
                0 => running.kill().await,
                1 => {
                    running.abort.cancel();
                    running.end().await.unwrap();
                }
                _ => running.end().await.unwrap(),
            }
        }
        let running = start(options("p"), &journal, &plugin);
        let stats = running.until_idle().await;
        let all = journal.newest_seq();
        assert_eq!((stats.observed, stats.delivered), (all, all));
        assert_eq!(plugin.applied(), (1..=all).collect::<Vec<_>>(), "none was dropped");
        assert_in_order(&plugin);
    });
}
