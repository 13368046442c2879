//! The process itself: allocator, log, file handles and modes, signals, and how long its parts wait.
//!
//! These settings hold for the whole process, so they are made once, at startup, and in one place. Limits and
//! modes are set before anything is opened that depends on them. Nothing here knows of Kubernetes, journals
//! or plugins, except the timers, which have a value for each part.

#[cfg(feature = "jemalloc")]
mod allocator;
pub mod file_handles;
pub mod file_mode;
pub mod folder_lock;
pub mod logs;
pub mod signals;
pub mod timers;
