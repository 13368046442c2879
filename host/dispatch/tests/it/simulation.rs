//! Simulates random states, verdicts, failures, kills and replays from a seed, and checks the invariants.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kubewitness_chance::{Dice, ReplayHint, SeedPlan};
use kubewitness_core::config::{Mode, OnDeadLetter, Start};
use kubewitness_core::ports::{CallError, JournalError, StateDelivery, Verdict};
use kubewitness_core::{Seq, State};
use kubewitness_dispatch::{DispatchError, DispatchOptions, LetterSelection};

use crate::fixtures::journal::FixtureJournal;
use crate::fixtures::plugin::FixturePlugin;
use crate::{RunningDispatcher, in_simulated_time, options, start, subscribe};

const LIVES: SeedPlan = SeedPlan { test: "kills_failures", fixed: 120, fresh: 30 };

struct DispatchWorld {
    dice: Dice,
    journal: Arc<FixtureJournal>,
    plugin: Arc<FixturePlugin>,
    options: DispatchOptions,
    /// Whether dead letters were replayed, which may break the order under `continue`.
    replayed: bool,
    /// Sources come and go, so that the figures can't be foretold.
    is_changing: bool,
    /// States that retention kept for their letters and rows alone.
    needed: usize,
}

/// The result of a call in this world.
fn script(dice: &mut Dice, batch: &[StateDelivery]) -> (u64, Result<Vec<Verdict>, CallError>) {
    let takes = dice.below(20);
    // Every 29th state is poison: it traps until an operator has replayed it twice.
    if batch.iter().any(|delivery| delivery.state.seq.is_multiple_of(29) && delivery.attempt < 7) {
        return (takes, Err(CallError::Trap("poison".into())));
    }
    if dice.percent(3) {
        return (takes, Err(CallError::Unavailable("the sink is down".into())));
    }
    if dice.percent(2) {
        return (takes, Err(CallError::Timeout { limit_ms: 20 }));
    }
    let mut verdict = || match dice.below(100) {
        0..80 => Verdict::Done,
        80..95 => Verdict::Retry { after_ms: None, reason: "not yet".into() },
        95..97 => Verdict::Retry { after_ms: Some(30), reason: "in a moment".into() },
        97 => Verdict::Retry { after_ms: Some(40_000), reason: "later".into() },
        _ => Verdict::Reject("never".into()),
    };
    (takes, Ok(batch.iter().map(|_| verdict()).collect()))
}

impl DispatchWorld {
    fn new(seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        let journal = FixtureJournal::new(dice.throw(), dice.below(8));
        let calls = Mutex::new(Dice::new(dice.throw()));
        let plugin =
            FixturePlugin::new("p", &journal, move |batch| script(&mut calls.lock().unwrap(), batch));
        let mut options = options("p");
        options.subscriptions.push(subscribe("pods", Mode::Transitions, Start::Beginning));
        options.concurrency = 1 + dice.below(5) as u32;
        options.delivery.batch = 1 + dice.below(12) as u32;
        options.delivery.retries = 2;
        if dice.percent(50) {
            *plugin.receipts.lock().unwrap() = Some(BTreeMap::new());
        }
        if dice.percent(40) {
            options.delivery.on_dead_letter = OnDeadLetter::Hold;
        }
        Self { dice, journal, plugin, options, replayed: false, is_changing: false, needed: 0 }
    }

    fn append(&mut self) {
        for _ in 0..self.dice.below(30) {
            let source = ["jobs", "jobs", "pods", "nodes"][self.dice.below(4) as usize];
            let phase = if self.dice.percent(50) { "Failed" } else { "Running" };
            self.journal.append_one(source, &format!("o-{}", self.dice.below(9)), phase);
        }
    }

    /// Runs the dispatcher once, and ends it with a kill or a drain at a random moment.
    async fn live(&mut self) {
        *self.plugin.life.lock().unwrap() += 1;
        let running = start(self.options.clone(), &self.journal, &self.plugin);
        for _ in 0..self.dice.below(12) {
            *self.plugin.hides_receipts.lock().unwrap() = self.dice.percent(20);
            self.append();
            tokio::time::sleep(Duration::from_millis(self.dice.below(60))).await;
            self.check_figures(&running);
            if let Some(durable) = running.handle.durable_cursor().filter(|_| self.dice.percent(40)) {
                self.plugin.prune_receipts(durable);
            }
            if self.dice.percent(10) {
                self.replay(&running).await;
            }
            if self.dice.percent(30) {
                running.handle.resync_source(["jobs", "pods"][self.dice.below(2) as usize]);
            }
            if self.dice.percent(30) {
                self.retain();
            }
            let is_full = self.dice.percent(10);
            let refuse: fn() -> JournalError = || JournalError::Unavailable("the disk is full".into());
            self.journal.with(|kept| kept.refuse = is_full.then_some(refuse));
        }
        for _ in 0..self.dice.below(20) {
            tokio::task::yield_now().await;
        }
        if self.dice.percent(80) {
            running.kill().await;
        } else {
            running.end().await.unwrap();
        }
        self.retain();
    }

