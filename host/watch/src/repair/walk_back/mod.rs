//! Walks back: reads old versions of objects from the server, within the budget of one round. It writes
//! nothing, and does not change the cache.
//!
//! The pure machines [`VersionWalk`] and [`EndSearch`], or the sweep, decide what to request. The caller
//! reports the results to the writer.

pub(crate) mod budget;
pub(crate) mod compaction;
pub(crate) mod requests;
#[cfg(test)]
mod tests;
pub(crate) mod versions;

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kubewitness_core::Version;
use kubewitness_core::state::ObjectRef;

use crate::connect::request::{RequestAddress, RequestFailure};
use crate::connect::resource::SourceResource;
use crate::repair::lookup;
use crate::repair::walk_back::budget::RequestBudget;
use crate::repair::walk_back::compaction::CompactionBounds;
use crate::repair::walk_back::versions::{
    EndSearch, ExactAnswer, MetObject, NextQuestion, SearchStep, VersionWalk, bound_after, missing_between,
};
use crate::source::handle::count;
use crate::source::life::{UnwitnessedLife, WalkResult};
use crate::source::missing::reason;
use crate::source::parts::SourceParts;
use crate::source::round::CompleteSince;

/// The most versions of one object, for any budget. They are in memory at the same time.
const STORY: u32 = 4096;

/// How often a version is requested that is refused as compacted while the same server reads it for others.
pub(crate) const CONTRADICTED: u32 = 3;

/// The longest wait for an unreachable server. It sends no newer versions either, so no event waits in vain.
/// After this time its history is compacted soon after it is back.
const AWAY: Duration = Duration::from_secs(900);

const TOO_LONG: &str = "reading them back would have taken too long";
const END_UNKNOWN: &str = "the version of its deletion can't be told";
const END_COMPACTED: &str = "compaction has removed them, and the version of its deletion";

pub(crate) struct OldVersions {
    parts: Arc<SourceParts>,
    resource: SourceResource,
    budget: RequestBudget,
    compaction: Arc<CompactionBounds>,
    /// How long to wait for a busy server, and for an unreachable one.
    busy: Duration,
    away: Duration,
    /// Whether the server refuses to read old versions. It is logged once, and not tried again in this round.
    refused: AtomicBool,
}

/// How an object that no longer exists ended.
#[derive(Default)]
pub(crate) struct ObjectEnd {
    /// The version of its deletion, if it could be found.
    pub version: Option<Version>,
    /// Its last versions before that, and what is missing above them.
    pub walked: Vec<WalkResult>,
    /// Other objects that were seen under its name.
    pub met: Vec<MetObject>,
    /// Whether a version was lost while the watch counted as complete.
    pub was_lost: bool,
}

/// Whether an object existed at its floor.
enum WalkFloor {
    Firm,
    Sunk,
    Untold(&'static str),
}

/// A name, and a time in which nobody watched it.
#[derive(Clone, Copy)]
pub(crate) struct UnwatchedSpan<'a> {
    /// Any object of this name.
    pub like: &'a ObjectRef,
    pub floor: &'a Version,
    pub until: &'a Version,
    /// Whether no unknown object has the name at the end. Otherwise the server is asked.
    pub is_over: bool,
}

/// The time limit for reading one object back, in the round's own time.
#[derive(Clone, Copy)]
pub(crate) struct ReadDeadline {
    until: Duration,
}

impl OldVersions {
    pub fn new(
        parts: Arc<SourceParts>,
        resource: SourceResource,
        budget: RequestBudget,
        compaction: Arc<CompactionBounds>,
    ) -> Self {
        let busy = parts.tuning.walk.time;
        Self { parts, resource, budget, compaction, busy, away: AWAY, refused: AtomicBool::new(false) }
    }

