//! Shares the outbox among channels: a recipient that accepts nothing must not keep others from being
//! notified. People get a number instead of messages without room. A program gets each message, so its states
//! are retried until there is room.

use kubewitness_sdk::{Error, kv};

use super::note;
use super::outbox::{OutboxBook, OutgoingMessage};
use crate::config::Config;
use crate::facts::{self, text};
use crate::report::Report;

/// The most messages that wait for people, and the most that wait for all programs together. Each has up to 3
/// KiB of the 4 MiB of `kv`.
const OUTBOX: usize = 128;
/// The least number of messages for which a program has room, however many channels there are.
const SHARE: usize = 4;
/// The pause before a state is retried for a program without room. With the usual pauses it would be parked
/// within a minute.
pub const WAIT_MS: u64 = 60_000;
/// The key under which a tick stores the programs without room.
const FULL: &str = "full";

impl OutboxBook {
    /// Drops the oldest message of the channel for which the most messages wait, and counts it. Objects may
    /// name any number of addresses, so all addresses of a channel share its room.
    pub fn make_room(&mut self, config: &Config, now_ms: u64) {
        let is_for_people =
            |outgoing: &&OutgoingMessage| outgoing.to.iter().any(|to| config.is_for_people(to));
        while self.outbox.iter().filter(is_for_people).count() >= OUTBOX {
            let Some(channel) = self.fullest_channel(config) else { return };
            let Some(place) = self.outbox.iter().position(|outgoing| outgoing.waits_for(channel)) else {
                return;
            };
            self.drop_recipients(config, place, channel, now_ms);
        }
    }

    fn fullest_channel<'a>(&self, config: &'a Config) -> Option<&'a str> {
        let people = config.channels.iter().filter(|channel| channel.kind.is_for_people());
        people.map(|channel| channel.name.as_str()).max_by_key(|channel| self.count_waiting(channel))
    }

    fn count_waiting(&self, channel: &str) -> usize {
        self.outbox.iter().filter(|outgoing| outgoing.waits_for(channel)).count()
    }

    /// Stores the programs without room for another message, for calls that note messages.
    pub fn save_full_channels(&self, config: &Config) -> Result<(), Error> {
        let share = (OUTBOX / config.channels.len().max(1)).max(SHARE);
        let programs = config.channels.iter().filter(|channel| !channel.kind.is_for_people());
        let full: Vec<&str> = programs
            .map(|channel| channel.name.as_str())
            .filter(|name| self.count_waiting(name) >= share)
            .collect();
        match (full.is_empty(), kv::get(FULL)?) {
            (true, None) => Ok(()),
            (true, Some(_)) => kv::delete(FULL),
            (false, stored) => {
                let bytes = serde_json::to_vec(&full).map_err(|error| Error::Invalid(error.to_string()))?;
                if stored.as_deref() == Some(&bytes) { Ok(()) } else { kv::set(FULL, &bytes) }
            }
        }
    }

    fn drop_recipients(&mut self, config: &Config, place: usize, channel: &str, now_ms: u64) {
        let OutgoingMessage { message, to, .. } = &mut self.outbox[place];
        let phase = text(&message.facts, "phase");
        for to in to.extract_if(.., |to| channel_of(to) == channel) {
            let what = ("given up", "too many messages wait for the channel; this one is counted");
            self.reports.push(Report::of(config, &message.facts, &to, what, message.title.clone(), now_ms));
            note::add(&mut self.crowded, to.clone(), 1);
            let is_held = config.is_held(&to, phase, now_ms);
            note::add(if is_held { &mut self.held } else { &mut self.more }, to, 1);
        }
        if to.is_empty() {
            self.outbox.remove(place);
        }
    }
}

/// Reads the list that the last tick stored.
pub fn full_channels() -> Result<Vec<String>, Error> {
    let Some(bytes) = kv::get(FULL)? else { return Ok(Vec::new()) };
    facts::read(&bytes).map_err(|why| Error::Other(format!("the list of full programs can't be read: {why}")))
}

impl OutgoingMessage {
    fn waits_for(&self, channel: &str) -> bool {
        self.to.iter().any(|to| channel_of(to) == channel)
    }
}

pub fn channel_of(recipient: &str) -> &str {
    recipient.split(':').next().unwrap_or_default()
}
