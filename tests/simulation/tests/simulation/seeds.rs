//! Random lives of a process over many seeds.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kubewitness_chance::{ReplayHint, SeedPlan};
use kubewitness_faults::Marks;
use kubewitness_faults::delivery::FoundBreach;

use crate::bugs::PlantedBug;
use crate::steps::StepClock;
use crate::world::SimulatedWorld;

/// They take some seconds.
const LIVES: SeedPlan = SeedPlan { test: "whatever_dies", fixed: 300, fresh: 60 };

/// Everything that must have happened at least once over the seeds.
const SOMETIMES: &[&str] = &[
    "died at: append: asked",
    "died at: append: in the log",
    "died at: append: durable",
    "died at: append: acknowledged",
    "died at: save: asked",
    "died at: save: in the log",
    "died at: save: durable",
    "died at: save: acknowledged",
    "died at: sink: asked",
    "died at: sink: committing",
    "died at: sink: committed",
    "died at: sink: answered",
    "died at: sink: sent",
    "died at: call: begun",
    "died at: call: answered",
    "died at: read: states",
    "died at: read: single states",
    "died at: read: progress",
    "died at: read: letters",
    "died at: relist: an object compared",
    "a crash lost what was in the log",
    "a crash kept what nobody heard of",
    "a crash tore the log between two transactions",
    "one sync was for several",
    "a sync failed",
    "a relist was compared",
    "two witnessed the same",
    "a relist was overtaken by another witness",
    "versions were compacted",
    "several calls at once",
    "a retry",
    "a plugin chose its own delay",
    "a state was rejected",
    "a batch was split",
    "split until one stood alone",
    "a breaker opened",
    "an open breaker was probed",
    "a probe failed",
    "dead letters were parked",
    "dead letters were replayed",
    "a dead letter held its lane",
    "the cursor passed states that are owed",
    "a resync was handed over",
    "a receipt stopped a second effect",
    "a commit was done unheard",
    "a commit was rolled back unheard",
    "a commit was done and in doubt",
    "drained with work in flight",
    "aborted with work in flight",
    "the wall jumped",
];

/// Few steps are of these kinds: by chance alone a process seldom dies of one.
const RARE: [&str; 4] =
    ["read: single states", "read: progress", "read: letters", "relist: an object compared"];

/// In a time of its own.
pub fn simulated<T>(run: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.unwrap().block_on(run)
}

/// How much of its story a run that fails prints.
const LINES: usize = 400;

pub struct SeedRun {
    pub found: Vec<FoundBreach>,
    pub trace: Vec<String>,
}

/// Says how the seed is repeated if its run panics.
pub fn replay(test: &'static str, seed: u64) -> ReplayHint {
    ReplayHint { package: "kubewitness-simulation", test, seed }
}

/// Fails with what was found, and the end of the story.
pub fn must_hold(test: &'static str, seed: u64, ran: &SeedRun) {
    if ran.found.is_empty() {
        return;
    }
    let _replay = replay(test, seed);
    let found: Vec<_> = ran.found.iter().take(12).map(|found| format!("  {found}")).collect();
    let last = &ran.trace[ran.trace.len().saturating_sub(LINES)..];
    panic!("seed {seed}, {} breaches:\n{}\n{}", ran.found.len(), found.join("\n"), last.join("\n"));
}

pub fn run(seed: u64, marks: &Marks, bug: PlantedBug) -> SeedRun {
    run_while(seed, marks, bug, async |_| {})
}

/// With something beside it that the story doesn't tell.
pub fn run_while(seed: u64, marks: &Marks, bug: PlantedBug, beside: impl AsyncFn(Arc<StepClock>)) -> SeedRun {
    simulated(async {
        let steps = StepClock::new(seed, marks.clone(), bug);
        let story = lives(&steps);
        tokio::pin!(story);
        tokio::select! {
            biased;
            ran = &mut story => return ran,
            () = beside(Arc::clone(&steps)) => {}
        }
        story.await
    })
}

async fn lives(steps: &Arc<StepClock>) -> SeedRun {
    let mut world = SimulatedWorld::random(steps);
    for _ in 0..steps.dice(|dice| dice.between(1, 5)) {
        live(&mut world).await;
        if !steps.found_faults().is_empty() {
            break;
        }
    }
    if steps.found_faults().is_empty() {
        finish(&mut world).await;
    }
    SeedRun { found: steps.found_faults(), trace: steps.trace() }
}

/// One life of the process, to one of its ends.
async fn live(world: &mut SimulatedWorld) {
    let steps = Arc::clone(&world.steps);
    world.start();
    if steps.dice(|dice| dice.percent(60)) {
        steps.dies_after(steps.dice(|dice| dice.below(600)) as u32);
    } else if steps.dice(|dice| dice.percent(25)) {
        let step = RARE[steps.dice(|dice| dice.below(RARE.len() as u64)) as usize];
        steps.dies_at(step, steps.dice(|dice| dice.below(4)) as u32);
    }
    for _ in 0..steps.dice(|dice| dice.between(1, 12)) {
        meddle(world).await;
        let longest = if steps.dice(|dice| dice.one_in(4)) { 3000 } else { 60 };
        let wait = steps.dice(|dice| dice.below(longest));
        tokio::select! {
            biased;
            () = steps.died() => break,
            () = tokio::time::sleep(Duration::from_millis(wait)) => {}
        }
        look(world);
        if steps.is_dead() || world.has_ended() {
            break;
        }
    }
    match steps.dice(|dice| dice.below(4)) {
        _ if steps.is_dead() || world.has_ended() => world.crash().await,
        0 => world.crash().await,
        1 => world.stop(true).await,
        _ => world.stop(false).await,
    }
    // The cluster goes on without us.
    let mut cluster = world.cluster.lock().unwrap();
    for _ in 0..steps.dice(|dice| dice.below(20)) {
        steps.dice(|dice| cluster.happens(dice));
    }
    if steps.dice(|dice| dice.percent(30)) {
        let back = steps.dice(|dice| dice.below(12));
        let version = cluster.version.saturating_sub(back);
        cluster.compact(steps.tick(), version);
    }
}

