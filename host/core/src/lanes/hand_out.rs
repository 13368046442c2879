//! Hands states out in batches, and applies their verdicts.

use std::sync::Arc;
use std::time::Duration;

use super::lane::{FailedTries, LanePlace, LaneSlot, LatestKey, SlotOrigin};
use super::turns::in_flight::FlightEntry;
use super::{ClockReading, Lanes, SettledAs};
use crate::config::OnDeadLetter;
use crate::limits;
use crate::ports::{DeadLetter, StateDelivery, Try, Verdict};
use crate::state::{LaneKey, Seq};

impl Lanes {
    /// Takes the next batch: the heads of at most `max` lanes. Each is in flight until it is
    /// [`finish`](Self::finish)ed or [given back](Self::give_back). A rate may make the batch smaller or
    /// empty.
    pub fn take(&mut self, now: Duration, max: usize) -> Vec<StateDelivery> {
        self.wake(now);
        let mut batch = Vec::new();
        let max = max.min(self.allowance(now));
        while batch.len() < max {
            let Some(key) = self.ready.pop() else { break };
            let Some(lane) = self.lanes.get_mut(&key) else { continue };
            let Some((slot, state)) = lane.queue.front().and_then(|slot| Some((slot, slot.state.as_ref()?)))
            else {
                continue;
            };
            let attempt = slot.attempts() + 1;
            let resync = slot.origin == SlotOrigin::Resync;
            if matches!(slot.origin, SlotOrigin::Letter(_) | SlotOrigin::Owed) {
                self.debts.recalled.insert(slot.seq);
            }
            batch.push(StateDelivery { state: Arc::clone(state), attempt, resync });
            self.meter.waited.observe(now.saturating_sub(slot.since));
            self.flying.insert(slot.seq, key, now);
            lane.place = LanePlace::Flying;
        }
        if let Some(rate) = &mut self.rate {
            rate.spend(batch.len(), now);
        }
        if let Some(rate) = self.call_rate.as_mut().filter(|_| !batch.is_empty()) {
            rate.spend(1, now);
        }
        batch
    }

    /// The number of states that the rates allow in one call now.
    fn allowance(&self, now: Duration) -> usize {
        let is_allowed = self.call_rate.as_ref().is_none_or(|rate| rate.available(now) > 0);
        let states = self.rate.as_ref().map_or(usize::MAX, |rate| rate.available(now));
        if is_allowed { states } else { 0 }
    }

    /// When the rates allow a call again, if the call waits for them.
    fn rates_due(&self) -> Duration {
        let rates = [&self.rate, &self.call_rate];
        rates.into_iter().flatten().map(|rate| rate.due(1)).max().unwrap_or_default()
    }

    /// Whether a batch is ready, apart from the rates.
    pub fn has_ready(&self, now: Duration) -> bool {
        !self.ready.is_empty() || self.delayed.first().is_some_and(|(at, _)| *at <= now)
    }

    /// The next moment at which a batch becomes possible: a delayed lane is due, or a rate allows what is
    /// ready.
    pub fn next_wake(&self) -> Option<Duration> {
        let due = if self.ready.is_empty() {
            self.delayed.first().map(|(at, _)| *at)
        } else {
            Some(Duration::ZERO)
        };
        due.map(|at| at.max(self.rates_due()))
    }

    fn wake(&mut self, now: Duration) {
        while self.delayed.first().is_some_and(|(at, _)| *at <= now) {
            let Some((at, key)) = self.delayed.pop_first() else { break };
            if let Some(slot) = self.lanes.get_mut(&key).and_then(|lane| lane.queue.front_mut()) {
                slot.not_before = Duration::ZERO;
                slot.since = at;
                self.meter.adds += 1;
            }
            self.place(key, false);
        }
    }

    /// Applies a verdict to a state in flight.
    pub fn finish(&mut self, seq: Seq, verdict: Verdict, now: ClockReading) -> SettledAs {
        let Some(FlightEntry { lane: key, since }) = self.finish_flight(seq, now.elapsed) else {
            return SettledAs::Unknown;
        };
        let took = now.elapsed.saturating_sub(since);
        let settled = match verdict {
            Verdict::Done => self.deliver(key, seq),
            Verdict::Retry { after_ms, reason } => {
                self.fail(key, seq, &reason, took, now);
                self.retry(key, seq, after_ms, &reason, now)
            }
            Verdict::Reject(reason) => {
                self.fail(key, seq, &reason, took, now);
                self.bury(key, seq, &reason, now)
            }
        };
        self.place(key, false);
        settled
    }

