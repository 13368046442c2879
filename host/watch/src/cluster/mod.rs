//! Reads what a process needs of the cluster beside its sources: its configuration and the Lease of the
//! leader.
//!
//! Uses `connect` alone, and knows nothing about sources, the cache or the journal.

pub mod configmaps;
pub mod lease;
