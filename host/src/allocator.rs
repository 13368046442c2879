//! Where memory comes from. A state is many small pieces that one thread makes and another gives
//! up: with the C library's allocator two fifths of a state's time went there, and a twentieth more
//! memory was kept for each cached object. The C code within (SQLite, zstd) uses this one, too.
//!
//! How freely it keeps what was given up is said in `.cargo/config.toml`; `MALLOC_CONF` in the
//! environment says otherwise.

#[cfg(not(target_env = "msvc"))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;
