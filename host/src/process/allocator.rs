//! Where memory comes from. A state is many small pieces that one thread makes and another gives
//! up, which is what the C library's allocator is slow at; `cargo xtask bench pipeline` and `memory`
//! tell the price of a choice. The C code within (SQLite, zstd) uses this one, too.
//!
//! How freely it keeps what was given up is said in `.cargo/config.toml`; `MALLOC_CONF` in the
//! environment says otherwise.

#[cfg(not(target_env = "msvc"))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;
