//! Which list is compared, and why it was made.

use kubewitness_core::Version;

use crate::connect::resource::Resource;
use crate::repair::history::newest_common::Base;
use crate::source::round::RoundId;

/// Why a list is made, which decides what its differences mean.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ListReason {
    /// Nothing was witnessed before, or only a part of such a first list.
    First,
    /// The server no longer has the checkpoint's version.
    Expired,
    /// The server has something else there than the watch brought, and everything that was
    /// witnessed as well: events were lost, or it was restored from a backup of that time.
    Doubted,
    /// The server's history is another one; the epoch has grown.
    Replaced,
}

impl ListReason {
    /// What was witnessed belongs to this history: what lies between is read back.
    pub fn goes_on(&self) -> bool {
        matches!(self, Self::Expired | Self::Doubted)
    }
}

/// Which list is wanted.
#[derive(Clone)]
pub(crate) struct Asked {
    pub resource: Resource,
    pub reason: ListReason,
    /// Everything up to here was witnessed.
    pub baseline: Option<Version>,
    /// Of a new history: what was there at this version is listed, and not what is there now.
    pub base: Option<Base>,
    pub id: RoundId,
}
