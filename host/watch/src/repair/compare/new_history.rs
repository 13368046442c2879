//! The list of a new history: what of it is told, and what became of those whom it doesn't show.

use std::sync::Arc;

use bytes::Bytes;
use kubewitness_core::Version;
use kubewitness_core::document::unpack;
use kubewitness_core::state::ObjectRef;

use super::{Broken, Comparison, Unseen};
use crate::judge::meaning::is_upto;
use crate::repair::history::newest_common::{Base, asking, version};
use crate::repair::lookup::is_absent;
use crate::repair::walk_back::versions::{Answer, Met, after, between};
use crate::repair::walk_back::{OldVersions, Span};
use crate::source::hole::{Hole, reason};
use crate::source::input::{Closed, Input, Step, Story};
use crate::source::life::Life;

/// Versions at which somebody is looked for whom nobody saw coming, and over all of them. So many again
/// are looked through for those who had their names before.
const LOOKED_FOR: u64 = 64;
const LOOKED_FOR_ALL: u64 = 1024;

/// One object as the new history has it.
pub(super) struct Anew {
    pub object: ObjectRef,
    pub version: Version,
    pub document: Bytes,
    /// Not in the source's selector, and it never was.
    pub is_outside: bool,
}

impl Comparison {
    /// Whoever has the name of another waits until it is known what became of that one.
    pub(super) async fn anew(&mut self, found: Anew) -> Result<(), Broken> {
        self.at_once += 1;
        if self.base.is_some() && self.told_above(&found.version, &found.object.uid).await.is_some() {
            // By a list that a kill ended, of what was there then: there is no way back behind it.
            return Err(self.baseless(&found.object));
        }
        let bearer = self.parts.shared.read().brief_of_name(&found.object.namespace, &found.object.name);
        if bearer.is_some_and(|held| held.object.uid != found.object.uid) {
            self.usurpers.push(found);
            return Ok(());
        }
        Ok(self.tell_anew(found).await?)
    }

    async fn tell_anew(&self, found: Anew) -> Result<(), Closed> {
        let Anew { object, version, document, is_outside } = found;
        let hole = if is_outside { None } else { self.missing_of(&object, &version).await };
        match hole {
            None => self.send(Input::Item { document, anew: true }).await,
            Some(hole) => self.story(vec![Step::Hole(object.into(), hole), Step::Anew(document)]).await,
        }
    }

    /// Those who were there and are not in the list; then what is not known of all others.
    pub(super) async fn all_anew(&mut self, listed: &Version) -> Result<(), Broken> {
        let base = self.base.clone();
        let newest = base.as_ref().and_then(|base| base.newest.number()).unwrap_or_default();
        let exact = asking(&self.parts, &self.resource, newest);
        let unseen = std::mem::take(&mut self.unseen);
        let each = (LOOKED_FOR_ALL / unseen.len().max(1) as u64).clamp(1, LOOKED_FOR);
        let mut left = LOOKED_FOR_ALL;
        for Unseen(object) in unseen {
            if let Some(base) = &base
                && let Some(life) = life_since(&exact, base, each, &object).await
            {
                self.at_once += 1;
                let usurper = self.usurper_of(&object);
                let before = bearers(&exact, base, &mut left, usurper, &life).await;
                self.story(before.into_iter().map(Step::Life).chain(steps(life)).collect()).await?;
                continue;
            }
            if !is_absent(&self.parts, &self.resource, &object).await? {
                match base {
                    // Where it came from is not known.
                    Some(_) => return Err(self.baseless(&object)),
                    None => continue,
                }
            }
            // If the new history ever had it, that was before it can be read.
            self.at_once += 1;
            let hole = match &base {
                Some(base) if !self.had_its_name(base, &object) => {
                    match self.missing_of(&object, &base.at).await {
                        None => self.may_have_been(base, each, &object),
                        hole => hole,
                    }
                }
                _ => None,
            };
            let hole = hole.map(|hole| Step::Hole(Arc::clone(&object), hole));
            self.story(hole.into_iter().chain([Step::Ended(object, None)]).collect()).await?;
        }
        for found in std::mem::take(&mut self.usurpers) {
            self.tell_anew(found).await?;
        }
        let hole = match &self.base {
            Some(base) => base.missing(),
            None => Some(replaced(listed)),
        };
        if let Some(hole) = hole {
            self.send(Input::SourceHole(None, hole)).await?;
        }
        Ok(())
    }

