//! `mail`: passes messages to mail servers that an operator configured. The server, the login, the sender and
//! the rate stay here. A plugin names recipients and texts, and no answer contains the server or the
//! password.
//!
//! `lettre` writes the message and speaks SMTP. Writing that by hand was rejected: encoded words, folded
//! headers and dot-stuffing are easy to get wrong, and an error there is an injection. It brings four small
//! crates. The controller itself opens the connection, so that it checks each address immediately before, and
//! limits what a server may answer.

mod connect;

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use kubewitness_core::bucket::TokenBucket;
use kubewitness_core::config::{MailSpec, RECIPIENTS_MOST, RateSpec};
use kubewitness_core::files;
use kubewitness_core::ports::{GrantError, MailMessage, MailRefusal};
use lettre::message::{Mailbox, MultiPart, header::ContentType};
use lettre::transport::smtp::authentication::{Credentials, Mechanism};
use lettre::transport::smtp::client::AsyncSmtpConnection;
use lettre::transport::smtp::commands::{Data, Mail, Rcpt};
use lettre::transport::smtp::extension::{Extension, MailBodyParameter, MailParameter};
use lettre::{Address, Message};
use ring::digest::{SHA256, digest};
use tokio::time::{Instant, timeout_at};

use crate::http::resolver::{AddressGuard, ForbiddenName, ResolveFailure};
use crate::http::{SpecFault, UnansweredRequest};
use crate::secrets;

/// A certificate of an authority has a few kilobytes.
const CA_BYTES: u64 = 1 << 20;
/// Every server accepts header lines of 998 bytes, and people read subjects.
const SUBJECT_BYTES: usize = 512;
/// How many bytes of a server's message about a recipient are kept.
const WORDS: usize = 256;

/// Finds the fault of a message that every server would refuse.
pub fn check(mail: &MailMessage) -> Result<(), GrantError> {
    check_bounds(mail)?;
    mail.to.iter().try_for_each(|text| parse_address(text).map(drop))?;
    one_line(mail)
}

fn check_bounds(mail: &MailMessage) -> Result<(), GrantError> {
    match mail.to.len() {
        1..=RECIPIENTS_MOST => Ok(()),
        count => Err(GrantError::Invalid(format!(
            "the message has {count} recipients: give 1 to {RECIPIENTS_MOST}"
        ))),
    }
}

fn parse_address(text: &str) -> Result<Address, GrantError> {
    text.parse().map_err(|_| GrantError::Invalid(format!("`{}` is no address", one_line_text(text))))
}

fn one_line(mail: &MailMessage) -> Result<(), GrantError> {
    if mail.subject.len() > SUBJECT_BYTES || mail.subject.chars().any(char::is_control) {
        let message = format!("a subject is one line of at most {SUBJECT_BYTES} bytes");
        return Err(GrantError::Invalid(message));
    }
    Ok(())
}

/// A message that was checked and may be sent.
pub struct PreparedMail {
    to: Vec<Address>,
    bytes: Vec<u8>,
}

pub struct MailRelay {
    pub spec: MailSpec,
    guard: AddressGuard,
    from: Mailbox,
    /// PEM of authorities that are trusted in addition.
    ca: Option<Vec<u8>>,
    rate: Mutex<TokenBucket>,
    opened: Instant,
}

impl MailRelay {
    pub async fn open(spec: &MailSpec) -> Result<Self, SpecFault> {
        let wrong = |field: &str, message: String| (field.to_owned(), message);
        let from = spec.from.parse::<Mailbox>();
        let from = from.map_err(|error| wrong("from", format!("`{}` is no sender: {error}", spec.from)))?;
        let ca = match &spec.ca {
            Some(path) => {
                let place = std::path::PathBuf::from(path);
                let named_file = place.clone();
                let read = files::run_within_limit(&named_file, files::ANSWER, move || {
                    files::text(&place, CA_BYTES)
                });
                let text =
                    read.await.map_err(|error| wrong("ca", format!("`{path}` can't be read: {error}")))?;
                Some(text.into_bytes())
            }
            None => None,
        };
        connect::tls_parameters(&spec.server, ca.as_deref()).map_err(|why| wrong("ca", why.to_string()))?;
        if let Some(login) = &spec.login {
            let password = secrets::resolve_secret(&login.password_from).await;
            password.map_err(|error| wrong("login.passwordFrom", error.to_string()))?;
        }
        let guard = AddressGuard::new(&spec.name, spec.reachable_addresses());
        let rate = Mutex::new(TokenBucket::new(RateSpec { per_second: spec.rate, burst: None }));
        Ok(Self { spec: spec.clone(), guard, from, ca, rate, opened: Instant::now() })
    }

