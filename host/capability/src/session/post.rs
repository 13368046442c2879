//! The two kinds of posts of a call (a request over HTTP and a message by e-mail), and the note of an answer.

use async_trait::async_trait;
use kubewitness_core::intents::requests::{Repeat, StoredAnswer};
use kubewitness_core::ports::{GrantError, HttpRequest, HttpResponse, MailMessage, MailRefusal};
use ring::digest::{Context, SHA256};
use serde::{Deserialize, Serialize};

use crate::http::{HttpDestination, PreparedRequest, UnansweredRequest};
use crate::mail::{MailRelay, PreparedMail};

/// A request or a message that is ready to be sent.
#[async_trait]
pub trait OutboundPost: Send {
    type Answer: Send;

    /// The kind of the receiver and its name.
    fn receiver_name(&self) -> String;
    fn repeat_rule(&self) -> Repeat;
    /// Takes a token from the receiver's rate.
    fn take(&self) -> Result<(), GrantError>;
    async fn send(self) -> Result<Self::Answer, UnansweredRequest>;
    fn stored_answer(answer: &Self::Answer) -> StoredAnswer;
    fn read(answer: StoredAnswer) -> Result<Self::Answer, GrantError>;
}

pub struct HttpPost<'d> {
    pub destination: &'d HttpDestination,
    pub prepared: PreparedRequest,
}

pub struct MailPost<'r> {
    pub relay: &'r MailRelay,
    pub letter: PreparedMail,
}

/// An answer over HTTP without its body.
#[derive(Serialize, Deserialize)]
struct AnswerHead {
    status: u16,
    headers: Vec<(String, String)>,
}

#[async_trait]
impl OutboundPost for HttpPost<'_> {
    type Answer = HttpResponse;

    fn receiver_name(&self) -> String {
        format!("http:{}", self.destination.spec.name)
    }

    fn repeat_rule(&self) -> Repeat {
        self.destination.spec.repeat
    }

    fn take(&self) -> Result<(), GrantError> {
        self.destination.take()
    }

    async fn send(self) -> Result<HttpResponse, UnansweredRequest> {
        self.destination.send(self.prepared).await
    }

    fn stored_answer(HttpResponse { status, headers, body }: &HttpResponse) -> StoredAnswer {
        let head = AnswerHead { status: *status, headers: headers.clone() };
        StoredAnswer { head: encode_head(&head), body: Some(body.clone()) }
    }

    fn read(answer: StoredAnswer) -> Result<HttpResponse, GrantError> {
        let AnswerHead { status, headers } = decode_head(&answer.head)?;
        Ok(HttpResponse { status, headers, body: answer.body.unwrap_or_default() })
    }
}

/// The recipients that were refused: the address, whether permanently, and why.
type RefusedRecipients = Vec<(String, bool, String)>;

#[async_trait]
impl OutboundPost for MailPost<'_> {
    type Answer = Vec<MailRefusal>;

    fn receiver_name(&self) -> String {
        format!("mail:{}", self.relay.spec.name)
    }

    fn repeat_rule(&self) -> Repeat {
        self.relay.spec.repeat
    }

    fn take(&self) -> Result<(), GrantError> {
        self.relay.take()
    }

    async fn send(self) -> Result<Vec<MailRefusal>, UnansweredRequest> {
        self.relay.send(self.letter).await
    }

    fn stored_answer(refusals: &Vec<MailRefusal>) -> StoredAnswer {
        let refusals = refusals
            .iter()
            .map(|refusal| (refusal.recipient.clone(), refusal.is_permanent, refusal.reason.clone()));
        StoredAnswer { head: encode_head(&refusals.collect::<RefusedRecipients>()), body: Some(Vec::new()) }
    }

    fn read(answer: StoredAnswer) -> Result<Vec<MailRefusal>, GrantError> {
        let refusals: RefusedRecipients = decode_head(&answer.head)?;
        let refusal = |(recipient, is_permanent, reason)| MailRefusal { recipient, is_permanent, reason };
        Ok(refusals.into_iter().map(refusal).collect())
    }
}

fn encode_head(head: &impl Serialize) -> String {
    serde_json::to_string(head).expect("strings and numbers always serialize")
}

fn decode_head<T: for<'d> Deserialize<'d>>(head: &str) -> Result<T, GrantError> {
    let unreadable = |error| GrantError::Other(format!("a kept answer can't be read: {error}"));
    serde_json::from_str(head).map_err(unreadable)
}

/// The digest of what a plugin sends. The controller's own headers are left out, because they may change
/// meanwhile.
pub fn digest_of(HttpRequest { method, path, headers, body }: &HttpRequest) -> String {
    let headers = headers.iter().flat_map(|(name, value)| [name.as_bytes(), value.as_bytes()]);
    digest_parts([method.as_bytes(), path.as_bytes()].into_iter().chain(headers).chain([&body[..]]))
}

pub fn digest_of_mail(MailMessage { to, subject, text, html, id }: &MailMessage) -> String {
    let html = html.iter().map(String::as_bytes);
    let to = to.iter().map(String::as_bytes);
    digest_parts([id.as_bytes(), subject.as_bytes(), text.as_bytes()].into_iter().chain(to).chain(html))
}

/// The digest of a request that is identified by its id alone.
pub fn digest_of_id(id: &str) -> String {
    digest_parts(std::iter::once(id.as_bytes()))
}

fn digest_parts<'p>(parts: impl Iterator<Item = &'p [u8]>) -> String {
    let mut context = Context::new(&SHA256);
    for part in parts {
        // With its length, so that different parts never give the same bytes.
        context.update(&(part.len() as u64).to_le_bytes());
        context.update(part);
    }
    hex::encode(context.finish())
}
