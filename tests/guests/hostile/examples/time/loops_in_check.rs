//! Loops in `check` without end, when its manifest is read. The operator sees "the component failed in `check`: the
//! plugin ran longer than its limit of 2000 ms".

use kubewitness_sdk::{FieldError, Plugin, State, Verdict};
use serde::de::IgnoredAny;

struct Loops;

impl Plugin for Loops {
    const NAME: &'static str = "loops-in-check";
    type Config = IgnoredAny;

    fn check(_: &IgnoredAny) -> Vec<FieldError> {
        loop {
            std::hint::spin_loop();
        }
    }

    fn handle(_: &IgnoredAny, states: &[State]) -> Vec<Verdict> {
        vec![Verdict::Done; states.len()]
    }
}

kubewitness_sdk::export!(Loops);
