//! Repairs, beside the watch, what the comparison of a list found missing: one round for each list. It reads
//! missed versions back, sweeps for objects that came and went unseen, and reports to the writer, name by
//! name.

use std::sync::Arc;

use bytes::Bytes;
use futures::{StreamExt, stream};
use kubewitness_core::document::{pack_document, unpack_document};
use kubewitness_core::state::ObjectRef;
use kubewitness_core::views::DiscrepancyView;
use tokio::sync::mpsc;

use crate::repair::report::discrepancy::report_discrepancy;
use crate::repair::report::other_witnesses::OtherWitnesses;
use crate::repair::report::{NameReport, RepairReporter};
use crate::repair::sweep::VersionSweep;
use crate::repair::sweep::counts::KnownVersions;
use crate::repair::walk_back::budget::RequestBudget;
use crate::repair::walk_back::compaction::CompactionBounds;
use crate::repair::walk_back::versions::{ExactAnswer, MetObject};
use crate::repair::walk_back::{ObjectEnd, OldVersions, UnwatchedSpan};
use crate::source::handle::read;
use crate::source::input::{StoryStep, WriterClosed, WriterInput, await_durable};
use crate::source::life::{UnwitnessedLife, WalkResult};
use crate::source::parts::SourceParts;
use crate::source::round::{CompleteSince, MovedObject, NameRead, RepairRound, VanishedObject, WatchOutage};
use crate::version::version_number;

/// How many rounds may wait. A list waits until the previous round is settled.
pub(crate) const ROUNDS: usize = 1;

pub(crate) struct RoundWorker {
    parts: Arc<SourceParts>,
    inputs: mpsc::Sender<WriterInput>,
}

/// A name that was read back, and its results for the sweep.
pub(crate) struct NameWalk {
    pub report: NameReport,
    known_versions: Vec<KnownVersions>,
    /// Whether versions were lost at a time for which the watch counted as complete.
    lost: Vec<DiscrepancyView>,
}

impl NameWalk {
    /// The result of a walk that found nothing.
    fn found_nothing(object: Arc<ObjectRef>) -> Self {
        let report =
            NameReport { object, before: Vec::new(), between: Vec::new(), after: Vec::new(), waits: None };
        Self { report, known_versions: Vec::new(), lost: Vec::new() }
    }
}

impl RoundWorker {
    pub fn new(parts: Arc<SourceParts>, inputs: mpsc::Sender<WriterInput>) -> Self {
        Self { parts, inputs }
    }

    /// Runs until the writer or the reader ends. Dropping the future stops it.
    pub async fn run(self, mut rounds: mpsc::Receiver<RepairRound>) {
        while let Some(round) = rounds.recv().await {
            let cancel = round.cancel.clone();
            let worked = tokio::select! {
                () = cancel.cancelled() => {
                    let source = &self.parts.spec.name;
                    tracing::warn!(%source, "reading back is abandoned, because the server's history was replaced");
                    Ok(())
                }
                worked = self.run_round(round) => worked,
            };
            self.parts.shared.lock_live().walking = 0;
            if worked.is_err() {
                return;
            }
        }
    }

