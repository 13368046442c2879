//! One budget of a connection for all old versions that are read back: requests and bytes per second,
//! concurrent names, and bytes in memory.
//!
//! All sources of a connection share it, because one server answers them all, often just after it has
//! recovered. A budget for each source would multiply by their number. Requests and bytes share one schedule
//! of turns: an answer delays the next turn by the time that its bytes may take. Documents that were read
//! back count until they are dropped; while too many are in memory, no further version is requested.
//!
//! A name releases its documents only once all of its versions are read. If names with large objects could
//! only wait for each other's memory, all of them would wait until each gave up with a gap. So the name that
//! began first may exceed the bound, up to twice as much: one name always finishes and makes room for the
//! others.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use kubewitness_core::state::ObjectRef;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::tuning::WalkBudget;

/// Unused turns accumulate up to this many.
const BURST: u32 = 8;
/// The most names that are read back at the same time, over all sources. With more of them, each would wait
/// too long between two of its versions.
const NAMES_AT_ONCE: usize = 16;

/// Clones share the budget.
#[derive(Clone)]
pub struct RepairBudget {
    shared: Arc<SharedBudget>,
}

struct SharedBudget {
    /// When the next request may go out.
    turn: Mutex<Instant>,
    names: Arc<Semaphore>,
    /// The names that are read back now, in the order in which they began.
    walking: Mutex<VecDeque<Arc<ObjectRef>>>,
    /// The bytes in memory.
    held: AtomicUsize,
    room: Notify,
}

/// The right to read one name back, until it is dropped.
pub(crate) struct NamePermit {
    object: Arc<ObjectRef>,
    shared: Arc<SharedBudget>,
    _permit: Option<OwnedSemaphorePermit>,
}

impl Drop for NamePermit {
    fn drop(&mut self) {
        let mut walking = self.shared.lock_walking();
        if let Some(index) = walking.iter().position(|object| Arc::ptr_eq(object, &self.object)) {
            walking.remove(index);
        }
        drop(walking);
        // The next name becomes the first.
        self.shared.room.notify_waiters();
    }
}

impl SharedBudget {
    fn lock_walking(&self) -> MutexGuard<'_, VecDeque<Arc<ObjectRef>>> {
        self.walking.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many bytes may be in memory when one more version of this object is requested.
    fn most_held(&self, object: &ObjectRef, walk: &WalkBudget) -> usize {
        match self.lock_walking().front() {
            Some(first) if has_the_same_name(first, object) => walk.held_bytes.saturating_mul(2),
            _ => walk.held_bytes,
        }
    }
}

/// Objects of one name follow each other, and are read back by one walk.
fn has_the_same_name(first: &ObjectRef, second: &ObjectRef) -> bool {
    fn key(object: &ObjectRef) -> [&str; 4] {
        [&object.name, &object.namespace, &object.kind, &object.group]
    }
    key(first) == key(second)
}

/// A document that counts as long as it is in memory.
struct HeldDocument {
    document: Vec<u8>,
    shared: Arc<SharedBudget>,
}

impl AsRef<[u8]> for HeldDocument {
    fn as_ref(&self) -> &[u8] {
        &self.document
    }
}

impl Drop for HeldDocument {
    fn drop(&mut self) {
        self.shared.held.fetch_sub(self.document.len(), Ordering::Relaxed);
        self.shared.room.notify_waiters();
    }
}

impl Default for RepairBudget {
    fn default() -> Self {
        let shared = SharedBudget {
            turn: Mutex::new(Instant::now()),
            names: Arc::new(Semaphore::new(NAMES_AT_ONCE)),
            walking: Mutex::new(VecDeque::new()),
            held: AtomicUsize::new(0),
            room: Notify::new(),
        };
        Self { shared: Arc::new(shared) }
    }
}

impl RepairBudget {
    /// Waits for the turn of one request.
    pub(crate) async fn await_turn(&self, walk: &WalkBudget) {
        let (now, step) = (Instant::now(), Duration::from_secs(1) / walk.rate.max(1));
        let at = {
            let mut turn = self.next_turn();
            let at = (*turn).max(now.checked_sub(step * BURST).unwrap_or(now));
            *turn = at + step;
            at
        };
        // A timer rings at the next millisecond, also if its time has passed.
        if at > now {
            sleep_until(at).await;
        }
    }

    /// Counts an answer, which delays later turns.
    pub(crate) fn count_received(&self, bytes: usize, walk: &WalkBudget) {
        let taken = Duration::from_secs_f64(bytes as f64 / walk.bytes_per_second.max(1) as f64);
        *self.next_turn() += taken;
    }

