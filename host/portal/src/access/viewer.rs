//! The viewer: the person who sends a request, as far as a handler needs to know.

use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use kubewitness_core::ObjectRef;
use kubewitness_core::config::Credentials;
use kubewitness_core::ports::{AccessAttempt, ActingIdentity, LiveNamespace};
use kubewitness_core::views::MuteView;

use super::AUDIT;
use super::reviews::{AccessControl, KnownPerson, ReviewUnanswered};
use super::session::PortalSession;
use crate::answer::Problem;
use axum::http::StatusCode;

/// The group of the rights that Kubewitness defines beside reading objects.
pub(crate) const GROUP: &str = "kubewitness.dev";

#[derive(Clone)]
pub(crate) enum PortalViewer {
    /// People are not distinguished, so everybody sees and does everything.
    Everybody,
    Person(Arc<ViewerPerson>),
    /// The gate has not seen the request: it may see nothing.
    Nobody,
}

pub(crate) struct ViewerPerson {
    pub(super) control: Arc<AccessControl>,
    pub(super) known: Arc<KnownPerson>,
    pub(super) proof: IdentityProof,
}

/// How somebody was identified. It is checked again while a stream is open.
pub(super) enum IdentityProof {
    Token(String),
    Session(PortalSession),
    /// A trusted proxy named the person.
    Proxy,
}

/// An action that one of Kubewitness' own rights guards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GuardedAct {
    SeeStatus,
    /// See the configuration of a plugin.
    SeePlugin,
    Replay,
    Drop,
    Pause,
    Resume,
    /// Mute and unmute.
    Mute,
}

impl GuardedAct {
    /// The verb and the resource in RBAC rules.
    fn verb_and_resource(self) -> (&'static str, &'static str) {
        match self {
            Self::SeeStatus => ("get", "status"),
            Self::SeePlugin => ("get", "plugins"),
            Self::Replay => ("replay", "plugins"),
            Self::Drop => ("drop", "plugins"),
            Self::Pause => ("pause", "plugins"),
            Self::Resume => ("resume", "plugins"),
            Self::Mute => ("mute", "notifications"),
        }
    }

    fn as_attempt(self, namespace: &str, name: &str) -> AccessAttempt {
        let (verb, resource) = self.verb_and_resource();
        AccessAttempt {
            verb: verb.into(),
            group: GROUP.into(),
            resource: resource.into(),
            namespace: namespace.into(),
            name: name.into(),
        }
    }
}

impl PortalViewer {
    pub(crate) fn name(&self) -> Option<&str> {
        match self {
            Self::Everybody | Self::Nobody => None,
            Self::Person(person) => Some(&person.known.person.user),
        }
    }

    /// The party whose shares they use.
    pub(crate) fn party_of_shares(&self) -> Option<&str> {
        match self {
            Self::Everybody | Self::Nobody => None,
            Self::Person(person) => Some(&person.known.party),
        }
    }

    /// The token that the person sent, for which they may get a one-time login. `None` for a session or a
    /// proxy.
    pub(crate) fn sent_token(&self) -> Option<(&AccessControl, &str)> {
        match self {
            Self::Person(person) => match &person.proof {
                IdentityProof::Token(token) => Some((&*person.control, token.as_str())),
                IdentityProof::Session(_) | IdentityProof::Proxy => None,
            },
            Self::Everybody | Self::Nobody => None,
        }
    }