    fn usurper_of(&mut self, object: &ObjectRef) -> Option<Anew> {
        let at = self.usurpers.iter().position(|found| has_name_of(&found.object, object))?;
        Some(self.usurpers.swap_remove(at))
    }

    fn baseless(&self, object: &ObjectRef) -> Broken {
        let (source, namespace, name) = (&self.parts.spec.name, &object.namespace, &object.name);
        tracing::warn!(%source, %namespace, name, "it is there, but was not where both histories part: what is there now is listed");
        Broken::Baseless
    }

    /// Somebody who was made before the two histories parted, as far as is known, and who was not
    /// looked for at every version at which the new one may have had him.
    fn may_have_been(&self, base: &Base, versions: u64, object: &ObjectRef) -> Option<Hole> {
        let is_looked_through = base.edge.saturating_sub(base.at.number()?) <= versions;
        if is_looked_through || self.came_later(base, object) {
            return None;
        }
        let why = "the new history may have had it, and where is not known";
        between(&base.at, &version(base.edge + 1), reason::BUDGET, why)
    }

    /// Whether an object was made when the old history was alone, by what both say of the time.
    fn came_later(&self, base: &Base, object: &ObjectRef) -> bool {
        let Some(parted) = &base.parted else { return false };
        let held = self.parts.shared.read().by_uid(&object.uid).and_then(|held| unpack(&held.packed).ok());
        let held = held.and_then(|held| serde_json::from_slice::<serde_json::Value>(&held).ok());
        let made = held.as_ref().and_then(|held| held.pointer("/metadata/creationTimestamp")?.as_str());
        made.is_some_and(|made| made > parted.as_str())
    }

    /// Whether another had its name all the time in which the new history can't be read.
    fn had_its_name(&self, base: &Base, object: &ObjectRef) -> bool {
        let mut usurpers = self.usurpers.iter().filter(|found| has_name_of(&found.object, object));
        usurpers.any(|found| is_upto(&found.version, &base.common))
    }

    /// What of one object can't be read any more below a version.
    async fn missing_of(&self, object: &ObjectRef, version: &Version) -> Option<Hole> {
        let base = self.base.as_ref().filter(|base| base.at != base.common && !base.is_the_beginning())?;
        let told = self.told_above(&base.common, &object.uid).await;
        let floor = told.as_ref().unwrap_or(&base.common);
        if !is_above(version, floor) {
            return None;
        }
        between(floor, version, reason::COMPACTED, "compaction has removed them")
    }

    /// What is known of an object, if it is newer and was told in this epoch: by a list that a kill
    /// ended, or compaction.
    async fn told_above(&self, floor: &Version, uid: &str) -> Option<Version> {
        let (parts, epoch) = (&self.parts, self.parts.shared.live().epoch);
        let held = parts.shared.read().brief(uid)?.resource_version;
        // The journal is asked for few.
        let number = held.number().filter(|_| is_above(&held, floor))?;
        let told = parts.witness.former(&parts.spec.name, epoch, number..=number).await.ok().flatten()?;
        (told.object.uid == uid).then_some(held)
    }

    async fn story(&self, steps: Vec<Step>) -> Result<(), Closed> {
        self.send(Input::Story(Story { round: None, epoch: None, steps, release: None })).await
    }
}

/// Above nothing is everything.
fn is_above(version: &Version, floor: &Version) -> bool {
    floor.as_str().is_empty() || version.is_newer_than(floor)
}

fn has_name_of(one: &ObjectRef, other: &ObjectRef) -> bool {
    one.name == other.name && one.namespace == other.namespace
}

