//! One cluster, one journal, three plugins with their sinks, and a process that lives and dies.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kubewitness_core::config::{DeliverySpec, Mode, OnDeadLetter, Start};
use kubewitness_core::ports::JournalError;
use kubewitness_dispatch::{
    DispatchError, DispatchHandle, DispatchOptions, LetterSelection, LongestPauses, PluginDispatcher,
    SourceSubscription,
};
use kubewitness_faults::delivery::{DeliveryBreach, DueState, PluginAccount};
use kubewitness_faults::{Dice, JournalRecord, ServerTruth, judge};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::bugs::PlantedBug;
use crate::journal::disk::SimulatedDisk;
use crate::journal::store::SimulatedStore;
use crate::plugin::{PluginNature, SimulatedPlugin};
use crate::sink::SimulatedSink;
use crate::steps::StepClock;
use crate::story::{SOURCES, SimulatedCluster};
use crate::watcher::SimulatedWatcher;

/// How often it is looked whether all is quiet: at first, and at most.
const POLL: Duration = Duration::from_millis(50);
const LONGEST_POLL: Duration = Duration::from_secs(5);
/// The longest pause of a breaker: each state that fails may have to wait for one.
const BREAKER_PAUSE: Duration = Duration::from_secs(10);
/// The time that recovery may take beside that.
const RECOVERY: Duration = Duration::from_secs(120);
const RETRIES: u32 = 2;
/// An operator's.
const PATIENCE: Duration = Duration::from_secs(20);

/// One plugin's dispatcher.
pub struct RunningDispatcher {
    pub handle: DispatchHandle,
    drain: CancellationToken,
    abort: CancellationToken,
    task: JoinHandle<Result<(), DispatchError>>,
}

/// A process.
pub struct ProcessLife {
    watchers: Vec<JoinHandle<JournalError>>,
    pub running: Vec<Option<RunningDispatcher>>,
}

pub struct SimulatedWorld {
    pub steps: Arc<StepClock>,
    pub cluster: Arc<Mutex<SimulatedCluster>>,
    pub store: Arc<SimulatedStore>,
    pub plugins: Vec<Arc<SimulatedPlugin>>,
    pub options: Vec<DispatchOptions>,
    pub life: Option<ProcessLife>,
    /// Whether states come from the cluster.
    watches: bool,
    /// Who witness each source at the same time, each at its own pace.
    witnesses: usize,
    lives: u32,
    killed: bool,
}

pub fn subscription(source: &str, mode: Mode) -> SourceSubscription {
    SourceSubscription {
        source: source.into(),
        mode,
        filter: None,
        replay_rate: None,
        start: Start::Beginning,
        resync: true,
    }
}

pub fn delivery(batch: u32, hold: bool) -> DeliverySpec {
    DeliverySpec {
        batch,
        retries: RETRIES,
        backoff: kubewitness_core::config::Duration(Duration::from_millis(50)),
        max_backoff: kubewitness_core::config::Duration(Duration::from_secs(1)),
        on_dead_letter: if hold { OnDeadLetter::Hold } else { OnDeadLetter::Continue },
        ..DeliverySpec::default()
    }
}

/// The account of one plugin as the disk and its sink have it.
pub fn account(
    disk: &SimulatedDisk,
    plugin: &SimulatedPlugin,
    options: &DispatchOptions,
    quiet: bool,
) -> PluginAccount {
    let kept = disk.kept_progress(&plugin.name);
    let progress = kept.progress.unwrap_or_default();
    let mode = |source: &str| options.subscriptions.iter().find(|s| &*s.source == source).map(|s| s.mode);
    let states =
        disk.states.values().filter(|state| progress.sources.iter().any(|start| start.covers_state(state)));
    let due = states.map(|state| DueState {
        seq: state.seq,
        id: state.id.clone(),
        lane: format!("{}/{}/{}", state.source, state.object.namespace, state.object.name),
        wanted: match mode(&state.source) {
            Some(Mode::Transitions) => state.is_transition(),
            Some(_) => true,
            None => false,
        },
    });
    PluginAccount {
        plugin: plugin.name.clone(),
        due: due.collect(),
        effects: plugin.sink.effects(),
        letters: kept.letters.values().map(|letter| (letter.seq, letter.replaying)).collect(),
        owed: kept.owed,
        ever_parked: kept.ever_parked,
        progress,
        once: plugin.sink.once,
        hold: options.delivery.on_dead_letter == OnDeadLetter::Hold,
        quiet,
    }
}

