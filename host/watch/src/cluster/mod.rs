//! Everything else that a process needs of the cluster: its configuration, the leader's Lease, reviews of
//! rights, the connection of a command to the portal, and checkups.
//!
//! None of these needs history. So they use plain requests over `connect` instead of a source, and work
//! before the journal is open. They know nothing about sources, the cache or the journal.

pub mod checkup;
pub mod configmaps;
pub mod forward;
pub mod jobs;
pub mod lease;
pub mod reviews;