    /// A state that is removed and still owed is never handed over.
    fn retain(&mut self) {
        if !self.is_changing {
            self.needed += self.journal.retain("p");
        }
    }

    async fn replay(&mut self, running: &RunningDispatcher) {
        // A dispatcher that can't load answers nothing, so the caller gives up.
        let asked = running.handle.replay_letters(LetterSelection::All, "ada", "again");
        let Ok(answer) = tokio::time::timeout(Duration::from_secs(2), asked).await else {
            self.replayed = true;
            return;
        };
        match answer {
            Ok(count) => self.replayed |= count > 0,
            Err(DispatchError::Unavailable(_)) => {}
            Err(error) => panic!("{error}"),
        }
        self.check_figures(running);
    }

    fn subscribed(&self) -> Vec<Arc<State>> {
        self.journal.states().into_iter().filter(|state| &*state.source != "nodes").collect()
    }

    fn check_figures(&self, running: &RunningDispatcher) {
        let stats = running.stats();
        if self.is_changing {
            return;
        }
        let there = self.subscribed().len() as u64;
        assert!(stats.observed <= there, "{stats:?}, but there are {there}");
        if stats.started && stats.lag_seq == 0 {
            assert_eq!(stats.observed, there, "{stats:?}");
        }
    }

    /// Runs until everything is finished, and replays dead letters until none is left.
    async fn finish(&mut self) {
        self.journal.with(|kept| kept.refuse = None);
        *self.plugin.hides_receipts.lock().unwrap() = false;
        let running = start(self.options.clone(), &self.journal, &self.plugin);
        // Under `hold` states wait behind letters, so it is finished only when no letter is left.
        for _ in 0..5_000 {
            tokio::time::sleep(Duration::from_millis(500)).await;
            self.check_figures(&running);
            let stats = running.stats();
            if stats.waiting == 0 && stats.dead == 0 && stats.lag_seq == 0 {
                break;
            }
            self.replay(&running).await;
        }
        let stats = running.until_idle().await;
        assert_eq!(stats.dead, 0);
        assert_eq!(stats.observed, self.subscribed().len() as u64);
        running.end().await.unwrap();
        self.check_effects(stats.delivered, stats.filtered);
    }

    fn check_effects(&self, delivered: u64, filtered: u64) {
        let wanted = |state: &State| &*state.source == "jobs" || state.is_transition();
        let (wanted, unwanted): (Vec<_>, Vec<_>) =
            self.subscribed().into_iter().partition(|state| wanted(state));
        let effects = self.plugin.effects();
        let missing: Vec<Seq> =
            wanted.iter().map(|s| s.seq).filter(|seq| !effects.contains_key(seq)).collect();
        assert_eq!(missing, [0; 0], "never handed over");
        assert_eq!((wanted.len() as u64, unwanted.len() as u64), (delivered, filtered));
        assert_eq!(effects.len(), wanted.len(), "nothing else was");
        assert!(self.journal.with(|kept| kept.owed.is_empty()));
        if self.plugin.receipts.lock().unwrap().is_some() {
            let twice: Vec<Seq> =
                effects.into_iter().filter(|(_, times)| *times > 1).map(|(seq, _)| seq).collect();
            assert_eq!(twice, [0; 0], "took effect twice");
        }
        let kept = self.journal.with(|kept| kept.progress["p"].clone());
        assert_eq!((kept.cursor, kept.delivered, kept.dead), (self.journal.newest_seq(), delivered, 0));
        assert_eq!(self.journal.dead("p"), [0; 0]);
        self.check_order(&BTreeSet::new());
    }

    /// Checks that the first effects of one object come in order, and that later ones are repeats.
    fn check_order(&self, removed: &BTreeSet<&str>) {
        if self.replayed && self.options.delivery.on_dead_letter == OnDeadLetter::Continue {
            return;
        }
        self.plugin.with(|seen| {
            let stays = |object: &&String| !removed.iter().any(|source| object.starts_with(source));
            for applied in seen.applied.keys().filter(stays).map(|object| &seen.applied[object]) {
                let mut newest = BTreeMap::new();
                for seq in applied {
                    let fresh = newest.insert(*seq, ()).is_none();
                    assert!(
                        !fresh || newest.last_key_value() == Some((seq, &())),
                        "{seq} came late: {applied:?}"
                    );
                }
            }
        });
    }
}

