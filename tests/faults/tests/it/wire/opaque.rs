//! A server whose versions are words: the wire puts one before each number that a server sends,
//! and takes it from what a client asks for. So does the judge, who knows the numbers.

use std::sync::Arc;

use bytes::Bytes;
use kubewitness_core::{Gap, State, StateId, Version};

/// In no name, no uid, and no content.
const WORD: &str = "opq-";
const FIELD: &str = "\"resourceVersion\":\"";

/// As the client gets it.
pub fn worded(body: &[u8]) -> Bytes {
    let text = String::from_utf8_lossy(body);
    let mut parts = text.split(FIELD);
    let mut worded = parts.next().unwrap_or_default().to_string();
    for part in parts {
        worded.push_str(FIELD);
        if part.starts_with(|c: char| c.is_ascii_digit()) {
            worded.push_str(WORD);
        }
        worded.push_str(part);
    }
    worded.into()
}

/// As the server has it.
pub fn plain(text: &str) -> String {
    text.replace(WORD, "")
}

/// A source's gap ends with a version that it includes: no word follows another.
pub fn plain_gap(gap: Gap) -> Gap {
    let (after, mut before) = (plain(&gap.after), plain(&gap.before));
    if gap.object.is_none() && gap.before.starts_with(WORD) {
        let last: u64 = before.parse().expect("a number behind the word");
        before = (last + 1).to_string();
    }
    Gap { after, before, ..gap }
}

pub fn plain_state(state: &Arc<State>) -> Arc<State> {
    let mut plainly = State::clone(state);
    plainly.id = StateId::parse(&plain(state.id.as_str()));
    plainly.resource_version = Version::new(&plain(state.resource_version.as_str()));
    Arc::new(plainly)
}
