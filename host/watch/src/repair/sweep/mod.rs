//! Carries the sweep out: it counts the collection at old versions, lists all names where the counts require
//! it, and reads back the lives of unknown objects. It writes nothing, and does not change the cache.

pub(crate) mod counts;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use bytes::Bytes;
use futures::future::join_all;
use kubewitness_core::Version;
use kubewitness_core::ports::Fate;
use kubewitness_core::project;
use kubewitness_core::state::ObjectRef;

use crate::connect::request::Address;
use crate::judge::object::{check, matches, reference};
use crate::repair::lookup::fate;
use crate::repair::report::Reporter;
use crate::repair::sweep::counts::{KnownVersions, NextCount, SweepCounts};
use crate::repair::walk_back::requests::is_of;
use crate::repair::walk_back::versions::Met;
use crate::repair::walk_back::{CONTRADICTED, OldVersions, Span};
use crate::source::handle::Limit;
use crate::source::input::Closed;
use crate::source::missing::{MissingVersions, reason};
use crate::source::parts::Parts;
use crate::source::round::Outage;
use crate::version::number;

/// The most objects of a source with a selector. They are listed at every version.
const NAMES: usize = 500;

const TOO_MANY: &str = "looking for them would take more requests than are allowed in the time";

/// Why a request of the sweep failed.
enum Miss {
    Compacted,
    /// For good: the word of the reason, and the explanation.
    Over(&'static str, String),
    /// The writer has ended.
    Closed,
}

impl From<Closed> for Miss {
    fn from(_: Closed) -> Self {
        Self::Closed
    }
}

pub(crate) struct Sweep<'a> {
    parts: Arc<Parts>,
    exact: OldVersions,
    outage: Outage,
    told: Vec<KnownVersions>,
    reporter: &'a mut Reporter,
    /// With a selector the server does not count, and the source knows only matching objects. So these are
    /// listed at every version.
    by_names: bool,
}

impl<'a> Sweep<'a> {
    pub fn new(
        exact: OldVersions,
        mut outage: Outage,
        told: Vec<KnownVersions>,
        met: &[String],
        reporter: &'a mut Reporter,
    ) -> Self {
        for uid in met {
            outage.known.insert(uid);
        }
        let parts = exact.parts();
        Self { by_names: !parts.spec.match_labels.is_empty(), parts, exact, outage, told, reporter }
    }

    /// Returns the holes that stay unknown.
    pub async fn run(mut self) -> Result<Vec<MissingVersions>, Closed> {
        let (Some(after), Some(listed)) = (number(&self.outage.after), number(&self.outage.listed)) else {
            let Outage { after, listed, .. } = &self.outage;
            let hole = MissingVersions {
                after: after.to_string(),
                before: listed.to_string(),
                reason: reason::UNREADABLE,
                // No number follows this version, which would be the bound.
                message: format!(
                    "objects that were created and deleted after version {after} and up to {listed}, that one \
                     included, are not known: the server's versions have no order"
                ),
            };
            self.parts.shared.set_limitation(Limit::Order, Some("the server's versions have no order"));
            return Ok(vec![hole]);
        };
        let mut sweep = SweepCounts::new(after, listed, self.outage.expected);
        sweep.learn(std::mem::take(&mut self.told));
        if sweep.is_needed() {
            let swept = match self.can_end(&sweep, after).await {
                false => Err(Miss::Over(reason::BUDGET, TOO_MANY.to_string())),
                true if self.by_names => self.by_names(&mut sweep).await,
                true => self.by_counts(&mut sweep).await,
            };
            match swept {
                Ok(()) | Err(Miss::Compacted) => {}
                Err(Miss::Over(reason, why)) => sweep.give_up(reason, &why),
                Err(Miss::Closed) => return Err(Closed),
            }
        }
        Ok(sweep.into_holes())
    }

    /// Whether there are requests enough to count at every version. A search that can't end would find little and
    /// keep new objects waiting. Compaction is asked for first, because nothing below it is counted.
    async fn can_end(&self, sweep: &SweepCounts, after: u128) -> bool {
        let most = u128::from(self.exact.possible());
        if sweep.uncounted(self.exact.gone()) > most {
            self.exact.is_compacted(&version(after + 1)).await;
        }
        sweep.uncounted(self.exact.gone()) <= most
    }

    // ---- counts --------------------------------------------------------------------------

