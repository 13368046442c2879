//! Writes long values to `kv` without end. The operator sees "its next call waits: it writes more to `kv` than 1Mi a
//! second"; or a dead letter "too large", where one value is over `limits.hostBytes`.

use kubewitness_sdk::{Plugin, State, Verdict, kv};
use serde::Deserialize;

#[derive(Deserialize)]
struct Config {
    bytes: usize,
}

struct Writes;

impl Plugin for Writes {
    const NAME: &'static str = "writes-long-values";
    type Config = Config;

    fn handle(config: &Config, states: &[State]) -> Vec<Verdict> {
        let value = vec![7; config.bytes];
        let write = |_| kv::set("value", &value).map_or_else(Verdict::from, |()| Verdict::Done);
        states.iter().map(write).collect()
    }
}

kubewitness_sdk::export!(Writes);
