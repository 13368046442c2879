//! The rows of the table of faults that need no disk and no process, each by itself, over seeds.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kubewitness_chance::SeedPlan;
use kubewitness_core::config::Mode;
use kubewitness_core::limits;
use kubewitness_core::ports::{AppendBatch, WitnessedState};
use kubewitness_core::{Change, ObjectRef, Seq, StateId, Version};
use kubewitness_dispatch::{DispatchOptions, LongestPauses};
use kubewitness_faults::Marks;

use crate::bugs::PlantedBug;
use crate::plugin::PluginNature;
use crate::seeds::{SeedRun, finish, must_hold, replay, run, run_while, simulated};
use crate::steps::StepClock;
use crate::story::status;
use crate::world::{SimulatedWorld, delivery, subscription};

fn seeds(test: &'static str, fixed: u64) -> Vec<u64> {
    SeedPlan { test, fixed, fresh: fixed.div_ceil(4) }.list()
}

/// One that does all that it is asked.
const GOOD: PluginNature = PluginNature { poison: 1 << 40, trouble: 0, slow: 3, polite: false };

fn row(test: &'static str, marks: &Marks, story: &impl AsyncFn(&mut SimulatedWorld)) {
    for seed in seeds(test, 40) {
        let replay = replay(test, seed);
        let ran = simulated(async {
            let steps = StepClock::new(seed, marks.clone(), PlantedBug::None);
            let mut world = SimulatedWorld::random(&steps);
            story(&mut world).await;
            if steps.found_faults().is_empty() {
                finish(&mut world).await;
            }
            SeedRun { found: steps.found_faults(), trace: steps.trace() }
        });
        drop(replay);
        must_hold(test, seed, &ran);
    }
}

/// States come until the process dies of a step.
async fn dies_at(world: &mut SimulatedWorld, step: &'static str) {
    let steps = Arc::clone(&world.steps);
    world.start();
    steps.dies_at(step, steps.dice(|dice| dice.below(12)) as u32);
    // A plugin that never comes to such a step dies of nothing.
    for _ in 0..200 {
        {
            let mut cluster = world.cluster.lock().unwrap();
            steps.dice(|dice| cluster.happens(dice));
        }
        tokio::select! {
            biased;
            () = steps.died() => break,
            () = tokio::time::sleep(Duration::from_millis(15)) => {}
        }
    }
    assert!(steps.is_dead(), "it never came to `{step}`");
    world.crash().await;
}

#[test]
fn row_24_killed_before_the_commit_it_is_witnessed_again() {
    let marks = Marks::default();
    row("row_24", &marks, &async |world: &mut SimulatedWorld| {
        for step in ["append: asked", "append: in the log"] {
            dies_at(world, step).await;
        }
    });
    assert!(marks.missing(&["a crash lost what was in the log"]).is_empty());
}

#[test]
fn row_25_killed_after_the_commit_it_is_dispatched_by_the_next() {
    let marks = Marks::default();
    row("row_25", &marks, &async |world: &mut SimulatedWorld| {
        for step in ["append: durable", "append: acknowledged", "read: states", "call: begun"] {
            dies_at(world, step).await;
        }
    });
}

#[test]
fn row_26_killed_after_the_effect_its_receipt_stops_a_second_one() {
    let marks = Marks::default();
    let steps = ["sink: committing", "sink: committed", "sink: answered", "save: asked", "save: in the log"];
    row("row_26", &marks, &async |world: &mut SimulatedWorld| {
        for step in steps {
            dies_at(world, step).await;
        }
    });
    let wanted = ["a receipt stopped a second effect", "a commit was done unheard"];
    assert!(marks.missing(&wanted).is_empty(), "{:?}", marks.missing(&wanted));
}

#[test]
fn row_27_killed_while_a_relist_is_compared_it_compares_again() {
    let marks = Marks::default();
    row("row_27", &marks, &async |world: &mut SimulatedWorld| {
        let steps = Arc::clone(&world.steps);
        dies_at(world, "append: durable").await;
        for _ in 0..3 {
            {
                let mut cluster = world.cluster.lock().unwrap();
                for _ in 0..40 {
                    steps.dice(|dice| cluster.happens(dice));
                }
                let back = steps.dice(|dice| dice.below(20));
                let version = cluster.version - back;
                cluster.compact(steps.tick(), version);
            }
            dies_at(world, "relist: an object compared").await;
        }
    });
    assert!(marks.missing(&["versions were compacted"]).is_empty());
}

