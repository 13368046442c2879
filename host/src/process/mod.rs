//! The process itself: allocator, log, file handles, signals. Nothing here knows of Kubernetes, journals or plugins.

#[cfg(feature = "jemalloc")]
mod allocator;
pub mod file_handles;
pub mod logs;
pub mod signals;