    async fn by_counts(&mut self, sweep: &mut SweepCounts) -> Result<(), Miss> {
        loop {
            let wanted: Vec<u128> = std::iter::from_fn(|| sweep.sample())
                .take(self.parts.tuning.walk.concurrency.max(1))
                .collect();
            if wanted.is_empty() {
                break;
            }
            let counts = join_all(wanted.iter().map(|at| self.count(*at))).await;
            for (at, count) in wanted.into_iter().zip(counts) {
                if self.counted(sweep, at, count).await? == Flow::Compacted {
                    // Counts beyond this version are repeated.
                    self.resume(sweep);
                    break;
                }
            }
            self.reporter.clean(sweep.clean()).await?;
        }
        while let NextCount::ListNames(at, most) = sweep.rest() {
            match self.look(sweep, at, most).await {
                Err(Miss::Compacted) => {
                    self.resume(sweep);
                    return Box::pin(self.by_counts(sweep)).await;
                }
                looked => looked?,
            }
        }
        Ok(())
    }

    async fn counted(
        &mut self,
        sweep: &mut SweepCounts,
        at: u128,
        count: Result<u64, Miss>,
    ) -> Result<Flow, Miss> {
        let count = match count {
            Err(Miss::Compacted) => return Ok(Flow::Compacted),
            count => count?,
        };
        while let NextCount::ListNames(version, most) = sweep.counted(at, count) {
            match self.look(sweep, version, most).await {
                Err(Miss::Compacted) => return Ok(Flow::Compacted),
                looked => looked?,
            }
        }
        Ok(Flow::On)
    }

    /// The number of objects at a version.
    async fn count(&self, at: u128) -> Result<u64, Miss> {
        let bytes = self.read(at, |address| address.with("limit", "1")).await?;
        let page = self.page(&bytes, at)?;
        if page.continue_token.is_empty() || page.remaining.is_some() {
            self.parts.shared.set_limitation(Limit::Counts, None);
        }
        match (page.continue_token.is_empty(), page.remaining) {
            (true, _) => Ok(page.items.len() as u64),
            (false, Some(remaining)) => Ok(page.items.len() as u64 + remaining),
            (false, None) => {
                Err(self.over("the server doesn't say how many objects a list has left".to_string()))
            }
        }
    }

    // ---- names ---------------------------------------------------------------------------

    /// Lists the objects that match the selector at every version.
    async fn by_names(&mut self, sweep: &mut SweepCounts) -> Result<(), Miss> {
        let held = self.parts.shared.read().len();
        if held > NAMES {
            let why =
                format!("the source has a selector and {held} objects, too many to list at every version");
            return Err(Miss::Over(reason::BUDGET, why));
        }
        while let Some(at) = sweep.sample() {
            match self.unknown(at, None).await {
                Ok(unknown) => {
                    self.live_on(sweep, unknown).await?;
                    sweep.seen(at);
                    self.reporter.clean(sweep.clean()).await?;
                }
                Err(Miss::Compacted) => self.resume(sweep),
                Err(over) => return Err(over),
            }
        }
        Ok(())
    }

    /// Lists all names at a version, and reads back the unknown objects.
    async fn look(&mut self, sweep: &mut SweepCounts, at: u128, most: Option<u64>) -> Result<(), Miss> {
        let unknown = self.unknown(at, most).await?;
        self.live_on(sweep, unknown).await?;
        sweep.looked();
        Ok(())
    }

    async fn unknown(&self, at: u128, most: Option<u64>) -> Result<Vec<(ObjectRef, Met)>, Miss> {
        let limit = self.parts.tuning.page.to_string();
        let labels: Vec<String> =
            self.parts.spec.match_labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let narrowed = |address: Address| {
            let address = address.with("limit", &limit);
            if labels.is_empty() { address } else { address.with("labelSelector", &labels.join(",")) }
        };
        for _ in 0..CONTRADICTED {
            if let Some(unknown) = self.pages(at, most, &narrowed).await? {
                return Ok(unknown);
            }
        }
        Err(Miss::Over(reason::UNREADABLE, "pages of old lists expire before they are read".to_string()))
    }

    /// Returns `None` if a page expired although its version can be read.
    async fn pages(
        &self,
        at: u128,
        most: Option<u64>,
        narrowed: &impl Fn(Address) -> Address,
    ) -> Result<Option<Vec<(ObjectRef, Met)>>, Miss> {
        let mut unknown = Vec::new();
        let mut bytes = self.read(at, narrowed).await?;
        loop {
            let page = self.page(&bytes, at)?;
            unknown.extend(page.items.iter().filter_map(|item| self.unknown_of(at, &bytes, item)));
            let all = most.is_some_and(|most| unknown.len() as u64 >= most);
            if page.continue_token.is_empty() || all {
                return Ok(Some(unknown));
            }
            let next = narrowed(self.exact.collection()).with("continue", &page.continue_token);
            bytes = match self.request(&next).await {
                // A token may have expired although its version can be read.
                Err(Miss::Compacted) if !self.exact.is_compacted(&version(at)).await => return Ok(None),
                read => read?,
            };
        }
    }