fn look(world: &mut SimulatedWorld) {
    let marks = world.steps.marks.clone();
    for number in 0..world.plugins.len() {
        if let Some(running) = &world.running()[number] {
            let open = running.handle.dispatch_stats().open;
            marks.when(open, "a breaker opened");
            world.plugins[number].open.store(open, Ordering::Relaxed);
        }
    }
}

/// Something happens to it, or to what it depends on.
async fn meddle(world: &mut SimulatedWorld) {
    let steps = Arc::clone(&world.steps);
    for _ in 0..steps.dice(|dice| dice.below(14)) {
        let mut cluster = world.cluster.lock().unwrap();
        steps.dice(|dice| cluster.happens(dice));
    }
    let number = steps.dice(|dice| dice.below(world.plugins.len() as u64)) as usize;
    match steps.dice(|dice| dice.below(20)) {
        // Nothing else shows this bug, and only if the save has the letter of a state.
        _ if steps.bug == PlantedBug::NeverSettles => exchange_on_slow_disk(world, number).await,
        0 | 1 => world.plugins[number].sink.down(true),
        2 | 3 => world.plugins.iter().for_each(|plugin| plugin.sink.down(false)),
        4 => world.store.refuses(true),
        5 | 6 => world.store.refuses(false),
        7 => world.store.slow(steps.dice(|dice| dice.one_in(2))),
        8 => {
            let ahead = steps.dice(|dice| dice.one_in(2));
            steps.jump(if ahead { 3_600_000 } else { -3_600_000 });
            steps.marks.when(true, "the wall jumped");
        }
        9 | 10 => world.replay(number).await,
        11 | 12 => {
            if let Some(running) = &world.running()[number] {
                running.handle.resync_source(if steps.dice(|dice| dice.one_in(2)) { "jobs" } else { "pods" });
            }
        }
        13 => world.exchange(number, steps.dice(|dice| dice.one_in(3))).await,
        16 => exchange_on_slow_disk(world, number).await,
        14 if steps.dice(|dice| dice.one_in(3)) => world.store.next_sync_fails(),
        15 => {
            let healed = steps.dice(|dice| dice.one_in(3));
            world.plugins[number].healed.store(healed, Ordering::Relaxed);
        }
        _ => {}
    }
}

/// On a disk that is slow, its last save is given up before it is done.
async fn exchange_on_slow_disk(world: &mut SimulatedWorld, number: usize) {
    world.store.slow(true);
    world.exchange(number, true).await;
    world.store.slow(false);
}

/// Nothing fails any more: it settles, what was parked is taken back, and all is accounted for.
pub async fn finish(world: &mut SimulatedWorld) {
    world.calm();
    world.start();
    world.settles().await;
    for plugin in &world.plugins {
        plugin.healed.store(true, Ordering::Relaxed);
    }
    for number in 0..world.plugins.len() {
        world.replay(number).await;
    }
    world.settles().await;
    for account in world.accounts(true) {
        if !account.letters.is_empty() && world.steps.found_faults().is_empty() {
            let about = format!("{}: {:?} are still parked", account.plugin, account.letters);
            world.steps.find(kubewitness_faults::delivery::DeliveryBreach::Late, about);
        }
    }
    world.stop(false).await;
    for account in world.accounts(true) {
        world.steps.find_all(account.judge());
    }
}

#[test]
fn whatever_dies_nothing_is_lost_reordered_or_applied_twice() {
    let marks = Marks::default();
    for seed in LIVES.list() {
        let replay = replay(LIVES.test, seed);
        let ran = run(seed, &marks, PlantedBug::None);
        drop(replay);
        must_hold(LIVES.test, seed, &ran);
    }
    if LIVES.include_fixed() {
        let never = marks.missing(SOMETIMES);
        assert!(never.is_empty(), "over all seeds this never happened: {never:#?}");
    }
}

#[test]
fn the_same_seed_is_the_same_story() {
    for seed in (SeedPlan { test: "the_same_seed", fixed: 20, fresh: 5 }).list() {
        let (one, other) =
            (run(seed, &Marks::default(), PlantedBug::None), run(seed, &Marks::default(), PlantedBug::None));
        let differs = one.trace.iter().zip(&other.trace).position(|(one, other)| one != other);
        assert!(one.trace.len() > 5, "seed {seed} has a story: {:?}", one.trace);
        if let Some(at) = differs {
            panic!("seed {seed} differs at {at}: {} and {}", one.trace[at], other.trace[at]);
        }
        assert_eq!(one.trace.len(), other.trace.len(), "seed {seed}");
    }
}
