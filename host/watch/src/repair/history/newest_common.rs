//! Finds the version from which a replaced history is read: the newest write that both histories have. The
//! writes after it were never watched in the new history, but can still be read back.
//!
//! A version can be equal in both by chance: a restored server counts on from the backup, and controllers
//! repeat their writes. Two facts can't be equal by chance. No object gets another's uid. And a write records
//! its time in `managedFields` to the second, while a restore takes longer than a second. So an object's
//! creation is evidence, and so is an equal write that changed such a time. A write that only removed
//! something is not. A store's versions are one counter, so everything below an equal write is equal as well.
//!
//! If that write is compacted, the new history is read from the oldest version that remains, and the versions
//! in between are a gap.

use std::ops::RangeInclusive;
use std::sync::Arc;

use bytes::Bytes;
use kubewitness_core::Version;
use kubewitness_core::ports::FormerVersion;
use kubewitness_core::project;
use serde_json::Value;
use tokio::time::timeout;

use crate::connect::resource::SourceResource;
use crate::judge::object::check;
use crate::repair::walk_back::OldVersions;
use crate::repair::walk_back::versions::ExactAnswer;
use crate::source::parts::SourceParts;

/// How many former histories are compared. A backup older than all of them has nothing in common with them.
const EPOCHS: usize = 8;

/// How many inconclusive writes in a row are skipped.
const UNCLEAR: u32 = 16;

/// The version from which a new history is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HistoryBase {
    /// It is read from this version on.
    pub at: Version,
    /// It equals the former history up to here; empty if no version is known to be equal.
    pub common: Version,
    /// It differs after this version; with the time of that version, if known.
    pub edge: u64,
    pub parted: Option<String>,
    /// The server's version.
    pub newest: Version,
}

/// The new history's version in place of a former one.
#[derive(Debug, PartialEq, Eq)]
enum FormerMatch {
    Same,
    Other,
    /// It may be equal by chance.
    Unclear,
    /// Compaction has removed it.
    Gone,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum UnknownVersion {
    /// The server or the journal can't be queried.
    Ever,
    /// Compaction overtook the search.
    Now,
}

/// Both histories are equal up to some version, and differ after it.
struct HistoryBisection {
    /// The newest version that is known to be equal.
    common: Option<u64>,
    /// The oldest version that is known to differ, and the time of its write.
    other: u64,
    time: Option<String>,
}

pub(crate) struct NewestCommon {
    parts: Arc<SourceParts>,
    exact: OldVersions,
    /// The epoch of the new history.
    epoch: u32,
    newest: u64,
}

impl NewestCommon {
    /// Returns `None` if versions have no order.
    pub fn new(
        parts: &Arc<SourceParts>,
        resource: &SourceResource,
        epoch: u32,
        server: &Version,
    ) -> Option<Self> {
        let newest = server.as_number()?;
        let exact = old_versions_reader(parts, resource, newest);
        Some(Self { parts: Arc::clone(parts), exact, epoch, newest })
    }

    /// Finds the base. A server that never answers such queries must not prevent a source from watching.
    pub async fn find_newest_base(&self) -> Result<HistoryBase, UnknownVersion> {
        let within = self.parts.tuning.walk.time_per_object;
        let base = timeout(within, self.find_base()).await.unwrap_or(Err(UnknownVersion::Ever));
        let source = &self.parts.spec.name;
        match &base {
            Ok(HistoryBase { at, common, .. }) => tracing::info!(
                %source, %common, "the new history is read from version {at} on"
            ),
            Err(UnknownVersion::Now) => {
                tracing::info!(%source, "the new history was compacted during the search: the search begins again");
            }
            Err(UnknownVersion::Ever) => {
                tracing::info!(%source, "the newest version that both histories have can't be found");
            }
        }
        base
    }

    async fn find_base(&self) -> Result<HistoryBase, UnknownVersion> {
        let mut best = HistoryBisection { common: None, other: self.newest.saturating_add(1), time: None };
        for epoch in self.former_epochs() {
            let halved = self.newest_of_both(epoch).await?;
            if halved.common > best.common || epoch + 1 == self.epoch {
                best = halved;
            }
        }
        let (edge, parted, newest) = (best.other.saturating_sub(1), best.time, version_of(self.newest));
        if let Some(common) = best.common.map(version_of) {
            return Ok(HistoryBase { at: common.clone(), common, edge, parted, newest });
        }
        // A history without anything in common is read from its beginning.
        self.exact.is_compacted(&version_of(1)).await;
        let gone = u64::try_from(self.exact.compacted_through()).map_err(|_| UnknownVersion::Ever)?;
        if gone >= self.newest {
            return Err(UnknownVersion::Now);
        }
        let at = version_of(gone + 1);
        let common = if gone > 0 { self.newest_of_both_at(&at).await? } else { None };
        Ok(HistoryBase {
            common: common.map_or_else(|| Version::new(""), version_of),
            at,
            edge,
            parted,
            newest,
        })
    }

