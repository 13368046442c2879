//! Hands connections to the calls that [`seats`](super::seats) chooses, and takes them back however a call
//! ends.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kubewitness_core::ports::GrantError;
use tokio::sync::oneshot;

use super::ServerLink;
use super::seats::{LinkSeats, SeatGrant};

type SeatSender<L> = oneshot::Sender<HeldLink<L>>;

/// The seats of one database. All calls share them.
pub struct SharedSeats<L> {
    seats: Mutex<LinkSeats<L, SeatSender<L>>>,
    /// Incremented when no open connection may be reused.
    generation: AtomicU64,
}

/// A seat for one connection, and the connection while it is at hand. If it is dropped, the connection is
/// closed, and the server rolls back uncommitted work.
pub struct HeldLink<L> {
    seats: Arc<SharedSeats<L>>,
    plugin: Arc<str>,
    link: Option<L>,
    generation: u64,
    /// The seat is kept for the connection that was returned.
    is_kept: bool,
}

pub fn lock_mutex<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The data is consistent even after a panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<L> SharedSeats<L> {
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { seats: Mutex::new(LinkSeats::new(most)), generation: AtomicU64::new(0) })
    }

    /// A seat of the plugin, with an idle connection if it has one. A call that is dropped meanwhile passes its
    /// seat on.
    pub async fn hold_seat(
        self: &Arc<Self>,
        plugin: &str,
        wait: Duration,
    ) -> Result<HeldLink<L>, GrantError> {
        let (sender, receiver) = oneshot::channel();
        lock_mutex(&self.seats).push_waiting(plugin.into(), sender);
        self.serve_waiting();
        let busy = || GrantError::Unavailable("the database is busy with other calls".into());
        let mut held = tokio::time::timeout(wait, receiver).await.map_err(|_| busy())?.map_err(|_| busy())?;
        if held.generation != self.generation.load(Ordering::Acquire) {
            held.link = None;
            held.renew();
        }
        Ok(held)
    }

    /// Gives a seat to each waiting call that can have one.
    fn serve_waiting(self: &Arc<Self>) {
        while let Some((grant, generation)) = self.next_grant() {
            let SeatGrant { plugin, waiter, link, closed } = grant;
            drop(closed);
            let held = HeldLink { seats: self.clone(), plugin, link, generation, is_kept: false };
            // A call that ended just now drops it.
            drop(waiter.send(held));
        }
    }

    fn next_grant(&self) -> Option<(SeatGrant<L, SeatSender<L>>, u64)> {
        let mut seats = lock_mutex(&self.seats);
        seats.forget_waiting(SeatSender::is_closed);
        let grant = seats.next_grant(Instant::now())?;
        Some((grant, self.generation.load(Ordering::Acquire)))
    }

    /// Closes the idle connections.
    pub fn close_idle(self: &Arc<Self>) {
        let idle = lock_mutex(&self.seats).take_all_idle();
        drop(idle);
        self.serve_waiting();
    }

    /// Closes the idle connections, and prevents the reuse of the others that are open now.
    pub fn close_all(self: &Arc<Self>) {
        let mut seats = lock_mutex(&self.seats);
        self.generation.fetch_add(1, Ordering::AcqRel);
        let idle = seats.take_all_idle();
        drop(seats);
        drop(idle);
        self.serve_waiting();
    }
}

impl<L> HeldLink<L> {
    pub fn has_link(&self) -> bool {
        self.link.is_some()
    }

    /// Takes the connection out. A caller that does not put it back, or is dropped, has lost it.
    pub fn take(&mut self) -> Result<L, GrantError> {
        self.link.take().ok_or_else(|| GrantError::Unavailable("the connection was lost".into()))
    }

    pub fn put_back(&mut self, link: L) {
        self.link = Some(link);
    }

    /// Says that its next connection is made now.
    pub fn renew(&mut self) {
        self.generation = self.seats.generation.load(Ordering::Acquire);
    }

    /// Keeps the connection for the next call of the plugin, unless it was forgotten meanwhile.
    pub fn keep_link(mut self, link: L) {
        let mut seats = lock_mutex(&self.seats.seats);
        if self.generation == self.seats.generation.load(Ordering::Acquire) {
            seats.push_idle(self.plugin.clone(), link, Instant::now());
            drop(seats);
            self.is_kept = true;
        } else {
            drop(seats);
            self.link = Some(link);
        }
    }
}

