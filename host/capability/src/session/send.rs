//! Sends what a call asks for, once for each state that it is about. It opens no connection: the destination and the mail
//! server do.

use kubewitness_core::Seq;
use kubewitness_core::intents::prints::IdPrint;
use kubewitness_core::intents::requests::{Repeat, TICK};
use kubewitness_core::ports::GrantError;
use tokio::time::Instant;

use super::CallSession;
use super::outbound::NextSend;
use super::post::{self, OutboundPost};
use crate::http::UnansweredRequest;

/// What a receiver lacks that is told nothing twice.
const SAYS_NO_ID: &str = "the receiver is `repeat: never`: a request in a tick needs an `Idempotency-Key`";

/// States of a call that a note has where it is not known which of them a request is about. Batches after a kill
/// begin with the same states.
const ABOUT: usize = 64;

impl CallSession {
    /// The states that something with this id is about: the one whose id it is, or those of the call.
    fn about(&self, id: Option<&str>) -> Vec<Seq> {
        let print = id.map(IdPrint::of);
        let named = print.and_then(|print| self.batch.values().find(|mark| mark.print == print));
        match named {
            Some(mark) => vec![mark.seq],
            None => self.seqs().into_iter().take(ABOUT).collect(),
        }
    }

    /// The states that a request is about, and by what it is known again. A tick has no state: what it sends is noted by its
    /// id. Without one it is sent and not noted, where it may be repeated.
    pub(super) fn known_by(
        &self,
        id: Option<&str>,
        repeat: Repeat,
        digest: impl FnOnce() -> String,
    ) -> Result<(Vec<Seq>, String), GrantError> {
        match (self.ends, repeat, id) {
            (None, ..) => Ok((self.about(id), digest())),
            (Some(_), _, Some(id)) => Ok((vec![TICK], post::digest_of_id(id))),
            (Some(_), Repeat::InDoubt, None) => Ok((Vec::new(), String::new())),
            (Some(_), Repeat::Never, None) => Err(GrantError::Invalid(SAYS_NO_ID.into())),
        }
    }

    /// Sends what an earlier call of its states has not sent. A failure to note it is nobody's fault.
    pub(super) async fn send_once<P: OutboundPost>(
        &mut self,
        post: P,
        seqs: Vec<Seq>,
        digest: String,
    ) -> Result<P::Answer, GrantError> {
        let granted = self.granted.clone();
        // Nothing is noted of it.
        if seqs.is_empty() {
            post.take()?;
            return post.send().await.map_err(|unanswered| unanswered.error);
        }
        let (to, repeat) = (post.to(), post.repeat());
        let number = match self.outbound.next(&granted.outbox, to.clone(), seqs.clone(), digest, repeat)? {
            NextSend::Answer(answer) => return P::read(answer),
            NextSend::SendAgain(number) => {
                post.take()?;
                number
            }
            NextSend::Send(asked, number) => {
                post.take()?;
                let noted = granted.outbox.intend(asked, number, repeat, granted.standing.cursor()).await;
                noted.inspect_err(|error| self.unreachable = Some(error.clone()))?
            }
        };
        self.outbound.begin(number, repeat);
        let sent = post.send().await;
        match &sent {
            Err(UnansweredRequest { is_unsent: true, .. }) => {}
            Err(UnansweredRequest { error, .. }) => {
                self.outbound.count(&to, &seqs, number);
                self.outbound.unanswered(&seqs, repeat, error);
            }
            Ok(_) => {
                self.outbound.count(&to, &seqs, number);
                self.outbound.answered(number);
            }
        }
        granted.outbox.ended(number, sent.as_ref().map(P::keep));
        sent.map_err(|unanswered| unanswered.error)
    }
}

/// A tick that is cut off forgets what it has sent, and the next one sends it again. So a request may take half of the time
/// that is left, and the plugin always lives to note what came of it.
pub(super) async fn patient<T>(
    ends: Option<Instant>,
    sending: impl Future<Output = Result<T, GrantError>>,
) -> Result<T, GrantError> {
    let Some(ends) = ends else { return sending.await };
    let left = ends.saturating_duration_since(Instant::now()) / 2;
    let late = "no answer within half of the time that the tick had left: give the destination a shorter `timeout`, or \
                the tick a longer one";
    tokio::time::timeout(left, sending).await.unwrap_or_else(|_| Err(GrantError::Timeout(late.into())))
}
