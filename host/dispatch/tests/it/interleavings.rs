//! Runs a dispatcher under many interleavings of itself, the journal, its plugin's calls, operators, the stop
//! and time. At every wait, shuttle chooses what goes on.
//!
//! Time is tokio's paused clock. One task moves it a little whenever it has its turn, so a pause may end
//! before or after anything else.

use std::sync::Arc;
use std::time::Duration;

use kubewitness_chance::{assert_fault_is_found, panic_message};
use kubewitness_core::Seq;
use kubewitness_core::config::OnDeadLetter;
use kubewitness_core::ports::{CallError, StateDelivery, Verdict};
use kubewitness_dispatch::{DispatchHandle, LetterSelection, PluginDispatcher};
use shuttle::future::{JoinHandle, block_on, spawn, yield_now};
use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner};
use tokio::runtime::{Builder, Runtime};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::fixtures::journal::FixtureJournal;
use crate::fixtures::plugin::FixturePlugin;
use crate::{SimulatedClock, assert_adds_up, options};

/// The interleavings of both kinds of schedules together.
const ORDERS: usize = 600;
/// The objects of the states, in order. Object 1 has the most.
const STATES: [usize; 9] = [0, 1, 2, 1, 1, 0, 1, 2, 1];
/// How far time moves in one turn.
const STEP: Duration = Duration::from_millis(20);

/// Faults of the journal that the test must find.
#[derive(Clone, Copy, Default)]
struct PlantedFaults {
    /// A state is announced before it is stored.
    announces_early: bool,
    /// A save takes two transactions, one for progress and one for dead letters.
    tears_saves: bool,
}

/// Some states succeed at once. State 3 is rejected, 4 needs three tries, 5 is poison until an operator has
/// replayed it, and 7 finds its sink down.
fn script(batch: &[StateDelivery]) -> (u64, Result<Vec<Verdict>, CallError>) {
    let has = |seq: Seq, attempt: u32| {
        batch.iter().any(|delivery| delivery.state.seq == seq && delivery.attempt <= attempt)
    };
    if has(5, 3) {
        return (1, Err(CallError::Trap("poison".into())));
    }
    if has(7, 1) && thread_rng().gen_range(0..3) > 0 {
        return (0, Err(CallError::Unavailable("the sink is away".into())));
    }
    let verdict = |delivery: &StateDelivery| match (delivery.state.seq, delivery.attempt) {
        (3, 1) => Verdict::Reject("never".into()),
        (4, ..3) => Verdict::Retry { after_ms: None, reason: "not yet".into() },
        _ => Verdict::Done,
    };
    (thread_rng().gen_range(0..2), Ok(batch.iter().map(verdict).collect()))
}

struct TestStage {
    journal: Arc<FixtureJournal>,
    plugin: Arc<FixturePlugin>,
}

struct ProcessLife {
    handle: DispatchHandle,
    drain: CancellationToken,
    abort: CancellationToken,
    kill: CancellationToken,
    task: JoinHandle<()>,
}

impl TestStage {
    fn live(&self) -> ProcessLife {
        let mut options = options("p");
        (options.concurrency, options.delivery.batch, options.delivery.retries) = (2, 3, 2);
        options.delivery.on_dead_letter = OnDeadLetter::Hold;
        let clock = Arc::new(SimulatedClock(Instant::now()));
        let (dispatcher, handle) =
            PluginDispatcher::new(options, self.journal.clone(), self.plugin.clone(), clock);
        let (drain, abort, kill) = Default::default();
        let (draining, aborting, killing): (CancellationToken, CancellationToken, CancellationToken) = (
            CancellationToken::clone(&drain),
            CancellationToken::clone(&abort),
            CancellationToken::clone(&kill),
        );
        let task = spawn(async move {
            let ended = killing.run_until_cancelled_owned(dispatcher.run(draining, aborting)).await;
            assert!(ended.is_none_or(|ended| ended.is_ok()), "nothing refused");
        });
        ProcessLife { handle, drain, abort, kill, task }
    }

    async fn witness(self: Arc<Self>, planted: PlantedFaults) {
        for object in STATES {
            turns(4).await;
            if planted.announces_early {
                self.journal.append_after(object, yield_now()).await;
            } else {
                self.journal.append([object]);
            }
        }
    }

