//! The outbox: pending messages with their recipients, and recently sent ones. Pure: the tick passes the
//! time, and reports the result of each sending.

use std::collections::BTreeSet;

use kubewitness_sdk::time::rfc3339;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::compose;
use super::note::{self, NoteCounts, PendingNote};
use super::order::{by_version, in_time, is_settled, leading_note, version};
use super::outbox_limits::channel_of;
use super::parts::MessageParts;
use crate::answer::SendAnswer;
use crate::channels::Message;
use crate::config::Config;
use crate::decide::is_own;
use crate::facts::{Facts, is_set, text};
use crate::mutes::StoredMutes;
use crate::report::{self, Report};

/// How many outcomes are remembered, at about 100 bytes each.
const MOST_SENT: usize = 2000;
/// How many recipients' paces, and counts of messages without room, are remembered: as many as an outbox may
/// name.
const MOST_PACES: usize = 1024;
/// The pause after a recipient's first failure. It doubles with each further one.
const BACKOFF_MS: u64 = 5000;
const BACKOFF_MOST_MS: u64 = 600_000;
/// The longest pause for a program. It gets each message, and states without room for one wait, so it is
/// tried soon after it recovers.
const BACKOFF_OF_PROGRAMS_MS: u64 = 60_000;
/// The longest pause that a recipient's rate limit may cause.
const LONGEST_PAUSE_MS: u64 = 3_600_000;
pub(super) const DELETED: &str = "Deleted";
/// A message that was not accepted for this long is given up.
const GIVE_UP_MS: u64 = 24 * 3_600_000;
/// The most that one pause between ticks adds to the time for which a message failed. A longer pause means
/// that the controller was down or the clock was changed.
const TICKING_MS: u64 = 3_600_000;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OutboxBook {
    /// The reported outcomes of each object, one for each phase, the oldest first.
    told: Vec<SentNote>,
    pub(super) outbox: Vec<OutgoingMessage>,
    paces: Vec<RecipientPace>,
    /// Messages without room, by recipient.
    pub(super) more: Vec<(String, u64)>,
    /// The same, to be reported when quiet hours end.
    pub(super) held: Vec<(String, u64)>,
    /// Parts that wait for their owner.
    pub(super) parts: Vec<MessageParts>,
    /// States that were too old to be reported, since the plugin began.
    pub old: u64,
    /// Digests without any message, since the plugin began. They make the ids of such digests unique.
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) number_digests: u64,
    /// The time of the last tick.
    #[serde(skip_serializing_if = "is_zero")]
    ticked_ms: u64,
    /// Results of messages in this tick.
    #[serde(skip)]
    pub reports: Vec<Report>,
    /// Messages that were dropped in this tick to make room for others, by recipient.
    #[serde(skip)]
    pub crowded: Vec<(String, u64)>,
}

const OF_PARTS: &str = "/parts";

fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct SentNote {
    /// The object's uid; for parts their group with the suffix [`OF_PARTS`].
    key: String,
    phase: String,
    attempt: u64,
    at_ms: u64,
    /// The position of the reported state. The state may come again, for a recipient without room.
    #[serde(default)]
    seq: u64,
    /// The object's version at that state.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    version: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct OutgoingMessage {
    pub message: Message,
    /// The recipients who do not have the message yet.
    pub to: BTreeSet<String>,
    pub since_ms: u64,
    /// How long its channel has accepted nothing, since the first try.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failing_ms: Option<u64>,
}

/// How many messages one recipient got within a window, and the time of the next try.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct RecipientPace {
    recipient: String,
    since_ms: u64,
    sent: u32,
    next_ms: u64,
    tries: u32,
}

/// One request to make.
#[derive(Clone, Debug, PartialEq)]
pub struct MessageSending {
    pub recipient: String,
    pub message: Message,
    /// The ids of the messages that it contains.
    pub tells: Vec<String>,
    pub is_digest: bool,
}

impl OutboxBook {
    pub fn count(&mut self, counts: NoteCounts) {
        self.old += counts.old;
        for (all, more) in [(&mut self.more, counts.more), (&mut self.held, counts.held)] {
            more.into_iter().for_each(|(recipient, count)| note::add(all, recipient, count));
        }
    }