    /// For single objects, while the watch goes on. `newest` is the newest version that is asked for.
    pub fn beside_watch(parts: &Arc<SourceParts>, resource: &SourceResource, newest: Option<u128>) -> Self {
        let walk = &parts.tuning.walk;
        let budget = RequestBudget::new(walk.requests, walk.time);
        let compaction = Arc::new(CompactionBounds::new(newest));
        Self::new(Arc::clone(parts), resource.clone(), budget, compaction)
    }

    /// Sets the patience for a read that somebody waits for.
    pub fn with_patience(self, patience: Duration) -> Self {
        Self { busy: patience, away: patience, ..self }
    }

    pub fn source_parts(&self) -> Arc<SourceParts> {
        Arc::clone(&self.parts)
    }

    pub fn object_deadline(&self) -> ReadDeadline {
        ReadDeadline { until: self.budget.time_spent() + self.parts.tuning.walk.time_per_object }
    }

    pub fn collection_address(&self) -> RequestAddress {
        self.resource.collection_address()
    }

    pub fn is_refused(&self) -> bool {
        self.refused.load(Ordering::Relaxed)
    }

    /// The versions of one object that are missing below a known one.
    pub async fn walk_versions(
        &self,
        deadline: ReadDeadline,
        object: &ObjectRef,
        since: CompleteSince,
        newest: &Version,
    ) -> WalkResult {
        let most = self.parts.tuning.walk.requests_per_object.min(STORY);
        let lowest = since.last.as_ref().unwrap_or(&since.floor).clone();
        let mut walk = VersionWalk::new(&object.uid, since, newest.clone(), most);
        loop {
            let at = match walk.next(self.compaction.compacted_through()) {
                NextQuestion::Ask(at) => at,
                NextQuestion::Done(walked) => return walked,
            };
            if !self.may_ask(object, deadline).await {
                if self.is_found_out(&at).await {
                    continue;
                }
                return walk.take_result(Some((reason::BUDGET, TOO_LONG)));
            }
            let answer = self.fetch_object_at(object, &at).await;
            let is_found =
                |uid: &str, version: &Version| *uid == *object.uid && version.is_newer_than(&lowest);
            if matches!(&answer, ExactAnswer::Item { uid, version, .. } if is_found(uid, version)) {
                count(&self.parts.shared.counters.walked_back, 1);
            }
            if let Some(walked) = walk.take_answer(answer) {
                return walked;
            }
        }
    }

    /// The end of an object that no longer existed at `absent`.
    pub async fn find_end(
        &self,
        deadline: ReadDeadline,
        object: &ObjectRef,
        since: CompleteSince,
        absent: &Version,
    ) -> ObjectEnd {
        let (since, floor) = self.check_floor(object, since).await;
        let mut ended = self.end_since(deadline, object, &since, absent).await;
        let is_next =
            ended.version.as_ref().is_some_and(|end| end.directly_before().as_ref() == Some(&since.floor));
        match floor {
            WalkFloor::Sunk => ended.was_lost = true,
            // It may have ended before the floor, and this may be another object's version.
            WalkFloor::Untold(reason) if is_next && ended.walked.is_empty() => {
                let last = since.last.as_ref().unwrap_or(&since.floor);
                let before = Version::new(&bound_after(ended.version.as_ref().unwrap_or(&since.floor)));
                ended.walked = vec![missing_result(last, &before, reason, END_UNKNOWN)];
                ended.version = None;
            }
            WalkFloor::Untold(_) | WalkFloor::Firm => {}
        }
        ended
    }

    /// Whether an object at the floor equals its last witnessed version. If its end is at or below the floor,
    /// that end was lost.
    async fn check_floor(&self, object: &ObjectRef, mut since: CompleteSince) -> (CompleteSince, WalkFloor) {
        let Some(last) = since.last.clone().filter(|last| since.floor.is_newer_than(last)) else {
            return (since, WalkFloor::Firm);
        };
        let floor = match self.object_at(object, &since.floor).await {
            Some(ExactAnswer::Item { uid, version, .. }) if uid == object.uid && version == last => {
                WalkFloor::Firm
            }
            Some(ExactAnswer::Item { .. } | ExactAnswer::Nobody) => WalkFloor::Sunk,
            Some(ExactAnswer::Compacted) => WalkFloor::Untold(reason::COMPACTED),
            Some(ExactAnswer::Refused(_)) => WalkFloor::Untold(reason::UNREADABLE),
            None => WalkFloor::Untold(reason::BUDGET),
        };
        if matches!(floor, WalkFloor::Sunk) {
            since.lower_floor();
        }
        (since, floor)
    }

