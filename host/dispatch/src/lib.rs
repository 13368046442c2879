//! Hands the journal's states to one plugin: reads the backlog into the lanes, calls the plugin
//! in batches, turns what came back into verdicts, and keeps how far it got.
//!
//! One [`Dispatcher`] is one plugin's, and shares nothing with another's but the journal. It
//! knows neither where states come from, nor how they are stored, nor that a plugin is a
//! component: it meets them through `core::ports`. The order of states is decided by
//! `core::lanes`; what is here is the waiting.

mod breaker;
mod handle;
mod interest;
mod keeper;
mod load;
mod pause;
mod reader;
mod resync;
mod run;
mod verdicts;

use std::sync::Arc;
use std::time::Duration;

use kubewitness_core::clock::Clock;
use kubewitness_core::config::{DeliverySpec, Mode, RateSpec, Start};
use kubewitness_core::lanes::QueueStats;
use kubewitness_core::ports::{Backlog, Handler, JournalError, StateFilter};
use thiserror::Error;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

pub use handle::DispatchHandle;
use handle::Shared;
use run::{Parts, Run};

/// One source that a plugin is handed.
#[derive(Clone, Debug)]
pub struct Subscription {
    pub source: Arc<str>,
    pub mode: Mode,
    /// Judges a state before its mode does; `None` wants all.
    pub filter: Option<Arc<dyn StateFilter>>,
    /// The pace of what lies before the subscription; `None` for that of everything else.
    pub replay_rate: Option<RateSpec>,
    /// Counts once, when the source is first subscribed; afterwards the plugin goes on from
    /// where it was. A source that is added to a plugin which already ran begins at what that
    /// plugin has read, since a plugin has one cursor: earlier states aren't gone back for.
    pub start: Start,
    /// Whether the resyncs of the source are handed to the plugin.
    pub resync: bool,
}

#[derive(Clone, Debug)]
pub struct DispatchOptions {
    pub plugin: String,
    pub subscriptions: Vec<Subscription>,
    pub delivery: DeliverySpec,
    /// Calls at once.
    pub concurrency: u32,
}

#[derive(Debug, Error)]
pub enum DispatchError {
    /// Stop: the journal can't be trusted, or refused what no retry will change.
    #[error("the journal refused: {0}")]
    Journal(JournalError),
    /// Ask again later.
    #[error("{0}")]
    Unavailable(String),
    /// This dispatcher has ended; its successor may be asked.
    #[error("the dispatcher of this plugin isn't running")]
    Stopped,
}

/// How one plugin is doing. At any moment observed = delivered + filtered + dead + waiting.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DispatchStats {
    /// Whether the progress was loaded; until then the other figures are 0.
    pub started: bool,
    /// States of the subscription up to the newest that was counted. Complete when `lag_seq` is 0;
    /// behind a backlog it follows the journal within a moment.
    pub observed: u64,
    pub delivered: u64,
    pub filtered: u64,
    /// Of the filtered, those that `mode: latest` let go.
    pub superseded: u64,
    /// Parked, or dropped by an operator.
    pub dead: u64,
    /// Of the dead, those that were dropped.
    pub dropped: u64,
    pub waiting: u64,
    /// Of the waiting, those that failed at least once since the start.
    pub retrying: u64,
    /// Positions between the newest state and the cursor.
    pub lag_seq: u64,
    /// When the oldest unfinished state was observed, in milliseconds since 1970.
    pub oldest_unfinished_ms: Option<u64>,
    pub last_error: Option<String>,
    /// Calls in a row that failed as a whole; 0 after one that did not.
    pub consecutive_failures: u32,
    /// The plugin kept failing: it is only probed, with a growing pause in between.
    pub open: bool,
    /// States that a filter could not judge, and that were handed over therefore; and why the last
    /// of them could not be.
    pub unclear: u64,
    pub filter_error: Option<String>,
    pub resync: ResyncStats,
    pub queue: QueueStats,
    /// How long the states in calls have been so, together and the longest of them.
    pub unfinished: Duration,
    pub longest: Duration,
}

/// What resyncs came to since the start; in none of the other figures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResyncStats {
    /// Those of which every object was offered to the lanes.
    pub rounds: u64,
    /// States that were handed over once more.
    pub delivered: u64,
    /// States that were not, since the same or a newer one of their object was still to be handed
    /// over, or is parked.
    pub skipped: u64,
    /// States that failed to the last try and were let go.
    pub failed: u64,
}

/// The delivery of one plugin's states, not yet running.
pub struct Dispatcher {
    parts: Parts,
}

impl Dispatcher {
    pub fn new(
        options: DispatchOptions,
        backlog: Arc<dyn Backlog>,
        handler: Arc<dyn Handler>,
        clock: Arc<dyn Clock>,
    ) -> (Self, DispatchHandle) {
        let shared = Arc::new(Shared::default());
        let (sender, commands) = mpsc::channel(handle::COMMANDS);
        let resyncs = options.subscriptions.iter().filter(|subscription| subscription.resync);
        let handle = DispatchHandle {
            shared: Arc::clone(&shared),
            clock: Arc::clone(&clock),
            newest: backlog.newest(),
            commands: sender,
            resyncs: resyncs.map(|subscription| Arc::clone(&subscription.source)).collect(),
        };
        (Self { parts: Parts { options, backlog, handler, clock, shared, commands } }, handle)
    }

    /// Runs until `drain` (no new calls, those in progress may end, progress is kept) or `abort`
    /// (at once). Ends by itself only with an error that calls for a stop. May be dropped at any
    /// moment: what was not kept is handed over again.
    pub async fn run(self, drain: CancellationToken, abort: CancellationToken) -> Result<(), DispatchError> {
        let loaded = tokio::select! {
            biased;
            () = abort.cancelled() => return Ok(()),
            () = drain.cancelled() => return Ok(()),
            loaded = load::load_patiently(&self.parts) => loaded?,
        };
        Run::new(self.parts, loaded).run(&drain, &abort).await
    }
}
