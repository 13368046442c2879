//! Fills a cache at startup: it loads the journal's objects in parts and builds the indexes at the end.

use kubewitness_core::Version;
use kubewitness_core::document::unpack_document;
use kubewitness_core::ports::CurrentObject;

use super::orders::SortedOrders;
use super::{CacheSlot, ChunkedMultimap, ObjectCache, SlotContent, StoredObject, created_s, record};
use crate::version::version_number;

/// A cache that is being filled. No reader sees it before it is complete.
pub(crate) struct CacheFill {
    cache: ObjectCache,
    entries: Vec<(u32, CacheSlot)>,
    /// Objects that appeared twice, or that have the name of another object.
    again: Vec<CurrentObject>,
}

impl CacheFill {
    /// Begins with the indexes of the cache that it will replace.
    pub fn instead_of(cache: &ObjectCache) -> Self {
        Self { cache: ObjectCache::with_keyer(cache.key_maker()), entries: Vec::new(), again: Vec::new() }
    }

    pub fn add(&mut self, part: Vec<CurrentObject>) {
        for current in part {
            let (cache, object) = (&mut self.cache, &current.object);
            let known = cache.slot_of_uid(&object.uid).is_some();
            if known || cache.slot_of_name(&object.namespace, &object.name).is_some() {
                self.again.push(current);
                continue;
            }
            let kind = cache.kind_of(object);
            let document = unpack_document(&current.packed).unwrap_or_default();
            let keys = cache.object_keys(&current, &document);
            let kept =
                StoredObject::Packed(record::write(&kind, &current, created_s(&document), &keys.hashes));
            let slot = cache.take_slot(SlotContent { kept, status: current.status }, keys.signature);
            self.entries.extend(keys.hashes.iter().map(|key| (*key, slot)));
        }
    }

    pub fn into_cache(self) -> ObjectCache {
        let Self { mut cache, entries, again } = self;
        cache.by_key = ChunkedMultimap::of(entries.into_iter());
        cache.orders = SortedOrders::of(&cache.slots);
        again.iter().for_each(|current| cache.put_object(current, None));
        cache
    }
}

impl ObjectCache {
    /// The objects of the versions that `choose` picks from all version numbers, in the order of the choice.
    pub fn chosen_objects(&self, choose: impl FnOnce(&[u128]) -> Vec<u128>) -> Vec<CurrentObject> {
        let numbered = |(slot, held): (usize, &Option<SlotContent>)| {
            Some((version_number(&Version::new(held.as_ref()?.kept.read().version))?, slot as CacheSlot))
        };
        let (numbers, slots): (Vec<_>, Vec<_>) = self.slots.iter().enumerate().filter_map(numbered).unzip();
        let place = |chosen: u128| numbers.iter().position(|number| *number == chosen);
        let found = choose(&numbers).into_iter().filter_map(place);
        found.filter_map(|place| self.current_object(slots[place])).collect()
    }
}
