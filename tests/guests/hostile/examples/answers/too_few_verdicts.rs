//! Answers with one verdict less than it got states. The operator sees "the plugin's answer is invalid" with both
//! numbers.

use kubewitness_sdk::{Plugin, State, Verdict};
use serde::de::IgnoredAny;

struct TooFew;

impl Plugin for TooFew {
    const NAME: &'static str = "too-few-verdicts";
    type Config = IgnoredAny;

    fn handle(_: &IgnoredAny, states: &[State]) -> Vec<Verdict> {
        vec![Verdict::Done; states.len() - 1]
    }
}

kubewitness_sdk::export!(TooFew);
