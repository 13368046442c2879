//! Loops in `handle` without end. The operator sees "the plugin ran longer than its limit of 2000 ms".

use kubewitness_sdk::{Plugin, State, Verdict};
use serde::de::IgnoredAny;

struct Loops;

impl Plugin for Loops {
    const NAME: &'static str = "loops";
    type Config = IgnoredAny;

    fn handle(_: &IgnoredAny, _: &[State]) -> Vec<Verdict> {
        loop {
            std::hint::spin_loop();
        }
    }
}

kubewitness_sdk::export!(Loops);
