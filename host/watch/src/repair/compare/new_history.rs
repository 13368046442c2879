//! Compares the first list of a new history: which of its objects become states, and what happened to the
//! objects that it does not show.

use std::sync::Arc;

use bytes::Bytes;
use kubewitness_core::Version;
use kubewitness_core::document::unpack_document;
use kubewitness_core::state::ObjectRef;

use super::{ListComparison, ListFailure, UnseenObject};
use crate::judge::meaning::is_upto;
use crate::repair::history::newest_common::{HistoryBase, old_versions_reader, version_of};
use crate::repair::lookup::is_absent;
use crate::repair::walk_back::versions::{ExactAnswer, MetObject, bound_after, missing_between};
use crate::repair::walk_back::{OldVersions, UnwatchedSpan};
use crate::source::input::{ReadStory, StoryStep, WriterClosed, WriterInput};
use crate::source::life::UnwitnessedLife;
use crate::source::missing::{MissingVersions, reason};

/// The most versions at which one object is searched for whose creation nobody saw, and the most for all
/// objects together. The same number is allowed for former objects of its name.
const LOOKED_FOR: u64 = 64;
const LOOKED_FOR_ALL: u64 = 1024;

/// One object in the new history.
pub(super) struct RelistedObject {
    pub object: ObjectRef,
    pub version: Version,
    pub document: Bytes,
    /// Whether it is outside the source's selector and always was.
    pub is_outside: bool,
}

impl ListComparison {
    /// Takes one object. If its name belonged to another object, it waits until that one's end is known.
    pub(super) async fn take_relisted(&mut self, found: RelistedObject) -> Result<(), ListFailure> {
        self.at_once += 1;
        if self.base.is_some() && self.reported_above(&found.version, &found.object.uid).await.is_some() {
            // A list that was interrupted by a kill reported this object as it was then. Its earlier history
            // can't be read.
            return Err(self.note_baseless(&found.object));
        }
        let bearer = self.parts.shared.read().brief_of_name(&found.object.namespace, &found.object.name);
        if bearer.is_some_and(|held| held.object.uid != found.object.uid) {
            self.usurpers.push(found);
            return Ok(());
        }
        Ok(self.send_new_history(found).await?)
    }

    async fn send_new_history(&self, found: RelistedObject) -> Result<(), WriterClosed> {
        let RelistedObject { object, version, document, is_outside } = found;
        let hole = if is_outside { None } else { self.missing_of(&object, &version).await };
        match hole {
            None => self.send(WriterInput::Item { document, anew: true }).await,
            Some(hole) => {
                self.send_story(vec![
                    StoryStep::MissingVersions(object.into(), hole),
                    StoryStep::RelistedObject(document),
                ])
                .await
            }
        }
    }

    /// Takes the objects that existed and are not in the list. Then it reports what is unknown of all others.
    pub(super) async fn take_unlisted(&mut self, listed: &Version) -> Result<(), ListFailure> {
        let base = self.base.clone();
        let newest = base.as_ref().and_then(|base| base.newest.as_number()).unwrap_or_default();
        let exact = old_versions_reader(&self.parts, &self.resource, newest);
        let unseen = std::mem::take(&mut self.unseen);
        let each = (LOOKED_FOR_ALL / unseen.len().max(1) as u64).clamp(1, LOOKED_FOR);
        let mut left = LOOKED_FOR_ALL;
        for UnseenObject(object) in unseen {
            if let Some(base) = &base
                && let Some(life) = life_since(&exact, base, each, &object).await
            {
                self.at_once += 1;
                let usurper = self.usurper_of(&object);
                let before = lives_of_name(&exact, base, &mut left, usurper, &life).await;
                self.send_story(before.into_iter().map(StoryStep::Life).chain(steps_of_life(life)).collect())
                    .await?;
                continue;
            }
            if !is_absent(&self.parts, &self.resource, &object).await? {
                match base {
                    // The object's origin is unknown.
                    Some(_) => return Err(self.note_baseless(&object)),
                    None => continue,
                }
            }
            // If the new history ever had it, that was before the oldest readable version.
            self.at_once += 1;
            let hole = match &base {
                Some(base) if !self.had_its_name(base, &object) => {
                    match self.missing_of(&object, &base.at).await {
                        None => self.gap_if_possible(base, each, &object),
                        hole => hole,
                    }
                }
                _ => None,
            };
            let hole = hole.map(|hole| StoryStep::MissingVersions(Arc::clone(&object), hole));
            self.send_story(hole.into_iter().chain([StoryStep::Ended(object, None)]).collect()).await?;
        }
        for found in std::mem::take(&mut self.usurpers) {
            self.send_new_history(found).await?;
        }
        let hole = match &self.base {
            Some(base) => base.missing_versions(),
            None => Some(versions_of_divergence(listed)),
        };
        if let Some(hole) = hole {
            self.send(WriterInput::SourceHole(None, hole)).await?;
        }
        Ok(())
    }

