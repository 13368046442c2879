//! Collects the states of one append, and knows the newest version of each of their objects. An event is
//! judged against the earlier events of its batch and against the batches that are being written. It knows
//! nothing about the journal or the server.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};
use kubewitness_core::ports::{PoisonMessage, WitnessedState};
use kubewitness_core::state::{Change, Gap, ObjectRef, RulesPrint};
use kubewitness_core::views::DiscrepancyView;
use tokio::sync::OwnedSemaphorePermit;

use crate::cache::known::KnownObjects;
use crate::cache::{ObjectCache, ObjectKeys};

/// The cache's part of a state. It is kept until the state is durable.
#[derive(Default)]
pub(crate) struct CacheNote {
    /// The state is from the past: it does not change the cache.
    pub past: bool,
    /// The keys of a state that came as a change, and whose document stays uncompressed.
    pub keys: Option<ObjectKeys>,
    /// The rules under which the document has no secret, if it was searched.
    pub secretless_under: Option<RulesPrint>,
}

#[derive(Default)]
pub(crate) struct StateBatch {
    pub states: Vec<WitnessedState>,
    /// One note for each state.
    pub notes: Vec<CacheNote>,
    pub poison: Vec<PoisonMessage>,
    pub gaps: Vec<Gap>,
    pub discrepancies: Vec<DiscrepancyView>,
    /// The permits of the bytes in flight. They are released once the states are durable.
    pub permits: Vec<OwnedSemaphorePermit>,
    /// The index of the last state of each uid and of each name.
    by_uid: HashTable<usize>,
    by_name: HashTable<usize>,
    hasher: DefaultHashBuilder,
    /// The previous batch, until it is durable. It links to the one before it.
    before: Option<Box<Self>>,
}

impl StateBatch {
    /// Takes the batch out to be written, and puts `empty` in its place.
    pub fn submit_batch(&mut self, empty: Self) {
        let before = std::mem::replace(self, empty);
        self.before = Some(Box::new(before));
    }

    /// Removes the oldest batch in flight, which has become durable.
    pub fn remove_durable(&mut self) -> Option<Box<Self>> {
        match &mut self.before {
            Some(before) if before.before.is_some() => before.remove_durable(),
            before => before.take(),
        }
    }

    pub fn is_empty(&self) -> bool {
        let nothing_beside = self.poison.is_empty() && self.gaps.is_empty() && self.discrepancies.is_empty();
        self.states.is_empty() && nothing_beside
    }

    pub fn push(&mut self, state: WitnessedState, note: CacheNote) {
        let place = self.states.len();
        let says_now = !note.past && state.change != Change::Gap;
        self.states.push(state);
        self.notes.push(note);
        if says_now {
            self.index_state(place);
        }
    }

    fn index_state(&mut self, place: usize) {
        let Self { states, by_uid, by_name, hasher, .. } = self;
        let object = &states[place].object;
        let name = |object: &ObjectRef| hasher.hash_one((&*object.namespace, &*object.name));
        let uid = |object: &ObjectRef| hasher.hash_one(&*object.uid);
        by_uid
            .entry(
                uid(object),
                |held| states[*held].object.uid == object.uid,
                |held| uid(&states[*held].object),
            )
            .and_modify(|held| *held = place)
            .or_insert(place);
        let same = |held: &usize| {
            let held = &states[*held].object;
            held.name == object.name && held.namespace == object.namespace
        };
        by_name
            .entry(name(object), same, |held| name(&states[*held].object))
            .and_modify(|held| *held = place)
            .or_insert(place);
    }

    pub fn clear(&mut self) {
        self.states.clear();
        self.notes.clear();
        self.poison.clear();
        self.gaps.clear();
        self.discrepancies.clear();
        self.permits.clear();
        self.by_uid.clear();
        self.by_name.clear();
    }

    pub fn known_object(&self, cache: &ObjectCache, uid: &str) -> Option<KnownObjects> {
        match (self.of_uid(uid), &self.before) {
            (Some(place), _) => self.drafted_at(place),
            (None, Some(before)) => before.known_object(cache, uid),
            (None, None) => cache.known_object(uid),
        }
    }

