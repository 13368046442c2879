//! Disables Nagle's algorithm on database connections.
//!
//! sqlx 0.9.0 leaves Nagle's algorithm on (its issue 4335; the fix is merged but not released). The end of a
//! long statement then waits until the server has acknowledged what came before, and a server may delay that
//! by 40 ms. sqlx does not expose its socket, so this module finds it among the open files of the process.

use std::mem::ManuallyDrop;
use std::net::TcpStream;
use std::os::fd::{FromRawFd as _, RawFd};
use std::path::Path;

/// Disables Nagle's algorithm on each connection of this process to this port. If that fails, statements are
/// slower and nothing else changes.
pub fn send_at_once(port: u16) {
    let Ok(open) = std::fs::read_dir("/proc/self/fd") else { return };
    let sockets = open.flatten().filter(|file| is_socket(&file.path()));
    for number in sockets.filter_map(|file| file.file_name().to_str()?.parse().ok()) {
        let stream = borrow_socket(number);
        if stream.peer_addr().is_ok_and(|peer| peer.port() == port) {
            stream.set_nodelay(true).ok();
        }
    }
}

fn is_socket(file: &Path) -> bool {
    std::fs::read_link(file).is_ok_and(|target| target.as_os_str().as_encoded_bytes().starts_with(b"socket:"))
}

#[allow(unsafe_code)]
fn borrow_socket(number: RawFd) -> ManuallyDrop<TcpStream> {
    // SAFETY: the socket is never closed here. If its owner closes it meanwhile, the calls above fail, or
    // they reach another file that got the same number. Then they read that file's peer, and set an option
    // that only makes a connection send sooner.
    ManuallyDrop::new(unsafe { TcpStream::from_raw_fd(number) })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn connections_with_the_port_send_at_once_and_others_stay_as_they_are() {
        let server = || TcpListener::bind("127.0.0.1:0").unwrap();
        let (database, other) = (server(), server());
        let connect = |to: &TcpListener| TcpStream::connect(to.local_addr().unwrap()).unwrap();
        let (ours, theirs) = (connect(&database), connect(&other));
        send_at_once(database.local_addr().unwrap().port());
        assert!(ours.nodelay().unwrap());
        assert!(!theirs.nodelay().unwrap());
    }
}