impl SimulatedWorld {
    /// Nobody is there yet.
    pub fn empty(steps: &Arc<StepClock>) -> Self {
        let store = SimulatedStore::new(steps);
        Self {
            steps: Arc::clone(steps),
            cluster: Arc::default(),
            store,
            plugins: Vec::new(),
            options: Vec::new(),
            life: None,
            watches: false,
            witnesses: 1,
            lives: 0,
            killed: false,
        }
    }

    /// Three plugins as the seed wants them.
    pub fn random(steps: &Arc<StepClock>) -> Self {
        let witnesses = if steps.dice(|dice| dice.one_in(3)) { 2 } else { 1 };
        steps.marks.when(witnesses > 1, "two witnessed the same");
        let mut world = Self { watches: true, witnesses, ..Self::empty(steps) };
        world.store.set_witnesses(witnesses);
        for name in ["rows", "requests", "third"] {
            let once = name != "requests" && (name == "rows" || steps.dice(|dice| dice.one_in(2)));
            let nature = steps.dice(|dice| PluginNature {
                poison: [9, 14, 30, 1 << 40][dice.below(4) as usize],
                trouble: [0, 2, 10][dice.below(3) as usize],
                slow: [1, 8, 60][dice.below(3) as usize],
                polite: dice.one_in(3),
            });
            let options = steps.dice(|dice| random_options(name, dice));
            world.plug(nature, once, options);
        }
        world.look_at_saves();
        world
    }

    pub fn plug(&mut self, nature: PluginNature, once: bool, options: DispatchOptions) {
        let sink = SimulatedSink::new(&self.steps, once);
        self.plugins.push(SimulatedPlugin::new(&options.plugin, nature, sink, &self.steps));
        self.options.push(options);
    }

    /// Checks at every moment that the durable progress of a plugin is true.
    pub fn look_at_saves(&self) {
        let (plugins, options) = (self.plugins.clone(), self.options.clone());
        let steps = Arc::clone(&self.steps);
        self.store.watch(move |disk, name| {
            let pair = plugins.iter().zip(&options).find(|(plugin, _)| plugin.name == name);
            if let Some((plugin, options)) = pair {
                steps.find_all(account(disk, plugin, options, false).judge());
            }
        });
    }

    // ---- the process ---------------------------------------------------------------------

    pub fn start(&mut self) {
        assert!(self.life.is_none(), "it lives");
        self.lives += 1;
        self.steps.lives();
        self.steps.write_down(|| format!("life {} begins", self.lives));
        let sources = (0..self.witnesses).flat_map(|_| SOURCES);
        let watchers = sources.map(|source| {
            let watcher = SimulatedWatcher {
                source,
                cluster: Arc::clone(&self.cluster),
                store: Arc::clone(&self.store),
                steps: Arc::clone(&self.steps),
            };
            tokio::spawn(watcher.run())
        });
        self.life = Some(ProcessLife { watchers: watchers.collect(), running: Vec::new() });
        for number in 0..self.plugins.len() {
            let running = self.dispatch(number);
            self.running().push(Some(running));
        }
    }

    pub fn running(&mut self) -> &mut Vec<Option<RunningDispatcher>> {
        &mut self.life.as_mut().expect("it lives").running
    }

    fn dispatch(&self, number: usize) -> RunningDispatcher {
        let (plugin, mut options) = (Arc::clone(&self.plugins[number]), self.options[number].clone());
        if self.steps.bug == PlantedBug::IgnoresMode {
            options.subscriptions.iter_mut().for_each(|subscription| subscription.mode = Mode::Every);
        }
        // What the one before had not kept, this one hands over again.
        plugin.life.fetch_add(1, Ordering::Relaxed);
        let (drain, abort) = (CancellationToken::new(), CancellationToken::new());
        let clock = Arc::clone(&self.steps.clock);
        let (dispatcher, handle) =
            PluginDispatcher::new(options, Arc::clone(&self.store) as _, plugin, clock);
        let task = tokio::spawn(dispatcher.run(drain.clone(), abort.clone()));
        RunningDispatcher { handle, drain, abort, task }
    }

