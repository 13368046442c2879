//! Orders the states of one plugin: each object's states one after the other, different objects in parallel.
//! A pure machine with no I/O and no clock: the caller passes the time.
//!
//! One queue would keep the order, but a single failing object would block all others. Parallel calls without
//! lanes would mix up the states of an object. So each object has a lane, and a plugin's lanes take turns.
//!
//! **A batch has one state of a lane.** A call's writes are committed together, before the lanes see its
//! verdicts. Suppose a batch held two states of one object, and only the second were done. Its effect would
//! be committed before the effect of the first, and nothing could take it back. So a batch takes the heads of
//! many lanes, and a lane in flight is not taken again. The halves of a batch are then independent, so it can
//! be split safely. The price is that an object moves one state a call. With thousands of objects every batch
//! is full.
//!
//! **Round robin.** Namespaces take turns, and the lanes of a namespace take turns ([`ready`]). A lane that
//! was served and has more goes to the end. So a lane with a thousand states costs the others one place in
//! each round, and so does a namespace with a hundred thousand lanes.
//!
//! **A window of the journal.** The lanes hold at most `window` states, and each namespace has a share of
//! them ([`shares`]). A lane that is deeper than `depth` keeps only positions, at most `deferred` over all lanes. Their states are read again ([`Lanes::wanted_positions`], [`Lanes::fill_wanted`]) when
//! their turn comes. States beyond a namespace's share are left in the journal as runs of positions. The
//! lanes go back for them ([`Lanes::next_behind`], [`Lanes::take_in_deferred`]) while reading goes on for the other
//! namespaces. So no busy object, blocked object or busy namespace fills the window for the others, however
//! far behind it is.
//!
//! **Accounts.** Every position is finished once: delivered, filtered, parked or owed. The cursor is the last
//! position before the first unfinished one. A lane that stands still for long owes its states by rows of the
//! journal ([`owed`]). A dead letter that is replayed waits again, but its position
//! stays finished: the letter itself records that it is owed. States that `latest` replaces count as
//! filtered. States that were left, or not yet read, are counted as the caller reports them
//! ([`Lanes::count`]). A resync is in no account ([`resync`]).

pub mod bucket;
mod hand_out;
mod lane;
mod meter;
mod options;
mod owed;
mod positions;
mod resync;
mod take_in;
mod turns;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use hashbrown::HashMap;
use lane::{Lane, LaneHead, LanePlace, LetterHistory};
use meter::LaneMeter;
pub use meter::{BOUNDS, Histogram, QueueStats};
pub use options::{ClockReading, LaneOptions};
use positions::PositionTracker;
pub use positions::unfinished_ranges;
use resync::ResyncState;
pub use take_in::CatchUpRange;
use turns::debts::OwedStates;
use turns::in_flight::InFlight;
use turns::past::BackfillTurns;
use turns::ready::ReadyLanes;
use turns::shares::WindowShares;

use crate::ports::{DeadLetter, PluginProgress, Try};
use crate::state::{LaneKey, Seq};
use bucket::TokenBucket;

/// How a subscription fits a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubscriptionFit {
    Wanted,
    /// Wanted, unless a newer state of its object arrives before it is handed over.
    Latest,
    /// Part of the subscription, but its filter or mode refuses it. Counted.
    Filtered,
    /// A state of another source, or from before the subscription. Not counted.
    Foreign,
}

impl SubscriptionFit {
    pub fn is_handed_over(self) -> bool {
        matches!(self, Self::Wanted | Self::Latest)
    }
}

/// The outcome of a state that was handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettledAs {
    Delivered,
    /// It waits in its lane until this moment.
    Retried(Duration),
    Parked,
    /// A state of a resync was handed over.
    Resynced,
    /// A later state of its lane replaced it. Any state replaces one of a resync; a newer state of the object
    /// replaces one of `mode: latest`.
    Superseded,
    /// A state of a resync failed for the last time.
    Dropped,
    /// It was not in flight, so nothing changed.
    Unknown,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneStats {
    pub delivered: u64,
    pub filtered: u64,
    /// The filtered states that a newer state replaced.
    pub superseded: u64,
    /// Parked, or dropped.
    pub dead: u64,
    /// The dead letters that an operator dropped, also those that retention has removed.
    pub dropped: u64,
    /// Unfinished states: in lanes, left in the journal, or counted and not yet read.
    pub waiting: u64,
    /// The waiting states that failed since they entered their lane.
    pub retrying: u64,
    pub in_flight: u64,
    /// States of resyncs, in three figures: handed over; not handed over, because their lane had the same or
    /// a newer state; and failed. The figures above contain none of them.
    pub resynced: u64,
    pub resync_skipped: u64,
    pub resync_failed: u64,
}