    /// Checks that every witnessed state had its effect, in order, and that the accounts agree.
    fn judge(&self, handle: &DispatchHandle) {
        let stats = handle.dispatch_stats();
        assert_adds_up(&stats);
        let count = STATES.len() as u64;
        assert_eq!((stats.observed, stats.delivered, stats.dead), (count, count, 0), "{stats:?}");
        assert_eq!(self.plugin.applied(), (1..=count).collect::<Vec<_>>());
        let kept = self.journal.with(|kept| kept.progress["p"].clone());
        assert_eq!((kept.cursor, kept.delivered, kept.dead), (count, count, 0));
        assert_eq!(self.journal.dead("p"), [0; 0]);
        self.plugin.with(|seen| {
            for applied in seen.applied.values() {
                let mut first = applied.clone();
                let mut seen = std::collections::HashSet::new();
                first.retain(|seq| seen.insert(*seq));
                assert!(first.is_sorted(), "out of order: {applied:?}");
            }
        });
    }
}

async fn turns(most: u32) {
    for _ in 0..thread_rng().gen_range(0..=most) {
        yield_now().await;
    }
}

/// Replays dead letters until it is told to stop, and checks the figures.
async fn operate(handle: DispatchHandle, until: CancellationToken) {
    while !until.is_cancelled() {
        assert_adds_up(&handle.dispatch_stats());
        if handle.dispatch_stats().dead > 0 {
            // A dispatcher that has ended answers `Stopped`.
            drop(handle.replay_letters(LetterSelection::All, "ada", "again").await);
        }
        yield_now().await;
    }
}

async fn story(runtime: Arc<Runtime>, planted: PlantedFaults) {
    let (over, journal) = (CancellationToken::new(), FixtureJournal::new(1, 0));
    journal.with(|kept| kept.tears_saves = planted.tears_saves);
    let plugin = FixturePlugin::new("p", &journal, script);
    let stage = Arc::new(TestStage { journal, plugin });
    let passing = over.clone();
    let time = spawn(async move {
        while !passing.is_cancelled() {
            runtime.block_on(tokio::time::sleep(STEP));
            yield_now().await;
        }
    });
    let witness = spawn(Arc::clone(&stage).witness(planted));
    for _ in 0..2 {
        let life = stage.live();
        let operator = spawn(operate(life.handle.clone(), life.kill.clone()));
        turns(60).await;
        match thread_rng().gen_range(0..3) {
            0 => {}
            1 => life.drain.cancel(),
            _ => {
                life.drain.cancel();
                turns(3).await;
                life.abort.cancel();
            }
        }
        turns(6).await;
        life.kill.cancel();
        life.task.await.unwrap();
        operator.await.unwrap();
    }
    let life = stage.live();
    let (done, handle) = (CancellationToken::new(), life.handle.clone());
    let operator = spawn(operate(handle.clone(), done.clone()));
    witness.await.unwrap();
    let is_idle = || {
        let stats = handle.dispatch_stats();
        stats.started && stats.observed == STATES.len() as u64 && stats.waiting == 0 && stats.dead == 0
    };
    for turn in 0.. {
        if is_idle() {
            break;
        }
        assert!(turn < 20_000, "it comes to no rest: {:?}", handle.dispatch_stats());
        yield_now().await;
    }
    done.cancel();
    operator.await.unwrap();
    life.drain.cancel();
    life.task.await.unwrap();
    stage.judge(&life.handle);
    over.cancel();
    time.await.unwrap();
}

/// The usual stack is too small for a whole dispatcher.
fn config() -> Config {
    let mut config = Config::new();
    config.stack_size = 1 << 20;
    config
}

/// Tries many orders. Returns what the first one says that fails.
fn first_failure(planted: PlantedFaults) -> Option<String> {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let runtime = Arc::new(runtime);
    let _inside = runtime.enter();
    let run = |runtime: &Arc<Runtime>| {
        let runtime = Arc::clone(runtime);
        move || block_on(story(Arc::clone(&runtime), planted))
    };
    let tried = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        Runner::new(RandomScheduler::new(ORDERS * 2 / 3), config()).run(run(&runtime));
        Runner::new(PctScheduler::new(3, ORDERS / 3), config()).run(run(&runtime));
    }));
    tried.err().map(|panic| panic_message(&*panic))
}

#[test]
fn in_every_order_nothing_is_lost_and_each_object_keeps_its_own() {
    assert_eq!(first_failure(PlantedFaults::default()), None, "shuttle prints the order above");
}

#[test]
fn a_journal_that_announces_what_is_not_there_yet_is_found() {
    let failure = first_failure(PlantedFaults { announces_early: true, ..PlantedFaults::default() });
    assert_fault_is_found(failure, &["it comes to no rest: "]);
}

#[test]
fn a_journal_that_tears_a_save_is_found() {
    let failure = first_failure(PlantedFaults { tears_saves: true, ..PlantedFaults::default() });
    assert_fault_is_found(failure, &["it comes to no rest: "]);
}
