//! Loops in `tick` without end, while no state comes. The operator sees that the tick failed, and why. States go on.

use kubewitness_sdk::{Plugin, State, Ticking, Verdict};
use serde::de::IgnoredAny;

struct Loops;

impl Plugin for Loops {
    const NAME: &'static str = "loops-in-tick";
    type Config = IgnoredAny;

    fn handle(_: &IgnoredAny, states: &[State]) -> Vec<Verdict> {
        vec![Verdict::Done; states.len()]
    }
}

impl Ticking for Loops {
    fn tick(_: &IgnoredAny, _: u64) -> Result<(), String> {
        loop {
            std::hint::spin_loop();
        }
    }
}

kubewitness_sdk::export!(Loops, tick);