    async fn run_round(&self, mut round: RepairRound) -> Result<(), WriterClosed> {
        let begun = tokio::time::Instant::now();
        let jobs = std::mem::take(&mut round.jobs);
        let objects = jobs.len();
        let (source, swept) = (&self.parts.spec.name, round.sweep.is_some());
        tracing::info!(%source, objects, swept, "reading missed versions back");
        let before = self.read_counters();
        let others = OtherWitnesses::of(&self.parts, &round);
        let mut reporter = RepairReporter::new(&self.parts, &self.inputs, round.id, objects, others);
        let compaction = Arc::new(CompactionBounds::new(round.newest_asked(&jobs)));
        let (known_versions, met, was_lost) = self.walk_all(&round, jobs, &compaction, &mut reporter).await?;
        let holes = match round.sweep.take() {
            Some(mut outage) => {
                outage.expected = outage.expected.filter(|_| !was_lost);
                let budget = &self.parts.tuning.walk;
                let limits = RequestBudget::new(budget.sweep_requests, budget.sweep_time);
                let exact = OldVersions::new(Arc::clone(&self.parts), round.resource, limits, compaction);
                VersionSweep::new(exact, outage, known_versions, &met, &mut reporter).run().await?
            }
            None => Vec::new(),
        };
        reporter.end_report(holes).await?;
        // The writer's counts are complete once it has answered.
        await_durable(&self.inputs).await?;
        let after = self.read_counters();
        let [requests, versions, gaps] = std::array::from_fn(|at| after[at].saturating_sub(before[at]));
        let took = begun.elapsed();
        tracing::info!(%source, objects, requests, versions, gaps, ?took, "missed versions are read back");
        Ok(())
    }

    /// The numbers of requests, of found versions, and of gaps.
    fn read_counters(&self) -> [u64; 3] {
        let counters = &self.parts.shared.counters;
        [&counters.walk_back_requests, &counters.walked_back, &counters.gaps].map(read)
    }

    /// Reads all names back. Returns the results for the sweep, the uids that were met, and whether versions
    /// had been lost before the outage.
    async fn walk_all(
        &self,
        round: &RepairRound,
        jobs: Vec<NameRead>,
        compaction: &Arc<CompactionBounds>,
        reporter: &mut RepairReporter,
    ) -> Result<(Vec<KnownVersions>, Vec<String>, bool), WriterClosed> {
        let budget = &self.parts.tuning.walk;
        let limits = RequestBudget::new(budget.requests, budget.time);
        let exact =
            OldVersions::new(Arc::clone(&self.parts), round.resource.clone(), limits, Arc::clone(compaction));
        let (mut known_versions, mut met, mut was_lost) = (Vec::new(), Vec::new(), false);
        let outage = round.sweep.as_ref();
        let walking = jobs.into_iter().map(|job| walk_name(&exact, job, outage));
        let mut walking = stream::iter(walking).buffer_unordered(budget.concurrency.max(1));
        while let Some(mut walk) = walking.next().await {
            known_versions.append(&mut walk.known_versions);
            met.extend(walk.report.between.iter().map(|life| life.object.uid.clone()));
            if !walk.lost.is_empty() {
                was_lost = true;
                self.inputs.send(WriterInput::Differs(walk.lost)).await.map_err(|_| WriterClosed)?;
            }
            reporter.take_report(walk.report).await?;
        }
        Ok((known_versions, met, was_lost))
    }
}

pub(crate) async fn walk_name(exact: &OldVersions, job: NameRead, outage: Option<&WatchOutage>) -> NameWalk {
    let _permit = exact.source_parts().repairs.name(job.object()).await;
    match job {
        NameRead::Moved(moved) => read_back_moved(exact, moved, outage).await,
        NameRead::Vanished(vanished) => read_back_vanished(exact, vanished, outage).await,
    }
}

