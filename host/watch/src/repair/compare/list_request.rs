//! Describes a list that is to be compared: its request, and why it is made.

use kubewitness_core::Version;

use crate::connect::resource::SourceResource;
use crate::repair::history::newest_common::HistoryBase;
use crate::source::round::RoundId;

/// Why a list is made. It determines what the differences mean.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ListReason {
    /// Nothing was witnessed before, or only a part of an earlier first list.
    First,
    /// The server no longer has the checkpoint's version.
    Expired,
    /// The server has more than the watch delivered, but contradicts nothing that was witnessed. Either
    /// events were lost, or the server was restored from a backup of that time.
    Doubted,
    /// The server has another history, so the epoch increases.
    Replaced,
}

impl ListReason {
    /// Whether the witnessed states belong to this history, so that the versions in between are read back.
    pub fn continues_history(&self) -> bool {
        matches!(self, Self::Expired | Self::Doubted)
    }
}

/// A requested list.
#[derive(Clone)]
pub(crate) struct ListRequest {
    pub resource: SourceResource,
    pub reason: ListReason,
    /// Everything up to this version was witnessed.
    pub baseline: Option<Version>,
    /// For a new history: list the objects of this version instead of the present ones.
    pub base: Option<HistoryBase>,
    pub id: RoundId,
}
