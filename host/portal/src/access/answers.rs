//! Caches answers for seconds, so that many equal questions become one request.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::ReviewUnanswered;

/// How long a failure is cached, so that waiting callers do not retry one after the other.
const FAILED: Duration = Duration::from_secs(1);

type SharedAnswer<V> = Result<V, ReviewUnanswered>;

struct KeptAnswer<V> {
    answer: SharedAnswer<V>,
    until: Instant,
}

impl<V> KeptAnswer<V> {
    fn is_in_force(&self, is_good: impl FnOnce(&V) -> bool) -> bool {
        Instant::now() < self.until && self.answer.as_ref().ok().is_none_or(is_good)
    }
}

/// The holder of the lock asks; others wait for its result.
type AnswerSlot<V> = Arc<tokio::sync::Mutex<Option<KeptAnswer<V>>>>;

pub(super) struct AnswerCache<K, V> {
    slots: Mutex<HashMap<K, AnswerSlot<V>>>,
    most: usize,
}

impl<K: Hash + Eq + Clone, V: Clone> AnswerCache<K, V> {
    /// At most `most` answers are cached. If there is no room, the one that expires first is dropped.
    pub(super) fn new(most: usize) -> Self {
        Self { slots: Mutex::default(), most }
    }

    /// The cached answer, or a new one, for which `keep` returns the time to cache it.
    pub(super) async fn get(
        &self,
        key: &K,
        keep: impl FnOnce(&V) -> Duration,
        ask: impl Future<Output = SharedAnswer<V>>,
    ) -> SharedAnswer<V> {
        self.get_where(key, |_| true, keep, ask).await
    }

    /// The cached answer, if it exists and nobody is asking again.
    pub(super) fn cached_answer(&self, key: &K, is_good: impl FnOnce(&V) -> bool) -> Option<SharedAnswer<V>> {
        let slot = self.lock_slots().get(key)?.clone();
        let kept = slot.try_lock().ok()?;
        kept.as_ref().filter(|kept| kept.is_in_force(is_good)).map(|kept| kept.answer.clone())
    }

    /// The same, if a cached answer may not be good enough.
    pub(super) async fn get_where(
        &self,
        key: &K,
        is_good: impl FnOnce(&V) -> bool,
        keep: impl FnOnce(&V) -> Duration,
        ask: impl Future<Output = SharedAnswer<V>>,
    ) -> SharedAnswer<V> {
        let slot = self.slot_of(key);
        let mut kept = slot.lock().await;
        if let Some(kept) = kept.as_ref().filter(|kept| kept.is_in_force(is_good)) {
            return kept.answer.clone();
        }
        let answer = ask.await;
        let time = answer.as_ref().map_or(FAILED, keep);
        *kept = Some(KeptAnswer { answer: answer.clone(), until: Instant::now() + time });
        answer
    }

    fn slot_of(&self, key: &K) -> AnswerSlot<V> {
        let mut slots = self.lock_slots();
        if let Some(slot) = slots.get(key) {
            return slot.clone();
        }
        if slots.len() >= self.most {
            make_room(&mut slots, self.most);
        }
        let slot = AnswerSlot::default();
        // If every slot is being asked for, this answer is not cached.
        if slots.len() < self.most {
            slots.insert(key.clone(), slot.clone());
        }
        slot
    }

    fn lock_slots(&self) -> MutexGuard<'_, HashMap<K, AnswerSlot<V>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn make_room<K: Hash + Eq + Clone, V>(slots: &mut HashMap<K, AnswerSlot<V>>, most: usize) {
    let now = Instant::now();
    // A locked slot is being asked for.
    let until =
        |slot: &AnswerSlot<V>| slot.try_lock().ok().map(|kept| kept.as_ref().map_or(now, |kept| kept.until));
    slots.retain(|_, slot| until(slot).is_none_or(|until| until > now));
    if slots.len() < most {
        return;
    }
    let ends = slots.iter().filter_map(|(key, slot)| until(slot).map(|until| (until, key)));
    if let Some(key) = ends.min_by_key(|(until, _)| *until).map(|(_, key)| key.clone()) {
        slots.remove(&key);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    const KEPT: Duration = Duration::from_secs(10);

    #[tokio::test(start_paused = true)]
    async fn a_storm_of_one_question_is_asked_once_and_again_when_the_answer_is_old() {
        let (answers, asked) = (AnswerCache::new(4), AtomicUsize::new(0));
        let ask = || {
            answers.get(&1, |_| KEPT, async {
                tokio::time::sleep(Duration::from_secs(1)).await;
                Ok(asked.fetch_add(1, Ordering::SeqCst))
            })
        };
        let all = futures::future::join_all((0..1000).map(|_| ask())).await;
        assert!(all.iter().all(|answer| matches!(answer, Ok(0))));
        tokio::time::advance(KEPT - Duration::from_secs(1)).await;
        assert!(matches!(ask().await, Ok(0)));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(matches!(ask().await, Ok(1)));
    }

    #[tokio::test(start_paused = true)]
    async fn one_who_gives_up_leaves_the_question_to_the_next() {
        let answers = AnswerCache::new(4);
        let first = answers.get(&1, |_| KEPT, std::future::pending());
        assert!(tokio::time::timeout(Duration::from_secs(1), first).await.is_err());
        assert!(matches!(answers.get(&1, |_| KEPT, async { Ok(7) }).await, Ok(7)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_is_kept_for_a_moment_and_no_longer() {
        let answers = AnswerCache::new(4);
        let failed = || async { Err::<u8, _>(ReviewUnanswered::new(false, "gone")) };
        assert!(answers.get(&1, |_| KEPT, failed()).await.is_err());
        assert!(answers.get(&1, |_| KEPT, async { Ok(1) }).await.is_err());
        tokio::time::advance(FAILED).await;
        assert!(answers.get(&1, |_| KEPT, async { Ok(1) }).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_is_kept_than_there_is_room_for_and_the_shortest_goes_first() {
        let answers = AnswerCache::new(3);
        let ask = async |key: u8, seconds| {
            answers.get(&key, |_| Duration::from_secs(seconds), async { Ok(key) }).await.unwrap();
        };
        ask(1, 10).await;
        for garbage in 2..200 {
            ask(garbage, 2).await;
            assert!(answers.lock_slots().len() <= 3);
        }
        assert!(answers.lock_slots().contains_key(&1));
    }
}
