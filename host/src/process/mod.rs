//! The process itself: allocator, log, file handles and modes, signals. Nothing here knows of Kubernetes, journals or plugins.

#[cfg(feature = "jemalloc")]
mod allocator;
pub mod file_handles;
pub mod file_mode;
pub mod logs;
pub mod signals;
