//! Executes the sweep: it counts the collection at old versions, lists all names where the counts require it,
//! and reads back the lives of unknown objects.
//!
//! An object that was created and deleted during an outage is in no list afterwards. But its store still has
//! the old versions until compaction. [`counts`] decides which of them to read; this module sends the
//! requests, within the budget of the round. A sweep that can't finish within the budget is not begun,
//! because it would find little and delay new objects. It writes nothing, and does not change the cache.

pub(crate) mod counts;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use bytes::Bytes;
use futures::future::join_all;
use kubewitness_core::Version;
use kubewitness_core::ports::FormerEnd;
use kubewitness_core::project;
use kubewitness_core::state::ObjectRef;

use crate::connect::request::RequestAddress;
use crate::judge::object::{check, matches_labels, object_reference};
use crate::repair::lookup::end_of_former;
use crate::repair::report::RepairReporter;
use crate::repair::sweep::counts::{KnownVersions, NextCount, SweepCounts};
use crate::repair::walk_back::requests::check_version_of;
use crate::repair::walk_back::versions::MetObject;
use crate::repair::walk_back::{CONTRADICTED, OldVersions, UnwatchedSpan};
use crate::source::handle::ServerLimit;
use crate::source::input::WriterClosed;
use crate::source::missing::{MissingVersions, reason};
use crate::source::parts::SourceParts;
use crate::source::round::WatchOutage;
use crate::version::version_number;

/// The most objects of a source with a selector. They are listed at every version.
const NAMES: usize = 500;

const TOO_MANY: &str = "looking for them would take more requests than are allowed in the time";

/// Why a request of the sweep failed.
enum SweepMiss {
    Compacted,
    /// Permanent: the word of the reason, and the explanation.
    Over(&'static str, String),
    /// The writer has ended.
    Closed,
}

impl From<WriterClosed> for SweepMiss {
    fn from(_: WriterClosed) -> Self {
        Self::Closed
    }
}

pub(crate) struct VersionSweep<'a> {
    parts: Arc<SourceParts>,
    exact: OldVersions,
    outage: WatchOutage,
    known_versions: Vec<KnownVersions>,
    reporter: &'a mut RepairReporter,
    /// This version has no successor that could serve as the bound.
    by_names: bool,
}

impl<'a> VersionSweep<'a> {
    pub fn new(
        exact: OldVersions,
        mut outage: WatchOutage,
        known_versions: Vec<KnownVersions>,
        met: &[String],
        reporter: &'a mut RepairReporter,
    ) -> Self {
        for uid in met {
            outage.known.insert(uid);
        }
        let parts = exact.source_parts();
        Self { by_names: !parts.spec.match_labels.is_empty(), parts, exact, outage, known_versions, reporter }
    }

    /// Returns the holes that stay unknown.
    pub async fn run(mut self) -> Result<Vec<MissingVersions>, WriterClosed> {
        let (Some(after), Some(listed)) =
            (version_number(&self.outage.after), version_number(&self.outage.listed))
        else {
            let WatchOutage { after, listed, .. } = &self.outage;
            let hole = MissingVersions {
                after: after.to_string(),
                before: listed.to_string(),
                reason: reason::UNREADABLE,
                // This version has no successor that could be the bound.
                message: format!(
                    "objects that were created and deleted after version {after} and up to {listed}, that one \
                     included, are not known: the server's versions have no order"
                ),
            };
            self.parts.shared.set_limitation(ServerLimit::Order, Some("the server's versions have no order"));
            return Ok(vec![hole]);
        };
        let mut sweep = SweepCounts::new(after, listed, self.outage.expected);
        sweep.learn_versions(std::mem::take(&mut self.known_versions));
        if sweep.is_needed() {
            let swept = match self.can_end(&sweep, after).await {
                false => Err(SweepMiss::Over(reason::BUDGET, TOO_MANY.to_string())),
                true if self.by_names => self.by_names(&mut sweep).await,
                true => self.by_counts(&mut sweep).await,
            };
            match swept {
                Ok(()) | Err(SweepMiss::Compacted) => {}
                Err(SweepMiss::Over(reason, why)) => sweep.end_search(reason, &why),
                Err(SweepMiss::Closed) => return Err(WriterClosed),
            }
        }
        Ok(sweep.into_holes())
    }

    /// Whether the budget allows a count at every version. A search that can't finish would find little and
    /// delay new objects. Compaction is determined first, because nothing below it is counted.
    async fn can_end(&self, sweep: &SweepCounts, after: u128) -> bool {
        let most = u128::from(self.exact.possible_requests());
        if sweep.count_uncounted(self.exact.compacted_through()) > most {
            self.exact.is_compacted(&version_of(after + 1)).await;
        }
        sweep.count_uncounted(self.exact.compacted_through()) <= most
    }

    // ---- counts --------------------------------------------------------------------------

