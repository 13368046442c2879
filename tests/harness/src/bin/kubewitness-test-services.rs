//! Starts a database server of each installed kind for all tests of a run.
//!
//! It prints a line `NAME=value` for each server when all answer, then an empty line: the variables that tests need. It
//! ends with its standard input, and the servers end with it, however it ends.

use std::io::Read;
use std::process::ExitCode;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use anyhow::Result;
use kubewitness_harness::RunServers;

/// Between two looks for databases whose tests have ended. Tests make few a second.
const LOOK: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kubewitness-test-services: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[allow(clippy::disallowed_methods)]
fn run() -> Result<()> {
    let servers = RunServers::start()?;
    servers.tell(&mut std::io::stdout().lock())?;
    let (runs, ended) = mpsc::channel::<()>();
    std::thread::spawn(move || {
        // An error ends it as well: nobody holds the other end any more.
        drop(std::io::copy(&mut std::io::stdin().lock().by_ref(), &mut std::io::sink()));
        drop(runs);
    });
    while ended.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
        if let Err(error) = servers.drop_unused() {
            eprintln!("databases of tests that have ended are left: {error:#}");
        }
    }
    Ok(())
}
