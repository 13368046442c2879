//! Stands in for a cluster on one machine: a simulated Kubernetes API server, a workload of training jobs in
//! it, and a receiver for notifications.
//!
//! A test of the controller needs a server that fails on command, and that records what really happened. It
//! knows nothing of the controller, and shares no code with it: an error in shared code would be on both
//! sides, and no test would see it. So it has its own selectors, address escapes, Base64 and calendar.

pub mod apiserver;
mod calendar;
pub mod receiver;
pub mod workload;

/// How long clients may delay the end of a stopped server. Answers take milliseconds, and a client that does
/// not read them would block the stop forever.
const LET_END: std::time::Duration = std::time::Duration::from_secs(2);

/// Returns this long after `stop`.
async fn overdue(stop: &tokio_util::sync::CancellationToken) {
    stop.cancelled().await;
    tokio::time::sleep(LET_END).await;
}
