//! The guest's own time in one call. It runs while the guest computes or sleeps. It is stopped while the
//! controller works for the guest, and while the guest waits for the processor. Wall time was rejected: a
//! slow database would use up a guest's limit.
//!
//! The machine gets the time as a parameter, so that tests control it; [`run_timed`] drives it.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use thiserror::Error;

use crate::turns::CpuTicket;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the guest's time is up")]
pub struct TimeUp;

/// Why a call is not running now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClockPause {
    /// The host works for it.
    Host,
    /// It has yielded.
    Yielded,
    /// It waits for itself (a sleep), so its time continues. Contains the remaining time.
    Idle(Duration),
}

#[derive(Debug)]
pub struct GuestClock {
    limit: Duration,
    spent: Duration,
    running_since: Option<Instant>,
    /// The time of the completed calls to the controller.
    hosted: Duration,
    in_host_since: Option<Instant>,
    yielded: bool,
}

impl GuestClock {
    pub fn new(limit: Duration) -> Self {
        let (spent, hosted) = (Duration::ZERO, Duration::ZERO);
        Self { limit, spent, running_since: None, hosted, in_host_since: None, yielded: false }
    }

    fn run(&mut self, now: Instant) {
        if self.in_host_since.is_none() && self.running_since.is_none() {
            self.running_since = Some(now);
        }
    }

    fn stop_guest_time(&mut self, now: Instant) {
        if let Some(since) = self.running_since.take() {
            self.spent += now.saturating_duration_since(since);
        }
    }

    fn spent_at(&self, now: Instant) -> Duration {
        self.spent + self.running_since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }

    fn begin_call(&mut self) {
        *self = Self::new(self.limit);
    }

    fn enter_host(&mut self, now: Instant) {
        self.stop_guest_time(now);
        self.in_host_since = Some(now);
    }

    fn leave_host(&mut self, now: Instant) {
        if let Some(since) = self.in_host_since.take() {
            self.hosted += now.saturating_duration_since(since);
        }
        self.run(now);
    }

    /// At every tick the guest either continues after yielding, or its time is up.
    fn note_tick(&mut self, now: Instant) -> Result<(), TimeUp> {
        if self.spent_at(now) >= self.limit {
            return Err(TimeUp);
        }
        self.yielded = true;
        Ok(())
    }

    fn pause_clock(&mut self, now: Instant) -> ClockPause {
        if self.in_host_since.is_some() {
            return ClockPause::Host;
        }
        if std::mem::take(&mut self.yielded) {
            self.stop_guest_time(now);
            return ClockPause::Yielded;
        }
        ClockPause::Idle(self.limit.saturating_sub(self.spent_at(now)))
    }
}

/// A guest's clock, shared between the call, the engine's ticks and the capabilities.
#[derive(Clone, Debug)]
pub struct SharedClock(Arc<Mutex<GuestClock>>);

/// While this is held, the guest's time is stopped.
pub struct HostTime(SharedClock);

impl SharedClock {
    pub fn new(limit: Duration) -> Self {
        Self(Arc::new(Mutex::new(GuestClock::new(limit))))
    }

    fn lock_clock(&self) -> MutexGuard<'_, GuestClock> {
        // Every change is a sequence of assignments to plain numbers, so a panic leaves nothing inconsistent.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn enter_host(&self) -> HostTime {
        self.lock_clock().enter_host(Instant::now());
        HostTime(self.clone())
    }

    pub fn note_tick(&self) -> Result<(), TimeUp> {
        self.lock_clock().note_tick(Instant::now())
    }

    /// The durations of the last call: the guest's own time, and the host's.
    pub fn times_of_call(&self) -> (Duration, Duration) {
        let clock = self.lock_clock();
        (clock.spent_at(Instant::now()), clock.hosted)
    }
}

impl Drop for HostTime {
    fn drop(&mut self) {
        self.0.lock_clock().leave_host(Instant::now());
    }
}

