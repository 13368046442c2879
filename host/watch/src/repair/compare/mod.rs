//! Compares a list with the witnessed states.
//!
//! A list shows only the newest version of each object, so versions between it and the witnessed ones may be
//! missing. Waiting for all of them before the watch resumes was rejected: one changed object would delay all
//! others. So new objects pass at once. Objects that differ, or are missing from the list, become jobs of a
//! repair round, and only their names wait. The only question that it asks the server is whether an object
//! exists.

pub(crate) mod list_request;
mod listed_names;
mod new_history;

use std::borrow::Borrow;
use std::collections::HashSet;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use bytes::Bytes;
use kubewitness_core::Version;
use kubewitness_core::document::{pack_document, unpack_document};
use kubewitness_core::ports::FormerEnd;
use kubewitness_core::project::{self, ObjectEnvelope};
use kubewitness_core::state::ObjectRef;
use kubewitness_core::views::DiscrepancyView;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::connect::request::RequestFailure;
use crate::connect::resource::SourceResource;
use crate::judge::meaning::{ItemComparison, compare_item};
use crate::judge::object::{check, matches_labels, object_reference, with_kind};
use crate::repair::compare::list_request::{ListReason, ListRequest};
use crate::repair::history::newest_common::HistoryBase;
use crate::repair::lookup::{fate_now, fetch_current, is_absent, left_at, report_revived};
use crate::repair::report::discrepancy::report_discrepancy;
use crate::source::input::{WriterClosed, WriterInput};
use crate::source::parts::SourceParts;
use crate::source::round::{
    CompleteSince, MovedObject, NameRead, RepairRound, RoundId, UidSet, VanishedObject, WatchOutage,
};

use listed_names::{ItemSighting, ListedNames};
use new_history::RelistedObject;

/// Why a list ended early.
pub(crate) enum ListFailure {
    Closed,
    /// It showed an object older than the witnessed one. This is the server's version.
    OtherHistory(Version),
    Failed(RequestFailure),
    /// A page expired, so the list starts over.
    Again,
    /// The objects at the base show that it is not part of this history.
    Baseless,
    /// The server does not stream lists.
    NotStreamed(String),
}

impl From<WriterClosed> for ListFailure {
    fn from(_: WriterClosed) -> Self {
        Self::Closed
    }
}

impl From<RequestFailure> for ListFailure {
    fn from(failure: RequestFailure) -> Self {
        Self::Failed(failure)
    }
}

/// An object that was known before the list and has not been seen in it. It is found by its uid.
struct UnseenObject(Arc<ObjectRef>);

impl Borrow<str> for UnseenObject {
    fn borrow(&self) -> &str {
        &self.0.uid
    }
}

impl PartialEq for UnseenObject {
    fn eq(&self, other: &Self) -> bool {
        self.0.uid == other.0.uid
    }
}

impl Eq for UnseenObject {}

impl Hash for UnseenObject {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // The hash equals that of a `str`, so that a `str` can look it up.
        self.0.uid.as_str().hash(state);
    }
}

/// The versions of one page of a list.
#[derive(Clone, Copy)]
pub(crate) struct PageVersions<'a> {
    /// The version of the first page. The watch delivers everything after it.
    pub first: &'a Version,
    /// The version of the page itself, which is newer if the list continued inconsistently.
    pub own: &'a Version,
}

/// How a listed object is stored.
enum ListedOutcome {
    Item(Bytes),
    ReadBack(MovedObject),
}

