//! Calls itself without end. The operator sees "the plugin trapped" and why.

use std::hint::black_box;

use kubewitness_sdk::{Plugin, State, Verdict};
use serde::de::IgnoredAny;

struct Recurses;

impl Plugin for Recurses {
    const NAME: &'static str = "recurses";
    type Config = IgnoredAny;

    fn handle(_: &IgnoredAny, states: &[State]) -> Vec<Verdict> {
        let depth = deeper(1);
        vec![Verdict::retry(format!("{depth} levels")); states.len()]
    }
}

/// The black boxes keep a compiler from making a loop of it.
fn deeper(depth: u64) -> u64 {
    if black_box(depth) == 0 {
        return 0;
    }
    let frame = black_box([depth; 64]);
    frame[0] + deeper(black_box(depth + 1))
}

kubewitness_sdk::export!(Recurses);