    fn next_turn(&self) -> MutexGuard<'_, Instant> {
        self.shared.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the name of this object may be read back.
    pub(crate) async fn name(&self, object: Arc<ObjectRef>) -> NamePermit {
        let permit = Arc::clone(&self.shared.names).acquire_owned().await.ok();
        self.shared.lock_walking().push_back(Arc::clone(&object));
        NamePermit { object, shared: Arc::clone(&self.shared), _permit: permit }
    }

    /// Counts a document until it is dropped.
    pub(crate) fn hold_document(&self, document: &[u8]) -> Bytes {
        self.shared.held.fetch_add(document.len(), Ordering::Relaxed);
        Bytes::from_owner(HeldDocument { document: document.to_vec(), shared: Arc::clone(&self.shared) })
    }

    /// Waits until one more document of this object may be read, and no longer than the time. Returns whether it may.
    pub(crate) async fn has_room(&self, object: &ObjectRef, within: Duration, walk: &WalkBudget) -> bool {
        let until = Instant::now() + within;
        loop {
            let mut given_back = pin!(self.shared.room.notified());
            // Documents that are released from here on wake the waiter.
            given_back.as_mut().enable();
            if self.shared.held.load(Ordering::Relaxed) < self.shared.most_held(object, walk) {
                return true;
            }
            if timeout_at(until, given_back).await.is_err() {
                return false;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walk(rate: u32, bytes_per_second: u64) -> WalkBudget {
        WalkBudget { rate, bytes_per_second, held_bytes: 100, ..WalkBudget::default() }
    }

    fn job(name: &str) -> Arc<ObjectRef> {
        Arc::new(ObjectRef { kind: "Job".into(), name: name.into(), ..ObjectRef::default() })
    }

    #[tokio::test(start_paused = true)]
    async fn requests_of_all_sources_come_no_faster_than_one_rate_after_a_burst() {
        let (budget, walk) = (RepairBudget::default(), walk(200, u64::MAX));
        let begun = Instant::now();
        let sources = (0..40).map(|_| async {
            for _ in 0..5 {
                budget.await_turn(&walk).await;
            }
        });
        futures::future::join_all(sources).await;
        let (least, took) = (Duration::from_millis(5) * (200 - BURST - 1), begun.elapsed());
        assert!(took >= least && took < least + Duration::from_millis(100), "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn large_answers_put_the_next_requests_off() {
        let (budget, walk) = (RepairBudget::default(), walk(200, 1_000_000));
        let begun = Instant::now();
        for _ in 0..4 {
            budget.await_turn(&walk).await;
            budget.count_received(500_000, &walk);
        }
        budget.await_turn(&walk).await;
        let took = begun.elapsed();
        assert!(took >= Duration::from_millis(1_900) && took < Duration::from_millis(2_100), "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn documents_in_memory_are_bounded_and_give_room_when_they_are_dropped() {
        let (budget, walk) = (RepairBudget::default(), walk(200, u64::MAX));
        let second = Duration::from_secs(1);
        let held = budget.hold_document(&[7; 100]);
        let slice = held.slice(10..20);
        drop(held);
        assert!(!budget.has_room(&job("a"), second, &walk).await, "a part keeps the whole");
        let gives = async {
            tokio::time::sleep(second / 2).await;
            drop(slice);
        };
        let job = job("a");
        let (has_room, ()) = tokio::join!(budget.has_room(&job, second, &walk), gives);
        assert!(has_room);
    }

    #[tokio::test(start_paused = true)]
    async fn names_that_fill_the_memory_together_are_read_back_one_after_the_other() {
        let (budget, walk) = (RepairBudget::default(), walk(200, u64::MAX));
        let patience = Duration::from_secs(30);
        let names = ["a", "b", "c"].map(|name| {
            let (budget, walk) = (budget.clone(), &walk);
            async move {
                let job = job(name);
                let _permit = budget.name(Arc::clone(&job)).await;
                let mut read = Vec::new();
                // Two of these fill the memory, and each needs three documents at the same time.
                for _ in 0..3 {
                    if !budget.has_room(&job, patience, walk).await {
                        return false;
                    }
                    read.push(budget.hold_document(&[7; 30]));
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                true
            }
        });
        assert_eq!(futures::future::join_all(names).await, [true; 3]);
    }

    #[tokio::test(start_paused = true)]
    async fn also_the_name_that_began_first_has_a_bound() {
        let (budget, walk) = (RepairBudget::default(), walk(200, u64::MAX));
        let (first, second) = (job("first"), job("second"));
        let (_one, _other) = (budget.name(Arc::clone(&first)).await, budget.name(Arc::clone(&second)).await);
        let moment = Duration::from_secs(1);
        let _held = budget.hold_document(&[7; 150]);
        assert!(
            budget.has_room(&first, moment, &walk).await && !budget.has_room(&second, moment, &walk).await
        );
        let _more = budget.hold_document(&[7; 50]);
        assert!(!budget.has_room(&first, moment, &walk).await);
    }
}
