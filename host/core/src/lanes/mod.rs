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
//! **Round robin.** Lanes wait in line. One that was served and has more goes to the end, so a
//! lane with a thousand states costs the others one place each round.
//!
//! **A window of the journal.** At most `window` states are held. A lane deeper than `depth`, or
//! held by a dead letter, keeps positions only, at most `deferred` over all lanes; they are read
//! again ([`Lanes::wanted`], [`Lanes::fill`]) when their turn comes. So neither a busy object
//! nor a blocked one fills the window for the others.
//!
//! **Accounts.** Every position is finished once: delivered, filtered or parked. The cursor is
//! the last position before the first that isn't. A replayed dead letter waits again, but its
//! position stays finished: that it is owed is kept by the letter itself. A resync is in no
//! account at all ([`resync`]).

mod lane;
mod options;
mod positions;
mod resync;

#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use lane::{Failed, Head, Lane, Origin, Place, Prior, Slot};
pub use options::{LaneOptions, Now};
pub use positions::holes;
use positions::{Open, Positions};
use resync::Resync;

use crate::config::OnDeadLetter;
use crate::limits;
use crate::ports::{DeadLetter, Delivery, Progress, Verdict};
use crate::state::{LaneKey, Seq, State};

/// What became of a state that was handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    Delivered,
    /// Waits in its lane until this moment.
    Retried(Duration),
    Parked,
    /// A resynced state was handed over.
    Resynced,
    /// A resynced state made way for what came behind it in its lane.
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
    pub dead: u64,
    /// Unfinished states that were pushed or taken back, in memory or by position.
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

#[derive(Debug)]
pub struct Lanes {
    options: LaneOptions,
    lanes: HashMap<LaneKey, Lane>,
    ready: VecDeque<LaneKey>,
    delayed: BTreeSet<(Duration, LaneKey)>,
    /// Lanes that have room for states which are known by position only.
    hungry: BTreeSet<LaneKey>,
    flying: HashMap<Seq, LaneKey>,
    positions: Positions,
    /// Dead letters taken back whose state was not read yet.
    replays: BTreeMap<Seq, Prior>,
    letters: Letters,
    loaded: usize,
    deferred: usize,
    /// Taken-back letters in lanes.
    replaying: usize,
    retrying: u64,
    delivered: u64,
    filtered: u64,
    /// Positions of the dead letters that are parked.
    parked: BTreeSet<Seq>,
    resync: Resync,
}

impl Lanes {
    /// Goes on from a progress. Its [`holes`] have to be pushed before anything newer, and its
    /// dead letters told by [`park`](Self::park) and [`replay`](Self::replay).
    pub fn new(options: LaneOptions, progress: &Progress) -> Self {
        Self {
            options,
            lanes: HashMap::new(),
            ready: VecDeque::new(),
            delayed: BTreeSet::new(),
            hungry: BTreeSet::new(),
            flying: HashMap::new(),
            positions: Positions::new(positions::known_through(progress)),
            replays: BTreeMap::new(),
            letters: Letters::default(),
            loaded: 0,
            deferred: 0,
            replaying: 0,
            retrying: 0,
            delivered: progress.delivered,
            filtered: progress.filtered,
            parked: BTreeSet::new(),
            resync: Resync::default(),
        }
    }

    // ---- in ------------------------------------------------------------------------------

    /// How many more states may be pushed; 0 when full.
    pub fn room(&self) -> usize {
        let states = self.options.window.saturating_sub(self.loaded);
        states.min(self.options.deferred.saturating_sub(self.deferred))
    }

    /// Puts a state at the end of its lane. Positions are pushed in order.
    pub fn push(&mut self, state: Arc<State>) {
        let (seq, key) = (state.seq, state.lane());
        self.positions.open(seq, Open { lane: key, observed_ms: state.observed_ms });
        self.supersede(key);
        let lane = self.lanes.entry(key).or_default();
        let deep = lane.queue.len() >= self.options.depth || self.loaded >= self.options.window;
        // What is held of a lane are the first of its states, so that its head is among them.
        let follows = lane.loaded == lane.queue.len();
        let state = (!deep && follows && lane.held.is_empty()).then_some(state);
        self.loaded += usize::from(state.is_some());
        self.deferred += usize::from(state.is_none());
        lane.insert(Slot { seq, state, failed: None, not_before: Duration::ZERO, origin: Origin::Journal });
        self.place(key, false);
    }

