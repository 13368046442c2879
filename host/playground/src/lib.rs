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
