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

/// Outcomes that are remembered, at about 100 bytes.
const TOLD: usize = 2000;
/// Recipients whose pace, or whose count of messages without room, is remembered: as many as an outbox may name.
const PACES: usize = 1024;
/// A recipient that does not take a message is asked again after this, then after twice the pause, and so on.
const BACKOFF_MS: u64 = 5000;
const BACKOFF_MOST_MS: u64 = 600_000;
/// A program gets each message, and states that have no room for it wait: it is asked soon after it is back.
const BACKOFF_OF_PROGRAMS_MS: u64 = 60_000;
/// No rate makes a recipient wait longer.
const LONGEST_PAUSE_MS: u64 = 3_600_000;
pub(super) const DELETED: &str = "Deleted";
/// A message that nobody took for so long is given up.
const GIVE_UP_MS: u64 = 24 * 3_600_000;
/// The most that the pause between two ticks counts for a message that nobody takes. Beyond it the controller
/// was down, or the clock was set.
const TICKING_MS: u64 = 3_600_000;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OutboxBook {
    /// The outcomes of each object that were told, one of each phase, the oldest first.
    told: Vec<SentNote>,
    pub(super) outbox: Vec<OutgoingMessage>,
    paces: Vec<RecipientPace>,
    /// Messages that had no room, by recipient.
    pub(super) more: Vec<(String, u64)>,
    /// The same, for when quiet hours end.
    pub(super) held: Vec<(String, u64)>,
    /// Parts that wait for their owner.
    pub(super) parts: Vec<MessageParts>,
    /// States that happened long ago, since the plugin began.
    pub old: u64,
    /// Digests that told numbers alone, since the plugin began: no two of them have one id.
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) number_digests: u64,
    /// The time of the last tick.
    #[serde(skip_serializing_if = "is_zero")]
    ticked_ms: u64,
    /// Results of messages in this tick.
    #[serde(skip)]
    pub reports: Vec<Report>,
    /// Messages that had to give up their place in this tick, by recipient.
    #[serde(skip)]
    pub crowded: Vec<(String, u64)>,
}

const OF_PARTS: &str = "/parts";

fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct SentNote {
    /// The object's uid; for parts their group with [`OF_PARTS`].
    key: String,
    phase: String,
    attempt: u64,
    at_ms: u64,
    /// The state that told it. It may come again, for a recipient that had no room.
    #[serde(default)]
    seq: u64,
    /// The object's version then.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    version: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct OutgoingMessage {
    pub message: Message,
    /// Who is still to be told.
    pub to: BTreeSet<String>,
    pub since_ms: u64,
    /// How long its channel has taken nothing, since it was first tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failing_ms: Option<u64>,
}

