//! The needs of a process besides its sources: the Lease, rights, and a way to a pod.

pub mod election;
mod forward;
mod reviews;
