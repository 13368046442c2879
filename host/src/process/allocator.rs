//! The allocator of the process. One thread allocates the many small pieces of a state and another frees
//! them, which is slow in the C library's allocator. `cargo xtask bench pipeline` and `memory` measure a
//! change. The C code in the process (SQLite, zstd) uses this allocator, too.
//!
//! `.cargo/config.toml` sets how soon free memory goes back to the system; `MALLOC_CONF` in the environment
//! overrides it.

#[cfg(not(target_env = "msvc"))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;