/// Nobody saw the making of some: of those who were there at the first list, who came into the selector
/// later, or were made in an outage. Then the new history may have it, too, since before the two
/// parted; who was made later was not there then.
async fn life_since(exact: &OldVersions, base: &Base, versions: u64, object: &ObjectRef) -> Option<Life> {
    let from = base.at.number()?.max(base.edge.saturating_sub(versions));
    for at in (from + 1..=base.edge).rev().map(version) {
        let Some(Answer::Item { uid, version, document }) = exact.at(object, &at).await else { continue };
        if uid == object.uid {
            let met = Met { uid, at, version, document };
            let span = Span { like: object, floor: &base.common, until: &base.newest, is_over: false };
            let mine = exact.lives(exact.errand(), met, span, &|uid| uid != object.uid).await;
            return mine.into_iter().find(|life| life.object.uid == object.uid);
        }
    }
    None
}

/// Who had the name of an object between the base and its beginning; `first` had it at the base.
async fn bearers(
    exact: &OldVersions,
    base: &Base,
    left: &mut u64,
    first: Option<Anew>,
    next: &Life,
) -> Vec<Life> {
    let (Some(lowest), Ok(born)) = (base.at.number(), u64::try_from(next.begins())) else {
        return Vec::new();
    };
    let until = version(born);
    let span = Span { like: &next.object, floor: &base.common, until: &until, is_over: true };
    let mut lives: Vec<Life> = Vec::new();
    let mut at = born;
    while at > lowest + 1 {
        if *left == 0 {
            let ObjectRef { namespace, name, .. } = &next.object;
            tracing::warn!(%namespace, name, below = at, "who had this name before may be told after it");
            break;
        }
        (at, *left) = (at - 1, *left - 1);
        let asked = version(at);
        if let Some(Answer::Item { uid, version, document }) = exact.at(&next.object, &asked).await {
            let met = Met { uid, at: asked, version, document };
            let is_known = |uid: &str| lives.iter().chain([next]).any(|life| life.object.uid == uid);
            if !is_known(&met.uid) {
                let found = exact.lives(exact.errand(), met, span, &is_known).await;
                lives.extend(found);
                // Nobody else had it while one of them had it.
                let begins = lives.iter().filter_map(|life| u64::try_from(life.begins()).ok()).min();
                at = at.min(begins.unwrap_or(at));
            }
        }
    }
    if let Some(Anew { object, version, document, .. }) = first
        && lives.iter().all(|life| life.object.uid != object.uid)
    {
        let met = Met { uid: object.uid, at: base.at.clone(), version, document };
        lives.extend(exact.lives(exact.errand(), met, span, &|_| true).await);
    }
    lives.sort_by_key(Life::begins);
    lives
}

fn steps(life: Life) -> Vec<Step> {
    let (object, mut steps) = (Arc::new(life.object), Vec::new());
    for walked in life.walked {
        steps.extend(walked.hole.map(|hole| Step::Hole(Arc::clone(&object), hole)));
        steps.extend(walked.found.into_iter().map(|(_, document)| Step::Anew(document)));
    }
    if !life.survives {
        steps.push(Step::Ended(object, life.died));
    }
    steps
}

impl Base {
    /// All of the new history can be read.
    fn is_the_beginning(&self) -> bool {
        self.common.as_str().is_empty() && self.at == self.at.beginning()
    }

    /// What of those who are not known can't be read.
    fn missing(&self) -> Option<Hole> {
        if self.at == self.common || self.is_the_beginning() {
            return None;
        }
        let Self { at, common, .. } = self;
        Some(Hole {
            after: common.to_string(),
            before: after(at),
            reason: reason::COMPACTED,
            message: format!(
                "the server's history was replaced, and can be read from version {at} on: who came and went in \
                 it before that is not known"
            ),
        })
    }
}

/// From where on both histories differ is not known: a version can be the same in both by chance.
fn replaced(listed: &Version) -> Hole {
    Hole {
        after: String::new(),
        before: after(listed),
        reason: reason::REPLACED,
        message: format!(
            "the server's history was replaced: its versions up to {listed} were not watched, and can't be \
             told from those of the old one, or not be read"
        ),
    }
}
