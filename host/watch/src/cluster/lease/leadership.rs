//! Publishes who holds the Lease to the rest of the process. A hold expires by the reader's clock, even if
//! nobody announces the end.

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::machine::LeaseHold;

/// The role of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseRole {
    /// Not the holder, and the holder is unknown.
    Unknown { why: String },
    /// Another replica holds it, as far as is known.
    Standby { holder: String },
    /// This process holds it. Terms count from 1 in each process; an expired term never returns.
    Held { term: u64 },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseStanding {
    pub role: LeaseRole,
    /// The uid of the Lease as it was last seen.
    pub lease_uid: Option<String>,
    /// Why the state may be outdated or unavailable, for people.
    pub condition: Option<String>,
    /// Since when no replica is known to hold the Lease; `None` while one is.
    pub leaderless_since: Option<Instant>,
}

/// The state after the last answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LeaseView {
    pub hold: Option<LeaseHold>,
    /// The role once the hold has expired.
    pub otherwise: LeaseRole,
    pub lease_uid: Option<String>,
    pub condition: Option<String>,
    pub leaderless_since: Option<Instant>,
}

impl LeaseView {
    pub fn role_at(&self, now: Instant) -> LeaseRole {
        match self.hold {
            Some(hold) if now < hold.until => LeaseRole::Held { term: hold.term },
            _ => self.otherwise.clone(),
        }
    }

    fn standing_at(&self, now: Instant) -> LeaseStanding {
        LeaseStanding {
            role: self.role_at(now),
            lease_uid: self.lease_uid.clone(),
            condition: self.condition.clone(),
            leaderless_since: self.leaderless_since,
        }
    }
}

/// A cheap handle to the state of a [`LeaseElector`](super::LeaseElector).
#[derive(Clone)]
pub struct LeadershipHandle {
    views: watch::Receiver<LeaseView>,
    identity: String,
    /// The last value that `changed` returned.
    last_returned: LeaseStanding,
}

impl std::fmt::Debug for LeadershipHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Leadership")
            .field("identity", &self.identity)
            .field("standing", &self.current_standing())
            .finish()
    }
}

impl LeadershipHandle {
    pub(super) fn new(views: watch::Receiver<LeaseView>, identity: String) -> Self {
        let last_returned = views.borrow().standing_at(Instant::now());
        Self { views, identity, last_returned }
    }

    /// The name of this process in the Lease.
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// Uses the current time, so that a process that was suspended sees that its hold has expired.
    pub fn is_held(&self) -> bool {
        matches!(self.current_role(), LeaseRole::Held { .. })
    }

    pub fn current_role(&self) -> LeaseRole {
        let view = self.views.borrow();
        // Under the lock, as the elector does it: a caller that saw a hold expire sees a new term next.
        view.role_at(Instant::now())
    }

    pub fn current_standing(&self) -> LeaseStanding {
        let view = self.views.borrow();
        view.standing_at(Instant::now())
    }

    /// Waits until the state differs from the one that this handle returned last, or had when it was made. An
    /// expired hold is a change, too. Waits forever once the elector has ended and nothing can change any
    /// more.
    pub async fn await_change(&mut self) -> LeaseStanding {
        loop {
            let (standing, ends) = {
                let view = self.views.borrow_and_update();
                (view.standing_at(Instant::now()), view.hold.map(|hold| hold.until))
            };
            if standing != self.last_returned {
                self.last_returned = standing.clone();
                return standing;
            }
            let held = matches!(standing.role, LeaseRole::Held { .. });
            let runs_out = async {
                match ends {
                    Some(until) if held => sleep_until(until).await,
                    _ => std::future::pending().await,
                }
            };
            let view_change = async {
                if self.views.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            };
            tokio::select! {
                () = runs_out => {}
                () = view_change => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::{advance, timeout};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn unknown() -> LeaseRole {
        LeaseRole::Unknown { why: "none".to_string() }
    }

    fn view(hold: Option<LeaseHold>) -> LeaseView {
        LeaseView { hold, otherwise: unknown(), lease_uid: None, condition: None, leaderless_since: None }
    }

    fn held() -> (watch::Sender<LeaseView>, LeadershipHandle) {
        let until = Instant::now() + SECOND * 10;
        let (views, seen) = watch::channel(view(Some(LeaseHold { term: 1, until })));
        (views, LeadershipHandle::new(seen, "a".to_string()))
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_that_was_stopped_no_longer_holds_before_anybody_tells_it() {
        let (_views, leadership) = held();
        advance(SECOND * 10 - Duration::from_millis(1)).await;
        assert!(leadership.is_held());
        advance(Duration::from_millis(1)).await;
        assert!(!leadership.is_held());
        assert_eq!(leadership.current_standing().role, unknown());
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_of_a_hold_is_told_when_it_comes_and_once() {
        let (_views, mut leadership) = held();
        let began = Instant::now();
        assert_eq!(leadership.await_change().await.role, unknown());
        assert!((SECOND * 10..SECOND * 11).contains(&began.elapsed()));
        assert!(timeout(SECOND * 60, leadership.await_change()).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_is_no_change_and_moves_the_end() {
        let (views, mut leadership) = held();
        let renews = async {
            tokio::time::sleep(SECOND * 5).await;
            let until = Instant::now() + SECOND * 10;
            views.send_replace(view(Some(LeaseHold { term: 1, until })));
        };
        let began = Instant::now();
        let (standing, ()) = tokio::join!(leadership.await_change(), renews);
        assert_eq!(standing.role, unknown());
        assert!(began.elapsed() >= SECOND * 15);
    }

    #[tokio::test(start_paused = true)]
    async fn a_hold_whose_elector_is_gone_still_ends() {
        let (views, mut leadership) = held();
        drop(views);
        assert_eq!(leadership.await_change().await.role, unknown());
    }
}
