//! Shares the outbox among channels: a recipient that accepts nothing must not keep others from being
//! notified. People whose messages have no room get a number. A program gets each message: its states come
//! again until there is room.

use kubewitness_sdk::{Error, kv};

use super::note;
use super::outbox::{OutboxBook, OutgoingMessage};
use crate::config::Config;
use crate::facts::{self, text};
use crate::report::Report;

/// Messages that wait for people, and those that wait for all programs together. Each has up to 3 KiB of the 4 MiB of `kv`.
const OUTBOX: usize = 128;
/// Messages that a program has room for, however many channels there are.
const SHARE: usize = 4;
/// A state comes again for a program without room after this. By the usual pauses it would be parked within a minute.
pub const WAIT_MS: u64 = 60_000;
/// The key under which a tick says which programs are full.
const FULL: &str = "full";

impl OutboxBook {
    /// The channel that most messages wait for gives up its oldest one, which is counted. Objects name any number of
    /// addresses, so those of one channel share its part.
    pub fn make_room(&mut self, config: &Config, now_ms: u64) {
        let is_one = |one: &&OutgoingMessage| one.to.iter().any(|to| config.is_for_people(to));
        while self.outbox.iter().filter(is_one).count() >= OUTBOX {
            let Some(channel) = self.fullest_channel(config) else { return };
            let Some(place) = self.outbox.iter().position(|one| one.waits_for(channel)) else { return };
            self.drop_recipients(config, place, channel, now_ms);
        }
    }

    fn fullest_channel<'a>(&self, config: &'a Config) -> Option<&'a str> {
        let people = config.channels.iter().filter(|channel| channel.kind.is_for_people());
        people.map(|channel| channel.name.as_str()).max_by_key(|channel| self.count_waiting(channel))
    }

    fn count_waiting(&self, channel: &str) -> usize {
        self.outbox.iter().filter(|one| one.waits_for(channel)).count()
    }

    /// The programs that have no room for another message, for the calls that note messages.
    pub fn save_full_channels(&self, config: &Config) -> Result<(), Error> {
        let share = (OUTBOX / config.channels.len().max(1)).max(SHARE);
        let programs = config.channels.iter().filter(|channel| !channel.kind.is_for_people());
        let full: Vec<&str> =
            programs.map(|one| one.name.as_str()).filter(|one| self.count_waiting(one) >= share).collect();
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

/// Reads the list that the last tick wrote.
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
