//! Makes states from the bytes of events and collects them into one append.
//!
//! The document of a state must be the exact bytes of the server, and each state needs its owners, its former
//! status and a result of the search for secrets. All of that is known only here, while both versions of the
//! object are at hand. So a state is complete when it is made, and no later stage reads the document again.
//! It decides with [`judge_event`], never waits, and knows neither the journal nor the server.

mod past;

use std::sync::Arc;

use bytes::Bytes;
use kubewitness_core::Version;
use kubewitness_core::document::pack_document;
use kubewitness_core::events;
use kubewitness_core::limits::ERROR_TEXT;
use kubewitness_core::ports::{PoisonMessage, WitnessedState};
use kubewitness_core::project::{self, ObjectEnvelope, ObjectOutline};
use kubewitness_core::redact::SecretDigests;
use kubewitness_core::state::{Change, Gap, ObjectRef, RulesPrint, StateId, Status};
use kubewitness_core::status::StatusRules;

use crate::cache::known::KnownObjects;
use crate::cache::{KeyMaker, RECENT_DOCUMENT, StatusTable};
use crate::connect::resource::group_version;
use crate::judge::batch::{CacheNote, StateBatch};
use crate::judge::gap_log::GapLog;
use crate::judge::meaning::{EventMeaning, JudgedEvent, ObservedEvent, judge_event};
use crate::judge::object::{check, matches_labels, object_reference, with_kind};
use crate::judge::owners::{self, ObjectOwners, object_owners};
use crate::source::handle::count;
use crate::source::parts::SourceParts;
use crate::source::round::{CompleteSince, MovedObject};

pub(crate) struct StateMaker {
    parts: Arc<SourceParts>,
    pub epoch: u32,
    pub batch: StateBatch,
    statuses: StatusTable,
    keyer: Arc<KeyMaker>,
    pub gap_log: GapLog,
}

/// How an object arrived.
#[derive(Clone, Copy)]
pub(crate) enum EventOrigin<'a> {
    /// In a list, or from the past. The next version is not expected soon.
    Listed,
    /// Read back from the past. The watch may have delivered a newer version meanwhile.
    ReadBack,
    /// Delivered by the watch as a change.
    Watched(WatchedTimes<'a>),
}

#[derive(Clone, Copy)]
pub(crate) struct WatchedTimes<'a> {
    /// The outline of its bytes.
    pub outline: &'a ObjectOutline,
    /// MODIFIED, not ADDED.
    pub modifies: bool,
    /// The version at which the watch began.
    pub opened: Option<&'a Version>,
}

/// The result of an event.
pub(crate) enum EventOutcome {
    Poison,
    Taken(Version),
    /// It waits until the versions before it have been read back.
    Waits(Version, MovedObject),
}

/// The object of one event, read as far as needed.
struct EventObject<'a> {
    envelope: ObjectEnvelope<'a>,
    version: Version,
    document: Bytes,
    origin: EventOrigin<'a>,
    event: JudgedEvent,
    /// The former status of an object that no longer exists. It is journaled, but never shown.
    past: Option<PastState>,
}

/// The predecessor of a state from the past.
#[derive(Default)]
struct PastState {
    status: Option<Arc<Status>>,
}

/// A state without its id and its times.
struct NewState {
    change: Change,
    object: Arc<ObjectRef>,
    owner: Option<Arc<ObjectRef>>,
    controller: Option<Arc<ObjectRef>>,
    version: Version,
    status: Arc<Status>,
    previous: Option<Arc<Status>>,
    document: Bytes,
    base: Option<Bytes>,
    /// The rules under which the base was found to have no secret.
    base_secretless_under: Option<RulesPrint>,
    note: CacheNote,
}

impl StateMaker {
    pub fn new(parts: Arc<SourceParts>, epoch: u32) -> Self {
        let keyer = parts.shared.read().key_maker();
        Self {
            parts,
            epoch,
            batch: StateBatch::default(),
            statuses: StatusTable::default(),
            keyer,
            gap_log: GapLog::default(),
        }
    }

