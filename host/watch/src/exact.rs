//! Asks the server for old versions of one object, within the budget of one list. What to ask for
//! is decided by [`Walk`] and [`Search`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use bytes::Bytes;
use kubewitness_core::Version;
use kubewitness_core::project;
use kubewitness_core::state::ObjectRef;
use tokio::time::{Instant, sleep};

use crate::backoff::{Backoff, Dice};
use crate::discovery::Resource;
use crate::document::with_kind;
use crate::handle::count;
use crate::input::reason;
use crate::request::Failure;
use crate::source::Parts;
use crate::walkback::{Answer, Next, Search, Sought, Walk, Walked, between};

/// Tries of one exact list after the first, while its failure can pass.
const ASK_TRIES: u32 = 4;

const TOO_LONG: &str = "reading them back would have taken too long";

pub(crate) struct Exact {
    parts: Arc<Parts>,
    resource: Resource,
    requests: AtomicU32,
    /// The server can't be asked for old versions: said once, then not tried again in this list.
    refused: AtomicBool,
    since: Instant,
}

/// How an object that is no longer there came to its end.
pub(crate) struct Ended {
    /// Of its deletion, where it could be found.
    pub version: Option<Version>,
    /// Its last versions before that.
    pub walked: Walked,
}

impl Exact {
    pub fn new(parts: Arc<Parts>, resource: Resource) -> Self {
        let requests = AtomicU32::new(parts.tuning.walk.requests);
        Self { parts, resource, requests, refused: AtomicBool::new(false), since: Instant::now() }
    }

    /// The versions strictly between two of one object.
    pub async fn versions(&self, object: &ObjectRef, floor: &Version, newest: &Version) -> Walked {
        let budget = self.parts.tuning.walk.requests_per_object;
        let mut walk = Walk::new(&object.uid, floor.clone(), newest.clone(), budget);
        loop {
            let at = match walk.next() {
                Next::Ask(at) => at,
                Next::Done(walked) => return walked,
            };
            if !self.may_ask() {
                return walk.end(Some((reason::BUDGET, TOO_LONG)));
            }
            if let Some(walked) = walk.answered(self.ask(object, &at).await) {
                return walked;
            }
        }
    }

    /// The end of an object that was there at `floor` and no longer at `absent`.
    pub async fn end(&self, object: &ObjectRef, floor: &Version, absent: &Version) -> Ended {
        let lost = |reason, why: &str| Ended {
            version: None,
            walked: Walked { hole: between(floor, absent, reason, why), ..Walked::default() },
        };
        let Some(mut search) = Search::new(&object.uid, floor, absent) else {
            return lost(reason::UNREADABLE, "the server's versions have no order");
        };
        loop {
            let at = match search.next() {
                Sought::Ask(at) => at,
                Sought::Ended { version, last: Some((last, document)) } => {
                    let mut walked = self.versions(object, floor, &last).await;
                    walked.found.push(document);
                    walked.oldest.get_or_insert(last);
                    return Ended { version, walked };
                }
                Sought::Ended { version: Some(version), last: None } => {
                    return Ended { version: Some(version), walked: Walked::default() };
                }
                Sought::Ended { version: None, last: None } => {
                    return lost(
                        reason::COMPACTED,
                        "compaction has removed them, and the version of its deletion",
                    );
                }
            };
            if !self.may_ask() {
                return lost(reason::BUDGET, TOO_LONG);
            }
            let answer = self.ask(object, &at).await;
            if let Err(why) = search.answered(&at, answer) {
                return lost(reason::UNREADABLE, &why);
            }
        }
    }

    fn may_ask(&self) -> bool {
        self.since.elapsed() < self.parts.tuning.walk.time
            && self
                .requests
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1))
                .is_ok()
    }

    /// Who had this name at one version, and with what content.
    async fn ask(&self, object: &ObjectRef, at: &Version) -> Answer {
        if self.refused.load(Ordering::Relaxed) {
            return Answer::Refused("the server doesn't read old versions".to_string());
        }
        count(&self.parts.shared.counters.walk_back_requests, 1);
        let address = self
            .resource
            .collection_of(&object.namespace)
            .with("fieldSelector", &format!("metadata.name={}", object.name))
            .with("resourceVersion", at.as_str())
            .with("resourceVersionMatch", "Exact")
            .with("limit", "1");
        let answer = match self.patiently(address.as_str()).await {
            Ok(bytes) => self.answer(&bytes, object, at),
            Err(failure) if failure.is_expired() => Ok(Answer::Compacted),
            Err(failure) => Err(failure.to_string()),
        };
        answer.unwrap_or_else(|why| {
            if !self.refused.swap(true, Ordering::Relaxed) {
                tracing::warn!(source = %self.parts.spec.name, "missed versions can't be read back: {why}");
            }
            Answer::Refused(why)
        })
    }

    /// A server that is busy or away for a moment doesn't cost a version.
    async fn patiently(&self, address: &str) -> Result<Bytes, Failure> {
        let tuning = &self.parts.tuning;
        let (mut backoff, mut dice) =
            (Backoff::new(tuning.first_pause, tuning.longest_pause), Dice::new(tuning.seed));
        for _ in 0..ASK_TRIES {
            match self.parts.api.get(address).await {
                Err(failure) if failure.is_passing() => {
                    sleep(backoff.next(&mut dice, failure.retry_after())).await;
                }
                answered => return answered,
            }
        }
        self.parts.api.get(address).await
    }

    fn answer(&self, bytes: &Bytes, object: &ObjectRef, at: &Version) -> Result<Answer, String> {
        let page = project::list_page(bytes).map_err(|error| error.to_string())?;
        // A server that doesn't know the parameter answers with what is there now.
        if page.resource_version != at.as_str() {
            return Err(format!("an exact list at {at} was answered for {}", page.resource_version));
        }
        let Some(item) = page.items.first() else { return Ok(Answer::Nobody) };
        let envelope = project::envelope(item).map_err(|error| error.to_string())?;
        // One that doesn't know the selector answers with others.
        if envelope.name != *object.name || envelope.namespace != *object.namespace {
            return Err(format!("a list of `{}` was answered with `{}`", object.name, envelope.name));
        }
        let (api_version, kind) = (&self.parts.spec.api_version, &self.parts.spec.kind);
        Ok(Answer::Item {
            uid: envelope.uid.to_string(),
            version: Version::new(&envelope.resource_version),
            document: with_kind(bytes.slice_ref(item), &envelope, api_version, kind),
        })
    }
}
