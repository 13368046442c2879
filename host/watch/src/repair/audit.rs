//! Audits a source: compares a consistent list with the witnessed states while the watch continues. The list
//! has only metadata, because names and versions show what differs. Differences that remain after the watch
//! has passed the list's version were lost or never sent. Those versions are read back, journaled and
//! counted.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::HashSet;
use std::sync::{Arc, atomic};
use std::time::Duration;

use bytes::Bytes;
use kubewitness_core::Version;
use kubewitness_core::document::pack_document;
use kubewitness_core::ports::FormerEnd;
use kubewitness_core::project::{self, ListGuard};
use kubewitness_core::state::ObjectRef;
use kubewitness_core::views::DiscrepancyView;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use crate::connect::backoff::JitterDice;
use crate::connect::request::{RequestFailure, list_page};
use crate::connect::resource::{SourceResource, resolve_resource};
use crate::judge::object::{check, matches_labels, object_reference, with_kind};
use crate::repair::history::landmarks::fetch_at_version;
use crate::repair::lookup::{fate_now, fetch_current, is_absent, left_at, report_revived};
use crate::repair::report::discrepancy::report_discrepancy;
use crate::repair::single_objects::read_back_and_report;
use crate::repair::walk_back::OldVersions;
use crate::repair::walk_back::versions::{bound_after, missing_between};
use crate::source::handle::{ServerLimit, count};
use crate::source::input::{ReadStory, StoryStep, WriterClosed, WriterInput, await_settled};
use crate::source::missing::reason;
use crate::source::parts::SourceParts;
use crate::source::round::{CompleteSince, MovedObject, NameRead, UidSet, VanishedObject};
use crate::version::version_number;

/// How many differences one audit follows up. More of them mean an outage, not a lost event; the next audit
/// finds the others.
const CANDIDATES: usize = 10_000;
/// How many audits must fail in a row before it is logged. The next audit makes up for a single failure.
const FAILURES: u32 = 2;
/// The kind of an object of which only the metadata was sent.
const METADATA_KIND: &str = "PartialObjectMetadata";
/// How often the audit checks whether the watch has reached the list's version.
const LOOK: Duration = Duration::from_millis(50);

pub(crate) struct ListAuditor {
    parts: Arc<SourceParts>,
    inputs: mpsc::Sender<WriterInput>,
}

/// Why an audit ended early.
enum AuditFailure {
    Closed,
    Failed(RequestFailure),
    /// No watch is open, so nothing can be compared.
    NotWatching,
    /// The server was restored after it listed.
    OtherHistory,
}

impl From<WriterClosed> for AuditFailure {
    fn from(_: WriterClosed) -> Self {
        Self::Closed
    }
}

impl From<RequestFailure> for AuditFailure {
    fn from(failure: RequestFailure) -> Self {
        Self::Failed(failure)
    }
}

/// How an object differs from the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AuditDifference {
    /// The listed version was not witnessed, or not witnessed yet.
    Newer,
    /// The object was not witnessed, or not witnessed yet.
    Unknown,
}

/// Compares a listed object with its known version.
fn difference_of(listed: &Version, known: Option<&Version>, matches: bool) -> Option<AuditDifference> {
    match known {
        Some(known) if listed.is_newer_than(known) => Some(AuditDifference::Newer),
        // The versions have no order. A different one counts as newer, because the watch may still deliver
        // it.
        Some(known) if known.compare_to(listed).is_none() => Some(AuditDifference::Newer),
        Some(_) => None,
        None => matches.then_some(AuditDifference::Unknown),
    }
}

/// A listed object that differed.
struct DifferingObject {
    object: Arc<ObjectRef>,
    version: Version,
    matches: bool,
}

/// The objects that differ, and how they are repaired.
#[derive(Default)]
struct DifferenceSet {
    found: Vec<DiscrepancyView>,
    jobs: Vec<NameRead>,
    /// The steps about objects that have ended since.
    late: Vec<StoryStep>,
}

/// The content of one list.
#[derive(Default)]
struct AuditedList {
    listed: Option<Version>,
    uids: UidSet,
    candidates: Vec<DifferingObject>,
}

impl ListAuditor {
    pub fn new(parts: Arc<SourceParts>, inputs: mpsc::Sender<WriterInput>) -> Self {
        Self { parts, inputs }
    }

