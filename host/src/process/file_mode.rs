//! Protects the process's files from other users of the machine. The journal, granted databases and exports
//! contain whole documents.

use rustix::fs::Mode;
use rustix::process::umask;

/// The group keeps what the umask leaves it: a sidecar that ships a ledger reads it that way.
pub fn keep_from_others() {
    let hidden = Mode::WGRP | Mode::RWXO;
    let before = umask(hidden);
    umask(before | hidden);
}
