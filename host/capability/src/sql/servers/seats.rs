//! Decides which waiting call gets which connection. It has no I/O, and time is a parameter.
//!
//! A connection serves one plugin alone, so a seat that passes from one plugin to another costs a new
//! connection. A queue of all calls was rejected: busy plugins would take each other's connections at nearly
//! every call. So a connection that comes back serves its own plugin first. A plugin has a fair share: the
//! seats, divided by the plugins that have a connection or wait for one, and at least one. A plugin below its
//! share takes a seat from one above it, and nobody else's. So busy plugins settle, and then nobody connects.
//!
//! No call waits for ever. Each plugin without a connection may take any idle one, in the order of arrival; the
//! calls of other plugins get their own plugin's connections back.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A connection that was idle for so long may be closed for any plugin. Busy plugins never pause for so long, and
/// one that uses the database less often pays with a new connection.
const LONG_IDLE: Duration = Duration::from_secs(60);

/// The connections of a database, and the calls that wait for one. `W` is the way to such a call.
pub struct LinkSeats<L, W> {
    /// The most connections, idle ones included.
    most: usize,
    /// Connections that no call uses, the latest returned last.
    idle: Vec<IdleLink<L>>,
    /// The seats of each plugin that has some: connections that are idle, used, or being made.
    taken: HashMap<Arc<str>, usize>,
    /// In the order of arrival.
    waiting: VecDeque<WaitingCall<W>>,
}

struct IdleLink<L> {
    plugin: Arc<str>,
    link: L,
    since: Instant,
}

struct WaitingCall<W> {
    plugin: Arc<str>,
    waiter: W,
}

/// A seat for a waiting call.
pub struct SeatGrant<L, W> {
    pub plugin: Arc<str>,
    pub waiter: W,
    /// Without it, the call makes a connection.
    pub link: Option<L>,
    /// A connection that gives up its seat: it is closed first.
    pub closed: Option<L>,
}

enum SeatChoice {
    OwnIdle(usize),
    Free,
    OtherIdle(usize),
}

impl<L, W> LinkSeats<L, W> {
    pub fn new(most: usize) -> Self {
        Self { most, idle: Vec::new(), taken: HashMap::new(), waiting: VecDeque::new() }
    }

    pub fn push_waiting(&mut self, plugin: Arc<str>, waiter: W) {
        self.waiting.push_back(WaitingCall { plugin, waiter });
    }

    /// Forgets calls that no longer wait.
    pub fn forget_waiting(&mut self, is_gone: impl Fn(&W) -> bool) {
        self.waiting.retain(|call| !is_gone(&call.waiter));
    }

    /// Keeps a connection that a call returned, in its seat.
    pub fn push_idle(&mut self, plugin: Arc<str>, link: L, now: Instant) {
        self.idle.push(IdleLink { plugin, link, since: now });
    }

    /// Frees the seat of a connection that is closed.
    pub fn free_seat(&mut self, plugin: &str) {
        if let Some(count) = self.taken.get_mut(plugin) {
            *count -= 1;
            if *count == 0 {
                self.taken.remove(plugin);
            }
        }
    }

    /// Frees the seats of all idle connections, which the caller closes.
    pub fn take_all_idle(&mut self) -> Vec<L> {
        let idle = std::mem::take(&mut self.idle);
        idle.iter().for_each(|idle| self.free_seat(&idle.plugin));
        idle.into_iter().map(|idle| idle.link).collect()
    }

    /// The next call that can have a seat now; `None` once all others have to wait.
    pub fn next_grant(&mut self, now: Instant) -> Option<SeatGrant<L, W>> {
        let share = self.fair_share();
        let is_below = |at: &usize| self.count_taken(&self.waiting[*at].plugin) < share;
        let (below, others): (Vec<_>, Vec<_>) = (0..self.waiting.len()).partition(is_below);
        let mut calls = below.into_iter().chain(others);
        let (at, choice) =
            calls.find_map(|at| self.choose_seat(at, share, now).map(|choice| (at, choice)))?;
        let WaitingCall { plugin, waiter } = self.waiting.remove(at)?;
        let (mut link, mut closed) = (None, None);
        match choice {
            // It sits already.
            SeatChoice::OwnIdle(at) => link = Some(self.idle.remove(at).link),
            SeatChoice::Free => self.take_seat(&plugin),
            SeatChoice::OtherIdle(at) => {
                let other = self.idle.remove(at);
                self.free_seat(&other.plugin);
                self.take_seat(&plugin);
                closed = Some(other.link);
            }
        }
        Some(SeatGrant { plugin, waiter, link, closed })
    }

    fn choose_seat(&self, at: usize, share: usize, now: Instant) -> Option<SeatChoice> {
        let plugin = &self.waiting[at].plugin;
        if let Some(own) = self.idle.iter().rposition(|idle| idle.plugin == *plugin) {
            return Some(SeatChoice::OwnIdle(own));
        }
        if self.taken.values().sum::<usize>() < self.most {
            return Some(SeatChoice::Free);
        }
        let count = self.count_taken(plugin);
        let may_close = |idle: &IdleLink<L>| {
            let waits_longer = || self.waiting.iter().take(at).any(|call| call.plugin == idle.plugin);
            now.saturating_duration_since(idle.since) >= LONG_IDLE
                || count < share && self.count_taken(&idle.plugin) > share
                || count == 0 && !waits_longer()
        };
        self.idle.iter().position(may_close).map(SeatChoice::OtherIdle)
    }