    /// Runs until the writer ends. Dropping the future stops it.
    pub async fn run(self) {
        let every = self.parts.spec.audit.0;
        let (mut dice, mut failures) = (JitterDice::new(self.parts.tuning.seed), 0);
        while !every.is_zero() {
            // Between nine and eleven tenths, so that many sources do not list at the same time.
            sleep(every.mul_f64(dice.random_between(90, 110) as f64 / 100.0)).await;
            if !self.parts.audits.load(atomic::Ordering::Relaxed) {
                failures = 0;
                self.parts.shared.set_limitation(ServerLimit::Audits, None);
                continue;
            }
            let begun = Instant::now();
            match self.run_audit().await {
                Ok(discrepancies) => {
                    failures = 0;
                    self.parts.shared.set_limitation(ServerLimit::Audits, None);
                    self.parts.shared.note_audit(self.parts.clock.now_ms(), discrepancies == 0);
                    let took = begun.elapsed();
                    tracing::debug!(source = %self.parts.spec.name, discrepancies, ?took, "audited");
                }
                Err(AuditFailure::Closed) => return,
                Err(AuditFailure::NotWatching) => {
                    tracing::info!(source = %self.parts.spec.name, "the audit is skipped, because the source is not watched now");
                }
                Err(AuditFailure::OtherHistory) => {
                    let source = &self.parts.spec.name;
                    tracing::warn!(%source, "the audit is skipped, because the server's history was replaced meanwhile");
                }
                Err(AuditFailure::Failed(failure)) => {
                    failures += 1;
                    tracing::warn!(source = %self.parts.spec.name, failures, "the audit failed and runs again at its next time: {failure}");
                    if failures >= FAILURES {
                        let why = format!("the last one failed with: {failure}");
                        self.parts.shared.set_limitation(ServerLimit::Audits, Some(&why));
                    }
                }
            }
        }
    }

    async fn run_audit(&self) -> Result<usize, AuditFailure> {
        let epoch = await_settled(&self.inputs).await?.epoch;
        if !self.is_watching() {
            return Err(AuditFailure::NotWatching);
        }
        let resource = resolve_resource(&self.parts.api, &self.parts.spec).await?;
        count(&self.parts.shared.counters.lists_audit, 1);
        let mut seen = self.list_objects(&resource).await?;
        let Some(listed) = seen.listed.take() else { return Ok(0) };
        let missing = self.not_listed(&seen.uids, &listed);
        if seen.candidates.is_empty() && missing.is_empty() {
            return Ok(0);
        }
        self.await_version(&listed).await?;
        let DifferenceSet { found, jobs, late } =
            self.remaining_differences(seen.candidates, missing, &listed, &resource).await?;
        let discrepancies = jobs.len() + late.len();
        if !found.is_empty() {
            self.send(WriterInput::Differs(found)).await?;
        }
        if !late.is_empty() {
            let story = ReadStory { round: None, epoch: Some(epoch), steps: late, release: None };
            self.send(WriterInput::Story(story)).await?;
        }
        for job in &jobs {
            self.send(WriterInput::Hold(job.object(), Some(epoch))).await?;
        }
        read_back_and_report(&self.parts, &self.inputs, epoch, jobs, &resource).await?;
        Ok(discrepancies)
    }

    fn is_watching(&self) -> bool {
        let live = self.parts.shared.lock_live();
        live.synced && live.condition.is_none() && live.stalled.is_none()
    }

    async fn list_objects(&self, resource: &SourceResource) -> Result<AuditedList, AuditFailure> {
        let (mut seen, mut guard, mut token) = (AuditedList::default(), ListGuard::default(), String::new());
        loop {
            let mut address =
                resource.collection_address().with_parameter("limit", &self.parts.tuning.page.to_string());
            if !token.is_empty() {
                address = address.with_parameter("continue", &token);
            }
            let walk = &self.parts.tuning.walk;
            self.parts.repairs.await_turn(walk).await;
            let bytes = self.parts.api.list_metadata(address.as_str()).await?;
            self.parts.repairs.count_received(bytes.len(), walk);
            let page = list_page(&bytes)?;
            guard.count_page(&page, bytes.len()).map_err(RequestFailure::from)?;
            seen.listed.get_or_insert_with(|| Version::new(&page.resource_version));
            for item in &page.items {
                self.audit_item(&mut seen, item);
            }
            if page.continue_token.is_empty() {
                return Ok(seen);
            }
            token = page.continue_token.to_string();
        }
    }

    fn audit_item(&self, seen: &mut AuditedList, item: &[u8]) {
        // The watch or the list keeps an unreadable object as a poison message.
        let Ok(mut envelope) = project::read_envelope(item) else { return };
        if envelope.kind == METADATA_KIND {
            envelope.kind = Cow::Borrowed("");
        }
        if check(&self.parts, &envelope).is_err() {
            return;
        }
        seen.uids.insert(&envelope.uid);
        let (version, matches) =
            (Version::new(&envelope.resource_version), matches_labels(&self.parts, &envelope));
        let known = self.known_version(&envelope.uid);
        let differs = difference_of(&version, known.as_ref(), matches).is_some();
        if differs && seen.candidates.len() < CANDIDATES {
            let object = Arc::new(object_reference(&self.parts, &envelope));
            seen.candidates.push(DifferingObject { object, version, matches });
        }
    }

