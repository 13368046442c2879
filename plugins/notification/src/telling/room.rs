//! Shares the outbox among channels: a recipient that takes nothing keeps nobody else from being told.

use std::collections::BTreeSet;

use super::book::{Book, Outgoing};
use super::note;
use crate::config::Config;
use crate::report::Report;

/// Messages that wait for their recipients. Each has up to 3 KiB of the 4 MiB of `kv`.
pub const OUTBOX: usize = 128;

impl Book {
    /// The channel that most messages wait for gives up its oldest one, which is counted. Objects name any number of
    /// addresses, so those of one channel share its part.
    pub fn make_room(&mut self, config: &Config, now_ms: u64) {
        while self.outbox.len() >= OUTBOX {
            let Some(channel) = self.fullest() else { return };
            let Some(place) = self.outbox.iter().position(|one| one.waits_for(&channel)) else { return };
            self.give_up(config, place, &channel, now_ms);
        }
    }

    fn fullest(&self) -> Option<String> {
        let waiting = |channel: &str| self.outbox.iter().filter(|one| one.waits_for(channel)).count();
        let channels: BTreeSet<&str> =
            self.outbox.iter().flat_map(|one| &one.to).map(|to| channel_of(to)).collect();
        channels.into_iter().max_by_key(|channel| waiting(channel)).map(str::to_string)
    }

    fn give_up(&mut self, config: &Config, place: usize, channel: &str, now_ms: u64) {
        let Outgoing { message, to, .. } = &mut self.outbox[place];
        for to in to.extract_if(.., |to| channel_of(to) == channel) {
            let what = ("given up", "too many messages wait for the channel; this one is counted");
            self.reports.push(Report::of(config, &message.facts, &to, what, message.title.clone(), now_ms));
            note::add(&mut self.crowded, to.clone(), 1);
            note::add(&mut self.more, to, 1);
        }
        if to.is_empty() {
            self.outbox.remove(place);
        }
    }
}

impl Outgoing {
    fn waits_for(&self, channel: &str) -> bool {
        self.to.iter().any(|to| channel_of(to) == channel)
    }
}

pub fn channel_of(recipient: &str) -> &str {
    recipient.split(':').next().unwrap_or_default()
}