#[test]
fn row_30_the_wall_clock_jumps_an_hour_either_way_and_nothing_changes() {
    const HOUR_MS: i64 = 3_600_000;
    for seed in seeds("row_30", 20) {
        let _replay = replay("row_30", seed);
        let still = run(seed, &Marks::default(), PlantedBug::None);
        let jumping = run_while(seed, &Marks::default(), PlantedBug::None, async |steps| {
            let mut ahead = false;
            loop {
                tokio::time::sleep(Duration::from_millis(170)).await;
                ahead = !ahead;
                steps.jump(if ahead { 2 * HOUR_MS } else { -3 * HOUR_MS });
            }
        });
        assert_eq!(still.trace, jumping.trace, "seed {seed}");
        must_hold("row_30", seed, &jumping);
    }
}

// ---- many states -------------------------------------------------------------------------

/// So many objects take turns.
const OBJECTS: u64 = 500;

fn witnessed(number: u64) -> WitnessedState {
    let object = number % OBJECTS;
    let object = Arc::new(ObjectRef {
        kind: "Job".into(),
        namespace: format!("team-{}", object % 7),
        name: format!("job-{object}"),
        uid: format!("uid-{object}"),
        ..ObjectRef::default()
    });
    let version = Version::new(&number.to_string());
    WitnessedState {
        id: StateId::of("jobs", 0, &object, Change::Present, &version, None),
        change: Change::Present,
        object,
        owner: None,
        controller: None,
        resource_version: version,
        status: status(number),
        previous: None,
        observed_ms: number,
        document: Default::default(),
        base: None,
        quotes_none_under: None,
    }
}

fn options(name: &str, batch: u32) -> DispatchOptions {
    DispatchOptions {
        plugin: name.into(),
        subscriptions: vec![subscription("jobs", Mode::Every)],
        delivery: delivery(batch, false),
        concurrency: 4,
        tick: None,
        pauses: LongestPauses::default(),
    }
}

/// States that somebody beside the journal holds.
fn held(world: &SimulatedWorld) -> usize {
    world.store.disk(|disk| disk.states.values().filter(|state| Arc::strong_count(state) > 1).count())
}

struct SimulatedHour {
    /// How long a state takes to the plugin whose sink is there, at most.
    slowest: Duration,
    /// States in memory, at most.
    held: usize,
}

/// An hour in which states come all the time; `down`: one of the two sinks isn't there.
async fn hour(world: &mut SimulatedWorld, states: u64, down: bool) -> SimulatedHour {
    const SECONDS: u64 = 3600;
    world.plugins[0].sink.down(down);
    world.start();
    let (mut came, mut hour) = (0, SimulatedHour { slowest: Duration::ZERO, held: 0 });
    for second in 1..=SECONDS {
        let until = states * second / SECONDS;
        let append = AppendBatch {
            source: "jobs".into(),
            states: (came + 1..=until).map(witnessed).collect(),
            ..AppendBatch::default()
        };
        came = until;
        let since = world.steps.clock.elapsed_now();
        world.store.fill(append);
        while world.plugins[1].sink.count() < came as usize {
            tokio::time::sleep(Duration::from_millis(1)).await;
            assert!(world.steps.clock.elapsed_now() - since < Duration::from_secs(60), "it flows");
        }
        hour.slowest = hour.slowest.max(world.steps.clock.elapsed_now() - since);
        if second % 600 == 0 {
            hour.held = hour.held.max(held(world));
        }
        tokio::time::sleep(Duration::from_secs(1).saturating_sub(world.steps.clock.elapsed_now() - since))
            .await;
    }
    hour
}

