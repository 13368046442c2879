//! What a process needs of the cluster beside its sources: its configuration, the Lease of the leader, and who
//! may see what.
//!
//! Uses `connect` alone, and knows nothing about sources, the cache or the journal.

pub mod configmaps;
pub mod forward;
pub mod lease;
pub mod reviews;
