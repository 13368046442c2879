//! A list, compared with what was witnessed. What differs is read back version by version before
//! the newer state goes on; what is no longer there has ended. All requests are here; which one
//! is next is decided by [`compare`] and [`Walk`].

use std::borrow::Borrow;
use std::collections::HashSet;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use bytes::Bytes;
use futures::{StreamExt, stream};
use kubewitness_core::Version;
use kubewitness_core::document::unpack;
use kubewitness_core::project::{self, Envelope};
use kubewitness_core::state::ObjectRef;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use crate::backoff::{Backoff, Dice};
use crate::course::ListReason;
use crate::discovery::Resource;
use crate::document::with_kind;
use crate::handle::count;
use crate::input::{Hole, Input, reason};
use crate::judge::{Compared, compare};
use crate::maker::reference;
use crate::reader::{Closed, sync};
use crate::request::Failure;
use crate::source::Parts;
use crate::walkback::{Answer, Next, Walk, Walked, after, between};

/// A paged list whose pages expire this often is asked for in one piece: the server is slower
/// than its own compaction.
const PAGED_TRIES: u32 = 3;

/// Tries of one exact list after the first, while its failure can pass.
const ASK_TRIES: u32 = 4;

/// How a list ended.
pub(crate) enum Listed {
    Complete,
    /// It showed an object older than it was witnessed; the list's version is where the server is.
    OtherHistory(Version),
    Failed(Failure),
}

/// Why one attempt ended early.
enum Broken {
    Closed,
    OtherHistory(Version),
    Failed(Failure),
    /// A page expired: all over again.
    Again,
}

impl From<Closed> for Broken {
    fn from(_: Closed) -> Self {
        Self::Closed
    }
}

impl From<Failure> for Broken {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

pub(crate) struct Relist {
    parts: Arc<Parts>,
    inputs: mpsc::Sender<Input>,
    resource: Resource,
    reason: ListReason,
    /// Everything up to here was witnessed.
    baseline: Option<Version>,
    requests: AtomicU32,
    /// The server can't be asked for old versions: said once, then not tried again.
    refused: AtomicBool,
    since: Instant,
}

/// An object that was there before the list, found by its uid.
struct Unseen(Arc<ObjectRef>);

impl Borrow<str> for Unseen {
    fn borrow(&self) -> &str {
        &self.0.uid
    }
}

impl PartialEq for Unseen {
    fn eq(&self, other: &Self) -> bool {
        self.0.uid == other.0.uid
    }
}

impl Eq for Unseen {}

impl Hash for Unseen {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // As a `str` does, so that it can be looked up by one.
        self.0.uid.as_str().hash(state);
    }
}

/// A listed object of which versions may be missing below.
struct Moved {
    object: ObjectRef,
    floor: Version,
    version: Version,
    document: Bytes,
}

/// What an attempt goes through.
struct Attempt {
    unseen: HashSet<Unseen>,
    /// An item that could not be read may be any of the unseen.
    unread: u32,
    version: Option<Version>,
}

impl Relist {
    pub fn new(
        parts: Arc<Parts>,
        inputs: mpsc::Sender<Input>,
        resource: Resource,
        reason: &ListReason,
        baseline: Option<Version>,
    ) -> Self {
        let (requests, refused) = (AtomicU32::new(parts.tuning.walk.requests), AtomicBool::new(false));
        Self {
            parts,
            inputs,
            resource,
            reason: reason.clone(),
            baseline,
            requests,
            refused,
            since: Instant::now(),
        }
    }

    pub async fn run(self) -> Result<Listed, Closed> {
        let mut tries = 0;
        loop {
            count(&self.parts.shared.counters.lists, 1);
            tries += 1;
            match self.attempt(tries < PAGED_TRIES).await {
                Ok(()) => return Ok(Listed::Complete),
                Err(Broken::Again) => {
                    tracing::warn!(source = %self.parts.spec.name, tries, "a page of the list expired: listing again");
                    sync(&self.inputs).await?;
                }
                Err(Broken::Closed) => return Err(Closed),
                Err(Broken::OtherHistory(server)) => return Ok(Listed::OtherHistory(server)),
                Err(Broken::Failed(failure)) => return Ok(Listed::Failed(failure)),
            }
        }
    }

    /// One list from its first page to its last. What it finds goes on at once; the checkpoint
    /// only with the whole of it.
    async fn attempt(&self, paged: bool) -> Result<(), Broken> {
        let unseen = self.parts.shared.read().all().map(|held| Unseen(Arc::clone(&held.object))).collect();
        let mut attempt = Attempt { unseen, unread: 0, version: None };
        let mut token = String::new();
        loop {
            let mut address = self.resource.collection();
            if paged {
                address = address.with("limit", &self.parts.tuning.page.to_string());
            }
            if !token.is_empty() {
                address = address.with("continue", &token);
            }
            let bytes = match self.parts.api.get(address.as_str()).await {
                Ok(bytes) => bytes,
                Err(failure) if failure.is_expired() && !token.is_empty() => return Err(Broken::Again),
                Err(failure) => return Err(failure.into()),
            };
            let page = project::list_page(&bytes).map_err(|error| Failure::Answer(error.to_string()))?;
            // A watch from the first page's version misses nothing, whatever the later ones say.
            let version = attempt.version.get_or_insert_with(|| Version::new(&page.resource_version)).clone();
            self.page(&bytes, &page.items, &version, &mut attempt).await?;
            if page.continue_token.is_empty() {
                return self.complete(version, attempt).await;
            }
            token = page.continue_token.to_string();
        }
    }