    pub fn prepare_mail(&self, mail: &MailMessage, now_ms: u64) -> Result<PreparedMail, GrantError> {
        let to = self.allowed_recipients(mail)?;
        let bytes = self.write(mail, &to, now_ms)?;
        Ok(PreparedMail { to, bytes })
    }

    /// Sends the message once to all recipients. Returns those that the server refused.
    pub async fn send(
        &self,
        PreparedMail { to, bytes }: PreparedMail,
    ) -> Result<Vec<MailRefusal>, UnansweredRequest> {
        let deadline = Instant::now() + self.spec.timeout.0;
        let late = || GrantError::Timeout("the mail server did not answer in time".into());
        // Until DATA is answered, no byte of the message has left, whatever the server does.
        let asked =
            timeout_at(deadline, self.address_mail(&to, &bytes)).await.unwrap_or_else(|_| Err(late()));
        let (mut connection, refusals) =
            asked.map_err(|error| UnansweredRequest { error, is_unsent: true })?;
        if refusals.len() < to.len() {
            // A server that answered has not accepted it; without an answer it is unknown.
            let in_doubt = |error: &lettre::transport::smtp::Error| UnansweredRequest {
                is_unsent: error.status().is_some(),
                error: refusal_of_answer("the message", error),
            };
            let handed = timeout_at(deadline, connection.message(&bytes)).await;
            let handed = handed.map_err(|_| UnansweredRequest { error: late(), is_unsent: false })?;
            handed.map_err(|error| in_doubt(&error))?;
        }
        // The message was accepted, whatever the server answers to QUIT.
        timeout_at(deadline, connection.quit()).await.ok();
        Ok(refusals)
    }

    fn allowed_recipients(&self, mail: &MailMessage) -> Result<Vec<Address>, GrantError> {
        check_bounds(mail)?;
        let parsed = |text: &String| {
            let address = parse_address(text)?;
            if !self.spec.allows_recipient(text) {
                let allowed = self.spec.recipients.join(", ");
                return Err(GrantError::Denied(format!(
                    "the mail server is for recipients of {allowed} alone"
                )));
            }
            Ok(address)
        };
        mail.to.iter().map(parsed).collect()
    }

    fn write(&self, mail: &MailMessage, to: &[Address], now_ms: u64) -> Result<Vec<u8>, GrantError> {
        one_line(mail)?;
        let too_large = || GrantError::TooLarge(format!("a message has at most {}", self.spec.size));
        let html = mail.html.as_ref().map_or(0, String::len);
        if (mail.text.len() + html) as u64 > self.spec.size.0 {
            return Err(too_large());
        }
        // The same id gives the same header, so that mail programs show a repeat once.
        let id = hex::encode(&digest(&SHA256, mail.id.as_bytes()).as_ref()[..16]);
        let mut builder = Message::builder()
            .from(self.from.clone())
            .subject(mail.subject.as_str())
            .date(UNIX_EPOCH + Duration::from_millis(now_ms))
            .message_id(Some(format!("<{id}@{}>", self.from.email.domain())));
        for address in to {
            builder = builder.to(Mailbox::new(None, address.clone()));
        }
        let built = match &mail.html {
            Some(html) => {
                builder.multipart(MultiPart::alternative_plain_html(mail.text.clone(), html.clone()))
            }
            None => builder.header(ContentType::TEXT_PLAIN).body(mail.text.clone()),
        };
        let bytes = built.map_err(|error| GrantError::Invalid(error.to_string()))?.formatted();
        if bytes.len() as u64 > self.spec.size.0 {
            return Err(too_large());
        }
        Ok(bytes)
    }

    /// Takes a token from the rate before a message is sent.
    pub fn take(&self) -> Result<(), GrantError> {
        let taken = self.rate.lock().unwrap_or_else(PoisonError::into_inner).take(self.opened.elapsed());
        // Rounded up, so that a plugin that waits this long finds a token.
        taken.map_err(|wait| GrantError::RateLimited { after_ms: wait.as_millis() as u64 + 1 })
    }

