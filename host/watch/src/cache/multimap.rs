//! Maps the hash of a key to the slots of the objects that have the key. It is one sorted list of words,
//! `hash << 32 | slot`, split into chunks.
//!
//! All indexes of a source share it. An entry takes about nine bytes, whether many objects share a key or
//! each has its own. Two keys may have the same hash, so readers compare with the object itself.

use std::cmp::Ordering;

/// The most words of a chunk. An insertion moves at most this many.
const CHUNK: usize = 512;
/// Chunks grow by this many words, so that a half-full chunk does not reserve room for a full one.
const STEP: usize = 64;

/// Words, in the order in which the caller compares them.
#[derive(Default)]
pub(super) struct WordChunks {
    /// No chunk is empty, and all are in order.
    chunks: Vec<Vec<u64>>,
}

/// A chunk and a place in it.
pub(super) type ChunkPosition = (usize, usize);

impl WordChunks {
    /// The chunks are half full, like chunks that have grown, so the next insertion does not split one.
    pub fn of(words: &[u64]) -> Self {
        Self { chunks: words.chunks(CHUNK / 2).map(<[u64]>::to_vec).collect() }
    }

    /// The position of a word, or the position at which to insert it. `compare` compares another word with
    /// it.
    pub fn position_of(&self, compare: impl Fn(u64) -> Ordering) -> Result<ChunkPosition, ChunkPosition> {
        let number =
            self.chunks.partition_point(|chunk| compare(chunk[0]) != Ordering::Greater).saturating_sub(1);
        let Some(chunk) = self.chunks.get(number) else { return Err((number, 0)) };
        let place = chunk.binary_search_by(|word| compare(*word));
        place.map(|place| (number, place)).map_err(|place| (number, place))
    }

    pub fn insert(&mut self, (number, place): ChunkPosition, word: u64) {
        let Some(chunk) = self.chunks.get_mut(number) else {
            self.chunks.push(vec![word]);
            return;
        };
        if chunk.len() == chunk.capacity() {
            chunk.reserve_exact(STEP);
        }
        chunk.insert(place, word);
        if chunk.len() > CHUNK {
            let upper = chunk.split_off(CHUNK / 2);
            chunk.shrink_to_fit();
            self.chunks.insert(number + 1, upper);
        }
    }

    pub fn remove(&mut self, (number, place): ChunkPosition) {
        let chunk = &mut self.chunks[number];
        chunk.remove(place);
        if chunk.is_empty() {
            self.chunks.remove(number);
        } else if chunk.capacity() > chunk.len() + 2 * STEP {
            chunk.shrink_to(chunk.len() + STEP);
        }
    }

    pub fn from(&self, (number, place): ChunkPosition) -> impl Iterator<Item = u64> {
        self.chunks.get(number..).unwrap_or_default().iter().flatten().skip(place).copied()
    }

    /// Backwards, beginning with the word before a position.
    pub fn words_before(&self, (number, place): ChunkPosition) -> impl Iterator<Item = u64> {
        let within = self.chunks.get(number).map(|chunk| &chunk[..place]).unwrap_or_default();
        let lower = self.chunks.get(..number).unwrap_or_default();
        within.iter().rev().chain(lower.iter().rev().flat_map(|chunk| chunk.iter().rev())).copied()
    }

    /// The position after all words.
    pub fn end_position(&self) -> ChunkPosition {
        (self.chunks.len(), 0)
    }
}

#[derive(Default)]
pub(super) struct ChunkedMultimap(WordChunks);

fn pack_word(hash: u32, slot: u32) -> u64 {
    u64::from(hash) << 32 | u64::from(slot)
}

impl ChunkedMultimap {
    /// Builds the map from all entries at once, with a single sort.
    pub fn of(entries: impl Iterator<Item = (u32, u32)>) -> Self {
        let mut words: Vec<u64> = entries.map(|(hash, slot)| pack_word(hash, slot)).collect();
        words.sort_unstable();
        words.dedup();
        Self(WordChunks::of(&words))
    }

    fn position_of(&self, word: u64) -> Result<ChunkPosition, ChunkPosition> {
        self.0.position_of(|other| other.cmp(&word))
    }

    pub fn insert(&mut self, hash: u32, slot: u32) {
        let word = pack_word(hash, slot);
        if let Err(at) = self.position_of(word) {
            self.0.insert(at, word);
        }
    }

    pub fn remove(&mut self, hash: u32, slot: u32) {
        if let Ok(at) = self.position_of(pack_word(hash, slot)) {
            self.0.remove(at);
        }
    }

    /// The slots of one hash from `slot` on, ascending.
    pub fn from(&self, hash: u32, slot: u32) -> impl Iterator<Item = u32> {
        let (Ok(at) | Err(at)) = self.position_of(pack_word(hash, slot));
        self.0.from(at).take_while(move |word| *word >> 32 == u64::from(hash)).map(|word| word as u32)
    }

    /// The approximate number of slots with this hash. It counts whole chunks as full.
    pub fn estimate_slots(&self, hash: u32) -> usize {
        let (Ok((first, low)) | Err((first, low))) = self.position_of(pack_word(hash, 0));
        let (Ok((last, high)) | Err((last, high))) = self.position_of(pack_word(hash, u32::MAX));
        ((last - first) * CHUNK + high).saturating_sub(low)
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.0.chunks.iter().map(Vec::len).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn made_at_once_it_is_as_made_one_by_one(
            entries in prop::collection::vec((0u32..40, 0u32..700), 0..3_000),
            more in prop::collection::vec((0u32..40, 0u32..700), 0..300),
        ) {
            let mut one_by_one = ChunkedMultimap::default();
            entries.iter().for_each(|(hash, slot)| one_by_one.insert(*hash, *slot));
            let mut at_once = ChunkedMultimap::of(entries.into_iter());
            for (hash, slot) in more {
                one_by_one.insert(hash, slot);
                at_once.insert(hash, slot);
            }
            prop_assert_eq!(at_once.0.chunks.concat(), one_by_one.0.chunks.concat());
        }

        #[test]
        fn it_agrees_with_a_sorted_set(
            steps in prop::collection::vec((prop::bool::weighted(0.7), 0u32..4, 0u32..700), 0..3_000),
        ) {
            let mut map = ChunkedMultimap::default();
            let mut model = BTreeSet::new();
            for (put, hash, slot) in steps {
                // Spread over the whole range, including its ends.
                let hash = [0, 7, 1 << 31, u32::MAX][hash as usize];
                if put {
                    map.insert(hash, slot);
                    model.insert((hash, slot));
                } else {
                    map.remove(hash, slot);
                    model.remove(&(hash, slot));
                }
            }
            prop_assert_eq!(map.len(), model.len());
            for hash in [0, 7, 8, 1 << 31, u32::MAX] {
                for from in [0, 350, 699] {
                    let expected: Vec<_> = model.range((hash, from)..=(hash, u32::MAX)).map(|(_, slot)| *slot).collect();
                    prop_assert_eq!(map.from(hash, from).collect::<Vec<_>>(), expected);
                }
                let exact = model.range((hash, 0)..=(hash, u32::MAX)).count();
                prop_assert!(map.estimate_slots(hash) >= exact.saturating_sub(CHUNK), "{}", map.estimate_slots(hash));
            }
        }
    }
}