    fn usurper_of(&mut self, object: &ObjectRef) -> Option<RelistedObject> {
        let at = self.usurpers.iter().position(|found| has_name_of(&found.object, object))?;
        Some(self.usurpers.swap_remove(at))
    }

    fn note_baseless(&self, object: &ObjectRef) -> ListFailure {
        let (source, namespace, name) = (&self.parts.spec.name, &object.namespace, &object.name);
        tracing::warn!(%source, %namespace, name, "an object is newer than the last version that both histories share: the present objects are listed instead");
        ListFailure::Baseless
    }

    /// The gap of an object that may have been created before the histories diverged. It is reported unless
    /// every version was searched at which the new history may have had the object.
    fn gap_if_possible(
        &self,
        base: &HistoryBase,
        versions: u64,
        object: &ObjectRef,
    ) -> Option<MissingVersions> {
        let is_looked_through = base.edge.saturating_sub(base.at.as_number()?) <= versions;
        if is_looked_through || self.came_later(base, object) {
            return None;
        }
        let why = "the new history may have had the object, at an unknown version";
        missing_between(&base.at, &version_of(base.edge + 1), reason::BUDGET, why)
    }

    /// Whether an object was created after the histories diverged, by the times that both record.
    fn came_later(&self, base: &HistoryBase, object: &ObjectRef) -> bool {
        let Some(parted) = &base.parted else { return false };
        let held =
            self.parts.shared.read().by_uid(&object.uid).and_then(|held| unpack_document(&held.packed).ok());
        let held = held.and_then(|held| serde_json::from_slice::<serde_json::Value>(&held).ok());
        let made = held.as_ref().and_then(|held| held.pointer("/metadata/creationTimestamp")?.as_str());
        made.is_some_and(|made| made > parted.as_str())
    }

    /// Whether another object had its name during the whole unreadable time of the new history.
    fn had_its_name(&self, base: &HistoryBase, object: &ObjectRef) -> bool {
        let mut usurpers = self.usurpers.iter().filter(|found| has_name_of(&found.object, object));
        usurpers.any(|found| is_upto(&found.version, &base.common))
    }

    /// The part of an object's history below a version that can no longer be read.
    async fn missing_of(&self, object: &ObjectRef, version: &Version) -> Option<MissingVersions> {
        let base = self.base.as_ref().filter(|base| base.at != base.common && !base.is_the_beginning())?;
        let reported = self.reported_above(&base.common, &object.uid).await;
        let floor = reported.as_ref().unwrap_or(&base.common);
        if !is_above(version, floor) {
            return None;
        }
        missing_between(floor, version, reason::COMPACTED, "compaction has removed them")
    }

    /// The known version of an object, if it is newer than the floor and was reported in this epoch: by a
    /// list that was killed, or before compaction.
    async fn reported_above(&self, floor: &Version, uid: &str) -> Option<Version> {
        let (parts, epoch) = (&self.parts, self.parts.shared.lock_live().epoch);
        let held = parts.shared.read().brief_by_uid(uid)?.resource_version;
        // The journal is only asked about a few objects.
        let number = held.as_number().filter(|_| is_above(&held, floor))?;
        let former_end = parts
            .witness
            .newest_version_within(&parts.spec.name, epoch, number..=number)
            .await
            .ok()
            .flatten()?;
        (former_end.object.uid == uid).then_some(held)
    }

    async fn send_story(&self, steps: Vec<StoryStep>) -> Result<(), WriterClosed> {
        self.send(WriterInput::Story(ReadStory { round: None, epoch: None, steps, release: None })).await
    }
}

/// Every version is above an unknown floor.
fn is_above(version: &Version, floor: &Version) -> bool {
    floor.as_str().is_empty() || version.is_newer_than(floor)
}

fn has_name_of(first: &ObjectRef, second: &ObjectRef) -> bool {
    first.name == second.name && first.namespace == second.namespace
}

