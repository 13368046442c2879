//! Notes the news for a tick. A note contains everything that the tick needs, because a tick has no document.

use std::collections::{BTreeMap, BTreeSet};

use kubewitness_sdk::time::rfc3339;
use kubewitness_sdk::{Error, State, Verdict, clock, documents, kv, log};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::outbox_limits;
use super::parts::{self, MessageParts};
use crate::config::Config;
use crate::decide::{self, DecidedNews, SeenState, is_own};
use crate::facts::outcomes::{self, CauseState};
use crate::facts::{self, Facts};
use crate::mutes::StoredMutes;
use crate::report::{self, Report, is_full};

/// The prefix of notes' keys; the position of the state follows.
pub const NOTES: &str = "note/";
/// The prefix of counts' keys.
pub const COUNTS: &str = "count/";
/// The most notes that wait for a tick. Each has up to 3 KiB of the 1 MiB of `kv`. Further ones are only
/// counted.
pub const MOST_NOTES: u32 = 128;

/// How long a tick asks for causes. The next tick asks for the others.
const ASKING_MS: u64 = 2_000;

/// A state to be reported.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PendingNote {
    pub seq: u64,
    /// The group of the state: see [`decide::message_group`].
    pub group: String,
    pub to: BTreeSet<String>,
    pub heard_ms: u64,
    pub facts: Facts,
    /// See [`decide::stands_in`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stands_in: bool,
    /// The object continues: its outcomes before this state are not reported. See
    /// [`decide::withdraws_outcome`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub withdraws: bool,
}

/// Counts of the news of a call that are not reported one by one.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NoteCounts {
    /// Too old to be reported.
    pub old: u64,
    /// Without room for a note, by recipient.
    pub more: Vec<(String, u64)>,
    /// The same, to be reported when quiet hours end.
    #[serde(default)]
    pub held: Vec<(String, u64)>,
}

/// Everything that one call has collected beside its notes.
struct CallNotes<'a> {
    config: &'a Config,
    pointers: BTreeSet<String>,
    counts: NoteCounts,
    parts: Vec<MessageParts>,
    reports: Vec<Report>,
    /// The first object with a recipient that can't be notified, the reason, and the number of such
    /// recipients. Each line of the log is a call to the host.
    refused: Option<(String, String, u64)>,
    /// Read when first needed.
    mutes: Option<StoredMutes>,
    /// The programs whose messages have no more room. Read when first needed.
    full: Option<Vec<String>>,
}

pub fn handle(config: &Config, states: &[State]) -> Vec<Verdict> {
    let pointers = config.pointers();
    let (parts, reports) = (Vec::new(), Vec::new());
    let mut call = CallNotes {
        config,
        pointers,
        counts: NoteCounts::default(),
        parts,
        reports,
        refused: None,
        mutes: None,
        full: None,
    };
    let verdict = |state| match call.note_state(state) {
        Ok(()) => Verdict::Done,
        Err(verdict) => verdict,
    };
    let mut verdicts: Vec<_> = states.iter().map(verdict).collect();
    // The key is the position of a state that does not come again, so that no other call writes the same key.
    // Only such states are counted.
    let first = states.iter().zip(&verdicts).find(|(_, verdict)| **verdict == Verdict::Done);
    let first = first.map(|(state, _)| state.seq).unwrap_or_default();
    let kept = count(first, &call.counts).and_then(|()| parts::keep(&call.parts, first));
    if let Err(error) = kept {
        // Without the count, the further messages would be lost.
        verdicts.fill_with(|| Verdict::retry(error.text()));
    } else if let Err(error) = report::keep_reports(&call.reports) {
        log::warn(report::UNLISTED, &[("why", &error.text())]);
    }
    if let Some((object, why, count)) = &call.refused {
        let fields = [("object", object.as_str()), ("why", why), ("recipients", &count.to_string())];
        log::warn("annotations name recipients that can't be told", &fields);
    }
    verdicts
}