    /// Takes an object that was listed or read back.
    pub fn take_item(&mut self, document: Bytes, origin: EventOrigin<'_>, event: JudgedEvent) {
        let bytes = document.clone();
        match project::read_envelope(&bytes) {
            Ok(envelope) => {
                // Missed versions before it have been searched for already.
                self.observe_object(&bytes, document, envelope, origin, event, None);
            }
            Err(error) => self.keep_poison(document, &error.to_string()),
        }
    }

    /// Takes an object with its envelope. If it is not an object of this kind, `raw` is kept as a poison
    /// message. The version, if the watch has one, counts for the checkpoint.
    pub fn observe_object(
        &mut self,
        raw: &Bytes,
        document: Bytes,
        envelope: ObjectEnvelope<'_>,
        origin: EventOrigin<'_>,
        event: JudgedEvent,
        complete: Option<&Version>,
    ) -> EventOutcome {
        if let Err(error) = check(&self.parts, &envelope) {
            self.keep_poison(raw.clone(), &error.to_string());
            return EventOutcome::Poison;
        }
        let version = Version::new(&envelope.resource_version);
        let document = with_kind(document, &envelope, &self.parts.spec.api_version, &self.parts.spec.kind);
        let seen = EventObject { envelope, version: version.clone(), document, origin, event, past: None };
        match self.apply_event(seen, complete) {
            None => EventOutcome::Taken(version),
            Some(moved) => EventOutcome::Waits(version, moved),
        }
    }

    /// Keeps bytes that are not an object, and counts them.
    pub fn keep_poison(&mut self, raw: Bytes, error: &str) {
        count(&self.parts.shared.counters.poison, 1);
        let mut cut = error.len().min(ERROR_TEXT);
        while !error.is_char_boundary(cut) {
            cut -= 1;
        }
        let error = error[..cut].to_string();
        tracing::warn!(source = %self.parts.spec.name, bytes = raw.len(), "a poison message is kept: {error}");
        self.batch.poison.push(PoisonMessage { raw, error, observed_ms: self.parts.clock.now_ms() });
    }

    /// Returns `Some` if the event was not taken because it shows that an earlier event was lost or came out
    /// of order.
    fn apply_event(&mut self, seen: EventObject<'_>, complete: Option<&Version>) -> Option<MovedObject> {
        let ObjectEnvelope { uid, namespace, name, .. } = &seen.envelope;
        let (known, rival) = self.batch.known_and_rival(&self.parts.shared.read(), uid, namespace, name);
        let is_renamed =
            |known: &KnownObjects| known.object.name != **name || known.object.namespace != **namespace;
        if let Some(known) = known.as_ref().filter(|known| is_renamed(known)) {
            let ObjectRef { namespace, name, uid, .. } = &*known.object;
            let error = format!("its uid {uid} is known as {namespace}/{name}: no two objects have one uid");
            self.keep_poison(seen.document, &error);
            return None;
        }
        let watched = match seen.origin {
            EventOrigin::Watched(watched) => Some(watched),
            EventOrigin::Listed | EventOrigin::ReadBack => None,
        };
        let beginning = matches!(seen.origin, EventOrigin::ReadBack).then(|| seen.version.first_of_history());
        let judgement = judge_event(
            &ObservedEvent {
                event: seen.event,
                version: &seen.version,
                matches: matches_labels(&self.parts, &seen.envelope),
                complete,
                opened: watched.and_then(|watched| watched.opened).or(beginning.as_ref()),
            },
            known.as_ref().map(|known| &known.version),
            rival.as_ref().map(|rival| &rival.version),
        );
        if let Some(rival) = rival.filter(|_| judgement.rival_gone) {
            if watched.is_some() {
                return Some(
                    self.missed_object(seen, Some((rival.object, CompleteSince::since_floor(rival.version)))),
                );
            }
            // It is unknown what happened to the object in the other history.
            self.take_unwatched_end(&rival, Version::new(""));
        }
        let counters = &self.parts.shared.counters;
        // Without a selector, a source sees an object from its beginning. With a selector, an object that
        // ends inside of it was in it before.
        let is_later = watched.is_some_and(|watched| {
            seen.event == JudgedEvent::Deleted || watched.modifies && self.parts.spec.match_labels.is_empty()
        });
        let is_unborn = is_later && known.is_none();
        match judgement.meaning {
            EventMeaning::Unheard => return Some(self.missed_object(seen, None)),
            EventMeaning::Present | EventMeaning::Gone if is_unborn => {
                return Some(self.missed_object(seen, None));
            }
            EventMeaning::Present => self.push_state(Change::Present, seen, known.as_ref()),
            EventMeaning::Left => self.push_state(Change::Left, seen, known.as_ref()),
            EventMeaning::Gone => self.push_state(Change::Gone, seen, known.as_ref()),
            EventMeaning::Duplicate => count(&counters.duplicates, 1),
            EventMeaning::Stale => count(&counters.stale, 1),
            EventMeaning::Past => {
                let change = if seen.event == JudgedEvent::Deleted { Change::Gone } else { Change::Present };
                self.push_state(change, EventObject { past: Some(PastState::default()), ..seen }, None);
            }
            EventMeaning::Late => {
                count(&counters.stale, 1);
                self.push_state(
                    Change::Present,
                    EventObject { past: Some(PastState::default()), ..seen },
                    None,
                );
            }
            EventMeaning::Outside => {}
        }
        None
    }

