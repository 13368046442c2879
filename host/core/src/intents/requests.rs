//! Decides what a repeated call does with its requests to destinations.
//!
//! A request is noted before it is sent, and so is its answer. If the call is repeated after a kill, three
//! cases exist. A request with a noted answer gets that answer and is not sent again. A request without a
//! note was never sent. Only a request that is noted without an answer is in doubt.
//!
//! A request of one state is identified by its destination, the state, and its number among the state's
//! requests to that destination. If a call has several states and the request names none of them, its digest
//! alone identifies it.
//!
//! A verdict on a state removes its notes, because a retry makes a new request.
//!
//! A request of a tick is identified by the digest of its id alone; without an id it is not noted. Its notes
//! are removed once the tick is saved. If the destination allows no repeat, a note without an answer stays.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::record;
pub use crate::config::Repeat;
use crate::limits;
use crate::ports::KvWrite;
use crate::state::Seq;

const KIND: &str = "request";

/// The prefix of the error of a state whose request is not sent again.
pub const MAY_HAVE_BEEN_SENT: &str = "may have been sent";

/// Stands for the state in notes of a tick. Positions begin at 1.
pub const TICK: Seq = 0;

/// A request that a plugin makes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PluginRequest {
    /// The state that the request is about, or all states of the call.
    pub seqs: Vec<Seq>,
    /// The kind of the receiver and its name.
    pub to: String,
    /// Its number among the requests of this state to this destination, from 0.
    pub nth: u32,
    /// The digest of the whole request, in hexadecimal digits.
    pub digest: String,
    /// The plugin's version, for people.
    pub version: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredAnswer {
    /// The answer without the body, as the controller reads it back.
    pub head: String,
    /// `None` if it was too large to keep.
    pub body: Option<Vec<u8>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum RequestFate {
    /// The request was certainly not sent.
    Unsent,
    Sent,
    Answered(StoredAnswer),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct RequestNote {
    asked: PluginRequest,
    fate: RequestFate,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestDecision {
    /// Note the request, under the number of its last note if it has one, and send it.
    Send(Option<u64>),
    /// It is already noted under this number, and may be sent again.
    SendAgain(u64),
    /// It was sent and got this answer.
    Answer(u64, StoredAnswer),
    /// It may have been sent and is not sent again. Has the reason.
    Doubtful(String),
}

/// The plugin has the maximum number of notes, and none of them is old.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotesFull;

/// The notes of one plugin, by number.
#[derive(Clone, Debug, Default)]
pub struct RequestNotes {
    notes: BTreeMap<u64, RequestNote>,
    by_seq: BTreeMap<Seq, BTreeSet<u64>>,
    /// States below the cursor that have notes and are owed all the same.
    kept: BTreeSet<Seq>,
    last: u64,
    /// The total size of the answers' bodies that are kept.
    bytes: usize,
}

#[derive(Serialize, Deserialize)]
struct RequestHead {
    #[serde(flatten)]
    asked: PluginRequest,
    fate: RequestState,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    head: Option<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum RequestState {
    Unsent,
    Sent,
    Answered,
    TooLarge,
}

impl RequestNotes {
    /// Loads a stored note. Returns `None` if the key is not that of such a note, and `Some(false)` if it
    /// can't be read.
    pub fn read(&mut self, key: &str, value: &[u8]) -> Option<bool> {
        let number = super::note_number(KIND, key)?;
        let Some(note) = RequestNote::decode(value) else { return Some(false) };
        self.put_note(number, note);
        Some(true)
    }

    /// `used` are the notes of requests that this call has already made.
    pub fn decide_request(
        &self,
        asked: &PluginRequest,
        repeat: Repeat,
        used: &BTreeSet<u64>,
    ) -> RequestDecision {
        let Some((number, note)) = self.find(asked, used) else { return RequestDecision::Send(None) };
        let is_same = note.asked.digest == asked.digest;
        let doubtful = |what: &str| {
            let version = &note.asked.version;
            RequestDecision::Doubtful(format!("{MAY_HAVE_BEEN_SENT}: {what} (plugin {version})"))
        };
        match (&note.fate, repeat) {
            (RequestFate::Unsent, _) => RequestDecision::Send(Some(number)),
            (RequestFate::Answered(answer @ StoredAnswer { body: Some(_), .. }), _) if is_same => {
                RequestDecision::Answer(number, answer.clone())
            }
            (RequestFate::Sent, Repeat::InDoubt) if is_same => RequestDecision::SendAgain(number),
            (_, Repeat::InDoubt) => RequestDecision::Send(Some(number)),
            (RequestFate::Sent, Repeat::Never) if asked.seqs == [TICK] => {
                doubtful("an earlier tick had begun to send this request and got no answer")
            }
            (RequestFate::Sent, Repeat::Never) => {
                doubtful("an earlier call had begun to send a request of this state and got no answer")
            }
            (RequestFate::Answered(_), Repeat::Never) if is_same => {
                doubtful("an earlier call has sent this request, and the answer is too large to be kept")
            }
            (RequestFate::Answered(_), Repeat::Never) => {
                doubtful("an earlier call has sent another request in its place and got an answer")
            }
        }
    }

    /// Notes a request before it is sent. Returns its number, and what must be stored first.
    pub fn note_request(
        &mut self,
        asked: PluginRequest,
        number: Option<u64>,
    ) -> Result<(u64, KvWrite), NotesFull> {
        if number.is_none() && self.notes.len() >= limits::INTENTS {
            return Err(NotesFull);
        }
        let number = number.unwrap_or(self.last + 1);
        self.put_note(number, RequestNote { asked, fate: RequestFate::Sent });
        Ok((number, self.write(number)))
    }

    /// Records the answer of a request, or that it was certainly not sent. Returns what to store.
    pub fn note_answer(&mut self, number: u64, answer: StoredAnswer) -> KvWrite {
        self.set_fate(number, RequestFate::Answered(answer))
    }

    pub fn note_unsent(&mut self, number: u64) -> KvWrite {
        self.set_fate(number, RequestFate::Unsent)
    }

    fn set_fate(&mut self, number: u64, fate: RequestFate) -> KvWrite {
        if let Some(note) = self.take(number) {
            self.put_note(number, RequestNote { fate: self.fit_to_bounds(fate), ..note });
        }
        self.write(number)
    }

    /// An answer beyond the bounds is kept without its body.
    fn fit_to_bounds(&self, fate: RequestFate) -> RequestFate {
        let fits = |body: &Vec<u8>| {
            body.len() <= limits::ANSWER_KEPT && self.bytes + body.len() <= limits::ANSWERS_KEPT
        };
        match fate {
            RequestFate::Answered(StoredAnswer { head, body }) => {
                RequestFate::Answered(StoredAnswer { head, body: body.filter(fits) })
            }
            other => other,
        }
    }

    /// Removes the notes of states that got a verdict, in the save that has the verdict.
    pub fn remove_finished_notes(&mut self, seqs: &[Seq]) -> Vec<KvWrite> {
        let numbers: BTreeSet<u64> =
            seqs.iter().filter_map(|seq| self.by_seq.get(seq)).flatten().copied().collect();
        for seq in seqs {
            self.kept.remove(seq);
        }
        let mut removals = Vec::new();
        for number in numbers {
            let Some(mut note) = self.take(number) else { continue };
            note.asked.seqs.retain(|seq| !seqs.contains(seq));
            match note.asked.seqs.is_empty() {
                true => removals.push(super::note_removal(KIND, number)),
                false => self.put_note(number, note),
            }
        }
        removals
    }

    /// Keeps the notes of states that are owed, wherever the cursor is, until they get a verdict.
    pub fn keep_notes(&mut self, seqs: impl IntoIterator<Item = Seq>) {
        let by_seq = &self.by_seq;
        self.kept.extend(seqs.into_iter().filter(|seq| by_seq.contains_key(seq)));
    }

    /// Removes notes whose states are all at or before the cursor, and none of which is owed all the same. They are left
    /// over from states that never came again.
    pub fn make_room(&mut self, cursor: Seq) -> Vec<KvWrite> {
        let is_over = |seq: &Seq| *seq <= cursor && !self.kept.contains(seq);
        let is_old = |note: &RequestNote| note.asked.seqs.iter().all(is_over);
        let old: Vec<u64> =
            self.notes.iter().filter(|(_, note)| is_old(note)).map(|(number, _)| *number).collect();
        self.remove(old)
    }

    /// Removes the notes of a tick that was saved.
    pub fn end_tick(&mut self, numbers: &BTreeSet<u64>) -> Vec<KvWrite> {
        self.remove(numbers.iter().copied().collect())
    }

    fn remove(&mut self, numbers: Vec<u64>) -> Vec<KvWrite> {
        let removal = |number| self.take(number).map(|_| super::note_removal(KIND, number));
        numbers.into_iter().filter_map(removal).collect()
    }

    pub fn len(&self) -> usize {
        self.notes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.notes.is_empty()
    }

    fn find(&self, asked: &PluginRequest, used: &BTreeSet<u64>) -> Option<(u64, &RequestNote)> {
        let numbers = asked.seqs.iter().filter_map(|seq| self.by_seq.get(seq)).flatten();
        let notes = numbers.filter_map(|number| Some((*number, self.notes.get(number)?)));
        let notes = notes.filter(|(number, note)| note.asked.to == asked.to && !used.contains(number));
        let twins = notes.clone().filter(|(_, note)| note.asked.digest == asked.digest);
        // The notes of the previous try may still exist: their removal is saved after the next try has begun.
        match asked.seqs[..] {
            [seq] if seq != TICK => notes
                .filter(|(_, note)| note.asked.seqs == asked.seqs && note.asked.nth == asked.nth)
                .max_by_key(|(number, _)| *number)
                .or_else(|| {
                    twins.filter(|(_, note)| note.asked.seqs.len() > 1).max_by_key(|(number, _)| *number)
                }),
            _ => twins.max_by_key(|(number, _)| *number),
        }
    }

    fn put_note(&mut self, number: u64, note: RequestNote) {
        self.take(number);
        self.last = self.last.max(number);
        self.bytes += note.body_bytes();
        for seq in &note.asked.seqs {
            self.by_seq.entry(*seq).or_default().insert(number);
        }
        self.notes.insert(number, note);
    }

    fn take(&mut self, number: u64) -> Option<RequestNote> {
        let note = self.notes.remove(&number)?;
        self.bytes -= note.body_bytes();
        for seq in &note.asked.seqs {
            if let Some(numbers) = self.by_seq.get_mut(seq) {
                numbers.remove(&number);
                if numbers.is_empty() {
                    self.by_seq.remove(seq);
                }
            }
        }
        Some(note)
    }

    fn write(&self, number: u64) -> KvWrite {
        let value = self.notes.get(&number).map(RequestNote::encode);
        KvWrite { key: super::key(KIND, number), value }
    }
}

impl RequestNote {
    fn body_bytes(&self) -> usize {
        match &self.fate {
            RequestFate::Answered(answer) => answer.body.as_ref().map_or(0, Vec::len),
            _ => 0,
        }
    }

    fn encode(&self) -> Vec<u8> {
        let (fate, head, body) = match &self.fate {
            RequestFate::Unsent => (RequestState::Unsent, None, None),
            RequestFate::Sent => (RequestState::Sent, None, None),
            RequestFate::Answered(StoredAnswer { head, body: None }) => {
                (RequestState::TooLarge, Some(head.clone()), None)
            }
            RequestFate::Answered(StoredAnswer { head, body }) => {
                (RequestState::Answered, Some(head.clone()), body.as_deref())
            }
        };
        record::encode(&RequestHead { asked: self.asked.clone(), fate, head }, &[body.unwrap_or_default()])
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (RequestHead { asked, fate, head }, body) = record::decode(bytes)?;
        let fate = match (fate, head) {
            (RequestState::Unsent, _) => RequestFate::Unsent,
            (RequestState::Sent, _) => RequestFate::Sent,
            (RequestState::TooLarge, head) => RequestFate::Answered(StoredAnswer { head: head?, body: None }),
            (RequestState::Answered, head) => {
                RequestFate::Answered(StoredAnswer { head: head?, body: Some(body.to_vec()) })
            }
        };
        Some(Self { asked, fate })
    }
}

#[cfg(test)]
mod tests;
