//! Fills a cache at the start: it places the journal's objects part by part and builds the indexes at the
//! end.

use kubewitness_core::Version;
use kubewitness_core::document::unpack;
use kubewitness_core::ports::Current;

use super::orders::Orders;
use super::{Cache, Held, Kept, Multimap, Slot, created_s, record};
use crate::version::number;

/// A cache that is being filled. No reader sees it before it is complete.
pub(crate) struct Filling {
    cache: Cache,
    entries: Vec<(u32, Slot)>,
    /// Objects that came twice, or that have another object's name.
    again: Vec<Current>,
}

impl Filling {
    /// Begins with the indexes of the cache that it will replace.
    pub fn instead_of(cache: &Cache) -> Self {
        Self { cache: Cache::with(cache.keyer()), entries: Vec::new(), again: Vec::new() }
    }

    pub fn add(&mut self, part: Vec<Current>) {
        for current in part {
            let (cache, object) = (&mut self.cache, &current.object);
            let known = cache.slot_of_uid(&object.uid).is_some();
            if known || cache.slot_of_name(&object.namespace, &object.name).is_some() {
                self.again.push(current);
                continue;
            }
            let kind = cache.kind_of(object);
            let document = unpack(&current.packed).unwrap_or_default();
            let keys = cache.keys(&current, &document);
            let kept = Kept::Packed(record::write(&kind, &current, created_s(&document), &keys.hashes));
            let slot = cache.take_slot(Held { kept, status: current.status }, keys.signature);
            self.entries.extend(keys.hashes.iter().map(|key| (*key, slot)));
        }
    }

    pub fn finish(self) -> Cache {
        let Self { mut cache, entries, again } = self;
        cache.by_key = Multimap::of(entries.into_iter());
        cache.orders = Orders::of(&cache.slots);
        again.iter().for_each(|current| cache.put(current, None));
        cache
    }
}

impl Cache {
    /// The objects of the versions that `choose` picks from all version numbers, in the order of the choice.
    pub fn chosen(&self, choose: impl FnOnce(&[u128]) -> Vec<u128>) -> Vec<Current> {
        let numbered = |(slot, held): (usize, &Option<Held>)| {
            Some((number(&Version::new(held.as_ref()?.kept.read().version))?, slot as Slot))
        };
        let (numbers, slots): (Vec<_>, Vec<_>) = self.slots.iter().enumerate().filter_map(numbered).unzip();
        let place = |chosen: u128| numbers.iter().position(|number| *number == chosen);
        let found = choose(&numbers).into_iter().filter_map(place);
        found.filter_map(|place| self.current(slots[place])).collect()
    }
}