impl CallNotes<'_> {
    fn note_state(&mut self, state: &State) -> Result<(), Verdict> {
        let config = self.config;
        if !decide::may_be_news(config, state) {
            return if decide::withdraws_outcome(config, state) {
                self.note_withdrawal(state)
            } else {
                Ok(())
            };
        }
        let now_ms = clock::now_ms();
        let seen = read_seen_state(state)?;
        for (name, why) in decide::refused_recipients(config, &seen) {
            let first = || (format!("{}/{}", state.object.namespace, state.object.name), why.clone(), 0);
            self.refused.get_or_insert_with(first).2 += 1;
            self.note_report(&facts::plain_facts(state), [name], ("refused", &why), now_ms);
        }
        let to = match decide::decide_news(config, &seen, now_ms) {
            DecidedNews::Nothing => return Ok(()),
            DecidedNews::Old => {
                self.counts.old += 1;
                return Ok(());
            }
            DecidedNews::Muted(to, by) => {
                self.note_report(&facts::plain_facts(state), to, ("muted", by), now_ms);
                return Ok(());
            }
            DecidedNews::Part => {
                parts::count(
                    &mut self.parts,
                    &decide::message_group(&seen),
                    &facts::plain_facts(state),
                    now_ms,
                );
                return Ok(());
            }
            DecidedNews::News(to) => to,
        };
        let facts = facts::bound_facts(facts::facts_of(state, &self.pointers)?);
        let group = decide::message_group(&seen);
        let to = self.unmuted_recipients(&facts, &group, to, now_ms)?;
        if let Some(program) = self.program_without_room(&to)? {
            return Err(Verdict::retry_after(
                outbox_limits::WAIT_MS,
                format!("as many messages as there is room for wait for `{program}`"),
            ));
        }
        let note = PendingNote {
            seq: state.seq,
            group,
            to: to.clone(),
            heard_ms: now_ms,
            facts: facts.clone(),
            stands_in: decide::stands_in(&seen),
            withdraws: false,
        };
        if !to.is_empty() && self.keep_note(note)? {
            let (held, sendable): (Vec<_>, Vec<_>) =
                to.into_iter().partition(|to| config.is_held(to, facts::phase(state), now_ms));
            let quiet = config.quiet.as_ref().map_or(now_ms, |quiet| quiet.hours.end_ms(now_ms));
            let quiet = format!("until quiet hours end, at {}", rfc3339(quiet));
            self.note_report(&facts, held, ("waiting", &quiet), now_ms);
            let settled = rfc3339(now_ms.saturating_add(config.settle.ms));
            let settled =
                format!("until it has settled, at {settled} or later, and its recipient's turn has come");
            self.note_report(&facts, sendable, ("waiting", &settled), now_ms);
        }
        Ok(())
    }

    /// Notes that the object continues. Without room for this note, its outcome is reported.
    fn note_withdrawal(&self, state: &State) -> Result<(), Verdict> {
        let seen = read_seen_state(state)?;
        let note = PendingNote {
            seq: state.seq,
            group: decide::message_group(&seen),
            to: BTreeSet::new(),
            heard_ms: clock::now_ms(),
            facts: facts::plain_facts(state),
            stands_in: decide::stands_in(&seen),
            withdraws: true,
        };
        self.store_note(&note)?;
        Ok(())
    }

    /// A program whose messages have no more room. A program gets every message, so the state is retried.
    /// Nobody is notified before that, because the host rolls back the writes of a call whose states come
    /// again.
    fn program_without_room<'t>(&mut self, to: &'t BTreeSet<String>) -> Result<Option<&'t String>, Error> {
        if to.iter().all(|to| self.config.is_for_people(to)) {
            return Ok(None);
        }
        let full = match self.full.take() {
            Some(full) => full,
            None => outbox_limits::full_channels()?,
        };
        let without = to.iter().find(|to| full.contains(*to));
        self.full = Some(full);
        Ok(without)
    }

    /// The recipients who have not muted the state.
    fn unmuted_recipients(
        &mut self,
        facts: &Facts,
        group: &str,
        to: BTreeSet<String>,
        now_ms: u64,
    ) -> Result<BTreeSet<String>, Error> {
        let mutes = match self.mutes.take() {
            Some(mutes) => mutes,
            None => StoredMutes::read()?,
        };
        let mut unmuted = BTreeSet::new();
        for to in to {
            match mutes.muted_by(facts, group, &to) {
                Some(why) => self.note_report(facts, [to], ("muted", &why), now_ms),
                None => drop(unmuted.insert(to)),
            }
        }
        self.mutes = Some(mutes);
        Ok(unmuted)
    }

    /// Stores the note if there is room. Otherwise people get a number, and if a program is among the
    /// recipients, the state is retried for all.
    fn keep_note(&mut self, note: PendingNote) -> Result<bool, Error> {
        if self.store_note(&note)? {
            return Ok(true);
        }
        if let Some(program) = note.to.iter().find(|to| !self.config.is_for_people(to)) {
            return Err(Error::Unavailable(format!(
                "{MOST_NOTES} notes wait for a tick, and `{program}` gets each message"
            )));
        }
        let phase = facts::text(&note.facts, "phase");
        for recipient in note.to {
            let is_held = self.config.is_held(&recipient, phase, note.heard_ms);
            add(if is_held { &mut self.counts.held } else { &mut self.counts.more }, recipient, 1);
        }
        Ok(false)
    }

    /// Stores the note, and returns whether there was room for it.
    fn store_note(&self, note: &PendingNote) -> Result<bool, Error> {
        let bytes = serde_json::to_vec(note).map_err(|error| Error::Invalid(error.to_string()))?;
        if kv::keys(NOTES, MOST_NOTES)?.len() >= MOST_NOTES as usize {
            return Ok(false);
        }
        match kv::set(&format!("{NOTES}{:020}", note.seq), &bytes) {
            Err(error) if is_full(&error) => Ok(false),
            stored => stored.map(|()| true),
        }
    }

    fn note_report(
        &mut self,
        facts: &Facts,
        to: impl IntoIterator<Item = String>,
        what: (&'static str, &str),
        now_ms: u64,
    ) {
        let title = report::title(facts);
        let of = |to: String| Report::of(self.config, facts, &to, what, title.clone(), now_ms);
        self.reports.extend(to.into_iter().map(of));
    }
}

