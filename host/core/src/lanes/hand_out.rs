//! Hands states out in batches, and applies their verdicts.

use std::time::Duration;

use super::lane::{FailedTries, LanePlace, LaneSlot, SlotOrigin};
use super::turns::in_flight::FlightEntry;
use super::turns::latest::LatestKey;
use super::{ClockReading, Lanes, SettledAs};
use crate::config::OnDeadLetter;
use crate::limits;
use crate::ports::{DeadLetter, StateDelivery, Try, Verdict};
use crate::state::{LaneKey, Seq};

impl Lanes {
    /// Takes the next batch: the heads of at most `max` lanes. Each is in flight until it is
    /// [`apply_verdict`](Self::apply_verdict)ed or [given back](Self::return_untried). A rate may make the batch smaller or
    /// empty.
    pub fn take(&mut self, now: Duration, max: usize) -> Vec<StateDelivery> {
        self.wake_due_lanes(now);
        let mut batch = Vec::new();
        let max = max.min(self.allowed_states(now));
        while batch.len() < max {
            let Some(key) = self.ready.pop() else { break };
            let Some(lane) = self.lanes.get_mut(&key) else { continue };
            let Some((slot, state)) = lane.hand_over_head() else { continue };
            let attempt = slot.count_attempts() + 1;
            let resync = slot.origin == SlotOrigin::Resync;
            let (seq, since) = (slot.seq, slot.since);
            batch.push(StateDelivery { state, attempt, resync });
            self.meter.waited.observe_time(now.saturating_sub(since));
            self.flying.insert(seq, key, now);
            lane.place = LanePlace::Flying;
        }
        if let Some(rate) = &mut self.rate {
            rate.spend_tokens(batch.len(), now);
        }
        if let Some(rate) = self.call_rate.as_mut().filter(|_| !batch.is_empty()) {
            rate.spend_tokens(1, now);
        }
        batch
    }

    /// The number of states that the rates allow in one call now.
    fn allowed_states(&self, now: Duration) -> usize {
        let is_allowed = self.call_rate.as_ref().is_none_or(|rate| rate.available_tokens(now) > 0);
        let states = self.rate.as_ref().map_or(usize::MAX, |rate| rate.available_tokens(now));
        if is_allowed { states } else { 0 }
    }

    /// When the rates allow a call again, if the call waits for them.
    fn rates_due(&self) -> Duration {
        let rates = [&self.rate, &self.call_rate];
        rates.into_iter().flatten().map(|rate| rate.due_at(1)).max().unwrap_or_default()
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

    fn wake_due_lanes(&mut self, now: Duration) {
        while self.delayed.first().is_some_and(|(at, _)| *at <= now) {
            let Some((at, key)) = self.delayed.pop_first() else { break };
            if let Some(slot) = self.lanes.get_mut(&key).and_then(|lane| lane.queue.front_mut()) {
                slot.not_before = Duration::ZERO;
                slot.since = at;
                self.meter.adds += 1;
            }
            self.place_lane(key, false);
        }
    }

    /// Applies a verdict to a state in flight.
    pub fn apply_verdict(&mut self, seq: Seq, verdict: Verdict, now: ClockReading) -> SettledAs {
        let Some(FlightEntry { lane: key, since }) = self.finish_flight(seq, now.elapsed) else {
            return SettledAs::Unknown;
        };
        let took = now.elapsed.saturating_sub(since);
        let settled = match verdict {
            Verdict::Done => self.finish_delivered(key, seq),
            Verdict::Retry { after_ms, reason } => {
                self.count_failed_try(key, seq, &reason, took, now);
                self.schedule_retry(key, seq, after_ms, &reason, now)
            }
            Verdict::Reject(reason) => {
                self.count_failed_try(key, seq, &reason, took, now);
                self.park_dead_letter(key, seq, &reason, now)
            }
        };
        self.place_lane(key, false);
        settled
    }

    /// Gives back a state in flight that was not tried. It is the next of its lane, and its lane is the next
    /// in line.
    pub fn return_untried(&mut self, seq: Seq, now: Duration) {
        if let Some(FlightEntry { lane: key, .. }) = self.finish_flight(seq, now) {
            self.keep_receipt_of(key, seq);
            if !self.drop_failed_resync(key, seq) {
                self.drop_superseded(key, seq);
            }
            self.place_lane(key, true);
        }
    }

    /// Puts a state that the plugin has refused off until this moment. It counts no try, and other lanes have their turns
    /// meanwhile.
    pub fn postpone_state(&mut self, seq: Seq, until: Duration, now: Duration) {
        let Some(FlightEntry { lane: key, .. }) = self.finish_flight(seq, now) else { return };
        self.note_refusal(key, seq);
        if !self.drop_failed_resync(key, seq)
            && !self.drop_superseded(key, seq)
            && let Some(slot) = self.lanes.get_mut(&key).and_then(|lane| lane.get_mut(seq))
        {
            slot.not_before = until;
        }
        self.place_lane(key, false);
    }

    fn finish_delivered(&mut self, key: LaneKey, seq: Seq) -> SettledAs {
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

    fn schedule_retry(
        &mut self,
        key: LaneKey,
        seq: Seq,
        after_ms: Option<u64>,
        reason: &str,
        now: ClockReading,
    ) -> SettledAs {
        if self.drop_failed_resync(key, seq) || self.drop_superseded(key, seq) {
            return SettledAs::Superseded;
        }
        let slot = self.lanes.get(&key).and_then(|lane| lane.queue.get(lane.index_of(seq)?));
        let tries = slot.and_then(|slot| slot.failed).map_or(0, |failed| failed.tries);
        if tries > self.options.retries {
            return self.park_dead_letter(key, seq, reason, now);
        }
        let pause = match after_ms {
            Some(after) => Duration::from_millis(after).min(limits::PLUGIN_DELAY),
            None => {
                let longest = self.options.max_backoff;
                let pooled = self.retry_rate.as_mut().map(|rate| rate.reserve_token(now.elapsed, longest));
                self.options.pause_after_tries(tries).max(pooled.unwrap_or_default())
            }
        };
        let at = now.elapsed + pause;
        if let Some(slot) = self.lanes.get_mut(&key).and_then(|lane| lane.get_mut(seq)) {
            slot.not_before = at;
        }
        if pause >= self.options.owe_after {
            self.owe_whole_lane(key);
        }
        self.meter.retries += 1;
        SettledAs::Retried(at)
    }

    /// Counts a failed try.
    fn count_failed_try(&mut self, key: LaneKey, seq: Seq, reason: &str, took: Duration, now: ClockReading) {
        let Some(lane) = self.lanes.get_mut(&key) else { return };
        let Some(slot) = lane.get_mut(seq) else { return };
        let attempt = slot.count_attempts() + 1;
        let failed = slot.failed.get_or_insert(FailedTries { tries: 0, first_ms: now.wall_ms });
        self.retrying += u64::from(failed.tries == 0 && slot.origin != SlotOrigin::Resync);
        failed.tries += 1;
        let took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        slot.push_try(Try {
            attempt,
            at_ms: now.wall_ms,
            took_ms,
            error: cut_text(reason, limits::TRY_TEXT),
        });
        self.note_refusal(key, seq);
    }

    fn park_dead_letter(&mut self, key: LaneKey, seq: Seq, reason: &str, now: ClockReading) -> SettledAs {
        let Some(slot) = self.close(key, seq) else { return SettledAs::Unknown };
        let attempts = slot.count_attempts();
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
            error: cut_text(reason, limits::ERROR_TEXT),
            first_ms: prior.map(|prior| prior.first_ms).or(failed.map(|f| f.first_ms)).unwrap_or(now.wall_ms),
            last_ms: now.wall_ms,
            replaying: false,
            dropped: false,
            tries,
        });
        match self.options.on_dead_letter {
            OnDeadLetter::Hold => {
                self.hold_lane_at(seq, key);
                self.owe_lane_after(key, seq);
            }
            // After a kill this state would be owed again, and would come after states that had passed it.
            OnDeadLetter::Continue if is_new => {
                self.lanes.entry(key).or_default().held.insert(seq);
                self.unsaved_letters.insert(seq, key);
            }
            OnDeadLetter::Continue => {}
        }
        SettledAs::Parked
    }