    /// As SIGKILL or a power cut does it.
    pub async fn crash(&mut self) {
        self.steps.dies();
        self.killed = true;
        let Some(life) = self.life.take() else { return };
        for watcher in &life.watchers {
            watcher.abort();
        }
        for running in life.running.iter().flatten() {
            running.task.abort();
        }
        for watcher in life.watchers {
            drop(watcher.await);
        }
        for running in life.running.into_iter().flatten() {
            drop(running.task.await);
        }
        self.store.crash();
        for plugin in &self.plugins {
            plugin.sink.crash();
        }
        self.steps.write_down(|| "crashed".into());
        self.check_the_journal(false);
    }

    /// In good order, or at once.
    pub async fn stop(&mut self, at_once: bool) {
        for number in 0..self.plugins.len() {
            self.unplug(number, at_once).await;
        }
        let Some(life) = self.life.take() else { return };
        for watcher in &life.watchers {
            watcher.abort();
        }
        for watcher in life.watchers {
            drop(watcher.await);
        }
        if self.steps.is_dead() || self.store.is_in_doubt() {
            self.crash_the_rest();
        } else {
            self.store.close();
        }
        self.steps.write_down(|| "stopped".into());
    }

    /// It died while it was stopped.
    fn crash_the_rest(&mut self) {
        self.killed = true;
        self.store.crash();
        for plugin in &self.plugins {
            plugin.sink.crash();
        }
    }

    /// Ends one plugin's dispatcher.
    async fn unplug(&mut self, number: usize, at_once: bool) {
        let busy = self.plugins[number].in_flight() > 0;
        let Some(mut running) = self.running()[number].take() else { return };
        let marks = &self.steps.marks;
        marks.when(busy && !at_once, "drained with work in flight");
        marks.when(busy && at_once, "aborted with work in flight");
        running.drain.cancel();
        if at_once {
            running.abort.cancel();
        }
        let ended = tokio::select! {
            biased;
            () = self.steps.died() => {
                running.task.abort();
                drop((&mut running.task).await);
                return;
            }
            ended = &mut running.task => ended,
        };
        if let Err(error) = ended {
            std::panic::resume_unwind(error.into_panic());
        }
    }

    /// Another version takes a plugin's place in the same process.
    pub async fn exchange(&mut self, number: usize, at_once: bool) {
        self.steps.write_down(|| format!("plugin {number} is exchanged"));
        self.unplug(number, at_once).await;
        let running = self.dispatch(number);
        self.running()[number] = Some(running);
    }

    pub async fn replay(&mut self, number: usize) {
        let Some(running) = &self.running()[number] else { return };
        let (handle, steps) = (running.handle.clone(), Arc::clone(&self.steps));
        let asked = async {
            // It waits for a journal that can't be read, and is refused by one that ended.
            let asked = handle.replay_letters(LetterSelection::All, "operator", "mended");
            tokio::time::timeout(PATIENCE, asked).await.map_or(0, Result::unwrap_or_default)
        };
        let replayed = tokio::select! {
            biased;
            () = steps.died() => 0,
            replayed = asked => replayed,
        };
        self.steps.marks.when(replayed > 0, "dead letters were replayed");
    }

    /// Whether something ended by itself, as it must when the journal is in doubt.
    pub fn has_ended(&self) -> bool {
        let Some(life) = &self.life else { return true };
        life.watchers.iter().any(JoinHandle::is_finished)
            || life.running.iter().flatten().any(|running| running.task.is_finished())
    }

    // ---- the judgement -------------------------------------------------------------------

    pub fn accounts(&self, quiet: bool) -> Vec<PluginAccount> {
        let each = self.plugins.iter().zip(&self.options);
        self.store.disk(|disk| each.map(|(plugin, options)| account(disk, plugin, options, quiet)).collect())
    }

    /// Checks that what was witnessed is what happened.
    pub fn check_the_journal(&self, quiet: bool) {
        if !self.watches {
            return;
        }
        for source in SOURCES {
            let history = {
                let mut cluster = self.cluster.lock().unwrap();
                cluster.stories.entry(source).or_default().history()
            };
            let told = self.store.disk(|disk| journal_record(disk, source, quiet, self.killed));
            for fault in judge(&ServerTruth { histories: vec![history] }, &told) {
                self.steps.find(DeliveryBreach::Lost, format!("the journal of {source}: {fault}"));
            }
        }
    }