    /// Gives back a state in flight that was not tried. It is the next of its lane, and its lane is the next
    /// in line.
    pub fn give_back(&mut self, seq: Seq, now: Duration) {
        if let Some(FlightEntry { lane: key, .. }) = self.finish_flight(seq, now) {
            if !self.make_way(key, seq) {
                self.give_way(key, seq);
            }
            self.place(key, true);
        }
    }

    /// Puts a state in flight off until this moment. It counts no try, and other lanes have their turns meanwhile.
    pub fn put_off(&mut self, seq: Seq, until: Duration, now: Duration) {
        let Some(FlightEntry { lane: key, .. }) = self.finish_flight(seq, now) else { return };
        if !self.make_way(key, seq)
            && !self.give_way(key, seq)
            && let Some(slot) = self.lanes.get_mut(&key).and_then(|lane| lane.get_mut(seq))
        {
            slot.not_before = until;
        }
        self.place(key, false);
    }

    fn deliver(&mut self, key: LaneKey, seq: Seq) -> SettledAs {
        let Some(slot) = self.close(key, seq) else { return SettledAs::Unknown };
        if slot.origin == SlotOrigin::Resync {
            self.resync.delivered += 1;
            return SettledAs::Resynced;
        }
        self.delivered += 1;
        match slot.origin {
            SlotOrigin::Letter(_) => self.letters.revived.push(seq),
            SlotOrigin::Owed => self.note_finished_row(seq),
            SlotOrigin::Journal | SlotOrigin::Resync => {}
        }
        SettledAs::Delivered
    }

    fn retry(
        &mut self,
        key: LaneKey,
        seq: Seq,
        after_ms: Option<u64>,
        reason: &str,
        now: ClockReading,
    ) -> SettledAs {
        if self.make_way(key, seq) || self.give_way(key, seq) {
            return SettledAs::Superseded;
        }
        let slot = self.lanes.get(&key).and_then(|lane| lane.queue.get(lane.index(seq)?));
        let tries = slot.and_then(|slot| slot.failed).map_or(0, |failed| failed.tries);
        if tries > self.options.retries {
            return self.bury(key, seq, reason, now);
        }
        let pause = match after_ms {
            Some(after) => Duration::from_millis(after).min(limits::PLUGIN_DELAY),
            None => {
                let longest = self.options.max_backoff;
                let pooled = self.retry_rate.as_mut().map(|rate| rate.reserve(now.elapsed, longest));
                self.options.pause(tries).max(pooled.unwrap_or_default())
            }
        };
        let at = now.elapsed + pause;
        if let Some(slot) = self.lanes.get_mut(&key).and_then(|lane| lane.get_mut(seq)) {
            slot.not_before = at;
        }
        // The plugin answered, so nothing of this call was applied.
        self.debts.recalled.remove(&seq);
        if pause >= self.options.owe_after {
            self.owe_all(key);
        }
        self.meter.retries += 1;
        SettledAs::Retried(at)
    }

    /// Counts a failed try.
    fn fail(&mut self, key: LaneKey, seq: Seq, reason: &str, took: Duration, now: ClockReading) {
        let Some(slot) = self.lanes.get_mut(&key).and_then(|lane| lane.get_mut(seq)) else { return };
        let attempt = slot.attempts() + 1;
        let failed = slot.failed.get_or_insert(FailedTries { tries: 0, first_ms: now.wall_ms });
        self.retrying += u64::from(failed.tries == 0 && slot.origin != SlotOrigin::Resync);
        failed.tries += 1;
        let took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        slot.tried(Try { attempt, at_ms: now.wall_ms, took_ms, error: cut(reason, limits::TRY_TEXT) });
    }

