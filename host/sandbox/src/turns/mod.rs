//! Turns of the processor: limits how many guests of this process compute at once. [`queue`] decides who is
//! next, and calls wait for it here. It knows no guest.
//!
//! A guest has a turn only while it computes. The turn ends at each tick of the engine, whenever the guest
//! waits, and when a plugin that has used less asks for one. Leaving guests to the runtime was rejected:
//! computing guests would occupy every thread. With turns, the rest of the process always finds a free one.

mod queue;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use queue::{TurnAnswer, TurnQueue, TurnTicket};

/// How many guests may compute at once, of all plugins together: one processor is left to the rest of the
/// process. A process with one processor shares it.
pub fn guests_at_once() -> usize {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    processors.saturating_sub(1).max(1)
}

pub struct CpuTurns {
    state: Mutex<TurnState>,
    /// Makes all guests check whether their turns have ended.
    hurry: Box<dyn Fn() + Send + Sync>,
}

struct TurnState {
    queue: TurnQueue,
    /// The wakers of waiting calls.
    wakers: HashMap<TurnTicket, Waker>,
    /// Calls that have a turn, and were not polled since.
    given: HashSet<TurnTicket>,
}

impl CpuTurns {
    pub fn new(most: usize, hurry: impl Fn() + Send + Sync + 'static) -> Self {
        let (wakers, given) = (HashMap::new(), HashSet::new());
        let state = Mutex::new(TurnState { queue: TurnQueue::new(most), wakers, given });
        Self { state, hurry: Box::new(hurry) }
    }

    /// A ticket for one call of a plugin.
    pub fn issue_ticket(self: &Arc<Self>, plugin: &Arc<str>) -> Arc<CpuTicket> {
        let standing = Mutex::new(TicketState { place: TicketPlace::Away, waited: Duration::ZERO });
        let has_turn = AtomicBool::new(false);
        Arc::new(CpuTicket { turns: self.clone(), plugin: plugin.clone(), standing, has_turn })
    }

    fn lock_state(&self) -> MutexGuard<'_, TurnState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TurnState {
    fn end_turn(&mut self, plugin: &str, used: Duration) -> Option<Waker> {
        let next = self.queue.end_turn(plugin, used)?;
        self.given.insert(next);
        self.wakers.remove(&next)
    }
}

/// The ticket of one call: it has a turn, waits for one, or needs none.
pub struct CpuTicket {
    turns: Arc<CpuTurns>,
    plugin: Arc<str>,
    standing: Mutex<TicketState>,
    /// Whether its place is [`TicketPlace::HasTurn`]. The host reads it whenever it enters the guest, even to
    /// reserve memory for each text that it passes: a lock would be taken many times for each state.
    has_turn: AtomicBool,
}

struct TicketState {
    place: TicketPlace,
    /// The waiting time up to the last turn.
    waited: Duration,
}

#[derive(Clone, Copy)]
enum TicketPlace {
    Away,
    Waits { ticket: TurnTicket, since: Instant },
    HasTurn { since: Instant },
}

impl CpuTicket {
    fn lock_standing(&self) -> MutexGuard<'_, TicketState> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ready once the call has a turn.
    pub fn poll_turn(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut standing = self.lock_standing();
        let now = Instant::now();
        let since = match standing.place {
            TicketPlace::HasTurn { .. } => return Poll::Ready(()),
            TicketPlace::Away => {
                let mut state = self.turns.lock_state();
                if let TurnAnswer::Waits { ticket, at_once } = state.queue.request_turn(&self.plugin) {
                    state.wakers.insert(ticket, context.waker().clone());
                    standing.place = TicketPlace::Waits { ticket, since: now };
                    if at_once {
                        (self.turns.hurry)();
                    }
                    return Poll::Pending;
                }
                now
            }
            TicketPlace::Waits { ticket, since } => {
                let mut state = self.turns.lock_state();
                if !state.given.remove(&ticket) {
                    state.wakers.insert(ticket, context.waker().clone());
                    return Poll::Pending;
                }
                since
            }
        };
        standing.waited += now.saturating_duration_since(since);
        standing.place = TicketPlace::HasTurn { since: now };
        self.has_turn.store(true, Ordering::Release);
        Poll::Ready(())
    }

    /// Ends the turn, or the wait for one.
    pub fn end_turn(&self) {
        let mut standing = self.lock_standing();
        let now = Instant::now();
        self.has_turn.store(false, Ordering::Release);
        let next = match std::mem::replace(&mut standing.place, TicketPlace::Away) {
            TicketPlace::Away => None,
            TicketPlace::HasTurn { since } => {
                self.turns.lock_state().end_turn(&self.plugin, now.saturating_duration_since(since))
            }
            TicketPlace::Waits { ticket, since } => {
                standing.waited += now.saturating_duration_since(since);
                let mut state = self.turns.lock_state();
                match state.given.remove(&ticket) {
                    true => state.end_turn(&self.plugin, Duration::ZERO),
                    false => {
                        state.wakers.remove(&ticket);
                        state.queue.leave_queue(&self.plugin, ticket);
                        None
                    }
                }
            }
        };
        drop(standing);
        if let Some(next) = next {
            next.wake();
        }
    }

    pub fn has_turn(&self) -> bool {
        self.has_turn.load(Ordering::Acquire)
    }

    /// How long this call has waited for turns so far.
    pub fn time_waited(&self) -> Duration {
        let standing = self.lock_standing();
        match standing.place {
            TicketPlace::Waits { since, .. } => standing.waited + since.elapsed(),
            TicketPlace::Away | TicketPlace::HasTurn { .. } => standing.waited,
        }
    }
}

impl Drop for CpuTicket {
    fn drop(&mut self) {
        self.end_turn();
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use futures::FutureExt;
    use futures::task::noop_waker;

    use super::*;

    fn poll(seat: &CpuTicket) -> bool {
        seat.poll_turn(&mut Context::from_waker(&noop_waker())).is_ready()
    }

    #[tokio::test]
    async fn a_call_that_waits_is_woken_when_its_turn_comes() {
        let turns = Arc::new(CpuTurns::new(1, || {}));
        let (one, other) = (turns.issue_ticket(&"one".into()), turns.issue_ticket(&"other".into()));
        assert!(poll(&one));
        let mut waiting = std::pin::pin!(poll_fn(|context| other.poll_turn(context)));
        assert!(waiting.as_mut().now_or_never().is_none());
        let end = async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            one.end_turn();
        };
        tokio::join!(waiting, end);
        assert!(other.has_turn() && !one.has_turn());
        assert!(
            other.time_waited() >= Duration::from_millis(15) && one.time_waited() < Duration::from_millis(5)
        );
    }

    #[test]
    fn a_call_that_ends_leaves_its_turn_and_its_place_to_others() {
        let turns = Arc::new(CpuTurns::new(1, || {}));
        let seats: Vec<_> =
            (0..4).map(|number: u32| turns.issue_ticket(&number.to_string().into())).collect();
        let [holds, given, waits, last] = seats.try_into().ok().unwrap();
        assert!(poll(&holds));
        assert!(!poll(&given) && !poll(&waits) && !poll(&last));
        drop(waits);
        drop(holds);
        // It was given the turn, and ends before it notices.
        drop(given);
        assert!(poll(&last));
        drop(last);
        let state = turns.lock_state();
        assert!(state.wakers.is_empty() && state.given.is_empty());
    }

    #[test]
    fn one_processor_is_left_to_the_rest() {
        let processors = std::thread::available_parallelism().unwrap().get();
        assert_eq!(guests_at_once(), if processors == 1 { 1 } else { processors - 1 });
    }
}