#[test]
fn row_37_a_sink_that_is_down_for_an_hour_costs_nobody_else_and_then_drains_in_order() {
    const STATES: u64 = 40_000;
    // All of it comes back at the speed of its calls: four at once, of 64 states, in a few ms each.
    const DRAINED_WITHIN: Duration = Duration::from_secs(60);
    let lived = |down| {
        simulated(async move {
            let steps = StepClock::new(37, Marks::default(), PlantedBug::None);
            let mut world = SimulatedWorld::empty(&steps);
            world.plug(GOOD, true, options("down", 64));
            world.plug(GOOD, true, options("other", 64));
            let hour = hour(&mut world, STATES, down).await;
            world.plugins[0].sink.down(false);
            let since = steps.clock.elapsed_now();
            while world.plugins[0].sink.count() < STATES as usize {
                tokio::time::sleep(Duration::from_millis(100)).await;
                assert!(steps.clock.elapsed_now() - since < DRAINED_WITHIN, "it drains");
            }
            world.settles().await;
            let trace = steps.trace();
            must_hold("row_37", 37, &SeedRun { found: steps.found_faults(), trace });
            hour
        })
    };
    let (healthy, down) = (lived(false), lived(true));
    // The windows of both plugins, and what they have in calls.
    let bound = 2 * (limits::LANE_WINDOW + 4 * 64);
    assert!(down.held > limits::LANE_WINDOW / 2 && down.held <= bound, "{} states were held", down.held);
    let (fast, slow) = (healthy.slowest, down.slowest);
    assert!(slow <= fast + Duration::from_millis(2), "the other's lag grew from {fast:?} to {slow:?}");
}

#[test]
fn row_38_poison_is_parked_after_its_tries_and_no_other_plugin_notices() {
    let lived = |seed, poison| {
        simulated(async move {
            let steps = StepClock::new(seed, Marks::default(), PlantedBug::None);
            let mut world = SimulatedWorld::empty(&steps);
            world.plug(PluginNature { poison, ..GOOD }, true, options("broken", 8));
            world.plug(PluginNature { slow: 0, ..GOOD }, false, options("other", 8));
            world.start();
            for part in 0..20 {
                let states = (part * 50 + 1..=(part + 1) * 50).map(witnessed).collect();
                world.store.fill(AppendBatch { source: "jobs".into(), states, ..AppendBatch::default() });
                tokio::time::sleep(Duration::from_millis(40)).await;
            }
            world.settles().await;
            must_hold("row_38", seed, &SeedRun { found: steps.found_faults(), trace: steps.trace() });
            let letters = world.store.disk(|disk| disk.kept_progress("broken").letters);
            let others: Vec<Seq> = world.store.disk(|disk| {
                let effects = world.plugins[1].sink.effects();
                effects.iter().map(|effect| disk.seq(&effect.id)).collect()
            });
            (letters, others)
        })
    };
    for seed in seeds("row_38", 6) {
        let ((healthy, before), (letters, after)) = (lived(seed, 1 << 40), lived(seed, 9));
        assert!(healthy.is_empty() && letters.len() > 20, "{} were parked", letters.len());
        let tried = |letter: &kubewitness_core::ports::DeadLetter| match letter.error.as_str() {
            "never" => letter.attempts == 1,
            _ => letter.attempts == 3,
        };
        assert!(letters.values().all(tried), "{letters:?}");
        assert_eq!(before.len(), after.len(), "seed {seed}");
    }
}

#[test]
fn row_39_states_that_come_while_their_lane_is_in_a_call_and_it_is_stopped_are_all_handed_over() {
    let marks = Marks::default();
    row("row_39", &marks, &async |world: &mut SimulatedWorld| {
        let steps = Arc::clone(&world.steps);
        for plugin in &world.plugins {
            plugin.calm.store(true, Ordering::Relaxed);
        }
        for _ in 0..4 {
            world.start();
            for _ in 0..steps.dice(|dice| dice.between(1, 30)) {
                {
                    // All of one object, so that each comes while its lane is in a call.
                    let mut cluster = world.cluster.lock().unwrap();
                    let ends = steps.dice(|dice| dice.one_in(9));
                    cluster.write("jobs", "vision", "one", ends);
                }
                steps.pass(8).await;
            }
            world.stop(steps.dice(|dice| dice.one_in(3))).await;
        }
    });
    let wanted = ["drained with work in flight", "aborted with work in flight"];
    assert!(marks.missing(&wanted).is_empty(), "{:?}", marks.missing(&wanted));
}
