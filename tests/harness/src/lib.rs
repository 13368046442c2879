//! The parts that end-to-end tests and benchmarks share: real processes and databases, the true history of
//! the simulated API server, and readers for the rows of the persistence plugin.
//!
//! Invariant: it knows Kubewitness only from outside, by its command line, its HTTP API and its tables. It
//! calls none of the program's functions, so a test sees what an operator would see, and a refactoring inside
//! the program needs no change here. From the core it takes only the types of the API's answers.
//!
//! Servers are real ones on loopback, in temporary folders that are kept if a test fails. If a server is not
//! installed, the test is skipped; in CI that is a failure.

use std::io::Write;

mod mail;
mod poll;
mod programs;
mod reference;
pub mod registry;
mod scratch;
mod services;
pub mod tls;
mod truth;
mod wire;

pub use kubewitness_chance::{Dice, half, kills, seed};
pub use mail::{Encryption, MailServer, ReceivedMail};
pub use poll::{in_time, slowdown, until, until_ok};
pub use programs::{
    ChildProcess, Kubectl, KubectlRun, Kubewitness, PlatformAddress, ProcessEnd, RequestCounts, RunOptions,
    SHORT_TIMERS, Simulator, SimulatorOptions, bound_command, command, command_in, command_json,
    command_json_in, compiled, kubewitness_binary, plugins_folder, project_root, services_folder,
    simulator_binary,
};
pub use reference::{GENERATED, cell, generated, reference};
pub use scratch::{Scratch, in_scratch};
pub use services::{
    ADDRESS_SECRET, ChatServices, DatabaseServer, MessageCluster, MessageServer, PASSWORD, Pooler,
    RunServers, SIGNING_SECRET, SmallDisk, SqlService, database_of, shared_server,
};
pub use truth::{Platform, PlatformRow, ResourceVersions, TruthEntry, TruthObject, compare, compare_newest};
pub use wire::{TestWire, free_port};

/// Whether a missing tool is a failure rather than a skipped test.
pub fn nothing_may_be_skipped() -> bool {
    std::env::var("CI").is_ok_and(|value| value == "true")
}

/// Says that a test was skipped and why, in a form that can be counted; fails where nothing may be.
pub fn skip(test: &str, why: &str) {
    assert!(!nothing_may_be_skipped(), "{test} can't be skipped in CI: {why}");
    eprintln!("SKIPPED {test}: {why}");
    // What a test that passes prints is not shown: the runner reads the list and counts it.
    if let Some(list) = std::env::var_os("KUBEWITNESS_SKIPPED") {
        let mut list =
            std::fs::File::options().create(true).append(true).open(list).expect("the list of skipped tests");
        writeln!(list, "{test}: {why}").expect("the list of skipped tests can be written");
    }
}

/// Whether an Ed25519 key has signed this. `public` is the key as `kubewitness audit verify` takes it, in base64.
pub fn is_signed_by(public: &str, message: &[u8], signature: &[u8]) -> bool {
    use base64::Engine;
    let der = base64::engine::general_purpose::STANDARD.decode(public).expect("a key in base64");
    // The key itself ends its DER.
    let key = &der[der.len() - 32..];
    ring::signature::UnparsedPublicKey::new(&ring::signature::ED25519, key).verify(message, signature).is_ok()
}

/// For addresses of this machine.
fn http_builder() -> reqwest::ClientBuilder {
    // Building any client asks for the process's default; tests that have one keep it.
    rustls::crypto::ring::default_provider().install_default().ok();
    // For an answer that never comes: a busy machine may take this long for one of a second.
    reqwest::Client::builder().no_proxy().timeout(std::time::Duration::from_secs(120))
}

pub fn http() -> reqwest::Client {
    http_builder().build().expect("a client without certificates can always be built")
}

/// A client of servers whose certificates this authority has signed.
pub fn http_trusting(authority: &std::path::Path) -> anyhow::Result<reqwest::Client> {
    let trusted = reqwest::Certificate::from_pem(&std::fs::read(authority)?)?;
    Ok(http_builder().tls_certs_only([trusted]).build()?)
}
