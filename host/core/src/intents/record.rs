//! The encoding of a note: a line of JSON, then the bytes whose lengths the line has.

use serde::Serialize;
use serde::de::DeserializeOwned;

pub(super) fn encode(head: &impl Serialize, tails: &[&[u8]]) -> Vec<u8> {
    let mut bytes = serde_json::to_vec(head).expect("strings and numbers always serialize");
    bytes.push(b'\n');
    tails.iter().for_each(|tail| bytes.extend_from_slice(tail));
    bytes
}

/// `None` if the bytes were not written by [`encode`].
pub(super) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Option<(T, &[u8])> {
    let (head, tails) = bytes.split_at_checked(bytes.iter().position(|byte| *byte == b'\n')?)?;
    Some((serde_json::from_slice(head).ok()?, tails.get(1..)?))
}