    /// Everything before the message itself.
    async fn address_mail(
        &self,
        to: &[Address],
        bytes: &[u8],
    ) -> Result<(AsyncSmtpConnection, Vec<MailRefusal>), GrantError> {
        let mut connection = self.connect_to_server().await?;
        self.log_in(&mut connection).await?;
        let mut options = match bytes.is_ascii() {
            true => Vec::new(),
            false => vec![MailParameter::Body(MailBodyParameter::EightBitMime)],
        };
        let is_plain = |address: &Address| AsRef::<str>::as_ref(address).is_ascii();
        let takes_all = connection.server_info().supports_feature(Extension::SmtpUtfEight);
        if takes_all && !to.iter().all(is_plain) {
            options.push(MailParameter::SmtpUtfEight);
        }
        let from = Some(self.from.email.clone());
        connection
            .command(Mail::new(from, options))
            .await
            .map_err(|error| refusal_of_answer("the sender", &error))?;
        let mut refusals = Vec::new();
        for address in to {
            if !takes_all && !is_plain(address) {
                refusals.push(MailRefusal {
                    recipient: address.to_string(),
                    is_permanent: true,
                    reason: "the mail server takes ASCII in addresses alone: it does not offer SMTPUTF8"
                        .to_owned(),
                });
                continue;
            }
            match connection.command(Rcpt::new(address.clone(), Vec::new())).await {
                Ok(_) => {}
                Err(error) if error.status().is_some() => refusals.push(MailRefusal {
                    recipient: address.to_string(),
                    is_permanent: error.is_permanent(),
                    reason: one_line_text(&error.to_string()),
                }),
                Err(error) => return Err(refusal_of_answer("a recipient", &error)),
            }
        }
        if refusals.len() < to.len() {
            connection.command(Data).await.map_err(|error| refusal_of_answer("the message", &error))?;
        }
        Ok((connection, refusals))
    }

    async fn connect_to_server(&self) -> Result<AsyncSmtpConnection, GrantError> {
        let found = self.guard.allowed_addresses(&self.spec.server).await.map_err(|error| {
            GrantError::Unavailable(match error {
                ResolveFailure::Forbidden(ForbiddenName(kind)) => format!(
                    "the mail server's name resolves to {kind}, which the mail server's `addresses` do not allow"
                ),
                ResolveFailure::Lookup(_) => "the mail server's name can't be resolved".into(),
            })
        })?;
        connect::connect_to_any(&self.spec, &found, self.ca.as_deref()).await.map_err(|why| {
            tracing::warn!(mail = self.spec.name, %why, "the mail server can't be used");
            GrantError::Unavailable("the mail server can't be reached, or not as its settings say".into())
        })
    }

    async fn log_in(&self, connection: &mut AsyncSmtpConnection) -> Result<(), GrantError> {
        let Some(login) = &self.spec.login else { return Ok(()) };
        let password = secrets::resolve_secret(&login.password_from).await.map_err(|error| {
            tracing::warn!(mail = self.spec.name, message = %error, "the password can't be read");
            GrantError::Unavailable("the password for the mail server can't be read".into())
        })?;
        let credentials = Credentials::new(login.user.clone(), password.expose_secret().to_owned());
        // The error may repeat what was sent, so it is not shown.
        connection.auth(&[Mechanism::Plain, Mechanism::Login], &credentials).await.map(drop).map_err(|_| {
            tracing::warn!(mail = self.spec.name, "the mail server refuses the login");
            GrantError::Unavailable("the mail server refuses the login".into())
        })
    }
}

/// Classifies the server's answer to a step. A permanent refusal concerns the plugin's message.
fn refusal_of_answer(what: &str, error: &lettre::transport::smtp::Error) -> GrantError {
    match error.status() {
        Some(_) if error.is_permanent() => GrantError::Invalid(format!(
            "the mail server refuses {what}: {}",
            one_line_text(&error.to_string())
        )),
        Some(_) => {
            let answer = one_line_text(&error.to_string());
            GrantError::Unavailable(format!("the mail server does not take {what} now: {answer}"))
        }
        None => GrantError::Unavailable("the connection to the mail server broke".into()),
    }
}

/// A text from the server: cut, and on one line.
fn one_line_text(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(WORDS).collect()
}

#[cfg(test)]
mod tests;