/// The letters to save along with the progress.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LetterChanges {
    pub parked: Vec<DeadLetter>,
    /// Letters and owed states that are finished now.
    pub revived: Vec<Seq>,
    /// States that are owed now, so that the cursor passes them.
    pub owed: Vec<Seq>,
}

/// A dead letter that is being replayed.
#[derive(Debug)]
struct ReplayedLetter {
    prior: LetterHistory,
    tries: Vec<Try>,
}

#[derive(Debug)]
pub struct Lanes {
    options: LaneOptions,
    lanes: HashMap<LaneKey, Lane>,
    ready: ReadyLanes,
    delayed: BTreeSet<(Duration, LaneKey)>,
    /// Lanes with room for states of which only the position is known.
    hungry: BTreeSet<LaneKey>,
    flying: InFlight,
    positions: PositionTracker,
    shares: WindowShares,
    pasts: Vec<BackfillTurns>,
    /// The position up to which the states of the subscription are counted.
    counted: Seq,
    /// The states among those that were not taken in.
    unread: u64,
    /// When the last state that was read was observed.
    observed_ms: u64,
    /// Dead letters that are replayed and whose state is not yet read.
    replays: BTreeMap<Seq, ReplayedLetter>,
    /// Those among them that were handed over before the start, while their receipts are looked for.
    doubtful_letters: BTreeMap<Seq, ReplayedLetter>,
    letters: LetterChanges,
    rate: Option<TokenBucket>,
    call_rate: Option<TokenBucket>,
    retry_rate: Option<TokenBucket>,
    meter: LaneMeter,
    /// Replayed letters in lanes.
    replaying: usize,
    retrying: u64,
    delivered: u64,
    filtered: u64,
    superseded: u64,
    /// The positions of parked dead letters.
    parked: BTreeSet<Seq>,
    /// The positions among these whose lanes wait until the letter is saved.
    unsaved_letters: BTreeMap<Seq, LaneKey>,
    /// The lanes of letters that hold them until an operator decides.
    holders: HashMap<Seq, LaneKey>,
    dropped: u64,
    resync: ResyncState,
    debts: OwedStates,
}

impl Lanes {
    /// Goes on from a saved progress. Reading begins at its cursor and skips what it calls finished above
    /// that. The caller then adds its dead letters with [`add_parked`](Self::add_parked) and [`replay_letter`](Self::replay_letter),
    /// and the unread states with [`count`](Self::count).
    pub fn new(options: LaneOptions, progress: &PluginProgress) -> Self {
        let positions = PositionTracker::new(progress);
        Self {
            lanes: HashMap::new(),
            ready: ReadyLanes::default(),
            delayed: BTreeSet::new(),
            hungry: BTreeSet::new(),
            flying: InFlight::default(),
            counted: positions.last_read(),
            positions,
            shares: WindowShares::new(options.window, options.deferred),
            pasts: Vec::new(),
            unread: 0,
            observed_ms: 0,
            replays: BTreeMap::new(),
            doubtful_letters: BTreeMap::new(),
            letters: LetterChanges::default(),
            rate: options.rate.map(TokenBucket::new),
            call_rate: options.call_rate.map(TokenBucket::new),
            retry_rate: options.retry_rate.map(TokenBucket::new),
            meter: LaneMeter::default(),
            replaying: 0,
            retrying: 0,
            delivered: progress.delivered,
            filtered: progress.filtered,
            superseded: progress.superseded,
            parked: BTreeSet::new(),
            unsaved_letters: BTreeMap::new(),
            holders: HashMap::new(),
            dropped: progress.removed_letters,
            resync: ResyncState::default(),
            debts: OwedStates::default(),
            options,
        }
    }

