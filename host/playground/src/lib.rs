//! Everything that stands in for a cluster on one machine: a simulated Kubernetes API server, a workload of
//! training jobs that lives in it, and a receiver for notifications.
//!
//! Knows nothing of the controller that is tried out against it.

pub mod apiserver;
mod calendar;
pub mod receiver;
pub mod workload;
