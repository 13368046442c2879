//! What a process needs of the cluster beside its sources: the Lease, rights, and a way to a pod.

pub mod election;
mod forward;
mod reviews;
