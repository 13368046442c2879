//! Recognizes objects that one list shows more than once.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

/// How an item compares with the items before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ItemSighting {
    First,
    /// A stream may repeat an object.
    Repeated,
    /// Its uid came with another name. No server has two objects of one uid.
    Renamed,
}

/// The uids of one list by their hashes, each with the hash of its name.
#[derive(Default)]
pub(super) struct ListedNames {
    names: HashMap<u64, u64>,
    hasher: RandomState,
}

impl ListedNames {
    pub fn note_sighting(&mut self, uid: &str, namespace: &str, name: &str) -> ItemSighting {
        let name = self.hasher.hash_one((namespace, name));
        match self.names.insert(self.hasher.hash_one(uid), name) {
            None => ItemSighting::First,
            Some(before) if before == name => ItemSighting::Repeated,
            Some(_) => ItemSighting::Renamed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uid_under_a_second_name_is_told_from_a_repeat() {
        let mut names = ListedNames::default();
        assert_eq!(names.note_sighting("u", "n", "a"), ItemSighting::First);
        assert_eq!(names.note_sighting("v", "n", "b"), ItemSighting::First);
        assert_eq!(names.note_sighting("u", "n", "a"), ItemSighting::Repeated);
        assert_eq!(names.note_sighting("u", "n", "c"), ItemSighting::Renamed);
        assert_eq!(names.note_sighting("v", "m", "b"), ItemSighting::Renamed);
    }
}
