//! Answers with one verdict more than it got states. The operator sees "the plugin's answer is invalid" with both
//! numbers.

use kubewitness_sdk::{Plugin, State, Verdict};
use serde::de::IgnoredAny;

struct TooMany;

impl Plugin for TooMany {
    const NAME: &'static str = "too-many-verdicts";
    type Config = IgnoredAny;

    fn handle(_: &IgnoredAny, states: &[State]) -> Vec<Verdict> {
        vec![Verdict::Done; states.len() + 1]
    }
}

kubewitness_sdk::export!(TooMany);
