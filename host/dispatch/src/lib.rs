//! Delivers the journal's states to one plugin. It reads the backlog into the lanes, calls the plugin in
//! batches, applies the verdicts, and saves the progress.
//!
//! A plugin may be slow, fail, or be down for days, and must neither lose a state nor delay another plugin.
//! So one [`PluginDispatcher`] serves one plugin, and shares only the journal with others: a common queue
//! would let the slowest plugin hold all of them. `core::lanes` decides the order of states; this crate does
//! the waiting. After a crash, states after the saved cursor are delivered again, and their receipts keep
//! them from being applied twice.
//!
//! It does not know where states come from, how they are stored, or that a plugin is a component: it meets
//! them through `core::ports`. It does no I/O of its own, and it takes the time from a `core` clock and from
//! tokio.

mod handle;
mod load;
mod pacing;
mod paused;
mod progress_saver;
mod reader;
mod resync;
mod run;
mod subscriptions;
mod take_back;
mod verdicts;

use std::sync::Arc;
use std::time::Duration;

use kubewitness_core::clock::Clock;
use kubewitness_core::config::{DeliverySpec, Mode, RateSpec, Start, TickSpec};
use kubewitness_core::lanes::QueueStats;
use kubewitness_core::ports::{Backlog, JournalError, PluginHandler, PluginPause, StateFilter};
use thiserror::Error;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use handle::SharedFigures;
pub use handle::{DispatchHandle, LetterSelection};
pub use load::note_beginning;
pub use pacing::breaker::LongestPauses;
pub use pacing::ticks::TickStats;
pub use paused::PauseChange;
use run::{DispatchLoop, RunParts};
pub use subscriptions::SourceBackfill;
pub use take_back::{TakenBack, take_back};

/// One source that a plugin subscribes to.
#[derive(Clone, Debug)]
pub struct SourceSubscription {
    pub source: Arc<str>,
    pub mode: Mode,
    /// Judges a state before its mode does; `None` wants all states.
    pub filter: Option<Arc<dyn StateFilter>>,
    /// The rate for the past before the subscription; `None`: in order with everything else.
    pub replay_rate: Option<RateSpec>,
    /// Applies once, when the source is first subscribed; later the plugin goes on from its progress. For a
    /// source that is added to a plugin with progress, the cursor goes back to the start of the source.
    pub start: Start,
    /// Whether the plugin gets the resyncs of the source.
    pub resync: bool,
}

#[derive(Clone, Debug)]
pub struct DispatchOptions {
    pub plugin: String,
    pub subscriptions: Vec<SourceSubscription>,
    pub delivery: DeliverySpec,
    /// The most calls at the same time.
    pub concurrency: u32,
    /// The schedule on which the plugin is called besides; `None`: never.
    pub tick: Option<TickSpec>,
    /// The longest pauses while calls fail.
    pub pauses: LongestPauses,
}

#[derive(Debug, Error)]
pub enum DispatchError {
    /// Stop: the journal can't be trusted, or refused something that no retry will change.
    #[error("the journal refused: {0}")]
    Journal(JournalError),
    /// Ask again later.
    #[error("{0}")]
    Unavailable(String),
    /// This dispatcher has ended. Ask its successor.
    #[error("the dispatcher of this plugin isn't running")]
    Stopped,
}

/// The figures of one plugin. At any moment observed = delivered + filtered + dead + waiting.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DispatchStats {
    /// Whether the progress is loaded. Until then the other figures are 0.
    pub started: bool,
    /// States of the subscription, up to the newest that was counted. It is complete when `lag_seq` is 0.
    /// During a backlog it follows the journal within a moment.
    pub observed: u64,
    pub delivered: u64,
    pub filtered: u64,
    /// The filtered states that `mode: latest` replaced.
    pub superseded: u64,
    /// Parked, or dropped by an operator.
    pub dead: u64,
    /// The dead letters that were dropped.
    pub dropped: u64,
    pub waiting: u64,
    /// The waiting states that failed at least once since the start.
    pub retrying: u64,
    /// Positions between the cursor and the newest state.
    pub lag_seq: u64,
    /// When the oldest unfinished state was observed, in milliseconds since 1970.
    pub oldest_unfinished_ms: Option<u64>,
    pub last_error: Option<String>,
    /// Why no call begins for a while: the plugin has taken more than its share of something.
    pub rest: Option<String>,
    /// Calls in a row that failed as a whole; 0 after one that did not.
    pub consecutive_failures: u32,
    /// Whether the breaker is open: the plugin kept failing and is only probed, with growing pauses.
    pub open: bool,
    /// An operator's pause: no call begins before a resume.
    pub paused: Option<Arc<PluginPause>>,
    /// States that a filter could not judge and that were therefore handed over, and the reason for the last
    /// one.
    pub unclear: u64,
    pub filter_error: Option<String>,
    pub resync: ResyncStats,
    /// The past of sources that were added, until the cursor is where it was.
    pub backfill: Option<Arc<SourceBackfill>>,
    /// `None` for a plugin without a schedule.
    pub tick: Option<TickStats>,
    pub queue: QueueStats,
    /// How long the states in calls have been there, summed, and the longest of them.
    pub unfinished: Duration,
    pub longest: Duration,
}

/// The figures of resyncs since the start. The other figures contain none of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResyncStats {
    /// Resyncs that offered every object to the lanes.
    pub rounds: u64,
    /// States that were handed over once more.
    pub delivered: u64,
    /// States that were not, because the same or a newer state of their object waits or is parked.
    pub skipped: u64,
    /// States that failed every try and were dropped.
    pub failed: u64,
}

/// The delivery of one plugin's states, not yet running.
pub struct PluginDispatcher {
    parts: RunParts,
}

impl PluginDispatcher {
    pub fn new(
        options: DispatchOptions,
        backlog: Arc<dyn Backlog>,
        handler: Arc<dyn PluginHandler>,
        clock: Arc<dyn Clock>,
    ) -> (Self, DispatchHandle) {
        let shared = Arc::new(SharedFigures::default());
        let (sender, commands) = mpsc::channel(handle::COMMANDS);
        let resyncs = options.subscriptions.iter().filter(|subscription| subscription.resync);
        let handle = DispatchHandle {
            shared: Arc::clone(&shared),
            clock: Arc::clone(&clock),
            newest: backlog.newest_position(),
            commands: sender,
            resyncs: resyncs.map(|subscription| Arc::clone(&subscription.source)).collect(),
        };
        (Self { parts: RunParts { options, backlog, handler, clock, shared, commands } }, handle)
    }

    /// Runs until `drain` (no new calls; calls in progress may end; the progress is saved) or `abort` (at
    /// once). It ends by itself only with an error that requires a stop. Dropping the future is safe at any
    /// moment: what was not saved is handed over again.
    pub async fn run(self, drain: CancellationToken, abort: CancellationToken) -> Result<(), DispatchError> {
        let loaded = tokio::select! {
            biased;
            () = abort.cancelled() => return Ok(()),
            () = drain.cancelled() => return Ok(()),
            loaded = load::load_patiently(&self.parts) => loaded?,
        };
        DispatchLoop::new(self.parts, loaded).run(&drain, &abort).await
    }
}
