//! The process itself: allocator, log, file handles, signals. Nothing here knows of Kubernetes, journals or plugins.

#[cfg(feature = "jemalloc")]
mod allocator;
pub mod file_handles;
pub mod logs;
pub mod signals;

use rustix::fs::Mode;

/// What this process makes from now on is for its own user alone: journals and exports hold documents as they are,
/// with their secrets. What is there already keeps its mode.
pub fn keep_files_private() {
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
}
