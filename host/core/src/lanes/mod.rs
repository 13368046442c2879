//! The pure machine behind dispatch: the states of one plugin, ordered per lane, parallel over
//! lanes. No I/O and no clock: time is a parameter.
//!
//! **One state of a lane in a batch.** What a call writes is committed as one, before its
//! verdicts are seen here. If a batch held two states of one object and the first were not done
//! while the second was, the second's effect would be there before the first's, and nothing could
//! take it back. So a batch takes the heads of many lanes, and a lane in flight is not taken
//! again. The halves of a batch are then independent too, which makes splitting it safe. The
//! price is that a single object moves one state a call; thousands of objects fill every batch.
//!
//! **Round robin.** Namespaces take turns, and in each its lanes do ([`ready`]). A lane that was
//! served and has more goes to the end, so one with a thousand states costs the others one place
//! each round, and so does a namespace with a hundred thousand lanes.
//!
//! **A window of the journal.** At most `window` states are held, and each namespace has a share
//! of it ([`shares`]). A lane deeper than `depth`, or held by a dead letter, keeps positions only,
//! at most `deferred` over all lanes; they are read again ([`Lanes::wanted`], [`Lanes::fill`])
//! when their turn comes. What a namespace has beyond its share is left in the journal as runs of
//! positions and gone back for ([`Lanes::next_behind`], [`Lanes::catch_up`]), while reading goes
//! on for the others. So neither a busy object nor a blocked one nor a whole namespace of them
//! fills the window for the others, however far behind it is.
//!
//! **Accounts.** Every position is finished once: delivered, filtered or parked. The cursor is
//! the last position before the first that isn't. A replayed dead letter waits again, but its
//! position stays finished: that it is owed is kept by the letter itself. What `latest` lets go
//! is a part of the filtered. What lies unread, left or not read yet, is counted as it is told
//! ([`Lanes::count`]). A resync is in no account at all ([`resync`]).

mod flights;
mod intake;
mod lane;
mod meter;
mod options;
mod outlet;
mod positions;
mod resync;
mod turns;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use flights::Flights;
use hashbrown::HashMap;
pub use intake::Behind;
use lane::{Head, Lane, Place, Prior};
use meter::Meter;
pub use meter::{BOUNDS, Histogram, QueueStats};
pub use options::{LaneOptions, Now};
use positions::Positions;
pub use positions::holes;
use resync::Resync;
use turns::past::Past;
use turns::ready::Ready;
use turns::shares::Shares;

use crate::bucket::Bucket;
use crate::ports::{DeadLetter, Progress, Try};
use crate::state::{LaneKey, Seq};

/// What a subscription says about a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    Wanted,
    /// Wanted unless a newer one of its object comes before it is handed over.
    Latest,
    /// Of the subscription, but its filter or mode says no. Counted.
    Filtered,
    /// Of another source, or from before the subscription. Not counted.
    Foreign,
}

/// What became of a state that was handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    Delivered,
    /// Waits in its lane until this moment.
    Retried(Duration),
    Parked,
    /// A resynced state was handed over.
    Resynced,
    /// It made way for what came behind it in its lane: a resynced state for anything, one of
    /// `mode: latest` for a newer one of its object.
    Superseded,
    /// A resynced state failed for the last time.
    Dropped,
    /// It was not in flight: nothing changed.
    Unknown,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneStats {
    pub delivered: u64,
    pub filtered: u64,
    /// Of the filtered, those that made way for a newer one.
    pub superseded: u64,
    /// Parked, or dropped.
    pub dead: u64,
    /// Of the dead, those that an operator dropped.
    pub dropped: u64,
    /// Unfinished states: in lanes, left, or counted and not read yet.
    pub waiting: u64,
    /// Of these, those that failed since they entered their lane.
    pub retrying: u64,
    pub in_flight: u64,
    /// Resynced states that were handed over; those that were not, since their lane had the same
    /// or a newer one to hand over; and those that failed. In none of the figures above.
    pub resynced: u64,
    pub resync_skipped: u64,
    pub resync_failed: u64,
}

/// What has to be kept along with the progress.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Letters {
    pub parked: Vec<DeadLetter>,
    pub revived: Vec<Seq>,
}

/// A dead letter that is on its way back.
#[derive(Debug)]
struct Recalled {
    prior: Prior,
    tries: Vec<Try>,
}