    /// The identity for calls to the API server with these credentials. The error says why there is none, and
    /// what to do.
    pub(crate) fn acting_identity(&self, credentials: Credentials) -> Result<ActingIdentity<'_>, Problem> {
        let (message, hint) = match (self, credentials) {
            (Self::Everybody, Credentials::Controller) => return Ok(ActingIdentity::Controller),
            (Self::Person(person), Credentials::Impersonation) => {
                return Ok(ActingIdentity::Person(&person.known.person));
            }
            (Self::Person(person), Credentials::Token) => match &person.proof {
                IdentityProof::Token(token) => return Ok(ActingIdentity::Token(token)),
                IdentityProof::Session(session) => return Ok(ActingIdentity::Token(&session.token)),
                IdentityProof::Proxy => (
                    "A proxy has signed you in, and Jobs are created with people's own tokens here.",
                    "Send your token to the API, or ask an operator for `submit.credentials: impersonation`.",
                ),
            },
            (Self::Everybody, _) => (
                "Nobody signs in here, so there is nobody in whose name a Job could be created.",
                "Run with `--auth kubernetes`, or set `submit.credentials: controller` in the host's settings.",
            ),
            (Self::Person(_), Credentials::Controller) => (
                "Jobs are created with the controller's own rights here, which are not for people who sign in.",
                "An operator sets `submit.credentials` to `token` or `impersonation` in the host's settings.",
            ),
            (Self::Nobody, _) => ("The request names no person.", "Sign in first."),
        };
        Err(Problem::new(StatusCode::FORBIDDEN, message, hint))
    }

    /// Whether the API server still knows them, and their session is valid.
    pub(crate) async fn is_still_known(&self) -> Result<bool, ReviewUnanswered> {
        let Self::Person(person) = self else { return Ok(matches!(self, Self::Everybody)) };
        let known = match &person.proof {
            IdentityProof::Proxy => return Ok(true),
            IdentityProof::Token(token) => person.control.person_of_token(token).await?,
            IdentityProof::Session(session) if !person.control.is_session_valid(session) => return Ok(false),
            IdentityProof::Session(session) => person.control.person_of(session).await?,
        };
        Ok(known.is_some_and(|known| known.person == person.known.person))
    }

    /// Returns once their session has been ended. Never returns for a person without a session.
    pub(crate) async fn signed_out(&self) {
        match self {
            Self::Person(person) => match &person.proof {
                IdentityProof::Session(session) => person.control.await_end(session).await,
                IdentityProof::Token(_) | IdentityProof::Proxy => std::future::pending().await,
            },
            Self::Everybody | Self::Nobody => std::future::pending().await,
        }
    }

    /// Whether Kubernetes allows the viewer an action.
    pub(crate) async fn allows_attempt(&self, attempt: &AccessAttempt) -> Result<bool, ReviewUnanswered> {
        match self {
            Self::Everybody => Ok(true),
            Self::Nobody => Ok(false),
            Self::Person(person) => person.control.allows_attempt(&person.known, attempt).await,
        }
    }

    /// The creation time of the namespace in which the viewer may do this; `None` if they may not, or it does
    /// not exist.
    pub(crate) async fn namespace_since_ms(
        &self,
        attempt: &AccessAttempt,
    ) -> Result<Option<u64>, ReviewUnanswered> {
        let Self::Person(person) = self else { return Ok(None) };
        let namespace = person.control.namespace_of(&person.known, attempt).await?;
        Ok(namespace.map(|namespace| namespace.created_ms))
    }

    pub(crate) async fn may_submit_to(&self, namespace: &str) -> Result<bool, ReviewUnanswered> {
        let attempt = AccessAttempt {
            verb: "create".into(),
            group: "batch".into(),
            resource: "jobs".into(),
            namespace: namespace.into(),
            name: String::new(),
        };
        self.allows_attempt(&attempt).await
    }

    /// The namespace in which the viewer may mute; `None` if they may not, it does not exist, or people are
    /// not distinguished.
    pub(crate) async fn mutes_in(&self, namespace: &str) -> Result<Option<LiveNamespace>, ReviewUnanswered> {
        let Self::Person(person) = self else { return Ok(None) };
        person.control.namespace_of(&person.known, &GuardedAct::Mute.as_attempt(namespace, "")).await
    }

    /// Whether a mute belongs to an existing namespace, and not to a former one with its name.
    pub(crate) async fn is_in_force(&self, mute: &MuteView) -> Result<bool, ReviewUnanswered> {
        let Self::Person(person) = self else { return Ok(matches!(self, Self::Everybody)) };
        if mute.namespace.is_empty() {
            return Ok(true);
        }
        let live = person.control.live_namespace(&person.known, &mute.namespace).await?;
        Ok(live.is_some_and(|live| mute.is_of(&live.uid, live.created_ms)))
    }

    /// `name` is the name of a plugin, or empty.
    pub(crate) async fn has_right(&self, act: GuardedAct, name: &str) -> Result<bool, ReviewUnanswered> {
        self.allows_attempt(&act.as_attempt("", name)).await
    }

    /// An empty `namespace` means every namespace.
    pub(crate) async fn may_in(&self, act: GuardedAct, namespace: &str) -> Result<bool, ReviewUnanswered> {
        self.allows_attempt(&act.as_attempt(namespace, "")).await
    }

    /// Refuses an action that the viewer may not do, and names the right that it needs.
    pub(crate) async fn require_right(&self, act: GuardedAct, name: &str) -> Result<(), Problem> {
        if self.has_right(act, name).await? {
            return Ok(());
        }
        let (verb, resource) = act.verb_and_resource();
        let who = self.name().unwrap_or("nobody");
        let (which, named) = match name {
            "" => (String::new(), String::new()),
            name => (format!(" of the plugin `{name}`"), format!(" of the name `{name}`")),
        };
        let message = match act {
            GuardedAct::SeeStatus => format!("{who} may not see how the controller works."),
            GuardedAct::SeePlugin => format!("{who} may not see the configuration{which}."),
            GuardedAct::Replay => format!("{who} may not replay dead letters{which}."),
            GuardedAct::Drop => format!("{who} may not drop dead letters{which}."),
            GuardedAct::Pause => format!("{who} may not pause the plugin `{name}`."),
            GuardedAct::Resume => format!("{who} may not resume the plugin `{name}`."),
            GuardedAct::Mute => format!("{who} may not mute everything."),
        };
        let hint =
            format!("It takes a ClusterRole with the verb `{verb}` on `{resource}` in `{GROUP}`{named}.");
        Err(Problem::new(StatusCode::FORBIDDEN, message, hint))
    }

    /// Refuses viewers who may not mute there, and names the right that they need.
    pub(crate) async fn must_mute_in(&self, namespace: &str) -> Result<(), Problem> {
        if namespace.is_empty() {
            return self.require_right(GuardedAct::Mute, "").await;
        }
        if self.may_in(GuardedAct::Mute, namespace).await? {
            return Ok(());
        }
        let who = self.name().unwrap_or("nobody");
        let message = format!("{who} may not mute anything in the namespace `{namespace}`.");
        let hint = format!(
            "It takes a Role in the namespace, or a ClusterRole, with the verb `mute` on `notifications` in `{GROUP}`."
        );
        Err(Problem::new(StatusCode::FORBIDDEN, message, hint))
    }

    /// Records who read which document, if an operator wants that. Its content is never recorded.
    pub(crate) fn log_read(&self, object: &ObjectRef, seq: u64) {
        let Some(person) = self.name_for_log() else { return };
        let ObjectRef { group, kind, namespace, name, uid, .. } = object;
        let object = format!("{group}/{kind} {namespace}/{name} {uid}");
        tracing::info!(
            target: AUDIT,
            person, object, seq,
            "a document was read"
        );
    }

    /// The same for the bytes of a poison message, which are not redacted.
    pub(crate) fn log_poison_read(&self, source: &str, number: u64) {
        let Some(person) = self.name_for_log() else { return };
        tracing::info!(target: AUDIT, person, source, number, "a poison message was read");
    }

    fn name_for_log(&self) -> Option<&str> {
        let Self::Person(person) = self else { return None };
        person.control.logs_reads().then_some(&*person.known.person.user)
    }
}

tokio::task_local! {
    /// The party whose request is answered.
    static ASKING: Arc<str>;
}

/// The party of the current request; each has a share of slow work. It is a person, or the service accounts
/// of a namespace. `None` if people are not distinguished.
pub fn current_party() -> Option<Arc<str>> {
    ASKING.try_with(Arc::clone).ok()
}

impl PortalViewer {
    /// Runs the work in the viewer's name, for [`current_party`].
    pub(crate) async fn run_as_party<F: Future>(&self, work: F) -> F::Output {
        match self {
            Self::Person(person) => ASKING.scope(person.known.party.clone(), work).await,
            Self::Everybody | Self::Nobody => work.await,
        }
    }
}

impl<S: Sync> FromRequestParts<S> for PortalViewer {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(parts.extensions.get().cloned().unwrap_or(Self::Nobody))
    }
}
