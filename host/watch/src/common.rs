//! From where a history that took the place of another is read: from the newest write that both
//! have. What was written to it since was never watched, but can still be read back.
//!
//! A version can be the same in both by chance: a server that was restored from a backup counts on
//! from there, and controllers do again what they did. But each write says when it was made, and a
//! restore takes longer than the second that those times are told in. So only a write that says so
//! counts, and one that is the same is the same write; a store's versions are one counter, so that
//! everything below it is the same as well.
//!
//! Where compaction has been beyond it, the new history is read from there on, and what lies
//! between is a gap.

use std::ops::RangeInclusive;
use std::sync::Arc;

use kubewitness_core::Version;
use kubewitness_core::ports::Former;
use kubewitness_core::project;
use serde_json::Value;
use tokio::time::timeout;

use crate::budget::Budget;
use crate::discovery::Resource;
use crate::exact::Exact;
use crate::frontier::Frontier;
use crate::landmark::differ;
use crate::maker::check;
use crate::source::Parts;
use crate::walkback::Answer;

/// Histories that are looked through; a backup of an older one has nothing in common with them.
const EPOCHS: usize = 8;

/// Where a new history is known from on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Base {
    /// It is read from here on.
    pub at: Version,
    /// Up to here it is the same as the one before; empty where nothing of it is known to be.
    pub common: Version,
}

/// What the new history has where the one before had a version.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    Same,
    Other,
    /// Compaction has been there.
    Gone,
}

/// It can't be told: the server can't be asked, or the writes don't say when they were made.
#[derive(Debug, PartialEq, Eq)]
struct Untold;

pub(crate) struct Common {
    parts: Arc<Parts>,
    exact: Exact,
    /// The new history's.
    epoch: u32,
    newest: u64,
}

impl Common {
    /// `None` where versions have no order.
    pub fn new(parts: &Arc<Parts>, resource: &Resource, epoch: u32, server: &Version) -> Option<Self> {
        let newest = server.number()?;
        let walk = &parts.tuning.walk;
        let budget = Budget::new(walk.requests, walk.time, walk.rate);
        let frontier = Arc::new(Frontier::new(Some(newest.into())));
        let exact = Exact::new(Arc::clone(parts), resource.clone(), budget, frontier);
        let exact = exact.with_patience(parts.tuning.one_answer);
        Some(Self { parts: Arc::clone(parts), exact, epoch, newest })
    }

    /// A server that doesn't answer such questions must not keep a source from watching.
    pub async fn base(&self) -> Option<Base> {
        let within = self.parts.tuning.walk.time_per_object;
        let base = timeout(within, self.told()).await.ok().and_then(Result::ok);
        let source = &self.parts.spec.name;
        match &base {
            Some(Base { at, common }) => tracing::info!(
                %source, %common, "the new history is read from version {at} on"
            ),
            None => {
                tracing::info!(%source, "what the new history has in common with the one before can't be told");
            }
        }
        base
    }

    async fn told(&self) -> Result<Base, Untold> {
        let mut newest = None;
        for epoch in self.former_epochs() {
            newest = newest.max(self.newest_of_both(epoch).await?);
        }
        if let Some(common) = newest.map(version) {
            return Ok(Base { at: common.clone(), common });
        }
        // A history that has nothing in common with the one before is read from its beginning.
        self.exact.is_compacted(&version(1)).await;
        let gone = u64::try_from(self.exact.gone()).map_err(|_| Untold)?;
        if gone >= self.newest {
            return Err(Untold);
        }
        let at = version(gone + 1);
        let common = if gone > 0 { self.newest_of_both_at(&at).await? } else { None };
        Ok(Base { common: common.map_or_else(|| Version::new(""), version), at })
    }

    /// The newest first: a backup can be of any of them.
    fn former_epochs(&self) -> impl Iterator<Item = u32> {
        (0..self.epoch).rev().take(EPOCHS)
    }

    /// Among the versions that were witnessed, as far as the new history can be read: up to some
    /// version they are in both, and none is beyond it.
    async fn newest_of_both(&self, epoch: u32) -> Result<Option<u64>, Untold> {
        let (mut low, mut high, mut common) = (1, self.newest.saturating_add(1), None);
        while low < high {
            let middle = low + (high - low) / 2;
            let Some((at, former)) = self.former(epoch, low..=middle).await? else {
                low = middle + 1;
                continue;
            };
            match self.compared(&former, &former.version).await? {
                Found::Same => (low, common) = (middle + 1, Some(at)),
                Found::Gone => low = middle + 1,
                Found::Other => high = at,
            }
        }
        Ok(common)
    }

    /// Among those that are still there at a version, by when they were written.
    async fn newest_of_both_at(&self, at: &Version) -> Result<Option<u64>, Untold> {
        let mut written = self.versions_at(at).await?;
        written.sort_unstable();
        let (mut low, mut high, mut common) = (0, written.len(), None);
        while low < high {
            let middle = low + (high - low) / 2;
            match self.witnessed(written[middle], at).await? {
                Found::Same => (low, common) = (middle + 1, Some(written[middle])),
                Found::Other => high = middle,
                Found::Gone => return Err(Untold),
            }
        }
        Ok(common)
    }

