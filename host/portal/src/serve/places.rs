//! Decides which connections have a place, and which one loses its place to a new connection.
//!
//! A connection waits (for its first request), sends (the body of a request), asks (its person is not
//! identified yet), works (on the request of an identified person, or its answer) or rests (after an answer).
//! If no place is free, a new connection takes the place of one that does not work, or whose client does not
//! read the answer. They lose it in this order, the longest in its state first. Refusing new connections at a
//! limit was rejected: idle connections would then keep everybody out. So connections that are only open,
//! never complete their request, come from strangers, or do not read keep no client out. Only requests of
//! identified people do. Those have an end, and one person has few.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::Request;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::ListenerBounds;
use super::traffic::TrafficCounts;

/// One in this many places is reserved for this machine's own clients.
const LOCAL_SHARE: usize = 8;
/// A client that reads accepts data within milliseconds.
const STALLED_AFTER: Duration = Duration::from_secs(2);

/// The peer of a connection: an address, or for IPv6 the network of one subscriber.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct PeerAddress(IpAddr);

impl PeerAddress {
    pub(super) fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V6(address) if !address.is_loopback() => {
                let network = u128::from(address) >> 64 << 64;
                Self(Ipv6Addr::from(network).into())
            }
            address => Self(address),
        }
    }
}

impl fmt::Display for PeerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Ordered by when places are taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ConnectionActivity {
    Waits,
    Sends,
    Asks,
    Rests,
    Works,
}

struct OpenConnection {
    peer: PeerAddress,
    doing: ConnectionActivity,
    /// Whether the sender of the present request is identified.
    is_known: bool,
    /// A number that increases with every change of a connection's activity.
    since: u64,
    /// Since when its client has read nothing of its answer.
    stalled: Option<Instant>,
    evicted: CancellationToken,
}

impl OpenConnection {
    /// Its rank in the order in which places are taken away. `None`: it keeps its place.
    fn eviction_rank(&self) -> Option<(ConnectionActivity, u64)> {
        let is_unread = self.stalled.is_some_and(|at| at.elapsed() >= STALLED_AFTER);
        match self.doing {
            ConnectionActivity::Works if is_unread => Some((ConnectionActivity::Works, self.since)),
            ConnectionActivity::Works => None,
            other => Some((other, self.since)),
        }
    }
}

#[derive(Default)]
struct ConnectionTable {
    open: BTreeMap<u64, OpenConnection>,
    peers: HashMap<PeerAddress, usize>,
    /// The last assigned number.
    last: u64,
}

pub(super) struct ConnectionPlaces {
    bounds: ListenerBounds,
    counts: Arc<TrafficCounts>,
    table: Mutex<ConnectionTable>,
}

impl ConnectionPlaces {
    pub(super) fn new(bounds: ListenerBounds, counts: Arc<TrafficCounts>) -> Self {
        Self { bounds, counts, table: Mutex::default() }
    }

    /// A place for a new connection. `None` if every connection that could make room has a request in
    /// progress.
    pub(super) fn take(self: &Arc<Self>, peer: PeerAddress) -> Option<ConnectionPlace> {
        let mut table = self.lock_table();
        if table.peers.get(&peer).is_some_and(|open| *open >= self.most_of(peer)) {
            self.evict_one_of(&mut table, peer)?;
        } else if table.open.len() >= self.bounds.connections {
            let crowd = table.most_crowded_peer()?;
            self.evict_one_of(&mut table, crowd)?;
        }
        let (number, evicted) = (table.next(), CancellationToken::new());
        let open = OpenConnection {
            peer,
            doing: ConnectionActivity::Waits,
            is_known: false,
            since: number,
            stalled: None,
            evicted: evicted.clone(),
        };
        table.open.insert(number, open);
        *table.peers.entry(peer).or_default() += 1;
        self.counts.set_open(table.open.len());
        Some(ConnectionPlace { number, places: self.clone(), evicted })
    }

    fn most_of(&self, peer: PeerAddress) -> usize {
        let all = self.bounds.connections;
        let most = if peer.0.is_loopback() { all - all / LOCAL_SHARE } else { self.bounds.of_one_peer };
        most.clamp(1, all)
    }

    fn evict_one_of(&self, table: &mut ConnectionTable, peer: PeerAddress) -> Option<()> {
        let number = table.idlest_of_peer(peer)?;
        if let Some(open) = table.remove(number) {
            open.evicted.cancel();
            self.counts.crowded_out();
        }
        Some(())
    }

    fn lock_table(&self) -> MutexGuard<'_, ConnectionTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConnectionTable {
    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Among the peers that could make room, the one with the most connections.
    fn most_crowded_peer(&self) -> Option<PeerAddress> {
        let idle = self.open.values().filter(|open| open.eviction_rank().is_some()).map(|open| open.peer);
        idle.max_by_key(|peer| self.peers.get(peer))
    }

    fn idlest_of_peer(&self, peer: PeerAddress) -> Option<u64> {
        let theirs = self.open.iter().filter(|(_, open)| open.peer == peer);
        let idle = theirs.filter_map(|(number, open)| Some((open.eviction_rank()?, *number)));
        idle.min().map(|(_, number)| number)
    }