/// How often one recipient was told within a window, and when it may be asked again.
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
    /// The ids of the messages that it tells.
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

    /// Takes out the recipients for whom somebody has muted it since.
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
        self.outbox.iter_mut().for_each(|one| keep(&one.message.facts, "", &mut one.to));
        self.outbox.retain(|one| !one.to.is_empty());
        self.reports = reports;
    }

    /// Makes messages of the notes that have settled. Returns the keys of those that are done with.
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
                self.take_group(config, now_ms, &group[0].1.group, group);
                done.extend(group.iter().map(|(key, _)| key.clone()));
            }
        }
        done
    }

    fn take_group(&mut self, config: &Config, now_ms: u64, group: &str, notes: &[(String, PendingNote)]) {
        let mut notes: Vec<&PendingNote> = notes.iter().map(|(_, note)| note).collect();
        self.leave_out_withdrawn(config, now_ms, group, &mut notes);
        // All can be muted since. What was told of the object itself was not told to those who asked for its parts.
        while let Some(lead) = leading_note(group, &notes) {
            let own = is_own(&lead.facts, group);
            let key = if own { text(&lead.facts, "uid").to_string() } else { format!("{group}{OF_PARTS}") };
            let is_late = own && is_set(&lead.facts, "late");
            let Some(why) = self.why_suppressed(config, (&key, lead), is_late, now_ms) else {
                return self.take_led(config, now_ms, (group, key), lead, &notes);
            };
            let covered = notes.extract_if(.., |note| is_own(&note.facts, group) == own);
            self.report_notes(config, covered, ("suppressed", &why), now_ms);
        }
    }

    /// Why a state is told to nobody: the same was told lately, or the object is past it.
    fn why_suppressed(
        &self,
        config: &Config,
        (key, lead): (&str, &PendingNote),
        is_late: bool,
        now_ms: u64,
    ) -> Option<String> {
        let told = || self.told.iter().filter(|told| told.key == key);
        // With `eachAttempt`, an outcome between the two makes another one of the second.
        let last_seq = told().map(|told| told.seq).max();
        let counts = |told: &&SentNote| !config.each_attempt || Some(told.seq) == last_seq;
        let is_same = |told: &&SentNote| told.seq == lead.seq || told.covers(config, &lead.facts, now_ms);
        if let Some(same) = told().filter(counts).find(is_same) {
            return Some(format!("the same was told at {}", rfc3339(same.at_ms)));
        }
        if let Some(last) = told().max_by_key(|told| told.seq)
            && is_late
            && last.phase != DELETED
            && !last.is_older(lead)
        {
            return Some(format!("`{}` came later, and was told at {}", last.phase, rfc3339(last.at_ms)));
        }
        let is_past = is_late && !is_set(&lead.facts, "terminal");
        is_past.then(|| "the object has gone on since".to_string())
    }

    /// Leaves out the earlier outcomes of an object that goes on: they are none.
    fn leave_out_withdrawn(
        &mut self,
        config: &Config,
        now_ms: u64,
        group: &str,
        notes: &mut Vec<&PendingNote>,
    ) {
        let own = notes.iter().copied().filter(|note| is_own(&note.facts, group));
        if let Some(newest) = own.max_by(|one, other| in_time(one, other)).filter(|newest| newest.withdraws) {
            let why = format!("it is {} since", text(&newest.facts, "phase"));
            let past = notes.extract_if(.., |note| is_own(&note.facts, group));
            self.report_notes(config, past, ("suppressed", &why), now_ms);
        }
        notes.retain(|note| !note.withdraws);
    }

    /// Makes one message of the notes of a group.
    fn take_led(
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
        // Of the object's own earlier states only the last one counts.
        let is_other = |note: &&&PendingNote| note.seq != lead.seq && !is_own(&note.facts, group);
        let others: Vec<PendingNote> = notes.iter().filter(is_other).map(|note| (*note).clone()).collect();
        let message = compose::compose_one(config, lead, &others, self.take_parts(group));
        // Who asked for another state of the group hears of it by this message, and by no other.
        let mut to = lead.to.clone();
        to.extend(notes.iter().flat_map(|note| note.to.iter().cloned()));
        self.replace_held(config, &message, &to, now_ms);
        self.outbox.push(OutgoingMessage { message, to, since_ms: now_ms, failing_ms: None });
        let (phase, attempt) = (text(&lead.facts, "phase").to_string(), attempt_of(&lead.facts));
        match self.told.iter().position(|told| told.key == key && told.phase == phase) {
            Some(place) if self.told[place].seq >= lead.seq => return,
            Some(place) => drop(self.told.remove(place)),
            None => {}
        }
        let version = version(lead).to_string();
        self.told.push(SentNote { key, phase, attempt, at_ms: now_ms, seq: lead.seq, version });
    }

    /// Keeps only the last of an object's outcomes that wait for the end of quiet hours.
    fn replace_held(&mut self, config: &Config, newer: &Message, to: &BTreeSet<String>, now_ms: u64) {
        let uid = text(&newer.facts, "uid");
        let why = format!("the message on `{}` tells it", newer.title);
        for one in self.outbox.iter_mut().filter(|one| text(&one.message.facts, "uid") == uid) {
            let (message, phase) = (&one.message, text(&one.message.facts, "phase"));
            for to in one.to.extract_if(.., |one| to.contains(one) && config.is_held(one, phase, now_ms)) {
                let title = message.title.clone();
                self.reports.push(Report::of(config, &message.facts, &to, ("merged", &why), title, now_ms));
            }
        }
        self.outbox.retain(|one| !one.to.is_empty());
    }

    /// Counts the time since the last tick for what nobody takes.
    pub fn begin_tick(&mut self, now_ms: u64) {
        self.pull_back_future_times(now_ms);
        let pause_ms = now_ms.saturating_sub(self.ticked_ms).min(TICKING_MS);
        for failing_ms in self.outbox.iter_mut().filter_map(|one| one.failing_ms.as_mut()) {
            *failing_ms += pause_ms;
        }
        let is_failing = self.outbox.iter().any(|one| one.failing_ms.is_some());
        self.ticked_ms = if is_failing { now_ms } else { 0 };
    }

    /// A clock that was wrong and is set back holds nothing up: what lies ahead happened now.
    fn pull_back_future_times(&mut self, now_ms: u64) {
        let ahead = |at_ms: &mut u64| *at_ms = (*at_ms).min(now_ms);
        self.told.iter_mut().for_each(|told| ahead(&mut told.at_ms));
        self.outbox.iter_mut().for_each(|one| ahead(&mut one.since_ms));
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

    /// Takes the messages that are to be sent now: each one, or one about all where there are too many for a
    /// person. Recipients take turns. Those of a channel that has failed come last, because waiting for its
    /// answer takes the time of the others.
    pub fn due_sendings(&mut self, config: &Config, now_ms: u64) -> Vec<MessageSending> {
        self.release_held(config, now_ms);
        if !config.is_quiet("", now_ms) {
            self.held.drain(..).for_each(|(recipient, count)| note::add(&mut self.more, recipient, count));
        }
        let mut waiting = BTreeSet::new();
        waiting.extend(self.outbox.iter().flat_map(|one| one.to.iter().cloned()));
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

    /// For what quiet hours have held, the day begins when they end.
    fn release_held(&mut self, config: &Config, now_ms: u64) {
        for one in &mut self.outbox {
            let (phase, times) = (text(&one.message.facts, "phase"), [one.since_ms, now_ms]);
            if one.to.iter().any(|to| times.iter().any(|at_ms| config.is_held(to, phase, *at_ms))) {
                (one.since_ms, one.failing_ms) = (now_ms, None);
            }
        }
    }

    fn due_to(&self, config: &Config, recipient: &str, left: usize, now_ms: u64) -> Vec<MessageSending> {
        let is_due = |one: &&OutgoingMessage| {
            one.to.contains(recipient)
                && !config.is_held(recipient, text(&one.message.facts, "phase"), now_ms)
        };
        let messages: Vec<&Message> = self.outbox.iter().filter(is_due).map(|one| &one.message).collect();
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

    /// Whatever waits for the channel, or for the address alone, was not taken.
    fn note_failing(&mut self, sending: &MessageSending, answer: &SendAnswer, now_ms: u64) {
        let is_channel = matches!(answer, SendAnswer::Later { .. });
        let channel = channel_of(&sending.recipient);
        let waits =
            |to: &String| if is_channel { channel_of(to) == channel } else { *to == sending.recipient };
        for one in self.outbox.iter_mut().filter(|one| one.to.iter().any(waits)) {
            one.failing_ms.get_or_insert(0);
        }
        self.ticked_ms = now_ms;
    }

    /// Notes what a sending came to.
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
        // After a digest the recipient hears nothing until the window ends.
        pace.sent = if sending.is_digest { config.digest.above } else { pace.sent.saturating_add(1) };
        self.report_answer(config, sending, answer, 0, now_ms);
        if sending.is_digest {
            self.more.retain(|(recipient, _)| *recipient != sending.recipient);
            self.number_digests += u64::from(sending.tells.is_empty());
        }
        for one in self.outbox.iter_mut().filter(|one| sending.tells.contains(&one.message.id)) {
            one.to.remove(&sending.recipient);
        }
        self.outbox.retain(|one| !one.to.is_empty());
    }

    /// Lets go of what is told or too old. Returns the recipients that were never told, with the titles.
    pub fn forget_old(&mut self, config: &Config, now_ms: u64) -> Vec<(String, String)> {
        self.forget_parts(config, now_ms);
        self.more.retain(|(recipient, _)| config.is_for_people(recipient));
        let is_fresh =
            |one: &OutgoingMessage| one.failing_ms.is_none_or(|failing_ms| failing_ms < GIVE_UP_MS);
        let mut lost = Vec::new();
        for one in self.outbox.iter().filter(|one| !is_fresh(one)) {
            for to in &one.to {
                let (facts, title) = (&one.message.facts, one.message.title.clone());
                let what = ("given up", "nobody took it for a day");
                self.reports.push(Report::of(config, facts, to, what, title.clone(), now_ms));
                lost.push((to.clone(), title));
            }
        }
        self.outbox.retain(is_fresh);
        self.told.retain(|told| now_ms.saturating_sub(told.at_ms) < config.repeat.ms);
        self.told.drain(..self.told.len().saturating_sub(TOLD));
        let (every, more) = (config.digest.every.ms, &self.more);
        self.paces.retain(|pace| {
            let has_more = more.iter().any(|(recipient, _)| *recipient == pace.recipient);
            now_ms < pace.next_ms || now_ms.saturating_sub(pace.since_ms) < every || has_more
        });
        self.paces.drain(..self.paces.len().saturating_sub(PACES));
        let many = self.more.drain(self.more.len().min(PACES)..);
        let many = many.chain(self.held.drain(self.held.len().min(PACES)..));
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