    /// An object with missing earlier versions. Any watch may have lost its beginning.
    fn missed_object(
        &self,
        seen: EventObject<'_>,
        rival: Option<(Arc<ObjectRef>, CompleteSince)>,
    ) -> MovedObject {
        let object = Arc::new(object_reference(&self.parts, &seen.envelope));
        let is_beginning = seen.event == JudgedEvent::Present
            && matches!(seen.origin, EventOrigin::Watched(watched) if !watched.modifies);
        let below = seen.version.directly_before().filter(|_| is_beginning);
        let since = match (&rival, below) {
            (_, Some(below)) => CompleteSince::since_floor(below),
            (Some((_, since)), None) => since.clone(),
            (None, None) => CompleteSince::since_floor(seen.version.first_of_history()),
        };
        let (version, document, is_end) =
            (seen.version, pack_document(&seen.document), seen.event == JudgedEvent::Deleted);
        MovedObject { object, since, version, document, witnessed: false, is_end, is_beyond: false, rival }
    }

    fn push_state(&mut self, change: Change, seen: EventObject<'_>, known: Option<&KnownObjects>) {
        let made;
        let outline = match seen.origin {
            // An envelope without a kind belongs to a document to which the kind was added afterwards.
            EventOrigin::Watched(WatchedTimes { outline, .. })
                if !outline.is_empty() && !seen.envelope.kind.is_empty() =>
            {
                Some(outline)
            }
            _ => {
                made = ObjectOutline::of(&seen.document).ok();
                made.as_ref()
            }
        };
        let (group, _) = group_version(&self.parts.spec.api_version);
        let derived =
            self.parts.rules.status_with_outline(group, &self.parts.spec.kind, &seen.document, outline);
        let derived = if change == Change::Gone { StatusRules::deleted_status(&derived) } else { derived };
        let before = seen.past.as_ref().and_then(|past| past.status.clone());
        let previous = known.map(|known| Arc::clone(&known.status)).or(before);
        let past = seen.past.is_some();
        let status = self.statuses.share_status(derived, previous.as_ref());
        let object = match known {
            Some(known) => Arc::clone(&known.object),
            None => Arc::new(object_reference(&self.parts, &seen.envelope)),
        };
        let listers = &self.parts.listers;
        let ObjectOwners { outermost: owner, controller } =
            match events::is_event(group, &self.parts.spec.kind) {
                true => owners::of_event(listers, &seen.envelope.namespace, &seen.document, known),
                false => object_owners(listers, &seen.envelope, known),
            };
        let base = known.and_then(KnownObjects::document_hint);
        let (version, document) = (seen.version, seen.document);
        let has_recent = matches!(seen.origin, EventOrigin::Watched(_)) && document.len() <= RECENT_DOCUMENT;
        let keys = outline.filter(|_| has_recent && change == Change::Present && !past).map(|outline| {
            let before = known.and_then(|known| known.keys.as_ref());
            self.keyer.next(&object, owner.as_deref(), &document, outline, before)
        });
        let base_secretless_under = known.and_then(|known| known.secretless_under);
        let note = CacheNote { past, keys, secretless_under: None };
        let made = NewState {
            change,
            object,
            owner,
            controller,
            version,
            status,
            previous,
            document,
            base,
            base_secretless_under,
            note,
        };
        self.push(made, None);
    }

