//! Logs a password for each state, and writes into its ledger. As a shadow of another version, the operator sees both
//! among the differences; in the place of the password stands that it is hidden.

use kubewitness_sdk::{Plugin, State, Verdict, ledger, log};
use serde::de::IgnoredAny;

struct Logs;

impl Plugin for Logs {
    const NAME: &'static str = "logs-a-password";
    type Config = IgnoredAny;

    fn handle(_: &IgnoredAny, states: &[State]) -> Vec<Verdict> {
        let tell = |_| {
            log::info("another version", &[("password", "hunter2")]);
            let written = ledger::append("notes", &[b"of-another-version".to_vec()]);
            written.map_or_else(Verdict::from, |_| Verdict::Done)
        };
        states.iter().map(tell).collect()
    }
}

kubewitness_sdk::export!(Logs);
