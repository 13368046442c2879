//! Exits with a failure, as a program of its own may. The operator sees "it exited with 1".

use kubewitness_sdk::{Plugin, State, Verdict};
use serde::de::IgnoredAny;

struct Exits;

impl Plugin for Exits {
    const NAME: &'static str = "exits";
    type Config = IgnoredAny;

    fn handle(_: &IgnoredAny, _: &[State]) -> Vec<Verdict> {
        std::process::exit(3)
    }
}

kubewitness_sdk::export!(Exits);
