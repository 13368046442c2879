//! The list of a new history: what of it is told, and what became of those whom it doesn't show.

use std::sync::Arc;

use bytes::Bytes;
use kubewitness_core::Version;
use kubewitness_core::state::ObjectRef;

use super::{Broken, Comparison, is_absent};
use crate::common::Base;
use crate::input::{Hole, Input, Step, Story, reason};
use crate::reader::Closed;
use crate::walkback::{after, between};

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
    pub(super) async fn anew(&mut self, found: Anew) -> Result<(), Closed> {
        self.at_once += 1;
        let bearer = self.parts.shared.read().brief_of_name(&found.object.namespace, &found.object.name);
        if bearer.is_some_and(|held| held.object.uid != found.object.uid) {
            self.usurpers.push(found);
            return Ok(());
        }
        self.tell_anew(found).await
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
        for unseen in std::mem::take(&mut self.unseen) {
            let object = unseen.0;
            if !is_absent(&self.parts, &self.resource, &object).await? {
                match self.base {
                    // It came after the base and is of both: what they have in common goes further.
                    Some(_) => return Err(Broken::Baseless),
                    None => continue,
                }
            }
            // If the new history ever had it, that was before it can be read.
            self.at_once += 1;
            let hole = match &self.base {
                Some(base) => self.missing_of(&object, &base.at).await,
                None => None,
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

    /// What of one object can't be read any more below a version.
    async fn missing_of(&self, object: &ObjectRef, version: &Version) -> Option<Hole> {
        let base = self.base.as_ref().filter(|base| base.at != base.common)?;
        let is_above =
            |version: &Version, floor: &Version| floor.as_str().is_empty() || version.is_newer_than(floor);
        let floor = self.told_of(&object.uid).await.filter(|told| is_above(told, &base.common));
        let floor = floor.as_ref().unwrap_or(&base.common);
        if !is_above(version, floor) {
            return None;
        }
        between(floor, version, reason::COMPACTED, "compaction has removed them")
    }

    /// What was told of an object in this epoch: by a list that a kill ended, or compaction.
    async fn told_of(&self, uid: &str) -> Option<Version> {
        let (parts, epoch) = (&self.parts, self.parts.shared.live().epoch);
        let held = parts.shared.read().brief(uid)?.resource_version;
        let number = held.number()?;
        let told = parts.witness.former(&parts.spec.name, epoch, number..=number).await.ok().flatten()?;
        (told.object.uid == uid).then_some(held)
    }

    async fn story(&self, steps: Vec<Step>) -> Result<(), Closed> {
        self.send(Input::Story(Story { round: None, epoch: None, steps, release: None })).await
    }
}

impl Base {
    /// What of those who are not known can't be read.
    fn missing(&self) -> Option<Hole> {
        let nothing_before = self.common.as_str().is_empty() && self.at == self.at.beginning();
        if self.at == self.common || nothing_before {
            return None;
        }
        let Self { at, common } = self;
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
