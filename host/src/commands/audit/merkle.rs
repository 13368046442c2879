//! The Merkle tree of RFC 6962, for verification only. The controller writes seals with separate code.

use ring::digest::{Context, SHA256, digest};

pub type RootHash = [u8; 32];

pub fn sha256(parts: &[&[u8]]) -> RootHash {
    let mut context = Context::new(&SHA256);
    parts.iter().for_each(|part| context.update(part));
    context.finish().as_ref().try_into().unwrap_or_default()
}

/// A binary counter: place `n` has the root over 2ⁿ leaves, if that bit of the number of leaves is set.
#[derive(Clone, Debug, Default)]
pub struct MerkleCounter(Vec<Option<RootHash>>);

impl MerkleCounter {
    pub fn add(&mut self, leaf: &[u8]) {
        let mut carried = sha256(&[&[0], leaf]);
        for place in &mut self.0 {
            match place.take() {
                Some(left) => carried = sha256(&[&[1], &left, &carried]),
                None => return *place = Some(carried),
            }
        }
        self.0.push(Some(carried));
    }

    pub fn root(&self) -> String {
        let join = |right: Option<RootHash>, left: &RootHash| match right {
            Some(right) => Some(sha256(&[&[1], left, &right])),
            None => Some(*left),
        };
        match self.0.iter().flatten().fold(None, join) {
            Some(root) => hex::encode(root),
            None => hex::encode(digest(&SHA256, b"")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roots_are_those_that_are_known_of_certificate_transparency() {
        let roots = [
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
            "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
            "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
            "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
        ];
        let mut counter = MerkleCounter::default();
        let leaves: [&[u8]; 3] = [b"", b"\x00", b"\x10"];
        assert_eq!(counter.root(), roots[0]);
        for (leaf, root) in leaves.iter().zip(&roots[1..]) {
            counter.add(leaf);
            assert_eq!(counter.root(), *root);
        }
    }
}