/// Compares one list, from its first object to its end.
pub(crate) struct ListComparison {
    parts: Arc<SourceParts>,
    inputs: mpsc::Sender<WriterInput>,
    resource: SourceResource,
    reason: ListReason,
    /// Everything up to this version was witnessed.
    baseline: Option<Version>,
    /// The version from which a new history is read.
    base: Option<HistoryBase>,
    /// Objects listed under the name of another object. They wait until it is known what happened to that
    /// one.
    usurpers: Vec<RelistedObject>,
    unseen: HashSet<UnseenObject>,
    /// Each object counts once, however often a stream repeats it.
    seen: ListedNames,
    begun: Instant,
    /// The objects in the list, and those that passed at once.
    items: u64,
    at_once: u64,
    /// Items that could not be read. Any of the missing objects may be among them.
    unread: u32,
    jobs: Vec<NameRead>,
    known: UidSet,
    /// The number of objects at the baseline; `None` if it is uncertain.
    expected: Option<u64>,
}

impl ListComparison {
    pub fn new(parts: &Arc<SourceParts>, inputs: &mpsc::Sender<WriterInput>, asked: &ListRequest) -> Self {
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
            known: UidSet::default(),
            expected: None,
        };
        comparison.begin_again();
        comparison
    }

    fn begin_again(&mut self) {
        let parts = Arc::clone(&self.parts);
        let cache = parts.shared.read();
        self.unseen = cache.all_briefs().map(|held| UnseenObject(held.object)).collect();
        self.expected = parts.spec.match_labels.is_empty().then_some(self.unseen.len() as u64);
        for held in cache.all_briefs() {
            self.known.insert(&held.object.uid);
            if self.baseline.as_ref().is_some_and(|baseline| held.resource_version.is_newer_than(baseline)) {
                // It was witnessed in a round that was killed, so it may have been created since.
                self.expected = None;
            }
        }
    }

    /// Notes an item that could not be read. Any of the missing objects may be this one.
    pub fn note_unread(&mut self) {
        self.unread += 1;
    }

    /// Notes an object that is not listed but is delivered by the watch.
    pub fn note_known(&mut self, uid: &str) {
        self.known.insert(uid);
    }

    /// Takes one listed object. A streamed list has no pages.
    pub async fn take_item(
        &mut self,
        document: Bytes,
        page: Option<PageVersions<'_>>,
    ) -> Result<(), ListFailure> {
        let bytes = document.clone();
        let readable =
            project::read_envelope(&bytes).ok().filter(|envelope| check(&self.parts, envelope).is_ok());
        let Some(envelope) = readable else {
            self.note_unread();
            return Ok(self.send(WriterInput::Item { document, anew: false }).await?);
        };
        match self.seen.note_sighting(&envelope.uid, &envelope.namespace, &envelope.name) {
            ItemSighting::First => {}
            ItemSighting::Repeated => return Ok(()),
            // The writer keeps the second one as a poison message.
            ItemSighting::Renamed => {
                return Ok(self.send(WriterInput::Item { document, anew: false }).await?);
            }
        }
        self.items += 1;
        self.unseen.remove(envelope.uid.as_ref());
        let version = Version::new(&envelope.resource_version);
        if matches_labels(&self.parts, &envelope) {
            self.known.insert(&envelope.uid);
        }
        let document = with_kind(document, &envelope, &self.parts.spec.api_version, &self.parts.spec.kind);
        let is_ahead = page.is_some_and(|page| version.is_newer_than(page.first));
        // The server contradicts itself, so its watch may not deliver the object either.
        let beyond = page.filter(|page| version.is_newer_than(page.own));
        let found = match self.judge_listed(&envelope, document, beyond) {
            Err(ListFailure::OtherHistory(_)) if self.is_late(&envelope).await? => {
                return Err(ListFailure::Again);
            }
            found => found?,
        };
        match found {
            // The watch delivers it. If it were accepted now, the versions in between would be refused as
            // old.
            Some(ListedOutcome::Item(_)) if is_ahead && beyond.is_none() => {}
            Some(ListedOutcome::Item(document)) if self.reason == ListReason::Replaced => {
                let is_outside = !matches_labels(&self.parts, &envelope)
                    && self.parts.shared.read().brief_by_uid(&envelope.uid).is_none();
                let object = object_reference(&self.parts, &envelope);
                self.take_relisted(RelistedObject { object, version, document, is_outside }).await?;
            }
            Some(ListedOutcome::Item(document)) => {
                self.at_once += 1;
                self.send(WriterInput::Item { document, anew: false }).await?;
            }
            Some(ListedOutcome::ReadBack(mut moved)) => {
                if !moved.witnessed {
                    let fate = fate_now(&self.parts, &moved.object).await;
                    if fate == FormerEnd::Ended {
                        if self.is_late(&envelope).await? {
                            return Err(ListFailure::Again);
                        }
                        report_revived(&self.parts, &moved.object);
                        return Err(ListFailure::OtherHistory(version));
                    }
                    // Before a first list, no complete story exists.
                    if moved.rival.is_none() && self.baseline.is_some() {
                        moved.since = self.complete_since_beginning(&moved, &fate);
                    }
                }
                if let Some((rival, _)) = &moved.rival {
                    self.unseen.remove(rival.uid.as_str());
                }
                self.jobs.push(NameRead::Moved(moved));
            }
            None => {}
        }
        Ok(())
    }

    /// Whether the list shows an outdated version of an object. Such a list comes from a server that lags
    /// behind another one, which had already sent newer versions.
    async fn is_late(&self, envelope: &ObjectEnvelope<'_>) -> Result<bool, ListFailure> {
        let now =
            fetch_current(&self.parts, &self.resource, &object_reference(&self.parts, envelope)).await?;
        let now = now.as_ref().map(|now| project::read_envelope(now)).transpose();
        let now = now.map_err(|error| RequestFailure::Answer(error.to_string()))?;
        let known = self.parts.shared.read().brief_by_uid(&envelope.uid);
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

    /// The meaning of one listed object; `None` if this version was witnessed already. `beyond` is set if it
    /// is newer than its page.
    fn judge_listed(
        &self,
        envelope: &ObjectEnvelope<'_>,
        document: Bytes,
        beyond: Option<PageVersions<'_>>,
    ) -> Result<Option<ListedOutcome>, ListFailure> {
        let version = Version::new(&envelope.resource_version);
        let cache = self.parts.shared.read();
        let rival = cache
            .brief_of_name(&envelope.namespace, &envelope.name)
            .filter(|held| *held.object.uid != *envelope.uid)
            .map(|held| (held.object, self.complete_since(&held.resource_version)));
        if self.reason == ListReason::Replaced {
            // Two histories may have assigned one version to two contents. Only the content decides.
            let known = cache.by_uid(&envelope.uid);
            let is_news = match &known {
                Some(known) if known.resource_version == version => {
                    unpack_document(&known.packed).map_or(true, |held| !is_same(&held, &document))
                }
                Some(_) => true,
                None => matches_labels(&self.parts, envelope) || rival.is_some(),
            };
            return Ok(is_news.then_some(ListedOutcome::Item(document)));
        }
        let known = cache.brief_by_uid(&envelope.uid);
        let known = known.as_ref();
        let since = match compare_item(&version, known.map(|known| &known.resource_version)) {
            ItemComparison::Same => return Ok(None),
            ItemComparison::Behind => return Err(ListFailure::OtherHistory(version)),
            ItemComparison::Moved => known.map(|known| self.complete_since(&known.resource_version)),
            ItemComparison::New if !matches_labels(&self.parts, envelope) && rival.is_none() => None,
            // It began after the last version of its name's former object, or after the baseline. Before the
            // first list, no complete story exists.
            ItemComparison::New => match &rival {
                Some((_, since)) => Some(since.clone()),
                None => self
                    .baseline
                    .as_ref()
                    .or(beyond.map(|page| page.first))
                    .cloned()
                    .map(CompleteSince::since_floor),
            },
        };
        let Some(since) = since else { return Ok(Some(ListedOutcome::Item(document))) };
        let object = Arc::new(object_reference(&self.parts, envelope));
        let (document, witnessed, is_beyond) = (pack_document(&document), known.is_some(), beyond.is_some());
        let moved =
            MovedObject { object, since, version, document, witnessed, is_end: false, is_beyond, rival };
        Ok(Some(ListedOutcome::ReadBack(moved)))
    }

    /// For a witnessed object: nothing is missing up to the baseline, unless a version in between is found.
    fn complete_since(&self, witnessed: &Version) -> CompleteSince {
        let baseline = self.baseline.as_ref().filter(|baseline| baseline.is_newer_than(witnessed));
        let floor = baseline.filter(|_| self.reason != ListReason::Doubted).unwrap_or(witnessed).clone();
        CompleteSince { floor, last: Some(witnessed.clone()) }
    }

    /// For an unknown object.
    fn complete_since_beginning(&self, moved: &MovedObject, fate: &FormerEnd) -> CompleteSince {
        let MovedObject { since, version, .. } = moved;
        let lowest = left_at(&self.parts, fate, version);
        if self.reason == ListReason::Doubted {
            return CompleteSince::since_floor(lowest);
        }
        let floor = since.floor.clone();
        // With a selector the object may have existed outside of it.
        let is_certain = self.parts.spec.match_labels.is_empty() || !version.is_newer_than(&floor);
        let last = is_certain.then_some(lowest);
        CompleteSince { floor, last }
    }

    /// Ends the list, which is complete at `listed`. Objects that it did not show did not exist any more at
    /// `absent`.
    pub async fn complete_list(
        mut self,
        listed: &Version,
        absent: &Version,
        id: RoundId,
    ) -> Result<Option<RepairRound>, ListFailure> {
        let is_whole = *listed == *absent;
        if self.reason == ListReason::Replaced {
            self.take_unlisted(listed).await?;
            self.log_result(listed);
            return Ok(None);
        }
        for UnseenObject(object) in std::mem::take(&mut self.unseen) {
            let held = self.parts.shared.read().brief_by_uid(&object.uid).map(|held| held.resource_version);
            let Some(witnessed) = held else { continue };
            if self.unread > 0 && !is_absent(&self.parts, &self.resource, &object).await? {
                continue;
            }
            let (since, absent) = (self.complete_since(&witnessed), absent.clone());
            self.jobs.push(NameRead::Vanished(VanishedObject { object, since, absent }));
        }
        self.log_result(listed);
        if self.reason == ListReason::Doubted {
            self.expected = None;
            let found = self.jobs.iter().map(|job| self.discrepancy_of(job)).collect();
            self.send(WriterInput::Differs(found)).await?;
        }
        let after = self.baseline.filter(|_| self.reason.continues_history());
        let sweep = after.map(|after| WatchOutage {
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
        Ok(Some(RepairRound { id, resource, jobs, sweep, may_be_seen, cancel }))
    }

    fn discrepancy_of(&self, job: &NameRead) -> DiscrepancyView {
        let (object, witnessed, listed) = match job {
            NameRead::Moved(moved) => {
                (&moved.object, moved.witnessed.then_some(&moved.since.floor), Some(&moved.version))
            }
            NameRead::Vanished(vanished) => (&vanished.object, Some(&vanished.since.floor), None),
        };
        report_discrepancy(&self.parts, object, witnessed, listed)
    }

    fn log_result(&self, listed: &Version) {
        let Self { parts, reason, items, at_once, unread, begun, .. } = self;
        let (source, left, took) = (&parts.spec.name, self.jobs.len(), begun.elapsed());
        tracing::info!(
            %source, ?reason, %listed, items, states = at_once, to_read_back = left, unread, ?took, "listed"
        );
    }

    async fn send(&self, input: WriterInput) -> Result<(), WriterClosed> {
        self.inputs.send(input).await.map_err(|_| WriterClosed)
    }
}

/// Whether two documents have the same content, regardless of the order of members.
fn is_same(first: &[u8], second: &[u8]) -> bool {
    let read = |bytes| serde_json::from_slice::<serde_json::Value>(bytes).ok();
    first == second || read(first).is_some_and(|first| Some(first) == read(second))
}
