//! Rejects each state for a reason of many megabytes. The operator sees the beginning of it; or "the plugin trapped",
//! where the reason is more than the host copies out of a plugin.

use kubewitness_sdk::{Plugin, State, Verdict};
use serde::Deserialize;

#[derive(Deserialize)]
struct Config {
    mebibytes: usize,
}

struct Giant;

impl Plugin for Giant {
    const NAME: &'static str = "giant-reasons";
    type Config = Config;

    fn handle(config: &Config, states: &[State]) -> Vec<Verdict> {
        vec![Verdict::reject("x".repeat(config.mebibytes << 20)); states.len()]
    }
}

kubewitness_sdk::export!(Giant);