    /// Removes recipients who have muted a message since it was noted.
    pub fn remove_muted(
        &mut self,
        config: &Config,
        mutes: &StoredMutes,
        notes: &mut [(String, PendingNote)],
        now_ms: u64,
    ) {
        let mut reports = std::mem::take(&mut self.reports);
        let mut keep = |facts: &Facts, group: &str, to: &mut BTreeSet<String>| {
            to.retain(|to| {
                let Some(why) = mutes.muted_by(facts, group, to) else { return true };
                let title = report::title(facts);
                reports.push(Report::of(config, facts, to, ("muted", &why), title, now_ms));
                false
            });
        };
        notes.iter_mut().for_each(|(_, note)| keep(&note.facts, &note.group, &mut note.to));
        self.outbox.iter_mut().for_each(|outgoing| keep(&outgoing.message.facts, "", &mut outgoing.to));
        self.outbox.retain(|outgoing| !outgoing.to.is_empty());
        self.reports = reports;
    }

    /// Makes messages of the notes that have settled. Returns the keys of notes that are finished.
    pub fn take_in(
        &mut self,
        config: &Config,
        now_ms: u64,
        mut notes: Vec<(String, PendingNote)>,
    ) -> Vec<String> {
        notes.sort_unstable_by(|(_, one), (_, other)| (&one.group, one.seq).cmp(&(&other.group, other.seq)));
        let mut done = Vec::new();
        for group in notes.chunk_by(|(_, one), (_, other)| one.group == other.group) {
            if is_settled(config, now_ms, group) {
                self.add_group(config, now_ms, &group[0].1.group, group);
                done.extend(group.iter().map(|(key, _)| key.clone()));
            }
        }
        done
    }

    fn add_group(&mut self, config: &Config, now_ms: u64, group: &str, notes: &[(String, PendingNote)]) {
        let mut notes: Vec<&PendingNote> = notes.iter().map(|(_, note)| note).collect();
        self.drop_withdrawn(config, now_ms, group, &mut notes);
        // All may be muted or suppressed. Recipients of parts alone have not got a message about the object
        // itself.
        while let Some(lead) = leading_note(group, &notes) {
            let own = is_own(&lead.facts, group);
            let key = if own { text(&lead.facts, "uid").to_string() } else { format!("{group}{OF_PARTS}") };
            let is_late = own && is_set(&lead.facts, "late");
            let Some(why) = self.why_suppressed(config, (&key, lead), is_late, now_ms) else {
                return self.add_led_message(config, now_ms, (group, key), lead, &notes);
            };
            let covered = notes.extract_if(.., |note| is_own(&note.facts, group) == own);
            self.report_notes(config, covered, ("suppressed", &why), now_ms);
        }
    }

    /// The reason why a state is not reported: the same was reported recently, or the object is past it.
    fn why_suppressed(
        &self,
        config: &Config,
        (key, lead): (&str, &PendingNote),
        is_late: bool,
        now_ms: u64,
    ) -> Option<String> {
        let of_object = || self.told.iter().filter(|note| note.key == key);
        // With `eachAttempt`, another outcome in between makes a repeated one count again.
        let last_seq = of_object().map(|note| note.seq).max();
        let counts = |note: &&SentNote| !config.each_attempt || Some(note.seq) == last_seq;
        let is_same = |note: &&SentNote| note.seq == lead.seq || note.covers(config, &lead.facts, now_ms);
        if let Some(same) = of_object().filter(counts).find(is_same) {
            return Some(format!("the same was told at {}", rfc3339(same.at_ms)));
        }
        if let Some(last) = of_object().max_by_key(|note| note.seq)
            && is_late
            && last.phase != DELETED
            && !last.is_older(lead)
        {
            return Some(format!("`{}` came later, and was told at {}", last.phase, rfc3339(last.at_ms)));
        }
        let is_past = is_late && !is_set(&lead.facts, "terminal");
        is_past.then(|| "the object has gone on since".to_string())
    }

    /// Removes the earlier outcomes of an object that continues.
    fn drop_withdrawn(&mut self, config: &Config, now_ms: u64, group: &str, notes: &mut Vec<&PendingNote>) {
        let own = notes.iter().copied().filter(|note| is_own(&note.facts, group));
        if let Some(newest) = own.max_by(|one, other| in_time(one, other)).filter(|newest| newest.withdraws) {
            let why = format!("it is {} since", text(&newest.facts, "phase"));
            let past = notes.extract_if(.., |note| is_own(&note.facts, group));
            self.report_notes(config, past, ("suppressed", &why), now_ms);
        }
        notes.retain(|note| !note.withdraws);
    }