#[derive(Debug)]
pub struct Lanes {
    options: LaneOptions,
    lanes: HashMap<LaneKey, Lane>,
    ready: Ready,
    delayed: BTreeSet<(Duration, LaneKey)>,
    /// Lanes that have room for states which are known by position only.
    hungry: BTreeSet<LaneKey>,
    flying: Flights,
    positions: Positions,
    shares: Shares,
    pasts: Vec<Past>,
    /// Up to here the states of the subscription are counted.
    counted: Seq,
    /// Of those, what was not taken in.
    unread: u64,
    /// When the state that was read last was observed.
    observed_ms: u64,
    /// Dead letters taken back whose state was not read yet.
    replays: BTreeMap<Seq, Recalled>,
    letters: Letters,
    rate: Option<Bucket>,
    call_rate: Option<Bucket>,
    retry_rate: Option<Bucket>,
    meter: Meter,
    /// Taken-back letters in lanes.
    replaying: usize,
    retrying: u64,
    delivered: u64,
    filtered: u64,
    superseded: u64,
    /// Positions of the dead letters that are parked.
    parked: BTreeSet<Seq>,
    /// Of these, those whose lanes wait until they are kept.
    unkept: BTreeMap<Seq, LaneKey>,
    dropped: u64,
    resync: Resync,
}

impl Lanes {
    /// Goes on from a progress: reading begins at its cursor, and what it says to be finished
    /// above that is skipped. Its dead letters have to be told by [`park`](Self::park) and
    /// [`replay`](Self::replay), and what lies unread by [`count`](Self::count).
    pub fn new(options: LaneOptions, progress: &Progress) -> Self {
        let positions = Positions::new(progress);
        Self {
            lanes: HashMap::new(),
            ready: Ready::default(),
            delayed: BTreeSet::new(),
            hungry: BTreeSet::new(),
            flying: Flights::default(),
            counted: positions.through(),
            positions,
            shares: Shares::new(options.window, options.deferred),
            pasts: Vec::new(),
            unread: 0,
            observed_ms: 0,
            replays: BTreeMap::new(),
            letters: Letters::default(),
            rate: options.rate.map(Bucket::new),
            call_rate: options.call_rate.map(Bucket::new),
            retry_rate: options.retry_rate.map(Bucket::new),
            meter: Meter::default(),
            replaying: 0,
            retrying: 0,
            delivered: progress.delivered,
            filtered: progress.filtered,
            superseded: progress.superseded,
            parked: BTreeSet::new(),
            unkept: BTreeMap::new(),
            dropped: 0,
            resync: Resync::default(),
            options,
        }
    }

    /// Puts a lane where its head belongs, after anything about it changed.
    fn place(&mut self, key: LaneKey, first: bool) {
        let Some(lane) = self.lanes.get_mut(&key) else { return };
        let head = lane.head();
        let starving = lane.loaded < lane.queue.len() && lane.loaded <= self.options.depth / 2;
        if starving && lane.held.is_empty() {
            self.hungry.insert(key);
        } else {
            self.hungry.remove(&key);
        }
        let place = match (lane.place, head) {
            (Place::Flying, _) => return,
            (_, Head::Ready) => Place::Ready,
            (_, Head::Later(at)) => Place::Delayed(at),
            (_, Head::Nothing | Head::Held | Head::Unloaded) => Place::Idle,
        };
        if place != lane.place {
            match lane.place {
                Place::Delayed(at) => {
                    self.delayed.remove(&(at, key));
                }
                // Rare: what was ready made way for a state that has to be read again.
                Place::Ready => self.ready.remove(key),
                Place::Idle | Place::Flying => {}
            }
            match place {
                Place::Ready if first => self.ready.push_front(key),
                Place::Ready => self.ready.push_back(key),
                Place::Delayed(at) => {
                    self.delayed.insert((at, key));
                }
                Place::Idle | Place::Flying => {}
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
    pub fn through(&self) -> Seq {
        self.positions.through()
    }

    pub fn oldest_unfinished_ms(&self) -> Option<u64> {
        self.positions.oldest_ms()
    }

    pub fn stats(&self) -> LaneStats {
        LaneStats {
            delivered: self.delivered,
            filtered: self.filtered,
            superseded: self.superseded,
            dead: self.parked.len() as u64 + self.dropped,
            dropped: self.dropped,
            waiting: (self.positions.open_count() + self.replaying + self.replays.len()) as u64 + self.unread,
            retrying: self.retrying,
            in_flight: self.flying.len() as u64,
            resynced: self.resync.delivered,
            resync_skipped: self.resync.skipped,
            resync_failed: self.resync.failed,
        }
    }

    /// As a work queue of client-go would tell it.
    pub fn queue(&self) -> QueueStats {
        let stats = self.stats();
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

    /// What to keep; the caller knows where the subscription starts.
    pub fn progress(&self) -> Progress {
        Progress {
            cursor: self.positions.cursor(),
            above: self.positions.above(),
            delivered: self.delivered,
            filtered: self.filtered,
            superseded: self.superseded,
            dead: self.parked.len() as u64 + self.dropped,
            ..Progress::default()
        }
    }

    /// The letters since the last time: to be kept in the same save as [`progress`](Self::progress), and
    /// to be told by [`kept`](Self::kept) then.
    pub fn take_letters(&mut self) -> Letters {
        std::mem::take(&mut self.letters)
    }
}
