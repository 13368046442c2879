//! Makes states from the bytes of events and collects them into one append. It decides with [`judge`], never
//! waits, and knows neither the journal nor the server.

mod past;

use std::sync::Arc;

use bytes::Bytes;
use kubewitness_core::Version;
use kubewitness_core::document::pack;
use kubewitness_core::events;
use kubewitness_core::limits::ERROR_TEXT;
use kubewitness_core::ports::{Poison, Witnessed};
use kubewitness_core::project::{self, Envelope, Outline};
use kubewitness_core::redact::Secrets;
use kubewitness_core::state::{Change, Gap, ObjectRef, RulesPrint, StateId, Status};
use kubewitness_core::status::Rules;

use crate::cache::known::Known;
use crate::cache::{Keyer, RECENT_DOCUMENT, Statuses};
use crate::connect::resource::group_version;
use crate::judge::batch::{Batch, Note};
use crate::judge::gap_log::GapLog;
use crate::judge::meaning::{Event, Meaning, Seen, judge};
use crate::judge::object::{check, matches, reference, with_kind};
use crate::judge::owners::{self, Owners, owners};
use crate::source::handle::count;
use crate::source::parts::Parts;
use crate::source::round::{Moved, Since};

pub(crate) struct StateMaker {
    parts: Arc<Parts>,
    pub epoch: u32,
    pub batch: Batch,
    statuses: Statuses,
    keyer: Arc<Keyer>,
    pub gap_log: GapLog,
}

/// How an object arrived.
#[derive(Clone, Copy)]
pub(crate) enum Came<'a> {
    /// In a list, or from the past. The next version is not expected soon.
    Listed,
    /// Read back. The watch may have brought a newer version meanwhile.
    ReadBack,
    /// As a change.
    Watched(Watched<'a>),
}

#[derive(Clone, Copy)]
pub(crate) struct Watched<'a> {
    /// The outline of its bytes.
    pub outline: &'a Outline,
    /// MODIFIED, not ADDED.
    pub modifies: bool,
    /// The version at which the watch began.
    pub opened: Option<&'a Version>,
}

/// What became of an event.
pub(crate) enum Counted {
    Poison,
    Taken(Version),
    /// It waits until the versions before it have been read back.
    Waits(Version, Moved),
}

/// The object of one event, read as far as needed.
struct Object<'a> {
    envelope: Envelope<'a>,
    version: Version,
    document: Bytes,
    came: Came<'a>,
    event: Event,
    /// The former status of an object that no longer exists. It is journaled, never shown.
    past: Option<Past>,
}

/// What preceded a state that says nothing about the present.
#[derive(Default)]
struct Past {
    status: Option<Arc<Status>>,
}

/// A state without its id and its times.
struct Made {
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
    note: Note,
}

impl StateMaker {
    pub fn new(parts: Arc<Parts>, epoch: u32) -> Self {
        let keyer = parts.shared.read().keyer();
        Self {
            parts,
            epoch,
            batch: Batch::default(),
            statuses: Statuses::default(),
            keyer,
            gap_log: GapLog::default(),
        }
    }

    /// Takes an object that was listed or read back.
    pub fn item(&mut self, document: Bytes, came: Came<'_>, event: Event) {
        let bytes = document.clone();
        match project::envelope(&bytes) {
            Ok(envelope) => {
                // Missed versions before it have been searched for already.
                self.seen(&bytes, document, envelope, came, event, None);
            }
            Err(error) => self.poison(document, &error.to_string()),
        }
    }

    /// Takes an object with its envelope. If it is none of this kind, `raw` is kept. A watch's checkpoint
    /// counts the version, if there is one.
    pub fn seen(
        &mut self,
        raw: &Bytes,
        document: Bytes,
        envelope: Envelope<'_>,
        came: Came<'_>,
        event: Event,
        complete: Option<&Version>,
    ) -> Counted {
        if let Err(error) = check(&self.parts, &envelope) {
            self.poison(raw.clone(), &error);
            return Counted::Poison;
        }
        let version = Version::new(&envelope.resource_version);
        let document = with_kind(document, &envelope, &self.parts.spec.api_version, &self.parts.spec.kind);
        let seen = Object { envelope, version: version.clone(), document, came, event, past: None };
        match self.judged(seen, complete) {
            None => Counted::Taken(version),
            Some(moved) => Counted::Waits(version, moved),
        }
    }