    /// Whether an object does not exist now.
    pub async fn is_absent(&self, object: &ObjectRef) -> Result<bool, RequestFailure> {
        lookup::is_absent(&self.parts, &self.resource, object).await
    }

    /// The object with a name at a version, if the budget allows another request.
    pub async fn object_at(&self, object: &ObjectRef, at: &Version) -> Option<ExactAnswer> {
        if self.take() { Some(self.fetch_object_at(object, at).await) } else { None }
    }

    async fn end_since(
        &self,
        deadline: ReadDeadline,
        object: &ObjectRef,
        since: &CompleteSince,
        absent: &Version,
    ) -> ObjectEnd {
        let floor = &since.floor;
        let lost = |reason, why: &str, search: EndSearch| {
            // The answers so far show that it had ended by then.
            let walked = missing_result(floor, &search.absent_version(), reason, why);
            ObjectEnd { walked: vec![walked], met: search.into_met(), ..ObjectEnd::default() }
        };
        let Some(mut search) = EndSearch::new(&object.uid, floor, absent) else {
            let walked =
                missing_result(floor, absent, reason::UNREADABLE, "the server's versions have no order");
            return ObjectEnd { walked: vec![walked], ..ObjectEnd::default() };
        };
        loop {
            let at = match search.next(self.compaction.compacted_through()) {
                SearchStep::Ask(at) => at,
                SearchStep::Ended { version, last: Some((last, document)) } => {
                    let mut walked = vec![self.walk_versions(deadline, object, since.clone(), &last).await];
                    if version.is_none() {
                        walked.push(missing_result(
                            &last,
                            &search.absent_version(),
                            reason::COMPACTED,
                            END_COMPACTED,
                        ));
                    }
                    if last.is_newer_than(floor) {
                        count(&self.parts.shared.counters.walked_back, 1);
                        walked[0].found.push((last, document));
                    }
                    return ObjectEnd { version, walked, met: search.into_met(), ..ObjectEnd::default() };
                }
                SearchStep::Ended { version: Some(version), last: None } => {
                    let met = search.into_met();
                    return ObjectEnd { version: Some(version), met, ..ObjectEnd::default() };
                }
                SearchStep::Ended { version: None, last: None } => {
                    return lost(reason::COMPACTED, END_COMPACTED, search);
                }
            };
            if !self.may_ask(object, deadline).await {
                if self.is_found_out(&at).await {
                    continue;
                }
                return lost(reason::BUDGET, TOO_LONG, search);
            }
            let answer = self.fetch_object_at(object, &at).await;
            if let Err(why) = search.take_answer(&at, answer) {
                return lost(reason::UNREADABLE, &why.to_string(), search);
            }
        }
    }

    /// The whole life of an unknown object above a floor, and the lives of unknown objects that had its name
    /// after it.
    pub async fn find_lives(
        &self,
        deadline: ReadDeadline,
        met: MetObject,
        span: UnwatchedSpan<'_>,
        known: &(dyn Fn(&str) -> bool + Sync),
    ) -> Vec<UnwitnessedLife> {
        let (mut seen, mut waiting) = (HashSet::from([met.uid.clone()]), VecDeque::from([met]));
        let mut lives = Vec::new();
        while let Some(met) = waiting.pop_front() {
            let (life, others) = self.find_life(deadline, met, span).await;
            lives.push(life);
            let unknown = others.into_iter().filter(|met| !known(&met.uid));
            waiting.extend(unknown.filter(|met| seen.insert(met.uid.clone())));
        }
        lives
    }