    /// Makes one message of the notes of a group, which `lead` leads.
    fn add_led_message(
        &mut self,
        config: &Config,
        now_ms: u64,
        (group, key): (&str, String),
        lead: &PendingNote,
        notes: &[&PendingNote],
    ) {
        self.make_room(config, now_ms);
        let merged = format!("the message on `{}` tells it", report::title(&lead.facts));
        let rest = notes.iter().copied().filter(|note| note.seq != lead.seq);
        self.report_notes(config, rest, ("merged", &merged), now_ms);
        // The object's own earlier states are not part of the message.
        let is_other = |note: &&&PendingNote| note.seq != lead.seq && !is_own(&note.facts, group);
        let others: Vec<PendingNote> = notes.iter().filter(is_other).map(|note| (*note).clone()).collect();
        let message = compose::compose_one(config, lead, &others, self.take_parts(group));
        // Recipients of other states of the group get this message, and no other.
        let mut to = lead.to.clone();
        to.extend(notes.iter().flat_map(|note| note.to.iter().cloned()));
        self.replace_held(config, &message, &to, now_ms);
        self.outbox.push(OutgoingMessage { message, to, since_ms: now_ms, failing_ms: None });
        let (phase, attempt) = (text(&lead.facts, "phase").to_string(), attempt_of(&lead.facts));
        match self.told.iter().position(|note| note.key == key && note.phase == phase) {
            Some(place) if self.told[place].seq >= lead.seq => return,
            Some(place) => drop(self.told.remove(place)),
            None => {}
        }
        let version = version(lead).to_string();
        self.told.push(SentNote { key, phase, attempt, at_ms: now_ms, seq: lead.seq, version });
    }

    /// Keeps only the last outcome of an object among those that wait for the end of quiet hours.
    fn replace_held(&mut self, config: &Config, newer: &Message, to: &BTreeSet<String>, now_ms: u64) {
        let uid = text(&newer.facts, "uid");
        let why = format!("the message on `{}` tells it", newer.title);
        for outgoing in self.outbox.iter_mut().filter(|outgoing| text(&outgoing.message.facts, "uid") == uid)
        {
            let (message, phase) = (&outgoing.message, text(&outgoing.message.facts, "phase"));
            for to in
                outgoing.to.extract_if(.., |name| to.contains(name) && config.is_held(name, phase, now_ms))
            {
                let title = message.title.clone();
                self.reports.push(Report::of(config, &message.facts, &to, ("merged", &why), title, now_ms));
            }
        }
        self.outbox.retain(|outgoing| !outgoing.to.is_empty());
    }

    /// Adds the time since the last tick to each message that its channel does not accept.
    pub fn begin_tick(&mut self, now_ms: u64) {
        self.pull_back_future_times(now_ms);
        let pause_ms = now_ms.saturating_sub(self.ticked_ms).min(TICKING_MS);
        for failing_ms in self.outbox.iter_mut().filter_map(|outgoing| outgoing.failing_ms.as_mut()) {
            *failing_ms += pause_ms;
        }
        let is_failing = self.outbox.iter().any(|outgoing| outgoing.failing_ms.is_some());
        self.ticked_ms = if is_failing { now_ms } else { 0 };
    }

    /// After a wrong clock was set back, times in the future become the present, so that they delay nothing.
    fn pull_back_future_times(&mut self, now_ms: u64) {
        let ahead = |at_ms: &mut u64| *at_ms = (*at_ms).min(now_ms);
        self.told.iter_mut().for_each(|note| ahead(&mut note.at_ms));
        self.outbox.iter_mut().for_each(|outgoing| ahead(&mut outgoing.since_ms));
        for pace in &mut self.paces {
            ahead(&mut pace.since_ms);
            pace.next_ms = pace.next_ms.min(now_ms.saturating_add(LONGEST_PAUSE_MS));
        }
    }

    fn pace_of(&mut self, recipient: &str) -> &mut RecipientPace {
        let place = self.paces.iter().position(|pace| pace.recipient == recipient).unwrap_or_else(|| {
            self.paces.push(RecipientPace { recipient: recipient.to_string(), ..RecipientPace::default() });
            self.paces.len() - 1
        });
        &mut self.paces[place]
    }

