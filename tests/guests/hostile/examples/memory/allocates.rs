//! Allocates without end. The operator sees "the plugin wanted more memory than its limit of 67108864 bytes".

use kubewitness_sdk::{Plugin, State, Verdict};
use serde::de::IgnoredAny;

struct Allocates;

impl Plugin for Allocates {
    const NAME: &'static str = "allocates";
    type Config = IgnoredAny;

    fn handle(_: &IgnoredAny, _: &[State]) -> Vec<Verdict> {
        let mut all = Vec::new();
        loop {
            all.push(std::hint::black_box(vec![1u8; 1 << 20]));
        }
    }
}

kubewitness_sdk::export!(Allocates);