    fn remove(&mut self, number: u64) -> Option<OpenConnection> {
        let open = self.open.remove(&number)?;
        if let Some(count) = self.peers.get_mut(&open.peer) {
            *count -= 1;
            if *count == 0 {
                self.peers.remove(&open.peer);
            }
        }
        Some(open)
    }
}

/// A connection's place; it is free once this is dropped.
pub(super) struct ConnectionPlace {
    number: u64,
    places: Arc<ConnectionPlaces>,
    evicted: CancellationToken,
}

impl ConnectionPlace {
    /// The header of a request is complete, but not its body.
    pub(super) fn note_sending(&self) {
        self.change_activity(|_| ConnectionActivity::Sends);
    }

    /// The request is complete.
    pub(super) fn note_asking(&self) {
        self.change_activity(|open| {
            if open.is_known { ConnectionActivity::Works } else { ConnectionActivity::Asks }
        });
    }

    /// The person of the request is identified.
    fn note_person(&self) {
        self.change_activity(|open| {
            open.is_known = true;
            if open.doing == ConnectionActivity::Asks { ConnectionActivity::Works } else { open.doing }
        });
    }

    /// Sets whether the client reads nothing of its answer right now.
    pub(super) fn set_stalled(&self, does: bool) {
        if let Some(open) = self.places.lock_table().open.get_mut(&self.number) {
            open.stalled = does.then(Instant::now);
        }
    }

    pub(super) fn note_resting(&self) {
        self.change_activity(|open| {
            open.is_known = false;
            ConnectionActivity::Rests
        });
    }

    /// No complete header has come since the connection began.
    pub(super) fn has_never_asked(&self) -> bool {
        let table = self.places.lock_table();
        table.open.get(&self.number).is_some_and(|open| open.doing == ConnectionActivity::Waits)
    }

    /// Returns once the place belongs to somebody else.
    pub(super) async fn await_eviction(&self) {
        self.evicted.cancelled().await;
    }

    fn change_activity(&self, doing: impl FnOnce(&mut OpenConnection) -> ConnectionActivity) {
        let mut table = self.places.lock_table();
        let since = table.next();
        if let Some(open) = table.open.get_mut(&self.number) {
            (open.doing, open.since) = (doing(open), since);
        }
    }
}

/// The connection of a request, for the code that identifies its person.
#[derive(Clone, Default)]
pub(crate) struct RequestConnection(Option<Arc<ConnectionPlace>>);

impl RequestConnection {
    pub(super) fn at_place(place: Arc<ConnectionPlace>) -> Self {
        Self(Some(place))
    }

    /// Empty for a request without a connection.
    pub(crate) fn of_request(request: &Request) -> Self {
        request.extensions().get().cloned().unwrap_or_default()
    }

    /// The place is not taken away while the request is in progress.
    pub(crate) fn note_person(&self) {
        self.0.iter().for_each(|place| place.note_person());
    }
}