    /// The newest first. A backup can belong to any of them.
    fn former_epochs(&self) -> impl Iterator<Item = u32> {
        (0..self.epoch).rev().take(EPOCHS)
    }

    /// Searches the witnessed versions for the newest equal one, as far back as the new history can be read.
    async fn newest_of_both(&self, epoch: u32) -> Result<HistoryBisection, UnknownVersion> {
        let (mut low, mut high, mut common, mut time) = (1, self.newest.saturating_add(1), None, None);
        while low < high {
            let middle = low + (high - low) / 2;
            match self.newest_conclusive(epoch, low..=middle).await? {
                Some((former, FormerMatch::Same)) => (low, common) = (middle + 1, former.version.as_number()),
                Some((former, FormerMatch::Other)) => {
                    high = former.version.as_number().unwrap_or(middle);
                    time = write_times(&parse_or_null(&former.document))
                        .into_iter()
                        .max()
                        .map(ToString::to_string);
                }
                Some((_, FormerMatch::Gone | FormerMatch::Unclear)) | None => low = middle + 1,
            }
        }
        Ok(HistoryBisection { common, other: high, time })
    }

    /// The newest conclusive version in a range of numbers.
    async fn newest_conclusive(
        &self,
        epoch: u32,
        within: RangeInclusive<u64>,
    ) -> Result<Option<(FormerVersion, FormerMatch)>, UnknownVersion> {
        let (low, mut high, mut left) = (*within.start(), *within.end(), UNCLEAR);
        while let Some((at, former)) = self.newest_witnessed(epoch, low..=high).await? {
            match self.compare_former(&former).await? {
                FormerMatch::Unclear if left > 0 && at > low => (high, left) = (at - 1, left - 1),
                found => return Ok(Some((former, found))),
            }
        }
        Ok(None)
    }

    /// Searches the objects that existed at a version, by the times of their writes.
    async fn newest_of_both_at(&self, at: &Version) -> Result<Option<u64>, UnknownVersion> {
        let mut written = self.versions_at(at).await?;
        written.sort_unstable();
        let (mut low, mut high, mut common) = (0, written.len(), None);
        while low < high {
            let middle = low + (high - low) / 2;
            match self.match_at(written[middle], at).await? {
                FormerMatch::Same => (low, common) = (middle + 1, Some(written[middle])),
                FormerMatch::Other => high = middle,
                FormerMatch::Unclear => low = middle + 1,
                FormerMatch::Gone => return Err(UnknownVersion::Now),
            }
        }
        Ok(common)
    }

    /// Whether the journal has a version of the object that was written there and existed at the other
    /// version.
    async fn match_at(&self, written: u64, at: &Version) -> Result<FormerMatch, UnknownVersion> {
        for epoch in self.former_epochs() {
            let Some((_, former)) = self.newest_witnessed(epoch, written..=written).await? else { continue };
            let found = match self.compared_at(&former, at).await? {
                // The server does not have the previous content any more, but the journal may have it.
                (FormerMatch::Same, Some(now)) => {
                    let is_dated = former.before.is_none_or(|before| has_moved(&before, &now));
                    if is_dated && !write_times(&parse_or_null(&now)).is_empty() {
                        FormerMatch::Same
                    } else {
                        FormerMatch::Unclear
                    }
                }
                (found, _) => found,
            };
            if found != FormerMatch::Other {
                return Ok(found);
            }
        }
        Ok(FormerMatch::Other)
    }

    /// The newest version in a range of numbers that was witnessed in an epoch.
    async fn newest_witnessed(
        &self,
        epoch: u32,
        within: RangeInclusive<u64>,
    ) -> Result<Option<(u64, FormerVersion)>, UnknownVersion> {
        let former = self.parts.witness.newest_version_within(&self.parts.spec.name, epoch, within).await;
        let former = former.map_err(|error| {
            let source = &self.parts.spec.name;
            tracing::warn!(%source, "the former history can't be read: {error}");
            UnknownVersion::Ever
        })?;
        Ok(former.and_then(|former| Some((former.version.as_number()?, former))))
    }

