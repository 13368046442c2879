//! Sends what a call requests, once for each state that it is about. It opens no connection: the destination
//! and the mail server do.

use kubewitness_core::Seq;
use kubewitness_core::intents::prints::IdPrint;
use kubewitness_core::intents::requests::{Repeat, TICK};
use kubewitness_core::ports::GrantError;
use tokio::time::Instant;

use super::CallSession;
use super::outbound::NextSend;
use super::post::{self, OutboundPost};
use crate::http::UnansweredRequest;

/// The advice for a receiver that allows no repeats.
const SAYS_NO_ID: &str = "the receiver is `repeat: never`: a request in a tick needs an `Idempotency-Key`";

/// How many states of a call a note has if it is unknown which of them a request is about. Batches after a
/// kill begin with the same states.
const ABOUT: usize = 64;

impl CallSession {
    /// The states that an id is about: the state with this id, or all states of the call.
    fn states_of_id(&self, id: Option<&str>) -> Vec<Seq> {
        let print = id.map(IdPrint::of);
        let named = print.and_then(|print| self.batch.values().find(|mark| mark.print == print));
        match named {
            Some(mark) => vec![mark.seq],
            None => self.batch_seqs().into_iter().take(ABOUT).collect(),
        }
    }

    /// The states that a request is about, and how it is identified. A tick has no state: its requests are
    /// noted by their id. A request without an id is sent but not noted, if it may be repeated.
    pub(super) fn known_by(
        &self,
        id: Option<&str>,
        repeat: Repeat,
        digest: impl FnOnce() -> String,
    ) -> Result<(Vec<Seq>, String), GrantError> {
        match (self.ends, repeat, id) {
            (None, ..) => Ok((self.states_of_id(id), digest())),
            (Some(_), _, Some(id)) => Ok((vec![TICK], post::digest_of_id(id))),
            (Some(_), Repeat::InDoubt, None) => Ok((Vec::new(), String::new())),
            (Some(_), Repeat::Never, None) => Err(GrantError::Invalid(SAYS_NO_ID.into())),
        }
    }

    /// Sends what an earlier call with these states has not sent. If noting it fails, no state is at fault.
    pub(super) async fn send_once<P: OutboundPost>(
        &mut self,
        post: P,
        seqs: Vec<Seq>,
        digest: String,
    ) -> Result<P::Answer, GrantError> {
        let granted = self.granted.clone();
        // The request has no note.
        if seqs.is_empty() {
            post.take()?;
            return post.send().await.map_err(|unanswered| unanswered.error);
        }
        let (to, repeat) = (post.receiver_name(), post.repeat_rule());
        let number = match self.outbound.next(&granted.outbox, to.clone(), seqs.clone(), digest, repeat)? {
            NextSend::Answer(answer) => return P::read(answer),
            NextSend::SendAgain(number) => {
                post.take()?;
                number
            }
            NextSend::Send(asked, number) => {
                post.take()?;
                let noted = granted
                    .outbox
                    .note_request(asked, number, repeat, granted.standing.settled_cursor())
                    .await;
                noted.inspect_err(|error| self.unreachable = Some(error.clone()))?
            }
        };
        self.outbound.note_begun(number, repeat);
        let sent = post.send().await;
        match &sent {
            Err(UnansweredRequest { is_unsent: true, .. }) => {}
            Err(UnansweredRequest { error, .. }) => {
                self.outbound.count(&to, &seqs, number);
                self.outbound.note_unanswered(&seqs, repeat, error);
            }
            Ok(_) => {
                self.outbound.count(&to, &seqs, number);
                self.outbound.note_answered(number);
            }
        }
        granted.outbox.note_result(number, sent.as_ref().map(P::stored_answer));
        sent.map_err(|unanswered| unanswered.error)
    }
}

/// Limits a request of a tick to half of the remaining time, so that the plugin can record the result. A tick
/// that is aborted forgets what it has sent, and the next one sends it again.
pub(super) async fn await_half_of_time<T>(
    ends: Option<Instant>,
    sending: impl Future<Output = Result<T, GrantError>>,
) -> Result<T, GrantError> {
    let Some(ends) = ends else { return sending.await };
    let left = ends.saturating_duration_since(Instant::now()) / 2;
    let late = "no answer within half of the time that the tick had left: give the destination a shorter `timeout`, or \
                the tick a longer one";
    tokio::time::timeout(left, sending).await.unwrap_or_else(|_| Err(GrantError::Timeout(late.into())))
}