impl Drop for ConnectionPlace {
    fn drop(&mut self) {
        let mut table = self.places.lock_table();
        table.remove(self.number);
        self.places.counts.set_open(table.open.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(connections: usize, of_one_peer: usize) -> Arc<ConnectionPlaces> {
        let bounds = ListenerBounds { connections, of_one_peer, ..ListenerBounds::PORTAL };
        Arc::new(ConnectionPlaces::new(bounds, Arc::default()))
    }

    fn peer(address: &str) -> PeerAddress {
        PeerAddress::of(address.parse().unwrap())
    }

    fn works(place: &ConnectionPlace) {
        place.note_asking();
        place.note_person();
    }

    fn is_evicted(place: &ConnectionPlace) -> bool {
        place.evicted.is_cancelled()
    }

    #[test]
    fn a_peer_that_has_its_share_makes_room_for_itself_and_for_nobody_else() {
        let places = places(10, 2);
        let other = places.take(peer("10.0.0.2")).unwrap();
        let first = places.take(peer("10.0.0.1")).unwrap();
        let second = places.take(peer("10.0.0.1")).unwrap();
        let third = places.take(peer("10.0.0.1")).unwrap();
        assert!(is_evicted(&first) && !is_evicted(&second) && !is_evicted(&third) && !is_evicted(&other));
        works(&second);
        works(&third);
        assert!(places.take(peer("10.0.0.1")).is_none(), "what works is never taken away");
        third.note_resting();
        assert!(places.take(peer("10.0.0.1")).is_some() && is_evicted(&third));
    }

    #[test]
    fn where_all_places_are_taken_the_peer_with_the_most_makes_room() {
        let places = places(4, 3);
        let one = places.take(peer("10.0.0.1")).unwrap();
        let crowd: Vec<_> = (0..3).map(|_| places.take(peer("10.0.0.2")).unwrap()).collect();
        let new = places.take(peer("10.0.0.3")).unwrap();
        assert!(is_evicted(&crowd[0]) && !is_evicted(&one) && !is_evicted(&new));
        drop(crowd);
        works(&one);
        works(&new);
        let busy: Vec<_> = (0..2).map(|_| places.take(peer("10.0.0.4")).unwrap()).collect();
        busy.iter().for_each(works);
        assert!(places.take(peer("10.0.0.5")).is_none());
        drop(one);
        assert!(places.take(peer("10.0.0.5")).is_some());
    }

    #[test]
    fn one_that_has_asked_before_stays_longer_than_one_that_never_has() {
        let places = places(2, 2);
        let known = places.take(peer("10.0.0.1")).unwrap();
        works(&known);
        known.note_resting();
        for _ in 0..5 {
            let half_open = places.take(peer("10.0.0.1")).unwrap();
            assert!(half_open.has_never_asked() && !is_evicted(&known));
            drop(half_open);
        }
        let half_open = places.take(peer("10.0.0.1")).unwrap();
        let next = places.take(peer("10.0.0.1")).unwrap();
        assert!(is_evicted(&half_open) && !is_evicted(&known) && !is_evicted(&next));
    }

    #[test]
    fn one_whose_body_never_comes_makes_room_before_one_that_was_answered() {
        let places = places(2, 2);
        let known = places.take(peer("10.0.0.1")).unwrap();
        works(&known);
        known.note_resting();
        let half_sent = places.take(peer("10.0.0.1")).unwrap();
        half_sent.note_sending();
        let next = places.take(peer("10.0.0.1")).unwrap();
        assert!(is_evicted(&half_sent) && !is_evicted(&known) && !is_evicted(&next));
    }

    #[test]
    fn the_request_of_a_stranger_makes_room_until_it_is_known_who_asks() {
        let places = places(2, 2);
        let resting = places.take(peer("10.0.0.1")).unwrap();
        works(&resting);
        resting.note_resting();
        let stranger = places.take(peer("10.0.0.1")).unwrap();
        stranger.note_asking();
        let known = places.take(peer("10.0.0.1")).unwrap();
        assert!(is_evicted(&stranger) && !is_evicted(&resting), "one that was answered stays longer");
        // The person is identified before the body is complete.
        known.note_sending();
        known.note_person();
        known.note_asking();
        let next = places.take(peer("10.0.0.1")).unwrap();
        assert!(is_evicted(&resting) && !is_evicted(&known));
        works(&next);
        assert!(places.take(peer("10.0.0.1")).is_none());
        next.note_resting();
        next.note_asking();
        assert!(
            places.take(peer("10.0.0.1")).is_some() && is_evicted(&next),
            "the next request is anybody's"
        );
    }

    #[test]
    fn one_that_rests_makes_room_before_one_that_is_read_slowly() {
        let places = places(2, 2);
        let slow = places.take(peer("10.0.0.1")).unwrap();
        works(&slow);
        slow.places.lock_table().open.get_mut(&slow.number).unwrap().stalled =
            Instant::now().checked_sub(STALLED_AFTER);
        let resting = places.take(peer("10.0.0.1")).unwrap();
        works(&resting);
        resting.note_resting();
        assert!(places.take(peer("10.0.0.1")).is_some() && is_evicted(&resting) && !is_evicted(&slow));
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_does_not_take_its_answer_makes_room_after_a_moment() {
        let places = places(1, 1);
        let unread = places.take(peer("10.0.0.1")).unwrap();
        works(&unread);
        unread.set_stalled(true);
        assert!(places.take(peer("10.0.0.1")).is_none(), "it may go on");
        tokio::time::advance(STALLED_AFTER).await;
        unread.set_stalled(false);
        assert!(places.take(peer("10.0.0.1")).is_none(), "it goes on");
        unread.set_stalled(true);
        tokio::time::advance(STALLED_AFTER).await;
        let next = places.take(peer("10.0.0.1"));
        assert!(next.is_some() && is_evicted(&unread));
    }

    #[test]
    fn this_machine_has_most_places_and_an_ipv6_subscriber_those_of_one_peer() {
        let places = places(16, 2);
        let local: Vec<_> = (0..14).map(|_| places.take(peer("127.0.0.1")).unwrap()).collect();
        local.iter().for_each(works);
        assert!(places.take(peer("127.0.0.1")).is_none());
        assert!(places.take(peer("::ffff:127.0.0.1")).is_none(), "the same one in other words");
        assert!(places.take(peer("10.0.0.1")).is_some());
        assert_eq!(peer("2001:db8::1"), peer("2001:db8::ffff:2"));
        assert_ne!(peer("2001:db8::1"), peer("2001:db8:0:1::1"));
        assert_ne!(peer("::1"), peer("::2"));
    }

    #[test]
    fn a_place_is_free_when_its_connection_is_gone() {
        let places = places(2, 2);
        for _ in 0..10 {
            let (first, second) = (places.take(peer("10.0.0.1")), places.take(peer("10.0.0.1")));
            assert!(!is_evicted(&first.unwrap()) && !is_evicted(&second.unwrap()));
        }
        assert!(places.lock_table().peers.is_empty());
        assert_eq!(places.counts.open(), 0);
    }
}
