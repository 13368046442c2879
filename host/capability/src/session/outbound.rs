//! Sends requests that can't be rolled back. Each is noted in the journal before it is sent, and so is its
//! answer: [`requests`] decides how a repeated call uses the notes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use kubewitness_core::Seq;
use kubewitness_core::intents::requests::{
    MAY_HAVE_BEEN_SENT, NotesFull, PluginRequest, Repeat, RequestDecision, RequestNotes, StoredAnswer, TICK,
};
use kubewitness_core::ports::{GrantError, JournalError, KvWrite, NoteDurability, NoteStore};

use crate::http::UnansweredRequest;

/// The advice for a receiver that gets no ids of states.
const SAYS_NO_STATE: &str = "the receiver is `repeat: never`, and what is sent does not say which state it is about: \
    send the state's id as `Idempotency-Key`, or as the id of a message";

/// The notes of one plugin, shared by its calls.
pub struct RequestOutbox {
    plugin: String,
    /// The plugin's version, for people.
    version: RwLock<Arc<str>>,
    journal: Arc<dyn NoteStore>,
    requests: Mutex<RequestNotes>,
}

/// The requests that one call has sent.
#[derive(Default)]
pub struct SentRequests {
    /// The notes of its requests.
    used: BTreeSet<u64>,
    /// The notes that are removed with a saved tick.
    ends: BTreeSet<u64>,
    /// Requests by destination and state.
    counts: BTreeMap<(String, Seq), u32>,
    /// States with a request that is not sent again, and why.
    doubts: Vec<(Seq, String)>,
    /// The call must be repeated with fewer states.
    needs_split: Option<GrantError>,
}

/// The next step for a request.
pub enum NextSend {
    /// Send it. The result is reported under this number.
    Send(PluginRequest, Option<u64>),
    SendAgain(u64),
    Answer(StoredAnswer),
}

impl RequestOutbox {
    pub fn new(plugin: &str, version: &str, journal: Arc<dyn NoteStore>, requests: RequestNotes) -> Self {
        let (plugin, version) = (plugin.to_owned(), RwLock::new(version.into()));
        Self { plugin, version, journal, requests: Mutex::new(requests) }
    }

    /// From now on notes belong to this version.
    pub fn begin_version(&self, version: &str) {
        *self.version.write().unwrap_or_else(PoisonError::into_inner) = version.into();
    }

    fn plugin_version(&self) -> String {
        self.version.read().unwrap_or_else(PoisonError::into_inner).to_string()
    }

    fn lock_notes(&self) -> MutexGuard<'_, RequestNotes> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores a note of `kv` before a receipt commits.
    pub async fn save_note(&self, note: KvWrite) -> Result<(), GrantError> {
        let kept = self.journal.save_notes(&self.plugin, vec![note], NoteDurability::PowerLoss).await;
        kept.map_err(|error| note_failure(&error))
    }

    /// Returns the request's number once it may be sent.
    pub async fn note_request(
        &self,
        asked: PluginRequest,
        number: Option<u64>,
        repeat: Repeat,
        cursor: Seq,
    ) -> Result<u64, GrantError> {
        let (number, notes) = {
            let mut requests = self.lock_notes();
            let (old, intended) = match requests.note_request(asked.clone(), number) {
                Err(NotesFull) => (requests.make_room(cursor), requests.note_request(asked, number)),
                intended => (Vec::new(), intended),
            };
            let full = |NotesFull| GrantError::Unavailable("too many requests have no verdict yet".into());
            let (number, note) = intended.map_err(full)?;
            (number, [old, vec![note]].concat())
        };
        let kept = match repeat {
            Repeat::Never => NoteDurability::PowerLoss,
            Repeat::InDoubt => NoteDurability::ProcessCrash,
        };
        let noted = self.journal.save_notes(&self.plugin, notes, kept).await;
        if let Err(error) = noted {
            self.lock_notes().note_unsent(number);
            return Err(note_failure(&error));
        }
        Ok(number)
    }

    /// Records the result of a request. A request that may have been sent and got no answer stays in doubt.
    pub fn note_result(&self, number: u64, sent: Result<StoredAnswer, &UnansweredRequest>) {
        let note = match sent {
            Ok(answer) => self.lock_notes().note_answer(number, answer),
            Err(unanswered) if unanswered.is_unsent => self.lock_notes().note_unsent(number),
            Err(_) => return,
        };
        self.journal.note_later(&self.plugin, vec![note]);
    }

