//! Secrets of a document that its status quotes: a controller may write into a message what it was given.

use std::borrow::Cow;

use super::{MARK, Redactor, Withheld};
use crate::project::Scanner;
use crate::state::Status;

/// A shorter secret is not looked for: it would be found in ordinary words.
const SECRET_CHARS: usize = 6;
/// Secrets of one document that are looked for. Where there are more, reason and message are hidden as a whole.
const SECRETS: usize = 256;

/// The secrets of some documents, each with its digest, the longest first.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Secrets {
    found: Vec<(String, String)>,
}

impl Redactor {
    /// Adds the secrets of a document. `digest` as for [`Self::redact`].
    pub fn add_secrets<E: From<Withheld>>(
        &self,
        document: &[u8],
        digest: impl Fn(&[u8]) -> Result<String, E>,
        secrets: &mut Secrets,
    ) -> Result<(), E> {
        for one in self.find(document)? {
            let secret = one.secret(document);
            let quoted = [b"\"", secret, b"\""].concat();
            let text =
                Scanner::new(&quoted).text().ok().and_then(|text| Some(text.decode().ok()?.into_owned()));
            let Some(text) = text.filter(|text| text.trim().chars().count() >= SECRET_CHARS) else {
                continue;
            };
            if secrets.found.len() > SECRETS || secrets.found.iter().any(|(known, _)| known == text.trim()) {
                continue;
            }
            secrets.found.push((text.trim().to_owned(), digest(secret)?));
        }
        secrets.found.sort_by_key(|(text, _)| std::cmp::Reverse(text.len()));
        Ok(())
    }
}

impl Secrets {
    /// Of a document that can't be searched: whatever its status says is hidden.
    pub fn unknown() -> Self {
        Self { found: vec![Default::default(); SECRETS + 1] }
    }

    /// Whether the status says anything in which a secret could stand.
    pub fn may_stand_in(status: &Status) -> bool {
        status.reason.len() >= SECRET_CHARS || status.message.len() >= SECRET_CHARS
    }

    /// The status with a digest in the place of each secret; none where it quotes none.
    pub fn hidden_in(&self, status: &Status) -> Option<Status> {
        let (reason, message) = (self.without(&status.reason), self.without(&status.message));
        let changed = matches!(reason, Cow::Owned(_)) || matches!(message, Cow::Owned(_));
        changed.then(|| Status {
            reason: reason.into_owned(),
            message: message.into_owned(),
            ..status.clone()
        })
    }

    fn without<'t>(&self, text: &'t str) -> Cow<'t, str> {
        if self.found.len() > SECRETS && !text.is_empty() {
            return Cow::Owned("redacted: the object can't be searched for what this may quote".into());
        }
        let mut text = Cow::Borrowed(text);
        for (secret, digest) in &self.found {
            if text.contains(secret) {
                text = Cow::Owned(text.replace(secret, &format!("{MARK}{digest}")));
            }
        }
        text
    }
}
