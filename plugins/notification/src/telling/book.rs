//! What is to be told, to whom, and what was told lately. Pure: the tick passes the time, and says what each sending came
//! to.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::compose;
use super::note::{Counts, Note};
use crate::answer::Answer;
use crate::channels::Message;
use crate::config::Config;
use crate::facts::text;

/// Messages that wait for their recipients. Each has up to 3 KiB of the 1 MiB of `kv`. Where there is no room, notes wait.
const OUTBOX: usize = 128;
/// Objects whose last outcome is remembered, at about 100 bytes.
const TOLD: usize = 2000;
/// Recipients whose pace is remembered: as many as an outbox may name.
const PACES: usize = 1024;
/// States of a group that come one after the other put a message off for so many settle times.
const SETTLES: u64 = 6;
/// Parts wait for their owner so long beyond the settle time.
const PARTS_MS: u64 = 60_000;
/// A recipient that does not take a message is asked again after this, then after twice the pause, and so on.
const BACKOFF_MS: u64 = 5000;
const BACKOFF_MOST_MS: u64 = 600_000;
/// A message that nobody could be told for so long is given up.
const GIVE_UP_MS: u64 = 24 * 3_600_000;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Book {
    /// The last outcome that was told, by the object's uid; of parts under the uid with [`OF_PARTS`].
    told: BTreeMap<String, Told>,
    outbox: Vec<Outgoing>,
    /// By recipient.
    paces: BTreeMap<String, Pace>,
    /// Messages that had no room, by recipient.
    more: BTreeMap<String, u64>,
    /// States that happened long ago, since the plugin began.
    pub old: u64,
}

const OF_PARTS: &str = "/parts";

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Told {
    phase: String,
    attempt: u64,
    at_ms: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Outgoing {
    message: Message,
    /// Who is still to be told.
    to: BTreeSet<String>,
    since_ms: u64,
}

/// How often one recipient was told within a window, and when it may be asked again.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Pace {
    since_ms: u64,
    sent: u32,
    next_ms: u64,
    tries: u32,
}

/// One request to make.
#[derive(Clone, Debug, PartialEq)]
pub struct Sending {
    pub recipient: String,
    pub message: Message,
    /// The ids of the messages that it tells.
    pub tells: Vec<String>,
    is_digest: bool,
}

impl Book {
    pub fn count(&mut self, counts: Counts) {
        self.old += counts.old;
        for (recipient, count) in counts.more {
            *self.more.entry(recipient).or_default() += count;
        }
    }

    /// Makes messages of the notes that have settled. Returns the keys of those that are done with.
    pub fn take_in(&mut self, config: &Config, now_ms: u64, notes: BTreeMap<String, Note>) -> Vec<String> {
        let mut groups: BTreeMap<String, Vec<(String, Note)>> = BTreeMap::new();
        for (key, note) in notes {
            groups.entry(note.group.clone()).or_default().push((key, note));
        }
        let mut done = Vec::new();
        for (group, notes) in groups {
            let is_done =
                is_settled(config, now_ms, &notes) && self.take_group(config, now_ms, &group, &notes);
            if is_done {
                done.extend(notes.into_iter().map(|(key, _)| key));
            }
        }
        done
    }

    /// Whether the notes of a group are done with.
    fn take_group(&mut self, config: &Config, now_ms: u64, group: &str, notes: &[(String, Note)]) -> bool {
        let Some(lead) = lead(group, notes) else {
            // Parts without their owner. Nobody asked to be told of them alone.
            return notes.iter().all(|(_, note)| now_ms > note.heard_ms + config.settle.ms + PARTS_MS);
        };
        let phase = text(&lead.facts, "phase");
        let key = match text(&lead.facts, "uid") == group {
            true => group.to_string(),
            false => format!("{group}{OF_PARTS}"),
        };
        let attempt = lead.facts.get("attempt").and_then(Value::as_u64).unwrap_or_default();
        if self.told.get(&key).is_some_and(|told| told.covers(config, phase, attempt, now_ms)) {
            return true;
        }
        let is_quiet = config.quiet.as_ref().is_some_and(|quiet| {
            quiet.hours.contains(now_ms) && !quiet.except.iter().any(|except| except == phase)
        });
        if is_quiet || self.outbox.len() >= OUTBOX {
            return false;
        }
        let others: Vec<Note> =
            notes.iter().map(|(_, note)| note).filter(|note| note.seq != lead.seq).cloned().collect();
        // Of the object's own earlier states only the last one counts.
        let others: Vec<Note> = others.into_iter().filter(|note| text(&note.facts, "uid") != group).collect();
        let message = compose::one(config, lead, &others);
        self.outbox.push(Outgoing { message, to: lead.to.clone(), since_ms: now_ms });
        self.told.insert(key, Told { phase: phase.to_string(), attempt, at_ms: now_ms });
        true
    }