    /// Takes the end of an object whose deletion was not watched. Its last content is unknown.
    fn take_unwatched_end(&mut self, known: &KnownObjects, version: Version) {
        let made = NewState {
            change: Change::Gone,
            object: Arc::clone(&known.object),
            owner: known.owner.clone(),
            controller: None,
            version,
            status: self.statuses.share_status(StatusRules::deleted_status(&known.status), None),
            previous: Some(Arc::clone(&known.status)),
            document: Bytes::new(),
            base: None,
            base_secretless_under: None,
            note: CacheNote::default(),
        };
        self.push(made, None);
    }

    fn push(&mut self, mut made: NewState, gap: Option<&Gap>) {
        let counters = &self.parts.shared.counters;
        let counter = match made.change {
            Change::Present => &counters.present,
            Change::Gone => &counters.gone,
            Change::Left => &counters.left,
            Change::Gap => &counters.gaps,
        };
        count(counter, 1);
        let quotes_none_under = self.quotes_none_under(&mut made);
        let witnessed = WitnessedState {
            id: StateId::of(&self.parts.spec.name, self.epoch, &made.object, made.change, &made.version, gap),
            change: made.change,
            object: made.object,
            owner: made.owner,
            controller: made.controller,
            resource_version: made.version,
            status: made.status,
            previous: made.previous,
            observed_ms: self.parts.clock.now_ms(),
            document: made.document,
            base: made.base,
            quotes_none_under,
        };
        self.batch.push(witnessed, made.note);
    }

    /// The rules under which the texts of a state quote no secret. None also where the texts say so alone, and where a
    /// document is not at hand. Notes whether the next version has to look at this document again.
    fn quotes_none_under(&self, made: &mut NewState) -> Option<RulesPrint> {
        let previous = made.previous.as_deref().filter(|status| SecretDigests::may_stand_in(status));
        let is_searched = previous.is_some() || SecretDigests::may_stand_in(&made.status);
        let is_at_hand = !made.document.is_empty() && (previous.is_none() || made.base.is_some());
        if !is_searched || !is_at_hand || made.change == Change::Gap {
            return None;
        }
        let (rules, kind) = (self.parts.secret_rules.get()?, &self.parts.spec.kind);
        let (print, mut secrets) = (Some(rules.rules_print()), SecretDigests::default());
        rules.add_secret_words(&made.document, kind, &mut secrets).ok()?;
        made.note.secretless_under = print.filter(|_| secrets.is_empty());
        if let Some(base) =
            made.base.as_ref().filter(|_| previous.is_some() && made.base_secretless_under != print)
        {
            rules.add_secret_words(base, kind, &mut secrets).ok()?;
        }
        let quotes_none = |status: &Status| secrets.hidden_in(status).is_none();
        print.filter(|_| quotes_none(&made.status) && previous.is_none_or(quotes_none))
    }
}

fn unknown_status() -> Arc<Status> {
    Arc::new(Status { phase: "Unknown".to_string(), ..Status::default() })
}
