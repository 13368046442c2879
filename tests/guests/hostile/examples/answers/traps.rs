//! Handles two states, then traps in the middle of a batch; and so does each instance that follows. The operator sees
//! "the plugin trapped". What the batch wrote is rolled back.

use std::sync::atomic::{AtomicU64, Ordering};

use kubewitness_sdk::{Plugin, State, Verdict, kv};
use serde::de::IgnoredAny;

static HANDLED: AtomicU64 = AtomicU64::new(0);

struct Traps;

impl Plugin for Traps {
    const NAME: &'static str = "traps";
    type Config = IgnoredAny;

    fn handle(_: &IgnoredAny, states: &[State]) -> Vec<Verdict> {
        let handle = |state: &State| {
            assert!(HANDLED.fetch_add(1, Ordering::Relaxed) < 2, "the third state is one too many");
            kv::set(&state.id, b"handled").map_or_else(Verdict::from, |()| Verdict::Done)
        };
        states.iter().map(handle).collect()
    }
}

kubewitness_sdk::export!(Traps);