    async fn by_counts(&mut self, sweep: &mut SweepCounts) -> Result<(), SweepMiss> {
        loop {
            let wanted: Vec<u128> = std::iter::from_fn(|| sweep.next_sample())
                .take(self.parts.tuning.walk.concurrency.max(1))
                .collect();
            if wanted.is_empty() {
                break;
            }
            let counts = join_all(wanted.iter().map(|at| self.count(*at))).await;
            for (at, count) in wanted.into_iter().zip(counts) {
                if self.take_count(sweep, at, count).await? == CountFlow::Compacted {
                    // Counts beyond this version are repeated.
                    self.resume_after_compaction(sweep);
                    break;
                }
            }
            self.reporter.send_ready_reports(sweep.clean_through()).await?;
        }
        while let NextCount::ListNames(at, most) = sweep.list_the_rest() {
            match self.list_and_read_back(sweep, at, most).await {
                Err(SweepMiss::Compacted) => {
                    self.resume_after_compaction(sweep);
                    return Box::pin(self.by_counts(sweep)).await;
                }
                looked => looked?,
            }
        }
        Ok(())
    }

    async fn take_count(
        &mut self,
        sweep: &mut SweepCounts,
        at: u128,
        count: Result<u64, SweepMiss>,
    ) -> Result<CountFlow, SweepMiss> {
        let count = match count {
            Err(SweepMiss::Compacted) => return Ok(CountFlow::Compacted),
            count => count?,
        };
        while let NextCount::ListNames(version, most) = sweep.take_count(at, count) {
            match self.list_and_read_back(sweep, version, most).await {
                Err(SweepMiss::Compacted) => return Ok(CountFlow::Compacted),
                looked => looked?,
            }
        }
        Ok(CountFlow::On)
    }

    /// The number of objects at a version.
    async fn count(&self, at: u128) -> Result<u64, SweepMiss> {
        let bytes = self.read(at, |address| address.with_parameter("limit", "1")).await?;
        let page = self.decode_page(&bytes, at)?;
        if page.continue_token.is_empty() || page.remaining.is_some() {
            self.parts.shared.set_limitation(ServerLimit::Counts, None);
        }
        match (page.continue_token.is_empty(), page.remaining) {
            (true, _) => Ok(page.items.len() as u64),
            (false, Some(remaining)) => Ok(page.items.len() as u64 + remaining),
            (false, None) => {
                Err(self
                    .end_unreadable("the server doesn't say how many objects a list has left".to_string()))
            }
        }
    }

    // ---- names ---------------------------------------------------------------------------

    /// Lists the objects that match the selector at every version.
    async fn by_names(&mut self, sweep: &mut SweepCounts) -> Result<(), SweepMiss> {
        let held = self.parts.shared.read().len();
        if held > NAMES {
            let why =
                format!("the source has a selector and {held} objects, too many to list at every version");
            return Err(SweepMiss::Over(reason::BUDGET, why));
        }
        while let Some(at) = sweep.next_sample() {
            match self.list_unknown(at, None).await {
                Ok(unknown) => {
                    self.read_back_lives(sweep, unknown).await?;
                    sweep.note_listed(at);
                    self.reporter.send_ready_reports(sweep.clean_through()).await?;
                }
                Err(SweepMiss::Compacted) => self.resume_after_compaction(sweep),
                Err(over) => return Err(over),
            }
        }
        Ok(())
    }

    /// Lists all names at a version, and reads back the unknown objects.
    async fn list_and_read_back(
        &mut self,
        sweep: &mut SweepCounts,
        at: u128,
        most: Option<u64>,
    ) -> Result<(), SweepMiss> {
        let unknown = self.list_unknown(at, most).await?;
        self.read_back_lives(sweep, unknown).await?;
        sweep.note_looked();
        Ok(())
    }

    async fn list_unknown(
        &self,
        at: u128,
        most: Option<u64>,
    ) -> Result<Vec<(ObjectRef, MetObject)>, SweepMiss> {
        let limit = self.parts.tuning.page.to_string();
        let labels: Vec<String> =
            self.parts.spec.match_labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let narrowed = |address: RequestAddress| {
            let address = address.with_parameter("limit", &limit);
            if labels.is_empty() {
                address
            } else {
                address.with_parameter("labelSelector", &labels.join(","))
            }
        };
        for _ in 0..CONTRADICTED {
            if let Some(unknown) = self.list_pages(at, most, &narrowed).await? {
                return Ok(unknown);
            }
        }
        Err(SweepMiss::Over(reason::UNREADABLE, "pages of old lists expire before they are read".to_string()))
    }

    /// Returns `None` if a page expired although its version can be read.
    async fn list_pages(
        &self,
        at: u128,
        most: Option<u64>,
        narrowed: &impl Fn(RequestAddress) -> RequestAddress,
    ) -> Result<Option<Vec<(ObjectRef, MetObject)>>, SweepMiss> {
        let mut unknown = Vec::new();
        let mut bytes = self.read(at, narrowed).await?;
        loop {
            let page = self.decode_page(&bytes, at)?;
            unknown.extend(page.items.iter().filter_map(|item| self.unknown_of(at, &bytes, item)));
            let all = most.is_some_and(|most| unknown.len() as u64 >= most);
            if page.continue_token.is_empty() || all {
                return Ok(Some(unknown));
            }
            let next =
                narrowed(self.exact.collection_address()).with_parameter("continue", &page.continue_token);
            bytes = match self.send_request(&next).await {
                // A token may have expired although its version can be read.
                Err(SweepMiss::Compacted) if !self.exact.is_compacted(&version_of(at)).await => {
                    return Ok(None);
                }
                read => read?,
            };
        }
    }