/// Runs one call on the guest's clock, in its turns. A computing guest is stopped by the engine's ticks (the
/// call then returns [`TimeUp`] itself), a sleeping one by a timer that is armed only then.
pub async fn run_timed<F: Future>(
    clock: SharedClock,
    seat: Arc<CpuTicket>,
    call: F,
) -> Result<F::Output, TimeUp> {
    clock.lock_clock().begin_call();
    let mut call = pin!(call);
    let mut timer: Option<Pin<Box<tokio::time::Sleep>>> = None;
    let mut computes = true;
    std::future::poll_fn(move |context| {
        if computes {
            ready!(seat.poll_turn(context));
        }
        // The host's work for the guest continues without a turn. The engine makes the guest wait for one
        // before it computes again.
        let polled = poll_timed(&clock, call.as_mut(), &mut timer, &mut computes, context);
        seat.end_turn();
        polled
    })
    .await
}

/// `computes` is true if the guest will compute next.
fn poll_timed<F: Future>(
    clock: &SharedClock,
    call: Pin<&mut F>,
    timer: &mut Option<Pin<Box<tokio::time::Sleep>>>,
    computes: &mut bool,
    context: &mut Context<'_>,
) -> Poll<Result<F::Output, TimeUp>> {
    clock.lock_clock().run(Instant::now());
    if let Poll::Ready(output) = call.poll(context) {
        clock.lock_clock().stop_guest_time(Instant::now());
        return Poll::Ready(Ok(output));
    }
    let pause = clock.lock_clock().pause_clock(Instant::now());
    *computes = pause == ClockPause::Yielded;
    let ClockPause::Idle(left) = pause else { return Poll::Pending };
    // A timer of zero length would need another poll each time.
    if left.is_zero() {
        return Poll::Ready(Err(TimeUp));
    }
    let mut sleep = Box::pin(tokio::time::sleep(left));
    if sleep.as_mut().poll(context).is_ready() {
        return Poll::Ready(Err(TimeUp));
    }
    *timer = Some(sleep);
    Poll::Pending
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_millis(100);

    fn after(start: Instant, millis: u64) -> Instant {
        start + Duration::from_millis(millis)
    }

    #[test]
    fn the_hosts_time_is_not_charged() {
        let (start, mut clock) = (Instant::now(), GuestClock::new(LIMIT));
        clock.run(start);
        clock.enter_host(after(start, 10));
        assert_eq!(clock.pause_clock(after(start, 20)), ClockPause::Host);
        clock.run(after(start, 5_000));
        clock.leave_host(after(start, 9_000));
        assert_eq!(clock.note_tick(after(start, 9_080)), Ok(()));
        assert_eq!(clock.spent_at(after(start, 9_080)), Duration::from_millis(90));
        assert_eq!(clock.hosted, Duration::from_millis(8_990), "it is told apart");
        assert_eq!(clock.note_tick(after(start, 9_090)), Err(TimeUp));
    }

    #[test]
    fn waiting_for_a_turn_is_not_charged() {
        let (start, mut clock) = (Instant::now(), GuestClock::new(LIMIT));
        clock.run(start);
        assert_eq!(clock.note_tick(after(start, 40)), Ok(()));
        assert_eq!(clock.pause_clock(after(start, 40)), ClockPause::Yielded);
        clock.run(after(start, 900));
        assert_eq!(clock.spent_at(after(start, 910)), Duration::from_millis(50));
    }

    #[test]
    fn a_sleep_is_charged() {
        let (start, mut clock) = (Instant::now(), GuestClock::new(LIMIT));
        clock.run(start);
        assert_eq!(clock.pause_clock(after(start, 30)), ClockPause::Idle(Duration::from_millis(70)));
        clock.run(after(start, 130));
        assert_eq!(clock.note_tick(after(start, 130)), Err(TimeUp));
    }

    #[test]
    fn each_call_begins_with_all_its_time() {
        let (start, mut clock) = (Instant::now(), GuestClock::new(LIMIT));
        clock.run(start);
        clock.stop_guest_time(after(start, 99));
        clock.begin_call();
        assert_eq!(clock.spent_at(after(start, 99)), Duration::ZERO);
    }
}