    fn is_quiet(&mut self) -> bool {
        let accounts = self.accounts(true);
        let cluster = Arc::clone(&self.cluster);
        let witnessed = self.store.disk(|disk| {
            let cluster = cluster.lock().unwrap();
            cluster.stories.iter().all(|(source, story)| {
                let checkpoint = disk.checkpoints.get(*source).and_then(|at| at.as_str().parse::<u64>().ok());
                story.entries.last().is_none_or(|last| checkpoint >= Some(last.version))
            })
        });
        let in_flight = self.plugins.iter().any(|plugin| plugin.in_flight() > 0);
        if !witnessed || in_flight {
            return false;
        }
        let running = self.running();
        accounts.iter().zip(running).all(|(account, running)| {
            let Some(running) = running else { return true };
            let stats = running.handle.dispatch_stats();
            let kept = &account.progress;
            let finished = kept.delivered + kept.filtered + account.letters.len() as u64;
            let taken_back = account.letters.values().any(|replaying| *replaying);
            let held = account.held_count();
            stats.started
                && !taken_back
                && (stats.waiting, stats.observed) == (held, account.due.len() as u64)
                && finished + held == account.due.len() as u64
        })
    }

    /// Waits until nothing is under way, which must come, and judges everything then.
    pub async fn settles(&mut self) {
        let failing = self.accounts(false).iter().map(|account| account.due.len()).max().unwrap_or(0);
        let bound = RECOVERY + BREAKER_PAUSE * (RETRIES + 1) * u32::try_from(failing).unwrap_or(u32::MAX);
        let deadline = self.steps.clock.elapsed_now() + bound;
        let mut poll = POLL;
        while !self.is_quiet() {
            if self.has_ended() {
                return self.steps.find(DeliveryBreach::Late, "it ended by itself".into());
            }
            if self.steps.clock.elapsed_now() > deadline {
                let running = self.running().iter().flatten();
                let stats: Vec<_> = running.map(|running| running.handle.dispatch_stats()).collect();
                return self
                    .steps
                    .find(DeliveryBreach::Late, format!("not settled within {bound:?}: {stats:?}"));
            }
            tokio::time::sleep(poll).await;
            poll = (poll * 2).min(LONGEST_POLL);
        }
        self.steps.write_down(|| "all is quiet".into());
        for account in self.accounts(true) {
            let parked = account.letters.len();
            self.steps.marks.when(parked > 0, "dead letters were parked");
            self.steps.marks.when(account.held_count() > 0, "a dead letter held its lane");
            self.steps.marks.when(!account.owed.is_empty(), "the cursor passed states that are owed");
            self.steps.find_all(account.judge());
        }
        let running: Vec<_> =
            self.running().iter().flatten().map(|running| running.handle.dispatch_stats()).collect();
        for stats in running {
            let sum = stats.delivered + stats.filtered + stats.dead + stats.waiting;
            if stats.observed != sum {
                self.steps.find(DeliveryBreach::Sum, format!("{stats:?}"));
            }
        }
        self.check_the_journal(true);
    }

    /// All that fails is over.
    pub fn calm(&self) {
        self.store.refuses(false);
        self.store.slow(false);
        for plugin in &self.plugins {
            plugin.sink.down(false);
            plugin.calm.store(true, Ordering::Relaxed);
        }
    }
}

fn random_options(name: &str, dice: &mut Dice) -> DispatchOptions {
    let mut subscriptions = vec![subscription("jobs", Mode::Every)];
    if dice.one_in(2) {
        subscriptions.push(subscription("pods", Mode::Transitions));
    }
    DispatchOptions {
        plugin: name.into(),
        subscriptions,
        delivery: delivery(dice.between(1, 12) as u32, dice.percent(40)),
        concurrency: dice.between(1, 4) as u32,
        tick: None,
        pauses: LongestPauses::default(),
    }
}

fn journal_record(disk: &SimulatedDisk, source: &str, quiet: bool, late_allowed: bool) -> JournalRecord {
    let states = disk.states.values().filter(|state| &*state.source == source).cloned().collect();
    let current = disk.current(source).map(|(uid, live)| (uid.clone(), live.version.to_string()));
    let checkpoint = disk.checkpoints.get(source).and_then(|version| version.as_str().parse().ok());
    JournalRecord {
        states,
        gaps: disk.gaps.iter().filter(|gap| gap.source == source).cloned().collect(),
        current: quiet.then(|| current.collect()),
        up_to: (!quiet).then(|| checkpoint.unwrap_or(0)),
        late_allowed,
        ..JournalRecord::default()
    }
}