/// Searches for an object whose creation nobody saw. It existed at the first list, entered the selector
/// later, or was created in an outage. Then the new history may have it as well, from before the histories
/// diverged. An object that was created later did not exist then.
async fn life_since(
    exact: &OldVersions,
    base: &HistoryBase,
    versions: u64,
    object: &ObjectRef,
) -> Option<UnwitnessedLife> {
    let from = base.at.as_number()?.max(base.edge.saturating_sub(versions));
    for at in (from.saturating_add(1)..=base.edge).rev().map(version_of) {
        let Some(ExactAnswer::Item { uid, version, document }) = exact.object_at(object, &at).await else {
            continue;
        };
        if uid == object.uid {
            let met = MetObject { uid, at, version, document };
            let span =
                UnwatchedSpan { like: object, floor: &base.common, until: &base.newest, is_over: false };
            let mine = exact.find_lives(exact.object_deadline(), met, span, &|uid| uid != object.uid).await;
            return mine.into_iter().find(|life| life.object.uid == object.uid);
        }
    }
    None
}

/// The objects that had a name between the base and this object's beginning. `first` had it at the base.
async fn lives_of_name(
    exact: &OldVersions,
    base: &HistoryBase,
    left: &mut u64,
    first: Option<RelistedObject>,
    next: &UnwitnessedLife,
) -> Vec<UnwitnessedLife> {
    let (Some(lowest), Ok(born)) = (base.at.as_number(), u64::try_from(next.first_version())) else {
        return Vec::new();
    };
    let until = version_of(born);
    let span = UnwatchedSpan { like: &next.object, floor: &base.common, until: &until, is_over: true };
    let mut lives: Vec<UnwitnessedLife> = Vec::new();
    let mut at = born;
    while at > lowest.saturating_add(1) {
        if *left == 0 {
            let ObjectRef { namespace, name, .. } = &next.object;
            tracing::warn!(%namespace, name, below = at, "earlier objects of this name may be journaled after this one");
            break;
        }
        (at, *left) = (at - 1, *left - 1);
        let asked = version_of(at);
        if let Some(ExactAnswer::Item { uid, version, document }) =
            exact.object_at(&next.object, &asked).await
        {
            let met = MetObject { uid, at: asked, version, document };
            let is_known = |uid: &str| lives.iter().chain([next]).any(|life| life.object.uid == uid);
            if !is_known(&met.uid) {
                let found = exact.find_lives(exact.object_deadline(), met, span, &is_known).await;
                lives.extend(found);
                // No other object had the name during these lives.
                let begins = lives.iter().filter_map(|life| u64::try_from(life.first_version()).ok()).min();
                at = at.min(begins.unwrap_or(at));
            }
        }
    }
    if let Some(RelistedObject { object, version, document, .. }) = first
        && lives.iter().all(|life| life.object.uid != object.uid)
    {
        let met = MetObject { uid: object.uid, at: base.at.clone(), version, document };
        lives.extend(exact.find_lives(exact.object_deadline(), met, span, &|_| true).await);
    }
    lives.sort_by_key(UnwitnessedLife::first_version);
    lives
}

fn steps_of_life(life: UnwitnessedLife) -> Vec<StoryStep> {
    let (object, mut steps) = (Arc::new(life.object), Vec::new());
    for walked in life.walked {
        steps.extend(walked.hole.map(|hole| StoryStep::MissingVersions(Arc::clone(&object), hole)));
        steps.extend(walked.found.into_iter().map(|(_, document)| StoryStep::RelistedObject(document)));
    }
    if !life.survives {
        steps.push(StoryStep::Ended(object, life.died));
    }
    steps
}

impl HistoryBase {
    /// Whether the whole of the new history can be read.
    fn is_the_beginning(&self) -> bool {
        self.common.as_str().is_empty() && self.at == self.at.first_of_history()
    }

    /// The hole with unknown objects that can't be read.
    fn missing_versions(&self) -> Option<MissingVersions> {
        if self.at == self.common || self.is_the_beginning() {
            return None;
        }
        let Self { at, common, .. } = self;
        Some(MissingVersions {
            after: common.to_string(),
            before: bound_after(at),
            reason: reason::COMPACTED,
            message: format!(
                "the server's history was replaced, and can be read from version {at} on: objects that came \
                 and went before that are not known"
            ),
        })
    }
}

/// The version at which two histories diverge is unknown: a version can be equal in both by chance.
fn versions_of_divergence(listed: &Version) -> MissingVersions {
    MissingVersions {
        after: String::new(),
        before: bound_after(listed),
        reason: reason::REPLACED,
        message: format!(
            "the server's history was replaced: its versions up to {listed} were not watched, and can't be \
             read or can't be told from those of the old history"
        ),
    }
}