    // ---- only the latest -----------------------------------------------------------------

    /// Replaces states that wait in a lane and are not in flight by a newer state of the same object.
    pub(super) fn drop_waiting_superseded(&mut self, key: LaneKey, newer: LatestKey) {
        let Some(lane) = self.lanes.get(&key) else { return };
        // A replayed letter can lie before the state in flight.
        let waits = lane.queue.iter().filter(|slot| !self.flying.contains(slot.seq));
        let old = waits.filter(|slot| slot.latest.is_some_and(|latest| latest.is_superseded_by(newer)));
        let old: Vec<Seq> = old.map(|slot| slot.seq).collect();
        for seq in old {
            self.close_superseded(key, seq);
        }
    }

    /// Drops a state that failed, if a newer state of its object waits.
    fn drop_superseded(&mut self, key: LaneKey, seq: Seq) -> bool {
        let is_old = self.lanes.get(&key).is_some_and(|lane| {
            let Some(index) = lane.index_of(seq) else { return false };
            let newer = |latest: LatestKey| {
                lane.queue
                    .iter()
                    .skip(index + 1)
                    .any(|slot| slot.latest.is_some_and(|newer| latest.is_superseded_by(newer)))
            };
            lane.queue[index].latest.is_some_and(newer)
        });
        if is_old {
            self.close_superseded(key, seq);
        }
        is_old
    }

    fn close_superseded(&mut self, key: LaneKey, seq: Seq) {
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
            Some(_) => self.shares.unload_states(key.namespace, 1),
            None => self.shares.recall_positions(key.namespace, 1),
        }
        self.retrying -= u64::from(slot.failed.is_some() && slot.origin != SlotOrigin::Resync);
        match slot.origin {
            SlotOrigin::Journal => self.positions.finish_position(seq),
            SlotOrigin::Owed => {
                self.debts.states -= 1;
                self.debts.unsaved.remove(&seq);
            }
            SlotOrigin::Letter(_) => self.replaying -= 1,
            SlotOrigin::Resync => self.resync.held -= 1,
        }
        Some(slot)
    }

    fn finish_flight(&mut self, seq: Seq, now: Duration) -> Option<FlightEntry> {
        let flight = self.flying.remove(seq)?;
        self.meter.worked.observe_time(now.saturating_sub(flight.since));
        self.lanes.get_mut(&flight.lane)?.place = LanePlace::Idle;
        Some(flight)
    }
}

/// Cuts a text to at most this many bytes, at the end of a character.
pub(super) fn cut_text(text: &str, bytes: usize) -> String {
    text[..text.floor_char_boundary(bytes)].to_owned()
}