    /// The known version of an object, and of another uid that has its name.
    pub fn known_and_rival(
        &self,
        cache: &ObjectCache,
        uid: &str,
        namespace: &str,
        name: &str,
    ) -> (Option<KnownObjects>, Option<KnownObjects>) {
        let known = self.known_object(cache, uid);
        let rival = match self.last_of_name(namespace, name) {
            Some((batch, place)) if batch.states[place].object.uid == uid => None,
            Some((batch, place)) => batch.drafted_at(place),
            // An object keeps its name, and no other object in the cache has that name.
            None if known.is_some() => None,
            None => cache
                .brief_of_name(namespace, name)
                // The other object may have ended in this batch, under any name.
                .and_then(|held| self.known_object(cache, &held.object.uid)),
        };
        (known, rival)
    }

    /// The last state of a name, and its index.
    fn last_of_name(&self, namespace: &str, name: &str) -> Option<(&Self, usize)> {
        let mine = self.of_name(namespace, name).map(|place| (self, place));
        mine.or_else(|| self.before.as_ref()?.last_of_name(namespace, name))
    }

    /// The state at an index, if its object still exists there.
    fn drafted_at(&self, place: usize) -> Option<KnownObjects> {
        let state = self.states.get(place).filter(|state| state.change == Change::Present)?;
        let note = self.notes.get(place)?;
        Some(KnownObjects::from_draft(state, note.keys.as_ref(), note.secretless_under))
    }

    fn of_uid(&self, uid: &str) -> Option<usize> {
        let is = |place: &usize| self.states[*place].object.uid == uid;
        self.by_uid.find(self.hasher.hash_one(uid), is).copied()
    }

    fn of_name(&self, namespace: &str, name: &str) -> Option<usize> {
        let is = |place: &usize| {
            let held = &self.states[*place].object;
            held.name == name && held.namespace == namespace
        };
        self.by_name.find(self.hasher.hash_one((namespace, name)), is).copied()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kubewitness_core::Version;
    use kubewitness_core::index::IndexSet;
    use kubewitness_core::state::{StateId, Status};

    use super::*;

    fn said(batch: &mut StateBatch, uid: &str, version: &str, change: Change) {
        let object = ObjectRef { name: uid.into(), uid: uid.into(), ..ObjectRef::default() };
        let state = WitnessedState {
            id: StateId::parse(""),
            change,
            object: Arc::new(object),
            owner: None,
            controller: None,
            resource_version: Version::new(version),
            status: Arc::new(Status::default()),
            previous: None,
            observed_ms: 0,
            document: "{}".into(),
            base: None,
            quotes_none_under: None,
        };
        batch.push(state, CacheNote::default());
    }

    #[test]
    fn events_are_judged_against_every_batch_on_its_way_and_the_oldest_lands_first() {
        let cache = ObjectCache::new(IndexSet::new(&[]));
        let known = |batch: &StateBatch, uid: &str| {
            batch.known_object(&cache, uid).map(|known| known.version.to_string())
        };
        let mut batch = StateBatch::default();
        said(&mut batch, "a", "1", Change::Present);
        said(&mut batch, "b", "2", Change::Present);
        batch.submit_batch(StateBatch::default());
        said(&mut batch, "b", "3", Change::Gone);
        said(&mut batch, "c", "4", Change::Present);
        batch.submit_batch(StateBatch::default());
        said(&mut batch, "c", "5", Change::Present);
        assert_eq!(known(&batch, "a").as_deref(), Some("1"), "two batches ago");
        assert_eq!(known(&batch, "b"), None, "its end came after its beginning");
        assert_eq!(known(&batch, "c").as_deref(), Some("5"));
        let landed = batch.remove_durable().unwrap();
        assert_eq!((landed.states.len(), landed.states[0].resource_version.as_str()), (2, "1"));
        assert_eq!((known(&batch, "a"), known(&batch, "c").as_deref()), (None, Some("5")));
        assert_eq!(batch.remove_durable().unwrap().states[0].resource_version.as_str(), "3");
        assert!(batch.remove_durable().is_none() && batch.states.len() == 1);
    }
}
