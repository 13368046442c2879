//! Loops in `describe` without end, before anybody knows what it is. The operator sees "the component failed in
//! `describe`: the plugin ran longer than its limit of 2000 ms".

use kubewitness_sdk::{About, Plugin, State, Verdict};
use serde::de::IgnoredAny;

struct Loops;

impl Plugin for Loops {
    const NAME: &'static str = "loops-in-describe";
    type Config = IgnoredAny;

    fn about() -> About {
        loop {
            std::hint::spin_loop();
        }
    }

    fn handle(_: &IgnoredAny, states: &[State]) -> Vec<Verdict> {
        vec![Verdict::Done; states.len()]
    }
}

kubewitness_sdk::export!(Loops);