    /// Whether a version of somebody who was there at another one is one that was witnessed.
    async fn witnessed(&self, written: u64, at: &Version) -> Result<Found, Untold> {
        for epoch in self.former_epochs() {
            let Some((_, former)) = self.former(epoch, written..=written).await? else { continue };
            match self.compared(&former, at).await? {
                Found::Other => {}
                found => return Ok(found),
            }
        }
        Ok(Found::Other)
    }

    /// The newest version within two numbers that was witnessed in an epoch.
    async fn former(&self, epoch: u32, within: RangeInclusive<u64>) -> Result<Option<(u64, Former)>, Untold> {
        let former = self.parts.witness.former(&self.parts.spec.name, epoch, within).await;
        let former = former.map_err(|error| {
            let source = &self.parts.spec.name;
            tracing::warn!(%source, "what the history before had can't be read: {error}");
            Untold
        })?;
        Ok(former.and_then(|former| Some((former.version.number()?, former))))
    }

    async fn compared(&self, former: &Former, at: &Version) -> Result<Found, Untold> {
        match self.exact.at(&former.object, at).await {
            Some(Answer::Item { uid, version, document })
                if uid == former.object.uid && version == former.version =>
            {
                same_write(&document, &former.document)
            }
            Some(Answer::Item { .. } | Answer::Nobody) => Ok(Found::Other),
            Some(Answer::Compacted) => Ok(Found::Gone),
            Some(Answer::Refused(_)) | None => Err(Untold),
        }
    }

    /// Of everybody who was there.
    async fn versions_at(&self, at: &Version) -> Result<Vec<u64>, Untold> {
        let limit = self.parts.tuning.page.to_string();
        let (mut versions, mut token) = (Vec::new(), String::new());
        loop {
            let address = self.exact.collection().with("limit", &limit);
            let address = match token.as_str() {
                "" => address.with("resourceVersion", at.as_str()).with("resourceVersionMatch", "Exact"),
                token => address.with("continue", token),
            };
            if !self.exact.take() {
                return Err(Untold);
            }
            let bytes = self.exact.read(&address).await.ok().flatten().ok_or(Untold)?;
            let page = project::list_page(&bytes).map_err(|_| Untold)?;
            if page.resource_version != at.as_str() {
                return Err(Untold);
            }
            versions.extend(page.items.iter().filter_map(|item| {
                let envelope = project::envelope(item).ok()?;
                check(&self.parts, &envelope).ok()?;
                Version::new(&envelope.resource_version).number()
            }));
            if page.continue_token.is_empty() {
                return Ok(versions);
            }
            token = page.continue_token.to_string();
        }
    }
}

fn version(number: u64) -> Version {
    Version::new(&number.to_string())
}

/// Whether two contents of one version of one object come of one write.
fn same_write(found: &[u8], held: &[u8]) -> Result<Found, Untold> {
    let read = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).map_err(|_| Untold);
    let (found, held) = (read(found)?, read(held)?);
    if times(&found) != times(&held) || differ(&found, &held) {
        return Ok(Found::Other);
    }
    if times(&found).is_empty() { Err(Untold) } else { Ok(Found::Same) }
}

/// When its fields were written.
fn times(document: &Value) -> Vec<&str> {
    let managed = document.pointer("/metadata/managedFields").and_then(Value::as_array);
    let times = managed.into_iter().flatten().filter_map(|fields| fields.get("time"));
    times.filter_map(Value::as_str).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn written(time: Option<&str>, failed: u32, ready: Option<u32>) -> Vec<u8> {
        let mut object = json!({"metadata": {"name": "a"}, "status": {"failed": failed}});
        if let Some(time) = time {
            object["metadata"]["managedFields"] = json!([{"manager": "m", "time": time}]);
        }
        if let Some(ready) = ready {
            object["status"]["ready"] = json!(ready);
        }
        object.to_string().into_bytes()
    }

    #[test]
    fn the_same_content_of_another_moment_is_another_write() {
        let (one, later) = (Some("2026-01-01T00:00:01Z"), Some("2026-01-01T00:00:02Z"));
        let held = written(one, 1, None);
        assert_eq!(same_write(&held, &held), Ok(Found::Same));
        assert_eq!(same_write(&written(later, 1, None), &held), Ok(Found::Other));
        assert_eq!(same_write(&written(one, 2, None), &held), Ok(Found::Other));
        assert_eq!(same_write(&written(None, 1, None), &held), Ok(Found::Other));
        // A server that was upgraded adds what it has a default for.
        assert_eq!(same_write(&written(one, 1, Some(0)), &held), Ok(Found::Same));
    }

    #[test]
    fn what_does_not_say_when_it_was_written_can_be_the_same_by_chance() {
        let held = written(None, 1, None);
        assert_eq!(same_write(&held, &held), Err(Untold));
        assert_eq!(same_write(&written(None, 2, None), &held), Ok(Found::Other));
        assert_eq!(same_write(b"no object", &held), Err(Untold));
    }
}