    /// What is to be sent now: each message, or one about all where there are too many for a person.
    pub fn due(&mut self, config: &Config, now_ms: u64) -> Vec<Sending> {
        let waiting: BTreeSet<String> =
            self.outbox.iter().flat_map(|one| one.to.iter()).chain(self.more.keys()).cloned().collect();
        let mut due = Vec::new();
        for recipient in waiting {
            let pace = self.paces.entry(recipient.clone()).or_default();
            if now_ms < pace.next_ms {
                continue;
            }
            if now_ms.saturating_sub(pace.since_ms) >= config.digest.every.ms {
                (pace.since_ms, pace.sent) = (now_ms, 0);
            }
            let left = config.digest.above.saturating_sub(pace.sent) as usize;
            due.extend(self.due_to(config, &recipient, left, now_ms));
        }
        due
    }

    fn due_to(&self, config: &Config, recipient: &str, left: usize, now_ms: u64) -> Vec<Sending> {
        let messages: Vec<&Message> =
            self.outbox.iter().filter(|one| one.to.contains(recipient)).map(|one| &one.message).collect();
        let more = self.more.get(recipient).copied().unwrap_or_default();
        let is_for_people =
            config.recipient(recipient).is_ok_and(|(channel, _)| channel.kind.is_for_people());
        if more == 0 && (!is_for_people || messages.len() <= left) {
            let each = |message: &&Message| Sending {
                recipient: recipient.to_string(),
                message: (*message).clone(),
                tells: vec![message.id.clone()],
                is_digest: false,
            };
            return messages.iter().map(each).collect();
        }
        if left == 0 && is_for_people {
            return Vec::new();
        }
        vec![Sending {
            recipient: recipient.to_string(),
            message: compose::digest(config, recipient, &messages, more, now_ms),
            tells: messages.iter().map(|message| message.id.clone()).collect(),
            is_digest: true,
        }]
    }

    /// Notes what a sending came to.
    pub fn answered(&mut self, config: &Config, sending: &Sending, answer: &Answer, now_ms: u64) {
        let pace = self.paces.entry(sending.recipient.clone()).or_default();
        match answer {
            Answer::Later { after_ms: Some(after_ms), .. } => {
                pace.next_ms = now_ms + after_ms;
                return;
            }
            Answer::Later { after_ms: None, .. } => {
                let pause = BACKOFF_MS.saturating_mul(1 << pace.tries.min(16)).min(BACKOFF_MOST_MS);
                (pace.next_ms, pace.tries) = (now_ms + pause, pace.tries.saturating_add(1));
                return;
            }
            Answer::Taken | Answer::Refused(_) => (pace.next_ms, pace.tries) = (0, 0),
        }
        // After a digest the recipient hears nothing until the window ends.
        pace.sent = if sending.is_digest { config.digest.above } else { pace.sent.saturating_add(1) };
        if sending.is_digest {
            self.more.remove(&sending.recipient);
        }
        for one in self.outbox.iter_mut().filter(|one| sending.tells.contains(&one.message.id)) {
            one.to.remove(&sending.recipient);
        }
        self.outbox.retain(|one| !one.to.is_empty());
    }

    /// Lets go of what is told or too old. Returns the recipients that were never told, with the titles.
    pub fn forget(&mut self, config: &Config, now_ms: u64) -> Vec<(String, String)> {
        let is_fresh = |one: &Outgoing| now_ms.saturating_sub(one.since_ms) < GIVE_UP_MS;
        let lost =
            self.outbox.iter().filter(|one| !is_fresh(one)).flat_map(|one| {
                one.to.iter().map(|recipient| (recipient.clone(), one.message.title.clone()))
            });
        let lost = lost.collect();
        self.outbox.retain(is_fresh);
        self.told.retain(|_, told| now_ms.saturating_sub(told.at_ms) < config.repeat.ms);
        while self.told.len() > TOLD {
            let oldest = self.told.iter().min_by_key(|(_, told)| told.at_ms).map(|(key, _)| key.clone());
            oldest.and_then(|key| self.told.remove(&key));
        }
        let (every, more) = (config.digest.every.ms, &self.more);
        self.paces.retain(|recipient, pace| {
            now_ms < pace.next_ms
                || now_ms.saturating_sub(pace.since_ms) < every
                || more.contains_key(recipient)
        });
        while self.paces.len() > PACES {
            self.paces.pop_first();
        }
        lost
    }
}

impl Told {
    fn covers(&self, config: &Config, phase: &str, attempt: u64, now_ms: u64) -> bool {
        self.phase == phase && self.attempt == attempt && now_ms.saturating_sub(self.at_ms) < config.repeat.ms
    }
}

fn is_settled(config: &Config, now_ms: u64, notes: &[(String, Note)]) -> bool {
    let heard = || notes.iter().map(|(_, note)| note.heard_ms);
    let (first, last) = (heard().min().unwrap_or_default(), heard().max().unwrap_or_default());
    now_ms >= last.saturating_add(config.settle.ms).min(first.saturating_add(config.settle.ms * SETTLES))
}

/// The note whose people are told: the object's own last one, or else the last one of its parts that is told alone.
fn lead<'a>(group: &str, notes: &'a [(String, Note)]) -> Option<&'a Note> {
    let told = notes.iter().map(|(_, note)| note).filter(|note| !note.to.is_empty());
    told.max_by_key(|note| (text(&note.facts, "uid") == group, note.seq))
}
