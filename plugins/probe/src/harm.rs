//! Commands that end the call of their state, and commands that try something that the host does not allow.
//! Deliberately harmful plugins are in `tests/guests/hostile`.

use std::hint::black_box;
use std::net::{TcpListener, TcpStream, ToSocketAddrs, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::number;

/// Memory that survives between calls. A plugin must not rely on it, and the host's tests check it.
static CALLS: AtomicU64 = AtomicU64::new(0);

pub fn obey_command(name: &str, words: &[&str]) -> Option<String> {
    Some(match (name, words) {
        ("trap", _) => panic!("as commanded"),
        ("loop", _) => spin_forever(),
        ("compute", [turns]) => {
            (0..number(turns)).fold(0, |sum: u64, turn| black_box(sum ^ turn)).to_string()
        }
        ("eat", [mebibytes]) => eat_memory(number(mebibytes)),
        ("try-eat", [mebibytes]) => try_eat(number(mebibytes)),
        ("count", _) => CALLS.fetch_add(1, Ordering::Relaxed).to_string(),
        ("environment", _) => {
            format!("{} variables, {} arguments", std::env::vars_os().count(), std::env::args_os().count())
        }
        ("stdin", _) => match std::io::read_to_string(std::io::stdin()) {
            Ok(text) => format!("{} bytes", text.len()),
            Err(error) => format!("error: {error}"),
        },
        ("read", [path]) => outcome(std::fs::read(path).map(|bytes| bytes.len())),
        ("write", [path]) => outcome(std::fs::write(path, "x")),
        ("connect", [address]) => outcome(TcpStream::connect(address)),
        ("listen", [address]) => outcome(TcpListener::bind(address)),
        ("datagram", [address]) => outcome(UdpSocket::bind(address)),
        ("resolve", [address]) => outcome(address.to_socket_addrs().map(Iterator::count)),
        _ => return None,
    })
}

fn outcome<T: std::fmt::Debug>(result: std::io::Result<T>) -> String {
    match result {
        Ok(value) => format!("ok: {value:?}"),
        Err(error) => format!("error: {error}"),
    }
}

fn spin_forever() -> ! {
    let mut turns = 0u64;
    loop {
        turns = black_box(turns.wrapping_add(1));
    }
}

/// Allocates and writes this much memory, unless the allocator aborts the process first.
fn eat_memory(mebibytes: u64) -> String {
    let mut eaten = Vec::new();
    for _ in 0..mebibytes {
        eaten.push(black_box(vec![1u8; 1 << 20]));
    }
    format!("ate {}", eaten.len())
}

/// Does the same, but handles a refusal.
fn try_eat(mebibytes: u64) -> String {
    let mut all: Vec<u8> = Vec::new();
    match all.try_reserve_exact(usize::try_from(mebibytes << 20).unwrap_or(usize::MAX)) {
        Ok(()) => "had".to_string(),
        Err(_) => "refused".to_string(),
    }
}
