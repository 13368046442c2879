//! Counts the parts of an object that nobody requested separately, such as the failed Pods of a Job. They are
//! reported with their owner, so a number suffices, however many there are.

use kubewitness_sdk::{Error, kv, log};
use serde::{Deserialize, Serialize};

use super::compose;
use super::outbox::OutboxBook;
use crate::config::Config;
use crate::facts::{Facts, clip_text};

/// The prefix of counts' keys.
pub const PARTS: &str = "part/";
/// The most counts that wait for a tick: one for each call and owner, of about 150 bytes. A call may have a
/// single state.
pub const MOST_COUNTS: usize = 512;
/// The most owners in the book.
const MOST_OWNERS: usize = 128;
/// The most different ends of the parts of one owner, and the length of one.
const MOST_ENDS: usize = 8;
const END_BYTES: usize = 100;
/// How long parts wait for their owner, beyond the settle time.
const WAIT_MS: u64 = 60_000;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MessageParts {
    /// The group of the owner. See [`crate::decide::message_group`].
    group: String,
    heard_ms: u64,
    /// The number of parts by kind and end. Only the first few are listed.
    counts: Vec<((String, String), u64)>,
}

impl MessageParts {
    fn add(&mut self, ended: (String, String), more: u64) {
        match self.counts.iter().position(|(known, _)| *known == ended) {
            Some(place) => self.counts[place].1 += more,
            None if self.counts.len() < MOST_ENDS => self.counts.push((ended, more)),
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

/// Counts a part in the group.
pub fn count(all: &mut Vec<MessageParts>, group: &str, facts: &Facts, now_ms: u64) {
    let (kind, what) = compose::end_of_part(facts);
    let parts = of_group(all, group);
    parts.heard_ms = now_ms;
    parts.add((clip_text(&kind, END_BYTES), clip_text(&what, END_BYTES)), 1);
}

/// Stores the counts of a call for the tick. `first` is the position of a state that no other call has.
pub fn keep(all: &[MessageParts], first: u64) -> Result<(), Error> {
    if all.is_empty() {
        return Ok(());
    }
    let room = MOST_COUNTS.saturating_sub(kv::keys(PARTS, MOST_COUNTS as u32)?.len());
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

    /// Takes the counts of the parts that are reported with their owner.
    pub fn take_parts(&mut self, group: &str) -> Vec<((String, String), u64)> {
        let taken = self.parts.extract_if(.., |parts| parts.group == group);
        taken.flat_map(|parts| parts.counts).collect()
    }

    /// Removes parts whose owner is never reported.
    pub fn forget_parts(&mut self, config: &Config, now_ms: u64) {
        let wait_ms = config.settle.ms + WAIT_MS;
        self.parts.retain(|parts| parts.heard_ms <= now_ms && now_ms - parts.heard_ms <= wait_ms);
        self.parts.drain(..self.parts.len().saturating_sub(MOST_OWNERS));
    }
}