/// Reads back the versions below a listed object, and the end of its name's former object.
async fn read_back_moved(exact: &OldVersions, moved: MovedObject, outage: Option<&WatchOutage>) -> NameWalk {
    let deadline = exact.object_deadline();
    let MovedObject { object, since, version, document, witnessed, is_end, is_beyond, rival } = moved;
    let last = since.last.clone();
    let walked = exact.walk_versions(deadline, &object, since, &version).await;
    let mut lost = Vec::new();
    if walked.lost {
        lost.push(report_discrepancy(
            &exact.source_parts(),
            &object,
            last.as_ref().filter(|_| witnessed),
            Some(&version),
        ));
    }
    let begins = walked.found.first().map_or(&version, |(oldest, _)| oldest).clone();
    let mut story = story_of([&walked]);
    story.versions.extend(version_number(&version));
    story.born = version_number(&begins).filter(|_| !witnessed && walked.hole.is_none());
    story.unsure = version_number(&begins).filter(|_| !witnessed && walked.hole.is_some());
    let (mut known_versions, mut before, mut between) = (vec![story], Vec::new(), Vec::new());
    // An object from before the outage had its name all the time.
    let waits = outage.and(version_number(&begins)).filter(|_| !witnessed);
    if let Some((rival, since)) = rival {
        let CompleteSince { floor, last } = since.clone();
        let ended = exact.find_end(deadline, &rival, since, &begins).await;
        lost.extend(
            ended.was_lost.then(|| report_discrepancy(&exact.source_parts(), &rival, last.as_ref(), None)),
        );
        let floor = last.filter(|_| ended.was_lost).unwrap_or(floor);
        known_versions.push(end_of(&ended));
        // This object has the name itself.
        let span = UnwatchedSpan { like: &rival, floor: &floor, until: &begins, is_over: true };
        let known = |uid: &str| *uid == *object.uid || is_known(outage, uid);
        between = read_back_met(exact, &ended.met, span, &known).await;
        between.retain(|life| !life.is_whole() || !is_watched(outage, Some(life.first_version())));
        before = steps_of_ending(rival, ended);
    }
    known_versions.extend(between.iter().map(KnownVersions::from));
    let mut after = Vec::new();
    if witnessed || is_beyond || walked.hole.is_some() || !is_watched(outage, version_number(&begins)) {
        after = steps_of_missed(&object, walked);
        after.push(came_of(&document, is_end));
    }
    NameWalk { report: NameReport { object, before, between, after, waits }, known_versions, lost }
}

async fn read_back_vanished(
    exact: &OldVersions,
    vanished: VanishedObject,
    outage: Option<&WatchOutage>,
) -> NameWalk {
    let vanished = match existence_of_unlisted(exact, vanished).await {
        UnlistedExistence::Listed(moved) => return Box::pin(read_back_moved(exact, moved, outage)).await,
        UnlistedExistence::Since(object) => return NameWalk::found_nothing(object),
        UnlistedExistence::No(vanished) => vanished,
    };
    let VanishedObject { object, since, absent } = vanished;
    let CompleteSince { floor, last } = since.clone();
    let ended = exact.find_end(exact.object_deadline(), &object, since, &absent).await;
    let lost =
        ended.was_lost.then(|| report_discrepancy(&exact.source_parts(), &object, last.as_ref(), None));
    let floor = last.filter(|_| ended.was_lost).unwrap_or(floor);
    let is_over = outage.is_some_and(|outage| outage.is_whole);
    let span = UnwatchedSpan { like: &object, floor: &floor, until: &absent, is_over };
    let mut between = read_back_met(exact, &ended.met, span, &|uid: &str| is_known(outage, uid)).await;
    between.retain(|life| !life.is_whole() || !is_watched(outage, Some(life.first_version())));
    let mut known_versions = vec![end_of(&ended)];
    known_versions.extend(between.iter().map(KnownVersions::from));
    let before = steps_of_ending(Arc::clone(&object), ended);
    // Other objects may have existed under its name until the end of the outage.
    let waits = outage.map(|_| u128::MAX);
    NameWalk {
        report: NameReport { object, before, between, after: Vec::new(), waits },
        known_versions,
        lost: lost.into_iter().collect(),
    }
}

/// Whether an object that was not listed exists all the same.
enum UnlistedExistence {
    No(VanishedObject),
    /// It existed at the list's version, with this content.
    Listed(MovedObject),
    /// It exists now. Its content at the list's version is unknown; an audit compares it again.
    Since(Arc<ObjectRef>),
}

