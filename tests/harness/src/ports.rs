//! Free ports for programs that can't choose one themselves, or that return to the one they had.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Result, bail};

/// Below those that the system gives to clients. Any client of this machine may be given one of these
/// before its server comes to it, or while that is stopped: the one that tries to reach it again and
/// again sooner or later reaches itself.
const FIRST: u32 = 10_000;
const COUNT: u32 = 20_000;

/// A port that nobody listens on now, and that nobody else in this process was told. Between this and
/// its use another process may take it.
pub fn free_port() -> Result<u16> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Processes that were started one after the other begin far from each other.
    let start = std::process::id().wrapping_mul(0x9E37_79B1) >> 8;
    for _ in 0..COUNT {
        let port = FIRST + start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % COUNT;
        let port = u16::try_from(port)?;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no port from {FIRST} to {} is free: end what listens there", FIRST + COUNT - 1)
}
