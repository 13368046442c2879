//! The phases of a status, as words. The rules that choose a phase are in `status`, which depends on this
//! module and not the other way around.

use super::words::names_of_words;

/// Every phase that a status may have.
pub const PHASES: [&str; phase::ALL.len()] = names_of_words(&phase::ALL);

/// The phases, as words.
pub mod phase {
    crate::words! {
        /// The object waits in a queue and has not been admitted.
        QUEUED = "Queued";
        /// A queue has admitted the object. Its pods do not exist yet.
        ADMITTED = "Admitted";
        /// The object exists and nothing of it has started.
        PENDING = "Pending";
        /// Some of its pods start, and what it needs to be running is not there yet.
        STARTING = "Starting";
        /// The object runs.
        RUNNING = "Running";
        /// A part of the object failed and is being started again.
        RESTARTING = "Restarting";
        /// The object is paused by its own settings or by a queue.
        SUSPENDED = "Suspended";
        /// The object made room for another one.
        PREEMPTED = "Preempted";
        /// The object finished its work.
        SUCCEEDED = "Succeeded";
        /// The object ended with an error.
        FAILED = "Failed";
        /// Somebody ended the object before it finished.
        CANCELLED = "Cancelled";
        /// The object no longer exists. The reason is the phase that it had before.
        DELETED = "Deleted";
        /// The object does not say enough, or its controller has not seen the newest version.
        UNKNOWN = "Unknown";
    }
}