    async fn page(
        &self,
        bytes: &Bytes,
        items: &[&[u8]],
        at: &Version,
        attempt: &mut Attempt,
    ) -> Result<(), Broken> {
        let mut moved = Vec::new();
        for item in items {
            let document = bytes.slice_ref(item);
            let Ok(envelope) = project::envelope(item) else {
                attempt.unread += 1;
                self.send(Input::Item { document, anew: false }).await?;
                continue;
            };
            attempt.unseen.remove(envelope.uid.as_ref());
            let document =
                with_kind(document, &envelope, &self.parts.spec.api_version, &self.parts.spec.kind);
            if let Some(step) = self.item(&envelope, document, at)? {
                match step {
                    Found::Send(input) => self.send(input).await?,
                    Found::Walk(object) => moved.push(object),
                }
            }
        }
        let concurrency = self.parts.tuning.walk.concurrency.max(1);
        let mut walks =
            stream::iter(moved.into_iter().map(|object| self.walk(object))).buffer_unordered(concurrency);
        while let Some((object, walked)) = walks.next().await {
            self.walked(object, walked).await?;
        }
        Ok(())
    }

    /// What one listed object means; `None` where it was witnessed as it is.
    fn item(&self, envelope: &Envelope<'_>, document: Bytes, at: &Version) -> Result<Option<Found>, Broken> {
        let version = Version::new(&envelope.resource_version);
        let cache = self.parts.shared.read();
        let known = cache.by_uid(&envelope.uid);
        if self.reason == ListReason::Replaced {
            // The histories may have given one version to two contents; only the bytes tell.
            let same = known.is_some_and(|known| {
                known.resource_version == version && unpack(&known.packed).is_ok_and(|held| held == document)
            });
            return Ok((!same).then_some(Found::Send(Input::Item { document, anew: true })));
        }
        let floor = match compare(&version, known.map(|known| &known.resource_version)) {
            Compared::Same => return Ok(None),
            Compared::Behind => return Err(Broken::OtherHistory(at.clone())),
            Compared::Moved => known.map(|known| known.resource_version.clone()),
            // Before the first list there is no story to be told whole.
            Compared::New => self.baseline.clone().filter(|_| self.in_scope(envelope)),
        };
        Ok(Some(match floor {
            Some(floor) => {
                Found::Walk(Moved { object: reference(&self.parts, envelope), floor, version, document })
            }
            None => Found::Send(Input::Item { document, anew: false }),
        }))
    }

    fn in_scope(&self, envelope: &Envelope<'_>) -> bool {
        let wanted = &self.parts.spec.match_labels;
        wanted.iter().all(|(key, value)| envelope.labels.iter().any(|(k, v)| *k == **key && *v == **value))
    }

    // ---- walking back --------------------------------------------------------------------

    async fn walk(&self, moved: Moved) -> (Moved, Walked) {
        let budget = self.parts.tuning.walk.requests_per_object;
        let mut walk = Walk::new(&moved.object.uid, self.floor(&moved.floor), moved.version.clone(), budget);
        let walked = loop {
            let at = match walk.next() {
                Next::Ask(at) => at,
                Next::Done(walked) => break walked,
            };
            if !self.may_ask() {
                break walk.end(Some((reason::BUDGET, "reading them back would have taken too long")));
            }
            if let Some(walked) = walk.answered(self.ask(&moved.object, &at).await) {
                break walked;
            }
        };
        (moved, walked)
    }

    /// Below what nothing of an object is missing: its witnessed version, or the baseline, up to
    /// which the watch was complete.
    fn floor(&self, witnessed: &Version) -> Version {
        match &self.baseline {
            Some(baseline) if baseline.is_newer_than(witnessed) => baseline.clone(),
            _ => witnessed.clone(),
        }
    }