    /// Returns once the earlier answers are stored. If that fails, the only consequence is that a kill leaves
    /// more requests in doubt.
    pub async fn flush_answers(&self) {
        if let Err(error) =
            self.journal.save_notes(&self.plugin, Vec::new(), NoteDurability::ProcessCrash).await
        {
            tracing::debug!(plugin = self.plugin, %error, "answers could not be noted");
        }
    }

    /// Removes the notes that a tick has used, in the save that has the tick.
    pub fn end_tick(&self, sent: &SentRequests) -> Vec<KvWrite> {
        self.lock_notes().end_tick(&sent.ends)
    }

    /// Keeps the notes of states that are owed although the cursor has passed them.
    pub fn keep_notes(&self, seqs: impl IntoIterator<Item = Seq>) {
        self.lock_notes().keep_notes(seqs);
    }

    /// Removes the notes of these states, which have verdicts.
    pub fn remove_notes(&self, seqs: &[Seq]) -> Vec<KvWrite> {
        self.lock_notes().remove_finished_notes(seqs)
    }
}

fn note_failure(error: &JournalError) -> GrantError {
    GrantError::Unavailable(format!("the journal can't note what the call is about to do: {error}"))
}

impl SentRequests {
    /// `seqs` are the state that it is about, or all states of the call if that is unknown.
    pub fn next(
        &mut self,
        outbox: &RequestOutbox,
        to: String,
        seqs: Vec<Seq>,
        digest: String,
        repeat: Repeat,
    ) -> Result<NextSend, GrantError> {
        if repeat == Repeat::Never && seqs.len() > 1 {
            let refused = GrantError::Invalid(SAYS_NO_STATE.into());
            self.needs_split = Some(refused.clone());
            return Err(refused);
        }
        let nth = match seqs[..] {
            [seq] => self.counts.get(&(to.clone(), seq)).copied().unwrap_or_default(),
            _ => 0,
        };
        let asked = PluginRequest { seqs, to, nth, digest, version: outbox.plugin_version() };
        let decision = outbox.lock_notes().decide_request(&asked, repeat, &self.used);
        match decision {
            RequestDecision::Send(number) => Ok(NextSend::Send(asked, number)),
            RequestDecision::SendAgain(number) => Ok(NextSend::SendAgain(number)),
            RequestDecision::Answer(number, answer) => {
                self.count(&asked.to, &asked.seqs, number);
                self.ends.insert(number);
                Ok(NextSend::Answer(answer))
            }
            RequestDecision::Doubtful(why) => {
                // A tick has no state that could become a dead letter.
                if asked.seqs == [TICK] {
                    tracing::warn!(
                        plugin = outbox.plugin,
                        to = asked.to,
                        "a request of a tick is not sent: {why}"
                    );
                }
                self.note_doubt(&asked.seqs, &why);
                Err(GrantError::Denied(why))
            }
        }
    }

    /// Notes that it is about to be sent. If the destination allows no repeat, only an answer removes its
    /// note: without one it may have been sent.
    pub fn note_begun(&mut self, number: u64, repeat: Repeat) {
        if repeat == Repeat::InDoubt {
            self.ends.insert(number);
        }
    }

    pub fn note_answered(&mut self, number: u64) {
        self.ends.insert(number);
    }

    /// The request got no answer. If it may be repeated, the plugin's verdict decides.
    pub fn note_unanswered(&mut self, seqs: &[Seq], repeat: Repeat, error: &GrantError) {
        if repeat == Repeat::Never {
            self.note_doubt(seqs, &format!("{MAY_HAVE_BEEN_SENT}: {error}"));
        }
    }

    fn note_doubt(&mut self, seqs: &[Seq], why: &str) {
        self.doubts.extend(seqs.iter().map(|seq| (*seq, why.to_owned())));
    }

    /// Counts the request, so that the state's next request gets the next number.
    pub fn count(&mut self, to: &str, seqs: &[Seq], number: u64) {
        self.used.insert(number);
        if let [seq] = seqs {
            *self.counts.entry((to.to_owned(), *seq)).or_default() += 1;
        }
    }

    /// Whether the call has sent anything that is noted.
    pub fn has_sent(&self) -> bool {
        !self.used.is_empty()
    }

    pub fn all_doubts(&self) -> Vec<(Seq, String)> {
        self.doubts.clone()
    }

    pub fn needs_split(&mut self) -> Option<GrantError> {
        self.needs_split.take()
    }
}
