//! The Merkle tree of RFC 6962. It keeps only the roots of its perfect subtrees, so a new root costs a few
//! hashes.
//!
//! SHA-256 comes from `sha2` here and from `ring` in `kubewitness audit verify`, so that a verifier shares no
//! code with what it judges. The tree is written by hand: only adding a leaf and reading the root are needed.

use sha2::{Digest, Sha256};

pub type MerkleHash = [u8; 32];

/// Leaves and nodes begin with different bytes, so that no leaf can pass for a node.
const LEAF: [u8; 1] = [0];
const NODE: [u8; 1] = [1];

pub fn sha256(bytes: &[u8]) -> MerkleHash {
    Sha256::digest(bytes).into()
}

fn hash_node(left: &MerkleHash, right: &MerkleHash) -> MerkleHash {
    Sha256::new().chain_update(NODE).chain_update(left).chain_update(right).finalize().into()
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MerkleTree {
    leaves: u64,
    /// The roots of perfect subtrees, the largest first: one for each set bit of `leaves`.
    subtrees: Vec<MerkleHash>,
}

impl MerkleTree {
    pub fn push(&mut self, leaf: &[u8]) {
        let mut hash: MerkleHash = Sha256::new().chain_update(LEAF).chain_update(leaf).finalize().into();
        for _ in 0..self.leaves.trailing_ones() {
            if let Some(left) = self.subtrees.pop() {
                hash = hash_node(&left, &hash);
            }
        }
        self.subtrees.push(hash);
        self.leaves += 1;
    }

    pub fn count_leaves(&self) -> u64 {
        self.leaves
    }

    pub fn root(&self) -> MerkleHash {
        let mut smallest_first = self.subtrees.iter().rev();
        match smallest_first.next() {
            Some(first) => smallest_first.fold(*first, |right, left| hash_node(left, &right)),
            None => sha256(b""),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The definition in section 2.1 of RFC 6962.
    fn defined(leaves: &[Vec<u8>]) -> MerkleHash {
        match leaves {
            [] => sha256(b""),
            [leaf] => sha256(&[&[0], leaf.as_slice()].concat()),
            _ => {
                let split = leaves.len().next_power_of_two() / 2;
                let (left, right) = leaves.split_at(split);
                sha256(&[&[1], defined(left).as_slice(), defined(right).as_slice()].concat())
            }
        }
    }

    #[test]
    fn roots_are_those_of_the_known_answers_of_certificate_transparency() {
        let leaves: [&[u8]; 8] = [
            b"",
            b"\x00",
            b"\x10",
            b"\x20\x21",
            b"\x30\x31",
            b"\x40\x41\x42\x43",
            b"\x50\x51\x52\x53\x54\x55\x56\x57",
            b"\x60\x61\x62\x63\x64\x65\x66\x67\x68\x69\x6a\x6b\x6c\x6d\x6e\x6f",
        ];
        let mut tree = MerkleTree::default();
        leaves.iter().for_each(|leaf| tree.push(leaf));
        let known = "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328";
        assert_eq!(hex::encode(tree.root()), known);
    }

    proptest! {
        #[test]
        fn the_root_is_the_defined_one_after_every_leaf(leaves: Vec<Vec<u8>>) {
            let mut tree = MerkleTree::default();
            prop_assert_eq!(tree.root(), defined(&[]));
            for end in 1..=leaves.len() {
                tree.push(&leaves[end - 1]);
                prop_assert_eq!(tree.root(), defined(&leaves[..end]));
            }
        }
    }
}