    /// A state that the subscription does not want.
    pub fn filter(&mut self, seq: Seq) {
        self.filtered += 1;
        self.positions.read_through(seq);
    }

    /// Nothing for this plugin lies between what was read and this position.
    pub fn skip_to(&mut self, seq: Seq) {
        self.positions.read_through(seq);
    }

    /// A dead letter from before the start; under `hold` its lane is told by [`hold`](Self::hold).
    pub fn park(&mut self, seq: Seq) {
        self.parked.insert(seq);
    }

    /// Under `hold`, keeps a lane from going past a position until that position is finished.
    pub fn hold(&mut self, seq: Seq, key: LaneKey) {
        if self.options.on_dead_letter == OnDeadLetter::Hold {
            self.lanes.entry(key).or_default().held.insert(seq);
        }
    }

    /// Takes a dead letter back. Its state will be [`wanted`](Self::wanted) and then goes into
    /// its lane in the order of positions.
    pub fn replay(&mut self, letter: &DeadLetter) {
        self.parked.remove(&letter.seq);
        self.replays.insert(letter.seq, Prior { attempts: letter.attempts, first_ms: letter.first_ms });
    }

    /// Positions whose states are needed now, at most `max`.
    pub fn wanted(&self, max: usize) -> Vec<Seq> {
        let max = max.min(self.options.window.saturating_sub(self.loaded));
        // Letters taken back by the thousand share the window with what is new.
        let replays = (self.options.window / 4).max(1).saturating_sub(self.replaying).min(max);
        let mut seqs: Vec<Seq> = self.replays.keys().copied().take(replays).collect();
        for lane in self.hungry.iter().filter_map(|key| self.lanes.get(key)) {
            if seqs.len() >= max {
                break;
            }
            let depth = self.options.depth - lane.loaded.min(self.options.depth);
            seqs.extend(lane.unloaded(depth.max(1).min(max - seqs.len())));
        }
        seqs
    }

    /// The answer to [`wanted`](Self::wanted). Returns the positions that the journal no longer
    /// has: they are finished without having been delivered, and counted nowhere.
    pub fn fill(&mut self, asked: &[Seq], states: Vec<Arc<State>>) -> Vec<Seq> {
        let mut found: HashMap<Seq, Arc<State>> =
            states.into_iter().map(|state| (state.seq, state)).collect();
        asked.iter().copied().filter(|&seq| !self.fill_one(seq, found.remove(&seq))).collect()
    }

    fn fill_one(&mut self, seq: Seq, state: Option<Arc<State>>) -> bool {
        let known = state.is_some();
        if let Some(prior) = self.replays.remove(&seq) {
            match state {
                Some(state) => self.take_back(seq, state, prior),
                None => self.forget(seq),
            }
            return known;
        }
        let Some(Open { lane: key, .. }) = self.positions.get(seq) else { return true };
        let Some(lane) = self.lanes.get_mut(&key) else { return true };
        match (lane.get_mut(seq), state) {
            (Some(slot), Some(state)) if slot.state.is_none() => {
                slot.state = Some(state);
                lane.loaded += 1;
                self.loaded += 1;
                self.deferred -= 1;
            }
            (Some(slot), None) if slot.state.is_none() => {
                lane.remove(seq);
                self.deferred -= 1;
                self.positions.finish(seq);
            }
            _ => return true,
        }
        self.place(key, false);
        known
    }

    /// A dead letter whose state the journal no longer has can't be delivered by anybody.
    fn forget(&mut self, seq: Seq) {
        self.letters.revived.push(seq);
        let holder = self.lanes.iter().find(|(_, lane)| lane.held.contains(&seq)).map(|(key, _)| *key);
        if let Some(key) = holder {
            if let Some(lane) = self.lanes.get_mut(&key) {
                lane.held.remove(&seq);
            }
            self.place(key, false);
        }
    }