    /// The messages to be sent now. A person with too many of them gets one about all. Recipients take turns.
    /// Those of a channel that has failed come last, because waiting for its answer delays the others.
    pub fn due_sendings(&mut self, config: &Config, now_ms: u64) -> Vec<MessageSending> {
        self.release_held(config, now_ms);
        if !config.is_quiet("", now_ms) {
            self.held.drain(..).for_each(|(recipient, count)| note::add(&mut self.more, recipient, count));
        }
        let mut waiting = BTreeSet::new();
        waiting.extend(self.outbox.iter().flat_map(|outgoing| outgoing.to.iter().cloned()));
        waiting.extend(self.more.iter().map(|(name, _)| name.clone()));
        let has_failed = |book: &Self, channel: &str| {
            let is_it = |pace: &RecipientPace| pace.tries > 0 && channel_of(&pace.recipient) == channel;
            book.paces.iter().any(is_it)
        };
        let (mut first, mut last) = (Vec::new(), Vec::new());
        for recipient in waiting {
            let failed = has_failed(self, channel_of(&recipient));
            let pace = self.pace_of(&recipient);
            if now_ms < pace.next_ms {
                continue;
            }
            if now_ms.saturating_sub(pace.since_ms) >= config.digest.every.ms {
                (pace.since_ms, pace.sent) = (now_ms, 0);
            }
            let left = config.digest.above.saturating_sub(pace.sent) as usize;
            let window_ms = pace.since_ms.saturating_add(config.digest.every.ms);
            let queues = if failed { &mut last } else { &mut first };
            let due = self.due_to(config, &recipient, left, now_ms);
            if due.is_empty() && left == 0 {
                self.report_pause(config, &recipient, window_ms, now_ms);
            }
            queues.push(due.into_iter());
        }
        first.append(&mut last);
        in_turn(first)
    }

    /// The age of messages held by quiet hours begins when those end.
    fn release_held(&mut self, config: &Config, now_ms: u64) {
        for outgoing in &mut self.outbox {
            let (phase, times) = (text(&outgoing.message.facts, "phase"), [outgoing.since_ms, now_ms]);
            if outgoing.to.iter().any(|to| times.iter().any(|at_ms| config.is_held(to, phase, *at_ms))) {
                (outgoing.since_ms, outgoing.failing_ms) = (now_ms, None);
            }
        }
    }

    fn due_to(&self, config: &Config, recipient: &str, left: usize, now_ms: u64) -> Vec<MessageSending> {
        let is_due = |outgoing: &&OutgoingMessage| {
            outgoing.to.contains(recipient)
                && !config.is_held(recipient, text(&outgoing.message.facts, "phase"), now_ms)
        };
        let messages: Vec<&Message> =
            self.outbox.iter().filter(is_due).map(|outgoing| &outgoing.message).collect();
        let more = self.more.iter().find(|(name, _)| name == recipient).map_or(0, |(_, more)| *more);
        let is_for_people = config.is_for_people(recipient);
        if !is_for_people || (more == 0 && messages.len() <= left) {
            let each = |message: &&Message| MessageSending {
                recipient: recipient.to_string(),
                message: (*message).clone(),
                tells: vec![message.id.clone()],
                is_digest: false,
            };
            return messages.iter().map(each).collect();
        }
        if left == 0 {
            return Vec::new();
        }
        vec![MessageSending {
            recipient: recipient.to_string(),
            message: compose::compose_digest(
                config,
                recipient,
                &messages,
                (more, self.number_digests),
                now_ms,
            ),
            tells: messages.iter().map(|message| message.id.clone()).collect(),
            is_digest: true,
        }]
    }

    /// Marks the messages that wait for the failed channel, or for the failed address.
    fn note_failing(&mut self, sending: &MessageSending, answer: &SendAnswer, now_ms: u64) {
        let is_channel = matches!(answer, SendAnswer::Later { .. });
        let channel = channel_of(&sending.recipient);
        let waits =
            |to: &String| if is_channel { channel_of(to) == channel } else { *to == sending.recipient };
        for outgoing in self.outbox.iter_mut().filter(|outgoing| outgoing.to.iter().any(waits)) {
            outgoing.failing_ms.get_or_insert(0);
        }
        self.ticked_ms = now_ms;
    }