    fn unknown_of(&self, at: u128, bytes: &Bytes, item: &[u8]) -> Option<(ObjectRef, Met)> {
        let envelope = project::envelope(item).ok()?;
        let is_known = self.outage.known.contains(&envelope.uid);
        // A server that does not know the selector lists everything.
        if is_known || check(&self.parts, &envelope).is_err() || !matches(&self.parts, &envelope) {
            return None;
        }
        let met = Met {
            uid: envelope.uid.to_string(),
            at: version(at),
            version: Version::new(&envelope.resource_version),
            document: self.exact.document(bytes, item, &envelope),
        };
        Some((reference(&self.parts, &envelope), met))
    }

    async fn live_on(
        &mut self,
        sweep: &mut SweepCounts,
        unknown: Vec<(ObjectRef, Met)>,
    ) -> Result<(), Closed> {
        let (after, listed) = (self.outage.after.clone(), self.outage.listed.clone());
        for (object, met) in unknown {
            // It was met meanwhile under another object's name.
            if self.outage.known.contains(&met.uid) {
                continue;
            }
            if self.was_told(&met.uid).await {
                self.outage.known.insert(&met.uid);
                continue;
            }
            let deadline = self.exact.deadline();
            // An object that was in the source's selector for a while may still exist. So may one of a part
            // that was listed later.
            let is_over = !self.by_names && self.outage.is_whole;
            let span = Span { like: &object, floor: &after, until: &listed, is_over };
            // Later objects of the name are found in their turn.
            let lives = self.exact.lives(deadline, met, span, &|_| true).await;
            sweep.learn(lives.iter().map(KnownVersions::from));
            for life in lives {
                self.outage.known.insert(&life.object.uid);
                self.reporter.found(life).await?;
            }
        }
        Ok(())
    }

    /// Whether a round that a kill ended has told the object. What compaction removed since is then no hole.
    async fn was_told(&self, uid: &str) -> bool {
        let epoch = self.parts.shared.live().epoch;
        fate(&self.parts, epoch, uid).await == Fate::Ended
    }

    // ---- requests ------------------------------------------------------------------------

    /// Goes on at the oldest version that compaction has left.
    fn resume(&self, sweep: &mut SweepCounts) {
        sweep.compacted(Some(self.exact.gone().saturating_add(1)));
    }

    /// Reads a list at a version.
    async fn read(&self, at: u128, narrowed: impl Fn(Address) -> Address) -> Result<Bytes, Miss> {
        let version = version(at);
        for _ in 0..CONTRADICTED {
            if at <= self.exact.gone() {
                return Err(Miss::Compacted);
            }
            let address = narrowed(self.exact.collection());
            let address = address.with("resourceVersion", version.as_str());
            let read = self.request(&address.with("resourceVersionMatch", "Exact")).await;
            match read {
                Err(Miss::Compacted) if !self.exact.is_compacted(&version).await => {}
                read => return read,
            }
        }
        Err(Miss::Over(reason::UNREADABLE, format!("version {at} is reported as compacted, but can be read")))
    }

    async fn request(&self, address: &Address) -> Result<Bytes, Miss> {
        if !self.exact.take() {
            let why = "looking for them would have taken too many requests or too long";
            return Err(Miss::Over(reason::BUDGET, why.to_string()));
        }
        match self.exact.read(address).await {
            Ok(Some(bytes)) => Ok(bytes),
            Ok(None) => Err(Miss::Compacted),
            Err(why) => Err(Miss::Over(reason::UNREADABLE, self.exact.refuse(Limit::Exact, why))),
        }
    }

    fn page<'b>(&self, bytes: &'b Bytes, at: u128) -> Result<project::ListPage<'b>, Miss> {
        let page = project::list_page(bytes).map_err(|error| self.over(error.to_string()))?;
        is_of(&page.resource_version, &version(at)).map_err(|why| self.over(why))?;
        Ok(page)
    }

    fn over(&self, why: String) -> Miss {
        Miss::Over(reason::UNREADABLE, self.exact.refuse(Limit::Counts, why))
    }
}

fn version(at: u128) -> Version {
    Version::new(&at.to_string())
}

/// Whether counting goes on.
#[derive(PartialEq, Eq)]
enum Flow {
    On,
    Compacted,
}
