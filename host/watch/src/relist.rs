//! A list, compared with what was witnessed. What differs is read back version by version before
//! the newer state goes on; what is no longer there has ended.

use std::borrow::Borrow;
use std::collections::HashSet;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use futures::{StreamExt, stream};
use kubewitness_core::Version;
use kubewitness_core::document::unpack;
use kubewitness_core::project::{self, Envelope};
use kubewitness_core::state::ObjectRef;
use tokio::sync::mpsc;

use crate::course::ListReason;
use crate::discovery::Resource;
use crate::document::with_kind;
use crate::exact::{Ended, Exact};
use crate::handle::count;
use crate::input::{Hole, Input, reason};
use crate::judge::{Compared, compare};
use crate::maker::{check, matches, reference};
use crate::reader::{Closed, sync};
use crate::request::Failure;
use crate::source::Parts;
use crate::walkback::{Walked, after, between};

/// A paged list whose pages expire this often is asked for in one piece: the server is slower
/// than its own compaction.
const PAGED_TRIES: u32 = 3;

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
    exact: Exact,
    reason: ListReason,
    /// Everything up to here was witnessed.
    baseline: Option<Version>,
    /// Up to here a hole of the source is recorded.
    holed: Mutex<Option<Version>>,
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

/// What comes of a listed object.
enum Found {
    Send(Input),
    ReadBack(Moved),
}

/// A listed object of which versions may be missing below.
struct Moved {
    object: ObjectRef,
    floor: Version,
    version: Version,
    document: Bytes,
    /// Another uid that had its name, with the version it was witnessed at.
    rival: Option<(Arc<ObjectRef>, Version)>,
}

