//! Decides who holds the Lease and which request comes next. Pure: the caller passes the monotonic time, what
//! was read and what was written.
//!
//! Wall clocks are never compared, because they may be wrong. Another replica's hold has expired if its
//! record did not change for the duration in the record, counted from when this replica first saw it. Our own
//! duration is the maximum: otherwise somebody could write a Lease with a long duration and block every
//! failover, even after its deletion. So replicas that share a journal need the same settings. Our own hold
//! counts from before the request that proved it, and is shorter. So this replica has stopped by the time
//! another may take the Lease.
//!
//! A Lease that does not exist and was never seen is created at once. Suppose somebody deletes a held Lease,
//! and a replica that never saw it starts before the holder has created it again. Then two replicas may
//! believe for a moment that they lead. A Lease is not a fence; the store has one.
//!
//! An election crate was rejected: it would bring its own clock and client. This machine has neither, so
//! tests drive it through any order of times and answers.

use tokio::time::Instant;

use super::record::LeaseRecord;
use super::timing::LeaseTiming;
use crate::connect::backoff::JitterDice;

/// The next step of the machine.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum LeaseStep {
    Wait(Instant),
    Read,
    Create,
    /// Replace exactly this version.
    Claim(LeaseRecord),
}

/// A hold that expired and is regained is a new term. So is one whose Lease somebody else wrote in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeaseHold {
    pub term: u64,
    pub until: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NextRequest {
    Read,
    Create,
    Claim,
}

struct SeenLease {
    lease: LeaseRecord,
    /// When this content was first seen.
    since: Instant,
}

pub(crate) struct LeaseMachine {
    identity: String,
    timing: LeaseTiming,
    dice: JitterDice,
    next: NextRequest,
    due: Instant,
    seen: Option<SeenLease>,
    /// Until when the holder of a deleted Lease may believe in its hold.
    deleted: Option<Instant>,
    hold: Option<LeaseHold>,
    terms: u64,
    /// The last write was overtaken, and reading again at once did not help.
    hurried: bool,
    /// A write was sent and not answered, so it may still take effect.
    unsure: bool,
}

impl LeaseMachine {
    pub fn new(identity: String, timing: LeaseTiming, dice: JitterDice, now: Instant) -> Self {
        Self {
            identity,
            timing,
            dice,
            next: NextRequest::Read,
            due: now,
            seen: None,
            deleted: None,
            hold: None,
            terms: 0,
            hurried: false,
            unsure: false,
        }
    }

    pub fn next_step(&self, now: Instant) -> LeaseStep {
        match (&self.next, &self.seen) {
            _ if now < self.due => LeaseStep::Wait(self.due),
            (NextRequest::Create, _) => LeaseStep::Create,
            (NextRequest::Claim, Some(seen)) => LeaseStep::Claim(seen.lease.clone()),
            (NextRequest::Read | NextRequest::Claim, _) => LeaseStep::Read,
        }
    }

    /// Our own hold, while it is valid.
    pub fn valid_hold(&self, now: Instant) -> Option<LeaseHold> {
        self.hold.filter(|hold| now < hold.until)
    }

    pub fn seen_lease(&self) -> Option<&LeaseRecord> {
        self.seen.as_ref().map(|seen| &seen.lease)
    }

    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// Takes the result of a read; `None` if the Lease does not exist.
    pub fn lease_read(&mut self, now: Instant, lease: Option<LeaseRecord>) {
        let may_be_our_write = std::mem::take(&mut self.unsure);
        let Some(lease) = lease else {
            self.note_deleted();
            return if self.is_other_hold_over(now) {
                self.schedule_request(NextRequest::Create, now);
            } else {
                self.pause_then_read(now);
            };
        };
        // Otherwise another replica may have held it between two reads and begun its own term in the store.
        let is_as_we_left_it =
            may_be_our_write || self.seen_lease().is_some_and(|seen| seen.is_unchanged(&lease));
        if lease.holder != self.identity || !is_as_we_left_it {
            self.hold = None;
        }
        self.note_lease(now, lease);
        if self.is_other_hold_over(now) {
            self.schedule_request(NextRequest::Claim, now);
        } else {
            self.pause_then_read(now);
        }
    }

    /// The answer to a write that was sent at `sent`.
    pub fn on_write_accepted(&mut self, sent: Instant, now: Instant, lease: LeaseRecord) {
        if lease.holder != self.identity {
            return self.lease_read(now, Some(lease));
        }
        (self.hurried, self.unsure, self.deleted) = (false, false, None);
        self.seen = Some(SeenLease { lease, since: now });
        let until = sent + self.timing.renew_deadline();
        let held = self.valid_hold(now);
        // An answer may arrive after the hold that it proves has expired.
        self.hold = (now < until).then(|| {
            self.terms += u64::from(held.is_none());
            LeaseHold { term: self.terms, until }
        });
        let pause = self.timing.retry_pause(&mut self.dice);
        self.schedule_request(NextRequest::Claim, now.max(sent + pause));
    }

    /// The API server refused a write: the Lease has changed since it was read.
    pub fn on_write_refused(&mut self, now: Instant) {
        // Retried at once and not after a pause, because our hold is running; twice in a row is not a
        // coincidence.
        if self.hurried {
            self.pause_then_read(now);
        } else {
            self.schedule_request(NextRequest::Read, now);
        }
        self.hurried = !self.hurried;
    }

    /// No answer, or an answer that says nothing about the Lease.
    pub fn on_request_failed(&mut self, now: Instant) {
        self.unsure |= self.next != NextRequest::Read;
        self.pause_then_read(now);
    }

    /// Gives up the hold. Returns whether the API server may still consider us the holder.
    pub fn give_up_hold(&mut self) -> bool {
        let ours = self.seen_lease().is_some_and(|lease| lease.holder == self.identity);
        self.hold = None;
        ours || self.unsure
    }

    fn note_lease(&mut self, now: Instant, lease: LeaseRecord) {
        match &mut self.seen {
            Some(seen) if seen.lease.is_unchanged(&lease) => seen.lease = lease,
            Some(seen) if seen.lease.uid == lease.uid => *seen = SeenLease { lease, since: now },
            _ => {
                self.note_deleted();
                self.seen = Some(SeenLease { lease, since: now });
            }
        }
    }

    /// Handles a deleted Lease whose holder may not know that yet.
    fn note_deleted(&mut self) {
        self.deleted = self.deleted.max(self.other_hold_ends_at());
        self.seen = None;
    }

    /// When the hold in the Lease expires, if another process has it. A release by its holder also ends it,
    /// and so does any write over it, because the API server compares versions.
    fn other_hold_ends_at(&self) -> Option<Instant> {
        let seen = self.seen.as_ref()?;
        let others = !seen.lease.holder.is_empty() && seen.lease.holder != self.identity;
        let own = self.timing.lease_time();
        others.then(|| seen.since + seen.lease.lasts.map_or(own, |lasts| lasts.min(own)))
    }

    /// Whether the recorded hold has expired and no process has taken the Lease since.
    pub fn is_left(&self, now: Instant) -> bool {
        self.other_hold_ends_at().is_some_and(|over| over <= now)
    }

    fn is_other_hold_over(&self, now: Instant) -> bool {
        self.other_hold_ends_at().max(self.deleted).is_none_or(|over| over <= now)
    }

    fn schedule_request(&mut self, next: NextRequest, due: Instant) {
        (self.next, self.due) = (next, due);
    }

    fn pause_then_read(&mut self, now: Instant) {
        let pause = self.timing.retry_pause(&mut self.dice);
        self.schedule_request(NextRequest::Read, now + pause);
    }
}

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
