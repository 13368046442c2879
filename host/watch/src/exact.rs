//! Asks the server for old versions, within the budget of one round. What to ask for is decided
//! by [`Walk`], [`Search`] and the sweep.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use kubewitness_core::Version;
use kubewitness_core::project::{self, Envelope};
use kubewitness_core::state::ObjectRef;
use tokio::time::sleep;

use crate::backoff::{Backoff, Dice};
use crate::budget::Budget;
use crate::discovery::Resource;
use crate::document::with_kind;
use crate::handle::{Limit, count};
use crate::input::reason;
use crate::request::{ANSWER_TIME, Address, Failure};
use crate::source::Parts;
use crate::sweep::{Told, number};
use crate::walkback::{Answer, Met, Next, Search, Sought, Walk, Walked, between};

/// A server that can't be reached at all sends no newer versions either, so that nobody waits in
/// vain. Beyond this its history is compacted soon after it is back.
const AWAY: Duration = Duration::from_secs(900);

/// Versions of one object at most, whatever the budget says: so many are in memory at once.
const STORY: u32 = 4096;

/// From asking for one object to the whole answer. A connection that hangs must leave time to ask
/// again within the time that an object has.
pub(crate) const ONE_ANSWER: Duration = Duration::from_secs(8);

const TOO_LONG: &str = "reading them back would have taken too long";

pub(crate) struct Exact {
    parts: Arc<Parts>,
    resource: Resource,
    budget: Budget,
    /// The server can't be asked for old versions: said once, then not tried again in this round.
    refused: AtomicBool,
}

/// How an object that is no longer there came to its end.
pub(crate) struct Ended {
    /// Of its deletion, where it could be found.
    pub version: Option<Version>,
    /// Its last versions before that.
    pub walked: Walked,
    /// Others that were seen under its name.
    pub met: Vec<Met>,
}

/// An object of which nothing was witnessed.
#[derive(Debug)]
pub(crate) struct Life {
    pub object: ObjectRef,
    /// In order; each with what is missing below it.
    pub walked: Vec<Walked>,
    /// `None` where it still is there, or where the version of its deletion is not known.
    pub died: Option<Version>,
    /// It was there when everything was listed.
    pub survives: bool,
}

impl Life {
    pub fn told(&self) -> Told {
        let found = self.walked.iter().flat_map(|walked| &walked.found);
        let versions: Vec<u128> = found.filter_map(|(version, _)| number(version)).collect();
        let whole = self.walked.first().is_some_and(|below| below.hole.is_none());
        let born = versions.first().copied().filter(|_| whole);
        let unsure = versions.first().copied().filter(|_| !whole);
        Told { born, died: self.died.as_ref().and_then(number), unsure, versions }
    }

    /// The oldest version that is known of it.
    pub fn begins(&self) -> u128 {
        let mut found = self.walked.iter().flat_map(|walked| &walked.found);
        found.next().and_then(|(version, _)| number(version)).unwrap_or_default()
    }

    /// States that it makes at most.
    pub fn states(&self) -> usize {
        self.walked.iter().map(|walked| walked.found.len() + 1).sum::<usize>() + 1
    }
}

/// Until when one object may be read back, in the round's own time.
#[derive(Clone, Copy)]
pub(crate) struct Errand {
    until: Duration,
}

impl Exact {
    pub fn new(parts: Arc<Parts>, resource: Resource, budget: Budget) -> Self {
        Self { parts, resource, budget, refused: AtomicBool::new(false) }
    }

    pub fn errand(&self) -> Errand {
        Errand { until: self.budget.spent() + self.parts.tuning.walk.time_per_object }
    }

    pub fn collection(&self) -> Address {
        self.resource.collection()
    }

    pub fn is_refused(&self) -> bool {
        self.refused.load(Ordering::Relaxed)
    }

    /// The versions strictly between two of one object.
    pub async fn versions(
        &self,
        errand: Errand,
        object: &ObjectRef,
        floor: &Version,
        newest: &Version,
    ) -> Walked {
        let most = self.parts.tuning.walk.requests_per_object.min(STORY);
        let mut walk = Walk::new(&object.uid, floor.clone(), newest.clone(), most);
        loop {
            let at = match walk.next() {
                Next::Ask(at) => at,
                Next::Done(walked) => return walked,
            };
            if !self.may_ask(errand) {
                return walk.end(Some((reason::BUDGET, TOO_LONG)));
            }
            let answer = self.ask(object, &at).await;
            let is_found = |uid: &str, version: &Version| *uid == *object.uid && version.is_newer_than(floor);
            if matches!(&answer, Answer::Item { uid, version, .. } if is_found(uid, version)) {
                count(&self.parts.shared.counters.walked_back, 1);
            }
            if let Some(walked) = walk.answered(answer) {
                return walked;
            }
        }
    }

