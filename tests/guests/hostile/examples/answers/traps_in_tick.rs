//! Traps in `tick`. The operator sees that the tick failed, and why. States go on.

use kubewitness_sdk::{Plugin, State, Ticking, Verdict};
use serde::de::IgnoredAny;

struct Traps;

impl Plugin for Traps {
    const NAME: &'static str = "traps-in-tick";
    type Config = IgnoredAny;

    fn handle(_: &IgnoredAny, states: &[State]) -> Vec<Verdict> {
        vec![Verdict::Done; states.len()]
    }
}

impl Ticking for Traps {
    fn tick(_: &IgnoredAny, _: u64) -> Result<(), String> {
        panic!("each tick fails")
    }
}

kubewitness_sdk::export!(Traps, tick);