    fn fair_share(&self) -> usize {
        let without: BTreeSet<_> = self.waiting.iter().map(|call| &call.plugin).collect();
        let without = without.into_iter().filter(|plugin| !self.taken.contains_key(*plugin)).count();
        (self.most / (self.taken.len() + without).max(1)).max(1)
    }

    fn count_taken(&self, plugin: &str) -> usize {
        self.taken.get(plugin).copied().unwrap_or(0)
    }

    fn take_seat(&mut self, plugin: &Arc<str>) {
        *self.taken.entry(plugin.clone()).or_default() += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names the waiting calls by numbers, and the connections by their plugin.
    type NamedSeats = LinkSeats<String, u32>;

    fn waits(seats: &mut NamedSeats, plugin: &str, number: u32) {
        seats.push_waiting(plugin.into(), number);
    }

    /// The numbers of the calls that get a seat now, with their connection and the closed one.
    fn granted(seats: &mut NamedSeats, now: Instant) -> Vec<(u32, Option<String>, Option<String>)> {
        let grants = std::iter::from_fn(|| seats.next_grant(now));
        grants.map(|grant| (grant.waiter, grant.link, grant.closed)).collect()
    }

    fn returns(seats: &mut NamedSeats, plugin: &str, now: Instant) {
        seats.push_idle(plugin.into(), plugin.to_owned(), now);
    }

    fn name(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    #[test]
    fn a_connection_that_comes_back_serves_a_call_of_its_own_plugin_first() {
        let (mut seats, now) = (NamedSeats::new(2), Instant::now());
        waits(&mut seats, "a", 1);
        waits(&mut seats, "b", 2);
        assert_eq!(granted(&mut seats, now), [(1, None, None), (2, None, None)]);
        waits(&mut seats, "b", 3);
        waits(&mut seats, "a", 4);
        returns(&mut seats, "a", now);
        assert_eq!(granted(&mut seats, now), [(4, name("a"), None)]);
        returns(&mut seats, "a", now);
        assert_eq!(granted(&mut seats, now), [], "b has its share");
        returns(&mut seats, "b", now);
        assert_eq!(granted(&mut seats, now), [(3, name("b"), None)]);
    }

    #[test]
    fn a_plugin_below_its_share_takes_seats_from_one_above_it_up_to_its_share() {
        let (mut seats, now) = (NamedSeats::new(4), Instant::now());
        (1..=5).for_each(|number| waits(&mut seats, "a", number));
        assert_eq!(granted(&mut seats, now).len(), 4, "a plugin alone has all seats");
        (6..=8).for_each(|number| waits(&mut seats, "b", number));
        let served: Vec<_> = (0..3)
            .flat_map(|_| {
                returns(&mut seats, "a", now);
                granted(&mut seats, now)
            })
            .collect();
        assert_eq!(served, [(6, None, name("a")), (7, None, name("a")), (5, name("a"), None)]);
    }

    #[test]
    fn where_plugins_are_more_than_seats_each_gets_one_in_the_order_of_arrival() {
        let (mut seats, now) = (NamedSeats::new(1), Instant::now());
        for (number, plugin) in [(1, "a"), (2, "b"), (3, "a"), (4, "c"), (5, "b")] {
            waits(&mut seats, plugin, number);
        }
        let mut served = Vec::new();
        let mut last = granted(&mut seats, now);
        while let Some((number, ..)) = last.pop() {
            served.push(number);
            returns(&mut seats, ["a", "b", "a", "c", "b"][number as usize - 1], now);
            last = granted(&mut seats, now);
        }
        assert_eq!(served, [1, 2, 3, 4, 5]);
    }

    #[test]
    fn a_seat_that_was_idle_for_long_serves_any_plugin_and_a_free_one_too() {
        let (mut seats, now) = (NamedSeats::new(2), Instant::now());
        waits(&mut seats, "a", 1);
        waits(&mut seats, "b", 2);
        assert_eq!(granted(&mut seats, now).len(), 2);
        returns(&mut seats, "a", now);
        waits(&mut seats, "b", 3);
        assert_eq!(granted(&mut seats, now), []);
        assert_eq!(granted(&mut seats, now + LONG_IDLE), [(3, None, name("a"))]);
        waits(&mut seats, "b", 4);
        waits(&mut seats, "b", 5);
        seats.forget_waiting(|number| *number == 4);
        seats.free_seat("b");
        assert_eq!(granted(&mut seats, now), [(5, None, None)], "a closed connection has no seat");
        returns(&mut seats, "b", now);
        assert_eq!(seats.take_all_idle(), ["b"]);
        waits(&mut seats, "c", 6);
        assert_eq!(granted(&mut seats, now), [(6, None, None)]);
    }
}