    /// The end of an object that was there at `floor` and no longer at `absent`.
    pub async fn end(&self, errand: Errand, object: &ObjectRef, floor: &Version, absent: &Version) -> Ended {
        let lost = |reason, why: &str, search: Search| {
            // What could be asked for has shown that it had ended by then.
            let walked = Walked { hole: between(floor, &search.absent(), reason, why), ..Walked::default() };
            Ended { version: None, walked, met: search.into_met() }
        };
        let Some(mut search) = Search::new(&object.uid, floor, absent) else {
            let hole = between(floor, absent, reason::UNREADABLE, "the server's versions have no order");
            let walked = Walked { hole, ..Walked::default() };
            return Ended { version: None, walked, met: Vec::new() };
        };
        loop {
            let at = match search.next() {
                Sought::Ask(at) => at,
                Sought::Ended { version, last: Some((last, document)) } => {
                    let mut walked = self.versions(errand, object, floor, &last).await;
                    if last.is_newer_than(floor) {
                        walked.found.push((last, document));
                    }
                    return Ended { version, walked, met: search.into_met() };
                }
                Sought::Ended { version: Some(version), last: None } => {
                    let walked = Walked::default();
                    return Ended { version: Some(version), walked, met: search.into_met() };
                }
                Sought::Ended { version: None, last: None } => {
                    let why = "compaction has removed them, and the version of its deletion";
                    return lost(reason::COMPACTED, why, search);
                }
            };
            if !self.may_ask(errand) {
                return lost(reason::BUDGET, TOO_LONG, search);
            }
            let answer = self.ask(object, &at).await;
            if let Err(why) = search.answered(&at, answer) {
                return lost(reason::UNREADABLE, &why, search);
            }
        }
    }

    /// The whole life, above a floor, of an object of which nothing was witnessed, and of those
    /// unknown ones who had its name after it and before `absent`.
    pub async fn lives(
        &self,
        errand: Errand,
        met: Met,
        like: &ObjectRef,
        floor: &Version,
        absent: &Version,
        known: &(dyn Fn(&str) -> bool + Sync),
    ) -> Vec<Life> {
        let (mut seen, mut waiting) = (HashSet::from([met.uid.clone()]), VecDeque::from([met]));
        let mut lives = Vec::new();
        while let Some(met) = waiting.pop_front() {
            let object = ObjectRef { uid: met.uid.clone(), ..like.clone() };
            let below = self.below(errand, &object, &met, floor).await;
            let ended = self.end(errand, &object, &met.at, absent).await;
            lives.push(Life {
                object,
                walked: vec![below, ended.walked],
                died: ended.version,
                survives: false,
            });
            let unknown = ended.met.into_iter().filter(|met| !known(&met.uid));
            waiting.extend(unknown.filter(|met| seen.insert(met.uid.clone())));
        }
        lives
    }

    /// The same of one object that may still be there at the end: one that was in the source's
    /// selector for a while.
    pub async fn life_within(
        &self,
        errand: Errand,
        met: Met,
        like: &ObjectRef,
        floor: &Version,
        until: &Version,
    ) -> Life {
        let object = ObjectRef { uid: met.uid.clone(), ..like.clone() };
        let below = self.below(errand, &object, &met, floor).await;
        if let Answer::Item { uid, version, document } = self.ask(&object, until).await
            && uid == object.uid
        {
            let mut above = self.versions(errand, &object, &met.at, &version).await;
            if version.is_newer_than(&met.at) {
                above.found.push((version, document));
            }
            return Life { object, walked: vec![below, above], died: None, survives: true };
        }
        let ended = self.end(errand, &object, &met.at, until).await;
        Life { object, walked: vec![below, ended.walked], died: ended.version, survives: false }
    }

    /// What was met, and the versions below it.
    async fn below(&self, errand: Errand, object: &ObjectRef, met: &Met, floor: &Version) -> Walked {
        let mut below = self.versions(errand, object, floor, &met.version).await;
        below.found.push((met.version.clone(), met.document.clone()));
        below
    }

