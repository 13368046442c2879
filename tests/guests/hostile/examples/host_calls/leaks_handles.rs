//! Takes handles of the host and gives none back. The operator sees "the plugin trapped": it holds at most 256.

use kubewitness_sdk::{Plugin, State, Verdict};
use serde::de::IgnoredAny;

struct Leaks;

impl Plugin for Leaks {
    const NAME: &'static str = "leaks-handles";
    type Config = IgnoredAny;

    fn handle(_: &IgnoredAny, states: &[State]) -> Vec<Verdict> {
        (0..300).for_each(|_| leak());
        vec![Verdict::Done; states.len()]
    }
}

/// A timer that ends in a second, if anybody waits for it.
#[cfg(target_arch = "wasm32")]
fn leak() {
    std::mem::forget(wasip2::clocks::monotonic_clock::subscribe_duration(1_000_000_000));
}

/// There is no host.
#[cfg(not(target_arch = "wasm32"))]
fn leak() {}

kubewitness_sdk::export!(Leaks);