    fn known_version(&self, uid: &str) -> Option<Version> {
        self.parts.shared.read().brief_by_uid(uid).map(|held| held.resource_version)
    }

    /// Gets a listed object in full, as it is now; `None` if it has ended since. If the server now shows an
    /// older version than it listed, it was restored meanwhile, and its list belongs to the past.
    async fn as_now(
        &self,
        resource: &SourceResource,
        object: &ObjectRef,
        listed: &Version,
    ) -> Result<Option<(Version, Bytes)>, AuditFailure> {
        let Some(now) = fetch_current(&self.parts, resource, object).await? else { return Ok(None) };
        let Ok(envelope) = project::read_envelope(&now) else { return Ok(Some((listed.clone(), now))) };
        if envelope.uid != *object.uid {
            return Ok(None);
        }
        let version = Version::new(&envelope.resource_version);
        if version.compare_to(listed) == Some(Ordering::Less) {
            return Err(AuditFailure::OtherHistory);
        }
        let spec = &self.parts.spec;
        let document = with_kind(now.clone(), &envelope, &spec.api_version, &spec.kind);
        Ok(Some((version, document)))
    }

    /// The object at the listed version, if that can still be read.
    async fn as_listed(
        &self,
        resource: &SourceResource,
        object: &ObjectRef,
        listed: &Version,
    ) -> Option<Bytes> {
        let answer = fetch_at_version(&self.parts, &resource.of_name_at(object, listed), listed).await?;
        let page = project::list_page(&answer).ok()?;
        let item = page.items.first()?;
        let envelope = project::read_envelope(item).ok()?;
        let is_it = envelope.uid == *object.uid && envelope.resource_version == listed.as_str();
        let spec = &self.parts.spec;
        is_it.then(|| with_kind(answer.slice_ref(item), &envelope, &spec.api_version, &spec.kind))
    }

    /// The versions of an object between its last witnessed version and its end, which is not known yet. They
    /// are read back here and not together with the end: an audit that finds the end lost would read back the
    /// older ones after the newest.
    async fn versions_before_end(
        &self,
        resource: &SourceResource,
        object: &Arc<ObjectRef>,
        floor: Version,
        listed: &Version,
    ) -> Vec<StoryStep> {
        let missing = |hole| StoryStep::MissingVersions(Arc::clone(object), hole);
        let Some(newest) = self.as_listed(resource, object, listed).await else {
            let why = "the object has ended since it was listed";
            let hole = missing_between(&floor, &Version::new(&bound_after(listed)), reason::UNREADABLE, why);
            return hole.map(missing).into_iter().collect();
        };
        let exact = OldVersions::beside_watch(&self.parts, resource, version_number(listed));
        let since = CompleteSince::since_floor(floor);
        let walked = exact.walk_versions(exact.object_deadline(), object, since, listed).await;
        let older = walked.found.into_iter().map(|(_, document)| document);
        let documents = older.chain([newest]).map(StoryStep::Late);
        walked.hole.map(missing).into_iter().chain(documents).collect()
    }

    /// An object whose end was witnessed can't exist again, so the history is another one. The reader checks
    /// that.
    async fn report_revived(&self, object: &ObjectRef) -> Result<AuditFailure, WriterClosed> {
        report_revived(&self.parts, object);
        self.parts.shared.lock_landmarks().contradicted = true;
        self.send(WriterInput::RecheckHistory).await?;
        Ok(AuditFailure::OtherHistory)
    }

    /// Another uid that has the object's name, as far as is known.
    fn rival_of_name(&self, object: &ObjectRef) -> Option<(Arc<ObjectRef>, CompleteSince)> {
        let held = self.parts.shared.read().brief_of_name(&object.namespace, &object.name)?;
        (held.object.uid != object.uid)
            .then_some((held.object, CompleteSince::since_floor(held.resource_version)))
    }

    /// Known objects that were not listed, except those newer than the list.
    fn not_listed(&self, uids: &UidSet, listed: &Version) -> Vec<(Arc<ObjectRef>, Version)> {
        let cache = self.parts.shared.read();
        let missing = cache
            .all_briefs()
            .filter(|held| !uids.contains(&held.object.uid) && !held.resource_version.is_newer_than(listed));
        let missing = missing.map(|held| (Arc::clone(&held.object), held.resource_version.clone()));
        missing.take(CANDIDATES).collect()
    }

