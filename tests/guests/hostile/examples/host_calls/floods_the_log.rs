//! Logs without end. The operator sees "the plugin logs too much; messages were left out" in the log.

use kubewitness_sdk::{Plugin, State, Verdict, log};
use serde::de::IgnoredAny;

struct Floods;

impl Plugin for Floods {
    const NAME: &'static str = "floods-the-log";
    type Config = IgnoredAny;

    fn handle(_: &IgnoredAny, states: &[State]) -> Vec<Verdict> {
        (0..20_000).for_each(|_| log::debug("flood", &[]));
        vec![Verdict::Done; states.len()]
    }
}

kubewitness_sdk::export!(Floods);