    /// Puts a lane where its head belongs. Call it after every change to the lane.
    fn place_lane(&mut self, key: LaneKey, first: bool) {
        self.list_debt(key);
        let Some(lane) = self.lanes.get_mut(&key) else { return };
        let head = lane.head();
        let starving = lane.loaded < lane.queue.len() && lane.loaded <= self.options.depth / 2;
        if starving && lane.unloaded_positions(1).next().is_some() {
            self.hungry.insert(key);
        } else {
            self.hungry.remove(&key);
        }
        let place = match (lane.place, head) {
            (LanePlace::Flying, _) => return,
            (_, LaneHead::Ready) => LanePlace::Ready,
            (_, LaneHead::Later(at)) => LanePlace::Delayed(at),
            (_, LaneHead::Nothing | LaneHead::Held | LaneHead::Unloaded) => LanePlace::Idle,
        };
        if place != lane.place {
            match lane.place {
                LanePlace::Delayed(at) => {
                    self.delayed.remove(&(at, key));
                }
                // This is rare: the ready state was replaced by a state that must be read again.
                LanePlace::Ready => self.ready.remove(key),
                LanePlace::Idle | LanePlace::Flying => {}
            }
            match place {
                LanePlace::Ready if first => self.ready.push_front(key),
                LanePlace::Ready => self.ready.push_back(key),
                LanePlace::Delayed(at) => {
                    self.delayed.insert((at, key));
                }
                LanePlace::Idle | LanePlace::Flying => {}
            }
            lane.place = place;
        }
        if lane.is_spent() {
            self.lanes.remove(&key);
        }
    }

    // ---- accounts ------------------------------------------------------------------------

    pub fn cursor(&self) -> Seq {
        self.positions.cursor()
    }

    /// The last position that was read.
    pub fn last_read(&self) -> Seq {
        self.positions.last_read()
    }

    pub fn oldest_unfinished_ms(&self) -> Option<u64> {
        let owed = self.debts.oldest.first().map(|(observed_ms, _)| *observed_ms);
        self.positions.oldest_ms().into_iter().chain(owed).min()
    }

    pub fn plugin_name(&self) -> &str {
        &self.options.plugin
    }

    pub fn lane_stats(&self) -> LaneStats {
        let replays = self.replays.len() + self.doubtful_letters.len();
        LaneStats {
            delivered: self.delivered,
            filtered: self.filtered,
            superseded: self.superseded,
            dead: self.parked.len() as u64 + self.dropped,
            dropped: self.dropped,
            waiting: (self.positions.open_count() + self.replaying + replays + self.debts.states) as u64
                + self.unread,
            retrying: self.retrying,
            in_flight: self.flying.len() as u64,
            resynced: self.resync.delivered,
            resync_skipped: self.resync.skipped,
            resync_failed: self.resync.failed,
        }
    }

    /// The queue's figures, as a client-go work queue reports them.
    pub fn queue_stats(&self) -> QueueStats {
        let stats = self.lane_stats();
        QueueStats {
            depth: stats.waiting.saturating_sub(stats.in_flight),
            adds: self.meter.adds,
            retries: self.meter.retries,
            waited: self.meter.waited,
            worked: self.meter.worked,
            in_flight: stats.in_flight,
            since_sum: self.flying.since_sum(),
            since_first: self.flying.since_first(),
        }
    }

    /// The progress to save. The caller knows where the subscription starts.
    pub fn progress_to_save(&self) -> PluginProgress {
        PluginProgress {
            cursor: self.positions.cursor(),
            above: self.positions.finished_above_cursor(),
            delivered: self.delivered,
            filtered: self.filtered,
            superseded: self.superseded,
            dead: self.parked.len() as u64 + self.dropped,
            ..PluginProgress::default()
        }
    }

    /// The letters since the last call. The caller saves them together with [`progress_to_save`](Self::progress_to_save), and
    /// then calls [`letters_saved`](Self::letters_saved) and [`note_saved_rows`](Self::note_saved_rows) with them.
    pub fn take_letters(&mut self) -> LetterChanges {
        std::mem::take(&mut self.letters)
    }
}