    /// Compares at the version itself and directly before it.
    async fn compare_former(&self, former: &FormerVersion) -> Result<FormerMatch, UnknownVersion> {
        let (found, now) = self.compared_at(former, &former.version).await?;
        let (FormerMatch::Same, Some(now), Some(before)) = (&found, &now, former.version.directly_before())
        else {
            return Ok(found);
        };
        match self.exact.object_at(&former.object, &before).await {
            Some(ExactAnswer::Item { uid, document, .. }) if uid == former.object.uid => {
                Ok(if has_moved(&document, now) { FormerMatch::Same } else { FormerMatch::Unclear })
            }
            // It was created there.
            Some(ExactAnswer::Item { .. } | ExactAnswer::Nobody) => Ok(FormerMatch::Same),
            Some(ExactAnswer::Compacted) => Ok(FormerMatch::Unclear),
            Some(ExactAnswer::Refused(_)) | None => Err(UnknownVersion::Ever),
        }
    }

    /// Whether the same content exists there, and the content.
    async fn compared_at(
        &self,
        former: &FormerVersion,
        at: &Version,
    ) -> Result<(FormerMatch, Option<Bytes>), UnknownVersion> {
        match self.exact.object_at(&former.object, at).await {
            Some(ExactAnswer::Item { uid, version, document })
                if uid == former.object.uid
                    && version == former.version
                    && parse_or_null(&document) == parse_or_null(&former.document) =>
            {
                Ok((FormerMatch::Same, Some(document)))
            }
            Some(ExactAnswer::Item { .. } | ExactAnswer::Nobody) => Ok((FormerMatch::Other, None)),
            Some(ExactAnswer::Compacted) => Ok((FormerMatch::Gone, None)),
            Some(ExactAnswer::Refused(_)) | None => Err(UnknownVersion::Ever),
        }
    }

    /// The versions of all objects that existed at a version.
    async fn versions_at(&self, at: &Version) -> Result<Vec<u64>, UnknownVersion> {
        let limit = self.parts.tuning.page.to_string();
        let (mut versions, mut token) = (Vec::new(), String::new());
        loop {
            let address = self.exact.collection_address().with_parameter("limit", &limit);
            let address = match token.as_str() {
                "" => address
                    .with_parameter("resourceVersion", at.as_str())
                    .with_parameter("resourceVersionMatch", "Exact"),
                token => address.with_parameter("continue", token),
            };
            if !self.exact.take() {
                return Err(UnknownVersion::Ever);
            }
            let read = self.exact.read(&address).await.map_err(|_| UnknownVersion::Ever)?;
            let bytes = read.ok_or(UnknownVersion::Now)?;
            let page = project::list_page(&bytes).map_err(|_| UnknownVersion::Ever)?;
            if page.resource_version != at.as_str() {
                return Err(UnknownVersion::Ever);
            }
            versions.extend(page.items.iter().filter_map(|item| {
                let envelope = project::read_envelope(item).ok()?;
                check(&self.parts, &envelope).ok()?;
                Version::new(&envelope.resource_version).as_number()
            }));
            if page.continue_token.is_empty() {
                return Ok(versions);
            }
            token = page.continue_token.to_string();
        }
    }
}

/// Reads old versions while the source waits.
pub(crate) fn old_versions_reader(
    parts: &Arc<SourceParts>,
    resource: &SourceResource,
    newest: u64,
) -> OldVersions {
    let exact = OldVersions::beside_watch(parts, resource, Some(newest.into()));
    exact.with_patience(parts.tuning.walk.time_per_object)
}

pub(crate) fn version_of(number: u64) -> Version {
    Version::new(&number.to_string())
}

fn parse_or_null(document: &[u8]) -> Value {
    serde_json::from_slice(document).unwrap_or_default()
}

/// Whether a write records another time than the write before it.
fn has_moved(before: &[u8], now: &[u8]) -> bool {
    write_times(&parse_or_null(before)) != write_times(&parse_or_null(now))
}

/// The times at which its fields were written.
pub(crate) fn write_times(document: &Value) -> Vec<&str> {
    let managed = document.pointer("/metadata/managedFields").and_then(Value::as_array);
    let times = managed.into_iter().flatten().filter_map(|fields| fields.get("time"));
    times.filter_map(Value::as_str).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn written(time: Option<&str>, failed: u32) -> Vec<u8> {
        let mut object = json!({"metadata": {"name": "a"}, "status": {"failed": failed}});
        if let Some(time) = time {
            object["metadata"]["managedFields"] = json!([{"manager": "m", "time": time}]);
        }
        object.to_string().into_bytes()
    }

    #[test]
    fn a_write_that_only_takes_something_away_does_not_say_when_it_was_made() {
        let (earlier, later) = (Some("2026-01-01T00:00:01Z"), Some("2026-01-01T00:00:02Z"));
        assert!(has_moved(&written(earlier, 1), &written(later, 1)));
        assert!(has_moved(&written(None, 1), &written(earlier, 1)));
        assert!(!has_moved(&written(earlier, 1), &written(earlier, 2)));
        assert!(!has_moved(&written(None, 1), &written(None, 2)));
    }
}