/// Checks an object that was not listed, because a list can lack an existing object. It asks for the object
/// at the list's version, or else for its present version. An invented end would block the real one.
async fn existence_of_unlisted(exact: &OldVersions, vanished: VanishedObject) -> UnlistedExistence {
    let VanishedObject { object, since, absent } = &vanished;
    let answer = if absent.is_comparable() { exact.object_at(object, absent).await } else { None };
    match answer {
        Some(ExactAnswer::Item { uid, version, document }) if uid == object.uid => {
            let (object, since, document) = (Arc::clone(object), since.clone(), pack_document(&document));
            UnlistedExistence::Listed(MovedObject {
                object,
                since,
                version,
                document,
                witnessed: true,
                is_end: false,
                is_beyond: false,
                rival: None,
            })
        }
        Some(ExactAnswer::Item { .. } | ExactAnswer::Nobody) => UnlistedExistence::No(vanished),
        Some(ExactAnswer::Compacted | ExactAnswer::Refused(_)) | None => {
            match exact.is_absent(object).await {
                Ok(false) => UnlistedExistence::Since(Arc::clone(object)),
                // If the server can't answer, the list is believed.
                Ok(true) | Err(_) => UnlistedExistence::No(vanished),
            }
        }
    }
}

/// Reads back the unknown objects that were seen under a name.
async fn read_back_met(
    exact: &OldVersions,
    met: &[MetObject],
    span: UnwatchedSpan<'_>,
    known: &(dyn Fn(&str) -> bool + Sync),
) -> Vec<UnwitnessedLife> {
    let mut lives: Vec<UnwitnessedLife> = Vec::new();
    for met in met {
        let is_met = lives.iter().any(|life| life.object.uid == met.uid);
        if !is_met && !known(&met.uid) {
            lives.extend(exact.find_lives(exact.object_deadline(), met.clone(), span, known).await);
        }
    }
    lives
}

/// Whether the watch delivers the object. If a part was listed later, the watch delivers what began since,
/// and every later object of the name, in order.
fn is_watched(outage: Option<&WatchOutage>, begins: Option<u128>) -> bool {
    outage.is_some_and(|outage| begins > version_number(&outage.listed))
}

fn is_known(outage: Option<&WatchOutage>, uid: &str) -> bool {
    outage.is_some_and(|outage| outage.known.contains(uid))
}

/// The step of a listed or watched document. A document that can't be unpacked is kept as a poison message.
pub(crate) fn came_of(document: &[u8], is_end: bool) -> StoryStep {
    let document = unpack_document(document).unwrap_or_else(|error| Bytes::from(error.to_string()));
    if is_end { StoryStep::Gone(document) } else { StoryStep::Version(document) }
}

/// The steps of an object's last versions and its end.
fn steps_of_ending(object: Arc<ObjectRef>, ended: ObjectEnd) -> Vec<StoryStep> {
    let walked = ended.walked.into_iter();
    let mut steps: Vec<StoryStep> = walked.flat_map(|walked| steps_of_missed(&object, walked)).collect();
    steps.push(StoryStep::Ended(object, ended.version));
    steps
}

fn steps_of_missed(object: &Arc<ObjectRef>, walked: WalkResult) -> Vec<StoryStep> {
    let mut steps: Vec<StoryStep> =
        walked.hole.into_iter().map(|hole| StoryStep::MissingVersions(Arc::clone(object), hole)).collect();
    steps.extend(walked.found.into_iter().map(|(_, document)| StoryStep::Missed(document)));
    steps
}

fn story_of<'a>(walked: impl IntoIterator<Item = &'a WalkResult>) -> KnownVersions {
    let found = walked.into_iter().flat_map(|walked| &walked.found);
    KnownVersions {
        versions: found.filter_map(|(version, _)| version_number(version)).collect(),
        ..KnownVersions::default()
    }
}

fn end_of(ended: &ObjectEnd) -> KnownVersions {
    KnownVersions { died: ended.version.as_ref().and_then(version_number), ..story_of(&ended.walked) }
}
