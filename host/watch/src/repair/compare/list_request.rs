//! Describes a list that is to be compared: which list, and why it is made.

use kubewitness_core::Version;

use crate::connect::resource::SourceResource;
use crate::repair::history::newest_common::HistoryBase;
use crate::source::round::RoundId;

/// Why a list is made. It decides what the differences mean.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ListReason {
    /// Nothing was witnessed before, or only a part of such a first list.
    First,
    /// The server no longer has the checkpoint's version.
    Expired,
    /// The server has more than the watch brought, but contradicts nothing that was witnessed. Either events
    /// were lost, or the server was restored from a backup of that time.
    Doubted,
    /// The server's history is another one, and the epoch has grown.
    Replaced,
}

impl ListReason {
    /// Whether the witnessed states belong to this history, so that what lies between is read back.
    pub fn goes_on(&self) -> bool {
        matches!(self, Self::Expired | Self::Doubted)
    }
}

/// A list that is wanted.
#[derive(Clone)]
pub(crate) struct ListRequest {
    pub resource: SourceResource,
    pub reason: ListReason,
    /// Everything up to here was witnessed.
    pub baseline: Option<Version>,
    /// For a new history: list what existed at this version, not what exists now.
    pub base: Option<HistoryBase>,
    pub id: RoundId,
}
