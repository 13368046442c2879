//! Sleeps in a call of the host for as long as its configuration says, such as ten minutes. The operator sees "the plugin
//! ran longer than its limit of 2000 ms".

use std::time::Duration;

use kubewitness_sdk::{Plugin, State, Verdict};
use serde::Deserialize;

#[derive(Deserialize)]
struct Config {
    millis: u64,
}

struct Sleeps;

impl Plugin for Sleeps {
    const NAME: &'static str = "sleeps";
    type Config = Config;

    fn handle(config: &Config, states: &[State]) -> Vec<Verdict> {
        std::thread::sleep(Duration::from_millis(config.millis));
        vec![Verdict::Done; states.len()]
    }
}

kubewitness_sdk::export!(Sleeps);
