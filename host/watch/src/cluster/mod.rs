//! Reads what a process needs of the cluster beside its sources: its configuration, the Lease of the leader, who
//! may see what, the way of a command to the portal, and what a checkup tells.
//!
//! Uses `connect` alone, and knows nothing about sources, the cache or the journal.

pub mod checkup;
pub mod configmaps;
pub mod forward;
pub mod jobs;
pub mod lease;
pub mod reviews;
