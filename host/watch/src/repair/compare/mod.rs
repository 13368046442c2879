//! Compares a list with the witnessed states. New objects go on at once. Objects that differ, or that are
//! missing from the list, become jobs of a round. It asks the server only whether an object exists.

pub(crate) mod list_request;
mod listed_names;
mod new_history;

use std::borrow::Borrow;
use std::collections::HashSet;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use bytes::Bytes;
use kubewitness_core::Version;
use kubewitness_core::document::{pack, unpack};
use kubewitness_core::ports::Fate;
use kubewitness_core::project::{self, Envelope};
use kubewitness_core::state::ObjectRef;
use kubewitness_core::views::DiscrepancyView;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::connect::request::Failure;
use crate::connect::resource::Resource;
use crate::judge::meaning::{Compared, compare};
use crate::judge::object::{check, matches, reference, with_kind};
use crate::repair::compare::list_request::{ListReason, ListRequest};
use crate::repair::history::newest_common::Base;
use crate::repair::lookup::{fate_now, fetch, is_absent, left_at, say_revived};
use crate::repair::report::discrepancy::discrepancy;
use crate::source::input::{Closed, Input};
use crate::source::parts::Parts;
use crate::source::round::{Job, Moved, Outage, Round, RoundId, Since, Uids, Vanished};

use listed_names::{ItemSighting, ListedNames};
use new_history::RelistedObject;

/// Why a list ended early.
pub(crate) enum Broken {
    Closed,
    /// It showed an object older than the witnessed one. This is the server's version.
    OtherHistory(Version),
    Failed(Failure),
    /// A page expired. The list begins again.
    Again,
    /// What was there at the base shows that it is none.
    Baseless,
    /// The server does not stream lists.
    NotStreamed(String),
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

/// An object that was known before the list. It is found by its uid.
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
        // The hash equals that of a `str`, so that a `str` can look it up.
        self.0.uid.as_str().hash(state);
    }
}

/// The versions of one page of a list.
#[derive(Clone, Copy)]
pub(crate) struct PageVersions<'a> {
    /// The version of the first page. From there on the watch brings everything.
    pub first: &'a Version,
    /// The version of the page itself, which is newer if the list went on without consistency.
    pub own: &'a Version,
}

/// What a listed object becomes.
enum Found {
    Item(Bytes),
    ReadBack(Moved),
}

/// Compares one list, from its first object to its end.
pub(crate) struct Comparison {
    parts: Arc<Parts>,
    inputs: mpsc::Sender<Input>,
    resource: Resource,
    reason: ListReason,
    /// Everything up to here was witnessed.
    baseline: Option<Version>,
    /// The version from which a new history is read.
    base: Option<Base>,
    /// Objects listed under another object's name. They wait until the fate of that one is known.
    usurpers: Vec<RelistedObject>,
    unseen: HashSet<Unseen>,
    /// Each object counts once, however often a stream repeats it.
    seen: ListedNames,
    begun: Instant,
    /// The objects in the list, and those that went on at once.
    items: u64,
    at_once: u64,
    /// Items that could not be read. Any of the missing objects may be among them.
    unread: u32,
    jobs: Vec<Job>,
    known: Uids,
    /// The number of objects at the baseline; `None` if it is not certain.
    expected: Option<u64>,
}

impl Comparison {
    pub fn new(parts: &Arc<Parts>, inputs: &mpsc::Sender<Input>, asked: &ListRequest) -> Self {
        let mut comparison = Self {
            parts: Arc::clone(parts),
            inputs: inputs.clone(),
            resource: asked.resource.clone(),
            reason: asked.reason.clone(),
            baseline: asked.baseline.clone(),
            base: asked.base.clone(),
            usurpers: Vec::new(),
            unseen: HashSet::new(),
            seen: ListedNames::default(),
            begun: Instant::now(),
            items: 0,
            at_once: 0,
            unread: 0,
            jobs: Vec::new(),
            known: Uids::default(),
            expected: None,
        };
        comparison.begin();
        comparison
    }

    fn begin(&mut self) {
        let parts = Arc::clone(&self.parts);
        let cache = parts.shared.read();
        self.unseen = cache.all().map(|held| Unseen(held.object)).collect();
        self.expected = parts.spec.match_labels.is_empty().then_some(self.unseen.len() as u64);
        for held in cache.all() {
            self.known.insert(&held.object.uid);
            if self.baseline.as_ref().is_some_and(|baseline| held.resource_version.is_newer_than(baseline)) {
                // It was witnessed in a round that a kill ended, so it may have been created since.
                self.expected = None;
            }
        }
    }

    /// Notes an item that could not be read. Any of the missing objects may be this one.
    pub fn unread(&mut self) {
        self.unread += 1;
    }

    /// Notes an object that is not listed but whose story comes with the watch.
    pub fn know(&mut self, uid: &str) {
        self.known.insert(uid);
    }