    /// Keeps bytes that were not an object, as they are, and counts them.
    pub fn poison(&mut self, raw: Bytes, error: &str) {
        count(&self.parts.shared.counters.poison, 1);
        let mut cut = error.len().min(ERROR_TEXT);
        while !error.is_char_boundary(cut) {
            cut -= 1;
        }
        let error = error[..cut].to_string();
        tracing::warn!(source = %self.parts.spec.name, bytes = raw.len(), "a poison message is kept: {error}");
        self.batch.poison.push(Poison { raw, error, observed_ms: self.parts.clock.now_ms() });
    }

    /// Returns `Some` if the event was not taken: it shows that an earlier one never came, or came out of
    /// order.
    fn judged(&mut self, seen: Object<'_>, complete: Option<&Version>) -> Option<Moved> {
        let Envelope { uid, namespace, name, .. } = &seen.envelope;
        let (known, rival) = self.batch.met(&self.parts.shared.read(), uid, namespace, name);
        let is_renamed = |known: &Known| known.object.name != **name || known.object.namespace != **namespace;
        if let Some(known) = known.as_ref().filter(|known| is_renamed(known)) {
            let ObjectRef { namespace, name, uid, .. } = &*known.object;
            let error = format!("its uid {uid} is known as {namespace}/{name}: no two objects have one uid");
            self.poison(seen.document, &error);
            return None;
        }
        let watched = match seen.came {
            Came::Watched(watched) => Some(watched),
            Came::Listed | Came::ReadBack => None,
        };
        let beginning = matches!(seen.came, Came::ReadBack).then(|| seen.version.beginning());
        let judgement = judge(
            &Seen {
                event: seen.event,
                version: &seen.version,
                matches: matches(&self.parts, &seen.envelope),
                complete,
                opened: watched.and_then(|watched| watched.opened).or(beginning.as_ref()),
            },
            known.as_ref().map(|known| &known.version),
            rival.as_ref().map(|rival| &rival.version),
        );
        if let Some(rival) = rival.filter(|_| judgement.rival_gone) {
            if watched.is_some() {
                return Some(self.missed(seen, Some((rival.object, Since::at(rival.version)))));
            }
            // What another history did to it is not known.
            self.gone(&rival, Version::new(""));
        }
        let counters = &self.parts.shared.counters;
        // Without a selector a source sees an object from its beginning. With one, an object that ends in the
        // selector was in it.
        let is_later = watched.is_some_and(|watched| {
            seen.event == Event::Deleted || watched.modifies && self.parts.spec.match_labels.is_empty()
        });
        let is_unborn = is_later && known.is_none();
        match judgement.meaning {
            Meaning::Unheard => return Some(self.missed(seen, None)),
            Meaning::Present | Meaning::Gone if is_unborn => return Some(self.missed(seen, None)),
            Meaning::Present => self.stated(Change::Present, seen, known.as_ref()),
            Meaning::Left => self.stated(Change::Left, seen, known.as_ref()),
            Meaning::Gone => self.stated(Change::Gone, seen, known.as_ref()),
            Meaning::Duplicate => count(&counters.duplicates, 1),
            Meaning::Stale => count(&counters.stale, 1),
            Meaning::Past => {
                let change = if seen.event == Event::Deleted { Change::Gone } else { Change::Present };
                self.stated(change, Object { past: Some(Past::default()), ..seen }, None);
            }
            Meaning::Late => {
                count(&counters.stale, 1);
                self.stated(Change::Present, Object { past: Some(Past::default()), ..seen }, None);
            }
            Meaning::Outside => {}
        }
        None
    }

