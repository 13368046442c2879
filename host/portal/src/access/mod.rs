//! Determines who sends a request and what they may see. The API server decides, and its answers are cached
//! for seconds.
//!
//! Separate accounts and roles were rejected: they would drift from those of the cluster. So the portal has
//! no rights to give. It asks [`AccessReviewer`] about the person, and without an answer it shows nothing.

pub(crate) mod ages;
mod answers;
pub(crate) mod codes;
pub(crate) mod cursors;
mod ended_sessions;
pub(crate) mod gate;
mod known_tokens;
mod proxy;
mod reviews;
mod session;
mod viewer;

use std::fmt;
use std::sync::Arc;

use ring::digest::{SHA256, digest};
use thiserror::Error;

pub use ended_sessions::EndedSessions;
pub use reviews::{AccessControl, AnswerTimes};
pub(crate) use reviews::{KnownPerson, ReviewUnanswered};
pub(crate) use session::PortalTransport;
pub use viewer::current_party;
pub(crate) use viewer::{GuardedAct, PortalViewer};

/// The log target for records of people's actions.
pub const AUDIT: &str = "kubewitness::audit";
/// The length of a session key.
pub const SESSION_KEY_BYTES: usize = 32;
/// The tokens of some providers list every group of a person. A longer text is no token.
const TOKEN_BYTES: usize = 16 * 1024;
/// A shorter secret could be guessed.
const LEAST_SECRET_BYTES: usize = 32;

type PersonDigest = [u8; 32];

fn sha256(bytes: &[u8]) -> PersonDigest {
    let mut found = PersonDigest::default();
    found.copy_from_slice(digest(&SHA256, bytes).as_ref());
    found
}

/// The party whose share of bounded resources a user consumes. The service accounts of a namespace are one
/// party, because a person who may create one may create many.
pub(crate) fn party_of(user: &str) -> &str {
    match user.starts_with("system:serviceaccount:") {
        true => user.rsplit_once(':').map_or(user, |(namespace, _)| namespace),
        false => user,
    }
}

/// Who may use the portal.
#[derive(Clone, Default)]
pub enum PortalAccess {
    /// Everybody who can reach the address sees and does everything. Only for an address that nobody else can
    /// reach.
    #[default]
    None,
    /// People sign in with a token of Kubernetes. They see and do what Kubernetes allows them.
    Kubernetes(Arc<AccessControl>),
}

impl PortalAccess {
    /// The sessions that people have ended, if they sign in at all.
    pub fn ended_sessions(&self) -> Option<EndedSessions> {
        match self {
            Self::None => None,
            Self::Kubernetes(control) => Some(control.options.ended.clone()),
        }
    }
}

/// The choices of the operator.
#[derive(Clone)]
pub struct AccessOptions {
    /// Encrypts the cookie with a person's token. Replicas with the same key accept each other's sessions,
    /// and a restart keeps them. It must be random.
    pub session_key: [u8; SESSION_KEY_BYTES],
    /// The sessions that people ended early.
    pub ended: EndedSessions,
    /// How long the API server's answers about people are valid.
    pub times: AnswerTimes,
    /// Whether each document that a person reads is logged, with the target [`AUDIT`].
    pub log_reads: bool,
    /// A proxy that signs people in. `None`: no proxy is trusted.
    pub trusted_proxy: Option<TrustedProxy>,
}

/// A proxy that sends the person's name in `X-Remote-User`.
#[derive(Clone)]
pub struct TrustedProxy {
    pub secret: ProxySecret,
    /// Whether it also sends the person's groups in `X-Remote-Group`. Many proxies let a client's own header
    /// pass.
    pub names_groups: bool,
}

/// The secret of a proxy, which it sends as `X-Kubewitness-Proxy-Secret`.
#[derive(Clone)]
pub struct ProxySecret(Arc<[u8]>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "the proxy's secret has {0} bytes: make a random one of at least {LEAST_SECRET_BYTES}, as \
     `openssl rand -hex 32` does"
)]
pub struct WeakSecret(usize);

impl ProxySecret {
    /// White space at its ends is not part of it: files end with a newline.
    pub fn new(text: &str) -> Result<Self, WeakSecret> {
        let text = text.trim();
        if text.len() < LEAST_SECRET_BYTES {
            return Err(WeakSecret(text.len()));
        }
        Ok(Self(text.as_bytes().into()))
    }
}

impl fmt::Debug for ProxySecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProxySecret(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::party_of;

    #[test]
    fn the_service_accounts_of_a_namespace_are_one_party() {
        let robots = ["a", "b"].map(|name| format!("system:serviceaccount:team:{name}"));
        assert_eq!(party_of(&robots[0]), party_of(&robots[1]));
        assert_ne!(party_of(&robots[0]), party_of("system:serviceaccount:other:a"));
        assert_eq!(party_of("ann:a"), "ann:a");
    }
}
