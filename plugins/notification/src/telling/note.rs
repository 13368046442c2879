//! Notes what is to be told. A note is all that a tick needs: it has no document.

use std::collections::{BTreeMap, BTreeSet};

use kubewitness_sdk::{Error, State, Verdict, clock, documents, kv, log};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::config::Config;
use crate::decide::{self, Heard, Seen};
use crate::facts::{self, Facts};
use crate::mutes::Mutes;
use crate::report::{self, Report, is_full};

/// The keys of notes begin with it; the position of the state follows.
pub const NOTES: &str = "note/";
/// The keys of counts begin with it.
pub const COUNTS: &str = "count/";
/// Notes that wait for a tick. Each has up to 3 KiB of the 1 MiB of `kv`. What is beyond is counted.
pub const MOST: u32 = 128;

/// A state that is to be told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Note {
    pub seq: u64,
    /// The uid of the object that is told of: the owner of a part.
    pub group: String,
    /// Nobody, for a part that is told with its owner.
    pub to: BTreeSet<String>,
    pub heard_ms: u64,
    pub facts: Facts,
}

/// What a call has heard and does not tell one by one.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// It happened long ago.
    pub old: u64,
    /// There was no room, by recipient.
    pub more: Vec<(String, u64)>,
}

/// What one call has heard, beside its notes.
struct Call<'a> {
    config: &'a Config,
    pointers: BTreeSet<String>,
    counts: Counts,
    reports: Vec<Report>,
    /// Read when they are first needed.
    mutes: Option<Mutes>,
}

pub fn handle(config: &Config, states: &[State]) -> Vec<Verdict> {
    let pointers = config.pointers();
    let mut call = Call { config, pointers, counts: Counts::default(), reports: Vec::new(), mutes: None };
    let verdict = |state| match call.note(state) {
        Ok(()) => Verdict::Done,
        Err(error) => error.into(),
    };
    let mut verdicts: Vec<_> = states.iter().map(verdict).collect();
    if let Err(error) = count(states, &call.counts).and_then(|()| report::keep(&call.reports)) {
        // Without the count nobody would hear that there was more.
        verdicts.fill_with(|| Verdict::retry(error.text()));
    }
    verdicts
}

impl Call<'_> {
    fn note(&mut self, state: &State) -> Result<(), Error> {
        let config = self.config;
        if !decide::may_be_told(config, state) {
            return Ok(());
        }
        let now_ms = clock::now_ms();
        let seen = look(state)?;
        for (name, why) in decide::refusals(config, &seen) {
            let object = format!("{}/{}", state.object.namespace, state.object.name);
            let fields = [("object", &*object), ("why", &*why)];
            log::warn("an annotation names a recipient that can't be told", &fields);
            self.report(&facts::plain(state), [name], ("refused", &why), now_ms);
        }
        let to = match decide::hear(config, &seen, now_ms) {
            Heard::Nothing => return Ok(()),
            Heard::Old => {
                self.counts.old += 1;
                return Ok(());
            }
            Heard::Muted(to, by) => {
                self.report(&facts::plain(state), to, ("muted", by), now_ms);
                return Ok(());
            }
            Heard::Part => BTreeSet::new(),
            Heard::News(to) => to,
        };
        let facts = facts::bounded(facts::of(state, &self.pointers)?);
        let is_asked_for = !to.is_empty();
        let to = self.unmuted(&facts, to, now_ms)?;
        if is_asked_for && to.is_empty() {
            return Ok(());
        }
        let group = decide::group(state).to_string();
        let note = Note { seq: state.seq, group, to: to.clone(), heard_ms: now_ms, facts: facts.clone() };
        if self.keep(note)? {
            let why = match config.is_quiet(facts::phase(state), now_ms) {
                true => "until quiet hours end",
                false => "until it has settled",
            };
            self.report(&facts, to, ("waiting", why), now_ms);
        }
        Ok(())
    }

    /// Those for whom nobody has muted it.
    fn unmuted(
        &mut self,
        facts: &Facts,
        to: BTreeSet<String>,
        now_ms: u64,
    ) -> Result<BTreeSet<String>, Error> {
        let mutes = match self.mutes.take() {
            Some(mutes) => mutes,
            None => Mutes::read()?,
        };
        let mut told = BTreeSet::new();
        for to in to {
            match mutes.by(facts, &to) {
                Some(why) => self.report(facts, [to], ("muted", &why), now_ms),
                None => drop(told.insert(to)),
            }
        }
        self.mutes = Some(mutes);
        Ok(told)
    }

    /// Keeps the note where there is room, and counts it where there is none.
    fn keep(&mut self, note: Note) -> Result<bool, Error> {
        let bytes = serde_json::to_vec(&note).map_err(|error| Error::Invalid(error.to_string()))?;
        let has_room = kv::keys(NOTES, MOST)?.len() < MOST as usize;
        let key = format!("{NOTES}{:020}", note.seq);
        match has_room.then(|| kv::set(&key, &bytes)) {
            Some(Err(error)) if !is_full(&error) => return Err(error),
            Some(Ok(())) => return Ok(true),
            Some(Err(_)) | None => {}
        }
        note.to.into_iter().for_each(|recipient| add(&mut self.counts.more, recipient, 1));
        Ok(false)
    }

    fn report(
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

pub fn add(counts: &mut Vec<(String, u64)>, recipient: String, more: u64) {
    match counts.iter_mut().find(|(known, _)| *known == recipient) {
        Some((_, count)) => *count += more,
        None => counts.push((recipient, more)),
    }
}

fn count(states: &[State], counts: &Counts) -> Result<(), Error> {
    if *counts == Counts::default() {
        return Ok(());
    }
    let first = states.first().map(|state| state.seq).unwrap_or_default();
    let bytes = serde_json::to_vec(counts).map_err(|error| Error::Invalid(error.to_string()))?;
    kv::set(&format!("{COUNTS}{first:020}"), &bytes)
}

/// Reads what the decision needs of the object. An object without a document has no labels and no annotations.
fn look(state: &State) -> Result<Seen<'_>, Error> {
    let texts = |pointer| -> Result<BTreeMap<String, String>, Error> {
        match documents::value(state.seq, pointer) {
            Ok(found) => Ok(found.unwrap_or_default()),
            Err(Error::Invalid(_) | Error::TooLarge(_)) => Ok(BTreeMap::new()),
            Err(error) => Err(error),
        }
    };
    let places: &[&str] = if state.previous.is_some() { &[] } else { &decide::PLACES };
    let values: Result<Vec<Value>, Error> = places.iter().map(|place| facts::value(state, place)).collect();
    Ok(Seen {
        state,
        labels: texts("/metadata/labels")?,
        annotations: texts("/metadata/annotations")?,
        happened_ms: decide::happened_ms(state, &values?),
    })
}