    /// Waits until the watch has reached the list's version, or the time for it is over.
    async fn await_version(&self, listed: &Version) -> Result<(), AuditFailure> {
        let until = Instant::now() + self.parts.tuning.audit_grace;
        while Instant::now() < until {
            let checkpoint = Version::new(&self.parts.shared.lock_live().checkpoint);
            if checkpoint == *listed || checkpoint.is_newer_than(listed) {
                break;
            }
            sleep(LOOK).await;
        }
        // Everything received is durable, and nothing is being read back.
        await_settled(&self.inputs).await?;
        if self.is_watching() { Ok(()) } else { Err(AuditFailure::NotWatching) }
    }

    /// The differences that remain. For each, it asks the server again whether the object exists.
    async fn remaining_differences(
        &self,
        candidates: Vec<DifferingObject>,
        missing: Vec<(Arc<ObjectRef>, Version)>,
        listed: &Version,
        resource: &SourceResource,
    ) -> Result<DifferenceSet, AuditFailure> {
        let DifferenceSet { mut found, mut jobs, mut late } = DifferenceSet::default();
        let mut succeeded = HashSet::new();
        for DifferingObject { object, version: listed_at, matches } in candidates {
            let known = self.known_version(&object.uid);
            let Some(difference) = difference_of(&listed_at, known.as_ref(), matches) else { continue };
            // Read before the server is asked, because the object may end in between.
            let fate = match difference {
                AuditDifference::Unknown => fate_now(&self.parts, &object).await,
                AuditDifference::Newer => FormerEnd::Unknown,
            };
            let Some((version, document)) = self.as_now(resource, &object, &listed_at).await? else {
                // An unknown object came and went during the watch. The watch delivers, or has delivered, the
                // end of a known one; earlier versions are late.
                if let Some(floor) = known.filter(|_| difference == AuditDifference::Newer) {
                    found.push(report_discrepancy(&self.parts, &object, Some(&floor), Some(&listed_at)));
                    late.extend(self.versions_before_end(resource, &object, floor, &listed_at).await);
                }
                continue;
            };
            let document = pack_document(&document);
            if fate == FormerEnd::Ended {
                return Err(self.report_revived(&object).await?);
            }
            // A name has one story, in which the end of its former object comes first.
            let rival = if known.is_none() { self.rival_of_name(&object) } else { None };
            if let Some((rival, since)) = &rival {
                found.push(report_discrepancy(&self.parts, rival, Some(&since.floor), None));
                succeeded.insert(rival.uid.clone());
            }
            let witnessed = known.is_some();
            let since = match known.or_else(|| Some(rival.as_ref()?.1.floor.clone())) {
                Some(floor) => CompleteSince::since_floor(floor),
                None => CompleteSince::since_floor(left_at(&self.parts, &fate, &version)),
            };
            let listed_as = Some(&listed_at);
            found.push(report_discrepancy(
                &self.parts,
                &object,
                witnessed.then_some(&since.floor),
                listed_as,
            ));
            jobs.push(NameRead::Moved(MovedObject {
                object,
                since,
                version,
                document,
                witnessed,
                is_end: false,
                is_beyond: false,
                rival,
            }));
        }
        for (object, before) in missing {
            let Some(floor) = self.known_version(&object.uid).filter(|known| *known == before) else {
                continue;
            };
            if !succeeded.contains(&object.uid) && is_absent(&self.parts, resource, &object).await? {
                found.push(report_discrepancy(&self.parts, &object, Some(&floor), None));
                let (since, absent) = (CompleteSince::since_floor(floor), listed.clone());
                jobs.push(NameRead::Vanished(VanishedObject { object, since, absent }));
            }
        }
        Ok(DifferenceSet { found, jobs, late })
    }

    async fn send(&self, input: WriterInput) -> Result<(), WriterClosed> {
        self.inputs.send(input).await.map_err(|_| WriterClosed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_watch_may_have_missed_is_a_difference() {
        let v = Version::new;
        assert_eq!(difference_of(&v("7"), Some(&v("7")), true), None);
        assert_eq!(difference_of(&v("7"), Some(&v("9")), true), None, "the watch is ahead of the list");
        assert_eq!(difference_of(&v("10"), Some(&v("9")), true), Some(AuditDifference::Newer));
        assert_eq!(
            difference_of(&v("10"), Some(&v("9")), false),
            Some(AuditDifference::Newer),
            "it has left"
        );
        assert_eq!(difference_of(&v("10"), None, true), Some(AuditDifference::Unknown));
        assert_eq!(difference_of(&v("10"), None, false), None);
        assert_eq!(difference_of(&v("x"), Some(&v("y")), true), Some(AuditDifference::Newer));
    }
}
