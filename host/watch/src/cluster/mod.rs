//! What a process needs of the cluster beside its sources.

pub mod configmaps;
pub mod lease;
