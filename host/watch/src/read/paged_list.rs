//! Gets a list page by page, and passes it on for the comparison with the witnessed states.

use std::sync::Arc;

use kubewitness_core::Version;
use kubewitness_core::project::ListGuard;
use tokio::sync::mpsc;

use crate::connect::request::{RequestFailure, list_page};
use crate::repair::compare::list_request::{ListReason, ListRequest};
use crate::repair::compare::{ListComparison, ListFailure, PageVersions};
use crate::source::handle::count;
use crate::source::input::{WriterClosed, WriterInput, await_durable};
use crate::source::parts::SourceParts;
use crate::source::round::RepairRound;

/// How often the pages of a list may expire before another form of list is requested. Such a server is slower
/// than its own compaction.
const PAGED_TRIES: u32 = 3;

/// How a list ended.
pub(crate) enum ListEnd {
    /// It is complete at this version. The repair handles the differences.
    Complete(Version, Option<RepairRound>),
    /// It showed an object older than the witnessed one. This is the server's version.
    OtherHistory(Version),
    Failed(RequestFailure),
    /// Its pages expired again and again.
    TooSlow,
    /// The objects at the base show that it is not part of this history.
    Baseless,
}

pub(crate) struct PagedList {
    parts: Arc<SourceParts>,
    inputs: mpsc::Sender<WriterInput>,
    asked: ListRequest,
}

impl PagedList {
    pub fn new(parts: Arc<SourceParts>, inputs: mpsc::Sender<WriterInput>, asked: ListRequest) -> Self {
        Self { parts, inputs, asked }
    }

    /// With `in_one_piece`, it requests the list without pages.
    pub async fn run(&self, in_one_piece: bool) -> Result<ListEnd, WriterClosed> {
        let mut tries = 0;
        loop {
            count_list(&self.parts, &self.asked.reason);
            tries += 1;
            match self.attempt_list(!in_one_piece).await {
                Ok((version, round)) => return Ok(ListEnd::Complete(version, round)),
                Err(ListFailure::Again) => {
                    tracing::warn!(source = %self.parts.spec.name, tries, "a page of the list expired: listing again");
                    await_durable(&self.inputs).await?;
                    if tries >= PAGED_TRIES {
                        return Ok(ListEnd::TooSlow);
                    }
                }
                Err(ListFailure::Closed) => return Err(WriterClosed),
                Err(ListFailure::OtherHistory(server)) => return Ok(ListEnd::OtherHistory(server)),
                Err(ListFailure::Failed(failure)) => return Ok(ListEnd::Failed(failure)),
                Err(ListFailure::Baseless) => return Ok(ListEnd::Baseless),
                Err(ListFailure::NotStreamed(why)) => {
                    return Ok(ListEnd::Failed(RequestFailure::Answer(why)));
                }
            }
        }
    }

    /// Gets one list from its first page to its last. The watch begins at the first page's version, so it
    /// misses nothing, whatever the later pages show.
    async fn attempt_list(&self, paged: bool) -> Result<(Version, Option<RepairRound>), ListFailure> {
        let ListRequest { resource, base, id, .. } = &self.asked;
        let mut comparison = ListComparison::new(&self.parts, &self.inputs, &self.asked);
        let (mut guard, mut token, mut first) = (ListGuard::default(), String::new(), None);
        loop {
            let mut address = resource.collection_address();
            if paged {
                address = address.with_parameter("limit", &self.parts.tuning.page.to_string());
            }
            if !token.is_empty() {
                address = address.with_parameter("continue", &token);
            } else if let Some(base) = base {
                address = address
                    .with_parameter("resourceVersion", base.at.as_str())
                    .with_parameter("resourceVersionMatch", "Exact");
            }
            let bytes = match self.parts.api.get(address.as_str()).await {
                Ok(bytes) => bytes,
                Err(failure) if failure.is_expired() && !token.is_empty() => match failure.continue_token() {
                    // This is the rest of the list in its present state. The watch from the first page's
                    // version delivers the changes in between.
                    Some(inconsistent) if *inconsistent != token && base.is_none() => {
                        guard.note_token(inconsistent).map_err(RequestFailure::from)?;
                        token = inconsistent.to_string();
                        continue;
                    }
                    _ => return Err(ListFailure::Again),
                },
                Err(failure) => return Err(failure.into()),
            };
            let page = list_page(&bytes)?;
            guard.count_page(&page, bytes.len()).map_err(RequestFailure::from)?;
            let version = Version::new(&page.resource_version);
            if base.as_ref().is_some_and(|base| base.at != version) {
                return Err(ListFailure::Baseless);
            }
            let listed = first.get_or_insert_with(|| version.clone());
            for item in &page.items {
                let page = PageVersions { first: listed, own: &version };
                comparison.take_item(bytes.slice_ref(item), Some(page)).await?;
            }
            if page.continue_token.is_empty() {
                let round = comparison.complete_list(listed, &version, *id).await?;
                return Ok((listed.clone(), round));
            }
            token = page.continue_token.to_string();
        }
    }
}

pub(crate) fn count_list(parts: &SourceParts, reason: &ListReason) {
    let counters = &parts.shared.counters;
    let counter = match reason {
        ListReason::First => &counters.lists_first,
        ListReason::Expired => &counters.lists_expired,
        ListReason::Replaced => &counters.lists_replaced,
        // This list serves as an early audit.
        ListReason::Doubted => &counters.lists_audit,
    };
    count(counter, 1);
}
