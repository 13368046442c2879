//! Status rules as data.

/// Every phase that a status may have.
pub const PHASES: [&str; 13] = [
    "Queued", "Admitted", "Pending", "Starting", "Running", "Restarting", "Suspended", "Preempted", "Succeeded",
    "Failed", "Cancelled", "Deleted", "Unknown",
];
