//! The process itself: allocator, log, file handles and modes, signals, and how long its parts wait. Nothing
//! here knows of Kubernetes, journals or plugins, except the timers, which have a value for each part.

#[cfg(feature = "jemalloc")]
mod allocator;
pub mod file_handles;
pub mod file_mode;
pub mod folder_lock;
pub mod logs;
pub mod signals;
pub mod timers;