    /// One life, and other objects that were seen under its name.
    async fn find_life(
        &self,
        deadline: ReadDeadline,
        met: MetObject,
        span: UnwatchedSpan<'_>,
    ) -> (UnwitnessedLife, Vec<MetObject>) {
        let object = ObjectRef { uid: met.uid.clone(), ..span.like.clone() };
        let below = self.versions_below(deadline, &object, &met, span.floor).await;
        if !span.is_over
            && let Some(since) = self.present_version(deadline, &object, &met, span.until).await
        {
            return (
                UnwitnessedLife { object, walked: vec![below, since], died: None, survives: true },
                Vec::new(),
            );
        }
        let ended = self.find_end(deadline, &object, CompleteSince::since_floor(met.at), span.until).await;
        let walked = results_from(below, ended.walked);
        (UnwitnessedLife { object, walked, died: ended.version, survives: false }, ended.met)
    }

    /// The present version of an object, if it still exists. If the server can't answer, the object counts as
    /// existing: an invented end would block the real one, and an audit finds objects that don't exist.
    async fn present_version(
        &self,
        deadline: ReadDeadline,
        object: &ObjectRef,
        met: &MetObject,
        until: &Version,
    ) -> Option<WalkResult> {
        let untold = |reason, why: &str| {
            Some(missing_result(&met.at, &Version::new(&bound_after(until)), reason, why))
        };
        match self.fetch_object_at(object, until).await {
            ExactAnswer::Item { uid, version, document } if uid == object.uid => {
                let mut since = self
                    .walk_versions(deadline, object, CompleteSince::since_floor(met.at.clone()), &version)
                    .await;
                if version.is_newer_than(&met.at) {
                    since.found.push((version, document));
                }
                Some(since)
            }
            ExactAnswer::Item { .. } | ExactAnswer::Nobody => None,
            ExactAnswer::Compacted => untold(reason::COMPACTED, "compaction has removed them"),
            ExactAnswer::Refused(why) => untold(reason::UNREADABLE, &why.to_string()),
        }
    }

    /// The object that was met, and the versions below it.
    async fn versions_below(
        &self,
        deadline: ReadDeadline,
        object: &ObjectRef,
        met: &MetObject,
        floor: &Version,
    ) -> WalkResult {
        let mut below = self
            .walk_versions(deadline, object, CompleteSince::since_floor(floor.clone()), &met.version)
            .await;
        count(&self.parts.shared.counters.walked_back, 1);
        below.found.push((met.version.clone(), met.document.clone()));
        below
    }

    /// Takes one request from the budget. It waits while too many documents are in memory, but no longer than
    /// the deadline of the object.
    async fn may_ask(&self, object: &ObjectRef, deadline: ReadDeadline) -> bool {
        let Some(left) = deadline.until.checked_sub(self.budget.time_spent()) else { return false };
        self.parts.repairs.has_room(object, left, &self.parts.tuning.walk).await && self.budget.take()
    }

    /// The most requests that can still be sent.
    pub fn possible_requests(&self) -> u32 {
        self.budget.possible_requests(self.parts.tuning.walk.rate)
    }

    /// Waits while another caller searches for compaction. Returns whether this version is known to be
    /// compacted.
    async fn is_found_out(&self, at: &Version) -> bool {
        drop(self.compaction.looking.lock().await);
        self.compaction.is_compacted(at)
    }

    /// Takes one request from the budget, if one is left.
    pub fn take(&self) -> bool {
        self.budget.take()
    }
}

fn missing_result(floor: &Version, before: &Version, reason: &'static str, why: &str) -> WalkResult {
    WalkResult { hole: missing_between(floor, before, reason, why), ..WalkResult::default() }
}

fn results_from(below: WalkResult, walked: Vec<WalkResult>) -> Vec<WalkResult> {
    std::iter::once(below).chain(walked).collect()
}
