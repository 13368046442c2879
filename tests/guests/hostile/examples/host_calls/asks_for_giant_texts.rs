//! Asks for documents, however long they are. The operator sees a dead letter "too large" for each that is over
//! `limits.hostBytes`.

use kubewitness_sdk::{Plugin, State, Verdict, documents};
use serde::de::IgnoredAny;

struct Asks;

impl Plugin for Asks {
    const NAME: &'static str = "asks-for-giant-texts";
    type Config = IgnoredAny;

    fn handle(_: &IgnoredAny, states: &[State]) -> Vec<Verdict> {
        let ask = |state: &State| documents::json(state.seq).map_or_else(Verdict::from, |_| Verdict::Done);
        states.iter().map(ask).collect()
    }
}

kubewitness_sdk::export!(Asks);