    /// Takes one listed object. A streamed list has no pages.
    pub async fn item(&mut self, document: Bytes, page: Option<PageVersions<'_>>) -> Result<(), Broken> {
        let bytes = document.clone();
        let readable = project::envelope(&bytes).ok().filter(|envelope| check(&self.parts, envelope).is_ok());
        let Some(envelope) = readable else {
            self.unread();
            return Ok(self.send(Input::Item { document, anew: false }).await?);
        };
        match self.seen.sight(&envelope.uid, &envelope.namespace, &envelope.name) {
            ItemSighting::First => {}
            ItemSighting::Repeated => return Ok(()),
            // The writer keeps the second one as a poison message.
            ItemSighting::Renamed => return Ok(self.send(Input::Item { document, anew: false }).await?),
        }
        self.items += 1;
        self.unseen.remove(envelope.uid.as_ref());
        let version = Version::new(&envelope.resource_version);
        if matches(&self.parts, &envelope) {
            self.known.insert(&envelope.uid);
        }
        let document = with_kind(document, &envelope, &self.parts.spec.api_version, &self.parts.spec.kind);
        let is_ahead = page.is_some_and(|page| version.is_newer_than(page.first));
        // The server contradicts itself, so its watch may not bring the object either.
        let beyond = page.filter(|page| version.is_newer_than(page.own));
        let found = match self.found(&envelope, document, beyond) {
            Err(Broken::OtherHistory(_)) if self.is_late(&envelope).await? => return Err(Broken::Again),
            found => found?,
        };
        match found {
            // The watch brings it. If it were taken now, the versions in between would be refused as old.
            Some(Found::Item(_)) if is_ahead && beyond.is_none() => {}
            Some(Found::Item(document)) if self.reason == ListReason::Replaced => {
                let is_outside = !matches(&self.parts, &envelope)
                    && self.parts.shared.read().brief(&envelope.uid).is_none();
                let object = reference(&self.parts, &envelope);
                self.anew(RelistedObject { object, version, document, is_outside }).await?;
            }
            Some(Found::Item(document)) => {
                self.at_once += 1;
                self.send(Input::Item { document, anew: false }).await?;
            }
            Some(Found::ReadBack(mut moved)) => {
                if !moved.witnessed {
                    let fate = fate_now(&self.parts, &moved.object).await;
                    if fate == Fate::Ended {
                        if self.is_late(&envelope).await? {
                            return Err(Broken::Again);
                        }
                        say_revived(&self.parts, &moved.object);
                        return Err(Broken::OtherHistory(version));
                    }
                    // Before a first list there is no complete story to tell.
                    if moved.rival.is_none() && self.baseline.is_some() {
                        moved.since = self.beginning(&moved, &fate);
                    }
                }
                if let Some((rival, _)) = &moved.rival {
                    self.unseen.remove(rival.uid.as_str());
                }
                self.jobs.push(Job::Moved(moved));
            }
            None => {}
        }
        Ok(())
    }

    /// Whether the list shows an object as it no longer is. Such a list comes from a server that lags behind
    /// another one, which had already sent newer versions.
    async fn is_late(&self, envelope: &Envelope<'_>) -> Result<bool, Broken> {
        let now = fetch(&self.parts, &self.resource, &reference(&self.parts, envelope)).await?;
        let now = now.as_ref().map(|now| project::envelope(now)).transpose();
        let now = now.map_err(|error| Failure::Answer(error.to_string()))?;
        let known = self.parts.shared.read().brief(&envelope.uid);
        let is_late = now.filter(|now| now.uid == envelope.uid).is_none_or(|now| {
            let now = Version::new(&now.resource_version);
            known.is_some_and(|known| !known.resource_version.is_newer_than(&now))
        });
        if is_late {
            let (source, name) = (&self.parts.spec.name, &envelope.name);
            tracing::info!(%source, %name, "the list is outdated, because the server lags behind another one");
        }
        Ok(is_late)
    }

    /// What one listed object means; `None` if it was witnessed as it is. `beyond`: it is newer than its page.
    fn found(
        &self,
        envelope: &Envelope<'_>,
        document: Bytes,
        beyond: Option<PageVersions<'_>>,
    ) -> Result<Option<Found>, Broken> {
        let version = Version::new(&envelope.resource_version);
        let cache = self.parts.shared.read();
        let rival = cache
            .brief_of_name(&envelope.namespace, &envelope.name)
            .filter(|held| *held.object.uid != *envelope.uid)
            .map(|held| (held.object, self.since(&held.resource_version)));
        if self.reason == ListReason::Replaced {
            // The two histories may have given one version to two contents. Only the content tells.
            let known = cache.by_uid(&envelope.uid);
            let is_news = match &known {
                Some(known) if known.resource_version == version => {
                    unpack(&known.packed).map_or(true, |held| !is_same(&held, &document))
                }
                Some(_) => true,
                None => matches(&self.parts, envelope) || rival.is_some(),
            };
            return Ok(is_news.then_some(Found::Item(document)));
        }
        let known = cache.brief(&envelope.uid);
        let known = known.as_ref();
        let since = match compare(&version, known.map(|known| &known.resource_version)) {
            Compared::Same => return Ok(None),
            Compared::Behind => return Err(Broken::OtherHistory(version)),
            Compared::Moved => known.map(|known| self.since(&known.resource_version)),
            Compared::New if !matches(&self.parts, envelope) && rival.is_none() => None,
            // It began after the last version of its name's former object, or after the baseline. Before the
            // first list there is no complete story to tell.
            Compared::New => match &rival {
                Some((_, since)) => Some(since.clone()),
                None => self.baseline.as_ref().or(beyond.map(|page| page.first)).cloned().map(Since::at),
            },
        };
        let Some(since) = since else { return Ok(Some(Found::Item(document))) };
        let object = Arc::new(reference(&self.parts, envelope));
        let (document, witnessed, is_beyond) = (pack(&document), known.is_some(), beyond.is_some());
        let moved = Moved { object, since, version, document, witnessed, is_end: false, is_beyond, rival };
        Ok(Some(Found::ReadBack(moved)))
    }