    fn may_ask(&self) -> bool {
        self.since.elapsed() < self.parts.tuning.walk.time
            && self
                .requests
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1))
                .is_ok()
    }

    /// The object of this name as it was at one version.
    async fn ask(&self, object: &ObjectRef, at: &Version) -> Answer {
        if self.refused.load(Ordering::Relaxed) {
            return Answer::Refused("the server doesn't read old versions".to_string());
        }
        count(&self.parts.shared.counters.walk_backs, 1);
        let address = self
            .resource
            .collection_of(&object.namespace)
            .with("fieldSelector", &format!("metadata.name={}", object.name))
            .with("resourceVersion", at.as_str())
            .with("resourceVersionMatch", "Exact")
            .with("limit", "1");
        let answer = match self.patiently(address.as_str()).await {
            Ok(bytes) => self.exact(&bytes, object, at),
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
                    sleep(backoff.next(&mut dice, failure.retry_after())).await
                }
                answered => return answered,
            }
        }
        self.parts.api.get(address).await
    }

    fn exact(&self, bytes: &Bytes, object: &ObjectRef, at: &Version) -> Result<Answer, String> {
        let page = project::list_page(bytes).map_err(|error| error.to_string())?;
        // A server that doesn't know the parameter answers with what is there now.
        if page.resource_version != at.as_str() {
            return Err(format!("an exact list at {at} was answered for {}", page.resource_version));
        }
        let items = page.items.iter().map(|item| (item, project::envelope(item)));
        for (item, envelope) in items {
            let envelope = envelope.map_err(|error| error.to_string())?;
            if envelope.name != *object.name || envelope.namespace != *object.namespace {
                continue;
            }
            let document = with_kind(
                bytes.slice_ref(item),
                &envelope,
                &self.parts.spec.api_version,
                &self.parts.spec.kind,
            );
            return Ok(Answer::Item {
                uid: envelope.uid.to_string(),
                version: Version::new(&envelope.resource_version),
                document,
            });
        }
        Ok(Answer::Nobody)
    }

    async fn walked(&self, moved: Moved, walked: Walked) -> Result<(), Closed> {
        count(&self.parts.shared.counters.walked, walked.found.len() as u64);
        // Another uid had the name: what came of it between its last version and its end is lost.
        let rival = {
            let cache = self.parts.shared.read();
            let rival = cache.by_name(&moved.object.namespace, &moved.object.name);
            rival.filter(|rival| rival.object.uid != moved.object.uid).cloned()
        };
        if let Some(rival) = rival {
            let why = "it was deleted, and its name given to another object, while nothing was watched";
            let hole = between(&self.floor(&rival.resource_version), &moved.version, reason::EXPIRED, why);
            self.hole(rival.object, hole).await?;
        }
        self.hole(Arc::new(moved.object), walked.hole).await?;
        for document in walked.found {
            self.send(Input::Item { document, anew: false }).await?;
        }
        self.send(Input::Item { document: moved.document, anew: false }).await
    }

    // ---- the end of a list ---------------------------------------------------------------

    async fn complete(&self, version: Version, attempt: Attempt) -> Result<(), Broken> {
        // Rivals have ended by the names that others took; the writer knows them by then.
        sync(&self.inputs).await?;
        for Unseen(object) in attempt.unseen {
            let Some(known) =
                self.parts.shared.read().by_uid(&object.uid).map(|held| held.resource_version.clone())
            else {
                continue;
            };
            if attempt.unread > 0 && !self.has_ended(&object).await? {
                continue;
            }
            if self.reason == ListReason::Expired {
                let why = "it was deleted while nothing was watched";
                let end = Version::new(&after(&version));
                self.hole(Arc::clone(&object), between(&self.floor(&known), &end, reason::EXPIRED, why))
                    .await?;
            }
            self.send(Input::Vanished { object, last: None, version: None }).await?;
        }
        if let Some(hole) = self.source_hole(&version) {
            self.send(Input::SourceHole(hole)).await?;
        }
        self.send(Input::Listed(version)).await?;
        Ok(())
    }

    /// Asked for by name, because the list had items that could not be read.
    async fn has_ended(&self, object: &ObjectRef) -> Result<bool, Failure> {
        let collection = self.resource.collection_of(&object.namespace);
        match self.parts.api.get(&format!("{}/{}", collection.as_str(), object.name)).await {
            Ok(bytes) => Ok(project::envelope(&bytes).is_ok_and(|found| found.uid != *object.uid)),
            Err(failure) if failure.code() == Some(404) => Ok(true),
            Err(failure) => Err(failure),
        }
    }

    fn source_hole(&self, listed: &Version) -> Option<Hole> {
        match (&self.reason, &self.baseline) {
            (ListReason::First, _) | (ListReason::Expired, None) => None,
            (ListReason::Expired, Some(baseline)) => between(
                baseline,
                &Version::new(&after(listed)),
                reason::EXPIRED,
                "of objects that were created and deleted meanwhile nothing can be known",
            ),
            (ListReason::Replaced, _) => Some(Hole {
                after: String::new(),
                before: after(listed),
                reason: reason::REPLACED,
                message: format!(
                    "the server's history was replaced: its versions up to {listed} were not watched, and \
                     what the old history still had to say is lost"
                ),
            }),
        }
    }

    async fn hole(&self, object: Arc<ObjectRef>, hole: Option<Hole>) -> Result<(), Closed> {
        match hole {
            Some(hole) => self.send(Input::ObjectHole(object, hole)).await,
            None => Ok(()),
        }
    }

    async fn send(&self, input: Input) -> Result<(), Closed> {
        self.inputs.send(input).await.map_err(|_| Closed)
    }
}

/// What comes of a listed object.
enum Found {
    Send(Input),
    Walk(Moved),
}
