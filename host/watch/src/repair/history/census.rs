//! Takes a census: checks whether exactly the witnessed objects exist at a checkpoint.
//!
//! Bookmarks move the checkpoint of a quiet source past its last
//! [landmark](crate::repair::history::landmarks). A backup from between the two contains everything that was
//! witnessed. A server restored from it may pass the checkpoint before it is asked, and its writes in between
//! would never be seen. But the server can list the objects that existed at the checkpoint. The bookmark
//! guarantees that everything up to it has arrived, so the witnessed objects at that version are known
//! exactly.
//!
//! A difference shows either lost events or a history that shares everything witnessed. The two can't be
//! distinguished, and the repair is the same: the existing objects are read back.
//!
//! One page is compared object by object, which covers most quiet sources. For a longer list the count is
//! compared as well, and if it differs, the remaining pages. If only versions after the first page changed,
//! the audit finds them.

use std::sync::Arc;

use bytes::Bytes;
use kubewitness_core::Version;
use kubewitness_core::ports::FormerEnd;
use kubewitness_core::project::{self, ListGuard, ObjectEnvelope};
use kubewitness_core::state::ObjectRef;

use crate::connect::request::RequestAddress;
use crate::connect::resource::SourceResource;
use crate::judge::object::{check, matches_labels};
use crate::repair::history::landmarks::fetch_at_version;
use crate::source::parts::SourceParts;
use crate::source::round::UidSet;
use crate::version::version_number;

pub(crate) struct HistoryCensus<'a> {
    pub parts: &'a Arc<SourceParts>,
    pub resource: &'a SourceResource,
    pub epoch: u32,
    /// The checkpoint.
    pub at: &'a Version,
    /// The server's version.
    pub server: &'a Version,
}

/// One list, as far as it was read.
#[derive(Default)]
struct CensusList {
    uids: UidSet,
    /// Whether an item could not be read. It may be any object.
    has_poison: bool,
}

/// The server can't answer, or its answer proves nothing.
struct CensusUnknown;

impl HistoryCensus<'_> {
    /// Whether the server has other objects at the checkpoint than were witnessed.
    pub async fn is_contradicted(&self) -> bool {
        self.matches_history().await.unwrap_or(false)
    }

    async fn matches_history(&self) -> Result<bool, CensusUnknown> {
        let (mut listed, mut guard, mut token) = (CensusList::default(), ListGuard::default(), String::new());
        loop {
            let bytes = self.fetch_page(self.at, self.parts.tuning.page, &token).await?;
            let page = project::list_page(&bytes).map_err(|_| CensusUnknown)?;
            guard.count_page(&page, bytes.len()).map_err(|_| CensusUnknown)?;
            for item in &page.items {
                if self.is_strange(item, &mut listed).await {
                    return Ok(true);
                }
            }
            if page.continue_token.is_empty() {
                return Ok(!listed.has_poison && self.is_any_missing(&listed.uids));
            }
            let counted = page.remaining.map(|remaining| page.items.len() as u64 + remaining);
            if token.is_empty() && self.fits_count(counted).await? {
                return Ok(false);
            }
            token = page.continue_token.to_string();
        }
    }

    async fn fetch_page(&self, at: &Version, limit: usize, token: &str) -> Result<Bytes, CensusUnknown> {
        let address = self.resource.collection_address().with_parameter("limit", &limit.to_string());
        let exact = |address: RequestAddress| {
            address
                .with_parameter("resourceVersion", at.as_str())
                .with_parameter("resourceVersionMatch", "Exact")
        };
        // A continue token contains its version, so the request must not name one.
        let address =
            if token.is_empty() { exact(address) } else { address.with_parameter("continue", token) };
        let bytes = fetch_at_version(self.parts, &address, at).await.ok_or(CensusUnknown)?;
        // A server that does not know the parameters answers with the present objects.
        let is_there = project::list_page(&bytes).is_ok_and(|page| page.resource_version == at.as_str());
        if is_there { Ok(bytes) } else { Err(CensusUnknown) }
    }

    /// Whether the witnessed states rule out that the object existed at the checkpoint.
    async fn is_strange(&self, item: &[u8], listed: &mut CensusList) -> bool {
        let Ok(envelope) = project::read_envelope(item) else {
            listed.has_poison = true;
            return false;
        };
        if check(self.parts, &envelope).is_err() {
            listed.has_poison = true;
            return false;
        }
        listed.uids.insert(&envelope.uid);
        let version = Version::new(&envelope.resource_version);
        let known = self.parts.shared.read().brief_by_uid(&envelope.uid).map(|held| held.resource_version);
        match known {
            // A state after the checkpoint says nothing about what existed before it.
            Some(known) => known != version && !known.is_newer_than(self.at),
            None => self.is_unheard_of(&envelope).await,
        }
    }

    /// Whether nothing was witnessed of the object, not even its end. With a selector that can't be known:
    /// the object may have left.
    async fn is_unheard_of(&self, envelope: &ObjectEnvelope<'_>) -> bool {
        let spec = &self.parts.spec;
        if !spec.match_labels.is_empty() || !matches_labels(self.parts, envelope) {
            return false;
        }
        let fate = self.parts.witness.end_of_former(&spec.name, self.epoch, &envelope.uid).await;
        matches!(fate, Ok(FormerEnd::Unknown))
    }

    /// Whether a witnessed object is missing from the list.
    fn is_any_missing(&self, uids: &UidSet) -> bool {
        let cache = self.parts.shared.read();
        let is_missing = |object: &ObjectRef, version: &Version| {
            !uids.contains(&object.uid) && !version.is_newer_than(self.at)
        };
        cache.all_briefs().any(|held| is_missing(&held.object, &held.resource_version))
    }

    /// Whether the count equals the known objects. A checkpoint can be directly below a witnessed deletion.
    /// Then the count above it must match.
    async fn fits_count(&self, counted: Option<u64>) -> Result<bool, CensusUnknown> {
        // With a selector the server counts other objects, too. A server that does not count can't be
        // compared.
        let Some(counted) = counted.filter(|_| self.parts.spec.match_labels.is_empty()) else {
            return Ok(true);
        };
        let known = self.parts.shared.read().len() as u64;
        if counted == known {
            return Ok(true);
        }
        let next =
            version_number(self.at).map(|at| Version::new(&(at + 1).to_string())).ok_or(CensusUnknown)?;
        if next.is_newer_than(self.server) {
            return Ok(false);
        }
        let bytes = self.fetch_page(&next, 1, "").await?;
        let page = project::list_page(&bytes).map_err(|_| CensusUnknown)?;
        Ok(page.remaining.is_none_or(|remaining| page.items.len() as u64 + remaining == known))
    }
}