#[test]
fn kills_failures_and_replays_lose_nothing_and_keep_the_order() {
    let (mut repeats, mut replays, mut owed, mut needed) = (0, 0, 0, 0);
    for seed in LIVES.list() {
        let _replay = ReplayHint { package: "kubewitness-dispatch", test: LIVES.test, seed };
        in_simulated_time(async {
            let mut world = DispatchWorld::new(seed);
            for _ in 0..1 + world.dice.below(6) {
                world.live().await;
                owed += world.journal.with(|kept| kept.owed.len());
            }
            world.finish().await;
            repeats += world.plugin.effects().values().filter(|times| **times > 1).count();
            replays += usize::from(world.replayed);
            needed += world.needed;
        });
    }
    if LIVES.include_fixed() {
        assert!(
            repeats > 0 && replays > 0 && owed > 0 && needed > 0,
            "the rare paths were taken: {repeats} repeats, {replays} replays, {owed} owed after a kill, {needed} kept"
        );
    }
}

const SUBSCRIPTIONS: SeedPlan = SeedPlan { test: "sources_are_added", fixed: 120, fresh: 30 };

const SOURCES: [&str; 3] = ["jobs", "pods", "nodes"];

impl DispatchWorld {
    /// Adds sources with random beginnings, and removes others, which are noted.
    fn change_sources(&mut self, removed: &mut BTreeSet<&str>) {
        for name in SOURCES {
            let at = self.options.subscriptions.iter().position(|subscription| &*subscription.source == name);
            let newest = self.journal.newest_seq();
            match at {
                Some(at) if self.dice.percent(20) && self.options.subscriptions.len() > 1 => {
                    self.options.subscriptions.remove(at);
                    removed.insert(name);
                }
                None if self.dice.percent(50) => {
                    let begins = match self.dice.below(3) {
                        0 => Start::Beginning,
                        1 => Start::Position(1 + self.dice.below(newest + 1)),
                        _ => Start::Now,
                    };
                    self.options.subscriptions.push(subscribe(name, Mode::Every, begins));
                }
                _ => {}
            }
        }
    }

    /// Checks what took effect against the saved subscriptions. A state that waited when its source was removed is
    /// filtered. One that took effect just before a kill and a removal is not known to the progress.
    fn check_changed(&self, removed: &BTreeSet<&str>, delivered: u64, filtered: u64) {
        let kept = self.journal.with(|kept| kept.progress["p"].clone());
        let states = self.journal.states();
        let is_covered = |state: &State| kept.sources.iter().any(|start| start.covers_state(state));
        let effects = self.plugin.effects();
        for state in &states {
            let is_done = effects.contains_key(&state.seq);
            let is_clear = is_done == is_covered(state) || removed.contains(&*state.source);
            assert!(is_clear, "{} of {}: {is_done}, {kept:?}", state.seq, state.source);
        }
        let covered = states.iter().filter(|state| is_covered(state)).count() as u64;
        assert_eq!(delivered + filtered, covered, "{kept:?}");
        assert!(kept.former_cursors.is_empty() && kept.cursor == self.journal.newest_seq(), "{kept:?}");
        self.check_order(removed);
    }
}

#[test]
fn sources_are_added_and_removed_amid_kills_and_each_state_comes_in_order() {
    let mut went_back = 0;
    for seed in SUBSCRIPTIONS.list() {
        let _replay = ReplayHint { package: "kubewitness-dispatch", test: SUBSCRIPTIONS.test, seed };
        in_simulated_time(async {
            let mut world = DispatchWorld::new(seed);
            world.is_changing = true;
            world.options.delivery.on_dead_letter = OnDeadLetter::Hold;
            world.options.subscriptions = vec![subscribe("jobs", Mode::Every, Start::Beginning)];
            let mut removed = BTreeSet::new();
            for _ in 0..2 + world.dice.below(8) {
                world.append();
                world.live().await;
                let formers = world.journal.with(|kept| Some(kept.progress.get("p")?.former_cursors.len()));
                went_back += formers.unwrap_or_default();
                world.change_sources(&mut removed);
            }
            world.journal.with(|kept| kept.refuse = None);
            *world.plugin.hides_receipts.lock().unwrap() = false;
            let running = start(world.options.clone(), &world.journal, &world.plugin);
            for _ in 0..5_000 {
                tokio::time::sleep(Duration::from_millis(500)).await;
                let stats = running.stats();
                if stats.started && stats.waiting == 0 && stats.dead == 0 && stats.lag_seq == 0 {
                    break;
                }
                world.replay(&running).await;
            }
            let stats = running.until_idle().await;
            running.end().await.unwrap();
            world.check_changed(&removed, stats.delivered, stats.filtered);
        });
    }
    if SUBSCRIPTIONS.include_fixed() {
        assert!(went_back > 0, "the cursor went back");
    }
}