    fn take_back(&mut self, seq: Seq, state: Arc<State>, prior: Prior) {
        let key = state.lane();
        self.supersede(key);
        let lane = self.lanes.entry(key).or_default();
        lane.held.remove(&seq);
        lane.insert(Slot {
            seq,
            state: Some(state),
            failed: None,
            not_before: Duration::ZERO,
            origin: Origin::Letter(prior),
        });
        self.loaded += 1;
        self.replaying += 1;
        self.place(key, false);
    }

    // ---- out -----------------------------------------------------------------------------

    /// The next batch: the heads of at most `max` lanes, each in flight until it is
    /// [`finish`](Self::finish)ed or [given back](Self::give_back).
    pub fn take(&mut self, now: Duration, max: usize) -> Vec<Delivery> {
        self.wake(now);
        let mut batch = Vec::new();
        while batch.len() < max {
            let Some(key) = self.ready.pop_front() else { break };
            let Some(lane) = self.lanes.get_mut(&key) else { continue };
            let Some((slot, state)) = lane.queue.front().and_then(|slot| Some((slot, slot.state.as_ref()?)))
            else {
                continue;
            };
            let attempt = slot.attempts() + 1;
            let resync = slot.origin == Origin::Resync;
            batch.push(Delivery { state: Arc::clone(state), attempt, resync });
            self.flying.insert(slot.seq, key);
            lane.place = Place::Flying;
        }
        batch
    }

    /// Whether a batch could be taken.
    pub fn has_ready(&self, now: Duration) -> bool {
        !self.ready.is_empty() || self.next_wake().is_some_and(|at| at <= now)
    }

    /// When the first delayed lane is due.
    pub fn next_wake(&self) -> Option<Duration> {
        self.delayed.first().map(|(at, _)| *at)
    }

    fn wake(&mut self, now: Duration) {
        while self.delayed.first().is_some_and(|(at, _)| *at <= now) {
            let Some((_, key)) = self.delayed.pop_first() else { break };
            if let Some(slot) = self.lanes.get_mut(&key).and_then(|lane| lane.queue.front_mut()) {
                slot.not_before = Duration::ZERO;
            }
            self.place(key, false);
        }
    }

    /// A verdict on a state in flight.
    pub fn finish(&mut self, seq: Seq, verdict: Verdict, now: Now) -> Settled {
        let Some(key) = self.land(seq) else { return Settled::Unknown };
        let settled = match verdict {
            Verdict::Done => self.deliver(key, seq),
            Verdict::Retry { after_ms, reason } => self.retry(key, seq, after_ms, &reason, now),
            Verdict::Reject(reason) => {
                self.fail(key, seq, now);
                self.bury(key, seq, &reason, now)
            }
        };
        self.place(key, false);
        settled
    }

    /// A state in flight that was not tried after all: it is the next of its lane, and its lane
    /// the next in line.
    pub fn give_back(&mut self, seq: Seq) {
        if let Some(key) = self.land(seq) {
            self.make_way(key, seq);
            self.place(key, true);
        }
    }

    fn deliver(&mut self, key: LaneKey, seq: Seq) -> Settled {
        let Some(slot) = self.close(key, seq) else { return Settled::Unknown };
        if slot.origin == Origin::Resync {
            self.resync.delivered += 1;
            return Settled::Resynced;
        }
        self.delivered += 1;
        if let Origin::Letter(_) = slot.origin {
            self.letters.revived.push(seq);
        }
        Settled::Delivered
    }

    fn retry(&mut self, key: LaneKey, seq: Seq, after_ms: Option<u64>, reason: &str, now: Now) -> Settled {
        let tries = self.fail(key, seq, now);
        if self.make_way(key, seq) {
            return Settled::Superseded;
        }
        if tries > self.options.retries {
            return self.bury(key, seq, reason, now);
        }
        let pause = match after_ms {
            Some(after) => Duration::from_millis(after).min(limits::PLUGIN_DELAY),
            None => self.options.pause(tries),
        };
        let at = now.elapsed + pause;
        if let Some(slot) = self.lanes.get_mut(&key).and_then(|lane| lane.get_mut(seq)) {
            slot.not_before = at;
        }
        Settled::Retried(at)
    }