    fn unknown_of(&self, at: u128, bytes: &Bytes, item: &[u8]) -> Option<(ObjectRef, MetObject)> {
        let envelope = project::read_envelope(item).ok()?;
        let is_known = self.outage.known.contains(&envelope.uid);
        // A server that does not know the selector lists everything.
        if is_known || check(&self.parts, &envelope).is_err() || !matches_labels(&self.parts, &envelope) {
            return None;
        }
        let met = MetObject {
            uid: envelope.uid.to_string(),
            at: version_of(at),
            version: Version::new(&envelope.resource_version),
            document: self.exact.copy_document(bytes, item, &envelope),
        };
        Some((object_reference(&self.parts, &envelope), met))
    }

    async fn read_back_lives(
        &mut self,
        sweep: &mut SweepCounts,
        unknown: Vec<(ObjectRef, MetObject)>,
    ) -> Result<(), WriterClosed> {
        let (after, listed) = (self.outage.after.clone(), self.outage.listed.clone());
        for (object, met) in unknown {
            // It was met meanwhile under another object's name.
            if self.outage.known.contains(&met.uid) {
                continue;
            }
            if self.was_reported(&met.uid).await {
                self.outage.known.insert(&met.uid);
                continue;
            }
            let deadline = self.exact.object_deadline();
            // An object that was in the source's selector for a while may still exist. So may one of a part
            // that was listed later.
            let is_over = !self.by_names && self.outage.is_whole;
            let span = UnwatchedSpan { like: &object, floor: &after, until: &listed, is_over };
            // Later objects with this name are found when it is their turn.
            let lives = self.exact.find_lives(deadline, met, span, &|_| true).await;
            sweep.learn_versions(lives.iter().map(KnownVersions::from));
            for life in lives {
                self.outage.known.insert(&life.object.uid);
                self.reporter.take_life(life).await?;
            }
        }
        Ok(())
    }

    /// Whether a round that was killed has already reported the object. Then versions that were compacted
    /// since are not a hole.
    async fn was_reported(&self, uid: &str) -> bool {
        let epoch = self.parts.shared.lock_live().epoch;
        end_of_former(&self.parts, epoch, uid).await == FormerEnd::Ended
    }

    // ---- requests ------------------------------------------------------------------------

    /// Continues at the oldest version that compaction has left.
    fn resume_after_compaction(&self, sweep: &mut SweepCounts) {
        sweep.note_compacted(Some(self.exact.compacted_through().saturating_add(1)));
    }

    /// Reads a list at a version.
    async fn read(
        &self,
        at: u128,
        narrowed: impl Fn(RequestAddress) -> RequestAddress,
    ) -> Result<Bytes, SweepMiss> {
        let version = version_of(at);
        for _ in 0..CONTRADICTED {
            if at <= self.exact.compacted_through() {
                return Err(SweepMiss::Compacted);
            }
            let address = narrowed(self.exact.collection_address());
            let address = address.with_parameter("resourceVersion", version.as_str());
            let read = self.send_request(&address.with_parameter("resourceVersionMatch", "Exact")).await;
            match read {
                Err(SweepMiss::Compacted) if !self.exact.is_compacted(&version).await => {}
                read => return read,
            }
        }
        Err(SweepMiss::Over(
            reason::UNREADABLE,
            format!("version {at} is reported as compacted, but can be read"),
        ))
    }

    async fn send_request(&self, address: &RequestAddress) -> Result<Bytes, SweepMiss> {
        if !self.exact.take() {
            let why = "looking for them would have taken too many requests or too long";
            return Err(SweepMiss::Over(reason::BUDGET, why.to_string()));
        }
        match self.exact.read(address).await {
            Ok(Some(bytes)) => Ok(bytes),
            Ok(None) => Err(SweepMiss::Compacted),
            Err(why) => {
                let why = self.exact.note_refusal(ServerLimit::Exact, why.to_string());
                Err(SweepMiss::Over(reason::UNREADABLE, why))
            }
        }
    }

    fn decode_page<'b>(&self, bytes: &'b Bytes, at: u128) -> Result<project::ListPage<'b>, SweepMiss> {
        let page = project::list_page(bytes).map_err(|error| self.end_unreadable(error.to_string()))?;
        let checked = check_version_of(&page.resource_version, &version_of(at));
        checked.map_err(|why| self.end_unreadable(why.to_string()))?;
        Ok(page)
    }

    fn end_unreadable(&self, why: String) -> SweepMiss {
        SweepMiss::Over(reason::UNREADABLE, self.exact.note_refusal(ServerLimit::Counts, why))
    }
}

fn version_of(at: u128) -> Version {
    Version::new(&at.to_string())
}

/// Whether counting goes on.
#[derive(PartialEq, Eq)]
enum CountFlow {
    On,
    Compacted,
}