/// A moved object with what was missed.
struct ReadBack {
    moved: Moved,
    walked: Walked,
    rival_ended: Option<(Arc<ObjectRef>, Ended)>,
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
        let exact = Exact::new(Arc::clone(&parts), resource.clone());
        let holed = Mutex::new(baseline.clone());
        Self { parts, inputs, resource, exact, reason: reason.clone(), baseline, holed }
    }

    pub async fn run(self) -> Result<Listed, Closed> {
        let mut tries = 0;
        loop {
            self.count_list();
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

    fn count_list(&self) {
        let counters = &self.parts.shared.counters;
        let counter = match self.reason {
            ListReason::First => &counters.lists_first,
            ListReason::Expired => &counters.lists_expired,
            ListReason::Replaced => &counters.lists_replaced,
        };
        count(counter, 1);
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
            let version = match &attempt.version {
                Some(first) => first.clone(),
                None => self.first_page(&mut attempt, Version::new(&page.resource_version)).await?,
            };
            self.page(&bytes, &page.items, &version, &mut attempt).await?;
            if page.continue_token.is_empty() {
                return self.complete(version, attempt).await;
            }
            token = page.continue_token.to_string();
        }
    }

    /// A watch from the first page's version misses nothing, whatever the later ones say. The
    /// source's own hole is recorded before anything that is beyond it: should the process die
    /// now and the old version be watched after all, what is then refused as old lies in it.
    async fn first_page(&self, attempt: &mut Attempt, version: Version) -> Result<Version, Closed> {
        if let Some(hole) = self.source_hole(&version) {
            self.send(Input::SourceHole(hole)).await?;
        }
        *self.holed.lock().unwrap_or_else(PoisonError::into_inner) = Some(version.clone());
        Ok(attempt.version.insert(version).clone())
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
            let readable =
                project::envelope(item).ok().filter(|envelope| check(&self.parts, envelope).is_ok());
            let Some(envelope) = readable else {
                attempt.unread += 1;
                self.send(Input::Item { document, anew: false }).await?;
                continue;
            };
            attempt.unseen.remove(envelope.uid.as_ref());
            let document =
                with_kind(document, &envelope, &self.parts.spec.api_version, &self.parts.spec.kind);
            match self.item(&envelope, document, at)? {
                Some(Found::Send(input)) => self.send(input).await?,
                Some(Found::ReadBack(object)) => moved.push(object),
                None => {}
            }
        }
        let reading = moved.into_iter().map(|object| self.read_back(object));
        let mut read = stream::iter(reading).buffer_unordered(self.concurrency());
        while let Some(read) = read.next().await {
            self.was_read_back(read).await?;
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
        let rival = cache
            .by_name(&envelope.namespace, &envelope.name)
            .filter(|held| *held.object.uid != *envelope.uid)
            .map(|held| (Arc::clone(&held.object), held.resource_version.clone()));
        let floor = match compare(&version, known.map(|known| &known.resource_version)) {
            Compared::Same => return Ok(None),
            Compared::Behind => return Err(Broken::OtherHistory(at.clone())),
            Compared::Moved => known.map(|known| self.floor(&known.resource_version)),
            Compared::New if !matches(&self.parts, envelope) && rival.is_none() => None,
            // It began after the baseline, or after the last that was seen of its name's bearer
            // before; before the first list there is no story to be told whole.
            Compared::New => {
                self.baseline.clone().or_else(|| rival.as_ref().map(|(_, version)| version.clone()))
            }
        };
        let Some(floor) = floor else { return Ok(Some(Found::Send(Input::Item { document, anew: false }))) };
        let object = reference(&self.parts, envelope);
        Ok(Some(Found::ReadBack(Moved { object, floor, version, document, rival })))
    }

    // ---- what was missed -----------------------------------------------------------------

    /// What lies below a listed object, and how the bearer of its name before it ended.
    async fn read_back(&self, moved: Moved) -> ReadBack {
        let walked = self.exact.versions(&moved.object, &moved.floor, &moved.version).await;
        let rival_ended = match &moved.rival {
            Some((rival, witnessed)) => {
                let taken = walked.oldest.as_ref().unwrap_or(&moved.version);
                let ended = self.exact.end(rival, &self.floor(witnessed), taken).await;
                Some((Arc::clone(rival), ended))
            }
            None => None,
        };
        ReadBack { moved, walked, rival_ended }
    }

    async fn was_read_back(&self, read: ReadBack) -> Result<(), Closed> {
        if let Some((rival, ended)) = read.rival_ended {
            self.has_ended(rival, ended).await?;
        }
        self.walked(Arc::new(read.moved.object), read.walked).await?;
        self.send(Input::Item { document: read.moved.document, anew: false }).await
    }

    async fn has_ended(&self, object: Arc<ObjectRef>, ended: Ended) -> Result<(), Closed> {
        self.walked(Arc::clone(&object), ended.walked).await?;
        self.send(Input::Vanished { object, version: ended.version }).await
    }

    async fn walked(&self, object: Arc<ObjectRef>, walked: Walked) -> Result<(), Closed> {
        count(&self.parts.shared.counters.walked_back, walked.found.len() as u64);
        if let Some(hole) = walked.hole {
            self.send(Input::ObjectHole(object, hole)).await?;
        }
        for document in walked.found {
            self.send(Input::Item { document, anew: false }).await?;
        }
        Ok(())
    }

    /// Below what nothing of an object is missing: its witnessed version, or the baseline, up to
    /// which the watch was complete.
    fn floor(&self, witnessed: &Version) -> Version {
        match &self.baseline {
            Some(baseline) if baseline.is_newer_than(witnessed) => baseline.clone(),
            _ => witnessed.clone(),
        }
    }

    fn concurrency(&self) -> usize {
        self.parts.tuning.walk.concurrency.max(1)
    }

    // ---- the end of a list ---------------------------------------------------------------

    async fn complete(&self, version: Version, attempt: Attempt) -> Result<(), Broken> {
        // Those whose name was taken have ended already; the cache shows it by then.
        sync(&self.inputs).await?;
        let mut vanished = Vec::new();
        for Unseen(object) in attempt.unseen {
            let held = self.parts.shared.read().by_uid(&object.uid).map(|held| held.resource_version.clone());
            let Some(witnessed) = held else { continue };
            if attempt.unread == 0 || self.is_absent(&object).await? {
                vanished.push((object, witnessed));
            }
        }
        let ending = vanished.into_iter().map(|(object, witnessed)| self.ended(object, witnessed, &version));
        let mut ending = stream::iter(ending).buffer_unordered(self.concurrency());
        while let Some((object, ended)) = ending.next().await {
            self.has_ended(object, ended).await?;
        }
        drop(ending);
        self.send(Input::Listed(version)).await?;
        Ok(())
    }

    async fn ended(
        &self,
        object: Arc<ObjectRef>,
        witnessed: Version,
        listed: &Version,
    ) -> (Arc<ObjectRef>, Ended) {
        // What another history did in between can't be asked of this one.
        let ended = if self.reason == ListReason::Replaced {
            Ended { version: None, walked: Walked::default() }
        } else {
            self.exact.end(&object, &self.floor(&witnessed), listed).await
        };
        (object, ended)
    }

    /// Asked for by name, because the list had items that could not be read.
    async fn is_absent(&self, object: &ObjectRef) -> Result<bool, Failure> {
        let collection = self.resource.collection_of(&object.namespace);
        match self.parts.api.get(&format!("{}/{}", collection.as_str(), object.name)).await {
            Ok(bytes) => Ok(project::envelope(&bytes).is_ok_and(|found| found.uid != *object.uid)),
            Err(failure) if failure.code() == Some(404) => Ok(true),
            Err(failure) => Err(failure),
        }
    }

    fn source_hole(&self, listed: &Version) -> Option<Hole> {
        let holed = self.holed.lock().unwrap_or_else(PoisonError::into_inner);
        match (&self.reason, &*holed) {
            (ListReason::First, _) | (ListReason::Expired, None) => None,
            (ListReason::Expired, Some(holed)) => between(
                holed,
                &Version::new(&after(listed)),
                reason::EXPIRED,
                "of objects that were created and deleted meanwhile nothing can be known",
            ),
            (ListReason::Replaced, holed) => Some(Hole {
                after: holed.as_ref().map(ToString::to_string).unwrap_or_default(),
                before: after(listed),
                reason: reason::REPLACED,
                message: format!(
                    "the server's history was replaced: its versions up to {listed} were not watched, and \
                     what the old history still had to say is lost"
                ),
            }),
        }
    }

    async fn send(&self, input: Input) -> Result<(), Closed> {
        self.inputs.send(input).await.map_err(|_| Closed)
    }
}