    /// Applies the answer to a sending.
    pub fn note_answer(
        &mut self,
        config: &Config,
        sending: &MessageSending,
        answer: &SendAnswer,
        now_ms: u64,
    ) {
        if !matches!(answer, SendAnswer::Taken | SendAnswer::Refused(_)) {
            self.note_failing(sending, answer, now_ms);
        }
        let pace = self.pace_of(&sending.recipient);
        match answer {
            SendAnswer::Later { after_ms: Some(after_ms), .. } => {
                pace.next_ms = now_ms.saturating_add((*after_ms).min(LONGEST_PAUSE_MS));
                let next_ms = pace.next_ms;
                return self.report_answer(config, sending, answer, next_ms, now_ms);
            }
            SendAnswer::Later { after_ms: None, .. } | SendAnswer::AddressLater(_) => {
                let is_for_people = config.is_for_people(&sending.recipient);
                let most = if is_for_people { BACKOFF_MOST_MS } else { BACKOFF_OF_PROGRAMS_MS };
                let pause = BACKOFF_MS.saturating_mul(1 << pace.tries.min(16)).min(most);
                (pace.next_ms, pace.tries) = (now_ms + pause, pace.tries.saturating_add(1));
                return self.report_answer(config, sending, answer, now_ms + pause, now_ms);
            }
            SendAnswer::Taken | SendAnswer::Refused(_) => (pace.next_ms, pace.tries) = (0, 0),
        }
        // After a digest, the recipient gets nothing until the window ends.
        pace.sent = if sending.is_digest { config.digest.above } else { pace.sent.saturating_add(1) };
        self.report_answer(config, sending, answer, 0, now_ms);
        if sending.is_digest {
            self.more.retain(|(recipient, _)| *recipient != sending.recipient);
            self.number_digests += u64::from(sending.tells.is_empty());
        }
        for outgoing in self.outbox.iter_mut().filter(|outgoing| sending.tells.contains(&outgoing.message.id))
        {
            outgoing.to.remove(&sending.recipient);
        }
        self.outbox.retain(|outgoing| !outgoing.to.is_empty());
    }

    /// Removes messages that are sent or too old. Returns the recipients that never got one, with its title.
    pub fn forget_old(&mut self, config: &Config, now_ms: u64) -> Vec<(String, String)> {
        self.forget_parts(config, now_ms);
        self.more.retain(|(recipient, _)| config.is_for_people(recipient));
        let is_fresh =
            |outgoing: &OutgoingMessage| outgoing.failing_ms.is_none_or(|failing_ms| failing_ms < GIVE_UP_MS);
        let mut lost = Vec::new();
        for outgoing in self.outbox.iter().filter(|outgoing| !is_fresh(outgoing)) {
            for to in &outgoing.to {
                let (facts, title) = (&outgoing.message.facts, outgoing.message.title.clone());
                let what = ("given up", "nobody took it for a day");
                self.reports.push(Report::of(config, facts, to, what, title.clone(), now_ms));
                lost.push((to.clone(), title));
            }
        }
        self.outbox.retain(is_fresh);
        self.told.retain(|note| now_ms.saturating_sub(note.at_ms) < config.repeat.ms);
        self.told.drain(..self.told.len().saturating_sub(MOST_SENT));
        let (every, more) = (config.digest.every.ms, &self.more);
        self.paces.retain(|pace| {
            let has_more = more.iter().any(|(recipient, _)| *recipient == pace.recipient);
            now_ms < pace.next_ms || now_ms.saturating_sub(pace.since_ms) < every || has_more
        });
        self.paces.drain(..self.paces.len().saturating_sub(MOST_PACES));
        let many = self.more.drain(self.more.len().min(MOST_PACES)..);
        let many = many.chain(self.held.drain(self.held.len().min(MOST_PACES)..));
        lost.extend(many.map(|(recipient, count)| (recipient, format!("{count} outcomes"))));
        lost
    }
}

impl SentNote {
    fn covers(&self, config: &Config, facts: &Facts, now_ms: u64) -> bool {
        self.phase == text(facts, "phase")
            && (!config.each_attempt || self.attempt == attempt_of(facts))
            && now_ms.saturating_sub(self.at_ms) < config.repeat.ms
    }

    fn is_older(&self, note: &PendingNote) -> bool {
        by_version(&self.version, version(note)).is_lt()
    }
}

fn in_turn(mut queues: Vec<std::vec::IntoIter<MessageSending>>) -> Vec<MessageSending> {
    let mut due = Vec::new();
    while !queues.is_empty() {
        queues.retain_mut(|queue| queue.next().map(|sending| due.push(sending)).is_some());
    }
    due
}

fn attempt_of(facts: &Facts) -> u64 {
    facts.get("attempt").and_then(Value::as_u64).unwrap_or_default()
}