    fn may_ask(&self, errand: Errand) -> bool {
        self.budget.spent() < errand.until && self.budget.take()
    }

    /// Takes one request from the budget, if there is one left.
    pub fn take(&self) -> bool {
        self.budget.take()
    }

    /// Who had this name at one version, and with what content.
    pub async fn ask(&self, object: &ObjectRef, at: &Version) -> Answer {
        let address = self.resource.of_name_at(object, at);
        match self.read_within(&address, ONE_ANSWER).await {
            Ok(Some(bytes)) => match self.answer(&bytes, object, at) {
                Ok(answer) => {
                    self.parts.shared.set_limitation(Limit::Exact, None);
                    answer
                }
                Err(why) => Answer::Refused(self.refuse(Limit::Exact, why)),
            },
            Ok(None) => Answer::Compacted,
            Err(why) => Answer::Refused(why),
        }
    }

    /// One exact list. `None`: compaction has been there. `Err`: it can't be had, and why.
    pub async fn read(&self, address: &Address) -> Result<Option<Bytes>, String> {
        self.read_within(address, ANSWER_TIME).await
    }

    async fn read_within(&self, address: &Address, within: Duration) -> Result<Option<Bytes>, String> {
        if self.is_refused() {
            return Err("the server doesn't read old versions".to_string());
        }
        match self.patiently(address.as_str(), within).await {
            Ok(bytes) => Ok(Some(bytes)),
            Err(failure) if failure.is_expired() => Ok(None),
            Err(failure) => Err(self.refuse(Limit::Exact, failure.to_string())),
        }
    }

    pub fn refuse(&self, limit: Limit, why: String) -> String {
        if !self.refused.swap(true, Ordering::Relaxed) {
            self.parts.shared.set_limitation(limit, Some(&why));
        }
        why
    }

    /// A server that is busy or away for a moment doesn't cost a version.
    async fn patiently(&self, address: &str, within: Duration) -> Result<Bytes, Failure> {
        let tuning = &self.parts.tuning;
        let (mut backoff, mut dice) =
            (Backoff::new(tuning.first_pause, tuning.longest_pause), Dice::new(tuning.seed));
        let mut waited = Duration::ZERO;
        loop {
            self.budget.turn().await;
            count(&self.parts.shared.counters.walk_back_requests, 1);
            let failure = match self.parts.api.get_within(address, within).await {
                Err(failure) => failure,
                Ok(bytes) => {
                    self.budget.answered();
                    return Ok(bytes);
                }
            };
            let patience = match &failure {
                Failure::Transport(_) => AWAY,
                failure if may_pass(failure) => tuning.walk.time,
                _ => {
                    self.budget.answered();
                    return Err(failure);
                }
            };
            if waited >= patience {
                return Err(failure);
            }
            self.budget.away();
            let pause = backoff.next(&mut dice, failure.retry_after());
            waited += pause;
            sleep(pause).await;
        }
    }

    fn answer(&self, bytes: &Bytes, object: &ObjectRef, at: &Version) -> Result<Answer, String> {
        let page = project::list_page(bytes).map_err(|error| error.to_string())?;
        is_of(&page.resource_version, at)?;
        let Some(item) = page.items.first() else { return Ok(Answer::Nobody) };
        let envelope = project::envelope(item).map_err(|error| error.to_string())?;
        // One that doesn't know the selector answers with others.
        if envelope.name != *object.name || envelope.namespace != *object.namespace {
            return Err(format!("a list of `{}` was answered with `{}`", object.name, envelope.name));
        }
        Ok(Answer::Item {
            uid: envelope.uid.to_string(),
            version: Version::new(&envelope.resource_version),
            document: self.document(bytes, item, &envelope),
        })
    }

    pub fn document(&self, bytes: &Bytes, item: &[u8], envelope: &Envelope<'_>) -> Bytes {
        with_kind(bytes.slice_ref(item), envelope, &self.parts.spec.api_version, &self.parts.spec.kind)
    }
}

/// A server that doesn't know the parameter answers with what is there now.
pub(crate) fn is_of(answered: &str, asked: &Version) -> Result<(), String> {
    if answered == asked.as_str() {
        return Ok(());
    }
    Err(format!("an exact list at {asked} was answered for {answered}"))
}

/// Whether the same question can be answered later: rights come back, too.
fn may_pass(failure: &Failure) -> bool {
    failure.is_passing() && failure.code() != Some(501) || matches!(failure.code(), Some(401 | 403 | 404))
}