    /// An object of which earlier versions are missing. Any watch may have lost its beginning.
    fn missed(&self, seen: Object<'_>, rival: Option<(Arc<ObjectRef>, Since)>) -> Moved {
        let object = Arc::new(reference(&self.parts, &seen.envelope));
        let is_beginning =
            seen.event == Event::Present && matches!(seen.came, Came::Watched(watched) if !watched.modifies);
        let below = seen.version.before().filter(|_| is_beginning);
        let since = match (&rival, below) {
            (_, Some(below)) => Since::at(below),
            (Some((_, since)), None) => since.clone(),
            (None, None) => Since::at(seen.version.beginning()),
        };
        let (version, document, is_end) = (seen.version, pack(&seen.document), seen.event == Event::Deleted);
        Moved { object, since, version, document, witnessed: false, is_end, is_beyond: false, rival }
    }

    fn stated(&mut self, change: Change, seen: Object<'_>, known: Option<&Known>) {
        let made;
        let outline = match seen.came {
            // An envelope without a kind belongs to a document that was given one afterwards.
            Came::Watched(Watched { outline, .. })
                if !outline.is_empty() && !seen.envelope.kind.is_empty() =>
            {
                Some(outline)
            }
            _ => {
                made = Outline::of(&seen.document).ok();
                made.as_ref()
            }
        };
        let (group, _) = group_version(&self.parts.spec.api_version);
        let derived = self.parts.rules.outlined(group, &self.parts.spec.kind, &seen.document, outline);
        let derived = if change == Change::Gone { Rules::deleted(&derived) } else { derived };
        let before = seen.past.as_ref().and_then(|past| past.status.clone());
        let previous = known.map(|known| Arc::clone(&known.status)).or(before);
        let past = seen.past.is_some();
        let status = self.statuses.share(derived, previous.as_ref());
        let object = match known {
            Some(known) => Arc::clone(&known.object),
            None => Arc::new(reference(&self.parts, &seen.envelope)),
        };
        let listers = &self.parts.listers;
        let Owners { outermost: owner, controller } = match events::is_event(group, &self.parts.spec.kind) {
            true => owners::of_event(listers, &seen.envelope.namespace, &seen.document, known),
            false => owners(listers, &seen.envelope, known),
        };
        let base = known.and_then(Known::document);
        let (version, document) = (seen.version, seen.document);
        let has_recent = matches!(seen.came, Came::Watched(_)) && document.len() <= RECENT_DOCUMENT;
        let keys = outline.filter(|_| has_recent && change == Change::Present && !past).map(|outline| {
            let before = known.and_then(|known| known.keys.as_ref());
            self.keyer.next(&object, owner.as_deref(), &document, outline, before)
        });
        let base_secretless_under = known.and_then(|known| known.secretless_under);
        let note = Note { past, keys, secretless_under: None };
        let made = Made {
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

    /// Takes the end of an object whose deletion was not watched. It has no last content.
    fn gone(&mut self, known: &Known, version: Version) {
        let made = Made {
            change: Change::Gone,
            object: Arc::clone(&known.object),
            owner: known.owner.clone(),
            controller: None,
            version,
            status: self.statuses.share(Rules::deleted(&known.status), None),
            previous: Some(Arc::clone(&known.status)),
            document: Bytes::new(),
            base: None,
            base_secretless_under: None,
            note: Note::default(),
        };
        self.push(made, None);
    }

    fn push(&mut self, mut made: Made, gap: Option<&Gap>) {
        let counters = &self.parts.shared.counters;
        let counter = match made.change {
            Change::Present => &counters.present,
            Change::Gone => &counters.gone,
            Change::Left => &counters.left,
            Change::Gap => &counters.gaps,
        };
        count(counter, 1);
        let quotes_none_under = self.quotes_none_under(&mut made);
        let witnessed = Witnessed {
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
    fn quotes_none_under(&self, made: &mut Made) -> Option<RulesPrint> {
        let previous = made.previous.as_deref().filter(|status| Secrets::may_stand_in(status));
        let is_searched = previous.is_some() || Secrets::may_stand_in(&made.status);
        let is_at_hand = !made.document.is_empty() && (previous.is_none() || made.base.is_some());
        if !is_searched || !is_at_hand || made.change == Change::Gap {
            return None;
        }
        let (rules, kind) = (self.parts.secret_rules.get()?, &self.parts.spec.kind);
        let (print, mut secrets) = (Some(rules.print()), Secrets::default());
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

fn unknown() -> Arc<Status> {
    Arc::new(Status { phase: "Unknown".to_string(), ..Status::default() })
}