/// Adds the cause to notes of settled bad ends. Groups whose cause will be known soon are removed; the next
/// tick reads them again.
pub fn add_causes(config: &Config, notes: &mut Vec<(String, PendingNote)>, begun_ms: u64) {
    let mut waiting = BTreeSet::new();
    for (_, note) in notes.iter_mut().filter(|(_, note)| is_own(&note.facts, &note.group)) {
        // A clock that was set back must not delay a message.
        let age_ms = begun_ms.saturating_sub(note.heard_ms);
        let has_settled = age_ms >= config.settle.ms || note.heard_ms > begun_ms;
        if note.to.is_empty() || !has_settled || !outcomes::is_bad_end(&note.facts) {
            continue;
        }
        let has_time = clock::now_ms().saturating_sub(begun_ms) <= ASKING_MS;
        let found = if has_time { outcomes::add(&mut note.facts) } else { CauseState::Pending };
        let is_fresh = age_ms < config.settle.ms.saturating_add(outcomes::PATIENCE_MS);
        if found == CauseState::Pending && is_fresh {
            waiting.insert(note.group.clone());
        }
    }
    notes.retain(|(_, note)| !waiting.contains(&note.group));
}

pub fn add(counts: &mut Vec<(String, u64)>, recipient: String, more: u64) {
    match counts.iter_mut().find(|(known, _)| *known == recipient) {
        Some((_, count)) => *count += more,
        None => counts.push((recipient, more)),
    }
}

fn count(first: u64, counts: &NoteCounts) -> Result<(), Error> {
    if *counts == NoteCounts::default() {
        return Ok(());
    }
    let count: u64 = counts.more.iter().chain(&counts.held).map(|(_, count)| count).sum();
    if count > 0 {
        log::warn(
            "notes have no room: messages are counted, and told as a number",
            &[("messages", &count.to_string())],
        );
    }
    let bytes = serde_json::to_vec(counts).map_err(|error| Error::Invalid(error.to_string()))?;
    kv::set(&format!("{COUNTS}{first:020}"), &bytes)
}

/// Reads what the decision needs from the object. Without a document, it has no labels and no annotations.
fn read_seen_state(state: &State) -> Result<SeenState<'_>, Error> {
    let texts = |pointer| -> Result<BTreeMap<String, String>, Error> {
        match documents::value(state.seq, pointer) {
            Ok(found) => Ok(found.unwrap_or_default()),
            Err(Error::Invalid(_) | Error::TooLarge(_)) => Ok(BTreeMap::new()),
            Err(error) => Err(error),
        }
    };
    let places: &[&str] = if state.previous.is_some() { &[] } else { &decide::PLACES };
    let values: Result<Vec<Value>, Error> = places.iter().map(|place| facts::value(state, place)).collect();
    Ok(SeenState {
        state,
        labels: texts("/metadata/labels")?,
        annotations: texts("/metadata/annotations")?,
        happened_ms: decide::happened_ms(state, &values?),
    })
}
