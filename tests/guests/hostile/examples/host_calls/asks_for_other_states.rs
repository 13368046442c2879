//! Asks for documents of states that it was not handed. The operator sees nothing: the host refuses each of these
//! numbers. If it gave one, the plugin would trap.

use kubewitness_sdk::{Plugin, State, Verdict, documents};
use serde::de::IgnoredAny;

struct Asks;

impl Plugin for Asks {
    const NAME: &'static str = "asks-for-other-states";
    type Config = IgnoredAny;

    fn handle(_: &IgnoredAny, states: &[State]) -> Vec<Verdict> {
        let last = states.iter().map(|state| state.seq).max().unwrap_or_default();
        for forged in [0, last + 1, last + 1000, u64::MAX] {
            assert!(documents::json(forged).is_err(), "the document of {forged}");
            assert!(documents::get(forged, "/metadata/name").is_err(), "a value of {forged}");
            assert!(documents::patch(forged).is_err(), "the change of {forged}");
        }
        vec![Verdict::Done; states.len()]
    }
}

kubewitness_sdk::export!(Asks);