    /// For a witnessed object: nothing is missing up to the baseline, unless something in between is found.
    fn since(&self, witnessed: &Version) -> Since {
        let baseline = self.baseline.as_ref().filter(|baseline| baseline.is_newer_than(witnessed));
        let floor = baseline.filter(|_| self.reason != ListReason::Doubted).unwrap_or(witnessed).clone();
        Since { floor, last: Some(witnessed.clone()) }
    }

    /// For an unknown object.
    fn beginning(&self, moved: &Moved, fate: &Fate) -> Since {
        let Moved { since, version, .. } = moved;
        let lowest = left_at(&self.parts, fate, version);
        if self.reason == ListReason::Doubted {
            return Since::at(lowest);
        }
        let floor = since.floor.clone();
        // With a selector the object may have existed outside of it.
        let is_certain = self.parts.spec.match_labels.is_empty() || !version.is_newer_than(&floor);
        let last = is_certain.then_some(lowest);
        Since { floor, last }
    }

    /// Ends the list, which is complete at `listed`. Objects that it did not show no longer existed at
    /// `absent`.
    pub async fn complete(
        mut self,
        listed: &Version,
        absent: &Version,
        id: RoundId,
    ) -> Result<Option<Round>, Broken> {
        let is_whole = *listed == *absent;
        if self.reason == ListReason::Replaced {
            self.all_anew(listed).await?;
            self.say(listed);
            return Ok(None);
        }
        for Unseen(object) in std::mem::take(&mut self.unseen) {
            let held = self.parts.shared.read().brief(&object.uid).map(|held| held.resource_version);
            let Some(witnessed) = held else { continue };
            if self.unread > 0 && !is_absent(&self.parts, &self.resource, &object).await? {
                continue;
            }
            let (since, absent) = (self.since(&witnessed), absent.clone());
            self.jobs.push(Job::Vanished(Vanished { object, since, absent }));
        }
        self.say(listed);
        if self.reason == ListReason::Doubted {
            self.expected = None;
            let found = self.jobs.iter().map(|job| self.differs(job)).collect();
            self.send(Input::Differs(found)).await?;
        }
        let after = self.baseline.filter(|_| self.reason.goes_on());
        let sweep = after.map(|after| Outage {
            after,
            listed: listed.clone(),
            is_whole,
            known: self.known,
            expected: self.expected,
        });
        if self.jobs.is_empty() && sweep.is_none() {
            return Ok(None);
        }
        let (resource, jobs, cancel) = (self.resource, self.jobs, CancellationToken::new());
        let may_be_seen = self.reason == ListReason::Expired && self.parts.witness.is_shared();
        Ok(Some(Round { id, resource, jobs, sweep, may_be_seen, cancel }))
    }

    fn differs(&self, job: &Job) -> DiscrepancyView {
        let (object, witnessed, listed) = match job {
            Job::Moved(moved) => {
                (&moved.object, moved.witnessed.then_some(&moved.since.floor), Some(&moved.version))
            }
            Job::Vanished(vanished) => (&vanished.object, Some(&vanished.since.floor), None),
        };
        discrepancy(&self.parts, object, witnessed, listed)
    }

    fn say(&self, listed: &Version) {
        let Self { parts, reason, items, at_once, unread, begun, .. } = self;
        let (source, left, took) = (&parts.spec.name, self.jobs.len(), begun.elapsed());
        tracing::info!(
            %source, ?reason, %listed, items, states = at_once, to_read_back = left, unread, ?took, "listed"
        );
    }

    async fn send(&self, input: Input) -> Result<(), Closed> {
        self.inputs.send(input).await.map_err(|_| Closed)
    }
}

/// Whether two documents have the same content in any order of members.
fn is_same(one: &[u8], other: &[u8]) -> bool {
    let read = |bytes| serde_json::from_slice::<serde_json::Value>(bytes).ok();
    one == other || read(one).is_some_and(|one| Some(one) == read(other))
}
