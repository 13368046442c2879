//! Everything that stands in for a cluster on one machine: a simulated Kubernetes API server, a workload of
//! training jobs that lives in it, and a receiver for notifications.
//!
//! Knows nothing of the controller that is tried out against it, and shares no code with it: selectors, escapes in
//! addresses, Base64 and the calendar are its own, since an error in shared code would be on both sides and seen by
//! no test.

pub mod apiserver;
mod calendar;
pub mod receiver;
pub mod workload;

/// Once a server is told to stop, clients have this long to let it end. Answers take milliseconds, and a
/// client that does not read them would take for ever.
const LET_END: std::time::Duration = std::time::Duration::from_secs(2);

/// Until `stop` and that time are over.
async fn overdue(stop: &tokio_util::sync::CancellationToken) {
    stop.cancelled().await;
    tokio::time::sleep(LET_END).await;
}