impl<L: ServerLink> HeldLink<L> {
    /// Returns the connection for the next call. No transaction is open.
    pub fn return_link(self, link: L) {
        match link.is_fresh() {
            true => self.keep_link(link),
            false => drop(link),
        }
    }
}

impl<L> Drop for HeldLink<L> {
    fn drop(&mut self) {
        if !self.is_kept {
            // Closed first: the seat's next connection may be one too many otherwise.
            self.link = None;
            lock_mutex(&self.seats.seats).free_seat(&self.plugin);
        }
        self.seats.serve_waiting();
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use futures::future::join_all;

    use super::*;

    const WAIT: Duration = Duration::from_secs(60);

    /// Counts connections as they are made and closed.
    #[derive(Default)]
    struct FakeConnector {
        made: AtomicU64,
        open: AtomicU64,
    }

    struct FakeLink<'a> {
        connector: &'a FakeConnector,
        plugin: usize,
    }

    impl FakeConnector {
        fn connect(&self, plugin: usize) -> FakeLink<'_> {
            self.made.fetch_add(1, Ordering::Relaxed);
            let open = self.open.fetch_add(1, Ordering::Relaxed) + 1;
            assert!(open <= 8, "{open} connections are open");
            FakeLink { connector: self, plugin }
        }
    }

    impl Drop for FakeLink<'_> {
        fn drop(&mut self) {
            self.connector.open.fetch_sub(1, Ordering::Relaxed);
        }
    }

    #[tokio::test]
    async fn three_busy_plugins_share_eight_connections_and_do_not_connect_again() {
        let connector = FakeConnector::default();
        let seats = SharedSeats::new(8);
        let calls = AtomicU64::new(0);
        let workers = (0..12).map(|worker| {
            let (connector, seats, calls) = (&connector, &seats, &calls);
            async move {
                let plugin = worker % 3;
                for call in 0..84 {
                    let mut held = seats.hold_seat(["a", "b", "c"][plugin], WAIT).await.unwrap();
                    let link = held.take().unwrap_or_else(|_| connector.connect(plugin));
                    assert_eq!(link.plugin, plugin);
                    for _ in 0..(worker + call) % 5 {
                        tokio::task::yield_now().await;
                    }
                    held.keep_link(link);
                    calls.fetch_add(1, Ordering::Relaxed);
                    for _ in 0..call % 3 {
                        tokio::task::yield_now().await;
                    }
                }
            }
        });
        join_all(workers).await;
        assert!(calls.load(Ordering::Relaxed) >= 1000);
        let made = connector.made.load(Ordering::Relaxed);
        assert!(made < 20, "{made} connections were made");
    }

    #[tokio::test]
    async fn a_call_that_is_dropped_passes_its_seat_on() {
        let seats = SharedSeats::<u8>::new(1);
        let held = seats.hold_seat("a", WAIT).await.unwrap();
        let gone = seats.hold_seat("b", WAIT).now_or_never();
        assert!(gone.is_none(), "the only seat is taken");
        let mut waiting = Box::pin(seats.hold_seat("c", WAIT));
        assert!((&mut waiting).now_or_never().is_none());
        let mut last = Box::pin(seats.hold_seat("d", WAIT));
        assert!((&mut last).now_or_never().is_none());
        // The seat is on its way to `c`, which never asks again.
        held.keep_link(0);
        drop(waiting);
        let held = (&mut last).now_or_never().unwrap().unwrap();
        drop(held);
        assert!(seats.hold_seat("a", WAIT).now_or_never().is_some());
    }

    #[tokio::test]
    async fn a_seat_is_waited_for_no_longer_than_permitted_and_a_forgotten_connection_is_not_kept() {
        let seats = SharedSeats::new(1);
        let held = seats.hold_seat("a", WAIT).await.unwrap();
        let refused = seats.hold_seat("a", Duration::from_millis(1)).await.err();
        assert!(matches!(refused, Some(GrantError::Unavailable(why)) if why.contains("busy")));
        seats.close_all();
        held.keep_link("old");
        let held = seats.hold_seat("a", WAIT).await.unwrap();
        assert!(!held.has_link());
        held.keep_link("new");
        assert!(seats.hold_seat("a", WAIT).await.unwrap().has_link());
    }
}