    fn bury(&mut self, key: LaneKey, seq: Seq, reason: &str, now: ClockReading) -> SettledAs {
        let Some(slot) = self.close(key, seq) else { return SettledAs::Unknown };
        let attempts = slot.attempts();
        let LaneSlot { state: Some(state), failed, origin, tries, .. } = slot else {
            return SettledAs::Unknown;
        };
        let prior = match origin {
            SlotOrigin::Journal | SlotOrigin::Owed => None,
            SlotOrigin::Letter(prior) => Some(prior),
            SlotOrigin::Resync => {
                self.resync.failed += 1;
                return SettledAs::Dropped;
            }
        };
        let is_new = prior.is_none();
        if origin == SlotOrigin::Owed {
            // The letter takes the place of the row.
            self.debts.finished.insert(seq);
        }
        self.parked.insert(seq);
        self.letters.parked.push(DeadLetter {
            plugin: self.options.plugin.clone(),
            seq,
            id: state.id.clone(),
            attempts,
            error: cut(reason, limits::ERROR_TEXT),
            first_ms: prior.map(|prior| prior.first_ms).or(failed.map(|f| f.first_ms)).unwrap_or(now.wall_ms),
            last_ms: now.wall_ms,
            replaying: false,
            dropped: false,
            tries,
        });
        match self.options.on_dead_letter {
            OnDeadLetter::Hold => {
                self.hold(seq, key);
                self.owe_lane(key, seq);
            }
            // After a kill this state would be owed again, and would come after states that had passed it.
            OnDeadLetter::Continue if is_new => {
                self.lanes.entry(key).or_default().held.insert(seq);
                self.unkept.insert(seq, key);
            }
            OnDeadLetter::Continue => {}
        }
        SettledAs::Parked
    }

    // ---- only the latest -----------------------------------------------------------------

    /// Replaces states that wait in a lane and are not in flight by a newer state of the same object.
    pub(super) fn replace(&mut self, key: LaneKey, newer: LatestKey) {
        let Some(lane) = self.lanes.get(&key) else { return };
        // A replayed letter can lie before the state in flight.
        let waits = lane.queue.iter().filter(|slot| !self.flying.contains(slot.seq));
        let old = waits.filter(|slot| slot.latest.is_some_and(|latest| latest.gives_way_to(newer)));
        let old: Vec<Seq> = old.map(|slot| slot.seq).collect();
        for seq in old {
            self.let_go(key, seq);
        }
    }

    /// Drops a state that failed, if a newer state of its object waits.
    fn give_way(&mut self, key: LaneKey, seq: Seq) -> bool {
        let is_old = self.lanes.get(&key).is_some_and(|lane| {
            let Some(index) = lane.index(seq) else { return false };
            let newer = |latest: LatestKey| {
                lane.queue
                    .iter()
                    .skip(index + 1)
                    .any(|slot| slot.latest.is_some_and(|newer| latest.gives_way_to(newer)))
            };
            lane.queue[index].latest.is_some_and(newer)
        });
        if is_old {
            self.let_go(key, seq);
        }
        is_old
    }

    fn let_go(&mut self, key: LaneKey, seq: Seq) {
        if let Some(slot) = self.close(key, seq) {
            self.filtered += 1;
            self.superseded += 1;
            if slot.origin == SlotOrigin::Owed {
                self.note_finished_row(seq);
            }
        }
    }

    // ---- common --------------------------------------------------------------------------

    /// Removes a finished slot from its lane and from the accounts.
    pub(super) fn close(&mut self, key: LaneKey, seq: Seq) -> Option<LaneSlot> {
        let slot = self.lanes.get_mut(&key)?.remove(seq)?;
        match slot.state {
            Some(_) => self.shares.unload(key.namespace, 1),
            None => self.shares.recall(key.namespace, 1),
        }
        self.retrying -= u64::from(slot.failed.is_some() && slot.origin != SlotOrigin::Resync);
        match slot.origin {
            SlotOrigin::Journal => self.positions.finish(seq),
            SlotOrigin::Owed => {
                self.debts.states -= 1;
                self.debts.unsaved.remove(&seq);
            }
            SlotOrigin::Letter(_) => self.replaying -= 1,
            SlotOrigin::Resync => self.resync.held -= 1,
        }
        self.debts.recalled.remove(&seq);
        Some(slot)
    }

    fn finish_flight(&mut self, seq: Seq, now: Duration) -> Option<FlightEntry> {
        let flight = self.flying.remove(seq)?;
        self.meter.worked.observe(now.saturating_sub(flight.since));
        self.lanes.get_mut(&flight.lane)?.place = LanePlace::Idle;
        Some(flight)
    }
}

/// Cuts a text to at most this many bytes, at the end of a character.
pub(super) fn cut(text: &str, bytes: usize) -> String {
    text[..text.floor_char_boundary(bytes)].to_owned()
}
