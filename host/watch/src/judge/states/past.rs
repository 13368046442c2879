//! Builds states for the past: late versions, objects that have ended, whole lives that a sweep found, and
//! gaps.

use std::sync::Arc;

use bytes::Bytes;
use kubewitness_core::Version;
use kubewitness_core::project::{self, ObjectEnvelope};
use kubewitness_core::state::{Change, Gap, ObjectRef, Status};
use kubewitness_core::status::StatusRules;

use super::{EventObject, EventOrigin, NewState, PastState, StateMaker, unknown_status};
use crate::judge::batch::CacheNote;
use crate::judge::meaning::JudgedEvent;
use crate::judge::object::matches_labels;
use crate::source::handle::count;
use crate::source::life::UnwitnessedLife;
use crate::source::missing::MissingVersions;

impl StateMaker {
    /// Takes a version that came after the end of its object. The journal stores each version once.
    pub fn take_late_version(&mut self, document: Bytes) {
        let bytes = document.clone();
        match project::read_envelope(&bytes) {
            Ok(envelope) => {
                let version = Version::new(&envelope.resource_version);
                let (origin, event, past) =
                    (EventOrigin::Listed, JudgedEvent::Present, Some(PastState::default()));
                self.push_state(
                    Change::Present,
                    EventObject { envelope, version, document, origin, event, past },
                    None,
                );
            }
            Err(error) => self.keep_poison(document, &error.to_string()),
        }
    }

    /// Takes an object that a comparison no longer found.
    pub fn take_vanished(&mut self, object: &ObjectRef, version: Option<Version>) {
        let known = self.batch.known_object(&self.parts.shared.read(), &object.uid);
        // A new uid with its name may have shown its end meanwhile.
        if let Some(known) = known {
            self.take_unwatched_end(&known, version.unwrap_or_else(|| Version::new("")));
        }
    }

    pub fn object_hole(&mut self, object: Arc<ObjectRef>, hole: &MissingVersions) {
        let known = self.batch.known_object(&self.parts.shared.read(), &object.uid);
        let gap = self.make_gap(Some(ObjectRef::clone(&object)), hole);
        self.gap_log.note_gap(&gap);
        let status = known.as_ref().map(|known| Arc::clone(&known.status)).unwrap_or_else(unknown_status);
        let made = NewState {
            change: Change::Gap,
            object,
            owner: known.and_then(|known| known.owner),
            controller: None,
            version: Version::new(&hole.before),
            previous: Some(Arc::clone(&status)),
            status,
            document: serde_json::to_vec(&gap).unwrap_or_default().into(),
            base: None,
            base_secretless_under: None,
            note: CacheNote::default(),
        };
        self.push(made, Some(&gap));
    }

    pub fn source_hole(&mut self, hole: &MissingVersions) {
        let gap = self.make_gap(None, hole);
        self.gap_log.note_gap(&gap);
        count(&self.parts.shared.counters.gaps, 1);
        self.batch.gaps.push(gap);
    }

    fn make_gap(&self, object: Option<ObjectRef>, hole: &MissingVersions) -> Gap {
        Gap {
            source: self.parts.spec.name.clone(),
            object,
            epoch: self.epoch,
            after: hole.after.clone(),
            before: hole.before.clone(),
            reason: hole.reason.to_string(),
            message: hole.message.clone(),
            recorded_ms: self.parts.clock.now_ms(),
        }
    }

    /// Takes the whole life of an unknown object in one batch.
    pub fn take_life(&mut self, life: UnwitnessedLife) {
        let object = Arc::new(life.object);
        let mut shown = None;
        for walked in life.walked {
            if let Some(hole) = walked.hole {
                self.object_hole(Arc::clone(&object), &hole);
            }
            for (_, document) in walked.found {
                // The repair counts its own documents until they are dropped.
                let document = Bytes::copy_from_slice(&document);
                let bytes = document.clone();
                match project::read_envelope(&bytes) {
                    Ok(envelope) => self.take_lived_version(&mut shown, envelope, document, life.survives),
                    Err(error) => self.keep_poison(document, &error.to_string()),
                }
            }
        }
        let Some(status) = shown else { return };
        if life.survives {
            return;
        }
        let version = life.died.unwrap_or_else(|| Version::new(""));
        let made = NewState {
            change: Change::Gone,
            object,
            owner: None,
            controller: None,
            version,
            status: self.statuses.share_status(StatusRules::deleted_status(&status), None),
            previous: Some(status),
            document: Bytes::new(),
            base: None,
            base_secretless_under: None,
            note: CacheNote { past: true, ..CacheNote::default() },
        };
        self.push(made, None);
    }

    /// Takes one version of a life. `shown` is the status of the last version that was in the selector.
    fn take_lived_version(
        &mut self,
        shown: &mut Option<Arc<Status>>,
        envelope: ObjectEnvelope<'_>,
        document: Bytes,
        survives: bool,
    ) {
        let matching = matches_labels(&self.parts, &envelope);
        if !matching && shown.is_none() {
            return;
        }
        let version = Version::new(&envelope.resource_version);
        let (origin, event) = (EventOrigin::Listed, JudgedEvent::Present);
        let mut seen = EventObject { envelope, version, document, origin, event, past: None };
        if survives {
            self.apply_event(seen, None);
        } else {
            seen.past = Some(PastState { status: shown.clone() });
            self.push_state(if matching { Change::Present } else { Change::Left }, seen, None);
        }
        *shown = matching.then(|| self.batch.states.last().map(|state| Arc::clone(&state.status))).flatten();
    }
}
