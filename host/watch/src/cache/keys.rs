//! Hashes the keys of an object for the indexes, and makes its signature for searches.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;

use kubewitness_core::index::{IndexKey, IndexSet};
use kubewitness_core::project::ObjectOutline;
use kubewitness_core::search_filter::SearchSignature;
use kubewitness_core::state::ObjectRef;

/// The keys by which an object is found.
#[derive(Clone, Debug)]
pub(crate) struct ObjectKeys {
    /// The hashes of all its keys, ascending and distinct.
    pub hashes: Arc<[u32]>,
    pub signature: SearchSignature,
    /// A hash of the bytes from which the keys were read, if the next version may need it.
    key_bytes_hash: Option<u64>,
}

/// Makes the keys of one source's objects.
pub(crate) struct KeyMaker {
    pub indexes: Arc<IndexSet>,
    hasher: RandomState,
}

impl KeyMaker {
    pub fn new(indexes: IndexSet) -> Self {
        Self { indexes: Arc::new(indexes), hasher: RandomState::new() }
    }

    /// `None` if no index has the key.
    pub fn hash_key(&self, key: IndexKey<'_>) -> Option<u32> {
        let hash = match key {
            IndexKey::Submitter(_) => return None,
            IndexKey::Namespace(namespace) => self.hasher.hash_one((0u8, namespace)),
            IndexKey::Owner(uid) => self.hasher.hash_one((1u8, uid)),
            IndexKey::Node(node) => self.hasher.hash_one((2u8, node)),
            IndexKey::Label(key, value) => self.hasher.hash_one((3u8, key, value)),
            IndexKey::Named(number, text) => self.hasher.hash_one((4u8, number, text)),
        };
        // Takes the low half. The hash has a random seed, so nobody can make all objects collide.
        Some(hash as u32)
    }

    /// The keys of a document's next version. The former keys are reused if the bytes that determine them are
    /// unchanged.
    pub fn next(
        &self,
        object: &ObjectRef,
        owner: Option<&ObjectRef>,
        document: &[u8],
        outline: &ObjectOutline,
        before: Option<&ObjectKeys>,
    ) -> ObjectKeys {
        let key_bytes_hash = self.hash_of_key_bytes(owner, document, outline);
        match before.filter(|before| before.key_bytes_hash == Some(key_bytes_hash)) {
            Some(before) => before.clone(),
            None => ObjectKeys {
                key_bytes_hash: Some(key_bytes_hash),
                ..self.object_keys(object, owner, document, Some(outline))
            },
        }
    }

    /// A hash of the bytes that determine the keys, without the namespace, which an object never changes. It
    /// is keyed and has 64 bits, so two different inputs collide neither by chance nor by intent.
    fn hash_of_key_bytes(&self, owner: Option<&ObjectRef>, document: &[u8], outline: &ObjectOutline) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write(owner.map_or("", |owner| &owner.uid).as_bytes());
        self.indexes.each_key_part(document, outline, |part| {
            hasher.write_usize(part.len());
            hasher.write(part);
        });
        hasher.finish()
    }

    /// The keys of any document; `None` if its outline can't be made.
    pub fn object_keys(
        &self,
        object: &ObjectRef,
        owner: Option<&ObjectRef>,
        document: &[u8],
        outline: Option<&ObjectOutline>,
    ) -> ObjectKeys {
        let mut keys = Vec::with_capacity(12);
        keys.extend(self.hash_key(IndexKey::Namespace(&object.namespace)));
        keys.extend(owner.and_then(|owner| self.hash_key(IndexKey::Owner(&owner.uid))));
        let mut signature = SearchSignature::of(&object.name, &object.uid);
        let found = |key: IndexKey<'_>| {
            keys.extend(self.hash_key(key));
            signature.add_key(key, &object.name, &object.uid);
        };
        let read = match outline {
            Some(outline) => self.indexes.outlined_keys(document, outline, found),
            None => self.indexes.for_each_key(document, found),
        };
        // An unreadable object has only these keys. Readers of the document detect and report the damage.
        if read.is_err() {
            signature.open();
            tracing::warn!(
                namespace = object.namespace,
                name = object.name,
                "a cached document can't be read: the object is not found by its labels, owners or node"
            );
        }
        keys.sort_unstable();
        keys.dedup();
        ObjectKeys { hashes: keys.into(), signature, key_bytes_hash: None }
    }
}