    /// Counts a failed try; says how many there were.
    fn fail(&mut self, key: LaneKey, seq: Seq, now: Now) -> u32 {
        let Some(slot) = self.lanes.get_mut(&key).and_then(|lane| lane.get_mut(seq)) else { return 0 };
        let failed = slot.failed.get_or_insert(Failed { tries: 0, first_ms: now.wall_ms });
        self.retrying += u64::from(failed.tries == 0 && slot.origin != Origin::Resync);
        failed.tries += 1;
        failed.tries
    }

    fn bury(&mut self, key: LaneKey, seq: Seq, reason: &str, now: Now) -> Settled {
        let Some(slot) = self.close(key, seq) else { return Settled::Unknown };
        let attempts = slot.attempts();
        let Slot { state: Some(state), failed, origin, .. } = slot else { return Settled::Unknown };
        let prior = match origin {
            Origin::Journal => None,
            Origin::Letter(prior) => Some(prior),
            Origin::Resync => {
                self.resync.failed += 1;
                return Settled::Dropped;
            }
        };
        self.parked.insert(seq);
        self.letters.parked.push(DeadLetter {
            plugin: self.options.plugin.clone(),
            seq,
            id: state.id.clone(),
            attempts,
            error: cut(reason),
            first_ms: prior.map(|prior| prior.first_ms).or(failed.map(|f| f.first_ms)).unwrap_or(now.wall_ms),
            last_ms: now.wall_ms,
            replaying: false,
        });
        self.hold(seq, key);
        if self.options.on_dead_letter == OnDeadLetter::Hold
            && let Some(lane) = self.lanes.get_mut(&key)
        {
            let unloaded = lane.unload();
            self.loaded -= unloaded;
            self.deferred += unloaded;
        }
        Settled::Parked
    }

    /// Takes a slot that is finished out of its lane and the accounts.
    fn close(&mut self, key: LaneKey, seq: Seq) -> Option<Slot> {
        let slot = self.lanes.get_mut(&key)?.remove(seq)?;
        self.loaded -= usize::from(slot.state.is_some());
        self.retrying -= u64::from(slot.failed.is_some() && slot.origin != Origin::Resync);
        match slot.origin {
            Origin::Journal => self.positions.finish(seq),
            Origin::Letter(_) => self.replaying -= 1,
            Origin::Resync => self.resync.held -= 1,
        }
        Some(slot)
    }

    fn land(&mut self, seq: Seq) -> Option<LaneKey> {
        let key = self.flying.remove(&seq)?;
        self.lanes.get_mut(&key)?.place = Place::Idle;
        Some(key)
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
                // Rare: a resync that was ready made way for a state that has to be read again.
                Place::Ready => self.ready.retain(|other| *other != key),
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
        self.positions.oldest().map(|open| open.observed_ms)
    }

    pub fn stats(&self) -> LaneStats {
        LaneStats {
            delivered: self.delivered,
            filtered: self.filtered,
            dead: self.parked.len() as u64,
            waiting: (self.positions.open_count() + self.replaying + self.replays.len()) as u64,
            retrying: self.retrying,
            in_flight: self.flying.len() as u64,
            resynced: self.resync.delivered,
            resync_skipped: self.resync.skipped,
            resync_failed: self.resync.failed,
        }
    }

    /// What to keep; the caller knows where the subscription starts.
    pub fn progress(&self) -> Progress {
        Progress {
            cursor: self.positions.cursor(),
            above: self.positions.above(),
            delivered: self.delivered,
            filtered: self.filtered,
            dead: self.parked.len() as u64,
            ..Progress::default()
        }
    }

    /// The letters since the last time: to be kept in the same save as [`progress`](Self::progress).
    pub fn take_letters(&mut self) -> Letters {
        std::mem::take(&mut self.letters)
    }
}

/// Keeps an error text within its bound, at a character's end.
fn cut(text: &str) -> String {
    text[..text.floor_char_boundary(limits::ERROR_TEXT)].to_owned()
}
