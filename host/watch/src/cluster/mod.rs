//! Everything else that a process needs of the cluster: its configuration, the leader's Lease, reviews of
//! rights, the connection of a command to the portal, and checkups.
//!
//! Uses `connect` alone, and knows nothing about sources, the cache or the journal.

pub mod checkup;
pub mod configmaps;
pub mod forward;
pub mod jobs;
pub mod lease;
pub mod reviews;
