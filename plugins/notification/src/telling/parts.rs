//! Counts the parts of an object that nobody requested separately, such as the failed Pods of a Job. They are
//! reported with their owner, so a number suffices, however many there are.

use kubewitness_sdk::{Error, kv, log};
use serde::{Deserialize, Serialize};

use super::compose;
use super::outbox::OutboxBook;
use crate::config::Config;
use crate::facts::{Facts, clip_text};

/// The keys of counts begin with it.
pub const PARTS: &str = "part/";
/// Counts that wait for a tick, one for each call and owner, of mostly 150 bytes. A call may have one state alone.
pub const MOST: usize = 512;
/// Owners in the book.
const OWNERS: usize = 128;
/// The most kinds of ends that the parts of one owner may have, and the length of one.
const KINDS: usize = 8;
const KIND_BYTES: usize = 100;
/// Parts wait for their owner so long beyond the settle time.
const WAIT_MS: u64 = 60_000;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MessageParts {
    /// The owner. See [`crate::decide::told_group`].
    group: String,
    heard_ms: u64,
    /// The kind and what became of it, and how many there are. Only the first few are told.
    counts: Vec<((String, String), u64)>,
}

impl MessageParts {
    fn add(&mut self, ended: (String, String), more: u64) {
        match self.counts.iter().position(|(known, _)| *known == ended) {
            Some(place) => self.counts[place].1 += more,
            None if self.counts.len() < KINDS => self.counts.push((ended, more)),
            None => {}
        }
    }
}

fn of_group<'a>(all: &'a mut Vec<MessageParts>, group: &str) -> &'a mut MessageParts {
    let place = all.iter().position(|parts| parts.group == group).unwrap_or_else(|| {
        all.push(MessageParts { group: group.to_string(), ..MessageParts::default() });
        all.len() - 1
    });
    &mut all[place]
}

/// Counts one part.
pub fn count(all: &mut Vec<MessageParts>, group: &str, facts: &Facts, now_ms: u64) {
    let (kind, what) = compose::end_of_part(facts);
    let parts = of_group(all, group);
    parts.heard_ms = now_ms;
    parts.add((clip_text(&kind, KIND_BYTES), clip_text(&what, KIND_BYTES)), 1);
}

/// Keeps the counts of a call for the tick. `first` is the position of a state of this call alone.
pub fn keep(all: &[MessageParts], first: u64) -> Result<(), Error> {
    if all.is_empty() {
        return Ok(());
    }
    let room = MOST.saturating_sub(kv::keys(PARTS, MOST as u32)?.len());
    for (place, parts) in all.iter().take(room).enumerate() {
        let bytes = serde_json::to_vec(parts).map_err(|error| Error::Invalid(error.to_string()))?;
        kv::set(&format!("{PARTS}{first:020}/{place}"), &bytes)?;
    }
    if all.len() > room {
        let owners = (all.len() - room).to_string();
        log::warn("parts of objects are not counted: too many wait for the tick", &[("owners", &owners)]);
    }
    Ok(())
}

impl OutboxBook {
    pub fn count_parts(&mut self, heard: MessageParts) {
        let parts = of_group(&mut self.parts, &heard.group);
        parts.heard_ms = parts.heard_ms.max(heard.heard_ms);
        heard.counts.into_iter().for_each(|(ended, count)| parts.add(ended, count));
    }

    /// Takes the counts of the parts that are told with their owner.
    pub fn take_parts(&mut self, group: &str) -> Vec<((String, String), u64)> {
        let taken = self.parts.extract_if(.., |parts| parts.group == group);
        taken.flat_map(|parts| parts.counts).collect()
    }

    /// Lets go of parts whose owner is not told of.
    pub fn forget_parts(&mut self, config: &Config, now_ms: u64) {
        let wait_ms = config.settle.ms + WAIT_MS;
        self.parts.retain(|parts| parts.heard_ms <= now_ms && now_ms - parts.heard_ms <= wait_ms);
        self.parts.drain(..self.parts.len().saturating_sub(OWNERS));
    }
}
